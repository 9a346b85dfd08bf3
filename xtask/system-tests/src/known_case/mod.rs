//! `cargo xtask known-case DIRECTORY`: a known case of Linux, found, cured on paper, and compared
//! with the kernel that has the cure.
//!
//! Linux 6.11 moved `d_lockref`, which every reference to a dentry writes, out of the line with the
//! dentry's name, which every lookup reads (18a5daf0e497). `old-order.patch` takes this back. The
//! workload looks at directories from two CPUs, and through them from two others.
//!
//! Input: the demo kernel in both orders, and a directory for four recordings; those that exist are
//! not made again. The test looks for the field and the cure in the table of sharing of the old
//! order, and compares what moving the field would bring with the recording of the new order.
//! Prints a table for each workload and one line for each test. Takes no notice of time: all counts
//! are simulated.

use anyhow::{Context, Result, ensure};
use coherence::sharing::table::{Cure, DataRow, SharingTable, SharingTotal, StructureClass};
use coherence::sharing::what_if::SharingChange;
use execution::cpu_order::CpuOrder;
use guest::{GuestKernel, RecordingRequest, Workload};
use host::interrupt;
use host::table::{Column, TextTable};
use image::programs::UserPrograms;
use lab::kernel::{self, Compiler};
use lab::made::make;
use lab::score::TestScore;
use road::record;
use services::Attribution;
use std::path::{Path, PathBuf};
use trace::CpuCount;

const WORKLOAD: &str = include_str!("walk.toml");
/// How the processes of the workload take their turns. The first one is in the file.
const HOW: [&str; 2] = ["in-turn", "at-once"];
const CPUS: u32 = 4;
const MACHINE: &str = "server-8";
/// One CPU works for a turn, as the published numbers have it.
const ORDER: CpuOrder = CpuOrder::Recorded;
const TOP: usize = 500;
const CACHE: &str = "dentry";
/// `d_lockref` in the old order: the demo kernel has no BTF, which would name it.
const FIELD: &str = "dentry+0x60";
const BYTES: u64 = 8;
/// The largest difference between what was predicted and what was recorded.
const LIMIT: f64 = 0.1;

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn known_case(directory: &Path) -> Result<()> {
    let (old, new) = (kernel::old_order()?, kernel::tree(Compiler::Gcc)?);
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    lab::build_plugin()?;
    interrupt::catch()?;
    let mut score = TestScore::default();
    for how in HOW {
        let workload = directory.join(format!("walk-{how}.toml"));
        host::output::write(
            &workload,
            WORKLOAD.replace("walk.pl in-turn 40", &format!("walk.pl {how} 40")).as_bytes(),
        )?;
        let recorded = |kernel: &Path, order: &str| -> Result<PathBuf> {
            let output = directory.join(format!("{how}-{order}.rec"));
            make(&output, || {
                let workload = Workload::open(&workload.display().to_string())?;
                let kernel = GuestKernel::open(kernel, None)?;
                let request = RecordingRequest {
                    cpus: CpuCount::new(CPUS).context("the number of CPUs")?,
                    data: true,
                    ..record::request(workload, kernel, &output)
                };
                record::record(&request, None).map(drop)
            })?;
            Ok(output)
        };
        let (in_old, in_new) = (recorded(&old, "old")?, recorded(&new, "new")?);
        let case =
            KnownCase::new((old.as_path(), in_old.as_path()), (new.as_path(), in_new.as_path()))?;
        case.print();
        score.count(&format!("{how}: {FIELD} is found"), case.is_found());
        score.count(&format!("{how}: the cure is to move {FIELD}"), case.is_cured());
        for (what, of) in NUMBERS {
            score.count(&format!("{how}: {what} are as predicted"), case.as_predicted(of));
        }
        let gone = case.gone();
        score.count(&format!("{how}: as much false sharing is gone as predicted"), gone);
    }
    score.finish("what the tables say of the known case does not hold")
}

/// A number of a table.
type OfTotal = fn(&SharingTotal) -> f64;

/// What a prediction is about.
const NUMBERS: [(&str, OfTotal); 3] = [
    ("coherence misses", |total| total.all_misses().coherence() as f64),
    ("upgrades", |total| total.upgrades.total() as f64),
    ("kcycles of coherence", |total| total.cycles / 1e3),
];

fn false_sharing(total: &SharingTotal) -> f64 {
    total.all_misses().false_sharing as f64
}

/// One workload on both kernels.
struct KnownCase {
    old: SharingTable,
    what_if: SharingChange,
    new: SharingTable,
}

