//! Whether copies are right, and whether the proof of that would notice if they were not. Needs no
//! guest: the file stands for the running kernel.
//!
//! Takes a vmlinux. Every function that can be replaced is copied in its original order and proven;
//! then single bits of a shuffled group's code are flipped, each of which the proof must find, and
//! what the module says of its copies is changed. The
//! same is done with counters in the copies, as `kernlane live watch` puts them there; and the
//! proof must refuse counters where flags are needed. Every call that can be inlined is inlined,
//! and proven.

use anyhow::{Context, Result, bail, ensure};
use check::module::check_module;
use emit::module::{InPlace, InlinableBody, InlinedCall, ModulePlan, NUMBER, TextPage, emit};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::object::functions::TextFunction;
use image::object::instructions::InstructionKind;
use image::object::pieces::PieceExit;
use live::counters;
use live::eligible::{Unfit, tracer_site};
use live::group::Group;
use live::install::{claims, loading, prove};
use live::memory::FileMemory;
use live::survey::survey;
use std::collections::HashMap;

/// Bytes of the jump at an entry.
const JUMP: u32 = 5;

/// Of the functions that have a tracer's site.
const REPLACEABLE: f64 = 0.85;

/// Of the blocks of these.
const COUNTED: f64 = 0.90;

/// What a module's `.text` begins behind: the file's header.
const TEXT_AT: usize = 64;

/// Those of them that hold no constant that the kernel fills in at boot: such a field the proof
/// takes as it is, since `live::explain` has compared it with memory.
const FUNCTIONS: [&str; 6] = [
    "vfs_read",
    "tcp_v4_rcv",
    "vfs_open",
    "kmem_cache_alloc_noprof",
    "kmem_cache_alloc",
    "do_filp_open",
];

/// Gives the functions that can be replaced, and those with a tracer's site.
pub(super) fn proof(vmlinux: &[u8]) -> Result<(usize, usize)> {
    let kernel = LinkedKernel::parse(vmlinux)?;
    let memory = FileMemory(&kernel);
    let found = survey(&kernel, &memory, true, &|_| {})?;
    ensure!(
        found.refuted.is_empty() && found.proven == found.replaceable,
        "{} copies are not equal; the first: {:?}",
        found.refuted.len(),
        found.refuted.first()
    );
    let part = found.replaceable as f64 / found.traced_functions.max(1) as f64;
    ensure!(part >= REPLACEABLE, "only {:.1} % of the functions can be replaced", 100.0 * part);
    println!(
        "passed: {} of {} functions with a tracer's site ({:.1} %) are copied and equal",
        found.proven,
        found.traced_functions,
        100.0 * part
    );
    for counts in [false, true] {
        let flipped = flips_are_found(&kernel, &memory, counts)?;
        let which = if counts { "with counters" } else { "without counters" };
        println!("passed: each of {flipped} flipped bits is found, {which}");
    }
    wrong_pairs_are_found(&kernel, &memory)?;
    counters_are_proven(&kernel, &memory)?;
    inlined_calls_are_proven(&kernel, &memory)?;
    needed_flags_are_found(&kernel, &memory)?;
    Ok((found.proven, found.traced_functions))
}

/// Some functions that branch into the bytes where the jump would be, behind its first byte. The
/// module must also refuse them.
pub(super) fn entered(vmlinux: &[u8]) -> Result<Vec<String>> {
    let kernel = LinkedKernel::parse(vmlinux)?;
    let found = survey(&kernel, &FileMemory(&kernel), false, &|_| {})?;
    let reason = Unfit::EnteredEntry.to_string();
    let left_out: Vec<&str> =
        found.left_out.iter().filter(|f| f.reason == reason).map(|f| f.name.as_str()).collect();
    let branches_into_jump = |function: &&TextFunction| {
        let Some(skip) = tracer_site(&kernel, function) else { return false };
        let jump = function.at + skip + 1..function.at + skip + JUMP;
        let code = kernel.instructions(function);
        code.iter().any(|i| {
            let branch = matches!(i.kind, InstructionKind::Jump | InstructionKind::Branch);
            branch && jump.contains(&i.target)
        })
    };
    let chosen = kernel.functions.iter().filter(branches_into_jump);
    let names = chosen.map(|f| kernel.function_name(f).to_owned());
    Ok(names.filter(|name| left_out.contains(&name.as_str())).take(20).collect())
}

