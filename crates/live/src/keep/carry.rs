//! The functions and counts of a kept group in the kernel that runs now.
//!
//! Input: a kept group, the build that it was made in, and a kernel. Output: indices into the
//! kernel's functions, and a profile of this kernel. In the same build everything is taken as it
//! was. In another one a function is the only one of its name with the same shape; the others are
//! left out. This module reads no memory.

use super::kept::{KeptFunction, KeptGroup, KeptLayout, address, hex};
use super::shape::Shape;
use crate::lasting;
use anyhow::{Context, Result, ensure};
use image::BuildId;
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::module::{self, ModuleIdentity};
use profile::Profile;
use std::collections::{BTreeMap, HashMap};

/// A kept group in terms of another kernel.
#[derive(Clone, Debug)]
pub struct CarriedGroup {
    /// The functions that were chosen: indices into the kernel's functions, ascending.
    pub chosen: Vec<usize>,
    /// Those of them that stay called.
    pub called: Vec<usize>,
    /// The counts, by addresses of this kernel.
    pub profile: Option<Profile>,
    /// How to lay the group out.
    pub layout: KeptLayout,
    /// The part of the group's executed instructions whose functions fit, 0 to 1; without counts
    /// the part of its instructions.
    pub fit: f64,
    /// The names of the chosen functions that do not fit.
    pub left_out: Vec<String>,
}

impl KeptGroup {
    /// Finds the group in a kernel. `made_in`: the build that it was made in.
    ///
    /// # Errors
    /// The file does not describe what it says: a function is not where it was in the same build,
    /// or the profile is that of another build.
    pub fn carry(&self, made_in: &BuildId, kernel: &LinkedKernel<'_>) -> Result<CarriedGroup> {
        let profile = self.profile()?;
        if let Some(profile) = &profile {
            ensure!(
                profile.build_id == *made_in,
                "the profile of a kept group is of another build than the group: keep it again"
            );
        }
        let is_same = kernel.build_id == *made_in;
        let found: Vec<Option<usize>> = match is_same {
            true => {
                let counted = profile.as_ref().map_or(&[][..], |profile| &profile.modules);
                self.functions.iter().map(|f| same(f, kernel, counted)).collect::<Result<_>>()?
            }
            false => {
                let shapes = &mut HashMap::new();
                self.functions.iter().map(|f| alike(f, kernel, shapes)).collect()
            }
        };
        let fit = self.fit(profile.as_ref(), &found)?;
        let profile = match (profile, is_same) {
            (Some(profile), false) => Some(self.translated(&profile, kernel, &found)?),
            (profile, _) => profile.map(|profile| lasting::present(kernel, profile).0),
        };
        let with = || self.functions.iter().zip(&found);
        let sorted = |is_wanted: &dyn Fn(&KeptFunction) -> bool| {
            let mut found: Vec<usize> =
                with().filter(|(f, _)| is_wanted(f)).filter_map(|(_, found)| *found).collect();
            found.sort_unstable();
            found.dedup();
            found
        };
        let missing = with().filter(|(f, found)| f.chosen && found.is_none());
        Ok(CarriedGroup {
            chosen: sorted(&|f| f.chosen),
            called: sorted(&|f| f.chosen && f.called),
            profile,
            layout: self.layout()?,
            fit,
            left_out: missing.map(|(f, _)| f.name.clone()).collect(),
        })
    }

    /// The part of the executed instructions whose functions were found.
    fn fit(&self, profile: Option<&Profile>, found: &[Option<usize>]) -> Result<f64> {
        let (mut fits, mut all) = (0.0, 0.0);
        for (function, found) in self.functions.iter().zip(found) {
            let executed = match profile {
                None => f64::from(function.shape.instructions()),
                Some(profile) => {
                    let entry = address(&function.address)?;
                    let count = |offset: u32| {
                        let at = LinkAddr(entry.0.wrapping_add(u64::from(offset)));
                        profile.blocks.get(&at).copied().unwrap_or(0)
                    };
                    function.shape.executed(count)
                }
            };
            all += executed;
            fits += if found.is_some() { executed } else { 0.0 };
        }
        Ok(if all > 0.0 { fits / all } else { 0.0 })
    }

