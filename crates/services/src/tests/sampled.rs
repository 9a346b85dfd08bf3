//! Services on an out-of-order core that is simulated by samples: what is counted is exact, and
//! what is estimated says how far it may be off.

use super::branches::books_with_branches;
use crate::annotations::ServiceKind;
use crate::core_time::{CoreTime, EstimatedTime};
use crate::examples::{ExampleRun, at, kernel};
use crate::generations::Generations;
use crate::table::{ServiceRow, ServiceTable};
use crate::{Attribution, ServicesAndFunctions};
use execution::part::RecordingPart;
use execution::sampling::SamplePlan;
use sim::MachineModel;
use sim::core::CoreSlots;
use tempfile::TempDir;

const PLAN: SamplePlan = SamplePlan { interval: 300, before: 60, measured: 60, seed: 1 };

fn machine() -> MachineModel {
    machines::find("zen4").unwrap().model
}

/// 3000 reads of different lengths. One of three calls a service; a page fault comes before the
/// first sample.
pub(super) fn recorded() -> (TempDir, Attribution) {
    let read = at("__x64_sys_read");
    let mut run = ExampleRun::new();
    run.user(3).call(at("asm_exc_page_fault"), 2, "do_wp_page");
    run.ret(at("do_wp_page"), 3).iret(at("asm_exc_page_fault") + 6, 3);
    for round in 0..3000 {
        run.user(10 + round % 7).enter_read().plain(read, 5 + round * round % 11);
        if round % 3 == 0 {
            run.call(read + 0x20, 2, "net_rx_action");
            run.ret(at("net_rx_action"), 20 + round % 5);
            run.plain(read + 0x26, 3);
        }
        run.leave_read();
    }
    run.user(1);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("trace.klt"), run.recording()).unwrap();
    let (symbols, binding) = kernel();
    let part = RecordingPart::WHOLE;
    (directory, Attribution { symbols, binding, machines: vec![machine()], part })
}

fn on_core(row: &ServiceRow) -> CoreTime {
    row.machines[0].core.unwrap()
}

fn row<'a>(table: &'a ServiceTable, name: &str) -> &'a ServiceRow {
    table.rows.iter().find(|row| row.name == name).unwrap()
}

#[test]
fn each_service_has_its_own_interval() {
    let (directory, attribution) = recorded();
    let exact = attribution.table(directory.path(), None).unwrap();
    let table = attribution.table(directory.path(), Some(PLAN)).unwrap();
    assert!(exact.rows.iter().all(|row| on_core(row).estimated.is_none()));
    assert_eq!((exact.machines[0].samples, exact.widest()), (None, 0.0));
    let samples = table.machines[0].samples.unwrap();
    assert_eq!(samples.units, table.instructions / 300);
    for name in ["read", "net_rx_action", "sh"] {
        let (truth, found) = (row(&exact, name), row(&table, name));
        assert_eq!((found.instructions, found.calls), (truth.instructions, truth.calls));
        let (truth, found) = (on_core(truth).cycles, on_core(found));
        let EstimatedTime { samples, within } = found.estimated.unwrap();
        let within = within.unwrap();
        assert!(samples > 50 && within > 0.0 && within < 10.0, "{name}: {samples}, ±{within} %");
        let error = 100.0 * (found.cycles / truth - 1.0);
        assert!(error.abs() < 2.0 * within + 0.5, "{name}: {error:+.2} %, ±{within} %");
    }
    let truth = exact.machines[0].core.unwrap()[0].cycles;
    let [all, of_kernel] = table.machines[0].core.unwrap();
    assert!((all.cycles / truth - 1.0).abs() < 0.01, "{} of {truth}", all.cycles);
    assert!(all.estimated.unwrap().within.unwrap() < 2.0 && of_kernel.estimated.is_some());
    // All rows together are the recording.
    let mut sum = CoreSlots::default();
    table.rows.iter().for_each(|row| sum += row.machines[0].slots.unwrap());
    assert_eq!(Some(sum), table.machines[0].slots.map(|[all, _]| all));
}

#[test]
fn a_service_that_ran_in_no_sample_says_so() {
    let (directory, attribution) = recorded();
    let table = attribution.table(directory.path(), Some(PLAN)).unwrap();
    let row = table.rows.iter().find(|row| row.kind == ServiceKind::PageFault).unwrap();
    let fault = on_core(row);
    assert_eq!(fault.estimated, Some(EstimatedTime { samples: 0, within: None }));
    assert!(fault.cycles > 1.0, "its instructions took time");
    let json = serde_json::to_value(row).unwrap();
    let expected = serde_json::json!({ "samples": 0, "within": null });
    assert_eq!(json["on"][0]["core"]["estimated"], expected);
}

