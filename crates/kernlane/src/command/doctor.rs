//! `kernlane doctor`: what each command needs of this machine, what is there, what is missing, and how to get it.
//!
//! Every need is tried, not looked up: QEMU is run, apt is asked to resolve a package, the cache is written to.

use crate::cli::Cli;
use crate::guest::{self, Qemu};
use anyhow::Result;
use clap::{Args, CommandFactory};
use serde::Serialize;
use std::process::ExitCode;

/// Show what this machine has and lacks for each command, and how to get it
///
/// Exit status 1 when something is missing.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane doctor --json")]
pub struct DoctorArgs {
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

/// Something outside of Kernlane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Qemu,
    Plugin,
    Apt,
    DpkgDeb,
    Cache,
    /// A program, and the Debian package that has it.
    Program(&'static str, &'static str),
}

/// To make a recording.
const RECORD: &[Need] = &[Need::Qemu, Need::Plugin, Need::Apt, Need::DpkgDeb, Need::Cache];

/// To have a kernel tree's own build link it again. What the tree was compiled with is the tree's own matter.
const RELINK: &[Need] = &[
    Need::Program("make", "make"),
    Need::Program("gcc", "gcc"),
    Need::Program("ld", "binutils"),
    Need::Program("objcopy", "binutils"),
    Need::Program("nm", "binutils"),
    Need::Program("ar", "binutils"),
    Need::Program("bash", "bash"),
];

/// The needs of a command by its name. A command that is not named here needs nothing but its input.
fn needs(command: &str) -> Vec<Need> {
    match command {
        "record" => RECORD.to_vec(),
        "relink" => RELINK.to_vec(),
        "optimize" => [RECORD, RELINK].concat(),
        _ => Vec::new(),
    }
}

#[derive(Debug, Serialize)]
struct Finding {
    need: String,
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

/// The command.
pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let mut tried: Vec<(Need, std::result::Result<String, String>)> = Vec::new();
    let mut diagnoses = Vec::new();
    for command in Cli::command().get_subcommands() {
        let findings: Vec<Finding> = needs(command.get_name())
            .into_iter()
            .map(|need| {
                let known = tried.iter().find(|(other, _)| *other == need).map(|(_, result)| result.clone());
                let result = known.unwrap_or_else(|| need.attempt().map_err(|error| format!("{error:#}")));
                tried.push((need, result.clone()));
                Finding {
                    need: need.name(),
                    found: result.clone().ok(),
                    missing: result.err(),
                }
            })
            .collect();
        let ready = findings.iter().all(|finding| finding.missing.is_none());
        diagnoses.push(Diagnosis {
            command: command.get_name().into(),
            ready,
            needs: findings,
        });
    }
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&diagnoses)?),
        false => print!("{}", text(&diagnoses)),
    }
    Ok(match diagnoses.iter().all(|diagnosis| diagnosis.ready) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl Need {
    fn name(self) -> String {
        match self {
            Need::Qemu => "QEMU".into(),
            Need::Plugin => "the library that QEMU loads to record".into(),
            Need::Apt => "Debian packages for guests".into(),
            Need::DpkgDeb => "dpkg-deb".into(),
            Need::Cache => "a cache directory".into(),
            Need::Program(program, _) => program.into(),
        }
    }

    /// What there is, or what is missing and how to get it.
    fn attempt(self) -> Result<String> {
        match self {
            Need::Qemu => Qemu::find().map(|qemu| format!("{} ({})", qemu.version, qemu.program.display())),
            Need::Plugin => guest::plugin_library().map(|path| path.display().to_string()),
            Need::Apt => guest::resolvable("busybox-static").map(|version| format!("busybox-static {version}")),
            Need::DpkgDeb => program("dpkg-deb", "dpkg"),
            Need::Cache => guest::writable_cache().map(|path| path.display().to_string()),
            Need::Program(name, package) => program(name, package),
        }
    }
}

fn program(name: &str, package: &str) -> Result<String> {
    let path = guest::in_path(name).ok_or_else(|| anyhow::anyhow!("not in PATH (apt-get install {package})"))?;
    Ok(path.display().to_string())
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
            match (&finding.found, &finding.missing) {
                (_, Some(missing)) => line(format!("  missing  {}: {missing}", finding.need)),
                (found, None) => line(format!("  has      {}: {}", finding.need, found.as_deref().unwrap_or_default())),
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

    #[test]
    fn missing_things_are_named_and_the_rest_is_listed() {
        let diagnoses = [
            Diagnosis {
                command: "record".into(),
                ready: false,
                needs: vec![
                    Finding {
                        need: "QEMU".into(),
                        found: None,
                        missing: Some("there is none".into()),
                    },
                    Finding {
                        need: "dpkg-deb".into(),
                        found: Some("/usr/bin/dpkg-deb".into()),
                        missing: None,
                    },
                ],
            },
            Diagnosis {
                command: "dump".into(),
                ready: true,
                needs: Vec::new(),
            },
        ];
        let expected = "record: NOT ready\n  missing  QEMU: there is none\n  has      dpkg-deb: /usr/bin/dpkg-deb\n\
                        dump: need nothing but their input\n";
        assert_eq!(text(&diagnoses), expected);
    }

    #[test]
    fn a_program_that_is_not_there_comes_with_its_package() {
        let error = program("kernlane-has-no-such-program", "some-package").unwrap_err();
        assert!(error.to_string().contains("apt-get install some-package"));
        assert!(program("sh", "dash").unwrap().ends_with("/sh"));
    }

    #[test]
    fn record_is_a_command_with_needs() {
        let names: Vec<String> = Cli::command()
            .get_subcommands()
            .map(|command| command.get_name().to_string())
            .collect();
        assert!(names.iter().any(|name| name == "record" && !needs(name).is_empty()));
    }
}
