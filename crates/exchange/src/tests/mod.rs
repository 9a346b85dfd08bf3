//! Tests of the exports, with executions that are written down by hand.

mod in_time;

use crate::{callgrind, chrome_trace, folded, parquet as tables};
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::Row;
use services::examples::{ExampleRun, at, halted, kernel};
use services::table::ServiceTable;
use std::io::Write;
use trace::{RecordingHeader, RecordingReader};

/// A read whose function has a page fault, jumps to another function, and calls a third one through
/// a thunk.
pub(crate) fn nested() -> ExampleRun {
    let mut run = ExampleRun::new();
    run.user(10).enter_read();
    run.plain(at("__x64_sys_read"), 2);
    run.call(at("asm_exc_page_fault"), 2, "handle_mm_fault");
    // Calls inside the function itself fill the return stack buffer. They never return.
    run.call(at("handle_mm_fault"), 1, "handle_mm_fault");
    run.call(at("handle_mm_fault") + 0x20, 1, "handle_mm_fault");
    run.ret(at("handle_mm_fault") + 0x30, 1);
    run.iret(at("asm_exc_page_fault") + 6, 1);
    // A tail call. Its callee returns to do_syscall_64.
    run.plain(at("__x64_sys_read") + 2, 1);
    run.call(at("handle_mm_fault"), 4, "__x86_indirect_thunk_rax");
    run.call(at("__x86_indirect_thunk_rax"), 1, "__x86_indirect_thunk_rax");
    run.ret(at("__x86_indirect_thunk_rax") + 0x10, 2);
    run.ret(at("serial8250_interrupt"), 5);
    run.ret(at("handle_mm_fault") + 8, 6);
    run.ret(at("do_syscall_64") + 7, 2);
    run.push(at("entry_SYSCALL_64") + 6, 3, &[0x48, 0x0f, 0x07]);
    run.user(7);
    run
}

#[test]
fn chains_of_calls_belong_to_their_service() {
    let text = folded::folded(&nested().calls());
    assert_eq!(
        text,
        "\
kernel;page fault zero page, or resolved meanwhile;asm_exc_page_fault 3
kernel;page fault zero page, or resolved meanwhile;asm_exc_page_fault;handle_mm_fault 3
kernel;system call read;entry_SYSCALL_64 6
kernel;system call read;entry_SYSCALL_64;do_syscall_64 5
kernel;system call read;entry_SYSCALL_64;do_syscall_64;__x64_sys_read 3
kernel;system call read;entry_SYSCALL_64;do_syscall_64;handle_mm_fault 13
kernel;system call read;entry_SYSCALL_64;do_syscall_64;handle_mm_fault;serial8250_interrupt 5
user;user sh 17
"
    );
}

