//! SQL on the tables of recordings: a thin user of [`crate::produce`].
//!
//! Input: recordings by name, a question. Output: rows, to an [`AnswerSink`]. A question that reads
//! one table once streams it. Any other question gets its tables first: one walk for each recording
//! fills them, on disk, with only the columns and rows that the question needs. Questions read; no
//! statement writes, attaches or changes a setting.

mod files;
mod functions;
mod plan;
mod sorted;
mod stored;
mod table;

use crate::recording::AskedRecording;
use crate::schema::{ColumnType, TABLES};
use crate::words::{FUNCTIONS, Vocabulary};
pub use files::FileTable;
use functions::add_functions;
use plan::{Plan, PlanLog, Scans};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
pub use rusqlite::types::{Value as SqlValue, ValueRef as SqlValueRef};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OpenFlags, Statement, ffi};
use std::sync::{Arc, Mutex};

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The text of the question is wrong, at this byte.
    #[error("{}", wrong_text(message, sql, *at))]
    Text {
        /// What is wrong.
        message: String,
        /// The question.
        sql: String,
        /// The byte at which it is wrong, if it is known.
        at: Option<usize>,
    },
    /// The statement does more than read.
    #[error("{0}: questions only read, with SELECT")]
    Writes(String),
    /// A parameter has no value.
    #[error("the parameter {0} has no value")]
    NoValue(String),
    /// The name of a recording or of a table of files cannot be used.
    #[error(
        "{0:?} cannot name a recording or a table: take letters, digits and _, and no word of SQL"
    )]
    Name(String),
    /// SQLite failed while it worked.
    #[error("the answer cannot be computed: {0}")]
    Engine(String),
    /// A table cannot be made.
    #[error(transparent)]
    Table(#[from] anyhow::Error),
}

/// The message, and the line with a mark below the place.
fn wrong_text(message: &str, sql: &str, at: Option<usize>) -> String {
    let Some(at) = at.filter(|at| *at <= sql.len() && sql.is_char_boundary(*at)) else {
        return message.to_owned();
    };
    let first = sql[..at].rfind('\n').map_or(0, |end| end + 1);
    let line = sql[first..].lines().next().unwrap_or_default();
    let column = sql[first..at].chars().count();
    let number = sql[..at].matches('\n').count() + 1;
    format!("line {number}, column {}: {message}\n  {line}\n  {}^", column + 1, " ".repeat(column))
}

/// A column of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerColumn {
    /// Its name.
    pub name: String,
    /// The type of the table's column that it is; `None` for what is computed. SQL gives a type to
    /// each value, so other values may come, with UNION.
    pub of: Option<ColumnType>,
}

impl AnswerColumn {
    /// Whether its values are addresses.
    pub fn is_address(&self) -> bool {
        self.of == Some(ColumnType::Address)
    }
}

/// Receives an answer.
pub trait AnswerSink {
    /// The columns. Called once, before the first row.
    ///
    /// # Errors
    /// The answer cannot be written.
    fn columns(&mut self, columns: &[AnswerColumn]) -> anyhow::Result<()>;

