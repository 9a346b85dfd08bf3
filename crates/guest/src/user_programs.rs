//! Which files lay where in the memory of the guest's tasks.
//!
//! Input: a kernel, the lines that the plugin wrote about mappings, and the archive of the guest's
//! files. Output: where the plugin finds mappings, and the programs of each task. Tasks with one
//! name count as one. A task that mapped nothing itself, such as a thread with a name of its own,
//! has what its process has.

use crate::cpio;
use crate::headers::Answers;
use anyhow::{Context, Result};
use image::address::LinkAddr;
use image::btf::Btf;
use image::mapping::map_file;
use image::programs::{FileSegment, Program, ProgramPlace, UserPrograms};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Names and expressions of what the plugin needs, in the order of its argument `programs=`.
const QUESTIONS: [(&str, &str); 8] = [
    ("start", "offsetof(struct vm_area_struct, vm_start)"),
    ("end", "offsetof(struct vm_area_struct, vm_end)"),
    ("pgoff", "offsetof(struct vm_area_struct, vm_pgoff)"),
    ("file", "offsetof(struct vm_area_struct, vm_file)"),
    ("dentry", "offsetof(struct file, f_path.dentry)"),
    ("parent", "offsetof(struct dentry, d_parent)"),
    ("name", "offsetof(struct dentry, d_name.name)"),
    ("tgid", "offsetof(struct task_struct, tgid)"),
];

/// The plugin's argument `programs=`. `mapped`: `perf_event_mmap`.
pub(crate) fn argument(mapped: LinkAddr, offsets: &[u64; 8]) -> String {
    let numbers = std::iter::once(&mapped.0).chain(offsets);
    numbers.map(|number| format!("{number:#x}")).collect::<Vec<_>>().join("+")
}

/// The offsets by a kernel's BTF.
///
/// # Errors
/// A structure or a field is missing.
pub(crate) fn offsets_of_btf(btf: &Btf<'_>) -> Result<[u64; 8]> {
    let offset = |structure: &str, field: &str| {
        let found = btf.offset(structure, field)?;
        found.with_context(|| format!("BTF has no {field} in struct {structure}"))
    };
    Ok([
        offset("vm_area_struct", "vm_start")?,
        offset("vm_area_struct", "vm_end")?,
        offset("vm_area_struct", "vm_pgoff")?,
        offset("vm_area_struct", "vm_file")?,
        offset("file", "f_path")? + offset("path", "dentry")?,
        offset("dentry", "d_parent")?,
        offset("dentry", "d_name")? + offset("qstr", "name")?,
        offset("task_struct", "tgid")?,
    ])
}

/// The offsets by the headers of a build tree.
///
/// # Errors
/// The tree's compiler does not answer.
pub(crate) fn offsets_of_tree(tree: &Path) -> Result<[u64; 8]> {
    let answers = Answers::of_tree(tree, &QUESTIONS)?;
    let mut offsets = [0; 8];
    for (offset, (name, _)) in offsets.iter_mut().zip(QUESTIONS) {
        *offset = answers.number(name)?;
    }
    Ok(offsets)
}

/// Reads what the plugin wrote. `archive`: the guest's files.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn read(lines: &Path, archive: &Path) -> Result<UserPrograms> {
    let text = std::fs::read(lines).with_context(|| lines.display().to_string())?;
    let text = String::from_utf8_lossy(&text);
    let bytes = map_file(archive)?;
    let files = cpio::files(&bytes).with_context(|| archive.display().to_string())?;
    Ok(of_lines(&text, |path| files.get(path).copied()))
}

/// A mapping of a file, or of memory without a file.
struct Mapping<'a> {
    begin: u64,
    end: u64,
    /// In the file.
    offset: u64,
    /// `None`: no file.
    path: Option<&'a str>,
}

