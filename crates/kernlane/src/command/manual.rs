//! `kernlane man` and `kernlane completions`: written from the same table as `--help`.

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;
use host::out;
use host::output;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write the man pages
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane man ~/.local/share/man/man1 && man kernlane-record")]
pub struct ManArgs {
    /// The directory to write kernlane.1 and one page a command to
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Print the completions for a shell
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane completions bash > \
                  ~/.local/share/bash-completion/completions/kernlane")]
pub struct CompletionsArgs {
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Writes a page for each command of `table`, the table of commands.
pub(crate) fn man(args: &ManArgs, table: Command) -> Result<ExitCode> {
    // Without this, pages refer to a page for `help`, which only repeats `--help`.
    let mut table = without_help(table);
    // Gives every command its full name and its inherited options.
    table.build();
    output::whole_directory(&args.directory, |directory| {
        write_pages(directory, &table, "kernlane")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

/// The page of a command, and those of the commands below it.
fn write_pages(directory: &Path, command: &Command, name: &str) -> Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name).render(&mut page)?;
    output::write(&directory.join(format!("{name}.1")), &page)?;
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| {
        write_pages(directory, below, &format!("{name}-{}", below.get_name()))
    })
}

/// Prints the completions of the commands of `table`.
pub(crate) fn completions(args: &CompletionsArgs, mut table: Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut table, "kernlane", &mut script);
    out!("{}", String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_table_keeps_its_own_rules() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_does_and_shows_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name} does not say what it does");
            let example = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(
                example.contains(&format!("kernlane {name}")),
                "the help of {name} shows no example"
            );
        }
    }

    #[test]
    fn every_command_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let args = ManArgs { directory: directory.path().to_owned() };
        man(&args, Cli::command()).unwrap();
        let page = std::fs::read_to_string(directory.path().join("kernlane-layout.1")).unwrap();
        assert!(page.contains("ext\\-tsp\\-global"), "every algorithm has its name there: {page}");
    }

    #[test]
    fn every_page_that_a_page_refers_to_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let args = ManArgs { directory: directory.path().to_owned() };
        man(&args, Cli::command()).unwrap();
        let mut references = 0;
        for entry in std::fs::read_dir(directory.path()).unwrap() {
            let page = std::fs::read_to_string(entry.unwrap().path()).unwrap().replace('\\', "");
            for word in page
                .split_whitespace()
                .filter(|word| word.starts_with("kernlane-") && word.contains("(1)"))
            {
                let name = word.split("(1)").next().unwrap();
                assert!(
                    directory.path().join(format!("{name}.1")).is_file(),
                    "{name}(1) is not written"
                );
                references += 1;
            }
        }
        assert!(references > 25, "{references}");
    }
}
