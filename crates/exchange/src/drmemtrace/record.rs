//! A record of a DynamoRIO trace: 12 bytes, little-endian (`trace_entry_t` in DynamoRIO's
//! `clients/drcachesim/common/trace_entry.h`).
//!
//! ```text
//! byte 0     2     4                         12
//!      kind  size  address, number or bytes
//! ```
//!
//! *size* is the bytes of an instruction, an access or a part of an encoding, and the kind of a
//! marker.
//!
//! Input: values. Output: bytes.

/// The bytes of a record.
pub(super) const RECORD_BYTES: usize = 12;

/// Kinds of records (`trace_type_t`).
pub(super) mod kind {
    pub(in super::super) const READ: u16 = 0;
    pub(in super::super) const WRITE: u16 = 1;
    pub(in super::super) const INSTRUCTION: u16 = 10;
    pub(in super::super) const JUMP: u16 = 11;
    pub(in super::super) const INDIRECT_JUMP: u16 = 12;
    pub(in super::super) const CALL: u16 = 14;
    pub(in super::super) const INDIRECT_CALL: u16 = 15;
    pub(in super::super) const RETURN: u16 = 16;
    pub(in super::super) const THREAD: u16 = 22;
    pub(in super::super) const PROCESS: u16 = 24;
    pub(in super::super) const HEADER: u16 = 25;
    pub(in super::super) const FOOTER: u16 = 26;
    pub(in super::super) const MARKER: u16 = 28;
    /// A string instruction repeats: nothing is fetched.
    pub(in super::super) const REPETITION: u16 = 29;
    pub(in super::super) const ENCODING: u16 = 47;
    /// A conditional jump.
    pub(in super::super) const TAKEN: u16 = 48;
    pub(in super::super) const UNTAKEN: u16 = 49;
}

/// Kinds of markers (`trace_marker_type_t`).
pub(super) mod marker {
    pub(in super::super) const KERNEL_EVENT: u16 = 0;
    pub(in super::super) const KERNEL_TRANSFER: u16 = 1;
    pub(in super::super) const TIMESTAMP: u16 = 2;
    pub(in super::super) const CPU: u16 = 3;
    pub(in super::super) const FILE_TYPE: u16 = 9;
    pub(in super::super) const CACHE_LINE_SIZE: u16 = 10;
    pub(in super::super) const VERSION: u16 = 12;
    pub(in super::super) const WINDOW: u16 = 14;
    pub(in super::super) const PHYSICAL_ADDRESS: u16 = 15;
    pub(in super::super) const VIRTUAL_ADDRESS: u16 = 17;
    pub(in super::super) const PAGE_SIZE: u16 = 18;
    pub(in super::super) const BRANCH_TARGET: u16 = 29;
    pub(in super::super) const HARDWARE_EVENT: u16 = 43;
    pub(in super::super) const HARDWARE_RETURN: u16 = 44;
}

/// Properties of a file (`offline_file_type_t`).
pub(super) mod file {
    pub(in super::super) const INSTRUCTIONS_ONLY: u64 = 0x4;
    pub(in super::super) const X86_64: u64 = 0x40;
    /// Some accesses are missing.
    pub(in super::super) const DATA_FILTERED: u64 = 0x100;
    pub(in super::super) const ENCODINGS: u64 = 0x200;
    /// The file is what one core executed, of all threads.
    pub(in super::super) const CORE: u64 = 0x1_0000;
    pub(in super::super) const WHOLE_SYSTEM: u64 = 0x4_0000;
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub kind: u16,
    pub size: u16,
    pub value: u64,
}

impl Record {
    pub(super) fn new(kind: u16, size: u16, value: u64) -> Record {
        Record { kind, size, value }
    }

    pub(super) fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..2].copy_from_slice(&self.kind.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.size.to_le_bytes());
        bytes[4..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_dynamorio_has_them() {
        let record = Record::new(kind::MARKER, marker::HARDWARE_EVENT, 0x0102_0304_0506_0708);
        assert_eq!(record.to_bytes(), [28, 0, 43, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
    }
}
