//! `cargo xtask memory-test TREE`: tests whether simulated caches agree with an independent
//! simulator.
//!
//! A static program runs in a guest of the tree's kernel, where it is recorded with its data
//! accesses and replayed. It also runs natively under valgrind's cachegrind with the same caches.
//! References and misses must agree within one percent. The guest's kernel runs between the
//! program's instructions and evicts some of its lines; this must also stay within the percent.
//! `structures.rs` tests whether misses are attributed to the data that a program makes the kernel
//! use.

mod structures;

use anyhow::{Context, Result, ensure};
use guest::{self, Boot, GuestClock, GuestContents, GuestKernel, GuestOutcome};
use host::recording::Recording;
use lab::plugin::PluginArguments;
use lab::score::TestScore;
use lab::{build_plugin, run};
use replay::{self, ReplayLayout};
use services::Attribution;
use sim::MachineCounters;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;
use trace::RecordingReader;

const PROGRAM: &str = include_str!("judged.c");
const TOLERANCE: f64 = 0.01;

/// Addresses within a page choose the sets, so the places of pages do not matter.
const MACHINE: &str = r#"
name = "judged"
summary = "the caches that cachegrind is given"
l1i = { size = SIZE1, ways = WAYS1, line = LINE, replacement = LRU }
l1d = { size = SIZE1, ways = WAYS1, line = LINE, replacement = LRU }
l2 = { size = SIZE2, ways = WAYS2, line = LINE, replacement = LRU }
time = { miss_penalty = ZERO, data_references = ZERO, data_miss_rate = ZERO }
latencies = { l2 = ZERO, memory = ZERO, tlb_miss = ZERO }
"#;
const L1: (u64, u64) = (32768, 8);
const L2: (u64, u64) = (262_144, 64);
const LINE: u64 = 64;

/// What a program did, in cachegrind's terms.
#[derive(Debug, PartialEq)]
struct CacheCounts {
    instructions: u64,
    data_references: u64,
    i1_misses: u64,
    d1_misses: u64,
    ll_instruction_misses: u64,
    ll_data_misses: u64,
}

/// Compares what this module describes.
///
/// # Errors
/// The numbers differ, or something cannot run.
pub fn memory_test(tree: &Path) -> Result<()> {
    let directory = tempfile::tempdir().context("making a temporary directory")?;
    let program = directory.path().join("judged");
    compile(directory.path(), PROGRAM, &program)?;
    let native = under_cachegrind(directory.path(), &program)?;
    let guest = in_guest(tree, directory.path(), &std::fs::read(&program)?)?;
    let compared = [
        ("instructions", native.instructions, guest.instructions),
        ("data references", native.data_references, guest.data_references),
        ("L1I misses", native.i1_misses, guest.i1_misses),
        ("L1D misses", native.d1_misses, guest.d1_misses),
        ("L2 misses of data", native.ll_data_misses, guest.ll_data_misses),
    ];
    let mut score = TestScore::default();
    for (what, native, guest) in compared {
        ensure!(native > 100_000, "the program has only {native} {what}: it shows nothing");
        let difference = guest as f64 / native as f64 - 1.0;
        let percent = 100.0 * difference;
        let row = format!("{what}: cachegrind {native}, in the guest {guest} ({percent:+.2} %)");
        score.holds(&row, difference.abs() <= TOLERANCE);
    }
    let (failed, percent) = (score.failed(), 100.0 * TOLERANCE);
    ensure!(failed == 0, "{failed} counts differ by more than {percent} %");
    services_add_up_to_what_is_replayed(tree, &Recording::at(directory.path()).trace())?;
    structures::structures_test(tree, directory.path())
}

/// Checks the pass that distinguishes services, in which each cache and TLB runs ahead. It must
/// neither lose nor add misses.
fn services_add_up_to_what_is_replayed(tree: &Path, trace: &Path) -> Result<()> {
    let reader = || anyhow::Ok(RecordingReader::new(BufReader::new(File::open(trace)?))?);
    let names = ["server-32k", "small-core"].map(str::to_owned);
    let attribution = Attribution::open(&GuestKernel::open(tree, None)?.vmlinux, None, &names)?;
    let attributed = services::attribute(
        reader()?,
        &attribution.symbols,
        &attribution.binding,
        &attribution.machines,
    )?;
    let replayed = replay::replay(reader()?, &[ReplayLayout::original()], &attribution.machines)?;
    for (at, name) in names.iter().enumerate() {
        let accounts = attributed.ledger.accounts.iter();
        let counts = accounts.filter_map(|account| account.totals.machines.get(at)?.memory);
        let all = counts.fold(MachineCounters::default(), |mut all, counts| {
            all += counts;
            all
        });
        let modes =
            replayed.layouts[0].machines[at].memory.context("no data accesses were recorded")?;
        let mut expected = modes.kernel;
        expected += modes.user;
        ensure!(all == expected, "{name}: services have {all:?}, replay has {expected:?}");
        ensure!(
            all.itlb > 0 && all.dtlb > 0 && all.l3i.total() + all.l2i.total() > 0,
            "{name}: {all:?} is too little to prove anything"
        );
        println!(
            "passed: {name}: the misses of the services equal those of replay: L1I {}, L1D {}, L2 \
             {}, iTLB {}, dTLB {}",
            all.l1i.total(),
            all.l1d.total(),
            all.l2i.total() + all.l2d.total(),
            all.itlb,
            all.dtlb
        );
    }
    Ok(())
}

