//! The totals of each kernel function: calls, instructions, misses.
//!
//! Takes executions; gives totals by name. Functions with the same name share a row, and so does
//! all code without a symbol (modules).

use crate::caches::Machines;
use crate::core_time::CoreTime;
use crate::ledger::{Account, ServiceMachineCounts};
use crate::meter::Meter;
use crate::symbols::{CodeSymbol, KernelSymbols};
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::DataWish;
use execution::sampling::groups::SampledGroups;
use execution::walk::{Piece, PieceData};
use image::address::LinkAddr;
use sim::MachineModel;
use std::collections::{BTreeMap, HashMap};
use trace::{CpuId, Translation};

/// The name of code without a symbol.
pub const NAMELESS: &str = "(code without a symbol)";

/// The totals of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct FunctionTotals {
    /// How often its first instruction was executed.
    pub calls: u64,
    /// Its own instructions.
    pub instructions: u64,
    /// L1I misses on the first machine; 0 without a machine.
    pub l1i_misses: u64,
    /// The time on the out-of-order core of the first machine; `None` when it describes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreTime>,
}

/// The name without what compilers append. Parts of a function have the function's name.
pub fn function_name(symbol: &CodeSymbol) -> &str {
    symbol.name.split('.').next().unwrap_or(&symbol.name)
}

/// Counts executions of translation blocks, and their misses on the machines.
pub(crate) struct FunctionMeter<'a, M> {
    /// Simulates the machines.
    inner: M,
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

impl<'a, M: Meter> FunctionMeter<'a, M> {
    pub(crate) fn new(symbols: &'a KernelSymbols, inner: M) -> FunctionMeter<'a, M> {
        FunctionMeter {
            inner,
            symbols,
            numbers: HashMap::new(),
            names: Vec::new(),
            parts: Vec::new(),
            runs: Vec::new(),
            left: Vec::new(),
            misses: Vec::new(),
        }
    }

    /// `machine`: the first machine.
    pub(crate) fn totals(
        &self,
        machine: Option<&MachineModel>,
    ) -> BTreeMap<String, FunctionTotals> {
        let mut totals = vec![FunctionTotals::default(); self.names.len()];
        for (translation, part) in self.parts.iter().enumerate() {
            let runs = self.runs[translation];
            let Some(function) = part.function else { continue };
            let total = &mut totals[function as usize];
            total.instructions += runs * u64::from(part.instructions) + self.left[translation];
            total.l1i_misses += self.misses[translation];
            total.calls += if part.is_entry { runs } else { 0 };
        }
        let instructions: Vec<u64> = totals.iter().map(|total| total.instructions).collect();
        let slots = self.inner.function_slots(&instructions).unwrap_or_default();
        for (total, slots) in totals.iter_mut().zip(&slots) {
            total.core = machine.and_then(|machine| CoreTime::of_function(machine, slots));
        }
        let ran = self.names.iter().zip(totals).filter(|(_, total)| total.instructions > 0);
        ran.map(|(name, total)| ((*name).to_owned(), total)).collect()
    }
}

impl<M: Meter> FunctionMeter<'_, M> {
    /// Runs a translation block on the machines, and adds its own misses.
    fn meter(&mut self, translation: u32, run: impl FnOnce(&mut M)) {
        let before = self.misses();
        run(&mut self.inner);
        self.misses[translation as usize] += self.misses() - before;
    }

    /// The L1I misses of the first machine so far.
    fn misses(&mut self) -> u64 {
        self.inner.machines().map_or(0, |machines| machines.misses().l1i)
    }
}

impl<M: Meter> Meter for FunctionMeter<'_, M> {
    const NEEDS_CONTROL: bool = M::NEEDS_CONTROL;

    fn wish(&self) -> Option<DataWish> {
        self.inner.wish()
    }

    fn machines(&mut self) -> Option<&mut Machines> {
        self.inner.machines()
    }

    fn piece(&mut self, piece: &Piece<'_>, data: Option<&PieceData<'_>>) -> Result<()> {
        self.inner.piece(piece, data)
    }

    fn failure(&mut self) -> Result<()> {
        self.inner.failure()
    }

    #[inline]
    fn comes(&mut self, translation: u32, reached: Option<u32>) {
        self.inner.comes(translation, reached);
    }

    fn turned_to(&mut self, cpu: CpuId, task: usize) {
        self.inner.turned_to(cpu, task);
    }

    fn finish(&mut self) {
        self.inner.finish();
    }

    fn estimate(&mut self, accounts: &mut [Account]) -> Vec<Option<SampledGroups>> {
        self.inner.estimate(accounts)
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
        self.inner.define(translation, code)?;
        self.inner.belongs_to(function);
        Ok(())
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.runs[translation as usize] += 1;
        self.meter(translation, |inner| inner.executed(translation));
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.left[translation as usize] += u64::from(instructions);
        self.meter(translation, |inner| inner.left(translation, instructions));
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        self.inner.take()
    }
}
