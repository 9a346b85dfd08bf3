//! Finds where a kernel keeps what its page frames are used for, for the plugin.
//!
//! Input: a kernel. Output: addresses of variables, and offsets and numbers from the kernel's
//! types. The types come from BTF. A kernel without BTF needs its build tree: the compiler is asked
//! with the tree's headers, as in kbuild's asm-offsets.c. This module never guesses.

use anyhow::{Context, Result, bail, ensure};
use image::address::LinkAddr;
use image::btf::Btf;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The size of a struct page that the plugin expects.
const PAGE_SIZE: u64 = 64;

/// The facts in the plugin's argument `frames=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFrameFacts {
    /// The variable `vmemmap_base`: the address of the array of `struct page`.
    pub array: LinkAddr,
    /// The variable `max_pfn`: the number of elements of that array.
    pub count: LinkAddr,
    /// Offsets and numbers.
    pub types: FrameTypes,
}

/// Facts about the kernel's types: offsets in bytes, and numbers of an enum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameTypes {
    compound_head: u64,
    mapping: u64,
    page_type: u64,
    refcount: u64,
    reserved_bit: u64,
    slab_type: u64,
    table_type: u64,
    slab_cache: u64,
    cache_name: u64,
}

impl KernelFrameFacts {
    pub fn argument(&self) -> String {
        let types = &self.types;
        let numbers = [
            self.array.0,
            self.count.0,
            types.compound_head,
            types.mapping,
            types.page_type,
            types.refcount,
            types.reserved_bit,
            types.slab_type,
            types.table_type,
            types.slab_cache,
            types.cache_name,
        ];
        numbers.map(|number| format!("{number:#x}")).join("+")
    }
}

/// Variables whose values a recording contains (`docs/reference/recording-format.md`). They say
/// what an address of data belongs to. The first three exist only in kernels that choose these
/// addresses at boot.
pub const VALUES: [&str; 5] =
    ["page_offset_base", "vmalloc_base", "vmemmap_base", "__per_cpu_offset", "pcpu_unit_pages"];

impl FrameTypes {
    pub fn of_btf(btf: &Btf<'_>) -> Result<FrameTypes> {
        let offset = |structure: &str, field: &str| {
            let found = btf.offset(structure, field)?;
            found.with_context(|| format!("BTF has no {field} in struct {structure}"))
        };
        let number = |name: &str| {
            let found = btf.enumerator(name)?;
            found.with_context(|| format!("BTF has no {name}: this kernel is older than Linux 6.12, or does not say what its pages are"))
        };
        ensure!(
            btf.size("page")? == PAGE_SIZE,
            "a struct page has {} bytes, not {PAGE_SIZE}",
            btf.size("page")?
        );
        Ok(FrameTypes {
            compound_head: offset("page", "compound_head")?,
            mapping: offset("page", "mapping")?,
            page_type: offset("page", "page_type")?,
            refcount: offset("page", "_refcount")?,
            reserved_bit: number("PG_reserved")?,
            slab_type: number("PGTY_slab")?,
            table_type: number("PGTY_table")?,
            slab_cache: offset("slab", "slab_cache")?,
            cache_name: offset("kmem_cache", "name")?,
        })
    }

    /// Compiles a few lines with the command that compiled `mm/slub.c`. Writes nothing to the tree.
    pub fn of_tree(tree: &Path) -> Result<FrameTypes> {
        const SAVED: &str = "mm/.slub.o.cmd";
        let text = std::fs::read_to_string(tree.join(SAVED))
            .with_context(|| format!("{SAVED}: cannot be read"))?;
        let command = compiler(&text).with_context(|| {
            format!("{SAVED}: Kernlane does not understand the command that compiled slub.o")
        })?;
        let mut child = Command::new("sh")
            .args(["-c", &command])
            .current_dir(tree)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("sh cannot be run")?;
        let source = child.stdin.take().map(|mut stdin| stdin.write_all(QUESTIONS.as_bytes()));
        let output = child.wait_with_output().context("waiting for the kernel's compiler")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!(
                "the tree's compiler fails with the tree's headers: {}",
                said.lines().next().unwrap_or_default()
            );
        }
        source.transpose().context("writing to the kernel's compiler")?;
        answers(&String::from_utf8_lossy(&output.stdout))
    }
}

