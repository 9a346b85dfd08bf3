//! The properties of an instruction that the recorder needs: whether it can leave its translation,
//! repeats, or is a marker. Input: bytes. This module knows nothing of QEMU. An unknown instruction
//! counts as the case that costs time. It never counts as a case that loses exactness.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};

/// The markers with a meaning. All other numbers are events.
pub(crate) const MARKER_BEGIN: u16 = 1;
pub(crate) const MARKER_END: u16 = 2;
pub(crate) const MARKER_FAILED: u16 = 3;

/// The marker's number, if these bytes are the marker `nopl 0x4b4cNNNN(%rax,%rax,1)`.
pub(crate) fn marker(code: &[u8]) -> Option<u16> {
    match *code {
        [0x0f, 0x1f, 0x84, 0x00, low, high, 0x4c, 0x4b] => Some(u16::from_le_bytes([low, high])),
        _ => None,
    }
}

/// The properties of an instruction that is not a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InstructionTraits {
    /// The instruction can raise an exception, or make QEMU leave the translation before the next
    /// instruction.
    pub may_leave: bool,
    /// The instruction is a string instruction with a repeat prefix.
    pub repeats: bool,
    /// The instruction can drop mappings of pages. Only after such an instruction can the same
    /// address have another physical address (Intel SDM volume 3, section 4.10.4.1).
    pub drops_mappings: bool,
    /// The instruction reads the processor's clock (TSC).
    pub reads_clock: bool,
}

/// Decodes one instruction in 64-bit mode.
pub(crate) fn traits(code: &[u8]) -> InstructionTraits {
    let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
    let repeats = instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix());
    InstructionTraits {
        may_leave: !cannot_leave(&instruction),
        repeats,
        drops_mappings: drops_mappings(&instruction),
        reads_clock: matches!(instruction.mnemonic(), Mnemonic::Rdtsc | Mnemonic::Rdtscp),
    }
}

fn drops_mappings(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Invlpg | Mnemonic::Invlpga | Mnemonic::Invpcid | Mnemonic::Invlpgb => true,
        Mnemonic::Mov => instruction.op0_register().is_cr(),
        _ => false,
    }
}

/// Whether the instruction only computes from general registers and immediates. QEMU translates
/// such an instruction to code that cannot leave.
fn cannot_leave(instruction: &Instruction) -> bool {
    if instruction.has_lock_prefix() {
        return false;
    }
    match instruction.mnemonic() {
        // These instructions name memory and do not access it.
        Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Lea => true,
        mnemonic => {
            only_computes(mnemonic) && (0..instruction.op_count()).all(|i| in_core(instruction, i))
        }
    }
}

/// Whether an operand is a general register or an immediate.
fn in_core(instruction: &Instruction, operand: u32) -> bool {
    match instruction.op_kind(operand) {
        OpKind::Register => instruction.op_register(operand).is_gpr(),
        OpKind::Immediate8
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => true,
        _ => false,
    }
}

/// The instructions that only compute, whatever their operands. This is a list of known
/// instructions, because the rest of x86 is long.
fn only_computes(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Mov
            | M::Movzx
            | M::Movsx
            | M::Movsxd
            | M::Xchg
            | M::Bswap
            | M::Cbw
            | M::Cwde
            | M::Cdqe
            | M::Cwd
            | M::Cdq
            | M::Cqo
            | M::Add
            | M::Adc
            | M::Sub
            | M::Sbb
            | M::Cmp
            | M::Inc
            | M::Dec
            | M::Neg
            | M::Imul
            | M::Mul
            | M::And
            | M::Or
            | M::Xor
            | M::Not
            | M::Test
            | M::Shl
            | M::Sal
            | M::Shr
            | M::Sar
            | M::Rol
            | M::Ror
            | M::Shld
            | M::Shrd
            | M::Bt
            | M::Bts
            | M::Btr
            | M::Btc
            | M::Bsf
            | M::Bsr
            | M::Tzcnt
            | M::Lzcnt
            | M::Popcnt
            | M::Shlx
            | M::Shrx
            | M::Sarx
            | M::Rorx
            | M::Andn
            | M::Clc
            | M::Stc
            | M::Cmc
            | M::Cld
            | M::Std
            | M::Seta
            | M::Setae
            | M::Setb
            | M::Setbe
            | M::Sete
            | M::Setne
            | M::Setg
            | M::Setge
            | M::Setl
            | M::Setle
            | M::Sets
            | M::Setns
            | M::Seto
            | M::Setno
            | M::Setp
            | M::Setnp
            | M::Cmova
            | M::Cmovae
            | M::Cmovb
            | M::Cmovbe
            | M::Cmove
            | M::Cmovne
            | M::Cmovg
            | M::Cmovge
            | M::Cmovl
            | M::Cmovle
            | M::Cmovs
            | M::Cmovns
            | M::Cmovo
            | M::Cmovno
            | M::Cmovp
            | M::Cmovnp
    )
}

/// A store of a number before an instruction. With these stores, the progress shows where a
/// translation was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgressStore {
    /// The index of the instruction behind the store.
    pub before: usize,
    /// 0: from here on, every instruction is reached. Otherwise: the number of instructions reached
    /// if this one leaves.
    pub progress: u16,
}

