//! A recording in slices of equal time, for a page that shows any range of it.
//!
//! Input: chains of calls, invocations, interrupts and misses by slice. Output: frames with their
//! counts in each slice, and what sections need of each slice. The sums over all slices are those
//! of the recording. Chains too narrow to be visible are put together. Draws nothing.

use memory::misses::table::{MissesByLevel, StructureRow};
use memory::sizes::SlicedSizes;
use replay::SliceCounts;
use serde::{Serialize, Serializer};
use services::annotations::ServiceKind;
use services::calls::{CallCost, CallTree, NodeId, ROOT};
use services::generations::{CycleModel, Generations};
use services::slices::ServiceSlice;
use services::timeline::{SLICE, Timeline};
use sim::{MachineCounters, MissCounts, PerMode};
use std::collections::BTreeMap;

/// The narrowest chain that is shown, as a share of all instructions, cycles or misses.
const NARROWEST: f64 = 1.0 / 5000.0;
/// The frame for the functions of chains that are too narrow.
const NARROW: &str = "(narrow chains)";
/// The number of counts of a [`CallCost`].
const COUNTS: usize = 6;
const MODES: [&str; 3] = ["kernel", "user", "idle"];

/// A recording in slices of time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlicedRecording {
    /// The number of buckets of the timeline in a slice.
    pub buckets: usize,
    /// The narrowest chain with a frame of its own, as a share of all instructions, cycles or
    /// misses.
    pub narrowest: f64,
    /// The names of frames.
    pub names: Vec<String>,
    /// Frames: mode, service, functions, with the frames that they called. A caller stands before
    /// the frames that it called.
    pub frames: Vec<SlicedFrame>,
    /// Services, ascending by kind and name.
    pub services: Vec<SlicedService>,
    /// Slice, interrupts that began in it.
    pub interrupts: Vec<[u64; 2]>,
    /// Slice, power of two of the instructions from the interrupt before, interrupts.
    pub between: Vec<[u64; 3]>,
    /// By row of results, then by slice: the slice, then the misses by mode, level and cause.
    /// Modes: kernel and user. Levels: L1I, and with data accesses L1D, L2 and L3 on instructions
    /// and on data. Causes: cold, self, other.
    pub misses: Vec<Vec<Vec<u64>>>,
    /// By slice: the slice, then the misses of each cache of the sizes, by mode and cause.
    pub sizes: Vec<Vec<u64>>,
    /// By row of the generations and by machine, in columns: the differences of the slices,
    /// instructions, with a core the slots of the dispatch, and those of the graduation, in the
    /// order of [`ServiceSlice`]. Empty without generations, or when they are estimates.
    pub slots: Vec<Vec<Vec<u64>>>,
}

/// A frame: a function in its chain of calls, a service, or a mode.
#[derive(Clone, Debug, PartialEq)]
pub struct SlicedFrame {
    /// The frame that called it.
    pub caller: Option<u32>,
    /// The index of its name.
    pub name: u32,
    /// Its own counts, by slice.
    pub counts: Vec<(u32, CallCost)>,
}

/// One list of numbers: the caller or -1, the name, then columns of equal length: the differences
/// of the slices, calls, instructions, stall, misses of L1I, L1D and L2.
impl Serialize for SlicedFrame {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let head = [self.caller.map_or(-1, i64::from), i64::from(self.name)];
        let mut before = 0;
        let slices = self.counts.iter().map(|(slice, _)| {
            let since = slice - before;
            before = *slice;
            i64::from(since)
        });
        let columns = (0..COUNTS)
            .flat_map(|which| self.counts.iter().map(move |(_, cost)| cost.counts()[which] as i64));
        to.collect_seq(head.into_iter().chain(slices).chain(columns))
    }
}

/// The invocations of a service.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlicedService {
    /// The kind of the service.
    pub kind: ServiceKind,
    /// The name of the service.
    pub name: String,
    /// The index of its frame; `None` if it executed nothing.
    pub frame: Option<u32>,
    /// Slice, invocations that ended in it, the sums of their latency and of the time off the CPU.
    pub ended: Vec<[u64; 4]>,
    /// Slice, class of latencies ([`services::slices::latency_class`]), invocations.
    pub classes: Vec<[u64; 3]>,
    /// Slice, power of two of the time in which it executed, invocations.
    pub lengths: Vec<[u64; 3]>,
}

