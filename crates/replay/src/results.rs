//! Result rows: the counters of one layout on one machine, with everything that they depend on.
//! `replay` and `optimize` write result rows, `report` reads them.
//!
//! This module has the rows and their file (JSON with a checksum). It simulates nothing.

pub mod guard;

pub use crate::{CpuOrder, CpuWaits};
use anyhow::{Context, Result, ensure};
pub use execution::branches::Predictions;
pub use execution::sampling::{Estimate, SamplePlan};
use guard::LayoutLoss;
use image::BuildId;
use image::sealed;
use serde::{Deserialize, Serialize};
use sim::coherent::CoreCounters as CoreCountersOfCpu;
use sim::core::{CoreCounters, CoreSlots};
use sim::{MissCounts, PerMode, TakenBranches};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The layout name of a kernel as its own build laid it out.
pub const ORIGINAL: &str = "original";

/// 2: with a checksum.
const FORMAT: u32 = 2;
/// The oldest format that is still read. It has no checksum.
const OLDEST: u32 = 1;

/// Results of a format that this version does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("results of format {0}; this version reads formats {OLDEST} to {FORMAT}: make them again")]
pub struct UnknownResultFormat(pub u32);

/// A file of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultFile {
    /// The rows, in the order of the file.
    pub rows: Vec<ResultRow>,
}

/// The file.
#[derive(Deserialize)]
struct Document {
    format: u32,
    rows: Vec<ResultRow>,
    #[serde(default)]
    sha256: Option<String>,
}

/// The modules of some rows, those that miss most in the first row first.
pub fn modules_by_misses<'a>(rows: &[&'a ResultRow]) -> Vec<&'a str> {
    let named = |row: &'a ResultRow| row.modules.iter().map(|module| module.name.as_str());
    let names: BTreeSet<&str> = rows.iter().flat_map(|row| named(row)).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_by_key(|name| Reverse(rows.first().map(|row| row.misses_in_module(name))));
    names
}

impl ResultRow {
    /// The kernel's L1I misses in the code of a module.
    pub fn misses_in_module(&self, name: &str) -> u64 {
        let of_name = self.modules.iter().filter(|module| module.name == name);
        of_name.map(|module| module.misses).sum()
    }

    /// The kernel's L1I misses outside of modules.
    pub fn misses_in_vmlinux(&self) -> u64 {
        let of_modules: u64 = self.modules.iter().map(|module| module.misses).sum();
        self.counters.l1i.kernel.total().saturating_sub(of_modules)
    }

    /// Whether two rows are of the same workload, machine and seed.
    pub(crate) fn same_conditions(&self, other: &ResultRow) -> bool {
        (&self.workload, &self.machine, self.seed) == (&other.workload, &other.machine, other.seed)
    }
}

impl ResultFile {
    /// A file of these rows.
    pub fn new(rows: Vec<ResultRow>) -> ResultFile {
        ResultFile { rows }
    }

    /// The rows in a file, or in `results.json` of a directory.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or is not a file of results.
    pub fn read(path: &Path) -> Result<ResultFile> {
        let file = if path.is_dir() { path.join("results.json") } else { path.to_owned() };
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("{}: cannot read these results", file.display()))?;
        ResultFile::from_json(&text).with_context(|| file.display().to_string())
    }

    /// Reads what `to_json` wrote, and the format before it.
    ///
    /// # Errors
    /// The text is not JSON of results, has another format, or is damaged.
    pub fn from_json(text: &str) -> Result<ResultFile> {
        let document: Document = serde_json::from_str(text).context("not a file of results")?;
        ensure!((OLDEST..=FORMAT).contains(&document.format), UnknownResultFormat(document.format));
        sealed::verify_json(text, document.sha256.as_deref(), document.format > OLDEST)
            .context("damaged results")?;
        Ok(ResultFile { rows: document.rows })
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// A number in the rows cannot be written as JSON.
    pub fn to_json(&self) -> Result<String> {
        #[derive(Serialize)]
        struct Fields<'a> {
            format: u32,
            rows: &'a [ResultRow],
            /// Computed from the rows; not read back.
            #[serde(skip_serializing_if = "Vec::is_empty")]
            losses: Vec<LayoutLoss>,
        }
        let losses = guard::losses(&self.rows);
        let fields = Fields { format: FORMAT, rows: &self.rows, losses };
        Ok(sealed::json(&serde_json::to_string_pretty(&fields)?))
    }
}

