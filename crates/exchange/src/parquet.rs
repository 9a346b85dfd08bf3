//! Parquet tables for pandas, Polars, DuckDB and Spark: the services, functions, chains of calls
//! and invocations of a recording.
//!
//! Input: the observations of a recording. Output: one file for each table. Every column may be
//! null. The file's key-value metadata contains the conditions. `docs/reference/exports.md`
//! describes the columns. This module computes only sums.

use crate::callgrind::CallgrindEvents;
use crate::{Format, Make};
use anyhow::{Context, Result, bail};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use services::LevelMisses;
use services::annotations::ServiceKind;
use services::calls::{CallCost, CallTree, ROOT};
use services::spans::{CpuId, ServiceSpan, SpanTrack};
use services::table::{ServiceRow, ServiceTable};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

/// The number of rows that are collected and then written together.
const GROUP: usize = 1 << 16;

/// A table's name and columns.
pub struct TableSchema {
    /// The name of the table.
    pub name: &'static str,
    pub(crate) columns: &'static [(&'static str, ColumnType)],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ColumnType {
    Text,
    Count,
    Real,
    /// 64 bits, as a signed number.
    Address,
}

use ColumnType::{Address, Count, Real, Text};

/// The format.
pub(crate) const PARQUET: Format = Format {
    name: "parquet",
    about: "A directory of Parquet tables: services, functions, chains of calls, invocations \
        (pandas, Polars, DuckDB)",
    make: Make::Tables,
};

/// The table of services.
pub const SERVICES: TableSchema = TableSchema {
    name: "services",
    columns: &[
        ("kind", Text),
        ("service", Text),
        ("calls", Count),
        ("instructions", Count),
        ("l1i_misses", Count),
        ("l1d_misses", Count),
        ("l2_misses", Count),
        ("cycles", Real),
        ("latency", Real),
        ("computing", Real),
        ("other_services", Real),
        ("off_cpu", Real),
        ("blocked", Real),
        ("waiting", Real),
    ],
};

/// The functions of each service.
pub const FUNCTIONS: TableSchema = TableSchema {
    name: "functions",
    columns: &[
        ("kind", Text),
        ("service", Text),
        ("function", Text),
        ("calls", Count),
        ("instructions", Count),
        ("l1i_misses", Count),
        ("l1d_misses", Count),
        ("l2_misses", Count),
    ],
};

/// The chains of calls of each service.
pub const CHAINS: TableSchema = TableSchema {
    name: "chains",
    columns: &[
        ("kind", Text),
        ("service", Text),
        ("chain", Text),
        ("depth", Count),
        ("calls", Count),
        ("instructions", Count),
        ("l1i_misses", Count),
        ("l1d_misses", Count),
        ("l2_misses", Count),
    ],
};

/// The invocations of services.
pub const INVOCATIONS: TableSchema = TableSchema {
    name: "invocations",
    columns: &[
        ("task", Count),
        ("kind", Text),
        ("service", Text),
        ("begin", Count),
        ("end", Count),
        ("depth", Count),
        ("instructions", Count),
        ("off_cpu", Count),
    ],
};

/// The tasks.
pub const TASKS: TableSchema =
    TableSchema { name: "tasks", columns: &[("task", Count), ("name", Text), ("pid", Count)] };

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TableCell {
    Null,
    Text(ByteArray),
    Count(u64),
    Real(f64),
    Address(u64),
}

impl From<&str> for TableCell {
    fn from(text: &str) -> TableCell {
        TableCell::Text(text.into())
    }
}

impl From<u64> for TableCell {
    fn from(count: u64) -> TableCell {
        TableCell::Count(count)
    }
}

impl From<f64> for TableCell {
    fn from(number: f64) -> TableCell {
        TableCell::Real(number)
    }
}

impl<T: Into<TableCell>> From<Option<T>> for TableCell {
    fn from(value: Option<T>) -> TableCell {
        value.map_or(TableCell::Null, T::into)
    }
}

/// Writes one table, in groups of rows.
struct TableWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    columns: &'static [(&'static str, ColumnType)],
    rows: Vec<Vec<TableCell>>,
}

