//! What a guest needs to replace functions of its kernel before its workload is recorded: this
//! program, the module, the vmlinux, a profile.
//!
//! Input: a kernel, the headers that its modules are built with, a profile. Output: additional
//! files of the guest, and scripts in front of the workload's own. Only the module is compiled.

use anyhow::{Context, Result, bail};
use guest::{GuestFile, GuestKernel, OwnProgram, RecordingRequest, Workload};
use host::{interrupt, scratch};
use image::address::LinkAddr;
use image::sealed;
use layout::Algorithm;
use live::module_sources;
use services::symbols::CodeSymbol;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory of the guest for these files.
const HOME: &str = "/kernlane/live";
/// Sets the workload up, and replaces functions.
const SET_UP: &str = include_str!("live_set_up.sh");
/// What it takes to read the vmlinux and to lay functions out, in MB.
const MEMORY_MB: u32 = 1024;
/// The first words of the line that `check` prints before what was installed.
const INSTALLED: &str = "-- replaced functions";

/// The line before the symbols of the copies, as `/proc/kallsyms` lists them, and what the device
/// says of the functions.
const NAMES: &str = "-- names of the copies";

/// How functions of the guest's kernel are chosen and laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replacement<'m> {
    /// The share of the executed bytes that the replaced functions hold, 0 to 1.
    pub(crate) share: f64,
    /// The layout algorithm.
    pub(crate) algorithm: Algorithm,
    /// For algorithms that depend on a seed.
    pub(crate) seed: u64,
    /// Whether hot calls are inlined.
    pub(crate) inline: bool,
    /// The shipped machine by which calls are chosen.
    pub(crate) machine: Option<&'m str>,
}

/// The headers with which a kernel's modules are compiled are not installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the headers of Linux {release} are neither {} nor {}: install linux-headers-{release}, or say \
     where they are",
    places[0],
    places[1]
)]
pub struct NoHeaders {
    /// What `uname -r` prints in this kernel.
    pub release: String,
    /// Where headers are looked for.
    pub places: [String; 2],
}

/// What a guest needs to replace functions of its kernel.
pub(crate) struct LiveGuest {
    program: OwnProgram,
    module: Vec<u8>,
    vmlinux: Vec<u8>,
}

impl LiveGuest {
    /// Compiles the module. `headers`: where the kernel's headers are, if not where distributions
    /// install them.
    ///
    /// # Errors
    /// There are no headers, or the module cannot be compiled.
    pub(crate) fn new(kernel: &GuestKernel, headers: Option<&Path>) -> Result<LiveGuest> {
        let headers = match headers {
            Some(headers) => headers.to_owned(),
            None => installed_headers(kernel)?,
        };
        let directory = scratch::directory(&std::env::temp_dir(), "kernlane-live-")?;
        Ok(LiveGuest {
            program: OwnProgram::new(HOME)?,
            module: without_types(compile(&headers, directory.path())?, directory.path())?,
            vmlinux: without_debug_information(&kernel.vmlinux, directory.path())?,
        })
    }

    /// Gives the original's guest the same memory.
    pub(crate) fn enlarge(request: &mut RecordingRequest) {
        request.memory_mb = Some(request.workload.memory_mb + MEMORY_MB);
    }

    /// Lets the guest replace functions when its workload is set up. `profile`: the JSON of a
    /// profile of the kernel.
    pub(crate) fn equip(
        &self,
        request: &mut RecordingRequest,
        profile: &str,
        how: Replacement<'_>,
    ) {
        Self::enlarge(request);
        request.files = self.prepare(&mut request.workload, profile, how);
    }

