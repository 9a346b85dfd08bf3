//! `kernlane live learn`: a new layout when the hot code has changed, at a fixed cost.

use super::guard::{self, Guard, Watched};
use super::keep::StateArgs;
use super::{ModuleArgs, ReadModules, restore};
use anyhow::{Context, Result, ensure};
use clap::Args;
use host::{interrupt, note, outln};
use image::linked::LinkedKernel;
use layout::Algorithm;
use live::decay;
use live::device::{self, Device, GroupState};
use live::hot;
use live::install::{self, Purpose};
use live::keep::kept::{Kept, KeptGroup, KeptLayout};
use live::keep::notes;
use live::keep::restore::CarriedGroups;
use live::keep::state::KeepState;
use live::lasting;
use live::learn::{Budget, Decision, SampledShare, own_time};
use live::owners::Owners;
use live::planned::{PlanSettings, PlannedGroup};
use live::roots;
use live::running::RunningKernel;
use live::sample::{self, Samples};
use live::symbols::KernelSymbols;
use live::turn::Turn;
use live::undo;
use live::watch::Watch;
use profile::Profile;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Watch the load for days, and install a new layout when the hot code has changed
///
/// From time to time the command samples where the kernel runs. When the installed groups hold less
/// of the executed code than they did at first (--fell-to), it takes them back, counts the blocks
/// of the hot functions, merges the counts with those that were kept, of which a half is forgotten
/// in --half-life days, and installs and keeps the result. If nothing is installed, it does the
/// same as soon as the kernel is busy. It pauses for as long as the processor time that it spent
/// needs (--budget). Between its rounds it guards what is installed, as
/// `kernlane live restore --guard`.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live learn --once --dry-run\n  \
                  kernlane live learn --budget 0.5")]
pub struct LearnArgs {
    /// The running kernel's vmlinux; by default where distributions put it
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,

    #[command(flatten)]
    pub modules: ModuleArgs,

    #[command(flatten)]
    pub state: StateArgs,

    /// The most processor time to spend, in percent of one CPU's
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5, value_parser = super::percent)]
    pub budget: f64,

    /// A new layout is due when the copies hold less than this part of what they held at first
    #[arg(long, value_name = "PERCENT", default_value_t = 80.0, value_parser = super::percent)]
    pub fell_to: f64,

    /// After this time counts and samples have half of their weight
    #[arg(long, value_name = "DAYS", default_value_t = 3.0)]
    pub half_life: f64,

    /// The shortest pause between two rounds
    #[arg(long, value_name = "MINUTES", default_value_t = 10.0)]
    pub pause: f64,

    /// For how many seconds to sample in each round
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub sample: f64,

    /// For how many seconds each batch of functions is counted, when a new layout is due
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub time: f64,

    /// After this time a crash is no reason any more to install nothing at the next boot
    #[arg(long, value_name = "MINUTES", default_value_t = 10.0)]
    pub proven_after: f64,

    /// Put the code of small or hot callees in place of their calls
    #[arg(long)]
    pub inline: bool,

    /// One round, without a guard afterwards. What is installed stays
    #[arg(long)]
    pub once: bool,

    /// Say what a round finds, and change nothing
    #[arg(long, requires = "once")]
    pub dry_run: bool,
}

/// A root is on at least this part of the sampled stacks.
const ROOT_SHARE: f64 = 0.02;
/// How hot a function must be, as a part of a root's calls.
const THRESHOLD: f64 = 0.05;
/// How many levels of calls are counted.
const DEPTH: usize = 8;

