//! Recordings opened with their kernels, to be asked in SQL.
//!
//! Input: recordings by name, and how to open them. Output: a database.

use crate::opened::{OpenedKernel, Opening};
use crate::probed::{self, Probing};
use anyhow::{Context, Result};
use ask::named::{self, NamedQuestion};
use ask::recording::AskedRecording;
use ask::sql::{Database, FileTable};
use guest::record::RecordingSummary;
use host::recording::Recording;
use sim::MachineModel;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The machine with coherent caches whose cycles the locks have.
pub const LOCK_MACHINE: &str = "server-8";

/// Opens recordings (directories) and tables of Parquet files (a file, or a directory of them),
/// each with its name in SQL. The first machine of `opening` is
/// that of services and misses; locks are on the first one with coherent caches, or on
/// [`LOCK_MACHINE`].
///
/// ```
/// use ask::form::CsvAnswer;
/// use execution::part::RecordingPart;
/// use road::opened::Opening;
/// use road::probed::Probing;
///
/// let home = road::examples::home();
/// let recordings = [("main".to_owned(), home.path().join("loop.rec"))];
/// let opening =
///     Opening { kernel: None, annotations: None, machines: &[], part: RecordingPart::WHOLE };
/// let database = road::asked::open(&opening, &recordings, &[], &Probing::default())?;
///
/// let mut csv = Vec::new();
/// let question = "SELECT value FROM conditions WHERE key = 'workload'";
/// database.ask(question, &[], &mut CsvAnswer::new(&mut csv))?;
/// assert_eq!(csv, b"value\r\nloop\r\n");
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// A recording, its kernel or a machine cannot be read, or a name is no name in SQL. Of probes: as
/// [`probed::probes`].
pub fn open(
    opening: &Opening<'_>,
    recordings: &[(String, PathBuf)],
    tables: &[(String, PathBuf)],
    probes: &Probing<'_>,
) -> Result<Database> {
    let tables = tables.iter().map(|(name, path)| Ok((name.clone(), FileTable::open(path)?)));
    let tables = tables.collect::<Result<Vec<_>>>()?;
    let mut opened = Vec::new();
    for (name, path) in recordings {
        let mut asked = Arc::new(recording(opening, path, Vec::new())?);
        if !probes.texts.is_empty() {
            let values = probed::probes(&asked, probes)?;
            let alone = Arc::get_mut(&mut asked).context("the recording is still read")?;
            alone.probes = Some(values);
        }
        opened.push((name.clone(), asked));
    }
    Ok(Database::open(opened, tables)?)
}

/// Opens one recording (a directory), as [`open`] does. `machines`: models to simulate, behind
/// those that `opening` names.
///
/// ```
/// use execution::part::RecordingPart;
/// use road::opened::Opening;
///
/// let home = road::examples::home();
/// let opening =
///     Opening { kernel: None, annotations: None, machines: &[], part: RecordingPart::WHOLE };
/// let machines = vec![machines::find("server-32k")?.model];
/// let recording = road::asked::recording(&opening, &home.path().join("loop.rec"), machines)?;
/// assert_eq!(recording.attribution.machines[0].name, "server-32k");
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// The recording, its kernel or a machine cannot be read.
pub fn recording(
    opening: &Opening<'_>,
    path: &Path,
    machines: Vec<MachineModel>,
) -> Result<AskedRecording> {
    let OpenedKernel { path: kernel, mut attribution } = opening.open(path)?;
    attribution.machines.extend(machines);
    let coherent = attribution.machines.iter().find(|machine| machine.coherence.is_some());
    let lock_machine = match coherent {
        Some(machine) => machine.clone(),
        None => machines::find(LOCK_MACHINE)?.model,
    };
    Ok(AskedRecording {
        path: path.to_owned(),
        kernel,
        attribution,
        lock_machine: Some(lock_machine),
        modules: modules(path),
        probes: None,
    })
}

/// All questions that have a name: the shipped ones, and the user's in
/// `$XDG_CONFIG_HOME/kernlane/queries` (`~/.config/kernlane/queries`).
///
/// ```
/// let questions = road::asked::questions()?;
/// assert!(questions.iter().any(|question| question.name == "top-calls"));
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// A file of the user cannot be read, or is no question.
pub fn questions() -> Result<Vec<NamedQuestion>> {
    let place = place("XDG_CONFIG_HOME", ".config");
    named::all(place.map(|place| place.join("kernlane").join("queries")).as_deref())
}

/// A directory of the user, from this variable or below the home directory.
fn place(variable: &str, below_home: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    set(variable).or_else(|| Some(set("HOME")?.join(below_home)))
}

/// Where the modules of a recording ran. Recordings of earlier versions do not say it.
fn modules(recording: &Path) -> Vec<(std::ops::Range<u64>, String)> {
    let summary = RecordingSummary::read(&Recording::at(recording));
    let modules = summary.map_or_else(|_| Vec::new(), |summary| summary.modules);
    let ranges = modules.iter().flat_map(|module| {
        module.sections.iter().filter_map(|section| {
            let start = section.addr()?.0;
            Some((start..start.saturating_add(section.size), module.identity.name.clone()))
        })
    });
    ranges.collect()
}
