//! Profiles of kernels with modules, whose code lies elsewhere at every boot.
//!
//! Input: a profile. Output: the same counts by the addresses that code has now, or by those that
//! last ([`LinkedKernel::lasting_address`]): files have these. This module reads no files.

use image::linked::LinkedKernel;
use image::module::{self, ModuleIdentity};
use profile::Profile;

/// Bytes of lasting addresses for each module.
const MODULE_SPACE: u64 = 1 << 32;

/// The profile of a file, by the addresses that code has now. Counts of modules that are not a part
/// of this kernel, or are of another build, are left out. Gives these modules too.
pub fn present(kernel: &LinkedKernel<'_>, profile: Profile) -> (Profile, Vec<ModuleIdentity>) {
    let known = kernel.module_identities();
    let others: Vec<ModuleIdentity> =
        profile.modules.iter().filter(|module| !known.contains(module)).cloned().collect();
    let other_spaces: Vec<u64> =
        others.iter().map(|other| module::base_of(&other.name).0).collect();
    let moved = profile.moved(&|at| {
        let is_other = |base: &u64| at.0.wrapping_sub(*base) < MODULE_SPACE;
        if other_spaces.iter().any(is_other) { None } else { kernel.present_address(at) }
    });
    (moved, others)
}

/// A profile for a file: by addresses that last, with the modules that it counts.
pub fn lasting(kernel: &LinkedKernel<'_>, profile: Profile) -> Profile {
    let counted = profile.blocks.keys().filter_map(|&at| kernel.module_at(at));
    let mut modules: Vec<ModuleIdentity> = counted.cloned().collect();
    modules.sort();
    modules.dedup();
    Profile { modules, ..profile.moved(&|at| Some(kernel.lasting_address(at))) }
}
