//! The tracepoints of a kernel: where each would report, and what its arguments and fields are.
//!
//! Input: a kernel's vmlinux with BTF. Output: addresses, with values to be read there.
//!
//! A tracepoint that is off is a jump that is not taken (`struct jump_entry`). The code behind the
//! jump loads the arguments and calls `__SCT__tp_func_NAME`: followed, it says where the arguments
//! are at the jump. `trace_event_raw_event_CLASS` makes the event's fields of the arguments:
//! followed, it says which of them are plain copies. It is what `format` in tracefs describes.

use super::compile::{NamedValue, SiteValue, ValueType};
use super::follow::{ARGUMENTS, CallKind, Held, State, composed, follow};
use super::kernel::{ProbedKernel, near};
use anyhow::{Context, Result, bail, ensure};
use image::btf::fields::TypeNumber;
use image::btf::shapes::TypeShape;
use image::linked::tables::{JUMP_BOUNDS, jump_entries};
use std::ops::Range;
use trace::probe::{ProbeValue, ValueStep};

/// Why an argument or a field has no place.
const COMPUTED: &str = "it is computed when the tracepoint reports; ask for what it is made of";

/// A place where a tracepoint would report.
#[derive(Clone, Debug)]
pub(super) struct TracepointSite {
    /// The instruction that the kernel makes a jump of when the tracepoint is on.
    pub at: u64,
    /// The arguments and the fields.
    pub values: Vec<NamedValue>,
}

/// A field of an event.
struct EventField {
    name: String,
    of: TypeNumber,
    /// What is stored, in terms of the arguments of the function that makes the event.
    stored: Option<ProbeValue>,
    is_array: bool,
}

