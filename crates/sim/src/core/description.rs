//! The numbers of a core, checked once. Numbers that contradict each other give an error that names
//! the rule.
//!
//! All latencies are whole cycles. Those of the L2, the L3 and memory are the machine's
//! [`Latencies`], from the load to its use.
//!
//! Input: numbers. Output: a [`CoreDescription`]. This module simulates nothing.

use super::history;
use super::maker::{SharedUopMaker, UopLatencies};
use super::register_file::RegisterFile;
use super::serialising::Serialising;
use super::tagged;
use crate::geometry::CacheGeometry;
use crate::time::Latencies;
use thiserror::Error;

pub use super::tagged::TaggedTable;

/// An out-of-order core. [`crate::MachineModel::check_core`] says whether it can be built.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreDescription {
    /// The maker that turns instructions into uops.
    pub uops: SharedUopMaker,
    /// Widths and queues of the back end.
    pub window: WindowDescription,
    /// The front end.
    pub front_end: FrontEndDescription,
    /// Branch prediction.
    pub prediction: PredictionDescription,
    /// Caches and TLBs, where [`crate::MemoryDescription`] does not say enough.
    pub memory: CoreMemoryDescription,
    /// How loads behave in a stream without data accesses.
    pub fixed_data: FixedData,
    /// The cycles of each serialising class, by [`Serialising::index`].
    pub serialising: [u32; Serialising::ALL.len()],
}

/// Widths and queues of the back end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowDescription {
    /// The slots that are dispatched in a cycle.
    pub dispatch: u32,
    /// The slots that retire in a cycle.
    pub retire: u32,
    /// Cycles from the end of a slot's last uop to its retirement, at least.
    pub retire_stages: u32,
    /// The slots of the reorder buffer.
    pub reorder_buffer: u32,
    /// The entries of the load queue.
    pub loads: u32,
    /// The loads that can wait for their addresses or a port. `None`: as many as the schedulers
    /// hold.
    pub waiting_loads: Option<u32>,
    /// The entries of the store queue.
    pub stores: u32,
    /// The results that can be in flight, by [`RegisterFile::index`]: registers for renaming.
    /// `None`: as many as the reorder buffer has slots.
    pub results: [Option<u32>; RegisterFile::ALL.len()],
    /// The ports that a uop is bound to when it is dispatched. `None`: it takes any free port of
    /// its scheduler.
    pub bound_ports: Option<PortBinding>,
    /// The microcode of repeated string instructions.
    pub strings: StringSlots,
    /// The schedulers. A uop goes to that of its lowest port, or of the port that it is bound to.
    pub schedulers: Vec<SchedulerDescription>,
}

/// The slots that the microcode of a repeated string instruction takes, which executes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StringSlots {
    /// Before it moves anything.
    pub begin: u32,
    /// Once more if it moves more than 64 bytes.
    pub long: u32,
    /// For each 64 bytes that it loads or stores behind the first ones.
    pub line: u32,
}

/// The ports that a uop is bound to when it is dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortBinding {
    /// The port to which the fewest uops were bound lately.
    Fewest,
    /// A pseudo-random pair.
    Pair,
}

/// A scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerDescription {
    /// The uops that can wait.
    pub entries: u32,
    /// Its ports, one bit each.
    pub ports: u16,
    /// Cycles from the dispatch of a uop to its execution, at least.
    pub stages: u32,
}

/// The front end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontEndDescription {
    /// The fetch targets that the predictor can be ahead of the fetch.
    pub fetch_targets: u32,
    /// The fetch targets predicted in a cycle. The uop cache delivers from the same number of
    /// targets in a cycle.
    pub targets_in_a_cycle: u32,
    /// Cycles from the prediction of a fetch target to the dispatch of its first uop, by way of
    /// the uop cache.
    pub depth: u32,
    /// Cycles that the decoders add to `depth`.
    pub decode_stages: u32,
    /// The instructions decoded in a cycle.
    pub decoders: u32,
    /// The bytes decoded in a cycle.
    pub fetch_bytes: u32,
    /// The slots that wait between decoding and dispatch.
    pub queue: u32,
    /// The uop cache, if there is one.
    pub uop_cache: Option<UopCacheDescription>,
    /// The lines that the L1I waits for at once.
    pub l1i_misses: u32,
    /// Cycles from one request of the L1I to the next one, at least.
    pub l1i_fill: u32,
    /// For a line behind code from the uop cache: whether the L1I is asked when the line's turn has
    /// come, and not when the line is predicted.
    pub request_in_turn: bool,
    /// Cycles from one miss of the first TLB of code to the next one, at least. Then code in the
    /// uop cache is also translated. `None`: only code that comes from the L1I is translated.
    pub itlb_interval: Option<u32>,
}

