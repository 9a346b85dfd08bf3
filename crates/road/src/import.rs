//! Profiles from samples of other tools.
//!
//! Input: a file of another tool, and the kernel that ran. Output: a profile, and how much of the
//! file it uses. Samples that the kernel's code cannot give are refused.

use anyhow::{Context, Result, bail, ensure};
use exchange::bolt_import::NamedBranches;
use exchange::branches::{self, ImportedBranches, LEAST_SHARE};
use exchange::import_file::{self, ImportFile};
use exchange::perf::PerfSamples;
use exchange::profile_table;
use exchange::samples_import::{self, SourceSamples};
use host::note;
use image::sites::PatchableCode;
use image::{BuildId, Image, vmlinux};
use object::{Object, ObjectSymbol};
use profile::Profile;
use std::path::{Path, PathBuf};

/// What a file counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampledUnit {
    /// Branches.
    Branches,
    /// Lines of the source.
    Lines,
    /// Executions of blocks, by a profile that was exported as a table.
    Executions,
}

impl SampledUnit {
    /// The unit in the plural.
    pub fn name(self) -> &'static str {
        match self {
            SampledUnit::Branches => "branches",
            SampledUnit::Lines => "lines",
            SampledUnit::Executions => "executions of blocks",
        }
    }
}

/// A profile, and how much of the file it uses.
pub struct Imported {
    /// The profile.
    pub profile: Profile,
    /// What the file counts.
    pub unit: SampledUnit,
    /// The counts that the profile uses.
    pub used: u64,
    /// All counts in the kernel's code.
    pub all: u64,
    /// Branches that begin or end outside of the kernel's code; not in `all`.
    pub outside: u64,
    /// How far above its link addresses the kernel ran. `None`: the file has no addresses.
    pub slide: Option<u64>,
}

/// Imports a file of samples. `kernel`: the tree or vmlinux of the kernel that ran. `slide`: how
/// far above its link addresses the kernel ran; `None`: as the file says.
///
/// ```
/// use road::import::{SampledUnit, import};
///
/// let home = road::examples::home();
/// // Pre-aggregated branches of BOLT: from, to, count, mispredicted.
/// let samples = home.path().join("net.preagg");
/// std::fs::write(&samples, "B ffffffff81000002 ffffffff81000009 7 0\n")?;
/// let imported = import(&samples, &home.path().join("vmlinux"), None)?;
/// assert_eq!((imported.unit, imported.used, imported.all), (SampledUnit::Branches, 7, 7));
/// assert_eq!(imported.unit.name(), "branches");
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// The file or the kernel cannot be read, or the file is of another kernel.
pub fn import(file: &Path, kernel: &Path, slide: Option<u64>) -> Result<Imported> {
    let vmlinux = vmlinux::path(kernel);
    let image = vmlinux::read(&vmlinux)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let importing = Importing { image: &image, vmlinux: &vmlinux, name: &name, slide };
    let imported = || match import_file::read(file)? {
        ImportFile::Branches(samples) => importing.of_branches(samples),
        ImportFile::Named(branches) => importing.of_named(&branches),
        ImportFile::Lines(samples) => importing.of_samples(&samples),
        ImportFile::Tables(files) => importing.of_tables(&files),
    };
    imported().with_context(|| file.display().to_string())
}

/// The kernel that ran, and what is known about the samples.
struct Importing<'a> {
    image: &'a Image,
    vmlinux: &'a Path,
    /// The name of the file of samples.
    name: &'a str,
    slide: Option<u64>,
}

impl Importing<'_> {
    fn of_samples(&self, samples: &SourceSamples) -> Result<Imported> {
        self.no_slide("a sample profile has lines")?;
        let found = samples_import::profile(samples, self.image, self.vmlinux, self.name)?;
        if found.lines_used == 0 {
            let kernel = self.vmlinux.display();
            bail!("none of its {} lines is one of {kernel}: another program", found.lines);
        }
        Ok(Imported {
            profile: found.profile,
            unit: SampledUnit::Lines,
            used: found.lines_used as u64,
            all: found.lines as u64,
            outside: 0,
            slide: None,
        })
    }

    fn of_tables(&self, files: &[PathBuf]) -> Result<Imported> {
        self.no_slide("a table of a profile has link addresses")?;
        let profile = profile_table::read(files, &self.image.build_id, self.name)?;
        for &at in profile.blocks.keys() {
            let block = self.image.block_at(at).map(|block| self.image.block(block).addr);
            let is_of_module = !profile.modules.is_empty();
            ensure!(
                is_of_module || block == Some(at),
                "{at}: no block of {} begins there",
                self.vmlinux.display()
            );
        }
        let all = profile.blocks.values().fold(0, |sum: u64, &count| sum.saturating_add(count));
        Ok(Imported {
            profile,
            unit: SampledUnit::Executions,
            used: all,
            all,
            outside: 0,
            slide: None,
        })
    }

    fn of_named(&self, branches: &NamedBranches) -> Result<Imported> {
        self.no_slide("BOLT's fdata has functions and offsets")?;
        let code = PatchableCode::read(self.vmlinux)?;
        let found = branches.profile(self.image, &code, self.vmlinux, self.name)?;
        used(found, None, self.vmlinux).context("read as BOLT's fdata, by functions and offsets")
    }

    fn no_slide(&self, has: &str) -> Result<()> {
        ensure!(self.slide.is_none(), "{has}, not addresses: it takes no slide");
        Ok(())
    }

    fn of_branches(&self, samples: PerfSamples) -> Result<Imported> {
        samples.notes.iter().for_each(|text| note!("note: {text}"));
        let kernel = self.vmlinux;
        refuse_other_build(samples.build_id, &self.image.build_id, kernel)?;
        let (slide, hint) = match (self.slide, samples.kernel) {
            (Some(slide), _) => (slide, ""),
            (None, None) => (0, "; the file does not say where the kernel ran: give the slide"),
            (None, Some((symbol, ran_at))) => {
                (ran_at.wrapping_sub(link_address(kernel, &symbol)?), "")
            }
        };
        let code = PatchableCode::read(kernel)?;
        let found = branches::profile(&samples.branches, self.image, &code, slide, self.name);
        used(found, Some((slide, hint)), kernel)
    }
}

