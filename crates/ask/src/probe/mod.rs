//! Probes with values: what a user names in C becomes a program for the plugin, and a view in SQL.
//!
//! Input: the text of probes, and a kernel's vmlinux, with BTF for types. Output: a program that
//! reads registers and memory at instructions, and what its values are called. Nothing is executed
//! here.
//!
//! ```text
//! tcp_v4_rcv(skb->len, dev=skb->dev->name)
//! → ffffffff81a3c1d0 rdi,+112,u4 rdi,+16,u8,+288,text
//! → view tcp_v4_rcv: start, cpu, task, pid, len, dev
//! ```

mod compile;
mod follow;
mod kernel;
pub mod syntax;
mod tracepoints;
mod views;

use crate::schema::TABLES;
use anyhow::{Context, Result, bail, ensure};
use compile::{PlaceTypes, value};
use kernel::ProbedKernel;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use syntax::{AccessText, AskedText, PairText, ProbePlace, ProbeText, parse};
use trace::RunAddr;
use trace::probe::{ProbePoint, ProbeProgram, ProbeValue, ValueStart, ValueStep};
pub use views::ProbeView;

/// The most values of a probe: the table has columns for so many.
pub const MOST_VALUES: usize = 8;
/// The most instructions with probes.
const MOST_POINTS: usize = 4096;

/// Values are asked for, and there are no probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no probe to be asked: name one")]
pub struct NoProbes;

/// How a value is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// A number.
    Number,
    /// An address.
    Address,
    /// A text.
    Text,
}

/// A probe that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The name of its view.
    pub name: String,
    /// The names of its values, and how they are shown.
    pub values: Vec<(String, ValueKind)>,
    /// What its rows lack.
    pub notes: Vec<String>,
    /// The positions in the recording that have rows, ascending. `None`: all that are reached.
    pub positions: Option<Arc<[u64]>>,
}

/// Intervals between the hits of two probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The name of its view.
    pub name: String,
    /// The number of the probe at the beginning.
    pub from: usize,
    /// The number of the probe at the end.
    pub to: usize,
    /// The numbers of the values of both that must be equal. `None`: the task.
    pub by: Option<(usize, usize)>,
    /// What the values of both are called.
    pub values: Vec<String>,
}

/// Where a question or accesses place a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbedPositions {
    /// The positions in the recording.
    pub positions: Vec<u64>,
    /// The addresses of the instructions there.
    pub addresses: Vec<u64>,
}

/// Probes of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeSet {
    /// The probes.
    pub probes: Vec<Probe>,
    /// Pairs of them.
    pub pairs: Vec<Pair>,
    /// What is read.
    pub program: ProbeProgram,
    /// By point of the program: the probe's number.
    pub owners: Vec<usize>,
}

/// The values of probes in a recording.
#[derive(Clone, Debug)]
pub struct RecordedProbes {
    /// The probes.
    pub set: ProbeSet,
    /// The file of their values.
    pub file: PathBuf,
}

impl ProbeSet {
    /// Understands probes of the kernel with this vmlinux. `positions`: finds the instructions of a
    /// question, or of accesses, in the recording that is asked.
    ///
    /// # Errors
    /// The text of a probe is wrong, or the kernel has no such function, variable, type or field.
    /// The message says what there is instead.
    pub fn new(
        vmlinux: &[u8],
        texts: &[String],
        positions: &dyn Fn(&ProbePlace) -> Result<ProbedPositions>,
    ) -> Result<ProbeSet> {
        let kernel = ProbedKernel::new(vmlinux)?;
        let mut set = ProbeSet::default();
        for text in texts {
            let asked = parse(text)?;
            let added = match &asked {
                AskedText::Probe(probe) => set.add(&kernel, probe, positions),
                AskedText::Pair(pair) => set.add_pair(&kernel, pair, positions),
            };
            added.with_context(|| format!("the probe {text:?}"))?;
        }
        ensure!(
            set.program.points.len() <= MOST_POINTS,
            "the probes are at {} instructions; at most {MOST_POINTS} can have one",
            set.program.points.len()
        );
        Ok(set)
    }

