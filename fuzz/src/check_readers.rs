//! The checker's own readers: what the targets use of `kernlane-check`.

use crate::image_readers::{self, kernel_of};
use crate::linker::LinkedProgram;
use crate::source::{ByteSource, stretch};
use check::CheckedKernel;
use check::kernel::KernelFile;
use check::relocs::Relocs;
use image::place::Placement;

/// A linked kernel, byte by byte.
pub fn checked_kernels(bytes: &[u8]) {
    let Ok(kernel) = KernelFile::parse(bytes) else { return };
    let (start, end) = (kernel.image().start, kernel.image().end);
    for address in [start, end, kernel.entry] {
        kernel.describe(address);
        kernel.nearest(address);
    }
    kernel.build_id();
    let side = CheckedKernel { kernel, relocs: None };
    let _ = check::check(&side, &side, &Placement::default());
}

/// Code, side tables, kallsyms, ORC and relocations in a right ELF file; a kernel and one in which
/// one byte is another. A stretch for the relocations, two bytes for the place and one for the
/// difference, then what [`kernel_of`] takes.
pub fn checked_tables(bytes: &[u8]) {
    let mut source = ByteSource::new(bytes);
    let relocations = source.stretch();
    let (place, difference) = (usize::from(source.word()), source.byte());
    let old = kernel_of(&mut source);
    let mut new = old.clone();
    if let Some(byte) = new.get_mut(place) {
        *byte ^= difference;
    }
    let side = |file| {
        let kernel = KernelFile::parse(file).ok()?;
        let relocs = Relocs::parse(relocations, &kernel).ok();
        Some(CheckedKernel { kernel, relocs })
    };
    let Some(old) = side(&old) else { return };
    if difference == 0 {
        let _ = check::check(&old, &old, &Placement::default());
    } else if let Some(new) = side(&new) {
        let _ = check::check(&old, &new, &Placement::default());
    }
}

/// A linked program as the checker reads it.
pub struct CheckedProgram<'a>(CheckedKernel<'a>);

impl<'a> CheckedProgram<'a> {
    /// Reads it.
    ///
    /// # Panics
    /// The checker refuses to read it.
    pub fn read(linked: &'a LinkedProgram) -> CheckedProgram<'a> {
        let mut kernel = KernelFile::parse(&linked.file).expect("the linker writes right files");
        kernel.pc_relative = Some(linked.relative.iter().map(|&place| (place, 4)).collect());
        let relocs = Relocs { abs64: linked.absolute.clone(), ..Relocs::default() };
        CheckedProgram(CheckedKernel { kernel, relocs: Some(relocs) })
    }

    /// Why the checker refuses `new` for this program; nothing if it accepts it. To write the
    /// reason as text takes longer than to find it.
    ///
    /// # Panics
    /// The checker cannot compare them.
    pub fn refusal(
        &self,
        new: &CheckedProgram<'_>,
        map: &Placement,
    ) -> Option<impl Fn() -> String> {
        let findings = check::check(&self.0, &new.0, map).expect("the checker compares them");
        (!findings.equal()).then_some(move || findings.text(&self.0.kernel, &new.0.kernel, 3))
    }
}

pub fn checked_table_seeds() -> Vec<Vec<u8>> {
    // One place in each of the three lists: the pointer in __mcount_loc, and words of .rodata.
    let places = [0_u32, 0x81a0_0000, 0, 0x81c0_0010, 0, 0x81c0_0020];
    let relocations: Vec<u8> = places.iter().flat_map(|word| word.to_le_bytes()).collect();
    let tables = image_readers::table_seeds().concat();
    [[0, 0, 0], [0x10, 5, 1]]
        .iter()
        .map(|change| [stretch(&relocations), change.to_vec(), tables.clone()].concat())
        .collect()
}
