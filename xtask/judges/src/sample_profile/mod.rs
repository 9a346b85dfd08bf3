//! Compares the sample profiles that `export` writes, for clang and for gcc, with the counters of a
//! program that the same compiler instrumented: SQLite, on this machine.
//!
//! Input: a directory with SQLite's amalgamation. Output: a table of how well the weights of
//! branches agree (clang), and one of what each profile makes of the program. Exact counts of a
//! program come from valgrind, because recordings have counts of the kernel only.

mod counted;
mod weights;

use anyhow::{Context, Result, bail, ensure};
use counted::Counted;
use exchange::{ExportSubject, Make};
use image::vmlinux;
use road::export;
use std::path::{Path, PathBuf};
use std::process::Command;
use weights::{Agreement, BranchWeights};

const QUERIES: &str = include_str!("queries.c");
const ROWS: &str = "1500";
const FLAGS: [&str; 5] =
    ["-O2", "-g", "-fno-pie", "-DSQLITE_OMIT_LOAD_EXTENSION", "-DSQLITE_THREADSAFE=0"];
const CLANG: [&str; 2] = ["-fdebug-info-for-profiling", "-Wno-everything"];
const LINK: [&str; 3] = ["-no-pie", "-static", "-Wl,--build-id"];
const VALGRIND: [&str; 8] = [
    "--tool=callgrind",
    "--dump-instr=yes",
    "--collect-jumps=yes",
    "--cache-sim=yes",
    "--I1=32768,8,64",
    "--compress-strings=no",
    "--compress-pos=no",
    "--callgrind-out-file=counts",
];

/// The least share of executions of branches' edges that must agree.
const LEAST: f64 = 0.85;

/// Compares what this module describes, and prints it.
///
/// # Errors
/// A tool is missing or fails, or fewer weights agree than did.
pub fn sample_profile(sqlite: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let sqlite = sqlite.canonicalize().with_context(|| sqlite.display().to_string())?;
    let judge = Judge { directory: directory.path().to_owned(), sqlite };
    std::fs::write(judge.path("queries.c"), QUERIES)?;

    judge.build("plain", &[])?;
    let plain = judge.count("plain")?;
    for note in judge.export(&plain)? {
        println!("{note}");
    }
    judge.instrument()?;
    let (samples, counters) = ("-fprofile-sample-use=samples", "-fprofile-instr-use=counters");
    judge.code("true", &[counters], &[])?;
    let by_samples = ["-sample-profile-file=samples", "-disable-sample-loader-inlining"];
    judge.code("found", &[samples], &[&by_samples[..], &["-sample-profile-use-profi"]].concat())?;
    let agreement = Agreement::of(&judge.weights("true")?, &judge.weights("found")?)?;
    println!("{agreement}");

    println!("build: instructions, calls, taken jumps, L1I misses");
    print("clang, no profile", &plain);
    for (name, profile) in [("clang, samples", samples), ("clang, counters", counters)] {
        judge.build("guided", &[profile])?;
        print(name, &judge.count("guided")?);
    }
    for gcc in ["gcc-12", "gcc-14"] {
        if Command::new(gcc).arg("--version").output().is_err() {
            println!("{gcc} is not installed: not compared");
            continue;
        }
        judge.by_gcc(gcc)?;
    }
    ensure!(agreement.edges > LEAST, "the weights agree less than they did");
    Ok(())
}

fn print(name: &str, run: &Counted) {
    let (calls, jumps) = run.transfers();
    println!("{name}: {}, {calls}, {jumps}, {}", run.instructions, run.misses);
}

struct Judge {
    directory: PathBuf,
    sqlite: PathBuf,
}

impl Judge {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// What each profile makes of the program that this gcc builds.
    fn by_gcc(&self, gcc: &str) -> Result<()> {
        let counted = |name: &str, more: &[&str]| {
            self.built(self.compiler(gcc), name, more)?;
            self.count(name)
        };
        let plain = counted("plain", &[])?;
        print(&format!("{gcc}, no profile"), &plain);
        self.export_as(&plain, "gcc-samples")?;
        // gcc 12 ends with an internal error here.
        match counted("guided", &["-fauto-profile=samples"]) {
            Ok(run) => print(&format!("{gcc}, samples"), &run),
            Err(error) => println!("{gcc}, samples: not built: {error:#}"),
        }
        // gcc names the counters after the program, and reads no other version's.
        let name = format!("by-{gcc}");
        self.built(self.compiler(gcc), &name, &["-fprofile-generate"])?;
        let mut run = Command::new(self.path(&name));
        lab::succeeded(run.current_dir(&self.directory).arg(ROWS))?;
        let of_counters = ["-fprofile-use", "-Wno-missing-profile"];
        print(&format!("{gcc}, counters"), &counted(&name, &of_counters)?);
        Ok(())
    }

