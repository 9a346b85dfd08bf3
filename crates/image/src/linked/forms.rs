//! What differs between the running kernels that Kernlane reads: one table for each kind of
//! difference.
//!
//! Input: the sections of a vmlinux. Output: the form of each side table whose form differs between
//! versions, or why none fits. No version number is compared: a form fits when the table consists
//! of whole entries, and each entry names code. What fits no form is refused by its name, and so is
//! a section that this module does not know, since it may describe code.
//!
//! To add a form: a line here, with the place in the kernel that defines it.

use super::LinkedKernel;
use super::raw_table::{RawTable, relative};
use crate::address::LinkAddr;
use crate::object::orc::OrcState;
use anyhow::{Context, Result, bail, ensure};

/// Where the fields of `struct alt_instr` lie (arch/x86/include/asm/alternative.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternativeForm {
    /// Bytes of an entry.
    pub size: usize,
    /// Bytes of the CPU feature with its flags, behind site and replacement. The lengths follow.
    pub flags: usize,
}

/// Every form of alternatives. Linux commit 5d1dd961e743 (6.3) gave the feature 32 bits instead of
/// 16.
pub const ALTERNATIVES: [AlternativeForm; 2] =
    [AlternativeForm { size: 14, flags: 4 }, AlternativeForm { size: 12, flags: 2 }];

impl AlternativeForm {
    /// Offset of the feature in an entry.
    pub const FLAGS: usize = 8;

    /// Offset of the lengths of site and replacement, a byte each.
    pub fn lengths(self) -> usize {
        Self::FLAGS + self.flags
    }
}

/// Where the fields of `struct bug_entry` lie (include/asm-generic/bug.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BugForm {
    /// Bytes of an entry.
    pub size: usize,
    /// Addresses in front of line and flags: site, then a format (7.0 and later), then the file.
    pub addresses: usize,
}

/// Every form of traps, with `CONFIG_DEBUG_BUGVERBOSE`.
pub const BUGS: [BugForm; 2] =
    [BugForm { size: 12, addresses: 2 }, BugForm { size: 16, addresses: 3 }];

impl BugForm {
    /// Offset of the line. The flags follow it.
    pub fn line(self) -> usize {
        4 * self.addresses
    }
}

/// Bytes of `struct paravirt_patch_site` (arch/x86/include/asm/paravirt_types.h): an absolute
/// address, a type, a length, padding. 60bc276b129e (6.8) made alternatives of these sites.
pub const PARAVIRT: usize = 16;

/// What the numbers in a `struct orc_entry` mean (arch/x86/include/asm/orc_types.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrcForm {
    /// `type` of an ordinary frame: `ORC_TYPE_CALL`.
    pub call_frame: u8,
    /// `sp_reg` of a frame that is found by the stack pointer: `ORC_REG_SP`.
    pub stack_pointer: u8,
    /// `sp_reg` of a frame that is found by the frame pointer: `ORC_REG_BP`.
    pub frame_pointer: u8,
    /// `bp_reg` where the caller's frame pointer lies on the stack, at a distance from the frame's
    /// end: `ORC_REG_PREV_SP`.
    pub frame_end: u8,
}

/// Every form of the unwinder's states, from the newest on. Up to 6.3 an ordinary frame is 0; in
/// 7.2 the registers have other numbers.
const ORC: [OrcForm; 3] = [
    OrcForm { call_frame: 2, stack_pointer: 3, frame_pointer: 4, frame_end: 8 },
    OrcForm { call_frame: 2, stack_pointer: 5, frame_pointer: 4, frame_end: 1 },
    OrcForm { call_frame: 0, stack_pointer: 5, frame_pointer: 4, frame_end: 1 },
];

/// The forms of one kernel's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkedForms {
    /// Of `.altinstructions`.
    pub alternative: AlternativeForm,
    /// Of `__bug_table`.
    pub bug: BugForm,
    /// Of `.orc_unwind`.
    pub orc: OrcForm,
}

