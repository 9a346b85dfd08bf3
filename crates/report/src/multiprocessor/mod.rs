//! Services of several CPUs beside one, and the numbers of Rosenblum 1995, section 5, as text.
//!
//! Input: the tables of `coherence::multiprocessor`. Output: text, and what is printed as JSON.
//! Counts nothing.

use crate::order;
use crate::top::TopRows;
use coherence::multiprocessor::{CoherentCycles, L2Misses, MultiprocessorRow, MultiprocessorTable};
use host::table::TextTable;
use papers::rosenblum;
pub use papers::rosenblum::SimosService;
use serde::Serialize;
use std::fmt::Write;

/// A table, and the paper's numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MultiprocessorBeside {
    /// The recording's.
    #[serde(flatten)]
    pub found: MultiprocessorTable,
    /// Rows of the paper's table 5.4.
    pub simos: [SimosService; rosenblum::SERVICES.len()],
}

impl From<MultiprocessorTable> for MultiprocessorBeside {
    fn from(found: MultiprocessorTable) -> MultiprocessorBeside {
        MultiprocessorBeside { found, simos: rosenblum::SERVICES }
    }
}

/// The tables of one recording on one machine, with at most `top` services.
pub fn text(beside: &MultiprocessorBeside, top: TopRows) -> String {
    let mut out = String::new();
    // Writing to a `String` never fails.
    let _ = write(&beside.found, top, &mut out);
    out
}

fn write(table: &MultiprocessorTable, top: TopRows, out: &mut String) -> std::fmt::Result {
    let MultiprocessorTable { workload, kernel_build_id, seed, cpus, machine, .. } = table;
    write!(
        out,
        "{workload}, kernel {kernel_build_id}, seed {seed}: {cpus} CPUs, simulated on {machine}, \
         {}",
        order::title(table.totals.order)
    )?;
    match &table.one_cpu {
        Some(one) => writeln!(out, "; beside one CPU: {}, seed {}", one.workload, one.seed)?,
        None => writeln!(out)?,
    }
    write!(out, "\n{}", order::moved(&table.totals))?;
    writeln!(out, "events in a million instructions (SimOS: table 5.2)")?;
    out.push_str(&events(table));
    writeln!(out, "\nwhere the cycles of all CPUs go, in % (SimOS: figure 5.1)")?;
    out.push_str(&modes(table));
    let paper = rosenblum::SYNCHRONIZATION.map(|(of, percent)| format!("{percent} % ({of})"));
    writeln!(
        out,
        "synchronization in the kernel: {:.1} %; SimOS, section 5.2: {}",
        100.0 * table.synchronization(),
        paper.join(", ")
    )?;
    writeln!(
        out,
        "\nthe kernel's misses in L2s of several sizes, for each 100 instructions (SimOS: figure 5.3; \
         at least {} in L2s of 128-byte lines, section 5.2)",
        rosenblum::L2_MISSES
    )?;
    out.push_str(&l2_sizes(table));
    writeln!(out, "\nservices of the kernel (SimOS: table 5.4)")?;
    out.push_str(&services(table, top.most));
    out.push_str(&top.rest(table.rows.len()));
    writeln!(out, "\nrows of SimOS' table 5.4: eight CPUs of 1994")?;
    out.push_str(&of_paper());
    Ok(())
}

fn events(table: &MultiprocessorTable) -> String {
    let titles = ["event", "times", "rate", "SimOS, programs", "SimOS, database"];
    let mut text = TextTable::new(&titles);
    for event in &table.events {
        let mut cells =
            vec![event.event.to_owned(), event.count.to_string(), rate(event.per_million)];
        let of_paper = rosenblum::EVENTS.iter().find(|(name, _)| *name == event.event);
        if let Some((_, seconds)) = of_paper {
            let both = seconds.iter().zip(rosenblum::INSTRUCTIONS);
            cells.extend(both.map(|(events, millions)| rate(events / millions)));
        }
        text.push(cells);
    }
    text.to_text()
}

