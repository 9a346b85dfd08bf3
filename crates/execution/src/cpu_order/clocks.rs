//! Which CPU makes its next step, in the time of one machine.
//!
//! Input: a window of steps, and for each step, when it is made, the cycles that it takes. Output:
//! the order of the steps, and for how long each CPU waited.
//!
//! Every CPU has a clock, in cycles. The CPU that can begin its next step first makes that step. If
//! several can, the one with the lowest number does. A step begins when the CPU's previous step and
//! all steps of other CPUs on which it depends have ended. So steps begin in the order of time.
//!
//! A CPU without a next step in the window stops all CPUs until more is read, because its step may
//! be the first. There are two exceptions. When the CPU is halted, its step comes behind all others
//! in the window. And while more than the window's limit is unmade, the CPU's next step begins
//! late: what it loses is counted as `held`.

use super::window::{CpuSet, Dependency, MOST_CPUS, OrderReason, Step, Window, bit};
use crate::data::DataAccess;
use serde::{Deserialize, Serialize};
use sim::{Mode, PerMode};
use trace::{CpuCount, CpuId};

/// The cycles in which a CPU does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuWaits {
    /// Until another CPU has stored a value that the CPU loads.
    pub value: f64,
    /// Until another CPU has loaded or stored what the CPU is about to overwrite.
    pub order: f64,
    /// Halted.
    pub idle: f64,
    /// Until the window of the replay had room.
    pub held: f64,
}

impl CpuWaits {
    /// The cycles in which the CPU waits for another one.
    pub fn waiting(&self) -> f64 {
        self.value + self.order
    }

    /// All cycles in which the CPU does nothing.
    pub fn total(&self) -> f64 {
        self.waiting() + self.idle + self.held
    }
}

/// The progress of a CPU.
#[derive(Clone, Debug)]
struct CpuProgress {
    /// When its last step ended.
    clock: f64,
    /// The number of steps made.
    made: u64,
    /// Where the next step is: the stretch, and in it the step, its first access and its first
    /// dependency.
    stretch: u64,
    step: usize,
    access: usize,
    dependency: usize,
    /// When the next step can begin, by what is known.
    begins: f64,
    /// By CPU: the steps that must be made before the next step, and why.
    needs: [Option<(u64, OrderReason)>; MOST_CPUS],
    /// The mode of the next step, when it waits.
    mode: Mode,
    /// For how long the next step waits for values.
    value: f64,
    waits: PerMode<CpuWaits>,
}

const NEW: CpuProgress = CpuProgress {
    clock: 0.0,
    made: 0,
    stretch: 0,
    step: 0,
    access: 0,
    dependency: 0,
    begins: 0.0,
    needs: [None; MOST_CPUS],
    mode: Mode::Kernel,
    value: 0.0,
    waits: PerMode {
        kernel: CpuWaits { value: 0.0, order: 0.0, idle: 0.0, held: 0.0 },
        user: CpuWaits { value: 0.0, order: 0.0, idle: 0.0, held: 0.0 },
    },
};

/// The CPU cannot begin its next step.
const NOT_YET: f64 = f64::INFINITY;
/// No CPU waits.
const NOBODY: u64 = u64::MAX;

/// The clocks of all CPUs on one machine.
#[derive(Clone, Debug)]
pub(crate) struct CpuClocks {
    cpus: Vec<CpuProgress>,
    /// By CPU: when its next step begins, or [`NOT_YET`].
    begins: [f64; MOST_CPUS],
    /// By CPU: the smallest number of its steps that another CPU waits for.
    awaited: [u64; MOST_CPUS],
    /// The CPUs that have no next step in the window.
    without: CpuSet,
    /// When the last step began.
    now: f64,
    /// The bytes of the steps made.
    bytes: u64,
}

impl CpuClocks {
    pub(crate) fn new(cpus: CpuCount) -> CpuClocks {
        CpuClocks {
            cpus: vec![NEW; cpus.get().into()],
            begins: [NOT_YET; MOST_CPUS],
            awaited: [NOBODY; MOST_CPUS],
            without: u8::MAX >> (8 - cpus.get()),
            now: 0.0,
            bytes: 0,
        }
    }

    /// By CPU: when its last step ended, and its waits.
    pub(crate) fn times(&self) -> impl Iterator<Item = (f64, PerMode<CpuWaits>)> {
        self.cpus.iter().map(|cpu| (cpu.clock, cpu.waits))
    }

    /// The number of the first stretch of a CPU that has steps to make.
    pub(crate) fn stretch(&self, cpu: usize) -> Option<u64> {
        Some(self.cpus.get(cpu)?.stretch)
    }

    /// Makes steps as long as the next step is known. `make` takes a step, its accesses, and the
    /// cycles for which the CPU waited for values that it loads; it gives the cycles of the step.
    pub(crate) fn advance(
        &mut self,
        window: &Window,
        mut make: impl FnMut(CpuId, &Step, &[DataAccess], f64) -> f64,
    ) {
        for cpu in 0..self.cpus.len().min(window.cpus()) {
            if self.without & bit(cpu) != 0 {
                self.look(cpu, window);
            }
        }
        while !self.must_read(window)
            && let Some(cpu) = self.first()
            && let Some(cycles) = self.make(cpu, window, &mut make)
        {
            self.made(cpu, cycles);
            self.look(cpu, window);
        }
    }

