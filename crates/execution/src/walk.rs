//! The one walk over a recording: it cuts the stream into pieces, follows the way of control and
//! the data accesses, and shows each piece to an observer. It stops at the first damage.
//!
//! A *piece* is a stretch of the stream in which one CPU executes. Several observers
//! ([`SideBySide`]) see the same pieces in the same order: they share one reading of the file, one
//! decoding of the translation blocks and one following of control and data.
//!
//! Input: a recording, and an [`Observer`]. Output: what the observer computes. This module counts
//! nothing.

use crate::code::TranslatedCode;
use crate::data::{AccessStream, DataAccess, DataFlow, DataWish, Execution, PIECE_WORDS};
use crate::flow::{ExecutionFlow, FragmentExit, FragmentId};
use crate::module_addresses::ModuleAddresses;
use anyhow::{Context, Result, ensure};
use image::module::ImageModule;
use rayon::prelude::*;
use std::io::Read;
use std::ops::ControlFlow;
use trace::{
    AccessPatterns, Accesses, Chunk, CpuCount, CpuId, ReadError, RecordingHeader, RecordingReader,
    RecordingTotals, StreamEvent, Task, Translation,
};

/// What an observer wants to see of each piece, beside its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// The way of control: [`Piece::control`].
    pub control: bool,
    /// Which executions the fragments belong to: [`PieceControl::ended`].
    pub ended: bool,
    /// The data accesses: [`Piece::data`]. A piece may have more accesses than one observer wants.
    pub data: Option<DataWish>,
    /// Stops the walk behind the part that the reader gives. Otherwise the walk reads on to the
    /// recording's end, and reports damage there.
    pub stops_behind_part: bool,
}

/// Sees a recording from its beginning to its end.
pub trait Observer {
    /// The recording begins. `has_data`: the recording has data accesses, and the reader decodes
    /// them.
    ///
    /// # Errors
    /// The recording is not what the observer needs.
    fn begin(&mut self, header: &RecordingHeader, has_data: bool) -> Result<Wants>;

    /// Learns translation blocks, and their code. They come in the order of their ids, before the
    /// first piece that runs them.
    ///
    /// # Errors
    /// There are more of them than the observer can number.
    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()>;

    /// Learns tasks. They come in the order of their ids, before they run.
    fn define_tasks(&mut self, _tasks: &[Task]) {}

    /// Pieces of another part of the stream follow, with these accesses, which include the uses of
    /// page frames. Not called without data accesses.
    fn stream(&mut self, _accesses: &Accesses) {}

    /// Takes the next piece.
    ///
    /// # Errors
    /// The observer's own.
    fn piece(&mut self, piece: &Piece<'_>) -> Result<()>;

    /// Whether the observer has all that it needs. The walk ends early when all observers have.
    fn has_ended(&self) -> bool {
        false
    }

    /// The walk ended. The last fragments of each CPU came as a piece of their own.
    ///
    /// # Errors
    /// The observer's own.
    fn end(&mut self, _walked: &WalkedRecording<'_>) -> Result<()> {
        Ok(())
    }
}

/// A recording after the walk.
#[derive(Clone, Copy)]
pub struct WalkedRecording<'w> {
    /// The totals of the pieces that the walk showed.
    pub totals: &'w RecordingTotals,
    /// The way of control, if the observer wanted it. Always knows the code of translation blocks.
    pub flow: &'w ExecutionFlow,
}

/// A stretch of the stream in which one CPU executes.
#[derive(Clone, Copy)]
pub struct Piece<'w> {
    /// The CPU.
    pub cpu: CpuId,
    /// The events. When the CPU goes on here after another one, the first event says so.
    pub words: &'w [u32],
    /// Another CPU executes in the next piece.
    pub ends_turn: bool,
    /// The stream has ended. The piece has no words; it has the fragments of the CPU whose end was
    /// not known before.
    pub is_tail: bool,
    /// The code of all translation blocks so far, by id.
    pub codes: &'w [TranslatedCode],
    /// The data accesses, if the recording has them and the observer wants them.
    pub data: Option<PieceData<'w>>,
    /// The way of control, if the observer wants it.
    pub control: Option<PieceControl<'w>>,
}

impl Piece<'_> {
    /// The events, in order.
    pub fn events(&self) -> impl Iterator<Item = StreamEvent> {
        trace::events(self.words)
    }
}

