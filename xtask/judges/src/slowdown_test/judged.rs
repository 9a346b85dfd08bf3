//! What `kernlane bench --compare` says of the kernels, and whether that is right.
//!
//! Input: what was measured. Output: result files in the directory, verdicts, a table.

use super::{AGAIN, ORIGINAL, PATCHED, SHARE, SLOWED, SLOWER, SlowdownMeasurements};
use anyhow::{Context, Result, ensure};
use host::table::{Column, TextTable};
use lab::processor::Processor;
use lab::session::percent;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The largest share of the benchmarks that may differ between two runs of one kernel.
const MAY_DIFFER: f64 = 0.05;
/// A wider interval is noisy, in percent: as the suite has it by default.
const PRECISION_PERCENT: f64 = 1.0;

/// A comparison as `--json` prints it.
#[derive(Debug, Deserialize)]
struct Compared {
    rows: Vec<Row>,
    left_out: Vec<(String, String)>,
}

#[derive(Debug, Deserialize)]
struct Row {
    name: String,
    nanoseconds: [f64; 2],
    percent: [f64; 3],
    verdict: String,
}

impl Row {
    fn differs(&self) -> bool {
        self.verdict != "no-difference-found"
    }
}

/// The comparisons.
pub(super) struct Verdicts {
    /// The demo kernel with itself.
    same: Compared,
    /// The demo kernel, and the patched one without additions, with the slowed one.
    slowed: [Compared; 2],
}

impl Verdicts {
    /// Writes results, and compares them by the command.
    pub(super) fn compare(
        kernlane: &Path,
        directory: &Path,
        measured: &SlowdownMeasurements,
    ) -> Result<Verdicts> {
        let warning = format!("each round is the median of one boot, of {}", measured.starts());
        let written = |kernel: &str| -> Result<PathBuf> {
            let path = directory.join(format!("{}.json", kernel.replace(' ', "-")));
            let warnings = [warning.clone()];
            let rounds = measured.rounds(kernel);
            let text = suite::served::result(kernel, PRECISION_PERCENT, &rounds, &warnings)?;
            host::output::write(&path, text.as_bytes())?;
            Ok(path)
        };
        let compared = |before: &Path, after: &Path| -> Result<Compared> {
            let mut command = Command::new(kernlane);
            command.args(["bench", "--json", "--compare"]).arg(before).arg(after);
            let output = lab::succeeded(&mut command)?;
            serde_json::from_slice(&output.stdout).with_context(|| format!("{command:?}"))
        };
        let [original, again, patched, slower] = [ORIGINAL, AGAIN, PATCHED, SLOWER].map(written);
        let (original, slower) = (original?, slower?);
        Ok(Verdicts {
            same: compared(&original, &again?)?,
            slowed: [compared(&original, &slower)?, compared(&patched?, &slower)?],
        })
    }

    /// Fails unless exactly the slowed benchmark is found, and two runs of one kernel are alike.
    pub(super) fn judge(&self) -> Result<()> {
        let Compared { rows, left_out } = &self.same;
        ensure!(!rows.is_empty(), "nothing was compared: {left_out:?}");
        let differ: Vec<&Row> = rows.iter().filter(|row| row.differs()).collect();
        ensure!(
            differ.len() as f64 <= MAY_DIFFER * rows.len() as f64,
            "two runs of one kernel differ in {} of {} benchmarks: {differ:?}",
            differ.len(),
            rows.len()
        );
        for compared in &self.slowed {
            let found: Vec<&Row> = compared.rows.iter().filter(|row| row.differs()).collect();
            let right = matches!(found[..], [row] if row.name == SLOWED && row.verdict == "slower");
            ensure!(right, "not only {SLOWED} was found to be slower, but: {found:?}");
        }
        println!("passed: {SLOWED}, slower by {} %, was found, and nothing else", 100.0 * SHARE);
        Ok(())
    }

