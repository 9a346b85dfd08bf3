//! What frames are used for, to bytes of a DATA chunk and back. Whatever the bytes are, gives
//! changes that fit the stream, or a named error.

use crate::Violation;
use crate::access::{Accesses, FrameUse, SeenAccesses, UseChange};
use crate::varint::{Numbers, put, put_step};

const SHORT: Violation = Violation::Short { what: "a frame's use" };
/// No frame has a number of more bits: a physical address has 52.
const FRAME_BITS: u32 = 40;
/// No name of a slab cache is longer.
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

/// Encodes the changes of one stream after the other.
#[derive(Default)]
pub(crate) struct UsesOut {
    pub bytes: Vec<u8>,
    execution: u32,
    frame: u64,
    /// Names of all streams.
    names: Vec<String>,
    /// So many of them are told.
    told: usize,
}

impl UsesOut {
    /// `before`: executions of the payload that came earlier.
    pub fn append(&mut self, seen: &SeenAccesses, before: u32) -> Result<(), Violation> {
        self.names.extend_from_slice(&seen.slab_caches);
        for &(execution, change) in &seen.uses {
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

    /// A cache's number, and its name when it is the first time.
    fn slab(&mut self, cache: usize) -> Result<(), Violation> {
        put(cache as u64, &mut self.bytes);
        if cache < self.told {
            return Ok(());
        }
        let name =
            self.names.get(cache).filter(|name| cache == self.told && name.len() <= LONGEST_NAME);
        let name = name.ok_or(Violation::Accesses {
            what: "a slab cache has no name, or one that is too long",
        })?;
        put(name.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(name.as_bytes());
        self.told += 1;
        Ok(())
    }

    /// The next change is the first of a payload.
    pub fn begin_again(&mut self) {
        (self.execution, self.frame) = (0, 0);
    }
}

/// Decodes the changes of a stream of so many executions.
pub(crate) fn take_uses(
    mut numbers: Numbers<'_>,
    executions: u32,
    into: &mut Accesses,
) -> Result<(), Violation> {
    let (mut execution, mut frame) = (0_u64, 0_u64);
    while !numbers.is_empty() {
        execution = execution.saturating_add(numbers.next().ok_or(SHORT)?);
        if execution > executions.into() {
            return Err(Violation::Accesses {
                what: "a frame's use stands behind the last execution",
            });
        }
        frame = numbers.step(frame).ok_or(SHORT)?;
        let frames = numbers.next().ok_or(SHORT)?;
        if frames == 0 || frame.saturating_add(frames) >> FRAME_BITS != 0 {
            return Err(Violation::Accesses { what: "a use is of a frame that no machine has" });
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
        into.uses.push((execution as u32, UseChange { frame, frames, used }));
    }
    Ok(())
}

fn take_slab(numbers: &mut Numbers<'_>, names: &mut Vec<String>) -> Result<u32, Violation> {
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

    fn seen() -> SeenAccesses {
        let change = |frame, frames, used| UseChange { frame, frames, used };
        SeenAccesses {
            uses: vec![
                (0, change(0, 1000, FrameUse::Free)),
                (0, change(7, 1, FrameUse::Slab(0))),
                (3, change(8, 3, FrameUse::PartOf(7))),
                (3, change(2, 1, FrameUse::Slab(1))),
                (9, change(2, 1, FrameUse::Slab(0))),
            ],
            slab_caches: vec!["dentry".into(), "kmalloc-64".into()],
            ..SeenAccesses::default()
        }
    }

    #[test]
    fn changes_survive_also_in_two_payloads() {
        let mut out = UsesOut::default();
        let mut read = Accesses::default();
        for _ in 0..2 {
            out.append(
                &SeenAccesses {
                    slab_caches: if read.slab_caches.is_empty() {
                        seen().slab_caches
                    } else {
                        Vec::new()
                    },
                    ..seen()
                },
                0,
            )
            .unwrap();
            let bytes = std::mem::take(&mut out.bytes);
            out.begin_again();
            read.uses.clear();
            take_uses(Numbers(&bytes), 9, &mut read).unwrap();
            assert_eq!((&read.uses, &read.slab_caches), (&seen().uses, &seen().slab_caches));
            assert!(take_uses(Numbers(&bytes), 8, &mut Accesses::default()).is_err());
        }
    }

    #[test]
    fn a_cache_without_a_name_is_refused() {
        let nameless = SeenAccesses { slab_caches: Vec::new(), ..seen() };
        assert!(UsesOut::default().append(&nameless, 0).is_err());
    }

    #[test]
    fn damaged_bytes_do_not_panic() {
        let mut out = UsesOut::default();
        out.append(&seen(), 0).unwrap();
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
            if take_uses(Numbers(&bytes), 9, &mut read).is_ok() {
                let fits = |used| !matches!(used, FrameUse::Slab(cache) if cache as usize >= read.slab_caches.len());
                assert!(read.uses.iter().all(|(_, change)| fits(change.used)));
            }
        }
    }
}
