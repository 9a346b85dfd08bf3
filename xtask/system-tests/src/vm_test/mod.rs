//! `cargo xtask vm-test OLD NEW`: tests whether a relinked kernel works in a guest like the
//! original.
//!
//! Input: the trees of both kernels. The test boots each kernel on each machine with KASLR, runs
//! `guest.sh`, and compares the output. A test passes if it succeeds under both kernels and prints
//! the same. Then the new kernel runs the shipped workloads, which check their own output. Prints
//! one line for each test.

mod compare;

use crate::machine::{self, Machine, side_by_side};
use anyhow::{Context, Result};
use check::kernel::KernelFile as Vmlinux;
use compare::Tests;
use guest::{self, GuestContents, GuestEnd, GuestKernel, GuestOutcome, KernelModule, Workload};
use lab::score::TestScore;
use std::collections::HashSet;
use std::path::Path;

const SCRIPT: &str = include_str!("guest.sh");
const BAD_POINTERS: &str = include_str!("bad-pointers.c");

/// A machine, with the tests that run on it, in their order.
struct MachineTests {
    machine: Machine,
    /// The text that the kernel must report on this machine.
    mitigation: &'static str,
    /// Levels of page tables.
    page_levels: u8,
    tests: &'static [&'static str],
}

const EVERYTHING: &[&str] = &[
    "kaslr",
    "page_levels",
    "traceable_functions",
    "workload",
    "stacks",
    "function_tracer",
    "function_graph",
    "kprobes",
    "kprobes_on_parts",
    "tracepoints",
    "bad_pointers",
    "modules",
    "livepatch",
    "sysrq",
    "no_complaints",
    "provoked",
];

const MITIGATED: &[&str] = &[
    "mitigations",
    "page_levels",
    "workload",
    "stacks",
    "function_tracer",
    "kprobes",
    "bad_pointers",
    "modules",
    "livepatch",
    "no_complaints",
];

/// The tests that see no function by the name under which it is called: inlined calls have none.
const OF_INLINED: &[&str] = &[
    "kaslr",
    "traceable_functions",
    "workload",
    "kprobes_on_parts",
    "tracepoints",
    "bad_pointers",
    "modules",
    "livepatch",
    "no_complaints",
    "provoked",
];

/// The tests that a kernel without modules and tracers passes.
const OF_PLAIN: &[&str] =
    &["kaslr", "page_levels", "workload", "stacks", "bad_pointers", "sysrq", "no_complaints"];

const MACHINES: &[MachineTests] = &[
    MachineTests {
        machine: Machine::new("1 CPU", 1, "max", &[]),
        mitigation: "",
        page_levels: 5,
        tests: EVERYTHING,
    },
    MachineTests {
        machine: Machine::new("4 CPUs", 4, "max", &[]),
        mitigation: "",
        page_levels: 5,
        tests: EVERYTHING,
    },
    // Call-depth tracking: the kernel patches every call and return.
    MachineTests {
        machine: Machine::new("Skylake", 1, "Skylake-Client-v3", &["retbleed=stuff"]),
        mitigation: "retbleed:Mitigation: Stuffing",
        page_levels: 4,
        tests: MITIGATED,
    },
    // Safe returns against speculative return stack overflow.
    MachineTests {
        machine: Machine::new("EPYC", 1, "EPYC-Milan", &["spec_rstack_overflow=safe-ret"]),
        mitigation: "Safe RET",
        page_levels: 4,
        tests: MITIGATED,
    },
    // Safe returns, and plain indirect branches.
    MachineTests {
        machine: Machine::like("zen4"),
        mitigation: "spectre_v2:Mitigation: Enhanced / Automatic IBRS",
        page_levels: 5,
        tests: MITIGATED,
    },
    // Plain returns and plain indirect branches.
    MachineTests {
        machine: Machine::like("golden-cove"),
        mitigation: "indirect_target_selection:Not affected",
        page_levels: 5,
        tests: MITIGATED,
    },
    // Returns and indirect branches through thunks in the upper half of their line.
    MachineTests {
        machine: Machine::new("ITS", 1, "SapphireRapids", &[]),
        mitigation: "indirect_target_selection:Mitigation: Aligned branch/return thunks",
        page_levels: 5,
        tests: MITIGATED,
    },
    MachineTests {
        machine: Machine::new(INLINED, 2, "max", &[]),
        mitigation: "",
        page_levels: 5,
        tests: OF_INLINED,
    },
    // Four levels: such a kernel is often built for no more.
    MachineTests {
        machine: Machine::new(PLAIN, 4, "max,-la57", &[]),
        mitigation: "",
        page_levels: 4,
        tests: OF_PLAIN,
    },
];

/// The name that selects the tests of a kernel with inlined calls.
const INLINED: &str = "inlined";
/// The name that selects the tests of a kernel without modules and tracers.
pub(crate) const PLAIN: &str = "plain";
/// The name that selects the shipped workloads instead of a machine.
const WORKLOADS: &str = "workloads";

const MODULES: [&str; 5] = ["loop", "dummy", "veth", "lkdtm", "livepatch_sample"];

/// What [`vm_test`] can be asked for.
pub fn names() -> impl Iterator<Item = &'static str> {
    MACHINES.iter().map(|tried| tried.machine.name).chain([WORKLOADS])
}

