//! Decodes the payload of a DATA chunk into accesses. Any bytes give accesses that fit the stream,
//! or a named error.

use crate::access::{AccessPattern, AccessPatterns, AccessSite, Accesses, Mapping};
use crate::access_encoder::{check_sites, page_kind};
use crate::frame_use::take_uses;
use crate::record::AccessTotals;
use crate::stream::events;
use crate::tally::Tally;
use crate::varint::VarintCursor;
use crate::{TranslationId, Violation};

/// Decodes the payloads of a recording in order.
pub(crate) struct AccessDecoder {
    pub patterns: AccessPatterns,
    /// The accesses of the payload decoded last.
    pub accesses: Accesses,
    /// The last address of each site of `patterns`.
    last: Vec<u64>,
    totals: AccessTotals,
    /// A stream with more accesses is refused.
    pub most: usize,
}

impl Default for AccessDecoder {
    fn default() -> Self {
        AccessDecoder {
            patterns: AccessPatterns::default(),
            accesses: Accesses::default(),
            last: Vec::new(),
            totals: AccessTotals::default(),
            most: Accesses::MAX,
        }
    }
}

const SHORT: Violation = Violation::Short { what: "the accesses" };

impl AccessDecoder {
    pub(crate) fn define(
        &mut self,
        patterns: &[AccessPattern],
        tally: &Tally,
    ) -> Result<(), Violation> {
        for pattern in patterns {
            let id = pattern.translation;
            check_sites(id, &pattern.sites, tally)?;
            if !self.patterns.define(pattern) {
                return Err(Violation::SecondPattern { id });
            }
        }
        self.last.resize(self.patterns.sites().len(), 0);
        Ok(())
    }

    pub(crate) fn totals(&self) -> AccessTotals {
        self.totals
    }

    /// Decodes the accesses of these words. The words must have passed the [`Tally`].
    pub(crate) fn decode(
        &mut self,
        payload: &[u8],
        words: &[u32],
        tally: &Tally,
    ) -> Result<(), Violation> {
        let [irregular, mappings, uses, steps] = parts(payload)?;
        self.accesses.clear();
        self.accesses.addresses.reserve(steps.len());
        let mut irregular = IrregularDecoder::new(irregular)?;
        let mut steps = VarintCursor(steps);
        let mut execution = 0;
        for event in events(words) {
            let Some((id, reached)) = event.execution() else { continue };
            if irregular.next == Some(execution) {
                self.irregular(id, &mut irregular, tally)?;
            } else if reached.is_none() {
                self.regular(id, &mut steps)?;
            }
            execution += 1;
        }
        if irregular.next.is_some() {
            return Err(Violation::Accesses {
                what: "the accesses belong to more executions than the stream has",
            });
        }
        if !steps.is_empty() {
            return Err(Violation::Surplus { bytes: steps.0.len() });
        }
        self.mappings(VarintCursor(mappings))?;
        take_uses(VarintCursor(uses), execution, &mut self.accesses)?;
        self.totals.count_payload(payload);
        Ok(())
    }

    #[inline]
    fn regular(
        &mut self,
        id: TranslationId,
        steps: &mut VarintCursor<'_>,
    ) -> Result<(), Violation> {
        let mut short = false;
        self.accesses.addresses.extend(self.last[self.patterns.range(id)].iter_mut().map(|last| {
            match steps.step(*last) {
                Some(next) => *last = next,
                None => short = true,
            }
            *last
        }));
        if short {
            return Err(SHORT);
        }
        let (loads, stores) = self.patterns.loads_and_stores(id);
        self.totals.loads += loads;
        self.totals.stores += stores;
        Ok(())
    }

    #[cold]
    fn irregular(
        &mut self,
        id: TranslationId,
        irregular: &mut IrregularDecoder<'_>,
        tally: &Tally,
    ) -> Result<(), Violation> {
        let Accesses { addresses, irregular: executions, irregular_sites, .. } = &mut self.accesses;
        let first = irregular_sites.len();
        executions.push((irregular.next.unwrap_or(0), first as u32));
        let groups = irregular.numbers.next().ok_or(SHORT)?;
        for _ in 0..groups {
            irregular.group(self.most, addresses, irregular_sites)?;
        }
        let sites = &irregular_sites[first..];
        check_sites(id, sites, tally)?;
        let stores = sites.iter().filter(|site| site.is_store()).count() as u64;
        self.totals.stores += stores;
        self.totals.loads += sites.len() as u64 - stores;
        irregular.advance()
    }