impl<W: Write + Send> TableWriter<W> {
    fn new(out: W, schema: &TableSchema, conditions: &[(&str, String)]) -> Result<Self> {
        let columns: String = schema
            .columns
            .iter()
            .map(|(name, of)| format!("optional {};", of.field(name)))
            .collect();
        let message = parse_message_type(&format!("message {} {{{columns}}}", schema.name))?;
        let facts =
            conditions.iter().map(|(name, value)| KeyValue::new((*name).to_owned(), value.clone()));
        let mut properties = WriterProperties::builder()
            .set_created_by(concat!("kernlane ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(facts.collect()))
            .set_compression(Compression::ZSTD(ZstdLevel::default()));
        for (name, of) in schema.columns {
            if matches!(of, Address) {
                // Most addresses occur once, not far behind the one before.
                let column = ColumnPath::from(*name);
                properties = properties
                    .set_column_dictionary_enabled(column.clone(), false)
                    .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
            }
        }
        Ok(Self {
            file: SerializedFileWriter::new(out, Arc::new(message), Arc::new(properties.build()))?,
            columns: schema.columns,
            rows: Vec::new(),
        })
    }

    fn push(&mut self, row: Vec<TableCell>) -> Result<()> {
        self.rows.push(row);
        match self.rows.len() < GROUP {
            true => Ok(()),
            false => self.write(),
        }
    }

    fn write(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        let mut group = self.file.next_row_group()?;
        for (at, (name, of)) in self.columns.iter().enumerate() {
            let cells = rows.iter().map(|row| row.get(at).unwrap_or(&TableCell::Null));
            match of {
                Text => column::<W, ByteArrayType>(&mut group, cells, |cell| match cell {
                    TableCell::Text(text) => Some(text.clone()),
                    _ => None,
                }),
                Count => column::<W, Int64Type>(&mut group, cells, |cell| match cell {
                    TableCell::Count(count) => i64::try_from(*count).ok(),
                    _ => None,
                }),
                Address => column::<W, Int64Type>(&mut group, cells, |cell| match cell {
                    TableCell::Address(address) => Some(*address as i64),
                    _ => None,
                }),
                Real => column::<W, DoubleType>(&mut group, cells, |cell| match cell {
                    TableCell::Real(number) => Some(*number),
                    _ => None,
                }),
            }
            .with_context(|| format!("the column {name}"))?;
        }
        group.close()?;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        if !self.rows.is_empty() {
            self.write()?;
        }
        self.file.close()?;
        Ok(())
    }
}

impl ColumnType {
    /// The type in the language of Parquet's schemas.
    fn field(self, name: &str) -> String {
        match self {
            Text => format!("binary {name} (UTF8)"),
            Count | Address => format!("int64 {name}"),
            Real => format!("double {name}"),
        }
    }
}

fn column<'a, W: Write + Send, T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    cells: impl Iterator<Item = &'a TableCell>,
    value: impl Fn(&TableCell) -> Option<T::T>,
) -> Result<()> {
    let (mut values, mut present) = (Vec::new(), Vec::new());
    for cell in cells {
        let value = value(cell);
        if value.is_none() && *cell != TableCell::Null {
            bail!("{cell:?} does not fit");
        }
        present.push(i16::from(value.is_some()));
        values.extend(value);
    }
    let mut column = group.next_column()?.context("more columns than the schema has")?;
    column.typed::<T>().write_batch(&values, Some(&present), None)?;
    Ok(column.close()?)
}

pub(crate) fn table(
    schema: &TableSchema,
    conditions: &[(&str, String)],
    rows: impl Iterator<Item = Vec<TableCell>>,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut table = TableWriter::new(&mut bytes, schema, conditions)?;
    for row in rows {
        table.push(row)?;
    }
    table.finish()?;
    Ok(bytes)
}

/// The values of a row from a cost: calls, instructions, and the misses that were counted.
fn counts(calls: u64, cost: &CallCost, events: CallgrindEvents) -> [TableCell; 5] {
    let LevelMisses { l1i, l1d, l2 } = cost.misses;
    let of_memory =
        |misses: u64| TableCell::from((events == CallgrindEvents::Memory).then_some(misses));
    let fetches = (events != CallgrindEvents::Instructions).then_some(l1i);
    [calls.into(), cost.instructions.into(), fetches.into(), of_memory(l1d), of_memory(l2)]
}

/// A row for each service in the table and in the chains, ascending by kind and name.
///
/// # Errors
/// The table cannot be written.
pub fn services(
    services: &ServiceTable,
    tree: &CallTree,
    events: CallgrindEvents,
    conditions: &[(&str, String)],
) -> Result<Vec<u8>> {
    let mut all: BTreeMap<(ServiceKind, &str), (CallCost, Option<&ServiceRow>)> = BTreeMap::new();
    for service in &tree.services {
        let cost = &mut all.entry((service.kind, &service.name)).or_default().0;
        service.costs.iter().for_each(|(_, own)| *cost += *own);
    }
    for row in &services.rows {
        all.entry((row.kind, &row.name)).or_default().1 = Some(row);
    }
    let rows = all.into_iter().map(|((kind, name), (cost, row))| {
        let latency = row.map(|row| row.latency);
        let cycles = row.and_then(|row| row.machines.first()).map(|machine| machine.cycles);
        let mut cells: Vec<TableCell> = vec![kind.title().into(), name.into()];
        cells.extend(counts(row.map_or(0, |row| row.calls), &cost, events));
        cells.extend([
            cycles.into(),
            latency.map(|latency| latency.total).into(),
            latency.map(|latency| latency.computing).into(),
            latency.map(|latency| latency.other_services).into(),
            latency.map(|latency| latency.off_cpu).into(),
            latency.and_then(|latency| latency.blocked).into(),
            latency.and_then(|latency| latency.waiting).into(),
        ]);
        cells
    });
    table(&SERVICES, conditions, rows)
}

/// A row for each function in each service, ascending by kind, service and function. The function
/// is null for user mode, and for what a service executes in no function.
///
/// # Errors
/// The table cannot be written.
pub fn functions(
    tree: &CallTree,
    events: CallgrindEvents,
    conditions: &[(&str, String)],
) -> Result<Vec<u8>> {
    let rows = tree.services.iter().flat_map(|service| {
        let mut by_name: BTreeMap<Option<&str>, CallCost> = BTreeMap::new();
        for (node, cost) in &service.costs {
            let function = tree.nodes[node.0 as usize].function as usize;
            let name = (*node != ROOT).then(|| tree.functions[function].as_str());
            *by_name.entry(name).or_default() += *cost;
        }
        by_name.into_iter().map(move |(name, cost)| {
            let mut cells: Vec<TableCell> =
                vec![service.kind.title().into(), service.name.as_str().into(), name.into()];
            cells.extend(counts(cost.calls, &cost, events));
            cells
        })
    });
    table(&FUNCTIONS, conditions, rows)
}

/// A row for each chain of calls in each service, ascending by kind and service, with what the
/// chain executed itself.
///
/// # Errors
/// The table cannot be written.
pub fn chains(
    tree: &CallTree,
    events: CallgrindEvents,
    conditions: &[(&str, String)],
) -> Result<Vec<u8>> {
    let rows = tree.services.iter().flat_map(|service| {
        service.costs.iter().map(|(node, cost)| {
            let chain = tree.chain(*node);
            let mut cells: Vec<TableCell> =
                vec![service.kind.title().into(), service.name.as_str().into()];
            cells.extend([TableCell::from(chain.join(";").as_str()), (chain.len() as u64).into()]);
            cells.extend(counts(cost.calls, cost, events));
            cells
        })
    });
    table(&CHAINS, conditions, rows)
}

/// Writes the table of invocations when they end, and collects the tasks.
pub(crate) struct InvocationTable<'a, W: Write + Send> {
    table: TableWriter<W>,
    tasks: Vec<Vec<TableCell>>,
    conditions: &'a [(&'a str, String)],
    error: Option<anyhow::Error>,
}

