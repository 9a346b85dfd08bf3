//! Little-endian fields, taken from the front of bytes.
//!
//! Input: bytes of a file. Output: numbers. This module never reads beyond the end: it returns
//! `None`.

/// The bytes that are left.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    /// The next 16 bits.
    pub(super) fn half(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    /// The next 32 bits.
    pub(super) fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// The next 64 bits.
    pub(super) fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// The next `length` bytes.
    pub(super) fn bytes(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    /// The offset and the size of a section (`struct perf_file_section`), and its bytes in `file`.
    pub(super) fn section<'f>(&mut self, file: &'f [u8]) -> Option<(u64, u64, Option<&'f [u8]>)> {
        let (offset, size) = (self.number()?, self.number()?);
        let mut rest = Fields(file);
        let bytes = rest.bytes(offset).and_then(|_| rest.bytes(size));
        Some((offset, size, bytes))
    }
}
