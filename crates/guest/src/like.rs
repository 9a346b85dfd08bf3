//! Checks from within that a guest's kernel chose what it would choose on a machine's processor.
//!
//! Input: the kernel's console. Output: what the kernel says of each vulnerability. This module
//! boots nothing.

use anyhow::{Result, ensure};
use machines::GuestProcessor;
use std::collections::BTreeMap;

/// The commands of a guest's script that print the mitigations.
pub(crate) const SHOW_MITIGATIONS: &str = r#"for file in /sys/devices/system/cpu/vulnerabilities/*; do
    say "vulnerability ${file##*/}: $(cat "$file")"
done
"#;

/// What comes before a vulnerability's name on the console.
const MARK: &str = "kernlane: vulnerability ";

/// The text of each vulnerability, by the name of its file.
///
/// # Errors
/// The kernel printed none, or a text differs from what the machine's file says. A vulnerability
/// that the kernel does not know is not an error.
pub(crate) fn check(console: &str, processor: &GuestProcessor) -> Result<BTreeMap<String, String>> {
    let lines = console.lines().filter_map(|line| line.split_once(MARK)?.1.split_once(": "));
    let found: BTreeMap<String, String> =
        lines.map(|(name, text)| (name.to_owned(), text.trim_end().to_owned())).collect();
    ensure!(
        !found.is_empty(),
        "the guest's kernel has no /sys/devices/system/cpu/vulnerabilities, so nobody knows what \
         its code is like: take a kernel of 4.15 or later with sysfs"
    );
    let differs = |(name, wanted): (&String, &String)| {
        let text = found.get(name).filter(|text| !text.starts_with(wanted.as_str()))?;
        Some(format!("  {name}: {text:?}, not {wanted:?}"))
    };
    let differences: Vec<String> = processor.vulnerabilities.iter().filter_map(differs).collect();
    ensure!(
        differences.is_empty(),
        "the guest's kernel chose other mitigations than on {}: it was built without them, its \
         version differs, or its own command line changes them\n{}",
        processor.name,
        differences.join("\n")
    );
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use machines::BranchMitigation;

    fn processor() -> GuestProcessor {
        let text = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        GuestProcessor {
            name: "zen4".into(),
            cpu_model: "max".into(),
            command_line: Vec::new(),
            returns: BranchMitigation::Plain,
            indirect_branches: BranchMitigation::Plain,
            vulnerabilities: [
                text("spectre_v2", "Mitigation: Enhanced / Automatic IBRS"),
                text("tsa", "Mitigation: Clear CPU buffers"),
            ]
            .into(),
        }
    }

    #[test]
    fn texts_are_read_from_the_console_and_compared_by_their_beginning() {
        let console = "[    5.1] kernlane: vulnerability mds: Not affected\r\n\
                       [    5.2] kernlane: vulnerability spectre_v2: Mitigation: Enhanced / \
                       Automatic IBRS; IBPB: conditional\r\n";
        let found = check(console, &processor()).unwrap();
        assert_eq!(found["spectre_v2"], "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional");
        assert_eq!((found.len(), found["mds"].as_str()), (2, "Not affected"));
        let other = console.replace("Enhanced / Automatic IBRS", "Retpolines");
        let message = check(&other, &processor()).unwrap_err().to_string();
        assert!(
            message.contains("than on zen4") && message.contains("spectre_v2: \"Mitigation: Retp"),
            "{message}"
        );
        assert!(check("[    5.1] x\n", &processor()).is_err());
    }
}
