//! Answers: rows of a table or of a question, which Python takes as Arrow.
//!
//! Input: what is asked. Output: a stream of record batches, by the Arrow PyCapsule interface. The
//! rows are made on a thread of their own, a few batches ahead of who takes them.

use crate::arrow;
use crate::work::{caught, exception, receive};
use anyhow::{Result, anyhow};
use arrow_array::cast::AsArray;
use arrow_array::ffi::FFI_ArrowSchema;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use ask::batch::{Batch, BatchSink, ColumnSet, TableRequest};
use ask::form::grouped::{GroupSink, GroupedAnswer, TypedColumn};
use ask::recording::AskedRecording;
use ask::schema::{TableId, of};
use ask::sql::{AskError, Database, SqlValue};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// The number of batches that are made before they are taken.
const AHEAD: usize = 4;

/// What is asked. It can be asked again.
#[derive(Clone)]
pub(crate) enum Asked {
    /// Columns of a table, by their numbers.
    Table { recording: Arc<AskedRecording>, table: TableId, columns: Vec<usize> },
    /// A question, with recordings by name and the values of its parameters.
    Question {
        recordings: Vec<(String, Arc<AskedRecording>)>,
        sql: String,
        values: Vec<(String, SqlValue)>,
    },
}

type Sent = Result<RecordBatch>;

impl Asked {
    /// Sends at least one batch, or an error. Ends early when nobody receives.
    fn answer(self, sender: &SyncSender<Sent>) -> Result<()> {
        match self {
            Asked::Table { recording, table, columns } => {
                let mut wanted = ColumnSet::default();
                columns.iter().for_each(|column| wanted.add(*column));
                let schema = arrow::schema_of_table(of(table), &columns);
                let last = RecordBatch::new_empty(schema.clone());
                let sink = Box::new(TableSink { schema, columns, sender: sender.clone() });
                let request = TableRequest { table, wanted, conditions: Vec::new(), sink };
                ask::produce::produce(&recording, vec![request])?;
                // Says what columns there are, if there was no row.
                drop(sender.send(Ok(last)));
                Ok(())
            }
            Asked::Question { recordings, sql, values } => {
                let mut answer = GroupedAnswer::new(AnswerSender { schema: None, sender });
                let database = Database::open(recordings, Vec::new())?;
                database.ask(&sql, &values, &mut answer).map_err(|error| match error {
                    AskError::Table(error) => error,
                    other => other.into(),
                })?;
                answer.finish().map(drop)
            }
        }
    }
}

/// Sends batches of a table.
struct TableSink {
    schema: SchemaRef,
    columns: Vec<usize>,
    sender: SyncSender<Sent>,
}

impl BatchSink for TableSink {
    fn take(&mut self, batch: Batch) -> bool {
        let batch = arrow::of_batch(&self.schema, batch, &self.columns);
        let is_whole = batch.is_ok();
        self.sender.send(batch).is_ok() && is_whole
    }
}

/// Sends groups of an answer.
struct AnswerSender<'a> {
    schema: Option<SchemaRef>,
    sender: &'a SyncSender<Sent>,
}

impl GroupSink for AnswerSender<'_> {
    fn group(&mut self, columns: &[TypedColumn], rows: Vec<Vec<SqlValue>>) -> Result<()> {
        let schema = self.schema.get_or_insert_with(|| arrow::schema_of_answer(columns));
        let batch = arrow::of_group(schema, columns, rows)?;
        self.sender.send(Ok(batch)).map_err(|_| anyhow!("nobody takes the answer"))
    }
}

/// An answer that is being made.
struct AnswerReader {
    schema: SchemaRef,
    first: Option<RecordBatch>,
    batches: Receiver<Sent>,
}

impl AnswerReader {
    /// Waits for the first rows, which say what the columns are.
    fn begin(py: Python<'_>, asked: Asked) -> PyResult<AnswerReader> {
        let (sender, mut batches) = sync_channel(AHEAD);
        let answer = move || {
            if let Err(error) = caught(|| asked.answer(&sender)) {
                drop(sender.send(Err(error)));
            }
        };
        std::thread::Builder::new()
            .name("answer".to_owned())
            .spawn(answer)
            .map_err(|error| exception(error.into()))?;
        let first = receive(py, &mut batches)?.unwrap_or_else(|| Err(broken_off()));
        let first = first.map_err(exception)?;
        Ok(AnswerReader { schema: first.schema(), first: Some(first), batches })
    }

    /// The next rows; `None` at the end.
    fn next(&mut self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => receive(py, &mut self.batches)?.transpose().map_err(exception),
        }
    }
}

fn broken_off() -> anyhow::Error {
    anyhow!("the answer broke off: a bug of Kernlane")
}

