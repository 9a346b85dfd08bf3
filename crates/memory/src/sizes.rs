//! Misses against the size and associativity of caches, by mode and cause: SimOS' figures 4.6 and
//! 4.7 (Rosenblum 1995, section 4.4).
//!
//! Takes a recording; gives the misses of instruction caches and, with data accesses, of data
//! caches and of unified caches of all references, in one pass. Lines are as long as in the
//! figures: 64 bytes for instructions, 32 for data, 128 in unified caches. Data caches and unified
//! caches hold physical memory. All caches are LRU. With several CPUs, each CPU has its own
//! instruction caches. Their data caches depend on each other; `coherence::multiprocessor`
//! simulates them. Knows no services and no symbols; prints nothing.

use anyhow::{Context, Result};
use execution::code::TranslatedCode;
use execution::data::DataWish;
use execution::fetched::FetchedUnits;
use execution::numbering::FetchUnit;
use execution::per_cpu::PerCpu;
use execution::slices::{SliceClock, SliceStarts};
use execution::walk::{Observer, Piece, PieceData, WalkedRecording, Wants, walk};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use sim::{LineId, MissCounts, PerMode, Requester, Sweep};
use std::io::Read;
use trace::{CpuCount, RecordingHeader, RecordingReader, RecordingTotals, Translation};

/// log2 of the largest number of ways.
const WAYS: u32 = 3;

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holds {
    /// Instructions only.
    Instructions,
    /// Data only.
    Data,
    /// Instructions and data: a unified cache.
    Both,
}

impl Holds {
    /// Bytes in a line.
    pub fn line(self) -> u32 {
        match self {
            Holds::Instructions => 64,
            Holds::Data => 32,
            Holds::Both => 128,
        }
    }

    /// log2 of the sizes in bytes: from the smallest to the largest cache.
    fn sizes(self) -> std::ops::RangeInclusive<u32> {
        match self {
            Holds::Instructions | Holds::Data => 12..=18,
            Holds::Both => 18..=23,
        }
    }

    /// All caches that hold this.
    fn caches(self) -> impl Iterator<Item = Geometry> {
        let ways = || (0..=WAYS).map(|ways| 1_u32 << ways);
        self.sizes().flat_map(move |size| {
            ways().map(move |ways| Geometry { holds: self, size: 1_u64 << size, ways })
        })
    }

    /// log2 of the numbers of sets of these sizes, with 1 way to all ways.
    fn sets(self) -> std::ops::RangeInclusive<u32> {
        let line = self.line().trailing_zeros();
        self.sizes().start() - WAYS - line..=self.sizes().end() - line
    }
}

/// The size of a cache, and what it holds.
#[derive(Clone, Copy)]
struct Geometry {
    holds: Holds,
    size: u64,
    ways: u32,
}

impl Geometry {
    fn sets(self) -> u64 {
        self.size / u64::from(self.ways * self.holds.line())
    }
}

/// The misses of one cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheMisses {
    /// What the cache holds.
    pub holds: Holds,
    /// Bytes.
    pub size: u64,
    /// Associativity.
    pub ways: u32,
    /// Bytes in a line.
    pub line: u32,
    /// Misses of kernel code.
    #[serde(serialize_with = "with_key_own")]
    pub kernel: MissCounts,
    /// Misses of user code.
    #[serde(serialize_with = "with_key_own")]
    pub user: MissCounts,
}

/// JSON of cache sizes calls self misses `own`.
fn with_key_own<S: Serializer>(misses: &MissCounts, serializer: S) -> Result<S::Ok, S::Error> {
    let mut object = serializer.serialize_struct("MissCounts", 3)?;
    object.serialize_field("cold", &misses.cold)?;
    object.serialize_field("own", &misses.own)?;
    object.serialize_field("other", &misses.other)?;
    object.end()
}

/// The misses of a recording in all caches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// The recorded workload.
    pub workload: String,
    /// Build id.
    pub kernel: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The number of recorded CPUs. Each CPU has its own caches; the misses are those of all CPUs
    /// together.
    pub cpus: u8,
    /// Instructions in the kernel.
    pub kernel_instructions: u64,
    /// Instructions in user mode.
    pub user_instructions: u64,
    /// The misses of every cache.
    pub caches: Vec<CacheMisses>,
}

