//! What differs between the kernels that can be relinked: one table for each kind of difference.
//!
//! Input: nothing. Output: the known forms of a side table's entries, and the names of the files
//! that the kernel's build writes. Which form a kernel has is found by looking at the kernel: a
//! section is there, an entry's size fits, a file holds the expected command. No version number is
//! compared. What fits no form is refused by its name. `check` does not use this module: it has
//! forms of its own.
//!
//! To add a form: a line in the table, with the place in the kernel that defines it, and with the
//! kernels that have it if they are known.

use ReferenceMeaning::{Control, End, Instruction, Middle};

/// What a reference names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceMeaning {
    /// The instruction that starts at the target.
    Instruction,
    /// A target of control, or code whose address is taken.
    Control,
    /// The end of the instruction in front of the target.
    End,
    /// A byte inside an instruction.
    Middle,
    /// The emitter makes the entry again from the code instead of translating it.
    Regenerated,
}

/// How to read a table's relocations against the code.
#[derive(Clone, Copy, Debug)]
pub enum TableForm {
    /// Every relocation has this meaning.
    Uniform(ReferenceMeaning),
    /// The table has entries of one of these forms. If there are several, the first one counts
    /// whose `filled` fields all have relocations.
    Entries(&'static [EntryForm]),
    /// Data of the kernel with absolute addresses of targets of control.
    Data,
    /// An unknown table. It may refer to the first bytes of functions only.
    Unknown,
}

/// A form of the entries of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryForm {
    /// Bytes of an entry.
    pub size: u64,
    /// The offsets of the fields that have a relocation in every entry. They tell forms apart.
    pub filled: &'static [u64],
    /// The fields that may refer to code. The first one is the entry's site.
    pub fields: &'static [(u64, ReferenceMeaning)],
    /// What else an entry says about its site.
    pub fact: EntryFact,
}

/// What an entry says about its site, besides where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryFact {
    /// Nothing that matters here.
    Nothing,
    /// The kernel overwrites a number of bytes there. The number is the byte at this offset.
    Overwritten(u64),
    /// A trap, behind which control continues if the lowest bit of the byte at this offset is set
    /// (`BUGFLAG_WARNING`).
    Trap(u64),
    /// A trap behind which control may continue.
    PassedTrap,
    /// A static key. The second field is its target.
    StaticKey,
}

const fn entry(
    size: u64,
    filled: &'static [u64],
    fields: &'static [(u64, ReferenceMeaning)],
    fact: EntryFact,
) -> EntryForm {
    EntryForm { size, filled, fields, fact }
}

