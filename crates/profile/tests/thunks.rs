//! What goes to a thunk counts as the indirect branch in whose place the thunk stands.

use image::address::LinkAddr;
use image::ordinary::ReservedCode;
use image::{Block, BlockEnd, Image, ImageFunction, examples};
use kernlane_profile::Profile;
use kernlane_profile::collect::{ExtraCounts, collect};
use layout::graph::EdgeKind;
use std::collections::BTreeMap;
use trace::{
    CpuCount, CpuId, RecordingHeader, RecordingReader, RecordingWriter, RunAddr, StreamEvent,
    Translation, TranslationId,
};

const KERNEL: u64 = 0xffff_ffff_8100_0000;
/// A thunk that the kernel made when it booted.
const MADE_AT_BOOT: u64 = 0xffff_ffff_c000_0000;

const CALL: u32 = 0;
const JUMP: u32 = 1;
const THUNK: u32 = 2;
const THUNKS_RETURN: u32 = 3;
const G: u32 = 4;
const AFTER_CALL: u32 = 5;
const INTERRUPT: u32 = 6;
const CALL_OF_MADE: u32 = 7;
const MADE: u32 = 8;

/// `f` and `g`, of which `f` calls a retpoline now, and:
///
/// ```text
/// +40 h: jmp thunk              +80 asm_sysvec_x: iretq
/// +60 __x86_indirect_thunk_rax: call +66; lfence
/// +66    mov %rax,(%rsp); ret
/// ```
fn image() -> Image {
    let mut image = examples::caller_and_callee(LinkAddr(KERNEL));
    image.blocks[1].end = BlockEnd::Call(Some(LinkAddr(KERNEL + 0x60)));
    let mut add = |name: &str, stays, blocks: &[(u64, u32, BlockEnd)]| {
        let first = image.blocks.len() as u32;
        image.functions.push(ImageFunction {
            name: name.to_owned(),
            addr: LinkAddr(KERNEL + blocks[0].0),
            size: blocks.iter().map(|&(_, size, _)| u64::from(size)).sum(),
            blocks: first..first + blocks.len() as u32,
            section: ".text".to_owned(),
            stays,
        });
        image.blocks.extend(blocks.iter().map(|&(offset, size, end)| Block {
            addr: LinkAddr(KERNEL + offset),
            size,
            end,
            glued: false,
            patched: false,
        }));
    };
    let thunk = LinkAddr(KERNEL + 0x60);
    add("h", None, &[(0x40, 5, BlockEnd::Jump(thunk))]);
    let inner = LinkAddr(KERNEL + 0x66);
    add(
        "__x86_indirect_thunk_rax",
        Some(ReservedCode::Thunks),
        &[(0x60, 6, BlockEnd::Call(Some(inner))), (0x66, 5, BlockEnd::Stop)],
    );
    add("asm_sysvec_x", Some(ReservedCode::Entry), &[(0x80, 2, BlockEnd::Stop)]);
    image
}

fn translations() -> Vec<Translation> {
    let translation = |id, addr, lengths: &[u8], code: &[u8]| Translation {
        id: TranslationId(id),
        addr: RunAddr(addr),
        lengths: lengths.into(),
        code: code.into(),
    };
    let call_of_made = (MADE_AT_BOOT - (KERNEL + 9)) as u32;
    let call_of_made = [&[0xe8][..], &call_of_made.to_le_bytes()].concat();
    vec![
        translation(CALL, KERNEL + 4, &[5], &[0xe8, 0x57, 0, 0, 0]),
        translation(JUMP, KERNEL + 0x40, &[5], &[0xe9, 0x1b, 0, 0, 0]),
        translation(THUNK, KERNEL + 0x60, &[5], &[0xe8, 1, 0, 0, 0]),
        translation(THUNKS_RETURN, KERNEL + 0x66, &[4, 1], &[0x48, 0x89, 0x04, 0x24, 0xc3]),
        translation(G, KERNEL + 0x20, &[1, 1], &[0x90, 0xc3]),
        translation(AFTER_CALL, KERNEL + 9, &[1, 1], &[0x90, 0xc3]),
        translation(INTERRUPT, KERNEL + 0x80, &[2], &[0x48, 0xcf]),
        translation(CALL_OF_MADE, KERNEL + 4, &[5], &call_of_made),
        translation(MADE, MADE_AT_BOOT, &[2], &[0xff, 0xe0]),
    ]
}

