//! Proves that the counters in a module of copies change nothing but their counts.
//!
//! Input: the places at which the copy has the code of a counter. These rules must hold:
//!
//! * The flags that the code changes are dead there.
//! * Code may be inserted there.
//! * Each counter has its own number.
//! * The module's data hold the number of counters.
//!
//! `push` and `pop` need no proof beyond the unwinder's state: the kernel is compiled without a red
//! zone, so nothing lies below the stack pointer.

use super::{NamedPlace, PC32, Prover};
use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Code, RflagsBits};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use image::address::LinkAddr;
use image::linked::forms::OrcForm;
use image::linked::tables::{AlternativeEntry, within};
use image::object::orc::OrcState;
use object::{Object, ObjectSection};
use std::collections::BTreeMap;

/// Bytes of a counter's code.
pub(super) const SIZE: u32 = 17;
/// Offset of the first cookie in the module's data, behind 16 bytes and the number of counters.
const COOKIES: u64 = 24;
const COUNTERS_A_COOKIE: u64 = 2048;
/// All arithmetic flags but carry.
const CHANGED: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;
/// `pushf; pop %rax`, the replacement of `pv_ops.irq.save_fl`. Its callers read the interrupt flag
/// only.
const SAVE_FLAGS: [u8; 2] = [0x9c, 0x58];
/// The limit of instructions that are followed from one counter.
const FAR: usize = 4096;

/// A counter in the copy.
pub(super) struct CounterFound {
    /// The address of the original instruction in front of which the counter stands.
    pub old: u64,
    /// The offset of the counter's code in the module's `.text`.
    pub new: u32,
    /// The number in its code.
    pub number: u64,
}

impl Prover<'_> {
    /// The number of the counter whose code stands at an offset of the copy.
    pub(super) fn counter_at(&self, at: u32, end: u32) -> Option<u64> {
        let code = self.reading.text.get(at as usize..end as usize)?.first_chunk::<17>()?;
        let [0x50, 0x48, 0x8b, 0x05, _, _, _, _, 0x65, 0x48, 0xff, 0x80, a, b, c, d, 0x58] = *code
        else {
            return None;
        };
        let field =
            |offset: u32| self.reading.field(self.reading.text_index, u64::from(at + offset));
        let (Some((NamedPlace::Own(section, named), PC32)), None) = (field(4), field(12)) else {
            return None;
        };
        // Relative to the field's end.
        let cookie = named.wrapping_add(4).checked_sub(COOKIES)?;
        let inside = u64::from(u32::from_le_bytes([a, b, c, d]));
        let is_data = self.data_section().is_some_and(|data| data.index().0 == section);
        let exact = cookie % 8 == 0 && inside % 8 == 0 && inside / 8 < COUNTERS_A_COOKIE;
        (is_data && exact).then(|| cookie / 8 * COUNTERS_A_COOKIE + inside / 8)
    }

    fn data_section(&self) -> Option<object::Section<'_, '_>> {
        self.reading.elf.section_by_name(".data")
    }

    /// Checks the numbers of all counters, and the flags at each of them.
    pub(super) fn counters(&self, found: &[CounterFound]) -> Result<()> {
        let mut numbers: Vec<u64> = found.iter().map(|counter| counter.number).collect();
        numbers.sort_unstable();
        ensure!(
            (0..).zip(&numbers).all(|(n, &number)| n == number),
            "two counters have one number, or a number has no counter"
        );
        let count = numbers.len() as u64;
        let mut expected = Vec::new();
        if count > 0 {
            expected.extend(b"kernlane cookies");
            expected.extend(count.to_le_bytes());
            expected.resize(expected.len() + 8 * count.div_ceil(COUNTERS_A_COOKIE) as usize, 0);
            expected.extend(b"kernlane cookies");
        }
        let data = self.data_section().map_or(Ok(&[][..]), |section| section.data())?;
        ensure!(data == expected, "the module's data do not say that it has {count} counters");
        for counter in found {
            self.check_flags(counter.old)
                .with_context(|| format!("the counter in front of {:x}", counter.old))?;
        }
        Ok(())
    }

    /// Checks that code may be inserted in front of an instruction. `before` is the instruction in
    /// front of it in the same block.
    pub(super) fn check_counter_place(&self, old: u64, before: Option<&Instruction>) -> Result<()> {
        let inside = self.alternatives_at(old).any(|alternative| alternative.site < old);
        ensure!(!inside, "is inside of an alternative, which the kernel writes as a whole");
        let shadow = before.is_some_and(|i| {
            i.mnemonic() == Mnemonic::Sti
                || matches!(i.mnemonic(), Mnemonic::Mov | Mnemonic::Pop)
                    && i.op0_kind() == OpKind::Register
                    && i.op0_register() == Register::SS
        });
        ensure!(!shadow, "is where interrupts are still held off for one instruction");
        Ok(())
    }

    fn alternatives_at(&self, at: u64) -> impl Iterator<Item = &AlternativeEntry> {
        let early = LinkAddr(at.saturating_sub(255));
        within(&self.kernel.tables.alternatives, |e| e.site, early, LinkAddr(at + 1))
            .iter()
            .filter(move |e| at < e.site + u64::from(e.len))
    }

    /// Checks that no instruction that can run after `at` reads a flag that the counter changes.
    /// Follows every way until the flags are written or a function returns.
    fn check_flags(&self, at: u64) -> Result<()> {
        let mut followed: BTreeMap<u64, u32> = BTreeMap::new();
        let mut ways = vec![(at, CHANGED)];
        while let Some((at, live)) = ways.pop() {
            let known = followed.entry(at).or_default();
            let live = live & !*known;
            if live == 0 {
                continue;
            }
            *known |= live;
            ensure!(followed.len() <= FAR, "its flags may be needed far away");
            self.follow_flags(at, live, &mut ways).with_context(|| format!("at {at:x}"))?;
        }
        Ok(())
    }

    /// Follows one instruction. `live` holds the flags that still have the counter's values in
    /// front of it. Pushes the addresses at which control goes on, with their flags.
    fn follow_flags(&self, at: u64, live: u32, ways: &mut Vec<(u64, u32)>) -> Result<()> {
        let i = self.instruction(at)?;
        refuse_reading(&i, live)?;
        let mut is_alternative = false;
        for alternative in self.alternatives_at(at) {
            is_alternative = true;
            self.follow_replacement(alternative, live, ways)?;
        }
        for e in within(&self.kernel.tables.exceptions, |e| e.site, LinkAddr(at), LinkAddr(at + 1))
        {
            ways.push((e.fixup, live));
        }
        let left = if is_alternative { live } else { live & !written(&i) };
        let next = i.next_ip();
        if let Some(target) = self.static_key(at) {
            ways.extend([(target, left), (next, left)]);
            return Ok(());
        }
        let goes_on = match i.flow_control() {
            FlowControl::Next | FlowControl::IndirectCall => true,
            FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
                ways.push((i.near_branch64(), left));
                true
            }
            FlowControl::UnconditionalBranch => {
                if !self.is_compiled_function(i.near_branch64()) {
                    ways.push((i.near_branch64(), left));
                }
                // As an alternative, the instruction may be missing in memory.
                is_alternative
            }
            // No flags are handed on to a called function, nor to a caller (System V ABI).
            FlowControl::Call => true,
            FlowControl::Return => is_alternative,
            FlowControl::IndirectBranch => {
                ensure!(self.block_of(at).is_none(), "an indirect jump: {i}");
                false
            }
            FlowControl::Exception => !self.is_bug(at),
            FlowControl::Interrupt => i.code() != Code::Int3,
        };
        // A call at the end of a function never returns.
        if goes_on && !self.ends_function(next) {
            ways.push((next, left));
        }
        Ok(())
    }

    /// Follows the code that the kernel may have written over an instruction.
    fn follow_replacement(
        &self,
        alternative: &AlternativeEntry,
        live: u32,
        ways: &mut Vec<(u64, u32)>,
    ) -> Result<()> {
        let (from, len) = (alternative.replacement, usize::from(alternative.replacement_len));
        let code = self.kernel.bytes(LinkAddr(from), len).context("a replacement without bytes")?;
        if code == SAVE_FLAGS {
            return Ok(());
        }
        for i in &mut Decoder::with_ip(64, code, from, DecoderOptions::NONE) {
            ensure!(!i.is_invalid(), "a replacement that does not decode");
            refuse_reading(&i, live)?;
            let branches = i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64;
            let to = i.near_branch64();
            if branches && !(from..=from + len as u64).contains(&to) {
                ways.push((to, live));
            }
        }
        Ok(())
    }

    /// Whether a compiled function begins at an address. Such a function has a tracer's site.
    fn is_compiled_function(&self, at: u64) -> bool {
        let has = |at: u64| self.kernel.tables.tracer_sites.binary_search(&at).is_ok();
        has(at) || has(at + 4)
    }

    pub(super) fn instruction(&self, at: u64) -> Result<Instruction> {
        let bytes = (1..=15).rev().find_map(|len| self.kernel.bytes(LinkAddr(at), len));
        let bytes = bytes.context("control goes where the file has no bytes")?;
        let i = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        ensure!(!i.is_invalid(), "control goes where the file has no instruction");
        Ok(i)
    }

    /// The copied block that holds an address.
    fn block_of(&self, at: u64) -> Option<&super::CopyClaim> {
        let index = self.by_old.partition_point(|claim| claim.old.0 <= at).checked_sub(1)?;
        Some(&self.by_old[index]).filter(|claim| at < claim.old_end())
    }
}

