//! One recording becomes a profile.
//!
//! Takes the recording chunk by chunk and the image it ran; gives counts. Memory grows with the
//! number of distinct translations and transitions, not with the length of the recording.

use crate::flow::{Flow, Known};
use crate::joint::{self, JointMisses};
use crate::temporal_edges::{RECENT_BYTES, TemporalEdges};
use crate::{Process, Profile, Source};
use anyhow::Context;
use execution::part::{PartFilter, RecordingPart, open_executions};
use host::progress::Progress;
use host::recording::Recording;
use image::address::LinkAddr;
use image::{BuildId, Image};
use layout::graph::{EdgeKind, SeedClass};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read};
use trace::{Chunk, RecordingReader, StreamEvent, Task, TaskId, Translation, TranslationId};

/// Interrupted transitions that wait for the way back; beyond that the oldest is forgotten, and one
/// edge with it.
const MOST_PENDING: usize = 64;

/// What is counted besides what every profile has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Besides {
    Nothing,
    /// Which chunks of code alternate, for `gloy-smith`.
    TemporalEdges,
}

/// The profile of the part of a recording that `cut` keeps.
///
/// # Errors
/// The recording is damaged, cut off, or of another kernel than `image`.
pub fn collect<R: Read>(
    reader: &mut RecordingReader<R>,
    image: &Image,
    cut: &mut PartFilter,
    besides: Besides,
) -> anyhow::Result<Profile> {
    let header = reader.header().clone();
    if header.build_id != image.build_id.0 {
        anyhow::bail!(
            "the recording is of the kernel with build id {}, the image has build id {}: give the vmlinux that was recorded",
            header.build_id,
            image.build_id.0
        );
    }
    let mut collector = Collector::new(image, besides);
    while let Some(chunk) = reader.next_chunk()? {
        match chunk {
            Chunk::Translations(translations) => {
                cut.define(&translations);
                collector.define(&translations);
            }
            Chunk::Tasks(tasks) => collector.name(&tasks),
            Chunk::Stream(words) => trace::events(&words)
                .filter(|event| cut.keeps(event))
                .for_each(|event| collector.event(event)),
            Chunk::End(_) => {}
        }
    }
    Ok(collector.finish(header))
}

/// What one process ran; indexed by translation.
#[derive(Default)]
struct Table {
    runs: Vec<u64>,
    /// The transitions from each translation: few each, the most frequent near the front.
    successors: Vec<Vec<Successor>>,
    /// Translations that were left midway: (translation, instructions reached) → times.
    left: BTreeMap<(u32, u32), u64>,
}

struct Successor {
    to: u32,
    count: u64,
    interrupted: bool,
}

struct Collector<'a> {
    image: &'a Image,
    /// By translation; `None` for user code.
    known: Vec<Option<Known>>,
    instructions: Vec<u32>,
    names: Vec<String>,
    table_of_task: Vec<usize>,
    tables: Vec<Table>,
    table_of_name: HashMap<String, usize>,
    current: usize,
    /// The translation that was executed last, if it is the kernel's and was not left midway.
    previous: Option<u32>,
    /// Translations after which something came between, the latest last.
    pending: Vec<u32>,
    /// The kernel was entered, and no movable block ran since.
    entered: Option<SeedClass>,
    seeds: BTreeMap<(LinkAddr, SeedClass), u64>,
    joint: JointMisses,
    temporal_edges: Option<TemporalEdges>,
}

impl<'a> Collector<'a> {
    fn new(image: &'a Image, besides: Besides) -> Self {
        Self {
            image,
            known: Vec::new(),
            instructions: Vec::new(),
            // What runs before the first switch that was seen.
            names: vec!["(unknown)".to_owned()],
            table_of_task: Vec::new(),
            tables: vec![Table::default()],
            table_of_name: HashMap::from([("(unknown)".to_owned(), 0)]),
            current: 0,
            previous: None,
            pending: Vec::new(),
            entered: None,
            seeds: BTreeMap::new(),
            joint: JointMisses::new(joint::CACHE_BYTES, image.entry_padding.into()),
            temporal_edges: (besides == Besides::TemporalEdges)
                .then(|| TemporalEdges::new(RECENT_BYTES, image)),
        }
    }

    fn define(&mut self, translations: &[Translation]) {
        for translation in translations {
            self.instructions.push(translation.instructions());
            self.joint.define(self.image, translation.addr.0, &translation.lengths);
            if let Some(temporal_edges) = &mut self.temporal_edges {
                temporal_edges.define(self.image, translation.addr.0, &translation.lengths);
            }
            let known = translation.is_kernel().then(|| Known::new(self.image, translation));
            self.known.push(known);
        }
    }

    fn name(&mut self, tasks: &[Task]) {
        for task in tasks {
            let name = task.name().into_owned();
            let next = self.tables.len();
            let table = *self.table_of_name.entry(name.clone()).or_insert(next);
            if table == next {
                self.tables.push(Table::default());
                self.names.push(name);
            }
            self.table_of_task.push(table);
        }
    }

