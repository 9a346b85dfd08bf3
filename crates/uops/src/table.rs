//! Reads a table of uops: text, as the head of each file in `tables/` explains.
//!
//! Input: text. Output: for each form of instruction, its uops. A line that does not follow the
//! rules gives an error with its number.

use crate::fusion::Fusion;
use iced_x86::Code;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use thiserror::Error;

/// The tables that come with Kernlane.
const SHIPPED: [(&str, &str); 5] = [
    ("pentium4", include_str!("../tables/pentium4.txt")),
    ("r10000", include_str!("../tables/r10000.txt")),
    ("sapphirerapids", include_str!("../tables/sapphirerapids.txt")),
    ("znver4", include_str!("../tables/znver4.txt")),
    ("znver5", include_str!("../tables/znver5.txt")),
];

/// The shipped tables that were asked for: each is read once, and every core that names it has the
/// same one.
static READ: [OnceLock<Result<Arc<UopTable>, TableError>>; SHIPPED.len()] =
    [const { OnceLock::new() }; SHIPPED.len()];

/// A computing uop of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComputingUop {
    /// One bit for each port.
    pub ports: u16,
    /// The cycles for which it keeps its unit; 0: it is pipelined.
    pub kept: u8,
}

/// The entry of a table for an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub slots: u8,
    /// Cycles from the operands, or the loaded values, to the results.
    pub latency: u16,
    pub computing: Vec<ComputingUop>,
}

/// The uops of a processor.
#[derive(Clone)]
pub struct UopTable {
    name: String,
    pub(crate) load: u16,
    pub(crate) vector_load: u16,
    pub(crate) store_address: u16,
    pub(crate) store_data: u16,
    pub(crate) branch: u16,
    /// Where addresses of three parts are computed; `None`: where additions are.
    pub(crate) three_part_address: Option<u16>,
    pub(crate) fusion: Fusion,
    /// Each uop is an operation of a simple machine: it takes a slot, and renaming removes none. An
    /// instruction without an entry gets the default, which is not a gap of the table.
    pub(crate) simple: bool,
    /// Loads of instructions that also compute are renamed as moves are.
    pub(crate) renamed_operands: bool,
    ports: Vec<String>,
    entries: Vec<Entry>,
    /// For a code and whether it names memory: the index of its entry.
    places: HashMap<(Code, bool), u32>,
    pub(crate) default: Entry,
}

/// Why a text is not a table of uops.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum TableError {
    #[error("no table of uops is called {name}; there are {known}")]
    Unknown { name: String, known: String },
    #[error("line {line}: {what}")]
    Line { line: usize, what: String },
    #[error("the table ends early: `{0}` is missing")]
    Missing(&'static str),
}

impl UopTable {
    /// The shipped table called `name`. It is read at the first call and kept.
    ///
    /// # Errors
    /// There is none.
    pub fn find(name: &str) -> Result<Arc<UopTable>, TableError> {
        let known = || SHIPPED.map(|(known, _)| known).join(", ");
        let mut shipped = SHIPPED.iter().zip(&READ);
        let ((_, text), read) = shipped
            .find(|((known, _), _)| *known == name)
            .ok_or_else(|| TableError::Unknown { name: name.to_owned(), known: known() })?;
        read.get_or_init(|| UopTable::parse(text).map(Arc::new)).clone()
    }

    /// Reads a table.
    ///
    /// # Errors
    /// The line that is wrong, or what is missing.
    pub(crate) fn parse(text: &str) -> Result<UopTable, TableError> {
        let codes: HashMap<String, Code> =
            Code::values().map(|code| (format!("{code:?}"), code)).collect();
        let mut reader = TableReader { codes, ..TableReader::default() };
        for (index, line) in text.lines().enumerate() {
            reader.line(line).map_err(|what| TableError::Line { line: index + 1, what })?;
        }
        reader.finish()
    }

    /// The names of the ports. Bit n of a set of ports is the port n.
    pub fn ports(&self) -> &[String] {
        &self.ports
    }

    /// The ports with these names.
    ///
    /// # Errors
    /// The first name that the table does not have.
    pub fn port_set<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<u16, String> {
        names.into_iter().try_fold(0, |set, name| {
            let port = self.ports.iter().position(|port| port == name);
            port.map(|port| set | 1 << port).ok_or_else(|| name.to_owned())
        })
    }