    /// The next row, with a value for each column.
    ///
    /// # Errors
    /// The answer cannot be written.
    fn row(&mut self, row: &[ValueRef<'_>]) -> anyhow::Result<()>;
}

/// What the connections share.
pub(crate) struct Shared {
    /// The recordings, by the number in their virtual tables.
    recordings: Vec<(String, Arc<AskedRecording>)>,
    /// The tables of files.
    files: Vec<(String, Arc<FileTable>)>,
    log: Mutex<PlanLog>,
}

impl Shared {
    fn log(&self) -> std::sync::MutexGuard<'_, PlanLog> {
        // A poisoned log is one of a question that failed; the next one starts a new log.
        self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Recordings that can be asked.
pub struct Database {
    shared: Arc<Shared>,
    /// Has the virtual tables.
    streaming: Connection,
}

impl Database {
    /// Recordings and tables of files, by name. One recording may have the name `main`: its tables
    /// need no name in front.
    ///
    /// # Errors
    /// A name cannot be used, or SQLite cannot start.
    pub fn open(
        recordings: Vec<(String, Arc<AskedRecording>)>,
        files: Vec<(String, FileTable)>,
    ) -> Result<Database, AskError> {
        let files = files.into_iter().map(|(name, table)| (name, Arc::new(table))).collect();
        let shared = Arc::new(Shared { recordings, files, log: Mutex::new(PlanLog::default()) });
        let streaming = connection(&shared)?;
        table::add_module(&streaming, &shared)?;
        for (number, (name, _)) in shared.recordings.iter().enumerate() {
            for table in TABLES {
                let sql = format!(
                    "CREATE VIRTUAL TABLE {name}.{table} USING recorded({number}, {table})",
                    table = table.name
                );
                streaming.execute_batch(&sql)?;
            }
        }
        add_views(&streaming, &shared)?;
        let mut database = Database { shared, streaming };
        guard(&mut database.streaming, &database.shared)?;
        Ok(database)
    }

    /// The version of the engine.
    pub fn engine() -> &'static str {
        rusqlite::version()
    }

    /// The number of recordings.
    pub fn recordings(&self) -> usize {
        self.shared.recordings.len()
    }

    /// The names that a question can use.
    pub fn vocabulary(&self) -> Vocabulary {
        let mut vocabulary = Vocabulary::default();
        for (name, table) in &self.shared.files {
            let columns = table.columns.iter().map(|(column, _)| column.clone());
            vocabulary.views.push((name.clone(), columns.collect()));
        }
        for (name, recording) in &self.shared.recordings {
            vocabulary.recordings.push(name.clone());
            let views = recording.views().into_iter();
            vocabulary.views.extend(views.map(|view| (view.name, view.columns)));
            let symbols = recording.attribution.symbols.iter();
            vocabulary.functions.extend(symbols.filter_map(|it| it.base_name().map(str::to_owned)));
        }
        vocabulary.functions.sort_unstable();
        vocabulary.functions.dedup();
        vocabulary
    }

    /// Answers a question. `values`: those of its parameters, by their names without the colon.
    ///
    /// # Errors
    /// The question is wrong, does more than read, or a table cannot be made.
    pub fn ask(
        &self,
        sql: &str,
        values: &[(String, Value)],
        answer: &mut dyn AnswerSink,
    ) -> Result<(), AskError> {
        *self.shared.log() = PlanLog::default();
        if sql.trim().is_empty() {
            return Err(text_error("there is no question", sql, None));
        }
        let mut statement = self.prepare(&self.streaming, sql)?;
        let plan = self.shared.log().take_plan();
        if statement.is_explain() != 0 || self.scans(sql)? == Scans::One {
            return self.run(&mut statement, values, answer);
        }
        drop(statement);
        let stored = self.store(&plan)?;
        let mut statement = self.prepare(&stored, sql)?;
        self.run(&mut statement, values, answer)
    }

    fn prepare<'c>(&self, on: &'c Connection, sql: &str) -> Result<Statement<'c>, AskError> {
        let wrong = |error: rusqlite::Error| {
            if let Some(denied) = self.shared.log().denied.take() {
                return AskError::Writes(denied);
            }
            // What SQLite says of virtual tables that only read, before it asks whether it may.
            if error.to_string().contains("may not be modified") {
                return AskError::Writes("this statement".to_owned());
            }
            match error {
                rusqlite::Error::MultipleStatement => {
                    text_error("there is more than one statement: ask one question", sql, None)
                }
                rusqlite::Error::SqlInputError { msg, offset, .. } => {
                    let at = usize::try_from(offset).ok();
                    text_error(&self.with_suggestion(&msg), sql, at)
                }
                rusqlite::Error::SqliteFailure(_, Some(message)) => {
                    text_error(&self.with_suggestion(&message), sql, None)
                }
                other => other.into(),
            }
        };
        let statement = on.prepare(sql).map_err(wrong)?;
        if !statement.readonly() {
            return Err(AskError::Writes("this statement".to_owned()));
        }
        if statement.column_count() == 0 {
            return Err(text_error("there is no question", sql, None));
        }
        Ok(statement)
    }

