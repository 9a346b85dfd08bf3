//! The code of a callee, and how it is written in the place of a call.
//!
//! Input: an object, and the entry of a function. Output: its instructions, or why they cannot be
//! inlined. Written once more, they are the same instructions in the same order, with four
//! exceptions: branches have their long form, a static key has five bytes, a return is a jump
//! behind the call, and a jump to a function is a call and that jump. What is refused here is what
//! the object says; that the code looks at nothing beyond its frame was seen before.

use crate::branch::{condition_of, write_branch, write_jump};
use anyhow::{Context, Result, bail, ensure};
use image::forms::{ReferenceMeaning, TableForm, table_form};
use image::object::KernelObject;
use image::object::elf::ElfRelocation;
use image::object::functions::TextFunction;
use image::object::instructions::{DecodedInstruction, InstructionKind, NOWHERE, decode};
use image::object::pieces::SiteKind;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Bytes of a direct call, and of a near jump.
pub(super) const CALL: u32 = 5;
/// Bytes of a near conditional jump.
const BRANCH: u32 = 6;
/// `x86_nops[5]`, arch/x86/kernel/alternative.c. A static key's site holds exactly these bytes.
const NO_OP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// `endbr64`.
const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// What the side tables say about the places that matter here.
pub(super) struct BodyFacts<'o, 'a> {
    pub object: &'o KernelObject<'a>,
    /// The offsets of the tracer's sites.
    tracers: HashSet<u32>,
    returns: HashSet<u32>,
    /// What the kernel patches, or replaces, other than returns and static keys.
    patched: HashSet<u32>,
    /// The indirect calls by thunks, and jumps likewise, which it patches as well.
    pub(super) thunks: HashSet<u32>,
    /// Functions that may not be probed.
    not_probed: HashSet<u32>,
    /// The static keys: their targets.
    keys: HashMap<u32, u32>,
    /// What refers to code from somewhere that has no copy, ascending.
    outside: Vec<u32>,
}

impl<'o, 'a> BodyFacts<'o, 'a> {
    pub(super) fn of(object: &'o KernelObject<'a>) -> Self {
        let targets = |names: &[&str]| -> HashSet<u32> {
            let named = |name: &str| names.contains(&name);
            let found = object
                .references
                .iter()
                .filter(|r| named(object.elf.section(r.section).name.as_str()));
            found.map(|r| r.target).collect()
        };
        let is_outside = |id| {
            let section = object.elf.section(id);
            let knows_copies = match table_form(&section.name) {
                TableForm::Uniform(_) | TableForm::Entries(_) => true,
                TableForm::Data | TableForm::Unknown => false,
            };
            id != object.text && !knows_copies
        };
        let references = object.references.iter();
        let outside = references
            .filter(|r| r.meaning != ReferenceMeaning::Regenerated && is_outside(r.section));
        let mut outside: Vec<u32> = outside.map(|r| r.target).collect();
        outside.sort_unstable();
        let keys = object.sites.iter().filter_map(|site| match site.kind {
            SiteKind::StaticKey { .. } => Some((site.at, site.target)),
            SiteKind::Displacement(_) => None,
        });
        BodyFacts {
            object,
            tracers: targets(&["__mcount_loc", "__patchable_function_entries"]),
            returns: targets(&[".return_sites"]),
            patched: targets(&[".static_call_sites", ".parainstructions"]),
            thunks: targets(&[".retpoline_sites"]),
            not_probed: targets(&["_kprobe_blacklist"]),
            keys: keys.collect(),
            outside,
        }
    }

