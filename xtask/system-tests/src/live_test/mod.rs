//! `cargo xtask live-test KERNEL`: replacing functions in a running stock kernel, in virtual
//! machines.
//!
//! Takes an installed (or unpacked) kernel of Debian with its -dbg vmlinux and the headers package
//! of the same version; builds `kmod/`, boots the kernel on each machine, two at once, and runs the
//! machine's script in it, which prints `passed: NAME` or `FAILED: NAME` for each test. Prints
//! these lines and fails with the first machine on which one did. What must not harm a kernel is
//! tried on both of Debian's flavours.

mod boots;
mod flips;
mod proof;

pub use boots::boots;

use crate::machine::{self, Machine, side_by_side};
use anyhow::{Context, Result, bail, ensure};
use guest::{self, Boot, GuestClock, GuestContents, GuestEnd, GuestKernel, GuestOutcome};
use lab::live_tool::debian::{self, Flavour, StockKernel};
use lab::live_tool::{build_module, make_tool};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// The guest's scripts, by their names in `/kl`. The first line of each says what it does.
const SCRIPTS: [(&str, &str); 21] = [
    ("prelude.sh", include_str!("prelude.sh")),
    ("endure.sh", include_str!("endure.sh")),
    ("cycles.sh", include_str!("cycles.sh")),
    ("guest.sh", include_str!("guest.sh")),
    ("neighbours.sh", include_str!("neighbours.sh")),
    ("away.sh", include_str!("away.sh")),
    ("mitigated.sh", include_str!("mitigated.sh")),
    ("hostile.sh", include_str!("hostile.sh")),
    ("itself.sh", include_str!("itself.sh")),
    ("refused.sh", include_str!("refused.sh")),
    ("count.sh", include_str!("count.sh")),
    ("at-once.sh", include_str!("at-once.sh")),
    ("waits.sh", include_str!("waits.sh")),
    ("cost.sh", include_str!("cost.sh")),
    ("inline.sh", include_str!("inline.sh")),
    ("kept.sh", include_str!("kept.sh")),
    ("keep.sh", include_str!("keep.sh")),
    ("learn.sh", include_str!("learn.sh")),
    ("boots.sh", include_str!("boots.sh")),
    ("pages.sh", include_str!("pages.sh")),
    ("modules.sh", include_str!("modules.sh")),
];

/// The guest's programs that need no library.
const PROGRAMS: [(&str, &str); 6] = [
    ("fentry", include_str!("fentry.c")),
    ("crowd", include_str!("crowd.c")),
    ("late", include_str!("late.c")),
    ("requests", include_str!("requests.c")),
    ("stopped", include_str!("stopped.c")),
    ("bad-pointers", include_str!("../vm_test/bad-pointers.c")),
];

/// A machine, and what runs on it.
struct Tried {
    machine: Machine,
    script: &'static str,
    /// What the kernel must report on this machine.
    mitigation: &'static str,
    /// Two network cards, wired to each other.
    network_cards: bool,
}

impl Tried {
    const fn new(machine: Machine, script: &'static str) -> Tried {
        Tried { machine, script, mitigation: "", network_cards: false }
    }
}

/// Where the text of the whole kernel is compared. On a busy machine a guest's TSC seems unstable
/// to its kernel, which then patches the static key of `sched_clock()`.
const STEADY: [&str; 2] = ["preempt=full", "tsc=nowatchdog"];

/// On which functions of a module are replaced.
const MODULES: Tried = Tried {
    network_cards: true,
    ..Tried::new(Machine::new("2 CPUs, modules", 2, "max", &["preempt=full"]), "modules.sh")
};

const MACHINES: &[Tried] = &[
    Tried::new(Machine::new("1 CPU", 1, "max", &[]), "guest.sh"),
    // With a preemptible kernel a task can be left anywhere.
    Tried::new(Machine::new("2 CPUs, preemptible", 2, "max", &["preempt=full"]), "guest.sh"),
    // Call-depth tracking: every call and return is patched.
    Tried {
        mitigation: "Mitigation: Stuffing",
        ..Tried::new(
            Machine::new("Skylake", 1, "Skylake-Client-v3", &["retbleed=stuff"]),
            "mitigated.sh",
        )
    },
    // Safe returns against speculative return stack overflow.
    Tried {
        mitigation: "Safe RET",
        ..Tried::new(
            Machine::new("EPYC", 1, "EPYC-Milan", &["spec_rstack_overflow=safe-ret"]),
            "mitigated.sh",
        )
    },
    Tried::new(Machine::new("2 CPUs, inlining", 2, "max", &["preempt=full"]), "inline.sh"),
    Tried::new(Machine::new("2 CPUs, large pages", 2, "max", &["preempt=full"]), "pages.sh"),
    MODULES,
    Tried::new(Machine::new("2 CPUs, kept", 2, "max", &STEADY), "keep.sh"),
    Tried::new(Machine::new("2 CPUs, learning", 2, "max", &STEADY), "learn.sh"),
];

