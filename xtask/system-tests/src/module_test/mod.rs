//! `cargo xtask module-test KERNEL`: tests rewriting the modules of a real kernel.
//!
//! Input: a built tree with modules, or the vmlinux of an installed kernel. Every module in its own
//! order stays byte for byte. In a random order the checker proves it, and refuses it with a
//! changed byte. If the kernel is a tree, a guest loads, uses and unloads the modules in a random
//! order, and what replay predicts of a module's code is what a recording of the relinked kernel
//! with this module shows; relinked in the tree's own place, they are the same, and the tree's own
//! come back. Prints one line for each test.

use anyhow::{Context, Result, ensure};
use check::loadable::prove;
use emit::loadable::{ModuleObject, RewrittenModule, has_text, unsigned};
use emit::object::two_regions;
use emit::tree_modules;
use guest::{GuestContents, GuestEnd, GuestKernel, KernelModule, module_files};
use image::object::ObjectHints;
use kernlane_layout::random::SplitMix64;
use lab::run;
use lab::score::TestScore;
use replay::comparison;
use replay::results::ResultFile;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SCRIPT: &str = include_str!("guest.sh");
/// The modules that the guest loads.
const LOADED: [&str; 5] = ["loop", "dummy", "veth", "lkdtm", "livepatch_sample"];
/// The whole road of the tree and its modules.
const HOME: &str = "target/test/modules-road";
/// The seeds of the random orders.
const SEEDS: [u64; 3] = [1, 2, 3];
/// The modules whose misses are predicted, and the machine: its cache is too small for their paths.
const MEASURED: [&str; 2] = ["veth", "pktgen"];
const MACHINE: &str = "torrellas-8k";
const WORKLOAD: &str = include_str!("packets.toml");
/// The largest accepted difference between predicted and recorded misses, relative to the recorded.
/// A module that grew moves what is loaded behind it, and the cache is small.
const TOLERANCE: f64 = 0.1;
/// How many changed bytes of each module the checker sees.
const CHANGES: usize = 40;

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn module_test(kernel: &Path) -> Result<()> {
    let mut score = TestScore::default();
    let mut shuffled = Vec::new();
    for (name, path) in module_files::of_kernel(kernel)? {
        let data = module_files::read(&path).with_context(|| path.display().to_string())?;
        let data = unsigned(&data).with_context(|| name.clone())?.0;
        if !has_text(data) {
            println!("left out: {name} has no code in .text");
            continue;
        }
        score.count(&format!("{name}: its own order"), in_its_own_order(data));
        for seed in SEEDS {
            let proved = proved_in_random_order(data, seed);
            score.count(&format!("{name}: order {seed}"), proved.as_ref().map(|_| ()));
            if let Ok(rewritten) = proved
                && seed == SEEDS[0]
            {
                let refused = refused(data, &rewritten);
                score.count(&format!("{name}: changed bytes"), refused);
                shuffled.push(KernelModule {
                    name: name.clone(),
                    parameters: String::new(),
                    data: rewritten.bytes,
                });
            }
        }
    }
    ensure!(!shuffled.is_empty(), "{} has no modules", kernel.display());
    shuffled.retain(|module| LOADED.contains(&module.name.as_str()));
    if kernel.is_dir() {
        score.count("a guest loads, uses and unloads them", in_a_guest(kernel, shuffled));
        score.count("misses of modules are as predicted", predicted(kernel));
        score.count("modules in the tree's own place are taken out again", in_place(kernel));
    }
    score.finish("rewritten modules are wrong")
}

fn in_its_own_order(data: &[u8]) -> Result<()> {
    let module = ModuleObject::read(data, &ObjectHints::default())?;
    let order: Vec<u32> = (0..module.object.pieces.len() as u32).collect();
    let rewritten = module.rewrite(&order, 0)?;
    ensure!(rewritten.bytes == data, "other bytes");
    ensure!(rewritten.map.placement.blocks.iter().all(|block| block.old == block.new), "moved");
    Ok(())
}

fn proved_in_random_order(data: &[u8], seed: u64) -> Result<RewrittenModule> {
    let module = ModuleObject::read(data, &ObjectHints::default())?;
    let (order, hot) = two_regions(&module.object, seed);
    let rewritten = module.rewrite(&order, hot)?;
    let proof = prove(data, &rewritten.bytes, Some(&rewritten.map), 5)?;
    ensure!(proof.holds, "not proved:\n{}", proof.text);
    let is_new = rewritten.identity.build_id != module.identity.build_id;
    ensure!(is_new != order.is_sorted(), "a build id of its own only for moved code");
    Ok(rewritten)
}

