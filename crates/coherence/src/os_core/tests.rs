//! Recordings by hand on a machine with a core for the operating system. All cycles are counted by
//! hand: an instruction takes one, a line 400 from memory, 80 from another core, a move 100.

use super::OsCoreStudy;
use super::policy::OsCorePolicy;
use super::table::{OsCoreTable, PolicyRow};
use anyhow::Result;
use execution::walk::walk;
use services::annotations::ServiceKind;
use services::examples::{ExampleRun, at, halted, kernel};
use trace::RecordingReader;

const MEMORY: u64 = 400;
const OTHER_CORE: u64 = 80;
const MOVE: u64 = 100;
/// The instructions of a `read` outside of its own function, and the lines of their code.
const AROUND: u64 = 12;
const LINES_AROUND: u64 = 3;

fn table_on(run: &ExampleRun, machine: &str, policies: &[&str]) -> Result<OsCoreTable> {
    let (symbols, binding) = kernel();
    let bytes = run.recording_with_data();
    let reader = || RecordingReader::new(&bytes[..]);
    let study = OsCoreStudy::new(reader()?, &symbols, &binding)?;
    let policies: Vec<OsCorePolicy> =
        policies.iter().map(|text| text.parse()).collect::<Result<_>>()?;
    // Without branch prediction, which would also cost cycles.
    let machine = sim::MachineModel { branch: None, ..machines::find(machine)?.model };
    let machine = study.machine(&machine, None)?;
    let bound = study.bind(&policies)?;
    let mut runs = Vec::new();
    for policy in &bound {
        let mut running = study.running(&machine, policy);
        walk(reader()?, &mut running)?;
        runs.push(running.visitor.finish());
    }
    Ok(study.table(&machine, &runs))
}

fn rows(run: &ExampleRun, policies: &[&str]) -> Vec<PolicyRow> {
    table_on(run, "os-core-8", policies).unwrap().policies
}

/// A task of user code that calls `read` `times` times. The function has `instructions` of its own,
/// in one line.
fn reader(times: usize, instructions: usize) -> ExampleRun {
    let mut run = ExampleRun::new();
    for _ in 0..times {
        run.user(50).enter_read();
        read(&mut run, instructions);
        run.leave_read();
    }
    run.user(50);
    run
}

/// Runs this number of instructions, in blocks of 10.
fn read(run: &mut ExampleRun, instructions: usize) {
    assert_eq!(instructions % 10, 0);
    for _ in 0..instructions / 10 {
        run.plain(at("__x64_sys_read"), 10);
    }
}

#[test]
fn every_move_costs_its_cycles_and_nothing_else_when_nothing_is_shared() {
    let rows = rows(&reader(3, 200), &["everything", "longer:212", "longer:211"]);
    let [nothing, everything, longer, as_long] = &rows[..] else { panic!("{rows:?}") };
    let instructions = 4 * 50 + 3 * (AROUND + 200);
    let lines = 1 + LINES_AROUND + 1;
    assert_eq!(nothing.cycles, instructions + lines * MEMORY);
    assert_eq!((nothing.moves, nothing.os_core.instructions.total()), (0, 0));
    assert_eq!(everything.cycles, nothing.cycles + 3 * 2 * MOVE);
    assert_eq!((everything.moves, everything.stays), (3, 3));
    assert_eq!(everything.moved_share, 1.0);
    assert_eq!(everything.application.instructions.kernel, 0);
    assert_eq!(everything.application.l1i_misses.user, 1);
    assert_eq!(everything.os_core.l1i_misses.kernel, lines - 1);
    // A stay moves when it is longer than the threshold, not when it is equal.
    assert_eq!((longer.moves, longer.cycles), (0, nothing.cycles));
    assert_eq!((as_long.moves, as_long.cycles), (3, everything.cycles));
}

