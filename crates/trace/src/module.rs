//! The kernel modules of a recording: which was loaded where, and from when to when.
//!
//! Input: loads and unloads in the order in which they happened, among the definitions of
//! translations. Output: for an address, the module and the section that are there now. This module
//! does no input or output, and knows nothing of files of modules.

use crate::RunAddr;
use std::collections::BTreeMap;

/// The number of a load of a module. The first load of a recording has number 0. A module that is
/// loaded twice has two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

/// A section of a loaded module that holds code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleSection {
    /// Its name in the module's file, for example `.text`.
    pub name: String,
    /// The address of its first byte.
    pub addr: RunAddr,
    /// Bytes.
    pub size: u64,
}

impl ModuleSection {
    /// The address behind its last byte.
    pub fn end(&self) -> u64 {
        self.addr.0.saturating_add(self.size)
    }
}

/// A load of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedModule {
    /// The number of the load.
    pub id: ModuleId,
    /// The module's name, with `_` for `-`.
    pub name: String,
    /// Its GNU build id in lower-case hex. Empty when the module has none.
    pub build_id: String,
    /// Whether its `.text` lay in pages of 2 MB when it was loaded.
    pub large_pages: bool,
    /// Its sections of code, in the order of its file.
    pub sections: Vec<ModuleSection>,
}

/// A change of the loaded modules. It holds for the translations that are defined behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleChange {
    /// A module was loaded.
    Loaded(LoadedModule),
    /// The module of this load was unloaded.
    Unloaded(ModuleId),
}

/// The modules that are loaded at one point of a recording.
#[derive(Clone, Debug, Default)]
pub struct LoadedModules {
    /// Every load so far, by number.
    loads: Vec<LoadedModule>,
    /// By the first address of each section that is there now: the load, and the section's index.
    places: BTreeMap<u64, (ModuleId, usize)>,
}

impl LoadedModules {
    /// Takes the next change. A section that was at an address of a new one is gone: the kernel
    /// frees the sections of a module that only its initialisation needs.
    pub fn change(&mut self, change: &ModuleChange) {
        match change {
            ModuleChange::Unloaded(id) => self.places.retain(|_, place| place.0 != *id),
            ModuleChange::Loaded(module) => {
                for (index, section) in module.sections.iter().enumerate() {
                    let loads = &self.loads;
                    self.places.retain(|&at, &mut (id, old)| {
                        let end = loads[id.0 as usize].sections[old].end();
                        end <= section.addr.0 || section.end() <= at
                    });
                    if index == 0 {
                        self.loads.push(module.clone());
                    }
                    if section.size > 0 {
                        self.places.insert(section.addr.0, (module.id, index));
                    }
                }
                if module.sections.is_empty() {
                    self.loads.push(module.clone());
                }
            }
        }
    }

    /// The module and the section that are at an address.
    pub fn at(&self, addr: RunAddr) -> Option<(&LoadedModule, &ModuleSection)> {
        let (_, &(id, index)) = self.places.range(..=addr.0).next_back()?;
        let module = self.loads.get(id.0 as usize)?;
        let section = module.sections.get(index)?;
        (addr.0 < section.end()).then_some((module, section))
    }

    /// Whether the code at an address lies in a page of 2 MB.
    pub fn is_in_large_page(&self, addr: RunAddr) -> bool {
        self.at(addr).is_some_and(|(module, section)| module.large_pages && section.name == ".text")
    }

    /// Every load so far, by number.
    pub fn loads(&self) -> &[LoadedModule] {
        &self.loads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(id: u32, name: &str, sections: &[(&str, u64, u64)]) -> ModuleChange {
        let section = |&(name, addr, size): &(&str, u64, u64)| ModuleSection {
            name: name.into(),
            addr: RunAddr(addr),
            size,
        };
        ModuleChange::Loaded(LoadedModule {
            id: ModuleId(id),
            name: name.into(),
            build_id: String::new(),
            large_pages: id == 1,
            sections: sections.iter().map(section).collect(),
        })
    }

    #[test]
    fn two_modules_share_an_address_at_different_times() {
        let mut modules = LoadedModules::default();
        let name = |modules: &LoadedModules, at: u64| {
            modules
                .at(RunAddr(at))
                .map(|(module, section)| format!("{}{}", module.name, section.name))
        };
        modules.change(&module(0, "a", &[(".text", 0x1000, 0x100), (".init.text", 0x3000, 0x20)]));
        assert_eq!(name(&modules, 0x10ff).as_deref(), Some("a.text"));
        assert_eq!(name(&modules, 0x1100), None);
        assert_eq!(name(&modules, 0xfff), None);
        // The initialisation's memory was freed, and another module gets it.
        modules.change(&module(1, "b", &[(".text", 0x3010, 0x10), (".empty", 0x1000, 0)]));
        assert_eq!(name(&modules, 0x3010).as_deref(), Some("b.text"));
        assert!(modules.is_in_large_page(RunAddr(0x3010)));
        assert!(!modules.is_in_large_page(RunAddr(0x1000)));
        assert_eq!(name(&modules, 0x3000), None);
        assert_eq!(name(&modules, 0x1000).as_deref(), Some("a.text"));
        modules.change(&ModuleChange::Unloaded(ModuleId(0)));
        assert_eq!(name(&modules, 0x1000), None);
        modules.change(&module(2, "c", &[(".text", 0x1000, 0x10)]));
        assert_eq!(name(&modules, 0x1000).as_deref(), Some("c.text"));
        assert_eq!(modules.loads().len(), 3);
    }
}
