//! The option `--order`: how several CPUs run on a machine with several cores.

use clap::ValueEnum;
use execution::cpu_order::CpuOrder;

/// The value of `--order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    /// Each CPU follows its own clock, and only what shares data keeps the order of the recording
    SideBySide,
    /// As QEMU ran the CPUs, in long turns
    Recorded,
}

impl From<OrderArg> for CpuOrder {
    fn from(order: OrderArg) -> CpuOrder {
        match order {
            OrderArg::SideBySide => CpuOrder::SideBySide,
            OrderArg::Recorded => CpuOrder::Recorded,
        }
    }
}
