//! The tables of recordings.
//!
//! Input: recordings, and mostly their kernel. Output: tables on standard output.

use super::{ReportArgs, each_opened, print};
use anyhow::{Context, Result, bail, ensure};
use coherence::locks::table::LockTable;
use coherence::os_core::policy::OsCorePolicy;
use coherence::os_core::table::OsCoreTable;
use coherence::sharing::check_top;
use coherence::sharing::table::SharingTable;
use coherence::sharing::what_if::SharingChange;
use execution::opened::OpenedRecording;
use host::recording::Recording;
use image::vmlinux;
use memory::misses::table::MissTable;
use memory::sizes::{self, Sizes};
use report::generations::GenerationsBeside;
use report::multiprocessor::MultiprocessorBeside;
use report::top::TopRows;
use road::opened::OpenedKernel;
use road::service_time;
use serde::Serialize;
use services::generations;
use services::locality::Locality;
use services::share::OsShare;
use services::table::ServiceTable;
use std::path::{Path, PathBuf};

/// The machines of --generations, unless --machine names others.
const GENERATIONS: [&str; 6] =
    ["i486", "simos-1994", "simos-1996", "simos-1998", "pentium4", "zen4"];
/// The machine of the tables of coherence and of locks, unless --machine names others.
const SHARING_MACHINE: &str = "server-8";
/// The machine of --os-core, unless --machine names others.
const OS_CORE_MACHINE: &str = "os-core-8";

pub(super) fn services(args: &ReportArgs) -> Result<()> {
    let tables = service_tables(args)?;
    print_each(args, &tables, |table| report::services::table(table, top(args)))
}

pub(super) fn os_share(args: &ReportArgs) -> Result<()> {
    let shares: Vec<OsShare> = service_tables(args)?.iter().map(OsShare::new).collect();
    print(args, &shares, || report::services::shares(&shares, args.top))
}

fn service_tables(args: &ReportArgs) -> Result<Vec<ServiceTable>> {
    let sampling = args.sampling.sampling()?;
    each_opened(args, &args.inputs, &[], |path, kernel| {
        service_time::table(&kernel.attribution, path, args.branches, sampling)
    })
}

pub(super) fn locality(args: &ReportArgs) -> Result<()> {
    let localities: Vec<Locality> = each_opened(args, &args.inputs, &[], |path, kernel| {
        let image = vmlinux::read(&vmlinux::path(&kernel.path))?;
        kernel.attribution.locality(path, &image)
    })?;
    print(args, &localities, || report::locality::text(&localities))
}

pub(super) fn misses(args: &ReportArgs) -> Result<()> {
    ensure!(!args.machine.is_empty(), "--misses needs a --machine: server-32k, for example");
    let of_recording = |path: &Path, kernel: &OpenedKernel| {
        memory::misses(&kernel.attribution, path, &kernel.path)
    };
    let tables: Vec<MissTable> = in_one_list(each_opened(args, &args.inputs, &[], of_recording)?);
    print_each(args, &tables, |table| report::misses::text(table, args.top))
}

pub(super) fn sizes(args: &ReportArgs) -> Result<()> {
    let part = args.part.part()?;
    let of_recording = |path: &PathBuf| {
        let opened = OpenedRecording::open(&Recording::at(path), &part, "caches")?;
        opened.named_by(&part).read(sizes::sizes)
    };
    let all: Vec<Sizes> = args.inputs.iter().map(of_recording).collect::<Result<_>>()?;
    print_each(args, &all, report::sizes::text)
}

pub(super) fn generations(args: &ReportArgs) -> Result<()> {
    if let [one] = &args.machine[..] {
        bail!("--machine {one}: generations are at least two machines, the oldest first");
    }
    let sampling = args.sampling.sampling()?;
    let all = each_opened(args, &args.inputs, &GENERATIONS, |path, kernel| {
        let attribution = &kernel.attribution;
        generations::check(&attribution.machines)?;
        Ok(GenerationsBeside::new(service_time::generations(attribution, path, sampling)?))
    })?;
    print_each(args, &all, |one| report::generations::text(one, top(args)))
}

pub(super) fn sharing(args: &ReportArgs) -> Result<()> {
    let usual = [SHARING_MACHINE];
    if args.what_if.is_empty() {
        check_top(args.top).with_context(|| format!("--top {}", args.top))?;
        let of_recording = |path: &Path, kernel: &OpenedKernel| {
            coherence::sharing(&kernel.attribution, args.order.into(), path, &kernel.path, args.top)
        };
        let tables: Vec<SharingTable> =
            in_one_list(each_opened(args, &args.inputs, &usual, of_recording)?);
        return print_each(args, &tables, report::sharing::text);
    }
    let changed = |path: &Path, kernel: &OpenedKernel| {
        let order = args.order.into();
        coherence::what_if(&kernel.attribution, order, path, &kernel.path, &args.what_if)
    };
    let changes: Vec<SharingChange> =
        in_one_list(each_opened(args, &args.inputs, &usual, changed)?);
    print_each(args, &changes, report::sharing::change)
}

pub(super) fn multiprocessor(args: &ReportArgs) -> Result<()> {
    let of_recording = |path: &Path, kernel: &OpenedKernel| {
        let (order, one_cpu) = (args.order.into(), args.one_cpu.as_deref());
        coherence::multiprocessor(&kernel.attribution, order, path, one_cpu)
    };
    let tables = in_one_list(each_opened(args, &args.inputs, &[SHARING_MACHINE], of_recording)?);
    let tables: Vec<MultiprocessorBeside> = tables.into_iter().map(Into::into).collect();
    print_each(args, &tables, |table| report::multiprocessor::text(table, top(args)))
}

pub(super) fn locks(args: &ReportArgs) -> Result<()> {
    let of_recording = |path: &Path, kernel: &OpenedKernel| {
        coherence::locks(&kernel.attribution, args.order.into(), path, &kernel.path)
    };
    let tables: Vec<LockTable> =
        in_one_list(each_opened(args, &args.inputs, &[SHARING_MACHINE], of_recording)?);
    print_each(args, &tables, |table| report::locks::text(table, top(args)))
}

pub(super) fn os_core(args: &ReportArgs) -> Result<()> {
    let sweep = OsCorePolicy::sweep();
    let policies = if args.policy.is_empty() { &sweep } else { &args.policy };
    let of_recording = |path: &Path, kernel: &OpenedKernel| {
        coherence::os_core(&kernel.attribution, path, policies, args.move_cycles)
    };
    let tables: Vec<OsCoreTable> =
        in_one_list(each_opened(args, &args.inputs, &[OS_CORE_MACHINE], of_recording)?);
    print_each(args, &tables, report::os_core::text)
}

/// How many rows were asked for, and by which option.
fn top(args: &ReportArgs) -> TopRows {
    TopRows { most: args.top, setting: Some("--top") }
}

/// The results of all recordings, one list for each.
fn in_one_list<T>(lists: Vec<Vec<T>>) -> Vec<T> {
    lists.into_iter().flatten().collect()
}

/// One text below the other, or a list as JSON.
fn print_each<T: Serialize>(
    args: &ReportArgs,
    tables: &[T],
    text: impl Fn(&T) -> String,
) -> Result<()> {
    print(args, &tables, || tables.iter().map(text).collect::<Vec<_>>().join("\n"))
}
