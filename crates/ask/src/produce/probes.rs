//! Hits of probes, with the place of each in the recording.
//!
//! The values come from a file that was written while the same run was executed again. Each hit
//! names its execution, so that the recording says everything else. The walk counts how often the
//! instructions were reached; if that is not the number of hits, the file is refused. Of probes at
//! positions, only the hits at these positions have rows.

use crate::batch::{Cell, Names, Rows, TableRequest, TextId};
use crate::probe::{MOST_VALUES, NoProbes, ProbeSet, RecordedProbes, ValueKind};
use crate::produce::invocations::KnownTasks;
use crate::recording::AskedRecording;
use anyhow::{Context, Result, bail, ensure};
use execution::code::TranslatedCode;
use execution::per_cpu::PerCpu;
use execution::walk::{Observer, Piece, Wants};
use services::task_costs::{TaskCost, TaskCosts};
use std::collections::HashSet;
use std::fs::File;
use std::io::BufReader;
use trace::probe_file::{ProbeHit, ProbeReader, ReadValue};
use trace::{CpuCount, RecordingHeader, StreamEvent, Task, Translation};

/// The columns in front of the values.
const OWN_COLUMNS: usize = 10;

/// The table, as an observer of the recording.
pub(super) struct ProbedInstructions<'a> {
    set: &'a ProbeSet,
    hits: ProbeReader<BufReader<File>>,
    next: Option<ProbeHit>,
    /// The last hit that has a row: execution, instruction and point.
    last: Option<(u64, u16, u32)>,
    rows: Rows,
    names: Names,
    probe_names: Vec<TextId>,
    tasks: KnownTasks,
    running: PerCpu<Option<u32>>,
    costs: TaskCosts,
    /// The costs of tasks, and those on the machine, are asked for.
    wants_costs: bool,
    wants_machine: bool,
    takes_data: bool,
    /// The addresses of the points.
    addresses: HashSet<u64>,
    /// By translation: the instructions with points, and how many points each has.
    probed: Vec<Box<[u16]>>,
    execution: u64,
    position: u64,
    /// How often instructions with probes were reached, and how many of them have rows.
    reached: u64,
    given: u64,
}

