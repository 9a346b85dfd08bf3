//! The whole road, from workloads to a faster kernel and the proof.
//!
//! Input: workloads and a built tree, which is only read. Output: a directory with the result of
//! each step: recordings, profile, layouts, kernels, results and a page. A step whose result exists
//! is not repeated.
//!
//! [`optimize`] takes all steps. A program that wants something else between two of them takes the
//! steps of [`Road`] itself, as `examples/optimize.rs` of this crate does:
//!
//! ```no_run
//! use layout::Algorithm;
//! use road::optimize::{Optimization, Road};
//!
//! let machines = vec![machines::find("server-32k")?.model];
//! let mut road = Road::open(Optimization::new("net", "linux", "net.optimized", machines))?;
//! let originals = road.record()?;
//! let profile = road.count(&originals)?;
//! let layout = road.lay_out(&road.ground(&profile)?, Algorithm::default(), &originals)?;
//! let kernel = road.relink(&layout)?;
//! let mut rows = road.predict(&originals, std::slice::from_ref(&kernel))?;
//! rows.extend(road.measure(&kernel)?);
//! let optimized = road.keep(rows)?;
//! assert!(optimized.losses.is_empty());
//! # anyhow::Ok(())
//! ```

use crate::counts::extra_counts;
use crate::ground::Ground;
use crate::guests::RecordedGuest;
use crate::proven_kernel::ProvenKernel;
use crate::replayed::ReplayRequest;
use crate::said::say;
use crate::sampling::Sampling;
use crate::search::{LayoutCandidate, LayoutSearch, SearchObjective};
use crate::{counts, modules, record, workload};
use anyhow::{Context, Result, ensure};
use emit::kbuild::BuildTree;
use execution::part::RecordingPart;
use guest::record::is_made;
use guest::{GuestKernel, ProcessorRequest, RecordingRequest, Workload};
use host::{note, output};
use image::order::Layout;
use image::{Image, vmlinux};
use layout::Algorithm;
use profile::{Profile, ProfileMerge};
use replay::comparison::{self, Comparison};
use replay::guard::{self, LayoutLoss};
use replay::results::{ORIGINAL, ResultFile, ResultRow};
use replay::{ReplayLayout, SimulationScope};
use report::page;
use sim::MachineModel;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trace::CpuCount;

/// What to optimize a kernel for, and how.
#[derive(Clone, Debug)]
pub struct Optimization {
    /// The workloads, as [`workload::open`] takes them. The layouts are made for their average.
    pub workloads: Vec<WeightedWorkload>,
    /// The directory in which the kernel was built.
    pub tree: PathBuf,
    /// The directory for the results.
    pub output: PathBuf,
    /// The guests that are recorded, with the machines to simulate on the recording of each.
    /// Searches by misses replay on the first machine, those by time on the first that describes an
    /// out-of-order core, and on the recording of its guest.
    pub guests: Vec<RecordedGuest>,
    /// What to simulate of each machine.
    pub scope: SimulationScope,
    /// The layout algorithms.
    pub algorithms: Vec<Algorithm>,
    /// Where all randomness of the guest and of the layouts comes from.
    pub seed: u64,
    /// How many layouts to try. By misses: with each algorithm that depends on its seed, that many
    /// seeds. By time: that many layouts in all ([`LayoutCandidate::algorithms`]).
    pub tries: u64,
    /// Which of the layouts that are tried is the best.
    pub objective: SearchObjective,
    /// Whether functions that move lose their call padding.
    pub drop_call_padding: bool,
    /// The number of the guest's CPUs.
    pub cpus: CpuCount,
    /// Variables for make, as given when the kernel was built: `NAME=VALUE`.
    pub make: Vec<String>,
    /// The longest time that a guest may run.
    pub time_limit: Duration,
    /// Which instructions out-of-order cores simulate in detail.
    pub sampling: Sampling,
}

/// A workload, and how often it counts in the average of several.
#[derive(Clone, Debug)]
pub struct WeightedWorkload {
    /// The workload, as [`workload::open`] takes it.
    pub workload: String,
    /// Its weight.
    pub weight: u32,
}

