//! `kernlane live apply`: functions of the running kernel in another layout.

use super::ModuleArgs;
use crate::command::layout::algorithms;
use anyhow::{Context, Result, ensure};
use clap::Args;
use exchange::kinds::FileKind;
use host::note;
use host::outln;
use image::linked::LinkedKernel;
use layout::Algorithm;
use live::choice::{self, Choice};
use live::device::Device;
use live::eligible::Unfit;
use live::group::Group;
use live::inline::{self, InlineSummary, ListedCall};
use live::install::{CodeWrite, Installation, PreparedGroup, TextPage};
use live::keep::kept::{KeptGroup, KeptLayout};
use live::owners::Owners;
use live::planned;
use live::running::RunningKernel;
use live::turn::Turn;
use live::undo;
use profile::Profile;
use road::inlined;
use road::input_file::text_of;
use std::path::PathBuf;
use std::process::ExitCode;

/// Install functions in another layout
///
/// Takes the named functions, the hot functions of the profile (those called more than --threshold
/// percent as often as the --root), or its hottest ones (--share). Their hot blocks then lie
/// together, the cold ones behind them. Calls among them go from copy to copy. Everything is
/// checked before anything is written.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live apply --profile net.klp --root tcp_v4_rcv\n  \
                  kernlane live apply --profile net.klp --share 99 --skip-unfit\n  \
                  kernlane live apply --function vfs_read,vfs_write --algorithm original")]
pub struct ApplyArgs {
    /// The running kernel's vmlinux; by default where distributions put it
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,

    #[command(flatten)]
    pub modules: ModuleArgs,

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

    /// The hottest functions: the fewest that hold this share of the code that the profile says was
    /// executed
    #[arg(long, value_name = "PERCENT", requires = "profile", value_parser = percent)]
    pub share: Option<f64>,

    /// The layout algorithm
    #[arg(long, default_value_t = Algorithm::ExtTspGlobal, value_parser = algorithms())]
    pub algorithm: Algorithm,

    /// For the random orders
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Put the code of small or hot callees in place of their calls, where the profile says that it
    /// pays. Copies give way to their originals when a tracer is attached to what is inlined in
    /// them
    #[arg(long, requires = "profile")]
    pub inline: bool,

    /// This machine, as it is described: what calls cost on it decides which are inlined, and the
    /// cycles that are saved are predicted. Without it, each call counts as one
    #[arg(long, short, value_name = "NAME|FILE.toml", requires = "inline")]
    pub machine: Option<String>,

    /// Leave the copies in pages of 4 KB. Without it, they lie in pages of 2 MB, as the kernel's
    /// own code does, where the kernel has such pages for modules
    #[arg(long)]
    pub small_pages: bool,

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

    /// Install it again at every boot, with everything else that is installed: `kernlane live keep`
    #[arg(long, conflicts_with_all = ["dry_run", "cycles"])]
    pub keep: bool,
}

/// A share, in percent.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.0..=100.0).contains(value));
    value.ok_or_else(|| "give a number from 0 to 100".to_owned())
}

pub(super) fn run(args: &ApplyArgs) -> Result<ExitCode> {
    let device = if args.dry_run { None } else { Some(Device::open()?) };
    let modules = args.modules.with(device.as_ref());
    super::on_running_kernel(args.vmlinux.as_deref(), modules, |kernel, running| {
        apply(args, kernel, running, device.as_ref())
    })
}

