//! `cargo xtask champsim-test CHAMPSIM RECORDING`: tests whether ChampSim, given what `kernlane
//! export --format champsim` writes, misses in its caches as often as Kernlane's, and says where
//! their cycles differ, and how fast both are.
//!
//! CHAMPSIM is a program of ChampSim's with the caches of `golden-cove`, without prefetchers:
//! `cargo xtask champsim-test configuration` prints the configuration to make it with. Its pages
//! have 2 MB, so that sets are chosen by the same bits as in Kernlane. Its decoded-instruction
//! buffer holds one instruction, so that code comes from its L1I. RECORDING is of one CPU, with
//! data accesses; all of it runs.

mod on_trace;
mod peer;

use anyhow::{Context, Result, ensure};
use host::recording::Recording;
use lab::processor::user_seconds;
use lab::score::TestScore;
use peer::PeerCounts;
use replay::ReplayLayout;
use sim::core::CoreDescription;
use sim::{CacheGeometry, MachineModel};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};
use trace::RecordingReader;

/// The configuration of ChampSim.
const CONFIGURATION: &str = include_str!("configuration.json");
const MACHINE: &str = "golden-cove";
/// The difference of misses that passes, in percent.
const TOLERANCE: f64 = 1.0;
/// Kernlane's caches.
const LEVELS: [&str; 4] = ["L1I", "L1D", "L2", "L3"];

/// Prints the configuration.
///
/// # Errors
/// It does not have the caches of the machine.
pub fn configuration() -> Result<()> {
    has_the_caches(&machines::find(MACHINE)?.model)?;
    print!("{CONFIGURATION}");
    Ok(())
}

/// Compares. `champsim`: its program.
///
/// # Errors
/// The misses differ, or a program fails.
pub fn champsim_test(champsim: &Path, recording: &Path) -> Result<()> {
    let machines = variants(&machines::find(MACHINE)?.model)?;
    has_the_caches(&machines[0])?;
    // The program is timed.
    let kernlane = lab::kernlane()?;
    let scratch = tempfile::tempdir().context("no scratch directory can be made")?;
    let trace = scratch.path().join("champsim.trace");
    let export = seconds(
        Command::new(&kernlane)
            .arg("export")
            .arg(recording)
            .args(["--format", "champsim", "--output"])
            .arg(&trace),
    )?;
    let (peer, peer_seconds) = peer::run(champsim, &trace, scratch.path())?;
    let replay = ["--machine", MACHINE, "--json"];
    let own_seconds = seconds(Command::new(&kernlane).arg("replay").arg(recording).args(replay))?;
    let own = replayed(recording, &machines)?;
    let on_trace = on_trace::simulated(&trace, &machines[0])?;
    print_speed(&peer, export, peer_seconds, own_seconds);
    print_cycles(&peer, &own);
    compare(&peer, &own, on_trace)
}

/// What Kernlane counts of a recording.
struct OwnCounts {
    instructions: u64,
    /// Misses of [`LEVELS`].
    misses: [u64; 4],
    /// For each variant: its name, the cycles, and the mispredicted branches.
    cores: Vec<(String, u64, u64)>,
}

/// The machine, and the same with less and less of what ChampSim does not have.
fn variants(machine: &MachineModel) -> Result<Vec<MachineModel>> {
    let mut variants = vec![machine.clone()];
    let mut without = |name: &str, change: &dyn Fn(&mut CoreDescription)| -> Result<()> {
        let mut next = variants.last().context("there is a machine")?.clone();
        name.clone_into(&mut next.name);
        change(next.core.as_mut().context("the machine has no core")?);
        variants.push(next);
        Ok(())
    };
    without("without prefetchers", &|core| {
        core.memory.next_line = false;
        core.memory.stride_entries = 0;
        core.memory.streams = 0;
    })?;
    without("also system calls, interrupts and fences take a cycle", &|core| {
        core.serialising.fill(1);
    })?;
    without("also TLBs cost nothing", &|core| {
        core.memory.second_tlb_latency = 0;
        core.memory.page_walk = 0;
    })?;
    without("also the predictor is one fetch target ahead", &|core| {
        core.front_end.fetch_targets = 1;
    })?;
    Ok(variants)
}

