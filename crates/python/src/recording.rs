//! Recordings that are open, and questions about them.
//!
//! Input: directories, questions. Output: answers. A recording's kernel is read once for each list
//! of machines.

use crate::answer::{Answer, Asked};
use crate::machine::MachineInput;
use crate::work::{exception, from_json, run};
use anyhow::{Context, Result, anyhow, ensure};
use ask::named::understood;
use ask::probe::RecordedProbes;
use ask::recording::AskedRecording;
use ask::schema::{TABLES, TableId, of};
use ask::sql::{MOST_RECORDINGS, SqlValue, is_name};
use execution::part::RecordingPart;
use host::recording::Recording as RecordingFiles;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyString};
use road::guest::RecordingSummary;
use road::opened::Opening;
use road::probed::Probing;
use sim::MachineModel;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The lists of machines with which a recording is kept open.
const KEPT: usize = 4;

/// A recording that is open, with its kernel. `kernlane.open` makes it.
///
/// Each table is a method, whose rows are an Arrow stream. `kernlane.tables()` says what their
/// columns are.
///
///     >>> rec = kernlane.open("net.rec")
///     >>> polars.DataFrame(rec.services(columns=["service", "instructions"]))
///     >>> rec.ask("top-calls", top=3).rows()
#[pyclass(frozen, module = "kernlane")]
pub(crate) struct Recording {
    path: PathBuf,
    kernel: Option<PathBuf>,
    annotations: Option<PathBuf>,
    probes: Option<RecordedProbes>,
    /// By the machines that are simulated.
    opened: Mutex<Vec<(Vec<MachineModel>, Arc<AskedRecording>)>>,
}

impl Recording {
    /// Opens a recording with its kernel.
    pub(crate) fn open(
        py: Python<'_>,
        path: PathBuf,
        kernel: Option<PathBuf>,
        annotations: Option<PathBuf>,
    ) -> PyResult<Recording> {
        let opened = Mutex::default();
        let recording = Recording { path, kernel, annotations, probes: None, opened };
        recording.opened(py, Vec::new())?;
        Ok(recording)
    }

    /// The directory.
    pub(crate) fn directory(&self) -> &PathBuf {
        &self.path
    }

    /// The kernel that was named.
    pub(crate) fn named_kernel(&self) -> Option<&PathBuf> {
        self.kernel.as_ref()
    }

    fn opened(&self, py: Python<'_>, machines: Vec<MachineModel>) -> PyResult<Arc<AskedRecording>> {
        let all = || self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = all().iter().find(|(known, _)| *known == machines) {
            return Ok(known.clone());
        }
        let opened = run(py, || {
            ensure!(self.path.is_dir(), "{}: there is no such recording", self.path.display());
            let opening = Opening {
                kernel: self.kernel.as_deref(),
                annotations: self.annotations.as_deref(),
                machines: &[],
                part: RecordingPart::WHOLE,
            };
            let opened = road::asked::recording(&opening, &self.path, machines.clone())?;
            Ok(Arc::new(AskedRecording { probes: self.probes.clone(), ..opened }))
        })?;
        let mut all = all();
        if all.len() == KEPT {
            all.remove(0);
        }
        all.push((machines, opened.clone()));
        Ok(opened)
    }

    fn table(
        &self,
        py: Python<'_>,
        table: TableId,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        let columns = columns_of(table, columns).map_err(exception)?;
        let recording = self.opened(py, MachineInput::models(machines))?;
        Answer::new(py, Asked::Table { recording, table, columns })
    }
}

/// The numbers of columns.
fn columns_of(table: TableId, names: Option<Vec<String>>) -> Result<Vec<usize>> {
    let table = of(table);
    let Some(names) = names else { return Ok((0..table.columns.len()).collect()) };
    ensure!(!names.is_empty(), "name at least one column of {}", table.name);
    let column = |name: &String| {
        table.column(name).with_context(|| {
            let all: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
            format!("{} has no column {name:?}; it has {}", table.name, all.join(", "))
        })
    };
    let columns = names.iter().map(column).collect::<Result<Vec<_>>>()?;
    for (at, column) in columns.iter().enumerate() {
        ensure!(!columns[..at].contains(column), "the column {:?} is named twice", names[at]);
    }
    Ok(columns)
}

