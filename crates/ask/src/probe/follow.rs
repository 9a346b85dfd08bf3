//! Follows a stretch of code, to learn what registers and memory hold further on in terms of what
//! they held at its beginning.
//!
//! Input: code, an address, and which calls matter. Output: the state at each of these calls, on
//! every path. Nothing is executed. What cannot be said as loads, sums and bits is unknown.
//!
//! ```text
//! mov 0x8(%rax),%rdi    rdi = what lies at rax + 8
//! mov %rbx,%rsi         rsi = rbx
//! call …                these are the values at the call
//! ```

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};
use std::collections::{BTreeMap, HashSet};
use trace::probe::{ProbeValue, REGISTERS, ValueStart, ValueStep};

/// The most instructions that are followed on all paths together.
const MOST_STEPS: usize = 20_000;
/// The registers that a function may change (System V ABI, section 3.2.1).
const CALLER_SAVED: [&str; 9] = ["rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"];
const RSP: usize = 7;
const RAX: usize = 0;

/// What a register or a place in memory holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Held {
    /// A number that can be read at the beginning.
    Value(ProbeValue),
    /// The address that a call of kind [`CallKind::Gives`] returned, and so many bytes more.
    Given(i64),
    /// Something else.
    Unknown,
}

/// What a call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// The path ends here, and its state is wanted.
    Ends,
    /// It returns memory, and what is stored there is wanted.
    Gives,
    /// Another one.
    Other,
}

/// A store into the memory that a call gave.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stored {
    /// The offset in that memory.
    pub at: i64,
    /// Its bytes.
    pub bytes: u8,
    /// What is stored.
    pub what: Held,
}

/// Registers and memory at an instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    registers: [Held; 16],
    /// What was stored on the stack, and its bytes, by distance from the stack pointer at the
    /// beginning.
    stack: BTreeMap<i64, (u8, Held)>,
    /// The stores into the memory that a call gave.
    pub stored: Vec<Stored>,
}

impl State {
    /// The state at the beginning: each register holds itself.
    pub(super) fn beginning() -> State {
        let own = |number: usize| Held::Value(start(ValueStart::Register(number as u8)));
        State { registers: std::array::from_fn(own), stack: BTreeMap::new(), stored: Vec::new() }
    }

    /// What a register holds, by its name.
    pub(super) fn register(&self, name: &str) -> &Held {
        let number = REGISTERS.iter().position(|&known| known == name);
        number.and_then(|number| self.registers.get(number)).unwrap_or(&Held::Unknown)
    }

    /// The eight bytes on top of the stack, and so many bytes below it.
    pub(super) fn on_stack(&self, below: i64) -> Held {
        let top = stack_offset(&self.registers[RSP]);
        top.map_or(Held::Unknown, |top| self.stack_value(top + below, 8, false))
    }

    fn set(&mut self, register: Register, what: Held) {
        if let Some(number) = number_of(register) {
            // The lower part of a register leaves the rest as it is.
            self.registers[number] = if register.size() < 4 { Held::Unknown } else { what };
        }
    }

    /// What an operand register holds, as a number of its size.
    fn get(&self, register: Register, signed: bool) -> Held {
        let Some(number) = number_of(register) else { return Held::Unknown };
        let is_upper =
            matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
        match (is_upper, register.size()) {
            (true, _) => Held::Unknown,
            (_, 8) => self.registers[number].clone(),
            (_, bytes) => {
                with(&self.registers[number], ValueStep::Bits(0, 8 * bytes as u8, signed))
            }
        }
    }

    fn load(&self, instruction: &Instruction, bytes: u8, signed: bool) -> Held {
        let address = self.address(instruction);
        match stack_offset(&address) {
            Some(at) => self.stack_value(at, bytes, signed),
            None => with(&address, ValueStep::Load(bytes, signed)),
        }
    }

