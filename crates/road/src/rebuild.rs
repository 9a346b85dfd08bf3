//! The fastest kernel: built again by the compiler with the profile of exact recordings, and then
//! laid out by the profile of the kernel that came of it.
//!
//! Input: workloads, and a tree that clang built or will build, which is only read. Output: a
//! directory with the result of each step. `source` mirrors the sources, if need be.
//! `original.build` is the tree's kernel with line tables and `original` its road; `profile.prof`
//! is the profile by source line; `profiled.build` is the kernel that the compiler made with it and
//! `profiled` its road. A step whose result exists is not repeated.
//!
//! Each road is that of [`crate::optimize`]. The layout alone, the profile alone and both stand
//! beside the original in one comparison.

use crate::export;
use crate::guests::RecordedGuest;
use crate::optimization::{Optimization, WeightedWorkload};
use crate::optimize::{Optimized, Road, keep};
use crate::rebuild_steps::Steps;
use crate::said::say;
use crate::workload;
use anyhow::{Context, Result, bail, ensure};
use emit::build::KernelBuild;
use emit::configured::ConfiguredTree;
use emit::kbuild::tree_to_build;
use emit::sources::clean_sources;
use exchange::ExportSubject;
use exchange::samples_import::{self, SourceSamples};
use host::progress::Progress;
use host::{note, output};
use layout::Algorithm;
use profile::Profile;
use replay::results::{ORIGINAL, ResultRow};
use std::fs;
use std::path::{Path, PathBuf};

/// What to build again, and how.
#[derive(Clone, Debug)]
pub struct Rebuild {
    /// What to optimize the kernel for. Its tree is configured for clang. It need not be built.
    pub optimization: Optimization,
    /// A sample profile to build with, instead of the one of the recordings: for example that of an
    /// earlier version of the kernel.
    pub profile: Option<PathBuf>,
    /// Further options for the compiler when it builds with the profile.
    pub compiler_options: Vec<String>,
}

/// The name of the kernel that was built with the profile, in rows.
pub const PROFILED: &str = "profiled";

/// The smallest share of the executed code of which a profile must know lines: a profile of other
/// sources shares a few names at most.
const LEAST_FIT: f64 = 0.1;

/// Builds, records, lays out, relinks and proves: all steps.
///
/// # Errors
/// Another compiler than clang built the tree; a build fails; the profile is of other sources; or
/// a step of a road fails. What was done stays.
pub fn rebuild(request: Rebuild) -> Result<Optimized> {
    let Rebuild { optimization, profile, mut compiler_options } = request;
    let directory = optimization.output.clone();
    output::in_directory(&directory, |_| {
        let given = profile.as_deref().map(read_samples).transpose()?;
        let tree = tree_to_build(&optimization.tree, &optimization.make)?;
        ensure_clang(&tree)?;
        let home = fs::canonicalize(&directory).context("the directory cannot be read")?;
        let sources = clean_sources(&tree.path, &home.join("source"))?;
        let builder = |tree| Builder { tree, sources: &sources, home: &home };

        let mut steps = Steps::default();
        let mut take = |builder: Builder<'_>, name: &str, how: Compilation<'_>| {
            let is_built = builder.is_built(name, &how);
            let what = format!("the {name} kernel, in {}", builder.directory(name).display());
            let built = steps.step(&what, is_built, || builder.build(name, &how))?;
            let optimization = builder.optimization(&optimization, &built, name);
            let is_recorded = is_recorded(&optimization);
            let mut road = Road::open(optimization)?;
            let recordings = steps.step("its recordings", is_recorded, || road.record())?;
            let counts = steps.step("its counts", false, || road.count(&recordings))?;
            let rows = steps.step("its layouts, and what they bring", false, || {
                road.rows_of_all(&recordings, &counts)
            })?;
            anyhow::Ok((built, road, counts, rows))
        };

        let how = Compilation { options: line_tables(&tree), variables: Vec::new(), inputs: &[] };
        let (original, road, counts, mut rows) = take(builder(&tree), "original", how)?;
        let samples = home.join("profile.prof");
        let profile = sample_profile(&road, &counts, &original, given.as_ref(), &samples)?;
        if profile == Discriminators::FlowSensitive {
            // The text form of a profile cannot say it.
            compiler_options.push("-mllvm -profile-isfs".to_owned());
        }

        // Version, date and builder of a tree that is not built are those of the first kernel.
        let built = (!tree.is_built()).then(|| tree_to_build(&original, &optimization.make));
        let built = built.transpose()?;
        let tree = built.as_ref().unwrap_or(&tree);
        let (options, variables) = with_profile(tree, &samples, &compiler_options);
        let how = Compilation { options, variables, inputs: &[&samples] };
        let (_, _, _, profiled) = take(builder(tree), PROFILED, how)?;
        rows.extend(profiled.into_iter().map(|row| named(row, PROFILED)));
        keep(&directory, rows)
    })
}