    /// The profile by the addresses of another kernel. Counts of what was not found are gone.
    fn translated(
        &self,
        profile: &Profile,
        kernel: &LinkedKernel<'_>,
        found: &[Option<usize>],
    ) -> Result<Profile> {
        let mut places: BTreeMap<LinkAddr, LinkAddr> = BTreeMap::new();
        for (function, index) in self.functions.iter().zip(found) {
            let Some(index) = *index else { continue };
            let (old, new) =
                (address(&function.address)?, kernel.link_address(kernel.functions[index].at));
            let shape = Shape::of(kernel, index);
            let moved = |at: LinkAddr, by: u32| LinkAddr(at.0.wrapping_add(u64::from(by)));
            places
                .extend(function.shape.places(&shape).map(|(a, b)| (moved(old, a), moved(new, b))));
        }
        let mut callees: BTreeMap<LinkAddr, LinkAddr> = BTreeMap::new();
        for (at, name) in &self.callees {
            if let [to] = kernel.functions_named(name)[..] {
                callees.insert(address(at)?, kernel.link_address(kernel.functions[to].at));
            }
        }
        let place = |at: &LinkAddr| places.get(at).copied();
        let callee = |at: &LinkAddr| place(at).or_else(|| callees.get(at).copied());
        let mut carried = Profile::empty(kernel.build_id.clone());
        carried.merge = profile.merge;
        carried.sources = profile.sources.clone();
        let blocks = profile.blocks.iter();
        carried.blocks = blocks.filter_map(|(at, &count)| Some((place(at)?, count))).collect();
        let edges = profile.edges.iter();
        carried.edges = edges
            .filter_map(|((from, to), &count)| Some(((place(from)?, place(to)?), count)))
            .collect();
        let calls = profile.calls.iter();
        carried.calls = calls
            .filter_map(|((from, to), &count)| Some(((place(from)?, callee(to)?), count)))
            .collect();
        Ok(carried)
    }
}

/// A function of the same build. `None`: it is of a module that is not a part of the kernel, or is
/// loaded in another build. `counted`: the modules with counts.
fn same(
    function: &KeptFunction,
    kernel: &LinkedKernel<'_>,
    counted: &[ModuleIdentity],
) -> Result<Option<usize>> {
    let lasting = address(&function.address)?;
    let Some(at) = kernel.present_address(lasting) else { return Ok(None) };
    let index = kernel.function_at(at).filter(|&index| {
        let found = &kernel.functions[index];
        kernel.link_address(found.at) == at && kernel.title(found) == function.name
    });
    if module::is_of_module(lasting) {
        let Some(module) = kernel.module_at(at) else { return Ok(None) };
        // Without counts the module's build is not known.
        let is_same = |index: &usize| match counted.iter().find(|it| it.name == module.name) {
            Some(counted) => counted == module,
            None => function.shape.is_that_of(&Shape::of(kernel, *index)),
        };
        return Ok(index.filter(is_same));
    }
    let index = index.with_context(|| {
        format!(
            "{} is not at {} in the kernel that it was kept in: keep the group again",
            function.name,
            hex(at)
        )
    })?;
    Ok(Some(index))
}

