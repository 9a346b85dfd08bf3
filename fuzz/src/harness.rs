//! What surrounds a target: its limits under a fuzzer, and the short pass under `cargo test`.
//!
//! Input: a target. Output: its failure as a panic. Runs no fuzzer itself.

use crate::targets::Target;
use layout::random::SplitMix64;
use std::sync::Once;

/// Processor time that one input may take under a fuzzer, in seconds. `cargo test` measures no
/// time.
const SECONDS: f64 = 1.0;

/// Gives one input to a target.
pub fn feed(target: &Target, input: &[u8]) {
    if !cfg!(fuzzing) {
        return (target.run)(input);
    }
    stay_on_this_thread();
    let before = processor_time();
    (target.run)(input);
    let seconds = processor_time() - before;
    assert!(seconds <= SECONDS, "{} took {seconds:.1} s of processor time", target.name);
}

/// A fuzzer runs one input at a time, and an input is small: handing it to other threads would only
/// cost time.
fn stay_on_this_thread() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread();
        pool.build_global().expect("the first use of rayon");
    });
}

fn processor_time() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// The target's seeds as they are, and damaged in `rounds` ways: the same ones on every run.
pub fn short_pass(target: &Target, rounds: u32) {
    let seeds = (target.seeds)();
    seeds.iter().for_each(|seed| feed(target, seed));
    let mut random = SplitMix64::new(rounds.into());
    for _ in 0..rounds {
        let mut input = seeds[random.below(seeds.len() as u64) as usize].clone();
        for _ in 0..=random.below(4) {
            damage(&mut input, &mut random);
        }
        feed(target, &input);
    }
}

/// Cuts the input, puts a byte into it, takes some out, repeats some, or changes one.
fn damage(input: &mut Vec<u8>, random: &mut SplitMix64) {
    let mut below = |limit: usize| random.below(limit as u64) as usize;
    let at = below(input.len() + 1);
    match below(8) {
        0 => input.truncate(at),
        1 => input.insert(at, below(256) as u8),
        2 => drop(input.drain(at..(at + below(16)).min(input.len()))),
        3 => {
            let again = input[at..(at + below(64)).min(input.len())].to_vec();
            input.splice(at..at, again);
        }
        4 if at < input.len() => input[at] = below(256) as u8,
        _ if at < input.len() => input[at] ^= 1 << below(8),
        _ => {}
    }
}
