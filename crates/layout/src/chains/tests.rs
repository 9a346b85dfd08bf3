//! The engine's gains, beside those of chains that are written down and scored jump by jump.

use super::*;
use crate::jumps::JumpKind;
use crate::random::SplitMix64;

const NODES: u64 = 12;

/// Nodes, and jumps of every kind between them, from and to any byte of a node.
fn graph(random: &mut SplitMix64) -> (Vec<Node>, Vec<Jump>) {
    let node =
        |random: &mut SplitMix64| Node { size: 1 + random.below(200), count: 1 + random.below(50) };
    let nodes: Vec<Node> = (0..NODES).map(|_| node(random)).collect();
    let jumps = (0..10 + random.below(30)).map(|_| jump(&nodes, random));
    let jumps: Vec<Jump> = jumps.filter(|jump| jump.from != jump.to).collect();
    (nodes, jumps)
}

fn jump(nodes: &[Node], random: &mut SplitMix64) -> Jump {
    let (from, to) = (random.below(NODES) as u32, random.below(NODES) as u32);
    let (size_from, size_to) = (nodes[from as usize].size, nodes[to as usize].size);
    let inside = random.below(4) == 0;
    let kind = match random.below(3) {
        0 => JumpKind::Together { bytes: size_from + size_to, worth: 0.3, reach: 64 },
        kind => JumpKind::Control { may_fall: kind == 1, conditional: random.below(2) == 0 },
    };
    let control = matches!(kind, JumpKind::Control { .. });
    Jump {
        from,
        to,
        from_end: if inside && control { 1 + random.below(size_from) } else { size_from },
        to_start: if inside && control { random.below(size_to) } else { 0 },
        count: random.below(50),
        kind,
    }
}

/// The nodes of x and y, joined.
fn joined(x: &[u32], y: &[u32], merge: Merge) -> Vec<u32> {
    let (x1, x2) = match merge {
        Merge::XY => (x, &x[x.len()..]),
        Merge::X1YX2(cut) | Merge::YX2X1(cut) | Merge::X2X1Y(cut) => x.split_at(cut),
    };
    match merge {
        Merge::XY | Merge::X1YX2(_) => [x1, y, x2].concat(),
        Merge::YX2X1(_) => [y, x2, x1].concat(),
        Merge::X2X1Y(_) => [x2, x1, y].concat(),
    }
}

/// Every way to join a chain of so many nodes with another.
fn merges(length: usize) -> Vec<Merge> {
    let cut = |at| [Merge::X1YX2(at), Merge::YX2X1(at), Merge::X2X1Y(at)];
    std::iter::once(Merge::XY).chain((1..length).flat_map(cut)).collect()
}

/// What those jumps add to the score whose ends both lie in `order`, of those that are `counted`.
fn score(order: &[u32], chains: &Chains, counted: impl Fn(&Jump) -> bool) -> f64 {
    let mut starts: BTreeMap<u32, i64> = BTreeMap::new();
    let mut end = 0;
    for &node in order {
        starts.insert(node, end);
        end += chains.nodes[node as usize].size as i64;
    }
    let one = |jump: &Jump| {
        let (from, to) = (starts.get(&jump.from)?, starts.get(&jump.to)?);
        let distance = to + jump.to_start as i64 - from - jump.from_end as i64;
        Some(jump.score(distance, chains.parameters))
    };
    chains.jumps.iter().filter(|&jump| counted(jump)).filter_map(one).sum()
}

/// Whether the engine may join x and y so: the entry stays in front, what is forced together stays
/// together, and a long chain is only cut where a jump to the front or from the back of y may then
/// run on.
fn allowed(x: &[u32], y: &[u32], merge: Merge, chains: &Chains) -> bool {
    let front = |order: &[u32]| Some(order[0]) == chains.entry;
    let order = joined(x, y, merge);
    if (front(x) || front(y)) && !front(&order) {
        return false;
    }
    let (Merge::X1YX2(cut) | Merge::YX2X1(cut) | Merge::X2X1Y(cut)) = merge else {
        return true;
    };
    let (before, behind) = (x[cut - 1], x[cut]);
    let meets = |jump: &Jump| {
        (jump.from, jump.to) == (before, y[0]) || (jump.from, jump.to) == (y[y.len() - 1], behind)
    };
    let offered = x.len() <= chains.parameters.split_threshold || chains.jumps.iter().any(meets);
    chains.forced[before as usize] != Some(behind) && offered
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
}

