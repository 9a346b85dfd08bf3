//! What one operation costs: the counters of a row, divided by the number of operations.
//!
//! Input: rows of recordings that say their number of operations. Output: one [`OperationCost`] a
//! row. The recording holds the operations and what interrupted them, so a cost is exact for the
//! recording, and includes its share of the interrupts.

use crate::results::{ResultKind, ResultRow};
use anyhow::{Context, Result};
use serde::Serialize;

/// The condition of a recording that holds its number of operations.
pub const OPERATIONS: &str = "operations";

/// One operation of a workload, with one layout, on one machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperationCost {
    /// The recorded workload.
    pub workload: String,
    /// The layout's name.
    pub layout: String,
    /// The simulated machine.
    pub machine: String,
    /// Which execution was simulated.
    pub kind: ResultKind,
    /// The number of recorded operations. All that follows is for one operation.
    pub operations: u64,
    /// Recorded instructions, in the kernel.
    pub kernel_instructions: f64,
    /// Recorded instructions, in user mode.
    pub user_instructions: f64,
    /// Taken branches of the kernel: conditional branches and direct jumps.
    pub taken_branches: f64,
    /// Simulated L1I misses, of the kernel and of user mode together.
    pub l1i_misses: f64,
    /// Simulated iTLB misses, of the kernel and of user mode together; `None` if the machine has
    /// no iTLB.
    pub itlb_misses: Option<f64>,
    /// Cycles of the machine's model.
    pub cycles: f64,
}

/// The costs, in the order of the rows.
///
/// # Errors
/// A row's recording does not say how many operations it holds.
pub fn per_operation(rows: &[ResultRow]) -> Result<Vec<OperationCost>> {
    rows.iter().map(cost).collect()
}

fn cost(row: &ResultRow) -> Result<OperationCost> {
    let operations = row
        .conditions
        .get(OPERATIONS)
        .and_then(|number| number.parse::<u64>().ok())
        .filter(|operations| *operations > 0);
    let operations = operations.with_context(|| {
        format!(
            "{}: its recording does not say its number of operations: record bench:NAME, or write \
             `operations = N` into the workload's file",
            row.workload
        )
    })?;
    let each = |count: u64| count as f64 / operations as f64;
    let counters = &row.counters;
    Ok(OperationCost {
        workload: row.workload.clone(),
        layout: row.layout.clone(),
        machine: row.machine.clone(),
        kind: row.kind,
        operations,
        kernel_instructions: each(counters.instructions.kernel),
        user_instructions: each(counters.instructions.user),
        taken_branches: each(counters.kernel_jumps()),
        l1i_misses: each(counters.misses()),
        itlb_misses: counters.itlb.map(|itlb| each(itlb.total())),
        cycles: counters.cycles / operations as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{original, predicted};

    #[test]
    fn a_cost_is_a_count_divided_by_the_operations() {
        let mut rows = [original(), predicted()];
        for row in &mut rows {
            row.conditions.insert(OPERATIONS.into(), "100".into());
        }
        let [first, second] = &per_operation(&rows).unwrap()[..] else { panic!() };
        assert_eq!((first.kernel_instructions, first.user_instructions), (900.0, 100.0));
        assert_eq!((first.l1i_misses, second.l1i_misses), (10.0, 6.0));
        assert_eq!(first.taken_branches, 10.05);
        assert_eq!((first.itlb_misses, first.cycles), (None, 1234.56));
        assert_eq!((second.kind, second.operations), (ResultKind::Predicted, 100));
    }

    #[test]
    fn a_recording_without_operations_is_named() {
        let mut row = original();
        for number in [None, Some("0"), Some("many")] {
            row.conditions.remove(OPERATIONS);
            row.conditions.extend(number.map(|text| (OPERATIONS.to_owned(), text.to_owned())));
            let message = per_operation(std::slice::from_ref(&row)).unwrap_err().to_string();
            assert!(message.starts_with("net: its recording does not say"), "{message}");
        }
    }
}
