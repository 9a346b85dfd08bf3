//! `kernlane report`: results become a page.

use crate::comparison::{self, Comparison};
use crate::output;
use crate::report::{page, text};
use crate::results::Results;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show what layouts brought, as one self-contained page
///
/// Takes results (what `kernlane replay --json` prints, or the results.json that `kernlane optimize` leaves in its directory) and sets
/// the original beside every layout, predicted and recorded. Without --output and --json it prints the tables.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane report net.results files.results -o report.html")]
pub struct ReportArgs {
    /// Result files, or directories with a results.json
    #[arg(required = true, value_name = "RESULTS")]
    pub results: Vec<PathBuf>,

    /// Where to write the page
    #[arg(long, short, value_name = "FILE.html")]
    pub output: Option<PathBuf>,

    /// Print what the page shows as JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &ReportArgs) -> Result<ExitCode> {
    let mut rows = Vec::new();
    for path in &args.results {
        rows.extend(Results::read(path)?.rows);
    }
    let comparisons: Vec<Comparison> = comparison::compare(&rows)?;
    if let Some(path) = &args.output {
        output::write(path, page::page(&comparisons)?.as_bytes())?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&comparisons)?);
    } else if args.output.is_none() {
        print!("{}", text::comparisons(&comparisons));
    }
    Ok(ExitCode::SUCCESS)
}
