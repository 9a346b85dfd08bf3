//! Machine files: `machines/*.toml`, or a user's own.
//!
//! Takes a name or a path; gives a [`Machine`] that can be built. Every number in a file stands
//! beside its source or the word "assumed"; a file that leaves one out, or describes a cache that
//! cannot be built, is an error that names the rule and the line.
//!
//! To add one: a file in `machines/` and its line in [`SHIPPED`].

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use sim::{
    BranchPrediction, CacheDescription, Direction, Geometry, Held, ItlbDescription, Latencies,
    Machine, Memory, Replacement, SimpleModel, TargetBufferDescription,
};
use std::path::Path;
use toml::Spanned;

/// The machines that come with Kernlane: name and file.
const SHIPPED: &[(&str, &str)] = &[
    ("torrellas-8k", include_str!("../../../machines/torrellas-8k.toml")),
    ("ultrasparc-16k", include_str!("../../../machines/ultrasparc-16k.toml")),
    ("server-32k", include_str!("../../../machines/server-32k.toml")),
    ("server-48k", include_str!("../../../machines/server-48k.toml")),
    ("small-core", include_str!("../../../machines/small-core.toml")),
    ("simos-1994", include_str!("../../../machines/simos-1994.toml")),
    ("simos-1996", include_str!("../../../machines/simos-1996.toml")),
    ("simos-1998", include_str!("../../../machines/simos-1998.toml")),
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
    let text = std::fs::read_to_string(Path::new(name))
        .with_context(|| format!("{name}: cannot read this machine"))?;
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
    l1i: Spanned<CacheText>,
    itlb: Option<Spanned<Itlb>>,
    time: Spanned<Time>,
    l1d: Option<Spanned<CacheText>>,
    l2: Option<Spanned<CacheText>>,
    l3: Option<Spanned<CacheText>>,
    dtlb: Option<Spanned<Dtlb>>,
    latencies: Option<Spanned<LatenciesText>>,
    branch: Option<Spanned<BranchText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheText {
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
struct Dtlb {
    entries: Number,
    ways: Number,
    replacement: Spanned<Sourced<Policy>>,
}

/// Cycles. Those of levels that the machine has, and none else.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LatenciesText {
    l2: Option<Share>,
    l3: Option<Share>,
    memory: Share,
    tlb_miss: Share,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Time {
    miss_penalty: Share,
    data_references: Share,
    data_miss_rate: Share,
}

/// Penalties in cycles.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BranchText {
    predictor: Spanned<Sourced<PredictorText>>,
    entries: Option<Number>,
    history: Option<Number>,
    btb_entries: Option<Number>,
    btb_ways: Option<Number>,
    btb_holds: Option<Spanned<Sourced<HeldText>>>,
    return_stack: Option<Number>,
    penalty: Option<Share>,
    misfetch_penalty: Option<Share>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PredictorText {
    Static,
    Bimodal,
    Gshare,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum HeldText {
    Taken,
    Indirect,
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
///
/// # Errors
/// It is no machine, or one that cannot be built: the rule and the line.
pub fn parse(text: &str, file: &str) -> Result<Machine> {
    let description: File =
        toml::from_str(text).with_context(|| format!("{file}: not a machine"))?;
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
        let l1i = self.cache("l1i", &file.l1i)?;
        let time = file.time.get_ref();
        let time_model = SimpleModel::new(
            *self.sourced(&time.miss_penalty)?,
            *self.sourced(&time.data_references)?,
            *self.sourced(&time.data_miss_rate)?,
        )
        .with_context(|| format!("{}: [time] is impossible", self.at(&file.time)))?;
        Ok(Machine {
            name: file.name.get_ref().clone(),
            l1i: l1i.geometry,
            l1i_line: l1i.line,
            itlb: file.itlb.as_ref().map(|itlb| self.itlb(itlb)).transpose()?,
            time: time_model,
            memory: self.memory(file)?,
            branch: file.branch.as_ref().map(|branch| self.branch(branch)).transpose()?,
        })
    }

    fn cache(&self, name: &str, spanned: &Spanned<CacheText>) -> Result<CacheDescription> {
        let cache = spanned.get_ref();
        CacheDescription::new(
            *self.sourced(&cache.size)?,
            *self.sourced(&cache.ways)?,
            *self.sourced(&cache.line)?,
            (*self.sourced(&cache.replacement)?).into(),
        )
        .with_context(|| format!("{}: [{name}] cannot be built", self.at(spanned)))
    }

    /// What lies behind the L1I. A machine has an L1D and latencies, or nothing of it all.
    fn memory(&self, file: &File) -> Result<Option<Memory>> {
        let (Some(l1d), Some(latencies)) = (&file.l1d, &file.latencies) else {
            let some =
                [&file.l1d, &file.l2, &file.l3].into_iter().flatten().map(|cache| self.at(cache));
            let others = [
                file.dtlb.as_ref().map(|dtlb| self.at(dtlb)),
                file.latencies.as_ref().map(|it| self.at(it)),
            ];
            return match some.chain(others.into_iter().flatten()).next() {
                None => Ok(None),
                Some(at) => {
                    bail!("{at}: [l1d] and [latencies] belong to this, and one of them is missing")
                }
            };
        };
        let l2 = file.l2.as_ref().map(|cache| self.cache("l2", cache)).transpose()?;
        let l3 = file.l3.as_ref().map(|cache| self.cache("l3", cache)).transpose()?;
        let dtlb = file.dtlb.as_ref().map(|dtlb| self.dtlb(dtlb)).transpose()?;
        let memory = Memory::new(
            self.cache("l1d", l1d)?,
            l2,
            l3,
            dtlb,
            self.latencies(latencies, l2.is_some(), l3.is_some())?,
        );
        Ok(Some(memory.with_context(|| format!("{}: this machine cannot be built", self.at(l1d)))?))
    }

    fn dtlb(&self, spanned: &Spanned<Dtlb>) -> Result<Geometry> {
        let dtlb = spanned.get_ref();
        Geometry::tlb(
            *self.sourced(&dtlb.entries)?,
            *self.sourced(&dtlb.ways)?,
            (*self.sourced(&dtlb.replacement)?).into(),
        )
        .with_context(|| format!("{}: [dtlb] cannot be built", self.at(spanned)))
    }

    fn latencies(
        &self,
        spanned: &Spanned<LatenciesText>,
        has_l2: bool,
        has_l3: bool,
    ) -> Result<Latencies> {
        let latencies = spanned.get_ref();
        for (name, has, given) in [("l2", has_l2, &latencies.l2), ("l3", has_l3, &latencies.l3)] {
            if has != given.is_some() {
                let what = if has { "an" } else { "no" };
                bail!(
                    "{}: [latencies] and [{name}] belong together, and there is {what} [{name}]",
                    self.at(spanned)
                );
            }
        }
        let memory = *self.sourced(&latencies.memory)?;
        // A level that is not there is never asked.
        let l3 = latencies.l3.as_ref().map_or(Ok(memory), |l3| self.sourced(l3).copied())?;
        let l2 = latencies.l2.as_ref().map_or(Ok(l3), |l2| self.sourced(l2).copied())?;
        let tlb_miss = *self.sourced(&latencies.tlb_miss)?;
        Latencies::new(l2, l3, memory, tlb_miss)
            .with_context(|| format!("{}: [latencies] are impossible", self.at(spanned)))
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
        let (kernel_page, user_page) =
            (*self.sourced(&itlb.kernel_page)?, *self.sourced(&itlb.user_page)?);
        ItlbDescription::new(geometry, kernel_page, user_page).with_context(impossible)
    }

    fn branch(&self, spanned: &Spanned<BranchText>) -> Result<BranchPrediction> {
        let branch = spanned.get_ref();
        let number = |given: &Option<Number>| {
            given.as_ref().map(|number| self.sourced(number).copied()).transpose()
        };
        let cycles = |given: &Option<Share>| {
            given.as_ref().map(|cycles| self.sourced(cycles).copied()).transpose()
        };
        let (entries, history) = (number(&branch.entries)?, number(&branch.history)?);
        let direction = match (*self.sourced(&branch.predictor)?, entries, history) {
            (PredictorText::Static, None, None) => Ok(Direction::Static),
            (PredictorText::Bimodal, Some(entries), None) => Direction::bimodal(entries),
            (PredictorText::Gshare, Some(entries), Some(history)) => {
                Direction::gshare(entries, history)
            }
            _ => bail!(
                "{}: [branch] of this predictor: static has neither entries nor history, bimodal has entries, gshare has both",
                self.at(&branch.predictor)
            ),
        };
        let impossible = || format!("{}: [branch] cannot be built", self.at(spanned));
        BranchPrediction::new(
            direction.with_context(impossible)?,
            self.target_buffer(spanned)?,
            number(&branch.return_stack)?.unwrap_or(0),
            cycles(&branch.penalty)?,
            cycles(&branch.misfetch_penalty)?,
        )
        .with_context(impossible)
    }

    /// The branch target buffer, whose three lines stand together or not at all.
    fn target_buffer(
        &self,
        spanned: &Spanned<BranchText>,
    ) -> Result<Option<TargetBufferDescription>> {
        let branch = spanned.get_ref();
        let (entries, ways, holds) =
            match (&branch.btb_entries, &branch.btb_ways, &branch.btb_holds) {
                (None, None, None) => return Ok(None),
                (Some(entries), Some(ways), Some(holds)) => {
                    (*self.sourced(entries)?, *self.sourced(ways)?, *self.sourced(holds)?)
                }
                _ => bail!(
                    "{}: [branch] has btb_entries, btb_ways and btb_holds, or none of them",
                    self.at(spanned)
                ),
            };
        let holds = match holds {
            HeldText::Taken => Held::Taken,
            HeldText::Indirect => Held::Indirect,
        };
        let buffer = TargetBufferDescription::new(entries, ways, holds);
        Ok(Some(buffer.with_context(|| format!("{}: [branch] cannot be built", self.at(spanned)))?))
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
        let memory = find("simos-1994").unwrap().memory.unwrap();
        assert_eq!((memory.l1d.line, memory.l2.unwrap().geometry.ways(), memory.l3), (16, 1, None));
        assert_eq!((memory.latencies.l2, memory.latencies.memory), (10.0, 100.0));
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
        assert!(
            message.contains("torrellas-8k, ultrasparc-16k, server-32k, server-48k"),
            "{message}"
        );
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
                "m.toml:7: [l1i] cannot be built: the size, 30000 bytes",
            ),
            (
                "value = 32768",
                "value = 49152",
                "m.toml:7: [l1i] cannot be built: the number of sets is a power of two, not 96",
            ),
            ("value = 4096", "value = 4000", "m.toml:13: [itlb] cannot be built: a page holds"),
            (
                "value = 0.05",
                "value = 1.05",
                "m.toml:20: [time] is impossible: a share lies between 0 and 1, not 1.05",
            ),
            ("\"assumed\"", "\" \"", "m.toml:11: every number has its source"),
            ("\"lru\"", "\"random\"", "m.toml: not a machine: TOML parse error at line 11"),
            ("ways =", "way =", "m.toml: not a machine: TOML parse error at line 9"),
            (
                ", source = \"AMD 57647, L1 ITLB\"",
                "",
                "m.toml: not a machine: TOML parse error at line 14",
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
    fn what_lies_behind_the_l1i_is_whole_or_absent() {
        let (_, text) = SHIPPED.iter().find(|(name, _)| *name == "server-32k").unwrap();
        let without = |section: &str| {
            let start = text.find(&format!("\n[{section}]\n")).unwrap() + 1;
            let end = text[start + 1..].find("\n[").map_or(text.len(), |at| start + 1 + at + 1);
            let text = format!("{}{}", &text[..start], &text[end..]);
            format!(
                "{:#}",
                parse(&text, "m.toml")
                    .map(|_| ())
                    .err()
                    .map_or(String::new(), |error| format!("{error:#}"))
            )
        };
        for section in ["l1d", "latencies"] {
            let message = without(section);
            assert!(
                message
                    .ends_with("[l1d] and [latencies] belong to this, and one of them is missing"),
                "{section}: {message}"
            );
        }
        for section in ["l2", "l3"] {
            let message = without(section);
            assert!(
                message.ends_with(&format!("and there is no [{section}]")),
                "{section}: {message}"
            );
        }
        assert_eq!(without("dtlb"), "");
        let (_, whole) = SHIPPED.iter().find(|(name, _)| *name == "torrellas-8k").unwrap();
        assert!(parse(whole, "m.toml").unwrap().memory.is_some_and(|memory| memory.l2.is_none()));
        let none = &whole[..whole.find("[l1d]").unwrap()];
        assert_eq!(parse(none, "m.toml").unwrap().memory, None);
    }

    #[test]
    fn impossible_predictors_name_rule_and_line() {
        let text = SHIPPED[2].1;
        let line = |start: &str| 1 + text[..text.find(start).unwrap()].matches('\n').count();
        let (table, predictor) = (line("\n[branch]") + 1, line("\npredictor =") + 1);
        let cases = [
            (
                "predictor = { value = \"gshare\"",
                "predictor = { value = \"bimodal\"",
                predictor,
                "[branch] of this predictor",
            ),
            (
                "predictor = { value = \"gshare\"",
                "predictor = { value = \"static\"",
                predictor,
                "[branch] of this predictor",
            ),
            (
                "history = { value = 12",
                "history = { value = 15",
                table,
                "[branch] cannot be built: the history has from 1 to 14 bits",
            ),
            (
                "entries = { value = 16384",
                "entries = { value = 16000",
                table,
                "[branch] cannot be built: a table of counters",
            ),
            (
                "btb_ways = { value = 7",
                "btb_ways = { value = 6",
                table,
                "[branch] cannot be built: the target buffer: the entries, 7168",
            ),
            ("btb_ways", "#", table, "[branch] has btb_entries, btb_ways and btb_holds, or none"),
            (
                "return_stack = { value = 32",
                "return_stack = { value = 320000",
                table,
                "[branch] cannot be built: a return stack",
            ),
            (
                "\npenalty = { value = 13",
                "\npenalty = { value = -1",
                table,
                "[branch] cannot be built: a wrong prediction costs",
            ),
            (
                "predictor = { value = \"gshare\"",
                "predictor = { value = \"oracle\"",
                0,
                "not a machine: TOML parse error",
            ),
        ];
        for (from, to, line, rule) in cases {
            let damaged = text.replacen(from, to, 1);
            assert_ne!(text, damaged, "{from}");
            let at = if line == 0 { "m.toml".to_owned() } else { format!("m.toml:{line}") };
            let message = format!("{:#}", parse(&damaged, "m.toml").unwrap_err());
            assert!(
                message.starts_with(&format!("{at}: {rule}")),
                "{message}\nexpected: {at}: {rule}"
            );
        }
        let none = &text[..text.find("[branch]").unwrap()];
        assert_eq!(parse(none, "m.toml").unwrap().branch, None);
    }

    #[test]
    fn shipped_predictors_are_what_their_files_say() {
        let branch = |name| find(name).unwrap().branch;
        assert_eq!([branch("torrellas-8k"), branch("simos-1994")], [None, None]);
        let sparc = branch("ultrasparc-16k").unwrap();
        assert_eq!(sparc.direction, Direction::Bimodal { entries: 2048 });
        assert_eq!((sparc.return_stack, sparc.penalty), (4, Some(4.0)));
        assert_eq!(branch("simos-1996").unwrap().penalty, None);
        assert_eq!(
            branch("small-core").unwrap().targets.map(|targets| targets.holds),
            Some(Held::Indirect)
        );
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
