//! The fields of a structure, as text.
//!
//! Input: the tables of `memory::fields`. Output: text. Counts nothing.

use crate::text::frames_unknown;
use crate::top::TopRows;
use host::table::{Column, TextTable};
use memory::fields::table::{AccessCounts, FieldRow, FieldTable, MemberRow};
use memory::fields::what_if::OrderChange;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Instructions and services that a field shows.
const NAMED: usize = 3;
/// Pairs of fields and untyped memory.
const FEW: usize = 10;
/// A field that is written in at least this share of its accesses is not `read_mostly`.
const WRITTEN: f64 = 0.01;

/// The table of one structure.
pub fn text(table: &FieldTable, top: TopRows) -> String {
    let mut out = String::new();
    // Writing to a `String` never fails.
    let _ = write(table, top, &mut out);
    out
}

fn write(table: &FieldTable, top: TopRows, out: &mut String) -> std::fmt::Result {
    let FieldTable { workload, kernel_build_id, seed, cpus, structure, bytes, .. } = table;
    let cpus = if *cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") };
    let machine = table.machine.as_deref();
    let machine = machine.map_or(String::new(), |it| format!(", misses simulated on {it}"));
    writeln!(
        out,
        "fields of {structure} in {workload}, kernel {kernel_build_id}, seed {seed}: {cpus}{machine}"
    )?;
    writeln!(
        out,
        "{bytes} bytes, {} lines of {} bytes; {} reads and {} writes of the kernel\n",
        bytes.div_ceil(table.line_bytes),
        table.line_bytes,
        table.accesses.reads,
        table.accesses.writes
    )?;
    sources(table, out)?;
    fields(table, top, out)?;
    users(table, top, out)?;
    pairs(table, out)?;
    services(table, top, out)?;
    typed(table, out)?;
    match &table.frames_unknown {
        Some(why) => writeln!(out, "{}", frames_unknown(why)),
        None => Ok(()),
    }
}

fn sources(table: &FieldTable, out: &mut String) -> std::fmt::Result {
    let mut titles = vec!["objects in", "known by", "reads", "writes"];
    titles.extend(table.machine.is_some().then_some("L1D misses"));
    let mut rows = TextTable::new(&titles);
    for row in table.sources.iter().take(FEW) {
        let name = format!("{} {}", row.class, row.name).trim_end().to_owned();
        let mut cells = vec![
            name,
            row.known_by.to_owned(),
            row.accesses.reads.to_string(),
            row.accesses.writes.to_string(),
        ];
        cells.extend(row.l1d_misses.map(|misses| misses.to_string()));
        rows.push(cells);
    }
    writeln!(out, "{}", rows.to_text())
}

fn fields(table: &FieldTable, top: TopRows, out: &mut String) -> std::fmt::Result {
    let mut columns = vec![
        Column::left("field"),
        Column::left("type"),
        Column::right("offset"),
        Column::right("bytes"),
        Column::right("line"),
        Column::right("reads"),
        Column::right("writes"),
    ];
    let several = table.cpus > 1;
    if several {
        columns.extend([Column::right("reads of another"), Column::right("writes over another")]);
    }
    if table.machine.is_some() {
        columns.extend([Column::right("L1D misses"), Column::right("L2 misses")]);
    }
    columns.push(Column::left("most used by"));
    let mut rows = TextTable::of(columns);
    for row in table.fields.iter().take(top.most) {
        let mut cells = vec![row.name.clone(), row.kind.clone()];
        let numbers = [row.offset, row.size, row.line, row.accesses.reads, row.accesses.writes];
        cells.extend(numbers.map(|number| number.to_string()));
        cells.extend(
            row.from_other.iter().flat_map(|it| [it.reads, it.writes]).map(|it| it.to_string()),
        );
        cells.extend(row.misses.iter().flat_map(|it| [it.l1d, it.l2]).map(|it| it.to_string()));
        let service = row.services.first().map_or(String::new(), |it| {
            let share = 100.0 * it.accesses.total() as f64 / row.accesses.total().max(1) as f64;
            format!("{} {} {share:.0} %", it.service.kind.title(), it.service.name)
        });
        cells.push(service);
        rows.push(cells);
    }
    write!(out, "{}{}", rows.to_text(), top.rest(table.fields.len()))
}

