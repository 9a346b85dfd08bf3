//! The road of a kernel that is not built again: its hot functions are replaced while it runs.
//!
//! Input: workloads, and a kernel as a distribution ships it. Output: a directory with the result
//! of each step: recordings, profile, results and a page. Everything happens in guests; only the
//! module is compiled. A recording that exists is not made again.

use crate::counts;
use crate::live_guest::{self, LiveGuest, Replacement};
use crate::modules;
use crate::optimization::Optimization;
use crate::optimize::{Optimized, keep};
use crate::recorded::RecordedKernel;
use crate::said::say;
use anyhow::{Context, Result, ensure};
use guest::GuestKernel;
use host::recording::Recording;
use host::{note, output};
use replay::ReplayLayout;
use replay::results::ORIGINAL;
use sim::MachineModel;
use std::path::{Path, PathBuf};

pub use crate::live_guest::NoHeaders;

/// What to optimize a running kernel for, and how.
#[derive(Clone, Debug)]
pub struct LiveOptimization {
    /// The workloads, guests and machines. Its `tree` is the kernel's boot image. One recording is
    /// made for each of its algorithms.
    pub optimization: Optimization,
    /// The kernel's vmlinux, if not where distributions install it.
    pub vmlinux: Option<PathBuf>,
    /// The headers that the kernel's modules are built with, if not where distributions install
    /// them.
    pub headers: Option<PathBuf>,
    /// The share of the executed bytes that the replaced functions hold, 0 to 1.
    pub share: f64,
    /// Whether one more recording is made for each algorithm, with hot calls inlined.
    pub inline: bool,
    /// A profile of the kernel, by which functions are chosen and laid out; without one that of the
    /// recordings.
    pub profile: Option<PathBuf>,
}

/// Records the workloads on the kernel, replaces the hot functions in a running one, and records
/// again. The calling program must be `kernlane`: it runs in the guest as well.
///
/// # Errors
/// A step fails: the kernel has no headers, the module cannot be compiled, the workload fails, or
/// no function can be replaced. The results of the steps before it stay.
pub fn optimize_live(live: LiveOptimization) -> Result<Optimized> {
    let LiveOptimization { optimization, vmlinux, headers, share, inline, profile } = live;
    output::in_directory(&optimization.output, |_| {
        optimization.ensure_told_apart()?;
        let (boot_image, vmlinux) = (&optimization.tree, vmlinux.as_deref());
        let kernel = GuestKernel::open(boot_image, vmlinux)?;
        let given =
            profile.as_deref().map(|path| counts::of_file(path, &kernel.build_id)).transpose()?;
        say(&format!("compiling the module for Linux {}", kernel.release))?;
        let guest = LiveGuest::new(&kernel, headers.as_deref())?;
        let record = |name: &str, equip: &dyn Fn(&mut _) -> Result<()>| {
            let kernel = RecordedKernel { name, path: boot_image, vmlinux, equip };
            optimization.record_kernel(&kernel)
        };

        let originals = record(ORIGINAL, &|request| {
            LiveGuest::enlarge(request);
            Ok(())
        })?;
        let image = modules::image_of(&kernel.vmlinux, &originals)?;
        let profile = match given {
            Some(profile) => profile,
            None => optimization.count(&originals, &image)?,
        };
        let json = profile.to_json();
        let mut replaced = Vec::new();
        let shipped = machines::names_with_core();
        let named = |machine: &&MachineModel| shipped.split(", ").any(|name| name == machine.name);
        let mut machines = optimization.guests.iter().flat_map(|guest| &guest.machines);
        let machine = machines.find(named).map(|machine| machine.name.as_str());
        let algorithms = optimization.algorithms.iter().copied();
        let ways = algorithms
            .flat_map(|algorithm| [Some((algorithm, false)), inline.then_some((algorithm, true))]);
        for (algorithm, inline) in ways.flatten() {
            let how = Replacement { share, algorithm, seed: optimization.seed, inline, machine };
            let name = if inline { format!("{algorithm}-inlined") } else { algorithm.to_string() };
            let recordings = record(&name, &|request| {
                guest.equip(request, &json, how);
                Ok(())
            })?;
            for recording in &recordings {
                note!("{}: {}", recording.display(), installed(recording)?);
            }
            replaced.push((name, recordings));
        }
        say("simulating the recordings")?;
        let mut rows = optimization.rows(&originals, &[ReplayLayout::original()], Some(&image))?;
        for (name, recordings) in &replaced {
            let recorded = [ReplayLayout::recorded(name)];
            rows.extend(optimization.rows(recordings, &recorded, Some(&image))?);
        }
        keep(&optimization.output, rows)
    })
}

/// What was installed in the guest of a recording.
fn installed(recording: &Path) -> Result<String> {
    let path = Recording::at(recording).output();
    let output = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let output = String::from_utf8_lossy(&output);
    let said = live_guest::installed(&output);
    let said = said.with_context(|| format!("{}: nothing was replaced", path.display()))?;
    ensure!(!said.contains(": 0 functions"), "{}: no function was replaced", path.display());
    Ok(said)
}
