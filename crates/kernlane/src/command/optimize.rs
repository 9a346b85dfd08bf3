//! `kernlane optimize`: the whole road, from a workload to a faster kernel and the proof.
//!
//! Input: a workload, and a built tree or a stock kernel. Output: a directory with the result of
//! each step, and a table.

use crate::command::layout::{CallPaddingArgs, TriesArgs, algorithms};
use crate::command::live::percent;
use crate::command::record::{self, ProcessorArgs, TimeLimitArgs};
use crate::command::replay::{simulation_scope, warn};
use crate::command::sampling::SamplingArgs;
use crate::command::workload::argument_help;
use ::layout::Algorithm;
use anyhow::{Context, Result, ensure};
use clap::Args;
use emit::kbuild::BuildTree;
use host::interrupt;
use host::note;
use host::out;
use host::outln;
use report::{rebuilt, text};
use road::guests::RecordedGuest;
use road::inlined::{InlinedOptimization, optimize_inlined};
use road::optimization::{Optimization, WeightedWorkload};
use road::optimize::optimize;
use road::optimize_live::{LiveOptimization, optimize_live};
use road::rebuild::{Rebuild, rebuild};
use road::workload;
use sim::MachineModel;
use std::path::PathBuf;
use std::process::ExitCode;
use trace::CpuCount;

/// Record a workload, lay the kernel out for it, relink, check, and measure the gain
///
/// Ends with a table: the original kernel, the prediction by replay, and the relinked kernel
/// recorded under the same workload. Of several workloads the layout is made for the average. The
/// output directory keeps the result of every step. A step whose result exists is not repeated.
///
/// With --rebuild, clang builds the kernel again with the profile of the recordings, and the layout
/// is made for that kernel; no step needs a processor that records branches. The table then has
/// the layout alone, the profile alone, and both.
///
/// With --inline, hot calls are gone from a second kernel: the code of their callees stands in
/// their place, and the layout is made for that kernel. The table has the layout alone, the inlined
/// calls alone, and both.
///
/// With --live, no kernel is built: a distribution's kernel is recorded in a guest, its hot
/// functions are replaced while it runs, as `kernlane live apply` does it, and it is recorded
/// again. This machine's own kernel stays as it is. It needs the kernel's headers, make, gcc and
/// objcopy.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane optimize net --tree ~/linux -o net.optimized
  kernlane optimize net --live -o net.live
  kernlane optimize net --inline --tree ~/linux -o net.inlined
  kernlane optimize net files web --rebuild --tree ~/linux -o fastest")]
pub struct OptimizeArgs {
    #[arg(help = argument_help(), required = true, value_name = "WORKLOAD")]
    pub workloads: Vec<String>,

    /// How often each workload counts in the average, in their order [default: once each]
    #[arg(long, value_name = "N,N…", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub weights: Vec<u32>,

    /// The directory in which the kernel was built (with --rebuild: is configured). It is only read
    #[arg(long, value_name = "DIR", required_unless_present = "live")]
    pub tree: Option<PathBuf>,

    #[command(flatten)]
    pub live: LiveArgs,

    /// Also build the kernel again with the profile of the recordings; needs a tree that is
    /// configured for clang, and need not be built
    #[arg(long)]
    pub rebuild: bool,

    /// Record once more with the code of small or hot callees in place of their calls, where it
    /// pays
    #[arg(long, conflicts_with = "rebuild")]
    pub inline: bool,

    /// Inline calls in a tree's kernel that can be livepatched
    #[arg(long, requires = "inline", conflicts_with = "live")]
    pub despite_livepatch: bool,

    /// With --rebuild: build with this sample profile, of an earlier version of the kernel for
    /// example, and say what share of the executed code it knows. With --live: replace functions by
    /// this profile of the kernel (.klp), of other workloads for example; with --inline: choose the
    /// calls by it
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,

    /// The directory for recordings, layouts, kernels and the report
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,

