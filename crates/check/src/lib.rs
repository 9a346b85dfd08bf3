//! Proves that a new kernel is the old program.
//!
//! Input: two final `vmlinux` files, and the map that an emitter returned. Output: the proof, as
//! counts, or the differences. The map is a claim. The checker walks every block in both kernels,
//! follows every reference and side-table entry, and compares every remaining byte.
//!
//! The checker calls nothing of `emit`. It reads relinked kernels, and modules of copies, with
//! readers of its own, so that it does not repeat the mistakes of Kernlane's other readers. Two
//! parts also read with `image`, as `emit` does. [`module`] takes the kernel that was copied from
//! `image::linked`. [`objtool`] reads both objects with `image::object`; it compares with what the
//! kernel's own objtool says.
//!
//! The checker assumes two things: the tables that `table_forms.rs` lists mean what the kernel's
//! headers say, and KASLR relocations name all absolute addresses.
//!
//! ```
//! // Damaged files give an error, never a panic.
//! assert!(kernlane_check::kernel::KernelFile::parse(b"not a kernel").is_err());
//! ```

#![warn(missing_docs, clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

mod address_words;
mod code_walk;
mod compare;
mod correspond;
mod data;
#[cfg(test)]
mod forms_tests;
mod frames;
mod inlined;
mod intervals;
mod kallsyms;
mod kept_apart;
pub mod kernel;
pub mod loadable;
pub mod module;
#[cfg(feature = "mutation")]
pub mod mutation;
mod names;
mod noreturn;
pub mod objtool;
mod orc;
mod padding;
mod realign;
pub mod relocs;
mod resolve;
mod table_forms;
mod tables;
#[cfg(test)]
mod test_elf;
#[cfg(test)]
mod tests;
mod verdict;
mod walk;

use anyhow::{Context, Result, bail, ensure};
use code_walk::{CodeWalk, OldKernelFacts};
use correspond::{Correspondence, DataFacts};
use image::mapping::map_file;
use image::place::{InPlaceOfCall, Placement};
use image::relative_words::{self, RelativeWords};
use inlined::{InlinedCode, RefusedClaim};
use kernel::{KernelFile, SectionLoad};
use relocs::Relocs;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use verdict::Findings;

/// The files of one kernel build that the checker reads.
pub struct KernelBuild {
    path: PathBuf,
    vmlinux: memmap2::Mmap,
    relocs: Option<Vec<u8>>,
    /// Files of the link that may keep all relocations, best first: the kernel before it was
    /// stripped, or the last but one link, which differs from the last only in sorted tables.
    linked: Vec<memmap2::Mmap>,
    /// The words that are kept of such a file when a kernel is relinked into a directory of its
    /// own.
    relative: Option<RelativeWords>,
}

/// One kernel in a form that can be compared.
pub struct CheckedKernel<'d> {
    /// Sections and symbols.
    pub kernel: KernelFile<'d>,
    /// The addresses that KASLR shifts, if the build keeps them.
    pub relocs: Option<Relocs>,
}

