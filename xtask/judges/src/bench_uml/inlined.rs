//! The kernels that show what inlined calls and a layout bring, each alone and both together, where
//! each return goes through a thunk, and where returns are plain.
//!
//! Input: the tree of the kernel for User Mode Linux with return thunks and side tables, and a
//! directory. Output: kernels in the directory. What exists there is not made again.
//!
//! ```text
//! original → counted ─┬→ layout                          each of them ─→ plain
//!                     └→ inlined → counted → both
//! ```

use super::kernels::{KernelMaker, MeasuredKernel, ORIGINAL};
use anyhow::{Context, Result, ensure};
use emit::kbuild::BuildTree;
use emit::relink::Destination;
use host::{note, output};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::vmlinux;
use lab::made::make;
use road::ground::Ground;
use road::inlined;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The layout: it can put inlined code between the blocks of its caller.
const LAYOUT: &str = "ext-tsp-global";
/// The kernel's function through which all functions return.
const THUNK: &str = "__x86_return_thunk";
/// Bytes of a jump to it.
const JUMP: usize = 5;
/// What Linux writes there where the processor needs no thunk: `ret`, and `int3` up to its end
/// (`patch_return`, arch/x86/kernel/alternative.c).
const PLAIN: [u8; JUMP] = [0xc3, 0xcc, 0xcc, 0xcc, 0xcc];

/// The kernels that are also compared with one another, as (kernel, other one).
pub(super) const PAIRS: [(&str, &str); 6] = [
    ("both", "layout"),
    ("both", "inlined"),
    ("plain layout", "plain original"),
    ("plain inlined", "plain original"),
    ("plain both", "plain original"),
    ("plain both", "plain layout"),
];

/// The kernels in `directory`, the original first.
pub(super) fn kernels(tree: &Path, directory: &Path) -> Result<Vec<MeasuredKernel>> {
    let image = vmlinux::read(&vmlinux::path(tree))?;
    let maker = KernelMaker { tree, image: &image, directory };
    let counts = maker.profile()?;
    let mut all = maker.controls()?.to_vec();
    let layout = maker.laid_out(&Ground::new(&image, &counts)?, LAYOUT)?;

    let inlined = directory.join("inlined.kernel");
    make(&inlined, || {
        let built = BuildTree::open(tree, &[])?;
        let chosen = inlined::choose(&built, &counts, None, false)?;
        note!("{}", inlined::summary(&chosen.summary));
        inlined::make(&built, chosen, &Destination::Directory(&inlined)).map(drop)
    })?;
    let image = vmlinux::read(&vmlinux::path(&inlined))?;
    let home = directory.join(inlined::INLINED);
    fs::create_dir_all(&home).with_context(|| home.display().to_string())?;
    let maker = KernelMaker { tree: &inlined, image: &image, directory: &home };
    let counts = maker.profile()?;
    let both = maker.laid_out(&Ground::new(&image, &counts)?, LAYOUT)?;

    let safe = [
        (ORIGINAL, "plain original", all[0].program.clone()),
        ("layout", "plain layout", layout),
        ("inlined", "plain inlined", inlined.join("vmlinux")),
        ("both", "plain both", both),
    ];
    for (name, _, program) in safe.iter().skip(1) {
        all.push(MeasuredKernel { name, program: program.clone() });
    }
    for (_, name, program) in safe {
        let plain = directory.join(name);
        make(&plain, || {
            let bytes = fs::read(&program).with_context(|| program.display().to_string())?;
            let patched =
                with_plain_returns(bytes).with_context(|| program.display().to_string())?;
            output::write(&plain, &patched)?;
            Ok(fs::set_permissions(&plain, fs::Permissions::from_mode(0o755))?)
        })?;
        all.push(MeasuredKernel { name, program: plain });
    }
    Ok(all)
}

/// The bytes of a kernel with each of its jumps to the return thunk replaced by a plain return.
fn with_plain_returns(mut bytes: Vec<u8>) -> Result<Vec<u8>> {
    let kernel = LinkedKernel::parse(&bytes)?;
    let thunk = kernel.address_of(THUNK).with_context(|| format!("has no {THUNK}"))?;
    ensure!(!kernel.tables.returns.is_empty(), "has no .return_sites");
    let start = bytes.as_ptr().addr();
    let place = |&site: &u64| {
        let jump = kernel.bytes(LinkAddr(site), JUMP);
        let jump = jump.with_context(|| format!("{site:#x}: is not in the file"))?;
        let distance = thunk.0.wrapping_sub(site + JUMP as u64) as u32;
        ensure!(
            jump[0] == 0xe9 && jump[1..] == distance.to_le_bytes(),
            "{site:#x}: {jump:02x?} is no jump to {THUNK}"
        );
        Ok(jump.as_ptr().addr() - start)
    };
    let places: Vec<usize> = kernel.tables.returns.iter().map(place).collect::<Result<_>>()?;
    for at in places {
        bytes[at..at + JUMP].copy_from_slice(&PLAIN);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A program like a kernel: `f` returns by the code `ends`, which the section `table` names.
    fn program(ends: &str, table: &str) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let (source, program) = (directory.path().join("f.s"), directory.path().join("f"));
        let text = format!(
            ".globl _start, {THUNK}\n_start: .skip 11, 0x90\n.type f, @function\nf: nop\n\
             1: {ends}\n.size f, . - f\n.type {THUNK}, @function\n{THUNK}: ret\nint3\n\
             .section {table}, \"a\"\n.long 1b - .\n\
             .section .notes, \"a\", @note\n.long 4, 20, 3\n.asciz \"GNU\"\n.fill 20, 1, 0x5f\n"
        );
        fs::write(&source, text).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-static", "-nostdlib", "-Wl,--build-id=none", "-Wa,-mx86-used-note=no"]);
        lab::run(cc.arg("-o").arg(&program).arg(&source)).unwrap();
        fs::read(&program).unwrap()
    }

    /// A jump that names the thunk, if the field is `behind` bytes in front of the jump's end.
    fn jump(behind: u32) -> String {
        format!(".byte 0xe9\n.long {THUNK} - . - {behind}")
    }

    #[test]
    fn each_return_that_a_table_names_becomes_plain() {
        let before = program(&jump(4), ".return_sites");
        let after = with_plain_returns(before.clone()).unwrap();
        let changed: Vec<usize> = (0..before.len()).filter(|&n| before[n] != after[n]).collect();
        let kernel = LinkedKernel::parse(&after).unwrap();
        let at = LinkAddr(kernel.tables.returns[0]);
        assert_eq!(kernel.bytes(at, JUMP), Some(&PLAIN[..]));
        // Nothing else changed.
        let first = kernel.bytes(at, 1).unwrap().as_ptr().addr() - after.as_ptr().addr();
        assert!(changed.iter().all(|n| (first..first + JUMP).contains(n)), "{changed:?}");
    }

    #[test]
    fn a_return_that_is_no_jump_to_the_thunk_is_named() {
        let error = |ends: &str, table: &str| {
            with_plain_returns(program(ends, table)).unwrap_err().to_string()
        };
        let no_jump = error(".skip 5, 0x90", ".return_sites");
        assert!(no_jump.contains(&format!("no jump to {THUNK}")), "{no_jump}");
        assert!(error(&jump(3), ".return_sites").contains("no jump"), "to the byte behind it");
        assert_eq!(error(&jump(4), ".rodata"), "has no .return_sites");
    }
}
