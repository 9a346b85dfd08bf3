//! The points that the processor and the model are compared on: each a small function whose time
//! depends on one structure. Points of a curve differ only in their size.
//!
//! Output: the points, and the C text of a program that runs them (`driver.c`). This module runs
//! nothing.
//!
//! To add a point: an entry in `singles.rs`. To add a curve: its sizes, its function, and
//! its steps in `steps.rs`.

use super::point::{Memory, Point, repeated};
use super::singles::{SINGLES, single};
use super::{inlined, random_bits, thunks, window};
use anyhow::{Result, bail};
use lab::bare;
use std::collections::BTreeSet;
use suite::random::Random;

const DRIVER: &str = include_str!("driver.c");
const HEADERS: [(&str, &str); 2] =
    [("judged.h", include_str!("judged.h")), ("programs.h", include_str!("programs.h"))];

/// Eight bytes: a move that needs no port, and a constant.
const PAIR: &str = "mov %r8, %rdx\nmov $1, %ecx";

/// A point of a curve whose loop has `each` operations, and at least `least` of them in a run.
fn on_curve(curve: &str, size: u64, each: u64, least: u64) -> Point {
    let iterations = (least / each).max(2);
    Point {
        name: format!("{curve}/{size}"),
        size: Some(size),
        operations: each * iterations,
        iterations,
        memory: Memory::None,
        expected: iterations,
        before: "mov %rdi, %rax".to_owned(),
        body: String::new(),
        after: String::new(),
    }
}

/// Straight code of `size` KB: one operation is a line of 64 bytes, 16 instructions.
fn code(size: u64) -> Point {
    let body = repeated(size * 128, PAIR);
    Point { body, ..on_curve("code", size, size * 16, 30_000) }
}

/// `size` blocks of five instructions, each of which jumps to the next, four in a line.
fn starts(size: u64) -> Point {
    let moves = ["r8", "r9", "r10", "r11"].map(|to| format!("mov %rdi, %{to}\n")).concat();
    let body = repeated(size, &format!("{moves}jmp 2f\n.balign 16\n2:"));
    Point { body, ..on_curve("starts", size, size, 150_000) }
}

/// `size` taken jumps, 16 bytes apart.
fn btb(size: u64) -> Point {
    let body = repeated(size, "jmp 2f\n.balign 16\n2:");
    Point { body, ..on_curve("btb", size, size, 150_000) }
}

/// A way through places of the code.
#[derive(Clone, Copy)]
struct Places {
    curve: &'static str,
    /// The bytes from one place to the next.
    bytes: u64,
    /// The bytes that each of 64 lies further in its place.
    skew: u64,
    least: u64,
    /// The content of a place, in front of the target of its last instruction.
    goes: &'static str,
}

const BTB_RANDOM: Places =
    Places { curve: "btb-random", bytes: 64, skew: 0, least: 60_000, goes: "jmp" };
/// Each place has a second jump, to which the first goes.
const BTB_PAIR: Places =
    Places { curve: "btb-pair", goes: "jmp 2f\n.balign 32\n2:\njmp", ..BTB_RANDOM };
/// Conditional branches that are always taken.
const BTB_CONDITIONAL: Places =
    Places { curve: "btb-conditional", goes: "cmp %rax, %rax\nje", ..BTB_RANDOM };
const L1I: Places = Places { curve: "l1i", least: 150_000, ..BTB_RANDOM };
const ITLB: Places = Places { curve: "itlb", bytes: 4096, skew: 64, ..BTB_RANDOM };

/// A way through `size` places in random order.
fn jumps(places: Places, size: u64) -> Point {
    let Places { curve, bytes, skew, least, goes } = places;
    let mut order: Vec<u64> = (0..size).collect();
    Random::new(size).shuffle(&mut order);
    let mut next = vec![String::new(); order.len()];
    let name = curve.replace('-', "_");
    let label = |place: u64| format!(".L{name}_{size}_{place}");
    let end = format!(".L{name}_{size}_end");
    for pair in order.windows(2) {
        next[pair[0] as usize] = label(pair[1]);
    }
    let first = order.first().copied().unwrap_or(0);
    let mut body = format!("jmp {}\n", label(first));
    for (place, next) in (0..size).zip(next) {
        // The one without a successor is the last.
        let next = if next.is_empty() { end.clone() } else { next };
        body += &format!(".balign {bytes}\n");
        if skew > 0 && place % 64 > 0 {
            body += &format!(".skip {}, 0x90\n", place % 64 * skew);
        }
        body += &format!("{}:\n{goes} {next}\n", label(place));
    }
    body += &format!("{end}:");
    Point { body, ..on_curve(curve, size, size, least) }
}

