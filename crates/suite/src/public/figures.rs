//! The one figure that a program prints, as nanoseconds an operation.
//!
//! Each reader takes what a program printed; `None`: it has no figure above zero.

use serde_json::Value;

fn above_zero(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then_some(value)
}

/// Nanoseconds an operation, of operations a second.
fn of_rate(rate: f64) -> Option<f64> {
    above_zero(1e9 / above_zero(rate)?)
}

/// The number behind a text, spaces between.
fn behind(text: &str, before: &str) -> Option<f64> {
    let rest = text.split_once(before)?.1.trim_start();
    let number = |c: char| c.is_ascii_digit() || c == '.';
    rest.split(|c| !number(c)).next()?.parse().ok()
}

/// Seconds of `OPERATIONS` operations, alone on a line (`perf bench -f simple`).
pub(crate) fn seconds<const OPERATIONS: u64>(text: &str) -> Option<f64> {
    above_zero(text.trim().parse::<f64>().ok()? * 1e9 / OPERATIONS as f64)
}

/// `Time: 0.122`, of `OPERATIONS` operations (hackbench).
pub(crate) fn time<const OPERATIONS: u64>(text: &str) -> Option<f64> {
    above_zero(behind(text, "Time:")? * 1e9 / OPERATIONS as f64)
}

/// The last table of stress-ng: a stressor's bogo operations and its real time.
pub(crate) fn stress(text: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let words: Vec<&str> = line.split("] ").nth(1)?.split_whitespace().collect();
        let [_, operations, real, user, system, ..] = words[..] else { return None };
        let [operations, real, _, _] = [operations, real, user, system].map(str::parse::<f64>);
        above_zero(real.ok()? * 1e9 / above_zero(operations.ok()?)?)
    })
}

/// `Summary: Latency is 13.312 usec` (sockperf): half of a round trip.
pub(crate) fn latency(text: &str) -> Option<f64> {
    above_zero(behind(text, "Summary: Latency is")? * 1e3)
}

/// iperf3's JSON: nanoseconds for 1,000,000 bytes that were received.
pub(crate) fn megabyte(text: &str) -> Option<f64> {
    let value: Value = serde_json::from_str(text).ok()?;
    of_rate(value["end"]["sum_received"]["bits_per_second"].as_f64()? / 8e6)
}

/// A rate alone on a line (netperf -P 0 -v 0).
pub(crate) fn rate(text: &str) -> Option<f64> {
    of_rate(text.trim().parse().ok()?)
}

/// fio's JSON: reads and writes a second.
pub(crate) fn requests(text: &str) -> Option<f64> {
    // Warnings may stand before the JSON.
    let value: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let job = &value["jobs"][0];
    let iops = |what: &str| job[what]["iops"].as_f64();
    of_rate(iops("read")? + iops("write")?)
}

/// sysbench: its time by its events.
pub(crate) fn events(text: &str) -> Option<f64> {
    let seconds = behind(text, "total time:")?;
    above_zero(seconds * 1e9 / above_zero(behind(text, "total number of events:")?)?)
}

/// `Requests/sec:  12345.67` (wrk); none if requests failed.
pub(crate) fn page(text: &str) -> Option<f64> {
    let failed = text.contains("Socket errors:") || text.contains("Non-2xx");
    if failed { None } else { of_rate(behind(text, "Requests/sec:")?) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: Option<f64>, expected: f64) {
        let got = got.expect("there is a figure");
        assert!((got / expected - 1.0).abs() < 1e-9, "{got} is not {expected}");
    }

    #[test]
    fn what_each_program_prints_is_read() {
        near(seconds::<2000>("0.022\n"), 11_000.0);
        near(time::<8000>("Running in process mode\nTime: 0.122\n"), 15_250.0);
        let stress_ng = "\
stress-ng: info:  [29895] dispatching hogs: 1 switch
stress-ng: metrc: [29895] stressor       bogo ops real time  usr time  sys time   bogo ops/s
stress-ng: metrc: [29895]                           (secs)    (secs)    (secs)   (real time)
stress-ng: metrc: [29895] switch             2000      0.09      0.00      0.06     22686.63
";
        near(stress(stress_ng), 45_000.0);
        near(latency("sockperf: Summary: Latency is 13.312 usec\n"), 13_312.0);
        near(megabyte(r#"{"end": {"sum_received": {"bits_per_second": 8e9}}}"#), 1e6);
        near(rate("  50000.00 \n"), 20_000.0);
        let fio = r#"note: x
{"jobs": [{"read": {"iops": 16000.0}, "write": {"iops": 4000.0}}]}"#;
        near(requests(fio), 50_000.0);
        let sysbench = "    total time:                          2.0s\n    \
                        total number of events:              100\n";
        near(events(sysbench), 2e7);
        near(page("Requests/sec:  20000.00\nTransfer/sec: 1MB\n"), 50_000.0);
    }

    #[test]
    fn what_is_no_figure_gives_none() {
        let readers: [fn(&str) -> Option<f64>; 9] =
            [seconds::<1>, time::<1>, stress, latency, megabyte, rate, requests, events, page];
        let texts = [
            "",
            "0",
            "Time: none",
            "a] b 0 0 0 0",
            "{}",
            "{\"end\": 3}",
            "Requests/sec: 0",
            "Requests/sec: 9\nSocket errors: connect 1",
            "total time: 2s\ntotal number of events: 0",
            "Summary: Latency is",
        ];
        for reader in readers {
            for text in texts {
                assert_eq!(reader(text), None, "{text}");
            }
        }
    }
}
