//! The spelling of `kernlane report` before it had subcommands. It works for one release more.

use clap::{Command, CommandFactory};
use host::note;
use host::recording::Recording;
use std::ffi::{OsStr, OsString};

/// The options that were reports: each is a subcommand of the same name now.
const REPORTS: [&str; 11] = [
    "--services",
    "--os-share",
    "--locality",
    "--sizes",
    "--misses",
    "--generations",
    "--sharing",
    "--multiprocessor",
    "--locks",
    "--os-core",
    "--per-operation",
];

/// A command line of this program, with `report --services` as `report services`. Says the new
/// spelling if the line has the old one. Other lines stay as they are.
pub(crate) fn in_new_spelling<C: CommandFactory>(line: Vec<OsString>) -> Vec<OsString> {
    match rewritten(&C::command(), &line) {
        Some((new, said)) => {
            note!("{said}; the next release will not know the old spelling");
            new
        }
        None => line,
    }
}

/// The line in the new spelling, and what to say, if it is in the old one.
fn rewritten(program: &Command, line: &[OsString]) -> Option<(Vec<OsString>, String)> {
    let [name, command, rest @ ..] = line else { return None };
    let first = rest.first()?.to_str().unwrap_or_default();
    let report = program.find_subcommand("report").filter(|_| command == "report")?;
    if report.find_subcommand(first).is_some() || ["help", "-h", "--help"].contains(&first) {
        return None;
    }
    let is_report = |word: &OsString| REPORTS.iter().any(|report| word == report);
    let options = rest.iter().position(|word| word == "--").unwrap_or(rest.len());
    let asked = rest[..options].iter().find(|word| is_report(word)).and_then(|word| word.to_str());
    let (subcommand, said) = match asked {
        Some(option) => {
            let subcommand = option.trim_start_matches('-');
            (subcommand, format!("`report {option}` is `report {subcommand}` now"))
        }
        None => {
            let subcommand = if is_page(rest) { "page" } else { "layouts" };
            (subcommand, format!("`report` without a name is `report {subcommand}` now"))
        }
    };
    let kept = rest.iter().filter(|word| asked.is_none_or(|option| *word != option));
    let new = [name, command].into_iter().cloned().chain([subcommand.into()]);
    Some((new.chain(kept.cloned()).collect(), said))
}

/// Whether these words asked for a page: they name a file for it, or a recording.
fn is_page(words: &[OsString]) -> bool {
    let names_file = |word: &OsStr| {
        word.to_str().is_some_and(|word| {
            word.starts_with("--output") || (word.starts_with("-o") && !word.starts_with("--"))
        })
    };
    words.iter().any(|word| names_file(word) || Recording::at(word).exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    fn new_line(old: &str) -> Option<String> {
        let line: Vec<OsString> = old.split(' ').map(OsString::from).collect();
        let (new, _) = rewritten(&Cli::command(), &line)?;
        let words: Vec<_> = new.iter().map(|word| word.to_string_lossy()).collect();
        Some(words.join(" "))
    }

    #[test]
    fn options_become_subcommands() {
        for (old, new) in [
            ("k report --services a.rec", "k report services a.rec"),
            ("k report a.rec -m zen4 --services", "k report services a.rec -m zen4"),
            ("k report a.rec -o a.html", "k report page a.rec -o a.html"),
            ("k report --output=a.html a.rec", "k report page --output=a.html a.rec"),
            ("k report none.json --json", "k report layouts none.json --json"),
            ("k report --os-core a.rec --policy x", "k report os-core a.rec --policy x"),
        ] {
            assert_eq!(new_line(old).as_deref(), Some(new), "{old}");
        }
    }

    #[test]
    fn other_lines_stay() {
        for line in [
            "k",
            "k report",
            "k report --help",
            "k report services a.rec",
            "k report help services",
            "k replay --services",
            "k bench --generations a b",
        ] {
            assert_eq!(new_line(line), None, "{line}");
        }
    }

    #[test]
    fn every_old_report_is_a_subcommand() {
        let program = Cli::command();
        let report = program.find_subcommand("report").unwrap();
        for option in REPORTS {
            assert!(report.find_subcommand(option.trim_start_matches('-')).is_some(), "{option}");
        }
    }
}
