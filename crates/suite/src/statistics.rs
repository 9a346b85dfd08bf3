//! Figures, their intervals, and whether two differ.
//!
//! A round starts a benchmark in a new process and measures several slices; the round's value is
//! the median of its slices, so that an interrupt in one slice changes nothing. Rounds are
//! independent. A figure is the mean of the rounds' logarithms, a fifth of them trimmed at each
//! end, with the interval of Tukey and McLaughlin 1963 (Student's t, winsorized variance). Two
//! figures are compared by the test of Yuen 1974 for trimmed means of unequal variance. Verdicts of
//! many benchmarks are corrected by Holm 1979.
//!
//! Logarithms make a difference a ratio: 2 % slower is 2 % slower in nanoseconds and milliseconds.
//!
//! Input: the values of rounds. Output: figures, intervals and verdicts. This module measures
//! nothing.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// The share of the rounds that is trimmed at each end.
const TRIMMED: f64 = 0.2;
/// The confidence of an interval.
pub(crate) const CONFIDENCE: f64 = 0.95;

/// The middle value; of an even number, the mean of the two in the middle. Sorts the values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() % 2 {
        0 if values.is_empty() => f64::NAN,
        0 => f64::midpoint(values[half - 1], values[half]),
        _ => values[half],
    }
}

/// A trimmed mean of logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The trimmed mean.
    pub mean: f64,
    /// The variance of the mean.
    pub variance: f64,
    /// Degrees of freedom: the rounds that were not trimmed, less one.
    pub freedom: f64,
}

impl Estimate {
    /// The estimate of values above zero. `None`: fewer than two values are left after trimming.
    pub fn of(values: &[f64]) -> Option<Estimate> {
        let mut logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
        logs.sort_by(f64::total_cmp);
        let count = logs.len();
        let cut = (TRIMMED * count as f64) as usize;
        let kept = count - 2 * cut;
        if kept < 2 {
            return None;
        }
        let mean = logs[cut..count - cut].iter().sum::<f64>() / kept as f64;
        let (low, high) = (logs[cut], logs[count - cut - 1]);
        let winsorized: Vec<f64> = logs.iter().map(|log| log.clamp(low, high)).collect();
        let middle = winsorized.iter().sum::<f64>() / count as f64;
        let squares: f64 = winsorized.iter().map(|log| (log - middle).powi(2)).sum();
        let variance = squares / (kept * (kept - 1)) as f64;
        Some(Estimate { mean, variance, freedom: (kept - 1) as f64 })
    }

    /// The figure, and the ends of its interval.
    pub fn figure(&self) -> [f64; 3] {
        let half = self.half_width();
        [self.mean.exp(), (self.mean - half).exp(), (self.mean + half).exp()]
    }

    /// Half of the interval's width, as a share of the figure (0.01: 1 %).
    pub fn half_width(&self) -> f64 {
        quantile(f64::midpoint(1.0, CONFIDENCE), self.freedom) * self.variance.sqrt()
    }
}

/// The difference of two figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Difference {
    /// Later by earlier, less one, and the ends of its interval.
    pub ratio: [f64; 3],
    /// How probable such a difference is when there is none.
    pub probability: f64,
}

/// Compares two figures.
pub(crate) fn compare(before: &Estimate, after: &Estimate) -> Difference {
    let difference = after.mean - before.mean;
    let variance = before.variance + after.variance;
    let share = |estimate: &Estimate| estimate.variance.powi(2) / estimate.freedom;
    let freedom = variance.powi(2) / (share(before) + share(after));
    if variance == 0.0 {
        let probability = if difference == 0.0 { 1.0 } else { 0.0 };
        return Difference { ratio: [difference.exp_m1(); 3], probability };
    }
    let error = variance.sqrt();
    let half = quantile(f64::midpoint(1.0, CONFIDENCE), freedom) * error;
    let ratio = [difference, difference - half, difference + half].map(f64::exp_m1);
    Difference { ratio, probability: 2.0 * (1.0 - student(difference.abs() / error, freedom)) }
}

