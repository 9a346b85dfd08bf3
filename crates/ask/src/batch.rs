//! Rows of a table, in batches of typed columns.
//!
//! Input: rows, one by one, as cells. Output: batches, which have only the wanted columns, and only
//! the rows that a filter accepts.

use crate::schema::{ColumnType, TableId, TableSchema, of};
use std::collections::HashMap;
use std::sync::Arc;

/// The number of rows of a batch.
pub const BATCH: usize = 4096;

/// A set of columns of a table, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColumnSet(pub u64);

impl ColumnSet {
    /// All columns of any table.
    pub const ALL: ColumnSet = ColumnSet(u64::MAX);

    /// Whether the set has the column.
    #[inline]
    pub fn has(self, column: usize) -> bool {
        self.0 >> column & 1 != 0
    }

    /// Adds a column.
    pub fn add(&mut self, column: usize) {
        self.0 |= 1 << column;
    }
}

/// A constant that a column is compared with.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// An integer.
    Count(i64),
    /// A text.
    Text(String),
}

/// How a column is compared with a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Equal.
    Equal,
    /// At least.
    AtLeast,
    /// At most.
    AtMost,
}

/// What a row must fulfil. Rows that do not are not needed.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// The number of the column.
    pub column: usize,
    /// How it is compared.
    pub comparison: Comparison,
    /// The constant.
    pub with: Constant,
}

/// A value of a row, while it is made. Texts are numbers of [`Names`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell {
    /// No value.
    Null,
    /// An integer.
    Count(i64),
    /// A real number.
    Real(f64),
    /// A text.
    Text(u32),
}

impl From<u64> for Cell {
    /// An address keeps its bits.
    fn from(count: u64) -> Cell {
        Cell::Count(count as i64)
    }
}

impl From<u32> for Cell {
    fn from(count: u32) -> Cell {
        Cell::Count(count.into())
    }
}

impl From<u8> for Cell {
    fn from(count: u8) -> Cell {
        Cell::Count(count.into())
    }
}

impl From<bool> for Cell {
    fn from(is: bool) -> Cell {
        Cell::Count(is.into())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Cell {
        Cell::Real(number)
    }
}

impl From<TextId> for Cell {
    fn from(text: TextId) -> Cell {
        Cell::Text(text.0)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::Null, T::into)
    }
}

/// The number of a text in [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextId(u32);

/// The texts of a table's rows, each once.
#[derive(Default)]
pub struct Names {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
    shown: Arc<[Arc<str>]>,
}

impl Names {
    /// The number of a text.
    pub fn id(&mut self, text: &str) -> TextId {
        if let Some(&known) = self.numbers.get(text) {
            return TextId(known);
        }
        let (text, next): (Arc<str>, u32) = (text.into(), self.texts.len() as u32);
        self.texts.push(text.clone());
        self.numbers.insert(text, next);
        TextId(next)
    }

    fn find(&self, text: &str) -> Option<u32> {
        self.numbers.get(text).copied()
    }

    /// All texts, by number.
    fn all(&mut self) -> Arc<[Arc<str>]> {
        if self.shown.len() != self.texts.len() {
            self.shown = self.texts.iter().cloned().collect();
        }
        self.shown.clone()
    }
}

/// Values side by side, so that they can be handed on without a copy.
#[derive(Clone, Debug, PartialEq)]
pub struct NullableValues<T> {
    /// By row; the type's default where there is no value.
    pub values: Vec<T>,
    /// By row: whether there is a value.
    pub is_present: Vec<bool>,
}

impl<T: Copy + Default> NullableValues<T> {
    fn new() -> NullableValues<T> {
        let (values, is_present) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        NullableValues { values, is_present }
    }

    #[inline]
    fn push(&mut self, value: Option<T>) {
        self.values.push(value.unwrap_or_default());
        self.is_present.push(value.is_some());
    }

    /// The value of a row, if there are both.
    #[inline]
    pub fn get(&self, row: usize) -> Option<T> {
        self.is_present.get(row).filter(|is| **is).and_then(|_| self.values.get(row)).copied()
    }
}

/// The values of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnData {
    /// Integers and addresses.
    Count(NullableValues<i64>),
    /// Real numbers.
    Real(NullableValues<f64>),
    /// Numbers of texts in [`Batch::texts`].
    Text(NullableValues<u32>),
}

impl ColumnData {
    fn new(of: ColumnType) -> ColumnData {
        match of {
            ColumnType::Count | ColumnType::Address => ColumnData::Count(NullableValues::new()),
            ColumnType::Real => ColumnData::Real(NullableValues::new()),
            ColumnType::Text => ColumnData::Text(NullableValues::new()),
        }
    }

    #[inline]
    fn push(&mut self, cell: Cell) {
        match (self, cell) {
            (ColumnData::Count(to), Cell::Count(count)) => to.push(Some(count)),
            (ColumnData::Real(to), Cell::Real(number)) => to.push(Some(number)),
            (ColumnData::Text(to), Cell::Text(text)) => to.push(Some(text)),
            (ColumnData::Count(to), _) => to.push(None),
            (ColumnData::Real(to), _) => to.push(None),
            (ColumnData::Text(to), _) => to.push(None),
        }
    }
}

/// A value of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'b> {
    /// No value.
    Null,
    /// An integer.
    Count(i64),
    /// A real number.
    Real(f64),
    /// A text.
    Text(&'b str),
}

