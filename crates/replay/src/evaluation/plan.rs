//! Which layouts the figures run on which caches.

use serde::Serialize;
use sim::MachineModel;

/// A level of optimization (section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Level {
    Base,
    #[serde(rename = "C-H")]
    ChangHwu,
    OptS,
    OptL,
    /// OptS, and the application laid out, too (section 5).
    OptA,
    Call,
    /// OptS, half of the cache for the kernel and half for the user (section 5.5).
    #[serde(rename = "Sep")]
    Separate,
    /// OptS without an area, an eighth of the cache for the kernel's most fetched lines (section
    /// 5.5).
    #[serde(rename = "Resv")]
    Reserved,
}

impl Level {
    /// Those whose misses are told by cause on an undivided cache: figure 11, in its order.
    pub const CAUSES: [Level; 5] =
        [Level::Base, Level::ChangHwu, Level::OptS, Level::OptL, Level::OptA];
    /// Those that differ in where the kernel's blocks lie, on a cache that is not divided.
    pub const KERNEL: [Level; 5] =
        [Level::Base, Level::ChangHwu, Level::OptS, Level::OptL, Level::Call];
    /// Those of figure 17, in its order.
    pub const SETUPS: [Level; 6] =
        [Level::Base, Level::OptS, Level::OptA, Level::Separate, Level::Reserved, Level::Call];
    /// Those that are tried on every shape of a cache.
    pub const SHAPED: [Level; 3] = [Level::Base, Level::ChangHwu, Level::OptS];

    pub fn name(self) -> &'static str {
        match self {
            Level::Base => "Base",
            Level::ChangHwu => "C-H",
            Level::OptS => "OptS",
            Level::OptL => "OptL",
            Level::OptA => "OptA",
            Level::Call => "Call",
            Level::Separate => "Sep",
            Level::Reserved => "Resv",
        }
    }

    /// Whether the user's code is laid out, too: section 5.5 tries its setups beside OptA.
    pub fn lays_out_the_application(self) -> bool {
        match self {
            Level::OptA | Level::Separate | Level::Reserved | Level::Call => true,
            Level::Base | Level::ChangHwu | Level::OptS | Level::OptL => false,
        }
    }
}

/// The SelfConfFree area of an OptS layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// The most popular blocks from 40 % on, at most 1 KB.
    Usual,
    None,
    /// The blocks of at least this popularity, in per cent of the most popular one's, in at most
    /// half the cache.
    Cutoff(u8),
}

/// The areas of figure 15, in its order.
pub const AREAS: [Area; 4] = [Area::None, Area::Cutoff(60), Area::Cutoff(40), Area::Cutoff(20)];
pub const SIZES: [u64; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
pub const LINES: [u64; 4] = [16, 32, 64, 128];
pub const WAYS: [u64; 4] = [1, 2, 4, 8];
/// Miss penalties of figure 14b, in cycles.
pub const PENALTIES: [f64; 3] = [10.0, 30.0, 50.0];

/// An instruction cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Shape {
    pub bytes: u64,
    pub line: u64,
    pub ways: u64,
}

impl Shape {
    pub fn of(machine: &MachineModel) -> Shape {
        let (line, ways) = (u64::from(machine.l1i_line), u64::from(machine.l1i.ways()));
        Shape { bytes: u64::from(machine.l1i.sets()) * ways * line, line, ways }
    }

    pub fn sets(self) -> u64 {
        self.bytes / self.line / self.ways
    }

    /// Whether a half is large enough for an area and sequences, and an eighth is whole sets.
    pub fn divisible(self) -> bool {
        self.bytes >= 4 << 10 && self.sets() >= 8
    }

    /// Another size. Where that is a power of two and the number of ways is none, with as many ways
    /// as the next below.
    pub fn sized(self, bytes: u64) -> Shape {
        let ways = if bytes.is_power_of_two() { 1 << self.ways.ilog2() } else { self.ways };
        Shape { bytes, ways, ..self }
    }

    /// So many ways; where the size is no power of two, the next below.
    pub fn with_ways(self, ways: u64) -> Shape {
        Shape { bytes: 1 << self.bytes.ilog2(), ways, ..self }
    }
}

/// A layout: what was laid out how, and for a cache of how many bytes (0 where that makes no
/// difference).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Made {
    pub level: Level,
    pub area: Area,
    pub cache: u64,
}

impl Made {
    pub fn new(level: Level, area: Area, shape: Shape) -> Made {
        let cache = match level {
            Level::Base | Level::ChangHwu => 0,
            Level::OptS | Level::OptL | Level::OptA | Level::Call | Level::Reserved => shape.bytes,
            Level::Separate => shape.bytes / 2,
        };
        Made { level, area, cache }
    }
}

/// Which layouts the figures try on which caches; each once.
pub fn plan(own: Shape) -> Vec<(Level, Area, Shape)> {
    let undivided = Level::CAUSES.into_iter().chain(Level::KERNEL);
    let mut plan: Vec<(Level, Area, Shape)> =
        undivided.map(|level| (level, Area::Usual, own)).collect();
    let sizes = SIZES.map(|bytes| own.sized(bytes)).into_iter();
    let lines = LINES.map(|line| Shape { line, ..own }).into_iter();
    let ways = WAYS.map(|ways| own.with_ways(ways)).into_iter();
    for shape in sizes.chain(lines).chain(ways) {
        plan.extend(Level::SHAPED.map(|level| (level, Area::Usual, shape)));
    }
    if own.divisible() {
        plan.push((Level::Separate, Area::Usual, own));
        plan.push((Level::Reserved, Area::Usual, own));
    }
    for shape in figure_15(own) {
        plan.push((Level::Base, Area::Usual, shape));
        plan.extend(AREAS.map(|area| (Level::OptS, area, shape)));
    }
    plan.sort_unstable();
    plan.dedup();
    plan
}

/// The caches of figure 15: the machine's, and one twice as large.
pub fn figure_15(own: Shape) -> [Shape; 2] {
    [own, own.sized(2 * own.bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::CacheDescription;

    fn own(bytes: u64, line: u64, ways: u64) -> Shape {
        Shape { bytes, line, ways }
    }

    #[test]
    fn every_figure_has_its_caches_and_none_twice() {
        let plan = plan(own(8 << 10, 32, 1));
        let of =
            |level| plan.iter().filter(|trial| trial.0 == level && trial.1 == Area::Usual).count();
        // 5 sizes, 4 lines, 4 ways; the machine's own cache is one of each.
        assert_eq!(
            [
                of(Level::Base),
                of(Level::ChangHwu),
                of(Level::OptS),
                of(Level::OptL),
                of(Level::OptA),
                of(Level::Call)
            ],
            [11, 11, 11, 1, 1, 1]
        );
        assert_eq!(
            plan.iter().filter(|trial| trial.0 == Level::OptS && trial.1 != Area::Usual).count(),
            8
        );
        assert_eq!([of(Level::Separate), of(Level::Reserved)], [1, 1]);
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
            let machine = execution::machine::find(name).unwrap();
            for (_, _, shape) in plan(Shape::of(&machine)) {
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