    pub(super) fn relocations(&self) -> &'o [ElfRelocation] {
        &self.object.relocations[self.object.text.0 as usize]
    }

    pub(super) fn decode(&self, range: &Range<u32>) -> Vec<DecodedInstruction> {
        let bytes = self.object.elf.bytes(self.object.text);
        let code = &bytes[range.start as usize..range.end as usize];
        decode(code, range.start, bytes.len() as u32, self.relocations())
    }

    /// The relocations of the fields of an instruction.
    pub(super) fn fields(&self, i: &DecodedInstruction) -> &'o [ElfRelocation] {
        let list = self.relocations();
        let from = list.partition_point(|r| r.offset < u64::from(i.at));
        let to = list.partition_point(|r| r.offset < u64::from(i.end()));
        &list[from..to]
    }

    /// The offset in `.text` that a branch or an operand relative to the instruction pointer names;
    /// `None` if it names something else.
    fn target(&self, i: &DecodedInstruction) -> Option<u32> {
        if !i.linked {
            return Some(i.target).filter(|&target| target != NOWHERE);
        }
        let field = u64::from(i.at + u32::from(i.field));
        let relocation = self.fields(i).iter().find(|r| i.field != 0 && r.offset == field)?;
        let symbol = self.object.elf.symbol(relocation.symbol);
        if symbol.section() != Some(self.object.text) {
            return None;
        }
        let behind = i64::from(i.end() - i.at - u32::from(i.field));
        u32::try_from((symbol.value as i64).wrapping_add(relocation.addend + behind)).ok()
    }

    pub(super) fn function(&self, at: u32) -> Option<&'o TextFunction> {
        let functions = &self.object.functions;
        let function = &functions[functions.partition_point(|f| f.at <= at).checked_sub(1)?];
        (at < function.end).then_some(function)
    }

    /// The instruction that holds a byte of a function.
    pub(super) fn instruction_around(&self, at: u32) -> Option<u32> {
        let function = self.function(at)?;
        let code = self.decode(&(function.at..function.end));
        Some(code[code.partition_point(|i| i.at <= at).checked_sub(1)?].at)
    }

    /// The entry of the function that holds an instruction.
    pub(super) fn function_at(&self, at: u32) -> Option<u32> {
        self.function(at).map(|function| function.at)
    }

    /// The callee of a direct call that nobody patches.
    pub(super) fn call_at(&self, at: u32) -> Option<u32> {
        let function = self.function(at)?;
        self.calls_in(function).into_iter().find(|&(site, _)| site == at).map(|(_, callee)| callee)
    }

    /// The direct calls of a function that nobody patches, and that code follows, each with the
    /// callee in `.text`.
    pub(super) fn calls_in(&self, function: &TextFunction) -> Vec<(u32, u32)> {
        if function.whole.is_some() {
            return Vec::new();
        }
        let plain = |i: &DecodedInstruction| {
            let is_plain = i.kind == InstructionKind::Call
                && u32::from(i.len) == CALL
                && i.end() < function.end
                && !self.is_patched(i);
            Some((i.at, self.target(i).filter(|_| is_plain)?))
        };
        self.decode(&(function.at..function.end)).iter().filter_map(plain).collect()
    }

    /// Whether the kernel may write an instruction, other than as a return or a static key.
    fn is_patched(&self, i: &DecodedInstruction) -> bool {
        self.is_patched_otherwise(i) || self.thunks.contains(&i.at)
    }

    /// Likewise, also other than as a call by a thunk.
    pub(super) fn is_patched_otherwise(&self, i: &DecodedInstruction) -> bool {
        self.is_in_alternative(i.at) || self.patched.contains(&i.at)
    }

    fn is_in_alternative(&self, at: u32) -> bool {
        let alternatives = &self.object.alternatives;
        let behind = alternatives.partition_point(|a| a.at <= at);
        let near = alternatives[..behind].iter().rev().take_while(|a| a.at + 255 > at);
        near.into_iter().any(|a| at < a.at + u32::from(a.len))
    }

    /// Whether something that has no copy refers to the inside of a stretch of code.
    fn is_referred_to(&self, range: &Range<u32>) -> bool {
        let from = self.outside.partition_point(|&at| at <= range.start);
        self.outside.get(from).is_some_and(|&at| at < range.end)
    }
}

/// How an instruction is written in the place of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// As it is.
    Same,
    /// A jump in the code, in its long form.
    Jump(u32),
    /// A conditional jump in the code, in its long form.
    Branch(u32),
    /// The site of a static key, with five bytes.
    Key { jumps: bool, to: u32 },
    /// A return: a jump behind the call.
    Return,
    /// A jump to a function: a call, and a jump behind the call.
    TailCall,
    /// `int3` behind a return: nothing.
    Gone,
}

/// An instruction of inlined code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Its offset in the callee.
    pub old: u32,
    /// Its offset now.
    pub new: u32,
    /// Its bytes now.
    pub len: u32,
    /// Whether it is still the same instruction.
    pub stays: bool,
    /// Whether it is a call that was a jump.
    pub calls: bool,
}

/// The code of a function that can be inlined.
pub(super) struct Body {
    /// The offset of its entry.
    pub entry: u32,
    /// The stretches of its code: behind the tracer's site, and the parts that the compiler put
    /// elsewhere.
    pub parts: Vec<Range<u32>>,
    code: Vec<(DecodedInstruction, Form)>,
}

