//! An out-of-order core: the cycles that a stream of instructions takes, and what they are spent
//! on.
//!
//! Input: a [`CoreDescription`], and blocks of instructions with their uops, branches and accesses
//! in program order. Output: counters by mode, among them every slot of every cycle.
//!
//! The core goes through the uops once, in program order, and gives each the cycles of its life:
//! predicted, delivered, dispatched, begun, complete, retired. It does not simulate cycle by cycle
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
mod maker;
mod ports;
mod prefetch;
mod register_file;
mod ring;
mod scheduler;
mod serialising;
mod slots;
mod start_targets;
mod stores;
mod tagged;
#[cfg(test)]
mod tests;
mod translation;
mod uop;
mod uop_cache;
mod warm;
mod when;
mod window;

pub use counters::CoreCounters;
pub use description::{
    CoreDescription, CoreError, CoreMemoryDescription, DirectionDescription, FixedData,
    FrontEndDescription, PortBinding, PredictionDescription, SchedulerDescription, StringSlots,
    TaggedTable, TargetLevel, UopCacheDescription, WindowDescription,
};
pub use maker::{MnemonicId, SharedUopMaker, TranslatedInstruction, UopLatencies, UopMaker};
pub use register_file::{RegisterFile, RegisterFiles};
pub use serialising::Serialising;
pub use slots::{CoreSlots, GraduationSlots, Slots};
pub use uop::{
    AddressForm, CoreBlock, CoreInstruction, DataAccess, FetchRun, Uop, UopKind, UopRegister,
};

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

/// An executed branch whose target shows when the next block begins.
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

    /// Brings the lines of code that ran before the run began into the levels behind the L1I.
    pub fn ran_before(&mut self, runs: &[FetchRun]) {
        runs.iter().for_each(|run| self.shared.levels.bring(run.physical));
    }

    /// Runs a block. `uops`: the table that its instructions name. `accesses`: what the block loads
    /// and stores, by instruction in program order; `None`: the stream has no data accesses.
    pub fn run(&mut self, block: &CoreBlock<'_>, uops: &[Uop], accesses: Option<&[DataAccess]>) {
        if let Some(arrives) = block.arrives {
            self.arrives(arrives, block.mode);
            self.front.arrives(arrives);
        }
        self.mode = block.mode;
        let mut instructions = block.instructions;
        let mut rest = accesses.unwrap_or(&[]);
        for run in block.runs {
            self.front.run(run, &mut self.shared, self.counters.get_mut(block.mode));
            let of_run = usize::from(run.instructions).min(instructions.len());
            let (mut now, later) = instructions.split_at(of_run);
            instructions = later;
            while let Some((last, delivered, complete)) =
                self.until_branch(&mut now, uops, &mut rest, accesses.is_none())
            {
                if let Some(&branch) = block.branches.get(usize::from(last.branch) - 1) {
                    let mode = block.mode;
                    self.executed(OpenBranch { branch, mode, delivered, complete });
                }
            }
        }
    }

    /// Runs instructions up to the first branch, and removes them from the list. Returns the
    /// branch, and the cycles in which it was delivered and complete.
    #[inline]
    fn until_branch<'b>(
        &mut self,
        instructions: &mut &'b [CoreInstruction],
        uops: &[Uop],
        rest: &mut &[DataAccess],
        fixed_data: bool,
    ) -> Option<(&'b CoreInstruction, u64, u64)> {
        let mode = self.mode;
        let mut stage = self.stage(fixed_data, mode);
        while let Some((instruction, later)) = instructions.split_first() {
            *instructions = later;
            let own = OwnAccesses::cut(rest, instruction.recorded);
            let (delivered, complete) = stage.instruction(instruction, uops, own);
            if instruction.branch != 0 {
                return Some((instruction, delivered, complete));
            }
        }
        None
    }

    /// An exception or interrupt came after the last instruction.
    pub fn interrupted(&mut self) {
        self.open = None;
        let cost = self.description.serialising[Serialising::Interrupt.index()];
        let mode = self.mode;
        let mut stage = self.stage(false, mode);
        let ends = stage.window.drain(cost, &mut stage.around);
        self.front.restart(ends);
    }

    /// Ends the run: what is in the window retires. Returns the cycles from the start.
    pub fn finish(&mut self) -> u64 {
        let mode = self.mode;
        let mut stage = self.stage(false, mode);
        stage.window.finish(&mut stage.around)
    }

    /// The counters of each mode. The slots of both modes are those of all cycles, once the run has
    /// ended. Slots lost before an instruction count for its mode.
    pub fn counters(&self) -> PerMode<CoreCounters> {
        self.counters
    }

    /// The slots of a mode so far. Their increase while a block of this mode runs belongs to the
    /// block.
    #[inline]
    pub fn slots(&self, mode: Mode) -> CoreSlots {
        let counters = self.counters.get(mode);
        CoreSlots { dispatch: counters.slots, graduation: counters.graduation }
    }

    /// The slots that pass while a line comes from memory: the most that one event can take.
    pub fn most_slots(&self) -> f64 {
        self.shared.levels.memory_latency() as f64 * f64::from(self.description.window.dispatch)
    }

    /// The description of the core.
    pub fn description(&self) -> &CoreDescription {
        &self.description
    }

    /// The stages that instructions of `mode` pass.
    #[inline]
    fn stage(&mut self, fixed_data: bool, mode: Mode) -> Stage<'_> {
        Stage {
            front: &mut self.front,
            window: &mut self.window,
            around: Surroundings {
                data: &mut self.data,
                shared: &mut self.shared,
                counters: self.counters.get_mut(mode),
                costs: &self.description.serialising,
                site: 0,
                fixed_data,
            },
            last_load: &mut self.last_load,
            last_store: &mut self.last_store,
            strings: self.description.window.strings,
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
        // A block that was moved can go on behind the branch.
        let Branch { taken, target, end, .. } = open.branch;
        if let Some(next) = if taken { target } else { Some(end) } {
            self.front.arrives(next);
        }
    }
}