/// Where to store progress in a translation. `may_leave` says for each instruction whether it can
/// leave.
///
/// Progress is 0 when a translation begins. It must be 0 again when the translation has reached its
/// last instruction. An instruction that can leave stores its number, counted from 1, before it
/// begins. The instruction behind the last of these stores 0. The last instruction of the
/// translation needs no store: when it has begun, all are reached.
pub(crate) fn progress_stores(may_leave: &[bool]) -> Vec<ProgressStore> {
    let inner = &may_leave[..may_leave.len().saturating_sub(1)];
    let leaving = inner.iter().enumerate().filter(|&(_, &leaves)| leaves).map(|(i, _)| i);
    let mut stores: Vec<_> =
        leaving.map(|i| ProgressStore { before: i, progress: i as u16 + 1 }).collect();
    if let Some(last) = stores.last() {
        stores.push(ProgressStore { before: last.before + 1, progress: 0 });
    }
    stores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_recognized_by_their_bytes() {
        assert_eq!(marker(&[0x0f, 0x1f, 0x84, 0x00, 0x02, 0x00, 0x4c, 0x4b]), Some(2));
        assert_eq!(marker(&[0x0f, 0x1f, 0x84, 0x00, 0x34, 0x12, 0x4c, 0x4b]), Some(0x1234));
        assert_eq!(marker(&[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00]), None);
        assert_eq!(marker(&[0x0f, 0x1f, 0x84, 0x00, 0x02, 0x00, 0x4c]), None);
    }

    #[test]
    fn only_known_instructions_cannot_leave() {
        let stays: &[&[u8]] = &[
            &[0x48, 0x89, 0xe5],                               // mov rbp, rsp
            &[0x48, 0x83, 0xec, 0x10],                         // sub rsp, 16
            &[0x48, 0x8d, 0x44, 0x24, 0x08],                   // lea rax, [rsp+8]
            &[0xf3, 0x0f, 0x1e, 0xfa],                         // endbr64
            &[0x0f, 0x1f, 0x44, 0x00, 0x00],                   // nop [rax+rax]
            &[0x0f, 0x1f, 0x84, 0x00, 0x02, 0x00, 0x4c, 0x4b], // marker 2
            &[0x31, 0xc0],                                     // xor eax, eax
            &[0x48, 0xc1, 0xe0, 0x04],                         // shl rax, 4
            &[0x0f, 0x94, 0xc0],                               // sete al
            &[0x48, 0x0f, 0x44, 0xc1],                         // cmove rax, rcx
            &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8],             // mov rax, imm64
        ];
        for code in stays {
            assert!(!traits(code).may_leave, "{code:02x?}");
        }
        let leaves: &[&[u8]] = &[
            &[0x48, 0x8b, 0x45, 0x00],          // mov rax, [rbp]
            &[0x50],                            // push rax
            &[0xc3],                            // ret
            &[0xe8, 0, 0, 0, 0],                // call
            &[0x48, 0xf7, 0xf1],                // div rcx
            &[0x0f, 0x22, 0xd8],                // mov cr3, rax
            &[0x8e, 0xd8],                      // mov ds, eax
            &[0x0f, 0x0b],                      // ud2
            &[0x0f, 0x05],                      // syscall
            &[0xec],                            // in al, dx
            &[0xfa],                            // cli
            &[0x0f, 0x31],                      // rdtsc
            &[0x0f, 0x58, 0xc1],                // addps xmm0, xmm1
            &[0xf0, 0x48, 0x0f, 0xba, 0x28, 0], // lock bts [rax], 0
            &[0xf3, 0x48, 0xab],                // rep stosq
            &[0xff, 0xff],                      // no instruction
            &[],
        ];
        for code in leaves {
            assert!(traits(code).may_leave, "{code:02x?}");
        }
    }

    #[test]
    fn instructions_that_drop_mappings_are_recognized() {
        assert!(traits(&[0x0f, 0x22, 0xd8]).drops_mappings, "mov cr3, rax");
        assert!(traits(&[0x0f, 0x22, 0xe0]).drops_mappings, "mov cr4, rax");
        assert!(traits(&[0x0f, 0x01, 0x38]).drops_mappings, "invlpg [rax]");
        assert!(traits(&[0x66, 0x0f, 0x38, 0x82, 0x08]).drops_mappings, "invpcid rcx, [rax]");
        assert!(!traits(&[0x0f, 0x20, 0xd8]).drops_mappings, "mov rax, cr3");
        assert!(!traits(&[0x48, 0x89, 0xe5]).drops_mappings, "mov rbp, rsp");
    }

    #[test]
    fn only_string_instructions_repeat() {
        assert!(traits(&[0xf3, 0xa4]).repeats, "rep movsb");
        assert!(traits(&[0xf2, 0xae]).repeats, "repne scasb");
        assert!(!traits(&[0xa4]).repeats, "movsb");
        assert!(!traits(&[0xf3, 0x90]).repeats, "pause");
        assert!(!traits(&[0xf3, 0xc3]).repeats, "rep ret");
        assert!(!traits(&[0xf3, 0x0f, 0x1e, 0xfa]).repeats, "endbr64");
    }

    /// Runs every translation of up to eight instructions: to its end, and to each instruction that
    /// can leave.
    #[test]
    fn progress_shows_where_a_translation_was_left() {
        for size in 1..=8 {
            for pattern in 0..1u32 << size {
                let may_leave: Vec<bool> = (0..size).map(|i| pattern >> i & 1 == 1).collect();
                let stores = progress_stores(&may_leave);
                let run_to = |last: usize| {
                    let done = stores.iter().filter(|store| store.before <= last);
                    done.max_by_key(|store| store.before)
                        .map_or(0, |store| usize::from(store.progress))
                };
                for leave_at in (0..size - 1).filter(|&i| may_leave[i]) {
                    assert_eq!(run_to(leave_at), leave_at + 1, "{may_leave:?}");
                }
                assert_eq!(run_to(size - 1), 0, "{may_leave:?}");
            }
        }
    }
}
