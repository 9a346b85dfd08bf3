//! The layout file: an order of a kernel's blocks as text. `ARCHITECTURE.md` specifies the format
//! under "Files between the stages".
//!
//! Input and output: bytes. Runs are never empty and never overlap; a file in which they do is
//! refused. This module does not know what the addresses mean.

use crate::BuildId;
use crate::address::LinkAddr;
use crate::module::{self, ModuleIdentity};
use crate::place::CallPadding;
use crate::sealed::{self, SealError};
use std::fmt::Write as _;
use std::ops::Range;

/// Blocks that stay together: they are consecutive in the old image and in the new order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The old address of the first byte.
    pub start: LinkAddr,
    /// Bytes, at least 1.
    pub size: u64,
    /// The function in which the run begins. It only informs people.
    pub name: String,
}

/// The new order of a kernel's code. Code that belongs to no run keeps its original order behind
/// the last run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The kernel that the order is for.
    pub build_id: BuildId,
    /// The modules whose code the runs name, beside that of vmlinux.
    pub modules: Vec<ModuleIdentity>,
    /// The name of the layout algorithm.
    pub algorithm: String,
    /// The seed that the algorithm used.
    pub seed: u64,
    /// The SHA-256 of the profile that the order was made from, or "none".
    pub profile: String,
    /// How many of `runs`, counted from the front, were executed in that profile.
    pub hot: usize,
    /// What becomes of the call padding of functions that move.
    pub call_padding: CallPadding,
    /// The runs in their new order.
    pub runs: Vec<Run>,
}

/// Why a text is not a layout.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The text is not a sealed layout.
    #[error("not a layout, or a damaged one")]
    Seal(#[from] SealError),
    /// A header line is missing or has a bad value: its number and its key.
    #[error("line {0}: expected \"{1} …\"")]
    Field(usize, &'static str),
    /// This line does not describe a run.
    #[error("line {0}: a run is \"START SIZE NAME\", both numbers in hex")]
    Run(usize),
    /// The run on this line is empty or ends beyond the address space.
    #[error("line {0}: the run is empty or ends beyond the address space")]
    Extent(usize),
    /// Two runs overlap.
    #[error("the run at {first} overlaps the run at {second}")]
    Overlap {
        /// Where the first run begins.
        first: LinkAddr,
        /// Where the second run begins.
        second: LinkAddr,
    },
    /// The last line is missing.
    #[error("cut off: there is no \"end\" line")]
    CutOff,
    /// Text follows the last line.
    #[error("line {0}: nothing may stand behind the \"end\" line")]
    BehindEnd(usize),
    /// The last line announces another number of runs.
    #[error("the \"end\" line says {announced} runs, but {found} stand before it")]
    Count {
        /// The announced number.
        announced: usize,
        /// The number of runs in the file.
        found: usize,
    },
    /// More runs are announced as hot than there are.
    #[error("{hot} runs are said to be hot, but there are only {runs}")]
    Hot {
        /// The announced number of hot runs.
        hot: usize,
        /// The number of runs in the file.
        runs: usize,
    },
    /// A run is not in the code of the image that the layout is applied to.
    #[error(
        "the run of {size:#x} bytes at {start} ({name}) lies outside of the kernel's code: the \
         layout is damaged, or of another kernel; make it again"
    )]
    Outside {
        /// Where the run begins.
        start: LinkAddr,
        /// Its size, in bytes.
        size: u64,
        /// The run's name in the file.
        name: String,
    },
}

const KIND: &str = "kernlane-layout";

impl Layout {
    /// A layout that keeps the original order.
    pub fn original(build_id: BuildId) -> Layout {
        Layout {
            build_id,
            modules: Vec::new(),
            algorithm: "original".into(),
            seed: 0,
            profile: "none".into(),
            hot: 0,
            call_padding: CallPadding::Kept,
            runs: Vec::new(),
        }
    }

    /// The order of the code of vmlinux alone.
    pub fn of_vmlinux(&self) -> Layout {
        self.part(self.build_id.clone(), |run| !module::is_of_module(run.start))
    }

    /// The order of the code of one module, as a layout for that module.
    pub fn of_module(&self, module: &ModuleIdentity) -> Layout {
        let space = module::base_of(&module.name).0 >> 32;
        self.part(BuildId(module.build_id.clone()), |run| run.start.0 >> 32 == space)
    }

