//! Parquet files as a virtual table, for questions about profiles of many machines.
//!
//! Input: files that have the same columns. Output: their rows, one file after the other, with only
//! the columns that the question needs; or, for a question that groups them, in the order of the
//! groups. Memory holds one group of rows of one file, and what the sorter keeps.

use super::sorted::{MEMORY, RowSorter, SortedRows};
use super::{Shared, module_error};
use crate::schema::{ColumnType, quoted};
use anyhow::{Context as _, Result as AnyResult, bail, ensure};
use parquet::basic::Type as PhysicalType;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use rusqlite::ffi;
use rusqlite::types::{Null, ToSqlOutput, Value, ValueRef};
use rusqlite::vtab::{
    Context, CreateVTab, DistinctMode, Filters, IndexInfo, Module, VTab, VTabConnection,
    VTabCursor, VTabKind,
};
use rusqlite::{Connection, Result};
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Parquet files that are one table.
#[derive(Debug)]
pub struct FileTable {
    files: Vec<PathBuf>,
    /// The names and types of the columns.
    pub(super) columns: Vec<(String, ColumnType)>,
}

impl FileTable {
    /// The table of a file, or of all Parquet files of a directory. Each must have the columns of
    /// the first one, which is opened here.
    ///
    /// # Errors
    /// There is no file, or the first one is damaged or has columns that are not numbers or text.
    pub fn open(path: &Path) -> AnyResult<FileTable> {
        let named = || path.display().to_string();
        let mut files = Vec::new();
        match path.is_dir() {
            false => files.push(path.to_owned()),
            true => {
                for entry in std::fs::read_dir(path).with_context(named)? {
                    let file = entry.with_context(named)?.path();
                    if file.extension().is_some_and(|extension| extension == "parquet") {
                        files.push(file);
                    }
                }
            }
        }
        files.sort();
        let first = files.first().with_context(|| format!("{}: no Parquet files", named()))?;
        let columns = columns(&opened(first)?).with_context(|| first.display().to_string())?;
        Ok(FileTable { files, columns })
    }

    fn to_sql(&self) -> String {
        let columns =
            self.columns.iter().map(|(name, of)| format!("{} {}", quoted(name), of.sql()));
        format!("CREATE TABLE files({})", columns.collect::<Vec<_>>().join(", "))
    }
}

fn opened(path: &Path) -> AnyResult<SerializedFileReader<File>> {
    let named = || path.display().to_string();
    let file = File::open(path).with_context(named)?;
    SerializedFileReader::new(file).with_context(named)
}

/// The columns of a file.
fn columns(file: &SerializedFileReader<File>) -> AnyResult<Vec<(String, ColumnType)>> {
    let schema = file.metadata().file_metadata().schema();
    let of_field = |field: &Arc<Type>| {
        let name = field.name();
        ensure!(field.is_primitive(), "the column {name} is nested: make plain columns of it");
        let of = match field.get_physical_type() {
            PhysicalType::BOOLEAN | PhysicalType::INT32 | PhysicalType::INT64 => ColumnType::Count,
            PhysicalType::FLOAT | PhysicalType::DOUBLE => ColumnType::Real,
            PhysicalType::BYTE_ARRAY => ColumnType::Text,
            other => bail!("the column {name} is of the type {other}, which is not read"),
        };
        Ok((name.to_owned(), of))
    };
    schema.get_fields().iter().map(of_field).collect()
}

/// Makes the virtual tables known, and creates them.
pub(super) fn add(connection: &Connection, shared: &Arc<Shared>) -> Result<()> {
    const MODULE: &Module<'static, FilesVTab> = &Module::read_only_module();
    connection.create_module(c"files", MODULE, Some(shared.clone()))?;
    for (number, (name, _)) in shared.files.iter().enumerate() {
        connection.execute_batch(&format!("CREATE VIRTUAL TABLE {name} USING files({number})"))?;
    }
    Ok(())
}

#[repr(C)]
struct FilesVTab {
    base: ffi::sqlite3_vtab,
    shared: Arc<Shared>,
    table: Arc<FileTable>,
}

// SAFETY: the type is repr(C) and begins with a `sqlite3_vtab`, as SQLite asks.
unsafe impl<'vtab> VTab<'vtab> for FilesVTab {
    type Aux = Arc<Shared>;
    type Cursor = FilesCursor;

