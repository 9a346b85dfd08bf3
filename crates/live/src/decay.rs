//! Merges what is counted over days: older counts weigh less.
//!
//! Input: an older and a newer profile of one kernel. Output: one profile. What has not run for
//! long enough is in it no more.

use anyhow::{Result, ensure};
use profile::{Profile, ProfileMerge, merge};
use std::time::Duration;

/// The part of its weight that a profile of this age keeps, 0 to 1. `half_life`: after this time it
/// has half of its weight.
pub fn weight(age: Duration, half_life: Duration) -> f64 {
    match half_life.is_zero() {
        true => 0.0,
        false => 0.5f64.powf(age.as_secs_f64() / half_life.as_secs_f64()),
    }
}

/// The newer profile, with the older one's counts times `weight`, rounded down: both are as if
/// counted for the same time.
///
/// # Errors
/// The profiles are of different kernels.
pub fn merged(mut older: Profile, newer: Profile, weight: f64) -> Result<Profile> {
    ensure!((0.0..=1.0).contains(&weight), "a weight from 0 to 1");
    let scale = |count: &mut u64| *count = (*count as f64 * weight) as u64;
    older.blocks.values_mut().for_each(scale);
    older.blocks.retain(|_, count| *count > 0);
    older.edges.values_mut().for_each(|(_, count)| scale(count));
    older.edges.retain(|_, (_, count)| *count > 0);
    older.calls.values_mut().for_each(scale);
    older.calls.retain(|_, count| *count > 0);
    // The sources of a year would be a long list that says nothing.
    older.sources.clear();
    merge(vec![older, newer], ProfileMerge::Sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::BuildId;
    use image::address::LinkAddr;

    fn profile(counts: &[(u64, u64)]) -> Profile {
        let mut profile = Profile::empty(BuildId("5f".into()));
        profile.blocks = counts.iter().map(|&(at, count)| (LinkAddr(at), count)).collect();
        profile.calls =
            counts.iter().map(|&(at, count)| ((LinkAddr(at), LinkAddr(1)), count)).collect();
        profile
    }

    #[test]
    fn older_counts_weigh_less_and_are_forgotten() {
        let day = Duration::from_secs(86_400);
        assert_eq!(weight(Duration::ZERO, day), 1.0);
        assert_eq!(weight(3 * day, day), 0.125);
        assert_eq!(weight(day, Duration::ZERO), 0.0);
        let merged = merged(profile(&[(16, 100), (32, 1)]), profile(&[(16, 5), (48, 7)]), 0.5);
        let merged = merged.unwrap();
        let counts: Vec<(u64, u64)> = merged.blocks.iter().map(|(at, &n)| (at.0, n)).collect();
        assert_eq!(counts, [(16, 55), (48, 7)]);
        assert_eq!(merged.calls.len(), 2);
    }

    #[test]
    fn profiles_of_different_kernels_are_refused() {
        let mut other = profile(&[(16, 1)]);
        other.build_id = BuildId("00".into());
        assert!(merged(other.clone(), profile(&[]), 0.5).is_err());
        assert!(merged(other.clone(), other, 1.5).is_err());
    }
}
