//! Which layouts lose on the recordings that they are given.
//!
//! Takes result rows; names those that miss more, or jump more, than the original of the same kind
//! on the same recording and machine. A layout made from other work can: what did not run then lies
//! with the cold. Never refuses anything: saying it is all.

use crate::results::Row;

/// A layout that is worse than the original by more than this share is said to lose: one line more
/// or less is luck.
const NOTABLE: f64 = 0.005;

/// A sentence for each layout that loses, in the order of the rows.
pub fn losses(rows: &[Row]) -> Vec<String> {
    rows.iter().filter_map(|row| loss(row, original_of(row, rows)?)).collect()
}

fn original_of<'a>(row: &Row, rows: &'a [Row]) -> Option<&'a Row> {
    let same = |other: &&Row| {
        (&other.workload, &other.machine, other.seed, other.kind)
            == (&row.workload, &row.machine, row.seed, row.kind)
            && other.layout == "original"
    };
    rows.iter().find(same).filter(|_| row.layout != "original")
}

fn loss(row: &Row, original: &Row) -> Option<String> {
    let lost = [
        (
            "L1I misses, of kernel and user together",
            row.counters.misses(),
            original.counters.misses(),
        ),
        ("kernel jumps taken", row.counters.kernel_jumps(), original.counters.kernel_jumps()),
    ];
    let lost: Vec<String> = lost
        .into_iter()
        .filter(|&(_, now, before)| now as f64 > before as f64 * (1.0 + NOTABLE))
        .map(|(what, now, before)| {
            format!("{:.1} % more {what}", 100.0 * (now as f64 / before.max(1) as f64 - 1.0))
        })
        .collect();
    (!lost.is_empty()).then(|| {
        format!(
            "{} loses against the original on {} ({}): {}. Was it made from a profile of other work?",
            row.layout,
            row.workload,
            row.machine,
            lost.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::row;
    use crate::results::Kind;

    #[test]
    fn only_what_is_worse_than_its_own_original_loses() {
        let rows = [
            row("original", Kind::Predicted, 1000, &[]),
            row("better", Kind::Predicted, 800, &[]),
            row("as-good", Kind::Predicted, 1004, &[]),
            row("worse", Kind::Predicted, 1100, &[]),
        ];
        let losses = losses(&rows);
        assert_eq!(losses.len(), 1, "{losses:?}");
        assert!(losses[0].starts_with(
            "worse loses against the original on net (server-32k): 10.0 % more L1I misses"
        ));
    }

    #[test]
    fn without_an_original_beside_it_nothing_is_said() {
        let mut other = row("original", Kind::Predicted, 1000, &[]);
        other.machine = "another".to_owned();
        assert!(losses(&[other, row("worse", Kind::Predicted, 1100, &[])]).is_empty());
    }
}