    /// Conditions, what was found, and every figure.
    pub(super) fn text(&self, measured: &SlowdownMeasurements, here: &Processor) -> String {
        let shares = measured.disturbances;
        let mut text = format!(
            "Processor: {here}, {:.2} GHz at the beginning.\nMeasured for {:.0} \
             s, {} starts of {} kernels; {} of {} slices gave nothing, because the frequency \
             changed.\nOf the time of the measured CPU the hypervisor took {}; the other CPUs were \
             busy for {}.\n",
            measured.gigahertz,
            measured.seconds,
            measured.starts(),
            measured.cycles.len(),
            measured.disturbed,
            measured.slices,
            percent(shares.steal_percent),
            percent(shares.other_cpus_percent),
        );
        if let Some(found) = measured.calibration {
            text += &format!(
                "{SLOWED} takes {:.0} core cycles in User Mode Linux, and an addition {:.3}: {} \
                 additions are {} %.\n",
                found.operation,
                found.addition,
                found.additions,
                100.0 * SHARE
            );
        }
        for (name, why) in &measured.not_run {
            text += &format!("Not run: {name}: {why}.\n");
        }
        let [by_original, by_patched] = &self.slowed;
        let comparisons = [
            (format!("{ORIGINAL} → {AGAIN}"), &self.same),
            (format!("{ORIGINAL} → {SLOWER}"), by_original),
            (format!("{PATCHED} → {SLOWER}"), by_patched),
        ];
        text += "\nBenchmarks that `kernlane bench --compare` finds to differ\n";
        for (title, compared) in &comparisons {
            let found: Vec<&Row> = compared.rows.iter().filter(|row| row.differs()).collect();
            text += &format!("{title}: {} of {}\n", found.len(), compared.rows.len());
            for row in found {
                let [change, low, high] = row.percent;
                let Row { name, verdict, .. } = row;
                text += &format!("  {name}: {verdict}, {change:+.2} % ({low:+.2} to {high:+.2})\n");
            }
        }
        text += "\nChange in percent, with half of its 95 % interval\n";
        let of_kernels = comparisons.iter().map(|(title, _)| Column::right(title).fixed(25).gap(1));
        let first = [Column::left("benchmark").fixed(26), Column::right("ns").fixed(10).gap(1)];
        let mut changes = TextTable::of(first.into_iter().chain(of_kernels));
        for (at, row) in self.same.rows.iter().enumerate() {
            let mut cells = vec![row.name.clone(), format!("{:.1}", row.nanoseconds[0])];
            for (_, compared) in &comparisons {
                // All four have the same benchmarks in the same order.
                let [change, low, high] = compared.rows[at].percent;
                cells.push(format!("{change:+.2} ±{:.2}", (high - low) / 2.0));
            }
            changes.push(cells);
        }
        text + &changes.to_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(found: &[(&str, &str)]) -> Compared {
        let row = |(name, verdict): &(&str, &str)| Row {
            name: (*name).to_owned(),
            nanoseconds: [1000.0, 1020.0],
            percent: [2.0, 1.5, 2.5],
            verdict: (*verdict).to_owned(),
        };
        Compared { rows: found.iter().map(row).collect(), left_out: Vec::new() }
    }

    #[test]
    fn only_the_slowed_call_may_be_found() {
        const SAME: &str = "no-difference-found";
        let all = |umask, getpid| compared(&[(SLOWED, umask), ("call/getpid", getpid)]);
        let judged =
            |same, slowed| Verdicts { same, slowed: [slowed, all("slower", SAME)] }.judge().is_ok();
        assert!(judged(all(SAME, SAME), all("slower", SAME)));
        assert!(!judged(all(SAME, SAME), all("slower", "slower")));
        assert!(!judged(all(SAME, SAME), all("faster", SAME)));
        assert!(!judged(all(SAME, SAME), all(SAME, SAME)));
        assert!(!judged(all(SAME, "faster"), all("slower", SAME)));
        assert!(!judged(compared(&[]), all("slower", SAME)));
    }

    #[test]
    fn the_table_names_what_was_found() {
        let slower = || compared(&[(SLOWED, "slower")]);
        let same = compared(&[(SLOWED, "no-difference-found")]);
        let verdicts = Verdicts { same, slowed: [slower(), slower()] };
        let text = verdicts.text(&SlowdownMeasurements::default(), &Processor::default());
        assert!(
            text.contains("original → slowed: 1 of 1\n  call/umask: slower, +2.00 %"),
            "{text}"
        );
        assert!(text.contains("original → original again: 0 of 1\n"));
    }
}