impl KernelBuild {
    /// Opens the files of a build. `path` is a build tree, or a vmlinux in one.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(path: &Path) -> Result<Self> {
        let path = if path.is_dir() { path.join("vmlinux") } else { path.to_owned() };
        let vmlinux = map_file(&path)?;
        let tree = path.parent().unwrap_or(Path::new(""));
        let relocs = tree.join("arch/x86/boot/compressed/vmlinux.relocs");
        let relocs = match std::fs::read(&relocs) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(error).with_context(|| format!("reading {}", relocs.display()));
            }
        };
        let linked = UNSTRIPPED.iter().map(|name| tree.join(name)).filter(|path| path.exists());
        let linked = linked.map(|path| map_file(&path)).collect::<Result<_>>()?;
        let words = tree.join(relative_words::FILE);
        let named = || words.display().to_string();
        let relative = match std::fs::read_to_string(&words) {
            Ok(text) => Some(RelativeWords::from_text(&text).with_context(named)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(named),
        };
        Ok(KernelBuild { path, vmlinux, relocs, linked, relative })
    }

    /// Reads the opened files.
    ///
    /// # Errors
    /// A file is damaged, or the files belong to different builds.
    pub fn kernel(&self) -> Result<CheckedKernel<'_>> {
        self.side(&self.vmlinux)
    }

    /// The bytes of the vmlinux.
    pub fn vmlinux(&self) -> &[u8] {
        &self.vmlinux
    }

    /// Reads `vmlinux` as if it were the vmlinux of this build.
    fn side<'d>(&'d self, vmlinux: &'d [u8]) -> Result<CheckedKernel<'d>> {
        let name = self.path.display();
        let mut kernel = KernelFile::parse(vmlinux).with_context(|| format!("reading {name}"))?;
        let relocs = match &self.relocs {
            Some(file) => Some(
                Relocs::parse(file, &kernel)
                    .with_context(|| format!("reading vmlinux.relocs beside {name}"))?,
            ),
            None => None,
        };
        if kernel.pc_relative.is_none() {
            let parsed = self.linked.iter().filter_map(|file| KernelFile::parse(file).ok());
            let mut same = parsed.filter(|linked| same_link(&kernel, linked));
            let words = same.find_map(|linked| linked.pc_relative);
            let is_kept = |&(place, _): &(u64, u8)| kernel.section_at(place).is_some();
            kernel.pc_relative = words.map(|words| words.into_iter().filter(is_kept).collect());
        }
        if let (None, Some(relative)) = (&kernel.pc_relative, &self.relative) {
            let file = relative_words::FILE;
            let build_id = kernel.build_id().unwrap_or_default();
            ensure!(
                build_id == relative.build_id.0,
                "{file} beside {name} is of the kernel with build id {}, and not of {build_id}: \
                 relink again",
                relative.build_id.0
            );
            let words = kernel.in_data(&relative.words);
            kernel.pc_relative = Some(words.with_context(|| format!("{file} beside {name}"))?);
        }
        Ok(CheckedKernel { kernel, relocs })
    }
}

/// The files of [`KernelBuild::linked`] by their names in a tree.
const UNSTRIPPED: [&str; 2] = ["vmlinux.unstripped", ".tmp_vmlinux2"];

/// Whether two links put the same code at the same addresses. Stripping may have removed sections
/// from `kernel`.
fn same_link(kernel: &KernelFile, unstripped: &KernelFile) -> bool {
    let there = |s: &kernel::KernelSection| {
        unstripped.sections.iter().any(|t| (t.addr, t.size, t.name) == (s.addr, s.size, s.name))
    };
    kernel.sections.iter().all(there)
        && kernel.section(".text").map(|s| s.data) == unstripped.section(".text").map(|s| s.data)
}

/// Compares everything.
///
/// # Errors
/// The comparison is impossible, for example because the map is not ascending.
pub fn check(old: &CheckedKernel, new: &CheckedKernel, map: &Placement) -> Result<Findings> {
    if map.inlined.is_empty() {
        return compare_all(old, new, map);
    }
    const KIND: &str = "calls inlined";
    const GUARDS: &str = "calls promoted";
    let guards = map.inlined.iter().filter(|call| matches!(call.code, InPlaceOfCall::Guard(_)));
    let guards = guards.count() as u64;
    let mut findings = Findings::default();
    match InlinedCode::of(old, &map.inlined) {
        Ok(code) => {
            findings = compare_all(&code.kernel(old), new, map)?;
            findings.prove(KIND, map.inlined.len() as u64 - guards);
            if guards > 0 {
                findings.prove(GUARDS, guards);
            }
        }
        Err(RefusedClaim { site, why }) => {
            findings.differ(KIND, Some(site), None, format!("{why:#}"));
        }
    }
    Ok(findings)
}