/// Refuses samples of a kernel with another build id than `own`, that of `kernel`.
fn refuse_other_build(sampled: Option<BuildId>, own: &BuildId, kernel: &Path) -> Result<()> {
    match sampled {
        Some(sampled) if sampled != *own => bail!(
            "perf sampled the kernel with build id {}, but {} has build id {}: give the vmlinux of \
             the kernel that ran",
            sampled.0,
            kernel.display(),
            own.0
        ),
        _ => Ok(()),
    }
}

/// The result of the import. Refuses branches that the kernel's code cannot take.
fn used(found: ImportedBranches, slide: Option<(u64, &str)>, kernel: &Path) -> Result<Imported> {
    refuse_misfit(&found, slide, kernel)?;
    Ok(Imported {
        profile: found.profile,
        unit: SampledUnit::Branches,
        used: found.branches_used,
        all: found.branches_inside,
        outside: found.branches - found.branches_inside,
        slide: slide.map(|(slide, _)| slide),
    })
}

fn refuse_misfit(
    found: &ImportedBranches,
    slide: Option<(u64, &str)>,
    kernel: &Path,
) -> Result<()> {
    let kernel = kernel.display();
    let with = slide.map(|(slide, hint)| format!(", with slide {slide:#x}{hint}"));
    let with = with.unwrap_or_default();
    if found.branches_inside == 0 {
        bail!(
            "none of its {} branches lies in the code of {kernel}{with}: sample the kernel's \
             branches (`perf record -b -a -e cycles:k`), and give the vmlinux of the kernel that \
             ran",
            found.branches
        );
    }
    let share = found.share();
    if share < LEAST_SHARE {
        bail!(
            "the code of {kernel} can take only {} of its {} branches in that code \
             ({:.1} %{with}). A profile of the right kernel has more than 99 %. Give the vmlinux \
             of the kernel that ran",
            found.branches_used,
            found.branches_inside,
            100.0 * share
        );
    }
    Ok(())
}

fn link_address(kernel: &Path, symbol: &str) -> Result<u64> {
    let named = || kernel.display().to_string();
    let bytes = std::fs::read(kernel).with_context(named)?;
    let elf = object::File::parse(&*bytes).with_context(named)?;
    let found = elf.symbol_by_name(symbol).map(|found| found.address());
    found.with_context(|| {
        format!(
            "{}: has no symbol {symbol}, by which perf says where the kernel ran",
            kernel.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_another_build_are_refused_with_both_build_ids() {
        let own = BuildId("5f3c".into());
        let refused = |id: &str| refuse_other_build(Some(BuildId(id.into())), &own, Path::new("V"));
        let message = refused("00ae").unwrap_err().to_string();
        assert!(message.contains("build id 00ae, but V has build id 5f3c"), "{message}");
        assert!(refused("5f3c").is_ok());
        assert!(refuse_other_build(None, &own, Path::new("V")).is_ok());
    }

    #[test]
    fn branches_of_another_kernel_are_refused_by_their_share() {
        let found = |used, inside| ImportedBranches {
            profile: Profile::empty(BuildId("5f3c".into())),
            branches_used: used,
            branches_inside: inside,
            branches: 1000,
            stretches_used: 0,
            stretches_inside: 0,
        };
        let refused = |used, inside| {
            refuse_misfit(&found(used, inside), Some((0x1000, "")), Path::new("V"))
                .map_err(|e| e.to_string())
        };
        assert_eq!(refused(992, 1000), Ok(()));
        let message = refused(38, 1000).unwrap_err();
        assert!(message.contains("can take only 38 of its 1000 branches"), "{message}");
        assert!(message.contains("3.8 %, with slide 0x1000"), "{message}");
        let message = refused(0, 0).unwrap_err();
        assert!(message.contains("none of its 1000 branches lies in the code of V"), "{message}");
    }
}
