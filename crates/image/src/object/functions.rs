//! The functions of a code section, and the stretches between them.
//!
//! Input: the section's symbols. Output: functions that do not overlap, with the call padding in
//! front of them. Aliases and nested symbols become one function. This module never looks at what
//! an instruction means.

use super::elf::{Elf, SectionId, SymbolId};
use crate::place::CallPadding;
use object::elf::{STT_FUNC, STT_NOTYPE};

/// Why a stretch of code is moved only as a whole, without changes to its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WholeReason {
    /// A symbol stands inside. The code may be assembly that measures distances between its labels.
    InnerLabel,
    /// No symbol names the stretch: for example the body of an overridden weak function.
    Nameless,
    /// It contains bytes that do not decode.
    Undecodable,
    /// It contains an instruction that a hypervisor executes.
    Emulated,
    /// A branch goes into the middle of an instruction, or an operand refers to it.
    MiddleTarget,
    /// It contains a branch that exists only in a short form.
    OddBranch,
    /// It contains a short branch inside an alternative.
    ShortBranchInAlternative,
    /// A branch or table entry goes to the inside of an alternative.
    AlternativeTarget,
    /// A side table refers to bytes that are not an instruction of the expected kind.
    OddTableEntry,
    /// Control falls through into the next function.
    RunsOn,
}

impl WholeReason {
    /// The reason in words.
    pub fn words(self) -> &'static str {
        match self {
            WholeReason::InnerLabel => "symbols inside (assembly)",
            WholeReason::Nameless => "no symbol (overridden weak function)",
            WholeReason::Undecodable => "bytes that do not decode",
            WholeReason::Emulated => "an instruction that a hypervisor executes",
            WholeReason::MiddleTarget => "a target inside an instruction",
            WholeReason::OddBranch => "a branch that has only a short form",
            WholeReason::ShortBranchInAlternative => "a short branch in an alternative",
            WholeReason::AlternativeTarget => "a target inside an alternative",
            WholeReason::OddTableEntry => "a side table entry that is not understood",
            WholeReason::RunsOn => "runs on into the next function",
        }
    }
}

/// A function, or a stretch between functions that holds more than padding.
#[derive(Clone, Debug)]
pub struct TextFunction {
    /// The symbol that names it; `None` for a nameless stretch.
    pub symbol: Option<SymbolId>,
    /// The offset of its entry in the section.
    pub at: u32,
    /// The offset behind its last byte.
    pub end: u32,
    /// Bytes in front of `at` that belong to the function: call padding, a kCFI hash.
    pub lead: u32,
    /// Bytes of call padding in front of the lead that the kernel never patches. They need not move
    /// with the function.
    pub spare: u32,
    /// Whether a symbol names the lead and the spare bytes in front of it.
    pub lead_named: bool,
    /// Why it stays whole; `None` if it can be cut.
    pub whole: Option<WholeReason>,
}

impl TextFunction {
    /// The stretch from the offset `at` to `end`, which no symbol names.
    pub(super) fn nameless(at: u32, end: u32) -> TextFunction {
        TextFunction {
            symbol: None,
            at,
            end,
            lead: 0,
            spare: 0,
            lead_named: false,
            whole: Some(WholeReason::Nameless),
        }
    }
}

/// The functions of `code`, ascending and disjoint.
///
/// A symbol without a size that lies inside a function makes that function
/// `WholeReason::InnerLabel`. Outside of all functions it begins a nameless stretch.
pub fn from_symbols(
    elf: &Elf<'_>,
    code: SectionId,
    call_padding: CallPadding,
) -> Vec<TextFunction> {
    let bytes = elf.bytes(code);
    let symbols = elf.symbols.iter().enumerate().filter(|(_, s)| {
        let fits = s.value.saturating_add(s.size) <= bytes.len() as u64;
        s.section() == Some(code) && matches!(s.kind(), STT_FUNC | STT_NOTYPE) && fits
    });
    let symbols = symbols.map(|(i, s)| FunctionSymbol {
        id: SymbolId(i as u32),
        name: elf.name(s),
        at: s.value as u32,
        end: (s.value + s.size) as u32,
        local: s.is_local(),
    });
    let mut functions = from_named(symbols, bytes);
    if let Some(patched) = patched_padding(elf) {
        let kept = match call_padding {
            CallPadding::Kept => patched,
            CallPadding::Dropped => 0,
        };
        spare_leads(&mut functions, bytes, kept);
    }
    functions
}

/// A symbol of code, with offsets in its section.
pub(crate) struct FunctionSymbol<'a> {
    /// Its number.
    pub id: SymbolId,
    /// Its name.
    pub name: &'a str,
    /// The offset of its first byte.
    pub at: u32,
    /// The offset behind its last byte; equal to `at` if it has no size.
    pub end: u32,
    /// Whether its binding is local.
    pub local: bool,
}

/// Like `from_symbols`, for symbols from any source.
pub(crate) fn from_named<'a>(
    symbols: impl Iterator<Item = FunctionSymbol<'a>>,
    bytes: &[u8],
) -> Vec<TextFunction> {
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
    // At one address, longer symbols come first, and global names come before local ones.
    named.sort_by_key(|&(at, end, local, id)| (at, std::cmp::Reverse(end), local, id));
    let mut functions: Vec<TextFunction> = Vec::with_capacity(named.len());
    for (at, end, _, symbol) in named {
        match functions.last_mut() {
            Some(last) if at == last.at && end == last.end => {}
            Some(last) if at < last.end => {
                last.end = last.end.max(end);
                last.whole = Some(WholeReason::InnerLabel);
            }
            _ => functions.push(TextFunction {
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
            f.whole = Some(WholeReason::InnerLabel);
        }
    }
    give_leads(&mut functions, prefixes, bytes);
    functions
}

/// The number of bytes directly in front of a function's entry that a kernel with call-depth
/// tracking patches at boot: the length of its template (`SKL_TMPL_SIZE`,
/// arch/x86/kernel/callthunks.c). `None` if the object has no such template.
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

/// Limits the lead of each function to the `kept` bytes in front of its entry. Padding that does
/// not consist of no-ops alone (a kCFI hash) stays complete.
fn spare_leads(functions: &mut [TextFunction], bytes: &[u8], kept: u32) {
    for f in functions.iter_mut().filter(|f| f.lead > kept) {
        let lead = &bytes[(f.at - f.lead) as usize..f.at as usize];
        if lead.iter().all(|&b| b == NO_OP) {
            f.spare = f.lead - kept;
            f.lead = kept;
        }
    }
}

/// The padding byte of compilers for `-fpatchable-function-entry`.
const NO_OP: u8 = 0x90;

/// Gives each function the prefix that ends at its entry. In an object with prefixes, a function
/// without a named prefix (assembly) gets the no-ops in front of it.
fn give_leads(functions: &mut [TextFunction], mut prefixes: Vec<(u32, u32)>, bytes: &[u8]) {
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