    /// The number of forms of instructions.
    #[cfg(test)]
    pub(crate) fn forms(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn entry(&self, code: Code, memory: bool) -> Option<&Entry> {
        let place = self.places.get(&(code, memory))?;
        self.entries.get(*place as usize)
    }
}

/// Prints the name only, because thousands of entries say little.
impl fmt::Debug for UopTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("UopTable").field(&self.name).finish()
    }
}

#[derive(Default)]
struct TableReader {
    name: String,
    codes: HashMap<String, Code>,
    words: HashMap<&'static str, u16>,
    fusion: Option<Fusion>,
    simple: bool,
    renamed_operands: bool,
    ports: Vec<String>,
    entries: Vec<Entry>,
    places: HashMap<(Code, bool), u32>,
    begun: bool,
    ended: bool,
}

const SETS: [&str; 6] =
    ["load", "vector-load", "store-address", "store-data", "branch", "three-part-address"];

impl TableReader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if line.starts_with('#') || line.trim().is_empty() {
            return Ok(());
        }
        if self.ended {
            return Err("there is text behind `end`".to_owned());
        }
        if let Some(forms) = line.strip_prefix("  ") {
            return self.forms(forms);
        }
        if let Some((entry, forms)) = line.split_once(':') {
            self.entries.push(parse_entry(entry)?);
            return self.forms(forms);
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if !self.begun && word != "uops" {
            return Err("a table begins with `uops 1`".to_owned());
        }
        match word {
            "uops" if rest == "1" => self.begun = true,
            "uops" => return Err(format!("format {rest}; this version reads format 1")),
            "name" => self.name = rest.to_owned(),
            "simple" => self.simple = true,
            "renamed-operands" => self.renamed_operands = true,
            "ports" => {
                self.ports = rest.split_whitespace().map(str::to_owned).collect();
                if self.ports.len() > 16 {
                    return Err(format!("{} ports; at most 16", self.ports.len()));
                }
            }
            "fusion" => {
                let fusion = Fusion::of_name(rest);
                self.fusion = Some(fusion.ok_or_else(|| format!("no maker is called {rest}"))?);
            }
            "end" => self.ended = true,
            _ => {
                let known = SETS.into_iter().find(|known| *known == word);
                let known = known.ok_or_else(|| format!("`{word}` is unknown"))?;
                let set = u16::from_str_radix(rest, 16);
                self.words
                    .insert(known, set.map_err(|_| format!("`{rest}` is not a set of ports"))?);
            }
        }
        Ok(())
    }

    fn forms(&mut self, forms: &str) -> Result<(), String> {
        let place = self.entries.len().checked_sub(1).ok_or("these forms have no entry")? as u32;
        for form in forms.split_whitespace() {
            let (name, operands) = form.split_once('/').ok_or_else(|| format!("`{form}`"))?;
            let code = self.codes.get(name);
            let code = code.ok_or_else(|| format!("no instruction is called {name}"))?;
            let memory = match operands {
                "m" => true,
                "r" => false,
                _ => return Err(format!("`{form}` ends in neither /r nor /m")),
            };
            if self.places.insert((*code, memory), place).is_some() {
                return Err(format!("{form} has two entries"));
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<UopTable, TableError> {
        if !self.ended {
            return Err(TableError::Missing("end"));
        }
        let vector_load = self.words.remove("vector-load");
        let three_part_address = self.words.remove("three-part-address");
        let mut set = |name| self.words.remove(name).ok_or(TableError::Missing(name));
        let [load, store_address, store_data, branch] =
            [set("load")?, set("store-address")?, set("store-data")?, set("branch")?];
        // An instruction without an entry is one uop that computes where an addition can.
        let addition = self.places.get(&(Code::Add_r64_rm64, false));
        let addition = addition.and_then(|place| self.entries.get(*place as usize));
        Ok(UopTable {
            name: self.name,
            load,
            vector_load: vector_load.unwrap_or(load),
            store_address,
            store_data,
            branch,
            three_part_address,
            fusion: self.fusion.ok_or(TableError::Missing("fusion"))?,
            simple: self.simple,
            renamed_operands: self.renamed_operands,
            ports: self.ports,
            default: addition.cloned().ok_or(TableError::Missing("Add_r64_rm64/r"))?,
            entries: self.entries,
            places: self.places,
        })
    }
}

/// `slots latency uop,uop…`.
fn parse_entry(text: &str) -> Result<Entry, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [slots, latency, uops] = words[..] else {
        return Err("an entry has slots, latency and uops".to_owned());
    };
    let number = |text: &str, most: u16| {
        let value = text.parse().ok().filter(|value| (1..=most).contains(value));
        value.ok_or_else(|| format!("`{text}` is not a number from 1 to {most}"))
    };
    let uop = |text: &str| {
        let (ports, kept) = text.split_once('*').unwrap_or((text, ""));
        let ports = u16::from_str_radix(ports, 16).ok().filter(|ports| *ports != 0);
        Ok(ComputingUop {
            ports: ports.ok_or_else(|| format!("`{text}` is not a uop"))?,
            kept: if kept.is_empty() { 0 } else { number(kept, 255)? as u8 },
        })
    };
    let computing: Result<Vec<ComputingUop>, String> =
        if uops == "-" { Ok(Vec::new()) } else { uops.split(',').map(uop).collect() };
    let computing = computing?;
    if computing.len() > 64 {
        return Err("an instruction has at most 64 uops".to_owned());
    }
    Ok(Entry { slots: number(slots, 64)? as u8, latency: number(latency, 10_000)?, computing })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "uops 1\nports A B\nload 1\nstore-address 1\nstore-data 2\nbranch 2\n\
                         fusion amd\n1 3 2,1*7: Add_r64_rm64/r\n  Nopw/r\nend\n";

    #[test]
    fn shipped_tables_are_read() {
        for (name, _) in SHIPPED {
            let table = UopTable::find(name).unwrap();
            assert!(table.simple || table.forms() > 2000, "{name}: {}", table.forms());
            assert!(table.ports().len() <= 16);
            assert_eq!(format!("{table:?}"), format!("UopTable({name:?})"));
            assert!(Arc::ptr_eq(&table, &UopTable::find(name).unwrap()));
        }
        assert!(UopTable::find("z80").unwrap_err().to_string().starts_with("no table of uops"));
    }

    #[test]
    fn an_entry_has_slots_latency_and_uops() {
        let table = UopTable::parse(SMALL).unwrap();
        let entry = table.entry(Code::Nopw, false).unwrap();
        let uop = |ports, kept| ComputingUop { ports, kept };
        assert_eq!((entry.slots, entry.latency), (1, 3));
        assert_eq!(entry.computing, [uop(2, 0), uop(1, 7)]);
        assert_eq!(table.entry(Code::Nopw, true), None);
        assert_eq!(table.port_set(["B", "A"].into_iter()), Ok(3));
        assert_eq!(table.port_set(["C"].into_iter()), Err("C".to_owned()));
    }

    #[test]
    fn damaged_tables_name_the_line() {
        let cases = [
            ("uops 1", "uops 2", "line 1: format 2"),
            ("uops 1\n", "", "line 1: a table begins"),
            ("fusion amd", "fusion via", "line 7: no maker"),
            ("Nopw/r", "Nopx/r", "line 9: no instruction is called Nopx"),
            ("Nopw/r", "Add_r64_rm64/r", "line 9: Add_r64_rm64/r has two entries"),
            ("Nopw/r", "Nopw", "line 9: `Nopw`"),
            ("1 3 2", "0 3 2", "line 8: `0` is not a number"),
            ("2,1*7", "2,0", "line 8: `0` is not a uop"),
            ("branch 2\n", "", "the table ends early: `branch`"),
            ("end\n", "", "the table ends early: `end`"),
            ("end\n", "end\nend\n", "line 11: there is text behind"),
        ];
        for (from, to, start) in cases {
            let damaged = SMALL.replacen(from, to, 1);
            let message = UopTable::parse(&damaged).unwrap_err().to_string();
            assert!(message.starts_with(start), "{message}\nexpected: {start}");
        }
    }

    #[test]
    fn any_damage_is_an_error_or_a_table() {
        let mut state = 5_u64;
        for _ in 0..60 {
            let mut bytes = SMALL.as_bytes().to_vec();
            for _ in 0..3 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 24) as u8 & 0x7f;
            }
            let _ = UopTable::parse(&String::from_utf8_lossy(&bytes));
        }
    }
}
