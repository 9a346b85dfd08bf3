//! A table of a recording as a virtual table. SQLite pulls rows, a walk pushes them: the walk runs
//! on a thread of its own, and a bounded channel lies between. A closed cursor ends the walk.

use super::{Shared, module_error};
use crate::batch::{
    Batch, BatchSink, ColumnSet, Comparison, Condition, Constant, TableRequest, Value,
};
use crate::produce::produce;
use crate::schema::{self, ColumnType, TableId, TableSchema};
use rusqlite::ffi;
use rusqlite::types::{Null, ValueRef};
use rusqlite::vtab::{
    Context, CreateVTab, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConnection,
    VTabCursor, VTabKind,
};
use rusqlite::{Connection, Result};
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// The number of batches between the walk and SQLite.
pub(super) const AHEAD: usize = 8;

/// Makes the virtual tables known.
pub(super) fn add_module(connection: &Connection, shared: &Arc<Shared>) -> Result<()> {
    const MODULE: &Module<'static, RecordedTable> = &Module::read_only_module();
    connection.create_module(c"recorded", MODULE, Some(shared.clone()))
}

/// A virtual table.
#[repr(C)]
struct RecordedTable {
    base: ffi::sqlite3_vtab,
    shared: Arc<Shared>,
    recording: usize,
    table: &'static TableSchema,
}

// SAFETY: the type is repr(C) and begins with a `sqlite3_vtab`, as SQLite asks.
unsafe impl<'vtab> VTab<'vtab> for RecordedTable {
    type Aux = Arc<Shared>;
    type Cursor = RecordedCursor;

    fn connect(
        _: &mut VTabConnection,
        aux: Option<&Arc<Shared>>,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        args: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, RecordedTable)> {
        let argument = |at: usize| args.get(at).and_then(|text| std::str::from_utf8(text).ok());
        let recording = argument(0).and_then(|number| number.trim().parse().ok());
        let table = argument(1).and_then(|name| schema::named(name.trim()));
        let (Some(shared), Some(recording), Some(table)) = (aux, recording, table) else {
            return Err(module_error());
        };
        let sql = CString::new(table.to_sql()).map_err(|_| module_error())?;
        let base = ffi::sqlite3_vtab::default();
        Ok((Cow::Owned(sql), RecordedTable { base, shared: shared.clone(), recording, table }))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let mut conditions = Vec::new();
        let mut joined = Vec::new();
        // What the cursor gets: the column and the comparison of each argument.
        let mut arguments: Vec<String> = Vec::new();
        let mut rows = 1e7;
        for at in 0..info.constraints().count() {
            let Some(constraint) = info.constraints().nth(at) else { continue };
            let Ok(column) = usize::try_from(constraint.column()) else { continue };
            let (operator, is_usable) = (constraint.operator(), constraint.is_usable());
            let Some(schema) = self.table.columns.get(column) else { continue };
            let Some(comparison) = comparison(&operator) else { continue };
            let is_text = schema.of == ColumnType::Text;
            if is_text && (comparison != Comparison::Equal || info.collation(at)? != "BINARY") {
                continue;
            }
            if schema.of == ColumnType::Real || info.is_in_constraint(at)? {
                continue;
            }
            let constant = info.rhs_value(at)?.map(|value| condition(column, &operator, value));
            match constant {
                Some(Some(condition)) => conditions.push(condition),
                Some(None) => {}
                None if comparison == Comparison::Equal => joined.push(column),
                None => {}
            }
            if is_usable {
                arguments.push(format!("{column}{}", sign(&operator)));
                let number = arguments.len() as c_int;
                info.constraint_usage(at).set_argv_index(number);
                rows /= if comparison == Comparison::Equal { 1000.0 } else { 4.0 };
            }
        }
        let columns = ColumnSet(info.col_used());
        info.set_idx_str(&format!("{:x} {}", columns.0, arguments.join(" ")));
        info.set_estimated_cost(1e7 + rows);
        info.set_estimated_rows(rows as i64);
        let (recording, table) = (self.recording, self.table.id);
        self.shared.log().considers(recording, table, columns, conditions, joined.into_iter());
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<RecordedCursor> {
        Ok(RecordedCursor {
            base: ffi::sqlite3_vtab_cursor::default(),
            shared: self.shared.clone(),
            recording: self.recording,
            table: self.table.id,
            running: None,
            batch: None,
            row: 0,
            rowid: 0,
        })
    }
}

impl CreateVTab<'_> for RecordedTable {
    const KIND: VTabKind = VTabKind::Default;
}

fn comparison(operator: &IndexConstraintOp) -> Option<Comparison> {
    match operator {
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ => Some(Comparison::Equal),
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GT
        | IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GE => Some(Comparison::AtLeast),
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LT
        | IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LE => Some(Comparison::AtMost),
        _ => None,
    }
}

fn sign(operator: &IndexConstraintOp) -> char {
    match operator {
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GT => '>',
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GE => ']',
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LT => '<',
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LE => '[',
        _ => '=',
    }
}

fn operator(sign: char) -> IndexConstraintOp {
    match sign {
        '>' => IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GT,
        ']' => IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GE,
        '<' => IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LT,
        '[' => IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LE,
        _ => IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ,
    }
}

