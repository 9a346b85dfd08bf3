//! Which pairs of instructions a processor makes one uop of: a comparison and the conditional jump
//! behind it.
//!
//! Intel: "64 and IA-32 Architectures Optimization Reference Manual" (248966), macro-fusion. AMD:
//! "Software Optimization Guide for the AMD Zen 4 Microarchitecture" (57647), branch fusion.
//!
//! Input: two instructions. Output: whether they become one uop. This module knows no ports.

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind};

/// The rules of a maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fusion {
    Intel,
    Amd,
    /// No pair becomes one uop.
    Never,
}

impl Fusion {
    pub(crate) fn of_name(name: &str) -> Option<Fusion> {
        match name {
            "intel" => Some(Fusion::Intel),
            "amd" => Some(Fusion::Amd),
            "none" => Some(Fusion::Never),
            _ => None,
        }
    }

    /// Whether `first` and the conditional jump `second` become one uop.
    pub(crate) fn fuses(self, first: &Instruction, second: &Instruction) -> bool {
        use ConditionCode as Condition;
        let condition = second.condition_code();
        if condition == Condition::None || !second.is_jcc_short_or_near() {
            return false;
        }
        let operands = [first.op0_kind(), first.op1_kind()];
        let memory = operands.contains(&OpKind::Memory);
        let constant = first.op_count() == 2 && first.op1_kind() != OpKind::Register && !memory
            || first.op_count() == 2 && memory && is_immediate(first.op1_kind());
        // A constant beside an operand in memory keeps a pair apart, and so does a result in
        // memory.
        let apart = memory && constant;
        let compares = matches!(first.mnemonic(), Mnemonic::Cmp | Mnemonic::Test);
        if apart || !compares && first.op0_kind() == OpKind::Memory {
            return false;
        }
        match (self, first.mnemonic()) {
            (Fusion::Never, _) => false,
            (_, Mnemonic::Test) => true,
            (Fusion::Intel, Mnemonic::And) => true,
            (Fusion::Intel, Mnemonic::Cmp | Mnemonic::Add | Mnemonic::Sub) => !matches!(
                condition,
                Condition::s
                    | Condition::ns
                    | Condition::p
                    | Condition::np
                    | Condition::o
                    | Condition::no
            ),
            (Fusion::Intel, Mnemonic::Inc | Mnemonic::Dec) => matches!(
                condition,
                Condition::e
                    | Condition::ne
                    | Condition::l
                    | Condition::ge
                    | Condition::le
                    | Condition::g
            ),
            (
                Fusion::Amd,
                Mnemonic::Cmp
                | Mnemonic::Add
                | Mnemonic::Sub
                | Mnemonic::And
                | Mnemonic::Or
                | Mnemonic::Xor
                | Mnemonic::Inc
                | Mnemonic::Dec,
            ) => true,
            _ => false,
        }
    }
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn pairs_follow_the_makers_rules() {
        let decode = |bytes: &[u8]| Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        let (jne, js) = (decode(&[0x75, 0]), decode(&[0x78, 0]));
        // test eax, eax; cmp rax, rcx; cmp rax, [rbx]; cmp [rbx], 1; or eax, ecx; inc eax; add
        // [rbx], eax; mov eax, ecx
        let cases: [(&[u8], [bool; 4]); 8] = [
            (&[0x85, 0xc0], [true, true, true, true]),
            (&[0x48, 0x39, 0xc8], [true, false, true, true]),
            (&[0x48, 0x3b, 0x03], [true, false, true, true]),
            (&[0x83, 0x3b, 0x01], [false; 4]),
            (&[0x09, 0xc8], [false, false, true, true]),
            (&[0xff, 0xc0], [true, false, true, true]),
            (&[0x01, 0x03], [false; 4]),
            (&[0x89, 0xc8], [false; 4]),
        ];
        for (bytes, expected) in cases {
            let first = decode(bytes);
            let fuses = |fusion: Fusion, jump| fusion.fuses(&first, jump);
            let found = [
                fuses(Fusion::Intel, &jne),
                fuses(Fusion::Intel, &js),
                fuses(Fusion::Amd, &jne),
                fuses(Fusion::Amd, &js),
            ];
            assert_eq!(found, expected, "{bytes:02x?}");
        }
        assert!(!Fusion::Amd.fuses(&decode(&[0x85, 0xc0]), &decode(&[0xeb, 0])));
    }
}
