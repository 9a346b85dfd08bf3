//! Where inlined code lies in the copies of an installed group.
//!
//! Input: the table in the group's module (`emit::module` describes its form), read from the
//! kernel's memory, and the kernel's names. Output: which function is inlined in which copy, with
//! addresses; and the functions that an address belongs to. This module changes nothing.

use crate::identity::GroupId;
use crate::install;
use crate::kcore::KernelCore;
use anyhow::{Context, Result, bail, ensure};
use emit::module::{INLINED_MAGIC, INLINED_SECTION, NUMBER};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// Where the table's calls begin, and the bytes of a call and of a range.
const HEAD: usize = 48;
const ENTRY: usize = 12;
/// More bytes than any table has.
const MOST: usize = 64 << 20;

/// The inlined code of a group. All addresses are those of the running kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InlinedTable {
    /// The code of the group's copies.
    text: Range<u64>,
    calls: Vec<Call>,
    /// Ascending, with the context of the code.
    ranges: Vec<(Range<u64>, u32)>,
}

/// A call whose callee's code stands in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    /// 0 in the copies of functions, n in the code of call n - 1.
    context: u32,
    callee: u64,
    /// The call in the kernel's own code.
    site: u64,
}

/// A function whose code is in another function's copy.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct InlinedFunction {
    /// The function's name.
    pub function: String,
    /// The name of the copy.
    pub copy: String,
    /// The number of its calls that are gone from the copy, those in other inlined code included.
    pub calls: usize,
    /// Where its code is in the copy, ascending: without the code that is inlined in it.
    pub ranges: Vec<Range<u64>>,
}

/// The functions that an address in a copy belongs to. Prints as `CALLEE (inlined) in
/// CALLER.kernlane+0xOFFSET`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frames {
    /// The names of inlined functions, the innermost first.
    pub inlined: Vec<String>,
    /// The symbol of the copy.
    pub copy: String,
    /// Bytes from the symbol to the address.
    pub offset: u64,
}

impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inlined.iter().try_for_each(|name| write!(f, "{name} (inlined) in "))?;
        write!(f, "{}+{:#x}", self.copy, self.offset)
    }
}

/// The names of the running kernel and its modules, by address.
pub type Names<'a> = BTreeMap<u64, &'a str>;

/// The name of the function that holds an address, and the bytes in front of the address.
fn name_at<'a>(names: &Names<'a>, at: u64) -> (&'a str, u64) {
    let found = names.range(..=at).next_back();
    found.map_or(("?", 0), |(&start, &name)| (name, at - start))
}

impl InlinedTable {
    /// Reads the table of a loaded group. A group without inlined calls has an empty one.
    ///
    /// # Errors
    /// This is not root; the group has gone; the table is damaged.
    pub fn read(id: &GroupId) -> Result<InlinedTable> {
        let name = &id.module;
        if !Path::new(&format!("/sys/module/{name}/sections/{INLINED_SECTION}")).exists() {
            return Ok(InlinedTable::default());
        }
        let at = install::section_of(name, INLINED_SECTION)?;
        let text = install::section_of(name, ".text")?;
        let core = KernelCore::open()?;
        let read = || {
            let size = size(&core.read(at, HEAD)?)?;
            parse(&core.read(at, size)?, at, text, &id.number.0)
        };
        read().with_context(|| format!("the table of inlined code of {name}"))
    }

    /// Whether nothing is inlined.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The functions whose code is in other functions' copies, by their names and those of the
    /// copies.
    pub fn functions(&self, names: &Names<'_>) -> Vec<InlinedFunction> {
        let mut found: BTreeMap<(&str, String), (usize, Vec<Range<u64>>)> = BTreeMap::new();
        let key = |call: &Call| (name_at(names, call.callee).0, self.copy_of(call, names));
        for call in &self.calls {
            found.entry(key(call)).or_default().0 += 1;
        }
        for (range, context) in &self.ranges {
            let call = &self.calls[*context as usize - 1];
            found.entry(key(call)).or_default().1.push(range.clone());
        }
        let function = |((function, copy), (calls, ranges)): ((&str, String), _)| InlinedFunction {
            function: function.to_owned(),
            copy,
            calls,
            ranges,
        };
        found.into_iter().map(function).collect()
    }

