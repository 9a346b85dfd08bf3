//! The tests of `place`: shapes drawn by hand, and random code against a naive reading of the
//! result.

use super::*;
use layout::random::SplitMix64;

const START: LinkAddr = LinkAddr(0xffff_ffff_8100_0000);

fn at(offset: u64) -> LinkAddr {
    LinkAddr(START.0 + offset)
}

fn block(offset: u64, size: u32, exit: Exit, tail: u8) -> Movable {
    Movable::alone(at(offset), size, exit, tail)
}

/// A diamond: 0 branches to 2, else runs into 1, which jumps to 3; 2 runs into 3.
///
/// ```text
///   0 ──┐
///   1   │
///   ┌┐  2
///   └→3 ┘
/// ```
fn diamond() -> Vec<Movable> {
    vec![
        block(0, 8, Exit::Branch(at(20)), 2),
        block(8, 12, Exit::Jump(at(30)), 2),
        block(20, 10, Exit::Runs, 0),
        block(30, 4, Exit::Stop, 0),
    ]
}

fn placed(blocks: &[Movable], order: &[u32]) -> Vec<(u64, Ending, u8, u8)> {
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
    // 2 stands behind 0; 1 is far behind and jumps back.
    assert_eq!(
        placed(&diamond(), &[0, 2, 3, 1]),
        [(0, Inverted, 2, 0), (22, Same, 2, 0), (8, Same, 0, 0), (18, Same, 0, 0)]
    );
}

#[test]
fn a_jump_whose_target_follows_is_dropped_and_a_lost_successor_gets_a_jump() {
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
    blocks.push(block(34, 200, Exit::Stop, 0));
    // The long block between 0 and its two successors.
    let result = placed(&blocks, &[0, 4, 1, 3, 2]);
    assert_eq!(result[0], (0, Ending::Same, 6, 5));
}

#[test]
fn entries_are_aligned_with_their_padding_in_front() {
    let mut blocks = diamond();
    blocks[3] =
        Movable { align: 16, lead: 16, lead_named: true, gap: 0, ..block(64, 4, Exit::Stop, 0) };
    blocks[1].exit = Exit::Jump(at(64));
    blocks[2].exit = Exit::Stop;
    blocks[2].gap = 18;
    let result = place(&blocks, &[], &[1, 3, 0, 2], START).unwrap();
    // 12 bytes of block 1, then at least 16 of padding, to the next multiple of 16; its jump is not
    // dropped into padding.
    assert_eq!(result.new[3], at(32));
    assert_eq!(result.ending[1], Ending::Same);
    let map = placement(&blocks, &[], &result);
    assert_eq!(map.new_address(at(48)), Some(at(16)), "the padding is in the map by its symbol");
    assert_eq!(map.new_address(at(64)), Some(at(32)));
}

#[test]
fn a_static_key_grows_with_the_distance_and_parts_its_block_in_the_map() {
    // A site at 4 of block 0, its target 300 bytes away.
    let blocks = vec![
        block(0, 10, Exit::Stop, 0),
        block(10, 300, Exit::Stop, 0),
        block(310, 4, Exit::Stop, 0),
    ];
    let site = [Growing { at: at(4), growth: Growth::WhenFar(at(310)) }];
    let result = place(&blocks, &site, &[0, 1, 2], START).unwrap();
    assert!(result.grown[0]);
    let map = placement(&blocks, &site, &result);
    assert_eq!(map.blocks.len(), 4);
    assert_eq!(map.new_address(at(4)), Some(at(4)));
    assert_eq!(
        map.new_address(at(6)),
        Some(at(9)),
        "what stands behind the site is three bytes farther"
    );
    let near = place(&blocks, &site, &[0, 2, 1], START).unwrap();
    assert!(!near.grown[0]);
}

#[test]
fn a_counter_parts_its_block_and_pushes_branches_out_of_reach() {
    // Block 0 branches 121 bytes on, over a counter in front of each of the two other blocks.
    let blocks = vec![
        block(0, 8, Exit::Branch(at(129)), 2),
        block(8, 121, Exit::Runs, 0),
        block(129, 4, Exit::Stop, 0),
    ];
    let counter = |offset| Growing { at: at(offset), growth: Growth::Always(7) };
    let counters = [counter(4), counter(8), counter(129)];
    let result = place(&blocks, &counters, &[0, 1, 2], START).unwrap();
    assert_eq!(result.new, [at(0), at(19), at(147)], "the near branch has four bytes more");
    assert_eq!(result.tail[0], 6);
    let map = placement(&blocks, &counters, &result);
    assert_eq!(map.new_address(at(3)), Some(at(3)));
    assert_eq!(map.new_address(at(4)), Some(at(4)), "what is counted begins with its counter");
    assert_eq!(map.new_address(at(5)), Some(at(12)), "and goes on behind it");
    assert_eq!(map.new_address(at(8)), Some(at(19)));
    assert_eq!(map.new_address(at(9)), Some(at(27)));
    let sizes: Vec<u32> = map.blocks.iter().map(|b| b.new_size).collect();
    assert_eq!(sizes, [12, 7, 8, 120, 8, 3]);
}

