//! The functions of a sample profile: whose code a block is, and what a function is called.
//!
//! Input: the image, its counts, and the source positions of instructions. Output: names, entries,
//! and how often functions were entered. This module knows no lines.

use super::Instruction;
use super::source::{Located, source_name};
use image::address::LinkAddr;
use image::{BlockIndex, Image, ImageFunction};
use profile::Profile;
use std::collections::BTreeMap;

/// Which parts of the code belong together: compilers set aside cold code of a function.
pub(super) struct Wholes<'a> {
    image: &'a Image,
    /// The entries of functions by name; none where several functions have the name.
    entries: BTreeMap<&'a str, Option<LinkAddr>>,
}

impl<'a> Wholes<'a> {
    pub(super) fn of(image: &'a Image) -> Self {
        let mut entries: BTreeMap<&str, Option<LinkAddr>> = BTreeMap::new();
        for function in &image.functions {
            let entry = entries.entry(&function.name);
            entry.and_modify(|entry| *entry = None).or_insert(Some(function.addr));
        }
        Wholes { image, entries }
    }

    /// The entry of the function that this code is a part of. The part is its own function if
    /// its name does not say whose it is.
    pub(super) fn entry(&self, part: &ImageFunction) -> LinkAddr {
        let whole = whole(&part.name).and_then(|whole| self.entries.get(whole).copied().flatten());
        whole.unwrap_or(part.addr)
    }

    pub(super) fn entry_of_block(&self, block: BlockIndex) -> LinkAddr {
        self.entry(self.image.function_of(block))
    }
}

/// The name of the function that set a part of this name aside, if it is one.
pub(super) fn whole(symbol: &str) -> Option<&str> {
    symbol.find(".cold").filter(|&at| at > 0).map(|at| &symbol[..at])
}

/// The functions that ran, as the source calls them.
#[derive(Default)]
pub(super) struct NamedFunctions {
    /// By entry.
    names: BTreeMap<LinkAddr, String>,
    /// How often functions were entered, by name: static functions of several files may have the
    /// same one.
    heads: BTreeMap<String, u64>,
}

impl NamedFunctions {
    /// Takes the names from the instructions at which functions begin.
    pub(super) fn of(
        image: &Image,
        profile: &Profile,
        instructions: &[Instruction],
        located: &[Located],
    ) -> Self {
        let again = returns_to_entries(image, profile);
        let mut functions = NamedFunctions::default();
        for (one, located) in instructions.iter().zip(located) {
            let function = image.function_of(one.block);
            if function.addr != one.addr || whole(&function.name).is_some() {
                continue;
            }
            let name = located.function().unwrap_or(source_name(&function.name)).to_owned();
            let entered = one.count.saturating_sub(again.get(&one.addr).copied().unwrap_or(0));
            let head = functions.heads.entry(name.clone()).or_default();
            *head = head.saturating_add(entered);
            functions.names.insert(function.addr, name);
        }
        functions
    }

    /// How often functions of a name were entered.
    pub(super) fn head(&self, name: &str) -> u64 {
        self.heads.get(name).copied().unwrap_or(0)
    }

    /// What a function is called in the source. Its symbol may have a suffix (`.llvm.123`).
    pub(super) fn name<'a>(&'a self, function: &'a ImageFunction) -> &'a str {
        self.names.get(&function.addr).map_or(source_name(&function.name), String::as_str)
    }
}

/// How often functions jumped back to their entry. That is a loop, and no entry of the function.
fn returns_to_entries(image: &Image, profile: &Profile) -> BTreeMap<LinkAddr, u64> {
    let mut again: BTreeMap<LinkAddr, u64> = BTreeMap::new();
    for (&(from, to), &(_, count)) in &profile.edges {
        let function = |addr| image.block_at(addr).map(|block| image.function_of(block).addr);
        if function(to) == Some(to) && function(from) == Some(to) {
            let sum = again.entry(to).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    again
}
