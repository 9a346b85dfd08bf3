//! Known programs on CPUs side by side, counted by hand for `server-8`: an instruction takes a
//! cycle, a TLB miss 7, a line from memory 400, and from another core 80.
//!
//! Each execution has two instructions. All code is in one line and one page, all data in one page.
//! `crates/replay/src/tests/side_by_side.rs` has the same programs, with the same counts.

use super::{CORE, Guest, LOAD, STATIC, STORE, counters};
use super::{counts, false_sharing, names, true_sharing, typed_pair, untyped, used};
use crate::sharing::table::{Cure, LineCounts, SharingTable};
use execution::cpu_order::CpuOrder;
use sim::coherent::{ClassCounts, SupplierCounts};

fn side_by_side(mut guest: Guest) -> Guest {
    guest.order = CpuOrder::SideBySide;
    guest
}

/// Each of two CPUs stores 1000 times to a counter of its own, in one turn.
fn one_turn_each(step: u64) -> Guest {
    let mut guest = Guest::new(2);
    for cpu in 0..2 {
        for _ in 0..1000 {
            guest.run(cpu, 0, &[(STATIC + step * u64::from(cpu), STORE, 3)]);
        }
    }
    side_by_side(guest)
}

/// The costs of lines and functions add up to the stalls.
fn adds_up(table: &SharingTable) {
    let total = &table.totals.total;
    let of_lines: f64 = table.lines.iter().map(|line| line.counts.cycles).sum();
    assert_eq!(of_lines, total.cycles);
    let fields = table.lines.iter().flat_map(|line| &line.fields);
    assert_eq!(fields.map(|field| field.counts.cycles).sum::<f64>(), total.cycles);
    for line in &table.lines {
        assert_eq!(line.share, line.counts.cycles / total.cycles);
    }
    let of_functions: f64 = table.functions.iter().map(|row| row.stalls).sum();
    assert_eq!(of_functions, total.stalls);
}

/// The first steps take 816 and 176 cycles. Until cycle 816, CPU 1 makes 320 steps of 2 cycles.
/// Then each step of both misses, and takes 82 cycles: 679 of CPU 1, and as many of CPU 0, and one
/// more. CPU 0 has 319 steps left, which hit.
#[test]
fn counters_in_one_line_bounce() {
    let table = one_turn_each(8).table(&typed_pair());
    assert_eq!((table.lines.len(), table.totals.order), (1, CpuOrder::SideBySide));
    let line = &table.lines[0];
    assert_eq!(line.cpus[0].kernel, counts(false_sharing(1, 680), 0));
    assert_eq!(line.cpus[1].kernel, counts(false_sharing(1, 679), 0));
    assert_eq!(names(&line.fields), ["pair.hits", "pair.misses"]);
    assert_eq!(line.fields[0].counts, counts(false_sharing(1, 680), 0));
    assert_eq!(line.fields[1].counts, counts(false_sharing(1, 679), 0));
    assert_eq!(line.fields[0].cpus, [used(0, 1000), used(0, 0)]);
    assert!(matches!(&line.cure, Cure::MoveField { .. }), "{:?}", line.cure);
    let first_steps = 816.0 - 2.0 + 176.0 - 2.0;
    assert_eq!(table.totals.total.stalls, first_steps + (680.0 + 679.0) * CORE);
    let recorded = table.totals.recorded.unwrap();
    assert_eq!((recorded.all_misses().coherence(), recorded.cycles), (0, 0.0));
    adds_up(&table);
}

#[test]
fn counters_in_two_lines_never_move() {
    let table = one_turn_each(64).table(&typed_pair());
    assert_eq!((table.shared_lines, table.totals.total.cycles), (0, 0.0));
    // Each CPU: the page and the line of code, the page and the line of its counter.
    let stalls = (7.0 + 400.0 + 7.0 + 400.0) + (7.0 + 80.0 + 7.0 + 400.0);
    assert_eq!(table.totals.total.stalls, stalls);
    assert_eq!(table.totals.recorded.unwrap().stalls, stalls);
}

