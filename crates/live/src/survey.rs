//! The whole kernel at once: its structure, and for every function whether it can be replaced.
//!
//! Input: a vmlinux and memory. Output: numbers, reasons, and on request the proof that every
//! function that can be replaced is copied correctly: emitted in its original order and compared
//! instruction by instruction.

use crate::eligible::{self, Unfit};
use crate::group::Group;
use crate::install;
use crate::memory::Memory;
use crate::modules::LeftOutModule;
use anyhow::Result;
use check::module::{CopyClaim, check_module};
use emit::module::{LoaderFacts, ModulePlan, NUMBER, TextPage, emit};
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

/// The numbers of a module's functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ModuleShare {
    /// Functions with a tracer's site.
    pub traced_functions: usize,
    /// Functions that can be replaced.
    pub replaceable: usize,
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
    /// Of each loaded module that was surveyed: by its name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub modules: BTreeMap<String, ModuleShare>,
    /// The loaded modules that were not surveyed, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out_modules: Vec<LeftOutModule>,
    /// Functions whose copies were proven.
    pub proven: usize,
    /// Functions whose copies were not proven: name and difference.
    pub refuted: Vec<(String, String)>,
}

impl Survey {
    /// The percentage of the functions with a tracer's site that can be replaced.
    pub fn replaceable_percent(&self) -> f64 {
        100.0 * self.replaceable as f64 / self.traced_functions.max(1) as f64
    }

    /// The reasons with their numbers of functions, the most frequent first.
    pub fn reasons_by_count(&self) -> Vec<(&str, usize)> {
        let mut reasons: Vec<(&str, usize)> =
            self.reasons.iter().map(|(reason, &count)| (reason.as_str(), count)).collect();
        reasons.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        reasons
    }
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
        page: TextPage::Small,
    };
    let module = emit(&group.original, &plan, loading)?;
    let claims: Vec<CopyClaim> = install::claims(&group, &module);
    check_module(kernel, group.original.slide, &module.bytes, &claims, &[])?;
    Ok(())
}

fn sum(kernel: &LinkedKernel<'_>, shares: Vec<Share>) -> Survey {
    let mut survey = Survey { functions: shares.len(), ..Survey::default() };
    for (function, share) in kernel.functions.iter().zip(shares) {
        let name = kernel.title(function);
        survey.blocks += share.blocks;
        survey.edges += share.edges;
        survey.direct_calls += share.direct_calls;
        survey.indirect_calls += share.indirect_calls;
        let traced = eligible::tracer_site(kernel, function).is_some();
        survey.traced_functions += usize::from(traced);
        if let Some(module) = kernel.module_at(kernel.link_address(function.at)) {
            let of = survey.modules.entry(module.name.clone()).or_default();
            of.traced_functions += usize::from(traced);
            of.replaceable += usize::from(share.unfit.is_none());
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FileMemory;
    use crate::test_kernel::{ChangedMemory, F, G, H, STRAY, TEXT, at, loading, tables, with};
    use image::linked::tables::LinkedTables;
    use image::ordinary::ReservedCode;

    fn surveyed(kernel: &LinkedKernel<'_>, memory: &dyn Memory, prove: bool) -> Survey {
        let loading = loading();
        let shares = (0..kernel.functions.len())
            .map(|index| share(kernel, memory, index, prove.then_some(&loading)).unwrap());
        sum(kernel, shares.collect())
    }

    #[test]
    fn every_function_counts_with_its_blocks_edges_and_calls() {
        let tables = LinkedTables { retpolines: vec![TEXT + 0x45], ..tables() };
        with(tables, |kernel| {
            let share = |index| {
                let share = share(kernel, &FileMemory(kernel), index, None).unwrap();
                (share.blocks, share.edges, share.direct_calls, share.indirect_calls)
            };
            // f: a branch has two edges, the block behind it one; the calls of __fentry__ and g.
            assert_eq!(share(F), (3, 3, 2, 0));
            assert_eq!(share(G), (1, 0, 1, 1));
            // A jump to another function is no edge and no call.
            assert_eq!(share(H), (1, 0, 1, 0));
            assert_eq!(share(STRAY), (1, 0, 0, 0));
            let survey = surveyed(kernel, &FileMemory(kernel), false);
            assert_eq!((survey.functions, survey.blocks, survey.edges), (4, 6, 3));
            assert_eq!((survey.direct_calls, survey.indirect_calls), (4, 1));
        });
    }

    #[test]
    fn functions_with_a_site_are_replaceable_or_left_out_for_a_reason() {
        let unprobed = LinkedTables { unprobed: vec![TEXT], ..tables() };
        with(unprobed, |kernel| {
            // An instruction of g and one of h that nothing explains.
            let changes = vec![(at(0x49), 0x55), (at(0x86), 0x55)];
            let memory = ChangedMemory { kernel, slide: 0, changes };
            let survey = surveyed(kernel, &memory, false);
            // The stray jump has no site.
            assert_eq!((survey.traced_functions, survey.replaceable), (3, 0));
            assert_eq!(survey.replaceable_percent(), 0.0);
            let reserved = Unfit::ReservedCode(ReservedCode::Kprobes).to_string();
            let expected = [("memory differs from the file", 2), (reserved.as_str(), 1)];
            assert_eq!(survey.reasons_by_count(), expected);
            let left_out: Vec<[&str; 3]> = (survey.left_out.iter())
                .map(|left| [&left.name, &left.address, &left.reason].map(String::as_str))
                .collect();
            let expected = [
                ["f", "ffffffff81000000", &reserved],
                ["g", "ffffffff81000040", "memory differs from the file at ffffffff81000045"],
                ["h", "ffffffff81000080", "memory differs from the file at ffffffff81000085"],
            ];
            assert_eq!(left_out, expected);
        });
        with(tables(), |kernel| {
            let memory = ChangedMemory { kernel, slide: 0, changes: vec![(at(0x49), 0x55)] };
            let survey = surveyed(kernel, &memory, false);
            assert_eq!((survey.traced_functions, survey.replaceable), (3, 2));
            assert_eq!(format!("{:.1}", survey.replaceable_percent()), "66.7");
            assert_eq!((survey.proven, survey.refuted), (0, vec![]));
        });
        assert_eq!(Survey::default().replaceable_percent(), 0.0);
    }

    #[test]
    fn every_function_that_can_be_replaced_is_proven_on_request() {
        with(tables(), |kernel| {
            let survey = surveyed(kernel, &FileMemory(kernel), true);
            assert_eq!((survey.replaceable, survey.proven, survey.refuted), (3, 3, vec![]));
        });
        with(tables(), |kernel| {
            let refuted = Share { proof: Some(Err("a byte".into())), ..Share::default() };
            let proven = Share { proof: Some(Ok(())), ..Share::default() };
            let shares = vec![proven, refuted, Share::default(), Share::default()];
            let survey = sum(kernel, shares);
            let expected = (1, vec![("g".to_owned(), "a byte".to_owned())]);
            assert_eq!((survey.proven, survey.refuted), expected);
        });
    }
}
