//! Figures of the model: a recording, cut at its marks, on an out-of-order core.
//!
//! Input: a recording in which the workload executes [`BEGIN`] and [`END`] around each thing that
//! is timed. Output: the counters of user code between each pair of marks, in order. The whole
//! recording runs on the core, so that caches and predictors are warm.

use anyhow::{Context, Result, ensure};
use execution::code::TranslatedCode;
use execution::core_run::{CoreRun, UopCodes};
use execution::data::DataWish;
use execution::flow::FragmentId;
use execution::moved;
use execution::opened::OpenedRecording;
use execution::walk::{FragmentAccesses, Observer, PairedAccesses, Piece, Wants, walk};
use host::note;
use host::recording::Recording;
use image::place::Placement;
use serde::{Deserialize, Serialize};
use sim::MachineModel;
use sim::core::CoreCounters;
use std::io::Read;
use trace::{RecordingHeader, RecordingReader, StreamEvent, Translation};

/// The mark before what is timed, and the one behind it (`driver.c`, `programs.rs`).
pub(super) const BEGIN: u32 = 4;
pub(super) const END: u32 = 5;

/// What user code did on the model between two marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Simulated {
    pub cycles: f64,
    pub counters: CoreCounters,
}

impl Simulated {
    /// Cycles of an instruction.
    pub(super) fn cpi(&self) -> f64 {
        self.cycles / self.counters.instructions as f64
    }
}

/// Runs a recording's file on the core of `machine`.
///
/// # Errors
/// As [`between_marks`]; the file cannot be read.
pub(crate) fn simulated(recording: &Recording, machine: &MachineModel) -> Result<Vec<Simulated>> {
    note!("simulating {} on {}", recording.trace().display(), machine.name);
    let opened = OpenedRecording::whole(recording, "simulation")?;
    opened.read(|reader| between_marks(reader, machine))
}

/// Runs a recording on the core of `machine`.
///
/// # Errors
/// The recording is damaged, of several CPUs, or its marks do not come in pairs; the machine has no
/// core.
fn between_marks(
    reader: RecordingReader<impl Read>,
    machine: &MachineModel,
) -> Result<Vec<Simulated>> {
    let core = machine.core.as_ref().context("the machine has no out-of-order core")?;
    let mut run = ModelRun {
        machine,
        codes: UopCodes::new(std::slice::from_ref(machine).iter())?,
        core: CoreRun::new(machine, None)?.context("the machine has no out-of-order core")?,
        original: Placement::default(),
        learned: 0,
        width: core.window.dispatch.into(),
        begun: None,
        found: Vec::new(),
    };
    walk(reader, &mut run)?;
    ensure!(run.begun.is_none(), "the recording ends behind mark {BEGIN}, before mark {END}");
    Ok(run.found)
}

/// A core that runs a recording.
struct ModelRun<'a> {
    machine: &'a MachineModel,
    codes: UopCodes,
    core: CoreRun,
    /// Nothing moves.
    original: Placement,
    /// The fragments that the core knows.
    learned: usize,
    /// Slots of a cycle.
    width: f64,
    /// The counters at the open mark.
    begun: Option<CoreCounters>,
    found: Vec<Simulated>,
}

