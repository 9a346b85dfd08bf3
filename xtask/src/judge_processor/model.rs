//! What the model says: a recording, cut at its marks, on an out-of-order core.
//!
//! Input: a recording in which the workload executes [`BEGIN`] and [`END`] around each thing that
//! is timed. Output: the counters of user code between each pair of marks, in order. The whole
//! recording runs on the core, so that caches and predictors are warm.

use anyhow::{Context, Result, ensure};
use execution::core_run::{CoreRun, UopCodes};
use execution::data::{AccessStream, DataFlow, PIECE_WORDS};
use execution::flow::{ExecutionFlow, FragmentExit, FragmentId};
use execution::moved;
use host::recording::Recording;
use image::place::Placement;
use serde::{Deserialize, Serialize};
use sim::MachineModel;
use sim::core::CoreCounters;
use std::fs::File;
use std::io::{BufReader, Read};
use trace::{AccessPatterns, Accesses, Chunk, CpuId, RecordingReader, StreamEvent, events, pieces};

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
    let path = recording.trace();
    eprintln!("simulating {} on {}", path.display(), machine.name);
    let run = || {
        let file = BufReader::with_capacity(1 << 20, File::open(&path)?);
        between_marks(RecordingReader::new(file)?, machine)
    };
    run().with_context(|| path.display().to_string())
}

/// Runs a recording on the core of `machine`.
///
/// # Errors
/// The recording is damaged, of several CPUs, or its marks do not come in pairs; the machine has no
/// core.
fn between_marks(
    mut reader: RecordingReader<impl Read>,
    machine: &MachineModel,
) -> Result<Vec<Simulated>> {
    reader.header().one_cpu()?;
    let machines = std::slice::from_ref(machine);
    let core = machine.core.as_ref().context("the machine has no out-of-order core")?;
    let mut walk = ModelRun {
        flow: ExecutionFlow::default(),
        codes: UopCodes::new(machines.iter())?,
        data: DataFlow::new(machines),
        core: CoreRun::new(machine)?.context("the machine has no out-of-order core")?,
        original: Placement::default(),
        learned: 0,
        fragments: Vec::new(),
        width: core.window.dispatch.into(),
        begun: None,
        found: Vec::new(),
    };
    let mut ended = false;
    while let Some(chunk) = reader.next_chunk().context("the recording is damaged")? {
        match chunk {
            Chunk::Translations(defined) => {
                walk.codes.define(&defined);
                defined.iter().try_for_each(|translation| walk.flow.define(translation))?;
            }
            Chunk::Tasks(tasks) => walk.data.define_tasks(&tasks),
            Chunk::Stream(words) => walk.stream(&words, reader.accesses())?,
            Chunk::End(_) => ended = true,
        }
    }
    ensure!(ended, "the recording has no clean end");
    ensure!(walk.begun.is_none(), "the recording ends behind mark {BEGIN}, before mark {END}");
    Ok(walk.found)
}

/// A core that runs a recording.
struct ModelRun {
    flow: ExecutionFlow,
    codes: UopCodes,
    data: DataFlow,
    core: CoreRun,
    /// Nothing moves.
    original: Placement,
    /// The fragments that the core knows.
    learned: usize,
    /// Space for the fragments of a piece.
    fragments: Vec<FragmentId>,
    /// Slots of a cycle.
    width: f64,
    /// The counters at the open mark.
    begun: Option<CoreCounters>,
    found: Vec<Simulated>,
}

impl ModelRun {
    fn stream(
        &mut self,
        words: &[u32],
        accesses: Option<(&Accesses, &AccessPatterns)>,
    ) -> Result<()> {
        let patterns = accesses.map(|(_, patterns)| patterns);
        let mut stream = accesses.map(|(accesses, patterns)| AccessStream::new(accesses, patterns));
        for (words, mark) in at_marks(words) {
            for piece in pieces(words, PIECE_WORDS) {
                self.piece(piece, stream.as_mut(), patterns)?;
            }
            match mark {
                Some(BEGIN) => {
                    ensure!(self.begun.is_none(), "mark {BEGIN} comes twice");
                    self.begun = Some(self.core.counters().user);
                }
                Some(END) => {
                    let begun = self.begun.take();
                    let begun = begun.with_context(|| format!("mark {END} without {BEGIN}"))?;
                    let counters = self.core.counters().user - begun;
                    let cycles = counters.slots.total() as f64 / self.width;
                    self.found.push(Simulated { cycles, counters });
                }
                _ => {}
            }
        }
        if let Some(stream) = stream {
            self.data.finish(stream);
        }
        Ok(())
    }

