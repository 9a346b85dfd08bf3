//! What a study has to do: recordings, layouts made from them, and replays.
//!
//! Input: a study, and what its names stand for. Output: jobs, each a command line of this program
//! with one output, whose name says what the command reads. So a job whose output exists is done,
//! whoever did it. This module runs nothing.

use super::file::{Study, Training};
use anyhow::{Context, Result};
use guest::{GuestKernel, Qemu};
use image::sealed::sha256;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Characters of a name that stand for its content: 48 bits.
const KEY: usize = 12;

/// What a job makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobKind {
    /// A recording: a directory.
    Record,
    /// The average of recordings or profiles: a file.
    Profile,
    /// A layout: a file.
    Layout,
    /// Result rows: a file, the command's standard output.
    Replay,
}

/// A command of this program, and what it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    /// What it makes.
    pub kind: JobKind,
    /// What it makes, in the study's directory.
    pub output: PathBuf,
    /// Outputs of other jobs that it reads, in the study's directory.
    pub inputs: Vec<PathBuf>,
    /// The command's arguments.
    pub words: Vec<String>,
}

/// The replay of one recording on one machine, with all layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// The name of the workload.
    pub workload: String,
    /// The kernel, as the study names it.
    pub kernel: PathBuf,
    /// The seed of the recording.
    pub seed: u64,
    /// The machine.
    pub machine: String,
    /// The algorithms of the layouts, behind the name of what they are made from if it has one;
    /// and their files, whose names stand in the results.
    pub layouts: Vec<(String, PathBuf)>,
    /// The file with its results, in the study's directory.
    pub results: PathBuf,
}

/// Everything that a study has to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Each behind those that it needs.
    pub jobs: Vec<Job>,
    /// Where the numbers are.
    pub cells: Vec<Cell>,
}

/// What names stand for: digests of everything that a job's output depends on.
pub(super) trait Contents {
    /// Of a workload's file, and of all that it brings.
    fn workload(&self, name: &str) -> Result<String>;
    /// Of a kernel.
    fn kernel(&self, path: &Path) -> Result<String>;
    /// Of a machine's file.
    fn machine(&self, name: &str) -> Result<String>;
    /// Of what records: QEMU and the plugin.
    fn recorder(&self) -> Result<String>;
    /// Of this program.
    fn program(&self) -> Result<String>;
}

/// The files of this machine.
pub(super) struct Files;

impl Contents for Files {
    fn workload(&self, name: &str) -> Result<String> {
        road::workload::open(name)?.content_sha256()
    }

    fn kernel(&self, path: &Path) -> Result<String> {
        let kernel = GuestKernel::open(path, None)?;
        let image = fs::read(&kernel.boot_image)
            .with_context(|| kernel.boot_image.display().to_string())?;
        Ok(format!("{} {}", kernel.build_id.0, sha256(&image)))
    }

    fn machine(&self, name: &str) -> Result<String> {
        Ok(sha256(machines::find(name)?.text.as_bytes()))
    }

    fn recorder(&self) -> Result<String> {
        let plugin = guest::plugin_library()?;
        let bytes = fs::read(&plugin).with_context(|| plugin.display().to_string())?;
        Ok(format!("{} {}", Qemu::find()?.version, sha256(&bytes)))
    }

    fn program(&self) -> Result<String> {
        let path = std::env::current_exe().context("this program's file")?;
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(sha256(&bytes))
    }
}

impl Plan {
    /// The plan of a study.
    ///
    /// # Errors
    /// A name stands for nothing.
    pub(super) fn new(study: &Study, contents: &impl Contents) -> Result<Plan> {
        let mut planner = Planner {
            study,
            recorder: contents.recorder()?,
            program: contents.program()?,
            workloads: BTreeMap::new(),
            machines: BTreeMap::new(),
            plan: Plan::default(),
        };
        for name in study.workloads.iter().chain(study.train.workloads()) {
            planner.workloads.insert(name.clone(), contents.workload(name)?);
        }
        for name in study.machines.iter().chain(&study.like) {
            planner.machines.insert(name.clone(), contents.machine(name)?);
        }
        for kernel in &study.kernels {
            let content = contents.kernel(kernel)?;
            let kernel = Kernel { path: kernel, content: &content };
            for &seed in &study.seeds {
                for workload in &study.workloads {
                    planner.replays(workload, &kernel, seed);
                }
            }
        }
        Ok(planner.plan)
    }
}

