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
mod kernel;
pub mod syntax;

use crate::schema::{TABLES, quoted};
use anyhow::{Context, Result, ensure};
use compile::{PlaceTypes, value};
use kernel::ProbedKernel;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use syntax::{ProbePlace, ProbeText, parse};
use trace::RunAddr;
use trace::probe::{ProbePoint, ProbeProgram};

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
    pub note: Option<String>,
}

/// Probes of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeSet {
    /// The probes.
    pub probes: Vec<Probe>,
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
    /// Understands probes of the kernel with this vmlinux.
    ///
    /// # Errors
    /// The text of a probe is wrong, or the kernel has no such function, variable, type or field.
    /// The message says what there is instead.
    pub fn new(vmlinux: &[u8], texts: &[String]) -> Result<ProbeSet> {
        let kernel = ProbedKernel::new(vmlinux)?;
        let mut set = ProbeSet::default();
        for text in texts {
            set.add(&kernel, &parse(text)?).with_context(|| format!("the probe {text:?}"))?;
        }
        ensure!(
            set.program.points.len() <= MOST_POINTS,
            "the probes are at {} instructions; at most {MOST_POINTS} can have one",
            set.program.points.len()
        );
        Ok(set)
    }

    fn add(&mut self, kernel: &ProbedKernel<'_>, text: &ProbeText) -> Result<()> {
        ensure!(
            text.values.len() <= MOST_VALUES,
            "it has {} values; at most {MOST_VALUES} are possible",
            text.values.len()
        );
        let (function, places, note) = kernel.places(&text.place)?;
        let types = function.as_deref().map(|name| kernel.btf.function(name)).transpose()?;
        let types = types.flatten();
        let place = PlaceTypes {
            btf: &kernel.btf,
            function: types.as_ref(),
            at_entry: matches!(text.place, ProbePlace::Entry(_)),
            at_return: matches!(text.place, ProbePlace::Return(_)),
        };
        let name = match &text.name {
            Some(name) => name.clone(),
            None => usual_name(&text.place),
        };
        let is_free = !TABLES.iter().any(|table| table.name.eq_ignore_ascii_case(&name))
            && !self.probes.iter().any(|probe| probe.name.eq_ignore_ascii_case(&name));
        ensure!(
            crate::sql::is_name(&name) && is_free,
            "{name} cannot name its rows, or is taken: put another name in front, as in \
             other={name}(…)"
        );
        let mut names: BTreeSet<String> = ["start", "cpu", "task", "pid"].map(str::to_owned).into();
        let (mut values, mut programs) = (Vec::new(), Vec::new());
        for text in &text.values {
            let (program, kind) = value(text, &place, kernel)?;
            let mut name = text.name.as_deref().unwrap_or(text.expression.last_name()).to_owned();
            let base = name.clone();
            let mut number = 2;
            while !names.insert(name.to_lowercase()) {
                ensure!(text.name.is_none(), "two values are called {base}");
                name = format!("{base}_{number}");
                number += 1;
            }
            values.push((name, kind));
            programs.push(program);
        }
        for at in places {
            self.program.points.push(ProbePoint { addr: RunAddr(at), values: programs.clone() });
            self.owners.push(self.probes.len());
        }
        self.probes.push(Probe { name, values, note });
        Ok(())
    }
}

/// The name of a probe that has none: that of its function.
fn usual_name(place: &ProbePlace) -> String {
    let name = match place {
        ProbePlace::Entry(function) => function.clone(),
        ProbePlace::Offset(function, offset) => format!("{function}_{offset:x}"),
        ProbePlace::Return(function) => format!("{function}_return"),
        ProbePlace::Address(address) => format!("at_{address:x}"),
    };
    name.replace('.', "_")
}

impl Probe {
    /// The columns that every probe's view has in front of its values.
    pub(crate) const COMMON_COLUMNS: [&str; 4] = ["start", "cpu", "task", "pid"];

    /// The statement that makes the probe's view, in a recording's schema.
    pub(crate) fn view(&self, schema: &str) -> String {
        let mut sql = format!(
            "CREATE VIEW {schema}.{} AS SELECT {}",
            name_in_sql(&self.name),
            Probe::COMMON_COLUMNS.join(", ")
        );
        for (at, (name, kind)) in self.values.iter().enumerate() {
            let column = match kind {
                ValueKind::Number => "number",
                ValueKind::Address => "address",
                ValueKind::Text => "text",
            };
            let _ = write!(sql, ", {column}{} AS {}", at + 1, name_in_sql(name));
        }
        let _ = write!(sql, " FROM probes WHERE probe = '{}'", self.name);
        sql
    }
}

/// A name that may be a word of SQL.
fn name_in_sql(name: &str) -> String {
    match quoted(name) {
        same if same == name => format!("\"{name}\""),
        quoted => quoted,
    }
}
