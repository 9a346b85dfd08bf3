//! `kernlane dump`: prints what a recording contains.
//!
//! Input: a recording, whole or cut off. Output: text or JSON.

use anyhow::{Context, Result};
use clap::Args;
use host::note;
use host::recording::Recording;
use host::stdout;
use report::dump::{DumpForm, DumpSections, dump};
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use trace::RecordingReader;

/// Print what a recording contains
///
/// Prints its header, its conditions and its totals; on request its translation blocks and its
/// stream of events. If the recording is damaged or cut off, prints everything before the damage;
/// then the exit status is 1 and the last line says what is wrong and where.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  kernlane dump net.rec\n  kernlane dump net.rec --stream --limit 1000"
)]
pub struct DumpArgs {
    /// The recording: its directory, or a trace.klt
    #[arg(value_name = "DIR")]
    pub recording: PathBuf,

    /// Also print every translation block: number, address, instructions, code. With data accesses
    /// also its physical addresses and its accesses
    #[arg(long)]
    pub translations: bool,

    /// Also print every event in order. With data accesses: accesses follow their execution, uses
    /// of page frames precede it
    #[arg(long)]
    pub stream: bool,

    /// Stop the stream after this number of events
    #[arg(long, value_name = "N", requires = "stream")]
    pub limit: Option<u64>,

    /// Print JSON: one object a line
    #[arg(long)]
    pub json: bool,
}

/// Prints the recording. Exit code 1: it is not whole.
///
/// # Errors
/// There is no recording, or nothing can be printed.
pub(crate) fn run(args: &DumpArgs) -> Result<ExitCode> {
    let path = match args.recording.is_dir() {
        true => Recording::at(&args.recording).trace(),
        false => args.recording.clone(),
    };
    let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
    let reader = RecordingReader::new(file).with_context(|| path.display().to_string())?;
    let sections =
        DumpSections { translations: args.translations, stream: args.stream, limit: args.limit };
    let form = if args.json { DumpForm::Json } else { DumpForm::Text };
    match stdout::write_with(|out| dump(reader, form, sections, out))? {
        None => Ok(ExitCode::SUCCESS),
        Some(damage) => {
            note!("kernlane: {}: {damage}", path.display());
            Ok(ExitCode::from(1))
        }
    }
}
