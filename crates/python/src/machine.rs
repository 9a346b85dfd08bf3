//! Machines as objects whose numbers can be changed.
//!
//! Input: a machine's file. Output: its tables as dictionaries of Python, and back: the model that
//! is simulated. `machines` checks the model when it is used.

use crate::work::exception;
use anyhow::{Context, Result, anyhow, bail};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString};
use road::machines::{self, Machine as MachineFile};
use sim::MachineModel;
use std::path::PathBuf;
use toml::{Table, Value};

/// The source of a number that a program has set.
const SET: &str = "set in Python";

/// A machine whose numbers can be changed: the tables of its file, as dictionaries.
///
/// `what`: the name of a shipped machine, or the path of a file. A changed machine needs a name of
/// its own, because results name the machine. It is checked when it is used.
///
///     >>> machine = kernlane.Machine("server-32k")
///     >>> machine["l1i"]["size"]
///     32768
///     >>> machine["name"] = "server-64k"
///     >>> machine["l1i"]["size"] = 65536
///     >>> kernlane.replay(rec, machines=["server-32k", machine])
#[pyclass(frozen, module = "kernlane", mapping)]
pub(crate) struct Machine {
    /// As its file describes it.
    file: MachineFile,
    tables: Py<PyDict>,
}

impl Machine {
    /// The text of a file with the numbers as they are now. A number that was changed has a source
    /// that says so.
    fn text(&self, py: Python<'_>) -> Result<String> {
        let original: Table = self.file.text.parse().context("the machine's file")?;
        let mut table = Table::new();
        for (key, value) in self.tables.bind(py) {
            let key: String = key.extract().map_err(|_| anyhow!("a key is no text"))?;
            let value =
                toml_value(&value, original.get(&key), true).with_context(|| key.clone())?;
            table.insert(key, value);
        }
        Ok(toml::to_string(&table)?)
    }

    /// The machine as it is now.
    fn current(&self, py: Python<'_>) -> Result<MachineFile> {
        let name = &self.file.model.name;
        let machine = MachineFile::parse(&self.text(py)?, &format!("Machine({name:?})"))?;
        if machine.model != self.file.model && machine.model.name == *name {
            bail!(
                "the machine {name} was changed: give it a name of its own, machine[\"name\"] = \
                 \"{name}-changed\""
            );
        }
        Ok(machine)
    }
}

/// A value of a machine's file: a table, a list of tables, or a number without its source.
fn python_value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Table(table) => match sourced(table) {
            Some(value) => python_value(py, value)?,
            None => python_table(py, table)?.into_any(),
        },
        Value::Array(all) => {
            let all = all.iter().map(|value| python_value(py, value));
            PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)?.into_any()
        }
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Integer(count) => count.into_pyobject(py)?.into_any(),
        Value::Float(number) => PyFloat::new(py, *number).into_any(),
        Value::Boolean(is) => PyBool::new(py, *is).to_owned().into_any(),
        Value::Datetime(time) => PyString::new(py, &time.to_string()).into_any(),
    })
}

fn python_table<'py>(py: Python<'py>, table: &Table) -> PyResult<Bound<'py, PyDict>> {
    let dictionary = PyDict::new(py);
    for (key, value) in table {
        dictionary.set_item(key, python_value(py, value)?)?;
    }
    Ok(dictionary)
}

/// The value of `{ value = …, source = … }`.
fn sourced(table: &Table) -> Option<&Value> {
    table.get("value").filter(|_| table.len() == 2 && table.contains_key("source"))
}

/// The value for a file. `original`: the one that stood there; its source is kept if the value is
/// the same. `is_top`: names and summaries, which have no source.
fn toml_value(value: &Bound<'_, PyAny>, original: Option<&Value>, is_top: bool) -> Result<Value> {
    if let Ok(dictionary) = value.cast::<PyDict>() {
        let mut table = Table::new();
        for (key, value) in dictionary {
            let key: String = key.extract().map_err(|_| anyhow!("a key is no text"))?;
            let before = original.and_then(|original| original.get(&key));
            let value = toml_value(&value, before, false).with_context(|| key.clone())?;
            table.insert(key, value);
        }
        return Ok(Value::Table(table));
    }
    if let Ok(list) = value.cast::<PyList>()
        && list.iter().any(|value| value.is_instance_of::<PyDict>())
    {
        let one = |(at, value): (usize, Bound<'_, PyAny>)| {
            toml_value(&value, original.and_then(|original| original.get(at)), false)
        };
        return Ok(Value::Array(list.iter().enumerate().map(one).collect::<Result<_>>()?));
    }
    let plain = plain_value(value)?;
    if is_top {
        return Ok(plain);
    }
    let original = original.and_then(Value::as_table);
    if let Some(original) = original.filter(|original| sourced(original) == Some(&plain)) {
        return Ok(Value::Table(original.clone()));
    }
    let source = Value::String(SET.to_owned());
    Ok(Value::Table(Table::from_iter([("value".to_owned(), plain), ("source".to_owned(), source)])))
}

