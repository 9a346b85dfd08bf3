//! Splits functions into chunks of 256 bytes. Gloy and Smith's algorithm uses them to see which
//! parts of a large function are in use.
//!
//! Input: the sizes of a function's blocks. Output: the chunk of each block. The profile and the
//! layout both use this module, so they agree on the chunks.

/// The bytes of a chunk (Gloy and Smith 1999, section 4.3: "256 bytes").
pub(crate) const CHUNK_BYTES: u64 = 256;

/// For each block of a function, the number of the first block in its chunk. A block belongs to the
/// chunk in which it starts. Offsets count from the end of the entry block. So padding before the
/// entry, which some tools count as part of it, shifts nothing.
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
    fn chunks_end_after_256_bytes_for_any_size_of_the_entry() {
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
