//! The layout of structures: members in their order, types as C text, structures within others,
//! pointers at offsets.
//!
//! Input: BTF and numbers of types. Output: what a reader of the source would see. This module
//! knows no addresses.

use super::fields::TypeNumber;
use super::shapes::{FunctionType, TypeShape};
use super::{ARRAY, Btf, MAX_DEPTH, PTR, STRUCT, TYPE_SIZE, UNION, u32_at};
use anyhow::Result;
use std::collections::HashMap;

const FWD: u32 = 7;
const CONST: u32 = 10;
const VOLATILE: u32 = 9;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const TYPE_TAG: u32 = 18;
/// The largest number of elements of an array that are looked at.
const MOST_ELEMENTS: u64 = 4096;

/// A member of a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaidMember {
    /// Its name; empty for an unnamed inner structure.
    pub name: String,
    /// Its type, as C text.
    pub kind: String,
    /// Its first byte, from the beginning of the structure.
    pub offset: u64,
    /// Its bytes. Bit fields count the bytes that they touch.
    pub size: u64,
    /// Its natural alignment in bytes.
    pub alignment: u64,
    /// Its bits, if it is a bit field.
    pub bits: Option<u64>,
}

impl Btf<'_> {
    /// The members of a structure or union, in the order of the source.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn laid_members(&self, of: TypeNumber) -> Result<Vec<LaidMember>> {
        let start = self.resolved(of)?;
        if !matches!(self.kind(start)?, STRUCT | UNION) {
            return Ok(Vec::new());
        }
        let members = (0..self.count(start)?).map(|number| {
            let member = self.member(start, number)?;
            let (offset, size) = match member.width {
                0 => (member.bits / 8, self.bytes(member.kind)?),
                width => {
                    let first = member.bits / 8;
                    (first, (member.bits + width).div_ceil(8) - first)
                }
            };
            Ok(LaidMember {
                name: String::from_utf8_lossy(member.name).into_owned(),
                kind: self.c_text(member.kind)?,
                offset,
                size,
                alignment: self.alignment(member.kind, 0)?,
                bits: (member.width > 0).then_some(member.width),
            })
        });
        members.collect()
    }

    /// A type as C writes it in front of a name: `struct sk_buff*`, `u32`, `u8[4]`.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn c_text(&self, of: TypeNumber) -> Result<String> {
        let (mut number, mut behind, mut front) = (of.0, String::new(), String::new());
        for _ in 0..64 {
            let Some(&start) = (number as usize).checked_sub(1).and_then(|at| self.starts.get(at))
            else {
                return Ok(format!("{front}void{behind}"));
            };
            let kind = self.kind(start)?;
            let name = String::from_utf8_lossy(self.name(u32_at(self.types, start)?)?).into_owned();
            let next = u32_at(self.types, start + 8)?;
            match kind {
                PTR => behind.insert(0, '*'),
                CONST => front.push_str("const "),
                VOLATILE | RESTRICT | TYPE_TAG => {}
                ARRAY => {
                    let elements = u32_at(self.types, start + TYPE_SIZE + 8)?;
                    number = u32_at(self.types, start + TYPE_SIZE)?;
                    behind.push_str(&format!("[{elements}]"));
                    continue;
                }
                FUNC_PROTO => return Ok(format!("{front}function{behind}")),
                _ => {
                    let word = match kind {
                        STRUCT => "struct ",
                        UNION => "union ",
                        FWD => "struct ",
                        6 | 19 => "enum ",
                        _ => "",
                    };
                    let name = if name.is_empty() { "{…}".to_owned() } else { name };
                    return Ok(format!("{front}{word}{name}{behind}"));
                }
            }
            number = next;
        }
        self.too_deep()
    }

    /// The type of the field with this path, as C text. `None`: there is no such field.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn c_text_of_field(&self, of: TypeNumber, path: &str) -> Result<Option<String>> {
        let mut kind = of;
        for word in path.split(['.', '[']).filter(|word| !word.is_empty()) {
            kind = match word.ends_with(']') {
                true => {
                    let start = self.resolved(kind)?;
                    if self.kind(start)? != ARRAY {
                        return Ok(None);
                    }
                    self.element(start)?
                }
                false => match self.member_of(kind, word)? {
                    Some(member) => member.of,
                    None => return Ok(None),
                },
            };
        }
        self.c_text(kind).map(Some)
    }

    /// The natural alignment of a type on a 64-bit machine, in bytes.
    fn alignment(&self, of: TypeNumber, depth: u32) -> Result<u64> {
        if depth >= MAX_DEPTH {
            return self.too_deep();
        }
        let start = self.resolved(of)?;
        Ok(match self.kind(start)? {
            STRUCT | UNION => {
                let mut most = 1;
                for number in 0..self.count(start)? {
                    let member = self.member(start, number)?;
                    most = most.max(self.alignment(member.kind, depth + 1)?);
                }
                most
            }
            ARRAY => self.alignment(self.element(start)?, depth + 1)?,
            _ => self.bytes(of)?.clamp(1, 8).next_power_of_two(),
        })
    }

    /// Where structures of the type `inner` lie in one of type `outer`, in bytes: 0 if they are the
    /// same. Of long arrays, the first 4096 elements. Each place of a union counts.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn places_within(&self, outer: TypeNumber, inner: TypeNumber) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        let inner = self.resolved(inner)?;
        self.each_place(outer, inner, 0, 0, &mut found)?;
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    fn each_place(
        &self,
        of: TypeNumber,
        inner: usize,
        at: u64,
        depth: u32,
        found: &mut Vec<u64>,
    ) -> Result<()> {
        if depth >= MAX_DEPTH {
            return self.too_deep();
        }
        if of.0 == 0 {
            return Ok(());
        }
        let start = self.resolved(of)?;
        if start == inner {
            found.push(at);
            return Ok(());
        }
        match self.kind(start)? {
            STRUCT | UNION => {
                for number in 0..self.count(start)? {
                    let member = self.member(start, number)?;
                    self.each_place(member.kind, inner, at + member.bits / 8, depth + 1, found)?;
                }
            }
            ARRAY => {
                let element = self.element(start)?;
                let (bytes, before) = (self.bytes(element)?, found.len());
                let elements = u64::from(u32_at(self.types, start + TYPE_SIZE + 8)?);
                for number in 0..elements.min(MOST_ELEMENTS) {
                    self.each_place(element, inner, at + number * bytes, depth + 1, found)?;
                    if found.len() == before {
                        break;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The structure to which the pointer at an offset of a type points. `None`: there is no such
    /// pointer. Of a union, its first member that reaches so far counts.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn pointer_at(&self, of: TypeNumber, offset: u64) -> Result<Option<TypeNumber>> {
        let (mut kind, mut offset) = (of, offset);
        for _ in 0..64 {
            if kind.0 == 0 {
                return Ok(None);
            }
            let start = self.resolved(kind)?;
            match self.kind(start)? {
                STRUCT | UNION => {
                    let mut inner = None;
                    for number in 0..self.count(start)? {
                        let member = self.member(start, number)?;
                        let first = member.bits / 8;
                        if member.width == 0
                            && (first..first + self.bytes(member.kind)?).contains(&offset)
                        {
                            inner = Some((member.kind, offset - first));
                            break;
                        }
                    }
                    let Some(found) = inner else { return Ok(None) };
                    (kind, offset) = found;
                }
                ARRAY => {
                    kind = self.element(start)?;
                    let Some(rest) = offset.checked_rem(self.bytes(kind)?) else { return Ok(None) };
                    offset = rest;
                }
                PTR if offset == 0 => return self.pointed_structure(kind),
                _ => return Ok(None),
            }
        }
        self.too_deep()
    }

    /// The structure to which a pointer points. `None`: the type is no pointer to a structure that
    /// the section describes.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn pointed_structure(&self, of: TypeNumber) -> Result<Option<TypeNumber>> {
        let TypeShape::Pointer(Some(to)) = self.shape(of)? else { return Ok(None) };
        let start = self.resolved(to)?;
        let at = self.starts.binary_search(&start).ok();
        Ok(at
            .filter(|_| self.kind(start).is_ok_and(|it| it == STRUCT))
            .map(|at| TypeNumber(at as u32 + 1)))
    }

    /// The types of all functions, by name. A name that several functions of other types have is
    /// left out.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn functions(&self) -> Result<HashMap<String, FunctionType>> {
        let mut all: HashMap<String, Option<FunctionType>> = HashMap::new();
        for (at, &start) in self.starts.iter().enumerate() {
            if self.kind(start)? != FUNC {
                continue;
            }
            let name = String::from_utf8_lossy(self.name(u32_at(self.types, start)?)?).into_owned();
            let found = self.function_type(TypeNumber(at as u32 + 1), &name)?;
            let known = all.entry(name).or_insert_with(|| Some(found.clone()));
            if known.as_ref() != Some(&found) {
                *known = None;
            }
        }
        Ok(all.into_iter().filter_map(|(name, kind)| Some((name, kind?))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::btf_section;

    const STRINGS: &[u8] = b"\0int\0list\0next\0sock\0links\0flag\0more\0owner\0find\0u32\0";
    const INT: u32 = 1;

    fn at(name: &str) -> u32 {
        let wanted = format!("\0{name}\0");
        let found = STRINGS.windows(wanted.len()).position(|it| it == wanted.as_bytes());
        found.unwrap() as u32 + 1
    }

    /// ```c
    /// struct list { struct list *next; };
    /// struct sock {                            offset
    ///     int flag : 3, more : 7;                   0
    ///     struct list links[2];                     8
    ///     union { struct list *owner; };           24
    /// };
    /// struct sock *find(struct sock *sock);   and another find(void)
    /// ```
    fn section(finds: usize) -> Vec<u8> {
        let mut types = vec![
            vec![at("int"), INT << 24, 4, 32],                       // 1
            vec![at("list"), STRUCT << 24 | 1, 8, at("next"), 3, 0], // 2
            vec![0, PTR << 24, 2],                                   // 3
            vec![0, ARRAY << 24, 0, 2, 1, 2],                        // 4
            vec![0, UNION << 24 | 1, 8, at("owner"), 3, 0],          // 5
            [
                vec![at("sock"), 1 << 31 | STRUCT << 24 | 4, 32, at("flag"), 1, 3 << 24],
                vec![at("more"), 1, 7 << 24 | 3, at("links"), 4, 64, 0, 5, 192],
            ]
            .concat(), // 6
            vec![0, PTR << 24, 6],                                   // 7
            vec![0, FUNC_PROTO << 24 | 1, 7, at("sock"), 7],         // 8
            vec![at("find"), FUNC << 24, 8],                         // 9
            vec![0, FUNC_PROTO << 24, 0],                            // 10
            vec![at("u32"), 8 << 24, 1],                             // 11
            vec![0, CONST << 24, 11],                                // 12
            vec![0, PTR << 24, 12],                                  // 13
        ];
        types.extend((1..finds).map(|_| vec![at("find"), FUNC << 24, 10]));
        btf_section(&types, STRINGS)
    }

    #[test]
    fn members_have_their_bytes_and_their_text() {
        let section = section(1);
        let btf = Btf::parse(&section).unwrap();
        let members = btf.laid_members(TypeNumber(6)).unwrap();
        let found: Vec<_> = members
            .iter()
            .map(|it| (it.name.as_str(), it.kind.as_str(), it.offset, it.size, it.alignment))
            .collect();
        let expected = [
            ("flag", "int", 0, 1, 4),
            ("more", "int", 0, 2, 4),
            ("links", "struct list[2]", 8, 16, 8),
            ("", "union {…}", 24, 8, 8),
        ];
        assert_eq!(found, expected);
        assert_eq!(members[1].bits, Some(7));
        assert_eq!(btf.c_text(TypeNumber(13)).unwrap(), "const u32*");
        for (path, text) in [
            ("links[1].next", Some("struct list*")),
            ("owner", Some("struct list*")),
            ("flag", Some("int")),
            ("flag[0]", None),
            ("nothing", None),
        ] {
            let found = btf.c_text_of_field(TypeNumber(6), path).unwrap();
            assert_eq!(found.as_deref(), text, "{path}");
        }
    }

    #[test]
    fn structures_lie_in_others_and_pointers_point_to_them() {
        let section = section(1);
        let btf = Btf::parse(&section).unwrap();
        let (list, sock) = (TypeNumber(2), TypeNumber(6));
        assert_eq!(btf.places_within(sock, list).unwrap(), [8, 16]);
        assert_eq!(btf.places_within(sock, sock).unwrap(), [0]);
        assert!(btf.places_within(list, sock).unwrap().is_empty());
        let found = [0, 8, 12, 16, 24, 32].map(|offset| btf.pointer_at(sock, offset).unwrap());
        assert_eq!(found, [None, Some(list), None, Some(list), Some(list), None]);
        let find = &btf.functions().unwrap()["find"];
        assert_eq!(btf.pointed_structure(find.returns.unwrap()).unwrap(), Some(sock));
        assert_eq!(btf.pointed_structure(TypeNumber(13)).unwrap(), None, "to an integer");
    }

    #[test]
    fn functions_of_one_name_and_two_types_are_left_out() {
        let section = section(2);
        assert!(Btf::parse(&section).unwrap().functions().unwrap().is_empty());
    }

    #[test]
    fn a_damaged_section_gives_an_error_or_members_that_exist() {
        crate::btf::tests::read_damaged(&section(2), |btf, random| {
            let _ = (btf.functions(), btf.laid_members(TypeNumber(6)));
            let _ = btf.places_within(TypeNumber(6), TypeNumber(2));
            let _ = btf.pointer_at(TypeNumber(6), random >> 58);
            let _ = btf.c_text_of_field(TypeNumber(6), "links[1].next");
        });
    }
}
