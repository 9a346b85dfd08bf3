//! Merges several profiles of one kernel: their sum, or Torrellas' average (1998, section 5).
//!
//! Input: profiles. Output: one profile. Profiles of different kernels are refused.

use crate::{BlockEpochsTable, Process, Profile};
use anyhow::{Result, bail, ensure};
use std::collections::BTreeMap;

/// How profiles are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfileMerge {
    /// Counts are added: a longer recording weighs more.
    Sum,
    /// Every recording weighs the same: counts are scaled to equal sums of block counts, then added
    /// (Torrellas 1998, section 5: "the average of the profiles of all the workloads").
    Average,
}

/// Merges `profiles` in the given order.
///
/// # Errors
/// There is no profile, or the profiles are of different kernels.
pub fn merge(profiles: Vec<Profile>, how: ProfileMerge) -> Result<Profile> {
    let largest = profiles.iter().map(total).max().unwrap_or(0);
    let scale = |profile| match how {
        ProfileMerge::Sum => profile,
        ProfileMerge::Average => scaled(profile, largest),
    };
    added(profiles.into_iter().map(scale), how)
}

/// The average of `profiles`, in which each counts as often as its weight says.
///
/// # Errors
/// As [`merge`]; or a profile has no weight.
pub fn merge_weighted(profiles: Vec<Profile>, weights: &[u32]) -> Result<Profile> {
    let largest = profiles.iter().map(total).max().unwrap_or(0);
    ensure!(profiles.len() == weights.len(), "not every profile has a weight");
    let weighted = profiles.into_iter().zip(weights);
    let scale = |(profile, &weight)| scaled(profile, largest * u128::from(weight));
    added(weighted.map(scale), ProfileMerge::Average)
}

fn added(profiles: impl IntoIterator<Item = Profile>, how: ProfileMerge) -> Result<Profile> {
    let mut profiles = profiles.into_iter();
    let Some(mut merged) = profiles.next() else {
        bail!("there is no profile to merge");
    };
    merged.merge = how;
    for profile in profiles {
        if profile.build_id != merged.build_id {
            let (one, other) = (&merged.build_id.0, &profile.build_id.0);
            bail!("the recordings are of different kernels, with build ids {one} and {other}");
        }
        add_modules(&mut merged, &profile)?;
        add(&mut merged, profile);
    }
    Ok(merged)
}

fn total(profile: &Profile) -> u128 {
    profile.blocks.values().map(|&count| u128::from(count)).sum()
}

/// A profile whose counts of blocks have the sum `wanted`.
fn scaled(mut profile: Profile, wanted: u128) -> Profile {
    let own = total(&profile);
    if own == 0 || own == wanted {
        return profile;
    }
    // Rounded up: code that ran once must not become code that never ran.
    let scale = |count: &mut u64| *count = (u128::from(*count) * wanted).div_ceil(own) as u64;
    profile.blocks.values_mut().for_each(scale);
    profile.edges.values_mut().for_each(|(_, count)| scale(count));
    profile.calls.values_mut().for_each(scale);
    profile.seeds.values_mut().for_each(scale);
    profile.joint_misses.values_mut().for_each(scale);
    profile.temporal_edges.values_mut().for_each(scale);
    profile
}

fn add(merged: &mut Profile, other: Profile) {
    merged.sources.extend(other.sources);
    add_counts(&mut merged.blocks, other.blocks);
    add_counts(&mut merged.calls, other.calls);
    add_counts(&mut merged.seeds, other.seeds);
    add_counts(&mut merged.joint_misses, other.joint_misses);
    add_counts(&mut merged.temporal_edges, other.temporal_edges);
    append(&mut merged.block_epochs, other.block_epochs);
    add_counts(&mut merged.outside, other.outside);
    merged.shapes.extend(other.shapes);
    for (ends, (kind, count)) in other.edges {
        merged.edges.entry(ends).or_insert((kind, 0)).1 += count;
    }
    for (name, process) in other.processes {
        let row: &mut Process = merged.processes.entry(name).or_default();
        row.kernel_instructions += process.kernel_instructions;
        row.user_instructions += process.user_instructions;
        add_counts(&mut row.blocks, process.blocks);
    }
}

