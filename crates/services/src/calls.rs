//! Counts each chain of calls in the kernel, by service.
//!
//! Takes what the automaton follows (executions, calls, returns, the begin and end of services);
//! gives a tree of calls with exact counts of calls, instructions and misses at each node and
//! service. Does not follow control itself. Like the automaton, it ignores a return that matches no
//! call.
//!
//! A new chain begins where a service begins: the work of an interrupt does not belong to the
//! interrupted function. A function replaces the function that jumped to it. Thunks (of indirect
//! calls and of returns) belong to the function that goes through them. The name of a service is
//! final when the service ends. Until then, the counts of its chains stay with the open service.
//! [`ChainSums`] keeps counts by slice of time ([`crate::timeline`]).

use crate::annotations::ServiceKind;
use crate::binding::{Binding, in_range};
use crate::caches::{LevelMisses, MachineSoFar};
use crate::functions::{NAMELESS, TranslationFunction, function_name};
use crate::ledger::{Ledger, ServiceId};
use crate::slicing::Stretch;
use crate::symbols::KernelSymbols;
use image::address::LinkAddr;
use sim::SimpleModel;
use std::collections::{BTreeMap, HashMap};
use std::ops::AddAssign;
use trace::Translation;

/// A chain of calls: a function called from the end of another chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// The empty chain: no function.
pub const ROOT: NodeId = NodeId(0);

/// The counts of a node itself, without the functions that it called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCost {
    /// How often the function's first instruction was executed.
    pub calls: u64,
    /// Executed instructions.
    pub instructions: u64,
    /// Misses of the first machine.
    pub misses: LevelMisses,
    /// Cycles in which the first machine waits for memory, rounded so that sums stay exact.
    pub stall: u64,
}

impl CallCost {
    /// The counts in one array: calls, instructions, stall, misses of L1I, L1D and L2.
    pub fn counts(self) -> [u64; 6] {
        let CallCost { calls, instructions, misses: LevelMisses { l1i, l1d, l2 }, stall } = self;
        [calls, instructions, stall, l1i, l1d, l2]
    }
}

impl From<[u64; 6]> for CallCost {
    fn from([calls, instructions, stall, l1i, l1d, l2]: [u64; 6]) -> CallCost {
        CallCost { calls, instructions, misses: LevelMisses { l1i, l1d, l2 }, stall }
    }
}

impl AddAssign for CallCost {
    fn add_assign(&mut self, other: CallCost) {
        self.calls += other.calls;
        self.instructions += other.instructions;
        self.misses.l1i += other.misses.l1i;
        self.misses.l1d += other.misses.l1d;
        self.misses.l2 += other.misses.l2;
        self.stall += other.stall;
    }
}

/// A node of the tree: a function and the chain that called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallNode {
    /// The calling chain. Its number is always smaller.
    pub parent: NodeId,
    /// Index of the function's name.
    pub function: u32,
}

/// A service with the chains of calls in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCalls {
    /// The kind of the service.
    pub kind: ServiceKind,
    /// The name of the service.
    pub name: String,
    /// Ascending by node. User mode has only `ROOT`.
    pub costs: Vec<(NodeId, CallCost)>,
}

/// All chains of calls of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTree {
    /// The names of functions, by index.
    pub functions: Vec<String>,
    /// `nodes[0]` is the root. Its parent and function have no meaning.
    pub nodes: Vec<CallNode>,
    /// The services that executed instructions, ascending by kind and name.
    pub services: Vec<ServiceCalls>,
}

impl CallTree {
    /// The functions of a chain, outermost first.
    pub fn chain(&self, node: NodeId) -> Vec<&str> {
        let mut chain = Vec::new();
        let mut at = node;
        while at != ROOT {
            let CallNode { parent, function } = self.nodes[at.0 as usize];
            chain.push(self.functions[function as usize].as_str());
            at = parent;
        }
        chain.reverse();
        chain
    }
}

/// Receives the counts of chains. The counts of an open service wait in its log, because its name
/// is final only when it ends.
pub(crate) trait CallCounts {
    /// The counts of an open service.
    type Log: Default;
    /// When something was counted, as far as the receiver is to know it.
    type Time: Copy;
    /// This chain ran in the task's innermost open service, which has this log.
    fn add(
        &mut self,
        task: usize,
        log: &mut Self::Log,
        node: NodeId,
        cost: CallCost,
        time: Self::Time,
    );
    /// The service with this log has ended.
    fn settle(&mut self, task: usize, service: ServiceId, log: Self::Log);
    /// The task ran in user mode, under this service.
    fn add_user(&mut self, task: usize, service: ServiceId, cost: CallCost, time: Self::Time);
}

