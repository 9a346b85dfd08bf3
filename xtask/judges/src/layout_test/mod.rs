//! Tests whether the layouts are as good as their models: ext-TSP and CDSort are compared with
//! LLVM's own code, C3 and CDSort with lld.
//!
//! Input: a profile and its kernel for the real graphs; the others are generated. For blocks, LLVM
//! scores both orders, and ours may not have a lower score. For functions, the orders must be
//! equal.

mod graphs;
mod lld;

use anyhow::{Context, Result, bail, ensure};
use graphs::LinkedCallGraph;
use image::vmlinux;
use kernlane_layout::{Algorithm, Graph};
use profile::Profile;
use std::fmt::{Display, Write};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const REFERENCE: &str = include_str!("reference.cpp");
const LLVM: &str = "/usr/lib/llvm-22";

/// The least number of graphs of each kind.
const GENERATED: usize = 1000;
const REAL: usize = 100;

/// Compares what this module describes.
///
/// # Errors
/// The numbers differ, or something cannot run.
pub fn layout_test(tree: &Path, profile: &Path) -> Result<()> {
    let image = vmlinux::read(&tree.join("vmlinux"))?;
    let text = std::fs::read_to_string(profile).with_context(|| profile.display().to_string())?;
    let kernel = profile::graph::movable(&image, &Profile::from_json(&text)?)?.graph;
    let directory = tempfile::tempdir()?;
    let reference = build(directory.path())?;

    let blocks = [
        ("generated", graphs::generated_blocks(GENERATED), GENERATED),
        ("real", graphs::blocks_of(&kernel), REAL),
    ];
    for (what, graphs, least) in blocks {
        ensure!(graphs.len() >= least, "only {} {what} functions", graphs.len());
        compare_blocks(&reference, directory.path(), what, &graphs)?;
    }
    let functions = [
        ("generated", graphs::generated_functions(GENERATED), GENERATED),
        ("real", graphs::functions_of(&kernel, REAL), REAL),
    ];
    for (what, graphs, least) in functions {
        ensure!(graphs.len() >= least, "only {} {what} call graphs", graphs.len());
        compare_cdsort(&reference, directory.path(), what, &graphs)?;
        // A link takes long, so only every fifth generated graph and all real graphs are linked.
        let linked = graphs.iter().step_by(if what == "real" { 1 } else { 5 });
        lld::compare(directory.path(), what, &linked.collect::<Vec<_>>())?;
    }
    Ok(())
}

fn build(directory: &Path) -> Result<PathBuf> {
    let source = directory.join("reference.cpp");
    std::fs::write(&source, REFERENCE)?;
    let program = directory.join("reference");
    let mut compiler = Command::new("clang++-22");
    compiler
        .args(["-std=c++17", "-O2", "-Wall", "-Werror", "-isystem"])
        .arg(format!("{LLVM}/include"));
    compiler.arg(&source).arg("-o").arg(&program);
    compiler.arg(format!("-L{LLVM}/lib")).arg("-lLLVM-22").arg(format!("-Wl,-rpath,{LLVM}/lib"));
    lab::run(&mut compiler).context("the packages clang-22 and llvm-22-dev are needed")?;
    Ok(program)
}

/// The first lines of a question: the numbers of nodes and edges, then the size and count of each
/// node.
fn question(what: &str, edges: usize, sizes: &[impl Display], counts: &[u64]) -> String {
    let mut question = format!("{what} {} {edges}\n", sizes.len());
    for (size, count) in sizes.iter().zip(counts) {
        let _ = writeln!(question, "{size} {count}");
    }
    question
}

/// LLVM's answers to some graphs, a line each.
fn ask(reference: &Path, directory: &Path, graphs: usize, questions: &str) -> Result<Vec<String>> {
    let path = directory.join("graphs");
    std::fs::write(&path, questions)?;
    let output =
        Command::new(reference).stdin(File::open(&path)?).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{}: {}", reference.display(), output.status);
    let answers: Vec<String> =
        String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
    ensure!(answers.len() == graphs, "{} answers to {graphs} graphs", answers.len());
    Ok(answers)
}

fn compare_blocks(reference: &Path, directory: &Path, what: &str, graphs: &[Graph]) -> Result<()> {
    let mut questions = String::new();
    for graph in graphs {
        let order = kernlane_layout::order(graph, Algorithm::ExtTsp, 0)?.order.0;
        questions += &question("blocks", graph.edges.len(), &graph.sizes, &graph.counts);
        for edge in &graph.edges {
            writeln!(questions, "{} {} {} 0", edge.from.0, edge.to.0, edge.count)?;
        }
        order.iter().try_for_each(|block| write!(questions, "{} ", block.0))?;
        writeln!(questions)?;
    }
    let answers = ask(reference, directory, graphs.len(), &questions)?;
    let (mut better, mut worse, mut theirs, mut ours) = (0, Vec::new(), 0.0, 0.0);
    for (number, answer) in answers.iter().enumerate() {
        let (their, our) = answer.split_once(' ').context("no two scores")?;
        let (their, our): (f64, f64) = (their.parse()?, our.parse()?);
        // Scores are sums of the same terms in the same order, so a smaller difference means equal.
        let tolerance = 1e-9 * their.max(1.0);
        better += usize::from(our > their + tolerance);
        if our < their - tolerance {
            worse.push((number, our / their));
        }
        theirs += their;
        ours += our;
    }
    let share = 100.0 * (ours / theirs - 1.0);
    println!(
        "ext-TSP, {} {what} functions: better than LLVM on {better}, worse on {}, {share:+.4} % in \
         total",
        graphs.len(),
        worse.len()
    );
    if let Some((number, ratio)) = worse.iter().min_by(|a, b| a.1.total_cmp(&b.1)) {
        bail!(
            "ext-TSP scores less than LLVM's on {} {what} functions, {ratio} of it on number \
             {number}",
            worse.len()
        );
    }
    Ok(())
}

fn compare_cdsort(
    reference: &Path,
    directory: &Path,
    what: &str,
    graphs: &[LinkedCallGraph],
) -> Result<()> {
    let mut questions = String::new();
    for functions in graphs {
        let graph = &functions.calls;
        questions += &question("functions", graph.arcs.len(), &graph.sizes, &graph.counts);
        for arc in &graph.arcs {
            writeln!(questions, "{} {} {} {}", arc.from, arc.to, arc.count, arc.offset)?;
        }
        (0..graph.len()).try_for_each(|function| write!(questions, "{function} "))?;
        writeln!(questions)?;
    }
    let answers = ask(reference, directory, graphs.len(), &questions)?;
    for (number, (answer, functions)) in answers.iter().zip(graphs).enumerate() {
        let theirs: Vec<u32> =
            answer.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let ours = kernlane_layout::cdsort::arrange(&functions.calls, &Default::default());
        ensure!(
            ours == theirs,
            "CDSort and LLVM give {what} call graph {number} different orders:\n{ours:?}\n\
             {theirs:?}"
        );
    }
    println!("CDSort, {} {what} call graphs: the same order as LLVM", graphs.len());
    Ok(())
}
