//! Which functions to begin with: those in which the kernel spends its time, and which no direct call leads to.
//!
//! Takes sampled stacks; gives functions. What a root calls directly is found by counting (`live::watch`); what is called through a pointer is not, as
//! the paper notes (Tamches 2001, sections 2.1.2 and 5.4). A sampled stack shows it: such a callee becomes a root of its own.

use crate::image::address::LinkAddr;
use crate::image::linked::LinkedKernel;
use anyhow::Result;
use std::collections::HashMap;

/// Bytes of a direct call, and of a call to a retpoline.
const CALL: u64 = 5;

/// A function to begin with.
#[derive(Clone, Debug, PartialEq)]
pub struct Root {
    /// Index into the kernel's functions.
    pub function: usize,
    /// Part of the kernel's samples that have it on the stack.
    pub share: f64,
}

#[derive(Default)]
struct Seen {
    stacks: u64,
    /// Of these, those in which it was entered from where counting cannot follow.
    entered_apart: u64,
}

/// The roots, the one with most samples first. `stacks`: link addresses, the innermost first. `fits` says whether a function can be replaced.
///
/// # Errors
/// Those of `fits`.
pub fn choose(
    kernel: &LinkedKernel<'_>,
    stacks: &[Vec<LinkAddr>],
    least_share: f64,
    fits: &mut dyn FnMut(usize) -> Result<bool>,
) -> Result<Vec<Root>> {
    let mut seen: HashMap<usize, Seen> = HashMap::new();
    let mut fit: HashMap<usize, bool> = HashMap::new();
    for stack in stacks {
        let functions: Vec<Option<usize>> = (0..stack.len()).map(|depth| function(kernel, stack, depth)).collect();
        for (depth, &index) in functions.iter().enumerate() {
            let Some(index) = index else { continue };
            // A function that calls itself counts once a stack, where it was entered first.
            if functions[depth + 1..].contains(&Some(index)) {
                continue;
            }
            let caller = functions.get(depth + 1).copied().flatten();
            let apart = match caller {
                Some(caller) => !known(&mut fit, caller, fits)? || !is_direct(kernel, stack[depth + 1]),
                None => true,
            };
            let seen = seen.entry(index).or_default();
            seen.stacks += 1;
            seen.entered_apart += u64::from(apart);
        }
    }
    let mut roots = Vec::new();
    for (index, seen) in seen {
        let share = seen.stacks as f64 / stacks.len() as f64;
        if share >= least_share && seen.entered_apart * 2 >= seen.stacks && known(&mut fit, index, fits)? {
            roots.push(Root { function: index, share });
        }
    }
    roots.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.function.cmp(&b.function)));
    Ok(roots)
}

fn known(fit: &mut HashMap<usize, bool>, index: usize, fits: &mut dyn FnMut(usize) -> Result<bool>) -> Result<bool> {
    if let Some(&known) = fit.get(&index) {
        return Ok(known);
    }
    let fits = fits(index)?;
    fit.insert(index, fits);
    Ok(fits)
}

/// The function of a stack's frame. All frames but the innermost are returned to: the call lies before the address.
fn function(kernel: &LinkedKernel<'_>, stack: &[LinkAddr], depth: usize) -> Option<usize> {
    let before = u64::from(depth > 0);
    kernel.function_at(LinkAddr(stack[depth].0.checked_sub(before)?))
}

/// Whether the call that returns here names its callee: not a register, and not a retpoline.
fn is_direct(kernel: &LinkedKernel<'_>, returns_to: LinkAddr) -> bool {
    let site = LinkAddr(returns_to.0.wrapping_sub(CALL));
    let opcode = kernel.bytes(site, CALL as usize).map(|bytes| bytes[0]);
    opcode == Some(0xe8) && kernel.tables.retpolines.binary_search(&site.0).is_err()
}