    fn connect(
        _: &mut VTabConnection,
        aux: Option<&Arc<Shared>>,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        args: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, FilesVTab)> {
        let number = args.first().and_then(|text| std::str::from_utf8(text).ok());
        let number: Option<usize> = number.and_then(|number| number.trim().parse().ok());
        let table = aux.and_then(|shared| shared.files.get(number?));
        let (Some(shared), Some((_, table))) = (aux, table) else { return Err(module_error()) };
        let sql = CString::new(table.to_sql()).map_err(|_| module_error())?;
        let base = ffi::sqlite3_vtab::default();
        let vtab = FilesVTab { base, shared: shared.clone(), table: table.clone() };
        Ok((Cow::Owned(sql), vtab))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let mut plan = format!("{:x}", info.col_used());
        let groups = groups(info);
        groups.iter().for_each(|column| plan += &format!(" {column}"));
        info.set_idx_str(&plan);
        info.set_order_by_consumed(!groups.is_empty());
        // Every scan reads all files.
        info.set_estimated_cost(1e9);
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<FilesCursor> {
        Ok(FilesCursor {
            base: ffi::sqlite3_vtab_cursor::default(),
            shared: self.shared.clone(),
            table: self.table.clone(),
            wanted: Vec::new(),
            next_file: 0,
            rows: None,
            row: None,
            grouped: None,
            rowid: -1,
        })
    }
}

/// The columns by which the question groups rows, if ascending order serves. A question that only
/// orders rows may need the first ones alone, which SQLite keeps in memory.
fn groups(info: &IndexInfo) -> Vec<usize> {
    let mut columns = Vec::new();
    for order in info.order_bys() {
        match usize::try_from(order.column()) {
            Ok(column) if !order.is_order_by_desc() => columns.push(column),
            _ => return Vec::new(),
        }
    }
    match info.distinct() {
        DistinctMode::Grouped => columns,
        _ => Vec::new(),
    }
}

impl CreateVTab<'_> for FilesVTab {
    const KIND: VTabKind = VTabKind::Default;
}

#[repr(C)]
struct FilesCursor {
    base: ffi::sqlite3_vtab_cursor,
    shared: Arc<Shared>,
    table: Arc<FileTable>,
    /// For each column its number in the rows that are read.
    wanted: Vec<Option<usize>>,
    next_file: usize,
    rows: Option<RowIter<'static>>,
    row: Option<Row>,
    /// All rows, for a question that groups them.
    grouped: Option<GroupedRows>,
    rowid: i64,
}

/// Rows in the order of some columns.
struct GroupedRows {
    rows: SortedRows,
    /// By column, the place of its value in a row.
    places: Vec<usize>,
    row: Option<Vec<Value>>,
}

impl FilesCursor {
    /// Reads the next row; none behind the last file.
    fn advance(&mut self) -> AnyResult<()> {
        self.row = None;
        self.rowid += 1;
        if let Some(grouped) = &mut self.grouped {
            grouped.row = grouped.rows.next()?;
            return Ok(());
        }
        loop {
            if let Some(rows) = &mut self.rows {
                if let Some(row) = rows.next() {
                    let file = &self.table.files[self.next_file - 1];
                    self.row = Some(row.with_context(|| file.display().to_string())?);
                    return Ok(());
                }
                self.rows = None;
            }
            let Some(file) = self.table.files.get(self.next_file) else { return Ok(()) };
            self.next_file += 1;
            self.rows = Some(self.rows_of(file)?);
        }
    }