fn ensure_clang(tree: &ConfiguredTree) -> Result<()> {
    ensure!(
        tree.has_option("CONFIG_CC_IS_CLANG=y"),
        "{}: is not a tree of clang's; only clang reads the profile: configure the tree for clang \
         (make LLVM=1 or LLVM=-22)",
        tree.path.display()
    );
    Ok(())
}

/// Whether the kernel's own makefiles know of the profile (Linux 6.13 and later).
fn knows_profile(tree: &ConfiguredTree) -> bool {
    tree.has_option("CONFIG_AUTOFDO_CLANG=y")
}

/// The options by which the compiler notes the line of each instruction. They do not change code.
fn line_tables(tree: &ConfiguredTree) -> Vec<String> {
    if knows_profile(tree) {
        return Vec::new();
    }
    // A kernel with full debug information has line tables.
    let tables = (!tree.has_option("CONFIG_DEBUG_INFO=y")).then_some("-gmlt");
    tables.into_iter().chain(["-fdebug-info-for-profiling"]).map(str::to_owned).collect()
}

/// The options, and the variables for make, by which the compiler uses a profile. `further` are
/// options to add.
pub fn with_profile(
    tree: &ConfiguredTree,
    profile: &Path,
    further: &[String],
) -> (Vec<String>, Vec<String>) {
    let file = profile.display();
    let mut options = Vec::new();
    let mut for_linker = for_code_generation(further);
    let mut variables = Vec::new();
    if knows_profile(tree) {
        variables.push(format!("CLANG_AUTOFDO_PROFILE={file}"));
    } else {
        options.extend([
            "-fdebug-info-for-profiling".to_owned(),
            format!("-fprofile-sample-use={file}"),
            // A file without samples is not an error.
            "-Wno-backend-plugin".to_owned(),
        ]);
        for_linker.insert(0, format!("--lto-sample-profile={file}"));
    }
    options.extend_from_slice(further);
    // With LTO the linker inlines between files and makes the code.
    if tree.has_option("CONFIG_LTO_CLANG=y") && !for_linker.is_empty() {
        variables.push(format!("LD={} {}", tree.linker(), for_linker.join(" ")));
    }
    (options, variables)
}

/// Those of the compiler's options that are for LLVM (`-mllvm X`, `-mllvm=X`), as the linker takes
/// them. The compiler notes in its objects what other options say.
fn for_code_generation(options: &[String]) -> Vec<String> {
    let words: Vec<&str> = options.iter().flat_map(|option| option.split_whitespace()).collect();
    let two = words.windows(2).filter(|pair| pair[0] == "-mllvm").map(|pair| pair[1]);
    let one = words.iter().filter_map(|word| word.strip_prefix("-mllvm="));
    two.chain(one).map(|option| format!("-mllvm={option}")).collect()
}

/// How the compiler is called.
struct Compilation<'a> {
    options: Vec<String>,
    /// Variables for make.
    variables: Vec<String>,
    /// Files that the compiler reads beside the sources.
    inputs: &'a [&'a Path],
}

struct Builder<'a> {
    tree: &'a ConfiguredTree,
    sources: &'a Path,
    home: &'a Path,
}

impl Builder<'_> {
    /// Builds the kernel in `NAME.build`, unless it is there.
    fn build(&self, name: &str, how: &Compilation<'_>) -> Result<PathBuf> {
        let directory = self.directory(name);
        let build = self.kernel_build(how, &directory);
        if build.is_done() {
            say(&format!("using the existing build {}", directory.display()))?;
            return Ok(directory);
        }
        let expected = build.expected_lines();
        let what = format!("building the {name} kernel");
        let progress = match expected {
            0 => Progress::new(what),
            _ => Progress::of(expected, what),
        };
        let mut printed = 0;
        build.run(&mut || {
            printed += 1;
            progress.advance(u64::from(printed < expected));
        })?;
        Ok(directory)
    }

    fn is_built(&self, name: &str, how: &Compilation<'_>) -> bool {
        self.kernel_build(how, &self.directory(name)).is_done()
    }

    fn directory(&self, name: &str) -> PathBuf {
        self.home.join(format!("{name}.build"))
    }

    fn kernel_build<'b>(&self, how: &'b Compilation<'_>, directory: &'b Path) -> KernelBuild<'b>
    where
        Self: 'b,
    {
        KernelBuild {
            tree: self.tree,
            sources: self.sources,
            directory,
            compiler_options: &how.options,
            variables: &how.variables,
            inputs: how.inputs,
        }
    }

    fn optimization(&self, of: &Optimization, tree: &Path, name: &str) -> Optimization {
        Optimization { tree: tree.to_owned(), output: self.home.join(name), ..of.clone() }
    }
}

