//! How fast the caches of a machine are simulated while services are told apart, beside QEMU's own
//! cache plugin with the same caches.
//!
//! `cargo bench -p kernlane --bench simulation -- TREE LIBCACHE [WORKLOAD]`. TREE is a kernel's
//! build tree, LIBCACHE the plugin built from QEMU's contrib/plugins/cache.c; the workload is
//! `files` unless one is named. All runs go on from one checkpoint, so that the guest executes the
//! same instructions. Every figure is processor time, user and system, the shortest of `RUNS` runs
//! taken in turns. What QEMU takes from the checkpoint to the workload's end is counted wholly, its
//! restoring of the checkpoint too.

mod processor_time;

use anyhow::{Context, Result, ensure};
use guest::checkpoint::{self, Checkpoint};
use guest::{
    self, GuestEnd, GuestKernel, ProcessorRequest, Qemu, QemuPlugin, RecordingRequest, Workload,
};
use processor_time::processor_time;
use services::Attribution;
use sim::MachineModel;
use std::path::{Path, PathBuf};
use std::time::Duration;

const RUNS: usize = 2;
const MACHINE: &str = "server-32k";
/// What the project sets itself: M instructions a second, and times the plugin's speed.
const SPEED: f64 = 80.0;
const RATIO: f64 = 5.0;

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let [tree, library, rest @ ..] = &words[..] else {
        anyhow::bail!("give a kernel's build tree and QEMU's cache plugin");
    };
    let name = rest.first().map_or("files", String::as_str);
    let directory = tempfile::tempdir()?;
    let request = |output: &str| -> Result<RecordingRequest> {
        Ok(RecordingRequest {
            workload: Workload::open(name)?,
            kernel: GuestKernel::open(Path::new(tree), None)?,
            files: Vec::new(),
            output: directory.path().join(output),
            seed: 1,
            cpus: trace::CpuCount::ONE,
            turn: None,
            processor: ProcessorRequest::default(),
            data: true,
            memory_mb: None,
            time_limit: Duration::from_secs(3600),
            force: true,
            probes: None,
        })
    };
    checkpoint::checkpoint(&request("checkpoint")?, &mut |_| {})?;
    let from = directory.path().join("checkpoint");
    let attribution =
        Attribution::open(&request("recording")?.kernel.vmlinux, None, &[MACHINE.to_owned()])?;
    let plugin = cache_plugin(Path::new(library), &attribution.machines[0])?;

    let [mut plain, mut cache, mut recording, mut simulating] = [f64::MAX; 4];
    let mut instructions = 0;
    for _ in 0..RUNS {
        plain = plain.min(run(&request("run")?, &from, None)?);
        cache = cache.min(run(&request("run")?, &from, Some(plugin.clone()))?);
        let recorded = guest::record::record(&request("recording")?, Some(&from), &mut |_, _| {})?;
        recording = recording.min(recorded.cost.cpu_time.as_secs_f64());
        instructions = recorded.summary.totals.instructions;
        let start = processor_time()?;
        attribution.table(&directory.path().join("recording"), None)?;
        simulating = simulating.min((processor_time()? - start).as_secs_f64());
    }

    println!(
        "{name}, {:.1} M instructions, machine {MACHINE}, QEMU {}, one vCPU, -icount shift=0; the \
         fastest of {RUNS} runs each\n",
        instructions as f64 / 1e6,
        Qemu::find()?.version
    );
    println!("{:58} {:>6} {:>16} {:>16}", "", "CPU s", "M instructions/s", "× QEMU's plugin");
    for (what, seconds) in [
        ("QEMU alone", plain),
        ("QEMU with contrib/plugins/cache (L1I, L1D, L2)", cache),
        ("QEMU recording, with data", recording),
        ("the recording: services, L1I, L1D, L2, L3, dTLB, causes", simulating),
        ("recording and that together", recording + simulating),
    ] {
        println!(
            "{what:58} {seconds:6.1} {:16.1} {:16.2}",
            instructions as f64 / 1e6 / seconds,
            cache / seconds
        );
    }
    let (speed, ratio) = (instructions as f64 / 1e6 / simulating, cache / simulating);
    println!(
        "\nthe pass over the recording is{} what it should be: at least {SPEED} M instructions a \
         second, {RATIO} times the plugin",
        if speed >= SPEED && ratio >= RATIO { "" } else { " NOT" }
    );
    Ok(())
}

/// Seconds of processor time from the checkpoint to the end.
fn run(request: &RecordingRequest, from: &Path, plugin: Option<QemuPlugin>) -> Result<f64> {
    let qemu = Qemu::find()?;
    let mut guest = request.prepare(&qemu, Some(Checkpoint::open(from)?.state()))?;
    guest.boot.plugin = plugin;
    let directory = tempfile::tempdir()?;
    let outcome = guest.boot.run(&qemu, directory.path(), &mut |_| Ok(()))?;
    ensure!(
        outcome.end == GuestEnd::Exited(0),
        "the guest ended with {:?}: {}",
        outcome.end,
        outcome.qemu
    );
    Ok(outcome.cost.cpu_time.as_secs_f64())
}

/// QEMU's plugin with the machine's L1s and L2, all of them LRU as the plugin's are unless told
/// otherwise.
fn cache_plugin(library: &Path, machine: &MachineModel) -> Result<QemuPlugin> {
    let memory = machine.memory.as_ref().context("the machine has no data cache")?;
    let l2 = memory.l2.as_ref().context("the machine has no L2")?;
    let l1i = (machine.l1i, machine.l1i_line);
    let mut arguments = vec![("l2".to_owned(), "on".to_owned())];
    let caches =
        [("i", l1i), ("d", (memory.l1d.geometry, memory.l1d.line)), ("l2", (l2.geometry, l2.line))];
    for (of, (geometry, line)) in caches {
        let size = u64::from(geometry.sets()) * u64::from(geometry.ways()) * u64::from(line);
        arguments.push((format!("{of}blksize"), line.to_string()));
        arguments.push((format!("{of}assoc"), geometry.ways().to_string()));
        arguments.push((format!("{of}cachesize"), size.to_string()));
    }
    Ok(QemuPlugin { library: PathBuf::from(library), arguments })
}
