//! `kernlane live auto`: sample, count, lay out, install, measure, and take it back, in one
//! command.

use super::ModuleArgs;
use super::roots::RootArgs;
use crate::command::layout::algorithms;
use anyhow::{Context, Error, Result, anyhow};
use clap::Args;
use console::Term;
use host::table::{Column, TextTable};
use host::{note, out, outln};
use image::linked::LinkedKernel;
use layout::Algorithm;
use layout::inlining::CallCosts;
use live::chunks;
use live::device::{Device, FunctionTime};
use live::gain::{GainReport, RootGain};
use live::hot;
use live::install::{self, PreparedGroup, Purpose, TextPage};
use live::keep::kept::{KeptGroup, KeptLayout};
use live::lasting;
use live::planned::{self, CountedPlan, NoRootEntered, PlanSettings, PlanStep, PlannedGroup};
use live::running::RunningKernel;
use live::timing;
use live::turn::Turn;
use live::undo;
use live::watch::Watch;
use machines::Machine;
use profile::Profile;
use road::inlined;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Make the running kernel's hot paths faster for the load of this moment, as one command
///
/// Asks the hardware counters whether the instruction cache is a bottleneck. Samples which
/// functions the kernel is in, and counts the blocks of these functions and of the functions that
/// they call. Lays the hot blocks out, counts them once more in the optimized code, which only the
/// roots enter, and lays them out again. Installs the result, and measures what an invocation of
/// each root takes before and after. On a terminal the command then waits: q takes everything back,
/// l leaves it installed.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live auto --time 5")]
pub struct AutoArgs {
    /// The running kernel's vmlinux; by default where distributions put it
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,

    #[command(flatten)]
    pub modules: ModuleArgs,

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
    #[arg(long, default_value_t = Algorithm::ExtTspGlobal, value_parser = algorithms())]
    pub algorithm: Algorithm,

    /// Put the code of small or hot callees in place of their calls, where the counts say that it
    /// pays. The roots stay called. Copies give way to their originals when a tracer is attached to
    /// what is inlined in them
    #[arg(long)]
    pub inline: bool,

    /// This machine, as it is described: what calls cost on it decides which are inlined, and the
    /// cycles that are saved are predicted. Without it, each call counts as one
    #[arg(long, short, value_name = "NAME|FILE.toml", requires = "inline")]
    pub machine: Option<String>,

    /// Do not count once more in the optimized code
    #[arg(long)]
    pub once: bool,

    /// Leave the copies in pages of 4 KB. Without it, they lie in pages of 2 MB, as the kernel's
    /// own code does, where the kernel has such pages for modules
    #[arg(long)]
    pub small_pages: bool,

    /// Sample and count, show everything that would be written, and leave the kernel as it is
    #[arg(long)]
    pub dry_run: bool,

    /// Also write the counts of the last time to this file
    #[arg(short, long, value_name = "FILE.klp")]
    pub output: Option<PathBuf>,

    /// Also write what was installed and what it gained to this file, as JSON
    #[arg(long, value_name = "FILE.json")]
    pub report: Option<PathBuf>,
}

pub(super) fn run(args: &AutoArgs) -> Result<ExitCode> {
    let device = Device::open()?;
    let modules = args.modules.with(Some(&device));
    super::on_running_kernel(args.vmlinux.as_deref(), modules, |kernel, running| {
        let device = &device;
        super::undo::refuse_installed()?;
        let machine = args.machine.as_deref().map(machines::find).transpose()?;
        host::interrupt::catch()?;
        super::cache::ask()?;
        let auto = Auto { args, kernel, running, device, machine };
        let roots = args.roots.choose(kernel, running)?;
        let counted = auto.planned(&roots)?;
        auto.install(counted)
    })
}

/// The settings of the command, and the kernel that it works on.
struct Auto<'k, 'd> {
    args: &'k AutoArgs,
    kernel: &'k LinkedKernel<'d>,
    running: &'k RunningKernel,
    device: &'k Device,
    machine: Option<Machine>,
}

