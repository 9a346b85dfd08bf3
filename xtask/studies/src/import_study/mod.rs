//! What a layout from imported branch stacks brings, beside one from the same executions exactly.
//!
//! The demo kernel's recording of `net` gives stacks of 32 branches, as a processor records them,
//! and the executions that each stack covers. The stacks are also written as processors with other
//! mitigations would record them. An import makes a profile of the stacks of each; the executions
//! give an exact profile. The layouts of all are replayed on another part of the recording.
//!
//! Input of the study: a directory. Output: there, stacks, profiles, layouts, results and
//! `import.md`. What exists is not made again. The study fails if an import uses less than 99 % of
//! the branches, or if its layout is more than two points from the exact one.

mod mitigations;
mod stacks;
mod windows;

use crate::directory::{Counted, StudyDirectory};
use anyhow::{Context, Result, bail, ensure};
use execution::part::RecordingPart;
use guest::Workload;
use host::{interrupt, output};
use image::linked::LinkedKernel;
use image::mapping::map_file;
use kernlane_layout::Algorithm;
use lab::made::make;
use mitigations::Mitigation;
use profile::ProfileMerge;
use replay::results::{ORIGINAL, ResultRow};
use road::import::import;
use stacks::BranchStack;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const WORKLOAD: &str = "net";
const MACHINE: &str = "zen4";
/// The part of the recording that is sampled: its beginning, as a share.
const SAMPLED: f64 = 0.12;
/// The part on which the layouts are tested ends there.
const TESTED: f64 = 0.3;
/// The part of a recording that the test samples: its beginning, as a share.
const TEST_PART: f64 = 0.05;
/// A slide at which the branches are of other code.
const OTHER_SLIDE: u64 = 0x40;
const LEAST_USED: f64 = 0.99;
/// By how many percent of the original an imported profile's layout may differ from the exact one.
const TOLERANCE: f64 = 2.0;

/// Runs the study in `directory`.
///
/// # Errors
/// Something cannot be made, or is not what the study expects.
pub fn import_study(directory: &Path) -> Result<()> {
    let study = StudyDirectory::new(directory)?;
    let recording = study.record(WORKLOAD, (None, false), || Workload::open(WORKLOAD))?;
    let vmlinux = study.tree.join("vmlinux");
    let bytes = map_file(&vmlinux)?;
    let kernel = LinkedKernel::parse(&bytes).with_context(|| vmlinux.display().to_string())?;
    let stacks = stacks::sample(&recording, SAMPLED)?;
    ensure!(!stacks.is_empty(), "the recording has no stacks");
    let exact = study.path("exact.klp");
    make(&exact, || {
        let profile = windows::profile(&recording, &stacks, &vmlinux)?;
        output::write(&exact, profile.to_json().as_bytes())
    })?;
    let importing = Import { tree: &study.tree, directory };
    let mut layouts = vec![("exact".to_owned(), None)];
    for mitigation in Mitigation::ALL {
        let name = mitigation.name().to_owned();
        let share = importing.share(&kernel, &stacks, *mitigation)?;
        layouts.push((name, Some(share)));
    }
    let sampled = Counted {
        part: RecordingPart { from: 0.0, until: SAMPLED },
        merge: ProfileMerge::Sum,
        ..Counted::averaged(std::slice::from_ref(&recording))
    };
    study.profile("whole", &sampled)?;
    layouts.push(("whole".to_owned(), None));
    let rows = replayed(&study, &recording, &layouts)?;
    let text = table(&layouts, &rows)?;
    output::write(&study.path("import.md"), text.as_bytes())?;
    print!("{} stacks\n{text}", stacks.len());
    judge(&layouts, &rows)
}

/// A kernel, and where the stacks of its recording and their profiles go.
struct Import<'a> {
    tree: &'a Path,
    directory: &'a Path,
}

impl Import<'_> {
    /// Imports the stacks as a processor with this mitigation would record them, and returns the
    /// share of branches that the import used.
    fn share(
        &self,
        kernel: &LinkedKernel<'_>,
        stacks: &[BranchStack],
        mitigation: Mitigation,
    ) -> Result<f64> {
        let text = self.text(mitigation);
        let written = mitigations::script(kernel, stacks, mitigation)?;
        interrupt::check()?;
        output::write(&text, written.as_bytes())?;
        let imported = import(&text, self.tree, None)?;
        let profile = text.with_extension("").with_extension("klp");
        output::write(&profile, imported.profile.to_json().as_bytes())?;
        Ok(imported.used as f64 / imported.all as f64)
    }

    fn text(&self, mitigation: Mitigation) -> PathBuf {
        self.directory.join(format!("{}.brstack.txt", mitigation.name()))
    }
}

