//! The recorded code as an out-of-order core runs it: uops, fetch runs and branches of fragments.
//!
//! Input: translations, and fragments under a layout. Output: the [`sim::core::CoreBlock`] of each
//! fragment. Instructions become uops once for each maker of uops, whatever the layout. Fragments
//! become blocks once for each layout and machine. This module runs nothing.

use crate::branches::place;
use crate::flow::{Fragment, FragmentExit, FragmentId};
use crate::moved::{MovedFragment, MovedInstruction};
use crate::numbering::{FetchUnit, NumberedUnit, Numbering};
use anyhow::{Context, Result};
use sim::core::{
    CoreBlock, CoreDescription, CoreInstruction, FetchRun, MnemonicId, SharedUopMaker,
    TranslatedInstruction, Uop, UopKind, UopLatencies, UopMaker,
};
use sim::{Branch, BranchKind, CodeAddr, ItlbDescription, LineId, MachineModel, Mode, PhysAddr};
use std::collections::BTreeMap;
use std::ops::Range;
use trace::{RunAddr, Translation, TranslationId};

/// The jump that a layout appends to a block, as bytes.
const JUMP: &[u8] = &[0xe9, 0, 0, 0, 0];

/// The uops of all translations, by one maker of uops.
pub struct UopCode {
    maker: SharedUopMaker,
    latencies: UopLatencies,
    uops: Vec<Uop>,
    /// Translation t has `instructions[starts[t]..starts[t + 1]]`.
    starts: Vec<u32>,
    instructions: Vec<TranslatedInstruction>,
    jump: TranslatedInstruction,
}

impl UopCode {
    /// No code yet, for this core.
    ///
    /// # Errors
    /// The core's maker of uops gives no uops for a jump.
    pub(crate) fn new(core: &CoreDescription) -> Result<UopCode> {
        let (maker, latencies) = (core.uops.clone(), core.uop_latencies());
        let mut uops = Vec::new();
        let made = maker.translate(0, &[JUMP], latencies, &mut uops);
        let jump = *made.first().context("a jump has no uop")?;
        Ok(UopCode { maker, latencies, uops, starts: vec![0], instructions: Vec::new(), jump })
    }

    /// Whether these are the uops of this core.
    pub(crate) fn is_of(&self, core: &CoreDescription) -> bool {
        self.maker == core.uops && self.latencies == core.uop_latencies()
    }

    /// Learns a translation. Translations come in the order of their ids.
    pub(crate) fn define(&mut self, translation: &Translation) {
        let code: Vec<&[u8]> = translation.code_by_instruction().map(|(_, bytes)| bytes).collect();
        let made = self.maker.translate(translation.addr.0, &code, self.latencies, &mut self.uops);
        self.instructions.extend(made);
        self.starts.push(self.instructions.len() as u32);
    }

    /// The uops that instructions refer to.
    pub(crate) fn uops(&self) -> &[Uop] {
        &self.uops
    }

    fn of(&self, translation: TranslationId) -> &[TranslatedInstruction] {
        let at = translation.0 as usize;
        &self.instructions[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    /// Whether the instruction transfers control by itself as an interruption does.
    fn transfers_control(&self, instruction: &TranslatedInstruction) -> bool {
        let first = instruction.first_uop as usize;
        let uops = &self.uops[first..first + usize::from(instruction.uops)];
        uops.iter().any(|uop| matches!(uop.kind, UopKind::Serialising(_)))
    }
}

/// Where the parts of a block lie.
#[derive(Clone, Debug)]
struct BlockPlace {
    runs: Range<u32>,
    instructions: Range<u32>,
    branches: Range<u32>,
    arrives: Option<CodeAddr>,
    mode: Mode,
    interrupted: bool,
    /// No instruction of the translation runs.
    late: bool,
    /// The instructions that were recorded.
    recorded: u16,
}

/// A fragment as a core runs it.
pub(crate) struct FragmentBlock<'a> {
    pub block: CoreBlock<'a>,
    /// An interruption follows.
    pub interrupted: bool,
    /// No instruction of the translation runs.
    pub late: bool,
    /// The instructions that were recorded. They are the same under every layout.
    pub recorded: u16,
}

/// The blocks of all fragments under one layout on one machine.
pub struct CoreBlocks {
    lines: Numbering,
    pages: Numbering,
    line_bytes: u64,
    blocks: Vec<BlockPlace>,
    runs: Vec<FetchRun>,
    instructions: Vec<CoreInstruction>,
    branches: Vec<Branch>,
    /// For a fragment: the mnemonics of its instructions that the table does not know.
    unknown: Vec<(FragmentId, MnemonicId)>,
}

impl CoreBlocks {
    /// No block yet; `None` when the machine has no core.
    pub(crate) fn new(machine: &MachineModel) -> Option<CoreBlocks> {
        let core = machine.core.as_ref()?;
        let itlb: &ItlbDescription = machine.itlb.as_ref()?;
        let uop_cache = core.front_end.uop_cache.map_or(1, |cache| cache.geometry.sets());
        let second = core.memory.second_tlb.sets();
        Some(CoreBlocks {
            lines: Numbering::new(
                FetchUnit::Lines(machine.l1i_line),
                machine.l1i.sets().max(uop_cache),
            ),
            pages: Numbering::new(FetchUnit::of_pages(itlb), itlb.geometry().sets().max(second)),
            line_bytes: machine.l1i_line.into(),
            blocks: Vec::new(),
            runs: Vec::new(),
            instructions: Vec::new(),
            branches: Vec::new(),
            unknown: Vec::new(),
        })
    }

