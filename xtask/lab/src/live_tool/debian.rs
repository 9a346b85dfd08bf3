//! Debian's stock kernels, each with its -dbg vmlinux and its headers.
//!
//! Input: apt's package lists. Output: the path of the boot image, unpacked in the cache beside its
//! vmlinux. Nothing of the newest suite is installed: its headers and compiler are unpacked into a
//! directory of their own, in which modules are built. The headers of other suites are installed,
//! since they name each other by absolute paths. Both need root.

pub use crate::apt::NEWEST_SUITE;
use crate::apt::{Apt, matching};
use crate::run;
use anyhow::{Context, Result, bail, ensure};
use guest::GuestKernel;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PREFIX: &str = "linux-image-";

/// Which of Debian's configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// For virtual machines of clouds: fewer drivers.
    Cloud,
    /// For everything else.
    Generic,
    /// Real-time: `CONFIG_PREEMPT_RT`.
    RealTime,
}

/// Which of Debian's versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Of Debian 12.
    V6_1,
    /// Of Debian 13, and of Debian 12's backports.
    V6_12,
    /// The newest in the archive.
    Newest,
}

/// One of Debian's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StockKernel {
    /// Its version.
    pub version: Version,
    /// Its configuration.
    pub flavour: Flavour,
}

impl fmt::Display for StockKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = match self.version {
            Version::V6_1 => "6.1",
            Version::V6_12 => "6.12",
            Version::Newest => "newest",
        };
        let flavour = match self.flavour {
            Flavour::Cloud => "cloud",
            Flavour::Generic => "generic",
            Flavour::RealTime => "rt",
        };
        write!(f, "{version}-{flavour}")
    }
}

impl StockKernel {
    /// Every version in every flavour.
    pub fn all() -> Vec<StockKernel> {
        let versions = [Version::V6_1, Version::V6_12, Version::Newest];
        let flavours = [Flavour::Cloud, Flavour::Generic, Flavour::RealTime];
        let of = |version| flavours.map(|flavour| StockKernel { version, flavour });
        versions.into_iter().flat_map(of).collect()
    }

    /// The kernel with that name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> Result<StockKernel> {
        let all = Self::all();
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        let at = names.iter().position(|known| known == name);
        at.map(|at| all[at]).with_context(|| {
            format!("{name}: no kernel of Debian that is known; these are: {}", names.join(", "))
        })
    }

    /// Its directory in the cache.
    fn directory(self) -> String {
        match (self.version, self.flavour) {
            (Version::V6_12, Flavour::Cloud) => "debian".to_owned(),
            (Version::V6_12, Flavour::Generic) => "debian-generic".to_owned(),
            _ => format!("debian-{self}"),
        }
    }

    /// What the names of its packages match.
    fn packages(self) -> String {
        let release = match self.version {
            Version::V6_1 => "6[.]1[.]0-[0-9]+",
            Version::V6_12 => "6[.]12[.][0-9]+[+]deb[0-9.]+",
            Version::Newest => "[0-9.]+[+]deb[0-9]+",
        };
        let flavour = match self.flavour {
            Flavour::Cloud => "cloud-",
            Flavour::Generic => "",
            Flavour::RealTime => "rt-",
        };
        format!("^{PREFIX}{release}-{flavour}amd64$")
    }

    /// apt of the suites that have it.
    fn apt(self) -> Result<Apt> {
        match self.version {
            Version::Newest => newest_apt(),
            Version::V6_1 | Version::V6_12 => Ok(Apt::default()),
        }
    }

    /// The boot image, downloaded if it is not there.
    ///
    /// # Errors
    /// apt knows no such kernel, or it cannot be downloaded.
    pub fn boot_image(self) -> Result<PathBuf> {
        let directory = guest::writable_cache()?.join(self.directory());
        if let Some(image) = unpacked(&directory) {
            return Ok(image);
        }
        let apt = self.apt()?;
        let name = matching(&apt, &self.packages())?.pop();
        let name = name.context("apt knows no such kernel: run apt-get update")?;
        let release = name.trim_start_matches(PREFIX);
        println!("downloading Debian's kernel {release} and its symbols");
        let scratch = tempfile::tempdir_in(guest::writable_cache()?)?;
        let parts: &[&str] = match self.version {
            Version::Newest => &["linux-binary-", "linux-modules-", "linux-base-"],
            Version::V6_1 | Version::V6_12 => &[PREFIX],
        };
        let mut packages: Vec<String> =
            parts.iter().map(|part| format!("{part}{release}")).collect();
        packages.push(format!("{PREFIX}{release}-dbg"));
        let mut download = apt.command("apt-get");
        run(download.arg("download").args(&packages).current_dir(scratch.path()))?;
        let root = scratch.path().join("root");
        for package in debs(scratch.path())? {
            unpack(&package, &root)?;
        }
        settle(&root, release)?;
        fs::rename(&root, &directory).with_context(|| format!("making {}", directory.display()))?;
        unpacked(&directory).context("the package has no kernel")
    }
}

