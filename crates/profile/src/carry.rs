//! The counts of a profile in another build of the kernel.
//!
//! Input: a profile that knows the shapes of its functions, and the image of the other build.
//! Output: a profile of that build, and how much of the executed code fits. A function is found by
//! its name, and its blocks by the function's shape ([`crate::shape`]). Where the shape has
//! changed, blocks are paired in their order, and the counts of new blocks follow from the flow
//! ([`crate::edges`]). What is not found has no counts. Whatever the counts, a layout is proven
//! like any other: a bad pair costs speed, and nothing else.

use crate::edges::{CountedBlock, derive};
use crate::shape::{self, BlockShape, EndShape, FunctionShape, TargetShape};
use crate::{BlockEpochsTable, Process, Profile};
use anyhow::{Result, ensure};
use image::address::LinkAddr;
use image::{BlockIndex, Image, ImageFunction};
use layout::graph::EdgeKind;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The most pairs of blocks of which the best pairing is sought, by functions with both more.
const MOST_PAIRS: usize = 1 << 24;

/// A profile in terms of another build.
#[derive(Clone, Debug)]
pub struct CarriedProfile {
    /// The counts.
    pub profile: Profile,
    /// How much of the old counts is in them.
    pub fit: CarriedShare,
}

/// How much of the executed code was found in another build. Code weighs its bytes times its
/// executions.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct CarriedShare {
    /// Functions that look as they did.
    pub same: u32,
    /// Functions that were changed.
    pub changed: u32,
    /// Functions that were not found.
    pub lost: u32,
    /// The share of the executed code in functions that look as they did, 0 to 1.
    pub in_same: f64,
    /// The share in blocks of changed functions that were found.
    pub in_changed: f64,
    /// The share that was not found.
    pub in_lost: f64,
    /// The functions with most of what was not found: name, and share of all executed code.
    pub most_lost: Vec<(String, f64)>,
}

/// How many functions [`CarriedShare`] names.
const NAMED: usize = 10;

/// Carries a profile to another build.
///
/// # Errors
/// The profile does not know the shapes of its functions: an earlier version made it, or it is one
/// of a running kernel.
pub fn carry(profile: &Profile, image: &Image) -> Result<CarriedProfile> {
    ensure!(
        profile.blocks.is_empty() || !profile.shapes.is_empty(),
        "it does not say what its functions look like: an earlier version made it, or it is one of \
         a running kernel; make it again from the recording"
    );
    let found = Found::new(profile, image);
    let profile = found.profile(profile, image);
    Ok(CarriedProfile { profile, fit: found.fit })
}

/// The places of the old build's blocks in the new one.
#[derive(Default)]
struct Found {
    places: HashMap<LinkAddr, LinkAddr>,
    /// The changed functions: which of their blocks were found, by number, and the old addresses.
    changed: Vec<(std::ops::Range<u32>, HashMap<u32, LinkAddr>)>,
    fit: CarriedShare,
}

