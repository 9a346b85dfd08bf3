//! The link addresses of the code of modules.
//!
//! Input: the modules of an image, and the loads of a recording. Output: translation blocks at link
//! addresses, as if each module had been loaded there. Code of other modules keeps the addresses at
//! which it ran. This module follows no control.

use crate::code::{LastInstruction, TranslatedCode};
use image::module::ImageModule;
use std::collections::HashMap;
use trace::{LoadedModules, ModuleChange, RunAddr, Translation};

/// The modules whose code has link addresses.
pub(crate) struct ModuleAddresses<'m> {
    /// By name and build id.
    known: HashMap<(&'m str, &'m str), &'m ImageModule>,
    loaded: LoadedModules,
}

impl<'m> ModuleAddresses<'m> {
    pub(crate) fn new(modules: &'m [ImageModule]) -> ModuleAddresses<'m> {
        let identity = |module: &'m ImageModule| {
            (module.identity.name.as_str(), module.identity.build_id.as_str())
        };
        let known = modules.iter().map(|module| (identity(module), module)).collect();
        ModuleAddresses { known, loaded: LoadedModules::default() }
    }

    /// The loaded modules change, for the translation blocks that come next.
    pub(crate) fn change(&mut self, change: &ModuleChange) {
        self.loaded.change(change);
    }

    /// Whether code that runs at an address lies in a large page.
    pub(crate) fn is_in_large_page(&self, addr: RunAddr) -> bool {
        self.loaded.is_in_large_page(addr)
    }

    /// The link address of a place that is in a known module.
    fn link_address(&self, addr: RunAddr) -> Option<RunAddr> {
        let (module, section) = self.loaded.at(addr)?;
        let known = self.known.get(&(module.name.as_str(), module.build_id.as_str()))?;
        let linked = known.sections.iter().find(|s| s.name == section.name)?;
        let offset = addr.0 - section.addr.0;
        (offset < linked.size).then(|| RunAddr(linked.addr.0 + offset))
    }

    /// A translation block at its link address, with its target there.
    pub(crate) fn linked(&self, code: TranslatedCode) -> TranslatedCode {
        if self.known.is_empty() {
            return code;
        }
        let to = |addr: RunAddr| self.link_address(addr).unwrap_or(addr);
        let last = match code.last {
            LastInstruction::Conditional { target } => {
                LastInstruction::Conditional { target: to(target) }
            }
            LastInstruction::Jump { target } => LastInstruction::Jump { target: to(target) },
            LastInstruction::Call { target } => LastInstruction::Call { target: to(target) },
            LastInstruction::Plain
            | LastInstruction::Taken(_)
            | LastInstruction::InterruptReturn => code.last,
        };
        TranslatedCode { addr: to(code.addr), last, ..code }
    }

    /// The translation blocks at the addresses of their code; `None` if they are there already.
    pub(crate) fn placed(
        &self,
        translations: &[Translation],
        codes: &[TranslatedCode],
    ) -> Option<Vec<Translation>> {
        if translations.iter().zip(codes).all(|(translation, code)| translation.addr == code.addr) {
            return None;
        }
        let placed = |(translation, code): (&Translation, &TranslatedCode)| Translation {
            addr: code.addr,
            ..translation.clone()
        };
        Some(translations.iter().zip(codes).map(placed).collect())
    }
}
