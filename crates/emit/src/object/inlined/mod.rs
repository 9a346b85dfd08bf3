//! Puts the code of callees in the place of their calls, in an object whose code does not move yet.
//!
//! Input: an object, and the calls. Output: the bytes of an object whose `.text` has the inlined
//! code behind all other code. A call became a jump to that code, which jumps back: nothing else
//! moved, so all that refers to code still holds, and the side tables have the entries of the
//! inlined code in addition. [`rewrite`](super::rewrite) then moves it. A promoted call becomes a
//! jump to its guard in the same way, which holds the indirect call. This module does not decide
//! what is inlined or promoted.

mod body;
mod guard;
mod tables;

use super::orc::{self, OrcTables};
use super::symbols::{self, RewrittenSymbols};
use super::{DebugInformation, write};
use crate::module::composed;
use anyhow::{Context, Result, ensure};
use body::{Body, BodyFacts, CALL, Written};
use image::address::LinkAddr;
use image::linked::forms::OrcForm;
use image::object::KernelObject;
use image::object::elf::ElfRelocation;
use image::object::orc::{OrcSections, OrcState, UNDEFINED, state_at};
use image::place::{InPlaceOfCall, InlinedCall};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// A call to inline or to promote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallToInline {
    /// Where it stands: 0 in the code of its own function, n in the code of call n - 1.
    pub context: u32,
    /// The link address of the call, in the code of its own function.
    pub site: LinkAddr,
    /// The link address of the callee's entry.
    pub callee: LinkAddr,
    /// What takes its place.
    pub replacement: CallReplacement,
}

/// What takes the place of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallReplacement {
    /// Of a direct call: the callee's code.
    Code,
    /// Of an indirect call: a comparison of its pointer with the callee's address, the callee's
    /// code where they are equal, and the call where they are not.
    GuardedCode,
    /// Likewise, with a direct call of the callee instead of its code.
    GuardedCall,
}

/// An object with inlined calls.
pub(crate) struct Expanded {
    /// The bytes of the object.
    pub bytes: Vec<u8>,
    /// What was inlined, as the map of the new kernel says it.
    pub calls: Vec<InlinedCall>,
    /// The offset of each call's inlined code, ascending, and that of the function into which it
    /// was inlined.
    pub owners: Vec<(u32, u32)>,
}

impl Expanded {
    /// The order of the pieces of the object in which inlined code stands behind the code of the
    /// function that it was inlined into. `object`: the object, read again.
    ///
    /// # Errors
    /// The object is not cut where code was inlined.
    pub(crate) fn order(&self, object: &KernelObject<'_>) -> Result<Vec<u32>> {
        let first = self.owners.first().map_or(u32::MAX, |&(start, _)| start);
        let mut behind: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let own = object.pieces.partition_point(|piece| piece.at < first);
        for (number, piece) in (0u32..).zip(&object.pieces).skip(own) {
            let call = self.owners.partition_point(|&(start, _)| start <= piece.at);
            let &(_, owner) = &self.owners[call - 1];
            behind.entry(owner).or_default().push(number);
        }
        let mut order = Vec::with_capacity(object.pieces.len());
        for (number, piece) in (0u32..).zip(&object.pieces[..own]) {
            order.push(number);
            let function = piece.function;
            let next = object.pieces[..own].get(number as usize + 1);
            if next.is_none_or(|next| next.function != function) {
                let entry = object.functions[function as usize].at;
                order.extend(behind.remove(&entry).unwrap_or_default());
            }
        }
        let lost = behind.keys().next();
        ensure!(lost.is_none(), "no function is at .text+{:#x}", lost.copied().unwrap_or(0));
        Ok(order)
    }
}

/// The byte between functions: `int3`, as in the kernel's own linker script.
const FILL: u8 = 0xcc;
/// A no-op of one byte.
const NO_OP: u8 = 0x90;
/// Code of calls begins at a multiple of this number of bytes.
const ALIGNMENT: usize = 16;

