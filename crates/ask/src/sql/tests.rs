//! Questions about small executions written by hand.

use super::*;
use crate::form::CsvAnswer;
use crate::recording::AskedRecording;
use execution::part::RecordingPart;
use services::Attribution;
use services::calls::ROOT;
use services::examples::{ExampleRun, USER, at, halted, kernel};
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

/// Faults in user mode and in a system call, and calls of one function by several.
fn faults() -> ExampleRun {
    let fault = at("asm_exc_page_fault");
    let rmap = at("folio_add_new_anon_rmap");
    let mut run = ExampleRun::new();
    run.left(USER, 10, 3).call(fault, 2, "folio_add_new_anon_rmap");
    run.ret(rmap, 5).iret(fault + 6, 3).user(10);
    run.enter_read().left(at("__x64_sys_read"), 5, 2).call(fault, 2, "do_wp_page");
    run.call(at("do_wp_page"), 2, "folio_add_new_anon_rmap").ret(rmap, 5);
    run.ret(at("do_wp_page") + 6, 1).iret(fault + 6, 3);
    run.plain(at("__x64_sys_read") + 1, 4).leave_read().user(1);
    run
}

/// Turns that end in a system call and in user mode: a stay there goes on after the turn.
fn two_cpus() -> ExampleRun {
    let read = at("__x64_sys_read");
    let mut run = ExampleRun::default();
    run.switch(1, "sh").user(3).enter_read().plain(read, 5);
    run.cpu(1).switch(2, "cat").user(4);
    run.cpu(0).plain(read + 1, 4).leave_read().user(6);
    run.cpu(1).user(2).enter_read().plain(read, 5);
    run.cpu(0).user(1);
    run
}

fn asked(directory: &Path, run: &ExampleRun) -> Arc<AskedRecording> {
    std::fs::write(directory.join("trace.klt"), run.recording()).unwrap();
    let (symbols, binding) = kernel();
    Arc::new(AskedRecording {
        path: directory.to_owned(),
        kernel: directory.join("System.map"),
        attribution: Attribution {
            symbols,
            binding,
            machines: Vec::new(),
            part: RecordingPart::WHOLE,
        },
        lock_machine: None,
        modules: Vec::new(),
        probes: None,
    })
}

/// A database of one recording, and its directory.
fn database(run: &ExampleRun) -> (Database, TempDir) {
    let home = tempfile::tempdir().unwrap();
    let recording = asked(home.path(), run);
    (Database::open(vec![("main".to_owned(), recording)], Vec::new()).unwrap(), home)
}

fn answer(database: &Database, sql: &str) -> Result<String, AskError> {
    let mut csv = Vec::new();
    database.ask(sql, &[], &mut CsvAnswer::new(&mut csv))?;
    let text = String::from_utf8(csv).unwrap();
    Ok(text.split_once("\r\n").unwrap().1.replace("\r\n", "\n"))
}

fn error(database: &Database, sql: &str) -> String {
    words(answer(database, sql).unwrap_err())
}

/// The error with its causes.
fn words(error: AskError) -> String {
    match error {
        AskError::Table(error) => format!("{error:#}"),
        other => other.to_string(),
    }
}

#[test]
fn services_are_those_of_the_report() {
    for run in [faults(), halted(), two_cpus()] {
        let (database, _home) = database(&run);
        let sql = "SELECT kind, service, count(*), sum(instructions) FROM services \
                   GROUP BY kind, service";
        let mut found: Vec<String> =
            answer(&database, sql).unwrap().lines().map(Into::into).collect();
        let expected = run.services().into_iter().map(|(kind, name, calls, instructions)| {
            format!("{},{name},{calls},{instructions}", kind.title())
        });
        let mut expected: Vec<String> = expected.collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }
}

#[test]
fn calls_are_those_of_the_chains() {
    for run in [faults(), halted()] {
        let (_, tree, _) = run.observed();
        let mut expected: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (node, cost) in tree.services.iter().flat_map(|service| &service.costs) {
            if *node != ROOT {
                let function = tree.nodes[node.0 as usize].function as usize;
                let (calls, own) = expected.entry(&tree.functions[function]).or_default();
                (*calls, *own) = (*calls + cost.calls, *own + cost.instructions);
            }
        }
        let expected: String =
            expected.iter().map(|(name, (calls, own))| format!("{name},{calls},{own}\n")).collect();
        let (database, _home) = database(&run);
        let sql = "SELECT function, sum(entered), sum(own) FROM calls GROUP BY 1 ORDER BY 1";
        assert_eq!(answer(&database, sql).unwrap(), expected);
    }
}