/// 128 KB of instructions of `bytes` bytes each, which the decoders deliver.
fn decode((bytes, instruction): (u64, &str)) -> Point {
    let count = (128 << 10) / bytes;
    Point { body: repeated(count, instruction), ..on_curve("decode", bytes, count, 400_000) }
}

/// A string instruction that is repeated for `size` bytes, 8 at a time.
fn string(curve: &str, instruction: &str, size: u64) -> Point {
    Point {
        memory: Memory::Scratch,
        body: format!(
            "mov %rdi, %r10\nmov %rsi, %r11\nlea 4096(%rsi), %rdi\nmov ${}, %ecx\n\
             rep {instruction}\nmov %r10, %rdi\nmov %r11, %rsi",
            size / 8
        ),
        ..on_curve(curve, size, 1, 500)
    }
}

/// Code that stays in the uop cache, `additions` of it, and then a line that the L1I lacks, again
/// and again: more lines lie at multiples of 4096 bytes than the sets there hold.
fn alone(additions: u64) -> Point {
    const LINES: u64 = 24;
    let label = |what: &str, n: u64| format!(".Lalone_{additions}_{what}_{n}");
    // The other code lies in other sets. It has lines for itself.
    let (set_count, size) = (56, (4 * additions + 5).div_ceil(64));
    let four = ["rdx", "r8", "r9", "r10"].map(|register| format!("add $1, %{register}\n"));
    let stays = repeated(additions / 4, &four.concat());
    let mut body = format!("jmp {}\n", label("stays", 0));
    for n in 0..LINES {
        body += &format!(
            ".balign 4096\n{}:\nadd $1, %rdx\njmp {}\n.balign 64\n",
            label("line", n),
            label("stays", n + 1)
        );
        let set = n * size % set_count;
        if set > 0 {
            body += &format!(".skip {}, 0x90\n", set * 64);
        }
        body += &format!("{}:\n{stays}\njmp {}\n", label("stays", n), label("line", n));
    }
    body += &format!("{}:", label("stays", LINES));
    let point = on_curve("l1i-alone", additions, LINES, 60_000);
    Point { size: None, body, ..point }
}

/// Calls `size` deep, each from another place.
fn returns(size: u64) -> Point {
    let function = |at: u64| format!(".Lreturns_{size}_{at}");
    let mut after = "ret\n".to_owned();
    for at in 0..size {
        after += &format!(".balign 16\n{}:\ninc %rax\n", function(at));
        if at + 1 < size {
            after += &format!("call {}\n", function(at + 1));
        }
        after += "ret\n";
    }
    let point = on_curve("returns", size, size, 60_000);
    Point {
        expected: point.operations,
        before: "xor %eax, %eax".to_owned(),
        body: format!("call {}", function(0)),
        after,
        ..point
    }
}

/// `size` functions in random order, each called from one place.
fn calls_once(size: u64) -> Point {
    let mut order: Vec<u64> = (0..size).collect();
    Random::new(size).shuffle(&mut order);
    let function = |n: u64| format!(".Lcall_once_{size}_{n}");
    let (mut body, mut after) = (String::new(), "ret\n".to_owned());
    for n in 0..size {
        body += &format!("mov %rcx, %r10\nmov $7, %r11d\nadd %rcx, %r8\ncall {}\n", function(n));
    }
    let additions = ["r8", "r9", "r10", "r11"].map(|name| format!("add %rcx, %{name}\n")).concat();
    for n in order {
        after += &format!(".balign 64\n{}:\n{additions}{additions}ret\n", function(n));
    }
    Point { body, after, ..on_curve("call-once", size, size, 40_000) }
}

/// `%rcx` goes through the numbers below `size`, again and again.
fn next_index(size: u64) -> String {
    format!("inc %rcx\nxor %r9d, %r9d\ncmp ${size}, %rcx\ncmove %r9, %rcx\n")
}

