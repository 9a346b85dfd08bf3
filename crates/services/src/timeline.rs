//! Execution over time: user mode, kernel and idle, executing or waiting for memory (Rosenblum
//! 1995, figure 4.1).
//!
//! Takes stretches of one mode in their order; gives buckets of equal time, for all CPUs together,
//! for each CPU and for each task. The total time is unknown until the end: when all buckets are
//! used, each pair of buckets becomes one. A stretch across several buckets is spread over them
//! evenly.
//!
//! Chains of calls and invocations are counted in slices, each of [`SLICE`] buckets.

use crate::slices::{BegunInterrupts, ServiceOverTime};
use crate::slicing::Stretch;
use execution::slices::SliceStarts;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use trace::CpuId;

/// The largest number of buckets. At least half of them are used, unless the time is shorter.
const MOST: usize = 4096;
/// The number of buckets in a slice.
pub const SLICE: usize = 16;

/// The name of the task that runs before the first switch.
const UNKNOWN: &str = "(unknown)";

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

/// Buckets as columns of whole numbers.
#[derive(Serialize)]
struct Columns {
    user: Vec<u64>,
    user_stall: Vec<u64>,
    kernel: Vec<u64>,
    kernel_stall: Vec<u64>,
    idle: Vec<u64>,
}

impl Columns {
    fn new<'a>(buckets: impl Iterator<Item = &'a TimelineBucket> + Clone) -> Columns {
        let column = |of: fn(&TimelineBucket) -> f64| -> Vec<u64> {
            buckets.clone().map(|bucket| of(bucket).round() as u64).collect()
        };
        Columns {
            user: column(|bucket| bucket.user),
            user_stall: column(|bucket| bucket.user_stall),
            kernel: column(|bucket| bucket.kernel),
            kernel_stall: column(|bucket| bucket.kernel_stall),
            idle: column(|bucket| bucket.idle),
        }
    }
}

fn columns<S: Serializer>(buckets: &[TimelineBucket], to: S) -> Result<S::Ok, S::Error> {
    Columns::new(buckets.iter()).serialize(to)
}

fn columns_of_each<S: Serializer>(all: &[Vec<TimelineBucket>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(all.iter().map(|buckets| Columns::new(buckets.iter())))
}

/// As columns, with the numbers of the buckets.
fn some_columns<S: Serializer>(
    buckets: &BTreeMap<u32, TimelineBucket>,
    to: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct SomeColumns {
        at: Vec<u32>,
        #[serde(flatten)]
        columns: Columns,
    }
    let at = buckets.keys().copied().collect();
    SomeColumns { at, columns: Columns::new(buckets.values()) }.serialize(to)
}

/// What a task did over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskTrack {
    /// The task's name; the last one, if it had several.
    pub name: String,
    /// The task's pid, if the recording has it.
    pub pid: Option<u32>,
    /// The buckets in which it ran, by number.
    #[serde(serialize_with = "some_columns")]
    pub buckets: BTreeMap<u32, TimelineBucket>,
}

/// Execution over time, in buckets of equal width. Serialized as columns of whole numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// The time of a bucket: cycles of the machine, or instructions without a machine.
    pub width: f64,
    /// The buckets, in order.
    #[serde(serialize_with = "columns")]
    pub buckets: Vec<TimelineBucket>,
    /// The buckets of each CPU, if there are several. In the guest's clock one CPU executes at a
    /// time. Empty for one CPU.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "columns_of_each")]
    pub cpus: Vec<Vec<TimelineBucket>>,
    /// The tasks that ran, those that ran longest first.
    pub tasks: Vec<TaskTrack>,
    /// Chains of calls and invocations in slices, by service.
    #[serde(skip)]
    pub services: Vec<ServiceOverTime>,
    /// Interrupts, by the slice in which they began.
    #[serde(skip)]
    pub interrupts: Vec<(u32, BegunInterrupts)>,
    /// The instructions before each slice. Those of a stretch are spread over its time evenly.
    #[serde(skip)]
    pub starts: SliceStarts,
    /// The CPU that executes, and its task.
    #[serde(skip)]
    executing: usize,
    #[serde(skip)]
    task: usize,
    /// Where the next stretch begins.
    #[serde(skip)]
    end: f64,
}

