//! Locks on CPUs side by side.

use super::{FUNCTIONS, Guest, LOCK_A, lock, table_of};
use crate::locks::table::LockTable;
use execution::cpu_order::CpuOrder;

/// In the recording, each of four CPUs acquires and releases the lock in a turn of its own. Side by
/// side they meet: each waits until the one before has released the lock.
/// The first one holds it for this number of hundreds of cycles, the others for one.
fn in_turn(cpus: u8, first: usize, order: CpuOrder) -> LockTable {
    let mut guest = Guest::new(cpus);
    for cpu in 0..cpus {
        guest.on(cpu).tries_spin("f", LOCK_A).returns("_raw_spin_lock");
        (0..if cpu == 0 { first } else { 1 }).for_each(|_| {
            guest.works("f", 100);
        });
        guest.unlocks_spin("f", LOCK_A);
    }
    table_of(&guest.recording(), "server-8", &FUNCTIONS, order).unwrap()
}

#[test]
fn a_spin_lock_of_four_cpus_is_waited_for_side_by_side() {
    let table = in_turn(4, 1000, CpuOrder::SideBySide);
    let totals = &lock(&table, "lock_a").totals;
    assert_eq!((totals.acquisitions, totals.contended, totals.awaited), (4, 0, 3));
    let (recorded, longer) =
        (in_turn(4, 1000, CpuOrder::Recorded), in_turn(4, 1007, CpuOrder::SideBySide));
    // The first CPU holds the lock for 700 cycles more, and all others wait for it.
    let longer = &lock(&longer, "lock_a").totals;
    assert_eq!(longer.awaited_cycles - totals.awaited_cycles, 3.0 * 700.0);
    let recorded = &lock(&recorded, "lock_a").totals;
    assert_eq!((recorded.awaited, recorded.awaited_cycles), (0, 0.0));
    assert_eq!(recorded.acquisitions, 4);
}
