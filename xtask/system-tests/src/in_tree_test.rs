//! `cargo xtask in-tree-test`: relinking as a part of a kernel's build.
//!
//! Input: Debian's sources of Linux 6.12. Output: a line for each test. A small kernel is built
//! outside of its sources, by ccache and parallel jobs, with a version of its own. Then it is
//! relinked in place, between runs of make that change nothing, one file, or everything. No guest
//! boots.

use crate::debian::disk::install;
use anyhow::{Context, Result, ensure};
use image::object::linked::LinkAddresses;
use image::{Image, vmlinux};
use lab::kernel::source::Source;
use lab::made::make;
use lab::score::TestScore;
use lab::{run, succeeded};
use profile::Profile;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const HOME: &str = "target/in-tree-test";
const NEEDED: &[(&str, &str)] = &[("/usr/bin/ccache", "ccache")];
/// On top of `tinyconfig`: as little as a kernel that can be relinked has.
const CONFIG: &str = "CONFIG_64BIT=y\nCONFIG_SMP=y\nCONFIG_PRINTK=y\nCONFIG_BUG=y\n\
    CONFIG_KALLSYMS=y\nCONFIG_MODULES=y\nCONFIG_UNWINDER_ORC=y\nCONFIG_JUMP_LABEL=y\n\
    CONFIG_RELOCATABLE=y\nCONFIG_RANDOMIZE_BASE=y\nCONFIG_KERNEL_XZ=n\nCONFIG_KERNEL_GZIP=y\n\
    CONFIG_CRC8=m\nCONFIG_TTY=y\nCONFIG_BLOCK=y\n";
/// The variables of the build, on make's command line.
const VARIABLES: [&str; 5] = [
    "CC=ccache gcc",
    "LOCALVERSION=-lane",
    "KBUILD_BUILD_USER=builder",
    // The same sources give the same kernel.
    "KBUILD_BUILD_TIMESTAMP=2026-01-01",
    "KBUILD_BUILD_VERSION=1",
];
/// The file that is changed, and what it gets.
const CHANGED: &str = "lib/ctype.c";
const CHANGE: &str = "\nint kernlane_changed(int x);\nint kernlane_changed(int x)\n{\n\
    \treturn x * 3 + 1;\n}\n";
/// A header that nearly every file includes.
const HEADER: &str = "include/linux/compiler.h";
/// What kbuild compiles in each link, whatever changed.
const ALWAYS_COMPILED: [&str; 2] = ["init/version-timestamp.o", "arch/x86/boot/"];

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn in_tree_test() -> Result<()> {
    host::interrupt::catch()?;
    install(NEEDED)?;
    let build = Build::new(&std::path::absolute(HOME)?)?;
    build.make(&[])?;
    let mut score = TestScore::default();
    let own = build.vmlinux()?;
    let (first, layout) = build.random_layout("first", &counted(&build.image()?))?;
    build.relink(&layout, &[])?;
    let relinked = build.vmlinux()?;
    score.count("the kernel of an O= build is relinked in place", build.is_proven(&own, &relinked));
    score.count("it says the version of its build", says_version(&relinked));
    let compiled = build.make(&[])?;
    score.holds("make compiles nothing then", compiled.is_empty());
    score.holds("and keeps the relinked kernel", build.vmlinux()? == relinked);
    score.count("it can be put back", build.put_back(&layout, &own));
    score.count("two relinks at once give the same bytes", build.two_at_once(&layout));
    score.count("results may lie in a path with blanks", build.with_blanks(&layout));

    let source = build.source.join(CHANGED);
    let text = fs::read_to_string(&source)?;
    fs::write(&source, text + CHANGE)?;
    let compiled = build.make(&[])?;
    score.count("make compiles a changed file, and it alone", is_alone(&compiled));
    score.holds("and links the tree's own kernel", build.vmlinux()? != relinked);
    score.count("a layout of the earlier kernel is refused", build.refuses(&layout, "built again"));
    let carried = build.carry(&first);
    score.count("counts of the earlier kernel are carried to it", carried.as_ref().map(|_| ()));
    if let Ok(profile) = carried {
        let own = build.vmlinux()?;
        let (_, layout) = build.random_layout("second", &profile)?;
        build.relink(&layout, &[])?;
        score.count("it is relinked with them", build.is_proven(&own, &build.vmlinux()?));
        score.count("no relink while make is at work", build.beside_make(&layout));
    }
    score.finish("relinking does not fit into the build of a kernel")
}