    /// Changes the scripts of a workload, and returns the files that they need.
    fn prepare(
        &self,
        workload: &mut Workload,
        profile: &str,
        how: Replacement<'_>,
    ) -> Vec<GuestFile> {
        let Replacement { share, algorithm, seed, inline, machine } = how;
        let (inline, machine) = (if inline { "yes" } else { "" }, machine.unwrap_or(""));
        let (program, share) = (&self.program.command, share * 100.0);
        let set_up = format!(
            "program='{program}'\nshare={share}\nalgorithm={algorithm}\nseed={seed}\n\
             inline={inline}\nmachine={machine}\n{SET_UP}"
        );
        let check = format!(
            "/bin/sh -e {HOME}/check\necho '{INSTALLED}'\ncat {HOME}/said\n\
             echo '{NAMES}'\ngrep '\\[kernlane_[0-9]' /proc/kallsyms\ncat /dev/kernlane\n"
        );
        let text = |name: &str, text: &str| (format!("{HOME}/{name}"), 0o644, text.into());
        let mut files = self.program.files.clone();
        files.extend([
            (format!("{HOME}/kernlane.ko"), 0o644, self.module.clone()),
            (format!("{HOME}/vmlinux"), 0o644, self.vmlinux.clone()),
            text("profile.klp", profile),
            text("set-up", &workload.set_up),
            text("check", &workload.check),
        ]);
        workload.set_up = set_up;
        workload.check = check;
        // Another program or profile is another recording.
        let digests = files.iter().map(|(path, _, bytes)| (path.as_str(), sealed::sha256(bytes)));
        let all: Vec<String> = digests.map(|(path, digest)| format!("{path} {digest}")).collect();
        let all = format!("{}\n{}\n{}", workload.sha256, workload.set_up, all.join("\n"));
        workload.sha256 = sealed::sha256(all.as_bytes());
        files
    }
}

/// What the guest of a recording said when functions were replaced. `output`: what it printed.
pub(crate) fn installed(output: &str) -> Option<String> {
    let (_, said) = output.split_once(&format!("{INSTALLED}\n"))?;
    let is_shown = |line: &&str| {
        [" functions, ", " calls inlined", "the copies lie in"].iter().any(|w| line.contains(w))
    };
    let shown: Vec<&str> = said.lines().filter(is_shown).collect();
    (!shown.is_empty()).then(|| shown.join("; "))
}

/// The addresses of functions that were replaced in a recording's guest, by the names of their
/// copies. A name that two copies have is left out. `output`, `text`: as for [`names_of_copies`].
pub(crate) fn originals_of_copies(output: &str, text: Range<u64>) -> BTreeMap<String, u64> {
    let names = names_of_copies(output, text);
    let hex = |word: Option<&str>| u64::from_str_radix(word?, 16).ok();
    let mut originals: BTreeMap<String, Option<u64>> = BTreeMap::new();
    let listed = output.split_once(&format!("{NAMES}\n")).map_or("", |(_, listed)| listed);
    for line in listed.lines() {
        let mut words = line.split_ascii_whitespace();
        let is_function = matches!(words.next(), Some("function" | "carried"));
        let (Some(entry), Some(copy)) = (hex(words.next()), hex(words.next())) else { continue };
        let at = names.binary_search_by_key(&copy, |symbol| symbol.addr.0);
        if let (true, Ok(at)) = (is_function, at) {
            let original = originals.entry(names[at].name.clone()).or_insert(Some(entry));
            *original = original.filter(|known| *known == entry);
        }
    }
    originals.into_iter().filter_map(|(name, entry)| Some((name, entry?))).collect()
}

/// The symbols of the copies that ran in a recording, ascending by address. `output`: what its
/// guest printed; `text`: where the copies' code was.
pub(crate) fn names_of_copies(output: &str, text: Range<u64>) -> Vec<CodeSymbol> {
    let Some((_, names)) = output.split_once(&format!("{NAMES}\n")) else { return Vec::new() };
    let symbol = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let at = u64::from_str_radix(words.next()?, 16).ok()?;
        text.contains(&at).then(|| Some((at, words.nth(1)?.to_owned())))?
    };
    let mut named: Vec<(u64, String)> = names.lines().filter_map(symbol).collect();
    named.sort();
    named.dedup_by_key(|(at, _)| *at);
    let mut ends: Vec<u64> = named.iter().skip(1).map(|(at, _)| *at).collect();
    ends.push(text.end);
    let sized = named.into_iter().zip(ends);
    sized.map(|((at, name), end)| CodeSymbol { addr: LinkAddr(at), size: end - at, name }).collect()
}

/// The headers of a kernel where distributions install them.
fn installed_headers(kernel: &GuestKernel) -> Result<PathBuf> {
    let release = &kernel.release;
    let places =
        [format!("/lib/modules/{release}/build"), format!("/usr/src/linux-headers-{release}")];
    let is_there = |path: &PathBuf| path.join("Makefile").is_file();
    let found = places.iter().map(PathBuf::from).find(is_there);
    Ok(found.ok_or_else(|| NoHeaders { release: release.clone(), places })?)
}

