//! `kernlane live restore`: installs what is kept, as at boot, and guards it.

use super::guard::{Guard, Watched};
use super::keep::{StateArgs, age};
use super::{ModuleArgs, ReadModules};
use anyhow::Result;
use clap::Args;
use host::{interrupt, note, outln};
use image::linked::LinkedKernel;
use live::device::Device;
use live::install::TextPage;
use live::keep::kept::{Kept, KeptGroup};
use live::keep::restore::{self, CarriedGroups, Restored};
use live::keep::state::{self, KeepState};
use live::kernel_log;
use live::origin;
use live::running::RunningKernel;
use live::undo;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Install what is kept, as at boot
///
/// In the kernel that the groups were made in, they are made again as they were. In another build,
/// such as after an upgrade, a function keeps its counts if it has the same blocks, edges and
/// calls; the groups are made if --fit percent of the instructions that the counts say were
/// executed are in such functions. Exit status 0: installed. 1: the kernel is left as it is, and a
/// line says why. 2: an error; the kernel is also left as it is.
///
/// With --guard the command stays, and watches the kernel's log. An oops, a warning or a lockup in
/// installed code takes everything back, and nothing is installed at later boots until `kernlane
/// live keep`. Also when a boot with installed groups did not end in order. When the command is
/// stopped, everything is taken back.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live restore --dry-run\n  \
                  kernlane live restore --guard")]
pub struct RestoreArgs {
    /// The running kernel's vmlinux; by default where distributions put it
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,

    #[command(flatten)]
    pub modules: ModuleArgs,

    #[command(flatten)]
    pub state: StateArgs,

    /// In another build of the kernel: how much of the executed instructions must be in functions
    /// that are as they were
    #[arg(long, value_name = "PERCENT", default_value_t = 80.0, value_parser = super::percent)]
    pub fit: f64,

    /// Do not install what was kept longer ago
    #[arg(long, value_name = "DAYS", default_value_t = 365)]
    pub max_age: u64,

    /// Stay, watch the kernel's log, and take everything back if it complains about installed code
    #[arg(long, conflicts_with = "dry_run")]
    pub guard: bool,

    /// After this time a crash is no reason any more to install nothing at the next boot
    #[arg(long, value_name = "MINUTES", default_value_t = 10.0, requires = "guard")]
    pub proven_after: f64,

