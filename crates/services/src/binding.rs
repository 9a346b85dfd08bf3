//! Binds annotations to a kernel: what its addresses mean.
//!
//! Takes annotations and a kernel's symbols; gives the events at each address, and the annotations
//! for which the kernel has no symbol.

use crate::annotations::{AnnotationMeaning, AnnotationSubject, Annotations, ServiceKind, fit};
use crate::symbols::{CodeSymbol, KernelSymbols};
use image::address::LinkAddr;
use std::collections::HashMap;
use std::ops::Range;

/// What happens when control comes to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BoundEvent {
    /// A service begins that ends with the return from the system call, exception or interrupt.
    Gate { kind: ServiceKind, name: String },
    /// A service begins that ends with the function's return.
    Enter { kind: ServiceKind, name: String },
    /// The innermost open service of this kind gets this name, if its current name is one of `when`
    /// or `when` is empty.
    Name { of: ServiceKind, when: Vec<String>, name: String },
    /// A new task.
    Task { name: String },
    /// The task is a kernel thread.
    Thread,
    /// The counter with this number is incremented.
    Count(usize),
}

/// What a call through a pointer from an annotated function means for the callee. In `name`, `*`
/// stands for the callee's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CalleeMeaning {
    Enter { kind: ServiceKind, name: String },
    Name { of: ServiceKind, name: String },
}

/// An annotation for which the kernel has no symbol.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct UnseenAnnotation {
    /// What cannot be seen in this kernel.
    pub about: String,
    /// The names that the kernel does not have.
    pub symbols: Vec<String>,
}

/// Annotations by address.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    /// By address, in the order in which they apply.
    pub(crate) events: HashMap<LinkAddr, Vec<BoundEvent>>,
    /// Gates that control may enter at any address: their range and event.
    pub(crate) anywhere: Vec<(Range<u64>, BoundEvent)>,
    /// Code that shows what its task does even when its entry was not recorded.
    pub(crate) bodies: Vec<(Range<u64>, BoundEvent)>,
    /// Functions whose calls through pointers mean something.
    pub(crate) callers: Vec<(Range<u64>, CalleeMeaning)>,
    /// Code between a call through a pointer and the callee.
    pub(crate) thunks: Vec<(Range<u64>, ())>,
    /// Names of counters, by their numbers.
    pub(crate) counters: Vec<String>,
    /// Annotations for which the kernel has no symbol.
    pub blind: Vec<UnseenAnnotation>,
    /// Names of idle tasks; `*` stands for any text.
    pub(crate) idle: Vec<String>,
}

impl Binding {
    /// Finds the symbols of each annotation.
    pub fn new(annotations: &Annotations, symbols: &KernelSymbols) -> Binding {
        let mut binding = Binding { idle: annotations.idle.clone(), ..Binding::default() };
        for annotation in &annotations.list {
            let found = matches(&annotation.subject, symbols);
            if found.is_empty() && !annotation.subject.optional {
                binding.blind.push(UnseenAnnotation {
                    about: annotation.subject.about.clone(),
                    symbols: annotation.subject.symbols.clone(),
                });
            }
            for (symbol, star) in found {
                binding.bind(&annotation.meaning, symbol, star);
            }
        }
        binding.bodies.sort_by_key(|(range, _)| range.start);
        binding.bodies.dedup_by_key(|(range, _)| range.start);
        binding
    }

    fn bind(&mut self, meaning: &AnnotationMeaning, symbol: &CodeSymbol, star: &str) {
        let range = symbol.addr.0..symbol.addr.0.saturating_add(symbol.size);
        let named = |name: &str| name.replace('*', star);
        match meaning {
            AnnotationMeaning::Gate { kind, name, anywhere } => {
                let (kind, name) = (*kind, named(name));
                match anywhere {
                    true => self.anywhere.push((range, BoundEvent::Gate { kind, name })),
                    false => self.begin(symbol.addr, BoundEvent::Gate { kind, name }),
                }
            }
            AnnotationMeaning::Enter { kind, name } => {
                let (kind, name) = (*kind, named(name));
                self.begin(symbol.addr, BoundEvent::Enter { kind, name });
            }
            AnnotationMeaning::EnterCallee { kind, name } => {
                let (kind, name) = (*kind, name.clone());
                self.callers.push((range, CalleeMeaning::Enter { kind, name }));
            }
            AnnotationMeaning::NameByCallee { of, name } => {
                let (of, name) = (*of, name.clone());
                self.callers.push((range, CalleeMeaning::Name { of, name }));
            }
            AnnotationMeaning::Name { of, when, name, body } => {
                let (of, when, name) = (*of, when.clone(), named(name));
                let event = BoundEvent::Name { of, when, name };
                if *body {
                    self.bodies.push((range, event.clone()));
                }
                self.also(symbol.addr, event);
            }
            AnnotationMeaning::Task { name } => {
                self.begin(symbol.addr, BoundEvent::Task { name: named(name) })
            }
            AnnotationMeaning::Thread { body: true } => {
                self.bodies.push((range, BoundEvent::Thread))
            }
            AnnotationMeaning::Thread { body: false } => self.also(symbol.addr, BoundEvent::Thread),
            AnnotationMeaning::Count { name } => {
                let number = self
                    .counters
                    .iter()
                    .position(|known| known == name)
                    .unwrap_or(self.counters.len());
                if number == self.counters.len() {
                    self.counters.push(name.clone());
                }
                self.also(symbol.addr, BoundEvent::Count(number));
            }
            AnnotationMeaning::Thunk => self.thunks.push((range, ())),
        }
    }

