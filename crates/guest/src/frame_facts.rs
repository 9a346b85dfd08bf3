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
            found.with_context(|| {
                format!(
                    "BTF has no {name}: this kernel is older than Linux \
                     6.12, or does not say what its pages are"
                )
            })
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

    /// From the headers of a build tree.
    pub(crate) fn of_tree(tree: &Path) -> Result<FrameTypes> {
        FrameTypes::of_answers(&Answers::of_tree(tree, QUESTIONS)?)
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
        })
    }
}

/// The questions about `struct page` and related types.
const QUESTIONS: &[(&str, &str)] = &[
    ("page", "sizeof(struct page)"),
    ("compound_head", "offsetof(struct page, compound_head)"),
    ("mapping", "offsetof(struct page, mapping)"),
    ("page_type", "offsetof(struct page, page_type)"),
    ("refcount", "offsetof(struct page, _refcount)"),
    ("reserved_bit", "PG_reserved"),
    ("slab_type", "PGTY_slab"),
    ("table_type", "PGTY_table"),
    ("slab_cache", "offsetof(struct slab, slab_cache)"),
    ("cache_name", "offsetof(struct kmem_cache, name)"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_missing_ones_named() {
        let text: String = (QUESTIONS.iter().skip(1).enumerate())
            .map(|(at, (name, _))| format!("\t.ascii \"kernlane {name} {at}\"\n"))
            .collect();
        let text = "\t.ascii \"kernlane page 64\"\n#APP\n".to_owned() + &text;
        let types = |text: &str| FrameTypes::of_answers(&Answers::of_assembly(text)?);
        let read = types(&text).unwrap();
        assert_eq!((read.compound_head, read.refcount, read.cache_name), (0, 3, 8));
        assert!(types(&text.replace("page 64", "page 56")).is_err());
        let error = types(&text.replace("slab_type", "x")).unwrap_err().to_string();
        assert!(error.contains("slab_type"), "{error}");
    }
}
