//! The recorder's own audit (`verify=on`): counts every instruction by itself, inline, and reads
//! the real address at every execution; compares both with what is recorded, execution by
//! execution.
//!
//! It shares nothing with the recorder's scheme (progress stores, addresses at translation) but the
//! translations themselves.

use crate::qemu::{Cell, Instruction, Register};
use crate::say;
use std::collections::BTreeMap;
use trace::{RunAddr, Totals};

/// How many differences of a kind are listed one by one.
const LISTED: u64 = 20;

/// What is checked of a translation. Never freed: translated code refers to it.
pub struct Checked {
    pub addr: RunAddr,
    pub instructions: u64,
}

pub struct Verify {
    /// Instructions begun, counted one by one.
    kernel: Cell,
    user: Cell,
    rip: Option<Register>,
    /// The execution before: what is to be compared, and the counters when it began.
    before: Option<&'static Checked>,
    counted_before: u64,
    executions: u64,
    wrong_counts: u64,
    /// By what the address was taken for and what it was: how many executions.
    aliases: BTreeMap<(RunAddr, RunAddr), u64>,
}

impl Verify {
    pub fn new() -> Verify {
        Verify {
            kernel: Cell::new(),
            user: Cell::new(),
            rip: None,
            before: None,
            counted_before: 0,
            executions: 0,
            wrong_counts: 0,
            aliases: BTreeMap::new(),
        }
    }

    pub fn count(&self, instruction: Instruction) {
        let cell = if instruction.addr().is_kernel() { &self.kernel } else { &self.user };
        instruction.add_at_execution(cell, 1);
    }

    /// A translation is entered; `progress` is the recorder's of the one before. In a callback that
    /// reads registers.
    pub fn entered(&mut self, checked: &'static Checked, progress: u64) {
        let counted = self.kernel.get() + self.user.get();
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

    fn compare(&mut self, translation: &Checked, recorded: u64, counted: u64) {
        if recorded == counted {
            return;
        }
        self.wrong_counts += 1;
        if self.wrong_counts <= LISTED {
            let Checked { addr, instructions } = translation;
            say(&format!(
                "verify: execution {}: {addr} of {instructions} instructions: {recorded} recorded, {counted} counted",
                self.executions
            ));
        }
    }

    /// Says what came out. `folded`: instructions counted here that only went on with a string
    /// instruction.
    pub fn report(&self, totals: Option<&Totals>, folded: u64) {
        let (kernel, user) = (self.kernel.get(), self.user.get());
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
            let of_kind =
                self.aliases.iter().filter(|((taken_for, _), _)| taken_for.is_kernel() == kernel);
            of_kind.map(|(_, count)| count).sum::<u64>()
        };
        say(&format!(
            "verify: {} kernel and {} user executions at another address",
            aliased(true),
            aliased(false)
        ));
        // The kernel's, which matter most, are the highest.
        for ((taken_for, real), count) in self.aliases.iter().rev().take(LISTED as usize) {
            say(&format!("verify: {count} executions at {real} recorded at {taken_for}"));
        }
    }
}
