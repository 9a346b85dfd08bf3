//! Kernlane's own files between the stages: what the targets use of `kernlane-profile`, of the
//! layouts and maps of `kernlane-image`, of the counters of `kernlane-emit`, and of the results of
//! `kernlane-replay`.

use emit::counting::Counters;
use image::BuildId;
use image::address::LinkAddr;
use image::map::PlacementMap;
use image::module::ModuleIdentity;
use image::order::{Layout, Run};
use image::place::{CallPadding, Ending, InPlaceOfCall, InlinedCall, PlacedBlock, Placement};
use layout::graph::{EdgeKind, SeedClass};
use profile::carry::carry;
use profile::{BlockEpochsTable, Process, Profile, ProfileMerge, ProfileSource};
use replay::results::ResultFile;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A text whose checksum is right, if it has one: the last line is `sha256 …` or `"sha256":"…"}`,
/// the SHA-256 of everything in front of it. Without this no damage would come farther than to the
/// checksum.
pub fn sealed(bytes: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let start = text.strip_suffix('\n').unwrap_or(text).rfind('\n').map_or(0, |at| at + 1);
    let (front, last) = text.split_at(start);
    let sum = || Sha256::digest(front).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Some(if last.starts_with("sha256 ") {
        format!("{front}sha256 {}\n", sum()).into()
    } else if last.starts_with("\"sha256\":\"") {
        format!("{front}\"sha256\":\"{}\"}}\n", sum()).into()
    } else {
        text.into()
    })
}

pub fn profiles(bytes: &[u8]) {
    let Some(text) = sealed(bytes) else { return };
    if let Ok(read) = Profile::from_json(&text) {
        // Whatever the shapes are: the blocks that get counts are blocks of the image.
        let image = image::examples::caller_and_callee(LinkAddr(0x7000));
        if let Ok(carried) = carry(&read, &image) {
            let is_block = |at: &LinkAddr| image.blocks.iter().any(|block| block.addr == *at);
            assert!(carried.profile.blocks.keys().all(is_block));
        }
        assert_eq!(Profile::from_json(&read.to_json()).ok(), Some(read));
    }
}

pub fn layouts(bytes: &[u8]) {
    let Some(text) = sealed(bytes) else { return };
    if let Ok(read) = Layout::from_text(&text) {
        assert_eq!(Layout::from_text(&read.to_text()), Ok(read));
    }
}

pub fn maps(bytes: &[u8]) {
    let Some(text) = sealed(bytes) else { return };
    if let Ok(read) = PlacementMap::from_text(&text) {
        for block in &read.placement.blocks {
            assert_eq!(read.placement.block_at(block.old), Some(block));
        }
        assert_eq!(PlacementMap::from_text(&read.to_text()), Ok(read));
    }
}

pub fn counters(bytes: &[u8]) {
    let Some(text) = sealed(bytes) else { return };
    if let Ok(read) = Counters::from_text(&text) {
        assert_eq!(Counters::from_text(&read.to_text()), Ok(read));
    }
}

pub fn results(bytes: &[u8]) {
    let Some(text) = sealed(bytes) else { return };
    let Ok(read) = ResultFile::from_json(&text) else { return };
    let text = read.to_json().expect("what was read can be written");
    assert_eq!(ResultFile::from_json(&text).ok(), Some(read));
}

fn build_id() -> BuildId {
    BuildId("5f3c".to_owned())
}

