//! The store queue: the order in which stores reach the L1D, and the loads that take their data
//! from a store that has not reached it.
//!
//! Stores are written to the L1D in program order, one in a cycle, when they have retired and their
//! line is there. Until then a load of the same bytes takes them from the queue. A load that needs
//! bytes of the store and others, or bytes of two stores, waits until they are written (Intel,
//! "64 and IA-32 Architectures Optimization Reference Manual", 248966, store forwarding: all data
//! come from one store). No load overtakes a store of the same bytes: the processor's prediction of
//! such pairs is assumed perfect.
//!
//! Some processors compare only the low 12 bits of the addresses at first. There, a load of other
//! bytes that meets a store with the same low bits waits for the data of that store, and then a
//! fixed number of cycles.
//!
//! A load that begins at the first byte of its store, and gives a whole register, can be renamed:
//! its data are known when those of the store are. Processors do so when both name the address by
//! the same registers, which nothing wrote between them. For a few other loads they predict the
//! store by the number of stores between the two (AMD, "Security Analysis of AMD Predictive Store
//! Forwarding", 2021; Intel, "Fast Store Forwarding Predictor"): [`PredictedLoads`].

use super::ring::Ring;

/// The pieces of 8 bytes that are remembered, by the low bits of their address.
const PIECES: usize = 1 << 10;

/// The pieces of 8 bytes in a page.
const PLACES: usize = 1 << 9;

/// The last store to a place in any page.
#[derive(Clone, Copy, Debug, Default)]
struct InPlace {
    /// The bytes that were written, one bit each.
    bytes: u8,
    /// The cycle in which the store queue has the data.
    known: u64,
    /// The cycle in which the L1D has them.
    written: u64,
}

/// Eight bytes of memory that a store wrote last.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The address divided by 8.
    number: u64,
    /// The bytes that were written, one bit each.
    bytes: u8,
    /// Of these, the bytes of the last store.
    latest: u8,
    data: StoreData,
    /// The number of the last store.
    store: u64,
    /// How the last store named its address: [`super::uop::AddressForm::key`].
    key: u64,
    /// The cycle in which the L1D has them.
    written: u64,
}

/// When the data of a store are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreData {
    /// The cycle in which the store queue has them.
    pub known: u64,
    /// The cycle in which their register is known.
    pub value: u64,
}

impl StoreData {
    fn max(self, other: StoreData) -> StoreData {
        StoreData { known: self.known.max(other.known), value: self.value.max(other.value) }
    }
}

/// What a load finds in the store queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredData {
    /// Nothing: the cache has the data.
    Absent,
    /// Nothing, but a store with the same low 12 bits of the address, whose data are known in this
    /// cycle.
    Alias(u64),
    /// All bytes. `between`: the number of stores between the store and the load.
    Forwarded(ForwardedData),
    /// A part of the bytes. The cache has all from this cycle on.
    Blocked(u64),
}

/// What a store of the queue has for a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForwardedData {
    pub data: StoreData,
    /// The number of stores between the store and the load.
    pub between: u64,
    /// The load begins at the store's first byte.
    pub from_start: bool,
    /// How the store named its address.
    pub key: u64,
}

/// log2 of the bytes in a line that stores are written to together.
const LINE: u32 = 6;
/// No address has this line.
const NO_LINE: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub(crate) struct Stores {
    pieces: Vec<Piece>,
    /// By the offset in a page; empty if cores compare whole addresses.
    places: Vec<InPlace>,
    /// The number of stores so far.
    count: u64,
    /// The cycle in which the last store was written, its line, and how many stores were written in
    /// that cycle.
    last: u64,
    last_line: u64,
    in_last: u32,
    /// The stores to one line, and those to any lines, that are written in a cycle.
    to_a_line: u32,
    in_a_cycle: u32,
    /// The cycles in which the stores of the queue were written.
    written: Ring<u64>,
}

impl Stores {
    /// `to_a_line`: the stores to one line that are written in a cycle; `in_a_cycle`: those to any
    /// lines; `aliases`: whether loads meet stores with the same low 12 bits of the address.
    pub(super) fn new(entries: u32, to_a_line: u32, in_a_cycle: u32, aliases: bool) -> Stores {
        let none = Piece {
            number: u64::MAX,
            bytes: 0,
            latest: 0,
            data: StoreData::default(),
            store: 0,
            key: 0,
            written: 0,
        };
        Stores {
            pieces: vec![none; PIECES],
            places: vec![InPlace::default(); if aliases { PLACES } else { 0 }],
            count: 0,
            last: 0,
            last_line: NO_LINE,
            in_last: 0,
            to_a_line,
            in_a_cycle,
            written: Ring::new(entries, 0),
        }
    }

    /// The cycle from which the queue has room for the next store.
    #[inline]
    pub(super) fn free(&self) -> u64 {
        self.written.oldest()
    }

