//! How many rows of a table are shown, and the line that counts the other rows.
//!
//! Input: the number of rows. Output: a line. This module orders nothing.

/// The first rows of a table, for a reader who may ask for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopRows {
    /// The largest number of rows that are shown.
    pub most: usize,
    /// What the reader sets to see more rows, in the caller's words. `None`: nothing.
    pub setting: Option<&'static str>,
}

impl TopRows {
    /// The line behind the shown rows of `all` rows; empty if all are shown.
    ///
    /// ```
    /// use kernlane_report::top::TopRows;
    ///
    /// let top = TopRows { most: 30, setting: Some("top = 30") };
    /// assert_eq!(top.rest(42), "  and 12 more (top = 30)\n");
    /// assert_eq!(top.rest(30), "");
    /// assert_eq!(TopRows { setting: None, ..top }.rest(31), "  and 1 more\n");
    /// ```
    pub fn rest(self, all: usize) -> String {
        let setting = self.setting.map_or(String::new(), |setting| format!(" ({setting})"));
        match all.saturating_sub(self.most) {
            0 => String::new(),
            more => format!("  and {more} more{setting}\n"),
        }
    }
}
