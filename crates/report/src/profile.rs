//! The summary of a profile as text or JSON: instructions, coverage, and the functions and
//! processes that ran most.
//!
//! Input: a profile and its image. This module changes no count.

use host::table::{Column, TextTable};
use image::module::ImageModule;
use image::{BlockIndex, Image, ImageFunction};
use profile::Profile;

/// The summary of a profile.
#[derive(serde::Serialize)]
pub struct ProfileSummary {
    kernel: String,
    workloads: Vec<String>,
    kernel_instructions: u64,
    user_instructions: u64,
    /// The share of the kernel's instructions in a block of a named function.
    coverage: f64,
    functions: usize,
    functions_executed: usize,
    blocks: usize,
    blocks_executed: usize,
    bytes: u64,
    bytes_executed: u64,
    edges: usize,
    calls: usize,
    /// Names of functions, and bytes of instructions executed by block counts.
    top_functions: Vec<CountRow>,
    /// The modules whose files are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    modules: Vec<ModuleRow>,
    top_processes: Vec<ProcessSummaryRow>,
    /// Addresses of translation blocks outside named functions, and instructions.
    outside: Vec<CountRow>,
}

#[derive(serde::Serialize)]
struct CountRow {
    name: String,
    count: u64,
}

#[derive(serde::Serialize)]
struct ModuleRow {
    name: String,
    build_id: String,
    functions: usize,
    functions_executed: usize,
    /// Bytes of instructions executed by block counts.
    bytes_executed: u64,
}

#[derive(serde::Serialize)]
struct ProcessSummaryRow {
    name: String,
    kernel_instructions: u64,
    user_instructions: u64,
}

impl ModuleRow {
    fn new(image: &Image, module: &ImageModule, count_of: &impl Fn(u32) -> u64) -> ModuleRow {
        let of_module = |function: &&ImageFunction| {
            let block = BlockIndex(function.blocks.start);
            image.module_of(block).is_some_and(|it| it.identity == module.identity)
        };
        let executed = |function: &ImageFunction| -> u64 {
            let size_of = |index: u32| u64::from(image.blocks[index as usize].size);
            function.blocks.clone().map(|index| count_of(index) * size_of(index)).sum()
        };
        let bytes: Vec<u64> = image.functions.iter().filter(of_module).map(executed).collect();
        ModuleRow {
            name: module.identity.name.clone(),
            build_id: module.identity.build_id.clone(),
            functions: bytes.len(),
            functions_executed: bytes.iter().filter(|&&bytes| bytes > 0).count(),
            bytes_executed: bytes.iter().sum(),
        }
    }
}

impl ProfileSummary {
    /// `top`: the largest number of functions, processes and addresses to list.
    pub fn new(image: &Image, profile: &Profile, top: usize) -> Self {
        let count_of = |index: u32| {
            profile.blocks.get(&image.blocks[index as usize].addr).copied().unwrap_or(0)
        };
        let size_of = |index: u32| u64::from(image.blocks[index as usize].size);
        let mut functions: Vec<CountRow> = image
            .functions
            .iter()
            .map(|function| CountRow {
                name: function.name.clone(),
                count: function.blocks.clone().map(|index| count_of(index) * size_of(index)).sum(),
            })
            .filter(|row| row.count > 0)
            .collect();
        let functions_executed = functions.len();
        let modules = image.modules.iter().map(|it| ModuleRow::new(image, it, &count_of));
        let mut modules: Vec<ModuleRow> = modules.collect();
        modules.sort_by(|a, b| {
            b.bytes_executed.cmp(&a.bytes_executed).then_with(|| a.name.cmp(&b.name))
        });
        functions.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        functions.truncate(top);

        let mut processes: Vec<ProcessSummaryRow> = profile
            .processes
            .iter()
            .map(|(name, process)| ProcessSummaryRow {
                name: name.clone(),
                kernel_instructions: process.kernel_instructions,
                user_instructions: process.user_instructions,
            })
            .collect();
        processes
            .sort_by_key(|row| std::cmp::Reverse(row.kernel_instructions + row.user_instructions));
        processes.truncate(top);

        let mut outside: Vec<CountRow> = profile
            .outside
            .iter()
            .map(|(addr, &count)| CountRow { name: addr.to_string(), count })
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
            modules,
            top_processes: processes,
            outside,
        }
    }

    /// The summary as text for a terminal.
    pub fn to_text(&self) -> String {
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
        let _ =
            writeln!(text, "functions       {} of {} ran", self.functions_executed, self.functions);
        let _ = writeln!(text, "blocks          {} of {} ran", self.blocks_executed, self.blocks);
        let _ = writeln!(text, "bytes of code   {} of {} ran", self.bytes_executed, self.bytes);
        let _ = writeln!(text, "edges, calls    {} and {} ran", self.edges, self.calls);
        let bytes: u64 = self.top_functions.iter().map(|row| row.count).sum();
        let counts = |what: &str, wide: usize, titles: &[&str]| {
            let counts = titles.iter().map(|title| Column::right(title).fixed(16).gap(1));
            TextTable::of([Column::left(what).fixed(wide)].into_iter().chain(counts))
        };
        let mut functions = counts("function", 40, &["bytes executed"]);
        for row in &self.top_functions {
            functions.push(vec![row.name.clone(), row.count.to_string()]);
        }
        functions.push(vec!["together".to_owned(), bytes.to_string()]);
        let mut processes = counts("process", 20, &["in the kernel", "in user mode"]);
        for row in &self.top_processes {
            let [kernel, user] = [row.kernel_instructions, row.user_instructions];
            processes.push(vec![row.name.clone(), kernel.to_string(), user.to_string()]);
        }
        let _ = write!(text, "\n{}\n{}", functions.to_text(), processes.to_text());
        if !self.modules.is_empty() {
            let mut modules = counts("module", 20, &["functions", "ran", "bytes executed"]);
            for row in &self.modules {
                let counts = [row.functions, row.functions_executed].map(|n| n.to_string());
                let [all, ran] = counts;
                modules.push(vec![row.name.clone(), all, ran, row.bytes_executed.to_string()]);
            }
            let _ = write!(text, "\n{}", modules.to_text());
        }
        if !self.outside.is_empty() {
            let mut outside = counts("outside at", 20, &["instructions"]);
            for row in &self.outside {
                outside.push(vec![row.name.clone(), row.count.to_string()]);
            }
            let _ = write!(text, "\n{}", outside.to_text());
        }
        text
    }
}
