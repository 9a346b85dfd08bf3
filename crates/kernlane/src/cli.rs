//! The table of commands. Help, man pages, completions and `kernlane doctor` all come from it. Each
//! command's file defines its arguments; this file only lists the commands.

use crate::command::ask::AskArgs;
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
use crate::command::report::{self, ReportArgs};
use crate::command::study::StudyArgs;
use crate::command::trial::WorkloadCommandArgs;
use crate::need::{self, Need};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use suite::command::BenchArgs;

/// Shows where a kernel spends its time under your workload, and lays its code out again so that it
/// spends less
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the command line.
    ///
    /// # Errors
    /// The command line does not fit the table, or it asks for help or the version.
    pub fn read() -> Result<Cli, clap::Error> {
        let line = report::in_new_spelling::<Cli>(std::env::args_os().collect());
        let matches = numbers_may_be_negative(Cli::command()).try_get_matches_from(line)?;
        Cli::from_arg_matches(&matches)
    }
}

/// Lets an option take `-1` as its value instead of reading it as another option, so that the
/// message says what is wrong with the number.
fn numbers_may_be_negative(command: clap::Command) -> clap::Command {
    let takes_value =
        |argument: &clap::Arg| argument.get_action().takes_values() && !argument.is_positional();
    command
        .mut_args(|argument| {
            let negative = takes_value(&argument);
            argument.allow_negative_numbers(negative)
        })
        .mut_subcommands(numbers_may_be_negative)
}

/// Makes `Command` and `NEEDS` from one table, so that every command states its needs.
macro_rules! commands {
    ($($(#[$attribute:meta])* $name:ident($arguments:ty) needs $needs:expr;)*) => {
        #[derive(Subcommand)]
        pub enum Command {
            $($(#[$attribute])* $name($arguments),)*
        }

        /// What each command needs of the machine in addition to its input, in the order of the
        /// commands.
        pub(crate) const NEEDS: &[&[&[Need]]] = &[$($needs),*];
    };
}

commands! {
    Optimize(OptimizeArgs) needs &[need::GUEST, need::PLUGIN, need::RELINK];
    Record(RecordArgs) needs &[need::GUEST, need::PLUGIN, need::TURNS];
    Checkpoint(CheckpointArgs) needs &[need::GUEST];
    Workload(WorkloadCommandArgs) needs &[need::GUEST];
    Dump(DumpArgs) needs &[];
    Profile(ProfileArgs) needs &[];
    Export(ExportArgs) needs &[need::EXPORT];
    Import(ImportArgs) needs &[need::IMPORT];
    Layout(LayoutArgs) needs &[];
    Live(LiveArgs) needs &[need::LIVE];
    Relink(RelinkArgs) needs &[need::RELINK];
    Counts(CountsArgs) needs &[];
    Replay(ReplayArgs) needs &[];
    CrossValidate(CrossValidateArgs) needs &[];
    Evaluate(EvaluateArgs) needs &[];
    Study(StudyArgs) needs &[need::GUEST, need::PLUGIN];
    Report(ReportArgs) needs &[];
    Ask(AskArgs) needs &[];
    Diff(DiffArgs) needs &[];
    Bench(Box<BenchArgs>) needs &[];
    #[command(hide = true)]
    Objtool(ObjtoolArgs) needs &[need::OBJTOOL];
    Man(ManArgs) needs &[];
    Completions(CompletionsArgs) needs &[];
    Check(CheckArgs) needs &[];
    Doctor(DoctorArgs) needs &[];
}
