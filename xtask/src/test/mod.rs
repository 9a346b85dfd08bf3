//! `make quick`, `make test` and `make test-all`: which tests run, and what each of them needs.
//!
//! Every part but the units is a command of this program, so that a part that failed can be run
//! alone. To add a part: a line in the table below.

mod libraries;
mod schedule;
mod units;

use anyhow::Result;
use lab::kernel::{self, Compiler};
use std::path::Path;
use system_tests::inline_test;
use system_tests::road_test as road;

pub(crate) use units::quick;

/// A part of the tests.
struct Part {
    /// The statement that holds when the part has passed. Also the name by which others refer to
    /// it.
    what: &'static str,
    /// The words behind `cargo xtask`. In them, `GCC` and `CLANG` stand for the trees of the demo
    /// kernels, `ROAD` and `CLANG_ROAD` for the results of their whole road.
    words: &'static [&'static str],
    /// The parts that must have passed before. A part that does not run at all need not.
    after: &'static [&'static str],
    /// How many processors the part keeps busy.
    processors: usize,
}

const fn part(what: &'static str, words: &'static [&'static str]) -> Part {
    Part { what, words, after: &[], processors: 1 }
}

impl Part {
    const fn after(self, after: &'static [&'static str]) -> Part {
        Part { after, ..self }
    }

    /// The part runs several guests side by side, or a parallel build.
    const fn alone(self) -> Part {
        Part { processors: 2, ..self }
    }
}

const UNITS: &str = "format, lints, units";
const GCC: &str = "the demo kernel, built by gcc";
const CLANG: &str = "the demo kernel, built by clang";
const UML: &str = "the demo kernel for User Mode Linux";
const ROAD: &str = "the whole road: a layout for a workload, and a random order of all blocks";
const INLINED: &str = "every call inlined that can be, and those that pay";
const CLANG_ROAD: &str = "the whole road of clang's kernel, without call padding";

/// The parts that a contributor needs in order to trust a change. Long parts come first, so that
/// the last ones end together.
const TEST: &[Part] = &[
    part(UNITS, &["test", "--quick"]).alone(),
    part(GCC, &["kernel", "gcc"]).after(&[UNITS]).alone(),
    part(ROAD, &["road-test", "GCC"]).after(&[GCC]),
    part("recordings are exact", &["record-test", "GCC"]).after(&[GCC]),
    part(
        "in a guest, the kernel in a random order works like the original",
        &["vm-test", "GCC", "ROAD/random.kernel", "4 CPUs", "Skylake", "workloads"],
    )
    .after(&[ROAD])
    .alone(),
    part("recordings are repeatable, and failures are reported", &["guest-test", "GCC"])
        .after(&[GCC]),
    part(
        "a difference names the function that a patch changed, and why",
        &["diff-test", "GCC", "ROAD/random.kernel"],
    )
    .after(&[ROAD]),
    part("the checker refuses wrong kernels", &["check-test", "GCC"]).after(&[GCC]),
    part(
        "the original order gives the original kernel, and objtool accepts other orders",
        &["relink-test", "GCC"],
    )
    .after(&[GCC]),
    part(INLINED, &["inline-test", "GCC"]).after(&[GCC]),
    part(
        "in a guest, the kernel with every call inlined works like the original",
        &["vm-test", "GCC", "INLINED/all.kernel", "inlined"],
    )
    .after(&[INLINED]),
    part("modules in a random order are proved, load and work", &["module-test", "GCC"])
        .after(&[GCC]),
    part("counts of services agree with the guest's own counts", &["services-test", "GCC"])
        .after(&[GCC]),
    part("answers of kernlane ask are the numbers of the reports", &["ask-test", "GCC"])
        .after(&[GCC]),
    part(
        "the page works in Chromium, and other tools read the same numbers",
        &["page-test", "ROAD/original.rec", "GCC"],
    )
    .after(&[ROAD]),
    part(
        "the book's links work, and so do the commands of its first hour",
        &["book-test", "ROAD", "GCC"],
    )
    .after(&[ROAD]),
];