fn plain_value(value: &Bound<'_, PyAny>) -> Result<Value> {
    if let Ok(is) = value.cast::<PyBool>() {
        return Ok(Value::Boolean(is.is_true()));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Value::String(text.to_string()));
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(Value::Float(number.value()));
    }
    if let Ok(list) = value.cast::<PyList>() {
        return Ok(Value::Array(list.iter().map(|it| plain_value(&it)).collect::<Result<_>>()?));
    }
    if value.is_instance_of::<PyInt>() || value.hasattr("__index__").unwrap_or(false) {
        let count = value.extract().map_err(|_| anyhow!("{value} does not fit into 64 bits"))?;
        return Ok(Value::Integer(count));
    }
    bail!("{value} is neither a number, a text, a list nor a dictionary")
}

#[pymethods]
impl Machine {
    #[new]
    fn new(py: Python<'_>, what: PathBuf) -> PyResult<Machine> {
        let file = machines::find(&what.to_string_lossy()).map_err(exception)?;
        let table: Table = file.text.parse().map_err(|error: toml::de::Error| {
            exception(anyhow::Error::from(error).context(what.display().to_string()))
        })?;
        let tables = python_table(py, &table)?.unbind();
        Ok(Machine { file, tables })
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        self.tables.bind(py).as_any().get_item(key)
    }

    fn __setitem__(&self, py: Python<'_>, key: &str, value: Bound<'_, PyAny>) -> PyResult<()> {
        self.tables.bind(py).set_item(key, value)
    }

    fn __delitem__(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        self.tables.bind(py).del_item(key)
    }

    fn __contains__(&self, py: Python<'_>, key: &str) -> PyResult<bool> {
        self.tables.bind(py).contains(key)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.tables.bind(py).len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.tables.bind(py).as_any().try_iter().map(Bound::into_any)
    }

    /// The names of the machine's tables, with `name` and `summary`.
    fn keys<'py>(&self, py: Python<'py>) -> Bound<'py, PyList> {
        self.tables.bind(py).keys()
    }

    /// The text of a machine's file, which `kernlane --machine` takes too. A number that was
    /// changed has the source "set in Python". Raises `Error` if no such machine can be built.
    ///
    ///     >>> pathlib.Path("server-64k.toml").write_text(machine.to_toml())
    fn to_toml(&self, py: Python<'_>) -> PyResult<String> {
        self.current(py).map(|machine| machine.text).map_err(exception)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<kernlane.Machine: {}>", self.__getitem__(py, "name")?))
    }
}

/// The machines that an argument names: one, or several.
pub(crate) struct MachineInput(Vec<MachineFile>);

impl MachineInput {
    /// The machines.
    pub(crate) fn files(self) -> Vec<MachineFile> {
        self.0
    }

    /// The models.
    pub(crate) fn models(input: Option<MachineInput>) -> Vec<MachineModel> {
        input.map_or_else(Vec::new, |input| input.0.into_iter().map(|it| it.model).collect())
    }
}

impl<'py> FromPyObject<'_, 'py> for MachineInput {
    type Error = PyErr;

    fn extract(input: Borrowed<'_, 'py, PyAny>) -> PyResult<MachineInput> {
        if let Some(one) = machine(&input)? {
            return Ok(MachineInput(vec![one]));
        }
        let mut all = Vec::new();
        for input in input.try_iter()? {
            let input = input?;
            all.push(machine(&input)?.ok_or_else(|| {
                let what = "a machine is the name of one, the path of a file, or a Machine, not";
                PyTypeError::new_err(format!("{what} {input}"))
            })?);
        }
        Ok(MachineInput(all))
    }
}

/// One machine; `None` if the value is none.
fn machine(value: &Bound<'_, PyAny>) -> PyResult<Option<MachineFile>> {
    if let Ok(machine) = value.cast::<Machine>() {
        return machine.get().current(value.py()).map(Some).map_err(exception);
    }
    match value.extract::<PathBuf>() {
        Ok(name) => machines::find(&name.to_string_lossy()).map(Some).map_err(exception),
        Err(_) => Ok(None),
    }
}
