//! Counts as files of other tools.
//!
//! Input: a profile and its kernel. Output: the text of a file. The formats are those of
//! [`exchange::FORMATS`]; [`crate::tables`] writes the tables of recordings.

use crate::ground::Ground;
use anyhow::{Context, Result, bail};
use exchange::{ExportSubject, FORMATS, Format, Make};
use layout::Algorithm;

/// The seed of the order in formats that carry one.
const SEED: u64 = 1;

/// The format of this name.
///
/// ```
/// assert_eq!(road::export::format("bolt")?.name, "bolt");
/// assert!(road::export::format("nosuch").is_err());
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// There is none.
pub fn format(name: &str) -> Result<&'static Format> {
    let found = FORMATS.iter().find(|format| format.name == name);
    found.with_context(|| format!("no format is called {name}"))
}

/// The text of a format that holds counts. `algorithm`: of the order in formats that carry one.
///
/// ```
/// use execution::part::RecordingPart;
/// use exchange::ExportSubject;
/// use layout::Algorithm;
/// use profile::ProfileMerge;
/// use profile::collect::ExtraCounts;
/// use road::{counts, export};
///
/// let home = road::examples::home();
/// let path = home.path().join("vmlinux");
/// let image = image::vmlinux::read(&path)?;
/// let recordings = [home.path().join("loop.rec")];
/// let (whole, sum) = (RecordingPart::WHOLE, ProfileMerge::Sum);
/// let profile = counts::profile(&recordings, &image, &whole, sum, ExtraCounts::None)?;
/// let subject = ExportSubject { image: &image, profile: &profile, path: &path };
/// let text = |name| export::counts(export::format(name)?, &subject, Algorithm::default());
/// assert_eq!(text("call-graph")?, "f g 200\n");
/// assert!(text("folded").is_err(), "it holds chains of calls");
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// The format holds something else, the profile is not of the image, or a tool of LLVM that the
/// format needs is missing.
pub fn counts(
    format: &Format,
    subject: &ExportSubject<'_>,
    algorithm: Algorithm,
) -> Result<String> {
    match format.make {
        Make::Counts(make) => make(subject),
        Make::Samples(make) => String::from_utf8(make(subject)?.contents)
            .with_context(|| format!("{} is not text", format.name)),
        Make::Order(make) => {
            let (layout, _) =
                Ground::new(subject.image, subject.profile)?.lay_out(algorithm, SEED)?;
            make(subject, &layout)
        }
        Make::Calls(_)
        | Make::Stacks(_)
        | Make::Instructions(_)
        | Make::OverTime(_)
        | Make::Profile(_)
        | Make::Tables => {
            bail!("{} holds more than counts: give a recording", format.name)
        }
    }
}
