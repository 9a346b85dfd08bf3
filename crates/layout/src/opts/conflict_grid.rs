//! Section 4.4: each loop that contains calls gets a logical cache together with the routines that
//! it calls, so that they do not conflict.
//!
//! The grid says which loops call which routines. The most often invoked routine is placed first,
//! at the lowest offset that is free in the logical caches of all loops that call it. It lies in
//! one of these caches. In the others, the same bytes are left to seldom executed code.
//!
//! ```text
//! logical cache of L1:  SelfConfFree | L1 | r1 | r2 | r3   L1 calls r1, r2, r3
//! logical cache of L2:  SelfConfFree | L2  | r4 | gap      L2 calls r2 (placed in L1) and r4
//! ```
//!
//! Input: the sequences. Output: the remaining sequences, and the pieces of each logical cache with
//! their offsets.

use super::OptSParameters;
use super::transitions::Transitions;
use crate::graph::{BlockId, FunctionId};
use crate::hot::HotCode;
use crate::pieces::PieceId;
use std::collections::{BTreeMap, BTreeSet};

/// The content of a logical cache: runs of pieces with the offset of the first, ascending.
pub(super) type CacheContents = Vec<(u64, Vec<PieceId>)>;

/// Removes loops that contain calls, and the routines of the grid, from the sequences. `area` is
/// the size of the SelfConfFree area.
pub(super) fn pull_out(
    hot: &HotCode,
    transitions: &Transitions,
    sequences: Vec<PieceId>,
    area: u64,
    parameters: &OptSParameters,
) -> (Vec<PieceId>, Vec<CacheContents>) {
    let grid = ConflictGrid::new(hot, transitions, &sequences, parameters);
    let mut pulled = vec![false; hot.pieces.len()];
    let mut caches: Vec<LogicalCache> = Vec::new();
    for pieces in &grid.loops {
        let bytes = bytes(hot, pieces, parameters);
        let mut cache = LogicalCache::default();
        if area + bytes <= parameters.cache_bytes {
            cache.put(area, bytes, pieces.clone());
            pieces.iter().for_each(|p| pulled[p.index()] = true);
        }
        caches.push(cache);
    }
    for (routine, callers) in &grid.routines {
        let callers: Vec<usize> =
            callers.iter().copied().filter(|&l| !caches[l].contents.is_empty()).collect();
        let pieces: Vec<PieceId> = grid.pieces(*routine).filter(|p| !pulled[p.index()]).collect();
        let bytes = bytes(hot, &pieces, parameters);
        let (Some(&first), false) = (callers.first(), pieces.is_empty()) else {
            continue;
        };
        // If no offset is free in all of them, the routine stays in the sequences.
        if let Some(offset) = free_in_all(&caches, &callers, bytes, parameters.cache_bytes) {
            pieces.iter().for_each(|p| pulled[p.index()] = true);
            callers.iter().for_each(|&caller| caches[caller].occupy(offset, bytes));
            caches[first].contents.push((offset, pieces));
        }
    }
    let rest = sequences.into_iter().filter(|p| !pulled[p.index()]).collect();
    let contents = caches.into_iter().filter(|cache| !cache.contents.is_empty());
    let sorted = contents.map(|mut cache| {
        cache.contents.sort_by_key(|&(offset, _)| offset);
        cache.contents
    });
    (rest, sorted.collect())
}

/// The largest number of bytes that pieces need at any address. The code before them may end a line
/// too late.
fn bytes(hot: &HotCode, pieces: &[PieceId], parameters: &OptSParameters) -> u64 {
    parameters.line_bytes + pieces.iter().map(|&p| hot.most_bytes(p)).sum::<u64>()
}

/// The lowest offset from which `bytes` are free in all given logical caches.
fn free_in_all(
    caches: &[LogicalCache],
    callers: &[usize],
    bytes: u64,
    cache_bytes: u64,
) -> Option<u64> {
    let taken = || callers.iter().flat_map(|&caller| &caches[caller].taken);
    let overlapping = |offset: u64| {
        taken()
            .filter(|&&(start, end)| start < offset + bytes && offset < end)
            .map(|&(_, end)| end)
            .max()
    };
    let mut offset = 0;
    while let Some(end) = overlapping(offset) {
        offset = end;
    }
    (offset + bytes <= cache_bytes).then_some(offset)
}

#[derive(Default)]
struct LogicalCache {
    contents: CacheContents,
    /// The ranges of offsets that are used, or that are kept free of conflicts.
    taken: Vec<(u64, u64)>,
}

impl LogicalCache {
    /// Places the loop itself. Everything before it belongs to the SelfConfFree area.
    fn put(&mut self, offset: u64, bytes: u64, pieces: Vec<PieceId>) {
        self.occupy(0, offset + bytes);
        self.contents.push((offset, pieces));
    }

    fn occupy(&mut self, offset: u64, bytes: u64) {
        self.taken.push((offset, offset + bytes));
    }
}

