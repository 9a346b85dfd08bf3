//! `kernlane layout`: makes an order from a profile.
//!
//! Input: recordings or profiles and their kernel. Output: a layout, and its score.

use crate::command::profile::ProfileInputArgs;
use crate::command::sampling::SamplingArgs;
use ::layout::Algorithm;
use anyhow::{Result, bail, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use host::note;
use host::out;
use host::outln;
use host::output;
use host::progress::Progress;
use image::{Image, vmlinux};
use road::counts::extra_counts;
use road::ground::{Ground, JudgedLayout};
use road::laid_out::LaidOut;
use road::modules::{self, ModuleScore};
use road::search::{LayoutCandidate, LayoutSearch, SearchObjective};
use sim::MachineModel;
use std::path::PathBuf;
use std::process::ExitCode;

/// Lay the kernel's blocks out for recordings
///
/// Writes the order to a file that `kernlane relink` and `kernlane replay` take. Prints the score
/// of the order on the same counts, beside the original's score.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane layout net.rec --algorithm ext-tsp -o net.kll
  kernlane layout net.rec files.rec --merge average -a packed --tries 10 -o both.kll
  kernlane layout net.rec --tries 8 --objective time --machine zen4 -o fastest.kll")]
pub struct LayoutArgs {
    #[command(flatten)]
    pub input: ProfileInputArgs,

    /// The layout algorithm; docs/algorithms/ has a page for each
    #[arg(long, short, default_value_t = Algorithm::default(), value_parser = algorithms())]
    pub algorithm: Algorithm,

    /// Seed of the random orders, and of the search of `packed`
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// The first is --seed
    #[command(flatten)]
    pub tries: TriesArgs,

    /// The machine on which --tries replays
    #[arg(long, short, value_name = "NAME|FILE.toml", default_value = "server-32k")]
    pub machine: String,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    #[command(flatten)]
    pub padding: CallPaddingArgs,

    /// Where to write the layout
    #[arg(long, short, value_name = "FILE.kll")]
    pub output: PathBuf,

    /// Print the scores as JSON
    #[arg(long)]
    pub json: bool,
}

/// Whether functions that move keep the no-ops in front of their entries.
#[derive(Args)]
pub struct CallPaddingArgs {
    /// Leave out the call padding of functions that move, for a kernel that never boots with
    /// retbleed=stuff
    #[arg(long)]
    pub drop_call_padding: bool,
}

impl CallPaddingArgs {
    /// Notes the wish in an image that was just read.
    pub fn apply(&self, image: &mut Image) {
        if self.drop_call_padding {
            image.drop_call_padding();
        }
    }
}

/// Reads the name of an algorithm; help, man pages and completions list the names.
pub(crate) fn algorithms() -> impl TypedValueParser<Value = Algorithm> {
    PossibleValuesParser::new(Algorithm::ALL.map(Algorithm::name))
        .try_map(|name| name.parse::<Algorithm>())
}

/// The layouts that are tried, and what decides between them.
#[derive(Args)]
pub struct TriesArgs {
    /// Make this number of layouts, replay the recordings over each, and take the best; --objective
    /// says which layouts, and which of them is the best
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=100)
    )]
    pub tries: u64,

    /// What --tries searches for
    #[arg(long, value_enum, default_value_t = ObjectiveArg::Misses, value_name = "OBJECTIVE")]
    pub objective: ObjectiveArg,
}

/// The value of `--objective`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ObjectiveArg {
    /// The algorithm with N seeds: the fewest L1I misses of kernel and user
    Misses,
    /// The algorithm, the other algorithms, then further seeds, on a machine with an out-of-order
    /// core: the least time of the kernel. A layout must be ahead of those before it by more than
    /// the 95 % interval of its lead. `optimize` puts all algorithms that are named first, and
    /// makes one kernel
    Time,
}

impl TriesArgs {
    /// What they search for.
    ///
    /// # Errors
    /// There is nothing to choose from.
    pub(crate) fn objective(&self) -> Result<SearchObjective> {
        match self.objective {
            ObjectiveArg::Misses => Ok(SearchObjective::Misses),
            ObjectiveArg::Time => {
                ensure!(
                    self.tries > 1,
                    "--objective time takes the fastest of several layouts: say how many with \
                     --tries"
                );
                Ok(SearchObjective::Time)
            }
        }
    }
}

