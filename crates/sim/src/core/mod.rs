//! An out-of-order core: how many cycles does a stream of instructions take, and what for?
//!
//! Input: a [`CoreDescription`], and blocks of instructions with their uops, branches and accesses
//! in program order. Output: counters by mode, among them every slot of every cycle.
//!
//! The core goes through the uops once, in program order, and gives each the cycles of its life:
//! predicted, delivered, dispatched, begun, complete, retired. It simulates no cycle by itself
//! (Sanchez and Kozyrakis, "ZSim: Fast and Accurate Microarchitectural Simulation of Thousand-Core
//! Systems", ISCA 2013, section 3.1).
//!
//! ```text
//! branch_unit → front_end → window (dispatch, schedulers, ports, retirement)
//!                  │            └ data_side (L1D, store queue) ─┐
//!                  └ L1I ───────────────────────────────────────┴→ levels, translation
//! ```
//!
//! Memory does not grow with the length of the stream. Wrong paths are not executed: they change no
//! cache. [`CoreCounters::wrong_path_targets`] bounds what they could have fetched.
//!
//! To add a structure: a module with its unit tests, its numbers in `description.rs`, and its place
//! in the picture above.

mod accesses;
mod branch_unit;
mod counters;
mod data_side;
pub(crate) mod description;
mod direction;
#[cfg(test)]
mod examples;
mod front_end;
mod history;
mod in_flight;
mod indirect;
mod levels;
mod ports;
mod prefetch;
mod ring;
mod scheduler;
mod serialising;
mod slots;
mod stores;
mod tagged;
#[cfg(test)]
mod tests;
mod translation;
mod uop;
mod when;
mod window;

pub use counters::CoreCounters;
pub use description::{
    CoreDescription, CoreError, CoreMemoryDescription, FixedData, FrontEndDescription,
    PredictionDescription, SchedulerDescription, TaggedTable, TargetLevel, UopCacheDescription,
    WindowDescription,
};
pub use serialising::Serialising;
pub use slots::{GraduationSlots, Slots};
pub use uop::{CoreBlock, CoreInstruction, DataAccess, FetchRun, Uop, UopKind, UopRegister};

use crate::branch_counters::PredictionFailure;
use crate::branches::{Branch, CodeAddr};
use crate::line::{Mode, PerMode};
use crate::machine::MachineModel;
use accesses::OwnAccesses;
use branch_unit::{BranchOutcome, BranchUnit};
use data_side::{DataSide, SharedMemory};
use front_end::FrontEnd;
use levels::Levels;
use translation::SecondTlb;
use window::{Surroundings, Window};

/// A branch that was executed, and whose target shows when the next block begins.
#[derive(Clone, Copy, Debug)]
struct OpenBranch {
    branch: Branch,
    mode: Mode,
    delivered: u64,
    complete: u64,
}

/// A core that runs.
#[derive(Clone, Debug)]
pub struct Core {
    description: CoreDescription,
    front: FrontEnd,
    window: Window,
    data: DataSide,
    shared: SharedMemory,
    branches: BranchUnit,
    open: Option<OpenBranch>,
    mode: Mode,
    counters: PerMode<CoreCounters>,
    /// The uops of the last load and the last store, for instructions with more accesses than uops.
    last_load: Uop,
    last_store: [Uop; 2],
}

impl Core {
    /// A core that has run nothing; `None` when the machine describes no core.
    ///
    /// # Errors
    /// The numbers of the machine contradict each other.
    pub fn new(machine: &MachineModel) -> Result<Option<Core>, CoreError> {
        machine.check_core()?;
        let (Some(core), Some(memory)) = (&machine.core, &machine.memory) else {
            return Ok(None);
        };
        let itlb = machine.itlb.map(|itlb| itlb.geometry());
        Ok(Some(Core {
            front: FrontEnd::new(&core.front_end, machine.l1i, itlb),
            window: Window::new(&core.window),
            data: DataSide::new(core, memory),
            shared: SharedMemory {
                levels: Levels::new(memory, &core.memory),
                tlb: SecondTlb::new(&core.memory),
            },
            branches: BranchUnit::new(&core.prediction),
            open: None,
            mode: Mode::Kernel,
            counters: PerMode::default(),
            last_load: Uop::new(UopKind::Load, 0),
            last_store: [UopKind::StoreAddress, UopKind::StoreData].map(|kind| Uop::new(kind, 0)),
            description: core.clone(),
        }))
    }

