//! What the files of users' programs and libraries say of their data, and where tasks had them.
//!
//! Input: ELF files, and the places at which tasks mapped them. Output: the symbol that an address
//! of a task's memory belongs to. Tasks are known by their names only. An address that could
//! belong to two files has no name.

use anyhow::Context;
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A variable of a program. In JSON: a text with address and size in hex, and the symbol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProgramObject(
    /// Its symbol.
    pub String,
    /// Its address in the file.
    pub u64,
    /// Its size in bytes.
    pub u64,
);

/// A program or a library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Its path in the guest, without a slash in front.
    pub path: String,
    /// The addresses of its first byte in memory and behind its last one, in the file. Both 0: the
    /// file is not known.
    pub begin: u64,
    /// See `begin`.
    pub end: u64,
    /// The variables that it may write, ascending by address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ProgramObject>,
}

impl From<ProgramObject> for String {
    fn from(ProgramObject(name, addr, size): ProgramObject) -> String {
        format!("{addr:x} {size:x} {name}")
    }
}

impl TryFrom<String> for ProgramObject {
    type Error = String;

    fn try_from(text: String) -> Result<ProgramObject, String> {
        let [addr, size, name] = parts(&text)?;
        Ok(ProgramObject(name.to_owned(), hex(addr)?, hex(size)?))
    }
}

fn parts<const N: usize>(text: &str) -> Result<[&str; N], String> {
    let parts: Vec<&str> = text.splitn(N, ' ').collect();
    parts.try_into().map_err(|_| format!("{text:?} does not have {N} parts"))
}

fn hex(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|error| format!("{text:?}: {error}"))
}

/// A program in a task's memory. In JSON: a text with the three addresses in hex, in their order,
/// and the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProgramPlace {
    /// A number in [`UserPrograms::programs`].
    pub program: u32,
    /// What is added to addresses of the file.
    pub bias: u64,
    /// The address of its first byte in memory.
    pub begin: u64,
    /// The address behind its last byte in memory.
    pub end: u64,
}

impl From<ProgramPlace> for String {
    fn from(ProgramPlace { program, bias, begin, end }: ProgramPlace) -> String {
        format!("{bias:x} {begin:x} {end:x} {program}")
    }
}

impl TryFrom<String> for ProgramPlace {
    type Error = String;

    fn try_from(text: String) -> Result<ProgramPlace, String> {
        let [bias, begin, end, program] = parts(&text)?;
        let program = program.parse().map_err(|_| format!("{program:?} is no number"))?;
        Ok(ProgramPlace { program, bias: hex(bias)?, begin: hex(begin)?, end: hex(end)? })
    }
}

/// The programs of a recording's tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserPrograms {
    /// Each file once.
    pub programs: Vec<Program>,
    /// What tasks with a name had mapped, ascending.
    pub tasks: BTreeMap<String, Vec<ProgramPlace>>,
}

/// Where an address lies in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InProgram<'a> {
    /// The last part of the program's path.
    pub program: &'a str,
    /// The variable and the offset in it; `None`: no symbol is there.
    pub object: Option<(&'a ProgramObject, u64)>,
    /// The address in the file.
    pub addr: u64,
}

/// A loadable segment of a file: what is mapped, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSegment {
    /// The offset in the file.
    pub offset: u64,
    /// The address in the file of its first byte.
    pub addr: u64,
}

impl Program {
    /// Reads a file; also gives its segments.
    ///
    /// # Errors
    /// It is no ELF file that can be read.
    pub fn read(path: &str, elf: &[u8]) -> anyhow::Result<(Program, Vec<FileSegment>)> {
        let elf = object::File::parse(elf).with_context(|| format!("{path} is no ELF file"))?;
        let end = |segment: &object::Segment<'_, '_>| segment.address().checked_add(segment.size());
        let ends = elf.segments().map(|segment| end(&segment)).collect::<Option<Vec<u64>>>();
        let ends = ends.with_context(|| format!("{path} has a segment that wraps around"))?;
        let segments = elf
            .segments()
            .map(|segment| FileSegment { offset: segment.file_range().0, addr: segment.address() });
        let is_written = |addr: u64| {
            elf.segments().any(|it| {
                it.permissions().writable()
                    && end(&it).is_some_and(|end| addr < end)
                    && addr >= it.address()
            })
        };
        let mut objects = BTreeMap::<u64, ProgramObject>::new();
        for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
            let is_data = symbol.kind() == SymbolKind::Data && symbol.is_definition();
            if !is_data || symbol.size() == 0 || !is_written(symbol.address()) {
                continue;
            }
            let Ok(name) = symbol.name() else { continue };
            let found = ProgramObject(readable(name), symbol.address(), symbol.size());
            // Of several names, the one that its author would use: `environ`, not `__environ`.
            let rank = |object: &ProgramObject| {
                let underscores = object.0.len() - object.0.trim_start_matches('_').len();
                (u64::MAX - object.2, underscores, object.0.clone())
            };
            match objects.get_mut(&symbol.address()) {
                Some(known) if rank(known) <= rank(&found) => {}
                Some(known) => *known = found,
                None => drop(objects.insert(symbol.address(), found)),
            }
        }
        let begin = elf.segments().map(|segment| segment.address()).min().unwrap_or(0);
        let end = ends.into_iter().max().unwrap_or(0);
        let objects = objects.into_values().collect();
        Ok((Program { path: path.to_owned(), begin, end, objects }, segments.collect()))
    }

    fn object(&self, addr: u64) -> Option<(&ProgramObject, u64)> {
        let behind = self.objects.partition_point(|object| object.1 <= addr);
        let object = &self.objects[behind.checked_sub(1)?];
        // A file that was changed by hand may have its variables in another order.
        let offset = addr.checked_sub(object.1)?;
        (offset < object.2).then_some((object, offset))
    }
}

