//! What the old kernel says about the code of a call and its callee.
//!
//! Input: the kernel. Output: lookups: which instructions the kernel writes, where control goes on
//! behind a fault, the unwinder's state at an instruction; and the tables' entries for code that is
//! written once more.

use super::written::{CALL, Written};
use crate::frames::{FrameForm, UnwindState};
use crate::kept_apart;
use crate::kernel::{Additions, EntryValues, KernelFile, KernelSymbol};
use crate::orc::UnwindTable;
use crate::table_forms::{EntryForm, TABLES, TableEntry};
use crate::tables;
use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// The table of direct calls, and that of returns. objtool makes both.
const CALLS: &str = ".call_sites";
const RETURNS: &str = ".return_sites";
/// The table of indirect calls by thunks, which objtool makes as well.
const RETPOLINES: &str = ".retpoline_sites";
/// Tables whose entries name entries of functions, or symbols: inlined code has none.
const OF_FUNCTIONS: [&str; 5] =
    ["__mcount_loc", ".ibt_endbr_seal", ".cfi_sites", "__ksymtab", "__ksymtab_gpl"];

/// The numbers in an unwinder's state, from the newest kernels on: 7.2 numbers the registers
/// otherwise; up to 6.3 an ordinary frame is 0.
const FRAMES: [FrameForm; 3] = [
    FrameForm { call_frame: 2, stack_pointer: 3, frame_pointer: 4, frame_end: 8 },
    FrameForm { call_frame: 2, stack_pointer: 5, frame_pointer: 4, frame_end: 1 },
    FrameForm { call_frame: 0, stack_pointer: 5, frame_pointer: 4, frame_end: 1 },
];

/// A table whose form is known.
struct KnownTable {
    name: &'static str,
    form: &'static EntryForm,
    entries: Vec<TableEntry>,
    /// The numbers of the entries by their site.
    by_site: BTreeMap<u64, Vec<usize>>,
}

pub(super) struct Facts<'k, 'd> {
    pub kernel: &'k KernelFile<'d>,
    pub form: FrameForm,
    states: UnwindTable,
    tables: Vec<KnownTable>,
    /// Alternatives and paravirt sites: where each begins, and its bytes.
    pub opaque: BTreeMap<u64, u64>,
    /// The static keys, each with the target of its jump.
    pub keys: HashMap<u64, u64>,
    pub returns: HashSet<u64>,
    /// Static calls and calls through thunks: the kernel writes them.
    pub patched: HashSet<u64>,
    /// The calls and jumps through thunks.
    pub retpolines: HashSet<u64>,
    /// Where control goes on behind faults.
    pub fixups: BTreeMap<u64, Vec<u64>>,
    tracers: HashSet<u64>,
    not_probed: HashSet<u64>,
    /// The functions by address, each with its end.
    functions: BTreeMap<u64, u64>,
    apart: Vec<Range<u64>>,
}

impl<'k, 'd> Facts<'k, 'd> {
    pub(super) fn of(kernel: &'k KernelFile<'d>) -> Result<Self> {
        let states = UnwindTable::read(kernel).map_err(anyhow::Error::msg)?;
        let states = states.context("the kernel has no unwinder's table")?;
        let mut known = Vec::new();
        for table in TABLES {
            let Some(found) = table.find(kernel) else { continue };
            let form = table.form(&found, kernel);
            let form = form.with_context(|| format!("{}: its form is not known", table.name))?;
            let entries = table.entries(form, &found);
            let mut by_site: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
            for (number, entry) in entries.iter().enumerate() {
                by_site.entry(entry.values[0].0).or_default().push(number);
            }
            known.push(KnownTable { name: table.name, form, entries, by_site });
        }
        let sites = |name: &str| -> HashSet<u64> {
            let table = known.iter().find(|table| table.name == name);
            table.into_iter().flat_map(|table| table.by_site.keys().copied()).collect()
        };
        let mut opaque: BTreeMap<u64, u64> = BTreeMap::new();
        for table in &known {
            let Some(length) = table.form.overwritten else { continue };
            for entry in &table.entries {
                let bytes = opaque.entry(entry.values[0].0).or_default();
                *bytes = (*bytes).max(table.form.number(entry, length));
            }
        }
        let mut fixups: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (from, to) in tables::fixups(kernel) {
            fixups.entry(from).or_default().push(to);
        }
        let mut functions: BTreeMap<u64, u64> = BTreeMap::new();
        // Compilers give the parts of functions that they put elsewhere no type.
        let is_code = |s: &&KernelSymbol| {
            let section = s.section.map(|section| &kernel.sections[section]);
            s.size > 0 && section.is_some_and(|section| section.executable)
        };
        for symbol in kernel.symbols.iter().filter(is_code) {
            let end = functions.entry(symbol.addr.0).or_default();
            *end = (*end).max(symbol.addr.0.saturating_add(symbol.size));
        }
        let mut patched = sites(".static_call_sites");
        let retpolines = sites(RETPOLINES);
        patched.extend(&retpolines);
        Ok(Facts {
            kernel,
            form: frame_form(&states, sites("__mcount_loc").iter())?,
            states,
            patched,
            retpolines,
            opaque,
            keys: tables::static_keys(kernel),
            returns: sites(RETURNS),
            fixups,
            tracers: sites("__mcount_loc"),
            not_probed: not_probed(kernel),
            functions,
            apart: kept_apart::parts(kernel),
            tables: known,
        })
    }

