//! Tests with instructions whose source lines are written down by hand.

use super::source::SourceFrame;
use super::*;
use image::{Block, BlockEnd, BuildId, ImageFunction};

const BASE: u64 = 0xffff_ffff_8100_0000;

/// An image of functions by name, each with blocks of 8 bytes, 0x100 bytes apart.
fn image_of(functions: &[(&str, u32)]) -> Image {
    let block = |addr| Block {
        addr: LinkAddr(addr),
        size: 8,
        end: BlockEnd::Stop,
        glued: false,
        patched: false,
    };
    let (mut blocks, mut made) = (Vec::new(), Vec::new());
    for (number, &(name, count)) in functions.iter().enumerate() {
        let (addr, first) = (BASE + 0x100 * number as u64, blocks.len() as u32);
        blocks.extend((0..count).map(|n| block(addr + 8 * u64::from(n))));
        made.push(ImageFunction {
            name: name.to_owned(),
            addr: LinkAddr(addr),
            size: 8 * u64::from(count),
            blocks: first..first + count,
            section: ".text".to_owned(),
            stays: None,
        });
    }
    Image {
        build_id: BuildId("5f3c".into()),
        entry_padding: 0,
        call_padding: image::place::CallPadding::Kept,
        entry_alignment: 16,
        functions: made,
        blocks,
        modules: Vec::new(),
    }
}

/// A position in a function that begins on line 10.
fn frame(function: &str, line: u64, discriminator: u32) -> SourceFrame {
    let file = "f.c".to_owned();
    let (function, start_file) = (function.to_owned(), file.clone());
    SourceFrame { function, line, start_line: 10, discriminator, file, start_file }
}

fn text(samples: &Samples) -> String {
    String::from_utf8(samples.contents.clone()).unwrap()
}

fn at(function: &str, line: u64) -> Located {
    Located::from(vec![frame(function, line, 0)])
}

/// One instruction of 8 bytes for each block, with its count and its source line.
struct Case {
    image: Image,
    profile: Profile,
    code: Vec<(u64, Located)>,
}

impl Case {
    fn new(functions: &[(&str, u32)], code: Vec<(u64, Located)>) -> Self {
        let image = image_of(functions);
        let profile = Profile::empty(image.build_id.clone());
        Case { image, profile, code }
    }

    fn samples(self, discriminators: Discriminators) -> Samples {
        let one = |(block, &(count, _)): (&Block, &(u64, Located))| Instruction {
            addr: block.addr,
            bytes: 8,
            block: self.image.block_at(block.addr).unwrap(),
            count,
        };
        let instructions: Vec<_> = self.image.blocks.iter().zip(&self.code).map(one).collect();
        let located = self.code.into_iter().map(|(_, located)| located).collect();
        let located = LocatedCode { instructions: located, discriminators };
        written(gathered(&self.image, &self.profile, &instructions, located).unwrap())
    }

    fn text(self) -> String {
        text(&self.samples(Discriminators::Encoded))
    }
}

#[test]
fn code_that_did_not_run_has_a_line_with_zero_in_a_function_that_ran() {
    let code = vec![(5, at("f", 11)), (0, at("f", 12)), (0, at("g", 11))];
    assert_eq!(Case::new(&[("f", 2), ("g", 1)], code).text(), "f:40:5\n 1: 5\n 2: 0\n");
}

#[test]
fn inlined_functions_are_nested_and_totals_are_bytes_that_ran() {
    let inlined = Located::from(vec![frame("tiny", 13, 0), frame("f", 15, 2)]);
    let code = vec![(5, at("f", 11)), (7, inlined)];
    assert_eq!(Case::new(&[("f", 2)], code).text(), "f:96:5\n 1: 5\n 5.1: tiny:56\n  3: 7\n");
}

#[test]
fn a_line_has_the_count_of_its_most_executed_instruction() {
    let code = vec![(5, at("f", 11)), (9, at("f", 11)), (7, at("f", 11))];
    assert_eq!(Case::new(&[("f", 3)], code).text(), "f:168:5\n 1: 9\n");
}