fn compile(directory: &Path, text: &str, program: &Path) -> Result<()> {
    let source = directory.join("program.c");
    std::fs::write(&source, text)?;
    let flags = [
        "-O1",
        "-static",
        "-nostdlib",
        "-fno-stack-protector",
        "-mgeneral-regs-only",
        "-fcf-protection=none",
        "-o",
    ];
    run(Command::new("cc").args(flags).arg(program).arg(&source))
}

fn under_cachegrind(directory: &Path, program: &Path) -> Result<CacheCounts> {
    let cache = |(size, ways): (u64, u64)| format!("{size},{ways},{LINE}");
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=yes"])
        .args([
            format!("--I1={}", cache(L1)),
            format!("--D1={}", cache(L1)),
            format!("--LL={}", cache(L2)),
        ])
        .arg(format!("--cachegrind-out-file={}", directory.join("cachegrind.out").display()))
        .arg(program)
        .output()
        .context("running valgrind (apt-get install valgrind)")?;
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "valgrind: {}\n{printed}", output.status);
    let number = |name: &str| -> Result<u64> {
        let line = printed.lines().find_map(|line| line.split_once("== ")?.1.strip_prefix(name));
        let line =
            line.with_context(|| format!("cachegrind does not print {name:?}:\n{printed}"))?;
        let digits: String = line
            .trim_start_matches([':', ' '])
            .chars()
            .take_while(|c| !c.is_whitespace())
            .collect();
        digits.replace(',', "").parse().with_context(|| format!("{name}: {digits:?}"))
    };
    Ok(CacheCounts {
        instructions: number("I   refs")?,
        data_references: number("D   refs")?,
        i1_misses: number("I1  misses")?,
        d1_misses: number("D1  misses")?,
        ll_instruction_misses: number("LLi misses")?,
        ll_data_misses: number("LLd misses")?,
    })
}

fn in_guest(tree: &Path, directory: &Path, program: &[u8]) -> Result<CacheCounts> {
    let trace = Recording::at(directory).trace();
    let outcome = recorded(tree, "judged", program, &trace)?;
    let reader = RecordingReader::new(BufReader::new(File::open(&trace)?))
        .with_context(|| outcome.qemu.clone())?;
    let replayed = replay::replay(
        reader,
        &[ReplayLayout::original()],
        &[machines::find(&machine_file(directory)?)?.model],
    )?;
    let counters =
        replayed.layouts[0].machines[0].memory.context("no data accesses were recorded")?.user;
    Ok(CacheCounts {
        instructions: counters.instructions,
        data_references: counters.loads + counters.stores,
        i1_misses: counters.l1i.total(),
        d1_misses: counters.l1d.total(),
        ll_instruction_misses: counters.l2i.total(),
        ll_data_misses: counters.l2d.total(),
    })
}

/// Runs a program in a guest of the tree's kernel and records it with its data accesses, from its
/// first mark to its last.
fn recorded(tree: &Path, name: &str, program: &[u8], trace: &Path) -> Result<GuestOutcome> {
    let kernel = GuestKernel::open(tree, None)?;
    let task = kernel.task_facts()?;
    ensure!(task.page_offset_base.is_some(), "the kernel has no page_offset_base");
    let arguments = PluginArguments::new(&kernel, name, trace)?;
    let arguments = arguments.with_all(guest::data_arguments(&kernel, &task)?);
    let plugin = arguments.plugin(build_plugin()?);
    let path = format!("/kernlane/{name}");
    let mut contents = GuestContents::of_script(&format!("sleep 5\n{path}\n"), Vec::new());
    contents.file(&path, 0o755, program);
    guest::run(&kernel.boot_image, &contents, |boot: &mut Boot| {
        boot.clock = GuestClock::Instructions { seed: 1 };
        boot.plugin = Some(plugin);
    })
}

/// Writes the machine for cachegrind to a file. Returns the file's path.
fn machine_file(directory: &Path) -> Result<String> {
    let sourced = |value: String| format!("{{ value = {value}, source = \"this test\" }}");
    let mut text = MACHINE
        .replace("LRU", &sourced("\"lru\"".to_owned()))
        .replace("ZERO", &sourced("0.0".to_owned()));
    for (word, value) in
        [("SIZE1", L1.0), ("WAYS1", L1.1), ("SIZE2", L2.0), ("WAYS2", L2.1), ("LINE", LINE)]
    {
        text = text.replace(word, &sourced(value.to_string()));
    }
    let path = directory.join("judged.toml");
    std::fs::write(&path, text)?;
    Ok(path.to_str().context("the temporary directory's name is not UTF-8")?.to_owned())
}