/// Changes bytes of the code that the loader does not write, and addends of relocations, one at a
/// time.
fn refused(data: &[u8], rewritten: &RewrittenModule) -> Result<()> {
    use object::{Object, ObjectSection};
    let elf = object::File::parse(&*rewritten.bytes)?;
    let range = |name: &str| {
        elf.section_by_name(name).and_then(|section| section.file_range()).unwrap_or_default()
    };
    let (code, addends) = (range(".text"), range(".rela.text"));
    let text = elf.section_by_name(".text").context("no .text")?;
    let written: Vec<u64> = text.relocations().map(|(offset, _)| code.0 + offset).collect();
    let is_written = |at: u64| written.iter().any(|&field| (field..field + 4).contains(&at));
    let base = rewritten.map.placement.blocks.iter().map(|block| block.new.0).min();
    let base = base.unwrap_or_default() >> 26 << 26;
    let pieces: Vec<_> = (rewritten.map.placement.blocks.iter())
        .map(|block| block.new.0 - base..block.new.0 - base + u64::from(block.new_size))
        .collect();
    let mut random = SplitMix64::new(SEEDS[0]);
    for change in 0..CHANGES {
        let at = match change % 2 {
            1 if addends.1 > 0 => addends.0 + 24 * random.below(addends.1 / 24) + 16,
            _ => code.0 + random.below(code.1),
        };
        if change % 2 == 0 && is_written(at) {
            continue;
        }
        // What lies between pieces may be any no-op.
        let offset = at.wrapping_sub(code.0);
        if change % 2 == 0 && !pieces.iter().any(|piece| piece.contains(&offset)) {
            continue;
        }
        let at = at as usize;
        // objtool turns the relocation of a tracer's call that became a no-op into none.
        let kind = at.checked_sub(8).and_then(|kind| rewritten.bytes.get(kind..kind + 4));
        if change % 2 == 1 && kind == Some(&[0; 4]) {
            continue;
        }
        let mut wrong = rewritten.bytes.clone();
        wrong[at] ^= 1 << random.below(8);
        let proof = prove(data, &wrong, Some(&rewritten.map), 1);
        let noticed = proof.map_or(true, |proof| !proof.holds);
        ensure!(noticed, "byte {at:#x} was changed, and the proof holds");
    }
    Ok(())
}

fn in_a_guest(tree: &Path, modules: Vec<KernelModule>) -> Result<()> {
    let kernel = GuestKernel::open(tree, None)?;
    ensure!(modules.len() == LOADED.len(), "only {} of {LOADED:?} were rewritten", modules.len());
    let contents = GuestContents::of_script(SCRIPT, modules);
    let outcome = guest::run(&kernel.boot_image, &contents, |boot| {
        boot.kaslr = true;
        boot.time_limit = Duration::from_secs(900);
    })?;
    ensure!(
        outcome.end == GuestEnd::Exited(0) && outcome.output.contains("@@ all modules work"),
        "{:?}\n{}\n{}",
        outcome.end,
        outcome.output,
        outcome.console
    );
    Ok(())
}

/// Sends a kernel with its modules down the road: relinked in a random order of all blocks, proved,
/// recorded again.
fn predicted(tree: &Path) -> Result<()> {
    let home = Path::new(HOME);
    fs::create_dir_all(home)?;
    let workload = home.join("packets.toml");
    fs::write(&workload, WORKLOAD)?;
    let directory = home.join("packets");
    let mut command = Command::new(lab::kernlane()?);
    command.arg("optimize").arg(&workload).arg("--tree").arg(tree);
    command.args(["--machine", MACHINE, "--layout", "random", "--output"]).arg(&directory);
    run(&mut command)?;
    let results = ResultFile::read(&directory)?;
    let comparisons = comparison::compare(&results.rows)?;
    let layout = comparisons.first().and_then(|found| found.layouts.first());
    let layout = layout.context("no layout was recorded")?;
    for module in MEASURED {
        let name = format!("kernel L1I misses, module {module}");
        let metric = layout.metrics.iter().find(|metric| metric.name == name);
        let metric = metric.with_context(|| format!("there is no {name}"))?;
        let change = metric.recorded_change.context("no change")?;
        let off = metric.difference.context("not both predicted and recorded")?;
        ensure!(
            off.abs() <= TOLERANCE,
            "{name}: {} before, predicted {:?}, recorded {:?}",
            metric.original,
            metric.predicted,
            metric.recorded
        );
        ensure!(change.abs() > 2.0 * TOLERANCE, "{name}: the random order changed nothing");
        println!("{name}: {:+.1} %, predicted within {:.2} %", 100.0 * change, 100.0 * off.abs());
    }
    Ok(())
}

/// Relinks a tree with its modules in place, with the layout of [`predicted`], and restores it. The
/// tree is a copy, of links: a file is replaced, and never written to.
fn in_place(tree: &Path) -> Result<()> {
    let scratch = tempfile::tempdir_in(tree.parent().context("a tree has a parent")?)?;
    let copy = scratch.path().join("tree");
    run(Command::new("cp").arg("-al").arg(tree).arg(&copy))?;
    let made = Path::new(HOME).join("packets");
    let relink = |arguments: &[&str]| {
        let mut command = Command::new(lab::kernlane()?);
        run(command.arg("relink").arg("--tree").arg(&copy).args(arguments))
    };
    let read = |root: &Path, path: &Path| {
        let file = root.join(path);
        fs::read(&file).with_context(|| file.display().to_string())
    };
    let layout = made.join("random.kll");
    for _ in 0..2 {
        relink(&["--layout", &layout.display().to_string()])?;
    }
    let kernel = made.join("random.kernel");
    let maps = tree_modules::maps(&copy.join(".kernlane"))?;
    ensure!(maps.len() >= MEASURED.len(), "only {} modules were rewritten", maps.len());
    for (path, map) in &maps {
        let (own, new) = (read(tree, path)?, read(&copy, path)?);
        ensure!(new == read(&kernel, path)?, "{}: not as with --output", path.display());
        let proof = prove(unsigned(&own)?.0, unsigned(&new)?.0, Some(map), 5)?;
        ensure!(proof.holds, "{}: not proved:\n{}", path.display(), proof.text);
    }
    relink(&["--restore"])?;
    ensure!(!copy.join(".kernlane").exists(), "something is left");
    for path in maps.iter().map(|(path, _)| path.as_path()).chain([Path::new("vmlinux")]) {
        ensure!(read(&copy, path)? == read(tree, path)?, "{}: not restored", path.display());
    }
    Ok(())
}
