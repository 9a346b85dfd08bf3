//! Whether the installed groups still hold the kernel's hot code, at a fixed cost.
//!
//! Input: sampled stacks, and what was spent. Output: the share of the executed code that runs in
//! copies, over days; whether a new layout is due; how long to pause. A share is compared with that
//! of the time after the groups were installed, since some hot code can never be replaced. This
//! module samples, counts and installs nothing.

use crate::decay;
use crate::eligible;
use crate::inlined_table::Names;
use crate::sample::Samples;
use anyhow::{Context, Result, ensure};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::sealed;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The format of the file.
const FORMAT: u32 = 1;
/// With fewer samples nothing is decided.
const ENOUGH: f64 = 1000.0;
/// Nanoseconds of a sample with its stack, in the kernel's interrupt: assumed, several times what
/// it takes on present processors.
const SAMPLE_NS: u64 = 10_000;
/// Nanoseconds of counting once: assumed, for an increment of a cached line.
const COUNT_NS: u64 = 2;

/// Where sampled code ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampledShare {
    /// Samples in copies.
    pub copies: u64,
    /// Samples in functions of the kernel that have a tracer's site and could have copies.
    pub originals: u64,
}

impl SampledShare {
    /// Where the innermost code of each stack ran. `slide`: as of the running kernel.
    pub fn of(samples: &Samples, names: &Names<'_>, kernel: &LinkedKernel<'_>, slide: u64) -> Self {
        let mut share = SampledShare::default();
        for &at in samples.stacks.iter().filter_map(|stack| stack.first()) {
            let name = names.range(..=at).next_back().map_or("", |(_, name)| name);
            let function = kernel.function_at(LinkAddr(at.wrapping_sub(slide)));
            let function = function.map(|index| &kernel.functions[index]);
            if name.ends_with(".kernlane") {
                share.copies += 1;
            } else if function.is_some_and(|f| eligible::tracer_site(kernel, f).is_some()) {
                share.originals += 1;
            }
        }
        share
    }
}

/// What to do after sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// There are too few samples.
    Wait,
    /// Nothing is installed, and the kernel is busy.
    First,
    /// The groups hold enough: this part of the executed code, 0 to 1.
    Stay(f64),
    /// They hold less than they did: before and now, 0 to 1.
    Renew(f64, f64),
}

/// What was seen since the present groups were installed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    /// The numbers of the installed groups' modules.
    groups: Vec<String>,
    /// Samples in copies and in originals, the older ones with less weight.
    copies: f64,
    originals: f64,
    /// The share in copies by the first samples after the installation.
    at_first: Option<f64>,
    /// When samples were added, in seconds since 1970.
    updated: u64,
}

#[derive(Serialize, Deserialize)]
struct LearnedDocument {
    kernlane_learned: u32,
    #[serde(flatten)]
    learned: Learned,
    #[serde(default, skip_serializing)]
    sha256: Option<String>,
}

impl Learned {
    /// Adds samples. `groups`: the numbers of the modules that are installed; with others than
    /// before, everything begins anew. `now`: seconds since 1970; older samples lose half of their
    /// weight in each `half_life`.
    pub fn add(&mut self, groups: &[String], share: SampledShare, now: u64, half_life: Duration) {
        if self.groups != groups {
            *self = Learned { groups: groups.to_vec(), ..Learned::default() };
        }
        let age = Duration::from_secs(now.saturating_sub(self.updated));
        let weight = decay::weight(age, half_life);
        self.copies = self.copies * weight + share.copies as f64;
        self.originals = self.originals * weight + share.originals as f64;
        self.updated = now;
        if self.at_first.is_none() && self.samples() >= ENOUGH {
            self.at_first = Some(self.share());
        }
    }

    fn samples(&self) -> f64 {
        self.copies + self.originals
    }

    fn share(&self) -> f64 {
        self.copies / self.samples().max(1.0)
    }

    /// What to do. A new layout is due when the share in copies is less than `least` (0 to 1) of
    /// what it was at first.
    pub fn decide(&self, least: f64) -> Decision {
        let (Some(at_first), true) = (self.at_first, self.samples() >= ENOUGH) else {
            return Decision::Wait;
        };
        let share = self.share();
        match self.groups.is_empty() {
            true => Decision::First,
            false if share < at_first * least => Decision::Renew(at_first, share),
            false => Decision::Stay(share),
        }
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// None that numbers can cause.
    pub fn to_json(&self) -> Result<String> {
        let document =
            LearnedDocument { kernlane_learned: FORMAT, learned: self.clone(), sha256: None };
        Ok(sealed::json(&serde_json::to_string(&document)?))
    }

    /// Reads what `to_json` wrote.
    ///
    /// # Errors
    /// The text is not such a file, has another format, or is damaged.
    pub fn from_json(text: &str) -> Result<Learned> {
        let document: LearnedDocument =
            serde_json::from_str(text).context("not a file of what was learned: remove it")?;
        ensure!(
            document.kernlane_learned == FORMAT,
            "a file of format {}; this version reads format {FORMAT}: remove it",
            document.kernlane_learned
        );
        sealed::verify_json(text, document.sha256.as_deref(), true)?;
        Ok(document.learned)
    }
}

/// Processor time that was spent on learning, and the pause that it needs.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The part of one CPU's time that may be spent, 0 to 1.
    part: f64,
    spent: Duration,
}

