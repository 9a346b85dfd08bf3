//! Which calls to inline: those whose calls and returns cost most for the bytes that their code
//! takes. Which indirect calls to promote: those with a frequent target.
//!
//! Input: an [`InliningProblem`], functions and calls with their counts and sizes; what a call
//! costs ([`CallCosts`]); and limits. Output: the chosen calls and what the model predicts of them.
//! `docs/algorithms/inlining.md` explains both. The module knows no code: its caller says what can
//! be inlined.
//!
//! * [`choose`] is the algorithm.
//! * [`evaluate`] is the model: it says of any choice what it saves and what it adds.

mod greedy;
mod model;

pub use greedy::choose;
pub use model::{Evaluation, evaluate};

/// Functions and their calls, with counts and sizes.
#[derive(Clone, Debug, Default)]
pub struct InliningProblem {
    /// The functions.
    pub functions: Vec<InliningFunction>,
    /// The calls, in any order. A call is named by its index.
    pub sites: Vec<CallSite>,
    /// Bytes of all hot code.
    pub hot_bytes: u64,
}

/// A function.
#[derive(Clone, Debug, Default)]
pub struct InliningFunction {
    /// How often it was called.
    pub entered: u64,
    /// Its code as it would stand in the place of a call; `None` if it cannot.
    pub body: Option<InlinableCode>,
}

/// The code of a function that can be inlined.
#[derive(Clone, Debug)]
pub struct InlinableCode {
    /// Bytes of its hot code. Cold code is copied as well, but lies elsewhere.
    pub hot_bytes: u64,
    /// The functions whose code it has, by number: the function itself, and parts of it that the
    /// compiler put elsewhere.
    pub functions: Vec<u32>,
    /// The share of its executions that leave it by a jump to a function. In the place of a call
    /// this jump is a call: a call is gone, and another one is there.
    pub tail_calls: f64,
    /// It can only stand where the caller's frame is found by the stack pointer.
    pub needs_stack_pointer: bool,
}

/// A call, wherever its code stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSite {
    /// The function that holds it.
    pub caller: u32,
    /// The called function; for an indirect call, the one that is called most often. `None` if it
    /// is not a function of the problem.
    pub callee: Option<u32>,
    /// How often the call went there.
    pub count: u64,
    /// How often an indirect call ran, wherever it went; `None` for a direct call.
    pub ran: Option<u64>,
    /// How the caller's frame is found at the call.
    pub frame: SiteFrame,
    /// Whether the callee's code may stand here, as far as the call goes.
    pub can_inline: bool,
}

/// How a frame is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteFrame {
    /// By the stack pointer.
    StackPointer,
    /// By the frame pointer.
    FramePointer,
    /// In another way: nothing can be inlined there.
    Unknown,
}

/// How a kernel calls and returns on a machine, by what it has patched at boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallForms {
    /// By safe returns, each of which is mispredicted on purpose (`docs/explanation/thunks.md`).
    pub safe_returns: bool,
    /// Indirect calls go through retpolines, each of which is mispredicted as well.
    pub retpolines: bool,
}

/// What calls cost on a machine, in cycles. Only their proportions count for the choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallCosts {
    /// A direct call with its return, and what the callee executes because it is called.
    pub direct: f64,
    /// The same for an indirect call.
    pub indirect: f64,
    /// A jump to a function, and what that executes because it is entered. Saved when a callee that
    /// leaves by such a jump is inlined: the call of the other function remains.
    pub jump: f64,
    /// A comparison of a pointer and the branch behind it.
    pub guard: f64,
}

impl CallCosts {
    /// Each call counts as one, whichever it is: the choice for a machine that is not known.
    pub const ONE_EACH: CallCosts = CallCosts { direct: 1.0, indirect: 1.0, jump: 0.1, guard: 0.0 };
    /// Likewise on a kernel with retpolines: a misprediction more for each indirect call.
    pub const ONE_EACH_BY_RETPOLINES: CallCosts = CallCosts { indirect: 2.0, ..Self::ONE_EACH };
}

/// How much may be inlined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InliningLimits {
    /// The hot code may grow by this part of its bytes.
    pub growth: f64,
    /// The most hot bytes of a function that is inlined at one of several calls.
    pub largest: u64,
    /// The most hot bytes of a function that is nearly always called from one place.
    pub largest_alone: u64,
    /// Bytes of the comparison and the branch in front of a promoted call.
    pub guard_bytes: u64,
    /// Bytes of a direct call in the place of an indirect one.
    pub call_bytes: u64,
}

/// A call that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChosenCall {
    /// Where it stands: 0 in its function's own copy, n in the code of the chosen call n - 1, which
    /// is inlined.
    pub context: u32,
    /// The call.
    pub site: u32,
    /// Whether the callee's code stands in its place. If not, the call is indirect, and a direct
    /// one stands there.
    pub inlined: bool,
}

/// What the choice brings by the profile.
#[derive(Clone, Debug, Default)]
pub struct Inlining {
    /// The chosen calls. A call follows the one in whose code it stands.
    pub calls: Vec<ChosenCall>,
    /// What the model says of them.
    pub evaluation: Evaluation,
}

/// A function is called from one place when this part of its calls comes from there: the rest is
/// cold.
const ALONE: f64 = 0.95;
