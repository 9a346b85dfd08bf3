//! Simulates data at another place: what would a field cost in a line of its own?
//!
//! Input: a recording, a machine, and the names of objects or fields. Output: what coherence costs
//! before and after. Data with a symbol moves by its virtual address, data of slab objects by its
//! place in the slab: the instructions stay those of the recording, and other data does not move
//! closer together.

use super::moved::{MovedField, MovedPlaces, MovedRange, WORD};
use super::table::SharingTotal;
use anyhow::{Context, Result, ensure};
use execution::cpu_order::CpuOrder;
use memory::misses::owners::{DataOwners, NamedObject};
use memory::objects::names::VariableTypes;
use memory::objects::slabs::{SlabFrames, SlabObjects};
use serde::Serialize;
use std::ops::Range;

/// The largest object or field that moves.
const MOST_BYTES: u64 = 1 << 20;

/// What coherence costs with data at its place and at another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharingChange {
    /// The recorded workload.
    pub workload: String,
    /// The build id of the recorded kernel.
    pub kernel_build_id: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The number of CPUs.
    pub cpus: usize,
    /// The simulated machine.
    pub machine: String,
    /// The order in which the CPUs make their steps.
    pub order: CpuOrder,
    /// What moved to lines of its own.
    pub moved: Vec<MovedData>,
    /// With the data where it was recorded.
    pub before: SharingTotal,
    /// With the data in lines of its own.
    pub after: SharingTotal,
    /// `before` and `after` in the order of the recording, if `order` is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<(SharingTotal, SharingTotal)>,
}

/// Bytes that moved to lines of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MovedData {
    /// The name in the request.
    pub name: String,
    /// The CPU of a per-CPU variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u8>,
    /// The virtual address, in hex; empty for objects of a slab cache.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub addr: String,
    /// The number of bytes, of each object.
    pub bytes: u64,
    /// The objects of a slab cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<MovedObjects>,
}

/// Objects of a slab cache, parts of which moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MovedObjects {
    /// The name of the slab cache.
    pub cache: String,
    /// The number of places of objects whose bytes were accessed. An object that takes the place
    /// of one that was freed does not count again.
    pub number: u64,
}

/// What to move: `NAME`, `NAME.FIELD` or `NAME+OFFSET:BYTES`, with `-> own line` behind it. The
/// name is a symbol, or that of a slab cache or its structure. `static` or `slab` may stand in
/// front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MoveRequest<'a> {
    /// Whether the text says that the data is in a slab cache (`slab`) or has a symbol (`static`).
    in_slab: Option<bool>,
    name: &'a str,
    part: &'a str,
    text: &'a str,
}

impl MoveRequest<'_> {
    /// # Errors
    /// The text has another form.
    pub(super) fn parse(text: &str) -> Result<MoveRequest<'_>> {
        let asked = || format!("{text:?}: write 'SYMBOL.FIELD -> own line'");
        let (what, to) = text.split_once("->").with_context(asked)?;
        ensure!(to.split_ascii_whitespace().eq(["own", "line"]), asked());
        let text = what.trim();
        let (in_slab, what) = match text.split_once(char::is_whitespace) {
            Some(("slab", what)) => (Some(true), what.trim()),
            Some(("static", what)) => (Some(false), what.trim()),
            _ => (None, text),
        };
        let end = what.find(['.', '+', '[']).unwrap_or(what.len());
        let (name, part) = what.split_at(end);
        ensure!(!name.is_empty() && !what.contains(char::is_whitespace), asked());
        Ok(MoveRequest { in_slab, name, part, text })
    }
}

/// The data that can move.
pub(super) struct MovableData<'a> {
    pub owners: DataOwners,
    pub types: &'a VariableTypes<'a>,
    pub slabs: &'a SlabObjects,
}

/// What has moved, with the number of objects. `rows`: as [`moves`] gives them.
pub(super) fn moved(mut rows: Vec<MovedData>, places: &MovedPlaces) -> Vec<MovedData> {
    let of_slabs = rows.iter_mut().filter_map(|row| row.objects.as_mut());
    of_slabs.zip(places.objects()).for_each(|(objects, number)| objects.number = number);
    rows
}

/// The moves that the requests ask for. Each gets its own lines, from the physical address `end`
/// on.
///
/// # Errors
/// A name is unknown or not unique, or has no such part; two requests overlap; the size of a slab
/// cache's objects is not known.
pub(super) fn moves(
    requests: &[MoveRequest<'_>],
    known: MovableData<'_>,
    line_bytes: u64,
    end: u64,
) -> Result<(MovedPlaces, Vec<MovedData>)> {
    let mut plan = MovePlan {
        known: &known,
        line_bytes,
        end: end.next_multiple_of(line_bytes),
        ranges: Vec::new(),
        fields: Vec::new(),
        rows: Vec::new(),
    };
    requests.iter().try_for_each(|request| plan.add(request))?;
    let MovePlan { ranges, fields, rows, end, .. } = plan;
    let frames = SlabFrames::new(known.owners);
    Ok((MovedPlaces::new(ranges, fields, frames, line_bytes, end), rows))
}

struct MovePlan<'a> {
    known: &'a MovableData<'a>,
    line_bytes: u64,
    /// A physical address behind all that moves.
    end: u64,
    ranges: Vec<MovedRange>,
    fields: Vec<MovedField>,
    rows: Vec<MovedData>,
}