fn compare_all(old: &CheckedKernel, new: &CheckedKernel, map: &Placement) -> Result<Findings> {
    ordered(map)?;
    let mut findings = Findings::default();
    sections(&old.kernel, &new.kernel, &mut findings);
    let symbols = [&old.kernel, &new.kernel].map(|kernel| match kallsyms::read(kernel) {
        Ok(tables) => tables,
        Err(error) => {
            findings.differ("kallsyms", None, None, format!("{error:#}"));
            None
        }
    });
    let elsewhere = compared_elsewhere(&old.kernel, symbols[0].as_ref());
    let [places, new_places] = places_known_of_both(old, new);
    let data = DataFacts {
        behind_kallsyms: symbols[0]
            .as_ref()
            .zip(symbols[1].as_ref())
            .map(|(a, b)| (a.stretch.1, b.stretch.1)),
        places: [&places, &new_places],
        compared_elsewhere: &elsewhere,
    };
    let mut correspondence =
        Correspondence::new(&old.kernel, &new.kernel, map, &data, &mut findings);
    let units = walk::units(map, &correspondence, &mut findings);
    let jump_targets = tables::static_keys(&old.kernel);
    let known = OldKernelFacts {
        relocs: old.relocs.as_ref(),
        static_keys: jump_targets.keys().copied().collect(),
        passed_traps: passed_traps(&old.kernel),
        passable: tables::ends_of_passable_alternatives(&old.kernel).collect(),
        thunks: thunks(&old.kernel),
        image: old.kernel.image(),
    };
    let mut walked = walk::walk(&units, &old.kernel, &new.kernel, &known);
    correspondence.pairs = std::mem::take(&mut walked.pairs);
    findings.absorb(std::mem::take(&mut walked.findings));

    let noreturn = unreturning(&walked, &old.kernel, &known, jump_targets);
    findings.absorb(kept_apart::check(&old.kernel, &new.kernel, &units));
    findings.absorb(kept_apart::labels(&correspondence, &units));
    findings.absorb(resolve::resolve(&walked, &correspondence, &units, &noreturn));
    findings.absorb(tables::check(&correspondence));
    findings.absorb(orc::check(&correspondence, &walked));

    let places =
        address_words::AddressWords::new(old.relocs.as_ref(), old.kernel.pc_relative.as_deref());
    findings.absorb(data::check(&correspondence, &places, &elsewhere));
    match (&old.relocs, &new.relocs) {
        (Some(old), Some(new)) => findings.absorb(data::relocations(old, new, &correspondence)),
        (None, None) => {}
        _ => {
            bail!(
                "only one of the kernels has a vmlinux.relocs beside it: provide the file for both \
                 kernels or for neither"
            )
        }
    }
    findings.absorb(names::check(
        &correspondence,
        &units,
        symbols[0].as_ref(),
        symbols[1].as_ref(),
    ));
    findings.differences.sort();
    Ok(findings)
}

/// Which words are addresses, known from the relocations that both kernels keep.
fn places_known_of_both(
    old: &CheckedKernel,
    new: &CheckedKernel,
) -> [address_words::AddressWords; 2] {
    let absolute = old.relocs.is_some() && new.relocs.is_some();
    let relative = old.kernel.pc_relative.is_some() && new.kernel.pc_relative.is_some();
    [old, new].map(|side| {
        let relocs = side.relocs.as_ref().filter(|_| absolute);
        address_words::AddressWords::new(
            relocs,
            side.kernel.pc_relative.as_deref().filter(|_| relative),
        )
    })
}

/// Checks that the map is ascending and disjoint in the old kernel.
fn ordered(map: &Placement) -> Result<()> {
    match map
        .blocks
        .windows(2)
        .find(|p| p[0].old.0.saturating_add(p[0].old_size.into()) > p[1].old.0)
    {
        Some(pair) => bail!("the map is not ascending and disjoint at {}", pair[1].old),
        None => Ok(()),
    }
}

