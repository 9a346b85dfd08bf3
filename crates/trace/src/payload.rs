//! Encodes records into payloads and decodes them. Bytes that are not a record give a named
//! [`Violation`]. Decoding never reads past the end, and never allocates more than the payload's
//! size justifies.
//!
//! ```text
//! HEAD  text build_id  text workload  u64 seed  u32 count  count × (text key, text value)
//!       of several CPUs: u32 cpus
//!       text: u32 size, UTF-8
//! TRAN  × (u64 address  u16 instructions  instructions × u8 length  code)
//! TASK  × (u64 pointer  u8 pid known (0, 1)  u32 pid  16 bytes comm)
//! MODS  × (u32 next translation  u8 kind (0 loaded, 1 unloaded)  u32 load;
//!       loaded: text name  text build_id  u32 sections
//!       sections × (text name  u64 address  u64 size))
//! PATT  × (u32 translation  2 × u64 physical address  u16 sites  × u16 site)
//! DATA  see `access_encoder`, `access_decoder`
//! STRM  × u32 word
//! END   u64 kernel instructions, user instructions, executions, left, translations, tasks, hash;
//!       with data accesses also loads, stores, mappings, checksum
//! ```

use crate::access::UNKNOWN;
use crate::{
    AccessPattern, AccessSite, AccessTotals, CpuCount, LoadedModule, ModuleChange, ModuleId,
    ModuleSection, RecordingHeader, RecordingTotals, RunAddr, Task, TaskId, TaskPointer,
    Translation, TranslationId, Violation,
};

pub(crate) fn put_header(header: &RecordingHeader, out: &mut Vec<u8>) -> Result<(), Violation> {
    put_text(&header.build_id, "the build id", out)?;
    put_text(&header.workload, "the workload's name", out)?;
    out.extend(header.seed.to_le_bytes());
    let count = u32::try_from(header.conditions.len())
        .map_err(|_| Violation::TooLong { what: "the list of conditions" })?;
    out.extend(count.to_le_bytes());
    for (key, value) in &header.conditions {
        put_text(key, "a condition", out)?;
        put_text(value, "a condition", out)?;
    }
    if header.cpus != CpuCount::ONE {
        out.extend(u32::from(header.cpus.get()).to_le_bytes());
    }
    Ok(())
}

/// `several_cpus`: the version is that of a recording of several CPUs.
pub(crate) fn take_header(
    payload: &[u8],
    several_cpus: bool,
) -> Result<RecordingHeader, Violation> {
    let mut from = PayloadCursor { rest: payload, what: "the header" };
    let build_id = from.text()?;
    let workload = from.text()?;
    let seed = from.u64()?;
    let count = from.u32()?;
    // Each condition has at least two sizes. So a wrong count runs out of bytes before it costs
    // memory.
    let mut conditions = Vec::new();
    for _ in 0..count {
        conditions.push((from.text()?, from.text()?));
    }
    let cpus = match several_cpus {
        false => CpuCount::ONE,
        true => {
            let cpus = from.u32()?;
            let several = CpuCount::new(cpus).filter(|&count| count != CpuCount::ONE);
            several.ok_or(Violation::CpuCount { cpus })?
        }
    };
    from.finish()?;
    Ok(RecordingHeader { build_id, workload, seed, cpus, modules: false, conditions })
}

/// The translation must have passed [`Tally::define`](crate::tally::Tally::define).
pub(crate) fn put_translation(translation: &Translation, out: &mut Vec<u8>) {
    out.extend(translation.addr.0.to_le_bytes());
    out.extend((translation.lengths.len() as u16).to_le_bytes());
    out.extend_from_slice(&translation.lengths);
    out.extend_from_slice(&translation.code);
}

/// The translations of a chunk. The first one has number `first`.
pub(crate) fn take_translations(payload: &[u8], first: u32) -> Result<Vec<Translation>, Violation> {
    let mut from = PayloadCursor { rest: payload, what: "a translation" };
    let mut translations = Vec::new();
    while !from.rest.is_empty() {
        let id = TranslationId(next_id(first, translations.len())?);
        let addr = RunAddr(from.u64()?);
        let instructions = usize::from(from.u16()?);
        let lengths: Box<[u8]> = from.bytes(instructions)?.into();
        let code = from.bytes(lengths.iter().map(|&length| usize::from(length)).sum())?.into();
        translations.push(Translation { id, addr, lengths, code });
    }
    Ok(translations)
}