impl SlicedRecording {
    /// `tree` and `timeline`: of the same recording. What other walks counted is still missing.
    pub(crate) fn new(tree: &CallTree, timeline: &Timeline) -> SlicedRecording {
        let mut all = Weights::default();
        for (_, _, cost) in timeline.services.iter().flat_map(|service| &service.calls) {
            all.add(*cost);
        }
        let mut made = Frames::default();
        let modes = MODES.map(|name| made.frame(None, name));
        let mut services = Vec::new();
        for service in &timeline.services {
            let mode = match service.kind {
                ServiceKind::User => modes[1],
                ServiceKind::Idle => modes[2],
                _ => modes[0],
            };
            let title = format!("{} {}", service.kind.title(), service.name);
            let frame = (!service.calls.is_empty()).then(|| made.frame(Some(mode), &title));
            if let Some(frame) = frame {
                made.chains(tree, &service.calls, frame, &all);
            }
            let ended = service.ended.iter();
            services.push(SlicedService {
                kind: service.kind,
                name: service.name.clone(),
                frame,
                ended: ended
                    .clone()
                    .map(|(slice, it)| [u64::from(*slice), it.calls, it.latency, it.off_cpu])
                    .collect(),
                classes: ended.clone().flat_map(|(slice, it)| of(*slice, &it.classes)).collect(),
                lengths: ended.flat_map(|(slice, it)| of(*slice, &it.lengths)).collect(),
            });
        }
        let interrupts = timeline.interrupts.iter();
        SlicedRecording {
            buckets: SLICE,
            narrowest: NARROWEST,
            names: made.names,
            frames: made.frames,
            services,
            interrupts: interrupts.clone().map(|(at, it)| [u64::from(*at), it.count]).collect(),
            between: interrupts.flat_map(|(at, it)| of(*at, &it.between)).collect(),
            misses: Vec::new(),
            sizes: Vec::new(),
            slots: Vec::new(),
        }
    }
}

/// The slice, a class, and what is in it.
fn of(slice: u32, classes: &BTreeMap<u32, u64>) -> impl Iterator<Item = [u64; 3]> {
    classes.iter().map(move |(class, count)| [u64::from(slice), u64::from(*class), *count])
}

/// See [`SlicedRecording::misses`].
pub(crate) fn misses(slices: &[SliceCounts]) -> Vec<Vec<u64>> {
    let of_slice = |of: &SliceCounts| {
        let mut numbers = vec![u64::from(of.slice)];
        match &of.memory {
            Some(PerMode { kernel, user }) => {
                numbers.extend([kernel, user].into_iter().flat_map(levels));
            }
            None => numbers.extend([of.l1i.kernel, of.l1i.user].into_iter().flat_map(causes)),
        }
        numbers
    };
    slices.iter().map(of_slice).collect()
}

fn levels(counters: &MachineCounters) -> impl Iterator<Item = u64> {
    let MachineCounters { l1i, l1d, l2i, l2d, l3i, l3d, .. } = *counters;
    [l1i, l1d, l2i, l2d, l3i, l3d].into_iter().flat_map(causes)
}

fn causes(misses: MissCounts) -> [u64; 3] {
    [misses.cold, misses.own, misses.other]
}

/// See [`SlicedRecording::sizes`].
pub(crate) fn sizes(slices: &[SlicedSizes]) -> Vec<Vec<u64>> {
    let of_slice = |of: &SlicedSizes| {
        let misses = of.misses.iter().flat_map(|misses| [misses.kernel, misses.user]);
        std::iter::once(u64::from(of.slice)).chain(misses.flat_map(causes)).collect()
    };
    slices.iter().map(of_slice).collect()
}

/// By slice: the slice, the L1D's misses by mode and cause, then the misses of the L2 and of the L3
/// on data.
pub(crate) fn structure(row: &StructureRow) -> Vec<[u64; 9]> {
    let of_slice = |(slice, PerMode { kernel, user }): &(u32, PerMode<MissesByLevel>)| {
        let ([a, b, c], [d, e, f]) = (causes(kernel.l1d), causes(user.l1d));
        let l2 = kernel.l2d.total() + user.l2d.total();
        [u64::from(*slice), a, b, c, d, e, f, l2, kernel.l3d.total() + user.l3d.total()]
    };
    row.slices.iter().map(of_slice).collect()
}

/// See [`SlicedRecording::slots`].
pub(crate) fn slots(generations: &Generations) -> Vec<Vec<Vec<u64>>> {
    let machines = &generations.machines;
    if machines.iter().any(|machine| machine.samples.is_some()) {
        return Vec::new();
    }
    let of_machine = |slices: &Vec<ServiceSlice>, has_core: bool| {
        let mut before = 0;
        let since = slices.iter().map(|it| {
            let since = it.slice - before;
            before = it.slice;
            u64::from(since)
        });
        let mut columns: Vec<u64> = since.collect();
        columns.extend(slices.iter().map(|it| it.instructions));
        for kind in (0..6).filter(|_| has_core) {
            columns.extend(slices.iter().map(|it| it.dispatch[kind]));
        }
        for kind in 0..4 {
            columns.extend(slices.iter().map(|it| it.graduation[kind]));
        }
        columns
    };
    let of_row = |slices: &Vec<Vec<ServiceSlice>>| {
        let of_machines = slices.iter().zip(machines);
        of_machines
            .map(|(slices, machine)| of_machine(slices, machine.model == CycleModel::OutOfOrder))
            .collect()
    };
    generations.rows.iter().map(|row| of_row(&row.slices)).collect()
}