impl KnownCase {
    /// `old`, `new`: a kernel's tree and a recording.
    fn new(old: (&Path, &Path), new: (&Path, &Path)) -> Result<KnownCase> {
        let machines = [MACHINE.to_owned()];
        let table = |(kernel, recording): (&Path, &Path)| -> Result<SharingTable> {
            let attribution = Attribution::open(kernel, None, &machines)?;
            coherence::sharing(
                &attribution,
                ORDER,
                recording,
                kernel,
                &UserPrograms::default(),
                TOP,
            )?
            .pop()
            .context("there is no table")
        };
        let request = [format!("{FIELD}:{BYTES} -> own line")];
        let attribution = Attribution::open(old.0, None, &machines)?;
        let mut what_if = coherence::what_if(&attribution, ORDER, old.1, old.0, &request)?;
        Ok(KnownCase {
            old: table(old)?,
            what_if: what_if.pop().context("there is no simulation")?,
            new: table(new)?,
        })
    }

    fn print(&self) {
        let KnownCase { old, what_if, new } = self;
        println!(
            "{}, seed {}, {} CPUs, simulated on {}; kernel {} with the old order, {} with the new",
            old.workload, old.seed, old.cpus, old.machine, old.kernel_build_id, new.kernel_build_id
        );
        let count = |title, wide| Column::right(title).fixed(wide).gap(0);
        let mut printed = TextTable::of([
            Column::left("").fixed(32),
            count("old order", 12),
            count("--what-if", 12),
            count("new order", 12),
            count("difference", 14),
        ]);
        let true_sharing: OfTotal = |total| total.all_misses().true_sharing as f64;
        let rows: [(&str, OfTotal); 4] = [
            ("Minstructions", |total| total.instructions.total() as f64 / 1e6),
            ("misses by true sharing", true_sharing),
            ("misses by false sharing", false_sharing),
            ("kcycles of all misses", |total| total.stalls / 1e3),
        ];
        for (what, of) in rows.into_iter().chain(NUMBERS) {
            let [before, predicted, recorded] =
                [&old.totals.total, &what_if.after, &new.totals.total].map(of);
            let [old, what_if, new] =
                [before, predicted, recorded].map(|count| format!("{count:.1}"));
            let difference = format!("{:.2} %", 100.0 * (predicted - recorded) / recorded);
            printed.push(vec![what.to_owned(), old, what_if, new, difference]);
        }
        print!("{}", printed.to_text());
        for (order, table) in [("old", old), ("new", new)] {
            if let Ok(row) = of_dentries(table) {
                let misses = row.counts.misses;
                println!(
                    "{order} order: slab {CACHE} has {} of the first {} lines, {:.1} % of the \
                     cycles, {} misses by true sharing, {} by false sharing, {} upgrades",
                    row.lines,
                    table.data_lines,
                    100.0 * row.share,
                    misses.true_sharing,
                    misses.false_sharing,
                    row.counts.upgrades
                );
            }
        }
        for moved in &what_if.moved {
            let number = moved.objects.as_ref().map_or(0, |objects| objects.number);
            println!("--what-if moved {} bytes of {number} objects", moved.bytes);
        }
    }

    /// The dentries cost more than all other data.
    fn is_found(&self) -> Result<()> {
        let first = self.old.data.first().context("no lines are shared")?;
        let is = first.class == StructureClass::Slab && first.name == CACHE;
        ensure!(is, "{} costs most: {:.1} % of the cycles", first.title, 100.0 * first.share);
        let fields = self.old.lines.iter().flat_map(|line| &line.fields);
        let mut fields = fields.filter(|field| field.name == FIELD);
        ensure!(fields.next().is_some(), "no field of the first {TOP} lines has this name");
        Ok(())
    }

    fn is_cured(&self) -> Result<()> {
        let cure = &of_dentries(&self.old)?.cure;
        match cure {
            Cure::MoveWritten { field, .. } | Cure::MoveField { field, .. } if field == FIELD => {
                Ok(())
            }
            _ => anyhow::bail!("the cure is {cure:?}"),
        }
    }

    fn as_predicted(&self, of: OfTotal) -> Result<()> {
        differ_little(of(&self.what_if.after), of(&self.new.totals.total))
    }

    /// False sharing that ends.
    fn gone(&self) -> Result<()> {
        let before = false_sharing(&self.old.totals.total);
        let [predicted, recorded] = [&self.what_if.after, &self.new.totals.total]
            .map(|after| before - false_sharing(after));
        ensure!(recorded > 0.0, "the new order has no less: {recorded} are gone");
        differ_little(predicted, recorded)
    }
}

fn of_dentries(table: &SharingTable) -> Result<&DataRow> {
    let is = |row: &&DataRow| row.class == StructureClass::Slab && row.name == CACHE;
    table.data.iter().find(is).context("no line of dentries is shared")
}

fn differ_little(predicted: f64, recorded: f64) -> Result<()> {
    let difference = (predicted - recorded) / recorded;
    ensure!(
        difference.abs() <= LIMIT,
        "{predicted:.1} are predicted and {recorded:.1} are recorded: {:+.1} %",
        100.0 * difference
    );
    Ok(())
}
