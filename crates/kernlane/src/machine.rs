//! Machine files: `machines/*.toml`, or a user's own.
//!
//! Takes a name or a path; gives a [`Machine`] that can be built. Every number in a file stands beside its source or the word
//! "assumed"; a file that leaves one out, or describes a cache that cannot be built, is an error that names the rule and the line.
//!
//! To add one: a file in `machines/` and its line in [`SHIPPED`].

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use sim::{Geometry, ItlbDescription, Machine, Replacement, SimpleModel};
use std::path::Path;
use toml::Spanned;

/// The machines that come with Kernlane: name and file.
const SHIPPED: &[(&str, &str)] = &[
    ("torrellas-8k", include_str!("../../../machines/torrellas-8k.toml")),
    ("ultrasparc-16k", include_str!("../../../machines/ultrasparc-16k.toml")),
    ("server-32k", include_str!("../../../machines/server-32k.toml")),
];

/// The machine called `name`: one that is shipped, or else a file when `name` looks like a path.
pub fn find(name: &str) -> Result<Machine> {
    if let Some((shipped, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
        return parse(text, &format!("machines/{shipped}.toml"));
    }
    if !name.contains('/') && !name.ends_with(".toml") {
        let known: Vec<&str> = SHIPPED.iter().map(|(shipped, _)| *shipped).collect();
        bail!("no machine is called {name}: there are {}, or give a file's path", known.join(", "));
    }
    let text = std::fs::read_to_string(Path::new(name)).with_context(|| format!("{name}: cannot read this machine"))?;
    parse(&text, name)
}

/// A value and where it comes from.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sourced<T> {
    value: T,
    source: String,
}

