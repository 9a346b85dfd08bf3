//! The machines on which guests are tested: the number of processors, their model, and the kernel's
//! command line.

use guest::Boot;
use std::time::Duration;

/// Long enough for emulation on a busy machine.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(1800);

pub(crate) struct Machine {
    pub name: &'static str,
    pub cpus: u32,
    cpu_model: &'static str,
    command_line: &'static [&'static str],
    /// The processor is that of the machine with this name.
    is_like: bool,
}

impl Machine {
    pub(crate) const fn new(
        name: &'static str,
        cpus: u32,
        cpu_model: &'static str,
        command_line: &'static [&'static str],
    ) -> Machine {
        Machine { name, cpus, cpu_model, command_line, is_like: false }
    }

    /// One CPU, like that of a shipped machine.
    pub(crate) const fn like(machine: &'static str) -> Machine {
        Machine { name: machine, cpus: 1, cpu_model: "", command_line: &[], is_like: true }
    }

    /// Sets the machine, with KASLR. `words` come in front of the machine's own words on the
    /// command line.
    pub(crate) fn describe(&self, boot: &mut Boot, words: &[&str]) {
        boot.kaslr = true;
        boot.cpus = self.cpus;
        boot.cpu_model = self.cpu_model.into();
        boot.time_limit = TIME_LIMIT;
        // On a busy machine a guest may get no time for the timer's interrupts while the kernel
        // tests whether they come.
        let words = ["no_timer_check"].iter().chain(words).chain(self.command_line);
        boot.command_line = words.map(|&word| word.to_owned()).collect();
        if self.is_like {
            let processor =
                machines::guest_like(self.name).expect("a shipped machine with a guest");
            boot.cpu_model = processor.cpu_model;
            boot.command_line.extend(processor.command_line);
        }
    }
}

/// The kernel's message about safe returns on a processor that needs a microcode update. QEMU's
/// processors do not have it.
const NO_MICROCODE: &str = "Speculative Return Stack Overflow: WARNING: See";

/// Whether a correct kernel never writes this line to its log.
pub(crate) fn is_complaint(line: &str) -> bool {
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

/// Runs two guests at a time. Each keeps one CPU of this machine busy.
pub(crate) fn side_by_side<T: Send>(
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
