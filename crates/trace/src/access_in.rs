//! The payload of a DATA chunk becomes accesses. Whatever the bytes are, gives accesses that fit
//! the stream, or a named error.

use crate::access::{Accesses, Mapping, Pattern, Patterns, Site};
use crate::access_out::{check_sites, page_kind};
use crate::record::DataTotals;
use crate::stream::{Event, events};
use crate::tally::Tally;
use crate::uses::take_uses;
use crate::varint::Numbers;
use crate::{TranslationId, Violation};

/// Decodes one payload after the other.
#[derive(Default)]
pub(crate) struct AccessesIn {
    pub patterns: Patterns,
    /// Of the payload decoded last.
    pub accesses: Accesses,
    last: Vec<u64>,
    totals: DataTotals,
}

const SHORT: Violation = Violation::Short { what: "the accesses" };

impl AccessesIn {
    pub fn define(&mut self, patterns: &[Pattern], tally: &Tally) -> Result<(), Violation> {
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

    pub fn totals(&self) -> DataTotals {
        self.totals
    }

    /// Decodes the accesses of these words, which are known to follow the rules.
    pub fn decode(
        &mut self,
        payload: &[u8],
        words: &[u32],
        tally: &Tally,
    ) -> Result<(), Violation> {
        let [others, mappings, uses, steps] = parts(payload)?;
        self.accesses.clear();
        self.accesses.addresses.reserve(steps.len());
        let mut others = OthersIn::new(others)?;
        let mut steps = Numbers(steps);
        let mut execution = 0;
        for event in events(words) {
            let (id, left) = match event {
                Event::Executed(id) => (id, false),
                Event::Left { translation, .. } => (translation, true),
                Event::Task(_) | Event::Marker(_) | Event::Woken(_) | Event::Clock(_) => continue,
            };
            if others.next == Some(execution) {
                self.other(id, &mut others, tally)?;
            } else if !left {
                self.usual(id, &mut steps)?;
            }
            execution += 1;
        }
        if others.next.is_some() {
            return Err(Violation::Accesses {
                what: "there are accesses of more executions than the stream has",
            });
        }
        if !steps.is_empty() {
            return Err(Violation::Surplus { bytes: steps.0.len() });
        }
        self.mappings(Numbers(mappings))?;
        take_uses(Numbers(uses), execution, &mut self.accesses)?;
        self.totals.count_payload(payload);
        Ok(())
    }

    #[inline]
    fn usual(&mut self, id: TranslationId, steps: &mut Numbers<'_>) -> Result<(), Violation> {
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
        let (loads, stores) = self.patterns.amounts(id);
        self.totals.loads += loads;
        self.totals.stores += stores;
        Ok(())
    }

    #[cold]
    fn other(
        &mut self,
        id: TranslationId,
        others: &mut OthersIn<'_>,
        tally: &Tally,
    ) -> Result<(), Violation> {
        let Accesses { addresses, others: executions, other_sites, .. } = &mut self.accesses;
        let first = other_sites.len();
        executions.push((others.next.unwrap_or(0), first as u32));
        let groups = others.numbers.next().ok_or(SHORT)?;
        for _ in 0..groups {
            others.group(addresses, other_sites)?;
        }
        let sites = &other_sites[first..];
        check_sites(id, sites, tally)?;
        let stores = sites.iter().filter(|site| site.is_store()).count() as u64;
        self.totals.stores += stores;
        self.totals.loads += sites.len() as u64 - stores;
        others.advance()
    }

    fn mappings(&mut self, mut numbers: Numbers<'_>) -> Result<(), Violation> {
        const SHORT: Violation = Violation::Short { what: "a mapping" };
        let (mut access, mut last) = (0_u64, Mapping::default());
        while !numbers.is_empty() {
            access = access.saturating_add(numbers.next().ok_or(SHORT)?);
            if access > self.accesses.addresses.len() as u64 {
                return Err(Violation::Accesses {
                    what: "a mapping stands behind the last access",
                });
            }
            last = Mapping {
                page: numbers.step(last.page).ok_or(SHORT)?,
                frame: numbers.step(last.frame).ok_or(SHORT)?,
                kind: page_kind(numbers.byte().ok_or(SHORT)?)?,
            };
            if (last.page | last.frame) >> 52 != 0 {
                return Err(Violation::Accesses {
                    what: "a mapping is of a page that no address has",
                });
            }
            self.accesses.mappings.push((access as u32, last));
            self.totals.mappings += 1;
        }
        Ok(())
    }
}

/// The four parts of a payload.
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

struct OthersIn<'a> {
    numbers: Numbers<'a>,
    /// The number of the next execution that is described here.
    next: Option<u32>,
    addr: u64,
}

impl<'a> OthersIn<'a> {
    fn new(bytes: &'a [u8]) -> Result<OthersIn<'a>, Violation> {
        let mut others = OthersIn { numbers: Numbers(bytes), next: None, addr: 0 };
        if !bytes.is_empty() {
            others.next = Some(others.distance(0)?);
        }
        Ok(others)
    }

    fn distance(&mut self, from: u32) -> Result<u32, Violation> {
        let distance = self.numbers.next().ok_or(SHORT)?;
        u64::from(from).checked_add(distance).and_then(|sum| u32::try_from(sum).ok()).ok_or(
            Violation::Accesses {
                what: "there are accesses of more executions than the stream has",
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
                        what: "an execution's accesses are told twice",
                    });
                }
                next => Some(next),
            },
        };
        Ok(())
    }

    fn group(&mut self, addresses: &mut Vec<u64>, sites: &mut Vec<Site>) -> Result<(), Violation> {
        let times = self.numbers.next().ok_or(SHORT)?;
        let lanes = usize::from(self.numbers.byte().ok_or(SHORT)?);
        if times == 0 || !(1..=2).contains(&lanes) {
            return Err(Violation::Accesses {
                what: "a group of accesses is empty or has more than two lanes",
            });
        }
        if times > Accesses::MAX as u64 || addresses.len() + lanes * times as usize > Accesses::MAX
        {
            return Err(Violation::TooLong { what: "the accesses of a stream" });
        }
        let mut all = [(Site::default(), 0_u64, 0_u64); 2];
        for (site, addr, step) in &mut all[..lanes] {
            let (low, high) =
                (self.numbers.byte().ok_or(SHORT)?, self.numbers.byte().ok_or(SHORT)?);
            *site = Site(u16::from_le_bytes([low, high]));
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