/// A branch that follows a random pattern of `size` outcomes, again and again.
fn direction(size: u64) -> Point {
    let iterations = size * (40_000 / size).max(16);
    Point {
        operations: iterations,
        iterations,
        memory: Memory::Pattern { count: size },
        before: "xor %eax, %eax\nxor %ecx, %ecx".to_owned(),
        body: format!(
            "movzbl (%rsi, %rcx), %edx\n{}test %edx, %edx\nje 2f\ninc %rax\n2:",
            next_index(size)
        ),
        ..on_curve("direction", size, 1, 1)
    }
}

/// Eight branches, one behind the other, that follow a random pattern of `size` outcomes, again and
/// again.
fn directions(size: u64) -> Point {
    const BRANCHES: u64 = 8;
    let iterations = size / BRANCHES * (80_000 / size).max(16).next_multiple_of(BRANCHES);
    let branch = |n: u64| format!("cmpb $0, {n}(%rsi, %rcx)\nje 2f\ninc %rax\n2:\n");
    let branches: String = (0..BRANCHES).map(branch).collect();
    Point {
        operations: iterations * BRANCHES,
        iterations,
        memory: Memory::Pattern { count: size },
        before: "xor %eax, %eax\nxor %ecx, %ecx".to_owned(),
        body: format!(
            "{branches}add ${BRANCHES}, %rcx\nxor %r9d, %r9d\ncmp ${size}, %rcx\ncmove %r9, %rcx"
        ),
        // The driver expects the sum of the pattern for as many iterations as it is long.
        after: format!("shr ${}, %rax", BRANCHES.trailing_zeros()),
        ..on_curve("direction-eight", size, 1, 1)
    }
}

/// An indirect jump that goes to `size` targets in random order, again and again.
fn indirect(size: u64) -> Point {
    let iterations = size * (24_000 / size).max(24);
    let targets = repeated(size, "inc %rax\njmp 3f\n.balign 16");
    Point {
        operations: iterations,
        iterations,
        memory: Memory::Targets { count: size },
        expected: iterations,
        before: "xor %eax, %eax\nxor %ecx, %ecx".to_owned(),
        body: format!(
            "mov (%rsi, %rcx, 8), %rdx\n{}jmp *%rdx\n.balign 16\n\
             .Ltargets_indirect_{size}:\n{targets}\n3:",
            next_index(size)
        ),
        ..on_curve("indirect", size, 1, 1)
    }
}

/// An indirect jump that goes to 8 targets in random order, and `jumps` other jumps behind it. The
/// target before says where it goes, as long as the predictor sees so far.
fn indirect_far(jumps: u64) -> Point {
    const TARGETS: u64 = 8;
    let targets = repeated(TARGETS, "inc %rax\njmp 3f\n.balign 16");
    let others = repeated(jumps, "jmp 4f\n.balign 16\n4:");
    let point = on_curve("indirect-far", jumps, 1, 24_000);
    Point {
        memory: Memory::Targets { count: TARGETS },
        expected: point.operations,
        before: "xor %eax, %eax\nxor %ecx, %ecx".to_owned(),
        body: format!(
            "mov (%rsi, %rcx, 8), %rdx\n{}jmp *%rdx\n.balign 16\n\
             .Ltargets_indirect_far_{jumps}:\n{targets}\n3:\n{others}",
            next_index(TARGETS)
        ),
        ..point
    }
}

/// Loads in `size` places, each of what the store before it wrote. Another register names the
/// address.
fn predicted(size: u64) -> Point {
    let point = on_curve("predicted", size, size, 60_000);
    Point {
        memory: Memory::Scratch,
        expected: point.operations,
        before: "xor %eax, %eax\nmov $1, %ecx\nmov %rsi, %rdx".to_owned(),
        body: repeated(size, "mov %rax, (%rsi)\nmov (%rdx), %rax\nadd %rcx, %rax"),
        ..point
    }
}

/// Dependent loads through `count` pointers.
fn chase(curve: &str, size: u64, count: u64, stride: u64, skew: u64) -> Point {
    // Sixteen loads in an iteration; a run goes round the whole cycle.
    let whole = if count.is_multiple_of(16) { 1 } else { 16 };
    let rounds = (60_000 / count).max(1).next_multiple_of(whole);
    let iterations = count * rounds / 16;
    Point {
        operations: iterations * 16,
        iterations,
        memory: Memory::Chain { count, stride, skew },
        before: "mov %rsi, %rax".to_owned(),
        body: repeated(16, "mov (%rax), %rax"),
        ..on_curve(curve, size, 1, 1)
    }
}

