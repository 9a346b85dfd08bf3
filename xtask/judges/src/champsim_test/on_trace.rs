//! Kernlane's caches on the trace that ChampSim reads.
//!
//! Input: the file, and a machine. Output: misses. They differ from those of `kernlane replay` by
//! what the trace lacks: it has one line for an instruction, of those that one across the end of a
//! line has, and lines of user code are told apart by their place in physical memory. They
//! differ from those of ChampSim by what its core does: it executes out of order, and writes lines
//! back.

use anyhow::{Context, Result};
use sim::{Hierarchy, LineId, MachineCounters, MachineModel, PerMode, PhysAddr};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// The bytes of a record.
const RECORD: usize = 64;
/// log2 of the bytes in a line.
const LINE: u32 = 6;

/// The misses of the L1I, the L1D, the L2 and the L3, by both modes.
pub(super) fn misses(counters: &PerMode<MachineCounters>) -> [u64; 4] {
    let sum = |count: fn(&MachineCounters) -> u64| count(&counters.kernel) + count(&counters.user);
    [
        sum(|counters| counters.l1i.total()),
        sum(|counters| counters.l1d.total()),
        sum(|counters| counters.l2i.total() + counters.l2d.total()),
        sum(|counters| counters.l3i.total() + counters.l3d.total()),
    ]
}

/// The misses of a machine on an uncompressed trace.
pub(super) fn simulated(trace: &Path, machine: &MachineModel) -> Result<[u64; 4]> {
    let named = || trace.display().to_string();
    let mut file = BufReader::with_capacity(1 << 20, File::open(trace).with_context(named)?);
    let mut caches = Hierarchy::new(machine).context("the machine has no data caches")?;
    let mut record = [0; RECORD];
    let mut fetched = None;
    while file.read_exact(&mut record).is_ok() {
        let number = |at: usize| {
            let bytes = record[at..at + 8].iter().rev();
            bytes.fold(0, |number, &byte| number << 8 | u64::from(byte))
        };
        let line = number(0) >> LINE;
        if fetched.replace(line) != Some(line) {
            caches.fetch(LineId::physical(line), PhysAddr(line << LINE));
        }
        // The four loads come before the two stores.
        for address in [32, 40, 48, 56, 16, 24].map(number).into_iter().filter(|&it| it != 0) {
            caches.data(PhysAddr(address));
        }
    }
    Ok(misses(&caches.counters()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetches_loads_and_stores_miss() {
        let record = |ip: u64, store: u64, load: u64| {
            let mut bytes = [0; RECORD];
            bytes[..8].copy_from_slice(&ip.to_le_bytes());
            bytes[16..24].copy_from_slice(&store.to_le_bytes());
            bytes[32..40].copy_from_slice(&load.to_le_bytes());
            bytes
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let trace =
            [record(0x1000, 0, 0x8000), record(0x1004, 0x8008, 0), record(0x1040, 0x9000, 0x1040)];
        std::fs::write(&path, trace.concat()).unwrap();
        let machine = machines::find("golden-cove").unwrap().model;
        // Two lines of code; 8000, 9000 and 1040 of data; 1040 is in the L2 then.
        assert_eq!(simulated(&path, &machine).unwrap(), [2, 3, 4, 4]);
    }
}
