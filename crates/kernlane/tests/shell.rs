//! The shell of `kernlane ask` on a terminal.

mod small_recording;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use trace::RecordingHeader;

/// What the editor writes when it waits for a line: pasted text shall be marked.
const WAITS: &str = "\x1b[?2004h";

/// A shell on a terminal of its own.
struct Shell {
    program: Child,
    keyboard: File,
    screen: Receiver<String>,
}

impl Shell {
    fn start(directory: &Path) -> Shell {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = || File::options().read(true).write(true).open(&name).unwrap();
        let program = Command::new(env!("CARGO_BIN_EXE_kernlane"))
            .args(["ask", "net.rec", "--kernel", "net.rec/System.map"])
            .current_dir(directory)
            .env("TERM", "xterm")
            .env("XDG_STATE_HOME", directory.join("state"))
            .stdin(theirs())
            .stdout(theirs())
            .stderr(theirs())
            .spawn()
            .unwrap();
        let keyboard = File::from(ours);
        let (mut reader, (shown, screen)) = (keyboard.try_clone().unwrap(), channel());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // When the program has ended, reading fails.
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                let _ = shown.send(String::from_utf8_lossy(&buffer[..count]).into_owned());
            }
        });
        Shell { program, keyboard, screen }
    }

    /// What is shown until the shell waits for a line, or ends.
    fn shown(&self) -> String {
        let mut seen = String::new();
        // Nobody waits a minute: then the shell hangs, and the test fails by what it saw.
        while !seen.contains(WAITS)
            && let Ok(more) = self.screen.recv_timeout(Duration::from_secs(60))
        {
            seen.push_str(&more);
        }
        seen
    }

    /// What is shown after these keys.
    fn typed(&mut self, keys: &str) -> String {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.shown()
    }

    fn quit(mut self) {
        self.typed(".quit\r");
        assert!(self.program.wait().unwrap().success());
    }
}

#[test]
fn questions_are_completed_answered_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    small_recording::write(&path.join("net.rec"), &RecordingHeader::default(), 1);
    let is_answer = |seen: &str| seen.lines().any(|line| line.trim() == "40");
    let mut shell = Shell::start(path);
    shell.shown();
    let seen = shell.typed("SELECT 40 + count(*)\rAS forty FROM swit\t;\r");
    assert!(seen.contains("switches") && is_answer(&seen), "{seen}");
    let seen = shell.typed(".nothing\r");
    assert!(seen.contains(".nothing is no command"), "{seen}");
    let seen = shell.typed("SELECT given up\x03");
    assert!(seen.contains(WAITS), "Ctrl-C gives the line up, and not the shell: {seen}");
    shell.quit();
    let kept = std::fs::read_to_string(path.join("state/kernlane/questions")).unwrap();
    assert!(kept.contains("SELECT 40 + count(*)\\nAS forty FROM switches;"), "{kept}");
    let mut shell = Shell::start(path);
    shell.shown();
    let (up, enter) = ("\x1b[A", "\r");
    let seen = shell.typed(&format!("{up}{up}{up}{enter}"));
    assert!(is_answer(&seen), "{seen}");
    shell.quit();
}
