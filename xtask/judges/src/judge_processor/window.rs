//! The points that show how far a core looks ahead: a chain of multiplications, and instructions
//! behind it that wait for its result or for their retirement.
//!
//! ```text
//! chain, instructions, chain, instructions, …        each chain begins anew
//! ```
//!
//! As long as a structure holds all instructions behind a chain, the next chain runs at the same
//! time. One instruction more, and the chains run one after the other.

use super::point::{Memory, Point, repeated};

/// A curve: the multiplications of a chain, the instruction behind it, and how many of them.
struct Behind {
    curve: &'static str,
    chain: u64,
    /// The instruction with this number.
    instruction: fn(u64) -> String,
    sizes: &'static [u64],
}

/// How often the chain and what is behind it stand in the loop.
const BLOCKS: u64 = 4;
const ITERATIONS: u64 = 400;

fn register(number: u64) -> &'static str {
    ["%r8", "%r9", "%r10", "%r11"][number as usize % 4]
}

/// A place in the 512 bytes that all points use.
fn place(number: u64) -> u64 {
    8 * (number % 64)
}

const CURVES: [Behind; 5] = [
    // They wait for the chain's result, and only one ALU multiplies.
    Behind {
        curve: "waiting-multiply",
        chain: 20,
        instruction: |n| format!("imul $3, %rax, {}", register(n)),
        sizes: &[16, 20, 22, 24, 26, 28, 32],
    },
    Behind {
        curve: "waiting-load",
        chain: 20,
        instruction: |n| format!("mov (%rsi, %rax), {}", register(n)),
        sizes: &[32, 40, 44, 48, 52, 56, 64],
    },
    // They run at once, and wait until the chain has retired.
    Behind {
        curve: "results",
        chain: 50,
        instruction: |n| format!("cmp $1, {}", register(n)),
        sizes: &[200, 216, 224, 232, 240, 248, 256],
    },
    Behind {
        curve: "results-integer",
        chain: 50,
        instruction: |n| format!("mov $1, {}", register(n)),
        sizes: &[168, 176, 184, 192, 200, 208],
    },
    Behind {
        curve: "results-vector",
        chain: 50,
        instruction: |n| format!("movsd {}(%rsi), %xmm{}", place(n), 2 + n % 4),
        sizes: &[136, 144, 152, 160, 168, 176, 184, 192],
    },
];

impl Behind {
    fn point(&self, size: u64) -> Point {
        let behind: Vec<String> = (0..size).map(self.instruction).collect();
        let chain = repeated(self.chain, "mulsd %xmm1, %xmm0");
        let block = format!("xorps %xmm0, %xmm0\n{chain}\nmovq %xmm0, %rax\n{}", behind.join("\n"));
        Point {
            name: format!("{}/{size}", self.curve),
            size: Some(size),
            operations: BLOCKS * ITERATIONS,
            iterations: ITERATIONS,
            memory: Memory::Scratch,
            expected: 0,
            before: "xorps %xmm1, %xmm1".to_owned(),
            body: vec![block; BLOCKS as usize].join("\n"),
            after: "xor %eax, %eax".to_owned(),
        }
    }
}

/// All points of these curves.
pub(super) fn points() -> impl Iterator<Item = Point> {
    CURVES.iter().flat_map(|curve| curve.sizes.iter().map(|&size| curve.point(size)))
}

/// Whether a point is of these curves.
pub(super) fn has(curve: &str) -> bool {
    CURVES.iter().any(|it| it.curve == curve)
}
