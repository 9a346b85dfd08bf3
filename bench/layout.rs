//! How long each layout algorithm takes on a graph of a kernel's size, in time of one processor,
//! beside the bound: copying that graph.
//!
//! `cargo bench -p kernlane-layout`. The graphs are generated: one of a small kernel's size, and
//! one of a distribution's. `cargo bench -p kernlane-layout -- vast [ALGORITHM…]`: once each on
//! graphs of 10 million edges, with the memory that it took; each order is checked.

#[path = "../crates/layout/tests/generator/mod.rs"]
mod generator;
mod processor_time;

use generator::{DISTRIBUTION, KERNEL, KernelShape, VastShape, kernel, vast};
use kernlane_layout::{Algorithm, check, order, score};
use processor_time::processor_time;
use std::hint::black_box;
use std::time::Duration;

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let Some(("vast", names)) =
        arguments.split_first().map(|(first, names)| (first.as_str(), names))
    {
        let named: Vec<Algorithm> = names
            .iter()
            .map(|name| name.parse().unwrap_or_else(|error| panic!("{error}")))
            .collect();
        let algorithms = if named.is_empty() { &Algorithm::ALL[..] } else { &named };
        // As functions of a kernel are, and all of it one function.
        bench_vast(VastShape { blocks: 5_100_000, function: 50 }, algorithms);
        bench_vast(VastShape { blocks: 5_100_000, function: u32::MAX }, algorithms);
        return;
    }
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
    let base =
        score(&graph, &order(&graph, Algorithm::Original, 0).expect("a well-formed graph").order);
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

/// Every algorithm gives an order or refuses the graph by name.
fn bench_vast(shape: VastShape, algorithms: &[Algorithm]) {
    let graph = vast(shape, 1);
    println!(
        "\n{} functions, {} blocks, all of which ran, {} edges, {} calls",
        graph.functions.len(),
        graph.len(),
        graph.edges.len(),
        graph.calls.len()
    );
    begin_peak();
    println!("the graph: {} MB\n{:22} {:>8} {:>9}", peak_megabytes(), "algorithm", "s", "peak MB");
    for &algorithm in algorithms {
        begin_peak();
        let start = processor_time().expect("the kernel's count of this thread's time");
        let ordered = order(&graph, algorithm, 0);
        let time = processor_time().expect("the same again") - start;
        let peak = peak_megabytes();
        let outcome = match ordered {
            Ok(ordered) => check(&graph, &ordered.order)
                .map_or_else(|error| panic!("{algorithm}: {error}"), |()| String::new()),
            Err(error) => format!("  refused: {error}"),
        };
        println!("{algorithm:22} {:8.1} {peak:9}{outcome}", time.as_secs_f64());
    }
}

/// The peak is counted anew (proc(5), clear_refs).
fn begin_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("/proc/self/clear_refs takes 5");
}

/// The shortest of three runs, for the others were disturbed, and what the work gave. What is quick
/// is repeated, for the clock only moves with the scheduler's ticks; what takes seconds runs once.
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

/// The most memory that this process had since it began or since `begin_peak`.
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
