//! Makes the tables of uops in `tables/` from LLVM's scheduling models.
//!
//! `cargo run -p kernlane-uops --example make_tables -- LLVM-BIN-DIRECTORY`, such as
//! `/usr/lib/llvm-22/bin`. Takes one instruction of each form that the decoder knows. llvm-objdump
//! names the instruction, and llvm-mca prints the resources that it uses. Instructions that only
//! AVX-512 processors have are left out: QEMU's own code generator does not run them.

mod models;

use anyhow::{Context, Result, bail};
use iced_x86::{Code, Decoder, DecoderOptions, OpKind};
use models::{MODELS, Model};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// An instruction of a form: its code, and whether it names memory.
type Form = (Code, bool);

fn main() -> Result<()> {
    let bin = std::env::args().nth(1).context("give the directory of LLVM's programs")?;
    let bin = Path::new(&bin);
    let directory = tempfile::tempdir()?;
    let forms = forms();
    let texts = names(bin, directory.path(), &forms)?;
    let version = Command::new(bin.join("llvm-mca")).arg("--version").output()?.stdout;
    let version = String::from_utf8_lossy(&version);
    let version = version.lines().find_map(|line| line.split("version ").nth(1)).unwrap_or("?");
    for model in &MODELS {
        let table = table(bin, directory.path(), model, &texts, version)?;
        let file = format!("{}/tables/{}.txt", env!("CARGO_MANIFEST_DIR"), model.cpu);
        std::fs::write(&file, table)?;
        println!("{file}");
    }
    Ok(())
}

/// The bytes of one instruction of each form.
fn forms() -> BTreeMap<(String, bool), Vec<u8>> {
    let mut found: HashMap<Form, Vec<u8>> = HashMap::new();
    let mut offer = |prefix: &[u8]| {
        // Register forms with different registers, and forms with [rbx].
        for reg in 0..8_u8 {
            for modrm in [0xc0 | reg << 3 | (reg + 1) & 7, reg << 3 | 3] {
                let mut bytes = prefix.to_vec();
                bytes.push(modrm);
                bytes.extend([0x11; 8]);
                let mut decoder = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE);
                let instruction = decoder.decode();
                if instruction.is_invalid() {
                    continue;
                }
                let memory = (0..instruction.op_count())
                    .any(|operand| instruction.op_kind(operand) == OpKind::Memory);
                bytes.truncate(instruction.len());
                found.entry((instruction.code(), memory)).or_insert(bytes);
            }
        }
    };
    let mandatory: [&[u8]; 4] = [&[], &[0x66], &[0xf3], &[0xf2]];
    for opcode in 0..=255_u8 {
        for prefix in mandatory {
            for rex in [&[][..], &[0x48]] {
                for map in [&[][..], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]] {
                    // Prefixes, other encodings, and escapes are not opcodes.
                    let escape = match map.len() {
                        0 => matches!(opcode, 0x0f | 0x62 | 0x8f | 0xc4 | 0xc5 | 0x26 | 0x2e | 0x36
                            | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3),
                        1 => matches!(opcode, 0x0f | 0x38 | 0x3a),
                        _ => false,
                    };
                    if !escape {
                        offer(&[prefix, rex, map, &[opcode]].concat());
                    }
                }
            }
        }
        for map in 1..=3_u8 {
            for pp in 0..4_u8 {
                for (long, wide) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    // The second source is register 5.
                    offer(&[0xc4, 0xe0 | map, wide << 7 | !5 << 3 & 0x78 | long << 2 | pp, opcode]);
                    offer(&[0xc4, 0xe0 | map, wide << 7 | 0x78 | long << 2 | pp, opcode]);
                }
            }
        }
    }
    // `Pop_r64` with the operand in modrm is the only instruction of 0x8f that is left out.
    let named = |((code, memory), bytes)| ((format!("{code:?}"), memory), bytes);
    found.into_iter().map(named).collect()
}

