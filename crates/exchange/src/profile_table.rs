//! A profile as one table of Parquet, in which rows can be added: profiles of many machines become
//! one by SQL.
//!
//! Input: a profile; or files of such tables, and a kernel. Output: a table; or the profile of the
//! kernel, with the sum of all counts. Counts of each process and working-set epochs are not in the
//! table: they cannot be added. `docs/reference/exports.md` describes the columns.

use crate::parquet::{ColumnType, TableCell, TableSchema, table};
use crate::{Format, Make};
use anyhow::{Context, Result, bail, ensure};
use image::BuildId;
use image::address::LinkAddr;
use image::module::ModuleIdentity;
use layout::graph::{EdgeKind, SeedClass};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use profile::{Profile, ProfileSource};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The format.
pub(crate) const PROFILE: Format = Format {
    name: "profile",
    about: "The counts as one Parquet table, whose rows can be added: profiles of many machines \
        become one by SQL (Spark, DuckDB)",
    make: Make::Profile(profile_table),
};

/// The columns.
const SCHEMA: TableSchema = TableSchema {
    name: "profile",
    columns: &[
        ("build_id", ColumnType::Text),
        ("kind", ColumnType::Text),
        ("source", ColumnType::Address),
        ("target", ColumnType::Address),
        ("count", ColumnType::Count),
    ],
};

const BLOCK: &str = "block";
const CALL: &str = "call";
const JOINT_MISSES: &str = "joint misses";
const TEMPORAL: &str = "temporal";
const OUTSIDE: &str = "outside";
const KERNEL_INSTRUCTIONS: &str = "kernel instructions";
const USER_INSTRUCTIONS: &str = "user instructions";
/// In front of a module's name and build id.
const MODULE: &str = "module";

const EDGES: [(EdgeKind, &str); 4] = [
    (EdgeKind::FallThrough, "fall-through"),
    (EdgeKind::Branch, "branch"),
    (EdgeKind::Jump, "jump"),
    (EdgeKind::Indirect, "indirect"),
];

const SEEDS: [(SeedClass, &str); 4] = [
    (SeedClass::Interrupt, "entry by interrupt"),
    (SeedClass::PageFault, "entry by page fault"),
    (SeedClass::SystemCall, "entry by system call"),
    (SeedClass::Other, "other entry"),
];

