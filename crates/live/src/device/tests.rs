//! Compares the interface with its header; reads what the device says.

use super::*;
use std::mem::offset_of;

const HEADER: &str = include_str!("../../../../kmod/kernlane.h");

/// The value of a constant of the header.
fn constant(name: &str) -> usize {
    let begin = format!("#define {name}\t");
    let line = HEADER.lines().find(|line| line.starts_with(&begin)).unwrap();
    line[begin.len()..].trim().parse().unwrap()
}

/// Name, offset and bytes of each field of a structure of the header, and the size of all.
fn structure(name: &str) -> (Vec<(String, usize, usize)>, usize) {
    let begin = format!("struct kernlane_{name} {{\n");
    let from = HEADER.find(&begin).unwrap() + begin.len();
    let (mut fields, mut at, mut align) = (Vec::new(), 0_usize, 1);
    for line in HEADER[from..].lines().take_while(|line| *line != "};") {
        let (kind, field) = line.trim().trim_end_matches(';').split_once(' ').unwrap();
        let one = match kind {
            "char" | "__u8" => 1,
            "__u32" | "__s32" => 4,
            "__u64" => 8,
            other => panic!("{other}"),
        };
        let (field, count) = match field.trim_end_matches(']').split_once('[') {
            None => (field, 1),
            Some((field, count)) => (field, count.parse().unwrap_or_else(|_| constant(count))),
        };
        at = at.next_multiple_of(one);
        align = align.max(one);
        fields.push((field.to_owned(), at, one * count));
        at += one * count;
    }
    (fields, at.next_multiple_of(align))
}

macro_rules! assert_fields {
    ($kind:ty, $name:literal, $($field:ident: $bytes:expr),* $(,)?) => {
        let (fields, size) = structure($name);
        let ours = [$((stringify!($field).to_owned(), offset_of!($kind, $field), $bytes)),*];
        assert_eq!((&ours[..], size_of::<$kind>()), (&fields[..], size), $name);
    };
}

#[test]
fn the_structures_are_those_of_the_header() {
    assert_fields!(
        RawFunction, "function",
        entry: 8, copy: 8, patch_at: 1, expected: constant("KERNLANE_JUMP"),
        carried: 1, reserved: 1,
    );
    assert_fields!(RawCall, "call", site: 8, function: 4, reserved: 4);
    assert_fields!(
        RawGroup, "group",
        module: NAME, number: NUMBER, functions: 8, calls: 8, nr_functions: 4, nr_calls: 4,
        reserved: 8, bad_address: 8,
    );
    assert_fields!(
        RawCounters, "counters",
        module: NAME, number: NUMBER, sums: 8, nr: 4, reserved: 4,
    );
    assert_fields!(
        FunctionTime, "time",
        entered: 8, returned: 8, missed: 8, ns: 8, out_ns: 8,
    );
    assert_fields!(
        RawTiming, "timing",
        entries: 8, times: 8, nr: 4, milliseconds: 4, missed: 8,
    );
}

#[test]
fn the_constants_are_those_of_the_header() {
    assert_eq!(constant("KERNLANE_NAME"), NAME);
    assert_eq!(constant("KERNLANE_NUMBER"), NUMBER);
    assert_eq!(constant("KERNLANE_MAX_TIMED"), MOST_TIMED);
    assert_eq!(format!("kernlane {}", constant("KERNLANE_VERSION")), VERSION);
    assert_eq!(constant("KERNLANE_MAX_COUNTERS"), emit::module::counter::MOST_COUNTERS);
    let each = emit::module::counter::COUNTERS_A_COOKIE;
    assert_eq!(constant("KERNLANE_COUNTERS_A_COOKIE"), each);
    let header = HEADER.split_whitespace().collect::<Vec<_>>().join(" ");
    for (name, number, structure) in
        [("INSTALL", 1, "group"), ("UNDO", 2, "group"), ("TIME", 4, "timing")]
    {
        let line =
            format!("KERNLANE_{name} _IOWR({GROUP:#x}, {number}, struct kernlane_{structure})");
        assert!(header.contains(&line), "{line}");
    }
    let line = format!("KERNLANE_COUNTERS _IOW({GROUP:#x}, 3, struct kernlane_counters)");
    assert!(header.contains(&line), "{line}");
}

#[test]
fn a_name_has_room_for_the_zero_at_its_end() {
    let id = |length| GroupId { module: "k".repeat(length), number: ModuleNumber([7; NUMBER]) };
    let group = raw_group(&id(NAME - 1)).unwrap();
    assert_eq!(group.module, *[[b'k'; NAME - 1].as_slice(), &[0]].concat());
    assert_eq!(group.number, [7; NUMBER]);
    let error = raw_group(&id(NAME)).err().unwrap().to_string();
    assert!(error.contains("fewer than 56 characters"), "{error}");
}

