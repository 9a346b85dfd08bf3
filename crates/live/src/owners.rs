//! The other owners of a function: kprobes, livepatches, and other users of the function tracer
//! that divert a function or trace it.
//!
//! Input: files of debugfs and tracefs. Output: names of owners. File systems that are not mounted
//! are mounted for this process alone, at no path. A file that is still missing names no owner. The
//! kernel and Kernlane's module check again, and refuse functions with an owner.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::collections::HashMap;
use std::io::Read;

/// Beside another user, ftrace may let an entry pass without diverting it.
const TRACER: &str = "a tracer (which may come back when the copies are installed)";

/// Function, with its module behind it as in `/proc/kallsyms` → the description of its owner.
#[derive(Debug, Default)]
pub struct Owners {
    named: HashMap<String, String>,
}

impl Owners {
    /// Reads who owns what now.
    pub fn read() -> Owners {
        Owners::parse(
            &text("debugfs", "/sys/kernel/debug", "kprobes/list"),
            &text("tracefs", "/sys/kernel/tracing", "enabled_functions"),
            &livepatched(),
        )
    }

    /// `probes`: `ADDRESS k|r FUNCTION+0xOFFSET MODULE [FLAGS]`, without a module for the kernel's
    /// own; `traced`: `FUNCTION [MODULE] (USERS) FLAGS …`, where I is a change of the instruction
    /// pointer and D a direct call, whose target is on the next line:
    /// `direct-->TRAMPOLINE+0xOFFSET/0xSIZE`; `livepatched`: patch and function.
    pub(crate) fn parse(probes: &str, traced: &str, livepatched: &[(String, String)]) -> Owners {
        let mut named = HashMap::new();
        let mut lines = traced.lines().peekable();
        while let Some(line) = lines.next() {
            let Some((function, rest)) = line.split_once(" (") else { continue };
            let function = function.trim();
            let flags: Vec<&str> =
                rest.split_whitespace().skip(1).take_while(|w| w.len() == 1).collect();
            if flags.contains(&"D") {
                let target = lines.peek().and_then(|next| next.trim().strip_prefix("direct-->"));
                named.insert(function.to_owned(), direct_user(target.unwrap_or_default()));
            } else if flags.contains(&"I") {
                let owner = if line.contains("[kernlane]") {
                    "another program of Kernlane, which is installing it"
                } else {
                    "a user of ftrace that changes where it goes"
                };
                named.insert(function.to_owned(), owner.to_owned());
            } else {
                named.insert(function.to_owned(), TRACER.to_owned());
            }
        }
        for line in probes.lines() {
            let mut words = line.split_whitespace().skip(2);
            let Some(place) = words.next() else { continue };
            let name = place.split('+').next().unwrap_or(place);
            let function = match words.next().filter(|word| !word.starts_with('[')) {
                Some(module) => format!("{name} [{module}]"),
                None => name.to_owned(),
            };
            named.insert(function, format!("a kprobe ({place})"));
        }
        for (patch, function) in livepatched {
            named.insert(function.clone(), format!("the livepatch {patch}"));
        }
        Owners { named }
    }

    /// The owner of a function.
    pub fn of(&self, function: &str) -> Option<&str> {
        self.named.get(function).map(String::as_str)
    }
}

/// The text of a file in a file system that is mounted at `place` or nowhere; "" if the kernel has
/// no such file.
fn text(file_system: &str, place: &str, file: &str) -> String {
    let there = std::fs::read_to_string(format!("{place}/{file}"));
    there.or_else(|_| from_own_mount(file_system, file)).unwrap_or_default()
}

/// The mount has no path, and disappears when the last descriptor is closed.
fn from_own_mount(file_system: &str, file: &str) -> std::io::Result<String> {
    use rustix::mount::{fsconfig_create, fsmount, fsopen};
    let context = fsopen(file_system, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let mount: OwnedFd =
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    let opened = rustix::fs::openat(&mount, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    std::fs::File::from(opened).read_to_string(&mut text)?;
    Ok(text)
}

/// An address of the kernel as `FUNCTION+0xOFFSET`, or as a number if /proc/kallsyms does not show
/// it.
pub(crate) fn place(address: u64) -> String {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    place_among(&symbols, address).unwrap_or_else(|| format!("{address:#x}"))
}

/// `symbols`: `ADDRESS TYPE NAME [MODULE]`.
fn place_among(symbols: &str, address: u64) -> Option<String> {
    let texts = symbols.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let at = u64::from_str_radix(words.next()?, 16).ok()?;
        let (kind, name) = (words.next()?, words.next()?);
        let is_before = at != 0 && at <= address && kind.eq_ignore_ascii_case("t");
        is_before.then(|| (at, name, words.next()))
    });
    // If there are two names, the first is used.
    let (at, name, module) =
        texts.reduce(|last, next| if next.0 > last.0 { next } else { last })?;
    let module = module.map_or_else(String::new, |module| format!(" {module}"));
    Some(format!("{name}+{:#x}{module}", address - at))
}

