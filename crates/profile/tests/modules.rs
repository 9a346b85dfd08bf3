//! Code of modules is counted by module and function, also when two modules share an address.

use image::address::LinkAddr;
use image::examples;
use image::module::{ModuleCode, base_of};
use image::order::{Layout, Run};
use kernlane_profile::collect::{ExtraCounts, collect};
use kernlane_profile::graph::movable_of_module;
use kernlane_profile::{Profile, ProfileMerge, merge};
use layout::graph::EdgeKind;
use std::collections::BTreeMap;
use trace::{
    LoadedModule, ModuleChange, ModuleId, ModuleSection, RecordingHeader, RecordingReader,
    RecordingWriter, RunAddr, StreamEvent, Translation, TranslationId,
};

const KERNEL: u64 = 0xffff_ffff_8100_0000;
/// Where the kernel loads modules.
const PLACE: u64 = 0xffff_ffff_a000_0000;

fn loaded(id: u32, name: &str, build_id: &str) -> ModuleChange {
    let section = ModuleSection { name: ".text".into(), addr: RunAddr(PLACE), size: 0x15 };
    let (name, build_id) = (name.into(), build_id.into());
    let (id, large_pages, sections) = (ModuleId(id), false, vec![section]);
    ModuleChange::Loaded(LoadedModule { id, name, build_id, large_pages, sections })
}

/// `my_mod` runs `h`, which jumps to `f`, which calls the kernel's `g`. Then another module is
/// loaded at the same place, and runs the same bytes twice.
fn profile(build_id: &str) -> Profile {
    let header =
        RecordingHeader { build_id: "5f3c".into(), modules: true, ..RecordingHeader::default() };
    let translation = |id, addr, code: &[u8]| Translation {
        id: TranslationId(id),
        addr: RunAddr(addr),
        lengths: [code.len() as u8].into(),
        code: code.into(),
    };
    let call = (KERNEL + 0x20).wrapping_sub(PLACE + 5) as u32;
    let call = [&[0xe8][..], &call.to_le_bytes()].concat();
    let jump = [0xe9, 0xeb, 0xff, 0xff, 0xff];
    let mut writer = RecordingWriter::new(Vec::new(), &header).unwrap();
    writer.modules(&[loaded(0, "my_mod", build_id)]).unwrap();
    let own = [
        translation(0, PLACE + 0x10, &jump),
        translation(1, PLACE, &call),
        translation(2, KERNEL + 0x20, &[0x90]),
    ];
    writer.translations(&own).unwrap();
    writer.modules(&[ModuleChange::Unloaded(ModuleId(0)), loaded(1, "other", "00")]).unwrap();
    writer.translations(&[translation(3, PLACE + 0x10, &jump)]).unwrap();
    let mut words = Vec::new();
    for id in [0, 1, 2, 3, 3] {
        StreamEvent::Executed(TranslationId(id)).append_to(&mut words);
    }
    writer.stream(&words).unwrap();
    let bytes = writer.end().unwrap().0;
    let mut image = examples::caller_and_callee(LinkAddr(KERNEL));
    image.attach(vec![ModuleCode::parse(&examples::module()).unwrap()]).unwrap();
    collect(RecordingReader::new(&bytes[..]).unwrap(), &image, ExtraCounts::None).unwrap()
}

#[test]
fn code_of_a_module_counts_at_its_link_addresses() {
    let profile = profile("cafe");
    let at = |offset| LinkAddr(base_of("my_mod").0 + offset);
    let g = LinkAddr(KERNEL + 0x20);
    assert_eq!(profile.blocks, BTreeMap::from([(at(0), 1), (at(0x10), 1), (g, 1)]));
    assert_eq!(profile.edges, BTreeMap::from([((at(0x10), at(0)), (EdgeKind::Jump, 1))]));
    assert_eq!(profile.calls, BTreeMap::from([((at(0), g), 1)]));
    assert_eq!(profile.outside, BTreeMap::from([(LinkAddr(PLACE + 0x10), 2)]), "other module");
    let text = profile.to_json();
    let read = Profile::from_json(&text).unwrap();
    assert_eq!(read.modules[0].to_string(), "my_mod (cafe)");
    assert_eq!(read.to_json(), text);
}

#[test]
fn code_of_another_build_of_a_module_has_no_blocks() {
    let profile = profile("beef");
    assert_eq!(profile.blocks, BTreeMap::from([(LinkAddr(KERNEL + 0x20), 1)]));
    let outside = [(LinkAddr(PLACE), 1), (LinkAddr(PLACE + 0x10), 3)];
    assert_eq!(profile.outside, BTreeMap::from(outside));
}

/// `h`, `f` and `f`'s jump ran once; `h` in front of `f` makes its jump a fall-through.
#[test]
fn a_layout_has_an_order_for_each_module() {
    let profile = profile("cafe");
    let mut image = examples::caller_and_callee(LinkAddr(KERNEL));
    image.attach(vec![ModuleCode::parse(&examples::module()).unwrap()]).unwrap();
    let input = movable_of_module(&image, &profile, &image.modules[0]).unwrap();
    let base = base_of("my_mod").0;
    let run = |at: u64, size| Run { start: LinkAddr(base + at), size, name: String::new() };
    let identity = image.modules[0].identity.clone();
    let original = Layout { modules: vec![identity], ..Layout::original(image.build_id.clone()) };
    let layout = Layout { runs: vec![run(0x10, 5), run(0, 11)], hot: 2, ..original.clone() };
    let numbers = |layout: &Layout| -> Vec<u32> {
        input.order(&image, layout).0.iter().map(|block| block.0).collect()
    };
    assert_eq!((numbers(&original), numbers(&layout)), (vec![0, 1, 2, 3], vec![3, 0, 1, 2]));
    let taken = |layout| layout::score(&input.graph, &input.order(&image, layout)).taken();
    assert_eq!((taken(&original), taken(&layout)), (1, 0));
}

#[test]
fn profiles_of_two_builds_of_a_module_are_not_merged() {
    let one = profile("cafe");
    let mut other = one.clone();
    assert_eq!(
        merge(vec![one.clone(), other.clone()], ProfileMerge::Sum).unwrap().modules.len(),
        1
    );
    other.modules[0].build_id = "beef".into();
    let error = merge(vec![one, other], ProfileMerge::Sum).unwrap_err().to_string();
    assert!(error.contains("my_mod (cafe) and my_mod (beef)"), "{error}");
}
