//! Executed branches, and counts of taken branches by kind.
//!
//! Input: branches, one by one. Output: counts. Branches that are not taken are not counted,
//! because a layout cannot save their cost. This module predicts nothing.

/// An address of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodeAddr(pub u64);

/// One execution of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The kind of the instruction.
    pub kind: BranchKind,
    /// The address of the instruction.
    pub at: CodeAddr,
    /// The address behind the instruction. Control goes there when the branch is not taken, and a
    /// call pushes it.
    pub end: CodeAddr,
    /// The target of the branch when it is taken. `None`: the branch was taken, and its target is
    /// not known.
    pub target: Option<CodeAddr>,
    /// Whether the branch was taken.
    pub taken: bool,
}

/// The kind of a branch instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchKind {
    /// A conditional branch.
    Conditional,
    /// An unconditional direct jump.
    Jump,
    /// A direct call.
    Call,
    /// A return.
    Return,
    /// A jump to an address in a register or in memory.
    IndirectJump,
    /// A call of an address in a register or in memory.
    IndirectCall,
}

counters! {
    /// How often branches of each kind were taken.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub struct TakenBranches {
        /// Conditional branches.
        pub conditional: u64,
        /// Unconditional direct jumps.
        pub jump: u64,
        /// Direct calls.
        pub call: u64,
        /// Returns.
        #[serde(rename = "return")]
        pub ret: u64,
        /// Indirect jumps and calls.
        pub indirect: u64,
    }
}

impl TakenBranches {
    /// Counts `times` taken branches of one kind.
    pub fn count(&mut self, kind: BranchKind, times: u64) {
        *match kind {
            BranchKind::Conditional => &mut self.conditional,
            BranchKind::Jump => &mut self.jump,
            BranchKind::Call => &mut self.call,
            BranchKind::Return => &mut self.ret,
            BranchKind::IndirectJump | BranchKind::IndirectCall => &mut self.indirect,
        } += times;
    }

    /// All counts, multiplied by `times`.
    pub fn times(self, times: u64) -> TakenBranches {
        TakenBranches {
            conditional: self.conditional * times,
            jump: self.jump * times,
            call: self.call * times,
            ret: self.ret * times,
            indirect: self.indirect * times,
        }
    }

    /// Conditional branches and jumps. A layout decides whether these are taken.
    pub fn of_layout(&self) -> u64 {
        self.conditional + self.jump
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
        assert_eq!(taken.of_layout(), 3);
        taken += taken.times(2);
        assert_eq!(
            taken,
            TakenBranches { conditional: 3, jump: 6, call: 9, ret: 12, indirect: 33 }
        );
    }
}
