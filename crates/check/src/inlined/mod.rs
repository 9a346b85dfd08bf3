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
//!
//! A claimed guard in the place of an indirect call has rules of its own ([`guard`]).

mod body;
mod facts;
mod guard;
mod written;

use crate::CheckedKernel;
use crate::frames::{self, UnwindState};
use crate::kernel::{Additions, KernelFile, KernelSection, SectionLoad};
use crate::relocs::Relocs;
use anyhow::{Context, Result, bail, ensure};
use body::Body;
use facts::Facts;
use guard::IndirectCall;
use image::address::LinkAddr;
use image::place::{InPlaceOfCall, InlinedCall};
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

/// Where the code of an inlined call stands.
#[derive(Clone, Copy)]
struct CodeContext {
    /// The address in the old kernel of the call that it stands in, after all calls between.
    owner: u64,
    /// The unwinder's state at the call.
    outer: UnwindState,
}

/// A call of the old kernel, or in code that stands in the place of another one.
#[derive(Clone, Copy)]
enum OldCall {
    /// As at this address of the old kernel.
    At(u64),
    /// The direct call in a guard, of the function at this address.
    Guarded(u64),
}

struct Inliner<'f, 'k, 'd> {
    facts: &'f Facts<'k, 'd>,
    relocs: Option<&'f Relocs>,
    code: InlinedCode,
    /// The calls in inlined code and guards by address, each with that code.
    calls: HashMap<u64, (CodeContext, OldCall)>,
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
        let (old, context) = match inside {
            Some((CodeContext { outer, owner }, OldCall::At(old))) => {
                let outer = frames::composed(outer, self.facts.state(old)?, self.facts.form)?;
                (OldCall::At(old), CodeContext { outer, owner })
            }
            Some((guard, call)) => (call, guard),
            None => {
                ensure!(site < InlinedCall::BASE.0, "no call of inlined code is there");
                ensure!(!self.facts.is_kept_apart(site), "it stands in code that is kept apart");
                let outer = self.facts.state(site)?;
                (OldCall::At(site), CodeContext { outer, owner: site })
            }
        };
        ensure!(!self.code.additions.gone.contains(&site), "it is inlined or promoted already");
        match &call.code {
            InPlaceOfCall::Code(stretches) => {
                let callee = match old {
                    OldCall::At(old) => self.facts.plain_call(old)?,
                    OldCall::Guarded(callee) => callee,
                };
                let body = Body::of(self.facts, callee, stretches)?;
                self.jump(site, at, CALL)?;
                let written = body.write(site + CALL, at, &mut self.code.code)?;
                self.code.additions.ends.extend(body.ends(&written));
                self.add_facts(&written, context)?;
            }
            InPlaceOfCall::Guard(target) => {
                let OldCall::At(old) = old else { bail!("the call in a guard is direct") };
                let indirect = self.facts.indirect_call(old)?;
                self.jump(site, at, indirect.len())?;
                self.guard(&indirect, target.0, site, at, context)?;
            }
        }
        self.code.additions.gone.insert(site);
        self.code.additions.owners.push((at, context.owner));
        Ok(())
    }

    /// Writes a guard at `at`, in the place of the indirect call at `site`.
    fn guard(
        &mut self,
        call: &IndirectCall<'_>,
        target: u64,
        site: u64,
        at: u64,
        context: CodeContext,
    ) -> Result<()> {
        ensure!(self.facts.function(target).is_some(), "its target {target:x} is no function");
        let guard = call.write(target, site + call.len(), at, &mut self.code.code)?;
        let additions = &mut self.code.additions;
        additions.states.push((at, context.outer));
        additions.ends.insert(guard.end);
        self.facts.add_entries(&guard.written, &HashMap::new(), additions)?;
        if let Some(relocs) = &mut self.code.relocs {
            relocs.abs32.push(guard.address);
        }
        self.calls.insert(guard.direct, (context, OldCall::Guarded(target)));
        Ok(())
    }

    /// Puts a jump in the place of a call of `len` bytes.
    fn jump(&mut self, site: u64, to: u64, len: u64) -> Result<()> {
        let distance = (to.wrapping_sub(site + len) as i32).to_le_bytes();
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
        let bytes = bytes.get_mut(start as usize..(start + len) as usize);
        let bytes = bytes.context("it lies outside the kernel's bytes")?;
        // A call with a prefix is longer than the jump, in front of which a no-op stands then.
        let (no_ops, jump) = bytes.split_at_mut((len - CALL) as usize);
        no_ops.fill(0x90);
        jump[0] = 0xe9;
        jump[1..].copy_from_slice(&distance);
        Ok(())
    }

    /// Adds what the tables say about the code that was written.
    fn add_facts(&mut self, written: &[Written], context: CodeContext) -> Result<()> {
        let places: HashMap<u64, u64> = written.iter().map(|w| (w.old, w.new)).collect();
        let mut states: Vec<(u64, UnwindState)> = Vec::with_capacity(written.len());
        for w in written {
            let state = frames::composed(context.outer, self.facts.state(w.old)?, self.facts.form);
            let state = state.with_context(|| format!("at {:x}", w.old))?;
            states.push((w.new, state));
            if w.is_call {
                self.calls.insert(w.new, (context, OldCall::At(w.old)));
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
        self.facts.add_entries(written, &places, &mut self.code.additions)
    }
}

#[cfg(test)]
mod tests;
