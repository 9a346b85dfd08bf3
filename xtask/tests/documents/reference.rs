//! The pages of the reference list what the program has: commands, machines, workloads, formats,
//! algorithms, counters.
//!
//! Input: pages of `docs/`, and the tables that the program itself uses. Runs no command.

use super::{read, root};
use clap::CommandFactory;
use replay::results::{
    CoherenceResult, CoreResult, CpuOrder, CpuResult, CpuWaits, Estimate, FunctionSlots,
    MemoryCounters, Predictions, ResultCounters, SamplePlan, SampledResult,
};
use serde_json::Value;
use sim::{MissCounts, PerMode, TakenBranches};
use std::collections::BTreeSet;

/// The lines of a page below a heading, until the next heading.
fn section<'a>(page: &'a str, heading: &str) -> impl Iterator<Item = &'a str> {
    let below = page.lines().skip_while(move |line| *line != heading).skip(1);
    below.take_while(|line| !line.starts_with('#'))
}

/// The words between backquotes.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The words between backquotes in the first column of the tables in these lines.
fn first_column<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let rows = lines.filter(|line| line.starts_with('|'));
    rows.flat_map(|row| code(row.split('|').nth(1).unwrap_or(""))).map(str::to_owned).collect()
}

/// The names of the TOML files in a directory, without the ending.
fn files(directory: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(root().join(directory)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| Some(name.strip_suffix(".toml")?.to_owned())).collect()
}

/// The values that an option of a command takes.
fn values(command: &str, option: &str) -> BTreeSet<String> {
    let all = kernlane::cli::Cli::command();
    let command = all.find_subcommand(command).unwrap();
    let mut arguments = command.get_arguments();
    let option = arguments.find(|argument| argument.get_long() == Some(option)).unwrap();
    option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect()
}

/// The commands that do something, with the path to each: `kernlane live apply`.
fn commands(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Command)>) {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        let path = format!("{path} {}", below.get_name());
        match below.has_subcommands() {
            true => commands(below, &path, found),
            false => found.push((path, below.clone())),
        }
    }
}

fn has_option(command: &clap::Command, name: &str) -> bool {
    command.get_arguments().any(|known| known.get_long() == Some(name))
}

#[test]
fn every_command_has_a_row_and_the_options_of_a_row_exist() {
    let page = read("docs/reference/commands.md");
    let tool = kernlane::cli::Cli::command();
    let record = tool.find_subcommand("record").unwrap();
    let mut all = Vec::new();
    commands(&tool, "kernlane", &mut all);
    assert!(all.len() > 25, "only {} commands", all.len());
    for (path, command) in all {
        let begins = |row: &&str| {
            let what = row.strip_prefix("| `").and_then(|row| row.strip_prefix(&path));
            what.is_some_and(|rest| rest.starts_with(['`', ' ']))
        };
        let rows: Vec<&str> = page.lines().filter(begins).collect();
        assert!(!rows.is_empty(), "docs/reference/commands.md has no row for `{path}`");
        for word in rows.iter().flat_map(|row| code(row)).flat_map(|words| words.split(' ')) {
            let Some(option) = word.strip_prefix("--") else { continue };
            // A row also says with which options of `record` its recordings are made.
            let exists = has_option(&command, option) || has_option(record, option);
            assert!(exists, "docs/reference/commands.md: `{path}` has no option --{option}");
        }
    }
}

#[test]
fn every_shipped_machine_and_workload_has_a_row() {
    let machines = read("docs/reference/machines.md");
    assert_eq!(first_column(section(&machines, "## Shipped machines")), files("machines"));
    let workloads = read("docs/reference/workloads.md");
    assert_eq!(first_column(section(&workloads, "## Shipped workloads")), files("workloads"));
}

#[test]
fn every_replacement_policy_is_named() {
    let page = read("docs/reference/machines.md");
    let names: Vec<String> =
        sim::Replacement::ALL.iter().map(|policy| format!("`{}`", policy.name())).collect();
    let line = format!("`replacement` is {}.", names.join(" or "));
    assert!(page.lines().any(|found| found == line), "docs/reference/machines.md lacks: {line}");
}

#[test]
fn every_export_format_has_a_row() {
    let page = read("docs/reference/exports.md");
    let mut rows = first_column(section(&page, "## Export"));
    assert!(rows.remove("--format"), "the title of the column");
    assert_eq!(rows, values("export", "format"));
}

#[test]
fn every_layout_algorithm_has_a_row() {
    let page = read("docs/explanation/ordering.md");
    assert_eq!(first_column(section(&page, "## The algorithms")), values("layout", "algorithm"));
}

/// Counters with every part that a result can have.
fn counters() -> ResultCounters {
    let of_cpu = CpuResult {
        counters: Default::default(),
        stalls: [0.0; 4],
        waits: Some(CpuWaits::default()),
    };
    ResultCounters {
        instructions: PerMode::default(),
        fetched_bytes: PerMode::default(),
        l1i: PerMode::<MissCounts>::default(),
        itlb: Some(PerMode::default()),
        taken: PerMode::<TakenBranches>::default(),
        touched_lines: PerMode::default(),
        touched_pages: PerMode::default(),
        cycles: 0.0,
        interruptions: 0,
        unresolved_branches: 0,
        breaks: 0,
        memory: Some(PerMode::<MemoryCounters>::default()),
        branches: Some(PerMode::<Predictions>::default()),
        core: Some(CoreResult {
            widths: [1; 2],
            cycles: 0,
            counters: PerMode::default(),
            unknown: Default::default(),
            functions: vec![FunctionSlots { name: String::new(), slots: Default::default() }],
            sampled: Some(SampledResult {
                plan: SamplePlan { interval: 1, before: 0, measured: 1, seed: 0 },
                units: 0,
                within: PerMode::default(),
                within_all: 0.0,
                change: Some([Estimate::default(); 3]),
            }),
        }),
        coherence: Some(CoherenceResult {
            order: CpuOrder::default(),
            cpus: vec![PerMode { kernel: of_cpu, user: of_cpu }],
            ends: Some(Vec::new()),
        }),
    }
}

fn names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            names(value, found);
        }),
        Value::Array(values) => values.iter().for_each(|value| names(value, found)),
        _ => {}
    }
}

#[test]
fn every_counter_of_json_is_explained() {
    let mut found = BTreeSet::new();
    names(&serde_json::to_value(counters()).unwrap(), &mut found);
    let page = read("docs/reference/counters.md");
    assert_eq!(first_column(section(&page, "## Names in JSON")), found);
}

/// The example is compiled with the tests. The page's lines are not.
#[test]
fn the_lines_of_the_library_s_page_stand_in_its_example() {
    let page = read("docs/how-to/library.md");
    let (_, block) = page.split_once("```rust,ignore\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let example = read("crates/road/examples/optimize.rs");
    let example: BTreeSet<&str> = example.lines().map(str::trim).collect();
    let missing: Vec<&str> = block.lines().filter(|line| !example.contains(line)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(block.lines().count() >= 9);
}
