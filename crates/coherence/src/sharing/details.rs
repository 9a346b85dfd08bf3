//! The second pass: who uses which bytes of a few lines, and what functions asked for.
//!
//! Input: a recording, the log of its requests on a machine, and the numbers of lines. Output: the
//! requests of each translation block and, for each line: its misses and
//! upgrades by CPU and mode, and its fields. A *field* is a part of the line that belongs to one
//! data structure: a place and a size that instructions load or store. All other lines take no
//! memory.

use super::caches::{DataUse, Request, SharedMachine, SharingObserver};
use super::counts::{AccessCounts, LineCounts, RequestCosts};
use super::functions::BlockMisses;
use crate::tasks::TaskNames;
use anyhow::Result;
use execution::executions::Executed;
use execution::served_log::ServedLog;
use memory::misses::collector::accesses_only_a_stack;
use memory::misses::owners::{DataOwners, MissOwner, StructureId};
use memory::misses::uses::FrameUses;
use sim::coherent::{CoherentAccess, MissClass, Served};
use sim::{Mode, PerMode};
use std::collections::{HashMap, HashSet};
use std::io::Read;
use trace::{Accesses, RecordingReader, RunAddr, Task, Translation, TranslationId};

/// What identifies a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FieldKey {
    pub owner: MissOwner,
    /// The virtual address of the page, for accesses at user addresses.
    pub user: Option<u64>,
    /// Bytes from the beginning of the line.
    pub offset: u32,
    pub size: u32,
}

/// The counts of a field.
#[derive(Clone, Debug)]
pub(super) struct FieldUses {
    pub key: FieldKey,
    /// The virtual address of the first access.
    pub addr: u64,
    /// The number of the name that the task had which ran then.
    pub task: u32,
    /// The physical address of the first of the pages that were allocated together, at that time.
    pub pages: u64,
    /// By CPU.
    pub cpus: Vec<AccessCounts>,
    /// What its accesses asked for.
    pub counts: LineCounts,
    /// By instruction: its address, its loads and stores.
    pub sites: HashMap<(TranslationId, u16), (RunAddr, AccessCounts)>,
}

impl FieldUses {
    fn new(key: FieldKey, addr: u64, task: u32, pages: u64, cpus: usize) -> FieldUses {
        FieldUses {
            key,
            addr,
            task,
            pages,
            cpus: vec![AccessCounts::default(); cpus],
            counts: LineCounts::default(),
            sites: HashMap::new(),
        }
    }

    fn add(&mut self, other: FieldUses) {
        self.cpus.iter_mut().zip(&other.cpus).for_each(|(own, more)| *own += *more);
        self.counts += other.counts;
        for (site, (addr, counts)) in other.sites {
            self.sites.entry(site).or_insert((addr, AccessCounts::default())).1 += counts;
        }
    }
}

/// A miss that counts as false sharing and can still turn out to be true sharing.
#[derive(Clone, Copy, Debug)]
struct OpenMiss {
    mode: Mode,
    /// The field that was accessed; `None` for a fetch.
    field: Option<usize>,
}

/// The counts of a line.
#[derive(Clone, Debug, Default)]
pub(super) struct LineUses {
    /// By CPU.
    pub cpus: Vec<PerMode<LineCounts>>,
    /// The fields in the order of their first access. A field in `unused` has given its counts to
    /// another field.
    pub fields: Vec<FieldUses>,
    numbers: HashMap<FieldKey, usize>,
    unused: Vec<usize>,
    /// By CPU: its last miss, if it counts as false sharing.
    open: Vec<Option<OpenMiss>>,
}

impl LineUses {
    fn new(cpus: usize) -> LineUses {
        LineUses {
            cpus: vec![PerMode::default(); cpus],
            open: vec![None; cpus],
            ..LineUses::default()
        }
    }

    /// The number of a field.
    fn field(&mut self, key: FieldKey, addr: u64, task: u32, pages: u64) -> usize {
        if let Some(&known) = self.numbers.get(&key) {
            return known;
        }
        let new = FieldUses::new(key, addr, task, pages, self.cpus.len());
        let at = match self.unused.pop() {
            Some(at) => {
                self.fields[at] = new;
                at
            }
            None => {
                self.fields.push(new);
                self.fields.len() - 1
            }
        };
        self.numbers.insert(key, at);
        at
    }