    /// The cycle in which the last store was written.
    #[inline]
    pub(super) fn all_written(&self) -> u64 {
        self.last
    }

    /// A store that retires in `retires`, and whose line is in the L1D from `line` on. Its `size`
    /// bytes at `addr`, if known, are ready in `data`; it named the address as `key` says. Returns
    /// the cycle in which it is written.
    pub(super) fn store(
        &mut self,
        at: Option<(u64, u8)>,
        key: u64,
        data: StoreData,
        retires: u64,
        line: u64,
    ) -> u64 {
        let number = at.map_or(NO_LINE, |(addr, _)| addr >> LINE);
        let written = self.write(number, (retires + 1).max(line));
        self.count += 1;
        self.written.push(written);
        let Some((addr, size)) = at else { return written };
        let store = self.count;
        for (number, bytes) in pieces(addr, size) {
            if let Some(place) = self.places.get_mut(number as usize % PLACES) {
                *place = InPlace { bytes, known: data.known, written };
            }
            let piece = &mut self.pieces[number as usize % PIECES];
            *piece = match piece.number == number && piece.written > retires {
                true => Piece {
                    number,
                    bytes: piece.bytes | bytes,
                    latest: bytes,
                    data: piece.data.max(data),
                    store,
                    key,
                    written,
                },
                false => Piece { number, bytes, latest: bytes, data, store, key, written },
            };
        }
        written
    }

    /// Writes a store to a line, in `from` at the earliest. Returns the cycle.
    #[inline]
    fn write(&mut self, line: u64, from: u64) -> u64 {
        let same = line == self.last_line && line != NO_LINE;
        let joins = self.in_last < if same { self.to_a_line } else { self.in_a_cycle };
        let first = if joins { self.last } else { self.last + 1 };
        let written = first.max(from);
        self.in_last = if written == self.last { self.in_last + 1 } else { 1 };
        (self.last, self.last_line) = (written, line);
        written
    }

    /// A load of `size` bytes at `addr` that begins in `now`.
    #[inline]
    pub(super) fn load(&self, addr: u64, size: u8, now: u64) -> StoredData {
        if now >= self.last {
            return StoredData::Absent;
        }
        let (mut found, mut missing, mut written) = (false, false, 0);
        let (mut data, mut store) = (StoreData::default(), 0);
        let (mut from_start, mut key) = (false, 0);
        for (number, bytes) in pieces(addr, size) {
            let piece = &self.pieces[number as usize % PIECES];
            let here = piece.number == number && piece.written > now && piece.bytes & bytes != 0;
            if here {
                // Of the last store and of an earlier one.
                missing |= piece.latest & bytes != 0 && !piece.latest & bytes != 0;
                missing |= found && piece.store != store;
                if !found {
                    let first = |bytes: u8| bytes.trailing_zeros();
                    (from_start, key) = (first(piece.latest) == first(bytes), piece.key);
                }
                found = true;
                data = data.max(piece.data);
                store = store.max(piece.store);
                written = written.max(piece.written);
            }
            missing |= !here || piece.bytes & bytes != bytes;
        }
        match (found, missing) {
            (false, _) => self.alias(addr, size, now),
            (true, false) => {
                let between = self.count - store;
                StoredData::Forwarded(ForwardedData { data, between, from_start, key })
            }
            (true, true) => StoredData::Blocked(written),
        }
    }

    /// What a load finds when no store of the queue has its bytes.
    #[inline]
    fn alias(&self, addr: u64, size: u8, now: u64) -> StoredData {
        let places = pieces(addr, size).map(|(number, bytes)| {
            let place = self.places.get(number as usize % PLACES)?;
            (place.written > now && place.bytes & bytes != 0).then_some(place.known)
        });
        places.flatten().max().map_or(StoredData::Absent, StoredData::Alias)
    }
}

/// The loads whose stores are predicted, each by its instruction: the ones that were seen last. A
/// load that took its data from the store at the same distance [`SURE`] times in a row is
/// predicted.
#[derive(Clone, Debug)]
pub(crate) struct PredictedLoads {
    /// The last one first.
    recent: Vec<PredictedLoad>,
}

#[derive(Clone, Copy, Debug)]
struct PredictedLoad {
    site: u32,
    between: u64,
    /// How often the prediction was right, up to [`SURE`].
    sure: u8,
}

/// How often the distance must repeat.
const SURE: u8 = 3;

impl PredictedLoads {
    pub(super) fn new(entries: u32) -> PredictedLoads {
        let none = PredictedLoad { site: u32::MAX, between: 0, sure: 0 };
        PredictedLoads { recent: vec![none; entries as usize] }
    }

