//! What a recording depends on.

use crate::batch::{Names, Rows, TableRequest};
use crate::recording::AskedRecording;
use anyhow::Result;

pub(super) fn produce(recording: &AskedRecording, request: TableRequest) -> Result<()> {
    let opened = recording.attribution.opened(&recording.path, "conditions")?;
    let header = opened.header();
    let known = [
        ("workload", header.workload.clone()),
        ("build_id", header.build_id.clone()),
        ("seed", header.seed.to_string()),
        ("cpus", header.cpus.to_string()),
        ("data", u8::from(opened.has_data()).to_string()),
    ];
    let (mut names, mut rows) = (Names::default(), Rows::new(request));
    let others = header.conditions.iter().map(|(key, value)| (key.as_str(), value.clone()));
    for (key, value) in known.into_iter().chain(others) {
        let cells = [names.id(key).into(), names.id(&value).into()];
        rows.push(&mut names, cells);
    }
    rows.finish(&mut names);
    Ok(())
}
