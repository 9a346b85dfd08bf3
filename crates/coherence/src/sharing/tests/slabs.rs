//! Objects of slab caches: their fields, their cures and their moves, counted by hand.

use super::{CORE, DIRECT, Guest, LOAD, STATIC, STORE};
use super::{counts, false_sharing, names, true_sharing, untyped, used};
use crate::sharing::table::Cure;
use crate::sharing::what_if::MovedObjects;
use image::examples::btf_section;
use memory::misses::variables;
use memory::objects::names::DataNames;
use trace::FrameUse;

/// The numbers of the caches.
const DENTRY: FrameUse = FrameUse::Slab(0);
const KMALLOC_32: FrameUse = FrameUse::Slab(1);
/// Where the slab in frame 6 begins.
const SLAB: u64 = DIRECT + 0x6000;

/// `struct dentry { u64 hash; u64 count; };`, with padding to 64 bytes.
fn typed() -> DataNames {
    let types = btf_section(
        &[vec![1, 1 << 24, 8, 64], vec![5, 4 << 24 | 2, 64, 12, 1, 0, 17, 1, 64]],
        b"\0u64\0dentry\0hash\0count\0",
    );
    DataNames::of(variables::of(&[(STATIC, 16, "pair")], &[]), Some(types))
}

/// Ten times, a CPU writes `count` of ten objects, and another CPU reads `hash` of each.
fn written_beside_read() -> Guest {
    let mut guest = Guest::new(2);
    guest.frame(6, DENTRY);
    for _ in 0..10 {
        for object in 0..10 {
            guest.run(0, 0, &[(SLAB + 64 * object + 8, STORE, 3)]);
        }
        for object in 0..10 {
            guest.run(1, 1, &[(SLAB + 64 * object, LOAD, 3)]);
        }
    }
    guest
}

#[test]
fn fields_of_slab_objects_have_names() {
    let guest = written_beside_read();
    let table = guest.table(&typed());
    assert_eq!(table.lines.len(), 10);
    for (number, line) in table.lines.iter().enumerate() {
        assert_eq!(line.counts, counts(false_sharing(2, 9), 9));
        assert_eq!(names(&line.fields), ["dentry.hash", "dentry.count"]);
        assert_eq!(line.fields[0].cpus, [used(0, 0), used(10, 0)]);
        assert_eq!(line.fields[1].cpus, [used(0, 10), used(0, 0)]);
        let object = &line.objects[0];
        assert_eq!((line.objects.len(), object.title.as_str()), (1, "slab dentry"));
        let addr = format!("{:016x}", SLAB + 64 * number as u64);
        assert_eq!((&object.addr, object.bytes), (&addr, Some(64)));
        let (field, readers) = ("dentry.count".to_owned(), vec!["dentry.hash".to_owned()]);
        assert_eq!(line.cure, Cure::MoveWritten { field, readers });
    }
    let [data] = &table.data[..] else { panic!("{:?}", table.data) };
    assert_eq!((data.title.as_str(), data.lines, table.data_lines), ("slab dentry", 10, 10));
    assert_eq!(data.counts, counts(false_sharing(20, 90), 90));
    assert_eq!((&data.cure, data.counts.cycles), (&table.lines[0].cure, table.totals.total.cycles));

    let table = guest.table(&untyped(&[]));
    assert_eq!(names(&table.lines[3].fields), ["dentry+0x0", "dentry+0x8"]);
}

#[test]
fn a_field_of_every_object_moves() {
    let guest = written_beside_read();
    for (names, request) in [
        (typed(), "dentry.count -> own line"),
        (typed(), "slab dentry.count -> own line"),
        (untyped(&[]), "dentry+8:8 -> own line"),
    ] {
        let change = guest.what_if(&names, &[request]).unwrap();
        let (before, after) = (change.before, change.after);
        assert_eq!((before.all_misses().false_sharing, before.upgrades.kernel), (90, 90));
        assert_eq!((after.all_misses().coherence(), after.upgrades.kernel), (0, 0));
        assert_eq!(after.all_misses().cold, before.all_misses().cold);
        assert_eq!((before.cycles, after.cycles), (180.0 * CORE, 0.0));
        // The second CPU's first loads come from memory now, not from the other core.
        assert_eq!(before.stalls - after.stalls, 180.0 * CORE - 10.0 * (400.0 - CORE));
        let moved = &change.moved[0];
        assert_eq!((change.moved.len(), moved.bytes, moved.addr.as_str()), (1, 8, ""));
        let objects = MovedObjects { cache: "dentry".to_owned(), number: 10 };
        assert_eq!(moved.objects, Some(objects), "{request}");
    }
    // Whole objects move, each with both fields in one line as before.
    let change = guest.what_if(&typed(), &["dentry -> own line"]).unwrap();
    assert_eq!(change.before, change.after);
    // When the reader's field moves, the writer also keeps its line.
    let change = guest.what_if(&typed(), &["dentry.hash -> own line"]).unwrap();
    assert_eq!((change.after.all_misses().coherence(), change.after.upgrades.kernel), (0, 0));
}

