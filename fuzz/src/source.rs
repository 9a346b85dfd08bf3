//! A fuzzer's bytes, taken from the front as numbers and stretches. Behind the end everything is 0,
//! so that any bytes are an input.

pub struct ByteSource<'a>(&'a [u8]);

impl<'a> ByteSource<'a> {
    pub fn new(bytes: &'a [u8]) -> ByteSource<'a> {
        ByteSource(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// A number below `limit`, which is at most 256.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// A stretch behind its length of two bytes; shorter where the bytes end.
    pub fn stretch(&mut self) -> &'a [u8] {
        let length = usize::from(self.word()).min(self.0.len());
        let (stretch, rest) = self.0.split_at(length);
        self.0 = rest;
        stretch
    }
}

/// A stretch as [`ByteSource::stretch`] reads it.
pub fn stretch(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_le_bytes()[..], bytes].concat()
}