/// The link address of an offset behind the end of the old `.text`. No kernel has code there.
fn address(object: &KernelObject<'_>, base: LinkAddr, at: u32) -> LinkAddr {
    let size = object.elf.section(object.text).size;
    match u64::from(at).checked_sub(size) {
        Some(behind) => LinkAddr(InlinedCall::BASE.0 + behind),
        None => LinkAddr(base.0 + u64::from(at)),
    }
}

/// The link addresses of blocks of an expanded object: those of inlined code as the map names them.
/// `size`: the bytes of `.text` before.
pub(crate) fn old_address(base: LinkAddr, size: u64, at: LinkAddr) -> LinkAddr {
    match at.0.checked_sub(base.0 + size) {
        Some(behind) => LinkAddr(InlinedCall::BASE.0 + behind),
        None => at,
    }
}

/// Inlines calls. `base`: the link address of the object's `.text`. A call that stands in inlined
/// code follows the call that this code belongs to.
///
/// # Errors
/// A call is not where it should be, its callee cannot be inlined, or something refers to the
/// callee's code that does not know of copies.
pub(crate) fn expand(
    object: &KernelObject<'_>,
    base: LinkAddr,
    calls: &[CallToInline],
    form: OrcForm,
) -> Result<Expanded> {
    let facts = BodyFacts::of(object);
    let mut expansion = Expansion::new(object, base, form)?;
    let mut bodies: BTreeMap<u32, Body> = BTreeMap::new();
    // The code of each call, the old code first.
    let mut code: Vec<u32> = vec![0];
    for call in calls {
        let named = || format!("the call at {}", call.site);
        let context = code.get(call.context as usize).copied();
        let context = context.context("it stands in code that was not inlined");
        let mut context = context.with_context(named)?;
        let offset = |at: LinkAddr| {
            let offset = at.0.checked_sub(base.0).and_then(|at| u32::try_from(at).ok());
            offset.with_context(|| format!("{at} is not in .text"))
        };
        let (site, callee) =
            (offset(call.site).with_context(named)?, offset(call.callee).with_context(named)?);
        if call.replacement != CallReplacement::Code {
            context = expansion.promote(context, site, callee, &facts).with_context(named)?;
        }
        if call.replacement == CallReplacement::GuardedCall {
            code.push(context);
            continue;
        }
        let body = match bodies.entry(callee) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Body::of(&facts, callee).with_context(named)?),
        };
        code.push(expansion.inline(context, site, body, &facts).with_context(named)?);
    }
    expansion.finish(&facts)
}

/// What of a kernel's calls can be inlined in its object.
#[derive(Debug, Default)]
pub struct InlineLimits {
    /// The entries of the functions whose calls can be inlined.
    pub callers: BTreeSet<LinkAddr>,
    /// The entries of functions that cannot be inlined, and why. Others were not looked at.
    pub refused: BTreeMap<LinkAddr, String>,
    /// The indirect calls that can be promoted.
    pub indirect: BTreeSet<LinkAddr>,
    /// The entries of the functions to which a promoted call can go.
    pub targets: BTreeSet<LinkAddr>,
}

impl InlineLimits {
    /// Whether a call in the function `caller` of the function `callee` can be inlined.
    pub fn allow(&self, caller: LinkAddr, callee: LinkAddr) -> bool {
        self.callers.contains(&caller) && !self.refused.contains_key(&callee)
    }

    /// Whether an indirect call at `site` can become a direct one of the function `target`.
    pub fn allow_guard(&self, site: LinkAddr, target: LinkAddr) -> bool {
        self.indirect.contains(&site) && self.targets.contains(&target)
    }
}

