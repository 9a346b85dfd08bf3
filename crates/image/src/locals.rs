//! Where the variables of functions are at an instruction, from a vmlinux' DWARF.
//!
//! Input: an address. Output: the parameters and variables in scope there, those of inlined
//! functions too, with their types in C, and what they are read from. A variable that the compiler
//! keeps nowhere has no place (DWARF 5, sections 2.5 and 2.6).

use crate::source_lines::{Slice, SourceLines};
use addr2line::gimli::{
    AttributeValue, BaseAddresses, CfaRule, DebuggingInformationEntry, DwTag, Expression,
    Operation, Register, UnitOffset, UnitRef, UnwindContext, UnwindSection, constants,
};
use anyhow::{Context, Result};

/// The most types behind each other.
const MOST_TYPES: usize = 32;

/// A variable in scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalVariable {
    /// Its name.
    pub name: String,
    /// Its type without pointers, as C writes it (`struct sock`, `unsigned int`, `void`), and how
    /// many pointers. `None`: an array, a function, or a type without a name.
    pub of: Option<(String, u32)>,
    /// Where it is. `None`: nowhere, or in pieces.
    pub place: Option<LocalPlace>,
}

/// Where a variable is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPlace {
    /// What the steps begin with.
    pub start: LocalStart,
    /// What is done with it, in turn.
    pub steps: Vec<LocalStep>,
    /// The number is the variable's address, not its value.
    pub in_memory: bool,
}

/// What a place begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalStart {
    /// A general register: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15 (System V ABI, figure
    /// 3.36).
    Register(u16),
    /// A number.
    Number(u64),
}

/// A step from one number to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalStep {
    /// Adds a number, modulo 2⁶⁴.
    Add(i64),
    /// Loads the eight bytes at the address.
    Load,
}

type Entry<'a> = DebuggingInformationEntry<Slice<'a>>;
type Unit<'u, 'a> = UnitRef<'u, Slice<'a>>;

impl<'a> SourceLines<'a> {
    /// The variables in scope at an instruction. Of several with one name, the innermost one. None
    /// in a file without DWARF.
    ///
    /// # Errors
    /// The DWARF is damaged.
    pub fn variables_at(&self, addr: u64) -> Result<Vec<LocalVariable>> {
        let unit = self.lines.as_ref().map(|lines| lines.find_dwarf_and_unit(addr));
        let Some(unit) = unit.and_then(|unit| unit.skip_all_loads()) else { return Ok(Vec::new()) };
        let mut found: Vec<LocalVariable> = Vec::new();
        let mut frame = None;
        // The scopes around an entry: how deep, and whether the instruction is in it.
        let mut scopes: Vec<(isize, bool)> = Vec::new();
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs().context("DWARF of a unit")? {
            let depth = entry.depth();
            while scopes.last().is_some_and(|(outer, _)| *outer >= depth) {
                scopes.pop();
            }
            let in_scope = scopes.last().is_some_and(|(_, is_in)| *is_in);
            match entry.tag() {
                constants::DW_TAG_subprogram => {
                    let is_in = covers(unit, entry, addr)?;
                    if is_in {
                        frame = entry.attr_value(constants::DW_AT_frame_base);
                    }
                    scopes.push((depth, is_in));
                }
                constants::DW_TAG_inlined_subroutine | constants::DW_TAG_lexical_block => {
                    scopes.push((depth, in_scope && covers(unit, entry, addr)?));
                }
                constants::DW_TAG_formal_parameter | constants::DW_TAG_variable if in_scope => {
                    let at = ReadAt { unit, addr, frame, lines: self };
                    if let Some(variable) = at.variable(entry)? {
                        found.retain(|outer| outer.name != variable.name);
                        found.push(variable);
                    }
                }
                _ => scopes.push((depth, false)),
            }
        }
        Ok(found)
    }

    /// The canonical frame address at an instruction: a register and an offset.
    fn frame_address(&self, addr: u64) -> Option<(Register, i64)> {
        let frames = self.frames.as_ref()?;
        let mut context = UnwindContext::new();
        let row = frames.unwind_info_for_address(
            &BaseAddresses::default(),
            &mut context,
            addr,
            UnwindSection::cie_from_offset,
        );
        match row.ok()?.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => Some((*register, *offset)),
            CfaRule::Expression(_) => None,
        }
    }
}

