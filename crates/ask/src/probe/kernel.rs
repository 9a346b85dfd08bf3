//! The functions and variables of a kernel that probes name.

use crate::probe::compile::Scope;
use crate::probe::syntax::ProbePlace;
use anyhow::{Context, Result, bail, ensure};
use image::address::LinkAddr;
use image::btf::Btf;
use image::exits::FunctionExits;
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};
use std::collections::BTreeMap;

/// The names of return thunks begin or end so (arch/x86/lib/retpoline.S).
const RETURN_THUNK: &str = "_return_thunk";

#[derive(Clone, Copy)]
struct KernelSymbol {
    address: u64,
    size: u64,
    is_code: bool,
    per_cpu: bool,
}

/// A kernel whose names are looked up.
pub(super) struct ProbedKernel<'a> {
    pub btf: Btf<'a>,
    elf: object::File<'a>,
    symbols: BTreeMap<&'a str, Vec<KernelSymbol>>,
}

/// The function of a place, the addresses, and what their rows lack.
type Places = (Option<String>, Vec<u64>, Option<String>);

impl<'a> ProbedKernel<'a> {
    pub(super) fn new(vmlinux: &'a [u8]) -> Result<ProbedKernel<'a>> {
        let elf = object::File::parse(vmlinux).context("the kernel's vmlinux is not readable")?;
        // Without types, there are still registers, addresses and variables of 64 bits.
        let btf = match elf.section_by_name(".BTF") {
            Some(section) => Btf::parse(section.data().context("its section .BTF")?)?,
            None => Btf::none(),
        };
        let per_cpu = elf.section_by_name(".data..percpu").map(|section| section.index());
        let mut symbols: BTreeMap<&'a str, Vec<KernelSymbol>> = BTreeMap::new();
        for symbol in elf.symbols() {
            let Ok(name) = symbol.name() else { continue };
            let section = symbol.section_index();
            let is_named = matches!(
                symbol.kind(),
                SymbolKind::Text | SymbolKind::Data | SymbolKind::Unknown | SymbolKind::Label
            );
            if name.is_empty() || section.is_none() || !is_named {
                continue;
            }
            let of = section.and_then(|index| elf.section_by_index(index).ok());
            symbols.entry(name).or_default().push(KernelSymbol {
                address: symbol.address(),
                size: symbol.size(),
                is_code: of.is_some_and(|of| of.kind() == SectionKind::Text),
                per_cpu: section == per_cpu,
            });
        }
        Ok(ProbedKernel { btf, elf, symbols })
    }

    /// The addresses of a place.
    pub(super) fn places(&self, place: &ProbePlace) -> Result<Places> {
        match place {
            ProbePlace::Entry(name) => {
                let function = self.function(name)?;
                Ok((Some(name.clone()), vec![function.address], None))
            }
            ProbePlace::Offset(name, offset) => {
                let function = self.function(name)?;
                ensure!(
                    *offset < function.size,
                    "{name} has {:#x} bytes, and the instruction at +{offset:#x} is not in it",
                    function.size
                );
                Ok((Some(name.clone()), vec![function.address + offset], None))
            }
            ProbePlace::Address(address) => {
                let of = self.symbols.iter().find(|(_, all)| {
                    all.iter().any(|it| {
                        it.is_code && (it.address..it.address + it.size).contains(address)
                    })
                });
                ensure!(of.is_some(), "no function of the kernel has the address {address:#x}");
                Ok((of.map(|(name, _)| (*name).to_owned()), vec![*address], None))
            }
            ProbePlace::Return(name) => self.returns(name),
        }
    }

    /// Where a function returns.
    fn returns(&self, name: &str) -> Result<Places> {
        let mut parts = vec![self.function(name)?];
        let cold = self.symbols.get(format!("{name}.cold").as_str()).and_then(|all| all.first());
        parts.extend(cold);
        let own: Vec<_> = parts.iter().map(|it| it.address..it.address + it.size).collect();
        let thunks: Vec<LinkAddr> = self
            .symbols
            .iter()
            .filter(|(name, _)| name.ends_with(RETURN_THUNK))
            .flat_map(|(_, all)| all.iter().map(|it| LinkAddr(it.address)))
            .collect();
        let (mut returns, mut jumps) = (Vec::new(), Vec::new());
        for part in parts {
            let code = self.code(part)?;
            let exits = FunctionExits::of(code, LinkAddr(part.address), &own, &thunks);
            returns.extend(exits.returns.into_iter().map(|at| at.0));
            jumps.extend(exits.jumps);
        }
        let others: Vec<&str> = {
            let names = jumps.iter().filter_map(|to| self.function_at(to.0));
            names.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
        };
        ensure!(!returns.is_empty(), "{name} never returns{}", jumped(&others));
        let note = (!others.is_empty())
            .then(|| format!("{name} has no row for invocations that end{}", jumped(&others)));
        Ok((Some(name.to_owned()), returns, note))
    }

    fn function_at(&self, address: u64) -> Option<&'a str> {
        let found = self.symbols.iter().find(|(name, all)| {
            !name.starts_with("__pfx_") && all.iter().any(|it| it.is_code && it.address == address)
        });
        found.map(|(name, _)| *name)
    }