impl Default for LinkedForms {
    /// Those of Linux 6.12.
    fn default() -> LinkedForms {
        LinkedForms { alternative: ALTERNATIVES[0], bug: BUGS[0], orc: ORC[1] }
    }
}

impl LinkedForms {
    /// The forms that fit a kernel's tables.
    ///
    /// # Errors
    /// A table fits no form.
    pub(super) fn find(kernel: &LinkedKernel<'_>) -> Result<LinkedForms> {
        Ok(LinkedForms {
            alternative: alternative(kernel)?,
            bug: fitting(kernel, "__bug_table", &BUGS.map(|form| (form, form.size)))?,
            orc: ORC[1],
        })
    }

    /// Finds the form of the unwinder's states by those at functions' entries. There the frame is
    /// eight bytes above the stack pointer, in all but a few functions, which are written in
    /// assembly or change stacks.
    ///
    /// # Errors
    /// The states at entries are of another kind.
    pub(super) fn find_orc(&mut self, entries: &[OrcState]) -> Result<()> {
        let fits = |form: &OrcForm| {
            let ordinary = |state: &&OrcState| {
                state[..2] == [8, 0]
                    && state[4] & 0xf == form.stack_pointer
                    && state[5] & 7 == form.call_frame
            };
            entries.iter().filter(ordinary).count() * 100 >= entries.len() * 99
        };
        if !entries.is_empty() {
            self.orc = ORC
                .into_iter()
                .find(fits)
                .context(".orc_unwind has states of an unknown form at the entries of functions")?;
        }
        Ok(())
    }
}

/// The form of a kernel's alternatives.
pub(super) fn alternative(kernel: &LinkedKernel<'_>) -> Result<AlternativeForm> {
    fitting(kernel, ".altinstructions", &ALTERNATIVES.map(|form| (form, form.size)))
}

/// The first form, with its bytes, with which a table has whole entries whose first fields all name
/// code. The first form of all if the kernel has no such table.
fn fitting<F: Copy>(kernel: &LinkedKernel<'_>, table: &str, forms: &[(F, usize)]) -> Result<F> {
    for &(form, size) in forms {
        let Ok(raw) = RawTable::section(kernel, table, size) else { continue };
        if raw.entries().all(|(at, entry)| kernel.is_code(relative(at, entry, 0))) {
            return Ok(form);
        }
    }
    bail!("{table} has entries of a form that Kernlane does not know")
}

/// Sections in the memory of the kernels that were tried: tables that this crate reads, and others
/// that say nothing about where control goes.
const SECTIONS: [&str; 52] = [
    ".text",
    ".init.text",
    ".exit.text",
    ".altinstr_aux",
    ".altinstr_replacement",
    ".rodata",
    "__init_rodata",
    ".data",
    ".init.data",
    ".data_nosave",
    ".data..percpu",
    ".vvar",
    ".bss",
    ".bss..decrypted",
    ".brk",
    ".init.scratch",
    ".notes",
    ".pci_fixup",
    ".apicdrivers",
    ".x86_cpu_dev.init",
    ".parainstructions",
    ".altinstructions",
    ".return_sites",
    ".retpoline_sites",
    ".call_sites",
    ".ibt_endbr_seal",
    ".smp_locks",
    ".static_call_sites",
    "__jump_table",
    "__ex_table",
    "__bug_table",
    ".orc_header",
    ".orc_unwind_ip",
    ".orc_unwind",
    ".orc_lookup",
    "__ksymtab",
    "__ksymtab_gpl",
    "__kflagstab",
    "__kcrctab",
    "__kcrctab_gpl",
    "__ksymtab_strings",
    "__param",
    "__modver",
    ".BTF",
    ".BTF_ids",
    ".builtin_fw",
    ".tracedata",
    ".iommu_table",
    ".rodata1",
    ".data1",
    "__tracepoints",
    ".kunit_test_suites",
];

