//! Which pairs of instructions a processor turns into one uop (a comparison and the conditional
//! jump behind it), and which pairs take one slot (a move and the computation behind it).
//!
//! Intel: "64 and IA-32 Architectures Optimization Reference Manual" (248966), macro-fusion. AMD:
//! "Software Optimization Guide for the AMD Zen 4 Microarchitecture" (57647), branch fusion.
//!
//! Input: two instructions. Output: whether they become one uop. This module knows no ports.

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register};

/// The rules of a maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fusion {
    Intel,
    Amd,
    /// Also of a move between registers and a computation that changes its result. Measured on a
    /// Zen 5 by `cargo xtask judge-processor`, `throughput/move-and-add`.
    AmdMoves,
    /// No pair becomes one uop.
    Never,
}

impl Fusion {
    pub(crate) fn of_name(name: &str) -> Option<Fusion> {
        match name {
            "intel" => Some(Fusion::Intel),
            "amd" => Some(Fusion::Amd),
            "amd-moves" => Some(Fusion::AmdMoves),
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
                Fusion::Amd | Fusion::AmdMoves,
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

    /// Whether the move `first` and `second` take one slot. On a Zen 5, `mov` with `add`, `sub`,
    /// `and`, `or`, `xor`, `inc`, `dec` or `not` does, twelve instructions a cycle. With `neg`, a
    /// shift, a product, `lea`, a comparison or an operand in memory it does not.
    pub(crate) fn joins(self, first: &Instruction, second: &Instruction) -> bool {
        use Mnemonic::{Add, And, Dec, Inc, Mov, Not, Or, Sub, Xor};
        let whole = |register: Register| register.is_gpr32() || register.is_gpr64();
        let to = first.op0_register();
        self == Fusion::AmdMoves
            && first.mnemonic() == Mov
            && whole(to)
            && whole(first.op1_register())
            && matches!(second.mnemonic(), Add | Sub | And | Or | Xor | Inc | Dec | Not)
            && second.op0_register() == to
            && second.op1_kind() != OpKind::Memory
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

    #[test]
    fn a_move_joins_what_changes_its_result() {
        let decode = |bytes: &[u8]| Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        let joins = |fusion: Fusion, first: &[u8], second: &[u8]| {
            fusion.joins(&decode(first), &decode(second))
        };
        let mov: &[u8] = &[0x48, 0x89, 0xc8]; // mov rax, rcx
        // add rax, rdx; and rax, 15; inc rax; not rax; shl rax, 3; add rcx, rdx; add rax, [rsi];
        // add [rax], rdx; cmp rax, rdx
        let cases: [(&[u8], bool); 9] = [
            (&[0x48, 0x01, 0xd0], true),
            (&[0x48, 0x83, 0xe0, 0x0f], true),
            (&[0x48, 0xff, 0xc0], true),
            (&[0x48, 0xf7, 0xd0], true),
            (&[0x48, 0xc1, 0xe0, 0x03], false),
            (&[0x48, 0x01, 0xd1], false),
            (&[0x48, 0x03, 0x06], false),
            (&[0x48, 0x01, 0x10], false),
            (&[0x48, 0x39, 0xd0], false),
        ];
        for (second, expected) in cases {
            assert_eq!(joins(Fusion::AmdMoves, mov, second), expected, "{second:02x?}");
            assert!(!joins(Fusion::Amd, mov, second));
        }
        // mov eax, 1; mov rax, [rsi]
        for first in [&[0xb8, 1, 0, 0, 0][..], &[0x48, 0x8b, 0x06]] {
            assert!(!joins(Fusion::AmdMoves, first, &[0x48, 0x01, 0xd0]));
        }
    }
}