/// The boot image of the kernel 6.12, downloaded if it is not there.
///
/// # Errors
/// apt knows no such kernel, or it cannot be downloaded.
pub fn kernel(flavour: Flavour) -> Result<PathBuf> {
    StockKernel { version: Version::V6_12, flavour }.boot_image()
}

/// The boot image of the kernel 6.12, and the directory of its headers.
///
/// # Errors
/// apt knows no such kernel, or one of both cannot be downloaded.
pub fn kernel_with_headers(flavour: Flavour) -> Result<(PathBuf, PathBuf)> {
    let kernel = kernel(flavour)?;
    let release = GuestKernel::open(&kernel, None)?.release;
    Ok((kernel, headers(&release)?.path))
}

/// apt of the newest suite, whose lists are downloaded once.
fn newest_apt() -> Result<Apt> {
    let directory = guest::writable_cache()?.join("newest-apt");
    let is_new = !directory.exists();
    let apt = Apt::of_suites(&[NEWEST_SUITE], &directory)?;
    if is_new {
        apt.update()?;
    }
    Ok(apt)
}

fn debs(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|e| e == "deb")).collect())
}

/// Unpacks a package, but for the debug information of modules: of it there are gigabytes.
fn unpack(package: &Path, root: &Path) -> Result<()> {
    fs::create_dir_all(root)?;
    let script = "dpkg-deb --fsys-tarfile \"$1\" | tar -x -C \"$2\" --keep-directory-symlink \
        --exclude='./usr/lib/debug/lib/modules/*/kernel' --exclude=./usr/lib/debug/.build-id";
    run(Command::new("bash").args(["-o", "pipefail", "-c", script, "-"]).arg(package).arg(root))
}

/// Puts the parts of newer packages where those of older ones are.
fn settle(root: &Path, release: &str) -> Result<()> {
    let modules = root.join("usr/lib/modules").join(release);
    let boot = root.join("boot").join(format!("vmlinuz-{release}"));
    if !boot.exists() && modules.join("vmlinuz").exists() {
        fs::create_dir_all(root.join("boot"))?;
        fs::rename(modules.join("vmlinuz"), &boot)?;
        std::os::unix::fs::symlink("usr/lib", root.join("lib"))?;
    }
    let debug = root.join("usr/lib/debug/boot");
    let symbols = debug.join(format!("System.map-{release}"));
    if !symbols.exists() {
        let script = "nm --numeric-sort \"$1\" | grep -v '^ ' >\"$2\"";
        let vmlinux = debug.join(format!("vmlinux-{release}"));
        run(Command::new("sh").args(["-c", script, "-"]).arg(vmlinux).arg(symbols))?;
    }
    Ok(())
}

fn unpacked(directory: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(directory.join("boot")).ok()?;
    let mut images: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    images.retain(|path| {
        path.file_name().is_some_and(|n| {
            n.to_string_lossy().starts_with("vmlinuz-") && n.to_string_lossy().ends_with("-amd64")
        })
    });
    images.sort();
    images.pop()
}

/// What modules of a kernel are built with.
pub struct Headers {
    /// The directory whose compiler and programs are used; `None` for those of this machine.
    pub root: Option<PathBuf>,
    /// The headers, seen from there.
    pub path: PathBuf,
}