impl Found {
    fn new(profile: &Profile, image: &Image) -> Found {
        let named = Named::of(image);
        let mut found = Found::default();
        let mut taken: HashSet<u32> = HashSet::new();
        let (mut all, mut same, mut changed) = (0.0, 0.0, 0.0);
        let mut lost: Vec<(f64, &str)> = Vec::new();
        for (&entry, old) in &profile.shapes {
            let blocks: Vec<(LinkAddr, f64)> = (old.offsets().zip(&old.blocks))
                .map(|(offset, block)| {
                    let at = LinkAddr(entry.0.wrapping_add(u64::from(offset)));
                    let count = profile.blocks.get(&at).copied().unwrap_or(0);
                    (at, count as f64 * f64::from(block.bytes))
                })
                .collect();
            let executed: f64 = blocks.iter().map(|(_, weight)| weight).sum();
            all += executed;
            let place = named.find(image, old).filter(|&index| taken.insert(index));
            let Some(index) = place else {
                found.fit.lost += 1;
                lost.push((executed, &old.name));
                continue;
            };
            let function = &image.functions[index as usize];
            let new = shape::blocks_of(image, function);
            let pairs = pairs(&old.blocks, &new);
            let first = function.blocks.start;
            let to = |number: usize| image.block(BlockIndex(first + number as u32)).addr;
            found.places.extend(pairs.iter().map(|&(a, b)| (blocks[a].0, to(b))));
            if is_same(&old.blocks, &new) {
                (found.fit.same, same) = (found.fit.same + 1, same + executed);
                continue;
            }
            let paired: f64 = pairs.iter().map(|&(a, _)| blocks[a].1).sum();
            (found.fit.changed, changed) = (found.fit.changed + 1, changed + paired);
            lost.push((executed - paired, &old.name));
            let old_of = pairs.iter().map(|&(a, b)| (first + b as u32, blocks[a].0));
            found.changed.push((function.blocks.clone(), old_of.collect()));
        }
        let share = |part: f64| if all > 0.0 { part / all } else { 0.0 };
        found.fit.in_same = share(same);
        found.fit.in_changed = share(changed);
        found.fit.in_lost = share(lost.iter().map(|(weight, _)| weight).sum());
        lost.retain(|&(weight, _)| weight > 0.0);
        lost.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        let most = lost.into_iter().take(NAMED);
        found.fit.most_lost = most.map(|(weight, name)| (name.to_owned(), share(weight))).collect();
        found
    }

    fn profile(&self, old: &Profile, image: &Image) -> Profile {
        let place = |at: &LinkAddr| self.places.get(at).copied();
        let one = |counts: &BTreeMap<LinkAddr, u64>| -> BTreeMap<LinkAddr, u64> {
            counts.iter().filter_map(|(at, &count)| Some((place(at)?, count))).collect()
        };
        let pair = |counts: &BTreeMap<(LinkAddr, LinkAddr), u64>| {
            let both = counts.iter().filter_map(|((a, b), &n)| Some(((place(a)?, place(b)?), n)));
            both.collect::<BTreeMap<_, _>>()
        };
        // Of pairs without a direction, the lower address stands first.
        let ascending = |counts: &BTreeMap<(LinkAddr, LinkAddr), u64>| {
            let mut all = BTreeMap::new();
            for ((a, b), n) in pair(counts) {
                *all.entry((a.min(b), a.max(b))).or_insert(0) += n;
            }
            all
        };
        let mut profile = Profile {
            merge: old.merge,
            sources: old.sources.clone(),
            blocks: one(&old.blocks),
            calls: pair(&old.calls),
            joint_misses: ascending(&old.joint_misses),
            temporal_edges: ascending(&old.temporal_edges),
            ..Profile::empty(image.build_id.clone())
        };
        for source in &mut profile.sources {
            source.recorded_on.get_or_insert_with(|| old.build_id.clone());
        }
        let edges = old.edges.iter();
        profile.edges = edges
            .filter_map(|((from, to), &count)| Some(((place(from)?, place(to)?), count)))
            .collect();
        let seeds = old.seeds.iter();
        profile.seeds =
            seeds.filter_map(|((at, class), &n)| Some(((place(at)?, *class), n))).collect();
        let epochs = old.block_epochs.blocks.iter();
        profile.block_epochs = BlockEpochsTable {
            words: old.block_epochs.words,
            blocks: epochs.filter_map(|(at, row)| Some((place(at)?, row.clone()))).collect(),
        };
        let process = |process: &Process| Process { blocks: one(&process.blocks), ..*process };
        profile.processes =
            old.processes.iter().map(|(name, of)| (name.clone(), process(of))).collect();
        let names: HashSet<&str> = old.modules.iter().map(|module| module.name.as_str()).collect();
        let modules = image.modules.iter().map(|module| &module.identity);
        profile.modules =
            modules.filter(|module| names.contains(module.name.as_str())).cloned().collect();
        profile.modules.sort();
        for (blocks, old_of) in &self.changed {
            fill(&mut profile, image, blocks, old_of, old);
        }
        profile.describe(image);
        profile
    }
}

