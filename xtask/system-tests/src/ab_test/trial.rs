//! One run of `kernlane-bench --ab` in a guest of its own.
//!
//! Input: the image, which stays unchanged. Output: a guest with a login shell, and in the end the
//! files that the guest leaves. A second disk carries an archive into the guest, and one out of it.

use crate::debian::console::Guest;
use crate::debian::disk::{Image, UEFI, UEFI_VARIABLES};
use anyhow::{Context, Result, ensure};
use lab::run;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SCRIPT: &str = include_str!("guest.sh");
/// Room for the program and the results.
const EXCHANGE_BYTES: u64 = 64 << 20;
/// What the console says once in each boot.
const LOGIN: &str = "ab login: root (automatic login)";
const PROMPT: &str = "root@ab:~#";
const ENDED: &str = "the run has ended\r\n";
const FAILED: &str = "the run has failed\r\n";
/// More boots than a run has.
const MOST_BOOTS: usize = 8;

/// How the kernels are booted, as `--boot-by` calls it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Kexec,
    Grub,
    SystemdBoot,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Method::Kexec => "kexec",
            Method::Grub => "grub",
            Method::SystemdBoot => "systemd-boot",
        }
    }
}

/// What the run did next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A kernel has booted, and root is logged in.
    Booted,
    Ended,
}

pub(super) struct Trial<'a> {
    image: &'a Image,
    method: Method,
    directory: tempfile::TempDir,
    log: PathBuf,
    guest: Option<Guest>,
}

impl<'a> Trial<'a> {
    /// A machine that is switched on, boots by default, and has the program `suite`. The console
    /// goes to `log`.
    ///
    /// # Errors
    /// A disk cannot be made, or the guest does not boot.
    pub(super) fn begin(
        image: &'a Image,
        method: Method,
        suite: &Path,
        log: PathBuf,
    ) -> Result<Trial<'a>> {
        let directory = tempfile::tempdir_in(guest::writable_cache()?)?;
        let mut trial = Trial { image, method, directory, log, guest: None };
        let mut disk = Command::new("qemu-img");
        disk.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(&image.disk);
        run(disk.arg(trial.path("disk")))?;
        fs::copy(UEFI_VARIABLES, trial.path("variables")).context(UEFI_VARIABLES)?;
        let tree = trial.path("tree");
        let bin = tree.join("usr/local/bin");
        fs::create_dir_all(&bin)?;
        fs::create_dir_all(tree.join("root"))?;
        fs::write(tree.join("root/guest.sh"), SCRIPT)?;
        let mut strip = Command::new("strip");
        run(strip.arg("-o").arg(bin.join("kernlane-bench")).arg(suite))?;
        let exchange = trial.path("exchange");
        run(Command::new("tar")
            .arg("-cf")
            .arg(&exchange)
            .arg("-C")
            .arg(&tree)
            .arg("usr")
            .arg("root"))?;
        File::options().write(true).open(&exchange)?.set_len(EXCHANGE_BYTES)?;
        let _ = fs::remove_file(&trial.log);
        trial.switch_on()?;
        ensure!(trial.next()? == Next::Booted, "the run has ended before it began");
        trial.type_line("tar -C / --no-same-owner -xf /dev/vdb")?;
        Ok(trial)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts the machine.
    ///
    /// # Errors
    /// It runs already, or QEMU cannot be started.
    pub(super) fn switch_on(&mut self) -> Result<()> {
        ensure!(self.guest.is_none(), "the machine is on already");
        let mut qemu = Command::new("qemu-system-x86_64");
        // What the guest has written survives its end, and nothing else needs to.
        let drive = |name: &str, format: &str| {
            let path = self.path(name);
            format!("file={},format={format},if=virtio,cache=unsafe", path.display())
        };
        qemu.args(["-drive", &drive("disk", "qcow2"), "-drive", &drive("exchange", "raw")]);
        if self.method == Method::SystemdBoot {
            let code = format!("if=pflash,format=raw,unit=0,readonly=on,file={UEFI}");
            let variables = self.path("variables");
            let variables = format!("if=pflash,format=raw,unit=1,file={}", variables.display());
            qemu.args(["-drive", &code, "-drive", &variables]);
        }
        self.guest = Some(Guest::start(&mut qemu, &self.log)?);
        Ok(())
    }