#[test]
fn a_call_knows_its_caller_its_place_and_what_it_cost() {
    let (database, _home) = database(&faults());
    let sql = "SELECT function, caller, start, \"end\", depth, own, inclusive FROM calls \
               WHERE function IN ('do_wp_page', 'folio_add_new_anon_rmap') ORDER BY start";
    // 3 instructions of the user, 2 of the fault; then 3 and 10, and 5 + 2 + 2 of the system call.
    assert_eq!(
        answer(&database, sql).unwrap(),
        "folio_add_new_anon_rmap,asm_exc_page_fault,5,10,1,5,5\n\
         do_wp_page,asm_exc_page_fault,32,40,1,3,8\n\
         folio_add_new_anon_rmap,do_wp_page,34,39,2,5,5\n"
    );
    // The fault within the system call does not count as one of its calls.
    let sql = "SELECT inclusive, \"end\" - start FROM calls WHERE function = '__x64_sys_read'";
    assert_eq!(answer(&database, sql).unwrap(), "7,20\n");
}

#[test]
fn joins_read_each_table_once() {
    let (database, _home) = database(&faults());
    let sql = "SELECT s.service, c.function, p.function FROM calls c \
               JOIN services s ON s.id = c.service_id LEFT JOIN calls p ON p.id = c.parent \
               WHERE s.kind = 'page fault' ORDER BY c.start";
    assert_eq!(
        answer(&database, sql).unwrap(),
        "demand zero,asm_exc_page_fault,\n\
         demand zero,folio_add_new_anon_rmap,asm_exc_page_fault\n\
         copy on write,asm_exc_page_fault,\n\
         copy on write,do_wp_page,asm_exc_page_fault\n\
         copy on write,folio_add_new_anon_rmap,do_wp_page\n"
    );
    let sql = "SELECT (SELECT count(*) FROM calls), (SELECT count(*) FROM services)";
    assert_eq!(answer(&database, sql).unwrap(), "8,6\n");
    let sql = "SELECT function FROM functions f WHERE executions > 0 AND NOT EXISTS \
               (SELECT 1 FROM calls c WHERE c.caller = f.function) ORDER BY 1";
    assert_eq!(answer(&database, sql).unwrap(), "__x64_sys_read\nfolio_add_new_anon_rmap\n");
}

#[test]
fn columns_of_using_are_read() {
    let (database, _home) = database(&faults());
    let all = answer(&database, "SELECT count(*) FROM calls").unwrap();
    assert_ne!(all, "0\n");
    for sql in [
        "SELECT count(*) FROM calls a JOIN calls b USING (id)",
        "SELECT count(*) FROM calls a JOIN calls b USING (start, function) WHERE a.id = b.id",
        "SELECT count(*) FROM calls a NATURAL JOIN (SELECT id FROM calls) b",
    ] {
        assert_eq!(answer(&database, sql).unwrap(), all, "{sql}");
    }
}

#[test]
fn other_tables() {
    let (database, _home) = database(&halted());
    let sql = "SELECT start, from_task, to_task FROM switches ORDER BY start";
    let switches = answer(&database, sql).unwrap();
    assert_eq!(switches.lines().count(), 3, "{switches}");
    assert!(switches.lines().last().unwrap().ends_with("swapper/0,sh"), "{switches}");
    let sql = "SELECT interrupt, kind, task FROM interrupts";
    let interrupts = answer(&database, sql).unwrap();
    assert!(interrupts.ends_with(",swapper/0\n"), "{interrupts}");
    let sql = "SELECT sum(instructions), sum(kernel_instructions) > 0 FROM tasks";
    let all = "SELECT sum(instructions), 1 FROM services";
    assert_eq!(answer(&database, sql).unwrap(), answer(&database, all).unwrap());
    let sql = "SELECT kind, sum(taken) FROM branches WHERE function = '__switch_to' GROUP BY 1";
    assert_eq!(answer(&database, sql).unwrap(), "return,2\n");
    let sql = "SELECT count(*) FROM functions WHERE executions = 0";
    assert_ne!(answer(&database, sql).unwrap(), "0\n");
}

