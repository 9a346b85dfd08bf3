//! Ratios of whole numbers.
//!
//! Input: whole numbers. Output: their ratio in lowest terms, and the nearest number that a report
//! prints. Rounds only that number.

/// A ratio of whole numbers, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fraction {
    numerator: u128,
    denominator: u128,
}

impl Fraction {
    /// `None` when one of the numbers is 0: no ratio of times is 0 or infinite.
    pub(super) fn new(numerator: u128, denominator: u128) -> Option<Fraction> {
        if numerator == 0 || denominator == 0 {
            return None;
        }
        let common = common_divisor(numerator, denominator);
        Some(Fraction { numerator: numerator / common, denominator: denominator / common })
    }

    /// The nearest number, to 15 digits.
    pub(super) fn value(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }
}

/// The greatest common divisor of two numbers above 0 (Euclid).
fn common_divisor(mut larger: u128, mut smaller: u128) -> u128 {
    while smaller != 0 {
        (larger, smaller) = (smaller, larger % smaller);
    }
    larger
}

#[cfg(test)]
impl std::ops::Mul for Fraction {
    type Output = Fraction;

    fn mul(self, other: Fraction) -> Fraction {
        let numerator = self.numerator * other.numerator;
        Fraction::new(numerator, self.denominator * other.denominator).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_in_lowest_terms() {
        let third = Fraction::new(7, 21).unwrap();
        assert_eq!((third.numerator, third.denominator), (1, 3));
        assert_eq!(third, Fraction::new(1, 3).unwrap());
        assert_eq!(third.value(), 1.0 / 3.0);
        assert_eq!((Fraction::new(0, 3), Fraction::new(3, 0)), (None, None));
        let huge = u128::from(u64::MAX) << 49;
        assert_eq!(Fraction::new(huge, huge), Fraction::new(1, 1));
    }
}
