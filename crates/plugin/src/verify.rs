//! The recorder's own check (`verify=on`). It counts every instruction inline, and reads the real
//! address at every execution. It compares both with what is recorded, execution by execution.
//!
//! It shares only the translations with the recorder. It uses neither progress stores nor addresses
//! from the time of translation.

use crate::qemu::{InstructionHandle, Register, ScoreboardCell};
use crate::say;
use std::collections::BTreeMap;
use trace::{RecordingTotals, RunAddr};

/// The number of differences of a kind that are listed one by one.
const LISTED: u64 = 20;

/// The checked properties of a translation. Never freed: translated code refers to it.
pub(crate) struct CheckedTranslation {
    pub addr: RunAddr,
    pub instructions: u64,
}

/// The check of a recording.
pub(crate) struct Verifier {
    counts: InstructionCounts,
    rip: Option<Register>,
    /// The execution before, which is compared next.
    before: Option<&'static CheckedTranslation>,
    /// The value of both counters when it began.
    counted_before: u64,
    executions: u64,
    wrong_counts: u64,
    /// The number of executions by recorded address and real address, where the two differ.
    aliases: BTreeMap<(RunAddr, RunAddr), u64>,
}

/// The instructions that were begun, counted one by one.
enum InstructionCounts {
    /// By translated code, on one vCPU.
    Inline { kernel: ScoreboardCell, user: ScoreboardCell },
    /// By callbacks, on several vCPUs.
    Called { kernel: u64, user: u64 },
}

impl InstructionCounts {
    fn kernel(&self) -> u64 {
        match self {
            InstructionCounts::Inline { kernel, .. } => kernel.get(),
            InstructionCounts::Called { kernel, .. } => *kernel,
        }
    }

    fn user(&self) -> u64 {
        match self {
            InstructionCounts::Inline { user, .. } => user.get(),
            InstructionCounts::Called { user, .. } => *user,
        }
    }
}

impl Verifier {
    pub(crate) fn new(several_cpus: bool) -> Verifier {
        let counts = match several_cpus {
            false => InstructionCounts::Inline {
                kernel: ScoreboardCell::new(),
                user: ScoreboardCell::new(),
            },
            true => InstructionCounts::Called { kernel: 0, user: 0 },
        };
        Verifier {
            counts,
            rip: None,
            before: None,
            counted_before: 0,
            executions: 0,
            wrong_counts: 0,
            aliases: BTreeMap::new(),
        }
    }

    /// Lets translated code count the instruction. Returns false if [`Verifier::count`] must be
    /// called instead.
    pub(crate) fn counts_inline(&self, instruction: InstructionHandle) -> bool {
        let InstructionCounts::Inline { kernel, user } = &self.counts else { return false };
        let cell = if instruction.addr().is_kernel() { kernel } else { user };
        instruction.add_at_execution(cell, 1);
        true
    }

    /// Counts an instruction that begins.
    pub(crate) fn count(&mut self, in_kernel: bool) {
        if let InstructionCounts::Called { kernel, user } = &mut self.counts {
            *if in_kernel { kernel } else { user } += 1;
        }
    }

    /// A translation is entered. `progress` is the recorder's progress of the one before. Must be
    /// called in a callback that reads registers.
    pub(crate) fn entered(&mut self, checked: &'static CheckedTranslation, progress: u64) {
        let counted = self.counts.kernel() + self.counts.user();
        if let Some(before) = self.before {
            let recorded = if progress == 0 { before.instructions } else { progress };
            self.compare(before, recorded, counted - self.counted_before);
        }
        (self.before, self.counted_before) = (Some(checked), counted);
        self.executions += 1;
        self.rip = self.rip.or_else(|| Register::find(c"rip"));
        let real = self.rip.and_then(Register::value).map(RunAddr);
        if real != Some(checked.addr) {
            *self.aliases.entry((checked.addr, real.unwrap_or_default())).or_default() += 1;
        }
    }

    fn compare(&mut self, translation: &CheckedTranslation, recorded: u64, counted: u64) {
        if recorded == counted {
            return;
        }
        self.wrong_counts += 1;
        if self.wrong_counts <= LISTED {
            let CheckedTranslation { addr, instructions } = translation;
            say(&format!(
                "verify: execution {}: {addr} of {instructions} instructions: {recorded} recorded, \
                 {counted} counted",
                self.executions
            ));
        }
    }

    /// Prints the results. `folded` is the number of counted instructions that only continued a
    /// string instruction.
    pub(crate) fn report(&self, totals: Option<&RecordingTotals>, folded: u64) {
        let (kernel, user) = (self.counts.kernel(), self.counts.user());
        let total = kernel + user;
        say(&format!(
            "verify: {total} instructions counted one by one: {kernel} kernel, {user} user"
        ));
        if let Some(totals) = totals {
            let recorded = totals.instructions();
            let difference = i128::from(total) - i128::from(recorded) - i128::from(folded);
            say(&format!(
                "verify: {recorded} recorded, {folded} repetitions folded, difference {difference}"
            ));
        }
        let (executions, wrong) = (self.executions, self.wrong_counts);
        say(&format!("verify: {executions} executions compared, {wrong} with a wrong count"));
        let aliased = |kernel| {
            let of_kind = self
                .aliases
                .iter()
                .filter(|((recorded_at, _), _)| recorded_at.is_kernel() == kernel);
            of_kind.map(|(_, count)| count).sum::<u64>()
        };
        say(&format!(
            "verify: {} kernel and {} user executions at another address",
            aliased(true),
            aliased(false)
        ));
        // The kernel's addresses, which matter most, are the highest.
        for ((recorded_at, real), count) in self.aliases.iter().rev().take(LISTED as usize) {
            say(&format!("verify: {count} executions at {real} recorded at {recorded_at}"));
        }
    }
}