/// What to build modules of a kernel with.
///
/// # Errors
/// They cannot be installed or unpacked.
pub fn headers(release: &str) -> Result<Headers> {
    let path = PathBuf::from(format!("/usr/src/linux-headers-{release}"));
    let package = format!("linux-headers-{release}");
    if path.is_dir() {
        return Ok(Headers { root: None, path });
    }
    if !matching(&Apt::default(), &format!("^{}$", package.replace('+', "[+]")))?.is_empty() {
        println!("installing {package}");
        let options = ["install", "-y", "-q", "--no-install-recommends", &package];
        run(Command::new("apt-get").args(options))?;
        ensure!(path.is_dir(), "{} is missing", path.display());
        return Ok(Headers { root: None, path });
    }
    let root = toolchain(&package)?;
    Ok(Headers { root: Some(root), path })
}

/// What a module's build runs, besides what the headers depend on.
const PROGRAMS: [&str; 9] =
    ["make", "coreutils", "dash", "bash", "grep", "sed", "mawk", "findutils", "libc-bin"];

/// A directory with the headers and their compiler, of the newest suite.
fn toolchain(package: &str) -> Result<PathBuf> {
    let root = guest::writable_cache()?.join("toolchains").join(package);
    if root.is_dir() {
        return Ok(root);
    }
    println!("unpacking {package} with its compiler");
    let apt = newest_apt()?;
    let scratch = tempfile::tempdir_in(guest::writable_cache()?)?;
    let archives = scratch.path().join("archives");
    fs::create_dir_all(archives.join("partial"))?;
    let mut install = apt.command("apt-get");
    install.args(["install", "-y", "-q", "--download-only", "--no-install-recommends", "-o"]);
    run(install
        .arg(format!("Dir::Cache::archives={}", archives.display()))
        .arg(package)
        .args(PROGRAMS))?;
    let unpacked = scratch.path().join("root");
    for package in debs(&archives)? {
        unpack(&package, &unpacked)?;
    }
    for (name, target) in [("awk", "mawk"), ("sh", "dash")] {
        let link = unpacked.join("usr/bin").join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(target, link)?;
        }
    }
    fs::create_dir_all(root.parent().context("a cache without a place")?)?;
    fs::rename(&unpacked, &root).with_context(|| format!("making {}", root.display()))?;
    Ok(root)
}

impl Headers {
    /// Runs `make` in a directory that holds a module's sources.
    ///
    /// # Errors
    /// The module does not build.
    pub fn make(&self, build: &Path, makefile: &Path) -> Result<()> {
        let kernel = format!("KERNEL={}", self.path.display());
        let Some(root) = &self.root else {
            let mut make = Command::new("make");
            make.args(["-s", "-C"]).arg(build).arg("-f").arg(makefile);
            return run(make.arg(kernel));
        };
        let (Some(above), Some(name)) = (build.parent(), build.file_name()) else {
            bail!("{}: no directory for a module", build.display());
        };
        let makefile = makefile.strip_prefix(above).context("a Makefile that lies elsewhere")?;
        let makefile = Path::new("/build").join(makefile);
        // The build's programs look into /proc and /dev. The mounts end with the command.
        let script = "mkdir -p \"$1/build\" && mount -t proc proc \"$1/proc\" &&
            mount --rbind /dev \"$1/dev\" && mount --bind \"$2\" \"$1/build\" &&
            exec chroot \"$1\" make -s -C \"/build/$3\" -f \"$4\" \"$5\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", script, "-"]).arg(root).arg(above).arg(name);
        run(unshare.arg(makefile).arg(kernel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_found_by_its_name() {
        for kernel in StockKernel::all() {
            assert_eq!(StockKernel::named(&kernel.to_string()).unwrap(), kernel);
        }
        let error = StockKernel::named("6.1").unwrap_err().to_string();
        assert!(
            error.starts_with("6.1: no kernel of Debian that is known; these are: 6.1-cloud, ")
        );
    }

    #[test]
    fn kernels_lie_in_directories_of_their_own() {
        let mut directories: Vec<String> =
            StockKernel::all().into_iter().map(StockKernel::directory).collect();
        directories.sort_unstable();
        let all = directories.len();
        directories.dedup();
        assert_eq!(directories.len(), all);
    }
}