impl MovePlan<'_> {
    fn add(&mut self, request: &MoveRequest<'_>) -> Result<()> {
        let MoveRequest { in_slab, name, text, .. } = *request;
        let MovableData { owners, slabs, .. } = self.known;
        let mut objects = owners.objects(name);
        objects.retain(|_| in_slab != Some(true));
        let caches = slabs.named(name).filter(|_| in_slab != Some(false)).count();
        ensure!(
            caches + objects.len() > 0,
            "the kernel has no data with the symbol {name}, and the recording has no slab cache or \
             structure of this name: the table of shared lines names what is shared"
        );
        ensure!(
            caches == 0 || objects.is_empty(),
            "the kernel has a symbol {name}, and a slab cache: write 'static {text} -> own line' \
             or 'slab {text} -> own line'"
        );
        let of_image = objects.iter().filter(|object| object.cpu.is_none()).count();
        ensure!(
            of_image == 0 || objects.len() == 1,
            "the kernel has {} objects with the symbol {name}, so it is not clear which to move",
            objects.len()
        );
        objects.iter().try_for_each(|object| self.add_object(request, object))?;
        if caches > 0 { self.add_slabs(request) } else { Ok(()) }
    }

    fn add_object(&mut self, request: &MoveRequest<'_>, object: &NamedObject) -> Result<()> {
        let text = request.text;
        let (offset, bytes) = self.known.types.part(object, request.part)?;
        ensure!(bytes <= MOST_BYTES, "{text} has {bytes} bytes, more than {MOST_BYTES}");
        let start = object.start.saturating_add(offset);
        let from = start..start.saturating_add(bytes);
        let is_free = !self.ranges.iter().any(|range| overlap(&range.from, &from));
        ensure!(is_free, "{text} overlaps another change");
        self.rows.push(MovedData {
            name: text.to_owned(),
            cpu: object.cpu,
            addr: format!("{start:016x}"),
            bytes,
            objects: None,
        });
        let to = self.end + start % WORD;
        self.ranges.push(MovedRange { from, to });
        self.end = (to + bytes).next_multiple_of(self.line_bytes);
        Ok(())
    }

    fn add_slabs(&mut self, request: &MoveRequest<'_>) -> Result<()> {
        let MoveRequest { name, part, text, .. } = *request;
        let MovableData { types, slabs, .. } = self.known;
        for (cache, of) in slabs.named(name) {
            let object = of.bytes.with_context(|| {
                format!(
                    "the size of the objects of slab cache {cache} is not known: too few of them \
                     are accessed in this recording"
                )
            })?;
            let (offset, bytes) = of.part(types, name, object, part)?;
            ensure!(bytes <= MOST_BYTES, "{text} has {bytes} bytes, more than {MOST_BYTES}");
            let field = offset..offset + bytes;
            let other = |it: &MovedField| it.cache == cache && overlap(&it.field, &field);
            ensure!(!self.fields.iter().any(other), "{text} overlaps another change");
            self.rows.push(MovedData {
                name: text.to_owned(),
                cpu: None,
                addr: String::new(),
                bytes,
                objects: Some(MovedObjects { cache: cache.to_owned(), number: 0 }),
            });
            self.fields.push(MovedField { cache: cache.to_owned(), object, field });
        }
        Ok(())
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        for (text, in_slab, name, part) in [
            ("memlock -> own line", None, "memlock", ""),
            ("rq.lock.val->own  line", None, "rq", ".lock.val"),
            ("list[2].hits -> own line", None, "list", "[2].hits"),
            ("tcp+0x40:8 -> own line", None, "tcp", "+0x40:8"),
            ("kmalloc-cg-2k+8:8 -> own line", None, "kmalloc-cg-2k", "+8:8"),
            ("slab inode.i_lock -> own line", Some(true), "inode", ".i_lock"),
            ("static  inode -> own line", Some(false), "inode", ""),
            ("slab -> own line", None, "slab", ""),
        ] {
            let request = MoveRequest::parse(text).unwrap();
            let found = (request.in_slab, request.name, request.part);
            assert_eq!(found, (in_slab, name, part), "{text}");
        }
        for text in
            ["memlock", "memlock -> own", ".x -> own line", "a b -> own line", "slab a b", ""]
        {
            let error = MoveRequest::parse(text).unwrap_err().to_string();
            assert!(error.contains("SYMBOL.FIELD -> own line"), "{error}");
        }
    }
}
