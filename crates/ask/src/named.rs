//! Questions that have names: SQL in files, with a description and parameters in comments.
//!
//! ```sql
//! -- Functions by their own instructions.
//! -- :top = 20  How many rows
//! SELECT function, sum(own) FROM calls GROUP BY function ORDER BY 2 DESC LIMIT :top
//! ```
//!
//! Input: the shipped files, and a directory of the user's. Output: questions. A question of the
//! user's replaces a shipped one of the same name.

use crate::schema::lines;
use anyhow::{Context, Result, bail, ensure};
use rusqlite::types::Value;
use std::fmt::Write;
use std::path::Path;

/// A question with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedQuestion {
    /// The name of its file, without `.sql`.
    pub name: String,
    /// What it asks, in a line or more.
    pub about: String,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// The SQL.
    pub sql: String,
}

/// A parameter of a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name, without the colon.
    pub name: String,
    /// Its value, unless another one is given. `None`: one must be given.
    pub usual: Option<String>,
    /// What it says.
    pub about: String,
}

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        /// The shipped questions, by name.
        const SHIPPED: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../queries/", $name, ".sql")))),*];
    };
}

shipped!(
    "bursts",
    "busy-blocks",
    "callers",
    "hot-lines",
    "interrupted",
    "lock-waits",
    "offcpu",
    "pairs",
    "run-queue",
    "slow-services",
    "tails",
    "top-calls",
    "top-misses",
    "unused-functions",
);

impl NamedQuestion {
    /// Reads a question from the text of its file.
    ///
    /// # Errors
    /// The text has no description or no SQL, or a parameter is not described as it should be.
    pub fn parse(name: &str, text: &str) -> Result<NamedQuestion> {
        let mut about: Vec<&str> = Vec::new();
        let mut parameters = Vec::new();
        let mut rest = text;
        while let Some(line) = rest.lines().next() {
            let Some(comment) = line.trim().strip_prefix("--") else { break };
            match comment.trim().strip_prefix(':') {
                Some(parameter) => parameters.push(parse_parameter(parameter)?),
                None if parameters.is_empty() => about.push(comment.trim()),
                None => bail!("the description stands in front of the parameters"),
            }
            rest = rest.get(line.len()..).unwrap_or_default().trim_start_matches(['\r', '\n']);
        }
        let (about, sql) = (about.join(" "), rest.trim().trim_end_matches(';').to_owned());
        ensure!(!about.is_empty(), "a question begins with its description: -- What it asks");
        ensure!(!sql.is_empty(), "there is no SQL below the description");
        Ok(NamedQuestion { name: name.to_owned(), about, parameters, sql })
    }

    /// The values of its parameters. `given`: those that are not as usual.
    ///
    /// # Errors
    /// A parameter has no value, or the question does not have a given one.
    pub fn values(&self, given: &[(String, Value)]) -> Result<Vec<(String, Value)>> {
        for (name, _) in given {
            ensure!(
                self.parameters.iter().any(|parameter| parameter.name == *name),
                "{} has no parameter {name}{}",
                self.name,
                match &self.parameters[..] {
                    [] => String::new(),
                    all => format!("; it has {}", names(all)),
                }
            );
        }
        let value = |parameter: &Parameter| {
            let given = given.iter().rfind(|(name, _)| *name == parameter.name);
            let given = given.map(|(_, value)| value.clone());
            let value = given.or_else(|| parameter.usual.as_deref().map(value_of));
            let value = value.with_context(|| {
                format!("{} needs {}: {}", self.name, parameter.name, parameter.about)
            })?;
            Ok((parameter.name.clone(), value))
        };
        self.parameters.iter().map(value).collect()
    }
}

fn names(parameters: &[Parameter]) -> String {
    let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    names.join(", ")
}

/// There is no question of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no question is named {0:?}: give the name of a question, or SQL")]
pub struct UnknownQuestion(pub String);

/// The SQL of a question, and the values of its parameters. `question`: the name of one of
/// `questions`, or SQL.
///
/// # Errors
/// There is no such question ([`UnknownQuestion`]), a parameter of it has no value, or it does not
/// have a given one.
pub fn understood(
    question: &str,
    questions: &[NamedQuestion],
    given: Vec<(String, Value)>,
) -> Result<(String, Vec<(String, Value)>)> {
    let question = question.trim();
    if let Some(named) = questions.iter().find(|named| named.name == question) {
        return Ok((named.sql.clone(), named.values(&given)?));
    }
    ensure!(question.contains(char::is_whitespace), UnknownQuestion(question.to_owned()));
    Ok((question.to_owned(), given))
}

/// The value of a text: a number if it is one.
pub fn value_of(text: &str) -> Value {
    if let Ok(count) = text.parse() {
        return Value::Integer(count);
    }
    if let Some(address) = text.strip_prefix("0x").and_then(|it| u64::from_str_radix(it, 16).ok()) {
        return Value::Integer(address as i64);
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Value::Real(number),
        _ => Value::Text(text.to_owned()),
    }
}

/// `NAME = USUAL  ABOUT` or `NAME  ABOUT`.
fn parse_parameter(text: &str) -> Result<Parameter> {
    let (head, about) = text
        .split_once("  ")
        .with_context(|| format!("`:{text}` is not `:NAME = VALUE  what it says`"))?;
    let (name, usual) = match head.split_once('=') {
        None => (head.trim(), None),
        Some((name, usual)) => (name.trim(), Some(usual.trim().to_owned())),
    };
    let is_name = !name.is_empty() && name.chars().all(|it| it.is_alphanumeric() || it == '_');
    ensure!(is_name, "`{name}` is no name of a parameter");
    Ok(Parameter { name: name.to_owned(), usual, about: about.trim().to_owned() })
}