    /// A further option for the compiler when it builds with the profile, as one word
    /// (--compiler-option=-fsplit-machine-functions); may be given several times
    #[arg(long = "compiler-option", value_name = "OPTION", requires = "rebuild")]
    pub compiler_options: Vec<String>,

    /// A layout algorithm; may be given several times
    /// [default: ext-tsp; with --live or --inline ext-tsp-global]
    #[arg(long, short, value_name = "ALGORITHM", value_parser = algorithms())]
    pub layout: Vec<Algorithm>,

    /// A machine to simulate: a shipped one, or a file; may be given several times. Without --like
    /// and --cpu-model, each machine is simulated on recordings of a guest like it, if its file
    /// says how such a guest is made, else on those of the first such guest
    #[arg(
        long,
        short,
        value_name = "NAME|FILE.toml",
        default_values_t = ["zen4", "golden-cove", "server-32k"].map(str::to_owned)
    )]
    pub machine: Vec<String>,

    #[command(flatten)]
    pub padding: CallPaddingArgs,

    /// Where all randomness of the guest and of the layouts comes from
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    #[command(flatten)]
    pub tries: TriesArgs,

    /// CPUs of the guest, 1 to 8
    #[arg(long, value_name = "N", default_value_t = CpuCount::ONE, value_parser = record::cpus())]
    pub cpus: CpuCount,

    /// A variable for make, as given when the kernel was built
    #[arg(long = "make", value_name = "VAR=VALUE")]
    pub make: Vec<String>,

    #[command(flatten)]
    pub processor: ProcessorArgs,

    #[command(flatten)]
    pub time_limit: TimeLimitArgs,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// Also predict branches, on machines that describe a branch predictor
    #[arg(long)]
    pub branches: bool,

    /// Print the result rows as JSON, as `kernlane report` takes them
    #[arg(long)]
    pub json: bool,
}

/// A kernel whose functions are replaced while it runs.
#[derive(Args)]
pub struct LiveArgs {
    /// Replace the hot functions of a stock kernel that runs in a guest; nothing is built but
    /// Kernlane's kernel module
    #[arg(long, conflicts_with_all = ["tree", "rebuild", "make", "tries", "drop_call_padding"])]
    pub live: bool,

    /// The kernel to boot, a vmlinuz [default: the running kernel's in /boot]
    #[arg(long, value_name = "FILE", requires = "live")]
    pub kernel: Option<PathBuf>,

    /// Its vmlinux; by default where distributions put it
    #[arg(long, value_name = "FILE", requires = "live")]
    pub vmlinux: Option<PathBuf>,

    /// The headers with which its modules are compiled; by default where distributions put them
    #[arg(long, value_name = "DIR", requires = "live")]
    pub headers: Option<PathBuf>,

    /// Replace the hottest functions: the fewest that hold this share of the code that was
    /// executed
    #[arg(long, value_name = "PERCENT", default_value_t = 99.5, requires = "live",
        value_parser = percent)]
    pub share: f64,
}

impl LiveArgs {
    fn boot_image(&self) -> Result<PathBuf> {
        const RELEASE: &str = "/proc/sys/kernel/osrelease";
        match &self.kernel {
            Some(kernel) => Ok(kernel.clone()),
            None => {
                let release = std::fs::read_to_string(RELEASE).context(RELEASE)?;
                Ok(PathBuf::from(format!("/boot/vmlinuz-{}", release.trim())))
            }
        }
    }
}

