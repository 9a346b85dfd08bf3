//! A record of a ChampSim trace: 64 bytes, little-endian (`struct input_instr` in ChampSim's
//! `inc/trace_instruction.h`).
//!
//! ```text
//! byte 0    8          9      10               12            16             32
//!      ip   is branch  taken  registers: 2     4 that it     addresses: 2   4 that it
//!           0 or 1     0 or 1 that it writes   reads         that it stores loads
//! ```
//!
//! Input: values. Output: bytes.

/// The bytes of a record.
pub(super) const RECORD_BYTES: usize = 64;

/// A record. A register or an address of 0 means: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InstructionRecord {
    pub ip: u64,
    pub is_branch: bool,
    pub taken: bool,
    pub registers: TracedRegisters,
    pub stores: [u64; 2],
    pub loads: [u64; 4],
}

/// The registers of a record, by the numbers in [`super::instruction`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TracedRegisters {
    pub written: [u8; 2],
    pub read: [u8; 4],
}

impl TracedRegisters {
    /// The first two and the first four.
    pub(super) fn new(read: &[u8], written: &[u8]) -> TracedRegisters {
        let mut registers = TracedRegisters::default();
        registers.read.iter_mut().zip(read).for_each(|(slot, register)| *slot = *register);
        registers.written.iter_mut().zip(written).for_each(|(slot, register)| *slot = *register);
        registers
    }
}

impl InstructionRecord {
    pub(super) fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.ip.to_le_bytes());
        bytes[8] = self.is_branch.into();
        bytes[9] = self.taken.into();
        bytes[10..12].copy_from_slice(&self.registers.written);
        bytes[12..16].copy_from_slice(&self.registers.read);
        let addresses = self.stores.into_iter().chain(self.loads);
        for (slot, address) in bytes[16..].chunks_exact_mut(8).zip(addresses) {
            slot.copy_from_slice(&address.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_champsim_has_them() {
        let record = InstructionRecord {
            ip: 0x0102_0304_0506_0708,
            is_branch: true,
            taken: true,
            registers: TracedRegisters::new(&[26, 25], &[26, 6, 9]),
            stores: [0x11, 0x12],
            loads: [0x21, 0, 0, 0x24],
        };
        let bytes = record.to_bytes();
        assert_eq!(bytes[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[8..16], [1, 1, 26, 6, 26, 25, 0, 0]);
        let at = |offset: usize| bytes[offset];
        assert_eq!([16, 24, 32, 40, 48, 56].map(at), [0x11, 0x12, 0x21, 0, 0, 0x24]);
    }
}
