//! Lines (or pages) as small numbers, physical addresses, and the two modes that compete for a
//! cache.
//!
//! This module has only types. `execution::numbering` gives the numbers.

use std::ops::AddAssign;

/// An address of the guest's physical memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PhysAddr(pub u64);

/// The mode of execution: the operating system or an application (Torrellas 1998, section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// The kernel.
    Kernel,
    /// User code.
    User,
}

impl Mode {
    /// Both modes.
    pub const BOTH: [Mode; 2] = [Mode::Kernel, Mode::User];
}

/// One value for the kernel and one for user code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PerMode<T> {
    /// The kernel's value.
    pub kernel: T,
    /// The value of user code.
    pub user: T,
}

impl<T: AddAssign> AddAssign for PerMode<T> {
    fn add_assign(&mut self, other: Self) {
        self.kernel += other.kernel;
        self.user += other.user;
    }
}

impl<T> PerMode<T> {
    /// The value of `mode`.
    pub fn get(&self, mode: Mode) -> &T {
        match mode {
            Mode::Kernel => &self.kernel,
            Mode::User => &self.user,
        }
    }

    /// The value of `mode`, to change it.
    pub fn get_mut(&mut self, mode: Mode) -> &mut T {
        match mode {
            Mode::Kernel => &mut self.kernel,
            Mode::User => &mut self.user,
        }
    }
}

impl PerMode<u64> {
    /// The counts of kernel and user mode together.
    pub fn total(&self) -> u64 {
        self.kernel + self.user
    }
}

/// The number of a line of memory (for a TLB: of a page) in a stream of fetches. It has 31 bits of
/// index. Bit 31 is the mode of the code in the line.
///
/// The maker of the stream numbers the lines densely, so that tables can be arrays. The low bits of
/// the index choose the set. They must equal the low bits of the line's address, at least as many
/// as the cache has index bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineId(u32);

const USER: u32 = 1 << 31;

impl LineId {
    /// The largest index. It is one less than 31 bits allow, so that `NONE` is not a line.
    pub const MAX_INDEX: u32 = USER - 2;
    /// The content of an empty way.
    pub(crate) const NONE: LineId = LineId(u32::MAX);

    /// The line of `mode` with this index; `None` when `index` is above [`LineId::MAX_INDEX`].
    pub fn new(mode: Mode, index: u32) -> Option<LineId> {
        let bit = if mode == Mode::User { USER } else { 0 };
        (index <= LineId::MAX_INDEX).then_some(LineId(index | bit))
    }

    /// The line of physical memory with this number. Physical lines have no mode, and take the
    /// kernel's. Numbers are cut to 31 bits (64 GB in lines of 32 bytes).
    #[inline]
    pub const fn physical(number: u64) -> LineId {
        let index = (number & (USER - 1) as u64) as u32;
        LineId(if index > LineId::MAX_INDEX { LineId::MAX_INDEX } else { index })
    }

    /// `one` where a bit of the mask is set, `other` where it is not.
    #[inline]
    pub(crate) fn choose(mask: u32, one: LineId, other: LineId) -> LineId {
        LineId(one.0 & mask | other.0 & !mask)
    }

    /// The index within the lines of the mode.
    #[inline]
    pub fn index(self) -> u32 {
        self.0 & !USER
    }

    /// The mode of the code in the line.
    #[inline]
    pub fn mode(self) -> Mode {
        if self.0 & USER == 0 { Mode::Kernel } else { Mode::User }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_its_mode_and_index() {
        for mode in Mode::BOTH {
            for index in [0, 1, 12345, LineId::MAX_INDEX] {
                let line = LineId::new(mode, index).unwrap();
                assert_eq!((line.mode(), line.index()), (mode, index));
                assert_ne!(line, LineId::NONE);
            }
            assert_eq!(LineId::new(mode, LineId::MAX_INDEX + 1), None);
        }
    }
}
