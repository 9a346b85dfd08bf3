//! The events of `perf.data`: what their samples hold, and which branches their stacks hold.
//!
//! Input: the bytes of a `struct perf_event_attr` (`include/uapi/linux/perf_event.h`) and ids.
//! Output: the event of a sample, and its branch stack. This module never reads beyond the stack.

use super::fields::Fields;
use anyhow::{Context, Result, bail};

/// The bytes of a `struct perf_event_attr`: from those of the first one (PERF_ATTR_SIZE_VER0) to a
/// page, above which the kernel takes none.
pub(super) const ATTRIBUTE: std::ops::RangeInclusive<u64> = 64..=4096;

/// Bits of `sample_type`: PERF_SAMPLE_….
mod sample {
    pub(super) const IP: u64 = 1 << 0;
    pub(super) const TID: u64 = 1 << 1;
    pub(super) const TIME: u64 = 1 << 2;
    pub(super) const ADDR: u64 = 1 << 3;
    pub(super) const READ: u64 = 1 << 4;
    pub(super) const CALLCHAIN: u64 = 1 << 5;
    pub(super) const ID: u64 = 1 << 6;
    pub(super) const CPU: u64 = 1 << 7;
    pub(super) const PERIOD: u64 = 1 << 8;
    pub(super) const STREAM_ID: u64 = 1 << 9;
    pub(super) const RAW: u64 = 1 << 10;
    pub(super) const BRANCH_STACK: u64 = 1 << 11;
    pub(super) const IDENTIFIER: u64 = 1 << 16;
}

/// Bits of `read_format`: PERF_FORMAT_….
mod read {
    pub(super) const TOTAL_TIMES: [u64; 2] = [1 << 0, 1 << 1];
    pub(super) const ID: u64 = 1 << 2;
    pub(super) const GROUP: u64 = 1 << 3;
    pub(super) const LOST: u64 = 1 << 4;
}

/// Bits of `branch_sample_type`: PERF_SAMPLE_BRANCH_….
mod branch {
    pub(super) const USER: u64 = 1 << 0;
    pub(super) const KERNEL: u64 = 1 << 1;
    pub(super) const HYPERVISOR: u64 = 1 << 2;
    pub(super) const ANY: u64 = 1 << 3;
    pub(super) const IN_TRANSACTION: u64 = 1 << 8;
    pub(super) const CALL_STACK: u64 = 1 << 11;
    pub(super) const HW_INDEX: u64 = 1 << 17;
    /// The bits that choose branches of one kind, with perf's words for `-j`.
    pub(super) const KINDS: [(u64, &str); 8] = [
        (1 << 4, "any_call"),
        (1 << 5, "any_ret"),
        (1 << 6, "ind_call"),
        (1 << 7, "abort_tx"),
        (IN_TRANSACTION, "in_tx"),
        (1 << 10, "cond"),
        (1 << 12, "ind_jmp"),
        (1 << 13, "call"),
    ];
}

/// The flag `exclude_kernel` of a `struct perf_event_attr`.
const EXCLUDE_KERNEL: u64 = 1 << 5;
/// The fields before the counters of a sample, in their order: each is 64 bits.
const BEFORE: [u64; 9] = [
    sample::IDENTIFIER,
    sample::IP,
    sample::TID,
    sample::TIME,
    sample::ADDR,
    sample::ID,
    sample::STREAM_ID,
    sample::CPU,
    sample::PERIOD,
];
/// The bits `spec` of a `struct perf_branch_entry`, and PERF_BR_SPEC_WRONG_PATH in them: the
/// processor took the branch, and then undid it.
const SPEC_SHIFT: u32 = 24;
const SPEC_MASK: u64 = 3;
const WRONG_PATH: u64 = 1;

/// An event.
#[derive(Debug)]
pub(super) struct Event {
    sample_type: u64,
    read_format: u64,
    branch_type: u64,
    /// What the stacks hold, if that is not every branch that the kernel takes.
    only: Option<String>,
    ids: Vec<u64>,
}

/// The branches of a sample, the latest one first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stack {
    /// The branches that were executed.
    pub(super) branches: Vec<(u64, u64)>,
    /// The number of branches that the processor marked as on a wrong path. They are left out.
    pub(super) wrong_path: u64,
}

impl Event {
    /// Reads a `struct perf_event_attr`, of which the ids of the event's samples are known.
    ///
    /// `None`: the structure ends too early, or no perf writes this size.
    pub(super) fn read(attribute: &[u8], ids: Vec<u64>) -> Option<Event> {
        let mut fields = Fields(attribute);
        fields.word()?;
        let size = u64::from(fields.word()?);
        if !ATTRIBUTE.contains(&size) || size > attribute.len() as u64 {
            return None;
        }
        let mut fields = Fields(&attribute[..size as usize]);
        // type and size, config, period or frequency.
        fields.bytes(24)?;
        let (sample_type, read_format) = (fields.number()?, fields.number()?);
        let flags = fields.number()?;
        // wakeup_events and bp_type, config1, config2. The first one ends before config2.
        let branch_type = fields.bytes(24).and_then(|_| fields.number()).unwrap_or(0);
        let only = (sample_type & sample::BRANCH_STACK != 0)
            .then(|| holds_only(branch_type, flags & EXCLUDE_KERNEL == 0))
            .flatten();
        Some(Event { sample_type, read_format, branch_type, only, ids })
    }

    /// What the stacks hold, if that is not every branch that the kernel takes.
    pub(super) fn holds_only(&self) -> Option<&str> {
        self.only.as_deref()
    }

