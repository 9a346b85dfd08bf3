//! What turns instructions into the uops that a core executes.
//!
//! The simulator knows no instruction set. So the description of a core contains the maker of its
//! uops, and the reader of recorded code asks the maker of each core.
//!
//! This module has only data and an interface.

use super::uop::Uop;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A table of uops of a processor, with the reader of its instruction set.
pub trait UopMaker: fmt::Debug + Send + Sync {
    /// Turns the instructions at `addr`, each given by its bytes, into uops, and appends these.
    /// Bytes that are not an instruction become one uop without effect.
    fn translate(
        &self,
        addr: u64,
        code: &[&[u8]],
        latencies: UopLatencies,
        into: &mut Vec<Uop>,
    ) -> Vec<TranslatedInstruction>;

    /// The name of a mnemonic in lower case.
    fn mnemonic(&self, mnemonic: MnemonicId) -> String;
}

/// The maker of a core's uops, which several cores can share. Two are equal when they share one
/// maker.
#[derive(Clone)]
pub struct SharedUopMaker(Arc<dyn UopMaker>);

impl<M: UopMaker + 'static> From<Arc<M>> for SharedUopMaker {
    fn from(maker: Arc<M>) -> SharedUopMaker {
        SharedUopMaker(maker)
    }
}

impl Deref for SharedUopMaker {
    type Target = dyn UopMaker + 'static;

    fn deref(&self) -> &(dyn UopMaker + 'static) {
        &*self.0
    }
}

impl PartialEq for SharedUopMaker {
    fn eq(&self, other: &SharedUopMaker) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for SharedUopMaker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A mnemonic, by its number in the instruction set of its [`UopMaker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MnemonicId(pub u16);

/// What an instruction became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TranslatedInstruction {
    /// The index of its first uop among those of the call's `into`.
    pub first_uop: u32,
    /// The number of uops; 0 for a jump that is one uop with the comparison before.
    pub uops: u8,
    /// The number of slots.
    pub slots: u8,
    /// The instruction's mnemonic if the table has no entry for it, so that the default holds.
    pub unknown: Option<MnemonicId>,
}

/// Latencies that a table of uops does not have, in cycles
/// ([`super::CoreDescription::uop_latencies`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UopLatencies {
    /// From the operands of an atomic read-modify-write to its result.
    pub atomic: u16,
    /// The additional cycles of a load when the instruction uses vector registers.
    pub vector_load: u16,
    /// The additional cycles of a load when its index is scaled.
    pub scaled_load: u16,
    /// Of an address of three parts that is only computed (`lea 1(%rax, %rcx), %rax`).
    pub three_part_address: u16,
}
