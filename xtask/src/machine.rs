//! The machines on which guests are tried: how many processors, of which model, and what the kernel
//! is told.

use guest::Boot;
use std::time::Duration;

/// Under emulation, with other work beside it.
pub const TIME_LIMIT: Duration = Duration::from_secs(1800);

pub struct Machine {
    pub name: &'static str,
    pub cpus: u32,
    cpu_model: &'static str,
    command_line: &'static [&'static str],
}

impl Machine {
    pub const fn new(
        name: &'static str,
        cpus: u32,
        cpu_model: &'static str,
        command_line: &'static [&'static str],
    ) -> Machine {
        Machine { name, cpus, cpu_model, command_line }
    }

    /// With KASLR; `words` stand before its own on the command line.
    pub fn describe(&self, boot: &mut Boot, words: &[&str]) {
        boot.kaslr = true;
        boot.cpus = self.cpus;
        boot.cpu_model = self.cpu_model.into();
        boot.time_limit = TIME_LIMIT;
        // A busy machine may leave a guest no time for the timer's interrupts when the kernel tries
        // whether they come.
        let words = ["no_timer_check"].iter().chain(words).chain(self.command_line);
        boot.command_line = words.map(|&word| word.to_owned()).collect();
    }
}

/// What a kernel says of safe returns on a processor whose microcode, which QEMU does not have,
/// would do more.
const NO_MICROCODE: &str = "Speculative Return Stack Overflow: WARNING: See";

/// A line of the kernel's log that no good kernel writes.
pub fn is_complaint(line: &str) -> bool {
    let words = [
        "WARNING:",
        "BUG:",
        "Oops",
        "Kernel panic",
        "soft lockup",
        "ORC unwinder",
        "rcu_tasks detected stalls",
    ];
    words.iter().any(|word| line.contains(word)) && !line.contains(NO_MICROCODE)
}

/// Two guests at once: each keeps one CPU of this machine busy.
pub fn side_by_side<T: Send>(
    first: impl FnOnce() -> T + Send,
    second: impl FnOnce() -> T,
) -> (T, T) {
    std::thread::scope(|scope| {
        let first = scope.spawn(first);
        let second = second();
        match first.join() {
            Ok(first) => (first, second),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
