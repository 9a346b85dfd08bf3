//! `cargo xtask bench-uml`: measures layouts on the processor itself.
//!
//! A kernel for User Mode Linux runs its own code natively, as a process, so its CPU time in user
//! mode is the kernel's time. A counting kernel gives the profile. Kernels relinked with that
//! profile, and BOLT's kernel from the same profile, run the loads of `load.c` by turns. Each run
//! is compared with the original kernel's run in the same round.

use crate::kernel::{self, Compiler};
use crate::uml::{UmlGuest, judge, relinked};
use anyhow::{Context, Result, bail, ensure};
use image::order::Layout;
use image::vmlinux;
use serde_json::json;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The loads and the rounds of each, for about half a second of CPU time.
const LOADS: [(&str, u32); 3] = [("mmsg", 1000), ("uring", 4000), ("pktgen", 1500)];
/// The rounds of each load in the counted run.
const COUNTED_ROUNDS: &str = "200";
const ALGORITHMS: [&str; 8] = [
    "reverse",
    "pettis-hansen",
    "chang-hwu",
    "ext-tsp",
    "ext-tsp-cdsort",
    "codestitcher",
    "joint",
    "packed",
];
/// The options that BOLT's manual recommends for a program with a profile (bolt/README.md).
const BOLT: [&str; 4] =
    ["-reorder-blocks=ext-tsp", "-reorder-functions=cdsort", "-split-functions", "-split-all-cold"];
/// The flags with which arch/um/Makefile links. In addition they keep the relocations, which BOLT
/// needs.
const LINK_WITH_RELOCATIONS: &str = "CFLAGS_vmlinux=-static -no-pie -m64 -Wl,--wrap,malloc \
                                     -Wl,--wrap,free -Wl,--wrap,calloc \
    -Wl,-m -Wl,elf_x86_64 -Wl,-z -Wl,noexecstack -Wl,--no-warn-rwx-segments -Wl,--emit-relocs";

/// A kernel to measure.
struct MeasuredKernel {
    name: &'static str,
    program: PathBuf,
    /// For each load, the CPU time in user mode of each round, in seconds.
    times: [Vec<f64>; LOADS.len()],
}

/// The number of rounds if none is given.
const ROUNDS: usize = 15;

/// Runs every kernel with every load in each round. `words` are the number of rounds and `--json`.
pub(crate) fn bench(words: &[&str]) -> Result<()> {
    let (as_json, rounds) = match *words {
        [] => (false, ROUNDS),
        ["--json"] => (true, ROUNDS),
        [rounds] => (false, parse(rounds)?),
        [rounds, "--json"] => (true, parse(rounds)?),
        _ => bail!("bench-uml takes only a number of rounds and --json"),
    };
    let kernlane = crate::kernlane()?;
    let tree = kernel::tree(Compiler::GccUserMode)?;
    let scratch = tempfile::tempdir().context("no scratch directory can be made")?;
    let guest = UmlGuest::new(scratch.path())?;
    let ground = BenchSetup { kernlane: &kernlane, tree: &tree, scratch: scratch.path() };
    let profile = ground.counted(&guest)?;
    let mut candidates = ground.candidates(&profile)?;
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for (n, (load, times)) in LOADS.iter().enumerate() {
            // The order changes in each round, so that no kernel always runs behind the same one.
            let count = candidates.len();
            for turn in 0..count {
                let candidate = &mut candidates[(turn + round) % count];
                let begun = children_user_seconds()?;
                let said = guest.boot(&candidate.program, &[load, &times.to_string()])?.ended()?;
                let time = children_user_seconds()? - begun;
                judge(&said, &[load], candidate.name)?;
                candidate.times[n].push(time);
            }
        }
    }
    match as_json {
        true => println!("{}", serde_json::to_string_pretty(&document(&candidates, rounds)?)?),
        false => print(&candidates, rounds)?,
    }
    Ok(())
}

fn parse(rounds: &str) -> Result<usize> {
    let rounds = rounds.parse().ok().filter(|&rounds| rounds > 0);
    rounds.context("the number of rounds must be above 0")
}

