//! Which code of a kernel is ordinary, so that a layout may move it, and which code stays.
//!
//! Input: names of sections and symbols. Output: the answer, with the reason. The linker's script
//! (`include/asm-generic/vmlinux.lds.h`, `TEXT_TEXT`) gathers the sections of ordinary functions in
//! front of those that the kernel keeps apart. In an object the sections have names; in a linked
//! kernel, symbols stand around the parts that are kept apart. Everything that moves code asks this
//! module. `check` does not: it decides by rules of its own. This module reads no file.

use serde::Serialize;
use std::ops::Range;

/// Why code stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReservedCode {
    /// Code that runs where instrumentation is forbidden.
    Noinstr,
    /// Code that control enters from user mode or by an exception.
    Entry,
    /// Code of the scheduler.
    Scheduler,
    /// Code of the locks.
    Locks,
    /// Code of the idle loop.
    Idle,
    /// Code that may not be probed.
    Kprobes,
    /// Entry code of interrupts.
    Interrupts,
    /// Trampolines of static calls.
    StaticCalls,
    /// Code that stands in the place of returns and of indirect branches.
    Thunks,
    /// Code that may refer to what is freed after the kernel started (`__ref`).
    FreedReferences,
    /// Code of another section of the linked kernel: what runs while the kernel starts or ends, and
    /// replacements of alternatives.
    OtherSection,
}

impl ReservedCode {
    /// The reason in words.
    pub fn words(self) -> &'static str {
        match self {
            ReservedCode::Noinstr => "noinstr code",
            ReservedCode::Entry => "entry code",
            ReservedCode::Scheduler => "the scheduler's own code",
            ReservedCode::Locks => "the locks' own code",
            ReservedCode::Idle => "the idle loop's code",
            ReservedCode::Kprobes => "code that may not be probed",
            ReservedCode::Interrupts => "entry code of interrupts",
            ReservedCode::StaticCalls => "static call trampolines",
            ReservedCode::Thunks => "thunks of returns and indirect branches",
            ReservedCode::FreedReferences => "code that may refer to freed code",
            ReservedCode::OtherSection => "code of sections beside .text",
        }
    }
}

/// A part of a linked kernel's `.text`: the symbols around it, and why it stays.
type NamedPart = (&'static str, &'static str, ReservedCode);

/// The parts of a linked kernel's `.text` that have symbols around them. A part of which a kernel
/// lacks a symbol, or whose symbols stand in the other order, is not in that kernel. At one address
/// the first part counts.
const PARTS: [NamedPart; 9] = [
    ("__cpuidle_text_start", "__cpuidle_text_end", ReservedCode::Idle),
    ("__noinstr_text_start", "__noinstr_text_end", ReservedCode::Noinstr),
    ("__irqentry_text_start", "__irqentry_text_end", ReservedCode::Interrupts),
    ("__entry_text_start", "__entry_text_end", ReservedCode::Entry),
    ("__sched_text_start", "__sched_text_end", ReservedCode::Scheduler),
    ("__lock_text_start", "__lock_text_end", ReservedCode::Locks),
    ("__kprobes_text_start", "__kprobes_text_end", ReservedCode::Kprobes),
    ("__softirqentry_text_start", "__softirqentry_text_end", ReservedCode::Interrupts),
    ("__static_call_text_start", "__static_call_text_end", ReservedCode::StaticCalls),
];

/// What the linker's script has between these parts: `.ref.text`, and the sections of thunks. In
/// another order of the parts there may be ordinary code between them, so nothing is said of a
/// stretch in which another part begins.
const BETWEEN: [NamedPart; 4] = [
    ("__noinstr_text_end", "__sched_text_start", ReservedCode::FreedReferences),
    ("__softirqentry_text_end", "__static_call_text_start", ReservedCode::Thunks),
    ("__static_call_text_end", "__entry_text_start", ReservedCode::Thunks),
    ("__entry_text_end", "_etext", ReservedCode::Thunks),
];

/// The parts of one linked kernel that stay.
#[derive(Debug, Default)]
pub struct ReservedParts {
    parts: Vec<(Range<u64>, ReservedCode)>,
}

impl ReservedParts {
    /// The symbols that [`ReservedParts::new`] asks for.
    pub fn symbols() -> impl Iterator<Item = &'static str> {
        PARTS.iter().chain(&BETWEEN).flat_map(|&(start, end, _)| [start, end])
    }

    /// The parts of a kernel. `address_of`: the address of a symbol, if the kernel has it.
    pub fn new(address_of: impl Fn(&str) -> Option<u64>) -> ReservedParts {
        let part = |&(start, end, reason): &NamedPart| {
            let range = address_of(start)?..address_of(end)?;
            (range.start < range.end).then_some((range, reason))
        };
        let mut parts: Vec<(Range<u64>, ReservedCode)> = PARTS.iter().filter_map(part).collect();
        let between = BETWEEN.iter().filter_map(part);
        let between =
            between.filter(|(range, _)| !parts.iter().any(|(part, _)| range.contains(&part.start)));
        let between: Vec<_> = between.collect();
        parts.extend(between);
        ReservedParts { parts }
    }

    /// Why the code at `addr` stays; `None` if it is in no part that is kept apart.
    pub fn at(&self, addr: u64) -> Option<ReservedCode> {
        self.parts.iter().find(|(range, _)| range.contains(&addr)).map(|&(_, reason)| reason)
    }
}

