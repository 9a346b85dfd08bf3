//! The steps of a road that is taken twice, once for each of two kernels: which one runs, and how
//! long the rest takes.
//!
//! Input: the steps as they begin. Output: a remark for each. The steps of the first kernel tell
//! how long those of the second take. This module does no step itself.

use crate::said::say;
use anyhow::Result;
use std::time::{Duration, Instant};

/// The steps for one kernel: build it; record; count; lay out, relink, prove, boot, record again
/// and simulate.
const STEPS: usize = 4;

/// The steps of both kernels.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    begun: usize,
    /// How long the steps of the first kernel took; `None` where a result was there.
    times: Vec<Option<Duration>>,
}

impl Steps {
    /// Does the next step. `is_made`: its result is there, so its time says nothing.
    ///
    /// # Errors
    /// Those of the work; or the user has interrupted.
    pub(crate) fn step<T>(
        &mut self,
        what: &str,
        is_made: bool,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        say(&format!("step {}: {what}{}", self.number(), in_words(self.time_left())))?;
        let begun = Instant::now();
        let result = work()?;
        if self.begun < STEPS {
            self.times.push((!is_made).then(|| begun.elapsed()));
        }
        self.begun += 1;
        Ok(result)
    }

    /// `3 of 8`
    fn number(&self) -> String {
        format!("{} of {}", self.begun + 1, 2 * STEPS)
    }

    /// The time from here to the end, once the steps of the first kernel have told it.
    fn time_left(&self) -> Option<Duration> {
        let passed = self.begun.checked_sub(STEPS)?;
        self.times.get(passed..)?.iter().copied().sum()
    }
}

fn in_words(left: Option<Duration>) -> String {
    let Some(left) = left else { return String::new() };
    match left.as_secs().div_ceil(60) {
        0 | 1 => "; about a minute is left".to_owned(),
        minutes => format!("; about {minutes} minutes are left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn after(begun: usize, times: [Option<Duration>; 4]) -> Steps {
        Steps { begun, times: times.into_iter().take(begun).collect() }
    }

    #[test]
    fn the_first_kernel_tells_how_long_the_second_takes() {
        let times = [10, 3, 1, 5].map(|minutes| Some(minutes * MINUTE));
        assert_eq!(after(3, times).time_left(), None);
        assert_eq!(after(4, times).time_left(), Some(19 * MINUTE));
        assert_eq!(after(6, times).time_left(), Some(6 * MINUTE));
        assert_eq!(after(6, times).number(), "7 of 8");
    }

    #[test]
    fn a_step_whose_result_was_there_tells_nothing() {
        let times = [None, Some(3 * MINUTE), Some(MINUTE), Some(5 * MINUTE)];
        assert_eq!(after(4, times).time_left(), None);
        // The second kernel's build is over.
        assert_eq!(after(5, times).time_left(), Some(9 * MINUTE));
    }

    #[test]
    fn steps_are_counted_and_timed() {
        let mut steps = Steps::default();
        for number in 0..STEPS {
            assert_eq!(steps.step("work", number == 1, || Ok(number)).unwrap(), number);
        }
        let known: Vec<bool> = steps.times.iter().map(Option::is_some).collect();
        assert_eq!((steps.begun, known), (4, vec![true, false, true, true]));
        assert!(steps.step::<()>("work", false, || anyhow::bail!("no disk")).is_err());
    }

    #[test]
    fn minutes_are_rounded_up() {
        assert_eq!(in_words(None), "");
        assert_eq!(in_words(Some(Duration::from_secs(20))), "; about a minute is left");
        assert_eq!(in_words(Some(Duration::from_secs(61))), "; about 2 minutes are left");
    }
}
