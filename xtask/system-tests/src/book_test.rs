//! `cargo xtask book-test`: the book is built without a warning, its links work in HTML, and the
//! commands of the first hour run.
//!
//! Input: the results of `kernlane optimize net`, and the tree of its kernel. Each block marked
//! `sh` in `docs/first-hour/` runs line by line in one scratch directory that looks like the
//! reader's, with `target/demo` and `~/.cache/kernlane/trees/gcc`. Blocks marked `console` install
//! or build, and do not run. Nothing is written outside of the scratch directory and `target/book`.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The pages in their order: later pages use files of earlier ones.
const FIRST_HOUR: [&str; 4] = ["install", "demo", "recording", "page"];

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn book_test(demo: &Path, tree: &Path) -> Result<()> {
    build()?;
    run_first_hour(demo, tree)
}

fn build() -> Result<()> {
    let output = Command::new("xtask/book.sh").output().context("xtask/book.sh")?;
    let output_text = [output.stdout, output.stderr].concat();
    let output_text = String::from_utf8_lossy(&output_text);
    ensure!(output.status.success(), "the book cannot be built:\n{output_text}");
    ensure!(
        !output_text.contains("WARN") && !output_text.contains("ERROR"),
        "mdBook printed a warning or an error:\n{output_text}"
    );
    let pages = html(Path::new("target/book"))?;
    for page in &pages {
        links_hold(page)?;
    }
    println!("passed: the book is built, and the links of its {} pages work", pages.len());
    Ok(())
}

fn html(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match path.extension() {
            _ if path.is_dir() => found.extend(html(&path)?),
            // The page for errors is only for a server's root.
            Some(ending) if ending == "html" && !path.ends_with("404.html") => found.push(path),
            _ => {}
        }
    }
    Ok(found)
}

/// Checks that every relative link leads to a file of the book, and to an element in it.
fn links_hold(page: &Path) -> Result<()> {
    let text = fs::read_to_string(page)?;
    let main = text.split_once("<main>").map_or(&text[..], |(_, main)| main);
    for piece in main.split("href=\"").skip(1) {
        let link = piece.split('"').next().unwrap_or_default();
        if link.contains("://") || link.is_empty() {
            continue;
        }
        let (file, id) = link.split_once('#').unwrap_or((link, ""));
        let target = match file.is_empty() {
            true => page.to_owned(),
            false => page.with_file_name("").join(file),
        };
        let target_text = fs::read_to_string(&target)
            .with_context(|| format!("{} links to {link}", page.display()))?;
        ensure!(
            id.is_empty() || target_text.contains(&format!("id=\"{id}\"")),
            "{} links to {link}, but there is no such id",
            page.display()
        );
    }
    Ok(())
}

fn run_first_hour(demo: &Path, tree: &Path) -> Result<()> {
    // The book's commands are tested.
    let kernlane = lab::kernlane()?;
    let scratch = tempfile::tempdir()?;
    let home = scratch.path();
    for (place, original) in [("target/demo", demo), (".cache/kernlane/trees/gcc", tree)] {
        let place = home.join(place);
        fs::create_dir_all(place.parent().context("a place below the home directory")?)?;
        symlink(original.canonicalize().with_context(|| original.display().to_string())?, place)?;
    }
    let mut path = OsString::from(kernlane.parent().context("the tool lies in no directory")?);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut count = 0;
    for page in FIRST_HOUR {
        let page = format!("docs/first-hour/{page}.md");
        for line in shell_lines(&fs::read_to_string(&page).with_context(|| page.clone())?) {
            let mut command = Command::new("sh");
            command.args(["-c", &line]).current_dir(home).env("HOME", home).env("PATH", &path);
            command.env("KERNLANE_CACHE", lab::kernel::cache()?);
            let output = command.output()?;
            // Exit status 1 is an answer: "no".
            if !matches!(output.status.code(), Some(0 | 1)) {
                bail!(
                    "{page}: {line}: {}\n{}",
                    output.status,
                    String::from_utf8_lossy(&output.stderr)
                );
            }
            count += 1;
        }
    }
    ensure!(count >= 10, "only {count} commands were found in the first hour");
    println!("passed: {count} commands of the first hour run");
    Ok(())
}

/// The lines of the blocks marked `sh`; a backslash at the end continues a line.
fn shell_lines(text: &str) -> Vec<String> {
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = blocks.flat_map(|block| {
        block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>()
    });
    lines.filter(|line| !line.trim().is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_sh_blocks_are_found() {
        let text = "a\n```sh\nb \\\n    c\nd\n```\n```console\n$ e\n```\n```sh\nf\n```\n";
        assert_eq!(shell_lines(text), ["b      c", "d", "f"]);
    }

    #[test]
    fn a_link_to_nowhere_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let page = directory.path().join("a.html");
        fs::write(&page, "<main><h2 id=\"b\"><a href=\"#b\"></a></h2><a href=\"a.html#b\"></a>")
            .unwrap();
        links_hold(&page).unwrap();
        fs::write(&page, "<main><a href=\"#b\"></a>").unwrap();
        assert!(links_hold(&page).is_err());
        fs::write(&page, "<main><a href=\"c.html\"></a>").unwrap();
        assert!(links_hold(&page).is_err());
    }
}
