//! Service tables and the operating system's share, for a terminal; the share beside the paper's
//! numbers, for the page.
//!
//! Input: the tables of `services`. Output: text, and the share's data. To add a column: its title
//! in `table` and its cell in `cells`, at the same place.

use crate::core_time;
use crate::top::TopRows;
use host::table::TextTable;
use papers::nellans::{self, SupervisorShare};
use replay::results::Predictions;
use serde::Serialize;
use services::core_time::CoreTime;
use services::share::OsShare;
use services::table::{ServiceRow, ServiceTable};
use sim::core::CoreSlots;
use std::fmt::Write as _;

/// The table of services, with its first rows.
pub fn table(services: &ServiceTable, top: TopRows) -> String {
    let most = top.most;
    let all = services.instructions.max(1) as f64;
    let part = |instructions: u64| 100.0 * instructions as f64 / all;
    let mut text = format!(
        "workload {}, kernel {}, seed {}\n\
         {} instructions: {:.1} % user, {:.1} % kernel, {:.2} % idle\n",
        services.workload,
        services.kernel,
        services.seed,
        services.instructions,
        part(services.user_instructions),
        part(services.kernel_instructions),
        part(services.idle_instructions),
    );
    text += "shares of the kernel's instructions and cycles; of user mode and idle, of all\n";
    text += "times are in nanoseconds of the guest's clock; an instruction takes one; latencies \
        are of calls that ended\n";
    if services.cpus > 1 {
        let _ = writeln!(
            text,
            "{} CPUs execute in turns: the clock counts the instructions of all, so latencies \
             contain the turns of others; machines have an L1I for each CPU and no other caches",
            services.cpus
        );
    }
    text += &match services.halted {
        Some(halted) => {
            let all = (services.instructions + halted) as f64;
            format!(
                "the processor was halted for {:.6} s of {:.6} s\n\n",
                halted as f64 * 1e-9,
                all * 1e-9
            )
        }
        None => {
            "this recording does not say how long the processor was halted; latencies leave that \
             time out\n\n"
                .to_owned()
        }
    };
    let mut titles = vec![
        "service",
        "share",
        "calls",
        "calls/s",
        "mean",
        "latency",
        "computing",
        "others",
        "off CPU",
        "blocked",
        "waiting",
    ];
    for (at, machine) in services.machines.iter().enumerate() {
        titles.extend(["share", "cycles", "CPI", "L1I stall"]);
        titles.extend(match machine.kernel_stalls {
            None => &["of misses"][..],
            Some(_) if !machine.has_l2 => &["L1D", "TLB", "stalls I", "stalls D"],
            Some(_) => &["L1D", "L2", "TLB", "stalls I", "stalls D"],
        });
        titles.extend((at > 0).then_some("faster"));
    }
    let mut table = TextTable::new(&titles);
    for row in services.rows.iter().take(most) {
        table.push(cells(row));
    }
    text += &table.to_text();
    text += &top.rest(services.rows.len());
    for (at, machine) in services.machines.iter().enumerate() {
        let what = if at == 0 { "first" } else { "next" };
        let model = match machine.kernel_stalls {
            None => "Torrellas' simple model (1998, section 5.2)",
            Some(_) => "SimOS' 1994 model (Rosenblum 1995, section 3.2)",
        };
        let _ = writeln!(text, "{what} group of columns: {}, by {model}", machine.name);
    }
    text += &amounts(services);
    if services.machines.iter().any(|machine| machine.branches.is_some()) {
        text += &branches(services, most);
    }
    text + &slots(services, most)
}

