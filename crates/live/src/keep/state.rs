//! The directory of what is kept: the groups, and what is known about them.
//!
//! Input: a directory. Output: small files, each written whole and on the disk before the call
//! returns. `kept.json` has the groups. `unproven` is there from before an installation at boot
//! until the groups have run for a while: a later boot that finds it knows that this one did not
//! end in order. `bad` says why the groups are not installed any more. `trusted` has the time at
//! which somebody said that they are good all the same. `learned.json` has what was sampled since
//! they were installed.

use super::kept::{self, Kept};
use crate::learn::Learned;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where the directory is by default.
pub const DIRECTORY: &str = "/var/lib/kernlane/keep";

const KEPT: &str = "kept.json";
const UNPROVEN: &str = "unproven";
const BAD: &str = "bad";
const TRUSTED: &str = "trusted";
const LEARNED: &str = "learned.json";

/// The directory.
#[derive(Clone, Debug)]
pub struct KeepState {
    directory: PathBuf,
}

impl KeepState {
    /// The state in this directory, which need not exist.
    pub fn new(directory: &Path) -> KeepState {
        KeepState { directory: directory.to_owned() }
    }

    /// The path of the groups' file.
    pub fn path(&self) -> PathBuf {
        self.directory.join(KEPT)
    }

    /// The groups; `None` if nothing is kept.
    ///
    /// # Errors
    /// The file cannot be read, or is not what was written.
    pub fn kept(&self) -> Result<Option<Kept>> {
        let path = self.path();
        let Some(text) = self.read(KEPT)? else { return Ok(None) };
        Kept::from_json(&text).map(Some).with_context(|| path.display().to_string())
    }

    /// Keeps these groups instead of the earlier ones. What was known about those is forgotten.
    ///
    /// # Errors
    /// The directory cannot be written to. The earlier groups stay.
    pub fn keep(&self, kept: &Kept) -> Result<()> {
        self.write(KEPT, &kept.to_json()?)?;
        // Were this interrupted, the new groups would not be installed.
        for name in [UNPROVEN, BAD, TRUSTED] {
            self.remove(name)?;
        }
        Ok(())
    }

    /// Forgets everything. False if nothing was kept.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn forget(&self) -> Result<bool> {
        let was_kept = self.remove(KEPT)?;
        for name in [UNPROVEN, BAD, TRUSTED, LEARNED] {
            self.remove(name)?;
        }
        Ok(was_kept)
    }

    /// Why the groups are not installed any more; `None` if they are good.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn bad(&self) -> Result<Option<String>> {
        let reason = self.read(BAD)?;
        Ok(reason.map(|reason| reason.trim_end().to_owned()))
    }

    /// From now on the groups are not installed any more.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn mark_bad(&self, reason: &str) -> Result<()> {
        self.write(BAD, &format!("{}\n", reason.trim_end()))?;
        self.remove(UNPROVEN)?;
        Ok(())
    }

    /// The groups may be installed again, whatever happened before. False if they were not marked.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn mark_good(&self) -> Result<bool> {
        // Times are whole seconds: a log that was written in this one is older than these words.
        self.write(TRUSTED, &format!("{}\n", kept::now() + 1))?;
        let unproven = self.remove(UNPROVEN)?;
        Ok(self.remove(BAD)? || unproven)
    }

    /// Since when a crash counts against the groups, in seconds since 1970: since they were kept,
    /// or since somebody said that they are good.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn trusted_since(&self, kept: &Kept) -> Result<u64> {
        let trusted = self.read(TRUSTED)?.and_then(|text| text.trim().parse().ok());
        Ok(trusted.unwrap_or(0).max(kept.since))
    }

    /// What was sampled since the groups were installed.
    ///
    /// # Errors
    /// The file cannot be read, or is not what was written.
    pub fn learned(&self) -> Result<Learned> {
        let Some(text) = self.read(LEARNED)? else { return Ok(Learned::default()) };
        let path = self.directory.join(LEARNED);
        Learned::from_json(&text).with_context(|| path.display().to_string())
    }

    /// Replaces what was sampled.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn set_learned(&self, learned: &Learned) -> Result<()> {
        self.write(LEARNED, &learned.to_json()?)
    }

    /// Says that the groups are about to be installed in this boot, and are not proven in it.
    ///
    /// # Errors
    /// The directory cannot be written to: install nothing.
    pub fn begin_trial(&self, boot: &str) -> Result<()> {
        self.write(UNPROVEN, &format!("{boot}\n"))
    }

    /// The groups have run for long enough, or were taken back in order. False if there was no
    /// trial.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn end_trial(&self) -> Result<bool> {
        self.remove(UNPROVEN)
    }

    /// Whether a trial of another boot than this one has not ended: that boot crashed, or somebody
    /// switched the machine off.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn has_crashed(&self, boot: &str) -> Result<bool> {
        // A file that was cut off is also one of another boot.
        Ok(self.read(UNPROVEN)?.is_some_and(|text| text.trim() != boot))
    }

    fn read(&self, name: &str) -> Result<Option<String>> {
        let path = self.directory.join(name);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        std::fs::create_dir_all(&self.directory)
            .with_context(|| format!("making {}", self.directory.display()))?;
        host::output::write(&self.directory.join(name), text.as_bytes())?;
        self.sync()
    }

    fn remove(&self, name: &str) -> Result<bool> {
        let path = self.directory.join(name);
        match std::fs::remove_file(&path) {
            Ok(()) => self.sync().map(|()| true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("removing {}", path.display())),
        }
    }

    /// A file's name is on the disk when its directory is.
    fn sync(&self) -> Result<()> {
        let directory = File::open(&self.directory).and_then(|directory| directory.sync_all());
        directory.with_context(|| format!("{}: not written to the disk", self.directory.display()))
    }
}

