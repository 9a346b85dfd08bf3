//! The tables of a machine file.
//!
//! Input: the file's text. Output: a [`MachineModel`] that can be built. A number without a source,
//! or a cache that cannot be built, gives an error that names the rule and the line. This module
//! reads no file.

use crate::coherence_table::CoherenceText;
use crate::core_tables::CoreText;
use crate::guest_table::{GuestProcessor, GuestText};
use crate::os_core_table::OsCoreText;
use crate::sourced::{MachineFileReader, Sourced, SourcedFraction, SourcedInteger};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use sim::{
    BranchPrediction, CacheDescription, CacheGeometry, DirectionPrediction, HeldBranches,
    ItlbDescription, Latencies, MachineModel, MemoryDescription, Replacement, SimpleModel,
    TargetBufferDescription,
};
use std::num::NonZeroU32;
use toml::Spanned;

/// The fastest clock of a machine, in MHz.
const FASTEST: u32 = 100_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineFile {
    name: Spanned<String>,
    #[serde(rename = "summary")]
    _summary: String,
    l1i: Spanned<CacheText>,
    itlb: Option<Spanned<ItlbText>>,
    time: Spanned<TimeText>,
    l1d: Option<Spanned<CacheText>>,
    l2: Option<Spanned<CacheText>>,
    l3: Option<Spanned<CacheText>>,
    dtlb: Option<Spanned<DtlbText>>,
    latencies: Option<Spanned<LatenciesText>>,
    branch: Option<Spanned<BranchText>>,
    core: Option<Spanned<CoreText>>,
    coherence: Option<Spanned<CoherenceText>>,
    os_core: Option<Spanned<OsCoreText>>,
    clock: Option<Spanned<ClockText>>,
    guest: Option<GuestText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheText {
    size: SourcedInteger,
    ways: SourcedInteger,
    line: SourcedInteger,
    replacement: Spanned<Sourced<ReplacementText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ItlbText {
    entries: SourcedInteger,
    ways: SourcedInteger,
    replacement: Spanned<Sourced<ReplacementText>>,
    kernel_page: SourcedInteger,
    user_page: SourcedInteger,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DtlbText {
    entries: SourcedInteger,
    ways: SourcedInteger,
    replacement: Spanned<Sourced<ReplacementText>>,
}

/// Latencies in cycles: only those of levels that the machine has.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LatenciesText {
    l2: Option<SourcedFraction>,
    l3: Option<SourcedFraction>,
    memory: SourcedFraction,
    tlb_miss: SourcedFraction,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClockText {
    megahertz: SourcedInteger,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TimeText {
    miss_penalty: SourcedFraction,
    data_references: SourcedFraction,
    data_miss_rate: SourcedFraction,
}

/// Penalties in cycles.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BranchText {
    predictor: Spanned<Sourced<PredictorText>>,
    entries: Option<SourcedInteger>,
    history: Option<SourcedInteger>,
    btb_entries: Option<SourcedInteger>,
    btb_ways: Option<SourcedInteger>,
    btb_holds: Option<Spanned<Sourced<HeldText>>>,
    return_stack: Option<SourcedInteger>,
    penalty: Option<SourcedFraction>,
    misfetch_penalty: Option<SourcedFraction>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PredictorText {
    Static,
    Bimodal,
    Gshare,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum HeldText {
    Taken,
    Indirect,
}

/// A replacement policy by its name.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct ReplacementText(Replacement);

impl TryFrom<String> for ReplacementText {
    type Error = String;

    fn try_from(name: String) -> Result<ReplacementText, String> {
        let found = Replacement::ALL.iter().find(|policy| policy.name() == name);
        found.copied().map(ReplacementText).ok_or_else(|| {
            let known: Vec<&str> = Replacement::ALL.iter().map(|policy| policy.name()).collect();
            format!("there is no replacement `{name}`; there are {}", known.join(", "))
        })
    }
}

impl From<ReplacementText> for Replacement {
    fn from(policy: ReplacementText) -> Replacement {
        policy.0
    }
}

/// The model of the machine in `text`, and the guest like it; `file` is for messages.
///
/// # Errors
/// The text is not a machine, or the machine cannot be built. The error names the rule and the
/// line.
pub(crate) fn machine(text: &str, file: &str) -> Result<(MachineModel, Option<GuestProcessor>)> {
    let description: MachineFile =
        toml::from_str(text).with_context(|| format!("{file}: not a machine"))?;
    let reader = MachineFileReader { text, file };
    let guest = description.guest.as_ref();
    let guest = guest.map(|guest| reader.guest(description.name.get_ref(), guest)).transpose()?;
    Ok((reader.machine(&description)?, guest))
}

impl MachineFileReader<'_> {
    fn machine(&self, file: &MachineFile) -> Result<MachineModel> {
        if file.name.get_ref().is_empty() {
            bail!("{}: the name is empty", self.at(&file.name));
        }
        let l1i = self.cache("l1i", &file.l1i)?;
        let time = file.time.get_ref();
        let time_model = SimpleModel::new(
            *self.sourced(&time.miss_penalty)?,
            *self.sourced(&time.data_references)?,
            *self.sourced(&time.data_miss_rate)?,
        )
        .with_context(|| format!("{}: [time] is impossible", self.at(&file.time)))?;
        let mut machine = MachineModel {
            name: file.name.get_ref().clone(),
            l1i: l1i.geometry,
            l1i_line: l1i.line,
            itlb: file.itlb.as_ref().map(|itlb| self.itlb(itlb)).transpose()?,
            time: time_model,
            memory: self.memory(file)?,
            branch: file.branch.as_ref().map(|branch| self.branch(branch)).transpose()?,
            core: None,
            coherence: None,
            os_core: None,
            clock: file.clock.as_ref().map(|clock| self.clock(clock)).transpose()?,
        };
        if let Some(core) = &file.core {
            machine.core = Some(self.core(core)?);
            let checked = machine.check_core();
            checked.with_context(|| format!("{}: [core] cannot be built", self.at(core)))?;
        }
        if let Some(coherence) = &file.coherence {
            machine.coherence = Some(self.coherence(coherence)?);
            let impossible = || format!("{}: [coherence] cannot be built", self.at(coherence));
            machine.check_coherence().with_context(impossible)?;
        }
        if let Some(os_core) = &file.os_core {
            machine.os_core = Some(self.os_core(os_core, &machine)?);
        }
        Ok(machine)
    }

    fn cache(&self, name: &str, spanned: &Spanned<CacheText>) -> Result<CacheDescription> {
        let cache = spanned.get_ref();
        CacheDescription::new(
            *self.sourced(&cache.size)?,
            *self.sourced(&cache.ways)?,
            *self.sourced(&cache.line)?,
            (*self.sourced(&cache.replacement)?).into(),
        )
        .with_context(|| format!("{}: [{name}] cannot be built", self.at(spanned)))
    }

    /// The caches behind the L1I. A machine has an L1D and latencies, or neither.
    fn memory(&self, file: &MachineFile) -> Result<Option<MemoryDescription>> {
        let (Some(l1d), Some(latencies)) = (&file.l1d, &file.latencies) else {
            let some =
                [&file.l1d, &file.l2, &file.l3].into_iter().flatten().map(|cache| self.at(cache));
            let others = [
                file.dtlb.as_ref().map(|dtlb| self.at(dtlb)),
                file.latencies.as_ref().map(|it| self.at(it)),
            ];
            return match some.chain(others.into_iter().flatten()).next() {
                None => Ok(None),
                Some(at) => {
                    bail!("{at}: [l1d] or [latencies] is missing; this needs both")
                }
            };
        };
        let l2 = file.l2.as_ref().map(|cache| self.cache("l2", cache)).transpose()?;
        let l3 = file.l3.as_ref().map(|cache| self.cache("l3", cache)).transpose()?;
        let dtlb = file.dtlb.as_ref().map(|dtlb| self.dtlb(dtlb)).transpose()?;
        let memory = MemoryDescription::new(
            self.cache("l1d", l1d)?,
            l2,
            l3,
            dtlb,
            self.latencies(latencies, l2.is_some(), l3.is_some())?,
        );
        Ok(Some(memory.with_context(|| format!("{}: this machine cannot be built", self.at(l1d)))?))
    }

    fn clock(&self, spanned: &Spanned<ClockText>) -> Result<NonZeroU32> {
        let clock = &spanned.get_ref().megahertz;
        let megahertz = *self.sourced(clock)?;
        let possible = u32::try_from(megahertz).ok().filter(|&megahertz| megahertz <= FASTEST);
        possible.and_then(NonZeroU32::new).with_context(|| {
            format!(
                "{}: a clock must lie between 1 and {FASTEST} MHz, not {megahertz}",
                self.at(clock)
            )
        })
    }

    fn dtlb(&self, spanned: &Spanned<DtlbText>) -> Result<CacheGeometry> {
        let dtlb = spanned.get_ref();
        CacheGeometry::tlb(
            *self.sourced(&dtlb.entries)?,
            *self.sourced(&dtlb.ways)?,
            (*self.sourced(&dtlb.replacement)?).into(),
        )
        .with_context(|| format!("{}: [dtlb] cannot be built", self.at(spanned)))
    }

    fn latencies(
        &self,
        spanned: &Spanned<LatenciesText>,
        has_l2: bool,
        has_l3: bool,
    ) -> Result<Latencies> {
        let latencies = spanned.get_ref();
        for (name, has, given) in [("l2", has_l2, &latencies.l2), ("l3", has_l3, &latencies.l3)] {
            if has != given.is_some() {
                let what = if has { "an" } else { "no" };
                bail!(
                    "{}: [latencies] must name {name} exactly when there is a [{name}], and there \
                     is {what} [{name}]",
                    self.at(spanned)
                );
            }
        }
        let memory = *self.sourced(&latencies.memory)?;
        // A missing level is never accessed.
        let l3 = latencies.l3.as_ref().map_or(Ok(memory), |l3| self.sourced(l3).copied())?;
        let l2 = latencies.l2.as_ref().map_or(Ok(l3), |l2| self.sourced(l2).copied())?;
        let tlb_miss = *self.sourced(&latencies.tlb_miss)?;
        Latencies::new(l2, l3, memory, tlb_miss)
            .with_context(|| format!("{}: [latencies] are impossible", self.at(spanned)))
    }

    fn itlb(&self, spanned: &Spanned<ItlbText>) -> Result<ItlbDescription> {
        let itlb = spanned.get_ref();
        let impossible = || format!("{}: [itlb] cannot be built", self.at(spanned));
        let geometry = CacheGeometry::tlb(
            *self.sourced(&itlb.entries)?,
            *self.sourced(&itlb.ways)?,
            (*self.sourced(&itlb.replacement)?).into(),
        )
        .with_context(impossible)?;
        let (kernel_page, user_page) =
            (*self.sourced(&itlb.kernel_page)?, *self.sourced(&itlb.user_page)?);
        ItlbDescription::new(geometry, kernel_page, user_page).with_context(impossible)
    }

    fn branch(&self, spanned: &Spanned<BranchText>) -> Result<BranchPrediction> {
        let branch = spanned.get_ref();
        let number = |given: &Option<SourcedInteger>| {
            given.as_ref().map(|number| self.sourced(number).copied()).transpose()
        };
        let cycles = |given: &Option<SourcedFraction>| {
            given.as_ref().map(|cycles| self.sourced(cycles).copied()).transpose()
        };
        let (entries, history) = (number(&branch.entries)?, number(&branch.history)?);
        let direction = match (*self.sourced(&branch.predictor)?, entries, history) {
            (PredictorText::Static, None, None) => Ok(DirectionPrediction::Static),
            (PredictorText::Bimodal, Some(entries), None) => DirectionPrediction::bimodal(entries),
            (PredictorText::Gshare, Some(entries), Some(history)) => {
                DirectionPrediction::gshare(entries, history)
            }
            _ => bail!(
                "{}: [branch] does not fit its predictor: static takes neither entries nor \
                 history, bimodal takes entries, gshare takes both",
                self.at(&branch.predictor)
            ),
        };
        let impossible = || format!("{}: [branch] cannot be built", self.at(spanned));
        BranchPrediction::new(
            direction.with_context(impossible)?,
            self.target_buffer(spanned)?,
            number(&branch.return_stack)?.unwrap_or(0),
            cycles(&branch.penalty)?,
            cycles(&branch.misfetch_penalty)?,
        )
        .with_context(impossible)
    }

    /// The branch target buffer. Its three keys are given together or not at all.
    fn target_buffer(
        &self,
        spanned: &Spanned<BranchText>,
    ) -> Result<Option<TargetBufferDescription>> {
        let branch = spanned.get_ref();
        let (entries, ways, holds) =
            match (&branch.btb_entries, &branch.btb_ways, &branch.btb_holds) {
                (None, None, None) => return Ok(None),
                (Some(entries), Some(ways), Some(holds)) => {
                    (*self.sourced(entries)?, *self.sourced(ways)?, *self.sourced(holds)?)
                }
                _ => bail!(
                    "{}: [branch] must give btb_entries, btb_ways and btb_holds, or none of them",
                    self.at(spanned)
                ),
            };
        let holds = match holds {
            HeldText::Taken => HeldBranches::Taken,
            HeldText::Indirect => HeldBranches::Indirect,
        };
        let buffer = TargetBufferDescription::new(entries, ways, holds);
        Ok(Some(buffer.with_context(|| format!("{}: [branch] cannot be built", self.at(spanned)))?))
    }
}