/// The sum of each chain, service and slice.
#[derive(Debug, Default)]
pub(crate) struct ChainSums {
    costs: HashMap<(ServiceId, u32, NodeId), CallCost>,
}

/// The counts of an open service, by chain and slice.
#[derive(Debug)]
pub(crate) struct CostLog {
    /// By slice and node.
    log: Vec<((u32, NodeId), CallCost)>,
    /// The log is compacted at this length.
    longest: usize,
}

const SHORTEST: usize = 1 << 12;

impl Default for CostLog {
    fn default() -> CostLog {
        CostLog { log: Vec::new(), longest: SHORTEST }
    }
}

impl CallCounts for ChainSums {
    type Log = CostLog;
    type Time = Stretch;

    fn add(&mut self, _: usize, log: &mut CostLog, node: NodeId, cost: CallCost, time: Stretch) {
        time.split(cost.counts(), |slice, part| log.add((slice, node), part.into()));
    }

    fn settle(&mut self, _: usize, service: ServiceId, log: CostLog) {
        for ((slice, node), cost) in log.log {
            *self.costs.entry((service, slice, node)).or_default() += cost;
        }
    }

    fn add_user(&mut self, _: usize, service: ServiceId, cost: CallCost, time: Stretch) {
        time.split(cost.counts(), |slice, part| {
            *self.costs.entry((service, slice, ROOT)).or_default() += part.into();
        });
    }
}

impl ChainSums {
    /// Makes one slice of each pair.
    fn halve(&mut self) {
        for ((service, slice, node), cost) in std::mem::take(&mut self.costs) {
            *self.costs.entry((service, slice / 2, node)).or_default() += cost;
        }
    }
}

/// An open service.
#[derive(Debug)]
struct OpenCalls<L> {
    /// The number of open calls when the service began.
    calls: usize,
    log: L,
}

#[derive(Debug)]
struct TaskCalls<L> {
    /// The chain from which each open call was made.
    calls: Vec<NodeId>,
    open: Vec<OpenCalls<L>>,
}

impl<L> Default for TaskCalls<L> {
    fn default() -> TaskCalls<L> {
        TaskCalls { calls: Vec::new(), open: Vec::new() }
    }
}

/// Keeps the chain of each task.
pub(crate) struct CallStacks<'a, C: CallCounts = ChainSums> {
    counts: C,
    symbols: &'a KernelSymbols,
    binding: &'a Binding,
    names: Vec<&'a str>,
    numbers: HashMap<&'a str, u32>,
    /// By translation block. User code and thunks have no function: they do not change the chain.
    parts: Vec<TranslationFunction>,
    nodes: Vec<CallNode>,
    children: HashMap<(NodeId, u32), NodeId>,
    tasks: Vec<TaskCalls<C::Log>>,
    current: usize,
    /// The chain that currently executes.
    leaf: NodeId,
    /// The next execution may belong to another chain, even in the same function.
    is_stale: bool,
    /// The last event was a call.
    has_called: bool,
    /// The counts of the current chain that are not in a log yet.
    cost: CallCost,
    /// The counts since the last booking, whose time is not known yet.
    pending: Vec<(NodeId, CallCost)>,
    model: Option<SimpleModel>,
    before: MachineSoFar,
    /// Cycles of stall since the beginning, and how many of them are in a cost.
    stalled: f64,
    stalled_before: u64,
}

