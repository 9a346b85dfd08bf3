//! Takes groups back: the kernel's own code runs again, and the modules of copies are removed.
//!
//! Input: the name of a group, or none for all groups. Output: for each group, what became of it
//! and of its module. This module never removes a module that another program may be installing.

use crate::device::{self, Device, GroupState, GroupStatus, Undone};
use crate::identity::GroupId;
use crate::install::{self, Unloaded};
use crate::turn::{Taken, Turn};
use anyhow::Result;
use host::interrupt;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// What became of a group that was undone: the kernel's own code runs again.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TakenBack {
    /// The name of its module.
    pub group: String,
    /// It was installed or leaving; otherwise only its module was there.
    pub restored: bool,
    /// What became of its module.
    pub module: Unloaded,
    /// Who has the turn, if the module was left loaded because of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_to: Option<String>,
}

impl TakenBack {
    /// Whether something is left for a later undo.
    pub fn stays(&self) -> bool {
        matches!(self.module, Unloaded::InUse | Unloaded::Left)
    }
}

/// The names of the installed groups, separated by commas; `None` if no group is installed.
///
/// # Errors
/// Kernlane's module is not loaded, or prints an unknown line.
pub fn installed() -> Result<Option<String>> {
    Ok(installed_among(&device::status()?))
}

fn installed_among(groups: &[GroupStatus]) -> Option<String> {
    let names: Vec<&str> = (groups.iter())
        .filter(|group| group.state == GroupState::Installed)
        .map(|group| group.id.module.as_str())
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// The loaded modules of groups, by their names, that belong to none of `groups`.
pub fn stray_modules(groups: &[GroupStatus]) -> Vec<String> {
    stray_among(install::loaded(), groups)
}

fn stray_among(loaded: Vec<String>, groups: &[GroupStatus]) -> Vec<String> {
    let is_stray = |name: &String| groups.iter().all(|group| group.id.module != *name);
    loaded.into_iter().filter(is_stray).collect()
}

/// Undoes a group and removes its module.
///
/// # Errors
/// Another tool has changed or probes one of its places; the module cannot be removed; or Ctrl-C
/// came.
pub fn take_back(device: &Device, id: &GroupId) -> Result<TakenBack> {
    let undone = device.undo(id)?;
    remove(&id.module, Some(undone), &Turn::wait_briefly()?)
}

/// Undoes the group of that name (`None`: all groups), and removes the modules that are left. The
/// result has the modules in the order of their names, then the groups whose modules another
/// program removed. `None` if there is no group or module of that name.
///
/// # Errors
/// Kernlane's module is not loaded; or the errors of [`take_back`].
pub fn undo(wanted: Option<&str>) -> Result<Option<Vec<TakenBack>>> {
    let groups = device::status()?;
    if let Some(wanted) = wanted
        && groups.iter().all(|g| g.id.module != wanted)
        && !install::loaded().iter().any(|name| name == wanted)
    {
        return Ok(None);
    }
    let device = Device::open()?;
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted == name);
    let mut undone = BTreeMap::new();
    for id in groups.iter().map(|group| &group.id).filter(|id| is_wanted(&id.module)) {
        undone.insert(id.module.clone(), device.undo(id)?);
    }
    let turn = Turn::wait_briefly()?;
    let groups = device::status()?;
    let loaded: Vec<String> =
        install::loaded().into_iter().filter(|name| is_wanted(name)).collect();
    let left = Left::of(&loaded, &groups, &undone);
    let mut taken_back = Vec::new();
    for (name, state) in left.to_remove {
        taken_back.push(remove(name, state, &turn)?);
    }
    taken_back.extend(left.gone.into_iter().map(|name| TakenBack {
        group: name.to_owned(),
        restored: true,
        module: Unloaded::Removed,
        left_to: None,
    }));
    Ok(Some(taken_back))
}

/// As [`undo`], and waits until no task is in a copy, for at most `limit` or until Ctrl-C comes.
/// `waits` gets the group that a task holds.
///
/// # Errors
/// Those of [`undo`].
pub fn undo_within(
    wanted: Option<&str>,
    limit: Duration,
    waits: &mut dyn FnMut(&str),
) -> Result<Option<Vec<TakenBack>>> {
    let begun = Instant::now();
    let Some(mut taken_back) = undo(wanted)? else { return Ok(None) };
    loop {
        let is_held = |group: &&mut TakenBack| group.module == Unloaded::InUse;
        let held: Vec<&mut TakenBack> = taken_back.iter_mut().filter(is_held).collect();
        let Some(first) = held.first() else { break };
        if begun.elapsed() >= limit || interrupt::check().is_err() {
            break;
        }
        waits(&first.group);
        thread::sleep(PAUSE);
        for group in held {
            (group.module, group.left_to) = later(&group.group)?;
        }
    }
    Ok(Some(taken_back))
}

/// How often a group that a task holds is looked at.
const PAUSE: Duration = Duration::from_millis(200);