pub(super) fn run(args: &LearnArgs) -> Result<ExitCode> {
    ensure!(args.budget > 0.0, "--budget: more than 0 %");
    let begun = Instant::now();
    let state = args.state.open();
    if let Some(reason) = restore::trouble(state.kept()?.as_ref(), &state, args.dry_run)? {
        return restore::unchanged(&reason);
    }
    interrupt::catch()?;
    // Modules are read, and held, only while a new layout is made: it may be days until then.
    super::on_running_kernel(args.vmlinux.as_deref(), ReadModules::None, |kernel, running| {
        let duration = |value: f64, unit: f64, name: &'static str| {
            Duration::try_from_secs_f64(value * unit).context(name)
        };
        let mut learner = Learner {
            args,
            state: &state,
            kernel,
            running,
            begun,
            budget: Budget::new(args.budget / 100.0),
            half_life: duration(args.half_life, 86_400.0, "--half-life")?,
            sample: duration(args.sample, 1.0, "--sample")?,
            time: duration(args.time, 1.0, "--time")?,
        };
        if args.once {
            learner.round(None)?;
            return Ok(ExitCode::SUCCESS);
        }
        let pause = duration(args.pause, 60.0, "--pause")?;
        let mut guard = Guard::new(&state, duration(args.proven_after, 60.0, "--proven-after")?)?;
        if let Err(error) = learner.restore(&mut guard) {
            interrupt::check()?;
            state.end_trial()?;
            note!("what is kept is not installed: {error:#}");
        }
        loop {
            if let Err(error) = learner.round(Some(&mut guard)) {
                if interrupt::check().is_err() {
                    return guard.stop();
                }
                return Err(error);
            }
            let pause = learner.budget.pause(own_time(), begun.elapsed(), pause);
            match guard.watch(pause)? {
                Watched::Over => {}
                Watched::Complained(complaint) => return guard.give_up(&complaint),
                Watched::Stopped => return guard.stop(),
            }
        }
    })
}

struct Learner<'a, 'd> {
    args: &'a LearnArgs,
    state: &'a KeepState,
    kernel: &'a LinkedKernel<'d>,
    running: &'a RunningKernel,
    begun: Instant,
    budget: Budget,
    half_life: Duration,
    sample: Duration,
    time: Duration,
}

impl Learner<'_, '_> {
    /// Installs what is kept, if nothing is installed: what this command had installed before it
    /// was stopped.
    fn restore(&self, guard: &mut Guard<'_>) -> Result<()> {
        if undo::installed()?.is_some() {
            return Ok(());
        }
        let Some(kept) = self.state.kept()? else { return Ok(()) };
        if kept.build_id != self.kernel.build_id {
            return Ok(());
        }
        guard.begin_trial()?;
        self.with_modules(|kernel, running, device| install_kept(&kept, kernel, running, device))
    }