/// The only function of that name with the same shape in another build.
fn alike(
    function: &KeptFunction,
    kernel: &LinkedKernel<'_>,
    shapes: &mut HashMap<usize, Shape>,
) -> Option<usize> {
    let mut alike = kernel.functions_named(&function.name).into_iter().filter(|&index| {
        let shape = shapes.entry(index).or_insert_with(|| Shape::of(kernel, index));
        function.shape.is_that_of(shape)
    });
    let found = alike.next()?;
    alike.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kernel::{F, G, H, another_build, at, tables, with};
    use layout::Algorithm;
    use layout::graph::EdgeKind;

    const LAYOUT: KeptLayout =
        KeptLayout { algorithm: Algorithm::ExtTspGlobal, seed: 0, inline: false, call_costs: None };
    const BY: u64 = 0x30;

    fn kept(chosen: &[usize], called: &[usize], counted: bool) -> (KeptGroup, BuildId) {
        with(tables(), |kernel| {
            let mut profile = Profile::empty(kernel.build_id.clone());
            profile.blocks.extend([(at(0), 10), (at(0x0c), 4), (at(0x17), 10), (at(0x40), 100)]);
            profile.edges.insert((at(0), at(0x17)), (EdgeKind::Branch, 6));
            profile.calls.extend([((at(0x0c), at(0x40)), 4), ((at(0x80), at(0x40)), 2)]);
            let profile = counted.then_some(&profile);
            let group = KeptGroup::new(kernel, chosen, called, profile, LAYOUT);
            (group, kernel.build_id.clone())
        })
    }

    fn in_build(file: &[u8], test: impl FnOnce(&LinkedKernel<'_>)) {
        let mut kernel = LinkedKernel::parse(file).unwrap();
        kernel.tables.tracer_sites = [0, 0x40, 0x80].map(|entry| at(BY + entry).0).to_vec();
        test(&kernel);
    }

    #[test]
    fn in_the_same_build_everything_is_as_it_was() {
        let (group, id) = kept(&[F, G], &[G], true);
        with(tables(), |kernel| {
            let carried = group.carry(&id, kernel).unwrap();
            assert_eq!((&carried.chosen[..], &carried.called[..]), (&[F, G][..], &[G][..]));
            assert_eq!((carried.fit, carried.left_out.len()), (1.0, 0));
            assert_eq!(carried.profile, group.profile().unwrap());
            let mut wrong = group.clone();
            wrong.functions[0].address = hex(at(4));
            let error = wrong.carry(&id, kernel).unwrap_err().to_string();
            assert!(error.starts_with("f is not at ffffffff81000004"), "{error}");
            let error = group.carry(&BuildId("00".into()), kernel).unwrap_err().to_string();
            assert!(error.contains("of another build than the group"), "{error}");
        });
    }

    #[test]
    fn in_another_build_counts_go_where_their_blocks_are() {
        let (group, id) = kept(&[F, G], &[], true);
        in_build(&another_build(BY, 0x60), |kernel| {
            let carried = group.carry(&id, kernel).unwrap();
            assert_eq!((&carried.chosen[..], carried.fit), (&[F, G][..], 1.0));
            let profile = carried.profile.unwrap();
            assert_eq!(profile.build_id, kernel.build_id);
            let blocks: Vec<(LinkAddr, u64)> = profile.blocks.into_iter().collect();
            let expected = [(0, 10), (0x0c, 4), (0x17, 10), (0x40, 100)];
            assert_eq!(blocks, expected.map(|(offset, count)| (at(BY + offset), count)));
            let branch = (at(BY), at(BY + 0x17));
            assert_eq!(profile.edges, BTreeMap::from([(branch, (EdgeKind::Branch, 6))]));
            let call = (at(BY + 0x0c), at(BY + 0x40));
            assert_eq!(profile.calls, BTreeMap::from([(call, 4)]));
        });
        // What is called outside of the group is found by its name.
        let (group, id) = kept(&[F], &[], true);
        in_build(&another_build(BY, 0x60), |kernel| {
            let profile = group.carry(&id, kernel).unwrap().profile.unwrap();
            assert_eq!(profile.calls.keys().next(), Some(&(at(BY + 0x0c), at(BY + 0x40))));
        });
    }

    #[test]
    fn functions_of_another_shape_or_name_are_left_out_and_weigh_what_they_executed() {
        let mut file = another_build(BY, 0x60);
        // The move in f becomes a jump to the next instruction, which is a block of its own.
        let code = file.windows(3).position(|bytes| bytes == [0x48, 0x89, 0xfb]).unwrap();
        file[code..code + 3].copy_from_slice(&[0xeb, 0x01, 0x90]);
        let (group, id) = kept(&[F, G], &[F], true);
        in_build(&file, |kernel| {
            let carried = group.carry(&id, kernel).unwrap();
            assert_eq!((&carried.chosen[..], &carried.left_out[..]), (&[G][..], &["f".into()][..]));
            assert!(carried.called.is_empty());
            // f: 10 times four instructions, 4 times two, 10 times one; g: 100 times three.
            assert_eq!(carried.fit, 300.0 / 358.0);
            assert!(!carried.profile.unwrap().blocks.contains_key(&at(BY)));
        });
        // Without counts each instruction weighs the same: 7 of f, 3 of g, 2 of h.
        let (group, id) = kept(&[F, G, H], &[], false);
        in_build(&file, |kernel| {
            assert_eq!(group.carry(&id, kernel).unwrap().fit, 5.0 / 12.0);
        });
    }
}
