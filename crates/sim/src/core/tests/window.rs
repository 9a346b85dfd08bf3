//! What a core can have in flight: schedulers, results, and loads that wait.

use super::*;

/// A uop of 40 cycles that waits for nothing. What is behind it cannot retire before.
fn long() -> Uop {
    alu(40, 0, 0)
}

fn taking(file: RegisterFile, uop: Uop) -> Uop {
    Uop { files: RegisterFiles::NONE.with(file), ..uop }
}

/// Room for everything but what `change` says.
fn wide(change: impl FnOnce(&mut WindowDescription)) -> MachineModel {
    with(|core| {
        let window = &mut core.window;
        (window.reorder_buffer, window.loads) = (256, 256);
        window.schedulers[0].entries = 256;
        change(window);
    })
}

/// The cycles of a round with the window of `change`.
fn round(uops: &[Uop], change: impl FnOnce(&mut WindowDescription)) -> f64 {
    period(&wide(change), &Program::lines(&[uops]))
}

#[test]
fn results_in_flight_are_limited_by_file() {
    use RegisterFile::{Any, Integer, Vector};
    let add = taking(Integer, alu(1, 0, 0));
    let uops = [&[long()][..], &[add; 11]].concat();
    let limit = |file: RegisterFile| {
        move |window: &mut WindowDescription| window.results[file.index()] = Some(8)
    };
    assert_eq!(round(&uops, |_| {}), 6.0);
    assert_eq!(round(&uops, limit(Vector)), 6.0);
    assert_eq!(round(&uops, limit(Any)), 6.0);
    // The ninth addition waits for the retirement of the first. The long one of the next round is
    // behind it.
    let limited = round(&uops, limit(Integer));
    assert!((40.0..46.0).contains(&limited), "{limited}");
}

/// Eight results at least are asked for where there is a limit, and only there.
#[test]
fn a_window_of_few_slots_needs_no_limit_of_results() {
    let small = |window: &mut WindowDescription| {
        (window.reorder_buffer, window.loads, window.stores) = (4, 4, 4);
    };
    assert_eq!(round(&[eliminated(); 4], small), 2.0);
}

/// The tenth of ten uops of a slot is also executed on its own port.
#[test]
fn a_slot_of_many_uops_keeps_their_ports() {
    let more = Uop { begins_slot: false, ..on_port(1) };
    let load = Uop { begins_slot: false, ..load(0, 0) };
    let uops = [&[on_port(1)][..], &[more; 8], &[load]].concat();
    for change in [|_: &mut WindowDescription| {}, two_schedulers] {
        assert_eq!(round(&uops, change), 9.0);
    }
}

#[test]
fn loads_that_wait_are_limited() {
    let waiting = [&[alu(40, 0, 1)][..], &[load(1, 0); 7]].concat();
    let ready = [&[alu(40, 0, 1)][..], &[load(0, 0); 7]].concat();
    let limit = |window: &mut WindowDescription| window.waiting_loads = Some(6);
    assert_eq!(round(&waiting, |_| {}), 7.0);
    assert_eq!(round(&ready, limit), 7.0);
    // The seventh load waits for the first one to begin. The long uop of the next round is behind
    // it.
    let limited = round(&waiting, limit);
    assert!((40.0..46.0).contains(&limited), "{limited}");
}

#[test]
fn execution_and_retirement_come_stages_later() {
    let program = Program::lines(&[&[alu(1, 0, 0)]])
        .branch(BranchKind::Conditional, |round| (round % 2 == 0, 0));
    let mispredicted = |stages| period(&wide(|it| it.schedulers[0].stages = stages), &program);
    assert_eq!(mispredicted(5) - mispredicted(1), 4.0);
    // A window of 16 slots: the next round begins when this one's long uop retires.
    let uops = [&[long()][..], &[eliminated(); 15]].concat();
    let retired = |stages| {
        round(&uops, |window| {
            (window.reorder_buffer, window.loads, window.retire_stages) = (16, 16, stages);
        })
    };
    assert_eq!(retired(7) - retired(0), 7.0);
}

/// Ports 0 and 1 have a scheduler each.
fn two_schedulers(window: &mut WindowDescription) {
    let scheduler = |ports| SchedulerDescription { entries: 4, ports, stages: 1 };
    window.schedulers = vec![scheduler(0b1), scheduler(0b10), scheduler(0b1100)];
    window.bound_ports = Some(PortBinding::Fewest);
}

#[test]
fn uops_are_bound_to_the_port_with_the_fewest() {
    // Two for port 0, two for any: these go to port 1.
    let uops = [on_port(1), on_port(1), alu(1, 0, 0), alu(1, 0, 0)];
    assert_eq!(round(&uops, two_schedulers), 2.0);
    assert_eq!(round(&[alu(1, 0, 0); 4], two_schedulers), 2.0);
}

#[test]
fn a_full_scheduler_stops_what_is_bound_to_it() {
    // Five uops of port 0 wait for the long one. Four fit into its scheduler.
    let waiting = |count| {
        let wait = Uop { ports: 1, ..alu(1, 1, 0) };
        let long = Uop { ports: 0b10, ..alu(40, 0, 1) };
        [vec![long], vec![wait; count], vec![eliminated(); 1]].concat()
    };
    assert_eq!(round(&waiting(2), |window| window.schedulers[0].entries = 256), 2.0);
    let limited = round(&waiting(5), two_schedulers);
    assert!((40.0..50.0).contains(&limited), "{limited}");
}

#[test]
fn a_load_of_two_lines_takes_its_port_twice() {
    let loads = |at: u64| {
        let program = Program::lines(&[&[load(0, 0); 4]]).accesses(move |_| vec![at; 4]);
        period(&wide(|_| {}), &program)
    };
    assert_eq!([loads(56), loads(57), loads(63)], [4.0, 8.0, 8.0]);
}

/// A repeated string instruction that stores 8 bytes at a time: its microcode takes slots at the
/// beginning, once more behind the first 64 bytes, and for each further 64 bytes.
#[test]
fn the_microcode_of_a_string_instruction_takes_slots() {
    let [address, data] = store(0);
    let microcode = Uop { begins_slot: false, ..Uop::new(UopKind::Microcode, 0) };
    let slots = StringSlots { begin: 20, long: 40, line: 6 };
    let cycles = |bytes: u64, strings: StringSlots| {
        let string = Program::lines(&[&[address, data, microcode]]);
        let string = string.accesses(move |_| (0..bytes / 8).map(|n| n * 8).collect());
        period(&wide(|window| window.strings = strings), &string)
    };
    // Two slots a cycle, one of which is the store of the first 64 bytes.
    assert_eq!(cycles(64, slots), 21.0 / 2.0);
    // A store of one slot for each further line.
    assert_eq!(cycles(128, slots), (21.0 + 40.0 + 7.0) / 2.0);
    assert_eq!(cycles(256, slots), (21.0 + 40.0 + 3.0 * 7.0) / 2.0);
    // The port of stores.
    assert_eq!(cycles(64, StringSlots::default()), 2.0);
}
