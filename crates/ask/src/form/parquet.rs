//! An answer as a Parquet file.

use super::grouped::{GroupSink, GroupedAnswer, TypedColumn, count_of, real_of, text_of};
use crate::schema::ColumnType;
use crate::sql::{AnswerColumn, AnswerSink};
use anyhow::{Context, Result};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use rusqlite::types::{Value, ValueRef};
use std::io::Write;
use std::sync::Arc;

/// Writes an answer as Parquet.
pub struct ParquetAnswer<W: Write + Send>(GroupedAnswer<ParquetFile<W>>);

impl<W: Write + Send> ParquetAnswer<W> {
    /// Writes to `out`. Call [`ParquetAnswer::finish`] at the end.
    pub fn new(out: W) -> ParquetAnswer<W> {
        ParquetAnswer(GroupedAnswer::new(ParquetFile { out: Some(out), file: None }))
    }

    /// Ends the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(self) -> Result<()> {
        if let Some(file) = self.0.finish()?.file {
            file.close()?;
        }
        Ok(())
    }
}

impl<W: Write + Send> AnswerSink for ParquetAnswer<W> {
    fn columns(&mut self, columns: &[AnswerColumn]) -> Result<()> {
        self.0.columns(columns)
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        self.0.row(row)
    }
}

/// A file that begins with its first group.
struct ParquetFile<W: Write + Send> {
    out: Option<W>,
    file: Option<SerializedFileWriter<W>>,
}

impl<W: Write + Send> GroupSink for ParquetFile<W> {
    fn group(&mut self, columns: &[TypedColumn], mut rows: Vec<Vec<Value>>) -> Result<()> {
        if let Some(out) = self.out.take() {
            self.file = Some(begun(out, columns)?);
        }
        let file = self.file.as_mut().context("the file has not begun")?;
        if rows.is_empty() {
            return Ok(());
        }
        let mut group = file.next_row_group()?;
        for (at, TypedColumn { name, of }) in columns.iter().enumerate() {
            let values = rows
                .iter_mut()
                .filter_map(|row| row.get_mut(at))
                .map(|value| std::mem::replace(value, Value::Null));
            match of {
                ColumnType::Count | ColumnType::Address => {
                    column::<W, Int64Type>(&mut group, values, |value| count_of(&value))
                }
                ColumnType::Real => {
                    column::<W, DoubleType>(&mut group, values, |value| real_of(&value))
                }
                ColumnType::Text => column::<W, ByteArrayType>(&mut group, values, |value| {
                    Ok(text_of(value).map(|text| ByteArray::from(text.into_bytes())))
                }),
            }
            .with_context(|| format!("the column {name}"))?;
        }
        group.close()?;
        Ok(())
    }
}

fn begun<W: Write + Send>(out: W, columns: &[TypedColumn]) -> Result<SerializedFileWriter<W>> {
    let mut message = String::from("message answer {");
    for (at, column) in columns.iter().enumerate() {
        // The parser takes no other letters; the names come behind.
        message += &match column.of {
            ColumnType::Count | ColumnType::Address => format!("optional int64 c{at};"),
            ColumnType::Real => format!("optional double c{at};"),
            ColumnType::Text => format!("optional binary c{at} (UTF8);"),
        };
    }
    let parsed = parse_message_type(&(message + "}"))?;
    let fields = parsed.get_fields().iter().zip(columns).map(|(field, column)| {
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
    let schema =
        parquet::schema::types::Type::group_type_builder("answer").with_fields(fields).build()?;
    let created = concat!("kernlane ", env!("CARGO_PKG_VERSION")).to_owned();
    let properties = WriterProperties::builder().set_created_by(created).build();
    Ok(SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?)
}

fn column<W: Write + Send, T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    cells: impl Iterator<Item = Value>,
    value: impl Fn(Value) -> Result<Option<T::T>>,
) -> Result<()> {
    let (mut values, mut present) = (Vec::new(), Vec::new());
    for cell in cells {
        let value = value(cell)?;
        present.push(i16::from(value.is_some()));
        values.extend(value);
    }
    let mut column = group.next_column()?.context("more columns than the schema has")?;
    column.typed::<T>().write_batch(&values, Some(&present), None)?;
    Ok(column.close()?)
}
