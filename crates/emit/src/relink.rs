//! A layout and a built tree become a kernel.
//!
//! Takes the tree's `vmlinux.o`; rewrites it, and has the kernel's own build link it. What is there
//! already, made from the same, is used again. Prints nothing.

use crate::counting::plan::ObjectFlow;
use crate::counting::{self, Counters};
use crate::install::{self, Kept};
use crate::kbuild::{Machine, Tree};
use crate::object::{
    Counter, Debug, PartNames, Plan, Rewritten, Summary, cuts_of, order_of, rewrite,
};
use anyhow::{Context, Result, ensure};
use host::{interrupt, output, scratch};
use image::BuildId;
use image::address::LinkAddr;
use image::map::Map;
use image::object::elf::SectionId;
use image::object::linked::Linked;
use image::object::{Hints, KernelObject};
use image::order::Layout;
use image::place::{Ending, Placed, Placement};
use image::sealed;
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What is to become of the code.
pub enum Work {
    Order(Layout),
    /// The order stays; counters are put in.
    Count,
}

/// Where the new kernel is to lie.
pub enum Destination<'a> {
    Nowhere,
    Directory(&'a Path),
    Tree,
}

/// What a relink did.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct Report {
    /// What it was made from, as a hash: the kernel, the layout, this program.
    pub key: String,
    pub summary: Summary,
    pub whole: Vec<WholeCount>,
    /// The counters that were put in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<CounterCount>,
    /// What became of debugging information.
    pub debug: Debug,
    pub rewrite_seconds: f64,
    pub link_seconds: Option<f64>,
    pub old_build_id: BuildId,
    pub new_build_id: Option<BuildId>,
}

/// Functions that were kept whole for one reason.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct WholeCount {
    pub reason: String,
    pub functions: usize,
    pub bytes: u64,
}

/// How many counters there are.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct CounterCount {
    pub all: usize,
    /// Those that save the flags.
    pub saving_flags: usize,
}

/// Puts a tree's own link back, byte for byte. `false`: the tree was built anew since it was
/// relinked, and keeps that link.
///
/// # Errors
/// There is no such tree, or nothing to put back.
pub fn restore(tree: &Path) -> Result<bool> {
    let results = Machine::of(tree).results();
    let present = fs::read(tree.join("vmlinux"))
        .ok()
        .and_then(|bytes| Linked::read(&bytes).ok().map(|l| l.build_id));
    Kept::of(tree, results).restore(present.as_ref())
}

/// The tree's object and kernel, as its own link made them.
pub struct Originals {
    pub object: Vec<u8>,
    pub vmlinux: Vec<u8>,
    /// The build id of the vmlinux that lies in the tree now: another one when it was relinked in
    /// place.
    present: BuildId,
}

impl Originals {
    pub fn read(tree: &Tree) -> Result<Originals> {
        let read = |path: PathBuf| {
            fs::read(&path).with_context(|| format!("{}: cannot be read", path.display()))
        };
        let now = read(tree.file("vmlinux"))?;
        let present = Linked::read(&now)
            .with_context(|| tree.file("vmlinux").display().to_string())?
            .build_id;
        let kept = Kept::of(&tree.path, tree.machine().results());
        let vmlinux = if kept.is_relinked(&present)? {
            read(kept.original_of("vmlinux", &present)?)?
        } else {
            now
        };
        Ok(Originals { object: read(tree.file("vmlinux.o"))?, vmlinux, present })
    }
}

/// A tree's object rewritten as a layout says, not linked yet.
struct Ready<'a> {
    object: KernelObject<'a>,
    linked: Linked<'a>,
    /// Where the old `.text` lies.
    base: LinkAddr,
    rewritten: Rewritten,
    /// With the pieces that they count.
    counters: Vec<(Counter, u32)>,
}

