//! The offsets of fields in the kernel's structures, from the kernel's own type description (BTF,
//! Documentation/bpf/btf.rst).
//!
//! Input: the bytes of a `.BTF` section. Output: byte offsets, sizes and values of enumerators, the
//! fields of variables ([`fields`]), and the types of functions and expressions ([`shapes`]). Types
//! that these do not need are skipped.

pub mod fields;
pub mod layouts;
pub mod shapes;

use anyhow::{Context, Result, bail, ensure};

const MAGIC: u16 = 0xeb9f;

/// `struct btf_type` has the fields name_off, info, and size or type. More bytes follow, depending
/// on the kind.
const TYPE_SIZE: usize = 12;
const MEMBER_SIZE: usize = 12;

// Kinds of types.
const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const VAR: u32 = 14;
const FLOAT: u32 = 16;
const ENUM64: u32 = 19;
const ENUMERATOR_SIZE: usize = 8;

/// The deepest nesting of unnamed structures that is read. The kernel nests less deeply; deeper
/// nesting means that the section is damaged.
const MAX_DEPTH: u32 = 16;

/// The types of a `.BTF` section.
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type begins in `types`; type numbers count from 1.
    starts: Vec<usize>,
}

impl<'a> Btf<'a> {
    /// Finds the beginning of each type.
    ///
    /// # Errors
    /// The section is not BTF of a little-endian machine, is damaged, or has a kind of type that
    /// this parser does not know.
    pub fn parse(section: &'a [u8]) -> Result<Btf<'a>> {
        ensure!(u32_at(section, 0)? & 0xffff == u32::from(MAGIC), "not BTF");
        let header = u32_at(section, 4)? as usize;
        let part = |offset: usize| -> Result<&'a [u8]> {
            let (start, size) =
                (u32_at(section, offset)? as usize, u32_at(section, offset + 4)? as usize);
            let start = header.saturating_add(start);
            section.get(start..start.saturating_add(size)).context("BTF is cut off")
        };
        let (types, strings) = (part(8)?, part(16)?);
        let mut starts = Vec::new();
        let mut at = 0;
        while at < types.len() {
            starts.push(at);
            let info = u32_at(types, at + 4)?;
            at += TYPE_SIZE + trailing(info >> 24 & 31, (info & 0xffff) as usize)?;
        }
        Ok(Btf { types, strings, starts })
    }

    /// No types, of a kernel that describes none.
    pub fn none() -> Btf<'static> {
        Btf { types: &[], strings: &[], starts: Vec::new() }
    }

    /// Whether there is a type.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The offset of a field in a structure, in bytes. Fields of unnamed inner structures count as
    /// fields of the outer structure. `None` if the structure has no such field.
    ///
    /// # Errors
    /// There is no such structure, or the field is a bit field.
    pub fn offset(&self, structure: &str, field: &str) -> Result<Option<u64>> {
        self.field(self.named(structure)?, field.as_bytes(), 0)
    }

    /// The size of a structure, in bytes.
    ///
    /// # Errors
    /// There is no such structure.
    pub fn size(&self, structure: &str) -> Result<u64> {
        Ok(u64::from(u32_at(self.types, self.named(structure)? + 8)?))
    }

    /// The value of an enumerator of any enum. `None` if no enum has it or if it is negative.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn enumerator(&self, name: &str) -> Result<Option<u64>> {
        for &start in &self.starts {
            let info = u32_at(self.types, start + 4)?;
            if info >> 24 & 31 != ENUM {
                continue;
            }
            for number in 0..(info & 0xffff) as usize {
                let at = start + TYPE_SIZE + number * ENUMERATOR_SIZE;
                if self.name(u32_at(self.types, at)?)? == name.as_bytes() {
                    return Ok(i32::try_from(u32_at(self.types, at + 4)?)
                        .ok()
                        .map(|value| value as u64));
                }
            }
        }
        Ok(None)
    }

    /// Where the structure with that name begins in `types`.
    fn named(&self, structure: &str) -> Result<usize> {
        for &start in &self.starts {
            let (name, info) = (u32_at(self.types, start)?, u32_at(self.types, start + 4)?);
            if info >> 24 & 31 == STRUCT && self.name(name)? == structure.as_bytes() {
                return Ok(start);
            }
        }
        bail!("BTF describes no struct {structure}")
    }

    fn field(&self, start: usize, field: &[u8], depth: u32) -> Result<Option<u64>> {
        ensure!(depth < MAX_DEPTH, "BTF nests structures too deeply: the section is damaged");
        let info = u32_at(self.types, start + 4)?;
        let has_bit_fields = info >> 31 == 1;
        for member in 0..(info & 0xffff) as usize {
            let at = start + TYPE_SIZE + member * MEMBER_SIZE;
            let (name, kind, bits) =
                (u32_at(self.types, at)?, u32_at(self.types, at + 4)?, u32_at(self.types, at + 8)?);
            // If the kind flag is set, the upper byte is the size of a bit field, or 0 for an
            // ordinary field.
            let (width, bits) =
                if has_bit_fields { (bits >> 24, bits & 0xff_ffff) } else { (0, bits) };
            let name = self.name(name)?;
            if name == field {
                ensure!(
                    width == 0 && bits % 8 == 0,
                    "{} is a bit field",
                    String::from_utf8_lossy(field)
                );
                return Ok(Some(u64::from(bits / 8)));
            }
            if name.is_empty()
                && let Some(inner) = self.structure(kind)?
                && let Some(offset) = self.field(inner, field, depth + 1)?
            {
                return Ok(Some(u64::from(bits / 8) + offset));
            }
        }
        Ok(None)
    }

    /// Where the type with that number begins, if it is a structure or a union.
    fn structure(&self, number: u32) -> Result<Option<usize>> {
        let Some(index) = (number as usize).checked_sub(1) else {
            return Ok(None);
        };
        let start = *self.starts.get(index).context("BTF refers to a type that does not exist")?;
        let kind = u32_at(self.types, start + 4)? >> 24 & 31;
        Ok((kind == STRUCT || kind == UNION).then_some(start))
    }

    fn name(&self, offset: u32) -> Result<&'a [u8]> {
        let bytes = self
            .strings
            .get(offset as usize..)
            .context("BTF refers to a string that does not exist")?;
        Ok(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
    }
}

