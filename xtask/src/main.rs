//! Everything that is neither plain cargo nor for users: the demo, the demo kernels, and the tests
//! that need a kernel tree or a virtual machine.

mod ab_test;
mod bare;
mod bench_uml;
mod book_test;
mod champsim_test;
mod check_test;
mod demo;
mod diff_test;
mod drmemtrace_test;
mod export_test;
mod fuzz;
mod guest_test;
mod import_study;
mod judge_processor;
mod kept;
mod kernel;
mod known_case;
mod layout_test;
mod layout_times;
mod live_fuzz;
mod live_gain;
mod live_test;
mod machine;
mod machine_file;
mod memory_test;
mod page_test;
mod processor;
mod record_test;
mod recording;
mod relink_test;
mod score;
mod services_test;
mod shift_test;
mod slowdown_test;
mod speer;
mod study;
mod test;
mod timed;
mod uml;
mod uml_test;
mod vm_test;

use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask demo                make a faster kernel for a workload, and show what it brought
cargo xtask test [--quick|--all]
                                run the tests that a change needs: format, lints, units, and the
                                whole road in virtual machines, on the kernel built by gcc; print
                                how long each part took. With --quick: only format, lints and
                                units, a few minutes. With --all: all other tests instead, those
                                of clang's kernel, of running kernels, and of other tools
cargo xtask check-test TREE     make a wrong kernel for each kind of bug; `kernlane check` must
                                refuse each
cargo xtask shift-test TREE     link the tree's kernel so that the data behind kallsyms moves by 0
                                to 63 bytes; `kernlane check` must accept each
cargo xtask road-test TREE [--drop-call-padding]
                                relink the tree's kernel for a workload and in a random order, and
                                record both; what was predicted must hold
cargo xtask vm-test OLD NEW [MACHINE|workloads]…
                                test whether the kernel of tree NEW works in a guest like that of
                                tree OLD
cargo xtask relink-test TREE    test that the original order gives the original kernel, that
                                objtool accepts other orders, and that failures leave nothing behind
cargo xtask export-test         test whether clang, lld and BOLT accept the files of
                                `kernlane export`
cargo xtask champsim-test CHAMPSIM RECORDING
                                compare cache misses and cycles with ChampSim, which takes minutes
                                for a recording of 20 million instructions; CHAMPSIM is its program,
                                made with what `cargo xtask champsim-test configuration` prints
cargo xtask drmemtrace-test LAUNCHER RECORDING
                                test whether DynamoRIO's tools accept what `kernlane export` writes,
                                and compare instructions and cache misses; LAUNCHER is its
                                drmemtrace_launcher
cargo xtask diff-test TREE SHUFFLED
                                test whether `kernlane diff` names the function that a patch
                                changed, and the reason
cargo xtask layout-test TREE PROFILE
                                compare layouts with LLVM's own code, and orders of functions with
                                lld's
cargo xtask record-test TREE    test whether recordings are exactly what ran, and repeatable
cargo xtask memory-test TREE    compare simulated caches with valgrind's cachegrind
cargo xtask services-test KERNEL
                                compare counts of services with the guest's own counts
cargo xtask page-test RECORDING KERNEL
                                test the page in Chromium, and whether other tools read the same
                                numbers
cargo xtask generations-test RECORDING KERNEL
                                test whether the page and the commands have the same numbers of
                                simulated cores; takes minutes
cargo xtask book-test DEMO TREE build the book, test its links, and run the commands of its first
                                hour with the results of `kernlane optimize` in DEMO and the TREE
                                of its kernel
cargo xtask guest-test KERNEL   test that recordings are bit-repeatable, and that failures are
                                reported and leave nothing behind
cargo xtask live-test [KERNEL [SCRIPT]]
                                replace functions of the running stock kernel and restore them, in
                                guests
cargo xtask live-test --cycles N
                                install and undo a large group N times under load, on two and on
                                four CPUs
cargo xtask live-test --cost    measure what installing and undoing a group of functions costs, in
                                instructions and interrupts
cargo xtask live-fuzz [--short] [--kernel debian|debian-generic|kasan|kcsan] [--minutes N] [--seed N]
                                fuzz the live module's interface in a guest, while kprobes, tracers,
                                livepatches and modules come and go; kasan and kcsan are kernels
                                made for it, on which memory fails, too. --short: the same few
                                requests each time, for about two minutes