impl<'a> ProbedInstructions<'a> {
    /// # Errors
    /// The file of values cannot be read.
    pub(super) fn new(
        recording: &'a AskedRecording,
        request: TableRequest,
    ) -> Result<ProbedInstructions<'a>> {
        let RecordedProbes { set, file } = recording.probes.as_ref().ok_or(NoProbes)?;
        let path = file.display();
        let open = File::open(file).with_context(|| format!("reading {path}"))?;
        let mut hits = ProbeReader::new(BufReader::new(open)).context(path.to_string())?;
        ensure!(*hits.program() == set.program, "{path} has the values of other probes: remove it");
        let mut names = Names::default();
        let rows = Rows::new(request);
        let wants = |columns: &[&str]| columns.iter().any(|column| rows.wants(column));
        let wants_machine = wants(&["cycles", "l1i_misses", "l1d_misses", "l2_misses"]);
        let wants_costs = wants_machine || wants(&["ran"]);
        let machine = recording.attribution.machines.first().filter(|_| wants_machine);
        Ok(ProbedInstructions {
            costs: TaskCosts::new(machine),
            wants_costs,
            wants_machine: machine.is_some(),
            takes_data: false,

            next: hits.next_hit().context(path.to_string())?,
            set,
            hits,
            last: None,
            rows,
            probe_names: set.probes.iter().map(|probe| names.id(&probe.name)).collect(),
            names,
            tasks: KnownTasks::default(),
            running: PerCpu::default(),
            addresses: set.program.points.iter().map(|point| point.addr.0).collect(),
            probed: Vec::new(),
            execution: 0,
            position: 0,
            reached: 0,
            given: 0,
        })
    }

    /// Gives the last rows.
    ///
    /// # Errors
    /// The values are of another run.
    pub(super) fn finish(mut self) -> Result<()> {
        if !self.rows.has_ended() {
            ensure!(
                self.next.is_none() && self.reached == self.given,
                "the values are of another run: instructions with probes were reached {} times, \
                 and {} of these have values",
                self.reached,
                self.given
            );
        }
        self.rows.finish(&mut self.names);
        Ok(())
    }

    /// `reached`: the instructions that were reached.
    fn ran(&mut self, translation: u32, code: &TranslatedCode, reached: u32) -> Result<()> {
        let probed = self.probed.get(translation as usize).map_or(&[][..], |probed| probed);
        let own = probed.iter().filter(|&&at| u32::from(at) < reached).count();
        self.reached += own as u64;
        while let Some(hit) = self.next.take_if(|hit| hit.execution <= self.execution) {
            ensure!(hit.execution == self.execution, "the values are of another run");
            let at = (hit.execution, hit.instruction, hit.point);
            // A string instruction that goes on is reached once. One that was withdrawn is not.
            if u32::from(hit.instruction) < reached && self.last != Some(at) {
                self.last = Some(at);
                self.give(&hit, code)?;
            }
            self.next = self.hits.next_hit()?;
        }
        if self.wants_costs {
            let left = (reached < code.lengths.len() as u32).then_some(reached);
            self.costs.ran(translation, left, reached);
        }
        self.execution += 1;
        self.position += u64::from(reached);
        Ok(())
    }

    fn give(&mut self, hit: &ProbeHit, code: &TranslatedCode) -> Result<()> {
        let set = self.set;
        let point = hit.point as usize;
        let (Some(program), Some(&owner)) = (set.program.points.get(point), set.owners.get(point))
        else {
            bail!("the values are of other probes");
        };
        ensure!(
            code.addr_of(hit.instruction) == program.addr,
            "the values are of another run: there is no instruction {} in the execution",
            program.addr
        );
        self.given += 1;
        let start = self.position + u64::from(hit.instruction);
        let probe = &set.probes[owner];
        if probe.positions.as_ref().is_some_and(|only| only.binary_search(&start).is_err()) {
            return Ok(());
        }
        let cost = match self.wants_costs {
            true => self.costs.book(self.running.current),
            false => TaskCost::default(),
        };
        let (ran, machine) = (cost.instructions + u64::from(hit.instruction), cost.machine);
        let data = machine.and_then(|machine| machine.data);
        let [task, pid] = self.tasks.cells(self.running.current);
        let mut cells = [Cell::Null; OWN_COLUMNS + 3 * MOST_VALUES];
        cells[..OWN_COLUMNS].copy_from_slice(&[
            self.probe_names[owner].into(),
            start.into(),
            self.running.cpu().0.into(),
            task,
            pid,
            ran.into(),
            machine.map(|machine| machine.cycles).into(),
            machine.map(|machine| machine.l1i).into(),
            data.map(|(l1d, _)| l1d).into(),
            data.map(|(_, l2)| l2).into(),
        ]);
        for (at, (value, (_, kind))) in hit.values.iter().zip(&probe.values).enumerate() {
            let (group, cell) = match (kind, value) {
                (_, ReadValue::None) => continue,
                (ValueKind::Number, ReadValue::Number(number)) => (0, (*number).into()),
                (ValueKind::Address, ReadValue::Number(number)) => (1, (*number).into()),
                (_, ReadValue::Text(text)) => {
                    (2, self.names.id(&String::from_utf8_lossy(text)).into())
                }
                (ValueKind::Text, ReadValue::Number(_)) => continue,
            };
            if let Some(place) = cells.get_mut(OWN_COLUMNS + group * MOST_VALUES + at) {
                *place = cell;
            }
        }
        self.rows.push(&mut self.names, cells);
        Ok(())
    }
}

impl Observer for ProbedInstructions<'_> {
    fn begin(&mut self, header: &RecordingHeader, _: bool) -> Result<Wants> {
        // Of several CPUs, only the L1Is are simulated.
        let data = self.costs.wish().filter(|_| header.cpus == CpuCount::ONE);
        self.takes_data = data.is_some();
        Ok(Wants { data, ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        let points = &self.set.program.points;
        for (translation, code) in translations.iter().zip(codes) {
            if self.wants_machine {
                self.costs.define(translation, code)?;
            }
            let mut probed = Vec::new();
            for at in 0..translation.instructions() {
                let addr = code.addr_of(at as u16);
                if self.addresses.contains(&addr.0) {
                    let count = points.iter().filter(|point| point.addr == addr).count();
                    probed.extend(std::iter::repeat_n(at as u16, count));
                }
            }
            self.probed.push(probed.into());
        }
        Ok(())
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.tasks.define(&mut self.names, tasks);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        if self.wants_costs {
            self.costs.book(self.running.current);
            self.costs.turn_to(piece.cpu);
        }
        self.running.turn_to(piece.cpu, || None);
        if let Some(data) = piece.data.as_ref().filter(|_| self.takes_data) {
            self.costs.accesses(piece.codes, data)?;
        }
        for event in piece.events() {
            match event {
                StreamEvent::Executed(id) => {
                    let code = &piece.codes[id.0 as usize];
                    self.ran(id.0, code, code.lengths.len() as u32)?;
                }
                StreamEvent::Left { translation, instructions } => {
                    self.ran(translation.0, &piece.codes[translation.0 as usize], instructions)?;
                }
                StreamEvent::Task(id) => {
                    if self.wants_costs {
                        self.costs.book(self.running.current);
                    }
                    self.running.current = Some(id.0);
                }
                StreamEvent::Cpu(_)
                | StreamEvent::Marker(_)
                | StreamEvent::Woken(_)
                | StreamEvent::Clock(_) => {}
            }
        }
        self.rows.passes(self.position);
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.rows.has_ended()
    }
}
