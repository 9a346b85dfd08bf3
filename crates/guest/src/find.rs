//! Finds the kernel of a recording or a profile.
//!
//! Input: a recording, or a build id. Output: a build tree, or a vmlinux, whose build id is the
//! right one. The search looks where the kernel was when the recording was made, in the cache of
//! built trees, and where debuggers look for separate files. A file with another build id is never
//! taken, and nothing is downloaded.

use crate::cache;
use crate::kernel::{has_code, read_build_id};
use crate::record::RecordingSummary;
use crate::refused::{MissingKernel, RefusedRequest};
use anyhow::{Context, Result};
use host::recording::Recording;
use image::{BuildId, vmlinux};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use trace::RecordingReader;

/// The kernel that is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoughtKernel {
    /// Its build id.
    pub build_id: BuildId,
    /// The output of `uname -r` in this kernel, if it is known.
    pub release: Option<String>,
    /// Where it was when the recording was made: a build tree or a vmlinux.
    pub recorded_at: Option<PathBuf>,
}

/// The directories of a search. Tests name others.
struct Places {
    /// The cache with the directory `trees`.
    cache: Option<PathBuf>,
    /// The root of the file system.
    root: PathBuf,
}

impl SoughtKernel {
    /// The kernel of a recording (a directory).
    ///
    /// # Errors
    /// There is no recording, or its first bytes are damaged.
    pub fn of_recording(recording: &Path) -> Result<SoughtKernel> {
        let recording = Recording::at(recording);
        let path = recording.trace();
        let named = || path.display().to_string();
        let file = File::open(&path).with_context(named)?;
        let reader = RecordingReader::new(BufReader::new(file)).with_context(named)?;
        let header = reader.header();
        let release = header.conditions.iter().find(|(key, _)| key == "kernel_release");
        Ok(SoughtKernel {
            build_id: BuildId(header.build_id.clone()),
            release: release.map(|(_, value)| value.clone()),
            recorded_at: recorded_at(&recording),
        })
    }

    /// A kernel of which only the build id is known.
    pub fn with_build_id(build_id: BuildId) -> SoughtKernel {
        SoughtKernel { build_id, release: None, recorded_at: None }
    }

    /// The kernel's build tree or vmlinux, as other crates take a kernel.
    ///
    /// # Errors
    /// No place has a kernel with the build id. The message names the places.
    pub fn find(&self) -> Result<PathBuf> {
        self.find_in(&Places { cache: cache::directory().ok(), root: PathBuf::from("/") })
    }

    fn find_in(&self, places: &Places) -> Result<PathBuf> {
        let mut looked = Vec::new();
        for place in self.candidates(places) {
            let why = match fit(&vmlinux::path(&place), &self.build_id) {
                Ok(None) => return Ok(place),
                Ok(Some(why)) => why,
                Err(error) => format!("{error:#}"),
            };
            looked.push((place, why));
        }
        let (build_id, release) = (self.build_id.clone(), self.release.clone());
        Err(RefusedRequest::NoKernel(MissingKernel { build_id, release, looked }).into())
    }

    /// Where the kernel can be, the likeliest place first.
    fn candidates(&self, places: &Places) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = self.recorded_at.iter().cloned().collect();
        let mut roots = vec![places.root.clone()];
        if let Some(cache) = &places.cache {
            let is_built = |tree: &PathBuf| tree.join("vmlinux").is_file();
            found.extend(directories(&cache.join("trees")).into_iter().filter(is_built));
            // Unpacked packages of a distribution's kernel.
            let is_unpacked = |root: &PathBuf| root.join(DEBUG).is_dir();
            roots.extend(directories(cache).into_iter().filter(is_unpacked));
        }
        roots.iter().for_each(|root| self.add_debug_files(root, &mut found));
        if let Some(release) = &self.release {
            found.push(places.root.join("lib/modules").join(release).join("build"));
        }
        found
    }

    /// Where debuggers look below the root of a file system.
    fn add_debug_files(&self, root: &Path, found: &mut Vec<PathBuf>) {
        let debug = root.join(DEBUG);
        // The first byte of a build id names the directory.
        if let Some((directory, file)) = self.build_id.0.split_at_checked(2) {
            found.push(debug.join(".build-id").join(directory).join(format!("{file}.debug")));
        }
        let Some(release) = &self.release else {
            let entries = fs::read_dir(debug.join("boot")).into_iter().flatten().flatten();
            let is_vmlinux = |path: &PathBuf| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinux-"))
            };
            let mut kernels: Vec<PathBuf> =
                entries.map(|entry| entry.path()).filter(is_vmlinux).collect();
            kernels.sort();
            return found.extend(kernels);
        };
        found.push(debug.join("boot").join(format!("vmlinux-{release}")));
        for modules in ["lib/modules", "usr/lib/modules"] {
            found.push(debug.join(modules).join(release).join("vmlinux"));
        }
    }
}

/// The directory of files with debugging information.
const DEBUG: &str = "usr/lib/debug";

/// Why the file is not the kernel; `None`: it is.
fn fit(vmlinux: &Path, wanted: &BuildId) -> Result<Option<String>> {
    if !vmlinux.exists() {
        return Ok(Some("there is none".to_owned()));
    }
    let found = read_build_id(vmlinux)?;
    if found != *wanted {
        return Ok(Some(format!("another build, with the build id {}", found.0)));
    }
    Ok((!has_code(vmlinux)?).then(|| "its debugging information only, without the code".to_owned()))
}

