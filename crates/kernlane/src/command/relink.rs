//! `kernlane relink`: makes a kernel from a layout and a built tree.
//!
//! Input: a built tree and a layout. Output: a kernel and its map, in a directory or in the tree.

use anyhow::{Context, Result};
use clap::Args;
use emit::kbuild::BuildTree;
use emit::object::{DebugInformation, RewriteSummary};
use emit::relink::{self, Destination, RelinkReport, RelinkWork, RelinkedKernel};
use emit::tree_modules::SignatureChange;
use host::interrupt;
use host::note;
use host::outln;
use host::progress::Progress;
use road::inlined;
use road::layout_file::read_layout;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Relink a kernel with its code in a new order
///
/// Rewrites vmlinux.o in the layout's order; the kernel's own build links it. With --output, the
/// new vmlinux, arch/x86/boot/bzImage, System.map and the map from old to new addresses go to a
/// directory, which the other commands take like a tree; the tree stays as it is. Without --output,
/// they replace the tree's own files; --restore puts these back.
///
/// The modules whose code the layout names are rewritten, each with its map FILE.ko.klm. With
/// --output, they and the tree's other modules go to the same directory. Without --output, they
/// replace the tree's own, and their maps are in TREE/.kernlane.
///
/// With --inline, hot calls are gone: the code of the callee stands in their place, behind the code
/// of the caller. The new kernel is a tree of its own, to be recorded and laid out like any other
/// (`kernlane optimize --inline` does both). The file vmlinux.inlined in it lists what was inlined.
///
/// With --count the code keeps its order and gets counters, for one CPU. `kernlane counts` makes a
/// profile from them.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  kernlane relink --tree ~/linux --layout net.kll -o net.kernel\n  \
    kernlane relink --tree ~/linux --layout net.kll\n  kernlane relink --tree ~/linux --restore\n  \
    kernlane relink --tree ~/linux --inline net.klp -o net.inlined\n  \
    kernlane relink --tree ~/linux-um --count -o counting.kernel"
)]
pub struct RelinkArgs {
    /// The directory in which the kernel was built
    #[arg(long, value_name = "DIR")]
    pub tree: PathBuf,