/// Gives the new blocks of a changed function their counts, and its edges.
fn fill(
    profile: &mut Profile,
    image: &Image,
    blocks: &std::ops::Range<u32>,
    old_of: &HashMap<u32, LinkAddr>,
    old: &Profile,
) {
    let at = |index: u32| image.block(BlockIndex(index)).addr;
    let shapes = shape::blocks_of(image, image.function_of(BlockIndex(blocks.start)));
    let mut counted: Vec<CountedBlock> = Vec::new();
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut kinds: Vec<EdgeKind> = Vec::new();
    for (number, block) in (0..).zip(&shapes) {
        let target = match block.end {
            EndShape::Jump(TargetShape::Inside(ahead)) => Some((ahead, EdgeKind::Jump)),
            EndShape::Branch(TargetShape::Inside(ahead)) => Some((ahead, EdgeKind::Branch)),
            _ => None,
        };
        let mut add = |to: i64, kind: EdgeKind| {
            if (0..shapes.len() as i64).contains(&to) {
                edges.push((number, to as u32));
                kinds.push(kind);
            }
        };
        if let Some((ahead, kind)) = target {
            add(i64::from(number) + i64::from(ahead), kind);
        }
        if !matches!(block.end, EndShape::Jump(_) | EndShape::Stop) {
            add(i64::from(number) + 1, EdgeKind::FallThrough);
        }
        let leaves = matches!(
            block.end,
            EndShape::Stop
                | EndShape::Jump(TargetShape::Outside(_))
                | EndShape::Branch(TargetShape::Outside(_))
        );
        let known = old_of.get(&(blocks.start + number));
        counted.push(CountedBlock {
            count: known.map(|at| old.blocks.get(at).copied().unwrap_or(0)),
            closed_in: number > 0,
            closed_out: !leaves,
        });
    }
    // Nothing leads to a block that only an exception or a table of jumps enters.
    let entered: HashSet<u32> = edges.iter().map(|&(_, to)| to).collect();
    for (number, block) in (0..).zip(&mut counted) {
        block.closed_in &= entered.contains(&number);
    }
    let derived = derive(&mut counted, &edges);
    // Of the old edges only those stay that the code does not show.
    let own = at(blocks.start)..=at(blocks.end - 1);
    let is_own = |(from, to): &(LinkAddr, LinkAddr)| own.contains(from) && own.contains(to);
    profile.edges.retain(|ends, (kind, _)| *kind == EdgeKind::Indirect || !is_own(ends));
    for (number, block) in (0..).zip(&counted) {
        if let Some(count @ 1..) = block.count {
            profile.blocks.insert(at(blocks.start + number), count);
        }
    }
    for (((from, to), kind), edge) in edges.into_iter().zip(kinds).zip(derived) {
        let ends = (at(blocks.start + from), at(blocks.start + to));
        if edge.count > 0 {
            profile.edges.insert(ends, (kind, edge.count));
        }
    }
}

/// The functions of an image by name.
struct Named<'a> {
    exactly: HashMap<&'a str, Vec<u32>>,
    /// By what the compiler was given: without suffixes.
    roughly: HashMap<(&'a str, &'a str), Vec<u32>>,
}

