//! `cargo xtask shift-test TREE`: the checker accepts every placement of the data behind kallsyms
//! that the linker script allows.
//!
//! A relinked kernel has more names than the original, so its kallsyms tables are longer, and the
//! data behind them moves. How the pieces of that data are aligned again depends on the distance
//! modulo 64. The test takes a built tree and links its objects again for each remainder, with as
//! many bytes in front of the last kallsyms table. The original must be equal to each of these
//! kernels. For some remainders the checker must also find the mutations of the tables behind
//! kallsyms; each mutation takes a second.
//!
//! The links use the tree's own linker, flags and script. Nothing in the tree is written.

use anyhow::{Context, Result, bail, ensure};
use check::kernel::KernelFile;
use check::{KernelBuild, check, mutation};
use image::place::Placement;
use lab::run;
use std::collections::HashMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest alignment of data without a symbol.
const REMAINDERS: RangeInclusive<u64> = 0..=63;
/// Wrong tables are tested at multiples of this remainder. Data of every alignment moves at these
/// remainders.
const MUTATED: u64 = 20;
/// The label of the last kallsyms table, whose entries need no alignment.
const LAST_TABLE: &str = ".globl kallsyms_seqs_of_names";

/// Checks the kernels of all remainders, two at a time.
///
/// # Errors
/// A test fails or cannot run.
pub fn shift_test(tree: &Path) -> Result<()> {
    let original = KernelBuild::read(tree)?;
    let link = TreeLink::prepare(tree)?;
    let next = AtomicU64::new(*REMAINDERS.start());
    let work = || -> Result<()> {
        loop {
            let remainder = next.fetch_add(1, Ordering::Relaxed);
            if !REMAINDERS.contains(&remainder) {
                return Ok(());
            }
            link.shifted(remainder, &original)
                .and_then(|directory| is_accepted(&original, &directory, remainder))
                .with_context(|| format!("data behind kallsyms moved by {remainder} bytes"))?;
        }
    };
    let workers: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        workers.map(|worker| worker.join().unwrap_or_else(|_| bail!("a worker panicked"))).into()
    });
    workers.into_iter().collect()
}

/// Compares the original with the kernel in `directory`, and with wrong copies of that kernel.
fn is_accepted(original: &KernelBuild, directory: &Path, remainder: u64) -> Result<()> {
    let shifted = KernelBuild::read(directory)?;
    let (old, new) = (original.kernel()?, shifted.kernel()?);
    let end = |kernel: &KernelFile| {
        kernel.symbol("kallsyms_seqs_of_names").context("there is no kallsyms")
    };
    let moved = end(&new.kernel)? - end(&old.kernel)?;
    ensure!(moved == remainder, "the link moved the data by {moved} bytes");
    let findings = check(&old, &new, &Placement::default())?;
    ensure!(findings.equal(), "refused:\n{}", findings.text(&old.kernel, &new.kernel, 8));
    println!("passed: accepted: data behind kallsyms moved by {remainder} bytes");
    if remainder.is_multiple_of(MUTATED) {
        for mutation in mutation::of_ordered_tables(&shifted, &new)? {
            ensure!(mutation.is_found(&shifted, &old)?, "not found: {}", mutation.name);
            println!("passed: refused, with data moved by {remainder} bytes: {}", mutation.name);
        }
    }
    fs::remove_dir_all(directory).with_context(|| directory.display().to_string())
}

/// How a tree's vmlinux is linked.
struct TreeLink {
    tree: PathBuf,
    linker: String,
    flags: Vec<String>,
    directory: tempfile::TempDir,
}

