//! Checks that the code which the kernel keeps apart is still there, and that no other code is.
//!
//! Input: the units of the walk, and both kernels' symbols around such code. Output: a proof for
//! each unit inside, and a difference for each unit that came in or went out. The kernel looks up
//! by address whether code may be instrumented or probed, is entry code, or only waits. The list of
//! parts is this module's own. Labels of the linker script that lie in the padding of a function
//! are compared as well: they divide the code of their section.

use super::correspond::{Correspondence, PaddingLabel};
use super::kernel::KernelFile;
use super::padding::is_by_frequency;
use super::verdict::Findings;
use super::walk::CodeUnit;
use std::ops::Range;

/// The symbols around each part (include/asm-generic/vmlinux.lds.h, arch/x86/kernel/vmlinux.lds.S).
const PARTS: [[&str; 2]; 9] = [
    ["__noinstr_text_start", "__noinstr_text_end"],
    ["__cpuidle_text_start", "__cpuidle_text_end"],
    ["__sched_text_start", "__sched_text_end"],
    ["__lock_text_start", "__lock_text_end"],
    ["__kprobes_text_start", "__kprobes_text_end"],
    ["__irqentry_text_start", "__irqentry_text_end"],
    ["__softirqentry_text_start", "__softirqentry_text_end"],
    ["__static_call_text_start", "__static_call_text_end"],
    ["__entry_text_start", "__entry_text_end"],
];

/// Compares every part that both kernels have.
pub(crate) fn check(old: &KernelFile, new: &KernelFile, units: &[CodeUnit]) -> Findings {
    const KIND: &str = "code kept apart";
    let mut findings = Findings::default();
    for names in PARTS {
        let (Some(was), Some(is)) = (part(old, names), part(new, names)) else { continue };
        for unit in units.iter().filter(|u| u.new_size + u64::from(u.appended) > 0) {
            match (was.contains(&unit.old), is.contains(&unit.new)) {
                (true, true) => findings.prove(KIND, 1),
                (false, false) => {}
                (inside, _) => {
                    let what = if inside { "left the part behind" } else { "came behind" };
                    let what = format!("code {what} {}", names[0]);
                    findings.differ(KIND, Some(unit.old), Some(unit.new), what);
                }
            }
        }
    }
    findings
}

/// Compares what the labels in padding divide: each has the same code of its section in front of it
/// and behind it. Functions of the map may pass a label around
/// code that is sorted by how often it runs.
pub(crate) fn labels(c: &Correspondence, units: &[CodeUnit]) -> Findings {
    let mut findings = Findings::default();
    for &PaddingLabel { name, old: was, new: is } in &c.labels {
        let Some(section) = c.old.section_at(was) else { continue };
        let by_frequency = is_by_frequency(name);
        let of_section = units.iter().filter(|u| (section.addr..section.end()).contains(&u.old));
        for unit in of_section {
            let end = unit.new.saturating_add(unit.new_size + u64::from(unit.appended));
            let [before, behind] = [end <= is, unit.new >= is];
            let fits = match by_frequency && c.goes_with_map(unit.old) {
                true => before || behind,
                false if unit.old < was => before,
                false => behind,
            };
            findings.expect(fits, "code divided by a label", unit.old, unit.new, || {
                format!("{name}, now at {is:016x}, no longer divides this code from the rest")
            });
        }
    }
    findings
}

/// The parts of a kernel that are kept apart.
pub(crate) fn parts(kernel: &KernelFile) -> Vec<Range<u64>> {
    PARTS.into_iter().filter_map(|names| part(kernel, names)).collect()
}

fn part(kernel: &KernelFile, [start, end]: [&str; 2]) -> Option<Range<u64>> {
    Some(kernel.symbol(start)?..kernel.symbol(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_elf::{TestSymbol, elf};
    use image::place::Ending;

    const TEXT: u64 = 0xffff_ffff_8100_0000;

    fn kernel(start: u64, end: u64) -> Vec<u8> {
        let sections = [(".text", TEXT, 0x6, vec![0xc3; 0x100])];
        let symbols = [
            TestSymbol("__sched_text_start", TEXT + start, 0),
            TestSymbol("__sched_text_end", TEXT + end, 0),
        ];
        elf(&sections, &symbols, 0)
    }

    fn unit(old: u64, new: u64, new_size: u64) -> CodeUnit {
        let (old, new) = (TEXT + old, TEXT + new);
        CodeUnit { old, old_size: 2, new, new_size, appended: 0, ending: Ending::Same }
    }

    #[test]
    fn code_neither_comes_into_a_part_nor_leaves_it() {
        let (old, new) = (kernel(0x20, 0x40), kernel(0x60, 0x80));
        let (old, new) = (KernelFile::parse(&old).unwrap(), KernelFile::parse(&new).unwrap());
        let of = |units: &[CodeUnit]| check(&old, &new, units);
        let right = of(&[unit(0, 0x10, 2), unit(0x20, 0x60, 2), unit(0x3e, 0x7e, 2)]);
        assert!(right.equal());
        assert_eq!(right.proved.get("code kept apart"), Some(&2));
        // What became of a dropped jump has no place.
        assert!(of(&[unit(0x10, 0x60, 0)]).equal());
        let wrong = of(&[unit(0x20, 0x10, 2), unit(0x40, 0x7e, 2)]);
        let found: Vec<&str> = wrong.differences.iter().map(|d| d.what.as_str()).collect();
        let expected =
            ["code left the part behind __sched_text_start", "code came behind __sched_text_start"];
        assert_eq!(found, expected);
    }
}
