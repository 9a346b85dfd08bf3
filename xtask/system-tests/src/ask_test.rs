//! `cargo xtask ask-test KERNEL`: tests whether `kernlane ask` gives the numbers of the reports.
//!
//! Records a small workload twice, on one CPU and on two, with data accesses. Prints one line for
//! each test.

use anyhow::{Context, Result, bail};
use ask::sql::{AnswerColumn, AnswerSink, Database, SqlValueRef};
use execution::part::RecordingPart;
use guest::{GuestKernel, RecordingRequest, Workload};
use host::recording::Recording;
use image::vmlinux;
use lab::score::TestScore;
use memory::fields::FieldStudy;
use memory::misses::owners::StructureClass;
use memory::misses::table::StructureRow;
use profile::collect::{self, ExtraCounts};
use road::opened::Opening;
use road::probed::Probing;
use road::record;
use services::Attribution;
use services::annotations::ServiceKind;
use services::calls::ROOT;
use std::collections::BTreeMap;
use std::path::Path;
use trace::CpuCount;

const MACHINE: &str = "server-32k";

/// Work of the kernel that takes a second: forks, pipes, files.
pub(crate) const WORKLOAD: &str = r#"
about = "Forks, pipes and files, for a second"
packages = ["dash", "coreutils", "grep"]
memory = 512

set-up = ''
run = '''
i=0
while [ $i -lt 12 ]; do echo $i; i=$((i + 1)); done | sort -r | grep -c 1
ls -l /usr/bin > /tmp/listed
cat /proc/stat > /tmp/stat
sleep 0.01
'''
check = 'test -s /tmp/listed && test -s /tmp/stat'
"#;

/// Runs what this module describes.
///
/// # Errors
/// A number differs, or a test cannot run.
pub fn ask_test(kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir().context("making a temporary directory")?;
    lab::build_plugin()?;
    let mut score = TestScore::default();
    for cpus in [1, 2] {
        let output = directory.path().join(format!("cpus-{cpus}.rec"));
        let workload = Workload::parse("ask", WORKLOAD)?;
        lab::recording::record(&RecordingRequest {
            cpus: CpuCount::new(cpus).context("the number of CPUs")?,
            data: true,
            ..record::request(workload, GuestKernel::open(kernel, None)?, &output)
        })?;
        println!("{cpus} CPU(s):");
        compare(&output, kernel, &mut score, cpus == 1)?;
        probes(&output, kernel, &mut score)?;
    }
    score.finish("answers differ from the reports")
}

