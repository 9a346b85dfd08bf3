//! Which CPU executes.
//!
//! With several vCPUs on one thread, QEMU gives callbacks the number of the vCPU that made a
//! translation, not of the one that executes it (docs/explanation/recording.md). So the CPU is
//! known by its registers: the kernel keeps the base of a CPU's own variables in `gs_base`, and in
//! user mode in `k_gs_base`. Input: these registers, and the kernel's table `__per_cpu_offset` of
//! the bases. Output: the number of the CPU, as the kernel counts.

use crate::qemu::{ByteArray, Register, read_memory};
use trace::{CpuCount, CpuId, RunAddr};

/// The base address of a CPU's own variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CpuBase(pub u64);

/// Finds out which CPU executes, while recording.
pub(crate) struct CpuWatch {
    /// The base of each CPU, by number.
    bases: Vec<CpuBase>,
    registers: BaseRegisters,
    /// The CPU that executed last.
    current: Option<CpuId>,
    /// For each CPU, whether it has executed.
    seen: Vec<bool>,
}

/// What an execution shows about its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecutingCpu {
    /// The CPU that executed before.
    Same,
    /// Another CPU, which has executed before.
    Other(CpuId),
    /// Another CPU, for the first time.
    First(CpuId),
    /// Neither register holds a CPU's base.
    Unknown,
}

impl CpuWatch {
    /// Reads the bases of the CPUs. Must be called in a callback. `None`: the table at
    /// `per_cpu_offset` cannot be read, or two CPUs have the same base.
    pub(crate) fn new(cpus: CpuCount, per_cpu_offset: u64) -> Option<CpuWatch> {
        let bases: Vec<CpuBase> = cpus
            .cpus()
            .map(|cpu| {
                let place = per_cpu_offset.wrapping_add(8 * u64::from(cpu.0));
                read_memory(place).map(u64::from_le_bytes).map(CpuBase)
            })
            .collect::<Option<_>>()?;
        let alike = bases.iter().enumerate().any(|(at, base)| bases[..at].contains(base));
        let seen = vec![false; bases.len()];
        (!alike).then(|| CpuWatch {
            bases,
            registers: BaseRegisters::default(),
            current: None,
            seen,
        })
    }

    /// The CPU that executes now, in the kernel or not. Must be called in a callback that reads
    /// registers.
    #[inline]
    pub(crate) fn execution(&mut self, in_kernel: bool) -> ExecutingCpu {
        let expected = self.current.map(|cpu| self.bases[usize::from(cpu.0)]);
        let first = self.registers.likely(in_kernel);
        if expected.is_some() && first == expected {
            return ExecutingCpu::Same;
        }
        self.changed(first, in_kernel)
    }

    /// The CPU that runs now, while it makes a translation of code at this address. The translation
    /// may be executed later. Must be called in a callback that reads registers.
    pub(crate) fn now(&mut self, addr: RunAddr) -> Option<CpuId> {
        let first = self.registers.likely(addr.is_kernel());
        self.find(first).or_else(|| {
            let second = self.registers.likely(!addr.is_kernel());
            self.find(second)
        })
    }

    #[cold]
    fn changed(&mut self, first: Option<CpuBase>, in_kernel: bool) -> ExecutingCpu {
        // On its way into the kernel and out of it, the kernel runs on the user's base.
        let found = self.find(first).or_else(|| {
            let second = self.registers.likely(!in_kernel);
            self.find(second)
        });
        let Some(cpu) = found else { return ExecutingCpu::Unknown };
        if self.current.replace(cpu) == Some(cpu) {
            return ExecutingCpu::Same;
        }
        match std::mem::replace(&mut self.seen[usize::from(cpu.0)], true) {
            true => ExecutingCpu::Other(cpu),
            false => ExecutingCpu::First(cpu),
        }
    }

    fn find(&self, base: Option<CpuBase>) -> Option<CpuId> {
        let at = self.bases.iter().position(|&known| Some(known) == base)?;
        u8::try_from(at).ok().map(CpuId)
    }

    /// The base of the CPU that executes.
    pub(crate) fn base(&self) -> Option<CpuBase> {
        self.current.map(|cpu| self.bases[usize::from(cpu.0)])
    }
}

/// The registers with the base of the executing CPU. They are looked up at the first use: there are
/// no registers before a vCPU runs.
#[derive(Default)]
pub(crate) struct BaseRegisters {
    found: Option<[Register; 2]>,
    buffer: ByteArray,
}

impl BaseRegisters {
    /// The value of `gs_base` for code of the kernel, or of `k_gs_base` for that of users.
    #[inline]
    pub(crate) fn likely(&mut self, in_kernel: bool) -> Option<CpuBase> {
        if self.found.is_none() {
            self.found = Register::find(c"gs_base")
                .and_then(|active| Some([active, Register::find(c"k_gs_base")?]));
        }
        let register = self.found?[usize::from(!in_kernel)];
        register.value_by(&mut self.buffer).map(CpuBase)
    }
}
