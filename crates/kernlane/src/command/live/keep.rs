//! `kernlane live keep`: what is installed is kept for the next boots.

use anyhow::{Result, bail};
use clap::Args;
use host::table::{Column, TextTable};
use host::{note, out, outln};
use image::linked::LinkedKernel;
use live::device;
use live::identity::GroupId;
use live::keep::kept::{Kept, KeptGroup};
use live::keep::notes;
use live::keep::state::{DIRECTORY, KeepState};
use live::running;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Keep what is installed, so that it is installed again at every boot
///
/// Saves what the installed groups were made from: their functions, counts and options, with the
/// kernel's build id. `kernlane live restore`, which the unit kernlane.service runs at boot, makes
/// the same groups again. Groups that were kept before are replaced, and what was known against
/// them is forgotten.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live keep\n  kernlane live keep --list\n  \
                  systemctl enable --now kernlane")]
pub struct KeepArgs {
    #[command(flatten)]
    pub state: StateArgs,

    /// Say what is kept, and why it is not installed any more, if that is so
    #[arg(long)]
    pub list: bool,

    /// Print JSON
    #[arg(long, requires = "list")]
    pub json: bool,

    /// Forget what is kept. What is installed stays
    #[arg(long, conflicts_with = "list")]
    pub drop: bool,

    /// Let the next boot install again what was taken back after a complaint of the kernel
    #[arg(long, conflicts_with_all = ["list", "drop"])]
    pub retry: bool,
}

#[derive(Args)]
pub struct StateArgs {
    /// The directory of what is kept
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    pub state: PathBuf,
}

impl StateArgs {
    pub fn open(&self) -> KeepState {
        KeepState::new(&self.state)
    }
}

pub(super) fn run(args: &KeepArgs) -> Result<ExitCode> {
    let state = args.state.open();
    if args.list {
        return list(args, &state);
    }
    if args.drop {
        let was_kept = state.forget()?;
        outln!("{}", if was_kept { "forgotten" } else { "nothing was kept" })?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.retry {
        return retry(&state);
    }
    keep(&state)?;
    Ok(ExitCode::SUCCESS)
}

/// Keeps what is installed.
pub(super) fn keep(state: &KeepState) -> Result<()> {
    let kept = notes::installed(&device::status()?, &running::build_id()?)?;
    state.keep(&kept)?;
    outln!(
        "kept: {} in {}, for Linux {}, build id {}",
        functions(&kept),
        state.path().display(),
        kept.release,
        kept.build_id.0
    )
}

/// Keeps what is installed, in the usual place: for commands that install.
pub(super) fn keep_as_usual() -> Result<()> {
    keep(&KeepState::new(Path::new(DIRECTORY)))
}

/// Notes what a group is made from, before it is installed. Without the note the group cannot be
/// kept, which is said.
pub(super) fn note(id: &GroupId, group: &KeptGroup, kernel: &LinkedKernel<'_>) -> Result<()> {
    if let Err(error) = notes::note(id, group, &kernel.build_id, &device::status()?) {
        note!("{id} is installed, but cannot be kept for the next boots: {error:#}");
    }
    Ok(())
}

fn retry(state: &KeepState) -> Result<ExitCode> {
    if state.kept()?.is_none() {
        bail!("nothing is kept in {}", state.path().display());
    }
    let was_bad = state.mark_good()?;
    outln!(
        "{}",
        if was_bad { "the next boot installs it" } else { "nothing was held against it" }
    )?;
    Ok(ExitCode::SUCCESS)
}

/// `61 functions in 1 group`.
pub(super) fn functions(kept: &Kept) -> String {
    let (functions, groups) = (kept.functions(), kept.groups.len());
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    format!("{functions} function{} of {groups} group{}", plural(functions), plural(groups))
}

/// In days, or hours if it is less than one.
pub(super) fn age(age: Duration) -> String {
    let hours = age.as_secs() / 3600;
    let (number, unit) = if hours >= 48 { (hours / 24, "day") } else { (hours, "hour") };
    format!("{number} {unit}{} ago", if number == 1 { "" } else { "s" })
}

/// What is kept, as JSON.
#[derive(serde::Serialize)]
struct KeptSummary<'a> {
    release: &'a str,
    build_id: &'a str,
    /// Seconds since 1970.
    since: u64,
    groups: Vec<GroupSummary<'a>>,
    /// Why it is not installed any more.
    bad: Option<String>,
}

#[derive(serde::Serialize)]
struct GroupSummary<'a> {
    functions: Vec<&'a str>,
    algorithm: String,
    seed: u64,
    inline: bool,
    /// Blocks with a count.
    counted_blocks: usize,
}

fn summary<'a>(kept: &'a Kept, bad: Option<String>) -> Result<KeptSummary<'a>> {
    let group = |group: &'a KeptGroup| -> Result<GroupSummary<'a>> {
        let layout = group.layout()?;
        Ok(GroupSummary {
            functions: group.names().collect(),
            algorithm: layout.algorithm.to_string(),
            seed: layout.seed,
            inline: layout.inline,
            counted_blocks: group.profile()?.map_or(0, |profile| profile.blocks.len()),
        })
    };
    Ok(KeptSummary {
        release: &kept.release,
        build_id: &kept.build_id.0,
        since: kept.since,
        groups: kept.groups.iter().map(group).collect::<Result<_>>()?,
        bad,
    })
}

fn list(args: &KeepArgs, state: &KeepState) -> Result<ExitCode> {
    let Some(kept) = state.kept()? else {
        if args.json {
            outln!("null")?;
        } else {
            outln!("nothing is kept in {}", state.path().display())?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let summary = summary(&kept, state.bad()?)?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&summary)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    outln!("kept {} in Linux {}, build id {}", age(kept.age()), summary.release, summary.build_id)?;
    let mut table = TextTable::of([
        Column::right("group").fixed(5),
        Column::right("functions").fixed(9),
        Column::right("counted blocks").fixed(14),
        Column::left("layout"),
    ]);
    for (n, group) in (1..).zip(&summary.groups) {
        let inline = if group.inline { ", calls inlined" } else { "" };
        table.push(vec![
            format!("{n}"),
            group.functions.len().to_string(),
            group.counted_blocks.to_string(),
            format!("{}{inline}", group.algorithm),
        ]);
    }
    out!("{}", table.to_text())?;
    if let Some(reason) = &summary.bad {
        outln!("not installed any more: {reason}\n`kernlane live keep --retry` lets it be again")?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_in_hours_or_days() {
        let hours = |hours: u64| age(Duration::from_secs(3600 * hours));
        assert_eq!(
            [0, 1, 47, 48, 24 * 400].map(hours),
            ["0 hours ago", "1 hour ago", "47 hours ago", "2 days ago", "400 days ago"]
        );
    }
}
