//! Runs ChampSim on a trace and reads its counts.
//!
//! Not counted as misses: a miss that waits for a line which is already on its way, accesses of the
//! page walker, and lines that the level above writes back.

use anyhow::{Context, Result, ensure};
use lab::processor::user_seconds;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The names of its caches in its configuration.
pub(super) const CACHES: [&str; 4] = ["L1I", "L1D", "L2C", "LLC"];

/// The counts of ChampSim.
#[derive(Debug, PartialEq)]
pub(super) struct PeerCounts {
    pub instructions: u64,
    pub cycles: u64,
    pub mispredictions: u64,
    /// One entry for each of [`CACHES`].
    pub misses: [u64; 4],
}

/// The counts, and the CPU time in user mode in seconds.
pub(super) fn run(champsim: &Path, trace: &Path, scratch: &Path) -> Result<(PeerCounts, f64)> {
    let json = scratch.join("champsim.json");
    let mut command = Command::new(champsim);
    command.arg("--hide-heartbeat").arg("--json").arg(&json).arg(trace);
    let (output, seconds) = user_seconds(|| {
        command.output().with_context(|| format!("{}: ChampSim cannot be run", champsim.display()))
    })?;
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    ensure!(output.status.success(), "ChampSim: {}\n{printed}", output.status);
    ensure!(
        printed.contains("Page size: 2097152"),
        "ChampSim has other pages than the configuration that `cargo xtask champsim-test \
         configuration` prints:\n{printed}"
    );
    let text = std::fs::read_to_string(&json).context("ChampSim wrote no statistics")?;
    let statistics: Value = serde_json::from_str(&text).context("ChampSim's statistics")?;
    Ok((counts(&statistics)?, seconds))
}

/// The counts in ChampSim's statistics.
fn counts(statistics: &Value) -> Result<PeerCounts> {
    let counted = &statistics[0]["roi"];
    let core = &counted["cores"][0];
    let number = |value: &Value, what: &str| {
        value.as_u64().with_context(|| format!("ChampSim's statistics have no {what}"))
    };
    let mispredicted = core["mispredict"].as_object().context("no mispredictions are counted")?;
    let mut misses = [0; 4];
    for (count, name) in misses.iter_mut().zip(CACHES) {
        let cache = &counted[if name == "LLC" { name.to_owned() } else { format!("cpu0_{name}") }];
        // A store comes as a write to the L1D, and as a request for ownership below it.
        let kinds = if name == "L1D" { ["LOAD", "WRITE"] } else { ["LOAD", "RFO"] };
        for kind in kinds {
            let missed = number(&cache[kind]["miss"][0], name)?;
            *count += missed - number(&cache[kind]["mshr_merge"][0], name)?.min(missed);
        }
    }
    Ok(PeerCounts {
        instructions: number(&core["instructions"], "instructions")?,
        cycles: number(&core["cycles"], "cycles")?,
        mispredictions: mispredicted.values().filter_map(Value::as_u64).sum(),
        misses,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merged_misses_writes_back_and_page_walks_do_not_count() {
        let cache = |load: u64, merged: u64| {
            let count = |miss: u64, merged: u64| json!({"miss": [miss], "mshr_merge": [merged]});
            json!({
                "LOAD": count(load, merged),
                "RFO": count(5, 1),
                "WRITE": count(7, 2),
                "TRANSLATION": count(100, 0),
            })
        };
        let statistics = json!([{"roi": {
            "cores": [{
                "instructions": 1000, "cycles": 900, "mispredict": {"BRANCH_RETURN": 3, "B": 4},
            }],
            "cpu0_L1I": cache(10, 0),
            "cpu0_L1D": cache(20, 5),
            "cpu0_L2C": cache(30, 6),
            "LLC": cache(40, 0),
        }}]);
        let misses = [14, 20, 28, 44];
        let expected = PeerCounts { instructions: 1000, cycles: 900, mispredictions: 7, misses };
        assert_eq!(counts(&statistics).unwrap(), expected);
        assert!(counts(&json!([])).is_err());
    }
}