/// Which execution was simulated. Recorded and predicted numbers never share a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResultKind {
    /// A recording of the kernel with this layout, at its own addresses.
    Recorded,
    /// A recording of the original kernel, carried over to the layout's addresses.
    Predicted,
}

/// The counters of one layout on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultRow {
    /// The recorded workload.
    pub workload: String,
    /// The kernel that was recorded.
    pub kernel: BuildId,
    /// The layout's name.
    pub layout: String,
    /// The simulated machine.
    pub machine: String,
    /// The seed of the recording.
    pub seed: u64,
    /// Which execution was simulated.
    pub kind: ResultKind,
    /// The other conditions of the recording: QEMU, its arguments, and so on.
    pub conditions: BTreeMap<String, String>,
    /// The counters.
    pub counters: ResultCounters,
    /// The lower bound for any layout; of the original, on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<MissBound>,
    /// The kernel functions with the most L1I misses, the most first. Empty without a kernel image
    /// to name them.
    pub functions: Vec<FunctionMisses>,
    /// The L1I misses in the code of each module that ran, by name. They are misses of the kernel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<ModuleMisses>,
    /// The kernel functions with the most data misses, the most first. Empty without a kernel image
    /// or data accesses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_functions: Vec<FunctionDataMisses>,
}

/// The counts of one layout beside those of the original, on the same recording and machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TestedLayout {
    /// The layout algorithm.
    pub algorithm: String,
    /// The profiles that the layout was made from.
    pub trained: String,
    /// The workload of the recording that the layout was tested on.
    pub tested: String,
    /// The simulated machine.
    pub machine: String,
    /// L1I misses of kernel and user together: original, layout.
    pub misses: [u64; 2],
    /// Direct jumps that the kernel takes, conditional or not.
    pub jumps: [u64; 2],
}

/// Misses of an ideal L1I of the machine's size, by mode (`bound.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissBound {
    /// With Belady's replacement, which knows the future: the lower bound for any layout.
    pub belady: PerMode<u64>,
    /// With LRU replacement.
    pub lru: PerMode<u64>,
}

/// Counters of the data caches, of the levels behind the L1, and of the TLBs, from a recording with
/// data accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryCounters {
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Misses of the L1D.
    pub l1d: MissCounts,
    /// Misses on instructions. 0 where the machine has no such level.
    pub l2_instructions: MissCounts,
    /// L2 misses on data.
    pub l2_data: MissCounts,
    /// L3 misses on instructions.
    pub l3_instructions: MissCounts,
    /// L3 misses on data.
    pub l3_data: MissCounts,
    /// Misses of the data TLB.
    pub dtlb: u64,
    /// Cycles of a single-issue machine with blocking caches (SimOS' 1994 model).
    pub cycles: f64,
    /// Cycles stalled for instructions that the L1I lacked and the L2 had.
    pub stall_l1i: f64,
    /// Cycles stalled for data that the L1D lacked and the L2 had.
    pub stall_l1d: f64,
    /// Cycles stalled for instructions that the L2 lacked.
    pub stall_l2i: f64,
    /// Cycles stalled for data that the L2 lacked.
    pub stall_l2d: f64,
    /// Cycles stalled for TLB misses.
    pub stall_tlb: f64,
}

impl MemoryCounters {
    /// The counters of a machine; `None` when it describes no data cache.
    pub(crate) fn new(
        machine: &sim::MachineModel,
        counters: &sim::MachineCounters,
    ) -> Option<MemoryCounters> {
        let stalls = machine.stalls(counters)?;
        Some(MemoryCounters {
            loads: counters.loads,
            stores: counters.stores,
            l1d: counters.l1d,
            l2_instructions: counters.l2i,
            l2_data: counters.l2d,
            l3_instructions: counters.l3i,
            l3_data: counters.l3d,
            dtlb: counters.dtlb,
            cycles: machine.cycles(counters)?,
            stall_l1i: stalls.l1i,
            stall_l1d: stalls.l1d,
            stall_l2i: stalls.l2i,
            stall_l2d: stalls.l2d,
            stall_tlb: stalls.tlb,
        })
    }
}

