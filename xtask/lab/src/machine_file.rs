//! A machine's file, to change some of its numbers.
//!
//! Input: the text of a machine. Output: the text of another one.

use anyhow::{Context, Result};
use toml::{Table, Value};

/// A machine's file.
pub struct MachineFile(Table);

impl MachineFile {
    /// The file with this text, under another name.
    ///
    /// # Errors
    /// `text` is not TOML.
    pub fn named(text: &str, name: &str) -> Result<MachineFile> {
        let mut file: Table = toml::from_str(text)?;
        file.insert("name".into(), name.into());
        Ok(MachineFile(file))
    }

    /// A table of the file, by the names on the way to it.
    ///
    /// # Errors
    /// There is no such table.
    pub fn table(&mut self, path: &[&str]) -> Result<&mut Table> {
        let mut table = &mut self.0;
        for step in path {
            let next = table.get_mut(*step).and_then(Value::as_table_mut);
            table = next.with_context(|| format!("the machine has no [{step}]"))?;
        }
        Ok(table)
    }

    /// Its text.
    ///
    /// # Errors
    /// Something cannot be written as TOML.
    pub fn text(&self) -> Result<String> {
        Ok(toml::to_string(&self.0)?)
    }
}

/// Replaces a number of a table, with where it comes from.
///
/// # Errors
/// The number is beyond TOML's.
pub fn set(table: &mut Table, key: &str, value: u64, source: &str) -> Result<()> {
    let mut entry = Table::new();
    entry.insert("value".into(), Value::Integer(value.try_into()?));
    entry.insert("source".into(), source.into());
    table.insert(key.into(), entry.into());
    Ok(())
}
