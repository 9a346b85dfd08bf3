//! `kernlane live status` and `kernlane live undo`.

use anyhow::{Result, bail};
use clap::Args;
use host::outln;
use live::device::{self, Device, GroupState, GroupStatus, Undone};
use live::identity::GroupId;
use live::install::{self, Unloaded};
use live::turn::{Taken, Turn};
use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

/// Say what is installed, since when, and how the copies are entered
#[derive(Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Restore the kernel's code, byte for byte
///
/// Exit status 0: nothing leads into the copies any more, and no task is in one. 1: a task may
/// still be in a copy; then the module stays loaded, harmless, and a later `kernlane live undo`
/// removes it. A group that another program is installing is left alone, also with exit status 1. A
/// kernel that removes no modules (sysctl kernel.modules_disabled) keeps the module, empty, until
/// it boots again.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live undo")]
pub struct UndoArgs {
    /// The group, as `kernlane live status` names it; by default all groups
    #[arg(value_name = "GROUP")]
    pub group: Option<String>,

    /// Print JSON: for each group, whether its bytes are restored, and what became of its module
    #[arg(long)]
    pub json: bool,
}

/// What became of a group that was undone: the kernel's own code runs again.
#[derive(serde::Serialize, Debug, PartialEq, Eq)]
pub(super) struct TakenBack {
    group: String,
    /// It was installed or leaving; otherwise only its module was there.
    restored: bool,
    module: Unloaded,
    /// Who has the turn, if the module was left loaded because of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_to: Option<String>,
}

impl TakenBack {
    /// Whether something is left for a later `kernlane live undo`.
    fn stays(&self) -> bool {
        matches!(self.module, Unloaded::InUse | Unloaded::Left)
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(self.stays()))
    }
}

impl fmt::Display for TakenBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = &self.group;
        let bytes = if self.restored { "every byte is restored" } else { "was not installed" };
        match self.module {
            Unloaded::Removed if self.restored => write!(f, "{group}: {bytes}"),
            Unloaded::Removed => write!(f, "{group}: {bytes}, and is removed"),
            Unloaded::InUse => write!(
                f,
                "{group}: {bytes}; a task may still be in a copy, so the module stays loaded until \
                 `kernlane live undo` finds nobody in it"
            ),
            Unloaded::Left => write!(
                f,
                "{group}: {bytes}; {} is installing a group, so the module is left: run `kernlane \
                 live undo` again when that has ended",
                self.left_to.as_deref().unwrap_or("another program of Kernlane")
            ),
            Unloaded::UntilBoot => write!(
                f,
                "{group}: {bytes}: the kernel is original. Its module is empty of tasks and stays \
                 until the next boot, since the kernel removes no modules (sysctl \
                 kernel.modules_disabled)"
            ),
        }
    }
}

/// The installed groups, in words; `None` without any.
pub(super) fn installed() -> Result<Option<String>> {
    let groups = device::status()?;
    let names: Vec<&str> = (groups.iter())
        .filter(|group| group.state == GroupState::Installed)
        .map(|group| group.id.module.as_str())
        .collect();
    Ok((!names.is_empty()).then(|| names.join(", ")))
}

/// Refuses to count while a group is installed, because counting begins with the kernel's own code.
///
/// # Errors
/// A group is installed.
pub(super) fn refuse_installed() -> Result<()> {
    if let Some(names) = installed()? {
        bail!(
            "installed already: {names}. Blocks are counted in the kernel's own code: run \
             `kernlane live undo` first"
        );
    }
    Ok(())
}

/// Undoes a group and removes its module.
pub(super) fn take_back(device: &Device, id: &GroupId) -> Result<TakenBack> {
    let undone = device.undo(id)?;
    remove(&id.module, Some(undone), &Turn::wait_briefly()?)
}

/// Removes the module of a group that was undone, or that is not installed (`None`).
fn remove(name: &str, undone: Option<Undone>, turn: &Result<Turn, Taken>) -> Result<TakenBack> {
    let (module, left_to) = match (undone, turn) {
        (Some(Undone::Stays), _) => (Unloaded::InUse, None),
        (_, Ok(turn)) => (install::unload(name, turn)?, None),
        (_, Err(Taken(by))) => (Unloaded::Left, Some(by.clone())),
    };
    Ok(TakenBack { group: name.to_owned(), restored: undone.is_some(), module, left_to })
}

