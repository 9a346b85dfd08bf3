//! A core for the operating system: what `report --os-core` counts agrees with the services, with
//! their cycles on coherent caches, and with the shared lines of the same recording.

use super::TestedMachine;
use anyhow::{Context, Result, ensure};
use coherence::os_core::policy::OsCorePolicy;
use coherence::os_core::table::PolicyRow;
use services::Attribution;
use std::path::Path;

const MACHINE: &str = "os-core-8";

/// Expects a recording with data accesses.
pub(super) fn agrees(machine: &TestedMachine, recording: &Path) -> Result<()> {
    let kernel = &machine.kernel.vmlinux;
    let mut attribution = Attribution::open(kernel, None, &[MACHINE.to_owned()])?;
    // Services on coherent caches have no predictors.
    attribution.machines.iter_mut().for_each(|machine| machine.branch = None);
    let policies = [OsCorePolicy::Everything, OsCorePolicy::LongerThan(1000)];
    let table =
        coherence::os_core(&attribution, recording, &policies, None)?.pop().context("no table")?;
    let [nothing, everything, longer] = &table.policies[..] else {
        anyhow::bail!("there are {} policies", table.policies.len())
    };

    let sharing =
        coherence::sharing(&attribution, recording, kernel, 1)?.pop().context("no table")?;
    let shared = (sharing.total.all_misses().coherence(), sharing.total.upgrades.total());
    let counted = (coherence(nothing), nothing.application.upgrades.total());
    ensure!(counted == shared, "{counted:?} coherence misses and upgrades, and {shared:?}");

    let services =
        coherence::multiprocessor(&attribution, recording, None)?.pop().context("no table")?;
    let cycles: f64 = services.modes.iter().map(|mode| mode.cycles.total()).sum();
    ensure!(
        cycles == nothing.busy_cycles,
        "{} busy cycles, and {cycles} of services",
        nothing.busy_cycles
    );

    let idle = attribution.table(recording)?.idle_instructions;
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
