//! A value for each CPU of a recording.
//!
//! Input: the CPUs in the order in which they execute. Output: the value of the one that does.

use trace::CpuId;

/// The values of all CPUs that have executed, and of those with lower numbers. CPU 0 executes
/// first.
#[derive(Clone, Debug)]
pub struct PerCpu<T> {
    values: Vec<T>,
    executing: usize,
}

impl<T> PerCpu<T> {
    /// `first`: the value of CPU 0.
    pub fn new(first: T) -> PerCpu<T> {
        PerCpu { values: vec![first], executing: 0 }
    }

    /// `cpu` executes from now on. CPUs that have no value get a `new` one.
    pub fn turn_to(&mut self, cpu: CpuId, new: impl FnMut() -> T) {
        self.executing = usize::from(cpu.0);
        let known = self.values.len().max(self.executing + 1);
        self.values.resize_with(known, new);
    }

    /// The value of the CPU that executes.
    #[inline]
    pub fn current(&mut self) -> &mut T {
        &mut self.values[self.executing]
    }

    /// The values by CPU.
    pub fn all(&self) -> &[T] {
        &self.values
    }

    /// The values by CPU, to change them.
    pub fn all_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_keeps_its_value() {
        let mut values = PerCpu::new(0);
        *values.current() += 1;
        values.turn_to(CpuId(2), || 10);
        *values.current() += 1;
        values.turn_to(CpuId(0), || 10);
        *values.current() += 1;
        assert_eq!(values.all(), [2, 10, 11]);
    }
}
