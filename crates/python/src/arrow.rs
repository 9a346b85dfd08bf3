//! Rows as Arrow: batches of a table, and groups of an answer.
//!
//! Input: typed columns. Output: record batches. Integers, addresses and real numbers of a table
//! keep their memory. Texts are copied, because a table's batch has numbers in their place.

use anyhow::{Context, Result, ensure};
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow_buffer::{Buffer, NullBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use ask::batch::{Batch, ColumnData, NullableValues};
use ask::form::grouped::{TypedColumn, count_of, real_of, text_of};
use ask::schema::{ColumnType, TableSchema};
use ask::sql::SqlValue;
use std::sync::Arc;

/// The type of a column. An address is unsigned.
fn arrow_type(of: ColumnType) -> DataType {
    match of {
        ColumnType::Count => DataType::Int64,
        ColumnType::Address => DataType::UInt64,
        ColumnType::Real => DataType::Float64,
        ColumnType::Text => DataType::Utf8,
    }
}

fn schema<'c>(columns: impl Iterator<Item = (&'c str, ColumnType)>) -> SchemaRef {
    let fields = columns.map(|(name, of)| Field::new(name, arrow_type(of), true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The schema of columns of a table, by their numbers.
pub(crate) fn schema_of_table(table: &TableSchema, columns: &[usize]) -> SchemaRef {
    let columns = columns.iter().filter_map(|at| table.columns.get(*at));
    schema(columns.map(|column| (column.name, column.of)))
}

/// The schema of an answer.
pub(crate) fn schema_of_answer(columns: &[TypedColumn]) -> SchemaRef {
    schema(columns.iter().map(|column| (column.name.as_str(), column.of)))
}

/// The columns of a batch that `schema` has, which is that of the columns with these numbers.
///
/// # Errors
/// The batch has other columns, or more than 2 GB of text in one.
pub(crate) fn of_batch(schema: &SchemaRef, mut batch: Batch, at: &[usize]) -> Result<RecordBatch> {
    let mut arrays: Vec<ArrayRef> = Vec::new();
    for (field, at) in schema.fields().iter().zip(at) {
        let data = batch.columns.get_mut(*at).and_then(Option::take);
        let data = data.with_context(|| format!("the column {} was not made", field.name()))?;
        arrays.push(match data {
            ColumnData::Count(all) if *field.data_type() == DataType::UInt64 => {
                let (values, nulls) = (all.values, nulls(all.is_present));
                let rows = values.len();
                // The same bits, in the same memory.
                let values = ScalarBuffer::<u64>::new(Buffer::from_vec(values), 0, rows);
                Arc::new(UInt64Array::try_new(values, nulls)?)
            }
            ColumnData::Count(all) => {
                Arc::new(Int64Array::try_new(all.values.into(), nulls(all.is_present))?)
            }
            ColumnData::Real(all) => {
                Arc::new(Float64Array::try_new(all.values.into(), nulls(all.is_present))?)
            }
            ColumnData::Text(all) => Arc::new(texts(&all, &batch.texts)?),
        });
    }
    Ok(RecordBatch::try_new(schema.clone(), arrays)?)
}

fn nulls(is_present: Vec<bool>) -> Option<NullBuffer> {
    let nulls = NullBuffer::from(is_present);
    (nulls.null_count() > 0).then_some(nulls)
}

fn texts(column: &NullableValues<u32>, texts: &[Arc<str>]) -> Result<StringArray> {
    let text = |row: usize| Some(&**texts.get(column.get(row)? as usize)?);
    let rows = 0..column.values.len();
    ensure_fits(rows.clone().filter_map(text).map(str::len).sum())?;
    Ok(rows.map(text).collect())
}

/// Offsets of texts have 31 bits.
fn ensure_fits(bytes: usize) -> Result<()> {
    ensure!(
        i32::try_from(bytes).is_ok(),
        "a column has more than 2 GB of text in one group of rows: ask for a part of it, with \
         substr"
    );
    Ok(())
}

/// A group of rows of an answer.
///
/// # Errors
/// A value has another type than its column, or a column has more than 2 GB of text.
pub(crate) fn of_group(
    schema: &SchemaRef,
    columns: &[TypedColumn],
    mut rows: Vec<Vec<SqlValue>>,
) -> Result<RecordBatch> {
    let mut arrays: Vec<ArrayRef> = Vec::new();
    for (at, TypedColumn { name, of }) in columns.iter().enumerate() {
        let mut values = rows
            .iter_mut()
            .filter_map(|row| row.get_mut(at))
            .map(|value| std::mem::replace(value, SqlValue::Null));
        let array = || -> Result<ArrayRef> {
            Ok(match of {
                ColumnType::Count => {
                    Arc::new(values.map(|value| count_of(&value)).collect::<Result<Int64Array>>()?)
                }
                ColumnType::Address => {
                    let address = |value| anyhow::Ok(count_of(&value)?.map(|it| it as u64));
                    Arc::new(values.map(address).collect::<Result<UInt64Array>>()?)
                }
                ColumnType::Real => {
                    Arc::new(values.map(|value| real_of(&value)).collect::<Result<Float64Array>>()?)
                }
                ColumnType::Text => {
                    let texts: Vec<Option<String>> = values.by_ref().map(text_of).collect();
                    ensure_fits(texts.iter().flatten().map(String::len).sum())?;
                    Arc::new(StringArray::from(texts))
                }
            })
        };
        arrays.push({ array }().with_context(|| format!("the column {name}"))?);
    }
    Ok(RecordBatch::try_new(schema.clone(), arrays)?)
}
