//! `kernlane live apply`: functions of the running kernel in another layout.

use crate::command::layout::algorithms;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use exchange::kinds::FileKind;
use host::note;
use host::outln;
use image::linked::LinkedKernel;
use layout::Algorithm;
use live::device::Device;
use live::eligible::Unfit;
use live::group::Group;
use live::install::{self, PreparedGroup};
use live::owners::Owners;
use live::running::RunningKernel;
use live::turn::Turn;
use profile::Profile;
use road::input_file::text_of;
use std::path::PathBuf;
use std::process::ExitCode;

/// Install functions in another layout
///
/// Takes the named functions, or the hot functions of the profile: those called more than
/// --threshold percent as often as the --root. Their hot blocks come to lie together, the cold ones
/// behind. Calls among them go from copy to copy. Everything is checked before anything is written.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live apply --profile net.klp --root tcp_v4_rcv\n  \
                  kernlane live apply --function vfs_read,vfs_write --algorithm original")]
pub struct ApplyArgs {
    /// The running kernel's vmlinux; by default where distributions put it
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,

    /// Counts of blocks, edges and calls of this kernel
    #[arg(long, value_name = "FILE.klp")]
    pub profile: Option<PathBuf>,

    /// Functions to replace
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub function: Vec<String>,

    /// The function from which the group is taken: it and what it calls, hot enough
    #[arg(long, value_name = "NAME", requires = "profile", value_delimiter = ',')]
    pub root: Vec<String>,

    /// How hot, in percent of the root's calls
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub threshold: f64,

    /// The layout algorithm
    #[arg(long, default_value_t = Algorithm::ExtTspGlobal, value_parser = algorithms())]
    pub algorithm: Algorithm,

    /// For the random orders
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Show everything that would be written, and write nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Install and undo this number of times, as a trial; at the end nothing is installed
    #[arg(long, value_name = "N", conflicts_with = "dry_run")]
    pub cycles: Option<u32>,

    /// Leave out functions that cannot be replaced, belong to another tool, or do not exist, with a
    /// warning, instead of refusing
    #[arg(long)]
    pub skip_unfit: bool,

    /// Also write the module into this file
    #[arg(long, value_name = "FILE.ko")]
    pub keep_module: Option<PathBuf>,
}

pub(super) fn run(args: &ApplyArgs) -> Result<ExitCode> {
    super::on_running_kernel(args.vmlinux.as_deref(), |kernel, running| {
        apply(args, kernel, running)
    })
}

