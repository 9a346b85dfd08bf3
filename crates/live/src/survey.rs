//! The whole kernel at once: its structure, and for every function whether it can be replaced.
//!
//! Input: a vmlinux and memory. Output: numbers, reasons, and on request the proof that every
//! function that can be replaced is copied correctly: emitted in its original order and compared
//! instruction by instruction.

use crate::eligible::{self, Unfit};
use crate::group::Group;
use crate::install;
use crate::memory::Memory;
use anyhow::Result;
use check::module::{CopyClaim, check_module};
use emit::module::{LoaderFacts, ModulePlan, NUMBER, emit};
use image::linked::LinkedKernel;
use image::object::instructions::InstructionKind;
use image::object::pieces::PieceExit;
use image::sites::PatchKind;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// A function that cannot be replaced.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LeftOut {
    /// The function's name.
    pub name: String,
    /// Its link address, hex.
    pub address: String,
    /// Why it cannot be replaced.
    pub reason: String,
}

/// The numbers of a kernel's functions, by kind.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Survey {
    /// Functions of the kernel.
    pub functions: usize,
    /// Functions with a tracer's site.
    pub traced_functions: usize,
    /// Functions that can be replaced.
    pub replaceable: usize,
    /// Blocks of all functions.
    pub blocks: usize,
    /// Edges between them.
    pub edges: usize,
    /// Direct calls.
    pub direct_calls: usize,
    /// Indirect calls, by the sites of retpolines.
    pub indirect_calls: usize,
    /// Per reason: the number of functions with a tracer's site that cannot be replaced because of
    /// it.
    pub reasons: BTreeMap<String, usize>,
    /// The functions with a tracer's site that cannot be replaced.
    pub left_out: Vec<LeftOut>,
    /// Functions whose copies were proven.
    pub proven: usize,
    /// Functions whose copies were not proven: name and difference.
    pub refuted: Vec<(String, String)>,
}

/// One function's share.
#[derive(Default)]
struct Share {
    blocks: usize,
    edges: usize,
    direct_calls: usize,
    indirect_calls: usize,
    unfit: Option<Unfit>,
    proof: Option<Result<(), String>>,
}

/// Surveys every function. With `prove`, also copies each function that can be replaced, and
/// compares the copy. Threads read `memory` at the same time. Each call of `told` adds to the
/// number of finished functions.
///
/// # Errors
/// Memory cannot be read, or the vmlinux lacks what a module needs.
pub fn survey(
    kernel: &LinkedKernel<'_>,
    memory: &(dyn Memory + Sync),
    prove: bool,
    told: &(dyn Fn(u64) + Sync),
) -> Result<Survey> {
    let loading = install::loading(kernel)?;
    let numbers: Vec<usize> = (0..kernel.functions.len()).collect();
    let shares: Vec<Share> = numbers
        .par_chunks(16)
        .map(|chunk| {
            let shares: Result<Vec<Share>> = chunk
                .iter()
                .map(|&index| share(kernel, memory, index, prove.then_some(&loading)))
                .collect();
            told(chunk.len() as u64);
            shares
        })
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
        .collect();
    Ok(sum(kernel, shares))
}

fn share(
    kernel: &LinkedKernel<'_>,
    memory: &dyn Memory,
    index: usize,
    prove: Option<&LoaderFacts<'_>>,
) -> Result<Share> {
    let mut share = Share::default();
    let function = &kernel.functions[index];
    let code = kernel.instructions(function);
    share.direct_calls = code.iter().filter(|i| i.kind == InstructionKind::Call).count();
    let from = kernel.link_address(function.at).0;
    let to = kernel.link_address(function.end).0;
    let sites = kernel.sites.beginning_in(from, to).iter();
    share.indirect_calls = sites.filter(|site| site.kind == PatchKind::Retpoline).count();
    let cut = kernel.cut(&[index]);
    share.blocks = cut.pieces.len();
    share.edges = (cut.pieces.iter())
        .map(|p| match p.exit {
            PieceExit::Stop => 0,
            PieceExit::Runs | PieceExit::Jump(_) => 1,
            PieceExit::Branch(_) => 2,
        })
        .sum();
    match super::group::decide(kernel, memory, index)? {
        Err(reason) => share.unfit = Some(reason),
        Ok(_) => {
            share.proof = prove.map(|loading| {
                proof(kernel, memory, index, loading).map_err(|error| format!("{error:#}"))
            })
        }
    }
    Ok(share)
}

/// Copies one function in its original order and compares.
fn proof(
    kernel: &LinkedKernel<'_>,
    memory: &dyn Memory,
    index: usize,
    loading: &LoaderFacts<'_>,
) -> Result<()> {
    let group = Group::new(kernel, memory, &[index])?;
    let order: Vec<u32> = (0..group.original.pieces.len() as u32).collect();
    let plan = ModulePlan {
        name: "kernlane_proof",
        number: [0; NUMBER],
        order: &order,
        counters: &[],
        padding: 0,
    };
    let module = emit(&group.original, &plan, loading)?;
    let claims: Vec<CopyClaim> = install::claims(&group, &module);
    check_module(kernel, group.original.slide, &module.bytes, &claims)?;
    Ok(())
}

fn sum(kernel: &LinkedKernel<'_>, shares: Vec<Share>) -> Survey {
    let mut survey = Survey { functions: shares.len(), ..Survey::default() };
    for (function, share) in kernel.functions.iter().zip(shares) {
        let name = kernel.function_name(function).to_owned();
        survey.blocks += share.blocks;
        survey.edges += share.edges;
        survey.direct_calls += share.direct_calls;
        survey.indirect_calls += share.indirect_calls;
        let traced = eligible::tracer_site(kernel, function).is_some();
        survey.traced_functions += usize::from(traced);
        match share.unfit {
            None => survey.replaceable += 1,
            Some(reason) if traced => {
                let words = match reason {
                    Unfit::Changed(_) => "memory differs from the file".to_owned(),
                    reason => reason.to_string(),
                };
                *survey.reasons.entry(words).or_default() += 1;
                survey.left_out.push(LeftOut {
                    name: name.clone(),
                    address: kernel.link_address(function.at).to_string(),
                    reason: reason.to_string(),
                });
            }
            Some(_) => {}
        }
        match share.proof {
            Some(Ok(())) => survey.proven += 1,
            Some(Err(difference)) => survey.refuted.push((name, difference)),
            None => {}
        }
    }
    survey
}
