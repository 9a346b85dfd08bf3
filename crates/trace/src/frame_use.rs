//! Encodes the uses of frames into bytes of a DATA chunk and decodes them. Any bytes give changes
//! that fit the stream, or a named error.

use crate::Violation;
use crate::access::{Accesses, FrameUse, FrameUseChange, ObservedAccesses};
use crate::varint::{VarintCursor, put, put_step};

const SHORT: Violation = Violation::Short { what: "a frame's use" };
/// The largest number of bits in a frame's number: a physical address has 52 bits.
const FRAME_BITS: u32 = 40;
/// The longest name of a slab cache in bytes.
const LONGEST_NAME: usize = 255;

const SLAB: u8 = 2;
const PART_OF: u8 = 7;

fn number(used: FrameUse) -> u8 {
    match used {
        FrameUse::Free => 0,
        FrameUse::Unmarked => 1,
        FrameUse::Slab(_) => SLAB,
        FrameUse::PageTable => 3,
        FrameUse::File => 4,
        FrameUse::Anonymous => 5,
        FrameUse::Reserved => 6,
        FrameUse::PartOf(_) => PART_OF,
    }
}

/// Encodes the changes of a recording's streams in order.
#[derive(Default)]
pub(crate) struct FrameUseEncoder {
    pub bytes: Vec<u8>,
    execution: u32,
    frame: u64,
    /// The names of the slab caches of all streams.
    names: Vec<String>,
    /// The number of names that were written.
    names_written: usize,
}

