//! Programs that compute and make no system call, after those of Nellans' table 3: the processor's
//! speed for user code, beside its speed for the kernel.

use crate::benchmark::{Benchmark, Prepared, Source, each};
use crate::random::Random;
use crate::sys::is;
use std::hint::black_box;

pub(super) const LIST: &[Benchmark] = &[
    Benchmark::new(
        "user/search",
        "a search with branches: all ways to put 9 queens on a board; after crafty",
        Source::NellansTable3,
        &[],
        |_, _| each(|| is("ways", queens(black_box(9), 0, 0, 0, 0), 352)),
        0,
    ),
    Benchmark::new(
        "user/place",
        "2,000 swaps of cells on a board, kept if wires get shorter; after twolf",
        Source::NellansTable3,
        &[],
        |_, _| always(|| place(black_box(2000))),
        0,
    ),
    Benchmark::new(
        "user/transform",
        "4,000 points through a matrix and a division each; after mesa",
        Source::NellansTable3,
        &[],
        |_, _| always(|| transform(black_box(4000))),
        0,
    ),
    Benchmark::new(
        "user/network",
        "64 neurons with 256 inputs each, and the strongest wins; after art",
        Source::NellansTable3,
        &[],
        |_, _| {
            let mut random = Random::new(1);
            let mut some = |count| (0..count).map(|_| share(&mut random)).collect::<Vec<f64>>();
            let (weights, inputs) = (some(64 * 256), some(256));
            always(move || strongest(black_box(&weights), black_box(&inputs)))
        },
        0,
    ),
];

/// Work that must give the same every time.
fn always(work: impl Fn() -> u64 + 'static) -> Prepared {
    let expected = work();
    each(move || is("the result", work(), expected))
}

/// From 0 to 1.
fn share(random: &mut Random) -> f64 {
    (random.number() >> 11) as f64 / (1u64 << 53) as f64
}

/// The ways to put queens on the rows from `row` on; the columns and diagonals that are taken are
/// bits.
fn queens(size: u32, row: u32, columns: u32, left: u32, right: u32) -> u32 {
    if row == size {
        return 1;
    }
    let mut free = !(columns | left | right) & ((1 << size) - 1);
    let mut ways = 0;
    while free != 0 {
        let queen = free & free.wrapping_neg();
        free ^= queen;
        ways += queens(size, row + 1, columns | queen, (left | queen) << 1, (right | queen) >> 1);
    }
    ways
}

/// Cells on a board of 64 by 64. Each is wired to the next; a swap that makes wires longer is taken
/// back.
fn place(swaps: usize) -> u64 {
    const CELLS: usize = 4096;
    let mut random = Random::new(2);
    let mut at: Vec<u32> = (0..CELLS as u32).collect();
    random.shuffle(&mut at);
    let length = |at: &[u32], cell: usize| {
        let [a, b] = [cell % CELLS, (cell + 1) % CELLS].map(|cell| at[cell]);
        u64::from((a / 64).abs_diff(b / 64) + (a % 64).abs_diff(b % 64))
    };
    let near = |at: &[u32], cell: usize| length(at, cell + CELLS - 1) + length(at, cell);
    for _ in 0..swaps {
        let [a, b] = [random.number(), random.number()].map(|n| n as usize % CELLS);
        let before = near(&at, a) + near(&at, b);
        at.swap(a, b);
        if near(&at, a) + near(&at, b) > before {
            at.swap(a, b);
        }
    }
    (0..CELLS).map(|cell| length(&at, cell)).sum()
}

/// Points through a matrix of perspective; the sum's bits.
fn transform(points: u32) -> u64 {
    const MATRIX: [[f32; 4]; 4] =
        [[0.8, 0.1, 0.0, 0.2], [0.0, 0.9, 0.1, 0.3], [0.1, 0.0, 0.7, 0.4], [0.0, 0.1, 0.2, 1.5]];
    let mut sums = [0f32; 3];
    for n in 0..points {
        let point = [n % 17, n % 31, n % 59].map(|n| n as f32);
        let [x, y, z, w] =
            MATRIX.map(|[a, b, c, d]| a * point[0] + b * point[1] + c * point[2] + d);
        for (sum, value) in sums.iter_mut().zip([x, y, z]) {
            *sum += value / w;
        }
    }
    u64::from(sums[0].to_bits()) << 32 | u64::from((sums[1] + sums[2]).to_bits())
}

/// The neuron whose inputs, weighted, are the most.
fn strongest(weights: &[f64], inputs: &[f64]) -> u64 {
    let sums = weights.chunks_exact(inputs.len()).map(|weights| {
        weights.iter().zip(inputs).map(|(weight, input)| weight * input).sum::<f64>()
    });
    let best = sums.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.map_or(u64::MAX, |(neuron, _)| neuron as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_compute_what_they_say() {
        assert_eq!([1, 4, 6, 8].map(|size| queens(size, 0, 0, 0, 0)), [1, 2, 4, 92]);
        assert!(place(20_000) < place(0), "swaps make wires shorter");
        // One point at the origin: the last column, divided by its last.
        let [x, yz] = [0.2 / 1.5, 0.3f32 / 1.5 + 0.4 / 1.5].map(f32::to_bits);
        assert_eq!(transform(1), u64::from(x) << 32 | u64::from(yz));
        assert_eq!(strongest(&[0.1, 0.2, 0.9, 0.8, 0.5, 0.1], &[1.0, 2.0]), 1);
    }
}
