//! What is tested of what the guest left, and of the symbols of its kernel.
//!
//! Each function takes texts and says what is wrong. None of them runs anything.

use super::guest::Left;
use crate::machine::is_complaint;
use anyhow::{Context, Result, ensure};
use std::collections::HashMap;

/// The fewest functions that tell one order of the kernel from another.
const ENOUGH: usize = 10_000;

/// GRUB has booted the package's kernel, which was not there before.
pub(super) fn booted(left: &Left) -> Result<()> {
    let (before, release) = (left.text("before")?, left.text("release")?);
    ensure!(before != release, "the kernel {} still runs", release.trim());
    let (cmdline, image) = (left.text("cmdline")?, format!("/vmlinuz-{} ", release.trim()));
    ensure!(cmdline.contains("BOOT_IMAGE=") && cmdline.contains(&image), "booted by {cmdline}");
    Ok(())
}

/// The running kernel has the notes, and so the build id, of the relinked one.
pub(super) fn has_notes(left: &Left) -> Result<()> {
    let compared = left.text("notes")?;
    ensure!(compared == "same\n", "another kernel runs: {compared}");
    Ok(())
}

/// The guest did this piece of work to its end.
pub(super) fn did(left: &Left, work: &str) -> Result<()> {
    let printed = left.text(work)?;
    ensure!(printed == "done\n", "{printed}");
    Ok(())
}

/// No unit of systemd failed, and the kernel said nothing that a correct kernel does not say.
pub(super) fn nothing_failed(left: &Left) -> Result<()> {
    let failed = left.text("failed")?;
    ensure!(failed.is_empty(), "these units failed: {failed}");
    let said = left.text("dmesg")?;
    let complaint = said.lines().find(|line| is_complaint(line));
    ensure!(complaint.is_none(), "the kernel said: {}", complaint.unwrap_or_default());
    Ok(())
}

/// Every function of the running kernel lies where `map`, a System.map, says, but for one distance.
///
/// # Errors
/// One does not, or there are too few to say so.
pub(super) fn lies_as(running: &str, map: &str) -> Result<()> {
    let (running, map) = (functions(running), functions(map));
    let mut distances = HashMap::new();
    for (name, at) in &map {
        if let Some(now) = running.get(name) {
            *distances.entry(now.wrapping_sub(*at)).or_insert(0) += 1;
        }
    }
    let all: usize = distances.values().sum();
    ensure!(all >= ENOUGH, "only {all} functions are in both lists");
    let most = distances.values().max().copied().context("no function")?;
    ensure!(most == all, "{} of {all} functions lie elsewhere", all - most);
    Ok(())
}

/// The addresses of functions of the kernel itself whose name is unique, from lines of
/// `ADDRESS TYPE NAME`.
fn functions(text: &str) -> HashMap<&str, u64> {
    let mut found: HashMap<&str, Option<u64>> = HashMap::new();
    for line in text.lines().filter(|line| !line.contains('\t')) {
        let mut words = line.split(' ');
        let (at, kind, name) = (words.next(), words.next(), words.next());
        let at = at.and_then(|at| u64::from_str_radix(at, 16).ok()).filter(|at| *at != 0);
        if let (Some(at), Some("t" | "T"), Some(name)) = (at, kind, name) {
            found.entry(name).and_modify(|at| *at = None).or_insert(Some(at));
        }
    }
    found.into_iter().filter_map(|(name, at)| Some((name, at?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    /// As many functions as are enough, 16 bytes apart, with these two changed places.
    fn map(base: u64, changed: [u64; 2]) -> String {
        let mut text = String::new();
        for number in 0..ENOUGH as u64 {
            let at = match changed.iter().position(|n| *n == number) {
                Some(index) => changed[1 - index],
                None => number,
            };
            let _ = writeln!(text, "{:016x} T f{number}", base + 16 * at);
        }
        text
    }

    #[test]
    fn one_function_in_another_place_is_found() {
        let was = map(0xffff_ffff_8100_0000, [0, 0]);
        let more = "ffffffffc0000000 t f7\t[loop]\n00 t f9\n0000000000000001 D data\n";
        lies_as(&(map(0xffff_ffff_a240_0000, [0, 0]) + more), &was).unwrap();
        let error = lies_as(&map(0xffff_ffff_a240_0000, [5, 6]), &was).unwrap_err().to_string();
        assert_eq!(error, "2 of 10000 functions lie elsewhere");
        let error = lies_as("", &was).unwrap_err().to_string();
        assert_eq!(error, "only 0 functions are in both lists");
    }
}