/// The misses of all caches in a slice, in the order of [`Sizes::caches`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicedSizes {
    /// The slice.
    pub slice: u32,
    /// The misses of each cache.
    pub misses: Vec<PerMode<MissCounts>>,
}

/// Simulates all caches on a recording.
///
/// # Errors
/// The recording is damaged or cut off.
pub fn sizes<R: Read>(reader: RecordingReader<R>) -> Result<Sizes> {
    let (header, mut caches) = (reader.header().clone(), SweptCaches::new());
    walk(reader, &mut caches)?;
    caches.finish(&header)
}

/// The caches of all sizes, as an observer of a recording.
pub struct SweptCaches {
    takes_data: bool,
    totals: Option<RecordingTotals>,
    lines: FetchedUnits,
    instructions: PerCpu<Sweep>,
    /// The data caches and the unified caches; `None` until the first data accesses.
    with_data: Option<[Sweep; 2]>,
    clock: SliceClock,
    /// The slice that runs, the misses before it, and the slices before it.
    slice: u32,
    before: Vec<PerMode<MissCounts>>,
    slices: Vec<SlicedSizes>,
}

fn sweep(holds: Holds) -> Sweep {
    Sweep::new(holds.sets(), WAYS)
}

impl Default for SweptCaches {
    fn default() -> SweptCaches {
        SweptCaches::new()
    }
}

