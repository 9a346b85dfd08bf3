//! Recordings by hand. All cycles are counted by hand: an instruction takes one, a line 400 from
//! memory, 80 from another core, a TLB miss 7.

use super::{CoherentCycles, MultiprocessorTable, simulate};
use crate::sharing::costs::OrderedTotals;
use anyhow::Result;
use execution::cpu_order::CpuOrder;
use execution::walk::walk;
use services::Attributed;
use services::annotations::ServiceKind;
use services::examples::{ExampleRun, at, kernel};
use services::{ServicesWalk, synchronizes};
use trace::{RecordingHeader, RecordingReader};

const MEMORY: f64 = 400.0;
const OTHER_CORE: f64 = 80.0;
const WALK: f64 = 7.0;

/// A recording with its services, and what coherence costs.
type Counted = ((RecordingHeader, Attributed), OrderedTotals);

fn counted(run: &ExampleRun, machine: &str, order: CpuOrder) -> Result<Counted> {
    let (symbols, binding) = kernel();
    let bytes = run.recording_with_data();
    let reader = || RecordingReader::new(&bytes[..]);
    let (header, machine) = (reader()?.header().clone(), machines::find(machine)?.model);
    let (totals, log, _) = simulate(reader()?, &machine, &[], order)?;
    let mut services = ServicesWalk::coherent(&symbols, &binding, &machine, &log)?;
    walk(reader()?, &mut services)?;
    Ok(((header, services.finish()), totals))
}

fn attributed(run: &ExampleRun, machine: &str) -> Result<(RecordingHeader, Attributed)> {
    Ok(counted(run, machine, CpuOrder::Recorded)?.0)
}

/// Each CPU runs 10 instructions of user code, and a `read` with 20 instructions of its own that
/// takes a spin lock in 3 more.
fn readers(cpus: u8) -> ExampleRun {
    let mut run = ExampleRun::new();
    let read = at("__x64_sys_read");
    for cpu in 0..cpus {
        if cpu > 0 {
            run.cpu(cpu);
        }
        run.switch(u32::from(cpu) + 1, "sh").user(10).enter_read();
        run.call(read, 20, "_raw_spin_lock").ret(at("_raw_spin_lock"), 3).leave_read().user(10);
    }
    run
}

#[test]
fn the_parts_of_a_service_by_hand() {
    let one = attributed(&readers(1), "server-8").unwrap();
    let (header, two) = attributed(&readers(2), "server-8").unwrap();
    let table =
        MultiprocessorTable::new(&header, "server-8", OrderedTotals::default(), &two, Some(&one))
            .unwrap();
    assert_eq!((table.cpus, table.instructions), (2, 2 * (10 + 5 + 20 + 3 + 7 + 10)));
    let [read] = &table.rows[..] else { panic!("{:?}", table.rows) };
    assert_eq!((read.kind, &*read.name, read.calls), (ServiceKind::SystemCall, "read", 2));
    // The lines of the entry, of do_syscall_64, and two of the function; one page.
    let expected = CoherentCycles {
        work: 2.0 * (5.0 + 20.0 + 7.0),
        synchronization: 2.0 * 3.0 + MEMORY + OTHER_CORE,
        instruction: 4.0 * (MEMORY + OTHER_CORE) + 2.0 * WALK,
        ..CoherentCycles::default()
    };
    assert_eq!(read.cycles, expected);
    let alone = 35.0 + 5.0 * MEMORY + WALK;
    assert_eq!(read.mean_cycles, expected.total() / 2.0);
    assert_eq!(read.slowdown, Some(expected.total() / 2.0 / alone - 1.0));
    assert_eq!((read.share, read.share_on_one_cpu), (1.0, Some(1.0)));
    let user = &table.modes[1];
    assert_eq!((user.mode, user.cycles.work), ("user", 40.0));
    assert_eq!(user.cycles.instruction, MEMORY + OTHER_CORE + 2.0 * WALK);
    let synchronization = expected.synchronization / expected.total();
    assert_eq!(table.synchronization(), synchronization);
    let calls = table.events.iter().find(|event| event.event == "system calls").unwrap();
    assert_eq!((calls.count, calls.per_million), (2, 2e6 / 110.0));
}

/// The cycles of all modes are the instructions and the stalls of the caches.
#[test]
fn the_cycles_of_services_are_those_of_the_caches() {
    for (cpus, order) in
        [(1, CpuOrder::SideBySide), (4, CpuOrder::Recorded), (4, CpuOrder::SideBySide)]
    {
        let ((header, services), totals) = counted(&readers(cpus), "server-8", order).unwrap();
        let table = MultiprocessorTable::new(&header, "server-8", totals, &services, None).unwrap();
        let cycles: f64 = table.modes.iter().map(|mode| mode.cycles.total()).sum();
        assert_eq!(cycles, table.instructions as f64 + totals.total.stalls);
        assert_eq!(totals.total.instructions.total(), table.instructions);
        let beside = totals.recorded.map(|recorded| recorded.instructions.total());
        let has_other = cpus > 1 && order == CpuOrder::SideBySide;
        assert_eq!(beside, has_other.then_some(table.instructions));
    }
}

#[test]
fn functions_of_locks_are_known_by_name() {
    let locks = ["_raw_spin_lock_irqsave", "_raw_read_unlock", "native_queued_spin_lock_slowpath"];
    assert!(locks.iter().all(|name| synchronizes(name)));
    assert!(!synchronizes("mutex_lock"));
}

#[test]
fn what_does_not_fit_is_named() {
    let message =
        |machine: &str, run: &ExampleRun| format!("{:#}", attributed(run, machine).unwrap_err());
    let one_core = message("server-32k", &readers(2));
    assert!(one_core.contains("server-32k has no coherent caches"), "{one_core}");
    let too_few = message("os-core-8", &readers(8));
    assert!(too_few.contains("os-core-8 has 7 cores, and the recording has 8 CPUs"), "{too_few}");
    let (header, two) = attributed(&readers(2), "server-8").unwrap();
    let of_two = (header.clone(), two);
    let (header, two) = attributed(&readers(2), "server-8").unwrap();
    let error = MultiprocessorTable::new(
        &header,
        "server-8",
        OrderedTotals::default(),
        &two,
        Some(&of_two),
    )
    .unwrap_err();
    assert!(error.to_string().contains("2 CPUs"), "{error}");
    let one = attributed(&readers(1), "server-8").unwrap();
    let other = RecordingHeader { build_id: "ab".into(), ..header };
    let error =
        MultiprocessorTable::new(&other, "server-8", OrderedTotals::default(), &two, Some(&one))
            .unwrap_err();
    assert!(error.to_string().contains("different kernels"), "{error}");
}