/// On which others get in the way of replaced functions, and requests are malformed.
const HOSTILE: Tried = Tried::new(Machine::new("2 CPUs, hostile", 2, "max", &[]), "hostile.sh");

/// On which a large group is installed and undone many times.
const LOADED: [Tried; 2] = [
    Tried::new(Machine::new("2 CPUs, preemptible", 2, "max", &["preempt=full"]), "cycles.sh"),
    Tried::new(Machine::new("4 CPUs, preemptible", 4, "max", &["preempt=full"]), "cycles.sh"),
];

/// On which it is counted what a group of the size of the paper's costs
/// (`docs/results/live-cost.md`). One CPU runs by instructions.
const COUNTED: [Tried; 3] = [
    Tried::new(Machine::new("1 CPU, as Debian sets it", 1, "max", &[]), "cost.sh"),
    Tried::new(Machine::new("1 CPU, preemptible", 1, "max", &["preempt=full"]), "cost.sh"),
    Tried::new(Machine::new("2 CPUs, preemptible", 2, "max", &["preempt=full"]), "cost.sh"),
];

/// Of many cycles, of one kernel of many, and of trials, beside other work.
/// As in `cycles.sh`.
const CYCLES_OF_AN_ORDER: u32 = 20;
const CYCLES_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Runs only this script, on two CPUs. `cycles`: how many of them it makes, if it makes any.
/// `kernel`: as for [`live_test`].
///
/// # Errors
/// A test fails or cannot run.
pub fn script(kernel: Option<&str>, path: &Path, cycles: Option<u32>) -> Result<()> {
    let mut guest = Guest::with_trial(kernel, path)?;
    if let Some(count) = cycles {
        guest.contents.file("/kl/cycles", 0o644, count.to_string());
    }
    let trial = Tried {
        network_cards: true,
        ..Tried::new(Machine::new("2 CPUs, preemptible", 2, "max", &STEADY), "trial.sh")
    };
    let outcome = guest.run_with(&trial, |boot| boot.time_limit = CYCLES_LIMIT)?;
    judge(&trial, &outcome)
}

/// Runs only this script, on one CPU for which a nanosecond is an instruction; idle time passes at
/// once. `kernel`: as for [`live_test`].
///
/// # Errors
/// A test fails or cannot run.
pub fn counted_script(kernel: Option<&str>, path: &Path) -> Result<()> {
    let guest = Guest::with_trial(kernel, path)?;
    let trial = Tried::new(Machine::new("1 CPU, by instructions", 1, "max", &STEADY), "trial.sh");
    let outcome = guest.run_with(&trial, |boot| {
        boot.time_limit = CYCLES_LIMIT;
        boot.clock = GuestClock::Instructions { seed: 1 };
    })?;
    judge(&trial, &outcome)
}

/// Without `kernel` both of Debian's own of 6.12. `kernel` is a boot image, or the name of one of
/// Debian's kernels.
///
/// # Errors
/// A test fails or cannot run.
pub fn live_test(kernel: Option<&str>) -> Result<()> {
    let guest = Guest::new(&kernel.map_or_else(cloud, named)?)?;
    let vmlinux = std::fs::read(&guest.vmlinux)?;
    proof::proof(&vmlinux)?;
    let boot_image = std::fs::read(&guest.kernel.boot_image)?;
    flips::flips(&vmlinux, &boot_image, system_map(&guest.kernel)?)?;
    // A guest's CPUs are emulated round-robin, on one CPU of this machine.
    for pair in MACHINES.chunks(2) {
        let run = |n: usize| pair.get(n).map(|tried| (tried, guest.run(tried)));
        let (first, second) = side_by_side(|| run(0), || run(1));
        for (tried, outcome) in first.into_iter().chain(second) {
            judge(tried, &outcome?)?;
        }
    }
    if kernel.is_some() {
        return judge(&HOSTILE, &guest.run(&HOSTILE)?);
    }
    let generic = Guest::new(&debian::kernel(Flavour::Generic)?)?;
    let (first, second) = side_by_side(|| guest.run(&HOSTILE), || generic.run(&HOSTILE));
    judge(&HOSTILE, &first?)?;
    judge(&HOSTILE, &second?).context("on the generic kernel")
}

/// The boot image that was named.
fn named(kernel: &str) -> Result<PathBuf> {
    match StockKernel::named(kernel) {
        Ok(stock) => stock.boot_image(),
        Err(error) => {
            let path = PathBuf::from(kernel);
            ensure!(path.exists(), "{error}; and no such file");
            Ok(path)
        }
    }
}

