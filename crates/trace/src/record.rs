//! The records of a recording: its header, its definitions, its totals. Plain values; nothing here
//! reads or writes.

use crate::{RunAddr, TaskId, TranslationId};
use std::borrow::Cow;

/// What a recording says about itself before anything was executed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The GNU build id of the kernel that ran, lower-case hex; empty when it is not known.
    pub build_id: String,
    /// The name of the workload.
    pub workload: String,
    /// The seed that the machine was started with.
    pub seed: u64,
    /// Everything else that the result depends on, as (key, value), in the order in which it was
    /// given.
    pub conditions: Vec<(String, String)>,
}

/// A run of instructions that QEMU translated at once, with the bytes it had then. Code that is
/// patched at run time is a new translation at the same address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    pub id: TranslationId,
    /// The address of the first instruction, as it was when the code was translated. Kernel
    /// addresses are exact. A page of a user's position-independent code that several processes map
    /// at different addresses has the address of the first.
    pub addr: RunAddr,
    /// Bytes of each instruction, in order; 1 to [`Translation::MAX_INSTRUCTIONS`] of them, each 1
    /// to 15.
    pub lengths: Box<[u8]>,
    /// The code; as long as the sum of `lengths`.
    pub code: Box<[u8]>,
}

impl Translation {
    /// QEMU's TCG_MAX_INSNS.
    pub const MAX_INSTRUCTIONS: usize = 512;
    /// The longest instruction of x86-64 (Intel SDM volume 2, section 2.3.11).
    pub const MAX_LENGTH: u8 = 15;

    pub fn instructions(&self) -> u32 {
        self.lengths.len() as u32
    }

    pub fn is_kernel(&self) -> bool {
        self.addr.is_kernel()
    }

    /// Address and bytes of each instruction.
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

/// A task of the guest as it was when it was switched to or renamed. A task that changed its name
/// (execve) is a new one with the same pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub id: TaskId,
    pub pointer: TaskPointer,
    pub pid: Option<u32>,
    /// `task_struct.comm`, filled up with NUL.
    pub comm: [u8; 16],
}

impl Task {
    /// The task's name up to the first NUL; bytes that are not UTF-8 are replaced.
    pub fn name(&self) -> Cow<'_, str> {
        let end = self.comm.iter().position(|&byte| byte == 0).unwrap_or(self.comm.len());
        String::from_utf8_lossy(&self.comm[..end])
    }
}

/// What a whole recording amounts to; stands at its clean end. The reader has checked every number
/// against what it read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Instructions reached at kernel addresses.
    pub kernel_instructions: u64,
    /// Instructions reached at user addresses.
    pub user_instructions: u64,
    /// Executions of translations, those left midway included.
    pub executions: u64,
    /// Executions that were left midway.
    pub left: u64,
    /// Translations defined.
    pub translations: u64,
    /// Tasks defined.
    pub tasks: u64,
    /// Hash of all definitions and of all events, each in their order. Equal hashes: the same
    /// execution.
    pub hash: u64,
    /// `None`: the recording is one without data accesses.
    pub data: Option<DataTotals>,
}

/// What the data accesses of a recording amount to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataTotals {
    pub loads: u64,
    pub stores: u64,
    /// Mappings told.
    pub mappings: u64,
    /// CRC-32 of the payloads of all DATA chunks, one after the other.
    pub checksum: u32,
}

impl DataTotals {
    pub fn accesses(&self) -> u64 {
        self.loads + self.stores
    }

    pub(crate) fn count_payload(&mut self, payload: &[u8]) {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.checksum);
        hasher.update(payload);
        self.checksum = hasher.finalize();
    }
}

impl Totals {
    pub fn instructions(&self) -> u64 {
        self.kernel_instructions + self.user_instructions
    }
}
