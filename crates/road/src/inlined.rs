//! A kernel with hot calls inlined, which is then laid out by the profile of its own recordings.
//!
//! Input: workloads, and a built tree, which is only read. Output: a directory with the result of
//! each step: `original`, the road of the tree's kernel; `inlined.kernel`, the kernel whose hot
//! calls are gone, a tree of its own; and `inlined`, its road. A step whose result exists is not
//! repeated.
//!
//! [`live::inline`] chooses the calls, [`emit`] puts the code of callees in their place, and
//! [`check`] proves it. The layout alone, the inlined calls alone and both stand beside the
//! original in one comparison.

use crate::counts;
use crate::optimization::Optimization;
use crate::optimize::{Optimized, Road, keep};
use crate::proof::{ProvedMap, prove};
use crate::rebuild::{is_recorded, named};
use crate::rebuild_steps::Steps;
use crate::relink;
use crate::said::say;
use anyhow::{Context, Result, bail};
use emit::kbuild::BuildTree;
use emit::object::{CallReplacement, CallToInline};
use emit::originals::Originals;
use emit::relink::{Destination, InlineWork, RelinkWork, RelinkedKernel};
use host::{note, output};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use layout::inlining::CallCosts;
use live::inline::{InlineSettings, InlineSummary};
use live::memory::Memory;
use profile::Profile;
use replay::call_costs::call_costs;
use sim::MachineModel;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What to optimize, and by which profile calls are inlined.
#[derive(Clone, Debug)]
pub struct InlinedOptimization {
    /// What to optimize the kernel for.
    pub optimization: Optimization,
    /// A profile of the kernel (`.klp`) by which calls are chosen, of other workloads for example,
    /// instead of that of the recordings.
    pub profile: Option<PathBuf>,
    /// Whether calls are inlined in a kernel that can be livepatched.
    pub despite_livepatch: bool,
}

/// The kernel can be livepatched: a livepatch replaces a function, and not the code of it that
/// stands in others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: the kernel has CONFIG_LIVEPATCH, and a livepatch of a function does not change code of it \
     that was inlined: allow it only if every livepatch is made by the list of inlined calls"
)]
pub struct Livepatched(pub String);

/// The calls of a kernel that pay most when they are inlined.
pub struct ChosenCalls {
    /// The calls, for [`relink`](crate::relink::relink).
    pub work: InlineWork,
    /// What they bring by the profile.
    pub summary: InlineSummary,
    /// How often each function calls another one in the code, as (caller, callee): what a tracer of
    /// the callee does not see any more, and what the builder of a livepatch must know.
    pub pairs: BTreeMap<(String, String), usize>,
}

/// The name of the kernel with inlined calls, in rows.
pub const INLINED: &str = "inlined";
/// The list of inlined calls beside a kernel.
pub const PAIRS: &str = "vmlinux.inlined";
/// The share of the executed code that the functions hold among which calls are chosen.
const SHARE: f64 = 0.9999;
/// How many differences of each kind a message has.
const SHOWN: usize = 3;

/// Reads a profile of a tree's kernel.
///
/// # Errors
/// The files cannot be read, or the profile is of another kernel.
pub fn profile_of(tree: &BuildTree, path: &Path) -> Result<Profile> {
    counts::of_file(path, &Originals::read(tree)?.build_id()?)
}