    fn event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Executed(TranslationId(id)) => self.executed(id),
            StreamEvent::Left { translation: TranslationId(id), instructions } => {
                self.left(id, instructions)
            }
            StreamEvent::Task(TaskId(task)) => {
                self.current = self.table_of_task.get(task as usize).copied().unwrap_or(0)
            }
            StreamEvent::Marker(_) | StreamEvent::Woken(_) | StreamEvent::Clock(_) => {}
        }
    }

    #[inline]
    fn executed(&mut self, id: u32) {
        let table = &mut self.tables[self.current];
        if table.runs.len() < self.known.len() {
            table.runs.resize(self.known.len(), 0);
            table.successors.resize_with(self.known.len(), Vec::new);
        }
        table.runs[id as usize] += 1;
        self.fetched(id, self.instructions[id as usize]);
        if self.known[id as usize].is_none() {
            self.previous = None;
            return;
        }
        self.arrive(id);
        self.previous = Some(id);
    }

    /// The first instructions of a translation were fetched.
    #[inline]
    fn fetched(&mut self, id: u32, instructions: u32) {
        self.joint.ran(id, instructions);
        if let Some(temporal_edges) = &mut self.temporal_edges {
            temporal_edges.ran(id, instructions);
        }
    }

    fn left(&mut self, id: u32, instructions: u32) {
        let table = &mut self.tables[self.current];
        *table.left.entry((id, instructions)).or_insert(0) += 1;
        self.fetched(id, instructions);
        if self.known[id as usize].is_some() {
            self.arrive(id);
        }
        self.previous = None;
    }

    /// Control reached the start of kernel translation `id`.
    fn arrive(&mut self, id: u32) {
        if let Some(previous) = self.previous {
            self.transition(previous, id);
        }
        let Some(known) = &self.known[id as usize] else {
            return;
        };
        if known.entry.is_some() {
            self.entered = known.entry;
        } else if let (Some(class), true, Some(block)) = (self.entered, known.movable, known.first)
        {
            *self.seeds.entry((self.image.block(block).addr, class)).or_insert(0) += 1;
            self.entered = None;
        }
    }

    fn transition(&mut self, from: u32, to: u32) {
        if self.count(from, to, 1) {
            let leaves_for_anywhere =
                self.known[from as usize].as_ref().is_some_and(Known::leaves_for_anywhere);
            if leaves_for_anywhere {
                self.resume(to);
            } else {
                self.interrupt(from);
            }
        }
    }

    /// Counts a transition; whether something came between.
    fn count(&mut self, from: u32, to: u32, times: u64) -> bool {
        let table = &mut self.tables[self.current];
        if table.successors.len() < self.known.len() {
            table.runs.resize(self.known.len(), 0);
            table.successors.resize_with(self.known.len(), Vec::new);
        }
        let successors = &mut table.successors[from as usize];
        if let Some(at) = successors.iter().position(|successor| successor.to == to) {
            let successor = &mut successors[at];
            successor.count += times;
            let interrupted = successor.interrupted;
            if at > 0 && successors[at].count > successors[at - 1].count {
                successors.swap(at, at - 1);
            }
            return interrupted;
        }
        let interrupted = self.flow(from, to) == Flow::Interrupted;
        self.tables[self.current].successors[from as usize].push(Successor {
            to,
            count: times,
            interrupted,
        });
        interrupted
    }

    fn flow(&self, from: u32, to: u32) -> Flow {
        match (&self.known[from as usize], &self.known[to as usize]) {
            (Some(from), Some(to)) => from.to(to, self.image),
            _ => Flow::Within,
        }
    }

    fn interrupt(&mut self, from: u32) {
        if self.pending.len() == MOST_PENDING {
            self.pending.remove(0);
        }
        self.pending.push(from);
    }

    /// The way back from an interrupt: the latest pending translation that goes on at `to` has its
    /// transition after all.
    fn resume(&mut self, to: u32) {
        let goes_on = |&from: &u32| !matches!(self.flow(from, to), Flow::Interrupted);
        if let Some(at) = self.pending.iter().rposition(goes_on) {
            let from = self.pending.remove(at);
            self.count(from, to, 1);
        }
    }

    fn finish(self, header: trace::RecordingHeader) -> Profile {
        let mut profile = Profile {
            seeds: self.seeds,
            joint_misses: self.joint.counts(self.image),
            temporal_edges: self
                .temporal_edges
                .map_or_else(BTreeMap::new, |temporal_edges| temporal_edges.counts(self.image)),
            block_epochs: self.joint.block_epochs(self.image),
            ..Profile::empty(BuildId(header.build_id))
        };
        let summing =
            Summing { image: self.image, known: &self.known, instructions: &self.instructions };
        for (name, table) in self.names.into_iter().zip(&self.tables) {
            let process = summing.add(table, &mut profile);
            if process.kernel_instructions + process.user_instructions > 0 {
                profile.processes.insert(name, process);
            }
        }
        for process in profile.processes.values() {
            for (addr, count) in &process.blocks {
                *profile.blocks.entry(*addr).or_insert(0) += count;
            }
        }
        profile.sources.push(Source {
            workload: header.workload,
            seed: header.seed,
            kernel_instructions: profile
                .processes
                .values()
                .map(|process| process.kernel_instructions)
                .sum(),
            user_instructions: profile
                .processes
                .values()
                .map(|process| process.user_instructions)
                .sum(),
            part: None,
        });
        profile
    }
}

