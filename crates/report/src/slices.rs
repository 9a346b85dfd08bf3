//! A recording in slices of equal time, for a page that shows any range of it.
//!
//! Input: chains of calls, invocations and misses by slice. Output: frames with their counts in
//! each slice, whose sums over all slices are those of the recording. Chains too narrow to be
//! visible are put together. Draws nothing.

use serde::{Serialize, Serializer};
use services::annotations::ServiceKind;
use services::calls::{CallCost, CallTree, NodeId, ROOT};
use services::timeline::{SLICE, Timeline};
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
    /// The first machine's misses of a slice: its number, then as
    /// [`services::slices::SliceMisses::counts`].
    pub misses: Vec<Vec<u64>>,
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
}

impl SlicedRecording {
    /// `tree` and `timeline`: of the same recording.
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
                classes: ended
                    .flat_map(|(slice, it)| {
                        let classes = it.classes.iter();
                        classes.map(|(class, calls)| [u64::from(*slice), u64::from(*class), *calls])
                    })
                    .collect(),
            });
        }
        let misses = timeline.misses.iter();
        SlicedRecording {
            buckets: SLICE,
            narrowest: NARROWEST,
            names: made.names,
            frames: made.frames,
            services,
            misses: misses
                .map(|it| std::iter::once(u64::from(it.slice)).chain(it.counts).collect())
                .collect(),
        }
    }
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