impl ProbedKernel<'_> {
    /// Where a tracepoint would report, and how many places report by way of a function that does
    /// not run while the tracepoint is off.
    ///
    /// # Errors
    /// The kernel has no such tracepoint, or its tables cannot be read.
    pub(super) fn tracepoint(&self, name: &str) -> Result<(Vec<TracepointSite>, usize)> {
        let Some(key) = self.data_symbol(&format!("__tracepoint_{name}")) else {
            let near = near(&self.similar_behind("__tracepoint_", name));
            bail!("the kernel has no tracepoint {name}{near}");
        };
        let callees: Vec<u64> = [format!("__SCT__tp_func_{name}"), format!("__traceiter_{name}")]
            .iter()
            .filter_map(|name| self.address_of(name))
            .collect();
        let parameters = match self.btf.function(&format!("__traceiter_{name}"))? {
            // The first one is the tracer's own.
            Some(function) => function.parameters.into_iter().skip(1).collect(),
            None => Vec::new(),
        };
        let fields = self.event_fields(name)?;
        let call = |target: u64| match callees.contains(&target) {
            true => CallKind::Ends,
            false => CallKind::Other,
        };
        let bounds = self.address_of(JUMP_BOUNDS.0).zip(self.address_of(JUMP_BOUNDS.1));
        let (first, last) = bounds.context("the kernel has no table of static keys")?;
        let table = self.loaded(first, last.saturating_sub(first))?;
        let (mut sites, mut indirect) = (Vec::new(), 0);
        for entry in jump_entries(first, table) {
            if !key.contains(&(entry.key & !1)) {
                continue;
            }
            let code = |at| self.code_from(at);
            let back = entry.site + self.jump_bytes(entry.site)?;
            let states = follow(entry.target, &code, &call, back);
            if states.is_empty() {
                indirect += 1;
                continue;
            }
            let arguments = arguments(&states, parameters.len());
            let values = named_values(&parameters, &arguments, &fields);
            sites.push(TracepointSite { at: entry.site, values });
        }
        ensure!(
            !sites.is_empty(),
            "no code of the kernel's vmlinux reports the tracepoint {name} directly"
        );
        Ok((sites, indirect))
    }

    /// The bytes of the instruction that becomes a jump: a short or a near one.
    fn jump_bytes(&self, at: u64) -> Result<u64> {
        let code = self.code_from(at).with_context(|| format!("there is no code at {at:#x}"))?;
        Ok(match code.first() {
            Some(0x66 | 0xeb) => 2,
            _ => 5,
        })
    }

    /// The fields of a tracepoint's event. None, if the kernel does not describe the event.
    fn event_fields(&self, name: &str) -> Result<Vec<EventField>> {
        let Some(class) = self.event_class(name)? else { return Ok(Vec::new()) };
        let maker = format!("trace_event_raw_event_{class}");
        let Some(of) = self.btf.type_named(&format!("struct trace_event_raw_{class}"))? else {
            return Ok(Vec::new());
        };
        let Some(maker) = self.address_of(&maker) else { return Ok(Vec::new()) };
        let reserve = self.address_of("trace_event_buffer_reserve");
        let commit = self.address_of("trace_event_buffer_commit");
        let call = |target: u64| match Some(target) {
            target if target == reserve => CallKind::Gives,
            target if target == commit => CallKind::Ends,
            _ => CallKind::Other,
        };
        let states = follow(maker, &|at| self.code_from(at), &call, u64::MAX);
        let mut fields = Vec::new();
        for name in self.btf.members(of)? {
            // The header of every event, and the flexible array at the end.
            if name == "ent" || name == "__data" {
                continue;
            }
            let Some(member) = self.btf.member_of(of, &name)?.filter(|it| it.width == 0) else {
                continue;
            };
            let is_array = matches!(self.btf.shape(member.of)?, TypeShape::Array(..));
            let bytes = self.btf.size_of(member.of)?;
            let stored = stored(&states, (member.bits / 8) as i64, bytes, is_array);
            fields.push(EventField { name, of: member.of, stored, is_array });
        }
        Ok(fields)
    }

    /// The class of a tracepoint's event: several events with the same fields share one.
    fn event_class(&self, name: &str) -> Result<Option<String>> {
        if self.btf.is_empty() {
            return Ok(None);
        }
        let Some(event) = self.data_symbol(&format!("event_{name}")) else { return Ok(None) };
        let Some(at) = self.btf.offset("trace_event_call", "class")? else { return Ok(None) };
        let pointer = self.loaded(event.start + at, 8)?;
        let class = pointer.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let named = self.data_symbols_at(class);
        Ok(named.iter().find_map(|name| name.strip_prefix("event_class_")).map(str::to_owned))
    }
}

/// What all states say of the arguments, the tracer's own first.
fn arguments(states: &[State], parameters: usize) -> Vec<Option<ProbeValue>> {
    let held = |state: &State, number: usize| match ARGUMENTS.get(number) {
        Some(register) => state.register(register).clone(),
        None => state.on_stack(8 * (number - ARGUMENTS.len()) as i64),
    };
    let of = |number: usize| {
        let first = held(states.first()?, number);
        match first {
            Held::Value(value)
                if number > 0
                    && states.iter().all(|it| held(it, number) == Held::Value(value.clone())) =>
            {
                Some(value)
            }
            _ => None,
        }
    };
    (0..=parameters).map(of).collect()
}

/// What all paths that store this field store there. `None`: something that is computed, or one
/// path stores another thing. Of an array, the address that it is copied from.
fn stored(states: &[State], at: i64, bytes: u64, is_array: bool) -> Option<ProbeValue> {
    let mut found: Option<ProbeValue> = None;
    for state in states {
        // The last store counts; a part of the field may have been written by another one.
        let own: Range<i64> = at..at + bytes as i64;
        let mut touching = state
            .stored
            .iter()
            .filter(|it| it.at < own.end && own.start < it.at + i64::from(it.bytes));
        let begin = match is_array {
            true => touching.find(|it| it.at == at),
            false => touching.next_back().filter(|it| it.at == at && u64::from(it.bytes) == bytes),
        };
        let Held::Value(value) = &begin?.what else { return None };
        let mut value = value.clone();
        if is_array && !matches!(value.steps.pop(), Some(ValueStep::Load(..))) {
            return None;
        }
        match &found {
            Some(other) if *other != value => return None,
            _ => found = Some(value),
        }
    }
    found
}