    /// Counts who served an access. `field`: the field that was accessed.
    fn served(
        &mut self,
        request: Request,
        field: Option<usize>,
        by: CoherentAccess,
        costs: &RequestCosts,
    ) {
        let Request { cpu, mode, .. } = request;
        if by.was_true
            && let Some(open) = self.open[cpu].take()
        {
            self.cpus[cpu].get_mut(open.mode).turn_true();
            if let Some(field) = open.field {
                self.fields[field].counts.turn_true();
            }
        }
        self.cpus[cpu].get_mut(mode).count(by, costs);
        if let Some(field) = field {
            self.fields[field].counts.count(by, costs);
        }
        if let Served::Missed(class, _) = by.served {
            self.open[cpu] = (class == MissClass::FalseSharing).then_some(OpenMiss { mode, field });
        }
    }

    /// The structure in a frame is known now.
    fn settle(&mut self, frame: u64, id: StructureId) {
        for at in 0..self.fields.len() {
            let mut key = self.fields[at].key;
            if self.numbers.get(&key) != Some(&at) || key.owner != MissOwner::Pending(frame) {
                continue;
            }
            self.numbers.remove(&key);
            key.owner = MissOwner::Known(id);
            match self.numbers.get(&key) {
                None => {
                    self.fields[at].key = key;
                    self.numbers.insert(key, at);
                }
                Some(&into) => {
                    let empty = FieldUses::new(key, 0, 0, 0, 0);
                    let field = std::mem::replace(&mut self.fields[at], empty);
                    self.fields[into].add(field);
                    self.unused.push(at);
                    let opens = self.open.iter_mut().flatten();
                    opens.filter(|open| open.field == Some(at)).for_each(|open| {
                        open.field = Some(into);
                    });
                }
            }
        }
    }
}

/// Follows the accesses to a few lines.
struct UseCollector {
    costs: RequestCosts,
    line_log2: u32,
    owners: DataOwners,
    uses: FrameUses,
    lines: Vec<LineUses>,
    blocks: BlockMisses,
    tasks: TaskNames,
    numbers: HashMap<u64, usize>,
    /// One bit for each remainder of a line's number, set if one of the lines has it.
    filter: Box<[u64; FILTER_WORDS]>,
    /// Frames whose use is not known yet.
    pending: HashSet<u64>,
    /// By translation: the instructions that access only a stack.
    stack: Vec<Box<[bool]>>,
    /// The line and field of the access that is being served.
    current: Option<(usize, usize)>,
}

const FILTER_WORDS: usize = 1 << 12;

impl UseCollector {
    #[inline]
    fn line(&self, number: u64) -> Option<usize> {
        let bit = number as usize % (64 * FILTER_WORDS);
        match self.filter[bit / 64] >> (bit % 64) & 1 {
            0 => None,
            _ => self.numbers.get(&number).copied(),
        }
    }
}

impl SharingObserver for UseCollector {
    fn define(&mut self, translation: &Translation) {
        self.blocks.define(translation);
        let is_kernel = translation.is_kernel();
        let code = translation.code_by_instruction();
        self.stack.push(code.map(|(_, code)| is_kernel && accesses_only_a_stack(code)).collect());
    }

    fn tasks(&mut self, tasks: &[Task]) {
        self.tasks.define(tasks);
    }

    fn stream(&mut self, accesses: &Accesses) {
        let (lines, pending) = (&mut self.lines, &mut self.pending);
        self.uses.stream(accesses, &mut self.owners, |frame, id| settle(lines, pending, frame, id));
    }

    #[inline]
    fn executed(&mut self, executed: &Executed<'_>) {
        self.blocks.executed(executed.execution.translation);
        let (lines, pending) = (&mut self.lines, &mut self.pending);
        self.uses.executed(&mut self.owners, |frame, id| settle(lines, pending, frame, id));
    }