impl Observer for ModelRun<'_> {
    fn begin(&mut self, header: &RecordingHeader, _has_data: bool) -> Result<Wants> {
        header.one_cpu()?;
        let data = Some(DataWish::of(std::slice::from_ref(self.machine)));
        Ok(Wants { control: true, ended: true, data, ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        self.codes.define(translations);
        Ok(())
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        let Some(control) = piece.control.filter(|_| !piece.is_tail) else { return Ok(()) };
        let mut accesses = control.paired.as_ref().map(PairedAccesses::by_fragment);
        let (mut execution, mut ran) = (0, 0);
        for event in piece.events() {
            execution += usize::from(event.execution().is_some());
            if let StreamEvent::Marker(mark) = event {
                let ended = control.ended[..execution].last().map_or(0, |&ended| ended as usize);
                self.run(piece, &control.fragments[ran..ended], accesses.as_mut())?;
                ran = ended;
                self.mark(mark)?;
            }
        }
        self.run(piece, &control.fragments[ran..], accesses.as_mut())
    }
}

impl ModelRun<'_> {
    /// Runs fragments on the core, which first learns those that it has not seen.
    fn run(
        &mut self,
        piece: &Piece<'_>,
        fragments: &[FragmentId],
        accesses: Option<&mut FragmentAccesses<'_>>,
    ) -> Result<()> {
        let ModelRun { codes, core, original, learned, .. } = self;
        let known = fragments.iter().max().map_or(0, |last| last.0 as usize + 1);
        let control = piece.control.context("control is followed")?;
        for fragment in control.flow.fragments[..known].iter().skip(*learned) {
            let id = fragment.translation;
            let code = &piece.codes[id.0 as usize];
            let moved = moved::run(code, fragment, original);
            let data = piece.data.as_ref();
            let mut lies = |addr| data.map(|it| it.flow.code(addr, code, id, it.patterns));
            core.learn(fragment, &moved, code.mode(), codes, &mut lies)?;
        }
        *learned = known.max(*learned);
        core.run(piece.cpu, fragments, codes, accesses);
        Ok(())
    }

    fn mark(&mut self, mark: u32) -> Result<()> {
        match mark {
            BEGIN => {
                ensure!(self.begun.is_none(), "mark {BEGIN} comes twice");
                self.begun = Some(self.core.counters().user);
            }
            END => {
                let begun = self.begun.take();
                let begun = begun.with_context(|| format!("mark {END} without {BEGIN}"))?;
                let counters = self.core.counters().user - begun;
                let cycles = counters.slots.total() as f64 / self.width;
                self.found.push(Simulated { cycles, counters });
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge_processor::steps::{STEPS, capacity};
    use trace::{RecordingWriter, RunAddr, TranslationId};

    const PAGE: u64 = 0x40_0000;

    fn ring(jumps: u64, warm: u64, timed: u64) -> Vec<u8> {
        blocks(jumps, 0, warm, timed)
    }

    /// A recording of blocks of `moves` and a jump, 16 bytes apart, each to the next; the last to
    /// the first. They run `warm` times, then `timed` times between the marks.
    fn blocks(jumps: u64, moves: usize, warm: u64, timed: u64) -> Vec<u8> {
        let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap();
        let translation = |n: u64| {
            let mut code = [0x49, 0x89, 0xf8].repeat(moves);
            let (moved, mut lengths) = (code.len() as i64, vec![3; moves]);
            if n + 1 < jumps {
                code.extend([0xeb, (14 - moved) as u8]);
                lengths.push(2);
            } else {
                code.push(0xe9);
                code.extend(((-16 * (jumps as i64 - 1) - 5 - moved) as i32).to_le_bytes());
                lengths.push(5);
            }
            Translation {
                id: TranslationId(n as u32),
                addr: RunAddr(PAGE + 16 * n),
                lengths: lengths.into(),
                code: code.into(),
            }
        };
        writer.translations(&(0..jumps).map(translation).collect::<Vec<_>>()).unwrap();
        let mut words = Vec::new();
        for round in 0..warm + timed {
            if round == warm {
                StreamEvent::Marker(BEGIN).append_to(&mut words);
            }
            for n in 0..jumps {
                StreamEvent::Executed(TranslationId(n as u32)).append_to(&mut words);
            }
        }
        StreamEvent::Marker(END).append_to(&mut words);
        writer.stream(&words).unwrap();
        writer.end().unwrap().0
    }

    fn simulated(recording: &[u8], machine: &MachineModel) -> Vec<Simulated> {
        between_marks(RecordingReader::new(recording).unwrap(), machine).unwrap()
    }

    #[test]
    fn what_is_timed_lies_between_the_marks() {
        let machine = machines::find("zen4").unwrap().model;
        let [found] = simulated(&ring(8, 100, 50), &machine)[..] else { panic!("one pair") };
        // The successor of the last jump before a mark shows behind it.
        assert_eq!(found.counters.instructions, 8 * 50);
        // Each taken jump takes a cycle.
        assert!((found.cpi() - 1.0).abs() < 0.05, "{}", found.cpi());
    }

    #[test]
    fn the_model_steps_where_the_machines_file_says() {
        let machine = machines::find("zen4").unwrap().model;
        let step = STEPS.iter().find(|step| step.structure.starts_with("first BTB")).unwrap();
        let sizes = [256, 512, 1024, 2048, 2560, 2816, 3072, 3328, 4096];
        let costs = sizes.map(|size| {
            let found = simulated(&ring(size, 3, 4), &machine);
            (size, found[0].cpi())
        });
        let found = capacity(step, &costs).unwrap();
        let described = (step.described)(&machine).unwrap();
        assert!((found / described - 1.0).abs() < 0.1, "{found}, not {described}: {costs:?}");
    }

    #[test]
    fn each_place_where_control_arrives_takes_an_entry_of_the_uop_cache() {
        let machine = machines::find("zen4").unwrap().model;
        let cycles = |count: u64| simulated(&blocks(count, 4, 3, 4), &machine)[0].cpi() * 5.0;
        // 768 entries; decoders need two cycles for five instructions (`starts/768`, `/1024`).
        assert!((cycles(700) - 1.0).abs() < 0.1, "{}", cycles(700));
        assert!((cycles(1024) - 2.0).abs() < 0.1, "{}", cycles(1024));
    }

    #[test]
    fn marks_that_are_no_pairs_are_refused() {
        let machine = machines::find("zen4").unwrap().model;
        let recording = ring(4, 2, 2);
        let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap();
        let mut words = Vec::new();
        StreamEvent::Marker(END).append_to(&mut words);
        writer.stream(&words).unwrap();
        let (wrong, _) = writer.end().unwrap();
        let error = between_marks(RecordingReader::new(&wrong[..]).unwrap(), &machine);
        assert!(format!("{:#}", error.unwrap_err()).contains("mark 5 without 4"));
        let cut = &recording[..recording.len() / 2];
        assert!(
            RecordingReader::new(cut)
                .map_or(true, |reader| { between_marks(reader, &machine).is_err() })
        );
    }
}