    fn rows_of(&self, path: &Path) -> AnyResult<RowIter<'static>> {
        let file = opened(path)?;
        let found = columns(&file).with_context(|| path.display().to_string())?;
        ensure!(
            found == self.table.columns,
            "{}: it has other columns than {}",
            path.display(),
            self.table.files[0].display()
        );
        let schema = file.metadata().file_metadata().schema();
        let fields = schema.get_fields().iter().zip(&self.wanted);
        let fields = fields.filter(|(_, wanted)| wanted.is_some()).map(|(field, _)| field.clone());
        let projected = Type::group_type_builder(schema.name()).with_fields(fields.collect());
        let projected = projected.build()?;
        RowIter::from_file_into(Box::new(file))
            .project(Some(projected))
            .with_context(|| path.display().to_string())
    }

    /// The value of a wanted column.
    fn value(&self, column: usize) -> AnyResult<ValueRef<'_>> {
        let number = self.wanted.get(column).copied().flatten();
        let field = number.zip(self.row.as_ref());
        let Some((name, field)) = field.and_then(|(at, row)| row.get_column_iter().nth(at)) else {
            return Ok(ValueRef::Null);
        };
        Ok(match field {
            Field::Null => ValueRef::Null,
            Field::Str(text) => ValueRef::Text(text.as_bytes()),
            Field::Bool(is) => ValueRef::Integer((*is).into()),
            Field::Byte(number) => ValueRef::Integer((*number).into()),
            Field::Short(number) => ValueRef::Integer((*number).into()),
            Field::Int(number) => ValueRef::Integer((*number).into()),
            Field::Long(number) => ValueRef::Integer(*number),
            Field::UByte(number) => ValueRef::Integer((*number).into()),
            Field::UShort(number) => ValueRef::Integer((*number).into()),
            Field::UInt(number) => ValueRef::Integer((*number).into()),
            Field::ULong(number) => ValueRef::Integer(
                i64::try_from(*number)
                    .with_context(|| format!("the column {name}: {number} has 64 bits"))?,
            ),
            Field::Float(number) => ValueRef::Real((*number).into()),
            Field::Double(number) => ValueRef::Real(*number),
            other => bail!("the column {name}: {other} is no number and no text"),
        })
    }

    /// Reads all rows, to give them in the order of these columns.
    fn group(&mut self, groups: &[usize]) -> AnyResult<()> {
        let columns = 0..self.table.columns.len();
        let others = columns.clone().filter(|column| !groups.contains(column));
        let order: Vec<usize> = groups.iter().copied().chain(others).collect();
        let mut sorter = RowSorter::new(MEMORY);
        while self.row.is_some() {
            let row = order.iter().map(|&column| self.value(column));
            sorter.push(row.collect::<AnyResult<Vec<_>>>()?.into_iter())?;
            self.advance()?;
        }
        let place = |column| order.iter().position(|at| *at == column).unwrap_or_default();
        let places = columns.map(place).collect();
        self.grouped = Some(GroupedRows { rows: sorter.finish()?, places, row: None });
        self.rowid = -1;
        self.advance()
    }

    /// An error of a file says more than SQLite's.
    fn told(&self, outcome: AnyResult<()>) -> Result<()> {
        outcome.map_err(|error| {
            self.shared.log().failure = Some(error);
            module_error()
        })
    }
}

// SAFETY: the type is repr(C) and begins with a `sqlite3_vtab_cursor`, as SQLite asks.
unsafe impl VTabCursor for FilesCursor {
    fn filter(&mut self, _: c_int, plan: Option<&str>, _: &Filters<'_>) -> Result<()> {
        let mut words = plan.unwrap_or_default().split_whitespace();
        let used = words.next().and_then(|used| u64::from_str_radix(used, 16).ok());
        let used = used.unwrap_or(u64::MAX);
        let groups: Vec<usize> = words.filter_map(|column| column.parse().ok()).collect();
        let mut count = 0;
        self.wanted = (0..self.table.columns.len())
            .map(|column| {
                // The last bit stands for all columns from there on. Rows that are only counted
                // need one column.
                let is_used = used >> column.min(63) & 1 == 1 || (used == 0 && column == 0);
                let number = count;
                count += usize::from(is_used);
                is_used.then_some(number)
            })
            .collect();
        (self.next_file, self.rows, self.grouped, self.rowid) = (0, None, None, -1);
        let mut outcome = self.advance();
        if !groups.is_empty() {
            outcome = outcome.and_then(|()| self.group(&groups));
        }
        self.told(outcome)
    }

    fn next(&mut self) -> Result<()> {
        let outcome = self.advance();
        self.told(outcome)
    }

    fn eof(&self) -> bool {
        match &self.grouped {
            Some(grouped) => grouped.row.is_none(),
            None => self.row.is_none(),
        }
    }

    fn column(&self, context: &mut Context, column: c_int) -> Result<()> {
        let column = column as usize;
        if let Some(grouped) = &self.grouped {
            let value = grouped.places.get(column).and_then(|&at| grouped.row.as_ref()?.get(at));
            return match value {
                Some(value) => context.set_result(value),
                None => context.set_result(Null),
            };
        }
        match self.value(column) {
            Ok(value) => context.set_result(ToSqlOutput::Borrowed(value)),
            Err(error) => self.told(Err(error)),
        }
    }

    fn rowid(&self) -> Result<i64> {
        Ok(self.rowid)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AskError, Database};
    use super::*;
    use crate::form::{CsvAnswer, ParquetAnswer};

