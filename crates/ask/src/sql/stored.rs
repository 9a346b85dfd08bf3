//! The tables of a question that reads several, or one again and again: on disk, with indices.
//! One walk for each recording fills all of its tables.

use super::plan::Plan;
use super::table::{AHEAD, fitting};
use super::{AskError, Shared};
use crate::batch::{Batch, BatchSink, TableRequest, Value};
use crate::produce::produce;
use crate::schema::{TableId, of, quoted};
use anyhow::anyhow;
use rusqlite::Connection;
use rusqlite::types::{ToSqlOutput, ValueRef};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

/// Gives batches of one table to the thread that stores them.
struct ToStore {
    table: TableId,
    sender: SyncSender<(TableId, Batch)>,
}

impl BatchSink for ToStore {
    fn take(&mut self, batch: Batch) -> bool {
        self.sender.send((self.table, batch)).is_ok()
    }
}

/// Makes the tables of a plan, and fills them. Tables that it does not read are empty.
pub(super) fn fill(
    connection: &mut Connection,
    shared: &Arc<Shared>,
    plan: &Plan,
) -> Result<(), AskError> {
    for (number, (schema, recording)) in shared.recordings.iter().enumerate() {
        let tables = plan.of_recording(number, schema);
        if tables.is_empty() {
            continue;
        }
        let transaction = connection.transaction()?;
        let (sender, batches) = sync_channel(AHEAD);
        let mut requests = Vec::new();
        for (table, planned) in &tables {
            let sql = of(*table).to_sql();
            transaction.execute_batch(&sql.replacen("TABLE ", &format!("TABLE {schema}."), 1))?;
            requests.push(TableRequest {
                table: *table,
                wanted: planned.columns,
                conditions: fitting(*table, &planned.conditions),
                sink: Box::new(ToStore { table: *table, sender: sender.clone() }),
            });
        }
        drop(sender);
        let walked = std::thread::scope(|scope| {
            let walk = scope.spawn(|| produce(recording, requests));
            let mut stored = Ok(());
            for (table, batch) in batches {
                stored = store(&transaction, schema, table, &batch);
                if stored.is_err() {
                    break;
                }
            }
            // Without a receiver, the walk ends.
            (walk.join(), stored)
        });
        let (walked, stored) = walked;
        stored?;
        walked
            .map_err(|_| anyhow!("the walk over the recording broke off: a fault of Kernlane"))??;
        for (table, planned) in &tables {
            let table = of(*table);
            for column in &planned.joined {
                let name = table.columns[*column].name;
                transaction.execute_batch(&format!(
                    "CREATE INDEX {schema}.{}_{name} ON {}({})",
                    table.name,
                    table.name,
                    quoted(name)
                ))?;
            }
        }
        transaction.execute_batch(&format!("PRAGMA analysis_limit = 400; ANALYZE {schema}"))?;
        transaction.commit()?;
    }
    Ok(())
}

fn store(
    connection: &Connection,
    schema: &str,
    table: TableId,
    batch: &Batch,
) -> rusqlite::Result<()> {
    let columns = of(table).columns.len();
    let marks = vec!["?"; columns].join(", ");
    let sql = format!("INSERT INTO {schema}.{} VALUES ({marks})", of(table).name);
    let mut insert = connection.prepare(&sql)?;
    for row in 0..batch.rows {
        for column in 0..columns {
            let value = match batch.value(row, column) {
                Value::Null => ValueRef::Null,
                Value::Count(count) => ValueRef::Integer(count),
                Value::Real(number) => ValueRef::Real(number),
                Value::Text(text) => ValueRef::Text(text.as_bytes()),
            };
            insert.raw_bind_parameter(column + 1, ToSqlOutput::Borrowed(value))?;
        }
        insert.raw_execute()?;
    }
    Ok(())
}
