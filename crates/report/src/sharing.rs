//! Lines that CPUs take from each other, as text.
//!
//! Input: the tables of `coherence::sharing`. Output: text. Counts nothing.

use crate::order;
use crate::text::frames_unknown;
use coherence::sharing::table::{
    Cure, DataRow, FieldRow, FunctionRow, LineCounts, LineRow, SharingTable, SharingTotal,
};
use coherence::sharing::what_if::SharingChange;
use host::table::TextTable;
use sim::PerMode;
use std::fmt::Write;

/// The largest number of fields of a line, of functions of a field, and of names in a sentence.
const FIELDS: usize = 12;
const FUNCTIONS: usize = 4;
const NAMES: usize = 3;
/// The largest number of rows of data that several lines hold, and of functions.
const DATA: usize = 8;
const FUNCTION_ROWS: usize = 16;

/// The lines of one machine: a table of all, and the fields of each.
pub fn text(table: &SharingTable) -> String {
    let mut out = String::new();
    // Writing to a `String` never fails.
    let _ = write(table, &mut out);
    out
}

fn write(table: &SharingTable, out: &mut String) -> std::fmt::Result {
    let SharingTable { workload, kernel_build_id, seed, machine, cpus, totals, .. } = table;
    let total = &totals.total;
    writeln!(
        out,
        "sharing in {workload}, kernel {kernel_build_id}, seed {seed}: {cpus} CPUs, simulated on \
         {machine}, {}\n",
        order::title(totals.order)
    )?;
    let (misses, upgrades) = (total.all_misses(), total.upgrades.total());
    let instructions = total.instructions.total();
    writeln!(
        out,
        "{} misses by true sharing, {} by false sharing and {upgrades} upgrades, on {} lines of {} \
         bytes: {:.3} Mcycles, {:.2} cycles for each 1000 instructions\n",
        misses.true_sharing,
        misses.false_sharing,
        table.shared_lines,
        table.line_bytes,
        total.cycles / 1e6,
        1e3 * total.cycles / instructions.max(1) as f64
    )?;
    out.push_str(&order::moved(totals));
    let mut ranked = TextTable::new(&[
        "line", "address", "kcycles", "of all", "true", "false", "upgrades", "cold", "capacity",
    ]);
    for (at, line) in table.lines.iter().enumerate() {
        let LineCounts { misses, upgrades, cycles, .. } = line.counts;
        let mut cells = vec![
            format!("{:>3}  {}", at + 1, title(line)),
            line.addr.clone(),
            format!("{:.1}", cycles / 1e3),
            format!("{:.1} %", 100.0 * line.share),
        ];
        let counts =
            [misses.true_sharing, misses.false_sharing, upgrades, misses.cold, misses.capacity];
        cells.extend(counts.map(|count| count.to_string()));
        ranked.push(cells);
    }
    out.push_str(&ranked.to_text());
    data(table, out)?;
    asking_functions(table, out)?;
    for (at, line) in table.lines.iter().enumerate() {
        details(at + 1, line, out)?;
    }
    if !table.types_known {
        writeln!(out, "\nthe kernel has no BTF: fields are offsets in their objects")?;
    }
    if let Some(why) = &table.frames_unknown {
        writeln!(out, "{}", frames_unknown(why))?;
    }
    if table.unranked_cycles > 0.0 {
        writeln!(
            out,
            "{:.3} Mcycles are on lines that were not ranked, because there are too many",
            table.unranked_cycles / 1e6
        )?;
    }
    Ok(())
}

/// Data that several lines hold.
fn data(table: &SharingTable, out: &mut String) -> std::fmt::Result {
    let rows: Vec<&DataRow> = table.data.iter().filter(|row| row.lines > 1).take(DATA).collect();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\ndata that several of the first {} lines hold:\n", table.data_lines)?;
    let titles = ["data", "lines", "kcycles", "of all", "true", "false", "upgrades"];
    let mut shown = TextTable::new(&titles);
    for row in &rows {
        let LineCounts { misses, upgrades, cycles, .. } = row.counts;
        shown.push(vec![
            row.title.clone(),
            row.lines.to_string(),
            format!("{:.1}", cycles / 1e3),
            format!("{:.1} %", 100.0 * row.share),
            misses.true_sharing.to_string(),
            misses.false_sharing.to_string(),
            upgrades.to_string(),
        ]);
    }
    out.push_str(&shown.to_text());
    for row in rows {
        writeln!(out, "  {}: the cure for its first line: {}", row.title, cure(&row.cure))?;
    }
    Ok(())
}

