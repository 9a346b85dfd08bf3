//! The kernel's own symbol table, as the kernel reads it (`kernel/kallsyms.c`).
//!
//! Input: the tables in `.rodata`. Output: address, type and name of each symbol, in the order of
//! the table. How the table holds addresses is found by the tables that are there, and by the
//! symbols of the file. Damaged tables give an error with the broken rule.

use super::kernel::KernelFile;
use anyhow::{Context, Result, bail, ensure};

/// One symbol. `name` begins with the type letter.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KallsymsEntry {
    pub addr: u64,
    pub name: Vec<u8>,
}

/// The table.
pub(crate) struct Kallsyms {
    pub entries: Vec<KallsymsEntry>,
    /// The first address of the tables, and the address behind them.
    pub stretch: (u64, u64),
}

/// How the table of offsets holds addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OffsetForm {
    /// The distance from the entry itself (7.0 and later).
    FromEntry,
    /// An unsigned distance from the base.
    FromBase,
    /// With `KALLSYMS_ABSOLUTE_PERCPU` (up to 6.14), a positive offset is an absolute address. A
    /// negative offset is -1 minus the distance from the base.
    NegativeFromBase,
}

impl OffsetForm {
    /// The address for an entry that holds `offset` and lies at `entry`.
    fn address(self, base: u64, entry: u64, offset: i32) -> u64 {
        let signed = i64::from(offset) as u64;
        match self {
            OffsetForm::FromEntry => entry.wrapping_add(signed),
            OffsetForm::FromBase => base.wrapping_add(u64::from(offset as u32)),
            OffsetForm::NegativeFromBase if offset >= 0 => signed,
            OffsetForm::NegativeFromBase => base.wrapping_sub(1).wrapping_sub(signed),
        }
    }
}

/// Reads the tables; `None` if the kernel has none.
pub(crate) fn read(kernel: &KernelFile) -> Result<Option<Kallsyms>> {
    let Some(count_at) = kernel.symbol("kallsyms_num_syms") else { return Ok(None) };
    let at = |name: &str| kernel.symbol(name).with_context(|| format!("{name} is missing"));
    let table = |name: &str, len: u64| -> Result<(u64, &[u8])> {
        let start = at(name)?;
        Ok((start, kernel.bytes(start, len).with_context(|| format!("{name} is cut off"))?))
    };
    let count = kernel.u32_at(count_at).context("kallsyms_num_syms is cut off")?;
    let names_at = at("kallsyms_names")?;
    let names = kernel.tail(names_at).context("kallsyms_names is cut off")?;
    let tokens_at = at("kallsyms_token_table")?;
    let tokens = kernel.tail(tokens_at).context("kallsyms_token_table is cut off")?;
    let (index_at, index) = table("kallsyms_token_index", 512)?;
    ensure!(
        kernel.symbol("kallsyms_addresses").is_none(),
        "the table kallsyms_addresses is not understood (a kernel without KALLSYMS_BASE_RELATIVE)"
    );
    let (offsets_at, offsets) = table("kallsyms_offsets", u64::from(count) * 4)?;
    let (seqs_at, seqs) = table("kallsyms_seqs_of_names", u64::from(count) * 3)?;
    let base = match kernel.symbol("kallsyms_relative_base") {
        Some(at) => Some(kernel.u64_at(at).context("kallsyms_relative_base is cut off")?),
        None => None,
    };

    let mut found: Vec<(u64, i32, Vec<u8>)> = Vec::with_capacity(offsets.len() / 4);
    let mut rest = names;
    for (entry, offset) in (offsets_at..).step_by(4).zip(offsets.chunks_exact(4)) {
        let (name, after) = expand(rest, tokens, index).context("kallsyms_names is damaged")?;
        rest = after;
        let offset = i32::from_le_bytes([offset[0], offset[1], offset[2], offset[3]]);
        found.push((entry, offset, name));
    }
    let form = offset_form(kernel, base, &found);
    let address = |entry, offset| form.address(base.unwrap_or(0), entry, offset);
    let entries = found.into_iter();
    let entries =
        entries.map(|(at, offset, name)| KallsymsEntry { addr: address(at, offset), name });
    let entries: Vec<KallsymsEntry> = entries.collect();
    sorted_by_name(&entries, seqs)?;
    // The order of the tables differs between kernels.
    let starts =
        [count_at, names_at, at("kallsyms_markers")?, tokens_at, index_at, offsets_at, seqs_at];
    let ends = [
        index_at + index.len() as u64,
        offsets_at + offsets.len() as u64,
        seqs_at + seqs.len() as u64,
    ];
    let start = starts.into_iter().min().unwrap_or(count_at);
    let end = ends.into_iter().max().unwrap_or(seqs_at);
    let section = kernel.section_at(start).map_or(0, |section| section.end());
    ensure!(end <= section, "the tables of kallsyms lie in several sections");
    Ok(Some(Kallsyms { entries, stretch: (start, end) }))
}