/// A symbol as its source has it, if it is one of Rust or C++.
fn readable(symbol: &str) -> String {
    if let Ok(of_rust) = rustc_demangle::try_demangle(symbol) {
        return format!("{of_rust:#}");
    }
    let of_cpp = || cpp_demangle::Symbol::new(symbol).ok()?.demangle().ok();
    let of_cpp = symbol.starts_with("_Z").then(of_cpp).flatten();
    of_cpp.unwrap_or_else(|| symbol.to_owned())
}

impl UserPrograms {
    /// Where an address lies in the memory of tasks with this name.
    pub fn find(&self, task: &str, addr: u64) -> Option<InProgram<'_>> {
        let places = self.tasks.get(task)?;
        let mut found = places.iter().filter(|it| (it.begin..it.end).contains(&addr));
        let place = found.next()?;
        if found.next().is_some() {
            return None;
        }
        let program = self.programs.get(place.program as usize)?;
        let addr = addr.checked_sub(place.bias)?;
        Some(InProgram {
            program: program.path.rsplit('/').next().unwrap_or(&program.path),
            object: program.object(addr),
            addr,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs() -> UserPrograms {
        let object = |name: &str, addr, size| ProgramObject(name.into(), addr, size);
        let sharer = Program {
            path: "usr/bin/sharer".into(),
            begin: 0,
            end: 0x5000,
            objects: vec![object("counters", 0x4040, 32), object("total", 0x4080, 8)],
        };
        let other =
            Program { path: "bin/other".into(), begin: 0, end: 0x6000, objects: Vec::new() };
        let place = |program, bias, end| ProgramPlace { program, bias, begin: bias, end };
        UserPrograms {
            programs: vec![sharer, other],
            tasks: [
                (
                    "fixed".into(),
                    vec![ProgramPlace { program: 0, bias: 0, begin: 0x1000, end: 0x5000 }],
                ),
                ("sharer".into(), vec![place(0, 0x5555_0000, 0x5555_5000)]),
                (
                    "both".into(),
                    vec![place(0, 0x5555_0000, 0x5555_5000), place(1, 0x5555_0000, 0x5555_6000)],
                ),
            ]
            .into(),
        }
    }

    #[test]
    fn an_address_has_the_symbol_of_the_tasks_program() {
        let programs = programs();
        let named = |task, addr| {
            let found = programs.find(task, addr)?;
            let object = found.object.map(|(object, offset)| (object.0.as_str(), offset));
            Some((found.program, object, found.addr))
        };
        assert_eq!(named("sharer", 0x5555_4048), Some(("sharer", Some(("counters", 8)), 0x4048)));
        assert_eq!(named("sharer", 0x5555_4060), Some(("sharer", None, 0x4060)));
        assert_eq!(named("sharer", 0x5555_4000), Some(("sharer", None, 0x4000)));
        assert_eq!(named("sharer", 0x5555_5000), None, "behind its end");
        assert_eq!(named("sharer", 0x5554_ffff), None, "in front of it");
        assert_eq!(named("fixed", 0x4048), Some(("sharer", Some(("counters", 8)), 0x4048)));
        assert_eq!(named("fixed", 0xfff), None, "in front of its first segment");
        assert_eq!(named("other", 0x5555_4048), None, "another task");
        assert_eq!(named("both", 0x5555_4048), None, "two programs could be there");
        assert_eq!(named("both", 0x5555_5800), Some(("other", None, 0x5800)));
    }

    #[test]
    fn symbols_are_those_of_the_source() {
        assert_eq!(readable("counters"), "counters");
        assert_eq!(readable("_ZN4pool5countE"), "pool::count");
        let of_rust = "_ZN6server5STATS17h0123456789abcdefE";
        assert_eq!(readable(of_rust), "server::STATS");
        assert_eq!(readable("_Zunknown"), "_Zunknown");
    }

    #[test]
    fn programs_are_read_as_they_were_written() {
        let json = serde_json::to_string(&programs()).unwrap();
        assert!(json.contains(r#""4040 20 counters""#), "{json}");
        assert!(json.contains(r#""55550000 55550000 55555000 0""#), "{json}");
        assert_eq!(serde_json::from_str::<UserPrograms>(&json).unwrap(), programs());
        for wrong in ["4040 20", "x 20 a", "4040 y a"] {
            assert!(ProgramObject::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
        assert!(ProgramPlace::try_from("1 2 3 -4".to_owned()).is_err());
        let mut disordered = programs();
        disordered.programs[0].objects.reverse();
        disordered.programs[0].objects.push(ProgramObject("low".into(), 0x10, 8));
        for addr in (0x5555_0000..0x5555_5000).step_by(8) {
            let _ = disordered.find("sharer", addr);
        }
    }

    #[test]
    fn the_test_program_itself_is_read() {
        static WRITTEN: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(7);
        std::hint::black_box(&WRITTEN).store(8, std::sync::atomic::Ordering::Relaxed);
        let elf = std::fs::read("/proc/self/exe").unwrap();
        let (program, segments) = Program::read("tests", &elf).unwrap();
        let has = |object: &ProgramObject| object.0.contains("WRITTEN") && object.2 == 8;
        assert!(program.objects.iter().any(has), "{:?}", program.objects.len());
        assert!(program.objects.windows(2).all(|pair| pair[0].1 < pair[1].1));
        assert!(segments.iter().any(|segment| segment.offset == 0));
        assert!(program.end > 0x1000);
        for end in (0..elf.len().min(4096)).step_by(13) {
            // A file that was cut off gives an error or what is left; it never panics.
            let _ = Program::read("cut", &elf[..end]);
        }
    }
}
