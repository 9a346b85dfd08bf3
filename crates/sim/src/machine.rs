//! A machine: the numbers that the simulator needs, checked.

use crate::geometry::{Geometry, GeometryError, Replacement};
use crate::prediction::BranchPrediction;
use crate::time::{Latencies, SimpleModel};
use thiserror::Error;

/// A machine that can be simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    pub name: String,
    pub l1i: Geometry,
    /// Bytes in a line of the L1I.
    pub l1i_line: u32,
    /// `None`: the machine's source says nothing of one.
    pub itlb: Option<ItlbDescription>,
    pub time: SimpleModel,
    /// `None`: the machine's source says nothing of data caches.
    pub memory: Option<Memory>,
    /// `None`: the machine's source says nothing of it, or it predicts no branches.
    pub branch: Option<BranchPrediction>,
}

/// A cache and the bytes in its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheDescription {
    pub geometry: Geometry,
    pub line: u32,
}

/// What lies behind the L1I: the L1D, and what both miss into.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    pub l1d: CacheDescription,
    pub l2: Option<CacheDescription>,
    pub l3: Option<CacheDescription>,
    /// Its entries hold pages of any size, as the guest maps them.
    pub dtlb: Option<Geometry>,
    pub latencies: Latencies,
}

impl Memory {
    /// # Errors
    /// There is an L3 and no L2.
    pub fn new(
        l1d: CacheDescription,
        l2: Option<CacheDescription>,
        l3: Option<CacheDescription>,
        dtlb: Option<Geometry>,
        latencies: Latencies,
    ) -> Result<Memory, MachineError> {
        match (&l2, &l3) {
            (None, Some(_)) => Err(MachineError::L3WithoutL2),
            _ => Ok(Memory { l1d, l2, l3, dtlb, latencies }),
        }
    }
}

impl CacheDescription {
    /// See [`Geometry::cache`].
    pub fn new(
        size: u64,
        ways: u64,
        line: u64,
        replacement: Replacement,
    ) -> Result<CacheDescription, GeometryError> {
        Ok(CacheDescription {
            geometry: Geometry::cache(size, ways, line, replacement)?,
            line: line as u32,
        })
    }
}

/// An instruction TLB whose entries hold pages of any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItlbDescription {
    pub geometry: Geometry,
    /// Bytes in a page of the kernel's image.
    pub kernel_page: u64,
    /// Bytes in any other page.
    pub user_page: u64,
}

#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum MachineError {
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    #[error("a page holds a power of two from 4096 to 2^30 bytes, not {0}")]
    PageSize(u64),
    #[error("a miss costs from 0 to 10000 cycles, not {0}")]
    MissPenalty(f64),
    #[error("an L3 stands behind an L2, and there is none")]
    L3WithoutL2,
    #[error(
        "a latency lies between 0 and 10000 cycles and is not less than that of the level before, not {0}"
    )]
    Latency(f64),
    #[error("a share lies between 0 and 1, not {0}")]
    Share(f64),
}

impl ItlbDescription {
    pub fn new(
        geometry: Geometry,
        kernel_page: u64,
        user_page: u64,
    ) -> Result<ItlbDescription, MachineError> {
        for page in [kernel_page, user_page] {
            if !page.is_power_of_two() || !(4096..=1 << 30).contains(&page) {
                return Err(MachineError::PageSize(page));
            }
        }
        Ok(ItlbDescription { geometry, kernel_page, user_page })
    }
}

impl SimpleModel {
    /// Checks the ranges; NaN is in none.
    pub fn new(
        miss_penalty: f64,
        data_references: f64,
        data_miss_rate: f64,
    ) -> Result<SimpleModel, MachineError> {
        if !(0.0..=10000.0).contains(&miss_penalty) {
            return Err(MachineError::MissPenalty(miss_penalty));
        }
        for share in [data_references, data_miss_rate] {
            if !(0.0..=1.0).contains(&share) {
                return Err(MachineError::Share(share));
            }
        }
        Ok(SimpleModel { miss_penalty, data_references, data_miss_rate })
    }
}

impl Latencies {
    /// Checks the ranges; NaN is in none. Where a level is missing, its latency is that of the
    /// next.
    pub fn new(l2: f64, l3: f64, memory: f64, tlb_miss: f64) -> Result<Latencies, MachineError> {
        for cycles in [l2, l3, memory, tlb_miss] {
            if !(0.0..=10000.0).contains(&cycles) {
                return Err(MachineError::Latency(cycles));
            }
        }
        for (near, far) in [(l2, l3), (l3, memory)] {
            if far < near {
                return Err(MachineError::Latency(far));
            }
        }
        Ok(Latencies { l2, l3, memory, tlb_miss })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Replacement;

    #[test]
    fn pages_and_shares_have_their_ranges() {
        let geometry = Geometry::tlb(64, 64, Replacement::Lru).unwrap();
        assert!(ItlbDescription::new(geometry, 2 << 20, 4096).is_ok());
        assert_eq!(
            ItlbDescription::new(geometry, 2 << 20, 5000),
            Err(MachineError::PageSize(5000))
        );
        assert_eq!(ItlbDescription::new(geometry, 2048, 4096), Err(MachineError::PageSize(2048)));
        assert!(SimpleModel::new(30.0, 0.3, 0.05).is_ok());
        assert_eq!(SimpleModel::new(-1.0, 0.3, 0.05), Err(MachineError::MissPenalty(-1.0)));
        assert_eq!(SimpleModel::new(30.0, 1.5, 0.05), Err(MachineError::Share(1.5)));
        assert!(
            matches!(SimpleModel::new(30.0, 0.3, f64::NAN), Err(MachineError::Share(share)) if share.is_nan())
        );
    }
}