impl<'a, W: Write + Send> InvocationTable<'a, W> {
    /// Starts the table of invocations in `out`.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub(crate) fn new(out: W, conditions: &'a [(&'a str, String)]) -> Result<Self> {
        Ok(Self {
            table: TableWriter::new(out, &INVOCATIONS, conditions)?,
            tasks: Vec::new(),
            conditions,
            error: None,
        })
    }

    /// Ends the table. Returns the bytes of the table of tasks.
    ///
    /// # Errors
    /// An invocation could not be written.
    pub(crate) fn finish(self) -> Result<Vec<u8>> {
        self.error.map_or(Ok(()), Err)?;
        self.table.finish()?;
        table(&TASKS, self.conditions, self.tasks.into_iter())
    }
}

impl<W: Write + Send> SpanTrack for InvocationTable<'_, W> {
    fn span(&mut self, task: usize, span: &ServiceSpan) {
        if self.error.is_some() {
            return;
        }
        let row = vec![
            (task as u64).into(),
            span.kind.title().into(),
            span.name.as_str().into(),
            span.begin.into(),
            span.end.into(),
            (span.depth as u64).into(),
            span.instructions.into(),
            span.off_cpu.into(),
        ];
        self.error = self.table.push(row).err();
    }

    fn turn(&mut self, _: CpuId, _: usize, _: &str, _: u64, _: u64) {}

    fn task(&mut self, task: usize, name: &str, pid: Option<u32>) {
        self.tasks.push(vec![(task as u64).into(), name.into(), pid.map(u64::from).into()]);
    }
}
