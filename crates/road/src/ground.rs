//! A kernel with its counts, from which layouts are made.
//!
//! Input: an image and a profile. Output: layouts, each checked and scored, and why a layout may
//! lose. This module writes no file.

use anyhow::{Context, Result, bail};
use host::note;
use image::Image;
use image::order::Layout;
use image::sealed;
use layout::{Algorithm, Graph, Score};
use profile::Profile;
use profile::coverage::{self, ProfileCoverage};
use profile::graph::{self, LayoutInput};

/// An image with its counts, ready to be laid out any number of times.
///
/// ```
/// use execution::part::RecordingPart;
/// use layout::Algorithm;
/// use profile::ProfileMerge;
/// use profile::collect::ExtraCounts;
/// use road::ground::Ground;
///
/// let home = road::examples::home();
/// let image = image::vmlinux::read(&home.path().join("vmlinux"))?;
/// let recordings = [home.path().join("loop.rec")];
/// let (whole, sum) = (RecordingPart::WHOLE, ProfileMerge::Sum);
/// let profile = road::counts::profile(&recordings, &image, &whole, sum, ExtraCounts::None)?;
///
/// let ground = Ground::new(&image, &profile)?;
/// assert_eq!(ground.graph().sizes.len(), image.blocks.len());
/// let (layout, score) = ground.lay_out(Algorithm::Reverse, 1)?;
/// assert_eq!((layout.algorithm.as_str(), layout.build_id), ("reverse", image.build_id.clone()));
/// let judged = ground.judge(Algorithm::Reverse, &score)?;
/// assert!(judged.original.taken() < score.taken());
/// assert!(judged.doubts.iter().any(|doubt| doubt.starts_with("reverse takes")));
/// # anyhow::Ok(())
/// ```
pub struct Ground<'a> {
    image: &'a Image,
    profile: &'a Profile,
    movable: LayoutInput,
    profile_hash: String,
}

/// What is known about a layout before it is tried.
pub struct JudgedLayout {
    /// The score of the original.
    pub original: Score,
    /// How much of the kernel the counts cover.
    pub coverage: ProfileCoverage,
    /// Why the layout is likely to lose, in sentences.
    pub doubts: Vec<String>,
}

impl<'a> Ground<'a> {
    /// The kernel `image` with the counts of `profile`.
    ///
    /// # Errors
    /// The profile is not of the image.
    pub fn new(image: &'a Image, profile: &'a Profile) -> Result<Self> {
        let movable = graph::movable(image, profile)?;
        layout::validate(&movable.graph).context("the counts do not form a valid graph")?;
        let profile_hash = sealed::sha256(profile.to_json().as_bytes());
        Ok(Self { image, profile, movable, profile_hash })
    }

    /// The blocks that a layout may move, with their counts.
    pub fn graph(&self) -> &Graph {
        &self.movable.graph
    }

    /// The layout by `algorithm`, checked, and its score on these counts. `seed`: of the random
    /// orders and of searches.
    ///
    /// # Errors
    /// The profile lacks counts that the algorithm needs, or the algorithm fails.
    pub fn lay_out(&self, algorithm: Algorithm, seed: u64) -> Result<(Layout, Score)> {
        let graph = self.graph();
        if algorithm.uses_temporal_edges() && graph.temporal_edges.is_empty() {
            bail!(
                "{algorithm} needs temporal-relationship edges, and this profile has none: give \
                 the recording, or a profile that counted them"
            );
        }
        if algorithm.lacks_what_ran_together(graph) {
            note!(
                "the profile has counts only: {algorithm} orders as ext-tsp-global does; \
                 recordings say what runs together"
            );
        }
        let ordered = layout::order(graph, algorithm, seed)
            .with_context(|| format!("{algorithm} cannot lay this kernel out"))?;
        layout::check(graph, &ordered.order)
            .with_context(|| format!("{algorithm} gave an order that breaks a rule"))?;
        let score = layout::score(graph, &ordered.order);
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

    /// What speaks against a layout by `algorithm` that has this `score`.
    ///
    /// # Errors
    /// The original or the usual algorithm cannot lay this kernel out.
    pub fn judge(&self, algorithm: Algorithm, score: &Score) -> Result<JudgedLayout> {
        let (_, original) = self.lay_out(Algorithm::Original, 0)?;
        let coverage = coverage::coverage(self.image, self.profile);
        let usual = match algorithm == Algorithm::default() {
            true => saved(&original, score),
            false => saved(&original, &self.lay_out(Algorithm::default(), 0)?.1),
        };
        let mut doubts = coverage.doubts(usual);
        doubts.extend(loses_on_its_own_counts(algorithm, &original, score));
        Ok(JudgedLayout { original, coverage, doubts })
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