/// A uop cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UopCacheDescription {
    /// Entries and ways.
    pub geometry: CacheGeometry,
    /// The slots in an entry.
    pub slots: u32,
    /// The slots delivered in a cycle.
    pub width: u32,
    /// Whether code that is entered at two places of a line has entries of its own for each.
    pub by_start: bool,
    /// With it, the uop cache is read by entries, two in a cycle: a line that follows in sequence
    /// begins a cycle, and each pair of a line's entries comes this number of cycles behind the
    /// pair before. Entries go on into the next line in sequence. `None`: it is read by slots.
    pub pair_interval: Option<u32>,
    /// With `pair_interval`: of the cycles that would deliver from two lines, one in this number
    /// delivers from one line only. 0: all deliver from two.
    pub single_lines: u32,
}

/// The predictor of directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectionDescription {
    /// The counters of the base predictor: a power of two.
    pub base_entries: u32,
    /// The tagged tables, all of one size, from the shortest history to the longest.
    pub tables: Vec<TaggedTable>,
    /// Whether the tables share their entries: all together have as many as one.
    pub shared: bool,
}

/// Branch prediction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredictionDescription {
    /// The predictor of directions.
    pub direction: DirectionDescription,
    /// The tagged tables for the targets of indirect branches, in the same order.
    pub indirect: Vec<TaggedTable>,
    /// The branch target buffers, the fastest first. Each holds everything that the levels before
    /// it hold.
    pub targets: Vec<TargetLevel>,
    /// The entries of the return stack.
    pub return_stack: u32,
    /// Cycles from the dispatch of a mispredicted branch, whose operands are ready, to the dispatch
    /// of the first uop of the right path, by way of the uop cache.
    pub mispredict_penalty: u32,
    /// Cycles without a uop when the decoder finds a branch that no target buffer had.
    pub resteer_penalty: u32,
    /// Cycles without a fetch target behind a call, a return or an indirect branch, more than those
    /// of the target buffer that has it.
    pub call_bubble: u32,
    /// The same behind an indirect branch, in addition to `call_bubble`.
    pub indirect_bubble: u32,
    /// Whether a taken branch leaves only two bits in the path: bits 2 and 3 of the address of its
    /// last byte; the targets of the last four branches are known besides. Otherwise it leaves a
    /// hash of where it is and where it goes.
    pub path_of_sources: bool,
    /// Whether only their execution finds taken conditional branches that no target buffer had.
    /// Otherwise the decoder does.
    pub conditionals_by_execution: bool,
}

/// A level of branch target buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetLevel {
    /// Entries and ways. Replacement is LRU, unless it is random.
    pub geometry: CacheGeometry,
    /// The cycles without a new fetch target when this level finds the branch.
    pub bubble: u32,
    /// Whether an entry belongs to a place where control comes into a line of 64 bytes, and holds
    /// up to two branches behind it; otherwise it holds one branch of any place.
    pub by_start: bool,
    /// Whether the entry that gives way is any one of its set. Needs `by_start`.
    pub random: bool,
    /// Whether the entry of a call also holds the return to which the callee comes without another
    /// branch. Needs `by_start`.
    pub returns_with_calls: bool,
}

