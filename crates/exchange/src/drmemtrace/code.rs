//! The parts of a translation's instructions, and of their data accesses, that are written.
//!
//! Input: translations and accesses as recorded. Output: encodings, and virtual and physical
//! addresses.

use execution::code::TranslatedCode;
use execution::data::{DataAccess, DataFlow};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};
use trace::Translation;

/// An instruction's bytes, and their number in the last byte.
pub(super) type Encoding = [u8; 16];

/// The parts of an instruction that are written.
#[derive(Clone, Copy)]
pub(super) struct CodedInstruction {
    pub encoding: Encoding,
    /// The accesses in each repetition of a string instruction; 0: it does not repeat.
    pub each: u8,
}

impl CodedInstruction {
    pub(super) fn new(bytes: &[u8], decoded: &Instruction) -> CodedInstruction {
        let mut encoding = [0; 16];
        let count = bytes.len().min(15);
        encoding[..count].copy_from_slice(&bytes[..count]);
        encoding[15] = count as u8;
        let repeats = decoded.is_string_instruction()
            && (decoded.has_rep_prefix() || decoded.has_repne_prefix());
        let both = matches!(
            decoded.mnemonic(),
            Mnemonic::Movsb
                | Mnemonic::Movsw
                | Mnemonic::Movsd
                | Mnemonic::Movsq
                | Mnemonic::Cmpsb
                | Mnemonic::Cmpsw
                | Mnemonic::Cmpsd
                | Mnemonic::Cmpsq
        );
        CodedInstruction { encoding, each: if repeats { 1 + u8::from(both) } else { 0 } }
    }

    pub(super) fn length(&self) -> u16 {
        self.encoding[15].into()
    }
}

/// A translation's code as it is written.
pub(super) struct CodedTranslation {
    pub code: TranslatedCode,
    pub instructions: Box<[CodedInstruction]>,
    /// Whether the last instruction is `iret`, which DynamoRIO treats as a return, unlike `sysret`.
    pub ends_in_iret: bool,
}

impl CodedTranslation {
    pub(super) fn new(translation: &Translation, code: &TranslatedCode) -> CodedTranslation {
        let mut ends_in_iret = false;
        let instructions = translation.code_by_instruction().map(|(at, bytes)| {
            let decoded = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE).decode();
            ends_in_iret = matches!(decoded.code(), Code::Iretq | Code::Iretd | Code::Iretw);
            CodedInstruction::new(bytes, &decoded)
        });
        let instructions = instructions.collect();
        CodedTranslation { code: code.clone(), instructions, ends_in_iret }
    }
}

/// A data access.
#[derive(Clone, Copy)]
pub(super) struct TracedAccess {
    pub address: u64,
    pub physical: u64,
    pub size: u8,
    pub is_store: bool,
}

impl TracedAccess {
    pub(super) fn of(access: &DataAccess, data: Option<&DataFlow>) -> TracedAccess {
        TracedAccess {
            address: data.map_or(0, |data| data.virtual_address(access)),
            physical: access.physical.0,
            size: access.size,
            is_store: access.is_store,
        }
    }
}
