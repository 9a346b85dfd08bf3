//! `kernlane import`: makes a profile from samples of other tools.
//!
//! Input: a file of another tool and the kernel. Output: a profile.

use anyhow::{Context, Result, bail};
use clap::Args;
use exchange::branches::{self, Branches};
use exchange::{perf, samples_import};
use host::outln;
use host::output;
use image::{Image, vmlinux};
use object::{Object, ObjectSymbol};
use profile::Profile;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Make a profile from branches that perf sampled, or from LLVM's sample profile
///
/// Takes a perf.data file of `perf record -b`, the output of `perf script -F brstack`, or a sample
/// profile by source lines from llvm-profgen or create_llvm_prof (AutoFDO), as text or binary. The
/// sample profile needs a kernel with DWARF. The counts are sampled, and do not say where the
/// kernel was entered; a recording has exact counts and entries.
#[derive(Args)]
#[command(after_help = "Example:\n  perf record -b -a -e cycles:k -- sleep 10\n  \
                  kernlane import perf.data --kernel ~/linux -o perf.klp")]
pub struct ImportArgs {
    /// A perf.data file, text of `perf script -F brstack`, or LLVM's sample profile
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The kernel that ran: its build tree, or its vmlinux
    #[arg(long, short, value_name = "TREE|VMLINUX")]
    pub kernel: PathBuf,

    /// How far above its link addresses the kernel ran (KASLR), in hex; perf.data says it itself
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
    /// Of branches.
    slide: Option<u64>,
}

pub(crate) fn run(args: &ImportArgs) -> Result<ExitCode> {
    let path = vmlinux::path(&args.kernel);
    let image = vmlinux::read(&path)?;
    let named = || args.file.display().to_string();
    let bytes = std::fs::read(&args.file).with_context(named)?;
    let imported = match samples_import::is_sample_profile(&bytes) {
        true => of_samples(args, &image, &path),
        false => of_branches(args, &bytes, &image, &path),
    };
    let imported = imported.with_context(named)?;
    output::write(&args.output, imported.profile.to_json().as_bytes())?;
    print(args, &imported)?;
    Ok(ExitCode::SUCCESS)
}

fn of_samples(args: &ImportArgs, image: &Image, kernel: &Path) -> Result<Imported> {
    if args.slide.is_some() {
        bail!("a sample profile has lines, not addresses: it takes no --slide");
    }
    let samples = samples_import::read(&args.file)?;
    let found = samples_import::profile(&samples, image, kernel, &name(args))?;
    if found.lines_used == 0 {
        bail!("none of its {} lines is one of {}: another program", found.lines, kernel.display());
    }
    Ok(Imported {
        profile: found.profile,
        counts: "lines",
        used: found.lines_used as u64,
        all: found.lines as u64,
        slide: None,
    })
}

fn of_branches(args: &ImportArgs, bytes: &[u8], image: &Image, kernel: &Path) -> Result<Imported> {
    let (branches, slide) = read(args, bytes, kernel)?;
    let found = branches::profile(&branches, image, slide, &name(args));
    if found.branches_used == 0 {
        bail!(
            "none of its {} branches is one of {}: another kernel, or another slide than \
             {slide:#x}",
            found.branches,
            kernel.display()
        );
    }
    Ok(Imported {
        profile: found.profile,
        counts: "branches",
        used: found.branches_used,
        all: found.branches,
        slide: Some(slide),
    })
}

fn name(args: &ImportArgs) -> String {
    args.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn read(args: &ImportArgs, bytes: &[u8], kernel: &Path) -> Result<(Branches, u64)> {
    if !bytes.starts_with(b"PERFILE2") {
        let text = std::str::from_utf8(bytes).context("neither a perf.data file nor text")?;
        return Ok((perf::script(text)?, args.slide.unwrap_or(0)));
    }
    let samples = perf::data(bytes)?;
    let slide = match (args.slide, samples.kernel) {
        (Some(slide), _) => slide,
        (None, None) => 0,
        (None, Some((symbol, ran_at))) => ran_at.wrapping_sub(link_address(kernel, &symbol)?),
    };
    Ok((samples.branches, slide))
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
    Ok(())
}
