//! The kernels that are compared: the original, one for each layout, and BOLT's.
//!
//! Input: the tree of the kernel for User Mode Linux, and a directory. Output: kernels in the
//! directory. What exists there is not made again.

use anyhow::{Context, Result, ensure};
use emit::kbuild::BuildTree;
use emit::relink::{Destination, RelinkWork};
use exchange::ExportSubject;
use execution::part::RecordingPart;
use host::output;
use host::progress::Progress;
use image::order::Layout;
use image::{Image, vmlinux};
use kernlane_layout::Algorithm;
use lab::made::make;
use lab::uml::UmlGuest;
use profile::collect::ExtraCounts;
use profile::{Profile, ProfileMerge};
use road::ground::Ground;
use road::layout_file::read_layout;
use road::relink::relink;
use road::{counters, counts, export};
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

/// The seed of the layouts.
const SEED: u64 = 1;

/// The name of the original kernel, to which the others are compared.
pub(super) const ORIGINAL: &str = "original";

/// A kernel to measure.
#[derive(Clone, Debug)]
pub(super) struct MeasuredKernel {
    pub name: &'static str,
    pub program: PathBuf,
}

/// The kernels in `directory`, the original first.
pub(super) fn kernels(tree: &Path, directory: &Path) -> Result<Vec<MeasuredKernel>> {
    let path = vmlinux::path(tree);
    let image = vmlinux::read(&path)?;
    let maker = KernelMaker { tree, image: &image, directory };
    let profile = maker.profile()?;
    let ground = Ground::new(&image, &profile)?;
    let mut all = maker.controls()?.to_vec();
    for name in ALGORITHMS {
        all.push(MeasuredKernel { name, program: maker.laid_out(&ground, name)? });
    }
    let subject = ExportSubject { image: &image, profile: &profile, path: &path };
    all.push(MeasuredKernel { name: "BOLT 22", program: maker.bolted(&subject)? });
    Ok(all)
}

/// Makes kernels of a built one.
pub(super) struct KernelMaker<'a> {
    /// The built tree.
    pub tree: &'a Path,
    /// The tree's kernel.
    pub image: &'a Image,
    /// Where kernels, profiles and layouts are kept.
    pub directory: &'a Path,
}

impl KernelMaker<'_> {
    /// The tree's kernel, and the one that was linked again in the same order.
    pub(super) fn controls(&self) -> Result<[MeasuredKernel; 2]> {
        let original = MeasuredKernel { name: ORIGINAL, program: self.tree.join("vmlinux") };
        let again = self.in_order("in-order", &[])?.join("vmlinux");
        Ok([original, MeasuredKernel { name: "same order again", program: again }])
    }

    /// The exact counts of all loads together.
    pub(super) fn profile(&self) -> Result<Profile> {
        let (counted, whole) = ([self.counted()?], RecordingPart::WHOLE);
        counts::profile(&counted, self.image, &whole, ProfileMerge::Sum, ExtraCounts::None)
    }

    /// The kernel in the order of the algorithm of this name.
    pub(super) fn laid_out(&self, ground: &Ground<'_>, name: &str) -> Result<PathBuf> {
        let layout = self.layout(ground, name)?;
        let relinked = self.relinked(name, &[], || Ok(RelinkWork::Order(read_layout(&layout)?)));
        Ok(relinked?.join("vmlinux"))
    }

    /// The file of the exact counts.
    fn counted(&self) -> Result<PathBuf> {
        let profile = self.directory.join("counted.klp");
        make(&profile, || {
            let counting = self.relinked("counting", &[], || Ok(RelinkWork::Count))?;
            let guest = UmlGuest::new(self.directory)?;
            let mut running =
                guest.boot(&counting.join("vmlinux"), &["slices", COUNTED_SLICES, "stay"])?;
            running.stays()?;
            let (counted, _) =
                counters::of_process(running.pid(), &counting, self.tree, "counted")?;
            output::write(&profile, counted.to_json().as_bytes())
        })?;
        Ok(profile)
    }

    /// The layout by the algorithm of this name.
    fn layout(&self, ground: &Ground<'_>, algorithm: &str) -> Result<PathBuf> {
        let output = self.directory.join(format!("{algorithm}.kll"));
        make(&output, || {
            let _progress = Progress::new(format!("laying out by {algorithm}"));
            let (layout, _) = ground.lay_out(algorithm.parse()?, SEED)?;
            output::write(&output, layout.to_text().as_bytes())
        })?;
        Ok(output)
    }

    /// The kernel in the directory NAME, linked with these variables for make.
    fn relinked(
        &self,
        name: &str,
        variables: &[String],
        work: impl FnOnce() -> Result<RelinkWork>,
    ) -> Result<PathBuf> {
        let output = self.directory.join(name);
        make(&output, || {
            let tree = BuildTree::open(self.tree, variables)?;
            relink(&tree, &work()?, &Destination::Directory(&output)).map(drop)
        })?;
        Ok(output)
    }

    /// The kernel in its original order, rewritten and linked again.
    fn in_order(&self, name: &str, variables: &[String]) -> Result<PathBuf> {
        let original = Layout::original(self.image.build_id.clone());
        self.relinked(name, variables, || Ok(RelinkWork::Order(original)))
    }

    /// The kernel that BOLT makes from the kernel with relocations and from the same profile.
    fn bolted(&self, counted: &ExportSubject<'_>) -> Result<PathBuf> {
        let program = self.directory.join("bolted");
        if program.exists() {
            return Ok(program);
        }
        let linked = self.in_order("with-relocations", &[LINK_WITH_RELOCATIONS.to_owned()])?;
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
        make(&branches, || {
            let text = export::counts(export::format("bolt")?, counted, Algorithm::default())?;
            output::write(&branches, text.as_bytes())
        })?;
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