type Number = Spanned<Sourced<u64>>;
type Share = Spanned<Sourced<f64>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    #[serde(rename = "summary")]
    _summary: String,
    l1i: Spanned<L1i>,
    itlb: Option<Spanned<Itlb>>,
    time: Spanned<Time>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct L1i {
    size: Number,
    ways: Number,
    line: Number,
    replacement: Spanned<Sourced<Policy>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Itlb {
    entries: Number,
    ways: Number,
    replacement: Spanned<Sourced<Policy>>,
    kernel_page: Number,
    user_page: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Time {
    miss_penalty: Share,
    data_references: Share,
    data_miss_rate: Share,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Policy {
    Lru,
    TreePlru,
}

impl From<Policy> for Replacement {
    fn from(policy: Policy) -> Replacement {
        match policy {
            Policy::Lru => Replacement::Lru,
            Policy::TreePlru => Replacement::TreePlru,
        }
    }
}

/// The machine in `text`; `file` is for messages.
fn parse(text: &str, file: &str) -> Result<Machine> {
    let description: File = toml::from_str(text).with_context(|| format!("{file}: not a machine"))?;
    Reader { text, file }.machine(&description)
}

struct Reader<'a> {
    text: &'a str,
    file: &'a str,
}

impl Reader<'_> {
    fn machine(&self, file: &File) -> Result<Machine> {
        if file.name.get_ref().is_empty() {
            bail!("{}: the name is empty", self.at(&file.name));
        }
        let (l1i, time) = (file.l1i.get_ref(), file.time.get_ref());
        let line = *self.sourced(&l1i.line)?;
        let geometry = Geometry::cache(
            *self.sourced(&l1i.size)?,
            *self.sourced(&l1i.ways)?,
            line,
            (*self.sourced(&l1i.replacement)?).into(),
        )
        .with_context(|| format!("{}: [l1i] cannot be built", self.at(&file.l1i)))?;
        let time_model = SimpleModel::new(
            *self.sourced(&time.miss_penalty)?,
            *self.sourced(&time.data_references)?,
            *self.sourced(&time.data_miss_rate)?,
        )
        .with_context(|| format!("{}: [time] is impossible", self.at(&file.time)))?;
        Ok(Machine {
            name: file.name.get_ref().clone(),
            l1i: geometry,
            l1i_line: line as u32,
            itlb: file.itlb.as_ref().map(|itlb| self.itlb(itlb)).transpose()?,
            time: time_model,
        })
    }

    fn itlb(&self, spanned: &Spanned<Itlb>) -> Result<ItlbDescription> {
        let itlb = spanned.get_ref();
        let impossible = || format!("{}: [itlb] cannot be built", self.at(spanned));
        let geometry = Geometry::tlb(
            *self.sourced(&itlb.entries)?,
            *self.sourced(&itlb.ways)?,
            (*self.sourced(&itlb.replacement)?).into(),
        )
        .with_context(impossible)?;
        let (kernel_page, user_page) = (*self.sourced(&itlb.kernel_page)?, *self.sourced(&itlb.user_page)?);
        ItlbDescription::new(geometry, kernel_page, user_page).with_context(impossible)
    }

    /// The value, if it has a source.
    fn sourced<'a, T>(&self, spanned: &'a Spanned<Sourced<T>>) -> Result<&'a T> {
        let sourced = spanned.get_ref();
        if sourced.source.trim().is_empty() {
            bail!(
                "{}: every number has its source or the word \"assumed\"; this source is empty",
                self.at(spanned)
            );
        }
        Ok(&sourced.value)
    }

    /// "file:line" of a value.
    fn at<T>(&self, spanned: &Spanned<T>) -> String {
        let before = &self.text.as_bytes()[..spanned.span().start.min(self.text.len())];
        format!("{}:{}", self.file, 1 + before.iter().filter(|&&byte| byte == b'\n').count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_machines_are_found_by_name_and_bear_it() {
        for (name, _) in SHIPPED {
            assert_eq!(find(name).unwrap().name, *name);
        }
        let server = find("server-32k").unwrap();
        assert_eq!((server.l1i.sets(), server.l1i.ways(), server.l1i_line), (64, 8, 64));
        assert_eq!(find("torrellas-8k").unwrap().itlb, None);
    }

    #[test]
    fn every_file_in_machines_is_shipped() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines");
        let mut found: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        let mut shipped: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        found.sort();
        shipped.sort();
        assert_eq!(found, shipped);
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let message = format!("{:#}", find("server").unwrap_err());
        assert!(message.contains("torrellas-8k, ultrasparc-16k, server-32k"), "{message}");
        let message = format!("{:#}", find("no/such.toml").unwrap_err());
        assert!(message.starts_with("no/such.toml: cannot read this machine"), "{message}");
    }

    #[test]
    fn impossible_machines_name_rule_and_line() {
        let text = SHIPPED[2].1;
        let cases = [
            (
                "value = 32768",
                "value = 30000",
                "m.toml:6: [l1i] cannot be built: the size, 30000 bytes",
            ),
            (
                "value = 32768",
                "value = 49152",
                "m.toml:6: [l1i] cannot be built: the number of sets is a power of two, not 96",
            ),
            ("value = 4096", "value = 4000", "m.toml:12: [itlb] cannot be built: a page holds"),
            (
                "value = 0.05",
                "value = 1.05",
                "m.toml:19: [time] is impossible: a share lies between 0 and 1, not 1.05",
            ),
            ("\"assumed\"", "\" \"", "m.toml:10: every number has its source"),
            ("\"lru\"", "\"random\"", "m.toml: not a machine: TOML parse error at line 10"),
            ("ways =", "way =", "m.toml: not a machine: TOML parse error at line 8"),
            (
                ", source = \"AMD 57647, L1 ITLB\"",
                "",
                "m.toml: not a machine: TOML parse error at line 13",
            ),
        ];
        for (from, to, expected) in cases {
            let damaged = text.replacen(from, to, 1);
            assert_ne!(text, damaged);
            let message = format!("{:#}", parse(&damaged, "m.toml").unwrap_err());
            assert!(message.starts_with(expected), "{message}\nexpected: {expected}");
        }
    }

    #[test]
    fn damaged_files_are_errors_or_machines_never_panics() {
        let text = SHIPPED[1].1.as_bytes();
        let mut state = 0x0123_4567_89AB_CDEF_u64;
        for _ in 0..2000 {
            let mut bytes = text.to_vec();
            for _ in 0..3 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (state >> 33) as usize % bytes.len();
                match state >> 20 & 3 {
                    0 => bytes[at] = (state >> 24) as u8,
                    1 => drop(bytes.remove(at)),
                    2 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, b"0123456789\"={}\n"[at % 15]),
                }
            }
            let _ = parse(&String::from_utf8_lossy(&bytes), "damaged");
        }
    }
}
