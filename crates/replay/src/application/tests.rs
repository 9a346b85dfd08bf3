//! Small programs, from the recording to the misses.

use super::{Application, UserCode, recorded};
use crate::results::ResultKind;
use crate::tests::guest::{GuestMemory, record};
use crate::{LayoutCounts, ReplayLayout, ReplayTrial, SimulationScope, replay_trials};
use execution::walk::chunks;
use image::address::LinkAddr;
use image::place::{Ending, PlacedBlock, Placement};
use layout::graph::{BlockId, EdgeKind, Order, Ordered};
use std::ops::ControlFlow;
use trace::{
    RecordingHeader, RecordingReader, RecordingWriter, RunAddr, StreamEvent, Task, TaskId,
    TaskPointer, Translation, TranslationId,
};

const K: u64 = 0xffff_ffff_8100_0000;
const U: u64 = 0x40_1000;
/// The bytes of the paper's cache. Code at this distance conflicts in it.
const APART: u32 = 8192;
const ROUNDS: u64 = 300;

/// ```text
/// U+0000 main: call f       block 0        U+2000 f: nop    block 5
/// U+0005       je +0100 ─┐  block 1                  ret
/// U+000b                 │  never ran: 2
/// U+0100       syscall ◄─┘  block 3        K: sysret
/// U+0102       jmp main     block 4
/// ```
fn program(rounds: u64) -> Vec<u8> {
    let mut memory = GuestMemory::default();
    let call = [&[0xe8][..], &(APART - 5).to_le_bytes()].concat();
    let jump = [&[0xe9][..], &(-0x107_i32).to_le_bytes()].concat();
    let near_branch = [0x0f, 0x84, 0xf5, 0, 0, 0];
    let code: [(u64, &[u8]); 7] = [
        (U, &call),
        (U + u64::from(APART), &[0x90]),
        (U + u64::from(APART) + 1, &[0xc3]),
        (U + 5, &near_branch),
        (U + 0x100, &[0x0f, 0x05]),
        (K, &[0x48, 0x0f, 0x07]),
        (U + 0x102, &jump),
    ];
    for (addr, bytes) in code {
        memory.put(addr, bytes);
    }
    let round: Vec<u64> = code.iter().map(|&(addr, _)| addr).collect();
    record(&memory, &round.repeat(rounds as usize), 100)
}

fn of_user(recording: &[u8]) -> UserCode {
    recorded(RecordingReader::new(recording).unwrap()).unwrap()
}

/// Replays on the paper's machine. The kernel does not move.
fn replayed(
    recording: &[u8],
    application: &Application,
    placed: Vec<PlacedBlock>,
) -> [LayoutCounts; 2] {
    let machines = [machines::find("torrellas-8k").unwrap().model];
    let original = ReplayLayout::original();
    let moved = ReplayLayout {
        kind: ResultKind::Predicted,
        placement: Placement { blocks: placed, ..Placement::default() },
        ..ReplayLayout::original()
    };
    let trials = [
        ReplayTrial::new(&original, &machines, SimulationScope::Caches),
        ReplayTrial {
            application: Some(&application.spaces),
            ..ReplayTrial::new(&moved, &machines, SimulationScope::Caches)
        },
    ];
    let replayed = replay_trials(RecordingReader::new(recording).unwrap(), &trials).unwrap();
    replayed.layouts.try_into().unwrap()
}

#[test]
fn what_conflicted_lies_together_at_the_other_side_of_the_cache() {
    let recording = program(ROUNDS);
    let application = Application::new(&[of_user(&recording)]).unwrap();
    let placed = application.placement(APART.into(), 32, LinkAddr(K)).unwrap();
    // The loop lies below code outside of loops. The branch is inverted: its target never ran. All
    // 13 bytes end where the kernel begins in the cache.
    let base = placed[0].new.0;
    let found: Vec<_> = placed
        .iter()
        .map(|block| (block.new.0 - base, block.new_size, block.appended, block.ending))
        .collect();
    let same = Ending::Same;
    let expected = [
        (0, 5, 0, same),
        (5, 2, 0, Ending::Inverted),
        (13, 1, 0, same),
        (7, 2, 0, same),
        (9, 2, 0, same),
        (11, 2, 0, same),
    ];
    assert_eq!(found, expected);
    assert_eq!((base + 13) % u64::from(APART), K % u64::from(APART));

    let [original, moved] = replayed(&recording, &application, placed);
    // Main and f evict each other, twice per round. In the first round the lines of main and of the
    // system call are cold.
    let misses = |counts: &LayoutCounts| counts.machines[0].l1i.user.total();
    assert_eq!((misses(&original), misses(&moved)), (2 * ROUNDS + 2, 1));
    assert_eq!(
        (original.amounts.fetched_bytes.user, moved.amounts.fetched_bytes.user),
        (20 * ROUNDS, 13 * ROUNDS)
    );
    assert_eq!(original.amounts.instructions, moved.amounts.instructions);
    assert_eq!(original.machines[0].l1i.kernel, moved.machines[0].l1i.kernel);
}