/// The side tables by the names of their sections in `vmlinux.o`. [`table_form`] adds those whose
/// names only begin with a known word.
const TABLES: &[(&str, TableForm)] = &[
    // struct exception_table_entry, arch/x86/include/asm/extable.h
    (
        "__ex_table",
        TableForm::Entries(&[entry(
            12,
            &[0, 4],
            &[(0, Instruction), (4, Control)],
            EntryFact::Nothing,
        )]),
    ),
    // struct jump_entry, include/linux/jump_label.h
    (
        "__jump_table",
        TableForm::Entries(&[entry(
            16,
            &[0, 4],
            &[(0, Instruction), (4, Control)],
            EntryFact::StaticKey,
        )]),
    ),
    // struct alt_instr, arch/x86/include/asm/alternative.h. 5d1dd961e743 (6.3) gave the feature 32
    // bits instead of 16.
    (
        ".altinstructions",
        TableForm::Entries(&[
            entry(14, &[0, 4], &[(0, Instruction)], EntryFact::Overwritten(12)),
            entry(12, &[0, 4], &[(0, Instruction)], EntryFact::Overwritten(10)),
        ]),
    ),
    // struct paravirt_patch_site, arch/x86/include/asm/paravirt_types.h: an absolute address, a
    // type, a length. 60bc276b129e (6.8) made alternatives of these sites.
    (
        ".parainstructions",
        TableForm::Entries(&[entry(16, &[0], &[(0, Instruction)], EntryFact::Overwritten(9))]),
    ),
    // struct bug_entry, include/asm-generic/bug.h: site, then a format (7.0 and later), then a file
    // and a line (CONFIG_DEBUG_BUGVERBOSE), then flags.
    (
        "__bug_table",
        TableForm::Entries(&[
            entry(12, &[0, 4], &[(0, Instruction)], EntryFact::Trap(10)),
            entry(16, &[0, 4, 8], &[(0, Instruction)], EntryFact::Trap(14)),
            entry(10, &[0, 4], &[(0, Instruction)], EntryFact::Trap(8)),
            entry(6, &[0], &[(0, Instruction)], EntryFact::Trap(4)),
        ]),
    ),
    // struct static_call_site, include/linux/static_call_types.h
    (
        ".static_call_sites",
        TableForm::Entries(&[entry(8, &[0, 4], &[(0, Instruction)], EntryFact::Nothing)]),
    ),
    // clang's kCFI. In permissive mode the kernel reports the trap and continues behind it.
    (
        ".kcfi_traps",
        TableForm::Entries(&[entry(4, &[0], &[(0, Instruction)], EntryFact::PassedTrap)]),
    ),
    // tools/objtool/check.c, create_*_sections
    (".return_sites", TableForm::Uniform(Instruction)),
    (".retpoline_sites", TableForm::Uniform(Instruction)),
    (".call_sites", TableForm::Uniform(Instruction)),
    (".ibt_endbr_seal", TableForm::Uniform(Instruction)),
    (".cfi_sites", TableForm::Uniform(Instruction)),
    // LOCK_PREFIX, arch/x86/include/asm/alternative.h; gone in 7.x
    (".smp_locks", TableForm::Uniform(Instruction)),
    // The fentry sites (scripts/recordmcount.h, objtool's create_mcount_loc_sections);
    // -fpatchable-function-entry
    ("__mcount_loc", TableForm::Uniform(Instruction)),
    ("__patchable_function_entries", TableForm::Uniform(Instruction)),
    // include/linux/objtool.h; `reachable` and `unreachable` name the end of the instruction that
    // they describe
    (".discard.reachable", TableForm::Uniform(End)),
    (".discard.unreachable", TableForm::Uniform(End)),
    (".discard.retpoline_safe", TableForm::Uniform(Instruction)),
    (".discard.intra_function_calls", TableForm::Uniform(Instruction)),
    (".discard.unwind_hints", TableForm::Uniform(Instruction)),
    (".discard.instr_begin", TableForm::Uniform(Instruction)),
    (".discard.instr_end", TableForm::Uniform(Instruction)),
    (".discard.ignore_alts", TableForm::Uniform(Instruction)),
    (".discard.noendbr", TableForm::Uniform(Instruction)),
    (".discard.ibt_endbr_noseal", TableForm::Uniform(Instruction)),
    // Since 6.14 one section holds these annotations, each with its kind: ANNOTATE_*,
    // include/linux/objtool.h
    (".discard.annotate_insn", TableForm::Uniform(Instruction)),
    (".discard.addressable", TableForm::Uniform(Control)),
    (".discard.func_stack_frame_non_standard", TableForm::Uniform(Control)),
    ("_kprobe_blacklist", TableForm::Uniform(Control)),
    // The compiler's unwind information for debuggers, one entry per function. Kernels for User
    // Mode Linux have it. No kernel reads it, and it does not describe moved parts of a function.
    (".eh_frame", TableForm::Uniform(Control)),
    (".orc_unwind_ip", TableForm::Uniform(ReferenceMeaning::Regenerated)),
];

/// Sections of data. Others begin with one of these names and a dot.
const DATA: [&str; 6] =
    [".rodata", ".data", ".init.data", ".init.rodata", ".ref.data", "__tracepoints"];

/// The beginnings of the names of tables with fields inside instructions.
const RUNTIME: [&str; 3] = ["runtime_ptr_", "runtime_shift_", "runtime_mask_"];

/// The form of the table in the section `name`.
pub fn table_form(name: &str) -> TableForm {
    if let Some(&(_, form)) = TABLES.iter().find(|(table, _)| *table == name) {
        return form;
    }
    let begins_as = |known: &str| {
        name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    match name {
        // arch/x86/include/asm/runtime-const.h (6.11 and later; masks in 7.3)
        _ if RUNTIME.iter().any(|known| name.starts_with(known)) => TableForm::Uniform(Middle),
        // struct kernel_symbol, include/linux/export-internal.h. Up to 6.3 each exported symbol has
        // a section of its own in the object. It may be a label inside a function.
        _ if name.starts_with("___ksymtab") => TableForm::Uniform(Control),
        _ if DATA.iter().any(|known| begins_as(known)) => TableForm::Data,
        _ => TableForm::Unknown,
    }
}

/// The files in which kbuild keeps the command that linked the kernel, below the top of a tree.
/// Since 6.16 the link makes `vmlinux.unstripped`, and `vmlinux` is stripped from that.
pub const LINK_COMMANDS: [&str; 2] = [".vmlinux.unstripped.cmd", ".vmlinux.cmd"];
/// The word in front of the linker in that command.
pub const LINK_SCRIPT: &str = "link-vmlinux.sh \"";
/// Options of the configuration with any of which `scripts/link-vmlinux.sh` links `vmlinux.o`.
/// Without them it links `vmlinux.a`.
pub const LINKS_OBJECT: [&str; 3] =
    ["CONFIG_LTO_CLANG=y", "CONFIG_X86_KERNEL_IBT=y", "CONFIG_KLP_BUILD=y"];
/// Files of a link that keep the relocations of the kernel, best first: the kernel before it is
/// stripped; the last but one link. Kernels before 6.6 keep the relocations in `vmlinux` itself.
pub const LINKS_WITH_RELOCATIONS: [&str; 2] = ["vmlinux.unstripped", ".tmp_vmlinux2"];
/// Where objtool lists the functions that do not return, below the top of the sources: since 6.5 in
/// a file of its own, before in its code.
pub const NORETURN_LISTS: [&str; 2] = ["tools/objtool/noreturns.h", "tools/objtool/check.c"];

/// The names of the functions that do not return, in the text of one of [`NORETURN_LISTS`].
pub fn noreturn_names(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("NORETURN(")?.strip_suffix(')'));
    let names: Vec<&str> = lines.collect();
    if !names.is_empty() {
        return names;
    }
    let list = text.split_once("global_noreturns[] = {").and_then(|(_, rest)| rest.split_once('}'));
    let entries = list.map_or("", |(entries, _)| entries).split(',');
    entries.filter_map(|entry| entry.trim().strip_prefix('"')?.strip_suffix('"')).collect()
}

