//! Tables of layouts that were made from one workload and tested on others, for a terminal.
//!
//! Input: the trials. Output: text. Counts nothing.

use crate::text::in_order;
use host::table::TextTable;
use replay::results::TestedLayout;

/// A table for each algorithm and machine. A line stands for the profiles that a layout was made
/// from, a column for the workload that it was tested on.
pub fn text(tested: &[TestedLayout]) -> String {
    let mut text = String::new();
    let algorithms = in_order(tested, |it| &it.algorithm);
    let machines = in_order(tested, |it| &it.machine);
    let workloads = in_order(tested, |it| &it.tested);
    for (algorithm, machine) in
        algorithms.iter().flat_map(|a| machines.iter().map(move |m| (*a, *m)))
    {
        let of: Vec<&TestedLayout> = tested
            .iter()
            .filter(|it| it.algorithm == *algorithm && it.machine == *machine)
            .collect();
        let mut titles = vec!["made from"];
        titles.extend(workloads.iter().flat_map(|name| [name.as_str(), "jumps"]));
        let mut table = TextTable::new(&titles);
        for trained in in_order(tested, |it| &it.trained) {
            let mut cells = vec![trained.clone()];
            for workload in &workloads {
                match of.iter().find(|it| it.trained == *trained && it.tested == **workload) {
                    Some(it) => cells.extend([change(it.misses), change(it.jumps)]),
                    None => cells.extend(["-".to_owned(), "-".to_owned()]),
                }
            }
            table.push(cells);
        }
        text += &format!(
            "{algorithm} on {machine}: L1I misses of kernel and user, and kernel jumps taken, \
             against the original\n"
        );
        text += &table.to_text();
        text.push('\n');
    }
    text
}

fn change([before, after]: [u64; 2]) -> String {
    format!("{:+.1} %", 100.0 * (after as f64 / before.max(1) as f64 - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untested_pair_has_a_dash() {
        let tested = |trained: &str, tested: &str, misses| TestedLayout {
            algorithm: "joint".into(),
            trained: trained.into(),
            tested: tested.into(),
            machine: "server-32k".into(),
            misses,
            jumps: [100, 150],
        };
        let text = text(&[
            tested("itself", "net", [200, 100]),
            tested("itself", "files", [100, 90]),
            tested("only files", "net", [200, 220]),
        ]);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(
            lines.iter().any(|line| line[..]
                == ["itself", "-50.0", "%", "+50.0", "%", "-10.0", "%", "+50.0", "%"]),
            "{text}"
        );
        assert!(
            lines
                .iter()
                .any(|line| line[..] == ["only", "files", "+10.0", "%", "+50.0", "%", "-", "-"]),
            "{text}"
        );
    }
}