impl WeightedWorkload {
    /// A workload that counts once.
    pub fn new(workload: impl Into<String>) -> WeightedWorkload {
        WeightedWorkload { workload: workload.into(), weight: 1 }
    }
}

impl Optimization {
    /// As `kernlane optimize` does it without options, with one guest.
    ///
    /// ```
    /// let machines = vec![machines::find("server-32k")?.model];
    /// let optimization = road::optimize::Optimization::new("net", "linux", "out", machines);
    /// assert_eq!((optimization.seed, optimization.tries), (1, 1));
    /// # anyhow::Ok(())
    /// ```
    pub fn new(
        workload: impl Into<String>,
        tree: impl Into<PathBuf>,
        output: impl Into<PathBuf>,
        machines: Vec<MachineModel>,
    ) -> Optimization {
        Optimization {
            workloads: vec![WeightedWorkload::new(workload)],
            tree: tree.into(),
            output: output.into(),
            guests: vec![RecordedGuest::new(ProcessorRequest::default(), machines)],
            scope: SimulationScope::Caches,
            algorithms: vec![Algorithm::default()],
            seed: 1,
            tries: 1,
            objective: SearchObjective::default(),
            drop_call_padding: false,
            cpus: CpuCount::ONE,
            make: Vec::new(),
            time_limit: record::TIME_LIMIT,
            sampling: Sampling::default(),
        }
    }
}

impl Optimization {
    /// Recordings are named by their workloads.
    fn ensure_told_apart(&self) -> Result<()> {
        ensure!(!self.workloads.is_empty(), "no workload is named");
        let mut names = BTreeSet::new();
        for WeightedWorkload { workload, weight } in &self.workloads {
            let name = workload::open(workload)?.name;
            ensure!(*weight > 0, "the workload {name} has the weight 0");
            ensure!(!names.contains(&name), "two workloads are called {name}");
            names.insert(name);
        }
        Ok(())
    }

    /// Whether several layouts are tried, and the fastest is the best.
    fn searches_by_time(&self) -> bool {
        self.tries > 1 && self.objective == SearchObjective::Time
    }

    /// The machine on which a search replays, with the number of its guest.
    fn searched_machine(&self, objective: SearchObjective) -> Result<(usize, &MachineModel)> {
        let mut machines = Vec::new();
        for (at, guest) in self.guests.iter().enumerate() {
            machines.extend(guest.machines.iter().map(|machine| (at, machine)));
        }
        let fitting = machines.iter().find(|(_, machine)| objective.check(machine).is_ok());
        let (at, machine) = *fitting.or(machines.first()).context("no machine is named")?;
        objective.check(machine)?;
        Ok((at, machine))
    }
}

/// What optimizing a kernel brought.
pub struct Optimized {
    /// The rows of the original, of each prediction and of each relinked kernel.
    pub results: ResultFile,
    /// The same rows, each layout beside the original.
    pub comparisons: Vec<Comparison>,
    /// The layouts that lose against the original.
    pub losses: Vec<LayoutLoss>,
    /// The page that shows the comparisons.
    pub page: PathBuf,
}

/// Takes all steps of the road.
///
/// ```no_run
/// use road::optimize::{Optimization, optimize};
///
/// let machines = vec![machines::find("server-32k")?.model];
/// let optimized = optimize(Optimization::new("net", "linux", "net.optimized", machines))?;
/// print!("{}", report::text::comparisons(&optimized.comparisons));
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// A step fails: the tree is not built, the workload fails, a layout cannot be relinked, or a
/// relinked kernel is not the old program. The results of the steps before it stay.
pub fn optimize(optimization: Optimization) -> Result<Optimized> {
    let directory = optimization.output.clone();
    output::in_directory(&directory, |_| {
        let mut road = Road::open(optimization)?;
        let originals = road.record()?;
        let profile = road.count(&originals)?;
        let rows = road.rows_of_all(&originals, &profile)?;
        road.keep(rows)
    })
}

/// The road of one kernel. Each step writes its result into the directory of the
/// [`Optimization`], and an interrupt ends the road between two steps. The module shows how the
/// steps follow one another.
pub struct Road {
    optimization: Optimization,
    tree: BuildTree,
    image: Image,
}

