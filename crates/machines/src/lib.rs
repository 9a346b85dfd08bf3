//! The machines to simulate: `machines/*.toml`, and files of users.
//!
//! Input: a name or a path. Output: a [`Machine`], whose model can be built and has the table of
//! its uops. Every number in a file has a source or the word "assumed" beside it. A number without
//! a source, or a cache that cannot be built, gives an error that names the rule and the line. This
//! crate simulates nothing.
//!
//! To add a machine: a file in `machines/`.
//!
//! ```
//! let machine = kernlane_machines::find("server-32k")?;
//! assert_eq!((machine.model.l1i_line, machine.model.core), (64, None));
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

mod coherence_table;
mod core_tables;
mod file;
mod guest_table;
mod os_core_table;
mod saved_processor;
mod sourced;
#[cfg(test)]
mod tests;

pub use guest_table::{BranchMitigation, GuestProcessor};

use anyhow::{Context, Result, bail};
use sim::MachineModel;
use std::path::Path;

/// The machines that come with Kernlane: name and text of each file in `machines/`.
const SHIPPED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

/// A machine, as its file describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The model that is simulated. A core has the table of its uops.
    pub model: MachineModel,
    /// The guest whose kernel executes what it would execute on this machine. Machines whose
    /// processor Linux's mitigations do not concern have none.
    pub guest: Option<GuestProcessor>,
    /// The file's text, from which a variant of the machine can be made.
    pub text: String,
}

impl Machine {
    /// The machine in `text`; `file` is for messages.
    ///
    /// # Errors
    /// The text is not a machine, or the machine cannot be built. The error names the rule and the
    /// line.
    pub fn parse(text: &str, file: &str) -> Result<Machine> {
        let (model, guest) = file::machine(text, file)?;
        Ok(Machine { model, guest, text: text.to_owned() })
    }
}

/// The names of the machines that come with Kernlane, for help and messages.
pub fn names() -> String {
    let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// The names of the machines that come with Kernlane and describe an out-of-order core.
///
/// ```
/// assert!(kernlane_machines::names_with_core().contains("zen4"));
/// assert!(!kernlane_machines::names_with_core().contains("server-32k"));
/// ```
pub fn names_with_core() -> String {
    let has_core = |name: &&str| find(name).is_ok_and(|machine| machine.model.core.is_some());
    SHIPPED.iter().map(|(name, _)| *name).filter(has_core).collect::<Vec<_>>().join(", ")
}

/// The machine called `name`: a shipped one, or a file when `name` looks like a path.
///
/// # Errors
/// There is no such machine, or its file cannot be read or describes no machine that can be built.
pub fn find(name: &str) -> Result<Machine> {
    if let Some((shipped, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
        return Machine::parse(text, &format!("machines/{shipped}.toml"));
    }
    if !name.contains('/') && !name.ends_with(".toml") {
        bail!("no machine is called {name}: choose one of {}, or give the path of a file", names());
    }
    let text = std::fs::read_to_string(Path::new(name))
        .with_context(|| format!("{name}: cannot read this machine"))?;
    Machine::parse(&text, name)
}

/// The processor that a guest's kernel must see to be like `name`: a machine, as for [`find`];
/// `host`, which is this host; or a directory with the files `cpuinfo` and `vulnerabilities/` of
/// another host, copied from `/proc/cpuinfo` and `/sys/devices/system/cpu/vulnerabilities`.
///
/// # Errors
/// There is no such machine or file, the machine's file describes no guest, or the files are not of
/// an x86-64 processor.
pub fn guest_like(name: &str) -> Result<GuestProcessor> {
    if name == "host" {
        return saved_processor::of_host();
    }
    if Path::new(name).is_dir() {
        return saved_processor::in_directory(Path::new(name));
    }
    let with_guest = || {
        let guests = SHIPPED
            .iter()
            .filter(|(shipped, _)| find(shipped).is_ok_and(|machine| machine.guest.is_some()));
        guests.map(|(shipped, _)| *shipped).collect::<Vec<_>>().join(", ")
    };
    find(name)?.guest.with_context(|| {
        format!(
            "the machine {name} has no [guest], so no kernel can be like on it; {} have one",
            with_guest()
        )
    })
}

/// The models of machines, in the order of their names.
///
/// # Errors
/// As [`find`].
pub fn models(names: &[impl AsRef<str>]) -> Result<Vec<MachineModel>> {
    names.iter().map(|name| Ok(find(name.as_ref())?.model)).collect()
}
