//! The locality of the kernel's code beside the paper's, for a terminal.
//!
//! Input: the numbers of each workload. Output: text. Counts nothing.

use host::table::TextTable;
use papers::torrellas::{self, Value};
use services::locality::{Locality, LoopStatistics};
use std::fmt::Write as _;

type LocalityNumber = fn(&Locality) -> String;

/// The lines of the table: a number, and where the paper states it.
#[rustfmt::skip]
const LINES: [(&str, LocalityNumber, Value); 27] = [
    ("executed bytes (table 1)", |l| l.executed_bytes.to_string(), torrellas::EXECUTED_BYTES),
    ("  of the code", |l| percent(l.executed_bytes_share), torrellas::EXECUTED_BYTES_SHARE),
    ("executed blocks", |l| percent(l.executed_blocks_share), torrellas::EXECUTED_BLOCKS),
    ("executed functions (section 3.2)", |l| percent(l.executed_functions_share), torrellas::EXECUTED_FUNCTIONS_SHARE),
    ("entries: interrupts (table 1)", |l| percent(l.invocations.interrupt), torrellas::INTERRUPTS),
    ("  page faults", |l| percent(l.invocations.page_fault), torrellas::PAGE_FAULTS),
    ("  system calls", |l| percent(l.invocations.system_call), torrellas::SYSTEM_CALLS),
    ("  other", |l| percent(l.invocations.other), torrellas::OTHER_ENTRIES),
    ("arcs taken with 0.99 or more (fig. 3)", |l| percent(l.arcs_nearly_always), torrellas::ARCS_NEARLY_ALWAYS),
    ("  with 0.01 or less", |l| percent(l.arcs_nearly_never), torrellas::ARCS_NEARLY_NEVER),
    ("loops without calls (fig. 4)", |l| l.loops_without_calls.loops.to_string(), torrellas::LOOPS_WITHOUT_CALLS),
    ("  of what is fetched (table 3)", |l| percent(l.loops_without_calls.dynamic_share), torrellas::THEIR_FETCHES),
    ("  of the executed code", |l| percent(l.loops_without_calls.executed_share), torrellas::THEIR_EXECUTED_CODE),
    ("  of all code", |l| percent(l.loops_without_calls.static_share), torrellas::THEIR_CODE),
    ("  6 iterations or fewer (fig. 4a)", |l| percent(l.loops_without_calls.up_to_6), torrellas::UP_TO_6_ITERATIONS),
    ("  25 iterations or fewer", |l| percent(l.loops_without_calls.up_to_25), torrellas::UP_TO_25_ITERATIONS),
    ("  bytes of the largest (fig. 4b)", |l| l.loops_without_calls.largest_bytes.to_string(), torrellas::LARGEST_LOOP_BYTES),
    ("loops with calls (fig. 5)", |l| l.loops_with_calls.loops.to_string(), torrellas::LOOPS_WITH_CALLS),
    ("  iterations, median (fig. 5a)", |l| iterations(&l.loops_with_calls), torrellas::ITERATIONS_WITH_CALLS),
    ("  bytes with callees, median (fig. 5b)", |l| l.loops_with_calls.median_bytes.to_string(), torrellas::BYTES_WITH_CALLEES),
    ("executed functions (fig. 6)", |l| l.executed_functions.to_string(), torrellas::EXECUTED_FUNCTIONS),
    ("calls that go to the ten most called", |l| percent(l.popular.iter().map(|it| it.share).sum()), torrellas::TEN_MOST_CALLED),
    ("  called again within 100 words (fig. 7)", |l| percent(l.reuse[0]), torrellas::AGAIN_WITHIN_100),
    ("  within 1000", |l| percent(l.reuse[0] + l.reuse[1]), torrellas::AGAIN_WITHIN_1000),
    ("  within 10000", |l| percent(l.reuse[..3].iter().sum()), torrellas::AGAIN_WITHIN_10000),
    ("  later in the same stay", |l| percent(l.reuse[3]), torrellas::AGAIN_LATER),
    ("  not again in it", |l| percent(l.reuse[4]), torrellas::NOT_AGAIN),
];

/// One column for each workload, then the paper's four.
pub fn text(localities: &[Locality]) -> String {
    let mut titles = vec![""];
    titles.extend(localities.iter().map(|locality| locality.workload.as_str()));
    titles.extend(torrellas::WORKLOADS);
    let mut table = TextTable::new(&titles);
    for (name, number, theirs) in &LINES {
        let mut cells = vec![(*name).to_owned()];
        cells.extend(localities.iter().map(number));
        match theirs {
            Value::Each(each) => cells.extend(each.map(str::to_owned)),
            Value::All(all) => cells.push(format!("all {all}")),
        }
        table.push(cells);
    }
    let mut text = table.to_text();
    let _ = writeln!(
        text,
        "right: Torrellas 1998, section 3; their code is {} KB, their machine has four processors",
        torrellas::CODE_KB
    );
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