/// Where the slots of the first `most` services go, of everything, and of the kernel, on each
/// machine with an out-of-order core.
fn slots(services: &ServiceTable, most: usize) -> String {
    let mut text = String::new();
    for (at, machine) in services.machines.iter().enumerate() {
        let Some([all, kernel]) = machine.slots else { continue };
        let _ = write!(
            text,
            "\n{}: out-of-order core, simulated with fixed data behaviour; slots, and where they \
             go (top-down; data, instr., pipe: SimOS)\n\n",
            machine.name
        );
        let is_sampled = machine.samples.is_some();
        let mut titles = core_time::titles("service");
        titles.splice(1..1, ["Mcycles", "CPI"].into_iter().chain(is_sampled.then_some("± %")));
        let mut table = TextTable::new(&titles);
        let mut push = |name: String, (instructions, slots, time): (u64, &CoreSlots, _)| {
            let mut cells = core_time::cells(name, slots, all.dispatch.total());
            let [cycles, cpi, within] = core_cells(instructions, time);
            cells.splice(1..1, [cycles, cpi].into_iter().chain(is_sampled.then_some(within)));
            table.push(cells);
        };
        for row in services.rows.iter().take(most) {
            let on = &row.machines[at];
            let name = format!("{} {}", row.kind.title(), row.name);
            push(name, (row.instructions, &on.slots.unwrap_or_default(), on.core));
        }
        let [of_all, of_kernel] = machine.core.map_or([None; 2], |core| core.map(Some));
        push("all".to_owned(), (services.instructions, &all, of_all));
        push("the kernel".to_owned(), (services.kernel_instructions, &kernel, of_kernel));
        text += &table.to_text();
        text += &machine.samples.map_or(String::new(), |samples| core_time::samples(&samples));
    }
    text
}

/// The cycles in millions, the cycles of an instruction, and the interval.
fn core_cells(instructions: u64, time: Option<CoreTime>) -> [String; 3] {
    let Some(CoreTime { cycles, estimated }) = time else { return ["-"; 3].map(str::to_owned) };
    [
        format!("{:.3}", cycles / 1e6),
        format!("{:.3}", cycles / instructions.max(1) as f64),
        estimated.map_or(String::new(), |estimated| core_time::within(&estimated)),
    ]
}

/// Mispredictions of the first `most` services, of everything, and of the kernel.
fn branches(services: &ServiceTable, most: usize) -> String {
    let mut text = "\nmispredictions per 1000 instructions; stall: cycles per instruction, not \
        part of any other column\n\n"
        .to_owned();
    let mut titles = vec!["service", "instructions"];
    for _ in &services.machines {
        titles.extend(["directions", "targets", "returns", "all", "misfetches", "stall"]);
    }
    let mut table = TextTable::new(&titles);
    let rows = services.rows.iter().take(most);
    for row in rows {
        let mut cells =
            vec![format!("{} {}", row.kind.title(), row.name), row.instructions.to_string()];
        row.machines
            .iter()
            .for_each(|on| cells.extend(predictions(on.branches.as_ref(), row.instructions)));
        table.push(cells);
    }
    for (at, (name, instructions)) in
        [("all", services.instructions), ("the kernel", services.kernel_instructions)]
            .into_iter()
            .enumerate()
    {
        let mut cells = vec![name.to_owned(), instructions.to_string()];
        for machine in &services.machines {
            cells.extend(predictions(machine.branches.as_ref().map(|of| &of[at]), instructions));
        }
        table.push(cells);
    }
    text += &table.to_text();
    for machine in services.machines.iter().filter(|machine| machine.branches.is_none()) {
        let _ =
            writeln!(text, "{}: not simulated, as its file has no table [branch]", machine.name);
    }
    text
}

fn predictions(branches: Option<&Predictions>, instructions: u64) -> [String; 6] {
    let Some(branches) = branches else {
        return ["-"; 6].map(str::to_owned);
    };
    let per_instruction = |amount: f64| amount / instructions.max(1) as f64;
    let per_thousand = |count: u64| format!("{:.2}", 1000.0 * per_instruction(count as f64));
    [
        per_thousand(branches.wrong_directions),
        per_thousand(branches.wrong_targets),
        per_thousand(branches.wrong_returns),
        format!("{:.2}", branches.per_thousand),
        per_thousand(branches.misfetches),
        branches.stall.map_or("?".to_owned(), |stall| format!("{:.2}", per_instruction(stall))),
    ]
}

