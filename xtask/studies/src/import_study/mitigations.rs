//! The same branches as processors with other mitigations record them.
//!
//! Input: stacks from a guest with retpolines and plain returns, and the kernel. Output: the text
//! of `perf script -F brstack`. Only what the kernel patches at boot differs: returns, and indirect
//! branches.

use super::stacks::{BranchStack, RecordedBranch};
use anyhow::{Context, Result, ensure};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::object::instructions::{self, InstructionKind};
use image::sites::PatchKind;
use sim::BranchKind;
use std::fmt::Write;

/// What the kernel made of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mitigation {
    /// As recorded: calls through pointers go through retpolines, returns are plain.
    Retpoline,
    /// Indirect branches and returns are plain.
    PlainIndirect,
    /// Indirect branches are plain, and stand behind `lfence`.
    Lfence,
    /// Returns go through `srso_alias_return_thunk`, and indirect branches are plain.
    SafeReturn,
    /// Returns go through `retbleed_return_thunk`.
    ReturnThunk,
}

impl Mitigation {
    pub(super) const ALL: &[Mitigation] = &[
        Mitigation::Retpoline,
        Mitigation::PlainIndirect,
        Mitigation::Lfence,
        Mitigation::SafeReturn,
        Mitigation::ReturnThunk,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Mitigation::Retpoline => "retpoline",
            Mitigation::PlainIndirect => "plain-indirect",
            Mitigation::Lfence => "lfence",
            Mitigation::SafeReturn => "safe-return",
            Mitigation::ReturnThunk => "return-thunk",
        }
    }

    fn has_retpolines(self) -> bool {
        matches!(self, Mitigation::Retpoline | Mitigation::ReturnThunk)
    }
}

type Branch = (u64, u64);

/// The stacks as text.
pub(super) fn script(
    kernel: &LinkedKernel<'_>,
    stacks: &[BranchStack],
    mitigation: Mitigation,
) -> Result<String> {
    let returns = return_chain(kernel, mitigation)?;
    let mut text = String::new();
    for stack in stacks {
        let mut branches: Vec<Branch> = Vec::new();
        let mut rest = &stack.branches[..];
        while let [branch, behind @ ..] = rest {
            rest = match (mitigation.has_retpolines(), behind) {
                (false, [inner, last, later @ ..]) if is_retpoline(kernel, branch, inner, last) => {
                    let skip = if mitigation == Mitigation::Lfence { 3 } else { 0 };
                    branches.push((branch.from + skip, last.to));
                    later
                }
                _ => {
                    push(kernel, branch, &returns, &mut branches);
                    behind
                }
            };
        }
        for (from, to) in branches.iter().rev() {
            let _ = write!(text, " {from:#x}/{to:#x}/P/-/-/0 ");
        }
        text.push('\n');
    }
    Ok(text)
}

/// Whether three branches are a call or jump through a retpoline: to the thunk, over its trap, and
/// by its return to the function.
fn is_retpoline(
    kernel: &LinkedKernel<'_>,
    site: &RecordedBranch,
    inner: &RecordedBranch,
    last: &RecordedBranch,
) -> bool {
    kernel.sites.kinds_at(site.from).any(|kind| kind == PatchKind::Retpoline)
        && (site.to..site.to + 32).contains(&inner.from)
        && inner.kind == Some(BranchKind::Call)
        && (inner.to..inner.to + 32).contains(&last.from)
        && last.kind == Some(BranchKind::Return)
}

/// Adds a branch. A return goes through the thunks of `returns`.
fn push(
    kernel: &LinkedKernel<'_>,
    branch: &RecordedBranch,
    returns: &[Branch],
    branches: &mut Vec<Branch>,
) {
    let is_site = || kernel.sites.kinds_at(branch.from).any(|kind| kind == PatchKind::Return);
    match (branch.kind, returns) {
        (Some(BranchKind::Return), [first, .., last]) if is_site() => {
            branches.push((branch.from, first.1));
            branches.extend(&returns[1..returns.len() - 1]);
            branches.push((last.0, branch.to));
        }
        _ => branches.push((branch.from, branch.to)),
    }
}

/// The branches from a return's site through thunks, from (0, the first thunk) to (the last return,
/// 0). Empty: returns are plain.
fn return_chain(kernel: &LinkedKernel<'_>, mitigation: Mitigation) -> Result<Vec<Branch>> {
    let named = |name: &str| {
        let found = kernel.address_of(name);
        found.map(|at| at.0).with_context(|| format!("the kernel has no {name}"))
    };
    match mitigation {
        Mitigation::Retpoline | Mitigation::PlainIndirect | Mitigation::Lfence => Ok(Vec::new()),
        Mitigation::ReturnThunk => {
            let thunk = named("retbleed_return_thunk")?;
            Ok(vec![(0, thunk), (of_kind(kernel, thunk, InstructionKind::Stop)?, 0)])
        }
        Mitigation::SafeReturn => {
            let (thunk, safe) = (named("srso_alias_return_thunk")?, named("srso_alias_safe_ret")?);
            let call = of_kind(kernel, thunk, InstructionKind::Call)?;
            let ret = of_kind(kernel, safe, InstructionKind::Stop)?;
            Ok(vec![(0, thunk), (call, safe), (ret, 0)])
        }
    }
}

/// The first instruction of a kind behind an address.
fn of_kind(kernel: &LinkedKernel<'_>, at: u64, kind: InstructionKind) -> Result<u64> {
    let bytes = kernel.bytes(LinkAddr(at), 16).context("a thunk outside of the kernel")?;
    let code = instructions::decode(bytes, 0, bytes.len() as u32, &[]);
    let found = code.iter().find(|i| i.kind == kind);
    ensure!(found.is_some(), "the thunk at {at:#x} has no such instruction");
    Ok(at + found.map_or(0, |i| u64::from(i.at)))
}