    fn stack_value(&self, at: i64, bytes: u8, signed: bool) -> Held {
        let end = at.saturating_add(bytes.into());
        let mut near = self.stack.range(at.saturating_sub(63)..end);
        match near.rfind(|(own, (size, _))| **own + i64::from(*size) > at) {
            Some((&own, (size, held))) if own == at && bytes <= *size => match bytes {
                8 => held.clone(),
                _ => with(held, ValueStep::Bits(0, 8 * bytes, signed)),
            },
            // A part of it was stored.
            Some(_) => Held::Unknown,
            // Above the beginning lies what was there before.
            None if at >= 0 => {
                let mut value = start(ValueStart::Register(RSP as u8));
                push(&mut value, ValueStep::Add(at));
                push(&mut value, ValueStep::Load(bytes, signed));
                Held::Value(value)
            }
            None => Held::Unknown,
        }
    }

    fn store(&mut self, instruction: &Instruction, bytes: u8, what: Held) {
        let address = self.address(instruction);
        if let Held::Given(at) = address {
            self.stored.push(Stored { at, bytes, what });
        } else if let Some(at) = stack_offset(&address) {
            self.put(at, bytes, what);
        }
    }

    fn put(&mut self, at: i64, bytes: u8, what: Held) {
        let end = at.saturating_add(bytes.into());
        self.stack.retain(|&old, (size, _)| old + i64::from(*size) <= at || old >= end);
        self.stack.insert(at, (bytes, what));
    }

    /// The address of the operand in memory.
    fn address(&self, instruction: &Instruction) -> Held {
        let displacement = instruction.memory_displacement64();
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let has_base = !matches!(base, Register::None | Register::RIP);
        match instruction.segment_prefix() {
            Register::None => {}
            Register::GS if !has_base && index == Register::None => {
                let mut value = start(ValueStart::PerCpu);
                push(&mut value, ValueStep::Add(displacement as i64));
                return Held::Value(value);
            }
            _ => return Held::Unknown,
        }
        match (has_base, index) {
            (false, Register::None) => Held::Value(start(ValueStart::Number(displacement))),
            (true, Register::None) => {
                with(&self.get(base, false), ValueStep::Add(displacement as i64))
            }
            _ => Held::Unknown,
        }
    }

    /// The operand that is read.
    fn operand(&self, instruction: &Instruction, number: u32, signed: bool) -> Held {
        match instruction.op_kind(number) {
            OpKind::Register => self.get(instruction.op_register(number), signed),
            OpKind::Memory => {
                let bytes = instruction.memory_size().size();
                match bytes {
                    1 | 2 | 4 | 8 => self.load(instruction, bytes as u8, signed),
                    _ => Held::Unknown,
                }
            }
            OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64 => {
                Held::Value(start(ValueStart::Number(instruction.immediate(number))))
            }
            _ => Held::Unknown,
        }
    }

