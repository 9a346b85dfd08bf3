//! A machine with Debian 12, on which a package is installed and booted.
//!
//! Input: the disk of that machine, which stays unchanged; a package; the notes of its kernel.
//! Output: the files that the guest leaves. A second disk carries an archive into the guest, and
//! one out of it.

use super::page::Page;
use crate::debian::console::Guest;
use crate::debian::disk::Image;
use anyhow::{Context, Result, ensure};
use lab::run;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = include_str!("guest.sh");
/// Room for the package and the results.
const EXCHANGE_BYTES: u64 = 256 << 20;
/// What the console says once in each boot.
const LOGIN: &str = "ab login: root (automatic login)";
const PROMPT: &str = "root@ab:~#";
const INSTALLED: &str = "the package is installed\r\n";
const REFUSED: &str = "the package is refused\r\n";
const THERE: &str = "the results are there\r\n";

/// What the guest left.
pub(super) struct Left {
    results: PathBuf,
    _directory: tempfile::TempDir,
}

impl Left {
    /// A file that the guest has written.
    ///
    /// # Errors
    /// It has not.
    pub(super) fn text(&self, name: &str) -> Result<String> {
        fs::read_to_string(self.results.join(name)).with_context(|| format!("the guest's {name}"))
    }
}

/// Installs `package` on the machine, boots it again, and works in it. `notes` are those of the
/// kernel in the package. The console goes to `log`.
///
/// # Errors
/// The package is refused, or the guest does not boot.
pub(super) fn installed(
    image: &Image,
    page: &Page,
    package: &Path,
    notes: &Path,
    log: &Path,
) -> Result<Left> {
    let directory = tempfile::tempdir_in(guest::writable_cache()?)?;
    let path = |name: &str| directory.path().join(name);
    let (disk, exchange, tree) = (path("disk"), path("exchange"), path("tree"));
    let mut overlay = Command::new("qemu-img");
    overlay.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(&image.disk);
    run(overlay.arg(&disk))?;
    let root = tree.join("root");
    fs::create_dir_all(&root)?;
    // The guest compares by the page's own command.
    let comparison = "cmp \"$here/notes\" /sys/kernel/notes";
    ensure!(
        SCRIPT.contains(comparison) && page.comparison == "cmp notes /sys/kernel/notes",
        "the guest does not compare as the page says: {}",
        page.comparison
    );
    fs::write(root.join("guest.sh"), SCRIPT)?;
    fs::copy(package, root.join("kernel.deb")).with_context(|| package.display().to_string())?;
    fs::copy(notes, root.join("notes")).with_context(|| notes.display().to_string())?;
    run(Command::new("tar").arg("-cf").arg(&exchange).arg("-C").arg(&tree).arg("root"))?;
    File::options().write(true).open(&exchange)?.set_len(EXCHANGE_BYTES)?;
    let _ = fs::remove_file(log);

    let mut qemu = Command::new("qemu-system-x86_64");
    for (file, format) in [(&disk, "qcow2"), (&exchange, "raw")] {
        qemu.arg("-drive");
        qemu.arg(format!("file={},format={format},if=virtio,cache=unsafe", file.display()));
    }
    let mut guest = Guest::start(&mut qemu, log)?;
    guest.wait_for(&[LOGIN])?;
    guest.wait_for(&[PROMPT])?;
    guest.type_line("tar -C / --no-same-owner -xf /dev/vdb; sh guest.sh install")?;
    let refused = guest.wait_for(&[INSTALLED, REFUSED])? == 1;
    ensure!(!refused, "dpkg refuses the package; see {}", log.display());
    guest.type_line("systemctl reboot")?;
    guest.wait_for(&[LOGIN])?;
    guest.wait_for(&[PROMPT])?;
    guest.type_line("sh guest.sh work")?;
    guest.wait_for(&[THERE])?;
    guest.type_line("systemctl poweroff")?;
    guest.wait_until_off()?;
    let results = path("results");
    fs::create_dir(&results)?;
    run(Command::new("tar").arg("-C").arg(&results).arg("-xf").arg(&exchange))?;
    Ok(Left { results, _directory: directory })
}
