//! A core for the operating system: what `report os-core` counts agrees with the services, with
//! their cycles on coherent caches, and with the shared lines of the same recording.

use super::TestedMachine;
use anyhow::{Context, Result, ensure};
use coherence::os_core::policy::OsCorePolicy;
use coherence::os_core::table::PolicyRow;
use execution::cpu_order::CpuOrder;
use services::Attribution;
use std::path::Path;

const MACHINE: &str = "os-core-8";

/// Expects a recording with data accesses.
pub(super) fn agrees(machine: &TestedMachine, recording: &Path) -> Result<()> {
    let kernel = &machine.kernel.vmlinux;
    let mut attribution = Attribution::open(kernel, None, &[MACHINE.to_owned()])?;
    // Services on coherent caches have no predictors, and the core for the system no TLBs.
    for machine in &mut attribution.machines {
        (machine.branch, machine.itlb) = (None, None);
        machine.memory.iter_mut().for_each(|memory| memory.dtlb = None);
    }
    let policies = [OsCorePolicy::Everything, OsCorePolicy::LongerThan(1000)];
    let table =
        coherence::os_core(&attribution, recording, &policies, None)?.pop().context("no table")?;
    let [nothing, everything, longer] = &table.policies[..] else {
        anyhow::bail!("there are {} policies", table.policies.len())
    };

    // Both take the order of the recording. The services run the fetches of a turn's last execution
    // later, so evictions can differ.
    let services = coherence::multiprocessor(&attribution, CpuOrder::Recorded, recording, None)?;
    let services = services.into_iter().next().context("no table")?;
    let total = &services.totals.total;
    let cycles: f64 = services.modes.iter().map(|mode| mode.cycles.total()).sum();
    let upgrades = nothing.application.upgrades.total();
    for (what, own, of_services) in [
        ("coherence misses", coherence(nothing) as f64, total.all_misses().coherence() as f64),
        ("upgrades", upgrades as f64, total.upgrades.total() as f64),
        ("busy cycles", nothing.busy_cycles, cycles),
    ] {
        ensure!(
            own > 0.0 && (own - of_services).abs() * 1000.0 <= own,
            "{own} {what}, and {of_services} of services"
        );
    }

    let idle = attribution.table(recording, None)?.idle_instructions;
    // Interrupts of the idle task also stay.
    let stayed = everything.application.instructions.kernel;
    ensure!(
        (idle..table.instructions.kernel / 2).contains(&stayed),
        "{stayed} of {} instructions of the kernel stayed, and {idle} are idle",
        table.instructions.kernel
    );
    for row in [everything, longer] {
        let all = row.application.instructions.kernel + row.os_core.instructions.kernel;
        ensure!(all == table.instructions.kernel, "{}: {all} instructions", row.policy);
        ensure!(row.os_core.instructions.user == 0, "{}: user code moved", row.policy);
        ensure!(row.moves > 0 && row.stays >= row.moves, "{}: {} moves", row.policy, row.moves);
    }
    ensure!(longer.moves < everything.moves, "longer stays move as often as all");
    Ok(())
}

fn coherence(row: &PolicyRow) -> u64 {
    row.application.coherence_misses.total() + row.os_core.coherence_misses.total()
}
