//! Writes a relocatable ELF file as the kernel's module loader takes it.
//!
//! Takes sections with their relocations and symbols; gives bytes. Knows nothing of what is in
//! them.

use object::elf::{
    SHT_RELA, SHT_STRTAB, SHT_SYMTAB, STB_GLOBAL, STB_LOCAL, STT_FUNC, STT_NOTYPE, STT_SECTION,
};

/// A section to be.
pub struct ModuleSection {
    pub name: &'static str,
    pub kind: u32,
    pub flags: u64,
    pub align: u64,
    pub data: Vec<u8>,
    pub relocations: Vec<ModuleRelocation>,
}

/// What a relocation is against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelocationBase {
    /// A section, by its number in the list.
    Section(usize),
    /// The one undefined symbol.
    Import,
}

#[derive(Clone, Copy, Debug)]
pub struct ModuleRelocation {
    pub offset: u64,
    pub kind: u32,
    pub against: RelocationBase,
    pub addend: i64,
}

/// A function to be named.
pub struct ModuleSymbol {
    pub name: String,
    pub section: usize,
    pub offset: u64,
    pub size: u64,
}

const HEADER: usize = 64;
const SECTION_HEADER: usize = 64;

/// The file. `import` is the name of the undefined symbol.
pub fn write(sections: &[ModuleSection], symbols: &[ModuleSymbol], import: &str) -> Vec<u8> {
    let mut names = Strings::new();
    let mut out = vec![0; HEADER];
    let mut headers = vec![[0u64; 10]];
    let symtab_index = 1
        + sections.len() as u64
        + sections.iter().filter(|s| !s.relocations.is_empty()).count() as u64;
    let import_index = (1 + sections.len() + symbols.len()) as u64;
    for section in sections {
        let offset = append(&mut out, &section.data, section.align);
        let name = names.add(section.name);
        headers.push(header(
            name,
            section.kind,
            section.flags,
            offset,
            section.data.len(),
            0,
            0,
            section.align,
            0,
        ));
    }
    for (index, section) in sections.iter().enumerate().filter(|(_, s)| !s.relocations.is_empty()) {
        let data: Vec<u8> =
            section.relocations.iter().flat_map(|r| rela(r, import_index)).collect();
        let offset = append(&mut out, &data, 8);
        let name = names.add(&format!(".rela{}", section.name));
        let info = index as u64 + 1;
        headers.push(header(name, SHT_RELA, 0x40, offset, data.len(), symtab_index, info, 8, 24));
    }
    let (symtab, strings) = symbol_table(sections.len(), symbols, import);
    let offset = append(&mut out, &symtab, 8);
    let name = names.add(".symtab");
    headers.push(header(
        name,
        SHT_SYMTAB,
        0,
        offset,
        symtab.len(),
        symtab_index + 1,
        import_index,
        8,
        24,
    ));
    let offset = append(&mut out, &strings, 1);
    let name = names.add(".strtab");
    headers.push(header(name, SHT_STRTAB, 0, offset, strings.len(), 0, 0, 1, 0));
    let name = names.add(".shstrtab");
    let offset = append(&mut out, &names.bytes, 1);
    headers.push(header(name, SHT_STRTAB, 0, offset, names.bytes.len(), 0, 0, 1, 0));
    out.resize(out.len().next_multiple_of(8), 0);
    let table = out.len() as u64;
    for h in &headers {
        write_header(&mut out, h);
    }
    write_file_header(&mut out, table, headers.len() as u16);
    out
}

fn append(out: &mut Vec<u8>, data: &[u8], align: u64) -> u64 {
    out.resize(out.len().next_multiple_of(align.max(1) as usize), 0);
    let offset = out.len() as u64;
    out.extend_from_slice(data);
    offset
}

/// name, type, flags, address, offset, size, link, info, align, entry size.
#[allow(clippy::too_many_arguments, reason = "the fields of Elf64_Shdr, in its order")]
fn header(
    name: u32,
    kind: u32,
    flags: u64,
    offset: u64,
    size: usize,
    link: u64,
    info: u64,
    align: u64,
    entry: u64,
) -> [u64; 10] {
    [u64::from(name), u64::from(kind), flags, 0, offset, size as u64, link, info, align, entry]
}

fn write_header(out: &mut Vec<u8>, h: &[u64; 10]) {
    for (i, &field) in h.iter().enumerate() {
        match i {
            0 | 1 | 6 | 7 => out.extend((field as u32).to_le_bytes()),
            _ => out.extend(field.to_le_bytes()),
        }
    }
}

fn write_file_header(out: &mut [u8], table: u64, count: u16) {
    let mut head = Vec::with_capacity(HEADER);
    // 64 bits, little-endian, version 1, System V.
    head.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    head.extend(object::elf::ET_REL.to_le_bytes());
    head.extend(object::elf::EM_X86_64.to_le_bytes());
    head.extend(1u32.to_le_bytes());
    head.extend([0u64, 0, table].map(u64::to_le_bytes).concat());
    head.extend(0u32.to_le_bytes());
    head.extend(
        [HEADER as u16, 0, 0, SECTION_HEADER as u16, count, count - 1]
            .map(u16::to_le_bytes)
            .concat(),
    );
    out[..HEADER].copy_from_slice(&head);
}

/// The symbol of a section has the number of its header, which is one more than its number in the
/// list.
fn rela(r: &ModuleRelocation, import: u64) -> [u8; 24] {
    let symbol = match r.against {
        RelocationBase::Section(index) => index as u64 + 1,
        RelocationBase::Import => import,
    };
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&r.offset.to_le_bytes());
    bytes[8..16].copy_from_slice(&(symbol << 32 | u64::from(r.kind)).to_le_bytes());
    bytes[16..].copy_from_slice(&r.addend.to_le_bytes());
    bytes
}

fn symbol_table(sections: usize, symbols: &[ModuleSymbol], import: &str) -> (Vec<u8>, Vec<u8>) {
    let mut strings = Strings::new();
    let mut out = vec![0; 24];
    let mut push = |name: u32, info: u8, section: u16, value: u64, size: u64| {
        out.extend(name.to_le_bytes());
        out.extend([info, 0]);
        out.extend(section.to_le_bytes());
        out.extend(value.to_le_bytes());
        out.extend(size.to_le_bytes());
    };
    for section in 0..sections {
        push(0, STB_LOCAL << 4 | STT_SECTION, section as u16 + 1, 0, 0);
    }
    for s in symbols {
        let name = strings.add(&s.name);
        push(name, STB_LOCAL << 4 | STT_FUNC, s.section as u16 + 1, s.offset, s.size);
    }
    let name = strings.add(import);
    push(name, STB_GLOBAL << 4 | STT_NOTYPE, 0, 0, 0);
    (out, strings.bytes)
}

struct Strings {
    bytes: Vec<u8>,
}

impl Strings {
    fn new() -> Strings {
        Strings { bytes: vec![0] }
    }

    fn add(&mut self, text: &str) -> u32 {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
        at
    }
}
