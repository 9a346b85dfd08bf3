//! Which parts of a structure an invocation of a service uses together, and in how many lines.
//!
//! Input: accesses to parts of objects, and which invocation they belong to. Output: counts by
//! service. Only open invocations are in memory.

use serde::Serialize;
use services::annotations::ServiceKind;
use services::stretches::StretchTrack;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// The bytes of a cache line.
pub(super) const LINE: u64 = 64;

/// How often something was read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    pub reads: u64,
    pub writes: u64,
}

impl Uses {
    #[inline]
    pub(super) fn add(&mut self, is_store: bool, times: u64) {
        match is_store {
            true => self.writes += times,
            false => self.reads += times,
        }
    }
}

/// Whether a service sends to a network or receives from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Direction {
    /// System calls that send, and the softirq of queues.
    Sends,
    /// System calls that receive, and the softirq of received packets with the packets that it
    /// sends in answer.
    Receives,
    /// Everything else.
    Other,
}

impl Direction {
    fn of(kind: ServiceKind, name: &str) -> Direction {
        const SENDING: [&str; 7] =
            ["write", "writev", "send", "sendto", "sendmsg", "sendmmsg", "sendfile"];
        const RECEIVING: [&str; 6] = ["read", "readv", "recv", "recvfrom", "recvmsg", "recvmmsg"];
        // `sendfile64` of `__do_sys_sendfile64`.
        let name = name.strip_suffix("64").unwrap_or(name);
        match (kind, name) {
            (ServiceKind::SystemCall, name) if SENDING.contains(&name) => Direction::Sends,
            (ServiceKind::SystemCall, name) if RECEIVING.contains(&name) => Direction::Receives,
            (ServiceKind::Softirq, "net_tx_action") => Direction::Sends,
            (ServiceKind::Softirq, "net_rx_action") => Direction::Receives,
            _ => Direction::Other,
        }
    }
}

#[derive(Clone, Copy)]
struct Access {
    position: u64,
    part: u32,
    code: u64,
    base: u64,
    is_store: bool,
}

/// By part and instruction: what an invocation did with one object.
type Touched = HashMap<(u32, u64), Uses>;

/// What the invocations of a service use.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceUses {
    /// Invocations that use an object.
    pub invocations: u64,
    /// Pairs of invocation and object.
    pub objects: u64,
    /// The lines of these objects that were used, added up.
    pub lines: u64,
    /// The lines that would do, if the bytes that are used stood together.
    pub fewest: u64,
    /// By part.
    pub parts: BTreeMap<u32, Uses>,
}

/// The kind and the name of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ServiceName {
    /// The kind: system call, softirq …
    pub kind: ServiceKind,
    /// The name.
    pub name: String,
}

/// Adds up what invocations use.
#[derive(Default)]
pub(super) struct ServiceTrack {
    waiting: VecDeque<Access>,
    /// The places and sizes of parts, by their numbers.
    parts: Vec<(u64, u8)>,
    open: HashMap<u64, HashMap<u64, Touched>>,
    pub services: BTreeMap<ServiceName, ServiceUses>,
    /// How many times an invocation used both parts of one object: for each part, by each part that
    /// is not larger.
    pairs: Vec<Vec<u64>>,
    /// By part and instruction: what services of each direction did.
    pub sites: HashMap<(u32, u64), [Uses; 3]>,
}

impl ServiceTrack {
    #[inline]
    pub(super) fn accessed(
        &mut self,
        position: u64,
        part: u32,
        (base, offset): (u64, u64),
        size: u8,
        (code, is_store): (u64, bool),
    ) {
        if part as usize == self.parts.len() {
            self.parts.push((offset, size));
        }
        self.waiting.push_back(Access { position, part, code, base, is_store });
    }

    fn site(&mut self, site: (u32, u64), direction: Direction, uses: Uses) {
        let sum = &mut self.sites.entry(site).or_default()[direction as usize];
        sum.reads += uses.reads;
        sum.writes += uses.writes;
    }

    /// How many times one invocation used both parts of one object; of a part and itself, how many
    /// times it was used.
    pub(super) fn together(&self, a: u32, b: u32) -> u64 {
        let (less, more) = (a.min(b) as usize, a.max(b) as usize);
        self.pairs.get(more).and_then(|row| row.get(less)).copied().unwrap_or(0)
    }

    fn pair(&mut self, a: u32, b: u32) {
        let (less, more) = (a.min(b) as usize, a.max(b) as usize);
        if self.pairs.len() <= more {
            self.pairs.resize_with(more + 1, Vec::new);
        }
        let row = &mut self.pairs[more];
        if row.len() <= less {
            row.resize(less + 1, 0);
        }
        row[less] += 1;
    }
}

