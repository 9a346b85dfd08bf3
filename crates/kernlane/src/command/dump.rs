//! `kernlane dump`: what a recording holds, for people and for scripts.

use anyhow::{Context, Result};
use clap::Args;
use host::note;
use host::recording::Recording;
use host::stdout;
use report::dump::{Form, Sections, dump};
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use trace::RecordingReader;

/// Print what a recording holds
///
/// Its header, the conditions under which it was made, and what it amounts to; on request its
/// translations and its stream. A recording that was cut off or damaged is printed as far as it is
/// good; then the exit code is 1 and the last line says what is wrong and where.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  kernlane dump net.rec\n  kernlane dump net.rec --stream --limit 1000"
)]
pub struct DumpArgs {
    /// The recording: its directory, or a trace.klt
    #[arg(value_name = "DIR")]
    pub recording: PathBuf,

    /// Also every translation: number, address, instructions, code; with data accesses its physical
    /// addresses and what it accesses
    #[arg(long)]
    pub translations: bool,

    /// Also everything that happened, in order; with data accesses behind each execution, and uses
    /// of page frames before it
    #[arg(long)]
    pub stream: bool,

    /// Stop the stream after so many events
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
pub fn run(args: &DumpArgs) -> Result<ExitCode> {
    let path = match args.recording.is_dir() {
        true => Recording::at(&args.recording).trace(),
        false => args.recording.clone(),
    };
    let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
    let reader = RecordingReader::new(file).with_context(|| path.display().to_string())?;
    let sections =
        Sections { translations: args.translations, stream: args.stream, limit: args.limit };
    let form = if args.json { Form::Json } else { Form::Text };
    match stdout::write_with(|out| dump(reader, form, sections, out))? {
        None => Ok(ExitCode::SUCCESS),
        Some(damage) => {
            note!("kernlane: {}: {damage}", path.display());
            Ok(ExitCode::from(1))
        }
    }
}
