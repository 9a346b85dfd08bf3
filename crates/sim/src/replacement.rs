//! The registry of replacement policies: which there are, and what they are called.
//!
//! Takes a policy and the shape of a cache; gives the state from which each set chooses its victim.
//!
//! To add a policy: a file with a type that is a [`Policy`], and its row in the table below. The
//! tests in `tests/naive.rs` compare it with a naive model.

use crate::access::CacheAccess;
use crate::line::LineId;
use crate::lru::Lru;
use crate::plru::PlruTrees;
use crate::policy::Policy;

/// Makes [`Replacement`] and [`State`] of one table: variant, name in machine files, and type.
macro_rules! policies {
    ($($(#[$attribute:meta])* $variant:ident, $name:literal, $policy:ty;)*) => {
        /// How the victim of a set is chosen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Replacement {
            $($(#[$attribute])* $variant,)*
        }

        impl Replacement {
            /// Every policy.
            pub const ALL: &[Replacement] = &[$(Replacement::$variant),*];

            /// What it is called in machine files.
            pub fn name(self) -> &'static str {
                match self {
                    $(Replacement::$variant => $name,)*
                }
            }

            /// What the policy asks of the number of ways.
            pub(crate) fn ways(self) -> &'static str {
                match self {
                    $(Replacement::$variant => <$policy as Policy>::WAYS,)*
                }
            }

            /// Whether the policy works with this number of ways.
            pub(crate) fn allows(self, ways: u64) -> bool {
                match self {
                    $(Replacement::$variant => <$policy as Policy>::allows(ways),)*
                }
            }
        }

        /// The sets of one cache under their policy.
        #[derive(Clone, Debug)]
        pub(crate) enum State {
            $($variant($policy),)*
        }

        impl State {
            pub(crate) fn new(replacement: Replacement, sets: usize, ways: usize) -> State {
                match replacement {
                    $(Replacement::$variant => {
                        State::$variant(<$policy as Policy>::new(sets, ways))
                    })*
                }
            }

            #[inline]
            pub(crate) fn access(
                &mut self,
                lines: &mut [LineId],
                set: usize,
                ways: usize,
                line: LineId,
            ) -> CacheAccess {
                match self {
                    $(State::$variant(policy) => {
                        Policy::access(policy, lines, set, ways, line)
                    })*
                }
            }
        }
    };
}

policies! {
    /// True least-recently-used.
    Lru, "lru", Lru;
    /// Tree pseudo-LRU: one bit per inner node of a binary tree over the ways.
    TreePlru, "tree-plru", PlruTrees;
}
