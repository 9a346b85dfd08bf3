//! Turns expressions into what is read.
//!
//! Input: an expression in C, the types of a kernel, and what registers hold at the place. Output:
//! a value of a program of probes.

use crate::probe::ValueKind;
use crate::probe::follow::{ARGUMENTS, push_step};
use crate::probe::syntax::{Expression, ValueText};
use anyhow::{Context, Result, bail, ensure};
use image::btf::Btf;
use image::btf::fields::TypeNumber;
use image::btf::shapes::{FunctionType, TypeShape};
use trace::probe::{ProbeValue, REGISTERS, ValueStart, ValueStep};

/// What the names in expressions stand for.
pub(super) trait Scope {
    /// The address of a variable, and whether each CPU has its own.
    fn variable(&self, name: &str) -> Result<Option<(u64, bool)>>;
    /// Names that are similar, for a message.
    fn similar(&self, name: &str) -> Vec<String>;
}

/// What a place knows.
pub(super) struct PlaceTypes<'a> {
    pub btf: &'a Btf<'a>,
    /// The type of the function. `None`: it is not known.
    pub function: Option<&'a FunctionType>,
    /// The registers hold the arguments.
    pub at_entry: bool,
    /// `rax` holds what is returned.
    pub at_return: bool,
    /// What has a name at this instruction.
    pub names: &'a [NamedValue],
}

/// A value that has a name at an instruction.
#[derive(Clone, Debug)]
pub(super) struct NamedValue {
    /// Its name.
    pub name: String,
    /// Its type.
    pub of: ValueType,
    /// How it is read, or why it cannot be.
    pub value: Result<SiteValue, &'static str>,
}

/// How a named value is read.
#[derive(Clone, Debug)]
pub(super) enum SiteValue {
    /// The program gives it.
    Number(ProbeValue),
    /// The program gives the address of its first byte.
    Address(ProbeValue),
}

/// Type of an expression: one of the section, or a register's number without a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    Known(TypeNumber),
    /// So many pointers to a type (`None`: to `void`).
    Pointers(Option<TypeNumber>, u32),
    /// 64 bits.
    Word,
}

/// A value while it is made.
struct Partial {
    start: ValueStart,
    steps: Vec<ValueStep>,
    of: ValueType,
    /// The number so far is the address of the value, which lies in memory.
    in_memory: bool,
    /// The lowest bit of a bit field, and its bits.
    bits: Option<(u64, u64)>,
}

impl Partial {
    fn register(name: &str, of: ValueType) -> Result<Partial> {
        let number = REGISTERS.iter().position(|&known| known == name);
        let number = number
            .with_context(|| format!("there is no register %{name}; {}", REGISTERS.join(", ")))?;
        let start = ValueStart::Register(number as u8);
        Ok(Partial { start, steps: Vec::new(), of, in_memory: false, bits: None })
    }

    fn add(&mut self, more: u64) {
        push_step(&mut self.steps, ValueStep::Add(more as i64));
    }
}

/// The value of an expression, and how it is shown.
///
/// # Errors
/// A name is unknown, or the types do not fit. The message says what there is instead.
pub(super) fn value(
    text: &ValueText,
    place: &PlaceTypes<'_>,
    scope: &dyn Scope,
) -> Result<(ProbeValue, ValueKind)> {
    let compiler = Compiler { place, scope };
    let partial = compiler.expression(&text.expression)?;
    compiler.read(partial, text.is_text)
}

struct Compiler<'a> {
    place: &'a PlaceTypes<'a>,
    scope: &'a dyn Scope,
}

