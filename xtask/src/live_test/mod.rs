//! `cargo xtask live-test KERNEL`: replacing functions in a running stock kernel, in virtual machines.
//!
//! Takes an installed (or unpacked) kernel of Debian with its -dbg vmlinux and the headers package of the same version; builds `kmod/`, boots the kernel, and runs
//! `guest.sh` in it, which prints `passed: NAME` or `FAILED: NAME` for each test. Prints these lines and fails with the first that did.

mod debian;
mod proof;

use crate::machine::{self, Machine};
use crate::run;
use anyhow::{Context, Result, bail, ensure};
use kernlane::guest::{self, Contents, End, Kernel};
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = include_str!("guest.sh");

/// With a preemptible kernel a task can be left anywhere.
const MACHINES: &[Machine] = &[
    Machine::new("1 CPU", 1, "max", &[]),
    Machine::new("2 CPUs, preemptible", 2, "max", &["preempt=full"]),
];

/// `kernel` is Debian's own if not given, `script` replaces the guest's tests, for trials.
pub fn live_test(kernel: Option<&Path>, script: Option<&Path>) -> Result<()> {
    let kernel = match kernel {
        Some(path) => Kernel::open(path, None)?,
        None => Kernel::open(&debian::kernel()?, None)?,
    };
    let program = crate::kernlane()?;
    let directory = tempfile::Builder::new().prefix("kernlane-live-test-").tempdir()?;
    let module = build_module(&kernel.release, directory.path())?;
    let vmlinux = directory.path().join("vmlinux");
    run(Command::new("objcopy").arg("--strip-debug").arg(&kernel.vmlinux).arg(&vmlinux))?;
    if script.is_none() {
        proof::proof(&std::fs::read(&vmlinux)?)?;
    }
    let stripped = directory.path().join("kernlane");
    run(Command::new("strip").arg("-o").arg(&stripped).arg(&program))?;
    let text = match script {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?,
        None => SCRIPT.to_owned(),
    };
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("reading {}", path.display()));
    let mut contents = Contents::of_script(&text, Vec::new());
    contents.package("libc6");
    contents.package("libgcc-s1");
    contents.file("/kl/kernlane", 0o755, read(&stripped)?);
    contents.file("/kl/kernlane.ko", 0o644, read(&module)?);
    contents.file("/kl/vmlinux", 0o644, read(&vmlinux)?);
    contents.file(
        "/kl/build-id-at",
        0o644,
        build_id_at(&read(&vmlinux)?, &kernel.build_id.0)?.to_string(),
    );
    contents.file("/etc/passwd", 0o644, "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n");
    for machine in MACHINES {
        test_on(machine, &kernel, &contents)?;
        if script.is_some() {
            break;
        }
    }
    Ok(())
}

fn test_on(tried: &Machine, kernel: &Kernel, contents: &Contents) -> Result<()> {
    let outcome = guest::run(&kernel.boot_image, contents, |boot| {
        tried.describe(boot, &[]);
        boot.memory_mb = 1024;
    })?;
    println!("-- {}, {:.0} s", tried.name, outcome.elapsed.as_secs_f64());
    print!("{}", outcome.output);
    let ended = outcome.end == End::Exited(0);
    ensure!(
        ended && !outcome.output.contains("FAILED"),
        "{}: {:?}; the kernel's last words:\n{}",
        tried.name,
        outcome.end,
        last_lines(&outcome.console, 40)
    );
    if let Some(line) = outcome.console.lines().find(|line| machine::is_complaint(line)) {
        bail!("{}: the kernel says {line}\n{}", tried.name, last_lines(&outcome.console, 60));
    }
    Ok(())
}

/// Where the build id stands in the file, for a test to damage it.
fn build_id_at(vmlinux: &[u8], id: &str) -> Result<usize> {
    let bytes: Vec<u8> = (0..id.len() / 2)
        .map(|n| u8::from_str_radix(&id[n * 2..n * 2 + 2], 16))
        .collect::<Result<_, _>>()?;
    let found = vmlinux.windows(bytes.len()).position(|window| window == bytes);
    found.context("the vmlinux does not hold its build id")
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Builds the kernel module outside of the tree, as DKMS does.
fn build_module(release: &str, directory: &Path) -> Result<PathBuf> {
    let headers = debian::headers(release)?;
    let build = directory.join("kmod");
    run(Command::new("cp").arg("-r").arg("kmod").arg(&build))?;
    run(Command::new("make")
        .arg("-s")
        .arg("-C")
        .arg(&build)
        .arg(format!("KERNEL={}", headers.display())))?;
    Ok(build.join("kernlane.ko"))
}
