//! Which functions of the old kernel never return.
//!
//! Takes the old kernel's code; gives the functions from whose entry no path reaches a return.
//! Needed where a compiler put nothing behind a call because it knew (`panic`, `do_exit`): what
//! follows such a call in the new kernel is never run, so it may be anything. Derived from the code
//! alone, without the kernel's list of names. Errs on the side of "returns".

use super::kernel::Kernel;
use super::walk::Known;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Functions that never return.
pub struct NeverReturns(HashSet<u64>);

/// Beyond this many instructions a function counts as returning.
const LONGEST: usize = 100_000;

impl NeverReturns {
    pub fn holds(&self, function: u64) -> bool {
        self.0.contains(&function)
    }

    /// Decides for `asked` functions and whatever they call: the least fixpoint of "some path from
    /// the entry reaches a return, where the path goes on behind a call only if the callee
    /// returns".
    pub fn derive(
        asked: impl Iterator<Item = u64>,
        kernel: &Kernel,
        known: &Known,
        jump_targets: &HashMap<u64, u64>,
    ) -> Self {
        let mut queue: BTreeSet<u64> = asked.collect();
        let mut seen = queue.clone();
        let mut returns: HashSet<u64> = HashSet::new();
        let mut waiting: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        while let Some(function) = queue.pop_first() {
            if returns.contains(&function) {
                continue;
            }
            match search(function, kernel, known, jump_targets, &returns) {
                Outcome::Returns => {
                    returns.insert(function);
                    queue.extend(waiting.remove(&function).unwrap_or_default());
                }
                Outcome::WaitsFor(callees) => {
                    for callee in callees {
                        waiting.entry(callee).or_default().insert(function);
                        if seen.insert(callee) {
                            queue.insert(callee);
                        }
                    }
                }
            }
        }
        NeverReturns(seen.difference(&returns.into_iter().collect()).copied().collect())
    }
}

enum Outcome {
    Returns,
    /// No return found yet; these callees decide.
    WaitsFor(BTreeSet<u64>),
}

fn search(
    entry: u64,
    kernel: &Kernel,
    known: &Known,
    jump_targets: &HashMap<u64, u64>,
    returns: &HashSet<u64>,
) -> Outcome {
    let mut seen = HashSet::new();
    let mut todo = vec![entry];
    let mut callees = BTreeSet::new();
    while let Some(start) = todo.pop() {
        let Some(bytes) =
            kernel.section_at(start).filter(|s| s.executable).and_then(|_| kernel.tail(start))
        else {
            return Outcome::Returns;
        };
        let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
        loop {
            if !decoder.can_decode() || seen.len() > LONGEST {
                return Outcome::Returns;
            }
            let i = decoder.decode();
            if i.is_invalid() {
                return Outcome::Returns;
            }
            if !seen.insert(i.ip()) {
                break;
            }
            todo.extend(jump_targets.get(&i.ip()));
            if known.passable.contains(&i.next_ip()) || known.static_keys.contains(&i.ip()) {
                todo.push(i.next_ip());
            }
            match i.flow_control() {
                FlowControl::Return | FlowControl::IndirectBranch => return Outcome::Returns,
                FlowControl::UnconditionalBranch
                    if known.thunks.contains(&i.near_branch_target()) =>
                {
                    return Outcome::Returns;
                }
                FlowControl::UnconditionalBranch => {
                    todo.push(i.near_branch_target());
                    break;
                }
                FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
                    todo.push(i.near_branch_target())
                }
                FlowControl::Call if i.is_call_near() => {
                    let callee = i.near_branch_target();
                    if !returns.contains(&callee) && !known.thunks.contains(&callee) {
                        callees.insert(callee);
                        break;
                    }
                }
                FlowControl::Exception if !known.warnings.contains(&i.ip()) => break,
                FlowControl::Interrupt if i.mnemonic() == Mnemonic::Int3 => break,
                _ => {}
            }
        }
    }
    Outcome::WaitsFor(callees)
}
