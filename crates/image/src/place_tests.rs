//! Tests of `place`: shapes drawn by hand, and random code that a naive reader checks.

use super::*;
use layout::random::SplitMix64;

const START: LinkAddr = LinkAddr(0xffff_ffff_8100_0000);

fn at(offset: u64) -> LinkAddr {
    LinkAddr(START.0 + offset)
}

fn block(offset: u64, size: u32, exit: MovableExit, tail: u8) -> MovableBlock {
    MovableBlock::alone(at(offset), size, exit, tail)
}

/// A diamond: 0 branches to 2 or falls through to 1; 1 jumps to 3; 2 falls through to 3.
///
/// ```text
///   0 ──┐
///   1   │
///   ┌┐  2
///   └→3 ┘
/// ```
fn diamond() -> Vec<MovableBlock> {
    vec![
        block(0, 8, MovableExit::Branch(at(20)), 2),
        block(8, 12, MovableExit::Jump(at(30)), 2),
        block(20, 10, MovableExit::Runs, 0),
        block(30, 4, MovableExit::Stop, 0),
    ]
}

fn placed(blocks: &[MovableBlock], order: &[u32]) -> Vec<(u64, Ending, u8, u8)> {
    let p = place(blocks, &[], order, START).unwrap();
    (0..blocks.len())
        .map(|i| (p.new[i].0 - START.0, p.ending[i], p.tail[i], p.appended[i]))
        .collect()
}

#[test]
fn the_old_order_gives_the_old_addresses() {
    use Ending::Same;
    assert_eq!(
        placed(&diamond(), &[0, 1, 2, 3]),
        [(0, Same, 2, 0), (8, Same, 2, 0), (20, Same, 0, 0), (30, Same, 0, 0)]
    );
}

#[test]
fn a_branch_whose_target_follows_is_inverted() {
    use Ending::{Inverted, Same};
    // Block 2 stands behind block 0. Block 1 is far behind and jumps back.
    assert_eq!(
        placed(&diamond(), &[0, 2, 3, 1]),
        [(0, Inverted, 2, 0), (22, Same, 2, 0), (8, Same, 0, 0), (18, Same, 0, 0)]
    );
}

#[test]
fn a_jump_to_the_next_block_is_dropped_and_a_separated_successor_gets_a_jump() {
    use Ending::{JumpDropped, Same};
    assert_eq!(
        placed(&diamond(), &[0, 1, 3, 2]),
        [(0, Same, 2, 0), (8, JumpDropped, 0, 0), (22, Same, 0, 2), (18, Same, 0, 0)]
    );
}

#[test]
fn a_pinned_jump_stays() {
    let mut blocks = diamond();
    blocks[1].pinned = true;
    assert_eq!(placed(&blocks, &[0, 1, 3, 2])[1], (8, Ending::Same, 2, 0));
}

#[test]
fn branches_grow_when_their_target_is_far() {
    let mut blocks = diamond();
    blocks.push(block(34, 200, MovableExit::Stop, 0));
    // A long block lies between block 0 and its two successors.
    let result = placed(&blocks, &[0, 4, 1, 3, 2]);
    assert_eq!(result[0], (0, Ending::Same, 6, 5));
}

#[test]
fn entries_are_aligned_with_their_padding_in_front() {
    let mut blocks = diamond();
    blocks[3] = MovableBlock {
        align: 16,
        lead: 16,
        lead_named: true,
        gap: 0,
        ..block(64, 4, MovableExit::Stop, 0)
    };
    blocks[1].exit = MovableExit::Jump(at(64));
    blocks[2].exit = MovableExit::Stop;
    blocks[2].gap = 18;
    let result = place(&blocks, &[], &[1, 3, 0, 2], START).unwrap();
    // Block 1 has 12 bytes. At least 16 bytes of padding follow, to the next multiple of 16. The
    // jump of block 1 stays because padding follows it.
    assert_eq!(result.new[3], at(32));
    assert_eq!(result.ending[1], Ending::Same);
    let map = placement(&blocks, &[], &result);
    assert_eq!(map.new_address(at(48)), Some(at(16)), "padding with a symbol has an entry");
    assert_eq!(map.new_address(at(64)), Some(at(32)));
}

