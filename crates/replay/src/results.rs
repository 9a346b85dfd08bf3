//! Result rows: what one layout did on one machine, with everything that the numbers depend on.
//! `replay` and `optimize` write them, `report` reads them.

use anyhow::{Context, Result, bail};
pub use execution::branches::Predictions;
use image::BuildId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The layout's name of a kernel as its own build laid it out.
pub const ORIGINAL: &str = "original";

const FORMAT: u32 = 1;

/// A file of rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    pub format: u32,
    pub rows: Vec<Row>,
}

impl Results {
    pub fn new(rows: Vec<Row>) -> Results {
        Results { format: FORMAT, rows }
    }

    /// The rows in a file, or in `results.json` of a directory.
    pub fn read(path: &Path) -> Result<Results> {
        let file = if path.is_dir() { path.join("results.json") } else { path.to_owned() };
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("{}: cannot read these results", file.display()))?;
        Results::from_json(&text).with_context(|| file.display().to_string())
    }

    /// Reads what `to_json` wrote.
    ///
    /// # Errors
    /// No JSON of results, or another format.
    pub fn from_json(text: &str) -> Result<Results> {
        let results: Results = serde_json::from_str(text).context("not a file of results")?;
        if results.format != FORMAT {
            bail!("results of format {}, only {FORMAT} is known", results.format);
        }
        Ok(results)
    }

    pub fn to_json(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }
}

/// Which execution was simulated. The two never share a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A recording of the very kernel whose layout this is, at its own addresses.
    Recorded,
    /// A recording of the original kernel, carried over to the layout's addresses.
    Predicted,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub workload: String,
    /// The kernel that was recorded.
    pub kernel: BuildId,
    pub layout: String,
    pub machine: String,
    /// The seed of the recording.
    pub seed: u64,
    pub kind: Kind,
    /// What else the recording depends on: QEMU, its arguments, and so on.
    pub conditions: BTreeMap<String, String>,
    pub counters: Counters,
    /// What no layout can do better; of the original, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    /// The kernel functions with the most L1I misses, most first; empty when no kernel image was at
    /// hand to name them.
    pub functions: Vec<FunctionMisses>,
    /// The kernel functions with the most data misses, most first; empty as above, or when there is
    /// nothing to count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_functions: Vec<FunctionDataMisses>,
}

/// What one layout came to, against the original on the same recording and machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tested {
    pub algorithm: String,
    /// What the layout was made from.
    pub trained: String,
    /// The workload of the recording that it was tested on.
    pub tested: String,
    pub machine: String,
    /// L1I misses of kernel and user together, of the original and of the layout.
    pub misses: [u64; 2],
    /// Direct jumps of the kernel that are taken, conditional or not.
    pub jumps: [u64; 2],
}

/// Misses of an L1I of the machine's size that wastes nothing, by whose code missed (`bound.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// With replacement that knows the future: no layout misses less.
    pub belady: Sides<u64>,
    /// Least recently used out first.
    pub lru: Sides<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sides<T> {
    pub kernel: T,
    pub user: T,
}

impl Sides<u64> {
    pub fn total(&self) -> u64 {
        self.kernel + self.user
    }
}

impl<T, U: From<T>> From<sim::PerMode<T>> for Sides<U> {
    fn from(modes: sim::PerMode<T>) -> Sides<U> {
        Sides { kernel: modes.kernel.into(), user: modes.user.into() }
    }
}

/// Misses of a cache by cause (Torrellas 1998, sections 2.2 and 5.1; SimOS 1995, section 4.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misses {
    pub cold: u64,
    /// The line had been evicted by who misses it now: the kernel, or, where data accesses were
    /// recorded, the same process, else any.
    #[serde(rename = "self")]
    pub own: u64,
    pub other: u64,
}

impl Misses {
    pub fn total(&self) -> u64 {
        self.cold + self.own + self.other
    }
}

impl From<sim::Misses> for Misses {
    fn from(misses: sim::Misses) -> Misses {
        Misses { cold: misses.cold, own: misses.own, other: misses.other }
    }
}