fn of_lines<'a>(text: &str, file: impl Fn(&str) -> Option<&'a [u8]>) -> UserPrograms {
    let mut files = Files { programs: Vec::new(), known: HashMap::new(), read: &file };
    // What a process has mapped, as its task was called then.
    let mut places = BTreeMap::<(&str, &str), Vec<ProgramPlace>>::new();
    let mut tasks = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let hex = |field: &str| u64::from_str_radix(field, 16).ok();
        match fields[..] {
            ["map", process, task, begin, end, offset, path] => {
                let numbers = hex(begin).zip(hex(end)).zip(hex(offset));
                let Some(((begin, end), offset)) = numbers else { continue };
                let path = (!path.is_empty()).then_some(path);
                let mapping = Mapping { begin, end, offset, path };
                files.add(places.entry((process, task)).or_default(), &mapping);
            }
            ["task", _, process, task] => tasks.push((process, task)),
            _ => {}
        }
    }
    let mut by_name = BTreeMap::<String, Vec<ProgramPlace>>::new();
    for ((_, task), of_process) in &places {
        by_name.entry((*task).to_owned()).or_default().extend(of_process);
    }
    let mut by_process = BTreeMap::<&str, Vec<ProgramPlace>>::new();
    for ((process, _), of_task) in &places {
        by_process.entry(process).or_default().extend(of_task);
    }
    for (process, task) in tasks {
        let maps_itself = places.keys().any(|(_, mapping)| *mapping == task);
        if let (false, Some(of_process)) = (maps_itself, by_process.get(process)) {
            by_name.entry(task.to_owned()).or_default().extend(of_process);
        }
    }
    for places in by_name.values_mut() {
        places.sort_unstable();
        places.dedup();
    }
    by_name.retain(|_, places| !places.is_empty());
    UserPrograms { programs: files.programs, tasks: by_name }
}

/// The files that were mapped.
struct Files<'a, F> {
    programs: Vec<Program>,
    known: HashMap<String, (u32, Vec<FileSegment>)>,
    read: &'a F,
}