/// What other libraries pull batches from, on any of their threads.
struct ArrowReader(AnswerReader);

impl Iterator for ArrowReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let ended = || Some(Err(external("Python ends")));
        let next = Python::try_attach(|py| {
            self.0.next(py).map_err(|raised| {
                // The library raises an exception of its own; Ctrl-C must not be lost by that.
                if raised.is_instance_of::<pyo3::exceptions::PyKeyboardInterrupt>(py) {
                    let thread = py.import("_thread");
                    drop(thread.and_then(|thread| thread.call_method0("interrupt_main")));
                    return external("interrupted");
                }
                external(&raised.value(py).to_string())
            })
        });
        match next {
            None => ended(),
            Some(next) => next.transpose(),
        }
    }
}

fn external(message: &str) -> ArrowError {
    ArrowError::ExternalError(message.into())
}

impl RecordBatchReader for ArrowReader {
    fn schema(&self) -> SchemaRef {
        self.0.schema.clone()
    }
}

/// Rows of a table or of a question, as an Arrow stream.
///
/// Whatever takes Arrow takes an answer, without a copy: `pyarrow.table(answer)`,
/// `polars.DataFrame(answer)`, `duckdb.sql("SELECT * FROM answer")`, and
/// `pyarrow.table(answer).to_pandas()`. Rows are made while they are taken. Taking an answer again
/// asks again, and gives the same rows.
///
/// Integers are `int64`, addresses `uint64`, real numbers `float64`, texts `utf8`. Every value may
/// be null.
///
///     >>> rec = kernlane.open("net.rec")
///     >>> answer = rec.ask("SELECT function, count(*) AS calls FROM calls GROUP BY 1")
///     >>> answer.columns
///     ['function', 'calls']
///     >>> frame = polars.DataFrame(answer)
#[pyclass(frozen, module = "kernlane")]
pub(crate) struct Answer {
    asked: Asked,
    schema: SchemaRef,
    /// What began when the answer was asked for; taken by the first who takes rows.
    begun: Mutex<Option<AnswerReader>>,
}

impl Answer {
    /// Asks, and waits for the first rows.
    pub(crate) fn new(py: Python<'_>, asked: Asked) -> PyResult<Answer> {
        let reader = AnswerReader::begin(py, asked.clone())?;
        let schema = reader.schema.clone();
        Ok(Answer { asked, schema, begun: Mutex::new(Some(reader)) })
    }

    fn reader(&self, py: Python<'_>) -> PyResult<AnswerReader> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner).take();
        match begun {
            Some(reader) => Ok(reader),
            None => AnswerReader::begin(py, self.asked.clone()),
        }
    }
}

#[pymethods]
impl Answer {
    /// The names of the columns.
    #[getter]
    fn columns(&self) -> Vec<&str> {
        self.schema.fields().iter().map(|field| field.name().as_str()).collect()
    }

    /// All rows as dictionaries, for small answers.
    ///
    ///     >>> rec.ask("SELECT count(*) AS calls FROM calls").rows()
    ///     [{'calls': 1234567}]
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut reader = self.reader(py)?;
        let rows = PyList::empty(py);
        while let Some(batch) = reader.next(py)? {
            for row in 0..batch.num_rows() {
                let cells = PyDict::new(py);
                for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
                    cells.set_item(field.name(), cell(py, column, row)?)?;
                }
                rows.append(cells)?;
            }
        }
        Ok(rows)
    }

    /// The schema, for libraries that take Arrow.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(&*self.schema);
        let schema = schema.map_err(|error| exception(error.into()))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// The rows, for libraries that take Arrow. A requested schema is not heeded.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface allows it, and casts are the library's.
        drop(requested_schema);
        let stream = FFI_ArrowArrayStream::new(Box::new(ArrowReader(self.reader(py)?)));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    fn __repr__(&self) -> String {
        format!("<kernlane.Answer: {}>", self.columns().join(", "))
    }
}

/// A value of a row.
fn cell<'py>(py: Python<'py>, column: &dyn Array, row: usize) -> PyResult<Bound<'py, PyAny>> {
    if column.is_null(row) {
        return Ok(py.None().into_bound(py));
    }
    match column.data_type() {
        DataType::Int64 => {
            column.as_primitive::<Int64Type>().value(row).into_pyobject(py).map(Bound::into_any)
        }
        DataType::UInt64 => {
            column.as_primitive::<UInt64Type>().value(row).into_pyobject(py).map(Bound::into_any)
        }
        DataType::Float64 => {
            column.as_primitive::<Float64Type>().value(row).into_pyobject(py).map(Bound::into_any)
        }
        _ => column.as_string::<i32>().value(row).into_pyobject(py).map(Bound::into_any),
    }
    .map_err(Into::into)
}