struct ConflictGrid {
    /// The pieces of each loop that calls a routine of the grid, in the order of the sequences.
    loops: Vec<Vec<PieceId>>,
    /// The routines, the most often invoked first, with the loops that call them directly or
    /// through other functions.
    routines: Vec<(FunctionId, BTreeSet<usize>)>,
    /// The pieces of each routine, in the order of the sequences.
    pieces: BTreeMap<FunctionId, Vec<PieceId>>,
}

impl ConflictGrid {
    fn new(
        hot: &HotCode,
        transitions: &Transitions,
        sequences: &[PieceId],
        parameters: &OptSParameters,
    ) -> ConflictGrid {
        let mut loops: BTreeMap<usize, Vec<PieceId>> = BTreeMap::new();
        for &piece in sequences {
            let mut blocks = hot.pieces.blocks(piece).map(BlockId);
            if let Some(found) = blocks
                .find_map(|block| transitions.loops.outermost(block, parameters.min_iterations))
            {
                loops.entry(found).or_default().push(piece);
            }
        }
        let called = called_by_loops(hot, transitions, &loops);
        let callees = neighbours(hot.arcs().into_keys());
        let mut kept: Vec<FunctionId> =
            reached(called.keys().copied(), &callees).into_iter().collect();
        kept.sort_by_key(|&routine| (std::cmp::Reverse(hot.entries(routine)), routine));
        kept.truncate(parameters.grid_routines);
        let callers = neighbours(hot.arcs().into_keys().map(|(caller, callee)| (callee, caller)));
        let loops_of = |routine| {
            let leading = reached([routine], &callers);
            leading.iter().filter_map(|function| called.get(function)).flatten().copied().collect()
        };
        let routines: Vec<(FunctionId, BTreeSet<usize>)> =
            kept.into_iter().map(|routine| (routine, loops_of(routine))).collect();
        let calling: BTreeSet<usize> =
            routines.iter().flat_map(|(_, loops)| loops).copied().collect();
        let number: BTreeMap<usize, usize> =
            calling.iter().enumerate().map(|(at, &found)| (found, at)).collect();
        let mut pieces: BTreeMap<FunctionId, Vec<PieceId>> =
            routines.iter().map(|&(routine, _)| (routine, Vec::new())).collect();
        for &piece in sequences {
            if let Some(pieces) = pieces.get_mut(&hot.function_of(piece)) {
                pieces.push(piece);
            }
        }
        ConflictGrid {
            loops: calling.iter().map(|found| loops[found].clone()).collect(),
            routines: routines
                .into_iter()
                .map(|(routine, loops)| {
                    (routine, loops.iter().map(|found| number[found]).collect())
                })
                .collect(),
            pieces,
        }
    }

    fn pieces(&self, routine: FunctionId) -> impl Iterator<Item = PieceId> {
        self.pieces.get(&routine).into_iter().flatten().copied()
    }
}

/// For each function, the loops that call it directly.
fn called_by_loops(
    hot: &HotCode,
    transitions: &Transitions,
    loops: &BTreeMap<usize, Vec<PieceId>>,
) -> BTreeMap<FunctionId, BTreeSet<usize>> {
    let mut called: BTreeMap<FunctionId, BTreeSet<usize>> = BTreeMap::new();
    for (&number, pieces) in loops {
        for arc in pieces.iter().flat_map(|piece| &transitions.calls[piece.index()]) {
            called.entry(hot.function_of(arc.to)).or_default().insert(number);
        }
    }
    called
}

/// The second functions of the pairs, by their first function.
fn neighbours(
    pairs: impl Iterator<Item = (FunctionId, FunctionId)>,
) -> BTreeMap<FunctionId, Vec<FunctionId>> {
    let mut neighbours: BTreeMap<FunctionId, Vec<FunctionId>> = BTreeMap::new();
    for (from, to) in pairs {
        neighbours.entry(from).or_default().push(to);
    }
    neighbours
}

/// Functions, their neighbours, the neighbours of those, and so on.
fn reached(
    from: impl IntoIterator<Item = FunctionId>,
    neighbours: &BTreeMap<FunctionId, Vec<FunctionId>>,
) -> BTreeSet<FunctionId> {
    let mut waiting: Vec<FunctionId> = from.into_iter().collect();
    let mut found = BTreeSet::new();
    while let Some(function) = waiting.pop() {
        if found.insert(function) {
            waiting.extend(neighbours.get(&function).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 10: L1 calls r1, r2 and r3; L2 calls r2 and r4. An offset for r2 must be free in
    /// both.
    #[test]
    fn a_routine_of_two_loops_has_its_place_kept_free_in_the_other() {
        let mut caches = [LogicalCache::default(), LogicalCache::default()];
        caches[0].put(1024, 100, vec![PieceId(0)]);
        caches[1].put(1024, 300, vec![PieceId(1)]);
        assert_eq!(free_in_all(&caches, &[0, 1], 200, 8192), Some(1324));
        caches[0].occupy(1324, 200);
        caches[1].occupy(1324, 200);
        assert_eq!(free_in_all(&caches, &[0], 200, 8192), Some(1124));
        assert_eq!(free_in_all(&caches, &[1], 64, 8192), Some(1524));
        assert_eq!(free_in_all(&caches, &[1], 8000, 8192), None);
    }
}
