//! Makes a kernel from a layout and a built tree.
//!
//! Input: the tree's `vmlinux.o`, which this module rewrites. The kernel's own build links it. An
//! existing result that was made from the same input is used again. This module prints nothing.

use crate::configured::KernelTarget;
use crate::counting::plan::ObjectFlow;
use crate::counting::{self, Counters};
use crate::install::{self, OriginalLink};
use crate::kbuild::BuildTree;
use crate::object::inlined::{self, Expanded};
use crate::object::{
    BlockCounter, CallToInline, DebugInformation, InlineLimits, PartNames, RewritePlan,
    RewriteSummary, Rewritten, hot_share_in_whole, rewrite,
};
use crate::originals::{LaidOutObject, Originals};
use crate::own_modules::OwnModules;
use crate::scratch_tree;
use crate::tree_modules::{self, RelinkedModule};
use anyhow::{Context, Result, ensure};
use host::{interrupt, output, scratch};
use image::BuildId;
use image::address::LinkAddr;
use image::forms;
use image::linked::LinkedKernel;
use image::map::PlacementMap;
use image::object::elf::SectionId;
use image::object::linked::LinkAddresses;
use image::object::{KernelObject, ObjectHints};
use image::order::Layout;
use image::place::{Ending, InPlaceOfCall, InlinedCall, PlacedBlock, Placement};
use image::sealed;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// What to do with the code.
pub enum RelinkWork {
    /// Put the code in this layout's order.
    Order(Layout),
    /// Keep the order, and add counters.
    Count,
    /// Put the code of callees in the place of their calls, behind the code of each caller.
    Inline(InlineWork),
}

/// Which calls of a kernel are inlined.
pub struct InlineWork {
    /// The kernel.
    pub build_id: BuildId,
    /// The calls. One that stands in inlined code follows the call that this code belongs to.
    pub calls: Vec<CallToInline>,
}

/// Where to put the new kernel.
pub enum Destination<'a> {
    /// Nowhere: only rewrite and link.
    Nowhere,
    /// Into this directory.
    Directory(&'a Path),
    /// Into the build tree.
    Tree,
}

/// A kernel that was relinked.
pub struct RelinkedKernel {
    /// What the relink did.
    pub report: RelinkReport,
    /// Where the code went, as the map beside the kernel says; `None` if nothing was linked.
    pub map: Option<PlacementMap>,
}

/// What a relink did.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct RelinkReport {
    /// A hash of the input: the kernel, the layout and this program.
    pub key: String,
    /// What the rewrite did.
    pub summary: RewriteSummary,
    /// The functions that stayed whole.
    pub whole: Vec<WholeCount>,
    /// The counters that were added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<CounterCount>,
    /// What happened to debugging information.
    pub debug: DebugInformation,
    /// The modules that were rewritten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<RelinkedModule>,
    /// The share of the bytes of the layout's hot runs that lie in code that stays.
    #[serde(default)]
    pub hot_staying: f64,
    /// The share of these bytes that keep their place inside of functions that stay whole.
    #[serde(default)]
    pub hot_whole: f64,
    /// The time of the rewrite, in seconds.
    pub rewrite_seconds: f64,
    /// The time of the link, in seconds, if the kernel was linked.
    pub link_seconds: Option<f64>,
    /// The build id of the original kernel.
    pub old_build_id: BuildId,
    /// The build id of the new kernel, if it was linked.
    pub new_build_id: Option<BuildId>,
}

/// The functions that stayed whole for one reason.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct WholeCount {
    /// The reason in words.
    pub reason: String,
    /// Their number.
    pub functions: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// The number of counters.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct CounterCount {
    /// All counters.
    pub all: usize,
    /// The counters that save the flags.
    pub saving_flags: usize,
}

/// Puts the original link of a tree and its own modules back, byte for byte. Returns false if the
/// tree was built again after the relink; then it keeps the new link.
///
/// # Errors
/// There is no such tree, or nothing to put back.
pub fn restore(tree: &Path) -> Result<bool> {
    let results = KernelTarget::of(tree).results();
    let present = fs::read(tree.join("vmlinux"))
        .ok()
        .and_then(|bytes| LinkAddresses::read(&bytes).ok().map(|l| l.build_id));
    OwnModules::of(tree)?.restore()?;
    OriginalLink::of(tree, results).restore(present.as_ref())
}

/// A tree's object after rewriting, before linking.
struct RewrittenTree<'a> {
    object: KernelObject<'a>,
    linked: LinkAddresses<'a>,
    /// The address of the old `.text`.
    base: LinkAddr,
    rewritten: Rewritten,
    /// The counters, each with the piece that it counts.
    counters: Vec<(BlockCounter, u32)>,
}