cargo xtask live-gain DIRECTORY [tcp|ping-pong|files]…
                                measure what replacing hot functions of the running stock kernel
                                brings: recordings before and after, tables, gain.json
cargo xtask layout-times DIRECTORY [WORKLOAD]…
                                simulate every layout on processors of today, each workload with
                                layouts made for the others: tables of kernel time; resumes
cargo xtask import-test TREE RECORDING
                                test whether `kernlane import` uses the branches of a recording, as
                                processors with several mitigations would sample them
cargo xtask import-study DIRECTORY
                                compare layouts of imported branch stacks with the layout of the
                                same executions, for several mitigations; resumes
cargo xtask speer DIRECTORY     make Speer's tables for Linux: a kernel for each of his benchmarks,
                                tested on all of them; resumes
cargo xtask uml-test            test whether a kernel for User Mode Linux, relinked in a random
                                order or with counters, works like the original and counts right
cargo xtask bench-uml [DIRECTORY] [--minutes N] [--simulate] [--machine NAME] [--json]
                                measure layouts on this processor: kernels for User Mode Linux and
                                BOLT's, in slices; with --simulate beside the model of a processor;
                                resumes, and keeps all in DIRECTORY (target/bench-uml)
cargo xtask slowdown-test [DIRECTORY] [--minutes N]
                                make a kernel for User Mode Linux whose umask(2) is 2 % slower;
                                `kernlane bench --compare` must find that and nothing else;
                                resumes, and keeps all in DIRECTORY (target/slowdown-test)
cargo xtask judge-processor [DIRECTORY] [--machine NAME] [--minutes N] [--points|--programs]
                            [--measured FILE] [--json]
                                compare the model of a processor with this one: the same points and
                                programs of Debian, timed here and simulated from recordings;
                                resumes, and keeps all in DIRECTORY (target/judge-processor);
                                needs perf. --measured: FILE is what --json printed of an earlier run
                                (bench/judge-processor*.json); nothing is timed here
cargo xtask fuzz [TARGET]… [--inputs N] [--jobs N]
                                give each target of fuzz/ N inputs (10 000 000), with N fuzzers (1)
                                at the same time; resumes, and keeps a small corpus
cargo xtask known-case DIRECTORY
                                test whether `kernlane report --sharing` finds a field that Linux
                                moved, and whether --what-if is within 10 % of the kernel that has
                                moved it; records in DIRECTORY
cargo xtask ab-test [kexec|grub|systemd-boot|wrong-kernel|power-loss|stop]…
                                test whether `kernlane bench --ab --kernels` boots two kernels of
                                Debian 12 in turns, in guests whose boot loaders do it; makes the
                                disk as root; takes about 5 minutes for each; resumes