/// What of the calls of these functions can be inlined.
pub(crate) fn limits(
    object: &KernelObject<'_>,
    base: LinkAddr,
    callees: &BTreeSet<LinkAddr>,
) -> InlineLimits {
    let facts = BodyFacts::of(object);
    let callers = object.functions.iter().filter(|f| f.whole.is_none());
    let linked = |at: u32| LinkAddr(base.0 + u64::from(at));
    let callers = callers.map(|f| linked(f.at)).collect();
    let reason = |callee: &LinkAddr| {
        let at = callee.0.checked_sub(base.0).and_then(|at| u32::try_from(at).ok());
        match at.map(|at| Body::of(&facts, at)) {
            None => Some((*callee, "it is not in .text".to_owned())),
            Some(Err(error)) => Some((*callee, format!("{error:#}"))),
            Some(Ok(_)) => None,
        }
    };
    InlineLimits {
        callers,
        refused: callees.iter().filter_map(reason).collect(),
        indirect: facts.indirect_calls().map(|call| linked(call.at)).collect(),
        targets: object.functions.iter().map(|f| linked(f.at)).collect(),
    }
}

/// Code of an inlined call or a guard, or the old code (the first).
struct CodeContext {
    /// The function in whose code it stands.
    owner: u32,
    /// What was written, ascending by old offset. Empty for the old code, which is where it was.
    written: Vec<Written>,
    /// The direct call, if it is a guard. The indirect one is in `written`.
    guarded: Option<GuardedCall>,
    /// The unwinder's state at the call.
    outer: Option<OrcState>,
    /// The unwinder's states in it, each with the offset where it begins.
    states: Vec<(u32, OrcState)>,
    /// The offset behind its last byte.
    end: u32,
}

struct Expansion<'o, 'a> {
    object: &'o KernelObject<'a>,
    base: LinkAddr,
    form: OrcForm,
    states: Vec<(u32, OrcState)>,
    text: Vec<u8>,
    relocations: Vec<ElfRelocation>,
    /// The offsets of calls that are gone, each with the bytes of the call.
    gone: BTreeMap<u32, u32>,
    contexts: Vec<CodeContext>,
    calls: Vec<InlinedCall>,
    owners: Vec<(u32, u32)>,
}

impl<'o, 'a> Expansion<'o, 'a> {
    fn new(object: &'o KernelObject<'a>, base: LinkAddr, form: OrcForm) -> Result<Self> {
        let elf = &object.elf;
        let sections = orc_sections(object)?;
        let ip = &object.relocations[sections.ip.0 as usize];
        let states = sections.table(elf, ip, object.text)?;
        let old = CodeContext {
            owner: 0,
            written: Vec::new(),
            guarded: None,
            outer: None,
            states: Vec::new(),
            end: 0,
        };
        Ok(Expansion {
            object,
            base,
            form,
            states,
            text: elf.bytes(object.text).to_vec(),
            relocations: object.relocations[object.text.0 as usize].clone(),
            gone: BTreeMap::new(),
            contexts: vec![old],
            calls: Vec::new(),
            owners: Vec::new(),
        })
    }

    /// Where an instruction of a context is now; `None` if it is gone.
    fn place(&self, context: u32, at: u32) -> Option<u32> {
        match context {
            0 => Some(at),
            n => self.contexts[n as usize].place(at),
        }
    }

    /// The unwinder's state at an instruction of a context.
    fn state(&self, context: u32, at: u32) -> Result<OrcState> {
        let state = state_at(&self.states, at);
        let CodeContext { outer, guarded, .. } = &self.contexts[context as usize];
        match *outer {
            None => Ok(state),
            Some(outer) if guarded.is_some() => Ok(outer),
            // Between a jump and an aligned loop lies padding, to which control never comes.
            Some(_) if state == UNDEFINED => Ok(UNDEFINED),
            Some(outer) => composed(outer, state, self.form).with_context(|| {
                format!(".text+{at:#x}: the unwinder's states cannot be put together")
            }),
        }
    }

    /// The callee of the direct call at `site` of a context.
    fn callee(&self, context: u32, site: u32, facts: &BodyFacts<'_, '_>) -> Option<u32> {
        match self.contexts[context as usize].guarded {
            Some(call) => Some(call.callee).filter(|_| call.site == site),
            None => facts.call_at(site),
        }
    }