/// Nothing was executed.
impl Default for Timeline {
    fn default() -> Timeline {
        Timeline::new(1.0).finish()
    }
}

impl Timeline {
    /// `width`: the smallest width of a bucket.
    pub(crate) fn new(width: f64) -> Timeline {
        Timeline {
            width,
            buckets: Vec::new(),
            cpus: Vec::new(),
            tasks: vec![TaskTrack { name: UNKNOWN.to_owned(), ..TaskTrack::default() }],
            services: Vec::new(),
            interrupts: Vec::new(),
            starts: SliceStarts::default(),
            executing: 0,
            task: 0,
            end: 0.0,
        }
    }

    /// This task executes the next stretches. Before the first switch, task 0 executes, which
    /// nobody knows.
    pub(crate) fn switch_to(&mut self, task: usize) {
        if self.tasks.len() <= task {
            self.tasks.resize_with(task + 1, TaskTrack::default);
        }
        self.task = task;
    }

    /// The name and the pid of a task from now on.
    pub(crate) fn name(&mut self, task: usize, name: &str, pid: Option<u32>) {
        let track = &mut self.tasks[task];
        if track.name != name {
            name.clone_into(&mut track.name);
        }
        track.pid = pid;
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

    /// Adds the next stretch: the time executing and the time stalled, neither negative. Returns
    /// where it lies, and how often each pair of slices became one to make room for it.
    pub(crate) fn add(&mut self, mode: TimelineMode, busy: f64, stall: f64) -> (Stretch, u32) {
        let length = busy + stall;
        let (begin, end) = (self.end, self.end + length.max(0.0));
        self.end = end;
        let mut halvings = 0;
        while end > self.width * MOST as f64 {
            for buckets in self.cpus.iter_mut().chain([&mut self.buckets]) {
                *buckets = TimelineBucket::halved(buckets);
            }
            for track in &mut self.tasks {
                let mut halved: BTreeMap<u32, TimelineBucket> = BTreeMap::new();
                for (at, bucket) in std::mem::take(&mut track.buckets) {
                    let sum = halved.entry(at / 2).or_default();
                    *sum = sum.plus(bucket);
                }
                track.buckets = halved;
            }
            self.width *= 2.0;
            halvings += 1;
        }
        let slice = self.width * SLICE as f64;
        let stretch = Stretch::new(begin / slice, end / slice);
        if length <= 0.0 {
            return (stretch, halvings);
        }
        let (first, last) = ((begin / self.width) as usize, (end / self.width) as usize);
        let last = last.min(MOST - 1);
        if self.buckets.len() <= last {
            self.buckets.resize(last + 1, TimelineBucket::default());
        }
        let mut cpu = self.cpus.get_mut(self.executing);
        if let Some(buckets) = cpu.as_mut().filter(|buckets| buckets.len() <= last) {
            buckets.resize(last + 1, TimelineBucket::default());
        }
        let task = &mut self.tasks[self.task].buckets;
        for at in first..=last {
            let from = begin.max(at as f64 * self.width);
            let to = if at == last { end } else { (at + 1) as f64 * self.width };
            let share = (to - from).max(0.0) / length;
            let (busy, stall) = (busy * share, stall * share);
            self.buckets[at].add(mode, busy, stall);
            task.entry(at as u32).or_default().add(mode, busy, stall);
            if let Some(buckets) = &mut cpu {
                buckets[at].add(mode, busy, stall);
            }
        }
        (stretch, halvings)
    }

    /// Removes empty buckets at the end, and tasks that did not run. Each CPU gets as many buckets
    /// as all CPUs together. Tracks with the same name and pid become one: the kernel gave a task
    /// another address.
    pub(crate) fn finish(mut self) -> Timeline {
        while self.buckets.last().is_some_and(|bucket| bucket.total() <= 0.0) {
            self.buckets.pop();
        }
        for buckets in &mut self.cpus {
            buckets.resize(self.buckets.len(), TimelineBucket::default());
        }
        let mut tracks: BTreeMap<(String, Option<u32>), BTreeMap<u32, TimelineBucket>> =
            BTreeMap::new();
        for track in self.tasks.drain(..).filter(|track| !track.buckets.is_empty()) {
            let all = tracks.entry((track.name, track.pid)).or_default();
            for (at, bucket) in track.buckets {
                let sum = all.entry(at).or_default();
                *sum = sum.plus(bucket);
            }
        }
        let tracks = tracks.into_iter();
        self.tasks =
            tracks.map(|((name, pid), buckets)| TaskTrack { name, pid, buckets }).collect();
        let time =
            |track: &TaskTrack| -> f64 { track.buckets.values().map(TimelineBucket::total).sum() };
        self.tasks.sort_by(|a, b| time(b).total_cmp(&time(a)));
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

    #[test]
    fn what_the_tasks_do_is_what_all_do_together() {
        let mut timeline = Timeline::new(1.0);
        timeline.add(TimelineMode::User, 2.0, 0.0);
        let mut sums = [2.0, 0.0, 0.0];
        for number in 0..20_000_u32 {
            // The address of task 3 belongs to a task with the name and the pid of task 1.
            let task = [1, 2, 3][number as usize % 3];
            timeline.switch_to(task);
            timeline.name(task, ["a", "b", "a"][task - 1], Some([7, 8, 7][task - 1]));
            timeline.add(TimelineMode::Kernel, f64::from(number % 5), 0.5);
            sums[if task == 2 { 2 } else { 1 }] += f64::from(number % 5) + 0.5;
        }
        let timeline = timeline.finish();
        let found: Vec<(&str, Option<u32>, f64)> = timeline
            .tasks
            .iter()
            .map(|task| {
                let time = task.buckets.values().map(TimelineBucket::total).sum();
                (task.name.as_str(), task.pid, time)
            })
            .collect();
        let expected =
            [("a", Some(7), sums[1]), ("b", Some(8), sums[2]), ("(unknown)", None, sums[0])];
        assert_eq!(found.len(), expected.len());
        for ((name, pid, time), (wanted, of, sum)) in found.into_iter().zip(expected) {
            assert_eq!((name, pid), (wanted, of));
            assert!((time - sum).abs() < 1e-6, "{name}: {time} {sum}");
        }
    }

    #[test]
    fn counts_of_a_stretch_are_split_by_time_and_add_up() {
        let mut timeline = Timeline::new(1.0);
        timeline.add(TimelineMode::User, 24.0, 0.0);
        let (stretch, halvings) = timeline.add(TimelineMode::Kernel, 20.0, 4.0);
        assert_eq!((halvings, stretch.last()), (0, 2));
        let mut parts = Vec::new();
        stretch.split([7, 100], |slice, part| parts.push((slice, part)));
        assert_eq!(parts, [(1, [2, 33]), (2, [5, 67])]);
        let (still, _) = timeline.add(TimelineMode::Kernel, 0.0, 0.0);
        still.split([5], |slice, part| assert_eq!((slice, part), (2, [5])));
        let (long, halvings) = timeline.add(TimelineMode::User, 5000.0, 0.0);
        assert_eq!((halvings, long.last()), (1, 157));
    }

    #[test]
    fn columns_are_whole_numbers() {
        let mut timeline = Timeline::new(1.0);
        timeline.switch_to(1);
        timeline.name(1, "sh", Some(5));
        timeline.add(TimelineMode::User, 1.0, 0.6);
        let json = serde_json::to_value(timeline.finish()).unwrap();
        assert_eq!(json["buckets"]["user"], serde_json::json!([1, 0]));
        assert_eq!(json["buckets"]["user_stall"], serde_json::json!([0, 0]));
        let task = &json["tasks"][0];
        assert_eq!((&task["name"], &task["pid"]), (&"sh".into(), &5.into()));
        assert_eq!(task["buckets"]["at"], serde_json::json!([0, 1]));
        assert_eq!(task["buckets"]["user"], serde_json::json!([1, 0]));
        assert!(json.get("services").is_none());
    }
}
