//! The functions and variables of a kernel that probes name.

use crate::probe::ProbedPositions;
use crate::probe::compile::{NamedValue, Scope, SiteValue, ValueType};
use crate::probe::syntax::ProbePlace;
use anyhow::{Context, Result, bail, ensure};
use image::address::LinkAddr;
use image::btf::Btf;
use image::exits::FunctionExits;
use image::locals::{LocalPlace, LocalStart, LocalStep, LocalVariable};
use image::source_lines::SourceLines;
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};
use std::collections::BTreeMap;
use std::ops::Range;
use trace::probe::{ProbeValue, REGISTERS, ValueStart, ValueStep};

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
    bytes: &'a [u8],
    elf: object::File<'a>,
    symbols: BTreeMap<&'a str, Vec<KernelSymbol>>,
    /// Symbols of code.
    by_address: Vec<KernelSymbol>,
}

/// A place that was found.
#[derive(Default)]
pub(super) struct FoundPlace {
    /// The function whose parameters have names there.
    pub function: Option<String>,
    /// The instructions, each with the values that have names there.
    pub points: Vec<(u64, Vec<NamedValue>)>,
    /// What the rows lack.
    pub note: Option<String>,
    /// The positions in the recording that have rows, ascending. `None`: all.
    pub positions: Option<Vec<u64>>,
}

