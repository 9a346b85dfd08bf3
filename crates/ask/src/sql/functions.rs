//! Functions of SQL for recordings: percentiles, and names of addresses.

use super::Shared;
use image::address::LinkAddr;
use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};
use std::sync::Arc;

pub(super) fn add_functions(connection: &Connection, shared: &Arc<Shared>) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_aggregate_function("percentile", 2, flags, Percentile { given: None })?;
    connection.create_aggregate_function("median", 1, flags, Percentile { given: Some(50.0) })?;
    connection.create_scalar_function("hex", 1, flags, |context| hex(context))?;
    let of = shared.clone();
    connection.create_scalar_function("symbol", 1, flags, move |context| {
        symbol(&of, 0, context.get_raw(0))
    })?;
    let of = shared.clone();
    connection.create_scalar_function("symbol", 2, flags, move |context| {
        let name: String = context.get(1)?;
        let number = of.recordings.iter().position(|(known, _)| *known == name);
        let number = number.ok_or_else(|| wrong(&format!("no recording is named {name}")))?;
        symbol(&of, number, context.get_raw(0))
    })
}

fn wrong(message: &str) -> Error {
    Error::UserFunctionError(message.into())
}

/// The hexadecimal digits of an integer, as C writes them; of text and blobs, those of the bytes.
fn hex(context: &Context<'_>) -> Result<Option<String>> {
    Ok(match context.get_raw(0) {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(format!("{number:#x}")),
        ValueRef::Real(_) => return Err(wrong("hex takes an integer, a text or a blob")),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Some(bytes.iter().map(|byte| format!("{byte:02X}")).collect())
        }
    })
}

/// The symbol that holds an address, and the offset in it.
fn symbol(shared: &Shared, recording: usize, address: ValueRef<'_>) -> Result<Option<String>> {
    let ValueRef::Integer(address) = address else { return Ok(None) };
    let Some((_, recording)) = shared.recordings.get(recording) else { return Ok(None) };
    let address = address as u64;
    let symbol = recording.attribution.symbols.containing(LinkAddr(address));
    Ok(symbol.map(|symbol| match address - symbol.addr.0 {
        0 => symbol.name.clone(),
        offset => format!("{}+{offset:#x}", symbol.name),
    }))
}

/// `percentile(value, percent)`: between two values, the share of the way from the lower one.
struct Percentile {
    given: Option<f64>,
}

struct Collected {
    values: Vec<f64>,
    percent: f64,
}

impl Aggregate<Collected, Option<Value>> for Percentile {
    fn init(&self, _: &mut Context<'_>) -> Result<Collected> {
        Ok(Collected { values: Vec::new(), percent: self.given.unwrap_or(f64::NAN) })
    }

    fn step(&self, context: &mut Context<'_>, collected: &mut Collected) -> Result<()> {
        if self.given.is_none() {
            let percent: f64 = context.get(1)?;
            if !(0.0..=100.0).contains(&percent) {
                return Err(wrong("percentile takes a number from 0 to 100"));
            }
            collected.percent = percent;
        }
        match context.get_raw(0) {
            ValueRef::Null => {}
            ValueRef::Integer(count) => collected.values.push(count as f64),
            ValueRef::Real(number) => collected.values.push(number),
            _ => return Err(wrong("percentile takes numbers")),
        }
        Ok(())
    }

    fn finalize(&self, _: &mut Context<'_>, collected: Option<Collected>) -> Result<Option<Value>> {
        let Some(Collected { mut values, percent }) = collected else { return Ok(None) };
        values.sort_unstable_by(f64::total_cmp);
        let Some(last) = values.len().checked_sub(1) else { return Ok(None) };
        let place = percent / 100.0 * last as f64;
        let (low, high) = (place.floor() as usize, place.ceil() as usize);
        let share = place - place.floor();
        let value = values[low] + share * (values[high] - values[low]);
        let is_count = value.fract() == 0.0 && value.abs() < 9e15;
        Ok(Some(if is_count { Value::Integer(value as i64) } else { Value::Real(value) }))
    }
}