    /// The unwinder's state at an instruction of the old kernel.
    pub(super) fn state(&self, at: u64) -> Result<UnwindState> {
        self.states.state(at).with_context(|| format!("the unwinder has no state at {at:x}"))
    }

    /// The end of the function that begins at an address.
    pub(super) fn function(&self, at: u64) -> Option<u64> {
        self.functions.get(&at).copied()
    }

    pub(super) fn is_kept_apart(&self, at: u64) -> bool {
        self.apart.iter().any(|part| part.contains(&at))
    }

    /// Whether an address lies in an alternative.
    pub(super) fn is_opaque(&self, at: u64) -> bool {
        let near = self.opaque.range(at.saturating_sub(255)..=at);
        near.into_iter().any(|(&start, &bytes)| at < start + bytes)
    }

    /// The callee of a direct call that the kernel does not write, and that code follows in its
    /// function.
    pub(super) fn plain_call(&self, at: u64) -> Result<u64> {
        let call = self.call(at, CALLS)?;
        ensure!(call.len() == CALL as usize, "{call} is there");
        ensure!(!self.patched.contains(&at), "the kernel writes the call");
        Ok(call.near_branch64())
    }

    /// The direct call at an address, which code follows in its function, and which no table names
    /// but one. `named_by`: that table.
    pub(super) fn call(&self, at: u64, named_by: &str) -> Result<Instruction> {
        let call = self.instructions_around(at)?.find(|i| i.ip() >= at);
        let call = call.filter(|i| i.ip() == at).context("no instruction begins there")?;
        ensure!(call.code() == Code::Call_rel32_64, "{call} is there");
        ensure!(!self.is_opaque(at), "the kernel writes the call");
        let behind = call.next_ip();
        let follows = self.functions.range(..=at).next_back().is_some_and(|(_, &end)| behind < end);
        ensure!(follows, "no code follows it");
        let mut others = self.tables.iter().filter(|table| table.name != named_by);
        if let Some(table) = others.find(|table| table.by_site.range(at..behind).next().is_some()) {
            bail!("{} names the call", table.name);
        }
        Ok(call)
    }

    /// The instructions of the function that holds an address.
    pub(super) fn instructions_around(&self, at: u64) -> Result<impl Iterator<Item = Instruction>> {
        let owner = self.functions.range(..=at).next_back();
        let (&start, &end) = owner.filter(|&(_, &end)| at < end).context("no function holds it")?;
        let code = self.kernel.bytes(start, end - start).context("no bytes")?;
        Ok(Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter())
    }

    /// Whether a function, or code with a symbol of its own, begins at an address.
    pub(super) fn is_entry(&self, at: u64) -> bool {
        let holder = self.functions.range(..at).next_back();
        let is_inside = holder.is_some_and(|(_, &end)| at < end);
        self.function(at).is_some() || !is_inside && !self.kernel.symbols_at(at).is_empty()
    }