fn users(table: &FieldTable, top: TopRows, out: &mut String) -> std::fmt::Result {
    let mut rows = TextTable::of([
        Column::left("field"),
        Column::left("function"),
        Column::left("code"),
        Column::right("reads"),
        Column::right("writes"),
        Column::left("line"),
    ]);
    for row in table.fields.iter().take(top.most.min(2 * FEW)) {
        for (number, site) in row.sites.iter().take(NAMED).enumerate() {
            let name = if number == 0 { row.name.clone() } else { String::new() };
            rows.push(vec![
                name,
                site.function.clone(),
                site.code.clone(),
                site.accesses.reads.to_string(),
                site.accesses.writes.to_string(),
                site.line.clone().unwrap_or_default(),
            ]);
        }
    }
    write!(out, "\n{}", rows.to_text())
}

fn pairs(table: &FieldTable, out: &mut String) -> std::fmt::Result {
    let mut rows = TextTable::of([
        Column::left("used together"),
        Column::left("and"),
        Column::right("times"),
        Column::right("of the first"),
        Column::right("of the second"),
    ]);
    for row in table.pairs.iter().take(FEW) {
        let share =
            |each: u64| format!("{:.0} %", 100.0 * row.together as f64 / each.max(1) as f64);
        let [first, second] = row.fields.clone();
        let [a, b] = row.each.map(share);
        rows.push(vec![first, second, row.together.to_string(), a, b]);
    }
    write!(out, "\n{}", rows.to_text())
}

fn services(table: &FieldTable, top: TopRows, out: &mut String) -> std::fmt::Result {
    let mut rows = TextTable::of([
        Column::left("service"),
        Column::right("invocations"),
        Column::right("objects"),
        Column::right("reads"),
        Column::right("writes"),
        Column::right("lines of an object"),
        Column::right("would do"),
    ]);
    for row in table.services.iter().take(top.most.min(FEW)) {
        rows.push(vec![
            format!("{} {}", row.service.kind.title(), row.service.name),
            row.invocations.to_string(),
            row.objects.to_string(),
            row.accesses.reads.to_string(),
            row.accesses.writes.to_string(),
            format!("{:.2}", row.lines),
            format!("{:.2}", row.fewest),
        ]);
    }
    write!(out, "\n{}", rows.to_text())
}

fn typed(table: &FieldTable, out: &mut String) -> std::fmt::Result {
    let typed = &table.typed;
    let share = |part: u64| format!("{:.1} %", 100.0 * part as f64 / typed.accesses.max(1) as f64);
    writeln!(
        out,
        "\nof the kernel's {} accesses, {} have a structure: {} by their slab cache, {} by their \
         symbol, {} by the code, {} by later code; {} are to stacks, memory of processes, files and \
         their names, packets and page tables; {} have only a symbol",
        typed.accesses,
        share(typed.by_cache + typed.by_symbol + typed.by_code + typed.by_later_code),
        share(typed.by_cache),
        share(typed.by_symbol),
        share(typed.by_code),
        share(typed.by_later_code),
        share(typed.plain),
        share(typed.by_name)
    )?;
    let rest = typed.untyped.iter().take(FEW).map(|row| {
        let name = format!("{} {}", row.class, row.name);
        format!("{} {}", name.trim_end(), share(row.accesses))
    });
    writeln!(
        out,
        "without a structure: {} ({})",
        share(typed.unknown),
        rest.collect::<Vec<_>>().join(", ")
    )
}

