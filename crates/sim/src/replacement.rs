//! The registry of replacement policies and their names.
//!
//! Input: a policy and the shape of a cache. Output: the state from which each set chooses its
//! victim.
//!
//! To add a policy: a file with a type that is a `Policy`, and its line in the table `policies!` in
//! `lib.rs`. The tests in `tests/naive.rs` compare it with a naive model.

/// Makes the modules of the policies, `Replacement` and `PolicyState` of one table: module, type,
/// variant.
macro_rules! policies {
    ($($module:ident::$policy:ident as $variant:ident;)*) => {
        $(mod $module;)*

        /// How the victim of a set is chosen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Replacement {
            $(
                #[doc = concat!("The policy of `", stringify!($module), ".rs`.")]
                $variant,
            )*
        }

        impl Replacement {
            /// Every policy.
            pub const ALL: &[Replacement] = &[$(Replacement::$variant),*];

            /// What it is called in machine files.
            pub fn name(self) -> &'static str {
                match self {
                    $(Replacement::$variant => <$module::$policy as policy::Policy>::NAME,)*
                }
            }

            /// What the policy asks of the number of ways.
            pub(crate) fn ways(self) -> &'static str {
                match self {
                    $(Replacement::$variant => <$module::$policy as policy::Policy>::WAYS,)*
                }
            }

            /// Whether the policy works with this number of ways.
            pub(crate) fn allows(self, ways: u64) -> bool {
                match self {
                    $(Replacement::$variant => <$module::$policy as policy::Policy>::allows(ways),)*
                }
            }
        }

        /// The sets of one cache under their policy.
        #[derive(Clone, Debug)]
        pub(crate) enum PolicyState {
            $($variant($module::$policy),)*
        }

        impl PolicyState {
            pub(crate) fn new(
                replacement: Replacement,
                sets: usize,
                ways: usize,
            ) -> PolicyState {
                match replacement {
                    $(Replacement::$variant => {
                        PolicyState::$variant(<$module::$policy as policy::Policy>::new(sets, ways))
                    })*
                }
            }

            #[inline]
            pub(crate) fn access(
                &mut self,
                lines: &mut [line::LineId],
                set: usize,
                ways: usize,
                line: line::LineId,
            ) -> access::CacheAccess {
                match self {
                    $(PolicyState::$variant(state) => {
                        policy::Policy::access(state, lines, set, ways, line)
                    })*
                }
            }
        }
    };
}
