//! The file of a study: which workloads, kernels, layouts, machines and seeds.
//!
//! Input: TOML. Output: a [`Study`] whose names are known. Paths are relative to the file.

use anyhow::{Context, Result, ensure};
use layout::Algorithm;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use trace::CpuCount;

/// A grid of recordings, layouts and machines.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Study {
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// Shipped workloads, `bench:NAME`, or paths of workloads' files.
    pub workloads: Vec<String>,
    /// Build trees or boot images.
    pub kernels: Vec<PathBuf>,
    /// Layout algorithms. The original is always the first layout.
    #[serde(default)]
    pub layouts: Vec<String>,
    /// Machines to replay on.
    pub machines: Vec<String>,
    /// Seeds of the recordings.
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// What layouts are made from.
    #[serde(default)]
    pub train: Training,
    /// Record in a guest like this machine.
    pub like: Option<String>,
    /// Also record data accesses.
    #[serde(default)]
    pub data: bool,
    /// CPUs of the guests.
    #[serde(default = "one_cpu")]
    pub cpus: u32,
    /// Also predict branches.
    #[serde(default)]
    pub branches: bool,
    /// On out-of-order cores, how narrow the 95 % intervals become, in per cent; 0 simulates every
    /// instruction in detail.
    pub within: Option<f64>,
}

/// The recordings that a layout is made from. They have the kernel and the seed of the recording on
/// which it is replayed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub(super) enum Training {
    /// That recording itself.
    #[default]
    Own,
    /// Those of all other workloads of the study.
    Others,
    /// Those of these workloads.
    Workloads(Vec<String>),
}

impl TryFrom<toml::Value> for Training {
    type Error = &'static str;

    fn try_from(value: toml::Value) -> Result<Training, &'static str> {
        match value.as_str() {
            Some("own") => return Ok(Training::Own),
            Some("others") => return Ok(Training::Others),
            _ => {}
        }
        let names = value.try_into::<Vec<String>>().ok().filter(|names| !names.is_empty());
        names.map(Training::Workloads).ok_or("train is \"own\", \"others\", or a list of workloads")
    }
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

fn one_cpu() -> u32 {
    1
}

impl Study {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is not TOML, or names what does not exist.
    pub(super) fn read(path: &Path) -> Result<Study> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        // Jobs work in another directory.
        let absolute = std::path::absolute(path)?;
        let directory = absolute.parent().unwrap_or(Path::new("/"));
        Study::parse(&text, directory).with_context(|| path.display().to_string())
    }

    /// Reads the text of a file in `directory`.
    fn parse(text: &str, directory: &Path) -> Result<Study> {
        let mut study: Study = toml::from_str(text)?;
        let mut none = Vec::new();
        let train = match &mut study.train {
            Training::Workloads(names) => names,
            _ => &mut none,
        };
        for (name, values) in [
            ("workloads", &mut study.workloads),
            ("machines", &mut study.machines),
            ("train", train),
        ] {
            ensure!(!values.is_empty() || name == "train", "{name} is empty");
            once(name, values)?;
            values.iter_mut().for_each(|value| *value = in_directory(value, directory));
        }
        ensure!(!study.kernels.is_empty(), "kernels is empty");
        ensure!(
            study.train != Training::Others || study.workloads.len() > 1,
            "train: there are no other workloads"
        );
        ensure!(!study.seeds.is_empty(), "seeds is empty");
        once("kernels", &study.kernels)?;
        once("layouts", &study.layouts)?;
        once("seeds", &study.seeds)?;
        for name in &study.layouts {
            let known = Algorithm::ALL.iter().any(|algorithm| algorithm.name() == name);
            let names: Vec<&str> = Algorithm::ALL.iter().map(|it| it.name()).collect();
            ensure!(
                known,
                "layouts: there is no algorithm {name:?}; these are: {}",
                names.join(", ")
            );
            ensure!(name != "original", "layouts: the original is always the first layout");
        }
        ensure!(
            CpuCount::new(study.cpus).is_some(),
            "cpus: {} is not from 1 to {}",
            study.cpus,
            CpuCount::MOST
        );
        if let Some(within) = study.within {
            ensure!((0.0..=100.0).contains(&within), "within: {within} is not from 0 to 100");
        }
        for kernel in &mut study.kernels {
            *kernel = directory.join(home_expanded(kernel));
            ensure!(kernel.exists(), "kernels: {} does not exist", kernel.display());
        }
        Ok(study)
    }
}

/// No value is there twice.
fn once<T: Ord + std::fmt::Debug>(name: &str, values: &[T]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for value in values {
        ensure!(seen.insert(value), "{name}: {value:?} is there twice");
    }
    Ok(())
}

/// The path of a file that is named relative to the study's; other names stay.
fn in_directory(name: &str, directory: &Path) -> String {
    match name.ends_with(".toml") {
        true => directory.join(name).display().to_string(),
        false => name.to_owned(),
    }
}

/// `~/linux` in the user's home.
fn home_expanded(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::command::study) const SMALL: &str = "\
        workloads = ['net', 'own.toml']\n\
        kernels = ['.']\n\
        layouts = ['ext-tsp', 'call']\n\
        machines = ['zen4']\n\
        seeds = [1, 2]\n";

    pub(in crate::command::study) fn small() -> Study {
        Study::parse(SMALL, Path::new("/")).unwrap()
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let study = small();
        assert_eq!(study.workloads, ["net", "/own.toml"]);
        assert_eq!(study.kernels, [Path::new("/.")]);
        assert_eq!((study.cpus, study.within, study.train), (1, None, Training::Own));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (was, is, message) in [
            ("'call'", "'cal'", "there is no algorithm \"cal\"; these are: original"),
            ("'call'", "'ext-tsp'", "layouts: \"ext-tsp\" is there twice"),
            ("'call'", "'original'", "the original is always the first layout"),
            ("['zen4']", "[]", "machines is empty"),
            ("['.']", "['/no/such']", "kernels: /no/such does not exist"),
            ("[1, 2]", "[]", "seeds is empty"),
            ("seeds", "cpus = 9\nseeds", "cpus: 9 is not from 1 to 8"),
            ("seeds", "within = -1\nseeds", "within: -1 is not from 0 to 100"),
            ("seeds", "sedes = 1\nseeds", "unknown field `sedes`"),
            ("seeds", "train = 'other'\nseeds", "train is \"own\", \"others\", or a list"),
        ] {
            let text = SMALL.replace(was, is);
            let error = Study::parse(&text, Path::new("/")).unwrap_err();
            assert!(format!("{error:#}").contains(message), "{error:#}");
        }
    }
}
