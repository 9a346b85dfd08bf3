//! What the automaton must know about a translation block: how many instructions it has, and which
//! of them need attention.
//!
//! Takes translation blocks and the bound annotations; gives a word for each translation block,
//! which is all that most executions read, and the other facts separately.

use crate::annotations::ServiceKind;
use crate::binding::{Binding, BoundEvent, CalleeMeaning, in_range, in_sorted_range};
use crate::ledger::{Ledger, ServiceId};
use crate::symbols::KernelSymbols;
use execution::code::{LastInstruction, TranslatedCode};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use image::address::LinkAddr;
use sim::BranchKind;
use std::collections::HashMap;
use std::sync::Arc;
use trace::Translation;

/// The number of instructions and the flags of a translation block. A translation block needs no
/// attention when its flags are those of the current state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TranslationWord(pub u32);

impl TranslationWord {
    const INSTRUCTIONS: u32 = 0xffff;
    /// User code.
    pub(super) const USER: u32 = 1 << 16;
    /// Ends with a call.
    pub(super) const CALL: u32 = 1 << 17;
    /// Ends with a return from a function.
    pub(super) const RETURN: u32 = 1 << 18;
    /// Ends with a return from an interruption.
    pub(crate) const INTERRUPT_RETURN: u32 = 1 << 19;
    /// Has notes.
    pub(crate) const NOTED: u32 = 1 << 20;
    /// Ends with the processor halted.
    pub(crate) const HALT: u32 = 1 << 21;
    /// Never set in a translation block: the automaton waits to see where control goes.
    pub(crate) const AWAITED: u32 = 1 << 31;

    #[inline]
    pub(super) fn instructions(self) -> u64 {
        u64::from(self.0 & TranslationWord::INSTRUCTIONS)
    }

    #[inline]
    pub(super) fn flags(self) -> u32 {
        self.0 & !TranslationWord::INSTRUCTIONS
    }
}

/// An event with its services numbered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Gate(ServiceKind, ServiceId),
    Enter(ServiceKind, ServiceId),
    Name { of: ServiceKind, when: Vec<ServiceId>, service: ServiceId },
    Task(ServiceId),
    Thread,
    Count(usize),
}

/// Where a translation block lies, and its notes.
#[derive(Clone, Debug, Default)]
pub(super) struct TranslationPlace {
    pub start: u64,
    pub end: u64,
    /// The function that begins at the start of the translation block.
    pub function: Option<CalleeId>,
    /// Lies between a call through a pointer and the callee.
    pub thunk: bool,
    notes: u32,
}

/// Why a translation block needs attention.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    /// The events at the address of the instruction with this number (from 0).
    pub events: Vec<(u32, Vec<Action>)>,
    pub body: Option<Action>,
    /// Set when the last instruction calls through a pointer, in a function where such a call has a
    /// meaning.
    pub calls: Option<CalleeMeaning>,
}

/// A function by its first address; the number of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CalleeId(pub u32);

/// All translation blocks so far.
pub(super) struct Codes<'a> {
    binding: &'a Binding,
    pub symbols: &'a KernelSymbols,
    pub words: Vec<TranslationWord>,
    pub places: Vec<TranslationPlace>,
    notes: Vec<Arc<Notes>>,
    functions: HashMap<u64, CalleeId>,
    pub function_names: Vec<&'a str>,
}

