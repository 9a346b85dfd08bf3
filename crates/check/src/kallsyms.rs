//! The kernel's own symbol table, as the kernel reads it (`kernel/kallsyms.c`).
//!
//! Input: the tables in `.rodata`. Output: address, type and name of each symbol, in the order of
//! the table. Damaged tables give an error with the broken rule.

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

/// Reads the tables; `None` if the kernel has none.
pub(crate) fn read(kernel: &KernelFile) -> Result<Option<Kallsyms>> {
    let (Some(first), Some(count_at)) =
        (kernel.symbol("kallsyms_num_syms"), kernel.symbol("kallsyms_num_syms"))
    else {
        return Ok(None);
    };
    let at = |name: &str| kernel.symbol(name).with_context(|| format!("{name} is missing"));
    let count = kernel.u32_at(count_at).context("kallsyms_num_syms is cut off")?;
    let names = kernel.tail(at("kallsyms_names")?).context("kallsyms_names is cut off")?;
    let tokens =
        kernel.tail(at("kallsyms_token_table")?).context("kallsyms_token_table is cut off")?;
    let index = kernel
        .bytes(at("kallsyms_token_index")?, 512)
        .context("kallsyms_token_index is cut off")?;
    let offsets_at = at("kallsyms_offsets")?;
    let offsets =
        kernel.bytes(offsets_at, u64::from(count) * 4).context("kallsyms_offsets is cut off")?;
    let base = kernel
        .u64_at(at("kallsyms_relative_base")?)
        .context("kallsyms_relative_base is cut off")?;
    let seqs_at = at("kallsyms_seqs_of_names")?;
    let seqs =
        kernel.bytes(seqs_at, u64::from(count) * 3).context("kallsyms_seqs_of_names is cut off")?;

    let mut entries = Vec::with_capacity(offsets.len() / 4);
    let mut rest = names;
    for offset in offsets.chunks_exact(4) {
        let (name, after) = expand(rest, tokens, index).context("kallsyms_names is damaged")?;
        rest = after;
        let offset = i32::from_le_bytes([offset[0], offset[1], offset[2], offset[3]]);
        entries.push(KallsymsEntry { addr: address(base, offset), name });
    }
    sorted_by_name(&entries, seqs)?;
    let tables = [count_at, at("kallsyms_names")?, at("kallsyms_markers")?, offsets_at];
    let start = tables.into_iter().min().unwrap_or(first);
    ensure!(start <= seqs_at, "kallsyms_seqs_of_names lies before the other tables of kallsyms");
    Ok(Some(Kallsyms { entries, stretch: (start, seqs_at + seqs.len() as u64) }))
}

/// The address for an offset. With `KALLSYMS_ABSOLUTE_PERCPU` a positive offset is an absolute
/// address. A negative offset is -1 minus the distance from the base.
fn address(base: u64, offset: i32) -> u64 {
    if offset >= 0 {
        offset as u64
    } else {
        base.wrapping_sub(1).wrapping_sub(i64::from(offset) as u64)
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