/// Whether the code of an entry has an instruction.
fn covers<'a>(unit: Unit<'_, 'a>, entry: &Entry<'a>, addr: u64) -> Result<bool> {
    let mut ranges = unit.die_ranges(entry).context("ranges of code in DWARF")?;
    while let Some(range) = ranges.next().context("ranges of code in DWARF")? {
        if (range.begin..range.end).contains(&addr) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a variable's entry is read with.
struct ReadAt<'u, 'l, 'a> {
    unit: Unit<'u, 'a>,
    addr: u64,
    /// The base of the function's frame.
    frame: Option<AttributeValue<Slice<'a>>>,
    lines: &'l SourceLines<'a>,
}

impl<'a> ReadAt<'_, '_, 'a> {
    fn variable(&self, entry: &Entry<'a>) -> Result<Option<LocalVariable>> {
        // An inlined function's variable is described where the function is.
        let origin = match entry.attr_value(constants::DW_AT_abstract_origin) {
            Some(AttributeValue::UnitRef(at)) => Some(self.unit.entry(at).context("an origin")?),
            _ => None,
        };
        let attribute = |name| {
            let own = entry.attr_value(name);
            own.or_else(|| origin.as_ref().and_then(|origin| origin.attr_value(name)))
        };
        let Some(name) = attribute(constants::DW_AT_name) else { return Ok(None) };
        let name = self.unit.attr_string(name).context("a name in DWARF")?;
        let of = match attribute(constants::DW_AT_type) {
            Some(AttributeValue::UnitRef(at)) => self.c_type(at)?,
            _ => None,
        };
        let place = match attribute(constants::DW_AT_const_value) {
            Some(value) => number(&value).map(|number| LocalPlace {
                start: LocalStart::Number(number),
                steps: Vec::new(),
                in_memory: false,
            }),
            None => self.place(entry.attr_value(constants::DW_AT_location))?,
        };
        let name = String::from_utf8_lossy(name.slice()).into_owned();
        Ok(Some(LocalVariable { name, of, place }))
    }

    fn place(&self, at: Option<AttributeValue<Slice<'a>>>) -> Result<Option<LocalPlace>> {
        match at {
            None => Ok(None),
            Some(AttributeValue::Exprloc(expression)) => Ok(self.evaluated(expression)),
            Some(list) => {
                let lists = self.unit.attr_locations(list).context("a list of places")?;
                let Some(mut places) = lists else { return Ok(None) };
                while let Some(entry) = places.next().context("a list of places")? {
                    if (entry.range.begin..entry.range.end).contains(&self.addr) {
                        return Ok(self.evaluated(entry.data));
                    }
                }
                Ok(None)
            }
        }
    }

    /// The place that an expression describes. `None`: one that needs more than sums and loads.
    fn evaluated(&self, expression: Expression<Slice<'a>>) -> Option<LocalPlace> {
        let mut operations = expression.operations(self.unit.encoding());
        let mut place: Option<LocalPlace> = None;
        while let Some(operation) = operations.next().ok()? {
            match (operation, &mut place) {
                (Operation::Register { register }, None) => {
                    place = Some(LocalPlace { in_memory: false, ..address(register, 0)? });
                }
                (Operation::RegisterOffset { register, offset, .. }, None) => {
                    place = Some(address(register, offset)?);
                }
                (Operation::FrameOffset { offset }, None) => {
                    let Some(AttributeValue::Exprloc(base)) = self.frame else {
                        return None;
                    };
                    // The base is no variable: a register is its value.
                    let mut base = self.evaluated(base)?;
                    base.add(offset);
                    place = Some(LocalPlace { in_memory: true, ..base });
                }
                (Operation::CallFrameCFA, None) => {
                    let (register, offset) = self.lines.frame_address(self.addr)?;
                    place = Some(address(register, offset)?);
                }
                (Operation::Address { address }, None) => {
                    place = Some(known(address));
                }
                (Operation::UnsignedConstant { value }, None) => place = Some(known(value)),
                (Operation::SignedConstant { value }, None) => place = Some(known(value as u64)),
                (Operation::PlusConstant { value }, Some(place)) => place.add(value as i64),
                (Operation::Deref { size: 8, space: false, .. }, Some(place)) => {
                    place.steps.push(LocalStep::Load);
                }
                (Operation::StackValue, Some(place)) => place.in_memory = false,
                _ => return None,
            }
        }
        place
    }

    fn c_type(&self, first: UnitOffset) -> Result<Option<(String, u32)>> {
        let (mut at, mut pointers) = (first, 0);
        for _ in 0..MOST_TYPES {
            let entry = self.unit.entry(at).context("a type in DWARF")?;
            let next = entry.attr_value(constants::DW_AT_type);
            match entry.tag() {
                constants::DW_TAG_pointer_type => pointers += 1,
                constants::DW_TAG_const_type
                | constants::DW_TAG_volatile_type
                | constants::DW_TAG_restrict_type
                | constants::DW_TAG_atomic_type => {}
                tag => {
                    let Some(prefix) = prefix(tag) else { return Ok(None) };
                    let Some(name) = entry.attr_value(constants::DW_AT_name) else {
                        return Ok(None);
                    };
                    let name = self.unit.attr_string(name).context("a name in DWARF")?;
                    let name = String::from_utf8_lossy(name.slice());
                    return Ok(Some((format!("{prefix}{name}"), pointers)));
                }
            }
            match next {
                Some(AttributeValue::UnitRef(next)) => at = next,
                None => return Ok(Some(("void".to_owned(), pointers))),
                Some(_) => return Ok(None),
            }
        }
        Ok(None)
    }
}

impl LocalPlace {
    fn add(&mut self, more: i64) {
        match (self.steps.last_mut(), &mut self.start) {
            (Some(LocalStep::Add(sum)), _) => *sum = sum.wrapping_add(more),
            (None, LocalStart::Number(number)) => *number = number.wrapping_add_signed(more),
            _ => self.steps.push(LocalStep::Add(more)),
        }
    }
}

/// What C writes in front of the name of a type. `None`: the type has no name.
fn prefix(tag: DwTag) -> Option<&'static str> {
    match tag {
        constants::DW_TAG_base_type | constants::DW_TAG_typedef => Some(""),
        constants::DW_TAG_structure_type => Some("struct "),
        constants::DW_TAG_union_type => Some("union "),
        constants::DW_TAG_enumeration_type => Some("enum "),
        _ => None,
    }
}

