//! Tables of generations: our numbers and the papers' at their places.

use super::*;
use services::annotations::ServiceKind;
use services::generations::{CycleModel, GenerationMachine};
use sim::core::GraduationSlots;
use std::num::NonZeroU32;

/// Machines with cycles of one part, so that parts are cycles.
const MACHINES: [(&str, u32); 5] = [
    ("simos-1994", 200),
    ("simos-1996", 200),
    ("simos-1998", 500),
    ("i486", 33),
    ("pentium4", 3000),
];

fn machine(name: &str, megahertz: u32) -> GenerationMachine {
    GenerationMachine {
        name: name.to_owned(),
        megahertz: NonZeroU32::new(megahertz),
        model: CycleModel::OutOfOrder,
        parts_per_cycle: 1,
        graduation_per_cycle: 1,
        samples: None,
    }
}

/// A row of 1000 instructions and 4 calls, with these cycles on the machines.
fn row(kind: Option<ServiceKind>, name: &str, cycles: [u64; 5]) -> GenerationRow {
    let on = cycles.iter().zip(MACHINES).map(|(&parts, (_, clock))| ServiceTime {
        parts,
        cpi: parts as f64 / 1000.0,
        milliseconds: Some(parts as f64 / f64::from(clock) / 1e3),
        nanoseconds_per_call: kind.map(|_| 1e3 * parts as f64 / f64::from(clock) / 4.0),
        split: None,
        dispatch: None,
        graduation: GraduationSlots::default(),
        estimated: None,
    });
    let (on, slices) = (on.collect(), Vec::new());
    GenerationRow { kind, name: name.to_owned(), calls: 4, instructions: 1000, on, slices }
}

fn found() -> Generations {
    let all = [4000, 2000, 1600, 3300, 1500];
    let mut found = Generations {
        workload: "loop".into(),
        kernel: "0a".into(),
        seed: 7,
        part: None,
        machines: MACHINES.map(|(name, clock)| machine(name, clock)).to_vec(),
        notes: vec!["only 1000 instructions ran".into()],
        sums: ["all", "the kernel", "user mode", "idle"].map(|name| row(None, name, all)),
        rows: vec![
            row(Some(ServiceKind::SystemCall), "read", all),
            row(Some(ServiceKind::PageFault), "demand zero", [3000, 3000, 2000, 3300, 2000]),
            row(Some(ServiceKind::User), "read", all),
        ],
    };
    let compared = found.clone();
    for row in found.sums.iter_mut().chain(&mut found.rows) {
        let splits: Vec<_> = (0..5).map(|at| compared.split(row, 0, at)).collect();
        row.on.iter_mut().zip(splits).for_each(|(on, split)| on.split = split);
    }
    found
}

fn top(most: usize) -> TopRows {
    TopRows { most, setting: Some("rows") }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn each_service_has_cycles_times_and_its_split() {
    let text = text(&GenerationsBeside::new(found()), top(30));
    let lines = lines(&text);
    for expected in [
        // CPI of each machine; nanoseconds of one of four calls.
        "system call read 1000 4.000 2.000 1.600 3.300 1.500",
        "system call read 4 5000 2500 800 25000 125",
        // Against simos-1994: 4000 cycles at 200 MHz are 20 µs, 1600 at 500 MHz 3.2 µs.
        "system call read 2.00 1.00 2.00 6.25 2.50 2.50 0.200 0.165 1.21 40.0 15.0 2.67",
        "note: only 1000 instructions ran",
        "simos-1998 500 out of order 0.00320 6.25 2.50 2.50 1.600",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected} is not in\n{text}");
    }
    let titled: Vec<&String> = lines.iter().filter(|line| line.contains("simulated")).collect();
    assert!(titled.len() > 6, "{titled:?}");
}

#[test]
fn the_papers_stand_beside_the_same_work() {
    let beside = GenerationsBeside::new(found());
    let text = text(&beside, top(30));
    let lines = lines(&text);
    for expected in [
        // 3300 cycles at 33 MHz are 100 µs, 1500 at 3 GHz 500 ns. User mode has no row.
        "system call read 200 90.9 2.20 read 239 21.7 2.63",
        "all of it, mean: P = 192 = 11.0 × 17.5 = 90.9 × 2.11",
        "the kernel, mean: P = 46.0 = 11.0 × 4.19 = 90.9 × 0.506",
        "user mode: P = 200 = 90.9 × 2.20",
        "crafty 241 251 14.0",
        "system call read 4.00 1.60 2.00 6.25 2.50 program development read 3.52 1.07 3.4 8.2 3.29",
        "system call read 4.00 1.60 2.00 6.25 2.50 database read 3.94 1.07 3.6 9.4 3.68",
        "page fault demand zero 3.00 2.00 1.00 3.75 1.50 engineering DEMAND ZERO 6.46 2.41 3.3 6.6 \
         2.68",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected} is not in\n{text}");
    }
    let papers = &beside.papers;
    assert_eq!(papers.nellans.as_ref().unwrap().calls.len(), 1);
    assert_eq!(papers.simos.as_ref().unwrap().len(), 5);
    let json = serde_json::to_value(&beside).unwrap();
    assert_eq!(json["papers"]["nellans"]["calls"][0]["call"], "read");
    assert_eq!(json["rows"][0]["on"][4]["split"]["architecture"], 4000.0 / 1500.0);
}

#[test]
fn without_a_papers_machines_they_are_named() {
    let mut found = found();
    found.machines.truncate(2);
    found.sums.iter_mut().chain(&mut found.rows).for_each(|row| row.on.truncate(2));
    let beside = GenerationsBeside::new(found);
    assert_eq!(beside.papers, Papers { nellans: None, simos: None });
    let text = text(&beside, top(1));
    assert!(text.contains("Nellans 2005: the machines i486, pentium4\n"), "{text}");
    assert!(text.contains("1995: the machines simos-1994, simos-1996, simos-1998\n"));
    assert!(text.contains("  and 2 more (rows)\n") && !text.contains("demand zero"), "{text}");
}

#[test]
fn numbers_have_three_digits() {
    for (value, expected) in [
        (0.0, "0"),
        (0.001_234, "0.00123"),
        (0.5, "0.500"),
        (0.994, "0.994"),
        (0.996, "1.00"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1234.5, "1234"),
    ] {
        assert_eq!(digits(value), expected);
    }
}
