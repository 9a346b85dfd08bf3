//! Recordings of several CPUs, written by hand. Their lines, fields and cures are found by hand.

mod order;
mod slabs;

use super::SharingStudy;
use super::caches::SharedMachine;
use super::ranking;
use super::table::{AccessCounts, Cure, FieldRow, LineCounts, SharingTable};
use super::what_if::SharingChange;
use anyhow::Result;
use execution::cpu_order::CpuOrder;
use image::BuildId;
use image::examples::btf_section;
use image::programs::{Program, ProgramObject, ProgramPlace, UserPrograms};
use memory::misses::variables;
use memory::objects::names::DataNames;
use services::symbols::KernelSymbols;
use sim::coherent::{ClassCounts, SupplierCounts};
use std::collections::HashSet;
use trace::{
    AccessSite, CpuCount, CpuId, FrameUse, FrameUseChange, Mapping, ObservedAccesses, PageKind,
    RecordingHeader, RecordingReader, RecordingWriter, RunAddr, StreamEvent, Task, TaskId,
    TaskPointer, Translation, TranslationId,
};

const CODE: u64 = 0xffff_ffff_8100_0000;
/// An object of the kernel's image.
const STATIC: u64 = 0xffff_ffff_8200_0000;
/// Where all of memory is mapped.
const DIRECT: u64 = 0xffff_8880_0000_0000;
/// The area of CPU 0, of 256 KB.
const AREA: u64 = DIRECT + 0x1f80_0000;
/// Cycles until another core of the cluster answers on `server-8`.
const CORE: f64 = 80.0;

const LOAD: bool = false;
const STORE: bool = true;

/// A recording that is being made. Its functions `f0`, `f1`, … are one translation block each.
struct Guest {
    header: RecordingHeader,
    words: Vec<u32>,
    seen: ObservedAccesses,
    executes: u8,
    mapped: HashSet<(u8, u64)>,
    tasks: Vec<Task>,
    /// The order in which the machine makes the steps.
    order: CpuOrder,
    programs: UserPrograms,
}

const FUNCTIONS: u32 = 4;

impl Guest {
    fn new(cpus: u32) -> Guest {
        let header = RecordingHeader {
            cpus: CpuCount::new(cpus).unwrap(),
            conditions: vec![
                ("value.__per_cpu_offset".into(), format!("{AREA:#x}")),
                ("value.pcpu_unit_pages".into(), "0x40".into()),
            ],
            ..RecordingHeader::default()
        };
        let physical =
            |id: u32| (TranslationId(id), [Some(0x100_0000 + 0x10 * u64::from(id)), None]);
        let seen = ObservedAccesses {
            physical: (0..FUNCTIONS).map(physical).collect(),
            slab_caches: vec!["dentry".into(), "kmalloc-32".into()],
            ..ObservedAccesses::default()
        };
        let (words, mapped, order) = (Vec::new(), HashSet::new(), CpuOrder::Recorded);
        Guest {
            header,
            words,
            seen,
            executes: 0,
            mapped,
            tasks: Vec::new(),
            order,
            programs: UserPrograms::default(),
        }
    }

    /// A CPU runs a function, whose first instruction makes these accesses: address, whether it
    /// stores, log2 of the bytes.
    fn run(&mut self, cpu: u8, function: u32, accesses: &[(u64, bool, u8)]) -> &mut Guest {
        if cpu != self.executes {
            StreamEvent::Cpu(CpuId(cpu)).append_to(&mut self.words);
            self.executes = cpu;
        }
        StreamEvent::Executed(TranslationId(function)).append_to(&mut self.words);
        self.seen.starts.push(self.seen.addresses.len() as u32);
        for &(addr, store, size_log2) in accesses {
            let page = addr >> 12;
            if self.mapped.insert((cpu, page)) {
                let mapping = Mapping { page, frame: page & 0xfff, kind: PageKind::Memory };
                self.seen.mappings.push((self.seen.addresses.len() as u32, mapping));
            }
            self.seen.addresses.push(addr);
            self.seen.sites.push(AccessSite::new(0, store, size_log2));
        }
        self
    }

    /// The CPU that executes runs a new task of this name.
    fn task(&mut self, name: &str) -> &mut Guest {
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        let number = self.tasks.len() as u32;
        let (id, pointer) = (TaskId(number), TaskPointer(DIRECT + u64::from(number)));
        self.tasks.push(Task { id, pointer, pid: Some(100 + number), comm });
        StreamEvent::Task(id).append_to(&mut self.words);
        self
    }

