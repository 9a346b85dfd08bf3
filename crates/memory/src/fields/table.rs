//! The fields of a structure as rows for reports.
//!
//! Input: counts by place and size. Output: rows that add up to the accesses of the kernel to
//! objects of the structure.

use super::collect::{FieldMisses, FieldsWalk, Part, PartUses};
use super::together::{Direction, LINE, ServiceName, ServiceUses, Uses};
use crate::misses::collector::function_at;
use crate::misses::owners::StructureClass;
use crate::objects::names::VariableTypes;
use anyhow::Result;
use image::btf::fields::TypeNumber;
use image::btf::layouts::LaidMember;
use image::source_lines::SourceLines;
use serde::Serialize;
use services::symbols::KernelSymbols;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use trace::{RecordingHeader, RunAddr};

/// The largest number of instructions and of services that a row names.
const MOST_NAMED: usize = 8;
/// The slab caches of names of files (fs/namei.c) and of small packets (net/core/skbuff.c): bytes
/// without a structure, but where code says otherwise.
const PLAIN_CACHES: [&str; 2] = ["names_cache", "skbuff_small_head"];
/// The largest number of pairs.
const MOST_PAIRS: usize = 200;

/// Loads and stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccessCounts {
    /// Loads.
    pub reads: u64,
    /// Stores.
    pub writes: u64,
}

impl AccessCounts {
    /// Loads and stores together.
    pub fn total(self) -> u64 {
        self.reads + self.writes
    }

    fn add(&mut self, uses: Uses) {
        self.merge(uses.into());
    }

    pub(super) fn merge(&mut self, other: AccessCounts) {
        self.reads += other.reads;
        self.writes += other.writes;
    }
}

impl From<Uses> for AccessCounts {
    fn from(Uses { reads, writes }: Uses) -> AccessCounts {
        AccessCounts { reads, writes }
    }
}

/// Misses on the named machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FieldMissCounts {
    /// Of the L1D.
    pub l1d: u64,
    /// Those of them that the L2 missed.
    pub l2: u64,
}

/// An instruction that accesses a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SiteRow {
    /// The function, without what compilers append.
    pub function: String,
    /// The address, in hex.
    pub code: String,
    /// The source line, where the vmlinux has DWARF.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// Its accesses.
    pub accesses: AccessCounts,
    /// Those of services that send to a network.
    pub sending: AccessCounts,
    /// Those of services that receive from a network.
    pub receiving: AccessCounts,
}

/// The accesses of a service to a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldServiceRow {
    /// The service.
    pub service: ServiceName,
    /// Its accesses.
    pub accesses: AccessCounts,
}

/// A field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldRow {
    /// The way to it: `inet_conn.icsk_inet.sk.sk_rcvbuf`; `+0x40` without a type.
    pub name: String,
    /// Its type, as C text; empty without one.
    pub kind: String,
    /// Bytes from the beginning of the structure.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// Its cache line, if the structure begins with a line.
    pub line: u64,
    /// The kernel's accesses.
    pub accesses: AccessCounts,
    /// Those of services that send to a network.
    pub sending: AccessCounts,
    /// Those of services that receive from a network.
    pub receiving: AccessCounts,
    /// Those of another CPU than the one that wrote it last; `None` with one CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_other: Option<AccessCounts>,
    /// Misses on the machine, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<FieldMissCounts>,
    /// Services by their accesses, the first 8.
    pub services: Vec<FieldServiceRow>,
    /// Instructions by their accesses, the first 8.
    pub sites: Vec<SiteRow>,
}

/// A member of the structure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberRow {
    /// Its name; of an unnamed inner structure or union, the names of its members.
    pub name: String,
    /// Its type, as C text.
    pub kind: String,
    /// Bytes from the beginning of the structure.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
}

/// Two fields that invocations use together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairRow {
    /// The names of the fields.
    pub fields: [String; 2],
    /// How many times an invocation of a service used both in one object.
    pub together: u64,
    /// How many times it used the first, and the second.
    pub each: [u64; 2],
}

