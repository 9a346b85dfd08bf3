//! The order of several CPUs, and how far it moves counts, as text.
//!
//! Input: the totals of `coherence`. Output: text. Counts nothing.

use coherence::sharing::table::{OrderedTotals, SharingTotal};
use execution::cpu_order::CpuOrder;

/// How the CPUs make their steps.
pub(crate) fn title(order: CpuOrder) -> &'static str {
    match order {
        CpuOrder::SideBySide => "side by side in simulated time",
        CpuOrder::Recorded => "in the order of the recording",
    }
}

/// How far the counts are from those in the order of the recording. Empty when they are those.
pub(crate) fn moved(totals: &OrderedTotals) -> String {
    let Some(recorded) = &totals.recorded else { return String::new() };
    type OfTotal = fn(&SharingTotal) -> f64;
    let counts: [(&str, OfTotal); 4] = [
        ("misses by true sharing", |total| total.all_misses().true_sharing as f64),
        ("by false sharing", |total| total.all_misses().false_sharing as f64),
        ("upgrades", |total| total.upgrades.total() as f64),
        ("kcycles of coherence", |total| (total.cycles / 1e3).round()),
    ];
    let parts = counts.map(|(title, of)| {
        let (before, now) = (of(recorded), of(&totals.total));
        let change = match before {
            0.0 if now == 0.0 => "+0.0 %".to_owned(),
            0.0 => format!("{now:+}"),
            _ => format!("{:+.1} %", 100.0 * (now - before) / before),
        };
        format!("{before} {title} (side by side {change})")
    });
    format!("in the order of the recording: {}\n\n", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stand_beside_those_of_the_recording() {
        let mut total = SharingTotal { cycles: 13_860_400.0, ..SharingTotal::default() };
        total.misses.user.true_sharing = 100;
        total.misses.kernel.false_sharing = 76_200;
        total.upgrades.kernel = 7;
        let mut recorded = SharingTotal { cycles: 400_000.0, ..total };
        recorded.misses.kernel.false_sharing = 533;
        recorded.upgrades.kernel = 0;
        let totals = OrderedTotals { order: CpuOrder::SideBySide, total, recorded: Some(recorded) };
        let expected = "in the order of the recording: 100 misses by true sharing (side by side \
                        +0.0 %), 533 by false sharing (side by side +14196.4 %), 0 upgrades (side \
                        by side +7), 400 kcycles of coherence (side by side +3365.0 %)\n\n";
        assert_eq!(moved(&totals), expected);
        assert_eq!(moved(&OrderedTotals { recorded: None, ..totals }), "");
    }
}