/// What the linker puts between sections of code besides `int3`. Up to 6.2 the linker's script says
/// `=0xcccc`, which makes four bytes; c4691712b546 made it `=0xcccccccc`.
const LINKER_FILL: [u8; 4] = [0, 0, 0xcc, 0xcc];

/// Whether `bytes`, which follow code, are nothing but that fill.
pub fn is_linker_fill(bytes: &[u8]) -> bool {
    bytes.iter().zip(LINKER_FILL.iter().cycle()).all(|(byte, fill)| byte == fill)
}

/// `code` without that fill at its end. Less than eight bytes of it could be code, and stay.
pub fn without_linker_fill(code: &[u8]) -> &[u8] {
    const CERTAIN: usize = 8;
    let fill = |end: usize| {
        let cycle = (0..LINKER_FILL.len()).rev().cycle().skip(end).map(|i| LINKER_FILL[i]);
        let len = code.iter().rev().zip(cycle).take_while(|(byte, fill)| *byte == fill).count();
        // The fill begins with its first byte.
        let complete = (len + end) / LINKER_FILL.len() * LINKER_FILL.len();
        complete.saturating_sub(end)
    };
    let longest = (0..LINKER_FILL.len()).map(fill).max().unwrap_or(0);
    if longest < CERTAIN { code } else { &code[..code.len() - longest] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fill_of_old_linker_scripts_is_no_code() {
        let fill = |len: usize| LINKER_FILL.iter().copied().cycle().take(len).collect::<Vec<u8>>();
        for len in 8..20 {
            assert!(is_linker_fill(&fill(len)));
            for code in [&[0xc3][..], &[0xc3, 0xcc], &[0xe9, 0, 0, 0, 0], &[]] {
                let bytes = [code, &fill(len)].concat();
                assert_eq!(without_linker_fill(&bytes), code, "{len} bytes of fill");
            }
        }
        // add %al,(%rax)
        for code in [&[0xc3, 0, 0][..], &[0xc3, 0, 0, 0xcc, 0xcc], &[0xc3, 0xcc, 0xcc], &[0xcc; 16]]
        {
            assert_eq!(without_linker_fill(code), code);
        }
        assert!(!is_linker_fill(&[0xcc, 0xcc, 0, 0]) && !is_linker_fill(&[0, 0, 0xcc, 0xc3]));
    }

    #[test]
    fn a_name_stands_once_in_the_table() {
        let mut names: Vec<&str> = TABLES.iter().map(|&(name, _)| name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn sections_are_known_by_their_name_or_its_beginning() {
        assert!(matches!(table_form(".rodata.cst16"), TableForm::Data));
        assert!(matches!(table_form(".rodata"), TableForm::Data));
        assert!(matches!(table_form(".rodatum"), TableForm::Unknown));
        assert!(matches!(table_form("runtime_shift_d_hash_shift"), TableForm::Uniform(Middle)));
        assert!(matches!(table_form("runtime_mask___futex_mask"), TableForm::Uniform(Middle)));
        assert!(matches!(table_form("___ksymtab_gpl+f"), TableForm::Uniform(Control)));
        assert!(matches!(table_form("__ksymtab_strings"), TableForm::Unknown));
        assert!(matches!(table_form(".discard.reachable"), TableForm::Uniform(End)));
        assert!(matches!(table_form(".parainstructions"), TableForm::Entries(_)));
        assert!(matches!(table_form(".mystery"), TableForm::Unknown));
    }

    #[test]
    fn functions_that_do_not_return_are_listed_in_either_file() {
        let own_file = "/* NORETURN(no) */\nNORETURN(do_exit)\nNORETURN(panic)\n";
        assert_eq!(noreturn_names(own_file), ["do_exit", "panic"]);
        let in_code = "x[] = { \"no\", };\n\tstatic const char * const global_noreturns[] = {\n\
                       \t\t\"do_exit\",\n\t\t\"panic\",\n\t};\n\t{ \"no\" }\n";
        assert_eq!(noreturn_names(in_code), ["do_exit", "panic"]);
        assert!(noreturn_names("int main;").is_empty());
    }
}
