//! Two machines of different generations: P = T × A (Nellans 2005, section 3).
//!
//! Input: two results and the ratio of technology T, by clock or by FO4. Output: Nellans' tables 3
//! and 4 and figure 1, with the paper's numbers beside ours. P is how many times faster the newer
//! machine is. A is the part that T does not explain, the part of the architecture. This module
//! never guesses T, and never leaves a row out without the reason.

mod nellans;
pub(crate) mod split;
pub(crate) mod text;