impl Road {
    /// Opens the kernel.
    ///
    /// # Errors
    /// The tree is not a built kernel, or no machine can tell which layout is the fastest.
    pub fn open(optimization: Optimization) -> Result<Road> {
        if optimization.searches_by_time() {
            optimization.searched_machine(SearchObjective::Time)?;
        }
        optimization.ensure_told_apart()?;
        let tree = BuildTree::open(&optimization.tree, &optimization.make)?;
        let mut image = vmlinux::read(&tree.file("vmlinux"))?;
        if optimization.drop_call_padding {
            image.drop_call_padding();
        }
        Ok(Road { optimization, tree, image })
    }

    /// The functions and blocks of the kernel, and of the modules that were recorded.
    pub fn image(&self) -> &Image {
        &self.image
    }

    fn path(&self, name: &str) -> PathBuf {
        self.optimization.output.join(name)
    }

    /// Records each workload on the tree's own kernel in each guest: `original.rec`, if there is
    /// one, and reads the modules that it loaded. Returns the paths: for each guest, those of all
    /// workloads.
    ///
    /// # Errors
    /// As [`record::record`]; or the tree's modules cannot be read.
    pub fn record(&mut self) -> Result<Vec<PathBuf>> {
        let recordings = self.record_kernel(ORIGINAL, &self.optimization.tree)?;
        modules::attach(&mut self.image, &self.optimization.tree, &recordings)?;
        Ok(recordings)
    }

    fn record_kernel(&self, name: &str, kernel: &Path) -> Result<Vec<PathBuf>> {
        let Optimization { guests, workloads, .. } = &self.optimization;
        let mut recordings = Vec::new();
        for guest in guests {
            for WeightedWorkload { workload, .. } in workloads {
                let workload = workload::open(workload)?;
                recordings.push(self.recording_of(guest, workload, name, kernel)?);
            }
        }
        Ok(recordings)
    }

    /// The recording of one kernel under a workload.
    fn recording_of(
        &self,
        guest: &RecordedGuest,
        workload: Workload,
        name: &str,
        kernel: &Path,
    ) -> Result<PathBuf> {
        let several = self.optimization.workloads.len() > 1;
        let directory = self.path(&guest.recording(name, several.then_some(&workload.name)));
        let kernel = GuestKernel::open(kernel, None)?;
        let request = RecordingRequest {
            seed: self.optimization.seed,
            cpus: self.optimization.cpus,
            processor: guest.processor.clone(),
            time_limit: self.optimization.time_limit,
            force: true,
            ..record::request(workload, kernel, &directory)
        };
        if is_made(&request) {
            say(&format!("using the existing recording {}", directory.display()))?;
            return Ok(directory);
        }
        let like = guest.processor.like.as_ref();
        let like = like.map_or(String::new(), |like| format!(", in a guest like {}", like.name));
        let order = match name == ORIGINAL {
            true => "its own order".to_owned(),
            false => format!("the order by {name}"),
        };
        say(&format!("recording {} on the kernel in {order}{like}", request.workload.name))?;
        record::record(&request, None)?;
        Ok(directory)
    }

    /// The counts of the recordings, averaged by the weights of their workloads, with all that the
    /// algorithms need; kept as `profile.klp`.
    ///
    /// # Errors
    /// A recording is damaged or of another kernel.
    pub fn count(&self, recordings: &[PathBuf]) -> Result<Profile> {
        say("counting blocks, edges and calls")?;
        let (whole, extra) = (RecordingPart::WHOLE, extra_counts(&self.optimization.algorithms));
        let weights = self.optimization.workloads.iter().map(|workload| workload.weight);
        let weights: Vec<u32> = weights.cycle().take(recordings.len()).collect();
        let profile = match recordings.len() {
            1 => counts::profile(recordings, &self.image, &whole, ProfileMerge::Sum, extra)?,
            _ => counts::weighted(recordings, &weights, &self.image, extra)?,
        };
        output::write(&self.path("profile.klp"), profile.to_json().as_bytes())?;
        Ok(profile)
    }

