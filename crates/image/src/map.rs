//! The map file: where each block of a kernel went, as text. `ARCHITECTURE.md` specifies the format
//! under "Files between the stages".
//!
//! Input and output: bytes. A file is accepted only if its blocks are ascending and disjoint by old
//! address, as in a `Placement`. This module does not verify that the map is true; `check` does
//! that.

use crate::BuildId;
use crate::address::LinkAddr;
use crate::place::{CallPadding, Ending, InPlaceOfCall, InlinedCall, PlacedBlock, Placement};
use crate::sealed::{self, SealError};
use std::fmt::Write as _;
use std::ops::Range;

/// A placement, and the kernel whose blocks it moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementMap {
    /// The old kernel.
    pub build_id: BuildId,
    /// Where the blocks went.
    pub placement: Placement,
}

/// Why a text is not a map. Numbers are lines.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The text is not a sealed map.
    #[error("not a map, or a damaged one")]
    Seal(#[from] SealError),
    /// The second line does not name the kernel.
    #[error("line 2: expected \"kernel BUILD-ID\"")]
    Kernel,
    /// A line does not describe a block.
    #[error(
        "line {0}: a block is \"OLD SIZE NEW SIZE APPENDED same|inverted|dropped\", all numbers in \
         hex"
    )]
    Block(usize),
    /// A line does not describe an inlined call.
    #[error(
        "line {0}: an inlined call is \"inlined SITE AT START SIZE…\" or \"guard SITE AT TARGET\", all numbers in hex, and its \
         code is not empty"
    )]
    Inlined(usize),
    /// A block is empty or ends beyond the address space.
    #[error("line {0}: the block is empty or ends beyond the address space")]
    Extent(usize),
    /// A block overlaps the block before it, or they are not ascending.
    #[error("line {0}: the block does not lie behind the block of the line before")]
    Order(usize),
    /// The last line is missing.
    #[error("cut off: there is no \"end\" line")]
    CutOff,
    /// Text follows the last line.
    #[error("line {0}: nothing may stand behind the \"end\" line")]
    BehindEnd(usize),
    /// The last line announces another number of blocks.
    #[error("the \"end\" line says {announced} blocks, but {found} stand before it")]
    Count {
        /// The announced number.
        announced: usize,
        /// The number of blocks in the file.
        found: usize,
    },
    /// A block is not in the code of the kernel that the map is applied to.
    #[error(
        "the block of {size:#x} bytes at {start} lies outside of the kernel's code: the map is \
         damaged, or of another kernel; relink again"
    )]
    Outside {
        /// The block's old address.
        start: LinkAddr,
        /// The block's old size, in bytes.
        size: u32,
    },
}

const KIND: &str = "kernlane-map";
/// The beginning of the line of an inlined call.
const INLINED: &str = "inlined ";
/// Likewise of a promoted call.
const GUARD: &str = "guard ";

impl PlacementMap {
    /// Whether a text is a map, not another kind of file.
    pub fn is_map(text: &str) -> bool {
        text.starts_with(KIND)
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        let mut text =
            format!("kernel {}\n{}", self.build_id.0, self.placement.call_padding.line());
        for call in &self.placement.inlined {
            let (site, at) = (call.site, call.at);
            match &call.code {
                InPlaceOfCall::Code(stretches) => {
                    let _ = write!(text, "{INLINED}{site} {at}");
                    for (start, size) in stretches {
                        let _ = write!(text, " {start} {size:x}");
                    }
                }
                InPlaceOfCall::Guard(target) => {
                    let _ = write!(text, "{GUARD}{site} {at} {target}");
                }
            }
            text.push('\n');
        }
        for b in &self.placement.blocks {
            let ending = match b.ending {
                Ending::Same => "same",
                Ending::Inverted => "inverted",
                Ending::JumpDropped => "dropped",
            };
            let _ = writeln!(
                text,
                "{} {:x} {} {:x} {:x} {ending}",
                b.old, b.old_size, b.new, b.new_size, b.appended
            );
        }
        let _ = writeln!(text, "end {}", self.placement.blocks.len());
        sealed::text(KIND, &text)
    }

    /// Makes sure that every block's old place lies within a stretch of `code`, the code of the old
    /// kernel, or in inlined code.
    ///
    /// # Errors
    /// The first block that does not.
    pub fn ensure_within(&self, code: &[Range<u64>]) -> Result<(), MapError> {
        let is_inside = |block: &&PlacedBlock| {
            let (start, end) = (block.old.0, block.old.0.checked_add(block.old_size.into()));
            start >= InlinedCall::BASE.0 && !self.placement.inlined.is_empty()
                || code
                    .iter()
                    .any(|code| code.start <= start && end.is_some_and(|end| end <= code.end))
        };
        match self.placement.blocks.iter().find(|block| !is_inside(block)) {
            Some(block) => Err(MapError::Outside { start: block.old, size: block.old_size }),
            None => Ok(()),
        }
    }