/// A tree's object with inlined calls, and the link address of its `.text`.
struct ExpandedTree {
    expanded: Expanded,
    base: LinkAddr,
    /// Bytes of the old `.text`.
    size: u64,
}

impl ExpandedTree {
    fn new(tree: &BuildTree, work: &InlineWork, originals: &Originals) -> Result<ExpandedTree> {
        let linked = linked_of(tree, originals)?;
        ensure_same(tree, &linked, &work.build_id, "profile")?;
        let kernel = LinkedKernel::parse(&originals.vmlinux)?;
        let LaidOutObject { object, base, .. } = in_order(tree, originals)?;
        let expanded = inlined::expand(&object, base, &work.calls, kernel.tables.forms.orc)
            .with_context(|| originals.name.clone())?;
        Ok(ExpandedTree { expanded, base, size: object.elf.section(object.text).size })
    }
}

/// What of the calls of these functions can be inlined in a tree's kernel.
///
/// # Errors
/// The tree's vmlinux.o cannot be read.
pub fn inline_limits(tree: &BuildTree, callees: &BTreeSet<LinkAddr>) -> Result<InlineLimits> {
    let originals = Originals::read(tree)?;
    let LaidOutObject { object, base, .. } = in_order(tree, &originals)?;
    Ok(inlined::limits(&object, base, callees))
}

/// The tree's object in its own order.
fn in_order<'a>(tree: &BuildTree, originals: &'a Originals) -> Result<LaidOutObject<'a>> {
    let linked = linked_of(tree, originals)?;
    let layout = Layout::original(linked.build_id.clone());
    LaidOutObject::new(originals, originals.gathered(), &linked, &layout, &noreturns(tree))
}

fn linked_of<'a>(tree: &BuildTree, originals: &'a Originals) -> Result<LinkAddresses<'a>> {
    LinkAddresses::read(&originals.vmlinux)
        .with_context(|| tree.file("vmlinux").display().to_string())
}

/// Makes sure that a file is for the tree's kernel. `what`: the file.
fn ensure_same(
    tree: &BuildTree,
    linked: &LinkAddresses<'_>,
    build_id: &BuildId,
    what: &str,
) -> Result<()> {
    ensure!(
        linked.build_id == *build_id,
        "the {what} is for the kernel {}, but {} is {}: the tree was built again after the \
         recording, or it is another tree; record it again, or carry its profile to this kernel",
        build_id.0,
        tree.file("vmlinux").display(),
        linked.build_id.0
    );
    Ok(())
}

impl<'a> RewrittenTree<'a> {
    /// `expanded`: the object with inlined calls, if the work is to inline calls.
    fn new(
        tree: &BuildTree,
        work: &RelinkWork,
        originals: &'a Originals,
        expanded: Option<&'a ExpandedTree>,
    ) -> Result<RewrittenTree<'a>> {
        if let Some(expanded) = expanded {
            return RewrittenTree::of_expanded(tree, originals, expanded);
        }
        let linked = linked_of(tree, originals)?;
        let in_order;
        let layout = match work {
            RelinkWork::Order(layout) => layout,
            RelinkWork::Count | RelinkWork::Inline(_) => {
                in_order = Layout::original(linked.build_id.clone());
                &in_order
            }
        };
        ensure_same(tree, &linked, &layout.build_id, "layout")?;
        let layout = &layout.of_vmlinux();
        layout.ensure_within(&linked.code())?;
        let noreturn = noreturns(tree);
        let read = |sections| LaidOutObject::new(originals, sections, &linked, layout, &noreturn);
        let mut laid_out = read(originals.gathered())?;
        let counters = match work {
            RelinkWork::Order(_) | RelinkWork::Inline(_) => Vec::new(),
            RelinkWork::Count => {
                counting::plan::plan(&laid_out.object, &ObjectFlow::of(&laid_out.object))
            }
        };
        if laid_out.order.is_sorted() && counters.is_empty() {
            // Nothing moves, so all sections stay, and the link gives the original kernel again.
            laid_out = read(None)?;
        }
        let LaidOutObject { object, base, order, hot } = laid_out;
        let places: Vec<BlockCounter> = counters.iter().map(|&(counter, _)| counter).collect();
        let plan =
            RewritePlan { order: &order, hot, base, names: PartNames::Readable, counters: &places };
        let rewritten = rewrite(&object, &plan).with_context(|| originals.name.clone())?;
        Ok(RewrittenTree { object, linked, base, rewritten, counters })
    }

    /// Puts inlined code behind the code of its callers.
    fn of_expanded(
        tree: &BuildTree,
        originals: &'a Originals,
        ExpandedTree { expanded, base, size }: &'a ExpandedTree,
    ) -> Result<RewrittenTree<'a>> {
        let hints = ObjectHints { noreturn: noreturns(tree), ..ObjectHints::default() };
        let object = KernelObject::read(&expanded.bytes, &hints)
            .with_context(|| format!("{} with inlined calls", originals.name))?;
        let order = expanded.order(&object)?;
        let plan = RewritePlan {
            order: &order,
            hot: 0,
            base: *base,
            names: PartNames::Readable,
            counters: &[],
        };
        let mut rewritten = rewrite(&object, &plan).with_context(|| originals.name.clone())?;
        for block in &mut rewritten.placement.blocks {
            block.old = inlined::old_address(*base, *size, block.old);
        }
        rewritten.placement.inlined.clone_from(&expanded.calls);
        let is_guard = |call: &&InlinedCall| matches!(call.code, InPlaceOfCall::Guard(_));
        let guards = expanded.calls.iter().filter(is_guard).count();
        rewritten.summary.calls_promoted = guards;
        rewritten.summary.calls_inlined = expanded.calls.len() - guards;
        rewritten.summary.text_before = *size;
        Ok(RewrittenTree {
            object,
            linked: linked_of(tree, originals)?,
            base: *base,
            rewritten,
            counters: Vec::new(),
        })
    }
}

