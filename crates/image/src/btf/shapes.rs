//! The types of functions, of their parameters, and of what expressions name.
//!
//! Input: BTF and names. Output: types by number, and what they are. This module knows no
//! addresses.
//!
//! ```text
//! BTF:    int tcp_v4_rcv(struct sk_buff *skb);
//! "tcp_v4_rcv" → parameters [("skb", a pointer to struct sk_buff)], returns int
//! ```

use super::fields::TypeNumber;
use super::{
    ARRAY, Btf, ENUM, ENUM64, INT, MAX_DEPTH, PTR, STRUCT, TYPE_SIZE, UNION, is_modifier, u32_at,
};
use anyhow::{Result, ensure};

const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
/// A parameter in a FUNC_PROTO: name and type.
const PARAMETER_SIZE: usize = 8;
/// `BTF_INT_SIGNED` in the word behind an INT.
const SIGNED: u32 = 1 << 24;

/// The type of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionType {
    /// The parameters by name, in order.
    pub parameters: Vec<(String, TypeNumber)>,
    /// What it returns; `None` for `void`.
    pub returns: Option<TypeNumber>,
}

/// What a type is, behind typedefs and qualifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeShape {
    /// An integer, `bool` or an enum: bytes, and whether it is signed.
    Integer(u8, bool),
    /// A character: `char`.
    Character,
    /// A pointer; `None` to `void` or to a function.
    Pointer(Option<TypeNumber>),
    /// An array: its elements, and how many.
    Array(TypeNumber, u32),
    /// A structure or union, with its name.
    Structure(String),
    /// Anything else.
    Other,
}

/// Where a member of a structure lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberPlace {
    /// In bits, from the beginning of the structure.
    pub bits: u64,
    /// The bits of a bit field; 0 for any other member.
    pub width: u64,
    /// Its type.
    pub of: TypeNumber,
}

