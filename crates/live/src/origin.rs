//! Where the vmlinux of the running kernel is, and what vouches for the parts of it that the
//! kernel's memory does not show any more.
//!
//! Input: paths of this machine. Output: a path, or what is known about the file that is missing;
//! who vouches for a vmlinux. This module never reads the kernel's memory.

use crate::freed;
use crate::running;
use anyhow::{Context, Result};
use image::BuildId;
use image::linked::LinkedKernel;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What is known about the running kernel if its vmlinux is not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingVmlinux {
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// Its build id; `None` if the kernel does not show it.
    pub build_id: Option<BuildId>,
    /// Whether Debian has built the kernel.
    pub is_debian: bool,
}

/// The vmlinux of the running kernel where distributions put it, or what is known about the missing
/// file.
///
/// # Errors
/// The kernel's release cannot be read.
pub fn installed_vmlinux() -> Result<Result<PathBuf, MissingVmlinux>> {
    let release = release()?;
    if let Some(path) = places(&release).into_iter().find(|path| path.is_file()) {
        return Ok(Ok(path));
    }
    Ok(Err(MissingVmlinux {
        release,
        build_id: running::build_id().ok(),
        is_debian: is_debian(&std::fs::read_to_string("/proc/version").unwrap_or_default()),
    }))
}

/// The running kernel's release, as `uname -r` prints it.
///
/// # Errors
/// The release cannot be read.
pub fn release() -> Result<String> {
    const RELEASE: &str = "/proc/sys/kernel/osrelease";
    let release = std::fs::read_to_string(RELEASE).context("reading the kernel's osrelease")?;
    Ok(release.trim().to_owned())
}

fn places(release: &str) -> [PathBuf; 2] {
    [
        format!("/usr/lib/debug/boot/vmlinux-{release}").into(),
        format!("/usr/lib/debug/lib/modules/{release}/vmlinux").into(),
    ]
}

/// `banner` is `/proc/version`, in which a distribution names itself. The compiler's name in it may
/// be Debian's although somebody else built the kernel.
fn is_debian(banner: &str) -> bool {
    banner.contains("(debian-kernel@lists.debian.org)")
}

/// Who vouches for a vmlinux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Voucher {
    /// The installed package of this name has the file.
    Package(String),
    /// This boot image has the same kernel.
    BootImage(PathBuf),
    /// Nobody: damage to the tables that the kernel has freed would not be noticed.
    Nobody,
}

/// Compares a vmlinux with the digest of its package, otherwise with a boot image of the same
/// build. `bytes`, read from `path`, are those of `kernel`; `unpack` gives the kernel in a boot
/// image, from the image's bytes.
///
/// # Errors
/// They differ: one of the files is damaged. Or a boot image cannot be read or unpacked.
pub fn vouch(
    path: &Path,
    bytes: &[u8],
    kernel: &LinkedKernel<'_>,
    unpack: &dyn Fn(&[u8]) -> Result<Vec<u8>>,
) -> Result<Voucher> {
    if let Some(package) = freed::package(path, bytes, Path::new(freed::PACKAGES))? {
        return Ok(Voucher::Package(package));
    }
    for image in boot_images(path, kernel.release()) {
        let packed = match std::fs::read(&image) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            read => read.with_context(|| format!("reading {}", image.display()))?,
        };
        let compared = unpack(&packed)
            .and_then(|unpacked| freed::boot_image(kernel, &unpacked))
            .with_context(|| image.display().to_string())?;
        if compared {
            return Ok(Voucher::BootImage(image));
        }
    }
    Ok(Voucher::Nobody)
}

/// Where the boot image of a kernel may be: in its build tree, and where kernels are installed.
fn boot_images(vmlinux: &Path, release: Option<&str>) -> Vec<PathBuf> {
    let tree = vmlinux.parent().map(|tree| tree.join("arch/x86/boot/bzImage"));
    let installed = release.filter(|release| !release.contains('/'));
    let installed = installed.map(|release| PathBuf::from(format!("/boot/vmlinuz-{release}")));
    tree.into_iter().chain(installed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kernel::{tables, vmlinux, with};
    use anyhow::bail;

    #[test]
    fn only_debian_s_own_kernels_are_debian_s() {
        let debian = "Linux version 6.12.117+deb12-amd64 (debian-kernel@lists.debian.org) (gcc-12";
        assert!(is_debian(debian));
        // A kernel that somebody built on Debian, or another distribution's.
        for banner in ["Linux version 6.12.9 (me@here) (gcc (Debian 12.2.0-14+deb12u1) 12.2.0", ""]
        {
            assert!(!is_debian(banner), "{banner}");
        }
    }

    #[test]
    fn files_are_looked_for_where_distributions_and_kernel_builds_put_them() {
        let places = places("6.12.9").map(|path| path.display().to_string());
        let expected =
            ["/usr/lib/debug/boot/vmlinux-6.12.9", "/usr/lib/debug/lib/modules/6.12.9/vmlinux"];
        assert_eq!(places, expected);
        let images = |release| boot_images(Path::new("/tree/vmlinux"), release);
        let built = Path::new("/tree/arch/x86/boot/bzImage");
        assert_eq!(images(Some("6.12.9")), [built, Path::new("/boot/vmlinuz-6.12.9")]);
        // The release comes from the file. It must not lead out of /boot.
        assert_eq!(images(Some("../etc/passwd")), [built]);
        assert_eq!(images(None), [built]);
    }

    #[test]
    fn a_boot_image_of_the_same_build_vouches_and_a_damaged_one_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vmlinux");
        let image = directory.path().join("arch/x86/boot/bzImage");
        let file = vmlinux();
        std::fs::write(&path, &file).unwrap();
        with(tables(), |kernel| {
            let vouched = |unpack: &dyn Fn(&[u8]) -> Result<Vec<u8>>| {
                vouch(&path, &file, kernel, unpack).map_err(|error| format!("{error:#}"))
            };
            let stored = |packed: &[u8]| Ok(packed.to_vec());
            assert_eq!(vouched(&stored), Ok(Voucher::Nobody));
            std::fs::create_dir_all(image.parent().unwrap()).unwrap();
            std::fs::write(&image, &file).unwrap();
            assert_eq!(vouched(&stored), Ok(Voucher::BootImage(image.clone())));
            let failed = vouched(&|_| bail!("not a boot image"));
            assert_eq!(failed, Err(format!("{}: not a boot image", image.display())));
            // Another build: its build id, which the note holds twenty times the same byte of.
            let mut other = file.clone();
            let id = other.windows(20).position(|bytes| bytes == [0x5f; 20]).unwrap();
            other[id] = 0;
            std::fs::write(&image, &other).unwrap();
            assert_eq!(vouched(&stored), Ok(Voucher::Nobody));
            let mut damaged = file.clone();
            let code = damaged.windows(4).position(|bytes| bytes == [0x48, 0x89, 0xfb, 0x85]);
            damaged[code.unwrap()] ^= 1;
            std::fs::write(&image, &damaged).unwrap();
            let message = vouched(&stored).unwrap_err();
            assert!(message.contains("differ at ffffffff81000005 in .text"), "{message}");
        });
    }
}