/// Adds the modules of another profile. The addresses of two builds of a module have different
/// meanings.
fn add_modules(merged: &mut Profile, other: &Profile) -> Result<()> {
    for module in &other.modules {
        match merged.modules.iter().find(|known| known.name == module.name) {
            None => merged.modules.push(module.clone()),
            Some(known) => ensure!(
                known == module,
                "the recordings are of different builds of a module: {known} and {module}"
            ),
        }
    }
    merged.modules.sort();
    Ok(())
}

/// Epochs are not counts: they are never scaled. The epochs of each recording follow those of the
/// recordings before it.
fn append(to: &mut BlockEpochsTable, from: BlockEpochsTable) {
    let words = to.words + from.words;
    for (block, row) in from.blocks {
        let epochs = to.blocks.entry(block).or_default();
        epochs.resize(to.words, 0);
        epochs.extend(row);
    }
    to.words = words;
    to.blocks.values_mut().for_each(|row| row.resize(words, 0));
}

fn add_counts<K: Ord>(to: &mut BTreeMap<K, u64>, from: BTreeMap<K, u64>) {
    for (key, count) in from {
        *to.entry(key).or_insert(0) += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::example;
    use image::BuildId;
    use image::address::LinkAddr;

    #[test]
    fn a_sum_adds_and_an_average_weighs_equally() {
        let mut other = example();
        other.blocks = BTreeMap::from([(LinkAddr(0x1000), 1), (LinkAddr(0x2000), 5)]);
        let sum = merge(vec![example(), other.clone()], ProfileMerge::Sum).unwrap();
        assert_eq!(sum.blocks[&LinkAddr(0x1000)], 8);
        assert_eq!(sum.edges.values().next().unwrap().1, 10);
        assert_eq!(sum.joint_misses.values().copied().collect::<Vec<_>>(), [8]);
        assert_eq!(sum.temporal_edges.values().copied().collect::<Vec<_>>(), [12]);
        assert_eq!(sum.block_epochs.words, 2);
        assert_eq!(sum.block_epochs.blocks[&LinkAddr(0x1000)], [0b101, 0b101]);
        // 12 and 6 blocks: the second profile counts twice.
        let average = merge(vec![example(), other], ProfileMerge::Average).unwrap();
        assert_eq!(average.blocks[&LinkAddr(0x1000)], 7 + 2);
        assert_eq!(average.blocks[&LinkAddr(0x2000)], 10);
    }

    #[test]
    fn a_profile_counts_as_often_as_its_weight_says() {
        let of = |addr: u64, count: u64| {
            let mut profile = example();
            profile.blocks = BTreeMap::from([(LinkAddr(addr), count)]);
            profile
        };
        let profiles = || vec![of(0x1000, 10), of(0x2000, 40)];
        let merged = merge_weighted(profiles(), &[3, 1]).unwrap();
        let counts = |merged: &Profile| merged.blocks.values().copied().collect::<Vec<_>>();
        assert_eq!(counts(&merged), [120, 40]);
        let average = merge(profiles(), ProfileMerge::Average).unwrap();
        assert_eq!(counts(&merge_weighted(profiles(), &[1, 1]).unwrap()), counts(&average));
        assert!(merge_weighted(profiles(), &[1]).is_err());
    }

    #[test]
    fn profiles_of_different_kernels_are_refused() {
        let mut other = example();
        other.build_id = BuildId("00ae".into());
        let error = merge(vec![example(), other], ProfileMerge::Sum).unwrap_err();
        assert!(error.to_string().contains("5f3c and 00ae"));
        assert!(merge(vec![], ProfileMerge::Sum).is_err());
    }
}
