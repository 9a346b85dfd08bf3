//! `cargo xtask inline-test TREE`: calls inlined in a tree's kernel.
//!
//! Once every call that can be inlined or promoted: the kernel must be proved, and so must a random
//! order of that kernel, which is a tree of its own. Once those that pay, by the whole command: the
//! recorded numbers must move. `vm-test` boots the first kernel.

use anyhow::{Context, Result, ensure};
use check::mutation::finds_changed_code;
use check::{KernelBuild, check};
use emit::kbuild::BuildTree;
use emit::object::CallReplacement;
use emit::relink::{Destination, InlineWork, MAP, RelinkWork, inline_limits};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::place::{InPlaceOfCall, InlinedCall};
use lab::{run, succeeded};
use profile::Profile;
use replay::comparison;
use replay::results::ResultFile;
use road::ground::Ground;
use road::layout::Algorithm;
use road::layout_file::read_map;
use road::proof::{ProvedMap, prove};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const WORKLOAD: &str = "files";
/// The rows of the kernels that are compared with the original.
const INLINED: &str = "inlined";
const BOTH: &str = "inlined, ext-tsp-global";
/// What each number must at least change by in the kernel with inlined calls, and with both.
const CHANGES: [(&str, f64, f64); 3] = [
    ("kernel cycles, out-of-order core", -0.08, -0.12),
    ("kernel returns", -0.20, -0.20),
    ("kernel L1I misses", 0.10, -0.20),
];

/// How many bytes of inlined code are changed, and in how many claims each number.
const CHANGED_BYTES: usize = 24;
const CHANGED_CLAIMS: usize = 8;

/// Where the results of a tree's kernel lie: `all.kernel` has every call inlined.
pub fn directory(tree: &Path) -> PathBuf {
    let name = tree.file_name().unwrap_or_default().to_string_lossy();
    PathBuf::from(format!("target/test/inlined-{name}"))
}

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn inline_test(tree: &Path) -> Result<()> {
    let directory = directory(tree);
    fs::create_dir_all(&directory)?;
    let all = directory.join("all.kernel");
    every_call(tree, &all)?;
    a_random_order(&all, &directory.join("all-random.kernel"))?;
    refusals(tree, &directory)?;
    what_pays(tree, &directory.join(WORKLOAD))?;
    wrong_kernels_are_found(tree, &directory.join(WORKLOAD).join("inlined.kernel"))
}

/// Inlines and promotes every call that can be.
fn every_call(tree: &Path, to: &Path) -> Result<()> {
    let built = BuildTree::open(tree, &[])?;
    let vmlinux = fs::read(tree.join("vmlinux"))?;
    let kernel = LinkedKernel::parse(&vmlinux)?;
    let callees = kernel.functions.iter().map(|f| kernel.link_address(f.at)).collect();
    let limits = inline_limits(&built, &callees)?;
    let calls = live::inline::all_calls(&kernel, &limits)?;
    let count = |wanted: &[CallReplacement]| {
        calls.iter().filter(|call| wanted.contains(&call.replacement)).count()
    };
    let inlined = count(&[CallReplacement::Code, CallReplacement::GuardedCode]);
    let promoted = count(&[CallReplacement::GuardedCall, CallReplacement::GuardedCode]);
    ensure!(inlined > 10_000, "only {inlined} calls can be inlined");
    ensure!(promoted > 2_000, "only {promoted} calls can be promoted");
    let work = RelinkWork::Inline(InlineWork { build_id: kernel.build_id.clone(), calls });
    remove(to)?;
    road::relink::relink(&built, &work, &Destination::Directory(to))?;
    proved(tree, to, &to.join(MAP))?;
    println!("passed: a kernel with {inlined} inlined and {promoted} promoted calls is proved");
    Ok(())
}

/// Lays out the kernel with inlined calls like that of any tree.
fn a_random_order(tree: &Path, to: &Path) -> Result<()> {
    let built = BuildTree::open(tree, &[])?;
    let image = image::vmlinux::read(&tree.join("vmlinux"))?;
    let nothing = Profile::empty(image.build_id.clone());
    let (layout, _) = Ground::new(&image, &nothing)?.lay_out(Algorithm::Random, 1)?;
    remove(to)?;
    road::relink::relink(&built, &RelinkWork::Order(layout), &Destination::Directory(to))?;
    proved(tree, to, &to.join(MAP))?;
    println!("passed: a random order of that kernel is proved");
    remove(to)
}