/// Each call of a function that lies near the caller, and each indirect call as one of such a
/// function, with the blocks in another order.
fn inlined_calls_are_proven(kernel: &LinkedKernel<'_>, memory: &FileMemory<'_, '_>) -> Result<()> {
    let (mut inlined, mut promoted, mut callees) = (0, 0, [0, 0]);
    let all: Vec<usize> = (0..kernel.functions.len()).collect();
    for chosen in all.chunks(AT_ONCE) {
        let mut group = Group::new(kernel, memory, chosen)?;
        if group.members.is_empty() {
            continue;
        }
        let original = &group.original;
        let mut bodies: HashMap<u32, Option<InlinableBody>> = HashMap::new();
        let mut calls = Vec::new();
        for (n, piece) in original.pieces.iter().enumerate() {
            let mut fits = |at: u32, callee: u32| {
                let body = bodies.entry(callee).or_insert_with(|| original.inlinable(callee).ok());
                let frame = original.caller_frame(at);
                let fits = frame.is_ok_and(|frame| body.as_ref().is_some_and(|b| b.fits(frame)));
                fits && callee != piece.function
            };
            for (at, callee) in original.plain_calls(n) {
                if fits(at, callee) {
                    calls.push(InlinedCall { context: 0, at, code: InPlace::Code(callee) });
                    inlined += 1;
                }
            }
            for call in original.indirect_calls(n) {
                let (callee, _) = group.members[promoted % group.members.len()];
                let entry = original.functions[callee as usize].at;
                let code = match promoted % 2 == 0 && fits(call.at, callee) {
                    true => InPlace::Code(callee),
                    false => InPlace::Call(kernel.link_address(entry)),
                };
                calls.push(InlinedCall { context: 0, at: call.at, code });
                promoted += 1;
            }
        }
        callees[0] += bodies.values().flatten().count();
        callees[1] += bodies.len();
        group.original = group.original.inline(&calls)?;
        let order: Vec<u32> = (0..group.original.pieces.len() as u32).rev().collect();
        let plan = ModulePlan {
            name: "kernlane_inlined",
            number: [0; NUMBER],
            order: &order,
            counters: &[],
            padding: 0,
            page: TextPage::Small,
        };
        let module = emit(&group.original, &plan, &loading(kernel)?)?;
        prove(&group, &module)?;
    }
    let [fit, called] = callees;
    ensure!(inlined > 1000, "only {inlined} calls were inlined");
    ensure!(promoted > 1000, "only {promoted} calls were promoted");
    println!(
        "passed: each of {inlined} inlined and {promoted} promoted calls is proven, of {fit} \
         functions of {called} ({:.1} %)",
        100.0 * f64::from(fit as u32) / f64::from(called.max(1) as u32)
    );
    Ok(())
}

/// Functions that are copied together.
const AT_ONCE: usize = 500;