/// The members of one structure in the form of the kernel's
/// Documentation/networking/net_cachelines: type, name, accesses of services that send and that
/// receive, and who accesses.
pub fn net_cachelines(table: &FieldTable) -> String {
    let title = format!("{} struct fast path usage in {}", table.structure, table.workload);
    let rule = "=".repeat(title.len());
    let mut out = format!(
        ".. kernel {}, seed {}\n\n{rule}\n{title}\n{rule}\n\n",
        table.kernel_build_id, table.seed
    );
    let rows: Vec<[String; 5]> = table.members.iter().map(|member| row(table, member)).collect();
    let head = ["Type", "Name", "fastpath_tx_access", "fastpath_rx_access", "Comments"];
    let head = head.map(str::to_owned);
    let of_struct = ["..struct", &format!("..{}", table.structure), "", "", ""].map(str::to_owned);
    let all = || [&head, &of_struct].into_iter().chain(&rows);
    let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..4).map(width).collect();
    let line: Vec<String> = widths.iter().map(|width| "=".repeat(*width)).collect();
    let line = format!("{}  {}\n", line.join("  "), "=".repeat(head[4].len().max(width(4))));
    out.push_str(&line);
    for (number, row) in all().enumerate() {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let text = format!("{}  {}", cells.collect::<Vec<_>>().join("  "), row[4]);
        out.push_str(text.trim_end());
        out.push('\n');
        if number == 0 {
            out.push_str(&line);
        }
    }
    out.push_str(&line);
    out
}

fn row(table: &FieldTable, member: &MemberRow) -> [String; 5] {
    let inside = |field: &&FieldRow| {
        let end = member.offset + member.size;
        (member.offset..end).contains(&field.offset)
    };
    let fields: Vec<&FieldRow> = table.fields.iter().filter(inside).collect();
    let sum = |of: fn(&FieldRow) -> AccessCounts| {
        let all = fields.iter().map(|field| of(field));
        all.fold(AccessCounts::default(), |sum, it| AccessCounts {
            reads: sum.reads + it.reads,
            writes: sum.writes + it.writes,
        })
    };
    let mut functions: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for site in fields.iter().flat_map(|field| &field.sites) {
        let sums = functions.entry(site.function.as_str()).or_default();
        sums[0] += site.sending.total();
        sums[1] += site.receiving.total();
    }
    let users = |direction: usize, title: &str| {
        let mut users: Vec<(&str, u64)> =
            functions.iter().map(|(name, sums)| (*name, sums[direction])).collect();
        users.retain(|(_, count)| *count > 0);
        users.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        let names: Vec<&str> = users.iter().take(NAMED).map(|(name, _)| *name).collect();
        if names.is_empty() { None } else { Some(format!("{}({title})", names.join(","))) }
    };
    let comments: Vec<String> = [users(0, "tx"), users(1, "rx")].into_iter().flatten().collect();
    let name = if member.name.is_empty() { "(unnamed)" } else { &member.name };
    [
        member.kind.replace(' ', "_"),
        name.to_owned(),
        access(sum(|field| field.sending)).to_owned(),
        access(sum(|field| field.receiving)).to_owned(),
        comments.join(";"),
    ]
}

/// The word of these documents for a mix of loads and stores.
fn access(counts: AccessCounts) -> &'static str {
    let written = counts.writes as f64 / counts.total().max(1) as f64;
    match counts.total() {
        0 => "-",
        _ if written < WRITTEN => "read_mostly",
        _ if written > 1.0 - WRITTEN => "write_mostly",
        _ => "read_write",
    }
}

