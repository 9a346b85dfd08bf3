//! Reads and writes the list of counters (`*.klc`): text that names the block of each counter.
//!
//! Input: addresses, or the text of a file. Output: the reverse. A damaged file gives an error.
//! `ARCHITECTURE.md`, "Files between the stages", defines the format.

use image::BuildId;
use image::address::LinkAddr;
use image::sealed::{self, SealError};
use std::fmt::Write as _;

/// The counters of a counting kernel, in the order in which their counts lie in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// The build id of the kernel without counters.
    pub build_id: BuildId,
    /// Per counter: the address of its block in the kernel without counters. Ascending.
    pub blocks: Vec<LinkAddr>,
}

/// The rule that a list of counters breaks. Lines are numbered from 1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CountersError {
    /// The first line or the checksum is wrong.
    #[error("not a list of counters, or a damaged one")]
    Seal(#[from] SealError),
    /// The second line does not name the kernel.
    #[error("line 2: expected \"kernel BUILD-ID\"")]
    Kernel,
    /// This line holds no address, or an address that is not above that of the line before.
    #[error("line {0}: expected an address in hexadecimal, above the one before")]
    Address(usize),
    /// The last line is missing.
    #[error("cut off: there is no \"end\" line")]
    CutOff,
    /// The line of the end, and the number of addresses before it.
    #[error(
        "line {0}: the \"end\" line is not the last, or gives another number than the {1} counters \
         before it"
    )]
    End(usize, usize),
}

const KIND: &str = "kernlane-counters";

impl Counters {
    /// The file's text.
    pub fn to_text(&self) -> String {
        let mut text = format!("kernel {}\n", self.build_id.0);
        for block in &self.blocks {
            let _ = writeln!(text, "{block:x}");
        }
        let _ = writeln!(text, "end {}", self.blocks.len());
        sealed::text(KIND, &text)
    }

    /// Reads what `to_text` wrote, and the older format without a checksum.
    ///
    /// # Errors
    /// The first rule that the text breaks, with its line.
    pub fn from_text(text: &str) -> Result<Self, CountersError> {
        // The first line is read already.
        let mut lines = (2..).zip(sealed::open(KIND, text)?.split_terminator('\n'));
        let kernel = lines.next().and_then(|(_, line)| line.strip_prefix("kernel "));
        let build_id =
            BuildId(kernel.filter(|id| !id.is_empty()).ok_or(CountersError::Kernel)?.to_owned());
        let mut blocks: Vec<LinkAddr> = Vec::new();
        while let Some((number, line)) = lines.next() {
            if let Some(announced) = line.strip_prefix("end ") {
                let right = announced.parse() == Ok(blocks.len())
                    && lines.next().is_none()
                    && text.ends_with('\n');
                return if right {
                    Ok(Counters { build_id, blocks })
                } else {
                    Err(CountersError::End(number, blocks.len()))
                };
            }
            let block =
                u64::from_str_radix(line, 16).map_err(|_| CountersError::Address(number))?;
            if blocks.last().is_some_and(|last| last.0 >= block) {
                return Err(CountersError::Address(number));
            }
            blocks.push(LinkAddr(block));
        }
        Err(CountersError::CutOff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Counters {
        Counters {
            build_id: BuildId("5f3c".into()),
            blocks: vec![LinkAddr(0x6002_0000), LinkAddr(0x6002_0010)],
        }
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(Counters::from_text(&example().to_text()), Ok(example()));
    }

    /// A reader and a writer that are wrong in the same way would agree.
    #[test]
    fn the_text_is_as_documented() {
        let text = "kernlane-counters 2\n\
            kernel 5f3c\n\
            60020000\n\
            60020010\n\
            end 2\n\
            sha256 bfe2ecf757d9ac138f259651708510e1b8ac755022cb02998d5f03ea47fb5892\n";
        assert_eq!(example().to_text(), text);
        assert_eq!(Counters::from_text(text), Ok(example()));
    }

    /// Found by the fuzzer: of two carriage returns, one was dropped each time.
    #[test]
    fn a_build_id_is_read_as_it_is_written() {
        let text = "kernlane-counters 1\nkernel 3\r\r\n0\nend 1\n";
        let read = Counters::from_text(text).unwrap();
        assert_eq!(Counters::from_text(&read.to_text()), Ok(read));
    }

    #[test]
    fn damage_is_noticed() {
        let text = example().to_text();
        sealed::assert_damage_is_noticed(&text, |text| Counters::from_text(text).ok());
    }

    #[test]
    fn broken_rules_are_named() {
        let text = example().to_text();
        let old = format!("{KIND} 1\n{}", sealed::open(KIND, &text).unwrap());
        assert_eq!(Counters::from_text(&old), Ok(example()));
        let broken = |from: &str, to: &str| Counters::from_text(&old.replace(from, to));
        assert_eq!(broken("end 2", "end 3"), Err(CountersError::End(5, 2)));
        assert_eq!(broken("end 2\n", "end 2\nx\n"), Err(CountersError::End(5, 2)));
        assert_eq!(broken("60020010", "60010000"), Err(CountersError::Address(4)));
    }
}