/// Every function that can be replaced, with all the counters that find a place.
fn counters_are_proven(kernel: &LinkedKernel<'_>, memory: &FileMemory<'_, '_>) -> Result<()> {
    let (mut counters, mut blocks) = (0, 0);
    let all: Vec<usize> = (0..kernel.functions.len()).collect();
    for chosen in all.chunks(AT_ONCE) {
        let group = Group::new(kernel, memory, chosen)?;
        if group.members.is_empty() {
            continue;
        }
        let order: Vec<u32> = (0..group.original.pieces.len() as u32).collect();
        let places = counters::places(&group);
        let plan = ModulePlan {
            name: "kernlane_counts",
            number: [0; NUMBER],
            order: &order,
            counters: &places,
            padding: 0,
            page: TextPage::Small,
        };
        let module = emit(&group.original, &plan, &loading(kernel)?)?;
        prove(&group, &module)?;
        ensure!(
            module.counted.len() == places.iter().flatten().count(),
            "{} counters of {}",
            module.counted.len(),
            places.iter().flatten().count()
        );
        counters += module.counted.len();
        blocks += places.len();
    }
    let part = counters as f64 / blocks.max(1) as f64;
    ensure!(part >= COUNTED, "only {:.1} % of the blocks can be counted", 100.0 * part);
    println!("passed: {counters} counters in {blocks} blocks are proven to change nothing");
    Ok(())
}

/// In front of a block's conditional branch, which needs them.
fn needed_flags_are_found(kernel: &LinkedKernel<'_>, memory: &FileMemory<'_, '_>) -> Result<()> {
    let group = Group::new(kernel, memory, &functions_without_constants(kernel))?;
    let pieces = &group.original.pieces;
    let order: Vec<u32> = (0..pieces.len() as u32).collect();
    let mut refused = 0;
    for (n, piece) in pieces.iter().enumerate() {
        let (PieceExit::Branch(_), true) = (piece.exit, piece.tail > 0 && !piece.pinned) else {
            continue;
        };
        let branch = kernel.link_address(piece.end() - u32::from(piece.tail));
        let jumps_by_count = matches!(kernel.bytes(branch, 1), Some([0xe0..=0xe3]));
        if jumps_by_count {
            continue;
        }
        let mut places = vec![None; pieces.len()];
        places[n] = Some(branch);
        let plan = ModulePlan {
            name: "kernlane_flags",
            number: [0; NUMBER],
            order: &order,
            counters: &places,
            padding: 0,
            page: TextPage::Small,
        };
        // Where the unwinder's state forbids a counter none is written.
        let Ok(module) = emit(&group.original, &plan, &loading(kernel)?) else { continue };
        let outcome = check_module(kernel, 0, &module.bytes, &claims(&group, &module), &[]);
        let carry = matches!(kernel.bytes(branch, 2), Some([0x72 | 0x73, _] | [0x0f, 0x82 | 0x83]));
        match outcome {
            Err(error) if format!("{error:#}").contains("needs a flag") => refused += 1,
            // Carry is the one flag that counting leaves alone.
            _ if carry => {}
            other => bail!("a counter in front of the branch at {branch}: {other:?}"),
        }
    }
    ensure!(refused >= 100, "only {refused} counters were refused");
    println!("passed: each of {refused} counters where flags are needed is refused");
    Ok(())
}

/// Of the section `.kernlane`: where its number begins and ends, where the number of its holders of
/// other functions' code stands, and where its pairs begin. The holders stand behind the pairs.
const NUMBER_AT: usize = 16;
const NUMBER_END: usize = 32;
const HOLDERS_AT: usize = 40;
const PAIRS_AT: usize = 48;
/// Bytes of a relocation, and where its addend stands.
const RELOCATION: usize = 24;
const ADDEND_AT: usize = 16;

