//! Torrellas' evaluation of a small recording, from counts to figures.

use super::{Area, CacheShape, CacheTest, Evaluator, OptimizationLevel, peaks};
use crate::application::{Application, recorded};
use crate::tests::guest::{GuestMemory, record};
use crate::{ReplayTrial, replay_trials};
use image::address::LinkAddr;
use image::place::CallPadding;
use image::{Block, BlockEnd, BuildId, Image, ImageFunction};
use profile::collect::{ExtraCounts, collect};
use trace::RecordingReader;

const K: u64 = 0xffff_ffff_8100_0000;
/// The bytes of the paper's cache. Code at this distance conflicts in it.
const APART: u64 = 8192;
const BYTES: u32 = 32;
const ROUNDS: u64 = 300;

/// Functions of one block each, from `K` to `K + APART`. The first jumps to the last; the others
/// never run.
fn image() -> Image {
    let count = APART as u32 / BYTES + 1;
    let at = |number: u32| LinkAddr(K + u64::from(number * BYTES));
    let end = |number| if number == 0 { BlockEnd::Jump(at(count - 1)) } else { BlockEnd::Stop };
    let block = |number| Block {
        addr: at(number),
        size: BYTES,
        end: end(number),
        glued: false,
        patched: false,
    };
    let function = |number| ImageFunction {
        name: format!("f{number}"),
        addr: at(number),
        size: BYTES.into(),
        blocks: number..number + 1,
        section: ".text".into(),
        stays: None,
    };
    Image {
        build_id: BuildId("0a".into()),
        entry_padding: 0,
        call_padding: CallPadding::Kept,
        entry_alignment: 1,
        functions: (0..count).map(function).collect(),
        blocks: (0..count).map(block).collect(),
        modules: Vec::new(),
    }
}

/// A user loop of two conflicting parts makes system calls. Each system call runs the first
/// function and the last.
fn recording() -> Vec<u8> {
    const NOP: [u8; 9] = [0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
    let mut memory = GuestMemory::default();
    let mut round = Vec::new();
    let mut put = |addr: u64, code: &[&[u8]]| {
        code.iter().fold(addr, |addr, instruction| {
            round.push(addr);
            memory.put(addr, instruction)
        })
    };
    put(0x40_1800, &[&[0x90], &[0x0f, 0x05]]); // nop; syscall
    let jump = [&[0xe9][..], &(APART as u32 - BYTES).to_le_bytes()].concat();
    put(K, &[&NOP, &NOP, &NOP, &jump]);
    put(K + APART, &[&NOP, &NOP, &NOP, &[0x66, 0x90], &[0x48, 0x0f, 0x07]]); // …; sysret
    let back = -(APART as i32) - 13;
    put(0x40_1803, &[&[&[0xe9][..], &(APART as u32).to_le_bytes()].concat()]);
    put(0x40_1808 + APART, &[&[&[0xe9][..], &back.to_le_bytes()].concat()]); // jmp back
    record(&memory, &round.repeat(ROUNDS as usize), 100)
}

#[test]
fn two_functions_that_conflict_miss_each_time_until_they_are_laid_out() {
    let (image, recording) = (image(), recording());
    let machine = machines::find("torrellas-8k").unwrap().model;
    let reader = || RecordingReader::new(&*recording).unwrap();
    let profile = collect(reader(), &image, ExtraCounts::None).unwrap();
    let user_code = recorded(RecordingReader::new(&*recording).unwrap()).unwrap();
    let application = Application::new(&[user_code]).unwrap();
    let evaluator = Evaluator::new(&image, &machine, &profile, &application).unwrap();
    let tests = evaluator.tests().unwrap();
    let trials: Vec<ReplayTrial<'_>> = tests.iter().map(CacheTest::trials).collect();
    let replayed = replay_trials(RecordingReader::new(&*recording).unwrap(), &trials).unwrap();
    let found = evaluator.evaluated(&tests, &replayed, &profile);

    let own = CacheShape::of(&machine);
    let kernel = |level, cache| found.trial(level, Area::Usual, cache).unwrap().misses.kernel;
    assert_eq!(kernel(OptimizationLevel::Base, own).total(), 2 * ROUNDS);
    // With two ways, and in a cache that holds all code between the two functions, each function
    // misses once.
    assert_eq!(kernel(OptimizationLevel::Base, own.with_ways(2)).total(), 2);
    assert_eq!(kernel(OptimizationLevel::Base, own.sized(2 * APART)).total(), 2);
    for level in [
        OptimizationLevel::ChangHwu,
        OptimizationLevel::OptS,
        OptimizationLevel::OptL,
        OptimizationLevel::OptA,
        OptimizationLevel::Call,
    ] {
        let misses = kernel(level, own);
        assert_eq!(misses.total(), misses.cold, "{level:?}: {misses:?}");
    }
    let user = |level| found.trial(level, Area::Usual, own).unwrap().misses.user;
    for level in [OptimizationLevel::OptA, OptimizationLevel::Call] {
        assert_eq!((user(level).total(), user(level).cold), (1, 1), "{level:?}");
    }
    assert_eq!(user(OptimizationLevel::OptS).total(), 2 * ROUNDS);
    // In its own half, the kernel's small code conflicts with nothing; user code is alone in the
    // other half. Lines with a place of their own miss once.
    for level in [OptimizationLevel::Separate, OptimizationLevel::Reserved] {
        let trial = found.trial(level, Area::Usual, own).unwrap();
        assert_eq!((trial.misses.kernel.total(), trial.misses.kernel.cold), (2, 2), "{level:?}");
        assert_eq!(trial.misses.user.total(), 1, "{level:?}");
    }
    assert_eq!(found.references.total(), 2 * ROUNDS * u64::from(BYTES));
    let (level, stretches) = &found.addresses[0];
    assert_eq!(
        (*level, stretches.len(), peaks(stretches)),
        (OptimizationLevel::Base, 2, (ROUNDS, 1))
    );
    assert_eq!(stretches[1].start, LinkAddr(K + APART));
    let (level, classes) = found.classes[0];
    assert_eq!(
        (level, classes.total(), classes.no_class),
        (OptimizationLevel::Base, 2 * ROUNDS, 0)
    );
}
