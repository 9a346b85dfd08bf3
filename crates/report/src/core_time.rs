//! Tables of an out-of-order core's time, for a terminal.
//!
//! Input: result rows. Output: text. Counts nothing.

use host::table::TextTable;
use replay::results::CoreResult;
use services::core_time::{CoreSamples, EstimatedTime};
use sim::core::{CoreCounters, CoreSlots};
use std::fmt::Write as _;

/// Two tables of a machine's core, for layouts by name: where the slots go, and what the structures
/// counted. Empty without a core.
pub(crate) fn text(machine: &str, cores: &[(String, &CoreResult)]) -> String {
    let Some((_, first)) = cores.first() else { return String::new() };
    let mut text = format!(
        "\n{machine}: out-of-order core, where the slots go (top-down; data, instr., pipe: SimOS)\
         \n{}",
        time(cores)
    );
    let _ =
        write!(text, "\n{machine}: out-of-order core, per 1000 instructions\n{}", events(cores));
    if let Some(sampled) = &first.sampled {
        let _ = writeln!(
            text,
            "note: estimated from {} samples of {} instructions, with 95 % intervals",
            sampled.units, sampled.plan.measured
        );
    }
    text += &functions(machine, cores);
    if !first.unknown.is_empty() {
        let mut names: Vec<(&String, &u64)> = first.unknown.iter().collect();
        names.sort_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.cmp(b.0)));
        let named: Vec<String> =
            names.iter().take(8).map(|(name, times)| format!("{name} {times}")).collect();
        let more = names.len().saturating_sub(8);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let _ = writeln!(
            text,
            "note: counted as one uop, because the table of uops lacks them: {}{more}",
            named.join(", ")
        );
    }
    text
}

/// The shares of the slots of functions under the first layout and, if there is one, the last.
fn functions(machine: &str, cores: &[(String, &CoreResult)]) -> String {
    let mut text = String::new();
    let more = cores.iter().skip(1).next_back();
    for (layout, core) in cores.iter().take(1).chain(more) {
        let all: u64 = core.functions.iter().map(|of| of.slots.dispatch.total()).sum();
        if all == 0 {
            continue;
        }
        let _ = writeln!(
            text,
            "\n{machine}: slots of functions, and where they go; layout {layout}; simulated"
        );
        let mut table = TextTable::new(&titles("function"));
        let (named, rest) = core.functions.split_at(FUNCTIONS.min(core.functions.len()));
        for of in named {
            table.push(cells(of.name.clone(), &of.slots, all));
        }
        let mut others = CoreSlots::default();
        rest.iter().for_each(|of| others += of.slots);
        if !rest.is_empty() {
            table.push(cells("all others".to_owned(), &others, all));
        }
        text += &table.to_text();
    }
    text
}

/// The functions in a text.
const FUNCTIONS: usize = 10;

/// The titles of [`cells`].
pub(crate) fn titles(first: &str) -> Vec<&str> {
    let mut titles = vec![first, "slots %"];
    titles.extend(SHARES);
    titles
}

/// Half of the 95 % interval of an estimate, in per cent; or that there is none, and why.
pub(crate) fn within(estimated: &EstimatedTime) -> String {
    match (estimated.within, estimated.samples) {
        (Some(within), _) => format!("{within:.2}"),
        (None, 0) => "no sample".to_owned(),
        (None, 1) => "1 sample".to_owned(),
        (None, samples) => format!("{samples} samples"),
    }
}

/// What a table of estimates says of its samples.
pub(crate) fn samples(samples: &CoreSamples) -> String {
    format!(
        "note: estimated from {} samples of {} instructions; ± %: half of the 95 % interval; a \
         service without one ran in no sample, or in too few: its time is an estimate from its \
         counts, and may be far off\n",
        samples.units, samples.plan.measured
    )
}

/// The shares of the slots of a function or service: of `all` slots, and by cause.
pub(crate) fn cells(name: String, slots: &CoreSlots, all: u64) -> Vec<String> {
    let mut cells = vec![name, percent(slots.dispatch.total(), all)];
    cells.extend(shares(slots));
    cells
}

