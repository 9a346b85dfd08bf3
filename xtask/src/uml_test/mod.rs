//! `cargo xtask uml-test`: a kernel that is a program (User Mode Linux), relinked.
//!
//! The original order gives the original program, byte for byte; a random and the reversed order run the loads of `load.c`, which compares
//! everything that it gets back. A kernel that does not come to its end is killed.

use crate::bare;
use crate::kernel::{self, Compiler};
use crate::relink_test;
use anyhow::{Context, Result, bail, ensure};
use kernlane::image::vmlinux;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LOAD: &str = include_str!("load.c");
const LOADS: [&str; 3] = ["mmsg", "uring", "pktgen"];
/// Rounds of each load: some tenths of a second.
const ROUNDS: &str = "50";
/// Nothing is as slow as this but a kernel that hangs.
const LIMIT: Duration = Duration::from_secs(300);

pub fn uml_test() -> Result<()> {
    let kernlane = crate::kernlane()?;
    let tree = kernel::tree(Compiler::GccUserMode)?;
    let scratch = tempfile::tempdir().context("no scratch directory can be made")?;
    let guest = Guest::new(scratch.path())?;
    guest.passes(&tree.join("vmlinux"), "the original kernel")?;

    let original = relinked(&kernlane, &tree, "original", scratch.path())?;
    for name in ["vmlinux", "System.map"] {
        ensure!(
            fs::read(tree.join(name))? == fs::read(original.join(name))?,
            "the original order gave another {name}"
        );
    }
    println!("passed: the original order gives the original program, byte for byte");
    for algorithm in ["random", "reverse"] {
        let kernel = relinked(&kernlane, &tree, algorithm, scratch.path())?;
        guest.passes(&kernel.join("vmlinux"), &format!("the kernel in {algorithm} order"))?;
    }
    Ok(())
}

/// The tree's kernel in its original order, or laid out by an algorithm that takes no counts.
fn relinked(kernlane: &Path, tree: &Path, algorithm: &str, scratch: &Path) -> Result<PathBuf> {
    let layout = scratch.join(format!("{algorithm}.kll"));
    let build_id = vmlinux::read(&tree.join("vmlinux"))?.build_id;
    if algorithm == "original" {
        fs::write(&layout, relink_test::layout(&build_id).to_text())?;
    } else {
        let profile = scratch.join("none.klp");
        fs::write(&profile, kernlane::profile::Profile::empty(build_id).to_json())?;
        let mut command = Command::new(kernlane);
        command.arg("layout").arg(&profile).arg("--kernel").arg(tree);
        crate::run(
            command
                .args(["--algorithm", algorithm, "--output"])
                .arg(&layout)
                .stdout(Stdio::null()),
        )?;
    }
    let output = scratch.join(format!("{algorithm}.kernel"));
    let mut command = Command::new(kernlane);
    command.arg("relink").arg("--tree").arg(tree).arg("--layout").arg(&layout);
    crate::run(command.arg("--output").arg(&output))?;
    Ok(output)
}

/// The root file system of the guests: a directory with the load as its init.
struct Guest {
    root: PathBuf,
}

impl Guest {
    fn new(scratch: &Path) -> Result<Guest> {
        use std::os::unix::fs::PermissionsExt;
        let root = scratch.join("root");
        fs::create_dir_all(root.join("proc"))?;
        let program = root.join("load");
        fs::write(&program, bare::compile("load", LOAD)?)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Guest { root })
    }

    /// Boots a kernel with all loads, and fails unless each says that it passed and nothing warns.
    fn passes(&self, kernel: &Path, what: &str) -> Result<()> {
        let said = self.boot(kernel)?;
        for load in LOADS {
            ensure!(
                said.contains(&format!("passed: {load}\n")),
                "{what}: {load} did not pass; it said:\n{said}"
            );
        }
        for trouble in ["WARNING", "BUG", "Kernel panic", "segfault"] {
            ensure!(!said.contains(trouble), "{what}: {trouble}:\n{said}");
        }
        println!("passed: {what} runs {}", LOADS.join(", "));
        Ok(())
    }

    /// Runs a kernel to its end; gives its console.
    fn boot(&self, kernel: &Path) -> Result<String> {
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
            .args(["--", "all", ROUNDS])
            // The C library in the kernel would register a restartable sequence, which the kernel's own threads do not have.
            .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} cannot be run", kernel.display()))?;
        let ended = wait(child)?;
        let said = String::from_utf8_lossy(&fs::read(&console)?).replace('\r', "");
        ensure!(ended, "{}: hangs; its last words:\n{said}", kernel.display());
        Ok(said)
    }
}

/// Waits for a kernel to end by itself; kills one that does not, and says so.
fn wait(mut child: Child) -> Result<bool> {
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        if let Some(status) = child.try_wait()? {
            if !status.success() {
                bail!("the kernel ended with {status}");
            }
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill()?;
    child.wait()?;
    Ok(false)
}