/// What another order of the fields changes. `what_if`: how an order is asked for.
pub fn change(change: &OrderChange, what_if: &str) -> String {
    let OrderChange { structure, workload, kernel_build_id, seed, machine, .. } = change;
    let mut out = format!(
        "{structure} in another order, {workload}, kernel {kernel_build_id}, seed {seed}: misses of \
         the kernel, simulated on {machine}\n\n"
    );
    let mut rows = TextTable::new(&["misses", "as it is", "in the other order", "difference"]);
    let (before, after) = (&change.before, &change.after);
    for (title, before, after) in [
        (format!("L1D, on {structure}"), before.structure.l1d, after.structure.l1d),
        (format!("L2, on {structure}"), before.structure.l2, after.structure.l2),
        ("L1D, on all data".to_owned(), before.all.l1d, after.all.l1d),
        ("L2, on all data".to_owned(), before.all.l2, after.all.l2),
    ] {
        let difference = 100.0 * (after as f64 / before.max(1) as f64 - 1.0);
        let difference = format!("{difference:+.2} %");
        rows.push(vec![title, before.to_string(), after.to_string(), difference]);
    }
    out.push_str(&rows.to_text());
    let mut moved = TextTable::of([
        Column::right("offset"),
        Column::right("before"),
        Column::right("bytes"),
        Column::left("field"),
    ]);
    for it in &change.moved {
        let numbers = [it.to, it.from, it.size].map(|number| number.to_string());
        moved.push(numbers.into_iter().chain([it.name.clone()]).collect());
    }
    // Writing to a `String` never fails.
    let _ = write!(out, "\n{}", moved.to_text());
    let order: Vec<String> = change
        .moved
        .iter()
        .filter(|it| !it.name.is_empty())
        .map(|it| format!("{}={}", it.name, it.to))
        .collect();
    let _ = writeln!(out, "\n{what_if} '{}'", order.join(","));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::fields::table::{SiteRow, TypedShare};

    fn counts(reads: u64, writes: u64) -> AccessCounts {
        AccessCounts { reads, writes }
    }

    fn table() -> FieldTable {
        let member = |name: &str, kind: &str, offset, size| MemberRow {
            name: name.to_owned(),
            kind: kind.to_owned(),
            offset,
            size,
        };
        let site = |function: &str, sending, receiving| SiteRow {
            function: function.to_owned(),
            code: "ffffffff81000000".to_owned(),
            line: None,
            accesses: counts(sending + receiving, 0),
            sending: counts(sending, 0),
            receiving: counts(receiving, 0),
        };
        let field = |name: &str, offset, sending, receiving, sites| FieldRow {
            name: name.to_owned(),
            kind: String::new(),
            offset,
            size: 4,
            line: 0,
            accesses: counts(0, 0),
            sending,
            receiving,
            from_other: None,
            misses: None,
            services: Vec::new(),
            sites,
        };
        FieldTable {
            workload: "net".to_owned(),
            kernel_build_id: "5f3c".to_owned(),
            seed: 1,
            cpus: 1,
            machine: None,
            structure: "sock".to_owned(),
            bytes: 24,
            line_bytes: 64,
            accesses: counts(0, 0),
            sources: Vec::new(),
            fields: vec![
                // Both lie in the first member.
                field("base.a", 0, counts(99, 0), counts(1, 0), vec![site("send", 99, 1)]),
                field("base.b", 4, counts(1, 2), counts(0, 0), vec![site("queue", 3, 0)]),
                field("n", 8, counts(0, 0), counts(0, 5), vec![site("receive", 0, 5)]),
            ],
            members: vec![
                member("base", "struct base", 0, 8),
                member("n", "u32", 8, 4),
                member("", "union {…}", 16, 8),
            ],
            pairs: Vec::new(),
            services: Vec::new(),
            typed: TypedShare {
                accesses: 200,
                by_cache: 50,
                by_symbol: 10,
                by_code: 30,
                by_later_code: 10,
                plain: 80,
                by_name: 10,
                unknown: 10,
                untyped: Vec::new(),
            },
            frames_unknown: None,
        }
    }

    #[test]
    fn members_have_the_words_of_the_kernels_document() {
        let rule = "=".repeat(34);
        let title = "sock struct fast path usage in net";
        let expected = format!(".. kernel 5f3c, seed 1\n\n{rule}\n{title}\n{rule}\n\n");
        let text = net_cachelines(&table());
        assert!(text.starts_with(&expected), "{text}");
        let rows: Vec<&str> = text.lines().skip(6).collect();
        let line = [11, 9, 18, 18, 23].map(|width| "=".repeat(width)).join("  ");
        let line = line.as_str();
        assert_eq!(
            rows,
            [
                line,
                "Type         Name       fastpath_tx_access  fastpath_rx_access  Comments",
                line,
                "..struct     ..sock",
                "struct_base  base       read_write          read_mostly         send,queue(tx);send(rx)",
                "u32          n          -                   write_mostly        receive(rx)",
                "union_{…}    (unnamed)  -                   -",
                line,
            ]
        );
    }

    #[test]
    fn the_share_without_a_structure_is_printed() {
        let text = text(&table(), TopRows { most: 30, setting: None });
        assert!(text.contains("50.0 % have a structure: 25.0 % by their slab cache"), "{text}");
        assert!(text.contains("without a structure: 5.0 %"), "{text}");
    }
}
