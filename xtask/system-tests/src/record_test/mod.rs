//! `cargo xtask record-test TREE`: tests whether a recording is exactly what ran, whether it can be
//! repeated, and whether a failed recording is reported.
//!
//! The test boots the tree's kernel with a program that does, between the marks, what is hard to
//! record. The program counts its instructions with the guest's own clock. Prints one line for each
//! test.

mod cpus;
mod known;
mod locks;
mod os_core;
mod sharing;

use anyhow::{Context, Result, bail, ensure};
use execution::walk::chunks;
use guest::{self, Boot, GuestClock, GuestContents, GuestKernel, GuestOutcome, QemuPlugin};
use lab::build_plugin;
use lab::plugin::PluginArguments;
use lab::score::TestScore;
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use trace::{
    Chunk, PageKind, ReadError, RecordingHeader, RecordingReader, RecordingTotals, RunAddr,
    StreamEvent, Translation, TranslationId, events,
};

const PROGRAM: &str = include_str!("counted.c");
const SEED: u64 = 5;
/// Numbers of repetitions in `counted.c`.
const FORKS: u64 = 20;
const REPEATS: u64 = 50;
const PATCHED_CALLS: u64 = 30;
const ALIAS_CALLS: u64 = 40;

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn record_test(tree: &Path) -> Result<()> {
    let kernel = GuestKernel::open(tree, None)?;
    let directory = tempfile::tempdir().context("making a temporary directory")?;
    let machine = TestedMachine {
        plugin: build_plugin()?,
        program: lab::bare::compile("counted.c", PROGRAM)?,
        pinned: lab::bare::compile("pinned.c", cpus::PROGRAM)?,
        known: lab::bare::compile("known.c", known::PROGRAM)?,
        directory: directory.path().into(),
        kernel,
    };
    let mut score = TestScore::default();
    score.count("every instruction is counted", machine.every_instruction());
    score.count("a second recording is equal", machine.the_same_again());
    score.count("the events of the program are in the recording", machine.what_happened());
    score.count("every data access is recorded", machine.every_access());
    for cpus in [2, 4] {
        score.count(
            &format!("of {cpus} CPUs, each execution is recorded on its CPU"),
            cpus::each_execution_has_its_cpu(&machine, cpus),
        );
        score.count(
            &format!("of {cpus} CPUs, every access to a shared word is recorded on its CPU"),
            cpus::accesses_have_their_cpu(&machine, cpus),
        );
        score.count(
            &format!("of {cpus} CPUs, the counters in one line are named, with their exact counts"),
            sharing::counters_are_named(&machine, cpus),
        );
        score.count(
            &format!("of {cpus} CPUs, every run of a lock function is counted, with its lock"),
            locks::are_counted(&machine, cpus),
        );
        score.count(
            &format!("of {cpus} CPUs, a core for the operating system runs what the policy moves"),
            os_core::agrees(&machine, &machine.out(&format!("cpus-{cpus}.rec"))),
        );
    }
    score.count(
        "of 2 CPUs in short turns, each execution is on its CPU, and each turn ends in time",
        cpus::short_turns_are_kept(&machine, 2),
    );
    score.count(
        "of 4 CPUs side by side, known programs share what they say, as often as in a replay",
        known::programs_share_what_they_say(&machine),
    );
    score.count("recording does not change the guest", machine.guest_unchanged());
    score.count("the recording is marked as incomplete if the guest ends early", machine.cut_off());
    score.count("the recording is marked as incomplete if the workload fails", machine.failed());
    score.count("nothing is recorded without a mark", machine.unmarked());
    score.count("a full disk is reported, and stops the guest", machine.full_disk());
    score.count("wrong arguments are refused", machine.wrong_arguments());
    score.finish("recordings are not exact")
}

struct TestedMachine {
    kernel: GuestKernel,
    plugin: PathBuf,
    /// The compiled `counted.c`.
    program: Vec<u8>,
    /// The compiled `pinned.c`.
    pinned: Vec<u8>,
    /// The compiled `known.c`.
    known: Vec<u8>,
    directory: PathBuf,
}