    /// The runs that are wanted, in their order.
    fn part(&self, build_id: BuildId, is_wanted: impl Fn(&Run) -> bool) -> Layout {
        let hot = self.runs.get(..self.hot).unwrap_or(&self.runs);
        Layout {
            build_id,
            modules: Vec::new(),
            algorithm: self.algorithm.clone(),
            seed: self.seed,
            profile: self.profile.clone(),
            hot: hot.iter().filter(|run| is_wanted(run)).count(),
            call_padding: self.call_padding,
            runs: self.runs.iter().filter(|run| is_wanted(run)).cloned().collect(),
        }
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "kernel {}\nalgorithm {}\nseed {}\nprofile {}\nhot {}\n{}",
            self.build_id.0,
            self.algorithm,
            self.seed,
            self.profile,
            self.hot,
            self.call_padding.line()
        );
        for ModuleIdentity { name, build_id } in &self.modules {
            let _ = writeln!(text, "module {name} {build_id}");
        }
        for run in &self.runs {
            let _ = writeln!(text, "{} {:x} {}", run.start, run.size, run.name);
        }
        let _ = writeln!(text, "end {}", self.runs.len());
        sealed::text(KIND, &text)
    }

    /// Makes sure that every run lies within a stretch of `code`.
    ///
    /// # Errors
    /// The first run that does not.
    pub fn ensure_within(&self, code: &[Range<u64>]) -> Result<(), LayoutError> {
        let is_inside = |run: &&Run| {
            let holds =
                |code: &Range<u64>| code.start <= run.start.0 && run.start.0 + run.size <= code.end;
            code.iter().any(holds)
        };
        match self.runs.iter().find(|run| !is_inside(run)) {
            Some(Run { start, size, name }) => {
                Err(LayoutError::Outside { start: *start, size: *size, name: name.clone() })
            }
            None => Ok(()),
        }
    }

    /// Reads what `to_text` wrote, and the older format without a checksum.
    ///
    /// # Errors
    /// The first broken rule, with its line or address.
    pub fn from_text(text: &str) -> Result<Self, LayoutError> {
        // The first line is read already.
        let mut lines = (2..).zip(sealed::open(KIND, text)?.split_terminator('\n')).peekable();
        let mut number = 1;
        let mut field = |key: &'static str| {
            number += 1;
            lines
                .next()
                .and_then(|(_, line)| line.strip_prefix(key)?.strip_prefix(' '))
                .ok_or(LayoutError::Field(number, key))
                .map(|value| (number, value))
        };
        let build_id = BuildId(field("kernel")?.1.to_owned());
        let algorithm = field("algorithm")?.1.to_owned();
        let (line, seed) = field("seed")?;
        let seed = seed.parse().map_err(|_| LayoutError::Field(line, "seed"))?;
        let profile = field("profile")?.1.to_owned();
        let (line, hot) = field("hot")?;
        let hot = hot.parse().map_err(|_| LayoutError::Field(line, "hot"))?;
        let dropped = lines.next_if(|&(_, line)| line == CallPadding::DROPPED);
        let call_padding = dropped.map_or(CallPadding::Kept, |_| CallPadding::Dropped);

        let mut modules = Vec::new();
        while let Some((number, line)) = lines.next_if(|(_, line)| line.starts_with("module ")) {
            let (name, build_id) = line["module ".len()..]
                .split_once(' ')
                .ok_or(LayoutError::Field(number, "module"))?;
            modules.push(ModuleIdentity { name: name.into(), build_id: build_id.into() });
        }

        let mut runs = Vec::new();
        while let Some((number, line)) = lines.next() {
            if let Some(announced) = line.strip_prefix("end ") {
                let announced = announced.parse().map_err(|_| LayoutError::Field(number, "end"))?;
                if let Some((number, _)) = lines.next() {
                    return Err(LayoutError::BehindEnd(number));
                }
                let layout =
                    Self { build_id, modules, algorithm, seed, profile, hot, call_padding, runs };
                return layout.checked(announced);
            }
            runs.push(parse_run(number, line)?);
        }
        Err(LayoutError::CutOff)
    }

    fn checked(self, announced: usize) -> Result<Self, LayoutError> {
        let found = self.runs.len();
        if announced != found {
            return Err(LayoutError::Count { announced, found });
        }
        if self.hot > found {
            return Err(LayoutError::Hot { hot: self.hot, runs: found });
        }
        let mut sorted: Vec<&Run> = self.runs.iter().collect();
        sorted.sort_by_key(|run| run.start);
        for pair in sorted.windows(2) {
            if pair[0].start.0 + pair[0].size > pair[1].start.0 {
                return Err(LayoutError::Overlap { first: pair[0].start, second: pair[1].start });
            }
        }
        Ok(self)
    }
}

