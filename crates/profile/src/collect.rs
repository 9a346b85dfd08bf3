//! Turns one recording into a profile.
//!
//! Input: a recording and the image that it ran. Output: counts. [`execution::walk`], the one walk
//! over a recording, shows the way of control. Memory grows with the number of distinct translation
//! blocks and transfers, not with the length of the recording.

use crate::joint::{self, JointMisses};
use crate::temporal_edges::{RECENT_BYTES, TemporalEdges};
use crate::transfers::{IndirectTransfers, KernelBlocks};
use crate::translated::WayOut;
use crate::{Process, Profile, ProfileSource};
use anyhow::Context;
use execution::code::TranslatedCode;
use execution::opened::OpenedRecording;
use execution::part::RecordingPart;
use execution::per_cpu::PerCpu;
use execution::walk::{Observer, Piece, WalkedRecording, Wants, walk_with};
use host::recording::Recording;
use image::address::LinkAddr;
use image::module::ModuleIdentity;
use image::{BuildId, Image};
use layout::graph::SeedClass;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use trace::{
    RecordingHeader, RecordingReader, StreamEvent, Task, TaskId, Translation, TranslationId,
};

/// Which counts a profile has beyond those that every profile has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraCounts {
    /// None.
    None,
    /// Temporal-relationship edges, for `gloy-smith`.
    TemporalEdges,
}

/// The profile of a recording.
///
/// # Errors
/// The recording is damaged, cut off, or of another kernel than `image`.
pub fn collect<R: Read>(
    reader: RecordingReader<R>,
    image: &Image,
    extra: ExtraCounts,
) -> anyhow::Result<Profile> {
    let mut collector = ProfileCollector::new(image, extra);
    walk_with(reader, &image.modules, &mut collector)?;
    collector.profile()
}

/// An observer of a recording that counts for a profile.
pub struct ProfileCollector<'a> {
    transfers: IndirectTransfers,
    executions: ExecutionCounts<'a>,
    header: RecordingHeader,
    profile: Option<Profile>,
}

impl<'a> ProfileCollector<'a> {
    /// A collector without counts. `image`: the kernel that was recorded.
    pub fn new(image: &'a Image, extra: ExtraCounts) -> Self {
        Self {
            transfers: IndirectTransfers::default(),
            executions: ExecutionCounts::new(image, extra),
            header: RecordingHeader::default(),
            profile: None,
        }
    }

    /// The profile.
    ///
    /// # Errors
    /// The walk did not come to the recording's end.
    pub fn profile(self) -> anyhow::Result<Profile> {
        self.profile.context("the recording has no clean end")
    }
}

impl Observer for ProfileCollector<'_> {
    fn begin(&mut self, header: &RecordingHeader, _has_data: bool) -> anyhow::Result<Wants> {
        let image = self.executions.image;
        anyhow::ensure!(
            header.build_id == image.build_id.0,
            "the recording is of the kernel with build id {}, the image has build id {}: give the \
             vmlinux that was recorded",
            header.build_id,
            image.build_id.0
        );
        self.header = header.clone();
        Ok(Wants { control: true, ..Wants::default() })
    }

    fn define(
        &mut self,
        translations: &[Translation],
        codes: &[TranslatedCode],
    ) -> anyhow::Result<()> {
        for (translation, code) in translations.iter().zip(codes) {
            self.transfers.define(self.executions.define(translation, code));
        }
        Ok(())
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.executions.name(tasks);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> anyhow::Result<()> {
        self.executions.running.turn_to(piece.cpu, RunningOnCpu::default);
        piece.events().for_each(|event| self.executions.event(&event));
        self.transfers.turn_to(piece.cpu);
        if let Some(control) = &piece.control {
            for id in control.fragments {
                self.transfers.ran(&control.flow.fragments[id.0 as usize]);
            }
        }
        Ok(())
    }

    fn end(&mut self, walked: &WalkedRecording<'_>) -> anyhow::Result<()> {
        let mut profile = self.executions.profile(&self.header);
        let blocks = &self.executions.blocks;
        blocks.add_transfers(walked.flow, &mut profile);
        blocks.add_indirect_transfers(walked.flow, &self.transfers, &mut profile);
        self.profile = Some(profile);
        Ok(())
    }
}