#[test]
fn the_graph_holds_the_code_that_ran() {
    let application = Application::new(&[of_user(&program(10))]).unwrap();
    let graph = &application.blocks.graph;
    assert_eq!(graph.sizes, [5, 6, 1, 2, 5, 2]);
    assert_eq!(graph.counts, [10, 10, 0, 10, 10, 10]);
    assert_eq!(graph.functions, [0..5, 5..6]);
    let edges: Vec<_> =
        graph.edges.iter().map(|edge| (edge.from.0, edge.to.0, edge.kind, edge.count)).collect();
    let expected = [
        (0, 1, EdgeKind::FallThrough, 10), // the call returned
        (1, 3, EdgeKind::Branch, 10),
        (3, 4, EdgeKind::FallThrough, 10), // also the system call
        (4, 0, EdgeKind::Jump, 9),
    ];
    assert_eq!(edges, expected);
    let calls: Vec<_> =
        graph.calls.iter().map(|call| (call.from.0, call.to.0, call.count)).collect();
    assert_eq!(calls, [(0, 5, 10)]);
    let seeds: Vec<_> = graph.seeds.iter().map(|seed| (seed.block.0, seed.count)).collect();
    assert_eq!(seeds, [(0, 1)]);
}

/// This includes orders in which a call and the code behind it are apart. A jump then stands behind
/// the call and runs when the callee returns.
#[test]
fn no_order_breaks_the_flow_of_control() {
    let recording = program(3);
    let application = Application::new(&[of_user(&recording)]).unwrap();
    let mut orders = vec![vec![]];
    for block in (0..6).map(BlockId) {
        let with = |order: Vec<BlockId>| {
            (0..=order.len()).map(move |at| [&order[..at], &[block], &order[at..]].concat())
        };
        orders = orders.into_iter().flat_map(with).collect();
    }
    assert_eq!(orders.len(), 720);
    for order in orders {
        let ordered = Ordered { order: Order(order), hot: 6 };
        let placed = application.placed(&ordered, APART.into(), LinkAddr(K)).unwrap();
        // The call and the system call continue behind themselves; the branch always jumps.
        let runs: u32 = [0, 1, 3, 4, 5].map(|block| placed[block].new_size).iter().sum();
        let jumps: u32 = [0, 3].map(|block| u32::from(placed[block].appended)).iter().sum();
        let [_, moved] = replayed(&recording, &application, placed);
        assert_eq!(moved.amounts.breaks, 0, "{ordered:?}");
        assert_eq!(moved.amounts.fetched_bytes.user, u64::from(3 * (runs + jumps)), "{ordered:?}");
    }
}

/// A recording of these translation blocks and events. A translation block is one instruction, or
/// several nops.
fn events(translations: &[(u64, &[u8])], events: &[StreamEvent]) -> Vec<u8> {
    let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap();
    let lengths = |code: &[u8]| match code.iter().all(|&byte| byte == 0x90) {
        true => vec![1; code.len()],
        false => vec![code.len() as u8],
    };
    let translation = |(id, &(addr, code)): (u32, &(u64, &[u8]))| Translation {
        id: TranslationId(id),
        addr: RunAddr(addr),
        lengths: lengths(code).into(),
        code: code.into(),
    };
    let defined: Vec<Translation> = (0..).zip(translations).map(translation).collect();
    writer.translations(&defined).unwrap();
    for id in 0..2 {
        let task = Task {
            id: TaskId(id),
            pointer: TaskPointer(K + u64::from(id)),
            pid: Some(id),
            comm: [0; 16],
        };
        writer.tasks(&[task]).unwrap();
    }
    let mut words = Vec::new();
    events.iter().for_each(|event| event.append_to(&mut words));
    writer.stream(&words).unwrap();
    writer.end().unwrap().0
}