#[test]
fn constants_go_down_to_the_rows() {
    let (database, _home) = database(&faults());
    for (sql, expected) in [
        ("SELECT count(*) FROM calls WHERE start >= 32 AND start < 35", "2\n"),
        ("SELECT count(*) FROM calls WHERE start > 31.5 AND start <= 34", "2\n"),
        ("SELECT count(*) FROM calls WHERE function = 5", "0\n"),
        ("SELECT count(*) FROM calls WHERE function = 'DO_WP_PAGE' COLLATE NOCASE", "1\n"),
        ("SELECT count(*) FROM calls WHERE parent IS NULL", "3\n"),
        ("SELECT count(*) FROM calls WHERE pid = '1'", "8\n"),
        ("SELECT count(*) FROM branches WHERE start < 10 AND kind = 'call'", "1\n"),
        ("SELECT count(*) FROM calls a, calls b WHERE a.function = 'do_wp_page'", "8\n"),
        ("SELECT function FROM calls LIMIT 1", "folio_add_new_anon_rmap\n"),
    ] {
        assert_eq!(answer(&database, sql).unwrap(), expected, "{sql}");
    }
}

#[test]
fn several_recordings_have_their_names_in_front() {
    let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let recordings = vec![
        ("before".to_owned(), asked(homes[0].path(), &faults())),
        ("after".to_owned(), asked(homes[1].path(), &halted())),
    ];
    let database = Database::open(recordings, Vec::new()).unwrap();
    let sql = "SELECT b.function, count(*) FROM before.calls b JOIN after.calls a \
               ON a.function = b.function GROUP BY 1 ORDER BY 1";
    assert_eq!(
        answer(&database, sql).unwrap(),
        "__x64_sys_read,1\ndo_syscall_64,1\nentry_SYSCALL_64,1\n"
    );
    let first = answer(&database, "SELECT count(*) FROM calls").unwrap();
    assert_eq!(first, answer(&database, "SELECT count(*) FROM before.calls").unwrap());
    let home = tempfile::tempdir().unwrap();
    let named = vec![("select 1".to_owned(), asked(home.path(), &faults()))];
    assert!(matches!(Database::open(named, Vec::new()), Err(AskError::Name(_))));
}

#[test]
fn functions_for_recordings() {
    let (database, _home) = database(&faults());
    let read = at("__x64_sys_read");
    for (sql, expected) in [
        (
            format!("SELECT symbol({read:#x}), symbol({:#x})", read + 3),
            "__x64_sys_read,__x64_sys_read+0x3\n",
        ),
        ("SELECT hex(-2130706432), hex('a')".to_owned(), "0xffffffff81000000,61\n"),
        (
            "SELECT percentile(own, 100), median(own) FROM calls WHERE caller = 'do_wp_page'"
                .to_owned(),
            "5,5\n",
        ),
        ("SELECT percentile(column1, 25) FROM (VALUES (1), (2), (4))".to_owned(), "1.5\n"),
        ("SELECT percentile(own, 50) FROM calls WHERE function = 'none'".to_owned(), "\n"),
    ] {
        assert_eq!(answer(&database, &sql).unwrap(), expected, "{sql}");
    }
    assert!(error(&database, "SELECT percentile(own, 200) FROM calls").contains("from 0 to 100"));
}

#[test]
fn wrong_questions_are_shown_with_their_place() {
    let (database, _home) = database(&faults());
    assert_eq!(
        error(&database, "SELECT functoin\nFROM calls"),
        "line 1, column 8: no such column: functoin; the nearest name is function\n  \
         SELECT functoin\n         ^"
    );
    assert!(error(&database, "SELECT * FROM cals").contains("the nearest name is calls"));
    assert!(error(&database, "SELECT percentil(own, 5) FROM calls").contains("percentile"));
    assert!(error(&database, "SELEC 1 ").contains("syntax error"));
    assert!(error(&database, "SELECT 1; SELECT 2").contains("one question"));
    assert!(error(&database, " ").contains("no question"));
    assert!(error(&database, "SELECT :top").contains("parameter :top has no value"));
}

