//! The tables [os_core] and [os_core.energy] of a machine file: the core for the operating system.

use crate::sourced::{MachineFileReader, SourcedFraction, SourcedInteger};
use anyhow::{Context, Result};
use serde::Deserialize;
use sim::coherent::{EnergyDescription, OsCoreDescription};
use sim::{CacheGeometry, MachineModel, Replacement};
use toml::Spanned;

/// Its caches have the lines of the application cores.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OsCoreText {
    l1i_size: SourcedInteger,
    l1i_ways: SourcedInteger,
    l1d_size: SourcedInteger,
    l1d_ways: SourcedInteger,
    l2_size: SourcedInteger,
    l2_ways: SourcedInteger,
    /// Cycles.
    r#move: SourcedFraction,
    static_power: SourcedFraction,
    energy: EnergyText,
}

/// Picojoules.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EnergyText {
    instruction: SourcedFraction,
    l1d: SourcedFraction,
    l2: SourcedFraction,
    l3: SourcedFraction,
    memory: SourcedFraction,
    static_share: SourcedFraction,
}

impl MachineFileReader<'_> {
    /// The core for the operating system of a machine.
    ///
    /// # Errors
    /// A number has no source or is impossible, or the machine has a single core. The error names
    /// the rule and the line.
    pub(crate) fn os_core(
        &self,
        spanned: &Spanned<OsCoreText>,
        machine: &MachineModel,
    ) -> Result<OsCoreDescription> {
        let text = spanned.get_ref();
        let impossible = || format!("{}: [os_core] cannot be built", self.at(spanned));
        let of_others = machine.memory.as_ref().filter(|_| machine.coherence.is_some());
        let of_others = of_others.and_then(|memory| Some((memory.l1d.line, memory.l2?.line)));
        let (l1d_line, l2_line) = of_others.with_context(|| {
            format!("{}: [os_core] needs [coherence], [l1d] and [l2]", self.at(spanned))
        })?;
        let cache = |size, ways, line: u32| {
            let (size, ways) = (*self.sourced(size)?, *self.sourced(ways)?);
            CacheGeometry::cache(size, ways, line.into(), Replacement::Lru).with_context(impossible)
        };
        let caches = [
            cache(&text.l1i_size, &text.l1i_ways, machine.l1i_line)?,
            cache(&text.l1d_size, &text.l1d_ways, l1d_line)?,
            cache(&text.l2_size, &text.l2_ways, l2_line)?,
        ];
        let energy = EnergyDescription {
            instruction: *self.sourced(&text.energy.instruction)?,
            l1d: *self.sourced(&text.energy.l1d)?,
            l2: *self.sourced(&text.energy.l2)?,
            l3: *self.sourced(&text.energy.l3)?,
            memory: *self.sourced(&text.energy.memory)?,
            static_share: *self.sourced(&text.energy.static_share)?,
        };
        let (cycles, power) = (*self.sourced(&text.r#move)?, *self.sourced(&text.static_power)?);
        OsCoreDescription::new(caches, cycles, power, energy).with_context(impossible)
    }
}