    fn mappings(&mut self, mut numbers: VarintCursor<'_>) -> Result<(), Violation> {
        const SHORT: Violation = Violation::Short { what: "a mapping" };
        let (mut access, mut last) = (0_u64, Mapping::default());
        while !numbers.is_empty() {
            access = access.saturating_add(numbers.next().ok_or(SHORT)?);
            if access > self.accesses.addresses.len() as u64 {
                return Err(Violation::Accesses { what: "a mapping comes after the last access" });
            }
            last = Mapping {
                page: numbers.step(last.page).ok_or(SHORT)?,
                frame: numbers.step(last.frame).ok_or(SHORT)?,
                kind: page_kind(numbers.byte().ok_or(SHORT)?)?,
            };
            if (last.page | last.frame) >> 52 != 0 {
                return Err(Violation::Accesses { what: "a mapping names a page above 52 bits" });
            }
            self.accesses.mappings.push((access as u32, last));
            self.totals.mappings += 1;
        }
        Ok(())
    }
}

/// The four parts of a payload: irregular executions, mappings, uses of frames, steps.
fn parts(payload: &[u8]) -> Result<[&[u8]; 4], Violation> {
    const SIZES: usize = 12;
    let (sizes, mut rest) = payload.split_at_checked(SIZES).ok_or(SHORT)?;
    let mut parts = [rest; 4];
    for (part, size) in parts.iter_mut().zip(sizes.as_chunks::<4>().0) {
        (*part, rest) = rest.split_at_checked(u32::from_le_bytes(*size) as usize).ok_or(SHORT)?;
    }
    parts[3] = rest;
    Ok(parts)
}

/// Decodes the executions that did not follow their pattern.
struct IrregularDecoder<'a> {
    numbers: VarintCursor<'a>,
    /// The number of the next execution in this part. `None`: there is no other.
    next: Option<u32>,
    /// The first address of the last lane.
    addr: u64,
}

impl<'a> IrregularDecoder<'a> {
    fn new(bytes: &'a [u8]) -> Result<IrregularDecoder<'a>, Violation> {
        let mut irregular = IrregularDecoder { numbers: VarintCursor(bytes), next: None, addr: 0 };
        if !bytes.is_empty() {
            irregular.next = Some(irregular.distance(0)?);
        }
        Ok(irregular)
    }

    fn distance(&mut self, from: u32) -> Result<u32, Violation> {
        let distance = self.numbers.next().ok_or(SHORT)?;
        u64::from(from).checked_add(distance).and_then(|sum| u32::try_from(sum).ok()).ok_or(
            Violation::Accesses {
                what: "the accesses belong to more executions than the stream has",
            },
        )
    }

    fn advance(&mut self) -> Result<(), Violation> {
        let now = self.next.unwrap_or(0);
        self.next = match self.numbers.is_empty() {
            true => None,
            false => match self.distance(now)? {
                same if same == now => {
                    return Err(Violation::Accesses {
                        what: "the accesses of an execution are given twice",
                    });
                }
                next => Some(next),
            },
        };
        Ok(())
    }

    /// Decodes a group of accesses. `most`: how many addresses there may be then.
    fn group(
        &mut self,
        most: usize,
        addresses: &mut Vec<u64>,
        sites: &mut Vec<AccessSite>,
    ) -> Result<(), Violation> {
        let times = self.numbers.next().ok_or(SHORT)?;
        let lanes = usize::from(self.numbers.byte().ok_or(SHORT)?);
        if times == 0 || !(1..=2).contains(&lanes) {
            return Err(Violation::Accesses {
                what: "a group of accesses is empty or has more than two lanes",
            });
        }
        if times > most as u64 || addresses.len() + lanes * times as usize > most {
            return Err(Violation::TooLong { what: "the accesses of a stream" });
        }
        let mut all = [(AccessSite::default(), 0_u64, 0_u64); 2];
        for (site, addr, step) in &mut all[..lanes] {
            let (low, high) =
                (self.numbers.byte().ok_or(SHORT)?, self.numbers.byte().ok_or(SHORT)?);
            *site = AccessSite(u16::from_le_bytes([low, high]));
            *addr = self.numbers.step(self.addr).ok_or(SHORT)?;
            self.addr = *addr;
            if times > 1 {
                *step = self.numbers.step(*addr).ok_or(SHORT)?.wrapping_sub(*addr);
            }
        }
        for _ in 0..times {
            for (site, addr, step) in &mut all[..lanes] {
                addresses.push(*addr);
                sites.push(*site);
                *addr = addr.wrapping_add(*step);
            }
        }
        Ok(())
    }
}