/// Tests answers about a recording.
///
/// # Errors
/// A number cannot be made.
fn compare(recording: &Path, kernel: &Path, score: &mut TestScore, one_cpu: bool) -> Result<()> {
    let machines = [MACHINE.to_owned()];
    let opening = Opening {
        kernel: Some(kernel),
        annotations: None,
        machines: &machines,
        part: RecordingPart::WHOLE,
    };
    let database = road::asked::open(
        &opening,
        &[("main".to_owned(), recording.to_owned())],
        &[],
        &Probing::default(),
    )?;
    let opened = opening.open(recording)?;
    let attribution = &opened.attribution;

    let observed = attribution.observed(recording)?;
    let expected: BTreeMap<(String, String), [u64; 2]> = observed
        .table
        .rows
        .iter()
        .map(|row| ((row.kind.title().to_owned(), row.name.clone()), [row.calls, row.instructions]))
        .collect();
    let found = counts(
        &database,
        "SELECT kind, service, count(*), sum(instructions) FROM services GROUP BY 1, 2",
    )?;
    let found: BTreeMap<_, _> = found.into_iter().map(|(key, n)| (key, [n[0], n[1]])).collect();
    score.holds(&format!("{} services have the counts of the report", found.len()), {
        report_difference(&expected, &found)
    });

    let mut chains: BTreeMap<(String, String), [u64; 2]> = BTreeMap::new();
    for (node, cost) in observed.calls.services.iter().flat_map(|service| &service.costs) {
        if *node != ROOT {
            let function = observed.calls.nodes[node.0 as usize].function as usize;
            let name = observed.calls.functions[function].clone();
            let sum = chains.entry((name, String::new())).or_default();
            (sum[0], sum[1]) = (sum[0] + cost.calls, sum[1] + cost.instructions);
        }
    }
    let calls =
        counts(&database, "SELECT function, '', sum(entered), sum(own) FROM calls GROUP BY 1")?;
    let calls: BTreeMap<_, _> = calls.into_iter().map(|(key, n)| (key, [n[0], n[1]])).collect();
    score.holds(&format!("{} functions have the counts of the chains of calls", calls.len()), {
        report_difference(&chains, &calls)
    });

    // The report leaves out entries whose translation block was left midway.
    let functions = attribution.recorded(recording)?.functions;
    let expected: BTreeMap<(String, String), [u64; 2]> = functions
        .into_iter()
        .map(|(name, totals)| ((name, String::new()), [totals.instructions, 0]))
        .collect();
    let found = counts(
        &database,
        "SELECT function, '', sum(instructions), 0 FROM functions WHERE instructions > 0 GROUP BY 1",
    )?;
    let found: BTreeMap<_, _> = found.into_iter().map(|(key, n)| (key, [n[0], n[1]])).collect();
    score.holds(&format!("{} functions have the instructions of the report", found.len()), {
        report_difference(&expected, &found)
    });
    let entered = counts(
        &database,
        "SELECT 'all', '', count(*), sum(f.executions <> c.entered) FROM \
         (SELECT function, sum(executions) AS executions FROM functions GROUP BY 1) f JOIN \
         (SELECT function, sum(entered) AS entered FROM calls GROUP BY 1) c USING (function)",
    )?;
    let entered = entered.values().next().context("no functions")?;
    let row = format!("{} of {} functions have other calls than entries", entered[1], entered[0]);
    score.holds(&row, entered[0] > 0 && entered[1] == 0);

    let image = vmlinux::read(&vmlinux::path(&opened.path))?;
    let profile = collect::of_recording(
        &Recording::at(recording),
        &image,
        &RecordingPart::WHOLE,
        ExtraCounts::None,
    )?;
    let blocks = counts(&database, "SELECT 'all', '', count(*), sum(executions) FROM blocks")?;
    let expected = [profile.blocks.len() as u64, profile.blocks.values().sum()];
    let counted = blocks.values().next().context("no blocks")?;
    score.holds(
        &format!("{} blocks were entered {} times, as in the profile", counted[0], counted[1]),
        counted[..2] == expected,
    );

    let switches = counts(&database, "SELECT 'all', '', count(from_task), 0 FROM switches")?;
    let switches = switches.values().next().context("no switches")?[0];
    let expected = observed.table.context_switches;
    score.holds(&format!("{switches} switches, report {expected}"), switches == expected);
    let interrupts = counts(&database, "SELECT 'all', '', count(*), 0 FROM interrupts")?;
    let interrupts = interrupts.values().next().context("no interrupts")?[0];
    let rows = observed.table.rows.iter();
    let rows = rows.filter(|row| matches!(row.kind, ServiceKind::Interrupt | ServiceKind::Ipi));
    let expected: u64 = rows.map(|row| row.calls).sum();
    score.holds(&format!("{interrupts} interrupts, report {expected}"), interrupts == expected);

    let joined = counts(
        &database,
        "SELECT s.kind, s.service, count(*), sum(c.own) FROM calls c \
         JOIN services s ON s.id = c.service_id WHERE c.function = 'schedule' GROUP BY 1, 2",
    )?;
    let all = counts(
        &database,
        "SELECT 'all', '', count(*), sum(own) FROM calls WHERE function = 'schedule'",
    )?;
    let sum = joined.values().fold([0, 0], |sum, n| [sum[0] + n[0], sum[1] + n[1]]);
    let all = all.values().next().context("schedule never ran")?;
    let row = format!("a join finds {} of {} calls of schedule", sum[0], all[0]);
    score.holds(&row, sum == all[..2] && all[0] > 0);
    pairs(&database, score)?;
    fields(&database, recording, kernel, score, one_cpu)?;
    if one_cpu { misses(&database, attribution, recording, &opened.path, score) } else { Ok(()) }
}

