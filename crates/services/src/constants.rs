//! What never changes in recordings of one kernel: conditional branches that always go one way, and
//! indirect calls and jumps with one target.
//!
//! Takes recordings and their vmlinux; gives rows, those that were executed most first. Branches
//! that the kernel patches itself (static keys, alternatives) are left out. A recording has no
//! values, so loads and arguments that never change do not show. Samples nothing, prints nothing.

use crate::functions::{NAMELESS, function_name};
use crate::symbols::{self, KernelSymbols};
use crate::{Attribution, binding};
use anyhow::{Context, Result, ensure};
use execution::code::{LastInstruction, TranslatedCode};
use execution::flow::{ExecutionFlow, FragmentExit};
use execution::per_cpu::PerCpu;
use execution::walk::{Observer, Piece, WalkedRecording, Wants};
use image::address::LinkAddr;
use image::mapping::map_file;
use image::source_lines::SourceLines;
use image::{Image, vmlinux};
use serde::Serialize;
use sim::BranchKind;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use trace::{RecordingHeader, Translation};

/// A branch that always did the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConstantBranch {
    /// What it is.
    pub kind: ConstantKind,
    /// The function, without what compilers append.
    pub function: String,
    /// The address of the branch, in hex.
    pub code: String,
    /// Its source line, where the vmlinux has DWARF.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// The function that it calls or jumps to, and its address in hex; `None` for conditional
    /// branches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<(String, String)>,
    /// How often it was executed.
    pub executions: u64,
}

/// What a branch that always does the same is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConstantKind {
    /// A conditional branch that was always taken.
    Taken,
    /// A conditional branch that was never taken.
    NotTaken,
    /// An indirect call with one target.
    Call,
    /// An indirect jump with one target.
    Jump,
}

impl ConstantKind {
    /// The name in reports.
    pub fn title(self) -> &'static str {
        match self {
            ConstantKind::Taken => "always taken",
            ConstantKind::NotTaken => "never taken",
            ConstantKind::Call => "one callee",
            ConstantKind::Jump => "one target",
        }
    }
}

/// How many branches of a kind were executed, and how many of them always did the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BranchShare {
    /// Branches that were executed.
    pub branches: u64,
    /// Their executions.
    pub executions: u64,
    /// Those that always did the same.
    pub constant: u64,
    /// The executions of these.
    pub constant_executions: u64,
}

/// What never changes in recordings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConstantTable {
    /// The recorded workloads.
    pub workloads: Vec<String>,
    /// The build id of the recorded kernel.
    pub kernel_build_id: String,
    /// The kernel's instructions in all recordings.
    pub instructions: u64,
    /// Conditional branches that the kernel does not patch.
    pub conditional: BranchShare,
    /// Indirect calls and jumps.
    pub indirect: BranchShare,
    /// Executions of conditional branches that the kernel patches: they are left out.
    pub patched: u64,
    /// Descending by executions.
    pub branches: Vec<ConstantBranch>,
}

/// What is counted of a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BranchCounts {
    taken: u64,
    next: u64,
    /// Of an indirect branch: its first target, and whether there are others.
    target: Option<u64>,
    others: bool,
    is_call: bool,
}

/// What never changes in these recordings of one kernel. `kernel`: as for [`Attribution::open`].
///
/// # Errors
/// A recording is damaged or of another kernel, or `kernel` is not a vmlinux.
pub fn constants(
    attribution: &Attribution,
    recordings: &[impl AsRef<Path>],
    kernel: &Path,
) -> Result<ConstantTable> {
    let path = vmlinux::path(kernel);
    let image = vmlinux::read(&path)?;
    let bytes = map_file(&path)?;
    let lines = SourceLines::read(&bytes).with_context(|| path.display().to_string())?;
    let mut walk = ConstantsWalk::new(&attribution.symbols, &attribution.binding.thunks);
    let mut workloads = Vec::new();
    for recording in recordings {
        let opened = attribution.opened(recording.as_ref(), "branches")?.without_data();
        workloads.push(opened.header().workload.clone());
        opened.walk(&mut walk)?;
    }
    Ok(walk.table(workloads, &image, &lines))
}

/// Counts branches, as an observer of one recording after another.
struct ConstantsWalk<'a> {
    symbols: &'a KernelSymbols,
    thunks: &'a [(std::ops::Range<u64>, ())],
    kernel_build_id: String,
    /// By translation block of this recording.
    codes: Vec<BlockFacts>,
    /// By fragment of this recording.
    runs: Vec<u64>,
    /// By CPU: the indirect branch that was executed last, and whether its target is still to come.
    open: PerCpu<Option<OpenBranch>>,
    branches: BTreeMap<u64, BranchCounts>,
    instructions: u64,
}

#[derive(Clone, Copy)]
struct BlockFacts {
    addr: u64,
    last: u64,
    is_kernel: bool,
    is_thunk: bool,
}