/// A profile in which every block of a kernel ran.
fn counted(image: &Image) -> Profile {
    let mut profile = Profile::empty(image.build_id.clone());
    profile.blocks = (1..).zip(&image.blocks).map(|(count, block)| (block.addr, count)).collect();
    profile.describe(image);
    profile
}

fn says_version(vmlinux: &[u8]) -> Result<()> {
    let said = b"-lane (builder@";
    ensure!(vmlinux.windows(said.len()).any(|bytes| bytes == said), "another version");
    Ok(())
}

fn is_alone(compiled: &[String]) -> Result<()> {
    let expected = CHANGED.replace(".c", ".o");
    ensure!(compiled == [expected], "compiled: {}", compiled.join(", "));
    Ok(())
}

/// A kernel's sources, and the directory of its build.
struct Build {
    kernlane: PathBuf,
    home: PathBuf,
    source: PathBuf,
    tree: PathBuf,
}

impl Build {
    /// Fresh sources and an empty, configured build. What ccache has compiled stays.
    fn new(home: &Path) -> Result<Build> {
        let build = Build {
            // What is typed in a makefile is tested.
            kernlane: lab::kernlane()?,
            home: home.to_owned(),
            source: home.join("source"),
            tree: home.join("build"),
        };
        let Source { archive, .. } = Source::installed("6.12")?;
        let pristine = home.join("pristine");
        make(&pristine, || {
            host::output::whole_directory(&pristine, |part| {
                let mut tar = Command::new("tar");
                tar.arg("-C").arg(part).args(["--strip-components=1", "-xf"]).arg(&archive);
                run(&mut tar)
            })
        })?;
        for directory in [&build.source, &build.tree] {
            if directory.exists() {
                fs::remove_dir_all(directory)?;
            }
        }
        run(Command::new("cp").arg("-a").arg(&pristine).arg(&build.source))?;
        fs::create_dir_all(&build.tree)?;
        let more = build.home.join("more.config");
        fs::write(&more, CONFIG)?;
        run(build.command().args(["-s", "tinyconfig"]))?;
        run(Command::new("scripts/kconfig/merge_config.sh")
            .current_dir(&build.source)
            .args(["-m", "-O"])
            .arg(&build.tree)
            .arg(build.tree.join(".config"))
            .arg(&more)
            .stdout(Stdio::null()))?;
        run(build.command().args(["-s", "olddefconfig"]))?;
        Ok(build)
    }

    /// make, as the user of an `O=` build types it.
    fn command(&self) -> Command {
        let mut make = Command::new("make");
        make.arg("-C").arg(&self.source).arg(format!("O={}", self.tree.display()));
        make.args(VARIABLES).env("CCACHE_DIR", self.home.join("ccache"));
        make
    }

    /// Builds the kernel. Returns the objects that were compiled, but for those of each link.
    fn make(&self, words: &[&str]) -> Result<Vec<String>> {
        let output = succeeded(self.command().arg("-j2").args(words))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let objects = text.lines().filter_map(|line| line.trim().strip_prefix("CC "));
        let objects = objects.map(|words| words.replace("[M]", "").trim().to_owned());
        let is_expected = |object: &String| ALWAYS_COMPILED.iter().any(|it| object.starts_with(it));
        Ok(objects.filter(|object| !is_expected(object)).collect())
    }

    fn vmlinux(&self) -> Result<Vec<u8>> {
        fs::read(self.tree.join("vmlinux")).context("the build has no vmlinux")
    }

    fn image(&self) -> Result<Image> {
        vmlinux::read(&self.tree.join("vmlinux"))
    }

    /// Writes the profile, and a random order of the tree's kernel. Returns the files' paths.
    fn random_layout(&self, name: &str, profile: &Profile) -> Result<(PathBuf, PathBuf)> {
        let file = |end: &str| self.home.join(format!("{name}.{end}"));
        let (counts, layout) = (file("klp"), file("kll"));
        fs::write(&counts, profile.to_json())?;
        let mut command = Command::new(&self.kernlane);
        command.arg("layout").arg(&counts).arg("--kernel").arg(&self.tree);
        command.args(["--algorithm", "random", "--output"]).arg(&layout);
        succeeded(&mut command)?;
        Ok((counts, layout))
    }

    fn relink_command(&self, layout: &Path) -> Command {
        let mut command = Command::new(&self.kernlane);
        command.arg("relink").arg("--tree").arg(&self.tree).arg("--layout").arg(layout);
        command
    }

    fn relink(&self, layout: &Path, words: &[&str]) -> Result<Output> {
        succeeded(self.relink_command(layout).args(words))
    }

