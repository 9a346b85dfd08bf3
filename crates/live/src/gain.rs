//! What an installation was made from, and what it brought.
//!
//! Input: what was counted, where hot blocks lie, and what invocations of the roots took. Output: a
//! report, which serialises. This module measures nothing.

use crate::chunks::Chunks;
use crate::device::FunctionTime;
use crate::inline::InlineSummary;
use crate::occupancy::Occupancy;
use crate::watch::Watched;
use image::linked::LinkedKernel;

/// The report of a group that was counted, laid out and installed.
#[derive(Clone, Debug, serde::Serialize)]
pub struct GainReport<'a> {
    /// The build id of the kernel.
    pub kernel: &'a str,
    /// The layout algorithm.
    pub algorithm: String,
    /// Lines of the instruction cache that hot blocks take, before and after.
    pub lines: [u64; 2],
    /// Of these, without room in their set.
    pub without_room: [u64; 2],
    /// What was counted: in the originals, then in the optimized code.
    pub counted: Vec<Counted>,
    /// What invocations of each root took.
    pub roots: Vec<RootGain>,
    /// How the functions are split.
    pub functions: Vec<Chunks>,
    /// What was inlined, if that was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inlined: Option<InlineSummary>,
}

impl<'a> GainReport<'a> {
    /// The report before anything is installed. `roots`: indices into the kernel's functions;
    /// `before`: where the hot blocks lie in the kernel's own text.
    pub fn new(
        kernel: &'a LinkedKernel<'_>,
        algorithm: String,
        counted: Vec<Counted>,
        roots: &[usize],
        before: &Occupancy,
        functions: Vec<Chunks>,
    ) -> GainReport<'a> {
        GainReport {
            kernel: &kernel.build_id.0,
            algorithm,
            lines: [before.total(); 2],
            without_room: [before.without_room(); 2],
            counted,
            roots: roots.iter().map(|&root| RootGain::unmeasured(kernel, root)).collect(),
            functions,
            inlined: None,
        }
    }

    /// Adds where the copies of the hot blocks lie.
    pub fn add_installed(&mut self, after: &Occupancy) {
        (self.lines[1], self.without_room[1]) = (after.total(), after.without_room());
    }

    /// Adds what invocations took, root by root, before and after the installation.
    pub fn add_times(&mut self, before: &[FunctionTime], after: &[FunctionTime]) {
        for ((root, before), after) in self.roots.iter_mut().zip(before).zip(after) {
            (root.before, root.after) = (before.mean_on_cpu(), after.mean_on_cpu());
        }
    }
}

/// How much was counted, and for how many edges the counts are exact (Tamches 2001, section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Counted {
    /// Functions counted.
    pub functions: usize,
    /// Their blocks.
    pub blocks: usize,
    /// Edges between the blocks.
    pub edges: usize,
    /// The number of these edges whose counts are exact.
    pub exact_edges: usize,
}

impl Counted {
    /// The sums of one counting.
    pub fn new(watched: &Watched) -> Counted {
        Counted {
            functions: watched.functions(),
            blocks: watched.blocks,
            edges: watched.edges,
            exact_edges: watched.exact_edges,
        }
    }
}

/// Nanoseconds of an invocation on a CPU, as far as they were measured.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct RootGain {
    /// The root's name.
    pub function: String,
    /// The mean before the installation; `None` if no invocation ended.
    pub before: Option<f64>,
    /// The mean after it; `None` if no invocation ended.
    pub after: Option<f64>,
}

impl RootGain {
    fn unmeasured(kernel: &LinkedKernel<'_>, root: usize) -> RootGain {
        RootGain { function: kernel.title(&kernel.functions[root]), before: None, after: None }
    }

    /// Before, after, and the change in percent; `None` unless both were measured.
    pub fn change(&self) -> Option<(f64, f64, f64)> {
        let (before, after) = (self.before?, self.after?);
        Some((before, after, 100.0 * (after / before - 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::occupancy::InstructionCacheGeometry;
    use crate::test_kernel::{F, H, tables, with};
    use crate::watch;

    #[test]
    fn the_report_has_before_and_after_and_the_names_of_the_roots() {
        let geometry = InstructionCacheGeometry { sets: 2, ways: 1, line: 64 };
        let before = Occupancy::of(geometry, [(0, 64), (128, 64), (256, 64)]);
        let after = Occupancy::of(geometry, [(0, 128)]);
        with(tables(), |kernel| {
            let algorithm = "ext-tsp-global".to_owned();
            let mut report = GainReport::new(kernel, algorithm, vec![], &[H, F], &before, vec![]);
            assert_eq!((report.lines, report.without_room), ([3, 3], [2, 2]));
            report.add_installed(&after);
            assert_eq!((report.lines, report.without_room), ([3, 2], [2, 0]));
            let time = |returned, ns| FunctionTime { returned, ns, ..FunctionTime::default() };
            report.add_times(&[time(2, 80), time(0, 0)], &[time(4, 120), time(1, 10)]);
            let root = |function: &str, before, after| RootGain {
                function: function.into(),
                before,
                after,
            };
            assert_eq!(
                report.roots,
                [root("h", Some(40.0), Some(30.0)), root("f", None, Some(10.0))]
            );
            let changes: Vec<_> = report.roots.iter().map(RootGain::change).collect();
            assert_eq!(changes, [Some((40.0, 30.0, -25.0)), None]);
            assert_eq!(report.kernel, "5f".repeat(20));
        });
    }

    #[test]
    fn functions_of_all_levels_are_counted() {
        with(tables(), |kernel| {
            let watched = Watched {
                levels: vec![2, 3],
                blocks: 7,
                edges: 6,
                exact_edges: 5,
                ..watch::empty(kernel.build_id.clone())
            };
            let expected = Counted { functions: 5, blocks: 7, edges: 6, exact_edges: 5 };
            assert_eq!(Counted::new(&watched), expected);
        });
    }
}
