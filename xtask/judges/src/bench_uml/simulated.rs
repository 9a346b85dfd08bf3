//! The kernels on the model of a processor: the cycles of a slice of each load, the median of
//! several.
//!
//! Each kernel runs as a program in a guest of the demo kernel and is recorded there, with its data
//! accesses. Input: kernels. Output: cycles in user mode, by load. Recordings stay in the
//! directory.

use super::LOADS;
use super::kernels::MeasuredKernel;
use crate::judge_processor::model;
use crate::judge_processor::recorded::Recorder;
use anyhow::{Context, Result, ensure};
use host::recording::Recording;
use lab::kernel::{self, Compiler};
use lab::uml;
use sim::MachineModel;
use std::fs;
use std::path::Path;
use suite::statistics::median;

/// The slices of a load that count (`load.c`). Some do more than others: the kernel's clock ticks.
const TIMED: usize = 3;

/// Records slices of each load under a kernel, unless that was done before.
pub(super) fn recording(kernel: &MeasuredKernel, directory: &Path) -> Result<Recording> {
    let tree = kernel::tree(Compiler::Gcc)?;
    let recorder = Recorder { tree: &tree, directory };
    // Unchanged: `strip` breaks the segments of BOLT's kernel.
    let program =
        fs::read(&kernel.program).with_context(|| kernel.program.display().to_string())?;
    let load = uml::load()?;
    let hash = &image::sealed::sha256(&[&program[..], &load].concat())[..12];
    let mut files = vec![
        ("/guest/vmlinux".to_owned(), 0o755, program),
        ("/guest/root/load".to_owned(), 0o755, load),
    ];
    files.extend(uml::MOUNT_POINTS.map(|directory| {
        let path = format!("/guest/root/{directory}/empty");
        (path, 0o644, Vec::new())
    }));
    recorder.recording(&format!("uml-{hash}"), &workload(), files)
}

/// The cycles of each load's slice in a recording.
pub(super) fn cycles(recording: &Recording, machine: &MachineModel) -> Result<[f64; LOADS.len()]> {
    let found = model::simulated(recording, machine)?;
    let slices = LOADS.len() * TIMED;
    ensure!(found.len() == slices, "the recording has {} slices, not {slices}", found.len());
    let mut cycles = [0.0; LOADS.len()];
    for (cycles, slices) in cycles.iter_mut().zip(found.chunks(TIMED)) {
        *cycles = median(&mut slices.iter().map(|slice| slice.cycles).collect::<Vec<_>>());
    }
    Ok(cycles)
}

fn workload() -> String {
    let root = Path::new("/guest/root");
    let words = uml::words(uml::MEMORY, "con0=null,fd:1", root, &["record"]).join(" ");
    format!(
        "about = 'a kernel for User Mode Linux'
packages = []
memory = 1024
marks-itself = true
set-up = ''
run = '{}={} TMPDIR=/run /guest/vmlinux {words}'
check = 'grep -q \"passed: record\" /run/output'
",
        uml::TUNABLES.0,
        uml::TUNABLES.1
    )
}
