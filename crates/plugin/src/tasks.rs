//! Follows the running task. At a task switch and when a task is renamed, it reads the task and its
//! name.
//!
//! Input: the registers at a switch or a renaming. Output: the task's address, pid and name.

use crate::arguments::TaskPlaces;
use crate::cpus::CpuBase;
use crate::qemu::{Register, read_memory};
use crate::warn;
use std::collections::HashMap;
use trace::{RunAddr, TaskPointer};

/// A task: pointer, pid and comm.
pub(crate) type TaskIdentity = (TaskPointer, Option<u32>, [u8; 16]);

/// A function of the kernel whose function shows a change of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskFunction {
    /// `__switch_to(prev, next)`
    SwitchTo,
    /// `__set_task_comm(task, name, exec)`
    SetComm,
    /// `enqueue_task_fair(rq, task, flags)` and similar functions
    Wake,
}

/// A change of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskChange {
    /// This task runs from now on, with this name.
    Switched(TaskIdentity),
    /// This task is able to run.
    Woken(TaskIdentity),
}

impl TaskFunction {
    /// The function for `function as usize`, the value that a callback receives.
    pub(crate) fn from_data(data: usize) -> TaskFunction {
        match data {
            data if data == TaskFunction::SetComm as usize => TaskFunction::SetComm,
            data if data == TaskFunction::Wake as usize => TaskFunction::Wake,
            _ => TaskFunction::SwitchTo,
        }
    }
}

impl TaskPlaces {
    /// The function that begins at this instruction, if a task can change there.
    pub(crate) fn function_at(&self, addr: RunAddr) -> Option<TaskFunction> {
        if addr.0 == self.switch_to {
            return Some(TaskFunction::SwitchTo);
        }
        if Some(addr.0) == self.set_comm {
            return Some(TaskFunction::SetComm);
        }
        (addr.0 != 0 && self.wakes.contains(&addr.0)).then_some(TaskFunction::Wake)
    }
}

/// Follows the guest's task switches, before a recording and during it.
pub(crate) struct TaskWatch {
    pub places: TaskPlaces,
    /// The registers of a function's first two arguments (System V ABI, section 3.2.3). They are
    /// looked up at the first use: there are no registers before the vCPU runs.
    arguments: Option<[Register; 2]>,
    /// The running task of each CPU that has switched, as it was then. One CPU has no base.
    current: HashMap<Option<CpuBase>, TaskIdentity>,
    warned: bool,
}

impl TaskWatch {
    pub(crate) fn new(places: TaskPlaces) -> TaskWatch {
        TaskWatch { places, arguments: None, current: HashMap::new(), warned: false }
    }

    /// Reads the change at the entry of a function, on the CPU with this base: `None` when there is
    /// only one. Must be called in a callback that reads registers.
    pub(crate) fn at(
        &mut self,
        function: TaskFunction,
        cpu: Option<CpuBase>,
    ) -> Option<TaskChange> {
        let [first, second] = self.arguments()?;
        match function {
            TaskFunction::SwitchTo => {
                let task = self.identify(TaskPointer(second));
                match task {
                    Some(task) => self.current.insert(cpu, task),
                    None => self.current.remove(&cpu),
                };
                task.map(TaskChange::Switched)
            }
            TaskFunction::Wake => self.identify(TaskPointer(second)).map(TaskChange::Woken),
            TaskFunction::SetComm => {
                let (pointer, pid, _) =
                    self.current(cpu).filter(|(pointer, ..)| *pointer == TaskPointer(first))?;
                let name = self.readable(read_memory::<15>(second), second)?;
                let task = (pointer, pid, comm(&name));
                self.current.insert(cpu, task);
                Some(TaskChange::Switched(task))
            }
        }
    }

    /// The running task of the CPU with this base. With page-table isolation, user code has no
    /// mapping of the kernel's memory; then this is the task as it was at the switch.
    pub(crate) fn current(&self, cpu: Option<CpuBase>) -> Option<TaskIdentity> {
        let known = *self.current.get(&cpu)?;
        Some(self.read(known.0).unwrap_or(known))
    }

    fn identify(&mut self, pointer: TaskPointer) -> Option<TaskIdentity> {
        let task = self.read(pointer);
        task.map_err(|place| self.warn_once(&format!("memory at {place:#x} cannot be read"))).ok()
    }

    /// Reads a task, or returns the address that cannot be read.
    fn read(&self, pointer: TaskPointer) -> Result<TaskIdentity, u64> {
        let place = pointer.0.wrapping_add(self.places.comm);
        let comm = read_memory(place).ok_or(place)?;
        let pid = match self.places.pid {
            None => None,
            Some(offset) => {
                let place = pointer.0.wrapping_add(offset);
                Some(u32::from_le_bytes(read_memory(place).ok_or(place)?))
            }
        };
        Ok((pointer, pid, comm))
    }

    fn arguments(&mut self) -> Option<[u64; 2]> {
        let find = || Some([Register::find(c"rdi")?, Register::find(c"rsi")?]);
        self.arguments = self.arguments.or_else(find);
        let values =
            self.arguments.and_then(|[first, second]| Some([first.value()?, second.value()?]));
        if values.is_none() {
            self.warn_once("registers rdi and rsi cannot be read");
        }
        values
    }

    fn readable<const N: usize>(&mut self, bytes: Option<[u8; N]>, place: u64) -> Option<[u8; N]> {
        if bytes.is_none() {
            self.warn_once(&format!("memory at {place:#x} cannot be read"));
        }
        bytes
    }

    fn warn_once(&mut self, what: &str) {
        if !self.warned {
            warn(&format!(
                "{what}; tasks will be missing in the recording; check that switch_to=, set_comm=, \
                 comm= and pid= belong to this kernel"
            ));
            self.warned = true;
        }
    }
}

/// A name as the kernel keeps it: cut to its length, and padded with NUL.
fn comm(name: &[u8; 15]) -> [u8; 16] {
    let mut comm = [0; 16];
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    comm[..length].copy_from_slice(&name[..length]);
    comm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_at_the_first_nul() {
        assert_eq!(&comm(b"sh\0garbage here"), b"sh\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(&comm(b"fifteen letters"), b"fifteen letters\0");
    }

    #[test]
    fn task_functions_are_found_by_address() {
        let places = TaskPlaces {
            switch_to: 0x10,
            set_comm: None,
            wakes: [0x30, 0x40, 0, 0, 0, 0, 0, 0],
            comm: 0,
            pid: None,
        };
        assert_eq!(places.function_at(RunAddr(0x10)), Some(TaskFunction::SwitchTo));
        assert_eq!(places.function_at(RunAddr(0x20)), None);
        assert_eq!(places.function_at(RunAddr(0)), None);
        assert_eq!(
            places
                .function_at(RunAddr(0x40))
                .map(|function| TaskFunction::from_data(function as usize)),
            Some(TaskFunction::Wake)
        );
        let places = TaskPlaces { set_comm: Some(0x20), ..places };
        assert_eq!(places.function_at(RunAddr(0x20)), Some(TaskFunction::SetComm));
    }
}