    /// The load of the instruction `site` takes the data of the store that has `between` others
    /// behind it. Returns whether this was predicted.
    #[inline]
    pub(super) fn predicts(&mut self, site: u32, between: u64) -> bool {
        let Some(oldest) = self.recent.len().checked_sub(1) else { return false };
        let at = self.recent.iter().position(|load| load.site == site).unwrap_or(oldest);
        self.recent[..=at].rotate_right(1);
        let load = &mut self.recent[0];
        if load.site != site || load.between != between {
            *load = PredictedLoad { site, between, sure: 0 };
            return false;
        }
        let sure = load.sure == SURE;
        load.sure = (load.sure + 1).min(SURE);
        sure
    }
}

/// The pieces of 8 bytes that `size` bytes at `addr` touch, each with the bytes that are meant.
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
    use StoredData::{Absent, Blocked};

    fn data(known: u64) -> StoreData {
        StoreData { known, value: known - 1 }
    }

    fn forwarded(known: u64, between: u64) -> StoredData {
        forwarded_from(true, known, between)
    }

    fn forwarded_from(from_start: bool, known: u64, between: u64) -> StoredData {
        let data = data(known);
        StoredData::Forwarded(ForwardedData { data, between, from_start, key: 0 })
    }

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
        let mut stores = Stores::new(2, 1, 1, false);
        assert_eq!(stores.store(Some((64, 8)), 0, data(5), 10, 0), 11);
        assert_eq!(stores.load(64, 8, 7), forwarded(5, 0));
        assert_eq!(stores.load(66, 2, 7), forwarded_from(false, 5, 0));
        assert_eq!(stores.load(60, 8, 7), Blocked(11));
        assert_eq!(stores.load(72, 8, 7), Absent);
        assert_eq!(stores.load(64, 8, 11), Absent);
        // Two stores of four bytes: no load takes data from both.
        let mut halves = Stores::new(4, 1, 1, false);
        halves.store(Some((64, 4)), 0, data(5), 10, 0);
        halves.store(Some((68, 4)), 0, data(6), 10, 0);
        assert_eq!(halves.load(64, 8, 7), Blocked(12));
        assert_eq!(halves.load(68, 4, 7), forwarded(6, 0));
        let mut pieces = Stores::new(4, 1, 1, false);
        pieces.store(Some((64, 8)), 0, data(5), 10, 0);
        pieces.store(Some((72, 8)), 0, data(5), 10, 0);
        assert_eq!(pieces.load(64, 8, 7), forwarded(5, 1));
        assert_eq!(pieces.load(64, 16, 7), Blocked(12));
        pieces.store(Some((64, 16)), 0, data(5), 10, 0);
        assert_eq!(pieces.load(64, 16, 7), forwarded(5, 0));
        // Stores are written one after the other, and when their line is there.
        assert_eq!(stores.store(None, 0, data(5), 10, 30), 30);
        assert_eq!(stores.store(None, 0, data(5), 10, 0), 31);
        // The queue has two entries: the next one takes that of the second store.
        assert_eq!(stores.free(), 30);
    }

    #[test]
    fn stores_to_one_line_are_written_together() {
        let mut stores = Stores::new(8, 2, 1, false);
        let mut write = |addr| stores.store(Some((addr, 8)), 0, data(5), 10, 0);
        assert_eq!([64, 72, 80, 88].map(&mut write), [11, 11, 12, 12]);
        assert_eq!([128, 64, 72].map(&mut write), [13, 14, 14]);
        let mut stores = Stores::new(8, 2, 2, false);
        let mut write = |addr| stores.store(Some((addr, 8)), 0, data(5), 10, 0);
        assert_eq!([64, 128, 72, 80, 136].map(&mut write), [11, 11, 12, 12, 13]);
    }

    #[test]
    fn a_load_knows_where_its_store_begins_and_how_it_named_the_address() {
        let mut stores = Stores::new(2, 1, 1, false);
        stores.store(Some((64, 8)), 77, data(5), 10, 0);
        let from = |addr, size| match stores.load(addr, size, 7) {
            StoredData::Forwarded(ForwardedData { from_start, key, .. }) => (from_start, key),
            _ => unreachable!("the store has all bytes"),
        };
        assert_eq!([from(64, 8), from(64, 4), from(68, 4)], [(true, 77), (true, 77), (false, 77)]);
    }

    #[test]
    fn a_load_is_predicted_when_its_store_repeats() {
        let mut loads = PredictedLoads::new(2);
        assert_eq!(
            [1, 1, 1, 1, 1].map(|it| loads.predicts(5, it)),
            [false, false, false, false, true]
        );
        // Another distance.
        assert_eq!([2, 1].map(|it| loads.predicts(5, it)), [false; 2]);
        for _ in 0..4 {
            loads.predicts(9, 0);
        }
        // Two others drive it out, the one that was used last stays.
        assert!(!loads.predicts(5, 1) && loads.predicts(9, 0));
        assert!(!loads.predicts(6, 1) && loads.predicts(9, 0) && !loads.predicts(5, 1));
        let mut none = PredictedLoads::new(0);
        assert!((0..9).all(|_| !none.predicts(1, 1)));
    }
}
