//! The shell of `kernlane ask`: a question after the other.
//!
//! Input: lines of a terminal. Output: answers. A question ends with `;`.

use super::{AnswerForm, answer, list, table_text, tables};
use ::ask::named::{NamedQuestion, understood};
use ::ask::schema::{self, TABLES};
use ::ask::sql::Database;
use anyhow::{Context, Result};
use host::{note, out, outln, stdout};
use std::io;

const HELP: &str = "A question is a SELECT that ends with ; or the name of a question, with values
behind it (tails function=vfs_read).
.tables        lists the tables
.schema TABLE  lists the columns of a table, or those of all tables
.list          lists the named questions
.quit          ends the shell, as Ctrl-D does";

/// Answers questions until the user has no more.
///
/// # Errors
/// The terminal cannot be read, or standard output cannot be written.
pub(super) fn run(database: &Database, questions: &[NamedQuestion]) -> Result<()> {
    outln!("SQL on {} recording(s); .help says more", database.recordings())?;
    let mut question = String::new();
    loop {
        out!("{}", if question.is_empty() { "ask> " } else { "...> " })?;
        stdout::finish()?;
        let mut line = String::new();
        if io::stdin().read_line(&mut line).context("the terminal cannot be read")? == 0 {
            return outln!("");
        }
        question.push_str(&line);
        if !is_whole(&question, questions) {
            continue;
        }
        let line = std::mem::take(&mut question);
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [] => {}
            [".quit" | ".exit"] => return Ok(()),
            [".help"] => outln!("{HELP}")?,
            [".list"] => list(questions)?,
            [".tables"] => {
                TABLES.iter().try_for_each(|it| outln!("{:<12} {}", it.name, it.about))?;
            }
            [".schema"] => tables()?,
            [".schema", name] => match schema::named(name.trim_end_matches(';')) {
                Some(table) => table_text(table)?,
                None => note!("there is no table {name}; .tables lists them"),
            },
            [command, ..] if command.starts_with('.') => {
                note!("{command} is no command; .help lists them");
            }
            _ => {
                if let Err(error) = ask(database, questions, &line) {
                    note!("{error:#}");
                }
            }
        }
    }
}

/// Whether the lines so far are a whole question.
fn is_whole(lines: &str, questions: &[NamedQuestion]) -> bool {
    let lines = lines.trim();
    let first = lines.split_whitespace().next().unwrap_or_default();
    lines.ends_with(';')
        || lines.starts_with('.')
        || !lines.contains(char::is_whitespace)
        || questions.iter().any(|question| question.name == first)
}

fn ask(database: &Database, questions: &[NamedQuestion], line: &str) -> Result<()> {
    let line = line.trim().trim_end_matches(';').trim_end();
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let (sql, values) = match questions.iter().any(|question| question.name == first) {
        true => {
            let given = words.map(super::parameter).collect::<Result<Vec<_>>>()?;
            understood(first, questions, given)?
        }
        false => understood(line, questions, Vec::new())?,
    };
    answer(database, &sql, &values, AnswerForm::Text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_ends_with_a_semicolon() {
        let questions = ::ask::named::all(None).unwrap();
        for (lines, expected) in [
            ("SELECT 1\n", false),
            ("SELECT 1\nFROM calls;\n", true),
            (".tables\n", true),
            ("top-calls\n", true),
            ("tails function=vfs_read\n", true),
            ("\n", true),
        ] {
            assert_eq!(is_whole(lines, &questions), expected, "{lines}");
        }
    }
}
