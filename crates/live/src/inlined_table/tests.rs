//! A table of three calls: g and h in f, and k in the code of g.
//!
//! ```text
//! .text+ 00 f.kernlane   10 g in it   18 k in that   20 f.kernlane   28 g   30 h.kernlane   40
//! ```

use super::*;

const TEXT: u64 = 0xffff_ffff_c000_0000;
const TABLE: u64 = TEXT + 0x2000;
const F: u64 = 0xffff_ffff_8100_0000;
const G: u64 = F + 0x40;
const K: u64 = F + 0xc0;
const NUMBER: [u8; 16] = [7; 16];

fn names() -> Names<'static> {
    let copies = [(TEXT, "f.kernlane"), (TEXT + 0x30, "h.kernlane")];
    [(F, "f"), (G, "g"), (F + 0x80, "h"), (K, "k")].into_iter().chain(copies).collect()
}

fn table() -> Vec<u8> {
    let mut table = [&INLINED_MAGIC[..], &NUMBER].concat();
    table.extend([3u32, 3, 0x40, 0].map(u32::to_le_bytes).concat());
    for (context, callee, site) in [(0u32, G, F + 9), (1, K, G + 0x10), (0, F + 0x80, F + 0xe)] {
        table.extend(context.to_le_bytes());
        for to in [callee, site] {
            let field = TABLE + table.len() as u64;
            table.extend((to.wrapping_sub(field) as u32).to_le_bytes());
        }
    }
    for range in [[0x10u32, 8, 1], [0x18, 8, 2], [0x28, 8, 1]] {
        table.extend(range.map(u32::to_le_bytes).concat());
    }
    table
}

fn read(table: &[u8]) -> Result<InlinedTable, String> {
    parse(table, TABLE, TEXT, &NUMBER).map_err(|error| error.to_string())
}

#[test]
fn an_address_belongs_to_the_inlined_functions_and_the_copy() {
    let table = read(&table()).unwrap();
    let frames =
        |offset: u64| table.frames(TEXT.saturating_add(offset), &names()).map(|f| f.to_string());
    for (offset, words) in [
        (0, "f.kernlane+0x0"),
        (0xf, "f.kernlane+0xf"),
        (0x10, "g (inlined) in f.kernlane+0x10"),
        (0x17, "g (inlined) in f.kernlane+0x17"),
        (0x18, "k (inlined) in g (inlined) in f.kernlane+0x18"),
        (0x20, "f.kernlane+0x20"),
        (0x28, "g (inlined) in f.kernlane+0x28"),
        (0x3f, "h.kernlane+0xf"),
    ] {
        assert_eq!(frames(offset).as_deref(), Some(words), "{offset:x}");
    }
    assert_eq!((frames(0x40), frames(u64::MAX)), (None, None));
    assert_eq!(InlinedTable::default().frames(0, &names()), None);
}

#[test]
fn functions_and_ranges_are_named() {
    let table = read(&table()).unwrap();
    let at = |start: u64| TEXT + start..TEXT + start + 8;
    let functions = table.functions(&names());
    let found: Vec<_> = (functions.iter())
        .map(|f| (f.function.as_str(), f.copy.as_str(), f.calls, f.ranges.clone()))
        .collect();
    let expected = [
        ("g", "f.kernlane", 1, vec![at(0x10), at(0x28)]),
        // Its code was only a return, which is gone.
        ("h", "f.kernlane", 1, vec![]),
        ("k", "f.kernlane", 1, vec![at(0x18)]),
    ];
    assert_eq!(found, expected);
    let ranges: Vec<_> =
        table.ranges(&names()).into_iter().map(|(range, stack)| (range, stack.join(";"))).collect();
    let expected = [
        (at(0x10), "f.kernlane;g".to_owned()),
        (at(0x18), "f.kernlane;g;k".to_owned()),
        (at(0x28), "f.kernlane;g".to_owned()),
    ];
    assert_eq!(ranges, expected);
}

#[test]
fn a_damaged_table_is_refused() {
    let right = table();
    assert!(read(&right).is_ok());
    for length in 0..right.len() {
        assert!(read(&right[..length]).is_err(), "{length} bytes");
    }
    for (at, value, words) in [
        (0, 0, "the group was undone meanwhile"),
        (16, 8, "belongs to another group"),
        (32, 4, "cut short"),
        (39, 0xff, "it says that it has"),
        (HEAD, 1, "call 0 stands in the code of a later call"),
        // The first range: its start, its size and its context.
        (HEAD + 3 * ENTRY, 0xff, "no range at .text+0xff"),
        (HEAD + 3 * ENTRY + 4, 9, "no range at .text+0x18"),
        (HEAD + 3 * ENTRY + 7, 0xff, "no range at .text+0x10"),
        (HEAD + 3 * ENTRY + 8, 0, "no range at .text+0x10"),
        (HEAD + 3 * ENTRY + 8, 4, "no range at .text+0x10"),
    ] {
        let mut damaged = right.clone();
        damaged[at] = value;
        let error = read(&damaged).unwrap_err();
        assert!(error.contains(words), "{at}: {error}");
    }
}
