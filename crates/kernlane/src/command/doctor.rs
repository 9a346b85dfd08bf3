//! `kernlane doctor`: what each command needs from this machine, what is missing, and how to get
//! it.
//!
//! Every need is tried, not looked up: QEMU is run, apt is asked to resolve a package, the cache is
//! written to.

use crate::need::Need;
use anyhow::Result;
use clap::{Args, Command};
use host::out;
use host::outln;
use serde::Serialize;
use std::process::ExitCode;

/// Show what this machine has and lacks for each command, and how to get it
///
/// Exit status 1: a command is not ready, because it lacks something that all of its work needs.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane doctor --json")]
pub struct DoctorArgs {
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Finding {
    need: &'static str,
    /// The part of the command's work that has the need. None: all of the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    only_for: Option<&'static str>,
    /// What is there.
    found: Option<String>,
    /// What is wrong and what to do about it.
    missing: Option<String>,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    command: String,
    ready: bool,
    needs: Vec<Finding>,
}

/// Runs `kernlane doctor`. `table`: all commands; `needs`: what each command needs.
pub(crate) fn run(args: &DoctorArgs, table: &Command, needs: &[&[&[Need]]]) -> Result<ExitCode> {
    let mut tried: Vec<(Need, std::result::Result<String, String>)> = Vec::new();
    let mut diagnoses = Vec::new();
    for (command, needs) in listed(table, needs) {
        let findings: Vec<Finding> = needs
            .into_iter()
            .map(|need| {
                let known = tried
                    .iter()
                    .find(|(other, _)| *other == need)
                    .map(|(_, result)| result.clone());
                let result =
                    known.unwrap_or_else(|| need.attempt().map_err(|error| format!("{error:#}")));
                tried.push((need, result.clone()));
                Finding {
                    need: need.name(),
                    only_for: need.only_for(),
                    found: result.clone().ok(),
                    missing: result.err(),
                }
            })
            .collect();
        let ready =
            findings.iter().all(|finding| finding.missing.is_none() || finding.only_for.is_some());
        diagnoses.push(Diagnosis { command, ready, needs: findings });
    }
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&diagnoses)?)?,
        false => out!("{}", text(&diagnoses))?,
    }
    Ok(match diagnoses.iter().all(|diagnosis| diagnosis.ready) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The commands that are listed in the help, each with what it needs.
fn listed(table: &Command, needs: &[&[&[Need]]]) -> Vec<(String, Vec<Need>)> {
    table
        .get_subcommands()
        .zip(needs)
        .filter(|(command, _)| !command.is_hide_set())
        .map(|(command, needs)| (command.get_name().to_owned(), needs.concat()))
        .collect()
}

fn text(diagnoses: &[Diagnosis]) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    for diagnosis in diagnoses.iter().filter(|diagnosis| !diagnosis.needs.is_empty()) {
        line(format!(
            "{}: {}",
            diagnosis.command,
            if diagnosis.ready { "ready" } else { "NOT ready" }
        ));
        for finding in &diagnosis.needs {
            let need = match finding.only_for {
                None => finding.need.to_owned(),
                Some(part) => format!("{} (for {part})", finding.need),
            };
            match (&finding.found, &finding.missing) {
                (_, Some(missing)) => line(format!("  missing  {need}: {missing}")),
                (found, None) => {
                    line(format!("  has      {need}: {}", found.as_deref().unwrap_or_default()))
                }
            }
        }
    }
    let others: Vec<&str> = diagnoses
        .iter()
        .filter(|diagnosis| diagnosis.needs.is_empty())
        .map(|diagnosis| diagnosis.command.as_str())
        .collect();
    line(format!("{}: need nothing but their input", others.join(", ")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, NEEDS};
    use clap::CommandFactory;

    #[test]
    fn missing_things_are_named_and_the_rest_is_listed() {
        let diagnoses = [
            Diagnosis {
                command: "record".into(),
                ready: false,
                needs: vec![
                    Finding {
                        need: "QEMU",
                        only_for: None,
                        found: None,
                        missing: Some("there is none".into()),
                    },
                    Finding {
                        need: "dpkg-deb",
                        only_for: None,
                        found: Some("/usr/bin/dpkg-deb".into()),
                        missing: None,
                    },
                ],
            },
            Diagnosis {
                command: "export".into(),
                ready: true,
                needs: vec![Finding {
                    need: "llvm-readobj-22",
                    only_for: Some("--format propeller-ld"),
                    found: None,
                    missing: Some("not in PATH".into()),
                }],
            },
            Diagnosis { command: "dump".into(), ready: true, needs: Vec::new() },
        ];
        let expected = "record: NOT ready\n  missing  QEMU: there is none\n  has      \
                        dpkg-deb: /usr/bin/dpkg-deb\n\
                        export: ready\n  missing  llvm-readobj-22 (for --format propeller-ld): \
                        not in PATH\n\
                        dump: need nothing but their input\n";
        assert_eq!(text(&diagnoses), expected);
    }

    #[test]
    fn every_command_of_the_help_has_its_needs_and_no_other_is_listed() {
        let table = Cli::command();
        assert_eq!(
            table.get_subcommands().count(),
            NEEDS.len(),
            "a row for each command, in their order"
        );
        let shown: Vec<&str> = table
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        let listed = listed(&table, NEEDS);
        assert_eq!(listed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), shown);
        let of = |name: &str| &listed.iter().find(|(listed, _)| listed == name).unwrap().1;
        for name in ["record", "checkpoint", "optimize", "relink", "live", "export", "import"] {
            assert!(!of(name).is_empty(), "{name} needs something");
        }
        assert!(of("checkpoint").iter().all(|need| of("record").contains(need)));
        let always = of("record").iter().filter(|need| need.only_for().is_none());
        assert!(of("relink").iter().chain(always).all(|need| of("optimize").contains(need)));
    }
}