#[test]
fn a_static_key_with_a_far_target_grows_and_splits_its_block_in_the_map() {
    // The site is at offset 4 of block 0. Its target is 300 bytes away.
    let blocks = vec![
        block(0, 10, MovableExit::Stop, 0),
        block(10, 300, MovableExit::Stop, 0),
        block(310, 4, MovableExit::Stop, 0),
    ];
    let site = [GrowthSite { at: at(4), growth: Growth::WhenFar(at(310)) }];
    let result = place(&blocks, &site, &[0, 1, 2], START).unwrap();
    assert!(result.grown[0]);
    let map = placement(&blocks, &site, &result);
    assert_eq!(map.blocks.len(), 4);
    assert_eq!(map.new_address(at(4)), Some(at(4)));
    assert_eq!(map.new_address(at(6)), Some(at(9)), "code behind the site moves by three bytes");
    let near = place(&blocks, &site, &[0, 2, 1], START).unwrap();
    assert!(!near.grown[0]);
}

#[test]
fn a_counter_splits_its_block_and_makes_a_branch_too_short() {
    // Block 0 branches 121 bytes ahead, over a counter in front of each of the two other blocks.
    let blocks = vec![
        block(0, 8, MovableExit::Branch(at(129)), 2),
        block(8, 121, MovableExit::Runs, 0),
        block(129, 4, MovableExit::Stop, 0),
    ];
    let counter = |offset| GrowthSite { at: at(offset), growth: Growth::Always(7) };
    let counters = [counter(4), counter(8), counter(129)];
    let result = place(&blocks, &counters, &[0, 1, 2], START).unwrap();
    assert_eq!(result.new, [at(0), at(19), at(147)], "the near branch is four bytes longer");
    assert_eq!(result.tail[0], 6);
    let map = placement(&blocks, &counters, &result);
    assert_eq!(map.new_address(at(3)), Some(at(3)));
    assert_eq!(
        map.new_address(at(4)),
        Some(at(4)),
        "the counted instruction begins with its counter"
    );
    assert_eq!(
        map.new_address(at(5)),
        Some(at(12)),
        "the rest of the instruction lies behind the counter"
    );
    assert_eq!(map.new_address(at(8)), Some(at(19)));
    assert_eq!(map.new_address(at(9)), Some(at(27)));
    let sizes: Vec<u32> = map.blocks.iter().map(|b| b.new_size).collect();
    assert_eq!(sizes, [12, 7, 8, 120, 8, 3]);
}

#[test]
fn the_error_names_the_broken_rule() {
    let blocks = diamond();
    assert_eq!(place(&blocks, &[], &[0, 1, 2], START).unwrap_err(), PlaceError::NoPermutation(4));
    assert_eq!(
        place(&blocks, &[], &[0, 1, 2, 2], START).unwrap_err(),
        PlaceError::NoPermutation(4)
    );
    let mut lost = diamond();
    lost[0].exit = MovableExit::Branch(at(4000));
    assert_eq!(
        place(&lost, &[], &[0, 1, 2, 3], START).unwrap_err(),
        PlaceError::NoTarget(at(0), at(4000))
    );
    let mut endless = diamond();
    endless[3].exit = MovableExit::Runs;
    assert_eq!(
        place(&endless, &[], &[0, 1, 2, 3], START).unwrap_err(),
        PlaceError::NoSuccessor(at(30))
    );
    let mut twice = diamond();
    twice[0].size = 9;
    assert_eq!(place(&twice, &[], &[0, 1, 2, 3], START).unwrap_err(), PlaceError::Overlap(at(0)));
}

/// Random blocks with every length and alignment that occurs.
fn random_blocks(random: &mut SplitMix64) -> Vec<MovableBlock> {
    let count = 2 + random.below(60) as usize;
    let mut blocks: Vec<MovableBlock> = Vec::new();
    let mut offset = 0u64;
    for i in 0..count {
        let entry = i == 0 || random.below(4) == 0;
        let lead = if entry && random.below(2) == 0 { 16 } else { 0 };
        let align = if entry { 16 } else { 1 };
        let start = (offset + u64::from(lead)).next_multiple_of(u64::from(align));
        if let Some(last) = blocks.last_mut() {
            last.gap = (start - u64::from(lead) - offset) as u32;
        }
        let size = 8 + random.below(120) as u32;
        blocks.push(MovableBlock {
            align,
            lead,
            lead_named: lead > 0,
            ..block(start, size, MovableExit::Stop, 0)
        });
        offset = start + u64::from(size);
    }
    let starts: Vec<LinkAddr> = blocks.iter().map(|b| b.at).collect();
    for i in 0..count {
        let to = starts[random.below(count as u64) as usize];
        let kinds =
            if i + 1 < count && blocks[i].gap == 0 && blocks[i + 1].align == 1 { 4 } else { 2 };
        (blocks[i].exit, blocks[i].tail) = match random.below(kinds) {
            0 => (MovableExit::Stop, 0),
            1 => (MovableExit::Jump(to), 5),
            2 => (MovableExit::Branch(to), 6),
            _ => (MovableExit::Runs, 0),
        };
        blocks[i].pinned = random.below(8) == 0;
    }
    blocks
}

