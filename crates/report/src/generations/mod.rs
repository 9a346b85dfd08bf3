//! Services on machines of several generations, beside the numbers of two papers, for a terminal.
//!
//! Input: the services on each machine. Output: text, and what is printed as JSON. Counts nothing.

mod beside;

use crate::core_time;
use crate::top::TopRows;
use beside::{NELLANS, SIMOS, name_of};
pub use beside::{Nellans, NellansCall, Papers, Simos};
use host::table::TextTable;
use serde::Serialize;
use services::generations::{GenerationRow, Generations, ServiceTime, Split};
use std::fmt::Write as _;

const NONE_RAN: &str = "  no service of the paper ran\n";

/// The services of a recording on each machine, and the papers' numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GenerationsBeside {
    /// The recording's.
    #[serde(flatten)]
    pub found: Generations,
    /// The papers'.
    pub papers: Papers,
}

impl GenerationsBeside {
    /// Adds the papers' rows for these services.
    pub fn new(found: Generations) -> GenerationsBeside {
        GenerationsBeside { papers: Papers::new(&found), found }
    }
}

/// The tables, with the first services.
pub fn text(beside: &GenerationsBeside, top: TopRows) -> String {
    let found = &beside.found;
    let mut text = format!(
        "workload {}, kernel {}, seed {}{}; simulated\n\
         {} instructions; against {}: P times faster, T by the clock, A by the cycles for each \
         instruction\n\
         P = T × A (Nellans 2005, section 3) holds exactly; printed are three digits of each\n",
        found.workload,
        found.kernel,
        found.seed,
        found.part.as_ref().map_or(String::new(), |part| format!(", part {part}")),
        found.sums[0].instructions,
        found.machines.first().map_or("", |machine| &machine.name),
    );
    text += &machines(found);
    let shown: Vec<&GenerationRow> =
        found.sums.iter().chain(found.rows.iter().take(top.most)).collect();
    let _ = write!(text, "\ncycles for each instruction (simulated)\n{}", cycles(found, &shown));
    let _ = write!(text, "\nnanoseconds for each call (simulated)\n{}", times(found, &shown));
    let _ = write!(text, "\nP, T and A (simulated)\n{}", splits(found, &shown));
    text += &top.rest(found.rows.len());
    match &beside.papers.nellans {
        Some(paper) => text += &nellans(paper),
        None => text += &wanted("tables 3 and 4 of Nellans 2005", &NELLANS),
    }
    match &beside.papers.simos {
        Some(rows) => text += &simos(rows),
        None => text += &wanted("table 4.8 of Rosenblum 1995", &SIMOS),
    }
    text
}

/// The machines that a paper's table needs.
fn wanted(table: &str, machines: &[&str]) -> String {
    format!("\nfor {table}: the machines {}\n", machines.join(", "))
}

fn machines(found: &Generations) -> String {
    let mut table = TextTable::new(&["machine", "MHz", "model", "ms", "P", "T", "A", "CPI"]);
    for (at, machine) in found.machines.iter().enumerate() {
        let on = &found.sums[0].on[at];
        let mut cells = vec![
            machine.name.clone(),
            machine.megahertz.map_or("-".to_owned(), |clock| clock.to_string()),
            machine.model.title().to_owned(),
            on.milliseconds.map_or("-".to_owned(), digits),
        ];
        cells.extend(split(on.split));
        cells.push(format!("{:.3}", on.cpi));
        table.push(cells);
    }
    let notes: String = found.notes.iter().map(|note| format!("note: {note}\n")).collect();
    format!("\n{}{notes}", table.to_text())
}

