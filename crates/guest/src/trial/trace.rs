//! Finds the line of a script that failed, in what the shell printed while it traced the script.
//!
//! Input: the output of `sh -x` with a PS4 of `\1line $LINENO: `, and the script. Output: a line. A
//! shell without line numbers (Debian's dash) was started with `-v` as well: it prints each line of
//! the script when it reads it, a whole command at a time.

use super::MARK;
use std::ops::Range;

/// The number, from 1, and the text of the line that was executed last. A trap that runs at the
/// script's end is also traced, but does not count.
pub(super) fn failed_line(output: &str, script: &str) -> Option<(usize, String)> {
    let lines: Vec<&str> = script.lines().collect();
    let mut found = None;
    // The lines of the command that runs, and whether the shell is still reading it.
    let (mut command, mut reads): (Range<usize>, bool) = (0..0, false);
    let mut traps: Vec<&str> = Vec::new();
    for text in output.lines() {
        let Some((_, trace)) = text.rsplit_once(MARK) else {
            let next = lines.get(command.end);
            // In front of a line can be output that has not ended its line.
            if next.is_some_and(|line| text == *line || line.len() > 3 && text.ends_with(line)) {
                let start = if reads { command.start } else { command.end };
                (command, reads) = (start..command.end + 1, true);
            }
            continue;
        };
        let Some((number, words)) = trace.strip_prefix("line ").and_then(|t| t.split_once(": "))
        else {
            continue;
        };
        reads = false;
        if let Some(action) = words.strip_prefix("trap ") {
            traps.push(action);
        } else if traps.iter().any(|action| runs(action, words)) {
            continue;
        }
        found = match number.trim().parse::<usize>() {
            Ok(number) => number.checked_sub(1).filter(|at| stands_at(&lines, *at, words)),
            Err(_) => best(&lines, command.clone(), words, found),
        }
        .or(found);
    }
    let at = found?;
    Some((at + 1, lines.get(at)?.trim().to_owned()))
}

/// Whether these words are a command of a trap's action. The shell replaces variables in it.
fn runs(action: &str, words: &str) -> bool {
    let first = words.split_whitespace().next().unwrap_or_default();
    action.contains(words)
        || action.contains('$')
            && action.split_whitespace().any(|word| word.trim_matches(['\'', '"', ';']) == first)
}

/// Whether the line can be the one that was executed as these words: the first word stands there,
/// or the shell has replaced something in it.
fn stands_at(lines: &[&str], at: usize, words: &str) -> bool {
    let (Some(line), Some(first)) = (lines.get(at), words.split_whitespace().next()) else {
        return false;
    };
    line.contains(first.trim_matches('\'')) || line.contains(['$', '`'])
}

/// The line of the command that has the most of these words; without any, the line that was found
/// before, or the command's first line.
fn best(lines: &[&str], command: Range<usize>, words: &str, found: Option<usize>) -> Option<usize> {
    let number = |at: &usize| {
        let line = lines.get(*at).copied().unwrap_or_default();
        words.split_whitespace().filter(|word| line.contains(word.trim_matches('\''))).count()
    };
    let is_code = |at: &usize| {
        let line = lines.get(*at).copied().unwrap_or_default().trim();
        !line.is_empty() && !line.starts_with('#')
    };
    let candidates: Vec<usize> = command.clone().filter(is_code).collect();
    let most = candidates.iter().map(number).max().filter(|most| *most > 0);
    match most {
        Some(most) => candidates.into_iter().find(|at| number(at) == most),
        None => found.filter(|at| command.contains(at)).or_else(|| candidates.first().copied()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const SCRIPT: &str = "trap 'echo over' EXIT\nmkdir a\n\n# A loop.\nfor i in 1 2; do\n  \
        $program x\ndone\ngrep b c\n";

    #[test]
    fn numbers_are_taken_and_traps_are_not() {
        let output = "\u{1}line 1: trap 'echo over' EXIT\nsaid\n\u{1}line 2: mkdir a\n\
            half a line\u{1}line 6: ./program x\n\u{1}line 8: grep b c\n";
        let last = Some((8, "grep b c".to_owned()));
        assert_eq!(failed_line(output, SCRIPT), last);
        // bash counts the trap's lines from 1, busybox goes on.
        for number in [1, 2, 8] {
            assert_eq!(
                failed_line(&format!("{output}\u{1}line {number}: echo over\n"), SCRIPT),
                last
            );
        }
        let kills = "\u{1}line 1: trap 'kill $x' EXIT\n\u{1}line 2: mkdir a\n\u{1}line 6: kill 5\n";
        assert_eq!(failed_line(kills, SCRIPT), Some((2, "mkdir a".into())));
        let inside = "\u{1}line 6: ./program x\n";
        assert_eq!(failed_line(inside, SCRIPT), Some((6, "$program x".into())));
        for nothing in ["", "\u{1}line 0: y\n", "\u{1}line 99: y\n", "line 2: a", "\u{1}line"] {
            assert_eq!(failed_line(nothing, SCRIPT), None, "{nothing}");
        }
    }

    #[test]
    fn lines_that_were_read_take_the_place_of_numbers() {
        let output = "\u{1}line : . /kernlane/run\ntrap 'echo over' EXIT\n\
            \u{1}line : trap echo over EXIT\nmkdir a\n\u{1}line : mkdir a\nmkdir a\n";
        assert_eq!(failed_line(output, SCRIPT), Some((2, "mkdir a".into())));
        let looped = format!(
            "{output}\n# A loop.\nfor i in 1 2; do\n  $program x\ndone\n\u{1}line : ./program x\n"
        );
        assert_eq!(failed_line(&looped, SCRIPT), Some((6, "$program x".into())));
        let over = format!("{looped}grep b c\n\u{1}line : grep b c\n\u{1}line : echo over\n");
        assert_eq!(failed_line(&over, SCRIPT), Some((8, "grep b c".into())));
    }

    /// The shells of this machine print what this module reads.
    #[test]
    fn real_shells_are_understood() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("script");
        let script = "trap 'echo over' EXIT\necho begun\nmade=$(printf one)\n\nprintf no-end\n\
            while true; do\n  echo \"$made\"\n  grep -q kernlane-nothing /dev/null\n  echo never\n\
            done\n";
        std::fs::write(&path, script).unwrap();
        let mut tried = 0;
        for shell in [&["dash"][..], &["bash"], &["busybox", "sh"], &["sh"]] {
            let run = "mark=$(printf '\\001'); trace=-x; [ -n \"$LINENO\" ] || trace=-xv; \
                PS4=\"${mark}line \\$LINENO: \"; set \"$trace\"; . \"$0\"";
            let command = Command::new(shell[0])
                .args(&shell[1..])
                .args(["-e", "-c", &format!("exec 2>&1; {run}")])
                .arg(&path)
                .output();
            let Ok(output) = command else { continue };
            assert_eq!(output.status.code(), Some(1), "{shell:?}");
            let output = String::from_utf8_lossy(&output.stdout).into_owned();
            let found = failed_line(&output, script);
            let expected = (8, "grep -q kernlane-nothing /dev/null".to_owned());
            assert_eq!(found, Some(expected), "{shell:?}:\n{output}");
            tried += 1;
        }
        assert!(tried > 0);
    }
}
