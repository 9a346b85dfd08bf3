//! Finds a make that builds a tree right now.
//!
//! Input: the tree, and the process that asks. Output: the number of a make that works in the tree
//! and does not wait for that process. Ends and changes nothing.

use std::fs;
use std::path::Path;

/// A make below `tree` that does not wait for `process`. The makes that called `process`, in a
/// package's rules for example, wait for it.
pub(crate) fn other_make(tree: &Path, process: u32) -> Option<u32> {
    let waiting: Vec<u32> = std::iter::successors(Some(process), |&id| parent(id)).collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut others = ids.filter(|id| !waiting.contains(id));
    others.find(|id| {
        let of = |name: &str| Path::new("/proc").join(id.to_string()).join(name);
        let is_make = fs::read_to_string(of("comm"))
            .is_ok_and(|name| matches!(name.trim(), "make" | "gmake"));
        is_make && fs::read_link(of("cwd")).is_ok_and(|directory| directory.starts_with(tree))
    })
}

/// The process that started this one; `None` for the first one, and for one that has ended.
fn parent(process: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in front may hold blanks and brackets: `71 (a) b) S 70 …` (proc(5)).
    let (_, behind_name) = text.rsplit_once(") ")?;
    behind_name.split(' ').nth(1)?.parse().ok().filter(|&parent| parent != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    #[test]
    fn a_make_that_called_the_program_is_no_other_make() {
        let tree = tempfile::tempdir().unwrap();
        // The called program has an awkward name.
        std::os::unix::fs::symlink("/bin/sh", tree.path().join("a) S 1 ")).unwrap();
        let rule = "all:\n\t@exec './a) S 1 ' -c 'echo $$$$; read line'\n";
        fs::write(tree.path().join("Makefile"), rule).unwrap();
        let mut make = Command::new("make");
        make.current_dir(tree.path());
        // A make that runs these tests would have this one print its directory.
        for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
            make.env_remove(name);
        }
        let mut make = make.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = String::new();
        let mut output = make.stdout.take().unwrap();
        while !printed.ends_with('\n') {
            let mut byte = [0];
            output.read_exact(&mut byte).unwrap();
            printed.push(char::from(byte[0]));
        }
        let called: u32 = printed.trim().parse().unwrap();
        assert_eq!(other_make(tree.path(), std::process::id()), Some(make.id()));
        assert_eq!(other_make(tree.path(), called), None);
        assert_eq!(parent(called), Some(make.id()));
        drop(make.stdin.take());
        make.wait().unwrap();
        assert_eq!(other_make(tree.path(), std::process::id()), None);
    }
}
