//! Finds the vmlinux of the running kernel, and what vouches for the parts of it that the kernel's
//! memory does not show any more.

use anyhow::{Context, Result, bail};
use host::note;
use image::linked::LinkedKernel;
use live::freed;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Compares a vmlinux with the digest of its package, otherwise with a boot image of the same
/// build. Warns if there is neither.
///
/// # Errors
/// They differ: one of the files is damaged.
pub(super) fn vouch(path: &Path, bytes: &[u8], kernel: &LinkedKernel<'_>) -> Result<()> {
    if freed::package(path, bytes, Path::new(freed::PACKAGES))?.is_some() {
        return Ok(());
    }
    for image in boot_images(path, kernel) {
        let packed = match std::fs::read(&image) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            read => read.with_context(|| format!("reading {}", image.display()))?,
        };
        let compared = guest::BzImage::unpack(&packed)
            .and_then(|unpacked| freed::boot_image(kernel, &unpacked))
            .with_context(|| image.display().to_string())?;
        if compared {
            return Ok(());
        }
    }
    note!(
        "neither a package nor a boot image vouches for {}: damage to its tables of alternatives, \
         returns and calls would not be noticed, since the kernel has freed its own",
        path.display()
    );
    Ok(())
}

/// Where the boot image of a kernel may be: in its build tree, and where kernels are installed.
fn boot_images(vmlinux: &Path, kernel: &LinkedKernel<'_>) -> Vec<PathBuf> {
    let tree = vmlinux.parent().map(|tree| tree.join("arch/x86/boot/bzImage"));
    let installed = kernel.release().filter(|release| !release.contains('/'));
    let installed = installed.map(|release| PathBuf::from(format!("/boot/vmlinuz-{release}")));
    tree.into_iter().chain(installed).collect()
}

/// Where distributions put the vmlinux of the running kernel.
///
/// # Errors
/// It is not there. The message says how to get it.
pub(super) fn installed_vmlinux() -> Result<PathBuf> {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/proc/sys/kernel/{name}"))
            .with_context(|| format!("reading the kernel's {name}"))
    };
    let release = read("osrelease")?;
    let release = release.trim();
    let places = [
        format!("/usr/lib/debug/boot/vmlinux-{release}"),
        format!("/usr/lib/debug/lib/modules/{release}/vmlinux"),
    ];
    match places.iter().find(|path| Path::new(path).is_file()) {
        Some(path) => Ok(path.into()),
        None => bail!(
            "no vmlinux of the running kernel: {}",
            advice(
                &std::fs::read_to_string("/proc/version").unwrap_or_default(),
                release,
                live::running::build_id().ok().map(|id| id.0).as_deref()
            )
        ),
    }
}

/// How to get the vmlinux. `banner` is `/proc/version`, in which a distribution names itself.
fn advice(banner: &str, release: &str, build_id: Option<&str>) -> String {
    let id = build_id.unwrap_or("BUILD-ID");
    match banner.contains("(debian-kernel@lists.debian.org)") {
        true => format!(
            "install Debian's (apt-get install linux-image-{release}-dbg), fetch it \
             (debuginfod-find debuginfo {id}), or give --vmlinux FILE"
        ),
        false => format!(
            "give --vmlinux FILE, with the vmlinux of {release} and build id {id}: it is in the \
             tree that the kernel was built in, in the distribution's package of debug symbols, or \
             with debuginfod (debuginfod-find debuginfo {id})"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debian_package_is_named_for_debian_s_kernels_only() {
        let debian = "Linux version 6.12.117+deb12-amd64 (debian-kernel@lists.debian.org) (gcc-12";
        let message = advice(debian, "6.12.117+deb12-amd64", Some("ab01"));
        assert!(
            message.contains("apt-get install linux-image-6.12.117+deb12-amd64-dbg"),
            "{message}"
        );
        // A kernel that somebody built on Debian, or another distribution's.
        for banner in ["Linux version 6.12.9 (me@here) (gcc (Debian 12.2.0-14+deb12u1) 12.2.0", ""]
        {
            let message = advice(banner, "6.12.9", Some("ab01"));
            assert!(!message.contains("apt-get") && message.contains("build id ab01"), "{message}");
        }
    }
}
