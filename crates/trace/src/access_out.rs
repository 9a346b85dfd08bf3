//! Accesses as a recorder saw them become the payload of a DATA chunk, and patterns. Checks what it
//! is given.

use crate::access::{Accesses, Mapping, PageKind, Pattern, Patterns, SeenAccesses, Site, UNKNOWN};
use crate::stream::{Event, events};
use crate::tally::Tally;
use crate::uses::UsesOut;
use crate::varint::{put, put_step};
use crate::{TranslationId, Violation};

/// Encodes the accesses of one stream after the other.
#[derive(Default)]
pub(crate) struct AccessesOut {
    patterns: Patterns,
    /// The address that each site of `patterns` had last.
    last: Vec<u64>,
    /// Of each translation, until it has a pattern.
    physical: Vec<[u64; 2]>,
    new_patterns: Vec<Pattern>,
    executions: u32,
    accesses: u32,
    others: Others,
    mappings: Mappings,
    uses: UsesOut,
    steps: Vec<u8>,
}

impl AccessesOut {
    /// Takes what happened during these words.
    pub fn take(
        &mut self,
        words: &[u32],
        seen: &SeenAccesses,
        tally: &Tally,
    ) -> Result<(), Violation> {
        let wrong = |what| Err(Violation::Accesses { what });
        if seen.sites.len() != seen.addresses.len() {
            return wrong("a site and an address do not belong together");
        }
        if seen.addresses.len() + self.accesses as usize > Accesses::MAX {
            return Err(Violation::TooLong { what: "the accesses of a stream" });
        }
        for &(translation, physical) in &seen.physical {
            let at = translation.0 as usize;
            if at >= self.physical.len() {
                self.physical.resize(at + 1, [UNKNOWN; 2]);
            }
            self.physical[at] = physical.map(|addr| addr.unwrap_or(UNKNOWN));
        }
        self.mappings.append(&seen.mappings, self.accesses, seen.addresses.len())?;
        self.uses.append(seen, self.executions)?;
        let mut starts = seen.starts.iter().map(|&start| start as usize);
        let mut start = starts.next();
        if start.unwrap_or(seen.addresses.len()) != 0 {
            return wrong("an access stands before the first execution");
        }
        for event in events(words) {
            let (translation, left) = match event {
                Event::Executed(id) => (id, false),
                Event::Left { translation, .. } => (translation, true),
                Event::Task(_) | Event::Marker(_) | Event::Woken(_) | Event::Clock(_) => continue,
            };
            let Some(first) = start else {
                return wrong("an execution has no start");
            };
            start = starts.next();
            let end = start.unwrap_or(seen.addresses.len());
            let (Some(sites), Some(addresses)) =
                (seen.sites.get(first..end), seen.addresses.get(first..end))
            else {
                return wrong("the executions' starts do not ascend");
            };
            self.execution(translation, left, sites, addresses, tally)?;
        }
        match start {
            None => {
                self.accesses += seen.addresses.len() as u32;
                Ok(())
            }
            Some(_) => wrong("there are more starts than executions"),
        }
    }

    #[inline]
    fn execution(
        &mut self,
        id: TranslationId,
        left: bool,
        sites: &[Site],
        addresses: &[u64],
        tally: &Tally,
    ) -> Result<(), Violation> {
        let range = self.patterns.range(id);
        let usual = match left {
            false if range.is_empty() => self.first_execution(id, sites, tally)?,
            false => self.patterns.sites()[range.clone()] == *sites,
            true => sites.is_empty(),
        };
        if !usual {
            check_sites(id, sites, tally)?;
            self.others.append(self.executions, sites, addresses);
        } else if !left {
            let range = self.patterns.range(id);
            for (last, &addr) in self.last[range].iter_mut().zip(addresses) {
                put_step(*last, addr, &mut self.steps);
                *last = addr;
            }
        }
        self.executions += 1;
        Ok(())
    }

    /// The translation has no pattern yet, or an empty one: true when what it did now is its
    /// pattern from now on, or always was.
    #[cold]
    fn first_execution(
        &mut self,
        id: TranslationId,
        sites: &[Site],
        tally: &Tally,
    ) -> Result<bool, Violation> {
        if self.patterns.is_defined(id) {
            return Ok(sites.is_empty());
        }
        if sites.len() > Pattern::MAX_SITES {
            return Ok(false);
        }
        check_sites(id, sites, tally)?;
        let physical = self.physical.get(id.0 as usize).copied().unwrap_or([UNKNOWN; 2]);
        let pattern = Pattern {
            translation: id,
            physical: physical.map(|addr| (addr != UNKNOWN).then_some(addr)),
            sites: sites.into(),
        };
        self.patterns.define(&pattern);
        self.last.resize(self.patterns.sites().len(), 0);
        self.new_patterns.push(pattern);
        Ok(true)
    }

