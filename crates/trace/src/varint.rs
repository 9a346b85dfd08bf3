//! Integers of variable length (LEB128): seven bits in each byte, the lowest first. Bit 7 is set in
//! all bytes but the last. Signed numbers are folded first (zigzag: 0, −1, 1, −2, … become 0, 1, 2,
//! 3, …).
//!
//! Input: numbers, or bytes. Output: the reverse. Bytes that end too early give none.

/// Appends a number.
#[inline]
pub(crate) fn put(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends `to - from`, modulo 2⁶⁴.
#[inline]
pub(crate) fn put_step(from: u64, to: u64, out: &mut Vec<u8>) {
    let step = to.wrapping_sub(from) as i64;
    put((step << 1 ^ step >> 63) as u64, out);
}

/// Takes numbers from the front of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VarintCursor<'a>(pub &'a [u8]);

impl VarintCursor<'_> {
    /// The next number. `None`: the bytes end early, or the number has more than 64 bits.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u64> {
        let (&first, rest) = self.0.split_first()?;
        if first < 0x80 {
            self.0 = rest;
            return Some(first.into());
        }
        if let [_, second, rest @ ..] = self.0
            && *second < 0x80
        {
            self.0 = rest;
            return Some(u64::from(first & 0x7f) | u64::from(*second) << 7);
        }
        self.longer()
    }

    fn longer(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0_u64, 0);
        for (at, &byte) in self.0.iter().enumerate().take(10) {
            if shift == 63 && byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return Some(value);
            }
            shift += 7;
        }
        None
    }

    /// The number at a signed step from `from`.
    #[inline]
    pub(crate) fn step(&mut self, from: u64) -> Option<u64> {
        let folded = self.next()?;
        Some(from.wrapping_add(folded >> 1 ^ (folded & 1).wrapping_neg()))
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_back() {
        let values = (0..64).flat_map(|bit| [1_u64 << bit, (1 << bit) - 1, u64::MAX << bit]);
        for value in values {
            let mut bytes = Vec::new();
            put(value, &mut bytes);
            put_step(value, 7, &mut bytes);
            put_step(7, value, &mut bytes);
            let mut numbers = VarintCursor(&bytes);
            assert_eq!(numbers.next(), Some(value));
            assert_eq!(numbers.step(value), Some(7));
            assert_eq!(numbers.step(7), Some(value));
            assert!(numbers.is_empty());
        }
    }

    #[test]
    fn small_steps_are_one_byte() {
        for step in -64..64_i64 {
            let mut bytes = Vec::new();
            put_step(
                0xff11_0000_0000_0000,
                0xff11_0000_0000_0000_u64.wrapping_add_signed(step),
                &mut bytes,
            );
            assert_eq!(bytes.len(), 1, "{step}");
        }
    }

    #[test]
    fn bytes_that_hold_no_number_give_none() {
        for bytes in [&[][..], &[0x80], &[0xff; 9], &[0xff; 10], &[0xff; 11]] {
            assert_eq!(VarintCursor(bytes).next(), None, "{bytes:x?}");
        }
        let most = [[0xff; 9].as_slice(), &[1]].concat();
        assert_eq!(VarintCursor(&most).next(), Some(u64::MAX));
        let more = [[0xff; 9].as_slice(), &[2]].concat();
        assert_eq!(VarintCursor(&more).next(), None);
    }
}