/// What was counted, by mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultCounters {
    /// Executed instructions.
    pub instructions: PerMode<u64>,
    /// Bytes fetched.
    pub fetched_bytes: PerMode<u64>,
    /// Misses of the L1I by cause.
    pub l1i: PerMode<MissCounts>,
    /// `None` where the machine describes no instruction TLB.
    pub itlb: Option<PerMode<u64>>,
    /// Taken branches by kind.
    pub taken: PerMode<TakenBranches>,
    /// Lines of the machine's L1I from which at least one byte was fetched.
    pub touched_lines: PerMode<u64>,
    /// Pages of 4 KB from which at least one byte was fetched.
    pub touched_pages: PerMode<u64>,
    /// Cycles by Torrellas' simple model (1998, section 5.2).
    pub cycles: f64,
    /// Exceptions, interrupts and system calls.
    pub interruptions: u64,
    /// Conditional branches whose direction the recording does not show.
    pub unresolved_branches: u64,
    /// Steps that no processor could make under the placement; 0 for a correct placement.
    pub breaks: u64,
    /// `None` for a recording without data accesses, or a machine that describes no data cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<PerMode<MemoryCounters>>,
    /// `None` when prediction was not simulated, or the machine describes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branches: Option<PerMode<Predictions>>,
    /// `None` when the machine describes no out-of-order core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreResult>,
    /// `None` when the machine or the recording has one CPU, or there are no data accesses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coherence: Option<CoherenceResult>,
}

/// What each CPU of a multiprocessor counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoherenceResult {
    /// The order in which the CPUs made their steps.
    #[serde(default)]
    pub order: CpuOrder,
    /// By CPU.
    pub cpus: Vec<PerMode<CpuResult>>,
    /// By CPU: the cycle in which its last step ended. `None`: the order is that of the recording,
    /// in which CPUs have no common time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Vec<f64>>,
}

/// What a CPU counted in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuResult {
    /// Its counters.
    pub counters: CoreCountersOfCpu,
    /// Cycles for which a core with blocking caches stops: for lines that the L1 lacked and the L2
    /// had, for lines that the L2 lacked, for upgrades, for TLB misses.
    pub stalls: [f64; 4],
    /// Cycles in which the CPU did nothing; `None`: the order is that of the recording.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<CpuWaits>,
}

/// How near the cycles of an out-of-order core are to those of simulating everything in detail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampledResult {
    /// Where the samples lie.
    pub plan: SamplePlan,
    /// The number of units.
    pub units: u64,
    /// Half of the 95 % interval of the cycles of each mode, in per cent of them.
    pub within: PerMode<f64>,
    /// The same of both modes together.
    pub within_all: f64,
    /// By how many per cent the cycles differ from the original's, with half of the 95 % interval:
    /// of the kernel, of user code, and of both. `None` for the original.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<[Estimate; 3]>,
}

/// What an out-of-order core counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreResult {
    /// The slots of a cycle: dispatch, and graduation.
    pub widths: [u32; 2],
    /// Cycles from the first instruction to the last.
    pub cycles: u64,
    /// The counters of each mode.
    pub counters: PerMode<CoreCounters>,
    /// Executions of instructions that the table of uops does not know, by mnemonic.
    pub unknown: BTreeMap<String, u64>,
    /// The functions with the most slots, and two rows for everything else: the sum is that of both
    /// modes. Empty when functions were not named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionSlots>,
    /// What was estimated from samples; `None`: everything was simulated in detail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<SampledResult>,
}

/// Where the slots of a function go. A lost slot counts for the function that ends the wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionSlots {
    /// The function's name, [`USER_CODE`] or [`OTHER_CODE`].
    pub name: String,
    /// Its slots.
    #[serde(flatten)]
    pub slots: CoreSlots,
}

/// All user code, as a row of [`CoreResult::functions`].
pub const USER_CODE: &str = "(user code)";

