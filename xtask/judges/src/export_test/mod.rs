//! Tests whether other tools accept exported counts: clang, gcc, lld and BOLT, on a small program.
//!
//! Each tool shows what it used: BOLT by the number of functions with a profile, clang by branch
//! weights, gcc by the counts of blocks, lld by the addresses it assigns. A warning is a failure.

use anyhow::{Context, Result, ensure};
use exchange::{ExportSubject, Make};
use execution::part::RecordingPart;
use image::address::LinkAddr;
use image::{Block, BlockEnd, Image, vmlinux};
use kernlane_layout::{Algorithm, EdgeKind};
use profile::collect::ExtraCounts;
use profile::{Profile, ProfileMerge};
use road::import::import;
use road::{counts, export};
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("work.c");
const FLAGS: [&str; 6] = [
    "-O2",
    "-g",
    "-fdebug-info-for-profiling",
    "-ffreestanding",
    "-fno-pie",
    "-ffunction-sections",
];
const LINK: [&str; 5] =
    ["-nostdlib", "-static", "-fuse-ld=lld", "-Wl,--build-id", "-Wl,--fatal-warnings"];

/// Compares what this module describes.
///
/// # Errors
/// The numbers differ, or something cannot run.
pub fn export_test() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let test = ExportTest { directory: directory.path().to_owned() };
    std::fs::write(test.path("work.c"), SOURCE)?;
    test.compile("work.o", &["-c", "-fbasic-block-address-map"])?;
    test.link("work", "work.o", &["-Wl,--emit-relocs"])?;
    lab::run(&mut Command::new(test.path("work")))?;
    let image = vmlinux::read(&test.path("work"))?;
    std::fs::write(test.path("work.klp"), profile(&image).to_json())?;

    test.bolt(&image)?;
    test.call_graph(&image)?;
    test.symbol_order(&image)?;
    test.llvm_samples(&image)?;
    test.llvm_samples_back(&image)?;
    test.llvm_samples_of_what_did_not_run(&image)?;
    test.gcc_samples(&image)?;
    test.propeller(&image)?;
    test.perf_script(&image)
}

struct ExportTest {
    directory: PathBuf,
}

impl ExportTest {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn compile(&self, object: &str, more: &[&str]) -> Result<()> {
        let mut clang = Command::new("clang-22");
        clang.args(FLAGS).args(["-Wall", "-Werror"]).args(more);
        lab::run(clang.arg(self.path("work.c")).arg("-o").arg(self.path(object)))
    }

    fn link(&self, program: &str, object: &str, more: &[&str]) -> Result<()> {
        let mut clang = Command::new("clang-22");
        clang.args(LINK).args(more);
        lab::run(clang.arg(self.path(object)).arg("-o").arg(self.path(program)))
    }

    /// Exports the profile `work.klp`.
    fn export(&self, image: &Image, format: &str) -> Result<PathBuf> {
        let (inputs, whole) = ([self.path("work.klp")], RecordingPart::WHOLE);
        let profile =
            counts::profile(&inputs, image, &whole, ProfileMerge::Sum, ExtraCounts::None)?;
        let subject = ExportSubject { image, profile: &profile, path: &self.path("work") };
        let format_of_name = export::format(format)?;
        let text = match format_of_name.make {
            Make::Samples(make) => make(&subject)?.contents,
            _ => export::counts(format_of_name, &subject, Algorithm::default())?.into_bytes(),
        };
        let output = self.path(&format!("work.{format}"));
        std::fs::write(&output, text)?;
        Ok(output)
    }

