//! Checks from within that a guest's kernel chose what it would choose on a machine's processor.
//!
//! Input: the guest's messages, or its console. Output: what the kernel says of each vulnerability.
//! This module boots nothing.

use anyhow::{Result, ensure};
use machines::GuestProcessor;
use std::collections::BTreeMap;

/// The commands of a guest's script that print the mitigations. The script says [`SAID`] next.
pub(crate) const SHOW_MITIGATIONS: &str = r#"for file in /sys/devices/system/cpu/vulnerabilities/*; do
    say "vulnerability ${file##*/}: $(cat "$file")"
done
"#;

/// The message of a guest that has printed all of them.
pub(crate) const SAID: &str = "phase settle";

/// Where the files of vulnerabilities are.
const DIRECTORY: &str = "/sys/devices/system/cpu/vulnerabilities";
/// What comes before the messages of a guest's own scripts on the console.
const OWN: &str = "kernlane: ";

/// The text of each vulnerability, by the name of its file.
type Vulnerabilities = BTreeMap<String, String>;

/// Compares as soon as a guest has booted, before its workload is set up and runs.
pub(crate) struct EarlyCheck<'p> {
    processor: &'p GuestProcessor,
    found: Vulnerabilities,
}

impl EarlyCheck<'_> {
    pub(crate) fn new(processor: &GuestProcessor) -> EarlyCheck<'_> {
        EarlyCheck { processor, found: Vulnerabilities::new() }
    }

    /// Takes the next messages of the guest's scripts.
    ///
    /// # Errors
    /// As [`check`], when the guest has said all.
    pub(crate) fn hear(&mut self, messages: &[String]) -> Result<()> {
        for message in messages {
            self.found.extend(vulnerability(message));
            if message == SAID {
                compare(&self.found, self.processor)?;
            }
        }
        Ok(())
    }
}

/// The text of each vulnerability, by the name of its file.
///
/// # Errors
/// The kernel printed none, or a text differs from what the machine's file says. A vulnerability
/// that the kernel does not know is not an error.
pub(crate) fn check(console: &str, processor: &GuestProcessor) -> Result<Vulnerabilities> {
    let messages = console.lines().filter_map(|line| Some(line.split_once(OWN)?.1));
    let found: Vulnerabilities = messages.filter_map(vulnerability).collect();
    compare(&found, processor)?;
    Ok(found)
}

/// The file and the text of a message about a vulnerability.
fn vulnerability(message: &str) -> Option<(String, String)> {
    let (name, text) = message.strip_prefix("vulnerability ")?.split_once(": ")?;
    Some((name.to_owned(), text.trim_end().to_owned()))
}

fn compare(found: &Vulnerabilities, processor: &GuestProcessor) -> Result<()> {
    ensure!(
        !found.is_empty(),
        "the guest's kernel has no {DIRECTORY}, so nobody knows what its code is like: take a \
         kernel of 4.15 or later with sysfs"
    );
    let differs = |(name, wanted): (&String, &String)| {
        let text = found.get(name).filter(|text| !begins(text, wanted))?;
        Some(format!("  {DIRECTORY}/{name}: {text:?} does not begin with {wanted:?}"))
    };
    let differences: Vec<String> = processor.vulnerabilities.iter().filter_map(differs).collect();
    match differences.is_empty() {
        true => Ok(()),
        false => Err(OtherMitigations {
            machine: processor.name.clone(),
            differences: differences.join("\n"),
        }
        .into()),
    }
}

/// Whether a text begins so, in capitals or not: Linux 6.1 says "safe RET".
fn begins(text: &str, wanted: &str) -> bool {
    let start = text.get(..wanted.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(wanted))
}

/// The guest's kernel is not like on the machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the guest's kernel chose other mitigations than on {machine}: it was built without them, its \
     version differs, or its command line changes them\n{differences}"
)]
pub struct OtherMitigations {
    machine: String,
    /// A line for each file that says something else.
    differences: String,
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
        assert!(check(&console.replace("Automatic", "automatic"), &processor()).is_ok());
        let other = console.replace("Enhanced / Automatic IBRS", "Retpolines");
        let message = check(&other, &processor()).unwrap_err().to_string();
        assert!(
            message.contains("than on zen4")
                && message.contains(
                    "vulnerabilities/spectre_v2: \"Mitigation: Retpolines; IBPB: conditional\" does \
                     not begin with \"Mitigation: Enhanced / Automatic IBRS\""
                ),
            "{message}"
        );
        assert!(check("[    5.1] x\n", &processor()).is_err());
    }

    #[test]
    fn a_guest_is_judged_when_it_has_said_all_and_not_before() {
        let wrong = "vulnerability spectre_v2: Vulnerable".to_owned();
        let right = "vulnerability spectre_v2: Mitigation: Enhanced / Automatic IBRS".to_owned();
        let processor = processor();
        let mut early = EarlyCheck::new(&processor);
        early.hear(&["booted".into(), wrong]).unwrap();
        let message = early.hear(&[SAID.into()]).unwrap_err().to_string();
        assert!(message.contains("spectre_v2: \"Vulnerable\""), "{message}");
        let mut early = EarlyCheck::new(&processor);
        early.hear(&[right, "vulnerability tsa: Not affected".into()]).unwrap();
        early.hear(&["phase set-up".into()]).unwrap();
        assert!(early.hear(&[SAID.into()]).unwrap_err().to_string().contains("tsa: \"Not aff"));
        let mut early = EarlyCheck::new(&processor);
        assert!(early.hear(&[SAID.into()]).unwrap_err().to_string().contains("has no /sys"));
    }
}