/// All other functions of the kernel, and its code without a name, as a row of
/// [`CoreResult::functions`].
pub const OTHER_CODE: &str = "(other kernel code)";

impl CoreResult {
    /// The cycles of a mode: its slots, divided by the width.
    pub fn mode_cycles(&self, counters: &CoreCounters) -> f64 {
        counters.slots.total() as f64 / f64::from(self.widths[0].max(1))
    }

    /// The cycles that a mode lost to the front end: latency and bandwidth.
    pub(crate) fn front_end_cycles(&self, counters: &CoreCounters) -> f64 {
        let slots = counters.slots.front_end_latency + counters.slots.front_end_bandwidth;
        slots as f64 / f64::from(self.widths[0].max(1))
    }
}

impl ResultCounters {
    /// L1I misses of kernel and user together.
    pub fn misses(&self) -> u64 {
        self.l1i.kernel.total() + self.l1i.user.total()
    }

    /// Direct jumps that the kernel takes, conditional or not.
    pub fn kernel_jumps(&self) -> u64 {
        self.taken.kernel.of_layout()
    }
}

/// The misses in the code of one module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleMisses {
    /// The module's name.
    pub name: String,
    /// Its L1I misses.
    pub misses: u64,
}

/// The misses of one kernel function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionMisses {
    /// The function's name.
    pub name: String,
    /// Its L1I misses.
    pub misses: u64,
    /// Bytes of its blocks that ran.
    pub hot_bytes: u64,
    /// Bytes of its other blocks.
    pub cold_bytes: u64,
}

/// The data misses of one kernel function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionDataMisses {
    /// The function's name.
    pub name: String,
    /// L1D misses.
    pub l1d: u64,
    /// L2 misses on data.
    pub l2: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{original, predicted, recorded};

    #[test]
    fn results_survive_their_file() {
        let results = ResultFile::new(vec![original(), predicted(), recorded()]);
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("results.json"), results.to_json().unwrap()).unwrap();
        assert_eq!(ResultFile::read(directory.path()).unwrap(), results);
        assert_eq!(ResultFile::read(&directory.path().join("results.json")).unwrap(), results);
    }

    #[test]
    fn results_name_the_layouts_that_lose() {
        let mut worse = predicted();
        worse.counters.l1i.kernel.own = 3170;
        let losses = |rows| {
            let text = ResultFile::new(rows).to_json().unwrap();
            ResultFile::from_json(&text).unwrap();
            serde_json::from_str::<serde_json::Value>(&text).unwrap()["losses"].clone()
        };
        let found = losses(vec![original(), worse]);
        assert_eq!(found[0]["layout"], "ext-tsp");
        assert!((found[0]["more"][0]["share"].as_f64().unwrap() - 2.2).abs() < 1e-9, "{found}");
        assert!(losses(vec![original(), predicted()]).is_null());
    }

    #[test]
    fn damaged_results_are_refused() {
        // Small, since every byte is damaged in many ways.
        let mut row = original();
        row.functions.truncate(1);
        let text = ResultFile::new(vec![row]).to_json().unwrap();
        sealed::assert_damage_is_noticed(&text, |text| ResultFile::from_json(text).ok());
        let unnumbered = text.replacen("\"format\": 2", "\"format\": 1", 1);
        assert!(ResultFile::from_json(&unnumbered).is_err());
        assert!(ResultFile::from_json(&unnumbered.replace("sha256", "sha25x")).is_err());
    }

    #[test]
    fn other_files_are_named_errors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.json");
        let message = || format!("{:#}", ResultFile::read(&path).unwrap_err());
        assert!(message().contains("r.json: cannot read these results"));
        std::fs::write(&path, "{}").unwrap();
        assert!(message().contains("r.json: not a file of results: missing field"));
        std::fs::write(&path, "{\"format\": 9, \"rows\": []}").unwrap();
        assert!(message().contains("results of format 9; this version reads formats 1 to 2"));
        std::fs::write(&path, "{\"format\": 1, \"rows\": []}\n").unwrap();
        assert_eq!(ResultFile::read(&path).unwrap(), ResultFile::new(Vec::new()));
    }
}
