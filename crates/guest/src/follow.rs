//! Reads a recording while it is being written, to prove that it can be read and to show its
//! progress.
//!
//! Input: the path of a `trace.klt` that another process writes or will write. Output: the number
//! of instructions so far, and at the end the totals or the first mistake. This module never
//! writes.

use crate::kernel_branches::{BranchCode, BranchCounter, BranchForm, KernelBranches};
use crate::recorded_module::RecordedModule;
use anyhow::{Context, Result, anyhow};
use execution::walk::chunks;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(50);

pub(crate) struct Follower {
    shared: Arc<FollowerState>,
    reader: Option<JoinHandle<Result<Followed>>>,
}

/// A recording that was read to its end.
#[derive(Debug)]
pub(crate) struct Followed {
    pub totals: trace::RecordingTotals,
    /// How long the recording lasts by the guest's clock.
    pub guest_time: Duration,
    /// How often another CPU went on.
    pub turns: u64,
    /// How the kernel's branches were executed.
    pub branches: KernelBranches,
    /// Where the first branch of each form was executed.
    pub branch_places: BTreeMap<BranchForm, trace::RunAddr>,
    /// The modules that were loaded, each build once at each place.
    pub modules: BTreeSet<RecordedModule>,
}

#[derive(Default)]
struct FollowerState {
    instructions: AtomicU64,
    /// Whether the writer has ended, so that the end of the file is the end of the recording.
    ended: AtomicBool,
    /// Whether the result is no longer needed.
    abandoned: AtomicBool,
}

impl Follower {
    /// `branches`: what the vmlinux of the recorded kernel says.
    pub(crate) fn start(path: PathBuf, branches: BranchCode) -> Follower {
        let shared = Arc::new(FollowerState::default());
        let theirs = Arc::clone(&shared);
        Follower {
            shared,
            reader: Some(std::thread::spawn(move || follow(&path, &theirs, branches))),
        }
    }

    pub(crate) fn instructions(&self) -> u64 {
        self.shared.instructions.load(Ordering::Relaxed)
    }

    /// Waits for the reader. Call this when the writer has ended.
    ///
    /// # Errors
    /// The recording has no proper end, or breaks a rule of the format.
    pub(crate) fn finish(mut self) -> Result<Followed> {
        self.shared.ended.store(true, Ordering::Release);
        let reader = self.reader.take().context("finished twice")?;
        reader
            .join()
            .map_err(|_| anyhow!("the thread that reads the recording back has panicked"))?
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Ordering::Release);
        self.shared.ended.store(true, Ordering::Release);
        if let Some(reader) = self.reader.take() {
            // The result is not needed. The file may be about to be removed.
            let _ = reader.join();
        }
    }
}

fn follow(path: &PathBuf, shared: &FollowerState, branches: BranchCode) -> Result<Followed> {
    let growing = GrowingFile { file: None, path, shared };
    let mut reader = trace::RecordingReader::new(growing)?;
    let (mut totals, mut ticks, mut turns) = (None, 0, 0);
    let mut branches = BranchCounter::new(branches);
    let mut modules = BTreeSet::new();
    let read = chunks(&mut reader, |chunk, state| {
        match chunk {
            trace::Chunk::End(end) => totals = Some(end),
            trace::Chunk::Stream(words) => {
                for event in trace::events(&words) {
                    match event {
                        trace::StreamEvent::Executed(id) => branches.executed(id),
                        // The nanoseconds that the guest's clock advanced.
                        trace::StreamEvent::Clock(advanced) => ticks += u64::from(advanced),
                        trace::StreamEvent::Cpu(_) => turns += 1,
                        _ => {}
                    }
                }
            }
            trace::Chunk::Translations(translations) => {
                translations.iter().try_for_each(|translation| branches.define(translation))?
            }
            trace::Chunk::Modules(changes) => modules.extend(loaded(&changes)),
            trace::Chunk::Tasks(_) => {}
        }
        shared.instructions.store(state.totals.instructions(), Ordering::Relaxed);
        anyhow::Ok(ControlFlow::Continue(()))
    })?;
    read?;
    let totals: trace::RecordingTotals = totals.context("no clean end")?;
    // An instruction takes a nanosecond of the guest's clock. The clock's last reading is a little
    // earlier than the end of the recording, or there is none.
    let guest_time = Duration::from_nanos(totals.instructions().max(ticks));
    Ok(Followed {
        totals,
        guest_time,
        turns,
        branches: branches.counts(),
        branch_places: branches.places(),
        modules,
    })
}

