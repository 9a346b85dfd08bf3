//! The command line: every task, system test, study and judge by its name.
//!
//! Input: words. Output: a command with its arguments, or help that lists the commands by room.

mod judges;
mod studies;
mod system_tests;

use self::judges::Judge;
use self::studies::StudyCommand;
use self::system_tests::SystemTest;
use crate::demo::{self, DemoKernel};
use crate::fuzz::{self, Fuzz};
use crate::test;
use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::path::PathBuf;

/// Everything of Kernlane's development that cargo alone cannot do
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Task(Task),
    #[command(flatten)]
    SystemTest(SystemTest),
    #[command(flatten)]
    Study(StudyCommand),
    #[command(flatten)]
    Judge(Judge),
}

/// A task, with its arguments.
#[derive(Debug, Subcommand)]
enum Task {
    /// Make a faster kernel for a workload, and show what it brought: Debian's kernel, while it
    /// runs in a guest
    Demo {
        /// Build a kernel and relink it instead
        #[arg(long)]
        relink: bool,
    },
    /// Build (or find) a demo kernel, and print the path of its tree
    Kernel { kernel: DemoKernel },
    /// Run the tests that a change needs: format, lints, units, and the whole road in virtual
    /// machines, on the kernel built by gcc; print how long each part took
    Test {
        /// Run only format, lints and units, a few minutes
        #[arg(long)]
        quick: bool,
        /// Run all other tests instead, those of clang's kernel, of running kernels, and of other
        /// tools
        #[arg(long, conflicts_with = "quick")]
        all: bool,
    },
    /// Make what is published of the committed sources: Debian packages, archives, checksums
    Dist {
        /// A new directory for them
        #[arg(default_value = "target/dist")]
        directory: PathBuf,
    },
    /// Give each target of fuzz/ many inputs; resumes, and keeps a small corpus
    Fuzz(Fuzz),
}

impl Command {
    fn run(self) -> Result<()> {
        match self {
            Self::Task(Task::Demo { relink }) => demo::demo(relink),
            Self::Task(Task::Kernel { kernel }) => {
                println!("{}", kernel.tree()?.display());
                Ok(())
            }
            Self::Task(Task::Test { quick: true, .. }) => test::quick(),
            Self::Task(Task::Test { all: true, .. }) => test::rest(),
            Self::Task(Task::Test { .. }) => test::test(),
            Self::Task(Task::Dist { directory }) => {
                for file in lab::dist::dist(&directory)? {
                    println!("{}", file.display());
                }
                Ok(())
            }
            Self::Task(Task::Fuzz(request)) => fuzz::fuzz(&request),
            Self::SystemTest(test) => test.run(),
            Self::Study(study) => study.run(),
            Self::Judge(judge) => judge.run(),
        }
    }
}

/// The commands of a room below its title.
fn list<Room: Subcommand>(title: &'static str) -> clap::builder::StyledStr {
    let room = clap::Command::new(title).subcommand_help_heading(title);
    let room = room.disable_help_flag(true).disable_help_subcommand(true);
    Room::augment_subcommands(room).help_template("{all-args}").render_help()
}

fn command() -> clap::Command {
    let rooms = [
        list::<Task>("Tasks"),
        list::<SystemTest>("System tests"),
        list::<StudyCommand>("Studies"),
        list::<Judge>("Judges"),
    ];
    let rooms = rooms.map(|room| room.ansi().to_string().trim_end().to_owned()).join("\n\n");
    let more = "`cargo xtask NAME --help` says more of each.\n";
    let template = format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{rooms}\n\n{more}");
    Cli::command().help_template(template)
}

