//! The lines that CPUs take from each other, as rows for reports.
//!
//! Input: the counts of both passes, and names. Output: lines by cost, each with its objects, its
//! fields and a cure. Prints nothing.

use super::caches::SharedMachine;
pub use super::costs::{OrderedTotals, SharingTotal};
pub use super::counts::{AccessCounts, LineCounts};
pub use super::cure::Cure;
use super::cure::cure;
use super::details::{FieldUses, LineUses};
use super::functions::BlockMisses;
pub use super::functions::FunctionRow;
use super::ranking::Ranking;
pub use super::rows::{FieldRow, FunctionUse, ObjectRow};
use crate::tasks::TaskNames;
use anyhow::Result;
use image::address::LinkAddr;
use image::programs::{InProgram, UserPrograms};
use memory::misses::collector::function_at;
pub use memory::misses::owners::StructureClass;
use memory::misses::owners::{DataOwners, MissOwner, NamedObject, Structure};
use memory::objects::names::VariableTypes;
use memory::objects::slabs::SlabObjects;
use serde::Serialize;
use services::symbols::KernelSymbols;
use sim::PerMode;
use std::collections::BTreeMap;
use trace::{RecordingHeader, RunAddr};

/// What coherence cost in a recording on one machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharingTable {
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
    /// The bytes of a line.
    pub line_bytes: u64,
    /// What all lines cost.
    #[serde(flatten)]
    pub totals: OrderedTotals,
    /// The number of lines with coherence misses or upgrades.
    pub shared_lines: usize,
    /// The cycles of lines that were not ranked, because there were too many.
    pub unranked_cycles: f64,
    /// Whether the kernel describes types of its variables (BTF).
    pub types_known: bool,
    /// Why the recording does not contain the use of frames; `None` when it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames_unknown: Option<String>,
    /// The number of lines that `data` adds up.
    pub data_lines: usize,
    /// What the most expensive lines hold, descending by cycles.
    pub data: Vec<DataRow>,
    /// What functions asked for, descending by cycles.
    pub functions: Vec<FunctionRow>,
    /// The most expensive lines, descending by cycles.
    pub lines: Vec<LineRow>,
}

/// The lines of an object, or of the objects of a slab cache. A line belongs to its most expensive
/// object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataRow {
    /// The class, as in the table of misses.
    pub class: StructureClass,
    /// The symbol, the name of the slab cache or of the task; empty without a name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Class and name.
    pub title: String,
    /// The number of lines.
    pub lines: u64,
    /// Their counts.
    pub counts: LineCounts,
    /// Their part of the cycles of all lines.
    pub share: f64,
    /// The cure for the most expensive of them.
    pub cure: Cure,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LineRow {
    /// The physical address, in hex.
    pub physical: String,
    /// A virtual address of the line, in hex: that of its first object.
    pub addr: String,
    /// All CPUs in both modes.
    pub counts: LineCounts,
    /// The line's part of the cycles of all lines.
    pub share: f64,
    /// By CPU.
    pub cpus: Vec<PerMode<LineCounts>>,
    /// What lies in the line, descending by cycles. An object whose beginning is not known stands
    /// for all of its class and name that were in the line, one after the other. An object of a
    /// slab cache stands for all objects that were at its place.
    pub objects: Vec<ObjectRow>,
    /// What would stop the line from moving.
    pub cure: Cure,
    /// The fields, ascending by their place.
    pub fields: Vec<FieldRow>,
}

/// What names the data and the code of a recording.
pub(super) struct RowNames<'a> {
    pub symbols: &'a KernelSymbols,
    pub owners: &'a DataOwners,
    pub tasks: &'a TaskNames,
    pub types: &'a VariableTypes<'a>,
    pub slabs: &'a SlabObjects,
    pub programs: &'a UserPrograms,
}

/// Where a field lies in its object.
enum FieldOwner {
    Symbol(NamedObject),
    /// The offset in an object of a slab cache.
    Slab(u64),
    /// A variable of a user's program, or a place in its file.
    Program(String),
    /// The beginning of the object is not known.
    Unknown,
}