impl<'a> Named<'a> {
    fn of(image: &'a Image) -> Named<'a> {
        let mut named = Named { exactly: HashMap::new(), roughly: HashMap::new() };
        for (number, ImageFunction { name, .. }) in (0..).zip(&image.functions) {
            named.exactly.entry(name).or_default().push(number);
            named.roughly.entry(rough(name)).or_default().push(number);
        }
        named
    }

    /// The function of the image that is the one with this shape.
    fn find(&self, image: &Image, old: &FunctionShape) -> Option<u32> {
        let like = |numbers: &[u32]| {
            let mut like = numbers.iter().copied().filter(|&number| {
                let function = &image.functions[number as usize];
                is_same(&old.blocks, &shape::blocks_of(image, function))
            });
            like.next().filter(|_| like.next().is_none())
        };
        match self.exactly.get(old.name.as_str()).map(Vec::as_slice) {
            Some([one]) => Some(*one),
            // As many namesakes as before: they have kept their order.
            Some(several) if several.len() == old.namesakes as usize => {
                several.get(old.rank as usize).copied()
            }
            Some(several) => like(several),
            None => match self.roughly.get(&rough(&old.name)).map(Vec::as_slice) {
                Some([one]) if old.namesakes == 1 => Some(*one),
                Some(several) => like(several),
                None => None,
            },
        }
    }
}

/// A name without suffixes, and its module.
fn rough(name: &str) -> (&str, &str) {
    (shape::base_name(name), name.split_once(' ').map_or("", |(_, module)| module))
}

/// Whether two functions have as many blocks that are left in the same ways.
fn is_same(one: &[BlockShape], other: &[BlockShape]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.end == b.end)
}

/// Which blocks of two shapes are the same, by their numbers, ascending in both.
fn pairs(old: &[BlockShape], new: &[BlockShape]) -> Vec<(usize, usize)> {
    if is_same(old, new) {
        return (0..old.len()).map(|n| (n, n)).collect();
    }
    let front = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let back = (old[front..].iter().rev().zip(new[front..].iter().rev()))
        .take_while(|(a, b)| a == b)
        .count();
    let (old_end, new_end) = (old.len() - back, new.len() - back);
    let mut all: Vec<(usize, usize)> = (0..front).map(|n| (n, n)).collect();
    let between = best_pairs(&old[front..old_end], &new[front..new_end]);
    all.extend(between.into_iter().map(|(a, b)| (front + a, front + b)));
    all.extend((0..back).map(|n| (old_end + n, new_end + n)));
    all
}

/// How much two blocks are alike; 0: they are not. That they call the same function says most.
fn likeness(one: &BlockShape, other: &BlockShape) -> u32 {
    use EndShape::{Branch, Call, Jump};
    use TargetShape::{Inside, Outside};
    let ends =
        match (one.end, other.end) {
            (Call(a), Call(b)) if a == b => 12,
            (Jump(Outside(a)), Jump(Outside(b))) | (Branch(Outside(a)), Branch(Outside(b)))
                if a == b =>
            {
                10
            }
            // How far a jump goes changes with the blocks between.
            (Jump(Inside(a)), Jump(Inside(b))) | (Branch(Inside(a)), Branch(Inside(b))) => {
                if a == b { 5 } else { 3 }
            }
            (a, b) if a == b => 2,
            _ => return 0,
        };
    ends + u32::from(one.bytes == other.bytes)
}