fn named_values(
    parameters: &[(String, TypeNumber)],
    arguments: &[Option<ProbeValue>],
    fields: &[EventField],
) -> Vec<NamedValue> {
    let own = parameters.iter().zip(arguments.iter().skip(1)).map(|((name, of), value)| {
        let value = value.clone().map(SiteValue::Number).ok_or(COMPUTED);
        NamedValue { name: name.clone(), of: ValueType::Known(*of), value }
    });
    let fields = fields.iter().map(|field| {
        let value = field.stored.as_ref().and_then(|value| composed(value, arguments));
        let value = value.map(match field.is_array {
            true => SiteValue::Address,
            false => SiteValue::Number,
        });
        let value = value.ok_or(COMPUTED);
        NamedValue { name: field.name.clone(), of: ValueType::Known(field.of), value }
    });
    own.chain(fields).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The states where an event is complete. Its memory comes from a call.
    fn states(code: &[u8]) -> Vec<State> {
        let code = [&[0xe8, 0xfb, 0x0f, 0, 0], code, &[0xe8]].concat(); // call 0x2000; …; call
        let end = 0x1000 + code.len() as u32 + 4;
        let code = [&code[..], &0x3000_u32.wrapping_sub(end).to_le_bytes()].concat();
        let bytes = |at: u64| code.get(at.checked_sub(0x1000)? as usize..);
        let call = |target| match target {
            0x2000 => CallKind::Gives,
            0x3000 => CallKind::Ends,
            _ => CallKind::Other,
        };
        follow(0x1000, &bytes, &call, u64::MAX)
    }

    #[test]
    fn fields_are_what_every_path_stores() {
        let code = [
            &[0x48, 0x8b, 0x53, 0x10][..], // mov 16(%rbx),%rdx
            &[0x48, 0x89, 0x50, 0x08],     // mov %rdx,8(%rax)
            &[0x48, 0x8b, 0x53, 0x18],     // mov 24(%rbx),%rdx
            &[0x48, 0x89, 0x50, 0x10],     // mov %rdx,16(%rax)
            &[0x8b, 0x4d, 0x04],           // mov 4(%rbp),%ecx
            &[0x89, 0x48, 0x18],           // mov %ecx,24(%rax)
            &[0x85, 0xdb],                 // test %ebx,%ebx
            &[0x74, 0x02],                 // je over the next
            &[0x31, 0xc9],                 // xor %ecx,%ecx
            &[0x89, 0x48, 0x1c],           // mov %ecx,28(%rax)
        ]
        .concat();
        let states = states(&code);
        assert_eq!(states.len(), 2);
        let at = |at, bytes, is_array| {
            stored(&states, at, bytes, is_array).map(|value| value.to_string())
        };
        assert_eq!(at(8, 16, true).as_deref(), Some("rbx,+16"), "an array, by its address");
        assert_eq!(at(8, 8, false).as_deref(), Some("rbx,+16,u8"));
        assert_eq!(at(24, 4, false).as_deref(), Some("rbp,+4,u4"));
        assert_eq!(at(28, 4, false), None, "two paths store two things");
        assert_eq!(at(24, 8, false), None, "a part of it is stored apart");
        assert_eq!(at(32, 4, false), None, "nothing is stored");
    }

    #[test]
    fn arguments_hold_where_all_states_agree() {
        let code = [
            &[0x48, 0x89, 0xde][..], // mov %rbx,%rsi
            &[0x31, 0xd2],           // xor %edx,%edx
            &[0x85, 0xdb],           // test %ebx,%ebx
            &[0x74, 0x03],           // je over the next
            &[0x4c, 0x89, 0xe2],     // mov %r12,%rdx
        ]
        .concat();
        let states = states(&code);
        let said: Vec<Option<String>> = arguments(&states, 2)
            .into_iter()
            .map(|value| value.map(|value| value.to_string()))
            .collect();
        assert_eq!(said, [None, Some("rbx".to_owned()), None]);
    }
}
