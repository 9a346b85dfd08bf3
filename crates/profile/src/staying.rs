//! How much of what ran lies in code that no layout moves.
//!
//! Input: a profile, its image, and the instructions of each block. Output: the share of the
//! executed kernel instructions, by the reason for which the code stays. This module reads no file.

use crate::Profile;
use image::module::is_of_module;
use image::ordinary::ReservedCode;
use image::{BlockIndex, Image};
use serde::Serialize;
use std::collections::BTreeMap;

/// The executed code that stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StayingCode {
    /// The share of the executed kernel instructions that lie in code that stays, 0 to 1.
    pub share: f64,
    /// The same by reason, the largest share first.
    pub by_reason: Vec<StayingPart>,
}

/// The executed code that stays for one reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StayingPart {
    /// Why it stays.
    pub reason: ReservedCode,
    /// Its share of the executed kernel instructions.
    pub share: f64,
}

/// The blocks of vmlinux that the profile counted, with their counts. A count at an address without
/// a block is left out.
pub fn counted<'a>(
    image: &'a Image,
    profile: &'a Profile,
) -> impl Iterator<Item = (BlockIndex, u64)> + 'a {
    let counted = profile.blocks.iter().filter(|&(_, &count)| count > 0);
    let of_vmlinux = counted.filter(|&(&addr, _)| !is_of_module(addr));
    of_vmlinux.filter_map(|(&addr, &count)| Some((image.block_at(addr)?, count)))
}

/// Shares of the instructions that the profile counted. `instructions` are those of each block that
/// [`counted`] names, in its order.
pub fn staying(image: &Image, profile: &Profile, instructions: &[u32]) -> StayingCode {
    let mut all = 0.0;
    let mut staying: BTreeMap<ReservedCode, f64> = BTreeMap::new();
    for ((block, count), &instructions) in counted(image, profile).zip(instructions) {
        let executed = count as f64 * f64::from(instructions);
        all += executed;
        if let Some(reason) = image.function_of(block).stays {
            *staying.entry(reason).or_default() += executed;
        }
    }
    let share = |executed: f64| if all > 0.0 { executed / all } else { 0.0 };
    let mut by_reason: Vec<StayingPart> = staying
        .iter()
        .map(|(&reason, &executed)| StayingPart { reason, share: share(executed) })
        .collect();
    by_reason.sort_by(|a, b| b.share.total_cmp(&a.share));
    StayingCode { share: share(staying.values().sum()), by_reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::address::LinkAddr;
    use image::examples;

    /// f runs ten times: its blocks have 2, 1 and 2 instructions. g has 2 instructions and stays.
    #[test]
    fn instructions_in_code_that_stays_are_counted_by_reason() {
        let base = 0xffff_ffff_8100_0000;
        let mut image = examples::caller_and_callee(LinkAddr(base));
        image.functions[1].stays = Some(ReservedCode::Locks);
        let mut profile = Profile::empty(image.build_id.clone());
        for (offset, count) in [(0, 10), (4, 5), (9, 10), (0x20, 5), (0x1000, 7)] {
            profile.blocks.insert(LinkAddr(base + offset), count);
        }
        let blocks: Vec<u32> = counted(&image, &profile).map(|(block, _)| block.0).collect();
        assert_eq!(blocks, [0, 1, 2, 3]);
        // 20 + 5 + 20 + 10 instructions.
        let found = staying(&image, &profile, &[2, 1, 2, 2]);
        assert_eq!(found.share, 10.0 / 55.0);
        let part = StayingPart { reason: ReservedCode::Locks, share: 10.0 / 55.0 };
        assert_eq!(found.by_reason, [part]);
        let nothing = staying(&image, &Profile::empty(image.build_id.clone()), &[]);
        assert_eq!(nothing, StayingCode::default());
    }
}