/// The owner of the code that the tracer's site calls: `SYMBOL+0xOFFSET/0xSIZE`.
fn direct_user(target: &str) -> String {
    let symbol = target.split('+').next().unwrap_or(target);
    match symbol {
        "" => "a direct user of ftrace".into(),
        bpf if bpf.starts_with("bpf_trampoline_") => {
            format!("the BPF trampoline {bpf}: a BPF program is attached")
        }
        other => format!("{other}, a direct user of ftrace"),
    }
}

/// `/sys/kernel/livepatch/PATCH/OBJECT/FUNCTION,N`; the object is `vmlinux` or a module.
fn livepatched() -> Vec<(String, String)> {
    let names = |path: &str| -> Vec<String> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let mut found = Vec::new();
    for patch in names("/sys/kernel/livepatch") {
        for object in names(&format!("/sys/kernel/livepatch/{patch}")) {
            for function in names(&format!("/sys/kernel/livepatch/{patch}/{object}")) {
                let Some((function, _)) = function.split_once(',') else { continue };
                let function = match object.as_str() {
                    "vmlinux" => function.to_owned(),
                    module => format!("{function} [{module}]"),
                };
                found.push((patch.clone(), function));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_named_by_the_function_that_holds_it() {
        let symbols = "ffffffff81000000 T _stext\nffffffff81000010 t vfs_read\n\
            ffffffff81000010 T alias\nffffffff81000018 d data\nffffffff81000040 T next\n\
            ffffffffc0000000 t lo_open\t[loop]\n";
        let place = |address| place_among(symbols, address);
        assert_eq!(place(0xffff_ffff_8100_0019).as_deref(), Some("vfs_read+0x9"));
        assert_eq!(place(0xffff_ffff_8100_0040).as_deref(), Some("next+0x0"));
        assert_eq!(place(0xffff_ffff_c000_0002).as_deref(), Some("lo_open+0x2 [loop]"));
        assert_eq!(place(0x10), None);
        // Without the right to see addresses each is 0.
        assert_eq!(place_among("0000000000000000 T _stext\n", 0x10), None);
    }

    #[test]
    fn owners_are_named() {
        let probes = "ffffffff81234567  k  vfs_read+0x10    [DISABLED]\n\
            ffffffff81234568  r  vfs_write+0x0    [FTRACE]\n\
            ffffffffc0234568  k  lo_ioctl+0x9  loop [DISABLED]\n";
        let traced = "do_sys_open (1) R I M    tramp: 0x1 (klp)\n\
            vfs_fsync (1)    D   \ttramp: 0x2 (call_direct_funcs+0x0/0x20)->\
            call_direct_funcs+0x0/0x20\n\
            \tdirect-->bpf_trampoline_6442+0x0/0x9f\nvfs_open (1)\n\
            vfs_stat (1)    I     tramp: 0x3 (divert+0x0/0x60 [kernlane])->x+0x0/0x1\n\
            vfs_llseek (1)    D\n\tdirect-->my_tramp+0x0/0x20 [m]\nvfs_lock (1)    D\n\
            lo_open [loop] (1) R I     tramp: 0x4\nlo_release [loop] (1)\n";
        let owners = Owners::parse(probes, traced, &[("lp".into(), "cmdline_proc_show".into())]);
        assert_eq!(owners.of("vfs_read"), Some("a kprobe (vfs_read+0x10)"));
        assert_eq!(owners.of("vfs_write"), Some("a kprobe (vfs_write+0x0)"));
        assert_eq!(owners.of("do_sys_open"), Some("a user of ftrace that changes where it goes"));
        let own = "another program of Kernlane, which is installing it";
        assert_eq!(owners.of("vfs_stat"), Some(own));
        let trampoline = "the BPF trampoline bpf_trampoline_6442: a BPF program is attached";
        assert_eq!(owners.of("vfs_fsync"), Some(trampoline));
        assert_eq!(owners.of("vfs_llseek"), Some("my_tramp, a direct user of ftrace"));
        assert_eq!(owners.of("vfs_lock"), Some("a direct user of ftrace"));
        assert_eq!(owners.of("cmdline_proc_show"), Some("the livepatch lp"));
        assert_eq!(owners.of("vfs_open"), Some(TRACER));
        assert_eq!(owners.of("lo_ioctl [loop]"), Some("a kprobe (lo_ioctl+0x9)"));
        let diverted = "a user of ftrace that changes where it goes";
        assert_eq!(owners.of("lo_open [loop]"), Some(diverted));
        assert_eq!(owners.of("lo_release [loop]"), Some(TRACER));
        assert_eq!(owners.of("lo_release"), None);
        assert_eq!(owners.of("vfs_getattr"), None);
    }
}
