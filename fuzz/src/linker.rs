//! A linker for the objects of [`program`](crate::program): sections at fixed addresses, five types
//! of relocations, and the tables sorted that the kernel's build sorts. It shares no code with
//! `emit` or `check`.

use crate::elf::{self, ALLOC, CODE, SectionSpec, SymbolSpec, SymbolSpecKind, WRITABLE};
use crate::program::{HEAD, SPLIT};
use image::place::Placement;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym, SymbolTable};
use object::{LittleEndian, elf as types};
use std::collections::HashMap;

/// Where `.text` begins.
pub const TEXT: u64 = 0xffff_ffff_8100_0000;
/// Where the other sections begin, one behind the other at [`DISTANCE`].
const DATA: u64 = 0xffff_ffff_8200_0000;
const DISTANCE: u64 = 0x1_0000;

const SECTIONS: [(&str, u64); 7] = [
    (".text", CODE),
    (".data", WRITABLE),
    ("__ex_table", ALLOC),
    ("__jump_table", WRITABLE),
    ("__bug_table", WRITABLE),
    (".orc_unwind_ip", ALLOC),
    (".orc_unwind", ALLOC),
];

/// The sections of an object that are linked as `.text`, in this order
/// (include/asm-generic/vmlinux.lds.h).
const GATHERED: [&str; 4] = [HEAD, SPLIT[0], SPLIT[1], SPLIT[2]];

/// The number of `__jump_table` among [`SECTIONS`].
const KEYS: usize = 3;

/// The no-ops at the places of static keys that are off.
const KEY_NO_OPS: [&[u8]; 2] = [&[0x66, 0x90], &[0x0f, 0x1f, 0x44, 0, 0]];

const LE: LittleEndian = LittleEndian;

/// A linked kernel.
pub struct LinkedProgram {
    pub file: Vec<u8>,
    pub sections: Vec<SectionSpec>,
    pub symbols: Vec<SymbolSpec>,
    /// Where 64-bit addresses stand outside of code, ascending.
    pub absolute: Vec<u64>,
    /// Where 32-bit distances stand outside of code, ascending.
    pub relative: Vec<u64>,
}

impl LinkedProgram {
    pub fn section(&self, name: &str) -> &SectionSpec {
        self.sections.iter().find(|s| s.name == name).expect("every object has every section")
    }
}

/// Where a section of that name lies.
fn address_of(name: &str) -> Option<u64> {
    let number = SECTIONS.iter().position(|(known, _)| *known == name)? as u64;
    Some(if number == 0 { TEXT } else { DATA + DISTANCE * (number - 1) })
}

/// Links an object.
///
/// # Panics
/// The object comes neither from [`program`](crate::program) nor from `emit`.
pub fn link(object: &[u8]) -> LinkedProgram {
    let input = LinkInput::read(object);
    let mut bytes = input.bytes();
    let mut linked = LinkedProgram {
        file: Vec::new(),
        sections: Vec::new(),
        symbols: Vec::new(),
        absolute: Vec::new(),
        relative: Vec::new(),
    };
    input.relocate(&mut bytes, &mut linked);
    sort_tables(&mut bytes);
    for (name, flags) in SECTIONS {
        let address = address_of(name).expect("a known section");
        let bytes = bytes.remove(name).unwrap_or_default();
        linked.sections.push(SectionSpec { name: name.to_owned(), address, flags, bytes });
    }
    linked.sections.push(SectionSpec {
        name: elf::NOTES.to_owned(),
        address: DATA + DISTANCE * 16,
        flags: ALLOC,
        bytes: elf::build_id_note(),
    });
    let mut symbols = input.symbols();
    let keys = linked.section("__jump_table");
    let (start, end) = (keys.address, keys.address + keys.bytes.len() as u64);
    for (name, address) in [("__start___jump_table", start), ("__stop___jump_table", end)] {
        let (name, section) = (name.to_owned(), KEYS);
        symbols.push(SymbolSpec {
            name,
            address,
            size: 0,
            section,
            kind: SymbolSpecKind::Label,
            global: true,
        });
    }
    linked.file = elf::executable(&linked.sections, &symbols);
    linked.symbols = symbols;
    linked
}

/// An object that is being linked.
struct LinkInput<'a> {
    data: &'a [u8],
    table: SectionTable<'a, FileHeader64<LittleEndian>>,
    symbols: SymbolTable<'a, FileHeader64<LittleEndian>>,
    /// The address of each section that is linked, and the number of the linked section that it
    /// goes to.
    places: HashMap<usize, (u64, usize)>,
}

