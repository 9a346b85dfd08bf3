//! What calls cost on a machine: a few instructions in a loop, with calls and without, on the
//! machine's core.
//!
//! Input: a machine, and how the kernel calls and returns on it. Output: cycles for each call. The
//! caller predicts with them what inlined calls save ([`layout::inlining`]).
//!
//! The loop is small and runs often: all of it is in the uop cache, and the predictors know it. So
//! the cost is what remains in the best case: the instructions of the call, and the mispredictions
//! that thunks cause on purpose (`docs/explanation/thunks.md`).

use crate::{ReplayLayout, ReplayTrial, SimulationScope, replay_trials};
use anyhow::{Context, Result};
use layout::inlining::{CallCosts, CallForms};
use sim::MachineModel;
use trace::{
    RecordingHeader, RecordingReader, RecordingWriter, RunAddr, StreamEvent, Translation,
    TranslationId,
};

/// Calls in the loop, each from another place.
const CALLS: u64 = 8;
/// How often the loop runs.
const ROUNDS: u64 = 400;

/// The places of the code, in the kernel's half of the addresses.
const LOOP: u64 = 0xffff_ffff_8100_0000;
const CALLEE: u64 = LOOP + 0x1000;
const RETURN_THUNK: u64 = LOOP + 0x2000;
const SAFE_RETURN: u64 = LOOP + 0x2040;
const CALL_THUNK: u64 = LOOP + 0x3000;
/// Where the inner call of a retpoline goes.
const CALL_THUNK_INNER: u64 = CALL_THUNK + 6;

/// `nopl 0(%rax,%rax,1)`: the site of the function tracer.
const TRACER: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00];
/// `add $1,%rbx`, `mov %rbx,%rcx`, `add $3,%rdx`: what the callee does.
const WORK: [&[u8]; 3] =
    [&[0x48, 0x83, 0xc3, 0x01], &[0x48, 0x89, 0xd9], &[0x48, 0x83, 0xc2, 0x03]];
/// `lea 8(%rsp),%rsp`.
const DROP: &[u8] = &[0x48, 0x8d, 0x64, 0x24, 0x08];
/// `mov %rax,(%rsp)`.
const AIM: &[u8] = &[0x48, 0x89, 0x04, 0x24];
const RETURN: &[u8] = &[0xc3];
/// `call *%rax`.
const INDIRECT_CALL: &[u8] = &[0xff, 0xd0];
/// `cmp $1,%rax`, and a `jne` that is not taken.
const GUARD: [&[u8]; 2] = [&[0x48, 0x3d, 0x01, 0x00, 0x00, 0x00], &[0x75, 0x40]];

/// What stands in the loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    /// The callee's work.
    Work,
    /// The work, behind a comparison.
    GuardedWork,
    /// A direct call.
    Call,
    /// A call through a register.
    IndirectCall,
    /// The work behind a jump, and a tracer's site.
    JumpedWork,
}

/// What calls cost on a machine; `None` if it describes no out-of-order core.
///
/// # Errors
/// The machine's numbers contradict each other.
pub fn call_costs(machine: &MachineModel, forms: CallForms) -> Result<Option<CallCosts>> {
    if machine.core.is_none() {
        return Ok(None);
    }
    let cycles = |inside| cycles(machine, &Program::new(inside, forms));
    let work = cycles(Inside::Work)?;
    let cost = |inside| anyhow::Ok((cycles(inside)? - work).max(0.0));
    Ok(Some(CallCosts {
        direct: cost(Inside::Call)?,
        indirect: cost(Inside::IndirectCall)?,
        jump: cost(Inside::JumpedWork)?,
        guard: cost(Inside::GuardedWork)?,
    }))
}

/// Cycles for each of the calls, or of what stands in its place.
fn cycles(machine: &MachineModel, program: &Program) -> Result<f64> {
    let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default())?;
    writer.translations(&program.code)?;
    let mut words = Vec::new();
    for _ in 0..ROUNDS {
        for &translation in &program.steps {
            StreamEvent::Executed(translation).append_to(&mut words);
        }
    }
    writer.stream(&words)?;
    let (recording, _) = writer.end()?;
    let (layout, machines) = (ReplayLayout::original(), [machine.clone()]);
    let trial = ReplayTrial::new(&layout, &machines, SimulationScope::Caches);
    let replayed = replay_trials(RecordingReader::new(&recording[..])?, &[trial])?;
    let core = replayed.layouts[0].machines[0].core.as_ref().context("no core was simulated")?;
    Ok(core.cycles as f64 / (CALLS * ROUNDS) as f64)
}

/// The code of a loop, and the order in which its parts run.
struct Program {
    code: Vec<Translation>,
    steps: Vec<TranslationId>,
}

