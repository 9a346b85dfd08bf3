//! Torrellas' evaluation of kernel layouts (1998, section 5, figures 11 to 17): levels of
//! optimization on caches of many shapes.
//!
//! Input: the counts of recordings, the image and a machine. Output: which layouts to replay on
//! which caches, and the trials, made from the counts of the replay. This module reads no recording
//! and prints nothing.

mod plan;

use crate::application::{Application, Spaces};
use crate::{LayoutCounts, ReplayLayout, ReplayTrial, Replayed, SimulationScope};
use anyhow::{Context, Result};
use execution::division::SetDivision;
use image::address::LinkAddr;
use image::estimate;
use image::place::Placement;
use image::{BuildId, Image};
use layout::opts::{self, BlockClass, LoopArea, OptSParameters};
use layout::{Algorithm, BlockId};
pub use papers::torrellas::{FIGURES as PAPER, PaperFigure};
use plan::LayoutRecipe;
pub use plan::{
    AREAS, Area, CacheShape, LINES, OptimizationLevel, PENALTIES, SIZES, WAYS, figure_15,
};
use profile::Profile;
use profile::graph::{self, LayoutInput};
use serde::Serialize;
use sim::{CacheDescription, MachineModel, MissCounts, PerMode, SimpleModel};
use std::collections::BTreeMap;

/// One layout and the caches to replay it on.
pub struct CacheTest<'a> {
    made: LayoutRecipe,
    layout: ReplayLayout,
    shapes: Vec<CacheShape>,
    machines: Vec<MachineModel>,
    division: SetDivision,
    /// Set when user code also moves.
    application: Option<&'a Spaces>,
}

impl CacheTest<'_> {
    /// The trial to replay.
    pub fn trials(&self) -> ReplayTrial<'_> {
        ReplayTrial {
            division: &self.division,
            application: self.application,
            ..ReplayTrial::new(&self.layout, &self.machines, SimulationScope::Caches)
        }
    }
}

/// Misses of an L1I of one shape under one layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheTrial {
    /// The level of optimization.
    pub level: OptimizationLevel,
    /// The SelfConfFree area.
    pub area: Area,
    /// The cache's shape.
    pub cache: CacheShape,
    /// The misses by mode and cause.
    pub misses: PerMode<MissCounts>,
}

/// Kernel counts by class of block. A block has its class in OptL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ByClass {
    /// Blocks of the SelfConfFree area.
    pub self_conf_free: u64,
    /// Blocks of main sequences.
    pub main_seq: u64,
    /// Blocks of loops.
    pub loops: u64,
    /// Blocks of other sequences.
    pub other_seq: u64,
    /// Code that does not move, and code that did not run in the recordings that the layouts were
    /// made from.
    pub no_class: u64,
}

impl ByClass {
    fn add(&mut self, class: Option<BlockClass>, count: u64) {
        *match class {
            Some(BlockClass::SelfConfFree) => &mut self.self_conf_free,
            Some(BlockClass::MainSequence) => &mut self.main_seq,
            Some(BlockClass::Loop) => &mut self.loops,
            Some(BlockClass::OtherSequence) => &mut self.other_seq,
            None => &mut self.no_class,
        } += count;
    }

    /// The sum of all classes.
    pub fn total(&self) -> u64 {
        self.self_conf_free + self.main_seq + self.loops + self.other_seq + self.no_class
    }
}

/// The kernel's misses in one range of 1 KB of original addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KilobyteMisses {
    /// The first address of the range.
    #[serde(serialize_with = "hex")]
    pub start: LinkAddr,
    /// The misses in the range.
    pub misses: u64,
}

fn hex<S: serde::Serializer>(addr: &LinkAddr, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(addr)
}