/// What caches and TLBs of data and those behind the L1 did; from a recording with data accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    pub loads: u64,
    pub stores: u64,
    pub l1d: Misses,
    /// By what was missed: instructions, data. 0 where the machine has no such level.
    pub l2_instructions: Misses,
    pub l2_data: Misses,
    pub l3_instructions: Misses,
    pub l3_data: Misses,
    pub dtlb: u64,
    /// Of a single-issue machine with blocking caches (SimOS' 1994 model).
    pub cycles: f64,
    /// Cycles of these for which it waited: for what the L1 lacked and the L2 had, for what the L2
    /// lacked, for TLBs.
    pub stall_l1i: f64,
    pub stall_l1d: f64,
    pub stall_l2i: f64,
    pub stall_l2d: f64,
    pub stall_tlb: f64,
}

impl Memory {
    /// What these counters are on the machine; `None` when it describes no data cache.
    pub fn new(machine: &sim::Machine, counters: &sim::Counters) -> Option<Memory> {
        let stalls = machine.stalls(counters)?;
        Some(Memory {
            loads: counters.loads,
            stores: counters.stores,
            l1d: counters.l1d.into(),
            l2_instructions: counters.l2i.into(),
            l2_data: counters.l2d.into(),
            l3_instructions: counters.l3i.into(),
            l3_data: counters.l3d.into(),
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

/// Branches that were taken, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    pub conditional: u64,
    /// Unconditional direct jumps.
    pub jump: u64,
    pub call: u64,
    #[serde(rename = "return")]
    pub ret: u64,
    /// Indirect jumps and calls.
    pub indirect: u64,
}

impl Taken {
    /// Those that a layout decides about.
    pub fn of_layout(&self) -> u64 {
        self.conditional + self.jump
    }
}

impl From<sim::TakenBranches> for Taken {
    fn from(taken: sim::TakenBranches) -> Taken {
        Taken {
            conditional: taken.conditional,
            jump: taken.jump,
            call: taken.call,
            ret: taken.ret,
            indirect: taken.indirect,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    pub instructions: Sides<u64>,
    pub fetched_bytes: Sides<u64>,
    pub l1i: Sides<Misses>,
    /// `None` where the machine describes no instruction TLB.
    pub itlb: Option<Sides<u64>>,
    pub taken: Sides<Taken>,
    /// Lines of the machine's L1I from which something was fetched.
    pub touched_lines: Sides<u64>,
    /// Pages of 4 KB from which something was fetched.
    pub touched_pages: Sides<u64>,
    /// Torrellas' simple model (1998, section 5.2).
    pub cycles: f64,
    /// Exceptions, interrupts and system calls.
    pub interruptions: u64,
    /// Conditional branches of which the recording does not show which way they went.
    pub unresolved_branches: u64,
    /// Steps that no processor could do under the placement; 0 when it is right.
    pub breaks: u64,
    /// `None` for a recording without data accesses, or a machine that describes no data cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Sides<Memory>>,
    /// `None`: not asked for, or the machine describes no branch prediction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branches: Option<Sides<Predictions>>,
}

impl Counters {
    /// L1I misses of kernel and user together.
    pub fn misses(&self) -> u64 {
        self.l1i.kernel.total() + self.l1i.user.total()
    }

    /// Direct jumps of the kernel that are taken, conditional or not.
    pub fn kernel_jumps(&self) -> u64 {
        self.taken.kernel.of_layout()
    }
}

/// The misses of one kernel function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionMisses {
    pub name: String,
    pub misses: u64,
    /// Bytes of its blocks that ran, and of the others.
    pub hot_bytes: u64,
    pub cold_bytes: u64,
}

/// The data misses of one kernel function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionDataMisses {
    pub name: String,
    pub l1d: u64,
    pub l2: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{original, predicted, recorded};

    #[test]
    fn results_survive_their_file() {
        let results = Results::new(vec![original(), predicted(), recorded()]);
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("results.json"), results.to_json().unwrap()).unwrap();
        assert_eq!(Results::read(directory.path()).unwrap(), results);
        assert_eq!(Results::read(&directory.path().join("results.json")).unwrap(), results);
    }

    #[test]
    fn other_files_are_named_errors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.json");
        let message = || format!("{:#}", Results::read(&path).unwrap_err());
        assert!(message().contains("r.json: cannot read these results"));
        std::fs::write(&path, "{}").unwrap();
        assert!(message().contains("r.json: not a file of results: missing field"));
        std::fs::write(&path, "{\"format\": 9, \"rows\": []}").unwrap();
        assert!(message().contains("results of format 9, only 1 is known"));
    }
}
