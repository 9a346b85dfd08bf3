//! `cargo xtask fields-test DIRECTORY`: an order of fields that `report fields --suggest` finds,
//! beside the kernel that has it.
//!
//! `kmem-cache-order.patch` gives `struct kmem_cache` of the demo kernel the order that is
//! suggested for the workload `net`. Eight files of the kernel use this structure, so the patched
//! kernel is built in minutes.
//!
//! Input: both kernels, and a directory for two recordings; those that exist are not made again.
//! The test compares the suggestion with the patch, and the misses that it predicts with those of
//! the patched kernel's recording. The patch fills the gap that the order closes: objects that lie
//! elsewhere miss for other reasons. All counts are simulated.

use anyhow::{Context, Result, ensure};
use guest::{GuestKernel, ProcessorRequest, RecordingRequest, Workload};
use host::interrupt;
use host::table::{Column, TextTable};
use lab::kernel::{self, Compiler, types};
use lab::made::make;
use lab::score::TestScore;
use memory::fields::FieldStudy;
use memory::fields::table::FieldTable;
use memory::fields::what_if::{OrderChange, OrderMisses};
use road::record;
use services::Attribution;
use std::path::{Path, PathBuf};

const PATCH: &str = include_str!("kmem-cache-order.patch");
const STRUCTURE: &str = "kmem_cache";
/// An object whose source uses the structure.
const OBJECT: &str = "mm/slub.o";
const WORKLOAD: &str = "net";
const MACHINE: &str = "zen4";
/// How far the prediction may be from what is recorded.
const LIMIT: f64 = 0.1;

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn fields_test(directory: &Path) -> Result<()> {
    let trees =
        [kernel::tree(Compiler::Gcc)?, kernel::patched(Compiler::Gcc, "kmem-cache-order", PATCH)?];
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    lab::build_plugin()?;
    interrupt::catch()?;
    let [before, after] = [(&trees[0], "before"), (&trees[1], "after")]
        .map(|(tree, name)| Recorded::new(tree, &directory.join(name)));
    let (before, after) = (before?, after?);
    let suggested = before.suggested()?;
    let (recorded, table) = (after.suggested()?.before, after.table()?);
    print(&suggested, &recorded, &table);
    let mut score = TestScore::default();
    score.count("the patch is what is suggested", is_suggested(&suggested, &table));
    let misses = |misses: &OrderMisses| misses.structure.l1d as f64;
    let predicted = misses(&suggested.after);
    let difference = (predicted - misses(&recorded)) / misses(&recorded);
    let what = format!("its misses are predicted within {:.1} %", 100.0 * difference.abs());
    score.holds(&what, difference.abs() <= LIMIT);
    let is_better = misses(&recorded) < misses(&suggested.before);
    score.holds("and fewer than in the order of the source", is_better);
    score.finish("the suggested order is not what the kernel with it shows")
}

/// A kernel with types, and its recording.
struct Recorded {
    kernel: PathBuf,
    recording: PathBuf,
}

impl Recorded {
    /// `path`: how the files' names begin.
    fn new(tree: &Path, path: &Path) -> Result<Recorded> {
        let (kernel, recording) = (path.with_extension("vmlinux"), path.with_extension("rec"));
        make(&recording, || {
            let request = RecordingRequest {
                processor: ProcessorRequest {
                    like: Some(machines::guest_like(MACHINE)?),
                    ..ProcessorRequest::default()
                },
                data: true,
                ..record::request(
                    Workload::open(WORKLOAD)?,
                    GuestKernel::open(tree, None)?,
                    &recording,
                )
            };
            record::record(&request, None).map(drop)
        })?;
        types::with_types(tree, OBJECT, &kernel)?;
        Ok(Recorded { kernel, recording })
    }

    fn attribution(&self) -> Result<Attribution> {
        Attribution::open(&self.kernel, None, &[MACHINE.to_owned()])
    }

    fn suggested(&self) -> Result<OrderChange> {
        let attribution = self.attribution()?;
        FieldStudy::new(&attribution, &self.kernel)?.what_if(&self.recording, STRUCTURE, None)
    }

    fn table(&self) -> Result<FieldTable> {
        let attribution = self.attribution()?;
        FieldStudy::new(&attribution, &self.kernel)?.table(&self.recording, STRUCTURE)
    }
}

/// Whether the members that a suggestion moves are where it moves them.
fn is_suggested(suggested: &OrderChange, table: &FieldTable) -> Result<()> {
    ensure!(!suggested.moved.is_empty(), "nothing moves");
    for moved in &suggested.moved {
        let member = table.members.iter().find(|member| member.name == moved.name);
        let member = member.with_context(|| format!("the patch has no {}", moved.name))?;
        ensure!(
            member.offset == moved.to,
            "{} is suggested at {} and stands at {}",
            moved.name,
            moved.to,
            member.offset
        );
    }
    Ok(())
}

fn print(suggested: &OrderChange, recorded: &OrderMisses, table: &FieldTable) {
    println!(
        "{STRUCTURE} in {}, seed {}, simulated on {MACHINE}; kernel {} with the order of the \
         source, {} with the suggested one",
        suggested.workload, suggested.seed, suggested.kernel_build_id, table.kernel_build_id
    );
    let count = |title| Column::right(title).fixed(14).gap(0);
    let mut printed = TextTable::of([
        Column::left("misses of the kernel").fixed(28),
        count("source's order"),
        count("predicted"),
        count("recorded"),
        count("difference"),
    ]);
    type OfMisses = fn(&OrderMisses) -> u64;
    let rows: [(&str, OfMisses); 4] = [
        ("L1D, on the structure", |misses| misses.structure.l1d),
        ("L2, on the structure", |misses| misses.structure.l2),
        ("L1D, on all data", |misses| misses.all.l1d),
        ("L2, on all data", |misses| misses.all.l2),
    ];
    for (what, of) in rows {
        let numbers = [&suggested.before, &suggested.after, recorded].map(of);
        let [_, predicted, found] = numbers.map(|count| count as f64);
        let mut cells = vec![what.to_owned()];
        cells.extend(numbers.iter().map(u64::to_string));
        cells.push(format!("{:+.2} %", 100.0 * (predicted - found) / found.max(1.0)));
        printed.push(cells);
    }
    print!("{}", printed.to_text());
}
