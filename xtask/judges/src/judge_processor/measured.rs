//! Measured figures: of this machine's processor, or of another one, measured earlier.
//!
//! Input: rounds, or the file that `judge-processor --json` printed. Output: a figure for each
//! point and program. This module measures nothing.

use crate::judge_processor::point::Point;
use crate::judge_processor::programs::GROUPS;
use crate::judge_processor::results::{Model, Native};
use anyhow::{Context, Result};
use lab::kept::Figure;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Runs of a program whose instructions differ by a smaller share had the same input.
const SAME: f64 = 0.01;

/// Core cycles of an operation of each point, and of each program in user mode.
#[derive(Debug, Default)]
pub(super) struct ProcessorFigures {
    pub points: BTreeMap<String, Figure>,
    pub programs: BTreeMap<String, Figure>,
}

/// The results of an earlier run.
#[derive(Debug, Deserialize)]
pub(super) struct Earlier {
    /// The described machine that it was compared with.
    pub machine: String,
    /// How it was measured.
    pub measured: Vec<String>,
    points: Vec<EarlierPoint>,
    programs: Vec<EarlierProgram>,
}

#[derive(Debug, Deserialize)]
struct EarlierPoint {
    point: String,
    native: Option<Figure>,
}

#[derive(Debug, Deserialize)]
struct EarlierProgram {
    program: String,
    instructions: Option<u64>,
    /// Cycles of an instruction.
    native: Option<Figure>,
}

impl ProcessorFigures {
    pub(super) fn here(points: &[Point], native: &Native) -> ProcessorFigures {
        let point = |point: &Point| Some((point.name.clone(), native.point(&point.name)?));
        let programs = GROUPS.iter().flat_map(|group| group.programs);
        ProcessorFigures {
            points: points.iter().filter_map(point).collect(),
            programs: programs
                .filter_map(|program| {
                    Some((program.name.to_owned(), native.program(program.name)?))
                })
                .collect(),
        }
    }
}

impl Earlier {
    /// # Errors
    /// The file cannot be read, or `judge-processor --json` did not print it.
    pub(super) fn read(path: &Path) -> Result<Earlier> {
        let text = std::fs::read(path).with_context(|| path.display().to_string())?;
        let hint = || format!("{}: judge-processor --json did not print this", path.display());
        serde_json::from_slice(&text).with_context(hint)
    }

    /// The figures, and the programs that are left out, because they had another input: they
    /// executed more or fewer instructions than `model` has.
    pub(super) fn figures(&self, model: &Model) -> (ProcessorFigures, Vec<&str>) {
        let point = |row: &EarlierPoint| Some((row.point.clone(), row.native?));
        let mut left_out = Vec::new();
        let mut programs = BTreeMap::new();
        for row in &self.programs {
            let (Some(native), Some(before)) = (row.native, row.instructions) else { continue };
            let now = model.programs.get(&row.program);
            let ratio = now.map(|now| now.counters.instructions as f64 / before as f64);
            match ratio {
                Some(ratio) if (ratio - 1.0).abs() <= SAME => {
                    programs.insert(row.program.clone(), native.times(before as f64));
                }
                _ => left_out.push(row.program.as_str()),
            }
        }
        (
            ProcessorFigures { points: self.points.iter().filter_map(point).collect(), programs },
            left_out,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge_processor::model::Simulated;
    use sim::core::CoreCounters;

    #[test]
    fn an_earlier_run_gives_its_figures() {
        let figure = r#"{"value": 0.5, "low": 0.4, "high": 0.6, "rounds": 9}"#;
        let text = format!(
            r#"{{"machine": "zen4", "measured": ["Processor: P."],
                "points": [{{"point": "a/1", "native": {figure}}}, {{"point": "b", "native": null}}],
                "programs": [{{"program": "gzip", "instructions": 10, "native": {figure}}},
                             {{"program": "bc", "instructions": 11, "native": {figure}}}]}}"#
        );
        let mut model = Model::default();
        for program in ["gzip", "bc"] {
            let counters = CoreCounters { instructions: 10, ..CoreCounters::default() };
            model.programs.insert(program.to_owned(), Simulated { cycles: 1.0, counters });
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("earlier.json");
        std::fs::write(&path, text).unwrap();
        let earlier = Earlier::read(&path).unwrap();
        let (figures, left_out) = earlier.figures(&model);
        assert_eq!(left_out, ["bc"]);
        assert_eq!(figures.points.keys().collect::<Vec<_>>(), ["a/1"]);
        assert!((figures.programs["gzip"].value - 5.0).abs() < 1e-12);
        assert_eq!(figures.programs["gzip"].rounds, 9);
        std::fs::write(&path, "{}").unwrap();
        let error = format!("{:#}", Earlier::read(&path).unwrap_err());
        assert!(error.contains("earlier.json") && error.contains("--json"), "{error}");
    }
}