    /// A compiler, in the directory of the results.
    fn compiler(&self, name: &str) -> Command {
        let mut compiler = Command::new(name);
        compiler.current_dir(&self.directory).args(FLAGS).arg("-I").arg(&self.sqlite);
        compiler
    }

    fn clang(&self) -> Command {
        let mut clang = self.compiler("clang-22");
        clang.args(CLANG);
        clang
    }

    /// Builds the program by clang.
    fn build(&self, name: &str, more: &[&str]) -> Result<()> {
        let mut clang = self.clang();
        clang.arg("-fuse-ld=lld");
        self.built(clang, name, more)
    }

    /// Builds the program, and the same one without DWARF, which valgrind cannot read.
    fn built(&self, mut compiler: Command, name: &str, more: &[&str]) -> Result<()> {
        compiler.args(LINK).args(more).arg("queries.c").arg(self.sqlite.join("sqlite3.c"));
        lab::run(compiler.args(["-lm", "-o", name]))?;
        // LLVM's refuses what the linker of gcc makes of a static program.
        let mut objcopy = Command::new("objcopy");
        objcopy.current_dir(&self.directory).args(["--strip-debug", name]);
        lab::run(objcopy.arg(format!("{name}.stripped")))
    }

    fn count(&self, name: &str) -> Result<Counted> {
        let mut valgrind = Command::new("valgrind");
        valgrind.current_dir(&self.directory).args(VALGRIND);
        lab::succeeded(valgrind.arg(self.path(&format!("{name}.stripped"))).arg(ROWS))?;
        Counted::parse(&std::fs::read_to_string(self.path("counts"))?)
    }

    fn export(&self, counted: &Counted) -> Result<Vec<String>> {
        self.export_as(counted, "llvm-samples")
    }

    /// Writes the sample profile of the program `plain`, and gives what `export` says about it.
    fn export_as(&self, counted: &Counted, format: &str) -> Result<Vec<String>> {
        let path = self.path("plain");
        let image = vmlinux::read(&path)?;
        let profile = counted.profile(&image);
        let subject = ExportSubject { image: &image, profile: &profile, path: &path };
        let Make::Samples(make) = export::format(format)?.make else {
            bail!("{format} is no sample profile");
        };
        let samples = make(&subject)?;
        std::fs::write(self.path("samples"), samples.contents)?;
        Ok(samples.coverage.notes())
    }

    /// Runs the program with clang's counters.
    fn instrument(&self) -> Result<()> {
        self.build("instrumented", &["-fprofile-instr-generate"])
            .context("the package libclang-rt-22-dev is needed")?;
        let mut run = Command::new(self.path("instrumented"));
        lab::succeeded(run.env("LLVM_PROFILE_FILE", self.path("raw")).arg(ROWS))?;
        let mut profdata = Command::new("llvm-profdata-22");
        profdata.current_dir(&self.directory).args(["merge", "raw", "-o", "counters"]);
        lab::run(&mut profdata)
    }

    /// Writes the code of SQLite before any optimization, with weights of branches. LLVM reads
    /// samples in a pass, with these options.
    fn code(&self, name: &str, flags: &[&str], options: &[&str]) -> Result<()> {
        let plain = format!("{name}.bc");
        let mut clang = self.clang();
        clang.args(["-c", "-emit-llvm", "-Xclang", "-disable-llvm-passes", "-o", &plain]);
        lab::run(clang.args(flags).arg(self.sqlite.join("sqlite3.c")))?;
        let mut opt = Command::new("opt-22");
        opt.current_dir(&self.directory).args(["-S", &plain, "-o", name]).args(options);
        if !options.is_empty() {
            opt.arg("-passes=function(add-discriminators),sample-profile");
        }
        lab::run(&mut opt)
    }

    fn weights(&self, name: &str) -> Result<BranchWeights> {
        BranchWeights::parse(&std::fs::read_to_string(self.path(name))?)
    }
}