/// Changes bytes of inlined code, and claims of the map.
fn wrong_kernels_are_found(old: &Path, new: &Path) -> Result<()> {
    let (old, build) = (KernelBuild::read(old)?, KernelBuild::read(new)?);
    let (old, new_kernel) = (old.kernel()?, build.kernel()?);
    let map = read_map(&new.join(MAP))?.placement;
    let inlined: Vec<_> = map.blocks.iter().filter(|b| b.old >= InlinedCall::BASE).collect();
    let places = inlined.iter().filter(|block| block.new_size > 0);
    let mut changed = 0;
    for (number, block) in places.step_by(inlined.len().div_ceil(CHANGED_BYTES)).enumerate() {
        let at = LinkAddr(block.new.0 + number as u64 % u64::from(block.new_size));
        let bits = 1 << (number % 8);
        let found = finds_changed_code(&old, (&build, &new_kernel), &map, (at, bits))?;
        ensure!(found, "a changed byte at {at} ({bits:#x}) is not found");
        changed += 1;
    }
    println!("passed: {changed} changed bytes of inlined code are found");
    let is_refused = |change: &dyn Fn(&mut InlinedCall), number: usize| {
        let mut wrong = map.clone();
        change(&mut wrong.inlined[number]);
        let findings = check(&old, &new_kernel, &wrong)?;
        let at = map.inlined[number].site;
        ensure!(!findings.equal(), "a wrong claim of the call at {at} is not found");
        anyhow::Ok(())
    };
    for number in (0..map.inlined.len()).step_by(map.inlined.len().div_ceil(CHANGED_CLAIMS)) {
        is_refused(&|call| call.site.0 += 1, number)?;
        is_refused(&|call| call.at.0 += 1, number)?;
        is_refused(&|call| *start(&mut call.code) += 1, number)?;
        if let InPlaceOfCall::Code(_) = map.inlined[number].code {
            let shorten = |call: &mut InlinedCall| match &mut call.code {
                InPlaceOfCall::Code(stretches) => stretches[0].1 -= 1,
                InPlaceOfCall::Guard(_) => {}
            };
            is_refused(&shorten, number)?;
        }
    }
    println!("passed: changed claims are refused");
    Ok(())
}

/// Where the claimed code begins in the old kernel, or the function of a claimed guard.
fn start(code: &mut InPlaceOfCall) -> &mut u64 {
    match code {
        InPlaceOfCall::Code(stretches) => &mut stretches[0].0.0,
        InPlaceOfCall::Guard(target) => &mut target.0,
    }
}

fn proved(old: &Path, new: &Path, map: &Path) -> Result<()> {
    let proof = prove(old, new, ProvedMap::File(map), 3)?;
    ensure!(proof.holds, "{} is not the old program\n{}", new.display(), proof.text);
    Ok(())
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| directory.display().to_string())
        }
        _ => Ok(()),
    }
}

/// What the command refuses, before it writes anything.
fn refusals(tree: &Path, directory: &Path) -> Result<()> {
    let kernlane = lab::kernlane()?;
    let profile = directory.join("none.klp");
    let image = image::vmlinux::read(&tree.join("vmlinux"))?;
    fs::write(&profile, Profile::empty(image.build_id.clone()).to_json())?;
    let other = directory.join("other.klp");
    fs::write(&other, Profile::empty(image::BuildId("ab".repeat(20))).to_json())?;
    let output = directory.join("refused.kernel");
    let refused = |options: &[&str], profile: &Path, why: &str| {
        let mut command = Command::new(&kernlane);
        command.arg("relink").arg("--tree").arg(tree).arg("--inline").arg(profile);
        let done = command.args(options).output().context("kernlane")?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(
            done.status.code() == Some(2) && said.contains(why),
            "not refused ({}): {said}",
            done.status
        );
        ensure!(!output.exists(), "a refused command left {}", output.display());
        anyhow::Ok(())
    };
    let to = output.display().to_string();
    refused(&["-o", &to], &profile, "--despite-livepatch")?;
    refused(&["-o", &to, "--despite-livepatch"], &other, "abab")?;
    refused(&["--despite-livepatch"], &profile, "directory of its own")?;
    println!("passed: livepatches, another kernel's profile and the tree itself are refused");
    Ok(())
}

/// Records, inlines, lays out and records again.
fn what_pays(tree: &Path, to: &Path) -> Result<()> {
    let kernlane = lab::kernlane()?;
    let command = || {
        let mut command = Command::new(&kernlane);
        command.args(["optimize", WORKLOAD, "--inline", "--despite-livepatch"]);
        command.args(["--machine", "zen4", "--tree"]).arg(tree).arg("-o").arg(to);
        command
    };
    run(&mut command())?;
    let results = ResultFile::read(to)?;
    let comparisons = comparison::compare(&results.rows)?;
    let [comparison] = &comparisons[..] else { anyhow::bail!("{} comparisons", comparisons.len()) };
    for (layout, is_both) in [(INLINED, false), (BOTH, true)] {
        let found = comparison.layouts.iter().find(|found| found.layout == layout);
        let found = found.with_context(|| format!("no results of {layout}"))?;
        for (name, alone, both) in CHANGES {
            let metric = found.metrics.iter().find(|metric| metric.name == name);
            let metric = metric.with_context(|| format!("{layout}: there is no {name}"))?;
            let change = metric.recorded_change.context("no change")?;
            let most = if is_both { both } else { alone };
            ensure!(change <= most, "{layout}: {name}: changed by {:+.1} %", 100.0 * change);
            println!("passed: {layout}: {name}: {:+.1} %", 100.0 * change);
        }
    }
    let list = fs::read_to_string(to.join("inlined.kernel/vmlinux.inlined"))?;
    ensure!(list.lines().count() > 100, "the list of inlined calls is short:\n{list}");
    let again = succeeded(&mut command())?;
    let said = String::from_utf8_lossy(&again.stderr);
    ensure!(said.contains("using the existing kernel"), "a second call links again:\n{said}");
    println!("passed: a second call takes the same kernels");
    Ok(())
}