/// One of Debian's kernels, for the steps of `live_versions`.
pub(crate) struct Stock(Guest);

impl Stock {
    pub(crate) fn new(boot_image: &Path) -> Result<Stock> {
        Ok(Stock(Guest::new(boot_image)?))
    }

    pub(crate) fn release(&self) -> &str {
        &self.0.kernel.release
    }

    /// Proves the copies of all functions. Gives the functions that can be replaced, and those
    /// with a tracer's site.
    ///
    /// # Errors
    /// A copy is not equal, or too few functions can be replaced.
    pub(crate) fn proof(&self) -> Result<(usize, usize)> {
        proof::proof(&std::fs::read(&self.0.vmlinux)?)
    }

    /// What the rest of the kernel makes of replaced functions.
    ///
    /// # Errors
    /// A test fails.
    pub(crate) fn neighbours(&self) -> Result<()> {
        self.judged(&MACHINES[1])
    }

    /// Others get in the way of replaced functions, and requests are malformed.
    ///
    /// # Errors
    /// A test fails.
    pub(crate) fn attacks(&self) -> Result<()> {
        self.judged(&HOSTILE)
    }

    /// Functions of a module are replaced.
    ///
    /// # Errors
    /// A test fails.
    pub(crate) fn modules(&self) -> Result<()> {
        self.judged(&MODULES)
    }

    fn judged(&self, tried: &Tried) -> Result<()> {
        judge(tried, &self.0.run_with(tried, |boot| boot.time_limit = CYCLES_LIMIT)?)
    }

    /// A large group is installed and undone under load. `before`: the number of cycles, in other
    /// orders, that were made before.
    ///
    /// # Errors
    /// A test fails.
    pub(crate) fn cycles(&self, count: u32, before: u32) -> Result<()> {
        let mut contents = self.0.contents.clone();
        contents.file("/kl/cycles", 0o644, count.to_string());
        contents.file("/kl/orders", 0o644, before.div_ceil(CYCLES_OF_AN_ORDER).to_string());
        let set = |boot: &mut Boot| boot.time_limit = CYCLES_LIMIT;
        judge(&LOADED[0], &self.0.run_contents(contents, &LOADED[0], set)?)
    }
}

fn cloud() -> Result<PathBuf> {
    debian::kernel(Flavour::Cloud)
}

/// Installs and undoes a large group this number of times under load. `kernel`: as for
/// [`live_test`]; without it, the cloud flavour.
///
/// # Errors
/// A test fails or cannot run.
pub fn cycles(kernel: Option<&str>, count: u32) -> Result<()> {
    let mut guest = Guest::new(&kernel.map_or_else(cloud, named)?)?;
    guest.contents.file("/kl/cycles", 0o644, count.to_string());
    // Each is judged when it has ended: the other may take an hour more.
    let run = |tried| judge(tried, &guest.run_with(tried, |boot| boot.time_limit = CYCLES_LIMIT)?);
    let (first, second) = side_by_side(|| run(&LOADED[0]), || run(&LOADED[1]));
    first.and(second)
}

/// What installing and undoing a group takes, counted in the guest. `kernel`: as for
/// [`live_test`]; without it, the cloud flavour.
///
/// # Errors
/// It cannot be counted.
pub fn cost(kernel: Option<&str>) -> Result<()> {
    let guest = Guest::new(&kernel.map_or_else(cloud, named)?)?;
    for tried in &COUNTED {
        let outcome = guest.run_with(tried, |boot| {
            if tried.machine.cpus == 1 {
                boot.clock = GuestClock::Instructions { seed: 1 };
            }
        });
        judge(tried, &outcome?)?;
    }
    Ok(())
}

/// The kernel, and everything that guests need.
pub(crate) struct Guest {
    pub kernel: GuestKernel,
    pub contents: GuestContents,
    /// Without debug information.
    vmlinux: PathBuf,
    /// Holds it until the guests have run.
    _directory: TempDir,
}

