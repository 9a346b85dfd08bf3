//! Files that say whether they are whole: a format number and a checksum, in text and in JSON.
//!
//! Input: the content of a file. Output: the text of the file, with its checksum; and the other way
//! round. This module does not know what the files mean. `docs/reference/files.md` lists them all.
//!
//! The last line of a sealed file holds the SHA-256 of everything in front of that line:
//!
//! ```text
//! kernlane-layout 2                  {"kernlane_profile":6,
//! …                                  …,
//! sha256 9a31…                       "sha256":"9a31…"}
//! ```
//!
//! So `head -n -1 FILE | sha256sum` prints the checksum of any of them. The format number says
//! whether there is a checksum: an older format must have none, and a newer one must have it. A
//! damaged file with a checksum therefore never passes as an old one.
//!
//! ```
//! use kernlane_image::sealed;
//! let text = sealed::text("kernlane-example", "one\ntwo\n");
//! assert!(text.starts_with("kernlane-example 2\none\ntwo\nsha256 "));
//! assert_eq!(sealed::open("kernlane-example", &text), Ok("one\ntwo\n"));
//! assert!(sealed::open("kernlane-example", &text.replace("two", "ten")).is_err());
//! ```

use sha2::{Digest, Sha256};

/// The first format of text files, which has no checksum.
const UNSEALED: u32 = 1;
/// The format of text files that has one.
const SEALED: u32 = 2;
/// What begins the last line of a sealed text.
const TEXT_SEAL: &str = "sha256 ";
/// What begins the last line of sealed JSON.
const JSON_SEAL: &str = "\"sha256\":\"";

/// Why a file is not read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The first line names another kind of file.
    #[error("the first line is not \"{0} {SEALED}\"")]
    Kind(&'static str),
    /// This version does not know the format number.
    #[error(
        "\"{0} {1}\" in the first line: this version reads formats {UNSEALED} and {SEALED}; make \
         the file again"
    )]
    Format(&'static str, String),
    /// The checksum is not that of the file.
    #[error(
        "the last line is not the checksum of the lines in front of it: the file is damaged, cut \
         off, or was changed by hand; make it again"
    )]
    Checksum,
    /// The format number is that of files without a checksum, but there is one.
    #[error(
        "the format number is that of files without a checksum, but there is one: the file is \
         damaged; make it again"
    )]
    Unexpected,
}

/// The SHA-256 of bytes, as lower-case hex.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text file of a kind: a first line that names kind and format, the lines of `body`, and the
/// checksum.
pub fn text(kind: &str, body: &str) -> String {
    let mut text = format!("{kind} {SEALED}\n{body}");
    let seal = text_seal(&text);
    text += &seal;
    text
}

/// The lines behind the first one, without the checksum.
///
/// # Errors
/// The text is of another kind or format, or is not what was written.
pub fn open<'a>(kind: &'static str, text: &'a str) -> Result<&'a str, SealError> {
    let number = text.strip_prefix(kind).and_then(|rest| rest.strip_prefix(' '));
    let (number, body) =
        number.and_then(|rest| rest.split_once('\n')).ok_or(SealError::Kind(kind))?;
    if number == SEALED.to_string() {
        let (front, last) = split_last_line(text);
        // If there is only one line, it is also the last.
        let first = text.len() - body.len();
        return match last == text_seal(front) && front.len() >= first {
            true => Ok(&front[first..]),
            false => Err(SealError::Checksum),
        };
    }
    if number != UNSEALED.to_string() {
        return Err(SealError::Format(kind, number.to_owned()));
    }
    match split_last_line(text).1.starts_with(TEXT_SEAL) {
        true => Err(SealError::Unexpected),
        false => Ok(body),
    }
}

/// JSON of an object, with the checksum as its last field, in a line of its own.
///
/// # Panics
/// The text is not an object with a field.
pub fn json(object: &str) -> String {
    let fields = object.trim_end().strip_suffix('}').expect("an object ends in a brace").trim_end();
    let mut text = format!("{fields},\n");
    let seal = json_seal(&text);
    text += &seal;
    text
}

/// Makes sure that JSON, whose field `sha256` is `checksum`, is as [`json`] wrote it, or as an
/// older format without a checksum has it.
///
/// # Errors
/// It is not what was written.
pub fn verify_json(text: &str, checksum: Option<&str>, is_sealed: bool) -> Result<(), SealError> {
    let (front, last) = split_last_line(text);
    if is_sealed {
        return match checksum.is_some() && last == json_seal(front) {
            true => Ok(()),
            false => Err(SealError::Checksum),
        };
    }
    // What was a checksum may have lost its name. An old file never ends in a line of a field: it
    // is a single line, or ends in a brace.
    match checksum.is_some() || last.starts_with('"') {
        true => Err(SealError::Unexpected),
        false => Ok(()),
    }
}

