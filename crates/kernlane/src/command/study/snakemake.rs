//! The jobs of a study as a workflow of Snakemake, which runs them on clusters and in clouds.
//!
//! Input: jobs. Output: the text of a `Snakefile`, which works in the study's directory. Its
//! outputs have the same names, so whatever Snakemake has done is done.

use super::jobs::{Job, JobKind, Plan};
use std::fmt::Write;
use std::path::Path;

/// Memory of a guest with its emulator, and of a simulator, in MB.
const MEMORY_MB: u32 = 4096;

/// The text of the workflow. `program` is this program, on each node.
pub(super) fn snakefile(plan: &Plan, program: &str) -> String {
    let mut text = format!(
        "# Made by `kernlane study --snakemake`; `kernlane study` prints the results.\n\
         # On nodes where kernlane lies elsewhere: snakemake --config kernlane=/path/kernlane\n\
         KERNLANE = config.get(\"kernlane\", {})\n\n\
         rule all:\n    input:\n",
        literal(program)
    );
    for cell in &plan.cells {
        let _ = writeln!(text, "        {},", path(&cell.results));
    }
    for job in &plan.jobs {
        text += &rule(job);
    }
    text
}

fn rule(job: &Job) -> String {
    let name = job.output.file_name().unwrap_or_default().to_string_lossy();
    let rule: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let mut text = format!("\nrule job_{rule}:\n");
    if !job.inputs.is_empty() {
        text += "    input:\n";
        for input in &job.inputs {
            let _ = writeln!(text, "        {},", path(input));
        }
    }
    let output = match job.kind {
        JobKind::Record => format!("directory({})", path(&job.output)),
        JobKind::Profile | JobKind::Layout | JobKind::Replay => path(&job.output),
    };
    let words: Vec<String> = job.words.iter().map(|word| quoted(word)).collect();
    let into = if job.kind == JobKind::Replay { " > {output}" } else { "" };
    let command = format!("{{KERNLANE}} {}{into} 2> {{log}}", words.join(" ").braces());
    let _ = write!(
        text,
        "    output:\n        {output}\n    log:\n        {}\n    resources:\n        \
         mem_mb={MEMORY_MB}\n    shell:\n        {}\n",
        literal(&format!("logs/{name}.log")),
        literal(&command)
    );
    text
}

trait Braces {
    /// Braces that Snakemake leaves alone.
    fn braces(&self) -> String;
}

impl Braces for str {
    fn braces(&self) -> String {
        self.replace('{', "{{").replace('}', "}}")
    }
}

fn path(path: &Path) -> String {
    literal(&path.display().to_string())
}

/// A string of Python. JSON's are.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=+,@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::small;
    use super::super::jobs::tests::Named;
    use super::*;

    #[test]
    fn each_job_is_a_rule_and_each_result_is_wanted() {
        let mut study = small();
        study.kernels = vec!["/my {old} kernel's".into()];
        let plan = Plan::new(&study, &Named("")).unwrap();
        let text = snakefile(&plan, "/usr/bin/kernlane");
        assert_eq!(text.matches("\nrule job_").count(), plan.jobs.len());
        let wanted = text.split("rule job_").next().unwrap();
        assert_eq!(wanted.matches("results/").count(), plan.cells.len());
        assert!(text.contains("directory(\"recordings/net-1-"), "{text}");
        // As a shell reads it when Snakemake and Python have read it.
        let kernel = r"--kernel '/my {{old}} kernel'\\''s' --seed 1";
        assert!(text.contains(kernel), "{text}");
        assert!(text.contains(" --json > {output} 2> {log}\""), "{text}");
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("bench:call/getpid"), "bench:call/getpid");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a b$c"), "'a b$c'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
