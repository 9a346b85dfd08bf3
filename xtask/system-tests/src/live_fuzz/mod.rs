//! `cargo xtask live-fuzz`: the interface of the live module, fuzzed in a guest.
//!
//! Takes one of Debian's kernels, or one built for it: with KASAN or KCSAN, lockdep, and memory
//! that fails. The guest captures what `kernlane live` asks the module for (`capture.c`), then four
//! threads send such requests whole, mutated and made up (`ask.c`, `build.c`), while kprobes,
//! tracers, livepatches and modules come and go (`others.c`), BPF programs and processors too
//! (`neighbours.c`), several commands of the program run and are stopped at their system calls
//! (`commands.c`, `flips.c`), and a load runs in the copies (`load.c`). At the end everything is
//! undone. No kernel may have reported anything, no task may be stuck, and the kernel's text must
//! be what it was.
//!
//! Prints the seed, and the requests by kind and result. The guest says on the host what it asks
//! before it asks: the last requests before a crash are printed.

mod reports;

use crate::live_test::{Guest, last_lines};
use crate::machine::Machine;
use anyhow::{Context, Result, bail};
use guest::{GuestEnd, GuestOutcome};
use lab::kernel::{self, Compiler};
use lab::live_tool::debian::{self, Flavour};
use lab::run;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The fuzzer's parts, in C; they are one program, linked statically.
const SOURCES: [(&str, &str); 15] = [
    ("kernlane.h", include_str!("../../../../kmod/kernlane.h")),
    ("fuzz.h", include_str!("fuzz.h")),
    ("main.c", include_str!("main.c")),
    ("capture.c", include_str!("capture.c")),
    ("slots.c", include_str!("slots.c")),
    ("tools.c", include_str!("tools.c")),
    ("faults.c", include_str!("faults.c")),
    ("build.c", include_str!("build.c")),
    ("ask.c", include_str!("ask.c")),
    ("others.c", include_str!("others.c")),
    ("commands.c", include_str!("commands.c")),
    ("flips.c", include_str!("flips.c")),
    ("neighbours.c", include_str!("neighbours.c")),
    ("load.c", include_str!("load.c")),
    ("text.c", include_str!("text.c")),
];
const SCRIPT: &str = include_str!("fuzz.sh");

/// A clock that is found to be unstable, because the host is busy, changes the kernel's text.
const MACHINE: Machine = Machine::new(
    "2 CPUs, fuzzed",
    2,
    "max",
    &["preempt=full", "audit=0", "oops=panic", "tsc=reliable"],
);

/// KASAN's shadow takes an eighth of it, and what it keeps of freed memory more.
const MEMORY_MB: u32 = 2048;

/// Beside the time for requests: to boot, to capture, and to come to an end, on a busy machine.
const OVERHEAD: Duration = Duration::from_secs(3600);

/// Of the run that is part of the tests.
const SHORT_SECONDS: u64 = 45;
const SHORT_SEED: u64 = 1;

/// What was asked before a crash.
const LAST_NOTES: usize = 60;

/// A kernel on which the module is fuzzed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuzzedKernel {
    /// Debian's for virtual machines of clouds.
    Debian,
    /// Debian's for everything else.
    DebianGeneric,
    /// With KASAN.
    Kasan,
    /// With KCSAN.
    Kcsan,
}

