//! Proves that a module's code is a copy of functions of the kernel.
//!
//! Input: the vmlinux, the module's bytes, and for each copied block the claim where its copy lies
//! in the module's `.text`. Output: the number of counters, or the first difference.
//!
//! The checker reads the module with its own reader, resolves every reference, and walks both
//! codes instruction by instruction. These rules must hold:
//!
//! * Instructions are equal, except for the length of branches.
//! * Branches go to the same place, or to its copy.
//! * What follows a block follows its copy.
//! * Each side-table entry of the kernel has an equal entry in the module, and the module has no
//!   others.
//! * The module names the copy of each function, the copies that run the code of inlined functions
//!   and where inlined code lies, and no others.
//! * Inlined and promoted calls do what the call did ([`InlineClaim`]).
//!
//! Addresses and constants that the running kernel has filled in are not compared here:
//! `live::explain` has compared them with memory.

use anyhow::{Context, Result, bail, ensure};
use counters::CounterFound;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::linked::tables::{BUGFLAG_WARNING, within};
use reader::{ABSOLUTE, ModuleReader, NamedPlace, PC32, PC64};
use std::collections::{BTreeMap, BTreeSet};

pub use inline::InlineClaim;

/// The claim that a range of the module's `.text` is the copy of a block of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct CopyClaim {
    /// 0 for the copy of a function's block; n for a block of the code that stands in place of the
    /// call of the inline claim n - 1.
    pub context: u32,
    /// The block's address.
    pub old: LinkAddr,
    /// The block's size in bytes.
    pub old_size: u32,
    /// Bytes at the block's start that the copy leaves out: ENDBR and the tracer's site.
    pub skip: u32,
    /// The offset of the copy in the module's `.text`.
    pub new: u32,
    /// The size of the copy in bytes.
    pub new_size: u32,
}

impl CopyClaim {
    fn old_end(&self) -> u64 {
        self.old.0 + u64::from(self.old_size)
    }
}

/// Proves the claims. `slide` is the distance in bytes by which KASLR moved the kernel. Returns the
/// number of the module's counters.
///
/// # Errors
/// The module is damaged, or differs from the kernel. The message holds the address of the first
/// difference.
pub fn check_module(
    kernel: &LinkedKernel<'_>,
    slide: u64,
    module: &[u8],
    claims: &[CopyClaim],
    inlined: &[InlineClaim],
) -> Result<usize> {
    let reading = ModuleReader::new(kernel, module)?;
    claims.iter().try_for_each(|claim| reading.check_claim(claim))?;
    let mut by_old: Vec<CopyClaim> = claims.to_vec();
    by_old.sort_by_key(|c| (c.context, c.old));
    let mut by_new: Vec<CopyClaim> = claims.iter().copied().filter(|c| c.new_size > 0).collect();
    by_new.sort_by_key(|c| c.new);
    for pair in by_new.windows(2) {
        ensure!(
            pair[0].new + pair[0].new_size <= pair[1].new,
            "two blocks at .text+{:#x}",
            pair[1].new
        );
    }
    let calls = (1u32..).zip(inlined).map(|(n, call)| ((call.context, call.site.0), n));
    let (promoted, contexts) =
        calls.partition(|&((_, site), _)| promote::indirect_call(kernel, site).is_some());
    let inlined = inlined.to_vec();
    let prover = Prover { kernel, slide, reading, by_old, inlined, contexts, promoted };
    prover.inline_claims()?;
    let mut walked = Walked::default();
    for claim in &prover.by_old {
        prover.walk(claim, &mut walked).with_context(|| format!("the block at {}", claim.old))?;
    }
    prover.counters(&walked.counters)?;
    prover.tables(&walked)?;
    prover.pairs()?;
    prover.inlined_table()?;
    prover.reading.check_all_used()?;
    Ok(walked.counters.len())
}

/// An instruction of the module, decoded, and what its 32-bit field refers to.
struct Copied {
    instruction: Instruction,
    at: u32,
    len: u32,
    named: Option<NamedPlace>,
}

