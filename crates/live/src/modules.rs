//! The modules that the running kernel has loaded, with their code and side tables.
//!
//! Input: `/proc/modules`, `/sys/module`, the files of the modules, and memory. Output: each module
//! with its relocations applied, or why it is left alone. Every table of a module is compared with
//! the one in memory; its code is compared later, function by function. This module never writes.

use crate::device::Device;
use crate::install;
use crate::running::{self, RunningKernel};
use anyhow::{Context, Result, ensure};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::linked::loaded::{self, LoadedModule, ModuleFile};
use image::linked::tables::{BugEntry, LinkedTables};
use std::collections::BTreeMap;
use std::path::Path;

/// The modules of a running kernel.
#[derive(Default)]
pub struct RunningModules {
    /// Those whose functions can be looked at.
    pub read: Vec<LoadedModule>,
    /// The others, by name.
    pub left_out: Vec<LeftOutModule>,
}

/// A module whose functions are not looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct LeftOutModule {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

impl RunningModules {
    /// Why modules are left out: a line for each reason.
    pub fn reasons(&self) -> Vec<String> {
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for LeftOutModule { name, reason } in &self.left_out {
            by_reason.entry(reason).or_default().push(name);
        }
        let lines = by_reason.iter().map(|(reason, names)| {
            let plural = if names.len() == 1 { "" } else { "s" };
            let verb = if names.len() == 1 { "is" } else { "are" };
            format!("the module{plural} {} {verb} left alone: {reason}", names.join(", "))
        });
        lines.collect()
    }
}

impl LeftOutModule {
    fn new(name: &str, error: &anyhow::Error) -> LeftOutModule {
        LeftOutModule { name: name.to_owned(), reason: format!("{error:#}") }
    }
}

/// The name of Kernlane's own module.
const OWN: &str = "kernlane";

/// Reads every loaded module. `kernel`: the running kernel's vmlinux; `file`: the bytes of the file
/// of a module, by the module's name. `device`: the modules that are read cannot be removed before
/// it is closed; without it, nothing of them may be replaced.
///
/// # Errors
/// The list of modules cannot be read.
pub fn read(
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    file: &dyn Fn(&str) -> Result<Vec<u8>>,
    device: Option<&Device>,
) -> Result<RunningModules> {
    let list = std::fs::read_to_string("/proc/modules").context("reading /proc/modules")?;
    let mut found = RunningModules::default();
    let mut opened = Vec::new();
    for name in named(&list) {
        match open(name, running.slide, file, device) {
            Ok(module) => opened.push(module),
            Err(error) => found.left_out.push(LeftOutModule::new(name, &error)),
        }
    }
    let files: Vec<ModuleFile<'_>> = (opened.iter())
        .map(|module| ModuleFile { data: &module.data, sections: module.sections.clone() })
        .collect();
    for (opened, module) in opened.iter().zip(loaded::relocate(kernel, &files)) {
        let verified = module.and_then(|module| {
            let id = &module.identity.build_id;
            ensure!(
                *id == opened.build_id,
                "its file is of another build ({id}) than the module that is loaded ({})",
                opened.build_id
            );
            verify(kernel, running, &module)?;
            Ok(module)
        });
        match verified {
            Ok(module) => found.read.push(module),
            Err(error) => found.left_out.push(LeftOutModule::new(&opened.name, &error)),
        }
    }
    found.left_out.sort();
    Ok(found)
}

/// A loaded module with its file.
struct Opened {
    name: String,
    build_id: String,
    data: Vec<u8>,
    sections: BTreeMap<String, LinkAddr>,
}

/// The names of the modules that have started, without Kernlane's own and the copies. `list`: the
/// text of `/proc/modules`.
fn named(list: &str) -> impl Iterator<Item = &str> {
    let modules = list.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        (words.get(4) == Some(&"Live")).then(|| words[0])
    });
    modules.filter(|&name| name != OWN && !install::is_group(name))
}

fn open(
    name: &str,
    slide: u64,
    file: &dyn Fn(&str) -> Result<Vec<u8>>,
    device: Option<&Device>,
) -> Result<Opened> {
    let data = file(name)?;
    let home = Path::new("/sys/module").join(name);
    let list = home.join("sections");
    let entries =
        std::fs::read_dir(&list).with_context(|| format!("reading {}", list.display()))?;
    let named: Vec<String> = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    // Hold it, then read it: what is read is what stays. Without code it has no functions.
    if let (Some(device), Some(text)) = (device, named.iter().find(|s| s.starts_with(".text"))) {
        device.hold(name, install::section_of(name, text)?)?;
    }
    let note = home.join("notes/.note.gnu.build-id");
    let notes = std::fs::read(&note).with_context(|| format!("reading {}", note.display()))?;
    let build_id = running::note_of_build_id(&notes).context("shows no build id")?.0;
    let mut sections = BTreeMap::new();
    for section in named {
        let at = install::section_of(name, &section)?;
        sections.insert(section, LinkAddr(at.wrapping_sub(slide)));
    }
    Ok(Opened { name: name.to_owned(), build_id, data, sections })
}

/// Compares the side tables of a module with those in memory.
///
/// # Errors
/// One differs; memory cannot be read.
fn verify(kernel: &LinkedKernel<'_>, running: &RunningKernel, module: &LoadedModule) -> Result<()> {
    let file = module.tables(kernel)?;
    let live = module.tables_in(kernel, running.slide, &|at, len| running.read(at, len))?;
    match difference(&file, &live) {
        None => Ok(()),
        Some(table) => {
            anyhow::bail!(
                "its table of {table} differs from the one in memory: its file is damaged"
            )
        }
    }
}

/// The first table that differs. The kernel marks traps that have warned (`BUGFLAG_DONE`).
fn difference(file: &LinkedTables, live: &LinkedTables) -> Option<&'static str> {
    const DONE: u16 = 1 << 2;
    let unmarked = |bugs: &[BugEntry]| -> Vec<BugEntry> {
        bugs.iter().map(|bug| BugEntry { flags: bug.flags & !DONE, ..*bug }).collect()
    };
    let same = [
        ("the function tracer", file.tracer_sites == live.tracer_sites),
        ("static keys", file.jumps == live.jumps),
        ("static calls", file.static_calls == live.static_calls),
        ("exceptions", file.exceptions == live.exceptions),
        ("traps", unmarked(&file.bugs) == unmarked(&live.bugs)),
        ("alternatives", file.alternatives == live.alternatives),
        ("paravirtual calls", file.paravirt == live.paravirt),
        ("returns", file.returns == live.returns),
        ("retpolines", file.retpolines == live.retpolines),
        ("calls", file.calls == live.calls),
        ("locks", file.locks == live.locks),
        ("ENDBR instructions", file.endbr_seals == live.endbr_seals),
        ("functions without probes", file.unprobed == live.unprobed),
        ("the unwinder", file.orc == live.orc),
    ];
    same.into_iter().find(|(_, same)| !same).map(|(table, _)| table)
}

#[cfg(test)]
mod tests;
