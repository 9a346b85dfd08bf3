//! Who is running: reads, at a task switch or when a task is renamed, which task it is and what it
//! is called.

use crate::arguments::TaskPlaces;
use crate::qemu::{Register, read_memory};
use crate::say;
use trace::{RunAddr, TaskPointer};

/// A task: pointer, pid, comm.
pub type Who = (TaskPointer, Option<u32>, [u8; 16]);

/// A function of the kernel at whose entry something is learned about tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// `__switch_to(prev, next)`
    SwitchTo,
    /// `__set_task_comm(task, name, exec)`
    SetComm,
    /// `enqueue_task_fair(rq, task, flags)` and its like
    Wake,
}

/// What was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// This task runs from now on, under this name.
    Runs(Who),
    /// This task is able to run.
    Woken(Who),
}

impl Entry {
    /// From `entry as usize`, which is what a callback can be given.
    pub fn from_data(data: usize) -> Entry {
        match data {
            data if data == Entry::SetComm as usize => Entry::SetComm,
            data if data == Entry::Wake as usize => Entry::Wake,
            _ => Entry::SwitchTo,
        }
    }
}

impl TaskPlaces {
    /// What is learned at this instruction.
    pub fn entry(&self, addr: RunAddr) -> Option<Entry> {
        if addr.0 == self.switch_to {
            return Some(Entry::SwitchTo);
        }
        if Some(addr.0) == self.set_comm {
            return Some(Entry::SetComm);
        }
        (addr.0 != 0 && self.wakes.contains(&addr.0)).then_some(Entry::Wake)
    }
}

/// Follows the guest's task switches, before a recording begins and while it lasts.
pub struct TaskWatch {
    pub places: TaskPlaces,
    /// Where a function finds its first two arguments (System V ABI, section 3.2.3). Looked up when
    /// first needed: there are no registers before the vCPU runs.
    arguments: Option<[Register; 2]>,
    /// The task that runs now, once a switch was seen.
    current: Option<TaskPointer>,
    complained: bool,
}

impl TaskWatch {
    pub fn new(places: TaskPlaces) -> TaskWatch {
        TaskWatch { places, arguments: None, current: None, complained: false }
    }

    /// At the entry of a function, in a callback that reads registers: gives what is news.
    pub fn at(&mut self, entry: Entry) -> Option<News> {
        let [first, second] = self.arguments()?;
        match entry {
            Entry::SwitchTo => {
                self.current = Some(TaskPointer(second));
                self.current().map(News::Runs)
            }
            Entry::Wake => self.who(TaskPointer(second)).map(News::Woken),
            Entry::SetComm if self.current == Some(TaskPointer(first)) => {
                let name = self.readable(read_memory::<15>(second), second)?;
                let (pointer, pid, _) = self.current()?;
                Some(News::Runs((pointer, pid, comm(&name))))
            }
            Entry::SetComm => None,
        }
    }

    /// The task that runs now.
    pub fn current(&mut self) -> Option<Who> {
        self.who(self.current?)
    }

    fn who(&mut self, pointer: TaskPointer) -> Option<Who> {
        let place = pointer.0.wrapping_add(self.places.comm);
        let comm = self.readable(read_memory(place), place)?;
        let pid = match self.places.pid {
            None => None,
            Some(offset) => {
                let place = pointer.0.wrapping_add(offset);
                Some(u32::from_le_bytes(self.readable(read_memory(place), place)?))
            }
        };
        Some((pointer, pid, comm))
    }

    fn arguments(&mut self) -> Option<[u64; 2]> {
        let find = || Some([Register::find(c"rdi")?, Register::find(c"rsi")?]);
        self.arguments = self.arguments.or_else(find);
        let values =
            self.arguments.and_then(|[first, second]| Some([first.value()?, second.value()?]));
        if values.is_none() {
            self.complain("registers rdi and rsi cannot be read");
        }
        values
    }

    fn readable<const N: usize>(&mut self, bytes: Option<[u8; N]>, place: u64) -> Option<[u8; N]> {
        if bytes.is_none() {
            self.complain(&format!("memory at {place:#x} cannot be read"));
        }
        bytes
    }

    fn complain(&mut self, what: &str) {
        if !self.complained {
            say(&format!(
                "{what}; are switch_to=, set_comm=, comm= and pid= this kernel's? Tasks are missing in the recording"
            ));
            self.complained = true;
        }
    }
}

/// A name as the kernel keeps it: cut, and filled up with NUL.
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
    fn entries_are_known_by_address() {
        let places = TaskPlaces {
            switch_to: 0x10,
            set_comm: None,
            wakes: [0x30, 0x40, 0, 0, 0, 0, 0, 0],
            comm: 0,
            pid: None,
        };
        assert_eq!(places.entry(RunAddr(0x10)), Some(Entry::SwitchTo));
        assert_eq!(places.entry(RunAddr(0x20)), None);
        assert_eq!(places.entry(RunAddr(0)), None);
        assert_eq!(
            places.entry(RunAddr(0x40)).map(|entry| Entry::from_data(entry as usize)),
            Some(Entry::Wake)
        );
        let places = TaskPlaces { set_comm: Some(0x20), ..places };
        assert_eq!(places.entry(RunAddr(0x20)), Some(Entry::SetComm));
    }
}