/// The directories in a directory, in the order of their names.
fn directories(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

/// Where the recording says that its kernel was. Older recordings do not say it, and a damaged
/// `recording.json` says nothing.
fn recorded_at(recording: &Recording) -> Option<PathBuf> {
    RecordingSummary::read(recording).ok()?.kernel
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::write::{Object, StandardSection, StandardSegment};
    use object::{Architecture, BinaryFormat, Endianness, SectionKind};

    /// An ELF file with this build id, with or without code.
    fn write_kernel(path: &Path, id: [u8; 4], code: bool) {
        let mut elf = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let segment = elf.segment_name(StandardSegment::Data).to_vec();
        let notes = elf.add_section(segment, b".note.gnu.build-id".to_vec(), SectionKind::Note);
        let mut note = [4u32, 4, 3].map(u32::to_le_bytes).concat();
        note.extend(b"GNU\0");
        note.extend(id);
        elf.append_section_data(notes, &note, 4);
        if code {
            let text = elf.section_id(StandardSection::Text);
            elf.append_section_data(text, &[0xc3], 1);
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, elf.write().unwrap()).unwrap();
    }

    fn sought(recorded_at: Option<PathBuf>) -> SoughtKernel {
        let build_id = BuildId("0a0b0c0d".to_owned());
        SoughtKernel { build_id, release: Some("6.12.1".to_owned()), recorded_at }
    }

    #[test]
    fn a_kernel_is_found_where_it_was_or_by_its_build_id() {
        let home = tempfile::tempdir().unwrap();
        let at = |path: &str| home.path().join(path);
        let places = Places { cache: Some(at("cache")), root: at("root") };
        let (right, other) = ([10, 11, 12, 13], [1, 2, 3, 4]);
        let sought = sought(Some(at("linux")));
        let error = format!("{:#}", sought.find_in(&places).unwrap_err());
        for part in [
            "build id 0a0b0c0d (6.12.1)",
            "linux: there is none",
            "root/usr/lib/debug/.build-id/0a/0b0c0d.debug: there is none",
            "root/usr/lib/debug/boot/vmlinux-6.12.1: there is none",
            "name the kernel's build tree or its vmlinux",
        ] {
            assert!(error.contains(part), "{error}");
        }
        // The least likely place first; each following one is preferred.
        for (file, place) in [
            ("root/lib/modules/6.12.1/build/vmlinux", "root/lib/modules/6.12.1/build"),
            (
                "cache/debian/usr/lib/debug/boot/vmlinux-6.12.1",
                "cache/debian/usr/lib/debug/boot/vmlinux-6.12.1",
            ),
            ("root/usr/lib/debug/boot/vmlinux-6.12.1", "root/usr/lib/debug/boot/vmlinux-6.12.1"),
            (
                "root/usr/lib/debug/.build-id/0a/0b0c0d.debug",
                "root/usr/lib/debug/.build-id/0a/0b0c0d.debug",
            ),
            ("cache/trees/gcc/vmlinux", "cache/trees/gcc"),
            ("linux/vmlinux", "linux"),
        ] {
            write_kernel(&at(file), right, true);
            assert_eq!(sought.find_in(&places).unwrap(), at(place));
        }
        // The tree was built again: the kernel in the cache is taken.
        write_kernel(&at("linux/vmlinux"), other, true);
        assert_eq!(sought.find_in(&places).unwrap(), at("cache/trees/gcc"));
    }

    #[test]
    fn a_profile_knows_no_release_and_finds_its_kernel_by_the_build_id() {
        let home = tempfile::tempdir().unwrap();
        let boot = home.path().join(DEBUG).join("boot");
        write_kernel(&boot.join("vmlinux-6.1"), [1, 2, 3, 4], true);
        write_kernel(&boot.join("vmlinux-6.12"), [10, 11, 12, 13], true);
        let places = Places { cache: None, root: home.path().to_owned() };
        let sought = SoughtKernel::with_build_id(BuildId("0a0b0c0d".to_owned()));
        assert_eq!(sought.find_in(&places).unwrap(), boot.join("vmlinux-6.12"));
    }

    #[test]
    fn another_kernel_and_one_without_code_are_not_taken() {
        let home = tempfile::tempdir().unwrap();
        let vmlinux = home.path().join("vmlinux");
        let places = Places { cache: None, root: home.path().join("root") };
        let refused = |id, code| {
            write_kernel(&vmlinux, id, code);
            format!("{:#}", sought(Some(vmlinux.clone())).find_in(&places).unwrap_err())
        };
        let error = refused([1, 2, 3, 4], true);
        assert!(error.contains("vmlinux: another build, with the build id 01020304"), "{error}");
        let error = refused([10, 11, 12, 13], false);
        assert!(error.contains("debugging information only"), "{error}");
        fs::write(&vmlinux, "no ELF").unwrap();
        let error = format!("{:#}", sought(Some(vmlinux.clone())).find_in(&places).unwrap_err());
        assert!(error.contains("not a readable ELF file"), "{error}");
    }

    #[test]
    fn a_build_id_of_any_length_is_looked_for() {
        for id in ["", "0", "0a", "ü"] {
            let sought = SoughtKernel::with_build_id(BuildId(id.to_owned()));
            assert!(sought.find_in(&Places { cache: None, root: "/none".into() }).is_err());
        }
    }
}