impl Observer for SweptCaches {
    fn begin(&mut self, header: &RecordingHeader, _has_data: bool) -> Result<Wants> {
        self.takes_data = header.cpus == CpuCount::ONE;
        let data = self.takes_data.then(|| DataWish::of_unified_caches(Holds::Data.line()));
        Ok(Wants { data, ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        let mut each = translations.iter().zip(codes);
        each.try_for_each(|(translation, code)| self.lines.push_recorded(translation, code))
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        match piece.data.as_ref().filter(|_| self.takes_data) {
            Some(data) => self.fetches_and_data(piece.codes, data),
            None => {
                self.fetches(piece);
                Ok(())
            }
        }
    }

    fn end(&mut self, walked: &WalkedRecording<'_>) -> Result<()> {
        self.totals = Some(*walked.totals);
        Ok(())
    }
}

impl SweptCaches {
    /// Empty caches.
    pub fn new() -> SweptCaches {
        SweptCaches {
            takes_data: false,
            totals: None,
            lines: FetchedUnits::new(
                FetchUnit::Lines(Holds::Instructions.line()),
                1 << Holds::Instructions.sets().end(),
            ),
            instructions: PerCpu::new(sweep(Holds::Instructions)),
            with_data: None,
            clock: SliceClock::default(),
            slice: 0,
            before: Vec::new(),
            slices: Vec::new(),
        }
    }

    /// Empty caches, whose misses are also counted in each slice.
    pub fn in_slices(starts: &SliceStarts) -> SweptCaches {
        SweptCaches { clock: SliceClock::new(starts), ..SweptCaches::new() }
    }

    /// The next execution has these instructions. Ends the slice if it belongs to a later one.
    #[inline]
    fn runs(&mut self, code: &TranslatedCode, left: u32) {
        let instructions = if left == 0 { code.lengths.len() as u64 } else { left.into() };
        let slice = self.clock.run(instructions);
        if slice != self.slice {
            self.end_slice(slice);
        }
    }

    /// Keeps the misses since the last call for the slice that ran.
    fn end_slice(&mut self, next: u32) {
        let slice = std::mem::replace(&mut self.slice, next);
        let now: Vec<PerMode<MissCounts>> = self.counted().map(|(_, misses)| misses).collect();
        // Caches of data come behind those of instructions when the first data is accessed.
        self.before.resize(now.len(), PerMode::default());
        let since = now.iter().zip(&self.before).map(|(now, before)| PerMode {
            kernel: now.kernel - before.kernel,
            user: now.user - before.user,
        });
        self.slices.push(SlicedSizes { slice, misses: since.collect() });
        self.before = now;
    }

    /// All caches with their misses so far.
    fn counted(&self) -> impl Iterator<Item = (Geometry, PerMode<MissCounts>)> {
        let with_data = self.with_data.as_ref();
        let sweeps: [(Holds, Vec<&Sweep>); 3] = [
            (Holds::Instructions, self.instructions.values().collect()),
            (Holds::Data, with_data.map(|[data, _]| data).into_iter().collect()),
            (Holds::Both, with_data.map(|[_, unified]| unified).into_iter().collect()),
        ];
        let sweeps = sweeps.into_iter().filter(|(_, sweeps)| !sweeps.is_empty());
        sweeps.flat_map(|(holds, sweeps)| {
            holds.caches().map(move |cache| {
                let mut misses = PerMode::<MissCounts>::default();
                for sweep in &sweeps {
                    misses += sweep
                        .misses(cache.sets() as u32, cache.ways)
                        .expect("the sweep holds every size");
                }
                (cache, misses)
            })
        })
    }

    fn fetches(&mut self, piece: &Piece<'_>) {
        self.instructions.turn_to(piece.cpu, || sweep(Holds::Instructions));
        for event in piece.events() {
            let Some((id, reached)) = event.execution() else { continue };
            let code = &piece.codes[id.0 as usize];
            self.runs(code, reached.unwrap_or(0));
            let requester = Requester::of(code.mode());
            for at in self.lines.executed(id.0, code, reached.unwrap_or(0)) {
                self.instructions.current.access(self.lines.ids()[at], requester);
            }
        }
    }

    fn fetches_and_data(&mut self, codes: &[TranslatedCode], data: &PieceData<'_>) -> Result<()> {
        let [mut of_data, mut unified] =
            self.with_data.take().unwrap_or_else(|| [sweep(Holds::Data), sweep(Holds::Both)]);
        let line_of = |holds: Holds, addr: u64| addr >> holds.line().trailing_zeros();
        for (execution, accesses) in data.executed() {
            let id = execution.translation;
            let code = &codes[id.0 as usize];
            if self.clock.slice() != self.slice {
                // The slice's misses are those of all caches.
                self.with_data = Some([of_data, unified]);
                self.end_slice(self.clock.slice());
                [of_data, unified] = self.with_data.take().expect("it was put there");
            }
            self.runs(code, execution.left.into());
            let requester =
                if code.addr.is_kernel() { Requester::KERNEL } else { execution.process };
            self.lines.locate(id.0, |addr| data.flow.code(addr, code, id, data.patterns))?;
            for at in self.lines.executed(id.0, code, execution.left.into()) {
                let (id, physical) = (self.lines.ids()[at], self.lines.physical()[at]);
                self.instructions.current.access(id, requester);
                unified.access(LineId::physical(line_of(Holds::Both, physical.0)), requester);
            }
            let mut before = None;
            for made in accesses {
                // No code was fetched since the previous access, so the line of that access is
                // still there.
                let start = line_of(Holds::Data, made.physical.0);
                let end = line_of(Holds::Data, made.physical.0 + u64::from(made.size) - 1);
                if start == end && before == Some(end) {
                    continue;
                }
                before = Some(end);
                let (first, last) = (made.physical.0, made.physical.0 + u64::from(made.size) - 1);
                for (holds, sweep) in [(Holds::Data, &mut of_data), (Holds::Both, &mut unified)] {
                    for line in line_of(holds, first)..=line_of(holds, last) {
                        sweep.access(LineId::physical(line), requester);
                    }
                }
            }
        }
        self.with_data = Some([of_data, unified]);
        Ok(())
    }

    /// The misses of all caches. `header`: that of the recording.
    ///
    /// # Errors
    /// The walk did not come to the recording's end.
    pub fn finish(self, header: &RecordingHeader) -> Result<Sizes> {
        Ok(self.finish_in_slices(header)?.0)
    }

    /// As [`SweptCaches::finish`], with the misses of each slice in which instructions ran.
    ///
    /// # Errors
    /// As [`SweptCaches::finish`].
    pub fn finish_in_slices(
        mut self,
        header: &RecordingHeader,
    ) -> Result<(Sizes, Vec<SlicedSizes>)> {
        let totals = self.totals.context("the recording has no clean end")?;
        self.end_slice(self.slice);
        let caches = self.counted().map(|(Geometry { holds, size, ways }, misses)| {
            let PerMode { kernel, user } = misses;
            CacheMisses { holds, size, ways, line: holds.line(), kernel, user }
        });
        let sizes = Sizes {
            workload: header.workload.clone(),
            kernel: header.build_id.clone(),
            seed: header.seed,
            cpus: header.cpus.get(),
            kernel_instructions: totals.kernel_instructions,
            user_instructions: totals.user_instructions,
            caches: caches.collect(),
        };
        Ok((sizes, self.slices))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::{
        AccessSite, CpuId, Mapping, ObservedAccesses, PageKind, RecordingWriter, RunAddr,
        StreamEvent, Task, TaskId, TaskPointer, TranslationId,
    };

    const KERNEL: u64 = 0xffff_ffff_8100_0000;

    fn translation(id: u32, addr: u64) -> Translation {
        Translation {
            id: TranslationId(id),
            addr: RunAddr(addr),
            lengths: [1, 1].into(),
            code: [0x90, 0x90].into(),
        }
    }

    fn counted(sizes: &Sizes, holds: Holds, size: u64, ways: u32) -> [MissCounts; 2] {
        let found =
            |cache: &&CacheMisses| (cache.holds, cache.size, cache.ways) == (holds, size, ways);
        let cache = sizes.caches.iter().find(found).unwrap();
        [cache.kernel, cache.user]
    }

    fn by(cold: u64, own: u64, other: u64) -> MissCounts {
        MissCounts { cold, own, other }
    }

    /// Kernel code at its start and 4 KB behind, user code at 0: three lines that conflict in a
    /// direct-mapped cache of 4 KB. Each execution loads from two addresses that lie 4 KB apart in
    /// memory.
    #[test]
    fn lines_that_meet_in_a_small_cache_do_not_in_a_large_one() {
        let mut writer =
            RecordingWriter::with_data(Vec::new(), &RecordingHeader::default()).unwrap();
        let task = Task { id: TaskId(0), pointer: TaskPointer(1), pid: Some(1), comm: [0; 16] };
        writer.tasks(&[task]).unwrap();
        let translations =
            [translation(0, KERNEL), translation(1, KERNEL + 4096), translation(2, 0x40_0000)];
        writer.translations(&translations).unwrap();
        let (mut words, mut seen) = (Vec::new(), ObservedAccesses::default());
        seen.mappings = [0x10, 0x11]
            .map(|frame| {
                let (page, kind) = (frame, PageKind::Small);
                (0, Mapping { page, frame, kind })
            })
            .to_vec();
        seen.physical = (0..3)
            .map(|id| (TranslationId(id), [Some(0x100_0000 + u64::from(id) * 4096), None]))
            .collect();
        for id in [0, 1, 0, 2, 0] {
            StreamEvent::Executed(TranslationId(id)).append_to(&mut words);
            seen.starts.push(seen.addresses.len() as u32);
            seen.addresses.extend([0x10_000, 0x11_000]);
            seen.sites.extend([AccessSite::new(0, false, 3); 2]);
        }
        writer.stream_with_data(&words, &seen).unwrap();
        let recording = writer.end().unwrap().0;
        let sizes = super::sizes(RecordingReader::new(&recording[..]).unwrap()).unwrap();
        slices_add_up(&recording, &sizes);
        assert_eq!((sizes.kernel_instructions, sizes.user_instructions), (8, 2));
        // Kernel lines 0 and 1 are cold, the kernel evicts 0; the user line is cold, the user
        // evicts 0.
        assert_eq!(counted(&sizes, Holds::Instructions, 4096, 1), [by(2, 1, 1), by(1, 0, 0)]);
        assert_eq!(counted(&sizes, Holds::Instructions, 4096, 2), [by(2, 0, 0), by(1, 0, 0)]);
        assert_eq!(counted(&sizes, Holds::Instructions, 1 << 18, 2), [by(2, 0, 0), by(1, 0, 0)]);
        // The kernel's first execution loads both lines. Then each load evicts the line of the
        // other.
        assert_eq!(counted(&sizes, Holds::Data, 4096, 1), [by(2, 5, 1), by(0, 1, 1)]);
        assert_eq!(counted(&sizes, Holds::Data, 8192, 1), [by(2, 0, 0), by(0, 0, 0)]);
        assert_eq!(counted(&sizes, Holds::Both, 1 << 18, 8), [by(4, 0, 0), by(1, 0, 0)]);
        assert_eq!(sizes.caches.len(), 4 * (7 + 7 + 6));
    }

    /// The five executions of two instructions in slices: the first two, none, the next two, the
    /// last one.
    fn slices_add_up(recording: &[u8], whole: &Sizes) {
        let mut caches = SweptCaches::in_slices(&SliceStarts(vec![4, 4, 8]));
        walk(RecordingReader::new(recording).unwrap(), &mut caches).unwrap();
        let (sizes, slices) = caches.finish_in_slices(&RecordingHeader::default()).unwrap();
        assert_eq!(sizes.caches, whole.caches);
        let numbers: Vec<u32> = slices.iter().map(|slice| slice.slice).collect();
        assert_eq!(numbers, [0, 2, 3]);
        for (at, cache) in sizes.caches.iter().enumerate() {
            let mut sum = PerMode::default();
            slices.iter().for_each(|slice| sum += slice.misses[at]);
            assert_eq!((sum.kernel, sum.user), (cache.kernel, cache.user));
        }
        // The smallest instruction cache: both lines of the kernel; line 0 again, and user code;
        // line 0 again.
        let first: Vec<[u64; 2]> = (slices.iter())
            .map(|slice| [slice.misses[0].kernel.total(), slice.misses[0].user.total()])
            .collect();
        assert_eq!(first, [[2, 0], [1, 1], [1, 0]]);
    }

    /// Three executions fetch a line and load from another one, 256 KB further on.
    #[test]
    fn code_takes_the_place_of_data_in_a_unified_cache() {
        let mut writer =
            RecordingWriter::with_data(Vec::new(), &RecordingHeader::default()).unwrap();
        writer.translations(&[translation(0, KERNEL)]).unwrap();
        let mapping = Mapping { page: 0x10, frame: 0x1040, kind: PageKind::Small };
        let seen = ObservedAccesses {
            mappings: vec![(0, mapping)],
            physical: vec![(TranslationId(0), [Some(0x100_0000), None])],
            starts: vec![0, 1, 2],
            addresses: vec![0x10_000; 3],
            sites: vec![AccessSite::new(0, false, 3); 3],
            ..Default::default()
        };
        writer.stream_with_data(&[0; 3], &seen).unwrap();
        let recording = writer.end().unwrap().0;
        let sizes = super::sizes(RecordingReader::new(&recording[..]).unwrap()).unwrap();
        assert_eq!(counted(&sizes, Holds::Both, 1 << 18, 1)[0], by(2, 4, 0));
        assert_eq!(counted(&sizes, Holds::Both, 1 << 19, 1)[0], by(2, 0, 0));
    }

    #[test]
    fn a_recording_without_data_has_instruction_caches_only() {
        let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap();
        writer.translations(&[translation(0, KERNEL)]).unwrap();
        writer.stream(&[0, 0]).unwrap();
        let recording = writer.end().unwrap().0;
        let sizes = super::sizes(RecordingReader::new(&recording[..]).unwrap()).unwrap();
        assert_eq!(counted(&sizes, Holds::Instructions, 8192, 4), [by(1, 0, 0), by(0, 0, 0)]);
        assert!(sizes.caches.iter().all(|cache| cache.holds == Holds::Instructions));
        let cut = &recording[..recording.len() - 1];
        assert!(super::sizes(RecordingReader::new(cut).unwrap()).is_err());
    }

    /// CPU 0 executes two lines that conflict in a direct-mapped cache of 4 KB, CPU 1 only the
    /// second of them.
    #[test]
    fn each_cpu_has_instruction_caches_of_its_own() {
        let header = RecordingHeader { cpus: CpuCount::new(2).unwrap(), ..Default::default() };
        let mut writer = RecordingWriter::new(Vec::new(), &header).unwrap();
        writer.translations(&[translation(0, KERNEL), translation(1, KERNEL + 4096)]).unwrap();
        let mut words = Vec::new();
        for (cpu, id) in [(0, 0), (1, 1), (0, 0), (1, 1), (0, 1), (0, 0), (1, 1)] {
            StreamEvent::Cpu(CpuId(cpu)).append_to(&mut words);
            StreamEvent::Executed(TranslationId(id)).append_to(&mut words);
        }
        writer.stream(&words).unwrap();
        let recording = writer.end().unwrap().0;
        let sizes = super::sizes(RecordingReader::new(&recording[..]).unwrap()).unwrap();
        assert_eq!(sizes.cpus, 2);
        // CPU 0 misses both lines, and the first one again; CPU 1 misses once.
        assert_eq!(counted(&sizes, Holds::Instructions, 4096, 1)[0], by(3, 1, 0));
        assert_eq!(counted(&sizes, Holds::Instructions, 4096, 2)[0], by(3, 0, 0));
    }
}