impl StretchTrack for ServiceTrack {
    fn stretch(&mut self, end: u64, invocation: Option<u64>) {
        while let Some(access) = self.waiting.front().copied().filter(|it| it.position < end) {
            self.waiting.pop_front();
            let site = (access.part, access.code);
            let Some(invocation) = invocation else {
                let mut uses = Uses::default();
                uses.add(access.is_store, 1);
                self.site(site, Direction::Other, uses);
                continue;
            };
            let touched = self.open.entry(invocation).or_default().entry(access.base).or_default();
            touched.entry(site).or_default().add(access.is_store, 1);
        }
    }

    fn ended(&mut self, invocation: u64, kind: ServiceKind, name: &str) {
        let Some(objects) = self.open.remove(&invocation) else { return };
        let mut service =
            self.services.remove(&ServiceName { kind, name: name.to_owned() }).unwrap_or_default();
        service.invocations += 1;
        let direction = Direction::of(kind, name);
        for (base, touched) in objects {
            let mut parts: BTreeMap<u32, Uses> = BTreeMap::new();
            for (site, uses) in touched {
                let sum = parts.entry(site.0).or_default();
                sum.reads += uses.reads;
                sum.writes += uses.writes;
                self.site(site, direction, uses);
            }
            let parts: Vec<(u32, Uses)> = parts.into_iter().collect();
            let places = parts.iter().map(|(part, _)| self.parts[*part as usize]);
            let places = places.map(|(offset, size)| (offset, offset + u64::from(size)));
            let bytes = joined(places.collect());
            let mut lines: Vec<u64> = bytes
                .iter()
                .flat_map(|(begin, end)| (base + begin) / LINE..=(base + end - 1) / LINE)
                .collect();
            lines.dedup();
            service.objects += 1;
            service.lines += lines.len() as u64;
            service.fewest +=
                bytes.iter().map(|(begin, end)| end - begin).sum::<u64>().div_ceil(LINE);
            for (number, (part, uses)) in parts.iter().enumerate() {
                let sum = service.parts.entry(*part).or_default();
                sum.reads += uses.reads;
                sum.writes += uses.writes;
                parts[..=number].iter().for_each(|(other, _)| self.pair(*part, *other));
            }
        }
        self.services.insert(ServiceName { kind, name: name.to_owned() }, service);
    }
}

/// The ranges, ascending, without overlaps.
pub(super) fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (begin, end) in ranges {
        match all.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(end),
            _ => all.push((begin, end)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invocations_give_pairs_and_lines() {
        let mut track = ServiceTrack::default();
        // Object at 0x1000: 8 bytes at 0, at 8 and at 0x80; object at 0x2000: 8 bytes at 0.
        for (position, part, base, offset, is_store) in [
            (1, 0, 0x1000, 0, false),
            (2, 1, 0x1000, 8, true),
            (3, 2, 0x1000, 0x80, false),
            (4, 0, 0x2000, 0, false),
            (12, 0, 0x1000, 0, false),
            (13, 2, 0x1000, 0x80, false),
            (14, 1, 0x1000, 8, false),
        ] {
            track.accessed(position, part, (base, offset), 8, (0x10, is_store));
        }
        track.stretch(10, Some(7));
        track.stretch(14, Some(8));
        track.stretch(15, None);
        track.ended(8, ServiceKind::SystemCall, "read");
        track.ended(7, ServiceKind::SystemCall, "write");
        track.ended(9, ServiceKind::SystemCall, "nothing");
        let of = |name: &str| {
            let kind = ServiceKind::SystemCall;
            let it = &track.services[&ServiceName { kind, name: name.to_owned() }];
            (it.invocations, it.objects, it.lines, it.fewest)
        };
        assert_eq!((of("write"), of("read")), ((1, 2, 3, 2), (1, 1, 2, 1)));
        assert_eq!((track.together(0, 2), track.together(1, 0), track.together(0, 0)), (2, 1, 3));
        assert_eq!(track.services.len(), 2);
        let of_part = |part: u32| track.sites[&(part, 0x10)].map(|it| (it.reads, it.writes));
        // Sent, received, and outside of an invocation.
        assert_eq!([of_part(0), of_part(1)], [[(2, 0), (1, 0), (0, 0)], [(0, 1), (0, 0), (1, 0)]]);
    }

    #[test]
    fn ranges_are_joined() {
        assert_eq!(joined(vec![(8, 12), (0, 4), (4, 8), (20, 24)]), [(0, 12), (20, 24)]);
    }
}