/// The probabilities of many comparisons, corrected so that one wrong verdict among all of them is
/// as improbable as one alone was (Holm 1979). In the order of the input.
pub(crate) fn holm(probabilities: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]));
    let mut corrected = vec![0.0; probabilities.len()];
    let mut highest: f64 = 0.0;
    for (rank, at) in order.into_iter().enumerate() {
        let left = (probabilities.len() - rank) as f64;
        highest = highest.max((left * probabilities[at]).min(1.0));
        corrected[at] = highest;
    }
    corrected
}

/// Student's t distribution: the probability of a value below `t`. NaN without degrees of freedom.
fn student(t: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::NAN, |student| student.cdf(t))
}

/// Where Student's t distribution reaches a probability. NaN without degrees of freedom.
fn quantile(probability: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::NAN, |student| student.inverse_cdf(probability))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn near(got: f64, expected: f64, tolerance: f64) {
        assert!((got - expected).abs() <= tolerance, "{got} is not {expected}");
    }

    #[test]
    fn students_t_is_that_of_the_tables() {
        for (freedom, expected) in
            [(1.0, 12.7062), (2.0, 4.3027), (5.0, 2.5706), (10.0, 2.2281), (30.0, 2.0423)]
        {
            near(quantile(0.975, freedom), expected, 1e-4);
        }
        near(quantile(0.995, 7.0), 3.4995, 1e-4);
        // Two degrees of freedom: t = 2 (p - 1/2) sqrt(2 / (4 p (1 - p))).
        near(quantile(0.975, 2.0), 0.95 * (2.0f64 / (4.0 * 0.975 * 0.025)).sqrt(), 1e-9);
        near(quantile(0.975, 2.5), 3.574654842, 1e-8);
        near(student(0.0, 3.0), 0.5, 1e-12);
        // With one degree of freedom it is Cauchy's distribution.
        near(student(1.0, 1.0), 0.75, 1e-12);
        near(student(-1.0, 1.0), 0.25, 1e-12);
        assert!(student(1.0, 0.0).is_nan() && quantile(0.975, f64::NAN).is_nan());
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 100.0]), 3.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 100.0]), 3.0);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn an_estimate_by_hand() {
        // Logarithms 0, 1, …, 9, of which 0, 1, 8 and 9 are trimmed; winsorized, four values are 2
        // or 7 more than they were: squares around 4.5 are 3 × 2 × 2.5² + 2 × 1.5² + 2 × 0.5².
        let values: Vec<f64> = (0..10).map(|log| f64::from(log).exp()).collect();
        let estimate = Estimate::of(&values).unwrap();
        near(estimate.mean, 4.5, 1e-12);
        near(estimate.variance, 42.5 / 30.0, 1e-12);
        assert_eq!(estimate.freedom, 5.0);
        let [figure, low, high] = estimate.figure();
        near(figure, 4.5f64.exp(), 1e-9);
        near((high / figure).ln(), 2.570_58 * (42.5f64 / 30.0).sqrt(), 1e-4);
        near((figure / low).ln(), (high / figure).ln(), 1e-9);
        // One outlier at each end changes nothing.
        let mut wild = values;
        wild[9] = 1e30;
        wild[0] = 1e-30;
        assert_eq!(Estimate::of(&wild), Some(estimate));
        assert_eq!(Estimate::of(&[1.0]), None);
    }

    #[test]
    fn a_comparison_by_hand() {
        // Equal variances and freedoms: the pooled test with 10 degrees of freedom, where 2.2281 is
        // the limit of 5 %.
        let before = Estimate { mean: 0.0, variance: 0.5, freedom: 5.0 };
        let after = Estimate { mean: 2.228_139, variance: 0.5, freedom: 5.0 };
        let difference = compare(&before, &after);
        near(difference.probability, 0.05, 1e-6);
        near(difference.ratio[0], 2.228_139f64.exp() - 1.0, 1e-9);
        near(difference.ratio[1], 0.0, 1e-5);
        let same = Estimate { mean: 1.0, variance: 0.0, freedom: 5.0 };
        assert_eq!(compare(&same, &same).probability, 1.0);
    }

    #[test]
    fn holms_correction_is_that_of_the_paper() {
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (got, expected) in corrected.into_iter().zip([0.03, 0.06, 0.06, 0.02]) {
            near(got, expected, 1e-12);
        }
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }

    /// A benchmark's rounds on a noisy machine: each start has a level of its own, some starts are
    /// far off, and slices are disturbed upwards.
    fn rounds(random: &mut Random, count: usize, level: f64) -> Vec<f64> {
        let mut uniform = || (random.number() >> 11) as f64 / (1u64 << 53) as f64;
        let mut normal = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        (0..count)
            .map(|_| {
                let start = level * (0.01 * normal()).exp();
                let unlucky = if normal() > 1.6 { 1.05 } else { 1.0 };
                let mut slices: Vec<f64> = (0..5)
                    .map(|_| {
                        let disturbed = if normal() > 1.2 { 1.5 } else { 1.0 };
                        start * unlucky * disturbed * (0.01 * normal()).exp()
                    })
                    .collect();
                median(&mut slices)
            })
            .collect()
    }

    /// What the figure of infinitely many rounds would be.
    fn level_of_many() -> f64 {
        Estimate::of(&rounds(&mut Random::new(99), 40_000, 100.0)).unwrap().mean
    }

    #[test]
    fn intervals_hold_the_level_as_often_as_they_say() {
        let truth = level_of_many();
        let mut random = Random::new(1);
        for count in [10, 20, 40] {
            let held = (0..1000)
                .filter(|_| {
                    let estimate = Estimate::of(&rounds(&mut random, count, 100.0)).unwrap();
                    (estimate.mean - truth).abs() <= estimate.half_width()
                })
                .count();
            assert!((930..=985).contains(&held), "{count} rounds: {held} of 1000");
        }
    }

    #[test]
    fn stopping_when_the_interval_is_narrow_costs_little_of_that() {
        let truth = level_of_many();
        let mut random = Random::new(2);
        let held = (0..1000)
            .filter(|_| {
                let mut values = rounds(&mut random, 10, 100.0);
                let estimate = loop {
                    let estimate = Estimate::of(&values).unwrap();
                    if estimate.half_width() <= 0.01 || values.len() >= 100 {
                        break estimate;
                    }
                    values.extend(rounds(&mut random, 1, 100.0));
                };
                (estimate.mean - truth).abs() <= estimate.half_width()
            })
            .count();
        assert!((900..=985).contains(&held), "{held} of 1000");
    }

    #[test]
    fn of_equal_machines_few_verdicts_are_wrong_and_real_differences_are_found() {
        let mut random = Random::new(3);
        let mut of =
            |count: usize, level: f64| Estimate::of(&rounds(&mut random, count, level)).unwrap();
        // 200 comparisons of 100 benchmarks each; Holm allows one wrong verdict in 1 of 20.
        let mut wrong = 0;
        let mut uncorrected = 0;
        for _ in 0..200 {
            let probabilities: Vec<f64> =
                (0..100).map(|_| compare(&of(12, 100.0), &of(15, 100.0)).probability).collect();
            uncorrected += probabilities.iter().filter(|p| **p < 0.05).count();
            wrong += usize::from(holm(&probabilities).iter().any(|p| *p < 0.05));
        }
        assert!(wrong <= 22, "{wrong} of 200 comparisons had a wrong verdict");
        assert!((600..=1300).contains(&uncorrected), "{uncorrected} of 20000 tests");
        // 5 % slower among 100 benchmarks is found.
        let mut probabilities: Vec<f64> =
            (0..99).map(|_| compare(&of(20, 100.0), &of(20, 100.0)).probability).collect();
        probabilities.push(compare(&of(20, 100.0), &of(20, 105.0)).probability);
        assert!(holm(&probabilities)[99] < 0.05);
    }
}
