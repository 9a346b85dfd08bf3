//! Compares names: every old symbol still names the same thing, and every moved block is found
//! under the name of its function.
//!
//! Input: both kernels, the correspondence and the units. The proof covers the ELF symbols, which
//! perf and debuggers read, and kallsyms, which the kernel prints. A new symbol is allowed only in
//! moved code, as the name of the function there with a suffix.

use super::correspond::{Correspondence, Landing};
use super::kallsyms::{Kallsyms, KallsymsEntry};
use super::kernel::KernelSymbol;
use super::verdict::Findings;
use super::walk::CodeUnit;
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

/// Compares all names.
pub(crate) fn check(
    c: &Correspondence,
    units: &[CodeUnit],
    old: Option<&Kallsyms>,
    new: Option<&Kallsyms>,
) -> Findings {
    let mut findings = Findings::default();
    let extra = symbols(c, &mut findings);
    parts(c, units, &extra, &mut findings);
    functions_of_blocks(c, units, &mut findings);
    match (old, new) {
        (Some(old), Some(new)) => kallsyms(c, old, new, &mut findings),
        (None, None) => {}
        _ => findings.differ("kallsyms", None, None, "only one of the kernels has kallsyms"),
    }
    findings
}

/// Checks that every old symbol has a new one with its name on the same thing. Returns the new
/// symbols that have no old one.
fn symbols<'k, 'd>(
    c: &Correspondence<'k, 'd>,
    findings: &mut Findings,
) -> Vec<&'k KernelSymbol<'d>> {
    let mut used: HashSet<*const KernelSymbol> = HashSet::with_capacity(c.old.symbols.len());
    for symbol in c.old.symbols.iter().filter(|s| s.section.is_some()) {
        if c.is_dropped_padding(symbol.name, symbol.addr.0) {
            continue;
        }
        let fits = |t: &&KernelSymbol| {
            t.section.is_some()
                && t.function == symbol.function
                && lands(c, symbol.addr.0, t.addr.0, symbol.function)
        };
        let is_free = |t: &&KernelSymbol| !used.contains(&std::ptr::from_ref(*t));
        // Thousands of symbols may share a name, so the cheap comparison comes first.
        let image = c.image(symbol.addr.0);
        let mut namesakes = c.new.named(symbol.name);
        let at_image = namesakes.find(|t| image == Some(t.addr.0) && fits(t) && is_free(t));
        let found = at_image.or_else(|| c.new.named(symbol.name).find(|t| fits(t) && is_free(t)));
        match found {
            Some(twin) if symbol.size > 0 && twin.size == 0 => {
                findings.differ(
                    "symbols",
                    Some(symbol.addr.0),
                    Some(twin.addr.0),
                    format!("{} lost its size", symbol.name),
                );
                used.insert(std::ptr::from_ref(twin));
            }
            Some(twin) => {
                used.insert(std::ptr::from_ref(twin));
                findings.prove("symbols", 1);
            }
            None => {
                let other = c.new.named(symbol.name).next().map(|t| t.addr.0);
                findings.differ(
                    "symbols",
                    Some(symbol.addr.0),
                    other,
                    format!("no new symbol {} is at the corresponding place", symbol.name),
                );
            }
        }
    }
    c.new
        .symbols
        .iter()
        .filter(|s| s.section.is_some() && !used.contains(&std::ptr::from_ref(*s)))
        .collect()
}

fn lands(c: &Correspondence, old: u64, new: u64, exactly: bool) -> bool {
    match c.lands(old, new) {
        Landing::Exact => true,
        Landing::Boundary => !exactly,
        _ => false,
    }
}

/// Checks symbols that only the new kernel has: they must name parts of functions that moved.
fn parts(c: &Correspondence, units: &[CodeUnit], extra: &[&KernelSymbol], findings: &mut Findings) {
    let mut by_new: Vec<&CodeUnit> = units.iter().collect();
    by_new.sort_by_key(|u| u.new);
    for symbol in extra {
        let addr = symbol.addr.0;
        let before = &by_new[..by_new.partition_point(|u| u.new <= addr)];
        // What became of a dropped jump lies where the code begins to which it went, perhaps that
        // of another function.
        let last = before.last().map_or(0, |u| u.new);
        let here = before.iter().rev().take_while(|u| u.new == last);
        let owners = here.filter(|u| addr - u.new < u.new_size.max(1)).filter(|u| c.in_map(u.old));
        let is_named = |u: &&&CodeUnit| named_after(symbol.name, c.old.nearest(u.old));
        let fits = owners.clone().any(|u| is_named(&u));
        let owner = owners.clone().next();
        let what = || {
            format!(
                "the new symbol {} is not the name of the function there with a suffix",
                symbol.name
            )
        };
        let old = owner.map_or(0, |u| u.old);
        findings.expect(fits, "symbols of moved parts", old, addr, what);
    }
}