/// The condition that a column fulfils when SQLite compares it so. `None`: it is left to SQLite.
fn condition(
    column: usize,
    operator: &IndexConstraintOp,
    value: ValueRef<'_>,
) -> Option<Condition> {
    let comparison = comparison(operator)?;
    let with = match value {
        ValueRef::Integer(count) => Constant::Count(match operator {
            IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GT => count.checked_add(1)?,
            IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LT => count.checked_sub(1)?,
            _ => count,
        }),
        // A position such as 1e6. A bound that is no integer is widened to the next one.
        ValueRef::Real(number) if number.abs() < 9e15 => Constant::Count(match comparison {
            Comparison::Equal if number.fract() != 0.0 => return None,
            Comparison::Equal => number as i64,
            Comparison::AtLeast => number.floor() as i64,
            Comparison::AtMost => number.ceil() as i64,
        }),
        ValueRef::Text(text) => Constant::Text(std::str::from_utf8(text).ok()?.to_owned()),
        _ => return None,
    };
    Some(Condition { column, comparison, with })
}

/// Whether a condition's constant has the type of its column.
fn fits(table: TableId, condition: &Condition) -> bool {
    let column = schema::of(table).columns.get(condition.column);
    let is_text = column.is_some_and(|column| column.of == ColumnType::Text);
    is_text == matches!(condition.with, Constant::Text(_))
}

/// The conditions whose constants have the types of their columns.
pub(super) fn fitting(table: TableId, conditions: &[Condition]) -> Vec<Condition> {
    conditions.iter().filter(|condition| fits(table, condition)).cloned().collect()
}

/// A walk on a thread of its own.
struct RunningWalk {
    batches: Receiver<Batch>,
    thread: JoinHandle<anyhow::Result<()>>,
}

/// Gives batches to another thread.
struct Channel(SyncSender<Batch>);

impl BatchSink for Channel {
    fn take(&mut self, batch: Batch) -> bool {
        self.0.send(batch).is_ok()
    }
}

#[repr(C)]
struct RecordedCursor {
    base: ffi::sqlite3_vtab_cursor,
    shared: Arc<Shared>,
    recording: usize,
    table: TableId,
    running: Option<RunningWalk>,
    batch: Option<Batch>,
    row: usize,
    rowid: i64,
}

impl RecordedCursor {
    /// Ends the walk. A walk whose batches nobody takes ends itself.
    fn stop(&mut self) {
        self.batch = None;
        if let Some(RunningWalk { batches, thread }) = self.running.take() {
            drop(batches);
            // Rows that SQLite has not taken are not missed, and neither is the walk's error.
            drop(thread.join());
        }
    }

    /// Takes the next batch; none when the walk has ended.
    fn next_batch(&mut self) -> Result<()> {
        (self.batch, self.row) = (None, 0);
        let Some(running) = &self.running else { return Ok(()) };
        if let Ok(batch) = running.batches.recv() {
            self.batch = Some(batch);
            return Ok(());
        }
        let Some(running) = self.running.take() else { return Ok(()) };
        let failure = match running.thread.join() {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("the walk over the recording broke off: a fault of Kernlane"),
        };
        self.shared.log().failure = Some(failure);
        Err(module_error())
    }
}

impl Drop for RecordedCursor {
    fn drop(&mut self) {
        self.stop();
    }
}

// SAFETY: the type is repr(C) and begins with a `sqlite3_vtab_cursor`, as SQLite asks.
unsafe impl VTabCursor for RecordedCursor {
    fn filter(&mut self, _: c_int, plan: Option<&str>, args: &Filters<'_>) -> Result<()> {
        self.stop();
        self.rowid = 0;
        let mut words = plan.unwrap_or_default().split_whitespace();
        let used = words.next().and_then(|used| u64::from_str_radix(used, 16).ok());
        let mut conditions = Vec::new();
        for (word, value) in words.zip(args.iter()) {
            let Some((last, sign)) = word.char_indices().last() else { continue };
            let Ok(column) = word[..last].parse() else { continue };
            conditions.extend(condition(column, &operator(sign), value));
        }
        let (sender, batches) = sync_channel(AHEAD);
        let request = TableRequest {
            table: self.table,
            wanted: used.map_or(ColumnSet::ALL, ColumnSet),
            conditions: fitting(self.table, &conditions),
            sink: Box::new(Channel(sender)),
        };
        let recording = self.shared.recordings.get(self.recording).map(|(_, it)| it.clone());
        let recording = recording.ok_or_else(module_error)?;
        let thread = std::thread::Builder::new()
            .name("walk".to_owned())
            .spawn(move || produce(&recording, vec![request]))
            .map_err(|_| module_error())?;
        self.running = Some(RunningWalk { batches, thread });
        self.next_batch()
    }

    fn next(&mut self) -> Result<()> {
        self.row += 1;
        self.rowid += 1;
        match &self.batch {
            Some(batch) if self.row < batch.rows => Ok(()),
            _ => self.next_batch(),
        }
    }

    fn eof(&self) -> bool {
        self.batch.is_none()
    }

    fn column(&self, context: &mut Context, column: c_int) -> Result<()> {
        let Some(batch) = &self.batch else { return context.set_result(Null) };
        match batch.value(self.row, column as usize) {
            Value::Null => context.set_result(Null),
            Value::Count(count) => context.set_result(count),
            Value::Real(number) => context.set_result(number),
            Value::Text(text) => context.set_result(text),
        }
    }

    fn rowid(&self) -> Result<i64> {
        Ok(self.rowid)
    }
}
