//! A machine: the checked numbers that the simulator needs.
//!
//! Input: numbers. Output: a [`MachineModel`], or an error that names the rule. This module reads
//! no file and simulates nothing.

use crate::Replacement;
use crate::coherent::description::CoherenceDescription;
use crate::coherent::os_core::OsCoreDescription;
use crate::core::description::{CoreDescription, CoreError};
use crate::geometry::{CacheGeometry, GeometryError};
use crate::prediction::BranchPrediction;
use crate::time::{Latencies, SimpleModel};
use std::num::NonZeroU32;
use thiserror::Error;

/// A machine that can be simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineModel {
    /// The name of the machine.
    pub name: String,
    /// The L1 cache of instructions.
    pub l1i: CacheGeometry,
    /// The bytes in a line of the L1I.
    pub l1i_line: u32,
    /// The instruction TLB. `None`: the machine's source describes none.
    pub itlb: Option<ItlbDescription>,
    /// The parameters of the simple time model.
    pub time: SimpleModel,
    /// The data caches. `None`: the machine's source describes none.
    pub memory: Option<MemoryDescription>,
    /// The branch prediction. `None`: the machine's source describes none, or the machine predicts
    /// no branches.
    pub branch: Option<BranchPrediction>,
    /// The out-of-order core. `None`: the machine's source describes none.
    pub core: Option<CoreDescription>,
    /// The cores and their coherence. `None`: the machine has one core.
    pub coherence: Option<CoherenceDescription>,
    /// The last core, when it is for the operating system. `None`: all cores are alike.
    pub os_core: Option<OsCoreDescription>,
    /// The clock, in MHz. `None`: the machine's source gives none.
    pub clock: Option<NonZeroU32>,
}

impl MachineModel {
    /// A machine of which only the L1I, with lines of `l1i_line` bytes, and the time are known.
    pub fn l1i_only(
        name: &str,
        l1i: CacheGeometry,
        l1i_line: u32,
        time: SimpleModel,
    ) -> MachineModel {
        MachineModel {
            name: name.to_owned(),
            l1i,
            l1i_line,
            itlb: None,
            time,
            memory: None,
            branch: None,
            core: None,
            coherence: None,
            os_core: None,
            clock: None,
        }
    }

    /// Checks whether the machine's core, if it has one, can be built.
    ///
    /// # Errors
    /// The rule that a number of the core breaks, or the table that the core needs.
    pub fn check_core(&self) -> Result<(), CoreError> {
        let Some(core) = &self.core else { return Ok(()) };
        let memory = self.memory.as_ref().ok_or(CoreError::Missing("l1d"))?;
        self.itlb.as_ref().ok_or(CoreError::Missing("itlb"))?;
        memory.dtlb.as_ref().ok_or(CoreError::Missing("dtlb"))?;
        core.check(&memory.latencies)
    }
}

/// A cache together with the bytes in its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheDescription {
    /// Sets, ways and replacement.
    pub geometry: CacheGeometry,
    /// The bytes in a line.
    pub line: u32,
}

/// The caches behind the L1I: the L1D, and the levels that both L1s share.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryDescription {
    /// The L1 cache of data.
    pub l1d: CacheDescription,
    /// The L2, if there is one.
    pub l2: Option<CacheDescription>,
    /// The L3, if there is one.
    pub l3: Option<CacheDescription>,
    /// The data TLB, if there is one. An entry holds a page of any size, as the guest maps it.
    pub dtlb: Option<CacheGeometry>,
    /// What misses cost.
    pub latencies: Latencies,
}

impl MemoryDescription {
    /// Puts the levels together.
    ///
    /// # Errors
    /// There is an L3 and no L2.
    pub fn new(
        l1d: CacheDescription,
        l2: Option<CacheDescription>,
        l3: Option<CacheDescription>,
        dtlb: Option<CacheGeometry>,
        latencies: Latencies,
    ) -> Result<MemoryDescription, MachineError> {
        match (&l2, &l3) {
            (None, Some(_)) => Err(MachineError::L3WithoutL2),
            _ => Ok(MemoryDescription { l1d, l2, l3, dtlb, latencies }),
        }
    }
}

impl CacheDescription {
    /// A cache of `size` bytes in lines of `line` bytes.
    ///
    /// # Errors
    /// See [`CacheGeometry::cache`].
    pub fn new(
        size: u64,
        ways: u64,
        line: u64,
        replacement: Replacement,
    ) -> Result<CacheDescription, GeometryError> {
        Ok(CacheDescription {
            geometry: CacheGeometry::cache(size, ways, line, replacement)?,
            line: line as u32,
        })
    }
}

/// An instruction TLB whose entries hold pages of any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItlbDescription {
    /// Sets, ways and replacement.
    pub(crate) geometry: CacheGeometry,
    /// The bytes in a page of the kernel's image.
    pub(crate) kernel_page: u64,
    /// The bytes in any other page.
    pub(crate) user_page: u64,
}

#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum MachineError {
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    #[error("the size of a page must be a power of two from 4096 to 2^30 bytes, not {0}")]
    PageSize(u64),
    #[error("a miss must cost from 0 to 10000 cycles, not {0}")]
    MissPenalty(f64),
    #[error("there is an L3 but no L2")]
    L3WithoutL2,
    #[error(
        "a latency must lie between 0 and 10000 cycles and be at least that of the level before, \
         not {0}"
    )]
    Latency(f64),
    #[error("a share must lie between 0 and 1, not {0}")]
    Share(f64),
}

impl ItlbDescription {
    /// A TLB with these sizes of pages in bytes.
    ///
    /// # Errors
    /// No such TLB can be built, or a size is not a power of two from 4096 to 2^30.
    pub fn new(
        geometry: CacheGeometry,
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

    /// Sets, ways and replacement.
    pub fn geometry(&self) -> CacheGeometry {
        self.geometry
    }

    /// The bytes in a page of the kernel's image.
    pub fn kernel_page(&self) -> u64 {
        self.kernel_page
    }

    /// The bytes in any other page.
    pub fn user_page(&self) -> u64 {
        self.user_page
    }
}

impl SimpleModel {
    /// The model with these parameters.
    ///
    /// # Errors
    /// A parameter is outside its range. NaN is outside of every range.
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
    /// The latencies in cycles. A missing level has the latency of the next level.
    ///
    /// # Errors
    /// A latency is outside its range, or below that of the level before. NaN is outside of every
    /// range.
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
    use crate::Replacement;

    #[test]
    fn pages_and_shares_have_their_ranges() {
        let geometry = CacheGeometry::tlb(64, 64, Replacement::Lru).unwrap();
        assert!(ItlbDescription::new(geometry, 2 << 20, 4096).is_ok());
        assert_eq!(
            ItlbDescription::new(geometry, 2 << 20, 5000),
            Err(MachineError::PageSize(5000))
        );
        assert_eq!(ItlbDescription::new(geometry, 2048, 4096), Err(MachineError::PageSize(2048)));
        assert!(SimpleModel::new(30.0, 0.3, 0.05).is_ok());
        assert_eq!(SimpleModel::new(-1.0, 0.3, 0.05), Err(MachineError::MissPenalty(-1.0)));
        assert_eq!(SimpleModel::new(30.0, 1.5, 0.05), Err(MachineError::Share(1.5)));
        assert!(matches!(
            SimpleModel::new(30.0, 0.3, f64::NAN),
            Err(MachineError::Share(share)) if share.is_nan()
        ));
    }
}