struct BenchSetup<'a> {
    kernlane: &'a Path,
    tree: &'a Path,
    scratch: &'a Path,
}

impl BenchSetup<'_> {
    /// The profile of all loads together.
    fn counted(&self, guest: &UmlGuest) -> Result<PathBuf> {
        let counting =
            relinked(self.kernlane, self.tree, &["--count"], self.scratch.join("counting"))?;
        let mut running =
            guest.boot(&counting.join("vmlinux"), &["all", COUNTED_ROUNDS, "stay"])?;
        running.stays()?;
        let profile = self.scratch.join("counted.klp");
        let mut command = Command::new(self.kernlane);
        command.arg("counts").arg(&counting).arg("--tree").arg(self.tree);
        command.arg("--pid").arg(running.pid().to_string()).arg("--output").arg(&profile);
        crate::run(command.stdout(Stdio::null()))?;
        Ok(profile)
    }

    fn candidates(&self, profile: &Path) -> Result<Vec<MeasuredKernel>> {
        let candidate = |name, program| MeasuredKernel { name, program, times: Default::default() };
        let in_order = self.in_order("in-order", &[])?;
        let mut all = vec![
            candidate("original", self.tree.join("vmlinux")),
            candidate("same order again", in_order.join("vmlinux")),
        ];
        for name in ALGORITHMS {
            let layout = self.scratch.join(format!("{name}.kll"));
            let mut command = Command::new(self.kernlane);
            command.arg("layout").arg(profile).arg("--kernel").arg(self.tree);
            crate::run(
                command.args(["--algorithm", name, "--output"]).arg(&layout).stdout(Stdio::null()),
            )?;
            let layout = layout.to_string_lossy();
            let kernel = self.relinked(&["--layout", &layout], name)?;
            all.push(candidate(name, kernel.join("vmlinux")));
        }
        all.push(candidate("BOLT 22", self.bolted(profile)?));
        Ok(all)
    }

    fn relinked(&self, arguments: &[&str], name: &str) -> Result<PathBuf> {
        relinked(self.kernlane, self.tree, arguments, self.scratch.join(name))
    }

    /// The kernel in its original order, rewritten and linked again.
    fn in_order(&self, name: &str, arguments: &[&str]) -> Result<PathBuf> {
        let layout = self.scratch.join("original.kll");
        let build_id = vmlinux::read(&self.tree.join("vmlinux"))?.build_id;
        fs::write(&layout, Layout::original(build_id).to_text())?;
        let layout = layout.to_string_lossy();
        let mut all = vec!["--layout", &*layout];
        all.extend(arguments);
        self.relinked(&all, name)
    }

    /// The kernel that BOLT makes from the kernel with relocations and from the same profile.
    fn bolted(&self, profile: &Path) -> Result<PathBuf> {
        let linked = self.in_order("with-relocations", &["--make", LINK_WITH_RELOCATIONS])?;
        // The linker adds its own name.
        let (before, after) = (
            fs::read_to_string(self.tree.join("System.map"))?,
            fs::read_to_string(linked.join("System.map"))?,
        );
        let after: HashSet<&str> = after.lines().collect();
        ensure!(
            before.lines().all(|line| after.contains(line)),
            "the kernel with relocations has other addresses, so the profile does not fit it"
        );
        let branches = self.scratch.join("counted.bolt");
        let mut command = Command::new(self.kernlane);
        command.arg("export").arg(profile).arg("--kernel").arg(self.tree);
        crate::run(
            command.args(["--format", "bolt", "--output"]).arg(&branches).stdout(Stdio::null()),
        )?;
        let (program, log) =
            (self.scratch.join("bolted"), fs::File::create(self.scratch.join("bolt.log"))?);
        let mut command = Command::new("llvm-bolt-22");
        command.arg(linked.join("vmlinux")).arg("-o").arg(&program).arg("-p").arg(&branches);
        crate::run(command.arg("-pa").args(BOLT).stdout(log.try_clone()?).stderr(log))
            .context("llvm-bolt-22")?;
        Ok(program)
    }
}