/// The rest: other kernels, the running kernel, guests like machines, other tools.
const REST: &[Part] = &[
    part(GCC, &["kernel", "gcc"]).alone(),
    part(UML, &["kernel", "uml"]).alone(),
    part("guests like machines execute the code that the machines would", &["like-test", "GCC"])
        .after(&[GCC]),
    part(
        "the kernel in a random order works like the original in guests like machines",
        &["vm-test", "GCC", "ROAD/random.kernel", "1 CPU", "EPYC", "zen4", "golden-cove", "ITS"],
    )
    .after(&[GCC])
    .alone(),
    part("functions of Debian's running kernel are replaced and restored", &["live-test"]).alone(),
    part("replaced functions come back over ten reboots and an upgrade", &["live-boots"]),
    part("systemd keeps replaced functions", &["live-units"]),
    part("a stock kernel is faster with replaced functions", &["optimize-live-test"]),
    part("the live module's interface, fuzzed for a minute", &["live-fuzz", "--short"]),
    part("relinking is a part of a kernel's build", &["in-tree-test"]).alone(),
    part(CLANG, &["kernel", "clang"]).alone(),
    part(CLANG_ROAD, &["road-test", "CLANG", "--drop-call-padding"]).after(&[CLANG]),
    part("the checker accepts every position of the data behind kallsyms", &["shift-test", "GCC"])
        .after(&[GCC])
        .alone(),
    part("the same of clang's kernel", &["shift-test", "CLANG"]).after(&[CLANG]).alone(),
    part("simulated caches agree with cachegrind", &["memory-test", "GCC"]).after(&[GCC]),
    part("Kernlane works in Python, and other libraries take its answers", &["python-test", "GCC"])
        .after(&[GCC]),
    part(
        "Perfetto and the Firefox Profiler read the numbers of the commands",
        &["time-lines-test", "ROAD/original.rec", "GCC"],
    )
    .after(&[GCC]),
    part("studies go on where they were killed, here and by Snakemake", &["study-test", "GCC"])
        .after(&[GCC]),
    part("clang, lld and BOLT accept the exported files", &["export-test"]),
    part("clang's kernel: the original order gives the original kernel", &["relink-test", "CLANG"])
        .after(&[CLANG]),
    part(
        "clang's kernel in a random order works like the original",
        &["vm-test", "CLANG", "CLANG_ROAD/random.kernel", "1 CPU", "Skylake", "EPYC"],
    )
    .after(&[CLANG_ROAD])
    .alone(),
    part("a kernel by clang with a profile is laid out whole", &["profiled-test"])
        .after(&[CLANG])
        .alone(),
    part("the checker refuses wrong kernels by clang", &["check-test", "CLANG"]).after(&[CLANG]),
    part(
        "layouts are as good as those of LLVM and lld",
        &["layout-test", "CLANG", "CLANG_ROAD/profile.klp"],
    )
    .after(&[CLANG_ROAD]),
    part("a kernel for User Mode Linux in a random order works like the original", &["uml-test"])
        .after(&[UML]),
];

/// `make test`.
pub(crate) fn test() -> Result<()> {
    schedule::run(TEST, Path::new("target/test/times-test.txt"))
}

/// `make test-all`: what `make test` leaves out.
pub(crate) fn rest() -> Result<()> {
    schedule::run(REST, Path::new("target/test/times-test-all.txt"))
}

/// Puts paths in the place of the names of trees and results.
fn spelled(word: &str) -> Result<String> {
    let (name, rest) = word.split_at(word.find('/').unwrap_or(word.len()));
    let text = |path: &Path| format!("{}{rest}", path.display());
    Ok(match name {
        "GCC" => text(&kernel::place(Compiler::Gcc)?),
        "CLANG" => text(&kernel::place(Compiler::Clang)?),
        "ROAD" => text(&road::directory(&kernel::place(Compiler::Gcc)?)),
        "INLINED" => text(&inline_test::directory(&kernel::place(Compiler::Gcc)?)),
        "CLANG_ROAD" => text(&road::directory(&kernel::place(Compiler::Clang)?)),
        _ => word.to_owned(),
    })
}

/// The commands of each part, for a test that these are commands.
#[cfg(test)]
pub(crate) fn words_of_parts() -> impl Iterator<Item = &'static [&'static str]> {
    TEST.iter().chain(REST).map(|part| part.words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_need_only_earlier_parts_of_their_table() {
        for table in [TEST, REST] {
            for (number, part) in table.iter().enumerate() {
                for needed in part.after {
                    let found = table[..number].iter().any(|earlier| earlier.what == *needed);
                    assert!(found, "{}: {needed:?} is not an earlier part", part.what);
                }
            }
        }
    }

    #[test]
    fn words_that_name_a_tree_become_paths() {
        let gcc = kernel::place(Compiler::Gcc).unwrap();
        assert_eq!(spelled("GCC").unwrap(), gcc.display().to_string());
        assert_eq!(spelled("ROAD/profile.klp").unwrap(), "target/test/files-gcc/profile.klp");
        assert_eq!(spelled("vm-test").unwrap(), "vm-test");
    }
}