fn cells(row: &ServiceRow) -> Vec<String> {
    let latency = &row.latency;
    let mut cells = vec![
        format!("{} {}", row.kind.title(), row.name),
        percent(row.share),
        row.calls.to_string(),
        format!("{:.0}", row.calls_per_second),
        format!("{:.0}", row.mean_instructions),
    ];
    for time in [latency.total, latency.computing, latency.other_services, latency.off_cpu] {
        cells.push(format!("{time:.0}"));
    }
    for part in [latency.blocked, latency.waiting] {
        cells.push(part.map_or("?".to_owned(), |time| format!("{time:.0}")));
    }
    for (at, on) in row.machines.iter().enumerate() {
        cells.push(percent(on.share));
        cells.push(format!("{:.0}", on.mean_cycles));
        cells.push(format!("{:.2}", on.cpi));
        cells.push(format!("{:.2}", on.l1i_stall));
        match (on.l1d_stall, on.tlb_stall) {
            (Some(l1d), Some(tlb)) => {
                cells.extend(
                    [Some(l1d), on.l2_stall, Some(tlb)]
                        .into_iter()
                        .flatten()
                        .map(|stall| format!("{stall:.2}")),
                );
                let shares = on
                    .stall_shares
                    .map_or(["-".to_owned(), "-".to_owned()], |shares| shares.map(percent));
                cells.extend(shares);
            }
            _ => cells.push(percent(on.l1i_stall_share)),
        }
        cells.extend((at > 0).then(|| format!("{:.1} ×", on.speedup)));
    }
    cells
}

fn amounts(services: &ServiceTable) -> String {
    let mut text = format!("\ncontext switches: {}", services.context_switches);
    for (name, count) in &services.counters {
        let _ = write!(text, ", {name}: {count}");
    }
    let _ = writeln!(
        text,
        "\nwithout a service: {:.3} % of the kernel's instructions",
        100.0 * services.other_share
    );
    for blind in &services.blind {
        let _ = writeln!(
            text,
            "not seen: {}: this kernel has no function {}",
            blind.about,
            blind.symbols.join(", ")
        );
    }
    text
}

/// The operating system's share, and the paper's numbers.
#[derive(Clone, Debug, Serialize)]
pub struct OsShareBeside {
    /// The share of the recording.
    #[serde(flatten)]
    pub found: OsShare,
    /// The numbers of Nellans 2005.
    pub nellans: SupervisorShare,
}

impl From<OsShare> for OsShareBeside {
    fn from(found: OsShare) -> OsShareBeside {
        OsShareBeside { found, nellans: nellans::SUPERVISOR_SHARE }
    }
}

