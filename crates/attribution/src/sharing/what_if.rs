//! Simulates data at another place: what would a field cost in a line of its own?
//!
//! Input: a recording, a machine, and the names of objects or fields. Output: what coherence costs
//! before and after. Data moves by its virtual address: the instructions are those of the
//! recording, and nothing else moves closer together.

use super::caches::MovedRange;
use super::names::VariableTypes;
use super::table::SharingTotal;
use crate::misses::memory::DataOwners;
use anyhow::{Context, Result, ensure};
use serde::Serialize;

/// The largest object or field that moves.
const MOST_BYTES: u64 = 1 << 20;

/// What coherence costs with data at its place and at another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharingChange {
    /// The recorded workload.
    pub workload: String,
    /// The build id of the recorded kernel.
    pub kernel_build_id: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The number of CPUs.
    pub cpus: usize,
    /// The simulated machine.
    pub machine: String,
    /// What moved to lines of its own.
    pub moved: Vec<MovedData>,
    /// As recorded.
    pub before: SharingTotal,
    /// With the data in lines of its own.
    pub after: SharingTotal,
}

/// Bytes that moved to lines of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MovedData {
    /// As it was asked for.
    pub name: String,
    /// The CPU of a per-CPU variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u8>,
    /// The virtual address, in hex.
    pub addr: String,
    /// The number of bytes.
    pub bytes: u64,
}

/// What to move: `SYMBOL`, `SYMBOL.FIELD` or `SYMBOL+OFFSET:BYTES`, with `-> own line` behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MoveRequest<'a> {
    symbol: &'a str,
    part: &'a str,
    text: &'a str,
}

impl MoveRequest<'_> {
    /// # Errors
    /// The text has another form.
    pub(super) fn parse(text: &str) -> Result<MoveRequest<'_>> {
        let asked = || format!("{text:?}: write 'SYMBOL.FIELD -> own line'");
        let (what, to) = text.split_once("->").with_context(asked)?;
        ensure!(to.split_ascii_whitespace().eq(["own", "line"]), asked());
        let what = what.trim();
        let end = what.find(['.', '+', '[']).unwrap_or(what.len());
        let (symbol, part) = what.split_at(end);
        ensure!(!symbol.is_empty() && !what.contains(char::is_whitespace), asked());
        Ok(MoveRequest { symbol, part, text: what })
    }
}

/// The places of what shall move, each in lines of its own from the physical address `end` on.
///
/// # Errors
/// A symbol is unknown or not unique, or has no such part; two requests overlap.
pub(super) fn moves(
    requests: &[MoveRequest<'_>],
    owners: &DataOwners,
    types: &VariableTypes<'_>,
    line_bytes: u64,
    end: u64,
) -> Result<(Vec<MovedRange>, Vec<MovedData>)> {
    let (mut ranges, mut moved) = (Vec::<MovedRange>::new(), Vec::new());
    let mut to = end.next_multiple_of(line_bytes);
    for request in requests {
        let MoveRequest { symbol, part, text } = *request;
        let objects = owners.objects(symbol);
        ensure!(
            !objects.is_empty(),
            "the kernel has no data with the symbol {symbol}: `report --sharing` names those that \
             are shared"
        );
        let of_image = objects.iter().filter(|object| object.cpu.is_none()).count();
        ensure!(
            of_image == 0 || objects.len() == 1,
            "the kernel has {} objects with the symbol {symbol}, so it is not clear which to move",
            objects.len()
        );
        for object in objects {
            let (offset, bytes) = types.part(&object, part)?;
            ensure!(bytes <= MOST_BYTES, "{text} has {bytes} bytes, more than {MOST_BYTES}");
            let start = object.start.saturating_add(offset);
            let from = start..start.saturating_add(bytes);
            let overlaps =
                |range: &MovedRange| range.from.start < from.end && from.start < range.from.end;
            ensure!(!ranges.iter().any(overlaps), "{text} overlaps another --what-if");
            moved.push(MovedData {
                name: text.to_owned(),
                cpu: object.cpu,
                addr: format!("{:016x}", from.start),
                bytes,
            });
            ranges.push(MovedRange { from, to });
            to = (to + bytes).next_multiple_of(line_bytes);
        }
    }
    Ok((ranges, moved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        for (text, symbol, part) in [
            ("memlock -> own line", "memlock", ""),
            ("rq.lock.val->own  line", "rq", ".lock.val"),
            ("list[2].hits -> own line", "list", "[2].hits"),
            ("tcp+0x40:8 -> own line", "tcp", "+0x40:8"),
        ] {
            let request = MoveRequest::parse(text).unwrap();
            assert_eq!((request.symbol, request.part), (symbol, part), "{text}");
        }
        for text in ["memlock", "memlock -> own", ".x -> own line", "a b -> own line", ""] {
            let error = MoveRequest::parse(text).unwrap_err().to_string();
            assert!(error.contains("SYMBOL.FIELD -> own line"), "{error}");
        }
    }
}