impl FoundPlace {
    fn at(function: Option<&str>, addresses: Vec<u64>) -> FoundPlace {
        let points = addresses.into_iter().map(|at| (at, Vec::new())).collect();
        FoundPlace { function: function.map(str::to_owned), points, ..FoundPlace::default() }
    }
}

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
        let code = symbols.values().flatten().filter(|it| it.is_code && it.size > 0);
        let mut by_address: Vec<KernelSymbol> = code.copied().collect();
        by_address.sort_unstable_by_key(|it| it.address);
        Ok(ProbedKernel { btf, bytes: vmlinux, elf, symbols, by_address })
    }

    /// The instructions of a place. `positions`: finds those of a question, or of accesses.
    pub(super) fn find(
        &self,
        place: &ProbePlace,
        positions: &dyn Fn(&ProbePlace) -> Result<ProbedPositions>,
    ) -> Result<FoundPlace> {
        match place {
            ProbePlace::Entry(name) => {
                let function = self.function(name)?;
                Ok(FoundPlace::at(Some(name), vec![function.address]))
            }
            ProbePlace::Offset(name, offset) => {
                let function = self.function(name)?;
                ensure!(
                    *offset < function.size,
                    "{name} has {:#x} bytes, and the instruction at +{offset:#x} is not in it",
                    function.size
                );
                let found = FoundPlace::at(Some(name), vec![function.address + offset]);
                self.with_variables(&self.lines()?, found)
            }
            ProbePlace::Address(address) => {
                let of = self.symbols.iter().find(|(_, all)| {
                    all.iter().any(|it| {
                        it.is_code && (it.address..it.address + it.size).contains(address)
                    })
                });
                ensure!(of.is_some(), "no function of the kernel has the address {address:#x}");
                let found = FoundPlace::at(of.map(|(name, _)| *name), vec![*address]);
                self.with_variables(&self.lines()?, found)
            }
            ProbePlace::Return(name) => self.returns(name),
            ProbePlace::Line(file, line) => {
                let lines = self.lines()?;
                self.with_variables(&lines, FoundPlace::at(None, line_of(&lines, file, *line)?))
            }
            ProbePlace::Tracepoint(name) => {
                let (sites, indirect) = self.tracepoint(name)?;
                let note = (indirect > 0).then(|| {
                    format!(
                        "{indirect} places report {name} by way of a function that does not run \
                         while the tracepoint is off: they have no rows"
                    )
                });
                let points = sites.into_iter().map(|site| (site.at, site.values)).collect();
                Ok(FoundPlace { points, note, ..FoundPlace::default() })
            }
            ProbePlace::Access(_) | ProbePlace::Rows(_) => {
                let ProbedPositions { mut positions, mut addresses } = positions(place)?;
                positions.sort_unstable();
                positions.dedup();
                addresses.sort_unstable();
                addresses.dedup();
                let found = FoundPlace::at(None, addresses);
                Ok(FoundPlace { positions: Some(positions), ..found })
            }
        }
    }

    /// Where a function returns.
    fn returns(&self, name: &str) -> Result<FoundPlace> {
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
        Ok(FoundPlace { note, ..FoundPlace::at(Some(name), returns) })
    }

    /// What the vmlinux says of source lines and variables: nothing, without DWARF.
    fn lines(&self) -> Result<SourceLines<'a>> {
        SourceLines::read(self.bytes)
    }

    /// Adds the variables that are in scope at each instruction.
    fn with_variables(&self, lines: &SourceLines<'_>, mut found: FoundPlace) -> Result<FoundPlace> {
        for (at, names) in &mut found.points {
            for variable in lines.variables_at(*at)? {
                names.push(self.local(variable)?);
            }
        }
        Ok(found)
    }

    fn local(&self, variable: LocalVariable) -> Result<NamedValue> {
        let of = match &variable.of {
            Some((name, 0)) => self.btf.type_named(name)?.map(ValueType::Known),
            Some((name, pointers)) => {
                Some(ValueType::Pointers(self.btf.type_named(name)?, *pointers))
            }
            None => None,
        };
        let value = match (&of, variable.place) {
            (None, _) => Err("its type has no name"),
            (_, None) => Err("the compiler keeps it nowhere at this instruction"),
            (Some(_), Some(place)) => Ok(site_value(&place)),
        };
        let of = of.unwrap_or(ValueType::Word);
        Ok(NamedValue { name: variable.name, of, value })
    }

    /// The addresses of a variable's bytes.
    pub(super) fn data_symbol(&self, name: &str) -> Option<Range<u64>> {
        let symbol = self.symbols.get(name)?.iter().find(|it| !it.is_code)?;
        Some(symbol.address..symbol.address + symbol.size.max(1))
    }

    /// The variables at an address.
    pub(super) fn data_symbols_at(&self, address: u64) -> Vec<&'a str> {
        let at = self
            .symbols
            .iter()
            .filter(|(_, all)| all.iter().any(|it| !it.is_code && it.address == address));
        at.map(|(name, _)| *name).collect()
    }

    /// The address of a symbol.
    pub(super) fn address_of(&self, name: &str) -> Option<u64> {
        self.symbols.get(name)?.first().map(|it| it.address)
    }

    /// Loaded bytes.
    pub(super) fn loaded(&self, at: u64, bytes: u64) -> Result<&'a [u8]> {
        let section = self.elf.sections().find(|section| {
            let end = section.address().saturating_add(section.size());
            section.address() > 0 && (section.address()..end).contains(&at)
        });
        let found = section.and_then(|section| section.data_range(at, bytes).ok().flatten());
        found.with_context(|| format!("the vmlinux has no data at {at:#x}"))
    }

    /// The code from an address to the end of its function.
    pub(super) fn code_from(&self, at: u64) -> Option<&'a [u8]> {
        let symbol = self.code_at(at)?;
        self.loaded(at, symbol.address + symbol.size - at).ok()
    }

    fn code_at(&self, at: u64) -> Option<KernelSymbol> {
        let before = self.by_address.partition_point(|it| it.address <= at);
        let near = self.by_address[..before].iter().rev().take(8);
        near.copied().find(|it| at < it.address + it.size)
    }

    /// Names with something in front that are similar behind it.
    pub(super) fn similar_behind(&self, front: &str, name: &str) -> Vec<String> {
        let most = 1 + name.len() / 4;
        let known = self.symbols.keys().filter_map(|known| known.strip_prefix(front));
        let mut near: Vec<(usize, &str)> = known
            .filter(|known| known.len().abs_diff(name.len()) <= most)
            .map(|known| (crate::sql::distance(name, known), known))
            .filter(|(steps, _)| *steps <= most)
            .collect();
        near.sort_unstable();
        near.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
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

/// The first instruction of each stretch of code that a source line has.
fn line_of(lines: &SourceLines<'_>, file: &str, line: u64) -> Result<Vec<u64>> {
    ensure!(
        lines.known(),
        "the kernel's vmlinux has no lines: give one with DWARF (CONFIG_DEBUG_INFO), as \
         distributions have in their packages of debugging symbols"
    );
    let known = lines.lines_of(file)?;
    ensure!(!known.is_empty(), "the kernel has no code of a file {file}");
    let line = u32::try_from(line).unwrap_or(u32::MAX);
    match known.get(&line) {
        Some(addresses) => Ok(addresses.clone()),
        None => {
            let before = known.range(..line).next_back();
            let near: Vec<String> = before
                .into_iter()
                .chain(known.range(line..).next())
                .map(|(line, _)| line.to_string())
                .collect();
            bail!("line {line} of {file} has no code; near it have: {}", near.join(", "))
        }
    }
}

/// The general registers by their numbers in DWARF (System V ABI, figure 3.36).
const DWARF_REGISTERS: [&str; 16] = [
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

fn site_value(place: &LocalPlace) -> SiteValue {
    let start = match place.start {
        LocalStart::Number(number) => ValueStart::Number(number),
        LocalStart::Register(number) => {
            let name = DWARF_REGISTERS.get(usize::from(number));
            let number = REGISTERS.iter().position(|known| Some(known) == name);
            ValueStart::Register(number.unwrap_or_default() as u8)
        }
    };
    let steps = place.steps.iter().map(|step| match step {
        LocalStep::Add(more) => ValueStep::Add(*more),
        LocalStep::Load => ValueStep::Load(8, false),
    });
    let program = ProbeValue { start, steps: steps.collect() };
    match place.in_memory {
        true => SiteValue::Address(program),
        false => SiteValue::Number(program),
    }
}

pub(super) fn near(similar: &[String]) -> String {
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
        self.similar_behind("", name)
    }
}
