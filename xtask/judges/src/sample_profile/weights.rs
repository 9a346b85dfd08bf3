//! The weights of branches in LLVM's intermediate code, and how well two sets of them agree.
//!
//! Input: the text of two modules with the same code. Output: shares.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fmt;

/// The counts of each branch's and switch's successors by function, in the order of the code.
/// Empty where the compiler has none.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BranchWeights(BTreeMap<String, Vec<Vec<u64>>>);

impl BranchWeights {
    /// Reads a module's text.
    ///
    /// # Errors
    /// It has no branch with a count.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let counts: BTreeMap<&str, Vec<u64>> = text.lines().filter_map(metadata).collect();
        let (mut functions, mut branches) = (BTreeMap::new(), None::<(&str, Vec<Vec<u64>>)>);
        for line in text.lines() {
            if line.starts_with("define ") {
                let name = line.split_once('@').and_then(|(_, rest)| rest.split_once('('));
                branches = Some((name.context("a function without a name")?.0, Vec::new()));
            } else if line == "}" {
                if let Some((name, branches)) = branches.take() {
                    functions.insert(name.to_owned(), branches);
                }
            } else if let Some((_, branches)) = &mut branches
                && (line.starts_with("  br i1 ") || line.starts_with("  ]"))
            {
                let number = line.split("!prof ").nth(1).and_then(|rest| rest.split(',').next());
                let known = number.and_then(|number| counts.get(number.trim()));
                branches.push(known.cloned().unwrap_or_default());
            }
        }
        ensure!(!counts.is_empty(), "the compiler gave no branch a weight");
        Ok(BranchWeights(functions))
    }
}

/// `!12 = !{!"branch_weights", i32 5, i32 9}`: its number, and the counts, to which LLVM adds 1.
fn metadata(line: &str) -> Option<(&str, Vec<u64>)> {
    let (number, rest) = line.strip_prefix('!').and(line.split_once(" = "))?;
    let weights = rest.split_once("!\"branch_weights\", ")?.1.strip_suffix('}')?;
    let weight = |weight: &str| weight.trim().strip_prefix("i32 ")?.parse::<i32>().ok();
    let weights: Option<Vec<i32>> = weights.split(',').map(weight).collect();
    // The text shows 32 bits with a sign.
    Some((
        number,
        weights?.iter().map(|&weight| u64::from(weight as u32).saturating_sub(1)).collect(),
    ))
}

/// How well the weights of the same branches agree.
#[derive(Debug, PartialEq)]
pub(super) struct Agreement {
    /// Branches that ran.
    pub branches: usize,
    /// Which share of the executions of edges is in both: 0 to 1.
    pub edges: f64,
    /// How far the probabilities of a branch are apart, weighed by its executions: 0 to 1.
    pub error: f64,
    /// The share of executions at branches whose likely side differs: 0 to 1.
    pub other_side: f64,
    /// The share of executions at branches without weights: 0 to 1.
    pub unknown: f64,
}

impl Agreement {
    /// Compares weights with the true ones.
    ///
    /// # Errors
    /// The two are not of the same code.
    pub(super) fn of(truth: &BranchWeights, found: &BranchWeights) -> Result<Self> {
        let (mut both, mut all, mut all_found) = (0, 0, 0);
        let (mut error, mut other_side, mut unknown, mut branches) = (0.0, 0, 0, 0);
        for (name, truth) in &truth.0 {
            let found = found.0.get(name).filter(|found| found.len() == truth.len());
            let found = found.with_context(|| format!("{name}: the branches are not the same"))?;
            for (truth, found) in truth.iter().zip(found) {
                let (sum, sum_found) = (truth.iter().sum::<u64>(), found.iter().sum::<u64>());
                if sum == 0 {
                    continue;
                }
                (branches, all, all_found) = (branches + 1, all + sum, all_found + sum_found);
                if sum_found == 0 {
                    unknown += sum;
                    continue;
                }
                both += truth.iter().zip(found).map(|(a, b)| a.min(b)).sum::<u64>();
                let share = |(&a, &b): (&u64, &u64)| {
                    (a as f64 / sum as f64 - b as f64 / sum_found as f64).abs()
                };
                error += truth.iter().zip(found).map(share).sum::<f64>() / 2.0 * sum as f64;
                let likely = |counts: &[u64]| (0..counts.len()).max_by_key(|&at| counts[at]);
                if likely(truth) != likely(found) {
                    other_side += sum;
                }
            }
        }
        ensure!(all > 0, "no branch ran");
        let share = |part: u64| part as f64 / all as f64;
        Ok(Agreement {
            branches,
            edges: both as f64 / all.max(all_found) as f64,
            error: error / all as f64,
            other_side: share(other_side),
            unknown: share(unknown),
        })
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| 100.0 * share;
        write!(
            out,
            "{} branches ran: {:.1} % of their edges' executions agree; by executions, \
             probabilities are {:.1} % apart, {:.1} % have another likely side, {:.1} % no weights",
            self.branches,
            percent(self.edges),
            percent(self.error),
            percent(self.other_side),
            percent(self.unknown)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(weights: &[&str]) -> String {
        let mut text = "define i32 @f(i32 %0) {\n".to_owned();
        for number in 0..weights.len() {
            text.push_str(&format!("  br i1 %1, label %2, label %3, !dbg !7, !prof !{number}\n"));
        }
        text.push_str("}\n");
        for (number, weights) in weights.iter().enumerate() {
            text.push_str(&format!("!{number} = !{{!\"branch_weights\", {weights}}}\n"));
        }
        text
    }

    fn agreement(truth: &[&str], found: &[&str]) -> Agreement {
        let parse = |weights| BranchWeights::parse(&module(weights)).unwrap();
        Agreement::of(&parse(truth), &parse(found)).unwrap()
    }

    #[test]
    fn equal_weights_agree() {
        let weights = ["i32 11, i32 31", "i32 1, i32 -1"];
        let found = agreement(&weights, &weights);
        assert_eq!((found.branches, found.edges, found.error), (2, 1.0, 0.0));
        assert_eq!((found.other_side, found.unknown), (0.0, 0.0));
    }

    #[test]
    fn differences_are_weighed_by_executions() {
        // 30 of 40 executions take the first edge; 10 of 40 were found there.
        let found =
            agreement(&["i32 31, i32 11", "i32 61, i32 1"], &["i32 11, i32 31", "i32 1, i32 1"]);
        assert_eq!((found.branches, found.edges, found.error), (2, 0.2, 0.2));
        assert_eq!((found.other_side, found.unknown), (0.4, 0.6));
    }

    #[test]
    fn other_code_is_refused() {
        let parse = |weights: &[&str]| BranchWeights::parse(&module(weights)).unwrap();
        let error = Agreement::of(&parse(&["i32 2, i32 2"]), &parse(&["i32 2, i32 2"; 2]));
        assert!(error.unwrap_err().to_string().contains("f: the branches are not the same"));
        assert!(BranchWeights::parse("define i32 @f() {\n}\n").is_err());
    }
}