/// What instructions pass on their way from the front end to their retirement.
struct Stage<'a> {
    front: &'a mut FrontEnd,
    window: &'a mut Window,
    around: Surroundings<'a>,
    last_load: &'a mut Uop,
    last_store: &'a mut [Uop; 2],
    strings: StringSlots,
}

impl Stage<'_> {
    /// Runs an instruction. Returns the cycles in which it was delivered and complete.
    #[inline]
    fn instruction(
        &mut self,
        instruction: &CoreInstruction,
        uops: &[Uop],
        mut own: OwnAccesses<'_>,
    ) -> (u64, u64) {
        let around = &mut self.around;
        let delivered = self.front.deliver(instruction, around.shared, around.counters);
        around.counters.instructions += 1;
        around.site = instruction.first_uop;
        let first = instruction.first_uop as usize;
        let mut uops = uops.get(first..first + usize::from(instruction.uops)).unwrap_or(&[]);
        let mut complete = 0;
        let mut restart = None;
        while !uops.is_empty() {
            let more = uops[1..].iter().take_while(|uop| !uop.begins_slot).count();
            let (now, later) = uops.split_at(more + 1);
            uops = later;
            self.dispatch(now, delivered);
            for uop in now {
                let access = self.access(uop, &mut own);
                complete = self.window.execute(uop, access, &mut self.around);
                if let UopKind::Serialising(class) = uop.kind
                    && class.transfers_control()
                {
                    restart = Some(complete);
                }
            }
            if now.last().is_some_and(|uop| uop.kind == UopKind::Microcode) {
                self.microcode(self.strings.begin, delivered);
            }
        }
        if own.any() {
            self.more_accesses(&mut own, delivered);
        }
        if let Some(ends) = restart {
            self.front.restart(ends);
        }
        if complete == 0 {
            complete = self.window.complete();
        }
        (delivered, complete)
    }

    /// The access of a uop.
    #[inline]
    fn access<'b>(&mut self, uop: &Uop, own: &mut OwnAccesses<'b>) -> Option<&'b DataAccess> {
        match uop.kind {
            UopKind::Load => {
                *self.last_load = *uop;
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
        }
    }

    #[inline]
    fn dispatch(&mut self, uops: &[Uop], delivered: u64) {
        let waited = self.front.waited_for_line;
        let cycle = self.window.dispatch(uops, delivered, waited, &mut self.around);
        self.front.dispatched(cycle);
    }

    /// Dispatches slots that execute nothing.
    fn microcode(&mut self, slots: u32, delivered: u64) {
        let nothing = [Uop::new(UopKind::Eliminated, 0)];
        for _ in 0..slots {
            self.dispatch(&nothing, delivered);
            self.window.execute(&nothing[0], None, &mut self.around);
        }
    }

    /// Runs the accesses of a repeated string instruction that its uops left.
    fn more_accesses(&mut self, own: &mut OwnAccesses<'_>, delivered: u64) {
        let independent = |uop: Uop| Uop { begins_slot: true, ..Uop::new(uop.kind, uop.ports) };
        let fixed_data = std::mem::replace(&mut self.around.fixed_data, false);
        let StringSlots { mut long, line, .. } = self.strings;
        while let Some(access) = own.take_more(false) {
            self.around.counters.string_accesses += 1;
            self.microcode(std::mem::take(&mut long) + line, delivered);
            let load = independent(*self.last_load);
            self.dispatch(&[load], delivered);
            self.window.execute(&load, Some(access), &mut self.around);
        }
        while let Some(access) = own.take_more(true) {
            self.around.counters.string_accesses += 1;
            self.microcode(std::mem::take(&mut long) + line, delivered);
            let store = self.last_store.map(independent);
            self.dispatch(&store, delivered);
            for uop in &store {
                self.window.execute(uop, Some(access), &mut self.around);
            }
        }
        self.around.fixed_data = fixed_data;
    }
}
