//! Workloads: what is installed in the guest, what runs there, what is counted, and how its output
//! is checked.
//!
//! To add one: write a file `workloads/NAME.toml`.
//!
//! Input: the name of a shipped workload, or the path of a file. Output: a `Workload` whose fields
//! are all checked. All scripts run under `sh -e` in the directory `/guest`, and share nothing
//! else. Debian's own programs come first in `PATH`; busybox supplies the others.

use crate::brought::Brought;
use crate::host_files::{Copy, Sources};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use trace::CpuCount;

/// The workloads that are part of the tool: name and text of each file in `workloads/`.
pub const SHIPPED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

/// The names of the shipped workloads, with commas.
pub fn shipped_names() -> String {
    let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WorkloadFile {
    about: String,
    packages: Option<Vec<String>>,
    image: Option<String>,
    #[serde(default)]
    copy: Vec<String>,
    #[serde(default)]
    leave_out: Vec<String>,
    #[serde(default)]
    modules: Vec<String>,
    memory: u32,
    #[serde(default)]
    marks_itself: bool,
    operations: Option<u64>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    set_up: String,
    run: String,
    check: String,
    several_cpus: Option<SeveralCpus>,
}

/// The differences of a workload in a guest with several CPUs.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SeveralCpus {
    /// The script that runs before `set_up`.
    #[serde(default)]
    pub prepare: String,
    /// The script that is counted, in place of the workload's own.
    pub run: Option<String>,
}

/// A checked workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// The SHA-256 of the file, hex.
    pub sha256: String,
    /// One sentence for people.
    pub about: String,
    /// Debian packages. The packages that they depend on are also installed.
    pub packages: Vec<String>,
    /// What is copied from the host.
    pub(crate) copies: Vec<Copy>,
    /// The image that takes the place of packages, as a path of the host.
    pub(crate) image: Option<String>,
    /// The files that were read from the host; `None` if nothing was read.
    pub(crate) brought: Option<Arc<Brought>>,
    /// Files and directories that the guest does not get, without leading slash.
    pub leave_out: Vec<String>,
    /// Kernel modules, each with its parameters. They and those that they depend on are loaded
    /// before `set_up`.
    pub modules: Vec<String>,
    /// The guest's memory in MB, unless the command line gives another size.
    pub memory_mb: u32,
    /// Whether a program of `run` executes the marks itself. Otherwise the guest executes them
    /// before and behind `run`.
    pub marks_itself: bool,
    /// The number of operations that `run` does between the marks; `None` if they are not counted.
    pub operations: Option<u64>,
    /// Files: path and content. A file whose content begins with `#!` becomes executable.
    pub files: BTreeMap<String, String>,
    /// Executable files that are not text: path and content.
    pub programs: BTreeMap<String, Vec<u8>>,
    /// The script that runs before counting starts.
    pub set_up: String,
    /// The script that is counted. Its output is in `/run/output` when `check` runs.
    pub run: String,
    /// The script that succeeds if the workload did its work.
    pub check: String,
    /// What changes with several CPUs.
    pub several_cpus: Option<SeveralCpus>,
}

/// The sizes of memory that are accepted, in MB. A distribution's kernel does not boot with less;
/// hosts do not have more.
pub const MEMORY_MB: std::ops::RangeInclusive<u32> = 128..=65536;