    /// Runs a block. `uops`: the table that its instructions name. `accesses`: what the block loads
    /// and stores, by instruction in program order; `None`: the stream has no data accesses.
    pub fn run(&mut self, block: &CoreBlock<'_>, uops: &[Uop], accesses: Option<&[DataAccess]>) {
        if let Some(arrives) = block.arrives {
            self.arrives(arrives, block.mode);
        }
        self.mode = block.mode;
        let mut instructions = block.instructions.iter();
        let mut rest = accesses.unwrap_or(&[]);
        for run in block.runs {
            self.front.run(run, &mut self.shared, self.counters.get_mut(block.mode));
            for instruction in instructions.by_ref().take(run.instructions.into()) {
                let own = OwnAccesses::cut(&mut rest, instruction.recorded);
                let (delivered, complete) =
                    self.instruction(instruction, uops, own, accesses.is_none());
                let branch = usize::from(instruction.branch).checked_sub(1);
                if let Some(branch) = branch.and_then(|branch| block.branches.get(branch)) {
                    self.executed(OpenBranch {
                        branch: *branch,
                        mode: block.mode,
                        delivered,
                        complete,
                    });
                }
            }
        }
    }

    /// An exception or interrupt came behind what ran last.
    pub fn interrupted(&mut self) {
        self.open = None;
        let cost = self.description.serialising[Serialising::Interrupt.index()];
        let mode = self.mode;
        let mut around = self.around(0, false, mode);
        let ends = around.0.drain(cost, &mut around.1);
        self.front.restart(ends);
    }

    /// Ends the run: what is in the window retires. Returns the cycles from the start.
    pub fn finish(&mut self) -> u64 {
        let mode = self.mode;
        let mut around = self.around(0, false, mode);
        around.0.finish(&mut around.1)
    }

    /// The counters of each mode. The slots of both modes are those of all cycles, once the run has
    /// ended. Slots lost before an instruction count for its mode.
    pub fn counters(&self) -> PerMode<CoreCounters> {
        self.counters
    }

    /// The cycle of the dispatch.
    pub fn cycle(&self) -> u64 {
        self.window.cycle()
    }

    /// The description of the core.
    pub fn description(&self) -> &CoreDescription {
        &self.description
    }

    /// The window, and what it needs.
    fn around(
        &mut self,
        site: u32,
        fixed_data: bool,
        mode: Mode,
    ) -> (&mut Window, Surroundings<'_>) {
        let around = Surroundings {
            data: &mut self.data,
            shared: &mut self.shared,
            counters: self.counters.get_mut(mode),
            costs: &self.description.serialising,
            site,
            fixed_data,
        };
        (&mut self.window, around)
    }

    /// Runs an instruction. The cycles in which it was delivered and complete.
    #[inline]
    fn instruction(
        &mut self,
        instruction: &CoreInstruction,
        uops: &[Uop],
        mut own: OwnAccesses<'_>,
        fixed_data: bool,
    ) -> (u64, u64) {
        let mode = self.mode;
        let counters = self.counters.get_mut(mode);
        let delivered = self.front.deliver(instruction, &mut self.shared, counters);
        self.counters.get_mut(mode).instructions += 1;
        let first = instruction.first_uop as usize;
        let mut uops = uops.get(first..first + usize::from(instruction.uops)).unwrap_or(&[]);
        let mut complete = 0;
        let mut restart = None;
        while !uops.is_empty() {
            let slot = uops[1..].iter().position(|uop| uop.begins_slot);
            let (now, later) = uops.split_at(slot.map_or(uops.len(), |more| more + 1));
            uops = later;
            self.dispatch(now, delivered, instruction.first_uop, fixed_data);
            for uop in now {
                let access = match uop.kind {
                    UopKind::Load => {
                        self.last_load = *uop;
                        own.take(false)
                    }
                    UopKind::StoreAddress => {
                        self.last_store[0] = *uop;
                        own.take(true)
                    }
                    UopKind::StoreData => {
                        self.last_store[1] = *uop;
                        None
                    }
                    _ => None,
                };
                let (window, mut around) = self.around(instruction.first_uop, fixed_data, mode);
                complete = window.execute(uop, access, &mut around);
                if let UopKind::Serialising(class) = uop.kind
                    && class.transfers_control()
                {
                    restart = Some(complete);
                }
            }
        }
        self.more_accesses(&mut own, instruction, delivered);
        if let Some(ends) = restart {
            self.front.restart(ends);
        }
        if complete == 0 {
            complete = self.window.complete();
        }
        (delivered, complete)
    }