/// The pairing with the largest sum of likenesses (Needleman and Wunsch 1970, without a price for
/// gaps).
fn best_pairs(old: &[BlockShape], new: &[BlockShape]) -> Vec<(usize, usize)> {
    let width = new.len() + 1;
    if old.is_empty() || new.is_empty() || old.len() * new.len() > MOST_PAIRS {
        return Vec::new();
    }
    // The best sum of what follows each pair of places.
    let mut best = vec![0_u32; (old.len() + 1) * width];
    for a in (0..old.len()).rev() {
        for b in (0..new.len()).rev() {
            let alike = likeness(&old[a], &new[b]);
            let paired = if alike > 0 { alike + best[(a + 1) * width + b + 1] } else { 0 };
            best[a * width + b] =
                paired.max(best[(a + 1) * width + b]).max(best[a * width + b + 1]);
        }
    }
    let (mut a, mut b) = (0, 0);
    let mut found = Vec::new();
    while a < old.len() && b < new.len() {
        let here = best[a * width + b];
        let alike = likeness(&old[a], &new[b]);
        if alike > 0 && here == alike + best[(a + 1) * width + b + 1] {
            found.push((a, b));
            (a, b) = (a + 1, b + 1);
        } else if here == best[(a + 1) * width + b] {
            a += 1;
        } else {
            b += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::examples::caller_and_callee;
    use image::{Block, BlockEnd, BuildId};

    const OLD: u64 = 0x1000;
    const NEW: u64 = 0x7000;

    fn image(base: u64) -> Image {
        Image { build_id: BuildId(format!("{base:x}")), ..caller_and_callee(LinkAddr(base)) }
    }

    /// f runs a hundred times, and calls g sixty times.
    fn profile() -> Profile {
        let (image, at) = (image(OLD), |offset| LinkAddr(OLD + offset));
        let edge = |from, to, kind, count| ((at(from), at(to)), (kind, count));
        let mut profile = Profile {
            blocks: [(at(0), 100), (at(4), 60), (at(9), 100), (at(0x20), 60)].into(),
            edges: [
                edge(0, 4, EdgeKind::FallThrough, 60),
                edge(0, 9, EdgeKind::Branch, 40),
                edge(4, 9, EdgeKind::FallThrough, 60),
            ]
            .into(),
            calls: [((at(4), at(0x20)), 60)].into(),
            joint_misses: [((at(0), at(0x20)), 5)].into(),
            ..Profile::empty(image.build_id.clone())
        };
        profile.describe(&image);
        profile
    }

    fn counts(profile: &Profile, base: u64) -> Vec<(u64, u64)> {
        profile.blocks.iter().map(|(at, &count)| (at.0 - base, count)).collect()
    }

    fn edges(profile: &Profile, base: u64) -> Vec<(u64, u64, EdgeKind, u64)> {
        let row = |(&(from, to), &(kind, count)): (&(LinkAddr, LinkAddr), &(EdgeKind, u64))| {
            (from.0 - base, to.0 - base, kind, count)
        };
        profile.edges.iter().map(row).collect()
    }

    #[test]
    fn counts_of_unchanged_functions_go_where_these_are_now() {
        // g stands in front of f now.
        let mut image = image(NEW);
        image.functions.swap(0, 1);
        image.functions[0].addr = LinkAddr(NEW - 0x40);
        image.functions[0].blocks = 0..1;
        image.functions[1].blocks = 1..4;
        image.blocks.rotate_right(1);
        image.blocks[0].addr = LinkAddr(NEW - 0x40);
        image.blocks[2].end = BlockEnd::Call(Some(LinkAddr(NEW - 0x40)));
        let CarriedProfile { profile, fit } = carry(&profile(), &image).unwrap();
        let base = NEW - 0x40;
        assert_eq!(counts(&profile, base), [(0, 60), (0x40, 100), (0x44, 60), (0x49, 100)]);
        assert_eq!(profile.calls, [((LinkAddr(NEW + 4), LinkAddr(base)), 60)].into());
        assert_eq!(profile.joint_misses, [((LinkAddr(base), LinkAddr(NEW)), 5)].into());
        let (branch, through) = (EdgeKind::Branch, EdgeKind::FallThrough);
        let expected =
            [(0x40, 0x44, through, 60), (0x40, 0x49, branch, 40), (0x44, 0x49, through, 60)];
        assert_eq!(edges(&profile, base), expected);
        assert_eq!((fit.same, fit.changed, fit.lost, fit.in_same), (2, 0, 0, 1.0));
        assert_eq!(profile.build_id, image.build_id);
        // It can be carried on.
        assert_eq!(profile.shapes.len(), 2);
    }

    /// `f` of [`image()`] with a block of four bytes in front of the call.
    fn with_a_block_more() -> Image {
        let mut image = image(NEW);
        let at = |offset| LinkAddr(NEW + offset);
        image.blocks[0].end = BlockEnd::Branch(at(13));
        image.blocks[1].addr = at(8);
        image.blocks[2].addr = at(13);
        let new = Block { addr: at(4), size: 4, end: BlockEnd::FallThrough, ..image.blocks[2] };
        image.blocks.insert(1, new);
        image.functions[0].blocks = 0..4;
        image.functions[0].size = 15;
        image.functions[1].blocks = 4..5;
        image
    }

    #[test]
    fn a_new_block_gets_the_count_of_its_way() {
        let image = with_a_block_more();
        let CarriedProfile { profile, fit } = carry(&profile(), &image).unwrap();
        assert_eq!(counts(&profile, NEW), [(0, 100), (4, 60), (8, 60), (13, 100), (0x20, 60)]);
        let (branch, through) = (EdgeKind::Branch, EdgeKind::FallThrough);
        let expected =
            [(0, 4, through, 60), (0, 13, branch, 40), (4, 8, through, 60), (8, 13, through, 60)];
        assert_eq!(edges(&profile, NEW), expected);
        assert_eq!((fit.same, fit.changed, fit.lost, fit.in_lost), (1, 1, 0, 0.0));
        assert!(fit.most_lost.is_empty());
        assert_eq!(fit.in_same + fit.in_changed, 1.0);
    }

    #[test]
    fn what_is_not_found_is_named_and_has_no_counts() {
        let mut image = image(NEW);
        image.functions[0].name = "renamed".into();
        let CarriedProfile { profile, fit } = carry(&profile(), &image).unwrap();
        assert_eq!(counts(&profile, NEW), [(0x20, 60)]);
        assert!(profile.edges.is_empty() && profile.calls.is_empty());
        assert_eq!((fit.same, fit.lost), (1, 1));
        // 100 times 4 and 2 bytes and 60 times 5, beside 60 times 2.
        let share = 900.0 / 1020.0;
        assert_eq!((fit.in_lost, fit.most_lost), (share, vec![("f".to_owned(), share)]));
        let error = carry(&Profile { shapes: [].into(), ..self::profile() }, &image).unwrap_err();
        assert!(error.to_string().starts_with("it does not say what its functions look like"));
    }

    #[test]
    fn suffixes_of_compilers_change_and_namesakes_keep_their_order() {
        let mut old = profile();
        let g = LinkAddr(OLD + 0x20);
        old.shapes.get_mut(&g).unwrap().name = "g.constprop.1".into();
        let found = |image: &Image, old: &Profile| carry(old, image).unwrap().profile.blocks.len();
        let mut image = image(NEW);
        image.functions[1].name = "g.constprop.0".into();
        assert_eq!(found(&image, &old), 4);
        // Two functions are called so, and both look like it.
        let again = |image: &mut Image, at: u64| {
            let block = Block { addr: LinkAddr(NEW + at), ..image.blocks[3] };
            let number = image.blocks.len() as u32;
            image.blocks.push(block);
            let function = ImageFunction {
                addr: block.addr,
                blocks: number..number + 1,
                ..image.functions[1].clone()
            };
            image.functions.push(function);
        };
        again(&mut image, 0x40);
        assert_eq!(found(&image, &old), 3);
        let shape = old.shapes.get_mut(&g).unwrap();
        (shape.name, shape.namesakes, shape.rank) = ("g.constprop.0".into(), 2, 1);
        let blocks = carry(&old, &image).unwrap().profile.blocks;
        assert!(blocks.contains_key(&LinkAddr(NEW + 0x40)));
        // One of three now: nobody knows which.
        again(&mut image, 0x60);
        assert_eq!(found(&image, &old), 3);
    }

    #[test]
    fn the_best_pairing_keeps_calls_together() {
        let blocks = |text: &str| shape::from_text(text).unwrap();
        let (old, new) = (blocks("4b3 9ca 3f 5cb 2s"), blocks("4b5 3f 9cc 3f 11ca 5cb 2s"));
        assert_eq!(pairs(&old, &new), [(0, 0), (1, 4), (3, 5), (4, 6)]);
        assert_eq!(pairs(&old, &old).len(), old.len());
        assert_eq!(pairs(&old, &[]), []);
        assert_eq!(pairs(&blocks("4f"), &blocks("4s")), []);
    }
}
