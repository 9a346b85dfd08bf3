//! Two machines of different generations: P = T × A (Nellans 2005, section 3).
//!
//! Takes two results and the ratio of technology T, by clock or by FO4; gives his tables 3 and 4
//! and his figure 1 with his numbers beside ours. P is how many times faster the newer machine is;
//! what T does not explain is A, the part of the architecture. Never guesses T, and never leaves a
//! row out without the reason.

mod nellans;
pub(crate) mod split;
pub(crate) mod text;