    /// The replacements of the alternatives that begin at an instruction: address, bytes, and the
    /// bytes that they replace.
    pub(super) fn replacements(&self, at: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let table = self.tables.iter().find(|table| table.name == ".altinstructions");
        table.into_iter().flat_map(move |table| {
            let numbers = table.by_site.get(&at).into_iter().flatten();
            numbers.filter_map(|&number| {
                let (entry, length) = (&table.entries[number], table.form.overwritten?);
                let bytes = |field| table.form.number(entry, field);
                Some((entry.values[1].0, bytes(length + 1), bytes(length)))
            })
        })
    }

    /// Where the code of a function begins behind its tracer's site.
    pub(super) fn behind_tracer(&self, entry: u64) -> Result<u64> {
        /// `endbr64`.
        const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
        ensure!(self.function(entry).is_some(), "{entry:x} is no function's entry");
        ensure!(!self.not_probed.contains(&entry), "the callee may not be probed");
        ensure!(!self.is_kept_apart(entry), "the callee is kept apart");
        let guard = match self.kernel.bytes(entry, 4) == Some(&ENDBR) {
            true => ENDBR.len() as u64,
            false => 0,
        };
        let site = entry + guard;
        ensure!(self.tracers.contains(&site), "no tracer's site is at the callee's entry");
        Ok(site + CALL)
    }

    /// Adds the entries of code that was written once more, in the order of the old ones.
    pub(super) fn add_entries(
        &self,
        written: &[Written],
        places: &HashMap<u64, u64>,
        additions: &mut Additions,
    ) -> Result<()> {
        for table in &self.tables {
            if OF_FUNCTIONS.contains(&table.name) {
                continue;
            }
            let mut found: Vec<(usize, u64)> = Vec::new();
            for w in written {
                for (&at, numbers) in table.by_site.range(w.old..w.old + w.old_len) {
                    if !w.stays {
                        let expected = table.name == RETURNS && !w.calls || table.name == CALLS;
                        ensure!(expected, "{} names {at:x}, which is not inlined", table.name);
                        continue;
                    }
                    found.extend(numbers.iter().map(|&number| (number, w.new + (at - w.old))));
                }
            }
            found.sort_unstable();
            let added = additions.entries.entry(table.name).or_default();
            for (number, site) in found {
                added.push(copied(table.form, &table.entries[number], site, places));
            }
            if table.name == CALLS && !table.entries.is_empty() {
                let calls = written.iter().filter(|w| w.calls);
                added.extend(calls.map(|w| {
                    let mut values = EntryValues::default();
                    values[0].0 = w.new;
                    values
                }));
            }
        }
        Ok(())
    }
}

/// An entry for the instruction that is at `site` now.
fn copied(
    form: &EntryForm,
    entry: &TableEntry,
    site: u64,
    places: &HashMap<u64, u64>,
) -> EntryValues {
    let mut values = entry.values;
    values[0].0 = site;
    for (field, value) in values.iter_mut().enumerate().skip(1) {
        if form.is_address(field)
            && let Some(&now) = places.get(&value.0)
        {
            value.0 = now;
        }
    }
    values
}

/// The form of the unwinder's states: in it, nearly every function has an empty frame at its
/// tracer's site.
fn frame_form<'s>(
    states: &UnwindTable,
    tracers: impl Iterator<Item = &'s u64>,
) -> Result<FrameForm> {
    let at_entries: Vec<UnwindState> = tracers.filter_map(|&at| states.state(at)).collect();
    let fits = |form: &&FrameForm| {
        let empty = |state: &&UnwindState| {
            state[..2] == [8, 0]
                && state[4] & 0xf == form.stack_pointer
                && state[5] == form.call_frame
        };
        at_entries.iter().filter(empty).count() * 20 > at_entries.len() * 19
    };
    FRAMES.iter().find(fits).copied().context("the unwinder's states have no known form")
}

/// The functions that may not be probed (`NOKPROBE_SYMBOL`, include/asm-generic/kprobes.h).
fn not_probed(kernel: &KernelFile) -> HashSet<u64> {
    let bounds = ["__start_kprobe_blacklist", "__stop_kprobe_blacklist"];
    let [Some(from), Some(to)] = bounds.map(|name| kernel.symbol(name)) else {
        return HashSet::new();
    };
    (from..to).step_by(8).filter_map(|at| kernel.u64_at(at)).collect()
}
