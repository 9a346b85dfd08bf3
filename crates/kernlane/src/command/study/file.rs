//! The file of a study: which workloads, kernels, layouts, machines and seeds.
//!
//! Input: TOML. Output: a [`Study`] whose names are known. Paths are relative to the file.

use anyhow::{Context, Result, ensure};
use layout::Algorithm;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Guests are like this machine, or like these: one for each of `machines`, which replays the
    /// recordings of its guest.
    #[serde(default, deserialize_with = "one_or_several")]
    pub like: Vec<String>,
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
/// which it is replayed. But for that recording itself, they are those of all guests.
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
    /// A layout for each of these lists. A member that is the name of another list stands for that
    /// list's average; otherwise it is a workload.
    Lists(BTreeMap<String, Vec<String>>),
}

impl TryFrom<toml::Value> for Training {
    type Error = &'static str;

    fn try_from(value: toml::Value) -> Result<Training, &'static str> {
        match value.as_str() {
            Some("own") => return Ok(Training::Own),
            Some("others") => return Ok(Training::Others),
            _ => {}
        }
        let what = "train is \"own\", \"others\", a list of workloads, or lists with their names";
        let training = match value.is_table() {
            true => value.try_into().map(Training::Lists),
            false => value.try_into().map(Training::Workloads),
        };
        training.map_err(|_| what)
    }
}

impl Training {
    /// The list that a member of the list `name` stands for, unless it is a workload.
    pub(super) fn list(&self, name: &str, member: &str) -> Option<&[String]> {
        match self {
            Training::Lists(lists) if name != member => lists.get(member).map(Vec::as_slice),
            _ => None,
        }
    }

    /// Every workload that it names.
    pub(super) fn workloads(&self) -> Vec<&String> {
        match self {
            Training::Own | Training::Others => Vec::new(),
            Training::Workloads(names) => names.iter().collect(),
            Training::Lists(lists) => {
                let members = lists.iter().flat_map(|(name, members)| {
                    members.iter().filter(|member| self.list(name, member).is_none())
                });
                members.collect()
            }
        }
    }

    /// Calls `change` for every list.
    fn each_list(&mut self, mut change: impl FnMut(&mut Vec<String>) -> Result<()>) -> Result<()> {
        match self {
            Training::Own | Training::Others => Ok(()),
            Training::Workloads(names) => change(names),
            Training::Lists(lists) => lists.iter_mut().try_for_each(|(name, members)| {
                change(members).with_context(|| format!("the list {name:?}"))
            }),
        }
    }

    /// Whether lists have names that files can have, and lists of lists have lists of workloads.
    fn check(&self) -> Result<()> {
        let Training::Lists(lists) = self else { return Ok(()) };
        ensure!(!lists.is_empty(), "train has no list");
        for (name, members) in lists {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            ensure!(
                !name.is_empty() && name.chars().all(plain),
                "train: the name {name:?} is not of letters, digits, `-` and `_`"
            );
            for member in members {
                let list = self.list(name, member).unwrap_or_default();
                ensure!(
                    list.iter().all(|inner| self.list(member, inner).is_none()),
                    "train: {name:?} has the list {member:?}, which has lists itself"
                );
            }
        }
        Ok(())
    }
}

/// A name, or a list of names.
fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let value = toml::Value::deserialize(deserializer)?;
    let names = match value {
        toml::Value::String(name) => Ok(vec![name]),
        list => list.try_into(),
    };
    let what = "like is a machine, or a list of machines, one for each of `machines`";
    names.map_err(|_| D::Error::custom(what))
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
        let named = |name: &str, values: &mut Vec<String>| -> Result<()> {
            ensure!(!values.is_empty(), "{name} is empty");
            once(name, values)?;
            values.iter_mut().for_each(|value| *value = in_directory(value, directory));
            Ok(())
        };
        named("workloads", &mut study.workloads)?;
        named("machines", &mut study.machines)?;
        study.train.each_list(|names| named("train", names))?;
        study.train.check()?;
        study.like.iter_mut().for_each(|value| *value = in_directory(value, directory));
        ensure!(
            study.like.len() <= 1 || study.like.len() == study.machines.len(),
            "like: {} machines beside {} of `machines`: give one, or one for each",
            study.like.len(),
            study.machines.len()
        );
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

    /// The machine that the guest is like whose recordings `machines[at]` replays.
    pub(super) fn like(&self, at: usize) -> Option<&String> {
        self.like.get(at).or(self.like.first())
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
    fn a_list_is_a_workload_inside_itself_and_a_list_elsewhere() {
        let text = format!("{SMALL}train = {{net = ['net', 'own.toml'], all = ['net', 'web']}}\n");
        let study = Study::parse(&text, Path::new("/")).unwrap();
        assert_eq!(study.train.list("all", "net").unwrap(), ["net", "/own.toml"]);
        assert_eq!(study.train.list("net", "net"), None);
        assert_eq!(study.train.workloads(), ["web", "net", "/own.toml"]);
    }

    #[test]
    fn a_guest_is_like_one_machine_or_each() {
        let like = |line: &str| {
            let text = SMALL.replace("['zen4']", "['zen4', 'zen5']") + line;
            let study = Study::parse(&text, Path::new("/")).unwrap();
            [0, 1].map(|at| study.like(at).cloned().unwrap_or_default())
        };
        assert_eq!(like(""), ["", ""]);
        assert_eq!(like("like = 'own.toml'"), ["/own.toml", "/own.toml"]);
        assert_eq!(like("like = ['zen5', 'zen4']"), ["zen5", "zen4"]);
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
            ("seeds", "train = 'other'\nseeds", "train is \"own\", \"others\", a list"),
            ("seeds", "train = []\nseeds", "train is empty"),
            ("seeds", "train = {}\nseeds", "train has no list"),
            ("seeds", "train = {a = []}\nseeds", "the list \"a\": train is empty"),
            ("seeds", "train = {'a/b' = ['net']}\nseeds", "the name \"a/b\" is not of letters"),
            (
                "seeds",
                "train = {a = ['net'], b = ['a'], c = ['b']}\nseeds",
                "train: \"c\" has the list \"b\", which has lists itself",
            ),
            ("seeds", "like = 3\nseeds", "like is a machine, or a list of machines"),
            ("seeds", "like = ['zen4', 'zen5']\nseeds", "like: 2 machines beside 1 of `machines`"),
        ] {
            let text = SMALL.replace(was, is);
            let error = Study::parse(&text, Path::new("/")).unwrap_err();
            assert!(format!("{error:#}").contains(message), "{error:#}");
        }
    }
}
