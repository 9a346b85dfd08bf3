//! `kernlane live auto`: sample, count, lay out, install, measure, and take it back, in one
//! command.

use super::roots::RootArgs;
use crate::command::layout::algorithms;
use anyhow::{Context, Result, ensure};
use clap::Args;
use console::Term;
use host::table::{Column, TextTable};
use host::{note, out, outln};
use image::linked::LinkedKernel;
use layout::Algorithm;
use live::chunks::{self, Chunks};
use live::device::{Device, FunctionTime};
use live::group::Group;
use live::hot;
use live::install::{self, PreparedGroup};
use live::occupancy::Occupancy;
use live::running::RunningKernel;
use live::turn::Turn;
use live::watch::{Watch, Watched};
use profile::Profile;
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

    /// Do not count once more in the optimized code
    #[arg(long)]
    pub once: bool,

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

/// `--report`.
#[derive(serde::Serialize)]
struct Report<'a> {
    kernel: &'a str,
    algorithm: String,
    /// Lines of the instruction cache that hot blocks take, before and after.
    lines: [u64; 2],
    /// Of these, without room in their set.
    without_room: [u64; 2],
    /// What was counted: in the originals, then in the optimized code.
    counted: Vec<Counted>,
    roots: Vec<Gain>,
    functions: Vec<Chunks>,
}

/// How much was counted, and for how many edges the counts are exact (section 4.3).
#[derive(Clone, Copy, serde::Serialize)]
struct Counted {
    functions: usize,
    blocks: usize,
    edges: usize,
    exact_edges: usize,
}

impl Counted {
    fn new(watched: &Watched) -> Counted {
        Counted {
            functions: watched.levels.iter().sum(),
            blocks: watched.blocks,
            edges: watched.edges,
            exact_edges: watched.exact_edges,
        }
    }
}

/// Nanoseconds of an invocation on a CPU, as far as they were measured.
#[derive(serde::Serialize)]
struct Gain {
    function: String,
    before: Option<f64>,
    after: Option<f64>,
}

pub(super) fn run(args: &AutoArgs) -> Result<ExitCode> {
    super::on_running_kernel(args.vmlinux.as_deref(), |kernel, running| {
        let device = Device::open()?;
        super::undo::refuse_installed()?;
        host::interrupt::catch()?;
        super::cache::ask()?;
        let auto = Auto { args, kernel, running, device };
        let roots = args.roots.choose(kernel, running)?;
        let (plan, counted) = auto.planned(&roots)?;
        auto.install(plan, counted)
    })
}

/// The settings of the command, and the kernel that it works on.
struct Auto<'k, 'd> {
    args: &'k AutoArgs,
    kernel: &'k LinkedKernel<'d>,
    running: &'k RunningKernel,
    device: Device,
}

/// A group that has been laid out.
struct PlannedGroup<'k, 'd> {
    /// The roots that were entered.
    roots: Vec<usize>,
    group: Group<'k, 'd>,
    order: Vec<u32>,
    /// Numbers of its hot blocks, ascending.
    hot: Vec<usize>,
}

impl<'k, 'd> Auto<'k, 'd> {
    /// Counts and lays out, then repeats both in the laid-out code.
    fn planned(&self, roots: &[usize]) -> Result<(PlannedGroup<'k, 'd>, Vec<Counted>)> {
        let Auto { kernel, running, device, args } = self;
        let mut watch = Watch {
            kernel,
            running,
            device,
            time: Duration::try_from_secs_f64(args.time).context("--time")?,
            told: &mut |what| note!("{what}"),
        };
        let mut watched = watch.from_roots(roots, args.depth)?;
        super::watch::print_counted(&watched)?;
        let mut counted = vec![Counted::new(&watched)];
        let mut plan = self.plan(&watched.profile, roots)?;
        if !args.once {
            watched = watch.again(&plan.group, &plan.order, &plan.roots)?;
            super::watch::print_counted(&watched)?;
            counted.push(Counted::new(&watched));
            let first = plan;
            plan = self.plan(&watched.profile, &first.roots)?;
            print_again(&first, &plan)?;
        }
        if let Some(path) = &args.output {
            host::output::write(path, watched.profile.to_json().as_bytes())?;
        }
        Ok((plan, counted))
    }

    fn plan(&self, profile: &Profile, roots: &[usize]) -> Result<PlannedGroup<'k, 'd>> {
        let threshold = self.args.threshold / 100.0;
        let roots = entered(self.kernel, profile, roots)?;
        let group = Group::new(
            self.kernel,
            self.running,
            &hot::groups(self.kernel, profile, &roots, threshold),
        )?;
        let limit = hot::least_limit(self.kernel, profile, &roots, threshold);
        Ok(PlannedGroup {
            order: super::apply::order(&group, Some(profile), self.args.algorithm, 0)?,
            hot: hot::blocks(&group, profile, limit),
            group,
            roots,
        })
    }