    /// Puts the code of a callee in the place of the call at `site` of a context. Returns the
    /// number of that code.
    fn inline(
        &mut self,
        context: u32,
        site: u32,
        body: &Body,
        facts: &BodyFacts<'_, '_>,
    ) -> Result<u32> {
        let found = self.callee(context, site, facts).context("no plain call is there")?;
        ensure!(found == body.entry, "it goes to another function");
        let CallLeft { at, start, outer, owner } = self.leave(context, site, CALL, facts)?;
        let written = body.write(facts, at + CALL, &mut self.text, &mut self.relocations)?;
        let end = written.iter().map(|w| w.new + w.len).max().unwrap_or(start);
        self.contexts.push(CodeContext {
            owner,
            written,
            guarded: None,
            outer: Some(outer),
            states: Vec::new(),
            end,
        });
        let context = self.contexts.len() as u32 - 1;
        let written = self.contexts[context as usize].written.iter();
        let states = written.map(|w| Ok((w.new, self.state(context, w.old)?)));
        self.contexts[context as usize].states = states.collect::<Result<_>>()?;
        let linked = |at| LinkAddr(self.base.0 + u64::from(at));
        let code = body.parts.iter().map(|part| (linked(part.start), part.len() as u32));
        self.note(at, start, owner, InPlaceOfCall::Code(code.collect()));
        Ok(context)
    }

    /// Puts a guard in the place of the indirect call at `site` of a context: where the pointer is
    /// `callee`, it is called directly. Returns the number of that code.
    fn promote(
        &mut self,
        context: u32,
        site: u32,
        callee: u32,
        facts: &BodyFacts<'_, '_>,
    ) -> Result<u32> {
        let call = facts.indirect_call_at(site).context("no call that can be promoted is there")?;
        let is_entry = facts.function_at(callee) == Some(callee);
        ensure!(is_entry, "its target is no function");
        let CallLeft { at, start, outer, owner } = self.leave(context, site, call.len, facts)?;
        let guard = call.write(facts, callee, at, &mut self.text, &mut self.relocations)?;
        self.contexts.push(CodeContext {
            owner,
            written: vec![guard.indirect],
            guarded: Some(GuardedCall { site, at: guard.direct, callee }),
            outer: Some(outer),
            states: vec![(start, outer)],
            end: self.text.len() as u32,
        });
        let target = LinkAddr(self.base.0 + u64::from(callee));
        self.note(at, start, owner, InPlaceOfCall::Guard(target));
        Ok(self.contexts.len() as u32 - 1)
    }

    /// Makes the call of `len` bytes at `site` of a context a jump to where the text ends.
    fn leave(
        &mut self,
        context: u32,
        site: u32,
        len: u32,
        facts: &BodyFacts<'_, '_>,
    ) -> Result<CallLeft> {
        let owner = match context {
            0 => facts.function_at(site).context("no function is there")?,
            n => self.contexts[n as usize].owner,
        };
        let at = self.place(context, site).context("the call is not in this code")?;
        ensure!(self.gone.insert(at, len).is_none(), "it is inlined or promoted already");
        let outer = self.state(context, site)?;
        self.text.resize(self.text.len().next_multiple_of(ALIGNMENT), FILL);
        let start = self.text.len() as u32;
        let behind = at + len;
        // A call with a prefix has a byte more than the jump.
        self.text[at as usize..behind as usize].fill(NO_OP);
        let jump = behind - CALL;
        self.text[jump as usize] = 0xe9;
        self.text[jump as usize + 1..behind as usize]
            .copy_from_slice(&start.wrapping_sub(behind).to_le_bytes());
        Ok(CallLeft { at, start, outer, owner })
    }

    /// Notes what stands at `start` in the place of the call at `at`.
    fn note(&mut self, at: u32, start: u32, owner: u32, code: InPlaceOfCall) {
        let address = |at| address(self.object, self.base, at);
        self.calls.push(InlinedCall { site: address(at), at: address(start), code });
        self.owners.push((start, owner));
    }

