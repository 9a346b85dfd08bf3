//! The old kernel with the inlined calls that a map claims.
//!
//! Input: the old kernel, and the claims. Output: a kernel that does the same: each of these calls
//! is a jump to code of its own, behind the kernel, which is the callee's and jumps back. The other
//! stages compare this kernel with the new one, block by block. A claim is refused unless these
//! rules hold:
//!
//! * The call is a plain one, in code that is not kept apart, to the entry of a function that a
//!   tracer can be attached to. The kernel patches neither the call nor the ways out of the
//!   function.
//! * Control stays within the claimed code, but for calls, returns, and jumps to functions.
//! * The function never looks at its return address or beyond it ([`frames`](crate::frames)), and
//!   takes no address of its own code.
//! * The unwinder finds the caller's frame from each instruction.

mod body;
mod facts;
mod written;

use crate::CheckedKernel;
use crate::frames::{self, UnwindState};
use crate::kernel::{Additions, KernelFile, KernelSection, SectionLoad};
use crate::relocs::Relocs;
use anyhow::{Context, Result, ensure};
use body::Body;
use facts::Facts;
use image::address::LinkAddr;
use image::place::InlinedCall;
use std::collections::{BTreeMap, HashMap};
use written::{CALL, Written};

/// The code of inlined calls, and what the tables of a kernel say about it.
pub(crate) struct InlinedCode {
    /// The bytes of the sections whose calls became jumps, by the number of the section.
    sections: BTreeMap<usize, Vec<u8>>,
    /// The code, from [`InlinedCall::BASE`] on.
    code: Vec<u8>,
    additions: Additions,
    relocs: Option<Relocs>,
}

/// A claim that is refused: the old address of the call, and why.
#[derive(Debug)]
pub(crate) struct RefusedClaim {
    pub site: u64,
    pub why: anyhow::Error,
}

impl InlinedCode {
    /// Puts the code of the claimed calls together.
    ///
    /// # Errors
    /// The first claim that breaks a rule.
    pub(crate) fn of(
        old: &CheckedKernel<'_>,
        calls: &[InlinedCall],
    ) -> Result<InlinedCode, RefusedClaim> {
        let refused = |site: LinkAddr| move |why| RefusedClaim { site: site.0, why };
        let first = calls.first().map_or(LinkAddr(0), |call| call.site);
        let facts = Facts::of(&old.kernel).map_err(refused(first))?;
        let mut inliner = Inliner {
            facts: &facts,
            relocs: old.relocs.as_ref(),
            code: InlinedCode {
                sections: BTreeMap::new(),
                code: Vec::new(),
                additions: Additions::default(),
                relocs: old.relocs.clone(),
            },
            contexts: Vec::new(),
            calls: HashMap::new(),
        };
        for call in calls {
            inliner.inline(call).map_err(refused(call.site))?;
        }
        let mut code = inliner.code;
        if let Some(relocs) = &mut code.relocs {
            for list in [&mut relocs.abs64, &mut relocs.abs32, &mut relocs.inverse32] {
                list.sort_unstable();
            }
        }
        Ok(code)
    }

    /// The old kernel with this code.
    pub(crate) fn kernel<'s, 'd: 's>(&'s self, old: &'s CheckedKernel<'d>) -> CheckedKernel<'s> {
        let mut sections: Vec<KernelSection<'s>> = old.kernel.sections.clone();
        for (&number, bytes) in &self.sections {
            sections[number].data = bytes;
        }
        sections.push(KernelSection {
            name: ".text",
            addr: InlinedCall::BASE.0,
            size: self.code.len() as u64,
            data: &self.code,
            executable: true,
            loaded: SectionLoad::Nowhere,
        });
        let symbols = old.kernel.symbols.clone();
        let words = old.kernel.pc_relative.clone();
        let mut kernel = KernelFile::of_parts(sections, symbols, words);
        kernel.entry = old.kernel.entry;
        kernel.additions = Some(&self.additions);
        CheckedKernel { kernel, relocs: self.relocs.clone() }
    }
}

/// The code of an inlined call.
struct CodeContext {
    /// The address in the old kernel of the call that it stands in, after all calls between.
    owner: u64,
    /// The unwinder's state at the call.
    outer: UnwindState,
}

