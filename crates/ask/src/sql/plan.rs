//! What a question reads: which tables, columns and rows, and whether a table can be streamed.
//!
//! Input: what SQLite asks while it prepares a statement, and its plan. Output: a [`Plan`].

use crate::batch::{ColumnSet, Condition};
use crate::schema::{self, TableId};
use std::collections::{BTreeMap, BTreeSet};

/// What SQLite asked while it prepared the last statement.
#[derive(Default)]
pub(super) struct PlanLog {
    /// By schema and table: the columns. SQLite does not say those of USING and NATURAL.
    read: BTreeMap<(String, TableId), ColumnSet>,
    /// By recording and table: the columns that its scans use.
    used: BTreeMap<(usize, TableId), ColumnSet>,
    /// By recording and table: the conditions of each way to scan it that SQLite considered.
    considered: BTreeMap<(usize, TableId), Vec<Vec<Condition>>>,
    /// By recording and table: columns that are compared with those of other tables.
    joined: BTreeMap<(usize, TableId), BTreeSet<usize>>,
    /// What was refused.
    pub denied: Option<String>,
    /// Why a virtual table failed.
    pub failure: Option<anyhow::Error>,
}

/// What a question reads of a table.
pub(super) struct PlannedTable {
    pub columns: ColumnSet,
    /// What all rows fulfil that the question needs.
    pub conditions: Vec<Condition>,
    /// The columns to find rows by.
    pub joined: BTreeSet<usize>,
}

/// What a question reads, by schema and table.
pub(super) struct Plan {
    pub tables: BTreeMap<(String, TableId), PlannedTable>,
    used: BTreeMap<(usize, TableId), ColumnSet>,
    considered: BTreeMap<(usize, TableId), Vec<Vec<Condition>>>,
    joined: BTreeMap<(usize, TableId), BTreeSet<usize>>,
}

impl PlanLog {
    /// The statement reads a column. SQLite names none when only rows are counted.
    pub(super) fn reads(&mut self, schema: &str, table: &str, column: &str) {
        let Some(table) = schema::named(table) else { return };
        let columns = self.read.entry((schema.to_owned(), table.id)).or_default();
        if let Some(column) = table.column(column) {
            columns.add(column);
        }
    }

    /// SQLite considers to scan a table for these columns, with these conditions.
    pub(super) fn considers(
        &mut self,
        recording: usize,
        table: TableId,
        columns: ColumnSet,
        conditions: Vec<Condition>,
        joined: impl Iterator<Item = usize>,
    ) {
        self.used.entry((recording, table)).or_default().0 |= columns.0;
        self.considered.entry((recording, table)).or_default().push(conditions);
        self.joined.entry((recording, table)).or_default().extend(joined);
    }

    /// What the last statement reads.
    pub(super) fn take_plan(&mut self) -> Plan {
        let PlanLog { read, used, considered, joined, .. } = std::mem::take(self);
        let planned =
            |columns| PlannedTable { columns, conditions: Vec::new(), joined: BTreeSet::new() };
        let tables = read.into_iter().map(|(key, columns)| (key, planned(columns))).collect();
        Plan { tables, used, considered, joined }
    }
}

impl Plan {
    /// What the question reads of a recording that has this schema.
    pub(super) fn of_recording(&self, number: usize, schema: &str) -> Vec<(TableId, PlannedTable)> {
        let of_schema = self.tables.iter().filter(|((name, _), _)| name == schema);
        let mut columns: BTreeMap<TableId, ColumnSet> =
            of_schema.map(|((_, table), planned)| (*table, planned.columns)).collect();
        for ((_, table), used) in self.used.iter().filter(|((of, _), _)| *of == number) {
            columns.entry(*table).or_default().0 |= used.0;
        }
        let planned = columns.into_iter().map(|(table, columns)| {
            let mut ways = self.considered.get(&(number, table)).into_iter().flatten();
            // Every scan has the conditions that every considered way has.
            let mut conditions = ways.next().cloned().unwrap_or_default();
            for way in ways {
                conditions.retain(|condition| way.contains(condition));
            }
            let joined = self.joined.get(&(number, table)).cloned().unwrap_or_default();
            (table, PlannedTable { columns, conditions, joined })
        });
        planned.collect()
    }
}

/// A step of SQLite's plan.
pub(super) struct Step {
    pub id: i64,
    pub parent: i64,
    pub detail: String,
}

/// How often a question reads virtual tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scans {
    /// Never, or one table once.
    One,
    /// Several, or one table again and again.
    Several,
}

/// Whether the steps read one virtual table once. Steps of one loop have one parent, the outermost
/// first.
pub(super) fn scans(steps: &[Step]) -> Scans {
    let is_loop =
        |step: &&Step| step.detail.starts_with("SCAN ") || step.detail.starts_with("SEARCH ");
    let mut tables = steps.iter().filter(|step| step.detail.contains(" VIRTUAL TABLE "));
    let Some(table) = tables.next() else { return Scans::One };
    if tables.next().is_some() {
        return Scans::Several;
    }
    let mut at = table;
    loop {
        let before = steps.iter().take_while(|step| step.id != at.id);
        if before.filter(is_loop).any(|step| step.parent == at.parent) {
            return Scans::Several;
        }
        let Some(parent) = steps.iter().find(|step| step.id == at.parent) else {
            return Scans::One;
        };
        if parent.detail.contains("CORRELATED") || parent.detail.contains("RECURSIVE") {
            return Scans::Several;
        }
        at = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(steps: &[(i64, i64, &str)]) -> Scans {
        let step = |&(id, parent, detail): &(i64, i64, &str)| Step {
            id,
            parent,
            detail: detail.to_owned(),
        };
        scans(&steps.iter().map(step).collect::<Vec<_>>())
    }

    #[test]
    fn a_table_that_is_read_once_streams() {
        let scan = "SCAN calls VIRTUAL TABLE INDEX 0:";
        assert_eq!(of(&[]), Scans::One);
        assert_eq!(of(&[(1, 0, scan), (2, 0, "USE TEMP B-TREE FOR ORDER BY")]), Scans::One);
        let within = [(1, 0, "CO-ROUTINE x"), (2, 1, scan), (9, 0, "SCAN x")];
        assert_eq!(of(&within), Scans::One);
        assert_eq!(of(&[(1, 0, scan), (2, 0, scan)]), Scans::Several);
        assert_eq!(of(&[(1, 0, "SCAN x"), (2, 0, scan)]), Scans::Several, "an inner loop");
        let correlated = [(1, 0, "SCAN x"), (2, 0, "CORRELATED SCALAR SUBQUERY 1"), (3, 2, scan)];
        assert_eq!(of(&correlated), Scans::Several);
    }
}
