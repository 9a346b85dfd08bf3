//! Where the slots go: every slot of every cycle has one use or one cause of loss.
//!
//! *Top-down* (Yasin, "A Top-Down Method for Performance Analysis and Counters Architecture",
//! ISPASS 2014) looks at the dispatch. A slot without a uop is lost to the back end when the back
//! end had no room, else to what kept the front end from delivering.
//!
//! *Graduation* (Rosenblum 1995, section 3.3) looks at retirement: when fewer slots retire than
//! could, the oldest one says why.
//!
//! [`SlotMeter`] stands at a slot of a cycle. It moves forward, and counts what it passes.
//!
//! Input: the cycles of slots, in program order. Output: counts of uses and losses, which add up to
//! all slots.

counters! {
    /// The slots of the dispatch.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub struct Slots {
        /// A slot of the program was dispatched.
        pub retiring: u64,
        /// A mispredicted branch had not been executed yet.
        pub bad_speculation: u64,
        /// The front end delivered nothing in the whole cycle.
        pub front_end_latency: u64,
        /// The front end delivered, but fewer slots.
        pub front_end_bandwidth: u64,
        /// The back end had no room, and waited for data that the L1D lacked.
        pub memory: u64,
        /// The back end had no room for another reason.
        pub core: u64,
    }
}

impl Slots {
    /// All slots.
    pub fn total(&self) -> u64 {
        self.retiring
            + self.bad_speculation
            + self.front_end_latency
            + self.front_end_bandwidth
            + self.memory
            + self.core
    }
}

counters! {
    /// The slots of the graduation, as SimOS divides them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub struct GraduationSlots {
        /// A slot of the program graduated.
        pub busy: u64,
        /// The oldest slot waited for data that the L1D lacked.
        pub data: u64,
        /// The window was empty, and the front end waited for a line that the L1I lacked.
        pub instruction: u64,
        /// Any other reason.
        pub pipeline: u64,
    }
}

impl GraduationSlots {
    /// All slots.
    pub fn total(&self) -> u64 {
        self.busy + self.data + self.instruction + self.pipeline
    }
}

counters! {
    /// The slots of both kinds.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub struct CoreSlots {
        /// The slots of the dispatch.
        pub dispatch: Slots,
        /// The slots of the graduation.
        pub graduation: GraduationSlots,
    }
}

/// A place in the stream of slots of some width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotMeter {
    width: u64,
    cycle: u64,
    /// The slots of `cycle` that were passed.
    passed: u64,
}

impl SlotMeter {
    /// At the first slot of cycle 0.
    pub(super) fn new(width: u32) -> SlotMeter {
        SlotMeter { width: width.into(), cycle: 0, passed: 0 }
    }

    /// The cycle of the next slot.
    #[inline]
    pub(super) fn cycle(&self) -> u64 {
        self.cycle
    }

    /// Passes all slots before `cycle`. Returns their number, and how many of them are in cycles of
    /// which no slot was passed before.
    #[inline]
    pub(super) fn skip_to(&mut self, cycle: u64) -> (u64, u64) {
        if cycle <= self.cycle {
            return (0, 0);
        }
        let slots = (cycle - self.cycle) * self.width;
        let whole = if self.passed == 0 { slots } else { slots - self.width };
        let skipped = slots - self.passed;
        (self.cycle, self.passed) = (cycle, 0);
        (skipped, whole)
    }

    /// Passes the rest of the present cycle, and all slots before `cycle`. Returns the cycle behind
    /// and the number of slots.
    pub(super) fn skip_to_end(&mut self, cycle: u64) -> (u64, u64) {
        let end = cycle.max(self.cycle + u64::from(self.passed > 0));
        let (skipped, _) = self.skip_to(end);
        (end, skipped)
    }

    /// Uses the next slot.
    #[inline]
    pub(super) fn use_one(&mut self) {
        self.passed += 1;
        if self.passed == self.width {
            (self.cycle, self.passed) = (self.cycle + 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_of_four_slots() {
        let mut meter = SlotMeter::new(4);
        assert_eq!((meter.skip_to(2), meter.cycle()), ((8, 8), 2));
        meter.use_one();
        assert_eq!((meter.skip_to(2), meter.cycle()), ((0, 0), 2));
        // Three slots of cycle 2, and cycle 3.
        assert_eq!((meter.skip_to(4), meter.cycle()), ((7, 4), 4));
        (0..4).for_each(|_| meter.use_one());
        assert_eq!(meter.cycle(), 5);
    }
}
