//! `emit` against `check`: what the targets use of `kernlane-emit`.
//!
//! A random program is linked; it is linked again, rewritten in a random order. `check` must accept
//! the second kernel, and must refuse it when one byte of it that means something is another.

use crate::check_readers::CheckedProgram;
use crate::linker::{LinkedProgram, link};
use crate::program::{GeneratedProgram, SPLIT};
use crate::source::ByteSource;
use emit::object::{PartNames, RewritePlan, Rewritten, rewrite};
use image::object::elf::Elf;
use image::object::linked::LinkAddresses;
use image::object::{KernelObject, ObjectHints};
use image::place::Placement;

pub fn relinked(bytes: &[u8]) {
    let mut source = ByteSource::new(bytes);
    let program = GeneratedProgram::new(&mut source);
    let object = program.object();
    let old = link(&object);
    let (rewritten, shift) = rearranged(&object, &old, &mut source);
    let mut new = link(&rewritten.bytes);
    let mut map = rewritten.placement;
    map.blocks.iter_mut().for_each(|block| block.new.0 += shift);
    let map = &map;
    let checked = CheckedProgram::read(&old);
    if let Some(why) = checked.refusal(&CheckedProgram::read(&new), map) {
        panic!("a right kernel is refused:\n{}", why());
    }
    let places = meaningful_bytes(&program, &new, map);
    let at = places[usize::from(source.word()) % places.len()];
    let difference = source.byte().max(1);
    new.file[at] ^= difference;
    if checked.refusal(&CheckedProgram::read(&new), map).is_none() {
        let place = new.describe(at);
        panic!("a wrong kernel is accepted: {place}, byte {at:#x} of the file, ^ {difference:#x}");
    }
}

/// The object with its pieces in a random order (Fisher and Yates), and how far behind its old
/// place the linker will put its code.
fn rearranged(
    bytes: &[u8],
    linked: &LinkedProgram,
    source: &mut ByteSource<'_>,
) -> (Rewritten, u64) {
    let addresses = LinkAddresses::read(&linked.file).expect("the linker writes right files");
    let elf = Elf::parse(bytes).expect("a right object is read");
    let gathered = addresses.gathered_text(&elf).expect("the object is the linked one");
    let object = KernelObject::read_gathered(bytes, gathered.as_ref(), &ObjectHints::default())
        .expect("a right object is read");
    let is_gathered = |name: &&str| {
        let id = elf.by_name(name).filter(|&id| elf.section(id).size > 0);
        id.is_none_or(|id| id == object.text || gathered.as_ref().is_some_and(|g| g.holds(id)))
    };
    assert!(SPLIT.iter().all(is_gathered), "a section of functions stays");
    let base = addresses.text_base(&object).expect("the object is the linked one");
    let mut order: Vec<u32> = (0..object.pieces.len() as u32).collect();
    for end in (1..order.len()).rev() {
        order.swap(end, source.below(end + 1));
    }
    let hot = source.below(order.len() + 1);
    let names = [PartNames::Readable, PartNames::Joinable][source.below(2)];
    let plan = RewritePlan { order: &order, hot, base, names, counters: &[] };
    let rewritten = rewrite(&object, &plan).expect("a right object can be rewritten");
    (rewritten, addresses.expected_shift(&object, base))
}

/// The bytes of the file that mean something to the kernel: its instructions, its data, its tables,
/// and the unwinder's states of its blocks. Control never comes to a jump that is appended behind a
/// call of a function that never returns.
fn meaningful_bytes(
    program: &GeneratedProgram,
    kernel: &LinkedProgram,
    map: &Placement,
) -> Vec<usize> {
    let unreturning = unreturning(program, kernel);
    let mut found = Vec::new();
    let mut offset = kernel.file_offset_of_sections();
    for section in &kernel.sections {
        let size = section.bytes.len();
        match section.name.as_str() {
            ".text" => {
                for block in &map.blocks {
                    let from = offset + (block.new.0 - section.address) as usize;
                    let end = block.new.0 + u64::from(block.new_size);
                    let is_run =
                        kernel.called_before(end).is_none_or(|to| !unreturning.contains(&to));
                    let appended = if is_run { block.appended } else { 0 };
                    let size = block.new_size as usize + usize::from(appended);
                    let is_key =
                        |at: &usize| kernel.is_static_key(section.address + (at - offset) as u64);
                    found.extend((from..from + size).filter(|at| !is_key(at)));
                }
            }
            ".data" | "__ex_table" | "__jump_table" | "__bug_table" => {
                found.extend(offset..offset + size);
            }
            ".orc_unwind" => {
                let used = kernel.states_in_use(map);
                found.extend(
                    used.iter().flat_map(|state| (0..6).map(move |n| offset + 6 * state + n)),
                );
            }
            _ => {}
        }
        offset += size;
    }
    found
}

/// The addresses of the functions that never return.
fn unreturning(program: &GeneratedProgram, kernel: &LinkedProgram) -> Vec<u64> {
    let returning = program.returning();
    let number = |name: &str| name.strip_prefix('f')?.parse::<usize>().ok();
    let never = |name: &str| number(name).is_some_and(|number| !returning[number]);
    kernel.symbols.iter().filter(|s| never(&s.name)).map(|s| s.address).collect()
}

pub fn seeds() -> Vec<Vec<u8>> {
    // What a program does not take is the order and the change.
    let tail: Vec<u8> = (0..64_u8).map(|n| n.wrapping_mul(37)).collect();
    GeneratedProgram::seeds().into_iter().map(|seed| [seed, tail.clone()].concat()).collect()
}