/// The places that control reaches from block `i`, computed from the new addresses alone: by its
/// branch, and by fall-through.
fn ways_out(
    blocks: &[MovableBlock],
    places: &BlockPlaces,
    i: usize,
) -> (Option<LinkAddr>, Option<LinkAddr>) {
    let block = &blocks[i];
    let end =
        places.new[i].0 + u64::from(block.size) - u64::from(block.tail) + u64::from(places.tail[i]);
    let behind = LinkAddr(end);
    let follower = || places.new[i + 1];
    let target = |to| places.new[blocks.iter().position(|b| b.at == to).unwrap()];
    let over = if places.appended[i] > 0 { follower() } else { behind };
    match (block.exit, places.ending[i]) {
        (MovableExit::Stop, _) => (None, None),
        (MovableExit::Runs, _) => (None, Some(over)),
        (MovableExit::Jump(_), Ending::JumpDropped) => (None, Some(behind)),
        (MovableExit::Jump(to), _) => (Some(target(to)), None),
        (MovableExit::Branch(_), Ending::Inverted) => (Some(follower()), Some(behind)),
        (MovableExit::Branch(to), _) => (Some(target(to)), Some(over)),
    }
}

/// A short branch or an appended short jump must reach its target.
fn assert_reaches(
    blocks: &[MovableBlock],
    places: &BlockPlaces,
    i: usize,
    by_branch: Option<LinkAddr>,
    seed: u64,
) {
    let reaches = |from: u64, to: LinkAddr| i8::try_from(to.0.wrapping_sub(from) as i64).is_ok();
    let end = places.new[i].0 + u64::from(blocks[i].size) - u64::from(blocks[i].tail)
        + u64::from(places.tail[i]);
    if let Some(to) = by_branch {
        assert!(
            places.tail[i] != 2 || reaches(end, to),
            "seed {seed}: block {i}'s short branch does not reach"
        );
    }
    if places.appended[i] == 2 {
        assert!(
            reaches(end + 2, places.new[i + 1]),
            "seed {seed}: the jump behind block {i} does not reach"
        );
    }
}

#[test]
fn random_code_keeps_its_control_flow_in_random_order() {
    for seed in 0..300 {
        let mut random = SplitMix64::new(seed);
        let blocks = random_blocks(&mut random);
        let mut order: Vec<u32> = (0..blocks.len() as u32).collect();
        if seed % 3 > 0 {
            random.shuffle(&mut order);
        }
        let places = place(&blocks, &[], &order, START).unwrap();
        let mut free = START.0;
        for &i in &order {
            let (b, new) = (&blocks[i as usize], places.new[i as usize]);
            assert!(new.0 - u64::from(b.lead) >= free, "seed {seed}: block {i} overlaps");
            assert_eq!(new.0 % u64::from(b.align), 0, "seed {seed}: block {i} is not aligned");
            let tail = u64::from(places.tail[i as usize]) + u64::from(places.appended[i as usize]);
            free = new.0 + u64::from(b.size) - u64::from(b.tail) + tail;
        }
        for i in 0..blocks.len() {
            let new_of = |to: LinkAddr| places.new[blocks.iter().position(|b| b.at == to).unwrap()];
            let follower = || places.new[i + 1];
            let (by_branch, over_end) = ways_out(&blocks, &places, i);
            let reached: Vec<LinkAddr> = by_branch.into_iter().chain(over_end).collect();
            let wanted = match blocks[i].exit {
                MovableExit::Stop => vec![],
                MovableExit::Runs => vec![follower()],
                MovableExit::Jump(to) => vec![new_of(to)],
                MovableExit::Branch(to) => vec![new_of(to), follower()],
            };
            let inverted = places.ending[i] == Ending::Inverted;
            let wanted = if inverted { wanted.into_iter().rev().collect() } else { wanted };
            assert_eq!(reached, wanted, "seed {seed}: block {i}");
            assert_reaches(&blocks, &places, i, by_branch, seed);
            assert!(
                !(blocks[i].pinned && places.ending[i] != Ending::Same),
                "seed {seed}: block {i} is pinned"
            );
        }
        if seed % 3 == 0 {
            assert!(
                blocks.iter().zip(&places.new).all(|(b, new)| b.at == *new),
                "seed {seed}: the old order moved a block"
            );
        }
    }
}
