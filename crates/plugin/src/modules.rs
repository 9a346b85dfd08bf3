//! Follows the loads and unloads of the guest's kernel modules.
//!
//! Input: the registers and the guest's memory at the entry of two functions of the kernel. Output:
//! changes of the loaded modules. The kernel calls `module_finalize` for each module after it has
//! placed and relocated the module's sections, and before any of the module's code runs. The
//! function gets the ELF headers of the module's file, in which the kernel has put the final
//! address of each section. So this module needs no structure of the kernel's own.

use crate::arguments::ModulePlaces;
use crate::mappings::PageTables;
use crate::qemu::{Register, read_memory};
use crate::warn;
use std::ops::Range;
use trace::{LoadedModule, ModuleChange, ModuleId, ModuleSection, PageKind, RunAddr};

/// A function of the kernel that shows a change of the loaded modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModuleFunction {
    /// `module_finalize(header, sections, module)`
    Loaded,
    /// `module_arch_cleanup(module)`
    Unloaded,
}

impl ModuleFunction {
    /// The function for `function as usize`, the value that a callback receives.
    pub(crate) fn from_data(data: usize) -> ModuleFunction {
        match data == ModuleFunction::Unloaded as usize {
            true => ModuleFunction::Unloaded,
            false => ModuleFunction::Loaded,
        }
    }
}

impl ModulePlaces {
    /// The function that begins at this instruction, if the loaded modules change there.
    pub(crate) fn function_at(&self, addr: RunAddr) -> Option<ModuleFunction> {
        if addr.0 == self.finalize {
            return Some(ModuleFunction::Loaded);
        }
        (Some(addr.0) == self.cleanup).then_some(ModuleFunction::Unloaded)
    }
}

/// A change, and where the code of the module is or was.
pub(crate) struct ObservedChange {
    pub change: ModuleChange,
    pub code: Vec<Range<u64>>,
}

impl ObservedChange {
    fn loaded(module: &LoadedModule) -> ObservedChange {
        ObservedChange { change: ModuleChange::Loaded(module.clone()), code: code_of(module) }
    }
}

fn code_of(module: &LoadedModule) -> Vec<Range<u64>> {
    module.sections.iter().map(|section| section.addr.0..section.end()).collect()
}

/// Follows the loaded modules, before a recording and during it.
pub(crate) struct ModuleWatch {
    pub places: ModulePlaces,
    /// The registers of a function's first three arguments. They are looked up at the first use.
    arguments: Option<[Register; 3]>,
    /// The modules that are loaded now, each with the address of its `struct module`.
    loaded: Vec<(u64, LoadedModule)>,
    next: u32,
    warned: bool,
    /// The address of the kernel's `page_offset_base`.
    page_offset_base: Option<u64>,
}

impl ModuleWatch {
    /// Without `page_offset_base`, all pages count as small.
    pub(crate) fn new(places: ModulePlaces, page_offset_base: Option<u64>) -> ModuleWatch {
        let (arguments, loaded) = (None, Vec::new());
        ModuleWatch { places, arguments, loaded, next: 0, warned: false, page_offset_base }
    }

    /// Reads again in which pages the loaded modules lie: Linux splits a large page to write a
    /// module's code, and joins it again when the module is ready (since 6.15). Must be called in a
    /// callback that reads registers.
    pub(crate) fn read_pages(&mut self) {
        let are_large: Vec<_> = self.loaded.iter().map(|(_, it)| self.is_large(it)).collect();
        for ((_, module), is_large) in self.loaded.iter_mut().zip(are_large) {
            module.large_pages = is_large.unwrap_or(module.large_pages);
        }
    }

    /// Numbers the loaded modules anew, from 0. These are the first changes of a recording.
    pub(crate) fn begin(&mut self) -> Vec<ObservedChange> {
        self.next = self.loaded.len() as u32;
        for (number, (_, module)) in self.loaded.iter_mut().enumerate() {
            module.id = ModuleId(number as u32);
        }
        self.loaded.iter().map(|(_, module)| ObservedChange::loaded(module)).collect()
    }

    /// Reads the change at the entry of a function. Must be called in a callback that reads
    /// registers.
    pub(crate) fn at(&mut self, function: ModuleFunction) -> Option<ObservedChange> {
        let Some([first, second, third]) = self.arguments() else {
            self.warn_once("registers rdi, rsi and rdx cannot be read");
            return None;
        };
        if function == ModuleFunction::Unloaded {
            let at = self.loaded.iter().position(|&(place, _)| place == first)?;
            let (_, module) = self.loaded.remove(at);
            let change = ModuleChange::Unloaded(module.id);
            return Some(ObservedChange { change, code: code_of(&module) });
        }
        let read = &|addr: u64| read_memory::<1>(addr).map(|[byte]| byte);
        let Some(mut module) = read_module(first, second, ModuleId(self.next), read) else {
            self.warn_once("the headers of a module cannot be read");
            return None;
        };
        module.large_pages = self.is_large(&module).unwrap_or(false);
        self.next += 1;
        let observed = ObservedChange::loaded(&module);
        self.loaded.push((third, module));
        Some(observed)
    }