/// A load of each line of `size` KB, in sequence.
fn sweep(size: u64) -> Point {
    const LOADS: u64 = 16;
    let lines = size * 1024 / 64;
    let loads: String = (0..LOADS).map(|n| format!("mov {}(%rdx), %r8\n", 64 * n)).collect();
    Point {
        memory: Memory::Chain { count: lines, stride: 64, skew: 0 },
        body: format!(
            "mov %rsi, %rdx\nmov ${}, %ecx\n2:\n{loads}add ${}, %rdx\ndec %ecx\njnz 2b",
            lines / LOADS,
            64 * LOADS
        ),
        after: "mov %rsi, %rax".to_owned(),
        ..on_curve("sweep", size, lines, 60_000)
    }
}

/// Lines of no-ops, `no_ops` of `bytes` each, and a jump to the next line.
fn no_ops_in_line((no_ops, bytes): (u64, u64)) -> Point {
    const LINES: u64 = 32;
    let line = format!(".nops {}, {bytes}\njmp 2f\n.balign 64\n2:", no_ops * bytes);
    let point = on_curve("windows", no_ops, LINES, 60_000);
    Point { size: None, body: repeated(LINES, &line), ..point }
}

/// 128 blocks of 1 to 2 × `length` - 1 instructions, such as programs have, in random order: each
/// ends with a taken branch. One operation is an instruction.
fn mixed(length: u64) -> Point {
    const BLOCKS: u64 = 128;
    let mut random = Random::new(length);
    let mut order: Vec<u64> = (0..BLOCKS).collect();
    random.shuffle(&mut order[1..]);
    let mut next = vec![BLOCKS; order.len()];
    for pair in order.windows(2) {
        next[pair[0] as usize] = pair[1];
    }
    let label = |block: u64| format!(".Lmixed_{length}_{block}");
    let (mut body, mut instructions) = (String::new(), 0);
    for (block, next) in (0..BLOCKS).zip(next) {
        let more = random.number() % (2 * length - 1);
        body += &format!("{}:\n", label(block));
        for _ in 0..more {
            instructions += 1;
            let register = ["rax", "rcx", "r8", "r9", "r10", "r11"][instructions % 6];
            let at = random.number() % 64 * 8;
            body += &match random.number() % 20 {
                0..8 => format!("add $1, %{register}\n"),
                8..12 => format!("mov {at}(%rsi), %{register}\n"),
                // With the loads' register, a multiple of 1024 bytes further than a load, the store
                // would be taken for the load's.
                12..14 => format!("mov %{register}, {at}(%rdx)\n"),
                14..17 => format!("mov ${at}, %{register}\n"),
                _ => format!("lea {at}(%rsi), %{register}\n"),
            };
        }
        // No addition carries.
        body += &format!("jnc {}\n", label(next));
        instructions += 1;
    }
    body += &format!("{}:", label(BLOCKS));
    Point {
        memory: Memory::Scratch,
        expected: 0,
        before: "lea 1024(%rsi), %rdx\nxor %eax, %eax".to_owned(),
        body,
        after: "xor %eax, %eax".to_owned(),
        ..on_curve("mixed", length, instructions as u64, 60_000)
    }
}

const CODE: [u64; 20] =
    [4, 8, 12, 16, 20, 22, 24, 26, 28, 32, 36, 40, 48, 64, 128, 256, 512, 768, 1024, 1536];
const BTB: [u64; 18] = [
    256, 512, 768, 1024, 1280, 1408, 1536, 1664, 1792, 2048, 2560, 3072, 4096, 5120, 6144, 7168,
    8192, 10240,
];
const STARTS: [u64; 8] = [512, 640, 768, 800, 832, 896, 1024, 1280];
const L1I_SIZES: [u64; 15] =
    [128, 256, 384, 448, 480, 512, 544, 576, 640, 768, 832, 896, 960, 1024, 1280];
