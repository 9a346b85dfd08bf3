//! Gloy and Smith's procedure placement by temporal ordering: procedures that alternate do not
//! share cache lines.
//!
//! N. Gloy, T. Blackwell, M. D. Smith, B. Calder, "Procedure placement using temporal ordering
//! information" (MICRO 1997); N. Gloy, M. D. Smith, "Procedure placement using temporal-ordering
//! information" (TOPLAS 1999). Input: a graph with temporal-relationship edges. Output: its order.
//! `docs/algorithms/gloy-smith.md` explains the idea and our changes.

use crate::chunks::first_of_chunk;
use crate::closest::Closest;
use crate::ext_tsp;
use crate::ext_tsp_parameters::ExtTspParameters;
use crate::filling::Filling;
use crate::graph::{BlockId, FunctionId, Graph, Ordered};
use crate::hot::HotCode;
use crate::pieces::PieceId;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::validate::{InputError, at_least, validate};
use std::collections::{BTreeMap, BTreeSet};

/// ext-TSP for blocks; functions aligned by Gloy and Smith so that those that alternate do not
/// conflict.
pub(crate) const GLOY_SMITH: AlgorithmRow = AlgorithmRow {
    name: "gloy-smith",
    uses: Uses::TemporalEdges,
    order: MakeOrder::One(|graph| gloy_smith(graph, &Default::default())),
};

/// The parameters of Gloy and Smith's placement.
#[derive(Clone, Debug, PartialEq)]
pub struct GloySmithParameters {
    /// The bytes of the direct-mapped cache for which the code is laid out.
    pub cache_bytes: u64,
    /// The bytes of a cache line. Procedures are aligned to lines.
    pub line_bytes: u64,
    /// The popular procedures are those that together make this share of the fetched bytes. The
    /// others fill gaps.
    pub popular_share: f64,
    /// The order of each function's blocks.
    pub blocks: ExtTspParameters,
}

impl Default for GloySmithParameters {
    fn default() -> Self {
        GloySmithParameters {
            cache_bytes: 8192,
            line_bytes: 32,
            popular_share: 0.99,
            blocks: ExtTspParameters::default(),
        }
    }
}

/// The largest number of lines in a cache. The search looks at each line.
const MOST_LINES: u64 = 1 << 16;

impl GloySmithParameters {
    fn validate(&self) -> Result<(), InputError> {
        at_least("popular_share", self.popular_share, 0.0)?;
        let least = (self.cache_bytes / MOST_LINES).max(1);
        at_least("line_bytes", self.line_bytes as f64, least as f64)?;
        at_least("cache_bytes", self.cache_bytes as f64, self.line_bytes as f64)?;
        self.blocks.validate()
    }

    fn lines(&self) -> u64 {
        self.cache_bytes / self.line_bytes
    }
}

/// Orders the blocks of each function by ext-TSP. Aligns the popular functions so that code that
/// alternates does not conflict. Gaps between them are filled with unpopular functions and with
/// cold code. The rest follows.
///
/// # Errors
/// The graph or a parameter breaks a rule.
pub fn gloy_smith(graph: &Graph, parameters: &GloySmithParameters) -> Result<Ordered, InputError> {
    validate(graph)?;
    parameters.validate()?;
    let hot = HotCode::new(graph);
    let flows = hot.edge_transfers_by_function();
    let ran = (0..hot.functions.len() as u32).map(FunctionId);
    let procedure = |function: FunctionId| Procedure {
        function,
        pieces: ext_tsp::within(&hot, function, &flows[function.index()], &parameters.blocks),
    };
    let ran = ran.filter(|f| !hot.functions[f.index()].is_empty()).map(procedure);
    let (popular, others) = by_popularity(&hot, ran.collect(), parameters.popular_share);
    let offsets = CacheAlignment::new(&hot, &popular, parameters).search();
    Ok(hot.finish(linear(&hot, popular, &offsets, others, parameters)))
}

/// The hot blocks of a function, in their new order.
struct Procedure {
    function: FunctionId,
    pieces: Vec<PieceId>,
}

/// The most popular procedures, which together make `share` of all fetched bytes, and the others.
fn by_popularity(
    hot: &HotCode,
    mut procedures: Vec<Procedure>,
    share: f64,
) -> (Vec<Procedure>, Vec<Procedure>) {
    let work = |procedure: &Procedure| hot.work(&[procedure.function]);
    let all: f64 = procedures.iter().map(work).sum();
    procedures.sort_by(|a, b| work(b).total_cmp(&work(a)).then(a.function.cmp(&b.function)));
    let mut fetched = 0.0;
    let popular = procedures.iter().take_while(|procedure| {
        let before = fetched;
        fetched += work(procedure);
        before < share * all
    });
    let popular = popular.count();
    let others = procedures.split_off(popular);
    (procedures, others)
}

/// The hot part of a chunk within its procedure.
struct ProcedureChunk {
    /// The number of the procedure.
    procedure: usize,
    /// The cache lines that the chunk uses when the procedure begins at line 0, in ascending order.
    lines: Vec<u32>,
}

