//! Tables as text, with aligned columns.
//!
//! Input: columns and rows of cells. Output: text, a line for each row. This module does not know
//! the terminal, and never breaks a line.

/// On which side of its column a cell stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// How wide a column is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    /// As wide as the widest cell or title, and at least this number of characters.
    Widest(usize),
    /// This number of characters. A longer cell moves the rest of its line.
    Fixed(usize),
}

/// A column.
#[derive(Clone, Debug)]
pub struct Column {
    title: String,
    side: Side,
    width: Width,
    gap: Option<usize>,
}

impl Column {
    /// A column whose cells stand on the left. It is as wide as its widest cell, two spaces behind
    /// the column before.
    pub fn left(title: &str) -> Column {
        Column { title: title.to_owned(), side: Side::Left, width: Width::Widest(0), gap: None }
    }

    /// The same, with cells on the right.
    pub fn right(title: &str) -> Column {
        Column { side: Side::Right, ..Column::left(title) }
    }

    /// The column, of `width` characters or more.
    #[must_use]
    pub fn at_least(self, width: usize) -> Column {
        Column { width: Width::Widest(width), ..self }
    }

    /// The column, of `width` characters. A longer cell moves the rest of its line.
    #[must_use]
    pub fn fixed(self, width: usize) -> Column {
        Column { width: Width::Fixed(width), ..self }
    }

    /// The column, with this number of spaces before it.
    #[must_use]
    pub fn gap(self, spaces: usize) -> Column {
        Column { gap: Some(spaces), ..self }
    }
}

/// A table.
#[derive(Clone, Debug)]
pub struct TextTable {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with these column titles, two spaces from the margin. The first column stands on the
    /// left, all others on the right.
    pub fn new(titles: &[&str]) -> TextTable {
        let column = |(at, title): (usize, &&str)| match at {
            0 => Column::left(title).gap(2),
            _ => Column::right(title),
        };
        TextTable::of(titles.iter().enumerate().map(column))
    }

    /// A table of these columns. Without any title it has no line of titles.
    pub fn of(columns: impl IntoIterator<Item = Column>) -> TextTable {
        TextTable { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Appends a row. Missing cells on the right are empty. Cells beyond the last title stand on
    /// the right of columns without a title.
    pub fn push(&mut self, cells: Vec<String>) {
        if self.columns.len() < cells.len() {
            self.columns.resize(cells.len(), Column::right(""));
        }
        self.rows.push(cells);
    }

    /// The table's text, a line for the titles and for each row, without spaces at their ends.
    pub fn to_text(&self) -> String {
        let titles: Vec<String> = self.columns.iter().map(|column| column.title.clone()).collect();
        let titled = titles.iter().any(|title| !title.is_empty());
        let lines = || titled.then_some(&titles).into_iter().chain(&self.rows);
        let widths: Vec<usize> = (self.columns.iter().enumerate())
            .map(|(at, column)| match column.width {
                Width::Fixed(width) => width,
                Width::Widest(least) => {
                    let cells = lines().filter_map(|row| row.get(at));
                    cells.map(|cell| cell.chars().count()).fold(least, usize::max)
                }
            })
            .collect();
        let mut text = String::new();
        for row in lines() {
            let mut line = String::new();
            for (at, (cell, (column, &width))) in
                row.iter().zip(self.columns.iter().zip(&widths)).enumerate()
            {
                line.extend(std::iter::repeat_n(' ', column.gap.unwrap_or(2 * at.min(1))));
                match column.side {
                    Side::Left => line += &format!("{cell:<width$}"),
                    Side::Right => line += &format!("{cell:>width$}"),
                }
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&cell| cell.to_owned()).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cells() {
        let mut table = TextTable::new(&["name", "±", "µs"]);
        table.push(row(&["a", "1234", ""]));
        table.push(row(&["longer", "5", "67"]));
        table.push(row(&["b"]));
        table.push(row(&["", "", "", "9"]));
        assert_eq!(
            table.to_text(),
            "  name       ±  µs\n  a       1234\n  longer     5  67\n  b\n                    9\n"
        );
    }

    #[test]
    fn columns_have_their_sides_widths_and_gaps() {
        let columns = || {
            [
                Column::left("a").fixed(4),
                Column::right("b").fixed(3).gap(1),
                Column::left("c").at_least(3),
                Column::left("d").gap(1),
            ]
        };
        let mut table = TextTable::of(columns());
        table.push(row(&["x", "1", "y", "z"]));
        table.push(row(&["too long", "1", "y", ""]));
        assert_eq!(table.to_text(), "a      b  c   d\nx      1  y   z\ntoo long   1  y\n");
        let untitled = columns().map(|column| Column { title: String::new(), ..column });
        let mut table = TextTable::of(untitled);
        assert_eq!(table.to_text(), "");
        table.push(row(&["x", "1", "y", "z"]));
        assert_eq!(table.to_text(), "x      1  y   z\n");
    }
}