/// What one process ran.
#[derive(Default)]
struct ProcessRuns {
    /// By translation block, how often the whole of it ran.
    whole: Vec<u64>,
    /// Translation blocks that were left midway: (translation block, instructions reached) → times.
    midway: BTreeMap<(u32, u32), u64>,
}

/// The state of a CPU.
#[derive(Clone, Copy, Default)]
struct RunningOnCpu {
    process: usize,
    /// The class of the last entry, while no movable block has run since.
    entered: Option<SeedClass>,
}

/// Counts executions, but not transfers of control.
struct ExecutionCounts<'a> {
    image: &'a Image,
    blocks: KernelBlocks<'a>,
    /// By translation block.
    instructions: Vec<u32>,
    /// The names of `processes`, in their order.
    names: Vec<String>,
    process_of_task: Vec<usize>,
    processes: Vec<ProcessRuns>,
    process_of_name: HashMap<String, usize>,
    running: PerCpu<RunningOnCpu>,
    seeds: BTreeMap<(LinkAddr, SeedClass), u64>,
    joint: JointMisses,
    temporal_edges: Option<TemporalEdges>,
}

impl<'a> ExecutionCounts<'a> {
    fn new(image: &'a Image, extra: ExtraCounts) -> Self {
        Self {
            image,
            blocks: KernelBlocks::new(image),
            instructions: Vec::new(),
            // The process that runs before the first recorded switch.
            names: vec!["(unknown)".to_owned()],
            process_of_task: Vec::new(),
            processes: vec![ProcessRuns::default()],
            process_of_name: HashMap::from([("(unknown)".to_owned(), 0)]),
            running: PerCpu::default(),
            seeds: BTreeMap::new(),
            joint: JointMisses::new(joint::CACHE_BYTES, image.entry_padding.into()),
            temporal_edges: (extra == ExtraCounts::TemporalEdges)
                .then(|| TemporalEdges::new(RECENT_BYTES, image)),
        }
    }

    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> WayOut {
        self.instructions.push(translation.instructions());
        self.joint.define(self.image, translation.addr.0, &translation.lengths);
        if let Some(temporal_edges) = &mut self.temporal_edges {
            temporal_edges.define(self.image, translation.addr.0, &translation.lengths);
        }
        self.blocks.define(code)
    }

    fn name(&mut self, tasks: &[Task]) {
        for task in tasks {
            let name = task.name().into_owned();
            let next = self.processes.len();
            let process = *self.process_of_name.entry(name.clone()).or_insert(next);
            if process == next {
                self.processes.push(ProcessRuns::default());
                self.names.push(name);
            }
            self.process_of_task.push(process);
        }
    }

    #[inline]
    fn event(&mut self, event: &StreamEvent) {
        match *event {
            StreamEvent::Executed(TranslationId(id)) => self.executed(id),
            StreamEvent::Left { translation: TranslationId(id), instructions } => {
                self.left(id, instructions)
            }
            StreamEvent::Task(TaskId(task)) => {
                self.running.current.process =
                    self.process_of_task.get(task as usize).copied().unwrap_or(0)
            }
            // Each piece is of one CPU.
            StreamEvent::Cpu(_)
            | StreamEvent::Marker(_)
            | StreamEvent::Woken(_)
            | StreamEvent::Clock(_) => {}
        }
    }

    #[inline]
    fn executed(&mut self, id: u32) {
        // The walk refuses a translation block that is not defined.
        let Some(&instructions) = self.instructions.get(id as usize) else { return };
        let runs = &mut self.processes[self.running.current.process].whole;
        if runs.len() <= id as usize {
            runs.resize(self.instructions.len(), 0);
        }
        runs[id as usize] += 1;
        self.ran(id, instructions);
    }

    fn left(&mut self, id: u32, instructions: u32) {
        if (id as usize) < self.instructions.len() {
            let midway = &mut self.processes[self.running.current.process].midway;
            *midway.entry((id, instructions)).or_insert(0) += 1;
            self.ran(id, instructions);
        }
    }