#[test]
fn generations_and_functions_have_the_same_estimates() {
    let (directory, mut attribution) = recorded();
    let table = attribution.table(directory.path(), Some(PLAN)).unwrap();
    let ServicesAndFunctions { table: with_functions, functions } =
        attribution.recorded_on_cores(directory.path(), Some(PLAN)).unwrap();
    assert_eq!(with_functions, table);
    // A function takes what its service takes, if no other function does anything for it.
    let (service, function) = (on_core(row(&table, "net_rx_action")), functions["net_rx_action"]);
    let ratio = function.core.unwrap().cycles / service.cycles;
    assert!((ratio - 1.0).abs() < 0.05, "{ratio}");
    let estimated = function.core.unwrap().estimated.unwrap();
    assert!(estimated.samples > 50 && estimated.within.unwrap() < 10.0, "{estimated:?}");
    assert_eq!(
        functions["do_wp_page"].core.unwrap().estimated,
        Some(EstimatedTime { samples: 0, within: None })
    );
    let exact = attribution.recorded_on_cores(directory.path(), None).unwrap();
    let truth = exact.functions["net_rx_action"].core.unwrap();
    assert_eq!(truth.estimated, None);
    assert!((function.core.unwrap().cycles / truth.cycles - 1.0).abs() < 0.05);
    let of_functions: f64 =
        exact.functions.values().map(|totals| totals.core.unwrap().cycles).sum();
    let of_kernel = exact.table.machines[0].core.unwrap()[1].cycles;
    assert!((of_functions / of_kernel - 1.0).abs() < 0.02, "{of_functions} of {of_kernel}");

    attribution.machines.insert(0, machines::find("i486").unwrap().model);
    let found: Generations = attribution.generations(directory.path(), Some(PLAN)).unwrap();
    assert_eq!((found.machines[0].samples, found.rows[0].on[0].estimated), (None, None));
    assert_eq!(found.machines[1].samples, table.machines[0].samples);
    for (ours, theirs) in found.rows.iter().zip(&table.rows) {
        let (on, core) = (ours.on[1], on_core(theirs));
        assert_eq!((on.parts as f64 / 6.0, on.estimated), (core.cycles, core.estimated));
    }
    let parts: u64 = found.rows.iter().map(|row| row.on[1].parts).sum();
    assert_eq!(parts, found.sums[0].on[1].parts);
    let [all, kernel] = table.machines[0].core.unwrap();
    assert_eq!(
        (found.sums[0].on[1].estimated, found.sums[1].on[1].estimated),
        (all.estimated, kernel.estimated)
    );
    assert!(found.notes.iter().any(|note| note.starts_with("zen4: estimated from ")));
}

/// Samples of each CPU lie at its own instructions.
#[test]
fn several_cpus_are_sampled() {
    let mut run = ExampleRun::new();
    for round in 0..400 {
        run.cpu(round as u8 % 2).user(10);
        for _ in 0..3 {
            run.enter_read().plain(at("__x64_sys_read"), 5 + round % 9).leave_read().user(10);
        }
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("trace.klt"), run.recording()).unwrap();
    let (symbols, binding) = kernel();
    let part = RecordingPart::WHOLE;
    let attribution = Attribution { symbols, binding, machines: vec![machine()], part };
    let [exact, table] =
        [None, Some(PLAN)].map(|plan| attribution.table(directory.path(), plan).unwrap());
    let cycles = |table: &ServiceTable| table.machines[0].core.unwrap()[0].cycles;
    assert!((cycles(&table) / cycles(&exact) - 1.0).abs() < 0.03);
    let units = table.machines[0].samples.unwrap().units;
    assert!((table.instructions / 300 - 2..=table.instructions / 300).contains(&units), "{units}");
    let slots = |run: &ExampleRun| {
        let machines = [machine()];
        let books = books_with_branches(run, &machines);
        ServiceTable::new(&trace::RecordingHeader::default(), &books, Vec::new(), &machines)
            .machines[0]
            .slots
    };
    assert_eq!(slots(&run), exact.machines[0].slots);
}
