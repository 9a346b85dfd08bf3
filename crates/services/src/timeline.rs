//! Execution over time: user mode, kernel and idle, executing or waiting for memory (Rosenblum
//! 1995, figure 4.1).
//!
//! Takes stretches of one mode in their order; gives buckets of equal time, for all CPUs together
//! and for each CPU. The total time is unknown until the end: when all buckets are used, each pair
//! of buckets becomes one. A stretch across several buckets is spread over them evenly.

use serde::Serialize;
use trace::CpuId;

/// The largest number of buckets. At least half of them are used, unless the time is shorter.
const MOST: usize = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimelineMode {
    User,
    Kernel,
    Idle,
}

/// Time of one bucket, executing and stalled, in the unit of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimelineBucket {
    /// User mode, executing.
    pub user: f64,
    /// User mode, waiting for memory.
    pub user_stall: f64,
    /// Kernel, executing.
    pub kernel: f64,
    /// Kernel, waiting for memory.
    pub kernel_stall: f64,
    /// The idle loop with its stalls, and halted time. A nanosecond of the guest's clock counts as
    /// an instruction or a cycle.
    pub idle: f64,
}

impl TimelineBucket {
    fn add(&mut self, mode: TimelineMode, busy: f64, stall: f64) {
        match mode {
            TimelineMode::User => {
                (self.user, self.user_stall) = (self.user + busy, self.user_stall + stall)
            }
            TimelineMode::Kernel => {
                (self.kernel, self.kernel_stall) = (self.kernel + busy, self.kernel_stall + stall)
            }
            TimelineMode::Idle => self.idle += busy + stall,
        }
    }

    fn plus(self, other: TimelineBucket) -> TimelineBucket {
        TimelineBucket {
            user: self.user + other.user,
            user_stall: self.user_stall + other.user_stall,
            kernel: self.kernel + other.kernel,
            kernel_stall: self.kernel_stall + other.kernel_stall,
            idle: self.idle + other.idle,
        }
    }

    /// Makes one bucket of each pair.
    fn halved(buckets: &[TimelineBucket]) -> Vec<TimelineBucket> {
        let pairs = buckets.chunks(2);
        pairs
            .map(|two| two.iter().fold(TimelineBucket::default(), |sum, &one| sum.plus(one)))
            .collect()
    }

    /// All time of the bucket.
    pub fn total(&self) -> f64 {
        self.user + self.user_stall + self.kernel + self.kernel_stall + self.idle
    }
}

/// Execution over time, in buckets of equal width.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// The time of a bucket: cycles of the machine, or instructions without a machine.
    pub width: f64,
    /// The buckets, in order.
    pub buckets: Vec<TimelineBucket>,
    /// The buckets of each CPU, if there are several. In the guest's clock one CPU executes at a
    /// time. Empty for one CPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<Vec<TimelineBucket>>,
    /// The CPU that executes.
    #[serde(skip)]
    executing: usize,
    /// Where the next stretch begins.
    #[serde(skip)]
    end: f64,
}

impl Timeline {
    /// `width`: the smallest width of a bucket.
    pub(crate) fn new(width: f64) -> Timeline {
        Timeline { width, buckets: Vec::new(), cpus: Vec::new(), executing: 0, end: 0.0 }
    }

    /// This CPU executes the next stretches. Before the first turn, CPU 0 executes.
    pub(crate) fn turn_to(&mut self, cpu: CpuId) {
        if self.cpus.is_empty() {
            self.cpus.push(self.buckets.clone());
        }
        self.executing = usize::from(cpu.0);
        let known = self.cpus.len().max(self.executing + 1);
        self.cpus.resize(known, Vec::new());
    }