/// Tests that an import uses the branches of a recording of the tree's kernel, for each
/// mitigation, and refuses them at other addresses.
///
/// # Errors
/// Something cannot be made, or is not what the study expects.
pub fn import_test(tree: &Path, recording: &Path) -> Result<()> {
    interrupt::catch()?;
    let scratch = tempfile::tempdir()?;
    let importing = Import { tree, directory: scratch.path() };
    let vmlinux = tree.join("vmlinux");
    let bytes = map_file(&vmlinux)?;
    let kernel = LinkedKernel::parse(&bytes).with_context(|| vmlinux.display().to_string())?;
    let stacks = stacks::sample(recording, TEST_PART)?;
    ensure!(stacks.len() > 100, "the recording has {} stacks", stacks.len());
    for &mitigation in Mitigation::ALL {
        let share = importing.share(&kernel, &stacks, mitigation)?;
        println!("{}: {:.2} % of the branches were used", mitigation.name(), 100.0 * share);
        ensure!(share > LEAST_USED, "{}: too few", mitigation.name());
    }
    let text = importing.text(Mitigation::Retpoline);
    let Err(refused) = import(&text, tree, Some(OTHER_SLIDE)) else {
        bail!("{}: was accepted with slide {OTHER_SLIDE:#x}", text.display());
    };
    let refused = format!("{refused:#}");
    ensure!(refused.contains("A profile of the right kernel has more than 99 %"), "{refused}");
    Ok(())
}

type NamedLayout = (String, Option<f64>);

fn replayed(
    study: &StudyDirectory,
    recording: &Path,
    layouts: &[NamedLayout],
) -> Result<Vec<ResultRow>> {
    let part = RecordingPart { from: SAMPLED, until: TESTED };
    let files: Vec<PathBuf> = layouts
        .iter()
        .map(|(name, _)| study.layout(name, Algorithm::ExtTsp))
        .collect::<Result<_>>()?;
    let results = study.path("replayed.results");
    study.replayed(&results, (recording, part), &files, &[MACHINE.to_owned()])
}

/// What the kernel did under a layout: L1I misses, cycles, unconditional jumps taken, all direct
/// jumps taken.
fn figures(row: &ResultRow) -> Result<[f64; 4]> {
    let core = row.counters.core.as_ref().context("a machine without a core")?;
    Ok([
        row.counters.l1i.kernel.total() as f64,
        core.mode_cycles(&core.counters.kernel),
        row.counters.taken.kernel.jump as f64,
        row.counters.kernel_jumps() as f64,
    ])
}

/// For each layout: its figures against the original's, in percent.
fn changes(layouts: &[NamedLayout], rows: &[ResultRow]) -> Result<Vec<[f64; 4]>> {
    let original = rows.iter().find(|row| row.layout == ORIGINAL).context("no original")?;
    let original = figures(original)?;
    let others: Vec<&ResultRow> = rows.iter().filter(|row| row.layout != ORIGINAL).collect();
    ensure!(others.len() == layouts.len(), "not a row for each layout");
    let change = |row: &ResultRow| {
        let own = figures(row)?;
        Ok(std::array::from_fn(|n| 100.0 * (own[n] / original[n].max(1.0) - 1.0)))
    };
    others.into_iter().map(change).collect()
}

fn table(layouts: &[NamedLayout], rows: &[ResultRow]) -> Result<String> {
    let mut text = "| layout from | branches used | kernel L1I misses | cycles | unconditional \
                    jumps taken | direct jumps taken |\n|---|---|---|---|---|---|\n"
        .to_owned();
    for ((name, share), change) in layouts.iter().zip(changes(layouts, rows)?) {
        let share = share.map_or(String::new(), |share| format!("{:.2} %", 100.0 * share));
        let cells = change.map(|percent| format!("{percent:+.1} %"));
        let _ = writeln!(text, "| {name} | {share} | {} |", cells.join(" | "));
    }
    Ok(text)
}

/// Refuses imports that use too little, or whose layout differs from the exact one.
fn judge(layouts: &[NamedLayout], rows: &[ResultRow]) -> Result<()> {
    let changes = changes(layouts, rows)?;
    let exact = changes.first().context("no exact layout")?;
    for ((name, share), change) in layouts.iter().zip(&changes) {
        let Some(share) = share else { continue };
        ensure!(*share > LEAST_USED, "{name}: {:.2} % of the branches were used", 100.0 * share);
        for (what, n) in [("kernel L1I misses", 0), ("cycles", 1)] {
            let apart = change[n] - exact[n];
            if apart > TOLERANCE {
                bail!("{name}: {what} are {apart:.1} points worse than with exact branches");
            }
        }
    }
    Ok(())
}
