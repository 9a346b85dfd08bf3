//! Reads and writes the profile file (`*.klp`): JSON with a checksum.
//!
//! Input: a profile, or the text of a file. Output: the reverse. Rows of hexadecimal addresses and
//! counts are sorted, so that equal profiles are equal bytes. A damaged file gives an error.

use crate::shape::{self, FunctionShape};
use crate::{BlockEpochsTable, Process, Profile, ProfileMerge, ProfileSource};
use image::BuildId;
use image::address::LinkAddr;
use image::module::ModuleIdentity;
use image::sealed::{self, SealError};
use layout::graph::{EdgeKind, SeedClass};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("not a profile")]
    Json(#[from] serde_json::Error),
    #[error("a damaged profile")]
    Seal(#[from] SealError),
    #[error(
        "a profile of format {0}; this version reads formats {OLDEST} to {FORMAT}: make it again"
    )]
    Format(u32),
    #[error("\"{0}\" is not a hexadecimal address")]
    Address(String),
    #[error("\"{0}\" are not epochs in words of 16 hexadecimal digits, as many words in each row")]
    Epochs(String),
    #[error("\"{0}\" is neither a kind of edge nor a class of seed")]
    Name(String),
    #[error("\"{0}\" is not the shape of a function")]
    Shape(String),
}

/// 2: joint misses; 3: temporal-relationship edges; 4: in which epochs blocks ran; 5: the field's
/// terms as names, and a checksum; 6: modules; 7: the shapes of functions.
const FORMAT: u32 = 7;
/// The oldest format that is still read. The aliases of [`ProfileDocument`] are its names. It has
/// no checksum.
const OLDEST: u32 = 4;

#[derive(Serialize, Deserialize)]
struct ProfileDocument {
    kernlane_profile: u32,
    kernel: BuildId,
    merge: ProfileMerge,
    sources: Vec<ProfileSource>,
    blocks: Vec<(String, u64)>,
    edges: Vec<(String, String, String, u64)>,
    calls: Vec<(String, String, u64)>,
    seeds: Vec<(String, String, u64)>,
    joint_misses: Vec<(String, String, u64)>,
    #[serde(alias = "alternations")]
    temporal_edges: Vec<(String, String, u64)>,
    #[serde(alias = "presences")]
    block_epochs: Vec<(String, String)>,
    #[serde(default)]
    modules: Vec<ModuleIdentity>,
    processes: Vec<ProcessRow>,
    outside: Vec<(String, u64)>,
    /// Address, name, rank among its namesakes, their number, blocks.
    #[serde(default)]
    shapes: Vec<(String, String, u32, u32, String)>,
    /// Written by [`sealed::json`].
    #[serde(default, skip_serializing)]
    sha256: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct ProcessRow {
    name: String,
    kernel_instructions: u64,
    user_instructions: u64,
    blocks: Vec<(String, u64)>,
}

const EDGE_KINDS: [(EdgeKind, &str); 4] = [
    (EdgeKind::FallThrough, "fall-through"),
    (EdgeKind::Branch, "branch"),
    (EdgeKind::Jump, "jump"),
    (EdgeKind::Indirect, "indirect"),
];

const SEED_CLASSES: [(SeedClass, &str); 4] = [
    (SeedClass::Interrupt, "interrupt"),
    (SeedClass::PageFault, "page-fault"),
    (SeedClass::SystemCall, "system-call"),
    (SeedClass::Other, "other"),
];

impl Profile {
    /// The file's bytes.
    pub fn to_json(&self) -> String {
        let document = ProfileDocument {
            kernlane_profile: FORMAT,
            kernel: self.build_id.clone(),
            merge: self.merge,
            sources: self.sources.clone(),
            blocks: count_rows(&self.blocks),
            edges: (self.edges.iter())
                .map(|((from, to), (kind, count))| {
                    (hex(*from), hex(*to), name_of(&EDGE_KINDS, *kind), *count)
                })
                .collect(),
            calls: pair_rows(&self.calls),
            seeds: (self.seeds.iter())
                .map(|((block, class), count)| {
                    (hex(*block), name_of(&SEED_CLASSES, *class), *count)
                })
                .collect(),
            joint_misses: pair_rows(&self.joint_misses),
            temporal_edges: pair_rows(&self.temporal_edges),
            block_epochs: epoch_rows(&self.block_epochs),
            modules: self.modules.clone(),
            processes: self.processes.iter().map(process_row).collect(),
            outside: count_rows(&self.outside),
            shapes: self.shapes.iter().map(shape_row).collect(),
            sha256: None,
        };
        let text =
            serde_json::to_string(&document).expect("rows of strings and integers are always JSON");
        sealed::json(&text)
    }

