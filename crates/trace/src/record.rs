//! The records of a recording: its header, definitions and totals. These are plain values. This
//! module does no input or output.

use crate::{CpuId, RunAddr, SeveralCpus, TaskId, TranslationId};
use std::borrow::Cow;

/// The number of CPUs of a guest: 1 to [`CpuCount::MOST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuCount(u8);

impl CpuCount {
    /// One CPU.
    pub const ONE: CpuCount = CpuCount(1);
    /// The largest number. The plugin cannot follow more.
    pub const MOST: u8 = 8;

    /// The number; `None` when it is 0 or above [`CpuCount::MOST`].
    pub fn new(cpus: u32) -> Option<CpuCount> {
        u8::try_from(cpus).ok().filter(|cpus| (1..=CpuCount::MOST).contains(cpus)).map(CpuCount)
    }

    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }

    /// The CPUs.
    pub fn cpus(self) -> impl Iterator<Item = CpuId> {
        (0..self.0).map(CpuId)
    }
}

impl std::fmt::Display for CpuCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Default for CpuCount {
    fn default() -> Self {
        CpuCount::ONE
    }
}

/// The conditions of a recording, known before anything was executed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingHeader {
    /// The GNU build id of the kernel that ran, in lower-case hex. Empty when it is not known.
    pub build_id: String,
    /// The name of the workload.
    pub workload: String,
    /// The seed that the machine was started with.
    pub seed: u64,
    /// The number of CPUs of the machine.
    pub cpus: CpuCount,
    /// Whether loads and unloads of kernel modules are recorded.
    pub modules: bool,
    /// Everything else that the result depends on, as (key, value), in the order in which the
    /// recorder gave them.
    pub conditions: Vec<(String, String)>,
}

impl RecordingHeader {
    /// Checks that there is one CPU, for readers that follow only one.
    ///
    /// # Errors
    /// The recording has several CPUs.
    pub fn one_cpu(&self) -> Result<(), SeveralCpus> {
        if self.cpus == CpuCount::ONE { Ok(()) } else { Err(SeveralCpus(self.cpus)) }
    }
}

/// A translation block: a run of instructions that QEMU translated at once, with the bytes that
/// they had then. Code that is patched at run time becomes a new translation at the same address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The number of the translation.
    pub id: TranslationId,
    /// The address of the first instruction when the code was translated. Kernel addresses are
    /// exact. Several processes may map one page of position-independent user code at different
    /// addresses. Then the address is the one of the first process that executed it.
    pub addr: RunAddr,
    /// The length of each instruction in bytes, in order. There are 1 to
    /// [`Translation::MAX_INSTRUCTIONS`] instructions of 1 to 15 bytes.
    pub lengths: Box<[u8]>,
    /// The bytes of the code: as many as the sum of `lengths`.
    pub code: Box<[u8]>,
}

impl Translation {
    /// The largest number of instructions: QEMU's TCG_MAX_INSNS.
    pub const MAX_INSTRUCTIONS: usize = 512;
    /// The longest instruction of x86-64 in bytes (Intel SDM volume 2, section 2.3.11).
    pub(crate) const MAX_LENGTH: u8 = 15;

    /// The number of instructions.
    pub fn instructions(&self) -> u32 {
        self.lengths.len() as u32
    }

    /// Whether the code ran in the kernel.
    pub fn is_kernel(&self) -> bool {
        self.addr.is_kernel()
    }

    /// The address and the bytes of each instruction.
    pub fn code_by_instruction(&self) -> impl Iterator<Item = (RunAddr, &[u8])> {
        let mut at = 0;
        self.lengths.iter().map(move |&length| {
            let start = at;
            at += usize::from(length);
            (
                RunAddr(self.addr.0.wrapping_add(start as u64)),
                self.code.get(start..at).unwrap_or_default(),
            )
        })
    }
}

/// The address of a `task_struct`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskPointer(pub u64);

/// A task of the guest when the kernel switched to it or renamed it. A task that changed its name
/// (execve) is a new one with the same pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The number of the task.
    pub id: TaskId,
    /// The address of its `task_struct`.
    pub pointer: TaskPointer,
    /// The pid of the thread, if the recorder could read it.
    pub pid: Option<u32>,
    /// `task_struct.comm`, padded with NUL.
    pub comm: [u8; 16],
}

impl Task {
    /// The task's name up to the first NUL. Bytes that are not UTF-8 are replaced.
    pub fn name(&self) -> Cow<'_, str> {
        let end = self.comm.iter().position(|&byte| byte == 0).unwrap_or(self.comm.len());
        String::from_utf8_lossy(&self.comm[..end])
    }
}

/// The totals of a whole recording, from its clean end. The reader has compared each of them with
/// the records it read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingTotals {
    /// Instructions reached at kernel addresses.
    pub kernel_instructions: u64,
    /// Instructions reached at user addresses.
    pub user_instructions: u64,
    /// Executions of translations, including those left midway.
    pub executions: u64,
    /// Executions that were left midway.
    pub left: u64,
    /// Translations defined.
    pub translations: u64,
    /// Tasks defined.
    pub tasks: u64,
    /// The hash of all definitions and of all events, each in their order. Equal hashes mean the
    /// same execution.
    pub hash: u64,
    /// The totals of data accesses. `None`: the recording has no data accesses.
    pub data: Option<AccessTotals>,
}

/// The totals of a recording's data accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessTotals {
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Mappings.
    pub mappings: u64,
    /// The CRC-32 of the payloads of all DATA chunks, one after the other.
    pub checksum: u32,
}

impl AccessTotals {
    pub(crate) fn count_payload(&mut self, payload: &[u8]) {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.checksum);
        hasher.update(payload);
        self.checksum = hasher.finalize();
    }
}

impl RecordingTotals {
    /// Instructions reached in the kernel and in user mode.
    pub fn instructions(&self) -> u64 {
        self.kernel_instructions + self.user_instructions
    }
}
