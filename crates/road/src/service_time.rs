//! The time of services on machines, by samples or by every instruction.
//!
//! Input: a recording and its kernel's attribution. Output: tables. This module prints nothing.

use crate::sampling::Sampling;
use anyhow::Result;
use services::Attribution;
use services::generations::Generations;
use services::table::ServiceTable;
use std::path::Path;

/// The services of a recording (a directory).
///
/// ```
/// use road::sampling::Sampling;
/// use road::service_time;
/// use services::Attribution;
///
/// let home = road::examples::home();
/// let recording = home.path().join("loop.rec");
/// let machines = ["zen4".to_owned()];
/// let attribution = Attribution::open(&home.path().join("vmlinux"), None, &machines)?;
/// let table = service_time::table(&attribution, &recording, false, Sampling::default())?;
/// // So short a recording is simulated in detail.
/// let [all, kernel] = table.machines[0].core.unwrap();
/// assert!(all.cycles > kernel.cycles && all.estimated.is_none());
/// # anyhow::Ok(())
/// ```
///
/// `with_branches`: with branch prediction on all machines that describe it.
///
/// # Errors
/// As [`Attribution::table`] and [`Attribution::table_with_branches`].
pub fn table(
    attribution: &Attribution,
    recording: &Path,
    with_branches: bool,
    sampling: Sampling,
) -> Result<ServiceTable> {
    let simulate = |plan| match with_branches {
        true => attribution.table_with_branches(recording, plan),
        false => attribution.table(recording, plan),
    };
    let Attribution { part, machines, .. } = attribution;
    sampling.until_narrow(recording, part, machines, simulate, ServiceTable::widest)
}

/// The services of a recording (a directory) on machines of several generations.
///
/// # Errors
/// As [`Attribution::generations`].
pub fn generations(
    attribution: &Attribution,
    recording: &Path,
    sampling: Sampling,
) -> Result<Generations> {
    let Attribution { part, machines, .. } = attribution;
    let simulate = |plan| attribution.generations(recording, plan);
    sampling.until_narrow(recording, part, machines, simulate, Generations::widest)
}