impl Body {
    /// # Errors
    /// It cannot be inlined.
    pub(super) fn of(facts: &BodyFacts<'_, '_>, entry: u32) -> Result<Body> {
        let function = facts.function(entry).filter(|f| f.at == entry && f.whole.is_none());
        let function = function.context("the callee is no function that can be cut")?;
        let name = facts.object.function_name(function);
        let parts = parts(facts, function).with_context(|| name.to_owned())?;
        let mut body = Body { entry, parts, code: Vec::new() };
        for part in &body.parts {
            ensure!(!facts.is_referred_to(part), "{name}: other code or data refers to its inside");
            let code = facts.decode(part);
            for (index, &i) in code.iter().enumerate() {
                let before = body.code.last().filter(|_| index > 0).map(|&(_, form)| form);
                let form = form(facts, &body.parts, &i, before);
                let form = form.with_context(|| format!("{name}, at .text+{:#x}", i.at))?;
                body.code.push((i, form));
            }
            let last = body.code.last().context("no code is behind the tracer's site")?;
            let ends = matches!(last.1, Form::Return | Form::TailCall | Form::Jump(_) | Form::Gone)
                || matches!(
                    last.0.kind,
                    InstructionKind::Call | InstructionKind::Trap | InstructionKind::Int3
                );
            ensure!(ends, "{name}: runs on into the next function");
        }
        Ok(body)
    }

    /// Appends the code to `text`, with its relocations. Returns the instructions, ascending by
    /// their old offset. `behind`: the offset behind the call.
    pub(super) fn write(
        &self,
        facts: &BodyFacts<'_, '_>,
        behind: u32,
        text: &mut Vec<u8>,
        relocations: &mut Vec<ElfRelocation>,
    ) -> Result<Vec<Written>> {
        let mut written: Vec<Written> = Vec::with_capacity(self.code.len());
        let mut at = text.len() as u32;
        for (i, form) in &self.code {
            let stays = !matches!(form, Form::Return | Form::TailCall | Form::Gone);
            let calls = *form == Form::TailCall;
            written.push(Written { old: i.at, new: at, len: form.len(i), stays, calls });
            at += form.len(i);
        }
        // Where a byte of the old code is now.
        let places: HashMap<u32, u32> = written.iter().map(|w| (w.old, w.new)).collect();
        let place = |to: u32| {
            let place = places.get(&to).copied();
            place.with_context(|| format!("no instruction begins at .text+{to:#x}"))
        };
        let old = facts.object.elf.bytes(facts.object.text);
        for (i, form) in &self.code {
            let here = text.len() as u32;
            let bytes = &old[i.at as usize..i.end() as usize];
            match *form {
                Form::Gone => {}
                Form::Jump(to) => write_jump(text, place(to)?, CALL as u8)?,
                Form::Branch(to) => {
                    write_branch(text, condition_of(bytes), place(to)?, BRANCH as u8)?;
                }
                Form::Key { jumps: true, to } => write_jump(text, place(to)?, CALL as u8)?,
                Form::Key { .. } => text.extend_from_slice(&NO_OP),
                Form::Return => write_jump(text, behind, CALL as u8)?,
                Form::TailCall => {
                    text.push(0xe8);
                    let to = match i.linked {
                        // The linker fills in the field.
                        true => 0,
                        false => i.target.wrapping_sub(here + CALL),
                    };
                    text.extend_from_slice(&to.to_le_bytes());
                    let field = u64::from(i.at) + u64::from(i.field);
                    let moved = facts.fields(i).iter().filter(|r| r.offset == field);
                    relocations
                        .extend(moved.map(|r| ElfRelocation { offset: u64::from(here) + 1, ..*r }));
                    write_jump(text, behind, CALL as u8)?;
                }
                Form::Same => {
                    text.extend_from_slice(bytes);
                    if i.target != NOWHERE && !i.linked && i.field != 0 {
                        aim(text, here, i)?;
                    }
                    let moved = facts.fields(i).iter().map(|r| ElfRelocation {
                        offset: r.offset - u64::from(i.at) + u64::from(here),
                        ..*r
                    });
                    relocations.extend(moved);
                }
            }
        }
        written.sort_by_key(|w| w.old);
        Ok(written)
    }
}

impl Form {
    /// The bytes of an instruction of this form.
    fn len(self, i: &DecodedInstruction) -> u32 {
        match self {
            Form::Same => u32::from(i.len),
            Form::Jump(_) | Form::Key { .. } | Form::Return => CALL,
            Form::Branch(_) => BRANCH,
            Form::TailCall => CALL + CALL,
            Form::Gone => 0,
        }
    }
}

/// Writes the distance to the target of an instruction that begins at `here`, if it moved alone.
fn aim(text: &mut [u8], here: u32, i: &DecodedInstruction) -> Result<()> {
    let (field, end) = (here + u32::from(i.field), here + u32::from(i.len));
    if end - field < 4 {
        // A short branch within an alternative goes with it.
        return Ok(());
    }
    let distance = i.target.wrapping_sub(end).to_le_bytes();
    text[field as usize..field as usize + 4].copy_from_slice(&distance);
    Ok(())
}