impl Guest {
    pub(crate) fn new(kernel: &Path) -> Result<Guest> {
        let kernel = GuestKernel::open(kernel, None)?;
        let directory = tempfile::Builder::new().prefix("kernlane-live-test-").tempdir()?;
        let tool = make_tool(&kernel, directory.path())?;
        // A kernel that was built for the fuzzer has no devices.
        let wanted: &[&str] =
            if kernel.tree().is_some() { &[] } else { &["loop", "virtio_net", "virtio_pci"] };
        let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
        let modules = kernel.modules(&wanted)?;
        let mut contents = GuestContents::of_script("exec sh /kl/$(cat /kl/script)", modules);
        contents.package("libc6");
        contents.package("libgcc-s1");
        let mut add = |name: &str, permissions: u32, path: &Path| -> Result<()> {
            let bytes =
                std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
            contents.file(&format!("/kl/{name}"), permissions, bytes);
            Ok(())
        };
        for (name, permissions, path) in &tool {
            add(name, *permissions, path)?;
        }
        let provoke = build_module(
            &kernel,
            "xtask/system-tests/src/live_test/provoke".as_ref(),
            directory.path(),
        )?;
        for name in ["provoke.ko", "overrule.ko", "cookies.ko", "occupy.ko"] {
            add(name, 0o644, &provoke.join(name))?;
        }
        for (name, source) in PROGRAMS {
            contents.file(&format!("/kl/{name}"), 0o755, lab::bare::compile(name, source)?);
        }
        for (name, text) in SCRIPTS {
            contents.file(&format!("/kl/{name}"), 0o644, text);
        }
        let vmlinux = directory.path().join("vmlinux");
        let bytes = std::fs::read(&vmlinux)?;
        let build_id_at = build_id_at(&bytes, &kernel.build_id.0)?;
        contents.file("/kl/build-id-at", 0o644, build_id_at.to_string());
        let (at, byte, function) = flips::exception_flip(&bytes)?;
        contents.file("/kl/ex-table-flip", 0o644, format!("{at} {byte:o} {function}"));
        contents.file("/kl/entered", 0o644, proof::entered(&bytes)?.join(","));
        contents.file(
            "/etc/passwd",
            0o644,
            "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
        );
        Ok(Guest { kernel, contents, vmlinux, _directory: directory })
    }

    /// With a script of the host as `/kl/trial.sh`. `kernel`: as for [`live_test`]; without it, the
    /// cloud flavour.
    fn with_trial(kernel: Option<&str>, script: &Path) -> Result<Guest> {
        let mut guest = Guest::new(&kernel.map_or_else(cloud, named)?)?;
        let text = std::fs::read_to_string(script)
            .with_context(|| format!("reading {}", script.display()))?;
        guest.contents.file("/kl/trial.sh", 0o644, text);
        Ok(guest)
    }

    fn run(&self, tried: &Tried) -> Result<GuestOutcome> {
        self.run_with(tried, |_| {})
    }

    fn run_with(&self, tried: &Tried, set: impl FnOnce(&mut Boot)) -> Result<GuestOutcome> {
        self.run_contents(self.contents.clone(), tried, set)
    }

    fn run_contents(
        &self,
        mut contents: GuestContents,
        tried: &Tried,
        set: impl FnOnce(&mut Boot),
    ) -> Result<GuestOutcome> {
        contents.file("/kl/script", 0o644, tried.script);
        contents.file("/kl/mitigation", 0o644, tried.mitigation);
        guest::run(&self.kernel.boot_image, &contents, |boot| {
            tried.machine.describe(boot, &[]);
            boot.memory_mb = 1024;
            boot.network_cards = tried.network_cards;
            set(boot);
        })
    }
}

/// Every test passed, the guest came to its end, and its kernel complained of nothing.
fn judge(tried: &Tried, outcome: &GuestOutcome) -> Result<()> {
    let machine = tried.machine.name;
    println!("-- {machine}, {:.0} s", outcome.elapsed.as_secs_f64());
    print!("{}", outcome.output);
    let ended = outcome.end == GuestEnd::Exited(0);
    let failed = outcome.output.lines().find(|line| line.contains("FAILED"));
    ensure!(
        ended && failed.is_none(),
        "{machine}: {}; {:?}; the kernel's last words:\n{}",
        failed.unwrap_or("the guest did not come to its end"),
        outcome.end,
        last_lines(&outcome.console, 40)
    );
    if let Some(line) = outcome.console.lines().find(|line| machine::is_complaint(line)) {
        bail!("{machine}: the kernel says {line}\n{}", last_lines(&outcome.console, 60));
    }
    Ok(())
}

/// The kernel's symbols, as its build listed them beside the vmlinux.
fn system_map(kernel: &GuestKernel) -> Result<String> {
    let names = ["System.map".to_owned(), format!("System.map-{}", kernel.release)];
    let mut places = names.iter().map(|name| kernel.vmlinux.with_file_name(name));
    let path = places.find(|path| path.is_file());
    let path =
        path.with_context(|| format!("no System.map beside {}", kernel.vmlinux.display()))?;
    std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// Where the build id stands in the file, for a test to damage it.
fn build_id_at(vmlinux: &[u8], id: &str) -> Result<usize> {
    let bytes: Vec<u8> = (0..id.len() / 2)
        .map(|n| u8::from_str_radix(&id[n * 2..n * 2 + 2], 16))
        .collect::<Result<_, _>>()?;
    let found = vmlinux.windows(bytes.len()).position(|window| window == bytes);
    found.context("the vmlinux does not hold its build id")
}

pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