/// Compares sections and entry point: the same sections in the same order, loaded in the same way.
fn sections(old: &KernelFile, new: &KernelFile, findings: &mut Findings) {
    const KIND: &str = "sections";
    for (index, section) in old.sections.iter().enumerate() {
        let Some(twin) = kernel::twin_of(old, new, index) else {
            continue;
        };
        let (was, is) = (loaded(section, old), loaded(twin, new));
        let equal =
            section.executable == twin.executable && was == is && is != SectionLoad::Nowhere;
        let what = || format!("section {} was {:?}, is {:?}", section.name, was, is);
        findings.expect(equal, KIND, section.addr, twin.addr, what);
        let sized = section.data.is_empty() == twin.data.is_empty();
        findings.expect(sized, KIND, section.addr, twin.addr, || {
            format!("section {} has bytes in only one of the kernels", section.name)
        });
    }
    for (index, section) in new.sections.iter().enumerate() {
        if kernel::twin_of(new, old, index).is_none() {
            findings.differ(
                KIND,
                None,
                Some(section.addr),
                format!("section {} is only in the new kernel", section.name),
            );
        }
    }
    let physical = |k: &KernelFile| k.symbol("phys_startup_64").or_else(|| k.symbol("startup_64"));
    let at_start = |k: &KernelFile| physical(k).map(|start| k.entry.wrapping_sub(start));
    findings.expect(at_start(old) == at_start(new), KIND, old.entry, new.entry, || {
        "the entry point is another one".to_owned()
    });
}

/// How a section is loaded. Per-CPU data is linked at 0, so its load address is taken relative to
/// where the kernel finds it.
fn loaded(section: &kernel::KernelSection, kernel: &KernelFile) -> SectionLoad {
    match section.loaded {
        SectionLoad::By { flags, bias } if section.addr >> 63 == 0 => {
            let base =
                kernel.symbol("__per_cpu_load").unwrap_or(0).wrapping_sub(kernel::START_KERNEL_MAP);
            SectionLoad::By { flags, bias: bias.wrapping_sub(base) }
        }
        other => other,
    }
}

/// Jumping to one of these thunks is a return or an indirect jump.
fn thunks(kernel: &KernelFile) -> std::collections::HashSet<u64> {
    let is_thunk = |name: &str| {
        name == "__x86_return_thunk"
            || name.starts_with("__x86_indirect_")
            || name.starts_with("__SCT__")
    };
    kernel.symbols.iter().filter(|s| is_thunk(s.name)).map(|s| s.addr.0).collect()
}

/// Finds the functions that never return, among the callees behind which code ends.
fn unreturning(
    walked: &CodeWalk,
    kernel: &KernelFile,
    known: &OldKernelFacts,
    jump_targets: std::collections::HashMap<u64, u64>,
) -> noreturn::NeverReturns {
    let mut side_exits: std::collections::HashMap<u64, Vec<u64>> = Default::default();
    for (from, to) in jump_targets.into_iter().chain(tables::fixups(kernel)) {
        side_exits.entry(from).or_default().push(to);
    }
    let behind_blocks = walked.falls.iter().filter_map(|f| f.callee);
    let behind_padding = walked.dead_ends.values().filter_map(|d| d.callee);
    noreturn::NeverReturns::derive(behind_blocks.chain(behind_padding), kernel, known, &side_exits)
}

/// The `ud2` of a kernel behind which control continues.
fn passed_traps(kernel: &KernelFile) -> HashSet<u64> {
    let executable = kernel.sections.iter().filter(|section| section.executable);
    let emulated = executable.flat_map(|section| {
        let found = section.data.windows(walk::EMULATED).enumerate();
        let found = found.filter(|(_, bytes)| walk::is_emulated(bytes));
        found.map(|(at, _)| section.addr + at as u64)
    });
    tables::warnings(kernel).chain(emulated).collect()
}

/// Data that another stage compares by meaning, and data that is new with each link (the build id).
fn compared_elsewhere(old: &KernelFile, symbols: Option<&kallsyms::Kallsyms>) -> Vec<(u64, u64)> {
    let mut all = tables::stretches(old);
    for name in [".orc_unwind_ip", ".orc_unwind", ".notes", ".note.gnu.build-id"] {
        all.extend(old.section(name).map(|s| (s.addr, s.end())));
    }
    all.extend(symbols.map(|s| s.stretch));
    intervals::intervals(all.into_iter().map(|(start, end)| (start, end - start)))
}