fn modes(table: &MultiprocessorTable) -> String {
    let mut text = TextTable::new(&[
        "mode",
        "Mcycles",
        "of all",
        "work",
        "sync",
        "coherence",
        "upgrades",
        "code",
        "data",
    ]);
    for mode in &table.modes {
        let mut cells = vec![
            mode.mode.to_owned(),
            format!("{:.3}", mode.cycles.total() / 1e6),
            percent(mode.share),
        ];
        cells.extend(parts(&mode.cycles));
        text.push(cells);
    }
    text.to_text()
}

fn l2_sizes(table: &MultiprocessorTable) -> String {
    let classes = ["cold", "capacity", "coherence", "upgrades", "all"];
    let on_one = classes.map(|class| format!("on one: {class}"));
    let titles = ["L2"].into_iter().chain(classes).chain(on_one.iter().map(String::as_str));
    let mut text = TextTable::new(&titles.collect::<Vec<_>>());
    for row in &table.l2_sizes {
        let mut cells = vec![format!("{} KB", row.bytes >> 10)];
        for misses in [Some(row.misses), row.on_one_cpu] {
            cells.extend(match misses {
                Some(misses) => classes_of(&misses),
                None => classes.map(|_| "-".to_owned()),
            });
        }
        text.push(cells);
    }
    text.to_text()
}

fn classes_of(misses: &L2Misses) -> [String; 5] {
    let L2Misses { cold, capacity, coherence, upgrades } = *misses;
    [cold, capacity, coherence, upgrades, misses.total()].map(|rate| format!("{rate:.3}"))
}

/// The parts of cycles, in per cent: work, synchronization, coherence, upgrades, stalls for code
/// and for data.
fn parts(cycles: &CoherentCycles) -> [String; 6] {
    let CoherentCycles { work, synchronization, coherence, upgrades, instruction, data, .. } =
        *cycles;
    let all = cycles.total().max(f64::MIN_POSITIVE);
    [work, synchronization, coherence, upgrades, instruction, data].map(|part| percent(part / all))
}

fn services(table: &MultiprocessorTable, top: usize) -> String {
    let mut text = TextTable::new(&[
        "service",
        "of kernel",
        "on one",
        "cycles",
        "slower",
        "work",
        "sync",
        "coherence",
        "upgrades",
        "code",
        "data",
        "blocked us",
        "waits us",
        "rate",
        "misses/call",
        "upgrades/call",
    ]);
    for row in table.rows.iter().take(top) {
        text.push(service(row));
    }
    text.to_text()
}

fn service(row: &MultiprocessorRow) -> Vec<String> {
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let microseconds = |time: Option<f64>| or_none(time.map(|ns| format!("{:.2}", ns / 1e3)));
    let mut cells = vec![
        format!("{} {}", row.kind.title(), row.name),
        percent(row.share),
        or_none(row.share_on_one_cpu.map(percent)),
        format!("{:.0}", row.mean_cycles),
        or_none(row.slowdown.map(|slower| format!("{:+.0} %", 100.0 * slower))),
    ];
    cells.extend(parts(&row.cycles));
    cells.extend([
        microseconds(row.blocked),
        microseconds(row.waiting),
        rate(row.per_million),
        format!("{:.1}", row.coherence_misses),
        format!("{:.1}", row.upgrades),
    ]);
    cells
}

fn of_paper() -> String {
    let mut text = TextTable::new(&[
        "service",
        "of kernel",
        "on one",
        "slower",
        "work",
        "sync",
        "coherence",
        "upgrades/call",
        "code",
        "data",
    ]);
    for row in rosenblum::SERVICES {
        let mut cells = vec![format!("{} ({})", row.service, row.workload)];
        cells.extend(row.share.map(|share| format!("{share:.1}")));
        cells.push(format!("{:+.0} %", row.slowdown));
        cells.extend(row.parts.map(|part| part.to_string()));
        text.push(cells);
    }
    text.to_text()
}

fn percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

fn rate(events: f64) -> String {
    if events >= 10.0 { format!("{events:.1}") } else { format!("{events:.3}") }
}