    /// Reads what `to_text` wrote, and the older format without a checksum.
    ///
    /// # Errors
    /// The first broken rule, with its line.
    pub fn from_text(text: &str) -> Result<PlacementMap, MapError> {
        // The first line is read already.
        let mut lines = (2..).zip(sealed::open(KIND, text)?.split_terminator('\n')).peekable();
        let kernel = lines.next().and_then(|(_, line)| line.strip_prefix("kernel "));
        let build_id = BuildId(kernel.ok_or(MapError::Kernel)?.to_owned());
        let dropped = lines.next_if(|&(_, line)| line == CallPadding::DROPPED);
        let call_padding = dropped.map_or(CallPadding::Kept, |_| CallPadding::Dropped);
        let mut inlined = Vec::new();
        let is_call = |line: &str| line.starts_with(INLINED) || line.starts_with(GUARD);
        while let Some((number, line)) = lines.next_if(|&(_, line)| is_call(line)) {
            inlined.push(parse_inlined(line).ok_or(MapError::Inlined(number))?);
        }
        let mut blocks: Vec<PlacedBlock> = Vec::new();
        while let Some((number, line)) = lines.next() {
            if let Some(announced) = line.strip_prefix("end ") {
                let announced = announced.parse().map_err(|_| MapError::CutOff)?;
                if let Some((number, _)) = lines.next() {
                    return Err(MapError::BehindEnd(number));
                }
                if announced != blocks.len() {
                    return Err(MapError::Count { announced, found: blocks.len() });
                }
                return Ok(PlacementMap {
                    build_id,
                    placement: Placement { call_padding, blocks, inlined },
                });
            }
            let block = parse_block(line).ok_or(MapError::Block(number))?;
            let fits =
                |start: LinkAddr, size: u32| size > 0 && start.0.checked_add(size.into()).is_some();
            let new_size = block.new_size.checked_add(block.appended.into());
            let new_fits = new_size.is_some_and(|size| size == 0 || fits(block.new, size));
            if !fits(block.old, block.old_size) || !new_fits {
                return Err(MapError::Extent(number));
            }
            if blocks.last().is_some_and(|last| last.old.0 + u64::from(last.old_size) > block.old.0)
            {
                return Err(MapError::Order(number));
            }
            blocks.push(block);
        }
        Err(MapError::CutOff)
    }
}

fn parse_inlined(line: &str) -> Option<InlinedCall> {
    let (is_guard, numbers) = match line.strip_prefix(GUARD) {
        Some(numbers) => (true, numbers),
        None => (false, line.strip_prefix(INLINED)?),
    };
    let numbers = numbers.split(' ').map(|word| u64::from_str_radix(word, 16).ok());
    let numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
    let [site, at, code @ ..] = numbers.as_slice() else { return None };
    let code = match code {
        &[target] if is_guard => InPlaceOfCall::Guard(LinkAddr(target)),
        _ if is_guard => return None,
        code => {
            let (stretches, rest) = code.as_chunks::<2>();
            let stretch = |&[start, size]: &[u64; 2]| {
                let size = u32::try_from(size).ok().filter(|&size| size > 0)?;
                start.checked_add(u64::from(size)).map(|_| (LinkAddr(start), size))
            };
            let code: Vec<_> = stretches.iter().map(stretch).collect::<Option<_>>()?;
            if code.is_empty() || !rest.is_empty() {
                return None;
            }
            InPlaceOfCall::Code(code)
        }
    };
    Some(InlinedCall { site: LinkAddr(*site), at: LinkAddr(*at), code })
}