/// Caches and TLBs of a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreMemoryDescription {
    /// Cycles from a load that hits the L1D to its use.
    pub l1d_latency: u32,
    /// The same for a load into a vector register.
    pub vector_latency: u32,
    /// The same for a load whose index is scaled.
    pub scaled_latency: u32,
    /// Cycles to compute an address of three parts, without a load.
    pub address_latency: u32,
    /// Cycles from a load to its use when an earlier store has the data.
    pub forward_latency: u32,
    /// A load that names its address by the same registers as the store before it takes no time.
    pub renamed_addresses: bool,
    /// The loads whose store is predicted by the stores between, so that they take no time.
    pub predicted_loads: u32,
    /// Cycles that a load waits, after the stores that have parts of its data are written.
    pub blocked_penalty: u32,
    /// Cycles that a load waits behind the data of an earlier store of other bytes whose address
    /// has the same low 12 bits, until that store is written; `None`: whole addresses are compared.
    pub alias_penalty: Option<u32>,
    /// The stores to one line that are written to the L1D in a cycle.
    pub stores_to_a_line: u32,
    /// The stores to any lines that are written to the L1D in a cycle.
    pub stores_in_a_cycle: u32,
    /// Cycles from the operands of an atomic read-modify-write to its result, the load not counted.
    pub atomic_latency: u32,
    /// The lines that the L1D waits for at once.
    pub l1d_misses: u32,
    /// Cycles from one line that comes into the L1D to the next, at least; 0: any number comes in a
    /// cycle.
    pub l1d_fill: u32,
    /// The lines that the L2 waits for at once.
    pub l2_misses: u32,
    /// The second-level TLB, of code and data.
    pub second_tlb: CacheGeometry,
    /// Whether a hash chooses the set of a page in it.
    pub second_tlb_hashed: bool,
    /// Cycles that a miss of a first-level TLB adds.
    pub second_tlb_latency: u32,
    /// Cycles that a page walk adds.
    pub page_walk: u32,
    /// The page walks at once.
    pub page_walkers: u32,
    /// Whether a miss of the L1D prefetches the next line into it.
    pub next_line: bool,
    /// The instructions whose strides the L1D's prefetcher knows: a power of two; 0: no prefetcher.
    pub stride_entries: u32,
    /// The pages whose streams the L2's prefetcher knows; 0: no prefetcher.
    pub streams: u32,
    /// The lines that the L2's prefetcher is ahead.
    pub stream_distance: u32,
    /// Whether the recorded machine's pages lie anywhere in the memory behind the L1s. Then pages
    /// compete for sets of the L2 and L3 as on a machine that has run for a long time.
    pub scattered_pages: bool,
}

/// The behaviour of loads in a stream without data accesses: of a million loads, the ones that find
/// their line in the L2, in the L3, and in memory. All others hit the L1D. The loads of each kind
/// come at equal distances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedData {
    /// Loads that hit the L2.
    pub l2: u32,
    /// Loads that hit the L3.
    pub l3: u32,
    /// Loads from memory.
    pub memory: u32,
}

#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum CoreError {
    #[error("{name} must lie between {from} and {to}, not {value}")]
    Range { name: &'static str, value: u32, from: u32, to: u32 },
    #[error("{name} must be a power of two, not {value}")]
    PowerOfTwo { name: &'static str, value: u32 },
    #[error("the retirement of {retire} slots a cycle is narrower than the dispatch of {dispatch}")]
    NarrowRetirement { retire: u32, dispatch: u32 },
    #[error("the reorder buffer of {buffer} slots is smaller than the {queue} entries of {name}")]
    SmallReorderBuffer { buffer: u32, queue: u32, name: &'static str },
    #[error("at least one scheduler is needed")]
    NoScheduler,
    #[error(
        "mispredict_penalty, {penalty} cycles, must be at least 2 more than depth, {depth} \
         cycles: the branch takes 2 cycles before the front end starts again"
    )]
    ShortPenalty { penalty: u32, depth: u32 },
    #[error("the tables of {name} must be of one size, and {later} entries follow {earlier}")]
    TableSizes { name: &'static str, earlier: u32, later: u32 },
    #[error(
        "the histories of {name} must grow from table to table, or their outcomes, and \
             {later} follows {earlier}"
    )]
    Histories { name: &'static str, earlier: u32, later: u32 },
    #[error("at least one branch target buffer is needed")]
    NoTargetBuffer,
    #[error(
        "a branch target buffer of {later} entries follows one of {earlier}, which is not smaller"
    )]
    TargetLevels { earlier: u32, later: u32 },
    #[error(
        "a branch target buffer with random or returns_with_calls = true needs by_start = true"
    )]
    NotByStart,
    #[error("the shares of fixed_data add up to more than 1")]
    FixedData,
    #[error("a core needs [{0}]")]
    Missing(&'static str),
    #[error("the latency {name} must be a whole number of cycles for a core, not {value}")]
    Fraction { name: &'static str, value: f64 },
    #[error(
        "l1d_latency, {l1d} cycles, must be below the latency of the next level, {next} cycles"
    )]
    L1dLatency { l1d: u32, next: u32 },
}

impl CoreDescription {
    /// The latencies that the uops of this core depend on besides their maker.
    pub fn uop_latencies(&self) -> UopLatencies {
        let memory = &self.memory;
        UopLatencies {
            atomic: memory.atomic_latency as u16,
            vector_load: memory.vector_latency.saturating_sub(memory.l1d_latency) as u16,
            scaled_load: memory.scaled_latency.saturating_sub(memory.l1d_latency) as u16,
            three_part_address: memory.address_latency as u16,
        }
    }

