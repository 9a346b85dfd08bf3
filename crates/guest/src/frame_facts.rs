//! Finds where a kernel keeps what its page frames are used for, for the plugin.
//!
//! Input: a kernel. Output: addresses of variables, and offsets and numbers from the kernel's
//! types. The types come from BTF, or from the headers of the build tree (`headers.rs`) if the
//! kernel has no BTF. This module never guesses.

use crate::headers::Answers;
use anyhow::{Context, Result, ensure};
use image::address::LinkAddr;
use image::btf::Btf;
use std::path::Path;

/// The size of a struct page that the plugin expects.
const PAGE_SIZE: u64 = 64;

/// The facts in the plugin's argument `frames=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelFrameFacts {
    /// The variable `vmemmap_base`: the address of the array of `struct page`.
    pub array: LinkAddr,
    /// The variable `max_pfn`: the number of elements of that array.
    pub count: LinkAddr,
    /// Offsets and numbers.
    pub types: FrameTypes,
}

/// Facts about the kernel's types: offsets in bytes, and numbers of an enum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameTypes {
    compound_head: u64,
    mapping: u64,
    page_type: u64,
    refcount: u64,
    reserved_bit: u64,
    slab_type: u64,
    table_type: u64,
    slab_cache: u64,
    cache_name: u64,
    /// 1: `slab_type` is the number of a bit of `page.flags`, and `table_type` a bit of
    /// `page.page_type` that is clear. 0: they are upper bytes of `page.page_type`.
    by_bits: u64,
}

impl KernelFrameFacts {
    pub(crate) fn argument(&self) -> String {
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
            types.by_bits,
        ];
        numbers.map(|number| format!("{number:#x}")).join("+")
    }
}

/// Variables whose values a recording contains (`docs/reference/recording-format.md`). They show
/// what an address of data belongs to. The first three exist only in kernels that choose these
/// addresses at boot.
pub(crate) const VALUES: [&str; 5] =
    ["page_offset_base", "vmalloc_base", "vmemmap_base", "__per_cpu_offset", "pcpu_unit_pages"];

impl FrameTypes {
    pub(crate) fn of_btf(btf: &Btf<'_>) -> Result<FrameTypes> {
        let offset = |structure: &str, field: &str| {
            let found = btf.offset(structure, field)?;
            found.with_context(|| format!("BTF has no {field} in struct {structure}"))
        };
        let number = |name: &str| {
            let found = btf.enumerator(name)?;
            found.with_context(|| format!("BTF has no {name}"))
        };
        // Linux 6.10 and 6.11 have neither: their types are no enumerators.
        let slab_bit = btf.enumerator("PG_slab")?;
        let (slab_type, table_type, by_bits) = match slab_bit {
            Some(bit) => (bit, TABLE_BIT, 1),
            None => (number("PGTY_slab")?, number("PGTY_table")?, 0),
        };
        let head = match btf.offset("page", "compound_head")? {
            Some(head) => head,
            None => offset("page", "compound_info")?,
        };
        ensure!(
            btf.size("page")? == PAGE_SIZE,
            "a struct page has {} bytes, not {PAGE_SIZE}",
            btf.size("page")?
        );
        Ok(FrameTypes {
            compound_head: head,
            mapping: offset("page", "mapping")?,
            page_type: offset("page", "page_type")?,
            refcount: offset("page", "_refcount")?,
            reserved_bit: number("PG_reserved")?,
            slab_type,
            table_type,
            slab_cache: offset("slab", "slab_cache")?,
            cache_name: offset("kmem_cache", "name")?,
            by_bits,
        })
    }

    /// From the headers of a build tree.
    pub(crate) fn of_tree(tree: &Path) -> Result<FrameTypes> {
        let answered = VERSIONS.iter().map(|of_version| {
            let questions: Vec<(&str, &str)> =
                QUESTIONS.iter().chain(of_version).copied().collect();
            FrameTypes::of_answers(&Answers::of_tree(tree, &questions)?)
        });
        let mut first = None;
        for answers in answered {
            match answers {
                Ok(types) => return Ok(types),
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        Err(first.context("there are no questions")?)
    }

    fn of_answers(answers: &Answers) -> Result<FrameTypes> {
        let size = answers.number("page")?;
        ensure!(size == PAGE_SIZE, "a struct page has {size} bytes, not {PAGE_SIZE}");
        Ok(FrameTypes {
            compound_head: answers.number("compound_head")?,
            mapping: answers.number("mapping")?,
            page_type: answers.number("page_type")?,
            refcount: answers.number("refcount")?,
            reserved_bit: answers.number("reserved_bit")?,
            slab_type: answers.number("slab_type")?,
            table_type: answers.number("table_type")?,
            slab_cache: answers.number("slab_cache")?,
            cache_name: answers.number("cache_name")?,
            by_bits: answers.number("by_bits")?,
        })
    }
}

/// The questions about `struct page` and related types.
const QUESTIONS: &[(&str, &str)] = &[
    ("page", "sizeof(struct page)"),
    ("mapping", "offsetof(struct page, mapping)"),
    ("page_type", "offsetof(struct page, page_type)"),
    ("refcount", "offsetof(struct page, _refcount)"),
    ("reserved_bit", "PG_reserved"),
    ("slab_cache", "offsetof(struct slab, slab_cache)"),
    ("cache_name", "offsetof(struct kmem_cache, name)"),
];

/// `PG_table` in kernels with `PG_slab` in `enum pageflags` (include/linux/page-flags.h of Linux
/// 6.1). BTF does not have it.
const TABLE_BIT: u64 = 0x200;

/// The other questions, which differ between versions: Linux 6.12, 7.0, and 6.9.
const VERSIONS: [[(&str, &str); 4]; 3] = [
    [
        ("compound_head", "offsetof(struct page, compound_head)"),
        ("slab_type", "PGTY_slab"),
        ("table_type", "PGTY_table"),
        ("by_bits", "0"),
    ],
    [
        ("compound_head", "offsetof(struct page, compound_info)"),
        ("slab_type", "PGTY_slab"),
        ("table_type", "PGTY_table"),
        ("by_bits", "0"),
    ],
    [
        ("compound_head", "offsetof(struct page, compound_head)"),
        ("slab_type", "PG_slab"),
        ("table_type", "PG_table"),
        // Where a slab is a type (Linux 6.10 and 6.11), this does not compile.
        ("by_bits", "sizeof(char[PG_slab < 64 ? 1 : -1])"),
    ],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_missing_ones_named() {
        let asked = QUESTIONS.iter().skip(1).chain(&VERSIONS[0]);
        let text: String = (asked.enumerate())
            .map(|(at, (name, _))| format!("\t.ascii \"kernlane {name} {at}\"\n"))
            .collect();
        let text = "\t.ascii \"kernlane page 64\"\n#APP\n".to_owned() + &text;
        let types = |text: &str| FrameTypes::of_answers(&Answers::of_assembly(text)?);
        let read = types(&text).unwrap();
        assert_eq!((read.compound_head, read.refcount, read.cache_name), (6, 2, 5));
        assert!(types(&text.replace("page 64", "page 56")).is_err());
        let error = types(&text.replace("slab_type", "x")).unwrap_err().to_string();
        assert!(error.contains("slab_type"), "{error}");
    }
}