#[test]
fn broken_input_is_named() {
    let blocks = diamond();
    assert_eq!(place(&blocks, &[], &[0, 1, 2], START).unwrap_err(), PlaceError::NoPermutation(4));
    assert_eq!(
        place(&blocks, &[], &[0, 1, 2, 2], START).unwrap_err(),
        PlaceError::NoPermutation(4)
    );
    let mut lost = diamond();
    lost[0].exit = Exit::Branch(at(4000));
    assert_eq!(
        place(&lost, &[], &[0, 1, 2, 3], START).unwrap_err(),
        PlaceError::NoTarget(at(0), at(4000))
    );
    let mut endless = diamond();
    endless[3].exit = Exit::Runs;
    assert_eq!(
        place(&endless, &[], &[0, 1, 2, 3], START).unwrap_err(),
        PlaceError::NoSuccessor(at(30))
    );
    let mut twice = diamond();
    twice[0].size = 9;
    assert_eq!(place(&twice, &[], &[0, 1, 2, 3], START).unwrap_err(), PlaceError::Overlap(at(0)));
}

/// Random blocks, every length and alignment that occurs.
fn random_blocks(random: &mut SplitMix64) -> Vec<Movable> {
    let count = 2 + random.below(60) as usize;
    let mut blocks: Vec<Movable> = Vec::new();
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
        blocks.push(Movable {
            align,
            lead,
            lead_named: lead > 0,
            ..block(start, size, Exit::Stop, 0)
        });
        offset = start + u64::from(size);
    }
    let starts: Vec<LinkAddr> = blocks.iter().map(|b| b.at).collect();
    for i in 0..count {
        let to = starts[random.below(count as u64) as usize];
        let kinds =
            if i + 1 < count && blocks[i].gap == 0 && blocks[i + 1].align == 1 { 4 } else { 2 };
        (blocks[i].exit, blocks[i].tail) = match random.below(kinds) {
            0 => (Exit::Stop, 0),
            1 => (Exit::Jump(to), 5),
            2 => (Exit::Branch(to), 6),
            _ => (Exit::Runs, 0),
        };
        blocks[i].pinned = random.below(8) == 0;
    }
    blocks
}

/// Where control that leaves block `i` comes to, by the new addresses alone: by its branch, and
/// over its end.
fn ways_out(blocks: &[Movable], places: &Places, i: usize) -> (Option<LinkAddr>, Option<LinkAddr>) {
    let block = &blocks[i];
    let end =
        places.new[i].0 + u64::from(block.size) - u64::from(block.tail) + u64::from(places.tail[i]);
    let behind = LinkAddr(end);
    let follower = || places.new[i + 1];
    let target = |to| places.new[blocks.iter().position(|b| b.at == to).unwrap()];
    let over = if places.appended[i] > 0 { follower() } else { behind };
    match (block.exit, places.ending[i]) {
        (Exit::Stop, _) => (None, None),
        (Exit::Runs, _) => (None, Some(over)),
        (Exit::Jump(_), Ending::JumpDropped) => (None, Some(behind)),
        (Exit::Jump(to), _) => (Some(target(to)), None),
        (Exit::Branch(_), Ending::Inverted) => (Some(follower()), Some(behind)),
        (Exit::Branch(to), _) => (Some(target(to)), Some(over)),
    }
}

/// A short branch or an added short jump must reach its target.
fn assert_reaches(
    blocks: &[Movable],
    places: &Places,
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
fn random_code_in_random_order_goes_where_it_went() {
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
                Exit::Stop => vec![],
                Exit::Runs => vec![follower()],
                Exit::Jump(to) => vec![new_of(to)],
                Exit::Branch(to) => vec![new_of(to), follower()],
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
                "seed {seed}: the old order moved something"
            );
        }
    }
}
