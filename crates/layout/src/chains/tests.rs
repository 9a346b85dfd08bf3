//! Compares the engine's gains with chains that are written out and scored jump by jump.

use super::*;
use crate::jumps::JumpKind;
use crate::random::SplitMix64;

const NODES: u64 = 12;

/// Nodes, and jumps of every kind between them, from and to any byte of a node.
fn graph(random: &mut SplitMix64) -> (Vec<ChainNode>, Vec<ScoredJump>) {
    let node = |random: &mut SplitMix64| ChainNode {
        size: 1 + random.below(200),
        count: 1 + random.below(50),
    };
    let nodes: Vec<ChainNode> = (0..NODES).map(|_| node(random)).collect();
    let jumps = (0..10 + random.below(30)).map(|_| jump(&nodes, random));
    let jumps: Vec<ScoredJump> = jumps.filter(|jump| jump.from != jump.to).collect();
    (nodes, jumps)
}

fn jump(nodes: &[ChainNode], random: &mut SplitMix64) -> ScoredJump {
    let (from, to) = (random.below(NODES) as u32, random.below(NODES) as u32);
    let (size_from, size_to) = (nodes[from as usize].size, nodes[to as usize].size);
    let inside = random.below(4) == 0;
    let kind = match random.below(3) {
        0 => JumpKind::Together { bytes: size_from + size_to, worth: 0.3, reach: 64 },
        kind => JumpKind::Control { may_fall: kind == 1, conditional: random.below(2) == 0 },
    };
    let control = matches!(kind, JumpKind::Control { .. });
    ScoredJump {
        from,
        to,
        from_end: if inside && control { 1 + random.below(size_from) } else { size_from },
        to_start: if inside && control { random.below(size_to) } else { 0 },
        count: random.below(50),
        kind,
    }
}

/// The nodes of the merged chain of x and y.
fn merged(x: &[u32], y: &[u32], merge: ChainMerge) -> Vec<u32> {
    let (x1, x2) = match merge {
        ChainMerge::XY => (x, &x[x.len()..]),
        ChainMerge::X1YX2(cut) | ChainMerge::YX2X1(cut) | ChainMerge::X2X1Y(cut) => x.split_at(cut),
    };
    match merge {
        ChainMerge::XY | ChainMerge::X1YX2(_) => [x1, y, x2].concat(),
        ChainMerge::YX2X1(_) => [y, x2, x1].concat(),
        ChainMerge::X2X1Y(_) => [x2, x1, y].concat(),
    }
}

/// Every way to merge a chain of `length` nodes with another.
fn all_merges(length: usize) -> Vec<ChainMerge> {
    let cut = |at| [ChainMerge::X1YX2(at), ChainMerge::YX2X1(at), ChainMerge::X2X1Y(at)];
    std::iter::once(ChainMerge::XY).chain((1..length).flat_map(cut)).collect()
}

/// The score of the jumps that are `counted` and have both ends in `order`.
fn score(order: &[u32], chains: &ExtTspChains, counted: impl Fn(&ScoredJump) -> bool) -> f64 {
    let mut starts: BTreeMap<u32, i64> = BTreeMap::new();
    let mut end = 0;
    for &node in order {
        starts.insert(node, end);
        end += chains.nodes[node as usize].size as i64;
    }
    let one = |jump: &ScoredJump| {
        let (from, to) = (starts.get(&jump.from)?, starts.get(&jump.to)?);
        let distance = to + jump.to_start as i64 - from - jump.from_end as i64;
        Some(jump.score(distance, chains.parameters))
    };
    chains.jumps.iter().filter(|&jump| counted(jump)).filter_map(one).sum()
}

