//! What observers see of small recordings.

use super::*;
use trace::{AccessSite, ObservedAccesses, RecordingWriter, RunAddr, Translation, TranslationId};

const CODE: [&[u8]; 3] = [&[0x90, 0xeb, 0x00], &[0x90], &[0x48, 0x89, 0x07, 0x90]];
const LENGTHS: [&[u8]; 3] = [&[1, 2], &[1], &[3, 1]];

fn translations() -> Vec<Translation> {
    (0..3)
        .map(|id| Translation {
            id: TranslationId(id),
            addr: RunAddr(0x1000 + 0x10 * u64::from(id)),
            lengths: LENGTHS[id as usize].into(),
            code: CODE[id as usize].into(),
        })
        .collect()
}

fn ran(id: u32) -> StreamEvent {
    StreamEvent::Executed(TranslationId(id))
}

fn words(events: &[StreamEvent]) -> Vec<u32> {
    let mut words = Vec::new();
    events.iter().for_each(|event| event.append_to(&mut words));
    words
}

/// A recording of two CPUs; each list of events is a stream. Translation 2 stores once.
fn recording(streams: &[&[StreamEvent]]) -> Vec<u8> {
    let header = RecordingHeader { cpus: CpuCount::new(2).unwrap(), ..Default::default() };
    let mut writer = RecordingWriter::with_data(Vec::new(), &header).unwrap();
    writer.translations(&translations()).unwrap();
    for events in streams {
        let stores = events.iter().filter(|event| **event == ran(2)).count();
        let mut starts = Vec::new();
        let mut made = 0;
        for event in events.iter().filter(|event| event.execution().is_some()) {
            starts.push(made);
            made += u32::from(*event == ran(2));
        }
        let observed = ObservedAccesses {
            addresses: (0..stores as u64).map(|at| 0x8000 + 8 * at).collect(),
            sites: vec![AccessSite::new(0, true, 3); stores],
            starts,
            physical: (0..3).map(|id| (TranslationId(id), [Some(0x1000), None])).collect(),
            ..Default::default()
        };
        writer.stream_with_data(&words(events), &observed).unwrap();
        writer.cut_stream().unwrap();
    }
    writer.end().unwrap().0
}

/// Notes every piece in a line.
#[derive(Default)]
struct Notes {
    wants: Wants,
    lines: Vec<String>,
    instructions: Option<u64>,
    ends_after: Option<usize>,
    fails: bool,
}

impl Observer for Notes {
    fn begin(&mut self, _: &RecordingHeader, has_data: bool) -> Result<Wants> {
        assert!(has_data);
        Ok(self.wants)
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        assert_eq!(translations.len(), codes.len());
        Ok(())
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        anyhow::ensure!(!self.fails, "no more");
        let ran: Vec<u32> =
            piece.events().filter_map(|event| Some(event.execution()?.0.0)).collect();
        let mut line = format!("cpu {} ran {ran:?}", piece.cpu.0);
        if let Some(data) = &piece.data {
            let stores: Vec<usize> = data.executed().map(|(_, own)| own.len()).collect();
            line += &format!(" stores {stores:?}");
        }
        if let Some(control) = &piece.control {
            let of = |id: &FragmentId| control.flow.fragments[id.0 as usize].translation.0;
            let fragments: Vec<u32> = control.fragments.iter().map(of).collect();
            line += &format!(" ended {fragments:?} by {:?}", control.ended);
            if let Some(paired) = &control.paired {
                let mut left = paired.by_fragment();
                let own = |fragments: &[FragmentId], left: &mut FragmentAccesses<'_>| {
                    let own = fragments.iter().map(|_| left.of_fragment().map(|it| it.1.len()));
                    own.collect::<Vec<_>>()
                };
                let of_fragments = own(control.fragments, &mut left);
                let rest: Vec<usize> = left.map(|(_, own)| own.len()).collect();
                line += &format!(" stores {of_fragments:?} rest {rest:?}");
            }
        }
        self.lines.push(line);
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.ends_after.is_some_and(|pieces| self.lines.len() >= pieces)
    }

    fn end(&mut self, walked: &WalkedRecording<'_>) -> Result<()> {
        self.instructions = Some(walked.totals.instructions());
        Ok(())
    }
}

const CPU_0: StreamEvent = StreamEvent::Cpu(CpuId(0));
const CPU_1: StreamEvent = StreamEvent::Cpu(CpuId(1));