    /// Works on the kernel with the modules that are loaded now, which stay meanwhile.
    fn with_modules<T>(
        &self,
        work: impl FnOnce(&LinkedKernel<'_>, &RunningKernel, &Device) -> Result<T>,
    ) -> Result<T> {
        let device = Device::open()?;
        let modules = self.args.modules.with(Some(&device));
        super::on_running_kernel(self.args.vmlinux.as_deref(), modules, |kernel, running| {
            work(kernel, running, &device)
        })
    }

    /// Samples, and installs a new layout if one is due. With `guard` it is on trial.
    fn round(&mut self, guard: Option<&mut Guard<'_>>) -> Result<()> {
        let samples = self.samples()?;
        let groups: Vec<String> = (device::status()?.iter())
            .filter(|group| group.state == GroupState::Installed)
            .map(|group| group.id.number.to_string())
            .collect();
        let symbols = KernelSymbols::read()?;
        let share =
            SampledShare::of(&samples, &symbols.by_address(), self.kernel, self.running.slide);
        drop(symbols);
        let mut learned = self.state.learned()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        learned.add(&groups, share, now, self.half_life);
        let decision = learned.decide(self.args.fell_to / 100.0);
        let is_due = matches!(decision, Decision::First | Decision::Renew(..));
        if self.args.once || is_due {
            outln!(
                "{} samples in copies, {} in originals: {}",
                share.copies,
                share.originals,
                words(decision)
            )?;
        }
        if !self.args.dry_run {
            self.state.set_learned(&learned)?;
            if is_due {
                self.renew(guard)?;
            }
        }
        if self.args.once || is_due {
            self.print_cost()?;
        }
        Ok(())
    }

    fn samples(&mut self) -> Result<Samples> {
        let samples = sample::sample(self.sample)?;
        self.budget.add_samples(samples.stacks.len() as u64);
        Ok(samples)
    }

    fn print_cost(&self) -> Result<()> {
        let (spent, since) = (self.budget.spent(own_time()), self.begun.elapsed());
        let pause = self.budget.pause(own_time(), since, Duration::ZERO);
        outln!(
            "spent: {:.2} s of processor time in {:.0} s; {} % of one CPU's with a pause of {:.0} s",
            spent.as_secs_f64(),
            since.as_secs_f64(),
            self.args.budget,
            pause.as_secs_f64()
        )
    }

    /// Takes back what is installed, counts, and installs and keeps the new layout. If that fails,
    /// what was kept is installed again.
    fn renew(&mut self, mut guard: Option<&mut Guard<'_>>) -> Result<()> {
        let kept = self.state.kept()?.filter(|kept| kept.build_id == self.kernel.build_id);
        if undo::installed()?.is_some() {
            outln!("{}", guard::take_back()?)?;
        }
        if let Some(guard) = &mut guard {
            guard.begin_trial()?;
        }
        // In the copies' place the originals run, which name the roots.
        let samples = self.samples()?;
        let mut counts = 0;
        let installed = self.with_modules(|kernel, running, device| {
            self.count_and_install(kernel, running, device, &samples, kept.as_ref(), &mut counts)
        });
        self.budget.add_counts(counts);
        match installed {
            Ok(()) => guard.map_or(Ok(()), Guard::begin_trial),
            Err(error) => {
                interrupt::check()?;
                if let Some(kept) = kept {
                    self.with_modules(|kernel, running, device| {
                        install_kept(&kept, kernel, running, device)
                    })
                    .with_context(|| format!("after {error:#}"))?;
                }
                note!("no new layout: {error:#}");
                Ok(())
            }
        }
    }

    /// `counts`: set to the sum of what was counted.
    fn count_and_install(
        &self,
        kernel: &LinkedKernel<'_>,
        running: &RunningKernel,
        device: &Device,
        samples: &Samples,
        kept: Option<&Kept>,
        counts: &mut u64,
    ) -> Result<()> {
        let found = roots::of_samples(kernel, running, &Owners::read(), samples, ROOT_SHARE)?;
        let mut roots: Vec<usize> = found.iter().map(|root| root.function).collect();
        let told = &mut |line: &str| note!("{line}");
        let mut watch = Watch { kernel, running, device, time: self.time, told };
        let counted = watch.from_roots(&roots, DEPTH)?;
        *counts = counted.profile.blocks.values().sum();
        let mut profile = counted.profile;
        for group in kept.iter().flat_map(|kept| &kept.groups) {
            let Some(older) = group.profile()? else { continue };
            let weight = decay::weight(kept.map(Kept::age).unwrap_or_default(), self.half_life);
            profile = decay::merged(lasting::present(kernel, older).0, profile, weight)?;
            let carried = group.carry(&kernel.build_id, kernel)?;
            roots.extend(carried.called);
        }
        roots.sort_unstable();
        roots.dedup();
        self.install(kernel, running, device, &roots, &profile)
    }

    fn install(
        &self,
        kernel: &LinkedKernel<'_>,
        running: &RunningKernel,
        device: &Device,
        roots: &[usize],
        profile: &Profile,
    ) -> Result<()> {
        let settings = PlanSettings { threshold: THRESHOLD, algorithm: Algorithm::ExtTspGlobal };
        let turn = Turn::wait(&mut |line| note!("{line}"))?;
        let mut plan = PlannedGroup::new(kernel, running, profile, roots, settings)?;
        if self.args.inline {
            plan = plan.inlined(kernel, running, profile, settings, None)?.0;
        }
        let PlannedGroup { roots, hot: hottest, order } = &plan;
        let group = &hottest.group;
        let (purpose, name) = (Purpose::Run(device.page()), install::free_name()?);
        let prepared = install::prepare(group, running, order, purpose, &name)?;
        let chosen = hot::groups(kernel, profile, roots, settings.threshold);
        let layout = KeptLayout {
            algorithm: settings.algorithm,
            seed: 0,
            inline: self.args.inline,
            call_costs: None,
        };
        let described = KeptGroup::new(kernel, &chosen, roots, Some(profile), layout);
        notes::note(&prepared.id, &described, &kernel.build_id, &device::status()?)?;
        prepared.install(group, device, &turn)?;
        drop(turn);
        super::apply::print_summary(group, &prepared)?;
        super::keep::keep(self.state)
    }
}

fn install_kept(
    kept: &Kept,
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    device: &Device,
) -> Result<()> {
    let carried = CarriedGroups::new(kept, kernel)?;
    let what = restore::described(kept, &carried);
    restore::install(&carried, kernel, running, device, &what)
}

fn words(decision: Decision) -> String {
    let percent = |part: f64| format!("{:.1} %", 100.0 * part);
    match decision {
        Decision::Wait => "too few samples yet to decide".to_owned(),
        Decision::First => "nothing is installed, and the kernel is busy".to_owned(),
        Decision::Stay(share) => format!("the copies hold {}, which is enough", percent(share)),
        Decision::Renew(at_first, share) => {
            format!("the copies hold {} instead of {}", percent(share), percent(at_first))
        }
    }
}
