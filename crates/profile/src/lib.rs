//! Counts per block, edge and call of a kernel, per process.
//!
//! Input: recordings and the image that they ran. Output: counts by link address. This crate places
//! nothing.
//!
//! The count of an edge follows from the counts of blocks:
//!
//! ```
//! use kernlane_profile::edges::{CountedBlock, derive};
//!
//! let block = |count, closed_in| CountedBlock { count: Some(count), closed_in, closed_out: true };
//! // Block 0 branches to block 2 in 4 of 10 runs, and otherwise runs into block 1.
//! let mut blocks = [block(10, false), block(6, true), block(4, true)];
//! let edges = derive(&mut blocks, &[(0, 1), (0, 2)]);
//! assert_eq!((edges[0].count, edges[1].count), (6, 4));
//! assert!(edges[0].exact && edges[1].exact);
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod carry;
pub mod collect;
pub mod coverage;
pub mod edges;
mod epochs;
#[allow(missing_docs, reason = "each error says in its message what it means")]
mod file;
pub mod graph;
pub mod ideal;
mod joint;
mod merge;
pub mod noise;
pub mod shape;
pub mod staying;
mod temporal_edges;
mod transfers;
mod translated;

pub use file::ProfileError;
pub use merge::{ProfileMerge, merge, merge_weighted};
pub use translated::{BlockTransfer, is_gate, taken};

use crate::shape::FunctionShape;
use image::address::LinkAddr;
use image::module::ModuleIdentity;
use image::{BuildId, Image};
use layout::graph::{EdgeKind, SeedClass};
use std::collections::BTreeMap;

/// One recording that went into a profile.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProfileSource {
    /// The recorded workload.
    pub workload: String,
    /// The seed of the recording.
    pub seed: u64,
    /// Instructions in the kernel.
    pub kernel_instructions: u64,
    /// Instructions in user mode.
    pub user_instructions: u64,
    /// The part of the recording, as shares of its instructions; `None` for the whole recording.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The kernel that was recorded, if the profile is of another build ([`carry`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_on: Option<BuildId>,
}

/// What one process ran. Threads and processes with the same kernel name share a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Instructions in the kernel.
    pub kernel_instructions: u64,
    /// Instructions in user mode.
    pub user_instructions: u64,
    /// Counts per block of the kernel, by the block's link address.
    pub blocks: BTreeMap<LinkAddr, u64>,
}

/// The working-set epochs in which each block ran (`epochs.rs`). The epochs of merged recordings
/// follow one another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockEpochsTable {
    /// Words of each row.
    pub words: usize,
    /// Bit n % 64 of word n / 64 is set when the block ran in epoch n.
    pub blocks: BTreeMap<LinkAddr, Vec<u64>>,
}

/// The counts of one kernel. All maps are by the link addresses of blocks' first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The kernel that the addresses belong to.
    pub build_id: BuildId,
    /// How the counts of several recordings were merged.
    pub merge: ProfileMerge,
    /// The recordings that the counts are from.
    pub sources: Vec<ProfileSource>,
    /// How often each block was entered at its start.
    pub blocks: BTreeMap<LinkAddr, u64>,
    /// How often control went from the end of the first block to the start of the second.
    pub edges: BTreeMap<(LinkAddr, LinkAddr), (EdgeKind, u64)>,
    /// How often the call at the end of the block entered the function at the second address.
    pub calls: BTreeMap<(LinkAddr, LinkAddr), u64>,
    /// How often the block was the first movable block after an entry of this class.
    pub seeds: BTreeMap<(LinkAddr, SeedClass), u64>,
    /// Joint misses: how often the two blocks missed one directly after the other in an ideal
    /// cache. The lower address stands first.
    pub joint_misses: BTreeMap<(LinkAddr, LinkAddr), u64>,
    /// Temporal-relationship edges: how often one chunk of code ran between two runs of the other
    /// (`temporal_edges.rs`). A chunk is named by its first block; the lower address stands first.
    /// Empty unless [`collect::ExtraCounts::TemporalEdges`] was requested.
    pub temporal_edges: BTreeMap<(LinkAddr, LinkAddr), u64>,
    /// The working-set epochs of each block.
    pub block_epochs: BlockEpochsTable,
    /// The modules whose blocks the counts name, ascending by name.
    pub modules: Vec<ModuleIdentity>,
    /// What each process ran, by name.
    pub processes: BTreeMap<String, Process>,
    /// Kernel instructions outside all blocks of named functions, by the address of the translation
    /// block.
    pub outside: BTreeMap<LinkAddr, u64>,
    /// The functions with counts, by their entries; empty if an earlier version made the profile.
    pub shapes: BTreeMap<LinkAddr, FunctionShape>,
}

