//! `kernlane objtool`: compares rewriting with the kernel's own objtool. For the project's tests;
//! hidden from the help.

use anyhow::Result;
use check::objtool::ObjtoolAgreement;
use clap::Args;
use host::out;
use host::outln;
use std::path::PathBuf;
use std::process::ExitCode;

/// Shuffle a kernel's blocks, and compare objtool's unwinder states and tables with the rewritten
/// ones
///
/// Splits every function into two parts and puts the blocks of each part, and the functions, into
/// random order. objtool joins at most two parts of a function, so it can judge this order but not
/// that of a layout file.
#[derive(Args)]
pub struct ObjtoolArgs {
    /// The directory in which the kernel was built
    #[arg(long, value_name = "DIR")]
    pub tree: PathBuf,

    /// Seed of the order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Instructions at which the unwinder's state may differ (dead code behind calls that never
    /// return)
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub spare: usize,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How many differing instructions are printed.
const SHOWN: usize = 40;

pub(crate) fn run(args: &ObjtoolArgs) -> Result<ExitCode> {
    let agreement = road::objtool::agreement(&args.tree, args.seed)?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&agreement)?)?;
    } else {
        print(&agreement)?;
    }
    Ok(if agreement.is_sufficient(args.spare) { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn print(agreement: &ObjtoolAgreement) -> Result<()> {
    out!("{}", agreement.messages)?;
    let differing = agreement.states.len();
    outln!(
        "the unwinder's state is equal at {} of {} instructions",
        agreement.instructions - differing,
        agreement.instructions
    )?;
    for (function, at, ours, theirs) in agreement.states.iter().take(SHOWN) {
        outln!("  {function}+{at:#x}: {ours}, by objtool {theirs}")?;
    }
    for s in &agreement.sites {
        outln!(
            "{:<20} {:>7} sites, {} only here, {} only there",
            s.table,
            s.sites,
            s.ours_alone,
            s.objtool_alone
        )?;
    }
    Ok(())
}