impl FuzzedKernel {
    /// All of them, by their names on the command line.
    pub const ALL: [(&'static str, FuzzedKernel); 4] = [
        ("debian", Self::Debian),
        ("debian-generic", Self::DebianGeneric),
        ("kasan", Self::Kasan),
        ("kcsan", Self::Kcsan),
    ];

    fn find(self) -> Result<PathBuf> {
        match self {
            Self::Debian => debian::kernel(Flavour::Cloud),
            Self::DebianGeneric => debian::kernel(Flavour::Generic),
            Self::Kasan => kernel::tree(Compiler::GccKasan),
            Self::Kcsan => kernel::tree(Compiler::GccKcsan),
        }
    }
}

/// Sends random requests for that number of minutes.
///
/// # Errors
/// The kernel reports something, or the guest cannot run.
pub fn live_fuzz(name: &str, minutes: u64, seed: u64) -> Result<()> {
    let found = FuzzedKernel::ALL.iter().find(|(known, _)| *known == name);
    let (_, kernel) = found.with_context(|| format!("no kernel is called {name}"))?;
    let guest = Guest::new(&kernel.find()?)?;
    println!("fuzzing the live module on {name}, build id {}", guest.kernel.build_id.0);
    fuzz(&guest, 60 * minutes, seed, "all")
}

/// Sends the same few requests each time, for about two minutes, to Debian's cloud kernel.
///
/// # Errors
/// As [`live_fuzz`].
pub fn short() -> Result<()> {
    fuzz(&Guest::new(&FuzzedKernel::Debian.find()?)?, SHORT_SECONDS, SHORT_SEED, "few")
}

fn compile(directory: &Path) -> Result<Vec<u8>> {
    for (name, text) in SOURCES {
        std::fs::write(directory.join(name), text)?;
    }
    let sources = SOURCES.iter().map(|(name, _)| *name).filter(|name| name.ends_with(".c"));
    run(Command::new("cc")
        .current_dir(directory)
        .args(["-O1", "-static", "-pthread", "-o", "fuzz"])
        .args(sources))
    .context("compiling the fuzzer")?;
    Ok(std::fs::read(directory.join("fuzz"))?)
}

fn fuzz(guest: &Guest, seconds: u64, seed: u64, groups: &str) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("kernlane-live-fuzz-").tempdir()?;
    let mut contents = guest.contents.clone();
    contents.file("/kl/fuzz", 0o755, compile(directory.path())?);
    contents.file("/kl/fuzz.sh", 0o644, SCRIPT);
    contents.file("/kl/script", 0o644, "fuzz.sh");
    contents.file("/kl/fuzz-seed", 0o644, seed.to_string());
    contents.file("/kl/fuzz-seconds", 0o644, seconds.to_string());
    contents.file("/kl/fuzz-groups", 0o644, groups);
    let notes = directory.path().join("notes");
    let outcome = guest::run(&guest.kernel.boot_image, &contents, |boot| {
        MACHINE.describe(boot, &[]);
        boot.memory_mb = MEMORY_MB;
        boot.time_limit = Duration::from_secs(2 * seconds) + OVERHEAD;
        boot.notes = Some(notes.clone());
    })?;
    keep_console(&outcome, seed)?;
    judge(&outcome, seed, &notes)
}

/// Keeps what the kernel said, so that every report can be read.
fn keep_console(outcome: &GuestOutcome, seed: u64) -> Result<()> {
    let path = PathBuf::from(format!("target/live-fuzz/seed-{seed}.log"));
    std::fs::create_dir_all("target/live-fuzz")?;
    std::fs::write(&path, &outcome.console)?;
    println!("the kernel's log: {}", path.display());
    Ok(())
}

fn judge(outcome: &GuestOutcome, seed: u64, notes: &Path) -> Result<()> {
    println!("-- {}, seed {seed}, {:.0} s", MACHINE.name, outcome.elapsed.as_secs_f64());
    print!("{}", outcome.output);
    let reports = reports::find(&outcome.console);
    print_kinds("races of the kernel's own", &reports.other_races);
    print_kinds("reports", &reports.complaints);
    let ended = outcome.end == GuestEnd::Exited(0);
    if ended && reports.complaints.is_empty() && !outcome.output.contains("FAILED") {
        return Ok(());
    }
    let asked = std::fs::read(notes).unwrap_or_default();
    println!("the last requests:\n{}", last_lines(&String::from_utf8_lossy(&asked), LAST_NOTES));
    let from = reports.complaints.first().and_then(|line| outcome.console.find(line));
    let printed = from.map_or_else(
        || last_lines(&outcome.console, 60),
        |from| outcome.console[from..].lines().take(120).collect::<Vec<_>>().join("\n"),
    );
    println!("the kernel says:\n{printed}");
    bail!(
        "live-fuzz with seed {seed}: {:?}, {} reports by the kernel",
        outcome.end,
        reports.complaints.len()
    )
}

/// Prints the lines that differ in more than their time, with how often each came.
fn print_kinds(what: &str, lines: &[&str]) {
    if lines.is_empty() {
        return;
    }
    println!("{} {what}:", lines.len());
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lines {
        *kinds.entry(line.split_once("] ").map_or(*line, |(_, text)| text)).or_default() += 1;
    }
    kinds.iter().for_each(|(kind, count)| println!("  {count:4} × {kind}"));
}
