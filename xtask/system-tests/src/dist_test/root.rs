//! A clean Debian in a directory, and commands in it.
//!
//! Input: a suite. Output: a root without Kernlane, with what its documents say that it needs. A
//! command sees this root only, and the devices and processes of this machine's kernel.

use anyhow::{Context, Result, ensure};
use lab::live_tool::debian::NEWEST_SUITE;
use lab::made::make;
use lab::{run, succeeded};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What changes by itself, or whenever any package comes.
const NOT_COMPARED: [&str; 12] = [
    "./dev/",
    "./kernel/",
    "./packages/",
    "./proc/",
    "./run/",
    "./tmp/",
    "./tried/",
    "./var/cache/",
    "./var/lib/apt/",
    "./var/lib/dkms/mok.",
    "./var/lib/dpkg/",
    "./var/log/",
];

fn release_of(boot_image: &Path) -> Result<String> {
    let name = boot_image.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    Ok(name.strip_prefix("vmlinuz-").context("the kernel has no release")?.to_owned())
}

fn debug_file(release: &str) -> String {
    format!("usr/lib/debug/boot/vmlinux-{release}")
}

/// A Debian in a directory.
pub(super) struct DebianRoot {
    /// Its suite.
    pub suite: &'static str,
    /// The releases of the kernels in `/kernel`.
    pub releases: Vec<String>,
    /// The headers of these kernels are installed.
    pub has_headers_of_kernels: bool,
    /// Where it is.
    path: PathBuf,
    log: PathBuf,
}

impl DebianRoot {
    /// Makes a system of `suite`, with QEMU, a compiler and kernel headers, and kernels to record
    /// in `/kernel`: boot images of the cache, with their vmlinux.
    ///
    /// # Errors
    /// This needs root, Debian's archive, and disk space.
    pub(super) fn make(
        path: &Path,
        suite: &'static str,
        kernels: &[PathBuf],
    ) -> Result<DebianRoot> {
        let releases =
            kernels.iter().map(|kernel| release_of(kernel)).collect::<Result<Vec<_>>>()?;
        let has_headers_of_kernels = suite != "trixie";
        let headers = match has_headers_of_kernels {
            true => releases.iter().map(|release| format!("linux-headers-{release}")).collect(),
            false => vec!["linux-headers-cloud-amd64".to_owned()],
        };
        make(path, || {
            let part = path.with_extension("part");
            if part.exists() {
                fs::remove_dir_all(&part)?;
            }
            let packages = "ca-certificates,busybox-static,dkms,gcc,make,kmod,binutils,xz-utils";
            let mut bootstrap = Command::new("mmdebstrap");
            bootstrap.args(["--quiet", "--mode=root", "--variant=apt", "--components=main"]);
            bootstrap.arg(format!("--include={packages}"));
            bootstrap.arg("--aptopt=APT::Install-Recommends \"false\"");
            if suite == NEWEST_SUITE {
                // A mirror may have it from weeks ago. What is signed is verified all the same.
                bootstrap.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
            }
            let (site, security) = (lab::debian_archive()?, lab::debian_security_archive()?);
            let mut sources = vec![format!("deb {site} {suite} main")];
            if suite != NEWEST_SUITE {
                sources.push(format!("deb {site} {suite}-updates main"));
                sources.push(format!("deb {security} {suite}-security main"));
            }
            if suite == "bookworm" {
                sources.push(format!("deb {site} {suite}-backports main"));
            }
            run(bootstrap.arg(suite).arg(&part).args(sources))?;
            fs::copy("/etc/resolv.conf", part.join("etc/resolv.conf"))?;
            for directory in ["tried", "packages", "kernel/boot", "kernel/usr/lib/debug/boot"] {
                fs::create_dir_all(part.join(directory))?;
            }
            for (kernel, release) in kernels.iter().zip(&releases) {
                let unpacked = kernel.ancestors().nth(2).context("the kernel lies in no boot")?;
                for name in [format!("boot/vmlinuz-{release}"), debug_file(release)] {
                    let from = unpacked.join(&name);
                    fs::copy(&from, part.join("kernel").join(&name))
                        .with_context(|| from.display().to_string())?;
                }
            }
            let made = DebianRoot {
                suite,
                releases: releases.clone(),
                has_headers_of_kernels,
                path: part.clone(),
                log: path.with_extension("log"),
            };
            let qemu = match suite {
                "bookworm" => "-t bookworm-backports qemu-system-x86",
                _ => "qemu-system-x86",
            };
            made.run(&format!(
                "apt-get update -q && apt-get install -y -q {} && \
                               apt-get install -y -q --no-install-recommends {qemu}",
                headers.join(" ")
            ))?;
            Ok(fs::rename(&part, path)?)
        })?;
        let (log, path) = (path.with_extension("log"), path.to_owned());
        Ok(DebianRoot { suite, releases, has_headers_of_kernels, path, log })
    }

    /// Runs a shell script in it, as root. What it prints goes to a log beside it.
    ///
    /// # Errors
    /// The script fails; with the last lines that it printed.
    pub(super) fn run(&self, script: &str) -> Result<()> {
        let enter = "mount --bind /dev \"$1/dev\" && mount -t proc proc \"$1/proc\" && \
                     exec chroot \"$1\" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tried \
                     LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive sh -euc \"$2\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "sh", "-c", enter, "sh"]);
        let output = command.arg(&self.path).arg(script).output()?;
        let text =
            [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
        let text = text.concat();
        let mut log = fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
        std::io::Write::write_all(&mut log, format!("# {script}\n{text}\n").as_bytes())?;
        let last: Vec<&str> = text.lines().rev().take(5).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        ensure!(output.status.success(), "{}\n{}", output.status, last.join("\n"));
        Ok(())
    }

    /// Puts packages into `/packages`.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub(super) fn add_packages(&self, packages: &[PathBuf]) -> Result<()> {
        for package in packages {
            let name = package.file_name().context("a package has a name")?;
            fs::copy(package, self.path.join("packages").join(name))?;
        }
        Ok(())
    }

    /// Every file with its owner, mode and checksum, ascending. The lists of modules are made again
    /// first: DKMS makes them when it installs a module, some versions remove them when no module
    /// is left, and here are a kernel's headers without its modules.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn files(&self) -> Result<String> {
        self.run("for kernel in /lib/modules/*; do depmod \"${kernel##*/}\"; done")?;
        let list = "cd \"$1\" && find . -xdev \\( -type f -exec sha256sum {} + \\) , \
                    \\( -printf '%M %U:%G %l %p\\n' \\)";
        let output = succeeded(Command::new("sh").args(["-c", list, "sh"]).arg(&self.path))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let is_compared = |line: &&str| {
            let path = line.rfind(" ./").map_or("", |at| &line[at + 1..]);
            !NOT_COMPARED.iter().any(|begins| path.starts_with(begins))
        };
        let mut lines: Vec<&str> = text.lines().filter(is_compared).collect();
        lines.sort_unstable();
        Ok(lines.join("\n"))
    }
}
