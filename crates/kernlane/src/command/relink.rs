//! `kernlane relink`: a layout and a built tree become a kernel.

use crate::emit::kbuild::Tree;
use crate::emit::object::{Plan, Rewritten, Summary, cuts_of, order_of, rewrite};
use crate::image::address::LinkAddr;
use crate::image::object::linked::Linked;
use crate::image::object::{Hints, KernelObject};
use crate::map::Map;
use crate::order::Layout;
use crate::output;
use crate::place::{Ending, Placed, Placement};
use anyhow::{Context, Result, ensure};
use clap::Args;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Relink a kernel with its code in a new order
///
/// Rewrites vmlinux.o as the layout says and lets the kernel's own build link it. The tree is not written to: vmlinux, bzImage, System.map and the
/// map from old to new addresses come to lie in the output directory.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane relink --tree ~/linux --layout net.kll -o net.kernel")]
pub struct RelinkArgs {
    /// The directory in which the kernel was built
    #[arg(long, value_name = "DIR")]
    pub tree: PathBuf,

    /// The layout, from `kernlane layout`
    #[arg(long, value_name = "FILE.kll")]
    pub layout: PathBuf,

    /// Where the new kernel comes to lie
    #[arg(long, short, value_name = "DIR", required_unless_present = "dry_run")]
    pub output: Option<PathBuf>,

    /// A variable for make, as given when the kernel was built (for example ARCH=x86_64); LLVM= and CROSS_COMPILE= are found out
    #[arg(long = "make", value_name = "VAR=VALUE")]
    pub make: Vec<String>,

    /// Rewrite and report, without linking or writing anything
    #[arg(long)]
    pub dry_run: bool,

    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
}

/// What a relink did.
#[derive(serde::Serialize)]
pub struct Report {
    pub summary: Summary,
    pub whole: Vec<WholeCount>,
    pub rewrite_seconds: f64,
    pub link_seconds: Option<f64>,
    pub old_build_id: String,
    pub new_build_id: Option<String>,
}

/// Functions that were kept whole for one reason.
#[derive(serde::Serialize)]
pub struct WholeCount {
    pub reason: &'static str,
    pub functions: usize,
    pub bytes: u64,
}

pub fn run(args: &RelinkArgs) -> Result<ExitCode> {
    let tree = Tree::open(&args.tree, &args.make)?;
    let text = fs::read_to_string(&args.layout).with_context(|| format!("{}: cannot be read", args.layout.display()))?;
    let layout = Layout::from_text(&text).with_context(|| args.layout.display().to_string())?;
    let output = args.output.as_deref().filter(|_| !args.dry_run);
    let report = relink(&tree, &layout, output)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report, output);
    }
    Ok(ExitCode::SUCCESS)
}

/// Rewrites the tree's object as `layout` says and, with an output directory, links it there.
pub fn relink(tree: &Tree, layout: &Layout, output: Option<&Path>) -> Result<Report> {
    let begun = Instant::now();
    let files = Files::read(tree)?;
    let Ready {
        object,
        linked,
        base,
        rewritten,
    } = Ready::new(tree, layout, &files)?;
    let rewrite_time = begun.elapsed();

    let mut report = Report {
        summary: rewritten.summary.clone(),
        whole: whole_counts(&object),
        rewrite_seconds: rewrite_time.as_secs_f64(),
        link_seconds: None,
        old_build_id: linked.build_id.0.clone(),
        new_build_id: None,
    };
    if let Some(output) = output {
        let begun = Instant::now();
        fs::create_dir_all(output).with_context(|| format!("{}: cannot be made", output.display()))?;
        let output = fs::canonicalize(output).with_context(|| format!("{}: cannot be used", output.display()))?;
        let scratch = tempfile::Builder::new()
            .prefix(".relink-")
            .tempdir_in(&output)
            .context("no scratch tree can be made")?;
        tree.link(&rewritten.bytes, scratch.path())?;
        report.link_seconds = Some(begun.elapsed().as_secs_f64());
        let new = collect(&object, &linked, &rewritten.placement, scratch.path(), &output, base)?;
        report.new_build_id = Some(new);
    }
    Ok(report)
}

