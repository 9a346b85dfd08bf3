//! How soon a popular function is called again (Torrellas 1998, section 3.2.3, figure 7).
//!
//! Takes executions; gives, for selected functions, how many words (four bytes) of kernel code run
//! from one call to the next within one stay in the kernel. Each stay is counted separately.

use crate::ledger::ServiceMachineCounts;
use crate::meter::Meter;
use crate::symbols::KernelSymbols;
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::per_cpu::PerCpu;
use serde::Serialize;
use std::collections::HashMap;
use trace::{CpuId, Translation};

/// The upper ends of the figure's columns, in words.
pub(super) const WORDS: [u64; 3] = [100, 1000, 10000];

/// How often the next call came within each number of words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reuses {
    /// Below each of [`WORDS`], but not below the previous one.
    pub within: [u64; 3],
    pub later: u64,
    /// The function was not called again in this stay.
    pub last: u64,
}

impl Reuses {
    pub(crate) fn calls(&self) -> u64 {
        self.within.iter().sum::<u64>() + self.later + self.last
    }
}

pub(super) struct ReuseMeter {
    /// First address of each function → its number.
    functions: HashMap<u64, usize>,
    /// By translation block: its bytes, and the function that begins with it. `None` for user code.
    of: Vec<Option<(u64, Option<usize>)>>,
    lengths: Vec<Box<[u8]>>,
    stays: PerCpu<KernelStay>,
    reuses: Vec<Reuses>,
}

/// The present stay of a CPU in the kernel.
#[derive(Clone)]
struct KernelStay {
    /// Bytes of kernel code that the CPU has executed so far.
    bytes: u64,
    /// The value of `bytes` at each function's last call in this stay.
    called: Vec<Option<u64>>,
}

impl KernelStay {
    fn new(functions: usize) -> KernelStay {
        KernelStay { bytes: 0, called: vec![None; functions] }
    }

    /// The stay ends.
    fn leave(&mut self, reuses: &mut [Reuses]) {
        for (called, reuses) in self.called.iter_mut().zip(reuses) {
            reuses.last += u64::from(called.take().is_some());
        }
    }
}

impl ReuseMeter {
    /// A meter of the functions with these names.
    pub(super) fn new(symbols: &KernelSymbols, names: &[String]) -> ReuseMeter {
        let number = |name: &str| names.iter().position(|wanted| wanted == name);
        let functions =
            symbols.iter().filter_map(|symbol| Some((symbol.addr.0, number(symbol.base_name()?)?)));
        ReuseMeter {
            functions: functions.collect(),
            of: Vec::new(),
            lengths: Vec::new(),
            stays: PerCpu::new(KernelStay::new(names.len())),
            reuses: vec![Reuses::default(); names.len()],
        }
    }

    /// The reuses of each function, in the order of the names.
    pub(super) fn finish(mut self) -> Vec<Reuses> {
        self.stays.values_mut().for_each(|stay| stay.leave(&mut self.reuses));
        self.reuses
    }

    fn run(&mut self, translation: u32, bytes: Option<u64>) {
        let stay = &mut self.stays.current;
        let Some((whole, function)) = self.of[translation as usize] else {
            return stay.leave(&mut self.reuses);
        };
        if let Some(function) = function
            && let Some(called) = stay.called[function].replace(stay.bytes)
        {
            let words = (stay.bytes - called) / 4;
            let reuses = &mut self.reuses[function];
            match WORDS.iter().position(|&limit| words < limit) {
                Some(column) => reuses.within[column] += 1,
                None => reuses.later += 1,
            }
        }
        stay.bytes += bytes.unwrap_or(whole);
    }
}

impl Meter for ReuseMeter {
    fn define(&mut self, translation: &Translation, _: &TranslatedCode) -> Result<()> {
        let function = self.functions.get(&translation.addr.0).copied();
        self.of.push(translation.is_kernel().then_some((translation.code.len() as u64, function)));
        self.lengths.push(translation.lengths.clone());
        Ok(())
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.run(translation, None);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        let reached = self.lengths[translation as usize].iter().take(instructions as usize);
        self.run(translation, Some(reached.map(|&length| u64::from(length)).sum()));
    }

    fn turned_to(&mut self, cpu: CpuId, _task: usize) {
        let functions = self.reuses.len();
        self.stays.turn_to(cpu, || KernelStay::new(functions));
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::{RunAddr, TranslationId};

    #[test]
    fn distances_of_calls_are_in_words_within_a_stay() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "ffffffff81000000 T f\nffffffff81001000 T g\n").unwrap();
        let symbols = KernelSymbols::read(file.path()).unwrap();
        let mut reuse = ReuseMeter::new(&symbols, &["f".to_owned()]);
        for (id, addr, bytes) in
            [(0, 0xffff_ffff_8100_0000_u64, 4), (1, 0xffff_ffff_8100_1000, 200), (2, 0x1000, 1)]
        {
            let translation = Translation {
                id: TranslationId(id),
                addr: RunAddr(addr),
                lengths: vec![4; bytes / 4 + 1].into(),
                code: vec![0x90; bytes].into(),
            };
            let code = TranslatedCode::new(&translation).unwrap();
            reuse.define(&translation, &code).unwrap();
        }
        let g = |reuse: &mut ReuseMeter, times: usize| (0..times).for_each(|_| reuse.executed(1));
        reuse.executed(0);
        g(&mut reuse, 1); // 51 words
        reuse.executed(0);
        g(&mut reuse, 2); // 101 words
        reuse.executed(0);
        reuse.executed(2);
        g(&mut reuse, 1);
        reuse.executed(0);
        g(&mut reuse, 200); // 10001 words
        reuse.left(0, 1);
        let expected = Reuses { within: [1, 1, 0], later: 1, last: 2 };
        assert_eq!(reuse.finish(), [expected]);
    }
}
