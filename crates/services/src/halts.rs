//! How long the processor was halted. No instruction shows this time, but the kernel reads the
//! clock before and after every halt.
//!
//! Takes halts, clock readings and the number of executed instructions; gives halted time. Under
//! `-icount shift=0` an instruction of the guest takes a nanosecond, and the processor's clock
//! (TSC) counts nanoseconds. The time between two readings, minus the instructions between them, is
//! the halted time in between. Two readings without a halt between them show nothing: the clock
//! also counts the repetitions of a string instruction, but a recording counts the instruction
//! once.

use trace::StreamEvent;

#[derive(Debug, Default)]
pub(super) struct Halts {
    /// Halted nanoseconds so far; `None` while the clock has not been read.
    halted: Option<u64>,
    /// The guest's time of the last halt, until the clock is read after it.
    at: Option<u64>,
    /// Executed instructions at the last reading.
    read_at: u64,
}

/// A time in which the processor was halted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Halt {
    /// The guest's time when the halt began.
    pub at: u64,
    pub nanoseconds: u64,
}

impl Halts {
    pub(super) fn total(&self) -> Option<u64> {
        self.halted
    }

    /// The guest's time after this number of instructions.
    #[inline]
    pub(super) fn time(&self, instructions: u64) -> u64 {
        instructions + self.halted.unwrap_or(0)
    }

    /// The processor halts.
    pub(super) fn halt(&mut self, instructions: u64) {
        self.at = Some(self.time(instructions));
    }

    /// Another task runs before the clock was read. The owner of the halted time is unknown, so the
    /// time is not counted.
    pub(super) fn forget(&mut self) {
        self.at = None;
    }

    /// The clock was read. Returns the halt before it, if any.
    pub(super) fn read(&mut self, instructions: u64, ticks: u32) -> Option<Halt> {
        let executed = instructions - std::mem::replace(&mut self.read_at, instructions);
        let halted = self.halted.get_or_insert(0);
        let nanoseconds = u64::from(ticks).saturating_sub(executed);
        // A long time takes several events.
        let at = if ticks < StreamEvent::MOST_TICKS { self.at.take() } else { self.at }?;
        *halted += nanoseconds;
        (nanoseconds > 0).then_some(Halt { at, nanoseconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_between_a_halt_and_the_next_reading_is_halted() {
        let mut halts = Halts::default();
        assert_eq!((halts.total(), halts.time(7)), (None, 7));
        assert_eq!(halts.read(10, 0), None, "the first reading");
        // A string instruction repeats: the clock advances by more than was recorded, without a
        // halt.
        assert_eq!(halts.read(30, 500), None);
        halts.halt(40);
        let halt = Halt { at: 40, nanoseconds: 1000 };
        assert_eq!(halts.read(50, 1020), Some(halt));
        assert_eq!((halts.total(), halts.time(50)), (Some(1000), 1050));
        halts.halt(60);
        assert_eq!(halts.read(70, 20), None, "an interrupt came immediately");
        halts.halt(80);
        halts.forget();
        assert_eq!(halts.read(90, 1000), None);
        halts.halt(95);
        assert_eq!(halts.read(100, StreamEvent::MOST_TICKS).map(|halt| halt.at), Some(1095));
        assert_eq!(halts.read(100, 5).map(|halt| halt.nanoseconds), Some(5));
        assert_eq!(halts.total(), Some(1000 + u64::from(StreamEvent::MOST_TICKS) - 10 + 5));
    }
}