impl Compiler<'_> {
    fn expression(&self, expression: &Expression) -> Result<Partial> {
        match expression {
            Expression::Name(name) => self.name(name),
            Expression::Register(name) => Partial::register(name, ValueType::Word),
            Expression::ReturnValue => {
                ensure!(self.place.at_return, "$retval is known at FUNCTION%return only");
                let of = match self.place.function {
                    None => ValueType::Word,
                    Some(function) => {
                        ValueType::Known(function.returns.context("the function returns nothing")?)
                    }
                };
                Partial::register("rax", of)
            }
            Expression::Dereference(inner) => self.dereferenced(self.expression(inner)?),
            Expression::Cast(of, pointers, inner) => {
                let mut inner = self.loaded(self.expression(inner)?)?;
                let named = match of.trim_start_matches("const ") {
                    "void" if *pointers > 0 => None,
                    _ => Some(self.named(of)?),
                };
                inner.of = match (named, pointers) {
                    (Some(named), 0) => ValueType::Known(named),
                    (named, &pointers) => ValueType::Pointers(named, pointers),
                };
                Ok(inner)
            }
            Expression::Member(inner, name) => self.member(self.expression(inner)?, name),
            Expression::PointerMember(inner, name) => {
                self.member(self.dereferenced(self.expression(inner)?)?, name)
            }
            Expression::Element(inner, number) => self.element(self.expression(inner)?, *number),
        }
    }

    fn named(&self, name: &str) -> Result<TypeNumber> {
        let found = self.place.btf.type_named(name)?;
        found.with_context(|| format!("the kernel has no type {name:?}{}", self.without_types()))
    }

    fn without_types(&self) -> &'static str {
        match self.place.btf.is_empty() {
            true => {
                ": its vmlinux describes no types (CONFIG_DEBUG_INFO_BTF); without them, there are \
                 registers, as %rdi"
            }
            false => "",
        }
    }

    fn name(&self, name: &str) -> Result<Partial> {
        if let Some(named) = self.place.names.iter().find(|it| it.name == name) {
            return named_value(named);
        }
        if let Some(argument) = self.argument(name)? {
            return Ok(argument);
        }
        if name == "current" {
            return self.current();
        }
        if let Some(variable) = self.variable(name)? {
            return Ok(variable);
        }
        if !self.place.names.is_empty() {
            let known: Vec<&str> = self.place.names.iter().map(|it| it.name.as_str()).collect();
            bail!("there is no variable {name}; here are {}", known.join(", "));
        }
        let parameters = self.place.function.map(|function| {
            let names: Vec<&str> =
                function.parameters.iter().map(|(name, _)| name.as_str()).collect();
            names.join(", ")
        });
        match parameters {
            Some(names) if self.place.at_entry => bail!(
                "there is no parameter and no variable {name}; the parameters: {names}{}",
                also(&self.scope.similar(name))
            ),
            Some(names) if names.split(", ").any(|known| known == name) => bail!(
                "the parameter {name} is known at the function's entry only; here, give a \
                 register, as (struct NAME *)%rbx"
            ),
            _ => bail!(
                "there is no variable {name}{}{}",
                also(&self.scope.similar(name)),
                self.without_types()
            ),
        }
    }

    fn argument(&self, name: &str) -> Result<Option<Partial>> {
        let function = self.place.function.filter(|_| self.place.at_entry);
        let Some(function) = function else { return Ok(None) };
        let Some(at) = function.parameters.iter().position(|(known, _)| known == name) else {
            return Ok(None);
        };
        for (before, of) in &function.parameters[..=at] {
            let is_structure = matches!(self.place.btf.shape(*of)?, TypeShape::Structure(_));
            ensure!(!is_structure, "{before} is passed by value, which is not supported");
        }
        let of = ValueType::Known(function.parameters[at].1);
        match ARGUMENTS.get(at) {
            Some(register) => Partial::register(register, of).map(Some),
            None => {
                // Behind the return address.
                let mut value = Partial::register("rsp", of)?;
                value.add(8 * (at as u64 - ARGUMENTS.len() as u64 + 1));
                value.in_memory = true;
                Ok(Some(value))
            }
        }
    }

    /// `struct task_struct *current`, which the kernel keeps for each CPU.
    fn current(&self) -> Result<Partial> {
        let task = self.named("struct task_struct")?;
        let mut value = match self.variable("pcpu_hot")? {
            Some(hot) => self.member(hot, "current_task")?,
            None => self.variable("current_task")?.context("the kernel has no current_task")?,
        };
        value.of = ValueType::Pointers(Some(task), 1);
        Ok(value)
    }

    fn variable(&self, name: &str) -> Result<Option<Partial>> {
        let Some((address, per_cpu)) = self.scope.variable(name)? else { return Ok(None) };
        let start = if per_cpu { ValueStart::PerCpu } else { ValueStart::Number(address) };
        let of = match self.place.btf.variable(name)? {
            Some(of) => ValueType::Known(of),
            None => ValueType::Word,
        };
        let mut value = Partial { start, steps: Vec::new(), of, in_memory: true, bits: None };
        if per_cpu {
            value.add(address);
        }
        Ok(Some(value))
    }

    fn shape(&self, of: ValueType) -> Result<TypeShape> {
        match of {
            ValueType::Known(of) => self.place.btf.shape(of),
            ValueType::Pointers(to, 1) => Ok(TypeShape::Pointer(to)),
            ValueType::Pointers(..) => Ok(TypeShape::Pointer(None)),
            ValueType::Word => Ok(TypeShape::Integer(8, false)),
        }
    }

    /// The value itself instead of its address.
    fn loaded(&self, mut value: Partial) -> Result<Partial> {
        if !value.in_memory {
            return Ok(value);
        }
        match self.shape(value.of)? {
            TypeShape::Integer(bytes, signed) => {
                match value.bits.take() {
                    None => value.steps.push(ValueStep::Load(bytes, signed)),
                    Some((from, width)) => {
                        // The bytes that the field lies in: at most eight, as in C.
                        value.add(from / 8);
                        let (from, width) = ((from % 8) as u8, width as u8);
                        let bytes = (u32::from(from) + u32::from(width)).div_ceil(8);
                        let bytes = bytes.next_power_of_two().min(8) as u8;
                        value.steps.push(ValueStep::Load(bytes, false));
                        value.steps.push(ValueStep::Bits(from, width, signed));
                    }
                }
            }
            TypeShape::Character => value.steps.push(ValueStep::Load(1, true)),
            TypeShape::Pointer(_) => value.steps.push(ValueStep::Load(8, false)),
            // The value of an array is its address.
            TypeShape::Array(element, _) => value.of = ValueType::Pointers(Some(element), 1),
            TypeShape::Structure(name) => {
                bail!("struct {name} is no number: name a field of it{}", self.fields(value.of))
            }
            TypeShape::Other => bail!("a value of this type cannot be read"),
        }
        value.in_memory = false;
        Ok(value)
    }

    fn dereferenced(&self, value: Partial) -> Result<Partial> {
        let mut value = self.loaded(value)?;
        value.of = match (value.of, self.shape(value.of)?) {
            (ValueType::Pointers(to, pointers), _) if pointers > 1 => {
                ValueType::Pointers(to, pointers - 1)
            }
            (_, TypeShape::Pointer(Some(to))) => ValueType::Known(to),
            (_, TypeShape::Pointer(None)) => {
                bail!("a pointer to void or to a function: give its type, as (struct NAME *)p")
            }
            _ => {
                bail!(
                    "the value is followed, but is not a pointer: give its type, as \
                     (struct NAME *)x"
                )
            }
        };
        value.in_memory = true;
        Ok(value)
    }

    fn member(&self, mut value: Partial, name: &str) -> Result<Partial> {
        let TypeShape::Structure(structure) = self.shape(value.of)? else {
            let is_pointer = matches!(self.shape(value.of)?, TypeShape::Pointer(_));
            let instead = if is_pointer { format!("; write ->{name}") } else { String::new() };
            bail!("the value in front of .{name} is not a structure{instead}");
        };
        let ValueType::Known(of) = value.of else { bail!("a structure without a type") };
        let found = self.place.btf.member_of(of, name)?;
        let member = found.with_context(|| {
            format!("struct {structure} has no field {name}{}", self.fields(value.of))
        })?;
        ensure!(value.in_memory, "a structure in registers has no fields that can be read");
        match member.width {
            0 => value.add(member.bits / 8),
            width => value.bits = Some((member.bits, width)),
        }
        value.of = ValueType::Known(member.of);
        Ok(value)
    }

    fn element(&self, value: Partial, number: u64) -> Result<Partial> {
        let (mut value, element) = match (self.shape(value.of)?, value.of) {
            (TypeShape::Array(element, count), _) => {
                ensure!(
                    count == 0 || number < count.into(),
                    "element {number} of an array of {count}"
                );
                (value, element)
            }
            (
                TypeShape::Pointer(Some(element)),
                ValueType::Known(_) | ValueType::Pointers(_, 1),
            ) => {
                let mut value = self.loaded(value)?;
                value.in_memory = true;
                (value, element)
            }
            _ => bail!("the value in front of [{number}] is not an array"),
        };
        let bytes = self.place.btf.size_of(element)?;
        value.add(bytes.saturating_mul(number));
        value.of = ValueType::Known(element);
        Ok(value)
    }

    fn read(&self, value: Partial, is_text: bool) -> Result<(ProbeValue, ValueKind)> {
        let shape = self.shape(value.of)?;
        let is_character_array = match shape {
            TypeShape::Array(element, _) => self.place.btf.shape(element)? == TypeShape::Character,
            _ => false,
        };
        let in_register = !value.in_memory;
        let mut value = self.loaded(value)?;
        if is_text || is_character_array {
            let is_pointer = matches!(shape, TypeShape::Pointer(_) | TypeShape::Array(..))
                || value.of == ValueType::Word;
            ensure!(is_pointer, "the value in front of :string is not a pointer");
            value.steps.push(ValueStep::Text);
            let value = ProbeValue { start: value.start, steps: value.steps };
            return Ok((value, ValueKind::Text));
        }
        // The upper half of a register with a small argument can hold anything.
        if in_register {
            match shape {
                TypeShape::Integer(bytes, signed) if bytes < 8 => {
                    push_step(&mut value.steps, ValueStep::Bits(0, 8 * bytes, signed));
                }
                TypeShape::Character => push_step(&mut value.steps, ValueStep::Bits(0, 8, true)),
                _ => {}
            }
        }
        let kind = match shape {
            TypeShape::Pointer(_) | TypeShape::Array(..) => ValueKind::Address,
            _ => ValueKind::Number,
        };
        Ok((ProbeValue { start: value.start, steps: value.steps }, kind))
    }

    /// The first fields of a structure, for a message.
    fn fields(&self, of: ValueType) -> String {
        let ValueType::Known(of) = of else { return String::new() };
        let names = self.place.btf.members(of).unwrap_or_default();
        match names.len() {
            0 => String::new(),
            more @ 31.. => format!("; it has {more}: {} …", names[..30].join(", ")),
            _ => format!("; it has {}", names.join(", ")),
        }
    }
}

