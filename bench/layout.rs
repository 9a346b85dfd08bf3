//! How long each layout algorithm takes on a graph of a kernel's size, in time of one processor, beside the bound: copying that graph.
//!
//! `cargo bench -p kernlane-layout`. The graphs are generated: one of a small kernel's size, and one of a distribution's.

#[path = "../crates/layout/tests/generator/mod.rs"]
mod generator;
mod processor_time;

use generator::{DISTRIBUTION, KERNEL, KernelShape, kernel};
use kernlane_layout::{Algorithm, order, score};
use processor_time::processor_time;
use std::hint::black_box;
use std::time::Duration;

fn main() {
    bench(KERNEL);
    println!();
    bench(DISTRIBUTION);
    println!("\nlargest memory in use: {} MB", peak_megabytes());
}

fn bench(shape: KernelShape) {
    let graph = kernel(shape, 1);
    let ran = graph.counts.iter().filter(|&&c| c > 0).count();
    println!(
        "{} functions, {} blocks, {ran} ran, {} edges, {} calls",
        graph.functions.len(),
        graph.len(),
        graph.edges.len(),
        graph.calls.len()
    );
    let (copy, _) = fastest(|| graph.clone());
    println!("copying the graph: {:.2} ms", milliseconds(copy));
    println!(
        "{:22} {:>8} {:>10} {:>9} {:>8} {:>7}",
        "algorithm", "ms", "× copying", "ext-TSP %", "taken %", "lines %"
    );
    let base = score(&graph, &order(&graph, Algorithm::Original, 0).expect("a well-formed graph").order);
    for algorithm in Algorithm::ALL {
        let (time, ordered) = fastest(|| order(&graph, algorithm, 0).expect("a well-formed graph"));
        let scored = score(&graph, &ordered.order);
        println!(
            "{:22} {:8.1} {:10.0} {:9.1} {:8.1} {:7.1}",
            algorithm,
            milliseconds(time),
            time.as_secs_f64() / copy.as_secs_f64(),
            100.0 * scored.ext_tsp / base.ext_tsp,
            100.0 * scored.taken() as f64 / base.taken() as f64,
            100.0 * scored.lines as f64 / base.lines as f64,
        );
    }
}

/// The shortest of three runs, for the others were disturbed, and what the work gave. What is quick is repeated, for the clock only moves with the
/// scheduler's ticks; what takes seconds runs once.
fn fastest<T>(mut work: impl FnMut() -> T) -> (Duration, T) {
    let mut given = None;
    let mut repeated = |times: u32| {
        let start = processor_time().expect("the kernel's count of this thread's time");
        (0..times).for_each(|_| given = Some(black_box(work())));
        processor_time().expect("the same again") - start
    };
    let mut times = 1;
    let mut first = repeated(times);
    while first < Duration::from_millis(200) {
        times *= 2;
        first = repeated(times);
    }
    let more = if first < Duration::from_secs(4) { 2 } else { 0 };
    let shortest = (0..more).map(|_| repeated(times)).fold(first, Duration::min) / times;
    (shortest, given.expect("it ran at least once"))
}

/// The most memory that this process ever had.
fn peak_megabytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .and_then(|number| number.trim().parse::<u64>().ok());
    kilobytes.expect("status has VmHWM in kB") / 1024
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