    /// Ends the machine as a loss of power does.
    ///
    /// # Errors
    /// It is off, or cannot be ended.
    pub(super) fn lose_power(&mut self) -> Result<()> {
        self.guest.take().context("the machine is off")?.kill()
    }

    fn guest(&mut self) -> Result<&mut Guest> {
        self.guest.as_mut().context("the machine is off")
    }

    fn type_line(&mut self, line: &str) -> Result<()> {
        self.guest()?.type_line(line)
    }

    /// Has the guest do one of the things that `guest.sh` knows.
    ///
    /// # Errors
    /// The guest has ended.
    pub(super) fn tell(&mut self, what: &str) -> Result<()> {
        self.type_line(&format!("sh guest.sh {what}"))
    }

    /// Begins the run.
    ///
    /// # Errors
    /// The guest has ended.
    pub(super) fn begin_run(&mut self) -> Result<()> {
        self.tell(&format!("begin {}", self.method.name()))
    }

    /// Waits for this text.
    ///
    /// # Errors
    /// The guest ends or hangs.
    pub(super) fn wait_for(&mut self, text: &str) -> Result<()> {
        self.guest()?.wait_for(&[text]).map(drop)
    }

    /// Waits until the machine has booted, or the run has ended.
    ///
    /// # Errors
    /// The program fails on the terminal; the guest ends or hangs.
    pub(super) fn next(&mut self) -> Result<Next> {
        let log = self.log.clone();
        match self.guest()?.wait_for(&[LOGIN, ENDED, FAILED])? {
            0 => self.wait_for(PROMPT).map(|()| Next::Booted),
            1 => Ok(Next::Ended),
            _ => anyhow::bail!("the run has failed; see {}", log.display()),
        }
    }

    /// Lets the run go on until it ends. Gives the number of boots.
    ///
    /// # Errors
    /// See `next`; the run has too many boots.
    pub(super) fn watch(&mut self) -> Result<usize> {
        for boots in 0..=MOST_BOOTS {
            if self.next()? == Next::Ended {
                return Ok(boots);
            }
            self.tell("watch")?;
        }
        anyhow::bail!("the run does not end after {MOST_BOOTS} boots; see {}", self.log.display())
    }

    /// Whether the machine stays on, and boots no kernel, for this time.
    ///
    /// # Errors
    /// The guest ends.
    pub(super) fn stays(&mut self, patience: Duration) -> Result<bool> {
        self.guest()?.is_said(LOGIN, patience).map(|is_said| !is_said)
    }

    /// Switches the machine off. Gives what the run left.
    ///
    /// # Errors
    /// The guest hangs, or leaves nothing.
    pub(super) fn end(mut self) -> Result<Left> {
        self.tell("end")?;
        self.wait_for("the results are there\r\n")?;
        self.guest.take().context("the machine is off")?.wait_until_off()?;
        let results = self.path("results");
        fs::create_dir(&results)?;
        run(Command::new("tar").arg("-C").arg(&results).arg("-xf").arg(self.path("exchange")))?;
        Ok(Left { kernels: self.image.kernels.clone(), _directory: self.directory, results })
    }
}

/// What a run left.
pub(super) struct Left {
    pub kernels: [String; 2],
    results: PathBuf,
    _directory: tempfile::TempDir,
}

impl Left {
    pub(super) fn has(&self, name: &str) -> bool {
        self.results.join(name).exists()
    }

    /// A file that the guest has written.
    ///
    /// # Errors
    /// It has not.
    pub(super) fn text(&self, name: &str) -> Result<String> {
        fs::read_to_string(self.results.join(name)).with_context(|| format!("the guest's {name}"))
    }

    /// A file that the run has written.
    ///
    /// # Errors
    /// It has not, or it is no JSON.
    pub(super) fn json(&self, name: &str) -> Result<serde_json::Value> {
        serde_json::from_str(&self.text(name)?).with_context(|| format!("the guest's {name}"))
    }
}
