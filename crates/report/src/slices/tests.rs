//! Frames of a small tree: read → f → g → f, f → h, which is too narrow, and user mode.

use super::*;
use services::LevelMisses;
use services::calls::CallNode;
use services::slices::{BegunInterrupts, EndedInvocations, ServiceOverTime};

fn cost(calls: u64, instructions: u64, stall: u64) -> CallCost {
    CallCost { calls, instructions, misses: LevelMisses::default(), stall }
}

fn recorded() -> (CallTree, Timeline) {
    let node = |parent, function| CallNode { parent: NodeId(parent), function };
    let tree = CallTree {
        functions: ["f", "g", "h"].map(str::to_owned).to_vec(),
        nodes: vec![node(0, 0), node(0, 0), node(1, 1), node(2, 0), node(1, 2), node(4, 1)],
        services: Vec::new(),
    };
    let mut timeline = services::timeline::Timeline::default();
    let ended = EndedInvocations {
        calls: 2,
        latency: 70,
        off_cpu: 20,
        classes: [(9, 1), (20, 1)].into_iter().collect(),
        lengths: [(5, 2)].into_iter().collect(),
    };
    timeline.services = vec![
        ServiceOverTime {
            kind: ServiceKind::SystemCall,
            name: "read".to_owned(),
            calls: vec![
                (NodeId(1), 0, cost(1, 40_000, 10)),
                (NodeId(1), 2, cost(1, 10_000, 0)),
                (NodeId(2), 0, cost(3, 20_000, 0)),
                (NodeId(3), 2, cost(1, 10_000, 7)),
                (NodeId(4), 1, cost(1, 1, 0)),
                (NodeId(5), 0, cost(1, 1, 0)),
                (NodeId(5), 2, cost(1, 1, 0)),
            ],
            ended: vec![(2, ended)],
        },
        ServiceOverTime {
            kind: ServiceKind::User,
            name: "sh".to_owned(),
            calls: vec![(ROOT, 1, cost(0, 19_970, 3))],
            ended: Vec::new(),
        },
    ];
    let between = [(11, 1)].into_iter().collect();
    timeline.interrupts = vec![(1, BegunInterrupts { count: 2, between })];
    (tree, timeline)
}

#[test]
fn frames_hold_everything_and_narrow_chains_are_put_together() {
    let (tree, timeline) = recorded();
    let made = SlicedRecording::new(&tree, &timeline);
    let path = |frame: &SlicedFrame| {
        let mut names = vec![made.names[frame.name as usize].as_str()];
        let mut at = frame.caller;
        while let Some(caller) = at {
            let frame = &made.frames[caller as usize];
            names.push(made.names[frame.name as usize].as_str());
            at = frame.caller;
        }
        names.reverse();
        names.join(";")
    };
    let found: Vec<(String, Vec<(u32, u64, u64)>)> = made
        .frames
        .iter()
        .map(|frame| {
            let counts = frame.counts.iter();
            (path(frame), counts.map(|(slice, it)| (*slice, it.calls, it.instructions)).collect())
        })
        .filter(|(_, counts): &(_, Vec<_>)| !counts.is_empty())
        .collect();
    let read = |rest: &str| format!("kernel;system call read;{rest}");
    assert_eq!(
        found,
        [
            (read("f"), vec![(0, 1, 40_000), (2, 1, 10_000)]),
            (read("f;g"), vec![(0, 3, 20_000)]),
            (read("f;g;f"), vec![(2, 1, 10_000)]),
            (read("f;(narrow chains);h"), vec![(1, 1, 1)]),
            (read("f;(narrow chains);g"), vec![(0, 1, 1), (2, 1, 1)]),
            ("user;user sh".to_owned(), vec![(1, 0, 19_970)]),
        ]
    );
    for (at, frame) in made.frames.iter().enumerate() {
        assert!(frame.caller.is_none_or(|caller| (caller as usize) < at), "frame {at}");
    }
}

#[test]
fn invocations_and_interrupts_keep_their_slices() {
    let (tree, timeline) = recorded();
    let made = SlicedRecording::new(&tree, &timeline);
    let [read, sh] = &made.services[..] else { panic!("{:?}", made.services) };
    let named = |frame: Option<u32>| {
        made.names[made.frames[frame.unwrap() as usize].name as usize].as_str()
    };
    assert_eq!((named(read.frame), named(sh.frame)), ("system call read", "user sh"));
    assert_eq!(read.ended, [[2, 2, 70, 20]]);
    assert_eq!(read.classes, [[2, 9, 1], [2, 20, 1]]);
    assert_eq!(read.lengths, [[2, 5, 2]]);
    assert!(sh.ended.is_empty() && sh.classes.is_empty() && sh.lengths.is_empty());
    assert_eq!((&made.interrupts[..], &made.between[..]), (&[[1, 2]][..], &[[1, 11, 1]][..]));
}

#[test]
fn misses_of_a_slice_are_a_list_of_numbers() {
    let by = |cold, own, other| MissCounts { cold, own, other };
    let l1i = PerMode { kernel: by(1, 2, 3), user: by(4, 5, 6) };
    let alone = SliceCounts { slice: 7, l1i, memory: None, misses_at: Vec::new() };
    assert_eq!(misses(std::slice::from_ref(&alone)), [[7, 1, 2, 3, 4, 5, 6]]);
    let memory = PerMode {
        kernel: MachineCounters { l1i: l1i.kernel, l3d: by(8, 0, 9), ..Default::default() },
        user: MachineCounters::default(),
    };
    let with_data = misses(&[SliceCounts { memory: Some(memory), ..alone }]).remove(0);
    assert_eq!((with_data.len(), &with_data[..4]), (37, &[7, 1, 2, 3][..]));
    assert_eq!(with_data[16..20], [8, 0, 9, 0]);
    let swept = SlicedSizes { slice: 3, misses: vec![l1i, PerMode::default()] };
    assert_eq!(sizes(&[swept]), [[3, 1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0]]);
}

#[test]
fn a_frame_is_one_list_of_numbers() {
    let counts = vec![
        (3, CallCost::from([1, 2, 3, 4, 5, 6])),
        (7, CallCost::from([10, 20, 30, 40, 50, 60])),
    ];
    let frame = SlicedFrame { caller: None, name: 7, counts };
    assert_eq!(serde_json::to_string(&frame).unwrap(), "[-1,7,3,4,1,10,2,20,3,30,4,40,5,50,6,60]");
}