    fn add(
        &mut self,
        kernel: &ProbedKernel<'_>,
        text: &ProbeText,
        positions: &dyn Fn(&ProbePlace) -> Result<ProbedPositions>,
    ) -> Result<()> {
        ensure!(
            text.values.len() <= MOST_VALUES,
            "it has {} values; at most {MOST_VALUES} are possible",
            text.values.len()
        );
        let name = match &text.name {
            Some(name) => name.clone(),
            None => usual_name(&text.place)?,
        };
        self.is_free(&name)?;
        let found = kernel.find(&text.place, positions)?;
        let types = found.function.as_deref().map(|name| kernel.btf.function(name)).transpose()?;
        let types = types.flatten();
        let mut notes: Vec<String> = found.note.into_iter().collect();
        let mut kinds: Vec<Option<ValueKind>> = vec![None; text.values.len()];
        // By value: at how many instructions it cannot be read.
        let mut missing: Vec<(usize, Option<anyhow::Error>)> =
            text.values.iter().map(|_| (0, None)).collect();
        let instructions = found.points.len();
        for (at, names) in found.points {
            let place = PlaceTypes {
                btf: &kernel.btf,
                function: types.as_ref(),
                at_entry: matches!(text.place, ProbePlace::Entry(_)),
                at_return: matches!(text.place, ProbePlace::Return(_) | ProbePlace::Rows(_)),
                names: &names,
            };
            let mut programs = Vec::new();
            for (number, of) in text.values.iter().enumerate() {
                match value(of, &place, kernel) {
                    Ok((program, kind)) => {
                        kinds[number] = Some(kind);
                        programs.push(program);
                    }
                    Err(error) => {
                        missing[number].0 += 1;
                        missing[number].1 = Some(error);
                        programs.push(unreadable());
                    }
                }
            }
            self.program.points.push(ProbePoint { addr: RunAddr(at), values: programs });
            self.owners.push(self.probes.len());
        }
        let mut names: BTreeSet<String> = views::PROBE_COLUMNS.map(str::to_owned).into();
        let mut values = Vec::new();
        for ((of, kind), (places, error)) in text.values.iter().zip(kinds).zip(missing) {
            let name = free_name(&mut names, of.name.as_deref(), of.expression.last_name())?;
            let kind = match (kind, error) {
                (Some(kind), _) => kind,
                (None, Some(error)) => return Err(error),
                // A question without rows has no instruction.
                (None, None) => ValueKind::Number,
            };
            if places > 0 {
                notes.push(format!(
                    "{name} cannot be read at {places} of {instructions} instructions, and is null \
                     there"
                ));
            }
            values.push((name, kind));
        }
        let positions = found.positions.map(Arc::from);
        self.probes.push(Probe { name, values, notes, positions });
        Ok(())
    }

    fn add_pair(
        &mut self,
        kernel: &ProbedKernel<'_>,
        text: &PairText,
        positions: &dyn Fn(&ProbePlace) -> Result<ProbedPositions>,
    ) -> Result<()> {
        self.is_free(&text.name)?;
        let mut add = |of: &ProbeText, end: &str| -> Result<usize> {
            let name = of.name.clone().unwrap_or_else(|| format!("{}_{end}", text.name));
            self.add(kernel, &ProbeText { name: Some(name), ..of.clone() }, positions)?;
            Ok(self.probes.len() - 1)
        };
        let (from, to) = (add(&text.from, "from")?, add(&text.to, "to")?);
        let probes = &self.probes;
        let by = text.by.as_ref().map(|by| {
            let value = |probe: usize| {
                let known = probes[probe].values.iter().position(|(name, _)| name == by);
                known.with_context(|| format!("by {by}: {} has no such value", probes[probe].name))
            };
            Ok::<_, anyhow::Error>((value(from)?, value(to)?))
        });
        let mut names: BTreeSet<String> = views::PAIR_COLUMNS.map(str::to_owned).into();
        let both = probes[from].values.iter().chain(&probes[to].values);
        let values = both.map(|(name, _)| free_name(&mut names, None, name));
        let values = values.collect::<Result<_>>()?;
        let name = text.name.clone();
        let pair = Pair { name, from, to, by: by.transpose()?, values };
        self.pairs.push(pair);
        Ok(())
    }

    /// # Errors
    /// The name is no name of a view, or is taken.
    fn is_free(&self, name: &str) -> Result<()> {
        let mut taken = TABLES.iter().map(|table| table.name);
        let mut own = self.probes.iter().map(|probe| &probe.name);
        let mut pairs = self.pairs.iter().map(|pair| &pair.name);
        let is_free = !taken.any(|taken| taken.eq_ignore_ascii_case(name))
            && !own.any(|taken| taken.eq_ignore_ascii_case(name))
            && !pairs.any(|taken| taken.eq_ignore_ascii_case(name));
        ensure!(
            crate::sql::is_name(name) && is_free,
            "{name} cannot name its rows, or is taken: put another name in front, as in \
             other={name}(…)"
        );
        Ok(())
    }
}

/// A name for a column that no other has. `given`: what the user calls it.
fn free_name(names: &mut BTreeSet<String>, given: Option<&str>, usual: &str) -> Result<String> {
    let base = given.unwrap_or(usual);
    let (mut name, mut number) = (base.to_owned(), 2);
    while !names.insert(name.to_lowercase()) {
        ensure!(
            given.is_none(),
            "{base} is the name of another column: choose a name for the value"
        );
        name = format!("{base}_{number}");
        number += 1;
    }
    Ok(name)
}

/// A value that is always null: no kernel maps the first page.
fn unreadable() -> ProbeValue {
    ProbeValue { start: ValueStart::Number(0), steps: vec![ValueStep::Load(8, false)] }
}

/// The name of a probe that has none: that of its function.
///
/// # Errors
/// A question needs a name.
fn usual_name(place: &ProbePlace) -> Result<String> {
    let name = match place {
        ProbePlace::Entry(function) => function.clone(),
        ProbePlace::Offset(function, offset) => format!("{function}_{offset:x}"),
        ProbePlace::Return(function) => format!("{function}_return"),
        ProbePlace::Address(address) => format!("at_{address:x}"),
        ProbePlace::Line(file, line) => {
            let name = file.rsplit('/').next().unwrap_or(file);
            format!("{}_{line}", name.replace('-', "_"))
        }
        ProbePlace::Tracepoint(name) => name.clone(),
        ProbePlace::Access(AccessText { structure, field, .. }) => {
            let name = format!("{structure}_{field}");
            name.replace(['-', '['], "_").replace(']', "")
        }
        ProbePlace::Rows(_) => bail!("its rows need a name: NAME=[SELECT …]"),
    };
    Ok(name.replace('.', "_"))
}
