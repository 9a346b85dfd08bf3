//! `kernlane man` and `kernlane completions`: made from the same table as `--help`.

use crate::cli::Cli;
use crate::output;
use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
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
#[command(after_help = "Example:\n  kernlane completions bash > ~/.local/share/bash-completion/completions/kernlane")]
pub struct CompletionsArgs {
    #[arg(value_enum)]
    pub shell: Shell,
}

pub fn man(args: &ManArgs) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.directory).with_context(|| args.directory.display().to_string())?;
    let mut table = Cli::command();
    // Gives every command its full name and what it inherits.
    table.build();
    write_page(&args.directory, &table, "kernlane".to_owned())?;
    for command in table.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("kernlane-{}", command.get_name());
        write_page(&args.directory, command, name)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_page(directory: &Path, command: &Command, name: String) -> Result<()> {
    let path = directory.join(format!("{name}.1"));
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name).render(&mut page)?;
    output::write(&path, &page)
}

pub fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "kernlane", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(example.contains(&format!("kernlane {name}")), "the help of {name} shows no example");
        }
    }

    #[test]
    fn every_command_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        man(&ManArgs {
            directory: directory.path().to_owned(),
        })
        .unwrap();
        let page = std::fs::read_to_string(directory.path().join("kernlane-layout.1")).unwrap();
        assert!(page.contains("algorithm"));
    }
}