    /// Whether a core with these numbers can be built into a machine with these latencies.
    ///
    /// # Errors
    /// The rule that a number breaks.
    pub(crate) fn check(&self, latencies: &Latencies) -> Result<(), CoreError> {
        self.check_window()?;
        self.check_front_end()?;
        self.check_prediction()?;
        self.check_memory()?;
        for (name, value) in
            [("l2", latencies.l2), ("l3", latencies.l3), ("memory", latencies.memory)]
        {
            if value.fract() != 0.0 {
                return Err(CoreError::Fraction { name, value });
            }
        }
        let (l1d, next) = (self.memory.l1d_latency, latencies.l2 as u32);
        if l1d >= next {
            return Err(CoreError::L1dLatency { l1d, next });
        }
        range("vector_latency", self.memory.vector_latency, l1d, 1000)?;
        range("scaled_latency", self.memory.scaled_latency, l1d, 1000)
    }

    fn check_window(&self) -> Result<(), CoreError> {
        let window = &self.window;
        range("dispatch", window.dispatch, 1, 32)?;
        range("retire", window.retire, 1, 64)?;
        range("string_slots", window.strings.begin, 0, 10_000)?;
        range("long_string_slots", window.strings.long, 0, 10_000)?;
        range("string_line_slots", window.strings.line, 0, 10_000)?;
        range("retire_stages", window.retire_stages, 0, 100)?;
        range("reorder_buffer", window.reorder_buffer, window.dispatch, 1 << 13)?;
        if window.retire < window.dispatch {
            let (retire, dispatch) = (window.retire, window.dispatch);
            return Err(CoreError::NarrowRetirement { retire, dispatch });
        }
        for (name, queue) in [("loads", window.loads), ("stores", window.stores)] {
            range(name, queue, 1, 1 << 13)?;
            if queue > window.reorder_buffer {
                let buffer = window.reorder_buffer;
                return Err(CoreError::SmallReorderBuffer { buffer, queue, name });
            }
        }
        if let Some(loads) = window.waiting_loads {
            range("waiting_loads", loads, 1, window.loads)?;
        }
        for (file, results) in RegisterFile::ALL.into_iter().zip(window.results) {
            if let Some(results) = results {
                // An instruction can have more than one result.
                range(file.name(), results, 8, window.reorder_buffer)?;
            }
        }
        if window.schedulers.is_empty() {
            return Err(CoreError::NoScheduler);
        }
        range("the number of schedulers", window.schedulers.len() as u32, 1, 16)?;
        let entries = window.schedulers.iter().map(|scheduler| scheduler.entries);
        entries
            .clone()
            .try_for_each(|entries| range("the entries of a scheduler", entries, 1, 4096))?;
        let mut stages = window.schedulers.iter().map(|scheduler| scheduler.stages);
        stages.try_for_each(|stages| range("the stages of a scheduler", stages, 1, 100))
    }

    fn check_front_end(&self) -> Result<(), CoreError> {
        let front = &self.front_end;
        range("fetch_targets", front.fetch_targets, 1, 4096)?;
        range("targets_in_a_cycle", front.targets_in_a_cycle, 1, 8)?;
        range("itlb_interval", front.itlb_interval.unwrap_or(0), 0, 100)?;
        range("depth", front.depth, 2, 100)?;
        range("decode_stages", front.decode_stages, 0, 100)?;
        range("decoders", front.decoders, 1, 32)?;
        range("fetch_bytes", front.fetch_bytes, 15, 256)?;
        range("queue", front.queue, self.window.dispatch, 4096)?;
        range("l1i_misses", front.l1i_misses, 1, 256)?;
        range("l1i_fill", front.l1i_fill, 0, 100)?;
        if let Some(cache) = &front.uop_cache {
            range("the slots of an entry of the uop cache", cache.slots, 1, 64)?;
            range("the width of the uop cache", cache.width, 1, 64)?;
            range("uop_cache_pair_interval", cache.pair_interval.unwrap_or(1), 1, 16)?;
            range("uop_cache_single_lines", cache.single_lines, 0, 1024)?;
        }
        Ok(())
    }

