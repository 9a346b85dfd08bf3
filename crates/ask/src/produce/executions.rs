//! Tasks, functions, branches and accesses: what shows at single executions.

mod accesses;
mod branches;

use crate::batch::{Cell, Names, Rows, TableRequest, TextId};
use crate::produce::invocations::KnownTasks;
use crate::recording::AskedRecording;
use crate::schema::TableId;
use accesses::AccessTable;
use anyhow::{Result, ensure};
use branches::BranchTable;
use execution::code::TranslatedCode;
use execution::data::DataWish;
use execution::executions::NoDataAccesses;
use execution::per_cpu::PerCpu;
use execution::walk::{Observer, Piece, Wants};
use image::address::LinkAddr;
use image::mapping::map_file;
use image::vmlinux;
use memory::misses::collector::function_at;
use object::{Object, ObjectSection};
use services::functions::{NAMELESS, function_name};
use std::collections::BTreeMap;
use std::ops::Range;
use trace::{Accesses, RecordingHeader, RunAddr, StreamEvent, Task, Translation};

/// What a translation block is.
struct KnownCode {
    addr: u64,
    instructions: u32,
    is_kernel: bool,
    /// The number of its symbol, or `None` in user mode.
    symbol: Option<u32>,
    function: TextId,
    /// It begins with the first instruction of its function.
    is_entry: bool,
    runs: u64,
    /// Executions that were left midway, and their instructions.
    left_runs: u64,
    left: u64,
}

/// A symbol whose code ran. The first one is code without a symbol.
#[derive(Default)]
struct RunningSymbol {
    name: String,
    addr: u64,
    size: u64,
}

/// What a task ran.
#[derive(Clone, Copy, Default)]
struct TaskTotals {
    start: Option<u64>,
    turns: u64,
    instructions: u64,
    kernel_instructions: u64,
}

/// Where an execution began, and what ran.
#[derive(Clone, Copy)]
struct Place {
    start: u64,
    task: Option<u32>,
    cpu: u8,
    translation: u32,
}

/// The tables, as an observer of the recording.
pub(super) struct ExecutionTables<'a> {
    recording: &'a AskedRecording,
    names: Names,
    tasks: KnownTasks,
    /// By task: the address of its `task_struct`.
    addresses: Vec<u64>,
    codes: Vec<KnownCode>,
    symbols: Vec<RunningSymbol>,
    numbers: BTreeMap<u64, u32>,
    /// By CPU: the number of the task that runs.
    running: PerCpu<Option<u32>>,
    position: u64,
    totals: Vec<TaskTotals>,
    /// Of the unknown task at the beginning.
    unknown: TaskTotals,
    places: Vec<Place>,
    counts_functions: bool,
    task_rows: Option<Rows>,
    function_rows: Option<Rows>,
    branches: Option<BranchTable>,
    accesses: Option<AccessTable>,
}