    /// Reads what `to_json` wrote, and the format before it.
    ///
    /// # Errors
    /// Not JSON, another format, a damaged file, or a row with an unknown word.
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        let document: ProfileDocument = serde_json::from_str(text)?;
        if !(OLDEST..=FORMAT).contains(&document.kernlane_profile) {
            return Err(ProfileError::Format(document.kernlane_profile));
        }
        let is_sealed = document.kernlane_profile > OLDEST;
        sealed::verify_json(text, document.sha256.as_deref(), is_sealed)?;
        let edge = |(from, to, kind, count): (String, String, String, u64)| {
            Ok(((address(&from)?, address(&to)?), (named(&EDGE_KINDS, &kind)?, count)))
        };
        let seed = |(block, class, count): (String, String, u64)| {
            Ok(((address(&block)?, named(&SEED_CLASSES, &class)?), count))
        };
        let process = |row: ProcessRow| {
            let process = Process {
                kernel_instructions: row.kernel_instructions,
                user_instructions: row.user_instructions,
                blocks: counts(row.blocks)?,
            };
            Ok((row.name, process))
        };
        Ok(Self {
            build_id: document.kernel,
            merge: document.merge,
            sources: document.sources,
            blocks: counts(document.blocks)?,
            edges: document.edges.into_iter().map(edge).collect::<Result<_, ProfileError>>()?,
            calls: pairs(document.calls)?,
            seeds: document.seeds.into_iter().map(seed).collect::<Result<_, ProfileError>>()?,
            joint_misses: pairs(document.joint_misses)?,
            temporal_edges: pairs(document.temporal_edges)?,
            block_epochs: block_epochs(document.block_epochs)?,
            modules: document.modules,
            processes: document
                .processes
                .into_iter()
                .map(process)
                .collect::<Result<_, ProfileError>>()?,
            outside: counts(document.outside)?,
            shapes: document.shapes.into_iter().map(shape).collect::<Result<_, ProfileError>>()?,
        })
    }
}

fn process_row((name, process): (&String, &Process)) -> ProcessRow {
    ProcessRow {
        name: name.clone(),
        kernel_instructions: process.kernel_instructions,
        user_instructions: process.user_instructions,
        blocks: count_rows(&process.blocks),
    }
}

fn shape_row((addr, function): (&LinkAddr, &FunctionShape)) -> (String, String, u32, u32, String) {
    let FunctionShape { name, rank, namesakes, blocks } = function;
    (hex(*addr), name.clone(), *rank, *namesakes, shape::to_text(blocks))
}

fn shape(
    (addr, name, rank, namesakes, text): (String, String, u32, u32, String),
) -> Result<(LinkAddr, FunctionShape), ProfileError> {
    let blocks = shape::from_text(&text).ok_or(ProfileError::Shape(text))?;
    Ok((address(&addr)?, FunctionShape { name, rank, namesakes, blocks }))
}

fn count_rows(counts: &BTreeMap<LinkAddr, u64>) -> Vec<(String, u64)> {
    counts.iter().map(|(addr, count)| (hex(*addr), *count)).collect()
}

fn pair_rows(counts: &BTreeMap<(LinkAddr, LinkAddr), u64>) -> Vec<(String, String, u64)> {
    counts.iter().map(|((a, b), count)| (hex(*a), hex(*b), *count)).collect()
}

fn pairs(
    rows: Vec<(String, String, u64)>,
) -> Result<BTreeMap<(LinkAddr, LinkAddr), u64>, ProfileError> {
    rows.into_iter().map(|(a, b, count)| Ok(((address(&a)?, address(&b)?), count))).collect()
}

fn counts(rows: Vec<(String, u64)>) -> Result<BTreeMap<LinkAddr, u64>, ProfileError> {
    rows.into_iter().map(|(text, count)| Ok((address(&text)?, count))).collect()
}

fn epoch_rows(block_epochs: &BlockEpochsTable) -> Vec<(String, String)> {
    let row = |words: &Vec<u64>| words.iter().map(|word| format!("{word:016x}")).collect();
    block_epochs.blocks.iter().map(|(addr, words)| (hex(*addr), row(words))).collect()
}

fn block_epochs(rows: Vec<(String, String)>) -> Result<BlockEpochsTable, ProfileError> {
    let mut found = BlockEpochsTable {
        words: rows.first().map_or(0, |(_, row)| row.len() / 16),
        ..BlockEpochsTable::default()
    };
    for (addr, row) in rows {
        let word = |digits: &[u8]| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        let words: Option<Vec<u64>> = row.as_bytes().chunks(16).map(word).collect();
        match words.filter(|words| words.len() == found.words && row.len() == 16 * found.words) {
            Some(words) => found.blocks.insert(address(&addr)?, words),
            None => return Err(ProfileError::Epochs(row)),
        };
    }
    Ok(found)
}

