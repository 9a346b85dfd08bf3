//! The recording's way to the disk: batches go through a bounded queue to a thread that packs and
//! writes them. Memory is flat: when the thread does not keep up, the guest waits. What is written
//! does not depend on when.

use crate::recorder::{Batch, Sink};
use std::fs::File;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use trace::{Header, Totals, WriteError, Writer};

/// Batches on their way. With the one being filled and the one being written: 1.5 MiB.
const QUEUE: usize = 4;

#[allow(
    clippy::large_enum_variant,
    reason = "few exist at once, and a batch holds its events elsewhere: boxing it would add an \
              allocation a batch and save nothing"
)]
enum Message {
    Batch(Batch),
    /// Write the clean end.
    End,
}

/// The near end of the queue.
pub struct Output {
    to_thread: SyncSender<Message>,
    /// Batches to be filled again.
    emptied: Receiver<Batch>,
    thread: JoinHandle<Result<Option<Totals>, WriteError>>,
}

impl Output {
    /// Begins a recording in `file`, of data accesses too when `data`. `failed` is called on the
    /// thread, once, when writing fails.
    pub fn begin(
        file: File,
        header: Header,
        data: bool,
        failed: impl FnOnce(&WriteError) + Send + 'static,
    ) -> std::io::Result<Output> {
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
        Ok(Output { to_thread, emptied, thread })
    }

    /// Waits until all is written: with the clean end, or cut off.
    pub fn finish(self, clean: bool) -> Result<Option<Totals>, WriteError> {
        if clean {
            // A thread that has failed takes nothing; its error is the result below.
            let _ = self.to_thread.send(Message::End);
        }
        drop(self.to_thread);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(std::io::Error::other("the writing thread panicked").into()))
    }
}

impl Sink for Output {
    fn send(&mut self, batch: Batch) -> Option<Batch> {
        self.to_thread.send(Message::Batch(batch)).ok()?;
        Some(self.emptied.try_recv().unwrap_or_default())
    }
}

/// The thread: writes until the queue ends.
fn write(
    file: File,
    header: &Header,
    data: bool,
    from_guest: &Receiver<Message>,
    give_back: &SyncSender<Batch>,
) -> Result<Option<Totals>, WriteError> {
    let mut writer = match data {
        true => Writer::with_data(file, header)?,
        false => Writer::new(file, header)?,
    };
    for message in from_guest {
        let Message::Batch(batch) = message else {
            return writer.end().map(|(_, totals)| Some(totals));
        };
        writer.tasks(&batch.tasks)?;
        writer.translations(&batch.translations)?;
        match data {
            true => writer.stream_with_data(&batch.words, &batch.seen)?,
            false => writer.stream(&batch.words)?,
        }
        match give_back.try_send(batch.cleared()) {
            // Nobody wants it back when the recorder has ended.
            Ok(()) | Err(TrySendError::Disconnected(_) | TrySendError::Full(_)) => {}
        }
    }
    writer.cut_off().map(|_| None)
}
