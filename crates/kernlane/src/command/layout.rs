//! `kernlane layout`: makes an order from a profile.
//!
//! Input: recordings or profiles and their kernel. Output: a layout, and its score.

use crate::command::profile::ProfileInputArgs;
use ::layout::{Algorithm, Score};
use anyhow::{Result, bail, ensure};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use host::note;
use host::out;
use host::outln;
use host::output;
use host::progress::Progress;
use image::order::Layout;
use image::{Image, vmlinux};
use profile::staying::StayingCode;
use replay::search::TriedLayouts;
use road::counts::extra_counts;
use road::ground::{Ground, JudgedLayout};
use road::search::LayoutSearch;
use road::staying;
use std::path::PathBuf;
use std::process::ExitCode;

/// Lay the kernel's blocks out for recordings
///
/// Writes the order to a file that `kernlane relink` and `kernlane replay` take. Prints the score
/// of the order on the same counts, beside the original's score.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane layout net.rec --algorithm ext-tsp -o net.kll
  kernlane layout net.rec files.rec --merge average -a packed --tries 10 -o both.kll")]
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

/// The seeds that are tried.
#[derive(Args)]
pub struct TriesArgs {
    /// Make the layout with this number of seeds, replay the recordings over each layout, and take
    /// the one with the fewest L1I misses of kernel and user
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=100)
    )]
    pub tries: u64,
}

pub(crate) fn run(args: &LayoutArgs) -> Result<ExitCode> {
    check_tries(args)?;
    let kernel = args.input.kernel()?;
    let mut image = vmlinux::read(&vmlinux::path(&kernel))?;
    args.padding.apply(&mut image);
    let profile = args.input.profile(&image, extra_counts(&[args.algorithm]))?;
    let ground = Ground::new(&image, &profile)?;
    let (layout, score, tried) = match args.tries.tries {
        1 => {
            let _progress = Progress::new(format!("laying out by {}", args.algorithm));
            let (layout, score) = ground.lay_out(args.algorithm, args.seed)?;
            (layout, score, None)
        }
        tries => {
            let search = LayoutSearch {
                algorithm: args.algorithm,
                seeds: args.seed..args.seed.saturating_add(tries),
                kernel: &kernel,
                image: &image,
                machine: machines::find(&args.machine)?.model,
                recordings: &args.input.counted.recordings,
                part: &args.input.counted.part.part()?,
            };
            let (layout, score, tried) = search.run(&ground)?;
            (layout, score, Some(tried))
        }
    };
    output::write(&args.output, layout.to_text().as_bytes())?;
    let mut judged = ground.judge(args.algorithm, &score)?;
    judged.doubts.extend(match staying::hot_code_that_stays(&kernel, &layout) {
        Ok(doubt) => doubt,
        Err(error) => Some(format!("the kernel cannot be relinked as it is: {error:#}")),
    });
    let staying = staying::staying_code(&kernel, &image, &profile)?;
    let made = MadeLayout { layout, score, tried, judged, staying };
    print(args, &made)?;
    made.judged.doubts.iter().for_each(|doubt| note!("warning: {doubt}"));
    Ok(ExitCode::SUCCESS)
}

/// Checks that several seeds give several layouts, and that all inputs can be replayed.
fn check_tries(args: &LayoutArgs) -> Result<()> {
    if args.tries.tries == 1 {
        return Ok(());
    }
    ensure!(
        args.algorithm.depends_on_seed(),
        "{} gives the same layout for every seed: leave --tries out",
        args.algorithm
    );
    match args.input.counted.recordings.iter().find(|path| !path.is_dir()) {
        Some(other) => bail!(
            "{}: no recording; --tries replays the recordings that the counts come from",
            other.display()
        ),
        None => Ok(()),
    }
}

/// A layout, and what the command prints about it.
struct MadeLayout {
    layout: Layout,
    score: Score,
    tried: Option<TriedLayouts>,
    judged: JudgedLayout,
    staying: StayingCode,
}

fn print(args: &LayoutArgs, made: &MadeLayout) -> Result<()> {
    let MadeLayout { layout, score, judged, staying, .. } = made;
    let JudgedLayout { original, coverage, doubts } = judged;
    let tried = made.tried.as_ref();
    if args.json {
        let mut document = serde_json::json!({
            "kernel": layout.build_id,
            "algorithm": layout.algorithm,
            "seed": layout.seed,
            "profile": layout.profile,
            "runs": layout.runs.len(),
            "hot_runs": layout.hot,
            "scores": { "original": score_json(original), "layout": score_json(score) },
            "coverage": coverage,
            "staying": staying,
            "warnings": doubts,
        });
        if let Some(tried) = tried {
            document["search"] = serde_json::to_value(tried)?;
        }
        outln!("{}", serde_json::to_string_pretty(&document)?)?;
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
    row("touched 4 KB pages", original.pages as f64, score.pages as f64)
}

fn score_json(score: &Score) -> serde_json::Value {
    serde_json::json!({
        "ext_tsp": score.ext_tsp,
        "taken_branches": score.taken_branches as f64,
        "taken_jumps": score.taken_jumps as f64,
        "fall_throughs": score.fall_throughs as f64,
        "lines": score.lines,
        "pages": score.pages,
    })
}