/// Answers a question about recordings by name.
pub(crate) fn ask(
    py: Python<'_>,
    question: &str,
    recordings: Vec<(String, PyRef<'_, Recording>)>,
    machines: Option<MachineInput>,
    parameters: Option<&Bound<'_, PyDict>>,
) -> PyResult<Answer> {
    let most = MOST_RECORDINGS;
    let checked = || -> Result<()> {
        ensure!(!recordings.is_empty(), "name a recording: before=rec");
        ensure!(recordings.len() <= most, "a question takes at most {most} recordings");
        for (name, _) in &recordings {
            ensure!(is_name(name), "{name:?} cannot name a recording in SQL");
        }
        Ok(())
    };
    checked().map_err(exception)?;
    let mut values = Vec::new();
    for (name, value) in parameters.into_iter().flatten() {
        values.push((name.extract()?, sql_value(&value)?));
    }
    let questions = road::asked::questions().map_err(exception)?;
    let (sql, values) = understood(question, &questions, values).map_err(exception)?;
    let machines = MachineInput::models(machines);
    let mut opened = Vec::new();
    for (name, recording) in recordings {
        opened.push((name, recording.opened(py, machines.clone())?));
    }
    Answer::new(py, Asked::Question { recordings: opened, sql, values })
}

/// A value of Python for a parameter. An address above 2⁶³ keeps its bits.
fn sql_value(value: &Bound<'_, PyAny>) -> PyResult<SqlValue> {
    if value.is_none() {
        return Ok(SqlValue::Null);
    }
    if let Ok(is) = value.cast::<PyBool>() {
        return Ok(SqlValue::Integer(is.is_true().into()));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(SqlValue::Text(text.to_string()));
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(SqlValue::Real(number.value()));
    }
    if let Ok(count) = value.extract::<i64>() {
        return Ok(SqlValue::Integer(count));
    }
    match value.extract::<u64>() {
        Ok(address) => Ok(SqlValue::Integer(address as i64)),
        Err(_) => Err(PyTypeError::new_err(format!(
            "a parameter is None, an int of 64 bits, a float or a str, not {}",
            value.repr()?
        ))),
    }
}

/// The tables and their columns: `{table: {"about": …, "columns": {column: {"type": …, "about":
/// …}}}}`. Types are those of SQL.
///
///     >>> list(kernlane.tables()["switches"]["columns"])
///     ['start', 'cpu', 'from_task', 'from_pid', 'to_task', 'to_pid']
#[pyfunction]
pub(crate) fn tables(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for table in TABLES {
        let columns = PyDict::new(py);
        for column in table.columns {
            let about = PyDict::new(py);
            about.set_item("type", column.of.sql())?;
            about.set_item("about", column.about)?;
            columns.set_item(column.name, about)?;
        }
        let about = PyDict::new(py);
        about.set_item("about", table.about)?;
        about.set_item("columns", columns)?;
        all.set_item(table.name, about)?;
    }
    Ok(all)
}

/// The questions that have a name: `{name: {"about": …, "sql": …, "parameters": {parameter: {
/// "default": …, "about": …}}}}`. A parameter whose default is None needs a value.
///
///     >>> kernlane.questions()["top-calls"]["parameters"]["top"]["default"]
///     '20'
#[pyfunction]
pub(crate) fn questions(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for question in road::asked::questions().map_err(exception)? {
        let parameters = PyDict::new(py);
        for parameter in &question.parameters {
            let about = PyDict::new(py);
            about.set_item("default", &parameter.usual)?;
            about.set_item("about", &parameter.about)?;
            parameters.set_item(&parameter.name, about)?;
        }
        let about = PyDict::new(py);
        about.set_item("about", question.about)?;
        about.set_item("sql", question.sql)?;
        about.set_item("parameters", parameters)?;
        all.set_item(question.name, about)?;
    }
    Ok(all)
}

#[pymethods]
impl Recording {
    /// The directory of the recording.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// The kernel that was recorded: its build tree, its vmlinux or its System.map.
    #[getter]
    fn kernel(&self, py: Python<'_>) -> PyResult<PathBuf> {
        Ok(self.opened(py, Vec::new())?.kernel.clone())
    }

    /// Its conditions and totals, as `kernlane record --json` prints them.
    #[getter]
    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = run(py, || {
            let summary = RecordingSummary::read(&RecordingFiles::at(&self.path))?;
            Ok(serde_json::to_string(&summary)?)
        })?;
        from_json(py, &text)
    }

    /// Answers a question: SQL, or the name of a question (`kernlane.questions()`).
    ///
    /// `machines`: a machine or several, by name, file or `Machine`; `cycles` and `misses` are
    /// those of the first. Other keywords are values of the question's parameters: `:top` is
    /// `top=3`. Raises `Error` if the question is wrong.
    ///
    ///     >>> rec.ask("SELECT count(*) AS calls FROM calls WHERE function = :f", f="kfree").rows()
    ///     [{'calls': 51234}]
    #[pyo3(signature = (question, /, *, machines=None, **parameters))]
    fn ask(
        slf: PyRef<'_, Self>,
        question: &str,
        machines: Option<MachineInput>,
        parameters: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Answer> {
        let py = slf.py();
        ask(py, question, vec![("main".to_owned(), slf)], machines, parameters)
    }

    /// The recording with values that are read while its run is executed again.
    ///
    /// Each probe is written as for `kernlane ask --probe`; its rows have the name of its function.
    /// `workload`: the file of the workload, if it is no shipped one. `boot_image`: the kernel's,
    /// if it lies neither in a build tree nor where packages install it. Raises `Error` if a probe
    /// is wrong, or the run cannot be executed again.
    ///
    ///     >>> rec.probe("vfs_read(count=%rdx)").ask("SELECT max(count) FROM vfs_read").rows()
    ///     [{'max(count)': 131072}]
    #[pyo3(signature = (*probes, workload=None, boot_image=None))]
    fn probe(
        &self,
        py: Python<'_>,
        probes: Vec<String>,
        workload: Option<PathBuf>,
        boot_image: Option<PathBuf>,
    ) -> PyResult<Recording> {
        let asked = self.opened(py, Vec::new())?;
        let read = run(py, || {
            let probing = Probing {
                texts: &probes,
                workload: workload.as_deref(),
                boot_image: boot_image.as_deref(),
            };
            road::probed::probes(&asked, &probing)
        })?;
        Ok(Recording {
            path: self.path.clone(),
            kernel: self.kernel.clone(),
            annotations: self.annotations.clone(),
            probes: Some(read),
            opened: Mutex::default(),
        })
    }

    fn __repr__(&self) -> String {
        format!("<kernlane.Recording: {}>", self.path.display())
    }

    /// What the recording depends on: kernel, workload, seed, machine.
    #[pyo3(signature = (columns=None, machines=None))]
    fn conditions(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Conditions, columns, machines)
    }

    /// A row for each name and pid that ran.
    #[pyo3(signature = (columns=None, machines=None))]
    fn tasks(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Tasks, columns, machines)
    }

    /// A row for each switch from one task to another.
    #[pyo3(signature = (columns=None, machines=None))]
    fn switches(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Switches, columns, machines)
    }

    /// A row for each invocation of a service of the system, and each stay in user mode.
    #[pyo3(signature = (columns=None, machines=None))]
    fn services(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Services, columns, machines)
    }

    /// A row for each interrupt.
    #[pyo3(signature = (columns=None, machines=None))]
    fn interrupts(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Interrupts, columns, machines)
    }

    /// A row for each invocation of a function of the kernel.
    #[pyo3(signature = (columns=None, machines=None))]
    fn calls(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Calls, columns, machines)
    }

    /// A row for each function of the kernel, whether it ran or not.
    #[pyo3(signature = (columns=None, machines=None))]
    fn functions(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Functions, columns, machines)
    }

    /// A row for each basic block of vmlinux that ran.
    #[pyo3(signature = (columns=None, machines=None))]
    fn blocks(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Blocks, columns, machines)
    }

    /// A row for each execution of a branch.
    #[pyo3(signature = (columns=None, machines=None))]
    fn branches(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Branches, columns, machines)
    }

    /// A row for each load and store. Needs data accesses.
    #[pyo3(signature = (columns=None, machines=None))]
    fn accesses(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Accesses, columns, machines)
    }

    /// A row for each miss of a cache of the first level. Needs data accesses and a machine.
    #[pyo3(signature = (columns=None, machines=None))]
    fn misses(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Misses, columns, machines)
    }

    /// A row for each lock of the kernel. Needs data accesses and a machine with coherent
    /// caches.
    #[pyo3(signature = (columns=None, machines=None))]
    fn locks(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Locks, columns, machines)
    }

    /// A row for each time that an instruction with a probe was reached.
    #[pyo3(signature = (columns=None, machines=None))]
    fn probes(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        machines: Option<MachineInput>,
    ) -> PyResult<Answer> {
        self.table(py, TableId::Probes, columns, machines)
    }
}

/// Answers a question about several recordings, each with a name that stands in front of its
/// tables.
///
///     >>> kernlane.ask("SELECT (SELECT count(*) FROM before.calls) AS before, "
///     ...              "(SELECT count(*) FROM after.calls) AS after", before=a, after=b).rows()
#[pyfunction]
#[pyo3(name = "ask", signature = (question, /, *, machines=None, parameters=None, **recordings))]
pub(crate) fn ask_several(
    py: Python<'_>,
    question: &str,
    machines: Option<MachineInput>,
    parameters: Option<&Bound<'_, PyDict>>,
    recordings: Option<&Bound<'_, PyDict>>,
) -> PyResult<Answer> {
    let mut named = Vec::new();
    for (name, recording) in recordings.into_iter().flatten() {
        let recording = recording.cast_into::<Recording>().map_err(|_| {
            exception(anyhow!("{name} is no recording: open it with kernlane.open"))
        })?;
        let recording = recording.try_borrow().map_err(PyErr::from)?;
        named.push((name.extract()?, recording));
    }
    ask(py, question, named, machines, parameters)
}
