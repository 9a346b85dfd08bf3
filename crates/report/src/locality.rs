//! The locality of the kernel's code beside the paper's, for a terminal.
//!
//! Input: the numbers of each workload. Output: text. Counts nothing.

use attribution::services::locality::{Locality, LoopStatistics};
use host::table::TextTable;
use std::fmt::Write as _;

/// The paper's workloads, Torrellas 1998, section 2.3.
const PAPER: [&str; 4] = ["TRFD_4", "TRFD+Make", "ARC2D+Fsck", "Shell"];

/// What the paper says about a number: a value for each workload, or one for all four.
enum PaperValue {
    Each([&'static str; 4]),
    All(&'static str),
}

use PaperValue::{All, Each};

type LocalityNumber = fn(&Locality) -> String;

/// The lines of the table: a number, and where the paper states it.
#[rustfmt::skip]
const LINES: [(&str, LocalityNumber, PaperValue); 27] = [
    ("executed bytes (table 1)", |l| l.executed_bytes.to_string(), Each(["31866", "122710", "76228", "92908"])),
    ("  of the code", |l| percent(l.executed_bytes_share), Each(["3.4 %", "13.1 %", "8.1 %", "9.9 %"])),
    ("executed blocks", |l| percent(l.executed_blocks_share), Each(["3.6 %", "13.4 %", "8.8 %", "10.4 %"])),
    ("executed functions (section 3.2)", |l| percent(l.executed_functions_share), All("26 %")),
    ("entries: interrupts (table 1)", |l| percent(l.invocations.interrupt), Each(["76.0 %", "65.7 %", "73.8 %", "29.7 %"])),
    ("  page faults", |l| percent(l.invocations.page_fault), Each(["23.0 %", "21.3 %", "21.9 %", "12.0 %"])),
    ("  system calls", |l| percent(l.invocations.system_call), Each(["0.0 %", "11.2 %", "2.4 %", "54.7 %"])),
    ("  other", |l| percent(l.invocations.other), Each(["1.0 %", "1.8 %", "1.9 %", "3.6 %"])),
    ("arcs taken with 0.99 or more (fig. 3)", |l| percent(l.arcs_nearly_always), All("73.6 %")),
    ("  with 0.01 or less", |l| percent(l.arcs_nearly_never), All("6.9 %")),
    ("loops without calls (fig. 4)", |l| l.loops_without_calls.loops.to_string(), All("156")),
    ("  of what is fetched (table 3)", |l| percent(l.loops_without_calls.dynamic_share), Each(["34.5 %", "28.9 %", "31.5 %", "39.4 %"])),
    ("  of the executed code", |l| percent(l.loops_without_calls.executed_share), Each(["3.9 %", "2.9 %", "2.7 %", "3.0 %"])),
    ("  of all code", |l| percent(l.loops_without_calls.static_share), Each(["0.1 %", "0.4 %", "0.2 %", "0.3 %"])),
    ("  6 iterations or fewer (fig. 4a)", |l| percent(l.loops_without_calls.up_to_6), All("50 %")),
    ("  25 iterations or fewer", |l| percent(l.loops_without_calls.up_to_25), All("75 %")),
    ("  bytes of the largest (fig. 4b)", |l| l.loops_without_calls.largest_bytes.to_string(), All("300")),
    ("loops with calls (fig. 5)", |l| l.loops_with_calls.loops.to_string(), All("71")),
    ("  iterations, median (fig. 5a)", |l| iterations(&l.loops_with_calls), All("10 or less")),
    ("  bytes with callees, median (fig. 5b)", |l| l.loops_with_calls.median_bytes.to_string(), All("2048")),
    ("executed functions (fig. 6)", |l| l.executed_functions.to_string(), All("600")),
    ("calls that go to the ten most called", |l| percent(l.popular.iter().map(|it| it.share).sum()), All("most")),
    ("  called again within 100 words (fig. 7)", |l| percent(l.reuse[0]), All("25 %")),
    ("  within 1000", |l| percent(l.reuse[0] + l.reuse[1]), All("70 %")),
    ("  within 10000", |l| percent(l.reuse[..3].iter().sum()), All("-")),
    ("  later in the same stay", |l| percent(l.reuse[3]), All("-")),
    ("  not again in it", |l| percent(l.reuse[4]), All("9 %")),
];

/// One column for each workload, then the paper's four.
pub fn text(localities: &[Locality]) -> String {
    let mut titles = vec![""];
    titles.extend(localities.iter().map(|locality| locality.workload.as_str()));
    titles.extend(PAPER);
    let mut table = TextTable::new(&titles);
    for (name, number, theirs) in &LINES {
        let mut cells = vec![(*name).to_owned()];
        cells.extend(localities.iter().map(number));
        match theirs {
            Each(each) => cells.extend(each.map(str::to_owned)),
            All(all) => cells.push(format!("all {all}")),
        }
        table.push(cells);
    }
    let mut text = table.to_text();
    text += "right: Torrellas 1998, section 3; their code is 940 KB, their machine has four \
        processors\n";
    for locality in localities {
        let _ = writeln!(text, "\n{}: most called", locality.workload);
        let mut table = TextTable::new(&["function", "calls", "share"]);
        for popular in &locality.popular {
            table.push(vec![
                popular.name.clone(),
                popular.calls.to_string(),
                percent(popular.share),
            ]);
        }
        text += &table.to_text();
    }
    text
}

fn iterations(loops: &LoopStatistics) -> String {
    format!("{:.1}", loops.median_iterations)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