/// Bytes that follow `struct btf_type`, by kind (include/uapi/linux/btf.h).
fn trailing(kind: u32, count: usize) -> Result<usize> {
    Ok(match kind {
        INT | VAR | 17 => 4, // and DECL_TAG
        ARRAY => 12,
        STRUCT | UNION => count * MEMBER_SIZE,
        ENUM | 13 => count * ENUMERATOR_SIZE, // and FUNC_PROTO
        15 | ENUM64 => count * 12,            // and DATASEC
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        PTR | 7..=12 | FLOAT | 18 => 0,
        _ => bail!("BTF has a type of kind {kind}, which Kernlane does not know"),
    })
}

/// Whether a type only stands for another: TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG.
fn is_modifier(kind: u32) -> bool {
    matches!(kind, 8..=11 | 18)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk()).context("BTF is cut off")?;
    Ok(u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::btf_section;

    /// `int`; an unnamed struct with the field b at 4; struct task { int a; struct { … } at 16; bit
    /// field c; }.
    fn section() -> Vec<u8> {
        let (int, task, a, b, c) = (1u32, 5, 10, 12, 14);
        let types = [
            vec![int, INT << 24, 4, 32],
            vec![0, STRUCT << 24 | 1, 8, b, 1, 32],
            vec![0, ENUM << 24 | 2, 4, a, u32::MAX, 16, 0xf5],
            vec![task, 1 << 31 | STRUCT << 24 | 3, 32, a, 1, 64, 0, 2, 128, c, 1, 3 << 24 | 200],
        ];
        btf_section(&types, b"\0int\0task\0a\0b\0c\0one\0")
    }

    #[test]
    fn fields_of_unnamed_inner_structures_are_found() {
        let section = section();
        let btf = Btf::parse(&section).unwrap();
        assert_eq!(btf.offset("task", "a").unwrap(), Some(8));
        assert_eq!(btf.offset("task", "b").unwrap(), Some(20));
        assert_eq!(btf.size("task").unwrap(), 32);
        assert_eq!(btf.offset("task", "d").unwrap(), None);
        assert_eq!(btf.enumerator("one").unwrap(), Some(0xf5));
        assert_eq!(btf.enumerator("a").unwrap(), None, "negative");
        assert_eq!(btf.enumerator("two").unwrap(), None);
        assert!(btf.offset("task", "c").is_err(), "a bit field");
        assert!(btf.offset("int", "a").is_err(), "not a structure");
    }

    #[test]
    fn a_section_that_is_cut_off_is_refused() {
        let section = section();
        assert!(Btf::parse(&section).is_ok());
        for length in 0..section.len() {
            assert!(Btf::parse(&section[..length]).is_err(), "{length} bytes");
        }
    }

    /// Fields and structures are at most as large as a size of 32 bits and an offset in bits say.
    #[test]
    fn a_damaged_section_gives_an_error_or_places_that_exist() {
        read_damaged(&section(), |btf, _| {
            if let Ok(Some(offset)) = btf.offset("task", "b") {
                assert!(offset <= u64::from(u32::MAX), "{offset}");
            }
            if let Ok(Some(value)) = btf.enumerator("one") {
                assert!(value <= u64::from(u32::MAX), "{value}");
            }
        });
    }

    /// Damages bytes of `good` and cuts some copies off, and gives what can still be parsed to
    /// `read`, with random bits.
    pub(super) fn read_damaged(good: &[u8], read: impl Fn(&Btf<'_>, u64)) {
        let mut state = 11u64;
        for _ in 0..20_000 {
            let mut bytes = good.to_vec();
            for _ in 0..1 + state % 3 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 20) as u8;
            }
            let lost = if state >> 61 == 0 { (state >> 40) as usize % bytes.len() } else { 0 };
            bytes.truncate(bytes.len() - lost);
            if let Ok(btf) = Btf::parse(&bytes) {
                read(&btf, state);
            }
        }
    }
}
