//! Branch prediction by service: a misprediction counts for the service that executed the branch.

use crate::Attributed;
use crate::examples::{ExampleRun, USER, at, kernel};
use crate::table::{ServiceTable, in_kernel};
use sim::core::CoreSlots;
use sim::{
    BranchCounters, BranchPrediction, DirectionPrediction, HeldBranches, MachineModel,
    TargetBufferDescription,
};
use trace::RecordingReader;

/// Static prediction, with room for every branch of these executions.
pub(super) fn machine() -> MachineModel {
    let targets = TargetBufferDescription::new(64, 4, HeldBranches::Taken).unwrap();
    MachineModel {
        branch: Some(
            BranchPrediction::new(
                DirectionPrediction::Static,
                Some(targets),
                16,
                Some(10.0),
                Some(2.0),
            )
            .unwrap(),
        ),
        ..machines::find("server-32k").unwrap().model
    }
}

pub(super) fn books_with_branches(run: &ExampleRun, machines: &[MachineModel]) -> Attributed {
    let (symbols, binding) = kernel();
    let bytes = run.recording();
    let reader = RecordingReader::new(&bytes[..]).unwrap();
    crate::services_walk::attribute_with_branches(reader, &symbols, &binding, machines, true, None)
        .unwrap()
}

fn counters(books: &Attributed, service: &str) -> BranchCounters {
    let account = books.ledger.accounts.iter().find(|account| account.name == service).unwrap();
    account.totals.machines[0].branches.unwrap()
}

/// Every slot of the core belongs to one service.
#[test]
fn slots_of_services_add_up_to_those_of_the_recording() {
    let machine = machines::find("zen4").unwrap().model;
    let machines = [machine.clone(), machines::find("server-32k").unwrap().model];
    let books = books_with_branches(&read_with_a_lost_return(), &machines);
    let table =
        ServiceTable::new(&trace::RecordingHeader::default(), &books, Vec::new(), &machines);
    let [all, kernel] = table.machines[0].slots.unwrap();
    let (mut sum, mut of_kernel) = (CoreSlots::default(), CoreSlots::default());
    for row in &table.rows {
        let slots = row.machines[0].slots.unwrap();
        sum += slots;
        if in_kernel(row.kind) {
            of_kernel += slots;
        }
        assert_eq!(row.machines[1].slots, None);
    }
    assert_eq!((sum, of_kernel), (all, kernel));
    assert_eq!(table.machines[1].slots, None);
    // Six slots a cycle are dispatched, and eight graduate, in the same whole cycles.
    let cycles = all.dispatch.total() / 6;
    assert_eq!((all.dispatch.total(), all.graduation.total()), (6 * cycles, 8 * cycles));
    assert!(kernel.dispatch.retiring > 10 && kernel.dispatch.retiring < all.dispatch.retiring);
}

const JUMP_RAX: &[u8] = &[0xff, 0xe0];

/// A read that calls a service, which calls a function that does not return to it.
fn read_with_a_lost_return() -> ExampleRun {
    let read = at("__x64_sys_read");
    let mut run = ExampleRun::new();
    run.user(1).enter_read().call(read, 2, "net_rx_action");
    run.call(at("net_rx_action"), 3, "bare_entry").ret(at("bare_entry"), 2);
    // A loop of three iterations, then a jump through a pointer to the way back.
    for _ in 0..3 {
        run.push(read + 6, 1, &[0x75, 0xfd]);
    }
    run.push(read + 9, 0, JUMP_RAX).leave_read().user(1);
    run
}

#[test]
fn wrong_predictions_count_for_the_service_that_executed_the_branch() {
    let books = books_with_branches(&read_with_a_lost_return(), &[machine()]);
    // Its last branch is the return from its function. The caller continues elsewhere.
    let net =
        BranchCounters { returns: 1, wrong_returns: 1, misfetches: 1, ..BranchCounters::default() };
    assert_eq!(counters(&books, "net_rx_action"), net);
    // From then on the return stack is off by one. The target buffer lacks calls and the loop's
    // branch when they are first taken.
    let read = BranchCounters {
        conditional: 3,
        wrong_directions: 1,
        indirect: 1,
        wrong_targets: 1,
        returns: 2,
        wrong_returns: 2,
        misfetches: 3 + 1,
    };
    assert_eq!(counters(&books, "read"), read);
    assert_eq!(counters(&books, "sh"), BranchCounters::default());
}

#[test]
fn a_table_has_rates_stalls_and_totals() {
    let run = read_with_a_lost_return();
    let machines = [machine(), MachineModel { branch: None, ..machine() }];
    let books = books_with_branches(&run, &machines);
    let header = trace::RecordingHeader::default();
    let table = ServiceTable::new(&header, &books, Vec::new(), &machines);
    let row = table.rows.iter().find(|row| row.name == "read").unwrap();
    let read = row.machines[0].branches.unwrap();
    assert_eq!((read.mispredictions(), read.stall), (4, Some(4.0 * 10.0 + 4.0 * 2.0)));
    assert!((read.per_thousand - 4000.0 / row.instructions as f64).abs() < 1e-9);
    assert_eq!(row.machines[1].branches, None, "a machine without a predictor is not simulated");
    let [all, of_kernel] = table.machines[0].branches.unwrap();
    assert_eq!((all.mispredictions(), of_kernel.mispredictions()), (5, 5));
    assert_eq!(table.machines[1].branches, None);

    let without = run.books_on(&machines);
    let table = ServiceTable::new(&header, &without, Vec::new(), &machines);
    assert!(!serde_json::to_string(&table).unwrap().contains("branches"));
    for (with, without) in books.ledger.accounts.iter().zip(&without.ledger.accounts) {
        let l1i = |totals: &crate::ledger::ServiceTotals| {
            totals.machines.first().map(|counts| counts.l1i_misses)
        };
        assert_eq!(
            (&with.name, with.totals.instructions),
            (&without.name, without.totals.instructions)
        );
        assert_eq!(l1i(&with.totals), l1i(&without.totals));
    }
}

/// An interrupt hides where the first jump went. The next jump has no known target.
#[test]
fn an_interrupted_jump_does_not_count() {
    let mut run = ExampleRun::new();
    run.push(USER, 1, JUMP_RAX).iret(at("asm_sysvec_apic_timer_interrupt"), 2);
    run.push(USER + 0x100, 3, &[]);
    for _ in 0..2 {
        run.push(USER, 1, JUMP_RAX).push(USER + 0x100, 3, &[]);
    }
    let user = counters(&books_with_branches(&run, &[machine()]), "sh");
    assert_eq!((user.indirect, user.wrong_targets), (2, 1));
}