#[derive(Clone, Copy)]
struct OpenBranch {
    at: u64,
    is_call: bool,
    /// A direct call or jump, which counts only if it goes to a thunk.
    is_direct: bool,
}

impl<'a> ConstantsWalk<'a> {
    fn new(
        symbols: &'a KernelSymbols,
        thunks: &'a [(std::ops::Range<u64>, ())],
    ) -> ConstantsWalk<'a> {
        ConstantsWalk {
            symbols,
            thunks,
            kernel_build_id: String::new(),
            codes: Vec::new(),
            runs: Vec::new(),
            open: PerCpu::default(),
            branches: BTreeMap::new(),
            instructions: 0,
        }
    }

    /// Adds up the fragments of a recording.
    fn add(&mut self, flow: &ExecutionFlow) {
        for (fragment, runs) in flow.fragments.iter().zip(std::mem::take(&mut self.runs)) {
            let facts = self.codes[fragment.translation.0 as usize];
            if !facts.is_kernel || runs == 0 {
                continue;
            }
            let code = &flow.codes[fragment.translation.0 as usize];
            let late = matches!(fragment.exit, FragmentExit::LateNext | FragmentExit::LateTaken);
            self.instructions += runs
                * match fragment.exit {
                    FragmentExit::Midway(reached) => u64::from(reached),
                    _ if late => 0,
                    _ => code.lengths.len() as u64,
                };
            if !matches!(code.last, LastInstruction::Conditional { .. }) {
                continue;
            }
            let counts = self.branches.entry(facts.last).or_default();
            match fragment.exit {
                FragmentExit::Taken | FragmentExit::LateTaken => counts.taken += runs,
                FragmentExit::Next | FragmentExit::LateNext => counts.next += runs,
                FragmentExit::Interrupted | FragmentExit::Midway(_) => {}
            }
        }
        self.codes.clear();
        self.open = PerCpu::default();
    }

    /// An execution on the CPU that executes, which was left as `exit` says.
    #[inline]
    fn executed(&mut self, translation: u32, code: &TranslatedCode, exit: FragmentExit) {
        let facts = self.codes[translation as usize];
        let mut through_thunk = None;
        if let Some(open) = self.open.current.take() {
            match (facts.is_thunk, open.is_direct) {
                // The thunk jumps to where the caller's register points.
                (true, _) => through_thunk = Some(open),
                (false, false) => self.went(open, facts.addr),
                (false, true) => {}
            }
        }
        if !facts.is_kernel || matches!(exit, FragmentExit::Midway(_) | FragmentExit::Interrupted) {
            return;
        }
        let branch = |is_call, is_direct| OpenBranch { at: facts.last, is_call, is_direct };
        self.open.current = match (facts.is_thunk, code.last) {
            (true, LastInstruction::Taken(_)) => {
                through_thunk.map(|open| OpenBranch { is_direct: false, ..open })
            }
            (true, _) => through_thunk,
            (false, LastInstruction::Taken(BranchKind::IndirectCall)) => Some(branch(true, false)),
            (false, LastInstruction::Taken(BranchKind::Return)) => None,
            (false, LastInstruction::Taken(_)) => Some(branch(false, false)),
            (false, LastInstruction::Call { target }) if self.is_thunk(target.0) => {
                Some(branch(true, true))
            }
            (false, LastInstruction::Jump { target }) if self.is_thunk(target.0) => {
                Some(branch(false, true))
            }
            _ => None,
        };
    }

    fn is_thunk(&self, addr: u64) -> bool {
        binding::in_range(self.thunks, addr).is_some()
    }

    fn went(&mut self, open: OpenBranch, target: u64) {
        let counts = self.branches.entry(open.at).or_default();
        counts.taken += 1;
        counts.is_call = open.is_call;
        counts.others |= counts.target.is_some_and(|known| known != target);
        counts.target.get_or_insert(target);
    }

    fn name(&self, addr: u64) -> String {
        let symbol = self.symbols.containing(LinkAddr(addr));
        symbol.map_or(NAMELESS, function_name).to_owned()
    }

    fn table(
        self,
        workloads: Vec<String>,
        image: &Image,
        lines: &SourceLines<'_>,
    ) -> ConstantTable {
        let (mut conditional, mut indirect) = <(BranchShare, BranchShare)>::default();
        let (mut rows, mut patched) = (Vec::new(), 0);
        for (&at, counts) in &self.branches {
            let executions = counts.taken + counts.next;
            let is_patched = image.block_at(LinkAddr(at)).is_some_and(|it| image.block(it).patched);
            if counts.target.is_none() && is_patched {
                patched += executions;
                continue;
            }
            let kind = match counts {
                BranchCounts { target: Some(_), others: true, .. } => None,
                BranchCounts { target: Some(_), is_call: true, .. } => Some(ConstantKind::Call),
                BranchCounts { target: Some(_), .. } => Some(ConstantKind::Jump),
                BranchCounts { next: 0, taken: 1.., .. } => Some(ConstantKind::Taken),
                BranchCounts { next: 1.., taken: 0, .. } => Some(ConstantKind::NotTaken),
                _ => None,
            };
            let share = if counts.target.is_some() { &mut indirect } else { &mut conditional };
            share.branches += 1;
            share.executions += executions;
            let Some(kind) = kind else { continue };
            share.constant += 1;
            share.constant_executions += executions;
            rows.push((kind, at, counts.target, executions));
        }
        rows.sort_by_key(|(kind, at, _, executions)| (Reverse(*executions), *at, *kind));
        let row = |(kind, at, target, executions): (_, u64, Option<u64>, u64)| ConstantBranch {
            kind,
            function: self.name(at),
            code: format!("{at:016x}"),
            line: lines.line(at),
            target: target.map(|target| (self.name(target), format!("{target:016x}"))),
            executions,
        };
        let branches = rows.into_iter().map(row).collect();
        ConstantTable {
            workloads,
            kernel_build_id: self.kernel_build_id,
            instructions: self.instructions,
            conditional,
            indirect,
            patched,
            branches,
        }
    }
}

