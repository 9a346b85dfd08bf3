//! Runs DynamoRIO's tools on a trace and reads what they say.
//!
//! Input: the launcher and a trace. Output: counts.

use anyhow::{Context, Result, ensure};
use sim::CacheGeometry;
use std::path::{Path, PathBuf};
use std::process::Command;

/// DynamoRIO's `drmemtrace_launcher`.
pub(super) struct Launcher(PathBuf);

/// Caches, all with lines of one length in bytes.
pub(super) struct Caches {
    pub line: u32,
    pub l1i: CacheGeometry,
    pub l1d: CacheGeometry,
    pub last: CacheGeometry,
}

/// Instructions.
#[derive(Debug, PartialEq)]
pub(super) struct PeerCounts {
    pub kernel: u64,
    pub user: u64,
}

impl Launcher {
    pub(super) fn new(path: &Path) -> Launcher {
        Launcher(path.to_owned())
    }

    /// Runs a tool on a trace and returns its output.
    fn run(&self, trace: &Path, tool: &str, options: &[String]) -> Result<String> {
        let output = Command::new(&self.0)
            .arg("-infile")
            .arg(trace)
            .args(["-tool", tool])
            .args(options)
            .output()
            .with_context(|| format!("{}: DynamoRIO cannot be run", self.0.display()))?;
        let printed = [output.stdout, output.stderr].concat();
        let end = String::from_utf8_lossy(&printed[printed.len().saturating_sub(2000)..]);
        ensure!(output.status.success(), "DynamoRIO's {tool}: {}\n{end}", output.status);
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }

    /// The number of violations that the invariant checker finds. The first ones are printed.
    pub(super) fn violations(&self, trace: &Path) -> Result<u64> {
        let options = ["-no_abort_on_invariant_error".to_owned()];
        let printed = self.run(trace, "invariant_checker", &options)?;
        let failures = printed.lines().filter(|line| line.contains("invariant failure"));
        failures.take(10).for_each(|line| println!("{line}"));
        violations(&printed)
    }

    /// The number of instructions that were fetched.
    pub(super) fn counts(&self, trace: &Path) -> Result<PeerCounts> {
        counts(&self.run(trace, "basic_counts", &[])?)
    }

    /// The misses of both first levels and of the last.
    pub(super) fn misses(&self, trace: &Path, caches: &Caches) -> Result<[u64; 3]> {
        let size = |cache: &CacheGeometry| cache.sets() * cache.ways() * caches.line;
        let options = [
            // The trace is scheduled already.
            "-no_core_sharded -cores 1 -use_physical".to_owned(),
            "-replace_policy LRU -data_prefetcher none".to_owned(),
            format!("-line_size {}", caches.line),
            format!("-L1I_size {} -L1I_assoc {}", size(&caches.l1i), caches.l1i.ways()),
            format!("-L1D_size {} -L1D_assoc {}", size(&caches.l1d), caches.l1d.ways()),
            format!("-LL_size {} -LL_assoc {}", size(&caches.last), caches.last.ways()),
        ];
        let options: Vec<String> =
            options.iter().flat_map(|all| all.split(' ')).map(str::to_owned).collect();
        let printed = self.run(trace, "cache_simulator", &options)?;
        ensure!(!printed.contains("Missing physical address"), "a page has no physical address");
        misses(&printed)
    }
}

fn violations(printed: &str) -> Result<u64> {
    if printed.contains("Trace invariant checks passed") {
        return Ok(0);
    }
    let found = printed.lines().find_map(|line| {
        line.strip_prefix("Found ")?.strip_suffix(" invariant errors")?.parse().ok()
    });
    found.context("the invariant checker does not say what it found")
}

fn counts(printed: &str) -> Result<PeerCounts> {
    let count = |what: &str| {
        let found = printed.lines().find_map(|line| {
            let (number, named) = line.trim().split_once(' ')?;
            (named.trim() == what).then(|| number.parse().ok())?
        });
        found.with_context(|| format!("basic_counts does not say the {what}"))
    };
    Ok(PeerCounts {
        kernel: count("total kernel instructions")?,
        user: count("total userspace instructions")?,
    })
}

fn misses(printed: &str) -> Result<[u64; 3]> {
    let mut found = [None; 3];
    let mut level = None;
    for line in printed.lines() {
        let line = line.trim();
        let names = ["L1I0 ", "L1D0 ", "LL "];
        level = names.iter().position(|name| line.starts_with(name)).or(level);
        if let (Some(level), Some(number)) = (level, line.strip_prefix("Misses:")) {
            let digits: String = number.chars().filter(char::is_ascii_digit).collect();
            found[level] = digits.parse().ok();
        }
    }
    let [Some(l1i), Some(l1d), Some(last)] = found else {
        anyhow::bail!("the cache simulator does not say its misses:\n{printed}");
    };
    Ok([l1i, l1d, last])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tools_say_is_read() {
        assert_eq!(violations("Trace invariant checks passed\n").unwrap(), 0);
        assert_eq!(violations("Trace ...\nFound 12 invariant errors\n").unwrap(), 12);
        assert!(violations("").is_err());
        let printed = "Total counts:\n      30 total (fetched) instructions\n      10 total \
                    userspace instructions\n      20 total kernel instructions\n       1 total threads\n";
        assert_eq!(counts(printed).unwrap(), PeerCounts { kernel: 20, user: 10 });
        assert!(counts("").is_err());
        let printed = "L1I0 (size) stats:\n    Hits: 10\n    Misses:  1,234\n    Compulsory misses: \
                    3\nL1D0 (size) stats:\n    Misses: 5\nLL (size) stats:\n    Misses: 7\n";
        assert_eq!(misses(printed).unwrap(), [1234, 5, 7]);
        assert!(misses("").is_err());
    }
}
