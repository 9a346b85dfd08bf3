//! How a kernel's branches were executed: by plain instructions or through the thunks of
//! mitigations.
//!
//! Input: the translation blocks of a recording, whose code is the kernel's patched text, and the
//! executions. Output: counts. A translation block that was left midway did not reach its branch
//! and counts for nothing. This module follows no control.

use crate::thunks::Thunk;
use anyhow::{Result, ensure};
use execution::code::{LastInstruction, TranslatedCode};
use image::address::LinkAddr;
use image::sites::ThunkUse;
use machines::{BranchMitigation, GuestProcessor};
use serde::{Deserialize, Serialize};
use sim::BranchKind;
use std::collections::BTreeMap;
use trace::{RunAddr, Translation, TranslationId};

/// The executed returns, indirect branches and repeated string instructions of a kernel. Plain
/// branches in thunks do not count, nor returns in the place of static calls without a target. A
/// thunk may end with a jump to a thunk of returns; that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelBranches {
    /// Returns of functions.
    pub returns: BTreeMap<BranchMitigation, u64>,
    /// Indirect calls and jumps.
    pub indirect: BTreeMap<BranchMitigation, u64>,
    /// String instructions with a repeat prefix. One that goes on after an interruption, or after
    /// another CPU executed, counts again.
    pub string_instructions: u64,
}

impl KernelBranches {
    /// Compares with what a machine's processor would execute.
    ///
    /// # Errors
    /// Branches were executed in another form, or no return in this one: then nobody knows. The
    /// message names form and number.
    pub fn check(&self, processor: &GuestProcessor) -> Result<()> {
        self.check_naming(processor, |_| None)
    }

    /// As [`check`](KernelBranches::check), with `place` in the message: where the first branch of
    /// a form is.
    pub(crate) fn check_naming(
        &self,
        processor: &GuestProcessor,
        place: impl Fn(&BranchForm) -> Option<String>,
    ) -> Result<()> {
        let both = [
            (BranchUse::Return, &self.returns, &processor.returns),
            (BranchUse::Indirect, &self.indirect, &processor.indirect_branches),
        ];
        for (used_as, executed, wanted) in both {
            let others: Vec<String> = executed
                .iter()
                .filter(|(form, _)| *form != wanted && !stays(form, wanted))
                .map(|(form, count)| {
                    let place = place(&(used_as, form.clone()));
                    let place = place.map_or(String::new(), |place| format!(" (first {place})"));
                    format!("{count} {}{place}", phrase(form))
                })
                .collect();
            ensure!(
                others.is_empty(),
                "the kernel executed {} of its {}, but {} executes them {}",
                others.join(" and "),
                used_as.plural(),
                processor.name,
                phrase(wanted)
            );
        }
        ensure!(
            self.returns.contains_key(&processor.returns),
            "the kernel executed no return {}, as {} does: its vmlinux lacks the thunk's symbol, or \
             the workload returns from no function",
            phrase(&processor.returns),
            processor.name
        );
        Ok(())
    }
}

/// What a branch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BranchUse {
    Return,
    Indirect,
}

impl BranchUse {
    fn plural(self) -> &'static str {
        match self {
            BranchUse::Return => "returns",
            BranchUse::Indirect => "indirect branches",
        }
    }
}

/// What a branch is for, and how it was executed.
pub(crate) type BranchForm = (BranchUse, BranchMitigation);

/// Whether the form stands beside the wanted one in the same kernel. Against indirect target
/// selection, only returns in the lower half of a cache line go through the thunk
/// (arch/x86/kernel/alternative.c, `cpu_wants_rethunk_at`).
fn stays(form: &BranchMitigation, wanted: &BranchMitigation) -> bool {
    let its = BranchMitigation::Thunk("its_return_thunk".into());
    *form == BranchMitigation::Plain && *wanted == its
}

