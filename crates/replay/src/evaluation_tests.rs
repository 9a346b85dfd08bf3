//! Torrellas' evaluation of a small recording, from the counts to the figures.

use super::{Area, Evaluator, Level, Shape, Test, peaks};
use crate::application::{Application, recorded};
use crate::tests::guest::{Memory, record};
use crate::{Trials, replay_trials};
use execution::machine;
use execution::part::PartFilter;
use image::address::LinkAddr;
use image::{Block, BuildId, End, Function, Image};
use profile::collect::{Besides, collect};
use trace::RecordingReader;

const K: u64 = 0xffff_ffff_8100_0000;
/// As many bytes as the paper's cache: what lies so far apart conflicts in it.
const APART: u64 = 8192;
const BYTES: u32 = 32;
const ROUNDS: u64 = 300;

/// Functions of a block each from `K` to `APART` behind it; the first jumps to the last, the others
/// never run.
fn image() -> Image {
    let count = APART as u32 / BYTES + 1;
    let at = |number: u32| LinkAddr(K + u64::from(number * BYTES));
    let end = |number| if number == 0 { End::Jump(at(count - 1)) } else { End::Stop };
    let block = |number| Block { addr: at(number), size: BYTES, end: end(number), glued: false };
    let function = |number| Function {
        name: format!("f{number}"),
        addr: at(number),
        size: BYTES.into(),
        blocks: number..number + 1,
        section: ".text".into(),
        movable: true,
    };
    Image {
        build_id: BuildId("0a".into()),
        entry_padding: 0,
        entry_alignment: 1,
        functions: (0..count).map(function).collect(),
        blocks: (0..count).map(block).collect(),
    }
}

/// A user's loop of two parts that conflict makes system calls, each of which runs the first
/// function and the last.
fn recording() -> Vec<u8> {
    const NOP: [u8; 9] = [0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
    let mut memory = Memory::default();
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
    let machine = machine::find("torrellas-8k").unwrap();
    let profile = collect(
        &mut RecordingReader::new(&*recording).unwrap(),
        &image,
        &mut PartFilter::whole(),
        Besides::Nothing,
    )
    .unwrap();
    let user_code = recorded(&mut RecordingReader::new(&*recording).unwrap()).unwrap();
    let application = Application::new(&[user_code]).unwrap();
    let evaluator = Evaluator::new(&image, &machine, &profile, &application).unwrap();
    let tests = evaluator.tests().unwrap();
    let trials: Vec<Trials<'_>> = tests.iter().map(Test::trials).collect();
    let replayed = replay_trials(
        RecordingReader::new(&*recording).unwrap(),
        &trials,
        &mut PartFilter::whole(),
    )
    .unwrap();
    let found = evaluator.evaluated(&tests, &replayed, &profile);

    let own = Shape::of(&machine);
    let kernel = |level, cache| found.trial(level, Area::Usual, cache).unwrap().misses.kernel;
    assert_eq!(kernel(Level::Base, own).total(), 2 * ROUNDS);
    // With as many ways as there are functions, and in a cache that holds what lies between them,
    // each misses once.
    assert_eq!(kernel(Level::Base, own.with_ways(2)).total(), 2);
    assert_eq!(kernel(Level::Base, own.sized(2 * APART)).total(), 2);
    for level in [Level::ChangHwu, Level::OptS, Level::OptL, Level::OptA, Level::Call] {
        let misses = kernel(level, own);
        assert_eq!(misses.total(), misses.cold, "{level:?}: {misses:?}");
    }
    let user = |level| found.trial(level, Area::Usual, own).unwrap().misses.user;
    for level in [Level::OptA, Level::Call] {
        assert_eq!((user(level).total(), user(level).cold), (1, 1), "{level:?}");
    }
    assert_eq!(user(Level::OptS).total(), 2 * ROUNDS);
    // In a half of its own, the kernel's small code conflicts with nothing; in the other the user's
    // is alone. Lines with a place of their own miss once.
    for level in [Level::Separate, Level::Reserved] {
        let trial = found.trial(level, Area::Usual, own).unwrap();
        assert_eq!((trial.misses.kernel.total(), trial.misses.kernel.cold), (2, 2), "{level:?}");
        assert_eq!(trial.misses.user.total(), 1, "{level:?}");
    }
    assert_eq!(found.references.total(), 2 * ROUNDS * u64::from(BYTES));
    let (level, stretches) = &found.addresses[0];
    assert_eq!((*level, stretches.len(), peaks(stretches)), (Level::Base, 2, (ROUNDS, 1)));
    assert_eq!(stretches[1].start, LinkAddr(K + APART));
    let (level, classes) = found.classes[0];
    assert_eq!((level, classes.total(), classes.no_class), (Level::Base, 2 * ROUNDS, 0));
}
