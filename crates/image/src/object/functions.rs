//! The functions of a section of code, and what lies between them.
//!
//! Takes the symbols of the section; gives stretches that cover it without overlap: functions
//! (aliases and nested symbols folded into one), with the call padding in front of them, and the
//! gaps. Never looks at an instruction's meaning.

use super::elf::{Elf, SectionId, SymbolId};
use object::elf::{STT_FUNC, STT_NOTYPE};

/// Why a stretch of code is moved only as a whole, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whole {
    /// A symbol stands inside: assembly that may measure distances between its labels.
    InnerLabel,
    /// No symbol names it: the body of an overridden weak function.
    Nameless,
    /// Bytes that do not decode.
    Undecodable,
    /// A branch into the middle of an instruction, or an operand that names it.
    MiddleTarget,
    /// A branch that exists only in a short form.
    OddBranch,
    /// A short branch inside an alternative.
    ShortBranchInAlternative,
    /// Something goes to the inside of an alternative.
    AlternativeTarget,
    /// A side table names something that is no instruction here.
    OddTableEntry,
    /// Execution runs on into the next function.
    RunsOn,
}

impl Whole {
    pub fn words(self) -> &'static str {
        match self {
            Whole::InnerLabel => "symbols inside (assembly)",
            Whole::Nameless => "no symbol (overridden weak function)",
            Whole::Undecodable => "bytes that do not decode",
            Whole::MiddleTarget => "a target inside an instruction",
            Whole::OddBranch => "a branch that has only a short form",
            Whole::ShortBranchInAlternative => "a short branch in an alternative",
            Whole::AlternativeTarget => "a target inside an alternative",
            Whole::OddTableEntry => "a side table entry that is not understood",
            Whole::RunsOn => "runs on into the next function",
        }
    }
}

/// A function, or a gap between two that is not mere padding.
#[derive(Clone, Debug)]
pub struct Function {
    /// The symbol that names it; none for a nameless stretch.
    pub symbol: Option<SymbolId>,
    pub at: u32,
    pub end: u32,
    /// Bytes in front of `at` that belong to it: call padding, a kCFI hash.
    pub lead: u32,
    /// Bytes of call padding in front of the lead that the kernel never patches: they need not move
    /// with it.
    pub spare: u32,
    /// A symbol names the lead, and what is spare in front of it.
    pub lead_named: bool,
    pub whole: Option<Whole>,
}

/// The functions of `code`, ascending and disjoint.
///
/// A symbol without a size that lies inside a function makes it `Whole::InnerLabel`; outside of all
/// it begins a nameless stretch.
pub fn from_symbols(elf: &Elf<'_>, code: SectionId) -> Vec<Function> {
    let bytes = elf.bytes(code);
    let symbols = elf.symbols.iter().enumerate().filter(|(_, s)| {
        let fits = s.value.saturating_add(s.size) <= bytes.len() as u64;
        s.section() == Some(code) && matches!(s.kind(), STT_FUNC | STT_NOTYPE) && fits
    });
    let symbols = symbols.map(|(i, s)| Named {
        id: SymbolId(i as u32),
        name: elf.name(s),
        at: s.value as u32,
        end: (s.value + s.size) as u32,
        local: s.is_local(),
    });
    let mut functions = from_named(symbols, bytes);
    if let Some(patched) = patched_padding(elf) {
        spare_leads(&mut functions, bytes, patched);
    }
    functions
}

/// A symbol of code, by offsets in its section, inside of which it lies.
pub struct Named<'a> {
    pub id: SymbolId,
    pub name: &'a str,
    pub at: u32,
    pub end: u32,
    pub local: bool,
}