/// The CPU time in user mode of all children that have ended, in seconds.
pub(crate) fn children_user_seconds() -> Result<f64> {
    // SAFETY: the structure has only numbers, and the kernel writes all of it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        ensure!(libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) == 0, "getrusage failed");
        usage
    };
    Ok(usage.ru_utime.tv_sec as f64 + usage.ru_utime.tv_usec as f64 / 1e6)
}

/// The speed relative to the original: the quartiles over the rounds. In each round the run is
/// compared with the original's run.
fn quartiles(original: &[f64], times: &[f64]) -> [f64; 3] {
    of_sorted(original.iter().zip(times).map(|(original, time)| original / time).collect())
}

/// The quartiles over all loads, from the geometric mean of each round.
fn quartiles_of_all(original: &MeasuredKernel, other: &MeasuredKernel) -> [f64; 3] {
    let rounds = original.times[0].len();
    let mean = |round: usize| {
        let ratios =
            (0..LOADS.len()).map(|n| (original.times[n][round] / other.times[n][round]).ln());
        (ratios.sum::<f64>() / LOADS.len() as f64).exp()
    };
    of_sorted((0..rounds).map(mean).collect())
}

/// The quartiles of at least one number.
fn of_sorted(mut numbers: Vec<f64>) -> [f64; 3] {
    numbers.sort_by(f64::total_cmp);
    [0.25, 0.5, 0.75].map(|share| {
        let at = share * (numbers.len() - 1) as f64;
        let (below, above) = (numbers[at.floor() as usize], numbers[at.ceil() as usize]);
        below + (above - below) * at.fract()
    })
}

fn processor() -> Result<String> {
    let text = fs::read_to_string("/proc/cpuinfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Ok(line.map_or("unknown", |(_, name)| name).to_owned())
}

fn document(candidates: &[MeasuredKernel], rounds: usize) -> Result<serde_json::Value> {
    let original = &candidates[0];
    let row = |candidate: &MeasuredKernel| {
        let loads = LOADS.iter().enumerate().map(|(n, (load, _))| {
            json!({
                "load": load,
                "speed": quartiles(&original.times[n], &candidate.times[n]),
                "user_seconds": candidate.times[n],
            })
        });
        json!({
            "kernel": candidate.name,
            "speed": quartiles_of_all(original, candidate),
            "loads": loads.collect::<Vec<_>>(),
        })
    };
    Ok(json!({
        "processor": processor()?,
        "rounds": rounds,
        "unit": "CPU time in user mode of the original kernel over this one's; quartiles over the \
            rounds",
        "kernels": candidates.iter().map(row).collect::<Vec<_>>(),
    }))
}

fn print(candidates: &[MeasuredKernel], rounds: usize) -> Result<()> {
    println!(
        "speed relative to the original kernel (CPU time in user mode), {rounds} rounds on {}: \
         median (quartiles)",
        processor()?
    );
    print!("{:<18}", "kernel");
    LOADS.iter().for_each(|(load, _)| print!(" {load:>21}"));
    println!(" {:>21}", "all");
    let original = &candidates[0];
    for candidate in candidates {
        print!("{:<18}", candidate.name);
        let loads = (0..LOADS.len()).map(|n| quartiles(&original.times[n], &candidate.times[n]));
        for [first, median, third] in loads.chain([quartiles_of_all(original, candidate)]) {
            print!("  {median:.3} ({first:.3}-{third:.3})");
        }
        println!();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_numbers() {
        assert_eq!(of_sorted(vec![4.0, 1.0, 2.0, 3.0]), [1.75, 2.5, 3.25]);
        assert_eq!(of_sorted(vec![7.0]), [7.0; 3]);
        assert_eq!(quartiles(&[2.0, 2.0, 3.0], &[1.0, 2.0, 1.0]), [1.5, 2.0, 2.5]);
    }
}