/// The cache-relative alignment of procedures.
struct CacheAlignment {
    lines: usize,
    parts: Vec<ProcedureChunk>,
    /// For each chunk, the chunks of other procedures with which it alternates, and how often.
    alternating: Vec<Vec<(usize, u64)>>,
    /// For each procedure, its chunks.
    parts_of: Vec<Vec<usize>>,
    /// For each procedure, the line at which it begins.
    offsets: Vec<usize>,
    /// For each procedure its group, and for each group its procedures.
    group_of: Vec<usize>,
    groups: Vec<Vec<usize>>,
}

impl CacheAlignment {
    fn new(
        hot: &HotCode,
        procedures: &[Procedure],
        parameters: &GloySmithParameters,
    ) -> CacheAlignment {
        let lines = parameters.lines();
        let chunks = chunks(hot.graph);
        let mut parts = Vec::new();
        let mut parts_of = Vec::new();
        let mut part_of_chunk: BTreeMap<u32, usize> = BTreeMap::new();
        for (number, procedure) in procedures.iter().enumerate() {
            let first = parts.len();
            for (chunk, used) in
                lines_of_chunks(hot, procedure, &chunks, parameters.line_bytes, lines)
            {
                // A block that is glued to another function belongs to that function, but the
                // number of its chunk does not. The first procedure keeps the chunk.
                part_of_chunk.entry(chunk).or_insert(parts.len());
                parts.push(ProcedureChunk { procedure: number, lines: used.into_iter().collect() });
            }
            parts_of.push((first..parts.len()).collect());
        }
        let mut alternating = vec![Vec::new(); parts.len()];
        for edge in hot.graph.temporal_edges.iter().filter(|edge| edge.count > 0) {
            let part = |block: BlockId| part_of_chunk.get(&chunks[block.index()]).copied();
            if let (Some(a), Some(b)) = (part(edge.a), part(edge.b))
                && parts[a].procedure != parts[b].procedure
            {
                alternating[a].push((b, edge.count));
                alternating[b].push((a, edge.count));
            }
        }
        CacheAlignment {
            lines: lines as usize,
            parts,
            alternating,
            parts_of,
            offsets: vec![0; procedures.len()],
            group_of: (0..procedures.len()).collect(),
            groups: (0..procedures.len()).map(|procedure| vec![procedure]).collect(),
        }
    }

    /// Joins the two groups of procedures that alternate most. The second group is shifted to where
    /// it conflicts least with the first. Repeats this until no two groups alternate. Returns the
    /// line at which each procedure begins.
    fn search(mut self) -> Vec<usize> {
        let mut weights: BTreeMap<(usize, usize), u128> = BTreeMap::new();
        for (part, alternating) in self.parts.iter().zip(&self.alternating) {
            for &(other, count) in alternating {
                let (a, b) = (part.procedure, self.parts[other].procedure);
                if a < b {
                    *weights.entry((a, b)).or_default() += u128::from(count);
                }
            }
        }
        let mut closest = Closest::new(self.groups.len(), weights);
        while let Some((a, b)) = closest.pair() {
            let shift = self.least_conflict(a, b);
            for &procedure in &self.groups[b] {
                self.offsets[procedure] = (self.offsets[procedure] + shift) % self.lines;
            }
            let kept = closest.join(a, b);
            let gone = if kept == a { b } else { a };
            let moved = std::mem::take(&mut self.groups[gone]);
            moved.iter().for_each(|&procedure| self.group_of[procedure] = kept);
            self.groups[kept].extend(moved);
        }
        self.offsets
    }

    /// The number of lines by which the second group is shifted so that it conflicts least with the
    /// first. Among equals, the smallest: without any conflict, the second group follows closely.
    fn least_conflict(&self, first: usize, second: usize) -> usize {
        let mut conflicts = vec![0u128; self.lines];
        // The loop runs over the smaller group, so the procedures of a large group are not visited
        // again.
        let turned = self.groups[first].len() > self.groups[second].len();
        let (from, to) = if turned { (second, first) } else { (first, second) };
        let parts = self.groups[from].iter().flat_map(|&procedure| &self.parts_of[procedure]);
        for &part in parts {
            for &(other, count) in &self.alternating[part] {
                if self.group_of[self.parts[other].procedure] == to {
                    let (still, shifted) = if turned { (other, part) } else { (part, other) };
                    self.add_conflicts(still, shifted, count, &mut conflicts);
                }
            }
        }
        let least = conflicts.iter().min();
        conflicts.iter().position(|conflict| Some(conflict) == least).unwrap_or(0)
    }

    /// Adds, for each shift of one chunk, `count` times the number of lines that it then shares
    /// with the chunk that stays.
    fn add_conflicts(&self, still: usize, shifted: usize, count: u64, conflicts: &mut [u128]) {
        let (still, shifted) = (&self.parts[still], &self.parts[shifted]);
        // A chunk that uses every line conflicts the same at every shift.
        if still.lines.len().max(shifted.lines.len()) == self.lines {
            return;
        }
        let apart = self.lines + self.offsets[still.procedure] - self.offsets[shifted.procedure];
        for &line in &still.lines {
            for &other in &shifted.lines {
                conflicts[(apart + self.lines + line as usize - other as usize) % self.lines] +=
                    u128::from(count);
            }
        }
    }
}

