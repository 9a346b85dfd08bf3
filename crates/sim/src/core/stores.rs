//! The store queue: the order in which stores reach the L1D, and the loads that take their data
//! from a store that has not reached it.
//!
//! Stores are written to the L1D in program order, one in a cycle, when they have retired and their
//! line is there. Until then a load of the same bytes takes them from the queue. A load that needs
//! bytes of the store and others waits until the store is written. No load overtakes a store of the
//! same bytes: the processor's prediction of such pairs is assumed perfect.

use super::ring::Ring;

/// The pieces of 8 bytes that are remembered, by the low bits of their address.
const PIECES: usize = 1 << 10;

/// Eight bytes of memory that a store wrote last.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The address divided by 8.
    number: u64,
    /// The bytes that were written, one bit each.
    bytes: u8,
    /// The cycle in which the data are known.
    data: u64,
    /// The cycle in which the L1D has them.
    written: u64,
}

/// What a load finds in the store queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredData {
    /// Nothing: the cache has the data.
    Absent,
    /// All bytes, known from this cycle on.
    Forwarded(u64),
    /// A part of the bytes. The cache has all from this cycle on.
    Blocked(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Stores {
    pieces: Vec<Piece>,
    /// The cycle in which the last store was written.
    last: u64,
    /// The cycles in which the stores of the queue were written.
    written: Ring<u64>,
}

impl Stores {
    pub(super) fn new(entries: u32) -> Stores {
        let none = Piece { number: u64::MAX, bytes: 0, data: 0, written: 0 };
        Stores { pieces: vec![none; PIECES], last: 0, written: Ring::new(entries, 0) }
    }

    /// The cycle from which the queue has room for the next store.
    #[inline]
    pub(super) fn free(&self) -> u64 {
        self.written.oldest()
    }

    /// A store that retires in `retires`, and whose line is in the L1D from `line` on. Its `size`
    /// bytes at `addr`, if known, are ready in `data`. Returns the cycle in which it is written.
    pub(super) fn store(
        &mut self,
        at: Option<(u64, u8)>,
        data: u64,
        retires: u64,
        line: u64,
    ) -> u64 {
        let written = (self.last + 1).max(retires + 1).max(line);
        self.last = written;
        self.written.push(written);
        let Some((addr, size)) = at else { return written };
        for (number, bytes) in pieces(addr, size) {
            let piece = &mut self.pieces[number as usize % PIECES];
            *piece = match piece.number == number && piece.written > retires {
                true => Piece {
                    number,
                    bytes: piece.bytes | bytes,
                    data: piece.data.max(data),
                    written,
                },
                false => Piece { number, bytes, data, written },
            };
        }
        written
    }

    /// A load of `size` bytes at `addr` that begins in `now`.
    #[inline]
    pub(super) fn load(&self, addr: u64, size: u8, now: u64) -> StoredData {
        if now >= self.last {
            return StoredData::Absent;
        }
        let (mut found, mut missing, mut data, mut written) = (false, false, 0, 0);
        for (number, bytes) in pieces(addr, size) {
            let piece = &self.pieces[number as usize % PIECES];
            let here = piece.number == number && piece.written > now && piece.bytes & bytes != 0;
            if here {
                found = true;
                data = data.max(piece.data);
                written = written.max(piece.written);
            }
            missing |= !here || piece.bytes & bytes != bytes;
        }
        match (found, missing) {
            (false, _) => StoredData::Absent,
            (true, false) => StoredData::Forwarded(data),
            (true, true) => StoredData::Blocked(written),
        }
    }
}

/// The pieces of 8 bytes in `size` bytes at `addr`, each with the bytes meant.
#[inline]
fn pieces(addr: u64, size: u8) -> impl Iterator<Item = (u64, u8)> {
    let end = addr.saturating_add(size.max(1).into());
    (addr >> 3..=(end - 1) >> 3).map(move |number| {
        let first = addr.max(number << 3) & 7;
        let behind = (end - (number << 3)).min(8);
        (number, ((0xff_u16 >> (8 - (behind - first))) << first) as u8)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use StoredData::{Absent, Blocked, Forwarded};

    #[test]
    fn bytes_are_cut_into_pieces_of_eight() {
        let cut = |addr, size| pieces(addr, size).collect::<Vec<_>>();
        assert_eq!(cut(16, 8), [(2, 0xff)]);
        assert_eq!(cut(17, 2), [(2, 0b110)]);
        assert_eq!(cut(22, 4), [(2, 0b1100_0000), (3, 0b11)]);
        assert_eq!(cut(0, 32).len(), 4);
    }

    #[test]
    fn loads_take_what_is_not_yet_written() {
        let mut stores = Stores::new(2);
        assert_eq!(stores.store(Some((64, 8)), 5, 10, 0), 11);
        assert_eq!(stores.load(64, 8, 7), Forwarded(5));
        assert_eq!(stores.load(66, 2, 7), Forwarded(5));
        assert_eq!(stores.load(60, 8, 7), Blocked(11));
        assert_eq!(stores.load(72, 8, 7), Absent);
        assert_eq!(stores.load(64, 8, 11), Absent);
        // Stores are written one after the other, and when their line is there.
        assert_eq!(stores.store(None, 5, 10, 30), 30);
        assert_eq!(stores.store(None, 5, 10, 0), 31);
        // The queue has two entries: the next one takes that of the second store.
        assert_eq!(stores.free(), 30);
    }
}