/// Compiles the module in `directory`, and returns its bytes.
fn compile(headers: &Path, directory: &Path) -> Result<Vec<u8>> {
    let build = directory.join("kmod");
    fs::create_dir(&build).with_context(|| format!("making {}", build.display()))?;
    for (name, text) in module_sources::FILES {
        fs::write(build.join(name), text).with_context(|| format!("writing {name}"))?;
    }
    let mut make = Command::new("make");
    make.arg("-s").arg("-C").arg(headers).arg(format!("M={}", build.display()));
    // The same module, wherever it is compiled.
    make.arg(format!("KCFLAGS=-ffile-prefix-map={}=.", build.display())).arg("modules");
    run(make, &directory.join("make")).context("the kernel module cannot be compiled")?;
    let module = build.join("kernlane.ko");
    fs::read(&module).with_context(|| format!("reading {}", module.display()))
}

/// The module without the descriptions of its types. They differ from one build to the next, and a
/// recording with another module would be made again.
fn without_types(module: Vec<u8>, directory: &Path) -> Result<Vec<u8>> {
    let (whole, stripped) = (directory.join("whole.ko"), directory.join("kernlane.ko"));
    fs::write(&whole, module).with_context(|| format!("writing {}", whole.display()))?;
    let mut objcopy = Command::new("objcopy");
    objcopy.args(["--strip-debug", "--remove-section=.BTF", "--remove-section=.BTF.base"]);
    objcopy.arg(&whole).arg(&stripped);
    run(objcopy, &directory.join("objcopy"))?;
    fs::read(&stripped).with_context(|| format!("reading {}", stripped.display()))
}

/// The vmlinux without its debugging information.
fn without_debug_information(vmlinux: &Path, directory: &Path) -> Result<Vec<u8>> {
    let stripped = directory.join("vmlinux");
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--strip-debug").arg(vmlinux).arg(&stripped);
    run(objcopy, &directory.join("objcopy"))?;
    fs::read(&stripped).with_context(|| format!("reading {}", stripped.display()))
}