/// For each block, the first block of its chunk.
fn chunks(graph: &Graph) -> Vec<u32> {
    let of_function = |range: &std::ops::Range<u32>| {
        let sizes = &graph.sizes[range.start as usize..range.end as usize];
        let start = range.start;
        first_of_chunk(sizes).into_iter().map(move |first| start + first)
    };
    graph.functions.iter().flat_map(of_function).collect()
}

/// For each chunk, the cache lines that its blocks use in a procedure that begins at line 0.
fn lines_of_chunks(
    hot: &HotCode,
    procedure: &Procedure,
    chunks: &[u32],
    line: u64,
    lines: u64,
) -> BTreeMap<u32, BTreeSet<u32>> {
    let mut used: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let mut address = 0;
    for &piece in &procedure.pieces {
        let start = hot.range_from(piece, address).0;
        for block in hot.pieces.blocks(piece) {
            let size = u64::from(hot.graph.sizes[block as usize]);
            let begin = start + hot.start_in_piece(BlockId(block));
            let (first, last) = (begin / line, (begin + size - 1) / line);
            let of_chunk = used.entry(chunks[block as usize]).or_default();
            of_chunk
                .extend((first..=last.min(first + lines - 1)).map(|line| (line % lines) as u32));
        }
        address = hot.range_from(piece, address).1;
    }
    used
}

/// The final list. The popular procedure whose line comes soonest is always next. Gaps before it
/// are filled with unpopular procedures, the largest that fits first, and then with cold pieces.
/// The remaining unpopular procedures follow.
fn linear(
    hot: &HotCode,
    popular: Vec<Procedure>,
    offsets: &[usize],
    others: Vec<Procedure>,
    parameters: &GloySmithParameters,
) -> Vec<PieceId> {
    let (line, lines) = (parameters.line_bytes, parameters.lines());
    let mut waiting: BTreeSet<(u64, usize)> =
        offsets.iter().enumerate().map(|(number, &at)| (at as u64, number)).collect();
    let bytes =
        |procedure: &Procedure| procedure.pieces.iter().map(|&piece| hot.most_bytes(piece)).sum();
    let mut fitting: BTreeMap<(u64, FunctionId), Procedure> = BTreeMap::new();
    for other in others {
        fitting.insert((bytes(&other), other.function), other);
    }
    let mut filling = Filling::new(hot);
    while !waiting.is_empty() {
        let at = filling.address.div_ceil(line) % lines;
        let next = waiting.range((at, 0)..).chain(&waiting).next().copied();
        let Some(next @ (offset, number)) = next else { break };
        waiting.remove(&next);
        let place = filling.address.next_multiple_of(line) + (offset + lines - at) % lines * line;
        while let Some(&largest) = fitting
            .range(..=(place - filling.address, FunctionId(u32::MAX)))
            .next_back()
            .map(|(key, _)| key)
        {
            let other = fitting.remove(&largest);
            other.into_iter().flat_map(|other| other.pieces).for_each(|piece| filling.put(piece));
        }
        filling.fill(place, 0);
        popular[number].pieces.iter().for_each(|&piece| filling.put(piece));
    }
    let mut rest: Vec<Procedure> = fitting.into_values().collect();
    rest.sort_by_key(|procedure| procedure.function);
    rest.into_iter().flat_map(|procedure| procedure.pieces).for_each(|piece| filling.put(piece));
    filling.order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    /// Compares with a count of the shared lines of two chunks at each shift.
    #[test]
    fn conflicts_are_lines_shared() {
        let mut random = SplitMix64::new(7);
        for _ in 0..200 {
            let lines = 2 + random.below(14) as usize;
            let mut part = |procedure| ProcedureChunk {
                procedure,
                lines: (0..lines as u32 - 1).filter(|_| random.below(3) == 0).collect(),
            };
            let parts = vec![part(0), part(1)];
            let alignment = CacheAlignment {
                lines,
                parts,
                alternating: vec![vec![(1, 3)], vec![(0, 3)]],
                parts_of: vec![vec![0], vec![1]],
                offsets: vec![
                    random.below(lines as u64) as usize,
                    random.below(lines as u64) as usize,
                ],
                group_of: vec![0, 1],
                groups: vec![vec![0], vec![1]],
            };
            let mut found = vec![0; lines];
            alignment.add_conflicts(0, 1, 3, &mut found);
            let on = |part: usize, shift: usize| -> BTreeSet<usize> {
                let own = alignment.parts[part].lines.iter();
                own.map(|&line| (line as usize + alignment.offsets[part] + shift) % lines).collect()
            };
            let shared: Vec<u128> = (0..lines)
                .map(|shift| 3 * on(0, 0).intersection(&on(1, shift)).count() as u128)
                .collect();
            assert_eq!(found, shared);
            let least = alignment.least_conflict(0, 1);
            assert_eq!(
                Some(least),
                shared.iter().position(|conflicts| conflicts == shared.iter().min().unwrap())
            );
        }
    }
}
