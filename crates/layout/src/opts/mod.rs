//! OptS: sequences of blocks across functions, grown from the kernel's entries, and an area of the
//! cache for the most popular blocks.
//!
//! J. Torrellas, C. Xia, R. Daigle, "Optimizing the instruction cache performance of the operating
//! system" (IEEE Transactions on Computers 1998), sections 4.1 and 4.2. Takes a graph with seeds;
//! gives its order. `docs/algorithms/opts.md` tells the idea and what is ours.

mod conflict_grid;
mod logical_caches;
mod loops;
mod sequences;
mod transitions;

pub use loops::{NaturalLoop, natural_loops};

use crate::graph::{Graph, Ordered};
use crate::hot::Hot;
use crate::validate::{InputError, at_least, at_most, validate};

/// One row of table 4: ExecThresh, and BranchThresh by class of seed; `None` where the class has no
/// sequence yet. All are shares of 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Iteration {
    pub exec: f64,
    pub interrupt: Option<f64>,
    pub page_fault: Option<f64>,
    pub system_call: Option<f64>,
    pub other: Option<f64>,
}

impl Iteration {
    /// The same BranchThresh for every class.
    pub fn uniform(exec: f64, branch: f64) -> Self {
        let branch = Some(branch);
        Iteration {
            exec,
            interrupt: branch,
            page_fault: branch,
            system_call: branch,
            other: branch,
        }
    }
}

/// Where loops with many iterations lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoopArea {
    /// In the sequences, as they come: OptS.
    #[default]
    InSequences,
    /// Apart, behind the sequences: OptL (section 4.3).
    Behind,
    /// Those that call, with their callees in a logical cache each, so that none conflict: Call
    /// (section 4.4). The others stay in the sequences.
    WithCallees,
}

#[derive(Clone, Debug, PartialEq)]
pub struct OptSParameters {
    /// Table 4, from the highest thresholds to the lowest.
    pub schedule: Vec<Iteration>,
    /// Bytes of the cache, and so of a logical cache (section 4.2).
    pub cache_bytes: u64,
    /// Bytes of a cache line. SelfConfFree areas behind the first logical cache are whole lines.
    pub line_bytes: u64,
    /// Bytes of the SelfConfFree area at most (section 5.3); 0 for none.
    pub self_conf_free_bytes: u64,
    /// Popularity, as a share of the most popular block's, from which a block may lie there
    /// (section 5.3).
    pub self_conf_free_cutoff: f64,
    pub loop_area: LoopArea,
    /// Iterations per invocation from which a loop is moved (section 4.3).
    pub min_iterations: f64,
    /// Routines kept in the conflict grid, the most often invoked (section 4.4).
    pub grid_routines: usize,
}

impl Default for OptSParameters {
    fn default() -> Self {
        let row = |exec, interrupt, page_fault, system_call, other| Iteration {
            exec,
            interrupt,
            page_fault,
            system_call,
            other,
        };
        OptSParameters {
            schedule: vec![
                row(0.28, Some(0.4), None, None, None),
                row(0.10, Some(0.1), Some(0.4), None, None),
                row(0.02, Some(0.01), Some(0.1), Some(0.4), None),
                row(2e-3, Some(0.01), Some(0.01), Some(0.1), Some(0.4)),
                row(2e-6, Some(0.001), Some(0.01), Some(0.01), Some(0.1)),
                row(0.0, Some(0.0), Some(0.0), Some(0.0), Some(0.0)),
            ],
            cache_bytes: 8192,
            line_bytes: 64,
            self_conf_free_bytes: 1024,
            self_conf_free_cutoff: 0.4,
            loop_area: LoopArea::InSequences,
            min_iterations: 6.0,
            grid_routines: 50,
        }
    }
}

impl OptSParameters {
    fn validate(&self) -> Result<(), InputError> {
        for row in &self.schedule {
            at_least("schedule.exec", row.exec, 0.0)?;
            for branch in
                [row.interrupt, row.page_fault, row.system_call, row.other].into_iter().flatten()
            {
                at_least("schedule.branch", branch, 0.0)?;
            }
        }
        at_least("self_conf_free_cutoff", self.self_conf_free_cutoff, 0.0)?;
        at_least("min_iterations", self.min_iterations, 1.0)?;
        at_least("line_bytes", self.line_bytes as f64, 1.0)?;
        // Between two areas at least one line is left for sequences.
        let least = self.self_conf_free_bytes.saturating_add(self.line_bytes.saturating_mul(2));
        at_least("cache_bytes", self.cache_bytes as f64, least as f64)
    }
}

/// Loops within loops of a function, each with its blocks, are as many as the square of its blocks.
/// No function of a kernel comes near.
const MOST_BLOCKS_OF_A_FUNCTION: usize = 1 << 14;

fn functions_within_reach(graph: &Graph) -> Result<(), InputError> {
    let largest = graph.functions.iter().map(|blocks| blocks.len()).max().unwrap_or(0);
    at_most(MOST_BLOCKS_OF_A_FUNCTION, "opts", "blocks in one function", largest)
}

/// Grows sequences from the seeds and places them one behind the other, around the SelfConfFree
/// areas. What never ran fills those areas or goes behind, as it was.
pub fn opts(graph: &Graph, parameters: &OptSParameters) -> Result<Ordered, InputError> {
    validate(graph)?;
    functions_within_reach(graph)?;
    parameters.validate()?;
    let hot = Hot::new(graph);
    let transitions = transitions::Transitions::new(&hot);
    let sequences = sequences::sequences(&hot, &transitions, parameters);
    Ok(hot.finish(logical_caches::place(&hot, &transitions, sequences.order, parameters)))
}

/// What a block is to OptL (section 5.1, figure 12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockClass {
    /// In the SelfConfFree area.
    SelfConfFree,
    /// In a sequence with an ExecThresh of at least 0.2 %.
    MainSequence,
    /// In a loop of `min_iterations` or more, and not in the area.
    Loop,
    /// In another sequence.
    OtherSequence,
}

/// The class of each block; `None` for what never ran. Popular blocks are in the area even where
/// they are in a loop, as `opts` lays them.
pub fn classes(
    graph: &Graph,
    parameters: &OptSParameters,
) -> Result<Vec<Option<BlockClass>>, InputError> {
    validate(graph)?;
    functions_within_reach(graph)?;
    parameters.validate()?;
    let hot = Hot::new(graph);
    let transitions = transitions::Transitions::new(&hot);
    let sequences = sequences::sequences(&hot, &transitions, parameters);
    let popular = logical_caches::popular(&hot, &transitions, &sequences.order, parameters);
    let mut classes = vec![None; graph.len()];
    for (number, &piece) in sequences.order.iter().enumerate() {
        let class = if popular[piece.index()] {
            BlockClass::SelfConfFree
        } else if logical_caches::in_loop(&hot, &transitions, piece, parameters.min_iterations) {
            BlockClass::Loop
        } else if number < sequences.main {
            BlockClass::MainSequence
        } else {
            BlockClass::OtherSequence
        };
        hot.pieces.blocks(piece).for_each(|block| classes[block as usize] = Some(class));
    }
    Ok(classes)
}
