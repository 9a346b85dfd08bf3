//! `cargo xtask live-versions`: which of Debian's kernels functions can be replaced in.
//!
//! Input: names of kernels (`lab::live_tool::debian`). Output: `bench/live-versions.json`, and the
//! table of `docs/results/live-kernels.md`. A kernel that has a result for each step is not tried
//! again. The steps of a kernel: the copies of all functions are proven; what may get in the way of
//! replaced functions does; requests are malformed; functions of a module are replaced; a large
//! group is installed and undone again and again under load. The first step that fails is the last
//! one.

mod results;

use crate::live_test::Stock;
use anyhow::{Context, Result, ensure};
use host::{interrupt, note};
use lab::live_tool::debian::StockKernel;
use results::{KernelResult, Results};
use std::fs;
use std::path::Path;

const RESULTS: &str = "bench/live-versions.json";
const PAGE: &str = "docs/results/live-kernels.md";
/// What stands around the table in the page.
const MARKS: [&str; 2] = ["<!-- the table begins -->\n", "<!-- the table ends -->\n"];

/// The number of cycles after which the result is kept, and another guest makes the rest.
const CYCLES_OF_A_GUEST: u32 = 100;

/// What [`live_versions`] is asked for.
#[derive(Debug)]
pub struct Request {
    /// Names of kernels; none is all.
    pub kernels: Vec<String>,
    /// How often the large group is installed and undone; what was done before counts.
    pub cycles: u32,
    /// Try also kernels that have a result.
    pub again: bool,
}

/// Tries kernels and keeps what was found out.
///
/// # Errors
/// No such kernel; a file cannot be written; a kernel failed.
pub fn live_versions(request: &Request) -> Result<()> {
    interrupt::catch()?;
    let asked: Vec<StockKernel> = match &request.kernels[..] {
        [] => StockKernel::all(),
        names => names.iter().map(|name| StockKernel::named(name)).collect::<Result<_>>()?,
    };
    let mut failed = Vec::new();
    for kernel in asked {
        let name = kernel.to_string();
        let known = Results::read(Path::new(RESULTS))?.kernels.remove(&name);
        let open = match known {
            Some(result) if !request.again => result,
            _ => KernelResult::default(),
        };
        if open.is_complete(request.cycles) {
            note!("{name} has a result");
            continue;
        }
        if let Err(error) = try_kernel(kernel, open, request.cycles) {
            println!("{name}: FAILED: {error:#}");
            failed.push(name);
        }
        interrupt::check()?;
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Goes on where `result` ends, and writes it after each step.
fn try_kernel(kernel: StockKernel, mut result: KernelResult, cycles: u32) -> Result<()> {
    let stock = Stock::new(&kernel.boot_image()?)?;
    if result.release != stock.release() {
        result = KernelResult { release: stock.release().to_owned(), ..KernelResult::default() };
    }
    result.failed = None;
    for step in results::STEPS {
        if result.has_passed(step, cycles) {
            continue;
        }
        println!("== {kernel} ({}): {step}", result.release);
        if step != results::CYCLES {
            let outcome = match step {
                "copies" => {
                    stock.proof().map(|(fit, traced)| result.functions = Some([fit, traced]))
                }
                "neighbours" => stock.neighbours(),
                "attacks" => stock.attacks(),
                _ => stock.modules(),
            };
            keep_step(kernel, &mut result, step, outcome)?;
            continue;
        }
        if !result.has_passed(step, 0) {
            result.cycles = 0;
        }
        while result.cycles < cycles {
            let part = CYCLES_OF_A_GUEST.min(cycles - result.cycles);
            let outcome = stock.cycles(part, result.cycles);
            if outcome.is_ok() {
                result.cycles += part;
            }
            keep_step(kernel, &mut result, step, outcome)?;
        }
    }
    Ok(())
}

/// Keeps how a step ended.
fn keep_step(
    kernel: StockKernel,
    result: &mut KernelResult,
    step: &str,
    outcome: Result<()>,
) -> Result<()> {
    interrupt::check()?;
    result.date = today()?;
    result.passed.retain(|passed| passed != step);
    match &outcome {
        Ok(()) => result.passed.push(step.to_owned()),
        Err(error) => {
            let why = format!("{error:#}");
            let why = why.lines().next().unwrap_or_default().to_owned();
            result.failed = Some((step.to_owned(), why));
        }
    }
    keep(kernel, result)?;
    outcome
}

/// Writes a result to the file, and the table to the book.
fn keep(kernel: StockKernel, result: &KernelResult) -> Result<()> {
    let mut results = Results::read(Path::new(RESULTS))?;
    results.kernels.insert(kernel.to_string(), result.clone());
    results.write(Path::new(RESULTS))?;
    let text = fs::read_to_string(PAGE).context(PAGE)?;
    let text = with_table(&text, &results.table())?;
    host::output::write(Path::new(PAGE), text.as_bytes())?;
    Ok(())
}

/// The text with another table between its marks.
fn with_table(text: &str, table: &str) -> Result<String> {
    let (before, rest) =
        text.split_once(MARKS[0]).context("the page has no mark of a beginning")?;
    let (_, behind) = rest.split_once(MARKS[1]).context("the page has no mark of an end")?;
    Ok(format!("{before}{}\n{table}\n{}{behind}", MARKS[0], MARKS[1]))
}

fn today() -> Result<String> {
    let output = lab::succeeded(std::process::Command::new("date").arg("+%F"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_the_results() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let results = Results::read(&top.join(RESULTS)).unwrap();
        assert!(!results.kernels.is_empty());
        let page = fs::read_to_string(top.join(PAGE)).unwrap();
        assert_eq!(with_table(&page, &results.table()).unwrap(), page);
    }

    #[test]
    fn a_version_counts_as_tried_when_a_kernel_has_passed_every_step() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (name, result) in Results::read(&top.join(RESULTS)).unwrap().kernels {
            StockKernel::named(&name).unwrap();
            let tried = image::linked::release::is_tried(&result.release);
            let is_complete = result.failed.is_none() && result.cycles > 0;
            assert!(tried || !is_complete, "{name}: {}", result.release);
        }
    }
}
