//! The totals of each kernel function: calls, instructions, misses.
//!
//! Takes executions; gives totals by name. Functions with the same name share a row, and so does
//! all code without a symbol (modules).

use crate::caches::Machines;
use crate::ledger::ServiceMachineCounts;
use crate::meter::Meter;
use crate::symbols::{CodeSymbol, KernelSymbols};
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::DataWish;
use image::address::LinkAddr;
use std::collections::{BTreeMap, HashMap};
use trace::Translation;

/// The name of code without a symbol.
pub const NAMELESS: &str = "(code without a symbol)";

/// The totals of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FunctionTotals {
    /// How often its first instruction was executed.
    pub calls: u64,
    /// Its own instructions.
    pub instructions: u64,
    /// L1I misses on the first machine; 0 without a machine.
    pub l1i_misses: u64,
}

/// The name without what compilers append. Parts of a function have the function's name.
pub fn function_name(symbol: &CodeSymbol) -> &str {
    symbol.name.split('.').next().unwrap_or(&symbol.name)
}

/// Counts executions of translation blocks, and their misses on the machines.
pub(crate) struct FunctionMeter<'a> {
    machines: Machines,
    symbols: &'a KernelSymbols,
    numbers: HashMap<&'a str, u32>,
    names: Vec<&'a str>,
    parts: Vec<TranslationFunction>,
    runs: Vec<u64>,
    /// Instructions of executions that were left midway.
    left: Vec<u64>,
    misses: Vec<u64>,
}

/// The function in which a translation block begins.
#[derive(Clone, Copy, Debug)]
pub struct TranslationFunction {
    /// The number of the function's name. `None` for user code, and for thunks if the caller leaves
    /// them out.
    pub function: Option<u32>,
    /// The translation block begins with the function's first instruction.
    pub is_entry: bool,
    /// The instructions of the translation block.
    pub instructions: u32,
}

impl TranslationFunction {
    /// `symbol`: the symbol that holds the translation block's first instruction.
    pub fn new(
        translation: &Translation,
        function: Option<u32>,
        symbol: Option<&CodeSymbol>,
    ) -> TranslationFunction {
        let begins = |symbol: &CodeSymbol| {
            symbol.addr.0 == translation.addr.0 && symbol.base_name().is_some()
        };
        TranslationFunction {
            function,
            is_entry: function.is_some() && symbol.is_some_and(begins),
            instructions: translation.instructions(),
        }
    }
}

impl<'a> FunctionMeter<'a> {
    pub(crate) fn new(symbols: &'a KernelSymbols, machines: Machines) -> FunctionMeter<'a> {
        FunctionMeter {
            machines,
            symbols,
            numbers: HashMap::new(),
            names: Vec::new(),
            parts: Vec::new(),
            runs: Vec::new(),
            left: Vec::new(),
            misses: Vec::new(),
        }
    }

    pub(crate) fn totals(&self) -> BTreeMap<String, FunctionTotals> {
        let mut totals = vec![FunctionTotals::default(); self.names.len()];
        for (translation, part) in self.parts.iter().enumerate() {
            let runs = self.runs[translation];
            let Some(function) = part.function else { continue };
            let total = &mut totals[function as usize];
            total.instructions += runs * u64::from(part.instructions) + self.left[translation];
            total.l1i_misses += self.misses[translation];
            total.calls += if part.is_entry { runs } else { 0 };
        }
        let ran = self.names.iter().zip(totals).filter(|(_, total)| total.instructions > 0);
        ran.map(|(name, total)| ((*name).to_owned(), total)).collect()
    }
}

impl FunctionMeter<'_> {
    /// Runs a translation block on the machines, and adds its own misses.
    fn meter(&mut self, translation: u32, run: impl FnOnce(&mut Machines)) {
        let before = self.machines.misses().l1i;
        run(&mut self.machines);
        self.misses[translation as usize] += self.machines.misses().l1i - before;
    }
}

impl Meter for FunctionMeter<'_> {
    fn wish(&self) -> Option<DataWish> {
        Some(self.machines.wish())
    }

    fn machines(&mut self) -> Option<&mut Machines> {
        Some(&mut self.machines)
    }

    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()> {
        let symbol = self.symbols.containing(LinkAddr(translation.addr.0));
        let name = symbol.map_or(NAMELESS, function_name);
        let next = self.names.len() as u32;
        let function = translation.is_kernel().then(|| *self.numbers.entry(name).or_insert(next));
        if function == Some(next) {
            self.names.push(name);
        }
        self.parts.push(TranslationFunction::new(translation, function, symbol));
        self.runs.push(0);
        self.left.push(0);
        self.misses.push(0);
        self.machines.define(translation, code)
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.runs[translation as usize] += 1;
        self.meter(translation, |machines| machines.executed(translation));
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.left[translation as usize] += u64::from(instructions);
        self.meter(translation, |machines| machines.left(translation, instructions));
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        self.machines.take()
    }
}