/// What names this boot and no other.
///
/// # Errors
/// The kernel does not say.
pub fn this_boot() -> Result<String> {
    const BOOT: &str = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(BOOT).with_context(|| format!("reading {BOOT}"))?;
    Ok(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keep::kept::{KeptGroup, KeptLayout};
    use crate::test_kernel::{F, tables, with};
    use layout::Algorithm;

    fn kept() -> Kept {
        with(tables(), |kernel| {
            let layout = KeptLayout {
                algorithm: Algorithm::Original,
                seed: 0,
                inline: false,
                call_costs: None,
            };
            let group = KeptGroup::new(kernel, &[F], &[], None, layout);
            Kept::now(kernel.build_id.clone(), vec![group]).unwrap()
        })
    }

    #[test]
    fn groups_are_kept_until_they_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let state = KeepState::new(&directory.path().join("a/keep"));
        assert_eq!(state.kept().unwrap(), None);
        assert!(!state.forget().unwrap());
        let kept = kept();
        state.keep(&kept).unwrap();
        assert_eq!(state.kept().unwrap(), Some(kept));
        assert!(state.forget().unwrap());
        assert_eq!(state.kept().unwrap(), None);
    }

    #[test]
    fn a_trial_that_did_not_end_was_a_crash_of_another_boot() {
        let directory = tempfile::tempdir().unwrap();
        let state = KeepState::new(directory.path());
        assert!(!state.has_crashed("2").unwrap());
        state.begin_trial("1").unwrap();
        // The service was started again in the same boot.
        assert!(!state.has_crashed("1").unwrap());
        assert!(state.has_crashed("2").unwrap());
        assert!(state.end_trial().unwrap() && !state.end_trial().unwrap());
        assert!(!state.has_crashed("2").unwrap());
        std::fs::write(directory.path().join("unproven"), "").unwrap();
        assert!(state.has_crashed("2").unwrap());
        state.mark_bad("it crashed").unwrap();
        assert!(!state.has_crashed("3").unwrap());
    }

    #[test]
    fn bad_groups_are_good_again_when_somebody_says_so_or_keeps_others() {
        let directory = tempfile::tempdir().unwrap();
        let state = KeepState::new(directory.path());
        assert_eq!(state.bad().unwrap(), None);
        state.mark_bad("an oops\nin f\n").unwrap();
        assert_eq!(state.bad().unwrap().as_deref(), Some("an oops\nin f"));
        assert!(state.mark_good().unwrap() && !state.mark_good().unwrap());
        assert_eq!(state.bad().unwrap(), None);
        let kept = Kept { since: 0, ..kept() };
        assert!(state.trusted_since(&kept).unwrap() > 1_000_000_000);
        state.mark_bad("an oops").unwrap();
        state.keep(&kept).unwrap();
        assert_eq!(state.trusted_since(&kept).unwrap(), 0);
        assert_eq!(state.bad().unwrap(), None);
    }

    #[test]
    fn what_cannot_be_written_is_an_error_and_the_earlier_groups_stay() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let state = KeepState::new(&file.join("keep"));
        let error = format!("{:#}", state.begin_trial("1").unwrap_err());
        assert!(error.starts_with("making ") && error.contains("/file/keep"), "{error}");
        assert!(format!("{:#}", state.keep(&kept()).unwrap_err()).contains("/file/keep"));
    }

    #[test]
    fn a_damaged_file_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let state = KeepState::new(directory.path());
        state.keep(&kept()).unwrap();
        let whole = std::fs::read_to_string(state.path()).unwrap();
        for text in [&whole[..whole.len() / 2], "", &whole.replace("\"seed\":0", "\"seed\":1")] {
            std::fs::write(state.path(), text).unwrap();
            let error = format!("{:#}", state.kept().unwrap_err());
            assert!(error.contains("/kept.json: "), "{error}");
        }
    }
}