/// The functions that asked other cores for lines.
fn asking_functions(table: &SharingTable, out: &mut String) -> std::fmt::Result {
    let asked = table.functions.iter().filter(|row| row.counts.events() > 0);
    let rows: Vec<&FunctionRow> = asked.collect();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nfunctions that asked for lines, their code included:\n")?;
    let titles = [
        "function", "kcycles", "of all", "true", "false", "upgrades", "cold", "capacity", "stalls",
    ];
    let mut shown = TextTable::new(&titles);
    for row in rows.iter().take(FUNCTION_ROWS) {
        let LineCounts { misses, upgrades, cycles, .. } = row.counts;
        let mut cells = vec![
            row.function.clone(),
            format!("{:.1}", cycles / 1e3),
            format!("{:.1} %", 100.0 * cycles / table.totals.total.cycles.max(f64::MIN_POSITIVE)),
        ];
        let counts =
            [misses.true_sharing, misses.false_sharing, upgrades, misses.cold, misses.capacity];
        cells.extend(counts.map(|count| count.to_string()));
        cells.push(format!("{:.1}", row.stalls / 1e3));
        shown.push(cells);
    }
    out.push_str(&shown.to_text());
    if rows.len() > FUNCTION_ROWS {
        writeln!(out, "  and {} more (in JSON)", rows.len() - FUNCTION_ROWS)?;
    }
    Ok(())
}

/// The objects of a line.
fn title(line: &LineRow) -> String {
    let costly = line.objects.iter().take_while(|object| object.cycles > 0.0);
    match some(costly.map(|object| object.title.as_str())) {
        none if none.is_empty() => {
            line.objects.first().map_or("code".to_owned(), |object| object.title.clone())
        }
        titles => titles,
    }
}

/// The first names, and how many more there are.
fn some<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let mut text = names[..names.len().min(NAMES)].join(", ");
    if names.len() > NAMES {
        // Writing to a `String` never fails.
        let _ = write!(text, " and {} more", names.len() - NAMES);
    }
    text
}

fn details(number: usize, line: &LineRow, out: &mut String) -> std::fmt::Result {
    let LineRow { addr, physical, .. } = line;
    writeln!(out, "\nline {number}: {addr} (physical {physical}): {}", title(line))?;
    writeln!(out, "  cure: {}", cure(&line.cure))?;
    for (cpu, PerMode { kernel, user }) in line.cpus.iter().enumerate() {
        let modes = [("kernel", kernel), ("user mode", user)];
        let asked: Vec<String> = modes
            .iter()
            .filter(|(_, counts)| counts.events() > 0)
            .map(|(mode, counts)| {
                let LineCounts { misses, upgrades, .. } = counts;
                let (right, wrong) = (misses.true_sharing, misses.false_sharing);
                format!("{mode} true {right}, false {wrong}, upgrades {upgrades}")
            })
            .collect();
        if !asked.is_empty() {
            writeln!(out, "  CPU {cpu}: {}", asked.join("; "))?;
        }
    }
    let cpus: Vec<String> = (0..line.cpus.len()).map(|cpu| format!("CPU {cpu} r/w")).collect();
    let mut titles = vec!["byte, size, field", "kcycles", "true", "false", "upgrades"];
    titles.extend(cpus.iter().map(String::as_str));
    let mut table = TextTable::new(&titles);
    let shown = most_used(line);
    for field in &shown {
        let LineCounts { misses, upgrades, cycles, .. } = field.counts;
        let mut cells = vec![
            format!("{:>4} {:>2}  {}", field.offset, field.size, field.name),
            format!("{:.1}", cycles / 1e3),
            misses.true_sharing.to_string(),
            misses.false_sharing.to_string(),
            upgrades.to_string(),
        ];
        cells.extend(field.cpus.iter().map(|cpu| format!("{}/{}", cpu.reads, cpu.writes)));
        table.push(cells);
    }
    out.push_str(&table.to_text());
    if shown.len() < line.fields.len() {
        writeln!(out, "  {} more fields with fewer cycles", line.fields.len() - shown.len())?;
    }
    for field in shown {
        functions(field, out)?;
    }
    Ok(())
}