/// The data accesses of a piece.
#[derive(Clone, Copy)]
pub struct PieceData<'w> {
    /// One for each execution in the piece's words, in their order.
    pub executions: &'w [Execution],
    /// The accesses of these executions, one execution after the other.
    pub accesses: &'w [DataAccess],
    /// Knows virtual addresses of accesses, and physical addresses of code.
    pub flow: &'w DataFlow,
    /// The access patterns of translation blocks.
    pub patterns: &'w AccessPatterns,
}

/// The way of control in a piece.
#[derive(Clone, Copy)]
pub struct PieceControl<'w> {
    /// The fragments that ended in this piece, in the order in which they ran. The CPU's last
    /// execution stays open until its next piece.
    pub fragments: &'w [FragmentId],
    /// For each execution in the piece's words: the number of `fragments` that had ended when the
    /// execution began. Empty if no observer wants it.
    pub ended: &'w [u32],
    /// Knows what a fragment is.
    pub flow: &'w ExecutionFlow,
    /// The accesses by fragment; `None` without data accesses.
    pub paired: Option<PairedAccesses<'w>>,
}

/// The accesses of the fragments of a piece. The accesses of an open execution wait for its
/// fragment. If the CPU's turn ends first, they are made at once.
#[derive(Clone, Copy)]
pub struct PairedAccesses<'w> {
    /// The executions whose accesses are made now, in order: the executions of the fragments, then
    /// `rest` more.
    pub executions: &'w [Execution],
    /// Their accesses.
    pub accesses: &'w [DataAccess],
    /// The number of first fragments that are executions and made their accesses in the CPU's
    /// previous turn.
    pub ahead: usize,
    /// The number of executions that have no fragment yet.
    pub rest: usize,
}

impl<'w> PairedAccesses<'w> {
    /// The accesses, fragment by fragment.
    pub fn by_fragment(&self) -> FragmentAccesses<'w> {
        let PairedAccesses { executions, accesses, ahead, .. } = *self;
        FragmentAccesses { executions: executions.iter(), accesses, ahead }
    }
}

/// What is left of the accesses of a piece, see [`PairedAccesses::by_fragment`].
#[derive(Clone, Debug)]
pub struct FragmentAccesses<'w> {
    executions: std::slice::Iter<'w, Execution>,
    accesses: &'w [DataAccess],
    ahead: usize,
}

impl<'w> FragmentAccesses<'w> {
    /// The accesses of the next fragment that is an execution. `None`: the fragment made them
    /// before.
    #[inline]
    pub fn of_fragment(&mut self) -> Option<(&'w Execution, &'w [DataAccess])> {
        if self.ahead > 0 {
            self.ahead -= 1;
            return None;
        }
        self.next()
    }
}

/// The executions that are left, without regard to fragments.
impl<'w> Iterator for FragmentAccesses<'w> {
    type Item = (&'w Execution, &'w [DataAccess]);

    #[inline]
    fn next(&mut self) -> Option<(&'w Execution, &'w [DataAccess])> {
        let execution = self.executions.next()?;
        let count = (execution.accesses as usize).min(self.accesses.len());
        let (own, rest) = self.accesses.split_at(count);
        self.accesses = rest;
        Some((execution, own))
    }
}

impl<'w> PieceData<'w> {
    /// The executions of the piece, each with its accesses.
    pub fn executed(&self) -> FragmentAccesses<'w> {
        let PieceData { executions, accesses, .. } = *self;
        FragmentAccesses { executions: executions.iter(), accesses, ahead: 0 }
    }
}

/// Several observers of one walk. They are independent, so they work in parallel on the processors
/// of this machine.
pub struct SideBySide<'o>(pub Vec<&'o mut (dyn Observer + Send)>);

impl SideBySide<'_> {
    /// Calls `show` for all observers. If several fail, returns the error of the first one.
    fn each(
        &mut self,
        show: impl Fn(&mut (dyn Observer + Send)) -> Result<()> + Sync,
    ) -> Result<()> {
        let shown: Vec<Result<()>> =
            self.0.par_iter_mut().map(|observer| show(*observer)).collect();
        shown.into_iter().collect()
    }
}

