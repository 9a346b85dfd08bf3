//! What a machine with several cores must have.
//!
//! Input: a machine. Output: the first rule that the machine breaks. Nothing is simulated here.

use super::description::CoherenceError;
use crate::Replacement;
use crate::machine::MachineModel;

impl MachineModel {
    /// Whether the machine's cores can be simulated, if it has several.
    ///
    /// # Errors
    /// The rule that the machine breaks.
    pub fn check_coherence(&self) -> Result<(), CoherenceError> {
        match (self.coherence, self.os_core) {
            (None, None) => return Ok(()),
            (None, Some(_)) => return Err(CoherenceError::Missing("coherence")),
            (Some(_), _) => {}
        }
        if self.core.is_some() {
            return Err(CoherenceError::OutOfOrder);
        }
        let memory = self.memory.as_ref().ok_or(CoherenceError::Missing("l1d"))?;
        let l2 = memory.l2.as_ref().ok_or(CoherenceError::Missing("l2"))?;
        let caches = [Some(self.l1i), Some(memory.l1d.geometry), Some(l2.geometry)];
        for cache in caches.into_iter().chain([memory.l3.map(|l3| l3.geometry)]).flatten() {
            if cache.replacement() != Replacement::Lru {
                return Err(CoherenceError::Replacement(cache.replacement()));
            }
        }
        for (level, line) in [("L1I", self.l1i_line), ("L1D", memory.l1d.line)] {
            if line > l2.line {
                return Err(CoherenceError::LongerLine { level, line, l2: l2.line });
            }
        }
        match memory.l3 {
            Some(l3) if l3.line != l2.line => {
                Err(CoherenceError::OtherLine { l3: l3.line, l2: l2.line })
            }
            _ => Ok(()),
        }
    }
}