fn titles<'a>(found: &'a Generations, first: [&'a str; 2]) -> Vec<&'a str> {
    first.into_iter().chain(found.machines.iter().map(|machine| machine.name.as_str())).collect()
}

fn cycles(found: &Generations, rows: &[&GenerationRow]) -> String {
    let mut table = TextTable::new(&titles(found, ["service", "instructions"]));
    for row in rows {
        let cpi = row.on.iter().map(|on| match &on.estimated {
            None => format!("{:.3}", on.cpi),
            Some(estimated) if estimated.within.is_none() => {
                format!("{:.3} ({})", on.cpi, core_time::within(estimated))
            }
            Some(estimated) => format!("{:.3} ±{} %", on.cpi, core_time::within(estimated)),
        });
        let first = [name_of(row), row.instructions.to_string()];
        table.push(first.into_iter().chain(cpi).collect());
    }
    table.to_text()
}

fn times(found: &Generations, rows: &[&GenerationRow]) -> String {
    let mut table = TextTable::new(&titles(found, ["service", "calls"]));
    for row in rows.iter().filter(|row| row.kind.is_some()) {
        let time = |on: &ServiceTime| on.nanoseconds_per_call.map_or("-".to_owned(), digits);
        let first = [name_of(row), row.calls.to_string()];
        table.push(first.into_iter().chain(row.on.iter().map(time)).collect());
    }
    table.to_text()
}

fn splits(found: &Generations, rows: &[&GenerationRow]) -> String {
    let mut names = vec!["service".to_owned()];
    for machine in found.machines.iter().skip(1) {
        names.extend([format!("{} P", machine.name), "T".to_owned(), "A".to_owned()]);
    }
    let mut table = TextTable::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for row in rows {
        let of_machines = row.on.iter().skip(1).flat_map(|on| split(on.split));
        table.push([name_of(row)].into_iter().chain(of_machines).collect());
    }
    table.to_text()
}

fn nellans(paper: &Nellans) -> String {
    let [fo4, clocks] = paper.technology.map(digits);
    let [older, newer] = NELLANS;
    let mut text = format!(
        "\nfrom {older} to {newer}, simulated, and Nellans 2005: a 486 at 33 MHz and a Pentium 4 at \
         3.0 GHz,\nmeasured; the paper's T is {fo4}, by the FO4 delay, and {clocks} by the clocks\n\n\
         table 3, the paper's, measured: times faster\n"
    );
    let mut table = TextTable::new(&["program", "real", "user", "system"]);
    for (program, speedups) in &paper.programs {
        let first = [(*program).to_owned()];
        table.push(first.into_iter().chain(speedups.map(digits)).collect());
    }
    text += &table.to_text();
    for (what, speedup) in ["all of it", "the kernel"].iter().zip(paper.speedups) {
        let [by_fo4, by_clock] = paper.technology.map(|technology| digits(speedup / technology));
        let _ = writeln!(
            text,
            "  {what}, mean: P = {} = {fo4} × {by_fo4} = {clocks} × {by_clock}",
            digits(speedup)
        );
    }
    text += "this recording, simulated\n";
    for (what, ours) in ["all of it", "the kernel", "user mode"].iter().zip(paper.ours) {
        let [speedup, technology, architecture] = split(ours);
        let _ = writeln!(text, "  {what}: P = {speedup} = {technology} × {architecture}");
    }
    text += "\ntable 4: ours simulated, the paper's measured\n";
    if paper.calls.is_empty() {
        return text + NONE_RAN;
    }
    let mut table = TextTable::new(&[
        "service",
        "P",
        "T",
        "A",
        "paper",
        "P measured",
        "A, T = 11",
        "A, by clock",
    ]);
    for row in &paper.calls {
        let mut cells = vec![row.service.clone()];
        cells.extend(split(row.ours));
        cells.push(row.call.to_owned());
        cells.extend(row.speedup.map(digits));
        cells.push(digits(row.by_clock));
        table.push(cells);
    }
    text + &table.to_text()
}

fn simos(rows: &[Simos]) -> String {
    let text = "\nfrom simos-1994 to simos-1996 (T = 1) and simos-1998 (T = 2.5), and Rosenblum \
                1995, table 4.8:\nall simulated; the paper's A of 1998 is its ratio of CPI\n\n";
    if rows.is_empty() {
        return format!("{text}{NONE_RAN}");
    }
    let mut table = TextTable::new(&[
        "service",
        "CPI 1994",
        "CPI 1998",
        "P 1996",
        "P 1998",
        "A 1998",
        "paper's workload",
        "service",
        "CPI 1994",
        "CPI 1998",
        "P 1996",
        "P 1998",
        "A 1998",
    ]);
    for row in rows {
        let two = |cpi: f64| format!("{cpi:.2}");
        let [of_1996, of_1998] = row.ours.map(split);
        let [p_1998, _, a_1998] = of_1998;
        let mut cells = vec![row.service.clone()];
        cells.extend(row.cpi.map(two));
        cells.extend([of_1996[0].clone(), p_1998, a_1998]);
        cells.extend(row.row.map(str::to_owned));
        cells.extend(row.paper_cpi.map(two));
        cells.extend(row.paper_speedup.map(|speedup| format!("{speedup:.1}")));
        cells.push(two(row.paper_cpi[0] / row.paper_cpi[1]));
        table.push(cells);
    }
    format!("{text}{}", table.to_text())
}

/// P, T and A.
fn split(split: Option<Split>) -> [String; 3] {
    match split {
        Some(Split { speedup, technology, architecture }) => {
            [speedup, technology, architecture].map(digits)
        }
        None => ["-"; 3].map(str::to_owned),
    }
}

/// Three digits, or all digits before the point. A paper has speed-ups of 0.
fn digits(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        _ if value < 0.0095 => format!("{value:.5}"),
        _ if value < 0.995 => format!("{value:.3}"),
        _ if value < 9.995 => format!("{value:.2}"),
        _ if value < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests;