impl Observer for SideBySide<'_> {
    fn begin(&mut self, header: &RecordingHeader, has_data: bool) -> Result<Wants> {
        let of_each = self.0.iter_mut().map(|observer| observer.begin(header, has_data));
        let wants: Vec<Wants> = of_each.collect::<Result<_>>()?;
        Ok(Wants {
            control: wants.iter().any(|wants| wants.control),
            ended: wants.iter().any(|wants| wants.ended),
            data: wants.iter().filter_map(|wants| wants.data).reduce(DataWish::and),
            stops_behind_part: wants.iter().all(|wants| wants.stops_behind_part),
        })
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        self.each(|observer| observer.define(translations, codes))
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.0.iter_mut().for_each(|observer| observer.define_tasks(tasks));
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.0.iter_mut().for_each(|observer| observer.stream(accesses));
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        self.each(|observer| observer.piece(piece))
    }

    fn has_ended(&self) -> bool {
        self.0.iter().all(|observer| observer.has_ended())
    }

    fn end(&mut self, walked: &WalkedRecording<'_>) -> Result<()> {
        self.each(|observer| observer.end(walked))
    }
}

/// Reads the chunks of a recording up to its clean end, or until `each` breaks off, with the data
/// accesses of the last stream. Returns the first damage.
///
/// # Errors
/// Those of `each`.
pub fn chunks<R: Read, E>(
    reader: &mut RecordingReader<R>,
    mut each: impl FnMut(Chunk, ReaderState<'_>) -> Result<ControlFlow<()>, E>,
) -> Result<Result<(), ReadError>, E> {
    loop {
        let chunk = match reader.next_chunk() {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Ok(Ok(())),
            Err(damage) => return Ok(Err(damage)),
        };
        let state = ReaderState {
            accesses: reader.accesses(),
            totals: reader.totals_so_far(),
            is_behind_part: reader.is_behind_part(),
        };
        if each(chunk, state)?.is_break() {
            return Ok(Ok(()));
        }
    }
}

/// What a reader knows besides the last chunk.
pub struct ReaderState<'r> {
    /// The accesses during the last stream, and the patterns to read them with. `None`: the
    /// recording has no data accesses, or the reader skips them.
    pub accesses: Option<(&'r Accesses, &'r AccessPatterns)>,
    /// The totals of everything read so far.
    pub totals: RecordingTotals,
    /// The reader gives a part of the recording, and has given all of it.
    pub is_behind_part: bool,
}

/// Shows a recording to an observer, from its beginning to its end or until the observer has ended.
/// The totals are those of the part that `reader` gives, or of what was read.
///
/// # Errors
/// The recording is damaged or cut off, or the observer fails.
pub fn walk<R: Read>(
    reader: RecordingReader<R>,
    observer: &mut dyn Observer,
) -> Result<RecordingTotals> {
    walk_with(reader, &[], observer)
}

/// The same as [`walk`]. The code of these modules is shown at its link addresses.
///
/// # Errors
/// As [`walk`].
pub fn walk_with<R: Read>(
    mut reader: RecordingReader<R>,
    modules: &[ImageModule],
    observer: &mut dyn Observer,
) -> Result<RecordingTotals> {
    let has_data = reader.accesses().is_some();
    let wants = observer.begin(reader.header(), has_data)?;
    let Wants { control, ended, data, stops_behind_part } = wants;
    if data.is_none() {
        reader = reader.without_data();
    }
    let mut walk = Walk {
        cpus: reader.header().cpus,
        follows_control: control,
        notes_ended: ended,
        modules: ModuleAddresses::new(modules),
        flow: ExecutionFlow::default(),
        fragments: Vec::new(),
        ended: Vec::new(),
        data: data.filter(|_| has_data).map(DataFlow::new),
        ahead: vec![0; usize::from(reader.header().cpus.get())],
        observer,
    };
    let mut totals = RecordingTotals::default();
    let read = chunks(&mut reader, |chunk, state| {
        let ended = matches!(chunk, Chunk::End(_));
        match chunk {
            Chunk::Translations(translations) => walk.define(&translations)?,
            Chunk::Tasks(tasks) => walk.define_tasks(&tasks),
            Chunk::Modules(changes) => changes.iter().for_each(|it| walk.modules.change(it)),
            Chunk::Stream(words) => match state.accesses.filter(|_| walk.data.is_some()) {
                None => walk.stream(&words)?,
                Some((accesses, patterns)) => walk.stream_with_data(&words, accesses, patterns)?,
            },
            Chunk::End(end) => totals = end,
        }
        let ends_early = stops_behind_part && state.is_behind_part || walk.observer.has_ended();
        if !ended && !ends_early {
            return anyhow::Ok(ControlFlow::Continue(()));
        }
        if !ended {
            totals = state.totals;
        }
        walk.tails(state.accesses.map(|(_, patterns)| patterns))?;
        walk.end(&totals)?;
        Ok(ControlFlow::Break(()))
    })?;
    read.context("the recording is damaged")?;
    Ok(totals)
}