    /// Adds the nearest name to a message about an unknown one.
    fn with_suggestion(&self, message: &str) -> String {
        let Some((what, unknown)) = message.split_once(": ") else { return message.to_owned() };
        let unknown = unknown.rsplit('.').next().unwrap_or(unknown);
        let unknown = unknown.split_whitespace().next().unwrap_or(unknown);
        let recordings = self.shared.recordings.iter();
        let views = recordings.flat_map(|(_, recording)| recording.views());
        let views: Vec<String> = views.map(|view| view.name).collect();
        let known: Vec<&str> = match what {
            "no such table" => {
                let files = self.shared.files.iter().map(|(name, _)| name.as_str());
                let tables = TABLES.iter().map(|table| table.name).chain(files);
                tables.chain(views.iter().map(String::as_str)).collect()
            }
            "no such column" => {
                let files = self.shared.files.iter().flat_map(|(_, table)| &table.columns);
                let recorded = TABLES.iter().flat_map(|table| table.columns);
                let recorded = recorded.map(|column| column.name);
                recorded.chain(files.map(|(name, _)| name.as_str())).collect()
            }
            "no such function" => FUNCTIONS.to_vec(),
            _ => return message.to_owned(),
        };
        let near = known.into_iter().map(|name| (distance(unknown, name), name)).min();
        match near {
            Some((steps, name)) if steps <= 1 + unknown.len() / 3 => {
                format!("{message}; the nearest name is {name}")
            }
            _ => message.to_owned(),
        }
    }

    /// How often the question reads virtual tables.
    fn scans(&self, sql: &str) -> Result<Scans, AskError> {
        let mut explain = self.streaming.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
        let mut steps = Vec::new();
        let mut rows = explain.raw_query();
        while let Some(row) = rows.next()? {
            steps.push(plan::Step {
                id: row.get(0)?,
                parent: row.get(1)?,
                detail: row.get::<_, String>(3)?,
            });
        }
        Ok(plan::scans(&steps))
    }

    fn run(
        &self,
        statement: &mut Statement<'_>,
        values: &[(String, Value)],
        answer: &mut dyn AnswerSink,
    ) -> Result<(), AskError> {
        for at in 1..=statement.parameter_count() {
            let name = statement.parameter_name(at).unwrap_or("?").to_owned();
            let known = name.get(1..).unwrap_or_default();
            let value = values.iter().find(|(given, _)| given == known);
            let (_, value) = value.ok_or_else(|| AskError::NoValue(name.clone()))?;
            statement.raw_bind_parameter(at, value)?;
        }
        let columns: Vec<AnswerColumn> = statement
            .columns()
            .map(|column| AnswerColumn {
                name: column.name().to_owned(),
                of: column.decl_type().and_then(ColumnType::of_sql),
            })
            .collect();
        answer.columns(&columns)?;
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next().map_err(|error| self.failed(error))? {
            let cells = (0..columns.len()).map(|at| row.get_ref(at));
            let cells: Vec<ValueRef<'_>> = cells.collect::<Result<_, _>>()?;
            answer.row(&cells)?;
        }
        Ok(())
    }

    /// A virtual table's own error says more than SQLite's.
    fn failed(&self, error: rusqlite::Error) -> AskError {
        match self.shared.log().failure.take() {
            Some(failure) => AskError::Table(failure),
            None => error.into(),
        }
    }

    /// Fills the tables that a plan reads.
    fn store(&self, plan: &Plan) -> Result<Connection, AskError> {
        let mut stored = connection(&self.shared)?;
        stored::fill(&mut stored, &self.shared, plan)?;
        add_views(&stored, &self.shared)?;
        guard(&mut stored, &self.shared)?;
        Ok(stored)
    }
}

/// Makes a view for each probe.
fn add_views(connection: &Connection, shared: &Shared) -> Result<(), AskError> {
    for (schema, recording) in &shared.recordings {
        for view in recording.views() {
            connection.execute_batch(&view.statement(schema))?;
        }
    }
    Ok(())
}

fn text_error(message: &str, sql: &str, at: Option<usize>) -> AskError {
    AskError::Text { message: message.to_owned(), sql: sql.to_owned(), at }
}