/// Whether recordings of the original kernel are there, as far as their names tell.
pub(crate) fn is_recorded(of: &Optimization) -> bool {
    let several = of.workloads.len() > 1;
    let is_there = |guest: &RecordedGuest, workload: &WeightedWorkload| {
        let workload = workload::open(&workload.workload);
        workload.is_ok_and(|workload| {
            let name = guest.recording(ORIGINAL, several.then_some(&workload.name));
            of.output.join(name).exists()
        })
    };
    of.guests.iter().all(|guest| of.workloads.iter().all(|workload| is_there(guest, workload)))
}

/// What the discriminators of a profile tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Discriminators {
    /// The blocks of a line.
    Blocks,
    /// The copies of a block as well.
    FlowSensitive,
}

/// Writes the profile to build with: the one of the recordings, or the given one if enough of it
/// fits.
fn sample_profile(
    road: &Road,
    counts: &Profile,
    tree: &Path,
    given: Option<&(String, SourceSamples)>,
    to: &Path,
) -> Result<Discriminators> {
    say("writing the profile by source line")?;
    let path = tree.join("vmlinux");
    let subject = ExportSubject { image: road.image(), profile: counts, path: &path };
    let exact = export::counts(export::format("llvm-samples")?, &subject, Algorithm::default())?;
    let counted = samples_import::parse(&exact)?;
    let Some((text, samples)) = given else {
        output::write(to, exact.as_bytes())?;
        return Ok(discriminators(&counted));
    };
    let share = counted.share_known_to(samples);
    note!("the given profile knows the lines of {:.1} % of the executed code", 100.0 * share);
    if share < LEAST_FIT {
        bail!("the given profile is of other sources: hardly any of the executed code is in it");
    }
    output::write(to, text.as_bytes())?;
    Ok(discriminators(samples))
}

fn discriminators(samples: &SourceSamples) -> Discriminators {
    match samples.tells_copies_apart() {
        true => Discriminators::FlowSensitive,
        false => Discriminators::Blocks,
    }
}

/// A sample profile, with its text.
fn read_samples(path: &Path) -> Result<(String, SourceSamples)> {
    let named = || path.display().to_string();
    let bytes = fs::read(path).with_context(named)?;
    let text = match samples_import::is_binary(&bytes) {
        true => samples_import::text_of(&bytes).with_context(named)?,
        false => String::from_utf8(bytes).context("not a sample profile").with_context(named)?,
    };
    ensure!(samples_import::is_text(&text), "{}: not a sample profile", path.display());
    let samples = samples_import::parse(&text).with_context(named)?;
    Ok((text, samples))
}

