//! `kernlane layout`: makes an order from a profile.
//!
//! Input: recordings or profiles and their kernel. Output: a layout, and its score.

pub(crate) mod search;

use crate::command::profile::ProfileInputArgs;
use ::layout::{Algorithm, Graph, Score};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use host::note;
use host::out;
use host::outln;
use host::output;
use host::progress::Progress;
use image::order::Layout;
use image::sealed;
use image::{Image, vmlinux};
use profile::Profile;
use profile::collect::ExtraCounts;
use profile::coverage::{self, ProfileCoverage};
use profile::graph::{self, LayoutInput};
use replay::search::TriedLayouts;
use search::{LayoutSearch, TriesArgs};
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

/// What some algorithms need of a profile that not every profile has.
pub(crate) fn extra_counts(algorithms: &[Algorithm]) -> ExtraCounts {
    match algorithms.iter().any(|algorithm| algorithm.uses_temporal_edges()) {
        true => ExtraCounts::TemporalEdges,
        false => ExtraCounts::None,
    }
}

/// An image with its counts, ready to be laid out any number of times.
pub(crate) struct Ground<'a> {
    image: &'a Image,
    movable: LayoutInput,
    profile_hash: String,
}

impl<'a> Ground<'a> {
    pub(crate) fn new(image: &'a Image, profile: &Profile) -> Result<Self> {
        let movable = graph::movable(image, profile)?;
        ::layout::validate(&movable.graph).context("the counts do not form a valid graph")?;
        Ok(Self { image, movable, profile_hash: sealed::sha256(profile.to_json().as_bytes()) })
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.movable.graph
    }

    /// The layout by `algorithm`, checked, and its score on these counts.
    pub(crate) fn lay_out(&self, algorithm: Algorithm, seed: u64) -> Result<(Layout, Score)> {
        let graph = self.graph();
        if algorithm.uses_temporal_edges() && graph.temporal_edges.is_empty() {
            bail!(
                "{algorithm} needs temporal-relationship edges, and this profile has none: give \
                 the recording, or a profile from `kernlane \
                 profile --temporal-edges`"
            );
        }
        if algorithm.lacks_what_ran_together(graph) {
            note!(
                "the profile has counts only: {algorithm} orders as ext-tsp-global does; recordings \
                 say what runs together"
            );
        }
        let ordered = ::layout::order(graph, algorithm, seed)
            .with_context(|| format!("{algorithm} cannot lay this kernel out"))?;
        ::layout::check(graph, &ordered.order)
            .with_context(|| format!("{algorithm} gave an order that breaks a rule"))?;
        let score = ::layout::score(graph, &ordered.order);
        let profile = if algorithm.uses_counts() { &self.profile_hash } else { "none" };
        let layout = self.movable.layout(
            self.image,
            &ordered.order,
            ordered.hot,
            algorithm.name(),
            seed,
            profile,
        );
        Ok((layout, score))
    }
}

pub(crate) fn run(args: &LayoutArgs) -> Result<ExitCode> {
    check_tries(args)?;
    let kernel = args.input.kernel()?;
    let mut image = vmlinux::read(&vmlinux::path(&kernel))?;
    args.padding.apply(&mut image);
    let profile = args.input.profile(&image, extra_counts(&[args.algorithm]))?;
    let ground = Ground::new(&image, &profile)?;
    let (_, original) = ground.lay_out(Algorithm::Original, 0)?;
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
                part: &args.input.counted.part,
            };
            let (layout, score, tried) = search.run(&ground)?;
            (layout, score, Some(tried))
        }
    };
    output::write(&args.output, layout.to_text().as_bytes())?;
    let coverage = coverage::coverage(&image, &profile);
    let saved = match args.algorithm == Algorithm::default() {
        true => saved(&original, &score),
        false => saved(&original, &ground.lay_out(Algorithm::default(), 0)?.1),
    };
    let mut doubts = coverage.doubts(saved);
    doubts.extend(loses_on_its_own_counts(args.algorithm, &original, &score));
    let made = MadeLayout { layout, score, original, tried, coverage, doubts };
    print(args, &made)?;
    made.doubts.iter().for_each(|doubt| note!("warning: {doubt}"));
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

/// The share of the original's taken branches and jumps that a layout saves on the same counts.
fn saved(original: &Score, score: &Score) -> f64 {
    1.0 - score.taken() as f64 / (original.taken() as f64).max(1.0)
}

/// A sentence when an order that no profile decides, such as `random`, is worse than the original.
fn loses_on_its_own_counts(
    algorithm: Algorithm,
    original: &Score,
    score: &Score,
) -> Option<String> {
    let more = -saved(original, score);
    (more > 0.0 && algorithm != Algorithm::default()).then(|| {
        format!(
            "{algorithm} takes {:.1} % more branches and jumps than the original on these counts",
            100.0 * more
        )
    })
}

/// A layout, and what is said of it.
struct MadeLayout {
    layout: Layout,
    score: Score,
    /// The score of the original.
    original: Score,
    tried: Option<TriedLayouts>,
    coverage: ProfileCoverage,
    /// Why the layout is likely to lose.
    doubts: Vec<String>,
}

fn print(args: &LayoutArgs, made: &MadeLayout) -> Result<()> {
    let MadeLayout { layout, score, original, coverage, .. } = made;
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
            "warnings": made.doubts,
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
