//! Rows in the order of their values, for questions that group them: SQLite's own sorter writes
//! every row in full, which takes many times the space of compressed files.
//!
//! Input: rows of values. Output: the same rows, ascending by their first value, then their second,
//! and so on, as SQLite orders values. A row becomes bytes that have the same order. Rows that fill
//! the memory are sorted and written to a temporary file, each as what differs from the row before;
//! at the end these runs are merged.

use anyhow::{Context, Result, ensure};
use host::interrupt;
use rusqlite::types::{Value, ValueRef};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The bytes of rows that memory holds.
pub(super) const MEMORY: usize = 128 << 20;
/// The bytes of each run that memory holds while runs are merged.
const BUFFER: usize = 1 << 16;
/// The rows between two looks at whether the user has interrupted.
const ROWS: usize = 1 << 16;

/// Takes rows.
pub(super) struct RowSorter {
    memory: usize,
    bytes: Vec<u8>,
    /// Where each row lies in `bytes`.
    rows: Vec<Range<u32>>,
    written: Option<BufWriter<File>>,
    /// Where each run lies in the file.
    runs: Vec<Range<u64>>,
}

impl RowSorter {
    /// A sorter whose rows have up to `memory` bytes before they are written.
    pub(super) fn new(memory: usize) -> RowSorter {
        let (bytes, rows, runs) = (Vec::new(), Vec::new(), Vec::new());
        RowSorter { memory, bytes, rows, written: None, runs }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// The temporary file cannot be written, or the user has interrupted.
    pub(super) fn push<'a>(&mut self, row: impl Iterator<Item = ValueRef<'a>>) -> Result<()> {
        let start = self.bytes.len();
        row.for_each(|value| encode(value, &mut self.bytes));
        let end = u32::try_from(self.bytes.len()).context("a row of more than 4 GB")?;
        self.rows.push(start as u32..end);
        if self.rows.len().is_multiple_of(ROWS) {
            interrupt::check()?;
        }
        match self.bytes.len() < self.memory {
            true => Ok(()),
            false => self.write_run().context("a temporary file for sorting"),
        }
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        self.rows.sort_unstable_by(|a, b| of(bytes, a).cmp(of(bytes, b)));
    }

    fn write_run(&mut self) -> Result<()> {
        self.sort();
        if self.written.is_none() {
            // As SQLite's own temporary files.
            let directory = std::env::var_os("SQLITE_TMPDIR").map(PathBuf::from);
            let directory = directory.unwrap_or_else(std::env::temp_dir);
            let file = tempfile::tempfile_in(&directory);
            let file = file.with_context(|| directory.display().to_string())?;
            self.written = Some(BufWriter::new(file));
        }
        let file = self.written.as_mut().context("the file was made")?;
        let start = self.runs.last().map_or(0, |run| run.end);
        let (mut end, mut before) = (start, &[][..]);
        let mut numbers = Vec::new();
        for row in &self.rows {
            let row = of(&self.bytes, row);
            let same = before.iter().zip(row).take_while(|(a, b)| a == b).count();
            numbers.clear();
            write_number(same, &mut numbers);
            write_number(row.len() - same, &mut numbers);
            file.write_all(&numbers)?;
            file.write_all(&row[same..])?;
            end += (numbers.len() + row.len() - same) as u64;
            before = row;
        }
        self.runs.push(start..end);
        self.rows.clear();
        self.bytes.clear();
        Ok(())
    }

    /// All rows.
    ///
    /// # Errors
    /// The temporary file cannot be written or read.
    pub(super) fn finish(mut self) -> Result<SortedRows> {
        if self.runs.is_empty() {
            self.sort();
            return Ok(SortedRows::InMemory { bytes: self.bytes, rows: self.rows.into_iter() });
        }
        let wrong = "a temporary file for sorting";
        self.write_run().context(wrong)?;
        let file = self.written.context("the file was made")?;
        let file = Arc::new(file.into_inner().map_err(|error| error.into_error()).context(wrong)?);
        let mut heads = BinaryHeap::new();
        for run in self.runs {
            let part = BufReader::with_capacity(BUFFER, FilePart { file: file.clone(), left: run });
            let mut head = Head { row: Vec::new(), rest: part };
            if head.advance().context(wrong)? {
                heads.push(Reverse(head));
            }
        }
        Ok(SortedRows::Merged(heads))
    }
}

