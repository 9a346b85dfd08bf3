//! `kernlane ask`: answers questions in SQL about recordings.
//!
//! Input: recordings, and a question or a shell's input. Output: an answer on standard output or in
//! a file.

mod shell;

use ::ask::form::{CsvAnswer, JsonAnswer, ParquetAnswer, TextAnswer};
use ::ask::named::{NamedQuestion, understood, value_of};
use ::ask::schema::{self, TABLES};
use ::ask::sql::{self, AskError, Database, SqlValue};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use execution::part::RecordingPart;
use host::outln;
use host::{output, stdout};
use road::opened::Opening;
use road::probed::Probing;
use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::command::record::warn_unlike;

/// Ask recordings anything, in SQL
///
/// Everything that Kernlane knows of a recording is a table: invocations of services and functions,
/// switches, interrupts, branches, accesses, misses with their cause, locks. The question is a
/// SELECT in the SQL of SQLite, or the name of a question that Kernlane or you have written down.
/// Rows are computed when the question needs them, by one walk over the recording; data may exceed
/// memory. Positions (`start`, `end`) count the instructions of the recording.
///
/// Several recordings have names, and the names stand in front of their tables: before.calls,
/// after.calls.
///
/// A Parquet file, or a directory of them, is a table too, under its own name or one that is given:
/// profiles of many machines (`kernlane export --format profile`) become one by GROUP BY.
///
/// Without a question, it opens a shell. A question on standard input is answered.
///
/// --probe reads values that a recording lacks: arguments, fields through pointers, variables,
/// return values, by their names in C. The run is executed again with the probe in it, which
/// changes nothing, and is compared with the recording. A second question with the same probes does
/// not run again.
///
/// --tables lists the tables and their columns. --list lists the named questions; your own lie in
/// $XDG_CONFIG_HOME/kernlane/queries (~/.config/kernlane/queries), a file NAME.sql for each.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane ask net.rec \"SELECT count(*) FROM calls WHERE function = 'tcp_v4_rcv'\"
  kernlane ask net.rec top-calls --set top=10
  kernlane ask net.rec tails --set function=tcp_v4_rcv
  kernlane ask net.rec --machine server-32k \"SELECT cause, count(*) FROM misses GROUP BY cause\"
  kernlane ask before=a.rec after=b.rec \"SELECT (SELECT count(*) FROM before.calls) AS before,
    (SELECT count(*) FROM after.calls) AS after\"
  kernlane ask net.rec \"SELECT * FROM services\" --parquet services.parquet
  kernlane ask net.rec --probe 'tcp_v4_rcv(skb->len, dev=skb->dev->name)'
    \"SELECT dev, count(*), sum(len) FROM tcp_v4_rcv GROUP BY dev\"
  kernlane ask net.rec --machine zen4 --probe 'path=from tcp_v4_rcv(skb) to tcp_recvmsg()'
    \"SELECT count(*), median(instructions), sum(cycles) FROM path\"
  kernlane ask fleet=profiles/ \"SELECT kind, count(*), sum(count) FROM fleet GROUP BY kind\"
  kernlane ask net.rec
  kernlane ask --tables")]
pub struct AskArgs {
    /// Recordings and Parquet files or directories of them, each with a name in front if there are
    /// several; then the question: SQL, or the name of a question
    #[arg(
        value_name = "[NAME=]RECORDING|QUESTION",
        required_unless_present_any = ["list", "tables"]
    )]
    pub inputs: Vec<String>,

    /// A value for a parameter of the question; may be given several times
    #[arg(long, short, value_name = "NAME=VALUE")]
    pub set: Vec<String>,

    /// Read values at an instruction, by executing the run again: 'vfs_read(count)', 'NAME=
    /// FUNCTION+OFFSET(%REGISTER)', 'FUNCTION%return($retval)', 'FILE.c:LINE(…)',
    /// 'tracepoint:NAME(…)', 'access:STRUCTURE.FIELD%write(…)', 'NAME=[SELECT start FROM …](…)'.
    /// The rows are those of a view with the name of the place. 'NAME=from PROBE to PROBE [by
    /// VALUE]' gives the intervals between two with their costs; may be given several times
    #[arg(long, short, value_name = "PROBE")]
    pub probe: Vec<String>,

    /// The file of the recordings' workload, for --probe, if it is no shipped one
    #[arg(long, value_name = "FILE.toml", requires = "probe")]
    pub workload: Option<PathBuf>,

    /// The recordings' boot image, for --probe, if it lies neither in a build tree nor in /boot
    #[arg(long, value_name = "FILE", requires = "probe")]
    pub boot_image: Option<PathBuf>,

    /// Print the answer as JSON: an array with an object for each row
    #[arg(long, group = "form")]
    pub json: bool,

    /// Print the answer as CSV
    #[arg(long, group = "form")]
    pub csv: bool,

    /// Write the answer to a Parquet file
    #[arg(long, group = "form", value_name = "FILE")]
    pub parquet: Option<PathBuf>,

    /// List the named questions
    #[arg(long)]
    pub list: bool,

    /// List the tables and their columns
    #[arg(long, conflicts_with = "list")]
    pub tables: bool,

    /// The kernel that was recorded: its build tree, its vmlinux, or its System.map [default: found
    /// by its build id: where it was recorded, in the cache, below /usr/lib/debug]
    #[arg(long, short, value_name = "TREE|VMLINUX|SYSTEM.MAP")]
    pub kernel: Option<PathBuf>,

    /// The machine of `misses`, and of the cycles and misses of `services`; one with coherent
    /// caches is also that of `locks` (server-8 otherwise)
    #[arg(long, short, value_name = "NAME|FILE.toml")]
    pub machine: Vec<String>,

    /// What the kernel's functions mean, instead of annotations/linux.toml
    #[arg(long, value_name = "FILE.toml")]
    pub annotations: Option<PathBuf>,
}

