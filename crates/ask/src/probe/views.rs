//! What probes and pairs of them are called in SQL.
//!
//! Input: probes. Output: views with the names that users ask for, on the table of hits.

use super::{Pair, Probe, ProbeSet, ValueKind};
use crate::schema::quoted;
use std::fmt::Write;

/// A view on the hits of probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeView {
    /// Its name.
    pub name: String,
    /// Its columns.
    pub columns: Vec<String>,
    /// The question that it stands for.
    pub select: String,
}

/// The columns that every probe's view has in front of its values.
pub(super) const PROBE_COLUMNS: [&str; 4] = ["start", "cpu", "task", "pid"];
/// Those of a pair.
pub(super) const PAIR_COLUMNS: [&str; 10] = [
    "start",
    "end",
    "cpu",
    "task",
    "pid",
    "instructions",
    "cycles",
    "l1i_misses",
    "l1d_misses",
    "l2_misses",
];
/// The columns of what a task has cost so far, and what a pair calls the difference.
const COSTS: [(&str, &str); 5] = [
    ("ran", "instructions"),
    ("cycles", "cycles"),
    ("l1i_misses", "l1i_misses"),
    ("l1d_misses", "l1d_misses"),
    ("l2_misses", "l2_misses"),
];

impl ProbeSet {
    /// The views of all probes and pairs.
    pub fn views(&self) -> Vec<ProbeView> {
        let probes = self.probes.iter().map(view_of_probe);
        probes.chain(self.pairs.iter().map(|pair| self.view_of_pair(pair))).collect()
    }

    fn view_of_pair(&self, pair: &Pair) -> ProbeView {
        let (from, to) = (&self.probes[pair.from], &self.probes[pair.to]);
        let values = |probe: &Probe| -> Vec<String> {
            (0..probe.values.len()).map(|at| probe.column(at)).collect()
        };
        let (own, others) = (values(from), values(to));
        let parts = match pair.by {
            None => "task, pid".to_owned(),
            Some((a, b)) => {
                let (a, b) = (from.column(a), to.column(b));
                format!("CASE probe WHEN '{}' THEN {a} ELSE {b} END", from.name)
            }
        };
        let next = |column: &str| format!("lead({column}) OVER w AS next_{column}");
        let mut inner: Vec<String> = PROBE_COLUMNS.iter().map(|&it| it.to_owned()).collect();
        inner.push("probe".to_owned());
        inner.extend(COSTS.iter().map(|(column, _)| (*column).to_owned()));
        inner.extend(own.iter().cloned());
        let ahead = ["probe", "start", "task", "pid"].into_iter();
        let ahead = ahead.chain(COSTS.iter().map(|(column, _)| *column));
        let ahead = ahead.chain(others.iter().map(String::as_str));
        inner.extend(ahead.map(next));
        let mut outer: Vec<String> =
            ["start", "next_start AS \"end\"", "cpu", "task", "pid"].map(str::to_owned).into();
        outer.extend(COSTS.iter().map(|(column, name)| {
            // The costs of two tasks have no difference.
            format!(
                "CASE WHEN task IS next_task AND pid IS next_pid THEN next_{column} - {column} END \
                 AS {name}"
            )
        }));
        let shown = own.iter().cloned().chain(others.iter().map(|it| format!("next_{it}")));
        outer.extend(
            shown.zip(&pair.values).map(|(column, name)| format!("{column} AS {}", quote(name))),
        );
        let select = format!(
            "SELECT {} FROM (SELECT {} FROM probes WHERE probe IN ('{from}', '{to}') \
             WINDOW w AS (PARTITION BY {parts} ORDER BY start)) \
             WHERE probe = '{from}' AND next_probe = '{to}'",
            outer.join(", "),
            inner.join(", "),
            from = from.name,
            to = to.name,
        );
        let columns = PAIR_COLUMNS.iter().map(|&it| it.to_owned());
        let columns = columns.chain(pair.values.iter().cloned()).collect();
        ProbeView { name: pair.name.clone(), columns, select }
    }
}

fn view_of_probe(probe: &Probe) -> ProbeView {
    let mut select = format!("SELECT {}", PROBE_COLUMNS.join(", "));
    for (at, (name, _)) in probe.values.iter().enumerate() {
        let _ = write!(select, ", {} AS {}", probe.column(at), quote(name));
    }
    let _ = write!(select, " FROM probes WHERE probe = '{}'", probe.name);
    let own = probe.values.iter().map(|(name, _)| name.clone());
    let columns = PROBE_COLUMNS.iter().map(|&it| it.to_owned()).chain(own).collect();
    ProbeView { name: probe.name.clone(), columns, select }
}

impl Probe {
    /// The column of the table of hits that has a value.
    fn column(&self, value: usize) -> String {
        let kind = match self.values[value].1 {
            ValueKind::Number => "number",
            ValueKind::Address => "address",
            ValueKind::Text => "text",
        };
        format!("{kind}{}", value + 1)
    }
}

impl ProbeView {
    /// The statement that makes the view, in a recording's schema.
    pub(crate) fn statement(&self, schema: &str) -> String {
        format!("CREATE VIEW {schema}.{} AS {}", quote(&self.name), self.select)
    }
}

/// A name that may be a word of SQL.
fn quote(name: &str) -> String {
    match quoted(name) {
        same if same == name => format!("\"{name}\""),
        quoted => quoted,
    }
}
