//! How the functions of a group are split: the hot bytes of each function, their number of chains,
//! and the cold bytes (Tamches 2001, figure 3).
//!
//! Input: the place of each block, and which blocks are hot. Output: a row for each function. A
//! chain is a run of a function's hot blocks with nothing between them.

use crate::group::Group;
use host::table::{Column, TextTable};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A function of a group, with the parts of it that the compiler put elsewhere, and with what is
/// inlined in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunks {
    /// The function's name.
    pub function: String,
    /// The bytes of its hot blocks.
    pub hot_bytes: u64,
    /// The number of chains that its hot blocks form.
    pub chains: u64,
    /// The bytes of its cold blocks.
    pub cold_bytes: u64,
}

/// A block of the group at its new place.
struct Placed {
    function: u32,
    at: u32,
    size: u32,
    is_hot: bool,
}

/// The function with most hot bytes first. `places`: offset and size of each of the group's blocks.
pub fn chunks(
    group: &Group<'_, '_>,
    places: &[(u32, u32)],
    is_hot: &dyn Fn(usize) -> bool,
) -> Vec<Chunks> {
    let pieces = group.original.pieces.iter().zip(places).enumerate();
    let placed = pieces.map(|(n, (_, &(at, size)))| Placed {
        function: group.original.copy_of(n),
        at,
        size,
        is_hot: is_hot(n),
    });
    let name = |function: u32| group.name(function).split(".cold").next().unwrap_or_default();
    split(placed.collect(), &name)
}

fn split<'a>(mut placed: Vec<Placed>, name: &dyn Fn(u32) -> &'a str) -> Vec<Chunks> {
    placed.sort_by_key(|block| (block.at, block.size));
    let mut found: BTreeMap<&str, Chunks> = BTreeMap::new();
    let mut before: Option<(&str, u32)> = None;
    for block in placed.iter().filter(|block| block.size > 0) {
        let name = name(block.function);
        let row = found.entry(name).or_default();
        match block.is_hot {
            true => {
                row.chains += u64::from(before != Some((name, block.at)));
                row.hot_bytes += u64::from(block.size);
                before = Some((name, block.at + block.size));
            }
            false => row.cold_bytes += u64::from(block.size),
        }
    }
    let named = found.into_iter().map(|(name, row)| Chunks { function: name.to_owned(), ..row });
    let mut rows: Vec<Chunks> = named.collect();
    rows.sort_by(|a, b| b.hot_bytes.cmp(&a.hot_bytes).then_with(|| a.function.cmp(&b.function)));
    rows
}

/// The rows as a table, with their sum.
pub struct Table<'a>(pub &'a [Chunks]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = TextTable::of([
            Column::right("hot bytes").fixed(9),
            Column::right("chains").fixed(7).gap(1),
            Column::right("cold bytes").fixed(10).gap(1),
            Column::left("function"),
        ]);
        let mut sum = Chunks { function: "in all".into(), ..Chunks::default() };
        for row in self.0 {
            sum.hot_bytes += row.hot_bytes;
            sum.chains += row.chains;
            sum.cold_bytes += row.cold_bytes;
        }
        for row in self.0.iter().chain([&sum]) {
            let [hot, cold] = [row.hot_bytes, row.cold_bytes].map(|bytes| bytes.to_string());
            table.push(vec![hot, row.chains.to_string(), cold, row.function.clone()]);
        }
        f.write_str(&table.to_text())?;
        let all = (sum.hot_bytes + sum.cold_bytes).max(1);
        write!(f, "  {:.1} % of the code is cold", 100.0 * sum.cold_bytes as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_end_where_something_lies_between() {
        let block = |function, at, size, is_hot| Placed { function, at, size, is_hot };
        let placed = vec![
            block(0, 40, 8, true), // behind the other function's block: a chain of its own
            block(0, 0, 16, true),
            block(0, 16, 4, true),
            block(1, 20, 20, true),
            block(0, 48, 100, false),
            block(2, 148, 5, false),
        ];
        let names = ["a", "b", "a"];
        let rows = split(placed, &|function| names[function as usize]);
        let row = |function: &str, hot_bytes, chains, cold_bytes| Chunks {
            function: function.into(),
            hot_bytes,
            chains,
            cold_bytes,
        };
        assert_eq!(rows, [row("a", 28, 2, 105), row("b", 20, 1, 0)]);
        let text = Table(&rows).to_string();
        assert!(text.contains("       48       3        105  in all\n"), "{text}");
        assert!(text.ends_with("68.6 % of the code is cold"), "{text}");
    }
}
