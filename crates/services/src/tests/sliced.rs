//! Slices of a recording: what each of them has adds up to the recording.

use super::sampled;
use crate::examples::{ExampleRun, at, kernel};
use crate::generations::Generations;
use crate::share::OsShare;
use crate::slices::{BegunInterrupts, ServiceSlice};
use crate::table::ServiceTable;
use crate::{Attribution, ObservedRecording};
use execution::opened::OpenedRecording;
use execution::part::RecordingPart;
use execution::slices::SliceStarts;
use execution::walk::{Observer, SideBySide};
use host::recording::Recording;
use std::collections::BTreeMap;
use std::path::Path;
use trace::RecordingHeader;

fn generations(attribution: &Attribution, recording: &Path, starts: &SliceStarts) -> Generations {
    let opened =
        OpenedRecording::open(&Recording::at(recording), &RecordingPart::WHOLE, "test").unwrap();
    let header = opened.header().clone();
    let mut walks = attribution.generations_walks(None, starts).unwrap();
    let observers = walks.iter_mut().map(|walk| walk as &mut (dyn Observer + Send));
    opened.walk(&mut SideBySide(observers.collect())).unwrap();
    attribution.generations_of(&header, walks).unwrap()
}

#[test]
fn slots_in_slices_add_up_to_those_of_each_service() {
    let (directory, mut attribution) = sampled::recorded();
    attribution.machines.push(machines::find("simos-1994").unwrap().model);
    let ObservedRecording { timeline, table, .. } = attribution.observed(directory.path()).unwrap();
    let starts = timeline.starts;
    assert!(starts.0.len() > 5 && starts.0.is_sorted(), "{starts:?}");
    assert!(starts.0.iter().all(|&start| start < table.instructions), "{starts:?}");
    let found = generations(&attribution, directory.path(), &starts);
    let whole = attribution.generations(directory.path(), None).unwrap();
    let mut instructions = vec![0; starts.0.len() + 1];
    for (row, of_whole) in found.rows.iter().zip(&whole.rows) {
        assert_eq!((&row.name, &row.on), (&of_whole.name, &of_whole.on));
        for (slices, on) in row.slices.iter().zip(&row.on) {
            let sum = |of: &dyn Fn(&ServiceSlice) -> u64| slices.iter().map(of).sum::<u64>();
            let of_dispatch = on.dispatch.map_or([0; 6], |of| {
                let (latency, bandwidth) = (of.front_end_latency, of.front_end_bandwidth);
                [of.retiring, latency, bandwidth, of.bad_speculation, of.memory, of.core]
            });
            let dispatch = std::array::from_fn(|at| sum(&|slice| slice.dispatch[at]));
            assert_eq!(dispatch, of_dispatch, "{}", row.name);
            let of = on.graduation;
            for (at, whole) in [of.busy, of.data, of.instruction, of.pipeline].iter().enumerate() {
                let sum = sum(&|slice| slice.graduation[at]);
                // Without a core, thousandths of cycles are rounded in each stretch.
                let near = if on.dispatch.is_some() { 0 } else { 100 + whole / 1_000_000 };
                assert!(sum.abs_diff(*whole) <= near, "{}: {sum} of {whole}", row.name);
            }
            let of_slices: u64 = slices.iter().map(|slice| slice.instructions).sum();
            assert_eq!(of_slices, row.instructions, "{}", row.name);
            assert!(slices.is_sorted_by(|a, b| a.slice < b.slice), "{}", row.name);
        }
        for ServiceSlice { slice, instructions: ran, .. } in &row.slices[0] {
            instructions[*slice as usize] += ran;
        }
    }
    let ends = starts.0.iter().chain([&table.instructions]);
    let begins = [0].iter().chain(&starts.0);
    let expected: Vec<u64> = ends.zip(begins).map(|(end, begin)| end - begin).collect();
    assert_eq!(instructions, expected);
    assert!(whole.rows.iter().flat_map(|row| &row.slices).all(|slices| slices.len() <= 1));
}

#[test]
fn visits_and_interrupts_in_slices_add_up_to_the_systems_share() {
    let (read, tick) = (at("__x64_sys_read"), at("asm_sysvec_apic_timer_interrupt"));
    let mut run = ExampleRun::new();
    for round in 0..400 {
        run.user(300 + round % 90).enter_read().plain(read, 20 + round % 60);
        if round % 5 == 0 {
            run.iret(tick, 5).plain(read + 0x40, 3);
        }
        run.leave_read();
    }
    run.user(1);
    let (attributed, _, timeline) = run.observed();
    let (_, binding) = kernel();
    let header = RecordingHeader::default();
    let table = ServiceTable::new(&header, &attributed, binding.blind.clone(), &[]);
    let share = OsShare::new(&table);
    let distribution = |counts: &BTreeMap<u32, u64>| {
        let last = counts.keys().next_back().map_or(0, |last| last + 1);
        (0..last).map(|power| counts.get(&power).copied().unwrap_or(0)).collect::<Vec<u64>>()
    };
    assert!(timeline.interrupts.len() > 2, "{:?}", timeline.interrupts);
    let mut interrupts = BegunInterrupts::default();
    timeline.interrupts.iter().for_each(|(_, of_slice)| interrupts += of_slice.clone());
    assert_eq!((interrupts.count, share.interrupts.count), (80, 80));
    assert_eq!(distribution(&interrupts.between), share.interrupts.distribution.0);
    for visits in &share.visits {
        let service = (timeline.services.iter())
            .find(|service| (service.kind, &service.name) == (visits.kind, &visits.name))
            .unwrap();
        let mut lengths = BTreeMap::new();
        for (power, calls) in service.ended.iter().flat_map(|(_, ended)| &ended.lengths) {
            *lengths.entry(*power).or_default() += calls;
        }
        assert_eq!(distribution(&lengths), visits.lengths.distribution.0, "{}", visits.name);
        assert!(service.ended.len() > 2, "{}", visits.name);
    }
}