pub(crate) fn put_task(task: &Task, out: &mut Vec<u8>) {
    out.extend(task.pointer.0.to_le_bytes());
    out.push(task.pid.is_some().into());
    out.extend(task.pid.unwrap_or(0).to_le_bytes());
    out.extend(task.comm);
}

/// The tasks of a chunk. The first one has number `first`.
pub(crate) fn take_tasks(payload: &[u8], first: u32) -> Result<Vec<Task>, Violation> {
    let mut from = PayloadCursor { rest: payload, what: "a task" };
    let mut tasks = Vec::new();
    while !from.rest.is_empty() {
        let id = TaskId(next_id(first, tasks.len())?);
        let pointer = TaskPointer(from.u64()?);
        let known = match from.array::<1>()? {
            [0] => false,
            [1] => true,
            [other] => return Err(Violation::Flag(other)),
        };
        let pid = Some(from.u32()?).filter(|_| known);
        tasks.push(Task { id, pointer, pid, comm: from.array()? });
    }
    Ok(tasks)
}

/// `next`: the number of the next translation.
pub(crate) fn put_module(
    change: &ModuleChange,
    next: u32,
    out: &mut Vec<u8>,
) -> Result<(), Violation> {
    out.extend(next.to_le_bytes());
    let LoadedModule { id, name, build_id, large_pages, sections } = match change {
        ModuleChange::Loaded(module) => module,
        ModuleChange::Unloaded(id) => {
            out.push(1);
            out.extend(id.0.to_le_bytes());
            return Ok(());
        }
    };
    out.push(if *large_pages { 2 } else { 0 });
    out.extend(id.0.to_le_bytes());
    put_text(name, "the name of a module", out)?;
    put_text(build_id, "the build id of a module", out)?;
    let count = u32::try_from(sections.len())
        .map_err(|_| Violation::TooLong { what: "the list of a module's sections" })?;
    out.extend(count.to_le_bytes());
    for section in sections {
        put_text(&section.name, "the name of a section", out)?;
        out.extend(section.addr.0.to_le_bytes());
        out.extend(section.size.to_le_bytes());
    }
    Ok(())
}

/// `next`: the number of the next translation, which each change must name.
pub(crate) fn take_modules(payload: &[u8], next: u32) -> Result<Vec<ModuleChange>, Violation> {
    let mut from = PayloadCursor { rest: payload, what: "a module" };
    let mut changes = Vec::new();
    while !from.rest.is_empty() {
        let named = from.u32()?;
        if named != next {
            return Err(Violation::ModuleMisplaced { named, next });
        }
        let [kind] = from.array::<1>()?;
        let id = ModuleId(from.u32()?);
        changes.push(match kind {
            0 | 2 => {
                let large_pages = kind == 2;
                let (name, build_id) = (from.text()?, from.text()?);
                let mut sections = Vec::new();
                for _ in 0..from.u32()? {
                    let name = from.text()?;
                    let (addr, size) = (RunAddr(from.u64()?), from.u64()?);
                    sections.push(ModuleSection { name, addr, size });
                }
                ModuleChange::Loaded(LoadedModule { id, name, build_id, large_pages, sections })
            }
            1 => ModuleChange::Unloaded(id),
            other => return Err(Violation::Flag(other)),
        });
    }
    Ok(changes)
}

pub(crate) fn put_pattern(pattern: &AccessPattern, out: &mut Vec<u8>) {
    out.extend(pattern.translation.0.to_le_bytes());
    for addr in pattern.physical {
        out.extend(addr.unwrap_or(UNKNOWN).to_le_bytes());
    }
    out.extend((pattern.sites.len() as u16).to_le_bytes());
    pattern.sites.iter().for_each(|site| out.extend(site.0.to_le_bytes()));
}