cargo xtask kernel gcc|clang|uml|kasan|kcsan|old-order
                                build (or find) a demo kernel, and print the path of its tree;
                                old-order is gcc with the dentries of Linux 6.10
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if words.iter().any(|word| ["--help", "-h"].contains(word)) {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let done = match words[..] {
        ["demo"] => demo::demo(),
        ["test"] => test::test(),
        ["test", "--quick"] => test::quick(),
        ["test", "--all"] => test::rest(),
        ["check-test", tree] => check_test::check_test(tree.as_ref()),
        ["shift-test", tree] => shift_test::shift_test(tree.as_ref()),
        ["road-test", tree, ref options @ ..] => test::road_test(tree.as_ref(), options),
        ["vm-test", old, new, ref wanted @ ..] => {
            vm_test::vm_test(old.as_ref(), new.as_ref(), wanted)
        }
        ["relink-test", tree] => relink_test::relink_test(tree.as_ref()),
        ["export-test"] => export_test::export_test(),
        ["champsim-test", "configuration"] => champsim_test::configuration(),
        ["champsim-test", champsim, recording] => {
            champsim_test::champsim_test(champsim.as_ref(), recording.as_ref())
        }
        ["drmemtrace-test", launcher, recording] => {
            drmemtrace_test::drmemtrace_test(launcher.as_ref(), recording.as_ref())
        }
        ["diff-test", tree, shuffled] => diff_test::diff_test(tree.as_ref(), shuffled.as_ref()),
        ["layout-test", tree, profile] => layout_test::layout_test(tree.as_ref(), profile.as_ref()),
        ["record-test", tree] => record_test::record_test(tree.as_ref()),
        ["memory-test", tree] => memory_test::memory_test(tree.as_ref()),
        ["services-test", kernel] => services_test::services_test(kernel.as_ref()),
        ["page-test", recording, kernel] => {
            page_test::page_test(recording.as_ref(), kernel.as_ref())
        }
        ["generations-test", recording, kernel] => {
            page_test::generations_test(recording.as_ref(), kernel.as_ref())
        }
        ["book-test", demo, tree] => book_test::book_test(demo.as_ref(), tree.as_ref()),
        ["guest-test", kernel] => guest_test::guest_test(kernel.as_ref()),
        ["live-test"] => live_test::live_test(None, None),
        ["live-test", "--cycles", count] => {
            (count.parse::<u32>().context("--cycles needs a number")).and_then(live_test::cycles)
        }
        ["live-test", "--cost"] => live_test::cost(),
        ["live-test", kernel] => live_test::live_test(Some(kernel.as_ref()), None),
        ["live-test", kernel, script] => {
            live_test::live_test(Some(kernel.as_ref()), Some(script.as_ref()))
        }
        ["live-fuzz", "--short"] => live_fuzz::short(),
        ["live-fuzz", ref words @ ..] => live_fuzz::live_fuzz(words),
        ["live-gain", directory, ref names @ ..] => live_gain::live_gain(directory.as_ref(), names),
        ["layout-times", directory, ref names @ ..] => {
            layout_times::layout_times(directory.as_ref(), names)
        }
        ["import-test", tree, recording] => {
            import_study::import_test(tree.as_ref(), recording.as_ref())
        }
        ["import-study", directory] => import_study::import_study(directory.as_ref()),
        ["speer", directory] => speer::speer(directory.as_ref()),
        ["uml-test"] => uml_test::uml_test(),
        ["bench-uml", ref words @ ..] => bench_uml::bench(words),
        ["slowdown-test", ref words @ ..] => slowdown_test::slowdown_test(words),
        ["judge-processor", ref words @ ..] => judge_processor::judge_processor(words),
        ["fuzz", ref words @ ..] => fuzz::fuzz(words),
        ["ab-test", ref names @ ..] => ab_test::ab_test(names),
        ["known-case", directory] => known_case::known_case(directory.as_ref()),
        ["kernel", "old-order"] => known_case::old_order().map(|tree| {
            println!("{}", tree.display());
        }),
        ["kernel", compiler] => compiler.parse().and_then(|compiler| {
            println!("{}", kernel::tree(compiler)?.display());
            Ok(())
        }),
        _ => {
            print!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Builds Kernlane, and the plugin beside it. Returns the path of the program. This program is
/// built in the same command, though it is there already: so cargo chooses the same features for
/// all of them, and compiles no crate twice.
fn kernlane() -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("kernlane");
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    run(Command::new("cargo").args([
        "build",
        "--profile",
        profile,
        "-p",
        "kernlane",
        "-p",
        "kernlane-plugin",
        "-p",
        "xtask",
    ]))?;
    ensure!(program.is_file(), "cargo did not build {}", program.display());
    Ok(program)
}

/// The suite's program for guests, built without shared libraries.
fn static_suite() -> Result<PathBuf> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "--release", "-p", "kernlane-suite", "--target", TARGET]);
    run(command.env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
    let executable = std::env::current_exe()?;
    let target = executable.ancestors().nth(2).context("xtask is not in a target directory")?;
    let program = target.join(TARGET).join("release/kernlane-bench");
    ensure!(program.is_file(), "{} does not exist after the build", program.display());
    Ok(program)
}

/// Runs a command on this terminal. Fails unless the command succeeds.
fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| anyhow::anyhow!("{command:?}: {error}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// Waits for a thread. `what` it does, for errors.
fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>, what: &str) -> Result<T> {
    let ended = thread.join().map_err(|_| anyhow::anyhow!("the thread has panicked"));
    ended.and_then(|result| result).with_context(|| what.to_owned())
}

/// Builds the plugin in release mode. Returns its path.
fn build_plugin() -> Result<PathBuf> {
    run(Command::new("cargo").args(["build", "--quiet", "--release", "-p", "kernlane-plugin"]))?;
    let executable = std::env::current_exe()?;
    let target = executable.ancestors().nth(2).context("xtask is not in a target directory")?;
    let library = target.join("release/libkernlane_plugin.so");
    ensure!(library.is_file(), "{} does not exist after the build", library.display());
    Ok(library)
}
