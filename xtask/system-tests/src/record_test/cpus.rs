//! Several CPUs: each execution is recorded on the CPU that made it.
//!
//! The guest's program is pinned: a process on each CPU executes a mark with the CPU's number.

use super::{SEED, TestedMachine, WholeRecording, number_before};
use anyhow::{Context, Result, ensure};
use execution::code::TranslatedCode;
use execution::data::DataWish;
use execution::walk::{Observer, Piece, Wants, walk};
use guest::{self, Boot, GuestClock, GuestContents, GuestOutcome};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use trace::{CpuId, RecordingHeader, RecordingReader, StreamEvent, Translation};

pub(super) const PROGRAM: &str = include_str!("pinned.c");
/// As in `pinned.c`.
pub(super) const ROUNDS: u64 = 200;
const MARKS: u64 = 5 * ROUNDS;
/// The recording that `accesses_have_their_cpu` leaves.
pub(super) const WITH_DATA: &str = "cpus-data";
const FIRST_MARK: u32 = 16;
/// The longest turn of the recording with short turns, in instructions.
const TURN: u32 = 5000;

/// Records a guest with this number of CPUs, twice, and with the plugin's own audit.
pub(super) fn each_execution_has_its_cpu(machine: &TestedMachine, cpus: u8) -> Result<()> {
    let paths = ["cpus", "cpus-again", "cpus-verified"].map(|name| machine.out(name));
    for path in &paths[..2] {
        boot(machine, cpus, path, &[])?;
    }
    let outcome = boot(machine, cpus, &paths[2], &[("verify", "on")])?;
    are_equal(&paths[0], &paths[1])?;

    ensure!(outcome.qemu.contains(", difference 0\n"), "{}", outcome.qemu);
    for (wrong, what) in [
        (" with a wrong count", "executions have a wrong count"),
        (" kernel and ", "executions of the kernel are at other addresses"),
    ] {
        let number = number_before(&outcome.qemu, wrong).with_context(|| outcome.qemu.clone())?;
        ensure!(number == 0, "{number} {what}: {}", outcome.qemu);
    }
    let (recording, verified) =
        (WholeRecording::read(&paths[0])?, WholeRecording::read(&paths[2])?);
    let counted =
        |it: &WholeRecording| (it.totals.kernel_instructions, it.totals.user_instructions);
    ensure!(counted(&recording) == counted(&verified), "the audit changed the instructions");
    ensure!(recording.header.cpus.get() == cpus, "the header has {:?} CPUs", recording.header.cpus);
    marks_are_on_their_cpus(&recording, cpus, MARKS)
}

fn are_equal(recording: &Path, again: &Path) -> Result<()> {
    let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
    ensure!(read(recording)? == read(again)?, "two recordings differ");
    Ok(())
}

/// Records short turns, twice. Each process first counts and waits for nobody. While all of them
/// count, no CPU is halted, so every turn must end in time.
pub(super) fn short_turns_are_kept(machine: &TestedMachine, cpus: u8) -> Result<()> {
    let paths = ["short-turns", "short-turns-again"].map(|name| machine.out(name));
    for path in &paths {
        boot_pinned(machine, cpus, "count", Some(TURN), path, &[])?;
    }
    are_equal(&paths[0], &paths[1])?;
    let recording = WholeRecording::read(&paths[0])?;
    marks_are_on_their_cpus(&recording, cpus, MARKS + 2)?;

    let turns = turns_while_all_count(&recording, cpus)?;
    let mean = turns.iter().sum::<u64>() / (turns.len() as u64).max(1);
    let turn = u64::from(TURN);
    ensure!(turns.len() > 100, "there are {} turns: the test shows nothing", turns.len());
    ensure!((turn / 4..=turn).contains(&mean), "a turn has {mean} instructions on the average");
    // QEMU gives what division by the number of CPUs leaves to the first CPU.
    let longest = turns.iter().max().copied().unwrap_or_default();
    ensure!(longest < turn + u64::from(cpus), "a turn has {longest} instructions, not {turn}");
    Ok(())
}

