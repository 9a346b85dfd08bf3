//! What results say about layouts, and the page, which also takes recordings.
//!
//! Input: results, or recordings and their kernel. Output: tables, or a page.

use super::{ReportArgs, each_opened, print};
use anyhow::{Result, bail, ensure};
use host::output;
use host::recording::Recording;
use replay::comparison::{self, Comparison};
use replay::results::{ResultFile, ResultRow};
use report::overview::Overview;
use report::{page, text};
use road::overview::overview;
use std::path::PathBuf;

/// The machine of the page, unless --machine names others.
const MACHINE: &str = "server-32k";

/// What layouts gain, as tables or on the page, beside what recordings show.
pub(super) fn comparisons_and_page(args: &ReportArgs) -> Result<()> {
    let (recordings, results) = recordings_and_results(args)?;
    if let (Some(recording), true) = (recordings.first(), args.output.is_none() && !args.json) {
        bail!(
            "{}: a recording; give --output for a page, --json for what it shows, or --services, \
             --os-share or --locality for a table",
            recording.display()
        );
    }
    let for_recordings = args.kernel.is_some()
        || args.annotations.is_some()
        || !(args.machine.is_empty() && args.layout.is_empty());
    ensure!(
        !for_recordings || !recordings.is_empty(),
        "no recording is given, only results: --kernel, --machine, --layout and --annotations are \
         for recordings"
    );
    let comparisons: Vec<Comparison> = comparison::compare(&rows_of(&results)?)?;
    let overviews = overviews(args, &recordings)?;
    if let Some(path) = &args.output {
        output::write(path, page::page(&overviews, &comparisons)?.as_bytes())?;
    }
    if args.json && !recordings.is_empty() {
        print(args, &overviews, String::new)?;
    } else if args.json || args.output.is_none() {
        print(args, &comparisons, || text::comparisons(&comparisons))?;
    }
    Ok(())
}

/// What one operation of a benchmark costs.
pub(super) fn per_operation(args: &ReportArgs) -> Result<()> {
    let (recordings, results) = recordings_and_results(args)?;
    if let Some(recording) = recordings.first() {
        bail!(
            "{}: a recording; --per-operation takes results: `kernlane replay RECORDING --json`",
            recording.display()
        );
    }
    let costs = replay::per_operation::per_operation(&rows_of(&results)?)?;
    print(args, &costs, || report::per_operation::text(&costs))
}

/// The inputs that are recordings, and those that are results.
fn recordings_and_results(args: &ReportArgs) -> Result<(Vec<&PathBuf>, Vec<&PathBuf>)> {
    let (recordings, results): (Vec<&PathBuf>, Vec<&PathBuf>) =
        args.inputs.iter().partition(|path| Recording::at(*path).exists());
    for path in &results {
        ensure!(path.exists(), "{}: there is no such file or directory", path.display());
        ensure!(
            !path.is_dir() || path.join("results.json").is_file(),
            "{}: neither a recording (it has no trace.klt) nor results (it has no results.json)",
            path.display()
        );
    }
    if let Some(path) = results.first() {
        ensure!(
            args.part.part()?.is_whole(),
            "{}: results; --from and --until cut a part out of recordings",
            path.display()
        );
    }
    Ok((recordings, results))
}

fn rows_of(results: &[&PathBuf]) -> Result<Vec<ResultRow>> {
    let mut rows = Vec::new();
    for path in results {
        rows.extend(ResultFile::read(path)?.rows);
    }
    Ok(rows)
}

/// The sections of the page that come from recordings.
fn overviews(args: &ReportArgs, recordings: &[&PathBuf]) -> Result<Vec<Overview>> {
    let sampling = args.sampling.sampling()?;
    each_opened(args, recordings, &[MACHINE], |recording, kernel| {
        overview(recording, kernel, &args.layout, sampling)
    })
}