pub(crate) fn take_patterns(payload: &[u8]) -> Result<Vec<AccessPattern>, Violation> {
    let mut from = PayloadCursor { rest: payload, what: "a pattern" };
    let mut patterns = Vec::new();
    while !from.rest.is_empty() {
        let translation = TranslationId(from.u32()?);
        let physical = [from.u64()?, from.u64()?].map(|addr| (addr != UNKNOWN).then_some(addr));
        let count = usize::from(from.u16()?);
        let (sites, _) = from.bytes(2 * count)?.as_chunks::<2>();
        patterns.push(AccessPattern {
            translation,
            physical,
            sites: sites.iter().map(|&site| AccessSite(u16::from_le_bytes(site))).collect(),
        });
    }
    Ok(patterns)
}

pub(crate) fn put_stream(words: &[u32], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + 4 * words.len(), 0);
    // In this form the loop becomes a copy of memory on little-endian machines.
    for (bytes, word) in out[start..].as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
}

pub(crate) fn take_stream(payload: &[u8]) -> Result<Vec<u32>, Violation> {
    let (words, rest) = payload.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(Violation::Surplus { bytes: rest.len() });
    }
    Ok(words.iter().map(|&word| u32::from_le_bytes(word)).collect())
}

pub(crate) fn put_totals(totals: &RecordingTotals, out: &mut Vec<u8>) {
    for (_, value) in named(totals) {
        out.extend(value.to_le_bytes());
    }
    for (_, value) in totals.data.iter().flat_map(named_data) {
        out.extend(value.to_le_bytes());
    }
}

pub(crate) fn take_totals(payload: &[u8], with_data: bool) -> Result<RecordingTotals, Violation> {
    let mut from = PayloadCursor { rest: payload, what: "the clean end" };
    let mut totals = RecordingTotals {
        kernel_instructions: from.u64()?,
        user_instructions: from.u64()?,
        executions: from.u64()?,
        left: from.u64()?,
        translations: from.u64()?,
        tasks: from.u64()?,
        hash: from.u64()?,
        data: None,
    };
    if with_data {
        totals.data = Some(AccessTotals {
            loads: from.u64()?,
            stores: from.u64()?,
            mappings: from.u64()?,
            checksum: u32::try_from(from.u64()?)
                .map_err(|_| Violation::TooLong { what: "the checksum" })?,
        });
    }
    from.finish()?;
    Ok(totals)
}

/// The totals in the order of the file, with their names for messages.
pub(crate) fn named(totals: &RecordingTotals) -> [(&'static str, u64); 7] {
    [
        ("kernel instructions", totals.kernel_instructions),
        ("user instructions", totals.user_instructions),
        ("executions", totals.executions),
        ("left midway", totals.left),
        ("translations", totals.translations),
        ("tasks", totals.tasks),
        ("hash", totals.hash),
    ]
}

/// The totals of the data accesses in the order of the file, with their names for messages.
pub(crate) fn named_data(totals: &AccessTotals) -> [(&'static str, u64); 4] {
    [
        ("loads", totals.loads),
        ("stores", totals.stores),
        ("mappings", totals.mappings),
        ("checksum of the accesses", totals.checksum.into()),
    ]
}

fn next_id(first: u32, index: usize) -> Result<u32, Violation> {
    u32::try_from(index).ok().and_then(|index| first.checked_add(index)).ok_or(Violation::TooMany)
}

fn put_text(text: &str, what: &'static str, out: &mut Vec<u8>) -> Result<(), Violation> {
    let size = u32::try_from(text.len()).map_err(|_| Violation::TooLong { what })?;
    out.extend(size.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// Takes values from the front of a payload.
struct PayloadCursor<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> PayloadCursor<'a> {
    fn bytes(&mut self, size: usize) -> Result<&'a [u8], Violation> {
        let (taken, rest) =
            self.rest.split_at_checked(size).ok_or(Violation::Short { what: self.what })?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Violation> {
        let (taken, rest) =
            self.rest.split_first_chunk().ok_or(Violation::Short { what: self.what })?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, Violation> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Violation> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Violation> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, Violation> {
        let size = self.u32()? as usize;
        String::from_utf8(self.bytes(size)?.to_vec())
            .map_err(|_| Violation::NotText { what: self.what })
    }

    fn finish(self) -> Result<(), Violation> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(Violation::Surplus { bytes }),
        }
    }
}
