//! What can be typed: the one table from which help, man page and completions are made. Each command's arguments stand in the
//! file of the command; here they are only listed.

use crate::command::check::CheckArgs;
use crate::command::checkpoint::CheckpointArgs;
use crate::command::counts::CountsArgs;
use crate::command::cross_validate::CrossValidateArgs;
use crate::command::diff::DiffArgs;
use crate::command::doctor::DoctorArgs;
use crate::command::dump::DumpArgs;
use crate::command::evaluate::EvaluateArgs;
use crate::command::export::ExportArgs;
use crate::command::import::ImportArgs;
use crate::command::layout::LayoutArgs;
use crate::command::live::LiveArgs;
use crate::command::manual::{CompletionsArgs, ManArgs};
use crate::command::objtool::ObjtoolArgs;
use crate::command::optimize::OptimizeArgs;
use crate::command::profile::ProfileArgs;
use crate::command::record::RecordArgs;
use crate::command::relink::RelinkArgs;
use crate::command::replay::ReplayArgs;
use crate::command::report::ReportArgs;
use clap::{Parser, Subcommand};

/// Shows where a kernel spends its time under your workload, and lays its code out again so that it spends less
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Optimize(OptimizeArgs),
    Record(RecordArgs),
    Checkpoint(CheckpointArgs),
    Dump(DumpArgs),
    Profile(ProfileArgs),
    Export(ExportArgs),
    Import(ImportArgs),
    Layout(LayoutArgs),
    Live(LiveArgs),
    Relink(RelinkArgs),
    Counts(CountsArgs),
    Replay(ReplayArgs),
    CrossValidate(CrossValidateArgs),
    Evaluate(EvaluateArgs),
    Report(ReportArgs),
    Diff(DiffArgs),
    #[command(hide = true)]
    Objtool(ObjtoolArgs),
    Man(ManArgs),
    Completions(CompletionsArgs),
    Check(CheckArgs),
    Doctor(DoctorArgs),
}
