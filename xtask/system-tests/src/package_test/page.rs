//! The commands of the page `docs/how-to/package.md`.
//!
//! Input: the page. Output: its blocks of code. Runs nothing.

use anyhow::{Context, Result, bail};

const PAGE: &str = include_str!("../../../../docs/how-to/package.md");

/// What the page has a reader type, or write to a file.
pub(super) struct Page {
    /// Sets what every build has in common.
    pub same_kernel: String,
    /// Gives clang the profile.
    pub profile: String,
    /// Changes the kernel's own rules.
    pub changes: String,
    /// Makes Debian's packages by `make bindeb-pkg`.
    pub packages: String,
    /// `debian/rules` of a source package, but for the profile.
    pub rules: String,
    /// The functions of a `PKGBUILD`, but for the profile.
    pub functions: String,
    /// Writes the notes of the kernel that was built.
    pub notes: String,
    /// Compares them with those of the running kernel.
    pub comparison: String,
}

impl Page {
    /// # Errors
    /// The page lacks a block that the test runs.
    pub(super) fn read() -> Result<Page> {
        let one = |kind, has| block(PAGE, kind, has).map(str::to_owned);
        let running = one("sh", "/sys/kernel/notes")?;
        let (notes, comparison) =
            running.split_once('\n').context("the block that compares notes has one line")?;
        Ok(Page {
            same_kernel: one("sh", "export KBUILD_BUILD_TIMESTAMP=")?,
            profile: one("sh", "export KCFLAGS=")?,
            changes: one("sh", "scripts/package/debian/rules")?,
            packages: one("sh", "bindeb-pkg")?,
            rules: without_profile(&one("make", "override_dh_auto_build:")?)?,
            functions: without_profile(&one("bash", "package() {")?)?,
            notes: notes.to_owned(),
            comparison: comparison.trim_end().to_owned(),
        })
    }
}

/// The text without the line that gives clang the profile: with it, make would compile everything
/// again.
fn without_profile(text: &str) -> Result<String> {
    let (profile, other): (Vec<_>, Vec<_>) =
        text.split_inclusive('\n').partition(|line| line.contains("export KCFLAGS"));
    match profile.len() {
        1 => Ok(other.concat()),
        lines => bail!("docs/how-to/package.md: {lines} lines set KCFLAGS in {text}"),
    }
}

/// The text of the only block of a kind that has a text in it.
fn block<'p>(page: &'p str, kind: &str, has: &str) -> Result<&'p str> {
    let begin = format!("```{kind}\n");
    let blocks = page.split(&begin).skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
    match blocks.filter(|block| block.contains(has)).collect::<Vec<_>>()[..] {
        [block] => Ok(block),
        ref found => bail!("docs/how-to/package.md: {} blocks of {kind} have {has}", found.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_what_the_test_runs() {
        let page = Page::read().unwrap();
        assert!(page.notes.starts_with("objcopy ") && page.comparison.starts_with("cmp "));
        assert!(page.rules.starts_with("#!/usr/bin/make -f\n"));
        assert!(!page.rules.contains("KCFLAGS") && !page.functions.contains("KCFLAGS"));
        assert!(without_profile("build() {\n}\n").is_err());
        assert_eq!(block("a\n```sh\nb\n```\n```sh\nc\n```\n", "sh", "c").unwrap(), "c\n");
        let error = block("```sh\nb\n```\n```sh\nb c\n```\n", "sh", "b").unwrap_err().to_string();
        assert!(error.ends_with("2 blocks of sh have b"), "{error}");
    }
}
