//! Finds the run of a layout that holds an address, and orders code by its runs.
//!
//! Input: a layout. Output: for a list of code, its new order. `estimate` orders blocks with this
//! module, and an emitter orders pieces.

use crate::address::LinkAddr;
use crate::order::Layout;

/// The runs of a layout, sorted by address.
#[derive(Debug)]
pub struct LayoutRuns {
    /// Start, bytes, and number in the layout.
    sorted: Vec<(u64, u64, usize)>,
    hot: usize,
}

impl LayoutRuns {
    /// The number of code that belongs to no run. It is larger than that of every run.
    const NO_RUN: usize = usize::MAX;

    /// The runs of `layout`.
    pub fn of(layout: &Layout) -> LayoutRuns {
        let runs = layout.runs.iter().enumerate();
        let mut sorted: Vec<(u64, u64, usize)> =
            runs.map(|(number, run)| (run.start.0, run.size, number)).collect();
        sorted.sort_unstable();
        LayoutRuns { sorted, hot: layout.hot }
    }

    /// The number of the run that holds `addr`. Code without a run gets a number that is larger
    /// than all others.
    pub fn run_of(&self, addr: LinkAddr) -> usize {
        let index = self.sorted.partition_point(|run| run.0 <= addr.0).checked_sub(1);
        index
            .map(|index| self.sorted[index])
            .filter(|&(start, size, _)| addr.0 - start < size)
            .map_or(Self::NO_RUN, |(_, _, number)| number)
    }

    /// Orders code by runs. `run_of_each` is the run of each block or piece; those of one run keep
    /// their order. The second value is the number of blocks or pieces in hot runs.
    pub fn order(&self, run_of_each: impl Iterator<Item = usize>) -> (Vec<u32>, usize) {
        let mut keyed: Vec<(usize, u32)> = run_of_each.zip(0..).collect();
        keyed.sort_unstable();
        let hot = keyed.partition_point(|&(run, _)| run < self.hot);
        (keyed.into_iter().map(|(_, index)| index).collect(), hot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BuildId;
    use crate::order::Run;

    #[test]
    fn code_goes_with_the_run_that_holds_its_first_byte() {
        let run = |start, size| Run { start: LinkAddr(start), size, name: String::new() };
        let layout = Layout {
            hot: 1,
            runs: vec![run(0x20, 0x10), run(0x10, 8)],
            ..Layout::original(BuildId("00".into()))
        };
        let runs = LayoutRuns::of(&layout);
        let code = [0x10, 0x17, 0x18, 0x20, 0x2f, 0x30].map(LinkAddr);
        let (order, hot) = runs.order(code.iter().map(|&addr| runs.run_of(addr)));
        assert_eq!((order, hot), (vec![3, 4, 0, 1, 2, 5], 2));
    }
}
