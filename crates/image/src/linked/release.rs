//! Which release of Linux a vmlinux is, and whether Kernlane knows its tables.
//!
//! Input: the kernel's banner. Output: the release, or why it is refused. Without a banner the
//! tables themselves must fit.

use super::LinkedKernel;
use anyhow::{Result, ensure};

/// The only version of Linux whose side tables and `struct module` this crate reads.
pub const SUPPORTED: &str = "6.12";

impl LinkedKernel<'_> {
    /// The kernel's release, such as `6.12.117+deb12-amd64`; `None` if it has no banner.
    pub fn release(&self) -> Option<&str> {
        self.banner()?.split(' ').nth(2)
    }

    /// The kernel's banner, `Linux version RELEASE (BUILDER) …`.
    pub fn banner(&self) -> Option<&str> {
        let at = self.address_of("linux_banner")?;
        let text = std::str::from_utf8(self.string_at(at.0)?).ok()?;
        text.starts_with("Linux version ").then_some(text)
    }

    /// Refuses a release whose formats are not known.
    pub(super) fn ensure_supported(&self) -> Result<()> {
        let Some(release) = self.release() else { return Ok(()) };
        ensure!(
            is_supported(release),
            "is Linux {release}: functions of a running kernel can be replaced in Linux \
             {SUPPORTED} only, since the formats of the kernel's tables differ between versions"
        );
        Ok(())
    }
}

fn is_supported(release: &str) -> bool {
    let rest = release.strip_prefix(SUPPORTED);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_version_is_supported() {
        for release in ["6.12.117+deb12-amd64", "6.12", "6.12-rc3", "6.12.0-kernlane"] {
            assert!(is_supported(release), "{release}");
        }
        for release in ["6.1.0-56-cloud-amd64", "6.1", "6.120.1", "7.3.0", "6.13.2", "5.6.12", ""] {
            assert!(!is_supported(release), "{release}");
        }
    }
}