impl<'a> LinkInput<'a> {
    fn read(data: &'a [u8]) -> LinkInput<'a> {
        let header = FileHeader64::<LittleEndian>::parse(data).expect("an object");
        let table = header.sections(LE, data).expect("sections");
        let symbols = table.symbols(LE, data, types::SHT_SYMTAB).expect("symbols");
        let mut input = LinkInput { data, table, symbols, places: HashMap::new() };
        input.place_sections();
        input
    }

    /// Puts the sections of code one behind the other, and all others where they always lie.
    fn place_sections(&mut self) {
        let mut places = HashMap::new();
        let mut end = TEXT;
        for name in GATHERED {
            for (at, section) in self.table.enumerate().filter(|(at, _)| self.name(at.0) == name) {
                let (size, align) = (section.sh_size.get(LE), section.sh_addralign.get(LE));
                let is_needed = size > 0 || name == ".text";
                if is_needed {
                    let address = end.next_multiple_of(align.max(1));
                    places.insert(at.0, (address, 0));
                    end = address + size;
                }
            }
        }
        for (at, _) in self.table.enumerate() {
            let name = self.name(at.0);
            let number = SECTIONS.iter().position(|&(known, _)| known == name);
            if let Some(number) = number.filter(|&number| number > 0) {
                places.insert(at.0, (address_of(name).expect("a known section"), number));
            }
        }
        self.places = places;
    }

    /// A section's name; none for the numbers that name no section.
    fn name(&self, section: usize) -> &'a str {
        let Ok(section) = self.table.section(object::SectionIndex(section)) else { return "" };
        let name = self.table.section_name(LE, section).expect("a name");
        std::str::from_utf8(name).expect("a name is text")
    }

    /// The bytes of the linked sections. `int3` lies between sections of code.
    fn bytes(&self) -> HashMap<String, Vec<u8>> {
        let mut inputs: Vec<(&usize, &(u64, usize))> = self.places.iter().collect();
        inputs.sort_by_key(|&(_, place)| place);
        let mut linked: HashMap<String, Vec<u8>> = HashMap::new();
        for (&input, &(address, number)) in inputs {
            let name = SECTIONS[number].0;
            let bytes = linked.entry(name.to_owned()).or_default();
            let from = address - address_of(name).expect("a known section");
            bytes.resize(from as usize, 0xcc);
            let section = self.table.section(object::SectionIndex(input)).expect("a section");
            bytes.extend(section.data(LE, self.data).expect("bytes"));
        }
        linked
    }

    fn relocate(&self, bytes: &mut HashMap<String, Vec<u8>>, linked: &mut LinkedProgram) {
        for section in self.table.iter().filter(|s| s.sh_type(LE) == types::SHT_RELA) {
            let (entries, _) = section.rela(LE, self.data).expect("right").expect("relocations");
            let Some(&(base, number)) = self.places.get(&(section.sh_info(LE) as usize)) else {
                continue;
            };
            let name = SECTIONS[number].0;
            let data = bytes.get_mut(name).expect("every linked section has bytes");
            let from = base - address_of(name).expect("a known section");
            for entry in entries {
                let (offset, kind) = (entry.r_offset.get(LE), entry.r_type(LE, false));
                apply(data, (from + offset) as usize, base + offset, self.value(entry), kind);
                match kind {
                    types::R_X86_64_64 => linked.absolute.push(base + offset),
                    types::R_X86_64_PC32 if name != ".text" => linked.relative.push(base + offset),
                    _ => {}
                }
            }
        }
        linked.absolute.sort_unstable();
        linked.relative.sort_unstable();
    }

    /// What a relocation refers to.
    fn value(&self, entry: &types::Rela64<LittleEndian>) -> u64 {
        let index = object::SymbolIndex(entry.r_sym(LE, false) as usize);
        let symbol = self.symbols.symbol(index).expect("a symbol");
        let (home, _) = self.places[&usize::from(symbol.st_shndx(LE).0)];
        (home.wrapping_add(symbol.st_value(LE))).wrapping_add_signed(entry.r_addend.get(LE))
    }

    fn symbols(&self) -> Vec<SymbolSpec> {
        let mut found = Vec::new();
        for symbol in self.symbols.iter().filter(|s| s.st_type() != types::STT_SECTION) {
            let Some(&(base, section)) = self.places.get(&usize::from(symbol.st_shndx(LE).0))
            else {
                continue;
            };
            let name = self.symbols.symbol_name(LE, symbol).expect("a name");
            found.push(SymbolSpec {
                name: String::from_utf8_lossy(name).into_owned(),
                address: base + symbol.st_value(LE),
                size: symbol.st_size(LE),
                section,
                kind: if section == 0 { SymbolSpecKind::Function } else { SymbolSpecKind::Data },
                global: symbol.st_bind() == types::STB_GLOBAL,
            });
        }
        found
    }
}

/// Writes a relocated field (System V ABI for AMD64, table 4.10).
fn apply(data: &mut [u8], offset: usize, place: u64, value: u64, kind: types::RelocationType) {
    let distance = value.wrapping_sub(place);
    match kind {
        types::R_X86_64_64 => data[offset..offset + 8].copy_from_slice(&value.to_le_bytes()),
        types::R_X86_64_PC64 => data[offset..offset + 8].copy_from_slice(&distance.to_le_bytes()),
        types::R_X86_64_PC32 | types::R_X86_64_PLT32 => {
            assert_eq!(i64::from(distance as i32) as u64, distance, "a distance of 32 bits");
            data[offset..offset + 4].copy_from_slice(&(distance as u32).to_le_bytes());
        }
        other => panic!("a relocation of type {other}"),
    }
}