/// The modules that these changes load.
fn loaded(changes: &[trace::ModuleChange]) -> impl Iterator<Item = RecordedModule> {
    changes.iter().filter_map(|change| match change {
        trace::ModuleChange::Loaded(module) => Some(RecordedModule::new(module)),
        trace::ModuleChange::Unloaded(_) => None,
    })
}

/// A file that still grows. Reading it waits for more. At first the file may not exist.
struct GrowingFile<'a> {
    file: Option<File>,
    path: &'a PathBuf,
    shared: &'a FollowerState,
}

impl Read for GrowingFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            if self.shared.abandoned.load(Ordering::Acquire) {
                return Err(std::io::Error::other("abandoned"));
            }
            // The flag is read first. Reading the file then sees everything that the writer wrote
            // before it ended.
            let ended = self.shared.ended.load(Ordering::Acquire);
            if self.file.is_none() {
                match File::open(self.path) {
                    Ok(file) => self.file = Some(file),
                    Err(error) if ended => return Err(error),
                    Err(_) => {}
                }
            }
            if let Some(file) = &mut self.file {
                let read = file.read(buffer)?;
                if read > 0 || ended {
                    return Ok(read);
                }
            }
            std::thread::sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn recording() -> Vec<u8> {
        let header = trace::RecordingHeader {
            workload: "w".into(),
            cpus: trace::CpuCount::new(2).unwrap(),
            modules: true,
            ..trace::RecordingHeader::default()
        };
        let mut writer = trace::RecordingWriter::new(Vec::new(), &header).unwrap();
        let translation = trace::Translation {
            id: trace::TranslationId(0),
            addr: trace::RunAddr(0xffff_ffff_8100_0000),
            lengths: vec![1, 1].into(),
            code: vec![0x90, 0x90].into(),
        };
        let load = |id| {
            trace::ModuleChange::Loaded(trace::LoadedModule {
                id: trace::ModuleId(id),
                name: "veth".into(),
                build_id: "ca".into(),
                large_pages: false,
                sections: Vec::new(),
            })
        };
        let unload = trace::ModuleChange::Unloaded(trace::ModuleId(0));
        writer.modules(&[load(0), unload, load(1)]).unwrap();
        writer.translations(&[translation]).unwrap();
        let mut words = Vec::new();
        for _ in 0..5 {
            trace::StreamEvent::Executed(trace::TranslationId(0)).append_to(&mut words);
        }
        for cpu in [1, 0, 1] {
            trace::StreamEvent::Cpu(trace::CpuId(cpu)).append_to(&mut words);
        }
        // The guest halts for most of the time between two readings of the clock.
        for ticks in [0, 4000] {
            trace::StreamEvent::Clock(ticks).append_to(&mut words);
        }
        writer.stream(&words).unwrap();
        writer.end().unwrap().0
    }

    #[test]
    fn a_file_that_grows_in_pieces_is_read_completely() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.klt");
        let follower = Follower::start(path.clone(), BranchCode::default());
        let bytes = recording();
        let mut file = File::create(&path).unwrap();
        for piece in bytes.chunks(40) {
            file.write_all(piece).unwrap();
            std::thread::yield_now();
        }
        let Followed { totals, guest_time, turns, modules, .. } = follower.finish().unwrap();
        let modules: Vec<String> =
            modules.iter().map(|module| module.identity.to_string()).collect();
        assert_eq!(modules, ["veth (ca)"], "each build once");
        assert_eq!((totals.kernel_instructions, guest_time), (10, Duration::from_nanos(4000)));
        assert_eq!(turns, 3);
    }

    #[test]
    fn a_recording_without_its_end_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.klt");
        let bytes = recording();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(Follower::start(path, BranchCode::default()).finish().is_err());
        assert!(
            Follower::start(directory.path().join("none"), BranchCode::default()).finish().is_err()
        );
    }

    #[test]
    fn a_waiting_follower_can_be_dropped() {
        let directory = tempfile::tempdir().unwrap();
        drop(Follower::start(directory.path().join("none"), BranchCode::default()));
    }
}