fn of<'a>(bytes: &'a [u8], row: &Range<u32>) -> &'a [u8] {
    &bytes[row.start as usize..row.end as usize]
}

/// Rows in their order.
pub(super) enum SortedRows {
    InMemory { bytes: Vec<u8>, rows: std::vec::IntoIter<Range<u32>> },
    Merged(BinaryHeap<Reverse<Head>>),
}

impl SortedRows {
    /// The values of the next row; none behind the last one.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub(super) fn next(&mut self) -> Result<Option<Vec<Value>>> {
        match self {
            SortedRows::InMemory { bytes, rows } => {
                rows.next().map(|row| decode(of(bytes, &row))).transpose()
            }
            SortedRows::Merged(heads) => {
                let Some(mut head) = heads.peek_mut() else { return Ok(None) };
                let values = decode(&head.0.row)?;
                if !head.0.advance().context("a temporary file for sorting")? {
                    PeekMut::pop(head);
                }
                Ok(Some(values))
            }
        }
    }
}

/// A run, from its next row on. Compared by that row.
pub(super) struct Head {
    row: Vec<u8>,
    rest: BufReader<FilePart>,
}

impl Head {
    /// Reads the next row. Returns whether there is one.
    fn advance(&mut self) -> Result<bool> {
        if self.rest.fill_buf()?.is_empty() {
            return Ok(false);
        }
        let (same, more) = (read_number(&mut self.rest)?, read_number(&mut self.rest)?);
        self.row.resize(same + more, 0);
        self.rest.read_exact(&mut self.row[same..])?;
        Ok(true)
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Head) -> bool {
        self.row == other.row
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Head) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Head) -> std::cmp::Ordering {
        self.row.cmp(&other.row)
    }
}

/// What is left of a run.
pub(super) struct FilePart {
    file: Arc<File>,
    left: Range<u64>,
}

impl Read for FilePart {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = usize::try_from(self.left.end - self.left.start).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        let read = self.file.read_at(&mut buffer[..wanted], self.left.start)?;
        self.left.start += read as u64;
        Ok(read)
    }
}

const NULL: u8 = 0;
const INTEGER: u8 = 1;
const REAL: u8 = 2;
const TEXT: u8 = 3;
const SIGN: u64 = 1 << 63;

/// Appends bytes in the order of SQLite's values. A column has integers or real numbers, so these
/// need no order among themselves.
fn encode(value: ValueRef<'_>, bytes: &mut Vec<u8>) {
    match value {
        ValueRef::Null => bytes.push(NULL),
        // For SQLite, what is no number is null.
        ValueRef::Real(number) if number.is_nan() => bytes.push(NULL),
        ValueRef::Integer(number) => {
            bytes.push(INTEGER);
            bytes.extend((number as u64 ^ SIGN).to_be_bytes());
        }
        ValueRef::Real(number) => {
            let bits = number.to_bits();
            let ordered = if bits & SIGN == 0 { bits | SIGN } else { !bits };
            bytes.push(REAL);
            bytes.extend(ordered.to_be_bytes());
        }
        ValueRef::Text(text) | ValueRef::Blob(text) => {
            // Two zeros end a text; a zero in it is followed by 255.
            bytes.push(TEXT);
            for &byte in text {
                bytes.push(byte);
                bytes.extend((byte == 0).then_some(u8::MAX));
            }
            bytes.extend([0, 0]);
        }
    }
}