    /// The branch stack of a sample. `None` if the event has none.
    ///
    /// # Errors
    /// The sample ends too early.
    pub(super) fn stack(&self, sample: &[u8]) -> Result<Option<Stack>> {
        if self.sample_type & sample::BRANCH_STACK == 0 {
            return Ok(None);
        }
        self.fields_of_stack(sample).map(Some).context("a sample ends too early")
    }

    fn fields_of_stack(&self, sample: &[u8]) -> Option<Stack> {
        let has = |bit: u64| self.sample_type & bit != 0;
        let mut fields = Fields(sample);
        fields.bytes(8 * BEFORE.iter().filter(|&&field| has(field)).count() as u64)?;
        if has(sample::READ) {
            self.skip_counters(&mut fields)?;
        }
        if has(sample::CALLCHAIN) {
            let length = fields.number()?;
            fields.bytes(length.checked_mul(8)?)?;
        }
        if has(sample::RAW) {
            let length = fields.word()?;
            fields.bytes(length.into())?;
        }
        let entries = fields.number()?;
        if self.branch_type & branch::HW_INDEX != 0 {
            fields.number()?;
        }
        let mut stack = Stack { branches: Vec::new(), wrong_path: 0 };
        for _ in 0..entries {
            let (from, to, flags) = (fields.number()?, fields.number()?, fields.number()?);
            // The processor went on behind the branch before it, so the stretch is not broken.
            match flags >> SPEC_SHIFT & SPEC_MASK == WRONG_PATH {
                true => stack.wrong_path += 1,
                false => stack.branches.push((from, to)),
            }
        }
        Some(stack)
    }

    /// Skips `struct read_format`: one counter, or those of a group.
    fn skip_counters(&self, fields: &mut Fields) -> Option<()> {
        let has = |bit: &u64| self.read_format & bit != 0;
        let times = read::TOTAL_TIMES.iter().filter(|bit| has(bit)).count() as u64;
        let counter = 1 + [read::ID, read::LOST].iter().filter(|bit| has(bit)).count() as u64;
        let counters = if has(&read::GROUP) { fields.number()? } else { 1 };
        fields.bytes(times.checked_add(counters.checked_mul(counter)?)?.checked_mul(8)?)?;
        Some(())
    }

    /// How many numbers a sample has before its event's id, if it has one.
    fn id_at(&self) -> Option<usize> {
        let before = [sample::IP, sample::TID, sample::TIME, sample::ADDR];
        if self.sample_type & sample::IDENTIFIER != 0 {
            return Some(0);
        }
        let before = before.iter().filter(|&bit| self.sample_type & bit != 0).count();
        (self.sample_type & sample::ID != 0).then_some(before)
    }
}

/// What stacks of this `branch_sample_type` hold, if that is not every branch of the kernel.
/// `kernel`: whether the event counts in the kernel.
fn holds_only(branch_type: u64, kernel: bool) -> Option<String> {
    let has = |bit: u64| branch_type & bit != 0;
    if has(branch::CALL_STACK) {
        return Some("calls that did not return yet (`--call-graph lbr`)".to_owned());
    }
    let kinds = branch::KINDS.iter().filter(|&&(bit, _)| has(bit)).map(|&(_, word)| word);
    let kinds: Vec<&str> = kinds.collect();
    // A stack that perf makes from a trace of the processor has no kinds, and every branch.
    if !kinds.is_empty() && (!has(branch::ANY) || has(branch::IN_TRANSACTION)) {
        return Some(format!("branches of some kinds (`-j {}`)", kinds.join(",")));
    }
    let kernel = match branch_type & (branch::USER | branch::KERNEL | branch::HYPERVISOR) {
        0 => kernel,
        chosen => chosen & branch::KERNEL != 0,
    };
    (!kernel).then(|| "branches of user programs (`:u`, or `-j any,u`)".to_owned())
}

/// All events of a file.
#[derive(Debug, Default)]
pub(super) struct Events {
    all: Vec<Event>,
    /// Ids of samples with indices of events, ascending.
    ids: Vec<(u64, usize)>,
}

impl Events {
    /// Adds an event.
    pub(super) fn push(&mut self, event: Event) {
        let index = self.all.len();
        self.ids.extend(event.ids.iter().map(|&id| (id, index)));
        self.ids.sort_unstable();
        self.all.push(event);
    }

    /// Every event.
    pub(super) fn all(&self) -> &[Event] {
        &self.all
    }

    /// The index of a sample's event. `None` if its id belongs to no event.
    ///
    /// # Errors
    /// There is no event, or samples of different kinds do not say of which event they are.
    pub(super) fn of(&self, sample: &[u8]) -> Result<Option<usize>> {
        let Some(first) = self.all.first() else {
            bail!("a sample comes before the description of its event");
        };
        if self.all.len() == 1 {
            return Ok(Some(0));
        }
        let Some(at) = first.id_at() else {
            // Samples without an id: they can be read where all events' samples are alike.
            let alike = |event: &Event| {
                (event.sample_type, event.read_format, event.branch_type)
                    == (first.sample_type, first.read_format, first.branch_type)
            };
            if !self.all.iter().all(alike) {
                bail!("its samples do not say of which of its {} events they are", self.all.len());
            }
            return Ok(Some(0));
        };
        if self.all.iter().any(|event| event.id_at() != Some(at)) {
            bail!("its events do not agree where a sample says of which event it is");
        }
        let mut fields = Fields(sample);
        let id = fields.bytes(8 * at as u64).and_then(|_| fields.number());
        let id = id.context("a sample ends too early")?;
        let found = self.ids.binary_search_by_key(&id, |&(id, _)| id);
        Ok(found.ok().map(|found| self.ids[found].1))
    }
}
