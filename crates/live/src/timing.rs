//! How long functions of the running kernel take.
//!
//! Input: functions by number, and a time. Output: for each, the sums over its invocations. The
//! device's probes measure. This module asks for each entry once, whatever was named twice.

use crate::device::{Device, FunctionTime, Times};
use crate::eligible;
use crate::running::RunningKernel;
use anyhow::{Result, bail};
use image::linked::LinkedKernel;
use std::time::Duration;

/// A function and what its invocations took.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FunctionTimeRow {
    /// The function's name, with its module behind it.
    pub function: String,
    /// The sums over its invocations.
    #[serde(flatten)]
    pub time: FunctionTime,
}

/// What was measured.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TimeReport {
    /// One row per function.
    pub functions: Vec<FunctionTimeRow>,
    /// Invocations of all the functions that the kernel's probe did not show.
    pub missed: u64,
}

impl TimeReport {
    /// `functions`: indices into the kernel's functions; `times`: what [`measure`] gave for them.
    pub fn new(kernel: &LinkedKernel<'_>, functions: &[usize], times: Times) -> TimeReport {
        let name = |index: usize| kernel.title(&kernel.functions[index]);
        let rows = functions.iter().zip(times.functions);
        TimeReport {
            functions: rows
                .map(|(&index, time)| FunctionTimeRow { function: name(index), time })
                .collect(),
            missed: times.missed,
        }
    }
}

/// Measures for `time` what each of the functions takes. `functions`: indices into the kernel's
/// functions. The result has their order.
///
/// # Errors
/// A function has no site of the function tracer; or the errors of [`Device::time`].
pub fn measure(
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    device: &Device,
    functions: &[usize],
    time: Duration,
) -> Result<Times> {
    refuse_unmeasured(kernel, functions)?;
    let address = |&index: &usize| running.address(kernel.link_address(kernel.functions[index].at));
    let addresses: Vec<u64> = functions.iter().map(address).collect();
    let entries = entries(&addresses);
    let times = device.time(&entries, time)?;
    Ok(Times { functions: spread(&addresses, &entries, &times.functions), missed: times.missed })
}

fn refuse_unmeasured(kernel: &LinkedKernel<'_>, functions: &[usize]) -> Result<()> {
    for &index in functions {
        let function = &kernel.functions[index];
        if eligible::tracer_site(kernel, function).is_none() {
            bail!(
                "{} cannot be measured: the function tracer has no site at its entry",
                kernel.title(function)
            );
        }
    }
    Ok(())
}

/// The addresses, ascending, each once.
fn entries(addresses: &[u64]) -> Vec<u64> {
    let mut entries = addresses.to_vec();
    entries.sort_unstable();
    entries.dedup();
    entries
}

/// The time of each address. `entries` ascend and hold every address; `times` has one element per
/// entry.
fn spread(addresses: &[u64], entries: &[u64], times: &[FunctionTime]) -> Vec<FunctionTime> {
    let time = |at: &u64| entries.binary_search(at).map(|n| times[n]).unwrap_or_default();
    addresses.iter().map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kernel::{F, G, STRAY, tables, with};

    fn entered(entered: u64) -> FunctionTime {
        FunctionTime { entered, ..FunctionTime::default() }
    }

    #[test]
    fn each_entry_is_measured_once_and_every_function_gets_its_time() {
        let addresses = [0x80, 0x40, 0x80];
        let entries = entries(&addresses);
        assert_eq!(entries, [0x40, 0x80]);
        let times = spread(&addresses, &entries, &[entered(4), entered(8)]);
        assert_eq!(times, [entered(8), entered(4), entered(8)]);
    }

    #[test]
    fn a_function_without_a_site_of_the_tracer_is_not_measured() {
        with(tables(), |kernel| {
            refuse_unmeasured(kernel, &[F, G]).unwrap();
            let error = refuse_unmeasured(kernel, &[F, STRAY]).unwrap_err().to_string();
            let expected = "stray cannot be measured: the function tracer has no site at its entry";
            assert_eq!(error, expected);
        });
    }

    #[test]
    fn rows_are_named_in_the_order_of_the_functions() {
        with(tables(), |kernel| {
            let times = Times { functions: vec![entered(8), entered(4)], missed: 3 };
            let report = TimeReport::new(kernel, &[G, F], times);
            let rows: Vec<(&str, u64)> = report
                .functions
                .iter()
                .map(|row| (row.function.as_str(), row.time.entered))
                .collect();
            assert_eq!((rows, report.missed), (vec![("g", 8), ("f", 4)], 3));
        });
    }
}
