//! Tests of whose memory an address is.

use super::*;
use crate::misses::variables;
use trace::CpuCount;

fn memory() -> DataOwners {
    let value = |name: &str, value: u64| (format!("value.{name}"), format!("{value:#x}"));
    let header = RecordingHeader {
        conditions: vec![
            value("__per_cpu_offset", 0xffff_8880_1f80_0000),
            value("pcpu_unit_pages", 64),
        ],
        ..RecordingHeader::default()
    };
    let variables =
        variables::of(&[(0xffff_ffff_8200_0000, 64, "init_task")], &[(0x100, 8, "runqueues")]);
    let mut memory = DataOwners::new(&header, variables);
    memory.slab_caches(&["dentry".into()]);
    memory
}

fn change(memory: &mut DataOwners, frame: u64, used: FrameUse) -> Option<String> {
    let mut settled = None;
    memory.change(&FrameUseChange { frame, frames: 1, used }, |_, structure| {
        settled = Some(structure)
    });
    settled.map(|structure| named(memory, structure))
}

fn named(memory: &DataOwners, id: StructureId) -> String {
    let structure = &memory.structures()[id.0 as usize];
    format!("{:?} {}", structure.class, structure.name).trim_end().to_owned()
}

fn owner(memory: &mut DataOwners, addr: u64, frame: u64) -> String {
    match memory.owner(addr, frame) {
        MissOwner::Known(id) => named(memory, id),
        MissOwner::Pending(frame) => format!("pending {frame}"),
    }
}

#[test]
fn each_region_has_its_class() {
    let mut memory = memory();
    change(&mut memory, 7, FrameUse::Slab(0));
    change(&mut memory, 8, FrameUse::PartOf(7));
    change(&mut memory, 4, FrameUse::Reserved);
    for (addr, frame, expected) in [
        (0x40_0000, 3, "User"),
        (0xffff_ffff_8200_0010, 3, "Static init_task"),
        (0xffff_ffff_8200_0040, 3, "Static (no symbol)"),
        (0xffff_8880_1f80_0104, 3, "PerCpu runqueues"),
        (0xffff_8880_1f80_2000, 4, "PerCpu (allocated)"),
        // What the kernel has given back behind a CPU's area.
        (0xffff_8880_1f80_3000, 7, "Slab dentry"),
        (0xffff_8880_1f80_4000, 3, "pending 3"),
        (0xffff_8880_0000_7000, 7, "Slab dentry"),
        (0xffff_8880_0000_8000, 8, "Slab dentry"),
        (0xffff_c900_0000_0000, 3, "pending 3"),
        (0xffff_ea00_0000_0000, 3, "StructPage"),
        (0xffff_ffff_c000_0000, 3, "Module"),
        (0xffff_fe00_0000_1000, 3, "CpuEntryArea"),
        (0xffff_ffff_ff5f_f000, 3, "Other"),
    ] {
        assert_eq!(owner(&mut memory, addr, frame), expected, "{addr:#x}");
    }
    let slabs = [7, 8, 3].map(|frame| memory.slab(frame).map(|(_, first)| first));
    assert_eq!(slabs, [Some(7), Some(7), None]);
}

#[test]
fn each_cpu_has_its_own_variables() {
    let header = RecordingHeader {
        cpus: CpuCount::new(2).unwrap(),
        conditions: vec![
            ("value.__per_cpu_offset".into(), "0xffff88801f800000".into()),
            ("value.pcpu_unit_pages".into(), "0x40".into()),
        ],
        ..RecordingHeader::default()
    };
    let variables = variables::of(
        &[(0xffff_ffff_8200_0000, 64, "init_task")],
        &[(0x100, 8, "runqueues"), (0x180, 4, "init_task")],
    );
    let mut memory = DataOwners::new(&header, variables);
    let area = 0xffff_8880_1f84_0000;
    assert_eq!(owner(&mut memory, area + 0x104, 3), "PerCpu runqueues");
    assert_eq!(owner(&mut memory, area + 0x4_0100, 3), "pending 3", "there is no third CPU");
    let of_second =
        NamedObject { name: "runqueues".to_owned(), start: area + 0x100, bytes: 8, cpu: Some(1) };
    assert_eq!(memory.object(area + 0x104), Some(of_second));
    assert_eq!(memory.object(area + 0x108), None);
    assert_eq!(memory.object(0xffff_ffff_8200_0010).map(|object| object.cpu), Some(None));
    let starts: Vec<u64> = memory.objects("init_task").iter().map(|it| it.start).collect();
    let of_first = 0xffff_8880_1f80_0180;
    assert_eq!(starts, [0xffff_ffff_8200_0000, of_first, area + 0x180]);
    assert_eq!(memory.objects("nothing"), []);
}

#[test]
fn a_frame_without_a_mark_is_named_by_the_one_it_gets() {
    let mut memory = memory();
    let direct = 0xffff_8880_0000_5000;
    assert_eq!(owner(&mut memory, direct, 5), "pending 5");
    assert_eq!(change(&mut memory, 5, FrameUse::Unmarked), None, "still pending");
    assert_eq!(change(&mut memory, 5, FrameUse::PageTable).as_deref(), Some("PageTable"));
    assert_eq!(owner(&mut memory, direct, 5), "PageTable");
    assert_eq!(change(&mut memory, 5, FrameUse::Free), None, "nothing is pending");
    assert_eq!(change(&mut memory, 5, FrameUse::Unmarked), None);
    assert_eq!(change(&mut memory, 5, FrameUse::Free).as_deref(), Some("Held"));
}

#[test]
fn a_stack_stays_a_stack_until_it_is_free() {
    let mut memory = memory();
    let mapped = 0xffff_c900_0000_0000;
    change(&mut memory, 5, FrameUse::Unmarked);
    assert_eq!(owner(&mut memory, mapped, 5), "pending 5");
    memory.is_a_stack(mapped, 5);
    assert_eq!(change(&mut memory, 5, FrameUse::Free).as_deref(), Some("KernelStack"));
    change(&mut memory, 5, FrameUse::Unmarked);
    assert_eq!(owner(&mut memory, mapped, 5), "pending 5");
    assert_eq!(change(&mut memory, 5, FrameUse::Free).as_deref(), Some("Vmalloc"));
    change(&mut memory, 5, FrameUse::Unmarked);
    memory.is_a_stack(0xffff_ffff_8200_0000, 5);
    assert_eq!(
        change(&mut memory, 5, FrameUse::Free).as_deref(),
        Some("Held"),
        "every stack in the image has a name"
    );
    // The stack of interrupts lies in memory that was set aside at boot, and is mapped again.
    change(&mut memory, 6, FrameUse::Reserved);
    assert_eq!(owner(&mut memory, mapped, 6), "Boot");
    memory.is_a_stack(mapped, 6);
    assert_eq!(owner(&mut memory, mapped, 6), "KernelStack");
    assert_eq!(owner(&mut memory, 0xffff_8880_0000_6000, 6), "Boot");
}
