//! Misses as text: by cause, data structure, function and address.
//!
//! Input: the tables of `memory::misses`. Output: text. Counts nothing.

use crate::text::frames_unknown;
use host::table::{Column, TextTable};
use memory::misses::table::{MissTable, MissesByLevel, StructureRow};
use sim::MissCounts;
use std::fmt::Write;

/// The tables of one machine, with at most `top` rows each.
pub fn text(table: &MissTable, top: usize) -> String {
    let mut out = String::new();
    // Writing to a `String` never fails.
    let _ = write(table, top, &mut out);
    out
}

fn write(table: &MissTable, top: usize, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "misses of {}, kernel {}, seed {}, simulated on {}\n",
        table.workload, table.kernel_build_id, table.seed, table.machine
    )?;
    let mut levels = by_cause("level", None);
    for (mode, of) in [("KERN", &table.kernel), ("USER", &table.user)] {
        for (level, causes) in named(of) {
            levels.push(causes_row(&format!("{mode} {level}"), causes));
        }
    }
    out.push_str(&levels.to_text());
    by_structure(table, top, out)?;
    for (level, _) in named(&table.kernel) {
        by_function(table, top, level, out)?;
    }
    by_address(table, top, out)
}

/// The levels with misses.
fn named(levels: &MissesByLevel) -> Vec<(&'static str, &MissCounts)> {
    let all = [
        ("L1I", &levels.l1i),
        ("L1D", &levels.l1d),
        ("L2, instructions", &levels.l2i),
        ("L2, data", &levels.l2d),
        ("L3, instructions", &levels.l3i),
        ("L3, data", &levels.l3d),
    ];
    all.into_iter().filter(|(_, causes)| causes.total() > 0).collect()
}

/// A table of misses by cause, with one more count if it is named.
fn by_cause(what: &str, more: Option<&str>) -> TextTable {
    let counts = ["misses", "cold", "self", "other"].into_iter().chain(more);
    let counts = counts.map(|title| count(title, 14));
    TextTable::of([Column::left(what).fixed(28)].into_iter().chain(counts))
}

/// A column of counts. It stands close to the column before.
fn count(title: &str, wide: usize) -> Column {
    Column::right(title).fixed(wide).gap(0)
}