impl TreeLink {
    /// Reads the tree's link command, and assembles its kallsyms tables in two halves.
    fn prepare(tree: &Path) -> Result<TreeLink> {
        let tree = tree.canonicalize().with_context(|| tree.display().to_string())?;
        let command = read(&tree.join(".vmlinux.cmd"))?;
        let words: Vec<&str> = command.lines().next().unwrap_or("").split('"').collect();
        let [_, linker, _, first, _, second, ..] = words[..] else {
            bail!("{}/.vmlinux.cmd does not say how vmlinux was linked", tree.display());
        };
        let flags =
            first.split_whitespace().chain(second.split_whitespace()).map(str::to_owned).collect();
        let directory = tempfile::Builder::new().prefix("kernlane-shift-test-").tempdir()?;
        let link = TreeLink { tree, linker: linker.to_owned(), flags, directory };
        let tables = read(&link.tree.join(".tmp_vmlinux2.kallsyms.S"))?;
        let (header, tables) =
            tables.split_once("\t.section .rodata").context("unknown kallsyms tables")?;
        ensure!(header.contains("#define ALGN"), "unknown kallsyms tables");
        let (before, last) =
            tables.split_once(LAST_TABLE).context("kallsyms has no order of names")?;
        let last = last.replacen("ALGN", "", 1);
        link.assemble("before", &format!("{MACROS}\t.section .rodata{before}"))?;
        link.assemble("last", &format!("\t.section .rodata, \"a\"\n{LAST_TABLE}{last}"))?;
        Ok(link)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn assemble(&self, name: &str, text: &str) -> Result<()> {
        let source = self.path(&format!("{name}.S"));
        fs::write(&source, text)?;
        run(Command::new("gcc")
            .arg("-c")
            .arg(&source)
            .arg("-o")
            .arg(self.path(&format!("{name}.o"))))
    }

    /// A directory like a tree. In its kernel the last kallsyms table begins `remainder` bytes
    /// later.
    fn shifted(&self, remainder: u64, original: &KernelBuild) -> Result<PathBuf> {
        let gap = format!("gap{remainder}");
        self.assemble(&gap, &format!("\t.section .rodata, \"a\"\n\t.fill {remainder}, 1, 0\n"))?;
        let directory = self.path(&remainder.to_string());
        let relocations = directory.join("arch/x86/boot/compressed");
        fs::create_dir_all(&relocations)?;
        let vmlinux = directory.join("vmlinux");
        let mut link = Command::new(&self.linker);
        link.current_dir(&self.tree).args(&self.flags);
        link.args(["--script=arch/x86/kernel/vmlinux.lds", "--strip-debug", "-o"]).arg(&vmlinux);
        link.args([
            "--whole-archive",
            "vmlinux.o",
            ".vmlinux.export.o",
            "init/version-timestamp.o",
        ]);
        link.arg("--no-whole-archive");
        link.args(
            ["before".to_owned(), gap, "last".to_owned()]
                .map(|name| self.path(&format!("{name}.o"))),
        );
        run(&mut link)?;
        fs::write(&vmlinux, with_moved_addresses(fs::read(&vmlinux)?, original.vmlinux())?)?;
        // If sorttable gets the sizes of functions, it leaves out tracer sites outside of
        // functions. No function moves.
        let mut sort = Command::new(self.tree.join("scripts/sorttable"));
        let sizes = self.tree.join(".tmp_vmlinux.nm-sort");
        if sizes.exists() {
            sort.arg("-s").arg(sizes);
        }
        run(sort.arg(&vmlinux))?;
        let list = fs::File::create(relocations.join("vmlinux.relocs"))?;
        run(Command::new(self.tree.join("arch/x86/tools/relocs"))
            .arg(&vmlinux)
            .stdout(Stdio::from(list)))?;
        Ok(directory)
    }
}

/// The beginning of the kernel's own file for 64 bits.
const MACROS: &str = "#define PTR .quad\n#define ALGN .balign 8\n";

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// The linked kernel with the right addresses in its kallsyms tables. The tables are those of the
/// original; each address is replaced by the address of the kernel's own symbol. Both links have
/// the same symbols, and symbols with the same name have the same order.
fn with_moved_addresses(mut linked: Vec<u8>, original: &[u8]) -> Result<Vec<u8>> {
    let (old, new) = (KernelFile::parse(original)?, KernelFile::parse(&linked)?);
    let mut moved: HashMap<u64, u64> = HashMap::new();
    for symbol in &old.symbols {
        let pairs = old.named(symbol.name).zip(new.named(symbol.name));
        moved.extend(pairs.map(|(old, new)| (old.addr.0, new.addr.0)));
    }
    let at = |name: &str| new.symbol(name).with_context(|| format!("there is no {name}"));
    let count = new.u32_at(at("kallsyms_num_syms")?).context("kallsyms is cut off")?;
    let base = new.u64_at(at("kallsyms_relative_base")?).context("kallsyms is cut off")?;
    let offsets =
        new.bytes(at("kallsyms_offsets")?, u64::from(count) * 4).context("kallsyms is cut off")?;
    let start = offsets.as_ptr() as usize - linked.as_ptr() as usize;
    let mut changed = Vec::new();
    for (index, offset) in offsets.chunks_exact(4).enumerate() {
        let offset = i32::from_le_bytes([offset[0], offset[1], offset[2], offset[3]]);
        // A negative offset is -1 minus the distance from the base (kernel/kallsyms.c). Others are
        // absolute.
        if offset < 0 {
            let address = base.wrapping_sub(1).wrapping_sub(i64::from(offset) as u64);
            let now = moved.get(&address).with_context(|| {
                format!("kallsyms has the address {address:x}, but no symbol has it")
            })?;
            changed.push((start + 4 * index, (base.wrapping_sub(1).wrapping_sub(*now)) as u32));
        }
    }
    for (at, offset) in changed {
        linked[at..at + 4].copy_from_slice(&offset.to_le_bytes());
    }
    Ok(linked)
}
