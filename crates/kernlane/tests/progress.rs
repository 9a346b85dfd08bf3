//! Progress is seen on a terminal, in one style. Elsewhere short work says nothing.

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

fn kernlane(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kernlane"));
    command.args(arguments).current_dir(directory).stdout(Stdio::null()).env("TERM", "xterm");
    command
}

/// What a terminal gets as standard error.
fn on_terminal(mut command: Command) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = File::options().read(true).write(true).open(name).unwrap();
    let mut child = command.stderr(theirs).spawn().unwrap();
    // The command holds the other end until it is dropped: then reading ends.
    drop(command);
    let (mut ours, mut seen) = (File::from(ours), Vec::new());
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = ours.read(&mut buffer) {
        seen.extend(&buffer[..count]);
    }
    child.wait().unwrap();
    String::from_utf8_lossy(&seen).into_owned()
}

#[test]
fn long_commands_show_what_they_do_on_a_terminal_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for name in ["old", "new", "tree/vmlinux", "tree/vmlinux.o", "tree/.config", "net.kll"] {
        let file = path.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "nothing").unwrap();
    }
    std::fs::create_dir(path.join("net.rec")).unwrap();
    for (arguments, shown) in [
        (&["check", "old", "new"][..], "reading the kernels"),
        (&["profile", "net.rec", "--kernel", "old"], "reading the kernel"),
        (&["relink", "--tree", "tree", "--layout", "net.kll", "--dry-run"], "reading the kernel"),
    ] {
        let seen = on_terminal(kernlane(arguments, path));
        assert!(seen.contains(shown) && seen.contains("kernlane: "), "{arguments:?}: {seen:?}");
        let piped = kernlane(arguments, path).stderr(Stdio::piped()).output().unwrap();
        let seen = String::from_utf8_lossy(&piped.stderr);
        assert!(seen.starts_with("kernlane: ") && !seen.contains(shown), "{arguments:?}: {seen:?}");
    }
}