    fn code(&self, function: KernelSymbol) -> Result<&'a [u8]> {
        let section = self.elf.sections().find(|section| {
            section.kind() == SectionKind::Text
                && (section.address()..section.address() + section.size())
                    .contains(&function.address)
        });
        let section = section.context("the code of the function is in no section")?;
        let bytes = section.data_range(function.address, function.size)?;
        bytes.context("the vmlinux has no code of the function")
    }

    /// The one function with a name.
    fn function(&self, name: &str) -> Result<KernelSymbol> {
        let all = self.symbols.get(name).map_or(&[][..], |all| all);
        let code: Vec<&KernelSymbol> = all.iter().filter(|it| it.is_code).collect();
        match code[..] {
            [one] => Ok(*one),
            [] => {
                let parts = self.symbols.keys().filter(|known| {
                    known.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
                });
                let parts: Vec<&str> = parts.copied().take(3).collect();
                match parts[..] {
                    [] => bail!(
                        "the kernel has no function {name}; it may be inlined{}",
                        near(&self.similar(name))
                    ),
                    _ => bail!(
                        "the compiler made {} of {name}, with other parameters: give that name, \
                         and registers",
                        parts.join(", ")
                    ),
                }
            }
            _ => {
                let places: Vec<String> =
                    code.iter().map(|it| format!("{:#x}", it.address)).collect();
                bail!(
                    "the kernel has {} functions {name}: give an address, {}",
                    code.len(),
                    places.join(" or ")
                )
            }
        }
    }
}

fn near(similar: &[String]) -> String {
    match similar {
        [] => String::new(),
        similar => format!("; similar names: {}", similar.join(", ")),
    }
}

fn jumped(others: &[&str]) -> String {
    match others.len() {
        0 => String::new(),
        more @ 6.. => format!(" with a jump to one of {more} other functions"),
        _ => format!(" with a jump to {}", others.join(", ")),
    }
}

impl Scope for ProbedKernel<'_> {
    fn variable(&self, name: &str) -> Result<Option<(u64, bool)>> {
        let all = self.symbols.get(name).map_or(&[][..], |all| all);
        let mut data = all.iter().filter(|it| !it.is_code);
        let Some(first) = data.next() else { return Ok(None) };
        ensure!(data.next().is_none(), "the kernel has several variables {name}");
        Ok(Some((first.address, first.per_cpu)))
    }

    fn similar(&self, name: &str) -> Vec<String> {
        let most = 1 + name.len() / 4;
        let mut near: Vec<(usize, &str)> = self
            .symbols
            .keys()
            .filter(|known| known.len().abs_diff(name.len()) <= most)
            .map(|known| (crate::sql::distance(name, known), *known))
            .filter(|(steps, _)| *steps <= most)
            .collect();
        near.sort_unstable();
        near.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
    }
}