impl<'a, F: Fn(&str) -> Option<&'a [u8]>> Files<'_, F> {
    /// A process maps something: what it had mapped there is gone. Memory without a file in the
    /// midst of a program is that program's.
    fn add(&mut self, places: &mut Vec<ProgramPlace>, mapping: &Mapping<'_>) {
        let new = mapping.path.and_then(|path| self.place(path, mapping, places));
        places.retain(|old| {
            let apart = old.end <= mapping.begin || mapping.end <= old.begin;
            let is_program = self.programs.get(old.program as usize).is_some_and(|it| it.end > 0);
            let is_of_it = match new {
                Some(new) => (new.program, new.bias) == (old.program, old.bias),
                None => is_program,
            };
            apart || is_of_it
        });
        if let Some(new) = new.filter(|new| !places.contains(new)) {
            places.push(new);
        }
    }

    /// `known`: what the process had mapped before.
    fn place(
        &mut self,
        path: &str,
        mapping: &Mapping<'_>,
        known: &[ProgramPlace],
    ) -> Option<ProgramPlace> {
        if !self.known.contains_key(path) {
            let read = (self.read)(path).and_then(|elf| Program::read(path, elf).ok());
            let unknown =
                || Program { path: path.to_owned(), begin: 0, end: 0, objects: Vec::new() };
            let (program, segments) = read.unwrap_or_else(|| (unknown(), Vec::new()));
            self.known.insert(path.to_owned(), (self.programs.len() as u32, segments));
            self.programs.push(program);
        }
        let (program, segments) = self.known.get(path)?;
        let &Program { begin, end, .. } = self.programs.get(*program as usize)?;
        if end == 0 {
            let bias = mapping.begin.checked_sub(mapping.offset)?;
            let Mapping { begin, end, .. } = *mapping;
            return Some(ProgramPlace { program: *program, bias, begin, end });
        }
        // The end of one segment and the beginning of the next can lie in one page of the file,
        // which is then mapped twice.
        let begins = |segment: &&FileSegment| segment.offset / PAGE * PAGE == mapping.offset;
        let biases = segments
            .iter()
            .filter(begins)
            .filter_map(|segment| mapping.begin.checked_sub(segment.addr / PAGE * PAGE));
        let has = |bias: u64| known.iter().any(|it| (it.program, it.bias) == (*program, bias));
        let bias = biases.clone().find(|&bias| has(bias)).or_else(|| biases.clone().next())?;
        let (begin, end) = (bias.checked_add(begin)?, bias.checked_add(end)?);
        Some(ProgramPlace { program: *program, bias, begin, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This program maps its segments at a bias, as the kernel and the dynamic linker do.
    fn lines(process: u32, task: &str, bias: u64) -> (Vec<u8>, String) {
        let elf = std::fs::read("/proc/self/exe").unwrap();
        let (_, segments) = Program::read("it", &elf).unwrap();
        let mut text = String::new();
        for segment in segments {
            let (addr, offset) = (segment.addr / PAGE * PAGE, segment.offset / PAGE * PAGE);
            let begin = bias + addr;
            let end = begin + PAGE;
            text += &format!("map\t{process}\t{task}\t{begin:x}\t{end:x}\t{offset:x}\tbin/it\n");
        }
        (elf, text)
    }

    #[test]
    fn a_variable_of_a_task_and_of_its_threads_is_found() {
        static COUNTED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(7);
        std::hint::black_box(&COUNTED).store(8, std::sync::atomic::Ordering::Relaxed);
        const BIAS: u64 = 0x5555_5000_0000;
        let (elf, mut text) = lines(70, "it", BIAS);
        // A table of the dynamic linker, whose place is used again. Lines with mistakes.
        text += "map\t70\tit\t7000000\t7002000\t0\tetc/cache\nmap\t70\tit\t7000000\t7001000\t0\t\n";
        text += "map\t70\tit\t8000000\t8002000\t3000\ttmp/data\n";
        text += "task\t71\t70\tworker-1\ntask\t72\t9\tstranger\nmap\t1\nmap\t1\tx\ty\tz\t0\t\n";
        // In the midst of the program: what is not in its file.
        text += &format!("map\t70\tit\t{:x}\t{:x}\t0\t\n", BIAS + 0x1000, BIAS + 0x2000);
        let read = |path: &str| (path == "bin/it").then_some(&elf[..]);
        let programs = of_lines(&text, read);
        let (program, _) = Program::read("bin/it", &elf).unwrap();
        let counted = program.objects.iter().find(|object| object.0.contains("COUNTED")).unwrap();
        for task in ["it", "worker-1"] {
            let found = programs.find(task, BIAS + counted.1 + 4).unwrap();
            assert_eq!((found.program, found.object), ("it", Some((counted, 4))), "{task}");
        }
        assert_eq!(programs.find("it", 0x700_0010), None);
        let data = programs.find("it", 0x800_0010).unwrap();
        assert_eq!((data.program, data.object, data.addr), ("data", None, 0x3010));
        assert_eq!(programs.find("stranger", BIAS + counted.1), None);
    }

    /// A program that is not position-independent, and a library above it.
    #[test]
    fn a_program_begins_where_its_first_segment_does() {
        let (elf, text) = lines(70, "it", 0x40_0000);
        let (_, above) = lines(70, "it", 0x7fff_0000_0000);
        let programs = of_lines(&(text + &above), |_| Some(&elf[..]));
        let mut places = programs.tasks["it"].clone();
        places.sort_unstable();
        let begins: Vec<_> = places.iter().map(|place| place.begin).collect();
        assert_eq!(begins, [0x40_0000, 0x7fff_0000_0000]);
    }

    /// The dynamic linker maps a page of the file that holds parts of two segments for each of
    /// them.
    #[test]
    fn a_page_of_the_file_in_two_segments_is_no_second_place() {
        let (elf, _) = lines(70, "it", 0);
        let (program, segments) = Program::read("bin/it", &elf).unwrap();
        let place = |addr: u64, offset: u64| Mapping {
            begin: 0x5555_0000 + addr,
            end: 0x5555_0000 + addr + PAGE,
            offset,
            path: Some("bin/it"),
        };
        let read = |_: &str| Some(&elf[..]);
        let mut files = Files { programs: vec![program], known: HashMap::new(), read: &read };
        let twice = vec![
            FileSegment { offset: 0, addr: 0 },
            FileSegment { offset: 0x2000, addr: 0x2000 },
            FileSegment { offset: 0x2de8, addr: 0x3de8 },
        ];
        assert!(segments.len() > 1);
        files.known.insert("bin/it".to_owned(), (0, twice));
        let mut places = Vec::new();
        for mapping in [place(0, 0), place(0x2000, 0x2000), place(0x3000, 0x2000)] {
            files.add(&mut places, &mapping);
        }
        let biases: Vec<u64> = places.iter().map(|place| place.bias).collect();
        assert_eq!(biases, [0x5555_0000]);
    }

    #[test]
    fn what_replaces_a_program_is_found_in_its_place() {
        let (elf, text) = lines(70, "it", 0x40_0000);
        let text = text.clone() + &text.replace("bin/it", "bin/other");
        let programs = of_lines(&text, |_| Some(&elf[..]));
        let places = &programs.tasks["it"];
        assert_eq!(places.len(), 1, "{places:?}");
        assert_eq!(programs.programs[places[0].program as usize].path, "bin/other");
    }

    #[test]
    fn the_argument_has_nine_numbers() {
        let offsets = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(argument(LinkAddr(0x10), &offsets), "0x10+0x1+0x2+0x3+0x4+0x5+0x6+0x7+0x8");
    }
}