/// Whether the engine may merge x and y in this way. The entry stays in front, forced pairs stay
/// together, and a long chain is only cut where a jump to the front of y, or from its end, can
/// become a fall-through.
fn allowed(x: &[u32], y: &[u32], merge: ChainMerge, chains: &ExtTspChains) -> bool {
    let front = |order: &[u32]| Some(order[0]) == chains.entry;
    let order = merged(x, y, merge);
    if (front(x) || front(y)) && !front(&order) {
        return false;
    }
    let (ChainMerge::X1YX2(cut) | ChainMerge::YX2X1(cut) | ChainMerge::X2X1Y(cut)) = merge else {
        return true;
    };
    let (before, behind) = (x[cut - 1], x[cut]);
    let meets = |jump: &ScoredJump| {
        (jump.from, jump.to) == (before, y[0]) || (jump.from, jump.to) == (y[y.len() - 1], behind)
    };
    let offered = x.len() <= chains.parameters.split_threshold || chains.jumps.iter().any(meets);
    chains.forced[before as usize] != Some(behind) && offered
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
}

/// Merges two chains in an allowed way. Checks the result.
fn merge_some(chains: &mut ExtTspChains, random: &mut SplitMix64) {
    let number = random.below(chains.pairs.len() as u64) as u32;
    if chains.pairs[number as usize].jumps.is_empty() {
        return;
    }
    let (x, y) = chains.chains_of(number);
    let (nodes_x, nodes_y) =
        (chains.chains[x as usize].nodes.clone(), chains.chains[y as usize].nodes.clone());
    let mut ways = all_merges(nodes_x.len());
    ways.retain(|&merge| allowed(&nodes_x, &nodes_y, merge, chains));
    let Some(&merge) = ways.get(random.below(ways.len() as u64) as usize) else {
        return;
    };
    let chain = chains.merge_chains(x, y, merge);
    assert_eq!(chains.chains[chain as usize].nodes, merged(&nodes_x, &nodes_y, merge), "{merge:?}");
}

/// Runs `examine` on many graphs, with and without entry, with some chains merged and with and
/// without cuts everywhere.
fn each_pair(mut examine: impl FnMut(&ExtTspChains, &ChainPair, u32, u32)) {
    let mut random = SplitMix64::new(5);
    for _ in 0..300 {
        let (nodes, jumps) = graph(&mut random);
        let parameters = ExtTspParameters {
            split_threshold: [2, 128][random.below(2) as usize],
            ..ExtTspParameters::default()
        };
        let entry = [None, Some(random.below(NODES) as u32)][random.below(2) as usize];
        let mut chains = ExtTspChains::new(&nodes, &jumps, entry, &parameters);
        chains.near_ties = [NearTies::ByGain, NearTies::AsLlvm][random.below(2) as usize];
        (0..random.below(9)).for_each(|_| merge_some(&mut chains, &mut random));
        for number in 0..chains.pairs.len() as u32 {
            let pair = &chains.pairs[number as usize];
            if !pair.jumps.is_empty() {
                let (x, y) = chains.chains_of(number);
                examine(&chains, pair, x, y);
                examine(&chains, pair, y, x);
            }
        }
    }
}

/// For a chain that is not cut everywhere, the bound leaves out the gain of a cut within it.
#[test]
fn the_gain_of_a_pair_is_at_most_its_bound() {
    let mut gained = 0;
    each_pair(|chains, pair, x, y| {
        if !chains.cut_everywhere(&chains.chains[x as usize]) {
            return;
        }
        let bound =
            pair.bound + chains.chains[x as usize].slack.max(chains.chains[y as usize].slack);
        let gain = chains.best_merge(x, y, pair).map_or(0.0, |(gain, _)| gain);
        assert!(gain <= bound * (1.0 + 1e-12), "{gain} of at most {bound}");
        gained += usize::from(gain > 0.0);
    });
    assert!(gained > 1000, "{gained}");
}

