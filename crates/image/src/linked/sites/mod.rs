//! What the kernel may do to its own text: the one table of patchable sites.
//!
//! Input: the side tables of a linked kernel. Output: [`PatchSites`], every place that the kernel
//! patches, with the kind of the patch. [`PatchableCode`] says for an address what the instruction
//! there can be, in the file and after each patch. Live replacement uses the sites to explain what
//! memory has; imports use the code to judge branches that a processor recorded. This module never
//! changes code.
//!
//! To add a patch: a [`PatchKind`] with the kernel's function that makes it, its line in
//! [`PatchSites::of`], and its effect on a branch in `code.rs`.

mod code;
mod form;
#[cfg(test)]
mod tests;

pub use code::PatchableCode;
pub use form::{BranchForm, BranchTarget, decode};

use crate::linked::tables::LinkedTables;

/// What leads into a thunk: code that stands in the place of a branch instruction
/// (arch/x86/lib/retpoline.S).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThunkUse {
    /// Returns of functions.
    Returns,
    /// Indirect calls and jumps.
    IndirectBranches,
}

impl ThunkUse {
    /// What leads into the code with this symbol; `None` for all code but thunks.
    pub fn of(symbol: &str) -> Option<ThunkUse> {
        match symbol {
            _ if symbol.ends_with("_return_thunk") => Some(ThunkUse::Returns),
            _ if symbol.starts_with("__x86_indirect_") => Some(ThunkUse::IndirectBranches),
            _ => None,
        }
    }
}

/// What the kernel turns a site into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// `call __fentry__` becomes a no-op at boot, and a call of a tracer while one is on
    /// (arch/x86/kernel/ftrace.c).
    Tracer,
    /// `jmp __x86_return_thunk` becomes `ret`, or a jump to a mitigation's thunk (`patch_return`,
    /// arch/x86/kernel/alternative.c).
    Return,
    /// A `call`, `jmp` or `jcc` of `__x86_indirect_thunk_REG` becomes an indirect branch, which may
    /// stand behind `lfence`, or goes to another thunk (`patch_retpoline`, likewise).
    Retpoline,
    /// A `call`, `jmp` or `jcc` of a trampoline goes straight to the function, or becomes a no-op
    /// or a return (arch/x86/kernel/static_call.c).
    StaticCall,
    /// A no-op becomes a jump to `target`, and back (arch/x86/kernel/jump_label.c).
    StaticKey {
        /// Where the jump goes.
        target: u64,
    },
    /// The bytes are replaced (`apply_alternatives`, arch/x86/kernel/alternative.c).
    Alternative {
        /// The address of the replacement.
        replacement: u64,
        /// Bytes of the replacement.
        replacement_len: u8,
        /// The CPU feature that decides, and flags.
        flags: u32,
    },
    /// A call through `pv_ops` becomes a direct call, or the operation itself (`apply_paravirt`,
    /// likewise, up to 6.7).
    Paravirt,
    /// A call goes to the call padding in front of its function (arch/x86/kernel/callthunks.c).
    DepthCall,
    /// A LOCK prefix becomes a prefix without effect (`alternatives_smp_lock`).
    Lock,
    /// `endbr64` becomes a no-op (`apply_seal_endbr`).
    EndbrSeal,
    /// A field inside an instruction is filled in at boot (`runtime_const`).
    Constant,
}

/// A place that the kernel patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchSite {
    /// The address of its first byte.
    pub at: u64,
    /// Bytes that the side table names: all of an alternative, a paravirtual call or a constant. 1:
    /// the whole instruction that begins at `at`.
    pub len: u8,
    /// What the kernel turns the site into.
    pub kind: PatchKind,
}

impl PatchSite {
    /// The address behind the bytes that the side table names.
    pub fn end(&self) -> u64 {
        self.at.saturating_add(self.len.into())
    }
}

/// Every place that a kernel patches.
#[derive(Clone, Debug, Default)]
pub struct PatchSites {
    /// Ascending by address. Of alternatives at one address, later ones win.
    sites: Vec<PatchSite>,
}

impl PatchSites {
    /// The sites that the side tables name.
    pub fn of(tables: &LinkedTables) -> PatchSites {
        let site = |kind, len| move |at: &u64| PatchSite { at: *at, len, kind };
        let mut sites: Vec<PatchSite> = Vec::new();
        for (kind, list) in [
            (PatchKind::Tracer, &tables.tracer_sites),
            (PatchKind::Return, &tables.returns),
            (PatchKind::Retpoline, &tables.retpolines),
            (PatchKind::DepthCall, &tables.calls),
            (PatchKind::Lock, &tables.locks),
            (PatchKind::EndbrSeal, &tables.endbr_seals),
        ] {
            sites.extend(list.iter().map(site(kind, 1)));
        }
        sites.extend(tables.static_calls.iter().map(|e| site(PatchKind::StaticCall, 1)(&e.site)));
        sites.extend(tables.jumps.iter().map(|e| {
            let kind = PatchKind::StaticKey { target: e.target };
            PatchSite { at: e.site, len: 1, kind }
        }));
        sites.extend(tables.alternatives.iter().map(|e| {
            let (replacement, replacement_len) = (e.replacement, e.replacement_len);
            let kind = PatchKind::Alternative { replacement, replacement_len, flags: e.flags };
            PatchSite { at: e.site, len: e.len, kind }
        }));
        let paravirt = tables.paravirt.iter();
        sites.extend(paravirt.map(|e| site(PatchKind::Paravirt, e.len)(&e.site)));
        let constants = tables.constants.iter();
        sites.extend(constants.map(|(at, width)| site(PatchKind::Constant, *width)(at)));
        // The sort is stable, so the order of alternatives remains.
        sites.sort_by_key(|site| site.at);
        PatchSites { sites }
    }

    /// The sites that begin in `[from, to)`, ascending.
    pub fn beginning_in(&self, from: u64, to: u64) -> &[PatchSite] {
        let first = self.sites.partition_point(|site| site.at < from);
        let last = self.sites.partition_point(|site| site.at < to);
        &self.sites[first..last.max(first)]
    }

    /// The sites of which a byte lies in `[from, to)`, ascending.
    pub fn overlapping(&self, from: u64, to: u64) -> impl Iterator<Item = &PatchSite> {
        let near = self.beginning_in(from.saturating_sub(u8::MAX.into()), to);
        near.iter().filter(move |site| site.end() > from)
    }

    /// The kinds of the sites that begin at an address.
    pub fn kinds_at(&self, at: u64) -> impl Iterator<Item = PatchKind> {
        self.beginning_in(at, at.saturating_add(1)).iter().map(|site| site.kind)
    }
}
