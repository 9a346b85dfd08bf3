//! Reports of the fields of structures, and of what never changes.
//!
//! Input: recordings and their kernel. Output: tables on standard output.

use super::opening::{MachineArgs, RecordingsArgs, TopArgs};
use anyhow::{Result, ensure};
use clap::Args;
use memory::fields::FieldStudy;
use memory::fields::table::FieldTable;
use memory::fields::what_if::OrderChange;
use services::constants::ConstantTable;

/// The machine of `--what-if` and `--suggest`, unless another is named.
const MACHINE: &str = "server-32k";

/// Print who uses which fields of a structure, and which fields are used together
///
/// Takes recordings made with --data, and the name of a structure (tcp_sock, task_struct) or of a
/// slab cache. It counts each access of the kernel, by field, instruction and service, and how many
/// cache lines of an object a service uses. Names of fields need a kernel with BTF
/// (CONFIG_DEBUG_INFO_BTF); source lines need DWARF. With --machine, it also has the misses on the
/// first one.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane report fields tcp_sock net-data.rec --machine server-32k
  kernlane report fields net_device net-data.rec --net-cachelines
  kernlane report fields tcp_sock net-data.rec --what-if 'snd_cwnd=0x600,rcv_nxt=0x604'
  kernlane report fields task_struct net-data.rec --suggest --machine zen4")]
pub struct FieldsArgs {
    /// The structure, or the slab cache
    #[arg(value_name = "TYPE")]
    pub structure: String,

    #[command(flatten)]
    pub recordings: RecordingsArgs,

    /// Print the fields in the form of the kernel's Documentation/networking/net_cachelines
    #[arg(long, conflicts_with = "json")]
    pub net_cachelines: bool,

    /// Print the misses when fields stand at other offsets. All others stay; one whose place is
    /// taken goes to the first gap that it fits into. Without --machine the machine is server-32k
    #[arg(long, value_name = "FIELD=OFFSET,…", conflicts_with = "net_cachelines")]
    pub what_if: Option<String>,

    /// Suggest an order of the members, and print its misses beside those of the source's order.
    /// Members that are read together get few lines, apart from those that are written; groups of
    /// the source stay. Without --machine the machine is server-32k
    #[arg(long, conflicts_with_all = ["net_cachelines", "what_if"])]
    pub suggest: bool,

    #[command(flatten)]
    pub machines: MachineArgs,

    #[command(flatten)]
    pub top: TopArgs,
}

pub(super) fn fields(args: &FieldsArgs) -> Result<()> {
    let machines = &args.machines.machine;
    ensure!(machines.len() <= 1, "the fields are those on one --machine; {} are named", {
        machines.len()
    });
    if args.suggest || args.what_if.is_some() {
        let machines = args.machines.or(&[MACHINE]);
        let wishes = args.what_if.as_deref();
        let changes: Vec<OrderChange> = args.recordings.each(&machines, |path, kernel| {
            let study = FieldStudy::new(&kernel.attribution, &kernel.path)?;
            study.what_if(path, &args.structure, wishes)
        })?;
        let text = |change: &OrderChange| report::fields::change(change, "--what-if");
        return args.recordings.table.print_each(&changes, text);
    }
    let tables: Vec<FieldTable> = args.recordings.each(machines, |path, kernel| {
        FieldStudy::new(&kernel.attribution, &kernel.path)?.table(path, &args.structure)
    })?;
    let text = |table: &FieldTable| match args.net_cachelines {
        true => report::fields::net_cachelines(table),
        false => report::fields::text(table, args.top.rows()),
    };
    args.recordings.table.print_each(&tables, text)
}

/// Print branches that always go one way, and indirect calls that always have one callee
///
/// Takes recordings of one kernel, with or without --data. They are candidates for static keys,
/// likely() and static calls. Branches that the kernel patches itself are left out. In a guest with
/// retpolines, the branch is the call of the thunk. Source lines need a kernel with DWARF.
#[derive(Args)]
#[command(after_help = "Example:
  kernlane report constants net.rec files.rec shell.rec --top 50")]
pub struct ConstantsArgs {
    #[command(flatten)]
    pub recordings: RecordingsArgs,

    #[command(flatten)]
    pub top: TopArgs,
}

pub(super) fn constants(args: &ConstantsArgs) -> Result<()> {
    let recordings = &args.recordings;
    let tables: Vec<ConstantTable> =
        recordings.opening.each(&recordings.recordings[..1], &[], |_, kernel| {
            services::constants::constants(
                &kernel.attribution,
                &recordings.recordings,
                &kernel.path,
            )
        })?;
    recordings.table.print_each(&tables, |table| report::constants::text(table, args.top.rows()))
}