fn hex(addr: LinkAddr) -> String {
    format!("{addr:x}")
}

fn address(text: &str) -> Result<LinkAddr, ProfileError> {
    u64::from_str_radix(text, 16).map(LinkAddr).map_err(|_| ProfileError::Address(text.to_owned()))
}

fn name_of<T: PartialEq>(names: &[(T, &str)], value: T) -> String {
    let row = names.iter().find(|(known, _)| *known == value);
    row.map_or_else(String::new, |(_, name)| (*name).to_owned())
}

fn named<T: Copy>(names: &[(T, &str)], name: &str) -> Result<T, ProfileError> {
    let found = names.iter().find(|(_, known)| *known == name);
    found.map(|(value, _)| *value).ok_or_else(|| ProfileError::Name(name.to_owned()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn example() -> Profile {
        Profile {
            build_id: BuildId("5f3c".into()),
            merge: ProfileMerge::Sum,
            sources: vec![ProfileSource {
                workload: "net".into(),
                seed: 1,
                kernel_instructions: 900,
                user_instructions: 100,
                part: None,
                recorded_on: None,
            }],
            blocks: BTreeMap::from([(LinkAddr(0x1000), 7), (LinkAddr(0x1010), 5)]),
            edges: BTreeMap::from([(
                (LinkAddr(0x1000), LinkAddr(0x1010)),
                (EdgeKind::FallThrough, 5),
            )]),
            calls: BTreeMap::from([((LinkAddr(0x1010), LinkAddr(0x1000)), 2)]),
            seeds: BTreeMap::from([((LinkAddr(0x1000), SeedClass::SystemCall), 3)]),
            joint_misses: BTreeMap::from([((LinkAddr(0x1000), LinkAddr(0x1010)), 4)]),
            temporal_edges: BTreeMap::from([((LinkAddr(0x1000), LinkAddr(0x1010)), 6)]),
            block_epochs: BlockEpochsTable {
                words: 1,
                blocks: BTreeMap::from([(LinkAddr(0x1000), vec![0b101])]),
            },
            modules: vec![ModuleIdentity { name: "veth".into(), build_id: "ca".into() }],
            processes: BTreeMap::from([("sh".to_owned(), Process::default())]),
            outside: BTreeMap::from([(LinkAddr(0xffff_ffff_c000_0000), 9)]),
            shapes: BTreeMap::from([(
                LinkAddr(0x1000),
                FunctionShape {
                    name: "f".into(),
                    rank: 0,
                    namesakes: 2,
                    blocks: shape::from_text("16c1f 4s").unwrap(),
                },
            )]),
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let profile = example();
        assert_eq!(Profile::from_json(&profile.to_json()).unwrap(), profile);
    }

    #[test]
    fn a_damaged_profile_is_refused() {
        let text = example().to_json();
        sealed::assert_damage_is_noticed(&text, |text| Profile::from_json(text).ok());
    }

    /// The example in the format without a checksum.
    fn old_json() -> String {
        let sealed = example().to_json();
        let (fields, _) = sealed.rsplit_once(",\n").unwrap();
        format!("{fields}}}\n")
            .replace("\"kernlane_profile\":7", "\"kernlane_profile\":4")
            .replace("\"temporal_edges\"", "\"alternations\"")
            .replace("\"block_epochs\"", "\"presences\"")
    }

    #[test]
    fn broken_rows_are_named() {
        let broken = |from: &str, to: &str| {
            Profile::from_json(&old_json().replace(from, to)).unwrap_err().to_string()
        };
        assert!(broken("fall-through", "fell").contains("\"fell\" is neither"));
        assert!(broken("0000000000000005", "00000000000000g5").contains("are not epochs"));
        assert!(broken("0000000000000005", "5").contains("are not epochs"));
        assert!(
            broken("[\"1000\",7]", "[\"zz\",7]").contains("\"zz\" is not a hexadecimal address")
        );
        assert!(broken("16c1f 4s", "16c1f 4z").contains("is not the shape of a function"));
        assert!(broken("\"kernlane_profile\":4", "\"kernlane_profile\":1").contains("format 1"));
        assert!(broken("\"kernlane_profile\":4", "\"kernlane_profile\":5").contains("damaged"));
    }

    #[test]
    fn format_4_is_read() {
        assert_eq!(Profile::from_json(&old_json()).unwrap(), example());
    }

    #[test]
    fn a_damaged_checksum_and_format_number_are_no_old_profile() {
        let text = example().to_json().replace("\"kernlane_profile\":7", "\"kernlane_profile\":4");
        let checksum = text.find("\"sha256\"").unwrap();
        for at in checksum - 1..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] ^= 1;
            assert!(Profile::from_json(std::str::from_utf8(&damaged).unwrap()).is_err());
        }
        assert!(Profile::from_json(&text).is_err());
    }
}
