//! Compares the unwinder's state at every instruction.
//!
//! Input: `.orc_unwind_ip` and `.orc_unwind` of both kernels. The kernel's lookup (`__orc_find` in
//! `arch/x86/kernel/unwind_orc.c`) takes the last entry at or before an address. This module proves
//! that the lookup finds the same state for an instruction in both kernels, and for an appended
//! jump the state at its target.

use super::code_walk::CodeWalk;
use super::correspond::Correspondence;
use super::frames::UnwindState;
use super::kernel::KernelFile;
use super::verdict::Findings;
use rayon::prelude::*;

const KIND: &str = "unwinder states";

/// The table of one kernel: ascending addresses, and the state from each address on.
pub(crate) struct UnwindTable {
    ips: Vec<u64>,
    states: Vec<UnwindState>,
}

impl UnwindTable {
    pub(crate) fn read(kernel: &KernelFile) -> Result<Option<UnwindTable>, String> {
        let (Some(ip), Some(unwind)) =
            (kernel.section(".orc_unwind_ip"), kernel.section(".orc_unwind"))
        else {
            return Ok(None);
        };
        if ip.data.len() / 4 != unwind.data.len() / 6
            || ip.data.len() % 4 != 0
            || unwind.data.len() % 6 != 0
        {
            return Err(
                "the two tables of the unwinder have different numbers of entries".to_owned()
            );
        }
        let at = |(i, word): (usize, &[u8])| {
            let distance = i32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            ip.addr.wrapping_add(4 * i as u64).wrapping_add(i64::from(distance) as u64)
        };
        let mut ips: Vec<u64> = ip.data.chunks_exact(4).enumerate().map(at).collect();
        if let Some(i) = ips.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(format!("the unwinder's table is not sorted at entry {i}"));
        }
        let mut states: Vec<UnwindState> =
            unwind.data.chunks_exact(6).map(|e| [e[0], e[1], e[2], e[3], e[4], e[5]]).collect();
        // Inlined code lies behind the kernel.
        for &(at, state) in kernel.additions.iter().flat_map(|additions| &additions.states) {
            ips.push(at);
            states.push(state);
        }
        Ok(Some(UnwindTable { ips, states }))
    }

    pub(crate) fn state(&self, addr: u64) -> Option<UnwindState> {
        self.ips.partition_point(|&ip| ip <= addr).checked_sub(1).map(|i| self.states[i])
    }
}

/// Compares the state at all instruction pairs and appended jumps.
pub(crate) fn check(correspondence: &Correspondence, walk: &CodeWalk) -> Findings {
    let mut findings = Findings::default();
    let read = |kernel, findings: &mut Findings| match UnwindTable::read(kernel) {
        Ok(table) => table,
        Err(what) => {
            findings.differ(KIND, None, None, what);
            None
        }
    };
    let (old, new) =
        match (read(correspondence.old, &mut findings), read(correspondence.new, &mut findings)) {
            (Some(old), Some(new)) => (old, new),
            (None, None) => return findings,
            _ => {
                findings.differ(
                    KIND,
                    None,
                    None,
                    "only one of the kernels has a table for the unwinder",
                );
                return findings;
            }
        };
    let parts: Vec<Findings> = correspondence
        .pairs
        .par_chunks(16384)
        .map(|pairs| {
            let mut part = Findings::default();
            // A dropped jump has no instruction in the new kernel.
            let kept = pairs.iter().filter(|p| p.new_len > 0);
            for p in kept.clone() {
                // The unwinder looks up an interrupted instruction by its first byte. It looks up a
                // call by the byte in front of the return address.
                let last = |start: u64, len: u8| start.wrapping_add(u64::from(len.max(1)) - 1);
                let ends = [(p.old, p.new), (last(p.old, p.old_len), last(p.new, p.new_len))];
                if let Some((a, b)) = ends.into_iter().find(|&(a, b)| old.state(a) != new.state(b))
                {
                    part.differ(KIND, Some(a), Some(b), differing(old.state(a), new.state(b)));
                }
            }
            part.prove(KIND, kept.count() as u64 - part.total());
            part
        })
        .collect();
    parts.into_iter().for_each(|part| findings.absorb(part));
    for &(at, target) in &walk.appended {
        let (wanted, found) = (old.state(target), new.state(at));
        findings.expect(wanted == found, "unwinder states of appended jumps", target, at, || {
            differing(wanted, found)
        });
    }
    findings
}

fn differing(old: Option<UnwindState>, new: Option<UnwindState>) -> String {
    let word = |state: Option<UnwindState>| match state {
        Some(s) => {
            let offset = |a, b| i16::from_le_bytes([a, b]);
            format!(
                "sp {}{:+} bp {}{:+} type {} signal {}",
                s[4] & 15,
                offset(s[0], s[1]),
                s[4] >> 4,
                offset(s[2], s[3]),
                s[5] & 7,
                s[5] >> 3 & 1
            )
        }
        None => "none".to_owned(),
    };
    format!("state was ({}), is ({})", word(old), word(new))
}
