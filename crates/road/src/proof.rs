//! The proof that a relinked kernel is the old program.
//!
//! Input: two kernels and the map between them. Output: whether the proof holds, and every
//! difference. [`check`] makes the proof; this module opens the files.

use crate::layout_file::read_map;
use anyhow::{Context, Result, ensure};
use check::kernel::KernelFile;
use check::loadable::{self, ModuleProof};
use check::{KernelBuild, check};
use emit::loadable::unsigned;
use guest::module_files;
use host::progress::Progress;
use image::map::PlacementMap;
use image::mapping::map_file;
use image::place::Placement;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

/// How the code of the old kernel moved.
#[derive(Clone, Copy)]
pub enum ProvedMap<'a> {
    /// No code moved.
    Unmoved,
    /// As the map in this file says.
    File(&'a Path),
    /// As this map says.
    Map(&'a PlacementMap),
}

/// The result of a proof.
pub struct Proof {
    /// Whether the new kernel is the old program.
    pub holds: bool,
    /// Whether the old build says which of its words are addresses. If it does not, every number in
    /// the kernel's address range counts as an address.
    pub knows_addresses: bool,
    /// How much was proved, and the first differences of each kind.
    pub text: String,
    /// The same, as JSON.
    pub json: String,
}

/// Compares two kernels, each a vmlinux or a build tree, or two modules (`.ko`), block by block.
/// `shown`: how many differences of each kind the text and the JSON have.
///
/// ```
/// use road::proof::{ProvedMap, prove};
///
/// let home = road::examples::home();
/// let kernel = home.path().join("vmlinux");
/// let proof = prove(&kernel, &kernel, ProvedMap::Unmoved, 10)?;
/// assert!(proof.holds, "{}", proof.text);
///
/// // The other way round, `je` is another program.
/// let mut bytes = std::fs::read(&kernel)?;
/// let at = bytes.windows(3).position(|bytes| bytes == [0x74, 0x05, 0xe8]).unwrap();
/// bytes[at] = 0x75;
/// let other = home.path().join("other");
/// std::fs::write(&other, bytes)?;
/// let proof = prove(&kernel, &other, ProvedMap::Unmoved, 10)?;
/// assert!(!proof.holds && proof.text.contains("ffffffff81000002"), "{}", proof.text);
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// A kernel or the map cannot be read, or the map belongs to another kernel: then nothing is
/// compared.
pub fn prove(old: &Path, new: &Path, map: ProvedMap<'_>, shown: usize) -> Result<Proof> {
    if let Some(proof) = of_modules(old, new, map, shown)? {
        return Ok(proof);
    }
    let progress = Progress::new("reading the kernels");
    let (old, new) = (KernelBuild::read(old)?, KernelBuild::read(new)?);
    let (old, new) = (old.kernel()?, new.kernel()?);
    let moved = placement(map, &old.kernel)?;
    progress.say("comparing the kernels block by block");
    let findings = check(&old, &new, &moved)?;
    Ok(Proof {
        holds: findings.equal(),
        knows_addresses: old.relocs.is_some(),
        text: findings.text(&old.kernel, &new.kernel, shown),
        json: findings.json(&old.kernel, &new.kernel, shown),
    })
}

/// The proof of a module, if `old` is one.
fn of_modules(old: &Path, new: &Path, map: ProvedMap<'_>, shown: usize) -> Result<Option<Proof>> {
    if !old.is_file() || !loadable::is_relocatable(&map_file(old)?) {
        return Ok(None);
    }
    let progress = Progress::new("reading the modules");
    let (old, new) = (module_files::read(old)?, module_files::read(new)?);
    let map = match map {
        ProvedMap::Unmoved => None,
        ProvedMap::File(path) => Some(Cow::Owned(read_map(path)?)),
        ProvedMap::Map(map) => Some(Cow::Borrowed(map)),
    };
    progress.say("comparing the modules block by block");
    let (old, new) = (unsigned(&old)?.0, unsigned(&new)?.0);
    let ModuleProof { holds, text, json } = loadable::prove(old, new, map.as_deref(), shown)?;
    Ok(Some(Proof { holds, knows_addresses: true, text, json }))
}

fn placement<'a>(map: ProvedMap<'a>, old: &KernelFile<'_>) -> Result<Cow<'a, Placement>> {
    let (map, name) = match map {
        ProvedMap::Unmoved => return Ok(Cow::Owned(Placement::default())),
        ProvedMap::File(path) => (Cow::Owned(read_map(path)?), path.display().to_string()),
        ProvedMap::Map(map) => (Cow::Borrowed(map), "the map".to_owned()),
    };
    let build_id = old.build_id().unwrap_or_default();
    ensure!(
        map.build_id.0 == build_id,
        "{name}: the map belongs to the kernel with build id {}, but the old kernel has build id \
         {build_id}",
        map.build_id.0
    );
    let code: Vec<Range<u64>> =
        old.sections.iter().filter(|s| s.executable).map(|s| s.addr..s.end()).collect();
    map.ensure_within(&code).with_context(|| name)?;
    Ok(match map {
        Cow::Owned(map) => Cow::Owned(map.placement),
        Cow::Borrowed(map) => Cow::Borrowed(&map.placement),
    })
}