impl<'a> ExecutionTables<'a> {
    /// # Errors
    /// The names of data cannot be read from the kernel.
    pub(super) fn new(
        recording: &'a AskedRecording,
        header: &RecordingHeader,
        requests: Vec<TableRequest>,
    ) -> Result<ExecutionTables<'a>> {
        let mut tables = ExecutionTables {
            recording,
            names: Names::default(),
            tasks: KnownTasks::default(),
            addresses: Vec::new(),
            codes: Vec::new(),
            symbols: vec![RunningSymbol { name: NAMELESS.to_owned(), ..RunningSymbol::default() }],
            numbers: BTreeMap::new(),
            running: PerCpu::default(),
            position: 0,
            totals: Vec::new(),
            unknown: TaskTotals::default(),
            places: Vec::new(),
            counts_functions: false,
            task_rows: None,
            function_rows: None,
            branches: None,
            accesses: None,
        };
        for request in requests {
            match request.table {
                TableId::Branches => tables.branches = Some(BranchTable::new(Rows::new(request))),
                TableId::Accesses => {
                    let rows = Rows::new(request);
                    tables.accesses = Some(AccessTable::new(recording, header, rows)?);
                }
                TableId::Functions => tables.function_rows = Some(Rows::new(request)),
                _ => tables.task_rows = Some(Rows::new(request)),
            }
        }
        let functions = tables.function_rows.as_ref();
        tables.counts_functions =
            functions.is_some_and(|it| it.wants("executions") || it.wants("instructions"));
        Ok(tables)
    }

    /// Gives the rows that are known at the end.
    pub(super) fn finish(mut self) {
        if let Some(rows) = self.task_rows.take() {
            self.give_tasks(rows);
        }
        if let Some(rows) = self.function_rows.take() {
            self.give_functions(rows);
        }
        if let Some(branches) = self.branches.take() {
            branches.finish(&mut self.names);
        }
        if let Some(accesses) = self.accesses.take() {
            accesses.finish(&mut self.names);
        }
    }

    fn give_tasks(&mut self, mut rows: Rows) {
        // A task that changed its name and back has several records of one name.
        let mut merged: BTreeMap<(TextId, Option<u32>, u64), TaskTotals> = BTreeMap::new();
        for (number, totals) in self.totals.iter().enumerate() {
            let (name, pid) = self.tasks.of(number);
            let sum = merged.entry((name, pid, self.addresses[number])).or_default();
            sum.start = sum.start.into_iter().chain(totals.start).min();
            sum.turns += totals.turns;
            sum.instructions += totals.instructions;
            sum.kernel_instructions += totals.kernel_instructions;
        }
        let known = merged.into_iter().map(|((name, pid, address), totals)| {
            ([name.into(), pid.into(), address.into()], totals)
        });
        let unknown = ([Cell::Null; 3], self.unknown);
        for ([name, pid, address], totals) in std::iter::once(unknown).chain(known) {
            if totals.start.is_some() {
                let cells = [
                    name,
                    pid,
                    address,
                    totals.start.into(),
                    totals.turns.into(),
                    totals.instructions.into(),
                    totals.kernel_instructions.into(),
                ];
                rows.push(&mut self.names, cells);
            }
        }
        rows.finish(&mut self.names);
    }

    fn give_functions(&mut self, mut rows: Rows) {
        let mut counts: Vec<(u64, u64)> = vec![(0, 0); self.symbols.len()];
        for code in &self.codes {
            let Some(symbol) = code.symbol else { continue };
            let (executions, instructions) = &mut counts[symbol as usize];
            *executions += if code.is_entry { code.runs + code.left_runs } else { 0 };
            *instructions += code.runs * u64::from(code.instructions) + code.left;
        }
        let sections = match rows.wants("section") {
            true => sections(self.recording).unwrap_or_default(),
            false => Vec::new(),
        };
        let ran: Vec<(String, u64, u64, (u64, u64))> = self
            .symbols
            .iter()
            .zip(&counts)
            .map(|(it, counts)| (it.name.clone(), it.addr, it.size, *counts))
            .collect();
        let mut last = None;
        let others = self.recording.attribution.symbols.iter().filter(|symbol| {
            // One address has one row, under its best name.
            let is_first = last.replace(symbol.addr.0) != Some(symbol.addr.0);
            is_first && !self.numbers.contains_key(&symbol.addr.0)
        });
        let others = others.map(|it| (it.name.clone(), it.addr.0, it.size, (0, 0)));
        let all: Vec<_> = ran.into_iter().chain(others).collect();
        let counts_functions = self.counts_functions;
        for (symbol, addr, size, (executions, instructions)) in all {
            let is_nameless = addr == 0;
            if is_nameless && instructions == 0 {
                continue;
            }
            let named = services::symbols::CodeSymbol { addr: LinkAddr(addr), size, name: symbol };
            let section = sections.iter().find(|(range, _)| range.contains(&addr));
            let function =
                if is_nameless { NAMELESS.to_owned() } else { function_name(&named).to_owned() };
            let counted = |count: u64| if counts_functions { count.into() } else { Cell::Null };
            let names = &mut self.names;
            let cells = [
                names.id(&function).into(),
                (!is_nameless).then(|| names.id(&named.name)).into(),
                (!is_nameless).then_some(addr).into(),
                (!is_nameless).then_some(size).into(),
                (!is_nameless).then(|| names.id(self.recording.module(addr))).into(),
                section.map(|(_, name)| names.id(name)).into(),
                counted(executions),
                counted(instructions),
            ];
            rows.push(names, cells);
        }
        rows.finish(&mut self.names);
    }

    fn ran(&mut self, translation: u32, reached: Option<u32>) {
        let code = &mut self.codes[translation as usize];
        let instructions = u64::from(reached.unwrap_or(code.instructions));
        match reached {
            None => code.runs += 1,
            Some(_) => {
                code.left_runs += u64::from(instructions > 0);
                code.left += instructions;
            }
        }
        let task = self.running.current;
        if self.task_rows.is_some() {
            let totals = match task {
                None => &mut self.unknown,
                Some(task) => &mut self.totals[task as usize],
            };
            totals.start.get_or_insert(self.position);
            totals.instructions += instructions;
            totals.kernel_instructions += if code.is_kernel { instructions } else { 0 };
        }
        if self.branches.is_some() || self.accesses.is_some() {
            let cpu = self.running.cpu().0;
            self.places.push(Place { start: self.position, task, cpu, translation });
        }
        self.position += instructions;
    }
}