/// The words of a piece, before they are followed.
struct PieceOfWords<'w> {
    words: &'w [u32],
    ends_turn: bool,
    is_tail: bool,
}

struct Walk<'o> {
    cpus: CpuCount,
    follows_control: bool,
    notes_ended: bool,
    modules: ModuleAddresses<'o>,
    flow: ExecutionFlow,
    /// The fragments of the current piece.
    fragments: Vec<FragmentId>,
    ended: Vec<u32>,
    /// Keeps the executions whose fragment is not known yet, when control is followed.
    data: Option<DataFlow>,
    /// By CPU: the number of its next fragments whose accesses were already made.
    ahead: Vec<usize>,
    observer: &'o mut dyn Observer,
}

impl Walk<'_> {
    fn define(&mut self, translations: &[Translation]) -> Result<()> {
        let known = self.flow.codes.len();
        for translation in translations {
            let large_page = self.modules.is_in_large_page(translation.addr);
            let code = TranslatedCode { large_page, ..TranslatedCode::new(translation)? };
            self.flow.define_code(self.modules.linked(code));
        }
        let codes = &self.flow.codes[known..];
        match self.modules.placed(translations, codes) {
            None => self.observer.define(translations, codes),
            Some(placed) => self.observer.define(&placed, codes),
        }
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        if let Some(data) = &mut self.data {
            data.define_tasks(tasks);
        }
        self.observer.define_tasks(tasks);
    }

    fn stream(&mut self, words: &[u32]) -> Result<()> {
        for (words, ends_turn) in turns(words, self.cpus) {
            self.piece(words, ends_turn, None)?;
        }
        Ok(())
    }

    fn stream_with_data(
        &mut self,
        words: &[u32],
        accesses: &Accesses,
        patterns: &AccessPatterns,
    ) -> Result<()> {
        self.observer.stream(accesses);
        let mut stream = AccessStream::new(accesses, patterns);
        for words in trace::pieces(words, PIECE_WORDS) {
            for (words, ends_turn) in turns(words, self.cpus) {
                self.piece(words, ends_turn, Some((&mut stream, patterns)))?;
            }
        }
        if let Some(data) = &mut self.data {
            data.finish(stream);
        }
        Ok(())
    }

    fn piece(
        &mut self,
        words: &[u32],
        ends_turn: bool,
        stream: Option<(&mut AccessStream<'_>, &AccessPatterns)>,
    ) -> Result<()> {
        // Simulating what one read brings may take seconds.
        host::interrupt::check()?;
        self.fragments.clear();
        self.ended.clear();
        if self.follows_control {
            let (events, fragments) = (trace::events(words), &mut self.fragments);
            match self.notes_ended {
                true => {
                    let ended = |fragments: &[FragmentId]| self.ended.push(fragments.len() as u32);
                    self.flow.follow(events, fragments, ended)?
                }
                false => self.flow.follow(events, fragments, |_| {})?,
            }
        } else if let Some(StreamEvent::Cpu(cpu)) = trace::events(words).next() {
            self.flow.turn_to(cpu);
        }
        let before = self.data.as_ref().map_or((0, 0), DataFlow::kept);
        let patterns = stream.as_ref().map(|(_, patterns)| *patterns);
        if let (Some(data), Some((stream, _))) = (&mut self.data, stream) {
            data.follow(words, stream);
        }
        self.show(PieceOfWords { words, ends_turn, is_tail: false }, before, patterns)
    }

    /// Shows the last fragment of each CPU.
    fn tails(&mut self, patterns: Option<&AccessPatterns>) -> Result<()> {
        for cpu in self.flow.cpus() {
            self.fragments.clear();
            self.ended.clear();
            self.flow.finish_cpu(cpu, &mut self.fragments);
            let before = self.data.as_ref().map_or((0, 0), DataFlow::kept);
            let tail = PieceOfWords { words: &[], ends_turn: false, is_tail: true };
            self.show(tail, before, patterns)?;
        }
        self.flow.finish();
        Ok(())
    }

    /// Completes a piece and shows it. `before`: how many executions and accesses the flow of data
    /// kept from earlier pieces.
    fn show(
        &mut self,
        piece: PieceOfWords<'_>,
        before: (usize, usize),
        patterns: Option<&AccessPatterns>,
    ) -> Result<()> {
        let Walk { flow, data, fragments, ended, ahead, follows_control, observer, .. } = self;
        let PieceOfWords { words, ends_turn, is_tail } = piece;
        let cpu = flow.cpu();
        let at = usize::from(cpu.0);
        let pairing = match (&*data, *follows_control) {
            (Some(data), true) => {
                let ran = fragments.iter().filter(|id| !is_late(flow, **id)).count();
                let ahead = ahead.get(at).copied().unwrap_or(0);
                Some(Pairing::new(data, ran, ahead, ends_turn)?)
            }
            _ => None,
        };
        let piece = Piece {
            cpu,
            words,
            ends_turn,
            is_tail,
            codes: &flow.codes,
            data: data.as_ref().zip(patterns).map(|(flow, patterns)| PieceData {
                executions: &flow.executions[before.0..],
                accesses: &flow.accesses()[before.1..],
                flow,
                patterns,
            }),
            control: follows_control.then_some(PieceControl {
                fragments,
                ended,
                flow,
                paired: data.as_ref().zip(pairing.as_ref()).map(|(flow, pairing)| PairedAccesses {
                    executions: &flow.executions[..pairing.executions],
                    accesses: &flow.accesses()[..pairing.accesses],
                    ahead: pairing.ahead,
                    rest: pairing.rest,
                }),
            }),
        };
        observer.piece(&piece)?;
        if let Some(data) = data {
            data.forget(pairing.as_ref().map_or(data.executions.len(), |it| it.executions));
        }
        if let (Some(pairing), Some(ahead)) = (pairing, ahead.get_mut(at)) {
            *ahead = pairing.ahead_next;
        }
        Ok(())
    }

    fn end(&mut self, totals: &RecordingTotals) -> Result<()> {
        self.observer.end(&WalkedRecording { totals, flow: &self.flow })
    }
}

