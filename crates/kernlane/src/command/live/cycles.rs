//! `kernlane live apply --cycles N`: a group is installed and undone again and again.

use anyhow::{Error, Result, anyhow};
use host::outln;
use host::progress::Progress;
use live::cycles::{self, Spent, TaskStays};
use live::device::Device;
use live::group::Group;
use live::install::PreparedGroup;
use live::turn::Turn;
use std::process::ExitCode;
use std::time::Duration;

pub(super) fn run(
    group: &Group<'_, '_>,
    prepared: &PreparedGroup,
    device: &Device,
    cycles: u32,
    turn: &Turn,
) -> Result<ExitCode> {
    host::interrupt::catch()?;
    let progress = Progress::of(cycles.into(), "cycles of installing and undoing");
    let told = &mut || progress.advance(1);
    let done = cycles::run(prepared, group, device, cycles, turn, told).map_err(with_command)?;
    drop(progress);
    outln!(
        "installed and undone {cycles} times; a task in a copy held up {} of them",
        done.held_up
    )?;
    outln!("processor time, ms     mean     most")?;
    for (step, spent) in [
        ("loading the module", &done.loading),
        ("patching", &done.patching),
        ("undoing", &done.undoing),
    ] {
        outln!("{step:18} {}", cells(spent))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Names the command that removes the module of a group that some task is in.
fn with_command(error: Error) -> Error {
    match error.downcast_ref() {
        Some(TaskStays { module, waited }) => anyhow!(
            "{module}: every byte is restored, but for {} s some task has been in a copy; \
             `kernlane live undo` removes the module when it has gone",
            waited.as_secs()
        ),
        None => error,
    }
}

fn cells(spent: &Spent) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    format!("{:>8.2} {:>8.2}", ms(spent.mean()), ms(spent.most()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_most_are_in_milliseconds() {
        let mut spent = Spent::default();
        assert_eq!(cells(&spent), "    0.00     0.00");
        for microseconds in [500, 1500, 4000] {
            spent.add(Duration::from_micros(microseconds));
        }
        assert_eq!(cells(&spent), "    2.00     4.00");
    }

    #[test]
    fn a_task_that_stays_is_waited_for_by_a_later_undo() {
        let stays = TaskStays { module: "kernlane_1".into(), waited: Duration::from_secs(60) };
        let expected = "kernlane_1: every byte is restored, but for 60 s some task has been in a \
                        copy; `kernlane live undo` removes the module when it has gone";
        assert_eq!(with_command(stays.into()).to_string(), expected);
        assert_eq!(with_command(anyhow!("another")).to_string(), "another");
    }
}
