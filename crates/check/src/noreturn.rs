//! Which functions of the old kernel never return.
//!
//! Input: the old kernel's code. Output: the functions from whose entry no path reaches a return. A
//! compiler puts nothing behind a call of such a function (`panic`, `do_exit`). The code behind
//! such a call in the new kernel never runs, so it may be anything. The result is derived from the
//! code alone, without the kernel's list of names. In doubt a function counts as returning.

use super::code_walk::OldKernelFacts;
use super::kernel::KernelFile;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Functions that never return.
pub(crate) struct NeverReturns(HashSet<u64>);

/// A function in which the search visits more instructions than this counts as returning.
const LONGEST: usize = 100_000;

impl NeverReturns {
    pub(crate) fn contains(&self, function: u64) -> bool {
        self.0.contains(&function)
    }

    /// Decides for the functions `candidates` and for everything that they call. The result is the
    /// least fixpoint of this rule: a function returns if some path from its entry reaches a
    /// return. The path continues behind a call only if the callee returns. `side_exits` are the
    /// places where control may go from an instruction in addition: the targets of static keys, and
    /// where a fault continues.
    pub(crate) fn derive(
        candidates: impl Iterator<Item = u64>,
        kernel: &KernelFile,
        known: &OldKernelFacts,
        side_exits: &HashMap<u64, Vec<u64>>,
    ) -> Self {
        let mut queue: BTreeSet<u64> = candidates.collect();
        let mut seen = queue.clone();
        let mut returns: HashSet<u64> = HashSet::new();
        let mut waiting: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        while let Some(function) = queue.pop_first() {
            if returns.contains(&function) {
                continue;
            }
            match search(function, kernel, known, side_exits, &returns) {
                ReturnSearch::Returns => {
                    returns.insert(function);
                    queue.extend(waiting.remove(&function).unwrap_or_default());
                }
                ReturnSearch::WaitsFor(callees) => {
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

/// What the search in one function found.
enum ReturnSearch {
    /// A path reaches a return.
    Returns,
    /// No path without calls of unknown functions reaches a return; these callees decide.
    WaitsFor(BTreeSet<u64>),
}

fn search(
    entry: u64,
    kernel: &KernelFile,
    known: &OldKernelFacts,
    side_exits: &HashMap<u64, Vec<u64>>,
    returns: &HashSet<u64>,
) -> ReturnSearch {
    let has_return = has_return(entry, kernel, known);
    let mut seen = HashSet::new();
    let mut todo = vec![entry];
    let mut callees = BTreeSet::new();
    while let Some(start) = todo.pop() {
        let Some(bytes) =
            kernel.section_at(start).filter(|s| s.executable).and_then(|_| kernel.tail(start))
        else {
            return ReturnSearch::Returns;
        };
        let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
        loop {
            if !decoder.can_decode() || seen.len() > LONGEST {
                return ReturnSearch::Returns;
            }
            let i = decoder.decode();
            if i.is_invalid() {
                return ReturnSearch::Returns;
            }
            if !seen.insert(i.ip()) {
                break;
            }
            todo.extend(side_exits.get(&i.ip()).into_iter().flatten());
            if known.passable.contains(&i.next_ip()) || known.static_keys.contains(&i.ip()) {
                todo.push(i.next_ip());
            }
            match i.flow_control() {
                // It goes to code of another mode (`machine_real_restart`).
                FlowControl::IndirectBranch if i.is_jmp_far_indirect() => match has_return {
                    true => return ReturnSearch::Returns,
                    false => break,
                },
                FlowControl::Return | FlowControl::IndirectBranch => return ReturnSearch::Returns,
                FlowControl::UnconditionalBranch
                    if known.thunks.contains(&i.near_branch_target()) =>
                {
                    return ReturnSearch::Returns;
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
                FlowControl::Exception if !known.passed_traps.contains(&i.ip()) => break,
                FlowControl::Interrupt if i.mnemonic() == Mnemonic::Int3 => break,
                _ => {}
            }
        }
    }
    ReturnSearch::WaitsFor(callees)
}

/// Whether any instruction of the function returns, reached from its entry or not: control may come
/// back there from another mode. Also true if the function's end is not known.
fn has_return(entry: u64, kernel: &KernelFile, known: &OldKernelFacts) -> bool {
    let size = kernel.symbols_at(entry).iter().map(|symbol| symbol.size).max().unwrap_or(0);
    let Some(bytes) = kernel.bytes(entry, size).filter(|_| size > 0) else { return true };
    let mut decoder = Decoder::with_ip(64, bytes, entry, DecoderOptions::NONE);
    decoder.iter().any(|i| match i.flow_control() {
        FlowControl::Return => true,
        FlowControl::IndirectBranch => !i.is_jmp_far_indirect(),
        FlowControl::UnconditionalBranch => {
            let target = i.near_branch_target();
            known.thunks.contains(&target) || !(entry..entry + size).contains(&target)
        }
        _ => false,
    })
}