/// An object of user memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UserObject {
    /// A variable that begins at this address.
    Variable(u64),
    /// What is no variable in the page at this address.
    Page(u64),
}

impl SharingTable {
    /// `lines`: the uses of the first lines of the ranking, of which `top` become rows.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub(super) fn new(
        header: &RecordingHeader,
        machine: &SharedMachine<'_>,
        ranking: &Ranking,
        (lines, blocks): (Vec<LineUses>, &BlockMisses),
        top: usize,
        names: &RowNames<'_>,
    ) -> Result<SharingTable> {
        let numbered = ranking.lines.iter().zip(lines);
        let mut rows: Vec<LineRow> = numbered
            .map(|(&(number, _), uses)| {
                names.line(number << machine.line_log2(), uses, ranking.totals.total.cycles)
            })
            .collect::<Result<_>>()?;
        rows.sort_by(|a, b| b.counts.cycles.total_cmp(&a.counts.cycles));
        let (data_lines, data) = (rows.len(), data(&rows));
        rows.truncate(top);
        Ok(SharingTable {
            workload: header.workload.clone(),
            kernel_build_id: header.build_id.clone(),
            seed: header.seed,
            cpus: machine.cpus(),
            machine: machine.name().to_owned(),
            line_bytes: 1 << machine.line_log2(),
            totals: ranking.totals,
            shared_lines: ranking.lines.len(),
            unranked_cycles: ranking.unranked,
            types_known: names.types.known(),
            frames_unknown: names.owners.unknown().map(str::to_owned),
            data_lines,
            data,
            functions: blocks.rows(names.symbols),
            lines: rows,
        })
    }
}

