//! Until the next boot it is noted what installed groups were made from, so that they can be kept.
//!
//! Input: a group that is about to be installed; the groups that are. Output: files in
//! `/run/kernlane`, by the groups' numbers, which are never used again.

use super::kept::{Kept, KeptGroup};
use crate::device::{GroupState, GroupStatus};
use crate::identity::GroupId;
use anyhow::{Context, Result, bail, ensure};
use image::BuildId;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Nothing in it outlives a boot, as the groups do not.
pub(super) const RUN: &str = "/run/kernlane";

/// Notes what a group is made from, until the next boot. Removes the notes of groups that are gone.
/// Call this before the group is installed, so that there is no group without a note.
///
/// # Errors
/// The note cannot be written.
pub fn note(
    id: &GroupId,
    group: &KeptGroup,
    build_id: &BuildId,
    others: &[GroupStatus],
) -> Result<()> {
    let directory = Path::new(RUN);
    std::fs::create_dir_all(directory).with_context(|| format!("making {RUN}"))?;
    let kept = Kept::now(build_id.clone(), vec![group.clone()])?;
    let path = noted(id);
    host::output::write(&path, kept.to_json()?.as_bytes())?;
    let used: BTreeSet<PathBuf> =
        others.iter().map(|group| noted(&group.id)).chain([path]).collect();
    for entry in std::fs::read_dir(directory).with_context(|| format!("reading {RUN}"))?.flatten() {
        let is_note = entry.path().extension().is_some_and(|extension| extension == "group");
        if is_note && !used.contains(&entry.path()) {
            // What stays is only not tidy.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

fn noted(id: &GroupId) -> PathBuf {
    Path::new(RUN).join(format!("{}.group", id.number))
}

/// What the installed groups were made from, in the order in which they were installed.
///
/// # Errors
/// No group is installed; or it is not noted what one was made from.
pub fn installed(groups: &[GroupStatus], build_id: &BuildId) -> Result<Kept> {
    let mut groups: Vec<&GroupStatus> =
        (groups.iter()).filter(|group| group.state == GroupState::Installed).collect();
    groups.sort_by_key(|group| group.since);
    ensure!(!groups.is_empty(), "nothing is installed that could be kept");
    let mut kept = Vec::new();
    for group in groups {
        let path = noted(&group.id);
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!(
                "{}: what it was made from is not noted in {}: undo it, and apply it again",
                group.id,
                path.display()
            )
        })?;
        let noted = Kept::from_json(&text).with_context(|| path.display().to_string())?;
        if noted.build_id != *build_id {
            bail!("{}: made in the kernel with build id {}", path.display(), noted.build_id.0);
        }
        kept.extend(noted.groups);
    }
    Kept::now(build_id.clone(), kept)
}
