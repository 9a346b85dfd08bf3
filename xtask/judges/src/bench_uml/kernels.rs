//! The kernels that are compared: the original, one for each layout, and BOLT's.
//!
//! Input: the tree of the kernel for User Mode Linux, and a directory. Output: kernels in the
//! directory. What exists there is not made again.

use anyhow::{Context, Result, ensure};
use image::order::Layout;
use image::vmlinux;
use lab::uml::{UmlGuest, relinked};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The slices of each load in the counted run. So each load has the same share of its time.
const COUNTED_SLICES: &str = "50";
/// The blocks reversed, and each algorithm that orders by the profile. `gloy-smith` is left
/// out: it needs temporal relationships, which counters do not see.
const ALGORITHMS: [&str; 14] = [
    "reverse",
    "pettis-hansen",
    "chang-hwu",
    "kerninst",
    "opts",
    "optl",
    "call",
    "ext-tsp",
    "ext-tsp-cdsort",
    "balanced-partitioning",
    "codestitcher",
    "ext-tsp-global",
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

/// The name of the original kernel, to which the others are compared.
pub(super) const ORIGINAL: &str = "original";

/// A kernel to measure.
#[derive(Clone, Debug)]
pub(super) struct MeasuredKernel {
    pub name: &'static str,
    pub program: PathBuf,
}

/// The kernels in `directory`, the original first.
pub(super) fn kernels(
    kernlane: &Path,
    tree: &Path,
    directory: &Path,
) -> Result<Vec<MeasuredKernel>> {
    let maker = KernelMaker { kernlane, tree, directory };
    let profile = maker.counted()?;
    let kernel = |name, program| MeasuredKernel { name, program };
    let mut all = vec![
        kernel(ORIGINAL, tree.join("vmlinux")),
        kernel("same order again", maker.in_order("in-order", &[])?.join("vmlinux")),
    ];
    for name in ALGORITHMS {
        let layout = directory.join(format!("{name}.kll"));
        let mut command = Command::new(kernlane);
        command.arg("layout").arg(&profile).arg("--kernel").arg(tree).args(["--algorithm", name]);
        lab::make(&layout, &mut command)?;
        let layout = layout.to_string_lossy();
        all.push(kernel(name, maker.relinked(&["--layout", &layout], name)?.join("vmlinux")));
    }
    all.push(kernel("BOLT 22", maker.bolted(&profile)?));
    Ok(all)
}

struct KernelMaker<'a> {
    kernlane: &'a Path,
    tree: &'a Path,
    directory: &'a Path,
}

impl KernelMaker<'_> {
    /// The profile of all loads together.
    fn counted(&self) -> Result<PathBuf> {
        let profile = self.directory.join("counted.klp");
        if profile.exists() {
            return Ok(profile);
        }
        let counting = self.relinked(&["--count"], "counting")?;
        let guest = UmlGuest::new(self.directory)?;
        let mut running =
            guest.boot(&counting.join("vmlinux"), &["slices", COUNTED_SLICES, "stay"])?;
        running.stays()?;
        let mut command = Command::new(self.kernlane);
        command.arg("counts").arg(&counting).arg("--tree").arg(self.tree);
        lab::make(&profile, command.arg("--pid").arg(running.pid().to_string()))?;
        Ok(profile)
    }

    fn relinked(&self, arguments: &[&str], name: &str) -> Result<PathBuf> {
        let output = self.directory.join(name);
        match output.exists() {
            true => Ok(output),
            false => relinked(self.kernlane, self.tree, arguments, output),
        }
    }

    /// The kernel in its original order, rewritten and linked again.
    fn in_order(&self, name: &str, arguments: &[&str]) -> Result<PathBuf> {
        let layout = self.directory.join("original.kll");
        let build_id = vmlinux::read(&self.tree.join("vmlinux"))?.build_id;
        fs::write(&layout, Layout::original(build_id).to_text())?;
        let layout = layout.to_string_lossy();
        let mut all = vec!["--layout", &*layout];
        all.extend(arguments);
        self.relinked(&all, name)
    }

    /// The kernel that BOLT makes from the kernel with relocations and from the same profile.
    fn bolted(&self, profile: &Path) -> Result<PathBuf> {
        let program = self.directory.join("bolted");
        if program.exists() {
            return Ok(program);
        }
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
        let branches = self.directory.join("counted.bolt");
        let mut command = Command::new(self.kernlane);
        command.arg("export").arg(profile).arg("--kernel").arg(self.tree);
        lab::make(&branches, command.args(["--format", "bolt"]))?;
        let unfinished = self.directory.join("bolted.part");
        let log = fs::File::create(self.directory.join("bolt.log"))?;
        let mut command = Command::new("llvm-bolt-22");
        command.arg(linked.join("vmlinux")).arg("-o").arg(&unfinished).arg("-p").arg(&branches);
        lab::run(command.arg("-pa").args(BOLT).stdout(log.try_clone()?).stderr(log))
            .context("llvm-bolt-22")?;
        fs::rename(&unfinished, &program)?;
        Ok(program)
    }
}