#[test]
fn a_line_of_another_file_or_in_front_of_the_function_is_none() {
    let elsewhere = SourceFrame { file: "g.h".to_owned(), ..frame("tiny", 13, 0) };
    let inlined = |innermost| Located::from(vec![innermost, frame("f", 15, 2)]);
    let code = vec![(5, at("f", 11)), (7, inlined(elsewhere)), (7, inlined(frame("tiny", 9, 0)))];
    let samples = Case::new(&[("f", 3)], code).samples(Discriminators::Encoded);
    assert_eq!(text(&samples), "f:40:5\n 1: 5\n");
    assert_eq!((samples.coverage.with_line, samples.coverage.without_line), (5, 14));
}

#[test]
fn calls_through_thunks_are_counted_and_have_no_callee() {
    let code = vec![(5, at("f", 11)), (15, at("f", 12)), (5, Located::NoFunction)];
    let mut case = Case::new(&[("f", 2), ("__x86_indirect_thunk_r11", 1)], code);
    let thunk = LinkAddr(BASE + 0x100);
    case.profile.calls.insert((LinkAddr(BASE), thunk), 5);
    case.profile.calls.insert((LinkAddr(BASE + 8), LinkAddr(BASE)), 15);
    let samples = case.samples(Discriminators::Encoded);
    assert_eq!(text(&samples), "f:160:5\n 1: 5\n 2: 15 f:15\n");
    assert_eq!((samples.coverage.calls, samples.coverage.through_thunks), (20, 5));
    let notes = samples.coverage.notes();
    assert!(notes.iter().any(|note| note.starts_with("25.0 % of the calls")), "{notes:?}");
}

#[test]
fn code_that_was_unrolled_eight_times_ran_eight_times_as_often() {
    // What clang 22 writes for a loop that it unrolls eight times: block 0, factor 8.
    let unrolled = || vec![(5, Located::from(vec![frame("f", 11, 33)]))];
    assert_eq!(Case::new(&[("f", 1)], unrolled()).text(), "f:40:5\n 1: 40\n");
    // A flow-sensitive discriminator has no factor. LLVM reads all of its bits.
    let flow = Case::new(&[("f", 1)], unrolled()).samples(Discriminators::FlowSensitive);
    assert_eq!(text(&flow), "f:40:5\n 1.33: 5\n");
    assert!(flow.coverage.flow_sensitive);
    // clang would take a number of gcc's for something else.
    let foreign = Case::new(&[("f", 1)], unrolled()).samples(Discriminators::Foreign);
    assert_eq!(text(&foreign), "f:40:5\n 1: 5\n");
    assert!(!foreign.coverage.discriminators);
}

#[test]
fn static_functions_of_one_name_are_added_and_not_compared() {
    let code = vec![(5, at("f", 11)), (7, at("f", 11))];
    assert_eq!(Case::new(&[("f", 1), ("f", 1)], code).text(), "f:96:12\n 1: 12\n");
}

#[test]
fn a_part_that_was_set_aside_belongs_to_its_function_and_is_no_entry() {
    let code = vec![(5, at("f", 11)), (2, at("f", 11)), (2, at("f", 14))];
    // Line 11 is in both parts: one is not added to the other.
    let text = Case::new(&[("f", 1), ("f.cold", 2)], code).text();
    assert_eq!(text, "f:72:5\n 1: 5\n 4: 2\n");
}

#[test]
fn a_loop_back_to_the_entry_is_no_entry() {
    let mut case = Case::new(&[("f", 2)], vec![(9, at("f", 11)), (9, at("f", 12))]);
    let ends = (LinkAddr(BASE + 8), LinkAddr(BASE));
    case.profile.edges.insert(ends, (EdgeKind::Branch, 6));
    assert_eq!(case.text(), "f:144:3\n 1: 9\n 2: 9\n");
}

#[test]
fn callees_and_entered_functions_have_the_names_of_the_source() {
    let code = vec![(5, at("f", 11)), (5, at("g", 12))];
    let mut case = Case::new(&[("f", 1), ("g.llvm.77", 1)], code);
    case.profile.calls.insert((LinkAddr(BASE), LinkAddr(BASE + 0x100)), 5);
    assert_eq!(case.text(), "f:40:5\n 1: 5 g:5\ng:40:5\n 2: 5\n");
    // With ThinLTO, DWARF has the number as well.
    let code = vec![(5, at("f", 11)), (5, at("g.llvm.77", 12))];
    let mut case = Case::new(&[("f", 1), ("g.llvm.77", 1)], code);
    case.profile.calls.insert((LinkAddr(BASE), LinkAddr(BASE + 0x100)), 5);
    assert_eq!(case.text(), "f:40:5\n 1: 5 g:5\ng:40:5\n 2: 5\n");
}

