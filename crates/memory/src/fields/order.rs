//! Another order of the members of a structure.
//!
//! Input: the members in the order of the source, and wishes: fields with new offsets, or how the
//! members are used. Output: where each byte of the structure goes. Members keep their alignment. A
//! wish names a member or a field within one; all other members stay, unless their place is taken.
//! This module simulates nothing.

use super::table::{AccessCounts, FieldTable};
use super::together::{LINE, joined};
use anyhow::{Context, Result, bail, ensure};
use image::btf::Btf;
use image::btf::fields::TypeNumber;
use image::btf::layouts::LaidMember;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A member is hot if it has at least this share of the accesses.
const HOT: f64 = 0.001;
/// A member is read-mostly if at most this share of its accesses are stores.
const WRITTEN: f64 = 0.01;

/// Bytes that move together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MovedBytes {
    /// The name of the field or member.
    pub name: String,
    pub from: u64,
    pub size: u64,
    pub to: u64,
}

/// Where the bytes of a structure go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldOrder {
    /// Those within others come first.
    moved: Vec<MovedBytes>,
    /// The bytes of the structure in this order.
    pub bytes: u64,
}

impl FieldOrder {
    /// Where a byte goes.
    #[inline]
    pub(super) fn place(&self, offset: u64) -> u64 {
        let holds = |it: &&MovedBytes| (it.from..it.from + it.size).contains(&offset);
        self.moved.iter().find(holds).map_or(offset, |it| it.to + (offset - it.from))
    }

    /// The members that are elsewhere than in the source, by their new offset.
    pub(super) fn changed(&self) -> Vec<&MovedBytes> {
        let mut changed: Vec<&MovedBytes> =
            self.moved.iter().filter(|it| it.from != it.to && it.size > 0).collect();
        changed.sort_by_key(|it| it.to);
        changed
    }
}

/// What cannot be taken apart: a member, bit fields that share bytes, or a group of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unit {
    members: Vec<LaidMember>,
    from: u64,
    size: u64,
    alignment: u64,
}

impl Unit {
    /// The first place at or behind `at` that keeps the alignment of the members. A group may begin
    /// in the middle of a word.
    fn aligned(&self, at: u64) -> u64 {
        at + self.from.wrapping_sub(at) % self.alignment
    }
}

/// The order in which these fields stand at these offsets: `field=offset,field=offset`.
///
/// # Errors
/// A field is unknown or a bit field, an offset is no number or not aligned, or two fields overlap.
pub(super) fn wished(
    btf: &Btf<'_>,
    structure: TypeNumber,
    bytes: u64,
    wishes: &str,
) -> Result<FieldOrder> {
    let mut fixed: Vec<MovedBytes> = Vec::new();
    for wish in wishes.split(',').map(str::trim).filter(|wish| !wish.is_empty()) {
        let (name, offset) = wish
            .split_once('=')
            .with_context(|| format!("{wish}: write FIELD=OFFSET, such as snd_cwnd=0x40"))?;
        let (name, offset) = (name.trim(), offset.trim());
        let parsed = match offset.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => offset.parse(),
        };
        let to = parsed.with_context(|| format!("{wish}: {offset:?} is not a number"))?;
        let field = btf.field_named(structure, name)?;
        let field = field
            .with_context(|| format!("the structure has no field {name}, or it is a bit field"))?;
        ensure!(field.size > 0, "{name} has no bytes");
        let alignment = field.size.min(8).next_power_of_two().min(8);
        ensure!(
            field.size % alignment != 0 || to % alignment == 0,
            "{wish}: {name} has {} bytes, so its offset must be a multiple of {alignment}",
            field.size
        );
        let moved = MovedBytes { name: name.to_owned(), from: field.offset, size: field.size, to };
        for other in &fixed {
            let apart = to + moved.size <= other.to || other.to + other.size <= to;
            ensure!(apart, "{name} and {} overlap at their new offsets", other.name);
            let apart =
                moved.from + moved.size <= other.from || other.from + other.size <= moved.from;
            ensure!(apart, "{name} and {} overlap in the source", other.name);
        }
        fixed.push(moved);
    }
    ensure!(!fixed.is_empty(), "no field is named: write FIELD=OFFSET, such as snd_cwnd=0x40");
    let units = units(&btf.laid_members(structure)?, false);
    let named = |unit: &Unit| fixed.iter().any(|it| it.from == unit.from && it.size == unit.size);
    let rest: Vec<&Unit> = units.iter().filter(|unit| !named(unit) && unit.size > 0).collect();
    Ok(placed(fixed, &rest, bytes))
}