    /// The first instructions of a translation block ran.
    #[inline]
    fn ran(&mut self, id: u32, instructions: u32) {
        self.joint.ran(id, instructions);
        if let Some(temporal_edges) = &mut self.temporal_edges {
            temporal_edges.ran(id, instructions);
        }
        let Some(blocks) = self.blocks.of(id as usize) else { return };
        if blocks.entry.is_some() {
            self.running.current.entered = blocks.entry;
        } else if let (Some(class), true, Some(block)) =
            (self.running.current.entered, blocks.movable, blocks.first)
        {
            *self.seeds.entry((self.image.block(block).addr, class)).or_insert(0) += 1;
            self.running.current.entered = None;
        }
    }

    /// The profile without transfers of control.
    fn profile(&mut self, header: &RecordingHeader) -> Profile {
        let mut profile = Profile {
            seeds: std::mem::take(&mut self.seeds),
            joint_misses: self.joint.counts(self.image),
            temporal_edges: self
                .temporal_edges
                .as_ref()
                .map_or_else(BTreeMap::new, |temporal_edges| temporal_edges.counts(self.image)),
            block_epochs: self.joint.block_epochs(self.image),
            modules: modules_of(self.image),
            ..Profile::empty(BuildId(header.build_id.clone()))
        };
        for (name, runs) in self.names.iter().zip(&self.processes) {
            let process = self.process(runs, &mut profile);
            if process.kernel_instructions + process.user_instructions > 0 {
                profile.processes.insert(name.clone(), process);
            }
        }
        for process in profile.processes.values() {
            for (addr, count) in &process.blocks {
                *profile.blocks.entry(*addr).or_insert(0) += count;
            }
        }
        let instructions = |of: fn(&Process) -> u64| profile.processes.values().map(of).sum();
        profile.sources.push(ProfileSource {
            workload: header.workload.clone(),
            seed: header.seed,
            kernel_instructions: instructions(|process| process.kernel_instructions),
            user_instructions: instructions(|process| process.user_instructions),
            part: None,
            recorded_on: None,
        });
        profile
    }

    fn process(&self, runs: &ProcessRuns, profile: &mut Profile) -> Process {
        let mut process = Process::default();
        for (id, &times) in runs.whole.iter().enumerate().filter(|&(_, &times)| times > 0) {
            self.blocks.add_runs(id, self.instructions[id], times, &mut process, profile);
        }
        for (&(id, reached), &times) in &runs.midway {
            self.blocks.add_runs(id as usize, reached, times, &mut process, profile);
        }
        process
    }
}

/// The modules of an image, ascending by name.
fn modules_of(image: &Image) -> Vec<ModuleIdentity> {
    let mut modules: Vec<_> = image.modules.iter().map(|it| it.identity.clone()).collect();
    modules.sort();
    modules
}

