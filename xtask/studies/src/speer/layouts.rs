//! The kernels that are compared: by what they are made for, and by which algorithm.

/// Speer's compiler lays procedures and blocks out by Pettis and Hansen's algorithms. The other is
/// the default of `kernlane layout`.
pub(super) const ALGORITHMS: [&str; 2] = ["pettis-hansen", "ext-tsp"];
/// The kernel for all four benchmarks together.
pub(super) const AVERAGE: &str = "average";

/// The name of a layout: of the kernel that it makes.
pub(super) fn layout_name(kernel: &str, algorithm: &str) -> String {
    format!("{kernel}.{algorithm}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_the_default() {
        assert_eq!(ALGORITHMS[1], kernlane_layout::Algorithm::default().name());
    }
}