impl Observer for ConstantsWalk<'_> {
    fn begin(&mut self, header: &RecordingHeader, _: bool) -> Result<Wants> {
        symbols::check(header, self.symbols)?;
        let known = std::mem::replace(&mut self.kernel_build_id, header.build_id.clone());
        ensure!(
            known.is_empty() || known == header.build_id,
            "the recordings are of the kernels {known} and {}: name recordings of one kernel",
            header.build_id
        );
        Ok(Wants { control: true, ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        for translation in translations {
            let addr = translation.addr.0;
            let last = translation.code_by_instruction().last();
            self.codes.push(BlockFacts {
                addr,
                last: last.map_or(addr, |(addr, _)| addr.0),
                is_kernel: translation.is_kernel(),
                is_thunk: self.is_thunk(addr),
            });
        }
        Ok(())
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        let Some(control) = &piece.control else { return Ok(()) };
        self.open.turn_to(piece.cpu, || None);
        self.runs.resize(control.flow.fragments.len(), 0);
        for id in control.fragments {
            self.runs[id.0 as usize] += 1;
            let fragment = control.flow.fragments[id.0 as usize];
            if matches!(fragment.exit, FragmentExit::LateNext | FragmentExit::LateTaken) {
                continue;
            }
            let translation = fragment.translation.0;
            self.executed(translation, &piece.codes[translation as usize], fragment.exit);
        }
        Ok(())
    }

    fn end(&mut self, walked: &WalkedRecording<'_>) -> Result<()> {
        self.add(walked.flow);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::RunAddr;

    const KERNEL: u64 = 0xffff_ffff_8100_0000;

    fn code(at: u64, last: LastInstruction) -> (BlockFacts, TranslatedCode) {
        let facts = BlockFacts {
            addr: KERNEL + at,
            last: KERNEL + at + 2,
            is_kernel: true,
            is_thunk: at == 0x400,
        };
        let (addr, lengths) = (RunAddr(KERNEL + at), Box::new([2, 2]));
        let code = TranslatedCode { addr, lengths, last, large_page: false };
        (facts, code)
    }

    #[test]
    fn branches_have_one_target_or_several() {
        let symbols = KernelSymbols::default();
        let thunks = [(KERNEL + 0x400..KERNEL + 0x410, ())];
        let mut walk = ConstantsWalk::new(&symbols, &thunks);
        let call = LastInstruction::Taken(BranchKind::IndirectCall);
        let jump = LastInstruction::Taken(BranchKind::IndirectJump);
        let by_thunk = LastInstruction::Call { target: RunAddr(KERNEL + 0x400) };
        let blocks = [
            code(0, call),
            code(0x100, LastInstruction::Plain),
            code(0x200, LastInstruction::Plain),
            code(0x300, by_thunk),
            code(0x400, jump),
        ];
        walk.codes = blocks.iter().map(|(facts, _)| *facts).collect();
        let mut run = |numbers: &[u32], exit| {
            for &number in numbers {
                walk.executed(number, &blocks[number as usize].1, exit);
            }
        };
        run(&[0, 1, 0, 2, 3, 4, 1, 3, 4, 1], FragmentExit::Next);
        // The target of an interrupted branch is not seen.
        run(&[3], FragmentExit::Next);
        run(&[4], FragmentExit::Interrupted);
        run(&[2], FragmentExit::Next);
        let of = |at: u64| {
            let it = walk.branches[&(KERNEL + at + 2)];
            (it.taken, it.others, it.target.map(|target| target - KERNEL))
        };
        assert_eq!((of(0), of(0x300)), ((2, true, Some(0x100)), (2, false, Some(0x100))));
        assert_eq!(walk.branches.len(), 2, "a thunk has no branch of its own");
    }
}