    #[test]
    fn a_question_that_groups_rows_needs_no_sorter_of_sqlite() {
        let directory = tempfile::tempdir().unwrap();
        write(&directory.path().join("a.parquet"), "SELECT 'one' AS kind, 3 AS count");
        let plan = |sql: &str| ask(directory.path(), &format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let found = plan("SELECT kind, sum(count) FROM fleet GROUP BY kind");
        assert!(!found.contains("USE TEMP B-TREE"), "{found}");
        let found = plan("SELECT kind, sum(count) FROM fleet GROUP BY kind COLLATE NOCASE");
        assert!(found.contains("USE TEMP B-TREE FOR GROUP BY"), "{found}");
        // The first rows alone fit into memory.
        let found = plan("SELECT kind FROM fleet ORDER BY count LIMIT 1");
        assert!(found.contains("USE TEMP B-TREE FOR ORDER BY"), "{found}");
    }

    /// A Parquet file with what a question answers.
    fn write(path: &Path, sql: &str) {
        let database = Database::open(Vec::new(), Vec::new()).unwrap();
        let mut bytes = Vec::new();
        let mut answer = ParquetAnswer::new(&mut bytes);
        database.ask(sql, &[], &mut answer).unwrap();
        answer.finish().unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    fn ask(path: &Path, sql: &str) -> Result<String, AskError> {
        let table = FileTable::open(path).map_err(AskError::Table)?;
        let database = Database::open(Vec::new(), vec![("fleet".to_owned(), table)])?;
        let mut csv = Vec::new();
        database.ask(sql, &[], &mut CsvAnswer::new(&mut csv))?;
        Ok(String::from_utf8(csv).unwrap().replace("\r\n", "\n"))
    }

    #[test]
    fn files_of_a_directory_are_one_table() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        write(&path("b.parquet"), "SELECT 'one' AS kind, 3 AS count, 0.5 AS part");
        write(
            &path("a.parquet"),
            "SELECT 'one' AS kind, 4 AS count, 1.5 AS part UNION ALL SELECT 'two', NULL, NULL",
        );
        std::fs::write(path("_SUCCESS"), "").unwrap();
        let asked = |sql: &str| ask(directory.path(), sql).unwrap();
        let sums = "SELECT kind, sum(count) AS count FROM fleet GROUP BY kind ORDER BY kind";
        assert_eq!(asked(sums), "kind,count\none,7\ntwo,\n");
        assert_eq!(asked("SELECT count(*) AS rows FROM fleet"), "rows\n3\n");
        assert_eq!(asked("SELECT part FROM fleet WHERE kind = 'one'"), "part\n1.5\n0.5\n");
        let backwards = sums.to_owned() + " DESC";
        assert_eq!(asked(&backwards), "kind,count\ntwo,\none,7\n");
        let parts = "SELECT count, kind FROM fleet GROUP BY part, count, kind";
        assert_eq!(asked(parts), "count,kind\n,two\n3,one\n4,one\n");
        let distinct = "SELECT count(DISTINCT count) AS counts FROM fleet GROUP BY kind";
        assert_eq!(asked(distinct), "counts\n2\n0\n");
        // Read again and again.
        let twice = "SELECT count(*) AS pairs FROM fleet AS a, fleet AS b WHERE a.kind = b.kind";
        assert_eq!(asked(twice), "pairs\n5\n");
        assert_eq!(ask(&path("b.parquet"), "SELECT count FROM fleet").unwrap(), "count\n3\n");
    }

    #[test]
    fn wrong_files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let error = |sql: &str| ask(directory.path(), sql).unwrap_err().to_string();
        assert!(error("SELECT 1").contains("no Parquet files"));
        write(&path("a.parquet"), "SELECT 'one' AS kind, 3 AS count");
        write(&path("b.parquet"), "SELECT 3 AS count, 'one' AS kind");
        let other = error("SELECT sum(count) FROM fleet");
        assert!(other.contains("b.parquet: it has other columns than"), "{other}");
        let bytes = std::fs::read(path("a.parquet")).unwrap();
        for cut in [0, 4, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(path("b.parquet"), &bytes[..cut]).unwrap();
            assert!(error("SELECT sum(count) FROM fleet").contains("b.parquet"));
        }
        let unknown = error("SELECT * FROM flet");
        assert!(unknown.contains("the nearest name is fleet"), "{unknown}");
        assert!(error("DELETE FROM fleet").contains("questions only read"));
    }
}