impl<'d> Auto<'_, 'd> {
    /// Counts and lays out, then repeats both in the laid-out code.
    fn planned(&self, roots: &[usize]) -> Result<CountedPlan<'_, 'd>> {
        let Auto { kernel, running, device, args, .. } = self;
        let told = &mut |what: &str| note!("{what}");
        let mut watch = Watch { kernel, running, device, time: self.time()?, told };
        let counted = planned::count_and_plan(
            &mut watch,
            roots,
            args.depth,
            self.settings(),
            !args.once,
            &mut print_step,
        )
        .map_err(with_option)?;
        if let Some(path) = &args.output {
            let profile = lasting::lasting(kernel, counted.profile.clone());
            host::output::write(path, profile.to_json().as_bytes())?;
        }
        Ok(counted)
    }

    fn settings(&self) -> PlanSettings {
        let AutoArgs { threshold, algorithm, .. } = *self.args;
        PlanSettings { threshold: threshold / 100.0, algorithm }
    }

    fn install(&self, counted: CountedPlan<'_, '_>) -> Result<ExitCode> {
        let Auto { running, device, args, .. } = self;
        let CountedPlan { plan, counted, profile } = counted;
        let cache = super::cache::geometry()?;
        let before = plan.hot.original(cache);
        let machine = self.machine.as_ref().map(|machine| &machine.model);
        let call_costs = inlined::costs(self.kernel, Some(*running), &profile, machine)?;
        let (plan, inlined) = match args.inline {
            false => (plan, None),
            true => {
                let settings = self.settings();
                let (plan, summary) =
                    plan.inlined(self.kernel, *running, &profile, settings, call_costs)?;
                (plan, Some(summary))
            }
        };
        let PlannedGroup { roots, hot, order } = plan;
        let group = &hot.group;
        // A trial leaves the kernel as it is, and needs no name of its own.
        let turn = match args.dry_run {
            true => None,
            false => Some(Turn::wait(&mut |what| note!("{what}"))?),
        };
        let page = if args.small_pages { TextPage::Small } else { device.page() };
        let (purpose, name) = (Purpose::Run(page), install::free_name()?);
        let prepared = install::prepare(group, *running, &order, purpose, &name)?;
        let places = &prepared.module.pieces;
        super::cache::draw_original(&before)?;
        let chunks = hot.chunks(places);
        outln!("{}", chunks::Table(&chunks))?;
        let algorithm = args.algorithm.to_string();
        let mut report = GainReport::new(self.kernel, algorithm, counted, &roots, &before, chunks);
        report.inlined = inlined;
        super::apply::print_inlined(inlined)?;
        let Some(turn) = turn else {
            super::apply::print_plan(group, &prepared)?;
            self.write(&report)?;
            return Ok(ExitCode::SUCCESS);
        };
        let times_before = self.measure(&roots)?;
        let described = self.described(&roots, &profile, call_costs);
        super::keep::note(&prepared.id, &described, self.kernel)?;
        let installed = prepared.install(group, device, &turn)?;
        let text = installed.text;
        drop(turn);
        let after = hot.copied(cache, places, text);
        report.add_installed(&after);
        let printed = super::apply::print_summary(group, &prepared)
            .and_then(|()| super::apply::print_pages(&installed))
            .and_then(|()| outln!("and as they are now:\n{after}"));
        let reported = printed.and_then(|()| self.measure(&roots)).and_then(|times_after| {
            report.add_times(&times_before, &times_after);
            print_gain(&report.roots)?;
            self.write(&report)
        });
        // An error or an interrupt: the message names what stays installed.
        if let Err(error) = reported {
            take_back(device, &prepared)?;
            return Err(error);
        }
        wait_for_the_user(device, &prepared)
    }

    /// What the group is made from, so that it can be kept.
    fn described(
        &self,
        roots: &[usize],
        profile: &Profile,
        call_costs: Option<CallCosts>,
    ) -> KeptGroup {
        let PlanSettings { threshold, algorithm } = self.settings();
        let chosen = hot::groups(self.kernel, profile, roots, threshold);
        let layout = KeptLayout { algorithm, seed: 0, inline: self.args.inline, call_costs };
        KeptGroup::new(self.kernel, &chosen, roots, Some(profile), layout)
    }

    /// For how long each batch of functions is counted, and each root is measured.
    fn time(&self) -> Result<Duration> {
        Duration::try_from_secs_f64(self.args.time).context("--time")
    }

    fn measure(&self, roots: &[usize]) -> Result<Vec<FunctionTime>> {
        note!("measuring {} roots for {} s", roots.len(), self.args.time);
        let time = self.time()?;
        let times = timing::measure(self.kernel, self.running, self.device, roots, time)?;
        if times.missed > 0 {
            note!(
                "{} invocations were not followed: too many were under way at once",
                times.missed
            );
        }
        Ok(times.functions)
    }

    /// Writes the file of `--report`.
    fn write(&self, report: &GainReport<'_>) -> Result<()> {
        let Some(path) = &self.args.report else { return Ok(()) };
        let mut text = serde_json::to_string_pretty(report)?;
        text.push('\n');
        host::output::write(path, text.as_bytes())
    }
}