/// As the kernel's scripts/sorttable.c: faults by their place, the unwinder's states by their
/// address, at one address the end of a function first.
fn sort_tables(bytes: &mut HashMap<String, Vec<u8>>) {
    let mut take = |name: &str| Near {
        base: address_of(name).expect("a known section"),
        bytes: bytes.remove(name).unwrap_or_default(),
    };
    let [mut faults, mut places] = [take("__ex_table"), take(".orc_unwind_ip")];
    let mut states = take(".orc_unwind").bytes;
    faults.sort_faults();
    let mut entries: Vec<(u64, [u8; 6])> = (states.as_chunks::<6>().0.iter().enumerate())
        .map(|(number, &state)| (places.target(4 * number), state))
        .collect();
    entries.sort_by_key(|&(at, state)| (at, state != [0; 6]));
    for (number, (at, state)) in entries.into_iter().enumerate() {
        places.aim(4 * number, at);
        states[6 * number..6 * number + 6].copy_from_slice(&state);
    }
    for (name, table) in
        [("__ex_table", faults.bytes), (".orc_unwind_ip", places.bytes), (".orc_unwind", states)]
    {
        bytes.insert(name.to_owned(), table);
    }
}

/// A table of 32-bit distances.
struct Near {
    base: u64,
    bytes: Vec<u8>,
}

impl Near {
    fn target(&self, at: usize) -> u64 {
        near(self.base, &self.bytes, at)
    }

    fn aim(&mut self, at: usize, to: u64) {
        let field = to.wrapping_sub(self.base + at as u64) as u32;
        self.bytes[at..at + 4].copy_from_slice(&field.to_le_bytes());
    }

    fn sort_faults(&mut self) {
        let entry = |at: usize| {
            let kind = self.bytes[at + 8..at + 12].to_vec();
            (self.target(at), self.target(at + 4), kind)
        };
        let mut entries: Vec<(u64, u64, Vec<u8>)> =
            (0..self.bytes.len()).step_by(12).map(entry).collect();
        entries.sort_unstable();
        for (number, (site, fixup, kind)) in entries.into_iter().enumerate() {
            self.aim(12 * number, site);
            self.aim(12 * number + 4, fixup);
            self.bytes[12 * number + 8..12 * number + 12].copy_from_slice(&kind);
        }
    }
}

/// What a fuzzer has to know to change a byte that means something.
impl LinkedProgram {
    /// Where the first section's bytes stand in the file; the others follow.
    pub fn file_offset_of_sections(&self) -> usize {
        elf::offset_of_sections(self.sections.len())
    }

    /// The section and the offset in it of a byte of the file.
    pub fn describe(&self, byte: usize) -> String {
        let mut offset = self.file_offset_of_sections();
        for section in &self.sections {
            if (offset..offset + section.bytes.len()).contains(&byte) {
                return format!("{}+{:#x}", section.name, byte - offset);
            }
            offset += section.bytes.len();
        }
        "outside of sections".to_owned()
    }

    /// Whether a byte of code belongs to a place that a static key patches: a no-op may be another
    /// one there.
    pub fn is_static_key(&self, at: u64) -> bool {
        let keys = self.section("__jump_table");
        (0..keys.bytes.len()).step_by(16).any(|entry| {
            let site = near(keys.address, &keys.bytes, entry);
            let text = self.section(".text");
            let first = text.bytes[(site - text.address) as usize];
            let length = if matches!(first, 0x66 | 0xeb) { 2 } else { 5 };
            (site..site + length).contains(&at)
        })
    }

    /// The address that a call in front of `end` goes to. No-ops of static keys may stand behind
    /// the call.
    pub fn called_before(&self, end: u64) -> Option<u64> {
        let text = self.section(".text");
        let mut code = &text.bytes[..(end - text.address) as usize];
        while let Some(rest) = KEY_NO_OPS.iter().find_map(|no_op| code.strip_suffix(*no_op)) {
            code = rest;
        }
        let call = code.last_chunk::<5>()?;
        let next = text.address + code.len() as u64;
        (call[0] == 0xe8).then(|| near(next, &call[1..], 0))
    }

    /// The entries of the unwinder's table that hold for the first byte of a block.
    pub fn states_in_use(&self, map: &Placement) -> Vec<usize> {
        let table = self.section(".orc_unwind_ip");
        let places: Vec<u64> = (0..table.bytes.len())
            .step_by(4)
            .map(|at| near(table.address, &table.bytes, at))
            .collect();
        let starts = map.blocks.iter().filter(|block| block.new_size > 0).map(|block| block.new.0);
        let mut used: Vec<usize> =
            starts.filter_map(|at| places.partition_point(|&p| p <= at).checked_sub(1)).collect();
        used.sort_unstable();
        used.dedup();
        used
    }
}

/// The place that a 32-bit distance in a table at `base` names.
fn near(base: u64, table: &[u8], at: usize) -> u64 {
    let field = i32::from_le_bytes(table[at..at + 4].try_into().expect("four bytes"));
    (base + at as u64).wrapping_add_signed(field.into())
}