impl<'a, C: CallCounts> CallStacks<'a, C> {
    /// `model`: of the first machine, for recordings without data accesses.
    pub(crate) fn new(
        symbols: &'a KernelSymbols,
        binding: &'a Binding,
        model: Option<SimpleModel>,
        counts: C,
    ) -> CallStacks<'a, C> {
        CallStacks {
            counts,
            symbols,
            binding,
            names: Vec::new(),
            numbers: HashMap::new(),
            parts: Vec::new(),
            nodes: vec![CallNode { parent: ROOT, function: 0 }],
            children: HashMap::new(),
            tasks: vec![TaskCalls::default()],
            current: 0,
            leaf: ROOT,
            is_stale: true,
            has_called: false,
            cost: CallCost::default(),
            pending: Vec::new(),
            model,
            before: MachineSoFar::default(),
            stalled: 0.0,
            stalled_before: 0,
        }
    }

    pub(crate) fn define(&mut self, translation: &Translation) {
        let start = translation.addr.0;
        let is_thunk = in_range(&self.binding.thunks, start).is_some();
        let symbol = self.symbols.containing(LinkAddr(start));
        let name = symbol.map_or(NAMELESS, function_name);
        let function = (translation.is_kernel() && !is_thunk).then(|| {
            let next = self.names.len() as u32;
            *self.numbers.entry(name).or_insert_with(|| {
                self.names.push(name);
                next
            })
        });
        self.parts.push(TranslationFunction::new(translation, function, symbol));
    }

    /// An execution, or its first `reached` instructions. `so_far`: the machine before it.
    #[inline]
    pub(crate) fn executed(
        &mut self,
        translation: u32,
        reached: Option<u32>,
        so_far: impl FnOnce() -> MachineSoFar,
    ) {
        let part = self.parts[translation as usize];
        if let Some(function) = part.function {
            let goes_on = !self.is_stale
                && !part.is_entry
                && self.nodes[self.leaf.0 as usize].function == function;
            if !goes_on {
                self.enter(function, part.is_entry, so_far());
                self.cost.calls += u64::from(part.is_entry);
            }
        }
        self.cost.instructions += u64::from(reached.unwrap_or(part.instructions));
    }

    /// Another function executes, or the same function was called again.
    fn enter(&mut self, function: u32, is_entry: bool, so_far: MachineSoFar) {
        self.put_down(so_far);
        // A call to code inside its own function is not a call: it fills the return stack buffer,
        // or reads the instruction pointer.
        if std::mem::replace(&mut self.has_called, false)
            && !is_entry
            && let Some(caller) = self.tasks[self.current].calls.last_mut()
            && *caller != ROOT
            && self.nodes[caller.0 as usize].function == function
        {
            *caller = self.nodes[caller.0 as usize].parent;
        }
        let parent = self.caller();
        let next = NodeId(self.nodes.len() as u32);
        self.leaf = *self.children.entry((parent, function)).or_insert(next);
        if self.leaf == next {
            self.nodes.push(CallNode { parent, function });
        }
        self.is_stale = false;
    }

    /// The chain that made the innermost open call of the innermost open service.
    fn caller(&self) -> NodeId {
        let task = &self.tasks[self.current];
        let base = task.open.last().map_or(0, |open| open.calls);
        match task.calls.get(base..) {
            Some([.., caller]) => *caller,
            _ => ROOT,
        }
    }

    /// Keeps the current counts for the log of the innermost open service.
    fn put_down(&mut self, so_far: MachineSoFar) {
        if self.tasks[self.current].open.is_empty() {
            return;
        }
        let cost = self.take(so_far);
        match self.pending.last_mut() {
            _ if cost == CallCost::default() => {}
            Some((last, sum)) if *last == self.leaf => *sum += cost,
            _ => self.pending.push((self.leaf, cost)),
        }
    }

    /// Takes the current counts, with the machine's since the last call.
    fn take(&mut self, now: MachineSoFar) -> CallCost {
        let before = std::mem::replace(&mut self.before, now);
        let mut taken = std::mem::take(&mut self.cost);
        taken.misses = LevelMisses {
            l1i: now.misses.l1i - before.misses.l1i,
            l1d: now.misses.l1d - before.misses.l1d,
            l2: now.misses.l2 - before.misses.l2,
        };
        self.stalled += match (now.stalls, &self.model) {
            (Some(stalls), _) => stalls - before.stalls.unwrap_or(0.0),
            (None, Some(model)) => {
                model.cycles(taken.instructions, taken.misses.l1i) - taken.instructions as f64
            }
            (None, None) => 0.0,
        };
        taken.stall = (self.stalled as u64).saturating_sub(self.stalled_before);
        self.stalled_before += taken.stall;
        taken
    }

    /// Determines the chain again. All counts are in a log already, or pending.
    fn turn(&mut self) {
        self.leaf = self.caller();
        (self.is_stale, self.has_called) = (true, false);
    }

    #[inline]
    pub(crate) fn called(&mut self) {
        // A thunk calls on behalf of the function that went through it: `leaf` is still that
        // function's chain.
        self.tasks[self.current].calls.push(self.leaf);
        (self.is_stale, self.has_called) = (true, true);
    }

    pub(crate) fn unwound(&mut self, calls: usize) {
        self.tasks[self.current].calls.truncate(calls);
        // The returning chain may have counts that are not in a log yet.
        match self.cost == CallCost::default() {
            true => self.turn(),
            false => (self.is_stale, self.has_called) = (true, false),
        }
    }

    pub(crate) fn switched(&mut self, task: usize) {
        if self.tasks.len() <= task {
            self.tasks.resize_with(task + 1, TaskCalls::default);
        }
        self.current = task;
        self.turn();
    }

    pub(crate) fn opened(&mut self, calls: usize) {
        self.tasks[self.current].open.push(OpenCalls { calls, log: C::Log::default() });
        self.turn();
    }

    pub(crate) fn settled(&mut self, task: usize, service: ServiceId) {
        if let Some(open) = self.tasks.get_mut(task).and_then(|task| task.open.pop()) {
            self.counts.settle(task, service, open.log);
        }
        self.turn();
    }

    /// Adds the counts since the last booking to this service of user mode, or to the innermost
    /// open service. `time`: when they were counted.
    pub(crate) fn booked(&mut self, user: Option<ServiceId>, so_far: MachineSoFar, time: C::Time) {
        match user {
            None => {
                self.put_down(so_far);
                let Some(open) = self.tasks[self.current].open.last_mut() else { return };
                for (node, cost) in self.pending.drain(..) {
                    self.counts.add(self.current, &mut open.log, node, cost, time);
                }
            }
            Some(user) => {
                let mut sum = self.take(so_far);
                self.pending.drain(..).for_each(|(_, cost)| sum += cost);
                self.counts.add_user(self.current, user, sum, time);
            }
        }
    }

    /// What receives the counts.
    pub(crate) fn counts_mut(&mut self) -> &mut C {
        &mut self.counts
    }

    /// The logs of a task's open services, innermost first.
    pub(crate) fn open_logs(&mut self, task: usize) -> impl Iterator<Item = &mut C::Log> {
        let open = self.tasks.get_mut(task).into_iter().flat_map(|task| task.open.iter_mut().rev());
        open.map(|open| &mut open.log)
    }

    /// The names of functions, the nodes of the tree of calls, and what received the counts.
    pub(crate) fn into_parts(self) -> (Vec<String>, Vec<CallNode>, C) {
        (self.names.into_iter().map(str::to_owned).collect(), self.nodes, self.counts)
    }
}