/// Rows of a table.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The number of rows.
    pub rows: usize,
    /// By column; `None` for one that is not wanted.
    pub columns: Vec<Option<ColumnData>>,
    /// The texts of all columns.
    pub texts: Arc<[Arc<str>]>,
}

impl Batch {
    /// A value. Null if the column is not wanted, or there is no such row.
    #[inline]
    pub fn value(&self, row: usize, column: usize) -> Value<'_> {
        match self.columns.get(column) {
            Some(Some(ColumnData::Count(all))) => all.get(row).map_or(Value::Null, Value::Count),
            Some(Some(ColumnData::Real(all))) => all.get(row).map_or(Value::Null, Value::Real),
            Some(Some(ColumnData::Text(all))) => {
                let text = all.get(row).and_then(|text| self.texts.get(text as usize));
                text.map_or(Value::Null, |text| Value::Text(text))
            }
            Some(None) | None => Value::Null,
        }
    }
}

/// Receives batches.
pub trait BatchSink: Send {
    /// Takes the next batch. Returns `false` when no more is wanted.
    fn take(&mut self, batch: Batch) -> bool;
}

/// What is wanted of a table.
pub struct TableRequest {
    /// The table.
    pub table: TableId,
    /// The columns that are needed.
    pub wanted: ColumnSet,
    /// What every row must fulfil.
    pub conditions: Vec<Condition>,
    /// Who receives the rows.
    pub sink: Box<dyn BatchSink>,
}

/// Takes the rows of a table, and gives batches of them to a sink.
pub struct Rows {
    schema: &'static TableSchema,
    wanted: ColumnSet,
    conditions: Vec<(Condition, Option<u32>)>,
    columns: Vec<Option<ColumnData>>,
    rows: usize,
    sink: Box<dyn BatchSink>,
    has_ended: bool,
    /// The last position that a row may begin at.
    last_start: u64,
}

impl Rows {
    /// No rows.
    pub fn new(request: TableRequest) -> Rows {
        let TableRequest { table, wanted, conditions, sink } = request;
        let schema = of(table);
        let start = schema.column("start");
        let last_start = conditions.iter().filter_map(|condition| match condition {
            Condition { column, comparison, with: Constant::Count(bound) }
                if Some(*column) == start && *comparison != Comparison::AtLeast =>
            {
                Some((*bound).max(0) as u64)
            }
            _ => None,
        });
        let last_start = last_start.min().unwrap_or(u64::MAX);
        let mut rows = Rows {
            schema,
            wanted,
            conditions: conditions.into_iter().map(|condition| (condition, None)).collect(),
            columns: Vec::new(),
            rows: 0,
            sink,
            has_ended: false,
            last_start,
        };
        rows.columns = rows.empty();
        rows
    }

    fn empty(&self) -> Vec<Option<ColumnData>> {
        let columns = self.schema.columns.iter().enumerate();
        let wanted = self.wanted;
        columns.map(|(at, column)| wanted.has(at).then(|| ColumnData::new(column.of))).collect()
    }

    /// Whether the column with this name is needed, as a value or for a condition.
    pub fn wants(&self, name: &str) -> bool {
        let Some(column) = self.schema.column(name) else { return false };
        self.wanted.has(column) || self.conditions.iter().any(|(it, _)| it.column == column)
    }

    /// Whether the sink wants no more.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// All rows that begin up to this position were given.
    pub fn passes(&mut self, position: u64) {
        self.has_ended |= position > self.last_start;
    }

    /// Takes a row, with a cell for each column of the schema.
    #[inline]
    pub fn push<const COLUMNS: usize>(&mut self, names: &mut Names, cells: [Cell; COLUMNS]) {
        debug_assert_eq!(COLUMNS, self.schema.columns.len(), "{}", self.schema.name);
        if self.has_ended || !self.accepts(names, &cells) {
            return;
        }
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            if let Some(column) = column {
                column.push(cell);
            }
        }
        self.rows += 1;
        if self.rows == BATCH {
            self.flush(names);
        }
    }

    #[inline]
    fn accepts(&mut self, names: &Names, cells: &[Cell]) -> bool {
        self.conditions.iter_mut().all(|(condition, text)| {
            match (cells.get(condition.column), &condition.with) {
                (Some(Cell::Count(is)), Constant::Count(with)) => match condition.comparison {
                    Comparison::Equal => is == with,
                    Comparison::AtLeast => is >= with,
                    Comparison::AtMost => is <= with,
                },
                (Some(Cell::Text(is)), Constant::Text(with)) => {
                    if text.is_none() {
                        *text = names.find(with);
                    }
                    condition.comparison != Comparison::Equal || *text == Some(*is)
                }
                // No comparison is true of null. Others are left to the reader.
                (Some(Cell::Null), _) => false,
                _ => true,
            }
        })
    }

    /// Gives the sink what it has not received.
    pub fn flush(&mut self, names: &mut Names) {
        if self.rows == 0 || self.has_ended {
            return;
        }
        let columns = std::mem::take(&mut self.columns);
        let batch = Batch { rows: self.rows, columns, texts: names.all() };
        self.columns = self.empty();
        self.rows = 0;
        self.has_ended |= !self.sink.take(batch);
    }

    /// The last rows, after which nothing comes. `passes` does not keep them back.
    pub fn finish(&mut self, names: &mut Names) {
        let passed = std::mem::take(&mut self.has_ended);
        if !passed || self.last_start != u64::MAX {
            self.flush(names);
        }
        self.has_ended = true;
    }
}