/// "plainly", "through srso_alias_return_thunk".
fn phrase(form: &BranchMitigation) -> String {
    match form {
        BranchMitigation::Plain => "plainly".into(),
        BranchMitigation::Thunk(symbol) => format!("through {symbol}"),
    }
}

/// What the last instruction of a translation block counts for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Counted {
    Nothing,
    Branch(BranchForm),
    String,
}

/// What a vmlinux says of branches that the kernel writes itself.
#[derive(Default)]
pub(crate) struct BranchCode {
    /// Ascending by address.
    pub thunks: Vec<Thunk>,
    /// The sites of static calls, ascending.
    pub static_calls: Vec<LinkAddr>,
}

/// Counts while a recording is read.
pub(crate) struct BranchCounter {
    code: BranchCode,
    /// By translation block.
    counted: Vec<Counted>,
    /// Where each begins.
    begins: Vec<RunAddr>,
    whole: Vec<u64>,
}

impl BranchCounter {
    pub(crate) fn new(code: BranchCode) -> BranchCounter {
        BranchCounter { code, counted: Vec::new(), begins: Vec::new(), whole: Vec::new() }
    }

    /// Learns the next translation block.
    ///
    /// # Errors
    /// It has no instruction.
    pub(crate) fn define(&mut self, translation: &Translation) -> Result<()> {
        let counted = match translation.addr.is_kernel() {
            true => self.of(translation)?,
            false => Counted::Nothing,
        };
        self.counted.push(counted);
        self.begins.push(translation.addr);
        self.whole.push(0);
        Ok(())
    }