fn name_of<T: PartialEq>(names: &[(T, &'static str)], value: &T) -> &'static str {
    names.iter().find(|(known, _)| known == value).map_or("", |(_, name)| name)
}

fn named<T: Copy>(names: &[(T, &str)], name: &str) -> Option<T> {
    names.iter().find(|(_, known)| *known == name).map(|(value, _)| *value)
}

/// The table of a profile, ascending by kind and addresses.
fn profile_table(profile: &Profile) -> Result<Vec<u8>> {
    let mut rows: Vec<(String, Option<LinkAddr>, Option<LinkAddr>, u64)> = Vec::new();
    let mut add = |kind: &str, source, target, count| {
        rows.push((kind.to_owned(), source, target, count));
    };
    for (&at, &count) in &profile.blocks {
        add(BLOCK, Some(at), None, count);
    }
    for (&(from, to), (kind, count)) in &profile.edges {
        add(name_of(&EDGES, kind), Some(from), Some(to), *count);
    }
    for (&(at, class), &count) in &profile.seeds {
        add(name_of(&SEEDS, &class), Some(at), None, count);
    }
    for (kind, pairs) in [
        (CALL, &profile.calls),
        (JOINT_MISSES, &profile.joint_misses),
        (TEMPORAL, &profile.temporal_edges),
    ] {
        for (&(from, to), &count) in pairs {
            add(kind, Some(from), Some(to), count);
        }
    }
    for (&at, &count) in &profile.outside {
        add(OUTSIDE, Some(at), None, count);
    }
    for source in &profile.sources {
        add(KERNEL_INSTRUCTIONS, None, None, source.kernel_instructions);
        add(USER_INSTRUCTIONS, None, None, source.user_instructions);
    }
    for module in &profile.modules {
        add(&format!("{MODULE} {} {}", module.name, module.build_id), None, None, 1);
    }
    rows.sort();
    let address = |at: Option<LinkAddr>| at.map_or(TableCell::Null, |at| TableCell::Address(at.0));
    let cells = rows.into_iter().map(|(kind, source, target, count)| {
        let build_id = TableCell::from(profile.build_id.0.as_str());
        vec![build_id, kind.as_str().into(), address(source), address(target), count.into()]
    });
    table(&SCHEMA, &[], cells)
}

/// The files of a table: the file, or the Parquet files of a directory, ascending.
///
/// # Errors
/// The directory cannot be read.
pub fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(|| path.display().to_string())?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "parquet") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// The profile of `kernel` in tables: the sum of its rows. `name` is what the profile was made of.
/// Rows of other kernels are left alone.
///
/// # Errors
/// A file cannot be read or is no such table, has two builds of a module, or no row of the kernel.
pub fn read(files: &[PathBuf], kernel: &BuildId, name: &str) -> Result<Profile> {
    let mut sum = Sum {
        profile: Profile::empty(kernel.clone()),
        others: BTreeSet::new(),
        instructions: [0; 2],
        rows: 0,
    };
    for path in files {
        sum.add_file(path).with_context(|| path.display().to_string())?;
    }
    let Sum { mut profile, others, instructions, rows } = sum;
    if rows == 0 {
        let others: Vec<String> = others.into_iter().collect();
        let found = match &others[..] {
            [] => "it has no rows".to_owned(),
            ids => format!("it has rows of {}", ids.join(", ")),
        };
        bail!("no row is of the kernel with the build id {}: {found}", kernel.0);
    }
    profile.modules.sort();
    let [kernel_instructions, user_instructions] = instructions;
    profile.sources.push(ProfileSource {
        workload: name.to_owned(),
        seed: 0,
        kernel_instructions,
        user_instructions,
        part: None,
        recorded_on: None,
    });
    Ok(profile)
}

/// Rows that were added.
struct Sum {
    profile: Profile,
    /// Build ids of other kernels.
    others: BTreeSet<String>,
    /// Of the kernel, and of user mode.
    instructions: [u64; 2],
    rows: u64,
}

impl Sum {
    fn add_file(&mut self, path: &Path) -> Result<()> {
        let file = SerializedFileReader::new(File::open(path)?)?;
        let schema = file.metadata().file_metadata().schema_descr();
        let mut columns = [0; SCHEMA.columns.len()];
        for (column, (name, _)) in columns.iter_mut().zip(SCHEMA.columns) {
            let found = schema.columns().iter().position(|it| it.name() == *name);
            *column = found.with_context(|| {
                let names: Vec<&str> = SCHEMA.columns.iter().map(|(name, _)| *name).collect();
                format!(
                    "not a profile: the columns are {}, and {name} is missing",
                    names.join(", ")
                )
            })?;
        }
        for (number, row) in file.get_row_iter(None)?.enumerate() {
            self.add_row(&row?, &columns).with_context(|| format!("row {number}"))?;
        }
        Ok(())
    }

    fn add_row(&mut self, row: &Row, columns: &[usize; SCHEMA.columns.len()]) -> Result<()> {
        let [build_id, kind, source, target, count] =
            columns.map(|column| row.get_column_iter().nth(column).map(|(_, field)| field));
        let build_id = text(build_id).context("build_id")?;
        if build_id != self.profile.build_id.0 {
            self.others.insert(build_id.to_owned());
            return Ok(());
        }
        self.rows += 1;
        let kind = text(kind).context("kind")?;
        let count = whole(count).and_then(|count| u64::try_from(count).ok());
        let count = count.context("count is not a whole number of 64 bits from 0 on")?;
        let at = |field: Option<&Field>| whole(field).map(|address| LinkAddr(address as u64));
        let (source, target) = (at(source), at(target));
        let profile = &mut self.profile;
        if let Some(module) = kind.strip_prefix(MODULE).filter(|rest| rest.starts_with(' ')) {
            return add_module(&mut profile.modules, module);
        }
        let instructions = match kind {
            KERNEL_INSTRUCTIONS => Some(0),
            USER_INSTRUCTIONS => Some(1),
            _ => None,
        };
        if let Some(mode) = instructions {
            return add(&mut self.instructions[mode], count);
        }
        let source = source.with_context(|| format!("{kind} without a source"))?;
        let alone = match kind {
            BLOCK => Some(profile.blocks.entry(source).or_default()),
            OUTSIDE => Some(profile.outside.entry(source).or_default()),
            _ => named(&SEEDS, kind).map(|class| profile.seeds.entry((source, class)).or_default()),
        };
        if let Some(sum) = alone {
            return add(sum, count);
        }
        let pair = (source, target.with_context(|| format!("{kind} without a target"))?);
        let sum = match kind {
            CALL => profile.calls.entry(pair).or_default(),
            JOINT_MISSES => profile.joint_misses.entry(pair).or_default(),
            TEMPORAL => profile.temporal_edges.entry(pair).or_default(),
            _ => {
                let edge = named(&EDGES, kind).with_context(|| format!("the kind {kind:?}"))?;
                let (known, sum) = profile.edges.entry(pair).or_insert((edge, 0));
                ensure!(*known == edge, "two kinds of edge from {source} to {}", pair.1);
                sum
            }
        };
        add(sum, count)
    }
}

fn add(sum: &mut u64, count: u64) -> Result<()> {
    *sum = sum.checked_add(count).context("the sum has more than 64 bits")?;
    Ok(())
}

/// `NAME BUILD-ID`. A module without a build id ends with the space.
fn add_module(modules: &mut Vec<ModuleIdentity>, words: &str) -> Result<()> {
    let (name, build_id) = words.trim_start().split_once(' ').context("a module without a name")?;
    let module = ModuleIdentity { name: name.to_owned(), build_id: build_id.to_owned() };
    match modules.iter().find(|known| known.name == module.name) {
        None => modules.push(module),
        Some(known) => {
            ensure!(*known == module, "two builds of a module: {known} and {module}");
        }
    }
    Ok(())
}

fn text(field: Option<&Field>) -> Result<&str> {
    match field {
        Some(Field::Str(text)) => Ok(text),
        other => bail!("{} is no text", other.map_or("null".to_owned(), ToString::to_string)),
    }
}

/// A whole number, also of fewer bits.
fn whole(field: Option<&Field>) -> Option<i64> {
    match field? {
        Field::Byte(number) => Some((*number).into()),
        Field::Short(number) => Some((*number).into()),
        Field::Int(number) => Some((*number).into()),
        Field::Long(number) => Some(*number),
        Field::UInt(number) => Some((*number).into()),
        // As an address, the same bits.
        Field::ULong(number) => Some(*number as i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const HIGH: LinkAddr = LinkAddr(0xffff_ffff_8100_0000);

    fn example() -> Profile {
        let mut profile = Profile::empty(BuildId("5f3c".into()));
        let next = LinkAddr(HIGH.0 + 16);
        profile.blocks = BTreeMap::from([(HIGH, 7), (next, 5)]);
        profile.edges = BTreeMap::from([((HIGH, next), (EdgeKind::FallThrough, 5))]);
        profile.calls = BTreeMap::from([((next, HIGH), 2)]);
        profile.seeds = BTreeMap::from([((HIGH, SeedClass::SystemCall), 3)]);
        profile.joint_misses = BTreeMap::from([((HIGH, next), 4)]);
        profile.temporal_edges = BTreeMap::from([((HIGH, next), 6)]);
        profile.modules = vec![
            ModuleIdentity { name: "veth".into(), build_id: "ca".into() },
            ModuleIdentity { name: "without".into(), build_id: String::new() },
        ];
        profile.outside = BTreeMap::from([(LinkAddr(0xffff_ffff_c000_0000), 9)]);
        profile.sources = vec![ProfileSource {
            workload: "fleet".into(),
            seed: 0,
            kernel_instructions: 900,
            user_instructions: 100,
            part: None,
            recorded_on: None,
        }];
        profile
    }

    /// What is read of a directory with these files.
    fn of_files(contents: &[&[u8]]) -> Result<Profile> {
        let directory = tempfile::tempdir().unwrap();
        for (number, bytes) in contents.iter().enumerate() {
            fs::write(directory.path().join(format!("{number}.parquet")), bytes).unwrap();
        }
        fs::write(directory.path().join("_SUCCESS"), "").unwrap();
        read(&files(directory.path())?, &BuildId("5f3c".into()), "fleet")
    }

    #[test]
    fn a_profile_comes_back() {
        let bytes = profile_table(&example()).unwrap();
        assert_eq!(of_files(&[&bytes]).unwrap(), example());
    }

    #[test]
    fn rows_of_several_files_are_added_and_other_kernels_left_alone() {
        let bytes = profile_table(&example()).unwrap();
        let mut other = example();
        other.build_id = BuildId("00ae".into());
        let other = profile_table(&other).unwrap();
        let sum = of_files(&[&bytes, &other, &bytes]).unwrap();
        let one = example();
        let twice = |counts: &BTreeMap<LinkAddr, u64>| -> Vec<u64> {
            counts.values().map(|count| 2 * count).collect()
        };
        assert_eq!(sum.blocks.values().copied().collect::<Vec<_>>(), twice(&one.blocks));
        assert_eq!(sum.edges.values().next().unwrap().1, 10);
        assert_eq!(sum.sources[0].kernel_instructions, 1800);
        assert_eq!(sum.modules, one.modules);
        let error = of_files(&[&other]).unwrap_err().to_string();
        assert!(error.contains("build id 5f3c: it has rows of 00ae"), "{error}");
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        let bytes = profile_table(&example()).unwrap();
        let mut build = example();
        build.modules[0].build_id = "ff".into();
        let build = profile_table(&build).unwrap();
        let huge = {
            let mut profile = example();
            profile.blocks.insert(HIGH, i64::MAX as u64);
            profile_table(&profile).unwrap()
        };
        let unknown = table(
            &SCHEMA,
            &[],
            [vec![
                "5f3c".into(),
                "blocks".into(),
                TableCell::Address(1),
                TableCell::Address(2),
                3.into(),
            ]]
            .into_iter(),
        )
        .unwrap();
        let other_columns = table(&crate::parquet::TASKS, &[], std::iter::empty()).unwrap();
        for (files, message) in [
            (vec![&bytes, &build], "two builds of a module: veth (ca) and veth (ff)"),
            (vec![&huge, &huge, &huge], "the sum has more than 64 bits"),
            (vec![&unknown], "the kind \"blocks\""),
            (vec![&other_columns], "and build_id is missing"),
        ] {
            let files: Vec<&[u8]> = files.into_iter().map(Vec::as_slice).collect();
            let error = format!("{:#}", of_files(&files).unwrap_err());
            assert!(error.contains(message), "{error}");
        }
        for cut in [3, bytes.len() / 2, bytes.len() - 1] {
            assert!(of_files(&[&bytes[..cut]]).is_err());
        }
    }
}