/// Where the layout's blocks would come to lie, without a link: what lies behind `.text` moves with its end.
pub fn predicted_placement(tree: &Tree, layout: &Layout) -> Result<Placement> {
    let files = Files::read(tree)?;
    let Ready {
        object,
        linked,
        base,
        rewritten,
    } = Ready::new(tree, layout, &files)?;
    let Summary {
        text_before, text_after, ..
    } = rewritten.summary;
    let mut blocks = rewritten.placement.blocks;
    for id in object.elf.ids() {
        let section = object.elf.section(id);
        if id == object.text || !section.is_code() {
            continue;
        }
        let Some(from) = linked.base_of(&object, id)?.filter(|from| from.0 >= base.0 + text_before) else {
            continue;
        };
        let moved = from.0.wrapping_sub(text_before).wrapping_add(text_after);
        let to = LinkAddr(moved.next_multiple_of(section.align.max(1)));
        let size = section.size as u32;
        blocks.push(Placed {
            old: from,
            old_size: size,
            new: to,
            new_size: size,
            appended: 0,
            ending: Ending::Same,
        });
    }
    blocks.sort_by_key(|b| b.old);
    Ok(Placement { blocks })
}

/// What is read of a tree.
struct Files {
    object: Vec<u8>,
    vmlinux: Vec<u8>,
}

impl Files {
    fn read(tree: &Tree) -> Result<Files> {
        let read = |name: &str| fs::read(tree.file(name)).with_context(|| format!("{}: cannot be read", tree.file(name).display()));
        Ok(Files {
            object: read("vmlinux.o")?,
            vmlinux: read("vmlinux")?,
        })
    }
}

/// A tree's object rewritten as a layout says, not linked yet.
struct Ready<'a> {
    object: KernelObject<'a>,
    linked: Linked<'a>,
    /// Where the old `.text` lies.
    base: LinkAddr,
    rewritten: Rewritten,
}