/// Tests the question for intervals from one function to another.
///
/// # Errors
/// The question cannot be asked.
fn pairs(database: &Database, score: &mut TestScore) -> Result<()> {
    let (from, to) = ("pipe_read", "pipe_write");
    let both = counts(
        database,
        "SELECT function, cast(start AS text), coalesce(pid, 0), start FROM calls \
         WHERE entered = 1 AND function IN ('pipe_write', 'pipe_read')",
    )?;
    let mut by_task: BTreeMap<u64, BTreeMap<u64, &str>> = BTreeMap::new();
    for ((function, _), numbers) in &both {
        by_task.entry(numbers[0]).or_default().insert(numbers[1], function);
    }
    let mut intervals = Vec::new();
    for calls in by_task.values() {
        let next = calls.iter().zip(calls.iter().skip(1));
        let pairs = next.filter(|((_, first), (_, then))| (**first, **then) == (from, to));
        intervals.extend(pairs.map(|((begin, _), (end, _))| end - begin));
    }
    let question = include_str!("../../../crates/ask/queries/pairs.sql");
    let sql: String =
        question.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
    let sql = sql.replace(":from", &format!("'{from}'")).replace(":to", &format!("'{to}'"));
    let found = counts(
        database,
        &format!("SELECT 'all', '', pairs, coalesce(least, 0), coalesce(most, 0) FROM ({sql})"),
    )?;
    let found = found.values().next().context("pairs has no row")?;
    let expected = [
        intervals.len() as u64,
        intervals.iter().min().copied().unwrap_or_default(),
        intervals.iter().max().copied().unwrap_or_default(),
    ];
    let row =
        format!("{} intervals from {from} to {to}, of {} to {}", found[0], found[1], found[2]);
    score.holds(&row, found[..3] == expected && found[0] > 0);
    Ok(())
}

/// Tests values that are read while the run is executed again.
///
/// # Errors
/// The run cannot be executed again, or was another one.
fn probes(recording: &Path, kernel: &Path, score: &mut TestScore) -> Result<()> {
    let home = tempfile::tempdir().context("making a temporary directory")?;
    let workload = home.path().join("ask.toml");
    std::fs::write(&workload, WORKLOAD)?;
    let open = |texts: &[String]| {
        let opening = Opening {
            kernel: Some(kernel),
            annotations: None,
            machines: &[],
            part: RecordingPart::WHOLE,
        };
        let probing = Probing { texts, workload: Some(&workload), boot_image: None };
        road::asked::open(&opening, &[("main".to_owned(), recording.to_owned())], &[], &probing)
    };
    let texts = ["entered=vfs_read(count=%rdx)", "vfs_read%return($retval)"].map(str::to_owned);
    let database = open(&texts)?;
    let called = counts(
        &database,
        "SELECT 'all', '', count(*), (SELECT count(*) FROM entered), \
         (SELECT count(*) FROM entered JOIN calls USING (start) WHERE function = 'vfs_read') \
         FROM calls WHERE function = 'vfs_read'",
    )?;
    let called = called.values().next().context("vfs_read was never called")?;
    let row = format!("{} values for {} calls of vfs_read", called[1], called[0]);
    score.holds(&row, called[0] > 0 && called[..3].iter().all(|n| *n == called[0]));
    let returned = counts(
        &database,
        "SELECT 'all', '', count(*), count(r.retval), sum(r.retval <= e.count) FROM calls c \
         JOIN entered e ON e.start = c.start \
         LEFT JOIN vfs_read_return r ON r.start = c.\"end\" - 1 \
         WHERE c.function = 'vfs_read' AND c.\"end\" IS NOT NULL",
    )?;
    let returned = returned.values().next().context("vfs_read never returned")?;
    let row = format!("{} of {} calls return, with at most what they asked for", returned[1], {
        returned[0]
    });
    score.holds(&row, returned[..3].iter().all(|n| *n == returned[0] && *n > 0));
    placed(&open, score)?;
    let wrong = open(&["vfs_raed(count)".to_owned()]);
    let message = wrong.err().map(|error| format!("{error:#}")).unwrap_or_default();
    score.holds("an unknown function is refused, with a similar name", {
        message.contains("no function vfs_raed") && message.contains("vfs_read")
    });
    Ok(())
}

