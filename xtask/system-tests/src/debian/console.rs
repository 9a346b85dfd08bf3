//! A guest with a console on which the test types.
//!
//! Input: disks, and lines to type. Output: what the console says, which also goes to a file. The
//! guest does not outlive its value.

use anyhow::{Context, Result, bail, ensure};
use host::interrupt::{self, Program};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A guest that does not say for so long what it should hangs. A boot takes one to three minutes on
/// a machine without other work.
const LIMIT: Duration = Duration::from_secs(3600);
const TICK: Duration = Duration::from_millis(200);
/// The end of the console that an error shows.
const SHOWN: usize = 2000;

pub(crate) struct Guest {
    program: Program,
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
    unread: String,
    log: File,
    log_path: PathBuf,
}

impl Guest {
    /// Starts QEMU, whose console is added to `log`. Without KVM, so that a test is the same
    /// everywhere.
    ///
    /// # Errors
    /// QEMU is not installed, or `log` cannot be written.
    pub(crate) fn start(qemu: &mut Command, log: &Path) -> Result<Guest> {
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "1024"]);
        // GRUB does not get on in a BIOS without a display adapter.
        qemu.args(["-nodefaults", "-vga", "std", "-display", "none", "-serial", "stdio"]);
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = interrupt::spawn(qemu).context("QEMU cannot be started")?;
        let input = program.take_stdin().context("QEMU has no standard input")?;
        let output = chunks(program.take_stdout().context("QEMU has no standard output")?);
        let file = File::options().create(true).append(true).open(log);
        let log_file = file.with_context(|| log.display().to_string())?;
        let (unread, log_path) = (String::new(), log.to_owned());
        Ok(Guest { program, input, output, unread, log: log_file, log_path })
    }

    /// Types a line.
    ///
    /// # Errors
    /// The guest has ended.
    pub(crate) fn type_line(&mut self, line: &str) -> Result<()> {
        let typed = self.input.write_all(format!("{line}\n").as_bytes());
        typed.with_context(|| format!("the guest has ended; see {}", self.log_path.display()))
    }

    /// Waits until the console shows one of the texts, and returns the number of the first. The
    /// next wait looks only behind it.
    ///
    /// # Errors
    /// The guest ends or hangs.
    pub(crate) fn wait_for(&mut self, texts: &[&str]) -> Result<usize> {
        self.first_of(texts).map(|(number, _)| number)
    }

    /// Waits until the console shows the text, and returns what it showed in front of it.
    ///
    /// # Errors
    /// The guest ends or hangs.
    pub(crate) fn said_until(&mut self, text: &str) -> Result<String> {
        self.first_of(&[text]).map(|(_, said)| said)
    }

    /// The number of the first text that the console shows, and what stands in front of it.
    fn first_of(&mut self, texts: &[&str]) -> Result<(usize, String)> {
        let begun = Instant::now();
        loop {
            let found = texts.iter().enumerate().filter_map(|(number, text)| {
                self.unread.find(text).map(|at| (at, number, text.len()))
            });
            if let Some((at, number, length)) = found.min() {
                let said = self.unread.drain(..at + length).take(at).collect();
                return Ok((number, said));
            }
            if !self.read()? {
                bail!("the guest has ended, and has not said {texts:?}; {}", self.console());
            }
            ensure!(
                begun.elapsed() < LIMIT,
                "the guest has not said {texts:?} in {} s; {}",
                LIMIT.as_secs(),
                self.console()
            );
        }
    }

    /// Whether the console shows a text in this time.
    ///
    /// # Errors
    /// The guest ends.
    pub(crate) fn is_said(&mut self, text: &str, patience: Duration) -> Result<bool> {
        let begun = Instant::now();
        while begun.elapsed() < patience && !self.unread.contains(text) {
            ensure!(self.read()?, "the guest has ended; {}", self.console());
        }
        Ok(self.unread.contains(text))
    }

    /// Waits until the guest has switched itself off.
    ///
    /// # Errors
    /// It does not, or QEMU fails.
    pub(crate) fn wait_until_off(mut self) -> Result<()> {
        let begun = Instant::now();
        while self.read()? {
            ensure!(begun.elapsed() < LIMIT, "the guest does not end; {}", self.console());
        }
        let status = self.program.ended().context("QEMU cannot be waited for")?;
        ensure!(status.success(), "QEMU: {status}");
        Ok(())
    }

    /// Ends the guest as a loss of power does.
    ///
    /// # Errors
    /// It cannot be ended.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.program.end().context("QEMU cannot be ended").map(drop)
    }

    /// Reads what there is. `false`: the guest has ended.
    fn read(&mut self) -> Result<bool> {
        interrupt::check()?;
        match self.output.recv_timeout(TICK) {
            Ok(bytes) => {
                self.log.write_all(&bytes).with_context(|| self.log_path.display().to_string())?;
                self.unread.push_str(&String::from_utf8_lossy(&bytes));
                Ok(true)
            }
            Err(RecvTimeoutError::Timeout) => Ok(true),
            Err(RecvTimeoutError::Disconnected) => Ok(false),
        }
    }

    fn console(&self) -> String {
        let tail: Vec<char> = self.unread.chars().rev().take(SHOWN).collect();
        let tail: String = tail.into_iter().rev().collect();
        format!("see {}; its end:\n{tail}", self.log_path.display())
    }
}

/// What the console says, read by a thread that ends with it.
fn chunks(mut output: ChildStdout) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut bytes) {
            if sender.send(bytes[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}
