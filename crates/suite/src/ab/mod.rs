//! Two states of one machine, measured alternately: a change that can be switched on and off within
//! a boot, or two kernels that are booted one after the other.
//!
//! Input: what to switch or to boot, and a directory. Output: `before.json` and `after.json` in the
//! directory, as two runs would write them. Whatever happens, the change is off in the end, or the
//! first kernel runs. A wrong kernel ends the run with its name, and the machine is not booted
//! again.

pub(crate) mod arguments;
pub(crate) mod boots;
pub(crate) mod merged;
pub(crate) mod state;
pub(crate) mod steps;
pub(crate) mod switch;