struct Prover<'a> {
    kernel: &'a LinkedKernel<'a>,
    slide: u64,
    reading: ModuleReader<'a>,
    /// Ascending by context and address.
    by_old: Vec<CopyClaim>,
    inlined: Vec<InlineClaim>,
    /// Context and address of each inlined direct call → the context of its code.
    contexts: BTreeMap<(u32, u64), u32>,
    /// Likewise for indirect calls.
    promoted: BTreeMap<(u32, u64), u32>,
}

/// Context and old address of an instruction → offset of its copy.
type Sites = BTreeMap<(u32, u64), u32>;

/// What the walk over both codes found in the copy.
#[derive(Default)]
struct Walked {
    sites: Sites,
    counters: Vec<CounterFound>,
    /// Context, old address and offset of each added instruction that has the unwinder's state of
    /// the instruction at the old address.
    added: Vec<(u32, u64, u32)>,
}

impl Prover<'_> {
    /// Decodes an instruction of the copy.
    fn copied(&self, at: u32, end: u32) -> Result<Copied> {
        let bytes =
            &self.reading.text.get(at as usize..end as usize).context("the copy is cut short")?;
        let mut decoder = Decoder::with_ip(64, bytes, u64::from(at), DecoderOptions::NONE);
        let instruction = decoder.decode();
        ensure!(!instruction.is_invalid(), "the copy does not decode at .text+{at:#x}");
        let len = instruction.len() as u32;
        let offsets = decoder.get_constant_offsets(&instruction);
        let is_branch =
            instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64;
        let field =
            if is_branch { offsets.immediate_offset() } else { offsets.displacement_offset() }
                as u32;
        let relocation = self.reading.field(self.reading.text_index, u64::from(at + field));
        let relative = is_branch || instruction.is_ip_rel_memory_operand();
        let behind = len - field;
        let named = match (relative, relocation) {
            (true, Some((NamedPlace::Kernel(to), PC32))) => {
                Some(self.unslid(to.wrapping_add(u64::from(behind))))
            }
            (true, Some((NamedPlace::Own(section, to), PC32))) => {
                Some(NamedPlace::Own(section, to.wrapping_add(u64::from(behind))))
            }
            (true, None) if is_branch => {
                let to = u32::try_from(instruction.near_branch64());
                Some(NamedPlace::Copy(to.ok().context("goes to a place outside of .text")?))
            }
            (true, other) => bail!("a field at .text+{at:#x} names {other:?}"),
            (false, Some(_)) => bail!("a relocation at .text+{at:#x} that no instruction has"),
            (false, None) => None,
        };
        Ok(Copied { instruction, at, len, named })
    }

    /// The place at a distance from the kernel's image: an address of the image, or a number that
    /// does not move with the image.
    fn unslid(&self, to: u64) -> NamedPlace {
        let moved = to.wrapping_add(self.slide);
        NamedPlace::Kernel(if self.kernel.moves(to) { to } else { moved })
    }

    /// The claim for the block of a context that begins at an old address.
    fn start_of(&self, context: u32, old: u64) -> Option<&CopyClaim> {
        let key = (context, old);
        let index = self.by_old.binary_search_by_key(&key, |c| (c.context, c.old.0)).ok()?;
        Some(&self.by_old[index])
    }

    /// Whether a branch of the copy goes where the old one goes. Calls go to context 0, jumps stay
    /// in their own. Inlined code does not jump into the kernel.
    fn agrees(&self, context: u32, named: Option<NamedPlace>, old_target: u64) -> bool {
        match (self.start_of(context, old_target), named) {
            (Some(claim), Some(NamedPlace::Copy(to))) => self.is_start(to, claim),
            (None, Some(NamedPlace::Kernel(to))) => context == 0 && to == old_target,
            _ => false,
        }
    }

    /// Whether a block's copy begins at an offset. A copy without bytes begins where the next one
    /// does.
    fn is_start(&self, at: u32, claim: &CopyClaim) -> bool {
        at == claim.new
    }

    fn walk(&self, claim: &CopyClaim, walked: &mut Walked) -> Result<()> {
        let (mut old, end) = (claim.old.0 + u64::from(claim.skip), claim.old_end());
        self.check_skipped(claim)?;
        let (mut new, new_end) = (claim.new, claim.new + claim.new_size);
        let mut left = Leaves::RunsOn;
        let (mut counted, mut before) = (false, None);
        while old < end {
            if !counted && let Some(number) = self.counter_at(new, new_end) {
                self.check_counter_place(old, before.as_ref())
                    .with_context(|| format!("the counter in front of {old:x}"))?;
                walked.counters.push(CounterFound { old, new, number });
                new += counters::SIZE;
                counted = true;
            }
            let bytes = self
                .kernel
                .bytes(LinkAddr(old), (end - old).min(15) as usize)
                .context("no bytes")?;
            let original = Decoder::with_ip(64, bytes, old, DecoderOptions::NONE).decode();
            ensure!(!original.is_invalid(), "the original does not decode at {old:x}");
            let next = original.next_ip();
            let last = next >= end;
            if self.walk_joint(claim, &original, new, new_end, walked)? {
                (new, left) = (new_end, Leaves::Elsewhere);
                break;
            }
            if last
                && let Some(done) =
                    self.walk_exit(claim.context, &original, new, new_end, &mut walked.sites)?
            {
                new = done;
                left = Leaves::Elsewhere;
                break;
            }
            let copy =
                self.copied(new, new_end).with_context(|| format!("{original} at {old:x}"))?;
            self.compare(claim.context, &original, &copy, bytes).with_context(|| {
                format!("{original} at {old:x} became {} at .text+{new:#x}", copy.instruction)
            })?;
            walked.sites.insert((claim.context, old), new);
            new += copy.len;
            old = next;
            let away = leaves(&original) && !self.is_patched(original.ip())
                || self.is_bug(original.ip())
                || self.is_dead_end(&original);
            left = if away { Leaves::Elsewhere } else { Leaves::RunsOn };
            before = Some(original);
        }
        let calls_last = before.is_some_and(|last| last.is_call_near());
        match left {
            Leaves::Elsewhere => {
                ensure!(new == new_end, "{} bytes too many in the copy", new_end - new)
            }
            // A function's last instruction calls one that does not return. The next function may
            // begin directly behind it.
            Leaves::RunsOn if calls_last && new == new_end && self.ends_function(end) => {}
            Leaves::RunsOn if self.promoted.contains_key(&(claim.context, end)) => {
                self.walk_guard(claim, new, walked)?
            }
            Leaves::RunsOn if self.start_of(claim.context, end).is_some() => {
                self.check_follows(claim.context, new, new_end, end)?
            }
            // Behind a call that does not return, or a trap.
            Leaves::RunsOn => ensure!(
                new == new_end && self.ends_function(end),
                "runs on into code that is not copied"
            ),
        }
        Ok(())
    }

    fn ends_function(&self, old: u64) -> bool {
        let before = self.kernel.function_at(LinkAddr(old - 1));
        before.is_none_or(|f| self.kernel.link_address(self.kernel.functions[f].end).0 == old)
            || self.kernel.function_at(LinkAddr(old)) != before
    }

    /// Checks that a copy leaves out no more than an ENDBR and a tracer's site.
    fn check_skipped(&self, claim: &CopyClaim) -> Result<()> {
        if claim.skip == 0 {
            return Ok(());
        }
        let site = (claim.old.0 + u64::from(claim.skip)).wrapping_sub(5);
        let is_site = self.kernel.tables.tracer_sites.binary_search(&site).is_ok();
        let endbr = self.kernel.bytes(claim.old, 4) == Some(&[0xf3, 0x0f, 0x1e, 0xfa]);
        ensure!(
            is_site && (claim.skip == 5 || claim.skip == 9 && endbr),
            "leaves out more than the tracer's site"
        );
        Ok(())
    }

    /// Compares a block's last branch. The copy may have the inverse branch, no branch, or a jump
    /// behind the branch. Returns the offset behind the copy; `None` if the instruction is not such
    /// a branch.
    fn walk_exit(
        &self,
        context: u32,
        original: &Instruction,
        new: u32,
        new_end: u32,
        sites: &mut Sites,
    ) -> Result<Option<u32>> {
        let plain = original.is_jmp_short_or_near() || original.is_jcc_short_or_near();
        if !plain || self.is_patched(original.ip()) {
            return Ok(None);
        }
        let Some(target) = self.start_of(context, original.near_branch64()).copied() else {
            return Ok(None);
        };
        if original.is_jmp_short_or_near() {
            if new == new_end && target.new == new {
                return Ok(Some(new));
            }
            let copy = self.copied(new, new_end)?;
            let same = copy.instruction.is_jmp_short_or_near()
                && self.agrees(context, copy.named, original.near_branch64());
            ensure!(same, "{original} became {}", copy.instruction);
            sites.insert((context, original.ip()), new);
            return Ok(Some(new + copy.len));
        }
        let copy = self.copied(new, new_end)?;
        ensure!(copy.instruction.is_jcc_short_or_near(), "{original} became {}", copy.instruction);
        sites.insert((context, original.ip()), new);
        let next = original.next_ip();
        let (was, is) = (original.condition_code(), copy.instruction.condition_code());
        let behind = new + copy.len;
        if was == is && self.agrees(context, copy.named, original.near_branch64()) {
            self.check_follows(context, behind, new_end, next)?;
        } else {
            let mut inverted = *original;
            inverted.negate_condition_code();
            let turned = inverted.condition_code() == is && self.agrees(context, copy.named, next);
            ensure!(turned, "{original} became {}", copy.instruction);
            self.check_follows(context, behind, new_end, original.near_branch64())?;
        }
        Ok(Some(new_end))
    }

    /// Checks that control goes on from `at` to the copy of `old` in a context: directly, or by one
    /// jump that ends the block.
    fn check_follows(&self, context: u32, at: u32, new_end: u32, old: u64) -> Result<()> {
        let claim = self
            .start_of(context, old)
            .with_context(|| format!("what follows, {old:x}, is not copied"))?;
        if at == new_end {
            ensure!(self.is_start(at, claim), "the copy does not run on into that of {old:x}");
            return Ok(());
        }
        let copy = self.copied(at, new_end)?;
        let jumps = copy.instruction.is_jmp_short_or_near()
            && self.agrees(context, copy.named, old)
            && at + copy.len == new_end;
        ensure!(jumps, "the copy goes on with {} instead of at {old:x}", copy.instruction);
        Ok(())
    }

    /// Whether the kernel may patch an instruction. Then the present target of control proves
    /// nothing.
    fn is_patched(&self, at: u64) -> bool {
        let tables = &self.kernel.tables;
        let early = within(
            &tables.alternatives,
            |e| e.site,
            LinkAddr(at.saturating_sub(255)),
            LinkAddr(at + 1),
        );
        early.iter().any(|e| at < e.site + u64::from(e.len)) || self.static_key(at).is_some()
    }

    /// Whether a trap is a BUG, behind which no code runs.
    fn is_bug(&self, at: u64) -> bool {
        let bugs = &self.kernel.tables.bugs;
        bugs.binary_search_by_key(&at, |e| e.site)
            .is_ok_and(|i| bugs[i].flags & BUGFLAG_WARNING == 0)
    }

    /// Whether an instruction is a trap that no table names: where a compiler proved that the
    /// program is wrong. The kernel dies there.
    fn is_dead_end(&self, instruction: &Instruction) -> bool {
        let tables = &self.kernel.tables;
        let (at, end) = (LinkAddr(instruction.ip()), LinkAddr(instruction.next_ip()));
        instruction.code() == Code::Ud2
            && tables.bugs.binary_search_by_key(&at.0, |e| e.site).is_err()
            && within(&tables.exceptions, |e| e.site, at, end).is_empty()
    }

    fn static_key(&self, at: u64) -> Option<u64> {
        let jumps = &self.kernel.tables.jumps;
        jumps.binary_search_by_key(&at, |e| e.site).ok().map(|i| jumps[i].target)
    }

    fn compare(
        &self,
        context: u32,
        original: &Instruction,
        copy: &Copied,
        bytes: &[u8],
    ) -> Result<()> {
        let new = &self.reading.text[copy.at as usize..(copy.at + copy.len) as usize];
        if let Some(target) = self.static_key(original.ip()) {
            let jumps = original.is_jmp_short_or_near();
            let same = match jumps {
                true => new[0] == 0xe9 && self.agrees(context, copy.named, target),
                false => new == [0x0f, 0x1f, 0x44, 0, 0],
            };
            ensure!(same, "not the form of a static key");
            return Ok(());
        }
        if original.op_count() > 0 && original.op0_kind() == OpKind::NearBranch64 {
            let context = if original.is_call_near() { 0 } else { context };
            return self.compare_branch(context, original, copy, bytes, new);
        }
        ensure!(original.len() == new.len(), "of another length");
        let mut decoder = Decoder::with_ip(64, bytes, original.ip(), DecoderOptions::NONE);
        let decoded = decoder.decode();
        let offsets = decoder.get_constant_offsets(&decoded);
        let mut filled: BTreeSet<usize> = BTreeSet::new();
        if original.is_ip_rel_memory_operand() {
            ensure!(original.memory_base() == Register::RIP, "relative to EIP");
            let same = copy.named == Some(NamedPlace::Kernel(original.ip_rel_memory_address()));
            ensure!(same, "names {:x?}", copy.named);
            filled.extend(offsets.displacement_offset()..offsets.displacement_offset() + 4);
        } else if offsets.has_displacement() && offsets.displacement_size() >= 4 {
            filled.extend(self.moved(
                bytes,
                new,
                offsets.displacement_offset(),
                offsets.displacement_size(),
            ));
        }
        if offsets.has_immediate() {
            filled.extend(self.moved(
                bytes,
                new,
                offsets.immediate_offset(),
                offsets.immediate_size(),
            ));
        }
        let constant = |n: usize| {
            let at = original.ip() + n as u64;
            let fields = &self.kernel.tables.constants;
            let index = fields.partition_point(|&(from, _)| from <= at).checked_sub(1);
            index.is_some_and(|i| at < fields[i].0 + u64::from(fields[i].1))
        };
        for n in 0..new.len() {
            ensure!(bytes[n] == new[n] || filled.contains(&n) || constant(n), "byte {n} differs");
        }
        Ok(())
    }

    /// The numbers of the bytes of a field, if the field holds the old address moved by KASLR.
    fn moved(&self, old: &[u8], new: &[u8], at: usize, width: usize) -> Vec<usize> {
        let number = |bytes: &[u8]| {
            bytes[at..at + width].iter().rev().fold(0u64, |value, &b| value << 8 | u64::from(b))
        };
        let mask = if width == 8 { u64::MAX } else { (1 << (width * 8)) - 1 };
        let is_moved = width >= 4 && number(old).wrapping_add(self.slide) & mask == number(new);
        if is_moved { (at..at + width).collect() } else { Vec::new() }
    }

    fn compare_branch(
        &self,
        context: u32,
        original: &Instruction,
        copy: &Copied,
        bytes: &[u8],
        new: &[u8],
    ) -> Result<()> {
        let same_kind = original.mnemonic() == copy.instruction.mnemonic()
            || original.is_jmp_short_or_near() && copy.instruction.is_jmp_short_or_near();
        ensure!(same_kind, "another instruction");
        // A jump's length may change, but a prefix does not come in. It may be the operand's size.
        let plain = matches!(new[0], 0xe8 | 0xe9 | 0xeb | 0x0f | 0x70..=0x7f);
        let prefix = |code: &[u8]| code[..code.len().saturating_sub(4)].to_vec();
        let (old_prefix, new_prefix) = (prefix(&bytes[..original.len()]), prefix(new));
        let has_same = old_prefix == new_prefix || plain && !original.is_call_near();
        ensure!(has_same, "another prefix");
        if self.is_patched(original.ip()) {
            ensure!(original.len() == new.len(), "an alternative of another length");
            if original.len() < 5 {
                ensure!(bytes[..new.len()] == *new, "a short branch in an alternative was changed");
                return Ok(());
            }
        }
        ensure!(
            self.agrees(context, copy.named, original.near_branch64()),
            "goes to {:x?} instead of {:x}",
            copy.named,
            original.near_branch64()
        );
        Ok(())
    }
}

enum Leaves {
    RunsOn,
    Elsewhere,
}

/// Whether control never goes on behind an instruction.
fn leaves(instruction: &Instruction) -> bool {
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => true,
        FlowControl::Return => instruction.mnemonic() != Mnemonic::Iretq,
        // Compilers put it behind a return or a jump, against speculation.
        FlowControl::Interrupt => instruction.code() == Code::Int3,
        _ => false,
    }
}

mod counters;
mod holders;
mod inline;
mod inlined_table;
mod pairs;
mod promote;
mod reader;
mod tables;
#[cfg(test)]
mod tests;
