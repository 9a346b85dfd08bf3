//! The fields of the kernel's variables.
//!
//! Input: BTF and the name of a variable. Output: which field lies at an offset of the variable,
//! and where a named field lies. This module knows no addresses.
//!
//! ```text
//! BTF:    struct rq { raw_spinlock_t __lock; unsigned int nr_running; … } runqueues;
//! offset 4, 4 bytes → .nr_running         ".nr_running" → offset 4, 4 bytes
//! ```

use super::{ARRAY, Btf, ENUM, ENUM64, FLOAT, INT, PTR, STRUCT, TYPE_SIZE, UNION, VAR, u32_at};
use super::{MEMBER_SIZE, is_modifier};
use anyhow::{Context, Result, ensure};

/// The longest way from a variable to a field, in types. The kernel's are shorter. A longer one
/// means that the section is damaged.
const LONGEST_WAY: usize = 64;

/// The number of a type in a `.BTF` section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeNumber(pub(super) u32);

/// A field within a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPlace {
    /// The way from the variable: `.lock.val`, `[3].count`; empty for the variable itself.
    pub path: String,
    /// Where the field begins in the variable, in bytes.
    pub offset: u64,
    /// The size in bytes.
    pub size: u64,
}

/// A member of a structure or union.
pub(super) struct Member<'a> {
    pub name: &'a [u8],
    pub kind: TypeNumber,
    /// In bits, from the beginning of the structure.
    pub bits: u64,
    /// The bits of a bit field; 0 for any other member.
    pub width: u64,
}