impl TestedMachine {
    /// Boots and runs the program in one of its modes. The plugin writes to `out`.
    fn boot(&self, how: &str, out: Option<&Path>, more: &[(&str, &str)]) -> Result<GuestOutcome> {
        let end = if how == "unended" { "reboot -f" } else { "" };
        let mut contents = GuestContents::of_script(
            &format!("sleep 5\n/kernlane/counted {how}\n{end}\n"),
            Vec::new(),
        );
        contents.file("/kernlane/counted", 0o755, self.program.as_slice());
        let plugin = out.map(|out| self.arguments(out, more)).transpose()?;
        guest::run(&self.kernel.boot_image, &contents, |boot: &mut Boot| {
            boot.clock = GuestClock::Instructions { seed: SEED };
            boot.plugin = plugin;
        })
    }

    fn arguments(&self, out: &Path, more: &[(&str, &str)]) -> Result<QemuPlugin> {
        let task = self.kernel.task_facts()?;
        let set_comm = task.set_comm.context("the kernel has no __set_task_comm")?;
        let arguments = PluginArguments::new(&self.kernel, "counted", out)?
            .with("seed", SEED)
            .with("set_comm", format!("{:#x}", set_comm.0))
            .with("clock", "on");
        let arguments = more.iter().fold(arguments, |all, (name, value)| all.with(name, value));
        Ok(arguments.plugin(self.plugin.clone()))
    }