    /// The layout, from `kernlane layout`
    #[arg(long, value_name = "FILE.kll",
        required_unless_present_any = ["restore", "count", "inline"])]
    pub layout: Option<PathBuf>,

    /// Put the code of callees in the place of their calls, where it pays by this profile
    #[arg(long, value_name = "FILE.klp", conflicts_with_all = ["layout", "restore", "count"])]
    pub inline: Option<PathBuf>,

    /// The machine on which the kernel will run: what calls cost there decides, and the cycles that
    /// are saved are predicted. Without it, each call counts as one
    #[arg(long, short, value_name = "NAME|FILE.toml", requires = "inline")]
    pub machine: Option<String>,

    /// Inline calls in a kernel that can be livepatched
    #[arg(long, requires = "inline")]
    pub despite_livepatch: bool,

    /// Leave the order as it is and put counters into the code
    #[arg(long, requires = "output", conflicts_with_all = ["layout", "restore", "dry_run"])]
    pub count: bool,

    /// The directory for the new kernel [default: the tree]
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Put the tree's own link back, byte for byte
    #[arg(long, conflicts_with_all = ["layout", "output", "dry_run", "make"])]
    pub restore: bool,

    /// Rewrite and report, without linking or writing anything
    #[arg(long, conflicts_with = "output")]
    pub dry_run: bool,

    /// A variable for make, as given when the kernel was built. LLVM= and CROSS_COMPILE= are
    /// detected
    #[arg(long = "make", value_name = "VAR=VALUE")]
    pub make: Vec<String>,

    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn run(args: &RelinkArgs) -> Result<ExitCode> {
    interrupt::catch()?;
    if args.restore {
        return restore(&args.tree);
    }
    let progress = Progress::new("reading the kernel");
    let tree = BuildTree::open(&args.tree, &args.make)?;
    drop(progress);
    let destination = match &args.output {
        _ if args.dry_run => Destination::Nowhere,
        Some(directory) => Destination::Directory(directory),
        None => Destination::Tree,
    };
    let report = match (&args.layout, &args.inline) {
        (Some(path), _) => {
            road::relink::relink(&tree, &RelinkWork::Order(read_layout(path)?), &destination)?
        }
        (None, Some(path)) => inline(args, path, &tree, &destination)?,
        (None, None) => road::relink::relink(&tree, &RelinkWork::Count, &destination)?,
    };
    let report = report.report;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        print(&report, &tree, &destination)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Inlines the calls that pay by a profile.
fn inline(
    args: &RelinkArgs,
    profile: &Path,
    tree: &BuildTree,
    destination: &Destination<'_>,
) -> Result<RelinkedKernel> {
    let profile = inlined::profile_of(tree, profile)?;
    let machine = args.machine.as_deref().map(machines::find).transpose()?;
    let model = machine.as_ref().map(|machine| &machine.model);
    let chosen = inlined::choose(tree, &profile, model, args.despite_livepatch)?;
    note!("{}", inlined::summary(&chosen.summary));
    inlined::make(tree, chosen, destination)
}

fn restore(tree: &Path) -> Result<ExitCode> {
    let tree =
        fs::canonicalize(tree).with_context(|| format!("{}: no such tree", tree.display()))?;
    if relink::restore(&tree)? {
        outln!("{}: has its own link again", tree.display())?;
    } else {
        outln!("{}: was built anew since it was relinked, and keeps that link", tree.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &RelinkReport, tree: &BuildTree, destination: &Destination<'_>) -> Result<()> {
    let s = &report.summary;
    outln!(
        "{} functions in {} pieces; {} functions in several parts",
        s.functions,
        s.pieces,
        s.functions_split
    )?;
    outln!(
        "branches inverted {}, jumps dropped {}, jumps added {}, static keys grown {}",
        s.branches_inverted,
        s.jumps_dropped,
        s.jumps_added,
        s.static_keys_grown
    )?;
    let change = 100.0 * (s.text_after as f64 / s.text_before.max(1) as f64 - 1.0);
    outln!(".text {} -> {} bytes ({change:+.1} %)", s.text_before, s.text_after)?;
    if let Some(counters) = &report.counters {
        outln!("counters: {}; {} of them save the flags", counters.all, counters.saving_flags)?;
    }
    let whole: usize = report.whole.iter().map(|w| w.functions).sum();
    outln!("kept whole: {whole} functions")?;
    for w in &report.whole {
        outln!("  {:>6} functions {:>8} bytes  {}", w.functions, w.bytes, w.reason)?;
    }
    match report.debug {
        DebugInformation::None | DebugInformation::Kept => {}
        DebugInformation::Dropped => outln!(
            "debugging information (DWARF) is left out: its line tables do not fit moved code"
        )?,
    }
    for module in &report.modules {
        let RewriteSummary { functions, pieces, text_before, text_after, .. } = module.summary;
        outln!(
            "module {}: {functions} functions in {pieces} pieces, .text {text_before} -> \
             {text_after} bytes",
            module.old.name
        )?;
        match module.signature {
            SignatureChange::None => {}
            SignatureChange::Renewed => outln!("  signed again with the tree's key")?,
            SignatureChange::Lost => outln!(
                "  its signature is cut off, and the tree has no key (certs/signing_key.pem): sign \
                 it, or load it into a kernel that takes modules without a signature"
            )?,
        }
    }
    outln!("rewriting vmlinux.o took {:.1} s", report.rewrite_seconds)?;
    if let Some(link) = report.link_seconds {
        outln!("the kernel's own link took {link:.1} s")?;
    }
    match destination {
        Destination::Nowhere => {}
        Destination::Directory(directory) => {
            outln!("the new kernel lies in {}", directory.display())?
        }
        Destination::Tree => {
            let path = tree.path.display();
            outln!(
                "{path} has the new kernel; `kernlane relink --tree {path} --restore` puts its own \
                 back"
            )?;
        }
    }
    Ok(())
}
