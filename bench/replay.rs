//! How fast a recording runs again, in time of one processor, beside the bound: merely decoding the
//! same recording.
//!
//! `cargo bench -p kernlane --bench replay [-- RECORDING [VMLINUX LAYOUT…]]`. Without a recording
//! (a directory), a generated one of 100 M instructions. With layouts (`.kll`) and the kernel that
//! they are of: all of them on three machines in one pass, beside as many passes as there are pairs
//! of the two.

mod processor_time;

use anyhow::{Context, Result};
use host::recording::Recording;
use image::{estimate, order};
use processor_time::processor_time;
use replay::ReplayLayout;
use sim::MachineModel;
use std::hint::black_box;
use std::time::{Duration, Instant};
use trace::{
    Chunk, RecordingHeader, RecordingReader, RecordingWriter, RunAddr, StreamEvent, Translation,
    TranslationId, events,
};

/// What the project sets itself for an out-of-order core.
const CORE_SPEED: u32 = 15;

fn main() -> Result<()> {
    // One thread: the numbers are for one core.
    rayon::ThreadPoolBuilder::new().num_threads(1).build()?.install(bench)
}

fn bench() -> Result<()> {
    // Cargo itself passes --bench.
    let given: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let recording = match given.first() {
        Some(path) => {
            let path = Recording::at(path).trace();
            std::fs::read(&path).with_context(|| path.display().to_string())?
        }
        None => generated()?,
    };
    let instructions = decode(&recording)?;
    println!(
        "{}: {:.1} M instructions, {:.3} bit each",
        given.first().map_or("generated", String::as_str),
        instructions as f64 / 1e6,
        8.0 * recording.len() as f64 / instructions as f64
    );

    let bound = fastest(|| decode(&recording))?;
    let server = machines::find("server-32k")?.model;
    let l1i_only = MachineModel { itlb: None, ..server.clone() };
    let all = machines::models(&["server-32k", "ultrasparc-16k", "torrellas-8k"])?;
    println!("{:44} {:>16} {:>14}", "", "M instructions/s", "× bound's time");
    let print = |name: &str, time: Duration| {
        let speed = instructions as f64 / 1e6 / time.as_secs_f64();
        println!("{name:44} {speed:16.0} {:14.2}", time.as_secs_f64() / bound.as_secs_f64());
    };
    print("decoding (the bound)", bound);
    for (name, layouts, machines) in [
        ("one layout, one L1I", 1, std::slice::from_ref(&l1i_only)),
        ("one layout, one L1I and iTLB", 1, std::slice::from_ref(&server)),
        ("four layouts, one L1I and iTLB", 4, std::slice::from_ref(&server)),
        ("one layout, three machines", 1, all.as_slice()),
    ] {
        let layouts = vec![ReplayLayout::original(); layouts];
        print(
            name,
            fastest(|| replay::replay(RecordingReader::new(&recording[..])?, &layouts, machines))?,
        );
    }
    for name in ["golden-cove", "zen4", "gracemont"] {
        let machine = [machines::find(name)?.model];
        let layouts = [ReplayLayout::original()];
        let reader = || RecordingReader::new(&recording[..]);
        let name = format!("one layout, out-of-order core of {name}");
        print(&name, fastest(|| replay::replay(reader()?, &layouts, &machine))?);
    }
    println!("The goal for a core, with caches and data accesses: {CORE_SPEED} M instructions/s.");
    if let [_, vmlinux, layouts @ ..] = &given[..] {
        many(&recording, &read_layouts(vmlinux, layouts)?, &all)?;
    }
    Ok(())
}

fn read_layouts(vmlinux: &str, paths: &[String]) -> Result<Vec<ReplayLayout>> {
    let image = image::vmlinux::read(vmlinux.as_ref())?;
    let layout = |path: &String| {
        let order = order::Layout::from_text(&std::fs::read_to_string(path)?)?;
        let placement = estimate::placement(&image, &order)?;
        anyhow::Ok(ReplayLayout::predicted(path, image.build_id.clone(), placement))
    };
    paths.iter().map(|path| layout(path).with_context(|| path.clone())).collect()
}

