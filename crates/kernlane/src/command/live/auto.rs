//! `kernlane live auto`: sample, count, lay out, install, measure, and take it back, in one command.

use super::roots::RootArgs;
use crate::image::address::LinkAddr;
use crate::image::linked::LinkedKernel;
use crate::live::device::{Device, Time, Undone};
use crate::live::group::Group;
use crate::live::hot;
use crate::live::install::{self, Prepared};
use crate::live::occupancy::{Geometry, Occupancy};
use crate::live::running::RunningKernel;
use crate::profile::Profile;
use anyhow::{Context, Result, ensure};
use clap::Args;
use console::Term;
use layout::Algorithm;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What is assumed of the instruction cache where the kernel tells nothing of it (in most virtual machines).
const ASSUMED_CACHE: Geometry = Geometry {
    sets: 64,
    ways: 8,
    line: 64,
};

/// Make the running kernel's hot paths faster for the load of this moment, as one command
///
/// Samples which functions the kernel is in, counts their blocks and those of what they call, lays the hot ones out, installs them, and measures
/// what an invocation of each root takes before and after. On a terminal it then waits: q takes everything back, l leaves it installed.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live auto --time 5")]
pub struct AutoArgs {
    /// The running kernel's vmlinux; by default where distributions put it
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,

    #[command(flatten)]
    pub roots: RootArgs,

    /// For how many seconds each batch of functions is counted, and each root is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub time: f64,

    /// How many levels of calls to follow
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub depth: usize,

    /// How hot, in percent of a root's calls
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub threshold: f64,

    /// The layout algorithm
    #[arg(long, default_value_t = Algorithm::ExtTspGlobal)]
    pub algorithm: Algorithm,

    /// Sample and count, show everything that would be written, and leave the kernel as it is
    #[arg(long)]
    pub dry_run: bool,

    /// Write the counts into this file, too
    #[arg(short, long, value_name = "FILE.klp")]
    pub output: Option<PathBuf>,
}

pub fn run(args: &AutoArgs) -> Result<ExitCode> {
    let (path, bytes) = super::map_vmlinux(args.vmlinux.as_deref())?;
    let kernel = LinkedKernel::parse(&bytes).with_context(|| path.display().to_string())?;
    let running = RunningKernel::open(&kernel)?;
    let device = Device::open()?;
    crate::interrupt::catch()?;

    let roots = args.roots.choose(&kernel, &running)?;
    let counted = super::watch::count_from(&kernel, &running, &device, &roots, args.time, args.depth)?;
    super::watch::print_counted(&counted);
    if let Some(path) = &args.output {
        crate::output::write(path, counted.profile.to_json().as_bytes())?;
    }
    let profile = &counted.profile;
    let roots = entered(&kernel, profile, &roots)?;
    let chosen = hot_functions(&kernel, profile, &roots, args.threshold / 100.0);
    let limit = least_limit(&kernel, profile, &roots, args.threshold / 100.0);
    let group = Group::new(&kernel, &running, &chosen)?;
    let prepared = super::apply::lay_out(&group, &running, Some(profile), args.algorithm, 0)?;

    let cache = Geometry::of_this_machine()?;
    if cache.is_none() {
        println!("this machine does not tell its instruction cache; assumed: {ASSUMED_CACHE}");
    }
    let cache = cache.unwrap_or(ASSUMED_CACHE);
    let hot = hot_pieces(&group, profile, limit);
    let before = Occupancy::of(cache, hot.iter().map(|&n| original_place(&group, &running, n)));
    println!("hot blocks over the sets of the instruction cache, as they are:\n{before}");
    if !before.is_tight() {
        println!("  they fit into half of it: do not expect much of a new layout");
    }
    if args.dry_run {
        super::apply::print_plan(&group, &running, &prepared);
        return Ok(ExitCode::SUCCESS);
    }
    let time = Duration::try_from_secs_f64(args.time).context("--time")?;
    eprintln!("measuring {} roots for {} s", roots.len(), args.time);
    let times_before = super::time::measure(&kernel, &running, &device, &roots, time)?;
    let text = prepared.install(&group, &device)?;
    super::apply::print_summary(&group, &prepared);
    let after = Occupancy::of(
        cache,
        hot.iter()
            .map(|&n| (text + u64::from(prepared.module.pieces[n].0), prepared.module.pieces[n].1)),
    );
    println!("and as they are now:\n{after}");
    eprintln!("measuring {} roots for {} s", roots.len(), args.time);
    let times_after = super::time::measure(&kernel, &running, &device, &roots, time);
    match times_after {
        Ok(times_after) => print_gain(&kernel, &roots, &times_before, &times_after),
        // Interrupted, say: what is installed is not left behind unsaid.
        Err(error) => {
            take_back(&device, &prepared)?;
            return Err(error);
        }
    }
    wait_for_the_user(&device, &prepared)
}

