//! Answers as text, CSV, JSON and Parquet.
//!
//! Input: an answer, row by row. Output: bytes, as the rows come. A text table is as wide as its
//! first 1000 rows need. To add a form: implement [`AnswerSink`], or [`grouped::GroupSink`] if its
//! columns have types.

pub mod grouped;
mod parquet;

pub use crate::form::parquet::ParquetAnswer;
use crate::sql::{AnswerColumn, AnswerSink};
use anyhow::Result;
use rusqlite::types::ValueRef;
use std::io::Write;

/// The rows that decide how wide a table is.
const FIRST: usize = 1000;

/// A table for people.
pub struct TextAnswer<'w> {
    out: &'w mut dyn Write,
    columns: Vec<AnswerColumn>,
    first: Vec<Vec<(String, bool)>>,
    widths: Vec<usize>,
    /// By column: all cells of the first rows are numbers, and stand on the right.
    numbers: Vec<bool>,
    has_begun: bool,
}

impl<'w> TextAnswer<'w> {
    /// Writes to `out`. Call [`TextAnswer::finish`] at the end.
    pub fn new(out: &'w mut dyn Write) -> TextAnswer<'w> {
        TextAnswer {
            out,
            columns: Vec::new(),
            first: Vec::new(),
            widths: Vec::new(),
            numbers: Vec::new(),
            has_begun: false,
        }
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self) -> Result<()> {
        if !self.has_begun {
            self.begin()?;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        self.has_begun = true;
        let first = std::mem::take(&mut self.first);
        self.widths = self.columns.iter().map(|column| column.name.chars().count()).collect();
        self.numbers = vec![true; self.columns.len()];
        for row in &first {
            for (at, (cell, is_number)) in row.iter().enumerate() {
                self.widths[at] = self.widths[at].max(cell.chars().count());
                self.numbers[at] &= *is_number || cell.is_empty();
            }
        }
        let titles: Vec<_> = self.columns.iter().map(|it| (it.name.clone(), false)).collect();
        self.line(&titles)?;
        first.iter().try_for_each(|row| self.line(row))
    }

    fn line(&mut self, row: &[(String, bool)]) -> Result<()> {
        let mut line = String::new();
        for ((cell, _), (width, is_number)) in row.iter().zip(self.widths.iter().zip(&self.numbers))
        {
            line.push_str("  ");
            match is_number {
                true => line += &format!("{cell:>width$}"),
                false => line += &format!("{cell:<width$}"),
            }
        }
        writeln!(self.out, "{}", line.trim_end())?;
        Ok(())
    }
}

impl AnswerSink for TextAnswer<'_> {
    fn columns(&mut self, columns: &[AnswerColumn]) -> Result<()> {
        self.columns = columns.to_vec();
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        let cells = row.iter().zip(&self.columns).map(|(value, column)| {
            let is_number = matches!(value, ValueRef::Integer(_) | ValueRef::Real(_));
            // A cell is one line.
            (text(*value, column).replace(char::is_control, " "), is_number)
        });
        let cells: Vec<_> = cells.collect();
        if self.has_begun {
            return self.line(&cells);
        }
        self.first.push(cells);
        if self.first.len() == FIRST {
            self.begin()?;
        }
        Ok(())
    }
}

/// A value as text. Null is empty.
fn text(value: ValueRef<'_>, column: &AnswerColumn) -> String {
    match value {
        ValueRef::Null => String::new(),
        ValueRef::Integer(address) if column.is_address() => format!("{address:#x}"),
        ValueRef::Integer(count) => count.to_string(),
        ValueRef::Real(number) => real(number),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn real(number: f64) -> String {
    let digits = format!("{number:.6}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    match digits {
        "0" | "-0" if number != 0.0 => format!("{number:e}"),
        _ => digits.to_owned(),
    }
}

/// CSV (RFC 4180), with the names of the columns in the first line.
pub struct CsvAnswer<'w> {
    out: &'w mut dyn Write,
    columns: Vec<AnswerColumn>,
}

impl<'w> CsvAnswer<'w> {
    /// Writes to `out`.
    pub fn new(out: &'w mut dyn Write) -> CsvAnswer<'w> {
        CsvAnswer { out, columns: Vec::new() }
    }
}

fn csv(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

impl AnswerSink for CsvAnswer<'_> {
    fn columns(&mut self, columns: &[AnswerColumn]) -> Result<()> {
        self.columns = columns.to_vec();
        let names: Vec<String> = columns.iter().map(|column| csv(&column.name)).collect();
        Ok(write!(self.out, "{}\r\n", names.join(","))?)
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        let cells = row.iter().zip(&self.columns).map(|(value, column)| match value {
            // Every digit, so that the number can be read again.
            ValueRef::Real(number) => number.to_string(),
            _ => csv(&text(*value, column)),
        });
        Ok(write!(self.out, "{}\r\n", cells.collect::<Vec<_>>().join(","))?)
    }
}

/// A JSON array with an object for each row. Addresses are texts, because few readers keep 64 bits.
pub struct JsonAnswer<'w> {
    out: &'w mut dyn Write,
    columns: Vec<AnswerColumn>,
    has_rows: bool,
}

impl<'w> JsonAnswer<'w> {
    /// Writes to `out`. Call [`JsonAnswer::finish`] at the end.
    pub fn new(out: &'w mut dyn Write) -> JsonAnswer<'w> {
        JsonAnswer { out, columns: Vec::new(), has_rows: false }
    }

    /// Ends the array.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(self) -> Result<()> {
        let end = if self.has_rows { "\n]\n" } else { "[]\n" };
        Ok(self.out.write_all(end.as_bytes())?)
    }
}

impl AnswerSink for JsonAnswer<'_> {
    fn columns(&mut self, columns: &[AnswerColumn]) -> Result<()> {
        self.columns = columns.to_vec();
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        let begin = if std::mem::replace(&mut self.has_rows, true) { ",\n  {" } else { "[\n  {" };
        let cells = row.iter().zip(&self.columns).map(|(value, column)| {
            let name = serde_json::to_string(&column.name)?;
            let value = match value {
                ValueRef::Null => "null".to_owned(),
                ValueRef::Integer(count) if !column.is_address() => count.to_string(),
                ValueRef::Real(number) => serde_json::to_string(number)?,
                _ => serde_json::to_string(&text(*value, column))?,
            };
            anyhow::Ok(format!("{name}: {value}"))
        });
        let cells: Vec<String> = cells.collect::<Result<_>>()?;
        Ok(write!(self.out, "{begin}{}}}", cells.join(", "))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::ColumnType;

    fn columns() -> Vec<AnswerColumn> {
        let column = |name: &str, of| AnswerColumn { name: name.to_owned(), of };
        let address = Some(ColumnType::Address);
        vec![column("name", None), column("at", address), column("share, in all", None)]
    }

    fn rows() -> [[ValueRef<'static>; 3]; 2] {
        [
            [ValueRef::Text(b"a \"b\""), ValueRef::Integer(-0x7f00_0000), ValueRef::Real(0.25)],
            [ValueRef::Null, ValueRef::Integer(16), ValueRef::Integer(3)],
        ]
    }

    fn give(answer: &mut dyn AnswerSink) {
        answer.columns(&columns()).unwrap();
        rows().iter().for_each(|row| answer.row(row).unwrap());
    }

    #[test]
    fn a_table_has_its_numbers_on_the_right() {
        let mut out = Vec::new();
        let mut answer = TextAnswer::new(&mut out);
        give(&mut answer);
        answer.finish().unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "  name                   at  share, in all\n  \
             a \"b\"  0xffffffff81000000           0.25\n                       \
             0x10              3\n"
        );
    }

    #[test]
    fn csv_quotes_what_it_must() {
        let mut out = Vec::new();
        give(&mut CsvAnswer::new(&mut out));
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "name,at,\"share, in all\"\r\n\"a \"\"b\"\"\",0xffffffff81000000,0.25\r\n,0x10,3\r\n"
        );
    }

    #[test]
    fn json_is_an_array_of_objects() {
        let mut out = Vec::new();
        let mut answer = JsonAnswer::new(&mut out);
        give(&mut answer);
        answer.finish().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value[0]["at"], "0xffffffff81000000");
        assert_eq!(value[0]["name"], "a \"b\"");
        assert_eq!(value[1]["share, in all"], 3);
        assert!(value[1]["name"].is_null());
    }

    #[test]
    fn small_numbers_keep_their_digits() {
        assert_eq!(real(0.5), "0.5");
        assert_eq!(real(100.0), "100");
        assert_eq!(real(1e-9), "1e-9");
    }
}