#[test]
fn callgrind_arcs_include_the_cost_below_them() {
    let text =
        callgrind::callgrind(&nested().calls(), callgrind::CallgrindEvents::Instructions, "a\nb");
    assert!(text.contains("cmd: a?b\n") && text.contains("summary: 55\n"), "{text}");
    let name = |wanted: &str| {
        let line = text.lines().find(|line| line.ends_with(&format!(" {wanted}"))).unwrap();
        line[line.find('(').unwrap()..].split(' ').next().unwrap().to_owned()
    };
    let from = |caller: &str| -> Vec<String> {
        let (id, mut lines) = (name(caller), text.lines());
        lines.find(|line| line.starts_with(&format!("fn={id}"))).unwrap();
        lines.take_while(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    let read = from("system call read");
    assert_eq!(
        (&read[0], &read[2], &read[3]),
        (&"0 0".to_owned(), &"calls=1 0".to_owned(), &"0 32".to_owned())
    );
    let handle = from("handle_mm_fault");
    assert_eq!(
        (&handle[0], &handle[2], &handle[3]),
        (&"0 16".to_owned(), &"calls=1 0".to_owned(), &"0 5".to_owned())
    );
}

/// The events of a run in the form for Chrome.
fn trace_events(
    run: &ExampleRun,
    machines: &[sim::MachineModel],
    window: std::ops::Range<u64>,
) -> Vec<serde_json::Value> {
    let (symbols, binding) = kernel();
    let (bytes, mut out) = (run.recording(), Vec::new());
    let reader = RecordingReader::new(&bytes[..]).unwrap();
    let conditions = [("workload", "a\"b\n".to_owned())];
    let cpus = reader.header().cpus;
    let events = chrome_trace::TraceEvents::new(&mut out, &conditions, window, cpus).unwrap();
    let (_, events) =
        services::attribute_in_time(reader, &symbols, &binding, machines, events).unwrap();
    let count = events.finish().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(json["otherData"]["workload"], "a\"b\n");
    let events = json["traceEvents"].as_array().unwrap().clone();
    assert_eq!(events.len() as u64, count);
    events
}

/// The nanoseconds of a time in microseconds.
fn nanoseconds(time: &serde_json::Value) -> u64 {
    (time.as_f64().unwrap() * 1000.0).round() as u64
}

#[test]
fn chrome_trace_events_nest_and_their_sums_equal_the_services() {
    let mut run = nested();
    run.enter_read().call(at("__x64_sys_read"), 2, "__schedule");
    run.call(at("__schedule"), 4, "__switch_to").switch(2, "c\"at").ret(at("__switch_to"), 3);
    run.plain(at("__x64_sys_read") + 0x40, 6).iret(at("entry_SYSCALL_64") + 0x40, 2);
    for _ in 0..3000 {
        run.user(100);
    }
    run.call(at("asm_sysvec_apic_timer_interrupt"), 1, "__schedule");
    run.switch(1, "sh").ret(at("__switch_to"), 3).ret(at("__schedule") + 9, 2).leave_read().user(5);
    let mut machine = machines::find("server-32k").unwrap().model;
    machine.l1i = sim::CacheGeometry::cache(128, 1, 64, sim::Replacement::Lru).unwrap();
    let books = run.books_on(std::slice::from_ref(&machine));
    let events = trace_events(&run, &[machine], 0..u64::MAX);
    let spans: Vec<_> =
        events.iter().filter(|event| event["ph"] == "X" && event["cat"] != "turn").collect();
    for account in books.ledger.accounts.iter().filter(|account| account.totals.calls > 0) {
        let title = folded::service_title(account.kind, &account.name);
        let own = spans.iter().filter(|span| span["name"] == *title);
        let sum: u64 = own.clone().map(|span| span["args"]["instructions"].as_u64().unwrap()).sum();
        assert_eq!(
            (own.count() as u64, sum),
            (account.totals.calls, account.totals.instructions),
            "{title}"
        );
    }
    for track in
        spans.iter().map(|span| span["tid"].as_u64()).collect::<std::collections::BTreeSet<_>>()
    {
        let mut open: Vec<u64> = Vec::new();
        for span in spans.iter().filter(|span| span["tid"].as_u64() == track) {
            let (begin, length) = (nanoseconds(&span["ts"]), nanoseconds(&span["dur"]));
            open.retain(|&end| end > begin);
            assert!(
                open.iter().all(|&end| begin + length <= end),
                "{span} ends after the event around it"
            );
            open.push(begin + length);
        }
    }
    let turns: u64 = events
        .iter()
        .filter(|event| event["cat"] == "turn")
        .map(|turn| nanoseconds(&turn["dur"]))
        .sum();
    assert_eq!(turns, books.instructions);
    let misses: u64 = events
        .iter()
        .filter(|event| event["ph"] == "C")
        .map(|value| value["args"]["misses"].as_u64().unwrap())
        .sum();
    let counted = |account: &services::ledger::Account| {
        account.totals.machines.first().map_or(0, |counts| counts.l1i_misses)
    };
    assert_eq!(misses, books.ledger.accounts.iter().map(counted).sum::<u64>());
    assert!(misses > 0 && events.iter().filter(|event| event["ph"] == "C").count() == 4);

    let part = trace_events(&run, &[], 0..10);
    let spans: Vec<_> = part.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!(
        spans.len(),
        2,
        "ten instructions of user mode, and the turn in which they are: {spans:?}"
    );
}

/// What a reader finds in a table: its rows and its conditions.
fn read_back(bytes: &[u8]) -> (Vec<Row>, Vec<(String, Option<String>)>) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let facts = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let facts = facts.iter().map(|fact| (fact.key.clone(), fact.value.clone())).collect();
    (reader.get_row_iter(None).unwrap().map(Result::unwrap).collect(), facts)
}

fn total(rows: &[Row], wanted: &str) -> i64 {
    let column =
        |row: &Row| row.get_column_iter().find(|(name, _)| *name == wanted).unwrap().1.clone();
    rows.iter()
        .map(|row| match column(row) {
            ::parquet::record::Field::Long(count) => count,
            other => panic!("{wanted} is {other}"),
        })
        .sum()
}

/// The tables of a run: services, functions, chains, invocations, tasks.
fn tables_of(run: &ExampleRun, machines: &[sim::MachineModel]) -> [Vec<u8>; 5] {
    let ((symbols, binding), bytes) = (kernel(), run.recording());
    let reader = || RecordingReader::new(&bytes[..]).unwrap();
    let (books, calls, _) =
        services::attribute_with_calls(reader(), &symbols, &binding, machines).unwrap();
    let table = ServiceTable::new(&RecordingHeader::default(), &books, Vec::new(), machines);
    let events = match machines {
        [] => callgrind::CallgrindEvents::Instructions,
        _ => callgrind::CallgrindEvents::Fetches,
    };
    let facts = [("workload", "a\"b".to_owned())];
    let mut invocations = Vec::new();
    let track = tables::InvocationTable::new(&mut invocations, &facts).unwrap();
    let (_, track) = services::attribute_in_time(reader(), &symbols, &binding, &[], track).unwrap();
    let tasks = track.finish().unwrap();
    [
        tables::services(&table, &calls, events, &facts).unwrap(),
        tables::functions(&calls, events, &facts).unwrap(),
        tables::chains(&calls, events, &facts).unwrap(),
        invocations,
        tasks,
    ]
}

#[test]
fn parquet_tables_contain_every_instruction_and_miss_once() {
    let run = nested();
    let mut machine = machines::find("server-32k").unwrap().model;
    machine.l1i = sim::CacheGeometry::cache(128, 1, 64, sim::Replacement::Lru).unwrap();
    let books = run.books_on(std::slice::from_ref(&machine));
    let accounts = || books.ledger.accounts.iter().map(|account| &account.totals);
    let misses: u64 =
        accounts().filter_map(|totals| Some(totals.machines.first()?.l1i_misses)).sum();
    let files = tables_of(&run, std::slice::from_ref(&machine));
    assert!(files == tables_of(&run, &[machine]), "the same recording gave other bytes");
    for (file, has_misses) in files[..4].iter().zip([true, true, true, false]) {
        let (rows, facts) = read_back(file);
        assert_eq!(total(&rows, "instructions"), books.instructions as i64);
        assert!(!has_misses || (total(&rows, "l1i_misses") == misses as i64 && misses > 0));
        assert_eq!(facts, [("workload".to_owned(), Some("a\"b".to_owned()))]);
    }
    let calls: u64 = accounts().map(|totals| totals.calls).sum();
    let rows = |file: usize| read_back(&files[file]).0;
    assert_eq!(total(&rows(0), "calls"), calls as i64);
    assert_eq!(rows(3).len() as u64, calls, "one row for each invocation");
    let shown: Vec<String> = rows(2).iter().map(Row::to_string).collect();
    let chain = r#"{kind: "system call", service: "read", chain: "entry_SYSCALL_64;do_syscall_64;__x64_sys_read", depth: 3, calls: 1, instructions: 3,"#;
    assert!(shown.iter().any(|row| row.starts_with(chain)), "{shown:#?}");
    let user: Vec<String> =
        rows(1).iter().map(Row::to_string).filter(|row| row.contains("user")).collect();
    assert!(
        user.len() == 1
            && user[0].starts_with(
                r#"{kind: "user", service: "sh", function: null, calls: 0, instructions: 17,"#
            ),
        "{user:?}"
    );
    let tasks: Vec<String> = rows(4).iter().map(Row::to_string).collect();
    assert_eq!(tasks.last().unwrap(), r#"{task: 1, name: "sh", pid: 1}"#, "{tasks:?}");
}

/// Without pids, a task's address identifies it. `cat` blocks and dies. `wc` begins at the same
/// address, but is another task.
#[test]
fn two_tasks_with_the_same_address_are_distinguished() {
    let schedule = at("__schedule");
    let mut run = ExampleRun::new();
    let block = |run: &mut ExampleRun| {
        run.enter_read().call(at("__x64_sys_read"), 2, "__schedule");
        run.call(schedule, 4, "__switch_to");
    };
    let go_on = |run: &mut ExampleRun| {
        run.switch(1, "sh").ret(at("__switch_to"), 3);
        run.ret(schedule + 8, 5).plain(at("__x64_sys_read") + 6, 1).leave_read();
    };
    run.user(1);
    for (name, instructions) in [("cat", 20), ("wc", 7)] {
        block(&mut run);
        run.switch_to_address(0x40, name).ret(at("__switch_to"), 3);
        run.iret(at("ret_from_fork_asm"), 8).user(instructions);
        block(&mut run);
        go_on(&mut run);
    }
    let rows =
        |file: &[u8]| -> Vec<String> { read_back(file).0.iter().map(Row::to_string).collect() };
    let files = tables_of(&run, &[]);
    let tasks = rows(&files[4]);
    let number = |name: &str| {
        let row = tasks.iter().find(|row| row.contains(&format!("name: \"{name}\"")));
        row.unwrap_or_else(|| panic!("no {name} in {tasks:?}"))
            .split([' ', ','])
            .nth(1)
            .unwrap()
            .to_owned()
    };
    assert_ne!(number("cat"), number("wc"), "{tasks:?}");
    // Each task has its own events, from its first instruction on.
    let invocations = rows(&files[3]);
    for (name, user) in [("cat", 20), ("wc", 7)] {
        let of_task = format!("task: {},", number(name));
        let own: Vec<&String> = invocations.iter().filter(|row| row.contains(&of_task)).collect();
        assert!(
            own.iter().any(|row| row.contains(&format!("instructions: {user},"))),
            "{name}: {own:?}"
        );
        assert!(own.iter().any(|row| row.contains("first return")), "{name}: {own:?}");
        assert!(own.iter().any(|row| row.contains("\"read\"")), "{name}: {own:?}");
    }
    let events = trace_events(&run, &[], 0..u64::MAX);
    let named = |name: &str| {
        let found = events.iter().find(|event| event["ph"] == "M" && event["args"]["name"] == name);
        found.map(|event| event["tid"].clone())
    };
    assert!(
        named("cat").is_some() && named("wc").is_some() && named("cat") != named("wc"),
        "{events:?}"
    );
}

#[test]
fn parquet_misses_are_null_without_a_machine() {
    let rows = read_back(&tables_of(&nested(), &[])[0]).0;
    assert!(rows.iter().all(|row| {
        row.to_string()
            .contains("l1i_misses: null, l1d_misses: null, l2_misses: null, cycles: null")
    }));
}

#[test]
fn chrome_trace_shows_each_cpu_with_its_turns() {
    let mut run = ExampleRun::new();
    run.user(4).cpu(1).switch(2, "cat").user(3).cpu(0).user(5).enter_read();
    run.cpu(1).user(6).cpu(0).plain(at("__x64_sys_read"), 2).leave_read().user(1);
    let books = run.books();
    let events = trace_events(&run, &[], 0..u64::MAX);
    let name = |thread: u64| {
        let is_name = |event: &&serde_json::Value| {
            event["ph"] == "M" && event["pid"] == 1 && event["tid"] == thread
        };
        events.iter().find(is_name).unwrap()["args"]["name"].clone()
    };
    assert_eq!((name(1), name(2)), ("CPU 0".into(), "CPU 1".into()));
    let turns: Vec<(u64, &str, u64, u64)> = events
        .iter()
        .filter(|event| event["cat"] == "turn")
        .map(|turn| {
            let [begin, length] = [&turn["ts"], &turn["dur"]].map(nanoseconds);
            (turn["tid"].as_u64().unwrap(), turn["name"].as_str().unwrap(), begin, length)
        })
        .collect();
    let expected =
        [(1, "sh", 0, 4), (2, "cat", 4, 3), (1, "sh", 7, 10), (2, "cat", 17, 6), (1, "sh", 23, 10)];
    assert_eq!(turns, expected);
    assert_eq!(books.instructions, 33);
    let read = events.iter().find(|event| event["name"] == "system call read").unwrap();
    // It goes on while the other CPU executes.
    assert_eq!([&read["ts"], &read["dur"]].map(nanoseconds), [12, 20]);
    assert_eq!(read["args"]["instructions"], 14);
}

#[test]
fn chrome_trace_times_are_times_of_the_guests_clock() {
    let run = halted();
    let mut machine = machines::find("server-32k").unwrap().model;
    machine.l1i = sim::CacheGeometry::cache(128, 1, 64, sim::Replacement::Lru).unwrap();
    let events = trace_events(&run, &[machine], 0..u64::MAX);
    let span = |name: &str| {
        let found =
            events.iter().find(|event| event["ph"] == "X" && event["name"] == name).unwrap();
        [&found["ts"], &found["dur"], &found["args"]["off_cpu_ns"]]
            .map(|time| time.as_f64().unwrap())
    };
    assert_eq!(span("system call read"), [0.001, 1.045, 1018.0]);
    assert_eq!(span("interrupt apic_timer_interrupt"), [1.018, 0.006, 0.0]);
    let last = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| nanoseconds(&event["ts"]) + nanoseconds(&event["dur"]));
    assert_eq!(last.max(), Some(1048));
    let shown =
        run.observed().2.buckets.iter().map(services::timeline::TimelineBucket::total).sum::<f64>();
    assert!((shown - 1048.0).abs() < 1e-6, "{shown}");
}
