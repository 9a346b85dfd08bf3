//! Says what would stop a line from moving between CPUs.
//!
//! Input: the fields of a line and what they cost. Output: a cure, by the rules of
//! `docs/how-to/sharing.md`. This module simulates nothing; `what_if` does.
//!
//! Two fields are *in conflict* when a CPU writes one of them and another CPU uses the other.
//! Accesses that are rarer than 1 % of the line's coherence misses and upgrades are left out,
//! because they cannot cause most of these.

use super::counts::LineCounts;
use super::rows::{FieldRow, ObjectRow};
use memory::misses::owners::StructureClass;
use serde::Serialize;

/// What would stop a line from moving between CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Cure {
    /// The CPUs use what other CPUs write. No other placement avoids these misses.
    TrueSharing,
    /// One CPU uses the line. The protocol still asks for an upgrade.
    OneCpu,
    /// Another object shares the line: give `object` lines of its own.
    Align {
        /// The object to align.
        object: String,
        /// The other objects in conflict.
        beside: Vec<String>,
    },
    /// Each CPU writes its own element: give each CPU its own copy.
    PerCpu {
        /// The object with the elements.
        object: String,
    },
    /// The only field that is written disturbs the readers of other fields.
    MoveWritten {
        /// The written field.
        field: String,
        /// The fields that are read.
        readers: Vec<String>,
    },
    /// Fields have different writers.
    MoveField {
        /// The field that is written most.
        field: String,
        /// The other fields in conflict.
        beside: Vec<String>,
    },
}

/// A set of CPUs, by bits.
type Cpus = u8;

/// Fields that overlap, and how CPUs use them.
#[derive(Clone, Debug)]
struct Part<'a> {
    object: usize,
    /// The field that is accessed most.
    name: &'a str,
    accesses: u64,
    start: u32,
    end: u32,
    writes: u64,
    readers: Cpus,
    writers: Cpus,
}

impl Part<'_> {
    fn users(&self) -> Cpus {
        self.readers | self.writers
    }

    /// Whether a CPU writes this part, and another CPU uses the other part.
    fn disturbs(&self, other: &Part<'_>) -> bool {
        let users = other.users();
        (0..Cpus::BITS).any(|cpu| self.writers >> cpu & 1 == 1 && users & !(1 << cpu) != 0)
    }

    fn in_conflict(&self, other: &Part<'_>) -> bool {
        self.disturbs(other) || other.disturbs(self)
    }
}

/// The cure for a line. `objects`: the most expensive first.
pub(super) fn cure(objects: &[ObjectRow], fields: &[FieldRow], counts: &LineCounts) -> Cure {
    let parts = parts(objects, fields, counts.events());
    let users = parts.iter().fold(0, |users, part| users | part.users());
    if users.count_ones() <= 1 {
        return Cure::OneCpu;
    }
    let misses = &counts.misses;
    if misses.coherence() > 0 && 10 * misses.false_sharing < misses.coherence() {
        return Cure::TrueSharing;
    }
    let conflict = |(at, part): (usize, &Part<'_>)| {
        let mut others = parts.iter().enumerate().filter(|&(other, _)| other != at);
        others.any(|(_, other)| part.in_conflict(other))
    };
    let conflicts: Vec<&Part<'_>> =
        parts.iter().enumerate().filter(|&it| conflict(it)).map(|(_, part)| part).collect();
    let written: Vec<&Part<'_>> =
        conflicts.iter().copied().filter(|part| part.writers != 0).collect();
    let Some(most) = written.iter().max_by_key(|part| (part.writes, std::cmp::Reverse(part.start)))
    else {
        return Cure::TrueSharing;
    };
    let between_objects = conflicts
        .iter()
        .any(|one| conflicts.iter().any(|two| one.object != two.object && one.in_conflict(two)));
    let title = |object: usize| objects.get(object).map_or("", |object| object.title.as_str());
    if between_objects {
        let mut beside: Vec<String> = conflicts
            .iter()
            .filter(|part| part.object != most.object)
            .map(|part| title(part.object).to_owned())
            .collect();
        beside.sort();
        beside.dedup();
        let of_slab = objects.get(most.object).filter(|row| row.class == StructureClass::Slab);
        let object = match of_slab {
            Some(row) => format!("each object of {} {}", row.class.title(), row.name),
            None => title(most.object).to_owned(),
        };
        return Cure::Align { object, beside };
    }
    if each_cpu_has_its_own(&written) {
        return Cure::PerCpu { object: title(most.object).to_owned() };
    }
    let names = |except: &Part<'_>| {
        let others = conflicts.iter().filter(|part| part.start != except.start);
        others.map(|part| part.name.to_owned()).collect()
    };
    match written.len() {
        1 => Cure::MoveWritten { field: most.name.to_owned(), readers: names(most) },
        _ => Cure::MoveField { field: most.name.to_owned(), beside: names(most) },
    }
}