/// The text of each form as LLVM prints it.
fn names(
    bin: &Path,
    directory: &Path,
    forms: &BTreeMap<(String, bool), Vec<u8>>,
) -> Result<BTreeMap<(String, bool), String>> {
    // Each instruction has 16 bytes of its own, so that one wrong length does no harm.
    let mut source = String::new();
    for bytes in forms.values() {
        let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte}")).collect();
        writeln!(source, ".p2align 4, 0xcc\n.byte {}", bytes.join(","))?;
    }
    let (assembly, object) = (directory.join("forms.s"), directory.join("forms.o"));
    std::fs::write(&assembly, source)?;
    let mut assemble = Command::new(bin.join("llvm-mc"));
    assemble.args(["-triple=x86_64", "-filetype=obj", "-o"]).arg(&object).arg(&assembly);
    if !assemble.status()?.success() {
        bail!("llvm-mc failed");
    }
    let mut dump = Command::new(bin.join("llvm-objdump"));
    dump.args(["-d", "--no-show-raw-insn", "--no-leading-headers"]).arg(&object);
    let text = String::from_utf8(dump.output()?.stdout)?;
    let mut at = HashMap::new();
    for line in text.lines() {
        let Some((addr, text)) = line.split_once(':') else { continue };
        let Ok(addr) = u64::from_str_radix(addr.trim(), 16) else { continue };
        at.insert(addr, normal(text));
    }
    let place = |index: usize| 16 * index as u64;
    let named = forms.iter().enumerate().filter_map(|(index, (form, bytes))| {
        let text = at.get(&place(index))?;
        // LLVM must know it, and see the same length.
        let whole = bytes.len() == 16
            || at.get(&(place(index) + bytes.len() as u64)).is_some_and(|next| next == "int3")
            || index + 1 == forms.len();
        (whole && !text.is_empty()).then(|| (form.clone(), text.clone()))
    });
    Ok(named.collect())
}

/// One space between words, decimal numbers, no symbols and comments: what both programs print.
fn normal(text: &str) -> String {
    // llvm-objdump prints `<unknown>` for an unknown instruction.
    let text = text.split(['<', '#']).next().unwrap_or("");
    let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    for word in &mut words {
        let parts: Vec<String> = word
            .split_inclusive([',', '(', '$', '-', '*'])
            .map(|part| {
                let (number, end) = match part.find([',', '(', '$', '-', '*']) {
                    Some(at) => part.split_at(at),
                    None => (part, ""),
                };
                match number.strip_prefix("0x").map(|hex| u64::from_str_radix(hex, 16)) {
                    Some(Ok(value)) => format!("{value}{end}"),
                    _ => part.to_owned(),
                }
            })
            .collect();
        *word = parts.concat();
    }
    words.join(" ")
}

/// The output of llvm-mca for an instruction.
#[derive(Clone, Debug)]
struct Scheduling {
    uops: u32,
    latency: u32,
    loads: bool,
    stores: bool,
    /// Resource and cycles.
    resources: Vec<(String, u32)>,
}

