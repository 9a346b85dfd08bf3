//! What each function of the kernel came to: calls, instructions, misses.
//!
//! Takes executions; gives totals by name, functions of one name together. Code without a symbol
//! (modules) is together, too.

use crate::services::ledger::MachineCounts;
use crate::services::machines::Machines;
use crate::services::meter::Meter;
use crate::services::symbols::{Symbol, Symbols};
use anyhow::Result;
use image::address::LinkAddr;
use std::collections::{BTreeMap, HashMap};
use trace::Translation;

/// What code without a symbol is called.
pub const NAMELESS: &str = "(code without a symbol)";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FunctionTotals {
    /// How often its first instruction was executed.
    pub calls: u64,
    pub instructions: u64,
    /// Misses of the first machine's L1I; 0 without a machine.
    pub l1i_misses: u64,
}

/// The name without what compilers append; parts of a function have its name.
pub fn function_name(symbol: &Symbol) -> &str {
    symbol.name.split('.').next().unwrap_or(&symbol.name)
}

/// Counts executions of translations, and what the machines make of them.
pub struct Functions<'a> {
    machines: Machines,
    symbols: &'a Symbols,
    numbers: HashMap<&'a str, u32>,
    names: Vec<&'a str>,
    of: Vec<Part>,
    runs: Vec<u64>,
    /// Instructions of executions that were left.
    left: Vec<u64>,
    misses: Vec<u64>,
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
    pub fn new(symbols: &'a Symbols, machines: Machines) -> Functions<'a> {
        Functions {
            machines,
            symbols,
            numbers: HashMap::new(),
            names: Vec::new(),
            of: Vec::new(),
            runs: Vec::new(),
            left: Vec::new(),
            misses: Vec::new(),
        }
    }

    pub fn totals(&self) -> BTreeMap<String, FunctionTotals> {
        let mut totals = vec![FunctionTotals::default(); self.names.len()];
        for (translation, part) in self.of.iter().enumerate() {
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

impl Functions<'_> {
    /// What the machines do with a translation, told its own misses from others'.
    fn meter(&mut self, translation: u32, run: impl FnOnce(&mut Machines)) {
        let before = self.machines.misses().l1i;
        run(&mut self.machines);
        self.misses[translation as usize] += self.machines.misses().l1i - before;
    }
}

impl Meter for Functions<'_> {
    const TAKES_DATA: bool = Machines::TAKES_DATA;

    fn machines(&mut self) -> Option<&mut Machines> {
        Some(&mut self.machines)
    }

    fn define(&mut self, translation: &Translation) -> Result<()> {
        let symbol = self.symbols.containing(LinkAddr(translation.addr.0));
        let name = symbol.map_or(NAMELESS, function_name);
        let next = self.names.len() as u32;
        let function = translation.is_kernel().then(|| *self.numbers.entry(name).or_insert(next));
        if function == Some(next) {
            self.names.push(name);
        }
        self.of.push(Part {
            function,
            is_entry: symbol.is_some_and(|symbol| {
                symbol.addr.0 == translation.addr.0 && symbol.base_name().is_some()
            }),
            instructions: translation.instructions(),
        });
        self.runs.push(0);
        self.left.push(0);
        self.misses.push(0);
        self.machines.define(translation)
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

    fn take(&mut self) -> &[MachineCounts] {
        self.machines.take()
    }
}
