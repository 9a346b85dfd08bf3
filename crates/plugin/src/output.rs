//! Writes the recording to the disk. Batches go through a bounded queue to a thread that packs and
//! writes them. The use of memory is constant: when the thread is too slow, the guest waits. The
//! bytes of the recording do not depend on timing.
//!
//! Input: batches of records. Output: the file. This module never changes a record.

use crate::recorder::{Batch, BatchSink};
use std::fs::File;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use trace::{RecordingHeader, RecordingTotals, RecordingWriter, WriteError};

/// The length of the queue in batches. With the batch being filled and the one being written, they
/// take 1.5 MiB.
const QUEUE: usize = 4;

#[allow(
    clippy::large_enum_variant,
    reason = "few exist at once, and a batch holds its events elsewhere: boxing it would add an \
              allocation a batch and save nothing"
)]
enum WriterMessage {
    Batch(Batch),
    /// Write the clean end.
    End,
}

/// The recorder's end of the queue.
pub(crate) struct RecordingOutput {
    to_thread: SyncSender<WriterMessage>,
    /// Empty batches, to be filled again.
    emptied: Receiver<Batch>,
    thread: JoinHandle<Result<Option<RecordingTotals>, WriteError>>,
}

impl RecordingOutput {
    /// Begins a recording in `file`. `data`: the recording has data accesses. The thread calls
    /// `failed` once when writing fails.
    pub(crate) fn begin(
        file: File,
        header: RecordingHeader,
        data: bool,
        failed: impl FnOnce(&WriteError) + Send + 'static,
    ) -> std::io::Result<RecordingOutput> {
        let (to_thread, from_guest) = sync_channel(QUEUE);
        let (give_back, emptied) = sync_channel(QUEUE + 2);
        let thread =
            std::thread::Builder::new().name("kernlane-writer".into()).spawn(move || {
                let result = write(file, &header, data, &from_guest, &give_back);
                if let Err(error) = &result {
                    failed(error);
                }
                result
            })?;
        Ok(RecordingOutput { to_thread, emptied, thread })
    }

    /// Waits until everything is written. `clean`: with the clean end; otherwise the recording is
    /// cut off.
    pub(crate) fn finish(self, clean: bool) -> Result<Option<RecordingTotals>, WriteError> {
        if clean {
            // A thread that has failed receives nothing. Its error is the result below.
            let _ = self.to_thread.send(WriterMessage::End);
        }
        drop(self.to_thread);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(std::io::Error::other("the writing thread panicked").into()))
    }
}

impl BatchSink for RecordingOutput {
    fn send(&mut self, batch: Batch) -> Option<Batch> {
        self.to_thread.send(WriterMessage::Batch(batch)).ok()?;
        Some(self.emptied.try_recv().unwrap_or_default())
    }
}

/// The work of the thread: writes until the queue ends.
fn write(
    file: File,
    header: &RecordingHeader,
    data: bool,
    from_guest: &Receiver<WriterMessage>,
    give_back: &SyncSender<Batch>,
) -> Result<Option<RecordingTotals>, WriteError> {
    let mut writer = match data {
        true => RecordingWriter::with_data(file, header)?,
        false => RecordingWriter::new(file, header)?,
    };
    for message in from_guest {
        let WriterMessage::Batch(batch) = message else {
            return writer.end().map(|(_, totals)| Some(totals));
        };
        writer.tasks(&batch.tasks)?;
        let mut written = 0;
        for (before, change) in &batch.modules {
            writer.translations(batch.translations.get(written..*before).unwrap_or_default())?;
            writer.modules(std::slice::from_ref(change))?;
            written = *before;
        }
        writer.translations(batch.translations.get(written..).unwrap_or_default())?;
        match data {
            true => writer.stream_with_data(&batch.words, &batch.accesses)?,
            false => writer.stream(&batch.words)?,
        }
        match give_back.try_send(batch.cleared()) {
            // The recorder has ended and wants no batch back.
            Ok(()) | Err(TrySendError::Disconnected(_) | TrySendError::Full(_)) => {}
        }
    }
    writer.cut_off().map(|_| None)
}
