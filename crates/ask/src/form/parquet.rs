//! An answer as a Parquet file.
//!
//! The types of the columns are those of the first rows that have values: SQL gives a type to each
//! value, not to a column.

use crate::sql::{AnswerColumn, AnswerSink};
use anyhow::{Context, Result, ensure};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use rusqlite::types::{Value, ValueRef};
use std::io::Write;
use std::sync::Arc;

/// The number of rows that are collected and then written together.
const GROUP: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Count,
    Real,
    Text,
}

/// Writes an answer as Parquet.
pub struct ParquetAnswer<W: Write + Send> {
    out: Option<W>,
    file: Option<SerializedFileWriter<W>>,
    columns: Vec<AnswerColumn>,
    types: Vec<Type>,
    rows: Vec<Vec<Value>>,
}

impl<W: Write + Send> ParquetAnswer<W> {
    /// Writes to `out`. Call [`ParquetAnswer::finish`] at the end.
    pub fn new(out: W) -> ParquetAnswer<W> {
        ParquetAnswer {
            out: Some(out),
            file: None,
            columns: Vec::new(),
            types: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self) -> Result<()> {
        if !self.rows.is_empty() || self.file.is_none() {
            self.write()?;
        }
        if let Some(file) = self.file {
            file.close()?;
        }
        Ok(())
    }

    fn begin(&mut self, out: W) -> Result<SerializedFileWriter<W>> {
        let of = |at: usize| {
            let values = || self.rows.iter().filter_map(|row| row.get(at));
            let is_real = values().any(|value| matches!(value, Value::Real(_)));
            let is_text = values().any(|value| matches!(value, Value::Text(_) | Value::Blob(_)));
            match (is_text, is_real) {
                (true, _) => Type::Text,
                (false, true) => Type::Real,
                (false, false) => Type::Count,
            }
        };
        self.types = (0..self.columns.len()).map(of).collect();
        let mut message = String::from("message answer {");
        for (at, of) in self.types.iter().enumerate() {
            // The parser takes no other letters; the names come behind.
            message += &match of {
                Type::Count => format!("optional int64 c{at};"),
                Type::Real => format!("optional double c{at};"),
                Type::Text => format!("optional binary c{at} (UTF8);"),
            };
        }
        let parsed = parse_message_type(&(message + "}"))?;
        let fields = parsed.get_fields().iter().zip(&self.columns).map(|(field, column)| {
            let kept = parquet::schema::types::Type::primitive_type_builder(
                &column.name,
                field.get_physical_type(),
            );
            let kept = kept
                .with_repetition(parquet::basic::Repetition::OPTIONAL)
                .with_logical_type(field.get_basic_info().logical_type_ref().cloned())
                .with_converted_type(field.get_basic_info().converted_type());
            Ok(Arc::new(kept.build()?))
        });
        let fields = fields.collect::<Result<Vec<_>>>()?;
        let schema = parquet::schema::types::Type::group_type_builder("answer")
            .with_fields(fields)
            .build()?;
        let created = concat!("kernlane ", env!("CARGO_PKG_VERSION")).to_owned();
        let properties = WriterProperties::builder().set_created_by(created).build();
        Ok(SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?)
    }

    fn write(&mut self) -> Result<()> {
        if let Some(out) = self.out.take() {
            self.file = Some(self.begin(out)?);
        }
        let rows = std::mem::take(&mut self.rows);
        let file = self.file.as_mut().context("the file has not begun")?;
        if rows.is_empty() {
            return Ok(());
        }
        let mut group = file.next_row_group()?;
        for (at, of) in self.types.iter().enumerate() {
            let name = &self.columns[at].name;
            let values = rows.iter().filter_map(|row| row.get(at));
            match of {
                Type::Count => column::<W, Int64Type>(&mut group, values, |value| match value {
                    Value::Integer(count) => Some(*count),
                    _ => None,
                }),
                Type::Real => column::<W, DoubleType>(&mut group, values, |value| match value {
                    Value::Real(number) => Some(*number),
                    Value::Integer(count) => Some(*count as f64),
                    _ => None,
                }),
                Type::Text => column::<W, ByteArrayType>(&mut group, values, |value| match value {
                    Value::Text(text) => Some(ByteArray::from(text.as_str())),
                    Value::Blob(bytes) => Some(ByteArray::from(bytes.clone())),
                    Value::Integer(count) => Some(ByteArray::from(count.to_string().as_str())),
                    Value::Real(number) => Some(ByteArray::from(number.to_string().as_str())),
                    Value::Null => None,
                }),
            }
            .with_context(|| format!("the column {name}"))?;
        }
        group.close()?;
        Ok(())
    }
}

fn column<'v, W: Write + Send, T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    cells: impl Iterator<Item = &'v Value>,
    value: impl Fn(&Value) -> Option<T::T>,
) -> Result<()> {
    let (mut values, mut present) = (Vec::new(), Vec::new());
    for cell in cells {
        let value = value(cell);
        ensure!(
            value.is_some() || *cell == Value::Null,
            "{cell:?} has another type than the first rows: use CAST(… AS TEXT)"
        );
        present.push(i16::from(value.is_some()));
        values.extend(value);
    }
    let mut column = group.next_column()?.context("more columns than the schema has")?;
    column.typed::<T>().write_batch(&values, Some(&present), None)?;
    Ok(column.close()?)
}

impl<W: Write + Send> AnswerSink for ParquetAnswer<W> {
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
            false => self.write(),
        }
    }
}