/// A section that only kernels for User Mode Linux have.
const OF_USER_MODE: &str = ".uml.setup.init";
/// The beginnings of the names of further sections of such a kernel. They have code and data of the
/// C library, unwinding of that code, and pointers to functions; nothing about the inside of the
/// kernel's functions.
const USER_MODE: [&str; 18] = [
    ".text.",
    ".init",
    ".fini",
    ".exitcall",
    ".uml.",
    ".syscall_stub",
    "init.data",
    "__libc_",
    "__mcount_loc",
    ".iplt",
    ".igot.plt",
    ".got",
    ".rela.plt",
    ".data",
    ".tdata",
    ".tbss",
    ".eh_frame",
    ".gcc_except_table",
];

/// The beginnings of the names of tables with fields inside instructions.
pub(super) const RUNTIME: [(&str, u8); 3] =
    [("runtime_ptr_", 8), ("runtime_shift_", 1), ("runtime_mask_", 4)];

impl LinkedKernel<'_> {
    /// Refuses a kernel with a section that may describe code in a way that is not known.
    pub(super) fn ensure_known_sections(&self) -> Result<()> {
        let is_user_mode = self.section(OF_USER_MODE).is_some();
        // An empty section describes nothing: lld leaves such in a kernel.
        for name in self.sections.iter().filter(|s| !s.bytes.is_empty()).map(|s| s.name) {
            let known = SECTIONS.contains(&name)
                || RUNTIME.iter().any(|&(beginning, _)| name.starts_with(beginning))
                || is_user_mode && USER_MODE.iter().any(|beginning| name.starts_with(beginning));
            ensure!(
                known,
                "has a section {name} that Kernlane does not know, and that may describe code; \
                 functions of this kernel are not replaced"
            );
        }
        Ok(())
    }

    /// Whether an address lies in a section with instructions.
    fn is_code(&self, at: u64) -> bool {
        self.sections.iter().any(|s| s.code && at >= s.addr && LinkAddr(at).0 < s.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BuildId;
    use crate::linked::LoadedSection;

    #[test]
    fn the_unwinder_s_form_is_found_by_the_states_at_entries() {
        let found = |states: &[OrcState]| {
            let mut forms = LinkedForms::default();
            forms.find_orc(states).map(|()| forms.orc).ok()
        };
        let [new, usual, old] = ORC.map(|form| [8, 0, 0, 0, form.stack_pointer, form.call_frame]);
        assert_eq!(found(&[new, new]), Some(ORC[0]));
        assert_eq!(found(&[usual]), Some(ORC[1]));
        assert_eq!(found(&[old]), Some(ORC[2]));
        assert_eq!(found(&[]), Some(ORC[1]));
        for wrong in [[8, 0, 0, 0, 5, 1], [16, 0, 0, 0, 5, 2], [8, 0, 0, 0, 4, 2], [0; 6]] {
            assert_eq!(found(&[wrong]), None, "{wrong:?}");
        }
        assert_eq!(found(&[old, usual]), None, "one kernel has one form");
        let mostly = [&[usual; 99][..], &[[0; 6]]].concat();
        assert_eq!(found(&mostly), Some(ORC[1]), "a function in assembly");
    }

    #[test]
    fn sections_of_user_mode_linux_are_known_there_only() {
        let known = |names: &[&'static str]| {
            let section = |name: &&'static str| LoadedSection {
                name,
                addr: 0,
                bytes: &[0],
                code: false,
                of_module: false,
            };
            let sections = names.iter().map(section).collect();
            LinkedKernel::without_code(BuildId("5f".into()), sections).ensure_known_sections()
        };
        let own = [".text", ".iplt", ".initcall.init", "__libc_atexit", OF_USER_MODE];
        known(&own).unwrap();
        assert!(known(&own[..4]).unwrap_err().to_string().contains(" .iplt "));
        assert!(known(&[OF_USER_MODE, "__patches"]).is_err());
    }

    #[test]
    fn the_fields_of_each_form_follow_each_other() {
        for form in ALTERNATIVES {
            assert_eq!(form.lengths() + 2, form.size);
        }
        for form in BUGS {
            assert_eq!(form.line() + 4, form.size);
        }
    }
}