/// What the width of a frame may stand for: instructions, cycles, misses of L1I, L1D and L2.
#[derive(Clone, Copy, Default)]
struct Weights([u64; 5]);

impl Weights {
    fn add(&mut self, cost: CallCost) {
        let [_, instructions, stall, l1i, l1d, l2] = cost.counts();
        let weights = [instructions, instructions + stall, l1i, l1d, l2];
        self.0.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
    }

    /// Whether some weight is visible.
    fn is_wide(&self, all: &Weights) -> bool {
        let mut pairs = self.0.iter().zip(all.0);
        pairs.any(|(&own, all)| own > 0 && own as f64 >= all as f64 * NARROWEST)
    }
}

#[derive(Default)]
struct Frames {
    names: Vec<String>,
    numbers: BTreeMap<String, u32>,
    frames: Vec<SlicedFrame>,
    /// The frames for functions of narrow chains, by caller and name.
    narrow: BTreeMap<(u32, u32), u32>,
}

impl Frames {
    fn name(&mut self, name: &str) -> u32 {
        let next = self.names.len() as u32;
        let number = *self.numbers.entry(name.to_owned()).or_insert(next);
        if number == next {
            self.names.push(name.to_owned());
        }
        number
    }

    fn frame(&mut self, caller: Option<u32>, name: &str) -> u32 {
        let name = self.name(name);
        self.frames.push(SlicedFrame { caller, name, counts: Vec::new() });
        self.frames.len() as u32 - 1
    }

    /// The only frame of this name among the narrow chains of a frame.
    fn narrow_frame(&mut self, caller: u32, name: &str) -> u32 {
        let number = self.name(name);
        match self.narrow.get(&(caller, number)) {
            Some(&frame) => frame,
            None => {
                let frame = self.frame(Some(caller), name);
                self.narrow.insert((caller, number), frame);
                frame
            }
        }
    }

    /// Adds the chains of a service, ascending by node and slice.
    fn chains(
        &mut self,
        tree: &CallTree,
        calls: &[(NodeId, u32, CallCost)],
        service: u32,
        all: &Weights,
    ) {
        let mut weights: BTreeMap<NodeId, Weights> = BTreeMap::new();
        for (node, _, cost) in calls {
            weights.entry(*node).or_default().add(*cost);
        }
        // A parent has a smaller number, so from the last node on, each node's weights are complete
        // when they are taken.
        let mut wide: BTreeMap<NodeId, u32> = BTreeMap::new();
        while let Some((node, own)) = weights.pop_last().filter(|(node, _)| *node != ROOT) {
            if own.is_wide(all) {
                wide.insert(node, 0);
            }
            let parent = weights.entry(tree.nodes[node.0 as usize].parent).or_default();
            parent.0.iter_mut().zip(own.0).for_each(|(sum, weight)| *sum += weight);
        }
        let name = |node: NodeId| &tree.functions[tree.nodes[node.0 as usize].function as usize];
        for node in wide.keys().copied().collect::<Vec<_>>() {
            let caller = tree.nodes[node.0 as usize].parent;
            let caller = wide.get(&caller).copied().unwrap_or(service);
            let frame = self.frame(Some(caller), name(node));
            wide.insert(node, frame);
        }
        for &(node, slice, cost) in calls {
            let frame = match wide.get(&node) {
                Some(&frame) => frame,
                None if node == ROOT => service,
                None => {
                    let mut caller = node;
                    while caller != ROOT && !wide.contains_key(&caller) {
                        caller = tree.nodes[caller.0 as usize].parent;
                    }
                    let caller = wide.get(&caller).copied().unwrap_or(service);
                    let narrow = self.narrow_frame(caller, NARROW);
                    self.narrow_frame(narrow, name(node))
                }
            };
            self.frames[frame as usize].add(slice, cost);
        }
    }
}

impl SlicedFrame {
    fn add(&mut self, slice: u32, cost: CallCost) {
        match self.counts.binary_search_by_key(&slice, |(slice, _)| *slice) {
            Ok(at) => self.counts[at].1 += cost,
            Err(at) => self.counts.insert(at, (slice, cost)),
        }
    }
}

#[cfg(test)]
mod tests;
