//! Branches as they are executed; and those that were taken, by kind. A branch that was not taken
//! costs a fetch unit nothing that a layout could save.

use std::ops::AddAssign;

/// An address of code, as a branch predictor sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodeAddr(pub u64);

/// One execution of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    pub kind: BranchKind,
    /// Of the instruction.
    pub at: CodeAddr,
    /// Behind the instruction: where control goes when it is not taken, and what a call puts on the
    /// stack.
    pub end: CodeAddr,
    /// Where it goes when it is taken. `None`: it was taken, and nobody saw where to.
    pub target: Option<CodeAddr>,
    pub taken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchKind {
    Conditional,
    /// An unconditional direct jump.
    Jump,
    /// A direct call.
    Call,
    Return,
    IndirectJump,
    IndirectCall,
}

/// How often branches of each kind were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TakenBranches {
    pub conditional: u64,
    pub jump: u64,
    pub call: u64,
    #[serde(rename = "return")]
    pub ret: u64,
    /// Indirect jumps and calls.
    pub indirect: u64,
}

impl TakenBranches {
    pub fn count(&mut self, kind: BranchKind, times: u64) {
        *match kind {
            BranchKind::Conditional => &mut self.conditional,
            BranchKind::Jump => &mut self.jump,
            BranchKind::Call => &mut self.call,
            BranchKind::Return => &mut self.ret,
            BranchKind::IndirectJump | BranchKind::IndirectCall => &mut self.indirect,
        } += times;
    }

    pub fn times(self, times: u64) -> TakenBranches {
        TakenBranches {
            conditional: self.conditional * times,
            jump: self.jump * times,
            call: self.call * times,
            ret: self.ret * times,
            indirect: self.indirect * times,
        }
    }

    /// Conditional branches and jumps: those that a layout decides about.
    pub fn of_layout(&self) -> u64 {
        self.conditional + self.jump
    }

    pub fn total(&self) -> u64 {
        self.conditional + self.jump + self.call + self.ret + self.indirect
    }
}

impl AddAssign for TakenBranches {
    fn add_assign(&mut self, other: TakenBranches) {
        self.conditional += other.conditional;
        self.jump += other.jump;
        self.call += other.call;
        self.ret += other.ret;
        self.indirect += other.indirect;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() {
        let mut taken = TakenBranches::default();
        let kinds = [
            BranchKind::Conditional,
            BranchKind::Jump,
            BranchKind::Call,
            BranchKind::Return,
            BranchKind::IndirectJump,
            BranchKind::IndirectCall,
        ];
        for (times, kind) in (1..).zip(kinds) {
            taken.count(kind, times);
        }
        assert_eq!(
            taken,
            TakenBranches { conditional: 1, jump: 2, call: 3, ret: 4, indirect: 5 + 6 }
        );
        assert_eq!((taken.of_layout(), taken.total()), (3, 21));
        taken += taken.times(2);
        assert_eq!((taken.of_layout(), taken.total()), (9, 63));
    }
}
