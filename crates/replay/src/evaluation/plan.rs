//! Plans which layouts the figures of the evaluation replay on which caches.
//!
//! This module has only data and arithmetic. It makes no layout and replays nothing.

use serde::Serialize;
use sim::MachineModel;

/// A level of optimization (section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum OptimizationLevel {
    /// The original layout.
    Base,
    /// Chang and Hwu's layout.
    #[serde(rename = "C-H")]
    ChangHwu,
    /// Sequences with a SelfConfFree area (section 4.2).
    OptS,
    /// OptS with loops behind the sequences.
    OptL,
    /// OptS, with the application also laid out (section 5).
    OptA,
    /// OptS with loops next to their callees.
    Call,
    /// OptS, half of the cache for the kernel and half for the user (section 5.5).
    #[serde(rename = "Sep")]
    Separate,
    /// OptS without an area, an eighth of the cache for the kernel's most fetched lines (section
    /// 5.5).
    #[serde(rename = "Resv")]
    Reserved,
}

impl OptimizationLevel {
    /// The levels of figure 11, in its order: misses by cause on an undivided cache.
    pub const CAUSES: [OptimizationLevel; 5] = [
        OptimizationLevel::Base,
        OptimizationLevel::ChangHwu,
        OptimizationLevel::OptS,
        OptimizationLevel::OptL,
        OptimizationLevel::OptA,
    ];
    /// The levels that differ in where the kernel's blocks lie, on an undivided cache.
    pub const KERNEL: [OptimizationLevel; 5] = [
        OptimizationLevel::Base,
        OptimizationLevel::ChangHwu,
        OptimizationLevel::OptS,
        OptimizationLevel::OptL,
        OptimizationLevel::Call,
    ];
    /// The levels of figure 17, in its order.
    pub const SETUPS: [OptimizationLevel; 6] = [
        OptimizationLevel::Base,
        OptimizationLevel::OptS,
        OptimizationLevel::OptA,
        OptimizationLevel::Separate,
        OptimizationLevel::Reserved,
        OptimizationLevel::Call,
    ];
    /// The levels that are replayed on every shape of cache.
    pub const SHAPED: [OptimizationLevel; 3] =
        [OptimizationLevel::Base, OptimizationLevel::ChangHwu, OptimizationLevel::OptS];

    /// The level's name in the paper.
    pub fn name(self) -> &'static str {
        match self {
            OptimizationLevel::Base => "Base",
            OptimizationLevel::ChangHwu => "C-H",
            OptimizationLevel::OptS => "OptS",
            OptimizationLevel::OptL => "OptL",
            OptimizationLevel::OptA => "OptA",
            OptimizationLevel::Call => "Call",
            OptimizationLevel::Separate => "Sep",
            OptimizationLevel::Reserved => "Resv",
        }
    }

    /// Whether user code is also laid out. Section 5.5 compares its setups with OptA.
    pub(crate) fn lays_out_the_application(self) -> bool {
        match self {
            OptimizationLevel::OptA
            | OptimizationLevel::Separate
            | OptimizationLevel::Reserved
            | OptimizationLevel::Call => true,
            OptimizationLevel::Base
            | OptimizationLevel::ChangHwu
            | OptimizationLevel::OptS
            | OptimizationLevel::OptL => false,
        }
    }
}

/// The SelfConfFree area of an OptS layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// The blocks of at least 40 % popularity, at most 1 KB.
    Usual,
    /// No area.
    None,
    /// The blocks of at least this popularity, in percent of the most popular block's, in at most
    /// half of the cache.
    Cutoff(u8),
}

/// The areas of figure 15, in its order.
pub const AREAS: [Area; 4] = [Area::None, Area::Cutoff(60), Area::Cutoff(40), Area::Cutoff(20)];
/// Cache sizes of figure 14, in bytes.
pub const SIZES: [u64; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Line lengths of figure 16, in bytes.
pub const LINES: [u64; 4] = [16, 32, 64, 128];
/// Numbers of ways of figure 16.
pub const WAYS: [u64; 4] = [1, 2, 4, 8];
/// Miss penalties of figure 14b, in cycles.
pub const PENALTIES: [f64; 3] = [10.0, 30.0, 50.0];

/// The shape of an instruction cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct CacheShape {
    /// Bytes of the cache.
    pub bytes: u64,
    /// Bytes of a line.
    pub line: u64,
    /// Associativity.
    pub ways: u64,
}

impl CacheShape {
    /// The shape of a machine's L1I.
    pub fn of(machine: &MachineModel) -> CacheShape {
        let (line, ways) = (u64::from(machine.l1i_line), u64::from(machine.l1i.ways()));
        CacheShape { bytes: u64::from(machine.l1i.sets()) * ways * line, line, ways }
    }

    /// The number of sets.
    pub(crate) fn sets(self) -> u64 {
        self.bytes / self.line / self.ways
    }

