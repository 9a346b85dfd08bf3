//! The state of a run that survives a reboot: the compared kernels, the finished measurements, and
//! the kernel that must run next.
//!
//! Input and output: a file in the directory of the run. The file tells every boot what to do. A
//! boot that does not fit the file is an error.

use anyhow::{Context, Result, bail, ensure};
use host::output;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The format of the file.
const FORMAT: u64 = 2;
const NAME: &str = "state.json";

/// How a kernel is booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Method {
    /// By kexec: the kernels are files.
    Kexec,
    /// By grub-reboot: the kernels are entries of GRUB's menu.
    Grub,
    /// By bootctl set-oneshot: the kernels are entries of systemd-boot.
    SystemdBoot,
}

/// One of the two kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kernel {
    /// A file, or an entry of the boot loader.
    pub boot: String,
    /// The identity that the running kernel gives; known since its first run.
    pub identity: Option<String>,
    /// Its release, from the file's header.
    pub release: Option<String>,
}

/// The settings of the measurement in each boot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub filter: Vec<String>,
    pub seed: u64,
    pub precision_percent: f64,
    pub seconds: f64,
    pub cpu: Option<usize>,
    pub directory: PathBuf,
    /// How long a boot may settle before it is measured.
    pub settle_seconds: f64,
}

/// A run over several boots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AbRun {
    format: u64,
    pub method: Method,
    pub kernels: [Kernel; 2],
    /// Boots of each kernel.
    pub boots: usize,
    /// The kernels that were measured, in this order.
    pub measured: Vec<usize>,
    /// The boot in which the last one was measured.
    pub last_boot: Option<String>,
    /// The boot in which a measurement was begun and has not ended.
    pub measuring: Option<String>,
    /// Why the run was ended before every boot was measured. Only a user goes on then.
    pub ended: Option<String>,
    /// Whether a unit of systemd resumes.
    pub unit: bool,
    /// The words that start this program.
    pub program: Vec<OsString>,
    /// The command line of the kernel that ran first, for kexec.
    pub command_line: String,
    pub measurement: Measurement,
}

/// The running kernel, as it describes itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunningKernel {
    /// The build id, or else release and version.
    pub identity: String,
    pub release: String,
}

impl AbRun {
    /// A run in which nothing was measured. The first kernel must run.
    ///
    /// # Errors
    /// The two kernels are the same, or the first does not run.
    pub(crate) fn begin(state: AbRun, running: &RunningKernel) -> Result<AbRun> {
        let [before, after] = &state.kernels;
        ensure!(before.boot != after.boot, "--kernels: both are {}", before.boot);
        let mut state = AbRun { format: FORMAT, ..state };
        state.runs(0, running)?;
        Ok(state)
    }

    /// A state without a number of its format.
    pub(crate) fn new(
        method: Method,
        kernels: [Kernel; 2],
        boots: usize,
        work: Measurement,
    ) -> AbRun {
        AbRun {
            format: FORMAT,
            method,
            kernels,
            boots,
            measured: Vec::new(),
            last_boot: None,
            measuring: None,
            ended: None,
            unit: true,
            program: Vec::new(),
            command_line: String::new(),
            measurement: work,
        }
    }

    /// The kernel that must run for the next step: A B B A A B B A …, then the first one to end.
    pub(crate) fn wanted(&self) -> usize {
        match self.is_measured() {
            true => 0,
            false => [0, 1, 1, 0][self.measured.len() % 4],
        }
    }

    /// Whether every boot was measured.
    pub(crate) fn is_measured(&self) -> bool {
        self.measured.len() >= 2 * self.boots
    }

    /// Notes that this kernel runs, and that it was expected to run.
    ///
    /// # Errors
    /// Another kernel runs.
    pub(crate) fn runs(&mut self, which: usize, running: &RunningKernel) -> Result<()> {
        let said = |kernel: &Kernel| match &kernel.identity {
            Some(identity) => format!("{} ({identity})", kernel.boot),
            None => kernel.boot.clone(),
        };
        let (wanted, other) = (&self.kernels[which], &self.kernels[1 - which]);
        let RunningKernel { identity, release } = running;
        let is_wrong = match (&wanted.identity, &wanted.release) {
            (Some(known), _) => known != identity,
            (None, Some(wanted)) if wanted != release => true,
            (None, _) => other.identity.as_ref() == Some(identity),
        };
        if is_wrong {
            bail!(
                "the wrong kernel runs: {} was to run, but {release} ({identity}) does",
                said(wanted)
            );
        }
        self.kernels[which].identity = Some(identity.clone());
        Ok(())
    }

    /// Where a boot's result is.
    pub(crate) fn result(directory: &Path, boot: usize) -> PathBuf {
        directory.join(format!("boot-{boot}.json"))
    }

