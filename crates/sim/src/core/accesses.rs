//! Gives the accesses of one instruction to its uops.
//!
//! Input: the accesses of a block, in order. Output: for each uop that loads or stores, its access.
//! This module simulates nothing.

use super::uop::DataAccess;

/// log2 of the bytes that a repeated string instruction moves at once.
const MOVED_AT_ONCE: u32 = 6;

/// The accesses of an instruction, in program order. Loads go to its loads, stores to its stores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnAccesses<'a> {
    all: &'a [DataAccess],
    /// The next access to look at for a load, and for a store.
    next: [usize; 2],
}

impl<'a> OwnAccesses<'a> {
    /// Cuts the accesses of `instruction` off `accesses`, and those of earlier instructions, which
    /// did not run. An instruction that was not recorded (`u16::MAX`) has none.
    #[inline]
    pub(super) fn cut(accesses: &mut &'a [DataAccess], instruction: u16) -> OwnAccesses<'a> {
        if accesses.is_empty() || instruction == u16::MAX {
            return OwnAccesses::NONE;
        }
        let from = accesses.iter().take_while(|access| access.instruction < instruction).count();
        let rest = &accesses[from..];
        let own = rest.iter().take_while(|access| access.instruction == instruction).count();
        let (all, rest) = rest.split_at(own);
        *accesses = rest;
        OwnAccesses { all, next: [0; 2] }
    }

    /// The instruction has no access.
    pub(super) const NONE: OwnAccesses<'static> = OwnAccesses { all: &[], next: [0; 2] };

    /// Whether the instruction accesses anything.
    #[inline]
    pub(super) fn any(&self) -> bool {
        !self.all.is_empty()
    }

    /// The access of the instruction's next load or store.
    #[inline]
    pub(super) fn take(&mut self, is_store: bool) -> Option<&'a DataAccess> {
        let next = &mut self.next[usize::from(is_store)];
        while let Some(access) = self.all.get(*next) {
            *next += 1;
            if access.is_store == is_store {
                return Some(access);
            }
        }
        None
    }

    /// As [`OwnAccesses::take`], for an instruction that made more accesses than it has uops: a
    /// repeated string instruction. It moves 64 bytes at once, so an access to the same 64 bytes as
    /// the one before is left out.
    pub(super) fn take_more(&mut self, is_store: bool) -> Option<&'a DataAccess> {
        let line = |access: &DataAccess| access.physical.0 >> MOVED_AT_ONCE;
        let before = self.next[usize::from(is_store)];
        let mut last = self.all[..before].iter().rfind(|access| access.is_store == is_store);
        while let Some(access) = self.take(is_store) {
            if last.is_none_or(|last| line(last) != line(access)) {
                return Some(access);
            }
            last = Some(access);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::{LineId, PhysAddr};

    #[test]
    fn loads_and_stores_are_given_out_in_order() {
        let access = |instruction, addr, is_store| DataAccess {
            physical: PhysAddr(addr),
            page: LineId::physical(0),
            instruction,
            size: 8,
            is_store,
        };
        let all = [
            access(0, 1, false),
            access(2, 64, false),
            access(2, 128, true),
            access(2, 72, false),
            access(2, 136, true),
            access(2, 192, true),
            access(3, 5, false),
        ];
        let mut rest = &all[..];
        assert!(OwnAccesses::cut(&mut rest, u16::MAX).all.is_empty());
        assert_eq!(rest.len(), all.len());
        let mut own = OwnAccesses::cut(&mut rest, 2);
        let addr = |access: Option<&DataAccess>| access.map(|access| access.physical.0);
        assert_eq!(addr(own.take(true)), Some(128));
        assert_eq!(addr(own.take(false)), Some(64));
        // 72 and 136 lie in lines that were accessed just before.
        assert_eq!([own.take_more(false), own.take_more(true)].map(addr), [None, Some(192)]);
        assert_eq!(addr(own.take_more(true)), None);
        assert_eq!(OwnAccesses::cut(&mut rest, 3).all.len(), 1);
        assert!(rest.is_empty());
    }
}