/// The results of one recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkloadEvaluation {
    /// The recorded workload.
    pub workload: String,
    /// The seed of the recording.
    pub seed: u64,
    /// Executed instructions.
    pub instructions: PerMode<u64>,
    /// Bytes fetched in the kernel, by class of block.
    pub references: ByClass,
    /// The misses of every layout on every cache.
    pub trials: Vec<CacheTrial>,
    /// Kernel misses on the machine's cache by class of block, for each level.
    pub classes: Vec<(OptimizationLevel, ByClass)>,
    /// Kernel misses on the machine's cache by address, for each level.
    pub addresses: Vec<(OptimizationLevel, Vec<KilobyteMisses>)>,
}

impl WorkloadEvaluation {
    /// Misses of kernel and user together under one layout, as a share of another layout's; `None`
    /// where one of them was not replayed on this cache.
    pub fn share(
        &self,
        level: OptimizationLevel,
        area: Area,
        of: OptimizationLevel,
        cache: CacheShape,
    ) -> Option<f64> {
        let misses = |level, area| Some(self.trial(level, area, cache)?.total() as f64);
        Some(misses(level, area)? / misses(of, Area::Usual)?.max(1.0))
    }

    /// The misses of a level and area on a cache; `None` where it was not replayed.
    pub fn trial(
        &self,
        level: OptimizationLevel,
        area: Area,
        cache: CacheShape,
    ) -> Option<&CacheTrial> {
        let is =
            |trial: &&CacheTrial| (trial.level, trial.area, trial.cache) == (level, area, cache);
        self.trials.iter().find(is)
    }

    /// Misses of kernel and user per instruction.
    pub fn miss_rate(&self, level: OptimizationLevel, cache: CacheShape) -> Option<f64> {
        let misses = self.trial(level, Area::Usual, cache)?.total();
        Some(misses as f64 / self.instructions.total().max(1) as f64)
    }

    /// By which share OptS is faster than Base, with a miss penalty in cycles, by the paper's model
    /// (section 5.2).
    pub fn speed_increase(&self, cache: CacheShape, penalty: f64) -> Option<f64> {
        let model = SimpleModel::new(penalty, 0.30, 0.05).ok()?;
        let cycles = |level| {
            let misses = self.trial(level, Area::Usual, cache)?.total();
            Some(model.cycles(self.instructions.total(), misses))
        };
        Some(cycles(OptimizationLevel::Base)? / cycles(OptimizationLevel::OptS)? - 1.0)
    }
}

impl CacheTrial {
    fn total(&self) -> u64 {
        self.misses.kernel.total() + self.misses.user.total()
    }
}

/// The results of all recordings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// The machine's name.
    pub machine: String,
    /// The shape of the machine's cache.
    pub cache: CacheShape,
    /// The recorded kernel.
    pub kernel: BuildId,
    /// Bytes of the SelfConfFree areas on the machine's cache.
    pub areas: Vec<(Area, u64)>,
    /// The results of each recording.
    pub workloads: Vec<WorkloadEvaluation>,
    /// What the paper says about its figures.
    pub paper: Vec<PaperFigure>,
}

/// The image with the average counts of all recordings, from which layouts are made.
pub struct Evaluator<'a> {
    image: &'a Image,
    machine: &'a MachineModel,
    average: &'a Profile,
    application: &'a Application,
    movable: LayoutInput,
    /// The class of each image block in OptL.
    classes: BTreeMap<LinkAddr, BlockClass>,
}

