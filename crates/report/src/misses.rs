//! Misses as text: by cause, data structure, function and address.
//!
//! Input: the tables of `attribution::misses`. Output: text. Counts nothing.

use crate::text::frames_unknown;
use attribution::misses::table::{MissTable, MissesByLevel, StructureRow};
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
    writeln!(out, "{:<28}{:>14}{:>14}{:>14}{:>14}", "level", "misses", "cold", "self", "other")?;
    for (mode, levels) in [("KERN", &table.kernel), ("USER", &table.user)] {
        for (level, causes) in named(levels) {
            causes_line(out, &format!("{mode} {level}"), causes)?;
        }
    }
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

fn causes_line(out: &mut String, name: &str, causes: &MissCounts) -> std::fmt::Result {
    let MissCounts { cold, own, other } = causes;
    writeln!(out, "{name:<28}{:>14}{cold:>14}{own:>14}{other:>14}", causes.total())
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

fn by_structure(table: &MissTable, top: usize, out: &mut String) -> std::fmt::Result {
    let total: u64 = table.structures.iter().map(StructureRow::l1d).sum();
    writeln!(
        out,
        "\n{:<44}{:>8}{:>12}{:>11}{:>11}{:>11}{:>12}{:>12}",
        "data", "of L1D", "KERN L1D", "cold", "self", "other", "USER L1D", "L2"
    )?;
    for row in table.structures.iter().take(top) {
        let MissCounts { cold, own, other } = row.kernel.l1d;
        let name = format!("{} {}", row.class.title(), row.name);
        writeln!(
            out,
            "{:<44}{:>6.2} %{:>12}{cold:>11}{own:>11}{other:>11}{:>12}{:>12}",
            name.trim_end(),
            percent(row.l1d(), total),
            row.kernel.l1d.total(),
            row.user.l1d.total(),
            row.kernel.l2d.total() + row.user.l2d.total(),
        )?;
    }
    if table.structures.len() > top {
        let rest: u64 = table.structures[top..].iter().map(StructureRow::l1d).sum();
        writeln!(
            out,
            "{:<44}{:>6.2} %",
            format!("{} more", table.structures.len() - top),
            percent(rest, total)
        )?;
    }
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
    writeln!(
        out,
        "\n{:<28}{:>14}{:>14}{:>14}{:>14}",
        format!("{level}, by function"),
        "misses",
        "cold",
        "self",
        "other"
    )?;
    for (name, causes) in rows.iter().take(top) {
        causes_line(out, name, causes)?;
    }
    Ok(())
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
    writeln!(
        out,
        "\n{:<28}{:>14}{:>14}{:>14}{:>14}{:>14}",
        "range", "misses", "cold", "self", "other", "references"
    )?;
    for range in most.into_iter().take(top.min(10)) {
        let MissCounts { cold, own, other } = range.misses;
        let total = range.misses.total();
        writeln!(
            out,
            "{:<28}{total:>14}{cold:>14}{own:>14}{other:>14}{:>14}",
            range.start, range.references
        )?;
    }
    Ok(())
}