/// The profile of a part of a recording.
///
/// # Errors
/// There is no such part, or no recording; it is damaged or of another kernel.
pub fn of_recording(
    recording: &Recording,
    image: &Image,
    part: &RecordingPart,
    besides: Besides,
) -> anyhow::Result<Profile> {
    let named = || recording.trace().display().to_string();
    let mut cut = part.cut(|| open_executions(recording)).with_context(named)?;
    let trace = recording.trace();
    let file = File::open(&trace).with_context(named)?;
    let progress = Progress::of(
        file.metadata().with_context(named)?.len(),
        format!("counts of {}", trace.display()),
    );
    let from = progress.reading(BufReader::with_capacity(1 << 20, file));
    let mut reader = RecordingReader::new(from).with_context(named)?.without_data();
    let mut profile = collect(&mut reader, image, &mut cut, besides).with_context(named)?;
    if !part.is_whole() {
        profile.sources.iter_mut().for_each(|source| source.part = Some(part.to_string()));
    }
    Ok(profile)
}

/// Turns counts of translations and transitions into counts of blocks, edges and calls.
struct Summing<'a> {
    image: &'a Image,
    known: &'a [Option<Known>],
    instructions: &'a [u32],
}

impl Summing<'_> {
    fn add(&self, table: &Table, profile: &mut Profile) -> Process {
        let mut process = Process::default();
        for (id, &runs) in table.runs.iter().enumerate().filter(|&(_, &runs)| runs > 0) {
            self.ran(id, self.instructions[id], runs, &mut process, profile);
        }
        for (&(id, reached), &times) in &table.left {
            self.ran(id as usize, reached, times, &mut process, profile);
        }
        for (from, successors) in table.successors.iter().enumerate() {
            for successor in successors {
                self.went(from, successor, profile);
            }
        }
        process
    }

    /// The first `reached` instructions of a translation ran, so many times.
    fn ran(
        &self,
        id: usize,
        reached: u32,
        times: u64,
        process: &mut Process,
        profile: &mut Profile,
    ) {
        let instructions = u64::from(reached) * times;
        let Some(known) = &self.known[id] else {
            process.user_instructions += instructions;
            return;
        };
        process.kernel_instructions += instructions;
        if known.first.is_none() && instructions > 0 {
            *profile.outside.entry(known.start).or_insert(0) += instructions;
        }
        let mut before = None;
        for &(block, _) in known.blocks.iter().filter(|&&(_, at)| at < reached) {
            let addr = self.image.block(block).addr;
            *process.blocks.entry(addr).or_insert(0) += times;
            if let Some(before) = before.or_else(|| known.first.filter(|&first| first != block)) {
                add_edge(profile, self.image, before, block, EdgeKind::FallThrough, times);
            }
            before = Some(block);
        }
    }

    fn went(&self, from: usize, successor: &Successor, profile: &mut Profile) {
        let (Some(from), Some(to)) = (&self.known[from], &self.known[successor.to as usize]) else {
            return;
        };
        match from.to(to, self.image) {
            Flow::Edge(from, to, kind) => {
                add_edge(profile, self.image, from, to, kind, successor.count)
            }
            Flow::Call(from, to) => {
                let ends = (self.image.block(from).addr, self.image.block(to).addr);
                *profile.calls.entry(ends).or_insert(0) += successor.count;
            }
            Flow::Within | Flow::Interrupted => {}
        }
    }
}

fn add_edge(
    profile: &mut Profile,
    image: &Image,
    from: image::BlockIndex,
    to: image::BlockIndex,
    kind: EdgeKind,
    count: u64,
) {
    let ends = (image.block(from).addr, image.block(to).addr);
    profile.edges.entry(ends).or_insert((kind, 0)).1 += count;
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{Block, End, Function};
    use trace::{RecordingHeader, RecordingWriter, RunAddr, TaskPointer};

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
        image.functions.push(Function {
            name: "asm_sysvec_x".to_owned(),
            addr: LinkAddr(BASE + 0x40),
            size: 3,
            blocks: 4..5,
            section: ".text".to_owned(),
            movable: false,
        });
        image.blocks.push(Block {
            addr: LinkAddr(BASE + 0x40),
            size: 3,
            end: End::Stop,
            glued: false,
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
        ]
    }

    fn profile_of(events: &[StreamEvent]) -> Profile {
        let header = RecordingHeader {
            build_id: "5f3c".into(),
            workload: "net".into(),
            seed: 1,
            conditions: vec![],
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
        collect(
            &mut RecordingReader::new(&bytes[..]).unwrap(),
            &image(),
            &mut PartFilter::whole(),
            Besides::Nothing,
        )
        .unwrap()
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
        let error = collect(
            &mut RecordingReader::new(&bytes[..]).unwrap(),
            &image(),
            &mut PartFilter::whole(),
            Besides::Nothing,
        )
        .unwrap_err();
        assert!(error.to_string().contains("build id 00ae"));
    }
}
