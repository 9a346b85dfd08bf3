//! `kernlane profile`: recordings become counts per block, edge and call.

use crate::image::{Image, vmlinux};
use crate::output;
use crate::part::Part;
use crate::profile::collect::{self, Besides};
use crate::profile::{Merge, Profile, merge};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use trace::Reader;

/// The recordings and the kernel they are of; shared by the commands that begin with them.
#[derive(Args)]
pub struct Input {
    /// Recordings (directories), profiles (*.klp), or both
    #[arg(required = true, value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    /// The kernel that was recorded: its build tree, or its vmlinux
    #[arg(long, short, value_name = "TREE|VMLINUX")]
    pub kernel: PathBuf,

    /// How the counts of several recordings are put together
    #[arg(long, value_enum, default_value_t = Merge::Sum)]
    pub merge: Merge,

    #[command(flatten)]
    pub part: Part,
}

/// Count how often each block, edge and call of the kernel ran
///
/// The counts are exact: they come from a recording, not from samples. What is printed is how much of the kernel ran and where; the counts
/// themselves go to a file that `kernlane layout` takes.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane profile net.rec files.rec --kernel ~/linux --merge average -o both.klp")]
pub struct ProfileArgs {
    #[command(flatten)]
    pub input: Input,

    /// Where to write the profile
    #[arg(long, short, value_name = "FILE.klp")]
    pub output: Option<PathBuf>,

    /// Also count which chunks of code alternate, for the layout `gloy-smith`; takes longer
    #[arg(long)]
    pub alternations: bool,

    /// How many functions, processes and places without a function to list
    #[arg(long, default_value_t = 10)]
    pub top: usize,

    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

impl Input {
    pub fn image(&self) -> Result<Image> {
        vmlinux::read(&vmlinux_path(&self.kernel))
    }

    /// The merged profile of all recordings and profiles that were named.
    pub fn profile(&self, image: &Image, besides: Besides) -> Result<Profile> {
        let one = |path: &PathBuf| one_profile(path, image, &self.part, besides);
        merge(self.recordings.iter().map(one).collect::<Result<_>>()?, self.merge)
    }
}

/// A build tree stands for its vmlinux.
pub fn vmlinux_path(kernel: &Path) -> PathBuf {
    match kernel.is_dir() {
        true => kernel.join("vmlinux"),
        false => kernel.to_owned(),
    }
}

fn one_profile(path: &Path, image: &Image, part: &Part, besides: Besides) -> Result<Profile> {
    let named = || path.display().to_string();
    if path.is_dir() {
        return from_recording(&path.join("trace.klt"), image, part, besides);
    }
    if !part.is_whole() {
        bail!(
            "{}: a profile has no parts; give --from and --until with the recording",
            path.display()
        );
    }
    let text = std::fs::read_to_string(path).with_context(named)?;
    let profile = Profile::from_json(&text).with_context(named)?;
    if profile.build_id != image.build_id {
        bail!(
            "{}: of the kernel with build id {}, but --kernel has build id {}",
            path.display(),
            profile.build_id.0,
            image.build_id.0
        );
    }
    Ok(profile)
}

/// The recording in the file `trace.klt`, without its data accesses.
pub fn executed(trace: &Path) -> Result<Reader<BufReader<File>>> {
    Ok(Reader::new(BufReader::with_capacity(1 << 20, File::open(trace)?))?.without_data())
}

/// The profile of a part of the recording in the file `trace.klt`.
pub fn from_recording(trace: &Path, image: &Image, part: &Part, besides: Besides) -> Result<Profile> {
    let named = || trace.display().to_string();
    let mut cut = part.cut(|| executed(trace)).with_context(named)?;
    let mut profile = collect::collect(&mut executed(trace).with_context(named)?, image, &mut cut, besides).with_context(named)?;
    if !part.is_whole() {
        profile.sources.iter_mut().for_each(|source| source.part = Some(part.to_string()));
    }
    Ok(profile)
}

pub fn run(args: &ProfileArgs) -> Result<ExitCode> {
    let image = args.input.image()?;
    let besides = if args.alternations {
        Besides::Alternations
    } else {
        Besides::Nothing
    };
    let profile = args.input.profile(&image, besides)?;
    if let Some(path) = &args.output {
        output::write(path, profile.to_json().as_bytes())?;
    }
    let summary = Summary::new(&image, &profile, args.top);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        print!("{}", summary.to_text());
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(serde::Serialize)]
struct Summary {
    kernel: String,
    workloads: Vec<String>,
    kernel_instructions: u64,
    user_instructions: u64,
    /// Part of the kernel's instructions in a block of a named function.
    coverage: f64,
    functions: usize,
    functions_executed: usize,
    blocks: usize,
    blocks_executed: usize,
    bytes: u64,
    bytes_executed: u64,
    edges: usize,
    calls: usize,
    /// Name, instructions' bytes executed, by block counts.
    top_functions: Vec<Row>,
    top_processes: Vec<ProcessRow>,
    /// Address of the translation, instructions.
    outside: Vec<Row>,
}

#[derive(serde::Serialize)]
struct Row {
    name: String,
    count: u64,
}

#[derive(serde::Serialize)]
struct ProcessRow {
    name: String,
    kernel_instructions: u64,
    user_instructions: u64,
}

impl Summary {
    fn new(image: &Image, profile: &Profile, top: usize) -> Self {
        let count_of = |index: u32| profile.blocks.get(&image.blocks[index as usize].addr).copied().unwrap_or(0);
        let size_of = |index: u32| u64::from(image.blocks[index as usize].size);
        let mut functions: Vec<Row> = image
            .functions
            .iter()
            .map(|function| Row {
                name: function.name.clone(),
                count: function.blocks.clone().map(|index| count_of(index) * size_of(index)).sum(),
            })
            .filter(|row| row.count > 0)
            .collect();
        let functions_executed = functions.len();
        functions.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        functions.truncate(top);

        let mut processes: Vec<ProcessRow> = profile
            .processes
            .iter()
            .map(|(name, process)| ProcessRow {
                name: name.clone(),
                kernel_instructions: process.kernel_instructions,
                user_instructions: process.user_instructions,
            })
            .collect();
        processes.sort_by_key(|row| std::cmp::Reverse(row.kernel_instructions + row.user_instructions));
        processes.truncate(top);

        let mut outside: Vec<Row> = profile
            .outside
            .iter()
            .map(|(addr, &count)| Row {
                name: addr.to_string(),
                count,
            })
            .collect();
        outside.sort_by_key(|row| std::cmp::Reverse(row.count));
        outside.truncate(top);

        let indices = || 0..image.blocks.len() as u32;
        Self {
            kernel: image.build_id.0.clone(),
            workloads: profile.sources.iter().map(|source| source.workload.clone()).collect(),
            kernel_instructions: profile.kernel_instructions(),
            user_instructions: profile.user_instructions(),
            coverage: profile.coverage(),
            functions: image.functions.len(),
            functions_executed,
            blocks: image.blocks.len(),
            blocks_executed: profile.blocks.len(),
            bytes: indices().map(size_of).sum(),
            bytes_executed: indices().filter(|&index| count_of(index) > 0).map(size_of).sum(),
            edges: profile.edges.len(),
            calls: profile.calls.len(),
            top_functions: functions,
            top_processes: processes,
            outside,
        }
    }