impl<'a> Codes<'a> {
    pub(super) fn new(binding: &'a Binding, symbols: &'a KernelSymbols) -> Codes<'a> {
        Codes {
            binding,
            symbols,
            words: Vec::new(),
            places: Vec::new(),
            notes: Vec::new(),
            functions: HashMap::new(),
            function_names: Vec::new(),
        }
    }

    /// The notes of a translation block with the flag `NOTED`.
    pub(super) fn notes(&self, id: u32) -> Arc<Notes> {
        Arc::clone(&self.notes[self.places[id as usize].notes as usize])
    }

    /// The name of the code at an address, for reports.
    pub(crate) fn name_at(&self, addr: u64) -> String {
        match self.symbols.containing(LinkAddr(addr)) {
            Some(symbol) => symbol.name.clone(),
            None => "code without a symbol".to_owned(),
        }
    }

    /// Adds the next translation block.
    pub(super) fn define(
        &mut self,
        translation: &Translation,
        code: &TranslatedCode,
        ledger: &mut Ledger,
    ) {
        let mut word = translation.instructions();
        if !translation.is_kernel() {
            self.words.push(TranslationWord(word | TranslationWord::USER));
            self.places.push(TranslationPlace::default());
            return;
        }
        word |= match code.last {
            LastInstruction::Call { .. } | LastInstruction::Taken(BranchKind::IndirectCall) => {
                TranslationWord::CALL
            }
            LastInstruction::Taken(BranchKind::Return) => TranslationWord::RETURN,
            LastInstruction::InterruptReturn => TranslationWord::INTERRUPT_RETURN,
            _ if halts(translation) => TranslationWord::HALT,
            _ => 0,
        };
        let start = translation.addr.0;
        let place = TranslationPlace {
            start,
            end: code.end().0,
            function: self.function(start),
            thunk: in_range(&self.binding.thunks, start).is_some(),
            notes: self.notes.len() as u32,
        };
        let notes = self.note(translation, code, ledger);
        if !notes.events.is_empty() || notes.body.is_some() || notes.calls.is_some() {
            word |= TranslationWord::NOTED;
            self.notes.push(Arc::new(notes));
        }
        self.words.push(TranslationWord(word));
        self.places.push(place);
    }

    fn function(&mut self, start: u64) -> Option<CalleeId> {
        let symbol = self.symbols.at(LinkAddr(start))?;
        let next = CalleeId(self.function_names.len() as u32);
        let id = *self.functions.entry(start).or_insert(next);
        if id == next {
            self.function_names.push(symbol.base_name().unwrap_or(&symbol.name));
        }
        Some(id)
    }

    fn note(&self, translation: &Translation, code: &TranslatedCode, ledger: &mut Ledger) -> Notes {
        let (binding, start) = (self.binding, translation.addr.0);
        let mut notes = Notes::default();
        for (number, (addr, _)) in translation.code_by_instruction().enumerate() {
            let events = binding.events.get(&LinkAddr(addr.0)).into_iter().flatten();
            let anywhere = in_range(&binding.anywhere, addr.0).filter(|_| number == 0);
            let actions: Vec<Action> =
                events.chain(anywhere).map(|event| action(event, ledger)).collect();
            if !actions.is_empty() {
                notes.events.push((number as u32, actions));
            }
        }
        notes.body = in_sorted_range(&binding.bodies, start).map(|event| action(event, ledger));
        let through_pointer = match code.last {
            LastInstruction::Call { target } => in_range(&binding.thunks, target.0).is_some(),
            LastInstruction::Taken(BranchKind::IndirectCall) => true,
            _ => false,
        };
        if through_pointer {
            notes.calls = in_range(&binding.callers, start).cloned();
        }
        notes
    }
}

/// Whether the last instruction waits for an interrupt.
fn halts(translation: &Translation) -> bool {
    let last = translation.code_by_instruction().last();
    last.is_some_and(|(_, bytes)| {
        matches!(
            Decoder::new(64, bytes, DecoderOptions::NONE).decode().mnemonic(),
            Mnemonic::Hlt | Mnemonic::Mwait
        )
    })
}

fn action(event: &BoundEvent, ledger: &mut Ledger) -> Action {
    match event {
        BoundEvent::Gate { kind, name } => Action::Gate(*kind, ledger.service(*kind, name)),
        BoundEvent::Enter { kind, name } => Action::Enter(*kind, ledger.service(*kind, name)),
        BoundEvent::Name { of, when, name } => Action::Name {
            of: *of,
            when: when.iter().map(|name| ledger.service(*of, name)).collect(),
            service: ledger.service(*of, name),
        },
        BoundEvent::Task { name } => Action::Task(ledger.service(ServiceKind::Task, name)),
        BoundEvent::Thread => Action::Thread,
        BoundEvent::Count(number) => Action::Count(*number),
    }
}
