//! Decides whether a guest did its work, and if not, why.
//!
//! Input: a `GuestOutcome`. Output: an error that says what failed, with the last lines of
//! everything that was printed.

use crate::boot::{self, GuestEnd, GuestOutcome};
use crate::configuration::Boot;
use anyhow::{Result, bail};
use trace::CpuCount;

/// Returns an error unless the guest did its work.
pub(crate) fn judge(boot: &Boot, outcome: &GuestOutcome) -> Result<()> {
    match outcome.end {
        GuestEnd::Exited(0) | GuestEnd::Saved => Ok(()),
        GuestEnd::Exited(status) => {
            let what = failed_in(&outcome.console).unwrap_or("before it was set up");
            bail!(explain(&format!("the workload failed {what} (status {status})"), outcome))
        }
        GuestEnd::Stopped => match (plugin_failure(&outcome.qemu), panic(&outcome.console)) {
            (Some(failure), _) => bail!(failure.to_string()),
            (None, Some(reason)) => {
                bail!(explain(&format!("the kernel panicked: {reason}"), outcome))
            }
            (None, None) => {
                bail!(explain("the guest stopped before the workload had ended", outcome))
            }
        },
        GuestEnd::TimeLimit => bail!(explain(
            &format!(
                "the guest had not finished within its time limit of {} seconds and was ended",
                boot.time_limit.as_secs()
            ),
            outcome
        )),
    }
}

/// The plugin's message, if it ended QEMU because it could not write.
fn plugin_failure(messages: &str) -> Option<&str> {
    let mut said = messages.lines().filter_map(|line| line.strip_prefix("kernlane: "));
    said.find(|message| message.contains("failed"))
}

/// The plugin's warnings.
pub(crate) fn warnings(messages: &str) -> Vec<String> {
    let warned = messages.lines().filter_map(|line| line.strip_prefix("kernlane: warning: "));
    warned.map(str::to_owned).collect()
}

/// The reason of the kernel's panic, if it panicked (kernel/panic.c).
fn panic(console: &str) -> Option<&str> {
    console
        .lines()
        .find_map(|line| line.split_once("Kernel panic - not syncing: "))
        .map(|(_, reason)| reason)
}

/// The part of the workload that failed, for example "in run", from the line that `workload.sh`
/// or `trial.sh` prints.
pub(crate) fn failed_in(console: &str) -> Option<&str> {
    let line = console
        .lines()
        .rev()
        .find_map(|line| line.split_once("kernlane: failed "))
        .map(|(_, text)| text)?;
    line.split(" with status").next()
}

/// Checks that all CPUs of the guest came up.
///
/// # Errors
/// The kernel's console has another number, or none.
pub(crate) fn all_cpus_came_up(cpus: CpuCount, console: &str) -> Result<()> {
    // smp: Brought up 1 node, 4 CPUs
    let number = |line: &str| {
        let (_, said) = line.split_once("smp: Brought up ")?;
        said.trim_end().rsplit_once(", ")?.1.split(' ').next()?.parse::<u32>().ok()
    };
    let found = console.lines().find_map(number);
    match found {
        Some(found) if found == u32::from(cpus.get()) => Ok(()),
        None if cpus == CpuCount::ONE => Ok(()),
        Some(found) => bail!(
            "the guest has {cpus} CPUs, and {found} came up: the kernel's command line \
             (maxcpus=, nr_cpus=) or CONFIG_NR_CPUS limits them"
        ),
        None => bail!(
            "the kernel's console does not say that {cpus} CPUs came up: the kernel must print its \
             messages (no quiet or loglevel= in its own command line)"
        ),
    }
}

/// The message, with the last lines of everything that the guest and QEMU printed.
pub(crate) fn explain(message: &str, outcome: &GuestOutcome) -> String {
    let mut text = message.to_string();
    for (name, lines) in [
        ("kernel's console", &outcome.console),
        ("workload's output", &outcome.output),
        ("QEMU", &outcome.qemu),
    ] {
        let lines = boot::last_lines(lines, 12);
        if !lines.is_empty() {
            text.push_str(&format!("\n--- {name}, last lines:\n{lines}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn outcome(end: GuestEnd, console: &str) -> GuestOutcome {
        GuestOutcome {
            end,
            console: console.into(),
            output: "said\n".into(),
            qemu: String::new(),
            elapsed: Duration::ZERO,
            cost: boot::HostCost::default(),
        }
    }

    fn judged(end: GuestEnd, console: &str) -> String {
        let boot = Boot::new("k".into(), "i".into());
        format!("{:#}", judge(&boot, &outcome(end, console)).unwrap_err())
    }

    #[test]
    fn warnings_of_the_plugin_are_handed_on() {
        let messages =
            "kernlane: recorded 5 instructions\nkernlane: warning: no pids\nwarning: x\n";
        assert_eq!(warnings(messages), ["no pids"]);
    }

    #[test]
    fn a_cpu_that_does_not_come_up_is_an_error() {
        let cpus = |number| CpuCount::new(number).unwrap();
        let console = |number| {
            format!(
                "[    0.365517] smp: Bringing up secondary CPUs ...\n\
                     [    0.639097] smp: Brought up 1 node, {number} CPUs\n"
            )
        };
        assert!(all_cpus_came_up(cpus(4), &console(4)).is_ok());
        assert!(all_cpus_came_up(cpus(1), "").is_ok());
        assert!(all_cpus_came_up(cpus(1), "smp: Brought up 1 node, 1 CPU\n").is_ok());
        let error = |found: &str| all_cpus_came_up(cpus(4), found).unwrap_err().to_string();
        assert!(error(&console(3)).contains("has 4 CPUs, and 3 came up"));
        assert!(error("no such line").contains("does not say that 4 CPUs came up"));
    }

    #[test]
    fn the_error_has_the_reason_and_the_last_lines() {
        let message = judged(
            GuestEnd::Exited(3),
            "[ 1.0] a\n[ 2.0] kernlane: failed in run with status 3\n[ 2.0] kernlane: exit 3\n",
        );
        assert!(
            message.contains("failed in run (status 3)")
                && message.contains("output, last lines:\nsaid"),
            "{message}"
        );
        assert!(
            judged(GuestEnd::Stopped, "[ 1.0] Kernel panic - not syncing: VFS\n[ 1.1] x")
                .contains("panicked: VFS")
        );
        let full = "kernlane: writing the recording failed: No space left on device (os error 28)\n\
            kernlane: stopping the guest\n";
        assert!(plugin_failure(full).unwrap().ends_with("(os error 28)"));
        assert_eq!(
            plugin_failure("kernlane: QEMU ends, and the workload has not executed marker 2\n"),
            None
        );
        assert!(judged(GuestEnd::TimeLimit, "").contains("its time limit of"));
        let boot = Boot::new("k".into(), "i".into());
        assert!(judge(&boot, &outcome(GuestEnd::Exited(0), "")).is_ok());
    }
}