/// Which executions a piece's fragments belong to.
struct Pairing {
    /// How many of the first executions of the flow of data, and of their accesses, are made now.
    executions: usize,
    accesses: usize,
    ahead: usize,
    rest: usize,
    /// `ahead` in the CPU's next piece.
    ahead_next: usize,
}

impl Pairing {
    /// `ran`: the fragments of the piece that are executions.
    ///
    /// # Errors
    /// More fragments ran than translation blocks were executed.
    fn new(data: &DataFlow, ran: usize, ahead: usize, ends_turn: bool) -> Result<Pairing> {
        let of_fragments = ran.saturating_sub(ahead);
        ensure!(
            of_fragments <= data.executions.len(),
            "{of_fragments} fragments ended with the accesses of {} executions: this is a fault of \
             Kernlane",
            data.executions.len()
        );
        let rest = if ends_turn { data.executions.len() - of_fragments } else { 0 };
        let executions = of_fragments + rest;
        let accesses = match executions == data.executions.len() {
            true => data.accesses().len(),
            false => {
                let made = data.executions[executions..].iter();
                let later: usize = made.map(|execution| execution.accesses as usize).sum();
                data.accesses().len() - later
            }
        };
        let ahead_next = ahead.saturating_sub(ran) + rest;
        Ok(Pairing { executions, accesses, ahead, rest, ahead_next })
    }
}

/// Whether no instruction of the fragment runs.
fn is_late(flow: &ExecutionFlow, id: FragmentId) -> bool {
    let exit = flow.fragments[id.0 as usize].exit;
    matches!(exit, FragmentExit::LateNext | FragmentExit::LateTaken)
}

/// The turns in these words, each with whether another CPU's turn follows. A turn that another CPU
/// ends before it begins has no words.
fn turns(words: &[u32], cpus: CpuCount) -> impl Iterator<Item = (&[u32], bool)> {
    let mut turns = trace::turns(words, cpus).peekable();
    std::iter::from_fn(move || Some((turns.next()?, turns.peek().is_some())))
}

#[cfg(test)]
mod tests;
