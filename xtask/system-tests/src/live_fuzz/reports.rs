//! The reports of a kernel that was built to find mistakes.
//!
//! Input: the kernel's log. Output: the reports that blame the live module. KCSAN also finds races
//! between functions of the kernel that are known to its maintainers and have nothing to do with
//! the module: a report of a race counts when the module is on one of its stacks, and the race is
//! not inside a function of the kernel that allows it.

use crate::machine;

/// Beside what no good kernel writes.
const WORDS: [&str; 3] = ["blocked for more than", "possible recursive locking", "INFO: trying to"];

const RACE: &str = "BUG: KCSAN:";
/// Races inside one function of the kernel that are meant, whoever calls it. KCSAN cannot see that
/// they are harmless. `ktime_get_mono_fast_ns` reads one of two copies of the clock while the other
/// one changes (`seqcount_latch_t`, kernel/time/timekeeping.c).
const MEANT: [&str; 1] = ["data-race in ktime_get_mono_fast_ns+"];
/// Around a report of a sanitizer.
const RULE: &str = "==================================";
/// Behind a function's name on a stack.
const MODULE: &str = "[kernlane]";

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reports<'a> {
    /// Lines that begin a report.
    pub complaints: Vec<&'a str>,
    /// Races without the module, and races that are meant.
    pub other_races: Vec<&'a str>,
}

pub(super) fn find(console: &str) -> Reports<'_> {
    let mut reports = Reports::default();
    let lines: Vec<&str> = console.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        if line.contains(RACE) {
            let report = lines[number..].iter().skip(1).take_while(|line| !line.contains(RULE));
            let is_meant = MEANT.iter().any(|function| line.contains(function));
            if !is_meant && report.into_iter().any(|line| line.contains(MODULE)) {
                reports.complaints.push(line);
            } else {
                reports.other_races.push(line);
            }
        } else if machine::is_complaint(line) || WORDS.iter().any(|word| line.contains(word)) {
            reports.complaints.push(line);
        }
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACES: &str = "\
[ 1.0] ==================================================================
[ 1.0] BUG: KCSAN: data-race in tick_do_update / tick_nohz
[ 1.0] write to 0xffffffff81000000 of 8 bytes by interrupt on cpu 0:
[ 1.0]  tick_do_update+0x10/0x20
[ 1.0] ==================================================================
[ 2.0]  kernlane_ioctl+0x1/0x2 [kernlane]
[ 3.0] ==================================================================
[ 3.0] BUG: KCSAN: data-race in watch / show
[ 3.0] read to 0xffffffff81000000 of 8 bytes by task 7 on cpu 0:
[ 3.0]  show_group+0x10/0x20 [kernlane]
[ 3.0] ==================================================================
[ 4.0] ==================================================================
[ 4.0] BUG: KCSAN: data-race in ktime_get_mono_fast_ns+0x88/0x170
[ 4.0] race at unknown origin, with read to 0xffffffff81000000 of 8 bytes by task 7 on cpu 1:
[ 4.0]  ktime_get_mono_fast_ns+0x88/0x170
[ 4.0]  on_switch+0x1f/0xb0 [kernlane]
[ 4.0] ==================================================================
";

    #[test]
    fn a_race_counts_with_the_module_on_a_stack() {
        let found = find(RACES);
        assert_eq!(found.complaints, ["[ 3.0] BUG: KCSAN: data-race in watch / show"]);
        assert_eq!(
            found.other_races,
            [
                "[ 1.0] BUG: KCSAN: data-race in tick_do_update / tick_nohz",
                "[ 4.0] BUG: KCSAN: data-race in ktime_get_mono_fast_ns+0x88/0x170",
            ]
        );
    }

    #[test]
    fn everything_else_counts() {
        for line in [
            "[ 1.0] BUG: KASAN: slab-use-after-free in find_place+0x1/0x2",
            "[ 1.0] WARNING: possible circular locking dependency detected",
            "[ 1.0] INFO: task fuzz:77 blocked for more than 280 seconds.",
            "[ 1.0] BUG: sleeping function called from invalid context at mm.h:1",
        ] {
            assert_eq!(find(line).complaints, [line]);
        }
        assert_eq!(find("[ 1.0] kernlane: a livepatch comes"), Reports::default());
    }
}
