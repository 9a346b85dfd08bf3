//! From counts to a group that is laid out: once, or twice, the second time counted in the
//! optimized code (Tamches 2001, section 2.1.3).
//!
//! Input: roots, a profile and a layout algorithm. Output: the hot functions that the roots lead
//! to, and the order of their blocks. This module installs nothing but the counters of
//! `crate::watch`.

use crate::gain::Counted;
use crate::group::Group;
use crate::hot::{self, HotGroup};
use crate::inline::{self, InlineSettings, InlineSummary};
use crate::install::{self, PreparedGroup, Purpose};
use crate::memory::Memory;
use crate::watch::{Watch, Watched};
use anyhow::{Result, ensure};
use emit::module::TextPage;
use image::linked::LinkedKernel;
use layout::Algorithm;
use layout::inlining::CallCosts;
use profile::Profile;
use std::fmt;

/// How a group is chosen and laid out.
#[derive(Clone, Copy, Debug)]
pub struct PlanSettings {
    /// How hot a function or block must be: a part of a root's calls, 0 to 1.
    pub threshold: f64,
    /// The layout algorithm.
    pub algorithm: Algorithm,
}

/// A group that has been laid out.
pub struct PlannedGroup<'k, 'd> {
    /// The roots that were entered: indices into the kernel's functions.
    pub roots: Vec<usize>,
    /// The group and its hot blocks.
    pub hot: HotGroup<'k, 'd>,
    /// Its blocks in their new order.
    pub order: Vec<u32>,
}

impl<'k, 'd> PlannedGroup<'k, 'd> {
    /// Chooses the functions by a profile, and lays them out. Roots that were never entered are
    /// left out: a thread's main loop is on many stacks, but is never entered.
    ///
    /// # Errors
    /// No root was entered ([`NoRootEntered`]); memory cannot be read; the functions cannot be
    /// copied together; the algorithm cannot order a group of functions.
    pub fn new(
        kernel: &'k LinkedKernel<'d>,
        memory: &dyn Memory,
        profile: &Profile,
        roots: &[usize],
        settings: PlanSettings,
    ) -> Result<PlannedGroup<'k, 'd>> {
        let roots = entered(kernel, profile, roots);
        ensure!(!roots.is_empty(), NoRootEntered);
        let hot = HotGroup::new(kernel, memory, profile, &roots, settings.threshold)?;
        let order = order(&hot.group, Some(profile), settings.algorithm, 0)?;
        Ok(PlannedGroup { roots, hot, order })
    }

    /// The same functions with hot calls inlined by a profile, in an order of their own, and what
    /// was inlined. The roots stay called, so that they can be measured. `call_costs`: what calls
    /// cost on the machine; without it, each call counts as one.
    ///
    /// # Errors
    /// The errors of [`PlannedGroup::new`] and [`inline::group`].
    pub fn inlined(
        &self,
        kernel: &'k LinkedKernel<'d>,
        memory: &dyn Memory,
        profile: &Profile,
        settings: PlanSettings,
        call_costs: Option<CallCosts>,
    ) -> Result<(PlannedGroup<'k, 'd>, InlineSummary)> {
        let roots = &self.roots;
        let inlining = InlineSettings { costs: call_costs, ..InlineSettings::default() };
        let chosen = hot::groups(kernel, profile, roots, settings.threshold);
        let (group, summary) =
            inline::group_calling(kernel, memory, &chosen, profile, inlining, roots)?;
        let limit = hot::least_limit(kernel, profile, roots, settings.threshold);
        let order = order(&group, Some(profile), settings.algorithm, 0)?;
        let hot = HotGroup { blocks: hot::blocks(&group, profile, limit), group };
        Ok((PlannedGroup { roots: roots.clone(), hot, order }, summary))
    }

    fn size(&self) -> PlanSize {
        PlanSize { functions: self.hot.group.members.len(), hot_blocks: self.hot.blocks.len() }
    }
}

/// No root was called while it was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRootEntered;

impl fmt::Display for NoRootEntered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no root was called while it was counted: run this under the load that it is meant \
             for, or count longer",
        )
    }
}

impl std::error::Error for NoRootEntered {}