/// A row of a kernel with this name, to stand beside the tree's own kernel.
pub(crate) fn named(mut row: ResultRow, kernel: &str) -> ResultRow {
    row.layout = match row.layout == ORIGINAL {
        true => kernel.to_owned(),
        false => format!("{kernel}, {}", row.layout),
    };
    // Its change was against that kernel.
    if let Some(sampled) = row.counters.core.as_mut().and_then(|core| core.sampled.as_mut()) {
        sampled.change = None;
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a tree built with this configuration.
    fn built(configuration: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let linked = "savedcmd_vmlinux := scripts/link-vmlinux.sh \"ld.lld-22\" \"\" \"\"; true\n";
        for (file, text) in [
            ("Makefile", ""),
            (".gitignore", "*.o\n"),
            ("scripts/Makefile.vmlinux", ""),
            ("include/config/auto.conf", configuration),
            ("arch/x86/boot/bzImage", ""),
            (".vmlinux.cmd", linked),
            ("vmlinux.o", ""),
            ("vmlinux", ""),
        ] {
            let path = tree.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        tree
    }

    fn options_of(configuration: &str) -> (Vec<String>, (Vec<String>, Vec<String>)) {
        let directory = built(configuration);
        let tree = tree_to_build(directory.path(), &[]).unwrap();
        (line_tables(&tree), with_profile(&tree, Path::new("/a/p.prof"), &[]))
    }

    #[test]
    fn the_compiler_gets_what_the_kernels_makefiles_do_not_give() {
        let (tables, (options, variables)) = options_of("CONFIG_CC_IS_CLANG=y\n");
        assert_eq!(tables, ["-gmlt", "-fdebug-info-for-profiling"]);
        assert!(options.contains(&"-fprofile-sample-use=/a/p.prof".to_owned()), "{options:?}");
        assert_eq!(variables, [""; 0]);

        // -gmlt would take types away.
        let (tables, _) = options_of("CONFIG_CC_IS_CLANG=y\nCONFIG_DEBUG_INFO=y\n");
        assert_eq!(tables, ["-fdebug-info-for-profiling"]);

        let (tables, (options, variables)) = options_of("CONFIG_AUTOFDO_CLANG=y\n");
        assert!(tables.is_empty() && options.is_empty());
        assert_eq!(variables, ["CLANG_AUTOFDO_PROFILE=/a/p.prof"]);
    }

    #[test]
    fn with_lto_the_linker_gets_the_profile_and_what_is_for_the_code() {
        let variables = |configuration: &str, further: &[&str]| {
            let directory = built(configuration);
            let tree = tree_to_build(directory.path(), &[]).unwrap();
            let further: Vec<String> = further.iter().map(|&option| option.to_owned()).collect();
            let (options, variables) = with_profile(&tree, Path::new("/a/p.prof"), &further);
            assert!(options.ends_with(&further), "{options:?}");
            variables
        };
        let further = ["-mllvm -a=1", "-O3", "-mllvm=-b", "-mllvm", "-c"];
        let lto = "CONFIG_LTO_CLANG=y\n";
        let expected = "LD=ld.lld-22 --lto-sample-profile=/a/p.prof";
        assert_eq!(variables(lto, &[]), [expected]);
        let all = format!("{expected} -mllvm=-a=1 -mllvm=-c -mllvm=-b");
        assert_eq!(variables(lto, &further), [all]);
        assert_eq!(variables("CONFIG_CC_IS_CLANG=y\n", &further), [""; 0]);
        let known = "CONFIG_LTO_CLANG=y\nCONFIG_AUTOFDO_CLANG=y\n";
        assert_eq!(variables(known, &[]), ["CLANG_AUTOFDO_PROFILE=/a/p.prof"]);
        let own = variables(known, &["-mllvm=-b"]);
        assert_eq!(own, ["CLANG_AUTOFDO_PROFILE=/a/p.prof", "LD=ld.lld-22 -mllvm=-b"]);
    }

    #[test]
    fn what_cannot_be_built_again_is_refused_before_anything_is_built() {
        let tree = built("CONFIG_CC_IS_GCC=y\n");
        let output = tree.path().join("out");
        let request = |profile: Option<PathBuf>| {
            let mut optimization = Optimization::new("net", tree.path(), &output, Vec::new());
            optimization.workloads.push(WeightedWorkload::new("files"));
            Rebuild { optimization, profile, compiler_options: Vec::new() }
        };
        let message = |request| format!("{:#}", rebuild(request).err().unwrap());
        assert!(message(request(None)).contains("not a tree of clang's"));
        let profile = tree.path().join("a.prof");
        for (text, expected) in [("no profile", "not a sample profile"), ("f:1:x\n", "not a")] {
            fs::write(&profile, text).unwrap();
            let message = message(request(Some(profile.clone())));
            assert!(message.contains(expected) && message.contains("a.prof"), "{message}");
        }
        assert!(message(request(Some(tree.path().join("missing")))).contains("missing"));
        assert!(!output.join("source").exists() && !output.join("original.build").exists());
    }

    #[test]
    fn a_road_is_recorded_when_each_guest_and_workload_has_a_recording() {
        let directory = tempfile::tempdir().unwrap();
        let mut of = Optimization::new("net", "/linux", directory.path(), Vec::new());
        assert_eq!(of.guests.len(), 1);
        let record = |name: &str| fs::create_dir(directory.path().join(name)).unwrap();
        assert!(!is_recorded(&of));
        record("original.rec");
        assert!(is_recorded(&of));
        of.workloads.push(WeightedWorkload::new("files"));
        record("original-net.rec");
        assert!(!is_recorded(&of));
        record("original-files.rec");
        assert!(is_recorded(&of));
    }

    #[test]
    fn rows_of_the_profiled_kernel_stand_beside_the_original_one() {
        let layouts: Vec<String> = [replay::examples::original(), replay::examples::recorded()]
            .map(|row| named(row, PROFILED).layout)
            .into();
        assert_eq!(layouts, ["profiled", "profiled, ext-tsp"]);
    }
}