#[test]
fn jumps_between_chains_have_their_score_in_the_merged_chain() {
    let (mut scored, mut cut) = (0, 0);
    each_pair(|chains, pair, x, y| {
        let (chain_x, chain_y) = (&chains.chains[x as usize], &chains.chains[y as usize]);
        let between = |jump: &ScoredJump| {
            chain_x.nodes.contains(&jump.from) != chain_x.nodes.contains(&jump.to)
        };
        let across = chains.jumps_between(x, pair);
        for merge in all_merges(chain_x.nodes.len()) {
            let expected = score(&merged(&chain_x.nodes, &chain_y.nodes, merge), chains, between);
            let found = chains.score_between(chain_x, chain_y, merge, &across);
            assert!(close(found, expected), "{found}, not {expected}, for {merge:?}");
            scored += usize::from(expected > 0.0);
            cut += usize::from(merge != ChainMerge::XY);
        }
    });
    assert!(scored > 1000 && cut > 1000, "{scored} scored, {cut} cut");
}

#[test]
fn the_best_merge_raises_the_score_by_its_gain_and_no_other_raises_it_more() {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    each_pair(|chains, pair, x, y| {
        let (x_nodes, y_nodes) =
            (&chains.chains[x as usize].nodes, &chains.chains[y as usize].nodes);
        let before = score(x_nodes, chains, |_| true) + score(y_nodes, chains, |_| true);
        let gain_of =
            |merge: ChainMerge| score(&merged(x_nodes, y_nodes, merge), chains, |_| true) - before;
        let mut ways = all_merges(x_nodes.len());
        ways.retain(|&merge| allowed(x_nodes, y_nodes, merge, chains));
        let most = ways.iter().map(|&merge| gain_of(merge)).fold(0.0, f64::max);
        let best = chains.best_merge(x, y, pair);
        if let Some((gain, merge)) = best {
            assert!(ways.contains(&merge), "{merge:?} of {ways:?}");
            assert!(close(gain, gain_of(merge)), "{gain}, not {}, for {merge:?}", gain_of(merge));
            *kinds
                .entry(format!("{merge:?}").chars().take_while(|&c| c != '(').collect())
                .or_default() += 1;
        }
        let gain = best.map_or(0.0, |(gain, _)| gain);
        assert!(
            close(gain, most) || gain + 2.0 * LEAST_GAIN > most,
            "{gain}, but {most} is possible"
        );
    });
    assert!(kinds.len() == 4 && kinds.values().all(|&found| found > 20), "{kinds:?}");
}

/// A gain that was computed before a chain changed must not be used: its cut would be at another
/// place.
#[test]
fn every_merge_has_its_computed_gain_and_no_chain_exceeds_its_limit() {
    let mut random = SplitMix64::new(11);
    let (mut joins, mut full) = (0, 0);
    for _ in 0..300 {
        let (nodes, jumps) = graph(&mut random);
        let parameters = ExtTspParameters {
            split_threshold: [2, 128][random.below(2) as usize],
            max_chain: 2 + random.below(NODES - 1) as usize,
            ..ExtTspParameters::default()
        };
        let entry = [None, Some(random.below(NODES) as u32)][random.below(2) as usize];
        let mut chains = ExtTspChains::new(&nodes, &jumps, entry, &parameters);
        (0..chains.pairs.len() as u32).for_each(|pair| chains.queue_bound(pair));
        while let Some((gain, PlannedMerge { x, y, merge, .. })) = chains.next_merge() {
            let (x_nodes, y_nodes) =
                (&chains.chains[x as usize].nodes, &chains.chains[y as usize].nodes);
            assert!(allowed(x_nodes, y_nodes, merge, &chains), "{merge:?}");
            let before = score(x_nodes, &chains, |_| true) + score(y_nodes, &chains, |_| true);
            let raised = score(&merged(x_nodes, y_nodes, merge), &chains, |_| true) - before;
            assert!(close(gain, raised), "{gain}, not {raised}, for {merge:?}");
            let chain = chains.merge_chains(x, y, merge);
            let length = chains.chains[chain as usize].nodes.len();
            assert!(
                length <= parameters.max_chain,
                "{length} nodes of at most {}",
                parameters.max_chain
            );
            chains.requeue_changed(chain);
            joins += 1;
            full += usize::from(length == parameters.max_chain);
        }
    }
    assert!(joins > 1000 && full > 100, "{joins} joins, {full} full");
}
