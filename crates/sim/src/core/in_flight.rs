//! The lines on their way into a cache: the registers that hold outstanding misses (MSHRs).
//!
//! A cache model holds a line from its request on. These registers say when the line really
//! arrives. Requests come in program order, so their times can go back and forth.
//!
//! Input: requests with their cycles. Output: the cycle in which each line is there.

use crate::line::LineId;

#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    lines: Vec<LineId>,
    arrivals: Vec<u64>,
    /// The last arrival of all.
    last: u64,
}

impl InFlight {
    /// `registers` must be at least 1.
    pub(super) fn new(registers: u32) -> InFlight {
        InFlight {
            lines: vec![LineId::NONE; registers as usize],
            arrivals: vec![0; registers as usize],
            last: 0,
        }
    }

    /// The cycle in which `line` is there, if it is requested in `now`.
    #[inline]
    pub(super) fn there(&self, line: LineId, now: u64) -> u64 {
        if now >= self.last {
            return now;
        }
        let found = self.lines.iter().position(|&held| held == line);
        found.map_or(now, |register| self.arrivals[register].max(now))
    }

    /// The first cycle from `now` on in which a register is free.
    #[inline]
    pub(super) fn free(&self, now: u64) -> u64 {
        if now >= self.last {
            return now;
        }
        self.arrivals.iter().min().map_or(now, |&first| first.max(now))
    }

    /// Takes the register that is free first, until `arrives`.
    #[inline]
    pub(super) fn begin(&mut self, line: LineId, arrives: u64) {
        let first = self.arrivals.iter().enumerate().min_by_key(|&(_, arrival)| arrival);
        let register = first.map_or(0, |(register, _)| register);
        self.lines[register] = line;
        self.arrivals[register] = arrives;
        self.last = self.last.max(arrives);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_registers() {
        let line = LineId::physical;
        let mut registers = InFlight::new(2);
        assert_eq!(registers.free(3), 3);
        registers.begin(line(1), 10);
        registers.begin(line(2), 15);
        assert_eq!([1, 2, 3].map(|number| registers.there(line(number), 12)), [12, 15, 12]);
        assert_eq!([registers.free(4), registers.free(11), registers.free(16)], [10, 11, 16]);
        // Line 3 takes the register of line 1, which is forgotten.
        registers.begin(line(3), 20);
        assert_eq!([1, 2, 3].map(|number| registers.there(line(number), 5)), [5, 15, 20]);
    }
}