/// The saved command, changed so that it compiles its input to assembly on its output.
fn compiler(saved: &str) -> Option<String> {
    let command = saved.lines().next()?.split_once(":= ")?.1;
    // Behind the semicolon are the commands that kbuild runs on the object afterwards.
    let command = command.split(';').next()?.trim_end();
    let flags = command.strip_suffix(" -c -o mm/slub.o mm/slub.c")?;
    let flags: Vec<&str> = flags.split(' ').filter(|flag| !flag.starts_with("-Wp,-MMD")).collect();
    Some(format!("{} -w -I. -Imm -S -o - -x c -", flags.join(" ")))
}

const QUESTIONS: &str = r#"
#include <linux/mm.h>
#include <linux/page-flags.h>
#include "slab.h"
#define TELL(name, value) asm volatile("\n.ascii \"kernlane " name " %c0\"" :: "i" (value))
void kernlane_tell(void);
void kernlane_tell(void)
{
	TELL("page", sizeof(struct page));
	TELL("compound_head", offsetof(struct page, compound_head));
	TELL("mapping", offsetof(struct page, mapping));
	TELL("page_type", offsetof(struct page, page_type));
	TELL("refcount", offsetof(struct page, _refcount));
	TELL("reserved_bit", PG_reserved);
	TELL("slab_type", PGTY_slab);
	TELL("table_type", PGTY_table);
	TELL("slab_cache", offsetof(struct slab, slab_cache));
	TELL("cache_name", offsetof(struct kmem_cache, name));
}
"#;

fn answers(assembly: &str) -> Result<FrameTypes> {
    let number = |name: &str| -> Result<u64> {
        let mut found =
            assembly.lines().filter_map(|line| line.split_once("\"kernlane ")?.1.split_once(' '));
        let (_, value) = found
            .find(|(found_name, _)| *found_name == name)
            .with_context(|| format!("the compiler's output lacks {name}"))?;
        let digits = value.trim_end().trim_end_matches('"').trim_start_matches('$');
        digits.parse().with_context(|| format!("{name} is {value:?}"))
    };
    let size = number("page")?;
    ensure!(size == PAGE_SIZE, "a struct page has {size} bytes, not {PAGE_SIZE}");
    Ok(FrameTypes {
        compound_head: number("compound_head")?,
        mapping: number("mapping")?,
        page_type: number("page_type")?,
        refcount: number("refcount")?,
        reserved_bit: number("reserved_bit")?,
        slab_type: number("slab_type")?,
        table_type: number("table_type")?,
        slab_cache: number("slab_cache")?,
        cache_name: number("cache_name")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_saved_command_is_changed_to_print_assembly() {
        let saved = "savedcmd_mm/slub.o := gcc -Wp,-MMD,mm/.slub.o.d -nostdinc -DKBUILD_BASENAME='\"slub\"' -c -o mm/slub.o mm/slub.c  ; ./tools/objtool x\n\nsource";
        assert_eq!(
            compiler(saved).unwrap(),
            "gcc -nostdinc -DKBUILD_BASENAME='\"slub\"' -w -I. -Imm -S -o - -x c -"
        );
        assert_eq!(compiler("savedcmd_mm/slub.o := rm -rf x\n"), None);
        assert_eq!(compiler(""), None);
    }

    #[test]
    fn answers_are_read_and_a_missing_one_is_named() {
        let names = [
            "compound_head",
            "mapping",
            "page_type",
            "refcount",
            "reserved_bit",
            "slab_type",
            "table_type",
            "slab_cache",
            "cache_name",
        ];
        let mut text = "\t.ascii \"kernlane page 64\"\n#APP\n".to_owned();
        for (at, name) in names.iter().enumerate() {
            text += &format!("\t.ascii \"kernlane {name} {at}\"\n");
        }
        let types = answers(&text).unwrap();
        assert_eq!((types.compound_head, types.refcount, types.cache_name), (0, 3, 8));
        assert!(answers(&text.replace("page 64", "page 56")).is_err());
        let error = answers(&text.replace("slab_type", "x")).unwrap_err().to_string();
        assert!(error.contains("slab_type"), "{error}");
    }
}