/// The order with some bytes at new places. A unit whose place is taken goes to the first gap that
/// it fits into; all others stay.
fn placed(fixed: Vec<MovedBytes>, rest: &[&Unit], bytes: u64) -> FieldOrder {
    let is_taken = |unit: &&Unit| {
        let end = unit.from + unit.size;
        fixed.iter().any(|it| unit.from < it.to + it.size && it.to < end)
    };
    let (displaced, kept): (Vec<&Unit>, Vec<&Unit>) = rest.iter().copied().partition(is_taken);
    let ranges = fixed.iter().map(|it| (it.to, it.to + it.size));
    let mut taken =
        joined(ranges.chain(kept.iter().map(|unit| (unit.from, unit.from + unit.size))).collect());
    let mut moved = fixed.clone();
    for unit in displaced {
        let mut to = 0_u64;
        loop {
            to = unit.aligned(to);
            let hit = taken.iter().find(|(begin, end)| to < *end && *begin < to + unit.size);
            let Some((_, end)) = hit else { break };
            to = *end;
        }
        taken = joined(taken.into_iter().chain([(to, to + unit.size)]).collect());
        for member in &unit.members {
            let name = member.name.clone();
            let to = to + (member.offset - unit.from);
            moved.push(MovedBytes { name, from: member.offset, size: member.size, to });
        }
    }
    FieldOrder { moved, bytes: taken.last().map_or(0, |(_, end)| *end).max(bytes) }
}

/// The units of a structure. `groups`: whether members between `__cacheline_group_begin__…` and
/// `__cacheline_group_end__…` stay together.
fn units(members: &[LaidMember], groups: bool) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut in_group = false;
    for member in members {
        let begins = member.name.starts_with("__cacheline_group_begin");
        let shares = units
            .last()
            .is_some_and(|unit| member.bits.is_some() && member.offset < unit.from + unit.size);
        let alignment =
            member.alignment.max(if member.bits.is_some() { 1 } else { member.alignment });
        match units.last_mut() {
            Some(unit) if shares || groups && in_group && !begins => {
                unit.size = unit.size.max(member.offset + member.size - unit.from);
                unit.alignment = unit.alignment.max(alignment);
                unit.members.push(member.clone());
            }
            _ => units.push(Unit {
                members: vec![member.clone()],
                from: member.offset,
                size: member.size,
                alignment,
            }),
        }
        in_group = begins || in_group && !member.name.starts_with("__cacheline_group_end");
    }
    for unit in &mut units {
        // Padding in front of a unit may come from an attribute, which BTF does not have.
        unit.alignment = unit.alignment.max(1);
    }
    units
}

/// An order that puts members that are read together into few lines, apart from those that are
/// written, and both apart from those that are not used. Groups of the source, the first member if
/// it is a structure, and a last array stay: the kernel often gives that array a length of its own.
///
/// # Errors
/// The kernel's BTF is damaged, or the structure has nothing to move.
pub(super) fn suggested(
    btf: &Btf<'_>,
    structure: TypeNumber,
    bytes: u64,
    table: &FieldTable,
) -> Result<FieldOrder> {
    let all = units(&btf.laid_members(structure)?, true);
    let (mut fixed, mut free): (Vec<&Unit>, Vec<&Unit>) = (Vec::new(), Vec::new());
    for (number, unit) in all.iter().enumerate() {
        let first = number == 0
            && unit.members[0].kind.starts_with("struct ")
            && !unit.members[0].kind.ends_with('*');
        let last =
            unit.members.last().is_some_and(|it| it.kind.ends_with(']')) && number + 1 == all.len();
        match first || last && !unit.members[0].name.starts_with("__cacheline_group") {
            true => fixed.push(unit),
            false => free.push(unit),
        }
    }
    ensure!(!free.is_empty(), "the structure has no member that could move");
    let total = table.accesses.total().max(1) as f64;
    let uses = |unit: &Unit| -> (AccessCounts, BTreeMap<String, u64>) {
        let (mut sum, mut services) = (AccessCounts::default(), BTreeMap::new());
        for row in &table.fields {
            if (unit.from..unit.from + unit.size).contains(&row.offset) {
                sum.merge(row.accesses);
                for it in &row.services {
                    let name = format!("{:?} {}", it.service.kind, it.service.name);
                    *services.entry(name).or_default() += it.accesses.total();
                }
            }
        }
        (sum, services)
    };
    let known: Vec<(&Unit, AccessCounts, BTreeMap<String, u64>)> =
        free.iter().map(|unit| (*unit, uses(unit))).map(|(u, (a, s))| (u, a, s)).collect();
    let is_hot = |accesses: AccessCounts| accesses.total() as f64 >= HOT * total;
    let is_read =
        |accesses: AccessCounts| accesses.writes as f64 <= WRITTEN * accesses.total() as f64;
    let of = |hot: bool, read: bool| -> Vec<usize> {
        let wanted = |at: &usize| {
            let accesses = known[*at].1;
            is_hot(accesses) == hot && (!hot || is_read(accesses) == read)
        };
        (0..known.len()).filter(wanted).collect()
    };
    let together = |a: usize, b: usize| -> u64 {
        known[a].2.iter().filter_map(|(name, n)| known[b].2.get(name).map(|m| n.min(m))).sum()
    };
    // The others must end where a last array begins.
    let room = fixed.iter().map(|unit| unit.from).find(|from| *from > 0).unwrap_or(bytes);
    let start = fixed.first().filter(|unit| unit.from == 0).map_or(0, |unit| unit.size);
    let order = |aligns: bool| -> FieldOrder {
        let mut at = start;
        let mut moved: Vec<MovedBytes> = Vec::new();
        for (number, class) in
            [of(true, true), of(true, false), of(false, true)].into_iter().enumerate()
        {
            if aligns && number < 3 && at > start {
                at = at.next_multiple_of(LINE);
            }
            let chain = if number < 2 { chained(&class, &known, &together) } else { class };
            for unit in chain.into_iter().map(|at| known[at].0) {
                at = unit.aligned(at);
                for member in &unit.members {
                    let name = member.name.clone();
                    let to = at + (member.offset - unit.from);
                    moved.push(MovedBytes { name, from: member.offset, size: member.size, to });
                }
                at += unit.size;
            }
        }
        FieldOrder { moved, bytes: at }
    };
    let found = Some(order(true)).filter(|it| it.bytes <= room).unwrap_or_else(|| order(false));
    if found.bytes > room {
        bail!(
            "the order needs {} bytes and the structure has {room}: its members have alignments \
             that BTF does not say",
            found.bytes
        );
    }
    Ok(FieldOrder { bytes, ..found })
}