/// Answers the question, or opens the shell.
///
/// # Errors
/// A recording cannot be opened, or the question has no answer.
pub(crate) fn run(args: &AskArgs) -> Result<ExitCode> {
    if args.tables {
        return tables().map(|()| ExitCode::SUCCESS);
    }
    let questions = road::asked::questions()?;
    if args.list {
        return list(&questions).map(|()| ExitCode::SUCCESS);
    }
    let Inputs { recordings, tables, question } = inputs(&args.inputs)?;
    for (_, path) in &recordings {
        warn_unlike(path, &args.machine)?;
    }
    let opening = Opening {
        kernel: args.kernel.as_deref(),
        annotations: args.annotations.as_deref(),
        machines: &args.machine,
        part: RecordingPart::WHOLE,
    };
    let probing = Probing {
        texts: &args.probe,
        workload: args.workload.as_deref(),
        boot_image: args.boot_image.as_deref(),
    };
    let given: Values = args.set.iter().map(|it| parameter(it)).collect::<Result<_>>()?;
    let question = match question {
        Some(question) => question,
        None if io::stdin().is_terminal() => {
            let database = road::asked::open(&opening, &recordings, &tables, &probing)?;
            shell::run(&database, &questions)?;
            return Ok(ExitCode::SUCCESS);
        }
        None => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("the question on standard input")?;
            text
        }
    };
    // A wrong name is found before anything is opened.
    let (sql, values) = understood(&question, &questions, given)?;
    let database = road::asked::open(&opening, &recordings, &tables, &probing)?;
    let form = match (args.json, args.csv, &args.parquet) {
        (true, ..) => AnswerForm::Json,
        (_, true, _) => AnswerForm::Csv,
        (.., Some(path)) => AnswerForm::Parquet(path),
        _ => AnswerForm::Text,
    };
    answer(&database, &sql, &values, form)?;
    Ok(ExitCode::SUCCESS)
}

/// How an answer is written.
#[derive(Clone, Copy)]
enum AnswerForm<'a> {
    Text,
    Json,
    Csv,
    Parquet(&'a Path),
}

type Values = Vec<(String, SqlValue)>;

fn answer(database: &Database, sql: &str, values: &Values, form: AnswerForm<'_>) -> Result<()> {
    if let AnswerForm::Parquet(path) = form {
        return output::write_with(path, |out| {
            let mut answer = ParquetAnswer::new(out);
            database.ask(sql, values, &mut answer).map_err(plain)?;
            answer.finish()
        });
    }
    // An error of standard output ends the program in its own way.
    stdout::write_with(|out| {
        let answered = (|| match form {
            AnswerForm::Json => {
                let mut answer = JsonAnswer::new(out);
                database.ask(sql, values, &mut answer).map_err(plain)?;
                answer.finish()
            }
            AnswerForm::Csv => database.ask(sql, values, &mut CsvAnswer::new(out)).map_err(plain),
            _ => {
                let mut answer = TextAnswer::new(out);
                database.ask(sql, values, &mut answer).map_err(plain)?;
                answer.finish()
            }
        })();
        match answered {
            Ok(()) => Ok(Ok(())),
            Err(error) => match error.downcast::<io::Error>() {
                Ok(unwritten) => Err(unwritten),
                Err(error) => Ok(Err(error)),
            },
        }
    })?
}

/// The error of a table or of the output itself, so that what is known about it can be added.
fn plain(error: AskError) -> anyhow::Error {
    match error {
        AskError::Table(error) => error,
        other => other.into(),
    }
}

/// What is asked.
#[derive(Debug, Default, PartialEq, Eq)]
struct Inputs {
    /// Recordings by name.
    recordings: Vec<(String, PathBuf)>,
    /// Parquet files, or directories of them, by the name of their table.
    tables: Vec<(String, PathBuf)>,
    question: Option<String>,
}