pub(crate) fn run(args: &LayoutArgs) -> Result<ExitCode> {
    let search = wanted_search(args)?;
    let kernel = args.input.kernel()?;
    let mut image = vmlinux::read(&vmlinux::path(&kernel))?;
    args.padding.apply(&mut image);
    // A search replays recordings, and does not know yet where a layout puts modules.
    if search.is_none() {
        modules::attach(&mut image, &kernel, &args.input.counted.recordings)?;
    }
    let profile = args.input.profile(&image, extra_counts(&[args.algorithm]))?;
    let ground = Ground::new(&image, &profile)?;
    let (layout, score, tried) = match search {
        None => {
            let _progress = Progress::new(format!("laying out by {}", args.algorithm));
            let (layout, score) = ground.lay_out(args.algorithm, args.seed)?;
            (layout, score, None)
        }
        Some(WantedSearch { candidates, objective, machine }) => {
            let search = LayoutSearch {
                candidates: &candidates,
                objective,
                kernel: &kernel,
                image: &image,
                machine,
                recordings: &args.input.counted.recordings,
                part: &args.input.counted.part.part()?,
                sampling: args.sampling.sampling()?,
            };
            let (layout, score, tried) = search.run(&ground)?;
            (layout, score, Some(tried))
        }
    };
    output::write(&args.output, layout.to_text().as_bytes())?;
    let made = LaidOut::judge((layout, score), tried, &ground, &kernel, &image, &profile)?;
    print(args, &made)?;
    made.judged.doubts.iter().for_each(|doubt| note!("warning: {doubt}"));
    Ok(ExitCode::SUCCESS)
}

/// The layouts to try, and how they are compared.
struct WantedSearch {
    candidates: Vec<LayoutCandidate>,
    objective: SearchObjective,
    machine: MachineModel,
}

/// The search that the options ask for; `None`: one layout is made. Checks that there are several
/// layouts, that the machine can tell which is best, and that all inputs can be replayed.
fn wanted_search(args: &LayoutArgs) -> Result<Option<WantedSearch>> {
    let (objective, tries) = (args.tries.objective()?, args.tries.tries);
    args.sampling.sampling()?;
    if tries == 1 {
        return Ok(None);
    }
    let candidates = match objective {
        SearchObjective::Misses => {
            ensure!(
                args.algorithm.depends_on_seed(),
                "{} gives the same layout for every seed: leave --tries out, or compare it with \
                 other algorithms by --objective time",
                args.algorithm
            );
            LayoutCandidate::seeds(args.algorithm, args.seed, tries)
        }
        SearchObjective::Time => LayoutCandidate::algorithms(&[args.algorithm], args.seed, tries),
    };
    let machine = machines::find(&args.machine)?.model;
    objective.check(&machine)?;
    if let Some(other) = args.input.counted.recordings.iter().find(|path| !path.is_dir()) {
        bail!(
            "{}: no recording; --tries replays the recordings that the counts come from",
            other.display()
        );
    }
    Ok(Some(WantedSearch { candidates, objective, machine }))
}

fn print(args: &LayoutArgs, made: &LaidOut) -> Result<()> {
    let LaidOut { layout, score, judged, staying, .. } = made;
    let JudgedLayout { original, coverage, .. } = judged;
    let tried = made.tried.as_ref();
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&made.to_json()?)?)?;
        return Ok(());
    }
    if let Some(tried) = tried {
        outln!("{}", report::search::text(tried))?;
    }
    out!("{}", report::profile_coverage::text(coverage))?;
    out!("{}", report::staying_code::text(staying))?;
    outln!("{}: {} runs, {} of them hot", args.output.display(), layout.runs.len(), layout.hot)?;
    outln!(
        "{:<28} {:>16} {:>16} {:>9}",
        "score on these counts",
        "original",
        layout.algorithm,
        "change"
    )?;
    let row = |name: &str, before: f64, after: f64| {
        let change = 100.0 * (after / before.max(1.0) - 1.0);
        outln!("{name:<28} {before:>16.0} {after:>16.0} {change:>+8.1}%")
    };
    row("ext-TSP (higher is better)", original.ext_tsp, score.ext_tsp)?;
    row("taken branches and jumps", original.taken() as f64, score.taken() as f64)?;
    row("touched 64-byte lines", original.lines as f64, score.lines as f64)?;
    row("touched 4 KB pages", original.pages as f64, score.pages as f64)?;
    for ModuleScore { module, original, layout } in &made.modules {
        outln!("module {}", module.name)?;
        row("  taken branches and jumps", original.taken() as f64, layout.taken() as f64)?;
        row("  touched 64-byte lines", original.lines as f64, layout.lines as f64)?;
    }
    Ok(())
}