/// `wanted` are names of machines, or "workloads". Without names, everything runs.
///
/// # Errors
/// A test fails or cannot run.
pub fn vm_test(old: &Path, new: &Path, wanted: &[String]) -> Result<()> {
    let (old, new) = (GuestKernel::open(old, None)?, GuestKernel::open(new, None)?);
    // Without names, all that a kernel without inlined calls, and with everything else, must pass.
    let is_wanted = |name: &str| match wanted {
        [] => name != INLINED && name != PLAIN,
        _ => wanted.iter().any(|wanted| wanted == name),
    };
    let bad_pointers = lab::bare::compile("bad-pointers.c", BAD_POINTERS)?;
    let parts = parts(&old.vmlinux, &new.vmlinux)?;
    // A relinked kernel loads the modules of the original. A kernel may have none.
    let modules = MODULES.map(str::to_owned);
    let modules = |name: &str| if name == PLAIN { Ok(Vec::new()) } else { old.modules(&modules) };
    let mut score = TestScore::default();
    for tried in MACHINES.iter().filter(|m| is_wanted(m.machine.name)) {
        let machine = &tried.machine;
        let guest = |kernel: &GuestKernel, parts: &[String]| {
            boot(machine, kernel, &contents(tried, parts, &bad_pointers, modules(machine.name)?))
        };
        let (before, after) = match machine.cpus {
            1 => side_by_side(|| guest(&old, &[]), || guest(&new, &parts)),
            // A single workload keeps this machine busy. With a second one the guest would be so
            // late that it complains.
            _ => (guest(&old, &[]), guest(&new, &parts)),
        };
        let (before, after) = (before?, after?);
        let tests = Tests { before: &before, after: &after };
        for test in tried.tests {
            score.count(&format!("{}: {test}", machine.name), tests.compare(test));
        }
        score.count(&format!("{}: to the end", machine.name), tests.ended());
    }
    if is_wanted(WORKLOADS) {
        let mut names = Vec::new();
        for &(name, _) in guest::SHIPPED {
            match old.has_modules(&Workload::open(name)?.modules) {
                true => names.push(name),
                false => println!("not run: workload {name}: the kernel lacks its modules"),
            }
        }
        for pair in names.chunks(2) {
            let run = |n: usize| pair.get(n).map(|name| (name, workload(name, &old, &new)));
            let (first, second) = side_by_side(|| run(0), || run(1));
            for (name, result) in first.into_iter().chain(second) {
                score.count(&format!("workload {name}"), result?);
            }
        }
    }
    score.finish("the new kernel fails tests that the old one passes")
}

fn boot(machine: &Machine, kernel: &GuestKernel, contents: &GuestContents) -> Result<GuestOutcome> {
    // The traces of the first hundred tasks must fit.
    let outcome = guest::run(&kernel.boot_image, contents, |boot| {
        machine.describe(boot, &["log_buf_len=8M"])
    });
    outcome.with_context(|| format!("booting {} on {}", kernel.boot_image.display(), machine.name))
}

/// A guest that runs the machine's tests.
fn contents(
    tried: &MachineTests,
    parts: &[String],
    bad_pointers: &[u8],
    modules: Vec<KernelModule>,
) -> GuestContents {
    let mut contents = GuestContents::of_script(SCRIPT, modules);
    contents.file("/kernlane/tests", 0o644, tried.tests.join("\n"));
    contents.file("/kernlane/mitigation", 0o644, tried.mitigation);
    contents.file("/kernlane/page-levels", 0o644, tried.page_levels.to_string());
    contents.file("/kernlane/parts", 0o644, parts.join("\n"));
    contents.file("/kernlane/bad-pointers", 0o755, bad_pointers);
    contents.file("/kernlane/data", 0o644, noise());
    contents
}

fn workload(name: &str, old: &GuestKernel, new: &GuestKernel) -> Result<Result<(), String>> {
    let workload = Workload::open(name)?;
    let contents = GuestContents::of_workload(&workload, old)?;
    let outcome = guest::run(&new.boot_image, &contents, |boot| {
        boot.kaslr = true;
        boot.memory_mb = workload.memory_mb;
        boot.time_limit = machine::TIME_LIMIT;
    })?;
    let complaint = outcome.console.lines().find(|line| machine::is_complaint(line));
    Ok(match (outcome.end, complaint) {
        (GuestEnd::Exited(0), None) => Ok(()),
        (_, Some(complaint)) => Err(format!("the kernel said: {complaint}")),
        (end, None) => Err(format!(
            "{end:?}; the last lines of the guest: {}",
            compare::last_words(&outcome.output)
        )),
    })
}

/// A megabyte that is always the same and cannot be compressed.
fn noise() -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..1 << 20).map(|_| next()).collect()
}

/// The largest number of moved parts that are probed. Enabling a probe is slow under emulation.
const PROBED_PARTS: usize = 60;

/// Symbols of code that only the new kernel has, at even distances.
fn parts(old: &Path, new: &Path) -> Result<Vec<String>> {
    let (old, new) = (std::fs::read(old)?, std::fs::read(new)?);
    let names = |file| -> Result<Vec<String>> {
        let kernel = Vmlinux::parse(file)?;
        let code = kernel
            .symbols
            .iter()
            .filter(|s| s.section.is_some_and(|i| kernel.sections[i].executable));
        Ok(code.map(|s| s.name.to_owned()).collect())
    };
    let known: HashSet<String> = names(&old)?.into_iter().collect();
    let parts: Vec<String> =
        names(&new)?.into_iter().filter(|name| !known.contains(name)).collect();
    let step = parts.len().div_ceil(PROBED_PARTS).max(1);
    Ok(parts.into_iter().step_by(step).collect())
}