fn parse_run(number: usize, line: &str) -> Result<Run, LayoutError> {
    let mut fields = line.splitn(3, ' ');
    let mut hex = || u64::from_str_radix(fields.next()?, 16).ok();
    let (Some(start), Some(size)) = (hex(), hex()) else {
        return Err(LayoutError::Run(number));
    };
    if size == 0 || start.checked_add(size).is_none() {
        return Err(LayoutError::Extent(number));
    }
    let name = fields.next().ok_or(LayoutError::Run(number))?.to_owned();
    Ok(Run { start: LinkAddr(start), size, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Layout {
        let run =
            |start, size, name: &str| Run { start: LinkAddr(start), size, name: name.to_owned() };
        Layout {
            build_id: BuildId("5f3c".into()),
            modules: Vec::new(),
            algorithm: "ext-tsp".into(),
            seed: 7,
            profile: "none".into(),
            hot: 1,
            call_padding: CallPadding::Kept,
            runs: vec![
                run(0xffff_ffff_8100_0110, 0x20, "vfs_read"),
                run(0xffff_ffff_8100_0010, 0x40, "tcp_v4_rcv"),
            ],
        }
    }

    #[test]
    fn reading_returns_what_was_written() {
        let layout = example();
        assert_eq!(Layout::from_text(&layout.to_text()), Ok(layout.clone()));
        let layout = Layout { call_padding: CallPadding::Dropped, ..layout };
        assert_eq!(Layout::from_text(&layout.to_text()), Ok(layout));
    }

    /// A reader and a writer that are wrong in the same way would agree.
    #[test]
    fn the_text_is_as_documented() {
        let text = "kernlane-layout 2\n\
            kernel 5f3c\n\
            algorithm ext-tsp\n\
            seed 7\n\
            profile none\n\
            hot 1\n\
            ffffffff81000110 20 vfs_read\n\
            ffffffff81000010 40 tcp_v4_rcv\n\
            end 2\n\
            sha256 31181c50a35a82e77c655b2a5a0ec6a883da34a7cfe59d28771e43c44a07bb53\n";
        assert_eq!(example().to_text(), text);
        assert_eq!(Layout::from_text(text), Ok(example()));
    }

    #[test]
    fn each_object_of_a_kernel_has_its_part_of_the_order() {
        let veth = ModuleIdentity { name: "veth".into(), build_id: "ca".into() };
        let base = module::base_of("veth");
        let run = |start, name: &str| Run { start, size: 0x10, name: name.to_owned() };
        let mut layout = Layout { modules: vec![veth.clone()], hot: 2, ..example() };
        layout.runs.insert(1, run(base, "veth_xmit [veth]"));
        layout.runs.push(run(LinkAddr(base.0 + 0x20), "veth_open [veth]"));
        let text = layout.to_text();
        assert!(text.contains("\nhot 2\nmodule veth ca\nffffffff81000110 20 vfs_read\n"), "{text}");
        assert_eq!(Layout::from_text(&text), Ok(layout.clone()));
        let of_module = layout.of_module(&veth);
        let names = |layout: &Layout| -> Vec<String> {
            layout.runs.iter().map(|run| run.name.clone()).collect()
        };
        assert_eq!(names(&of_module), ["veth_xmit [veth]", "veth_open [veth]"]);
        assert_eq!((of_module.hot, of_module.build_id.0.as_str()), (1, "ca"));
        assert_eq!(layout.of_vmlinux(), example());
        let other = ModuleIdentity { name: "loop".into(), build_id: "ca".into() };
        assert!(layout.of_module(&other).runs.is_empty());
        let damaged = sealed::text(
            KIND,
            "kernel 0\nalgorithm a\nseed 0\nprofile none\nhot 0\nmodule veth\nend 0\n",
        );
        assert_eq!(Layout::from_text(&damaged), Err(LayoutError::Field(7, "module")));
    }

    #[test]
    fn a_damaged_text_is_refused() {
        sealed::assert_damage_is_noticed(&example().to_text(), |text| Layout::from_text(text).ok());
    }

    /// The example in the format without a checksum.
    fn old_text() -> String {
        let text = example().to_text();
        format!("{KIND} 1\n{}", sealed::open(KIND, &text).unwrap())
    }

    #[test]
    fn the_format_without_a_checksum_is_read() {
        assert_eq!(Layout::from_text(&old_text()), Ok(example()));
        let behind = format!("{}sha25x 9a31\n", old_text());
        assert_eq!(Layout::from_text(&behind), Err(LayoutError::BehindEnd(10)));
    }

    #[test]
    fn a_run_outside_of_the_code_is_named() {
        let start = 0xffff_ffff_8100_0000;
        let within = |size: u64| example().ensure_within(&[0..16, start..start + size]);
        assert_eq!(within(0x130), Ok(()));
        let message = within(0x12f).unwrap_err().to_string();
        assert!(
            message
                .starts_with("the run of 0x20 bytes at ffffffff81000110 (vfs_read) lies outside")
        );
    }

    #[test]
    fn broken_rules_are_named() {
        let broken =
            |from: &str, to: &str| Layout::from_text(&old_text().replace(from, to)).unwrap_err();
        let unknown = SealError::Format(KIND, "3".into());
        assert_eq!(broken("layout 1", "layout 3"), LayoutError::Seal(unknown));
        assert_eq!(broken("end 2", "end 3"), LayoutError::Count { announced: 3, found: 2 });
        assert_eq!(broken("hot 1", "hot 3"), LayoutError::Hot { hot: 3, runs: 2 });
        assert_eq!(broken(" 20 ", " 0 "), LayoutError::Extent(7));
        assert_eq!(broken(" 20 ", " x "), LayoutError::Run(7));
        assert_eq!(
            broken(" 40 ", " 101 "),
            LayoutError::Overlap {
                first: LinkAddr(0xffff_ffff_8100_0010),
                second: LinkAddr(0xffff_ffff_8100_0110)
            }
        );
    }
}
