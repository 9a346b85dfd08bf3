//! What commands say about the vmlinux of the running kernel: how to get it, and that nobody
//! vouches for it.

use anyhow::{Result, bail};
use host::note;
use image::linked::LinkedKernel;
use image::linked::release::is_tried;
use live::origin::{self, MissingVmlinux, Voucher};
use std::path::{Path, PathBuf};

/// Compares a vmlinux with its package or its boot image. Warns if there is neither, and if its
/// version has not passed every test.
///
/// # Errors
/// They differ: one of the files is damaged.
pub(super) fn vouch(path: &Path, bytes: &[u8], kernel: &LinkedKernel<'_>) -> Result<()> {
    if let Some(release) = kernel.release().filter(|release| !is_tried(release)) {
        note!(
            "Linux {release} has not passed every test of live replacement; its tables have known \
             forms"
        );
    }
    if origin::vouch(path, bytes, kernel, &guest::BzImage::unpack)? == Voucher::Nobody {
        note!(
            "neither a package nor a boot image vouches for {}: damage to its tables of \
             alternatives, returns and calls would not be noticed, since the kernel has freed its \
             own",
            path.display()
        );
    }
    Ok(())
}

/// Where distributions put the vmlinux of the running kernel.
///
/// # Errors
/// It is not there. The message says how to get it.
pub(super) fn installed_vmlinux() -> Result<PathBuf> {
    match origin::installed_vmlinux()? {
        Ok(path) => Ok(path),
        Err(error) => bail!("{}", missing(&error)),
    }
}

/// That the vmlinux is missing, and how to get it.
pub(super) fn missing(missing: &MissingVmlinux) -> String {
    format!("no vmlinux of the running kernel: {}", advice(missing))
}

/// How to get the vmlinux.
fn advice(MissingVmlinux { release, build_id, is_debian }: &MissingVmlinux) -> String {
    let id = build_id.as_ref().map_or("BUILD-ID", |id| &id.0);
    match is_debian {
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
    use image::BuildId;

    #[test]
    fn a_debian_package_is_named_for_debian_s_kernels_only() {
        let missing = |release: &str, is_debian| MissingVmlinux {
            release: release.into(),
            build_id: Some(BuildId("ab01".into())),
            is_debian,
        };
        let message = advice(&missing("6.12.117+deb12-amd64", true));
        assert!(
            message.contains("apt-get install linux-image-6.12.117+deb12-amd64-dbg"),
            "{message}"
        );
        let message = advice(&missing("6.12.9", false));
        assert!(!message.contains("apt-get") && message.contains("build id ab01"), "{message}");
        let hidden = MissingVmlinux { build_id: None, ..missing("6.12.9", false) };
        assert!(advice(&hidden).contains("debuginfod-find debuginfo BUILD-ID)"));
    }
}