    fn piece(
        &mut self,
        words: &[u32],
        stream: Option<&mut AccessStream<'_>>,
        patterns: Option<&AccessPatterns>,
    ) -> Result<()> {
        let has_data = stream.is_some();
        if let Some(stream) = stream {
            self.data.follow(words, stream);
        }
        self.fragments.clear();
        self.flow.follow(events(words), &mut self.fragments)?;
        self.learn(patterns)?;
        let data = has_data.then_some(&self.data);
        self.core.run(CpuId(0), &self.fragments, &self.codes, data);
        let ran = self.fragments.iter().filter(|id| !is_late(&self.flow, **id)).count();
        self.data.forget(ran.min(self.data.executions.len()));
        Ok(())
    }

    /// Gives the core the fragments that it has not seen.
    fn learn(&mut self, patterns: Option<&AccessPatterns>) -> Result<()> {
        let ModelRun { flow, codes, data, core, original, learned, .. } = self;
        for fragment in &flow.fragments[*learned..] {
            let id = fragment.translation;
            let code = &flow.codes[id.0 as usize];
            let moved = moved::run(code, fragment, original);
            let mut lies = |addr| Some(data.code(addr, code, id, patterns?));
            core.learn(fragment, &moved, code.mode(), codes, &mut lies)?;
        }
        *learned = flow.fragments.len();
        Ok(())
    }
}

/// Whether no instruction of the fragment runs, so that no execution belongs to it.
fn is_late(flow: &ExecutionFlow, id: FragmentId) -> bool {
    let exit = flow.fragments[id.0 as usize].exit;
    matches!(exit, FragmentExit::LateNext | FragmentExit::LateTaken)
}

/// Cuts words behind each marker. Each piece comes with the marker at its end.
fn at_marks(words: &[u32]) -> Vec<(&[u32], Option<u32>)> {
    let (mut cut, mut from, mut at) = (Vec::new(), 0, 0);
    for event in events(words) {
        at += if matches!(event, StreamEvent::Left { .. }) { 2 } else { 1 };
        if let StreamEvent::Marker(number) = event {
            cut.push((&words[from..at], Some(number)));
            from = at;
        }
    }
    cut.push((&words[from..], None));
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge_processor::steps::{STEPS, capacity};
    use execution::machine;
    use trace::{RecordingHeader, RecordingWriter, RunAddr, Translation, TranslationId};

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
        let machine = machine::find("zen4").unwrap();
        let [found] = simulated(&ring(8, 100, 50), &machine)[..] else { panic!("one pair") };
        // The successor of the last jump before a mark shows behind it.
        assert_eq!(found.counters.instructions, 8 * 50);
        // Each taken jump takes a cycle.
        assert!((found.cpi() - 1.0).abs() < 0.05, "{}", found.cpi());
    }

    #[test]
    fn the_model_steps_where_the_machines_file_says() {
        let machine = machine::find("zen4").unwrap();
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
        let machine = machine::find("zen4").unwrap();
        let cycles = |count: u64| simulated(&blocks(count, 4, 3, 4), &machine)[0].cpi() * 5.0;
        // 768 entries; decoders need two cycles for five instructions (`starts/768`, `/1024`).
        assert!((cycles(700) - 1.0).abs() < 0.1, "{}", cycles(700));
        assert!((cycles(1024) - 2.0).abs() < 0.1, "{}", cycles(1024));
    }

    #[test]
    fn marks_that_are_no_pairs_are_refused() {
        let machine = machine::find("zen4").unwrap();
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
