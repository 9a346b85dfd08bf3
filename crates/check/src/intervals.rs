//! Sets of addresses as ascending intervals.

/// The ranges (start, size) as merged, ascending intervals (start, end).
pub(crate) fn intervals(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> =
        ranges.filter(|r| r.1 > 0).map(|(a, n)| (a, a.saturating_add(n))).collect();
    all.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in all {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// Whether an interval holds `addr`.
pub(crate) fn contains(intervals: &[(u64, u64)], addr: u64) -> bool {
    let after = intervals.partition_point(|i| i.0 <= addr);
    after > 0 && addr < intervals[after - 1].1
}