/// The fields with the most cycles and accesses, in the order of their places.
fn most_used(line: &LineRow) -> Vec<&FieldRow> {
    let mut fields: Vec<&FieldRow> = line.fields.iter().collect();
    fields.sort_by(|a, b| {
        let by_cycles = b.counts.cycles.total_cmp(&a.counts.cycles);
        by_cycles.then(b.accesses().total().cmp(&a.accesses().total()))
    });
    fields.truncate(FIELDS);
    fields.sort_by_key(|field| (field.offset, field.size, field.object));
    fields
}

fn functions(field: &FieldRow, out: &mut String) -> std::fmt::Result {
    let used = field.functions.iter().take(FUNCTIONS).map(|used| {
        let (function, most_at) = (&used.function, &used.most_at);
        let accesses = used.accesses;
        format!("{function} {}/{} ({most_at})", accesses.reads, accesses.writes)
    });
    let more = match field.functions.len().saturating_sub(FUNCTIONS) {
        0 => String::new(),
        more => format!("; {more} more"),
    };
    let used: Vec<String> = used.collect();
    writeln!(out, "  {:>4} {:>2}  r/w by {}{more}", field.offset, field.size, used.join("; "))
}

fn cure(cure: &Cure) -> String {
    let list = |names: &[String]| some(names.iter().map(String::as_str));
    match cure {
        Cure::TrueSharing => "placement does not help: the CPUs use what other CPUs write. Write \
                              it less often, or give each CPU its own"
            .to_owned(),
        Cure::OneCpu => "none: one CPU uses the line".to_owned(),
        Cure::Align { object, beside } => format!(
            "align {object} to a line, with nothing behind it in that line: it lies beside {}",
            list(beside)
        ),
        Cure::PerCpu { object } => {
            format!("make {object} per-CPU: each CPU writes an element of its own")
        }
        Cure::MoveWritten { field, readers } => format!(
            "move the written field {field} away from {}, which other CPUs read",
            list(readers)
        ),
        Cure::MoveField { field, beside } => {
            format!("move the field {field} to its own line: other CPUs use {}", list(beside))
        }
    }
}

