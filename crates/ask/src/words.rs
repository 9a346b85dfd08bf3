//! The words that may stand at a place of a question: what a shell or an editor offers.
//!
//! Input: the text in front of the cursor. Output: words that begin as its last one does. This
//! module parses no SQL: it looks at quotes, at dots, and at the tables that the text names.

use crate::schema::TABLES;

/// The words of SQL that a question has.
const KEYWORDS: [&str; 35] = [
    "AND",
    "AS",
    "ASC",
    "BETWEEN",
    "BY",
    "CASE",
    "CAST",
    "DESC",
    "DISTINCT",
    "ELSE",
    "END",
    "EXISTS",
    "FROM",
    "GROUP",
    "HAVING",
    "IN",
    "IS",
    "JOIN",
    "LEFT",
    "LIKE",
    "LIMIT",
    "NOT",
    "NULL",
    "ON",
    "OR",
    "ORDER",
    "OVER",
    "PARTITION",
    "SELECT",
    "THEN",
    "UNION",
    "USING",
    "WHEN",
    "WHERE",
    "WITH",
];

/// Functions of SQL that serve questions. They are named when an unknown one is asked for.
pub(crate) const FUNCTIONS: &[&str] = &[
    "percentile",
    "median",
    "symbol",
    "hex",
    "count",
    "sum",
    "total",
    "min",
    "max",
    "avg",
    "abs",
    "coalesce",
    "format",
    "group_concat",
    "iif",
    "ifnull",
    "instr",
    "length",
    "lower",
    "nullif",
    "printf",
    "replace",
    "round",
    "substr",
    "trim",
    "typeof",
    "upper",
    "row_number",
    "rank",
    "lag",
    "lead",
];

/// The most words that are offered.
const MOST: usize = 200;

/// The names that a question on these recordings can use.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// The recordings. The tables of `main` need no name in front.
    pub recordings: Vec<String>,
    /// The views of probes, with their columns.
    pub views: Vec<(String, Vec<String>)>,
    /// The kernel's functions, ascending, each once.
    pub functions: Vec<String>,
}

/// What may stand at the end of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The index of the byte at which the last word begins.
    pub start: usize,
    /// The words, ascending; at most 200.
    pub words: Vec<String>,
}

impl Vocabulary {
    /// The words that begin as the last one of `text` does. In quotes they are functions of the
    /// kernel; behind `recording.` its tables, behind `table.` its columns; else columns of the
    /// tables that the text names (of all tables if it names none), tables, functions of SQL and
    /// keywords. Upper and lower case count as the same outside of quotes.
    ///
    /// ```
    /// use kernlane_ask::words::Vocabulary;
    ///
    /// let vocabulary = Vocabulary { recordings: vec!["main".into()], ..Vocabulary::default() };
    /// let offer = vocabulary.at_end_of("SELECT count(*) FROM switc");
    /// assert_eq!((offer.start, offer.words), (21, vec!["switches".to_owned()]));
    /// ```
    pub fn at_end_of(&self, text: &str) -> Offer {
        if text.matches('\'').count() % 2 == 1 {
            let start = text.rfind('\'').map_or(0, |at| at + 1);
            return offer(start, self.functions_from(&text[start..]));
        }
        let of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let start = text.trim_end_matches(of_word).len();
        let begins = |word: &str| {
            let begin = word.get(..text.len() - start);
            begin.is_some_and(|begin| begin.eq_ignore_ascii_case(&text[start..]))
        };
        let words = match text[..start].strip_suffix('.') {
            Some(front) => self.behind(&front[front.trim_end_matches(of_word).len()..]),
            None => self.anywhere(text),
        };
        offer(start, words.into_iter().filter(|word| begins(word)).collect())
    }

    fn functions_from(&self, begin: &str) -> Vec<String> {
        let from = self.functions.partition_point(|name| name.as_str() < begin);
        let names = self.functions[from..].iter().take_while(|name| name.starts_with(begin));
        names.take(MOST).cloned().collect()
    }

    /// What may stand behind a name and a dot.
    fn behind(&self, name: &str) -> Vec<String> {
        if self.recordings.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            return self.tables().map(|(table, _)| table.to_owned()).collect();
        }
        let columns = self.tables().filter(|(table, _)| table.eq_ignore_ascii_case(name));
        columns.flat_map(|(_, columns)| columns).collect()
    }

    fn anywhere(&self, text: &str) -> Vec<String> {
        let names = |table: &str| {
            let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            words.any(|word| word.eq_ignore_ascii_case(table))
        };
        let any_named = self.tables().any(|(table, _)| names(table));
        let mut words: Vec<String> = KEYWORDS.iter().map(|&word| word.to_owned()).collect();
        words.extend(FUNCTIONS.iter().map(|name| format!("{name}(")));
        words.extend(
            self.recordings.iter().filter(|name| *name != "main").map(|it| format!("{it}.")),
        );
        for (table, columns) in self.tables() {
            if !any_named || names(table) {
                words.extend(columns);
            }
            words.push(table.to_owned());
        }
        words
    }

    /// The tables and views with their columns.
    fn tables(&self) -> impl Iterator<Item = (&str, Vec<String>)> {
        let tables = TABLES.iter().map(|table| {
            let columns = table.columns.iter().map(|column| column.name.to_owned());
            (table.name, columns.collect())
        });
        tables.chain(self.views.iter().map(|(name, columns)| (name.as_str(), columns.clone())))
    }
}

fn offer(start: usize, mut words: Vec<String>) -> Offer {
    words.sort_unstable();
    words.dedup();
    words.truncate(MOST);
    Offer { start, words }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Vocabulary {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Vocabulary {
            recordings: owned(&["before", "after"]),
            views: vec![("tcp_v4_rcv".to_owned(), owned(&["start", "skb_len"]))],
            functions: owned(&["kfree", "tcp_ack", "tcp_v4_rcv", "vfs_read"]),
        }
    }

    #[test]
    fn words_fit_their_place() {
        for (text, expected) in [
            ("SELECT * FROM swi", &["switches"][..]),
            ("SELECT * FROM befo", &["before."]),
            ("SELECT * FROM before.cal", &["calls"]),
            ("SELECT calls.inc", &["inclusive"]),
            ("SELECT inc FROM calls WHERE inc", &["inclusive"]),
            ("SELECT c FROM calls WHERE function = 'tcp_", &["tcp_ack", "tcp_v4_rcv"]),
            ("SELECT skb", &["skb_len"]),
            ("SELECT tcp_v4_rcv.", &["skb_len", "start"]),
            ("SELECT median", &["median("]),
            ("sel", &["SELECT"]),
            ("SELECT nothing.", &[]),
            ("SELECT 'tcp_ack', nothing", &[]),
            ("SELECT 'é' FROM swi", &["switches"]),
        ] {
            let offer = vocabulary().at_end_of(text);
            assert_eq!(offer.words, expected, "{text}");
            assert!(text.is_char_boundary(offer.start), "{text}");
        }
    }

    #[test]
    fn columns_of_other_tables_are_left_out() {
        let of = |text: &str| vocabulary().at_end_of(text).words;
        assert!(of("SELECT cau").contains(&"cause".to_owned()));
        assert_eq!(of("SELECT count(*) FROM calls WHERE cau"), [""; 0]);
    }
}
