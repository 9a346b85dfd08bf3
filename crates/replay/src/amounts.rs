//! The amounts of one run of a fragment.

use sim::Mode;
use sim::TakenBranches;
use trace::TranslationId;

/// The amounts of one run of a fragment, which are the same on every machine.
#[derive(Clone, Copy)]
pub(crate) struct FragmentAmounts {
    pub translation: TranslationId,
    /// Whether no instruction of the translation block runs, so that the fragment is not an
    /// execution.
    pub late: bool,
    pub mode: Mode,
    pub instructions: u64,
    pub bytes: u64,
    pub taken: TakenBranches,
    pub breaks: u64,
}
