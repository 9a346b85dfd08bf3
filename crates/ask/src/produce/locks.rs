//! The locks of the kernel, on a machine with coherent caches. They read the recording twice.

use crate::batch::{Cell, Names, Rows, TableRequest};
use crate::recording::AskedRecording;
use anyhow::{Context, Result};
use execution::cpu_order::CpuOrder;
use services::Attribution;
use services::binding::Binding;

pub(super) fn produce(recording: &AskedRecording, request: TableRequest) -> Result<()> {
    let machine = recording.lock_machine.as_ref();
    let machine = machine.context("no machine with coherent caches is named for the locks")?;
    let attribution = Attribution {
        symbols: recording.attribution.symbols.clone(),
        // Locks are known by the symbols of their functions.
        binding: Binding::default(),
        machines: vec![machine.clone()],
        part: recording.attribution.part,
    };
    let tables =
        coherence::locks(&attribution, CpuOrder::SideBySide, &recording.path, &recording.kernel)?;
    let (mut names, mut rows) = (Names::default(), Rows::new(request));
    for lock in tables.iter().flat_map(|table| &table.locks) {
        let address = u64::from_str_radix(lock.addr.trim_start_matches("0x"), 16).ok();
        let name = (!lock.name.is_empty()).then(|| names.id(&lock.name));
        let totals = &lock.totals;
        let cells: [Cell; 16] = [
            names.id(lock.kind.title()).into(),
            names.id(lock.class.title()).into(),
            name.into(),
            address.into(),
            lock.locks.into(),
            totals.acquisitions.into(),
            totals.contended.into(),
            totals.slept.into(),
            totals.failed.into(),
            totals.wait_cycles.into(),
            totals.longest_wait_cycles.into(),
            totals.hold_cycles.into(),
            totals.longest_hold_cycles.into(),
            totals.awaited_cycles.into(),
            lock.coherence_misses.into(),
            lock.coherence_cycles.into(),
        ];
        rows.push(&mut names, cells);
    }
    rows.finish(&mut names);
    Ok(())
}