const RETURNS: [u64; 14] = [4, 8, 12, 16, 20, 24, 28, 30, 32, 34, 36, 40, 48, 64];
const DIRECTION: [u64; 12] = [16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 24576, 32768];
/// Each place in a line of its own, in random order.
const BTB_RANDOM_SIZES: [u64; 5] = [1024, 2048, 3072, 4096, 6144];
/// Size in bytes.
const STRINGS: [u64; 4] = [8, 64, 512, 2048];
const INDIRECT: [u64; 11] = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048];
const DTLB: [u64; 18] =
    [16, 32, 48, 64, 68, 72, 76, 80, 96, 128, 256, 512, 1024, 2048, 2560, 3072, 4096, 6144];
const ITLB_SIZES: [u64; 12] = [16, 32, 48, 56, 60, 64, 68, 72, 80, 96, 128, 256];
const PREDICTED: [u64; 7] = [8, 16, 20, 24, 28, 32, 48];
/// Size in KB.
const CACHE: [u64; 27] = [
    8, 16, 24, 28, 32, 36, 40, 48, 64, 96, 128, 256, 512, 768, 896, 1024, 1152, 1280, 1536, 2048,
    4096, 8192, 16384, 24576, 32768, 49152, 65536,
];

/// All points, in the order of the program's table.
pub(super) fn all() -> Vec<Point> {
    let mut points: Vec<Point> = SINGLES.iter().map(single).collect();
    points.extend(random_bits::points());
    points.extend([12, 28, 60].map(alone));
    points.extend([2, 4, 6, 8, 16].map(mixed));
    points.extend([(5, 11), (11, 5), (12, 5), (17, 3), (23, 2), (29, 2)].map(no_ops_in_line));
    points.extend(CODE.map(code));
    points.extend(STARTS.map(starts));
    points.extend(BTB.map(btb));
    points.extend(BTB_RANDOM_SIZES.map(|size| jumps(BTB_RANDOM, size)));
    points.extend([1024, 2048, 3072, 4096].map(|size| jumps(BTB_PAIR, size)));
    points.extend([3072, 6144].map(|size| jumps(BTB_CONDITIONAL, size)));
    points.extend(L1I_SIZES.map(|size| jumps(L1I, size)));
    points.extend(ITLB_SIZES.map(|size| jumps(ITLB, size)));
    points.extend([(5, "mov $1, %ecx"), (7, "mov $1, %rcx")].map(decode));
    points.extend(STRINGS.map(|size| string("string-stores", "stosq", size)));
    points.extend(STRINGS.map(|size| string("string-moves", "movsq", size)));
    points.extend(RETURNS.map(returns));
    points.extend([512, 1024, 2000, 3000, 4000].map(calls_once));
    points.extend(thunks::points());
    points.extend(inlined::points());
    points.extend(DIRECTION.map(direction));
    points.extend([128, 1024, 4096].map(directions));
    points.extend(INDIRECT.map(indirect));
    points.extend([0, 1, 2, 3].map(indirect_far));
    points.extend(PREDICTED.map(predicted));
    points.extend(window::points());
    points.extend(DTLB.map(|size| chase("dtlb", size, size, 4096, 64)));
    points.extend(CACHE.map(|size| chase("cache", size, size * 16, 64, 0)));
    points.extend([16, 128, 512, 2048].map(sweep));
    points
}

/// The points with one of these names before the slash, or all if there is no name.
///
/// # Errors
/// A name is of no point. The error lists all.
pub(super) fn of(curves: &[String]) -> Result<Vec<Point>> {
    let mut points = all();
    let has = |name: &&String| points.iter().any(|point| point.curve() == **name);
    if let Some(unknown) = curves.iter().find(|name| !has(name)) {
        let names: BTreeSet<&str> = points.iter().map(Point::curve).collect();
        bail!("no point is called {unknown}/…; there are {}", Vec::from_iter(names).join(", "));
    }
    points.retain(|point| curves.is_empty() || curves.iter().any(|name| name == point.curve()));
    Ok(points)
}

/// The operation of a point.
pub(super) fn operation(point: &Point) -> &'static str {
    match point.curve() {
        "latency" | "throughput" | "mixed" | "decode" => "instruction",
        "string-stores" | "string-moves" => "repeated instruction",
        "forward" | "predicted" => "store, load and addition",
        "code" | "windows" => "line of 64 bytes",
        "starts" => "block of five instructions",
        "btb" | "btb-random" | "l1i" | "itlb" => "taken jump",
        "btb-pair" => "pair of taken jumps",
        "btb-conditional" => "taken branch",
        "l1i-alone" => "line and what is before it",
        "returns" | "call-once" | thunks::CURVE | inlined::CURVE => "call and return",
        "direction" => "iteration with the branch",
        curve if random_bits::has(curve) => "iteration with the branch",
        "direction-eight" => "branch",
        "indirect" | "indirect-far" => "iteration with the jump",
        curve if window::has(curve) => "chain and what is behind it",
        _ => "load",
    }
}