    fn check_prediction(&self) -> Result<(), CoreError> {
        let prediction = &self.prediction;
        let direction = &prediction.direction;
        table("base_entries", direction.base_entries)?;
        histories("direction", &direction.tables, tagged::TABLES)?;
        histories("indirect", &prediction.indirect, tagged::TABLES)?;
        let entries = |level: &TargetLevel| {
            level.geometry.sets() * level.geometry.ways() * (1 + u32::from(level.by_start))
        };
        if prediction.targets.is_empty() {
            return Err(CoreError::NoTargetBuffer);
        }
        range("the number of branch target buffers", prediction.targets.len() as u32, 1, 4)?;
        for pair in prediction.targets.windows(2) {
            let (earlier, later) = (entries(&pair[0]), entries(&pair[1]));
            if earlier >= later {
                return Err(CoreError::TargetLevels { earlier, later });
            }
        }
        for level in &prediction.targets {
            range("the bubble of a branch target buffer", level.bubble, 0, 100)?;
            if !level.by_start && (level.random || level.returns_with_calls) {
                return Err(CoreError::NotByStart);
            }
        }
        range("return_stack", prediction.return_stack, 1, 4096)?;
        range("mispredict_penalty", prediction.mispredict_penalty, 1, 1000)?;
        range("resteer_penalty", prediction.resteer_penalty, 1, 1000)?;
        range("call_bubble", prediction.call_bubble, 0, 100)?;
        range("indirect_bubble", prediction.indirect_bubble, 0, 100)?;
        let (penalty, depth) = (prediction.mispredict_penalty, self.front_end.depth);
        match penalty < depth + 2 {
            true => Err(CoreError::ShortPenalty { penalty, depth }),
            false => Ok(()),
        }
    }

    fn check_memory(&self) -> Result<(), CoreError> {
        let memory = &self.memory;
        range("l1d_latency", memory.l1d_latency, 1, 1000)?;
        range("address_latency", memory.address_latency, 1, 100)?;
        range("forward_latency", memory.forward_latency, 1, 1000)?;
        range("predicted_loads", memory.predicted_loads, 0, 256)?;
        range("blocked_penalty", memory.blocked_penalty, 0, 1000)?;
        range("alias_penalty", memory.alias_penalty.unwrap_or(0), 0, 1000)?;
        range("stores_to_a_line", memory.stores_to_a_line, 1, 16)?;
        range("stores_in_a_cycle", memory.stores_in_a_cycle, 1, 16)?;
        range("atomic_latency", memory.atomic_latency, 1, 1000)?;
        range("l1d_misses", memory.l1d_misses, 1, 256)?;
        range("l1d_fill", memory.l1d_fill, 0, 100)?;
        range("l2_misses", memory.l2_misses, 1, 256)?;
        range("second_tlb_latency", memory.second_tlb_latency, 0, 10_000)?;
        range("page_walk", memory.page_walk, 0, 10_000)?;
        range("page_walkers", memory.page_walkers, 1, 64)?;
        if memory.stride_entries > 0 {
            table("stride_entries", memory.stride_entries)?;
        }
        range("streams", memory.streams, 0, 256)?;
        range("stream_distance", memory.stream_distance, 0, 63)?;
        let FixedData { l2, l3, memory } = self.fixed_data;
        if u64::from(l2) + u64::from(l3) + u64::from(memory) > 1_000_000 {
            return Err(CoreError::FixedData);
        }
        self.serialising.iter().try_for_each(|&cycles| {
            range("the cost of a serialising instruction", cycles, 1, 100_000)
        })
    }
}

fn range(name: &'static str, value: u32, from: u32, to: u32) -> Result<(), CoreError> {
    match (from..=to).contains(&value) {
        true => Ok(()),
        false => Err(CoreError::Range { name, value, from, to }),
    }
}

fn table(name: &'static str, value: u32) -> Result<(), CoreError> {
    range(name, value, 1, 1 << 20)?;
    match value.is_power_of_two() {
        true => Ok(()),
        false => Err(CoreError::PowerOfTwo { name, value }),
    }
}

fn histories(name: &'static str, tables: &[TaggedTable], most: usize) -> Result<(), CoreError> {
    range(name, tables.len() as u32, 0, most as u32)?;
    for one in tables {
        table(name, one.entries)?;
        range(name, one.history, 1, history::LONGEST)?;
        range(name, one.outcomes, 0, history::LONGEST)?;
    }
    for pair in tables.windows(2) {
        let (earlier, later) = (pair[0].entries, pair[1].entries);
        if earlier != later {
            return Err(CoreError::TableSizes { name, earlier, later });
        }
        let grows = |one: &TaggedTable| (one.history, one.outcomes);
        if grows(&pair[0]) >= grows(&pair[1]) {
            let (earlier, later) = (pair[0].history, pair[1].history);
            return Err(CoreError::Histories { name, earlier, later });
        }
    }
    Ok(())
}