/// Predicts where a link puts the layout's blocks. Code behind `.text` moves with its end. Blocks
/// of modules have link addresses.
///
/// # Errors
/// The layout is for another kernel, or the tree's vmlinux.o cannot be read or placed.
pub fn predicted_placement(tree: &BuildTree, layout: &Layout) -> Result<Placement> {
    let originals = Originals::read(tree)?;
    let RewrittenTree { object, linked, base, rewritten, .. } =
        RewrittenTree::new(tree, &RelinkWork::Order(layout.clone()), &originals, None)?;
    let RewriteSummary { text_before, text_after, .. } = rewritten.summary;
    let Placement { call_padding, mut blocks, .. } = rewritten.placement;
    let shift = linked.expected_shift(&object, base);
    blocks.iter_mut().for_each(|b| b.new = LinkAddr(b.new.0.wrapping_add(shift)));
    let behind = linked.bases(&object.elf, |id| id != object.text)?;
    for (id, from) in behind.into_iter().filter(|(_, from)| from.0 >= base.0 + text_before) {
        let moved = from.0.wrapping_sub(text_before).wrapping_add(text_after).wrapping_add(shift);
        let align = object.elf.section(id).align.max(1);
        blocks.push(whole_section(&object, id, from, LinkAddr(moved.next_multiple_of(align)))?);
    }
    blocks.extend(tree_modules::predicted(tree, layout)?);
    blocks.sort_by_key(|b| b.old);
    Ok(Placement { call_padding, blocks, ..Placement::default() })
}

/// Does the work and puts the kernel at its destination. An existing result that was made from the
/// same input is used again. `progress` is called with each step.
///
/// # Errors
/// The tree is not built, or belongs to another kernel than the layout. The kernel cannot be
/// rewritten, linked or written.
pub fn relink(
    tree: &BuildTree,
    work: &RelinkWork,
    destination: &Destination<'_>,
    progress: &dyn Fn(&str),
) -> Result<RelinkedKernel> {
    let kept = OriginalLink::of(&tree.path, tree.machine().results()).home();
    let directory = match destination {
        Destination::Nowhere => return relink_in(tree, work, destination, None, progress),
        Destination::Directory(directory) => *directory,
        Destination::Tree => &kept,
    };
    let in_home = |home: &Path| relink_in(tree, work, destination, Some(home), progress);
    match destination {
        Destination::Directory(_) => output::whole_directory(directory, in_home),
        // In the tree, what is kept of its own link must never be under another name.
        _ => output::in_directory(directory, in_home),
    }
}

