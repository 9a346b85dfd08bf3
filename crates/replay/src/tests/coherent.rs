//! Several CPUs in the order of the recording.

use crate::CpuOrder;
use crate::tests::several_cpus::{DATA, replayed, store};
use sim::coherent::ClassCounts;

/// Also the last execution of a turn stores before the other CPU's turn.
#[test]
fn cpus_take_a_line_from_each_other_in_the_order_of_the_recording() {
    let turns = [
        (0, vec![store(DATA)]),
        (1, vec![store(DATA + 8)]),
        (0, vec![store(DATA), store(DATA)]),
        (1, vec![store(DATA + 8), store(DATA + 64)]),
    ];
    let replayed = replayed("server-8", CpuOrder::Recorded, 2, &turns).unwrap();
    let coherence = replayed.layouts[0].machines[0].coherence.as_ref().unwrap();
    let class = |cold, false_sharing| ClassCounts { cold, false_sharing, ..Default::default() };
    let (first, second) = (coherence.cpus[0].kernel, coherence.cpus[1].kernel);
    assert_eq!((first.l2_data, second.l2_data), (class(1, 1), class(2, 1)));
    assert_eq!((first.stores, second.stores), (3, 3));
    assert_eq!((first.instructions, second.instructions), (6, 6));
    assert_eq!((first.l2_instructions, second.l2_instructions), (class(1, 0), class(1, 0)));
    assert_eq!(coherence.lines.len(), 1);
    assert_eq!(coherence.lines[0].physical.0, 0x200 << 12);
    assert_eq!(coherence.lines[0].counts.kernel.false_sharing, 2);
    assert!(coherence.times.is_none());
}

#[test]
fn one_cpu_has_no_coherence() {
    for order in [CpuOrder::Recorded, CpuOrder::SideBySide] {
        let replayed = replayed("server-8", order, 1, &[(0, vec![store(DATA)])]).unwrap();
        let machine = &replayed.layouts[0].machines[0];
        assert!(machine.coherence.is_none() && machine.memory.is_some());
    }
}

#[test]
fn a_machine_with_one_core_counts_no_data_of_several_cpus() {
    let turns = [(0, vec![store(DATA)]), (1, vec![store(DATA)])];
    for order in [CpuOrder::Recorded, CpuOrder::SideBySide] {
        let replayed = replayed("server-32k", order, 2, &turns).unwrap();
        let machine = &replayed.layouts[0].machines[0];
        assert!(machine.coherence.is_none() && machine.memory.is_none());
        assert_eq!(machine.l1i.kernel.cold, 2, "each CPU has its own L1I");
    }
}

#[test]
fn too_few_cores_are_refused() {
    let text = include_str!("../../../../machines/server-8.toml");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("two.toml");
    let two = text.replace("cores = { value = 8", "cores = { value = 2");
    std::fs::write(&path, two).unwrap();
    let path = path.to_str().unwrap();
    let turns = [(2, vec![store(DATA)])];
    let message = replayed(path, CpuOrder::SideBySide, 3, &turns).unwrap_err().to_string();
    assert!(message.contains("has 2 cores, and the recording has 3 CPUs"), "{message}");
}
