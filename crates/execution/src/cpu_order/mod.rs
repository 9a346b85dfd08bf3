//! In which order the CPUs of a recording make their steps on a machine with several cores.
//!
//! ```text
//! turns of the recording → turns: steps → words: dependencies → window ─┬→ clocks of a machine
//!                                                                       └→ clocks of another one
//! ```
//!
//! QEMU gives CPUs long turns. *Side by side* means: each CPU follows its own clock, and only what
//! shares data keeps the order of the recording.
//!
//! Input: turns, and what a step costs on a machine. Output: the order of steps, and waiting times.
//! This module simulates no cache.

pub(crate) mod clocks;
#[cfg(test)]
mod tests;
mod turns;
mod window;
mod words;

pub use clocks::CpuWaits;
use rayon::join;
use serde::{Deserialize, Serialize};
use trace::{CpuCount, CpuId, Translation};
pub use turns::DataTurn;
use turns::Turns;
pub use window::{Step, Stretch, Window};
use words::WordLinks;

/// The order in which the CPUs of a recording make their steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuOrder {
    /// Each CPU follows its own clock. What shares data keeps the order of the recording.
    SideBySide,
    /// The order of the recording, with its long turns.
    #[default]
    Recorded,
}

/// The bytes of steps that a machine may leave unmade: about 50 million instructions.
const WINDOW_BYTES: u64 = 512 << 20;
/// The bytes of steps to append to the window at once.
const BATCH_BYTES: u64 = 8 << 20;

/// The steps of all CPUs between the recording and the machines.
pub struct CpuSteps {
    turns: Turns,
    /// Steps that have no dependencies yet, in the order of the recording.
    batch: Vec<Stretch>,
    bytes: u64,
    links: WordLinks,
    window: Window,
}

impl CpuSteps {
    /// No steps yet, of this number of CPUs.
    pub fn new(cpus: CpuCount) -> CpuSteps {
        CpuSteps {
            turns: Turns::default(),
            batch: Vec::new(),
            bytes: 0,
            links: WordLinks::default(),
            window: Window::new(cpus, WINDOW_BYTES),
        }
    }

    /// Learns translations. They come in the order of their ids.
    pub fn define(&mut self, translations: &[Translation]) {
        self.turns.define(translations);
    }

    /// The steps of a turn, or of a part of it.
    pub fn stretch(
        &mut self,
        cpu: CpuId,
        fragments: &[crate::flow::FragmentId],
        turn: DataTurn<'_>,
    ) -> Stretch {
        self.turns.stretch(cpu, fragments, turn)
    }

    /// Keeps steps for machines on which the CPUs run side by side. True: they are many, so call
    /// [`CpuSteps::advance`].
    pub fn keep(&mut self, stretch: Stretch) -> bool {
        if !stretch.steps.is_empty() {
            self.bytes += stretch.bytes();
            self.batch.push(stretch);
        }
        self.bytes >= BATCH_BYTES
    }

    /// Lets machines make the steps of the window, and appends those that were kept. Call
    /// [`CpuSteps::forget`] then.
    pub fn advance(&mut self, make: impl FnOnce(&Window) + Send) {
        let CpuSteps { turns, batch, bytes, links, window } = self;
        join(|| links.link(batch), || make(window));
        window.append(batch.drain(..), turns.halted());
        *bytes = 0;
    }

    /// Drops steps that all machines have made. `made` gives the number of the first stretch of a
    /// CPU that is needed.
    pub fn forget(&mut self, made: impl Fn(usize) -> Option<u64>) {
        for cpu in 0..self.window.cpus() {
            if let Some(before) = made(cpu) {
                self.window.forget(cpu, before);
            }
        }
    }

    /// The recording has ended; the last fetches of each CPU follow.
    pub fn end(&mut self) {
        self.turns.end();
    }

    /// Lets machines make all steps.
    pub fn finish(&mut self, mut make: impl FnMut(&Window) + Send) {
        self.advance(&mut make);
        self.window.end();
        make(&self.window);
    }
}