    /// Adds the next fragment. `lies` gives the physical address of its code, if known.
    ///
    /// # Errors
    /// There is more code than a simulation can number.
    pub(crate) fn push(
        &mut self,
        fragment: &Fragment,
        moved: &MovedFragment,
        mode: Mode,
        code: &UopCode,
        lies: &mut impl FnMut(RunAddr) -> Option<PhysAddr>,
    ) -> Result<()> {
        let id = FragmentId(self.blocks.len() as u32);
        let starts = [self.runs.len(), self.instructions.len(), self.branches.len()];
        let translated = code.of(fragment.translation);
        let (mut left, mut last) = (true, None);
        for instruction in &moved.instructions_at {
            let own = match instruction.recorded {
                Some(index) => translated.get(usize::from(index)).unwrap_or(&code.jump),
                None => &code.jump,
            };
            last = Some(own);
            self.line_of(instruction, &mut left, starts[0], lies)?;
            let next = moved.branches.get(self.branches.len() - starts[2]);
            let branch = next.filter(|branch| branch.at.0 == instruction.at.0);
            if let Some(branch) = branch {
                self.branches.push(placed(branch));
                left = true;
            }
            if let Some(mnemonic) = own.unknown {
                self.unknown.push((id, mnemonic));
            }
            let numbered = branch.map_or(0, |_| self.branches.len() - starts[2]);
            let numbered = u8::try_from(numbered).unwrap_or(0);
            self.instructions.push(CoreInstruction {
                first_uop: own.first_uop,
                uops: own.uops,
                slots: own.slots,
                bytes: instruction.bytes,
                branch: numbered,
                recorded: instruction.recorded.unwrap_or(u16::MAX),
            });
            if let Some(run) = self.runs.last_mut() {
                run.instructions += 1;
                run.slots += u16::from(own.slots);
                run.branch = numbered;
            }
        }
        let interrupted =
            matches!(fragment.exit, FragmentExit::Interrupted | FragmentExit::Midway(_))
                && !last.is_some_and(|last| code.transfers_control(last));
        let range = |start: usize, end: usize| start as u32..end as u32;
        self.blocks.push(BlockPlace {
            runs: range(starts[0], self.runs.len()),
            instructions: range(starts[1], self.instructions.len()),
            branches: range(starts[2], self.branches.len()),
            arrives: moved.arrives.map(place),
            mode,
            interrupted,
            late: matches!(fragment.exit, FragmentExit::LateNext | FragmentExit::LateTaken),
            recorded: moved.recorded,
        });
        Ok(())
    }

    /// Ends the runs with a run of the line that holds the last byte of an instruction. `left`: a
    /// branch came before, taken or not, or the fragment begins. Then a new run begins in any case,
    /// because the front end may begin again there.
    fn line_of(
        &mut self,
        instruction: &MovedInstruction,
        left: &mut bool,
        first_run: usize,
        lies: &mut impl FnMut(RunAddr) -> Option<PhysAddr>,
    ) -> Result<()> {
        let &MovedInstruction { at, bytes, large_page, .. } = instruction;
        let mut units = Vec::new();
        self.lines.units((at, bytes.max(1).into()), large_page, lies, &mut units)?;
        for NumberedUnit { id: line, addr, physical } in units {
            let same = self.runs.len() > first_run
                && !*left
                && self.runs.last().is_some_and(|run| run.line == line);
            if !same {
                self.runs.push(FetchRun {
                    line,
                    page: self.pages.number(addr, large_page, None)?,
                    physical: physical.unwrap_or_else(|| self.stand_in(line)),
                    instructions: 0,
                    slots: 0,
                    branch: 0,
                });
                *left = false;
            }
        }
        Ok(())
    }

    /// A physical address that no other line has.
    fn stand_in(&self, line: LineId) -> PhysAddr {
        let mode = if line.mode() == Mode::User { 1 << 36 } else { 0 };
        PhysAddr((u64::from(line.index()) * self.line_bytes) | mode)
    }

    /// The block of a fragment.
    pub(crate) fn block(&self, fragment: FragmentId) -> FragmentBlock<'_> {
        let place = &self.blocks[fragment.0 as usize];
        let range = |range: &Range<u32>| range.start as usize..range.end as usize;
        let block = CoreBlock {
            mode: place.mode,
            arrives: place.arrives,
            runs: &self.runs[range(&place.runs)],
            instructions: &self.instructions[range(&place.instructions)],
            branches: &self.branches[range(&place.branches)],
        };
        let BlockPlace { interrupted, late, recorded, .. } = *place;
        FragmentBlock { block, interrupted, late, recorded }
    }

    /// How often instructions ran that the table of uops does not know, by mnemonic. `counts`: how
    /// often each fragment ran; `maker`: the core's.
    pub(crate) fn unknown(&self, counts: &[u64], maker: &dyn UopMaker) -> BTreeMap<String, u64> {
        let mut unknown = BTreeMap::new();
        for &(fragment, mnemonic) in &self.unknown {
            let times = counts.get(fragment.0 as usize).copied().unwrap_or(0);
            *unknown.entry(maker.mnemonic(mnemonic)).or_insert(0) += times;
        }
        unknown.retain(|_, times| *times > 0);
        unknown
    }
}

/// The branch with the parts of its addresses that identify places. Its own address stays whole: it
/// tells branches of user code apart.
fn placed(branch: &Branch) -> Branch {
    let identity = |addr: CodeAddr| place(RunAddr(addr.0));
    let known_now = !matches!(
        branch.kind,
        BranchKind::Return | BranchKind::IndirectJump | BranchKind::IndirectCall
    );
    Branch {
        end: identity(branch.end),
        target: branch.target.filter(|_| known_now).map(identity),
        ..*branch
    }
}