impl CallStacks<'_> {
    /// Makes one slice of each pair.
    pub(crate) fn halve(&mut self) {
        let open = self.tasks.iter_mut().flat_map(|task| &mut task.open);
        open.for_each(|open| open.log.halve());
        self.counts.halve();
    }

    /// The tree of the whole recording, and the chains in slices by service. `ledger`: that of the
    /// same recording.
    pub(crate) fn finish(
        self,
        ledger: &Ledger,
    ) -> (CallTree, BTreeMap<ServiceId, Vec<(NodeId, u32, CallCost)>>) {
        let (functions, nodes, sums) = self.into_parts();
        let mut of: BTreeMap<ServiceId, Vec<(NodeId, u32, CallCost)>> = BTreeMap::new();
        for ((service, slice, node), cost) in sums.costs {
            of.entry(service).or_default().push((node, slice, cost));
        }
        let mut services: Vec<ServiceCalls> = Vec::new();
        for (service, sliced) in &mut of {
            sliced.sort_unstable_by_key(|(node, slice, _)| (*node, *slice));
            let mut costs: Vec<(NodeId, CallCost)> = Vec::new();
            for &(node, _, cost) in &*sliced {
                match costs.last_mut() {
                    Some((last, sum)) if *last == node => *sum += cost,
                    _ => costs.push((node, cost)),
                }
            }
            let account = &ledger.accounts[service.0 as usize];
            services.push(ServiceCalls { kind: account.kind, name: account.name.clone(), costs });
        }
        services.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        (CallTree { functions, nodes, services }, of)
    }
}

impl CostLog {
    /// Makes one slice of each pair.
    fn halve(&mut self) {
        self.log.iter_mut().for_each(|((slice, _), _)| *slice /= 2);
    }

    /// `at`: slice and node.
    fn add(&mut self, at: (u32, NodeId), cost: CallCost) {
        if cost == CallCost::default() {
            return;
        }
        match self.log.last_mut() {
            Some((last, sum)) if *last == at => *sum += cost,
            _ => self.log.push((at, cost)),
        }
        if self.log.len() >= self.longest {
            self.log.sort_unstable_by_key(|(at, _)| *at);
            self.log.dedup_by(|(at, cost), (kept, sum)| {
                let same = at == kept;
                if same {
                    *sum += *cost;
                }
                same
            });
            self.longest = (2 * self.log.len()).max(SHORTEST);
        }
    }
}