/// The address in a general register.
fn address(register: Register, offset: i64) -> Option<LocalPlace> {
    let start = LocalStart::Register(register.0);
    let mut place = LocalPlace { start, steps: Vec::new(), in_memory: true };
    if offset != 0 {
        place.add(offset);
    }
    (register.0 < 16).then_some(place)
}

fn known(address: u64) -> LocalPlace {
    LocalPlace { start: LocalStart::Number(address), steps: Vec::new(), in_memory: true }
}

fn number(value: &AttributeValue<Slice<'_>>) -> Option<u64> {
    value.udata_value().or_else(|| value.sdata_value().map(|number| number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object, ObjectSymbol};
    use std::process::Command;

    const PROGRAM: &str = "
        struct sock { int x; const struct sock *next; };
        static inline int twice(int inner) { int doubled = inner + inner; return doubled; }
        __attribute__((noinline)) int f(struct sock *sk, unsigned count)
        {
            volatile long kept = count;
            int thirteen = 13;
            return sk->x + (int)kept + twice(sk->next->x) + thirteen;
        }
        int main(void) { struct sock s = { 1, &s }; return f(&s, 2); }";

    /// A program with DWARF as kernels have it, and the code of its function `f`.
    fn program() -> (Vec<u8>, std::ops::Range<u64>) {
        let home = tempfile::tempdir().unwrap();
        let (source, program) = (home.path().join("f.c"), home.path().join("f"));
        std::fs::write(&source, PROGRAM).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-gdwarf-5", "-no-pie", "-fno-asynchronous-unwind-tables"]);
        assert!(gcc.arg("-o").arg(&program).arg(&source).status().unwrap().success());
        let bytes = std::fs::read(program).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let f = elf.symbols().find(|symbol| symbol.name() == Ok("f")).unwrap();
        let range = f.address()..f.address() + f.size();
        (bytes, range)
    }

    #[test]
    fn variables_have_types_and_places() {
        let (bytes, f) = program();
        let lines = SourceLines::read(&bytes).unwrap();
        let at = |addr, name: &str| {
            let all = lines.variables_at(addr).unwrap();
            all.into_iter().find(|variable| variable.name == name)
        };
        let register = |number| LocalPlace {
            start: LocalStart::Register(number),
            steps: Vec::new(),
            in_memory: false,
        };
        let sk = at(f.start, "sk").unwrap();
        assert_eq!(sk.of, Some(("struct sock".to_owned(), 1)));
        assert_eq!(sk.place, Some(register(5)));
        let count = at(f.start, "count").unwrap();
        assert_eq!(
            (count.of, count.place),
            (Some(("unsigned int".to_owned(), 0)), Some(register(4)))
        );
        // On the stack, by the frame's address, which is behind the return address at first.
        let kept = at(f.start, "kept").unwrap();
        assert_eq!(kept.of, Some(("long int".to_owned(), 0)));
        let place = kept.place.unwrap();
        assert!(place.in_memory && place.start == LocalStart::Register(7), "{place:?}");
        let thirteen = at(f.start, "thirteen").unwrap().place.unwrap();
        assert_eq!((thirteen.start, thirteen.in_memory), (LocalStart::Number(13), false));
        // Only in the code that was inlined.
        assert_eq!(at(f.start, "inner"), None);
        assert!(f.clone().any(|addr| at(addr, "inner").is_some()));
    }

    #[test]
    fn code_without_dwarf_has_no_variables() {
        let (bytes, _) = program();
        let lines = SourceLines::read(&bytes).unwrap();
        assert_eq!(lines.variables_at(1 << 60).unwrap(), Vec::new());
    }
}
