//! The stays of each CPU in the kernel. The policy of a core for the operating system decides about
//! them.
//!
//! A stay begins when a CPU leaves user mode or switches to another task in the kernel. It ends
//! when the CPU enters user mode or switches again. Its service is the outermost one of its task:
//! for example a system call, with the interrupts that came while it ran.
//!
//! Input: a recording. Output: the stays, by CPU, in their order. This module simulates nothing.

use crate::annotations::ServiceKind;
use crate::automaton::Automaton;
use crate::binding::Binding;
use crate::ledger::{Invocation, Ledger, ServiceId, ServiceMachineCounts};
use crate::meter::Meter;
use crate::services_walk as services;
use crate::symbols::KernelSymbols;
use anyhow::Result;
use execution::code::TranslatedCode;
use sim::Mode;
use std::collections::HashMap;
use std::io::Read;
use trace::{CpuId, RecordingReader, Translation};

/// A stay of a CPU in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// The number of executions of the CPU before it.
    pub begin: u64,
    /// The number of executions of the CPU before and in it.
    pub end: u64,
    /// Instructions.
    pub instructions: u64,
    /// The outermost service; `None` when it never became known.
    pub service: Option<ServiceId>,
}

/// The stays of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stays {
    /// By CPU.
    pub cpus: Vec<Vec<Stay>>,
    /// The kind and name of each service, by number.
    pub services: Vec<(ServiceKind, String)>,
}

/// A stay by CPU and number.
#[derive(Clone, Copy)]
struct StayPlace {
    cpu: usize,
    number: usize,
}

#[derive(Clone, Debug, Default)]
struct CpuStays {
    executions: u64,
    /// The last of `stays` has not ended.
    is_open: bool,
    stays: Vec<Stay>,
}

/// The stays in the kernel of a recording.
///
/// # Errors
/// As [`services::attribute`].
pub fn of<R: Read>(
    reader: RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
) -> Result<Stays> {
    let automaton = Automaton::new(binding, symbols, StayMeter::default());
    let (attributed, meter) = services::follow(reader, automaton)?;
    Ok(meter.finish(&attributed.ledger))
}

/// The meter that collects stays.
#[derive(Default)]
struct StayMeter {
    /// The mode of each translation, and its instructions.
    codes: Vec<(Mode, u32)>,
    cpus: Vec<CpuStays>,
    cpu: usize,
    task: usize,
    /// The number of open services, by task.
    open: Vec<usize>,
    /// The stays whose service is not known yet, by task.
    unnamed: HashMap<usize, Vec<StayPlace>>,
}

impl StayMeter {
    /// `ledger`: that of the same walk.
    fn finish(mut self, ledger: &Ledger) -> Stays {
        self.cpus.iter_mut().for_each(CpuStays::end);
        let accounts = ledger.accounts.iter();
        Stays {
            cpus: self.cpus.into_iter().map(|cpu| cpu.stays).collect(),
            services: accounts.map(|account| (account.kind, account.name.clone())).collect(),
        }
    }

    fn ran(&mut self, translation: u32, reached: Option<u32>) {
        let (mode, all) = self.codes[translation as usize];
        if self.cpus.len() <= self.cpu {
            self.cpus.resize_with(self.cpu + 1, CpuStays::default);
        }
        let cpu = &mut self.cpus[self.cpu];
        match mode {
            Mode::User => cpu.end(),
            Mode::Kernel if !cpu.is_open => {
                let place = StayPlace { cpu: self.cpu, number: cpu.stays.len() };
                cpu.begin();
                self.unnamed.entry(self.task).or_default().push(place);
            }
            Mode::Kernel => {}
        }
        cpu.executions += 1;
        if let (Mode::Kernel, Some(stay)) = (mode, cpu.stays.last_mut()) {
            stay.instructions += u64::from(reached.unwrap_or(all));
        }
    }

    fn end_stay(&mut self) {
        if let Some(cpu) = self.cpus.get_mut(self.cpu) {
            cpu.end();
        }
    }

    fn open(&mut self, task: usize) -> &mut usize {
        if self.open.len() <= task {
            self.open.resize(task + 1, 0);
        }
        &mut self.open[task]
    }
}

impl CpuStays {
    fn begin(&mut self) {
        let at = self.executions;
        self.stays.push(Stay { begin: at, end: at, instructions: 0, service: None });
        self.is_open = true;
    }

    fn end(&mut self) {
        if let (true, Some(stay)) = (std::mem::take(&mut self.is_open), self.stays.last_mut()) {
            stay.end = self.executions;
        }
    }
}

impl Meter for StayMeter {
    fn define(&mut self, _: &Translation, code: &TranslatedCode) -> Result<()> {
        self.codes.push((code.mode(), code.lengths.len() as u32));
        Ok(())
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.ran(translation, None);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.ran(translation, Some(instructions));
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        &[]
    }

    fn switched(&mut self, task: usize) {
        self.end_stay();
        self.task = task;
    }

    fn turned_to(&mut self, cpu: CpuId, task: usize) {
        self.cpu = cpu.0.into();
        self.task = task;
    }

    fn opened(&mut self, _: usize) {
        let task = self.task;
        *self.open(task) += 1;
    }

    fn settled(&mut self, task: usize, service: ServiceId, _: &Invocation, _: &Ledger) {
        let open = self.open(task);
        *open = open.saturating_sub(1);
        if *open > 0 {
            return;
        }
        for StayPlace { cpu, number } in self.unnamed.remove(&task).unwrap_or_default() {
            self.cpus[cpu].stays[number].service = Some(service);
        }
    }
}
