//! What studies of layouts share: recordings, profiles, layouts and results of the demo kernel, in
//! one directory.
//!
//! Input: a directory. Output: files in it. What exists is not made again, so an interrupted study
//! resumes.

use anyhow::{Context, Result};
use execution::part::RecordingPart;
use guest::{GuestKernel, ProcessorRequest, RecordingRequest, Workload};
use host::progress::Progress;
use host::{interrupt, output};
use image::{Image, vmlinux};
use kernlane_layout::Algorithm;
use lab::kernel::{self, Compiler};
use lab::made::make;
use profile::ProfileMerge;
use profile::collect::ExtraCounts;
use replay::ReplayLayout;
use replay::results::{ResultFile, ResultRow};
use road::ground::Ground;
use road::layout_file::LayoutFile;
use road::replayed::ReplayRequest;
use road::{counts, record};
use std::path::{Path, PathBuf};

/// The seed of the layouts.
const SEED: u64 = 1;

/// A directory of a study.
pub(crate) struct StudyDirectory {
    /// The demo kernel's tree.
    pub tree: PathBuf,
    /// The demo kernel.
    image: Image,
    directory: PathBuf,
}

/// Recordings or profiles whose counts become a profile.
pub(crate) struct Counted<'a> {
    /// Recordings (directories) and profiles.
    pub inputs: &'a [PathBuf],
    /// The part of each recording.
    pub part: RecordingPart,
    /// How the counts are put together.
    pub merge: ProfileMerge,
    /// What else is counted.
    pub extra: ExtraCounts,
}

impl<'a> Counted<'a> {
    /// Whole recordings or profiles, each of which weighs the same.
    pub(crate) fn averaged(inputs: &'a [PathBuf]) -> Counted<'a> {
        let (part, merge) = (RecordingPart::WHOLE, ProfileMerge::Average);
        Counted { inputs, part, merge, extra: ExtraCounts::None }
    }
}

impl StudyDirectory {
    /// Builds the demo kernel, and makes the directory. From now on an interrupt ends the study
    /// with an error.
    pub(crate) fn new(directory: &Path) -> Result<StudyDirectory> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("making {}", directory.display()))?;
        let tree = kernel::tree(Compiler::Gcc)?;
        let image = vmlinux::read(&vmlinux::path(&tree))?;
        interrupt::catch()?;
        Ok(StudyDirectory { tree, image, directory: directory.to_owned() })
    }

    /// A file of the study.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The recording `NAME.rec` of a workload on the demo kernel, in a guest like a machine if one
    /// is named, with or without data accesses. Returns its path.
    pub(crate) fn record(
        &self,
        name: &str,
        (like, data): (Option<&str>, bool),
        workload: impl FnOnce() -> Result<Workload>,
    ) -> Result<PathBuf> {
        let output = self.path(&format!("{name}.rec"));
        make(&output, || {
            lab::build_plugin()?;
            let kernel = GuestKernel::open(&self.tree, None)?;
            let like = like.map(machines::guest_like).transpose()?;
            let request = RecordingRequest {
                processor: ProcessorRequest { like, ..ProcessorRequest::default() },
                data,
                ..record::request(workload()?, kernel, &output)
            };
            record::record(&request, None).map(drop)
        })?;
        Ok(output)
    }

    /// The profile `NAME.klp`.
    pub(crate) fn profile(&self, name: &str, counted: &Counted<'_>) -> Result<()> {
        let output = self.path(&format!("{name}.klp"));
        make(&output, || {
            let Counted { inputs, part, merge, extra } = counted;
            let profile = counts::profile(inputs, &self.image, part, *merge, *extra)?;
            output::write(&output, profile.to_json().as_bytes())
        })
    }

    /// The layout `NAME.ALGORITHM.kll` for the profile `NAME.klp`. Returns its path.
    pub(crate) fn layout(&self, name: &str, algorithm: Algorithm) -> Result<PathBuf> {
        let output = self.path(&format!("{name}.{algorithm}.kll"));
        make(&output, || {
            let _progress = Progress::new(format!("laying out by {algorithm}"));
            let (inputs, whole) = ([self.path(&format!("{name}.klp"))], RecordingPart::WHOLE);
            let (sum, extra) = (ProfileMerge::Sum, ExtraCounts::None);
            let profile = counts::profile(&inputs, &self.image, &whole, sum, extra)?;
            let (layout, _) = Ground::new(&self.image, &profile)?.lay_out(algorithm, SEED)?;
            output::write(&output, layout.to_text().as_bytes())
        })?;
        Ok(output)
    }

    /// A layout of a file, with the addresses that relinking would give.
    pub(crate) fn placed(&self, file: &Path) -> Result<ReplayLayout> {
        LayoutFile::read(file)?.placed(Some(&self.tree), Some(&self.image))
    }

    /// The rows of a part of a recording under the original and under the layouts and maps in
    /// `files`, kept in `path`. `machines`: names and files of machines.
    pub(crate) fn replayed(
        &self,
        path: &Path,
        (recording, part): (&Path, RecordingPart),
        files: &[PathBuf],
        machines: &[String],
    ) -> Result<Vec<ResultRow>> {
        make(path, || {
            let machines = machines::models(machines)?;
            let mut layouts = vec![ReplayLayout::original()];
            for file in files {
                layouts.push(self.placed(file)?);
            }
            let replay = ReplayRequest::new(recording, &layouts, &machines);
            let rows = ReplayRequest { image: Some(&self.image), part, ..replay }.rows()?;
            output::write(path, ResultFile::new(rows).to_json()?.as_bytes())
        })?;
        Ok(ResultFile::read(path)?.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_counts_lays_out_and_replays_once() {
        let home = road::examples::home();
        let tree = home.path().join("vmlinux");
        let image = vmlinux::read(&tree).unwrap();
        let study = StudyDirectory { tree, image, directory: home.path().to_owned() };
        let recordings = [study.path("loop.rec"), study.path("other.rec")];
        study.profile("both", &Counted::averaged(&recordings)).unwrap();
        let layouts = [study.layout("both", Algorithm::Reverse).unwrap()];
        assert_eq!(layouts[0], study.path("both.reverse.kll"));

        let (results, machines) = (study.path("both.results"), ["server-32k".to_owned()]);
        let replayed = |until| {
            let part = (&*recordings[0], RecordingPart { from: 0.0, until });
            study.replayed(&results, part, &layouts, &machines).unwrap()
        };
        let rows = replayed(0.5);
        let found: Vec<&str> = rows.iter().map(|row| row.layout.as_str()).collect();
        assert_eq!(found, ["original", "both.reverse"]);
        assert_eq!(rows[0].conditions["part"], "0 to 0.5");
        assert_eq!(rows[0].functions[0].name, "f");
        // What exists is not made again.
        assert_eq!(replayed(1.0)[0].conditions["part"], "0 to 0.5");
    }
}