/// What became of the module of a group that was undone before.
fn later(group: &str) -> Result<(Unloaded, Option<String>)> {
    let is_of_another =
        |it: &GroupStatus| it.id.module == group && it.state == GroupState::Installed;
    if device::status()?.iter().any(is_of_another) {
        return Ok((Unloaded::Removed, None));
    }
    let again = undo(Some(group))?.unwrap_or_default().into_iter().find(|it| it.group == group);
    Ok(again.map_or((Unloaded::Removed, None), |again| (again.module, again.left_to)))
}

/// What is left to do when groups have been undone.
#[derive(Debug, PartialEq, Eq)]
struct Left<'a> {
    /// The modules to remove, each with the result of undoing its group; `None` without a group.
    to_remove: Vec<(&'a str, Option<Undone>)>,
    /// The undone groups whose modules another program has removed.
    gone: Vec<&'a str>,
}

impl<'a> Left<'a> {
    /// `loaded`: modules, and `groups`: groups, as they are in this program's turn. `undone`: by
    /// group, the result of undoing it before.
    fn of(
        loaded: &'a [String],
        groups: &[GroupStatus],
        undone: &'a BTreeMap<String, Undone>,
    ) -> Left<'a> {
        // Nobody else installs in our turn: a module that is neither installed nor leaving is
        // unused.
        let is_used = |name: &str| groups.iter().any(|group| group.id.module == name);
        let to_remove: Vec<(&str, Option<Undone>)> = (loaded.iter())
            .map(|name| (name.as_str(), undone.get(name).copied()))
            .filter(|&(name, state)| state == Some(Undone::Stays) || !is_used(name))
            .collect();
        // Another program has removed the others, and may have used their names again.
        let is_gone = |group: &&str| to_remove.iter().all(|(name, _)| name != group);
        let gone = undone.keys().map(String::as_str).filter(is_gone).collect();
        Left { to_remove, gone }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::ModuleNumber;

    fn taken_back(restored: bool, module: Unloaded) -> TakenBack {
        let left_to = Some("another program of Kernlane (process 7)".into());
        TakenBack { group: "kernlane_1".into(), restored, module, left_to }
    }

    fn group(name: &str, state: GroupState) -> GroupStatus {
        GroupStatus {
            id: GroupId { module: name.into(), number: ModuleNumber([0; 16]) },
            state,
            since: 0,
            calls: 0,
            direct: 0,
            poke_us: 0,
            total_us: 0,
            page: 4096,
            functions: Vec::new(),
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_module_that_is_in_use_or_left_stays() {
        let stays = |module| taken_back(true, module).stays();
        assert!(stays(Unloaded::InUse) && stays(Unloaded::Left));
        assert!(!stays(Unloaded::Removed) && !stays(Unloaded::UntilBoot));
    }

    #[test]
    fn installed_groups_are_named_and_leaving_ones_are_not() {
        assert_eq!(installed_among(&[]), None);
        let leaving = group("kernlane_2", GroupState::Leaving);
        assert_eq!(installed_among(std::slice::from_ref(&leaving)), None);
        let installed = ["kernlane_1", "kernlane_3"].map(|n| group(n, GroupState::Installed));
        let [first, third] = installed;
        let all = installed_among(&[first, leaving, third]);
        assert_eq!(all.as_deref(), Some("kernlane_1, kernlane_3"));
    }

    #[test]
    fn a_module_without_a_group_is_stray() {
        let groups =
            [group("kernlane_1", GroupState::Installed), group("kernlane_2", GroupState::Leaving)];
        let loaded = names(&["kernlane_1", "kernlane_2", "kernlane_4"]);
        assert_eq!(stray_among(loaded.clone(), &groups), ["kernlane_4"]);
        assert_eq!(stray_among(loaded.clone(), &[]), loaded);
    }

    #[test]
    fn a_module_is_removed_unless_a_group_that_came_meanwhile_uses_it() {
        let loaded = names(&["clean", "gone", "stays", "stray", "used", "used_again"]);
        let groups = ["stays", "used", "used_again"].map(|n| group(n, GroupState::Installed));
        let undone = BTreeMap::from([
            ("clean".to_owned(), Undone::Clean),
            ("gone".to_owned(), Undone::Gone),
            ("removed".to_owned(), Undone::Clean),
            ("stays".to_owned(), Undone::Stays),
            ("used_again".to_owned(), Undone::Clean),
        ]);
        let to_remove = vec![
            ("clean", Some(Undone::Clean)),
            ("gone", Some(Undone::Gone)),
            ("stays", Some(Undone::Stays)),
            ("stray", None),
        ];
        let gone = vec!["removed", "used_again"];
        assert_eq!(Left::of(&loaded, &groups, &undone), Left { to_remove, gone });
    }

    #[test]
    fn without_the_turn_no_module_is_removed() {
        let taken = Err(Taken("another program of Kernlane (process 7)".into()));
        let left = remove("kernlane_1", None, &taken).unwrap();
        assert_eq!(left, taken_back(false, Unloaded::Left));
        let left = remove("kernlane_1", Some(Undone::Clean), &taken).unwrap();
        assert_eq!(left, taken_back(true, Unloaded::Left));
        let in_use = remove("kernlane_1", Some(Undone::Stays), &taken).unwrap();
        assert_eq!(in_use, TakenBack { left_to: None, ..taken_back(true, Unloaded::InUse) });
    }
}
