//! Which copies run the code of a function without a call of it.
//!
//! Input: the group's pieces as they are emitted. Output: pairs of functions. A tracer at a
//! function sees every call when these copies are not entered any more: calls among copies can be
//! aimed at the originals (`EmittedModule::calls`), but code that was inlined cannot, and a jump
//! from copy to copy may be gone. This module writes no code.

use super::{ModuleWriter, ReferenceTarget};
use crate::module::lift::LiftedExit;
use anyhow::Result;
use image::address::LinkAddr;
use std::collections::{BTreeMap, BTreeSet};

impl ModuleWriter<'_, '_, '_> {
    /// Each function that is inlined or jumped to, with each function whose copy holds its code, or
    /// jumps to a copy that does. Ascending, by the numbers of the group's functions.
    ///
    /// # Errors
    /// The replacement of an alternative cannot be copied.
    pub(super) fn holders(&self) -> Result<Vec<(u32, u32)>> {
        let original = self.original;
        let calls = original.inlining.calls();
        // Nothing is called, or traced, that has no tracer's site: parts that the compiler put
        // elsewhere.
        let is_called = |function: u32| original.skip[function as usize] > 0;
        let jumped_from = self.jumps()?;
        let from = |to: u32| jumped_from.get(&to).into_iter().flatten().copied();
        let mut holders: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (n, call) in (0u32..).zip(calls) {
            let Some(callee) = call.inlined() else { continue };
            let copy = original.copy_of(original.inlining.entry(n) as usize);
            holders.entry(callee).or_default().insert(copy);
        }
        for &jumped_to in jumped_from.keys().filter(|&&to| is_called(to)) {
            holders.entry(jumped_to).or_default();
        }
        let mut pairs = Vec::new();
        for (function, mut held) in holders {
            // Who jumps to the function's own copy does not call it either.
            let mut waiting: Vec<u32> = held.iter().copied().chain([function]).collect();
            while let Some(copy) = waiting.pop() {
                waiting.extend(from(copy).filter(|&from| held.insert(from)));
            }
            let called = held.into_iter().filter(|&holder| is_called(holder));
            pairs.extend(called.map(|holder| (function, holder)));
        }
        Ok(pairs)
    }

    /// For each function, the other functions whose copies lead into its copy by another way than
    /// a call that can be aimed.
    fn jumps(&self) -> Result<BTreeMap<u32, BTreeSet<u32>>> {
        let original = self.original;
        let mut jumps: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        let mut add = |from: usize, to: u32| {
            let (from, to) = (original.copy_of(from), original.copy_of(to as usize));
            if from != to {
                jumps.entry(to).or_default().insert(from);
            }
        };
        for (n, lifted) in self.lifted.iter().enumerate() {
            if let LiftedExit::Jump(to) | LiftedExit::Branch(to) = lifted.exit {
                add(n, to);
            }
            for fixup in lifted.fixups.iter().filter(|fixup| self.called(lifted, fixup).is_none()) {
                if let ReferenceTarget::Piece(to) = fixup.target {
                    add(n, to);
                }
            }
        }
        let tables = &original.kernel.tables;
        let context = |piece| original.inlining.context(piece);
        let keys = self.entries_of(&tables.jumps, |e| e.site).map(|(n, e)| (n, e.target));
        let faults = self.entries_of(&tables.exceptions, |e| e.site).map(|(n, e)| (n, e.fixup));
        for (n, to) in keys.chain(faults) {
            if let ReferenceTarget::Piece(to) = original.branch_target(context(n), to) {
                add(n, to);
            }
        }
        for (n, e) in self.entries_of(&tables.alternatives, |e| e.site) {
            let from = LinkAddr(e.replacement);
            for fixup in original.lift_replacement(context(n), from, e.replacement_len)?.1 {
                if let ReferenceTarget::Piece(to) = fixup.target {
                    add(n, to);
                }
            }
        }
        Ok(jumps)
    }
}
