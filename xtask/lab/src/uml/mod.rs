//! User Mode Linux: kernels that are programs, and the loads that they run.
//!
//! Input: a kernel. Output: what it prints. This module kills a kernel that does not end.

mod server;

use crate::bare;
use anyhow::{Context, Result, bail, ensure};
pub use server::UmlServer;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LOAD: &str = include_str!("load.c");
const HEADERS: [(&str, &str); 3] = [
    ("init.h", include_str!("init.h")),
    ("ring.h", include_str!("ring.h")),
    ("mixes.h", include_str!("mixes.h")),
];
pub const LOADS: [&str; 6] = ["mmsg", "uring", "files", "database", "web", "pktgen"];
/// The memory of a kernel that runs loads.
pub const MEMORY: &str = "mem=128M";
/// The directories of the root file system in which something is mounted.
pub const MOUNT_POINTS: [&str; 4] = ["proc", "sys", "dev", "tmp"];
/// Datagrams, or packets, in each round of a load, and requests in a round of io_uring: BATCH and
/// BATCHED in `load.c`.
pub const DATAGRAMS: u64 = 512;
pub const REQUESTS: u64 = 256;
/// Only a kernel that hangs takes this long.
const LIMIT: Duration = Duration::from_secs(300);

/// The root file system of the guests: a directory with the load as its init.
pub struct UmlGuest {
    root: PathBuf,
}

impl UmlGuest {
    /// Makes the directory `root` in `scratch`.
    ///
    /// # Errors
    /// The directory cannot be made, or the load not compiled.
    pub fn new(scratch: &Path) -> Result<UmlGuest> {
        let root = scratch.join("root");
        for directory in MOUNT_POINTS {
            fs::create_dir_all(root.join(directory))?;
        }
        let guest = UmlGuest { root };
        guest.add_program("load", &load()?)?;
        Ok(guest)
    }

    /// Boots a kernel with these arguments for its load.
    ///
    /// # Errors
    /// The kernel cannot be run.
    pub fn boot(&self, kernel: &Path, load: &[&str]) -> Result<UmlProcess> {
        let console = self.root.with_file_name("console");
        let log = fs::File::create(&console)?;
        let mut command = self.command(kernel, "con0=null,fd:1", load);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child =
            command.spawn().with_context(|| format!("{} cannot be run", kernel.display()))?;
        Ok(UmlProcess { child, kernel: kernel.to_owned(), console })
    }

    /// Boots a kernel that runs slices of loads when it is told to.
    ///
    /// # Errors
    /// The kernel cannot be run.
    pub fn serve(&self, kernel: &Path) -> Result<UmlServer> {
        UmlServer::new(self.command(kernel, "con0=fd:0,fd:1", &["serve"]))
            .with_context(|| format!("{} cannot be run", kernel.display()))
    }

    /// Adds a program to the root file system.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add_program(&self, name: &str, program: &[u8]) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let path = self.root.join(name);
        fs::write(&path, program).with_context(|| path.display().to_string())?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?)
    }

    /// Boots a kernel that runs slices of the suite's benchmarks when it is told to. The root file
    /// system has the suite's program as `kernlane-bench`. `parameters`: more words for the kernel.
    ///
    /// # Errors
    /// The kernel cannot be run.
    pub fn serve_suite(&self, kernel: &Path, parameters: &[String]) -> Result<UmlServer> {
        let mut command = Command::new(kernel);
        command.args(parameters).args(words("mem=512M", "con0=fd:0,fd:1", &self.root, &["suite"]));
        command.env(TUNABLES.0, TUNABLES.1);
        UmlServer::new(command).with_context(|| format!("{} cannot be run", kernel.display()))
    }

    fn command(&self, kernel: &Path, console: &str, load: &[&str]) -> Command {
        let mut command = Command::new(kernel);
        command.args(words(MEMORY, console, &self.root, load)).env(TUNABLES.0, TUNABLES.1);
        command
    }
}

/// The C library in the kernel would register a restartable sequence, which the kernel's own
/// threads do not have.
pub const TUNABLES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.pthread.rseq=0");

/// The program that runs the loads.
///
/// # Errors
/// It cannot be compiled.
pub fn load() -> Result<Vec<u8>> {
    bare::compile_with("load", LOAD, &HEADERS)
}

/// The command line of a kernel whose root file system is the directory `root`.
pub fn words(memory: &str, console: &str, root: &Path, load: &[&str]) -> Vec<String> {
    let rootflags = format!("rootflags={}", root.display());
    let words = [memory, "con=none", console, "ssl=none", "root=/dev/root", "rw"];
    let words =
        words.into_iter().chain(["rootfstype=hostfs", "init=/load", rootflags.as_str(), "--"]);
    words.chain(load.iter().copied()).map(str::to_owned).collect()
}

/// A running kernel. Dropping this kills it.
pub struct UmlProcess {
    child: Child,
    kernel: PathBuf,
    console: PathBuf,
}

impl UmlProcess {
    /// The kernel's first process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The console until now, its lines as text files have them.
    ///
    /// # Errors
    /// The console cannot be read.
    pub fn console(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.console)?).replace('\r', ""))
    }

    /// Waits until the kernel ends. Returns its console.
    ///
    /// # Errors
    /// The kernel fails, or hangs.
    pub fn ended(mut self) -> Result<String> {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            if let Some(status) = self.child.try_wait()? {
                let console = self.console()?;
                ensure!(
                    status.success(),
                    "{} ended with {status}; its console:\n{console}",
                    self.kernel.display()
                );
                return Ok(console);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("{}: hangs; its console:\n{}", self.kernel.display(), self.console()?)
    }

    /// Waits until the load has passed and stays.
    ///
    /// # Errors
    /// The kernel ends, or hangs.
    pub fn stays(&mut self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            if self.console()?.contains("staying\n") {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "{} ended with {status}; its console:\n{}",
                    self.kernel.display(),
                    self.console()?
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{}: hangs; its console:\n{}", self.kernel.display(), self.console()?)
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
///
/// # Errors
/// A load did not pass, or the kernel warned. The error contains the console. `what` names the run.
pub fn judge(console: &str, loads: &[&str], what: &str) -> Result<()> {
    for load in loads {
        ensure!(
            console.contains(&format!("passed: {load}\n")),
            "{what}: {load} did not pass; its output:\n{console}"
        );
    }
    for trouble in ["WARNING", "BUG", "Kernel panic", "segfault"] {
        ensure!(!console.contains(trouble), "{what}: {trouble}:\n{console}");
    }
    Ok(())
}