#[test]
fn energy_by_hand() {
    let rows = rows(&reader(1, 10), &["everything"]);
    let (instructions, lines) = ((2 * 50 + AROUND + 10) as f64, (1 + LINES_AROUND + 1) as f64);
    // Every line is requested from the L2, the L3 and memory.
    let dynamic = (instructions * 70.0 + lines * (100.0 + 565.0 + 16000.0)) / 1e6;
    let near = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one} {other}");
    near(rows[0].energy.dynamic, dynamic);
    // The static half of the power of one core that is always busy.
    near(rows[0].energy.r#static, dynamic);
    near(rows[1].energy.dynamic, dynamic);
    // Two cores lose this power, for a longer time.
    let longer = rows[1].cycles as f64 / rows[0].cycles as f64;
    near(rows[1].energy.r#static, 2.0 * longer * dynamic);
    let more = (1.0 + 2.0 * longer) / 2.0;
    near(rows[1].energy_change, more - 1.0);
    near(rows[1].energy_delay_change, more * longer - 1.0);
}

#[test]
fn a_cpu_waits_until_the_core_is_free() {
    let mut run = ExampleRun::new();
    for cpu in 0..2 {
        run.cpu(cpu).switch(u32::from(cpu) + 1, "sh").user(50).enter_read();
        read(&mut run, 400);
        run.leave_read().user(50);
    }
    let rows = rows(&run, &["everything"]);
    let (stay, lines) = (AROUND + 400, LINES_AROUND + 1);
    let first = 50 + MEMORY + MOVE;
    let first_ends = first + stay + lines * MEMORY;
    // In the recording, the second CPU comes behind the first, but it asks for an earlier time,
    // because CPU 0 has fetched the user code already. The gap before CPU 0's stay is too short for
    // the second CPU's stay.
    let second = 50 + OTHER_CORE + MOVE;
    assert!(second + stay > first);
    assert_eq!(rows[1].waiting_cycles, first_ends - second);
    assert_eq!(rows[1].cycles, first_ends + stay + MOVE + 50);
    assert_eq!((rows[1].moves, rows[0].waiting_cycles), (2, 0));
}

#[test]
fn a_stay_ends_at_a_switch_and_idle_tasks_never_move() {
    let (symbols, binding) = kernel();
    let bytes = halted().recording_with_data();
    let reader = RecordingReader::new(&bytes[..]).unwrap();
    let stays = services::stays::of(reader, &symbols, &binding).unwrap();
    let named = |stay: &services::stays::Stay| {
        let (kind, name) = &stays.services[stay.service.unwrap().0 as usize];
        (*kind, name.as_str(), stay.instructions)
    };
    let found: Vec<_> = stays.cpus[0].iter().map(named).collect();
    let read = |instructions| (ServiceKind::SystemCall, "read", instructions);
    let before = 5 + 2 + 1 + 3;
    let behind = 3 + 5 + 1 + 7;
    let idle = (ServiceKind::Idle, "idle", 3 + 3 + 4 + 2 + 2 + 4);
    assert_eq!(found, [read(before), idle, read(behind)]);

    let rows = rows(&halted(), &["everything", "services:read"]);
    assert_eq!(rows[1].application.instructions.kernel, idle.2);
    assert_eq!(rows[1].os_core.instructions.kernel, before + behind);
    assert_eq!((rows[1].moves, rows[1].stays), (2, 2));
    assert_eq!(rows[2].cycles, rows[1].cycles);
}

#[test]
fn a_switch_between_two_stays_that_move_costs_nothing() {
    let mut run = ExampleRun::new();
    let schedule = at("__schedule");
    run.user(1).enter_read().call(at("__x64_sys_read"), 2, "__schedule");
    run.call(schedule, 4, "__switch_to").switch(2, "cat").ret(at("__switch_to"), 3);
    run.ret(schedule + 8, 5).plain(at("__x64_sys_read") + 6, 1).leave_read().user(2);
    let rows = rows(&run, &["everything"]);
    assert_eq!((rows[1].stays, rows[1].moves), (2, 1));
    assert_eq!(rows[1].cycles, rows[0].cycles + 2 * MOVE);
}

#[test]
fn what_does_not_fit_is_named() {
    let run = reader(1, 10);
    let error = |machine: &str, policy: &str| {
        format!("{:#}", table_on(&run, machine, &[policy]).unwrap_err())
    };
    let unknown = error("os-core-8", "services:read,reed");
    assert!(unknown.contains("services:reed: no stay"), "{unknown}");
    assert!(unknown.contains("It has stays of read: "), "{unknown}");
    let one_core = error("server-32k", "everything");
    assert!(one_core.contains("server-32k has no core for the operating system"), "{one_core}");
    let all_alike = error("server-8", "everything");
    assert!(all_alike.contains("server-8 has no core for the operating system"), "{all_alike}");
    for text in ["all", "longer:", "longer:-1", "services:", "services:a,,b", ""] {
        let message = text.parse::<OsCorePolicy>().unwrap_err().to_string();
        assert!(message.contains("write everything, longer:INSTRUCTIONS or"), "{message}");
    }
    for text in ["everything", "longer:1000", "services:read,write"] {
        assert_eq!(text.parse::<OsCorePolicy>().unwrap().to_string(), text);
    }
    let mut many = ExampleRun::new();
    many.user(1).cpu(7).user(1);
    let message = format!("{:#}", table_on(&many, "os-core-8", &["everything"]).unwrap_err());
    assert!(message.contains("has 7 application cores, and the recording has 8 CPUs"), "{message}");
}