/// The form of the offsets: without a base, that from the entry; else the one that gives more
/// symbols the address that the symbol table gives them. `found`: address, offset and name of each
/// entry.
fn offset_form(
    kernel: &KernelFile,
    base: Option<u64>,
    found: &[(u64, i32, Vec<u8>)],
) -> OffsetForm {
    let Some(base) = base else { return OffsetForm::FromEntry };
    let known = found.iter().filter_map(|(entry, offset, name)| {
        let name = std::str::from_utf8(name.get(1..)?).ok()?;
        Some((*entry, *offset, kernel.symbol(name)?))
    });
    const ENOUGH: usize = 1000;
    let known: Vec<(u64, i32, u64)> = known.take(ENOUGH).collect();
    let agree = |form: OffsetForm| {
        known.iter().filter(|&&(entry, offset, at)| form.address(base, entry, offset) == at).count()
    };
    let [from_base, negative] = [OffsetForm::FromBase, OffsetForm::NegativeFromBase].map(agree);
    match from_base > negative {
        true => OffsetForm::FromBase,
        false => OffsetForm::NegativeFromBase,
    }
}

/// Expands the first compressed name of `names`. The second value is the rest of `names`.
fn expand<'d>(names: &'d [u8], tokens: &[u8], index: &[u8]) -> Option<(Vec<u8>, &'d [u8])> {
    let (&first, mut rest) = names.split_first()?;
    let mut len = usize::from(first);
    if len & 0x80 != 0 {
        let (&high, after) = rest.split_first()?;
        len = len & 0x7f | usize::from(high) << 7;
        rest = after;
    }
    let mut name = Vec::with_capacity(32);
    for &code in rest.get(..len)? {
        let at = usize::from(code) * 2;
        let from = usize::from(u16::from_le_bytes([*index.get(at)?, *index.get(at + 1)?]));
        let token = tokens.get(from..)?;
        name.extend_from_slice(&token[..token.iter().position(|&b| b == 0)?]);
    }
    Some((name, &rest[len..]))
}

/// Checks the order in which the kernel finds a name by binary search.
fn sorted_by_name(entries: &[KallsymsEntry], seqs: &[u8]) -> Result<()> {
    let mut before: Option<&[u8]> = None;
    for seq in seqs.chunks_exact(3) {
        let seq = usize::from(seq[0]) << 16 | usize::from(seq[1]) << 8 | usize::from(seq[2]);
        let name = entries
            .get(seq)
            .and_then(|e| e.name.get(1..))
            .context("kallsyms_seqs_of_names refers to a symbol that does not exist")?;
        if before.is_some_and(|before| before > name) {
            bail!("kallsyms_seqs_of_names is not sorted at {}", String::from_utf8_lossy(name));
        }
        before = Some(name);
    }
    Ok(())
}
