//! Reads what a guest printed after its run, and the names of its kernel's code, including the
//! copies.
//!
//! Input: a recording. Output: the report of `kernlane live auto`, and symbols in which a replaced
//! function is entered at its copy. The rest of the original is a jump. The jump is not an entry,
//! because otherwise a call would be counted twice.

use anyhow::{Context, Result, ensure};
use guest::GuestKernel;
use host::recording::Recording;
use live::chunks::Chunks;
use serde::Deserialize;
use services::symbols::KernelSymbols;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::path::Path;

#[derive(Deserialize)]
pub(super) struct LiveReport {
    pub roots: Vec<ReportedRoot>,
    pub functions: Vec<Chunks>,
}

#[derive(Deserialize)]
pub(super) struct ReportedRoot {
    pub function: String,
}

#[derive(Deserialize)]
struct InstalledGroup {
    functions: Vec<CopiedFunction>,
}

/// A replaced function. Without KASLR the addresses are link addresses.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct CopiedFunction {
    entry: u64,
    copy: u64,
}

pub(super) struct GuestReport {
    pub report: LiveReport,
    pub copies: Vec<CopiedFunction>,
    /// Lines of `/proc/kallsyms`.
    modules: String,
}

impl GuestReport {
    pub(super) fn read(recording: &Path) -> Result<GuestReport> {
        let path = Recording::at(recording).output();
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        GuestReport::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<GuestReport> {
        let part = |name: &str| {
            let begin = format!("-- {name}\n");
            let rest = text.split_once(&begin).map(|(_, rest)| rest);
            let part = rest.and_then(|rest| rest.split_once("\n-- "));
            part.map(|(part, _)| part).with_context(|| format!("the guest printed no {name}"))
        };
        let groups: Vec<InstalledGroup> =
            serde_json::from_str(part("status")?).context("the status")?;
        Ok(GuestReport {
            report: serde_json::from_str(part("report")?).context("the report")?,
            copies: groups.into_iter().flat_map(|group| group.functions).collect(),
            modules: part("modules")?.to_owned(),
        })
    }
}

/// No code of modules lies farther than this behind their last symbol.
const BEHIND: u64 = 1 << 20;

pub(super) fn symbols(kernel: &GuestKernel, guest_report: &GuestReport) -> Result<KernelSymbols> {
    let path = kernel.vmlinux.with_file_name(format!("System.map-{}", kernel.release));
    let map =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), with_copies(&map, guest_report)?)?;
    KernelSymbols::read(file.path())
}

fn with_copies(map: &str, guest_report: &GuestReport) -> Result<String> {
    let copies: HashMap<u64, u64> = guest_report.copies.iter().map(|f| (f.entry, f.copy)).collect();
    let mut text = String::with_capacity(map.len() + guest_report.modules.len());
    let mut named = HashSet::new();
    for line in map.lines() {
        let mut words = line.split(' ');
        let (Some(at), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        match u64::from_str_radix(at, 16).ok().and_then(|at| copies.get(&at)) {
            Some(copy) if matches!(kind, "t" | "T" | "w" | "W") => {
                // A part of a function is not an entry. If a function was a jump to the function
                // that now follows it, it has no bytes left, and both begin there.
                let _ = writeln!(text, "{at} t {name}.cold");
                let _ = writeln!(text, "{copy:016x} t {name}");
                named.insert(at);
            }
            _ => {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    ensure!(named.len() == copies.len(), "not every replaced function is in the System.map");
    let mut last = 0;
    for line in guest_report.modules.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(at), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        last =
            last.max(u64::from_str_radix(at, 16).with_context(|| format!("{line:?}: no address"))?);
        let name = name.replacen(".kernlane", ".cold", 1);
        let _ = writeln!(text, "{at} {kind} {name}");
    }
    let _ = writeln!(text, "{:016x} d behind_the_modules", last.saturating_add(BEHIND));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::address::LinkAddr;

    const OUTPUT: &str = "noise\n-- report\n{\"roots\": [{\"function\": \"f\"}], \
        \"functions\": []}\n-- status\n\
        [{\"functions\": [{\"entry\": 18446744071578845200, \"copy\": 18446744072635809840}]}]\n\
        -- modules\n\
        ffffffffc0000020 t f.kernlane.1\t[kernlane_1]\n\
        ffffffffc0000030 t f.kernlane\t[kernlane_1]\n-- auto\nx\n-- end\n";
    const MAP: &str = "ffffffff81000000 T _stext\nffffffff81000010 T f\nffffffff81000020 T g\n\
        ffffffff81000030 T h\n";

    /// The symbol that holds an address, and whether it begins a function.
    fn name(symbols: &KernelSymbols, at: u64) -> (Option<&str>, bool) {
        let symbol = symbols.containing(LinkAddr(at));
        let is_entry = symbol.is_some_and(|s| s.base_name().is_some() && s.addr.0 == at);
        (symbol.map(|s| s.name.as_str()), is_entry)
    }

    #[test]
    fn a_replaced_function_is_entered_at_its_copy() {
        let guest_report = GuestReport::parse(OUTPUT).unwrap();
        assert_eq!(guest_report.report.roots[0].function, "f");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), with_copies(MAP, &guest_report).unwrap()).unwrap();
        let symbols = KernelSymbols::read(file.path()).unwrap();
        assert_eq!(name(&symbols, 0xffff_ffff_8100_0010), (Some("f.cold"), false));
        assert_eq!(name(&symbols, 0xffff_ffff_8100_0020), (Some("g"), true));
        assert_eq!(name(&symbols, 0xffff_ffff_c000_0030), (Some("f"), true));
        assert_eq!(name(&symbols, 0xffff_ffff_c000_0020), (Some("f.cold.1"), false));
        assert_eq!(name(&symbols, 0xffff_ffff_c000_0100).0, Some("f"));
    }

    /// f was a jump to g, which now follows f.
    #[test]
    fn two_functions_may_begin_at_one_copy() {
        let copy = 0xffff_ffff_c000_0030_u64;
        let twice =
            format!("\"copy\": {copy}}}, {{\"entry\": 18446744071578845216, \"copy\": {copy}}}");
        let guest_report =
            GuestReport::parse(&OUTPUT.replace("\"copy\": 18446744072635809840}", &twice)).unwrap();
        assert_eq!(guest_report.copies.len(), 2);
        let text = with_copies(MAP, &guest_report).unwrap();
        for line in [
            "ffffffffc0000030 t f",
            "ffffffffc0000030 t g",
            "ffffffff81000010 t f.cold",
            "ffffffff81000020 t g.cold",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
        // One of the two functions is missing in the map.
        assert!(
            with_copies(&MAP.replace("ffffffff81000020", "ffffffff81000028"), &guest_report)
                .is_err()
        );
    }

    #[test]
    fn the_error_names_the_missing_part() {
        for part in ["report", "status", "modules"] {
            let damaged = OUTPUT.replace(&format!("-- {part}"), "-- other");
            let error = GuestReport::parse(&damaged).err().map(|error| error.to_string()).unwrap();
            assert!(error.contains(part), "{error}");
        }
        let guest_report = GuestReport::parse(OUTPUT).unwrap();
        assert!(with_copies("ffffffff81000000 T _stext\n", &guest_report).is_err());
    }
}
