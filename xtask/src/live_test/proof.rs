//! Whether copies are right, and whether the proof of that would notice if they were not. Needs no
//! guest: the file stands for the running kernel.
//!
//! Takes a vmlinux. Every function that can be replaced is copied in its original order and proven;
//! then single bits of a shuffled group's code are flipped, each of which the proof must find.

use anyhow::{Context, Result, ensure};
use check::module::check_module;
use emit::module::{Plan, emit};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use live::group::{FileMemory, Group};
use live::install::{claims, loading};
use live::survey::survey;

/// Of the functions that have a tracer's site.
const REPLACEABLE: f64 = 0.85;

/// What a module's `.text` begins behind: the file's header.
const TEXT_AT: usize = 64;

/// Those of them that hold no constant that the kernel fills in at boot: such a field the proof
/// takes as it is, since `live::explain` has compared it with memory.
const FUNCTIONS: [&str; 5] =
    ["vfs_read", "tcp_v4_rcv", "vfs_open", "kmem_cache_alloc_noprof", "do_filp_open"];

pub fn proof(vmlinux: &[u8]) -> Result<()> {
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
    let flipped = flips_are_found(&kernel, &memory)?;
    println!("passed: each of {flipped} flipped bits is found");
    Ok(())
}

fn flips_are_found(kernel: &LinkedKernel<'_>, memory: &FileMemory<'_, '_>) -> Result<usize> {
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
    let group = Group::new(kernel, memory, &chosen)?;
    ensure!(!group.members.is_empty(), "none of {FUNCTIONS:?} can be replaced");
    let order = kernlane_layout::order(&group.graph(None), kernlane_layout::Algorithm::Random, 1)?;
    let order: Vec<u32> = order.order.0.iter().map(|block| block.0).collect();
    let plan = Plan { name: "kernlane_flips", order: &order, counters: &[], padding: 0 };
    let module = emit(&group.original, &plan, &loading(kernel)?)?;
    let claims = claims(&group, &module);
    check_module(kernel, 0, &module.bytes, &claims).context("the unharmed module")?;
    let mut damaged = module.bytes.clone();
    let mut flipped = 0;
    for at in TEXT_AT..TEXT_AT + module.text_size as usize {
        // A field that a relocation fills is zero, and not what the kernel will run.
        if damaged[at] == 0 {
            continue;
        }
        damaged[at] ^= 1 << (at % 8);
        let missed = check_module(kernel, 0, &damaged, &claims).is_ok();
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
