//! A return stack: where the calls that are open go on.
//!
//! A ring: a call too many overwrites the oldest entry, and a return too many finds an entry that
//! was used before.

use crate::branches::CodeAddr;

#[derive(Clone, Debug)]
pub(crate) struct ReturnStack {
    entries: Vec<Option<CodeAddr>>,
    top: usize,
}

impl ReturnStack {
    /// `entries`: at least one.
    pub fn new(entries: u32) -> ReturnStack {
        ReturnStack { entries: vec![None; entries as usize], top: 0 }
    }

    pub fn push(&mut self, behind_call: CodeAddr) {
        self.top = (self.top + 1) % self.entries.len();
        self.entries[self.top] = Some(behind_call);
    }

    pub fn pop(&mut self) -> Option<CodeAddr> {
        let top = self.entries[self.top];
        self.top = self.top.checked_sub(1).unwrap_or(self.entries.len() - 1);
        top
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_goes_round_both_ways() {
        let mut stack = ReturnStack::new(2);
        let addr = |number| Some(CodeAddr(number));
        assert_eq!(stack.pop(), None);
        for call in 1..=3 {
            stack.push(CodeAddr(call));
        }
        assert_eq!([stack.pop(), stack.pop()], [addr(3), addr(2)]);
        // 1 was overwritten by 3, which is found once more; then 2 by 4.
        assert_eq!([stack.pop(), stack.pop()], [addr(3), addr(2)]);
        stack.push(CodeAddr(4));
        assert_eq!([stack.pop(), stack.pop()], [addr(4), addr(3)]);
    }
}