/// Members of one class, so that neighbours are used by the same services: first the one that is
/// used most, then always the one that is used most together with the last.
fn chained(
    class: &[usize],
    known: &[(&Unit, AccessCounts, BTreeMap<String, u64>)],
    together: &dyn Fn(usize, usize) -> u64,
) -> Vec<usize> {
    let mut left: Vec<usize> = class.to_vec();
    let mut chain: Vec<usize> = Vec::new();
    while !left.is_empty() {
        let rank = |at: &usize| {
            let with = chain.last().map_or(0, |last| together(*last, *at));
            (Reverse(with), Reverse(known[*at].1.total()), known[*at].0.from)
        };
        let next = left.iter().enumerate().min_by_key(|(_, at)| rank(at)).map_or(0, |(n, _)| n);
        chain.push(left.remove(next));
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::super::table::{FieldRow, FieldServiceRow, TypedShare};
    use super::super::together::ServiceName;
    use super::*;
    use services::annotations::ServiceKind;

    fn member(name: &str, offset: u64, size: u64) -> LaidMember {
        LaidMember {
            name: name.to_owned(),
            kind: "u64".to_owned(),
            offset,
            size,
            alignment: size.clamp(1, 8),
            bits: None,
        }
    }

    #[test]
    fn others_stay_unless_their_place_is_taken() {
        let members =
            [member("a", 0, 8), member("b", 8, 4), member("c", 12, 4), member("d", 16, 8)];
        let units = units(&members, false);
        let rest: Vec<&Unit> = units.iter().filter(|unit| unit.from != 16).collect();
        let fixed = vec![MovedBytes { name: "d".to_owned(), from: 16, size: 8, to: 0 }];
        let order = placed(fixed, &rest, 24);
        assert_eq!([0, 8, 12, 16, 20].map(|at| order.place(at)), [16, 8, 12, 0, 4]);
        assert_eq!(order.bytes, 24);
        // `b` and `c` go to the gap at the beginning.
        let fixed = vec![MovedBytes { name: "d".to_owned(), from: 16, size: 8, to: 8 }];
        let order = placed(fixed, &rest[1..], 24);
        assert_eq!([8, 12, 16].map(|at| order.place(at)), [0, 4, 8]);
    }

    #[test]
    fn groups_and_bit_fields_stay_together() {
        let bit = |name: &str, offset| LaidMember { bits: Some(3), ..member(name, offset, 1) };
        let members = [
            member("a", 0, 8),
            member("__cacheline_group_begin__hot", 8, 0),
            member("b", 8, 8),
            member("c", 16, 8),
            member("__cacheline_group_end__hot", 24, 0),
            bit("d", 24),
            bit("e", 24),
            member("f", 32, 8),
        ];
        let found: Vec<(u64, u64)> =
            units(&members, true).iter().map(|unit| (unit.from, unit.size)).collect();
        assert_eq!(found, [(0, 8), (8, 16), (24, 1), (32, 8)]);
        assert_eq!(units(&members, false).len(), 7);
    }

    const A: u32 = 3;
    const COLD: u32 = 5;
    const B: u32 = 10;
    const W: u32 = 12;
    const C: u32 = 14;

    /// `struct s { u64 a; u64 cold[8]; u64 b; u64 w; u64 c; }`, 96 bytes
    fn section() -> Vec<u8> {
        section_of([(A, 0), (COLD, 8), (B, 72), (W, 80), (C, 88)])
    }

    /// The structure with its members in another order: their names and offsets.
    fn section_of(members: [(u32, u32); 5]) -> Vec<u8> {
        let strings = b"\0s\0a\0cold\0b\0w\0c\0u64\0";
        let members = members.into_iter().flat_map(|(name, offset)| {
            let kind = if name == COLD { 3 } else { 2 };
            [name, kind, 8 * offset]
        });
        let types = [
            [1, 4 << 24 | 5, 96].into_iter().chain(members).collect(), // 1
            vec![16, 1 << 24, 8, 64],                                  // 2: u64
            vec![0, 3 << 24, 0, 2, 2, 8],                              // 3: u64[8]
        ];
        image::examples::btf_section(&types, strings)
    }

    /// `a` and `b` are read by one service, `c` by another, `w` is written.
    fn table() -> FieldTable {
        let field = |name: &str, offset, service: &str, reads, writes| {
            let accesses = AccessCounts { reads, writes };
            let service = ServiceName { kind: ServiceKind::SystemCall, name: service.to_owned() };
            FieldRow {
                name: name.to_owned(),
                kind: String::new(),
                offset,
                size: 8,
                line: 0,
                accesses,
                sending: AccessCounts::default(),
                receiving: AccessCounts::default(),
                from_other: None,
                misses: None,
                services: vec![FieldServiceRow { service, accesses }],
                sites: Vec::new(),
            }
        };
        FieldTable {
            workload: String::new(),
            kernel_build_id: String::new(),
            seed: 1,
            cpus: 1,
            machine: None,
            structure: "s".to_owned(),
            bytes: 96,
            line_bytes: LINE,
            accesses: AccessCounts { reads: 270, writes: 50 },
            sources: Vec::new(),
            fields: vec![
                field("a", 0, "read", 100, 0),
                field("b", 72, "read", 80, 0),
                field("c", 88, "write", 90, 0),
                field("w", 80, "write", 0, 50),
            ],
            members: Vec::new(),
            pairs: Vec::new(),
            services: Vec::new(),
            typed: TypedShare::default(),
            frames_unknown: None,
        }
    }

    #[test]
    fn members_that_are_read_together_stand_together_and_apart_from_written_ones() {
        let section = section();
        let btf = Btf::parse(&section).unwrap();
        let of = btf.type_of_structure("s").unwrap().unwrap();
        // With lines of their own, the written member and the unused ones do not fit into 96 bytes.
        let order = suggested(&btf, of, 96, &table()).unwrap();
        assert_eq!([0, 72, 88, 80, 8].map(|offset| order.place(offset)), [0, 8, 16, 24, 32]);
        let order = suggested(&btf, of, 192, &table()).unwrap();
        assert_eq!([0, 72, 88, 80, 8].map(|offset| order.place(offset)), [0, 8, 16, 64, 128]);
    }

    #[test]
    fn a_last_array_stays() {
        let section = section_of([(A, 0), (W, 8), (B, 16), (C, 24), (COLD, 32)]);
        let btf = Btf::parse(&section).unwrap();
        let of = btf.type_of_structure("s").unwrap().unwrap();
        let mut table = table();
        for field in &mut table.fields {
            field.offset = match &*field.name {
                "a" => 0,
                "w" => 8,
                "b" => 16,
                _ => 24,
            };
        }
        // There is room for lines of their own, but not in front of the array.
        let order = suggested(&btf, of, 192, &table).unwrap();
        assert_eq!([0, 16, 24, 8, 32].map(|offset| order.place(offset)), [0, 8, 16, 24, 32]);
    }

    #[test]
    fn wishes_are_read() {
        let section = section();
        let btf = Btf::parse(&section).unwrap();
        let of = btf.type_of_structure("s").unwrap().unwrap();
        let order = wished(&btf, of, 96, "w=88, c=0x50").unwrap();
        assert_eq!([80, 88, 0, 8, 72].map(|offset| order.place(offset)), [88, 80, 0, 8, 72]);
        assert_eq!(order.bytes, 96);
        for (wishes, message) in [
            ("", "no field is named"),
            ("w", "write FIELD=OFFSET"),
            ("w=x", "is not a number"),
            ("x=0", "has no field x"),
            ("w=4", "must be a multiple of 8"),
            ("w=0,c=0", "overlap at their new offsets"),
            ("w=0,w=8", "overlap in the source"),
        ] {
            let error = format!("{:#}", wished(&btf, of, 96, wishes).unwrap_err());
            assert!(error.contains(message), "{wishes}: {error}");
        }
    }
}
