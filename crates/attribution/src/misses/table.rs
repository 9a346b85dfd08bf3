//! What was counted, as rows that can be printed and that add up to what the machine's caches
//! counted.

use super::collector::{Collector, RANGE, USER_MODE, says_nothing};
use super::memory::Class;
use serde::Serialize;
use sim::{MachineCounters, MachineModel, MissCounts, PerMode};
use trace::RecordingHeader;

/// Misses by cause. In the kernel they are the papers' KERN-self and KERN-other, in user mode
/// USER-self and USER-other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Causes {
    pub cold: u64,
    #[serde(rename = "self")]
    pub own: u64,
    pub other: u64,
}

impl Causes {
    pub fn total(&self) -> u64 {
        self.cold + self.own + self.other
    }
}

impl From<MissCounts> for Causes {
    fn from(misses: MissCounts) -> Causes {
        Causes { cold: misses.cold, own: misses.own, other: misses.other }
    }
}

/// The misses of every level, by instructions (`i`) and by data (`d`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Levels {
    pub l1i: Causes,
    pub l1d: Causes,
    pub l2i: Causes,
    pub l2d: Causes,
    pub l3i: Causes,
    pub l3d: Causes,
}

impl From<&MachineCounters> for Levels {
    fn from(counters: &MachineCounters) -> Levels {
        Levels {
            l1i: counters.l1i.into(),
            l1d: counters.l1d.into(),
            l2i: counters.l2i.into(),
            l2d: counters.l2d.into(),
            l3i: counters.l3i.into(),
            l3d: counters.l3d.into(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionRow {
    pub name: String,
    pub kernel: bool,
    pub misses: Levels,
}

/// 1 KB of the kernel's code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RangeRow {
    pub start: String,
    /// Instructions executed (Torrellas 1998, figure 2).
    pub references: u64,
    /// Of the L1I (figures 1 and 13).
    pub misses: Causes,
}

/// How the ranges share the misses: the `ranges` that missed most have `misses` of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Concentration {
    pub ranges: usize,
    pub misses: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StructureRow {
    pub class: Class,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub kernel: Levels,
    pub user: Levels,
}

impl StructureRow {
    pub fn l1d(&self) -> u64 {
        self.kernel.l1d.total() + self.user.l1d.total()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MissTable {
    pub workload: String,
    pub kernel_build_id: String,
    pub seed: u64,
    pub machine: String,
    /// What the caches counted.
    pub kernel: Levels,
    pub user: Levels,
    /// Descending by misses of both L1s.
    pub functions: Vec<FunctionRow>,
    /// Ascending by address.
    pub ranges: Vec<RangeRow>,
    pub range_bytes: u64,
    pub concentration: Vec<Concentration>,
    /// Descending by misses of the L1D.
    pub structures: Vec<StructureRow>,
    /// Part of the L1D's misses on data of which nothing says what it is (the classes `held` and
    /// `other`).
    pub other_share: f64,
    /// Why it is not known what frames are used for, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames_unknown: Option<String>,
}

impl MissTable {
    pub(super) fn new(
        header: &RecordingHeader,
        machine: &MachineModel,
        collector: &Collector<'_>,
        number: usize,
        counted: &PerMode<MachineCounters>,
        frames_unknown: Option<String>,
    ) -> MissTable {
        let counts = collector.machine(number);
        let mut functions: Vec<FunctionRow> = collector
            .function_names()
            .iter()
            .zip(&counts.functions)
            .map(|(name, counters)| FunctionRow {
                name: (*name).to_owned(),
                kernel: *name != USER_MODE,
                misses: counters.into(),
            })
            .filter(|row| row.misses != Levels::default())
            .collect();
        functions.sort_by_key(|row| {
            (std::cmp::Reverse(row.misses.l1i.total() + row.misses.l1d.total()), row.name.clone())
        });
        let mut structures: Vec<StructureRow> = collector
            .structures()
            .iter()
            .zip(&counts.structures)
            .map(|(structure, counters)| StructureRow {
                class: structure.class,
                name: structure.name.clone(),
                kernel: (&counters.kernel).into(),
                user: (&counters.user).into(),
            })
            .filter(|row| row.l1d() > 0)
            .collect();
        structures.sort_by_key(|row| (std::cmp::Reverse(row.l1d()), row.class, row.name.clone()));
        let ranges: Vec<RangeRow> = collector
            .references()
            .iter()
            .map(|(start, &references)| RangeRow {
                start: format!("{start:016x}"),
                references,
                misses: counts.ranges.get(start).copied().unwrap_or_default().into(),
            })
            .collect();
        let all: u64 = structures.iter().map(StructureRow::l1d).sum();
        let nothing =
            structures.iter().filter(|row| says_nothing(row.class)).map(StructureRow::l1d);
        MissTable {
            workload: header.workload.clone(),
            kernel_build_id: header.build_id.clone(),
            seed: header.seed,
            machine: machine.name.clone(),
            kernel: (&counted.kernel).into(),
            user: (&counted.user).into(),
            concentration: concentration(&ranges),
            range_bytes: RANGE,
            other_share: nothing.sum::<u64>() as f64 / all.max(1) as f64,
            functions,
            ranges,
            structures,
            frames_unknown,
        }
    }
}

fn concentration(ranges: &[RangeRow]) -> Vec<Concentration> {
    let mut misses: Vec<u64> = ranges.iter().map(|range| range.misses.total()).collect();
    misses.sort_unstable_by(|a, b| b.cmp(a));
    let powers = std::iter::successors(Some(1_usize), |count| Some(2 * count))
        .take_while(|&count| count < misses.len());
    let counts = powers.chain((!misses.is_empty()).then_some(misses.len()));
    let first =
        |count: usize| Concentration { ranges: count, misses: misses[..count].iter().sum() };
    counts.map(first).collect()
}