    /// Reads the state of a run.
    ///
    /// # Errors
    /// There is none, it is damaged, or it is of another version.
    pub(crate) fn read(directory: &Path) -> Result<AbRun> {
        let path = directory.join(NAME);
        let named = || path.display().to_string();
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("{}: no run of `kernlane bench --ab` was begun there", named())
        })?;
        let value: serde_json::Value = serde_json::from_str(&text).with_context(named)?;
        let format = value.get("format").and_then(serde_json::Value::as_u64);
        let format = format.with_context(|| format!("{}: it has no format number", named()))?;
        ensure!(
            format == FORMAT,
            "{}: its format is {format}, and this version reads {FORMAT}: go on with the version \
             that began the run",
            named()
        );
        serde_json::from_value(value).with_context(named)
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        output::write(&directory.join(NAME), text.as_bytes())
    }
}

/// States for tests.
#[cfg(test)]
pub(super) mod examples {
    use super::*;

    pub(in crate::ab) fn kernel(boot: &str, release: Option<&str>) -> Kernel {
        Kernel { boot: boot.into(), identity: None, release: release.map(str::to_owned) }
    }

    pub(in crate::ab) fn state(boots: usize) -> AbRun {
        let measurement = Measurement {
            filter: vec!["call/".into()],
            seed: 0,
            precision_percent: 3.0,
            seconds: 50.0,
            cpu: None,
            directory: "/var/tmp".into(),
            settle_seconds: 30.0,
        };
        let kernels =
            [kernel("/boot/vmlinuz-1", Some("6.12.1")), kernel("/boot/vmlinuz-2", Some("6.12.1"))];
        let state = AbRun::new(Method::Kexec, kernels, boots, measurement);
        AbRun { program: vec!["/usr/bin/kernlane".into(), "bench".into()], ..state }
    }

    pub(in crate::ab) fn running(identity: &str, release: &str) -> RunningKernel {
        RunningKernel { identity: identity.into(), release: release.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::examples::{running, state};
    use super::*;

    #[test]
    fn kernels_take_turns_and_the_first_is_the_last() {
        let mut state = state(4);
        let mut order = Vec::new();
        while !state.is_measured() {
            order.push(state.wanted());
            state.measured.push(state.wanted());
        }
        assert_eq!(order, [0, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(order.iter().sum::<usize>(), 4);
        assert_eq!(state.wanted(), 0);
        let mut odd = super::examples::state(1);
        odd.measured = vec![0, 1];
        assert!(odd.is_measured() && odd.wanted() == 0);
    }

    #[test]
    fn a_wrong_kernel_is_named() {
        let mut state = AbRun::begin(state(2), &running("aa", "6.12.1")).unwrap();
        // The second kernel has the same release, but cannot have the same build id.
        let message = state.runs(1, &running("aa", "6.12.1")).unwrap_err().to_string();
        assert_eq!(
            message,
            "the wrong kernel runs: /boot/vmlinuz-2 was to run, but 6.12.1 (aa) does"
        );
        let message = state.runs(1, &running("bb", "6.1.0")).unwrap_err().to_string();
        assert!(message.contains("/boot/vmlinuz-2 was to run, but 6.1.0 (bb) does"), "{message}");
        state.runs(1, &running("bb", "6.12.1")).unwrap();
        let message = state.runs(1, &running("cc", "6.12.1")).unwrap_err().to_string();
        assert!(message.contains("/boot/vmlinuz-2 (bb) was to run"), "{message}");
        assert!(state.runs(0, &running("bb", "6.12.1")).is_err());
        state.runs(0, &running("aa", "6.12.1")).unwrap();
    }

    #[test]
    fn a_run_begins_on_the_first_of_two_kernels() {
        let message = AbRun::begin(state(2), &running("aa", "6.1.0")).unwrap_err().to_string();
        assert!(message.contains("/boot/vmlinuz-1 was to run, but 6.1.0 (aa) does"), "{message}");
        let mut same = state(2);
        same.kernels[1].boot = same.kernels[0].boot.clone();
        assert!(AbRun::begin(same, &running("aa", "6.12.1")).is_err());
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let message = format!("{:#}", AbRun::read(directory.path()).unwrap_err());
        assert!(message.contains("no run of `kernlane bench --ab` was begun there"), "{message}");
        let state = state(3);
        state.write(directory.path()).unwrap();
        assert_eq!(AbRun::read(directory.path()).unwrap(), state);
        let text = std::fs::read_to_string(directory.path().join(NAME)).unwrap();
        // A version that does not know the other keys also says so.
        for (damaged, said) in [
            (
                "{\"format\": 3}",
                "state.json: its format is 3, and this version reads 2: go on with",
            ),
            ("{}", "state.json: it has no format number"),
            ("{\"format\": 2}", "state.json: missing field `method`"),
            (&text[..text.len() / 2], "state.json: EOF while parsing"),
        ] {
            std::fs::write(directory.path().join(NAME), damaged).unwrap();
            let message = format!("{:#}", AbRun::read(directory.path()).unwrap_err());
            assert!(message.contains(said), "{damaged}: {message}");
        }
    }
}