/// What coherence costs with data at another place.
pub fn change(change: &SharingChange) -> String {
    let SharingChange { workload, kernel_build_id, seed, machine, cpus, .. } = change;
    let mut out = format!(
        "sharing in {workload}, kernel {kernel_build_id}, seed {seed}: {cpus} CPUs, simulated on \
         {machine}, {}\n\n",
        order::title(change.order)
    );
    for moved in &change.moved {
        let cpu = moved.cpu.map_or(String::new(), |cpu| format!(" of CPU {cpu}"));
        let (name, bytes, addr) = (&moved.name, moved.bytes, &moved.addr);
        let place = match &moved.objects {
            None => format!("{bytes} bytes at {addr}, in lines of its own"),
            Some(objects) => format!(
                "{bytes} bytes of each object of slab {}, in lines of their own: {} objects",
                objects.cache, objects.number
            ),
        };
        // Writing to a `String` never fails.
        let _ = writeln!(out, "{name}{cpu}, {place}");
    }
    let (before, after) = (&change.before, &change.after);
    let mut table = TextTable::new(&["", "as it is", "moved", "difference"]);
    type OfTotal = fn(&SharingTotal) -> u64;
    let counts: [(&str, OfTotal); 5] = [
        ("misses by true sharing", |total| total.all_misses().true_sharing),
        ("misses by false sharing", |total| total.all_misses().false_sharing),
        ("upgrades", |total| total.upgrades.total()),
        ("cold misses", |total| total.all_misses().cold),
        ("capacity misses", |total| total.all_misses().capacity),
    ];
    for (title, of) in counts {
        let (before, after) = (of(before), of(after));
        let difference = i128::from(after) - i128::from(before);
        let cells = [title.to_owned(), before.to_string(), after.to_string()];
        table.push(cells.into_iter().chain([format!("{difference:+}")]).collect());
    }
    for (title, before, after) in [
        ("kcycles of coherence", before.cycles, after.cycles),
        ("kcycles of all misses", before.stalls, after.stalls),
    ] {
        let cells = [before, after].map(|cycles| format!("{:.1}", cycles / 1e3));
        let difference = format!("{:+.1}", (after - before) / 1e3);
        table.push([title.to_owned()].into_iter().chain(cells).chain([difference]).collect());
    }
    out += "\n";
    out += &table.to_text();
    if let Some((before, after)) = &change.recorded {
        // Writing to a `String` never fails.
        let _ = writeln!(
            out,
            "\nin the order of the recording: {:+.1} kcycles of coherence, of {:.1}",
            (after.cycles - before.cycles) / 1e3,
            before.cycles / 1e3
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use coherence::sharing::table::{
        AccessCounts, FunctionUse, ObjectRow, OrderedTotals, StructureClass,
    };
    use coherence::sharing::what_if::{MovedData, MovedObjects};
    use execution::cpu_order::CpuOrder;
    use sim::coherent::{ClassCounts, SupplierCounts};

    fn counts(false_sharing: u64, upgrades: u64) -> LineCounts {
        let core = false_sharing + upgrades;
        LineCounts {
            misses: ClassCounts { cold: 1, false_sharing, ..ClassCounts::default() },
            upgrades,
            served: SupplierCounts { core, ..SupplierCounts::default() },
            cycles: 80.0 * core as f64,
        }
    }

    fn field(offset: u32, name: &str, cpu: usize) -> FieldRow {
        let mut cpus = vec![AccessCounts::default(); 2];
        cpus[cpu] = AccessCounts { reads: 100, writes: 100 };
        let function = format!("f{cpu}");
        let most_at = format!("f{cpu}+0x4");
        FieldRow {
            offset,
            size: 8,
            object: 0,
            name: name.to_owned(),
            functions: vec![FunctionUse { function, accesses: cpus[cpu], most_at }],
            cpus,
            counts: counts(99, 99 + cpu as u64),
        }
    }

    fn total(false_sharing: u64, cycles: f64) -> SharingTotal {
        let mut total = SharingTotal { cycles, stalls: cycles + 1e6, ..SharingTotal::default() };
        total.instructions.kernel = 1_000_000;
        total.misses.kernel.false_sharing = false_sharing;
        total.upgrades.user = false_sharing;
        total
    }

    fn two_counters() -> SharingTable {
        let object = ObjectRow {
            class: StructureClass::Static,
            name: "pair".to_owned(),
            place: None,
            cpu: None,
            title: "static pair".to_owned(),
            addr: "ffffffff82000000".to_owned(),
            bytes: Some(16),
            cycles: 31_760.0,
        };
        SharingTable {
            workload: "files".to_owned(),
            kernel_build_id: "5f3c".to_owned(),
            seed: 1,
            cpus: 2,
            machine: "server-8".to_owned(),
            line_bytes: 64,
            totals: OrderedTotals { total: total(198, 31_760.0), ..OrderedTotals::default() },
            shared_lines: 1,
            unranked_cycles: 0.0,
            types_known: false,
            frames_unknown: None,
            data_lines: 1,
            data: Vec::new(),
            functions: vec![
                FunctionRow { function: "f1".to_owned(), counts: counts(198, 199), stalls: 4e4 },
                FunctionRow { function: "f2".to_owned(), counts: counts(0, 0), stalls: 400.0 },
            ],
            lines: vec![LineRow {
                physical: "2000000".to_owned(),
                addr: "ffffffff82000000".to_owned(),
                counts: counts(198, 199),
                share: 1.0,
                cpus: vec![
                    PerMode { kernel: counts(99, 99), user: LineCounts::default() },
                    PerMode { kernel: LineCounts::default(), user: counts(99, 100) },
                ],
                objects: vec![object],
                cure: Cure::MoveField {
                    field: "pair.hits".to_owned(),
                    beside: vec!["pair.misses".to_owned()],
                },
                fields: vec![field(0, "pair.hits", 0), field(8, "pair.misses", 1)],
            }],
        }
    }

    #[test]
    fn a_line_has_its_cure_and_its_fields() {
        let text = text(&two_counters());
        let (head, tables) = text.split_once("\n\n").unwrap();
        assert!(head.ends_with("2 CPUs, simulated on server-8, in the order of the recording"));
        let (amounts, tables) = tables.split_once("\n\n").unwrap();
        assert!(amounts.starts_with("0 misses by true sharing, 198 by false sharing and 198 "));
        assert!(amounts.ends_with("0.032 Mcycles, 31.76 cycles for each 1000 instructions"));
        assert_eq!(tables, LINES);
    }

    const LINES: &str = "  \
  line                       address  kcycles   of all  true  false  upgrades  cold  capacity
    1  static pair  ffffffff82000000     31.8  100.0 %     0    198       199     1         0

functions that asked for lines, their code included:

  function  kcycles   of all  true  false  upgrades  cold  capacity  stalls
  f1           31.8  100.0 %     0    198       199     1         0    40.0

line 1: ffffffff82000000 (physical 2000000): static pair
  cure: move the field pair.hits to its own line: other CPUs use pair.misses
  CPU 0: kernel true 0, false 99, upgrades 99
  CPU 1: user mode true 0, false 99, upgrades 100
  byte, size, field     kcycles  true  false  upgrades  CPU 0 r/w  CPU 1 r/w
     0  8  pair.hits       15.8     0     99        99    100/100        0/0
     8  8  pair.misses     15.9     0     99       100        0/0    100/100
     0  8  r/w by f0 100/100 (f0+0x4)
     8  8  r/w by f1 100/100 (f1+0x4)

the kernel has no BTF: fields are offsets in their objects
";

    #[test]
    fn data_of_several_lines_is_added_up() {
        let mut of = two_counters();
        let row = |name: &str, lines| DataRow {
            class: StructureClass::Slab,
            name: name.to_owned(),
            title: format!("slab {name}"),
            lines,
            counts: counts(198, 199),
            share: 0.5,
            cure: Cure::MoveWritten {
                field: "dentry.d_lockref".to_owned(),
                readers: vec!["dentry.d_iname[8]".to_owned()],
            },
        };
        of.data = vec![row("filp", 1), row("dentry", 7)];
        of.data_lines = 8;
        let text = text(&of);
        let (_, tables) = text.split_once("0\n\n").unwrap();
        let (data, _) = tables.split_once("\nfunctions").unwrap();
        assert_eq!(data, DATA_OF_LINES);
    }

    const DATA_OF_LINES: &str = "\
data that several of the first 8 lines hold:

  data         lines  kcycles  of all  true  false  upgrades
  slab dentry      7     31.8  50.0 %     0    198       199
  slab dentry: the cure for its first line: move the written field dentry.d_lockref away from \
dentry.d_iname[8], which other CPUs read
";

    #[test]
    fn a_change_has_differences() {
        let moved = MovedData {
            name: "pair.misses".to_owned(),
            cpu: None,
            addr: "ffffffff82000008".to_owned(),
            bytes: 8,
            objects: None,
        };
        let cache = "dentry".to_owned();
        let in_slab = MovedData {
            name: "dentry.d_lockref".to_owned(),
            addr: String::new(),
            objects: Some(MovedObjects { cache, number: 12 }),
            ..moved.clone()
        };
        let of = two_counters();
        let text = change(&SharingChange {
            workload: of.workload,
            kernel_build_id: of.kernel_build_id,
            seed: of.seed,
            cpus: of.cpus,
            machine: of.machine,
            order: CpuOrder::SideBySide,
            moved: vec![moved, in_slab],
            before: total(198, 31_760.0),
            after: total(0, 0.0),
            recorded: Some((total(10, 800.0), total(0, 0.0))),
        });
        let (_, moved) = text.split_once("\n\n").unwrap();
        assert_eq!(moved, CHANGE);
    }

    const CHANGE: &str = "\
pair.misses, 8 bytes at ffffffff82000008, in lines of its own
dentry.d_lockref, 8 bytes of each object of slab dentry, in lines of their own: 12 objects

                           as it is   moved  difference
  misses by true sharing          0       0          +0
  misses by false sharing       198       0        -198
  upgrades                      198       0        -198
  cold misses                     0       0          +0
  capacity misses                 0       0          +0
  kcycles of coherence         31.8     0.0       -31.8
  kcycles of all misses      1031.8  1000.0       -31.8

in the order of the recording: -0.8 kcycles of coherence, of 0.8
";
}