/// All layouts on all machines: in one pass, in a pass for each pair, and in one pass by two
/// threads.
fn many(recording: &[u8], layouts: &[ReplayLayout], machines: &[MachineModel]) -> Result<()> {
    let all = || replay::replay(RecordingReader::new(recording)?, layouts, machines);
    let one_pass = fastest(all)?;
    let mut passes = Duration::ZERO;
    for layout in layouts {
        for machine in machines {
            let (layout, machine) = (std::slice::from_ref(layout), std::slice::from_ref(machine));
            passes +=
                fastest(|| replay::replay(RecordingReader::new(recording)?, layout, machine))?;
        }
    }
    println!(
        "{} layouts, {} machines: one pass takes {:.3} of the time of {} passes",
        layouts.len(),
        machines.len(),
        one_pass.as_secs_f64() / passes.as_secs_f64(),
        layouts.len() * machines.len()
    );
    let wall_clock = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        let start = Instant::now();
        let replayed = pool.install(all)?;
        anyhow::Ok((start.elapsed(), replayed))
    };
    let ((one, alone), (two, together)) = (wall_clock(1)?, wall_clock(2)?);
    anyhow::ensure!(alone.layouts == together.layouts, "two threads count something else than one");
    println!("two threads take {:.2} of the time of one", two.as_secs_f64() / one.as_secs_f64());
    Ok(())
}

/// Reads everything and does nothing with it. Gives the number of instructions.
fn decode(recording: &[u8]) -> Result<u64> {
    let mut reader = RecordingReader::new(recording)?;
    let mut executed = 0_u64;
    while let Some(chunk) = reader.next_chunk()? {
        match chunk {
            Chunk::Stream(words) => {
                executed += events(&words)
                    .filter(|event| matches!(event, StreamEvent::Executed(_)))
                    .count() as u64
            }
            Chunk::End(totals) => return Ok(totals.instructions()),
            Chunk::Translations(_) | Chunk::Tasks(_) | Chunk::Modules(_) => {}
        }
    }
    black_box(executed);
    anyhow::bail!("the recording has no end")
}

/// Paths of translations through 1 MB of kernel code; some run often, most seldom.
fn generated() -> Result<Vec<u8>> {
    const PATHS: u64 = 200;
    const LENGTH: u32 = 200;
    let mut state = 1_u64;
    let mut random = |bound: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % bound
    };
    let mut writer = RecordingWriter::new(
        Vec::new(),
        &RecordingHeader { workload: "generated".to_owned(), ..RecordingHeader::default() },
    )?;
    let mut addr = 0xffff_ffff_8100_0000_u64;
    let (mut translations, mut sizes) = (Vec::new(), Vec::new());
    for id in 0..PATHS as u32 * LENGTH {
        // One-byte and five-byte instructions, then a return.
        let lengths: Vec<u8> =
            (0..1 + random(9)).map(|_| if random(2) == 0 { 1 } else { 5 }).chain([1]).collect();
        let nop =
            |length: &u8| if *length == 1 { vec![0x90] } else { vec![0x0f, 0x1f, 0x44, 0, 0] };
        let mut code: Vec<u8> = lengths.iter().flat_map(nop).collect();
        code.pop();
        code.push(0xc3);
        sizes.push(lengths.len() as u64);
        let bytes = code.len() as u64;
        translations.push(Translation {
            id: TranslationId(id),
            addr: RunAddr(addr),
            lengths: lengths.into(),
            code: code.into(),
        });
        addr += bytes + random(8);
    }
    writer.translations(&translations)?;
    let mut instructions = 0;
    while instructions < 100_000_000 {
        let mut words = Vec::new();
        while words.len() < 100_000 {
            let path = random(PATHS) * random(PATHS) / PATHS;
            let first = path as u32 * LENGTH;
            words.extend(first..first + LENGTH);
            instructions += sizes[first as usize..(first + LENGTH) as usize].iter().sum::<u64>();
        }
        writer.stream(&words)?;
    }
    Ok(writer.end()?.0)
}

/// The shortest of three runs: the others were disturbed.
fn fastest<T>(mut work: impl FnMut() -> Result<T>) -> Result<Duration> {
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        let start = processor_time()?;
        black_box(work()?);
        shortest = shortest.min(processor_time()? - start);
    }
    Ok(shortest)
}