fn refuse_reading(i: &Instruction, live: u32) -> Result<()> {
    if i.rflags_read() & live != 0 {
        bail!("{i} needs a flag that the counter changes");
    }
    Ok(())
}

/// The flags that an instruction always writes.
fn written(i: &Instruction) -> u32 {
    let by_count = matches!(
        i.mnemonic(),
        Mnemonic::Shl
            | Mnemonic::Sal
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Shld
            | Mnemonic::Shrd
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
    ) && i.op_count() > 1
        && i.op_register(i.op_count() - 1) == Register::CL;
    // With a count of zero, these write no flag.
    let by_length = i.has_rep_prefix() || i.has_repne_prefix();
    if by_count || by_length { 0 } else { i.rflags_modified() & !i.rflags_read() }
}

/// The unwinder's state at each instruction of a counter's code, with the instruction's offset.
/// `state` is the state at the instruction behind the counter, `form` that of this kernel's
/// states.
pub(super) fn unwinding(state: OrcState, form: OrcForm) -> Result<[(u32, OrcState); 4]> {
    let (base, kind) = (state[4] & 0xf, state[5] & 0x7);
    ensure!(
        kind == form.call_frame && [form.frame_pointer, form.stack_pointer].contains(&base),
        "a counter where the frame is not found by the stack or frame pointer"
    );
    let mut pushed = state;
    if base == form.stack_pointer {
        let offset = i16::from_le_bytes([state[0], state[1]]);
        let deeper = offset.checked_add(8).context("too large a frame")?;
        pushed[..2].copy_from_slice(&deeper.to_le_bytes());
    }
    Ok([(0, state), (1, pushed), (8, pushed), (16, pushed)])
}