/// Tests probes at positions, at a tracepoint, and intervals between two probes.
fn placed(open: &dyn Fn(&[String]) -> Result<Database>, score: &mut TestScore) -> Result<()> {
    let texts = [
        "switched=[SELECT start FROM switches]",
        "tracepoint:sched_switch",
        "read=from vfs_read to vfs_read%return",
    ];
    let database = open(&texts.map(str::to_owned))?;
    let found = counts(
        &database,
        "SELECT 'all', '', count(*), count(from_task), (SELECT count(*) FROM switched), \
         (SELECT count(*) FROM switched JOIN switches USING (start)), \
         (SELECT count(*) FROM sched_switch) FROM switches",
    )?;
    let found = found.values().next().context("no task was switched")?;
    let row = format!("{} switches, and {} rows at their positions", found[0], found[2]);
    score.holds(&row, found[0] > 0 && found[2..4].iter().all(|n| *n == found[0]));
    let row = format!("{} switches between tasks, {} of the tracepoint", found[1], found[4]);
    score.holds(&row, found[1] > 0 && found[4] == found[1]);
    // Where nothing else ran meanwhile, a task ran all instructions of the interval.
    let found = counts(
        &database,
        "SELECT 'all', '', count(*), sum(r.\"end\" = c.\"end\" - 1), \
         sum(r.instructions >= c.inclusive - 1 AND r.instructions <= r.\"end\" - r.start), \
         sum(c.inclusive = c.\"end\" - c.start), \
         sum(c.inclusive = c.\"end\" - c.start AND r.instructions = c.inclusive - 1) \
         FROM read r JOIN calls c USING (start) WHERE c.function = 'vfs_read'",
    )?;
    let found = found.values().next().context("no interval")?;
    let row = format!("{} intervals are calls, of which {} ran alone", found[0], found[3]);
    let are_calls = found[1] == found[0] && found[2] == found[0];
    score.holds(&row, are_calls && found[3] > 0 && found[4] == found[3]);
    Ok(())
}

/// Tests misses by cause and by data structure.
fn misses(
    database: &Database,
    attribution: &Attribution,
    recording: &Path,
    kernel: &Path,
    score: &mut TestScore,
) -> Result<()> {
    let tables = memory::misses(attribution, recording, kernel)?;
    let table = tables.first().context("no table of misses")?;
    let found = counts(
        database,
        "SELECT mode, CASE kind WHEN 'fetch' THEN 'l1i' ELSE 'l1d' END, \
         sum(cause = 'cold'), sum(cause = 'self'), sum(cause = 'other') FROM misses GROUP BY 1, 2",
    )?;
    for (mode, counters) in [("kernel", &table.kernel), ("user", &table.user)] {
        for (level, misses) in [("l1i", &counters.l1i), ("l1d", &counters.l1d)] {
            let key = (mode.to_owned(), level.to_owned());
            let ours = found.get(&key).map(|n| n[..3].to_vec()).unwrap_or_default();
            let report = [misses.cold, misses.own, misses.other];
            let row =
                format!("{mode}: misses of the {level} by cause: {ours:?}, report {report:?}");
            score.holds(&row, ours == report);
        }
    }
    let by_structure = counts(
        database,
        "SELECT class, coalesce(structure, ''), count(*), 0 FROM misses WHERE kind <> 'fetch' \
         GROUP BY 1, 2",
    )?;
    let expected: BTreeMap<(String, String), [u64; 2]> = table
        .structures
        .iter()
        .filter(|row| row.l1d() > 0)
        .map(|row| ((row.class.title().to_owned(), row.name.clone()), [row.l1d(), 0]))
        .collect();
    let found: BTreeMap<_, _> =
        by_structure.into_iter().map(|(key, n)| (key, [n[0], n[1]])).collect();
    score.holds(&format!("{} data structures have the misses of the report", found.len()), {
        report_difference(&expected, &found)
    });
    Ok(())
}

