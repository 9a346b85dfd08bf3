//! The counts of misses as rows for reports.
//!
//! Input: what the collector counted. Output: rows that add up to the counters of the machine's
//! caches. Prints nothing.

use super::collector::{MissCollector, RANGE, SlicedCounters, USER_MODE, says_nothing};
use super::owners::StructureClass;
use serde::Serialize;
use sim::{MachineCounters, MachineModel, MissCounts, PerMode};
use trace::RecordingHeader;

/// The misses of every level, on instructions (`i`) and on data (`d`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MissesByLevel {
    /// Misses of the L1I.
    pub l1i: MissCounts,
    /// Misses of the L1D.
    pub l1d: MissCounts,
    /// Misses of the L2 on instructions.
    pub l2i: MissCounts,
    /// Misses of the L2 on data.
    pub l2d: MissCounts,
    /// Misses of the L3 on instructions.
    pub l3i: MissCounts,
    /// Misses of the L3 on data.
    pub l3d: MissCounts,
}

impl From<&MachineCounters> for MissesByLevel {
    fn from(counters: &MachineCounters) -> MissesByLevel {
        MissesByLevel {
            l1i: counters.l1i,
            l1d: counters.l1d,
            l2i: counters.l2i,
            l2d: counters.l2d,
            l3i: counters.l3i,
            l3d: counters.l3d,
        }
    }
}

/// The misses of one function, or of user mode as a whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionMissRow {
    /// The function's name, without what compilers append.
    pub name: String,
    /// False for user mode.
    pub kernel: bool,
    /// The misses of its fetches, loads and stores.
    pub misses: MissesByLevel,
}

/// 1 KB of the kernel's code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RangeRow {
    /// The first address, in hex.
    pub start: String,
    /// Executed instructions (Torrellas 1998, figure 2).
    pub references: u64,
    /// Misses of the L1I (figures 1 and 13).
    pub misses: MissCounts,
}

/// The `ranges` ranges with the most misses have `misses` misses together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Concentration {
    /// A number of ranges.
    pub ranges: usize,
    /// The misses of the ranges that missed most.
    pub misses: u64,
}

/// The misses on one data structure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StructureRow {
    /// The class of the structure.
    pub class: StructureClass,
    /// The structure's name; empty for classes without names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Misses of kernel code.
    pub kernel: MissesByLevel,
    /// Misses of user code.
    pub user: MissesByLevel,
    /// The misses of each slice that has some, in the order of the slices.
    #[serde(skip)]
    pub slices: Vec<(u32, PerMode<MissesByLevel>)>,
}

impl StructureRow {
    /// L1D misses of kernel and user together.
    pub fn l1d(&self) -> u64 {
        self.kernel.l1d.total() + self.user.l1d.total()
    }
}

/// The misses of a recording on one machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MissTable {
    /// The recorded workload.
    pub workload: String,
    /// The build id of the recorded kernel.
    pub kernel_build_id: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The simulated machine.
    pub machine: String,
    /// Misses of kernel code, as the caches counted them.
    pub kernel: MissesByLevel,
    /// Misses of user code, as the caches counted them.
    pub user: MissesByLevel,
    /// Descending by the misses of the L1I and L1D together.
    pub functions: Vec<FunctionMissRow>,
    /// Ascending by address.
    pub ranges: Vec<RangeRow>,
    /// Bytes in a range.
    pub range_bytes: u64,
    /// How few ranges hold most misses: an entry for 1, 2, 4, … and all ranges.
    pub concentration: Vec<Concentration>,
    /// Descending by misses of the L1D.
    pub structures: Vec<StructureRow>,
    /// The share of the L1D's misses on data of unknown use (the classes `held` and `other`).
    pub other_share: f64,
    /// Why the use of page frames is unknown; `None` when it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames_unknown: Option<String>,
}

impl MissTable {
    pub(super) fn new(
        header: &RecordingHeader,
        machine: &MachineModel,
        collector: &MissCollector<'_>,
        number: usize,
        counted: &PerMode<MachineCounters>,
        frames_unknown: Option<String>,
    ) -> MissTable {
        let counts = collector.machine(number);
        let mut functions: Vec<FunctionMissRow> = collector
            .function_names()
            .iter()
            .zip(&counts.functions)
            .map(|(name, counters)| FunctionMissRow {
                name: (*name).to_owned(),
                kernel: *name != USER_MODE,
                misses: counters.into(),
            })
            .filter(|row| row.misses != MissesByLevel::default())
            .collect();
        functions.sort_by_key(|row| {
            (std::cmp::Reverse(row.misses.l1i.total() + row.misses.l1d.total()), row.name.clone())
        });
        let mut structures: Vec<StructureRow> = collector
            .structures()
            .iter()
            .zip(&counts.structures)
            .map(|(structure, counters)| {
                let sum = counters.sum();
                StructureRow {
                    class: structure.class,
                    name: structure.name.clone(),
                    kernel: (&sum.kernel).into(),
                    user: (&sum.user).into(),
                    slices: sliced(counters),
                }
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
                misses: counts.ranges.get(start).copied().unwrap_or_default(),
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

fn sliced(counters: &SlicedCounters) -> Vec<(u32, PerMode<MissesByLevel>)> {
    let slices = counters.0.iter();
    slices
        .map(|(slice, PerMode { kernel, user })| {
            (*slice, PerMode { kernel: kernel.into(), user: user.into() })
        })
        .collect()
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