    fn bolt(&self, image: &Image) -> Result<()> {
        let (exported, functions) = (self.export(image, "bolt")?, image.functions.len());
        let mut bolt = Command::new("/usr/lib/llvm-22/bin/llvm-bolt");
        bolt.arg(self.path("work")).args([
            "--reorder-blocks=ext-tsp",
            "--reorder-functions=cdsort",
            "--pa",
            "-p",
        ]);
        let output = bolt
            .arg(&exported)
            .arg("-o")
            .arg(self.path("work.bolt"))
            .output()
            .context("the package bolt-22 is needed")?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "llvm-bolt: {}\n{printed}", output.status);
        let expected = format!(
            "{functions} out of {functions} functions in the binary (100.0%) have non-empty \
             execution profile"
        );
        ensure!(printed.contains(&expected), "llvm-bolt does not print \"{expected}\":\n{printed}");
        for complaint in ["BOLT-ERROR", "stale", "mismatching", "out of range"] {
            let stale =
                printed.lines().find(|line| line.contains(complaint) && !line.contains("(0.0%)"));
            ensure!(stale.is_none(), "llvm-bolt complains:\n{printed}");
        }
        lab::run(&mut Command::new(self.path("work.bolt")))?;
        println!("passed: llvm-bolt uses the pre-aggregated profile of all {functions} functions");
        Ok(())
    }

    fn call_graph(&self, image: &Image) -> Result<()> {
        let exported = self.export(image, "call-graph")?;
        let option = format!("-Wl,--call-graph-ordering-file={}", exported.display());
        self.link("called", "work.o", &[&option])?;
        self.link("uncalled", "work.o", &["-Wl,--no-call-graph-profile-sort"])?;
        let (called, uncalled) = (self.functions("called")?, self.functions("uncalled")?);
        ensure!(
            called != uncalled,
            "lld gives the same order with the call graph as without: {called:?}"
        );
        println!("passed: lld uses the call graph");
        Ok(())
    }

    fn symbol_order(&self, image: &Image) -> Result<()> {
        let exported = self.export(image, "symbol-order")?;
        let option = format!("-Wl,--symbol-ordering-file={}", exported.display());
        self.link("ordered", "work.o", &[&option])?;
        let expected: Vec<String> =
            std::fs::read_to_string(&exported)?.lines().map(str::to_owned).collect();
        let found = self.functions("ordered")?;
        ensure!(found == expected, "lld's order is {found:?}, not {expected:?}");
        println!("passed: lld uses the symbol order");
        Ok(())
    }

    fn llvm_samples(&self, image: &Image) -> Result<()> {
        let exported = self.export(image, "llvm-samples")?;
        lab::run(
            Command::new("llvm-profdata-22")
                .args(["show", "--sample"])
                .arg(&exported)
                .stdout(std::process::Stdio::null()),
        )?;
        let option = format!("-fprofile-sample-use={}", exported.display());
        self.compile("work.ll", &["-S", "-emit-llvm", &option])?;
        let text = std::fs::read_to_string(self.path("work.ll"))?;
        for wanted in ["function_entry_count", "branch_weights", "SampleProfile"] {
            ensure!(
                text.contains(wanted),
                "clang did not use the sample profile: there is no {wanted}"
            );
        }
        println!("passed: clang uses the sample profile");
        Ok(())
    }

    fn gcc_samples(&self, image: &Image) -> Result<()> {
        let exported = self.export(image, "gcc-samples")?;
        let hot_functions = |options: &[String]| -> Result<usize> {
            let mut gcc = Command::new("gcc");
            gcc.args(["-O2", "-ffreestanding", "-c", "-fdump-tree-optimized=hot"]).args(options);
            gcc.arg(self.path("work.c")).arg("-o").arg(self.path("gcc.o"));
            lab::run(gcc.current_dir(&self.directory))?;
            Ok(std::fs::read_to_string(self.path("hot"))?.matches("(hot)").count())
        };
        ensure!(hot_functions(&[])? == 0, "gcc calls functions hot without a profile");
        let hot = hot_functions(&[format!("-fauto-profile={}", exported.display())])?;
        ensure!(hot > 0, "gcc does not use the sample profile: no function is hot");
        println!("passed: gcc uses the sample profile: {hot} functions are hot");
        Ok(())
    }

    /// Exports a sample profile and imports it again, as text and in the form that `llvm-profdata`
    /// makes of it. The counts of blocks must not change.
    fn llvm_samples_back(&self, image: &Image) -> Result<()> {
        let mut sent = profile(image);
        for (number, function) in image.functions.iter().enumerate() {
            let blocks = function.blocks.clone().map(|block| image.blocks[block as usize].addr);
            sent.blocks.extend(blocks.map(|addr| (addr, 100 * (number as u64 + 1))));
        }
        std::fs::write(self.path("work.klp"), sent.to_json())?;
        let text = self.export(image, "llvm-samples")?;
        let binary = self.path("work.extbinary");
        let mut profdata = Command::new("llvm-profdata-22");
        profdata.args(["merge", "--sample", "--extbinary"]).arg(&text);
        lab::run(profdata.arg("-o").arg(&binary))?;
        // Code that clang puts in front of a loop has no line, so its count is lost.
        let rows = self.rows_of_lines()?;
        let mut expected = sent.blocks.clone();
        expected.retain(|addr, _| {
            let block = image.block_at(*addr);
            block.is_some_and(|block| has_line(&rows, &image.blocks[block.0 as usize]))
        });
        ensure!(
            expected.len() + 3 > sent.blocks.len(),
            "{} of {} blocks have a line",
            expected.len(),
            sent.blocks.len()
        );
        for file in [&text, &binary] {
            let back = self.import(file)?;
            ensure!(
                back.blocks == expected,
                "{}: the imported blocks with counts are {:x?}, but the blocks with lines are \
                 {expected:x?}",
                file.display(),
                back.blocks
            );
            ensure!(
                !back.calls.is_empty() && !back.edges.is_empty(),
                "{}: no edges or calls",
                file.display()
            );
        }
        std::fs::write(self.path("work.klp"), profile(image).to_json())?;
        println!(
            "passed: the {} of {} blocks with a line keep their counts in a sample profile, as \
             text and as binary",
            expected.len(),
            sent.blocks.len()
        );
        Ok(())
    }

    /// Exports a profile in which only the first block of each function ran. The lines of the other
    /// blocks must be there, with zeros.
    fn llvm_samples_of_what_did_not_run(&self, image: &Image) -> Result<()> {
        let mut entered = Profile::empty(image.build_id.clone());
        entered.blocks = image.functions.iter().map(|function| (function.addr, 100)).collect();
        std::fs::write(self.path("work.klp"), entered.to_json())?;
        let some = std::fs::read_to_string(self.export(image, "llvm-samples")?)?;
        std::fs::write(self.path("work.klp"), profile(image).to_json())?;
        let all = std::fs::read_to_string(self.export(image, "llvm-samples")?)?;
        let places = |text: &str| -> Vec<String> {
            let places = text.lines().filter_map(|line| line.split_once(": "));
            places.map(|(place, _)| place.to_owned()).collect()
        };
        ensure!(places(&some) == places(&all), "lines that did not run are missing:\n{some}");
        let zeros = some.lines().filter(|line| line.ends_with(": 0")).count();
        ensure!(zeros > 0, "no line of the sample profile has a zero:\n{some}");
        println!("passed: {zeros} lines that did not run have zeros in a sample profile");
        Ok(())
    }

    /// Ascending addresses, each with whether the code up to the next address has a line, as LLVM
    /// reads the program's line table.
    fn rows_of_lines(&self) -> Result<Vec<(u64, bool)>> {
        let mut dwarfdump = Command::new("llvm-dwarfdump-22");
        let output = lab::succeeded(dwarfdump.arg("--debug-line").arg(self.path("work")))?;
        let mut rows = Vec::new();
        for row in String::from_utf8(output.stdout)?.lines() {
            let mut words = row.split_whitespace();
            if let (Some(addr), Some(line)) =
                (words.next().and_then(|word| word.strip_prefix("0x")), words.next())
            {
                let ends = words.any(|word| word == "end_sequence");
                rows.push((u64::from_str_radix(addr, 16)?, !ends && line != "0"));
            }
        }
        ensure!(
            rows.len() > 10 && rows.is_sorted_by_key(|row| row.0),
            "llvm-dwarfdump shows no line table"
        );
        Ok(rows)
    }

    fn import(&self, file: &Path) -> Result<Profile> {
        Ok(import(file, &self.path("work"), None)?.profile)
    }

    fn propeller(&self, image: &Image) -> Result<()> {
        let (clusters, order) =
            (self.export(image, "propeller-cc")?, self.export(image, "propeller-ld")?);
        let list = format!("-fbasic-block-sections=list={}", clusters.display());
        self.compile("clusters.o", &["-c", &list])?;
        // In the object that clang makes now, some clusters are not sections of their own. lld
        // would warn about them.
        let option =
            format!("-Wl,--symbol-ordering-file={},--no-warn-symbol-ordering", order.display());
        self.link("clusters", "clusters.o", &[&option])?;
        lab::run(&mut Command::new(self.path("clusters")))?;
        let found = self.functions("clusters")?;
        let expected: Vec<String> =
            std::fs::read_to_string(&order)?.lines().map(str::to_owned).collect();
        let hot: Vec<&String> = found.iter().filter(|name| expected.contains(name)).collect();
        ensure!(
            hot == expected.iter().collect::<Vec<_>>(),
            "lld's order is {found:?}, not {expected:?}"
        );
        println!("passed: clang and lld use Propeller's profiles");
        Ok(())
    }

    /// Exports a profile, converts it to perf's text, and imports it again. The branches must not
    /// change.
    fn perf_script(&self, image: &Image) -> Result<()> {
        let exported = std::fs::read_to_string(self.export(image, "bolt")?)?;
        let mut text = String::new();
        let mut branches = 0;
        for line in exported.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["B", from, to, ..] = words[..] {
                text.push_str(&format!("0x{from}/0x{to}/P/-/-/1\n"));
                branches += 1;
            }
        }
        std::fs::write(self.path("branches.txt"), text)?;
        let back = self.import(&self.path("branches.txt"))?;
        ensure!(back.build_id == image.build_id, "the import has build id {}", back.build_id.0);
        ensure!(
            back.edges.len() + back.calls.len() == branches,
            "{branches} branches were exported, but others were imported"
        );
        println!("passed: {branches} branches are exported and imported again as perf's text");
        Ok(())
    }

    /// The functions and parts of the program, by address.
    fn functions(&self, program: &str) -> Result<Vec<String>> {
        let output = lab::succeeded(Command::new("nm").arg("-n").arg(self.path(program)))?;
        let text = String::from_utf8(output.stdout)?;
        let names = text
            .lines()
            .filter_map(|line| line.split_once(" T ").or_else(|| line.split_once(" t ")));
        Ok(names.map(|(_, name)| name.to_owned()).collect())
    }
}

