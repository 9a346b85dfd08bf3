//! What is fetched and by whom: lines (or pages) as small numbers, and the two modes that compete
//! for a cache.

/// Who executes. Torrellas' two requesters (1998, section 2.2): operating system and application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    Kernel,
    User,
}

impl Mode {
    pub const BOTH: [Mode; 2] = [Mode::Kernel, Mode::User];
}

/// One value for the kernel and one for user code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PerMode<T> {
    pub kernel: T,
    pub user: T,
}

impl<T> PerMode<T> {
    pub fn get(&self, mode: Mode) -> &T {
        match mode {
            Mode::Kernel => &self.kernel,
            Mode::User => &self.user,
        }
    }

    pub fn get_mut(&mut self, mode: Mode) -> &mut T {
        match mode {
            Mode::Kernel => &mut self.kernel,
            Mode::User => &mut self.user,
        }
    }
}

impl PerMode<u64> {
    /// The counts of kernel and user together.
    pub fn total(&self) -> u64 {
        self.kernel + self.user
    }
}

/// A line of memory (for a TLB: a page) as the number that stands for it in a stream of fetches: 31
/// bits of index, and the mode whose code it holds in bit 31.
///
/// Whoever makes the stream numbers the lines densely, so that tables can be arrays, and keeps the
/// low bits of the index those of the line's address, at least as many as the cache has index bits:
/// they choose the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(u32);

const USER: u32 = 1 << 31;

impl Line {
    /// The largest index; one less than 31 bits hold, so that [`Line::NONE`] is no line.
    pub const MAX_INDEX: u32 = USER - 2;
    /// What an empty way holds.
    pub(crate) const NONE: Line = Line(u32::MAX);

    /// `None` when `index` is above [`Line::MAX_INDEX`].
    pub fn new(mode: Mode, index: u32) -> Option<Line> {
        let bit = if mode == Mode::User { USER } else { 0 };
        (index <= Line::MAX_INDEX).then_some(Line(index | bit))
    }

    /// The line of physical memory with this number, on the kernel's mode: physical lines have
    /// none. Numbers above [`Line::MAX_INDEX`] (64 GB in lines of 32 bytes) are cut off.
    #[inline]
    pub const fn physical(number: u64) -> Line {
        let index = (number & (USER - 1) as u64) as u32;
        Line(if index > Line::MAX_INDEX { Line::MAX_INDEX } else { index })
    }

    /// `one` where the mask is all bits, `other` where it is none.
    #[inline]
    pub(crate) fn choose(mask: u32, one: Line, other: Line) -> Line {
        Line(one.0 & mask | other.0 & !mask)
    }

    #[inline]
    pub fn index(self) -> u32 {
        self.0 & !USER
    }

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
            for index in [0, 1, 12345, Line::MAX_INDEX] {
                let line = Line::new(mode, index).unwrap();
                assert_eq!((line.mode(), line.index()), (mode, index));
                assert_ne!(line, Line::NONE);
            }
            assert_eq!(Line::new(mode, Line::MAX_INDEX + 1), None);
        }
    }
}
