//! The kinds of serialising instructions: they wait for all earlier instructions, and no later one
//! overtakes them.
//!
//! This module has only names. The machine's file says how many cycles each kind takes.

/// The kinds of instructions that no other instruction overtakes. A machine says what each kind
/// costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Serialising {
    /// A system call.
    SystemCall,
    /// The return from a system call.
    SystemReturn,
    /// The return from an interrupt.
    InterruptReturn,
    /// The entry of an interrupt or exception, which is not an instruction.
    Interrupt,
    /// The exchange of the base address of the kernel's per-CPU data.
    SwapBase,
    /// Interrupts off.
    InterruptsOff,
    /// Interrupts on.
    InterruptsOn,
    /// A page leaves the TLB.
    InvalidatePage,
    /// A model-specific register is written.
    WriteModelRegister,
    /// A model-specific register is read.
    ReadModelRegister,
    /// The address space changes.
    WriteAddressSpace,
    /// The processor describes itself.
    Identify,
    /// A fence for all earlier instructions.
    Fence,
    /// The hint of a waiting loop.
    Pause,
    /// An access to a device's port.
    PortAccess,
    /// Any other instruction of this kind.
    Other,
}

impl Serialising {
    /// Each class, in the order of the numbers of [`Serialising::index`].
    pub const ALL: [Serialising; 16] = [
        Serialising::SystemCall,
        Serialising::SystemReturn,
        Serialising::InterruptReturn,
        Serialising::Interrupt,
        Serialising::SwapBase,
        Serialising::InterruptsOff,
        Serialising::InterruptsOn,
        Serialising::InvalidatePage,
        Serialising::WriteModelRegister,
        Serialising::ReadModelRegister,
        Serialising::WriteAddressSpace,
        Serialising::Identify,
        Serialising::Fence,
        Serialising::Pause,
        Serialising::PortAccess,
        Serialising::Other,
    ];

    /// The place of the class in [`Serialising::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Whether control goes elsewhere, so that the front end cannot run ahead.
    pub(crate) fn transfers_control(self) -> bool {
        matches!(
            self,
            Serialising::SystemCall
                | Serialising::SystemReturn
                | Serialising::InterruptReturn
                | Serialising::Interrupt
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_the_numbers_of_their_places() {
        for (index, class) in Serialising::ALL.into_iter().enumerate() {
            assert_eq!(class.index(), index);
        }
    }
}
