//! The workload that a command's arguments mean: a shipped one, a file, a benchmark of the suite,
//! or a command that was typed.

use anyhow::{Context, Result};
use clap::Args;
use guest::{TypedWorkload, Workload};
use road::workload;

/// A workload: its name, or a command and what its guest has.
#[derive(Args)]
#[group(skip)]
pub struct WorkloadArgs {
    #[arg(help = argument_help(), required_unless_present = "run", conflicts_with = "run")]
    pub workload: Option<String>,

    /// Record this shell command, without a workload's file. It starts in the directory of the
    /// first --copy, and must succeed
    #[arg(long, value_name = "COMMAND", help_heading = TYPED)]
    pub run: Option<String>,

    /// With --run: a shell command that runs before counting starts, for example to start a server
    #[arg(long, value_name = "COMMAND", conflicts_with = "workload", help_heading = TYPED)]
    pub set_up: Option<String>,

    /// With --run: copy a file or directory of this machine into the guest; can be repeated. A
    /// directory's content goes to DEST; a file becomes DEST, or goes into DEST/
    #[arg(long, value_name = "SOURCE:DEST", conflicts_with = "workload", help_heading = TYPED)]
    pub copy: Vec<String>,

    /// With --run: Debian packages of the guest, separated by commas; can be repeated. Without any,
    /// the guest has busybox
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        conflicts_with_all = ["image", "workload"],
        help_heading = TYPED
    )]
    pub packages: Vec<String>,

    /// With --run: make the guest from a container image (what `docker save` writes, or an OCI
    /// layout), a directory, or a tarball of a root file system
    #[arg(long, value_name = "IMAGE", conflicts_with = "workload", help_heading = TYPED)]
    pub image: Option<String>,
}

/// The help text of an argument that names a workload.
pub(crate) fn argument_help() -> String {
    format!(
        "A shipped workload ({}), bench:NAME for a benchmark of `kernlane bench --list`, or the \
         path of a .toml file",
        guest::shipped_names()
    )
}

const TYPED: &str = "A command instead of a workload";

impl WorkloadArgs {
    /// Opens the workload.
    ///
    /// # Errors
    /// There is no such workload, or something that its guest should have cannot be read.
    pub(crate) fn open(&self) -> Result<Workload> {
        let Some(run) = &self.run else {
            return workload::open(self.workload.as_deref().context("give a workload, or --run")?);
        };
        Workload::of_command(&TypedWorkload {
            run: run.clone(),
            set_up: self.set_up.clone().unwrap_or_default(),
            copies: self.copy.clone(),
            packages: self.packages.clone(),
            image: self.image.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    #[test]
    fn a_command_takes_the_place_of_a_workload() {
        let parse = |more: &[&str]| {
            let line = ["kernlane", "record", "-o", "x", "-k", "y"];
            crate::cli::Cli::try_parse_from(line.iter().chain(more))
                .map(|cli| match cli.command {
                    crate::cli::Command::Record(args) => args.guest.what.workload,
                    _ => panic!("another command"),
                })
                .map_err(|error| error.to_string())
        };
        let typed =
            parse(&["--run", "./s -f", "--copy", "a:/b", "--copy", "c:/d", "--packages", "x1,y2"]);
        let typed = typed.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            (typed.run.as_deref(), &*typed.copy),
            (Some("./s -f"), &["a:/b", "c:/d"].map(String::from)[..])
        );
        assert_eq!(typed.packages, ["x1", "y2"]);
        for wrong in [
            &["--copy", "a:/b"][..],
            &["net", "--image", "x.tar"],
            &["net", "--run", "./s"],
            &["--run", "./s", "--image", "x.tar", "--packages", "dash"],
            &[],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        let plain = parse(&["--run", "echo"]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plain.open().unwrap().name, "echo");
    }
}