    fn install(&self, plan: PlannedGroup<'_, '_>, counted: Vec<Counted>) -> Result<ExitCode> {
        let Auto { running, device, args, .. } = self;
        let PlannedGroup { roots, group, order, hot } = plan;
        // A trial leaves the kernel as it is, and needs no name of its own.
        let turn = match args.dry_run {
            true => None,
            false => Some(Turn::wait(&mut |what| note!("{what}"))?),
        };
        let prepared = install::prepare(&group, *running, &order, &[], &install::free_name()?)?;
        let cache = super::cache::geometry()?;
        let before = super::cache::draw_original(&group, running, cache, &hot)?;
        let is_hot = |n: usize| hot.binary_search(&n).is_ok();
        let chunks = chunks::chunks(&group, &prepared.module.pieces, &is_hot);
        outln!("{}", chunks::Table(&chunks))?;
        let mut report = Report {
            kernel: &self.kernel.build_id.0,
            algorithm: args.algorithm.to_string(),
            lines: [before.total(); 2],
            without_room: [before.without_room(); 2],
            counted,
            roots: roots.iter().map(|&root| Gain::unmeasured(self.kernel, root)).collect(),
            functions: chunks,
        };
        let Some(turn) = turn else {
            super::apply::print_plan(&group, running, &prepared)?;
            report.write(args)?;
            return Ok(ExitCode::SUCCESS);
        };
        let times_before = self.measure(&roots)?;
        let text = prepared.install(&group, device, &turn)?.text;
        drop(turn);
        let place = |&n: &usize| {
            (text + u64::from(prepared.module.pieces[n].0), prepared.module.pieces[n].1)
        };
        let after = Occupancy::of(cache, hot.iter().map(place));
        (report.lines[1], report.without_room[1]) = (after.total(), after.without_room());
        let printed = super::apply::print_summary(&group, &prepared)
            .and_then(|()| outln!("and as they are now:\n{after}"));
        let reported = printed.and_then(|()| self.measure(&roots)).and_then(|times_after| {
            for ((gain, before), after) in
                report.roots.iter_mut().zip(&times_before).zip(&times_after)
            {
                (gain.before, gain.after) = (before.mean_on_cpu(), after.mean_on_cpu());
            }
            print_gain(&report.roots)?;
            report.write(args)
        });
        // An error or an interrupt: the message names what stays installed.
        if let Err(error) = reported {
            take_back(device, &prepared)?;
            return Err(error);
        }
        wait_for_the_user(device, &prepared)
    }

    fn measure(&self, roots: &[usize]) -> Result<Vec<FunctionTime>> {
        note!("measuring {} roots for {} s", roots.len(), self.args.time);
        let time = Duration::try_from_secs_f64(self.args.time).context("--time")?;
        let times = super::time::measure(self.kernel, self.running, &self.device, roots, time)?;
        if times.missed > 0 {
            note!(
                "{} invocations were not followed: too many were under way at once",
                times.missed
            );
        }
        Ok(times.functions)
    }
}

impl Report<'_> {
    fn write(&self, args: &AutoArgs) -> Result<()> {
        let Some(path) = &args.report else { return Ok(()) };
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        host::output::write(path, text.as_bytes())
    }
}

impl Gain {
    fn unmeasured(kernel: &LinkedKernel<'_>, root: usize) -> Gain {
        Gain {
            function: kernel.function_name(&kernel.functions[root]).to_owned(),
            before: None,
            after: None,
        }
    }
}

/// The roots that were entered while they were counted. A thread's main loop is on many stacks but
/// is never entered.
fn entered(kernel: &LinkedKernel<'_>, profile: &Profile, roots: &[usize]) -> Result<Vec<usize>> {
    let entries = |&&index: &&usize| {
        let entry = kernel.link_address(kernel.functions[index].at);
        profile.blocks.get(&entry).is_some_and(|&count| count > 0)
    };
    let found: Vec<usize> = roots.iter().filter(entries).copied().collect();
    ensure!(
        !found.is_empty(),
        "no root was called while it was counted: run this under the load that it is meant for, or \
         count longer (--time)"
    );
    Ok(found)
}

fn print_again(first: &PlannedGroup<'_, '_>, second: &PlannedGroup<'_, '_>) -> Result<()> {
    outln!(
        "counted once more in the optimized code, entered by the roots only: {} functions of {}, \
         {} hot blocks of {}",
        second.group.members.len(),
        first.group.members.len(),
        second.hot.len(),
        first.hot.len()
    )
}

fn print_gain(roots: &[Gain]) -> Result<()> {
    let mut table = TextTable::of([
        Column::right("before").fixed(12),
        Column::right("after").fixed(12).gap(1),
        Column::right("change").fixed(8).gap(1),
        Column::left(
            "root (ns of an invocation on a CPU, before and after; each with the cost of measuring)",
        ),
    ]);
    for Gain { function, before, after } in roots {
        table.push(match (before, after) {
            (Some(before), Some(after)) => vec![
                format!("{before:.0}"),
                format!("{after:.0}"),
                format!("{:>+7.1} %", 100.0 * (after / before - 1.0)),
                function.clone(),
            ],
            _ => {
                let missing = format!("{function}: was not called both times");
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
    let undone = super::undo::take_back(device, &prepared.id)?;
    outln!("{undone}")?;
    Ok(undone.exit_code())
}
