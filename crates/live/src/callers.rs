//! The direct calls and jumps to some functions in the whole of the kernel's text, and in that of
//! modules.
//!
//! Input: the live text and the functions. Output: the instructions of five bytes that go to one of
//! their entries. Each is proven to be an instruction of the file with that target. Instructions
//! that the kernel itself patches are left out.

use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::object::instructions::{DecodedInstruction, InstructionKind};
use image::sites::PatchKind;
use std::collections::HashMap;

/// A call or jump whose target can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Caller {
    /// The address of the instruction.
    pub site: LinkAddr,
    /// The function that it goes to: an index into the functions that were searched for.
    pub function: usize,
}

const SIZE: usize = 5;

/// The callers of some functions.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    /// Their calls and jumps.
    pub callers: Vec<Caller>,
    /// Functions whose five bytes behind the tracer's site some other function jumps into.
    pub entered: Vec<usize>,
}

/// Searches `areas`: offset and bytes in memory of each part of the code. `functions`: the offset
/// of each entry, and bytes from there to the jump.
pub(crate) fn find(
    kernel: &LinkedKernel<'_>,
    areas: &[(u32, Vec<u8>)],
    functions: &[(u32, u32)],
) -> Callers {
    let mut targets: HashMap<u32, (usize, u32)> = HashMap::new();
    for (index, &(entry, patch_at)) in functions.iter().enumerate() {
        targets.insert(entry, (index, 0));
        for inside in 1..SIZE as u32 {
            targets.insert(entry + patch_at + inside, (index, patch_at + inside));
        }
    }
    let mut known: HashMap<usize, Vec<DecodedInstruction>> = HashMap::new();
    let mut found = Callers::default();
    let places = areas.iter().flat_map(|(start, live)| {
        (0..live.len().saturating_sub(SIZE)).map(move |at| (*start, live.as_slice(), at))
    });
    for (start, live, at) in places {
        // A near conditional jump has a byte in front of these five. It is not a caller, but it can
        // lead into an entry.
        let conditional = at > 0 && live[at - 1] == 0x0f && live[at] & 0xf0 == 0x80;
        if !conditional && !matches!(live[at], 0xe8 | 0xe9) {
            continue;
        }
        let distance = u32::from_le_bytes([live[at + 1], live[at + 2], live[at + 3], live[at + 4]]);
        let offset = start + at as u32;
        let target = (offset + SIZE as u32).wrapping_add(distance);
        let Some(&(function, inside)) = targets.get(&target) else {
            continue;
        };
        let site = kernel.link_address(offset);
        let Some(owner) = kernel.function_at(site) else { continue };
        let code =
            known.entry(owner).or_insert_with(|| kernel.instructions(&kernel.functions[owner]));
        let first = offset - u32::from(conditional);
        let Ok(instruction) = code.binary_search_by_key(&first, |i| i.at).map(|i| &code[i]) else {
            continue;
        };
        let same = match instruction.kind {
            InstructionKind::Call | InstructionKind::Jump => {
                !conditional && usize::from(instruction.len) == SIZE
            }
            InstructionKind::Branch => conditional,
            _ => false,
        };
        if !same || instruction.target != target {
            continue;
        }
        match inside {
            0 if conditional => {}
            0 if is_free(kernel, site) && !in_entry(functions, offset) => {
                found.callers.push(Caller { site, function })
            }
            0 => {}
            _ => found.entered.push(function),
        }
    }
    found
}

/// Whether nobody else writes to the instruction.
fn is_free(kernel: &LinkedKernel<'_>, site: LinkAddr) -> bool {
    let mut patched = kernel.sites.overlapping(site.0, site.0 + 1).map(|patch| patch.kind);
    kernel.apart(site).is_none()
        && !patched.any(|kind| {
            matches!(
                kind,
                PatchKind::StaticKey { .. }
                    | PatchKind::StaticCall
                    | PatchKind::Paravirt
                    | PatchKind::Alternative { .. }
            )
        })
}

/// Whether a site overlaps the bytes that become a jump. `functions` ascend.
fn in_entry(functions: &[(u32, u32)], at: u32) -> bool {
    let size = SIZE as u32;
    let last = functions.partition_point(|&(entry, _)| entry < at + size).checked_sub(1);
    last.is_some_and(|n| {
        let (entry, patch_at) = functions[n];
        at < entry + patch_at + size && entry + patch_at < at + size
    })
}
