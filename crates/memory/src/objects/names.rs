//! Names data: which object holds an address, and which field of the object.
//!
//! Input: a vmlinux and the header of a recording. Output: names. Static objects and per-CPU
//! variables have symbols. Their fields have names when the kernel has BTF that describes the
//! variable. This module never guesses a type.

use crate::misses::owners::{DataOwners, NamedObject};
use crate::misses::variables::Variables;
use anyhow::{Context, Result, bail, ensure};
use image::btf::Btf;
use image::btf::fields::{FieldPlace, TypeNumber};
use image::mapping::map_file;
use object::{Object, ObjectSection};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use trace::RecordingHeader;

/// The symbols of a kernel's data, and the types of its variables.
pub struct DataNames {
    variables: Variables,
    /// The `.BTF` section; `None` when the kernel has none.
    types: Option<Vec<u8>>,
}

impl DataNames {
    /// Reads a vmlinux.
    ///
    /// # Errors
    /// The file cannot be read, is not an ELF file, or has no symbols.
    pub fn read(vmlinux: &Path) -> Result<DataNames> {
        let bytes = map_file(vmlinux)?;
        let read = || -> Result<DataNames> {
            let variables = Variables::read(&bytes)?;
            let elf = object::File::parse(&*bytes).context("not an ELF file that can be read")?;
            let types = match elf.section_by_name(".BTF") {
                None => None,
                Some(section) => Some(section.data().context(".BTF cannot be read")?.to_vec()),
            };
            Ok(DataNames { variables, types })
        };
        read().with_context(|| vmlinux.display().to_string())
    }

    /// Names made by hand.
    #[cfg(any(test, feature = "examples"))]
    pub fn of(variables: Variables, types: Option<Vec<u8>>) -> DataNames {
        DataNames { variables, types }
    }

    /// The symbols of data.
    pub fn variables(&self) -> &Variables {
        &self.variables
    }

    /// Finds the owners of addresses in a recording.
    pub fn owners(&self, header: &RecordingHeader) -> DataOwners {
        DataOwners::new(header, self.variables.clone())
    }

    /// The types of variables.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub fn types(&self) -> Result<VariableTypes<'_>> {
        let parsed = self.types.as_deref().map(Btf::parse).transpose();
        Ok(VariableTypes { btf: parsed.context("the kernel's .BTF")?, found: Mutex::default() })
    }
}

/// The types of a kernel's variables, as far as they are known.
pub struct VariableTypes<'a> {
    btf: Option<Btf<'a>>,
    /// The types of variables that were searched for. They are kept because each search reads the
    /// whole section.
    found: Mutex<HashMap<String, Option<TypeNumber>>>,
}

impl VariableTypes<'_> {
    /// Whether the kernel describes its types.
    pub fn known(&self) -> bool {
        self.btf.is_some()
    }

    /// The kernel's description of its types.
    pub fn btf(&self) -> Option<&Btf<'_>> {
        self.btf.as_ref()
    }

    fn of(&self, object: &NamedObject) -> Result<Option<TypeNumber>> {
        self.of_variable(&object.name)
    }

    /// The type of the variable with this name. `None`: it is not known.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub fn of_variable(&self, name: &str) -> Result<Option<TypeNumber>> {
        let Some(btf) = &self.btf else { return Ok(None) };
        let mut known = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&found) = known.get(name) {
            return Ok(found);
        }
        let found = btf.variable(name)?;
        known.insert(name.to_owned(), found);
        Ok(found)
    }

    /// The field of `size` bytes at an offset of an object. `None`: the object's type is not known.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub fn field(
        &self,
        object: &NamedObject,
        offset: u64,
        size: u64,
    ) -> Result<Option<FieldPlace>> {
        self.of(object)?.map_or(Ok(None), |kind| self.field_at(kind, offset, size))
    }

    /// The field of `size` bytes at an offset of a type. `None`: the kernel does not describe its
    /// types.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub fn field_at(&self, kind: TypeNumber, offset: u64, size: u64) -> Result<Option<FieldPlace>> {
        self.btf.as_ref().map(|btf| btf.field_at(kind, offset, size)).transpose()
    }

    /// The type of a structure, and its bytes. `None`: the kernel does not describe it.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub fn structure(&self, name: &str) -> Result<Option<(TypeNumber, u64)>> {
        let Some(btf) = &self.btf else { return Ok(None) };
        let Some(kind) = btf.type_of_structure(name)? else { return Ok(None) };
        Ok(Some((kind, btf.size(name)?)))
    }

    /// The bytes of an object that the text behind its name stands for: `.FIELD`, `+OFFSET:BYTES`,
    /// or nothing for the whole object. Returns the offset and the number of bytes.
    ///
    /// # Errors
    /// The object has no such field or bytes, or its type is not known.
    pub fn part(&self, object: &NamedObject, text: &str) -> Result<(u64, u64)> {
        self.part_of(&object.name, object.bytes, self.of(object)?, text)
    }

    /// As `part`, for an object with this name, this number of bytes and this type.
    ///
    /// # Errors
    /// As `part`.
    pub fn part_of(
        &self,
        name: &str,
        all: u64,
        kind: Option<TypeNumber>,
        text: &str,
    ) -> Result<(u64, u64)> {
        if text.is_empty() {
            return Ok((0, all));
        }
        let (offset, bytes) = match text.strip_prefix('+') {
            Some(place) => {
                let (offset, bytes) = place
                    .split_once(':')
                    .with_context(|| format!("{text}: write +OFFSET:BYTES, such as +0x40:8"))?;
                (number(offset)?, number(bytes)?)
            }
            None => {
                let Some((btf, kind)) = self.btf.as_ref().zip(kind) else {
                    bail!(
                        "the kernel's BTF does not describe the type of {name}: write \
                         {name}+OFFSET:BYTES"
                    );
                };
                let field = btf.field_named(kind, text)?;
                let field = field.with_context(|| format!("{name} has no field {text}"))?;
                (field.offset, field.size)
            }
        };
        let end = offset.checked_add(bytes).filter(|end| bytes > 0 && *end <= all);
        ensure!(
            end.is_some(),
            "{name}{text}: these bytes are not in {name}, which has {all} bytes"
        );
        Ok((offset, bytes))
    }
}

fn number(text: &str) -> Result<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.with_context(|| format!("{text:?} is not a number"))
}