#[test]
fn questions_only_read() {
    let (database, home) = database(&faults());
    let file = home.path().join("x.db");
    for (sql, action) in [
        ("DELETE FROM calls".to_owned(), ""),
        ("INSERT INTO tasks DEFAULT VALUES".to_owned(), ""),
        ("CREATE TABLE x(a)".to_owned(), ""),
        ("DROP TABLE calls".to_owned(), ""),
        (format!("ATTACH '{}' AS x", file.display()), "ATTACH"),
        (format!("VACUUM INTO '{}'", file.display()), ""),
        ("PRAGMA writable_schema = ON".to_owned(), "PRAGMA"),
        ("BEGIN".to_owned(), "TRANSACTION"),
    ] {
        let found = error(&database, &sql);
        assert!(found.contains("questions only read") && found.contains(action), "{sql}: {found}");
    }
    assert!(!file.exists());
    assert!(answer(&database, "SELECT load_extension('x')").is_err());
}

#[test]
fn what_a_table_lacks_is_said() {
    let (database, _home) = database(&faults());
    assert!(error(&database, "SELECT * FROM accesses").contains("no data accesses"));
    assert!(error(&database, "SELECT * FROM misses").contains("no machine is named"));
    assert!(error(&database, "SELECT * FROM locks").contains("no machine"));
    // The same in a join.
    let sql = "SELECT * FROM accesses a JOIN tasks t USING (pid)";
    assert!(error(&database, sql).contains("no data accesses"));
    // And the next question is answered.
    assert_eq!(answer(&database, "SELECT count(*) FROM calls").unwrap(), "8\n");
}

#[test]
fn a_damaged_recording_is_an_error() {
    let (database, home) = database(&faults());
    let file = home.path().join("trace.klt");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 9]).unwrap();
    for sql in ["SELECT count(*) FROM calls", "SELECT * FROM calls a, tasks b"] {
        assert!(error(&database, sql).contains("damaged"), "{sql}");
    }
}

#[test]
fn every_table_can_be_read_with_each_column() {
    let (database, _home) = database(&halted());
    for table in TABLES {
        let sql = format!("SELECT * FROM {}", table.name);
        match answer(&database, &sql) {
            Ok(rows) => assert!(!rows.is_empty(), "{sql}"),
            Err(error) => {
                let error = words(error);
                let lacks = ["no machine", "no data accesses", "System.map", "no probe"];
                assert!(lacks.iter().any(|lack| error.contains(lack)), "{sql}: {error}");
            }
        }
    }
}

#[test]
fn shipped_questions_can_be_prepared() {
    let (database, _home) = database(&faults());
    for question in crate::named::all(None).unwrap() {
        let value = |name: &str| match name {
            "function" => "vfs_read".to_owned(),
            _ => "1".to_owned(),
        };
        let missing = question.parameters.iter().filter(|it| it.usual.is_none());
        let given: Vec<_> =
            missing.map(|it| (it.name.clone(), crate::named::value_of(&value(&it.name)))).collect();
        let values = question.values(&given).unwrap();
        let asked = database.ask(&question.sql, &values, &mut CsvAnswer::new(&mut Vec::new()));
        if let Err(error) = asked {
            let error = words(error);
            let lacks = ["no machine", "no data accesses", "System.map", "no probe"];
            assert!(lacks.iter().any(|lack| error.contains(lack)), "{}: {error}", question.name);
        }
    }
}

/// A recording in which instruction 3 of a function has a probe, with these hits: execution,
/// instruction and the first value.
fn probed(directory: &Path, hits: &[(u64, u16, u64)]) -> Database {
    probed_at(directory, hits, None)
}

/// With rows only at these positions.
fn probed_at(directory: &Path, hits: &[(u64, u16, u64)], positions: Option<&[u64]>) -> Database {
    use crate::probe::{Pair, Probe, ProbeSet, RecordedProbes, ValueKind};
    use trace::probe_file::{ProbeHit, ProbeWriter, ReadValue};

    let read = at("__x64_sys_read");
    let mut run = ExampleRun::default();
    run.switch(1, "sh").user(3).plain(read, 5).left(read, 5, 2).plain(read, 5);
    let recording = asked(directory, &run);
    let values = ["fd", "name", "file"].map(str::to_owned);
    let kinds = [ValueKind::Number, ValueKind::Text, ValueKind::Address];
    let probe = Probe {
        name: "read".to_owned(),
        values: values.into_iter().zip(kinds).collect(),
        notes: Vec::new(),
        positions: positions.map(Arc::from),
    };
    let pair = |name: &str, by| Pair {
        name: name.to_owned(),
        from: 0,
        to: 0,
        by,
        values: ["fd", "name", "file", "fd_2", "name_2", "file_2"].map(str::to_owned).into(),
    };
    let set = ProbeSet {
        probes: vec![probe],
        pairs: vec![pair("again", None), pair("same_fd", Some((0, 0)))],
        program: format!("{:x} rdi rsi,text rdx", read + 3).parse().unwrap(),
        owners: vec![0],
    };
    let file = directory.join("probes.klp");
    let mut writer = ProbeWriter::new(Vec::new(), &set.program).unwrap();
    for &(execution, instruction, first) in hits {
        let text = ReadValue::Text((*b"a").into());
        let values = vec![ReadValue::Number(first), text, ReadValue::None];
        writer.hit(&ProbeHit { execution, instruction, point: 0, values }).unwrap();
    }
    std::fs::write(&file, writer.end(0).unwrap()).unwrap();
    let recording = Arc::into_inner(recording).unwrap();
    let recording = AskedRecording { probes: Some(RecordedProbes { set, file }), ..recording };
    Database::open(vec![("main".to_owned(), Arc::new(recording))], Vec::new()).unwrap()
}