impl<'a> Ready<'a> {
    fn new(tree: &Tree, work: &Work, originals: &'a Originals) -> Result<Ready<'a>> {
        let linked = Linked::read(&originals.vmlinux)
            .with_context(|| tree.file("vmlinux").display().to_string())?;
        let in_order;
        let layout = match work {
            Work::Order(layout) => layout,
            Work::Count => {
                in_order = Layout::original(linked.build_id.clone());
                &in_order
            }
        };
        ensure!(
            linked.build_id == layout.build_id,
            "the layout is for the kernel {}, but {} is {}: the tree was built anew since it was recorded, or is another; record it again",
            layout.build_id.0,
            tree.file("vmlinux").display(),
            linked.build_id.0
        );
        let name = || tree.file("vmlinux.o").display().to_string();
        let mut hints = Hints { noreturn: noreturns(tree), cuts: Vec::new() };
        let object = KernelObject::read(&originals.object, &hints).with_context(name)?;
        let base = linked.text_base(&object).with_context(name)?;
        layout.ensure_within(&code_of(&object, &linked)?)?;
        hints.cuts = cuts_of(layout, base, object.elf.section(object.text).size);
        let object = KernelObject::read(&originals.object, &hints).with_context(name)?;
        let (order, hot) = order_of(layout, &object, base);
        let counters = match work {
            Work::Order(_) => Vec::new(),
            Work::Count => counting::plan::plan(&object, &ObjectFlow::of(&object)),
        };
        let places: Vec<Counter> = counters.iter().map(|&(counter, _)| counter).collect();
        let plan = Plan { order: &order, hot, base, names: PartNames::Readable, counters: &places };
        let rewritten = rewrite(&object, &plan).with_context(name)?;
        Ok(Ready { object, linked, base, rewritten, counters })
    }
}

/// Where the object's sections of code lie in the kernel.
fn code_of(object: &KernelObject<'_>, linked: &Linked<'_>) -> Result<Vec<Range<u64>>> {
    let mut code = Vec::new();
    for id in object.elf.ids() {
        let section = object.elf.section(id);
        if let Some(base) = linked.base_of(object, id)?.filter(|_| section.is_code()) {
            code.push(base.0..base.0.saturating_add(section.size));
        }
    }
    Ok(code)
}

/// Where the layout's blocks would come to lie, without a link: what lies behind `.text` moves with
/// its end.
pub fn predicted_placement(tree: &Tree, layout: &Layout) -> Result<Placement> {
    let originals = Originals::read(tree)?;
    let Ready { object, linked, base, rewritten, .. } =
        Ready::new(tree, &Work::Order(layout.clone()), &originals)?;
    let Summary { text_before, text_after, .. } = rewritten.summary;
    let mut blocks = rewritten.placement.blocks;
    for id in object.elf.ids() {
        let section = object.elf.section(id);
        if id == object.text || !section.is_code() {
            continue;
        }
        let Some(from) = linked.base_of(&object, id)?.filter(|from| from.0 >= base.0 + text_before)
        else {
            continue;
        };
        let moved = from.0.wrapping_sub(text_before).wrapping_add(text_after);
        let to = LinkAddr(moved.next_multiple_of(section.align.max(1)));
        blocks.push(whole_section(&object, id, from, to)?);
    }
    blocks.sort_by_key(|b| b.old);
    Ok(Placement { blocks })
}

/// Rewrites the tree's object as `layout` says and links it. What is there already, made from the
/// same, is used again. `told` hears of each step.
pub fn relink(
    tree: &Tree,
    layout: &Layout,
    destination: &Destination<'_>,
    told: &dyn Fn(&str),
) -> Result<Report> {
    carry_out(tree, &Work::Order(layout.clone()), destination, told)
}

/// Does the work and puts the kernel where it is to lie. What is there already, made from the same,
/// is used again. `told` hears of each step.
///
/// # Errors
/// The tree is not built, or of another kernel than the layout; it cannot be rewritten, linked or
/// written.
pub fn carry_out(
    tree: &Tree,
    work: &Work,
    destination: &Destination<'_>,
    told: &dyn Fn(&str),
) -> Result<Report> {
    let kept = Kept::of(&tree.path, tree.machine().results()).home();
    let directory = match destination {
        Destination::Nowhere => return relink_in(tree, work, destination, None, told),
        Destination::Directory(directory) => *directory,
        Destination::Tree => &kept,
    };
    let in_home = |home: &Path| relink_in(tree, work, destination, Some(home), told);
    match destination {
        Destination::Directory(_) => output::whole_directory(directory, in_home),
        // In the tree, what is kept of its own link must never be under another name.
        _ => output::in_directory(directory, in_home),
    }
}

/// As `carry_out`, with the directory that is Kernlane's.
fn relink_in(
    tree: &Tree,
    work: &Work,
    destination: &Destination<'_>,
    home: Option<&Path>,
    told: &dyn Fn(&str),
) -> Result<Report> {
    let begun = Instant::now();
    let originals = Originals::read(tree)?;
    let key = key(work)?;
    if let Some(report) = home.and_then(|home| made_before(tree, home, destination, &key)) {
        return Ok(report);
    }
    told("rewriting vmlinux.o");
    let Ready { object, linked, base, rewritten, counters } = Ready::new(tree, work, &originals)?;
    let types = match tree.has_types() {
        true => Some(linked.types()?.context(
            "vmlinux: has no .BTF, although CONFIG_DEBUG_INFO_BTF is set; run make in the tree",
        )?),
        false => None,
    };
    interrupt::check()?;
    let mut report = Report {
        key,
        summary: rewritten.summary.clone(),
        whole: whole_counts(&object),
        counters: matches!(work, Work::Count).then(|| CounterCount {
            all: counters.len(),
            saving_flags: counters.iter().filter(|(counter, _)| counter.keeps_flags).count(),
        }),
        debug: rewritten.debug,
        rewrite_seconds: begun.elapsed().as_secs_f64(),
        link_seconds: None,
        old_build_id: linked.build_id.clone(),
        new_build_id: None,
    };
    let Some(home) = home else { return Ok(report) };
    let begun = Instant::now();
    let scratch = scratch::directory(home, SCRATCH)?;
    told("the kernel's own build links vmlinux");
    tree.link(&rewritten.bytes, scratch.path(), types)?;
    report.link_seconds = Some(begun.elapsed().as_secs_f64());

    told("reading the new kernel");
    let bytes =
        fs::read(scratch.path().join("vmlinux")).context("the new vmlinux cannot be read")?;
    let new = Linked::read(&bytes).context("the new vmlinux")?;
    let placement = with_other_sections(&object, &linked, &new, rewritten.placement, base)?;
    let map = Map { build_id: linked.build_id.clone(), placement }.to_text();
    tree.ensure_unchanged()?;
    match destination {
        Destination::Tree => Kept::of(&tree.path, tree.machine().results()).install(
            scratch.path(),
            &originals.present,
            &new.build_id,
            &map,
        )?,
        _ => {
            // A directory that is replaced lacks these until it is whole.
            for name in [REPORT, COUNTERS, install::MAP] {
                install::remove_file(&home.join(name))?;
            }
            install::into_directory(scratch.path(), home, tree.machine().results(), &map)?;
        }
    }
    if let Work::Count = work {
        let block = |&(_, piece): &(Counter, u32)| {
            LinkAddr(base.0 + u64::from(object.pieces[piece as usize].at))
        };
        let counters = Counters {
            build_id: linked.build_id.clone(),
            blocks: counters.iter().map(block).collect(),
        };
        output::write(&home.join(COUNTERS), counters.to_text().as_bytes())?;
    }
    report.new_build_id = Some(new.build_id);
    let text = sealed::json(&serde_json::to_string_pretty(&report)?);
    output::write(&home.join(REPORT), text.as_bytes())?;
    Ok(report)
}

/// In this directory the kernel is linked.
const SCRATCH: &str = ".relink-";
/// What the last relink into a directory did.
const REPORT: &str = "relink.json";
/// The list of counters of a counting kernel.
pub const COUNTERS: &str = "vmlinux.klc";

/// A hash of what a relink is made from: the work, whose layout names the kernel, and this program.
fn key(work: &Work) -> Result<String> {
    let program = std::env::current_exe()
        .and_then(fs::read)
        .context("this program's own file cannot be read")?;
    let mut hash = Sha256::new();
    hash.update(&program);
    match work {
        Work::Order(layout) => hash.update(layout.to_text()),
        Work::Count => hash.update("count"),
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The report of an earlier relink from the same, whose kernel is still there.
fn made_before(
    tree: &Tree,
    home: &Path,
    destination: &Destination<'_>,
    key: &str,
) -> Option<Report> {
    let text = fs::read_to_string(home.join(REPORT)).ok()?;
    // What is damaged, or of a version that wrote no checksum, is made anew.
    sealed::verify_json(&text, Some(""), true).ok()?;
    let report: Report = serde_json::from_str(&text).ok()?;
    let root = if matches!(destination, Destination::Tree) { &tree.path } else { home };
    let there = tree.machine().results().iter().all(|name| root.join(name).is_file())
        && home.join(install::MAP).is_file();
    let vmlinux = fs::read(root.join("vmlinux")).ok()?;
    let id = Linked::read(&vmlinux).ok()?.build_id;
    (report.key == key && there && report.new_build_id.as_ref() == Some(&id)).then_some(report)
}

/// Adds to the map the sections of code that were moved by the growth of `.text`, each as one
/// block.
fn with_other_sections(
    object: &KernelObject<'_>,
    old: &Linked<'_>,
    new: &Linked<'_>,
    placement: Placement,
    base: LinkAddr,
) -> Result<Placement> {
    let shift = new.text_shift(object, &placement, base)?;
    let mut blocks = placement.blocks;
    blocks.iter_mut().for_each(|b| b.new = LinkAddr(b.new.0.wrapping_add(shift)));
    for id in object.elf.ids() {
        let section = object.elf.section(id);
        if id == object.text || !section.is_code() {
            continue;
        }
        if let (Some(from), Some(to)) = (old.base_of(object, id)?, new.base_of(object, id)?) {
            blocks.push(whole_section(object, id, from, to)?);
        }
    }
    blocks.sort_by_key(|b| b.old);
    Ok(Placement { blocks })
}

/// A section of code that moved as a whole.
fn whole_section(
    object: &KernelObject<'_>,
    id: SectionId,
    old: LinkAddr,
    new: LinkAddr,
) -> Result<Placed> {
    let section = object.elf.section(id);
    let size = u32::try_from(section.size)
        .with_context(|| format!("{}: larger than 4 GB", section.name))?;
    Ok(Placed { old, old_size: size, new, new_size: size, appended: 0, ending: Ending::Same })
}

/// The functions that objtool takes for not returning. A tree without the list only costs jumps.
pub fn noreturns(tree: &Tree) -> HashSet<String> {
    let list = ["tools/objtool/noreturns.h", "source/tools/objtool/noreturns.h"]
        .map(|name| fs::read_to_string(tree.file(name)));
    let text = list.into_iter().flatten().next().unwrap_or_default();
    let names = text.lines().filter_map(|line| line.strip_prefix("NORETURN(")?.strip_suffix(')'));
    names.map(str::to_owned).collect()
}

fn whole_counts(object: &KernelObject<'_>) -> Vec<WholeCount> {
    let counts = object.whole_by_reason();
    counts
        .into_iter()
        .map(|(reason, functions, bytes)| WholeCount {
            reason: reason.words().to_owned(),
            functions,
            bytes,
        })
        .collect()
}
