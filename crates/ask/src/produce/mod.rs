//! Makes the rows of tables, all that need the recording's executions in one walk.
//!
//! Input: a recording, and what is wanted of which tables. Output: batches of rows, to sinks. Rows
//! come in no order that can be relied on. A walk ends early when no sink wants more.

mod conditions;
mod counted;
mod executions;
mod invocations;
mod locks;
mod misses;
mod places;
mod probes;

use crate::batch::TableRequest;
use crate::recording::AskedRecording;
use crate::schema::TableId;
use anyhow::{Result, ensure};
use counted::CountedBlocks;
use execution::executions::NoDataAccesses;
use execution::walk::{Observer, SideBySide};
use executions::ExecutionTables;
use image::{Image, vmlinux};
use invocations::InvocationTables;
use memory::misses::events::MissEventsWalk;
use misses::MissesTable;
pub use places::addresses_at;
use probes::ProbedInstructions;
use services::invocations::InvocationsWalk;

/// Makes the rows of tables of a recording.
///
/// # Errors
/// The recording is damaged or of another kernel, or lacks what a table needs.
pub fn produce(recording: &AskedRecording, requests: Vec<TableRequest>) -> Result<()> {
    let (mut invocations, mut executions) = (Vec::new(), Vec::new());
    let (mut misses, mut blocks, mut probes) = (None, None, None);
    for request in requests {
        match request.table {
            TableId::Conditions => conditions::produce(recording, request)?,
            TableId::Locks => locks::produce(recording, request)?,
            TableId::Services | TableId::Interrupts | TableId::Calls | TableId::Switches => {
                invocations.push(request);
            }
            TableId::Tasks | TableId::Functions | TableId::Branches | TableId::Accesses => {
                executions.push(request);
            }
            TableId::Misses => misses = Some(request),
            TableId::Blocks => blocks = Some(request),
            TableId::Probes => probes = Some(request),
        }
    }
    let only_once = [&misses, &blocks, &probes];
    if only_once.iter().any(|it| it.is_some()) || !(invocations.is_empty() && executions.is_empty())
    {
        walk(recording, Requests { invocations, executions, misses, blocks, probes })?;
    }
    Ok(())
}

/// What is wanted of the tables that need the recording's executions.
struct Requests {
    invocations: Vec<TableRequest>,
    executions: Vec<TableRequest>,
    misses: Option<TableRequest>,
    blocks: Option<TableRequest>,
    probes: Option<TableRequest>,
}

fn walk(recording: &AskedRecording, requests: Requests) -> Result<()> {
    let Requests { invocations, executions, misses, blocks, probes } = requests;
    let attribution = &recording.attribution;
    let (symbols, binding) = (&attribution.symbols, &attribution.binding);
    let opened = attribution.opened(&recording.path, "tables")?;
    let header = opened.header().clone();
    let kernel = vmlinux::path(&recording.kernel);
    let wants_data = executions.iter().any(|request| request.table == TableId::Accesses);
    ensure!(opened.has_data() || !wants_data, NoDataAccesses);

    let mut invocations = (!invocations.is_empty()).then(|| {
        let track = InvocationTables::new(recording, invocations);
        // Only services have counts on a machine.
        let machine = attribution.machines.first().filter(|_| track.wants_machine());
        InvocationsWalk::new(symbols, binding, machine, track)
    });
    let mut executions = match executions.is_empty() {
        true => None,
        false => Some(ExecutionTables::new(recording, &header, executions)?),
    };
    let mut misses = match misses {
        None => None,
        Some(request) => {
            let machine = misses::machine(recording)?;
            let track = MissesTable::new(request);
            Some(MissEventsWalk::new(&header, symbols, &kernel, machine, track)?)
        }
    };
    let image: Option<Image> =
        if blocks.is_some() { Some(counted::image(recording, &kernel)?) } else { None };
    let mut blocks = image.as_ref().zip(blocks).map(|(image, it)| CountedBlocks::new(image, it));

    let mut probes =
        probes.map(|request| ProbedInstructions::new(recording, request)).transpose()?;

    let mut observers: Vec<&mut (dyn Observer + Send)> = Vec::new();
    observers.extend(invocations.iter_mut().map(|it| it as &mut (dyn Observer + Send)));
    observers.extend(executions.iter_mut().map(|it| it as &mut (dyn Observer + Send)));
    observers.extend(misses.iter_mut().map(|it| it as &mut (dyn Observer + Send)));
    observers.extend(blocks.iter_mut().map(|it| it as &mut (dyn Observer + Send)));
    observers.extend(probes.iter_mut().map(|it| it as &mut (dyn Observer + Send)));
    match observers.pop() {
        Some(only) if observers.is_empty() => opened.walk(only)?,
        last => {
            observers.extend(last);
            opened.walk(&mut SideBySide(observers))?
        }
    };

    if let Some(invocations) = invocations {
        invocations.finish().finish();
    }
    if let Some(executions) = executions {
        executions.finish();
    }
    if let Some(misses) = misses {
        misses.finish().finish();
    }
    if let Some(probes) = probes {
        probes.finish()?;
    }
    match blocks {
        None => Ok(()),
        Some(blocks) => blocks.finish(),
    }
}