    fn out(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Compares the plugin's own audit and the guest's count, which shares nothing with either.
    fn every_instruction(&self) -> Result<()> {
        let out = self.out("verified");
        let outcome = self.boot("whole", Some(&out), &[("verify", "on")])?;
        let printed = |what: &str| {
            number_before(&outcome.qemu, what)
                .with_context(|| format!("no {what:?} in: {}", outcome.qemu))
        };
        ensure!(outcome.qemu.contains(", difference 0\n"), "{}", outcome.qemu);
        ensure!(printed(" with a wrong count")? == 0, "{}", outcome.qemu);
        ensure!(
            printed(" kernel and ")? == 0,
            "the kernel ran at other addresses: {}",
            outcome.qemu
        );
        // The second mapping of the page is recorded at the address of the first one. The audit
        // reports that.
        ensure!(printed(" user executions at another address")? >= ALIAS_CALLS, "{}", outcome.qemu);

        let recording = WholeRecording::read(&out)?;
        let retired: u64 = outcome.output.trim().parse().context("the program's count")?;
        let begun = recording.totals.instructions() + printed(" repetitions folded")?;
        // An instruction that raised an exception was begun, but not retired. Most of these leave a
        // translation block midway; the others are the last instruction of a translation block. A
        // few instructions lie between the clock's readings and the marks.
        let exceptions = begun.saturating_sub(retired);
        let most = 2 * recording.totals.left + 100;
        ensure!(
            exceptions > 0 && exceptions <= most,
            "{begun} begun, {retired} retired by the guest's clock, {} left midway",
            recording.totals.left
        );
        Ok(())
    }

    fn the_same_again(&self) -> Result<()> {
        let (first, second) = (self.out("first"), self.out("second"));
        self.boot("whole", Some(&first), &[])?;
        self.boot("whole", Some(&second), &[])?;
        let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
        ensure!(read(&first)? == read(&second)?, "two recordings differ");
        let counted = |path: &Path| {
            WholeRecording::read(path)
                .map(|it| (it.totals.kernel_instructions, it.totals.user_instructions))
        };
        let (plain, verified) = (counted(&first)?, counted(&self.out("verified"))?);
        ensure!(plain == verified, "the audit changed {plain:?} to {verified:?} instructions");
        Ok(())
    }

    fn what_happened(&self) -> Result<()> {
        let recording = WholeRecording::read(&self.out("first"))?;
        let header = &recording.header;
        ensure!(
            header.build_id == self.kernel.build_id.0
                && header.workload == "counted"
                && header.seed == SEED,
            "the header is {header:?}"
        );
        for name in ["counted", "renamed"] {
            ensure!(recording.names.contains(name), "no task {name:?} among {:?}", recording.names);
        }
        let switches = recording.count(|event| matches!(event, StreamEvent::Task(_)));
        ensure!(switches >= 2 * FORKS, "{switches} task switches for {FORKS} forks");
        ensure!(
            matches!(recording.events.first(), Some(StreamEvent::Task(_))),
            "the first task is not known"
        );
        let marks = recording.count(|event| *event == StreamEvent::Marker(7));
        ensure!(marks == 1, "mark 7 is there {marks} times");

        // mov $0x7e57c0de,%eax; rep stosb
        let repeated = recording.executions(&[0xb8, 0xde, 0xc0, 0x57, 0x7e, 0xf3, 0xaa]);
        ensure!(
            repeated == REPEATS,
            "a string instruction was reached {repeated} times, not {REPEATS}"
        );
        for value in [1, 2] {
            let calls = recording.executions(&[0xb8, value, 0xde, 0xc0, 0x7e, 0xc3]);
            ensure!(
                calls == PATCHED_CALLS,
                "version {value} of the patched code ran {calls} times, not {PATCHED_CALLS}"
            );
        }
        let places: BTreeSet<RunAddr> =
            recording.with_code(&[0xde, 0xc0, 0x7e, 0xc3]).map(|t| t.addr).collect();
        ensure!(places.len() == 2, "the patched code and the shared page are at {places:?}");
        let aliased = recording.executions(&[0xb8, 3, 0xde, 0xc0, 0x7e, 0xc3]);
        ensure!(
            aliased == 2 * ALIAS_CALLS,
            "the shared page ran {aliased} times, not {}",
            2 * ALIAS_CALLS
        );
        Ok(())
    }

    /// Checks what the program accesses, where, and that recording accesses changes nothing.
    fn every_access(&self) -> Result<()> {
        let (first, second) = (self.out("data"), self.out("data-again"));
        let page_offset_base = self.kernel.task_facts()?.page_offset_base;
        let page_offset_base =
            format!("{:#x}", page_offset_base.context("the kernel has no page_offset_base")?.0);
        let data = [("data", "on"), ("page_offset_base", page_offset_base.as_str())];
        self.boot("whole", Some(&first), &data)?;
        self.boot("whole", Some(&second), &data)?;
        ensure!(
            std::fs::read(&first)? == std::fs::read(&second)?,
            "two recordings with data differ"
        );
        let (with, without) =
            (WholeRecording::read(&first)?, WholeRecording::read(&self.out("first"))?);
        let counted =
            |it: &WholeRecording| (it.totals.kernel_instructions, it.totals.user_instructions);
        ensure!(counted(&with) == counted(&without), "recording data changed the instructions");

        let stored = string_stores(&first)?;
        ensure!(
            stored.len() as u64 == REPEATS * 1000,
            "the string instruction stored {} bytes",
            stored.len()
        );
        for bytes in stored.chunks(1000) {
            ensure!(
                bytes.windows(2).all(|pair| pair[1] == pair[0] + 1),
                "they are not one behind the other"
            );
        }
        let pages: BTreeSet<u64> = stored.iter().map(|addr| addr >> 12).collect();
        ensure!(pages.len() == 2, "they lie in {} pages", pages.len());
        let kinds = mapped(&first, &pages)?;
        ensure!(
            kinds.iter().all(|kind| *kind == PageKind::Small) && kinds.len() >= 2,
            "their pages are {kinds:?}"
        );
        Ok(())
    }

    fn guest_unchanged(&self) -> Result<()> {
        let without = self.boot("whole", None, &[])?;
        let with = self.boot("whole", Some(&self.out("again")), &[])?;
        ensure!(
            without.output == with.output,
            "the guest counted {} without the plugin, {} with it",
            without.output.trim(),
            with.output.trim()
        );
        Ok(())
    }

    fn cut_off(&self) -> Result<()> {
        let outcome = self.boot("unended", Some(&self.out("unended")), &[])?;
        ensure!(outcome.qemu.contains("has not executed marker 2"), "{}", outcome.qemu);
        let (totals, error) = read_as_far_as_good(&self.out("unended"))?;
        ensure!(matches!(error, Some(ReadError::CutOff { .. })), "{error:?}");
        ensure!(totals.instructions() > 100_000, "{totals:?}");
        Ok(())
    }

    fn failed(&self) -> Result<()> {
        let outcome = self.boot("failed", Some(&self.out("failed")), &[])?;
        ensure!(outcome.qemu.contains("the workload says that it failed"), "{}", outcome.qemu);
        let (_, error) = read_as_far_as_good(&self.out("failed"))?;
        ensure!(matches!(error, Some(ReadError::CutOff { .. })), "{error:?}");
        Ok(())
    }

    fn unmarked(&self) -> Result<()> {
        let out = self.out("unmarked");
        let plugin = self.arguments(&out, &[])?;
        let outcome = guest::run(
            &self.kernel.boot_image,
            &GuestContents::of_script("true", Vec::new()),
            |boot| {
                boot.clock = GuestClock::Instructions { seed: SEED };
                boot.plugin = Some(plugin);
            },
        )?;
        ensure!(outcome.qemu.contains("has not executed marker 1"), "{}", outcome.qemu);
        let (totals, error) = read_as_far_as_good(&out)?;
        ensure!(matches!(error, Some(ReadError::CutOff { chunk: 1, .. })), "{error:?}");
        ensure!(totals.instructions() == 0, "{totals:?}");
        Ok(())
    }

    fn full_disk(&self) -> Result<()> {
        let stopped = self.boot("whole", Some(Path::new("/dev/full")), &[])?;
        ensure!(stopped.qemu.contains("No space left on device"), "{}", stopped.qemu);
        ensure!(stopped.qemu.contains("stopping the guest"), "{}", stopped.qemu);
        ensure!(stopped.end == guest::GuestEnd::Stopped, "the guest ended with {:?}", stopped.end);
        let ran_on =
            self.boot("whole", Some(Path::new("/dev/full")), &[("on_error", "continue")])?;
        ensure!(ran_on.qemu.contains("No space left on device"), "{}", ran_on.qemu);
        ensure!(ran_on.end == guest::GuestEnd::Exited(0), "the guest ended with {:?}", ran_on.end);
        Ok(())
    }

    fn wrong_arguments(&self) -> Result<()> {
        match self.boot("whole", Some(&self.out("refused")), &[("colour", "blue")]) {
            Ok(outcome) => bail!("QEMU ran: {}", outcome.qemu),
            Err(error) => {
                let message = format!("{error:#}");
                ensure!(message.contains("there is no argument \"colour\""), "{message}");
                Ok(())
            }
        }
    }
}

/// A complete recording that is small enough to be kept in memory.
struct WholeRecording {
    header: RecordingHeader,
    translations: Vec<Translation>,
    names: BTreeSet<String>,
    events: Vec<StreamEvent>,
    totals: RecordingTotals,
}

impl WholeRecording {
    fn read(path: &Path) -> Result<WholeRecording> {
        let mut reader = RecordingReader::new(File::open(path)?)?;
        let mut recording = WholeRecording {
            header: reader.header().clone(),
            translations: Vec::new(),
            names: BTreeSet::new(),
            events: Vec::new(),
            totals: RecordingTotals::default(),
        };
        let read = chunks(&mut reader, |chunk, _| {
            match chunk {
                Chunk::Translations(translations) => recording.translations.extend(translations),
                Chunk::Tasks(tasks) => {
                    recording.names.extend(tasks.iter().map(|task| task.name().into_owned()))
                }
                Chunk::Modules(_) => {}
                Chunk::Stream(words) => recording.events.extend(events(&words)),
                Chunk::End(totals) => recording.totals = totals,
            }
            anyhow::Ok(ControlFlow::Continue(()))
        })?;
        read?;
        Ok(recording)
    }