    /// Executes an instruction that leaves control to the next one.
    fn execute(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) {
        let to = instruction.op0_register();
        let to_memory = instruction.op0_kind() == OpKind::Memory;
        match instruction.mnemonic() {
            Mnemonic::Mov if to_memory => {
                let bytes = instruction.memory_size().size() as u8;
                self.store(instruction, bytes, self.operand(instruction, 1, false));
            }
            Mnemonic::Mov | Mnemonic::Movzx => self.set(to, self.operand(instruction, 1, false)),
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                let what = self.operand(instruction, 1, true);
                let is_whole = to.size() == 8;
                self.set(
                    to,
                    if is_whole { what } else { with(&what, ValueStep::Bits(0, 32, false)) },
                );
            }
            Mnemonic::Lea if to.size() == 8 => self.set(to, self.address(instruction)),
            Mnemonic::Add | Mnemonic::Sub
                if to.size() == 8
                    && instruction.op1_kind() != OpKind::Register
                    && instruction.op1_kind() != OpKind::Memory =>
            {
                let more = instruction.immediate(1) as i64;
                let is_sum = instruction.mnemonic() == Mnemonic::Add;
                let more = if is_sum { more } else { more.wrapping_neg() };
                self.set(to, with(&self.get(to, false), ValueStep::Add(more)));
            }
            Mnemonic::Xor | Mnemonic::Sub
                if instruction.op1_kind() == OpKind::Register
                    && !to_memory
                    && to == instruction.op1_register()
                    && to.size() >= 4 =>
            {
                self.set(to, Held::Value(start(ValueStart::Number(0))));
            }
            Mnemonic::Push => {
                let what = self.operand(instruction, 0, false);
                self.moves_stack(-8);
                if let Some(top) = stack_offset(&self.registers[RSP]) {
                    self.put(top, 8, what);
                }
            }
            Mnemonic::Pop if !to_memory => {
                let what = self.on_stack(0);
                self.moves_stack(8);
                self.set(to, what);
            }
            _ => self.unknown(instruction, info),
        }
    }

    fn moves_stack(&mut self, by: i64) {
        self.registers[RSP] = with(&self.registers[RSP], ValueStep::Add(by));
    }

    /// What the instruction writes is not known.
    fn unknown(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) {
        let is_written = |access: OpAccess| {
            matches!(
                access,
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            )
        };
        let info = info.info(instruction);
        let written = info.used_registers().iter().filter(|used| is_written(used.access()));
        let written: Vec<Register> = written.map(|used| used.register()).collect();
        let stores = info.used_memory().iter().any(|used| is_written(used.access()));
        if stores && instruction.op0_kind() == OpKind::Memory {
            let bytes = instruction.memory_size().size().min(64) as u8;
            self.store(instruction, bytes, Held::Unknown);
        }
        for register in written {
            if let Some(number) = number_of(register) {
                self.registers[number] = Held::Unknown;
            }
        }
    }

    fn returned(&mut self, kind: CallKind) {
        for name in CALLER_SAVED {
            if let Some(number) = REGISTERS.iter().position(|&known| known == name) {
                self.registers[number] = Held::Unknown;
            }
        }
        if kind == CallKind::Gives {
            self.registers[RAX] = Held::Given(0);
        }
    }
}

/// The states at calls of kind [`CallKind::Ends`], of all paths from an address. `code`: the bytes
/// from an address to the end of its function. `call`: what a call of an address means. `back`:
/// where a path ends that does not come to such a call.
pub(super) fn follow<'c>(
    from: u64,
    code: &dyn Fn(u64) -> Option<&'c [u8]>,
    call: &dyn Fn(u64) -> CallKind,
    back: u64,
) -> Vec<State> {
    let mut info = InstructionInfoFactory::new();
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut paths = vec![(from, State::beginning())];
    let mut steps = 0;
    while let Some((at, mut state)) = paths.pop() {
        let Some(bytes) = code(at).filter(|_| at != back) else { continue };
        if !seen.insert((at, state.clone())) {
            continue;
        }
        for instruction in Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).iter() {
            steps += 1;
            // Of too much code, nothing is known.
            if steps > MOST_STEPS || instruction.code() == Code::INVALID {
                return Vec::new();
            }
            let is_direct = instruction.op0_kind() == OpKind::NearBranch64;
            let target = instruction.near_branch_target();
            match instruction.flow_control() {
                FlowControl::Next => state.execute(&instruction, &mut info),
                FlowControl::Call if is_direct => match call(target) {
                    CallKind::Ends => {
                        found.push(state);
                        break;
                    }
                    kind => state.returned(kind),
                },
                FlowControl::Call | FlowControl::IndirectCall => state.returned(CallKind::Other),
                FlowControl::UnconditionalBranch if is_direct => {
                    paths.push((target, state));
                    break;
                }
                FlowControl::ConditionalBranch if is_direct => {
                    paths.push((target, state.clone()));
                    paths.push((instruction.next_ip(), state));
                    break;
                }
                _ => break,
            }
            if instruction.next_ip() == back {
                break;
            }
        }
    }
    found
}