    /// Say what would be installed, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// The kernel is left as it is.
const UNCHANGED: u8 = 1;

pub(super) fn run(args: &RestoreArgs) -> Result<ExitCode> {
    let proven_after = Duration::try_from_secs_f64(60.0 * args.proven_after)?;
    let state = args.state.open();
    let Some(kept) = state.kept()? else {
        return unchanged(&format!("nothing is kept in {}", state.path().display()));
    };
    if let Some(reason) =
        trouble(Some(&kept), &state, args.dry_run)?.or_else(|| too_old(args, &kept))
    {
        return unchanged(&reason);
    }
    interrupt::catch()?;
    let device = Device::open()?;
    if let Some(names) = undo::installed()? {
        outln!("installed already: {names}")?;
        return match args.guard {
            true => guarded(Guard::new(&state, proven_after)?),
            false => Ok(ExitCode::SUCCESS),
        };
    }
    let vmlinux = match &args.vmlinux {
        Some(path) => path.clone(),
        None => match origin::installed_vmlinux()? {
            Ok(path) => path,
            Err(missing) => return unchanged(&super::origin::missing(&missing)),
        },
    };
    let has_modules = kept.groups.iter().any(KeptGroup::has_modules);
    let modules = if has_modules { args.modules.with(Some(&device)) } else { ReadModules::None };
    super::on_running_kernel(Some(&vmlinux), modules, |kernel, running| {
        let carried = CarriedGroups::new(&kept, kernel)?;
        if let Some(reason) = too_little(args, &kept, &carried, kernel) {
            return unchanged(&reason);
        }
        let what = described(&kept, &carried);
        if args.dry_run {
            return dry_run(&carried, kernel, running, &what);
        }
        let mut guard = match args.guard {
            true => Some(Guard::new(&state, proven_after)?),
            false => None,
        };
        if let Some(guard) = &mut guard {
            guard.begin_trial()?;
        }
        if let Err(error) = install(&carried, kernel, running, &device, &what) {
            state.end_trial()?;
            return Err(error);
        }
        guard.map_or(Ok(ExitCode::SUCCESS), guarded)
    })
}

/// Installs the groups, and says where they come from.
pub(super) fn install(
    carried: &CarriedGroups,
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    device: &Device,
    what: &str,
) -> Result<()> {
    let told = &mut |line: &str| note!("{line}");
    match restore::install(carried, kernel, running, device, told)? {
        Restored::Already(names) => outln!("installed already: {names}")?,
        Restored::Groups(groups) => {
            for group in groups {
                outln!("installed: {}, {} functions, {what}", group.id, group.functions)?;
            }
        }
    }
    Ok(())
}

/// Watches until the kernel complains about installed code, or until somebody stops the command.
fn guarded(mut guard: Guard<'_>) -> Result<ExitCode> {
    const WHILE: Duration = Duration::from_secs(3600);
    loop {
        match guard.watch(WHILE)? {
            Watched::Over => {}
            Watched::Complained(complaint) => return guard.give_up(&complaint),
            Watched::Stopped => return guard.stop(),
        }
    }
}

pub(super) fn unchanged(reason: &str) -> Result<ExitCode> {
    outln!("the kernel is left as it is: {reason}")?;
    Ok(ExitCode::from(UNCHANGED))
}

/// What happened to the groups that speaks against installing them. A crash is marked, except in a
/// dry run.
pub(super) fn trouble(
    kept: Option<&Kept>,
    state: &KeepState,
    dry_run: bool,
) -> Result<Option<String>> {
    const AGAIN: &str = "`kernlane live keep --retry` lets it be installed again";
    if let Some(reason) = state.bad()? {
        return Ok(Some(format!("{reason}; {AGAIN}")));
    }
    let crash = match (state.has_crashed(&state::this_boot()?)?, kept) {
        (true, _) => Some(
            "an earlier boot ended without order soon after the groups had been installed"
                .to_owned(),
        ),
        (false, Some(kept)) => kernel_log::crash_since(state.trusted_since(kept)?)
            .map(|complaint| format!("a kernel crashed in installed code: {complaint}")),
        (false, None) => None,
    };
    let Some(reason) = crash else { return Ok(None) };
    if !dry_run {
        state.mark_bad(&reason)?;
    }
    Ok(Some(format!("{reason}; {AGAIN}")))
}

fn too_old(args: &RestoreArgs, kept: &Kept) -> Option<String> {
    let days = kept.age().as_secs() / 86_400;
    (days > args.max_age).then(|| {
        format!(
            "it was kept {days} days ago, and what is older than {} days is not installed \
             (--max-age): count again, and `kernlane live keep`",
            args.max_age
        )
    })
}

fn too_little(
    args: &RestoreArgs,
    kept: &Kept,
    carried: &CarriedGroups,
    kernel: &LinkedKernel<'_>,
) -> Option<String> {
    let percent = 100.0 * carried.fit();
    let is_enough = carried.is_same_build
        || (percent >= args.fit && carried.groups.iter().all(|group| !group.chosen.is_empty()));
    (!is_enough).then(|| {
        format!(
            "kept in Linux {} (build id {}), of which {percent:.1} % fits into Linux {} (build id \
             {}), less than {} % (--fit): count again, and `kernlane live keep`",
            kept.release,
            kept.build_id.0,
            kernel.release().unwrap_or_default(),
            kernel.build_id.0,
            args.fit
        )
    })
}

/// Where the groups come from.
pub(super) fn described(kept: &Kept, carried: &CarriedGroups) -> String {
    let since = age(kept.age());
    match carried.is_same_build {
        true => format!("kept {since}"),
        false => format!(
            "kept {since} in Linux {}: {:.1} % of the executed instructions fit, {} functions do \
             not",
            kept.release,
            100.0 * carried.fit(),
            carried.left_out()
        ),
    }
}

fn dry_run(
    carried: &CarriedGroups,
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    what: &str,
) -> Result<ExitCode> {
    for group in &carried.groups {
        let (group, prepared) =
            group.prepare(kernel, running, TextPage::Small, &mut |line| note!("{line}"))?;
        outln!(
            "would be installed: {} functions, {} bytes, {what}",
            group.members.len(),
            prepared.module.text_size
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