/// The output section of the code that stays in memory, and the section of most functions in an
/// object.
pub const TEXT: &str = ".text";

/// Whether a section of an object with this name holds ordinary functions, if the linker puts it
/// beside `.text`. Compilers put functions and parts of functions into such sections by how often
/// they run, or each function into one of its own. Names with two dots (`.text..__x86.…`) are the
/// kernel's own; sanitizers put the constructors of modules into `.text.asan.` and `.text.tsan.`.
pub fn is_ordinary_section(name: &str) -> bool {
    name == TEXT
        || name.strip_prefix(TEXT).and_then(|rest| rest.strip_prefix('.')).is_some_and(|kind| {
            ![".", "asan.", "tsan."].iter().any(|other| kind.starts_with(other))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_of_functions_are_ordinary_and_the_kernels_own_are_not() {
        let ordinary = [
            ".text",
            ".text.hot",
            ".text.hot.",
            ".text.hot.vfs_read",
            ".text.unlikely",
            ".text.unlikely.",
            ".text.split.vfs_read",
            ".text.unknown.",
            ".text.fixup",
            ".text.startup",
            ".text.vfs_read",
        ];
        for name in ordinary {
            assert!(is_ordinary_section(name), "{name}");
        }
        let others = [
            ".noinstr.text",
            ".entry.text",
            ".sched.text",
            ".ref.text",
            ".text..__x86.return_thunk",
            ".text.asan.module_ctor",
            ".textual",
            ".init.text",
            "",
        ];
        for name in others {
            assert!(!is_ordinary_section(name), "{name}");
        }
    }

    #[test]
    fn a_function_stays_for_the_part_that_holds_it() {
        // As in Linux 6.12: the idle loop lies inside of the noinstr code, and `.ref.text` behind.
        let symbols = [
            ("__noinstr_text_start", 0x100),
            ("__cpuidle_text_start", 0x180),
            ("__cpuidle_text_end", 0x200),
            ("__noinstr_text_end", 0x200),
            ("__sched_text_start", 0x300),
            ("__sched_text_end", 0x400),
            // Without an end.
            ("__lock_text_start", 0x400),
            ("__entry_text_start", 0x500),
            ("__irqentry_text_start", 0x520),
            ("__irqentry_text_end", 0x540),
            ("__entry_text_end", 0x600),
            ("_etext", 0x700),
        ];
        let parts = ReservedParts::new(|name| {
            symbols.iter().find(|&&(symbol, _)| symbol == name).map(|&(_, addr)| addr)
        });
        let at = |addr| parts.at(addr);
        assert_eq!(at(0xff), None);
        assert_eq!(at(0x100), Some(ReservedCode::Noinstr));
        assert_eq!(at(0x180), Some(ReservedCode::Idle));
        assert_eq!(at(0x200), Some(ReservedCode::FreedReferences));
        assert_eq!(at(0x300), Some(ReservedCode::Scheduler));
        assert_eq!(at(0x410), None);
        assert_eq!(at(0x500), Some(ReservedCode::Entry));
        assert_eq!(at(0x520), Some(ReservedCode::Interrupts));
        assert_eq!(at(0x600), Some(ReservedCode::Thunks));
        assert_eq!(at(0x700), None);
    }

    /// Where the entry code comes first and the noinstr code last, ordinary code lies between the
    /// symbols that enclose thunks and `.ref.text` elsewhere.
    #[test]
    fn nothing_is_said_of_code_between_parts_in_another_order() {
        let symbols = [
            ("__entry_text_start", 0x100),
            ("__entry_text_end", 0x200),
            ("__sched_text_start", 0x300),
            ("__sched_text_end", 0x400),
            ("__noinstr_text_start", 0x800),
            ("__noinstr_text_end", 0x900),
            ("_etext", 0xa00),
        ];
        let parts = ReservedParts::new(|name| {
            symbols.iter().find(|&&(symbol, _)| symbol == name).map(|&(_, addr)| addr)
        });
        assert_eq!([0x280, 0x500, 0x980].map(|addr| parts.at(addr)), [None; 3]);
        assert_eq!(parts.at(0x180), Some(ReservedCode::Entry));
    }
}