#[test]
fn a_refusal_says_why_and_what_to_do() {
    for (errno, address, said) in [
        (Errno::ADDRINUSE, 16, "a kprobe is registered at"),
        (Errno::USERS, 16, "detach it while the group is being installed"),
        (Errno::BUSY, 16, "is not what it was: another tool"),
        (Errno::BUSY, 0, "another user of the function tracer"),
        (Errno::PERM, 16, "is in code that must not be replaced"),
        (Errno::PERM, 0, "this needs root"),
        (Errno::NOMEM, 0, "count fewer functions at a time"),
        (Errno::EXIST, 0, "it is installed already, or still leaving"),
        (Errno::INTR, 0, "interrupted"),
        (Errno::INVAL, 0xff, "the module refuses the request because of the address ff"),
    ] {
        let message = refusal(errno, address).to_string();
        assert!(message.contains(said), "{errno:?}: {message}");
    }
}

#[test]
fn means_are_those_of_what_returned() {
    let time = FunctionTime { entered: 9, returned: 4, missed: 1, ns: 100, out_ns: 40 };
    assert_eq!((time.mean(), time.mean_on_cpu()), (Some(25.0), Some(15.0)));
    let none = FunctionTime { returned: 0, ..time };
    assert_eq!((none.mean(), none.mean_on_cpu()), (None, None));
    let odd = FunctionTime { out_ns: 101, ..time };
    assert_eq!(odd.mean_on_cpu(), Some(0.0), "never below zero");
}

#[test]
fn a_busy_bpf_trampoline_is_waited_for_and_not_for_ever() {
    let mut left = 3;
    let done = until_ready(Duration::from_secs(60), || {
        left -= 1;
        if left > 0 { Err(Errno::AGAIN) } else { Ok(()) }
    });
    assert_eq!((done, left), (Ok(()), 0));
    let mut tried = 0;
    let mut busy = || {
        tried += 1;
        Err(Errno::AGAIN)
    };
    assert_eq!(until_ready(Duration::from_millis(50), &mut busy), Err(Errno::AGAIN));
    assert!(tried > 1);
    assert!(refusal(Errno::AGAIN, 0).to_string().contains("wait until that is over"));
    assert_eq!(until_ready(Duration::from_secs(60), || Err(Errno::BUSY)), Err(Errno::BUSY));
}

#[test]
fn the_status_is_read() {
    let text = "kernlane 7\n\
        page 2097152\n\
        group kl_1 installed since 12 functions 1 calls 3 direct 2 poke_us 40 total_us 900 \
        page 4096 number 0f0102030405060708090a0b0c0d0ef0\n\
        function ffffffff81000000 ffffffffc0000000 traced\n\
        function ffffffff81000040 ffffffffc0000040 away\n\
        carried ffffffff81000080 ffffffffc0000080 direct\n";
    let groups = parse(text).unwrap();
    let states: Vec<_> =
        groups[0].functions.iter().map(|f| (f.traced, f.away, f.carried)).collect();
    assert_eq!(states, [(true, false, false), (false, true, false), (false, false, true)]);
    assert_eq!((groups[0].direct, groups[0].functions[0].traced), (2, true));
    assert_eq!((groups[0].page, groups[0].id.module.as_str()), (4096, "kl_1"));
    assert_eq!(groups[0].age(UNIX_EPOCH + Duration::from_millis(99_900)), 87);
    assert_eq!(groups[0].id.number.to_string(), "0f0102030405060708090a0b0c0d0ef0");
    assert_eq!(groups[0].state, GroupState::Installed);
    let leaving = parse(&text.replace(" installed ", " leaving ")).unwrap();
    assert_eq!(leaving[0].state, GroupState::Leaving);
    assert_eq!(leaving[0].state.to_string(), "leaving");
    let unknown = parse(&text.replace(" installed ", " arriving ")).unwrap_err();
    assert!(unknown.to_string().contains("arriving"), "{unknown}");
    assert!(parse("kernlane 7\npage 4096\nfunction 1 2 direct\n").is_err());
    assert!(parse("kernlane 7\npage 4096\ngroup x\n").is_err());
    for (from, to) in [("12", "soon"), ("traced", "traced too"), ("ffffffffc0", "x"), ("0f01", "")]
    {
        let damaged = text.replacen(from, to, 1);
        assert!(parse(&damaged).is_err(), "{damaged}");
    }
}
