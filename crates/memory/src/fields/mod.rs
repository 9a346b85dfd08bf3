//! Who uses which fields of a structure of the kernel: by instruction and by service, with misses
//! on a machine, and which fields are used together.
//!
//! Takes a recording with data accesses, its vmlinux and, for misses, a machine; gives a table.
//! Reads the recording twice: the first pass finds the objects of slab caches, and what new memory
//! becomes after it was cleared; the second counts.
//! Samples nothing, asks the guest nothing, prints nothing.

mod accesses;
mod cleared;
mod collect;
mod objects;
mod order;
mod resolve;
mod sites;
pub mod table;
mod together;
pub mod what_if;

pub use together::ServiceName;

use crate::misses::hierarchy_walk::HierarchyWalk;
use crate::objects::names::{DataNames, VariableTypes};
use crate::objects::slabs::SlabObjects;
pub use accesses::FieldAccess;
use accesses::FieldAccesses;
use anyhow::{Context, Result, bail, ensure};
use cleared::ClearingCode;
use collect::{FieldMisses, FieldsWalk, Wanted};
use execution::walk::{Observer, SideBySide};
use image::btf::fields::TypeNumber;
use image::mapping::map_file;
use image::source_lines::SourceLines;
use image::vmlinux;
use objects::{KnownObjects, ObjectStudy};
use resolve::Resolver;
use services::Attribution;
use services::stretches::StretchesWalk;
use sites::{TypedSites, typed_sites};
use std::path::Path;
use table::{FieldTable, RowNames};
use together::ServiceTrack;
use what_if::{MovedField, OrderChange, OrderWalk};

/// The kernel's objects, before any recording of it is read.
pub struct FieldStudy<'a> {
    attribution: &'a Attribution,
    kernel: std::path::PathBuf,
    names: DataNames,
}

impl<'a> FieldStudy<'a> {
    /// Reads a kernel. `kernel`: as for [`Attribution::open`].
    ///
    /// # Errors
    /// It is not a vmlinux, or has no symbols of data.
    pub fn new(attribution: &'a Attribution, kernel: &Path) -> Result<FieldStudy<'a>> {
        let kernel = vmlinux::path(kernel);
        let names = DataNames::read(&kernel)?;
        Ok(FieldStudy { attribution, kernel, names })
    }

    /// The fields of a structure, or of the objects of a slab cache, in a recording. The misses are
    /// those on the first machine, if there is one.
    ///
    /// # Errors
    /// The recording is damaged, has no data accesses or comes from another kernel; with a machine,
    /// it was made on several CPUs, or the machine has no data cache. The kernel has no such
    /// structure, and the recording no such slab cache.
    pub fn table(&self, recording: &Path, name: &str) -> Result<FieldTable> {
        let Studied { types, code, known, wanted } = self.studied(recording, name)?;
        let opened = self.attribution.opened(recording, "fields")?;
        let header = opened.header().clone();
        let symbols = &self.attribution.symbols;
        let resolver = || {
            let cache = wanted.structure.is_none().then(|| name.to_owned());
            Resolver::new(self.names.owners(&header), &types, &known, &code.sites, cache)
        };
        let counted = || Wanted::new(&types, wanted.structure, wanted.bytes);
        let binding = &self.attribution.binding;
        let stretches = StretchesWalk::new(symbols, binding, ServiceTrack::default());
        let mut walk = FieldsWalk::new(resolver()?, counted(), stretches, header.cpus.get());
        let machine = self.attribution.machines.first();
        let mut misses = match machine {
            None => None,
            Some(machine) => {
                header.one_cpu().context(
                    "the caches of several CPUs depend on each other: the table of shared lines has \
                     the misses of their fields",
                )?;
                let misses = FieldMisses::new(resolver()?, counted());
                Some(HierarchyWalk::new(std::slice::from_ref(machine), misses)?)
            }
        };
        let mut observers: Vec<&mut (dyn Observer + Send)> = vec![&mut walk];
        observers.extend(misses.iter_mut().map(|it| it as &mut (dyn Observer + Send)));
        opened.walk(&mut SideBySide(observers))?;
        let bytes = map_file(&self.kernel)?;
        let lines = SourceLines::read(&bytes).with_context(|| self.kernel.display().to_string())?;
        let names = RowNames {
            header: &header,
            symbols,
            types: &types,
            lines: &lines,
            name,
            structure: wanted.structure,
            bytes: wanted.bytes,
            machine: machine.map(|machine| machine.name.clone()),
        };
        FieldTable::new(&names, walk, misses.as_ref().map(|it| &it.observer))
    }

    /// The accesses of the kernel to a field of a structure, or of the objects of a slab cache that
    /// holds such structures, in the order of the recording. `field`: as `a.b[1]`.
    ///
    /// # Errors
    /// As [`FieldStudy::table`]; the kernel does not describe the structure, or it has no such
    /// field.
    pub fn accesses(&self, recording: &Path, name: &str, field: &str) -> Result<Vec<FieldAccess>> {
        let Studied { types, code, known, wanted } = self.studied(recording, name)?;
        let (Some(structure), Some(btf)) = (wanted.structure, types.btf()) else {
            bail!("the kernel's BTF does not describe the fields of {name}");
        };
        let Some(place) = btf.field_named(structure, field)? else {
            bail!(
                "{name} has no field {field}, or it is a bit field; it has {}",
                btf.members(structure)?.join(", ")
            );
        };
        let opened = self.attribution.opened(recording, "accesses to a field")?;
        let header = opened.header().clone();
        let resolver =
            Resolver::new(self.names.owners(&header), &types, &known, &code.sites, None)?;
        let counted = Wanted::new(&types, wanted.structure, wanted.bytes);
        let mut walk = FieldAccesses::new(resolver, counted, place.offset, place.size);
        opened.walk(&mut walk)?;
        Ok(walk.found)
    }

    /// The misses on the first machine when fields stand at other offsets. `wishes`:
    /// `FIELD=OFFSET,…`; `None`: where a suggested order has them, which puts members that are read
    /// together into few lines, apart from those that are written.
    ///
    /// # Errors
    /// As [`FieldStudy::table`]; no machine is named, the kernel does not describe the structure,
    /// or the order does not fit into its objects.
    pub fn what_if(
        &self,
        recording: &Path,
        name: &str,
        wishes: Option<&str>,
    ) -> Result<OrderChange> {
        let machine = self.attribution.machines.first().context(
            "no machine is named to simulate misses on: name one, for example server-32k",
        )?;
        let Studied { types, code, known, wanted } = self.studied(recording, name)?;
        let (Some(structure), Some(btf)) = (wanted.structure, types.btf()) else {
            bail!("the kernel's BTF does not describe the fields of {name}");
        };
        let order = match wishes {
            Some(wishes) => order::wished(btf, structure, wanted.bytes, wishes)?,
            None => {
                let table = self.table(recording, name)?;
                order::suggested(btf, structure, wanted.bytes, &table)?
            }
        };
        ensure!(
            order.bytes <= wanted.bytes,
            "{name} has {} bytes and would have {}: choose other offsets",
            wanted.bytes,
            order.bytes
        );
        let as_it_is = order::FieldOrder::default();
        let opened = self.attribution.opened(recording, "order of fields")?;
        let header = opened.header().clone();
        header.one_cpu().context("the caches of several CPUs depend on each other")?;
        let resolver =
            || Resolver::new(self.names.owners(&header), &types, &known, &code.sites, None);
        let counted = || Wanted::new(&types, wanted.structure, wanted.bytes);
        let walk = |order| -> Result<OrderWalk<'_>> {
            let misses = FieldMisses::new(resolver()?, counted());
            OrderWalk::new(resolver()?, counted(), order, machine, misses)
        };
        let (mut before, mut after) = (walk(&as_it_is)?, walk(&order)?);
        opened.walk(&mut SideBySide(vec![&mut before, &mut after]))?;
        let moved = order.changed().into_iter().map(|it| MovedField {
            name: it.name.clone(),
            from: it.from,
            to: it.to,
            size: it.size,
        });
        Ok(OrderChange {
            workload: header.workload.clone(),
            kernel_build_id: header.build_id.clone(),
            seed: header.seed,
            machine: machine.name.clone(),
            structure: name.to_owned(),
            moved: moved.collect(),
            before: before.misses(),
            after: after.misses(),
        })
    }