fn print_step(step: PlanStep<'_>) -> Result<()> {
    match step {
        PlanStep::Counted(watched) => super::watch::print_counted(watched),
        PlanStep::PlannedAgain { first, second } => outln!(
            "counted once more in the optimized code, entered by the roots only: {} functions of \
             {}, {} hot blocks of {}",
            second.functions,
            first.functions,
            second.hot_blocks,
            first.hot_blocks
        ),
    }
}

/// Names the option with which roots are counted longer.
fn with_option(error: Error) -> Error {
    match error.is::<NoRootEntered>() {
        true => anyhow!("{error} (--time)"),
        false => error,
    }
}

fn print_gain(roots: &[RootGain]) -> Result<()> {
    let mut table = TextTable::of([
        Column::right("before").fixed(12),
        Column::right("after").fixed(12).gap(1),
        Column::right("change").fixed(8).gap(1),
        Column::left(
            "root (ns of an invocation on a CPU, before and after; each with the cost of measuring)",
        ),
    ]);
    for root in roots {
        table.push(match root.change() {
            Some((before, after, percent)) => vec![
                format!("{before:.0}"),
                format!("{after:.0}"),
                format!("{percent:>+7.1} %"),
                root.function.clone(),
            ],
            None => {
                let missing = format!("{}: was not called both times", root.function);
                ["-", "-", "-", &missing].map(str::to_owned).to_vec()
            }
        });
    }
    out!("{}", table.to_text())
}

/// Waits for a key if there is a terminal; otherwise prints how to take everything back.
fn wait_for_the_user(device: &Device, prepared: &PreparedGroup) -> Result<ExitCode> {
    let terminal = Term::stdout();
    if !terminal.is_term() {
        outln!("{} stays installed; `kernlane live undo` takes it back", prepared.id)?;
        return Ok(ExitCode::SUCCESS);
    }
    outln!("q: take it back    l: leave it installed")?;
    loop {
        match terminal.read_char() {
            Ok('l') => {
                outln!("{} stays installed; `kernlane live undo` takes it back", prepared.id)?;
                return Ok(ExitCode::SUCCESS);
            }
            // Ctrl-C or a closed terminal: a group of this session does not outlive it.
            Ok('q') | Err(_) => return take_back(device, prepared),
            Ok(_) => {}
        }
    }
}

fn take_back(device: &Device, prepared: &PreparedGroup) -> Result<ExitCode> {
    let taken_back = undo::take_back(device, &prepared.id)?;
    outln!("{}", super::undo::sentence(&taken_back))?;
    Ok(super::undo::exit_code(taken_back.stays()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_roots_names_the_option_to_count_longer() {
        let expected = "no root was called while it was counted: run this under the load that it \
                        is meant for, or count longer (--time)";
        assert_eq!(with_option(NoRootEntered.into()).to_string(), expected);
        assert_eq!(with_option(anyhow!("another")).to_string(), "another");
    }
}