fn replayed(recording: &Path, machines: &[MachineModel]) -> Result<OwnCounts> {
    let path = Recording::at(recording).trace();
    let named = || path.display().to_string();
    let file = BufReader::new(File::open(&path).with_context(named)?);
    let reader = RecordingReader::new(file).with_context(named)?;
    let replayed =
        replay::replay(reader, &[ReplayLayout::original()], machines).with_context(named)?;
    let counts = &replayed.layouts[0].machines;
    let memory = counts[0].memory.context("the recording has no data accesses")?;
    let mut cores = Vec::new();
    for (machine, counts) in machines.iter().zip(counts) {
        let core = counts.core.as_ref().context("the machine has no core")?;
        let modes = [&core.counters.kernel, &core.counters.user];
        let missed = modes.map(|counters| counters.branches.mispredictions());
        cores.push((machine.name.clone(), core.cycles, missed[0] + missed[1]));
    }
    Ok(OwnCounts {
        instructions: replayed.totals.instructions(),
        misses: on_trace::misses(&memory),
        cores,
    })
}

fn print_speed(peer: &PeerCounts, export: f64, peer_seconds: f64, own_seconds: f64) {
    let million = |seconds: f64| peer.instructions as f64 / 1e6 / seconds;
    println!(
        "{:.1} million instructions; CPU seconds in user mode: ChampSim {peer_seconds:.1}, \
         kernlane replay --machine {MACHINE} {own_seconds:.1}, kernlane export {export:.1}",
        peer.instructions as f64 / 1e6
    );
    println!(
        "million instructions a second: ChampSim {:.3}, Kernlane {:.2}: {:.1} times as fast",
        million(peer_seconds),
        million(own_seconds),
        peer_seconds / own_seconds
    );
}

fn print_cycles(peer: &PeerCounts, own: &OwnCounts) {
    let line = |name: &str, instructions: u64, cycles: u64, missed: u64| {
        let instructions = instructions as f64;
        let (each, missed) = (cycles as f64 / instructions, 1000.0 * missed as f64 / instructions);
        println!("{each:>7.3} {missed:>7.2}  {name}");
    };
    println!("cycles  mispredictions\nfor one for 1000\ninstruction");
    line("ChampSim", peer.instructions, peer.cycles, peer.mispredictions);
    for (name, cycles, missed) in &own.cores {
        line(name, own.instructions, *cycles, *missed);
    }
}

fn compare(peer: &PeerCounts, own: &OwnCounts, on_trace: [u64; 4]) -> Result<()> {
    let mut score = TestScore::default();
    for (at, level) in LEVELS.iter().enumerate() {
        let (own, on_trace, peer) = (own.misses[at], on_trace[at], peer.misses[at]);
        let percent = |misses: u64| 100.0 * (misses as f64 / own as f64 - 1.0);
        let row = format!(
            "{level} misses: kernlane replay {own}, the same caches on the trace {on_trace} \
             ({:+.2} %), ChampSim {peer} ({:+.2} %)",
            percent(on_trace),
            percent(peer)
        );
        score.holds(&row, percent(peer).abs() <= TOLERANCE);
    }
    let failed = score.failed();
    ensure!(failed == 0, "{failed} counts differ by more than {TOLERANCE} %");
    Ok(())
}

/// The CPU time of a command in user mode. What it prints is dropped.
fn seconds(command: &mut Command) -> Result<f64> {
    let ((), seconds) = user_seconds(|| lab::run(command.stdout(Stdio::null())))?;
    Ok(seconds)
}

/// Whether the configuration has the caches of the machine.
fn has_the_caches(machine: &MachineModel) -> Result<()> {
    let configuration: serde_json::Value = serde_json::from_str(CONFIGURATION)?;
    let memory = machine.memory.as_ref().context("the machine has no data caches")?;
    let geometries = [
        Some(machine.l1i),
        Some(memory.l1d.geometry),
        memory.l2.map(|l2| l2.geometry),
        memory.l3.map(|l3| l3.geometry),
    ];
    for (name, geometry) in peer::CACHES.iter().zip(geometries) {
        let cache = &configuration[name];
        let same = |geometry: CacheGeometry| {
            cache["sets"] == geometry.sets() && cache["ways"] == geometry.ways()
        };
        ensure!(geometry.is_some_and(same), "configuration.json: {name} is not that of {MACHINE}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_caches_of_the_machine() {
        let machine = machines::find(MACHINE).unwrap().model;
        has_the_caches(&machine).unwrap();
        assert_eq!(variants(&machine).unwrap().len(), 5);
        assert!(has_the_caches(&machines::find("server-32k").unwrap().model).is_err());
    }
}
