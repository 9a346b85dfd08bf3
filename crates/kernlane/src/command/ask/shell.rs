//! The shell of `kernlane ask`: a question after the other.
//!
//! Input: lines of a terminal. Output: answers. A question ends with `;`. Lines are edited,
//! completed by Tab, and kept from one shell to the next.

use super::{AnswerForm, answer, list, table_text, tables};
use ::ask::named::{NamedQuestion, understood};
use ::ask::schema::{self, TABLES};
use ::ask::sql::Database;
use ::ask::words::{Offer, Vocabulary};
use anyhow::{Context as _, Result};
use host::{note, outln, stdout};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor, Helper, Highlighter, Hinter};
use std::path::PathBuf;

const HELP: &str = "A question is a SELECT that ends with ; or the name of a question, with values
behind it (tails function=vfs_read). Tab completes names; the arrows find earlier questions.
.tables        lists the tables
.schema TABLE  lists the columns of a table, or those of all tables
.list          lists the named questions
.quit          ends the shell, as Ctrl-D does";

const COMMANDS: [&str; 5] = [".help", ".list", ".quit", ".schema", ".tables"];

/// How many earlier questions are kept.
const KEPT: usize = 1000;

/// Answers questions until the user has no more.
///
/// # Errors
/// The terminal cannot be read, or standard output cannot be written.
pub(super) fn run(database: &Database, questions: &[NamedQuestion]) -> Result<()> {
    outln!("SQL on {} recording(s); .help says more", database.recordings())?;
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .max_history_size(KEPT)
        .and_then(|config| config.history_ignore_dups(true));
    let config = config.context("the terminal")?.build();
    let mut editor: Editor<Questions, FileHistory> =
        Editor::with_config(config).context("the terminal cannot be edited on")?;
    editor.set_helper(Some(Questions { vocabulary: database.vocabulary(), questions }));
    let kept = history_file();
    if let Some(path) = &kept {
        // A first shell has none.
        let _ = editor.load_history(path);
    }
    loop {
        stdout::finish()?;
        let line = match editor.readline("ask> ") {
            Ok(line) => line,
            // Ctrl-C gives up the line, as in other shells.
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return outln!(""),
            Err(error) => return Err(error).context("the terminal cannot be read"),
        };
        if !line.trim().is_empty() {
            editor.add_history_entry(line.trim()).context("the terminal")?;
            keep(&mut editor, kept.as_deref());
        }
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

/// Where earlier questions are kept: `$XDG_STATE_HOME/kernlane/questions`, or below
/// `~/.local/state`.
fn history_file() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = variable("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".local/state")))?;
    Some(state.join("kernlane/questions"))
}

/// Writes the earlier questions down. A shell without a home goes on without.
fn keep(editor: &mut Editor<Questions<'_>, FileHistory>, path: Option<&std::path::Path>) {
    let Some(path) = path else { return };
    let written = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .map_err(ReadlineError::from)
        .and_then(|()| editor.append_history(path));
    drop(written);
}

/// What the editor asks about a line.
#[derive(Helper, Highlighter, Hinter)]
struct Questions<'a> {
    vocabulary: Vocabulary,
    questions: &'a [NamedQuestion],
}

impl Completer for Questions<'_> {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let Offer { start, words } = self.offer(&line[..position]);
        Ok((start, words))
    }
}

impl Questions<'_> {
    /// What may stand at the end of a text: a command or a named question only at its beginning.
    fn offer(&self, text: &str) -> Offer {
        if let Some(table) = text.strip_prefix(".schema ") {
            let words = TABLES.iter().map(|it| it.name.to_owned());
            let words = words.filter(|name| name.starts_with(table)).collect();
            return Offer { start: text.len() - table.len(), words };
        }
        let mut offer = self.vocabulary.at_end_of(text);
        if !text.contains(char::is_whitespace) {
            let named = self.questions.iter().map(|question| question.name.as_str());
            let own = named.chain(COMMANDS).filter(|name| name.starts_with(text));
            let own: Vec<String> = own.map(str::to_owned).collect();
            if !own.is_empty() {
                // Names of questions have hyphens, so they begin where the text does.
                offer.words.retain(|_| offer.start == 0);
                offer.start = 0;
                offer.words.extend(own);
            }
        }
        offer
    }
}

impl Validator for Questions<'_> {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_whole(context.input(), self.questions) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
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

    #[test]
    fn tab_offers_commands_questions_and_names() {
        let questions = ::ask::named::all(None).unwrap();
        let vocabulary =
            Vocabulary { functions: vec!["vfs_read".to_owned()], ..Vocabulary::default() };
        let shell = Questions { vocabulary, questions: &questions };
        let words = |text: &str| shell.offer(text).words;
        assert_eq!(words(".t"), [".tables"]);
        assert_eq!(shell.offer(".schema swi"), Offer { start: 8, words: vec!["switches".into()] });
        assert_eq!(words("top-c"), ["top-calls"]);
        assert_eq!(shell.offer("top-c").start, 0);
        assert!(
            words("t").contains(&"tails".to_owned()) && words("t").contains(&"tasks".to_owned())
        );
        assert_eq!(words("SELECT * FROM calls WHERE function = 'vfs"), ["vfs_read"]);
    }
}
