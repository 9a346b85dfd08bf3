//! The options of `--ab`, and their meaning in combination.
//!
//! Input: what was typed. Output: a plan, or an error that says which options do not fit together.
//! This module does nothing to the machine.

use super::state::Method;
use anyhow::{Result, bail, ensure};
use clap::Args;
use std::path::PathBuf;

/// Two states of the machine, measured alternately
#[derive(Args, Debug)]
pub(crate) struct AbArgs {
    /// Measure two states of this machine alternately, and compare them: a change that --on and
    /// --off switch, or two --kernels. Results and state go to this directory
    #[arg(
        long,
        value_name = "DIR",
        group = "comparison",
        conflicts_with_all = ["list", "generations", "public", "output"]
    )]
    pub ab: Option<PathBuf>,

    /// With --ab: the command that switches the change on, for example `kernlane live apply …`
    #[arg(long, value_name = "COMMAND", requires_all = ["ab", "off"])]
    pub on: Option<String>,

    /// With --ab: the command that switches the change off, for example `kernlane live undo`
    #[arg(long, value_name = "COMMAND", requires_all = ["ab", "on"])]
    pub off: Option<String>,

    /// With --ab: boot two kernels alternately; the first is the running one, on which the run
    /// ends. Reboots the machine
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], requires = "ab",
        conflicts_with = "on")]
    pub kernels: Option<Vec<String>>,

    /// With --kernels: how to boot them
    #[arg(long, value_enum, value_name = "METHOD", default_value = "kexec")]
    pub boot_by: Method,

    /// With --kernels: boots of each kernel; each is one value of a figure
    #[arg(long, value_name = "N", default_value_t = 10,
        value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub boots: u16,

    /// With --kernels: wait SECONDS after each boot before measuring
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, allow_negative_numbers = true)]
    pub settle: f64,

    /// With --kernels: make no unit of systemd; start the command with --resume at each boot
    /// yourself
    #[arg(long, requires = "kernels")]
    pub no_unit: bool,

    /// With --ab: print every step, and do nothing
    #[arg(long, requires = "ab", conflicts_with_all = ["resume", "stop"])]
    pub dry_run: bool,

    /// With --ab: go on after a reboot, as the unit does
    #[arg(long, requires = "ab", conflicts_with_all = ["on", "kernels", "filter", "quick",
        "precision", "time", "seed", "cpu", "directory"])]
    pub resume: bool,

    /// With --ab: end a run over several boots; what was measured stays
    #[arg(long, requires = "ab", conflicts_with_all = ["on", "kernels", "resume"])]
    pub stop: bool,
}

/// What is asked for.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked<'a> {
    Switch { on: &'a str, off: &'a str },
    Kernels([&'a str; 2]),
    Resume,
    Stop,
}

impl AbArgs {
    /// What is asked for.
    ///
    /// # Errors
    /// The options name nothing to switch or to boot, or a number is out of range.
    pub(crate) fn asked(&self) -> Result<Asked<'_>> {
        ensure!(
            (0.0..=3600.0).contains(&self.settle),
            "--settle {} is not a number of seconds from 0 to 3600",
            self.settle
        );
        if let (Some(on), Some(off)) = (&self.on, &self.off) {
            return Ok(Asked::Switch { on, off });
        }
        if let Some([before, after]) = self.kernels.as_deref() {
            return Ok(Asked::Kernels([before, after]));
        }
        match (self.resume, self.stop) {
            (true, _) => Ok(Asked::Resume),
            (_, true) => Ok(Asked::Stop),
            _ => bail!(
                "--ab: give --on and --off, which switch a change, or --kernels BEFORE AFTER, or \
                 --resume or --stop"
            ),
        }
    }
}