/// Whether an instruction of the block has a line.
fn has_line(rows: &[(u64, bool)], block: &Block) -> bool {
    let spans = rows.windows(2).map(|pair| (pair[0].0..pair[1].0, pair[0].1));
    let mut spans =
        spans.filter(|(span, _)| span.start < block.end_addr().0 && span.end > block.addr.0);
    spans.any(|(_, line)| line)
}

/// A profile in which every edge of the program has a count.
fn profile(image: &Image) -> Profile {
    let mut profile = Profile::empty(image.build_id.clone());
    for block in &image.blocks {
        profile.blocks.insert(block.addr, 100);
        // The program ends with a system call that does not return.
        let mut edge = |to: LinkAddr, kind, count| {
            let is_code = image.block_at(to).is_some();
            is_code.then(|| profile.edges.insert((block.addr, to), (kind, count)))
        };
        match block.end {
            BlockEnd::FallThrough => drop(edge(block.end_addr(), EdgeKind::FallThrough, 100)),
            BlockEnd::Jump(to) => drop(edge(to, EdgeKind::Jump, 100)),
            BlockEnd::Branch(to) => {
                edge(to, EdgeKind::Branch, 30);
                edge(block.end_addr(), EdgeKind::FallThrough, 70);
            }
            BlockEnd::Call(Some(callee)) => {
                edge(block.end_addr(), EdgeKind::FallThrough, 100);
                profile.calls.insert((block.addr, callee), 100);
            }
            BlockEnd::Call(None) | BlockEnd::Stop => {}
        }
    }
    profile
}