impl Workload {
    /// Opens a workload, and reads what it brings into its guest from the host. `what` is the name
    /// of a shipped workload, or the path of a `.toml` file.
    ///
    /// # Errors
    /// There is no such workload, a field breaks a rule, or a file of the host cannot be read.
    pub fn open(what: &str) -> Result<Workload> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == what) {
            return Workload::parse(name, text)
                .with_context(|| format!("the shipped workload {name}"));
        }
        let path = Path::new(what);
        if !what.ends_with(".toml") {
            bail!(
                "there is no workload {what:?}: give {}, bench:NAME or the path of a .toml file",
                shipped_names()
            );
        }
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the workload {what}"))?;
        let name = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .context("the workload's file name is not UTF-8")?;
        let base = path.parent().unwrap_or(Path::new(""));
        Workload::parse(name, &text)
            .and_then(|workload| workload.reading(base, Sources::Below))
            .with_context(|| format!("the workload {what}"))
    }

    /// The workload with what it brings from the host.
    ///
    /// # Errors
    /// Something cannot be read, or may not be named.
    pub(crate) fn reading(mut self, base: &Path, sources: Sources) -> Result<Workload> {
        if self.brings() {
            let image = self.image.as_deref();
            let read = Brought::read(base, sources, &self.copies, image, &self.leave_out)?;
            self.brought = Some(Arc::new(read));
        }
        Ok(self)
    }

    fn brings(&self) -> bool {
        !self.copies.is_empty() || self.image.is_some()
    }

    /// The SHA-256, hex, of the workload's text and of all files that it brings into its guest, but
    /// for Debian's packages.
    ///
    /// # Errors
    /// Something that it brings cannot be read.
    pub fn content_sha256(&self) -> Result<String> {
        let brought = self.brought()?;
        let digests = [&brought.copied_sha256, &brought.image_sha256];
        let digests = digests.map(|digest| digest.as_deref().unwrap_or("nothing"));
        let text = format!("{} {} {}", self.sha256, digests[0], digests[1]);
        Ok(image::sealed::sha256(text.as_bytes()))
    }

    /// What the workload brings from the host.
    ///
    /// # Errors
    /// It was not read: the workload comes from no file.
    pub(crate) fn brought(&self) -> Result<Arc<Brought>> {
        match &self.brought {
            Some(brought) => Ok(brought.clone()),
            None => {
                ensure!(
                    !self.brings(),
                    "copy and image name files beside the workload's file, and the workload {} \
                     comes from no file",
                    self.name
                );
                Ok(Arc::default())
            }
        }
    }

    /// The workload in `text`.
    ///
    /// # Errors
    /// The text is not a workload, or names something that no guest has. The error names the broken
    /// rule.
    pub fn parse(name: &str, text: &str) -> Result<Workload> {
        let file: WorkloadFile = toml::from_str(text)?;
        ensure!(
            MEMORY_MB.contains(&file.memory),
            "memory = {}: give {} to {} (MB)",
            file.memory,
            MEMORY_MB.start(),
            MEMORY_MB.end()
        );
        ensure!(!file.run.trim().is_empty(), "run is empty: there is nothing to record");
        ensure!(
            !file.check.trim().is_empty(),
            "check is empty: a workload must say how its output is checked"
        );
        if let Some(several) = &file.several_cpus {
            ensure!(
                several.run.as_ref().is_none_or(|run| !run.trim().is_empty()),
                "several-cpus: run is empty: leave it out if it does not change"
            );
        }
        ensure!(file.operations != Some(0), "operations = 0: give 1 or more, or leave it out");
        ensure!(
            file.packages.is_some() || file.image.is_some(),
            "give packages or image: without them the guest has no programs (packages = [] gives \
             busybox alone)"
        );
        let packages = file.packages.unwrap_or_default();
        ensure!(
            packages.is_empty() || file.image.is_none(),
            "image takes the place of packages: leave out one of them"
        );
        for package in &packages {
            ensure!(
                is_package_name(package),
                "packages: {package:?} is not the name of a Debian package"
            );
        }
        for module in &file.modules {
            ensure!(
                is_module(module),
                "modules: {module:?} is not the name of a kernel module with its parameters"
            );
        }
        for path in file.files.keys() {
            ensure!(
                path.starts_with('/') && !path.ends_with('/') && !path.contains('\0'),
                "files: {path:?} is not the absolute path of a file"
            );
            ensure!(
                !path.split('/').any(|part| part == ".."),
                "files: {path:?} must not contain \"..\""
            );
        }
        Ok(Workload {
            name: name.into(),
            sha256: image::sealed::sha256(text.as_bytes()),
            about: file.about,
            packages,
            copies: file
                .copy
                .iter()
                .map(|text| Copy::parse(text).context("copy"))
                .collect::<Result<_>>()?,
            image: file.image,
            brought: None,
            leave_out: file
                .leave_out
                .iter()
                .map(|path| path.trim_start_matches('/').to_string())
                .collect(),
            modules: file.modules,
            memory_mb: file.memory,
            marks_itself: file.marks_itself,
            operations: file.operations,
            files: file.files,
            programs: BTreeMap::new(),
            set_up: file.set_up,
            run: file.run,
            check: file.check,
            several_cpus: file.several_cpus,
        })
    }

    /// The workload as a guest with this number of CPUs runs it.
    pub(crate) fn on_cpus(&self, cpus: CpuCount) -> Workload {
        let mut changed = self.clone();
        if cpus != CpuCount::ONE
            && let Some(several) = changed.several_cpus.take()
        {
            changed.set_up = several.prepare + &changed.set_up;
            changed.run = several.run.unwrap_or(changed.run);
        }
        changed
    }
}