fn named_after(name: &str, functions: Option<&[KernelSymbol]>) -> bool {
    functions.into_iter().flatten().any(|f| {
        name == f.name || name.strip_prefix(f.name).is_some_and(|rest| rest.starts_with('.'))
    })
}

/// Checks the names in stack traces. A stack trace prints the nearest symbol in front of an
/// address. For every block of the map this must be the old function's symbol.
fn functions_of_blocks(c: &Correspondence, units: &[CodeUnit], findings: &mut Findings) {
    // The body of an overridden weak function has no symbol. The old kernel also finds it under the
    // name of a neighbour.
    let named = |u: &&CodeUnit| {
        let mut nearest = c.old.nearest(u.old).into_iter().flatten();
        // A block that was only a jump, and lost it, has no address of its own.
        c.in_map(u.old)
            && u.new_size > 0
            && nearest
                .any(|s| s.size == 0 || c.old.in_function(u.old) < s.addr.0.saturating_add(s.size))
    };
    let wrong: Vec<(u64, u64, String)> = units
        .par_iter()
        .filter(named)
        .filter_map(|u| {
            let (old, new) = (c.old.nearest(u.old), c.new.nearest(u.new));
            let fits = new.into_iter().flatten().any(|s| named_after(s.name, old));
            let name = |symbols: Option<&[KernelSymbol]>| {
                symbols.and_then(|s| s.first()).map_or("nothing".to_owned(), |s| s.name.to_owned())
            };
            (!fits).then(|| {
                (u.old, u.new, format!("a block of {} is found under {}", name(old), name(new)))
            })
        })
        .collect();
    let blocks = units.iter().filter(named).count();
    findings.prove(
        "blocks without a name",
        (units.iter().filter(|u| c.in_map(u.old)).count() - blocks) as u64,
    );
    findings.prove("blocks found under their function's name", (blocks - wrong.len()) as u64);
    for (old, new, what) in wrong {
        findings.differ("blocks found under their function's name", Some(old), Some(new), what);
    }
}

fn kallsyms(c: &Correspondence, old: &Kallsyms, new: &Kallsyms, findings: &mut Findings) {
    const KIND: &str = "kallsyms";
    let mut by_name: HashMap<&[u8], Vec<&KallsymsEntry>> =
        HashMap::with_capacity(new.entries.len());
    for entry in &new.entries {
        by_name.entry(&entry.name).or_default().push(entry);
    }
    for entry in &old.entries {
        let name = str::from_utf8(entry.name.get(1..).unwrap_or(&[]));
        if name.is_ok_and(|name| c.is_dropped_padding(name, entry.addr)) {
            continue;
        }
        let absolute = entry.name.first().is_some_and(|t| matches!(t, b'a' | b'A'));
        let twins = by_name.get_mut(entry.name.as_slice());
        let image = c.image(entry.addr);
        let at = twins.as_ref().and_then(|list| {
            let at_image = list.iter().position(|t| absolute || image == Some(t.addr));
            at_image.or_else(|| list.iter().position(|t| lands(c, entry.addr, t.addr, false)))
        });
        match (twins, at) {
            (Some(list), Some(at)) => {
                list.swap_remove(at);
                findings.prove(KIND, 1);
            }
            (list, _) => {
                let other = list.and_then(|l| l.first()).map(|e| e.addr);
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                findings.differ(
                    KIND,
                    Some(entry.addr),
                    other,
                    format!("kallsyms has no \"{name}\" at the corresponding place"),
                );
            }
        }
    }
    let left: HashSet<*const KallsymsEntry> =
        by_name.values().flatten().map(|&e| std::ptr::from_ref(e)).collect();
    for entry in new.entries.iter().filter(|e| left.contains(&std::ptr::from_ref(*e))) {
        let name = entry.name.get(1..).unwrap_or(&[]);
        let known = c.new.symbols_at(entry.addr).iter().any(|s| s.name.as_bytes() == name);
        let what = || {
            format!("kallsyms has {}, but there is no such symbol", String::from_utf8_lossy(name))
        };
        findings.expect(known, "kallsyms of moved parts", entry.addr, entry.addr, what);
    }
    if let Some(pair) = new.entries.windows(2).find(|p| p[0].addr > p[1].addr) {
        findings.differ(KIND, None, Some(pair[1].addr), "kallsyms is not sorted by address");
    }
}
