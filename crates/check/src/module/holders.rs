//! Which copies must give way when a tracer is attached to a function.
//!
//! Input: the claims, and the kernel's code. Output: pairs of functions, for the comparison with
//! what the module says. `kmod/` aims calls among copies at the originals, so a copy is on the list
//! of a function when its code gets there without such a call: it holds the function's
//! code, or it jumps to the function's copy or to a copy on the list.

use super::Prover;
use anyhow::{Context, Result};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind};
use image::address::LinkAddr;
use image::linked::tables::within;
use std::collections::{BTreeMap, BTreeSet};

/// By the numbers of the kernel's functions: where jumps lead, and where they come from.
type Jumps = BTreeMap<usize, BTreeSet<usize>>;

impl Prover<'_> {
    /// Address of each function that is inlined or jumped to, and of each function whose copy is on
    /// its list, ascending.
    pub(super) fn holders(&self) -> Result<Vec<(u64, u64)>> {
        let jumps = self.jumps()?;
        let mut lists: Jumps = BTreeMap::new();
        let inlined = (1u32..).zip(&self.inlined).filter(|(_, claim)| claim.skip.is_some());
        for (n, claim) in inlined {
            lists.entry(self.function(claim.callee.0)?).or_default().insert(self.copy_of(n)?);
        }
        // Other code is not called, and no tracer is attached to it.
        let is_called = |at: u64| self.start_of(0, at).is_some_and(|claim| claim.skip > 0);
        for &function in jumps.keys().filter(|&&function| is_called(self.entry(function))) {
            lists.entry(function).or_default();
        }
        let mut pairs = Vec::new();
        for (traced, mut list) in lists {
            let mut to_follow: BTreeSet<usize> = list.clone();
            to_follow.insert(traced);
            while let Some(copy) = to_follow.pop_first() {
                for &from in jumps.get(&copy).into_iter().flatten() {
                    if list.insert(from) {
                        to_follow.insert(from);
                    }
                }
            }
            let entries = list.into_iter().map(|copy| self.entry(copy));
            let called = entries.filter(|&at| is_called(at));
            pairs.extend(called.map(|at| (self.entry(traced), at)));
        }
        Ok(pairs)
    }

    fn function(&self, at: u64) -> Result<usize> {
        let function = self.kernel.function_at(LinkAddr(at));
        function.with_context(|| format!("no function is at {at:x}"))
    }

    fn entry(&self, function: usize) -> u64 {
        self.kernel.link_address(self.kernel.functions[function].at).0
    }

    /// The function in whose copy a context's code stands. Claims name earlier contexts only.
    fn copy_of(&self, mut context: u32) -> Result<usize> {
        loop {
            let claim = self.inlined[context as usize - 1];
            if claim.context == 0 {
                return self.function(claim.site.0);
            }
            context = claim.context;
        }
    }

    /// For each function, those whose copies lead into its copy by another way than a call. Jumps
    /// of inlined code stay in it.
    fn jumps(&self) -> Result<Jumps> {
        let mut jumps: Jumps = BTreeMap::new();
        let tables = &self.kernel.tables;
        for block in &self.by_old {
            let (at, end) = (block.old.0 + u64::from(block.skip), block.old_end());
            let copy = match block.context {
                0 => self.function(block.old.0)?,
                context => self.copy_of(context)?,
            };
            let mut lead = |to: u64| -> Result<()> {
                if self.start_of(0, to).is_some() && self.function(to)? != copy {
                    jumps.entry(self.function(to)?).or_default().insert(copy);
                }
                Ok(())
            };
            let range = |sites: u64| LinkAddr(sites);
            for entry in within(&tables.alternatives, |e| e.site, range(at), range(end)) {
                let from = LinkAddr(entry.replacement);
                for instruction in self.decoded(from, u64::from(entry.replacement_len))? {
                    let stays = block.context > 0 && !instruction.is_call_near();
                    if let Some(to) = target(&instruction).filter(|_| !stays) {
                        lead(to)?;
                    }
                }
            }
            if block.context > 0 {
                continue;
            }
            for entry in within(&tables.jumps, |e| e.site, range(at), range(end)) {
                lead(entry.target)?;
            }
            for entry in within(&tables.exceptions, |e| e.site, range(at), range(end)) {
                lead(entry.fixup)?;
            }
            for instruction in self.decoded(range(at), end - at)? {
                let Some(to) = target(&instruction) else { continue };
                let enters = self.start_of(0, to).is_some_and(|claim| claim.skip > 0);
                if !(instruction.code() == Code::Call_rel32_64 && enters) {
                    lead(to)?;
                }
            }
        }
        Ok(jumps)
    }

    fn decoded(&self, from: LinkAddr, size: u64) -> Result<Decoder<'_>> {
        let code = self.kernel.bytes(from, usize::try_from(size)?).context("no bytes")?;
        Ok(Decoder::with_ip(64, code, from.0, DecoderOptions::NONE))
    }
}

/// Where a direct branch or call goes.
fn target(instruction: &Instruction) -> Option<u64> {
    let is_direct = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64;
    is_direct.then(|| instruction.near_branch64())
}
