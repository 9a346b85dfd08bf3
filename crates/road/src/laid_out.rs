//! A layout that was made, and what speaks for and against it.
//!
//! Input: a layout, and the counts that it was made from. Output: its scores beside the original's,
//! what it leaves where it was, and the doubts. This module makes no layout.

use crate::ground::{Ground, JudgedLayout};
use crate::modules::{self, ModuleScore};
use crate::staying;
use anyhow::Result;
use image::Image;
use image::order::Layout;
use layout::Score;
use profile::Profile;
use profile::staying::StayingCode;
use replay::search::SearchedLayouts;
use serde_json::{Value, json};
use std::path::Path;

/// A layout, and what is known about it.
///
/// ```
/// use layout::Algorithm;
/// use profile::ProfileMerge;
/// use profile::collect::ExtraCounts;
/// use road::ground::Ground;
/// use road::laid_out::LaidOut;
///
/// let home = road::examples::home();
/// let kernel = home.path().join("vmlinux");
/// let image = image::vmlinux::read(&kernel)?;
/// let recordings = [home.path().join("loop.rec")];
/// let whole = execution::part::RecordingPart::WHOLE;
/// let profile =
///     road::counts::profile(&recordings, &image, &whole, ProfileMerge::Sum, ExtraCounts::None)?;
/// let ground = Ground::new(&image, &profile)?;
/// let made = ground.lay_out(Algorithm::default(), 1)?;
/// let laid_out = LaidOut::judge(made, None, &ground, &kernel, &image, &profile)?;
/// assert_eq!(laid_out.to_json()?["algorithm"], "ext-tsp");
/// # anyhow::Ok(())
/// ```
pub struct LaidOut {
    /// The layout.
    pub layout: Layout,
    /// Its score on the counts.
    pub score: Score,
    /// The layouts among which it was the best, if there were several.
    pub tried: Option<SearchedLayouts>,
    /// The original's score, what the counts cover, and the doubts.
    pub judged: JudgedLayout,
    /// The executed code that no layout moves.
    pub staying: StayingCode,
    /// The scores in each module.
    pub modules: Vec<ModuleScore>,
}

impl LaidOut {
    /// Judges a layout. `made`: the layout and its score on the counts of `ground`, which are those
    /// of `profile`. `kernel`: the tree or the vmlinux of `image`.
    ///
    /// # Errors
    /// The layout is by an unknown algorithm, or the kernel cannot be read.
    pub fn judge(
        made: (Layout, Score),
        tried: Option<SearchedLayouts>,
        ground: &Ground<'_>,
        kernel: &Path,
        image: &Image,
        profile: &Profile,
    ) -> Result<LaidOut> {
        let (layout, score) = made;
        let mut judged = ground.judge(layout.algorithm.parse()?, &score)?;
        judged.doubts.extend(match staying::hot_code_that_stays(kernel, &layout) {
            Ok(doubt) => doubt,
            Err(error) => Some(format!("the kernel cannot be relinked as it is: {error:#}")),
        });
        let staying = staying::staying_code(kernel, image, profile)?;
        let modules = modules::scores(image, profile, &layout)?;
        Ok(LaidOut { layout, score, tried, judged, staying, modules })
    }

    /// All of it as JSON, without the order itself.
    ///
    /// # Errors
    /// A number cannot be written as JSON.
    pub fn to_json(&self) -> Result<Value> {
        let LaidOut { layout, score, judged, .. } = self;
        let mut document = json!({
            "kernel": layout.build_id,
            "algorithm": layout.algorithm,
            "seed": layout.seed,
            "profile": layout.profile,
            "runs": layout.runs.len(),
            "hot_runs": layout.hot,
            "scores": { "original": score_json(&judged.original), "layout": score_json(score) },
            "coverage": judged.coverage,
            "staying": self.staying,
            "warnings": judged.doubts,
        });
        if !self.modules.is_empty() {
            let row = |of: &ModuleScore| {
                json!({
                    "module": of.module,
                    "original": score_json(&of.original),
                    "layout": score_json(&of.layout),
                })
            };
            document["modules"] = self.modules.iter().map(row).collect();
        }
        if let Some(tried) = &self.tried {
            document["search"] = serde_json::to_value(tried)?;
        }
        Ok(document)
    }
}

fn score_json(score: &Score) -> Value {
    json!({
        "ext_tsp": score.ext_tsp,
        "taken_branches": score.taken_branches as f64,
        "taken_jumps": score.taken_jumps as f64,
        "fall_throughs": score.fall_throughs as f64,
        "lines": score.lines,
        "pages": score.pages,
    })
}