/// The profile of a part of a recording.
///
/// # Errors
/// The part or the recording does not exist, or the recording is damaged or of another kernel.
pub fn of_recording(
    recording: &Recording,
    image: &Image,
    part: &RecordingPart,
    extra: ExtraCounts,
) -> anyhow::Result<Profile> {
    let title = format!("counts of {}", recording.trace().display());
    let recorded = OpenedRecording::open(recording, part, &title)?.without_data();
    let mut collector = ProfileCollector::new(image, extra);
    recorded.walk_with(&image.modules, &mut collector)?;
    let mut profile = collector.profile()?;
    if !part.is_whole() {
        profile.sources.iter_mut().for_each(|source| source.part = Some(part.to_string()));
    }
    profile.describe(image);
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ordinary::ReservedCode;
    use image::{Block, BlockEnd, ImageFunction};
    use layout::graph::EdgeKind;
    use trace::{RecordingWriter, RunAddr, TaskPointer};

    const BASE: u64 = 0xffff_ffff_8100_0000;

    /// ```text
    /// +00 f:  test edi,edi       +40 asm_sysvec_x:  nop
    /// +02     je +09 ─┐          +41                iretq
    /// +04     call g  │
    /// +09     nop ◄───┘          +20 g:  nop
    /// +0a     ret                +21     ret
    /// ```
    fn image() -> Image {
        let mut image = image::examples::caller_and_callee(LinkAddr(BASE));
        image.functions.push(ImageFunction {
            name: "asm_sysvec_x".to_owned(),
            addr: LinkAddr(BASE + 0x40),
            size: 3,
            blocks: 4..5,
            section: ".text".to_owned(),
            stays: Some(ReservedCode::Entry),
        });
        image.blocks.push(Block {
            addr: LinkAddr(BASE + 0x40),
            size: 3,
            end: BlockEnd::Stop,
            glued: false,
            patched: false,
        });
        image
    }

    const HEAD: u32 = 0;
    const CALL: u32 = 1;
    const TAIL: u32 = 2;
    const G: u32 = 3;
    const INTERRUPT: u32 = 4;
    const USER: u32 = 5;
    const MODULE: u32 = 6;
    const PATCHED: u32 = 7;

    fn translations() -> Vec<Translation> {
        let translation = |id, addr, lengths: &[u8], code: &[u8]| Translation {
            id: TranslationId(id),
            addr: RunAddr(addr),
            lengths: lengths.into(),
            code: code.into(),
        };
        vec![
            translation(HEAD, BASE, &[2, 2], &[0x85, 0xff, 0x74, 0x05]),
            translation(CALL, BASE + 4, &[5], &[0xe8, 0x17, 0, 0, 0]),
            translation(TAIL, BASE + 9, &[1, 1], &[0x90, 0xc3]),
            translation(G, BASE + 0x20, &[1, 1], &[0x90, 0xc3]),
            translation(INTERRUPT, BASE + 0x40, &[1, 2], &[0x90, 0x48, 0xcf]),
            translation(USER, 0x1000, &[1, 2], &[0x90, 0x0f, 0x05]),
            translation(MODULE, 0xffff_ffff_c000_0000, &[1], &[0xc3]),
            // In place of the call and the no-op behind it, an instruction.
            translation(PATCHED, BASE + 4, &[6, 1], &[0x66, 0x0f, 0x1f, 0x44, 0, 0, 0xc3]),
        ]
    }

    fn profile_of(events: &[StreamEvent]) -> Profile {
        let header = RecordingHeader {
            build_id: "5f3c".into(),
            workload: "net".into(),
            seed: 1,
            ..trace::RecordingHeader::default()
        };
        let mut writer = RecordingWriter::new(Vec::new(), &header).unwrap();
        writer.translations(&translations()).unwrap();
        let task = |id, name: &[u8]| {
            let mut comm = [0; 16];
            comm[..name.len()].copy_from_slice(name);
            Task {
                id: TaskId(id),
                pointer: TaskPointer(0xffff_8880_0000_0000 + u64::from(id)),
                pid: None,
                comm,
            }
        };
        writer.tasks(&[task(0, b"sh"), task(1, b"httpd")]).unwrap();
        let mut words = Vec::new();
        events.iter().for_each(|event| event.append_to(&mut words));
        writer.stream(&words).unwrap();
        let (bytes, _) = writer.end().unwrap();
        collect(RecordingReader::new(&bytes[..]).unwrap(), &image(), ExtraCounts::None).unwrap()
    }

    fn run(id: u32) -> StreamEvent {
        StreamEvent::Executed(TranslationId(id))
    }

    fn edge(profile: &Profile, from: u64, to: u64) -> Option<(EdgeKind, u64)> {
        profile.edges.get(&(LinkAddr(BASE + from), LinkAddr(BASE + to))).copied()
    }

    #[test]
    fn a_call_and_its_return() {
        let profile =
            profile_of(&[run(HEAD), run(CALL), run(G), run(TAIL), run(USER), run(HEAD), run(TAIL)]);
        assert_eq!(profile.blocks[&LinkAddr(BASE)], 2);
        assert_eq!(edge(&profile, 0, 4), Some((EdgeKind::FallThrough, 1)));
        assert_eq!(edge(&profile, 0, 9), Some((EdgeKind::Branch, 1)));
        assert_eq!(edge(&profile, 4, 9), Some((EdgeKind::FallThrough, 1)));
        assert_eq!(profile.calls[&(LinkAddr(BASE + 4), LinkAddr(BASE + 0x20))], 1);
        assert_eq!((profile.kernel_instructions(), profile.user_instructions()), (11, 2));
    }

    #[test]
    fn an_instruction_over_the_end_of_a_block_ran_in_both() {
        let profile = profile_of(&[run(HEAD), run(PATCHED)]);
        assert_eq!(profile.blocks[&LinkAddr(BASE + 9)], 1);
        assert_eq!(edge(&profile, 0, 4), Some((EdgeKind::FallThrough, 1)));
        assert_eq!(edge(&profile, 4, 9), Some((EdgeKind::FallThrough, 1)));
        assert_eq!(profile.edges.len(), 2);
    }

    #[test]
    fn an_interrupt_hides_no_edge() {
        let profile = profile_of(&[
            run(HEAD),
            run(INTERRUPT),
            run(TAIL),
            run(USER),
            run(HEAD),
            run(INTERRUPT),
            run(CALL),
        ]);
        assert_eq!(edge(&profile, 0, 9), Some((EdgeKind::Branch, 1)));
        assert_eq!(edge(&profile, 0, 4), Some((EdgeKind::FallThrough, 1)));
        assert_eq!(profile.edges.len(), 2);
    }

    #[test]
    fn an_interrupt_between_a_call_and_its_callee_is_not_called() {
        let profile = profile_of(&[run(CALL), run(INTERRUPT), run(G), run(TAIL)]);
        let call = (LinkAddr(BASE + 4), LinkAddr(BASE + 0x20));
        assert_eq!(profile.calls, BTreeMap::from([(call, 1)]));
        assert_eq!(edge(&profile, 4, 9), Some((EdgeKind::FallThrough, 1)));
        assert_eq!(profile.edges.len(), 1);
    }

    #[test]
    fn a_hundred_tasks_interrupted_at_a_branch_lose_no_edge() {
        let mut events = Vec::new();
        (0..100).for_each(|_| events.extend([run(HEAD), run(INTERRUPT)]));
        (0..100).for_each(|_| events.extend([run(TAIL), run(INTERRUPT)]));
        assert_eq!(edge(&profile_of(&events), 0, 9), Some((EdgeKind::Branch, 100)));
    }

    #[test]
    fn an_entry_has_the_first_movable_block_as_its_seed() {
        let profile = profile_of(&[run(USER), run(INTERRUPT), run(G), run(TAIL)]);
        assert_eq!(
            profile.seeds,
            BTreeMap::from([((LinkAddr(BASE + 0x20), SeedClass::Interrupt), 1)])
        );
    }

    #[test]
    fn what_was_left_midway_counts_as_far_as_it_came() {
        let left = |translation, instructions| StreamEvent::Left {
            translation: TranslationId(translation),
            instructions,
        };
        let profile = profile_of(&[run(HEAD), left(TAIL, 1), run(INTERRUPT)]);
        assert_eq!(profile.kernel_instructions(), 2 + 1 + 2);
        assert_eq!(edge(&profile, 0, 9), Some((EdgeKind::Branch, 1)));
        assert_eq!(profile.blocks[&LinkAddr(BASE + 9)], 1);
    }

    #[test]
    fn processes_are_told_apart_and_code_without_a_function_is_listed() {
        let task = |id| StreamEvent::Task(TaskId(id));
        let profile = profile_of(&[task(0), run(USER), task(1), run(MODULE), run(G)]);
        assert_eq!(profile.processes["sh"].user_instructions, 2);
        assert_eq!(profile.processes["httpd"].kernel_instructions, 3);
        assert_eq!(profile.outside, BTreeMap::from([(LinkAddr(0xffff_ffff_c000_0000), 1)]));
    }

    #[test]
    fn a_recording_of_another_kernel_is_refused() {
        let header = RecordingHeader { build_id: "00ae".into(), ..RecordingHeader::default() };
        let (bytes, _) = RecordingWriter::new(Vec::new(), &header).unwrap().end().unwrap();
        let reader = RecordingReader::new(&bytes[..]).unwrap();
        let error = collect(reader, &image(), ExtraCounts::None).unwrap_err();
        assert!(error.to_string().contains("build id 00ae"));
    }
}
