//! What each function of the kernel came to: calls and instructions.
//!
//! Takes executions; gives totals by name, functions of one name together. Code without a symbol (modules) is together, too.

use crate::image::address::LinkAddr;
use crate::services::ledger::MachineCounts;
use crate::services::meter::Meter;
use crate::services::symbols::Symbols;
use anyhow::Result;
use std::collections::{BTreeMap, HashMap};
use trace::Translation;

/// What code without a symbol is called.
pub const NAMELESS: &str = "(code without a symbol)";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FunctionTotals {
    /// How often its first instruction was executed.
    pub calls: u64,
    pub instructions: u64,
}

/// Counts executions of translations.
pub struct Functions<'a> {
    symbols: &'a Symbols,
    numbers: HashMap<&'a str, u32>,
    names: Vec<&'a str>,
    of: Vec<Part>,
    runs: Vec<u64>,
    /// Instructions of executions that were left.
    left: Vec<u64>,
}

/// The function that a translation begins in.
#[derive(Clone, Copy)]
struct Part {
    /// `None` for user code.
    function: Option<u32>,
    is_entry: bool,
    instructions: u32,
}

impl<'a> Functions<'a> {
    pub fn new(symbols: &'a Symbols) -> Functions<'a> {
        Functions {
            symbols,
            numbers: HashMap::new(),
            names: Vec::new(),
            of: Vec::new(),
            runs: Vec::new(),
            left: Vec::new(),
        }
    }

    pub fn totals(&self) -> BTreeMap<String, FunctionTotals> {
        let mut totals = vec![FunctionTotals::default(); self.names.len()];
        for ((part, &runs), &left) in self.of.iter().zip(&self.runs).zip(&self.left) {
            let Some(function) = part.function else { continue };
            let total = &mut totals[function as usize];
            total.instructions += runs * u64::from(part.instructions) + left;
            total.calls += if part.is_entry { runs } else { 0 };
        }
        let ran = self.names.iter().zip(totals).filter(|(_, total)| total.instructions > 0);
        ran.map(|(name, total)| ((*name).to_owned(), total)).collect()
    }
}

impl Meter for Functions<'_> {
    fn define(&mut self, translation: &Translation) -> Result<()> {
        let symbol = self.symbols.containing(LinkAddr(translation.addr.0));
        let name = symbol.map_or(NAMELESS, |symbol| symbol.name.split('.').next().unwrap_or(&symbol.name));
        let next = self.names.len() as u32;
        let function = translation.is_kernel().then(|| *self.numbers.entry(name).or_insert(next));
        if function == Some(next) {
            self.names.push(name);
        }
        self.of.push(Part {
            function,
            is_entry: symbol.is_some_and(|symbol| symbol.addr.0 == translation.addr.0 && symbol.base_name().is_some()),
            instructions: translation.instructions(),
        });
        self.runs.push(0);
        self.left.push(0);
        Ok(())
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.runs[translation as usize] += 1;
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.left[translation as usize] += u64::from(instructions);
    }

    fn take(&mut self) -> &[MachineCounts] {
        &[]
    }
}