/// The instructions of each whole turn between the first mark of the last process to start and the
/// second mark of the first process to count to its end.
fn turns_while_all_count(recording: &WholeRecording, cpus: u8) -> Result<Vec<u64>> {
    let instructions: Vec<u64> =
        recording.translations.iter().map(|it| it.lengths.len() as u64).collect();
    let mut marks = vec![0; usize::from(cpus)];
    let (mut turns, mut turn) = (Vec::new(), None);
    for event in &recording.events {
        let ran = match event {
            StreamEvent::Marker(mark) => {
                let of = mark.checked_sub(FIRST_MARK).and_then(|of| marks.get_mut(of as usize));
                *of.context("a mark of nobody")? += 1;
                continue;
            }
            StreamEvent::Cpu(_) => {
                let all_count = marks.iter().all(|&marks| marks == 1);
                turns.extend(turn.filter(|_| all_count));
                turn = all_count.then_some(0);
                continue;
            }
            event => match event.execution() {
                Some((_, Some(reached))) => u64::from(reached),
                Some((id, None)) => instructions[id.0 as usize],
                None => continue,
            },
        };
        turn = turn.map(|so_far| so_far + ran);
    }
    Ok(turns)
}

/// Every mark of a CPU's process is on that CPU, and none is missing.
fn marks_are_on_their_cpus(recording: &WholeRecording, cpus: u8, expected: u64) -> Result<()> {
    let mut marks = vec![0; usize::from(cpus)];
    let (mut cpu, mut turns) = (CpuId::default(), 0);
    for event in &recording.events {
        match event {
            StreamEvent::Cpu(next) => (cpu, turns) = (*next, turns + 1),
            StreamEvent::Marker(mark) => {
                let of = mark.checked_sub(FIRST_MARK).context("a mark of nobody")?;
                ensure!(of == u32::from(cpu.0), "a mark of CPU {of} is on CPU {}", cpu.0);
                marks[usize::from(cpu.0)] += 1;
            }
            _ => {}
        }
    }
    let all_made = marks.iter().all(|&marks| marks == expected);
    ensure!(all_made, "marks by CPU: {marks:?}, not {expected}");
    let least = u64::from(cpus) * ROUNDS;
    ensure!(turns >= least, "the CPUs took {turns} turns: the test shows nothing below {least}");
    Ok(())
}

fn boot(
    machine: &TestedMachine,
    cpus: u8,
    out: &Path,
    more: &[(&str, &str)],
) -> Result<GuestOutcome> {
    boot_pinned(machine, cpus, "", None, out, more)
}

/// `how`: the second argument of `pinned`. `turn`: the longest turn.
fn boot_pinned(
    machine: &TestedMachine,
    cpus: u8,
    how: &str,
    turn: Option<u32>,
    out: &Path,
    more: &[(&str, &str)],
) -> Result<GuestOutcome> {
    let program = ("pinned", machine.pinned.as_slice());
    boot_program(machine, cpus, program, &format!("{cpus} {how}"), turn, out, more)
}

/// Records a program with these arguments on several CPUs. `turn`: the longest turn.
pub(super) fn boot_program(
    machine: &TestedMachine,
    cpus: u8,
    (name, program): (&str, &[u8]),
    arguments: &str,
    turn: Option<u32>,
    out: &Path,
    more: &[(&str, &str)],
) -> Result<GuestOutcome> {
    let script = format!("sleep 5\n/kernlane/{name} {arguments}\n");
    let mut contents = GuestContents::of_script(&script, Vec::new());
    contents.file(&format!("/kernlane/{name}"), 0o755, program);
    let place = format!("{:#x}", machine.kernel.per_cpu_offset()?.0);
    let number = cpus.to_string();
    let more = [&[("cpus", number.as_str()), ("per_cpu_offset", &place)], more].concat();
    let plugin = machine.arguments(out, &more)?;
    let outcome = guest::run(&machine.kernel.boot_image, &contents, |boot: &mut Boot| {
        boot.clock = GuestClock::Instructions { seed: SEED };
        boot.cpus = cpus.into();
        boot.turn = turn;
        boot.plugin = Some(plugin);
    })?;
    ensure!(outcome.end == guest::GuestEnd::Exited(0), "{:?}: {}", outcome.end, outcome.qemu);
    Ok(outcome)
}