    /// Adds the next stretch: the time executing and the time stalled, neither negative.
    pub(crate) fn add(&mut self, mode: TimelineMode, busy: f64, stall: f64) {
        let length = busy + stall;
        if length <= 0.0 {
            return;
        }
        let (begin, end) = (self.end, self.end + length);
        self.end = end;
        while end > self.width * MOST as f64 {
            for buckets in self.cpus.iter_mut().chain([&mut self.buckets]) {
                *buckets = TimelineBucket::halved(buckets);
            }
            self.width *= 2.0;
        }
        let (first, last) = ((begin / self.width) as usize, (end / self.width) as usize);
        let last = last.min(MOST - 1);
        let executing = self.cpus.get_mut(self.executing);
        for buckets in executing.into_iter().chain([&mut self.buckets]) {
            if buckets.len() <= last {
                buckets.resize(last + 1, TimelineBucket::default());
            }
            for (at, bucket) in buckets[..=last].iter_mut().enumerate().skip(first) {
                let from = begin.max(at as f64 * self.width);
                let to = if at == last { end } else { (at + 1) as f64 * self.width };
                let share = (to - from).max(0.0) / length;
                bucket.add(mode, busy * share, stall * share);
            }
        }
    }

    /// Removes empty buckets at the end. Each CPU gets as many buckets as all CPUs together.
    pub(crate) fn finish(mut self) -> Timeline {
        while self.buckets.last().is_some_and(|bucket| bucket.total() <= 0.0) {
            self.buckets.pop();
        }
        for buckets in &mut self.cpus {
            buckets.resize(self.buckets.len(), TimelineBucket::default());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_spread_over_its_buckets() {
        let mut timeline = Timeline::new(10.0);
        timeline.add(TimelineMode::User, 5.0, 0.0);
        timeline.add(TimelineMode::Kernel, 5.0, 15.0);
        timeline.add(TimelineMode::Idle, 1.0, 1.0);
        let timeline = timeline.finish();
        assert_eq!(timeline.buckets.len(), 3);
        let [a, b, c] = timeline.buckets[..] else { unreachable!() };
        assert_eq!((a.user, a.kernel, a.kernel_stall, a.idle), (5.0, 1.25, 3.75, 0.0));
        assert_eq!((b.kernel, b.kernel_stall), (2.5, 7.5));
        assert_eq!((c.kernel, c.kernel_stall, c.idle), (1.25, 3.75, 2.0));
    }

    #[test]
    fn a_long_timeline_loses_nothing_and_has_few_buckets() {
        let mut timeline = Timeline::new(1.0);
        let mut sums = [0.0; 2];
        for number in 0..50_000_u32 {
            let (mode, at) =
                if number % 3 == 0 { (TimelineMode::User, 0) } else { (TimelineMode::Kernel, 1) };
            let length = f64::from(number % 7) * 1.5;
            timeline.add(mode, length, length / 4.0);
            sums[at] += length * 1.25;
        }
        let timeline = timeline.finish();
        assert!(timeline.buckets.len() <= MOST && timeline.buckets.len() > MOST / 2);
        let all =
            timeline.buckets.iter().fold(TimelineBucket::default(), |sum, &one| sum.plus(one));
        assert!((all.user + all.user_stall - sums[0]).abs() < 1e-3);
        assert!((all.kernel + all.kernel_stall - sums[1]).abs() < 1e-3);
        for bucket in &timeline.buckets[..timeline.buckets.len() - 1] {
            assert!((bucket.total() / timeline.width - 1.0).abs() < 1e-9, "{bucket:?}");
        }
    }

    #[test]
    fn what_the_cpus_do_is_what_all_do_together() {
        let mut timeline = Timeline::new(1.0);
        timeline.add(TimelineMode::User, 3.0, 1.0);
        let mut sums = [4.0, 0.0, 0.0];
        for number in 0..10_000_u32 {
            let cpu = number * 7 % 3;
            timeline.turn_to(CpuId(cpu as u8));
            timeline.add(TimelineMode::Kernel, f64::from(number % 5), 0.5);
            sums[cpu as usize] += f64::from(number % 5) + 0.5;
        }
        let timeline = timeline.finish();
        assert_eq!(timeline.cpus.len(), 3);
        for (buckets, sum) in timeline.cpus.iter().zip(sums) {
            let total: f64 = buckets.iter().map(TimelineBucket::total).sum();
            assert!((total - sum).abs() < 1e-6, "{total} {sum}");
        }
        for (at, bucket) in timeline.buckets.iter().enumerate() {
            let of_cpus: f64 = timeline.cpus.iter().map(|buckets| buckets[at].total()).sum();
            assert!((of_cpus - bucket.total()).abs() < 1e-6, "bucket {at}");
        }
    }
}
