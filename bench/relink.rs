//! What a relink costs beside the kernel's own final link, and what rewriting `vmlinux.o` costs in
//! time and memory.
//!
//! `cargo bench -p kernlane --bench relink -- TREE LAYOUT.kll`. The tree is copied first, for its
//! own link writes into it: `vmlinux.o` is touched, and kbuild's own rules link `vmlinux`
//! (kallsyms, BTF, sorted tables, KASLR relocations) and pack `bzImage`. The relink is the whole
//! command with `--output`, from reading the tree to the map. The shortest of `RUNS` each, in
//! turns, so that other work on the machine troubles both alike. CPU time is user and system time
//! with that of all programs that were run.

use anyhow::{Context, Result, ensure};
use emit::kbuild::BuildTree;
use emit::relink::{Destination, RelinkWork, relink};
use image::order::Layout;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

const RUNS: usize = 3;
/// What the project sets itself: of the own link and rewriting together, …
const RELINK_LIMIT: f64 = 1.2;
/// … and for 10 MB of text.
const REWRITE_LIMIT: Duration = Duration::from_secs(10);
const MEMORY_LIMIT_KB: f64 = 2.0 * 1024.0 * 1024.0;
const TEXT: f64 = 10e6;

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let [tree, layout] = &words[..] else {
        anyhow::bail!("give a kernel's build tree and a layout for it");
    };
    let layout = Layout::from_text(&fs::read_to_string(layout)?).with_context(|| layout.clone())?;
    let work = RelinkWork::Order(layout);
    let directory = tempfile::tempdir()?;
    let copy = directory.path().join("tree");
    let copied = Command::new("cp").args(["-a", "--reflink=auto", tree]).arg(&copy).status()?;
    ensure!(copied.success(), "the tree could not be copied");

    let (mut own, mut rewriting, mut whole) = (Cost::MOST, Cost::MOST, Cost::MOST);
    let mut text = 0;
    for run in 0..RUNS {
        own.keep(Cost::of(|| {
            fs::File::options()
                .append(true)
                .open(copy.join("vmlinux.o"))?
                .set_modified(SystemTime::now())?;
            let tree = BuildTree::open(Path::new(tree), &[])?;
            tree.final_link(&copy, None)
        })?);
        let tree = BuildTree::open(&copy, &[])?;
        rewriting.keep(Cost::of(|| {
            text = relink(&tree, &work, &Destination::Nowhere, &|_| {})?.report.summary.text_before;
            Ok(())
        })?);
        let output = directory.path().join(format!("relinked.{run}"));
        whole.keep(Cost::of(|| {
            relink(&tree, &work, &Destination::Directory(&output), &|_| {}).map(drop)
        })?);
    }
    report(own, rewriting, whole, text)
}

fn report(own: Cost, rewriting: Cost, whole: Cost, text: u64) -> Result<()> {
    println!(
        ".text {:.2} MB; the shortest of {RUNS} runs each\n\n{:28} {:>8} {:>8}",
        text as f64 / 1e6,
        "",
        "CPU s",
        "s"
    );
    for (name, cost) in [
        ("the kernel's own final link", own),
        ("rewriting vmlinux.o", rewriting),
        ("relink, all of it", whole),
    ] {
        println!("{name:28} {:8.2} {:8.2}", cost.cpu.as_secs_f64(), cost.elapsed.as_secs_f64());
    }
    let ratio = |of: fn(&Cost) -> Duration| {
        of(&whole).as_secs_f64() / (of(&own) + of(&rewriting)).as_secs_f64()
    };
    let (cpu, elapsed) = (ratio(|cost| cost.cpu), ratio(|cost| cost.elapsed));
    println!("\nrelink × (own link + rewriting): {cpu:.2} of CPU time, {elapsed:.2} of time");
    let scale = TEXT / text as f64;
    let (seconds, memory) =
        (rewriting.elapsed.as_secs_f64() * scale, peak_memory_kb()? as f64 * scale);
    println!(
        "rewriting, for 10 MB of text: {seconds:.1} s, at most {:.0} MB of memory",
        memory / 1024.0
    );
    let within =
        cpu <= RELINK_LIMIT && seconds <= REWRITE_LIMIT.as_secs_f64() && memory <= MEMORY_LIMIT_KB;
    println!(
        "{}: at most {RELINK_LIMIT} times the CPU time of both, at most {} s and 2 GB for 10 MB of \
         text",
        if within { "within the limits" } else { "NOT within the limits" },
        REWRITE_LIMIT.as_secs()
    );
    ensure!(within, "relinking costs more than it may");
    Ok(())
}

#[derive(Clone, Copy)]
struct Cost {
    cpu: Duration,
    elapsed: Duration,
}

impl Cost {
    const MOST: Cost = Cost { cpu: Duration::MAX, elapsed: Duration::MAX };

    fn of(work: impl FnOnce() -> Result<()>) -> Result<Cost> {
        let (cpu, start) = (cpu_time()?, Instant::now());
        work()?;
        Ok(Cost { cpu: cpu_time()? - cpu, elapsed: start.elapsed() })
    }

    fn keep(&mut self, other: Cost) {
        self.cpu = self.cpu.min(other.cpu);
        self.elapsed = self.elapsed.min(other.elapsed);
    }
}

/// Fields 14 to 17 of `/proc/self/stat`, proc(5): user and system time, of this process and of
/// those that it has waited for.
fn cpu_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit_once(") ").context("/proc/self/stat")?.1.split(' ').skip(11).take(4);
    let ticks = fields.map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// The most memory that this process, which does the rewriting, ever had.
fn peak_memory_kb() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