    fn count(&self, wanted: impl Fn(&StreamEvent) -> bool) -> u64 {
        self.events.iter().filter(|event| wanted(event)).count() as u64
    }

    /// Translation blocks whose code ends with these bytes.
    fn with_code<'a>(&'a self, end: &'a [u8]) -> impl Iterator<Item = &'a Translation> {
        self.translations.iter().filter(move |translation| translation.code.ends_with(end))
    }

    /// How often translation blocks with this end were executed to their end.
    fn executions(&self, end: &[u8]) -> u64 {
        let ids: BTreeSet<TranslationId> =
            self.with_code(end).map(|translation| translation.id).collect();
        self.count(|event| matches!(event, StreamEvent::Executed(id) if ids.contains(id)))
    }
}

/// The addresses at which the program's string instruction stored:
/// `mov $0x7e57c0de,%eax; rep stosb`, or a translation block that only continues it.
fn string_stores(path: &Path) -> Result<Vec<u64>> {
    let recording = WholeRecording::read(path)?;
    let begins = recording.with_code(&[0xb8, 0xde, 0xc0, 0x57, 0x7e, 0xf3, 0xaa]);
    let places: BTreeSet<u64> = begins.map(|it| it.addr.0 + it.code.len() as u64 - 2).collect();
    let ids: BTreeSet<TranslationId> = recording
        .with_code(&[0xf3, 0xaa])
        .filter(|it| places.contains(&(it.addr.0 + it.code.len() as u64 - 2)))
        .map(|it| it.id)
        .collect();
    let mut reader = RecordingReader::new(File::open(path)?)?;
    let mut stored = Vec::new();
    let read = chunks(&mut reader, |chunk, state| {
        let Chunk::Stream(words) = chunk else { return Ok(ControlFlow::Continue(())) };
        let (accesses, patterns) = state.accesses.context("no data accesses")?;
        let mut walk = accesses.walk(patterns);
        for event in events(&words) {
            let (sites, first) = walk.event(event);
            if let StreamEvent::Executed(id) | StreamEvent::Left { translation: id, .. } = event
                && ids.contains(&id)
            {
                let addresses = accesses.addresses[first..].iter();
                stored.extend(
                    sites
                        .iter()
                        .zip(addresses)
                        .filter(|(site, _)| site.is_store() && site.size() == 1)
                        .map(|(_, addr)| *addr),
                );
            }
        }
        anyhow::Ok(ControlFlow::Continue(()))
    })?;
    read?;
    Ok(stored)
}

/// What the recording says about these pages.
fn mapped(path: &Path, pages: &BTreeSet<u64>) -> Result<Vec<PageKind>> {
    let mut reader = RecordingReader::new(File::open(path)?)?;
    let mut kinds = Vec::new();
    let read = chunks(&mut reader, |chunk, state| {
        if let (Chunk::Stream(_), Some((accesses, _))) = (chunk, state.accesses) {
            let told =
                accesses.mappings.iter().filter(|(_, mapping)| pages.contains(&mapping.page));
            kinds.extend(told.map(|(_, mapping)| mapping.kind));
        }
        anyhow::Ok(ControlFlow::Continue(()))
    })?;
    read?;
    Ok(kinds)
}

/// The totals of an incomplete recording, and its mistake.
fn read_as_far_as_good(path: &Path) -> Result<(RecordingTotals, Option<ReadError>)> {
    let mut reader = RecordingReader::new(File::open(path)?)?;
    let read = chunks(&mut reader, |_, _| anyhow::Ok(ControlFlow::Continue(())))?;
    Ok((reader.totals_so_far(), read.err()))
}

/// The number that stands directly in front of a text.
fn number_before(text: &str, what: &str) -> Option<u64> {
    let (before, _) = text.split_once(what)?;
    let digits = before.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    before[digits..].parse().ok()
}
