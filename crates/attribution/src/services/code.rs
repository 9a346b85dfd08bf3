//! What the automaton must know of a translation: how many instructions it has, whether anything
//! about it asks for attention, and what.
//!
//! Takes translations and the bound annotations; gives a word for each translation, which is all
//! that most executions look at, and the rest apart.

use crate::services::annotations::Kind;
use crate::services::binding::{Binding, Event, OfCallee, in_range, in_sorted_range};
use crate::services::ledger::{Ledger, ServiceId};
use crate::services::symbols::Symbols;
use anyhow::Result;
use execution::code::{LastInstruction, TranslatedCode};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use image::address::LinkAddr;
use sim::BranchKind;
use std::collections::HashMap;
use std::rc::Rc;
use trace::Translation;

/// Number of instructions and flags of a translation. A translation that has no other flag than the
/// processor's state now has needs no look at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u32);

impl Word {
    const INSTRUCTIONS: u32 = 0xffff;
    /// Of user mode.
    pub const USER: u32 = 1 << 16;
    /// Ends with a call.
    pub const CALL: u32 = 1 << 17;
    /// Ends with a return from a function.
    pub const RETURN: u32 = 1 << 18;
    /// Ends with a return from an interruption.
    pub const INTERRUPT_RETURN: u32 = 1 << 19;
    /// Something is noted about it.
    pub const NOTED: u32 = 1 << 20;
    /// Ends with the processor halted.
    pub const HALT: u32 = 1 << 21;
    /// Never in a translation: the automaton waits to see where control goes.
    pub const AWAITED: u32 = 1 << 31;

    #[inline]
    pub fn instructions(self) -> u64 {
        u64::from(self.0 & Word::INSTRUCTIONS)
    }

    #[inline]
    pub fn flags(self) -> u32 {
        self.0 & !Word::INSTRUCTIONS
    }
}

/// An event with its services numbered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Gate(Kind, ServiceId),
    Enter(Kind, ServiceId),
    Name { of: Kind, when: Vec<ServiceId>, service: ServiceId },
    Task(ServiceId),
    Thread,
    Count(usize),
}

/// Where a translation lies, and what is noted about it.
#[derive(Clone, Debug, Default)]
pub struct Place {
    pub start: u64,
    pub end: u64,
    /// The number of the function whose first instruction is the translation's.
    pub function: Option<FunctionId>,
    /// Lies in code on the way from a call through a pointer to the callee.
    pub thunk: bool,
    notes: u32,
}

/// What makes a translation worth a look.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Before the instruction with this number (from 0) control comes to an address with these
    /// events.
    pub events: Vec<(u32, Vec<Action>)>,
    pub body: Option<Action>,
    /// The last instruction calls through a pointer, out of a function in which this means
    /// something.
    pub calls: Option<OfCallee>,
}

/// A function by its first address; the number of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// All translations so far.
pub struct Codes<'a> {
    binding: &'a Binding,
    symbols: &'a Symbols,
    pub words: Vec<Word>,
    pub places: Vec<Place>,
    notes: Vec<Rc<Notes>>,
    functions: HashMap<u64, FunctionId>,
    pub function_names: Vec<&'a str>,
}

impl<'a> Codes<'a> {
    pub fn new(binding: &'a Binding, symbols: &'a Symbols) -> Codes<'a> {
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

    /// What is noted about a translation; only for those with the flag.
    pub fn notes(&self, id: u32) -> Rc<Notes> {
        Rc::clone(&self.notes[self.places[id as usize].notes as usize])
    }

    /// The name of the code at an address, for people.
    pub fn name_at(&self, addr: u64) -> String {
        match self.symbols.containing(LinkAddr(addr)) {
            Some(symbol) => symbol.name.clone(),
            None => "code without a symbol".to_owned(),
        }
    }

    /// Learns the next translation.
    pub fn define(&mut self, translation: &Translation, ledger: &mut Ledger) -> Result<()> {
        let mut word = translation.instructions();
        if !translation.is_kernel() {
            self.words.push(Word(word | Word::USER));
            self.places.push(Place::default());
            return Ok(());
        }
        let code = TranslatedCode::new(translation)?;
        word |= match code.last {
            LastInstruction::Call { .. } | LastInstruction::Taken(BranchKind::IndirectCall) => {
                Word::CALL
            }
            LastInstruction::Taken(BranchKind::Return) => Word::RETURN,
            LastInstruction::InterruptReturn => Word::INTERRUPT_RETURN,
            _ if halts(translation) => Word::HALT,
            _ => 0,
        };
        let start = translation.addr.0;
        let place = Place {
            start,
            end: code.end().0,
            function: self.function(start),
            thunk: in_range(&self.binding.thunks, start).is_some(),
            notes: self.notes.len() as u32,
        };
        let notes = self.note(translation, &code, ledger);
        if !notes.events.is_empty() || notes.body.is_some() || notes.calls.is_some() {
            word |= Word::NOTED;
            self.notes.push(Rc::new(notes));
        }
        self.words.push(Word(word));
        self.places.push(place);
        Ok(())
    }

    fn function(&mut self, start: u64) -> Option<FunctionId> {
        let symbol = self.symbols.at(LinkAddr(start))?;
        let next = FunctionId(self.function_names.len() as u32);
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

fn action(event: &Event, ledger: &mut Ledger) -> Action {
    match event {
        Event::Gate { kind, name } => Action::Gate(*kind, ledger.service(*kind, name)),
        Event::Enter { kind, name } => Action::Enter(*kind, ledger.service(*kind, name)),
        Event::Name { of, when, name } => Action::Name {
            of: *of,
            when: when.iter().map(|name| ledger.service(*of, name)).collect(),
            service: ledger.service(*of, name),
        },
        Event::Task { name } => Action::Task(ledger.service(Kind::Task, name)),
        Event::Thread => Action::Thread,
        Event::Count(number) => Action::Count(*number),
    }
}