impl<'a> Ready<'a> {
    fn new(tree: &Tree, layout: &Layout, files: &'a Files) -> Result<Ready<'a>> {
        let linked = Linked::read(&files.vmlinux).with_context(|| tree.file("vmlinux").display().to_string())?;
        ensure!(
            linked.build_id == layout.build_id,
            "the layout is for the kernel {}, but {} is {}: the tree was built anew since it was recorded, or is another; record it again",
            layout.build_id.0,
            tree.file("vmlinux").display(),
            linked.build_id.0
        );
        let object_name = || tree.file("vmlinux.o").display().to_string();
        let mut hints = Hints {
            noreturn: noreturns(tree),
            cuts: Vec::new(),
        };
        let object = KernelObject::read(&files.object, &hints).with_context(object_name)?;
        let base = linked.text_base(&object).with_context(object_name)?;
        hints.cuts = cuts_of(layout, base, object.elf.section(object.text).size);
        let object = KernelObject::read(&files.object, &hints).with_context(object_name)?;
        let (order, hot) = order_of(layout, &object, base);
        let rewritten = rewrite(&object, &Plan { order: &order, hot, base }).with_context(object_name)?;
        Ok(Ready {
            object,
            linked,
            base,
            rewritten,
        })
    }
}

/// What is kept of the link, by its names in a build tree: the output directory can stand for one in `kernlane record` and `check`.
const KEPT: [&str; 5] = [
    "vmlinux",
    "System.map",
    "arch/x86/boot/bzImage",
    // The checker knows from these two which numbers are addresses.
    "arch/x86/boot/compressed/vmlinux.relocs",
    ".tmp_vmlinux2",
];

/// Takes the results out of the scratch tree, the map last. Gives the new kernel's build id.
fn collect(
    object: &KernelObject<'_>,
    old: &Linked<'_>,
    placement: &Placement,
    scratch: &Path,
    output: &Path,
    base: LinkAddr,
) -> Result<String> {
    let bytes = fs::read(scratch.join("vmlinux")).context("the new vmlinux cannot be read")?;
    let new = Linked::read(&bytes).context("the new vmlinux")?;
    let placement = with_other_sections(object, old, &new, placement, base)?;
    let map = Map {
        build_id: old.build_id.clone(),
        placement,
    };
    for name in KEPT {
        let to = output.join(name);
        let directory = to.parent().unwrap_or(output);
        fs::create_dir_all(directory).with_context(|| format!("{}: cannot be made", directory.display()))?;
        fs::rename(scratch.join(name), &to).with_context(|| format!("{}: cannot be written", to.display()))?;
    }
    output::write(&output.join("vmlinux.klm"), map.to_text().as_bytes())?;
    Ok(new.build_id.0)
}

/// Adds to the map the sections of code that were moved by the growth of `.text`, each as one block.
fn with_other_sections(
    object: &KernelObject<'_>,
    old: &Linked<'_>,
    new: &Linked<'_>,
    placement: &Placement,
    base: LinkAddr,
) -> Result<Placement> {
    let mut blocks = placement.blocks.clone();
    let shift = new.text_shift(object, placement, base)?;
    blocks.iter_mut().for_each(|b| b.new = LinkAddr(b.new.0.wrapping_add(shift)));
    for id in object.elf.ids() {
        let section = object.elf.section(id);
        if id == object.text || !section.is_code() {
            continue;
        }
        if let (Some(from), Some(to)) = (old.base_of(object, id)?, new.base_of(object, id)?) {
            let size = section.size as u32;
            blocks.push(Placed {
                old: from,
                old_size: size,
                new: to,
                new_size: size,
                appended: 0,
                ending: Ending::Same,
            });
        }
    }
    blocks.sort_by_key(|b| b.old);
    Ok(Placement { blocks })
}

/// The functions that objtool takes for not returning. A tree without the list only costs jumps.
fn noreturns(tree: &Tree) -> HashSet<String> {
    let list = ["tools/objtool/noreturns.h", "source/tools/objtool/noreturns.h"].map(|name| fs::read_to_string(tree.file(name)));
    let text = list.into_iter().flatten().next().unwrap_or_default();
    let names = text.lines().filter_map(|line| line.strip_prefix("NORETURN(")?.strip_suffix(')'));
    names.map(str::to_owned).collect()
}

fn whole_counts(object: &KernelObject<'_>) -> Vec<WholeCount> {
    let counts = object.whole_by_reason();
    counts
        .into_iter()
        .map(|(reason, functions, bytes)| WholeCount {
            reason: reason.words(),
            functions,
            bytes,
        })
        .collect()
}

fn print(report: &Report, output: Option<&Path>) {
    let s = &report.summary;
    println!(
        "{} functions in {} pieces; {} functions in several parts",
        s.functions, s.pieces, s.functions_split
    );
    println!(
        "branches inverted {}, jumps dropped {}, jumps added {}, static keys grown {}",
        s.branches_inverted, s.jumps_dropped, s.jumps_added, s.static_keys_grown
    );
    let change = 100.0 * (s.text_after as f64 / s.text_before.max(1) as f64 - 1.0);
    println!(".text {} -> {} bytes ({change:+.1} %)", s.text_before, s.text_after);
    let whole: usize = report.whole.iter().map(|w| w.functions).sum();
    println!("kept whole: {whole} functions");
    for w in &report.whole {
        println!("  {:>6} functions {:>8} bytes  {}", w.functions, w.bytes, w.reason);
    }
    let seconds = |s: f64| format!("{:.1} s", Duration::from_secs_f64(s).as_secs_f64());
    println!("rewriting vmlinux.o took {}", seconds(report.rewrite_seconds));
    if let (Some(link), Some(output)) = (report.link_seconds, output) {
        println!("the kernel's own link took {}", seconds(link));
        println!("the new kernel lies in {}", output.display());
    }
}