    /// The relinked kernel differs from the tree's own, which is kept, and is the same program.
    fn is_proven(&self, own: &[u8], relinked: &[u8]) -> Result<()> {
        ensure!(own != relinked, "the kernel is as it was");
        let original = self.tree.join(".kernlane/original");
        ensure!(fs::read(original.join("vmlinux"))? == own, "the tree's own kernel is not kept");
        let mut check = Command::new(&self.kernlane);
        check.arg("check").arg(&original).arg(&self.tree);
        check.arg("--map").arg(self.tree.join(".kernlane/vmlinux.klm"));
        succeeded(&mut check).map(drop)
    }

    /// `--restore` gives the tree's own kernel, and the layout the relinked one again.
    fn put_back(&self, layout: &Path, own: &[u8]) -> Result<()> {
        let relinked = self.vmlinux()?;
        let mut restore = Command::new(&self.kernlane);
        run(restore.arg("relink").arg("--tree").arg(&self.tree).arg("--restore"))?;
        ensure!(self.vmlinux()? == own, "another kernel came back");
        ensure!(!self.tree.join(".kernlane").exists(), "something is left");
        self.relink(layout, &[])?;
        ensure!(self.vmlinux()? == relinked, "the layout gave another kernel the second time");
        Ok(())
    }

    fn two_at_once(&self, layout: &Path) -> Result<()> {
        let outputs = ["one", "two"].map(|name| self.home.join(name));
        let mut running = Vec::new();
        for output in &outputs {
            if output.exists() {
                fs::remove_dir_all(output)?;
            }
            running.push(self.relink_command(layout).arg("--output").arg(output).spawn()?);
        }
        for mut child in running {
            ensure!(child.wait()?.success(), "one of two relinks failed");
        }
        let [one, two] = outputs.map(|output| fs::read(output.join("vmlinux")));
        ensure!(one? == two?, "two kernels");
        Ok(())
    }

    fn with_blanks(&self, layout: &Path) -> Result<()> {
        let above = self.home.join("with blanks");
        if above.exists() {
            fs::remove_dir_all(&above)?;
        }
        let output = above.join("new kernel");
        self.relink(layout, &["--output", &output.display().to_string()])?;
        ensure!(fs::read(output.join("vmlinux"))? == self.vmlinux()?, "another kernel");
        let left: Vec<_> = fs::read_dir(&self.home)?.collect::<Result<_, _>>()?;
        let is_scratch = |name: &str| name.starts_with(".relink");
        let left = left.iter().any(|entry| is_scratch(&entry.file_name().to_string_lossy()));
        ensure!(!left, "a scratch tree is left");
        Ok(())
    }

    /// A relink by the layout fails, says `why`, and changes nothing.
    fn refuses(&self, layout: &Path, why: &str) -> Result<()> {
        let before = self.vmlinux()?;
        let Output { status, stderr, .. } = self.relink_command(layout).output()?;
        let said = String::from_utf8_lossy(&stderr);
        ensure!(status.code() == Some(2) && said.contains(why), "not refused ({status}): {said}");
        ensure!(self.vmlinux()? == before, "the kernel has changed");
        Ok(())
    }

    /// The profile of the earlier kernel, for the present one. All of its code is still there.
    fn carry(&self, earlier: &Path) -> Result<Profile> {
        let file = self.home.join("carried.klp");
        let mut command = Command::new(&self.kernlane);
        command.arg("profile").arg(earlier).args(["--carry", "--json", "--kernel"]);
        let output = succeeded(command.arg(&self.tree).arg("--output").arg(&file))?;
        let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let share = |name: &str| said["carried"][0][name].as_f64().context("no share");
        let (same, lost) = (share("in_same")?, share("in_lost")?);
        ensure!(same > 0.99 && lost < 0.005, "{same} is the same, {lost} is lost");
        let profile = Profile::from_json(&fs::read_to_string(&file)?)?;
        ensure!(profile.build_id == LinkAddresses::read(&self.vmlinux()?)?.build_id, "build id");
        Ok(profile)
    }

    /// A relink while make compiles is refused; afterwards the tree is as any other.
    fn beside_make(&self, layout: &Path) -> Result<()> {
        run(Command::new("touch").arg(self.source.join(HEADER)))?;
        let output = Stdio::null();
        let mut make = self.command().arg("-j2").stdout(output).stderr(Stdio::null()).spawn()?;
        // make reads its files first.
        std::thread::sleep(Duration::from_secs(3));
        ensure!(make.try_wait()?.is_none(), "make had nothing to do");
        let refused = self.refuses(layout, "make is building it now");
        ensure!(make.wait()?.success(), "make failed beside a refused relink");
        refused?;
        self.relink(layout, &[]).map(drop)
    }
}
