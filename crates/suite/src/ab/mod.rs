//! Two states of one machine, measured alternately: a change that can be switched on and off within
//! a boot, or two kernels that are booted one after the other.
//!
//! Takes what to switch or to boot, and a directory; gives there `before.json` and `after.json`, as
//! two runs would. Whatever happens, the change is off in the end, or the first kernel runs. Never
//! boots again after a surprise: a wrong kernel ends the run, and is named.

pub(crate) mod arguments;
pub(crate) mod boots;
pub(crate) mod merged;
pub(crate) mod state;
pub(crate) mod steps;
pub(crate) mod switch;
