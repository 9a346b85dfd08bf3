//! The layouts of one search side by side, for a terminal.
//!
//! Input: the layouts with their misses or times. Output: text. Counts nothing.

use host::table::TextTable;
use replay::results::Estimate;
use replay::search::{SearchedLayouts, TimedLayout, TimedLayouts, TriedLayouts};

/// A line for each layout, and which of them is written.
pub fn text(searched: &SearchedLayouts) -> String {
    match searched {
        SearchedLayouts::Misses(tried) => misses(tried),
        SearchedLayouts::Time(timed) => times(timed),
    }
}

/// A line for each algorithm and seed, and by how much the best is ahead.
fn times(timed: &TimedLayouts) -> String {
    let mut titles = vec!["layout", "seed"];
    titles.extend(timed.workloads.iter().map(String::as_str));
    titles.extend(["mean", "lead"]);
    let mut table = TextTable::new(&titles);
    for one in &timed.tries {
        let mut cells = vec![one.algorithm.clone(), one.seed.to_string()];
        cells.extend(one.changes.iter().map(interval));
        cells.extend([interval(&one.change), interval(&one.lead)]);
        table.push(cells);
    }
    let name = |layout: &TimedLayout| format!("{}, seed {}", layout.algorithm, layout.seed);
    let (first, best) = (&timed.tries[0], &timed.tries[timed.best]);
    let ahead = |lead: &Estimate| format!("{:.2} ±{:.2} points", lead.value, lead.within);
    let mut text = format!(
        "change of the kernel's time against the original in per cent, replayed on {}, and the \
         lead over\n{} in points:\n{}",
        timed.machine,
        name(first),
        table.to_text()
    );
    text += &match timed.best {
        0 => {
            format!("no layout is ahead of {} by more than the interval of its lead\n", name(first))
        }
        _ => format!("{} is ahead of {} by {}\n", name(best), name(first), ahead(&best.lead)),
    };
    if timed.smallest != timed.best {
        text += &format!(
            "{} is faster than {} by {}, which can be chance\n",
            name(&timed.tries[timed.smallest]),
            name(best),
            ahead(&timed.undecided)
        );
    }
    text + &format!("the layout of {} is written\n", name(best))
}

fn interval(estimate: &Estimate) -> String {
    // No sign before a zero.
    format!("{:+.2} ±{:.2}", estimate.value + 0.0, estimate.within)
}

/// A line for each seed, and one that says how far the layouts lie apart.
fn misses(tried: &TriedLayouts) -> String {
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
    use replay::search::PairedTimes;

    #[test]
    fn every_seed_has_a_line() {
        let tried = TriedLayouts::new(
            "server-32k".into(),
            vec!["net".into(), "idle".into()],
            vec![200, 0],
            vec![(1, vec![150, 0]), (2, vec![100, 0])],
        );
        let text = text(&SearchedLayouts::Misses(tried));
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["seed", "net", "idle", "mean"]);
        assert_eq!(lines[3], ["2", "-50.00", "%", "-", "-25.00", "%"]);
        assert!(text.ends_with("seed 2 is written\n"), "{text}");
    }

    fn timed(times: [f64; 3], within: f64) -> String {
        let row = |own: f64| times.map(|other| Estimate { value: own - other, within }).to_vec();
        let recording = PairedTimes { workload: "net".into(), differences: times.map(row).into() };
        let layouts = vec![("ext-tsp".to_owned(), 1), ("packed".to_owned(), 2)];
        text(&SearchedLayouts::Time(TimedLayouts::new("zen4".into(), layouts, &[recording])))
    }

    #[test]
    fn times_have_intervals_and_a_lead() {
        let text = timed([100.0, 90.0, 88.5], 0.25);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["layout", "seed", "net", "mean", "lead"]);
        let packed = ["packed", "2", "-11.50", "±0.25", "-11.50", "±0.25", "+1.50", "±0.25"];
        assert_eq!(lines[4], packed);
        let end = "packed, seed 2 is ahead of ext-tsp, seed 1 by 1.50 ±0.25 points\n\
                   the layout of packed, seed 2 is written\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn a_lead_that_can_be_chance_is_named() {
        let text = timed([100.0, 90.0, 89.9], 0.25);
        let end = "no layout is ahead of ext-tsp, seed 1 by more than the interval of its lead\n\
                   packed, seed 2 is faster than ext-tsp, seed 1 by 0.10 ±0.25 points, which can \
                   be chance\n\
                   the layout of ext-tsp, seed 1 is written\n";
        assert!(text.ends_with(end), "{text}");
    }
}