impl Budget {
    /// A budget of this part of one CPU's time, above 0.
    pub fn new(part: f64) -> Budget {
        Budget { part, spent: Duration::ZERO }
    }

    /// Adds the interrupts of this number of samples.
    pub fn add_samples(&mut self, samples: u64) {
        self.spent += Duration::from_nanos(samples.saturating_mul(SAMPLE_NS));
    }

    /// Adds the increments of counters with this sum.
    pub fn add_counts(&mut self, sum: u64) {
        self.spent += Duration::from_nanos(sum.saturating_mul(COUNT_NS));
    }

    /// What was spent, with the processor time of this process (`own`).
    pub fn spent(&self, own: Duration) -> Duration {
        self.spent + own
    }

    /// How long to pause, so that what was spent is at most the part of the time since the
    /// beginning; `least` if that is longer.
    pub fn pause(&self, own: Duration, since_begin: Duration, least: Duration) -> Duration {
        let seconds = self.spent(own).as_secs_f64() / self.part - since_begin.as_secs_f64();
        // A century is as good as for ever.
        Duration::from_secs_f64(seconds.clamp(0.0, 3e9)).max(least)
    }
}

/// The processor time of this process, in user mode and in the kernel.
pub fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kernel::{SLIDE, TEXT, tables, with};

    const DAY: u64 = 86_400;
    const HALF: Duration = Duration::from_secs(3 * DAY);

    fn share(copies: u64, originals: u64) -> SampledShare {
        SampledShare { copies, originals }
    }

    #[test]
    fn samples_are_in_copies_or_in_what_could_have_them() {
        with(tables(), |kernel| {
            let copies = 0xffff_ffff_c000_0000;
            let running = TEXT + SLIDE;
            let names = Names::from([
                (running, "f"),
                (copies, "f.kernlane"),
                (copies + 0x40, "g.cold.kernlane"),
                (copies + 0x1000, "other"),
            ]);
            // In f, in stray, which has no tracer's site, and outside of functions.
            let places = [running + 4, running + 0xc1, running + 0x30];
            let others = [copies + 1, copies + 0x41, copies + 0x1001];
            let stacks = places.iter().chain(&others).map(|&at| vec![at, running]).collect();
            let samples = Samples { stacks, lost: 0 };
            assert_eq!(SampledShare::of(&samples, &names, kernel, SLIDE), share(2, 1));
        });
    }

    #[test]
    fn a_new_layout_is_due_when_the_share_has_fallen() {
        let groups = ["1".to_owned()];
        let mut learned = Learned::default();
        learned.add(&groups, share(400, 400), DAY, HALF);
        assert_eq!(learned.decide(0.8), Decision::Wait);
        learned.add(&groups, share(200, 0), DAY, HALF);
        assert_eq!(learned.decide(0.8), Decision::Stay(0.6));
        // Three days later the first thousand counts half.
        learned.add(&groups, share(0, 500), 4 * DAY, HALF);
        assert_eq!(learned.decide(0.8), Decision::Renew(0.6, 0.3));
        assert_eq!(learned.decide(0.5), Decision::Stay(0.3));
        // A new group begins anew.
        learned.add(&["2".to_owned()], share(900, 100), 4 * DAY, HALF);
        assert_eq!(learned.decide(0.8), Decision::Stay(0.9));
    }

    #[test]
    fn without_groups_a_busy_kernel_is_counted() {
        let mut learned = Learned::default();
        learned.add(&[], share(0, 999), DAY, HALF);
        assert_eq!(learned.decide(0.8), Decision::Wait);
        learned.add(&[], share(0, 1), DAY, HALF);
        assert_eq!(learned.decide(0.8), Decision::First);
        // Idle for a year: forgotten.
        learned.add(&[], share(0, 0), 400 * DAY, HALF);
        assert_eq!(learned.decide(0.8), Decision::Wait);
    }

    #[test]
    fn what_was_learned_is_read_as_it_was_written() {
        let mut learned = Learned::default();
        learned.add(&["1".to_owned()], share(1500, 3), DAY, HALF);
        let text = learned.to_json().unwrap();
        assert_eq!(Learned::from_json(&text).unwrap(), learned);
        for wrong in
            ["", &text[..40], &text.replace("1500", "1501"), &text.replace("d\":1", "d\":2")]
        {
            assert!(Learned::from_json(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pause_is_as_long_as_what_was_spent_needs() {
        let seconds = Duration::from_secs;
        let mut budget = Budget::new(0.005);
        budget.add_samples(50_000);
        budget.add_counts(250_000_000);
        // Half a second, half a second, and one of this process: at most 0.5 % of 400 s.
        assert_eq!(budget.spent(seconds(1)), seconds(2));
        assert_eq!(budget.pause(seconds(1), seconds(100), seconds(60)), seconds(300));
        assert_eq!(budget.pause(seconds(1), seconds(390), seconds(60)), seconds(60));
        assert_eq!(budget.pause(seconds(1), seconds(500), seconds(60)), seconds(60));
    }
}
