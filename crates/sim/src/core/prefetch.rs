//! Prefetchers of data: by constant strides of one instruction, and by streams within a page.
//!
//! Input: the lines that instructions access. Output: the lines to prefetch. No prefetch crosses a
//! page of 4 KB of physical memory.

/// log2 of the bytes in a page.
const PAGE: u32 = 12;

/// How often a stride or a direction must repeat before it is followed.
const SURE: u8 = 2;

#[derive(Clone, Copy, Debug, Default)]
struct Stride {
    site: u32,
    last: u64,
    stride: i64,
    sure: u8,
}

/// Knows the last address and the last stride of instructions.
#[derive(Clone, Debug)]
pub(crate) struct Strides {
    table: Vec<Stride>,
}

impl Strides {
    /// `entries`: a power of two, or 0 for none.
    pub(super) fn new(entries: u32) -> Strides {
        Strides { table: vec![Stride::default(); entries as usize] }
    }

    /// The instruction `site` accesses `addr`. Returns the address to prefetch, if any: two strides
    /// ahead.
    #[inline]
    pub(super) fn access(&mut self, site: u32, addr: u64) -> Option<u64> {
        let mask = self.table.len().wrapping_sub(1);
        let entry = self.table.get_mut(site as usize & mask)?;
        if entry.site != site {
            *entry = Stride { site, last: addr, stride: 0, sure: 0 };
            return None;
        }
        let stride = addr.wrapping_sub(entry.last) as i64;
        entry.last = addr;
        if stride == 0 {
            return None;
        }
        if stride != entry.stride {
            entry.stride = stride;
            entry.sure = 0;
            return None;
        }
        entry.sure = (entry.sure + 1).min(SURE);
        let ahead = addr.wrapping_add_signed(stride.wrapping_mul(2));
        (entry.sure >= SURE && ahead >> PAGE == addr >> PAGE).then_some(ahead)
    }
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    page: u64,
    last: u64,
    /// 1, -1, or 0 as long as only one line is known.
    direction: i64,
    sure: u8,
}

/// Knows in which pages lines are accessed upwards or downwards.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    /// The most recently used first.
    pages: Vec<Stream>,
    lines_log2: u32,
    /// How many lines ahead is prefetched.
    distance: u32,
}

impl Streams {
    /// Follows `pages` pages, in lines of 2^`line_log2` bytes.
    pub(super) fn new(pages: u32, line_log2: u32, distance: u32) -> Streams {
        let none = Stream { page: u64::MAX, last: 0, direction: 0, sure: 0 };
        Streams { pages: vec![none; pages as usize], lines_log2: PAGE - line_log2, distance }
    }

    /// A cache lacked `line`, the number of a line of physical memory. Returns the lines to
    /// prefetch, if any.
    pub(super) fn missed(&mut self, line: u64) -> Option<[u64; 2]> {
        let page = line >> self.lines_log2;
        let Some(found) = self.pages.iter().position(|stream| stream.page == page) else {
            self.pages.pop()?;
            self.pages.insert(0, Stream { page, last: line, direction: 0, sure: 0 });
            return None;
        };
        self.pages[..=found].rotate_right(1);
        let stream = &mut self.pages[0];
        let direction = (line.wrapping_sub(stream.last) as i64).signum();
        stream.last = line;
        if direction == 0 {
            return None;
        }
        if direction == stream.direction {
            stream.sure = (stream.sure + 1).min(SURE);
        } else {
            stream.direction = direction;
            stream.sure = 1;
        }
        if stream.sure < SURE {
            return None;
        }
        let ahead = |lines: u32| {
            let ahead = line.wrapping_add_signed(direction * i64::from(lines));
            if ahead >> self.lines_log2 == page { ahead } else { line }
        };
        Some([ahead(self.distance), ahead(self.distance + 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stride_is_followed_when_it_came_three_times() {
        let mut strides = Strides::new(4);
        let mut at = |addr| strides.access(5, addr);
        assert_eq!([0, 100, 200].map(&mut at), [None; 3]);
        assert_eq!([300, 400].map(&mut at), [Some(500), Some(600)]);
        assert_eq!([1000, 1010, 1020, 1030].map(&mut at), [None, None, None, Some(1050)]);
        // No prefetch leaves the page.
        assert_eq!([2800, 3200, 3600, 4000].map(&mut at), [None; 4]);
        // Another instruction takes the entry.
        assert_eq!(strides.access(9, 0), None);
        assert_eq!([2000, 2010, 2020].map(|addr| strides.access(5, addr)), [None; 3]);
        assert_eq!(Strides::new(0).access(1, 1), None);
    }

    #[test]
    fn a_stream_is_followed_in_its_direction() {
        // Pages of 64 lines.
        let mut streams = Streams::new(2, 6, 4);
        assert_eq!([10, 11].map(|line| streams.missed(line)), [None; 2]);
        assert_eq!(streams.missed(12), Some([16, 17]));
        assert_eq!(streams.missed(12), None);
        // Behind the end of the page: the line itself, which is there.
        assert_eq!(streams.missed(60), Some([60, 60]));
        assert_eq!(streams.missed(59), None);
        assert_eq!(streams.missed(58), Some([54, 53]));
        // Two other pages, and this one is forgotten.
        assert_eq!([100, 200, 57].map(|line| streams.missed(line)), [None; 3]);
        assert_eq!(Streams::new(0, 6, 4).missed(1), None);
    }
}
