//! Encodes observed accesses into the payload of a DATA chunk and into patterns. Checks its input.
//!
//! Input: accesses in their order. Output: bytes.

use crate::access::{
    AccessPattern, AccessPatterns, AccessSite, Accesses, Mapping, ObservedAccesses, PageKind,
    UNKNOWN,
};
use crate::frame_use::FrameUseEncoder;
use crate::stream::events;
use crate::tally::Tally;
use crate::varint::{put, put_step};
use crate::{TranslationId, Violation};

/// Encodes the accesses of a recording's streams in order.
#[derive(Default)]
pub(crate) struct AccessEncoder {
    patterns: AccessPatterns,
    /// The last address of each site of `patterns`.
    last: Vec<u64>,
    /// The physical addresses of each translation, for its pattern.
    physical: Vec<[u64; 2]>,
    new_patterns: Vec<AccessPattern>,
    executions: u32,
    accesses: u32,
    irregular: IrregularEncoder,
    mappings: MappingEncoder,
    uses: FrameUseEncoder,
    steps: Vec<u8>,
}

impl AccessEncoder {
    /// Takes the accesses of the executions in these words.
    pub(crate) fn take(
        &mut self,
        words: &[u32],
        observed: &ObservedAccesses,
        tally: &Tally,
    ) -> Result<(), Violation> {
        let wrong = |what| Err(Violation::Accesses { what });
        if observed.sites.len() != observed.addresses.len() {
            return wrong("the numbers of sites and addresses differ");
        }
        if observed.addresses.len() + self.accesses as usize > Accesses::MAX {
            return Err(Violation::TooLong { what: "the accesses of a stream" });
        }
        for &(translation, physical) in &observed.physical {
            let at = translation.0 as usize;
            if at >= self.physical.len() {
                self.physical.resize(at + 1, [UNKNOWN; 2]);
            }
            self.physical[at] = physical.map(|addr| addr.unwrap_or(UNKNOWN));
        }
        self.mappings.append(&observed.mappings, self.accesses, observed.addresses.len())?;
        self.uses.append(observed, self.executions)?;
        let mut starts = observed.starts.iter().map(|&start| start as usize);
        let mut start = starts.next();
        if start.unwrap_or(observed.addresses.len()) != 0 {
            return wrong("an access comes before the first execution");
        }
        for event in events(words) {
            let Some((translation, reached)) = event.execution() else { continue };
            let Some(first) = start else {
                return wrong("an execution has no start");
            };
            start = starts.next();
            let end = start.unwrap_or(observed.addresses.len());
            let (Some(sites), Some(addresses)) =
                (observed.sites.get(first..end), observed.addresses.get(first..end))
            else {
                return wrong("the starts of the executions do not ascend");
            };
            self.execution(translation, reached.is_some(), sites, addresses, tally)?;
        }
        match start {
            None => {
                self.accesses += observed.addresses.len() as u32;
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
        sites: &[AccessSite],
        addresses: &[u64],
        tally: &Tally,
    ) -> Result<(), Violation> {
        let range = self.patterns.range(id);
        let regular = match left {
            false if range.is_empty() => self.first_execution(id, sites, tally)?,
            false => self.patterns.sites()[range.clone()] == *sites,
            true => sites.is_empty(),
        };
        if !regular {
            check_sites(id, sites, tally)?;
            self.irregular.append(self.executions, sites, addresses);
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

    /// Handles a translation that has no pattern yet, or an empty one. If it has none, these sites
    /// become its pattern. Returns true if the execution follows the pattern.
    #[cold]
    fn first_execution(
        &mut self,
        id: TranslationId,
        sites: &[AccessSite],
        tally: &Tally,
    ) -> Result<bool, Violation> {
        if self.patterns.is_defined(id) {
            return Ok(sites.is_empty());
        }
        if sites.len() > AccessPattern::MAX_SITES {
            return Ok(false);
        }
        check_sites(id, sites, tally)?;
        let physical = self.physical.get(id.0 as usize).copied().unwrap_or([UNKNOWN; 2]);
        let pattern = AccessPattern {
            translation: id,
            physical: physical.map(|addr| (addr != UNKNOWN).then_some(addr)),
            sites: sites.into(),
        };
        self.patterns.define(&pattern);
        self.last.resize(self.patterns.sites().len(), 0);
        self.new_patterns.push(pattern);
        Ok(true)
    }

    /// The accesses taken since the last payload.
    pub(crate) fn count(&self) -> usize {
        self.accesses as usize
    }

    /// The size of the next payload in bytes, without the sizes of its parts.
    pub(crate) fn size(&self) -> usize {
        self.irregular.bytes.len()
            + self.mappings.bytes.len()
            + self.uses.bytes.len()
            + self.steps.len()
    }

    /// The patterns defined since the last call.
    pub(crate) fn new_patterns(&mut self) -> Vec<AccessPattern> {
        std::mem::take(&mut self.new_patterns)
    }

    /// Appends the payload of everything taken since the last call.
    pub(crate) fn payload(&mut self, out: &mut Vec<u8>) {
        for part in [&self.irregular.bytes, &self.mappings.bytes, &self.uses.bytes] {
            out.extend((part.len() as u32).to_le_bytes());
        }
        for part in [
            &mut self.irregular.bytes,
            &mut self.mappings.bytes,
            &mut self.uses.bytes,
            &mut self.steps,
        ] {
            out.append(part);
        }
        self.irregular = IrregularEncoder {
            bytes: std::mem::take(&mut self.irregular.bytes),
            ..IrregularEncoder::default()
        };
        self.mappings = MappingEncoder {
            bytes: std::mem::take(&mut self.mappings.bytes),
            ..MappingEncoder::default()
        };
        self.uses.begin_again();
        (self.executions, self.accesses) = (0, 0);
    }
}

/// Checks that each site is well formed and names an instruction of the translation.
pub(crate) fn check_sites(
    id: TranslationId,
    sites: &[AccessSite],
    tally: &Tally,
) -> Result<(), Violation> {
    let of = tally.instructions(id).ok_or(Violation::UndefinedTranslation { id })?;
    match sites
        .iter()
        .find(|site| site.0 & !AccessSite::BITS != 0 || u32::from(site.instruction()) >= of)
    {
        Some(site) => Err(Violation::Site { id, site: site.0, of }),
        None => Ok(()),
    }
}

/// Encodes the executions that do not follow their pattern.
#[derive(Default)]
struct IrregularEncoder {
    bytes: Vec<u8>,
    execution: u32,
    addr: u64,
}

impl IrregularEncoder {
    fn append(&mut self, execution: u32, sites: &[AccessSite], addresses: &[u64]) {
        put((execution - self.execution).into(), &mut self.bytes);
        self.execution = execution;
        let groups = groups(sites, addresses);
        put(groups.len() as u64, &mut self.bytes);
        let mut at = 0;
        for AccessGroup { lanes, times } in groups {
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

/// One or two sites in turn, repeated `times` times, each with addresses at equal distances. A
/// repeated string instruction makes such accesses.
#[derive(Clone, Copy)]
struct AccessGroup {
    lanes: usize,
    times: usize,
}

/// Splits the accesses of one execution into groups.
fn groups(sites: &[AccessSite], addresses: &[u64]) -> Vec<AccessGroup> {
    let mut groups = Vec::new();
    let mut at = 0;
    while at < sites.len() {
        let longest = [1, 2].map(|lanes| AccessGroup {
            lanes,
            times: times(&sites[at..], &addresses[at..], lanes),
        });
        // Two lanes only when they cover more accesses than one lane does.
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
fn times(sites: &[AccessSite], addresses: &[u64], lanes: usize) -> usize {
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

/// Encodes the mappings of a payload.
#[derive(Default)]
struct MappingEncoder {
    bytes: Vec<u8>,
    access: u32,
    last: Mapping,
}

impl MappingEncoder {
    /// Appends mappings. `before` accesses of the payload came earlier; `accesses` come now.
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

/// The kind of page with this number.
pub(crate) fn page_kind(number: u8) -> Result<PageKind, Violation> {
    PageKind::ALL.get(usize::from(number)).copied().ok_or(Violation::Flag(number))
}