/// Sorts the inputs. The question is the last one.
fn inputs(inputs: &[String]) -> Result<Inputs> {
    let mut recordings: Vec<(Option<String>, PathBuf)> = Vec::new();
    let mut tables: Vec<(Option<String>, PathBuf)> = Vec::new();
    let mut question = None;
    for (at, input) in inputs.iter().enumerate() {
        let named = input.split_once('=').filter(|(name, _)| sql::is_name(name));
        let (name, path) = match named {
            Some((name, path))
                if Path::new(path).exists() || !path.contains(char::is_whitespace) =>
            {
                ensure!(
                    Path::new(path).is_dir() || is_parquet(Path::new(path)),
                    "{path}: there is no such recording, and no such Parquet file"
                );
                (Some(name.to_owned()), PathBuf::from(path))
            }
            _ => (None, PathBuf::from(input)),
        };
        if is_table(&path) {
            tables.push((name, path));
        } else if path.is_dir() {
            recordings.push((name, path));
        } else {
            let is_last = at + 1 == inputs.len();
            ensure!(
                is_last && at > 0,
                "{input}: there is no such recording; the question stands behind the recordings"
            );
            question = Some(input.clone());
        }
    }
    ensure!(
        recordings.len() <= sql::MOST_RECORDINGS,
        "a question takes at most {} recordings",
        sql::MOST_RECORDINGS
    );
    if let [(name @ None, _)] = &mut recordings[..] {
        *name = Some("main".to_owned());
    }
    let mut names = BTreeSet::new();
    let mut with_names = |inputs: Vec<(Option<String>, PathBuf)>, what: &str| {
        let named = inputs.into_iter().map(|(name, path)| {
            let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            let name = name.or(stem.filter(|stem| sql::is_name(stem)));
            let name = name.filter(|name| names.insert(name.clone())).ok_or_else(|| {
                let path = path.display();
                anyhow!("{path}: give the {what} a name of its own in SQL: before={path}")
            })?;
            Ok((name, path))
        });
        named.collect::<Result<Vec<_>>>()
    };
    Ok(Inputs {
        recordings: with_names(recordings, "recording")?,
        tables: with_names(tables, "table")?,
        question,
    })
}

fn is_parquet(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|extension| extension == "parquet")
}

/// Whether a path is a Parquet file, or a directory of them.
fn is_table(path: &Path) -> bool {
    let files = || std::fs::read_dir(path).into_iter().flatten().flatten();
    is_parquet(path) || (path.is_dir() && files().any(|entry| is_parquet(&entry.path())))
}

/// `NAME=VALUE`.
fn parameter(text: &str) -> Result<(String, SqlValue)> {
    let Some((name, value)) = text.split_once('=') else {
        bail!("--set {text}: give NAME=VALUE");
    };
    Ok((name.to_owned(), value_of(value)))
}

fn list(questions: &[NamedQuestion]) -> Result<()> {
    for question in questions {
        outln!("{}\n    {}", question.name, question.about)?;
        for parameter in &question.parameters {
            let usual = parameter.usual.as_ref().map_or(String::new(), |it| format!(" = {it}"));
            outln!("    --set {}{usual}  {}", parameter.name, parameter.about)?;
        }
    }
    Ok(())
}

fn tables() -> Result<()> {
    for table in TABLES {
        table_text(table)?;
    }
    Ok(())
}

fn table_text(table: &schema::TableSchema) -> Result<()> {
    outln!("{}\n    {}", table.name, table.about)?;
    for column in table.columns {
        outln!("    {:<20} {:<8} {}", column.name, column.of.sql(), column.about)?;
    }
    outln!("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_have_names_and_the_question_stands_behind() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| {
            let path = home.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path.display().to_string()
        };
        let (a, b, odd) = (path("a.rec"), path("b.rec"), path("b-2.rec"));
        let one = inputs(&[a.clone(), "SELECT 1".to_owned()]).unwrap();
        assert_eq!(one.recordings, [("main".to_owned(), a.clone().into())]);
        assert_eq!(one.question.as_deref(), Some("SELECT 1"));
        let names = |named: &[(String, PathBuf)]| -> Vec<String> {
            named.iter().map(|(name, _)| name.clone()).collect()
        };
        let two = inputs(&[a.clone(), format!("after={b}")]).unwrap();
        assert_eq!(
            (names(&two.recordings), two.question),
            (vec!["a".into(), "after".into()], None)
        );
        // A directory of Parquet files, and one file.
        let fleet = path("fleet");
        let file = format!("{fleet}/one.parquet");
        std::fs::write(&file, "").unwrap();
        let tables = inputs(&[fleet.clone(), format!("x={file}"), "SELECT 1".to_owned()]).unwrap();
        assert_eq!(
            (names(&tables.tables), tables.recordings),
            (vec!["fleet".into(), "x".into()], vec![])
        );
        assert!(inputs(&[a.clone(), format!("main={fleet}")]).is_err());
        for (given, expected) in [
            (vec![a.clone(), odd], "name of its own"),
            (vec![a.clone(), a.clone()], "name of its own"),
            (vec!["SELECT 1".to_owned(), a.clone()], "no such recording"),
            (vec!["x=/nowhere.rec".to_owned()], "no such recording, and no such Parquet file"),
            (vec!["SELECT 1".to_owned()], "no such recording"),
        ] {
            let error = inputs(&given).unwrap_err().to_string();
            assert!(error.contains(expected), "{given:?}: {error}");
        }
    }
}