/// The road: record → attribute → order → place, emit → check → replay → report.
pub(crate) fn run(args: &OptimizeArgs) -> Result<ExitCode> {
    interrupt::catch()?;
    let machines: Vec<MachineModel> = machines::models(&args.machine)?;
    let scope = simulation_scope(args.branches, &machines)?;
    let request = args.processor.request()?;
    let guests = match request.like.is_some() || request.cpu_model.is_some() {
        true => vec![RecordedGuest::new(request, machines)],
        false => RecordedGuest::like_each(&args.machine, &request.append)?,
    };
    let tree = match &args.tree {
        Some(tree) => tree.clone(),
        None => args.live.boot_image()?,
    };
    let optimization = Optimization {
        workloads: args.weighted_workloads()?,
        tree: tree.clone(),
        output: args.output.clone(),
        guests: guests.clone(),
        scope,
        algorithms: args.algorithms(),
        seed: args.seed,
        tries: args.tries.tries,
        objective: args.tries.objective()?,
        drop_call_padding: args.padding.drop_call_padding,
        cpus: args.cpus,
        make: args.make.clone(),
        time_limit: args.time_limit.duration(),
        sampling: args.sampling.sampling()?,
    };
    let is_relinked = !args.rebuild && !args.live.live && !args.inline;
    ensure!(
        args.profile.is_none() || !is_relinked,
        "--profile is for --rebuild, --inline and --live: a layout is made from the recordings"
    );
    let optimized = if args.live.live {
        optimize_live(LiveOptimization {
            optimization,
            vmlinux: args.live.vmlinux.clone(),
            headers: args.live.headers.clone(),
            share: args.live.share / 100.0,
            inline: args.inline,
            profile: args.profile.clone(),
        })?
    } else if args.inline {
        optimize_inlined(InlinedOptimization {
            optimization,
            profile: args.profile.clone(),
            despite_livepatch: args.despite_livepatch,
        })?
    } else if args.rebuild {
        rebuild(Rebuild {
            optimization,
            profile: args.profile.clone(),
            compiler_options: args.compiler_options.clone(),
        })?
    } else {
        optimize(optimization)?
    };
    if args.json {
        out!("{}", optimized.results.to_json()?)?;
    } else {
        let several = args.rebuild || args.inline && !args.live.live;
        let text = if several { rebuilt::text } else { text::comparisons };
        out!("{}", text(&optimized.comparisons))?;
        outln!("\nthe report is {}", optimized.page.display())?;
    }
    warn(&optimized.losses);
    if is_relinked && BuildTree::open(&tree, &args.make)?.has_option("CONFIG_CC_IS_CLANG=y") {
        note!(
            "clang built this tree: with --rebuild it also gets the profile. Of the demo kernel's \
             time under `net` on zen4, the layout alone saves 6 %, both save 22 %"
        );
    }
    if let [guest] = &guests[..] {
        record::warn_unlike(&args.first_recording(guest)?, &args.machine)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl OptimizeArgs {
    fn algorithms(&self) -> Vec<Algorithm> {
        // Inlined code is laid out with the code around it only by an algorithm that knows no
        // functions.
        match (&self.layout[..], self.live.live || self.inline) {
            ([], true) => vec![Algorithm::ExtTspGlobal],
            ([], false) => vec![Algorithm::default()],
            (named, _) => named.to_vec(),
        }
    }

    /// The recording of the first workload on the original kernel.
    fn first_recording(&self, guest: &RecordedGuest) -> Result<PathBuf> {
        let workload = workload::open(&self.workloads[0])?.name;
        let recording =
            guest.recording("original", (self.workloads.len() > 1).then_some(&*workload));
        let is_twofold = self.rebuild || self.inline && !self.live.live;
        let road = if is_twofold { self.output.join("original") } else { self.output.clone() };
        Ok(road.join(recording))
    }

    fn weighted_workloads(&self) -> Result<Vec<WeightedWorkload>> {
        let weights = match self.weights.is_empty() {
            true => vec![1; self.workloads.len()],
            false => self.weights.clone(),
        };
        ensure!(
            weights.len() == self.workloads.len(),
            "--weights has {} numbers for {} workloads",
            weights.len(),
            self.workloads.len()
        );
        let workloads = self.workloads.iter().zip(weights);
        Ok(workloads
            .map(|(workload, weight)| WeightedWorkload { workload: workload.clone(), weight })
            .collect())
    }
}