struct Inliner<'f, 'k, 'd> {
    facts: &'f Facts<'k, 'd>,
    relocs: Option<&'f Relocs>,
    code: InlinedCode,
    contexts: Vec<CodeContext>,
    /// The direct calls in inlined code: by address, the context and the address in the callee.
    calls: HashMap<u64, (usize, u64)>,
}

impl Inliner<'_, '_, '_> {
    fn inline(&mut self, call: &InlinedCall) -> Result<()> {
        let (site, at) = (call.site.0, call.at.0);
        let start = InlinedCall::BASE.0 + self.code.code.len() as u64;
        ensure!(at >= start, "its code overlaps that of another call");
        // Padding, as between functions.
        let gap = usize::try_from(at - start).ok().filter(|&gap| gap < 4096);
        let gap = gap.context("its code lies far behind that of the call before")?;
        self.code.code.resize(self.code.code.len() + gap, 0xcc);

        let inside = self.calls.get(&site).copied();
        let (callee, outer, owner) = match inside {
            Some((context, old)) => {
                let callee = self.facts.plain_call(old)?;
                let CodeContext { outer, owner } = self.contexts[context];
                (callee, frames::composed(outer, self.facts.state(old)?, self.facts.form)?, owner)
            }
            None => {
                ensure!(site < InlinedCall::BASE.0, "no call of inlined code is there");
                let callee = self.facts.plain_call(site)?;
                ensure!(!self.facts.is_kept_apart(site), "it stands in code that is kept apart");
                (callee, self.facts.state(site)?, site)
            }
        };
        ensure!(!self.code.additions.gone.contains(&site), "it is inlined already");
        let body = Body::of(self.facts, callee, &call.code)?;
        self.jump(site, at)?;
        let behind = site + CALL;
        let written = body.write(behind, at, &mut self.code.code)?;
        self.code.additions.gone.insert(site);
        self.contexts.push(CodeContext { owner, outer });
        self.code.additions.owners.push((at, owner));
        self.add_facts(&body, &written, outer)
    }

    /// Puts a jump in the place of a call.
    fn jump(&mut self, site: u64, to: u64) -> Result<()> {
        let distance = (to.wrapping_sub(site + CALL) as i32).to_le_bytes();
        let (bytes, start) = match site.checked_sub(InlinedCall::BASE.0) {
            Some(offset) => (&mut self.code.code, offset),
            None => {
                let kernel = self.facts.kernel;
                let number = kernel.section_index(site).context("it lies outside the kernel")?;
                let section = &kernel.sections[number];
                let bytes = self.code.sections.entry(number);
                (bytes.or_insert_with(|| section.data.to_vec()), site - section.addr)
            }
        };
        let bytes = bytes.get_mut(start as usize..start as usize + CALL as usize);
        let bytes = bytes.context("it lies outside the kernel's bytes")?;
        bytes[0] = 0xe9;
        bytes[1..].copy_from_slice(&distance);
        Ok(())
    }

    /// Adds what the tables say about the code that was written.
    fn add_facts(&mut self, body: &Body, written: &[Written], outer: UnwindState) -> Result<()> {
        let context = self.contexts.len() - 1;
        let places: HashMap<u64, u64> = written.iter().map(|w| (w.old, w.new)).collect();
        let mut states: Vec<(u64, UnwindState)> = Vec::with_capacity(written.len());
        for w in written {
            let state = frames::composed(outer, self.facts.state(w.old)?, self.facts.form);
            let state = state.with_context(|| format!("at {:x}", w.old))?;
            states.push((w.new, state));
            if w.is_call {
                self.calls.insert(w.new, (context, w.old));
            }
            if let (Some(relocs), Some(new)) = (self.relocs, self.code.relocs.as_mut())
                && w.stays
            {
                let lists = [
                    (&relocs.abs64, &mut new.abs64),
                    (&relocs.abs32, &mut new.abs32),
                    (&relocs.inverse32, &mut new.inverse32),
                ];
                for (old, new) in lists {
                    let from = old.partition_point(|&place| place < w.old);
                    let inside = old[from..].iter().take_while(|&&place| place < w.old + w.old_len);
                    new.extend(inside.map(|place| place - w.old + w.new));
                }
            }
        }
        states.sort_unstable_by_key(|&(at, _)| at);
        self.code.additions.states.extend(states);
        self.code.additions.ends.extend(body.ends(written));
        self.facts.add_entries(written, &places, &mut self.code.additions)
    }
}

#[cfg(test)]
mod tests;