impl Btf<'_> {
    /// The type of a function. `None`: the section does not describe it.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn function(&self, name: &str) -> Result<Option<FunctionType>> {
        let Some(number) = self.number(&[FUNC], name)? else { return Ok(None) };
        self.function_type(number, name).map(Some)
    }

    /// The type of the function with this number.
    pub(super) fn function_type(&self, number: TypeNumber, name: &str) -> Result<FunctionType> {
        let start = self.resolved(number)?;
        let start = self.resolved(TypeNumber(u32_at(self.types, start + 8)?))?;
        ensure!(self.kind(start)? == FUNC_PROTO, "BTF gives {name} a type of no function");
        let mut parameters = Vec::new();
        for at in 0..self.count(start)? {
            let at = start + TYPE_SIZE + at * PARAMETER_SIZE;
            let name = self.name(u32_at(self.types, at)?)?;
            let of = TypeNumber(u32_at(self.types, at + 4)?);
            parameters.push((String::from_utf8_lossy(name).into_owned(), of));
        }
        let returns = TypeNumber(u32_at(self.types, start + 8)?);
        Ok(FunctionType { parameters, returns: self.is_value(returns)?.then_some(returns) })
    }

    /// The type that C calls `struct NAME`, `union NAME` or `enum NAME`, or by another name
    /// (typedefs, integers). `None`: there is none.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn type_named(&self, name: &str) -> Result<Option<TypeNumber>> {
        let words: Vec<&str> = name.split_whitespace().filter(|&word| word != "const").collect();
        match words[..] {
            ["struct", name] => self.number(&[STRUCT], name),
            ["union", name] => self.number(&[UNION], name),
            ["enum", name] => self.number(&[ENUM, ENUM64], name),
            _ => self.number(&[TYPEDEF, INT], &words.join(" ")),
        }
    }

    /// What a type is.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn shape(&self, of: TypeNumber) -> Result<TypeShape> {
        if !self.is_value(of)? {
            return Ok(TypeShape::Other);
        }
        let start = self.resolved(of)?;
        Ok(match self.kind(start)? {
            INT => {
                let bytes = u32_at(self.types, start + 8)? as u8;
                let signed = u32_at(self.types, start + TYPE_SIZE)? & SIGNED != 0;
                match (self.name(u32_at(self.types, start)?)?, bytes) {
                    (b"char", 1) => TypeShape::Character,
                    (_, 1 | 2 | 4 | 8) => TypeShape::Integer(bytes, signed),
                    _ => TypeShape::Other,
                }
            }
            ENUM | ENUM64 => {
                let signed = u32_at(self.types, start + 4)? >> 31 == 1;
                match u32_at(self.types, start + 8)? as u8 {
                    bytes @ (1 | 2 | 4 | 8) => TypeShape::Integer(bytes, signed),
                    _ => TypeShape::Other,
                }
            }
            PTR => {
                let to = TypeNumber(u32_at(self.types, start + 8)?);
                TypeShape::Pointer(self.is_value(to)?.then_some(to))
            }
            ARRAY => TypeShape::Array(self.element(start)?, u32_at(self.types, start + 20)?),
            STRUCT | UNION => {
                let name = self.name(u32_at(self.types, start)?)?;
                TypeShape::Structure(String::from_utf8_lossy(name).into_owned())
            }
            _ => TypeShape::Other,
        })
    }

    /// The size of a type in bytes; 0 for types without a size.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn size_of(&self, of: TypeNumber) -> Result<u64> {
        self.bytes(of)
    }

    /// The member with a name, also of unnamed inner structures. `None`: `of` has no such member,
    /// or is no structure.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn member_of(&self, of: TypeNumber, name: &str) -> Result<Option<MemberPlace>> {
        self.inner_member(of, name.as_bytes(), 0)
    }

    /// The names of the members of a structure, also of unnamed inner ones.
    ///
    /// # Errors
    /// The section is damaged.
    pub fn members(&self, of: TypeNumber) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.each_member(of, &mut names, 0)?;
        Ok(names)
    }

    fn each_member(&self, of: TypeNumber, names: &mut Vec<String>, depth: u32) -> Result<()> {
        let start = self.resolved(of)?;
        if depth >= MAX_DEPTH {
            return self.too_deep();
        }
        if !matches!(self.kind(start)?, STRUCT | UNION) {
            return Ok(());
        }
        for at in 0..self.count(start)? {
            let member = self.member(start, at)?;
            match member.name.is_empty() {
                true => self.each_member(member.kind, names, depth + 1)?,
                false => names.push(String::from_utf8_lossy(member.name).into_owned()),
            }
        }
        Ok(())
    }

    fn inner_member(&self, of: TypeNumber, name: &[u8], depth: u32) -> Result<Option<MemberPlace>> {
        if depth >= MAX_DEPTH {
            return self.too_deep();
        }
        let start = self.resolved(of)?;
        if !matches!(self.kind(start)?, STRUCT | UNION) {
            return Ok(None);
        }
        for at in 0..self.count(start)? {
            let member = self.member(start, at)?;
            let (bits, width, of) = (member.bits, member.width, member.kind);
            if member.name == name {
                return Ok(Some(MemberPlace { bits, width, of }));
            }
            if member.name.is_empty()
                && let Some(inner) = self.inner_member(of, name, depth + 1)?
            {
                return Ok(Some(MemberPlace { bits: bits + inner.bits, ..inner }));
            }
        }
        Ok(None)
    }

    /// The number of the first type of one of these kinds with this name.
    fn number(&self, kinds: &[u32], name: &str) -> Result<Option<TypeNumber>> {
        for (at, &start) in self.starts.iter().enumerate() {
            if kinds.contains(&self.kind(start)?)
                && self.name(u32_at(self.types, start)?)? == name.as_bytes()
            {
                return Ok(Some(TypeNumber(at as u32 + 1)));
            }
        }
        Ok(None)
    }

    /// Whether a type is that of values: not `void`, also behind qualifiers, and no function.
    fn is_value(&self, of: TypeNumber) -> Result<bool> {
        let mut number = of.0;
        for _ in 0..MAX_DEPTH {
            let Some(&start) = (number as usize).checked_sub(1).and_then(|at| self.starts.get(at))
            else {
                return Ok(false);
            };
            let kind = self.kind(start)?;
            if !is_modifier(kind) {
                return Ok(!matches!(kind, FWD | FUNC | FUNC_PROTO));
            }
            number = u32_at(self.types, start + 8)?;
        }
        self.too_deep()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::tests::read_damaged;
    use crate::examples::btf_section;

    const STRINGS: &[u8] =
        b"\0int\0char\0buff\0len\0flag\0name\0next\0recv\0more\0u8\0size_t\0any\0";

    fn at(name: &str) -> u32 {
        let wanted = format!("\0{name}\0");
        let found = STRINGS.windows(wanted.len()).position(|it| it == wanted.as_bytes());
        found.unwrap() as u32 + 1
    }

    /// ```c
    /// struct buff {                            offset in bits
    ///     struct buff *next;                        0
    ///     union { int len; };                      64
    ///     unsigned char flag : 1;                  96
    ///     char name[16];                          104
    ///     void *any;                              256
    /// };
    /// int recv(const struct buff *buff, u8 more);
    /// void next(void);
    /// ```
    fn section() -> Vec<u8> {
        let char_array = vec![0, ARRAY << 24, 0, 2, 1, 16];
        btf_section(
            &[
                vec![at("int"), INT << 24, 4, SIGNED | 32],   // 1
                vec![at("char"), INT << 24, 1, SIGNED | 8],   // 2
                vec![at("u8"), INT << 24, 1, 8],              // 3
                vec![0, PTR << 24, 8],                        // 4
                vec![0, UNION << 24 | 1, 4, at("len"), 1, 0], // 5
                char_array,                                   // 6
                vec![0, PTR << 24, 0],                        // 7
                [
                    vec![at("buff"), 1 << 31 | STRUCT << 24 | 5, 40],
                    vec![at("next"), 4, 0, 0, 5, 64, at("flag"), 3, 1 << 24 | 96],
                    vec![at("name"), 6, 104, at("any"), 7, 256],
                ]
                .concat(), // 8
                vec![0, 10 << 24, 8],                         // 9: const
                vec![0, PTR << 24, 9],                        // 10
                vec![0, FUNC_PROTO << 24 | 2, 1, at("buff"), 10, at("more"), 3], // 11
                vec![at("recv"), FUNC << 24, 11],             // 12
                vec![0, FUNC_PROTO << 24, 0],                 // 13
                vec![at("next"), FUNC << 24, 13],             // 14
                vec![at("size_t"), TYPEDEF << 24, 3],         // 15
            ],
            STRINGS,
        )
    }

    #[test]
    fn functions_have_parameters_and_types_their_members() {
        let section = section();
        let btf = Btf::parse(&section).unwrap();
        let recv = btf.function("recv").unwrap().unwrap();
        let names: Vec<&str> = recv.parameters.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names, recv.returns), (vec!["buff", "more"], Some(TypeNumber(1))));
        let next = btf.function("next").unwrap().unwrap();
        assert_eq!(next, FunctionType { parameters: vec![], returns: None });
        assert_eq!(btf.function("int").unwrap(), None);

        let TypeShape::Pointer(Some(buff)) = btf.shape(recv.parameters[0].1).unwrap() else {
            panic!("no pointer");
        };
        assert_eq!(btf.shape(buff).unwrap(), TypeShape::Structure("buff".to_owned()));
        assert_eq!(btf.shape(recv.parameters[1].1).unwrap(), TypeShape::Integer(1, false));
        for (name, bits, width, shape) in [
            ("next", 0, 0, TypeShape::Pointer(Some(TypeNumber(8)))),
            ("len", 64, 0, TypeShape::Integer(4, true)),
            ("flag", 96, 1, TypeShape::Integer(1, false)),
            ("name", 104, 0, TypeShape::Array(TypeNumber(2), 16)),
            ("any", 256, 0, TypeShape::Pointer(None)),
        ] {
            let member = btf.member_of(buff, name).unwrap().unwrap();
            assert_eq!((member.bits, member.width), (bits, width), "{name}");
            assert_eq!(btf.shape(member.of).unwrap(), shape, "{name}");
        }
        assert_eq!(btf.member_of(buff, "more").unwrap(), None);
        assert_eq!(btf.member_of(TypeNumber(1), "len").unwrap(), None);
        assert_eq!(btf.members(buff).unwrap(), ["next", "len", "flag", "name", "any"]);
        assert_eq!(btf.shape(TypeNumber(2)).unwrap(), TypeShape::Character);
        for (name, number) in
            [("struct buff", 8), ("const struct  buff", 8), ("size_t", 15), ("int", 1)]
        {
            assert_eq!(btf.type_named(name).unwrap(), Some(TypeNumber(number)), "{name}");
        }
        assert_eq!(btf.type_named("struct int").unwrap(), None);
        assert_eq!(btf.size_of(buff).unwrap(), 40);
    }

    #[test]
    fn a_damaged_section_gives_an_error_or_types_that_exist() {
        read_damaged(&section(), |btf, _| {
            for name in ["recv", "next"] {
                let Ok(Some(function)) = btf.function(name) else { continue };
                for (_, of) in function.parameters {
                    let _ = (btf.shape(of), btf.members(of), btf.member_of(of, "len"));
                }
            }
        });
    }
}