/// Whether a name follows Debian policy, section 5.6.1. No such name can be taken for an option.
pub(crate) fn is_package_name(name: &str) -> bool {
    name.len() >= 2
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c))
}

/// Whether the text is a module's name, and behind it parameters for insmod, separated by blanks.
fn is_module(text: &str) -> bool {
    let (name, parameters) = text.split_once(' ').unwrap_or((text, ""));
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    // Nothing that a shell would take for something else.
    let is_parameter = |c: char| is_name(c) || " =,.:/".contains(c);
    !name.is_empty() && name.chars().all(is_name) && parameters.chars().all(is_parameter)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "about = 'x'\npackages = ['dash']\nmemory = 256\nset-up = ''\n\
        run = 'true'\ncheck = 'true'\n";

    fn error(text: &str) -> String {
        format!("{:#}", Workload::parse("w", text).unwrap_err())
    }

    #[test]
    fn shipped_workloads_are_good() {
        for &(name, _) in SHIPPED {
            assert_eq!(Workload::open(name).unwrap().name, name);
        }
    }

    #[test]
    fn the_documented_example_is_valid() {
        let document = include_str!("../../../docs/reference/workloads.md");
        let example = document.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let workload = Workload::parse("example", example).unwrap();
        assert_eq!(workload.modules, ["veth"]);
        assert!(workload.files.contains_key("/guest/list"));
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mine.toml");
        std::fs::write(&path, GOOD.replace("memory = 256", "memory = 'much'")).unwrap();
        let message = format!("{:#}", Workload::open(path.to_str().unwrap()).unwrap_err());
        assert!(message.contains("mine.toml") && message.contains("line 3"), "{message}");
        assert!(error(&format!("{GOOD}colour = 1\n")).contains("unknown field `colour`"));
        assert!(error("about = 'x'").contains("missing field"));
    }

    #[test]
    fn the_error_names_the_broken_rule() {
        assert!(error(&GOOD.replace("256", "1")).contains("memory = 1"));
        assert!(error(&GOOD.replace("dash", "--purge")).contains("--purge"));
        assert!(error(&GOOD.replace("run = 'true'", "run = ' '")).contains("run is empty"));
        assert!(error(&GOOD.replace("check = 'true'", "check = ''")).contains("check is empty"));
        assert!(error(&format!("{GOOD}operations = 0\n")).contains("operations = 0: give 1"));
        assert!(error(&format!("{GOOD}[files]\n'etc/x' = ''\n")).contains("etc/x"));
        assert!(error(&format!("{GOOD}[files]\n'/etc/../x' = ''\n")).contains(".."));
        assert!(format!("{:#}", Workload::open("nothing").unwrap_err()).contains("files"));
    }

    #[test]
    fn files_of_the_host_are_read_beside_the_workloads_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mine.toml");
        std::fs::create_dir(directory.path().join("build")).unwrap();
        std::fs::write(directory.path().join("build/server"), "program").unwrap();
        let opened = |line: &str| {
            std::fs::write(&path, format!("{line}\n{GOOD}")).unwrap();
            Workload::open(path.to_str().unwrap())
        };
        let workload = opened("copy = ['./build:/opt/app']").unwrap();
        let brought = workload.brought().unwrap();
        assert_eq!(brought.copied.read("opt/app/server"), Some(&b"program"[..]));
        assert_eq!(brought.copied_sha256.as_deref(), Some(&*brought.copied.digest()));
        for (line, said) in [
            ("copy = ['../x:/opt/app']", "../x: it leaves the directory of the workload's file"),
            ("copy = ['/etc:/opt/app']", "/etc: it leaves the directory"),
            ("copy = ['build:/kernlane']", "Kernlane's own files"),
            ("copy = ['build']", "give SOURCE:DESTINATION"),
            ("image = 'build'", "image takes the place of packages"),
        ] {
            let message = format!("{:#}", opened(line).unwrap_err());
            assert!(message.contains(said) && message.contains("mine.toml"), "{message}");
        }
        let with_image = |image: &str| {
            let text = GOOD.replace("packages = ['dash']", &format!("image = '{image}'"));
            std::fs::write(&path, text).unwrap();
            Workload::open(path.to_str().unwrap())
        };
        let workload = with_image("build").unwrap();
        assert!(workload.brought().unwrap().image_sha256.is_some() && workload.packages.is_empty());
        let message = format!("{:#}", with_image("../x.tar").unwrap_err());
        assert!(message.contains("image: ../x.tar: it leaves the directory"), "{message}");
        assert!(
            error(&GOOD.replace("packages = ['dash']\n", "")).contains("give packages or image")
        );
        // A text without a file beside it has nothing to read.
        let text = format!("copy = ['build:/opt/app']\n{GOOD}");
        assert!(Workload::parse("w", &text).unwrap().brought().is_err());
    }

    #[test]
    fn several_cpus_change_the_scripts() {
        let both = format!(
            "{}[several-cpus]\nprepare = \"more\\n\"\nrun = 'all'\n",
            GOOD.replace("set-up = ''", "set-up = 'some'")
        );
        let workload = Workload::parse("w", &both).unwrap();
        let scripts = |cpus: u32| {
            let workload = workload.on_cpus(CpuCount::new(cpus).unwrap());
            [workload.set_up, workload.run, workload.check]
        };
        assert_eq!(scripts(1), ["some", "true", "true"]);
        assert_eq!(scripts(2), ["more\nsome", "all", "true"]);
        let unchanged = Workload::parse("w", GOOD).unwrap();
        assert_eq!(unchanged.on_cpus(CpuCount::new(8).unwrap()), unchanged);
        let empty = error(&format!("{GOOD}[several-cpus]\nrun = ''\n"));
        assert!(empty.contains("several-cpus: run is empty"), "{empty}");
        assert!(error(&format!("{GOOD}[several-cpus]\nchecks = ''\n")).contains("checks"));
    }

    /// TOML allows no control character anywhere, so each damaged byte must be found.
    #[test]
    fn a_file_with_a_damaged_byte_is_refused_with_its_name() {
        for at in 0..GOOD.len() {
            let mut bytes = GOOD.as_bytes().to_vec();
            bytes[at] = 1;
            let error = Workload::parse("w", &String::from_utf8_lossy(&bytes)).unwrap_err();
            assert!(!format!("{error:#}").is_empty(), "byte {at}");
        }
    }

    /// Other damage may give another workload, which must keep the rules: it has something to run.
    #[test]
    fn a_damaged_file_gives_an_error_or_a_workload_that_runs() {
        let (mut state, mut refused) = (7u64, 0);
        for _ in 0..2000 {
            let mut bytes = GOOD.as_bytes().to_vec();
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 20) as u8 & 0x7f;
            match Workload::parse("w", &String::from_utf8_lossy(&bytes)) {
                Ok(workload) => assert!(!workload.run.is_empty(), "byte {at}"),
                Err(_) => refused += 1,
            }
        }
        assert!((500..1900).contains(&refused), "{refused}");
    }
}
