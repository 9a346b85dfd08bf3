//! Makes lld order call graphs: writes an object with a section for each function and a call graph
//! file, and reads the addresses from the linked file.
//!
//! Input: a call graph. Output: lld's order of its functions.

use super::graphs::LinkedCallGraph;
use anyhow::{Context, Result, ensure};
use kernlane_layout::call_graph::CallGraph;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Compares our C3 with lld's hfsort, and our CDSort with lld's cdsort, on every graph.
pub(super) fn compare(directory: &Path, what: &str, graphs: &[&LinkedCallGraph]) -> Result<()> {
    for (number, functions) in graphs.iter().enumerate() {
        let calls = &functions.calls;
        if calls.is_empty() {
            continue;
        }
        let object = assemble(directory, calls)?;
        for (sort, ours) in [
            ("hfsort", c3(calls)),
            (
                "cdsort",
                kernlane_layout::cdsort::arrange(&without_self_calls(calls), &Default::default()),
            ),
        ] {
            let theirs = link(directory, &object, sort, calls.len())?;
            ensure!(
                ours == theirs,
                "lld's {sort} gives {what} call graph {number} another order:\n{ours:?}\n{theirs:?}"
            );
        }
    }
    println!(
        "C3 and CDSort, {} {what} call graphs: the orders of lld's hfsort and cdsort",
        graphs.len()
    );
    Ok(())
}

/// C3 with lld's weights: the calls that enter a function, including its calls of itself.
fn c3(calls: &CallGraph) -> Vec<u32> {
    let mut weights = vec![0.0; calls.len()];
    for arc in &calls.arcs {
        weights[arc.to as usize] += arc.count as f64;
    }
    kernlane_layout::c3::arrange(calls, &weights, &Default::default())
}

fn without_self_calls(calls: &CallGraph) -> CallGraph {
    let mut calls = calls.clone();
    calls.arcs.retain(|arc| arc.from != arc.to);
    calls
}

fn assemble(directory: &Path, calls: &CallGraph) -> Result<std::path::PathBuf> {
    let (source, object) = (directory.join("functions.s"), directory.join("functions.o"));
    let mut text = String::new();
    for (number, size) in calls.sizes.iter().enumerate() {
        writeln!(
            text,
            ".section .text.f{number},\"ax\",@progbits\n.globl f{number}\nf{number}: .skip {size}"
        )?;
    }
    std::fs::write(&source, text)?;
    lab::run(Command::new("as").arg(&source).arg("-o").arg(&object))?;
    let mut graph = String::new();
    for arc in &calls.arcs {
        writeln!(graph, "f{} f{} {}", arc.from, arc.to, arc.count)?;
    }
    std::fs::write(directory.join("calls.txt"), graph)?;
    Ok(object)
}

/// The functions by their addresses in the linked file.
fn link(directory: &Path, object: &Path, sort: &str, functions: usize) -> Result<Vec<u32>> {
    let linked = directory.join("linked");
    let mut lld = Command::new("ld.lld-22");
    lld.args(["--shared", "--threads=1", &format!("--call-graph-profile-sort={sort}")]);
    lld.arg(format!("--call-graph-ordering-file={}", directory.join("calls.txt").display()));
    lab::run(lld.arg(object).arg("-o").arg(&linked))?;
    let names = lab::succeeded(Command::new("nm").arg("-n").arg(&linked))?;
    let text = String::from_utf8(names.stdout)?;
    let names =
        text.lines().filter_map(|line| line.split_once(" T f")).map(|(_, number)| number.parse());
    let order: Vec<u32> = names.collect::<Result<_, _>>().context("nm's names")?;
    ensure!(order.len() == functions, "lld linked {} functions of {functions}", order.len());
    Ok(order)
}