fn apply(args: &ApplyArgs, kernel: &LinkedKernel<'_>, running: &RunningKernel) -> Result<ExitCode> {
    let profile = args.profile.as_deref().map(|path| read_profile(path, kernel)).transpose()?;
    let mut chosen = Vec::new();
    for name in &args.function {
        match find(kernel, name) {
            Err(error) if args.skip_unfit => note!("left out: {error}"),
            found => chosen.push(found?),
        }
    }
    if let Some(profile) = &profile {
        for root in &args.root {
            chosen.extend(live::hot::group(
                kernel,
                profile,
                find(kernel, root)?,
                args.threshold / 100.0,
            ));
        }
    }
    ensure!(
        !chosen.is_empty(),
        "{}",
        match args.function[..] {
            [] => "no functions: name some with --function, or give --profile and --root",
            _ => "none of the functions is left",
        }
    );
    chosen.sort_unstable();
    chosen.dedup();
    // When the turn comes, another program has finished its installation or given it up.
    let turn = match args.dry_run {
        true => None,
        false => Some((Device::open()?, Turn::wait(&mut |what| note!("{what}"))?)),
    };
    match args.skip_unfit {
        true => leave_out_owned(kernel, &mut chosen)?,
        false => refuse_owned(kernel, &chosen)?,
    }
    let group = Group::new(kernel, running, &chosen)?;
    for &(index, reason) in &group.left_out {
        let name = kernel.function_name(&kernel.functions[index]);
        let hint = match reason {
            Unfit::Changed(_) => group_hint()?,
            _ => String::new(),
        };
        ensure!(
            args.skip_unfit || !args.function.iter().any(|f| f == name),
            "{name} cannot be replaced: {reason}{hint}"
        );
        note!("left out: {name}: {reason}{hint}");
    }
    let prepared = lay_out(&group, running, profile.as_ref(), args.algorithm, args.seed)?;
    if let Some(path) = &args.keep_module {
        host::output::write(path, &prepared.module.bytes)?;
    }
    let Some((device, turn)) = turn else {
        print_plan(&group, running, &prepared)?;
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(cycles) = args.cycles {
        print_summary(&group, &prepared)?;
        return super::cycles::run(&group, &prepared, &device, cycles, &turn);
    }
    let installed = prepared.install(&group, &device, &turn)?;
    print_summary(&group, &prepared)?;
    outln!(
        "processor time: {:.2} ms for loading the module, {:.2} ms for patching",
        installed.loading.as_secs_f64() * 1e3,
        installed.patching.as_secs_f64() * 1e3
    )?;
    Ok(ExitCode::SUCCESS)
}

/// What may have changed the kernel's code: our own groups.
fn group_hint() -> Result<String> {
    let names = super::undo::installed()?;
    Ok(names.map_or_else(String::new, |names| {
        format!("; installed are {names}, and `kernlane live undo` takes them back")
    }))
}

/// Orders the group's blocks, and prepares the module for them.
pub(super) fn lay_out(
    group: &Group<'_, '_>,
    running: &RunningKernel,
    profile: Option<&Profile>,
    algorithm: Algorithm,
    seed: u64,
) -> Result<PreparedGroup> {
    let order = order(group, profile, algorithm, seed)?;
    install::prepare(group, running, &order, &[], &install::free_name()?)
}

/// The group's blocks in the order that the algorithm gives them.
pub(super) fn order(
    group: &Group<'_, '_>,
    profile: Option<&Profile>,
    algorithm: Algorithm,
    seed: u64,
) -> Result<Vec<u32>> {
    ensure!(
        !algorithm.uses_temporal_edges(),
        "{algorithm} needs to know which chunks of code alternate, and a group of functions does \
         not say: choose another algorithm"
    );
    let order = layout::order(&group.graph(profile), algorithm, seed)?;
    Ok(order.order.0.iter().map(|block| block.0).collect())
}

pub(super) fn print_summary(group: &Group<'_, '_>, prepared: &PreparedGroup) -> Result<()> {
    let summary = prepared.module.summary;
    outln!(
        "{}: {} functions, {} calls in the kernel and {} among the copies; {} blocks in {} bytes, \
         {} branches inverted, {} jumps dropped, {} added",
        prepared.id,
        group.members.len(),
        prepared.callers.len(),
        prepared.module.calls.len(),
        summary.pieces,
        prepared.module.text_size,
        summary.branches_inverted,
        summary.jumps_dropped,
        summary.jumps_added
    )
}

fn read_profile(path: &std::path::Path, kernel: &LinkedKernel<'_>) -> Result<Profile> {
    let text = text_of(path, &[FileKind::Profile])?;
    let profile = Profile::from_json(&text).with_context(|| path.display().to_string())?;
    ensure!(
        profile.build_id == kernel.build_id,
        "{}: made for the kernel with build id {}, not for {}",
        path.display(),
        profile.build_id.0,
        kernel.build_id.0
    );
    Ok(profile)
}

/// The only function of that name.
pub(super) fn find(kernel: &LinkedKernel<'_>, name: &str) -> Result<usize> {
    let found: Vec<usize> = (kernel.addresses_of(name).iter())
        .filter_map(|&at| kernel.function_at(image::address::LinkAddr(at)))
        .collect();
    match found[..] {
        [index] => Ok(index),
        [] => bail!("the kernel's text has no function {name}"),
        _ => bail!("{name}: {} functions have this name", found.len()),
    }
}

/// Refuses functions that belong to another tool.
pub(super) fn refuse_owned(kernel: &LinkedKernel<'_>, chosen: &[usize]) -> Result<()> {
    let owners = Owners::read();
    for &index in chosen {
        let name = kernel.function_name(&kernel.functions[index]);
        if let Some(owner) = owners.of(name) {
            bail!("{name} belongs to {owner}: remove that first, or leave the function out");
        }
    }
    Ok(())
}

/// Leaves out functions that belong to another tool, with a note.
fn leave_out_owned(kernel: &LinkedKernel<'_>, chosen: &mut Vec<usize>) -> Result<()> {
    let owners = Owners::read();
    chosen.retain(|&index| {
        let name = kernel.function_name(&kernel.functions[index]);
        let owner = owners.of(name);
        if let Some(owner) = owner {
            note!("left out: {name} belongs to {owner}");
        }
        owner.is_none()
    });
    ensure!(!chosen.is_empty(), "none of the functions is left");
    Ok(())
}

pub(super) fn print_plan(
    group: &Group<'_, '_>,
    running: &RunningKernel,
    prepared: &PreparedGroup,
) -> Result<()> {
    let kernel = group.original.kernel;
    let id = &prepared.id;
    outln!("module {id}, number {}: {} bytes of code", id.number, prepared.module.text_size)?;
    for (n, &(function, patch_at)) in group.members.iter().enumerate() {
        let entry = kernel.link_address(group.original.functions[function as usize].at);
        let copy = prepared.module.entries[function as usize];
        let jump = running.address(entry) + u64::from(patch_at);
        outln!("jump {jump:016x} in {} → .text+{copy:#x}", group.name(function))?;
        for caller in prepared.callers.iter().filter(|c| c.function == n) {
            let owner = kernel
                .function_at(caller.site)
                .map_or("?", |f| kernel.function_name(&kernel.functions[f]));
            outln!("call {:016x} in {owner}", running.address(caller.site))?;
        }
    }
    Ok(())
}