/// Runs a program whose output goes into a file.
fn run(mut command: Command, output: &Path) -> Result<()> {
    // A make that runs this program would have this one work as its part.
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
        command.env_remove(name);
    }
    let said = File::create(output).with_context(|| format!("making {}", output.display()))?;
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdout(said.try_clone()?).stderr(said);
    let program = interrupt::spawn(&mut command)
        .with_context(|| format!("{name} cannot be run; is it installed?"))?;
    let status = program.wait()?;
    if !status.success() {
        let said = fs::read_to_string(output).unwrap_or_default();
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(10)..].join("\n");
        bail!("{name} failed ({status}):\n{last}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live_guest() -> LiveGuest {
        let files = vec![(format!("{HOME}/program"), 0o755, b"program".to_vec())];
        let program = OwnProgram { files, command: format!("{HOME}/program") };
        LiveGuest { program, module: b"module".to_vec(), vmlinux: b"vmlinux".to_vec() }
    }

    const HOW: Replacement<'_> = Replacement {
        share: 0.99,
        algorithm: Algorithm::ExtTspGlobal,
        seed: 1,
        inline: false,
        machine: None,
    };

    #[test]
    fn functions_are_replaced_between_the_set_up_and_the_run() {
        let original = Workload::open("net").unwrap();
        let prepared = |profile: &str, how| {
            let mut workload = original.clone();
            let files = live_guest().prepare(&mut workload, profile, how);
            (workload, files)
        };
        let (workload, files) = prepared("{}", HOW);
        let set_up = &workload.set_up;
        let how = ["\nshare=99\n", "\nalgorithm=ext-tsp-global\n", "\nseed=1\ninline=\n"];
        assert!(how.iter().all(|line| set_up.contains(line)), "{set_up}");
        assert!(set_up.find("/set-up\ninsmod ") < set_up.find("$program live apply"), "{set_up}");
        let content = |name: &str| {
            let path = format!("{HOME}/{name}");
            let (.., bytes) = files.iter().find(|(known, ..)| *known == path).unwrap();
            String::from_utf8(bytes.clone()).unwrap()
        };
        assert_eq!(
            (content("set-up"), content("check")),
            (original.set_up.clone(), original.check.clone())
        );
        assert_eq!((content("profile.klp"), &workload.run), ("{}".to_owned(), &original.run));
        // Recordings are made again when anything of it changes.
        let digest = |profile, how| prepared(profile, how).0.sha256;
        assert_eq!(workload.sha256, digest("{}", HOW));
        assert_ne!(workload.sha256, original.sha256);
        assert_ne!(workload.sha256, digest("{ }", HOW));
        assert_ne!(workload.sha256, digest("{}", Replacement { seed: 2, ..HOW }));
        let how = Replacement { inline: true, machine: Some("zen4"), ..HOW };
        let inlined = prepared("{}", how).0;
        assert!(inlined.set_up.contains("\ninline=yes\nmachine=zen4\n"), "{}", inlined.set_up);
    }

    #[test]
    fn what_was_installed_is_read_from_the_guests_output() {
        let output = "all files are equal\n-- replaced functions\nleft out: memcpy\nkl_1: 9 functions, \
                      7 calls in the kernel\n3 calls inlined: all\nprocessor time: 1 ms\n";
        let expected = "kl_1: 9 functions, 7 calls in the kernel; 3 calls inlined: all";
        assert_eq!(installed(output).as_deref(), Some(expected));
        assert_eq!(installed("kl_1: 9 functions, 7 calls\n"), None);
    }

    #[test]
    fn copies_have_the_names_that_the_guest_printed() {
        let output = "kernlane_1: 9 functions\n-- names of the copies\n\
                      ffffffffc0000040 t g.kernlane\t[kernlane_1]\n\
                      ffffffffc0000010 t f.kernlane\t[kernlane_1]\n\
                      ffffffffc0001000 r pairs\t[kernlane_1]\nshort\n";
        let symbol = |addr, size, name: &str| CodeSymbol {
            addr: LinkAddr(addr),
            size,
            name: name.to_owned(),
        };
        let text = 0xffff_ffff_c000_0000..0xffff_ffff_c000_0100;
        let expected = [
            symbol(text.start + 0x10, 0x30, "f.kernlane"),
            symbol(text.start + 0x40, 0xc0, "g.kernlane"),
        ];
        assert_eq!(names_of_copies(output, text.clone()), expected);
        assert!(names_of_copies("nothing was replaced\n", text.clone()).is_empty());
        let device = "kernlane 8\npage 2097152\nfunction ffffffff81000000 ffffffffc0000010 direct\n\
                      carried ffffffffa0000020 ffffffffc0000040 direct\n\
                      function ffffffffa0000030 ffffffffc0000044 direct\n";
        let originals = |device: &str| {
            let found = originals_of_copies(&format!("{output}{device}"), text.clone());
            found.into_iter().collect::<Vec<_>>()
        };
        let f = ("f.kernlane".to_owned(), 0xffff_ffff_8100_0000);
        assert_eq!(originals(device), [f.clone(), ("g.kernlane".into(), 0xffff_ffff_a000_0020)]);
        let twice = "function ffffffff81000000 ffffffffc0000040 direct\n";
        assert_eq!(originals(&format!("{device}{twice}")), [f]);
        assert!(originals("").is_empty());
    }

    #[test]
    fn a_module_that_cannot_be_compiled_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let headers = directory.path().join("headers");
        fs::create_dir(&headers).unwrap();
        let compile = |makefile: &str| {
            fs::write(headers.join("Makefile"), makefile).unwrap();
            let build = tempfile::tempdir().unwrap();
            compile(&headers, build.path()).map_err(|error| format!("{error:#}"))
        };
        let error = compile("modules:\n\t@echo no compiler; exit 3\n").unwrap_err();
        assert!(error.contains("cannot be compiled") && error.contains("no compiler"), "{error}");
        let made = compile("modules:\n\t@cat $(M)/Kbuild >$(M)/kernlane.ko\n").unwrap();
        assert!(String::from_utf8(made).unwrap().contains("obj-m := kernlane.o"));
        let error = compile("modules:\n").unwrap_err();
        assert!(error.contains("kernlane.ko"), "{error}");
    }
}
