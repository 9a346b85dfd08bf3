//! A recording as text for people, or as JSON with one object per line.
//!
//! Input: a reader and a writer. Output: the damage that ended the reading, if any. Everything
//! before the damage is printed.

use execution::walk::chunks;
use serde_json::json;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use trace::{
    AccessPatterns, AccessSite, Accesses, Chunk, CpuCount, FrameUse, FrameUseChange, Mapping,
    ModuleChange, ModuleSection, PageKind, ReadError, RecordingHeader, RecordingReader,
    RecordingTotals, StreamEvent, Task, Translation, TranslationId, events,
};

/// The form of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpForm {
    /// Lines of text for people.
    Text,
    /// One object per line: first `header`, then `task`, `translation`, `executed`, `left`,
    /// `switch`, `marker`, `woken`, `clock`, `use`, `mapping`, `load`, `store`, `pattern`, last
    /// `totals`.
    Json,
}

/// What to print in addition to header, tasks and totals.
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpSections {
    /// The translation blocks.
    pub translations: bool,
    /// The events, with data accesses.
    pub stream: bool,
    /// The largest number of events to print; `None` for all.
    pub limit: Option<u64>,
}

/// Prints the whole recording; returns its damage, if any.
///
/// # Errors
/// Writing fails. Damage of the recording is not an error.
pub fn dump<R: Read>(
    mut reader: RecordingReader<R>,
    form: DumpForm,
    sections: DumpSections,
    out: &mut impl Write,
) -> io::Result<Option<ReadError>> {
    let mut printer = DumpPrinter {
        out,
        form,
        sections,
        events_left: sections.limit.unwrap_or(u64::MAX),
        translations: Vec::new(),
        tasks: Vec::new(),
    };
    printer.header(reader.version(), reader.header())?;
    let damage = chunks(&mut reader, |chunk, state| {
        printer.chunk(chunk, state.accesses).map(ControlFlow::Continue)
    })?
    .err();
    if let Some((_, patterns)) = reader.accesses().filter(|_| sections.translations) {
        patterns.translations().try_for_each(|id| printer.pattern(id, patterns))?;
    }
    printer.totals(&reader.totals_so_far(), damage.as_ref())?;
    Ok(damage)
}

struct DumpPrinter<'a, W: Write> {
    out: &'a mut W,
    form: DumpForm,
    sections: DumpSections,
    events_left: u64,
    /// The translation blocks so far, by id: address and number of instructions.
    translations: Vec<(trace::RunAddr, u32)>,
    tasks: Vec<String>,
}