fn observed(file: &[u8], notes: Notes) -> Result<Notes> {
    let mut notes = notes;
    walk(RecordingReader::new(file).unwrap(), &mut notes)?;
    Ok(notes)
}

#[test]
fn a_piece_is_what_one_cpu_runs_until_another_one_does() {
    let file = recording(&[&[ran(0), ran(2), CPU_1, ran(1)], &[ran(2), CPU_0, ran(2)]]);
    let notes = observed(&file, Notes::default()).unwrap();
    assert_eq!(
        notes.lines,
        [
            "cpu 0 ran [0, 2]",
            "cpu 1 ran [1]",
            "cpu 1 ran [2]",
            "cpu 0 ran [2]",
            "cpu 0 ran []",
            "cpu 1 ran []",
        ]
    );
    assert_eq!(notes.instructions, Some(2 + 2 + 1 + 2 + 2));
}

#[test]
fn accesses_wait_for_their_fragment_until_the_turn_ends() {
    let file = recording(&[&[ran(2), ran(2), CPU_1, ran(1)], &[ran(2), CPU_0, ran(2)]]);
    let wants = Wants {
        control: true,
        ended: true,
        data: Some(DataWish::EVERY_ACCESS),
        ..Wants::default()
    };
    let notes = observed(&file, Notes { wants, ..Notes::default() }).unwrap();
    assert_eq!(
        notes.lines,
        [
            // The second store's fragment shows when CPU 0 goes on; its access is made now.
            "cpu 0 ran [2, 2] stores [1, 1] ended [2] by [0, 1] stores [Some(1)] rest [1]",
            // The turn goes on in the next stream: nothing is made ahead.
            "cpu 1 ran [1] stores [0] ended [] by [0] stores [] rest []",
            "cpu 1 ran [2] stores [1] ended [1] by [1] stores [Some(0)] rest [1]",
            "cpu 0 ran [2] stores [1] ended [2] by [1] stores [None] rest []",
            "cpu 0 ran [] stores [] ended [2] by [] stores [Some(1)] rest []",
            "cpu 1 ran [] stores [] ended [2] by [] stores [None] rest []",
        ]
    );
}

#[test]
fn observers_side_by_side_see_what_each_of_them_sees_alone() {
    let file = recording(&[&[ran(0), ran(2), CPU_1, ran(1), CPU_0, ran(1)]]);
    let wishes = [
        Wants { control: true, ended: true, ..Wants::default() },
        Wants { data: Some(DataWish::EVERY_ACCESS), ..Wants::default() },
    ];
    let mut both = wishes.map(|wants| Notes { wants, ..Notes::default() });
    let [control, data] = &mut both;
    let mut together = SideBySide(vec![control, data]);
    walk(RecordingReader::new(&file[..]).unwrap(), &mut together).unwrap();
    let all = Wants { data: wishes[1].data, ..wishes[0] };
    let alone = observed(&file, Notes { wants: all, ..Notes::default() }).unwrap();
    assert_eq!(both.map(|notes| notes.lines), [alone.lines.clone(), alone.lines]);
}

#[test]
fn a_walk_ends_early_when_nobody_needs_more() {
    let file = recording(&[&[ran(0)], &[ran(1)], &[ran(2)]]);
    let notes = observed(&file, Notes { ends_after: Some(2), ..Notes::default() }).unwrap();
    assert_eq!(notes.lines, ["cpu 0 ran [0]", "cpu 0 ran [1]", "cpu 0 ran []"]);
    assert_eq!(notes.instructions, Some(3));
}

#[test]
fn damage_and_failing_observers_end_the_walk() {
    let file = recording(&[&[ran(0)], &[ran(1)]]);
    let error = observed(&file, Notes { fails: true, ..Notes::default() }).err().unwrap();
    assert_eq!(error.to_string(), "no more");
    let error = observed(&file[..file.len() - 20], Notes::default()).err().unwrap();
    assert!(format!("{error:#}").contains("the recording is damaged"), "{error:#}");
    let mut notes = [Notes::default(), Notes { fails: true, ..Notes::default() }];
    let [good, bad] = &mut notes;
    let mut together = SideBySide(vec![good, bad]);
    let walked = walk(RecordingReader::new(&file[..]).unwrap(), &mut together);
    assert_eq!(walked.unwrap_err().to_string(), "no more");
}
