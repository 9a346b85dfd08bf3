//! The results of the walk over the code, and what the walk must know.
//!
//! This module has only data. `walk` and `compare` fill a [`CodeWalk`]; later stages read it.

use super::correspond::InstructionPair;
use super::relocs::Relocs;
use super::verdict::Findings;
use std::collections::{HashMap, HashSet};

/// How an instruction refers to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferenceKind {
    /// A direct jump or call.
    Branch,
    /// A RIP-relative operand.
    RipRelative,
    /// An absolute displacement or immediate.
    Absolute,
}

/// A reference of one instruction: its own address and the target, in each kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstructionReference {
    pub refers: ReferenceKind,
    pub at_old: u64,
    pub at_new: u64,
    pub old: u64,
    pub new: u64,
}

/// Where control continues behind a unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FallThrough {
    /// The address of the last instruction.
    pub at_old: u64,
    pub at_new: u64,
    pub old: u64,
    pub new: u64,
    /// Whether the new kernel continues there by a jump that the map says was appended.
    pub jumps: bool,
    /// The callee if the last instruction is a direct call. The callee may never return.
    pub callee: Option<u64>,
}

/// No-ops that control does not reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadEnd {
    /// The address of the first no-op.
    pub from: u64,
    /// The callee of the call in front of them. They are unreachable if it never returns.
    pub callee: Option<u64>,
}

/// What the walk found in one unit, or in all units.
#[derive(Default)]
pub(crate) struct CodeWalk {
    /// The instructions, paired.
    pub pairs: Vec<InstructionPair>,
    /// What the instructions refer to.
    pub references: Vec<InstructionReference>,
    /// Where control continues behind units.
    pub falls: Vec<FallThrough>,
    /// The appended jumps: (new address, old target).
    pub appended: Vec<(u64, u64)>,
    /// Units that end with no-ops behind code that stops, by the unit's old end. The map includes
    /// this padding. It is unreachable unless something jumps there.
    pub dead_ends: HashMap<u64, DeadEnd>,
    /// The addresses (old, new) behind units that end in a return or an indirect jump.
    pub stops: Vec<(u64, u64)>,
    /// Proofs and differences.
    pub findings: Findings,
}

/// What the walk must know about the side tables of the old kernel.
pub(crate) struct OldKernelFacts<'a> {
    /// The words that are addresses, if the build keeps its relocations.
    pub relocs: Option<&'a Relocs>,
    /// Static-key sites.
    pub static_keys: HashSet<u64>,
    /// The `ud2` behind which control continues: of each WARN, and of each instruction that a
    /// hypervisor executes.
    pub passed_traps: HashSet<u64>,
    /// The ends of alternatives behind which control may continue after patching.
    pub passable: HashSet<u64>,
    /// Functions to which a `jmp` is a return or an indirect jump. The kernel rewrites such call
    /// sites at boot and puts an int3 behind.
    pub thunks: HashSet<u64>,
    /// The addresses of the kernel.
    pub image: std::ops::Range<u64>,
}

impl CodeWalk {
    pub(crate) fn differ(
        &mut self,
        kind: &'static str,
        old: u64,
        new: u64,
        what: impl Into<String>,
    ) {
        self.findings.differ(kind, Some(old), Some(new), what);
    }
}
