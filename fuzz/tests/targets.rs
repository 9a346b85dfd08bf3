//! Every target as a test: `cargo test` replays its corpus, its seeds and some damaged ones;
//! `cargo xtask fuzz` lets a coverage-guided fuzzer look for more.

// In this binary, because one without a target cannot be linked for a fuzzer.
mod damaged_elf;

use kernlane_fuzz::limits::Bounded;
use kernlane_fuzz::{harness, targets, text_files};

#[global_allocator]
static MEMORY: Bounded = Bounded;

/// Damaged seeds of each target under `cargo test`.
const ROUNDS: u32 = 1000;

macro_rules! tests {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(#[test]
        fn $name() {
            let target = targets::find(stringify!($name)).expect("the target is in the list");
            if !cfg!(fuzzing) {
                harness::short_pass(target, ROUNDS);
            }
            bolero::check!()
                .with_iterations(ROUNDS as usize)
                .with_max_len(targets::LONGEST)
                .for_each(|input: &[u8]| harness::feed(target, input));
        })*
    };
}

tests! {
    counters layouts maps btf perf_text sample_profiles bolt_text profiles results perf_data
    import_files recording_payloads recordings boot_images workloads programs container_images
    machines annotations linked_kernels vmlinux_files objects modules checked_kernels kernel_tables
    checked_tables relinked
}

#[test]
fn every_target_is_a_test() {
    let listed: Vec<&str> = targets::ALL.iter().map(|target| target.name).collect();
    assert_eq!(NAMES, listed);
}

#[test]
fn a_wrong_checksum_becomes_the_right_one() {
    // printf 'abc\n' | sha256sum
    let sum = "edeaaff3f1774ad2888673770c6d64097e391bc362d7d6fb34982ddf0efd18cb";
    let sealed = |text: &'static str| text_files::sealed(text.as_bytes()).unwrap();
    assert_eq!(sealed("abc\nsha256 x\n"), format!("abc\nsha256 {sum}\n"));
    assert_eq!(sealed("abc\n\"sha256\":\"x\"}"), format!("abc\n\"sha256\":\"{sum}\"}}\n"));
    assert_eq!(sealed("abc\nend 1\n"), "abc\nend 1\n");
}
