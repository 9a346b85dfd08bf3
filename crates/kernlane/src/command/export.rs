//! `kernlane export`: counts for the tools of others.

use crate::command::layout::{Ground, parse_algorithm};
use crate::command::profile::{Input, vmlinux_path};
use crate::exchange::{Format, Subject, bolt, linker, llvm_samples, propeller};
use crate::output;
use ::layout::Algorithm;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write counts as a profile for BOLT, clang, Propeller or lld
///
/// An exact profile of a kernel, without a processor that records branches, also feeds a build by clang. Formats that carry an order
/// are laid out by --algorithm.
#[derive(Args)]
#[command(
    after_help = "Example:\n  kernlane export net.rec --kernel ~/linux --format bolt -o net.preagg\n  llvm-bolt-22 ~/linux/vmlinux -p net.preagg -pa -o vmlinux.bolt --reorder-blocks=ext-tsp"
)]
pub struct ExportArgs {
    #[command(flatten)]
    pub input: Input,

    /// What to write
    #[arg(long, short, value_enum)]
    pub format: Format,

    /// The algorithm of the formats that carry an order
    #[arg(long, short, default_value = "ext-tsp", value_parser = parse_algorithm)]
    pub algorithm: Algorithm,

    /// Where to write it
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
}

pub fn run(args: &ExportArgs) -> Result<ExitCode> {
    let image = args.input.image()?;
    let profile = args.input.profile(&image)?;
    let path = vmlinux_path(&args.input.kernel);
    let subject = Subject {
        image: &image,
        profile: &profile,
        path: &path,
    };
    let layout = || Ok::<_, anyhow::Error>(Ground::new(&image, &profile)?.lay_out(args.algorithm, 0)?.0);
    let text = match args.format {
        Format::Bolt => bolt::pre_aggregated(&subject)?,
        Format::CallGraph => linker::call_graph(&subject)?,
        Format::SymbolOrder => linker::symbol_order(&subject, &layout()?),
        Format::LlvmSamples => llvm_samples::sample_profile(&subject)?,
        Format::PropellerCc => propeller::clusters(&subject, &layout()?)?.cc_profile(),
        Format::PropellerLd => propeller::clusters(&subject, &layout()?)?.ld_profile(),
    };
    output::write(&args.output, text.as_bytes())?;
    println!("{}: {} lines", args.output.display(), text.lines().count());
    Ok(ExitCode::SUCCESS)
}