/// Each bit of what a module says of its copies, but its number; and the copies of two functions.
fn wrong_pairs_are_found(kernel: &LinkedKernel<'_>, memory: &FileMemory<'_, '_>) -> Result<()> {
    let group = Group::new(kernel, memory, &functions_without_constants(kernel))?;
    let order: Vec<u32> = (0..group.original.pieces.len() as u32).collect();
    let plan = ModulePlan {
        name: "kernlane_pairs",
        number: [0; NUMBER],
        order: &order,
        counters: &[],
        padding: 0,
        page: TextPage::Small,
    };
    let module = emit(&group.original, &plan, &loading(kernel)?)?;
    let claims = claims(&group, &module);
    let is_found = |bytes: &[u8]| match check_module(kernel, 0, bytes, &claims, &[]) {
        Err(error) if format!("{error:#}").contains(".kernlane") => Ok(()),
        other => bail!("wrong pairs are not found: {other:?}"),
    };
    let mut damaged = module.bytes.clone();
    let section = damaged.windows(16).position(|bytes| bytes == b"kernlane's pairs");
    let section = section.context("the module has no pairs")?;
    let word = |at: usize| {
        module.bytes[at..at + 8].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
    };
    let holders = word(section + HOLDERS_AT) as usize;
    let end = PAIRS_AT + 8 * (group.members.len() + holders);
    for bit in (0..8 * NUMBER_AT).chain(8 * NUMBER_END..8 * end) {
        let byte = section + bit / 8;
        damaged[byte] ^= 1 << (bit % 8);
        is_found(&damaged)?;
        damaged[byte] ^= 1 << (bit % 8);
    }
    // Its relocations begin with the first pair's. Those of a table begin at 0.
    let relocations = (RELOCATION..damaged.len() - 4 * RELOCATION).find(|&at| {
        (0..4).all(|n| word(at + n * RELOCATION) == (PAIRS_AT + 4 * n) as u64)
            && word(at - RELOCATION) != PAIRS_AT as u64 - 4
    });
    let first = relocations.context("the pairs have no relocations")? + RELOCATION + ADDEND_AT;
    let second = first + 2 * RELOCATION;
    damaged.copy_within(second..second + 8, first);
    damaged[second..second + 8].copy_from_slice(&module.bytes[first..first + 8]);
    is_found(&damaged)?;
    println!("passed: each wrong pair of function and copy is found");
    Ok(())
}

fn functions_without_constants(kernel: &LinkedKernel<'_>) -> Vec<usize> {
    let mut chosen: Vec<usize> = FUNCTIONS
        .iter()
        .flat_map(|name| kernel.addresses_of(name))
        .filter_map(|&at| kernel.function_at(LinkAddr(at)))
        .filter(|&index| {
            let function = &kernel.functions[index];
            let range = kernel.link_address(function.at).0..kernel.link_address(function.end).0;
            !kernel.tables.constants.iter().any(|(at, _)| range.contains(at))
        })
        .collect();
    chosen.sort_unstable();
    chosen
}

fn flips_are_found(
    kernel: &LinkedKernel<'_>,
    memory: &FileMemory<'_, '_>,
    counts: bool,
) -> Result<usize> {
    let chosen = functions_without_constants(kernel);
    let group = Group::new(kernel, memory, &chosen)?;
    ensure!(!group.members.is_empty(), "none of {FUNCTIONS:?} can be replaced");
    let order = kernlane_layout::order(&group.graph(None), kernlane_layout::Algorithm::Random, 1)?;
    let order: Vec<u32> = order.order.0.iter().map(|block| block.0).collect();
    let places = if counts { counters::places(&group) } else { Vec::new() };
    let plan = ModulePlan {
        name: "kernlane_flips",
        number: [0; NUMBER],
        order: &order,
        counters: &places,
        padding: 0,
        page: TextPage::Small,
    };
    let module = emit(&group.original, &plan, &loading(kernel)?)?;
    let claims = claims(&group, &module);
    check_module(kernel, 0, &module.bytes, &claims, &[]).context("the unharmed module")?;
    let mut damaged = module.bytes.clone();
    let mut flipped = 0;
    for at in TEXT_AT..TEXT_AT + module.text_size as usize {
        // A field that a relocation fills is zero, and not what the kernel will run.
        if damaged[at] == 0 {
            continue;
        }
        damaged[at] ^= 1 << (at % 8);
        let missed = check_module(kernel, 0, &damaged, &claims, &[]).is_ok();
        ensure!(
            !missed,
            "bit {} of .text+{:#x} was flipped, and the proof holds",
            at % 8,
            at - TEXT_AT
        );
        damaged[at] = module.bytes[at];
        flipped += 1;
    }
    Ok(flipped)
}
