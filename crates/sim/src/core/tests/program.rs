//! Small programs: lines of instructions of one uop, run in rounds.

use super::super::*;
use crate::branches::BranchKind;
use crate::line::{LineId, PhysAddr};

fn register(number: u8) -> UopRegister {
    UopRegister::new(number).unwrap_or(UopRegister::NONE)
}

fn result(number: u8) -> UopRegister {
    UopRegister::new(number).unwrap_or(UopRegister::DISCARD)
}

/// Computes on port 0 or 1. Register 0: none.
pub(super) fn alu(latency: u16, reads: u8, writes: u8) -> Uop {
    Uop {
        latency,
        reads: [register(reads), UopRegister::NONE, UopRegister::NONE],
        writes: [result(writes), UopRegister::DISCARD, UopRegister::DISCARD],
        ..Uop::new(UopKind::Compute, 0b11)
    }
}

pub(super) fn on_port(ports: u16) -> Uop {
    Uop::new(UopKind::Compute, ports)
}

pub(super) fn eliminated() -> Uop {
    Uop::new(UopKind::Eliminated, 0)
}

pub(super) fn serialising(class: Serialising) -> Uop {
    Uop::new(UopKind::Serialising(class), 0)
}

pub(super) fn load(reads: u8, writes: u8) -> Uop {
    Uop { kind: UopKind::Load, ports: 0b100, ..alu(0, reads, writes) }
}

/// A store of a register, in one slot.
pub(super) fn store(reads: u8) -> [Uop; 2] {
    let data =
        Uop { kind: UopKind::StoreData, ports: 0b1000, begins_slot: false, ..alu(1, reads, 0) };
    [Uop::new(UopKind::StoreAddress, 0b1000), data]
}

type Outcome = dyn Fn(u64) -> (bool, u64);
type Addresses = dyn Fn(u64) -> Vec<u64>;

#[derive(Clone)]
pub(super) struct Program {
    uops: Vec<Uop>,
    /// The instructions of each line.
    lines: Vec<Vec<CoreInstruction>>,
    first_line: u32,
    /// The kind of the last instruction of each block, and what it does in a round.
    branch: Option<(BranchKind, std::rc::Rc<Outcome>)>,
    /// Each line is a block that ends in a jump to the next.
    jumps: bool,
    accesses: Option<std::rc::Rc<Addresses>>,
}

impl Program {
    /// Instructions of 4 bytes and one slot, line by line.
    pub(super) fn lines(lines: &[&[Uop]]) -> Program {
        let (mut uops, mut all, mut recorded) = (Vec::new(), Vec::new(), 0..);
        for line in lines {
            let mut instructions: Vec<CoreInstruction> = Vec::new();
            for uop in *line {
                match instructions.last_mut().filter(|_| !uop.begins_slot) {
                    Some(last) => last.uops += 1,
                    None => instructions.push(CoreInstruction {
                        first_uop: uops.len() as u32,
                        uops: 1,
                        slots: 1,
                        bytes: 4,
                        branch: 0,
                        recorded: recorded.next().unwrap_or(0),
                    }),
                }
                uops.push(*uop);
            }
            all.push(instructions);
        }
        Program { uops, lines: all, first_line: 0, branch: None, jumps: false, accesses: None }
    }

    pub(super) fn bytes(mut self, bytes: u8) -> Program {
        self.lines.iter_mut().flatten().for_each(|instruction| instruction.bytes = bytes);
        self
    }

    pub(super) fn first_line(self, first_line: u32) -> Program {
        Program { first_line, ..self }
    }

    /// The last instruction is a branch. `outcome`: taken, and where to.
    pub(super) fn branch(
        self,
        kind: BranchKind,
        outcome: impl Fn(u64) -> (bool, u64) + 'static,
    ) -> Program {
        Program { branch: Some((kind, std::rc::Rc::new(outcome))), ..self }
    }

    /// Each line ends in a jump.
    pub(super) fn jumps(self) -> Program {
        Program { jumps: true, ..self }
    }

    /// The addresses that loads and stores access in a round, in order.
    pub(super) fn accesses(self, addresses: impl Fn(u64) -> Vec<u64> + 'static) -> Program {
        Program { accesses: Some(std::rc::Rc::new(addresses)), ..self }
    }

