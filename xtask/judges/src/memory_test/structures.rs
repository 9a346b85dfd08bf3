//! Tests whether misses are attributed to the data that a program makes the kernel use, and whether
//! they add up to the caches' counts.

use super::recorded;
use anyhow::{Context, Result, ensure};
use host::recording::Recording;
use lab::score::TestScore;
use memory::misses::table::{MissTable, MissesByLevel};
use replay::{self, ReplayLayout};
use services::Attribution;
use sim::{MachineCounters, MissCounts, PerMode};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use trace::RecordingReader;

const PROGRAM: &str = include_str!("structures.c");
const MACHINE: &str = "server-32k";
/// The numbers of files and pages that `structures.c` makes.
const FILES: u64 = 1500;
const PAGES: u64 = 1500;
/// The largest share of the L1D's misses that may be on data without a name, such as the pipe's
/// page.
const MOST_NAMELESS: f64 = 0.03;
/// The lines of a page in `server-32k`.
const LINES_OF_PAGE: u64 = 4096 / 64;

pub(super) fn structures_test(tree: &Path, directory: &Path) -> Result<()> {
    let program = lab::bare::compile("structures.c", PROGRAM)?;
    let recording = directory.join("structures.rec");
    std::fs::create_dir(&recording)?;
    let trace = Recording::at(&recording).trace();
    let outcome = recorded(tree, "structures", &program, &trace)?;
    lab::bare::exited_well(&outcome)?;

    let reader = RecordingReader::new(BufReader::new(File::open(&trace)?))?;
    let replayed =
        replay::replay(reader, &[ReplayLayout::original()], &[machines::find(MACHINE)?.model])?;
    let counted =
        replayed.layouts[0].machines[0].memory.context("no data accesses were recorded")?;
    let attribution = Attribution::open(tree, None, &[MACHINE.to_owned()])?;
    let tables = memory::misses(&attribution, &recording, tree)?;
    let table = tables.first().context("there is no table")?;
    let mut score = TestScore::default();
    score.holds("the frames' uses are recorded", table.frames_unknown.is_none());
    adds_up(table, &counted, &mut score);

    let on = |class: &str, name: &str| {
        let is = |row: &&_| of_class(row, class) && (name.is_empty() || row.name == name);
        table.structures.iter().filter(is).map(|row| row.l1d()).sum::<u64>()
    };
    // Some lines of a page may still be in the cache. The second of two rounds over more dentries
    // than the cache holds misses each dentry again.
    for (class, name, least) in [
        ("slab", "dentry", 2 * FILES),
        ("slab", "shmem_inode_cache", 2 * FILES),
        ("page-cache", "", FILES * LINES_OF_PAGE * 9 / 10),
        ("user", "", PAGES * LINES_OF_PAGE * 9 / 10),
        ("page-table", "", PAGES * 8 / 64),
        ("struct-page", "", FILES + PAGES),
        ("kernel-stack", "", 100),
        ("per-cpu", "", 100),
        ("per-cpu", "runqueues", 1),
        ("static", "", 100),
        ("held", "", 1),
    ] {
        let misses = on(class, name);
        score.holds(
            &format!("L1D misses on {class} {name}: {misses}, at least {least}"),
            misses >= least,
        );
    }
    score.holds(
        &format!("on data of unknown use: {:.2} %", 100.0 * table.other_share),
        table.other_share <= MOST_NAMELESS,
    );
    ensure!(score.failed() == 0, "{} numbers of the miss table are wrong", score.failed());
    Ok(())
}

fn of_class(row: &memory::misses::table::StructureRow, class: &str) -> bool {
    serde_json::to_value(row.class).is_ok_and(|value| value == class)
}

/// Checks that functions, structures and ranges contain every miss.
fn adds_up(table: &MissTable, counted: &PerMode<MachineCounters>, score: &mut TestScore) {
    let (kernel, user) = (MissesByLevel::from(&counted.kernel), MissesByLevel::from(&counted.user));
    score.holds(
        "the caches counted what replay counts",
        (table.kernel, table.user) == (kernel, user),
    );
    for (mode, is_kernel, levels) in [("kernel", true, &kernel), ("user", false, &user)] {
        let rows = || table.functions.iter().filter(|row| row.kernel == is_kernel);
        for (level, of) in LEVELS {
            let sum = sum(rows().map(|row| of(&row.misses)));
            score.holds(
                &format!("{mode} {level}: {} misses, all of functions", of(levels).total()),
                sum == of(levels),
            );
        }
        for (level, of) in LEVELS.into_iter().filter(|(level, _)| level.ends_with('D')) {
            let sum = sum(table
                .structures
                .iter()
                .map(|row| of(if is_kernel { &row.kernel } else { &row.user })));
            score.holds(
                &format!("{mode} {level}: {} misses, all of structures", of(levels).total()),
                sum == of(levels),
            );
        }
    }
    let ranges = sum(table.ranges.iter().map(|range| range.misses));
    score.holds("kernel L1I: all misses are in ranges", ranges == kernel.l1i);
    let references: u64 = table.ranges.iter().map(|range| range.references).sum();
    score.holds(
        "all of the kernel's instructions are in ranges",
        references == counted.kernel.instructions,
    );
}

type OfLevel = fn(&MissesByLevel) -> MissCounts;

const LEVELS: [(&str, OfLevel); 6] = [
    ("L1I", |levels| levels.l1i),
    ("L1D", |levels| levels.l1d),
    ("L2I", |levels| levels.l2i),
    ("L2D", |levels| levels.l2d),
    ("L3I", |levels| levels.l3i),
    ("L3D", |levels| levels.l3d),
];

fn sum(causes: impl Iterator<Item = MissCounts>) -> MissCounts {
    causes.fold(MissCounts::default(), |sum, more| MissCounts {
        cold: sum.cold + more.cold,
        own: sum.own + more.own,
        other: sum.other + more.other,
    })
}