/// Who uses the word after whom is kept.
#[test]
fn ping_pong_keeps_its_order() {
    let table = side_by_side(counters(2, 100, 0)).table(&untyped(&[(STATIC, 8, "word")]));
    assert_eq!(table.lines[0].counts, counts(true_sharing(2, 198), 199));
    assert_eq!(table.totals.recorded.unwrap().cycles, table.totals.total.cycles);
    adds_up(&table);
}

/// A reader loads what three writers have stored. In each round but the first, each of the writers
/// finds the line taken by another writer or by the reader, and uses nothing of what the others
/// wrote. The reader's first load brings what all have written, and leaves it in the L3, which
/// gives the line to the next writer in 50 cycles.
#[test]
fn a_reader_and_three_writers() {
    const ROUNDS: u64 = 50;
    let words = [STATIC, STATIC + 8, STATIC + 16];
    let mut guest = Guest::new(4);
    for _ in 0..ROUNDS {
        for (cpu, word) in (1..).zip(words) {
            guest.run(cpu, cpu.into(), &[(word, STORE, 3)]);
        }
        guest.run(0, 0, &words.map(|word| (word, LOAD, 3)));
    }
    let table = side_by_side(guest).table(&untyped(&[(STATIC, 24, "words")]));
    let line = &table.lines[0];
    let class = ClassCounts {
        cold: 4,
        true_sharing: ROUNDS - 1,
        false_sharing: 3 * (ROUNDS - 1),
        ..ClassCounts::default()
    };
    let served = SupplierCounts {
        last_level: ROUNDS - 1,
        core: 3 * (ROUNDS - 1),
        ..SupplierCounts::default()
    };
    let cycles = (ROUNDS - 1) as f64 * (50.0 + 3.0 * CORE);
    assert_eq!(line.counts, LineCounts { misses: class, upgrades: 0, served, cycles });
    assert_eq!(line.cpus[0].kernel.misses, true_sharing(1, ROUNDS - 1));
    assert_eq!(table.totals.recorded.unwrap().all_misses().coherence(), 4 * (ROUNDS - 1));
    adds_up(&table);
}

/// The counter of the second CPU moves to a line of its own, and none is taken any more.
#[test]
fn a_counter_in_its_own_line_is_shared_no_more() {
    let change = one_turn_each(8).what_if(&typed_pair(), &["pair.misses -> own line"]).unwrap();
    assert_eq!(change.order, CpuOrder::SideBySide);
    let alone = one_turn_each(64).table(&typed_pair()).totals;
    assert_eq!((change.before.all_misses().false_sharing, change.after), (1359, alone.total));
    let (before, after) = change.recorded.unwrap();
    assert_eq!((before.cycles, after), (0.0, alone.recorded.unwrap()));
}

#[test]
fn the_recorded_order_has_no_other_beside_it() {
    let mut guest = one_turn_each(8);
    guest.order = CpuOrder::Recorded;
    let totals = guest.table(&typed_pair()).totals;
    assert_eq!((totals.order, totals.recorded), (CpuOrder::Recorded, None));
    assert_eq!((totals.total.all_misses().coherence(), totals.total.cycles), (0, 0.0));
}

/// The first CPU's L1D has room for eight lines of a set. Its store finds the line of the first
/// load in the L2, and shared: the upgrade waits for the L2 and for the other CPU.
#[test]
fn an_upgrade_from_the_l2_waits_for_both() {
    let stored = |stores: bool| {
        let mut guest = Guest::new(2);
        guest.run(0, 0, &[(STATIC, LOAD, 3)]).run(1, 0, &[(STATIC, LOAD, 3)]);
        for line in 1..=8 {
            guest.run(0, 0, &[(STATIC + 0x1000 * line, LOAD, 3)]);
        }
        guest.run(0, 0, &[(STATIC, if stores { STORE } else { LOAD }, 3)]);
        side_by_side(guest).table(&untyped(&[]))
    };
    let (upgraded, loaded) = (stored(true), stored(false));
    assert_eq!(upgraded.lines[0].counts.upgrades, 1);
    assert_eq!(upgraded.totals.total.stalls - loaded.totals.total.stalls, CORE);
    [upgraded, loaded].iter().for_each(adds_up);
}
