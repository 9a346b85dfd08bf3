//! A value for each CPU of a recording.
//!
//! Input: the CPUs in the order in which they execute. Output: the value of the CPU that executes.
//! Only this module parks the values of the other CPUs.

use trace::CpuId;

/// The values of all CPUs that have executed, and of those with lower numbers. CPU 0 executes
/// first.
#[derive(Clone, Debug, Default)]
pub struct PerCpu<T> {
    /// The value of the CPU that executes. It lies here and not among the others, so that a loop
    /// over executions finds it without an index.
    pub current: T,
    /// By CPU. The entry of the CPU that executes is unused.
    parked: Vec<T>,
    executing: usize,
}

impl<T> PerCpu<T> {
    /// `first`: the value of CPU 0.
    pub fn new(first: T) -> PerCpu<T> {
        PerCpu { current: first, parked: Vec::new(), executing: 0 }
    }

    /// `cpu` executes from now on. CPUs that have no value get a `new` one.
    pub fn turn_to(&mut self, cpu: CpuId, new: impl FnMut() -> T) {
        let next = usize::from(cpu.0);
        if next == self.executing {
            return;
        }
        let known = self.parked.len().max(next.max(self.executing) + 1);
        self.parked.resize_with(known, new);
        std::mem::swap(&mut self.current, &mut self.parked[self.executing]);
        std::mem::swap(&mut self.current, &mut self.parked[next]);
        self.executing = next;
    }

    /// The CPU that executes.
    pub fn cpu(&self) -> CpuId {
        CpuId(self.executing as u8)
    }

    /// The CPUs that have a value, ascending.
    pub fn cpus(&self) -> impl Iterator<Item = CpuId> + use<T> {
        (0..self.parked.len().max(1)).map(|cpu| CpuId(cpu as u8))
    }

    /// The values by CPU.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.cpus().map(|cpu| match cpu == self.cpu() {
            true => &self.current,
            false => &self.parked[usize::from(cpu.0)],
        })
    }

    /// The values of the CPUs that do not execute.
    pub fn others(&self) -> impl Iterator<Item = &T> {
        let others = self.parked.iter().enumerate();
        others.filter(|(cpu, _)| *cpu != self.executing).map(|(_, value)| value)
    }

    /// The values, to change them: that of the CPU that executes first, then the others by CPU.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let PerCpu { current, parked, executing } = self;
        let others = parked.iter_mut().enumerate().filter(|(cpu, _)| *cpu != *executing);
        std::iter::once(current).chain(others.map(|(_, value)| value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_keeps_its_value() {
        let mut values = PerCpu::new(0);
        values.current += 1;
        values.turn_to(CpuId(2), || 10);
        values.current += 1;
        values.turn_to(CpuId(0), || 10);
        values.current += 1;
        assert_eq!(values.values().copied().collect::<Vec<_>>(), [2, 10, 11]);
        assert_eq!(values.others().copied().collect::<Vec<_>>(), [10, 11]);
        values.turn_to(CpuId(1), || 10);
        assert_eq!(values.cpu(), CpuId(1));
        assert_eq!(values.values_mut().map(|value| *value).collect::<Vec<_>>(), [10, 2, 11]);
    }
}
