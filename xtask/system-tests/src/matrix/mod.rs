//! `cargo xtask matrix`: whether kernels of other versions, compilers and configurations can be
//! laid out.
//!
//! Input: names of cells ([`cells`]). Output: `bench/matrix.json`, and the tables of
//! `docs/results/kernels.md`. Each cell is a command of its own (`cargo xtask matrix-cell`), so
//! that one that ends badly ends alone. A cell that has a result is not tried again.
//!
//! The steps of a cell: its tree is built; the original order gives the original kernel; a layout
//! for a workload and a random order are proven, boot, and miss as predicted; in a guest with
//! several CPUs and KASLR the kernel in the random order works like the original.

mod cells;
mod results;

use crate::{relink_test, road_test, vm_test};
use anyhow::{Context, Result, ensure};
use cells::{CELLS, Cell};
use host::{interrupt, note};
use image::Image;
use image::object::linked::LinkAddresses;
use lab::kernel::recipe::{self, Recipe};
use profile::{Profile, staying};
use replay::comparison;
use replay::results::ResultFile;
use results::{CellResult, Results};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

const RESULTS: &str = "bench/matrix.json";
const PAGE: &str = "docs/results/kernels.md";
/// What stands around the tables in the page.
const MARKS: [&str; 2] = ["<!-- the matrix begins -->\n", "<!-- the matrix ends -->\n"];
/// The guest in which kernels are compared.
const GUEST: &str = "4 CPUs";
/// The metrics of a result, as the comparison names them.
const METRICS: [&str; 2] = ["kernel L1I misses", "kernel taken jumps (conditional and direct)"];

/// What [`matrix`] is asked for.
#[derive(Debug)]
pub struct Request {
    /// Names of cells; none is all.
    pub cells: Vec<String>,
    /// How many cells at once.
    pub jobs: usize,
    /// Try also cells that have a result.
    pub again: bool,
    /// The file with the configuration, for cells with one that is published elsewhere.
    pub config: Option<PathBuf>,
}

/// Tries cells and keeps what was found out.
///
/// # Errors
/// No such cell; a file cannot be written; a cell failed.
pub fn matrix(request: &Request) -> Result<()> {
    interrupt::catch()?;
    let asked: Vec<Cell> = match &request.cells[..] {
        [] => CELLS.to_vec(),
        names => names.iter().map(|name| Cell::named(name)).collect::<Result<_>>()?,
    };
    let known = Results::read(Path::new(RESULTS))?;
    let is_open = |cell: &Cell| request.again || !known.cells.contains_key(&cell.to_string());
    let lacks_config = |cell: &Cell| cell.needs_config() && request.config.is_none();
    // Without names, what cannot be tried is left out.
    let asked: Vec<Cell> = match request.cells.is_empty() {
        true => asked.into_iter().filter(|cell| !lacks_config(cell)).collect(),
        false => asked,
    };
    let open: VecDeque<Cell> = asked.iter().copied().filter(is_open).collect();
    note!("{} of {} cells have a result", asked.len() - open.len(), asked.len());
    let (open, known) = (Mutex::new(open), Mutex::new(known));
    let next = || open.lock().expect("no cell panics").pop_front();
    let processors = recipe::all_processors().div_ceil(request.jobs.max(1));
    let work = || -> Result<()> {
        while let Some(cell) = next() {
            interrupt::check()?;
            let result = apart(cell, processors, request.config.as_deref())?;
            interrupt::check()?;
            let outcome = result.failed.as_ref().map_or("passed".into(), |(step, why)| {
                format!("FAILED: {step}: {}", why.lines().next().unwrap_or_default())
            });
            println!("{cell}: {outcome}");
            let mut known = known.lock().expect("no cell panics");
            known.cells.insert(cell.to_string(), result);
            known.write(Path::new(RESULTS))?;
            write_page(&known)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..request.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no cell panics"))
    })?;
    let known = Results::read(Path::new(RESULTS))?;
    let failed: Vec<String> = asked
        .iter()
        .map(Cell::to_string)
        .filter(|name| known.cells.get(name).is_none_or(|result| result.failed.is_some()))
        .collect();
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// The page with the tables of these results.
fn write_page(results: &Results) -> Result<()> {
    let text = fs::read_to_string(PAGE).context(PAGE)?;
    host::output::write(Path::new(PAGE), with_tables(&text, &results.tables())?.as_bytes())?;
    Ok(())
}

/// The text with other tables between its marks.
fn with_tables(text: &str, tables: &str) -> Result<String> {
    let (before, rest) =
        text.split_once(MARKS[0]).context("the page has no mark of a beginning")?;
    let (_, behind) = rest.split_once(MARKS[1]).context("the page has no mark of an end")?;
    Ok(format!("{before}{}\n{tables}{}{behind}", MARKS[0], MARKS[1]))
}

/// A cell in a command of its own, whose output goes to a log.
fn apart(cell: Cell, processors: usize, config: Option<&Path>) -> Result<CellResult> {
    let directory = directory(cell)?;
    fs::create_dir_all(&directory)?;
    let output = directory.join("result.json");
    let log = directory.join("log");
    note!("{cell}: the log is {}", log.display());
    let written = fs::File::create(&log).with_context(|| log.display().to_string())?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["matrix-cell", &cell.to_string(), "--processors", &processors.to_string()]);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    command.stdin(Stdio::null()).stdout(written.try_clone()?).stderr(written);
    let status = command.status()?;
    if status.success() {
        let result = fs::read_to_string(&output).with_context(|| output.display().to_string())?;
        fs::remove_dir_all(&directory)?;
        return Ok(serde_json::from_str(&result)?);
    }
    // The log says more; what the cell has built stays for the next attempt.
    let Ok(text) = fs::read_to_string(&output) else {
        anyhow::bail!("{cell}: {status}: {}", last_line(&fs::read_to_string(&log)?));
    };
    Ok(serde_json::from_str(&text)?)
}

fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing")
}

/// Where a cell works.
fn directory(cell: Cell) -> Result<PathBuf> {
    Ok(lab::kernel::cache()?.join("matrix").join(cell.to_string().replace('/', "-")))
}

/// Tries one cell in this process, and writes its result.
///
/// # Errors
/// A step failed, or the result cannot be written.
pub fn matrix_cell(name: &str, processors: usize, config: Option<&Path>) -> Result<()> {
    interrupt::catch()?;
    let cell = Cell::named(name)?;
    let directory = directory(cell)?;
    fs::create_dir_all(&directory)?;
    let recipe = cell.recipe(config)?;
    let mut result = CellResult {
        date: today()?,
        linux: recipe.source.version.clone(),
        compiler: recipe.compiler_version()?,
        config: cell.needs_config().then(|| image::sealed::sha256(recipe.config.as_bytes())),
        ..CellResult::default()
    };
    let tried = Trial { cell, recipe, directory: &directory, processors }.steps(&mut result);
    interrupt::check()?;
    let text = serde_json::to_string_pretty(&result)?;
    host::output::write(&directory.join("result.json"), text.as_bytes())?;
    tried
}

fn today() -> Result<String> {
    let output = lab::succeeded(Command::new("date").arg("+%F"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A cell while it is tried.
struct Trial<'a> {
    cell: Cell,
    recipe: Recipe,
    directory: &'a Path,
    processors: usize,
}

/// The last line of an error, in which the program that failed says why. Files of the tree have
/// names relative to it.
fn last_said(error: &str, tree: &Path) -> String {
    let said = error.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    said.trim().replace(&format!("{}/", tree.display()), "")
}

/// One step of a cell.
type Step<'a> = (&'a str, &'a dyn Fn(&mut CellResult) -> Result<()>);

impl Trial<'_> {
    /// Takes the steps up to the first that fails.
    fn steps(&self, result: &mut CellResult) -> Result<()> {
        let tree = self.tree()?;
        let road = self.directory.join("road");
        let steps: [Step; 4] = [
            ("build", &|result| self.build(&tree, result)),
            ("original order", &|_| relink_test::the_original_order_is_the_original(&tree)),
            ("layouts", &|result| {
                road_test::road(&tree, &[], &road)?;
                measure(&tree, &road, result)?;
                road_test::predictions_hold(&road)
            }),
            ("guest", &|_| {
                let random = road.join(format!("{}.kernel", road_test::RANDOM));
                let guest = if self.cell.is_plain() { vm_test::PLAIN } else { GUEST };
                vm_test::vm_test(&tree, &random, &[guest.to_owned()])
            }),
        ];
        for (name, step) in steps {
            println!("step: {name}");
            if let Err(error) = step(result) {
                let why = last_said(&format!("{error:#}"), &tree);
                result.failed = Some((name.to_owned(), why));
                return Err(error.context(format!("{}: {name}", self.cell)));
            }
            result.passed.push(name.to_owned());
        }
        Ok(())
    }

    /// The path of the cell's tree: below its directory, or that of the demo kernel that it is.
    fn tree(&self) -> Result<PathBuf> {
        match self.cell.demo_kernel() {
            Some(compiler) => lab::kernel::place(compiler),
            None => Ok(self.directory.join("tree")),
        }
    }

    fn build(&self, tree: &Path, result: &mut CellResult) -> Result<()> {
        if let Some(compiler) = self.cell.demo_kernel() {
            lab::kernel::tree(compiler)?;
        }
        lab::made::make(tree, || {
            let part = tree.with_extension("part");
            if part.exists() {
                fs::remove_dir_all(&part)?;
            }
            fs::create_dir_all(&part)?;
            self.recipe.unpack(&part)?;
            self.recipe.configure(&part)?;
            let config = fs::read_to_string(part.join(".config"))?;
            recipe::are_set(&config, self.cell.options())?;
            self.recipe.build(&part, self.processors)?;
            fs::rename(&part, tree)?;
            Ok(())
        })?;
        let vmlinux = fs::read(tree.join("vmlinux"))?;
        result.kernel = Some(LinkAddresses::read(&vmlinux)?.build_id.0);
        Ok(())
    }
}

/// The figures of a road.
fn measure(tree: &Path, road: &Path, result: &mut CellResult) -> Result<()> {
    let results = ResultFile::read(road)?;
    let comparisons = comparison::compare(&results.rows)?;
    let mut layouts = comparisons.iter().flat_map(|comparison| &comparison.layouts);
    let layout = layouts.find(|layout| layout.layout == road_test::LAYOUT).context("no layout")?;
    let changes = METRICS.map(|name| {
        let metric = layout.metrics.iter().find(|metric| metric.name == name);
        let metric = metric.with_context(|| format!("there is no {name}"))?;
        anyhow::Ok((metric.recorded_change.context("no change")?, metric.difference))
    });
    let [misses, jumps] = changes;
    let (misses, jumps) = (misses?, jumps?);
    result.recorded = Some([misses.0, jumps.0]);
    result.predicted_off = misses.1.map(f64::abs);
    let image = image::vmlinux::read(&tree.join("vmlinux"))?;
    let profile = Profile::from_json(&fs::read_to_string(road.join("profile.klp"))?)?;
    result.functions = Some(share_that_moves(&image, &profile));
    Ok(())
}

/// The share of the executed functions whose blocks a layout moves.
fn share_that_moves(image: &Image, profile: &Profile) -> f64 {
    let executed: BTreeMap<_, _> = staying::counted(image, profile)
        .map(|(block, _)| image.function_of(block))
        .map(|function| (function.blocks.start, function.stays.is_none()))
        .collect();
    let moved = executed.values().filter(|&&moves| moves).count();
    moved as f64 / executed.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::address::LinkAddr;
    use image::ordinary::ReservedCode;

    #[test]
    fn only_what_stands_between_the_marks_changes() {
        let page = |tables: &str| format!("# Kernels\n{}{tables}{}end\n", MARKS[0], MARKS[1]);
        let text = page("old\n");
        assert_eq!(with_tables(&text, "new\n").unwrap(), page("\nnew\n"));
        let text = with_tables("# Kernels\n", "new\n").unwrap_err().to_string();
        assert_eq!(text, "the page has no mark of a beginning");
    }

    #[test]
    fn a_failure_is_the_last_that_was_said() {
        let error = "\"kernlane\": exit status: 2\nkernlane: /a/tree/vmlinux.o: why\n\n";
        assert_eq!(last_said(error, Path::new("/a/tree")), "kernlane: vmlinux.o: why");
        assert_eq!(last_said("", Path::new("/a/tree")), "");
    }

    /// Of three executed blocks two lie in f. g stays.
    #[test]
    fn functions_that_stay_count_against_the_share() {
        let base = 0xffff_ffff_8100_0000;
        let mut image = image::examples::caller_and_callee(LinkAddr(base));
        let mut profile = Profile::empty(image.build_id.clone());
        assert_eq!(share_that_moves(&image, &profile), 0.0);
        for offset in [0, 4, 0x20] {
            profile.blocks.insert(LinkAddr(base + offset), 3);
        }
        assert_eq!(share_that_moves(&image, &profile), 1.0);
        image.functions[1].stays = Some(ReservedCode::Locks);
        assert_eq!(share_that_moves(&image, &profile), 0.5);
    }

    #[test]
    fn the_page_has_the_results_that_are_kept() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let results = Results::read(&root.join(RESULTS)).unwrap();
        let page = fs::read_to_string(root.join(PAGE)).unwrap();
        assert_eq!(with_tables(&page, &results.tables()).unwrap(), page, "run cargo xtask matrix");
    }
}