/// The same as `relink`, with Kernlane's directory given.
fn relink_in(
    tree: &BuildTree,
    work: &RelinkWork,
    destination: &Destination<'_>,
    home: Option<&Path>,
    progress: &dyn Fn(&str),
) -> Result<RelinkedKernel> {
    let begun = Instant::now();
    if let RelinkWork::Inline(_) = work {
        ensure_inlinable(destination)?;
    }
    let originals = Originals::read(tree)?;
    let key = key(work)?;
    if let Some(made) = home.and_then(|home| made_before(tree, home, destination, &key)) {
        return Ok(made);
    }
    progress("rewriting vmlinux.o");
    let expanded = match work {
        RelinkWork::Inline(work) => Some(ExpandedTree::new(tree, work, &originals)?),
        _ => None,
    };
    let RewrittenTree { object, linked, base, rewritten, counters } =
        RewrittenTree::new(tree, work, &originals, expanded.as_ref())?;
    let types = match tree.has_types() {
        true => Some(linked.types()?.context(
            "vmlinux: has no .BTF, although CONFIG_DEBUG_INFO_BTF is set; run make in the tree",
        )?),
        false => None,
    };
    interrupt::check()?;
    let mut report = RelinkReport {
        key,
        summary: rewritten.summary.clone(),
        whole: whole_counts(&object),
        counters: matches!(work, RelinkWork::Count).then(|| CounterCount {
            all: counters.len(),
            saving_flags: counters.iter().filter(|(counter, _)| counter.keeps_flags).count(),
        }),
        debug: rewritten.debug,
        modules: Vec::new(),
        hot_staying: match work {
            RelinkWork::Order(layout) => originals.hot_share_that_stays(&layout.of_vmlinux()),
            RelinkWork::Count | RelinkWork::Inline(_) => 0.0,
        },
        hot_whole: match work {
            RelinkWork::Order(layout) => hot_share_in_whole(&layout.of_vmlinux(), &object, base),
            RelinkWork::Count | RelinkWork::Inline(_) => 0.0,
        },
        rewrite_seconds: begun.elapsed().as_secs_f64(),
        link_seconds: None,
        old_build_id: linked.build_id.clone(),
        new_build_id: None,
    };
    let Some(home) = home else { return Ok(RelinkedKernel { report, map: None }) };
    let begun = Instant::now();
    let scratch = scratch::directory(scratch_tree::place(home)?, SCRATCH)?;
    progress("the kernel's own build links vmlinux");
    tree.link(&rewritten.bytes, scratch.path(), types)?;
    report.link_seconds = Some(begun.elapsed().as_secs_f64());

    progress("reading the new kernel");
    let bytes =
        fs::read(scratch.path().join("vmlinux")).context("the new vmlinux cannot be read")?;
    let new = LinkAddresses::read(&bytes).context("the new vmlinux")?;
    let placement = with_other_sections(&object, &linked, &new, rewritten.placement, base)?;
    let map = PlacementMap { build_id: linked.build_id.clone(), placement };
    tree.ensure_unchanged()?;
    match destination {
        Destination::Tree => {
            let beside = scratch.path().join("modules");
            if let RelinkWork::Order(layout) = work {
                progress("rewriting modules");
                report.modules = tree_modules::write_named(tree, layout, &beside)?;
            }
            OriginalLink::of(&tree.path, tree.machine().results()).install(
                scratch.path(),
                &originals.present,
                &new.build_id,
                &map.to_text(),
            )?;
            // They are newer than vmlinux: make would link an older module again.
            let paths: Vec<_> = report.modules.iter().map(|module| module.path.clone()).collect();
            OwnModules::of(&tree.path)?.install(&beside, &paths)?;
        }
        _ if expanded.is_some() => {
            install::tree_into_directory(scratch.path(), home, REPORT)?;
            output::write(&home.join(install::MAP), map.to_text().as_bytes())?;
        }
        _ => {
            // A directory that is replaced lacks these until it is whole.
            for name in [REPORT, COUNTERS, install::MAP] {
                install::remove_file(&home.join(name))?;
            }
            if let RelinkWork::Order(layout) = work {
                progress("rewriting modules");
                report.modules = tree_modules::write(tree, layout, home)?;
            }
            let results = tree.machine().results();
            let text = map.to_text();
            install::into_directory(scratch.path(), home, results, &new.build_id, &text)?;
        }
    }
    if let RelinkWork::Count = work {
        let block = |&(_, piece): &(BlockCounter, u32)| {
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
    Ok(RelinkedKernel { report, map: Some(map) })
}

/// A kernel with inlined calls is a tree of its own.
fn ensure_inlinable(destination: &Destination<'_>) -> Result<()> {
    ensure!(
        !matches!(destination, Destination::Tree),
        "a kernel with inlined calls needs a directory of its own, since it is a tree that can be \
         recorded and laid out again"
    );
    Ok(())
}

/// The prefix of the directory in which the kernel is linked.
const SCRATCH: &str = ".relink-";
/// What the last relink into a directory did.
const REPORT: &str = "relink.json";
/// The name of the map beside a relinked kernel.
pub const MAP: &str = install::MAP;
/// The list of the counters of a counting kernel.
pub const COUNTERS: &str = "vmlinux.klc";

/// A hash of the input of a relink: the work, whose layout names the kernel, and this program.
fn key(work: &RelinkWork) -> Result<String> {
    let program = std::env::current_exe()
        .and_then(fs::read)
        .context("this program's own file cannot be read")?;
    let mut hash = Sha256::new();
    hash.update(&program);
    match work {
        RelinkWork::Order(layout) => hash.update(layout.to_text()),
        RelinkWork::Count => hash.update("count"),
        RelinkWork::Inline(work) => {
            hash.update(format!("inline {}", work.build_id.0));
            for call in &work.calls {
                hash.update(format!("\n{} {} {}", call.context, call.site, call.callee));
            }
        }
    }
    Ok(image::sealed::hex(&hash.finalize()))
}

/// What an earlier relink with the same input made, if its kernel still exists.
fn made_before(
    tree: &BuildTree,
    home: &Path,
    destination: &Destination<'_>,
    key: &str,
) -> Option<RelinkedKernel> {
    let text = fs::read_to_string(home.join(REPORT)).ok()?;
    // What is damaged, or of a version that wrote no checksum, is made anew.
    sealed::verify_json(&text, Some(""), true).ok()?;
    let report: RelinkReport = serde_json::from_str(&text).ok()?;
    let root = if matches!(destination, Destination::Tree) { &tree.path } else { home };
    let modules = report.modules.iter().map(|module| module.path.as_path());
    let results = tree.machine().results().iter().map(Path::new);
    let there = results.chain(modules).all(|name| root.join(name).is_file());
    let map = PlacementMap::from_text(&fs::read_to_string(home.join(install::MAP)).ok()?).ok()?;
    let vmlinux = fs::read(root.join("vmlinux")).ok()?;
    let id = LinkAddresses::read(&vmlinux).ok()?.build_id;
    let in_place = match destination {
        Destination::Tree => {
            let paths = report.modules.iter().map(|module| module.path.as_path());
            OwnModules::of(&tree.path).ok()?.are_relinked(paths)
        }
        _ => true,
    };
    let is_made =
        report.key == key && there && in_place && report.new_build_id.as_ref() == Some(&id);
    is_made.then_some(RelinkedKernel { report, map: Some(map) })
}

/// Adds to the map the code sections that moved because `.text` grew, each as one block.
fn with_other_sections(
    object: &KernelObject<'_>,
    old: &LinkAddresses<'_>,
    new: &LinkAddresses<'_>,
    placement: Placement,
    base: LinkAddr,
) -> Result<Placement> {
    let shift = new.text_shift(object, &placement, base)?;
    let Placement { call_padding, mut blocks, inlined } = placement;
    blocks.iter_mut().for_each(|b| b.new = LinkAddr(b.new.0.wrapping_add(shift)));
    let new = new.bases(&object.elf, |id| id != object.text)?;
    for (id, from) in old.bases(&object.elf, |id| id != object.text)? {
        if let Some(&to) = new.get(&id) {
            blocks.push(whole_section(object, id, from, to)?);
        }
    }
    blocks.sort_by_key(|b| b.old);
    Ok(Placement { call_padding, blocks, inlined })
}

/// A code section that moved as a whole.
fn whole_section(
    object: &KernelObject<'_>,
    id: SectionId,
    old: LinkAddr,
    new: LinkAddr,
) -> Result<PlacedBlock> {
    let section = object.elf.section(id);
    let size = u32::try_from(section.size)
        .with_context(|| format!("{}: larger than 4 GB", section.name))?;
    Ok(PlacedBlock { old, old_size: size, new, new_size: size, appended: 0, ending: Ending::Same })
}

/// The functions that objtool treats as never returning. Without the list, the only cost is more
/// jumps.
pub fn noreturns(tree: &BuildTree) -> HashSet<String> {
    let place = |name: &str| [tree.file(name), tree.file(&format!("source/{name}"))];
    let paths = forms::NORETURN_LISTS.iter().flat_map(|name| place(name));
    let texts = paths.filter_map(|path| fs::read_to_string(path).ok());
    let named =
        |text: String| forms::noreturn_names(&text).into_iter().map(str::to_owned).collect();
    texts.map(named).find(|names: &HashSet<String>| !names.is_empty()).unwrap_or_default()
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
