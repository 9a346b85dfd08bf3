//! `kernlane report`: pages and tables of recordings, and of what layouts gain.
//!
//! Input: recordings and their kernel, or results. Output: a page or tables.

mod caches;
mod cpus;
mod fields;
mod old_spelling;
mod opening;
mod results;
mod services;

pub(crate) use old_spelling::in_new_spelling;

use anyhow::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Show where a recording's time goes, and what layouts gain, as a page or as tables
///
/// `page` makes one page of recordings and results. `layouts` and `per-operation` take results: the
/// output of `kernlane replay --json`, or the results.json of `kernlane optimize`. The others take
/// recordings. The kernel of a recording is found by its build id. --from and --until take a part
/// of each recording.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane report page net.rec -o net.html
  kernlane report services net.rec --machine server-32k
  kernlane report sharing files-4.rec --top 10
  kernlane report fields tcp_sock net.rec --machine server-32k
  kernlane report layouts net.opt")]
pub struct ReportArgs {
    #[command(subcommand)]
    pub report: Report,
}

/// The reports.
#[derive(Subcommand)]
pub enum Report {
    Page(results::PageArgs),
    Layouts(results::LayoutsArgs),
    Services(services::ServicesArgs),
    OsShare(services::OsShareArgs),
    Generations(services::GenerationsArgs),
    Locality(services::LocalityArgs),
    Misses(caches::MissesArgs),
    Fields(fields::FieldsArgs),
    Constants(fields::ConstantsArgs),
    Sizes(caches::SizesArgs),
    Sharing(cpus::SharingArgs),
    Multiprocessor(cpus::MultiprocessorArgs),
    Locks(cpus::LocksArgs),
    OsCore(cpus::OsCoreArgs),
    PerOperation(results::PerOperationArgs),
}

pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode> {
    match &args.report {
        Report::Page(args) => results::page(args)?,
        Report::Layouts(args) => results::layouts(args)?,
        Report::Services(args) => services::services(args)?,
        Report::OsShare(args) => services::os_share(args)?,
        Report::Generations(args) => services::generations(args)?,
        Report::Locality(args) => services::locality(args)?,
        Report::Misses(args) => caches::misses(args)?,
        Report::Fields(args) => fields::fields(args)?,
        Report::Constants(args) => fields::constants(args)?,
        Report::Sizes(args) => caches::sizes(args)?,
        Report::Sharing(args) => cpus::sharing(args)?,
        Report::Multiprocessor(args) => cpus::multiprocessor(args)?,
        Report::Locks(args) => cpus::locks(args)?,
        Report::OsCore(args) => cpus::os_core(args)?,
        Report::PerOperation(args) => results::per_operation(args)?,
    }
    Ok(ExitCode::SUCCESS)
}
