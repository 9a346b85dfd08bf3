//! How long the processor was halted: no instruction says so, but the kernel reads the clock on
//! both sides of every halt.
//!
//! Takes halts, readings and the number of instructions executed by then; gives time. Under
//! `-icount shift=0` an instruction of the guest takes a nanosecond, and the processor's clock
//! (TSC) counts nanoseconds: what it goes on by between two readings, less the instructions
//! executed between them, is the time halted in between. Where no halt lies between two readings
//! they tell nothing: what the clock goes on by besides are repetitions of string instructions, of
//! which recordings count one.

use trace::StreamEvent;

#[derive(Debug, Default)]
pub struct Halts {
    /// Nanoseconds so far; `None`: the clock was never read.
    halted: Option<u64>,
    /// The guest's time of the last halt, until the clock is read behind it.
    at: Option<u64>,
    /// Instructions up to the last reading.
    read_at: u64,
}

/// Time in which nothing was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halt {
    /// The guest's time, without the halt.
    pub at: u64,
    pub nanoseconds: u64,
}

impl Halts {
    pub fn total(&self) -> Option<u64> {
        self.halted
    }

    /// The guest's time after so many instructions.
    #[inline]
    pub fn time(&self, instructions: u64) -> u64 {
        instructions + self.halted.unwrap_or(0)
    }

    /// The processor is halted.
    pub fn halt(&mut self, instructions: u64) {
        self.at = Some(self.time(instructions));
    }

    /// Another task runs before the clock was read: to whom the time belongs is not known any more,
    /// and it is not counted.
    pub fn forget(&mut self) {
        self.at = None;
    }

    /// The clock was read; gives what it tells of a halt before.
    pub fn read(&mut self, instructions: u64, ticks: u32) -> Option<Halt> {
        let executed = instructions - std::mem::replace(&mut self.read_at, instructions);
        let halted = self.halted.get_or_insert(0);
        let nanoseconds = u64::from(ticks).saturating_sub(executed);
        // A long time is told in several events.
        let at = if ticks < StreamEvent::MOST_TICKS { self.at.take() } else { self.at }?;
        *halted += nanoseconds;
        (nanoseconds > 0).then_some(Halt { at, nanoseconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_between_a_halt_and_its_reading_is_halted() {
        let mut halts = Halts::default();
        assert_eq!((halts.total(), halts.time(7)), (None, 7));
        assert_eq!(halts.read(10, 0), None, "the first reading");
        // A string instruction repeats: the clock goes on by more than was recorded, and nobody was
        // halted.
        assert_eq!(halts.read(30, 500), None);
        halts.halt(40);
        let halt = Halt { at: 40, nanoseconds: 1000 };
        assert_eq!(halts.read(50, 1020), Some(halt));
        assert_eq!((halts.total(), halts.time(50)), (Some(1000), 1050));
        halts.halt(60);
        assert_eq!(halts.read(70, 20), None, "an interrupt came at once");
        halts.halt(80);
        halts.forget();
        assert_eq!(halts.read(90, 1000), None);
        halts.halt(95);
        assert_eq!(halts.read(100, StreamEvent::MOST_TICKS).map(|halt| halt.at), Some(1095));
        assert_eq!(halts.read(100, 5).map(|halt| halt.nanoseconds), Some(5));
        assert_eq!(halts.total(), Some(1000 + u64::from(StreamEvent::MOST_TICKS) - 10 + 5));
    }
}