/// The last line, with what ends it, and what stands in front of it.
fn split_last_line(text: &str) -> (&str, &str) {
    let start = text.strip_suffix('\n').unwrap_or(text).rfind('\n').map_or(0, |at| at + 1);
    text.split_at(start)
}

fn text_seal(front: &str) -> String {
    format!("{TEXT_SEAL}{}\n", sha256(front.as_bytes()))
}

fn json_seal(front: &str) -> String {
    format!("{JSON_SEAL}{}\"}}\n", sha256(front.as_bytes()))
}

/// Damages a file in every way that one byte can be damaged in, and cuts it off everywhere. For a
/// damaged file, `read` must return an error, or the same value as for the whole file.
///
/// # Panics
/// The whole file is not read, or a damaged one is read as something else.
#[cfg(any(test, feature = "examples"))]
pub fn assert_damage_is_noticed<T: PartialEq + std::fmt::Debug>(
    text: &str,
    read: impl Fn(&str) -> Option<T>,
) {
    let whole = read(text);
    assert!(whole.is_some(), "the whole file is refused:\n{text}");
    for at in 0..text.len() {
        if text.is_char_boundary(at) {
            assert_eq!(read(&text[..at]), None, "cut off at byte {at}");
        }
        let byte = text.as_bytes()[at];
        let flipped = (0..8).map(|bit| byte ^ (1 << bit));
        for other in flipped.chain(*b"0159afAF \n\"{}[],.:-ex") {
            let mut damaged = text.as_bytes().to_vec();
            damaged[at] = other;
            let Ok(damaged) = std::str::from_utf8(&damaged) else { continue };
            if let Some(found) = read(damaged).filter(|_| other != byte) {
                assert_eq!(Some(found), whole, "byte {at} is {other:#x} instead of {byte:#x}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "kernlane-example";
    const BODY: &str = "kernel 5f3c\n1000 40\nend 1\n";

    #[test]
    fn damage_of_a_text_is_noticed() {
        assert_damage_is_noticed(&text(KIND, BODY), |text| {
            open(KIND, text).ok().map(str::to_owned)
        });
    }

    fn read_json(text: &str) -> Option<serde_json::Value> {
        let value: serde_json::Value = serde_json::from_str(text).ok()?;
        let is_sealed = match value["format"].as_u64()? {
            1 => false,
            2 => true,
            _ => return None,
        };
        verify_json(text, value["sha256"].as_str(), is_sealed).ok().map(|()| value)
    }

    #[test]
    fn damage_of_json_is_noticed() {
        for object in ["{\n  \"format\": 2,\n  \"rows\": []\n}\n", "{\"format\":2,\"rows\":[]}"] {
            let sealed = json(object);
            assert_damage_is_noticed(&sealed, read_json);
            // It does not pass as an old file either when its number is also damaged.
            for at in 0..sealed.len() {
                let mut damaged = sealed.clone().into_bytes();
                damaged[at] ^= 1;
                let damaged = String::from_utf8(damaged).unwrap();
                for number in ["\"format\": ", "\"format\":"] {
                    let old = damaged.replace(&format!("{number}2"), &format!("{number}1"));
                    assert!(read_json(&old).is_none(), "{old}");
                }
            }
        }
    }

    #[test]
    fn a_checksum_belongs_to_the_format_number() {
        let old = format!("{KIND} 1\n{BODY}");
        assert_eq!(open(KIND, &old), Ok(BODY));
        let sealed = text(KIND, BODY);
        let renumbered = |number: &str| sealed.replacen(" 2\n", number, 1);
        assert_eq!(open(KIND, &renumbered(" 1\n")), Err(SealError::Unexpected));
        assert_eq!(open(KIND, &renumbered(" 3\n")), Err(SealError::Format(KIND, "3".into())));
        assert_eq!(open(KIND, &old.replace(" 1\n", " 2\n")), Err(SealError::Checksum));
        assert_eq!(open("kernlane-other", &sealed), Err(SealError::Kind("kernlane-other")));
        assert_eq!(verify_json("{\"format\":2}\n", None, true), Err(SealError::Checksum));
        assert_eq!(verify_json("{\"format\":1}\n", None, false), Ok(()));
        assert_eq!(verify_json("{\"format\":1}\n", Some(""), false), Err(SealError::Unexpected));
    }

    #[test]
    fn the_last_line_is_the_sum_of_the_others() {
        let expected = format!("sha256 {}\n", sha256(b"k 2\nx\n"));
        assert_eq!(text("k", "x\n"), format!("k 2\nx\n{expected}"));
        let front = "{\"a\":1,\n";
        assert_eq!(
            json("{\"a\":1}\n"),
            format!("{front}\"sha256\":\"{}\"}}\n", sha256(front.as_bytes()))
        );
        // FIPS 180-2, B.1.
        assert_eq!(
            sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