/// Runs the command that these words name. The first word is the program's name.
///
/// # Errors
/// The command failed. Words that name no command are clap's error.
pub(crate) fn run(words: impl Iterator<Item = std::ffi::OsString>) -> Result<()> {
    let found = command().try_get_matches_from(words)?;
    Cli::from_arg_matches(&found)?.command.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Cli, clap::Error> {
        let words = ["xtask"].into_iter().chain(line.split_whitespace());
        command().try_get_matches_from(words).and_then(|found| Cli::from_arg_matches(&found))
    }

    #[test]
    fn the_table_of_commands_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn the_parts_of_the_tests_are_commands() {
        let mut parts = 0;
        for words in test::words_of_parts() {
            let words = ["xtask"].iter().chain(words);
            let found = command().try_get_matches_from(words.clone());
            assert!(found.is_ok(), "{:?}: {}", words, found.unwrap_err());
            parts += 1;
        }
        assert!(parts > 25, "{parts}");
    }

    #[test]
    fn help_lists_every_command_in_its_room() {
        let help = command().render_help().to_string();
        let rooms: Vec<&str> = help.split("\n\n").collect();
        for (title, name) in [
            ("Tasks:", "kernel"),
            ("System tests:", "record-test"),
            ("Studies:", "speer"),
            ("Judges:", "judge-processor"),
        ] {
            let room = rooms.iter().find(|room| room.starts_with(title));
            let room = room.unwrap_or_else(|| panic!("no {title} in {help}"));
            let is_listed = |line: &str| line.split_whitespace().next() == Some(name);
            assert!(room.lines().any(is_listed), "{name} is missing in {room}");
        }
        let all = command();
        for name in all.get_subcommands().map(clap::Command::get_name) {
            let begins = |line: &&str| line.starts_with(&format!("  {name} "));
            assert_eq!(help.lines().filter(begins).count(), 1, "{name} in {help}");
        }
        assert!(all.get_subcommands().count() >= 34);
    }

    #[test]
    fn what_was_typed_becomes_a_command() {
        for (line, means) in [
            ("test --quick", "Test { quick: true, all: false }"),
            ("kernel old-order", "Kernel { kernel: OldOrder }"),
            (
                "fuzz maps --inputs 7 --jobs 2 btf",
                "targets: [\"maps\", \"btf\"], inputs: 7, jobs: 2",
            ),
            ("fuzz", "targets: [], inputs: 10000000, jobs: 1"),
            (
                "live-fuzz --seed 7 --kernel kasan --minutes 60",
                "kernel: \"kasan\", minutes: 60, seed: 7",
            ),
            ("live-fuzz --short", "short: true, kernel: \"debian\""),
            ("live-test --cycles 1000", "kernel: None, script: None, cycles: Some(1000)"),
            ("live-test vmlinuz trial.sh", "Some(\"vmlinuz\"), script: Some(\"trial.sh\")"),
            ("live-test vmlinuz trial.sh --cost", "cycles: None, cost: true"),
            (
                "live-boots vmlinuz --boots 2 --upgrade a --upgrade b",
                "kernel: Some(\"vmlinuz\"), boots: 2, upgrade: [\"a\", \"b\"]",
            ),
            ("road-test tree --drop-call-padding", "tree: \"tree\", drop_call_padding: true"),
            ("vm-test old new EPYC workloads", "wanted: [\"EPYC\", \"workloads\"]"),
            ("champsim-test configuration", "instead: Some(Configuration)"),
            ("champsim-test champsim a.rec", "recording: Some(\"a.rec\"), instead: None"),
            ("live-gain directory tcp files", "benchmarks: [\"tcp\", \"files\"]"),
            ("sampling directory net", "workloads: [\"net\"]"),
            ("ab-test kexec stop", "trials: [\"kexec\", \"stop\"]"),
            ("bench-uml", "directory: None, profile: false, inline: false, minutes: Minutes(15.0)"),
            (
                "bench-uml here --profile --minutes 2.5 --json",
                "Some(\"here\"), profile: true, inline: false, minutes: Minutes(2.5)",
            ),
            ("slowdown-test --minutes 0", "\"target/slowdown-test\", minutes: Minutes(0.0)"),
            ("judge-processor here --machine zen4", "\"here\", machine: Some(\"zen4\")"),
            ("judge-processor --points", "points: true, programs: false, only: [], measured: None"),
        ] {
            let found = parsed(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert!(format!("{found:?}").contains(means), "{line}: {found:?}");
        }
    }

    #[test]
    fn wrong_words_are_refused_by_name() {
        for (line, says) in [
            ("typo", "typo"),
            ("test --quick --all", "--all"),
            ("kernel icc", "icc"),
            ("fuzz --inputs many", "--inputs"),
            ("fuzz --jobs 0", "--jobs"),
            ("live-fuzz --seed", "--seed"),
            ("live-fuzz --minutes 0", "--minutes"),
            ("live-fuzz kasan", "kasan"),
            ("live-fuzz --short --seed 7", "--seed"),
            ("live-test vmlinuz --cost --cycles 3", "--cost"),
            ("vm-test old new 9-CPUs", "workloads"),
            ("champsim-test champsim", "<RECORDING>"),
            ("ab-test typo", "systemd-boot"),
            ("bench-uml --minutes -1", "0 or more"),
            ("bench-uml --colour", "--colour"),
            ("bench-uml --profile --inline", "--inline"),
            ("slowdown-test --minutes", "--minutes"),
            ("judge-processor --minutes many", "--minutes"),
            ("judge-processor --points --programs", "--programs"),
        ] {
            let error = parsed(line).map(|found| panic!("{line}: {found:?}")).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(says), "{line}: {error}");
        }
    }
}