fn named_value(named: &NamedValue) -> Result<Partial> {
    let (program, in_memory) = match &named.value {
        Ok(SiteValue::Number(program)) => (program, false),
        Ok(SiteValue::Address(program)) => (program, true),
        Err(why) => bail!("{} cannot be read here: {why}", named.name),
    };
    let ProbeValue { start, steps } = program.clone();
    Ok(Partial { start, steps, of: named.of, in_memory, bits: None })
}

fn also(similar: &[String]) -> String {
    match similar {
        [] => String::new(),
        similar => format!("; similar names: {}", similar.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::syntax::{AskedText, parse};
    use image::examples::btf_section;

    const STRINGS: &[u8] =
        b"\0int\0char\0buff\0len\0flag\0name\0next\0recv\0more\0hot\0current_task\0\
        task_struct\0comm\0pcpu_hot\0label\0";

    fn at(name: &str) -> u32 {
        let wanted = format!("\0{name}\0");
        let found = STRINGS.windows(wanted.len()).position(|it| it == wanted.as_bytes());
        found.unwrap() as u32 + 1
    }

    /// ```c
    /// struct buff {                            offset in bits
    ///     struct buff *next;                        0
    ///     int len;                                 64
    ///     unsigned flag : 3;                      100
    ///     char name[16];                          104
    ///     char *label;                            256
    /// };
    /// struct task_struct { char comm[16]; };
    /// struct pcpu_hot { struct task_struct *current_task; } pcpu_hot;
    /// int recv(struct buff *buff, int len, int more);
    /// ```
    fn section() -> Vec<u8> {
        let (int, ptr, array, structure) = (1 << 24, 2 << 24, 3 << 24, 4 << 24);
        btf_section(
            &[
                vec![at("int"), int, 4, 1 << 24 | 32], // 1
                vec![at("char"), int, 1, 1 << 24 | 8], // 2
                vec![0, ptr, 6],                       // 3
                vec![0, array, 0, 2, 1, 16],           // 4
                vec![0, ptr, 2],                       // 5
                [
                    vec![at("buff"), 1 << 31 | structure | 5, 40, at("next"), 3, 0],
                    vec![at("len"), 1, 64, at("flag"), 1, 3 << 24 | 100],
                    vec![at("name"), 4, 104, at("label"), 5, 256],
                ]
                .concat(), // 6
                vec![at("task_struct"), structure | 1, 16, at("comm"), 4, 0], // 7
                vec![0, ptr, 7],                       // 8
                vec![at("pcpu_hot"), structure | 1, 8, at("current_task"), 8, 0], // 9
                vec![at("pcpu_hot"), 14 << 24, 9, 1],  // 10
                [vec![0, 13 << 24 | 3, 1, at("buff"), 3, at("len"), 1], vec![at("more"), 1]]
                    .concat(), // 11
                vec![at("recv"), 12 << 24, 11],        // 12
            ],
            STRINGS,
        )
    }

    struct Variables;

    impl Scope for Variables {
        fn variable(&self, name: &str) -> Result<Option<(u64, bool)>> {
            Ok(match name {
                "pcpu_hot" => Some((0x1a40, true)),
                "jiffies" => Some((0xffff_ffff_8200_0000, false)),
                _ => None,
            })
        }

        fn similar(&self, _: &str) -> Vec<String> {
            vec!["jiffies".to_owned()]
        }
    }

    fn compiled(text: &str, at_return: bool) -> Result<String> {
        let section = section();
        let btf = Btf::parse(&section).unwrap();
        let function = btf.function("recv").unwrap().unwrap();
        let place = PlaceTypes {
            btf: &btf,
            function: Some(&function),
            at_entry: !at_return,
            at_return,
            names: &[],
        };
        let AskedText::Probe(probe) = parse(&format!("recv({text})"))? else { bail!("no probe") };
        let (value, kind) = value(&probe.values[0], &place, &Variables)?;
        let program: ProbeValue = value.to_string().parse().unwrap();
        assert_eq!(program, value, "{text}");
        Ok(format!("{value} {kind:?}"))
    }

    #[test]
    fn expressions_become_loads() {
        for (text, expected) in [
            ("buff", "rdi Address"),
            ("len", "rsi,sbits:0:32 Number"),
            ("buff->len", "rdi,+8,s4 Number"),
            ("buff->next->next->len", "rdi,u8,u8,+8,s4 Number"),
            ("buff->flag", "rdi,+12,u1,sbits:4:3 Number"),
            ("buff->name", "rdi,+13,text Text"),
            ("buff->name[2]", "rdi,+15,s1 Number"),
            ("buff->label", "rdi,+32,u8 Address"),
            ("buff->label:string", "rdi,+32,u8,text Text"),
            ("buff[2].len", "rdi,+88,s4 Number"),
            ("(*buff).len", "rdi,+8,s4 Number"),
            ("*buff->label", "rdi,+32,u8,s1 Number"),
            ("current", "percpu,+6720,u8 Address"),
            ("current->comm", "percpu,+6720,u8,text Text"),
            ("jiffies", "0xffffffff82000000,u8 Number"),
            ("((struct buff *)%rbx)->len", "rbx,+8,s4 Number"),
            ("(struct buff *)%rbx", "rbx Address"),
            ("%rax", "rax Number"),
        ] {
            assert_eq!(compiled(text, false).unwrap(), expected, "{text}");
        }
        assert_eq!(compiled("$retval", true).unwrap(), "rax,sbits:0:32 Number");
    }

    #[test]
    fn errors_say_what_there_is() {
        for (text, expected) in [
            ("buff->size", "struct buff has no field size; it has next, len, flag, name, label"),
            ("buff.len", "write ->len"),
            ("len->x", "followed, but is not a pointer"),
            ("*buff", "struct buff is no number: name a field"),
            ("skb", "there is no parameter and no variable skb; the parameters: buff, len, more"),
            ("((struct sk *)buff)->x", "the kernel has no type \"struct sk\""),
            ("buff->name[16]", "element 16 of an array of 16"),
            ("$retval", "%return only"),
            ("len:string", "not a pointer"),
            ("%xyz", "there is no register %xyz"),
        ] {
            let error = compiled(text, false).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = compiled("buff", true).unwrap_err().to_string();
        assert!(error.contains("at the function's entry only"), "{error}");
    }
}
