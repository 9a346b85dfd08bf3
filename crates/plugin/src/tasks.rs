//! Who is running: reads, at a task switch, which task comes next and what it is called.

use crate::arguments::TaskPlaces;
use crate::qemu::{Register, read_memory};
use crate::say;
use trace::TaskPointer;

/// Follows the guest's task switches, before a recording begins and while it lasts.
pub struct TaskWatch {
    pub places: TaskPlaces,
    /// Where `__switch_to` finds the next task: its second argument (System V ABI, section 3.2.3).
    next: Option<Register>,
    /// The task that runs now, once a switch was seen.
    current: Option<TaskPointer>,
    complained: bool,
}

impl TaskWatch {
    pub fn new(places: TaskPlaces) -> TaskWatch {
        TaskWatch {
            places,
            next: None,
            current: None,
            complained: false,
        }
    }

    /// At the entry of `__switch_to`, in a callback that reads registers: notes the task that is switched to.
    pub fn switch(&mut self) {
        // Registers cannot be looked up before the vCPU runs.
        self.next = self.next.or_else(|| Register::find(c"rsi"));
        self.current = self.next.and_then(Register::value).map(TaskPointer);
        if self.current.is_none() {
            self.complain("register rsi cannot be read at a task switch");
        }
    }

    /// The task that runs now: pointer, pid and comm.
    pub fn current(&mut self) -> Option<(TaskPointer, Option<u32>, [u8; 16])> {
        let pointer = self.current?;
        let comm = read_memory(pointer.0.wrapping_add(self.places.comm));
        let pid = self
            .places
            .pid
            .map(|offset| read_memory(pointer.0.wrapping_add(offset)).map(u32::from_le_bytes));
        match (comm, pid) {
            (Some(comm), None) => Some((pointer, None, comm)),
            (Some(comm), Some(Some(pid))) => Some((pointer, Some(pid), comm)),
            _ => {
                self.complain(&format!("the task_struct at {:#x} cannot be read", pointer.0));
                None
            }
        }
    }

    fn complain(&mut self, what: &str) {
        if !self.complained {
            say(&format!("{what}; is switch_to= right? Tasks are missing in the recording"));
            self.complained = true;
        }
    }
}
