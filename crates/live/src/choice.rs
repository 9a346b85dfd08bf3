//! Which functions a request is about: those that it names, and the hot ones that its roots lead
//! to, without those that cannot be replaced or belong to another tool.
//!
//! Input: names, a profile, and what the request wants to happen to functions that cannot be
//! replaced. Output: functions by number, and their group. This module installs nothing.

use crate::eligible::Unfit;
use crate::group::{self, Group};
use crate::hot;
use crate::inline::{self, InlineSettings, InlineSummary};
use crate::lasting;
use crate::memory::Memory;
use crate::owners::Owners;
use anyhow::{Result, bail, ensure};
use image::linked::LinkedKernel;
use layout::inlining::CallCosts;
use profile::Profile;

/// The only function of that name: its index into the kernel's functions. A module may stand behind
/// the name, as in `/proc/kallsyms`: `f [m]`.
///
/// # Errors
/// Neither the kernel's text nor that of the modules has a function of that name, or one has
/// several.
pub fn find(kernel: &LinkedKernel<'_>, name: &str) -> Result<usize> {
    let found = kernel.functions_named(name);
    match found[..] {
        [index] => Ok(index),
        [] if kernel.module_identities().is_empty() => {
            bail!("the kernel's text has no function {name}")
        }
        [] => bail!("neither the kernel's text nor that of a loaded module has a function {name}"),
        _ => {
            let of = |&index: &usize| {
                let at = kernel.link_address(kernel.functions[index].at);
                kernel.module_at(at).map_or("the kernel", |module| &module.name)
            };
            let places: Vec<&str> = found.iter().map(of).collect();
            bail!("{name}: {} functions have this name, in {}", found.len(), places.join(", "))
        }
    }
}

/// Checks that no function belongs to another tool. `chosen`: indices into the kernel's functions.
///
/// # Errors
/// One does. The message names the function and its owner.
pub fn refuse_owned(kernel: &LinkedKernel<'_>, owners: &Owners, chosen: &[usize]) -> Result<()> {
    for &index in chosen {
        let name = kernel.title(&kernel.functions[index]);
        if let Some(owner) = owners.of(&name) {
            bail!("{name} belongs to {owner}: remove that first, or leave the function out");
        }
    }
    Ok(())
}

/// Functions by their names, in that order, each of which can be counted: it can be replaced, and
/// belongs to no other tool.
///
/// # Errors
/// One of them cannot be counted, or is not the only one of its name; memory cannot be read.
pub fn countable(
    kernel: &LinkedKernel<'_>,
    memory: &dyn Memory,
    owners: &Owners,
    names: &[String],
) -> Result<Vec<usize>> {
    let chosen: Vec<usize> = names.iter().map(|name| find(kernel, name)).collect::<Result<_>>()?;
    refuse_owned(kernel, owners, &chosen)?;
    for (&index, name) in chosen.iter().zip(names) {
        if let Err(reason) = group::decide(kernel, memory, index)? {
            bail!("{name} cannot be counted: {reason}");
        }
    }
    Ok(chosen)
}

/// Reads a profile of this kernel. `text`: the JSON of a profile's file. Calls `told` with a line
/// for each module whose counts are left out.
///
/// # Errors
/// The text is not a profile, or is that of another kernel.
pub fn profile_for(
    kernel: &LinkedKernel<'_>,
    text: &str,
    told: &mut dyn FnMut(&str),
) -> Result<Profile> {
    let profile = Profile::from_json(text)?;
    ensure!(
        profile.build_id == kernel.build_id,
        "made for the kernel with build id {}, not for {}",
        profile.build_id.0,
        kernel.build_id.0
    );
    let (profile, others) = lasting::present(kernel, profile);
    for module in others {
        told(&format!(
            "the profile's counts of the module {module} are left out: it is not among the loaded \
             modules that were read, or is loaded in another build"
        ));
    }
    Ok(profile)
}

