//! Which functions to begin with: those in which the kernel spends its time and which are not
//! called directly.
//!
//! Input: sampled stacks. Output: functions. Counting (`live::watch`) finds the functions that a
//! root calls directly, but not those that it calls through a pointer, as the paper notes (Tamches
//! 2001, sections 2.1.2 and 5.4). Sampled stacks show such a callee, which becomes a root of its
//! own.

use crate::group;
use crate::memory::Memory;
use crate::owners::Owners;
use crate::sample::Samples;
use anyhow::Result;
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::sites::PatchKind;
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

/// The roots among sampled functions that can be replaced and belong to no other tool, the one with
/// most samples first. `least_share`: a root is on at least this part of the stacks, 0 to 1.
///
/// # Errors
/// Memory cannot be read.
pub fn of_samples(
    kernel: &LinkedKernel<'_>,
    memory: &dyn Memory,
    owners: &Owners,
    samples: &Samples,
    least_share: f64,
) -> Result<Vec<Root>> {
    let slide = memory.slide();
    let link = |stack: &Vec<u64>| stack.iter().map(|at| LinkAddr(at.wrapping_sub(slide))).collect();
    let stacks: Vec<Vec<LinkAddr>> = samples.stacks.iter().map(link).collect();
    choose(kernel, &stacks, least_share, &mut |index| {
        let owned = owners.of(&kernel.title(&kernel.functions[index])).is_some();
        Ok(!owned && group::decide(kernel, memory, index)?.is_ok())
    })
}

#[derive(Default)]
struct Seen {
    stacks: u64,
    /// The samples among these in which the function was entered from where counting cannot follow.
    entered_apart: u64,
}

/// One frame of a sampled stack.
#[derive(Clone, Copy)]
struct Frame {
    /// `None` outside of the kernel's functions, for example in a module.
    function: Option<usize>,
    /// Whether the frame around it called it by its name, not through a pointer.
    called_directly: bool,
}

/// The roots, the one with most samples first. `stacks`: link addresses, the innermost first.
/// `fits` says whether a function can be replaced.
///
/// # Errors
/// The errors of `fits`.
fn choose(
    kernel: &LinkedKernel<'_>,
    stacks: &[Vec<LinkAddr>],
    least_share: f64,
    fits: &mut dyn FnMut(usize) -> Result<bool>,
) -> Result<Vec<Root>> {
    let frames = |stack: &Vec<LinkAddr>| -> Vec<Frame> {
        (0..stack.len())
            .map(|depth| Frame {
                function: function(kernel, stack, depth),
                called_directly: stack
                    .get(depth + 1)
                    .is_some_and(|&returns_to| is_direct(kernel, returns_to)),
            })
            .collect()
    };
    let stacks: Vec<Vec<Frame>> = stacks.iter().map(frames).collect();
    choose_from(&stacks, least_share, fits)
}

fn choose_from(
    stacks: &[Vec<Frame>],
    least_share: f64,
    fits: &mut dyn FnMut(usize) -> Result<bool>,
) -> Result<Vec<Root>> {
    let mut seen: HashMap<usize, Seen> = HashMap::new();
    let mut fit: HashMap<usize, bool> = HashMap::new();
    for stack in stacks {
        for (depth, frame) in stack.iter().enumerate() {
            let Some(index) = frame.function else { continue };
            let around = &stack[depth + 1..];
            // A function that calls itself counts once in each stack, at its outermost frame.
            if around.iter().any(|frame| frame.function == Some(index)) {
                continue;
            }
            let apart = match around.first().and_then(|caller| caller.function) {
                Some(caller) => !frame.called_directly || !known(&mut fit, caller, fits)?,
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
        if share >= least_share
            && seen.entered_apart * 2 >= seen.stacks
            && known(&mut fit, index, fits)?
        {
            roots.push(Root { function: index, share });
        }
    }
    roots.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.function.cmp(&b.function)));
    Ok(roots)
}

fn known(
    fit: &mut HashMap<usize, bool>,
    index: usize,
    fits: &mut dyn FnMut(usize) -> Result<bool>,
) -> Result<bool> {
    if let Some(&known) = fit.get(&index) {
        return Ok(known);
    }
    let fits = fits(index)?;
    fit.insert(index, fits);
    Ok(fits)
}

/// The function of a stack's frame. All frames but the innermost are returned to: the call lies
/// before the address.
fn function(kernel: &LinkedKernel<'_>, stack: &[LinkAddr], depth: usize) -> Option<usize> {
    let before = u64::from(depth > 0);
    kernel.function_at(LinkAddr(stack[depth].0.checked_sub(before)?))
}