fn apply(
    args: &ApplyArgs,
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    device: Option<&Device>,
) -> Result<ExitCode> {
    let told = &mut |what: &str| note!("{what}");
    let profile =
        args.profile.as_deref().map(|path| read_profile(path, kernel, told)).transpose()?;
    let machine = args.machine.as_deref().map(machines::find).transpose()?;
    let machine = machine.as_ref().map(|machine| &machine.model);
    let call_costs = match &profile {
        Some(profile) => inlined::costs(kernel, Some(running), profile, machine)?,
        None => None,
    };
    let choice = Choice {
        named: &args.function,
        roots: &args.root,
        threshold: args.threshold / 100.0,
        share: args.share.unwrap_or(0.0) / 100.0,
        skip_unfit: args.skip_unfit,
        call_costs,
    };
    let chosen = choice.functions(kernel, profile.as_ref(), told)?;
    ensure!(
        !chosen.is_empty(),
        "{}",
        match args.function[..] {
            [] => {
                "no functions: name some with --function, or give --profile with --root or --share"
            }
            _ => "none of the functions is left",
        }
    );
    // When the turn comes, another program has finished its installation or given it up.
    let turn = match device {
        None => None,
        Some(device) => Some((device, Turn::wait(told)?)),
    };
    let chosen = choice.unowned(kernel, &Owners::read(), chosen, told)?;
    let (group, summary) = match profile.as_ref().filter(|_| args.inline) {
        None => (choice.group(kernel, running, &chosen, &hint, told)?, None),
        Some(profile) => {
            let (group, summary) =
                choice.inlined_group(kernel, running, &chosen, profile, &hint, told)?;
            (group, Some(summary))
        }
    };
    let page = match &turn {
        Some((device, _)) if !args.small_pages => device.page(),
        _ => TextPage::Small,
    };
    let (algorithm, seed) = (args.algorithm, args.seed);
    let prepared = planned::lay_out(&group, running, profile.as_ref(), algorithm, seed, page)?;
    if let Some(path) = &args.keep_module {
        host::output::write(path, &prepared.module.bytes)?;
    }
    let Some((device, turn)) = turn else {
        print_plan(&group, &prepared)?;
        print_inlined(summary)?;
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(cycles) = args.cycles {
        print_summary(&group, &prepared)?;
        print_inlined(summary)?;
        return super::cycles::run(&group, &prepared, device, cycles, &turn);
    }
    let layout = KeptLayout {
        algorithm: args.algorithm,
        seed: args.seed,
        inline: args.inline,
        call_costs: choice.call_costs,
    };
    let described = KeptGroup::new(kernel, &chosen, &[], profile.as_ref(), layout);
    super::keep::note(&prepared.id, &described, kernel)?;
    let installed = prepared.install(&group, device, &turn)?;
    print_summary(&group, &prepared)?;
    print_inlined(summary)?;
    outln!(
        "processor time: {:.2} ms for loading the module, {:.2} ms for patching",
        installed.loading.as_secs_f64() * 1e3,
        installed.patching.as_secs_f64() * 1e3
    )?;
    print_pages(&installed)?;
    if args.keep {
        super::keep::keep_as_usual()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints in which pages copies lie.
pub(super) fn print_pages(installed: &Installation) -> Result<()> {
    let why = installed.small.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    match installed.page {
        Some(bytes) => outln!("the copies lie in pages of {}{why}", page(bytes)),
        None => outln!("in which pages the copies lie is not known{why}"),
    }
}

/// The size of a page.
pub(super) fn page(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{} KB", bytes >> 10),
        megabytes => format!("{megabytes} MB"),
    }
}

pub(super) fn print_inlined(summary: Option<InlineSummary>) -> Result<()> {
    let Some(summary) = summary else { return Ok(()) };
    let InlineSummary { calls, promoted, .. } = summary;
    let percent = |part: f64, whole: u64| 100.0 * part / whole.max(1) as f64;
    outln!(
        "{calls} calls inlined: {:.1} % of the calls within the group that the profile counts, for \
         {:.1} % more hot code{}",
        percent(summary.gone as f64, summary.executed),
        percent(summary.added_bytes as f64, summary.hot_bytes),
        inlined::predicted(&summary)
    )?;
    match summary.indirect {
        0 => Ok(()),
        indirect => outln!(
            "{promoted} indirect calls promoted: {:.1} % of those within the group that the profile \
             counts",
            percent(summary.direct as f64, indirect)
        ),
    }
}

/// What may have changed the kernel's code: our own groups.
fn hint(reason: Unfit) -> Result<String> {
    let Unfit::Changed(_) = reason else { return Ok(String::new()) };
    Ok(undo::installed()?.map_or_else(String::new, |names| {
        format!("; installed are {names}, and `kernlane live undo` takes them back")
    }))
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

fn read_profile(
    path: &std::path::Path,
    kernel: &LinkedKernel<'_>,
    told: &mut dyn FnMut(&str),
) -> Result<Profile> {
    let text = text_of(path, &[FileKind::Profile])?;
    choice::profile_for(kernel, &text, told).with_context(|| path.display().to_string())
}

pub(super) fn print_plan(group: &Group<'_, '_>, prepared: &PreparedGroup) -> Result<()> {
    let id = &prepared.id;
    outln!("module {id}, number {}: {} bytes of code", id.number, prepared.module.text_size)?;
    for write in prepared.writes(group) {
        match write {
            CodeWrite::Jump { at, function, copy } => {
                outln!("jump {at:016x} in {function} → .text+{copy:#x}")?
            }
            CodeWrite::Call { at, caller } => {
                outln!("call {at:016x} in {}", caller.as_deref().unwrap_or("?"))?
            }
        }
    }
    for ListedCall { at, caller, called, is_inlined, is_promoted } in inline::listed(group) {
        let what = if is_inlined { "inlined" } else { "promoted" };
        let how = if is_promoted { "called indirectly" } else { "called" };
        outln!("{what}: {called}, {how} at {at:016x}, in the copy of {caller}")?;
    }
    Ok(())
}