impl Program {
    fn new(inside: Inside, forms: CallForms) -> Program {
        let mut program = Program { code: Vec::new(), steps: Vec::new() };
        let by_retpoline = inside == Inside::IndirectCall && forms.retpolines;
        let mut called = Vec::new();
        if by_retpoline {
            let inner = near(0xe8, CALL_THUNK, CALL_THUNK_INNER);
            called.push(program.add(CALL_THUNK, &[&inner]));
            called.extend(program.add_returning(CALL_THUNK_INNER, &[AIM], forms));
        }
        if matches!(inside, Inside::Call | Inside::IndirectCall) {
            let callee = [&[TRACER], &WORK[..]].concat();
            called.extend(program.add_returning(CALLEE, &callee, forms));
        }
        let mut at = LOOP;
        for _ in 0..CALLS {
            let jump = near(0xe9, at, at + 5);
            let call = near(0xe8, at, if by_retpoline { CALL_THUNK } else { CALLEE });
            // A translation ends with a branch.
            let parts: Vec<Vec<&[u8]>> = match inside {
                Inside::Work => vec![WORK.to_vec()],
                Inside::GuardedWork => vec![GUARD.to_vec(), WORK.to_vec()],
                Inside::JumpedWork => vec![vec![&jump], [&[TRACER], &WORK[..]].concat()],
                Inside::IndirectCall if !by_retpoline => vec![vec![INDIRECT_CALL]],
                Inside::Call | Inside::IndirectCall => vec![vec![&call]],
            };
            for part in parts {
                let step = program.add(at, &part);
                program.steps.push(step);
                at += size(&part);
            }
            program.steps.extend(&called);
        }
        let again = near(0xe9, at, LOOP);
        let step = program.add(at, &[&again]);
        program.steps.push(step);
        program
    }

    fn add(&mut self, at: u64, code: &[&[u8]]) -> TranslationId {
        let id = TranslationId(self.code.len() as u32);
        self.code.push(Translation {
            id,
            addr: RunAddr(at),
            lengths: code.iter().map(|bytes| bytes.len() as u8).collect(),
            code: code.concat().into(),
        });
        id
    }

    /// Adds code that returns, with the thunk through which it does.
    fn add_returning(&mut self, at: u64, code: &[&[u8]], forms: CallForms) -> Vec<TranslationId> {
        if !forms.safe_returns {
            return vec![self.add(at, &[code, &[RETURN]].concat())];
        }
        let jump = near(0xe9, at + size(code), RETURN_THUNK);
        let call = near(0xe8, RETURN_THUNK, SAFE_RETURN);
        vec![
            self.add(at, &[code, &[&jump[..]]].concat()),
            self.add(RETURN_THUNK, &[&call]),
            self.add(SAFE_RETURN, &[DROP, RETURN]),
        ]
    }
}

fn size(code: &[&[u8]]) -> u64 {
    code.iter().map(|bytes| bytes.len() as u64).sum()
}

/// A call or jump of five bytes.
fn near(opcode: u8, at: u64, to: u64) -> [u8; 5] {
    let [a, b, c, d] = (to.wrapping_sub(at + 5) as u32).to_le_bytes();
    [opcode, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(machine: &str, safe_returns: bool, retpolines: bool) -> CallCosts {
        let machine = machines::find(machine).unwrap().model;
        call_costs(&machine, CallForms { safe_returns, retpolines }).unwrap().unwrap()
    }

    /// `docs/results/processor.md` has the same points as user code.
    #[test]
    fn a_call_costs_what_its_return_costs_on_the_machine() {
        let safe = costs("zen4", true, false);
        println!("zen4 with safe returns: {safe:?}");
        assert!((28.0..36.0).contains(&safe.direct), "{safe:?}");
        for machine in ["zen4", "golden-cove"] {
            let plain = costs(machine, false, false);
            assert!((1.0..6.0).contains(&plain.direct), "{machine}: {plain:?}");
            assert!((plain.direct - plain.indirect).abs() < 2.0, "{machine}: {plain:?}");
            assert!((0.0..1.0).contains(&plain.guard), "{machine}: {plain:?}");
            assert!((0.1..2.0).contains(&plain.jump), "{machine}: {plain:?}");
            println!("{machine}: {plain:?}");
            let retpolines = costs(machine, false, true);
            assert_eq!(retpolines.direct, plain.direct);
            assert!(retpolines.indirect > plain.indirect + 20.0, "{machine}: {retpolines:?}");
        }
    }

    #[test]
    fn a_machine_without_a_core_says_nothing() {
        let machine = machines::find("server-32k").unwrap().model;
        assert_eq!(call_costs(&machine, CallForms::default()).unwrap(), None);
    }
}