    fn to_text(&self) -> String {
        use std::fmt::Write as _;
        let all = (self.kernel_instructions + self.user_instructions).max(1);
        let mut text = String::new();
        let _ = writeln!(text, "workload        {}", self.workloads.join(", "));
        let _ = writeln!(text, "kernel          {}", self.kernel);
        let _ = writeln!(
            text,
            "instructions    {} ({:.1} % in the kernel)",
            all,
            100.0 * self.kernel_instructions as f64 / all as f64
        );
        let _ = writeln!(text, "in named code   {:.4} % of the kernel's", 100.0 * self.coverage);
        let _ = writeln!(text, "functions       {} of {} ran", self.functions_executed, self.functions);
        let _ = writeln!(text, "blocks          {} of {} ran", self.blocks_executed, self.blocks);
        let _ = writeln!(text, "bytes of code   {} of {} ran", self.bytes_executed, self.bytes);
        let _ = writeln!(text, "edges, calls    {} and {} ran", self.edges, self.calls);
        let bytes: u64 = self.top_functions.iter().map(|row| row.count).sum();
        let _ = writeln!(text, "\n{:<40} {:>16}", "function", "bytes executed");
        for row in &self.top_functions {
            let _ = writeln!(text, "{:<40} {:>16}", row.name, row.count);
        }
        let _ = writeln!(text, "{:<40} {bytes:>16}", "together");
        let _ = writeln!(text, "\n{:<20} {:>16} {:>16}", "process", "in the kernel", "in user mode");
        for row in &self.top_processes {
            let _ = writeln!(
                text,
                "{:<20} {:>16} {:>16}",
                row.name, row.kernel_instructions, row.user_instructions
            );
        }
        if !self.outside.is_empty() {
            let _ = writeln!(text, "\n{:<20} {:>16}", "outside at", "instructions");
            for row in &self.outside {
                let _ = writeln!(text, "{:<20} {:>16}", row.name, row.count);
            }
        }
        text
    }
}
