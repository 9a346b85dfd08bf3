//! The tables of a recording, as Parquet.
//!
//! Input: a recording and its kernel. Output: a directory with a file for each table.

use anyhow::Result;
use exchange::callgrind::CallgrindEvents;
use exchange::in_time;
use exchange::parquet::{self, TableSchema};
use host::output;
use services::Attribution;
use std::path::Path;

/// Writes every table of a recording to `directory`, and gives their names. The invocations are
/// written as the recording is read: it may be longer than memory.
///
/// ```
/// use services::Attribution;
///
/// let home = road::examples::home();
/// let attribution = Attribution::open(&home.path().join("vmlinux"), None, &[])?;
/// let directory = home.path().join("loop.tables");
/// let tables = road::tables::write(&attribution, &home.path().join("loop.rec"), &directory)?;
/// assert_eq!(tables, ["services", "functions", "chains", "invocations", "tasks"]);
/// assert!(directory.join("services.parquet").is_file());
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// The recording is damaged or of another kernel, or the directory cannot be written.
pub fn write(
    attribution: &Attribution,
    recording: &Path,
    directory: &Path,
) -> Result<Vec<&'static str>> {
    let observed = attribution.observed(recording)?;
    let (events, conditions) =
        (CallgrindEvents::of(&observed.table), observed.conditions_by_name());
    output::whole_directory(directory, |directory| {
        let path = |schema: &TableSchema| directory.join(format!("{}.parquet", schema.name));
        let tasks = output::write_with(&path(&parquet::INVOCATIONS), |out| {
            in_time::invocations(attribution, recording, out, &conditions)
        })?;
        let calls = &observed.calls;
        for (schema, bytes) in [
            (parquet::SERVICES, parquet::services(&observed.table, calls, events, &conditions)?),
            (parquet::FUNCTIONS, parquet::functions(calls, events, &conditions)?),
            (parquet::CHAINS, parquet::chains(calls, events, &conditions)?),
            (parquet::TASKS, tasks),
        ] {
            output::write(&path(&schema), &bytes)?;
        }
        let schemas = [
            parquet::SERVICES,
            parquet::FUNCTIONS,
            parquet::CHAINS,
            parquet::INVOCATIONS,
            parquet::TASKS,
        ];
        Ok(schemas.map(|schema| schema.name).to_vec())
    })
}