impl<W: Write> DumpPrinter<'_, W> {
    fn header(&mut self, format: u32, header: &RecordingHeader) -> io::Result<()> {
        let RecordingHeader { build_id, workload, seed, cpus, modules: _, conditions } = header;
        if self.form == DumpForm::Json {
            let conditions: Vec<_> =
                conditions.iter().map(|(key, value)| json!([key, value])).collect();
            let mut header = json!({
                "format": format,
                "build_id": build_id,
                "workload": workload,
                "seed": seed,
                "conditions": conditions,
            });
            if *cpus != CpuCount::ONE {
                header["cpus"] = cpus.get().into();
            }
            return writeln!(self.out, "{}", json!({ "header": header }));
        }
        let own = [
            ("format", format.to_string()),
            ("kernel", build_id.clone()),
            ("workload", workload.clone()),
            ("seed", seed.to_string()),
            ("cpus", cpus.get().to_string()),
        ];
        let own = own.iter().take(if *cpus == CpuCount::ONE { 4 } else { 5 });
        let own = own.map(|(key, value)| (*key, value.as_str()));
        for (key, value) in
            own.chain(conditions.iter().map(|(key, value)| (key.as_str(), value.as_str())))
        {
            writeln!(self.out, "{key:<18} {}", value.escape_debug())?;
        }
        Ok(())
    }

    fn chunk(
        &mut self,
        chunk: Chunk,
        accesses: Option<(&Accesses, &AccessPatterns)>,
    ) -> io::Result<()> {
        match chunk {
            Chunk::Tasks(tasks) => tasks.iter().try_for_each(|task| self.task(task)),
            Chunk::Modules(changes) => changes.iter().try_for_each(|change| self.module(change)),
            Chunk::Translations(translations) => {
                translations.iter().try_for_each(|translation| self.translation(translation))
            }
            Chunk::Stream(words) if self.sections.stream => match accesses {
                None => events(&words).try_for_each(|event| self.event(event)),
                Some((accesses, patterns)) => self.stream_with_data(&words, accesses, patterns),
            },
            Chunk::Stream(_) | Chunk::End(_) => Ok(()),
        }
    }

    fn module(&mut self, change: &ModuleChange) -> io::Result<()> {
        match (change, self.form) {
            (ModuleChange::Loaded(module), DumpForm::Json) => {
                let section = |section: &ModuleSection| {
                    let addr = section.addr.to_string();
                    json!({"name": section.name, "addr": addr, "size": section.size})
                };
                let sections: Vec<_> = module.sections.iter().map(section).collect();
                let (id, name, build_id) = (module.id.0, &module.name, &module.build_id);
                let loaded = json!({
                    "id": id,
                    "name": name,
                    "build_id": build_id,
                    "large_pages": module.large_pages,
                    "sections": sections,
                });
                writeln!(self.out, "{}", json!({ "module_loaded": loaded }))
            }
            (ModuleChange::Unloaded(id), DumpForm::Json) => {
                writeln!(self.out, "{}", json!({ "module_unloaded": id.0 }))
            }
            (ModuleChange::Loaded(module), DumpForm::Text) => {
                let (id, name) = (module.id.0, module.name.escape_debug());
                let pages = if module.large_pages { " in pages of 2 MB" } else { "" };
                writeln!(self.out, "module      {id:>8} {name} {}{pages}", module.build_id)?;
                for ModuleSection { name, addr, size } in &module.sections {
                    writeln!(self.out, "  section            {addr} {size:x} {name}")?;
                }
                Ok(())
            }
            (ModuleChange::Unloaded(id), DumpForm::Text) => {
                writeln!(self.out, "unloaded    {:>8}", id.0)
            }
        }
    }

    fn task(&mut self, task: &Task) -> io::Result<()> {
        let (id, pointer, name) = (task.id.0, task.pointer.0, task.name());
        let pid = task.pid.map_or("?".to_owned(), |pid| pid.to_string());
        match self.form {
            DumpForm::Json => {
                let pointer = format!("{pointer:016x}");
                let task = json!({"id": id, "pointer": pointer, "pid": task.pid, "comm": name});
                writeln!(self.out, "{}", json!({ "task": task }))?;
            }
            DumpForm::Text => writeln!(
                self.out,
                "task        {id:>8} {pointer:016x} pid {pid} {}",
                name.escape_debug()
            )?,
        }
        self.tasks.push(name.into_owned());
        Ok(())
    }

    fn translation(&mut self, translation: &Translation) -> io::Result<()> {
        let (id, addr, instructions) =
            (translation.id.0, translation.addr, translation.instructions());
        self.translations.push((addr, instructions));
        if !self.sections.translations {
            return Ok(());
        }
        let code: Vec<String> =
            translation.code_by_instruction().map(|(_, code)| hex(code)).collect();
        match self.form {
            DumpForm::Json => {
                let translation = json!({"id": id, "addr": addr.to_string(), "code": code});
                writeln!(self.out, "{}", json!({ "translation": translation }))
            }
            DumpForm::Text => {
                writeln!(self.out, "translation {id:>8} {addr} {instructions}: {}", code.join(" "))
            }
        }
    }

    fn event(&mut self, event: StreamEvent) -> io::Result<()> {
        if self.events_left == 0 {
            return Ok(());
        }
        self.events_left -= 1;
        let known = |TranslationId(id): TranslationId| self.translations[id as usize];
        if self.form == DumpForm::Json {
            let event = match event {
                StreamEvent::Executed(id) => json!({ "executed": id.0 }),
                StreamEvent::Left { translation, instructions } => {
                    json!({"left": {"translation": translation.0, "instructions": instructions}})
                }
                StreamEvent::Task(id) => json!({ "switch": id.0 }),
                StreamEvent::Marker(number) => json!({ "marker": number }),
                StreamEvent::Woken(id) => json!({ "woken": id.0 }),
                StreamEvent::Clock(ticks) => json!({ "clock": ticks }),
                StreamEvent::Cpu(cpu) => json!({ "cpu": cpu.0 }),
            };
            return writeln!(self.out, "{event}");
        }
        match event {
            StreamEvent::Executed(id) => {
                let (addr, instructions) = known(id);
                writeln!(self.out, "executed    {:>8} {addr} {instructions}", id.0)
            }
            StreamEvent::Left { translation, instructions } => {
                let (addr, of) = known(translation);
                writeln!(self.out, "left        {:>8} {addr} {instructions} of {of}", translation.0)
            }
            StreamEvent::Task(id) => writeln!(
                self.out,
                "switch      {:>8} {}",
                id.0,
                self.tasks[id.0 as usize].escape_debug()
            ),
            StreamEvent::Marker(number) => writeln!(self.out, "marker      {number:>8}"),
            StreamEvent::Woken(id) => writeln!(
                self.out,
                "woken       {:>8} {}",
                id.0,
                self.tasks[id.0 as usize].escape_debug()
            ),
            StreamEvent::Clock(ticks) => writeln!(self.out, "clock       {ticks:>8} ticks more"),
            StreamEvent::Cpu(cpu) => writeln!(self.out, "cpu         {:>8}", cpu.0),
        }
    }

    /// Prints each execution, then its accesses; before it, the changes of frame use.
    fn stream_with_data(
        &mut self,
        words: &[u32],
        accesses: &Accesses,
        patterns: &AccessPatterns,
    ) -> io::Result<()> {
        let mut walk = accesses.walk(patterns);
        let mut mappings = accesses.mappings.iter().peekable();
        let (mut uses, mut execution) = (accesses.uses.iter().peekable(), 0);
        for event in events(words).take(usize::try_from(self.events_left).unwrap_or(usize::MAX)) {
            if matches!(event, StreamEvent::Executed(_) | StreamEvent::Left { .. }) {
                while let Some((_, change)) = uses.next_if(|(from, _)| *from <= execution) {
                    self.used(change, &accesses.slab_caches)?;
                }
                execution += 1;
            }
            self.event(event)?;
            let (sites, first) = walk.event(event);
            for (at, (site, addr)) in (first..).zip(sites.iter().zip(&accesses.addresses[first..]))
            {
                while let Some((_, mapping)) = mappings.next_if(|(from, _)| *from as usize <= at) {
                    self.mapping(mapping)?;
                }
                self.access(*site, *addr)?;
            }
        }
        if self.events_left > 0 {
            uses.try_for_each(|(_, change)| self.used(change, &accesses.slab_caches))?;
        }
        Ok(())
    }

    fn access(&mut self, site: AccessSite, addr: u64) -> io::Result<()> {
        let (what, instruction, size) =
            (if site.is_store() { "store" } else { "load" }, site.instruction(), site.size());
        match self.form {
            DumpForm::Json => {
                let addr = format!("{addr:016x}");
                let access = json!({"instruction": instruction, "addr": addr, "size": size});
                writeln!(self.out, "{}", json!({ what: access }))
            }
            DumpForm::Text => writeln!(self.out, "{what:<11} {instruction:>8} {addr:016x} {size}"),
        }
    }

    fn mapping(&mut self, mapping: &Mapping) -> io::Result<()> {
        let (page, frame, kind) =
            (mapping.page << 12, mapping.frame << 12, page_kind(mapping.kind));
        match self.form {
            DumpForm::Json => {
                let (page, physical) = (format!("{page:016x}"), format!("{frame:012x}"));
                let mapping = json!({"page": page, "physical": physical, "kind": kind});
                writeln!(self.out, "{}", json!({ "mapping": mapping }))
            }
            DumpForm::Text => {
                writeln!(self.out, "mapping              {page:016x} {frame:012x} {kind}")
            }
        }
    }

    fn used(&mut self, change: &FrameUseChange, caches: &[String]) -> io::Result<()> {
        let FrameUseChange { frame, frames, used } = *change;
        let first = format!("{:012x}", frame << 12);
        let used = match used {
            FrameUse::Free => "free".to_owned(),
            FrameUse::Unmarked => "held, no mark".to_owned(),
            FrameUse::Slab(cache) => {
                format!("slab {}", caches.get(cache as usize).map_or("?", String::as_str))
            }
            FrameUse::PageTable => "page table".to_owned(),
            FrameUse::File => "file".to_owned(),
            FrameUse::Anonymous => "anonymous".to_owned(),
            FrameUse::Reserved => "reserved".to_owned(),
            FrameUse::PartOf(head) => format!("part of {:012x}", head << 12),
        };
        match self.form {
            DumpForm::Json => writeln!(
                self.out,
                "{}",
                json!({"use": {"physical": first, "frames": frames, "used": used}})
            ),
            DumpForm::Text => {
                writeln!(self.out, "use         {frames:>8} {first} {}", used.escape_debug())
            }
        }
    }

    fn pattern(&mut self, id: TranslationId, patterns: &AccessPatterns) -> io::Result<()> {
        let physical = patterns.physical(id).map(|addr| addr.map(|addr| format!("{addr:012x}")));
        let sites: Vec<String> = patterns.of(id).iter().map(|site| site_text(*site)).collect();
        if self.form == DumpForm::Json {
            let pattern = json!({"translation": id.0, "physical": physical, "sites": sites});
            return writeln!(self.out, "{}", json!({ "pattern": pattern }));
        }
        let physical = physical.map(|addr| addr.unwrap_or("-".to_owned()));
        writeln!(
            self.out,
            "pattern     {:>8} {} {}: {}",
            id.0,
            physical[0],
            physical[1],
            sites.join(" ")
        )
    }

    fn totals(&mut self, totals: &RecordingTotals, damage: Option<&ReadError>) -> io::Result<()> {
        let RecordingTotals {
            kernel_instructions,
            user_instructions,
            executions,
            left,
            translations,
            tasks,
            hash,
            data,
        } = totals;
        let hash = format!("{hash:016x}");
        if self.form == DumpForm::Json {
            let mut totals = json!({
                "kernel_instructions": kernel_instructions,
                "user_instructions": user_instructions,
                "executions": executions,
                "left": left, "translations": translations, "tasks": tasks, "hash": hash,
            });
            if let Some(data) = data {
                let checksum = format!("{:08x}", data.checksum);
                totals["data"] = json!({
                    "loads": data.loads,
                    "stores": data.stores,
                    "mappings": data.mappings,
                    "checksum": checksum,
                });
            }
            let damage = damage.map(ToString::to_string);
            return writeln!(
                self.out,
                "{}",
                json!({"totals": totals, "whole": damage.is_none(), "damage": damage})
            );
        }
        let share = 100.0 * *kernel_instructions as f64 / totals.instructions().max(1) as f64;
        writeln!(
            self.out,
            "instructions       {} ({share:.1} % in the kernel)",
            totals.instructions()
        )?;
        writeln!(self.out, "in the kernel      {kernel_instructions}")?;
        writeln!(self.out, "in user mode       {user_instructions}")?;
        writeln!(self.out, "executions         {executions}")?;
        writeln!(self.out, "left midway        {left}")?;
        writeln!(self.out, "translations       {translations}")?;
        writeln!(self.out, "tasks              {tasks}")?;
        writeln!(self.out, "hash               {hash}")?;
        if let Some(data) = data {
            writeln!(self.out, "loads              {}", data.loads)?;
            writeln!(self.out, "stores             {}", data.stores)?;
            writeln!(self.out, "mappings           {}", data.mappings)?;
            writeln!(self.out, "accesses' checksum {:08x}", data.checksum)?;
        }
        match damage {
            None => writeln!(self.out, "end                clean"),
            Some(damage) => writeln!(self.out, "end                {damage}"),
        }
    }
}

/// "load@3:8": the instruction with index 3 loads eight bytes.
fn site_text(site: AccessSite) -> String {
    let what = if site.is_store() { "store" } else { "load" };
    format!("{what}@{}:{}", site.instruction(), site.size())
}

fn page_kind(kind: PageKind) -> &'static str {
    match kind {
        PageKind::Memory => "memory",
        PageKind::Small => "4K",
        PageKind::Large => "2M",
        PageKind::Huge => "1G",
        PageKind::Device => "device",
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