    /// A load and a store of 8 bytes, as `incq` makes them, by the function of the CPU's number.
    fn increment(&mut self, cpu: u8, addr: u64) -> &mut Guest {
        self.run(cpu, cpu.into(), &[(addr, LOAD, 3), (addr, STORE, 3)])
    }

    /// Gives a frame this use from the next execution on.
    fn frame(&mut self, frame: u64, used: FrameUse) -> &mut Guest {
        let change = FrameUseChange { frame, frames: 1, used };
        self.seen.uses.push((self.seen.starts.len() as u32, change));
        self
    }

    fn translations() -> Vec<Translation> {
        let translation = |id: u32| Translation {
            id: TranslationId(id),
            addr: RunAddr(CODE + 0x10 * u64::from(id)),
            lengths: [1, 1].into(),
            code: [0x90, 0x90].into(),
        };
        (0..FUNCTIONS).map(translation).collect()
    }

    fn recording(&self) -> Vec<u8> {
        let mut writer = RecordingWriter::with_data(Vec::new(), &self.header).unwrap();
        writer.translations(&Guest::translations()).unwrap();
        writer.tasks(&self.tasks).unwrap();
        writer.stream_with_data(&self.words, &self.seen).unwrap();
        writer.end().unwrap().0
    }

    fn study<T>(
        &self,
        names: &DataNames,
        machine: &str,
        run: impl FnOnce(&SharingStudy<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let directory = tempfile::tempdir().unwrap();
        let map = directory.path().join("System.map");
        let lines = (0..FUNCTIONS).map(|id| format!("{:x} T f{id}\n", CODE + 0x10 * u64::from(id)));
        std::fs::write(&map, lines.collect::<String>()).unwrap();
        let symbols = KernelSymbols::read(&map).unwrap();
        let machine = machines::find(machine)?.model;
        run(&SharingStudy::new(&symbols, names, &machine, self.order), &self.recording())
    }

    fn table_on(&self, names: &DataNames, machine: &str) -> Result<SharingTable> {
        self.study(names, machine, |study, recording| {
            let ranking = study.rank(RecordingReader::new(recording)?)?;
            study.table(RecordingReader::new(recording)?, &ranking, 30, &self.programs)
        })
    }

    fn table(&self, names: &DataNames) -> SharingTable {
        self.table_on(names, "server-8").unwrap()
    }

    fn what_if(&self, names: &DataNames, requests: &[&str]) -> Result<SharingChange> {
        let requests: Vec<String> = requests.iter().map(|&text| text.to_owned()).collect();
        self.study(names, "server-8", |study, recording| {
            let ranking = study.rank(RecordingReader::new(recording)?)?;
            study.what_if(RecordingReader::new(recording)?, &ranking, &requests)
        })
    }
}

/// Objects of the image without types: address, bytes, name.
fn untyped(image: &[(u64, u64, &str)]) -> DataNames {
    DataNames::of(variables::of(image, &[(0x100, 64, "runqueues")]), None)
}

/// `struct { u64 hits; u64 misses; } pair;`
fn typed_pair() -> DataNames {
    let strings = b"\0u64\0pair\0hits\0misses\0";
    let types = btf_section(
        &[
            vec![1, 1 << 24, 8, 64],
            vec![0, 4 << 24 | 2, 16, 10, 1, 0, 15, 1, 64],
            vec![5, 14 << 24, 2, 1],
        ],
        strings,
    );
    DataNames::of(variables::of(&[(STATIC, 16, "pair")], &[]), Some(types))
}

/// Each CPU increments its own counter in turn.
fn counters(cpus: u8, rounds: u32, step: u64) -> Guest {
    let mut guest = Guest::new(cpus.into());
    for _ in 0..rounds {
        for cpu in 0..cpus {
            guest.increment(cpu, STATIC + step * u64::from(cpu));
        }
    }
    guest
}

fn counts(misses: ClassCounts, upgrades: u64) -> LineCounts {
    let core = misses.coherence() + upgrades;
    let served = SupplierCounts { core, ..SupplierCounts::default() };
    LineCounts { misses, upgrades, served, cycles: core as f64 * CORE }
}

fn false_sharing(cold: u64, false_sharing: u64) -> ClassCounts {
    ClassCounts { cold, false_sharing, ..ClassCounts::default() }
}

fn true_sharing(cold: u64, true_sharing: u64) -> ClassCounts {
    ClassCounts { cold, true_sharing, ..ClassCounts::default() }
}

fn names(fields: &[FieldRow]) -> Vec<&str> {
    fields.iter().map(|field| field.name.as_str()).collect()
}

fn used(reads: u64, writes: u64) -> AccessCounts {
    AccessCounts { reads, writes }
}

/// As `two_counters_in_one_line_are_false_sharing` in `crates/sim/tests/coherence.rs`.
#[test]
fn two_counters_in_one_line_disturb_each_other() {
    let guest = counters(2, 100, 8);
    let table = guest.table(&typed_pair());
    assert_eq!((table.shared_lines, table.lines.len(), table.types_known), (1, 1, true));
    let line = &table.lines[0];
    assert_eq!(line.counts, counts(false_sharing(2, 198), 199));
    assert_eq!((table.totals.total.cycles, line.share), (397.0 * CORE, 1.0));
    assert_eq!(line.cpus[0].kernel, counts(false_sharing(1, 99), 99));
    assert_eq!(line.cpus[1].kernel, counts(false_sharing(1, 99), 100));
    assert_eq!((line.addr.as_str(), line.physical.as_str()), ("ffffffff82000000", "0"));
    assert_eq!(names(&line.fields), ["pair.hits", "pair.misses"]);
    let [hits, misses] = [&line.fields[0], &line.fields[1]];
    assert_eq!((hits.offset, hits.size, misses.offset, misses.size), (0, 8, 8, 8));
    assert_eq!(hits.cpus, [used(100, 100), used(0, 0)]);
    assert_eq!(misses.cpus, [used(0, 0), used(100, 100)]);
    assert_eq!(hits.counts, counts(false_sharing(1, 99), 99));
    assert_eq!(misses.counts, counts(false_sharing(1, 99), 100));
    let by = &misses.functions;
    assert_eq!((by.len(), by[0].function.as_str()), (1, "f1"));
    assert_eq!((by[0].accesses, by[0].most_at.as_str()), (used(100, 100), "f1+0x0"));
    let beside = vec!["pair.misses".to_owned()];
    assert_eq!(line.cure, Cure::MoveField { field: "pair.hits".to_owned(), beside });
}

/// Fetches of the two functions, which are in one line: a miss for each CPU.
#[test]
fn functions_have_what_they_asked_for() {
    let table = counters(2, 100, 8).table(&typed_pair());
    let rows: Vec<_> =
        table.functions.iter().map(|row| (row.function.as_str(), row.counts)).collect();
    let asked = |upgrades| counts(false_sharing(2, 99), upgrades);
    assert_eq!(rows, [("f1", asked(100)), ("f0", asked(99))]);
    let stalls: f64 = table.functions.iter().map(|row| row.stalls).sum();
    assert_eq!(stalls, table.totals.total.stalls);
}

#[test]
fn a_miss_that_turns_out_to_be_true_stays_with_its_function() {
    let mut guest = Guest::new(2);
    for _ in 0..10 {
        guest.run(0, 0, &[(STATIC, STORE, 3)]);
        guest.run(1, 1, &[(STATIC + 8, LOAD, 3)]).run(1, 2, &[(STATIC, LOAD, 3)]);
    }
    let table = guest.table(&untyped(&[]));
    let of = |name| table.functions.iter().find(|row| row.function == name).unwrap();
    assert_eq!(of("f1").counts.misses, true_sharing(2, 9));
    assert_eq!((of("f0").counts.upgrades, of("f1").counts.upgrades), (9, 0));
    assert!(table.functions.iter().all(|row| row.function != "f2"), "it hits the L1");
}

#[test]
fn two_objects_in_one_line_are_to_be_aligned() {
    let names = untyped(&[(STATIC, 8, "first"), (STATIC + 8, 8, "second")]);
    let table = counters(2, 100, 8).table(&names);
    let line = &table.lines[0];
    let titles: Vec<&str> = line.objects.iter().map(|object| object.title.as_str()).collect();
    assert_eq!(titles, ["static second", "static first"], "the second upgrades once more");
    let beside = vec!["static second".to_owned()];
    assert_eq!(line.cure, Cure::Align { object: "static first".to_owned(), beside });
}

#[test]
fn ping_pong_on_one_word_is_true_sharing() {
    let table = counters(2, 100, 0).table(&untyped(&[(STATIC, 8, "word")]));
    let line = &table.lines[0];
    assert_eq!(line.counts, counts(true_sharing(2, 198), 199));
    assert_eq!((names(&line.fields), &line.cure), (vec!["word"], &Cure::TrueSharing));
    assert_eq!(line.fields[0].cpus, [used(100, 100), used(100, 100)]);
}

#[test]
fn an_array_with_an_element_for_each_cpu_is_to_be_per_cpu() {
    let table = counters(4, 50, 8).table(&untyped(&[(STATIC, 32, "counts")]));
    let line = &table.lines[0];
    assert_eq!(line.counts, counts(false_sharing(4, 4 * 49), 4 * 50 - 1));
    assert_eq!(names(&line.fields), ["counts+0x0", "counts+0x8", "counts+0x10", "counts+0x18"]);
    assert_eq!(line.cure, Cure::PerCpu { object: "static counts".to_owned() });
}

#[test]
fn a_written_field_is_to_leave_those_that_others_read() {
    let mut guest = Guest::new(2);
    for _ in 0..10 {
        guest.run(0, 0, &[(STATIC, STORE, 2)]).run(1, 1, &[(STATIC + 8, LOAD, 3)]);
    }
    let table = guest.table(&untyped(&[(STATIC, 16, "pair")]));
    let line = &table.lines[0];
    assert_eq!(line.counts, counts(false_sharing(2, 9), 9));
    let (field, readers) = ("pair+0x0".to_owned(), vec!["pair+0x8".to_owned()]);
    assert_eq!(line.cure, Cure::MoveWritten { field, readers });
}

/// The second CPU first loads what it does not share, and then what the first CPU wrote.
#[test]
fn a_miss_that_turns_out_to_be_true_stays_with_its_field() {
    let mut guest = Guest::new(2);
    for _ in 0..10 {
        guest.run(0, 0, &[(STATIC, STORE, 3)]);
        guest.run(1, 1, &[(STATIC + 8, LOAD, 3)]).run(1, 2, &[(STATIC, LOAD, 3)]);
    }
    let table = guest.table(&untyped(&[(STATIC, 16, "pair")]));
    let line = &table.lines[0];
    assert_eq!(line.counts, counts(true_sharing(2, 9), 9));
    assert_eq!(line.fields[1].counts, counts(true_sharing(1, 9), 0));
    assert_eq!(line.fields[0].counts, counts(true_sharing(1, 0), 9));
    assert_eq!((line.fields[0].functions.len(), &line.cure), (2, &Cure::TrueSharing));
}

#[test]
fn what_has_no_symbol_has_the_name_of_its_slab() {
    let mut guest = Guest::new(2);
    guest.frame(5, FrameUse::Unmarked);
    for round in 0..10 {
        if round == 5 {
            guest.frame(5, FrameUse::Slab(0));
        }
        guest.increment(0, DIRECT + 0x5048).increment(1, DIRECT + 0x5050);
    }
    let table = guest.table(&untyped(&[]));
    let line = &table.lines[0];
    assert_eq!(line.counts, counts(false_sharing(2, 18), 19));
    let object = &line.objects[0];
    assert_eq!((line.objects.len(), object.title.as_str(), object.bytes), (1, "slab dentry", None));
    assert_eq!(names(&line.fields), ["+0x8 of the line", "+0x10 of the line"]);
    assert_eq!(line.fields[0].cpus, [used(10, 10), used(0, 0)]);
    assert_eq!(line.physical, "5040");
}

/// The kernel clears the page at its own address, before two tasks use it at another one.
#[test]
fn user_memory_has_its_task_and_its_address_there() {
    let mut guest = Guest::new(2);
    guest.frame(5, FrameUse::Anonymous).run(0, 0, &[(DIRECT + 0x5008, STORE, 3)]);
    guest.task("first").run(1, 0, &[]).task("second");
    for _ in 0..10 {
        guest.increment(0, 0x5000_5008).increment(1, 0x5000_5010);
    }
    let table = guest.table(&untyped(&[]));
    let line = &table.lines[0];
    let objects: Vec<_> =
        line.objects.iter().map(|it| (it.name.as_str(), it.title.as_str(), it.cycles)).collect();
    let user = ("second", "user second at 50005010", 37.0 * CORE);
    assert_eq!(objects, [user, ("", "user at ffff888000005008", 0.0)]);
    assert_eq!(line.addr, "0000000050005000");
    assert_eq!(table.data[0].title, "user second");
    let first = "+0x8 of the line";
    assert_eq!(names(&line.fields), [first, first, "+0x10 of the line"]);
    assert!(matches!(line.cure, Cure::MoveField { .. }), "{:?}", line.cure);
}

/// Two variables of a program in one line, and a third place in its file.
#[test]
fn user_memory_has_the_variables_of_its_program() {
    let mut guest = Guest::new(2);
    let object = |name: &str, addr, size| ProgramObject(name.into(), addr, size);
    guest.programs = UserPrograms {
        programs: vec![Program {
            path: "usr/bin/sharer".into(),
            begin: 0,
            end: 0x6000,
            objects: vec![object("hits", 0x5008, 8), object("pair", 0x5010, 16)],
        }],
        tasks: [(
            "worker".to_owned(),
            vec![ProgramPlace {
                program: 0,
                bias: 0x5000_0000,
                begin: 0x5000_0000,
                end: 0x5000_6000,
            }],
        )]
        .into(),
    };
    guest.frame(5, FrameUse::Anonymous).task("worker").run(1, 0, &[]).task("worker");
    for _ in 0..10 {
        guest.increment(0, 0x5000_5008).increment(1, 0x5000_5018).increment(1, 0x5000_5030);
    }
    let table = guest.table(&untyped(&[]));
    let line = &table.lines[0];
    let mut objects: Vec<_> = line.objects.iter().map(|it| (it.title.as_str(), it.bytes)).collect();
    objects.sort_unstable();
    let expected = [
        ("user worker: hits of sharer at 50005008", Some(8)),
        ("user worker: pair of sharer at 50005010", Some(16)),
        ("user worker: sharer+0x5030 at 50005030", None),
    ];
    assert_eq!(objects, expected);
    assert_eq!(names(&line.fields), ["hits", "pair+0x8", "sharer+0x5030"]);
    assert_eq!(line.objects[0].place.as_deref(), Some("pair of sharer"), "pays most");
    assert!(matches!(line.cure, Cure::Align { .. }), "{:?}", line.cure);
}

#[test]
fn a_per_cpu_variable_has_its_cpu() {
    let mut guest = Guest::new(2);
    for _ in 0..10 {
        guest.increment(0, AREA + 0x4_0108).increment(1, AREA + 0x4_0108);
    }
    let table = guest.table(&untyped(&[]));
    let (object, field) = (&table.lines[0].objects[0], &table.lines[0].fields[0]);
    assert_eq!((object.title.as_str(), object.cpu), ("per CPU runqueues of CPU 1", Some(1)));
    assert_eq!((object.bytes, field.name.as_str()), (Some(64), "runqueues+0x8"));
}

/// An access across the end of a line uses both lines.
#[test]
fn an_access_across_two_lines_is_a_field_of_each() {
    let mut guest = Guest::new(2);
    for _ in 0..10 {
        guest.increment(0, STATIC + 60).increment(1, STATIC + 60);
    }
    let table = guest.table(&untyped(&[(STATIC, 128, "both")]));
    assert_eq!(table.lines.len(), 2);
    for (line, (offset, name)) in table.lines.iter().zip([(60, "both+0x3c"), (0, "both+0x40")]) {
        assert_eq!(line.counts, counts(true_sharing(2, 18), 19));
        let field = &line.fields[0];
        assert_eq!((field.offset, field.size, field.name.as_str()), (offset, 4, name));
        assert_eq!(field.cpus, [used(10, 10), used(10, 10)]);
    }
}

/// The protocol of three states does not know that nobody else has the line.
#[test]
fn a_line_of_one_cpu_needs_no_cure() {
    let mut guest = Guest::new(2);
    for _ in 0..3 {
        // The code uses neither line's set.
        guest.increment(0, STATIC + 0x800).increment(1, STATIC + 0x1800);
    }
    let table = guest.table_on(&untyped(&[]), "simos-1994-8").unwrap();
    assert_eq!((table.lines.len(), table.line_bytes), (2, 128));
    for line in &table.lines {
        assert_eq!((line.counts.upgrades, line.counts.misses.total()), (1, 1));
        assert_eq!((line.counts.cycles, &line.cure), (100.0, &Cure::OneCpu));
    }
}

#[test]
fn a_field_in_its_own_line_is_shared_no_more() {
    let guest = counters(2, 100, 8);
    for request in ["pair.misses -> own line", "pair+8:8 -> own line"] {
        let change = guest.what_if(&typed_pair(), &[request]).unwrap();
        let (before, after) = (change.before, change.after);
        assert_eq!((before.all_misses().false_sharing, before.upgrades.kernel), (198, 199));
        assert_eq!((after.all_misses().coherence(), after.upgrades.kernel), (0, 0));
        assert_eq!(after.all_misses().cold, before.all_misses().cold);
        assert_eq!((before.cycles, after.cycles), (397.0 * CORE, 0.0));
        // The second CPU's first load comes from memory now, not from the other core.
        assert_eq!(before.stalls - after.stalls, 397.0 * CORE - (400.0 - CORE));
        assert_eq!((change.moved[0].addr.as_str(), change.moved[0].bytes), ("ffffffff82000008", 8));
    }
    // The whole object moves, with both fields in one line as before.
    let change = guest.what_if(&typed_pair(), &["pair -> own line"]).unwrap();
    assert_eq!(change.before, change.after);
}

#[test]
fn lines_beyond_the_limit_are_one_sum() {
    let mut guest = counters(2, 100, 0);
    for _ in 0..10 {
        guest.increment(0, STATIC + 640).increment(1, STATIC + 640);
    }
    let recording = guest.recording();
    let machine = machines::find("server-8").unwrap().model;
    let cpus = CpuCount::new(2).unwrap();
    let shared = SharedMachine::new(&machine, cpus, CpuOrder::Recorded).unwrap();
    let reader = RecordingReader::new(&recording[..]).unwrap();
    let owners = untyped(&[]).owners(reader.header());
    let ranking = ranking::rank(reader, &shared, 1, owners).unwrap();
    assert_eq!(ranking.lines, [(0, 397.0 * CORE)]);
    assert_eq!((ranking.unranked, ranking.totals.total.cycles), (37.0 * CORE, 434.0 * CORE));
    assert_eq!(ranking.end, 0x100_0040, "behind the line of the code");
}

#[test]
fn errors_name_what_cannot_be_done() {
    let names = untyped(&[(STATIC, 16, "pair"), (STATIC + 64, 8, "key"), (STATIC + 72, 8, "key")]);
    let guest = counters(2, 3, 8);
    let mut small = include_str!("../../../../machines/server-8.toml").to_owned();
    small = small.replace("cores = { value = 8", "cores = { value = 2");
    let directory = tempfile::tempdir().unwrap();
    let two = directory.path().join("two.toml");
    std::fs::write(&two, small).unwrap();
    let two = two.to_str().unwrap();
    for (guest, machine, expected) in [
        (&counters(1, 3, 8), "server-8", "the recording has one CPU"),
        (&guest, "server-32k", "the machine server-32k has no coherent caches"),
        (&counters(3, 3, 8), two, "has 2 cores, and the recording has 3 CPUs"),
    ] {
        let error = guest.table_on(&names, machine).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut writer = RecordingWriter::new(Vec::new(), &guest.header).unwrap();
    writer.translations(&Guest::translations()).unwrap();
    writer.stream(&guest.words).unwrap();
    let without_data = writer.end().unwrap().0;
    let rank = |recording: &[u8], build_id: Option<BuildId>| {
        let machine = machines::find("server-8")?.model;
        let mut symbols = KernelSymbols::default();
        symbols.build_id = build_id;
        let study = SharingStudy::new(&symbols, &names, &machine, CpuOrder::SideBySide);
        study.rank(RecordingReader::new(recording)?).map(|_| ())
    };
    let error = rank(&without_data, None).unwrap_err().to_string();
    assert!(error.contains("no data accesses"), "{error}");
    let error = rank(&guest.recording(), Some(BuildId("5f".into()))).unwrap_err().to_string();
    assert!(error.contains("give the vmlinux that was recorded"), "{error}");
    for (request, expected) in [
        ("pair.hits -> own line", "BTF does not describe the type of pair"),
        ("pair+12:8 -> own line", "which has 16 bytes"),
        ("pair+8 -> own line", "write +OFFSET:BYTES"),
        ("pair+8:0 -> own line", "which has 16 bytes"),
        ("pair+8:x -> own line", "\"x\" is not a number"),
        ("other -> own line", "no data with the symbol other"),
        ("key -> own line", "2 objects with the symbol key"),
    ] {
        let error = guest.what_if(&names, &[request]).unwrap_err().to_string();
        assert!(error.contains(expected), "{request}: {error}");
    }
    let twice = ["pair -> own line", "pair+0:8 -> own line"];
    let error = guest.what_if(&names, &twice).unwrap_err().to_string();
    assert!(error.contains("overlaps another"), "{error}");
    let error = guest.what_if(&typed_pair(), &["pair.other -> own line"]).unwrap_err().to_string();
    assert!(error.contains("pair has no field .other"), "{error}");
}