/// How many lines of an object a service uses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServiceLinesRow {
    /// The service.
    pub service: ServiceName,
    /// Its invocations that use an object.
    pub invocations: u64,
    /// Pairs of an invocation and an object.
    pub objects: u64,
    /// Its accesses.
    pub accesses: AccessCounts,
    /// The lines of an object that an invocation uses, on the average.
    pub lines: f64,
    /// The lines that would do, if the bytes that it uses stood together.
    pub fewest: f64,
}

/// Where objects of the structure lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceRow {
    /// The class of memory: slab, static, per CPU …
    pub class: String,
    /// The slab cache, or the symbol; may be empty.
    pub name: String,
    /// How the structure is known: `cache`, `symbol`, `code`.
    pub known_by: &'static str,
    /// The accesses.
    pub accesses: AccessCounts,
    /// The misses of the L1D; `None` without a machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l1d_misses: Option<u64>,
}

/// A class of memory whose structure is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UntypedRow {
    /// The class of memory.
    pub class: String,
    /// The slab cache; may be empty.
    pub name: String,
    /// The kernel's accesses.
    pub accesses: u64,
    /// The functions with the most accesses, the first 8, as far as they are known.
    pub functions: Vec<(String, u64)>,
}

/// How many of the kernel's accesses have a structure.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TypedShare {
    /// The kernel's accesses.
    pub accesses: u64,
    /// Those to objects of a slab cache with a structure.
    pub by_cache: u64,
    /// Those to variables with a type, and to `struct page`.
    pub by_symbol: u64,
    /// Those whose structure the code of the instruction says.
    pub by_code: u64,
    /// Those that cleared memory, whose structure the code says that accessed it afterwards.
    pub by_later_code: u64,
    /// Those to stacks, memory of processes, the contents of files and page tables, names of files
    /// and packets, which hold no structures.
    pub plain: u64,
    /// Those to variables without a type in BTF. Their symbol names them.
    pub by_name: u64,
    /// All others.
    pub unknown: u64,
    /// The others and those to variables without a type, descending by accesses.
    pub untyped: Vec<UntypedRow>,
}

impl TypedShare {
    /// The share of the kernel's accesses whose structure is not known, and that no symbol names.
    pub fn unknown_share(&self) -> f64 {
        self.unknown as f64 / self.accesses.max(1) as f64
    }
}

/// The fields of a structure in a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldTable {
    /// The recorded workload.
    pub workload: String,
    /// The build id of the recorded kernel.
    pub kernel_build_id: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The number of CPUs.
    pub cpus: u8,
    /// The simulated machine, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The structure, or the slab cache.
    pub structure: String,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of a cache line.
    pub line_bytes: u64,
    /// The accesses to all objects: the sum of those of the fields, and of those of the sources.
    pub accesses: AccessCounts,
    /// Descending by accesses.
    pub sources: Vec<SourceRow>,
    /// Descending by accesses.
    pub fields: Vec<FieldRow>,
    /// The members of the structure in the order of the source; none without a type.
    pub members: Vec<MemberRow>,
    /// Fields that invocations use together, the first 200.
    pub pairs: Vec<PairRow>,
    /// Services by their accesses.
    pub services: Vec<ServiceLinesRow>,
    /// How many accesses have a structure.
    pub typed: TypedShare,
    /// Why the use of page frames is unknown; `None` when it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames_unknown: Option<String>,
}

/// What the rows are named by.
pub(super) struct RowNames<'a> {
    pub header: &'a RecordingHeader,
    pub symbols: &'a KernelSymbols,
    pub types: &'a VariableTypes<'a>,
    pub lines: &'a SourceLines<'a>,
    pub name: &'a str,
    pub structure: Option<TypeNumber>,
    pub bytes: u64,
    pub machine: Option<String>,
}

/// A field, and the numbers of its parts.
struct Named {
    name: String,
    offset: u64,
    size: u64,
    parts: Vec<u32>,
}