/// Joins two chains in some way that is allowed; they must then be what the engine was told.
fn join_some(chains: &mut Chains, random: &mut SplitMix64) {
    let number = random.below(chains.pairs.len() as u64) as u32;
    if chains.pairs[number as usize].jumps.is_empty() {
        return;
    }
    let (x, y) = chains.chains_of(number);
    let (nodes_x, nodes_y) =
        (chains.chains[x as usize].nodes.clone(), chains.chains[y as usize].nodes.clone());
    let mut ways = merges(nodes_x.len());
    ways.retain(|&merge| allowed(&nodes_x, &nodes_y, merge, chains));
    let Some(&merge) = ways.get(random.below(ways.len() as u64) as usize) else {
        return;
    };
    let chain = chains.join(x, y, merge);
    assert_eq!(chains.chains[chain as usize].nodes, joined(&nodes_x, &nodes_y, merge), "{merge:?}");
}

/// Runs `examine` on many graphs with and without entry, some chains of each joined, short ones cut
/// everywhere or not.
fn each_pair(mut examine: impl FnMut(&Chains, &Pair, u32, u32)) {
    let mut random = SplitMix64::new(5);
    for _ in 0..300 {
        let (nodes, jumps) = graph(&mut random);
        let parameters = ExtTspParameters {
            split_threshold: [2, 128][random.below(2) as usize],
            ..ExtTspParameters::default()
        };
        let entry = [None, Some(random.below(NODES) as u32)][random.below(2) as usize];
        let mut chains = Chains::new(&nodes, &jumps, entry, &parameters);
        (0..random.below(9)).for_each(|_| join_some(&mut chains, &mut random));
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

/// Of a chain that is not cut everywhere the bound leaves out what a cut gains within it.
#[test]
fn no_pair_gains_more_than_its_bound() {
    let mut gained = 0;
    each_pair(|chains, pair, x, y| {
        if !chains.cut_everywhere(&chains.chains[x as usize]) {
            return;
        }
        let bound =
            pair.most + chains.chains[x as usize].slack.max(chains.chains[y as usize].slack);
        let gain = chains.best_merge(x, y, pair).map_or(0.0, |(gain, _)| gain);
        assert!(gain <= bound * (1.0 + 1e-12), "{gain} of at most {bound}");
        gained += usize::from(gain > 0.0);
    });
    assert!(gained > 1000, "{gained}");
}

#[test]
fn the_jumps_between_two_chains_add_what_they_score_in_the_joined_one() {
    let (mut scored, mut cut) = (0, 0);
    each_pair(|chains, pair, x, y| {
        let (chain_x, chain_y) = (&chains.chains[x as usize], &chains.chains[y as usize]);
        let between =
            |jump: &Jump| chain_x.nodes.contains(&jump.from) != chain_x.nodes.contains(&jump.to);
        let across = chains.across(x, pair);
        for merge in merges(chain_x.nodes.len()) {
            let expected = score(&joined(&chain_x.nodes, &chain_y.nodes, merge), chains, between);
            let found = chains.between(chain_x, chain_y, merge, &across);
            assert!(close(found, expected), "{found}, not {expected}, for {merge:?}");
            scored += usize::from(expected > 0.0);
            cut += usize::from(merge != Merge::XY);
        }
    });
    assert!(scored > 1000 && cut > 1000, "{scored} scored, {cut} cut");
}

#[test]
fn the_best_merge_gains_what_its_score_is_higher_and_no_other_gains_more() {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    each_pair(|chains, pair, x, y| {
        let (x_nodes, y_nodes) =
            (&chains.chains[x as usize].nodes, &chains.chains[y as usize].nodes);
        let before = score(x_nodes, chains, |_| true) + score(y_nodes, chains, |_| true);
        let gain_of =
            |merge: Merge| score(&joined(x_nodes, y_nodes, merge), chains, |_| true) - before;
        let mut ways = merges(x_nodes.len());
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

/// What waits with a gain of before a chain changed would be joined at a place that is another by
/// now.
#[test]
fn what_is_joined_gains_what_was_computed_and_no_chain_grows_beyond_its_limit() {
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
        let mut chains = Chains::new(&nodes, &jumps, entry, &parameters);
        (0..chains.pairs.len() as u32).for_each(|pair| chains.wait(pair));
        while let Some((gain, Join { x, y, merge, .. })) = chains.best_join() {
            let (x_nodes, y_nodes) =
                (&chains.chains[x as usize].nodes, &chains.chains[y as usize].nodes);
            assert!(allowed(x_nodes, y_nodes, merge, &chains), "{merge:?}");
            let before = score(x_nodes, &chains, |_| true) + score(y_nodes, &chains, |_| true);
            let raised = score(&joined(x_nodes, y_nodes, merge), &chains, |_| true) - before;
            assert!(close(gain, raised), "{gain}, not {raised}, for {merge:?}");
            let chain = chains.join(x, y, merge);
            let length = chains.chains[chain as usize].nodes.len();
            assert!(
                length <= parameters.max_chain,
                "{length} nodes of at most {}",
                parameters.max_chain
            );
            chains.wait_again(chain);
            joins += 1;
            full += usize::from(length == parameters.max_chain);
        }
    }
    assert!(joins > 1000 && full > 100, "{joins} joins, {full} full");
}