    /// How many bytes the next payload has, more or less.
    pub fn size(&self) -> usize {
        self.others.bytes.len()
            + self.mappings.bytes.len()
            + self.uses.bytes.len()
            + self.steps.len()
    }

    /// The patterns that are new since the last call.
    pub fn new_patterns(&mut self) -> Vec<Pattern> {
        std::mem::take(&mut self.new_patterns)
    }

    /// Appends the payload of all that was taken since the last call.
    pub fn payload(&mut self, out: &mut Vec<u8>) {
        for part in [&self.others.bytes, &self.mappings.bytes, &self.uses.bytes] {
            out.extend((part.len() as u32).to_le_bytes());
        }
        for part in [
            &mut self.others.bytes,
            &mut self.mappings.bytes,
            &mut self.uses.bytes,
            &mut self.steps,
        ] {
            out.append(part);
        }
        self.others = Others { bytes: std::mem::take(&mut self.others.bytes), ..Others::default() };
        self.mappings =
            Mappings { bytes: std::mem::take(&mut self.mappings.bytes), ..Mappings::default() };
        self.uses.begin_again();
        (self.executions, self.accesses) = (0, 0);
    }
}

pub(crate) fn check_sites(
    id: TranslationId,
    sites: &[Site],
    tally: &Tally,
) -> Result<(), Violation> {
    let of = tally.instructions(id).ok_or(Violation::UndefinedTranslation { id })?;
    match sites.iter().find(|site| site.0 & !Site::BITS != 0 || u32::from(site.instruction()) >= of)
    {
        Some(site) => Err(Violation::Site { id, site: site.0, of }),
        None => Ok(()),
    }
}

/// Executions that do not follow their pattern.
#[derive(Default)]
struct Others {
    bytes: Vec<u8>,
    execution: u32,
    addr: u64,
}

impl Others {
    fn append(&mut self, execution: u32, sites: &[Site], addresses: &[u64]) {
        put((execution - self.execution).into(), &mut self.bytes);
        self.execution = execution;
        let groups = groups(sites, addresses);
        put(groups.len() as u64, &mut self.bytes);
        let mut at = 0;
        for Group { lanes, times } in groups {
            put(times as u64, &mut self.bytes);
            self.bytes.push(lanes as u8);
            for lane in at..at + lanes {
                self.bytes.extend(sites[lane].0.to_le_bytes());
                put_step(self.addr, addresses[lane], &mut self.bytes);
                self.addr = addresses[lane];
                if times > 1 {
                    put_step(addresses[lane], addresses[lane + lanes], &mut self.bytes);
                }
            }
            at += lanes * times;
        }
    }
}

/// So many times in turn one or two sites, each with addresses at equal distances: what a repeated
/// string instruction does.
#[derive(Clone, Copy)]
struct Group {
    lanes: usize,
    times: usize,
}

fn groups(sites: &[Site], addresses: &[u64]) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut at = 0;
    while at < sites.len() {
        let longest = [1, 2]
            .map(|lanes| Group { lanes, times: times(&sites[at..], &addresses[at..], lanes) });
        // One lane unless two say more; a single access is one lane, once.
        let best = match longest {
            [one, two] if two.times > 1 && 2 * two.times > one.times => two,
            [one, _] => one,
        };
        groups.push(best);
        at += best.lanes * best.times;
    }
    groups
}

/// How often the first `lanes` accesses repeat.
fn times(sites: &[Site], addresses: &[u64], lanes: usize) -> usize {
    let goes_on = |at: usize| {
        let step = |at: usize| addresses[at].wrapping_sub(addresses[at - lanes]);
        sites[at] == sites[at - lanes] && (at < 2 * lanes || step(at) == step(at - lanes))
    };
    if sites.len() < lanes {
        return 0;
    }
    let end = (lanes..sites.len()).find(|&at| !goes_on(at)).unwrap_or(sites.len());
    end / lanes
}

#[derive(Default)]
struct Mappings {
    bytes: Vec<u8>,
    access: u32,
    last: Mapping,
}

impl Mappings {
    /// `before`: accesses of the payload that came earlier; `accesses`: how many come along.
    fn append(
        &mut self,
        mappings: &[(u32, Mapping)],
        before: u32,
        accesses: usize,
    ) -> Result<(), Violation> {
        for &(access, mapping) in mappings {
            if access as usize > accesses || before + access < self.access {
                return Err(Violation::Accesses { what: "the mappings do not ascend" });
            }
            put((before + access - self.access).into(), &mut self.bytes);
            put_step(self.last.page, mapping.page, &mut self.bytes);
            put_step(self.last.frame, mapping.frame, &mut self.bytes);
            self.bytes.push(mapping.kind as u8);
            (self.access, self.last) = (before + access, mapping);
        }
        Ok(())
    }
}

/// The kind with this number.
pub(crate) fn page_kind(number: u8) -> Result<PageKind, Violation> {
    PageKind::ALL.get(usize::from(number)).copied().ok_or(Violation::Flag(number))
}
