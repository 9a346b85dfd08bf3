//! Makes kept groups again in the kernel that runs.
//!
//! Input: what is kept, and the running kernel. Output: installed groups, or the kernel as it was.
//! Functions that cannot be replaced now, or belong to another tool, are left out, as a group
//! leaves them out when it is made.

use super::carry::CarriedGroup;
use super::kept::{Kept, KeptGroup};
use super::notes;
use crate::choice::Choice;
use crate::device::{self, Device};
use crate::eligible::Unfit;
use crate::group::Group;
use crate::identity::GroupId;
use crate::inline::{self, InlineSettings};
use crate::install::{PreparedGroup, TextPage};
use crate::owners::Owners;
use crate::planned;
use crate::running::RunningKernel;
use crate::turn::Turn;
use crate::undo;
use anyhow::{Context, Result};
use image::linked::LinkedKernel;

/// Kept groups in terms of the running kernel.
#[derive(Clone, Debug)]
pub struct CarriedGroups {
    /// Each group, in the order in which they are installed.
    pub groups: Vec<CarriedGroup>,
    /// They were made in this very build.
    pub is_same_build: bool,
}

impl CarriedGroups {
    /// Finds everything that is kept in a kernel.
    ///
    /// # Errors
    /// The errors of [`KeptGroup::carry`].
    pub fn new(kept: &Kept, kernel: &LinkedKernel<'_>) -> Result<CarriedGroups> {
        let groups = kept.groups.iter().map(|group| group.carry(&kept.build_id, kernel));
        Ok(CarriedGroups {
            groups: groups.collect::<Result<_>>()?,
            is_same_build: kept.build_id == kernel.build_id,
        })
    }

    /// The part of the executed instructions that fits in the group of which least fits, 0 to 1.
    pub fn fit(&self) -> f64 {
        self.groups.iter().map(|group| group.fit).fold(1.0, f64::min)
    }

    /// Chosen functions that do not fit, in all groups.
    pub fn left_out(&self) -> usize {
        self.groups.iter().map(|group| group.left_out.len()).sum()
    }
}

/// A group that was made again.
#[derive(Clone, Debug)]
pub struct RestoredGroup {
    /// Its identity.
    pub id: GroupId,
    /// The number of functions that it replaces.
    pub functions: usize,
}

impl CarriedGroup {
    /// Lays the group out for pages of that size, and proves it. `told` gets a line for each
    /// function that is left out.
    ///
    /// # Errors
    /// No function is left, memory cannot be read, or the copies cannot be made or proven.
    pub fn prepare<'k, 'd>(
        &self,
        kernel: &'k LinkedKernel<'d>,
        running: &RunningKernel,
        page: TextPage,
        told: &mut dyn FnMut(&str),
    ) -> Result<(Group<'k, 'd>, PreparedGroup)> {
        for name in self.left_out.iter().filter(|name| name.ends_with(']')) {
            told(&format!(
                "left out: {name}: its module is not loaded, was not read, or is another build"
            ));
        }
        let choice = Choice {
            named: &[],
            roots: &[],
            threshold: 0.0,
            share: 0.0,
            skip_unfit: true,
            call_costs: self.layout.call_costs,
        };
        let chosen = choice.unowned(kernel, &Owners::read(), self.chosen.clone(), told)?;
        let group = match self.profile.as_ref().filter(|_| self.layout.inline) {
            None => Group::new(kernel, running, &chosen)?,
            Some(profile) => {
                let costs = self.layout.call_costs;
                let settings = InlineSettings { costs, ..InlineSettings::default() };
                let called = &self.called;
                inline::group_calling(kernel, running, &chosen, profile, settings, called)?.0
            }
        };
        choice.tell_left_out(kernel, &group, &|_: Unfit| Ok(String::new()), told)?;
        let layout = self.layout;
        let profile = self.profile.as_ref();
        let (algorithm, seed) = (layout.algorithm, layout.seed);
        let prepared = planned::lay_out(&group, running, profile, algorithm, seed, page)?;
        Ok((group, prepared))
    }

    /// What it is made from, in this kernel.
    fn described(&self, kernel: &LinkedKernel<'_>) -> KeptGroup {
        let profile = self.profile.as_ref();
        KeptGroup::new(kernel, &self.chosen, &self.called, profile, self.layout)
    }
}

/// What became of groups that were to be made again.
#[derive(Clone, Debug)]
pub enum Restored {
    /// They are installed.
    Groups(Vec<RestoredGroup>),
    /// Another command had installed groups with these names when this one's turn came.
    Already(String),
}

/// Installs the groups one after the other. If one cannot be installed, those before it are taken
/// back.
///
/// # Errors
/// A group cannot be made or installed. The message says so, and whether the others could be taken
/// back.
pub fn install(
    carried: &CarriedGroups,
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    device: &Device,
    told: &mut dyn FnMut(&str),
) -> Result<Restored> {
    let mut restored: Vec<RestoredGroup> = Vec::new();
    for group in &carried.groups {
        let turn = Turn::wait(told)?;
        if restored.is_empty()
            && let Some(names) = undo::installed()?
        {
            return Ok(Restored::Already(names));
        }
        match install_one(group, kernel, running, device, &turn, told) {
            Ok(one) => restored.push(one),
            Err(error) => {
                drop(turn);
                for done in &restored {
                    undo::take_back(device, &done.id)
                        .with_context(|| format!("taking {} back after: {error:#}", done.id))?;
                }
                return Err(error);
            }
        }
    }
    Ok(Restored::Groups(restored))
}

fn install_one(
    carried: &CarriedGroup,
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    device: &Device,
    turn: &Turn,
    told: &mut dyn FnMut(&str),
) -> Result<RestoredGroup> {
    let (group, prepared) = carried.prepare(kernel, running, device.page(), told)?;
    let described = carried.described(kernel);
    notes::note(&prepared.id, &described, &kernel.build_id, &device::status()?)?;
    prepared.install(&group, device, turn)?;
    Ok(RestoredGroup { id: prepared.id.clone(), functions: group.members.len() })
}
