//! Reads a recording back while it is being written: proof that it can be read, and how far it has
//! come.
//!
//! Takes the path of a `trace.klt` that another process writes or will write; gives the
//! instructions so far, and at the end the totals or the first thing that is wrong. Never writes.

use anyhow::{Context, Result, anyhow};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(50);

pub struct Follower {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<Result<Followed>>>,
}

/// A recording that was read to its end.
#[derive(Debug)]
pub struct Followed {
    pub totals: trace::RecordingTotals,
    /// How long the recording lasts by the guest's clock.
    pub guest_time: Duration,
}

#[derive(Default)]
struct Shared {
    instructions: AtomicU64,
    /// The writer has ended: the end of the file is the end.
    ended: AtomicBool,
    /// Nobody wants the result.
    abandoned: AtomicBool,
}

impl Follower {
    pub fn start(path: PathBuf) -> Follower {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        Follower { shared, reader: Some(std::thread::spawn(move || follow(&path, &theirs))) }
    }

    pub fn instructions(&self) -> u64 {
        self.shared.instructions.load(Ordering::Relaxed)
    }

    /// To be called when the writer has ended.
    ///
    /// # Errors
    /// The recording has no clean end, or breaks a rule of the format.
    pub fn finish(mut self) -> Result<Followed> {
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
            // Its result is not wanted; its file may be about to be removed.
            let _ = reader.join();
        }
    }
}

fn follow(path: &PathBuf, shared: &Shared) -> Result<Followed> {
    let growing = Growing { file: None, path, shared };
    let mut reader = trace::RecordingReader::new(growing)?;
    let (mut totals, mut ticks) = (None, 0);
    while let Some(chunk) = reader.next_chunk()? {
        match chunk {
            trace::Chunk::End(end) => totals = Some(end),
            trace::Chunk::Stream(words) => ticks += ticked(&words),
            trace::Chunk::Translations(_) | trace::Chunk::Tasks(_) => {}
        }
        shared.instructions.store(reader.totals_so_far().instructions(), Ordering::Relaxed);
    }
    let totals: trace::RecordingTotals = totals.context("no clean end")?;
    // An instruction takes a nanosecond of the guest's clock, which is read a little before the
    // recording ends, or never.
    let guest_time = Duration::from_nanos(totals.instructions().max(ticks));
    Ok(Followed { totals, guest_time })
}

/// Nanoseconds by which the guest's clock went on.
fn ticked(words: &[u32]) -> u64 {
    let ticks = |event| match event {
        trace::StreamEvent::Clock(ticks) => u64::from(ticks),
        _ => 0,
    };
    trace::events(words).map(ticks).sum()
}

/// A file whose end is waited for. It need not exist at first.
struct Growing<'a> {
    file: Option<File>,
    path: &'a PathBuf,
    shared: &'a Shared,
}

impl Read for Growing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            if self.shared.abandoned.load(Ordering::Acquire) {
                return Err(std::io::Error::other("abandoned"));
            }
            // Asked before reading: what was written before the writer ended is then seen.
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
        let header =
            trace::RecordingHeader { workload: "w".into(), ..trace::RecordingHeader::default() };
        let mut writer = trace::RecordingWriter::new(Vec::new(), &header).unwrap();
        let translation = trace::Translation {
            id: trace::TranslationId(0),
            addr: trace::RunAddr(0xffff_ffff_8100_0000),
            lengths: vec![1, 1].into(),
            code: vec![0x90, 0x90].into(),
        };
        writer.translations(&[translation]).unwrap();
        let mut words = Vec::new();
        for _ in 0..5 {
            trace::StreamEvent::Executed(trace::TranslationId(0)).append_to(&mut words);
        }
        // Halted for most of the time between two readings of the clock.
        for ticks in [0, 4000] {
            trace::StreamEvent::Clock(ticks).append_to(&mut words);
        }
        writer.stream(&words).unwrap();
        writer.end().unwrap().0
    }

    #[test]
    fn a_file_that_comes_in_pieces_is_read_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.klt");
        let follower = Follower::start(path.clone());
        let bytes = recording();
        let mut file = File::create(&path).unwrap();
        for piece in bytes.chunks(40) {
            file.write_all(piece).unwrap();
            std::thread::yield_now();
        }
        let Followed { totals, guest_time } = follower.finish().unwrap();
        assert_eq!((totals.kernel_instructions, guest_time), (10, Duration::from_nanos(4000)));
    }

    #[test]
    fn a_recording_without_its_end_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.klt");
        let bytes = recording();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(Follower::start(path).finish().is_err());
        assert!(Follower::start(directory.path().join("none")).finish().is_err());
    }

    #[test]
    fn it_can_be_dropped_while_it_waits() {
        let directory = tempfile::tempdir().unwrap();
        drop(Follower::start(directory.path().join("none")));
    }
}