    /// What the kernel and a first pass over the recording say.
    fn studied(&self, recording: &Path, name: &str) -> Result<Studied<'_>> {
        let bytes = map_file(&self.kernel)?;
        let named = || self.kernel.display().to_string();
        let types = self.names.types().with_context(named)?;
        let code = self.code(&bytes, &types).with_context(named)?;
        let known = self.objects(recording, &types, &code)?;
        let wanted = WantedName::new(name, &types, &known.slabs)?;
        Ok(Studied { types, code, known, wanted })
    }

    fn code(&self, bytes: &[u8], types: &VariableTypes<'_>) -> Result<KernelCode> {
        let Some(btf) = types.btf() else { return Ok(KernelCode::default()) };
        let image = vmlinux::read(&self.kernel)?;
        let sites = typed_sites(bytes, &image, btf, self.names.variables())?;
        Ok(KernelCode { sites, clearing: ClearingCode::of(&image) })
    }

    fn objects(
        &self,
        recording: &Path,
        types: &VariableTypes<'_>,
        code: &KernelCode,
    ) -> Result<KnownObjects> {
        let opened = self.attribution.opened(recording, "objects")?;
        services::check(opened.header(), &self.attribution.symbols)?;
        let mut study = ObjectStudy::new(self.names.owners(opened.header()), code);
        opened.walk(&mut study)?;
        study.finish(types)
    }
}

/// What is known before the pass that answers.
struct Studied<'a> {
    types: VariableTypes<'a>,
    code: KernelCode,
    known: KnownObjects,
    wanted: WantedName,
}

/// What the kernel's code says.
#[derive(Default)]
struct KernelCode {
    sites: TypedSites,
    clearing: ClearingCode,
}

/// What is asked for.
struct WantedName {
    /// `None`: the objects of a slab cache.
    structure: Option<TypeNumber>,
    bytes: u64,
}

impl WantedName {
    fn new(name: &str, types: &VariableTypes<'_>, slabs: &SlabObjects) -> Result<WantedName> {
        if let Some((kind, bytes)) = types.structure(name)? {
            ensure!(bytes > 0, "struct {name} has no bytes");
            return Ok(WantedName { structure: Some(kind), bytes });
        }
        if let Some((_, kind, bytes)) = slabs.structure(name) {
            return Ok(WantedName { structure: Some(kind), bytes });
        }
        if let Some(bytes) = slabs.bytes(name) {
            return Ok(WantedName { structure: None, bytes });
        }
        let known = slabs.names().any(|cache| cache == name);
        ensure!(
            !known,
            "the size of the objects of slab cache {name} is not known: too few of them are \
             accessed in this recording"
        );
        match types.known() {
            true => bail!(
                "the kernel has no struct {name}, and the recording no slab cache of this name"
            ),
            false => bail!(
                "the recording has no slab cache {name}, and the kernel describes no structures: \
                 build it with CONFIG_DEBUG_INFO_BTF=y, or name a slab cache, such as dentry"
            ),
        }
    }
}