fn run(id: u32) -> StreamEvent {
    StreamEvent::Executed(TranslationId(id))
}

fn profile_of(events: &[StreamEvent]) -> Profile {
    let cpus = CpuCount::new(2).unwrap();
    let header = RecordingHeader { build_id: "5f3c".into(), cpus, ..RecordingHeader::default() };
    let mut writer = RecordingWriter::new(Vec::new(), &header).unwrap();
    writer.translations(&translations()).unwrap();
    let mut words = Vec::new();
    events.iter().for_each(|event| event.append_to(&mut words));
    writer.stream(&words).unwrap();
    let (bytes, _) = writer.end().unwrap();
    collect(RecordingReader::new(&bytes[..]).unwrap(), &image(), ExtraCounts::None).unwrap()
}

fn calls(profile: &Profile) -> BTreeMap<(u64, u64), u64> {
    let offset = |addr: LinkAddr| addr.0 - KERNEL;
    profile.calls.iter().map(|(&(from, to), &count)| ((offset(from), offset(to)), count)).collect()
}

fn edge(profile: &Profile, from: u64, to: u64) -> Option<(EdgeKind, u64)> {
    profile.edges.get(&(LinkAddr(KERNEL + from), LinkAddr(KERNEL + to))).copied()
}

#[test]
fn a_call_through_a_retpoline_calls_its_target() {
    let profile = profile_of(&[run(CALL), run(THUNK), run(THUNKS_RETURN), run(G), run(AFTER_CALL)]);
    assert_eq!(calls(&profile), BTreeMap::from([((4, 0x20), 1)]));
    // The return.
    assert_eq!(edge(&profile, 4, 9), Some((EdgeKind::FallThrough, 1)));
    assert_eq!(profile.edges.len(), 1);
}

#[test]
fn a_jump_through_a_retpoline_leads_to_its_target() {
    let profile = profile_of(&[run(JUMP), run(THUNK), run(THUNKS_RETURN), run(G)]);
    assert_eq!(calls(&profile), BTreeMap::new());
    assert_eq!(edge(&profile, 0x40, 0x20), Some((EdgeKind::Indirect, 1)));
    assert_eq!(profile.edges.len(), 1);
}

#[test]
fn a_thunk_that_is_in_no_file_stands_in_the_place_of_the_files() {
    let profile = profile_of(&[run(CALL_OF_MADE), run(MADE), run(G), run(AFTER_CALL)]);
    assert_eq!(calls(&profile), BTreeMap::from([((4, 0x20), 1)]));
}

#[test]
fn an_interrupt_in_a_thunk_is_not_its_target() {
    let events = [run(CALL), run(THUNK), run(INTERRUPT), run(THUNKS_RETURN), run(G)];
    let profile = profile_of(&events);
    assert_eq!(calls(&profile), BTreeMap::new());
    assert_eq!(edge(&profile, 0x66, 0x20), Some((EdgeKind::Indirect, 1)));
}

#[test]
fn each_cpu_is_in_a_thunk_of_its_own() {
    let cpu = |cpu| StreamEvent::Cpu(CpuId(cpu));
    let profile = profile_of(&[
        cpu(0),
        run(CALL),
        run(THUNK),
        cpu(1),
        run(AFTER_CALL),
        cpu(0),
        run(THUNKS_RETURN),
        run(G),
    ]);
    assert_eq!(calls(&profile), BTreeMap::from([((4, 0x20), 1)]));
}