impl From<rusqlite::Error> for AskError {
    fn from(error: rusqlite::Error) -> AskError {
        let text = match &error {
            rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
            _ => error.to_string(),
        };
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::OperationInterrupted) => {
                AskError::Engine("it was interrupted".to_owned())
            }
            Some(rusqlite::ErrorCode::DiskFull) => AskError::Engine(format!(
                "{text}: the tables that the question needs are kept in a temporary file; ask for \
                 fewer columns or a part of the rows, or set SQLITE_TMPDIR to a larger directory"
            )),
            _ => AskError::Engine(text),
        }
    }
}

/// The steps of SQLite's machine between two looks at whether the user has interrupted: about a
/// millisecond.
const STEPS: i32 = 100_000;

/// An empty database on disk, without a name. SQLite removes it when the connection ends. It has a
/// schema for each recording.
fn connection(shared: &Arc<Shared>) -> Result<Connection, AskError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags("", flags)?;
    connection.execute_batch(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA temp_store = FILE; \
         PRAGMA cache_size = -131072;",
    )?;
    for (name, _) in &shared.recordings {
        if !is_name(name) {
            return Err(AskError::Name(name.clone()));
        }
        if name == "main" {
            continue;
        }
        let attached = connection.execute_batch(&format!("ATTACH '' AS {name}"));
        attached.map_err(|_| AskError::Name(name.clone()))?;
        connection.execute_batch(&format!(
            "PRAGMA {name}.journal_mode = OFF; PRAGMA {name}.synchronous = OFF;"
        ))?;
    }
    for (name, _) in &shared.files {
        if !is_name(name) {
            return Err(AskError::Name(name.clone()));
        }
    }
    files::add(&connection, shared).map_err(|error| match &shared.files[..] {
        [] => AskError::from(error),
        // Words of SQL, and two tables of one name.
        [.., (name, _)] => AskError::Name(name.clone()),
    })?;
    add_functions(&connection, shared)?;
    // Sorting and counting need no walk, which would end by itself.
    connection.progress_handler(STEPS, Some(|| host::interrupt::check().is_err()))?;
    Ok(connection)
}

/// Whether a text can name a recording or a table of files.
pub fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        && !text.eq_ignore_ascii_case("temp")
}

/// Allows only reading, and notes what is read and what is refused.
fn guard(connection: &mut Connection, shared: &Arc<Shared>) -> Result<(), AskError> {
    let shared = shared.clone();
    let decide = move |context: AuthContext<'_>| match context.action {
        AuthAction::Select | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Function { function_name } if function_name != "load_extension" => {
            Authorization::Allow
        }
        AuthAction::Read { table_name, column_name } => {
            let database = context.database_name.unwrap_or("main");
            shared.log().reads(database, table_name, column_name);
            Authorization::Allow
        }
        ref other => {
            shared.log().denied.get_or_insert_with(|| named(other));
            Authorization::Deny
        }
    };
    connection.authorizer(Some(decide))?;
    // SQLite's own limit of a statement, 1 GB, is more than a question needs.
    connection.set_limit(rusqlite::limits::Limit::SQLITE_LIMIT_SQL_LENGTH, 1 << 20)?;
    connection.set_limit(rusqlite::limits::Limit::SQLITE_LIMIT_ATTACHED, ATTACHED)?;
    let defensive = rusqlite::config::DbConfig::SQLITE_DBCONFIG_DEFENSIVE;
    connection.set_db_config(defensive, true)?;
    Ok(())
}

/// SQLite's own limit.
const ATTACHED: i32 = 10;
/// The most recordings in one question.
pub const MOST_RECORDINGS: usize = ATTACHED as usize;

/// The words for an action that is refused.
fn named(action: &AuthAction<'_>) -> String {
    let debug = format!("{action:?}");
    let name = debug.split([' ', '{', '(']).next().unwrap_or_default();
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(letter.to_ascii_uppercase());
    }
    words
}

/// The number of letters to insert, remove or replace.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = (0..=b.len()).collect();
    for (row, letter) in a.chars().enumerate() {
        let mut now = vec![row + 1];
        for (column, other) in b.iter().enumerate() {
            let replaced = before[column] + usize::from(letter != *other);
            now.push(replaced.min(before[column + 1] + 1).min(now[column] + 1));
        }
        before = now;
    }
    before[b.len()]
}

/// SQLite's code for an error of a virtual table.
pub(crate) fn module_error() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_ERROR), None)
}

#[cfg(test)]
mod tests;