impl Btf<'_> {
    /// The type of a variable. `None`: the section does not describe it. Most kernels describe
    /// their per-CPU variables only.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn variable(&self, name: &str) -> Result<Option<TypeNumber>> {
        for &start in &self.starts {
            if self.kind(start)? == VAR && self.name(u32_at(self.types, start)?)? == name.as_bytes()
            {
                return Ok(Some(TypeNumber(u32_at(self.types, start + 8)?)));
            }
        }
        Ok(None)
    }

    /// The type of a structure. `None`: the section has none of this name.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn type_of_structure(&self, name: &str) -> Result<Option<TypeNumber>> {
        for (at, &start) in self.starts.iter().enumerate() {
            if self.kind(start)? == STRUCT
                && self.name(u32_at(self.types, start)?)? == name.as_bytes()
            {
                return Ok(Some(TypeNumber(at as u32 + 1)));
            }
        }
        Ok(None)
    }

    /// The field of `variable` at `offset`: the outermost that is no larger than the `size` bytes
    /// of an access. Of a union, the first member that reaches that far.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn field_at(&self, variable: TypeNumber, offset: u64, size: u64) -> Result<FieldPlace> {
        let (mut kind, mut path, mut begin) = (variable, String::new(), 0);
        for _ in 0..LONGEST_WAY {
            let here = FieldPlace { path: path.clone(), offset: begin, size: self.bytes(kind)? };
            let start = self.resolved(kind)?;
            if here.size <= size && here.offset == offset {
                return Ok(here);
            }
            let inner = match self.kind(start)? {
                STRUCT | UNION => self.member_at(start, offset - begin)?,
                ARRAY => self.element_at(start, offset - begin)?,
                _ => None,
            };
            let Some((name, inner_begin, inner_kind)) = inner else { return Ok(here) };
            path += &name;
            begin += inner_begin;
            kind = inner_kind;
        }
        self.too_deep()
    }

    /// The field with this path in `variable`. `None`: there is no such field, or it is a bit
    /// field.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn field_named(&self, variable: TypeNumber, path: &str) -> Result<Option<FieldPlace>> {
        let (mut kind, mut offset) = (variable, 0);
        for word in path.split(['.', '[']).filter(|word| !word.is_empty()) {
            let start = self.resolved(kind)?;
            let found = match word.strip_suffix(']') {
                Some(index) => match (self.kind(start)?, index.parse::<u64>()) {
                    (ARRAY, Ok(index)) if index < u64::from(u32_at(self.types, start + 20)?) => {
                        let element = self.element(start)?;
                        Some((index * self.bytes(element)?, element))
                    }
                    _ => None,
                },
                None => {
                    let member = self.member_of(kind, word)?.filter(|member| member.width == 0);
                    member.map(|member| (member.bits / 8, member.of))
                }
            };
            let Some((inner, inner_kind)) = found else { return Ok(None) };
            offset += inner;
            kind = inner_kind;
        }
        Ok(Some(FieldPlace { path: path.to_owned(), offset, size: self.bytes(kind)? }))
    }

    /// The member of a structure or union at an offset, with its name, its own offset and its type.
    fn member_at(&self, start: usize, offset: u64) -> Result<Option<(String, u64, TypeNumber)>> {
        for number in 0..self.count(start)? {
            let member = self.member(start, number)?;
            let bits = match member.width {
                0 => 8 * self.bytes(member.kind)?,
                width => width,
            };
            let (first, end) = (member.bits / 8, (member.bits + bits).div_ceil(8));
            if (first..end).contains(&offset) {
                let name = match member.name.is_empty() {
                    true => String::new(),
                    false => format!(".{}", String::from_utf8_lossy(member.name)),
                };
                return Ok(Some((name, first, member.kind)));
            }
        }
        Ok(None)
    }

    fn element_at(&self, start: usize, offset: u64) -> Result<Option<(String, u64, TypeNumber)>> {
        let element = self.element(start)?;
        let bytes = self.bytes(element)?;
        Ok(offset.checked_div(bytes).map(|at| (format!("[{at}]"), at * bytes, element)))
    }

    /// The size of a type in bytes; 0 for types without a size.
    pub(super) fn bytes(&self, kind: TypeNumber) -> Result<u64> {
        let (mut kind, mut elements) = (kind, 1_u64);
        for _ in 0..LONGEST_WAY {
            let start = self.resolved(kind)?;
            let own = match self.kind(start)? {
                INT | STRUCT | UNION | ENUM | ENUM64 | FLOAT => {
                    u64::from(u32_at(self.types, start + 8)?)
                }
                PTR => 8,
                ARRAY => {
                    elements = elements.saturating_mul(u32_at(self.types, start + 20)?.into());
                    kind = self.element(start)?;
                    continue;
                }
                _ => 0,
            };
            let bytes = elements.saturating_mul(own);
            // Sizes are added up in bits.
            ensure!(bytes < 1 << 48, "BTF describes a type of {bytes} bytes: it is damaged");
            return Ok(bytes);
        }
        self.too_deep()
    }

    /// Where a type begins behind typedefs and qualifiers.
    pub(super) fn resolved(&self, kind: TypeNumber) -> Result<usize> {
        let mut number = kind.0;
        for _ in 0..LONGEST_WAY {
            let index = (number as usize).wrapping_sub(1);
            let start = *self.starts.get(index).context("BTF refers to a type without a size")?;
            if !is_modifier(self.kind(start)?) {
                return Ok(start);
            }
            number = u32_at(self.types, start + 8)?;
        }
        self.too_deep()
    }

    /// The type of an array's elements (`struct btf_array`: type, type of the index, elements).
    pub(super) fn element(&self, start: usize) -> Result<TypeNumber> {
        Ok(TypeNumber(u32_at(self.types, start + TYPE_SIZE)?))
    }

    pub(super) fn kind(&self, start: usize) -> Result<u32> {
        Ok(u32_at(self.types, start + 4)? >> 24 & 31)
    }

    pub(super) fn count(&self, start: usize) -> Result<usize> {
        Ok((u32_at(self.types, start + 4)? & 0xffff) as usize)
    }

    pub(super) fn member(&self, start: usize, number: usize) -> Result<Member<'_>> {
        let has_bit_fields = u32_at(self.types, start + 4)? >> 31 == 1;
        let at = start + TYPE_SIZE + number * MEMBER_SIZE;
        let bits = u32_at(self.types, at + 8)?;
        let (width, bits) = if has_bit_fields { (bits >> 24, bits & 0xff_ffff) } else { (0, bits) };
        Ok(Member {
            name: self.name(u32_at(self.types, at)?)?,
            kind: TypeNumber(u32_at(self.types, at + 4)?),
            bits: bits.into(),
            width: width.into(),
        })
    }

    pub(super) fn too_deep<T>(&self) -> Result<T> {
        anyhow::bail!("BTF nests types too deeply: the section is damaged")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::tests::read_damaged;
    use crate::examples::btf_section;

    const STRINGS: &[u8] = b"\0int\0u64\0counts\0lock\0val\0seen\0flag\0each\0list\0";

    fn at(name: &str) -> u32 {
        let wanted = format!("\0{name}\0");
        let found = STRINGS.windows(wanted.len()).position(|it| it == wanted.as_bytes());
        found.unwrap() as u32 + 1
    }

    /// ```c
    /// struct counts {                         offset
    ///     struct { union { int val; }; } lock;     0
    ///     int seen : 3, flag : 1;                   4
    ///     struct { u64 each[4]; };                  8
    /// };
    /// const struct counts counts;  struct counts list[2];
    /// ```
    fn section() -> Vec<u8> {
        btf_section(
            &[
                vec![at("int"), 1 << 24, 4, 32],                 // 1
                vec![at("u64"), 1 << 24, 8, 64],                 // 2
                vec![0, UNION << 24 | 1, 4, at("val"), 1, 0],    // 3
                vec![0, STRUCT << 24 | 1, 4, 0, 3, 0],           // 4
                vec![0, ARRAY << 24, 0, 2, 1, 4],                // 5
                vec![0, STRUCT << 24 | 1, 32, at("each"), 5, 0], // 6
                [
                    vec![at("counts"), 1 << 31 | STRUCT << 24 | 4, 40, at("lock"), 4, 0],
                    vec![at("seen"), 1, 3 << 24 | 32, at("flag"), 1, 1 << 24 | 35, 0, 6, 64],
                ]
                .concat(), // 7
                vec![0, 10 << 24, 7],                            // 8: const
                vec![at("counts"), VAR << 24, 8, 1],             // 9
                vec![0, ARRAY << 24, 0, 7, 1, 2],                // 10
                vec![at("list"), VAR << 24, 10, 1],              // 11
            ],
            STRINGS,
        )
    }

    #[test]
    fn an_offset_has_a_field_and_a_field_an_offset() {
        let section = section();
        let btf = Btf::parse(&section).unwrap();
        let (counts, list) =
            (btf.variable("counts").unwrap().unwrap(), btf.variable("list").unwrap().unwrap());
        assert_eq!(btf.variable("int").unwrap(), None, "a type, not a variable");
        assert_eq!(btf.type_of_structure("counts").unwrap(), Some(TypeNumber(7)));
        assert_eq!(btf.type_of_structure("list").unwrap(), None, "a variable, not a structure");
        for (of, offset, size, path, begin, bytes) in [
            (counts, 0, 4, ".lock", 0, 4),
            (counts, 0, 1, ".lock.val", 0, 4),
            (counts, 2, 1, ".lock.val", 0, 4),
            (counts, 4, 4, ".seen", 4, 4),
            (counts, 16, 8, ".each[1]", 16, 8),
            (counts, 20, 4, ".each[1]", 16, 8),
            (counts, 8, 32, "", 8, 32),
            (counts, 0, 64, "", 0, 40),
            (counts, 39, 1, ".each[3]", 32, 8),
            (list, 48, 8, "[1].each[0]", 48, 8),
            (list, 40, 40, "[1]", 40, 40),
        ] {
            let field = FieldPlace { path: path.to_owned(), offset: begin, size: bytes };
            assert_eq!(btf.field_at(of, offset, size).unwrap(), field, "{offset} {size}");
        }
        for (of, path, found) in [
            (counts, ".lock.val", Some((0, 4))),
            (counts, "each[2]", Some((24, 8))),
            (counts, "each[4]", None),
            (counts, "flag", None),
            (counts, "lock.other", None),
            (list, "[1].each", Some((48, 32))),
            (list, "", Some((0, 80))),
        ] {
            let place = btf.field_named(of, path).unwrap();
            assert_eq!(place.map(|place| (place.offset, place.size)), found, "{path}");
        }
    }

    #[test]
    fn types_that_contain_themselves_are_refused() {
        let around = btf_section(
            &[
                vec![at("list"), VAR << 24, 2, 1],
                vec![0, ARRAY << 24, 0, 2, 2, 2],
                vec![at("counts"), VAR << 24, 4, 1],
                vec![0, 8 << 24, 4],
            ],
            STRINGS,
        );
        let btf = Btf::parse(&around).unwrap();
        for name in ["list", "counts"] {
            let kind = btf.variable(name).unwrap().unwrap();
            let error = btf.field_at(kind, 0, 1).unwrap_err().to_string();
            assert!(error.contains("too deeply"), "{error}");
        }
    }

    #[test]
    fn a_damaged_section_gives_an_error_or_the_field_that_was_asked_for() {
        let found = std::cell::Cell::new(0);
        read_damaged(&section(), |btf, random| {
            for name in ["counts", "list"] {
                let Ok(Some(kind)) = btf.variable(name) else { continue };
                let (offset, size) = (random >> 58, 1 << (random >> 61));
                if let Ok(place) = btf.field_at(kind, offset, size) {
                    assert!(place.offset <= offset, "{place:?} at {offset}");
                    found.set(found.get() + 1);
                }
                if let Ok(Some(place)) = btf.field_named(kind, "[1].each[2]") {
                    assert_eq!(place.path, "[1].each[2]");
                }
            }
        });
        assert!(found.get() > 1000, "{}", found.get());
    }
}
