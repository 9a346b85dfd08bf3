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
//! use road::optimization::Optimization;
//! use road::optimize::Road;
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

use crate::ground::Ground;
use crate::modules;
use crate::optimization::Optimization;
use crate::proven_kernel::ProvenKernel;
use crate::said::say;
use crate::search::{LayoutCandidate, LayoutSearch, SearchObjective};
use anyhow::{Context, Result};
use emit::kbuild::BuildTree;
use execution::part::RecordingPart;
use host::{note, output};
use image::order::Layout;
use image::{Image, vmlinux};
use layout::Algorithm;
use profile::Profile;
use replay::ReplayLayout;
use replay::comparison::{self, Comparison};
use replay::guard::{self, LayoutLoss};
use replay::results::{ORIGINAL, ResultFile, ResultRow};
use report::page;
use std::path::{Path, PathBuf};

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
/// use road::optimization::Optimization;
/// use road::optimize::optimize;
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

    /// Records each workload on the tree's own kernel in each guest: `original.rec`, if there is
    /// one, and reads the modules that it loaded. Returns the paths: for each guest, those of all
    /// workloads.
    ///
    /// # Errors
    /// As [`record::record`]; or the tree's modules cannot be read.
    pub fn record(&mut self) -> Result<Vec<PathBuf>> {
        let recordings = self.optimization.record_tree(ORIGINAL, &self.optimization.tree)?;
        modules::attach(&mut self.image, &self.optimization.tree, &recordings)?;
        Ok(recordings)
    }

    /// The counts of the recordings, averaged by the weights of their workloads, with all that the
    /// algorithms need; kept as `profile.klp`.
    ///
    /// # Errors
    /// A recording is damaged or of another kernel.
    pub fn count(&self, recordings: &[PathBuf]) -> Result<Profile> {
        self.optimization.count(recordings, &self.image)
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
        let path = self.optimization.path(&format!("{}.kll", layout.algorithm));
        output::write(&path, layout.to_text().as_bytes())
    }

    /// Relinks the kernel in a layout's order, with the modules that the layout names, and proves
    /// that it is the old program. The kernel is kept in `ALGORITHM.kernel`.
    ///
    /// # Errors
    /// The kernel cannot be linked, or is not the old program.
    pub fn relink(&self, layout: &Layout) -> Result<ProvenKernel> {
        let directory = self.optimization.path(&format!("{}.kernel", layout.algorithm));
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
        self.optimization.rows(recordings, &layouts, Some(&self.image))
    }

    /// Records each workload on a relinked kernel in each guest (`ALGORITHM.rec`, if there is one)
    /// and replays the recordings.
    ///
    /// # Errors
    /// As [`record::record`] and [`ReplayRequest::rows`].
    pub fn measure(&self, kernel: &ProvenKernel) -> Result<Vec<ResultRow>> {
        let ProvenKernel { name, directory, .. } = kernel;
        let recordings = self.optimization.record_tree(name, directory)?;
        say(&format!("measuring the {name} kernel"))?;
        let image = modules::image_of(directory, &recordings)?;
        self.optimization.rows(&recordings, &[ReplayLayout::recorded(name)], Some(&image))
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
