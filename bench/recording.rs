//! What recording costs, and asking the recording for services: CPU time and memory beside the same
//! run without the plugin, bytes on disk.
//!
//! `cargo bench -p kernlane --bench recording -- TREE [cpus=N] [WORKLOAD…]`. TREE is a kernel's
//! build tree; one CPU unless N; all shipped workloads unless some are named. Every figure is a
//! ratio of two runs of one guest with the same flags: the shortest of `RUNS` each, in turns, so
//! that other work on the machine troubles both alike. CPU time is user and system time of all of
//! QEMU's threads.

mod processor_time;

use anyhow::{Context, Result, ensure};
use guest::{
    self, Boot, GuestClock, GuestContents, GuestEnd, GuestKernel, GuestOutcome, QemuPlugin,
    Workload,
};
use host::recording::Recording;
use processor_time::processor_time;
use services::Attribution;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use trace::{Chunk, CpuCount, RecordingReader, RecordingTotals};

const RUNS: usize = 2;
/// What the project sets itself.
const CPU_LIMIT: f64 = 1.5;
const BITS_LIMIT: f64 = 0.3;
/// The same for several CPUs.
const CPU_LIMIT_OF_SEVERAL: f64 = 3.0;
const BITS_LIMIT_OF_SEVERAL: f64 = 0.4;
/// Recording and services together, over the run without the plugin; of one CPU.
const SERVICES_LIMIT: f64 = 1.6;

/// A workload that does nothing between its marks, to tell what booting and settling costs.
const NOTHING: &str = "about = \"Nothing\"\npackages = [\"dash\"]\nmemory = 512\nset-up = \"\"\n\
    run = \"true\"\ncheck = \"true\"\n";

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let (tree, names) = words.split_first().context("give a kernel's build tree")?;
    let shipped: Vec<String> = guest::SHIPPED.iter().map(|(name, _)| (*name).to_owned()).collect();
    let (cpus, names) = match names.split_first() {
        Some((first, rest)) if first.starts_with("cpus=") => {
            (first["cpus=".len()..].parse()?, rest)
        }
        _ => (1, names),
    };
    let cpus = CpuCount::new(cpus).with_context(|| format!("cpus={cpus}: from 1 to 8"))?;
    let several = cpus != CpuCount::ONE;
    let (cpu_limit, bits_limit) = match several {
        false => (CPU_LIMIT, BITS_LIMIT),
        true => (CPU_LIMIT_OF_SEVERAL, BITS_LIMIT_OF_SEVERAL),
    };
    let names = if names.is_empty() { &shipped } else { names };

    let directory = tempfile::tempdir()?;
    let bench = Bench {
        kernel: GuestKernel::open(Path::new(tree), None)?,
        plugin: build_plugin()?,
        cpus,
        trace: Recording::at(directory.path()).trace(),
    };
    let nothing = directory.path().join("nothing.toml");
    std::fs::write(&nothing, NOTHING)?;
    let nothing =
        Workload::open(nothing.to_str().context("the temporary directory's name is not UTF-8")?)?;
    let idle = bench.fastest(|| bench.run(&nothing, false))?;

    println!(
        "Linux {}, QEMU {}, vCPUs: {cpus}, -icount shift=0; the fastest of {RUNS} runs each",
        bench.kernel.release,
        guest::Qemu::find()?.version
    );
    println!(
        "booting and settling alone: {:.1} s of CPU time without the plugin\n",
        idle.seconds()
    );
    println!(
        "{:10} {:>14} {:>9} {:>9} {:>9} {:>10} {:>12} {:>10}",
        "workload",
        "instructions",
        "CPU s",
        "× whole",
        "× counted",
        "× services",
        "bits/instr.",
        "MB more"
    );
    let mut within = true;
    for name in names {
        let workload = Workload::open(name)?;
        let (mut without, mut with): (Option<Cost>, Option<Cost>) = (None, None);
        for _ in 0..RUNS {
            Cost::keep(&mut without, bench.run(&workload, false)?);
            Cost::keep(&mut with, bench.run(&workload, true)?);
        }
        let (without, with) = (without.context("no run")?, with.context("no run")?);
        let totals = read(&bench.trace)?;
        let whole = with.seconds() / without.seconds();
        // Services are attributed on one CPU only.
        let with_services = match several {
            true => None,
            false => {
                let start = processor_time()?;
                let attribution = Attribution::open(&bench.kernel.vmlinux, None, &[])?;
                attribution.table(directory.path(), None)?;
                let services = (processor_time()? - start).as_secs_f64();
                Some((with.seconds() + services) / without.seconds())
            }
        };
        let counted = (with.seconds() - idle.seconds()) / (without.seconds() - idle.seconds());
        let bits =
            8.0 * std::fs::metadata(&bench.trace)?.len() as f64 / totals.instructions() as f64;
        println!(
            "{name:10} {:>14} {:9.1} {whole:9.2} {counted:9.2} {:>10} {bits:12.3} {:10.0}",
            totals.instructions(),
            without.seconds(),
            with_services.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            (with.peak_memory_kb as f64 - without.peak_memory_kb as f64) / 1024.0,
        );
        within &= whole <= cpu_limit
            && bits <= bits_limit
            && with_services.is_none_or(|ratio| ratio <= SERVICES_LIMIT);
    }
    println!(
        "\n{}: at most {cpu_limit} times the CPU time of the whole run, {SERVICES_LIMIT} with \
         services, at most {bits_limit} bits an instruction",
        if within { "within the limits" } else { "NOT within the limits" }
    );
    ensure!(within, "recording costs more than it may");
    Ok(())
}