    /// At most one service begins at an address. The earlier annotation counts.
    fn begin(&mut self, addr: LinkAddr, event: BoundEvent) {
        let events = self.events.entry(addr).or_default();
        let begins = |event: &BoundEvent| {
            matches!(
                event,
                BoundEvent::Gate { .. } | BoundEvent::Enter { .. } | BoundEvent::Task { .. }
            )
        };
        if !events.iter().any(begins) {
            events.push(event);
        }
    }

    fn also(&mut self, addr: LinkAddr, event: BoundEvent) {
        self.events.entry(addr).or_default().push(event);
    }
}

/// The symbols that a subject is about, each with the text that `*` matches. An address with two
/// matching names appears once, for the first name.
fn matches<'s>(
    subject: &AnnotationSubject,
    symbols: &'s KernelSymbols,
) -> Vec<(&'s CodeSymbol, &'s str)> {
    let mut found: Vec<(&CodeSymbol, &str)> = Vec::new();
    for pattern in &subject.symbols {
        let fitting =
            symbols.iter().filter_map(|symbol| Some((symbol, fit(pattern, symbol.base_name()?)?)));
        for (symbol, star) in fitting {
            if !found.iter().any(|(known, _)| known.addr == symbol.addr) {
                found.push((symbol, star));
            }
        }
        if subject.first_only && !found.is_empty() {
            break;
        }
    }
    found
}

/// The value of the first range that holds `addr`.
pub(crate) fn in_range<T>(ranges: &[(Range<u64>, T)], addr: u64) -> Option<&T> {
    ranges.iter().find(|(range, _)| range.contains(&addr)).map(|(_, value)| value)
}

/// As `in_range`, for many disjoint ranges in ascending order.
pub(crate) fn in_sorted_range<T>(ranges: &[(Range<u64>, T)], addr: u64) -> Option<&T> {
    let after = ranges.partition_point(|(range, _)| range.start <= addr);
    let (range, value) = ranges.get(after.checked_sub(1)?)?;
    range.contains(&addr).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "\
ffffffff81000000 T entry
ffffffff81000040 T __x64_sys_read
ffffffff81000040 T __ia32_sys_read
ffffffff81000080 t handler.isra.0
ffffffff810000c0 t asm_exc_one
ffffffff81000100 t asm_exc_two
ffffffff81000140 t last
";

    fn bound(text: &str) -> Binding {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("System.map");
        std::fs::write(&path, MAP).unwrap();
        Binding::new(&Annotations::parse(text).unwrap(), &KernelSymbols::read(&path).unwrap())
    }

    #[test]
    fn patterns_find_symbols_and_the_earlier_gate_holds() {
        let binding = bound(
            "[[gate]]\nabout = 'a'\nsymbols = ['asm_exc_two']\nkind = 'page-fault'\n\
             name = 'fault'\n\
             [[gate]]\nabout = 'b'\nsymbols = ['asm_exc_*']\nkind = 'exception'\nname = '*'\n",
        );
        let gate = |addr| match &binding.events[&LinkAddr(addr)][..] {
            [BoundEvent::Gate { kind, name }] => (*kind, name.as_str()),
            other => panic!("{other:?}"),
        };
        assert_eq!(gate(0xffff_ffff_8100_00c0), (ServiceKind::Exception, "one"));
        assert_eq!(gate(0xffff_ffff_8100_0100), (ServiceKind::PageFault, "fault"));
        assert!(binding.blind.is_empty());
    }

    #[test]
    fn an_annotation_without_a_symbol_says_what_is_blind() {
        let binding = bound(
            "[[gate]]\nabout = 'calls'\nfirst-of = ['nothing', 'entry', 'last']\n\
             kind = 'system-call'\nname = 'x'\n\
             [[enter]]\nabout = 'signals'\nsymbols = ['do_signal']\nkind = 'signal'\nname = 'x'\n\
             [[enter]]\nabout = 'rare'\nsymbols = ['do_rare']\nkind = 'signal'\nname = 'x'\n\
             optional = true\n",
        );
        assert_eq!(binding.events.len(), 1);
        let blind = UnseenAnnotation { about: "signals".into(), symbols: vec!["do_signal".into()] };
        assert_eq!(binding.blind, [blind]);
    }

    #[test]
    fn names_and_callers_have_ranges() {
        let binding = bound(
            "[[gate]]\nabout = 'calls'\nsymbols = ['entry']\nkind = 'interrupt'\nname = 'x'\n\
             anywhere = true\n\
             [[name]]\nabout = 'names'\nsymbols = ['__x64_sys_*']\nof = 'system-call'\nname = '*'\n\
             body = true\n\
             [[name]]\nabout = 'irqs'\nsymbols = ['handler']\nof = 'interrupt'\nname = '*'\n\
             by = 'callee'\n",
        );
        assert!(matches!(
            in_range(&binding.anywhere, 0xffff_ffff_8100_0010),
            Some(BoundEvent::Gate { .. })
        ));
        assert_eq!(in_range(&binding.anywhere, 0xffff_ffff_8100_0040), None);
        assert!(matches!(
            in_sorted_range(&binding.bodies, 0xffff_ffff_8100_0050),
            Some(BoundEvent::Name { name, .. }) if name == "read"
        ));
        assert!(matches!(
            in_range(&binding.callers, 0xffff_ffff_8100_00a0),
            Some(CalleeMeaning::Name { of: ServiceKind::Interrupt, .. })
        ));
    }
}