impl Profile {
    /// Notes what the functions with counts look like in the kernel's image.
    pub fn describe(&mut self, image: &Image) {
        self.shapes = shape::of_blocks(image, self.blocks.keys());
    }

    /// A profile of a kernel without any counts.
    pub fn empty(build_id: BuildId) -> Profile {
        Profile {
            build_id,
            merge: ProfileMerge::Sum,
            sources: Vec::new(),
            blocks: BTreeMap::new(),
            edges: BTreeMap::new(),
            calls: BTreeMap::new(),
            seeds: BTreeMap::new(),
            joint_misses: BTreeMap::new(),
            temporal_edges: BTreeMap::new(),
            block_epochs: BlockEpochsTable::default(),
            modules: Vec::new(),
            processes: BTreeMap::new(),
            outside: BTreeMap::new(),
            shapes: BTreeMap::new(),
        }
    }

    /// The profile by other addresses. `place` gives the new one; what has none is left out.
    pub fn moved(self, place: &dyn Fn(LinkAddr) -> Option<LinkAddr>) -> Profile {
        let both = |(a, b): (LinkAddr, LinkAddr)| Some((place(a)?, place(b)?));
        let with = |(a, class): (LinkAddr, SeedClass)| Some((place(a)?, class));
        // The lower address stands first.
        let pair = |(a, b)| both((a, b)).map(|(a, b)| (a.min(b), a.max(b)));
        Profile {
            blocks: keys(self.blocks, &place),
            edges: keys(self.edges, &both),
            calls: keys(self.calls, &both),
            seeds: keys(self.seeds, &with),
            joint_misses: keys(self.joint_misses, &pair),
            temporal_edges: keys(self.temporal_edges, &pair),
            block_epochs: BlockEpochsTable {
                words: self.block_epochs.words,
                blocks: keys(self.block_epochs.blocks, &place),
            },
            processes: (self.processes.into_iter())
                .map(|(name, process)| {
                    (name, Process { blocks: keys(process.blocks, &place), ..process })
                })
                .collect(),
            outside: keys(self.outside, &place),
            shapes: keys(self.shapes, &place),
            ..self
        }
    }

    /// Instructions executed in the kernel, over all sources.
    pub fn kernel_instructions(&self) -> u64 {
        self.sources.iter().map(|source| source.kernel_instructions).sum()
    }

    /// Instructions executed in user mode, over all sources.
    pub fn user_instructions(&self) -> u64 {
        self.sources.iter().map(|source| source.user_instructions).sum()
    }

    /// The share of the kernel's instructions that lie in a block of a named function: 0 to 1.
    pub fn coverage(&self) -> f64 {
        let outside: u64 = self.outside.values().sum();
        1.0 - outside as f64 / self.kernel_instructions().max(1) as f64
    }
}

fn keys<K: Ord, V>(map: BTreeMap<K, V>, place: &dyn Fn(K) -> Option<K>) -> BTreeMap<K, V> {
    map.into_iter().filter_map(|(key, value)| Some((place(key)?, value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_moves_with_all_that_it_counts() {
        let [a, b, c] = [LinkAddr(0x10), LinkAddr(0x20), LinkAddr(0x30)];
        let mut profile = Profile::empty(BuildId("ab".into()));
        profile.blocks.extend([(a, 1), (b, 2), (c, 3)]);
        profile.edges.insert((a, b), (EdgeKind::Branch, 4));
        profile.calls.extend([((b, a), 5), ((a, c), 6)]);
        profile.seeds.insert((b, SeedClass::SystemCall), 7);
        profile.joint_misses.insert((a, b), 8);
        profile.temporal_edges.insert((b, c), 9);
        profile.block_epochs = BlockEpochsTable { words: 1, blocks: [(a, vec![1])].into() };
        let process = Process { blocks: [(c, 1), (b, 2)].into(), ..Process::default() };
        profile.processes.insert("init".into(), process);
        profile.outside.insert(b, 10);
        // The first two change places, and the third is gone.
        let moved = profile.moved(&|at| match at {
            at if at == a => Some(b),
            at if at == b => Some(a),
            _ => None,
        });
        assert_eq!(moved.blocks, [(a, 2), (b, 1)].into());
        assert_eq!(moved.edges, [((b, a), (EdgeKind::Branch, 4))].into());
        assert_eq!(moved.calls, [((a, b), 5)].into());
        assert_eq!(moved.seeds, [((a, SeedClass::SystemCall), 7)].into());
        assert_eq!(moved.joint_misses, [((a, b), 8)].into(), "the lower address stands first");
        assert!(moved.temporal_edges.is_empty());
        assert_eq!(moved.block_epochs.blocks, [(b, vec![1])].into());
        assert_eq!(moved.processes["init"].blocks, [(a, 2)].into());
        assert_eq!(moved.outside, [(a, 10)].into());
    }
}