impl<'a> Evaluator<'a> {
    /// `average`: the kernel's counts. `application`: user code and its counts. Both come from all
    /// recordings.
    ///
    /// # Errors
    /// The average is of another kernel than the image, or its counts make no graph.
    pub fn new(
        image: &'a Image,
        machine: &'a MachineModel,
        average: &'a Profile,
        application: &'a Application,
    ) -> Result<Evaluator<'a>> {
        let movable = graph::movable(image, average)?;
        let mut evaluator =
            Evaluator { image, machine, average, application, movable, classes: BTreeMap::new() };
        let parameters = evaluator.parameters(LayoutRecipe::new(
            OptimizationLevel::OptL,
            Area::Usual,
            CacheShape::of(machine),
        ));
        let classes = opts::classes(&evaluator.movable.graph, &parameters)
            .context("the counts make no graph")?;
        let classes =
            classes.iter().enumerate().filter_map(|(block, &class)| Some((block, class?)));
        evaluator.classes = classes
            .map(|(block, class)| (evaluator.movable.address(image, BlockId(block as u32)), class))
            .collect();
        Ok(evaluator)
    }

    fn parameters(&self, made: LayoutRecipe) -> OptSParameters {
        let defaults = OptSParameters::default();
        let (bytes, cutoff) = match made.area {
            _ if made.level == OptimizationLevel::Reserved => (0, 1.0),
            Area::Usual => (defaults.self_conf_free_bytes, defaults.self_conf_free_cutoff),
            Area::None => (0, 1.0),
            Area::Cutoff(percent) => (made.cache / 2, f64::from(percent) / 100.0),
        };
        OptSParameters {
            cache_bytes: made.cache,
            line_bytes: u64::from(self.machine.l1i_line),
            self_conf_free_bytes: bytes,
            self_conf_free_cutoff: cutoff,
            loop_area: match made.level {
                OptimizationLevel::OptL => LoopArea::Behind,
                OptimizationLevel::Call => LoopArea::WithCallees,
                OptimizationLevel::Base
                | OptimizationLevel::ChangHwu
                | OptimizationLevel::OptS
                | OptimizationLevel::OptA
                | OptimizationLevel::Separate
                | OptimizationLevel::Reserved => LoopArea::InSequences,
            },
            ..defaults
        }
    }

    /// Every layout that the figures need, with the caches to replay it on.
    ///
    /// # Errors
    /// The counts make no graph, a layout cannot be placed, or no cache has the shape of a figure.
    pub fn tests(&self) -> Result<Vec<CacheTest<'a>>> {
        let mut wanted: BTreeMap<LayoutRecipe, Vec<CacheShape>> = BTreeMap::new();
        for (level, area, shape) in plan::plan(CacheShape::of(self.machine)) {
            wanted.entry(LayoutRecipe::new(level, area, shape)).or_default().push(shape);
        }
        wanted.into_iter().map(|(made, shapes)| self.test(made, shapes)).collect()
    }

    fn test(&self, made: LayoutRecipe, shapes: Vec<CacheShape>) -> Result<CacheTest<'a>> {
        let mut layout = self.layout(made)?;
        let machines =
            shapes.iter().map(|&shape| self.machine_with(shape)).collect::<Result<_>>()?;
        let division = match made.level {
            OptimizationLevel::Separate => SetDivision::Halves,
            OptimizationLevel::Reserved => self.reserved(&layout.placement),
            OptimizationLevel::Base
            | OptimizationLevel::ChangHwu
            | OptimizationLevel::OptS
            | OptimizationLevel::OptL
            | OptimizationLevel::OptA
            | OptimizationLevel::Call => SetDivision::Whole,
        };
        let application = made.level.lays_out_the_application().then_some(&self.application.spaces);
        if application.is_some() {
            self.add_application(made, &mut layout.placement)?;
        }
        Ok(CacheTest { made, layout, shapes, machines, division, application })
    }

    /// The kernel's layout.
    fn layout(&self, made: LayoutRecipe) -> Result<ReplayLayout> {
        let graph = &self.movable.graph;
        let ordered = match made.level {
            OptimizationLevel::Base => return Ok(ReplayLayout::original()),
            OptimizationLevel::ChangHwu => layout::order(graph, Algorithm::ChangHwu, 0),
            _ => opts::opts(graph, &self.parameters(made)),
        };
        let ordered = ordered.context("the counts make no graph")?;
        layout::check(graph, &ordered.order)
            .with_context(|| format!("{} gave an order that breaks a rule", made.level.name()))?;
        let order = self.movable.layout(
            self.image,
            &ordered.order,
            ordered.hot,
            made.level.name(),
            0,
            "none",
        );
        Ok(ReplayLayout::predicted(
            made.level.name(),
            self.image.build_id.clone(),
            estimate::placement(self.image, &order)?,
        ))
    }

    /// Adds the application's placement, which fills the cache from the other end, to the kernel's
    /// placement. All of it lies below the kernel.
    fn add_application(&self, made: LayoutRecipe, placement: &mut Placement) -> Result<()> {
        let kernel = placement.blocks.iter().map(|block| block.new).min().unwrap_or_default();
        let line = u64::from(self.machine.l1i_line);
        let application = self.application.placement(made.cache, line, kernel)?;
        placement.blocks.splice(0..0, application);
        Ok(())
    }

    /// Reserves an eighth of the machine's cache for the kernel lines from which most bytes are
    /// fetched. Each of these lines has a place of its own.
    fn reserved(&self, placement: &Placement) -> SetDivision {
        let own = CacheShape::of(self.machine);
        let mut fetched: BTreeMap<u64, u64> = BTreeMap::new();
        for (&addr, &count) in &self.average.blocks {
            let size = self.image.block_at(addr).map_or(0, |block| self.image.block(block).size);
            let start = placement.new_address(addr).unwrap_or(addr).0;
            let end = start + u64::from(size);
            for line in start / own.line..end.div_ceil(own.line) {
                let bytes = end.min((line + 1) * own.line) - start.max(line * own.line);
                *fetched.entry(line).or_default() += count * bytes;
            }
        }
        let mut lines: Vec<(u64, u64)> = fetched.into_iter().collect();
        lines.sort_by_key(|&(line, bytes)| (std::cmp::Reverse(bytes), line));
        let sets = own.sets() / 8;
        let places = (0..own.ways).flat_map(|_| 0..sets as u32);
        SetDivision::Reserved {
            sets: sets as u32,
            lines: lines.iter().map(|&(line, _)| line).zip(places).collect(),
        }
    }

    /// The machine with another L1I and no further caches.
    fn machine_with(&self, shape: CacheShape) -> Result<MachineModel> {
        let l1i = CacheDescription::new(
            shape.bytes,
            shape.ways,
            shape.line,
            self.machine.l1i.replacement(),
        )
        .with_context(|| {
            format!(
                "no cache can have {} bytes, {} ways and lines of {} bytes",
                shape.bytes, shape.ways, shape.line
            )
        })?;
        Ok(MachineModel {
            l1i: l1i.geometry,
            l1i_line: l1i.line,
            itlb: None,
            memory: None,
            core: None,
            coherence: None,
            ..self.machine.clone()
        })
    }

    /// Bytes of the SelfConfFree areas on the machine's cache.
    ///
    /// # Errors
    /// The counts make no graph.
    pub fn areas(&self) -> Result<Vec<(Area, u64)>> {
        let graph = &self.movable.graph;
        let bytes = |area: Area| {
            let classes = opts::classes(
                graph,
                &self.parameters(LayoutRecipe::new(
                    OptimizationLevel::OptS,
                    area,
                    CacheShape::of(self.machine),
                )),
            )?;
            let inside = classes
                .iter()
                .zip(&graph.sizes)
                .filter(|(class, _)| **class == Some(BlockClass::SelfConfFree));
            Ok((area, inside.map(|(_, &size)| u64::from(size)).sum()))
        };
        std::iter::once(Area::Usual).chain(AREAS).map(bytes).collect()
    }

    /// Turns the counts of a replay into the results of a recording. `profile`: the recording's own
    /// counts.
    pub fn evaluated(
        &self,
        tests: &[CacheTest<'_>],
        replayed: &Replayed,
        profile: &Profile,
    ) -> WorkloadEvaluation {
        let own = CacheShape::of(self.machine);
        let mut evaluated = WorkloadEvaluation {
            workload: replayed.header.workload.clone(),
            seed: replayed.header.seed,
            instructions: replayed
                .layouts
                .first()
                .map(|counts| counts.amounts.instructions)
                .unwrap_or_default(),
            references: self.references(profile),
            trials: Vec::new(),
            classes: Vec::new(),
            addresses: Vec::new(),
        };
        for (test, counts) in tests.iter().zip(&replayed.layouts) {
            for (&cache, on) in test.shapes.iter().zip(&counts.machines) {
                let misses = on.l1i;
                evaluated.trials.push(CacheTrial {
                    level: test.made.level,
                    area: test.made.area,
                    cache,
                    misses,
                });
            }
            let shown = test.made.area == Area::Usual
                && OptimizationLevel::KERNEL.contains(&test.made.level);
            if let (true, Some(at)) = (shown, test.shapes.iter().position(|&shape| shape == own)) {
                let (classes, stretches) = self.by_place(counts, at);
                evaluated.classes.push((test.made.level, classes));
                evaluated.addresses.push((test.made.level, stretches));
            }
        }
        evaluated
    }

    fn references(&self, profile: &Profile) -> ByClass {
        let mut references = ByClass::default();
        for (addr, &count) in &profile.blocks {
            let size = self.image.block_at(*addr).map_or(0, |block| self.image.block(block).size);
            references.add(self.classes.get(addr).copied(), count * u64::from(size));
        }
        references
    }

    /// The kernel's misses on one machine, by class of block and by address.
    fn by_place(&self, counts: &LayoutCounts, machine: usize) -> (ByClass, Vec<KilobyteMisses>) {
        let mut classes = ByClass::default();
        let mut stretches: BTreeMap<u64, u64> = BTreeMap::new();
        let of_kernel =
            counts.machines[machine].misses_at.iter().filter(|(addr, _)| addr.is_kernel());
        for &(addr, misses) in of_kernel {
            let block =
                self.image.block_at(LinkAddr(addr.0)).map(|block| self.image.block(block).addr);
            classes.add(block.and_then(|block| self.classes.get(&block).copied()), misses);
            *stretches.entry(addr.0 >> 10 << 10).or_default() += misses;
        }
        let stretch = |(start, misses)| KilobyteMisses { start: LinkAddr(start), misses };
        (classes, stretches.into_iter().map(stretch).collect())
    }
}