/// The parts that the cure is about: those of all objects with symbols, those of all objects of the
/// slab cache that costs most, or those of the most expensive object. Other objects lay in the line
/// at other times.
fn parts<'a>(objects: &[ObjectRow], fields: &'a [FieldRow], events: u64) -> Vec<Part<'a>> {
    let cache = |row: &ObjectRow| (row.class == StructureClass::Slab).then(|| row.name.clone());
    let often = |count: u64| count > 0 && 100 * count >= events;
    let beside_first = |at: usize| match (objects.first(), objects.get(at)) {
        (Some(first), Some(row)) if first.bytes.is_some() && row.bytes.is_some() => {
            cache(first) == cache(row)
        }
        _ => at == 0,
    };
    let chosen = |field: &&FieldRow| beside_first(field.object) && often(field.accesses().total());
    let mut rows: Vec<&FieldRow> = fields.iter().filter(chosen).collect();
    rows.sort_by_key(|row| (row.offset, row.object, row.size));
    let mut groups: Vec<(Part<'a>, Vec<&FieldRow>)> = Vec::new();
    for row in rows {
        let (accesses, end) = (row.accesses(), row.offset + row.size);
        if let Some((part, of_part)) = groups.last_mut()
            && part.object == row.object
            && row.offset < part.end
        {
            if accesses.total() > part.accesses {
                (part.name, part.accesses) = (&row.name, accesses.total());
            }
            part.end = part.end.max(end);
            part.writes += accesses.writes;
            of_part.push(row);
            continue;
        }
        let part = Part {
            object: row.object,
            name: &row.name,
            accesses: accesses.total(),
            start: row.offset,
            end,
            writes: accesses.writes,
            readers: 0,
            writers: 0,
        };
        groups.push((part, vec![row]));
    }
    let used = |(mut part, rows): (Part<'a>, Vec<&FieldRow>)| {
        let cpus = rows.iter().map(|row| row.cpus.len()).max().unwrap_or(0);
        for cpu in 0..cpus.min(Cpus::BITS as usize) {
            let of_cpu = || rows.iter().filter_map(|row| row.cpus.get(cpu));
            part.readers |= Cpus::from(often(of_cpu().map(|it| it.reads).sum())) << cpu;
            part.writers |= Cpus::from(often(of_cpu().map(|it| it.writes).sum())) << cpu;
        }
        part
    };
    groups.into_iter().map(used).collect()
}

/// Whether each of several CPUs writes one element of an array. When the type is not known, three
/// neighbours of one size count as an array.
fn each_cpu_has_its_own(written: &[&Part<'_>]) -> bool {
    let size = |part: &Part<'_>| part.end - part.start;
    let mut writers: Cpus = 0;
    for part in written {
        if part.writers.count_ones() != 1 || writers & part.writers != 0 {
            return false;
        }
        writers |= part.writers;
    }
    let of_one_size = written.windows(2).all(|two| size(two[0]) == size(two[1]));
    let in_a_row = written.windows(2).all(|two| two[0].end == two[1].start);
    let elements: Option<Vec<(&str, &str)>> =
        written.iter().map(|part| around_index(part.name)).collect();
    match elements {
        Some(elements) => {
            written.len() > 1 && elements.windows(2).all(|two| two[0] == two[1]) && of_one_size
        }
        None => written.len() > 2 && of_one_size && in_a_row,
    }
}

/// What stands before and behind the last index of a field's name: `counts[3].hits` is an element
/// of `counts` with `.hits`.
fn around_index(name: &str) -> Option<(&str, &str)> {
    let open = name.rfind('[')?;
    let close = open + name[open..].find(']')?;
    Some((&name[..open], &name[close + 1..]))
}
