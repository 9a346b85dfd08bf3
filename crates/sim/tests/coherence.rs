//! Programs on several cores whose misses were counted by hand.

mod coherent_machine;

use coherent_machine::{LARGE, Sizes, machine};
use kernlane_sim::coherent::{
    ClassCounts, CoherentCaches, CoreCounters, CoreId, CoreStalls, LineParts, MissClass, Protocol,
    Served, SharingCounts, Supplier,
};
use kernlane_sim::{Mode, PhysAddr};

fn caches(cores: u64, clusters: u64, protocol: Protocol) -> CoherentCaches {
    CoherentCaches::new(&machine(cores, clusters, protocol, LARGE)).unwrap()
}

fn core(caches: &CoherentCaches, number: u8) -> CoreId {
    caches.core(number).unwrap()
}

fn load(caches: &mut CoherentCaches, by: u8, addr: u64) -> Served {
    caches.data(core(caches, by), PhysAddr(addr), 8, false).served
}

fn store(caches: &mut CoherentCaches, by: u8, addr: u64) -> Served {
    caches.data(core(caches, by), PhysAddr(addr), 8, true).served
}

/// A load and a store, as `lock inc` makes them.
fn increment(caches: &mut CoherentCaches, by: u8, addr: u64) {
    load(caches, by, addr);
    store(caches, by, addr);
}

fn kernel(caches: &CoherentCaches, by: u8) -> CoreCounters {
    caches.counters(core(caches, by)).kernel
}

fn classes(cold: u64, capacity: u64, true_sharing: u64, false_sharing: u64) -> ClassCounts {
    ClassCounts { cold, capacity, true_sharing, false_sharing }
}

#[test]
fn two_counters_in_one_line_are_false_sharing() {
    let mut caches = caches(2, 1, Protocol::Mesi);
    for _ in 0..100 {
        increment(&mut caches, 0, 0x1000);
        increment(&mut caches, 1, 0x1008);
    }
    // The load misses and leaves both cores with a shared line, so that the store upgrades. Only
    // core 0 stored once without asking: its first line was exclusive.
    assert_eq!(kernel(&caches, 0).l2_data, classes(1, 0, 0, 99));
    assert_eq!(kernel(&caches, 1).l2_data, classes(1, 0, 0, 99));
    assert_eq!((kernel(&caches, 0).upgrades, kernel(&caches, 1).upgrades), (99, 100));
    let (addr, shared) = caches.shared_lines().next().unwrap();
    assert_eq!((addr, caches.shared_lines().count()), (PhysAddr(0x1000), 1));
    let counts = SharingCounts { true_sharing: 0, false_sharing: 198, upgrades: 199 };
    assert_eq!(shared.counts.kernel, counts);
    assert_eq!((shared.stored[0], shared.stored[1]), (LineParts(0xff), LineParts(0xff00)));
}

#[test]
fn two_counters_in_two_lines_share_nothing() {
    let mut caches = caches(2, 1, Protocol::Mesi);
    for _ in 0..100 {
        increment(&mut caches, 0, 0x1000);
        increment(&mut caches, 1, 0x1040);
    }
    for by in 0..2 {
        assert_eq!(kernel(&caches, by).l2_data, classes(1, 0, 0, 0));
        assert_eq!(kernel(&caches, by).upgrades, 0);
    }
    assert_eq!(caches.shared_lines().count(), 0);
}

#[test]
fn three_states_upgrade_where_mesi_stores_without_asking() {
    let mut caches = caches(2, 1, Protocol::ThreeStates);
    assert_eq!(load(&mut caches, 0, 0), Served::Missed(MissClass::Cold, Supplier::Memory));
    assert_eq!(store(&mut caches, 0, 0), Served::Upgraded(Supplier::LastLevel));
    assert_eq!(store(&mut caches, 0, 0), Served::L1);
    assert_eq!(store(&mut caches, 0, 64), Served::Missed(MissClass::Cold, Supplier::Memory));
    assert_eq!(store(&mut caches, 0, 64), Served::L1);
}

#[test]
fn ping_pong_of_one_word_is_true_sharing() {
    let mut caches = caches(2, 1, Protocol::Mesi);
    for _ in 0..50 {
        store(&mut caches, 0, 0);
        store(&mut caches, 1, 0);
    }
    assert_eq!(kernel(&caches, 0).l2_data, classes(1, 0, 49, 0));
    assert_eq!(kernel(&caches, 1).l2_data, classes(1, 0, 49, 0));
    assert_eq!(kernel(&caches, 1).supplied.core, 50);
    assert_eq!((kernel(&caches, 0).supplied.memory, kernel(&caches, 0).supplied.core), (1, 49));
}