#[test]
fn probes_have_rows_at_their_instructions() {
    let home = tempfile::tempdir().unwrap();
    // The second hit was withdrawn: its execution was left before. The third comes twice.
    let hits = [(1, 3, 7), (2, 3, 8), (3, 3, 9), (3, 3, 9)];
    let database = probed(home.path(), &hits);
    let sql = "SELECT start, task, fd, name, file FROM read ORDER BY start";
    assert_eq!(answer(&database, sql).unwrap(), ["6,sh,7,a,", "13,sh,9,a,"].join("\n") + "\n");
    let sql = "SELECT count(*) FROM read a JOIN read b USING (start)";
    assert_eq!(answer(&database, sql).unwrap(), ["2"].join("\n") + "\n");
    let sql = "SELECT fd FROM read WHERE fd = 9";
    assert_eq!(answer(&database, sql).unwrap(), ["9"].join("\n") + "\n");
}

#[test]
fn probes_at_positions_have_rows_there_only() {
    let home = tempfile::tempdir().unwrap();
    let hits = [(1, 3, 7), (3, 3, 9)];
    let database = probed_at(home.path(), &hits, Some(&[3, 13]));
    assert_eq!(answer(&database, "SELECT start, fd FROM read").unwrap(), "13,9\n");
}

#[test]
fn pairs_have_what_their_task_ran_between() {
    let home = tempfile::tempdir().unwrap();
    let database = probed(home.path(), &[(1, 3, 7), (3, 3, 9)]);
    let sql = "SELECT start, \"end\", task, instructions, fd, fd_2 FROM again";
    assert_eq!(answer(&database, sql).unwrap(), "6,13,sh,7,7,9\n");
    let sql = "SELECT count(*) FROM same_fd";
    assert_eq!(answer(&database, sql).unwrap(), "0\n");
    let home = tempfile::tempdir().unwrap();
    let database = probed(home.path(), &[(1, 3, 7), (3, 3, 7)]);
    assert_eq!(answer(&database, sql).unwrap(), "1\n");
    let error = error(&database, "SELECT x FROM agai");
    assert!(error.contains("the nearest name is again"), "{error}");
}

#[test]
fn positions_have_addresses() {
    let home = tempfile::tempdir().unwrap();
    let read = at("__x64_sys_read");
    let mut run = ExampleRun::default();
    run.switch(1, "sh").user(3).plain(read, 5).left(read, 5, 2).plain(read, 5);
    let recording = asked(home.path(), &run);
    let addresses = |positions: &[u64]| crate::produce::addresses_at(&recording, positions);
    assert_eq!(addresses(&[6, 9, 13]).unwrap(), [read + 1, read + 3]);
    assert!(addresses(&[]).unwrap().is_empty());
    let error = addresses(&[6, 15]).unwrap_err().to_string();
    assert!(error.contains("has 15 instructions, and no position 15"), "{error}");
}

#[test]
fn values_of_another_run_are_refused() {
    for hits in [&[][..], &[(1, 3, 7)], &[(1, 2, 7), (3, 3, 9)], &[(1, 3, 7), (3, 3, 9), (4, 3, 1)]]
    {
        let home = tempfile::tempdir().unwrap();
        let database = probed(home.path(), hits);
        let error = error(&database, "SELECT * FROM read");
        assert!(error.contains("another run"), "{hits:?}: {error}");
    }
}