    #[inline]
    fn must_read(&self, window: &Window) -> bool {
        self.without & !window.halted() != 0
            && !window.ended()
            && window.bytes() - self.bytes <= window.limit()
    }

    #[inline]
    fn first(&self) -> Option<usize> {
        let (mut first, mut begins) = (None, NOT_YET);
        for (cpu, &of_cpu) in self.begins.iter().enumerate() {
            if of_cpu < begins {
                (first, begins) = (Some(cpu), of_cpu);
            }
        }
        first
    }

    /// Makes the CPU's next step. Returns its cycles.
    #[inline]
    fn make(
        &mut self,
        cpu: usize,
        window: &Window,
        make: &mut impl FnMut(CpuId, &Step, &[DataAccess], f64) -> f64,
    ) -> Option<f64> {
        let progress = &mut self.cpus[cpu];
        let stretch = window.stretch(cpu, progress.stretch)?;
        let step = stretch.steps.get(progress.step)?;
        let end = (progress.access + step.accesses as usize).min(stretch.accesses.len());
        let waited = std::mem::take(&mut progress.value);
        let cycles = make(stretch.cpu, step, &stretch.accesses[progress.access..end], waited);
        self.bytes += step.bytes();
        (progress.step, progress.access) = (progress.step + 1, end);
        if progress.step == stretch.steps.len() {
            progress.stretch += 1;
            (progress.step, progress.access, progress.dependency) = (0, 0, 0);
        }
        Some(cycles)
    }

    /// The CPU has made a step.
    #[inline]
    fn made(&mut self, cpu: usize, cycles: f64) {
        self.now = self.begins[cpu];
        let progress = &mut self.cpus[cpu];
        progress.clock = self.now + cycles;
        progress.made += 1;
        if progress.made >= self.awaited[cpu] {
            self.release(cpu);
        }
    }

    /// Looks at the CPU's next step, if there is one.
    #[inline]
    fn look(&mut self, cpu: usize, window: &Window) {
        let progress = &mut self.cpus[cpu];
        progress.begins = progress.clock;
        self.begins[cpu] = NOT_YET;
        let Some(stretch) = window.stretch(cpu, progress.stretch) else {
            self.without |= bit(cpu);
            return;
        };
        self.without &= !bit(cpu);
        let rest = &stretch.dependencies[progress.dependency..];
        let waits = rest.first().is_some_and(|first| first.step as usize == progress.step);
        if !waits && progress.clock >= self.now {
            self.begins[cpu] = progress.clock;
            return;
        }
        progress.mode = stretch.steps[progress.step].mode;
        self.wait(cpu, rest);
    }

    /// The CPU's next step has dependencies, the first ones of `rest`, or begins late.
    #[cold]
    fn wait(&mut self, cpu: usize, rest: &[Dependency]) {
        let at = self.cpus[cpu].step;
        let of_step = rest.iter().take_while(|dependency| dependency.step as usize == at);
        for Dependency { on, reason, number, .. } in of_step {
            self.cpus[cpu].dependency += 1;
            let on = usize::from(on.0);
            let Some(other) = self.cpus.get(on) else { continue };
            if other.made < *number {
                self.cpus[cpu].needs[on] = Some((*number, *reason));
                self.awaited[on] = self.awaited[on].min(*number);
            } else if other.made == *number {
                // All earlier steps of the other CPU had ended when its last step began.
                let ended = other.clock;
                self.cpus[cpu].wait_until(ended, *reason);
            }
        }
        self.begin_if_ready(cpu);
    }

    /// The CPU has made a step that another one waits for.
    #[cold]
    fn release(&mut self, on: usize) {
        let (made, ended) = (self.cpus[on].made, self.cpus[on].clock);
        self.awaited[on] = NOBODY;
        for cpu in 0..self.cpus.len() {
            match self.cpus[cpu].needs[on] {
                Some((number, reason)) if number <= made => {
                    self.cpus[cpu].needs[on] = None;
                    self.cpus[cpu].wait_until(ended, reason);
                    self.begin_if_ready(cpu);
                }
                Some((number, _)) => self.awaited[on] = self.awaited[on].min(number),
                None => {}
            }
        }
    }

    fn begin_if_ready(&mut self, cpu: usize) {
        let progress = &mut self.cpus[cpu];
        if progress.needs != [None; MOST_CPUS] {
            return;
        }
        if progress.begins < self.now {
            progress.waits.get_mut(progress.mode).held += self.now - progress.begins;
            progress.begins = self.now;
        }
        self.begins[cpu] = progress.begins;
    }
}

impl CpuProgress {
    /// Delays the next step to `time` if it would begin earlier.
    fn wait_until(&mut self, time: f64, reason: OrderReason) {
        if time <= self.begins {
            return;
        }
        if reason == OrderReason::Value {
            self.value += time - self.begins;
        }
        let waits = self.waits.get_mut(self.mode);
        *match reason {
            OrderReason::Value => &mut waits.value,
            OrderReason::Order => &mut waits.order,
            OrderReason::Halt => &mut waits.idle,
        } += time - self.begins;
        self.begins = time;
    }
}