/// Chooses the calls to inline in the kernel of a tree by a profile of it. `machine`: what calls
/// cost on it decides; without it, or if it describes no out-of-order core, each call counts as
/// one.
///
/// # Errors
/// [`Livepatched`], unless `despite_livepatch`; the tree's files cannot be read or are not
/// understood, or the profile is of another kernel.
pub fn choose(
    tree: &BuildTree,
    profile: &Profile,
    machine: Option<&MachineModel>,
    despite_livepatch: bool,
) -> Result<ChosenCalls> {
    if tree.has_option("CONFIG_LIVEPATCH=y") && !despite_livepatch {
        return Err(Livepatched(tree.path.display().to_string()).into());
    }
    let originals = Originals::read(tree)?;
    let kernel = LinkedKernel::parse(&originals.vmlinux)
        .with_context(|| tree.file("vmlinux").display().to_string())?;
    if profile.build_id != kernel.build_id {
        bail!(
            "the profile is of the kernel {}, and {} is {}",
            profile.build_id.0,
            tree.file("vmlinux").display(),
            kernel.build_id.0
        );
    }
    let chosen = live::hot::hottest(&kernel, profile, SHARE);
    let entry = |&to: &LinkAddr| {
        let function = &kernel.functions[kernel.function_at(to)?];
        Some(kernel.link_address(function.at)).filter(|&at| at == to)
    };
    let callees: BTreeSet<LinkAddr> =
        profile.calls.keys().filter_map(|(_, to)| entry(to)).collect();
    let limits = emit::relink::inline_limits(tree, &callees)?;
    let costs = costs(&kernel, None, profile, machine)?;
    let settings = InlineSettings { costs, ..InlineSettings::default() };
    let (calls, summary) = live::inline::calls(&kernel, &chosen, profile, settings, limits)?;
    let name = |at: LinkAddr| {
        let index = kernel.function_at(at);
        index.map_or(at.to_string(), |index| {
            kernel.function_name(&kernel.functions[index]).to_owned()
        })
    };
    let mut pairs = BTreeMap::new();
    for call in calls.iter().filter(|call| call.replacement != CallReplacement::GuardedCall) {
        *pairs.entry((name(owner(&calls, *call)), name(call.callee))).or_default() += 1;
    }
    let work = InlineWork { build_id: profile.build_id.clone(), calls };
    Ok(ChosenCalls { work, summary, pairs })
}

/// What calls cost on a machine, as the kernel called when the profile was recorded; `None` if the
/// machine is not known, or describes no out-of-order core. `memory`: as for
/// [`live::inline::call_forms`].
///
/// # Errors
/// Memory cannot be read, or the machine's numbers contradict each other.
pub fn costs(
    kernel: &LinkedKernel<'_>,
    memory: Option<&dyn Memory>,
    profile: &Profile,
    machine: Option<&MachineModel>,
) -> Result<Option<CallCosts>> {
    let Some(machine) = machine else { return Ok(None) };
    call_costs(machine, live::inline::call_forms(kernel, memory, profile)?)
}

/// The address, in a function's own code, of the call that holds another one after all.
fn owner(calls: &[CallToInline], mut call: CallToInline) -> LinkAddr {
    while let Some(outer) = (call.context as usize).checked_sub(1) {
        call = calls[outer];
    }
    call.site
}

/// Inlines the chosen calls in the kernel of a tree. The new kernel is a tree in `directory`, with
/// the list of what was inlined.
///
/// # Errors
/// As [`relink::relink`].
pub fn make(
    tree: &BuildTree,
    chosen: ChosenCalls,
    destination: &Destination<'_>,
) -> Result<RelinkedKernel> {
    let ChosenCalls { work, pairs, .. } = chosen;
    let made = relink::relink(tree, &RelinkWork::Inline(work), destination)?;
    if let Destination::Directory(directory) = destination {
        output::write(&directory.join(PAIRS), list(&pairs).as_bytes())?;
    }
    Ok(made)
}

/// The list of what was inlined, as text.
fn list(pairs: &BTreeMap<(String, String), usize>) -> String {
    let mut text = "# caller\tinlined callee\tcalls\n".to_owned();
    for ((caller, callee), calls) in pairs {
        text += &format!("{caller}\t{callee}\t{calls}\n");
    }
    text
}