struct Bench {
    kernel: GuestKernel,
    plugin: PathBuf,
    cpus: CpuCount,
    trace: PathBuf,
}

#[derive(Clone, Copy)]
struct Cost {
    cpu_time: Duration,
    peak_memory_kb: u64,
}

impl Cost {
    fn seconds(&self) -> f64 {
        self.cpu_time.as_secs_f64()
    }

    fn keep(best: &mut Option<Cost>, cost: Cost) {
        if best.is_none_or(|best| cost.cpu_time < best.cpu_time) {
            *best = Some(cost);
        }
    }
}

impl Bench {
    fn fastest(&self, mut run: impl FnMut() -> Result<Cost>) -> Result<Cost> {
        let mut best = None;
        for _ in 0..RUNS {
            Cost::keep(&mut best, run()?);
        }
        best.context("no run")
    }

    fn run(&self, workload: &Workload, recorded: bool) -> Result<Cost> {
        let plugin = recorded.then(|| self.plugin(workload)).transpose()?;
        let contents = GuestContents::of_workload(workload, &self.kernel)?;
        let outcome: GuestOutcome =
            guest::run(&self.kernel.boot_image, &contents, |boot: &mut Boot| {
                boot.clock = GuestClock::Instructions { seed: 1 };
                boot.cpus = self.cpus.get().into();
                boot.memory_mb = workload.memory_mb;
                boot.time_limit = Duration::from_secs(3600);
                boot.command_line.push("norandmaps".into());
                boot.plugin = plugin;
            })?;
        ensure!(
            outcome.end == GuestEnd::Exited(0),
            "{} ended with {:?}: {}",
            workload.name,
            outcome.end,
            outcome.qemu
        );
        Ok(Cost { cpu_time: outcome.cost.cpu_time, peak_memory_kb: outcome.cost.peak_memory_kb })
    }

    fn plugin(&self, workload: &Workload) -> Result<QemuPlugin> {
        let task = self.kernel.task_facts()?;
        let out = self.trace.to_str().context("the temporary directory's name is not UTF-8")?;
        let mut arguments = vec![
            ("out", out.to_owned()),
            ("build_id", self.kernel.build_id.0.clone()),
            ("workload", workload.name.clone()),
            ("switch_to", format!("{:#x}", task.switch_to.0)),
            ("comm", task.comm.to_string()),
        ];
        if self.cpus != CpuCount::ONE {
            arguments.push(("cpus", self.cpus.to_string()));
            arguments.push(("per_cpu_offset", format!("{:#x}", self.kernel.per_cpu_offset()?.0)));
        }
        let wakes: Vec<String> = task.wakes.iter().map(|addr| format!("{:#x}", addr.0)).collect();
        arguments.push(("wakes", wakes.join("+")));
        arguments.extend(task.set_comm.map(|set_comm| ("set_comm", format!("{:#x}", set_comm.0))));
        Ok(QemuPlugin {
            library: self.plugin.clone(),
            arguments: arguments.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        })
    }
}

/// Reads and checks a whole recording.
fn read(path: &Path) -> Result<RecordingTotals> {
    let mut reader = RecordingReader::new(File::open(path)?)?;
    while let Some(chunk) = reader.next_chunk()? {
        if let Chunk::End(totals) = chunk {
            return Ok(totals);
        }
    }
    anyhow::bail!("a recording without an end")
}

fn build_plugin() -> Result<PathBuf> {
    let status = Command::new("cargo")
        .args(["build", "--quiet", "--release", "-p", "kernlane-plugin"])
        .status()?;
    ensure!(status.success(), "the plugin could not be built");
    let executable = std::env::current_exe()?;
    let target = executable.ancestors().nth(3).context("the bench lies in no target directory")?;
    Ok(target.join("release/libkernlane_plugin.so"))
}