    /// Whether half of the cache has room for an area and sequences, and an eighth is a whole
    /// number of sets.
    pub(crate) fn divisible(self) -> bool {
        self.bytes >= 4 << 10 && self.sets() >= 8
    }

    /// The shape with another size. When the size is a power of two and the number of ways is not,
    /// the number of ways is rounded down to one.
    pub fn sized(self, bytes: u64) -> CacheShape {
        let ways = if bytes.is_power_of_two() { 1 << self.ways.ilog2() } else { self.ways };
        CacheShape { bytes, ways, ..self }
    }

    /// The shape with another number of ways. The size is rounded down to a power of two.
    pub fn with_ways(self, ways: u64) -> CacheShape {
        CacheShape { bytes: 1 << self.bytes.ilog2(), ways, ..self }
    }
}

/// How to make a layout: its level, its area, and the bytes of the cache that it is made for (0
/// where the cache makes no difference).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LayoutRecipe {
    pub level: OptimizationLevel,
    pub area: Area,
    pub cache: u64,
}

impl LayoutRecipe {
    pub(super) fn new(level: OptimizationLevel, area: Area, shape: CacheShape) -> LayoutRecipe {
        let cache = match level {
            OptimizationLevel::Base | OptimizationLevel::ChangHwu => 0,
            OptimizationLevel::OptS
            | OptimizationLevel::OptL
            | OptimizationLevel::OptA
            | OptimizationLevel::Call
            | OptimizationLevel::Reserved => shape.bytes,
            OptimizationLevel::Separate => shape.bytes / 2,
        };
        LayoutRecipe { level, area, cache }
    }
}

/// All layouts and caches of the figures, each pair once.
pub(super) fn plan(own: CacheShape) -> Vec<(OptimizationLevel, Area, CacheShape)> {
    let undivided = OptimizationLevel::CAUSES.into_iter().chain(OptimizationLevel::KERNEL);
    let mut plan: Vec<(OptimizationLevel, Area, CacheShape)> =
        undivided.map(|level| (level, Area::Usual, own)).collect();
    let sizes = SIZES.map(|bytes| own.sized(bytes)).into_iter();
    let lines = LINES.map(|line| CacheShape { line, ..own }).into_iter();
    let ways = WAYS.map(|ways| own.with_ways(ways)).into_iter();
    for shape in sizes.chain(lines).chain(ways) {
        plan.extend(OptimizationLevel::SHAPED.map(|level| (level, Area::Usual, shape)));
    }
    if own.divisible() {
        plan.push((OptimizationLevel::Separate, Area::Usual, own));
        plan.push((OptimizationLevel::Reserved, Area::Usual, own));
    }
    for shape in figure_15(own) {
        plan.push((OptimizationLevel::Base, Area::Usual, shape));
        plan.extend(AREAS.map(|area| (OptimizationLevel::OptS, area, shape)));
    }
    plan.sort_unstable();
    plan.dedup();
    plan
}

/// The caches of figure 15: the machine's cache, and one twice as large.
pub fn figure_15(own: CacheShape) -> [CacheShape; 2] {
    [own, own.sized(2 * own.bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::CacheDescription;

    fn own(bytes: u64, line: u64, ways: u64) -> CacheShape {
        CacheShape { bytes, line, ways }
    }

    #[test]
    fn every_figure_has_its_caches_once() {
        let plan = plan(own(8 << 10, 32, 1));
        let of =
            |level| plan.iter().filter(|trial| trial.0 == level && trial.1 == Area::Usual).count();
        // 5 sizes, 4 lines, 4 numbers of ways. The machine's own cache is one of each.
        assert_eq!(
            [
                of(OptimizationLevel::Base),
                of(OptimizationLevel::ChangHwu),
                of(OptimizationLevel::OptS),
                of(OptimizationLevel::OptL),
                of(OptimizationLevel::OptA),
                of(OptimizationLevel::Call)
            ],
            [11, 11, 11, 1, 1, 1]
        );
        assert_eq!(
            plan.iter()
                .filter(|trial| trial.0 == OptimizationLevel::OptS && trial.1 != Area::Usual)
                .count(),
            8
        );
        assert_eq!([of(OptimizationLevel::Separate), of(OptimizationLevel::Reserved)], [1, 1]);
    }

    #[test]
    fn every_shipped_machine_has_caches_that_can_be_built() {
        for name in [
            "torrellas-8k",
            "ultrasparc-16k",
            "server-32k",
            "server-48k",
            "small-core",
            "simos-1994",
            "simos-1996",
            "simos-1998",
        ] {
            let machine = machines::find(name).unwrap().model;
            for (_, _, shape) in plan(CacheShape::of(&machine)) {
                CacheDescription::new(
                    shape.bytes,
                    shape.ways,
                    shape.line,
                    machine.l1i.replacement(),
                )
                .unwrap_or_else(|error| panic!("{name}: {shape:?}: {error}"));
            }
        }
    }
}