    #[inline]
    fn uses(&mut self, used: &DataUse<'_>) {
        self.current = None;
        let Some(line) = self.line(used.physical.0 >> self.line_log2) else { return };
        let (addr, frame) = (used.addr(), used.physical.0 >> 12);
        let (access, execution) = (used.access, used.executed.execution);
        let of_code = self.stack.get(execution.translation.0 as usize);
        if of_code.and_then(|of| of.get(usize::from(access.instruction))) == Some(&true) {
            self.owners.is_a_stack(addr, frame);
        }
        let owner = self.owners.owner(addr, frame);
        if let MissOwner::Pending(frame) = owner {
            self.pending.insert(frame);
        }
        let offset = (used.physical.0 & ((1 << self.line_log2) - 1)) as u32;
        let pages = self.owners.head(frame) << 12;
        let user = (addr >> 63 == 0).then_some(addr & !0xfff);
        let of_line = &mut self.lines[line];
        let key = FieldKey { owner, user, offset, size: used.size };
        let at = of_line.field(key, addr, self.tasks.name_of(execution.process), pages);
        let field = &mut of_line.fields[at];
        if let Some(counts) = field.cpus.get_mut(usize::from(execution.cpu.0)) {
            counts.count(access.is_store);
        }
        let code = used.executed.code;
        let new = || (code.addr_of(access.instruction), AccessCounts::default());
        let site = (execution.translation, access.instruction);
        field.sites.entry(site).or_insert_with(new).1.count(access.is_store);
        self.current = Some((line, at));
    }

    fn walks(&mut self) {
        self.blocks.walks(&self.costs);
    }

    fn served(&mut self, request: Request, by: CoherentAccess) {
        let number = request.physical.0 >> self.line_log2;
        self.blocks.served(request, number, by, &self.costs);
        let (line, field) = match (request.is_fetch, self.current) {
            (false, Some((line, field))) => (line, Some(field)),
            (false, None) => return,
            (true, _) => match self.line(number) {
                Some(line) => (line, None),
                None => return,
            },
        };
        self.lines[line].served(request, field, by, &self.costs);
    }
}

fn settle(lines: &mut [LineUses], pending: &mut HashSet<u64>, frame: u64, id: StructureId) {
    if pending.remove(&frame) {
        lines.iter_mut().for_each(|line| line.settle(frame, id));
    }
}

/// What the second pass found.
pub(super) struct Collected {
    /// The uses of the lines, in their order.
    pub lines: Vec<LineUses>,
    /// The requests of translation blocks.
    pub blocks: BlockMisses,
    /// They name data.
    pub owners: DataOwners,
    pub tasks: TaskNames,
}

/// Collects the uses of the lines with these numbers.
///
/// # Errors
/// As [`SharedMachine::observe`].
pub(super) fn collect<R: Read>(
    reader: RecordingReader<R>,
    machine: &SharedMachine<'_>,
    log: &ServedLog,
    owners: DataOwners,
    numbers: &[u64],
) -> Result<Collected> {
    let mut collector = UseCollector {
        costs: machine.costs,
        line_log2: machine.line_log2(),
        owners,
        uses: FrameUses::default(),
        lines: numbers.iter().map(|_| LineUses::new(machine.cpus())).collect(),
        blocks: BlockMisses::default(),
        tasks: TaskNames::default(),
        numbers: numbers.iter().enumerate().map(|(at, &number)| (number, at)).collect(),
        filter: Box::new([0; FILTER_WORDS]),
        pending: HashSet::new(),
        stack: Vec::new(),
        current: None,
    };
    for &number in numbers {
        let bit = number as usize % (64 * FILTER_WORDS);
        collector.filter[bit / 64] |= 1 << (bit % 64);
    }
    machine.observe(reader, log, &mut collector)?;
    let UseCollector { mut owners, mut lines, blocks, tasks, mut pending, .. } = collector;
    let mut frames: Vec<u64> = pending.iter().copied().collect();
    frames.sort_unstable();
    for frame in frames {
        let id = owners.settle(frame);
        settle(&mut lines, &mut pending, frame, id);
    }
    for line in &mut lines {
        line.fields.retain(|field| field.cpus.iter().any(|cpu| cpu.total() > 0));
    }
    Ok(Collected { lines, blocks, owners, tasks })
}