impl RowNames<'_> {
    fn line(&self, physical: u64, uses: LineUses, all_cycles: f64) -> Result<LineRow> {
        let mut counts = LineCounts::default();
        for cpu in &uses.cpus {
            counts += cpu.kernel;
            counts += cpu.user;
        }
        let mut objects: Vec<ObjectRow> = Vec::new();
        let mut fields = Vec::new();
        // A variable of user memory is one object, and so is the rest of its page, whichever
        // thread uses it.
        let mut users = Vec::new();
        for field in &uses.fields {
            let (row, owner) = self.object(field, physical + u64::from(field.key.offset));
            let user = self.user_object(field);
            let known = objects.iter().zip(&users).position(|(it, &of)| {
                let named = it.name == row.name && (row.bytes.is_none() || it.addr == row.addr);
                (it.class, it.cpu, it.bytes, of) == (row.class, row.cpu, row.bytes, user)
                    && (user.is_some() || named)
            });
            let object = known.unwrap_or(objects.len());
            if known.is_none() {
                objects.push(row);
                users.push(user);
            }
            objects[object].cycles += field.counts.cycles;
            fields.push(self.field(field, object, owner)?);
        }
        add_addresses(&mut objects);
        for (object, user) in objects.iter_mut().zip(&users) {
            let of_object =
                uses.fields.iter().filter(|it| user.is_some() && self.user_object(it) == *user);
            if let Some(field) =
                of_object.rev().max_by(|a, b| a.counts.cycles.total_cmp(&b.counts.cycles))
            {
                let named = self.object(field, 0).0;
                *object = ObjectRow { cycles: object.cycles, ..named };
            }
        }
        let mut order: Vec<usize> = (0..objects.len()).collect();
        order.sort_by(|&a, &b| objects[b].cycles.total_cmp(&objects[a].cycles).then(a.cmp(&b)));
        let place = |object: usize| order.iter().position(|&at| at == object).unwrap_or(object);
        fields.iter_mut().for_each(|field: &mut FieldRow| field.object = place(field.object));
        fields.sort_by_key(|field| (field.offset, field.size, field.object));
        let objects: Vec<ObjectRow> = order.iter().map(|&at| objects[at].clone()).collect();
        let addr_of = |field: &FieldUses| field.addr.wrapping_sub(field.key.offset.into());
        let dearest = uses.fields.iter().max_by(|a, b| a.counts.cycles.total_cmp(&b.counts.cycles));
        Ok(LineRow {
            physical: format!("{physical:x}"),
            addr: dearest.map_or(String::new(), |field| format!("{:016x}", addr_of(field))),
            share: if all_cycles > 0.0 { counts.cycles / all_cycles } else { 0.0 },
            cpus: uses.cpus,
            cure: cure(&objects, &fields, &counts),
            counts,
            objects,
            fields,
        })
    }

    fn structure(&self, field: &FieldUses) -> Option<&Structure> {
        match field.key.owner {
            MissOwner::Known(id) => self.owners.structures().get(id.0 as usize),
            MissOwner::Pending(_) => None,
        }
    }

    /// Where a field of user memory lies in a program of its task.
    fn in_program(&self, field: &FieldUses) -> Option<InProgram<'_>> {
        field.key.user?;
        self.programs.find(self.tasks.distinct(field.task), field.addr)
    }

    /// What tells objects of user memory apart: the variable that a field belongs to, else the
    /// page.
    fn user_object(&self, field: &FieldUses) -> Option<UserObject> {
        let page = field.key.user?;
        let variable = self.in_program(field).and_then(|it| it.object);
        Some(match variable {
            Some((_, offset)) => UserObject::Variable(field.addr.wrapping_sub(offset)),
            None => UserObject::Page(page),
        })
    }

    /// The object that a field belongs to. `physical`: the address of the field.
    fn object(&self, field: &FieldUses, physical: u64) -> (ObjectRow, FieldOwner) {
        let structure = self.structure(field);
        let class = structure.map_or(StructureClass::Other, |structure| structure.class);
        let has_symbol = matches!(class, StructureClass::Static | StructureClass::PerCpu);
        let named = self.owners.object(field.addr).filter(|_| has_symbol);
        let name = match field.key.user {
            Some(_) => self.tasks.distinct(field.task),
            None => structure.map_or("", |structure| structure.name.as_str()),
        };
        let in_slab = (class == StructureClass::Slab).then(|| self.slabs.bytes(name)).flatten();
        let offset = |bytes: u64| physical.saturating_sub(field.pages) % bytes;
        let in_program = self.in_program(field);
        let place = in_program.as_ref().map(|it| match it.object {
            Some((object, _)) => format!("{} of {}", object.0, it.program),
            None => format!("{}+{:#x}", it.program, it.addr),
        });
        let (addr, bytes, cpu, owner) = match (named, in_slab) {
            (None, None) if in_program.is_some() => {
                let variable = in_program.and_then(|it| it.object);
                let offset = variable.map_or(0, |(_, offset)| offset);
                let name = match variable {
                    Some((object, 0)) if object.2 == u64::from(field.key.size) => object.0.clone(),
                    Some((object, offset)) => format!("{}+{offset:#x}", object.0),
                    None => place.clone().unwrap_or_default(),
                };
                let bytes = variable.map(|(object, _)| object.2);
                (field.addr.wrapping_sub(offset), bytes, None, FieldOwner::Program(name))
            }
            (Some(named), _) => {
                (named.start, Some(named.bytes), named.cpu, FieldOwner::Symbol(named))
            }
            (None, Some(bytes)) => {
                let offset = offset(bytes);
                (field.addr.wrapping_sub(offset), in_slab, None, FieldOwner::Slab(offset))
            }
            (None, None) => (field.addr, None, None, FieldOwner::Unknown),
        };
        let title = match (name.is_empty(), cpu) {
            (true, _) => format!("{} at {addr:x}", class.title()),
            _ if class == StructureClass::User || place.is_some() => {
                let place = place.as_ref().map_or(String::new(), |place| format!(": {place}"));
                format!("{} {name}{place} at {addr:x}", class.title())
            }
            (false, None) => format!("{} {name}", class.title()),
            (false, Some(cpu)) => format!("{} {name} of CPU {cpu}", class.title()),
        };
        let row = ObjectRow {
            class,
            name: name.to_owned(),
            place,
            cpu,
            title,
            addr: format!("{addr:016x}"),
            bytes,
            cycles: 0.0,
        };
        (row, owner)
    }

    fn field(&self, field: &FieldUses, object: usize, owner: FieldOwner) -> Result<FieldRow> {
        let size = u64::from(field.key.size);
        let name = match owner {
            FieldOwner::Unknown => format!("+{:#x} of the line", field.key.offset),
            FieldOwner::Slab(offset) => self.in_slab(field, offset)?,
            FieldOwner::Program(name) => name,
            FieldOwner::Symbol(named) => {
                let offset = field.addr - named.start;
                let path = match self.types.field(&named, offset, size)? {
                    Some(place) => place.path,
                    None if (offset, size) == (0, named.bytes) => String::new(),
                    None => format!("+{offset:#x}"),
                };
                format!("{}{path}", named.name)
            }
        };
        Ok(FieldRow {
            offset: field.key.offset,
            size: field.key.size,
            object,
            name,
            cpus: field.cpus.clone(),
            counts: field.counts,
            functions: self.functions(field),
        })
    }

    /// The name of a field at an offset of an object of a slab cache.
    fn in_slab(&self, field: &FieldUses, offset: u64) -> Result<String> {
        let cache = self.structure(field).map_or("", |structure| structure.name.as_str());
        let found = self.slabs.field(self.types, cache, offset, field.key.size.into())?;
        Ok(match found {
            Some((structure, place)) => format!("{structure}{}", place.path),
            None => format!("{cache}+{offset:#x}"),
        })
    }

    fn functions(&self, field: &FieldUses) -> Vec<FunctionUse> {
        let mut functions = BTreeMap::<&str, BTreeMap<RunAddr, AccessCounts>>::new();
        for &(addr, counts) in field.sites.values() {
            let of_function = functions.entry(function_at(self.symbols, addr)).or_default();
            *of_function.entry(addr).or_default() += counts;
        }
        let mut rows: Vec<FunctionUse> = functions
            .into_iter()
            .map(|(function, sites)| {
                let mut accesses = AccessCounts::default();
                sites.values().for_each(|&counts| accesses += counts);
                let most = sites.iter().rev().max_by_key(|(_, counts)| counts.total());
                FunctionUse {
                    function: function.to_owned(),
                    accesses,
                    most_at: most.map_or(String::new(), |(&addr, _)| self.instruction(addr)),
                }
            })
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.accesses.total()));
        rows
    }

    fn instruction(&self, addr: RunAddr) -> String {
        match self.symbols.containing(LinkAddr(addr.0)).filter(|_| addr.is_kernel()) {
            Some(symbol) => format!("{}+{:#x}", symbol.name, addr.0 - symbol.addr.0),
            None => format!("{:x}", addr.0),
        }
    }
}