#[test]
fn a_reader_misses_once_for_each_write() {
    let mut caches = caches(2, 1, Protocol::Mesi);
    for _ in 0..10 {
        store(&mut caches, 0, 0x80);
        for _ in 0..5 {
            load(&mut caches, 1, 0x80);
        }
    }
    // The reader: one cold miss, then what the writer wrote. The writer: one cold miss, then
    // upgrades.
    assert_eq!(kernel(&caches, 1).l2_data, classes(1, 0, 9, 0));
    assert_eq!((kernel(&caches, 0).l2_data, kernel(&caches, 0).upgrades), (classes(1, 0, 0, 0), 9));
    assert_eq!(kernel(&caches, 1).l1d, 10);
}

/// The lock lies beside the data that it guards. Each of four cores takes the lock, adds to the
/// data, and gives the lock back, one core after the other, three times.
#[test]
fn a_lock_goes_round_in_a_known_order() {
    let mut caches = caches(4, 1, Protocol::Mesi);
    let (lock, data) = (0x200, 0x240);
    for _ in 0..3 {
        for by in 0..4 {
            increment(&mut caches, by, lock);
            increment(&mut caches, by, data);
            store(&mut caches, by, lock);
        }
    }
    for by in 0..4 {
        // Two lines: each is cold once, and then was written by the core before, twice.
        assert_eq!(kernel(&caches, by).l2_data, classes(2, 0, 4, 0), "core {by}");
        // Each taking over loads, and then upgrades; core 0 got both lines alone at first.
        assert_eq!(kernel(&caches, by).upgrades, if by == 0 { 4 } else { 6 }, "core {by}");
    }
}

#[test]
fn eight_cores_on_one_counter_take_it_from_each_other() {
    let mut caches = caches(8, 2, Protocol::Mesi);
    for _ in 0..10 {
        (0..8).for_each(|by| increment(&mut caches, by, 0x3000));
    }
    let mut sum = CoreCounters::default();
    (0..8).for_each(|by| sum += kernel(&caches, by));
    assert_eq!(sum.l2_data, classes(8, 0, 72, 0));
    assert_eq!(sum.upgrades, 79);
    // Cores 0 and 4 get the line from the other cluster, but for the first time of core 0.
    assert_eq!((sum.supplied.memory, sum.supplied.core, sum.supplied.cluster), (1, 60, 19));
    assert_eq!(sum.upgraded.total(), 79);
    assert_eq!((sum.upgraded.core, sum.upgraded.cluster), (60, 19));
}

/// One core calls functions on seven others by interrupts, as Linux' `smp_call_function_many` does:
/// it fills a request, puts it into the other core's queue, and waits until the request is done.
#[test]
fn a_storm_of_interrupts_moves_queues_and_requests() {
    let mut caches = caches(8, 1, Protocol::Mesi);
    let (queue, request) =
        (|of: u8| 0x4000 + 64 * u64::from(of), |of: u8| 0x8000 + 64 * u64::from(of));
    for _ in 0..100 {
        for other in 1..8 {
            store(&mut caches, 0, request(other));
            increment(&mut caches, 0, queue(other));
        }
        for other in 1..8 {
            increment(&mut caches, other, queue(other));
            increment(&mut caches, other, request(other));
        }
        for other in 1..8 {
            load(&mut caches, 0, request(other));
        }
    }
    // The sender has both lines alone at first. Then it finds that each request was done, which it
    // misses, and overwrites it, for which it asks. It misses each queue, and asks to write it.
    let sender = kernel(&caches, 0);
    assert_eq!(sender.l2_data, classes(7 * 2, 0, 7 * (100 + 99), 0));
    assert_eq!(sender.upgrades, 7 * (99 + 99));
    for other in 1..8 {
        let receiver = kernel(&caches, other);
        assert_eq!(receiver.l2_data, classes(2, 0, 2 * 99, 0), "core {other}");
        assert_eq!(receiver.upgrades, 2 * 100, "core {other}");
    }
}