/// As `from_symbols`, for symbols from anywhere.
pub fn from_named<'a>(symbols: impl Iterator<Item = Named<'a>>, bytes: &[u8]) -> Vec<Function> {
    let mut prefixes: Vec<(u32, u32)> = Vec::new();
    let mut named: Vec<(u32, u32, bool, SymbolId)> = Vec::new();
    let mut labels: Vec<u32> = Vec::new();
    for symbol in symbols {
        if symbol.name.starts_with("__pfx_") || symbol.name.starts_with("__cfi_") {
            prefixes.push((symbol.at, symbol.end));
        } else if symbol.at == symbol.end {
            labels.push(symbol.at);
        } else {
            named.push((symbol.at, symbol.end, symbol.local, symbol.id));
        }
    }
    // At one address the longest first, a global name before a local one.
    named.sort_by_key(|&(at, end, local, id)| (at, std::cmp::Reverse(end), local, id));
    let mut functions: Vec<Function> = Vec::with_capacity(named.len());
    for (at, end, _, symbol) in named {
        match functions.last_mut() {
            Some(last) if at == last.at && end == last.end => {}
            Some(last) if at < last.end => {
                last.end = last.end.max(end);
                last.whole = Some(Whole::InnerLabel);
            }
            _ => functions.push(Function {
                symbol: Some(symbol),
                at,
                end,
                lead: 0,
                spare: 0,
                lead_named: false,
                whole: None,
            }),
        }
    }
    for label in labels {
        let index = functions.partition_point(|f| f.at <= label);
        if let Some(f) = index.checked_sub(1).map(|i| &mut functions[i])
            && label > f.at
            && label < f.end
        {
            f.whole = Some(Whole::InnerLabel);
        }
    }
    give_leads(&mut functions, prefixes, bytes);
    functions
}

/// The bytes directly in front of a function's entry that a kernel with call-depth tracking patches
/// at boot: the length of its template (`SKL_TMPL_SIZE`, arch/x86/kernel/callthunks.c). `None` when
/// the object does not say.
fn patched_padding(elf: &Elf<'_>) -> Option<u32> {
    let place = |name: &str| {
        let mut found = elf.symbols.iter().filter(|s| elf.name(s) == name);
        let symbol = found.next().filter(|_| found.next().is_none())?;
        Some((symbol.section()?, symbol.value))
    };
    let (section, from) = place("skl_call_thunk_template")?;
    let (same, to) = place("skl_call_thunk_tail")?;
    let length = to.checked_sub(from).filter(|&length| length > 0 && section == same)?;
    u32::try_from(length).ok()
}

/// Leaves each function of its padding what is patched. Padding that is not of no-ops alone (a kCFI
/// hash) stays whole.
fn spare_leads(functions: &mut [Function], bytes: &[u8], patched: u32) {
    for f in functions.iter_mut().filter(|f| f.lead > patched) {
        let lead = &bytes[(f.at - f.lead) as usize..f.at as usize];
        if lead.iter().all(|&b| b == NO_OP) {
            f.spare = f.lead - patched;
            f.lead = patched;
        }
    }
}

/// What compilers pad with for `-fpatchable-function-entry`.
const NO_OP: u8 = 0x90;

/// Gives each function the prefix that ends where it begins; in an object that has prefixes, also
/// the no-ops in front of functions that have none by name (assembly).
fn give_leads(functions: &mut [Function], mut prefixes: Vec<(u32, u32)>, bytes: &[u8]) {
    prefixes.sort_by_key(|&(at, end)| (end, at));
    let usual = prefixes.iter().map(|&(at, end)| end - at).max().unwrap_or(0);
    let mut previous_end = 0;
    for f in functions {
        let first = prefixes.partition_point(|&(_, end)| end < f.at);
        let named =
            prefixes.get(first).filter(|&&(_, end)| end == f.at).map_or(0, |&(at, end)| end - at);
        let room = f.at - previous_end.min(f.at);
        let no_ops = bytes[..f.at as usize]
            .iter()
            .rev()
            .take(usual as usize)
            .take_while(|&&b| b == NO_OP)
            .count() as u32;
        f.lead_named = named != 0 && named <= room;
        f.lead = if named != 0 { named } else { no_ops }.min(room);
        previous_end = f.end;
    }
}
