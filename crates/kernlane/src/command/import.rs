//! `kernlane import`: makes a profile from samples of other tools.
//!
//! Input: a file of another tool and the kernel. Output: a profile.

use anyhow::{Context, Result, bail};
use clap::Args;
use exchange::bolt_import::NamedBranches;
use exchange::branches::{self, ImportedBranches, LEAST_SHARE};
use exchange::import_file::{self, ImportFile};
use exchange::perf::PerfSamples;
use exchange::samples_import::{self, SourceSamples};
use host::output;
use host::{note, outln};
use image::sites::PatchableCode;
use image::{BuildId, Image, vmlinux};
use object::{Object, ObjectSymbol};
use profile::Profile;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Make a profile from branches that perf sampled, or from a profile of BOLT or LLVM
///
/// Takes what `perf record -b` writes (a file, what came through a pipe, the directory of
/// `--threads`), the output of `perf script -F brstack` (with `--show-mmap-events` it says where
/// the kernel ran), BOLT's fdata and pre-aggregated profiles, or a sample profile by source lines
/// from llvm-profgen or create_llvm_prof (AutoFDO), as text or binary. Each may be compressed (.gz,
/// .xz, .zst). The sample profile needs a kernel with DWARF. The counts are sampled, and do not say
/// where the kernel was entered; a recording has exact counts and entries.
#[derive(Args)]
#[command(after_help = "Example:\n  perf record -b -a -e cycles:k -- sleep 10\n  \
                  kernlane import perf.data --kernel ~/linux -o perf.klp")]
pub struct ImportArgs {
    /// perf.data, text of `perf script -F brstack`, or a profile of BOLT or LLVM
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The kernel that ran: its build tree, or its vmlinux
    #[arg(long, short, value_name = "TREE|VMLINUX")]
    pub kernel: PathBuf,

    /// How far above its link addresses the kernel ran (KASLR), in hex; perf's files say it
    #[arg(long, value_name = "HEX", value_parser = parse_hex)]
    pub slide: Option<u64>,

    /// Where to write the profile
    #[arg(long, short, value_name = "FILE.klp")]
    pub output: PathBuf,

    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_hex(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| format!("\"{text}\" is no hexadecimal number"))
}

/// A profile, and how much of the file it uses.
struct Imported {
    profile: Profile,
    /// What the file counts: branches or lines.
    counts: &'static str,
    used: u64,
    all: u64,
    /// Branches that begin or end outside of the kernel's code; not in `all`.
    outside: u64,
    /// Of branches.
    slide: Option<u64>,
}

pub(crate) fn run(args: &ImportArgs) -> Result<ExitCode> {
    let path = vmlinux::path(&args.kernel);
    let image = vmlinux::read(&path)?;
    let imported = profile(args, &image, &path).with_context(|| args.file.display().to_string())?;
    output::write(&args.output, imported.profile.to_json().as_bytes())?;
    print(args, &imported)?;
    Ok(ExitCode::SUCCESS)
}

fn profile(args: &ImportArgs, image: &Image, kernel: &Path) -> Result<Imported> {
    match import_file::read(&args.file)? {
        ImportFile::Branches(samples) => of_branches(args, samples, image, kernel),
        ImportFile::Named(branches) => of_named(args, &branches, image, kernel),
        ImportFile::Lines(samples) => of_samples(args, &samples, image, kernel),
    }
}

fn of_samples(
    args: &ImportArgs,
    samples: &SourceSamples,
    image: &Image,
    kernel: &Path,
) -> Result<Imported> {
    no_slide(args, "a sample profile has lines")?;
    let found = samples_import::profile(samples, image, kernel, &name(args))?;
    if found.lines_used == 0 {
        bail!("none of its {} lines is one of {}: another program", found.lines, kernel.display());
    }
    Ok(Imported {
        profile: found.profile,
        counts: "lines",
        used: found.lines_used as u64,
        all: found.lines as u64,
        outside: 0,
        slide: None,
    })
}

fn of_named(
    args: &ImportArgs,
    branches: &NamedBranches,
    image: &Image,
    kernel: &Path,
) -> Result<Imported> {
    no_slide(args, "BOLT's fdata has functions and offsets")?;
    let code = PatchableCode::read(kernel)?;
    let found = branches.profile(image, &code, kernel, &name(args))?;
    used(found, None, kernel).context("read as BOLT's fdata, by functions and offsets")
}

fn no_slide(args: &ImportArgs, has: &str) -> Result<()> {
    if args.slide.is_some() {
        bail!("{has}, not addresses: it takes no --slide");
    }
    Ok(())
}

fn of_branches(
    args: &ImportArgs,
    samples: PerfSamples,
    image: &Image,
    kernel: &Path,
) -> Result<Imported> {
    samples.notes.iter().for_each(|text| note!("note: {text}"));
    refuse_other_build(samples.build_id, &image.build_id, kernel)?;
    let (slide, hint) = match (args.slide, samples.kernel) {
        (Some(slide), _) => (slide, ""),
        (None, None) => (0, "; the file does not say where the kernel ran: give --slide"),
        (None, Some((symbol, ran_at))) => (ran_at.wrapping_sub(link_address(kernel, &symbol)?), ""),
    };
    let code = PatchableCode::read(kernel)?;
    let found = branches::profile(&samples.branches, image, &code, slide, &name(args));
    used(found, Some((slide, hint)), kernel)
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

/// What was imported. Refuses branches that the kernel's code cannot take.
fn used(found: ImportedBranches, slide: Option<(u64, &str)>, kernel: &Path) -> Result<Imported> {
    refuse_misfit(&found, slide, kernel)?;
    Ok(Imported {
        profile: found.profile,
        counts: "branches",
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
            "the code of {kernel} can take only {} of its {} branches in that code ({:.1} %{with}). \
             A profile of the right kernel has more than 99 %. Give the vmlinux of the kernel that \
             ran",
            found.branches_used,
            found.branches_inside,
            100.0 * share
        );
    }
    Ok(())
}

fn name(args: &ImportArgs) -> String {
    args.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
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

fn print(args: &ImportArgs, imported: &Imported) -> Result<()> {
    let (profile, counts) = (&imported.profile, imported.counts);
    if args.json {
        let mut summary = serde_json::json!({
            "kernel": profile.build_id,
            counts: imported.all,
            format!("{counts}_used"): imported.used,
            "blocks": profile.blocks.len(),
            "edges": profile.edges.len(),
            "calls": profile.calls.len(),
        });
        if let Some(slide) = imported.slide {
            summary["slide"] = format!("{slide:x}").into();
        }
        if counts == "branches" {
            summary["branches_outside"] = imported.outside.into();
        }
        outln!("{}", serde_json::to_string_pretty(&summary)?)?;
        return Ok(());
    }
    let slide = imported.slide.map(|slide| format!(" (slide {slide:#x})")).unwrap_or_default();
    outln!(
        "{}: {} of {} {counts}{slide}; {} blocks, {} edges, {} calls",
        args.output.display(),
        imported.used,
        imported.all,
        profile.blocks.len(),
        profile.edges.len(),
        profile.calls.len()
    )?;
    if imported.outside > 0 {
        outln!(
            "{} more {counts} begin or end outside of the kernel's code, in user programs, modules \
             or BPF programs, or in functions whose names are not unique",
            imported.outside
        )?;
    }
    Ok(())
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