    /// The kernel with these counts.
    ///
    /// # Errors
    /// The profile is not of the kernel.
    pub fn ground<'a>(&'a self, profile: &'a Profile) -> Result<Ground<'a>> {
        Ground::new(&self.image, profile)
    }

    /// The layout by an algorithm, kept as `ALGORITHM.kll`: of several, if they are wanted and the
    /// algorithm depends on its seed, the one with the fewest misses.
    ///
    /// # Errors
    /// The algorithm cannot lay the kernel out.
    pub fn lay_out(
        &self,
        ground: &Ground<'_>,
        algorithm: Algorithm,
        recordings: &[PathBuf],
    ) -> Result<Layout> {
        say(&format!("laying the kernel out by {algorithm}"))?;
        let (first, tries) = (self.optimization.seed, self.optimization.tries);
        let layout = match tries == 1 || !algorithm.depends_on_seed() {
            true => ground.lay_out(algorithm, first)?.0,
            false => {
                let candidates = LayoutCandidate::seeds(algorithm, first, tries);
                self.search(ground, &candidates, SearchObjective::Misses, recordings)?
            }
        };
        self.keep_layout(&layout)?;
        Ok(layout)
    }

    /// The fastest of several layouts, kept as `ALGORITHM.kll`.
    ///
    /// # Errors
    /// No machine describes an out-of-order core, or an algorithm cannot lay the kernel out.
    pub fn lay_out_by_time(&self, ground: &Ground<'_>, recordings: &[PathBuf]) -> Result<Layout> {
        let Optimization { algorithms, seed, tries, .. } = &self.optimization;
        say("laying the kernel out by several algorithms")?;
        let candidates = LayoutCandidate::algorithms(algorithms, *seed, *tries);
        let (guest, _) = self.optimization.searched_machine(SearchObjective::Time)?;
        let of_guest = recordings.chunks(self.optimization.workloads.len()).nth(guest);
        let recordings = of_guest.context("a guest has no recording")?;
        let layout = self.search(ground, &candidates, SearchObjective::Time, recordings)?;
        self.keep_layout(&layout)?;
        Ok(layout)
    }

    fn search(
        &self,
        ground: &Ground<'_>,
        candidates: &[LayoutCandidate],
        objective: SearchObjective,
        recordings: &[PathBuf],
    ) -> Result<Layout> {
        let search = LayoutSearch {
            candidates,
            objective,
            kernel: &self.optimization.tree,
            image: &self.image,
            machine: self.optimization.searched_machine(objective)?.1.clone(),
            recordings,
            part: &RecordingPart::WHOLE,
            sampling: self.optimization.sampling,
        };
        let (layout, _, tried) = search.run(ground)?;
        note!("{}", report::search::text(&tried).trim_end());
        Ok(layout)
    }

    fn keep_layout(&self, layout: &Layout) -> Result<()> {
        let path = self.path(&format!("{}.kll", layout.algorithm));
        output::write(&path, layout.to_text().as_bytes())
    }

    /// Relinks the kernel in a layout's order, with the modules that the layout names, and proves
    /// that it is the old program. The kernel is kept in `ALGORITHM.kernel`.
    ///
    /// # Errors
    /// The kernel cannot be linked, or is not the old program.
    pub fn relink(&self, layout: &Layout) -> Result<ProvenKernel> {
        let directory = self.path(&format!("{}.kernel", layout.algorithm));
        ProvenKernel::make(&self.tree, &self.optimization.tree, layout, &directory)
    }

    /// The original's recordings replayed over the layout of each kernel, the original first.
    ///
    /// # Errors
    /// As [`ReplayRequest::rows`].
    pub fn predict(
        &self,
        recordings: &[PathBuf],
        kernels: &[ProvenKernel],
    ) -> Result<Vec<ResultRow>> {
        say("replaying the recording over each layout")?;
        let mut layouts = vec![ReplayLayout::original()];
        layouts.extend(kernels.iter().map(|kernel| {
            let ProvenKernel { name, map, .. } = kernel;
            ReplayLayout::predicted(name, map.build_id.clone(), kernel.placement())
        }));
        self.rows_of_recordings(recordings, &layouts, &self.image)
    }

