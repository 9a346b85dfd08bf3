//! Functions in chunks: stretches of 256 bytes, by which Gloy-Smith tells what of a large function
//! is in use.
//!
//! Takes the sizes of a function's blocks; says which chunk each is in. Profile and layout agree on
//! chunks by using this.

/// Bytes of a chunk (Gloy and Smith 1999, section 4.3: "256 bytes").
pub const CHUNK_BYTES: u64 = 256;

/// By block of a function, the number of the first block of its chunk. Offsets are counted from the
/// end of the entry block, so that padding in front of the entry, which not everybody counts to its
/// size, shifts nothing; a block belongs where it starts.
pub fn first_of_chunk(sizes: &[u32]) -> Vec<u32> {
    let (mut first, mut chunk, mut offset) = (0, 0, 0);
    let each = |(number, &size): (usize, &u32)| {
        if offset / CHUNK_BYTES != chunk {
            (first, chunk) = (number as u32, offset / CHUNK_BYTES);
        }
        offset += if number == 0 { 0 } else { u64::from(size) };
        first
    };
    sizes.iter().enumerate().map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::first_of_chunk;

    #[test]
    fn chunks_end_after_256_bytes_whatever_the_entry_brings_along() {
        for entry in [1, 17, 4000] {
            assert_eq!(
                first_of_chunk(&[entry, 100, 156, 10, 600, 5, 5]),
                [0, 0, 0, 3, 3, 5, 5],
                "{entry}"
            );
        }
        assert_eq!(first_of_chunk(&[]), []);
    }
}