/// The shipped questions as a page of the book.
///
/// # Errors
/// A shipped file is not a question.
pub fn to_markdown() -> Result<String> {
    let about = lines(
        "Kernlane ships these questions. Each is a file of SQL, and so are your own, in \
         `~/.config/kernlane/queries`: copy a file below to begin with. A question of yours takes \
         the place of a shipped one of the same name.",
    );
    let mut page = format!(
        "# Named questions\n\n*For all users, when you [ask a recording](../how-to/ask.md) what \
         others have asked before.*\n\n{about}\n"
    );
    for (name, text) in SHIPPED {
        let question = NamedQuestion::parse(name, text).with_context(|| format!("{name}.sql"))?;
        let _ = write!(page, "\n## {name}\n\n{}\n", lines(&question.about));
        if !question.parameters.is_empty() {
            page.push_str("\n| Parameter | usual | Meaning |\n|---|---|---|\n");
        }
        for Parameter { name, usual, about } in &question.parameters {
            let usual = usual.as_ref().map_or(String::new(), |usual| format!("`{usual}`"));
            let _ = writeln!(page, "| `{name}` | {usual} | {about} |");
        }
        let _ = write!(page, "\n```sql\n{text}```\n");
    }
    Ok(page)
}

/// All questions, by name. `own`: the user's directory, which need not exist.
///
/// # Errors
/// The directory or a file in it cannot be read, or a file is not a question.
pub fn all(own: Option<&Path>) -> Result<Vec<NamedQuestion>> {
    let mut all: Vec<NamedQuestion> = Vec::new();
    for (name, text) in SHIPPED {
        all.push(NamedQuestion::parse(name, text).with_context(|| format!("{name}.sql"))?);
    }
    if let Some(own) = own.filter(|own| own.is_dir()) {
        let named = || own.display().to_string();
        for entry in std::fs::read_dir(own).with_context(named)? {
            let path = entry.with_context(named)?.path();
            let name = path.file_stem().and_then(|name| name.to_str());
            let Some(name) = name.filter(|_| path.extension().is_some_and(|it| it == "sql")) else {
                continue;
            };
            let text = std::fs::read_to_string(&path).map_err(anyhow::Error::from);
            let question = text.and_then(|text| NamedQuestion::parse(name, &text));
            let question = question.with_context(|| path.display().to_string())?;
            all.retain(|shipped| shipped.name != question.name);
            all.push(question);
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_shipped_question() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/questions.md");
        let page = to_markdown().unwrap();
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), page, "BLESS=1 writes it");
        let files = concat!(env!("CARGO_MANIFEST_DIR"), "/queries");
        let files = std::fs::read_dir(files).unwrap().count();
        assert_eq!(files, SHIPPED.len(), "each file is shipped");
    }

    #[test]
    fn a_question_has_a_description_parameters_and_sql() {
        let text = "-- Calls of a function.\n-- In order.\n-- :function  Its name\n\
            -- :top = 20  How many\nSELECT 1;\n";
        let question = NamedQuestion::parse("x", text).unwrap();
        assert_eq!(question.about, "Calls of a function. In order.");
        assert_eq!(question.sql, "SELECT 1");
        let missing = question.values(&[]).unwrap_err().to_string();
        assert_eq!(missing, "x needs function: Its name");
        let given = [("function".to_owned(), Value::Text("vfs_read".to_owned()))];
        let values = question.values(&given).unwrap();
        assert_eq!(values[0].1, Value::Text("vfs_read".to_owned()));
        assert_eq!(values[1], ("top".to_owned(), Value::Integer(20)));
        let unknown = question.values(&[("limit".to_owned(), Value::Null)]).unwrap_err();
        assert_eq!(unknown.to_string(), "x has no parameter limit; it has function, top");
    }

    #[test]
    fn a_word_is_a_name_and_a_text_is_sql() {
        let questions = all(None).unwrap();
        let (sql, values) = understood("top-calls", &questions, Vec::new()).unwrap();
        assert!(sql.starts_with("SELECT") && values.len() == 1);
        let unknown = understood("top-cals", &questions, Vec::new()).unwrap_err();
        assert!(unknown.is::<UnknownQuestion>());
        assert_eq!(understood(" SELECT 1 ", &questions, Vec::new()).unwrap().0, "SELECT 1");
    }

    #[test]
    fn what_is_no_question_is_refused() {
        for (text, expected) in [
            ("SELECT 1", "begins with its description"),
            ("-- About.\n", "no SQL"),
            ("-- About.\n-- :top\nSELECT 1", "is not"),
            ("-- About.\n-- :a b = 1  x\nSELECT 1", "no name"),
        ] {
            let error = NamedQuestion::parse("x", text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn values_are_numbers_if_they_look_so() {
        assert_eq!(value_of("12"), Value::Integer(12));
        assert_eq!(value_of("0xffffffff81000000"), Value::Integer(-0x7f00_0000));
        assert_eq!(value_of("1.5"), Value::Real(1.5));
        assert_eq!(value_of("inf"), Value::Text("inf".to_owned()));
    }

    #[test]
    fn a_directory_of_the_user_adds_and_replaces() {
        let own = tempfile::tempdir().unwrap();
        std::fs::write(own.path().join("top-calls.sql"), "-- Mine.\nSELECT 1").unwrap();
        std::fs::write(own.path().join("new.sql"), "-- New.\nSELECT 2").unwrap();
        std::fs::write(own.path().join("notes.txt"), "no question").unwrap();
        let all = super::all(Some(own.path())).unwrap();
        assert_eq!(all.len(), SHIPPED.len() + 1);
        let mine = all.iter().find(|question| question.name == "top-calls").unwrap();
        assert_eq!(mine.about, "Mine.");
    }
}
