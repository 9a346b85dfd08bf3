//! What never changes in recordings, as text.
//!
//! Input: the table of `services::constants`. Output: text. Counts nothing.

use crate::top::TopRows;
use host::table::{Column, TextTable};
use services::constants::{BranchShare, ConstantTable};
use std::fmt::Write;

/// The branches that always did the same.
pub fn text(table: &ConstantTable, top: TopRows) -> String {
    let mut out = String::new();
    // Writing to a `String` never fails.
    let _ = write(table, top, &mut out);
    out
}

fn write(table: &ConstantTable, top: TopRows, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "branches that always do the same in {}, kernel {}: {} instructions of the kernel\n",
        table.workloads.join(", "),
        table.kernel_build_id,
        table.instructions
    )?;
    let mut all = TextTable::new(&["branches", "executed", "times", "constant", "times", "of all"]);
    for (title, share) in [("conditional", &table.conditional), ("indirect", &table.indirect)] {
        let BranchShare { branches, executions, constant, constant_executions } = share;
        let part = 100.0 * *constant_executions as f64 / (*executions).max(1) as f64;
        let numbers = [branches, executions, constant, constant_executions];
        let mut row = vec![title.to_owned()];
        row.extend(numbers.map(|number| number.to_string()));
        row.push(format!("{part:.1} %"));
        all.push(row);
    }
    out.push_str(&all.to_text());
    writeln!(
        out,
        "left out: {} executions of conditional branches that the kernel patches\n",
        table.patched
    )?;
    let mut rows = TextTable::of([
        Column::right("executions"),
        Column::left("branch"),
        Column::left("function"),
        Column::left("code"),
        Column::left("to"),
        Column::left("line"),
    ]);
    for row in table.branches.iter().take(top.most) {
        rows.push(vec![
            row.executions.to_string(),
            row.kind.title().to_owned(),
            row.function.clone(),
            row.code.clone(),
            row.target.as_ref().map(|(name, _)| name.clone()).unwrap_or_default(),
            row.line.clone().unwrap_or_default(),
        ]);
    }
    write!(out, "{}{}", rows.to_text(), top.rest(table.branches.len()))
}