/// Whether the call that returns here names its callee: not a register, and not a retpoline.
fn is_direct(kernel: &LinkedKernel<'_>, returns_to: LinkAddr) -> bool {
    let site = LinkAddr(returns_to.0.wrapping_sub(CALL));
    let opcode = kernel.bytes(site, CALL as usize).map(|bytes| bytes[0]);
    opcode == Some(0xe8) && !kernel.sites.kinds_at(site.0).any(|kind| kind == PatchKind::Retpoline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kernel::{ChangedMemory, F, G, H, SLIDE, TEXT, tables, with};

    const ENTRY: usize = 0;
    const ROOT: usize = 1;
    const CALLEE: usize = 2;
    const HANDLER: usize = 3;

    /// The innermost first; `false`: called through a pointer.
    fn stack(frames: &[(usize, bool)]) -> Vec<Frame> {
        let frame = |&(function, called_directly): &(usize, bool)| Frame {
            function: Some(function),
            called_directly,
        };
        frames.iter().map(frame).collect()
    }

    /// All but the kernel's entry can be replaced.
    fn chosen(stacks: &[Vec<Frame>], least_share: f64) -> Vec<(usize, f64)> {
        let roots = choose_from(stacks, least_share, &mut |index| Ok(index != ENTRY))
            .expect("nothing fails");
        roots.into_iter().map(|root| (root.function, root.share)).collect()
    }

    #[test]
    fn roots_are_where_counting_cannot_come_from() {
        let stacks = [
            stack(&[(CALLEE, true), (ROOT, true), (ENTRY, false)]),
            stack(&[(HANDLER, false), (CALLEE, true), (ROOT, true), (ENTRY, false)]),
        ];
        // The entry cannot be replaced, so what it calls is a root; a callee of a root is not a
        // root, but what that calls through a pointer is.
        assert_eq!(chosen(&stacks, 0.0), [(ROOT, 1.0), (HANDLER, 0.5)]);
        assert_eq!(chosen(&stacks, 0.6), [(ROOT, 1.0)]);
    }

    #[test]
    fn what_is_mostly_called_directly_is_no_root() {
        let direct = stack(&[(CALLEE, true), (ROOT, false)]);
        let apart = stack(&[(CALLEE, false), (ROOT, false)]);
        assert_eq!(chosen(&[direct.clone(), direct.clone(), apart.clone()], 0.0), [(ROOT, 1.0)]);
        assert_eq!(chosen(&[direct, apart], 0.0), [(ROOT, 1.0), (CALLEE, 1.0)]);
    }

    #[test]
    fn what_calls_itself_counts_once_where_it_was_entered_first() {
        let recursive = stack(&[(CALLEE, true), (CALLEE, true), (CALLEE, false), (ROOT, false)]);
        assert_eq!(chosen(&[recursive], 0.0), [(ROOT, 1.0), (CALLEE, 1.0)]);
    }

    #[test]
    fn samples_of_a_moved_kernel_give_roots_that_can_be_replaced_and_have_no_owner() {
        with(tables(), |kernel| {
            let memory = ChangedMemory { kernel, slide: SLIDE, changes: Vec::new() };
            let at = |offset: u64| TEXT + SLIDE + offset;
            // g, called by name from f; g, from outside of the kernel; h; the stray jump.
            let stacks = vec![
                vec![at(0x4c), at(0x11)],
                vec![at(0x4c), 0xffff_ffff_c000_0010],
                vec![at(0x85)],
                vec![at(0xc0)],
            ];
            let samples = Samples { stacks, lost: 0 };
            let roots = |owners: &Owners, least_share| -> Vec<(usize, f64)> {
                let roots = of_samples(kernel, &memory, owners, &samples, least_share).unwrap();
                roots.into_iter().map(|root| (root.function, root.share)).collect()
            };
            let nobody = Owners::default();
            assert_eq!(roots(&nobody, 0.0), [(G, 0.5), (F, 0.25), (H, 0.25)]);
            assert_eq!(roots(&nobody, 0.3), [(G, 0.5)]);
            let owned = Owners::parse("ffffffff81000080  k  h+0x5\n", "", &[]);
            assert_eq!(roots(&owned, 0.0), [(G, 0.5), (F, 0.25)]);
        });
    }

    #[test]
    fn a_caller_outside_of_the_kernel_is_no_caller() {
        let mut in_a_module = stack(&[(CALLEE, true), (ROOT, false)]);
        in_a_module[1].function = None;
        assert_eq!(chosen(&[in_a_module], 0.0), [(CALLEE, 1.0)]);
    }
}
