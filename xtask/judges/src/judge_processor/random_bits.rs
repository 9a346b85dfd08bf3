//! The points of a branch that follows random bits, which nothing predicts, and of code before it
//! that says where it goes, which the predictor of directions may see.
//!
//! Output: points.

use super::point::{Memory, Point, repeated};

/// How often the branch of `mispredict/random` is executed in a run: more often than any predictor
/// remembers.
const RANDOM: u64 = 200_000;

const MISPREDICT: &str = "mispredict";
/// The points that show what the predictor of directions sees of the branches before.
const HISTORY_PATH: &str = "history-path";
const HISTORY_OUTCOME: &str = "history-outcome";

/// A branch that nothing predicts.
fn mispredict() -> Point {
    on_random_bits(format!("{MISPREDICT}/random"), "")
}

/// An outcome or a jump that says where the branch behind `jumps` other jumps goes: of a
/// conditional branch that takes one of two jumps alike; or of two jumps that differ in bit 2 of
/// the address of their last byte.
fn history(curve: &str, jumps: u64) -> Point {
    let says = match curve {
        HISTORY_OUTCOME => {
            ".balign 64\ntest $0x100000, %ecx\n.byte 0x0f, 0x85\n.long 3f - . - 4\n\
             .balign 16\nnop\njmp.d32 3f\n.balign 64\n3:"
        }
        _ => {
            "mov %ecx, %edx\nshr $14, %edx\nand $64, %edx\nlea 4f(%rip), %r8\nadd %rdx, %r8\n\
             jmp *%r8\n.balign 128\n4:\njmp.d32 3f\n.balign 64\n.nops 4\njmp.d32 3f\n\
             .balign 64\n3:"
        }
    };
    let others = repeated(jumps, ".balign 32\njmp 3f\n3:");
    on_random_bits(format!("{curve}/{jumps}"), &format!("{says}\n{others}\n"))
}

/// A branch that follows pseudorandom bits (xorshift: Marsaglia, "Xorshift RNGs", 2003), half of
/// them 1, and before it `code`, which keeps %rax and %rcx.
fn on_random_bits(name: String, code: &str) -> Point {
    let mut state = 88_172_645_463_325_252_u64;
    let mut ones = 0;
    for _ in 0..RANDOM {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ones += state >> 20 & 1;
    }
    let shifted = |shift: &str| format!("mov %rcx, %rdx\n{shift}, %rdx\nxor %rdx, %rcx\n");
    let random = ["shl $13", "shr $7", "shl $17"].map(shifted).concat();
    Point {
        name,
        size: None,
        operations: RANDOM,
        iterations: RANDOM,
        memory: Memory::None,
        expected: ones,
        before: "xor %eax, %eax\nmov $88172645463325252, %rcx".to_owned(),
        body: format!("{random}{code}test $0x100000, %ecx\nje 2f\ninc %rax\n2:"),
        after: String::new(),
    }
}

/// All points of random bits.
pub(super) fn points() -> impl Iterator<Item = Point> {
    let path = [44, 48].map(|jumps| history(HISTORY_PATH, jumps));
    let outcome = [64, 128].map(|jumps| history(HISTORY_OUTCOME, jumps));
    std::iter::once(mispredict()).chain(path).chain(outcome)
}

/// Whether a point is of these.
pub(super) fn has(curve: &str) -> bool {
    [MISPREDICT, HISTORY_PATH, HISTORY_OUTCOME].contains(&curve)
}
