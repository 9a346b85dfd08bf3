//! The names of a recording's tasks.
//!
//! Input: tasks, as they are defined. Output: a number and a name for each task that runs.

use sim::Requester;
use std::collections::{HashMap, HashSet};
use trace::Task;

/// The tasks of a recording, numbered as `execution::data::DataFlow` numbers processes.
#[derive(Default)]
pub(crate) struct TaskNames {
    keys: HashMap<u64, u32>,
    numbers: HashMap<Requester, u32>,
    /// All names, each once; and by process, the number of its last name.
    distinct: Vec<String>,
    named: HashMap<Requester, u32>,
    idle: HashSet<Requester>,
    /// The last name of each task, by number.
    pub names: Vec<String>,
}

impl TaskNames {
    /// Adds tasks, in the order of their ids.
    pub(crate) fn define(&mut self, tasks: &[Task]) {
        for task in tasks {
            let next = self.names.len() as u32;
            let key = task.pid.map_or(task.pointer.0, u64::from);
            let number = *self.keys.entry(key).or_insert(next);
            let name = task.name().into_owned();
            let process = Requester::process(number);
            let known = self.distinct.iter().position(|it| *it == name);
            self.named.insert(process, known.unwrap_or(self.distinct.len()) as u32);
            if known.is_none() {
                self.distinct.push(name.clone());
            }
            match self.names.get_mut(number as usize) {
                Some(known) => *known = name,
                None => self.names.push(name),
            }
            self.numbers.insert(process, number);
            if task.pid == Some(0) {
                self.idle.insert(process);
            }
        }
    }

    /// The number of a task's name; `u32::MAX` when it has none.
    pub(crate) fn number(&self, process: Requester) -> u32 {
        self.numbers.get(&process).copied().unwrap_or(u32::MAX)
    }

    /// The number of the name that the process has now, among all names. It keeps this number when
    /// the process gets another name.
    pub(crate) fn name_of(&self, process: Requester) -> u32 {
        self.named.get(&process).copied().unwrap_or(u32::MAX)
    }

    /// The name with this number among all names.
    pub(crate) fn distinct(&self, number: u32) -> &str {
        self.distinct.get(number as usize).map_or("(unknown)", String::as_str)
    }

    /// Whether this is an idle task. Each CPU has one.
    pub(crate) fn is_idle(&self, process: Requester) -> bool {
        self.idle.contains(&process)
    }

    /// The name with this number.
    pub(crate) fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("(unknown)", String::as_str)
    }
}
