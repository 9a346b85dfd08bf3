//! The core without time: its predictors, caches and TLBs see a block, and nothing counts cycles.
//!
//! Between samples, this keeps everything warm that outlives a sample's beginning ("functional
//! warming": Wunderlich et al., "SMARTS", ISCA 2003, section 3.2). It counts instructions,
//! branches, failed predictions and misses as the core does, but no slots, loads, stores or uops.
//!
//! What depends on time is left out: a load takes no data from an earlier store, and a register is
//! free for each prefetch.

use super::{BranchOutcome, Core, CoreBlock, DataAccess, OpenBranch, OwnAccesses, Uop, UopKind};
use crate::branch_counters::PredictionFailure;
use crate::branches::{Branch, CodeAddr};
use crate::line::Mode;

impl Core {
    /// Passes a block without time. `uops` and `accesses`: as [`Core::run`] takes them.
    pub fn warm(&mut self, block: &CoreBlock<'_>, uops: &[Uop], accesses: Option<&[DataAccess]>) {
        if let Some(arrives) = block.arrives {
            self.warm_arrives(arrives, block.mode);
            self.front.arrives(arrives);
        }
        self.mode = block.mode;
        let counters = self.counters.get_mut(block.mode);
        counters.instructions += block.instructions.len() as u64;
        if let Some(accesses) = accesses.filter(|accesses| !accesses.is_empty()) {
            self.warm_data(block, uops, accesses);
        }
        for run in block.runs {
            self.front.warm(run, &mut self.shared, self.counters.get_mut(block.mode));
            if let Some(&branch) = block.branches.get(usize::from(run.branch).wrapping_sub(1)) {
                if branch.taken && branch.target.is_none() {
                    let (delivered, complete) = (self.front.predicted, self.front.predicted);
                    let mode = block.mode;
                    self.open = Some(OpenBranch { branch, mode, delivered, complete });
                } else {
                    self.warm_branch(&branch, block.mode);
                }
            }
        }
    }

    fn warm_data(&mut self, block: &CoreBlock<'_>, uops: &[Uop], mut accesses: &[DataAccess]) {
        let counters = self.counters.get_mut(block.mode);
        for instruction in block.instructions {
            let mut own = OwnAccesses::cut(&mut accesses, instruction.recorded);
            if !own.any() {
                continue;
            }
            let site = instruction.first_uop;
            let first = site as usize;
            let uops = uops.get(first..first + usize::from(instruction.uops)).unwrap_or(&[]);
            for uop in uops {
                let is_store = match uop.kind {
                    UopKind::Load => false,
                    UopKind::StoreAddress => true,
                    _ => continue,
                };
                if let Some(access) = own.take(is_store) {
                    self.data.warm(access, Some(site), &mut self.shared, counters);
                }
            }
            for is_store in [false, true] {
                while let Some(access) = own.take_more(is_store) {
                    counters.string_accesses += 1;
                    self.data.warm(access, None, &mut self.shared, counters);
                }
            }
            if accesses.is_empty() {
                break;
            }
        }
    }

    /// An exception or interrupt came after the last instruction.
    pub fn warm_interrupted(&mut self) {
        self.open = None;
        self.front.warm_taken();
    }

    /// Simulation goes on behind code that was passed without time. Everything that was under way
    /// is complete.
    pub fn resume(&mut self) {
        let mode = self.mode;
        let mut stage = self.stage(false, mode);
        let ends = stage.window.drain(0, &mut stage.around);
        self.front.restart(ends);
    }

    #[inline]
    fn warm_arrives(&mut self, arrives: CodeAddr, mode: Mode) {
        let Some(open) = self.open.take() else { return };
        if mode == open.mode {
            let branch = Branch { target: Some(arrives), ..open.branch };
            self.warm_branch(&branch, mode);
        } else {
            self.front.warm_taken();
        }
    }

    #[inline]
    fn warm_branch(&mut self, branch: &Branch, mode: Mode) {
        let failure = match self.branches.branch(branch) {
            BranchOutcome::Followed { .. } => None,
            BranchOutcome::Resteered => Some(PredictionFailure::Misfetch),
            BranchOutcome::Mispredicted(failure) => Some(failure),
        };
        self.counters.get_mut(mode).branches.count(branch, failure);
        if branch.taken || failure.is_some() {
            self.front.warm_taken();
        }
        if let Some(next) = if branch.taken { branch.target } else { Some(branch.end) } {
            self.front.arrives(next);
        }
    }
}
