//! Whether the code of a function in memory is that of the file, except for the changes that the
//! kernel is known to make.
//!
//! Input: a function's bytes in the file and in memory. Output: the bytes to copy: those of the
//! file, with the addresses and constants that the kernel has filled in permanently. Every
//! differing byte must be explained by a side table or by KASLR.

use iced_x86::{Decoder, DecoderOptions, Instruction};
use image::address::LinkAddr;
use image::linked::{LinkedKernel, fields};
use image::object::functions::TextFunction;
use image::sites::{PatchKind, PatchSites};

/// A place in memory that nothing explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unexplained(pub LinkAddr);

/// Compares one function; gives the bytes to copy.
///
/// # Errors
/// The first instruction whose bytes in memory nothing explains.
pub(crate) fn explain(
    kernel: &LinkedKernel<'_>,
    function: &TextFunction,
    live: &[u8],
    slide: u64,
) -> Result<Vec<u8>, Unexplained> {
    let from = kernel.link_address(function.at);
    let file = kernel.code(function.at, function.end);
    let patched = patched(&kernel.sites, from, file.len());
    let mut code = file.to_vec();
    let mut decoder = Decoder::with_ip(64, file, from.0, DecoderOptions::NONE);
    while decoder.can_decode() {
        let start = decoder.position();
        let instruction = decoder.decode();
        let end = decoder.position();
        let addresses = fields::of(&decoder, &instruction);
        if patched[start..end].contains(&true) {
            slide_addresses(kernel, &addresses, start, slide, &mut code);
        } else if file[start..end] != live[start..end] {
            let filled = Filled { kernel, slide, file: &file[start..end], live: &live[start..end] };
            let explained =
                filled.explain(&decoder, &instruction, &addresses, &mut code[start..end]);
            explained.ok_or(Unexplained(LinkAddr(from.0 + start as u64)))?;
        }
    }
    Ok(code)
}

/// Moves the addresses in code that the kernel patches, where memory does not show the original
/// after KASLR.
fn slide_addresses(
    kernel: &LinkedKernel<'_>,
    addresses: &[(usize, usize)],
    start: usize,
    slide: u64,
    code: &mut [u8],
) {
    for &(field, width) in addresses {
        let place = &mut code[start + field..start + field + width];
        let value = number(place);
        if kernel.moves(value) {
            place.copy_from_slice(&value.wrapping_add(slide).to_le_bytes()[..width]);
        }
    }
}

/// An instruction with other bytes in memory than in the file.
struct Filled<'a> {
    kernel: &'a LinkedKernel<'a>,
    slide: u64,
    file: &'a [u8],
    live: &'a [u8],
}

impl Filled<'_> {
    /// `None` when a byte is left that nothing explains.
    fn explain(
        &self,
        decoder: &Decoder<'_>,
        instruction: &Instruction,
        addresses: &[(usize, usize)],
        code: &mut [u8],
    ) -> Option<()> {
        let mut expected = self.file.to_vec();
        for &(field, width) in addresses {
            let place = field..field + width;
            let constant = self.is_constant(instruction.ip() + field as u64);
            let moved = number(&self.file[place.clone()]).wrapping_add(self.slide).to_le_bytes();
            if constant || self.live[place.clone()] == moved[..width] {
                expected[place.clone()].copy_from_slice(&self.live[place.clone()]);
                code[place.clone()].copy_from_slice(&self.live[place]);
            }
        }
        // A shift count of one byte.
        for (at, byte) in expected.iter_mut().enumerate() {
            if self.is_constant(instruction.ip() + at as u64) && *byte != self.live[at] {
                *byte = self.live[at];
                code[at] = self.live[at];
            }
        }
        // A distance to per-CPU data, which does not move. The copy's distance is computed from the
        // file's.
        if instruction.is_ip_rel_memory_operand()
            && !self.kernel.moves(instruction.ip_rel_memory_address())
        {
            let field = decoder.get_constant_offsets(instruction).displacement_offset();
            let nearer =
                number(&self.file[field..field + 4]).wrapping_sub(self.slide).to_le_bytes();
            expected[field..field + 4].copy_from_slice(&nearer[..4]);
        }
        (expected == self.live).then_some(())
    }

    fn is_constant(&self, at: u64) -> bool {
        let constants = &self.kernel.tables.constants;
        constants.binary_search_by_key(&at, |&(at, _)| at).is_ok()
    }
}

/// A field of four bytes (sign-extended) or eight.
fn number(field: &[u8]) -> u64 {
    match *field {
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])) as u64,
        _ => field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)),
    }
}

/// Which bytes of a stretch the kernel may patch. Most sites mark only the first byte, which makes
/// the whole instruction count as patched.
fn patched(sites: &PatchSites, from: LinkAddr, len: usize) -> Vec<bool> {
    let mut marks = vec![false; len];
    let to = from.0 + len as u64;
    for site in sites.overlapping(from.0, to).filter(|site| site.kind != PatchKind::Constant) {
        for at in site.at.max(from.0)..site.end().min(to) {
            marks[(at - from.0) as usize] = true;
        }
    }
    marks
}