fn decode(mut bytes: &[u8]) -> Result<Vec<Value>> {
    let mut values = Vec::new();
    let number = |bytes: &mut &[u8]| -> Result<u64> {
        let (number, rest) = bytes.split_first_chunk().context("a row that is cut off")?;
        *bytes = rest;
        Ok(u64::from_be_bytes(*number))
    };
    while let Some((kind, rest)) = bytes.split_first() {
        bytes = rest;
        values.push(match *kind {
            NULL => Value::Null,
            INTEGER => Value::Integer((number(&mut bytes)? ^ SIGN) as i64),
            REAL => {
                let ordered = number(&mut bytes)?;
                let bits = if ordered & SIGN == 0 { !ordered } else { ordered ^ SIGN };
                Value::Real(f64::from_bits(bits))
            }
            kind => {
                ensure!(kind == TEXT, "a row with a value of the kind {kind}");
                let mut text = Vec::new();
                loop {
                    let (byte, rest) = bytes.split_first().context("a row that is cut off")?;
                    bytes = rest;
                    if *byte != 0 {
                        text.push(*byte);
                        continue;
                    }
                    let (next, rest) = bytes.split_first().context("a row that is cut off")?;
                    bytes = rest;
                    match *next {
                        0 => break,
                        _ => text.push(0),
                    }
                }
                Value::Text(String::from_utf8(text).context("a text that is not UTF-8")?)
            }
        });
    }
    Ok(values)
}

/// Seven bits a byte, the lowest first.
fn write_number(mut number: usize, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn read_number(from: &mut impl Read) -> Result<usize> {
    let mut number = 0;
    for shift in (0..usize::BITS).step_by(7) {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        number |= usize::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(number);
        }
    }
    anyhow::bail!("a number that has no end")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(rows: &[Vec<Value>], memory: usize) -> Vec<Vec<Value>> {
        let mut sorter = RowSorter::new(memory);
        for row in rows {
            sorter.push(row.iter().map(ValueRef::from)).unwrap();
        }
        let mut sorted = sorter.finish().unwrap();
        std::iter::from_fn(|| sorted.next().unwrap()).collect()
    }

    #[test]
    fn values_have_the_order_of_sqlite() {
        let texts = ["", "\0", "\0\0", "\0a", "a", "a\0", "a\0b", "a\u{1}", "ab", "b", "\u{ff}"];
        let integers = [i64::MIN, -256, -1, 0, 1, 255, 256, i64::MAX];
        let reals = [f64::NEG_INFINITY, -1.5, -0.5, 0.0, f64::MIN_POSITIVE, 2.5, f64::INFINITY];
        let columns: [Vec<Value>; 3] = [
            texts.map(|text| Value::Text(text.to_owned())).to_vec(),
            integers.map(Value::Integer).to_vec(),
            reals.map(Value::Real).to_vec(),
        ];
        for column in columns {
            let mut rows = vec![vec![Value::Null]];
            rows.extend(column.into_iter().map(|value| vec![value]));
            let backwards: Vec<Vec<Value>> = rows.iter().rev().cloned().collect();
            for memory in [1, 40, MEMORY] {
                assert_eq!(sorted(&backwards, memory), rows);
            }
        }
        assert_eq!(sorted(&[vec![Value::Real(f64::NAN)]], MEMORY), [[Value::Null]]);
    }

    #[test]
    fn runs_are_merged() {
        let text = |number: u64| Value::Text(format!("text {}", number % 7));
        let row = |number: u64| {
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            vec![text(mixed), Value::Integer((mixed % 1000) as i64 - 500), text(number)]
        };
        let rows: Vec<Vec<Value>> = (0..5000).map(row).collect();
        let whole = sorted(&rows, MEMORY);
        let key = |row: &Vec<Value>| match &row[..] {
            [Value::Text(first), Value::Integer(second), Value::Text(third)] => {
                (first.clone(), *second, third.clone())
            }
            other => panic!("{other:?}"),
        };
        let mut expected = rows.clone();
        expected.sort_by_key(key);
        assert_eq!(whole, expected);
        // A run for each row, and for about each hundred.
        assert_eq!(sorted(&rows, 1), expected);
        assert_eq!(sorted(&rows, 3000), expected);
    }
}
