//! Least squares: totals of the whole from what is known of it and of units.
//!
//! Input: what is known of each unit and of the whole, and values of the units. Output: the total
//! of the values in the whole, and how far it may be off. This module knows no counters.

/// A linear function of what is known of the units, by least squares.
pub(super) struct Regression<'a> {
    rows: &'a [Vec<f64>],
    /// What is known of the whole.
    known: &'a [f64],
    /// The inverse of the matrix of sums of products. Columns that others determine are zero.
    inverse: Vec<Vec<f64>>,
    /// The columns that count.
    rank: usize,
}

impl<'a> Regression<'a> {
    pub(super) fn new(rows: &'a [Vec<f64>], known: &'a [f64]) -> Regression<'a> {
        let columns = known.len();
        let mut sums = vec![vec![0.0; columns]; columns];
        for row in rows {
            for (sums, x) in sums.iter_mut().zip(row) {
                sums.iter_mut().zip(row).for_each(|(sum, y)| *sum += x * y);
            }
        }
        let (inverse, rank) = inverse(&sums);
        Regression { rows, known, inverse, rank }
    }

    /// The factors of what is known in `values`, one for each unit.
    pub(super) fn factors(&self, values: &[f64]) -> Vec<f64> {
        let mut products = vec![0.0; self.known.len()];
        for (row, value) in self.rows.iter().zip(values) {
            products.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * value);
        }
        self.inverse.iter().map(|row| dot(row, &products)).collect()
    }

    /// The total of `values` in the whole.
    pub(super) fn total(&self, values: &[f64]) -> f64 {
        dot(&self.factors(values), self.known)
    }

    /// What is left of `values`.
    pub(super) fn residuals(&self, values: &[f64]) -> Vec<f64> {
        let factors = self.factors(values);
        self.rows.iter().zip(values).map(|(row, value)| value - dot(row, &factors)).collect()
    }

    /// By this factor, the root of the sum of the squares of residuals becomes half of a 95 %
    /// interval of a total: by what the units leave out, and by what the factors are uncertain when
    /// the units have other counts than the whole.
    pub(super) fn spread(&self) -> f64 {
        let (units, all) = (self.rows.len() as f64, self.known[0]);
        let left_out = all * all * (1.0 - units / all.max(1.0)).max(0.0) / units.max(1.0);
        let apart: Vec<f64> = self
            .of_units()
            .iter()
            .zip(self.known)
            .map(|(of_units, whole)| whole - of_units)
            .collect();
        let factors: Vec<f64> = self.inverse.iter().map(|row| dot(row, &apart)).collect();
        let degrees = (units - self.rank as f64).max(1.0);
        1.96 * ((left_out + dot(&factors, &apart).max(0.0)) / degrees).sqrt()
    }

    /// The counts of the whole, if it were as the units are.
    fn of_units(&self) -> Vec<f64> {
        let factor = self.known[0] / (self.rows.len() as f64).max(1.0);
        let mut sums = vec![0.0; self.known.len()];
        for row in self.rows {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * factor);
        }
        sums
    }

    /// The events of the kernel and of user code that no unit has, although the whole has some.
    pub(super) fn unseen(&self) -> [f64; 2] {
        let half = self.known.len().div_ceil(2);
        let mut unseen = [0.0; 2];
        for (at, (of_units, whole)) in self.of_units().into_iter().zip(self.known).enumerate() {
            if of_units == 0.0 {
                unseen[usize::from(at >= half)] += whole;
            }
        }
        unseen
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The inverse of a symmetric, positive semidefinite matrix, by the sweep operator (Goodnight, "A
/// Tutorial on the SWEEP Operator", The American Statistician 33, 1979), the largest pivot first.
/// Rows and columns that others determine are zero. Also returns the rank.
fn inverse(matrix: &[Vec<f64>]) -> (Vec<Vec<f64>>, usize) {
    let size = matrix.len();
    // Scaled, so that one bound tells for all columns what is as good as zero.
    let scale: Vec<f64> = (0..size)
        .map(|at| if matrix[at][at] > 0.0 { matrix[at][at].sqrt().recip() } else { 0.0 })
        .collect();
    let scaled = |row: usize| (0..size).map(move |column| (row, column));
    let mut swept = vec![false; size];
    let mut work: Vec<Vec<f64>> = (0..size)
        .map(|row| scaled(row).map(|(row, at)| matrix[row][at] * scale[row] * scale[at]).collect())
        .collect();
    loop {
        let left = (0..size).filter(|&at| !swept[at]);
        let largest = left.max_by(|&a, &b| work[a][a].total_cmp(&work[b][b]));
        let Some(pivot) = largest.filter(|&at| work[at][at] > SMALLEST_PIVOT) else { break };
        swept[pivot] = true;
        let by = work[pivot][pivot];
        let pivot_row: Vec<f64> = work[pivot].iter().map(|value| value / by).collect();
        for row in (0..size).filter(|&row| row != pivot) {
            let factor = work[row][pivot];
            for column in (0..size).filter(|&column| column != pivot) {
                work[row][column] -= factor * pivot_row[column];
            }
            work[row][pivot] = factor / by;
        }
        work[pivot] = pivot_row;
        work[pivot][pivot] = -by.recip();
    }
    let inverse = (0..size).map(|row| {
        let of = |(row, at): (usize, usize)| match swept[row] && swept[at] {
            true => -work[row][at] * scale[row] * scale[at],
            false => 0.0,
        };
        scaled(row).map(of).collect()
    });
    (inverse.collect(), swept.iter().filter(|swept| **swept).count())
}

/// What is left of a column's square, in parts of it, when others determine the column.
const SMALLEST_PIVOT: f64 = 1e-9;

#[cfg(test)]
mod tests {
    use super::*;

    /// Dependent columns do not spoil the others.
    #[test]
    fn an_inverse_of_what_can_be_inverted() {
        let matrix = vec![vec![4.0, 2.0, 6.0], vec![2.0, 3.0, 5.0], vec![6.0, 5.0, 11.0]];
        let (inverse, rank) = inverse(&matrix);
        assert_eq!(rank, 2);
        let swept: Vec<usize> = (0..3).filter(|&at| inverse[at][at] != 0.0).collect();
        for &row in &swept {
            for &column in &swept {
                let product: f64 =
                    swept.iter().map(|&at| inverse[row][at] * matrix[at][column]).sum();
                let expected = if row == column { 1.0 } else { 0.0 };
                assert!((product - expected).abs() < 1e-9, "{row} {column}: {product}");
            }
        }
    }
}
