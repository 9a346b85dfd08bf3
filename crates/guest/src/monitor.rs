//! QEMU's monitor: sends commands to a running QEMU and receives its events, in the machine
//! protocol (QMP).
//!
//! Input: a socket that QEMU has the other end of. This module never waits longer than `PATIENCE`
//! without checking for Ctrl-C.

use anyhow::{Context, Result, bail, ensure};
use host::interrupt;
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_millis(20);

/// The longest line that is accepted. An answer or event has a few hundred bytes.
const LONGEST_LINE: usize = 1 << 20;

pub(crate) struct Monitor {
    stream: UnixStream,
    received: Vec<u8>,
    /// Events that arrived during a wait for an answer.
    events: Vec<Value>,
    greeted: bool,
}

impl Monitor {
    /// `stream` is connected to QEMU's `-mon chardev=…,mode=control`.
    pub(crate) fn new(stream: UnixStream) -> Result<Monitor> {
        let limited = stream.set_read_timeout(Some(PATIENCE));
        limited.context("setting a time limit for QEMU's monitor")?;
        Ok(Monitor { stream, received: Vec::new(), events: Vec::new(), greeted: false })
    }

    /// Executes a command and returns its result.
    ///
    /// # Errors
    /// QEMU refuses the command or has ended, or the user interrupts.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        if !self.greeted {
            self.greeted = true;
            self.answer("qmp_capabilities", json!({}))?;
        }
        self.answer(command, arguments)
    }

    /// Whether the event has happened since the last call. Waits at most `PATIENCE`.
    pub(crate) fn has_happened(&mut self, event: &str) -> Result<bool> {
        if !self.greeted {
            self.execute("query-status", json!({}))?;
        }
        if let Some(message) = self.next()? {
            self.events.push(message);
        }
        let before = self.events.len();
        self.events.retain(|message| message["event"] != event);
        Ok(self.events.len() < before)
    }

    fn answer(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let mut request = json!({"execute": command, "arguments": arguments}).to_string();
        request.push('\n');
        let named = || format!("asking QEMU's monitor for {command}");
        self.stream.write_all(request.as_bytes()).with_context(named)?;
        loop {
            interrupt::check()?;
            let Some(mut message) = self.next().with_context(named)? else {
                continue;
            };
            if message.get("return").is_some() {
                return Ok(message["return"].take());
            }
            if let Some(error) = message.get("error") {
                bail!(
                    "QEMU refuses {command}: {}",
                    error["desc"].as_str().unwrap_or("without a reason")
                );
            }
            self.events.push(message);
        }
    }

    /// The next message, if one has arrived.
    fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(Some(
                    serde_json::from_slice(&line)
                        .context("QEMU's monitor sent a line that is not JSON")?,
                ));
            }
            ensure!(
                self.received.len() < LONGEST_LINE,
                "QEMU's monitor sent a line that is too long"
            );
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => bail!("QEMU has closed its monitor"),
                Ok(read) => self.received.extend(&bytes[..read]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    return Ok(None);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("reading QEMU's monitor"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_qemu(said: &[u8]) -> (Monitor, UnixStream) {
        let (ours, mut qemu) = UnixStream::pair().unwrap();
        qemu.write_all(said).unwrap();
        (Monitor::new(ours).unwrap(), qemu)
    }

    #[test]
    fn answers_are_distinguished_from_events() {
        let said = b"{\"QMP\": {}}\n{\"return\": {}}\n{\"event\": \"STOP\"}\n\
                     {\"return\": {\"status\": \"paused\"}}\n";
        let (mut monitor, _qemu) = with_qemu(said);
        assert_eq!(monitor.execute("query-status", json!({})).unwrap()["status"], "paused");
        assert!(monitor.has_happened("STOP").unwrap());
        assert!(!monitor.has_happened("STOP").unwrap());
    }

    #[test]
    fn a_refusal_a_closed_monitor_and_nonsense_are_errors() {
        let refused = b"{\"return\": {}}\n{\"error\": {\"class\": \"GenericError\", \
                        \"desc\": \"no room\"}}\n";
        let error = |said: &[u8]| {
            let (mut monitor, qemu) = with_qemu(said);
            qemu.shutdown(std::net::Shutdown::Write).unwrap();
            format!("{:#}", monitor.execute("migrate", json!({})).unwrap_err())
        };
        assert_eq!(error(refused), "QEMU refuses migrate: no room");
        assert!(error(b"{\"return\": {}}\n").contains("closed"));
        assert!(error(b"nonsense\n").contains("not JSON"));
        assert!(error(&vec![b'x'; LONGEST_LINE / 64]).contains("closed"));
    }
}