    /// Whether the page tables map a module's `.text` by large pages now. `None`: they do not map
    /// it, as those of a user's program when the kernel keeps its pages from programs.
    fn is_large(&self, module: &LoadedModule) -> Option<bool> {
        let text = module.sections.iter().find(|section| section.name == ".text")?;
        let (_, kind) = PageTables::find(self.page_offset_base?)?.walk(text.addr.0)?;
        Some(kind == PageKind::Large)
    }

    fn arguments(&mut self) -> Option<[u64; 3]> {
        let find =
            || Some([Register::find(c"rdi")?, Register::find(c"rsi")?, Register::find(c"rdx")?]);
        self.arguments = self.arguments.or_else(find);
        let [first, second, third] = self.arguments?;
        Some([first.value()?, second.value()?, third.value()?])
    }

    fn warn_once(&mut self, what: &str) {
        if !self.warned {
            warn(&format!("{what}; the code of modules will have no names in the recording"));
            self.warned = true;
        }
    }
}

/// The most sections that a module has. Larger numbers are not headers of a module.
const MOST_SECTIONS: u64 = 4096;
/// The longest name of a section or value of `.modinfo`, in bytes.
const LONGEST: u64 = 256;
/// Flags of a section (`SHF_ALLOC`, `SHF_EXECINSTR`; gABI, section header).
const CODE: u64 = 2 | 4;

/// Reads a module from its ELF header at `header` and its section headers at `sections`. `read`
/// gives a byte of memory. `None`: the memory cannot be read, or holds no such headers.
fn read_module(
    header: u64,
    sections: u64,
    id: ModuleId,
    read: &impl Fn(u64) -> Option<u8>,
) -> Option<LoadedModule> {
    let number = |at: u64, bytes: u64| {
        (0..bytes)
            .rev()
            .try_fold(0_u64, |sum, i| Some(sum << 8 | u64::from(read(at.wrapping_add(i))?)))
    };
    let text = |at: u64| {
        let mut bytes = Vec::new();
        for i in 0..LONGEST {
            match read(at.wrapping_add(i))? {
                0 => return String::from_utf8(bytes).ok(),
                byte => bytes.push(byte),
            }
        }
        None
    };
    // Elf64_Ehdr and Elf64_Shdr, elf(5).
    let (count, names) = (number(header.wrapping_add(60), 2)?, number(header.wrapping_add(62), 2)?);
    if count > MOST_SECTIONS || names >= count {
        return None;
    }
    let field =
        |section: u64, at: u64, bytes| number(sections.wrapping_add(section * 64 + at), bytes);
    let strings = header.wrapping_add(field(names, 24, 8)?);
    let mut module = LoadedModule {
        id,
        name: String::new(),
        build_id: String::new(),
        large_pages: false,
        sections: Vec::new(),
    };
    for section in 1..count {
        let name = text(strings.wrapping_add(field(section, 0, 4)?))?;
        let (flags, addr, size) =
            (field(section, 8, 8)?, field(section, 16, 8)?, field(section, 32, 8)?);
        match name.as_str() {
            ".modinfo" => module.name = module_name(addr, size, &text).unwrap_or_default(),
            ".note.gnu.build-id" => module.build_id = build_id(addr, &number).unwrap_or_default(),
            _ if flags & CODE == CODE => {
                module.sections.push(ModuleSection { name, addr: RunAddr(addr), size });
            }
            _ => {}
        }
    }
    (!module.name.is_empty()).then_some(module)
}

/// The value of `name=` in `.modinfo`, which is a sequence of `key=value`, each with a NUL behind.
fn module_name(addr: u64, size: u64, text: &impl Fn(u64) -> Option<String>) -> Option<String> {
    let mut at = 0;
    while at < size {
        match text(addr.wrapping_add(at)) {
            Some(entry) if entry.starts_with("name=") => return Some(entry[5..].to_owned()),
            Some(entry) => at += entry.len() as u64 + 1,
            // A longer value.
            None => at += LONGEST,
        }
    }
    None
}

