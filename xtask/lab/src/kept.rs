//! Results of measurements that go on where they were ended, and their intervals.
//!
//! Input and output: a file of JSON. A file that was made for something else is not used.

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use suite::statistics::Estimate;

/// A file of results.
pub struct Kept<T> {
    path: PathBuf,
    /// What the results are made for.
    made_for: String,
    pub results: T,
}

/// What the file has.
#[derive(Serialize, Deserialize)]
struct File<T> {
    made_for: String,
    #[serde(flatten)]
    results: T,
}

impl<T: Serialize + DeserializeOwned + Default> Kept<T> {
    /// The results in `path`, or none when they were made for something else.
    ///
    /// # Errors
    /// The file cannot be read, or this program did not write it.
    pub fn open(path: PathBuf, made_for: &str) -> Result<Kept<T>> {
        let results = match std::fs::read_to_string(&path) {
            Ok(text) => {
                let read: serde_json::Result<File<T>> = serde_json::from_str(&text);
                let read = read.with_context(|| format!("{}: remove the file", path.display()))?;
                (read.made_for == made_for).then_some(read.results)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        Ok(Kept { path, made_for: made_for.to_owned(), results: results.unwrap_or_default() })
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> Result<()> {
        let file = File { made_for: self.made_for.clone(), results: &self.results };
        let text = serde_json::to_string_pretty(&file)?;
        host::output::write(&self.path, text.as_bytes())?;
        Ok(())
    }
}

/// A figure and the ends of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub value: f64,
    pub low: f64,
    pub high: f64,
    pub rounds: usize,
}

impl Figure {
    /// `None`: there are too few rounds.
    pub fn of(rounds: &[f64]) -> Option<Figure> {
        let [value, low, high] = Estimate::of(rounds)?.figure();
        Some(Figure { value, low, high, rounds: rounds.len() })
    }

    /// The figure in another unit.
    pub fn times(self, factor: f64) -> Figure {
        let Figure { value, low, high, rounds } = self;
        Figure { value: value * factor, low: low * factor, high: high * factor, rounds }
    }

    /// The figure with a second error, a share of the value that does not depend on the first one.
    pub fn with_error(self, error: f64) -> Figure {
        let wide = |end: f64| (end - self.value).hypot(self.value * error);
        let (low, high) = (self.value - wide(self.low), self.value + wide(self.high));
        Figure { low, high, ..self }
    }

    /// The figure without `part`; `None` if nothing is left.
    pub fn less(self, part: f64) -> Option<Figure> {
        let Figure { value, low, high, rounds } = self;
        let left = Figure { value: value - part, low: low - part, high: high - part, rounds };
        (left.value > 0.0).then_some(left)
    }

    /// Half of the interval, as a share of the value.
    pub fn half_width(&self) -> f64 {
        (self.high / self.value).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Default, Serialize, Deserialize)]
    struct Results {
        points: BTreeMap<String, Vec<f64>>,
    }

    #[test]
    fn results_of_something_else_are_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("native.json");
        let open = |made_for| Kept::<Results>::open(path.clone(), made_for);
        let mut kept = open("a").unwrap();
        kept.results.points.insert("x/1".to_owned(), vec![1.0, 1.5]);
        kept.save().unwrap();
        let points = |made_for| open(made_for).unwrap().results.points.len();
        assert_eq!([points("a"), points("b")], [1, 0]);
        std::fs::write(&path, "{").unwrap();
        let error = open("a").err().unwrap();
        assert!(format!("{error:#}").contains("native.json: remove the file"));
    }
}