fn table(
    bin: &Path,
    directory: &Path,
    model: &Model,
    texts: &BTreeMap<(String, bool), String>,
    version: &str,
) -> Result<String> {
    let (units, scheduling) = schedule(bin, directory, model, texts)?;
    let mut groups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for ((code, memory), text) in texts {
        let Some(entry) = scheduling.get(text) else { continue };
        let registers = texts.get(&(code.clone(), false)).and_then(|text| scheduling.get(text));
        if let Some(line) = entry_text(model, &units, entry, *memory, registers)? {
            let line = corrected(model, code, *memory, line)?;
            let form = if *memory { "m" } else { "r" };
            groups.entry(line).or_default().insert(format!("{code}/{form}"));
        }
    }
    let mask = |names: &[&str]| bits(model.ports(), names.iter().copied());
    let mut text = format!(
        "# Uops of x86 instructions on {}, of {} in LLVM {version}\n\
         # (Apache License v2.0 with LLVM Exceptions), printed by llvm-mca -mcpu={}.\n\
         # Made by: cargo run -p kernlane-uops --example make_tables -- LLVM-BIN-DIRECTORY\n\
         # An entry: slots, latency, ports of each computing uop (hex; *N: kept for N cycles), and\
         \n\
         # the instructions: name in iced-x86, r for registers, m for memory.{}\n\
         uops 1\nname {}\nports {}\nload {:x}\nvector-load {:x}\nstore-address {:x}\n\
         store-data {:x}\nbranch {:x}\n{}fusion {}\n{}",
        model.title,
        model.source,
        model.cpu,
        model.own.as_ref().map_or("", |own| own.source).to_owned()
            + if model.measured.is_empty() {
                ""
            } else {
                "\n# What was measured instead is in examples/make_tables/models.rs."
            },
        model.cpu,
        model.ports().join(" "),
        mask(model.load),
        mask(model.vector_load),
        mask(model.store_address),
        mask(model.store_data),
        mask(model.branch),
        match model.three_part_address {
            [] => String::new(),
            ports => format!("three-part-address {:x}\n", mask(ports)),
        },
        model.fusion,
        if model.renames_operands { "renamed-operands\n" } else { "" }
    );
    for (entry, forms) in groups {
        let mut line = format!("{entry}:");
        for form in forms {
            if line.len() + 1 + form.len() > 100 {
                writeln!(text, "{line}")?;
                line = " ".to_owned();
            }
            line.push(' ');
            line.push_str(&form);
        }
        writeln!(text, "{line}")?;
    }
    writeln!(text, "end")?;
    Ok(text)
}

/// The entry of a form, with what was measured.
fn corrected(model: &Model, code: &str, memory: bool, entry: String) -> Result<String> {
    let plain = code.strip_prefix("VEX_V").unwrap_or(code);
    let begins =
        |name: &&str| plain.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
    let applies = |form: Option<bool>| form.is_none_or(|form| form == memory);
    let found = model.measured.iter().find(|it| applies(it.memory) && it.names.iter().any(begins));
    let Some(measured) = found else { return Ok(entry) };
    let parts: Vec<&str> = entry.splitn(3, ' ').collect();
    let [slots, _, ports] = parts[..] else { bail!("{code}: {entry}") };
    Ok(format!("{slots} {} {}", measured.latency, measured.ports.unwrap_or(ports)))
}

type Units = HashMap<String, Vec<String>>;

/// The units of each resource, and the scheduling of each text.
fn schedule(
    bin: &Path,
    directory: &Path,
    model: &Model,
    texts: &BTreeMap<(String, bool), String>,
) -> Result<(Units, HashMap<String, Scheduling>)> {
    let distinct: Vec<&String> = texts.values().collect::<BTreeSet<_>>().into_iter().collect();
    let (mut units, mut scheduling) = (Units::new(), HashMap::new());
    // llvm-mca fails on all of its input when it does not read an instruction, and crashes when it
    // skips one that the processor lacks. It names most of them: they are left out. What fails
    // without a name is cut in halves, down to single instructions.
    let mut parts = vec![distinct];
    while let Some(part) = parts.pop() {
        let source = directory.join("part.s");
        let lines: String = part.iter().map(|text| format!("{text}\n")).collect();
        std::fs::write(&source, lines)?;
        let mut mca = Command::new(bin.join("llvm-mca"));
        mca.args(["-mtriple=x86_64", "-instruction-tables=full", "-resource-pressure=false"])
            .arg("-skip-unsupported-instructions=any")
            .arg(format!("-mcpu={}", model.cpu))
            .arg(&source);
        let output = mca.output()?;
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        let named = named(&messages, &part);
        if output.status.success() && named.is_empty() {
            read(&String::from_utf8(output.stdout)?, &mut units, &mut scheduling);
        } else if !named.is_empty() {
            parts.push(part.into_iter().filter(|text| !named.contains(*text)).collect());
        } else if let [alone] = part[..] {
            println!("{}: left out: {alone}", model.cpu);
        } else {
            let (first, second) = part.split_at(part.len() / 2);
            parts.extend([first.to_vec(), second.to_vec()]);
        }
    }
    Ok((units, scheduling))
}