    #[inline]
    fn dispatch(&mut self, uops: &[Uop], delivered: u64, site: u32, fixed_data: bool) {
        let (mode, waited) = (self.mode, self.front.waited_for_line);
        let (window, mut around) = self.around(site, fixed_data, mode);
        let cycle = window.dispatch(uops, delivered, waited, &mut around);
        self.front.dispatched(cycle);
    }

    /// Runs the accesses of a repeated string instruction that its uops left.
    fn more_accesses(
        &mut self,
        own: &mut OwnAccesses<'_>,
        instruction: &CoreInstruction,
        delivered: u64,
    ) {
        let independent = |uop: Uop| Uop { begins_slot: true, ..Uop::new(uop.kind, uop.ports) };
        let mode = self.mode;
        while let Some(access) = own.take_more(false) {
            let load = independent(self.last_load);
            self.dispatch(&[load], delivered, instruction.first_uop, false);
            let (window, mut around) = self.around(instruction.first_uop, false, mode);
            window.execute(&load, Some(access), &mut around);
        }
        while let Some(access) = own.take_more(true) {
            let store = self.last_store.map(independent);
            self.dispatch(&store, delivered, instruction.first_uop, false);
            for uop in &store {
                let (window, mut around) = self.around(instruction.first_uop, false, mode);
                window.execute(uop, Some(access), &mut around);
            }
        }
    }

    /// A branch was executed.
    #[inline]
    fn executed(&mut self, open: OpenBranch) {
        match open.branch.target {
            None if open.branch.taken => self.open = Some(open),
            _ => self.resolve(&open),
        }
    }

    /// Control arrives at `arrives`, which is the target of the open branch. If an interrupt came
    /// between, its target is not known: user code never branches into the kernel.
    #[inline]
    fn arrives(&mut self, arrives: CodeAddr, mode: Mode) {
        let Some(open) = self.open.take() else { return };
        if mode == open.mode {
            let branch = Branch { target: Some(arrives), ..open.branch };
            self.resolve(&OpenBranch { branch, ..open });
        } else {
            self.front.taken(0);
        }
    }

    fn resolve(&mut self, open: &OpenBranch) {
        let outcome = self.branches.branch(&open.branch);
        let prediction = &self.description.prediction;
        let counters = self.counters.get_mut(open.mode);
        let failure = match outcome {
            BranchOutcome::Followed { bubble } => {
                if open.branch.taken {
                    counters.late_targets += u64::from(bubble > 0);
                    counters.bubble_cycles += u64::from(bubble);
                    self.front.taken(bubble);
                }
                None
            }
            BranchOutcome::Resteered => {
                self.front.restart(open.delivered + 2 + u64::from(prediction.resteer_penalty));
                Some(PredictionFailure::Misfetch)
            }
            BranchOutcome::Mispredicted(failure) => {
                let front = &self.description.front_end;
                let most =
                    front.fetch_targets + front.queue + self.description.window.reorder_buffer;
                let cycles = open.complete.saturating_sub(self.front.predicted);
                counters.wrong_path_targets += cycles.min(most.into());
                self.window.resolved = open.complete;
                let penalty = u64::from(prediction.mispredict_penalty);
                self.front.restart(open.complete + penalty - 2);
                Some(failure)
            }
        };
        counters.branches.count(&open.branch, failure);
    }
}
