//! User Mode Linux: kernels that are programs, and the loads that they run.
//!
//! Input: the built tree. This module relinks the kernel and runs it. It kills a kernel that does
//! not end.

use crate::bare;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LOAD: &str = include_str!("load.c");
pub(crate) const LOADS: [&str; 3] = ["mmsg", "uring", "pktgen"];
/// Datagrams, or packets, in each round of a load, and requests in a round of io_uring: BATCH and
/// DEPTH in `load.c`.
pub(crate) const DATAGRAMS: u64 = 512;
pub(crate) const REQUESTS: u64 = 256;
/// Only a kernel that hangs takes this long.
const LIMIT: Duration = Duration::from_secs(300);

/// Relinks the tree's kernel with `kernlane relink` and these arguments.
pub(crate) fn relinked(
    kernlane: &Path,
    tree: &Path,
    arguments: &[&str],
    output: PathBuf,
) -> Result<PathBuf> {
    let mut command = Command::new(kernlane);
    command.arg("relink").arg("--tree").arg(tree).args(arguments).arg("--output").arg(&output);
    crate::run(command.stdout(Stdio::null()))?;
    Ok(output)
}

/// The root file system of the guests: a directory with the load as its init.
pub(crate) struct UmlGuest {
    root: PathBuf,
}

impl UmlGuest {
    pub(crate) fn new(scratch: &Path) -> Result<UmlGuest> {
        use std::os::unix::fs::PermissionsExt;
        let root = scratch.join("root");
        fs::create_dir_all(root.join("proc"))?;
        let program = root.join("load");
        fs::write(&program, bare::compile("load", LOAD)?)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(UmlGuest { root })
    }

    /// Boots a kernel with these arguments for its load.
    pub(crate) fn boot(&self, kernel: &Path, load: &[&str]) -> Result<UmlProcess> {
        let console = self.root.with_file_name("console");
        let log = fs::File::create(&console)?;
        let child = Command::new(kernel)
            .args([
                "mem=128M",
                "con=none",
                "con0=null,fd:1",
                "ssl=none",
                "root=/dev/root",
                "rw",
                "rootfstype=hostfs",
                "init=/load",
            ])
            .arg(format!("rootflags={}", self.root.display()))
            .arg("--")
            .args(load)
            // The C library in the kernel would register a restartable sequence, which the kernel's
            // own threads do not have.
            .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} cannot be run", kernel.display()))?;
        Ok(UmlProcess { child, kernel: kernel.to_owned(), console })
    }
}

/// A running kernel. Dropping this kills it.
pub(crate) struct UmlProcess {
    child: Child,
    kernel: PathBuf,
    console: PathBuf,
}

impl UmlProcess {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn said(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.console)?).replace('\r', ""))
    }

    /// Waits until the kernel ends. Returns its console.
    pub(crate) fn ended(mut self) -> Result<String> {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            if let Some(status) = self.child.try_wait()? {
                let said = self.said()?;
                ensure!(
                    status.success(),
                    "{} ended with {status}; its console:\n{said}",
                    self.kernel.display()
                );
                return Ok(said);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("{}: hangs; its console:\n{}", self.kernel.display(), self.said()?)
    }

    /// Waits until the load has passed and stays.
    pub(crate) fn stays(&mut self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            if self.said()?.contains("staying\n") {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "{} ended with {status}; its console:\n{}",
                    self.kernel.display(),
                    self.said()?
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{}: hangs; its console:\n{}", self.kernel.display(), self.said()?)
    }
}

impl Drop for UmlProcess {
    fn drop(&mut self) {
        // The kernel has ended or ends now. It traces its other processes, so they end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fails unless each load reports that it passed and nothing warns.
pub(crate) fn judge(said: &str, loads: &[&str], what: &str) -> Result<()> {
    for load in loads {
        ensure!(
            said.contains(&format!("passed: {load}\n")),
            "{what}: {load} did not pass; its output:\n{said}"
        );
    }
    for trouble in ["WARNING", "BUG", "Kernel panic", "segfault"] {
        ensure!(!said.contains(trouble), "{what}: {trouble}:\n{said}");
    }
    Ok(())
}
