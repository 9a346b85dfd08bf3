//! The file `vmlinux.klr`: the words of a linked kernel's data that are distances to something, as
//! its link knew them. `check` needs them, and the vmlinux itself does not keep them.
//!
//! Input and output: text. Words with the same distance from one another share a line. This module
//! reads no kernel, and does not verify that the words are true.

use crate::BuildId;
use crate::sealed::{self, SealError};
use std::fmt::Write as _;

/// The name of the file beside the vmlinux that it belongs to.
pub const FILE: &str = "vmlinux.klr";

/// The PC-relative words outside of the code of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelativeWords {
    /// The kernel.
    pub build_id: BuildId,
    /// The address of each word and its bytes, ascending.
    pub words: Vec<(u64, u8)>,
}

/// Why a text is not a list of relative words. Numbers are lines.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelativeWordsError {
    /// The text is not sealed.
    #[error("not a list of relative words, or a damaged one")]
    Seal(#[from] SealError),
    /// The second line does not name the kernel.
    #[error("line 2: expected \"kernel BUILD-ID\"")]
    Kernel,
    /// A line does not describe words.
    #[error(
        "line {0}: words are \"START BYTES STRIDE COUNT\", all numbers in hex, of 4 or 8 bytes"
    )]
    Words(usize),
    /// The words overlap, or are not ascending.
    #[error("the words overlap")]
    Order,
    /// The last line is missing, or says another number of words.
    #[error("cut off: there is no line \"end {0}\"")]
    CutOff(usize),
}

const KIND: &str = "kernlane-relative-words";
/// More words than an address space of 2 GB of kernel has.
const MOST: u64 = 1 << 29;

impl RelativeWords {
    /// The file's text.
    pub fn to_text(&self) -> String {
        let mut text = format!("kernel {}\n", self.build_id.0);
        for bytes in [4, 8] {
            let of_size = self.words.iter().filter(|word| word.1 == bytes);
            let places: Vec<u64> = of_size.map(|&(place, _)| place).collect();
            let mut rest = &places[..];
            while let Some((&start, behind)) = rest.split_first() {
                let stride = behind.first().map_or(0, |next| next - start);
                let same = |pair: &&[u64]| pair[1] - pair[0] == stride;
                let count = 1 + rest.windows(2).take_while(same).count();
                let _ = writeln!(text, "{start:x} {bytes:x} {stride:x} {count:x}");
                rest = &rest[count..];
            }
        }
        let _ = writeln!(text, "end {}", self.words.len());
        sealed::text(KIND, &text)
    }

    /// Reads what `to_text` wrote.
    ///
    /// # Errors
    /// The first broken rule, with its line.
    pub fn from_text(text: &str) -> Result<RelativeWords, RelativeWordsError> {
        let mut lines = (2..).zip(sealed::open(KIND, text)?.split_terminator('\n'));
        let kernel = lines.next().and_then(|(_, line)| line.strip_prefix("kernel "));
        let build_id = BuildId(kernel.ok_or(RelativeWordsError::Kernel)?.to_owned());
        let mut words = Vec::new();
        let mut end = None;
        for (number, line) in lines {
            if let Some(announced) = line.strip_prefix("end ") {
                end = Some(announced);
                continue;
            }
            let wrong = RelativeWordsError::Words(number);
            let fields: Option<Vec<u64>> =
                line.split(' ').map(|field| u64::from_str_radix(field, 16).ok()).collect();
            let Some(&[start, bytes @ (4 | 8), stride, count]) = fields.as_deref() else {
                return Err(wrong);
            };
            let reach = stride.checked_mul(count).and_then(|reach| start.checked_add(reach));
            if end.is_some() || reach.is_none() || words.len() as u64 + count > MOST {
                return Err(wrong);
            }
            words.extend((0..count).map(|index| (start + index * stride, bytes as u8)));
        }
        if end != Some(words.len().to_string().as_str()) {
            return Err(RelativeWordsError::CutOff(words.len()));
        }
        words.sort_unstable();
        match words.windows(2).any(|pair| pair[0].0 + u64::from(pair[0].1) > pair[1].0) {
            true => Err(RelativeWordsError::Order),
            false => Ok(RelativeWords { build_id, words }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[(u64, u8)]) -> RelativeWords {
        RelativeWords { build_id: BuildId("0a".to_owned()), words: words.to_vec() }
    }

    #[test]
    fn words_survive_their_file() {
        const K: u64 = 0xffff_ffff_8200_0000;
        // A table of 4 bytes, one of 12-byte entries with two words each, two single words.
        let mut all: Vec<(u64, u8)> = (0..1000).map(|n| (K + 4 * n, 4)).collect();
        all.extend((0..100).flat_map(|n| [(K + 0x1000 + 12 * n, 4), (K + 0x1004 + 12 * n, 4)]));
        all.extend([(K + 0x2000, 8), (K + 0x2100, 4)]);
        let text = words(&all).to_text();
        assert_eq!(RelativeWords::from_text(&text).unwrap(), words(&all));
        assert!(text.contains("\nffffffff82000000 4 4 3e8\n"), "{text}");
        assert_eq!(RelativeWords::from_text(&words(&[]).to_text()).unwrap(), words(&[]));
        // Small, since every byte is damaged in many ways.
        let small = words(&[(K, 4), (K + 8, 8)]).to_text();
        sealed::assert_damage_is_noticed(&small, |text| RelativeWords::from_text(text).ok());
    }

    #[test]
    fn what_is_no_list_of_words_is_refused() {
        let read = |body: &str| {
            RelativeWords::from_text(&sealed::text(KIND, &format!("kernel 0a\n{body}")))
                .unwrap_err()
        };
        assert_eq!(read("10 4 0 1\n"), RelativeWordsError::CutOff(1));
        assert_eq!(read("10 4 0 1\nend 2\n"), RelativeWordsError::CutOff(1));
        assert_eq!(read("10 3 0 1\nend 1\n"), RelativeWordsError::Words(3));
        assert_eq!(read("10 4 2 2\nend 2\n"), RelativeWordsError::Order);
        let huge = "10 4 ffffffffffffffff ffffffffffffffff\nend 2\n";
        assert_eq!(read(huge), RelativeWordsError::Words(3));
        assert_eq!(read("10 4 0 ffffffff\nend 2\n"), RelativeWordsError::Words(3));
    }
}