pub(super) fn status(args: &StatusArgs) -> Result<ExitCode> {
    let groups = device::status()?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&groups)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if groups.is_empty() {
        outln!("nothing is installed: the kernel runs its own code")?;
    }
    let names = names()?;
    for group in &groups {
        print(group, &names)?;
    }
    let stray: Vec<String> = install::loaded()
        .into_iter()
        .filter(|name| groups.iter().all(|g| g.id.module != *name))
        .collect();
    if !stray.is_empty() {
        let then = if install::modules_are_disabled() {
            "they stay until the next boot: sysctl kernel.modules_disabled"
        } else {
            "`kernlane live undo` removes them"
        };
        outln!("loaded, but not installed: {} ({then})", stray.join(", "))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(group: &GroupStatus, names: &BTreeMap<u64, String>) -> Result<()> {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |t| t.as_secs() as i64);
    outln!(
        "{}: {} for {} s, {} functions, {} of {} calls go straight to a copy; written in {} us",
        group.id,
        group.state,
        now.saturating_sub(group.since),
        group.functions.len(),
        group.direct,
        group.calls,
        group.poke_us
    )?;
    for f in &group.functions {
        let name = names.get(&f.entry).map_or("?", String::as_str);
        let traced = if f.traced { "  traced: entered through the original" } else { "" };
        outln!("  {:016x} → {:016x}  {name}{traced}", f.entry, f.copy)?;
    }
    Ok(())
}

fn names() -> Result<BTreeMap<u64, String>> {
    let symbols = std::fs::read_to_string("/proc/kallsyms")?;
    let rows = symbols.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let name = words.nth(1)?;
        Some((address, name.to_owned()))
    });
    Ok(rows.filter(|(_, name)| !name.starts_with("__pfx_")).collect())
}

pub(super) fn run(args: &UndoArgs) -> Result<ExitCode> {
    let groups = device::status()?;
    if let Some(wanted) = &args.group
        && groups.iter().all(|g| g.id.module != *wanted)
        && !install::loaded().contains(wanted)
    {
        bail!("there is no group {wanted}; kernlane live status lists them");
    }
    let device = Device::open()?;
    let is_wanted = |name: &str| args.group.as_ref().is_none_or(|wanted| wanted == name);
    let mut undone = BTreeMap::new();
    for id in groups.iter().map(|group| &group.id).filter(|id| is_wanted(&id.module)) {
        undone.insert(id.module.clone(), device.undo(id)?);
    }
    let turn = Turn::wait_briefly()?;
    let mut taken_back = Vec::new();
    // Nobody else installs in our turn: a module that is neither installed nor leaving is unused.
    let groups = device::status()?;
    for name in install::loaded().iter().filter(|name| is_wanted(name)) {
        let is_used = groups.iter().any(|g| g.id.module == *name);
        match undone.get(name) {
            Some(Undone::Clean | Undone::Gone) | None if is_used => {}
            state => taken_back.push(remove(name, state.copied(), &turn)?),
        }
    }
    // Another program has removed the others, and may have used their names again.
    for group in undone.into_keys() {
        if taken_back.iter().all(|undone| undone.group != group) {
            let module = Unloaded::Removed;
            taken_back.push(TakenBack { group, restored: true, module, left_to: None });
        }
    }
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&taken_back)?)?;
    } else {
        for undone in &taken_back {
            outln!("{undone}")?;
        }
    }
    let stays = taken_back.iter().any(TakenBack::stays);
    Ok(if stays { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_module_in_use_is_a_no() {
        let undone = |restored, module| TakenBack {
            group: "kernlane_1".into(),
            restored,
            module,
            left_to: Some("another program of Kernlane (process 7)".into()),
        };
        let removed = undone(true, Unloaded::Removed);
        assert_eq!(removed.to_string(), "kernlane_1: every byte is restored");
        let in_use = undone(true, Unloaded::InUse);
        assert!(in_use.to_string().contains("a task may still be in a copy"));
        let until_boot = undone(true, Unloaded::UntilBoot);
        assert!(
            until_boot.to_string().contains("the kernel is original")
                && until_boot.to_string().contains("until the next boot")
        );
        let left = undone(false, Unloaded::Left);
        assert_eq!(
            left.to_string(),
            "kernlane_1: was not installed; another program of Kernlane (process 7) is installing \
             a group, so the module is left: run `kernlane live undo` again when that has ended"
        );
        let codes = [&removed, &in_use, &until_boot, &left]
            .map(|undone| format!("{:?}", undone.exit_code()));
        assert_eq!(codes, [0, 1, 0, 1].map(|code| format!("{:?}", ExitCode::from(code))));
        assert!(serde_json::to_string(&until_boot).unwrap().contains(r#""module":"until-boot""#));
    }
}
