//! A kernel for User Mode Linux whose console is a pair of pipes.
//!
//! Input: lines for its standard input. Output: lines of its console. The last lines are kept for
//! errors.

use anyhow::{Context, Result, bail};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A kernel that prints nothing for this time hangs.
const LIMIT_MS: libc::c_int = 60_000;
/// The lines of a console that are kept.
const KEPT: usize = 60;

/// A running kernel. Dropping this kills it.
pub struct UmlServer {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// Lines that were read and not yet used.
    unread: Vec<u8>,
    console: VecDeque<String>,
}

impl UmlServer {
    /// # Errors
    /// The command cannot be run.
    pub(super) fn new(mut command: Command) -> Result<UmlServer> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let input = child.stdin.take().context("the kernel has no standard input")?;
        let output = child.stdout.take().context("the kernel has no standard output")?;
        Ok(UmlServer { child, input, output, unread: Vec::new(), console: VecDeque::new() })
    }

    /// The kernel's first process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes to the kernel's console.
    ///
    /// # Errors
    /// The kernel has ended.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let told = self.input.write_all(line.as_bytes());
        told.with_context(|| format!("the kernel has ended; {}", self.console()))
    }

    /// The next line of the console that begins so.
    ///
    /// # Errors
    /// The kernel ends, or says nothing for a minute.
    pub fn wait_for(&mut self, begins: &str) -> Result<String> {
        loop {
            let line = self.line()?;
            if line.starts_with(begins) {
                return Ok(line);
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if self.console.len() == KEPT {
                    self.console.pop_front();
                }
                self.console.push_back(line.clone());
                return Ok(line);
            }
            let mut bytes = [0; 4096];
            let count = match self.has_output()? {
                true => self.output.read(&mut bytes)?,
                false => bail!("the kernel hangs; {}", self.console()),
            };
            if count == 0 {
                bail!("the kernel has ended; {}", self.console());
            }
            self.unread.extend(&bytes[..count]);
        }
    }

    /// Waits until the kernel says something, or ends. False: it does neither.
    fn has_output(&self) -> Result<bool> {
        let mut waits =
            libc::pollfd { fd: self.output.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            // SAFETY: the pointer is to one structure, which lives during the call.
            match unsafe { libc::poll(&mut waits, 1, LIMIT_MS) } {
                -1 => {
                    let error = std::io::Error::last_os_error();
                    if error.kind() != std::io::ErrorKind::Interrupted {
                        return Err(error.into());
                    }
                }
                ready => return Ok(ready > 0),
            }
        }
    }

    fn console(&self) -> String {
        let lines: Vec<&str> = self.console.iter().map(String::as_str).collect();
        format!("the end of its console:\n{}", lines.join("\n"))
    }
}

impl Drop for UmlServer {
    fn drop(&mut self) {
        // The kernel has ended or ends now. It traces its other processes, so they end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
