//! Counts of edges from counts of blocks (Tamches 2001, section 4.1).
//!
//! Input: a graph and the counts of its blocks. Output: the count of each edge, and whether it is
//! exact. When all but one of the edges into (or out of) a block are known, the last one is the
//! block's count minus the known ones. Each end of an edge that stays unknown gives an upper bound;
//! the smaller bound is used.

/// What is known about a block.
#[derive(Clone, Copy, Debug)]
pub struct CountedBlock {
    /// The block's count; `None` when it has no counter.
    pub count: Option<u64>,
    /// Control enters the block only by edges of the graph.
    pub closed_in: bool,
    /// Control leaves the block only by edges of the graph.
    pub closed_out: bool,
}

/// The count of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeCount {
    /// How often control went along the edge; an upper bound unless `exact`.
    pub count: u64,
    /// Whether the count is exact.
    pub exact: bool,
}

/// Derives the counts of `edges` (from, to). A block without a counter gets a count when all edges
/// into it, or all edges out of it, are known.
pub fn derive(blocks: &mut [CountedBlock], edges: &[(u32, u32)]) -> Vec<EdgeCount> {
    let mut into: Vec<Vec<usize>> = vec![Vec::new(); blocks.len()];
    let mut out_of: Vec<Vec<usize>> = vec![Vec::new(); blocks.len()];
    for (n, &(from, to)) in edges.iter().enumerate() {
        out_of[from as usize].push(n);
        into[to as usize].push(n);
    }
    let mut known: Vec<Option<u64>> = vec![None; edges.len()];
    loop {
        let mut changed = false;
        for b in 0..blocks.len() {
            for (closed, side) in
                [(blocks[b].closed_in, &into[b]), (blocks[b].closed_out, &out_of[b])]
            {
                changed |= closed && settle(&mut blocks[b].count, side, &mut known);
            }
        }
        if !changed {
            break;
        }
    }
    let rest = |b: u32, side: &[Vec<usize>]| {
        let sum: u64 = side[b as usize].iter().filter_map(|&n| known[n]).sum();
        blocks[b as usize].count.unwrap_or(0).saturating_sub(sum)
    };
    edges
        .iter()
        .enumerate()
        .map(|(n, &(from, to))| match known[n] {
            Some(count) => EdgeCount { count, exact: true },
            None => EdgeCount { count: rest(from, &out_of).min(rest(to, &into)), exact: false },
        })
        .collect()
}

/// Derives the only unknown edge on one side of a block, or the block's own count. Returns whether
/// a count became known.
fn settle(count: &mut Option<u64>, side: &[usize], known: &mut [Option<u64>]) -> bool {
    let sum: u64 = side.iter().filter_map(|&n| known[n]).sum();
    let mut unknown = side.iter().filter(|&&n| known[n].is_none());
    match (unknown.next(), unknown.next(), *count) {
        (Some(&n), None, Some(count)) => {
            known[n] = Some(count.saturating_sub(sum));
            true
        }
        (None, _, None) if !side.is_empty() => {
            *count = Some(sum);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(counts: &[Option<u64>]) -> Vec<CountedBlock> {
        let last = counts.len() - 1;
        let of = |(n, &count)| CountedBlock { count, closed_in: n > 0, closed_out: n < last };
        counts.iter().enumerate().map(of).collect()
    }

    /// Figure 1 of the paper.
    ///
    /// ```text
    ///      A 1001
    ///     /      \
    ///  B 1000    C 2001 ⟲
    ///     \      /
    ///      D 1001
    /// ```
    #[test]
    fn the_papers_example() {
        let mut counted = blocks(&[Some(1001), Some(1000), Some(2001), Some(1001)]);
        let edges = [(0, 1), (0, 2), (1, 3), (2, 2), (2, 3)];
        let counts: Vec<u64> = derive(&mut counted, &edges).iter().map(|e| e.count).collect();
        assert_eq!(counts, [1000, 1, 1000, 2000, 1]);
    }

    #[test]
    fn a_block_without_a_counter_is_derived() {
        let mut counted = blocks(&[Some(10), Some(4), None, Some(10)]);
        let found = derive(&mut counted, &[(0, 1), (0, 2), (1, 3), (2, 3)]);
        assert!(found.iter().all(|e| e.exact));
        assert_eq!(counted[2].count, Some(6));
    }

    /// The arms of two diamonds cross, so no block has exactly one unknown edge.
    #[test]
    fn what_cannot_be_derived_is_bounded() {
        let mut counted = blocks(&[Some(10), Some(5), Some(5), Some(7), Some(3), Some(10)]);
        let edges = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 5), (4, 5)];
        let found = derive(&mut counted, &edges);
        assert_eq!(found[2], EdgeCount { count: 5, exact: false });
        assert_eq!(found[3], EdgeCount { count: 3, exact: false });
        assert!(found[0].exact && found[6].exact);
    }
}