/// A line for each recording, then the visits to the kernel of each.
pub fn shares(shares: &[OsShare], most: usize) -> String {
    let mut titles =
        vec!["workload".to_owned(), "instructions".to_owned(), "in the kernel".to_owned()];
    for machine in shares.first().map(|share| &share.machines).into_iter().flatten() {
        titles.push(format!("cycles ({})", machine.machine));
        titles.push("L1I misses".to_owned());
    }
    titles.extend(["interrupts", "median apart", "ninth decile"].map(str::to_owned));
    let mut table = TextTable::new(&titles.iter().map(String::as_str).collect::<Vec<_>>());
    for share in shares {
        let mut cells =
            vec![share.workload.clone(), share.instructions.to_string(), percent(share.share)];
        for machine in &share.machines {
            cells.extend([percent(machine.cycles), percent(machine.l1i_misses)]);
        }
        let interrupts = &share.interrupts;
        cells.extend(
            [interrupts.count, interrupts.median, interrupts.ninth_decile]
                .map(|number| number.to_string()),
        );
        table.push(cells);
    }
    let mut text = format!(
        "{}in the paper (Nellans 2005, tables 1 and 2): {}\n",
        table.to_text(),
        nellans::SUPERVISOR_SHARE
    );
    for share in shares {
        let _ = writeln!(
            text,
            "\n{}: visits to the kernel, in instructions (upper ends of powers of two)",
            share.workload
        );
        let mut table = TextTable::new(&["service", "visits", "median", "ninth decile"]);
        for visits in share.visits.iter().take(most) {
            let lengths = &visits.lengths;
            let mut cells = vec![format!("{} {}", visits.kind.title(), visits.name)];
            cells.extend(
                [lengths.count, lengths.median, lengths.ninth_decile]
                    .map(|number| number.to_string()),
            );
            table.push(cells);
        }
        text += &table.to_text();
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use execution::sampling::SamplePlan;
    use services::Attributed;
    use services::annotations::ServiceKind;
    use services::core_time::{CoreSamples, EstimatedTime};
    use services::ledger::{
        Distribution, Invocation, InvocationTimes, Ledger, ServiceMachineCounts,
    };
    use sim::{
        BranchCounters, BranchPrediction, DirectionPrediction, MachineCounters, MachineModel,
        PerMode,
    };

    /// 1000 instructions of a read, on a machine with data caches and prediction and on a machine
    /// with neither.
    fn read() -> ServiceTable {
        let branch =
            BranchPrediction::new(DirectionPrediction::Static, None, 16, Some(10.0), None).unwrap();
        let first =
            MachineModel { branch: Some(branch), ..machines::find("server-32k").unwrap().model };
        let machines = [first, machines::find("torrellas-8k").unwrap().model];
        let mut memory =
            MachineCounters { instructions: 1000, itlb: 3, dtlb: 7, ..MachineCounters::default() };
        memory.l1i.cold = 4;
        let branches =
            BranchCounters { wrong_directions: 6, wrong_returns: 2, ..BranchCounters::default() };
        let mut ledger = Ledger::default();
        let service = ledger.service(ServiceKind::SystemCall, "read");
        let counts = |memory, branches| ServiceMachineCounts {
            l1i_misses: 4,
            memory,
            branches,
            ..ServiceMachineCounts::default()
        };
        let invocation = Invocation {
            instructions: 1000,
            machines: vec![counts(Some(memory), Some(branches)), counts(None, None)],
            times: InvocationTimes {
                latency: 2_001_000,
                ran: 1000,
                blocked: 2_000_000,
                waiting: 0,
            },
        };
        ledger.add(service, &invocation);
        service_table(ledger, Some(1_999_000), &machines)
    }

    /// The table of a recording of 1000 instructions.
    fn service_table(
        ledger: Ledger,
        halted: Option<u64>,
        machines: &[sim::MachineModel],
    ) -> ServiceTable {
        let attributed = Attributed {
            ledger,
            counters: Vec::new(),
            instructions: 1000,
            context_switches: 0,
            interrupts: 0,
            between_interrupts: Distribution::default(),
            wakes_seen: true,
            halted,
            sampled: Vec::new(),
        };
        ServiceTable::new(&trace::RecordingHeader::default(), &attributed, Vec::new(), machines)
    }

    /// A machine without an L2 waits for memory in its L1s.
    #[test]
    fn a_machine_without_an_l2_shows_no_stall_of_one() {
        let machine = machines::find("torrellas-8k").unwrap().model;
        let memory = machine.memory.as_ref().unwrap();
        assert!(memory.l2.is_none());
        let penalty = memory.latencies.memory();
        let mut counters = MachineCounters { instructions: 1000, ..MachineCounters::default() };
        (counters.l1i.cold, counters.l1d.cold) = (4, 6);
        let mut ledger = Ledger::default();
        let service = ledger.service(ServiceKind::SystemCall, "read");
        let counts = ServiceMachineCounts {
            l1i_misses: 4,
            memory: Some(counters),
            ..ServiceMachineCounts::default()
        };
        let invocation = Invocation {
            instructions: 1000,
            machines: vec![counts],
            times: InvocationTimes::default(),
        };
        ledger.add(service, &invocation);
        let services = service_table(ledger, None, &[machine]);
        let on = services.rows[0].machines[0];
        assert_eq!(
            (on.l1i_stall, on.l1d_stall, on.l2_stall),
            (0.004 * penalty, Some(0.006 * penalty), None)
        );
        assert!(!services.machines[0].has_l2);
        let text = table(&services, TopRows { most: 5, setting: None });
        let titles = words(&text, "service");
        assert!(titles.contains(&"L1D") && !titles.contains(&"L2"), "{text}");
    }

    /// A service that ran in no sample has no interval, and says so.
    #[test]
    fn estimated_times_stand_with_their_intervals() {
        let mut services = read();
        let plan = SamplePlan { interval: 300, before: 60, measured: 40, seed: 1 };
        let within = PerMode { kernel: 1.5, user: 0.0 };
        let samples = CoreSamples { plan, units: 90, within, within_all: 1.5, widest: 1.5 };
        let time = |samples, within| CoreTime {
            cycles: 2_500_000.0,
            estimated: Some(EstimatedTime { samples, within }),
        };
        let slots = CoreSlots::default();
        let machine = &mut services.machines[0];
        machine.slots = Some([slots; 2]);
        machine.core = Some([time(90, Some(1.5)); 2]);
        let mut rare = services.rows[0].clone();
        rare.name = "rare".to_owned();
        services.rows.push(rare);
        for (row, time) in services.rows.iter_mut().zip([time(9, Some(1.25)), time(0, None)]) {
            row.machines[0].core = Some(time);
        }
        let text = |services: &ServiceTable| table(services, TopRows { most: 5, setting: None });
        assert!(!text(&services).contains("± %"), "every instruction was simulated");
        services.machines[0].samples = Some(samples);
        let text = text(&services);
        let of_core = text.split("out-of-order core").nth(1).unwrap();
        assert_eq!(words(of_core, "service")[1..5], ["Mcycles", "CPI", "±", "%"], "{text}");
        assert_eq!(words(of_core, "system call read")[3..6], ["2.500", "2500.000", "1.25"]);
        let rare = words(of_core, "system call rare");
        assert_eq!(rare[3..7], ["2.500", "2500.000", "no", "sample"], "{text}");
        assert_eq!(words(of_core, "the kernel")[2..5], ["2.500", "2500.000", "1.50"], "{text}");
        assert!(of_core.contains("estimated from 90 samples of 40 instructions"), "{text}");
    }

    fn words<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
        let line = text.lines().find(|line| line.trim_start().starts_with(start));
        line.unwrap_or_else(|| panic!("no {start:?} in\n{text}")).split_whitespace().collect()
    }

    #[test]
    fn a_latency_has_the_halt_and_a_stall_both_tlbs() {
        let text = table(&read(), TopRows { most: 5, setting: None });
        assert!(text.contains("the processor was halted for 0.001999 s of 0.002000 s"), "{text}");
        let row = words(&text, "system call read");
        // By its file, a TLB miss of the first machine takes 7 cycles: 10 misses in 1000
        // instructions.
        let expected = ["1", "1000000", "1000", "2001000", "1000", "0", "2000000", "2000000", "0"];
        assert_eq!(row[5..14], expected, "{text}");
        assert!(words(&text, "service").contains(&"TLB") && row.contains(&"0.07"), "{text}");
    }

    #[test]
    fn wrong_predictions_stand_beside_the_machine_that_has_none() {
        let text = table(&read(), TopRows { most: 5, setting: None });
        let text = text.split("mispredictions per 1000").nth(1).unwrap();
        let predicted = ["6.00", "0.00", "2.00", "8.00", "0.00", "0.08"];
        for (row, before) in [("system call read", 4), ("all", 2), ("the kernel", 3)] {
            let cells = words(text, row);
            assert_eq!(cells[before..before + 6], predicted, "{text}");
            assert_eq!(cells[before + 6..], ["-"; 6], "{text}");
        }
        assert!(text.contains("torrellas-8k: not simulated, as its file has no table [branch]"));
    }

    #[test]
    fn a_share_stands_beside_the_papers_numbers() {
        let share = OsShare::new(&read());
        let text = shares(std::slice::from_ref(&share), 5);
        let paper = "in the paper (Nellans 2005, tables 1 and 2): 44.85 % on average, at least \
                     38 % when interactive, 5 % in SPEC CPU2000\n";
        assert!(text.contains(paper), "{text}");
        let beside = serde_json::to_value(OsShareBeside::from(share)).unwrap();
        let nellans = serde_json::json!({ "average": 44.85, "interactive": 38.0, "spec": 5.0 });
        assert_eq!((&beside["nellans"], &beside["share"]), (&nellans, &serde_json::json!(1.0)));
    }
}