/// What a request says about the functions to replace.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The names of functions.
    pub named: &'a [String],
    /// The names of the functions from which groups are taken: each root and what it calls, hot
    /// enough. Without a profile they add nothing.
    pub roots: &'a [String],
    /// How hot: a part of the root's calls, 0 to 1.
    pub threshold: f64,
    /// Also the hottest functions: the fewest that hold this share of the executed bytes, 0 to 1.
    /// Without a profile it adds nothing.
    pub share: f64,
    /// Leave out functions that cannot be replaced, belong to another tool, or do not exist, and
    /// report them. Otherwise a function that was named is refused.
    pub skip_unfit: bool,
    /// What calls cost on the machine, where calls are inlined; `None`: it is not known.
    pub call_costs: Option<CallCosts>,
}

impl Choice<'_> {
    /// The functions that were named, the hot ones that the roots lead to, and the hottest,
    /// ascending, each once. Calls `told` with a line for each function that is left out.
    ///
    /// # Errors
    /// There is no function of a name, or several. A root is never left out because of that.
    pub fn functions(
        &self,
        kernel: &LinkedKernel<'_>,
        profile: Option<&Profile>,
        told: &mut dyn FnMut(&str),
    ) -> Result<Vec<usize>> {
        let mut chosen = Vec::new();
        for name in self.named {
            match find(kernel, name) {
                Err(error) if self.skip_unfit => told(&format!("left out: {error}")),
                found => chosen.push(found?),
            }
        }
        if let Some(profile) = profile {
            for root in self.roots {
                let root = find(kernel, root)?;
                chosen.extend(hot::group(kernel, profile, root, self.threshold));
            }
            chosen.extend(hot::hottest(kernel, profile, self.share));
        }
        chosen.sort_unstable();
        chosen.dedup();
        Ok(chosen)
    }

    /// The functions of `chosen` that belong to no other tool. Calls `told` with a line for each
    /// function that is left out.
    ///
    /// # Errors
    /// A function belongs to another tool, and the request leaves out none; or none is left.
    pub fn unowned(
        &self,
        kernel: &LinkedKernel<'_>,
        owners: &Owners,
        mut chosen: Vec<usize>,
        told: &mut dyn FnMut(&str),
    ) -> Result<Vec<usize>> {
        if !self.skip_unfit {
            refuse_owned(kernel, owners, &chosen)?;
            return Ok(chosen);
        }
        chosen.retain(|&index| {
            let name = kernel.title(&kernel.functions[index]);
            let owner = owners.of(&name);
            if let Some(owner) = owner {
                told(&format!("left out: {name} belongs to {owner}"));
            }
            owner.is_none()
        });
        ensure!(!chosen.is_empty(), "none of the functions is left");
        Ok(chosen)
    }

    /// The group of these functions. Calls `told` with a line for each function that cannot be
    /// replaced. `hint` gives what the line says behind the reason, or nothing.
    ///
    /// # Errors
    /// A function that was named cannot be replaced, and the request leaves out none; memory cannot
    /// be read; the functions cannot be copied together; or the errors of `hint`.
    pub fn group<'k, 'd>(
        &self,
        kernel: &'k LinkedKernel<'d>,
        memory: &dyn Memory,
        chosen: &[usize],
        hint: &dyn Fn(Unfit) -> Result<String>,
        told: &mut dyn FnMut(&str),
    ) -> Result<Group<'k, 'd>> {
        let group = Group::new(kernel, memory, chosen)?;
        self.tell_left_out(kernel, &group, hint, told)?;
        Ok(group)
    }

    /// Likewise with calls inlined by a profile, and what that brings.
    ///
    /// # Errors
    /// As [`Choice::group`] and [`inline::group`].
    pub fn inlined_group<'k, 'd>(
        &self,
        kernel: &'k LinkedKernel<'d>,
        memory: &dyn Memory,
        chosen: &[usize],
        profile: &Profile,
        hint: &dyn Fn(Unfit) -> Result<String>,
        told: &mut dyn FnMut(&str),
    ) -> Result<(Group<'k, 'd>, InlineSummary)> {
        let settings = InlineSettings { costs: self.call_costs, ..InlineSettings::default() };
        let (group, summary) = inline::group(kernel, memory, chosen, profile, settings)?;
        self.tell_left_out(kernel, &group, hint, told)?;
        Ok((group, summary))
    }

    pub(crate) fn tell_left_out(
        &self,
        kernel: &LinkedKernel<'_>,
        group: &Group<'_, '_>,
        hint: &dyn Fn(Unfit) -> Result<String>,
        told: &mut dyn FnMut(&str),
    ) -> Result<()> {
        for &(index, reason) in &group.left_out {
            let name = kernel.title(&kernel.functions[index]);
            let hint = hint(reason)?;
            let is_named =
                || self.named.iter().any(|named| kernel.functions_named(named).contains(&index));
            ensure!(self.skip_unfit || !is_named(), "{name} cannot be replaced: {reason}{hint}");
            told(&format!("left out: {name}: {reason}{hint}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FileMemory;
    use crate::test_kernel::{F, G, H, STRAY, at, tables, with};
    use image::BuildId;

    fn owners_of_g() -> Owners {
        Owners::parse("ffffffff81000040  k  g+0x5\n", "", &[])
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn choice<'a>(named: &'a [String], roots: &'a [String], skip_unfit: bool) -> Choice<'a> {
        Choice { named, roots, threshold: 0.1, share: 0.0, skip_unfit, call_costs: None }
    }

    #[test]
    fn a_function_is_found_by_its_name() {
        with(tables(), |kernel| {
            assert_eq!(find(kernel, "g").unwrap(), G);
            for name in ["absent", "value"] {
                let error = find(kernel, name).unwrap_err().to_string();
                assert_eq!(error, format!("the kernel's text has no function {name}"));
            }
        });
    }

    #[test]
    fn a_function_is_counted_that_can_be_replaced_and_has_no_owner() {
        with(tables(), |kernel| {
            let countable = |owners: &Owners, named: &[&str]| {
                super::countable(kernel, &FileMemory(kernel), owners, &names(named))
                    .map_err(|error| error.to_string())
            };
            let nobody = Owners::default();
            assert_eq!(countable(&nobody, &["h", "f"]), Ok(vec![H, F]));
            let unfit = "stray cannot be counted: the function tracer has no site at its entry";
            assert_eq!(countable(&nobody, &["f", "stray"]), Err(unfit.into()));
            let owned = "g belongs to a kprobe (g+0x5): remove that first, or leave the function \
                         out";
            assert_eq!(countable(&owners_of_g(), &["f", "g"]), Err(owned.into()));
            assert_eq!(countable(&owners_of_g(), &["f", "h"]), Ok(vec![F, H]));
        });
    }

    #[test]
    fn a_profile_of_another_kernel_is_refused() {
        with(tables(), |kernel| {
            let told = &mut |line: &str| panic!("{line}");
            let own = Profile::empty(kernel.build_id.clone()).to_json();
            assert_eq!(profile_for(kernel, &own, told).unwrap().build_id, kernel.build_id);
            let other = Profile::empty(BuildId("ab01".into())).to_json();
            let error = profile_for(kernel, &other, told).unwrap_err().to_string();
            let own = "5f".repeat(20);
            assert_eq!(error, format!("made for the kernel with build id ab01, not for {own}"));
            assert!(profile_for(kernel, "{}", told).is_err());
        });
    }

    #[test]
    fn functions_are_those_that_are_named_and_those_that_roots_lead_to() {
        with(tables(), |kernel| {
            let mut profile = Profile::empty(kernel.build_id.clone());
            profile.blocks.extend([(at(0), 100), (at(0x40), 11)]);
            profile.calls.insert((at(0x0c), at(0x40)), 11);
            let (named, roots) = (names(&["h", "f", "h"]), names(&["f"]));
            let chosen = |choice: Choice<'_>, profile| {
                let mut told = Vec::new();
                let told_line = &mut |line: &str| told.push(line.to_owned());
                let found = choice.functions(kernel, profile, told_line);
                (found.map_err(|error| error.to_string()), told)
            };
            let both = choice(&named, &roots, false);
            assert_eq!(chosen(both, Some(&profile)), (Ok(vec![F, G, H]), vec![]));
            assert_eq!(chosen(both, None), (Ok(vec![F, H]), vec![]), "roots need a profile");
            let colder = Choice { threshold: 0.11, ..both };
            assert_eq!(chosen(colder, Some(&profile)), (Ok(vec![F, H]), vec![]));
            let hottest = Choice { share: 1.0, ..choice(&[], &[], false) };
            assert_eq!(chosen(hottest, Some(&profile)), (Ok(vec![F, G]), vec![]));
            assert_eq!(chosen(hottest, None), (Ok(vec![]), vec![]), "it needs a profile");

            let absent = names(&["absent", "f"]);
            let message = "the kernel's text has no function absent".to_owned();
            let refused = chosen(choice(&absent, &[], false), None);
            assert_eq!(refused, (Err(message.clone()), vec![]));
            let skipped = chosen(choice(&absent, &[], true), None);
            assert_eq!(skipped, (Ok(vec![F]), vec![format!("left out: {message}")]));
            let root = chosen(choice(&[], &absent, true), Some(&profile));
            assert_eq!(root, (Err(message), vec![]));
        });
    }

    #[test]
    fn functions_of_other_tools_are_refused_or_left_out() {
        with(tables(), |kernel| {
            let unowned = |skip_unfit, chosen: &[usize]| {
                let mut told = Vec::new();
                let choice = choice(&[], &[], skip_unfit);
                let left = choice.unowned(kernel, &owners_of_g(), chosen.to_vec(), &mut |line| {
                    told.push(line.to_owned());
                });
                (left.map_err(|error| error.to_string()), told)
            };
            assert_eq!(unowned(false, &[F, H]), (Ok(vec![F, H]), vec![]));
            assert!(unowned(false, &[F, G]).0.unwrap_err().contains("g belongs to a kprobe"));
            let line = "left out: g belongs to a kprobe (g+0x5)".to_owned();
            assert_eq!(unowned(true, &[F, G, H]), (Ok(vec![F, H]), vec![line.clone()]));
            let none = Err("none of the functions is left".to_owned());
            assert_eq!(unowned(true, &[G]), (none, vec![line]));
        });
    }

    #[test]
    fn only_a_function_that_was_named_is_refused_and_only_without_leave() {
        with(tables(), |kernel| {
            let named = names(&["stray"]);
            let group = |choice: Choice<'_>| {
                let mut told = Vec::new();
                let hint = |reason| {
                    assert_eq!(reason, Unfit::NoTracerSite);
                    Ok(" (a hint)".to_owned())
                };
                let told_line = &mut |line: &str| told.push(line.to_owned());
                let memory = FileMemory(kernel);
                let found = choice.group(kernel, &memory, &[F, STRAY], &hint, told_line);
                (found.map(|group| group.members.len()).map_err(|error| error.to_string()), told)
            };
            let reason = "the function tracer has no site at its entry (a hint)";
            let left_out = vec![format!("left out: stray: {reason}")];
            assert_eq!(group(choice(&named, &[], true)), (Ok(1), left_out.clone()));
            assert_eq!(group(choice(&[], &[], false)), (Ok(1), left_out));
            let refused = Err(format!("stray cannot be replaced: {reason}"));
            assert_eq!(group(choice(&named, &[], false)), (refused, vec![]));
        });
    }
}
