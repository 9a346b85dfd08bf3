//! Converts profiles to files of other tools, and back. Each format has its own file.
//!
//! Input: a profile with its image, or a recording. Output: a file for another tool, or the
//! reverse. This crate measures nothing and changes no count.
//!
//! ```
//! use kernlane_exchange::branches::Branches;
//! // Two samples of one branch stack.
//! let mut branches = Branches::default();
//! branches.add_stack(&[(0x30, 0x40), (0x10, 0x20)]);
//! branches.add_stack(&[(0x30, 0x40), (0x10, 0x20)]);
//! assert_eq!((branches.total(), branches.straight[&(0x20, 0x30)]), (4, 2));
//! ```
//!
//! To add a format: a file with a function and a [`Format`], its line in the table `formats!`
//! below, and a check with the tool itself in `xtask/judges/src/export_test`.

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod bolt_import;
pub mod branches;
mod chrome_trace;
pub mod compressed;
mod firefox;
pub mod import_file;
mod intervals;
pub mod kinds;
pub mod perf;
mod perfetto;
#[cfg(test)]
mod recorded;
pub mod samples_import;
pub mod stacks;
#[cfg(test)]
mod tests;
pub mod walk;

use anyhow::{Context, Result, bail};
use execution::part::RecordingPart;
use image::address::LinkAddr;
use image::order::Layout;
use image::{Block, BlockIndex, Image};
use llvm_samples::Samples;
use object::{Object, ObjectSection};
use profile::Profile;
use services::{Attribution, ObservedRecording};
use stacks::StackFile;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use walk::TracedAmounts;

/// A file that another tool takes.
#[derive(Debug)]
pub struct Format {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it holds and which tool takes it, for help.
    pub about: &'static str,
    /// How the file is made.
    pub make: Make,
}

/// The input of a format.
#[derive(Debug)]
pub enum Make {
    /// Counts.
    Counts(fn(&ExportSubject) -> Result<String>),
    /// Counts by source line, and what of the code they hold.
    Samples(fn(&ExportSubject) -> Result<Samples>),
    /// Counts, and an order of the code.
    Order(fn(&ExportSubject, &Layout) -> Result<String>),
    /// The services of one recording and their chains of calls.
    Calls(fn(&ObservedRecording) -> Result<String>),
    /// The same, in bytes.
    Stacks(fn(&ObservedRecording) -> Result<StackFile>),
    /// Every instruction of a part of one recording, written as it is read.
    Instructions(fn(&Path, &RecordingPart, &mut dyn Write) -> Result<TracedAmounts>),
    /// What ran in a window of time (nanoseconds of the guest's clock) of one recording, written as
    /// it is read. Gives the number of events.
    OverTime(fn(&Attribution, &Path, Range<u64>, &mut dyn Write) -> Result<u64>),
    /// A table of counts.
    Profile(fn(&Profile) -> Result<Vec<u8>>),
    /// A directory of the tables in [`parquet`].
    Tables,
}

/// Makes the modules of the formats, and [`FORMATS`], from one table: a module, and the formats in
/// it.
macro_rules! formats {
    ($($visibility:vis $module:ident: $($format:ident),+;)*) => {
        $($visibility mod $module;)*

        /// Every format, in the order in which help lists them.
        pub static FORMATS: &[Format] = &[$($($module::$format,)+)*];
    };
}

formats! {
    bolt: BOLT;
    linker: CALL_GRAPH, SYMBOL_ORDER;
    pub llvm_samples: LLVM_SAMPLES;
    gcc_samples: GCC_SAMPLES;
    propeller: PROPELLER_CC, PROPELLER_LD;
    pub callgrind: CALLGRIND;
    folded: FOLDED;
    pprof: PPROF;
    otlp: OTLP;
    pub in_time: PERFETTO, FIREFOX, CHROME_TRACE;
    pub parquet: PARQUET;
    pub profile_table: PROFILE;
    champsim: CHAMPSIM;
    drmemtrace: DRMEMTRACE, DRMEMTRACE_SERIAL;
}