/// Records data accesses, twice. The processes store a byte at the same addresses, and each has its
/// own pages there.
pub(super) fn accesses_have_their_cpu(machine: &TestedMachine, cpus: u8) -> Result<()> {
    let facts = machine.kernel.task_facts()?;
    let base = facts.page_offset_base.context("the kernel has no page_offset_base")?;
    let base = format!("{:#x}", base.0);
    let data = [("data", "on"), ("page_offset_base", base.as_str())];
    let paths = [WITH_DATA, "cpus-data-again"].map(|name| machine.out(name));
    for path in &paths {
        boot(machine, cpus, path, &data)?;
    }
    are_equal(&paths[0], &paths[1])?;
    let (with, without) =
        (WholeRecording::read(&paths[0])?, WholeRecording::read(&machine.out("cpus"))?);
    let counted =
        |it: &WholeRecording| (it.totals.kernel_instructions, it.totals.user_instructions);
    ensure!(counted(&with) == counted(&without), "recording data changed the instructions");
    marks_are_on_their_cpus(&with, cpus, MARKS)?;

    let stored = stored_bytes(&paths[0], cpus)?;
    let counts: Vec<usize> = stored.iter().map(Vec::len).collect();
    ensure!(counts.iter().all(|&count| count as u64 == ROUNDS), "bytes by CPU: {counts:?}");
    let mut places = BTreeMap::<u64, BTreeSet<u64>>::new();
    for &(addr, physical) in stored.iter().flatten() {
        places.entry(addr).or_default().insert(physical);
    }
    // In the last round, a process may get a page of one that has ended.
    places.pop_last();
    let apart = places.values().filter(|of_addr| of_addr.len() == usize::from(cpus)).count();
    ensure!(
        apart as u64 == ROUNDS - 1,
        "at {apart} of {} addresses, each CPU stores into a page of its own, not at {}",
        places.len(),
        ROUNDS - 1
    );
    Ok(())
}

/// By CPU: the virtual and physical addresses of single bytes that user code stores at the
/// beginning of a page.
fn stored_bytes(path: &Path, cpus: u8) -> Result<Vec<Vec<(u64, u64)>>> {
    let mut stored = StoredBytes { stored: vec![Vec::new(); usize::from(cpus)] };
    walk(RecordingReader::new(File::open(path)?)?, &mut stored)?;
    Ok(stored.stored)
}

/// The observer behind [`stored_bytes`].
struct StoredBytes {
    stored: Vec<Vec<(u64, u64)>>,
}

impl Observer for StoredBytes {
    fn begin(&mut self, _: &RecordingHeader, has_data: bool) -> Result<Wants> {
        ensure!(has_data, "no data accesses");
        Ok(Wants { data: Some(DataWish::EVERY_ACCESS), ..Wants::default() })
    }

    fn define(&mut self, _: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        Ok(())
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        let Some(data) = &piece.data else { return Ok(()) };
        for (execution, own) in data.executed() {
            if piece.codes[execution.translation.0 as usize].addr.is_kernel() {
                continue;
            }
            let bytes = own.iter().filter(|access| {
                access.is_store && access.size == 1 && access.physical.0 & 0xfff == 0
            });
            self.stored[usize::from(piece.cpu.0)]
                .extend(bytes.map(|access| (data.flow.virtual_address(access), access.physical.0)));
        }
        Ok(())
    }
}