    /// Writes the object.
    fn finish(self, facts: &BodyFacts<'_, '_>) -> Result<Expanded> {
        let object = self.object;
        let mut relocations = object.relocations.clone();
        let in_call = |r: &&ElfRelocation| {
            let field = r.offset as u32;
            let before = self.gone.range(..=field).next_back();
            before.is_some_and(|(&at, &len)| field < at + len)
        };
        relocations[object.text.0 as usize] =
            self.relocations.iter().filter(|r| !in_call(r)).copied().collect();
        let contents = tables::with_entries(facts, &self, &mut relocations)?;
        let orc = self.orc()?;
        let mut names = names(object, &self.owners);
        let symbols = self.symbols(&mut names)?;
        relocations.iter_mut().flatten().for_each(|r| r.symbol = symbols.number(r.symbol));
        let debug = match object.elf.sections.iter().any(|section| section.is_debug()) {
            true => DebugInformation::Dropped,
            false => DebugInformation::None,
        };
        let changed = write::ChangedSections { text: self.text, tables: contents };
        let bytes = write::write(object, changed, &symbols, Some(orc), relocations, None, debug)?;
        Ok(Expanded { bytes, calls: self.calls, owners: self.owners })
    }

    /// The unwinder's table, with the states of the inlined code.
    fn orc(&self) -> Result<OrcTables> {
        let mut fresh = self.states.clone();
        let end = self.object.elf.section(self.object.text).size as u32;
        fresh.retain(|&(at, _)| at < end);
        fresh.push((end, UNDEFINED));
        let mut last = (end, UNDEFINED);
        for context in &self.contexts {
            // Parts that the compiler put elsewhere come behind, wherever they were.
            let mut added = context.states.clone();
            added.sort_unstable_by_key(|&(at, _)| at);
            let Some(&(first, _)) = added.first() else { continue };
            // Between the code of two calls lies padding.
            if last.1 != UNDEFINED && last.0 < first {
                fresh.push((last.0, UNDEFINED));
            }
            let mut state = UNDEFINED;
            for (at, next) in added {
                if next != state {
                    fresh.push((at, next));
                    state = next;
                }
            }
            last = (context.end, state);
        }
        fresh.push((self.text.len() as u32, UNDEFINED));
        fresh.dedup_by_key(|&mut (at, _)| at);
        orc::with_states_of_text(self.object, &orc_sections(self.object)?, &fresh)
    }

    fn symbols(&self, names: &mut Vec<String>) -> Result<RewrittenSymbols> {
        let code = self.contexts[1..].iter().zip(&self.owners);
        let extents = code.map(|(context, &(start, _))| (start, context.end));
        symbols::with_functions(self.object, names.drain(..).zip(extents))
    }
}

/// A direct call in a guard.
#[derive(Clone, Copy)]
struct GuardedCall {
    /// The offset of the indirect call, in the code of its own function.
    site: u32,
    /// Where the direct call is.
    at: u32,
    callee: u32,
}

/// A call that became a jump.
struct CallLeft {
    /// Where it is.
    at: u32,
    /// Where the jump goes.
    start: u32,
    /// The unwinder's state at the call.
    outer: OrcState,
    /// The function in whose code it stands.
    owner: u32,
}

impl CodeContext {
    /// Where an instruction is now; in a guard, where the direct call is.
    fn place(&self, at: u32) -> Option<u32> {
        if let Some(call) = self.guarded {
            return Some(call.at).filter(|_| call.site == at);
        }
        let index = self.written.binary_search_by_key(&at, |w| w.old).ok()?;
        Some(self.written[index].new)
    }
}

fn orc_sections<'a>(object: &KernelObject<'a>) -> Result<OrcSections<'a>> {
    let sections = OrcSections::find(&object.elf, |id| object.relocations[id.0 as usize].len())?;
    sections.context("the kernel has no unwinder's table (ORC)")
}

/// The names of inlined code: the name of the function that it was inlined into, and a number.
fn names(object: &KernelObject<'_>, owners: &[(u32, u32)]) -> Vec<String> {
    let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
    let mut name = |&(_, owner): &(u32, u32)| {
        let number = numbers.entry(owner).or_default();
        *number += 1;
        let index = object.functions.partition_point(|f| f.at < owner);
        format!("{}.inlined.{}", object.function_name(&object.functions[index]), *number - 1)
    };
    owners.iter().map(&mut name).collect()
}

#[cfg(test)]
mod tests;
