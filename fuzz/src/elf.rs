//! Small linked kernels as ELF files: sections where they are wanted, a segment for each, and
//! symbols. The linker and the targets for readers of linked kernels use it.

/// A section that is loaded.
pub struct SectionSpec {
    pub name: String,
    pub address: u64,
    /// `SHF_…`.
    pub flags: u64,
    pub bytes: Vec<u8>,
}

pub struct SymbolSpec {
    pub name: String,
    pub address: u64,
    pub size: u64,
    /// Number among the sections.
    pub section: usize,
    pub kind: SymbolSpecKind,
    pub global: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SymbolSpecKind {
    Label = 0,
    Data = 1,
    Function = 2,
}

pub const ALLOC: u64 = 2;
pub const CODE: u64 = 6;
pub const WRITABLE: u64 = 3;
/// The name of the section that holds the build id.
pub const NOTES: &str = ".notes";

const HEADER: usize = 64;
const SEGMENT: usize = 56;

/// A build-id note (elf(5)) of 20 bytes.
pub fn build_id_note() -> Vec<u8> {
    let words = [4_u32, 20, 3].map(u32::to_le_bytes).concat();
    [&words[..], b"GNU\0", &[0x5f; 20]].concat()
}

/// Where in the file the bytes of the first section lie; the others follow without gaps.
pub fn offset_of_sections(count: usize) -> usize {
    HEADER + SEGMENT * count
}

/// The file.
pub fn executable(sections: &[SectionSpec], symbols: &[SymbolSpec]) -> Vec<u8> {
    let mut file = vec![0; offset_of_sections(sections.len())];
    let mut strings = vec![0];
    let mut headers = vec![[0_u64; 10]];
    for (number, section) in sections.iter().enumerate() {
        let (offset, size) = (file.len() as u64, section.bytes.len() as u64);
        let kind = if section.name == NOTES { 7 } else { 1 };
        let name = add_string(&mut strings, &section.name);
        let address = section.address;
        headers.push([name, kind, section.flags, address, offset, size, 0, 0, 1, 0]);
        let physical = address & 0x7fff_ffff;
        let segment = [1 | 7 << 32, offset, address, physical, size, size, 4096];
        let at = HEADER + SEGMENT * number;
        file[at..at + SEGMENT].copy_from_slice(&segment.map(u64::to_le_bytes).concat());
        file.extend(&section.bytes);
    }
    let strings_number = sections.len() as u64 + 2;
    let table = symbol_table(symbols, &mut strings);
    let name = add_string(&mut strings, ".symtab");
    let (offset, size) = (file.len() as u64, table.len() as u64);
    headers.push([name, 2, 0, 0, offset, size, strings_number, 1, 8, 24]);
    file.extend(table);
    let name = add_string(&mut strings, ".strtab");
    headers.push([name, 3, 0, 0, file.len() as u64, strings.len() as u64, 0, 0, 1, 0]);
    file.extend(strings);
    let start = file.len() as u64;
    file.extend(headers.iter().flat_map(section_header));
    write_header(&mut file, start, sections.len() as u16);
    file
}

fn add_string(strings: &mut Vec<u8>, text: &str) -> u64 {
    let at = strings.len();
    strings.extend(text.as_bytes());
    strings.push(0);
    at as u64
}

fn symbol_table(symbols: &[SymbolSpec], strings: &mut Vec<u8>) -> Vec<u8> {
    let mut table = vec![0; 24];
    for symbol in symbols {
        table.extend((add_string(strings, &symbol.name) as u32).to_le_bytes());
        table.extend([u8::from(symbol.global) << 4 | symbol.kind as u8, 0]);
        table.extend((symbol.section as u16 + 1).to_le_bytes());
        table.extend(symbol.address.to_le_bytes());
        table.extend(symbol.size.to_le_bytes());
    }
    table
}

/// Name, type, flags, address, offset, size, link, info, alignment, entry size.
fn section_header(words: &[u64; 10]) -> Vec<u8> {
    let half = |word: u64| (word as u32).to_le_bytes().to_vec();
    let mut bytes = Vec::with_capacity(64);
    for (number, &word) in words.iter().enumerate() {
        match number {
            0 | 1 | 6 | 7 => bytes.extend(half(word)),
            _ => bytes.extend(word.to_le_bytes()),
        }
    }
    bytes
}

fn write_header(file: &mut [u8], sections_at: u64, sections: u16) {
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let halves = [(16, 2), (18, 62), (20, 1), (52, 64), (54, 56), (56, sections), (58, 64)];
    // The null section and the two tables come on top; names and symbols share the strings.
    let all = [(60, sections + 3), (62, sections + 2)];
    for (at, half) in halves.into_iter().chain(all) {
        file[at..at + 2].copy_from_slice(&half.to_le_bytes());
    }
    for (at, word) in [(24, 0x0100_0000), (32, HEADER as u64), (40, sections_at)] {
        file[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
}
