//! Cuts a part out of a recording while the recording is read, so that only the executions of the
//! part are given.
//!
//! Input: the words of a stream, and the accesses that belong to them. Output: the same without
//! executions outside of the part. State that is set before the part stays: which task and which
//! CPU executes, where pages lie, what frames are used for. This module decodes nothing.

use crate::access::{AccessPatterns, Accesses, Mapping};
use crate::record::AccessTotals;
use crate::stream::{StreamEvent, events};
use crate::tally::Tally;
use crate::{CpuId, FrameUseChange, RecordingTotals};
use std::collections::BTreeMap;

/// The part of a recording that a reader gives.
pub(crate) struct PartOfRecording {
    /// The instructions of the whole recording at which the part begins and ends. An execution
    /// belongs to the part in which it begins.
    from: u64,
    until: u64,
    /// The instructions before the next event.
    at: u64,
    /// The CPU that executes.
    cpu: CpuId,
    /// Mappings that came while no access of the part was made, by CPU. They hold from the CPU's
    /// next access on.
    mappings: BTreeMap<CpuId, Vec<Mapping>>,
    /// Changes of the use of frames. They hold from the next execution of the part on.
    uses: Vec<FrameUseChange>,
    /// The counts of the part. Other fields are not counted.
    counted: RecordingTotals,
}

impl PartOfRecording {
    pub(crate) fn new(from: u64, until: u64) -> PartOfRecording {
        PartOfRecording {
            from,
            until,
            at: 0,
            cpu: CpuId(0),
            mappings: BTreeMap::new(),
            uses: Vec::new(),
            counted: RecordingTotals::default(),
        }
    }

    /// Whether all executions of the part came.
    pub(crate) fn has_ended(&self) -> bool {
        self.at >= self.until
    }

    /// The words of the part. The accesses become those of these words.
    pub(crate) fn cut(
        &mut self,
        words: &[u32],
        mut data: Option<(&mut Accesses, &AccessPatterns)>,
        tally: &Tally,
    ) -> Vec<u32> {
        let mut kept = Vec::new();
        let mut accesses = data.as_mut().map(|(accesses, patterns)| {
            let whole = std::mem::take(*accesses);
            CutAccesses::new(whole, patterns)
        });
        for event in events(words) {
            let is_inside = (self.from..self.until).contains(&self.at);
            let Some((id, reached)) = event.execution() else {
                let holds_on = matches!(event, StreamEvent::Task(_) | StreamEvent::Cpu(_));
                if let StreamEvent::Cpu(cpu) = event {
                    self.cpu = cpu;
                }
                // Events behind the part, for example a switch, do not belong to it.
                if is_inside || holds_on && self.at < self.until {
                    event.append_to(&mut kept);
                }
                continue;
            };
            let ran = u64::from(reached.or(tally.instructions(id)).unwrap_or(0));
            self.at += ran;
            if let Some(accesses) = &mut accesses {
                accesses.execution(self, event, is_inside);
            }
            if is_inside {
                event.append_to(&mut kept);
                self.counted.executions += 1;
                match tally.is_kernel(id) {
                    true => self.counted.kernel_instructions += ran,
                    false => self.counted.user_instructions += ran,
                }
            }
        }
        if let (Some(mut accesses), Some((into, _))) = (accesses, data) {
            accesses.leave(self, usize::MAX, u32::MAX);
            *into = accesses.kept;
        }
        kept
    }

    /// The totals of the recording, with the executions, instructions and accesses of the part.
    pub(crate) fn totals(&self, whole: RecordingTotals) -> RecordingTotals {
        let data = whole.data.map(|data| {
            let AccessTotals { loads, stores, .. } = self.counted.data.unwrap_or_default();
            AccessTotals { loads, stores, ..data }
        });
        let RecordingTotals { executions, kernel_instructions, user_instructions, .. } =
            self.counted;
        RecordingTotals { executions, kernel_instructions, user_instructions, data, ..whole }
    }
}

/// The accesses of one stream while they are cut.
struct CutAccesses<'a> {
    whole: Accesses,
    patterns: &'a AccessPatterns,
    /// How many executions, irregular executions, accesses, mappings and uses are behind.
    execution: u32,
    irregular: usize,
    access: usize,
    mapping: usize,
    used: usize,
    kept: Accesses,
    kept_executions: u32,
}

impl<'a> CutAccesses<'a> {
    fn new(mut whole: Accesses, patterns: &'a AccessPatterns) -> CutAccesses<'a> {
        let slab_caches = std::mem::take(&mut whole.slab_caches);
        CutAccesses {
            whole,
            patterns,
            execution: 0,
            irregular: 0,
            access: 0,
            mapping: 0,
            used: 0,
            kept: Accesses { slab_caches, ..Accesses::default() },
            kept_executions: 0,
        }
    }

    fn execution(&mut self, part: &mut PartOfRecording, event: StreamEvent, is_inside: bool) {
        let Some((id, reached)) = event.execution() else { return };
        let is_irregular =
            self.whole.irregular.get(self.irregular).is_some_and(|it| it.0 == self.execution);
        let sites = match (is_irregular, reached) {
            (true, _) => self.whole.irregular_sites_of(self.irregular),
            (false, Some(_)) => &[],
            (false, None) => self.patterns.of(id),
        };
        let (first, end) = (self.access, self.access + sites.len());
        if is_inside {
            if is_irregular {
                let at = self.kept.irregular_sites.len() as u32;
                self.kept.irregular.push((self.kept_executions, at));
                self.kept.irregular_sites.extend_from_slice(sites);
            }
            let stores = sites.iter().filter(|site| site.is_store()).count() as u64;
            let data = part.counted.data.get_or_insert_default();
            data.stores += stores;
            data.loads += sites.len() as u64 - stores;
            let base = self.kept.addresses.len();
            if first < end
                && let Some(pending) = part.mappings.remove(&part.cpu)
            {
                self.kept.mappings.extend(pending.into_iter().map(|it| (base as u32, it)));
            }
            while let Some((at, mapping)) = self.next_mapping(end) {
                let at = (at as usize).saturating_sub(first) + base;
                self.kept.mappings.push((at as u32, mapping));
            }
            self.leave(part, end, self.execution);
            let changes = part.uses.drain(..).map(|change| (self.kept_executions, change));
            self.kept.uses.extend(changes);
            self.kept.addresses.extend_from_slice(&self.whole.addresses[first..end]);
            self.kept_executions += 1;
        } else {
            self.leave(part, end, self.execution);
        }
        self.irregular += usize::from(is_irregular);
        self.access = end;
        self.execution += 1;
    }

    /// The next mapping, if it holds from an access before `end` on.
    fn next_mapping(&mut self, end: usize) -> Option<(u32, Mapping)> {
        let next = self.whole.mappings.get(self.mapping).filter(|it| (it.0 as usize) < end);
        self.mapping += usize::from(next.is_some());
        next.copied()
    }

    /// Keeps for later the mappings before the access `end`, and the uses up to `execution`.
    fn leave(&mut self, part: &mut PartOfRecording, end: usize, execution: u32) {
        while let Some((_, mapping)) = self.next_mapping(end) {
            part.mappings.entry(part.cpu).or_default().push(mapping);
        }
        while let Some(&(at, change)) = self.whole.uses.get(self.used)
            && at <= execution
        {
            part.uses.push(change);
            self.used += 1;
        }
    }
}
