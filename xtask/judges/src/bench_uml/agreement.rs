//! How far the model is from what was measured.
//!
//! Input: measured and simulated speeds of kernels under a load. Output: how many speeds are within
//! two points, and how many pairs of kernels the model has in the right order. Only pairs count
//! that the measurement can separate.

use lab::kept::Figure;

/// The largest accepted difference of two speeds.
const POINTS: f64 = 0.02;

/// Counts over the kernels of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Agreement {
    pub speeds: usize,
    pub near: usize,
    pub pairs: usize,
    pub in_order: usize,
    /// The mean absolute difference.
    pub mean: f64,
}

impl Agreement {
    /// `kernels`: what was measured of each, and its simulated speed. The original kernel's speed
    /// is 1 by definition, and belongs to the pairs.
    pub(super) fn new(kernels: &[(Figure, f64)]) -> Agreement {
        let original = Figure { value: 1.0, low: 1.0, high: 1.0, rounds: 0 };
        let all: Vec<(Figure, f64)> =
            [(original, 1.0)].into_iter().chain(kernels.iter().copied()).collect();
        let mut found = Agreement { speeds: kernels.len(), ..Agreement::default() };
        for (figure, simulated) in kernels {
            let off = (figure.value - simulated).abs();
            found.near += usize::from(off <= POINTS);
            found.mean += off / kernels.len() as f64;
        }
        for (at, (one, simulated)) in all.iter().enumerate() {
            for (other, others) in &all[at + 1..] {
                let difference = (one.value / other.value).ln();
                let half = one.half_width().hypot(other.half_width());
                if difference.abs() > half {
                    found.pairs += 1;
                    found.in_order += usize::from((difference > 0.0) == (simulated > others));
                }
            }
        }
        found
    }

    pub(super) fn text(&self, load: &str) -> String {
        let Agreement { speeds, near, pairs, in_order, mean } = self;
        format!(
            "{load}: {near} of {speeds} simulated speeds are within {:.0} points of the measured \
             ones ({:.1} points in the mean); {in_order} of the {pairs} pairs of kernels that the \
             measurement separates are in its order\n",
            100.0 * POINTS,
            100.0 * mean
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_and_orders_are_counted() {
        let figure =
            |value: f64| Figure { value, low: value / 1.01, high: value * 1.01, rounds: 9 };
        // The first two cannot be separated; both are faster than the original, the third is not.
        let kernels = [(figure(1.10), 1.09), (figure(1.105), 1.02), (figure(0.9), 1.03)];
        let found = Agreement::new(&kernels);
        assert_eq!((found.speeds, found.near), (3, 1));
        assert_eq!((found.pairs, found.in_order), (5, 3));
        assert!((found.mean - 0.225 / 3.0).abs() < 1e-9);
        assert!(found.text("web").starts_with("web: 1 of 3 simulated speeds are within 2 points"));
    }
}