#[test]
fn a_jump_to_another_function_is_a_call_and_a_jump_to_a_part_is_none() {
    let code = vec![(5, at("f", 11)), (4, at("f", 12)), (4, at("g", 12)), (1, at("f", 13))];
    let mut case = Case::new(&[("f", 2), ("g", 1), ("f.cold", 1)], code);
    for (from, to, kind, count) in [
        (8, 0x100, EdgeKind::Indirect, 4),
        (0, 0x200, EdgeKind::Branch, 1),
        (8, 0, EdgeKind::Jump, 1),
        (0, 8, EdgeKind::FallThrough, 4),
    ] {
        case.profile.edges.insert((LinkAddr(BASE + from), LinkAddr(BASE + to)), (kind, count));
    }
    assert_eq!(case.text(), "f:80:4\n 1: 5\n 2: 4 g:4\n 3: 1\ng:32:4\n 2: 4\n");
}

#[test]
fn counts_fit_the_weights_of_llvm_and_one_stays_one() {
    let code = vec![(3 << 30, at("f", 11)), (1, at("f", 12)), (0, at("f", 13))];
    let samples = Case::new(&[("f", 3)], code).samples(Discriminators::Encoded);
    assert_eq!(samples.coverage.divided, 4);
    let (count, total) = (3 << 28, (3_u64 << 33) / 4 + 2);
    assert_eq!(text(&samples), format!("f:{total}:{count}\n 1: {count}\n 2: 1\n 3: 0\n"));
    assert!(samples.coverage.notes().iter().any(|note| note.contains("divided by 4")));
    let code = vec![(u64::MAX, at("f", 11)), (u64::MAX, at("f", 12))];
    let text = Case::new(&[("f", 2)], code).text();
    assert!(text.ends_with(" 1: 1073741823\n 2: 1073741823\n"), "{text}");
}

#[test]
fn the_coverage_says_why_instructions_have_no_line() {
    let no_line = || Located::from(vec![frame("f", 0, 0)]);
    let assembly = Located::from(vec![SourceFrame { start_line: 0, ..frame("memcpy", 7, 0) }]);
    let mut case = Case::new(
        &[("f", 3), ("memcpy", 1)],
        vec![(60, at("f", 11)), (20, no_line()), (10, no_line()), (5, assembly)],
    );
    case.profile.outside.insert(LinkAddr(BASE + 0x900), 5);
    // The second instruction is in the first one's block.
    case.image.blocks.remove(1);
    case.image.functions[0].blocks = 0..2;
    case.image.functions[1].blocks = 2..3;
    let addr = |block: u32| case.image.blocks[block as usize].addr;
    let one =
        |block, count| Instruction { addr: addr(block), bytes: 8, block: BlockIndex(block), count };
    let instructions = [one(0, 60), one(0, 20), one(1, 10), one(2, 5)];
    let located = case.code.iter().map(|(_, located)| located.clone()).collect();
    let located = LocatedCode { instructions: located, discriminators: Discriminators::Encoded };
    let functions = gathered(&case.image, &case.profile, &instructions, located).unwrap();
    let coverage = functions.coverage;
    assert_eq!((coverage.with_line, coverage.block_with_line, coverage.without_line), (60, 20, 10));
    assert_eq!((coverage.assembly, coverage.outside), (5, 5));
    assert_eq!(coverage.share_of_lines(), 60.0 / 90.0);
    assert_eq!(coverage.share(), 80.0 / 90.0);
    assert_eq!(coverage.share_of_assembly(), 0.05);
    let notes = coverage.notes();
    assert_eq!(
        notes[0],
        "66.7 % of the executed instructions of compiled functions have a source line, and 88.9 % \
         are in a block that has one; 5.0 % of all are assembly"
    );
    assert!(notes[1].contains("-fdebug-info-for-profiling"), "{notes:?}");
}