/// The input of an export: a profile, the image that ran, and the image's file.
pub struct ExportSubject<'a> {
    /// The kernel's functions and blocks.
    pub image: &'a Image,
    /// The profile.
    pub profile: &'a Profile,
    /// The image's file.
    pub path: &'a Path,
}

impl ExportSubject<'_> {
    /// The executed blocks with their counts, ascending.
    ///
    /// # Errors
    /// The profile contains an address at which the image has no block.
    pub(crate) fn blocks(&self) -> Result<Vec<(BlockIndex, u64)>> {
        let ran = self.profile.blocks.iter().filter(|&(_, &count)| count > 0);
        ran.map(|(&addr, &count)| Ok((self.block(addr)?, count))).collect()
    }

    /// The block that starts at an address of the profile.
    ///
    /// # Errors
    /// There is no such block.
    pub(crate) fn block(&self, addr: LinkAddr) -> Result<BlockIndex> {
        let block = self.image.block_at(addr).filter(|&block| self.image.block(block).addr == addr);
        block.with_context(|| {
            format!(
                "the profile has a block at {addr}, but the image has none: \
                 is the profile from another build?"
            )
        })
    }
}

/// The code of an image, for access to single instructions.
pub(crate) struct ImageCode {
    /// The address and the bytes of each section, ascending.
    sections: Vec<(u64, Vec<u8>)>,
}

impl ImageCode {
    /// Reads the sections of a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not ELF.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let named = || path.display().to_string();
        let bytes = std::fs::read(path).with_context(named)?;
        let elf = object::File::parse(&*bytes).with_context(named)?;
        let text = elf.sections().filter(|section| section.kind() == object::SectionKind::Text);
        let mut sections = text
            .map(|section| Ok((section.address(), section.data()?.to_vec())))
            .collect::<Result<Vec<_>, object::Error>>()
            .with_context(named)?;
        sections.sort();
        Ok(Self { sections })
    }

    /// The addresses of a block's instructions, ascending. There is at least one.
    ///
    /// # Errors
    /// The file has no code there.
    pub(crate) fn instructions(&self, block: &Block) -> Result<Vec<LinkAddr>> {
        let after = self.sections.partition_point(|(addr, _)| *addr <= block.addr.0);
        let section = after.checked_sub(1).map(|at| &self.sections[at]);
        let bytes = section.and_then(|(addr, bytes)| {
            let from = (block.addr.0 - addr) as usize;
            bytes.get(from..from.checked_add(block.size as usize)?)
        });
        let Some(bytes) = bytes else {
            bail!("{}: the image has no code there", block.addr);
        };
        let decoder =
            iced_x86::Decoder::with_ip(64, bytes, block.addr.0, iced_x86::DecoderOptions::NONE);
        Ok(decoder.into_iter().map(|instruction| LinkAddr(instruction.ip())).collect())
    }

    /// The address of a block's last instruction.
    ///
    /// # Errors
    /// The file has no code there.
    pub(crate) fn last_instruction(&self, block: &Block) -> Result<LinkAddr> {
        Ok(self.instructions(block)?.last().copied().unwrap_or(block.addr))
    }
}

/// What one of LLVM's tools prints about a file, or about `input` if the path is `-`.
fn ask_llvm(tool: &str, arguments: &[&str], path: &Path, input: &[u8]) -> Result<String> {
    let mut command = Command::new(format!("{tool}-22"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    match tool {
        "llvm-symbolizer" => command.arg(format!("--obj={}", path.display())),
        _ => command.arg(path),
    };
    let mut running = command
        .spawn()
        .with_context(|| format!("{tool}-22 cannot be run: install the package llvm-22"))?;
    let mut stdin = running.stdin.take();
    let output = std::thread::scope(|scope| {
        // A separate thread writes. Otherwise two full pipes would block each other.
        scope.spawn(move || {
            use std::io::Write;
            stdin.take().map(|mut stdin| stdin.write_all(input))
        });
        running.wait_with_output()
    })?;
    if !output.status.success() {
        let file =
            if path == Path::new("-") { "the file".into() } else { path.display().to_string() };
        bail!("{tool}-22 could not read {file}: {}", output.status);
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("{tool}-22 printed something that is not text"))
}