impl FieldTable {
    /// # Errors
    /// The kernel's BTF is damaged.
    pub(super) fn new(
        names: &RowNames<'_>,
        mut walk: FieldsWalk<'_>,
        misses: Option<&FieldMisses<'_>>,
    ) -> Result<FieldTable> {
        walk.finish();
        let named = named(&walk.parts, misses, names)?;
        let sources = sources(&walk, misses);
        let (typed, frames_unknown) =
            (typed(&walk, names.symbols), walk.resolver().owners.unknown().map(str::to_owned));
        let FieldsWalk { parts, stretches, .. } = walk;
        let track = stretches.finish();
        // By part: its instructions, and what they did by direction.
        let mut by_part: Vec<Vec<(u64, [Uses; 3])>> = vec![Vec::new(); parts.len()];
        for ((part, code), uses) in &track.sites {
            by_part[*part as usize].push((*code, *uses));
        }
        let several = names.header.cpus.get() > 1;
        let row = |field: &Named| -> Result<FieldRow> {
            let (mut accesses, mut from_other) = <(AccessCounts, AccessCounts)>::default();
            let mut codes: BTreeMap<u64, [AccessCounts; 3]> = BTreeMap::new();
            for &part in &field.parts {
                accesses.add(parts[part as usize].uses);
                from_other.add(parts[part as usize].from_other);
                by_part[part as usize].iter().for_each(|(code, uses)| {
                    let sums = codes.entry(*code).or_default();
                    sums.iter_mut().zip(uses).for_each(|(sum, uses)| sum.add(*uses));
                });
            }
            let mut codes: Vec<(u64, [AccessCounts; 3])> = codes.into_iter().collect();
            let all = |uses: &[AccessCounts; 3]| AccessCounts {
                reads: uses.iter().map(|it| it.reads).sum(),
                writes: uses.iter().map(|it| it.writes).sum(),
            };
            codes.sort_by_key(|(code, uses)| (Reverse(all(uses).total()), *code));
            let directed = |direction: Direction| {
                let mut sum = AccessCounts::default();
                codes.iter().for_each(|(_, uses)| sum.merge(uses[direction as usize]));
                sum
            };
            let (sending, receiving) = (directed(Direction::Sends), directed(Direction::Receives));
            let site = |(code, uses): (u64, [AccessCounts; 3])| SiteRow {
                function: function_at(names.symbols, RunAddr(code)).to_owned(),
                code: format!("{code:016x}"),
                line: names.lines.line(code),
                accesses: all(&uses),
                sending: uses[Direction::Sends as usize],
                receiving: uses[Direction::Receives as usize],
            };
            let sum = |uses: &ServiceUses| {
                let mut sum = AccessCounts::default();
                field
                    .parts
                    .iter()
                    .filter_map(|part| uses.parts.get(part))
                    .for_each(|it| sum.add(*it));
                sum
            };
            let mut services: Vec<FieldServiceRow> = track
                .services
                .iter()
                .map(|(name, uses)| FieldServiceRow { service: name.clone(), accesses: sum(uses) })
                .filter(|row| row.accesses.total() > 0)
                .collect();
            services.sort_by_key(|row| Reverse(row.accesses.total()));
            services.truncate(MOST_NAMED);
            let misses = misses.map(|it| {
                let mut sum = FieldMissCounts::default();
                let of_field = field.parts.iter().map(|part| parts[*part as usize].part);
                of_field.filter_map(|part| it.misses.get(&part)).for_each(|[l1d, l2]| {
                    sum.l1d += l1d;
                    sum.l2 += l2;
                });
                sum
            });
            Ok(FieldRow {
                kind: kind(names, &field.name)?,
                name: field.name.clone(),
                offset: field.offset,
                size: field.size,
                line: field.offset / LINE,
                accesses,
                sending,
                receiving,
                from_other: several.then_some(from_other),
                misses,
                services,
                sites: codes.into_iter().take(MOST_NAMED).map(site).collect(),
            })
        };
        let mut fields: Vec<FieldRow> = named.iter().map(row).collect::<Result<_>>()?;
        let order = |row: &FieldRow| (Reverse(row.accesses.total()), row.offset, row.name.clone());
        fields.sort_by_key(order);
        let together = |a: &Named, b: &Named| -> u64 {
            let both = a.parts.iter().flat_map(|&a| b.parts.iter().map(move |&b| (a, b)));
            both.map(|(a, b)| track.together(a, b)).max().unwrap_or(0)
        };
        let mut pairs: Vec<PairRow> = Vec::new();
        for (number, a) in named.iter().enumerate() {
            for b in &named[..number] {
                let count = together(a, b);
                if count > 0 {
                    let [first, second] = if a.offset < b.offset { [a, b] } else { [b, a] };
                    pairs.push(PairRow {
                        fields: [first.name.clone(), second.name.clone()],
                        together: count,
                        each: [together(first, first), together(second, second)],
                    });
                }
            }
        }
        pairs.sort_by(|a, b| (b.together, &a.fields).cmp(&(a.together, &b.fields)));
        pairs.truncate(MOST_PAIRS);
        let mut services: Vec<ServiceLinesRow> = track
            .services
            .iter()
            .map(|(service, uses)| {
                let mut accesses = AccessCounts::default();
                uses.parts.values().for_each(|it| accesses.add(*it));
                ServiceLinesRow {
                    service: service.clone(),
                    invocations: uses.invocations,
                    objects: uses.objects,
                    accesses,
                    lines: uses.lines as f64 / uses.objects.max(1) as f64,
                    fewest: uses.fewest as f64 / uses.objects.max(1) as f64,
                }
            })
            .collect();
        services.sort_by_key(|row| Reverse(row.accesses.total()));
        let mut accesses = AccessCounts::default();
        parts.iter().for_each(|part| accesses.add(part.uses));
        Ok(FieldTable {
            workload: names.header.workload.clone(),
            kernel_build_id: names.header.build_id.clone(),
            seed: names.header.seed,
            cpus: names.header.cpus.get(),
            machine: names.machine.clone(),
            structure: names.name.to_owned(),
            bytes: names.bytes,
            line_bytes: LINE,
            accesses,
            sources,
            fields,
            members: members(names)?,
            pairs,
            services,
            typed,
            frames_unknown,
        })
    }
}

