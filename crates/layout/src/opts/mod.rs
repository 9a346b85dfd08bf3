//! OptS: sequences of blocks across functions that grow from the kernel's entries, and an area of
//! the cache for the most popular blocks.
//!
//! J. Torrellas, C. Xia, R. Daigle, "Optimizing the instruction cache performance of the operating
//! system" (IEEE Transactions on Computers 1998), sections 4.1 and 4.2. Input: a graph with seeds.
//! Output: its order. `docs/algorithms/opts.md` explains the idea and our changes.

mod conflict_grid;
mod logical_caches;
mod loops;
mod sequences;
mod transitions;

pub use loops::{NaturalLoop, natural_loops};

use crate::graph::{Graph, Ordered};
use crate::hot::HotCode;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::validate::{InputError, at_least, at_most, validate};

/// Torrellas' sequences from the kernel's entries, with the SelfConfFree area.
pub(crate) const OPTS: AlgorithmRow = AlgorithmRow {
    name: "opts",
    uses: Uses::Counts,
    order: MakeOrder::One(|graph| opts(graph, &Default::default())),
};

/// OptS with loops of many iterations apart.
pub(crate) const OPTL: AlgorithmRow = AlgorithmRow {
    name: "optl",
    uses: Uses::Counts,
    order: MakeOrder::One(|graph| with_loops(graph, LoopArea::Behind)),
};

/// OptS with loops that call placed with their callees so that they do not conflict.
pub(crate) const CALL: AlgorithmRow = AlgorithmRow {
    name: "call",
    uses: Uses::Counts,
    order: MakeOrder::One(|graph| with_loops(graph, LoopArea::WithCallees)),
};

fn with_loops(graph: &Graph, loop_area: LoopArea) -> Result<Ordered, InputError> {
    opts(graph, &OptSParameters { loop_area, ..OptSParameters::default() })
}

/// One row of table 4: ExecThresh, and BranchThresh for each class of seed. `None`: the class has
/// no sequence yet. All values are shares of 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleRow {
    /// ExecThresh.
    pub exec: f64,
    /// BranchThresh of interrupts.
    pub interrupt: Option<f64>,
    /// BranchThresh of page faults.
    pub page_fault: Option<f64>,
    /// BranchThresh of system calls.
    pub system_call: Option<f64>,
    /// BranchThresh of other entries.
    pub other: Option<f64>,
}

impl ScheduleRow {
    /// A row with the same BranchThresh for every class.
    pub fn uniform(exec: f64, branch: f64) -> Self {
        let branch = Some(branch);
        ScheduleRow {
            exec,
            interrupt: branch,
            page_fault: branch,
            system_call: branch,
            other: branch,
        }
    }
}

/// Where loops with many iterations are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoopArea {
    /// In the sequences, like other code: OptS.
    #[default]
    InSequences,
    /// In an area of their own behind the sequences: OptL (section 4.3).
    Behind,
    /// Loops that contain calls are placed with their callees, each in a logical cache, so that
    /// none conflict: Call (section 4.4). Other loops stay in the sequences.
    WithCallees,
}

/// The parameters of OptS, OptL and Call.
#[derive(Clone, Debug, PartialEq)]
pub struct OptSParameters {
    /// Table 4, from the highest thresholds to the lowest.
    pub schedule: Vec<ScheduleRow>,
    /// The bytes of the cache, which are also those of a logical cache (section 4.2).
    pub cache_bytes: u64,
    /// The bytes of a cache line. SelfConfFree areas behind the first logical cache have whole
    /// lines.
    pub line_bytes: u64,
    /// The largest size of the SelfConfFree area in bytes (section 5.3); 0 for none.
    pub self_conf_free_bytes: u64,
    /// The least popularity of a block in the area, as a share of the most popular block's (section
    /// 5.3).
    pub self_conf_free_cutoff: f64,
    /// Where loops with many iterations are placed.
    pub loop_area: LoopArea,
    /// The iterations in each invocation from which a loop is moved (section 4.3).
    pub min_iterations: f64,
    /// The number of routines in the conflict grid: the most often invoked ones (section 4.4).
    pub grid_routines: usize,
}

impl Default for OptSParameters {
    fn default() -> Self {
        let row = |exec, interrupt, page_fault, system_call, other| ScheduleRow {
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
        // At least one line between two areas is left for sequences.
        let least = self.self_conf_free_bytes.saturating_add(self.line_bytes.saturating_mul(2));
        at_least("cache_bytes", self.cache_bytes as f64, least as f64)
    }
}

/// The largest number of blocks in a function. Nested loops with their blocks grow with the square
/// of this number. No function of a kernel comes near it.
const MOST_BLOCKS_OF_A_FUNCTION: usize = 1 << 14;

fn functions_within_reach(graph: &Graph) -> Result<(), InputError> {
    let largest = graph.functions.iter().map(|blocks| blocks.len()).max().unwrap_or(0);
    at_most(MOST_BLOCKS_OF_A_FUNCTION, "opts", "blocks in one function", largest)
}

/// The hot code of a graph that OptS can lay out with these parameters.
fn hot_code<'g>(graph: &'g Graph, parameters: &OptSParameters) -> Result<HotCode<'g>, InputError> {
    validate(graph)?;
    functions_within_reach(graph)?;
    parameters.validate()?;
    Ok(HotCode::new(graph))
}

/// Grows sequences from the seeds and places them one behind the other, around the SelfConfFree
/// areas. Cold code fills these areas or follows in its original order.
///
/// # Errors
/// The graph or a parameter breaks a rule, or a function has too many blocks.
pub fn opts(graph: &Graph, parameters: &OptSParameters) -> Result<Ordered, InputError> {
    let hot = hot_code(graph, parameters)?;
    let transitions = transitions::Transitions::new(&hot);
    let sequences = sequences::sequences(&hot, &transitions, parameters);
    Ok(hot.finish(logical_caches::place(&hot, &transitions, sequences.order, parameters)))
}

/// The class of a block in OptL (section 5.1, figure 12).
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

/// The class of each block; `None` for cold blocks. A popular block is in the area even if it is in
/// a loop, as `opts` places it.
///
/// # Errors
/// The same as for [`opts`].
pub fn classes(
    graph: &Graph,
    parameters: &OptSParameters,
) -> Result<Vec<Option<BlockClass>>, InputError> {
    let hot = hot_code(graph, parameters)?;
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