/// The core uses the other core's word only after the miss: until then it was false sharing.
#[test]
fn a_miss_turns_out_to_be_true_sharing_later() {
    let mut caches = caches(2, 1, Protocol::Mesi);
    load(&mut caches, 1, 0);
    store(&mut caches, 0, 8);
    assert_eq!(load(&mut caches, 1, 0), Served::Missed(MissClass::FalseSharing, Supplier::Core));
    assert_eq!(kernel(&caches, 1).l2_data, classes(1, 0, 0, 1));
    let (one, user) = (core(&caches, 1), Mode::User);
    assert!(!caches.data(one, PhysAddr(0), 8, false).was_true);
    caches.runs(one, user);
    let late = caches.data(one, PhysAddr(8), 4, false);
    assert_eq!((late.served, late.was_true), (Served::L1, true));
    // The miss was the kernel's, and stays so.
    assert_eq!(kernel(&caches, 1).l2_data, classes(1, 0, 1, 0));
    assert!(!caches.data(one, PhysAddr(8), 4, false).was_true);
}

#[test]
fn code_that_another_core_writes_is_lost() {
    let mut caches = caches(2, 1, Protocol::Mesi);
    let one = core(&caches, 1);
    caches.fetch(one, PhysAddr(0x500));
    assert_eq!(caches.fetch(one, PhysAddr(0x500)).served, Served::L1);
    assert_eq!(store(&mut caches, 0, 0x500), Served::Missed(MissClass::Cold, Supplier::Core));
    assert_eq!(
        caches.fetch(one, PhysAddr(0x500)).served,
        Served::Missed(MissClass::TrueSharing, Supplier::Core)
    );
    assert_eq!(kernel(&caches, 1).l2_instructions, classes(1, 0, 1, 0));
    assert_eq!(kernel(&caches, 1).l1i, 2);
}

/// A direct-mapped L1 of two lines, and an L2 of one set of two ways.
#[test]
fn an_evicted_line_is_a_capacity_miss_whoever_wrote_since() {
    let sizes = Sizes { l1: 128, l2: 128, l3: None, l1_line: 64, l2_line: 64 };
    let machine = machine(2, 1, Protocol::Mesi, sizes);
    let mut caches = CoherentCaches::new(&machine).unwrap();
    load(&mut caches, 0, 0);
    load(&mut caches, 0, 64);
    assert_eq!(load(&mut caches, 0, 128), Served::Missed(MissClass::Cold, Supplier::Memory));
    store(&mut caches, 1, 0);
    assert_eq!(load(&mut caches, 0, 0), Served::Missed(MissClass::Capacity, Supplier::Core));
    // The L1 lost line 128 to line 0; the L2 still has it.
    assert_eq!(load(&mut caches, 0, 128), Served::L2);
    let stalls = CoreStalls::new(
        &kernel(&caches, 0),
        machine.memory.as_ref().unwrap(),
        machine.coherence.as_ref().unwrap(),
    );
    // Three from memory, one from the other core, one from the L2.
    assert_eq!((stalls.beyond, stalls.l2, stalls.upgrades), (350.0, 10.0, 0.0));
    assert_eq!(stalls.total(), 360.0);
}

#[test]
fn a_line_comes_from_the_nearest_that_has_it() {
    let mut caches = caches(4, 2, Protocol::Mesi);
    let missed = |supplier| Served::Missed(MissClass::Cold, supplier);
    assert_eq!(load(&mut caches, 0, 0), missed(Supplier::Memory));
    assert_eq!(load(&mut caches, 1, 0), missed(Supplier::Core), "core 0 had it alone");
    assert_eq!(load(&mut caches, 2, 0), missed(Supplier::Cluster), "the other L3");
    assert_eq!(load(&mut caches, 3, 0), missed(Supplier::LastLevel));
    assert_eq!(store(&mut caches, 3, 0), Served::Upgraded(Supplier::Cluster));
    // Core 3 wrote, so the L3 of the first cluster lost the line.
    let was_written = Served::Missed(MissClass::TrueSharing, Supplier::Cluster);
    assert_eq!(load(&mut caches, 0, 0), was_written);
    assert_eq!(
        load(&mut caches, 2, 0),
        Served::Missed(MissClass::TrueSharing, Supplier::LastLevel),
        "core 3 wrote back when core 0 read"
    );
}

#[test]
fn a_machine_has_the_cores_that_it_describes() {
    let caches = caches(4, 2, Protocol::Mesi);
    assert_eq!(caches.cores().count(), 4);
    assert_eq!(caches.core(4), None);
    let mut one = machine(2, 1, Protocol::Mesi, LARGE);
    one.coherence = None;
    assert!(CoherentCaches::new(&one).is_none());
}
