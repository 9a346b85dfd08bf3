//! Which release of Linux a vmlinux is, and whether functions of such a kernel were ever replaced.
//!
//! Input: the kernel's banner. Output: the release, and whether its version was tried. Whether a
//! kernel can be read depends on its tables alone (`super::forms`).

use super::LinkedKernel;

/// The versions of Linux that have passed every test of live replacement
/// (`docs/results/live-kernels.md`).
pub const TRIED: [&str; 3] = ["6.1", "6.12", "7.2"];

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
}

/// Whether a release is of one of the versions that were tried.
pub fn is_tried(release: &str) -> bool {
    TRIED.iter().any(|version| {
        let rest = release.strip_prefix(version);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_belongs_to_its_version() {
        for release in ["6.12.117+deb12-amd64", "6.12", "6.12-rc3", "6.1.0-57-cloud-amd64"] {
            assert!(is_tried(release), "{release}");
        }
        for release in ["6.10.1", "6.120.1", "6.11.0", "7.3.4", "7.20.1", "5.6.12", ""] {
            assert!(!is_tried(release), "{release}");
        }
    }
}