    /// Each range of inlined code with the names of its functions: the copy's first, then inlined
    /// code from the outside to the inside.
    pub fn ranges(&self, names: &Names<'_>) -> Vec<(Range<u64>, Vec<String>)> {
        let named = self.ranges.iter().map(|(range, context)| {
            let mut stack = vec![self.copy_of(&self.calls[*context as usize - 1], names)];
            stack.extend(self.inlined(*context, names).into_iter().rev());
            (range.clone(), stack)
        });
        named.collect()
    }

    /// The functions that an address belongs to; `None` if it is in no copy of the group.
    pub fn frames(&self, at: u64, names: &Names<'_>) -> Option<Frames> {
        if !self.text.contains(&at) {
            return None;
        }
        let behind = self.ranges.partition_point(|(range, _)| range.start <= at);
        let range = self.ranges[..behind].last().filter(|(range, _)| range.contains(&at));
        let inlined = range.map(|&(_, context)| self.inlined(context, names)).unwrap_or_default();
        let (copy, offset) = name_at(names, at);
        Some(Frames { inlined, copy: copy.to_owned(), offset })
    }

    /// The functions of a context's code, the innermost first.
    fn inlined(&self, mut context: u32, names: &Names<'_>) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(n) = context.checked_sub(1) {
            let call = &self.calls[n as usize];
            found.push(name_at(names, call.callee).0.to_owned());
            context = call.context;
        }
        found
    }

    /// The name of the copy that a call's code is in.
    fn copy_of(&self, call: &Call, names: &Names<'_>) -> String {
        let mut outermost = *call;
        while let Some(n) = outermost.context.checked_sub(1) {
            outermost = self.calls[n as usize];
        }
        format!("{}.kernlane", name_at(names, outermost.site).0)
    }
}

/// The table's size in bytes, by its head.
fn size(head: &[u8]) -> Result<usize> {
    ensure!(
        head.len() >= HEAD && head.starts_with(INLINED_MAGIC),
        "it is not there: the group was undone meanwhile"
    );
    let entries = word(head, 32) as usize + word(head, 36) as usize;
    let size = HEAD + ENTRY * entries;
    ensure!(size <= MOST, "it says that it has {entries} entries");
    Ok(size)
}

/// `at` and `text`: the addresses of the table and of the copies' `.text`.
fn parse(table: &[u8], at: u64, text: u64, number: &[u8; NUMBER]) -> Result<InlinedTable> {
    ensure!(table.len() == size(table)?, "it is cut short");
    ensure!(table[16..32] == *number, "it belongs to another group");
    let (calls, behind) = (word(table, 32), HEAD + ENTRY * word(table, 32) as usize);
    let size = word(table, 40);
    let place = |field: usize| {
        (at + field as u64).wrapping_add_signed(i64::from(word(table, field) as i32))
    };
    let mut found = InlinedTable { text: text..text + u64::from(size), ..InlinedTable::default() };
    for (n, entry) in (0..calls).zip((HEAD..behind).step_by(ENTRY)) {
        let context = word(table, entry);
        ensure!(context <= n, "call {n} stands in the code of a later call");
        found.calls.push(Call { context, callee: place(entry + 4), site: place(entry + 8) });
    }
    let mut last = 0;
    for entry in (behind..table.len()).step_by(ENTRY) {
        let [start, bytes, context] = [0, 4, 8].map(|field| word(table, entry + field));
        let end = start.checked_add(bytes).filter(|&end| end <= size);
        let Some(end) = end.filter(|_| start >= last && (1..=calls).contains(&context)) else {
            bail!("it has no range at .text+{start:#x}");
        };
        last = end;
        found.ranges.push((text + u64::from(start)..text + u64::from(end), context));
    }
    Ok(found)
}

/// Four bytes of the table, which has them.
fn word(table: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([table[at], table[at + 1], table[at + 2], table[at + 3]])
}

#[cfg(test)]
mod tests;