struct Kernel<'a> {
    path: &'a Path,
    content: &'a str,
}

struct Planner<'a> {
    study: &'a Study,
    recorder: String,
    program: String,
    workloads: BTreeMap<String, String>,
    machines: BTreeMap<String, String>,
    plan: Plan,
}

impl Planner<'_> {
    /// Plans the replays of one workload, with all that they need.
    fn replays(&mut self, workload: &str, kernel: &Kernel<'_>, seed: u64) {
        let study = self.study;
        for (at, machine) in study.machines.iter().enumerate() {
            let recording = self.recording(workload, kernel, (seed, study.like(at)));
            let layouts = self.layouts(workload, &recording, kernel, seed);
            let options = [
                study.branches.then(|| vec!["--branches".to_owned()]),
                study.within.map(|within| match within {
                    0.0 => vec!["--exact".to_owned()],
                    _ => vec!["--within".to_owned(), within.to_string()],
                }),
            ];
            let options: Vec<String> = options.into_iter().flatten().flatten().collect();
            let mut inputs = vec![recording.clone()];
            inputs.extend(layouts.iter().map(|(_, file)| file.clone()));
            let mut words = vec!["replay".to_owned(), text(&recording)];
            words.extend(layouts.iter().flat_map(|(_, file)| ["--layout".to_owned(), text(file)]));
            words.extend(["--machine".to_owned(), machine.clone()]);
            words.extend(options.iter().cloned());
            words.push("--json".to_owned());
            let read = [
                &[self.program.as_str(), &self.machines[machine]][..],
                &options.iter().map(String::as_str).collect::<Vec<_>>(),
                &inputs.iter().map(|path| path.to_str().unwrap_or_default()).collect::<Vec<_>>(),
            ]
            .concat();
            let name = format!("{}-{seed}-{}", short(workload), short(machine));
            let output = place("results", &name, &read, "json");
            self.plan.cells.push(Cell {
                workload: workload.to_owned(),
                kernel: kernel.path.to_owned(),
                seed,
                machine: machine.clone(),
                layouts,
                results: output.clone(),
            });
            self.add(Job { kind: JobKind::Replay, output, inputs, words });
        }
    }

    /// The layouts for a workload: the name and the file of each.
    fn layouts(
        &mut self,
        workload: &str,
        recording: &Path,
        kernel: &Kernel<'_>,
        seed: u64,
    ) -> Vec<(String, PathBuf)> {
        let study = self.study;
        if study.layouts.is_empty() {
            return Vec::new();
        }
        let training = match &study.train {
            Training::Own => vec![recording.to_owned()],
            Training::Others => {
                let others = study.workloads.iter().filter(|name| *name != workload);
                self.recordings(others, kernel, seed)
            }
            Training::Workloads(names) => self.recordings(names.iter(), kernel, seed),
            Training::Lists(lists) => {
                let mut made = Vec::new();
                for (name, members) in lists {
                    let profile = [self.list(name, members, kernel, seed)];
                    for algorithm in &study.layouts {
                        let title = format!("{name}.{algorithm}");
                        let file = self.layout(&title, algorithm, &profile);
                        made.push((title, file));
                    }
                }
                return made;
            }
        };
        let mut layout = |name: &String| (name.clone(), self.layout(name, name, &training));
        study.layouts.iter().map(&mut layout).collect()
    }

    /// The profile of a list, in which every member weighs the same.
    fn list(&mut self, name: &str, members: &[String], kernel: &Kernel<'_>, seed: u64) -> PathBuf {
        let study = self.study;
        let mut inputs = Vec::new();
        for member in members {
            match study.train.list(name, member) {
                Some(inner) => inputs.push(self.list(member, inner, kernel, seed)),
                None => inputs.extend(self.recordings([member].into_iter(), kernel, seed)),
            }
        }
        self.profile(name, &inputs)
    }

    /// The recordings of workloads in all guests.
    fn recordings<'a>(
        &mut self,
        workloads: impl Iterator<Item = &'a String>,
        kernel: &Kernel<'_>,
        seed: u64,
    ) -> Vec<PathBuf> {
        let study = self.study;
        let mut found = Vec::new();
        for workload in workloads {
            for at in 0..study.like.len().max(1) {
                let recording = self.recording(workload, kernel, (seed, study.like(at)));
                if !found.contains(&recording) {
                    found.push(recording);
                }
            }
        }
        found
    }

    /// `guest`: the seed, and the machine that the guest is like.
    fn recording(
        &mut self,
        workload: &str,
        kernel: &Kernel<'_>,
        (seed, like): (u64, Option<&String>),
    ) -> PathBuf {
        let study = self.study;
        let mut words = vec!["record".to_owned(), workload.to_owned()];
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("--kernel", text(kernel.path));
        option("--seed", seed.to_string());
        if let Some(like) = like {
            option("--like", like.clone());
        }
        if study.cpus > 1 {
            option("--cpus", study.cpus.to_string());
        }
        if study.data {
            words.push("--data".to_owned());
        }
        let conditions = format!("{seed} {} {}", study.cpus, study.data);
        let like = like.map_or("every guest", |like| &self.machines[like]);
        let read = [&self.recorder, &self.workloads[workload], kernel.content, like, &conditions];
        let output = place("recordings", &format!("{}-{seed}", short(workload)), &read, "rec");
        words.extend(["--output".to_owned(), text(&output)]);
        self.add(Job { kind: JobKind::Record, output: output.clone(), inputs: Vec::new(), words });
        output
    }

    fn profile(&mut self, name: &str, training: &[PathBuf]) -> PathBuf {
        let inputs: Vec<String> = training.iter().map(|path| text(path)).collect();
        // Only this layout needs these edges, and they take time.
        let temporal_edges = self.study.layouts.iter().any(|name| name == "gloy-smith");
        let options = ["--merge", "average", "--temporal-edges"];
        let options = &options[..if temporal_edges { 3 } else { 2 }];
        let mut read = vec![self.program.as_str()];
        read.extend(options);
        read.extend(inputs.iter().map(String::as_str));
        let output = place("profiles", name, &read, "klp");
        let mut words = vec!["profile".to_owned()];
        words.extend(inputs);
        words.extend(options.iter().map(|&word| word.to_owned()));
        words.extend(["--output".to_owned(), text(&output)]);
        let inputs = training.to_vec();
        self.add(Job { kind: JobKind::Profile, output: output.clone(), inputs, words });
        output
    }

    /// `name`: how the file's name begins.
    fn layout(&mut self, name: &str, algorithm: &str, training: &[PathBuf]) -> PathBuf {
        let inputs: Vec<String> = training.iter().map(|path| text(path)).collect();
        let mut read = vec![self.program.as_str(), algorithm];
        read.extend(inputs.iter().map(String::as_str));
        let output = place("layouts", name, &read, "kll");
        let mut words = vec!["layout".to_owned()];
        words.extend(inputs);
        // Every recording weighs the same (Torrellas 1998, section 5).
        words.extend(["--merge", "average", "--algorithm", algorithm, "--output"].map(Into::into));
        words.push(text(&output));
        self.add(Job {
            kind: JobKind::Layout,
            output: output.clone(),
            inputs: training.to_vec(),
            words,
        });
        output
    }

    /// Adds a job, unless another part of the grid has it.
    fn add(&mut self, job: Job) {
        if !self.plan.jobs.iter().any(|known| known.output == job.output) {
            self.plan.jobs.push(job);
        }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// The last part of a name or a path, in characters that need no quotes.
fn short(name: &str) -> String {
    let stem = Path::new(name).file_stem().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    stem.chars().map(plain).collect()
}

/// Where the output of a job lies that reads what these words say.
fn place(directory: &str, name: &str, read: &[&str], extension: &str) -> PathBuf {
    // Lengths keep one list of words from looking like another.
    let all: String = read.iter().map(|word| format!("{} {word}\n", word.len())).collect();
    let key = sha256(format!("{directory}\n{all}").as_bytes());
    Path::new(directory).join(format!("{name}-{}.{extension}", &key[..KEY]))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::file::tests::small;
    use super::*;
    use std::collections::BTreeSet;

    /// Contents that are the names, but for one that has changed.
    pub(in crate::command::study) struct Named(pub &'static str);

    impl Named {
        fn of(&self, name: &str) -> Result<String> {
            Ok(format!("{name}{}", if name == self.0 { " changed" } else { "" }))
        }
    }

    impl Contents for Named {
        fn workload(&self, name: &str) -> Result<String> {
            self.of(name)
        }
        fn kernel(&self, path: &Path) -> Result<String> {
            self.of(&text(path))
        }
        fn machine(&self, name: &str) -> Result<String> {
            self.of(name)
        }
        fn recorder(&self) -> Result<String> {
            self.of("recorder")
        }
        fn program(&self) -> Result<String> {
            self.of("program")
        }
    }

    fn outputs(study: &Study, contents: &Named) -> BTreeSet<PathBuf> {
        let plan = Plan::new(study, contents).unwrap();
        plan.jobs.into_iter().map(|job| job.output).collect()
    }

    /// How many jobs are done already when a study like `small` has been done.
    fn kept(change: impl FnOnce(&mut Study), contents: &Named) -> usize {
        let mut study = small();
        change(&mut study);
        let old = outputs(&small(), &Named(""));
        outputs(&study, contents).intersection(&old).count()
    }

    #[test]
    fn a_study_is_recordings_layouts_and_replays() {
        let plan = Plan::new(&small(), &Named("")).unwrap();
        let count = |kind| plan.jobs.iter().filter(|job| job.kind == kind).count();
        let counts = [JobKind::Record, JobKind::Layout, JobKind::Replay].map(count);
        assert_eq!((counts, plan.cells.len()), ([4, 8, 4], 4));
        for (at, job) in plan.jobs.iter().enumerate() {
            for input in &job.inputs {
                assert!(plan.jobs[..at].iter().any(|earlier| earlier.output == *input));
            }
        }
        let replay = plan.jobs.iter().find(|job| job.kind == JobKind::Replay).unwrap();
        assert_eq!(replay.words.iter().filter(|word| *word == "--layout").count(), 2);
    }

    #[test]
    fn layouts_of_other_workloads_are_made_once() {
        let mut study = small();
        study.train = Training::Workloads(vec!["web".to_owned(), "net".to_owned()]);
        let plan = Plan::new(&study, &Named("")).unwrap();
        let count = |kind| plan.jobs.iter().filter(|job| job.kind == kind).count();
        // net, own and web, with two seeds each.
        let counts = [JobKind::Record, JobKind::Layout, JobKind::Replay].map(count);
        assert_eq!(counts, [6, 4, 4]);
    }

    #[test]
    fn every_list_has_a_profile_and_layouts() {
        let mut study = small();
        let lists = [("b", vec!["net"]), ("all", vec!["b", "web"]), ("c", vec!["web", "net"])];
        let owned = |members: Vec<&str>| members.into_iter().map(str::to_owned).collect();
        study.train = Training::Lists(
            lists.into_iter().map(|(name, members)| (name.to_owned(), owned(members))).collect(),
        );
        let plan = Plan::new(&study, &Named("")).unwrap();
        let of = |kind| plan.jobs.iter().filter(move |job| job.kind == kind);
        // With two seeds: net, own and web; three profiles; two layouts of each.
        assert_eq!(of(JobKind::Record).count(), 6);
        assert_eq!((of(JobKind::Profile).count(), of(JobKind::Layout).count()), (6, 12));
        let names: Vec<&str> = plan.cells[0].layouts.iter().map(|(name, _)| &**name).collect();
        assert_eq!(
            names,
            ["all.ext-tsp", "all.call", "b.ext-tsp", "b.call", "c.ext-tsp", "c.call"]
        );
        let all = of(JobKind::Profile).find(|job| text(&job.output).starts_with("profiles/all-"));
        let [of_b, web] = &all.unwrap().inputs[..] else { panic!("{all:?}") };
        assert!(of_b.starts_with("profiles") && web.starts_with("recordings"));
        assert!(of(JobKind::Profile).any(|job| job.output == *of_b));
    }

    #[test]
    fn each_machine_replays_its_guest_and_layouts_are_made_for_all() {
        let mut study = small();
        let names = ["zen4", "zen5"].map(str::to_owned).to_vec();
        (study.machines, study.like) = (names.clone(), names);
        study.train = Training::Others;
        let plan = Plan::new(&study, &Named("")).unwrap();
        let count = |kind| plan.jobs.iter().filter(|job| job.kind == kind).count();
        let counts = [JobKind::Record, JobKind::Layout, JobKind::Replay].map(count);
        assert_eq!(counts, [8, 8, 8]);
        for job in &plan.jobs {
            let is_like = |recording: &PathBuf, machine: &str| {
                let made = plan.jobs.iter().find(|job| job.output == *recording).unwrap();
                made.words.windows(2).any(|words| words == ["--like", machine])
            };
            match job.kind {
                JobKind::Record | JobKind::Profile => {}
                JobKind::Layout => {
                    assert!(is_like(&job.inputs[0], "zen4") && is_like(&job.inputs[1], "zen5"));
                }
                JobKind::Replay => {
                    let at = job.words.iter().position(|word| word == "--machine").unwrap();
                    assert!(is_like(&job.inputs[0], &job.words[at + 1]));
                }
            }
        }
    }

    #[test]
    fn a_layout_of_the_others_has_never_seen_its_workload() {
        let mut study = small();
        study.train = Training::Others;
        let plan = Plan::new(&study, &Named("")).unwrap();
        for job in plan.jobs.iter().filter(|job| job.kind == JobKind::Replay) {
            let [recording, layouts @ ..] = &job.inputs[..] else { panic!("{job:?}") };
            for layout in layouts {
                let made = plan.jobs.iter().find(|job| job.output == *layout).unwrap();
                assert!(made.inputs.len() == 1 && !made.inputs.contains(recording));
            }
        }
    }

    #[test]
    fn only_what_reads_a_change_is_done_again() {
        assert_eq!(kept(|_| {}, &Named("")), 16);
        // Half of everything.
        assert_eq!(kept(|_| {}, &Named("net")), 8);
        assert_eq!(kept(|_| {}, &Named("recorder")), 0);
        assert_eq!(kept(|_| {}, &Named("/.")), 0);
        // Recordings.
        assert_eq!(kept(|_| {}, &Named("program")), 4);
        // And layouts.
        assert_eq!(kept(|_| {}, &Named("zen4")), 12);
        assert_eq!(kept(|study| study.branches = true, &Named("")), 12);
        assert_eq!(kept(|study| study.seeds.push(3), &Named("")), 16);
        assert_eq!(kept(|study| study.machines.push("zen5".to_owned()), &Named("")), 16);
        assert_eq!(kept(|study| study.layouts.push("joint".to_owned()), &Named("")), 12);
        assert_eq!(kept(|study| study.data = true, &Named("")), 0);
        assert_eq!(kept(|study| study.like = vec!["zen4".to_owned()], &Named("")), 0);
    }
}
