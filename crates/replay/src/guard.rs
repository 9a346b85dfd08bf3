//! Finds layouts that lose on the replayed recordings.
//!
//! Takes result rows; names layouts that miss more, or jump more, than the original of the same
//! kind on the same recording and machine. A layout made from other work can lose: it places code
//! that did not run then with the cold code. Only warns, never refuses a layout.

use crate::results::ResultRow;

/// A layout loses when it is worse than the original by more than this share. Smaller differences
/// are chance.
const NOTABLE: f64 = 0.005;

/// A sentence for each layout that loses, in the order of the rows.
pub fn losses(rows: &[ResultRow]) -> Vec<String> {
    rows.iter().filter_map(|row| loss(row, original_of(row, rows)?)).collect()
}

fn original_of<'a>(row: &ResultRow, rows: &'a [ResultRow]) -> Option<&'a ResultRow> {
    let same = |other: &&ResultRow| {
        (&other.workload, &other.machine, other.seed, other.kind)
            == (&row.workload, &row.machine, row.seed, row.kind)
            && other.layout == "original"
    };
    rows.iter().find(same).filter(|_| row.layout != "original")
}

fn loss(row: &ResultRow, original: &ResultRow) -> Option<String> {
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
            "{} loses against the original on {} ({}): {}. Was it made from a profile of other \
             work?",
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
    use crate::results::ResultKind;

    #[test]
    fn a_layout_loses_only_against_its_own_original() {
        let rows = [
            row("original", ResultKind::Predicted, 1000, &[]),
            row("better", ResultKind::Predicted, 800, &[]),
            row("as-good", ResultKind::Predicted, 1004, &[]),
            row("worse", ResultKind::Predicted, 1100, &[]),
        ];
        let losses = losses(&rows);
        assert_eq!(losses.len(), 1, "{losses:?}");
        assert!(losses[0].starts_with(
            "worse loses against the original on net (server-32k): 10.0 % more L1I misses"
        ));
    }

    #[test]
    fn without_its_original_no_layout_is_named() {
        let mut other = row("original", ResultKind::Predicted, 1000, &[]);
        other.machine = "another".to_owned();
        assert!(losses(&[other, row("worse", ResultKind::Predicted, 1100, &[])]).is_empty());
    }
}