/// Adds the address to the titles of objects of one slab cache that lie side by side.
fn add_addresses(objects: &mut [ObjectRow]) {
    let of_slabs = |row: &ObjectRow| row.class == StructureClass::Slab && row.bytes.is_some();
    let titles: Vec<String> =
        objects.iter().filter(|row| of_slabs(row)).map(|row| row.title.clone()).collect();
    for row in objects.iter_mut().filter(|row| of_slabs(row)) {
        if titles.iter().filter(|title| **title == row.title).count() > 1 {
            row.title += &format!(" at {}", row.addr);
        }
    }
}

/// Adds up lines by what they hold. `rows`: descending by cycles.
fn data(rows: &[LineRow]) -> Vec<DataRow> {
    let mut data = Vec::<DataRow>::new();
    let mut numbers = BTreeMap::new();
    for row in rows {
        let Some(object) = row.objects.first() else { continue };
        let number = *numbers.entry((object.class, &object.name)).or_insert(data.len());
        if number == data.len() {
            data.push(DataRow {
                class: object.class,
                name: object.name.clone(),
                title: format!("{} {}", object.class.title(), object.name).trim_end().to_owned(),
                lines: 0,
                counts: LineCounts::default(),
                share: 0.0,
                cure: row.cure.clone(),
            });
        }
        let of = &mut data[number];
        of.lines += 1;
        of.counts += row.counts;
        of.share += row.share;
    }
    data.sort_by(|a, b| b.counts.cycles.total_cmp(&a.counts.cycles));
    data
}