/// Records, inlines, lays out, relinks and proves: all steps.
///
/// # Errors
/// The tree is not built; the profile is of another kernel; or a step of a road fails. What was
/// done stays.
pub fn optimize_inlined(request: InlinedOptimization) -> Result<Optimized> {
    let InlinedOptimization { optimization, profile, despite_livepatch } = request;
    let directory = optimization.output.clone();
    output::in_directory(&directory, |_| {
        let tree = BuildTree::open(&optimization.tree, &optimization.make)?;
        if tree.has_option("CONFIG_LIVEPATCH=y") && !despite_livepatch {
            return Err(Livepatched(tree.path.display().to_string()).into());
        }
        let given = |counts: &Profile| match &profile {
            Some(path) => counts::of_file(path, &counts.build_id),
            None => Ok(counts.clone()),
        };
        let home = fs::canonicalize(&directory).context("the directory cannot be read")?;
        let mut steps = Steps::default();
        let take = |steps: &mut Steps, name: &str, tree: &Path| {
            let (tree, output) = (tree.to_owned(), home.join(name));
            let optimization = Optimization { tree, output, ..optimization.clone() };
            let is_recorded = is_recorded(&optimization);
            let mut road = Road::open(optimization)?;
            let recordings = steps.step("its recordings", is_recorded, || road.record())?;
            let counts = steps.step("its counts", false, || road.count(&recordings))?;
            let rows = steps.step("its layouts, and what they bring", false, || {
                road.rows_of_all(&recordings, &counts)
            })?;
            anyhow::Ok((counts, rows))
        };
        steps.step("the tree's own kernel", true, || Ok(()))?;
        let (counts, mut rows) = take(&mut steps, "original", &optimization.tree)?;
        let kernel = home.join(format!("{INLINED}.kernel"));
        let what = format!("the kernel with inlined calls, in {}", kernel.display());
        steps.step(&what, true, || {
            let mut machines = optimization.guests.iter().flat_map(|guest| &guest.machines);
            let machine = machines.find(|machine| machine.core.is_some());
            let chosen = choose(&tree, &given(&counts)?, machine, despite_livepatch)?;
            note!("{}", summary(&chosen.summary));
            proven(&tree, chosen, &kernel, &home)
        })?;
        let (_, inlined) = take(&mut steps, INLINED, &kernel)?;
        rows.extend(inlined.into_iter().map(|row| named(row, INLINED)));
        keep(&directory, rows)
    })
}

/// What was inlined, in words.
pub fn summary(summary: &InlineSummary) -> String {
    let InlineSummary { calls, executed, gone, promoted, hot_bytes, added_bytes, .. } = *summary;
    let share = |part: f64, whole: u64| 100.0 * part / whole.max(1) as f64;
    format!(
        "{calls} calls inlined, {promoted} indirect calls promoted; by the profile {:.1} % of the \
         calls among hot functions are gone, and there are {:.1} % more bytes of hot code{}",
        share(gone as f64, executed),
        share(added_bytes as f64, hot_bytes),
        predicted(summary)
    )
}

/// The kernel cycles that inlined calls save by the model, in words behind others; nothing if the
/// machine is not known.
pub fn predicted(summary: &InlineSummary) -> String {
    let cycles = |cycles| format!("; predicted: {cycles} kernel cycles less in the profile's run");
    summary.saved_cycles.map_or_else(String::new, cycles)
}

/// Makes the kernel, unless it is there, and proves it, unless it is proved.
fn proven(tree: &BuildTree, chosen: ChosenCalls, kernel: &Path, home: &Path) -> Result<()> {
    let made = make(tree, chosen, &Destination::Directory(kernel))?;
    let build_id = made.report.new_build_id.map(|id| id.0).unwrap_or_default();
    let done = home.join(format!("{INLINED}.proved"));
    if fs::read_to_string(&done).is_ok_and(|proved| proved.trim() == build_id) {
        return say(&format!("using the existing kernel {}", kernel.display()));
    }
    say("checking that the kernel with inlined calls is the old program")?;
    let map = made.map.context("nothing was linked")?;
    let proof = prove(&tree.path, kernel, ProvedMap::Map(&map), SHOWN)?;
    if !proof.holds {
        bail!(
            "the kernel with inlined calls is not the old program; do not use the kernel in {}\n{}",
            kernel.display(),
            proof.text
        );
    }
    // Written last, so that only a proved kernel is reused.
    output::write(&done, format!("{build_id}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(context: u32, site: u64, callee: u64) -> CallToInline {
        let replacement = CallReplacement::Code;
        CallToInline { context, site: LinkAddr(site), callee: LinkAddr(callee), replacement }
    }

    #[test]
    fn nested_calls_belong_to_the_function_that_holds_all() {
        let calls = [call(0, 0x10, 0x100), call(1, 0x108, 0x200), call(2, 0x208, 0x300)];
        assert_eq!(calls.map(|call| owner(&calls, call)), [LinkAddr(0x10); 3]);
        assert_eq!(owner(&calls, call(0, 0x208, 0x300)), LinkAddr(0x208));
    }

    #[test]
    fn the_list_has_each_pair_once() {
        let pair = |caller: &str, callee: &str| (caller.to_owned(), callee.to_owned());
        let pairs = BTreeMap::from([(pair("f", "g"), 2), (pair("f", "h"), 1)]);
        assert_eq!(list(&pairs), "# caller\tinlined callee\tcalls\nf\tg\t2\nf\th\t1\n");
    }
}