const SHARES: [&str; 9] = [
    "retiring %",
    "bad spec. %",
    "fe lat. %",
    "fe bandw. %",
    "memory %",
    "core %",
    "data %",
    "instr. %",
    "pipe %",
];

fn shares(CoreSlots { dispatch, graduation }: &CoreSlots) -> [String; 9] {
    let (all, graduated) = (dispatch.total(), graduation.total());
    [
        percent(dispatch.retiring, all),
        percent(dispatch.bad_speculation, all),
        percent(dispatch.front_end_latency, all),
        percent(dispatch.front_end_bandwidth, all),
        percent(dispatch.memory, all),
        percent(dispatch.core, all),
        percent(graduation.data, graduated),
        percent(graduation.instruction, graduated),
        percent(graduation.pipeline, graduated),
    ]
}

fn percent(part: u64, all: u64) -> String {
    format!("{:.1}", 100.0 * part as f64 / all.max(1) as f64)
}

/// Lines for kernel and user code.
fn time(cores: &[(String, &CoreResult)]) -> String {
    let is_sampled = cores.iter().any(|(_, core)| core.sampled.is_some());
    let mut names = vec!["layout", "", "Mcycles", "CPI"];
    if is_sampled {
        names.extend(["± %", "change %"]);
    }
    names.extend(SHARES);
    let mut table = TextTable::new(&names);
    for (layout, core) in cores {
        for (mode, counters) in modes(core) {
            let cycles = core.mode_cycles(counters);
            let mut cells = vec![
                layout.clone(),
                mode.to_owned(),
                format!("{:.2}", cycles / 1e6),
                format!("{:.3}", cycles / counters.instructions.max(1) as f64),
            ];
            if is_sampled {
                cells.extend(interval(core, mode));
            }
            let CoreCounters { slots, graduation, .. } = *counters;
            cells.extend(shares(&CoreSlots { dispatch: slots, graduation }));
            table.push(cells);
        }
    }
    table.to_text()
}

/// The 95 % interval of a mode's cycles, and their change against the original with its own.
fn interval(core: &CoreResult, mode: &str) -> [String; 2] {
    let Some(sampled) = &core.sampled else { return [String::new(), String::new()] };
    let (within, place) = match mode {
        KERNEL => (sampled.within.kernel, 0),
        _ => (sampled.within.user, 1),
    };
    let change = sampled.change.map(|change| change[place]);
    let text = change.map(|change| format!("{:+.2} ±{:.2}", change.value, change.within));
    [format!("{within:.2}"), text.unwrap_or_default()]
}

/// Lines for kernel and user code.
fn events(cores: &[(String, &CoreResult)]) -> String {
    let mut table = TextTable::new(&[
        "layout",
        "",
        "mispred.",
        "resteers",
        "late BTB",
        "L1I misses",
        "late",
        "uop cache %",
        "iTLB",
        "L1D",
        "L2 data",
        "dTLB",
        "forwarded",
        "wrong path",
    ]);
    for (layout, core) in cores {
        for (mode, counters) in modes(core) {
            let rate = |count: u64| {
                format!("{:.2}", 1000.0 * count as f64 / counters.instructions.max(1) as f64)
            };
            let slots = (counters.uop_cache_slots + counters.decoded_slots).max(1);
            table.push(vec![
                layout.clone(),
                mode.to_owned(),
                rate(counters.branches.mispredictions()),
                rate(counters.branches.misfetches),
                rate(counters.late_targets),
                rate(counters.l1i_misses),
                rate(counters.l1i_late),
                format!("{:.1}", 100.0 * counters.uop_cache_slots as f64 / slots as f64),
                rate(counters.itlb_misses),
                rate(counters.l1d_misses),
                rate(counters.l2_data_misses),
                rate(counters.dtlb_misses),
                rate(counters.forwarded),
                rate(counters.wrong_path_targets),
            ]);
        }
    }
    table.to_text()
}

const KERNEL: &str = "kernel";

/// Kernel and user, without a mode that never ran.
fn modes(core: &CoreResult) -> impl Iterator<Item = (&'static str, &CoreCounters)> {
    [(KERNEL, &core.counters.kernel), ("user", &core.counters.user)]
        .into_iter()
        .filter(|(_, counters)| counters.slots.total() > 0)
}
