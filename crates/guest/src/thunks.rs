//! The thunks of a kernel through which mitigations lead returns and indirect branches.
//!
//! Input: symbols. Output: places and uses (arch/x86/lib/retpoline.S).

use image::sites::ThunkUse;

/// Code that stands in the place of a branch instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thunk {
    /// Where it begins.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// The symbol. The thunks of indirect branches have a symbol for each register; their name is
    /// the part before it.
    pub name: String,
    /// What leads into it; `None`: other thunks, or the entry of the kernel.
    pub used_by: Option<ThunkUse>,
}

/// The thunks among symbols (address, size, name), ascending by address. One without a size reaches
/// to the next symbol.
pub(crate) fn among(mut symbols: Vec<(u64, u64, String)>) -> Vec<Thunk> {
    symbols.sort();
    let mut thunks: Vec<Thunk> = Vec::new();
    for (at, (addr, size, symbol)) in symbols.iter().enumerate() {
        let Some((name, used_by)) = named(symbol) else { continue };
        let next = symbols[at..].iter().map(|(next, ..)| *next).find(|next| next > addr);
        let size = if *size > 0 { *size } else { next.map_or(1, |next| next - addr) };
        thunks.push(Thunk { addr: *addr, size, name: name.to_owned(), used_by });
    }
    thunks.dedup_by_key(|thunk| thunk.addr);
    thunks
}

/// The name and use of the thunk with this symbol; `None` for all other code.
fn named(symbol: &str) -> Option<(&str, Option<ThunkUse>)> {
    if symbol.starts_with("__pfx_") {
        return None;
    }
    match ThunkUse::of(symbol) {
        Some(ThunkUse::IndirectBranches) => {
            let (name, register) = symbol.rsplit_once('_')?;
            (register != "array").then_some((name, Some(ThunkUse::IndirectBranches)))
        }
        Some(ThunkUse::Returns) => Some((symbol, Some(ThunkUse::Returns))),
        None => {
            let helps = ["_safe_ret", "_untrain_ret"].iter().any(|end| symbol.ends_with(end));
            helps.then_some((symbol, None))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thunks_are_found_by_their_symbols_and_reach_to_the_next_one() {
        let symbol = |addr, size, name: &str| (addr, size, name.to_owned());
        let found = among(vec![
            symbol(0x40, 0, "__x86_indirect_call_thunk_rax"),
            symbol(0x0, 0, "__x86_indirect_thunk_array"),
            symbol(0x0, 0, "__x86_indirect_thunk_rax"),
            symbol(0x20, 0, "__x86_indirect_thunk_rcx"),
            symbol(0x60, 0, "f"),
            symbol(0x70, 7, "srso_safe_ret"),
            symbol(0x80, 0, "its_return_thunk"),
            symbol(0x90, 16, "__pfx_call_depth_return_thunk"),
        ]);
        let short: Vec<(u64, u64, &str, Option<ThunkUse>)> =
            found.iter().map(|it| (it.addr, it.size, it.name.as_str(), it.used_by)).collect();
        assert_eq!(
            short,
            [
                (0x0, 0x20, "__x86_indirect_thunk", Some(ThunkUse::IndirectBranches)),
                (0x20, 0x20, "__x86_indirect_thunk", Some(ThunkUse::IndirectBranches)),
                (0x40, 0x20, "__x86_indirect_call_thunk", Some(ThunkUse::IndirectBranches)),
                (0x70, 7, "srso_safe_ret", None),
                (0x80, 0x10, "its_return_thunk", Some(ThunkUse::Returns)),
            ]
        );
    }
}