/// The fields that these parts belong to. A part is also listed if only its misses are known.
fn named(
    parts: &[PartUses],
    misses: Option<&FieldMisses<'_>>,
    names: &RowNames<'_>,
) -> Result<Vec<Named>> {
    debug_assert!(misses.is_none_or(|it| {
        it.misses.keys().all(|part: &Part| parts.iter().any(|known| known.part == *part))
    }));
    let mut fields: BTreeMap<(u64, u64, String), Vec<u32>> = BTreeMap::new();
    for (number, PartUses { part: (offset, size), .. }) in parts.iter().enumerate() {
        let place = match (names.structure, names.types.btf()) {
            (Some(kind), Some(btf)) if *offset < names.bytes => {
                let place = btf.field_at(kind, *offset, u64::from(*size))?;
                // An unnamed structure or union has the name of its first member.
                let named = btf.field_named(kind, &place.path)?;
                let is_unnamed = named.is_some_and(|named| named.size != place.size);
                Some(match is_unnamed && place.size > 1 {
                    true => btf.field_at(kind, *offset, place.size - 1)?,
                    false => place,
                })
            }
            _ => None,
        };
        let key = match place {
            Some(place) => {
                let name = place.path.trim_start_matches('.').to_owned();
                let name = if name.is_empty() { format!("+{offset:#x}") } else { name };
                let whole = name.starts_with('+');
                let at = if whole { *offset } else { place.offset };
                (at, if whole { u64::from(*size) } else { place.size }, name)
            }
            None => (*offset, u64::from(*size), format!("+{offset:#x}")),
        };
        fields.entry(key).or_default().push(number as u32);
    }
    let named = |((offset, size, name), parts)| Named { name, offset, size, parts };
    Ok(fields.into_iter().map(named).collect())
}

fn members(names: &RowNames<'_>) -> Result<Vec<MemberRow>> {
    let (Some(of), Some(btf)) = (names.structure, names.types.btf()) else { return Ok(Vec::new()) };
    let members = btf.laid_members(of)?.into_iter();
    let row = |member: LaidMember| MemberRow {
        name: member.name,
        kind: member.kind,
        offset: member.offset,
        size: member.size,
    };
    Ok(members.map(row).collect())
}