/// Objects of 96 bytes. One of them lies in the second frame of the slab.
#[test]
fn objects_are_counted_from_the_first_frame_of_a_slab() {
    let mut guest = Guest::new(2);
    guest.frame(6, DENTRY).frame(7, FrameUse::PartOf(6));
    let objects = [0, 1, 3, 4, 7, 8, 11, 43];
    for _ in 0..10 {
        for object in objects {
            let field = SLAB + 96 * object + 8;
            guest.increment(0, field).increment(1, field);
        }
    }
    let table = guest.table(&untyped(&[]));
    assert_eq!(table.lines.len(), objects.len());
    for (line, object) in table.lines.iter().zip(objects) {
        assert_eq!(line.counts, counts(true_sharing(2, 18), 19));
        assert_eq!(names(&line.fields), ["dentry+0x8"]);
        assert_eq!(line.objects[0].addr, format!("{:016x}", SLAB + 96 * object));
    }
    let change = guest.what_if(&untyped(&[]), &["dentry+8:8 -> own line"]).unwrap();
    assert_eq!(change.before.all_misses(), change.after.all_misses(), "all of it is true sharing");
    assert_eq!(change.moved[0].objects.as_ref().map(|objects| objects.number), Some(8));
}

#[test]
fn neighbours_in_a_line_are_two_objects() {
    let mut guest = Guest::new(2);
    // Caches have numbers in the order of their first use.
    guest.frame(5, DENTRY).frame(6, KMALLOC_32);
    for _ in 0..10 {
        guest.increment(0, SLAB).increment(1, SLAB + 40);
    }
    let table = guest.table(&untyped(&[]));
    let line = &table.lines[0];
    assert_eq!(line.counts, counts(false_sharing(2, 18), 19));
    assert_eq!(names(&line.fields), ["kmalloc-32+0x0", "kmalloc-32+0x8"]);
    let titles: Vec<&str> = line.objects.iter().map(|object| object.title.as_str()).collect();
    let [first, second] = [SLAB, SLAB + 32].map(|addr| format!("slab kmalloc-32 at {addr:x}"));
    assert_eq!(titles, [&second, &first], "the second upgrades once more");
    let object = "each object of slab kmalloc-32".to_owned();
    assert_eq!(line.cure, Cure::Align { object, beside: vec![second] });

    let change = guest.what_if(&untyped(&[]), &["kmalloc-32 -> own line"]).unwrap();
    assert_eq!((change.after.all_misses().coherence(), change.after.upgrades.kernel), (0, 0));
}

#[test]
fn errors_name_what_cannot_move() {
    let guest = written_beside_read();
    let symbol_and_cache = untyped(&[(STATIC, 16, "dentry")]);
    for (names, request, expected) in [
        (&typed(), "dentry.other -> own line", "dentry has no field .other"),
        (&typed(), "dentry+60:8 -> own line", "which has 64 bytes"),
        (&typed(), "static dentry -> own line", "no data with the symbol dentry"),
        (&typed(), "slab pair -> own line", "no slab cache or structure of this name"),
        (&typed(), "inode -> own line", "no data with the symbol inode"),
        (&untyped(&[]), "dentry.count -> own line", "BTF does not describe the type of dentry"),
        (
            &symbol_and_cache,
            "dentry -> own line",
            "a symbol dentry, and a slab cache: write 'static dentry",
        ),
    ] {
        let error = guest.what_if(names, &[request]).unwrap_err().to_string();
        assert!(error.contains(expected), "{request}: {error}");
    }
    for request in ["slab dentry -> own line", "static dentry -> own line"] {
        guest.what_if(&symbol_and_cache, &[request]).unwrap();
    }
    let twice = ["dentry -> own line", "dentry.count -> own line"];
    let error = guest.what_if(&typed(), &twice).unwrap_err().to_string();
    assert!(error.contains("dentry.count overlaps another"), "{error}");

    let mut guest = Guest::new(2);
    guest.frame(6, DENTRY).increment(0, SLAB).increment(1, SLAB + 8);
    let error = guest.what_if(&untyped(&[]), &["dentry -> own line"]).unwrap_err().to_string();
    assert!(error.contains("the size of the objects of slab cache dentry is not known"), "{error}");
}
