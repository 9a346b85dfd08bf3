//! What is neither plain cargo nor for users: the demo, the demo kernels, the tests that need a
//! kernel tree or a virtual machine.

mod bare;
mod bench_uml;
mod book_test;
mod check_test;
mod demo;
mod diff_test;
mod export_test;
mod guest_test;
mod kernel;
mod layout_test;
mod live_fuzz;
mod live_gain;
mod live_test;
mod machine;
mod memory_test;
mod page_test;
mod record_test;
mod relink_test;
mod services_test;
mod shift_test;
mod test;
mod uml;
mod uml_test;
mod vm_test;

use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask demo                from a workload to a faster kernel, and what it brought
cargo xtask test [--quick]      every test: format, lints, units, kernel trees, virtual machines; prints how long each part
                                took; --quick: format, lints and units only, a few minutes
cargo xtask check-test TREE     a wrong kernel for each kind of bug, each of which `kernlane check` must find
cargo xtask shift-test TREE     links the tree's kernel so that the data behind kallsyms moves by 0 to 63 bytes, each of which
                                `kernlane check` must accept
cargo xtask vm-test OLD NEW [MACHINE|workloads]…
                                whether the kernel of tree NEW does in a guest what that of tree OLD does
cargo xtask relink-test TREE    the original order gives the original kernel; objtool judges shuffled ones; failures leave nothing behind
cargo xtask export-test         whether clang, lld and BOLT take what `kernlane export` writes
cargo xtask diff-test TREE SHUFFLED
                                whether `kernlane diff` names the function that a patch changed, and why
cargo xtask layout-test TREE PROFILE
                                whether layouts are as good as those of LLVM's own code, and orders of functions those of lld
cargo xtask record-test TREE    whether recordings are exactly what ran, and the same every time
cargo xtask memory-test TREE    whether simulated caches see of a program what valgrind's cachegrind sees
cargo xtask services-test KERNEL
                                whether services are counted as the guest itself counts them
cargo xtask page-test RECORDING KERNEL
                                whether the page works in Chromium, and what other tools read holds the same
cargo xtask book-test DEMO TREE the book is built, its links hold, and the commands of its first hour run with what
                                `kernlane optimize` has left in DEMO and the TREE of its kernel
cargo xtask guest-test KERNEL   recordings are bit-repeatable, and what goes wrong is said and leaves nothing behind
cargo xtask live-test [KERNEL [SCRIPT]]
                                functions of the running stock kernel are replaced and put back, in guests
cargo xtask live-test --cycles N
                                a large group installed and undone N times under load, on two and on four CPUs
cargo xtask live-test --cost    what installing and undoing 25 functions with 500 calls costs, in instructions and interrupts
cargo xtask live-fuzz [--kernel debian|debian-generic|kasan|kcsan] [--minutes N] [--seed N]
                                the live module's interface, fuzzed in a guest while kprobes, tracers, livepatches and modules come and go; kasan
                                and kcsan are kernels made for it, on which memory fails, too
cargo xtask live-gain DIRECTORY [tcp|ping-pong|files]…
                                what replacing hot functions of the running stock kernel brings: recordings before and after, tables, gain.json
cargo xtask uml-test            a kernel for User Mode Linux, relinked in a random order or with counters, does as a program what the
                                original does, and has counted it
cargo xtask bench-uml [ROUNDS] [--json]
                                what layouts bring on this processor: kernels for User Mode Linux by turns, and BOLT's; about a minute a round
cargo xtask kernel gcc|clang|uml|kasan|kcsan
                                builds (or finds) a demo kernel, or one for the fuzzer of the live module, and prints where its tree lies
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["demo"] => demo::demo(),
        ["test"] => test::test(),
        ["test", "--quick"] => test::quick(),
        ["check-test", tree] => check_test::check_test(tree.as_ref()),
        ["shift-test", tree] => shift_test::shift_test(tree.as_ref()),
        ["vm-test", old, new, ref wanted @ ..] => {
            vm_test::vm_test(old.as_ref(), new.as_ref(), wanted)
        }
        ["relink-test", tree] => relink_test::relink_test(tree.as_ref()),
        ["export-test"] => export_test::export_test(),
        ["diff-test", tree, shuffled] => diff_test::diff_test(tree.as_ref(), shuffled.as_ref()),
        ["layout-test", tree, profile] => layout_test::layout_test(tree.as_ref(), profile.as_ref()),
        ["record-test", tree] => record_test::record_test(tree.as_ref()),
        ["memory-test", tree] => memory_test::memory_test(tree.as_ref()),
        ["services-test", kernel] => services_test::services_test(kernel.as_ref()),
        ["page-test", recording, kernel] => {
            page_test::page_test(recording.as_ref(), kernel.as_ref())
        }
        ["book-test", demo, tree] => book_test::book_test(demo.as_ref(), tree.as_ref()),
        ["guest-test", kernel] => guest_test::guest_test(kernel.as_ref()),
        ["live-test"] => live_test::live_test(None, None),
        ["live-test", "--cycles", count] => {
            (count.parse::<u32>().context("--cycles: how many")).and_then(live_test::cycles)
        }
        ["live-test", "--cost"] => live_test::cost(),
        ["live-test", kernel] => live_test::live_test(Some(kernel.as_ref()), None),
        ["live-test", kernel, script] => {
            live_test::live_test(Some(kernel.as_ref()), Some(script.as_ref()))
        }
        ["live-fuzz", ref words @ ..] => live_fuzz::live_fuzz(words),
        ["live-gain", directory, ref names @ ..] => live_gain::live_gain(directory.as_ref(), names),
        ["uml-test"] => uml_test::uml_test(),
        ["bench-uml", ref words @ ..] => bench_uml::bench(words),
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

/// The tool, built, beside the library that QEMU loads.
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
    ]))?;
    ensure!(program.is_file(), "cargo did not build {}", program.display());
    Ok(program)
}

/// Runs a command with this terminal, and fails unless it succeeds.
fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| anyhow::anyhow!("{command:?}: {error}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// The plugin as it is shipped.
fn build_plugin() -> Result<PathBuf> {
    run(Command::new("cargo").args(["build", "--quiet", "--release", "-p", "kernlane-plugin"]))?;
    let executable = std::env::current_exe()?;
    let target = executable.ancestors().nth(2).context("xtask lies in no target directory")?;
    let library = target.join("release/libkernlane_plugin.so");
    ensure!(library.is_file(), "{} is not there after building it", library.display());
    Ok(library)
}
