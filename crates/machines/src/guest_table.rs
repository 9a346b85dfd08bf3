//! The tables [guest] and [guest.vulnerabilities] of a machine file: what a guest's kernel must
//! see, so that it executes the code that it would execute on the machine's processor.

use crate::sourced::{MachineFileReader, Sourced};
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use toml::Spanned;

/// A guest whose kernel patches its text as it would on a processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestProcessor {
    /// The name of the machine.
    pub name: String,
    /// The value of QEMU's option `-cpu`.
    pub cpu_model: String,
    /// Words of the kernel's command line, for what QEMU cannot show.
    pub command_line: Vec<String>,
    /// How the kernel's functions return.
    pub returns: BranchMitigation,
    /// How the kernel branches indirectly.
    pub indirect_branches: BranchMitigation,
    /// By name of a file in `/sys/devices/system/cpu/vulnerabilities`: how its text begins in the
    /// guest.
    pub vulnerabilities: BTreeMap<String, String>,
}

/// How a kernel executes its returns, or its indirect branches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum BranchMitigation {
    /// By the plain instruction.
    Plain,
    /// By a jump or a call to a thunk, which is named by its symbol. The thunks of indirect
    /// branches have a symbol for each register; their name here is the part before it.
    Thunk(String),
}

const PLAIN: &str = "plain";

impl From<String> for BranchMitigation {
    fn from(text: String) -> BranchMitigation {
        if text == PLAIN { BranchMitigation::Plain } else { BranchMitigation::Thunk(text) }
    }
}

impl From<BranchMitigation> for String {
    fn from(form: BranchMitigation) -> String {
        form.to_string()
    }
}

impl fmt::Display for BranchMitigation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BranchMitigation::Plain => f.write_str(PLAIN),
            BranchMitigation::Thunk(symbol) => f.write_str(symbol),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GuestText {
    cpu_model: Spanned<Sourced<String>>,
    command_line: Option<Spanned<Sourced<Vec<String>>>>,
    returns: Spanned<Sourced<BranchMitigation>>,
    indirect_branches: Spanned<Sourced<BranchMitigation>>,
    vulnerabilities: BTreeMap<String, Spanned<Sourced<String>>>,
}

impl MachineFileReader<'_> {
    /// The guest of a machine.
    ///
    /// # Errors
    /// A value has no source or is impossible. The error names the rule and the line.
    pub(crate) fn guest(&self, name: &str, text: &GuestText) -> Result<GuestProcessor> {
        let cpu_model = self.sourced(&text.cpu_model)?;
        ensure!(!cpu_model.is_empty(), "{}: the CPU model is empty", self.at(&text.cpu_model));
        let words = match &text.command_line {
            None => Vec::new(),
            Some(spanned) => {
                let words = self.sourced(spanned)?;
                let is_word = |word: &String| {
                    !word.is_empty() && !word.contains(char::is_whitespace) && word.is_ascii()
                };
                ensure!(
                    words.iter().all(is_word),
                    "{}: each word of a command line is ASCII without spaces",
                    self.at(spanned)
                );
                words.clone()
            }
        };
        let mut vulnerabilities = BTreeMap::new();
        for (file, spanned) in &text.vulnerabilities {
            let begins = self.sourced(spanned)?;
            ensure!(!begins.is_empty(), "{}: the text of {file} is empty", self.at(spanned));
            vulnerabilities.insert(file.clone(), begins.clone());
        }
        Ok(GuestProcessor {
            name: name.to_owned(),
            cpu_model: cpu_model.clone(),
            command_line: words,
            returns: self.sourced(&text.returns)?.clone(),
            indirect_branches: self.sourced(&text.indirect_branches)?.clone(),
            vulnerabilities,
        })
    }
}