/// A value of code behind a call, in terms of what held the arguments before it. `arguments`: by
/// number. `None`: it depends on something else.
pub(super) fn composed(value: &ProbeValue, arguments: &[Option<ProbeValue>]) -> Option<ProbeValue> {
    let (begin, rest) = match value.start {
        ValueStart::Number(_) | ValueStart::PerCpu => (start(value.start), &value.steps[..]),
        ValueStart::Register(number) if usize::from(number) == RSP => {
            // Behind the return address.
            let [ValueStep::Add(at), ValueStep::Load(bytes, signed), rest @ ..] = &value.steps[..]
            else {
                return None;
            };
            let number = usize::try_from(at / 8 - 1).ok().filter(|_| at % 8 == 0)?;
            let mut argument = arguments.get(ARGUMENTS.len() + number)?.clone()?;
            push(&mut argument, ValueStep::Bits(0, 8 * bytes, *signed));
            (argument, rest)
        }
        ValueStart::Register(number) => {
            let name = REGISTERS.get(usize::from(number))?;
            let number = ARGUMENTS.iter().position(|known| known == name)?;
            (arguments.get(number)?.clone()?, &value.steps[..])
        }
    };
    let mut whole = begin;
    rest.iter().for_each(|&step| push(&mut whole, step));
    Some(whole)
}

/// The registers of the first arguments (System V ABI, section 3.2.3).
pub(super) const ARGUMENTS: [&str; 6] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"];

fn start(start: ValueStart) -> ProbeValue {
    ProbeValue { start, steps: Vec::new() }
}

fn push(value: &mut ProbeValue, step: ValueStep) {
    push_step(&mut value.steps, step);
}

/// Adds a step to others, so that they are as few as possible.
pub(super) fn push_step(steps: &mut Vec<ValueStep>, step: ValueStep) {
    match (steps.last_mut(), step) {
        (_, ValueStep::Add(0) | ValueStep::Bits(0, 64, _)) => {}
        (Some(ValueStep::Add(sum)), ValueStep::Add(more)) => {
            *sum = sum.wrapping_add(more);
            if *sum == 0 {
                steps.pop();
            }
        }
        (Some(ValueStep::Load(bytes, before)), ValueStep::Bits(0, count, signed))
            if *bytes * 8 == count =>
        {
            *before = signed;
        }
        // Fewer bits without a sign are the same number.
        (Some(ValueStep::Bits(0, fewer, false)), ValueStep::Bits(0, count, _))
            if *fewer < count => {}
        (Some(ValueStep::Bits(0, same, before)), ValueStep::Bits(0, count, signed))
            if *same == count =>
        {
            *before = signed;
        }
        _ => steps.push(step),
    }
}

fn with(held: &Held, step: ValueStep) -> Held {
    match (held, step) {
        (Held::Value(value), step) => {
            let mut value = value.clone();
            match (value.start, &value.steps[..], step) {
                (ValueStart::Number(number), [], ValueStep::Add(more)) => {
                    value.start = ValueStart::Number(number.wrapping_add_signed(more));
                }
                _ => push(&mut value, step),
            }
            Held::Value(value)
        }
        (Held::Given(at), ValueStep::Add(more)) => Held::Given(at.wrapping_add(more)),
        _ => Held::Unknown,
    }
}

/// How far from the stack pointer at the beginning an address lies.
fn stack_offset(held: &Held) -> Option<i64> {
    let Held::Value(value) = held else { return None };
    match (value.start, &value.steps[..]) {
        (ValueStart::Register(number), []) if usize::from(number) == RSP => Some(0),
        (ValueStart::Register(number), [ValueStep::Add(by)]) if usize::from(number) == RSP => {
            Some(*by)
        }
        _ => None,
    }
}

/// The number in [`REGISTERS`] of the register that holds this one.
fn number_of(register: Register) -> Option<usize> {
    let whole = format!("{:?}", register.full_register()).to_ascii_lowercase();
    REGISTERS[..16].iter().position(|&known| known == whole)
}

#[cfg(test)]
mod tests;