/// The stretches of a function's code that are inlined.
fn parts(facts: &BodyFacts<'_, '_>, function: &TextFunction) -> Result<Vec<Range<u32>>> {
    let entry = function.at;
    let bytes = facts.object.elf.bytes(facts.object.text);
    let guard = if bytes[entry as usize..].starts_with(&ENDBR) { ENDBR.len() as u32 } else { 0 };
    let tracer = entry + guard;
    ensure!(facts.tracers.contains(&tracer), "no tracer's site is at its entry");
    ensure!(!facts.not_probed.contains(&entry), "it may not be probed");
    let behind = tracer + CALL..function.end;
    let mut parts = vec![behind];
    let name = facts.object.function_name(function);
    let mut next = 0;
    while let Some(part) = parts.get(next).cloned() {
        ensure!(part.start < part.end, "it has no code");
        for i in facts.decode(&part) {
            let jumps = matches!(i.kind, InstructionKind::Jump | InstructionKind::Branch);
            let to = facts.keys.get(&i.at).copied().or(facts.target(&i).filter(|_| jumps));
            let Some(other) = to.and_then(|to| facts.function(to)) else { continue };
            let is_known = parts.iter().any(|p| (p.start..p.end).contains(&other.at));
            let of_name = facts.object.function_name(other).strip_prefix(name);
            let is_part = of_name.is_some_and(|rest| rest.starts_with('.'))
                && !facts.tracers.iter().any(|&site| (other.at..other.end).contains(&site));
            if is_part && !is_known && other.at != entry {
                ensure!(other.whole.is_none(), "a part of it cannot be cut");
                parts.push(other.at..other.end);
            }
        }
        next += 1;
    }
    Ok(parts)
}

/// How an instruction is written. `before`: the form of the one in front of it.
fn form(
    facts: &BodyFacts<'_, '_>,
    parts: &[Range<u32>],
    i: &DecodedInstruction,
    before: Option<Form>,
) -> Result<Form> {
    let is_inside = |to: u32| parts.iter().any(|part| part.contains(&to));
    let target = facts.target(i);
    if facts.is_in_alternative(i.at) {
        let is_return = facts.returns.contains(&i.at);
        let stops = matches!(i.kind, InstructionKind::Stop) || is_return;
        ensure!(!stops, "an alternative of it leaves it");
        let is_branch = matches!(i.kind, InstructionKind::Jump | InstructionKind::Branch);
        let is_short = target.is_some() && u32::from(i.len) - u32::from(i.field) == 1;
        ensure!(
            !is_branch || is_short && target.is_some_and(|to| facts.is_in_alternative(to)),
            "an alternative of it jumps"
        );
        return plain(i, target, &is_inside);
    }
    if let Some(&to) = facts.keys.get(&i.at) {
        ensure!(is_inside(to), "a static key jumps out of it");
        return Ok(Form::Key { jumps: i.kind == InstructionKind::Jump, to });
    }
    match i.kind {
        InstructionKind::Jump if facts.returns.contains(&i.at) => Ok(Form::Return),
        InstructionKind::Stop => {
            let bytes = facts.object.elf.bytes(facts.object.text);
            ensure!(bytes[i.at as usize] == 0xc3 && i.len == 1, "it leaves by an indirect jump");
            Ok(Form::Return)
        }
        InstructionKind::Jump => match target {
            Some(to) if is_inside(to) => Ok(Form::Jump(to)),
            _ if facts.is_patched(i) => bail!("the kernel patches a jump out of it"),
            Some(to) => {
                let is_entry = facts.function_at(to) == Some(to);
                ensure!(is_entry, "it jumps into another function");
                Ok(Form::TailCall)
            }
            None if i.linked && i.len == CALL as u8 => Ok(Form::TailCall),
            None => bail!("it jumps out in an unusual way"),
        },
        InstructionKind::Branch => {
            let to = target.filter(|&to| is_inside(to) && matches!(i.len, 2 | 6));
            to.map(Form::Branch).context("it branches to another function")
        }
        InstructionKind::Int3 if matches!(before, Some(Form::Return | Form::TailCall)) => {
            Ok(Form::Gone)
        }
        InstructionKind::OddBranch | InstructionKind::Invalid | InstructionKind::Emulated => {
            bail!("it has an instruction that is not moved")
        }
        _ => plain(i, target, &is_inside),
    }
}

/// An instruction that stays as it is: it names no place of its own code.
fn plain(
    i: &DecodedInstruction,
    target: Option<u32>,
    is_inside: &dyn Fn(u32) -> bool,
) -> Result<Form> {
    let is_short = i.field != 0 && u32::from(i.len) - u32::from(i.field) == 1;
    ensure!(is_short || !target.is_some_and(is_inside), "it takes the address of its own code");
    Ok(Form::Same)
}