fn kind(names: &RowNames<'_>, path: &str) -> Result<String> {
    let text = match (names.structure, names.types.btf()) {
        (Some(of), Some(btf)) if !path.starts_with('+') => btf.c_text_of_field(of, path)?,
        _ => None,
    };
    Ok(text.unwrap_or_default())
}

fn sources(walk: &FieldsWalk<'_>, misses: Option<&FieldMisses<'_>>) -> Vec<SourceRow> {
    use super::resolve::TypedBy;
    let mut sums: BTreeMap<(&'static str, String, &'static str), (AccessCounts, u64)> =
        BTreeMap::new();
    for (by, uses) in &walk.sources {
        let (class, name) = walk.resolver().source(*by);
        let sum = sums.entry((class, name, known_by(*by))).or_default();
        sum.0.add(*uses);
    }
    for (by, count) in misses.iter().flat_map(|it| &it.sources) {
        let Some(misses) = misses else { continue };
        let (class, name) = misses.resolver.source(*by);
        sums.entry((class, name, known_by(*by))).or_default().1 += count;
    }
    fn known_by(by: TypedBy) -> &'static str {
        match by {
            TypedBy::Slab(_) => "cache",
            TypedBy::Variable(..) | TypedBy::Page => "symbol",
            TypedBy::Code(..) => "code",
            TypedBy::LaterCode(..) => "later code",
        }
    }
    let row = |((class, name, known_by), (accesses, l1d)): (_, (AccessCounts, u64))| {
        let (class, name): (&str, String) = (class, name);
        let l1d_misses = misses.map(|_| l1d);
        SourceRow { class: class.to_owned(), name, known_by, accesses, l1d_misses }
    };
    let mut rows: Vec<SourceRow> =
        sums.into_iter().map(|((class, name, by), sum)| row(((class, name, by), sum))).collect();
    rows.sort_by_key(|row| Reverse(row.accesses.total()));
    rows
}

fn typed(walk: &FieldsWalk<'_>, symbols: &KernelSymbols) -> TypedShare {
    use super::resolve::TypedBy;
    let mut share = TypedShare::default();
    for (by, &count) in &walk.typed.by {
        share.accesses += count;
        *match by {
            TypedBy::Slab(_) => &mut share.by_cache,
            TypedBy::Variable(..) | TypedBy::Page => &mut share.by_symbol,
            TypedBy::Code(..) => &mut share.by_code,
            TypedBy::LaterCode(..) => &mut share.by_later_code,
        } += count;
    }
    let structures = walk.resolver().owners.structures();
    // By class and slab cache: accesses, and those of each function.
    type Sums<'s> = BTreeMap<(StructureClass, &'s str), (u64, BTreeMap<&'s str, u64>)>;
    let mut sums = Sums::new();
    for (&(class, cache, translation), &count) in &walk.typed.untyped {
        share.accesses += count;
        let is_plain = matches!(
            class,
            StructureClass::KernelStack
                | StructureClass::User
                | StructureClass::PageCache
                | StructureClass::PageTable
        ) || cache
            .is_some_and(|id| PLAIN_CACHES.contains(&structures[id.0 as usize].name.as_str()));
        if is_plain {
            share.plain += count;
            continue;
        }
        let has_name = class == StructureClass::Static;
        *if has_name { &mut share.by_name } else { &mut share.unknown } += count;
        let name = cache.map_or("", |id| structures[id.0 as usize].name.as_str());
        let sum = sums.entry((class, name)).or_default();
        sum.0 += count;
        if let Some(translation) = translation {
            let function = function_at(symbols, walk.addresses[translation as usize]);
            *sum.1.entry(function).or_default() += count;
        }
    }
    for ((class, name), (accesses, functions)) in sums {
        let mut functions: Vec<(&str, u64)> = functions.into_iter().collect();
        functions.sort_by_key(|(name, count)| (Reverse(*count), *name));
        let functions = functions.into_iter().take(MOST_NAMED);
        share.untyped.push(UntypedRow {
            class: class.title().to_owned(),
            name: name.to_owned(),
            accesses,
            functions: functions.map(|(name, count)| (name.to_owned(), count)).collect(),
        });
    }
    share.untyped.sort_by_key(|row| (Reverse(row.accesses), row.class.clone(), row.name.clone()));
    share
}