fn causes_row(name: &str, causes: &MissCounts) -> Vec<String> {
    let MissCounts { cold, own, other } = causes;
    let counts = [causes.total(), *cold, *own, *other];
    [name.to_owned()].into_iter().chain(counts.map(|count| count.to_string())).collect()
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

fn by_structure(table: &MissTable, top: usize, out: &mut String) -> std::fmt::Result {
    let total: u64 = table.structures.iter().map(StructureRow::l1d).sum();
    let counts = [("of L1D", 8), ("KERN L1D", 12), ("cold", 11), ("self", 11), ("other", 11)];
    let counts = counts.into_iter().chain([("USER L1D", 12), ("L2", 12)]);
    let counts = counts.map(|(title, wide)| count(title, wide));
    let mut data = TextTable::of([Column::left("data").fixed(44)].into_iter().chain(counts));
    let share = |part: u64| format!("{:.2} %", percent(part, total));
    for row in table.structures.iter().take(top) {
        let MissCounts { cold, own, other } = row.kernel.l1d;
        let name = format!("{} {}", row.class.title(), row.name);
        let l2 = row.kernel.l2d.total() + row.user.l2d.total();
        let counts = [row.kernel.l1d.total(), cold, own, other, row.user.l1d.total(), l2];
        let cells = [name.trim_end().to_owned(), share(row.l1d())].into_iter();
        data.push(cells.chain(counts.map(|count| count.to_string())).collect());
    }
    if table.structures.len() > top {
        let rest: u64 = table.structures[top..].iter().map(StructureRow::l1d).sum();
        data.push(vec![format!("{} more", table.structures.len() - top), share(rest)]);
    }
    write!(out, "\n{}", data.to_text())?;
    writeln!(out, "data of unknown use: {:.2} % of the L1D's misses", 100.0 * table.other_share)?;
    if let Some(why) = &table.frames_unknown {
        writeln!(out, "{}", frames_unknown(why))?;
    }
    Ok(())
}

fn by_function(table: &MissTable, top: usize, level: &str, out: &mut String) -> std::fmt::Result {
    let of = |levels: &MissesByLevel| {
        named(levels).into_iter().find(|(name, _)| *name == level).map(|(_, causes)| *causes)
    };
    let mut rows: Vec<(&str, MissCounts)> = table
        .functions
        .iter()
        .filter_map(|row| Some((row.name.as_str(), of(&row.misses)?)))
        .collect();
    rows.sort_by(|(a, a_causes), (b, b_causes)| {
        b_causes.total().cmp(&a_causes.total()).then_with(|| a.cmp(b))
    });
    let mut functions = by_cause(&format!("{level}, by function"), None);
    rows.iter().take(top).for_each(|(name, causes)| functions.push(causes_row(name, causes)));
    write!(out, "\n{}", functions.to_text())
}

fn by_address(table: &MissTable, top: usize, out: &mut String) -> std::fmt::Result {
    let total = table.ranges.iter().map(|range| range.misses.total()).sum();
    writeln!(
        out,
        "\nL1I misses of the kernel by ranges of {} bytes; {} ranges ran",
        table.range_bytes,
        table.ranges.len()
    )?;
    for step in &table.concentration {
        let part = percent(step.misses, total);
        writeln!(
            out,
            "{:>8} ranges have {part:>5.1} %  {}",
            step.ranges,
            "#".repeat((part / 2.0) as usize)
        )?;
    }
    let mut most: Vec<_> = table.ranges.iter().collect();
    most.sort_by_key(|range| (std::cmp::Reverse(range.misses.total()), range.start.clone()));
    let mut ranges = by_cause("range", Some("references"));
    for range in most.into_iter().take(top.min(10)) {
        let mut cells = causes_row(&range.start, &range.misses);
        cells.push(range.references.to_string());
        ranges.push(cells);
    }
    write!(out, "\n{}", ranges.to_text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use coherence::sharing::table::StructureClass;
    use memory::misses::table::{Concentration, FunctionMissRow, RangeRow};

    fn misses(cold: u64, own: u64, other: u64) -> MissCounts {
        MissCounts { cold, own, other }
    }

    #[test]
    fn columns_stand_where_they_stood() {
        let kernel =
            MissesByLevel { l1i: misses(1, 2, 3), l1d: misses(10, 20, 30), ..Default::default() };
        let user = MissesByLevel { l2d: misses(0, 0, 4), ..Default::default() };
        let structure = |name: &str, kernel, user| StructureRow {
            class: StructureClass::Slab,
            name: name.to_owned(),
            kernel,
            user,
            slices: Vec::new(),
        };
        let of_data = MissesByLevel { l1d: misses(30, 0, 0), ..user };
        let rest = MissesByLevel { l1d: misses(0, 0, 10), ..Default::default() };
        let table = MissTable {
            workload: "net".into(),
            kernel_build_id: "5f3c".into(),
            seed: 7,
            machine: "m".into(),
            kernel,
            user,
            functions: vec![FunctionMissRow {
                name: "a_function_with_a_very_long_name_of_its_own".into(),
                kernel: true,
                misses: kernel,
            }],
            ranges: vec![RangeRow {
                start: "ffffffff81000000".into(),
                references: 99,
                misses: misses(1, 2, 3),
            }],
            range_bytes: 1024,
            concentration: vec![Concentration { ranges: 1, misses: 6 }],
            structures: vec![
                structure("dentry", kernel, of_data),
                structure("inode", Default::default(), rest),
            ],
            other_share: 0.0,
            frames_unknown: None,
        };
        let expected = [
            "misses of net, kernel 5f3c, seed 7, simulated on m\n",
            "\n",
            "level                               misses          cold          self",
            "         other\n",
            "KERN L1I                                 6             1             2",
            "             3\n",
            "KERN L1D                                60            10            20",
            "            30\n",
            "USER L2, data                            4             0             0",
            "             4\n",
            "\n",
            "data                                          of L1D    KERN L1D      ",
            " cold       self      other    USER L1D          L2\n",
            "slab dentry                                  90.00 %          60      ",
            "   10         20         30          30           4\n",
            "1 more                                       10.00 %\n",
            "data of unknown use: 0.00 % of the L1D's misses\n",
            "\n",
            "L1I, by function                    misses          cold          self",
            "         other\n",
            "a_function_with_a_very_long_name_of_its_own             6             ",
            "1             2             3\n",
            "\n",
            "L1D, by function                    misses          cold          self",
            "         other\n",
            "a_function_with_a_very_long_name_of_its_own            60            1",
            "0            20            30\n",
            "\n",
            "L1I misses of the kernel by ranges of 1024 bytes; 1 ranges ran\n",
            "       1 ranges have 100.0 %  ########################################",
            "##########\n",
            "\n",
            "range                               misses          cold          self",
            "         other    references\n",
            "ffffffff81000000                         6             1             2",
            "             3            99\n",
        ];
        assert_eq!(text(&table, 1), expected.concat());
    }
}