    /// The whole of a translation block was executed.
    #[inline]
    pub(crate) fn executed(&mut self, id: TranslationId) {
        if let Some(count) = self.whole.get_mut(id.0 as usize) {
            *count += 1;
        }
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> KernelBranches {
        let mut counts = KernelBranches::default();
        for (counted, &times) in self.counted.iter().zip(&self.whole).filter(|(_, n)| **n > 0) {
            let count = match counted {
                Counted::Nothing => continue,
                Counted::Branch((BranchUse::Return, form)) => {
                    counts.returns.entry(form.clone()).or_default()
                }
                Counted::Branch((BranchUse::Indirect, form)) => {
                    counts.indirect.entry(form.clone()).or_default()
                }
                Counted::String => &mut counts.string_instructions,
            };
            *count += times;
        }
        counts
    }

    /// Where the first executed translation block begins that ends with a branch of a form.
    pub(crate) fn places(&self) -> BTreeMap<BranchForm, RunAddr> {
        let mut places = BTreeMap::new();
        for ((counted, &begin), &times) in self.counted.iter().zip(&self.begins).zip(&self.whole) {
            if let (Counted::Branch(form), 1..) = (counted, times) {
                places.entry(form.clone()).or_insert(begin);
            }
        }
        places
    }

    fn of(&self, translation: &Translation) -> Result<Counted> {
        let code = TranslatedCode::new(translation)?;
        let in_thunk = self.thunk_with(translation.addr.0).is_some();
        Ok(match code.last {
            LastInstruction::Taken(_) if in_thunk => Counted::Nothing,
            // A static call without a target. Some are written before the kernel chooses its
            // mitigations: on every processor they are plain (Linux 6.1 with PREEMPT_DYNAMIC).
            LastInstruction::Taken(BranchKind::Return) if self.is_static_call(translation) => {
                Counted::Nothing
            }
            LastInstruction::Taken(BranchKind::Return) => {
                Counted::Branch((BranchUse::Return, BranchMitigation::Plain))
            }
            LastInstruction::Taken(_) => {
                Counted::Branch((BranchUse::Indirect, BranchMitigation::Plain))
            }
            LastInstruction::Jump { target } | LastInstruction::Call { target } => {
                let thunk = self.thunk_with(target.0).filter(|thunk| thunk.addr == target.0);
                let form = |thunk: &Thunk| BranchMitigation::Thunk(thunk.name.clone());
                thunk.map_or(Counted::Nothing, |thunk| match thunk.used_by {
                    Some(ThunkUse::Returns) => Counted::Branch((BranchUse::Return, form(thunk))),
                    Some(ThunkUse::IndirectBranches) => {
                        Counted::Branch((BranchUse::Indirect, form(thunk)))
                    }
                    None => Counted::Nothing,
                })
            }
            _ => {
                let last = translation.code_by_instruction().last();
                match last.is_some_and(|(_, bytes)| repeats(bytes)) {
                    true => Counted::String,
                    false => Counted::Nothing,
                }
            }
        })
    }

    /// Whether the last instruction is the site of a static call.
    fn is_static_call(&self, translation: &Translation) -> bool {
        let last = translation.code_by_instruction().last();
        last.is_some_and(|(at, _)| self.code.static_calls.binary_search(&LinkAddr(at.0)).is_ok())
    }

    fn thunk_with(&self, addr: u64) -> Option<&Thunk> {
        let thunks = &self.code.thunks;
        let behind = thunks.partition_point(|thunk| thunk.addr <= addr);
        let thunk = &thunks[behind.checked_sub(1)?];
        (addr - thunk.addr < thunk.size.max(1)).then_some(thunk)
    }
}

/// Whether this is a string instruction with a repeat prefix: `rep movs`, `repne scas` and so on.
fn repeats(bytes: &[u8]) -> bool {
    let prefixes =
        bytes.iter().take_while(|byte| matches!(byte, 0xf2 | 0xf3 | 0x66 | 0x67)).count();
    let (prefixes, rest) = bytes.split_at(prefixes);
    let opcode = match rest {
        [0x40..=0x4f, opcode, ..] => opcode,
        [opcode, ..] => opcode,
        [] => return false,
    };
    prefixes.iter().any(|byte| matches!(byte, 0xf2 | 0xf3))
        && matches!(opcode, 0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0xffff_ffff_8100_0000;

    fn thunks() -> Vec<Thunk> {
        let thunk = |at, name: &str, used_by| Thunk {
            addr: AT + at,
            size: 0x10,
            name: name.into(),
            used_by,
        };
        vec![
            thunk(0x100, "__x86_indirect_thunk", Some(ThunkUse::IndirectBranches)),
            thunk(0x120, "srso_alias_safe_ret", None),
            thunk(0x140, "srso_alias_return_thunk", Some(ThunkUse::Returns)),
        ]
    }

    /// With a static call at the end of its first KB.
    fn branch_code() -> BranchCode {
        BranchCode { thunks: thunks(), static_calls: vec![LinkAddr(AT + 0x400)] }
    }

    fn zen4() -> GuestProcessor {
        GuestProcessor {
            name: "zen4".into(),
            cpu_model: "max".into(),
            command_line: Vec::new(),
            returns: through("srso_alias_return_thunk"),
            indirect_branches: BranchMitigation::Plain,
            vulnerabilities: BTreeMap::new(),
        }
    }

    fn translation(id: u32, addr: u64, code: &[u8]) -> Translation {
        Translation {
            id: TranslationId(id),
            addr: RunAddr(addr),
            lengths: [code.len() as u8].into(),
            code: code.into(),
        }
    }

    fn through(symbol: &str) -> BranchMitigation {
        BranchMitigation::Thunk(symbol.into())
    }

    /// Counts one translation block of one instruction that ran three times.
    fn counted(addr: u64, code: &[u8]) -> KernelBranches {
        let mut counter = BranchCounter::new(branch_code());
        counter.define(&translation(0, addr, code)).unwrap();
        (0..3).for_each(|_| counter.executed(TranslationId(0)));
        counter.executed(TranslationId(9));
        counter.counts()
    }

    #[test]
    fn each_form_counts_where_the_text_has_it() {
        let returns = |form| KernelBranches { returns: [(form, 3)].into(), ..Default::default() };
        let indirect = |form| KernelBranches { indirect: [(form, 3)].into(), ..Default::default() };
        let string = KernelBranches { string_instructions: 3, ..Default::default() };
        let cases: [(u64, &[u8], KernelBranches); 15] = [
            (AT, &[0xc3], returns(BranchMitigation::Plain)),
            (AT, &[0xe9, 0x3b, 1, 0, 0], returns(through("srso_alias_return_thunk"))),
            (AT + 0x400, &[0xc3], KernelBranches::default()), // a static call without a target
            (AT + 0x400, &[0xff, 0xe0], indirect(BranchMitigation::Plain)),
            (AT, &[0xff, 0xe0], indirect(BranchMitigation::Plain)), // jmp rax
            (AT, &[0x41, 0xff, 0xd3], indirect(BranchMitigation::Plain)), // call r11
            (AT, &[0xe8, 0xfb, 0, 0, 0], indirect(through("__x86_indirect_thunk"))),
            (AT, &[0xe8, 0xfc, 0, 0, 0], KernelBranches::default()), // into the middle of the thunk
            (AT + 0x120, &[0xc3], KernelBranches::default()),        // the thunk's own return
            (AT + 0x100, &[0xeb, 0x3e], returns(through("srso_alias_return_thunk"))),
            (0x1000, &[0xc3], KernelBranches::default()), // user code
            (AT, &[0x48, 0xcf], KernelBranches::default()), // iretq
            (AT, &[0xf3, 0x48, 0xab], string.clone()),    // rep stosq
            (AT, &[0xf2, 0xae], string),                  // repne scasb
            (AT, &[0xf3, 0x90], KernelBranches::default()), // pause
        ];
        for (addr, code, expected) in cases {
            assert_eq!(counted(addr, code), expected, "{code:02x?}");
        }
    }

    #[test]
    fn the_first_executed_branch_of_a_form_has_a_place() {
        let mut counter = BranchCounter::new(branch_code());
        for (id, at) in [(0, AT), (1, AT + 8), (2, AT + 16)] {
            counter.define(&translation(id, at, &[0xc3])).unwrap();
        }
        assert!(counter.places().is_empty());
        (1..3).for_each(|id| counter.executed(TranslationId(id)));
        let plain = (BranchUse::Return, BranchMitigation::Plain);
        assert_eq!(counter.places(), [(plain.clone(), RunAddr(AT + 8))].into());
        let place = |form: &BranchForm| (*form == plain).then(|| "in memcpy".to_owned());
        let message = counter.counts().check_naming(&zen4(), place).unwrap_err().to_string();
        assert!(message.contains("2 plainly (first in memcpy) of its returns"), "{message}");
    }

    #[test]
    fn a_form_that_the_processor_would_not_execute_is_named_with_its_number() {
        let processor = zen4();
        let mut branches = KernelBranches {
            returns: [(through("srso_alias_return_thunk"), 7)].into(),
            indirect: [(BranchMitigation::Plain, 5)].into(),
            string_instructions: 0,
        };
        branches.check(&processor).unwrap();
        let unknown = KernelBranches { returns: BTreeMap::new(), ..branches.clone() };
        let message = unknown.check(&processor).unwrap_err().to_string();
        assert!(message.contains("no return through srso_alias_return_thunk"), "{message}");
        let its = GuestProcessor { returns: through("its_return_thunk"), ..processor.clone() };
        assert!(branches.check(&its).is_err());
        let mixed = [(through("its_return_thunk"), 7), (BranchMitigation::Plain, 3)].into();
        KernelBranches { returns: mixed, ..branches.clone() }.check(&its).unwrap();
        branches.indirect.insert(through("__x86_indirect_thunk"), 2);
        let message = branches.check(&processor).unwrap_err().to_string();
        assert_eq!(
            message,
            "the kernel executed 2 through __x86_indirect_thunk of its indirect branches, but zen4 \
             executes them plainly"
        );
    }
}