/// The C text of the program that runs `points`.
pub(super) fn source(points: &[Point]) -> String {
    let (mut functions, mut table, mut names) = (String::new(), String::new(), String::new());
    for (n, point) in points.iter().enumerate() {
        functions += &format!(
            ".balign 64\n.Lpoint_{n}:\n{}\n.balign 64\n1:\n{}\ndec %rdi\njnz 1b\n{}\nret\n",
            point.before, point.body, point.after
        );
        names += &format!(".Lname_{n}: .asciz \"{}\"\n", point.name);
        let (memory, count, stride, skew, targets) = match point.memory {
            Memory::None => (0, 0, 0, 0, None),
            Memory::Chain { count, stride, skew } => (1, count, stride, skew, None),
            Memory::Pattern { count } => (2, count, 0, 0, None),
            Memory::Targets { count } => (3, count, 0, 0, Some(&point.name)),
            Memory::Scratch => (4, 0, 0, 0, None),
        };
        let label = |name: &String| format!(".Ltargets_{}", name.replace(['/', '-'], "_"));
        let targets = targets.map_or("0".to_owned(), label);
        table += &format!(
            ".quad .Lname_{n}, .Lpoint_{n}, {}, {memory}, {count}, {stride}, {skew}, {}, \
             {targets}\n",
            point.iterations, point.expected
        );
    }
    let assembly = format!(
        ".pushsection .text\n{functions}.popsection\n.pushsection .rodata\n{names}.balign 8\n\
         .globl points, points_end\npoints:\n{table}points_end:\n.popsection\n"
    );
    let escaped = assembly.replace('"', "\\\"");
    let lines: String = escaped.lines().map(|line| format!("    \"{line}\\n\"\n")).collect();
    format!("{DRIVER}\nasm(\n{lines});\n")
}

/// Names a program, of its [`source`]: what it was compiled of decides.
pub(super) fn hash(source: &str) -> String {
    let headers = bare::HEADERS.iter().chain(&HEADERS).map(|(_, text)| *text);
    image::sealed::sha256((source.to_owned() + &headers.collect::<String>()).as_bytes())
}

/// Compiles a [`source`].
///
/// # Errors
/// There is no C compiler.
pub(super) fn compile(source: &str) -> Result<Vec<u8>> {
    bare::compile_with("judged", source, &HEADERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn points_have_names_of_their_own_and_sizes_ascend() {
        let points = all();
        let names: BTreeSet<&str> = points.iter().map(|point| point.name.as_str()).collect();
        assert_eq!(names.len(), points.len());
        for pair in points.windows(2).filter(|pair| pair[0].curve() == pair[1].curve()) {
            assert!(pair[0].size <= pair[1].size, "{} {}", pair[0].name, pair[1].name);
        }
    }

    #[test]
    fn points_are_chosen_by_their_names() {
        let of =
            |names: &[&str]| of(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        let chosen = of(&["thunk", "returns"]).unwrap();
        assert!(chosen.iter().all(|point| ["thunk", "returns"].contains(&point.curve())));
        assert_eq!(chosen.len(), RETURNS.len() + thunks::points().count());
        assert_eq!(of(&[]).unwrap().len(), all().len());
        let error = of(&["thunk", "thunks"]).unwrap_err().to_string();
        assert!(error.contains("thunks/") && error.contains("returns, "), "{error}");
    }

    #[test]
    fn the_program_builds_and_every_result_is_right() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("judged");
        let program = compile(&source(&all())).unwrap();
        std::fs::write(&path, program).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let run = |words: &[&str]| Command::new(&path).args(words).output().unwrap();
        let checked = run(&["check"]);
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        let measured = run(&["latency/add", "2"]);
        let printed = String::from_utf8(measured.stdout).unwrap();
        assert_eq!(printed.lines().count(), 2, "{printed}");
        assert!(printed.lines().all(|line| line.split(' ').count() == 7), "{printed}");
        assert!(!run(&["nothing", "2"]).status.success());
    }
}