    /// Runs a round in detail.
    pub(super) fn run(&self, core: &mut Core, round: u64) {
        self.pass(core, round, false);
    }

    /// Passes a round without time.
    pub(super) fn warm(&self, core: &mut Core, round: u64) {
        self.pass(core, round, true);
    }

    fn pass(&self, core: &mut Core, round: u64, warm: bool) {
        if self.jumps {
            for line in 0..self.lines.len() {
                let target = (line + 1) % self.lines.len();
                let jump = self.branch_at(line, BranchKind::Jump, true, target as u64 * 64);
                self.block(core, (round, warm), line..line + 1, &[jump]);
            }
            return;
        }
        let branches: Vec<Branch> = self
            .branch
            .iter()
            .map(|(kind, outcome)| {
                let (taken, target) = outcome(round);
                self.branch_at(self.lines.len() - 1, *kind, taken, target)
            })
            .collect();
        self.block(core, (round, warm), 0..self.lines.len(), &branches);
    }

    fn branch_at(&self, line: usize, kind: BranchKind, taken: bool, target: u64) -> Branch {
        let at = (u64::from(self.first_line) + line as u64) * 64 + 60;
        Branch {
            kind,
            at: CodeAddr(at),
            end: CodeAddr(at + 4),
            target: Some(CodeAddr(target)),
            taken,
        }
    }

    /// What is fetched of these lines.
    pub(super) fn fetch_runs(&self, lines: std::ops::Range<usize>) -> Vec<FetchRun> {
        let run = |(line, own): (usize, &Vec<CoreInstruction>)| {
            let number = self.first_line + line as u32;
            FetchRun {
                line: LineId::new(Mode::Kernel, number).unwrap(),
                page: LineId::new(Mode::Kernel, 0).unwrap(),
                physical: PhysAddr((1 << 30) | (u64::from(number) * 64)),
                instructions: own.len() as u16,
                slots: own.iter().map(|own| u16::from(own.slots)).sum(),
                branch: own.last().map_or(0, |last| last.branch),
            }
        };
        self.lines.iter().enumerate().take(lines.end).skip(lines.start).map(run).collect()
    }

    fn block(
        &self,
        core: &mut Core,
        (round, warm): (u64, bool),
        lines: std::ops::Range<usize>,
        branches: &[Branch],
    ) {
        let mut runs = self.fetch_runs(lines.clone());
        let mut instructions: Vec<CoreInstruction> = self.lines[lines.clone()].concat();
        if let (Some(last), false) = (instructions.last_mut(), branches.is_empty()) {
            last.branch = 1;
            runs.iter_mut().next_back().into_iter().for_each(|run| run.branch = 1);
        }
        let accesses = self.accesses.as_ref().map(|addresses| {
            let mut addresses = addresses(round).into_iter();
            let mut accesses = Vec::new();
            for instruction in &instructions {
                let access = |addr: u64, is_store| DataAccess {
                    physical: PhysAddr(addr),
                    page: LineId::new(Mode::Kernel, (addr >> 12) as u32).unwrap(),
                    instruction: instruction.recorded,
                    size: 8,
                    is_store,
                };
                let first = instruction.first_uop as usize;
                for uop in &self.uops[first..first + usize::from(instruction.uops)] {
                    match uop.kind {
                        UopKind::Load | UopKind::StoreAddress => {
                            let is_store = uop.kind == UopKind::StoreAddress;
                            accesses.push(access(addresses.next().unwrap(), is_store));
                        }
                        // A repeated string instruction makes all other stores.
                        UopKind::Microcode => {
                            accesses.extend(addresses.by_ref().map(|addr| access(addr, true)));
                        }
                        _ => {}
                    }
                }
            }
            accesses
        });
        let block = CoreBlock {
            mode: Mode::Kernel,
            arrives: Some(CodeAddr((u64::from(self.first_line) + lines.start as u64) * 64)),
            runs: &runs,
            instructions: &instructions,
            branches,
        };
        match warm {
            true => core.warm(&block, &self.uops, accesses.as_deref()),
            false => core.run(&block, &self.uops, accesses.as_deref()),
        }
    }
}