pub fn profile_seeds() -> Vec<Vec<u8>> {
    let (a, b) = (LinkAddr(0x1000), LinkAddr(0x1010));
    let blocks = BTreeMap::from([(a, 7), (b, 5)]);
    let whole = Profile {
        merge: ProfileMerge::Sum,
        sources: vec![ProfileSource {
            workload: "net".to_owned(),
            seed: 1,
            kernel_instructions: 900,
            user_instructions: 100,
            part: Some("1/2".to_owned()),
            recorded_on: Some(BuildId("00ae".to_owned())),
        }],
        edges: BTreeMap::from([((a, b), (EdgeKind::FallThrough, 5))]),
        calls: BTreeMap::from([((b, a), 2)]),
        seeds: BTreeMap::from([((a, SeedClass::SystemCall), 3)]),
        joint_misses: BTreeMap::from([((a, b), 4)]),
        temporal_edges: BTreeMap::from([((a, b), 6)]),
        block_epochs: BlockEpochsTable { words: 1, blocks: BTreeMap::from([(a, vec![5])]) },
        modules: vec![ModuleIdentity { name: "veth".to_owned(), build_id: "ca".to_owned() }],
        processes: BTreeMap::from([(
            "sh".to_owned(),
            Process { kernel_instructions: 9, user_instructions: 1, blocks: blocks.clone() },
        )]),
        outside: BTreeMap::from([(LinkAddr(0xffff_ffff_c000_0000), 9)]),
        blocks,
        ..Profile::empty(build_id())
    };
    let mut of_image = whole.clone();
    of_image.describe(&image::examples::caller_and_callee(a));
    vec![
        of_image.to_json().into(),
        whole.to_json().into(),
        Profile::empty(build_id()).to_json().into(),
    ]
}

pub fn layout_seeds() -> Vec<Vec<u8>> {
    let run = |start, size, name: &str| Run { start: LinkAddr(start), size, name: name.to_owned() };
    let whole = Layout {
        build_id: build_id(),
        modules: vec![ModuleIdentity { name: "veth".to_owned(), build_id: "ca".to_owned() }],
        algorithm: "ext-tsp".to_owned(),
        seed: 7,
        profile: "none".to_owned(),
        hot: 1,
        call_padding: CallPadding::Dropped,
        runs: vec![run(0xffff_ffff_8100_0010, 0x40, "f"), run(0xffff_ffff_8100_0000, 0x10, "g h")],
    };
    vec![whole.to_text().into(), Layout::original(build_id()).to_text().into()]
}

pub fn map_seeds() -> Vec<Vec<u8>> {
    let block = |old, new, appended, ending| PlacedBlock {
        old: LinkAddr(old),
        old_size: 0x10,
        new: LinkAddr(new),
        new_size: 0xe,
        appended,
        ending,
    };
    let blocks = vec![
        block(0xffff_ffff_8100_0000, 0xffff_ffff_8100_0020, 5, Ending::Inverted),
        block(0xffff_ffff_8100_0010, 0xffff_ffff_8100_0000, 0, Ending::JumpDropped),
        block(0xffff_ffff_8100_0020, 0xffff_ffff_8100_0010, 0, Ending::Same),
    ];
    let inlined = vec![
        InlinedCall {
            site: LinkAddr(0xffff_ffff_8100_0004),
            at: InlinedCall::BASE,
            code: InPlaceOfCall::Code(vec![(LinkAddr(0xffff_ffff_8100_0025), 0x10)]),
        },
        InlinedCall {
            site: LinkAddr(0xffff_ffff_8100_0014),
            at: LinkAddr(InlinedCall::BASE.0 + 0x20),
            code: InPlaceOfCall::Guard(LinkAddr(0xffff_ffff_8100_0020)),
        },
    ];
    let whole = PlacementMap {
        build_id: build_id(),
        placement: Placement { call_padding: CallPadding::Dropped, blocks, inlined },
    };
    vec![whole.to_text().into()]
}

pub fn counter_seeds() -> Vec<Vec<u8>> {
    let blocks = vec![LinkAddr(0x6002_0000), LinkAddr(0x6002_0010)];
    vec![Counters { build_id: build_id(), blocks }.to_text().into()]
}

pub fn result_seeds() -> Vec<Vec<u8>> {
    let rows = vec![replay::examples::original(), replay::examples::predicted()];
    vec![ResultFile::new(rows).to_json().expect("rows can be written").into()]
}