/// How large a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanSize {
    /// Functions that are replaced.
    pub functions: usize,
    /// Hot blocks.
    pub hot_blocks: usize,
}

/// What [`count_and_plan`] has done.
pub enum PlanStep<'a> {
    /// It has counted.
    Counted(&'a Watched),
    /// It has laid out what was counted in the optimized code.
    PlannedAgain {
        /// The group before.
        first: PlanSize,
        /// The group now.
        second: PlanSize,
    },
}

/// A group that was counted and laid out.
pub struct CountedPlan<'k, 'd> {
    /// The group.
    pub plan: PlannedGroup<'k, 'd>,
    /// What was counted: in the originals, then in the optimized code.
    pub counted: Vec<Counted>,
    /// The counts of the last time.
    pub profile: Profile,
}

/// Counts the roots and what they call, down to `depth` levels, and lays the hot functions out.
/// With `again` it counts once more in the optimized code, and lays out again. Calls `told` after
/// each step.
///
/// # Errors
/// The errors of [`Watch::from_roots`], [`Watch::again`], [`PlannedGroup::new`] and `told`.
pub fn count_and_plan<'k, 'd>(
    watch: &mut Watch<'k, 'd, '_>,
    roots: &[usize],
    depth: usize,
    settings: PlanSettings,
    again: bool,
    told: &mut dyn FnMut(PlanStep<'_>) -> Result<()>,
) -> Result<CountedPlan<'k, 'd>> {
    let (kernel, running) = (watch.kernel, watch.running);
    let mut watched = watch.from_roots(roots, depth)?;
    told(PlanStep::Counted(&watched))?;
    let mut counted = vec![Counted::new(&watched)];
    let mut plan = PlannedGroup::new(kernel, running, &watched.profile, roots, settings)?;
    if again {
        watched = watch.again(&plan.hot.group, &plan.order, &plan.roots)?;
        told(PlanStep::Counted(&watched))?;
        counted.push(Counted::new(&watched));
        let first = plan;
        plan = PlannedGroup::new(kernel, running, &watched.profile, &first.roots, settings)?;
        told(PlanStep::PlannedAgain { first: first.size(), second: plan.size() })?;
    }
    Ok(CountedPlan { plan, counted, profile: watched.profile })
}

/// The roots that were entered while they were counted.
fn entered(kernel: &LinkedKernel<'_>, profile: &Profile, roots: &[usize]) -> Vec<usize> {
    let was_entered = |&&index: &&usize| {
        let entry = kernel.link_address(kernel.functions[index].at);
        profile.blocks.get(&entry).is_some_and(|&count| count > 0)
    };
    roots.iter().filter(was_entered).copied().collect()
}

/// The group's blocks in the order that the algorithm gives them. `seed`: for random orders.
/// Without a profile all counts are 0.
///
/// # Errors
/// The algorithm needs more than a group of functions says.
pub fn order(
    group: &Group<'_, '_>,
    profile: Option<&Profile>,
    algorithm: Algorithm,
    seed: u64,
) -> Result<Vec<u32>> {
    ensure!(
        !algorithm.uses_temporal_edges(),
        "{algorithm} needs to know which chunks of code alternate, and a group of functions does \
         not say: choose another algorithm"
    );
    let order = layout::order(&group.graph(profile), algorithm, seed)?;
    Ok(order.order.0.iter().map(|block| block.0).collect())
}

/// Orders the group's blocks as [`order`] does, and prepares the module for them, under a name that
/// is free.
///
/// # Errors
/// The errors of [`order`], [`install::prepare`] and [`install::free_name`].
pub fn lay_out(
    group: &Group<'_, '_>,
    memory: &dyn Memory,
    profile: Option<&Profile>,
    algorithm: Algorithm,
    seed: u64,
    page: TextPage,
) -> Result<PreparedGroup> {
    let order = order(group, profile, algorithm, seed)?;
    install::prepare(group, memory, &order, Purpose::Run(page), &install::free_name()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FileMemory;
    use crate::test_kernel::{F, G, H, at, tables, with};

    const ORIGINAL: PlanSettings = PlanSettings { threshold: 0.1, algorithm: Algorithm::Original };

    #[test]
    fn a_plan_has_the_roots_that_were_entered_and_what_they_call() {
        with(tables(), |kernel| {
            let mut profile = Profile::empty(kernel.build_id.clone());
            profile.blocks.extend([(at(0), 100), (at(0x0c), 50), (at(0x17), 9), (at(0x40), 50)]);
            profile.blocks.insert(at(0x80), 0);
            profile.calls.insert((at(0x0c), at(0x40)), 50);
            let memory = FileMemory(kernel);
            let plan = PlannedGroup::new(kernel, &memory, &profile, &[H, F], ORIGINAL).unwrap();
            // h was counted and never entered. The block at 17 ran in 9 % of the calls.
            assert_eq!((&plan.roots[..], &plan.order[..]), (&[F][..], &[0, 1, 2, 3][..]));
            assert_eq!(plan.hot.blocks, [0, 1, 3]);
            assert_eq!(plan.size(), PlanSize { functions: 2, hot_blocks: 3 });

            let never = |roots: &[usize]| {
                let plan = PlannedGroup::new(kernel, &memory, &profile, roots, ORIGINAL);
                plan.err().unwrap().is::<NoRootEntered>()
            };
            assert!(never(&[H]) && never(&[]));
        });
    }

    #[test]
    fn a_plan_with_inlined_calls_has_the_same_functions_and_its_own_order() {
        with(tables(), |kernel| {
            let mut profile = Profile::empty(kernel.build_id.clone());
            profile.blocks.extend([(at(0), 100), (at(0x0c), 50), (at(0x11), 50), (at(0x17), 100)]);
            profile.blocks.insert(at(0x40), 50);
            profile.calls.insert((at(0x0c), at(0x40)), 50);
            let memory = FileMemory(kernel);
            let plan = |roots: &[usize]| {
                let plan = PlannedGroup::new(kernel, &memory, &profile, roots, ORIGINAL).unwrap();
                let (inlined, summary) =
                    plan.inlined(kernel, &memory, &profile, ORIGINAL, None).unwrap();
                assert_eq!(inlined.roots, plan.roots);
                assert_eq!(inlined.hot.group.members, plan.hot.group.members);
                let end = std::cell::Cell::new(0);
                let pieces = inlined.hot.group.original.pieces.iter();
                let places: Vec<(u32, u32)> =
                    pieces.map(|piece| (end.replace(end.get() + piece.size), piece.size)).collect();
                let chunks = inlined.hot.chunks(&places);
                let hot_of_g = chunks.iter().find(|row| row.function == "g").unwrap().hot_bytes;
                (inlined.hot.blocks, inlined.order.len(), summary.calls, hot_of_g)
            };
            // The call in f, its end, and the code of g in it are hot; g's own copy does not run.
            assert_eq!(plan(&[F]), (vec![0, 1, 2, 3, 5], 6, 1, 0));
            // A root stays called, so that it can be measured.
            assert_eq!(plan(&[F, G]), (vec![0, 1, 2, 3], 4, 0, 13));
        });
    }

    #[test]
    fn a_group_is_ordered_by_its_counts_and_not_by_what_it_does_not_know() {
        with(tables(), |kernel| {
            let group = Group::new(kernel, &FileMemory(kernel), &[F, G, H]).unwrap();
            let original = order(&group, None, Algorithm::Original, 0).unwrap();
            assert_eq!(original, [0, 1, 2, 3, 4]);
            let mut profile = Profile::empty(kernel.build_id.clone());
            profile.blocks.extend([(at(0), 9), (at(0x17), 9)]);
            profile.edges.insert((at(0), at(0x17)), (layout::graph::EdgeKind::Branch, 9));
            // The call in the block at 0c never ran: the blocks that did lie together.
            let hot = order(&group, Some(&profile), Algorithm::ExtTspGlobal, 0).unwrap();
            assert_eq!(hot[..2], [0, 2], "{hot:?}");
            let error = order(&group, None, Algorithm::GloySmith, 0).unwrap_err().to_string();
            assert!(error.contains("which chunks of code alternate"), "{error}");
        });
    }
}