/// The roots that were entered while they were counted: a thread's main loop is on many stacks and never is.
fn entered(kernel: &LinkedKernel<'_>, profile: &Profile, roots: &[usize]) -> Result<Vec<usize>> {
    let entries = |&&index: &&usize| {
        let entry = kernel.link_address(kernel.functions[index].at);
        profile.blocks.get(&entry).is_some_and(|&count| count > 0)
    };
    let found: Vec<usize> = roots.iter().filter(entries).copied().collect();
    ensure!(
        !found.is_empty(),
        "no root was called while it was counted: run this under the load that it is meant for, or count longer (--time)"
    );
    Ok(found)
}

/// The groups of all roots, together.
fn hot_functions(kernel: &LinkedKernel<'_>, profile: &Profile, roots: &[usize], threshold: f64) -> Vec<usize> {
    let groups = roots.iter().flat_map(|&root| hot::group(kernel, profile, root, threshold));
    let mut chosen: Vec<usize> = groups.collect();
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

fn least_limit(kernel: &LinkedKernel<'_>, profile: &Profile, roots: &[usize], threshold: f64) -> f64 {
    let limits = roots.iter().map(|&root| hot::limit(kernel, profile, root, threshold));
    limits.fold(f64::INFINITY, f64::min)
}

/// The group's blocks that ran more often than `limit`, by their numbers.
fn hot_pieces(group: &Group<'_, '_>, profile: &Profile, limit: f64) -> Vec<usize> {
    let count = |n: usize| profile.blocks.get(&link_address(group, n)).copied().unwrap_or(0);
    (0..group.original.pieces.len()).filter(|&n| count(n) as f64 > limit).collect()
}

fn link_address(group: &Group<'_, '_>, piece: usize) -> LinkAddr {
    group.original.kernel.link_address(group.original.pieces[piece].at)
}

/// Where a block is in the kernel's own text, and its size.
fn original_place(group: &Group<'_, '_>, running: &RunningKernel, piece: usize) -> (u64, u32) {
    (running.address(link_address(group, piece)), group.original.pieces[piece].size)
}

fn print_gain(kernel: &LinkedKernel<'_>, roots: &[usize], before: &[Time], after: &[Time]) {
    println!(
        "{:>12} {:>12} {:>8}  root (ns of an invocation on a CPU, before and after; each with the cost of measuring)",
        "before", "after", "change"
    );
    for ((&root, before), after) in roots.iter().zip(before).zip(after) {
        let name = kernel.function_name(&kernel.functions[root]);
        match (before.mean_on_cpu(), after.mean_on_cpu()) {
            (Some(before), Some(after)) => {
                println!("{before:>12.0} {after:>12.0} {:>+7.1} %  {name}", 100.0 * (after / before - 1.0));
            }
            _ => println!("{:>12} {:>12} {:>8}  {name}: was not called both times", "-", "-", "-"),
        }
    }
}

/// On a terminal waits for a key; else says how to take everything back.
fn wait_for_the_user(device: &Device, prepared: &Prepared) -> Result<ExitCode> {
    let terminal = Term::stdout();
    if !terminal.is_term() {
        println!("{} stays installed; `kernlane live undo` takes it back", prepared.name);
        return Ok(ExitCode::SUCCESS);
    }
    println!("q: take it back    l: leave it installed");
    loop {
        match terminal.read_char() {
            Ok('l') => {
                println!("{} stays installed; `kernlane live undo` takes it back", prepared.name);
                return Ok(ExitCode::SUCCESS);
            }
            // Ctrl-C or a terminal that is gone: what was for this session does not outlive it.
            Ok('q') | Err(_) => return take_back(device, prepared),
            Ok(_) => {}
        }
    }
}

fn take_back(device: &Device, prepared: &Prepared) -> Result<ExitCode> {
    let clean = device.undo(&prepared.name)? == Undone::Clean && install::unload(&prepared.name)?;
    if clean {
        println!("{}: every byte is restored", prepared.name);
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{}: every byte is restored; a task may still be in a copy, so the module stays loaded until `kernlane live undo` finds nobody in it",
        prepared.name
    );
    Ok(ExitCode::from(1))
}