/// The largest number of misses in a range of 1 KB, and the number of ranges that hold half of all
/// misses.
pub fn peaks(stretches: &[KilobyteMisses]) -> (u64, usize) {
    let mut misses: Vec<u64> = stretches.iter().map(|stretch| stretch.misses).collect();
    misses.sort_unstable_by(|a, b| b.cmp(a));
    let all: u64 = misses.iter().sum();
    let mut sum = 0;
    let half = misses.iter().take_while(|&&misses| {
        let before = sum;
        sum += misses;
        2 * before < all
    });
    (misses.first().copied().unwrap_or(0), half.count())
}

#[cfg(test)]
#[path = "evaluation_tests.rs"]
mod recorded;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{evaluated, stretches};

    fn own(bytes: u64, line: u64, ways: u64) -> CacheShape {
        CacheShape { bytes, line, ways }
    }

    #[test]
    fn peaks_are_the_highest_and_how_many_hold_half() {
        assert_eq!(peaks(&stretches(&[10, 40, 30, 20])), (40, 2));
        assert_eq!(peaks(&stretches(&[60, 40])), (60, 1));
        assert_eq!(peaks(&[]), (0, 0));
    }

    #[test]
    fn shares_rates_and_speed_are_of_kernel_and_user_together() {
        let (found, cache) = (evaluated(), own(8 << 10, 32, 1));
        assert_eq!(
            found.share(OptimizationLevel::OptS, Area::Usual, OptimizationLevel::Base, cache),
            Some(0.5)
        );
        assert_eq!(
            found.share(OptimizationLevel::OptS, Area::Cutoff(40), OptimizationLevel::Base, cache),
            Some(0.55)
        );
        assert_eq!(found.miss_rate(OptimizationLevel::Base, cache), Some(0.02));
        assert_eq!(found.miss_rate(OptimizationLevel::Base, own(4 << 10, 32, 1)), None);
        // 10 000 instructions, 0.015 data misses each; 200 and 100 misses; 30 cycles: 10 000 + 4
        // 500 + 6 000 against 3 000.
        let faster = found.speed_increase(cache, 30.0).unwrap();
        assert!((faster - (20_500.0 / 17_500.0 - 1.0)).abs() < 1e-9, "{faster}");
    }
}