    fn rows_of_recordings(
        &self,
        recordings: &[PathBuf],
        layouts: &[ReplayLayout],
        image: &Image,
    ) -> Result<Vec<ResultRow>> {
        let Optimization { guests, workloads, .. } = &self.optimization;
        let mut rows = Vec::new();
        for (guest, recordings) in guests.iter().zip(recordings.chunks(workloads.len())) {
            for recording in recordings {
                rows.extend(self.rows(guest, recording, layouts, image)?);
            }
        }
        Ok(rows)
    }

    /// Records each workload on a relinked kernel in each guest (`ALGORITHM.rec`, if there is one)
    /// and replays the recordings.
    ///
    /// # Errors
    /// As [`record::record`] and [`ReplayRequest::rows`].
    pub fn measure(&self, kernel: &ProvenKernel) -> Result<Vec<ResultRow>> {
        let ProvenKernel { name, directory, .. } = kernel;
        let recordings = self.record_kernel(name, directory)?;
        say(&format!("measuring the {name} kernel"))?;
        let image = modules::image_of(directory, &recordings)?;
        self.rows_of_recordings(&recordings, &[ReplayLayout::recorded(name)], &image)
    }

    /// All steps behind the first recordings and their counts: the rows of the original, of each
    /// prediction and of each relinked kernel.
    ///
    /// # Errors
    /// A step fails.
    pub fn rows_of_all(&self, originals: &[PathBuf], profile: &Profile) -> Result<Vec<ResultRow>> {
        let ground = self.ground(profile)?;
        let mut kernels = Vec::new();
        if self.optimization.searches_by_time() {
            kernels.push(self.relink(&self.lay_out_by_time(&ground, originals)?)?);
        } else {
            for &algorithm in &self.optimization.algorithms {
                kernels.push(self.relink(&self.lay_out(&ground, algorithm, originals)?)?);
            }
        }
        let mut rows = self.predict(originals, &kernels)?;
        for kernel in &kernels {
            rows.extend(self.measure(kernel)?);
        }
        Ok(rows)
    }

    fn rows(
        &self,
        guest: &RecordedGuest,
        recording: &Path,
        layouts: &[ReplayLayout],
        image: &Image,
    ) -> Result<Vec<ResultRow>> {
        let Optimization { scope, sampling, .. } = &self.optimization;
        let replay = ReplayRequest::new(recording, layouts, &guest.machines);
        ReplayRequest { scope: *scope, image: Some(image), sampling: *sampling, ..replay }.rows()
    }

    /// As [`keep`], in the directory of the [`Optimization`].
    ///
    /// # Errors
    /// As [`keep`].
    pub fn keep(&self, rows: Vec<ResultRow>) -> Result<Optimized> {
        keep(&self.optimization.output, rows)
    }
}

/// Keeps the rows as `results.json`, and the page that shows them as `report.html`.
///
/// # Errors
/// A prediction or a relinked kernel has no row of the original to stand beside, or the files
/// cannot be written.
pub fn keep(directory: &Path, rows: Vec<ResultRow>) -> Result<Optimized> {
    let results = ResultFile::new(rows);
    let comparisons = comparison::compare(&results.rows)?;
    let page = directory.join("report.html");
    output::write(&directory.join("results.json"), results.to_json()?.as_bytes())?;
    output::write(&page, page::page(&[], &comparisons)?.as_bytes())?;
    let losses = guard::losses(&results.rows);
    Ok(Optimized { results, comparisons, losses, page })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_by_time_takes_the_first_machine_with_a_core() {
        let guest = |machine: &str| {
            let machines = machines::models(&[machine]).unwrap();
            RecordedGuest::new(ProcessorRequest::default(), machines)
        };
        let usual = Optimization::new("net", "linux", "out", Vec::new());
        let guests = ["server-32k", "zen4", "zen5"].map(guest).into();
        let optimization = Optimization { guests, ..usual };
        let found = |objective| {
            let (guest, machine) = optimization.searched_machine(objective).unwrap();
            (guest, machine.name.as_str())
        };
        assert_eq!(found(SearchObjective::Misses), (0, "server-32k"));
        assert_eq!(found(SearchObjective::Time), (1, "zen4"));
    }
}