/// The instructions that llvm-mca's messages name.
fn named(messages: &str, part: &[&String]) -> BTreeSet<String> {
    let unread = |line: &str| {
        let (_, rest) = line.split_once("part.s:")?;
        let number: usize = rest.split_once(':')?.0.parse().ok()?;
        part.get(number.checked_sub(1)?).map(|text| text.to_string())
    };
    let lacking = |line: &str| Some(normal(line.strip_prefix("note: instruction:")?));
    let of_part: BTreeSet<&&String> = part.iter().collect();
    let lines = messages.lines();
    let all = lines.filter_map(|line| unread(line).or_else(|| lacking(line)));
    all.filter(|text| of_part.contains(&text)).collect()
}

/// Reads what llvm-mca printed.
fn read(text: &str, units: &mut Units, scheduling: &mut HashMap<String, Scheduling>) {
    let mut in_table = false;
    for line in text.lines() {
        if let Some((_, resource)) = line.split_once(" - ").filter(|_| line.starts_with('[')) {
            let (name, rest) = resource.trim().split_once(':').unwrap_or((resource.trim(), ""));
            let of: Vec<String> = rest
                .split([' ', ','])
                .skip(1)
                .filter(|unit| !unit.is_empty())
                .map(str::to_owned)
                .collect();
            let own = vec![name.to_owned()];
            units.entry(name.to_owned()).or_insert(if of.is_empty() { own } else { of });
        } else if line.starts_with("[1]") && line.contains("Instructions:") {
            in_table = true;
        } else if in_table && let Some((text, entry)) = row(line) {
            scheduling.insert(text, entry);
        }
    }
}

/// A row: uops, latency, throughput, flags, bypass, resources, opcode, and the instruction.
fn row(line: &str) -> Option<(String, Scheduling)> {
    let (numbers, rest) = line.split_at_checked(24)?;
    let mut numbers = numbers.split_whitespace();
    let uops = numbers.next()?.parse().ok()?;
    let latency = numbers.next()?.parse().ok()?;
    let mut words = rest.split_whitespace().peekable();
    while words.next_if(|word| matches!(*word, "*" | "U")).is_some() {}
    // The columns distinguish loads from stores.
    let star =
        |from: usize| line.as_bytes().get(from..from + 6).is_some_and(|it| it.contains(&b'*'));
    words.next()?.parse::<u32>().ok()?;
    let resources = words.next()?;
    words.next()?;
    let text = words.collect::<Vec<_>>().join(" ");
    let mut parsed = Vec::new();
    let mut depth = 0;
    let split = resources.split(|at: char| {
        depth += i32::from(at == '[') - i32::from(at == ']');
        at == ',' && depth == 0
    });
    for resource in split {
        let (name, cycles) = match resource.split_once('[') {
            Some((name, cycles)) => {
                let last = cycles.trim_end_matches(']').rsplit(',').next()?;
                (name, last.parse().ok()?)
            }
            None => (resource, 1),
        };
        parsed.push((name.to_owned(), cycles));
    }
    let entry = Scheduling { uops, latency, loads: star(21), stores: star(28), resources: parsed };
    Some((normal(&text), entry))
}

/// The bits of `names` among `all`.
fn bits<'a>(all: &[&str], names: impl Iterator<Item = &'a str>) -> u16 {
    names.fold(0, |mask, name| {
        let port = all.iter().position(|port| *port == name);
        mask | port.map_or(0, |port| 1 << port)
    })
}