fn ran(ids: &[u32]) -> Vec<StreamEvent> {
    ids.iter().map(|&id| StreamEvent::Executed(TranslationId(id))).collect()
}

#[test]
fn a_program_goes_on_where_it_was_also_when_others_ran_in_between() {
    let (nop, jump): (&[u8], &[u8]) = (&[0x90], &[0xeb, 0x0e]);
    let translations = [(U, jump), (U + 0x10, nop), (U + 0x11, nop), (K, nop), (U + 0x40, nop)];
    let task = |id| vec![StreamEvent::Task(TaskId(id))];
    let happened = [
        task(0),
        ran(&[0, 3]), // the first task jumps, and is interrupted
        task(1),
        ran(&[4, 3]), // the second begins elsewhere
        task(0),
        ran(&[1, 2, 3, 4]), // the first continues at its jump's target, then runs a signal handler
    ];
    let found = of_user(&events(&translations, &happened.concat()));
    // Kernel code has no number, so translation block 4 is number 3.
    assert_eq!(found.runs, [1, 1, 1, 2]);
    assert_eq!(found.successors.into_iter().collect::<Vec<_>>(), [((0, 1), 1), ((1, 2), 1)]);
    assert_eq!(found.entries, [1, 0, 0, 2]);
}

/// Two programs. The second has no code at most addresses of the first.
#[test]
fn programs_with_other_code_at_the_same_address_have_spaces_of_their_own() {
    let translations = [
        (U, &[0xeb, 0x0e][..]), // the first: jmp +10
        (U + 0x10, &[0x90; 3][..]),
        (U, &[0xeb, 0x1e][..]), // the second: jmp +20
        (U + 0x20, &[0x90; 2][..]),
        (U + 0x10, &[0xc3][..]), // other code, without a direct branch to it
        (U + 0x21, &[0x90][..]), // also without a branch to it, but the second has this byte
        (U + 0x40, &[0x90][..]), // no program has code here
    ];
    let recording = events(&translations, &ran(&[0, 1, 2, 3, 2, 3, 4, 5, 6]));
    let application = Application::new(&[of_user(&recording)]).unwrap();
    let mut reader = RecordingReader::new(&*recording).unwrap();
    let mut defined = Vec::new();
    let read = chunks(&mut reader, |chunk, _| {
        if let trace::Chunk::Translations(translations) = chunk {
            defined.extend(translations);
        }
        anyhow::Ok(ControlFlow::Continue(()))
    });
    read.unwrap().unwrap();
    let spaces: Vec<u64> = defined
        .iter()
        .map(|translation| application.spaces.code(translation).unwrap().addr.0 >> 47)
        .collect();
    assert_eq!(spaces, [1, 1, 2, 2, 2, 2, 1]);

    let unknown = Translation { addr: RunAddr(U + 1), ..defined[0].clone() };
    let error = application.spaces.code(&unknown).unwrap_err().to_string();
    assert!(error.contains("0000000000401001 was not in the recordings"), "{error}");
}

#[test]
fn code_where_no_program_can_be_is_refused() {
    let recording = events(&[(1 << 62, &[0x90])], &ran(&[0]));
    let error = Application::new(&[of_user(&recording)]).err().unwrap().to_string();
    assert!(error.contains("4000000000000000: no program"), "{error}");
}

#[test]
fn recordings_weigh_the_same_and_share_code() {
    let nop: &[u8] = &[0x90];
    let (one, other) = ([(U, nop)], [(U + 8, nop), (U, nop)]);
    let average = super::recorded::average(&[
        of_user(&events(&one, &ran(&[0; 6]))),
        of_user(&events(&other, &ran(&[0, 1]))),
    ]);
    let average = average.unwrap();
    assert_eq!(average.runs, [9, 3]);
    assert!(Application::new(&[]).unwrap().placement(8192, 32, LinkAddr(K)).unwrap().is_empty());
}
