//! `kernlane live undo`.

use anyhow::{Context, Result, bail};
use clap::Args;
use host::outln;
use host::progress::Progress;
use live::install::Unloaded;
use live::undo::{self, TakenBack};
use std::process::ExitCode;
use std::time::Duration;

/// Restore the kernel's code, byte for byte
///
/// Waits until no task is in a copy. Exit status 0: nothing leads into the copies any more, and no
/// task is in one. 1: a task may still be in a copy; then the module stays loaded, harmless, and a
/// later `kernlane live undo` removes it. A group that another program is installing is left alone,
/// also with exit status 1. A kernel that removes no modules (sysctl kernel.modules_disabled) keeps
/// the module, empty, until it boots again.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live undo")]
pub struct UndoArgs {
    /// The group, as `kernlane live status` names it; by default all groups
    #[arg(value_name = "GROUP")]
    pub group: Option<String>,

    /// The longest time to wait until no task is in a copy, in seconds. Meanwhile the kernel runs
    /// its own code
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub wait: u64,

    /// Print JSON: for each group, whether its bytes are restored, and what became of its module
    #[arg(long)]
    pub json: bool,
}

/// What became of a group, as a sentence.
pub(super) fn sentence(taken_back: &TakenBack) -> String {
    let TakenBack { group, restored, module, left_to } = taken_back;
    let bytes = if *restored { "every byte is restored" } else { "was not installed" };
    match module {
        Unloaded::Removed if *restored => format!("{group}: {bytes}"),
        Unloaded::Removed => format!("{group}: {bytes}, and is removed"),
        Unloaded::InUse => format!(
            "{group}: {bytes}; a task may still be in a copy, so the module stays loaded until \
             `kernlane live undo` finds nobody in it"
        ),
        Unloaded::Left => format!(
            "{group}: {bytes}; {} is installing a group, so the module is left: run `kernlane \
             live undo` again when that has ended",
            left_to.as_deref().unwrap_or("another program of Kernlane")
        ),
        Unloaded::UntilBoot => format!(
            "{group}: {bytes}: the kernel is original. Its module is empty of tasks and stays \
             until the next boot, since the kernel removes no modules (sysctl \
             kernel.modules_disabled)"
        ),
    }
}

/// 1 if something is left for a later `kernlane live undo`, otherwise 0.
pub(super) fn exit_code(stays: bool) -> ExitCode {
    ExitCode::from(u8::from(stays))
}

/// Refuses to count while a group is installed, because counting begins with the kernel's own code.
///
/// # Errors
/// A group is installed.
pub(super) fn refuse_installed() -> Result<()> {
    if let Some(names) = undo::installed()? {
        bail!(
            "installed already: {names}. Blocks are counted in the kernel's own code: run \
             `kernlane live undo` first"
        );
    }
    Ok(())
}

pub(super) fn run(args: &UndoArgs) -> Result<ExitCode> {
    let wanted = args.group.as_deref();
    let mut progress = None;
    let mut waits = |group: &str| {
        progress.get_or_insert_with(|| {
            Progress::new(format!(
                "{group}: every byte is restored; waiting for a task in a copy, for at most {} s",
                args.wait
            ))
        });
    };
    let limit = Duration::from_secs(args.wait);
    let taken_back = undo::undo_within(wanted, limit, &mut waits)?.with_context(|| {
        format!("there is no group {}; kernlane live status lists them", wanted.unwrap_or_default())
    })?;
    drop(progress);
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&taken_back)?)?;
    } else {
        for undone in &taken_back {
            outln!("{}", sentence(undone))?;
        }
    }
    Ok(exit_code(taken_back.iter().any(TakenBack::stays)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_and_the_status_say_what_is_left() {
        let undone = |restored, module| TakenBack {
            group: "kernlane_1".into(),
            restored,
            module,
            left_to: Some("another program of Kernlane (process 7)".into()),
        };
        let removed = undone(true, Unloaded::Removed);
        assert_eq!(sentence(&removed), "kernlane_1: every byte is restored");
        let empty = undone(false, Unloaded::Removed);
        assert_eq!(sentence(&empty), "kernlane_1: was not installed, and is removed");
        let in_use = undone(true, Unloaded::InUse);
        assert!(sentence(&in_use).contains("a task may still be in a copy"));
        let until_boot = undone(true, Unloaded::UntilBoot);
        assert!(
            sentence(&until_boot).contains("the kernel is original")
                && sentence(&until_boot).contains("until the next boot")
        );
        let left = undone(false, Unloaded::Left);
        assert_eq!(
            sentence(&left),
            "kernlane_1: was not installed; another program of Kernlane (process 7) is installing \
             a group, so the module is left: run `kernlane live undo` again when that has ended"
        );
        let codes = [&removed, &in_use, &until_boot, &left]
            .map(|undone| format!("{:?}", exit_code(undone.stays())));
        assert_eq!(codes, [0, 1, 0, 1].map(|code| format!("{:?}", ExitCode::from(code))));
        assert!(serde_json::to_string(&until_boot).unwrap().contains(r#""module":"until-boot""#));
    }
}
