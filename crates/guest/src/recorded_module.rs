//! A module in the description of a recording.
//!
//! Input: a load of a module. Output: its entry in `recording.json`. This module reads no file.

use image::module::ModuleIdentity;
use serde::{Deserialize, Serialize};
use trace::{LoadedModule, RunAddr};

/// A module that was loaded when recording began or later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordedModule {
    /// Which module it is.
    #[serde(flatten)]
    pub identity: ModuleIdentity,
    /// Where its code was.
    pub sections: Vec<RecordedSection>,
}

/// Where a section of a module was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordedSection {
    /// Its name.
    pub name: String,
    /// Its address, hex.
    addr: String,
    /// Bytes.
    pub size: u64,
}

impl RecordedModule {
    /// The entry of a load.
    pub fn new(module: &LoadedModule) -> RecordedModule {
        let sections = module.sections.iter().map(|section| RecordedSection {
            name: section.name.clone(),
            addr: section.addr.to_string(),
            size: section.size,
        });
        let (name, build_id) = (module.name.clone(), module.build_id.clone());
        RecordedModule { identity: ModuleIdentity { name, build_id }, sections: sections.collect() }
    }
}

impl RecordedSection {
    /// The address of its first byte; `None` if the file was changed by hand.
    pub fn addr(&self) -> Option<RunAddr> {
        u64::from_str_radix(&self.addr, 16).ok().map(RunAddr)
    }
}
