//! Linked kernels of a few dozen bytes, for tests.
//!
//! Input: sections and symbols. Output: an ELF file's bytes.

/// The lowest address of data.
pub(crate) const DATA: u64 = 0xffff_ffff_8200_0000;

/// A symbol: its name, its address and its size.
pub(crate) struct TestSymbol(pub(crate) &'static str, pub(crate) u64, pub(crate) u64);

/// An executable with these sections (name, address, flags, bytes), each in a segment, and these
/// symbols. Symbols at or above [`DATA`] lie `shift` higher. Symbols of the first section are
/// functions, or labels without a type if they have no size.
pub(crate) fn elf(
    sections: &[(&str, u64, u64, Vec<u8>)],
    symbols: &[TestSymbol],
    shift: u64,
) -> Vec<u8> {
    let mut file = vec![0; 64 + 56 * sections.len()];
    let mut names = vec![0u8];
    let mut headers = vec![[0u8; 64]];
    let mut header = |name: &str, words: [u64; 9], names: &mut Vec<u8>| {
        let mut h = [0; 64];
        h[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
        h[4..8].copy_from_slice(&(words[0] as u32).to_le_bytes());
        for (i, word) in [words[1], words[2], words[3], words[4]].iter().enumerate() {
            h[8 + 8 * i..16 + 8 * i].copy_from_slice(&word.to_le_bytes());
        }
        h[40..44].copy_from_slice(&(words[5] as u32).to_le_bytes());
        h[44..48].copy_from_slice(&(words[6] as u32).to_le_bytes());
        h[48..56].copy_from_slice(&words[7].to_le_bytes());
        h[56..64].copy_from_slice(&words[8].to_le_bytes());
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        headers.push(h);
    };
    for (i, (name, addr, flags, bytes)) in sections.iter().enumerate() {
        let offset = file.len() as u64;
        let size = bytes.len() as u64;
        let (kind, align) = match *name {
            ".notes" => (7, 4),
            // Without bytes in the file.
            ".bss" => (8, 4096),
            name if name.starts_with(".rela") => (4, 8),
            _ => (1, 16),
        };
        header(name, [kind, *flags, *addr, offset, size, 0, 0, align, 0], &mut names);
        let segment = [1 | 7 << 32, offset, *addr, *addr & 0x7fff_ffff, size, size, 4096];
        for (word, at) in segment.iter().zip((64 + 56 * i..).step_by(8)) {
            file[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        if *name != ".bss" {
            file.extend_from_slice(bytes);
        }
    }
    let mut strings = vec![0u8];
    let mut table = vec![0u8; 24];
    for TestSymbol(name, addr, size) in symbols {
        let addr = if *addr >= DATA { addr + shift } else { *addr };
        let section =
            sections.iter().position(|s| (s.1..s.1 + s.3.len() as u64).contains(&addr)).unwrap()
                as u16
                + 1;
        let kind: u8 = match (section, *size) {
            (1, 0) => 0,
            (1, _) => 2,
            _ => 1,
        };
        table.extend((strings.len() as u32).to_le_bytes());
        table.extend([kind | 0x10, 0]);
        table.extend(section.to_le_bytes());
        table.extend(addr.to_le_bytes());
        table.extend(size.to_le_bytes());
        strings.extend_from_slice(name.as_bytes());
        strings.push(0);
    }
    let count = sections.len() as u64;
    header(
        ".symtab",
        [2, 0, 0, file.len() as u64, table.len() as u64, count + 2, 1, 8, 24],
        &mut names,
    );
    file.extend(table);
    header(".strtab", [3, 0, 0, file.len() as u64, strings.len() as u64, 0, 0, 1, 0], &mut names);
    file.extend(strings);
    let length = names.len() as u64 + 10;
    header(".shstrtab", [3, 0, 0, file.len() as u64, length, 0, 0, 1, 0], &mut names);
    file.extend(names);
    let start = file.len() as u64;
    let all = headers.concat();
    file.extend(all);
    file[..16].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (at, half) in [
        (16, 2u16),
        (18, 62),
        (52, 64),
        (54, 56),
        (56, count as u16),
        (58, 64),
        (60, count as u16 + 4),
        (62, count as u16 + 3),
    ] {
        file[at..at + 2].copy_from_slice(&half.to_le_bytes());
    }
    file[20..24].copy_from_slice(&1u32.to_le_bytes());
    file[24..32].copy_from_slice(&0x0100_0000u64.to_le_bytes());
    file[32..40].copy_from_slice(&64u64.to_le_bytes());
    file[40..48].copy_from_slice(&start.to_le_bytes());
    file
}
