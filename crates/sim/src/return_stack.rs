//! A return stack: the return addresses of the open calls.
//!
//! The stack is a ring. One call too many overwrites the oldest entry. One return too many finds an
//! entry that was used before.
//!
//! Input: calls and returns, in order. Output: the predicted target of each return.

use crate::branches::CodeAddr;

#[derive(Clone, Debug)]
pub(crate) struct ReturnStack {
    entries: Vec<Option<CodeAddr>>,
    top: usize,
}

impl ReturnStack {
    /// `entries` must be at least 1.
    pub(crate) fn new(entries: u32) -> ReturnStack {
        ReturnStack { entries: vec![None; entries as usize], top: 0 }
    }

    pub(crate) fn push(&mut self, behind_call: CodeAddr) {
        self.top = (self.top + 1) % self.entries.len();
        self.entries[self.top] = Some(behind_call);
    }

    pub(crate) fn pop(&mut self) -> Option<CodeAddr> {
        let top = self.entries[self.top];
        self.top = self.top.checked_sub(1).unwrap_or(self.entries.len() - 1);
        top
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_wraps_in_both_directions() {
        let mut stack = ReturnStack::new(2);
        let addr = |number| Some(CodeAddr(number));
        assert_eq!(stack.pop(), None);
        for call in 1..=3 {
            stack.push(CodeAddr(call));
        }
        assert_eq!([stack.pop(), stack.pop()], [addr(3), addr(2)]);
        // 3 overwrote 1, and is found a second time. Then 4 overwrites 2.
        assert_eq!([stack.pop(), stack.pop()], [addr(3), addr(2)]);
        stack.push(CodeAddr(4));
        assert_eq!([stack.pop(), stack.pop()], [addr(4), addr(3)]);
    }
}
