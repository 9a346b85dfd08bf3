//! Rows of an answer in groups whose columns have one type each, for forms such as Parquet and
//! Arrow.
//!
//! Input: an answer, row by row. Output: groups of rows. SQL gives a type to each value, not to a
//! column. A column's type here is that of its values in the first group, or that of the table's
//! column if it has no values there.

use crate::schema::ColumnType;
use crate::sql::{AnswerColumn, AnswerSink};
use anyhow::{Result, bail, ensure};
use rusqlite::types::{Value, ValueRef};

/// The number of rows of a group.
const GROUP: usize = 1 << 16;

/// A column of an answer, with the one type of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedColumn {
    /// Its name. No two columns have one name.
    pub name: String,
    /// The type of its values. A blob is a text.
    pub of: ColumnType,
}

/// Receives groups of rows.
pub trait GroupSink {
    /// The next rows, with a value for each column. The first group may be empty: then it is the
    /// only one. The columns are the same each time.
    ///
    /// # Errors
    /// A value has another type than its column, or the rows cannot be written.
    fn group(&mut self, columns: &[TypedColumn], rows: Vec<Vec<Value>>) -> Result<()>;
}

/// Gives the rows of an answer to a sink, in groups.
pub struct GroupedAnswer<S> {
    sink: S,
    columns: Vec<AnswerColumn>,
    typed: Option<Vec<TypedColumn>>,
    rows: Vec<Vec<Value>>,
}

impl<S: GroupSink> GroupedAnswer<S> {
    /// Gives groups to `sink`. Call [`GroupedAnswer::finish`] at the end.
    pub fn new(sink: S) -> GroupedAnswer<S> {
        GroupedAnswer { sink, columns: Vec::new(), typed: None, rows: Vec::new() }
    }

    /// Gives the last group, and returns the sink.
    ///
    /// # Errors
    /// As [`GroupSink::group`].
    pub fn finish(mut self) -> Result<S> {
        if !self.rows.is_empty() || self.typed.is_none() {
            self.flush()?;
        }
        Ok(self.sink)
    }

    fn flush(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        let typed = self.typed.get_or_insert_with(|| {
            let column = |(at, column): (usize, &AnswerColumn)| TypedColumn {
                name: column.name.clone(),
                of: type_of(column, rows.iter().filter_map(|row| row.get(at))),
            };
            self.columns.iter().enumerate().map(column).collect()
        });
        self.sink.group(typed, rows)
    }
}

fn type_of<'v>(column: &AnswerColumn, values: impl Iterator<Item = &'v Value>) -> ColumnType {
    let mut of = None;
    for value in values {
        of = match (value, of) {
            (Value::Null, of) => of,
            (Value::Text(_) | Value::Blob(_), _) => return ColumnType::Text,
            (Value::Real(_), _) | (Value::Integer(_), Some(ColumnType::Real)) => {
                Some(ColumnType::Real)
            }
            (Value::Integer(_), _) if column.is_address() => Some(ColumnType::Address),
            (Value::Integer(_), _) => Some(ColumnType::Count),
        };
    }
    of.or(column.of).unwrap_or(ColumnType::Count)
}

impl<S: GroupSink> AnswerSink for GroupedAnswer<S> {
    fn columns(&mut self, columns: &[AnswerColumn]) -> Result<()> {
        for (at, column) in columns.iter().enumerate() {
            let is_new = columns[..at].iter().all(|before| before.name != column.name);
            ensure!(
                is_new,
                "two columns are named {}: give one another name, with AS",
                column.name
            );
        }
        self.columns = columns.to_vec();
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        self.rows.push(row.iter().map(|value| Value::try_from(*value)).collect::<Result<_, _>>()?);
        match self.rows.len() < GROUP {
            true => Ok(()),
            false => self.flush(),
        }
    }
}

/// A value of a column of integers or addresses.
///
/// # Errors
/// It has another type.
pub fn count_of(value: &Value) -> Result<Option<i64>> {
    match value {
        Value::Null => Ok(None),
        Value::Integer(count) => Ok(Some(*count)),
        other => other_type(other),
    }
}

/// A value of a column of real numbers.
///
/// # Errors
/// It has another type.
pub fn real_of(value: &Value) -> Result<Option<f64>> {
    match value {
        Value::Null => Ok(None),
        Value::Real(number) => Ok(Some(*number)),
        Value::Integer(count) => Ok(Some(*count as f64)),
        other => other_type(other),
    }
}

/// A value of a column of texts. A blob that is no UTF-8 is shown with replacement characters.
pub fn text_of(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Text(text) => Some(text),
        Value::Blob(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Value::Integer(count) => Some(count.to_string()),
        Value::Real(number) => Some(number.to_string()),
    }
}

fn other_type<T>(value: &Value) -> Result<T> {
    bail!("{value:?} has another type than the first rows: use CAST(… AS TEXT)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(column: Option<ColumnType>, values: &[Value]) -> ColumnType {
        type_of(&AnswerColumn { name: "x".to_owned(), of: column }, values.iter())
    }

    #[test]
    fn a_column_has_the_type_of_its_values_and_else_that_of_the_table() {
        let (count, real, text) = (Value::Integer(1), Value::Real(0.5), Value::Text("a".into()));
        let address = Some(ColumnType::Address);
        assert_eq!(of(None, &[Value::Null, count.clone()]), ColumnType::Count);
        assert_eq!(of(address, std::slice::from_ref(&count)), ColumnType::Address);
        assert_eq!(of(address, &[count.clone(), real.clone()]), ColumnType::Real);
        assert_eq!(of(None, &[real.clone(), count.clone()]), ColumnType::Real);
        assert_eq!(of(Some(ColumnType::Count), &[count, text]), ColumnType::Text);
        assert_eq!(of(Some(ColumnType::Text), &[Value::Null]), ColumnType::Text);
        assert_eq!(of(None, &[]), ColumnType::Count);
    }
}