impl FrameUseEncoder {
    /// Appends the changes of a stream. `before` executions of the payload came earlier.
    pub(crate) fn append(
        &mut self,
        observed: &ObservedAccesses,
        before: u32,
    ) -> Result<(), Violation> {
        self.names.extend_from_slice(&observed.slab_caches);
        for &(execution, change) in &observed.uses {
            if before + execution < self.execution {
                return Err(Violation::Accesses { what: "the uses of frames do not ascend" });
            }
            put((before + execution - self.execution).into(), &mut self.bytes);
            put_step(self.frame, change.frame, &mut self.bytes);
            put(change.frames, &mut self.bytes);
            self.bytes.push(number(change.used));
            (self.execution, self.frame) = (before + execution, change.frame);
            match change.used {
                FrameUse::Slab(cache) => self.slab(cache as usize)?,
                FrameUse::PartOf(head) => put_step(change.frame, head, &mut self.bytes),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes a cache's number, and its name at the first use of the number.
    fn slab(&mut self, cache: usize) -> Result<(), Violation> {
        put(cache as u64, &mut self.bytes);
        if cache < self.names_written {
            return Ok(());
        }
        let name = self
            .names
            .get(cache)
            .filter(|name| cache == self.names_written && name.len() <= LONGEST_NAME);
        let name = name.ok_or(Violation::Accesses {
            what: "a slab cache has no name, or one that is too long",
        })?;
        put(name.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(name.as_bytes());
        self.names_written += 1;
        Ok(())
    }

    /// Begins a new payload.
    pub(crate) fn begin_again(&mut self) {
        (self.execution, self.frame) = (0, 0);
    }
}

/// Decodes the changes of a stream that has `executions` executions.
pub(crate) fn take_uses(
    mut numbers: VarintCursor<'_>,
    executions: u32,
    into: &mut Accesses,
) -> Result<(), Violation> {
    let (mut execution, mut frame) = (0_u64, 0_u64);
    while !numbers.is_empty() {
        execution = execution.saturating_add(numbers.next().ok_or(SHORT)?);
        if execution > executions.into() {
            return Err(Violation::Accesses {
                what: "the use of a frame changes after the last execution",
            });
        }
        frame = numbers.step(frame).ok_or(SHORT)?;
        let frames = numbers.next().ok_or(SHORT)?;
        if frames == 0 || frame.saturating_add(frames) >> FRAME_BITS != 0 {
            return Err(Violation::Accesses {
                what: "the use of a frame names a frame above 40 bits",
            });
        }
        let used = match numbers.byte().ok_or(SHORT)? {
            0 => FrameUse::Free,
            1 => FrameUse::Unmarked,
            SLAB => FrameUse::Slab(take_slab(&mut numbers, &mut into.slab_caches)?),
            3 => FrameUse::PageTable,
            4 => FrameUse::File,
            5 => FrameUse::Anonymous,
            6 => FrameUse::Reserved,
            PART_OF => FrameUse::PartOf(numbers.step(frame).ok_or(SHORT)?),
            other => return Err(Violation::Flag(other)),
        };
        into.uses.push((execution as u32, FrameUseChange { frame, frames, used }));
    }
    Ok(())
}

fn take_slab(numbers: &mut VarintCursor<'_>, names: &mut Vec<String>) -> Result<u32, Violation> {
    const WHAT: &str = "the name of a slab cache";
    let cache = numbers.next().ok_or(SHORT)?;
    if cache > names.len() as u64 {
        return Err(Violation::Accesses { what: "the numbers of slab caches have a gap" });
    }
    if cache == names.len() as u64 {
        let size = numbers.next().ok_or(SHORT)? as usize;
        if size > LONGEST_NAME {
            return Err(Violation::TooLong { what: WHAT });
        }
        let (name, rest) = numbers.0.split_at_checked(size).ok_or(SHORT)?;
        numbers.0 = rest;
        names
            .push(String::from_utf8(name.to_vec()).map_err(|_| Violation::NotText { what: WHAT })?);
    }
    Ok(cache as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed() -> ObservedAccesses {
        let change = |frame, frames, used| FrameUseChange { frame, frames, used };
        ObservedAccesses {
            uses: vec![
                (0, change(0, 1000, FrameUse::Free)),
                (0, change(7, 1, FrameUse::Slab(0))),
                (3, change(8, 3, FrameUse::PartOf(7))),
                (3, change(2, 1, FrameUse::Slab(1))),
                (9, change(2, 1, FrameUse::Slab(0))),
            ],
            slab_caches: vec!["dentry".into(), "kmalloc-64".into()],
            ..ObservedAccesses::default()
        }
    }

    #[test]
    fn changes_in_two_payloads_are_read_back() {
        let mut out = FrameUseEncoder::default();
        let mut read = Accesses::default();
        for _ in 0..2 {
            out.append(
                &ObservedAccesses {
                    slab_caches: if read.slab_caches.is_empty() {
                        observed().slab_caches
                    } else {
                        Vec::new()
                    },
                    ..observed()
                },
                0,
            )
            .unwrap();
            let bytes = std::mem::take(&mut out.bytes);
            out.begin_again();
            read.uses.clear();
            take_uses(VarintCursor(&bytes), 9, &mut read).unwrap();
            assert_eq!(
                (&read.uses, &read.slab_caches),
                (&observed().uses, &observed().slab_caches)
            );
            assert!(take_uses(VarintCursor(&bytes), 8, &mut Accesses::default()).is_err());
        }
    }

    #[test]
    fn a_cache_without_a_name_is_refused() {
        let nameless = ObservedAccesses { slab_caches: Vec::new(), ..observed() };
        assert!(FrameUseEncoder::default().append(&nameless, 0).is_err());
    }

    #[test]
    fn cut_off_bytes_give_an_error_or_the_first_changes() {
        let mut out = FrameUseEncoder::default();
        out.append(&observed(), 0).unwrap();
        let mut refused = 0;
        for length in 0..out.bytes.len() {
            let mut read = Accesses::default();
            match take_uses(VarintCursor(&out.bytes[..length]), 9, &mut read) {
                Ok(()) => assert!(observed().uses.starts_with(&read.uses), "{length} bytes"),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > out.bytes.len() / 2, "{refused}");
    }

    #[test]
    fn damaged_bytes_give_an_error_or_caches_that_have_names() {
        let mut out = FrameUseEncoder::default();
        out.append(&observed(), 0).unwrap();
        let mut state = 7_u64;
        for _ in 0..20_000 {
            let mut bytes = out.bytes.clone();
            for _ in 0..1 + state % 3 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 20) as u8;
            }
            bytes.truncate(bytes.len() - (state >> 58) as usize % bytes.len());
            let mut read = Accesses::default();
            if take_uses(VarintCursor(&bytes), 9, &mut read).is_ok() {
                let caches = read.slab_caches.len();
                let fits = |used| match used {
                    FrameUse::Slab(cache) => (cache as usize) < caches,
                    _ => true,
                };
                assert!(read.uses.iter().all(|(_, change)| fits(change.used)));
            }
        }
    }
}