/// Tests the fields of a slab cache: their accesses, and with one CPU their misses.
fn fields(
    database: &Database,
    recording: &Path,
    kernel: &Path,
    score: &mut TestScore,
    one_cpu: bool,
) -> Result<()> {
    let cache = "dentry";
    let machines = [MACHINE.to_owned()];
    let opening = Opening {
        kernel: Some(kernel),
        annotations: None,
        machines: if one_cpu { &machines } else { &[] },
        part: RecordingPart::WHOLE,
    };
    let opened = opening.open(recording)?;
    let table = FieldStudy::new(&opened.attribution, &opened.path)?.table(recording, cache)?;
    let asked = counts(
        database,
        &format!(
            "SELECT 'all', '', sum(kind = 'load'), sum(kind = 'store') FROM accesses \
             WHERE class = 'slab' AND structure = '{cache}' AND code < 0"
        ),
    )?;
    let all = asked.values().next().context("no accesses")?;
    let in_fields = table
        .fields
        .iter()
        .fold([0, 0], |sum, row| [sum[0] + row.accesses.reads, sum[1] + row.accesses.writes]);
    // A page is written before it has the mark of its slab cache. Tables name it later; the fields
    // of its objects are not known then.
    let near = |ours: u64, asked: u64| ours <= asked && 100 * (asked - ours) <= asked && ours > 0;
    let row = format!("fields of {cache} have {in_fields:?} reads and writes, {all:?} asked");
    score.holds(&row, near(in_fields[0], all[0]) && near(in_fields[1], all[1]));
    let by_services: u64 = table.services.iter().map(|row| row.accesses.total()).sum();
    let row = format!("services have {by_services} of {} accesses", table.accesses.total());
    score.holds(&row, by_services == table.accesses.total());
    if one_cpu {
        let misses = memory::misses(&opened.attribution, recording, &opened.path)?;
        let misses = misses.first().context("no table of misses")?;
        let of_cache = |row: &&StructureRow| row.class == StructureClass::Slab && row.name == cache;
        let expected: u64 =
            misses.structures.iter().filter(of_cache).map(|row| row.kernel.l1d.total()).sum();
        let found: u64 =
            table.fields.iter().filter_map(|row| row.misses).map(|misses| misses.l1d).sum();
        let row = format!("fields of {cache} have {found} misses of the kernel, report {expected}");
        score.holds(&row, near(found, expected));
    }
    Ok(())
}

/// An answer whose first two columns are names, and whose others are counts.
fn counts(database: &Database, sql: &str) -> Result<Counts> {
    let mut counted = Counted::default();
    database.ask(sql, &[], &mut counted)?;
    Ok(counted.0)
}

type Counts = BTreeMap<(String, String), Vec<u64>>;

#[derive(Default)]
struct Counted(Counts);

impl AnswerSink for Counted {
    fn columns(&mut self, _: &[AnswerColumn]) -> Result<()> {
        Ok(())
    }

    fn row(&mut self, row: &[SqlValueRef<'_>]) -> Result<()> {
        let [first, second, numbers @ ..] = row else { bail!("two names are missing") };
        let name = |value: &SqlValueRef<'_>| anyhow::Ok(value.as_str()?.to_owned());
        let numbers = numbers.iter().map(|number| anyhow::Ok(number.as_i64()? as u64));
        self.0.insert((name(first)?, name(second)?), numbers.collect::<Result<_>>()?);
        Ok(())
    }
}

/// Says what differs first, on standard error.
fn report_difference(
    expected: &BTreeMap<(String, String), [u64; 2]>,
    found: &BTreeMap<(String, String), [u64; 2]>,
) -> bool {
    let keys = expected.keys().chain(found.keys());
    let differing = keys.filter(|key| expected.get(key) != found.get(key)).take(5);
    for key in differing {
        host::note!("{key:?}: report {:?}, ask {:?}", expected.get(key), found.get(key));
    }
    expected == found && !expected.is_empty()
}