impl Observer for ExecutionTables<'_> {
    fn begin(&mut self, header: &RecordingHeader, has_data: bool) -> Result<Wants> {
        services::check(header, &self.recording.attribution.symbols)?;
        ensure!(has_data || self.accesses.is_none(), NoDataAccesses);
        let data = self.accesses.as_ref().map(|_| DataWish::EVERY_ACCESS);
        Ok(Wants { control: self.branches.is_some(), data, ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        let symbols = &self.recording.attribution.symbols;
        for translation in translations {
            let addr = translation.addr.0;
            let symbol = translation.is_kernel().then(|| symbols.containing(LinkAddr(addr)));
            let number = symbol.map(|symbol| match symbol {
                None => 0,
                Some(symbol) => {
                    let next = self.symbols.len() as u32;
                    let number = *self.numbers.entry(symbol.addr.0).or_insert(next);
                    if number == next {
                        self.symbols.push(RunningSymbol {
                            name: symbol.name.clone(),
                            addr: symbol.addr.0,
                            size: symbol.size,
                        });
                    }
                    number
                }
            });
            let begins = symbol
                .flatten()
                .is_some_and(|symbol| symbol.addr.0 == addr && symbol.base_name().is_some());
            self.codes.push(KnownCode {
                addr,
                instructions: translation.instructions(),
                is_kernel: translation.is_kernel(),
                symbol: number,
                function: self.names.id(function_at(symbols, RunAddr(addr))),
                is_entry: begins,
                runs: 0,
                left_runs: 0,
                left: 0,
            });
            if let Some(branches) = &mut self.branches {
                branches.define(translation);
            }
            if let Some(accesses) = &mut self.accesses {
                accesses.define(translation);
            }
        }
        Ok(())
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.tasks.define(&mut self.names, tasks);
        self.addresses.extend(tasks.iter().map(|task| task.pointer.0));
        self.totals.resize(self.addresses.len(), TaskTotals::default());
    }

    fn stream(&mut self, accesses: &Accesses) {
        if let Some(table) = &mut self.accesses {
            table.stream(&mut self.names, accesses);
        }
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        self.running.turn_to(piece.cpu, || None);
        self.places.clear();
        for event in piece.events() {
            match event {
                StreamEvent::Executed(id) => self.ran(id.0, None),
                StreamEvent::Left { translation, instructions } => {
                    self.ran(translation.0, Some(instructions));
                }
                StreamEvent::Task(id) => {
                    self.running.current = Some(id.0);
                    self.totals[id.0 as usize].turns += 1;
                }
                StreamEvent::Cpu(_)
                | StreamEvent::Marker(_)
                | StreamEvent::Woken(_)
                | StreamEvent::Clock(_) => {}
            }
        }
        let ExecutionTables { names, tasks, codes, places, .. } = self;
        if let Some(branches) = &mut self.branches {
            branches.piece(piece, places, codes, tasks, names);
            branches.passes(self.position);
        }
        if let (Some(accesses), Some(data)) = (&mut self.accesses, &piece.data) {
            accesses.piece(data, piece.codes, places, codes, tasks, names);
            accesses.passes(self.position);
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        let functions_are_static = self.function_rows.is_none() || !self.counts_functions;
        let branches = self.branches.as_ref().is_none_or(BranchTable::has_ended);
        let accesses = self.accesses.as_ref().is_none_or(AccessTable::has_ended);
        self.task_rows.is_none() && functions_are_static && branches && accesses
    }
}

/// The sections of the kernel's vmlinux; none of a System.map.
fn sections(recording: &AskedRecording) -> Result<Vec<(Range<u64>, String)>> {
    let bytes = map_file(&vmlinux::path(&recording.kernel))?;
    let elf = object::File::parse(&*bytes)?;
    let sections = elf.sections().filter_map(|section| {
        let range = section.address()..section.address() + section.size();
        Some((range, section.name().ok()?.to_owned()))
    });
    Ok(sections.filter(|(range, _)| range.start != 0).collect())
}
