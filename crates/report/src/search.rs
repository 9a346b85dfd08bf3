//! The layouts of one search side by side, for a terminal.
//!
//! Input: the layouts with their misses. Output: text. Counts nothing.

use host::table::TextTable;
use replay::search::TriedLayouts;

/// A line for each seed, and one that says how far the layouts lie apart.
pub fn text(tried: &TriedLayouts) -> String {
    let mut titles = vec!["seed"];
    titles.extend(tried.workloads.iter().map(String::as_str));
    titles.push("mean");
    let mut table = TextTable::new(&titles);
    for one in &tried.tries {
        let changes =
            one.misses.iter().zip(&tried.original).map(|(&after, &before)| match before {
                0 => "-".to_owned(),
                before => format!("{:+.2} %", 100.0 * (after as f64 / before as f64 - 1.0)),
            });
        let mut cells = vec![one.seed.to_string()];
        cells.extend(changes);
        cells.push(format!("{:+.2} %", one.change));
        table.push(cells);
    }
    format!(
        "L1I misses of kernel and user against the original, replayed on {}:\n{}mean {:+.2} %, \
         standard deviation {:.2} points; the layout of seed {} is written\n",
        tried.machine,
        table.to_text(),
        tried.mean,
        tried.deviation,
        tried.best
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_has_a_line() {
        let tried = TriedLayouts::new(
            "server-32k".into(),
            vec!["net".into(), "idle".into()],
            vec![200, 0],
            vec![(1, vec![150, 0]), (2, vec![100, 0])],
        );
        let text = text(&tried);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["seed", "net", "idle", "mean"]);
        assert_eq!(lines[3], ["2", "-50.00", "%", "-", "-25.00", "%"]);
        assert!(text.ends_with("seed 2 is written\n"), "{text}");
    }
}