/// The build id in a note: sizes of name and descriptor, the type, the name `GNU`, the descriptor.
fn build_id(addr: u64, number: &impl Fn(u64, u64) -> Option<u64>) -> Option<String> {
    const MOST: u64 = 64;
    let size = number(addr.wrapping_add(4), 4).filter(|&size| size <= MOST)?;
    let bytes = (0..size).map(|i| number(addr.wrapping_add(16 + i), 1));
    bytes.map(|byte| Some(format!("{:02x}", byte?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: u64 = 0x1000;
    const SECTIONS: u64 = 0x2000;

    /// Memory with the headers of a module: section 1 `.text`, 2 `.init.text`, 3 `.data`,
    /// 4 `.modinfo`, 5 the build id, 6 the names of sections.
    fn memory() -> Vec<u8> {
        let mut memory = vec![0; 0x4000];
        let mut put = |at: u64, bytes: &[u8]| {
            memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        };
        put(HEADER + 60, &[7, 0, 6, 0]);
        let names = b"\0.text\0.init.text\0.data\0.modinfo\0.note.gnu.build-id\0";
        put(HEADER + 0x800, names);
        let place = |name: &[u8]| {
            names.windows(name.len()).position(|window| window == name).unwrap() as u32
        };
        let mut section = |index: u64, name: u32, flags: u64, addr: u64, size: u64| {
            let at = SECTIONS + 64 * index;
            put(at, &name.to_le_bytes());
            put(at + 8, &flags.to_le_bytes());
            put(at + 16, &addr.to_le_bytes());
            put(at + 24, &0x800_u64.to_le_bytes());
            put(at + 32, &size.to_le_bytes());
        };
        section(1, place(b".text\0"), 6, 0xffff_ffff_c000_0000, 0x80);
        section(2, place(b".init.text\0"), 6, 0xffff_ffff_c000_4000, 0x10);
        section(3, place(b".data\0"), 3, 0xffff_ffff_c000_8000, 0x10);
        section(4, place(b".modinfo\0"), 0, 0x3000, 24);
        section(5, place(b".note.gnu.build-id\0"), 2, 0x3100, 20);
        section(6, 0, 0, 0, 0);
        put(0x3000, b"license=GPL\0name=my_mod\0x");
        put(0x3100, &[4, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0, 0xca, 0xfe, 0, 1]);
        memory
    }

    #[test]
    fn a_module_is_read_from_its_headers() {
        let memory = memory();
        let read = |addr: u64| memory.get(addr as usize).copied();
        let module = read_module(HEADER, SECTIONS, ModuleId(3), &read).unwrap();
        assert_eq!((module.id.0, module.name.as_str()), (3, "my_mod"));
        assert_eq!(module.build_id, "cafe0001");
        let code: Vec<_> =
            module.sections.iter().map(|s| (s.name.as_str(), s.addr.0, s.size)).collect();
        let expected =
            [(".text", 0xffff_ffff_c000_0000, 0x80), (".init.text", 0xffff_ffff_c000_4000, 0x10)];
        assert_eq!(code, expected);
    }

    #[test]
    fn memory_without_headers_gives_no_module() {
        let memory = memory();
        for end in (0..memory.len()).step_by(61).filter(|&end| end < 0x3018) {
            let read = |addr: u64| memory[..end].get(addr as usize).copied();
            assert_eq!(read_module(HEADER, SECTIONS, ModuleId(0), &read), None, "{end:#x}");
        }
        let full = |_: u64| Some(0xff);
        assert_eq!(read_module(HEADER, SECTIONS, ModuleId(0), &full), None);
    }

    #[test]
    fn loaded_modules_are_numbered_anew_when_recording_begins() {
        let mut watch =
            ModuleWatch::new(ModulePlaces { finalize: 0x10, cleanup: Some(0x20) }, None);
        let module = |id, addr| LoadedModule {
            id: ModuleId(id),
            name: "m".into(),
            build_id: String::new(),
            large_pages: false,
            sections: vec![ModuleSection { name: ".text".into(), addr: RunAddr(addr), size: 0x10 }],
        };
        watch.loaded = vec![(1, module(2, 0x1000)), (2, module(5, 0x2000))];
        watch.next = 6;
        let changes = watch.begin();
        let ids: Vec<_> = watch.loaded.iter().map(|(_, module)| module.id.0).collect();
        assert_eq!((ids, watch.next), (vec![0, 1], 2));
        assert_eq!(changes[1].change, ModuleChange::Loaded(module(1, 0x2000)));
        assert_eq!(changes[1].code, std::slice::from_ref(&(0x2000..0x2010)));
        assert_eq!(watch.places.function_at(RunAddr(0x10)), Some(ModuleFunction::Loaded));
        assert_eq!(watch.places.function_at(RunAddr(0x20)), Some(ModuleFunction::Unloaded));
        assert_eq!(watch.places.function_at(RunAddr(0x30)), None);
    }
}