impl Model {
    /// The ports of the table.
    fn ports(&self) -> &'static [&'static str] {
        self.own.as_ref().map_or(self.units, |own| own.ports)
    }

    /// The ports of the table that execute what these units of LLVM's model do.
    fn ports_of(&self, units: u16) -> Result<u16> {
        let Some(own) = &self.own else { return Ok(units) };
        let is = |group: &&(&[&str], &[&str])| bits(self.units, group.0.iter().copied()) == units;
        let group = own.groups.iter().find(is);
        let (_, ports) = group.with_context(|| format!("{}: no ports for {units:x}", self.cpu))?;
        Ok(bits(own.ports, ports.iter().copied()))
    }
}

/// Slots, latency and computing uops. `None`: the model has nothing to say.
fn entry_text(
    model: &Model,
    units: &Units,
    entry: &Scheduling,
    memory: bool,
    registers: Option<&Scheduling>,
) -> Result<Option<String>> {
    // A microcoded instruction has a placeholder.
    if entry.uops > 40 {
        return Ok(None);
    }
    let mask_of = |name: &str| {
        let units = units.get(name).map_or(&[][..], |units| units);
        bits(model.units, units.iter().map(String::as_str))
    };
    let ignored = |name: &str| model.ignored.contains(&name);
    let mut groups: BTreeMap<u16, u32> = BTreeMap::new();
    for (name, cycles) in entry.resources.iter().filter(|(name, _)| !ignored(name)) {
        let mask = mask_of(name);
        if mask != 0 {
            let most = groups.entry(mask).or_insert(0);
            *most = (*most).max(*cycles);
        }
    }
    // A group's cycles include those of the groups within it.
    let all: Vec<(u16, u32)> = groups.into_iter().collect();
    let mut order = all.clone();
    order.sort_by_key(|(mask, _)| mask.count_ones());
    let mut own: Vec<(u16, u32)> = Vec::new();
    for (mask, cycles) in order {
        let within: u32 =
            own.iter().filter(|(other, _)| other & mask == *other).map(|(_, cycles)| cycles).sum();
        own.push((mask, cycles.saturating_sub(within)));
    }
    // Loads and stores have uops of their own, which the decoder's facts show.
    own.retain(|(_, cycles)| *cycles > 0);
    for (mask, _) in &mut own {
        *mask = model.ports_of(*mask)?;
    }
    let set = |names: &[&str]| bits(model.ports(), names.iter().copied());
    let (load, address, data) = (set(model.load), set(model.store_address), set(model.store_data));
    let of_memory = |mask: u16| mask & !(load | address | data) == 0;
    own.retain(|(mask, _)| !of_memory(*mask));
    own.sort_unstable();
    let total: u32 = own.iter().map(|(_, cycles)| cycles).sum();
    let kept = total > entry.uops;
    let mut uops = Vec::new();
    for (mask, cycles) in &own {
        // A group is kept for its cycles by all its ports together.
        let each = cycles.div_ceil(mask.count_ones());
        match kept {
            true if each > 1 => uops.push(format!("{mask:x}*{each}")),
            true => uops.push(format!("{mask:x}")),
            false => uops.extend((0..*cycles).map(|_| format!("{mask:x}"))),
        }
    }
    let latency = match (memory, registers) {
        (true, Some(registers)) => registers.latency,
        (true, None) => entry.latency.saturating_sub(model.load_latency),
        (false, _) => entry.latency,
    };
    let mut slots = entry.uops;
    if model.fuses_memory {
        // Some instructions load and store without saying so: returns and calls.
        let uses = |ports: u16| entry.resources.iter().any(|(name, _)| mask_of(name) == ports);
        let (loads, stores) = (entry.loads || uses(load), entry.stores || uses(data));
        slots -= u32::from(loads && !uops.is_empty()).min(slots.saturating_sub(1));
        slots -= u32::from(stores).min(slots.saturating_sub(1));
    }
    let uops = if uops.is_empty() { "-".to_owned() } else { uops.join(",") };
    Ok(Some(format!("{} {} {uops}", slots.max(1), latency.max(1))))
}
