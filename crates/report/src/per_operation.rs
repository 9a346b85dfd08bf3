//! What one operation costs, as a table for a terminal.
//!
//! Input: costs. Output: text. Counts nothing.

use host::table::TextTable;
use replay::per_operation::OperationCost;
use replay::results::ResultKind;

/// A table for each machine.
pub fn text(costs: &[OperationCost]) -> String {
    let mut machines: Vec<&str> = Vec::new();
    for cost in costs {
        if !machines.contains(&cost.machine.as_str()) {
            machines.push(&cost.machine);
        }
    }
    let texts: Vec<String> = machines.iter().map(|machine| of_machine(costs, machine)).collect();
    texts.join("\n")
}

fn of_machine(costs: &[OperationCost], machine: &str) -> String {
    let mut table = TextTable::new(&[
        "workload", "layout", "instr. k", "instr. u", "taken k", "L1I", "iTLB", "cycles",
    ]);
    for cost in costs.iter().filter(|cost| cost.machine == machine) {
        let number = |value: f64| format!("{value:.1}");
        let kind = match cost.kind {
            ResultKind::Recorded => "",
            ResultKind::Predicted => " (predicted)",
        };
        table.push(vec![
            cost.workload.clone(),
            format!("{}{kind}", cost.layout),
            number(cost.kernel_instructions),
            number(cost.user_instructions),
            number(cost.taken_branches),
            number(cost.l1i_misses),
            cost.itlb_misses.map_or("-".to_owned(), number),
            number(cost.cycles),
        ]);
    }
    format!(
        "one operation on {machine}: instructions of kernel and user (recorded), taken branches of \
         the kernel, misses and cycles (simulated)\n{}",
        table.to_text()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use replay::examples::{original, predicted};
    use replay::per_operation::{OPERATIONS, per_operation};

    #[test]
    fn a_table_for_each_machine() {
        let mut rows = [original(), predicted()];
        for row in &mut rows {
            row.conditions.insert(OPERATIONS.into(), "100".into());
        }
        let mut other = rows[0].clone();
        other.machine = "small-core".into();
        let costs = per_operation(&[rows[0].clone(), rows[1].clone(), other]).unwrap();
        let text = text(&costs);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["net", "original", "900.0", "100.0", "10.1", "10.0", "-", "1234.6"]);
        assert_eq!(lines[3][..3], ["net", "ext-tsp", "(predicted)"]);
        assert!(text.contains("\n\none operation on small-core: "), "{text}");
    }
}