fn parse_block(line: &str) -> Option<PlacedBlock> {
    let mut fields = line.split(' ');
    let mut hex = || u64::from_str_radix(fields.next()?, 16).ok();
    let (old, old_size, new, new_size, appended) = (hex()?, hex()?, hex()?, hex()?, hex()?);
    let ending = match fields.next()? {
        "same" => Ending::Same,
        "inverted" => Ending::Inverted,
        "dropped" => Ending::JumpDropped,
        _ => return None,
    };
    if fields.next().is_some() {
        return None;
    }
    Some(PlacedBlock {
        old: LinkAddr(old),
        old_size: old_size.try_into().ok()?,
        new: LinkAddr(new),
        new_size: new_size.try_into().ok()?,
        appended: appended.try_into().ok()?,
        ending,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> PlacementMap {
        let block = |old, old_size, new, new_size, appended, ending| PlacedBlock {
            old: LinkAddr(old),
            old_size,
            new: LinkAddr(new),
            new_size,
            appended,
            ending,
        };
        let stretches =
            vec![(LinkAddr(0xffff_ffff_8100_0054), 9), (LinkAddr(0xffff_ffff_8100_0070), 4)];
        let inlined = vec![
            InlinedCall {
                site: LinkAddr(0xffff_ffff_8100_0020),
                at: InlinedCall::BASE,
                code: InPlaceOfCall::Code(stretches),
            },
            InlinedCall {
                site: LinkAddr(0xffff_ffff_8100_0030),
                at: LinkAddr(InlinedCall::BASE.0 + 0x20),
                code: InPlaceOfCall::Guard(LinkAddr(0xffff_ffff_8100_0050)),
            },
        ];
        let blocks = vec![
            block(0xffff_ffff_8100_0000, 0x40, 0xffff_ffff_8120_0000, 0x43, 0, Ending::Inverted),
            block(0xffff_ffff_8100_0040, 2, 0xffff_ffff_8120_0100, 0, 5, Ending::JumpDropped),
            block(0xffff_ffff_8100_0050, 0x10, 0xffff_ffff_8110_0000, 0x10, 2, Ending::Same),
        ];
        PlacementMap {
            build_id: BuildId("5f3c".to_owned()),
            placement: Placement { blocks, inlined, ..Placement::default() },
        }
    }

    #[test]
    fn reading_returns_what_was_written() {
        let map = example();
        assert_eq!(PlacementMap::from_text(&map.to_text()), Ok(map));
    }

    #[test]
    fn the_text_is_as_documented() {
        let wanted = "kernlane-map 2\nkernel 5f3c\n\
            inlined ffffffff81000020 ffffffffc0000000 ffffffff81000054 9 ffffffff81000070 4\n\
            guard ffffffff81000030 ffffffffc0000020 ffffffff81000050\n\
            ffffffff81000000 40 ffffffff81200000 43 0 inverted\n\
            ffffffff81000040 2 ffffffff81200100 0 5 dropped\n\
            ffffffff81000050 10 ffffffff81100000 10 2 same\n\
            end 3\n";
        let wanted = format!("{wanted}sha256 {}\n", sealed::sha256(wanted.as_bytes()));
        assert_eq!(example().to_text(), wanted);
    }

    #[test]
    fn overlapping_blocks_are_refused() {
        let text =
            "kernlane-map 1\nkernel 5f3c\n1000 10 2000 10 0 same\n100f 10 3000 10 0 same\nend 2\n";
        assert_eq!(PlacementMap::from_text(text), Err(MapError::Order(4)));
    }

    #[test]
    fn a_block_outside_of_the_code_is_refused() {
        const START: u64 = 0xffff_ffff_8100_0000;
        let map = example();
        assert_eq!(map.ensure_within(&[START..START + 0x42, START + 0x50..START + 0x60]), Ok(()));
        for code in [START..START + 0x5f, START..START + 0x50] {
            let outside = MapError::Outside { start: LinkAddr(START + 0x50), size: 0x10 };
            assert_eq!(map.ensure_within(&[code]), Err(outside));
        }
        let outside = MapError::Outside { start: LinkAddr(START), size: 0x40 };
        assert_eq!(
            map.ensure_within(std::slice::from_ref(&(START + 1..START + 0x60))),
            Err(outside)
        );
        assert!(map.ensure_within(&[]).is_err());
    }

    #[test]
    fn damage_is_noticed() {
        sealed::assert_damage_is_noticed(&example().to_text(), |text| {
            PlacementMap::from_text(text).ok()
        });
    }

    /// A format without a checksum cannot tell all damage, but is read.
    #[test]
    fn damage_of_the_older_format_never_panics() {
        let text = example().to_text();
        let text = format!("{KIND} 1\n{}", sealed::open(KIND, &text).unwrap());
        assert_eq!(PlacementMap::from_text(&text), Ok(example()));
        assert_eq!(PlacementMap::from_text(&format!("{text}x\n")), Err(MapError::BehindEnd(9)));
        for cut in 0..text.len() - 2 {
            assert!(PlacementMap::from_text(&text[..cut]).is_err(), "cut at {cut}");
        }
        let mut state = 1u64;
        for _ in 0..20_000 {
            let mut damaged = text.clone().into_bytes();
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % damaged.len();
            damaged[at] = (state >> 20) as u8 & 0x7f;
            if let Ok(text) = std::str::from_utf8(&damaged) {
                let _ = PlacementMap::from_text(text);
            }
        }
    }
}
