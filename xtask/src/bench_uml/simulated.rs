//! What the model of a processor says of the kernels: the cycles of a slice of each load.
//!
//! Each kernel runs as a program in a guest of the demo kernel and is recorded there, with its data
//! accesses. Input: kernels. Output: cycles in user mode, by load. Recordings stay in the
//! directory.

use super::LOADS;
use super::kernels::MeasuredKernel;
use crate::judge_processor::model;
use crate::judge_processor::recorded::Recorder;
use crate::kernel::{self, Compiler};
use crate::uml;
use anyhow::{Context, Result, ensure};
use sim::MachineModel;
use std::fs;
use std::path::Path;

/// The cycles of each load's slice under a kernel.
pub(super) fn cycles(
    kernel: &MeasuredKernel,
    machine: &MachineModel,
    directory: &Path,
) -> Result<[f64; LOADS.len()]> {
    let tree = kernel::tree(Compiler::Gcc)?;
    let recorder = Recorder { tree: &tree, directory };
    // As it is: `strip` breaks the segments of BOLT's kernel.
    let program =
        fs::read(&kernel.program).with_context(|| kernel.program.display().to_string())?;
    let hash = &image::sealed::sha256(&program)[..12];
    let mut files = vec![
        ("/guest/vmlinux".to_owned(), 0o755, program),
        ("/guest/root/load".to_owned(), 0o755, uml::load()?),
    ];
    files.extend(uml::MOUNT_POINTS.map(|directory| {
        let path = format!("/guest/root/{directory}/empty");
        (path, 0o644, Vec::new())
    }));
    let recording = recorder.recording(&format!("uml-{hash}"), &workload(), files)?;
    let found = model::simulated(&recording, machine)?;
    ensure!(found.len() == LOADS.len(), "the recording of {} has other loads", kernel.name);
    let mut cycles = [0.0; LOADS.len()];
    cycles.iter_mut().zip(&found).for_each(|(cycles, found)| *cycles = found.cycles);
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
