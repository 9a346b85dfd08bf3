//! Tables for a terminal, with aligned columns.
//!
//! Input: titles and rows of text. Output: text.

/// A text table. The first column is left-aligned, the others right-aligned; each is as wide as its
/// widest cell.
pub struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with these column titles.
    pub fn new(titles: &[&str]) -> TextTable {
        TextTable { rows: vec![titles.iter().map(|&title| title.to_owned()).collect()] }
    }

    /// Appends a row.
    pub fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table's text, a line for each row.
    pub fn to_text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => line = format!("  {cell:<width$}"),
                    _ => line += &format!("  {cell:>width$}"),
                }
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}
