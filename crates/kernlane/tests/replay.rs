//! `kernlane replay` and `kernlane report` as typed, on a small recording. `BLESS=1` writes the
//! golden texts anew.

mod golden;

use base64::Engine;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output};
use trace::{
    AccessSite, CpuCount, CpuId, Mapping, ObservedAccesses, PageKind, RecordingHeader,
    RecordingWriter, RunAddr, StreamEvent, Translation, TranslationId,
};

const BUILD_ID: &str = "00aea92ddb40c47d63853847ca25891e6796c7b0";
const K: u64 = 0xffff_ffff_8100_0000;

/// A user's loop makes system calls; in the kernel A branches to C in two of three rounds, else
/// runs on into B, which jumps to C.
fn write_recording(directory: &Path) {
    let translations: [(u64, &[u8], &[u8]); 5] = [
        (0x40_1000, &[1, 2], &[0x90, 0x0f, 0x05]), // nop; syscall
        (K, &[4, 2], &[0x0f, 0x1f, 0x40, 0, 0x74, 0x7a]), // A: nop; je C
        (K + 6, &[4, 2], &[0x0f, 0x1f, 0x40, 0, 0xeb, 0x74]), // B: nop; jmp C
        (K + 0x80, &[4, 3], &[0x0f, 0x1f, 0x40, 0, 0x48, 0x0f, 0x07]), // C: nop; sysret
        (0x40_1003, &[2], &[0xeb, 0xfb]),          // jmp back
    ];
    let header = RecordingHeader {
        build_id: BUILD_ID.into(),
        workload: "loop".into(),
        seed: 7,
        conditions: vec![("qemu".into(), "10.0.2".into())],
        ..RecordingHeader::default()
    };
    let mut writer = RecordingWriter::new(Vec::new(), &header).unwrap();
    for (id, (addr, lengths, code)) in (0..).zip(translations) {
        let translation = Translation {
            id: TranslationId(id),
            addr: RunAddr(addr),
            lengths: lengths.into(),
            code: code.into(),
        };
        writer.translations(&[translation]).unwrap();
    }
    let mut words = Vec::new();
    for round in 0..300 {
        let path: &[u32] = if round % 3 == 0 { &[0, 1, 2, 3, 4] } else { &[0, 1, 3, 4] };
        path.iter().for_each(|&id| StreamEvent::Executed(TranslationId(id)).append_to(&mut words));
    }
    writer.stream(&words).unwrap();
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("trace.klt"), writer.end().unwrap().0).unwrap();
}

/// Each of two CPUs stores 100 times to a counter of its own, in one line and in one turn.
fn write_two_counters(directory: &Path) {
    let id = TranslationId(0);
    let header = RecordingHeader {
        build_id: BUILD_ID.into(),
        workload: "counters".into(),
        cpus: CpuCount::new(2).unwrap(),
        ..RecordingHeader::default()
    };
    let mut writer = RecordingWriter::with_data(Vec::new(), &header).unwrap();
    let (lengths, code) = ([1, 1].into(), [0x90, 0x90].into());
    writer.translations(&[Translation { id, addr: RunAddr(K), lengths, code }]).unwrap();
    let (mut words, page) = (Vec::new(), 0xf_fff8_8800_0200);
    let mut seen = ObservedAccesses {
        physical: vec![(id, [Some(0x100_0000), None])],
        ..ObservedAccesses::default()
    };
    for cpu in 0..2 {
        if cpu > 0 {
            StreamEvent::Cpu(CpuId(cpu)).append_to(&mut words);
        }
        let mapping = Mapping { page, frame: 0x200, kind: PageKind::Memory };
        seen.mappings.push((seen.addresses.len() as u32, mapping));
        for _ in 0..100 {
            StreamEvent::Executed(id).append_to(&mut words);
            seen.starts.push(seen.addresses.len() as u32);
            seen.addresses.push((page << 12) + 8 * u64::from(cpu));
            seen.sites.push(AccessSite::new(0, true, 3));
        }
    }
    writer.stream_with_data(&words, &seen).unwrap();
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("trace.klt"), writer.end().unwrap().0).unwrap();
}

/// A inverted, C directly behind it, B out of the way with its jump.
fn write_map(path: &Path, build_id: &str) {
    let line = |old: u64, size: u32, new: u64, new_size: u32, ending: &str| {
        format!("{:016x} {size:x} {:016x} {new_size:x} 0 {ending}\n", K + old, K + new)
    };
    let blocks = line(0, 6, 0x1000, 6, "inverted")
        + &line(6, 6, 0x1040, 6, "same")
        + &line(0x80, 7, 0x1006, 7, "same");
    std::fs::write(path, format!("kernlane-map 1\nkernel {build_id}\n{blocks}end 3\n")).unwrap();
}

fn kernlane(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kernlane"))
        .current_dir(directory)
        .args(arguments)
        .output()
        .unwrap()
}

fn printed(directory: &Path, arguments: &[&str]) -> String {
    let output = kernlane(directory, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The message of a command that cannot be done.
fn refused(directory: &Path, arguments: &[&str]) -> String {
    let output = kernlane(directory, arguments);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

fn ready() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    write_recording(&directory.path().join("loop.rec"));
    write_map(&directory.path().join("straight.klm"), BUILD_ID);
    directory
}

#[test]
fn layouts_and_machines_in_one_table() {
    let directory = ready();
    let machines = ["-m", "server-32k", "-m", "torrellas-8k"];
    let arguments = [&["replay", "loop.rec", "-l", "straight.klm"][..], &machines].concat();
    golden::compare("replay.txt", &printed(directory.path(), &arguments));
}

#[test]
fn several_cpus_run_side_by_side_or_in_the_order_of_the_recording() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    write_two_counters(&at.join("two.rec"));
    let replay = |arguments: &[&str]| {
        printed(at, &[&["replay", "two.rec", "-m", "server-8"][..], arguments].concat())
    };
    let side_by_side = replay(&[]);
    golden::compare("side-by-side.txt", &side_by_side);
    assert_eq!(replay(&["--order", "side-by-side"]), side_by_side);
    golden::compare("recorded-order.txt", &replay(&["--order", "recorded"]));
    // CPU 1 makes its 100 steps while CPU 0 waits for memory.
    let json = replay(&["--json"]);
    for (json, order, misses) in
        [(&json, "side-by-side", 1), (&replay(&["--order", "recorded", "--json"]), "recorded", 0)]
    {
        let read: serde_json::Value = serde_json::from_str(json).unwrap();
        let coherence = &read["rows"][0]["counters"]["coherence"];
        assert_eq!(coherence["order"], order);
        let counters = &coherence["cpus"][0]["kernel"]["counters"];
        assert_eq!(counters["l2_data"]["false_sharing"], misses);
    }
    // What was written is read, and printed again.
    std::fs::write(at.join("results.json"), &json).unwrap();
    printed(at, &["report", "layouts", "."]);
}

#[test]
fn json_is_what_report_reads() {
    let directory = ready();
    let at = directory.path();
    let json = printed(at, &["replay", "loop.rec", "-l", "straight.klm", "--json"]);
    std::fs::write(at.join("results.json"), &json).unwrap();
    let read: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        read["rows"][1]["counters"]["taken"]["kernel"],
        serde_json::json!({
            "conditional": 100, "jump": 100, "call": 0, "return": 0, "indirect": 0
        })
    );
    golden::compare("report.txt", &printed(at, &["report", "layouts", "."]));
    assert_eq!(printed(at, &["report", "page", "results.json", "-o", "page.html"]), "");
    let page = std::fs::read_to_string(at.join("page.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    // The page's data is compressed.
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    let packed = base64::engine::general_purpose::STANDARD.decode(data.trim()).unwrap();
    let mut data = String::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut data).unwrap();
    assert!(data.contains("\"workload\":\"loop\""), "{data}");
}

#[test]
fn the_same_recording_gives_the_same_bytes_on_one_thread_and_many() {
    let directory = ready();
    let run = |threads: &str| {
        Command::new(env!("CARGO_BIN_EXE_kernlane"))
            .current_dir(directory.path())
            .env("RAYON_NUM_THREADS", threads)
            .args([
                "replay",
                "loop.rec",
                "-l",
                "straight.klm",
                "-m",
                "server-32k",
                "-m",
                "ultrasparc-16k",
                "--json",
            ])
            .output()
            .unwrap()
            .stdout
    };
    assert_eq!(run("1"), run("4"));
}

/// An ELF file with the recorded kernel's build id and a function of one byte at address 0.
fn write_kernel(path: &Path) {
    use object::write::{Object, Symbol, SymbolSection};
    let mut file = Object::new(
        object::BinaryFormat::Elf,
        object::Architecture::X86_64,
        object::Endianness::Little,
    );
    let text = file.add_section(Vec::new(), b".text".to_vec(), object::SectionKind::Text);
    file.append_section_data(text, &[0xc3], 1);
    file.add_symbol(Symbol {
        name: b"f".to_vec(),
        value: 0,
        size: 1,
        kind: object::SymbolKind::Text,
        scope: object::SymbolScope::Linkage,
        weak: false,
        section: SymbolSection::Section(text),
        flags: object::SymbolFlags::None,
    });
    let id = (0..BUILD_ID.len()).step_by(2).map(|at| &BUILD_ID[at..at + 2]);
    let id = id.map(|byte| u8::from_str_radix(byte, 16).unwrap());
    let mut note = [4_u32, 20, 3].map(u32::to_le_bytes).concat();
    note.extend(b"GNU\0".iter().copied().chain(id));
    let name = b".note.gnu.build-id".to_vec();
    let notes = file.add_section(Vec::new(), name, object::SectionKind::Note);
    file.append_section_data(notes, &note, 4);
    std::fs::write(path, file.write().unwrap()).unwrap();
}

#[test]
fn a_map_of_code_that_the_kernel_does_not_have_is_refused() {
    let directory = ready();
    let at = directory.path();
    write_kernel(&at.join("vmlinux"));
    let arguments = ["replay", "loop.rec", "-l", "straight.klm", "--kernel", "vmlinux"];
    let message = refused(at, &arguments);
    let expected = "straight.klm: the block of 0x6 bytes at ffffffff81000000 lies outside of the \
                    kernel's code";
    assert!(message.contains(expected), "{message}");
    let inside = format!("kernlane-map 1\nkernel {BUILD_ID}\n0 1 0 1 0 same\nend 1\n");
    std::fs::write(at.join("inside.klm"), inside).unwrap();
    printed(at, &["replay", "loop.rec", "-l", "inside.klm", "--kernel", "vmlinux"]);
}

/// `recording.json` of the recording, as `kernlane record` writes it.
fn write_summary(recording: &Path, kernel: Option<&Path>) {
    let mut summary = serde_json::json!({
        "format": 2, "kernel_release": "6.12.0-kernlane-test", "kernel_build_id": BUILD_ID,
        "workload": "loop", "workload_sha256": "00", "packages": [], "initramfs_sha256": "00",
        "seed": 7, "memory_mb": 512, "qemu": "10.0.2", "qemu_arguments": [],
        "totals": {
            "instructions": 1, "kernel_instructions": 1, "user_instructions": 0, "executions": 1,
            "translations": 1, "tasks": 0, "hash": "00", "trace_bytes": 1,
        },
    });
    if let Some(kernel) = kernel {
        summary["kernel"] = kernel.to_str().unwrap().into();
    }
    let text = image::sealed::json(&serde_json::to_string_pretty(&summary).unwrap());
    std::fs::write(recording.join("recording.json"), text).unwrap();
}

#[test]
fn a_recording_knows_its_kernel() {
    let directory = ready();
    let at = directory.path();
    let head = "algorithm original\nseed 0\nprofile none\nhot 0\nend 0\n";
    let layout = format!("kernlane-layout 1\nkernel {BUILD_ID}\n{head}");
    std::fs::write(at.join("same.kll"), layout).unwrap();
    // A layout needs the kernel, and nobody names one.
    let line = ["replay", "loop.rec", "-l", "same.kll"];
    let cache = at.join("cache");
    let replay = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kernlane"));
        let output = command.current_dir(at).args(line).env("KERNLANE_CACHE", &cache);
        let output = output.output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), message)
    };
    let (code, message) = replay();
    assert_eq!(code, Some(2));
    let expected =
        format!("kernlane: the kernel of loop.rec: no kernel with the build id {BUILD_ID}");
    assert!(message.starts_with(&expected), "{message}");
    // Where the recording says.
    let kernel = at.join("linux/vmlinux");
    std::fs::create_dir(at.join("linux")).unwrap();
    write_kernel(&kernel);
    write_summary(&at.join("loop.rec"), Some(&at.join("linux")));
    assert_eq!(replay(), (Some(0), String::new()));
    // It moved into the cache; an older recording does not say where it was.
    let built = cache.join("trees/gcc");
    std::fs::create_dir_all(&built).unwrap();
    std::fs::rename(&kernel, built.join("vmlinux")).unwrap();
    assert_eq!(replay(), (Some(0), String::new()));
    write_summary(&at.join("loop.rec"), None);
    assert_eq!(replay(), (Some(0), String::new()));
    // A kernel that is named comes first, and is checked.
    std::fs::write(at.join("vmlinux"), "no kernel").unwrap();
    let named = [&line[..], &["--kernel", "vmlinux"]].concat();
    assert!(refused(at, &named).contains("vmlinux: not a readable ELF file"));
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let directory = ready();
    let at = directory.path();
    write_map(&at.join("other.klm"), "0b");
    std::fs::write(at.join("rubbish.kll"), "rubbish").unwrap();
    std::fs::write(at.join("m.toml"), "name = 3").unwrap();
    let whole = std::fs::read(at.join("loop.rec/trace.klt")).unwrap();
    std::fs::create_dir(at.join("cut.rec")).unwrap();
    std::fs::write(at.join("cut.rec/trace.klt"), &whole[..whole.len() - 20]).unwrap();
    let sealed = image::sealed::text("kernlane-map", "kernel 0b\nend 0\n");
    std::fs::write(at.join("damaged.klm"), sealed.replace("0b", "0c")).unwrap();
    let cases: [(&[&str], &str); 9] = [
        (&["replay", "none.rec"], "kernlane: none.rec/trace.klt: No such file or directory"),
        (&["replay", "cut.rec"], "kernlane: cut.rec/trace.klt: the recording is damaged: "),
        (&["replay", "loop.rec", "-m", "pdp-11"], "kernlane: no machine is called pdp-11"),
        (&["replay", "loop.rec", "-m", "m.toml"], "kernlane: m.toml: not a machine"),
        (
            &["replay", "loop.rec", "-l", "other.klm"],
            "kernlane: other is of the kernel with build id 0b, but loop.rec/trace.klt of 00ae",
        ),
        (&["replay", "loop.rec", "-l", "rubbish.kll"], "kernlane: rubbish.kll: not a layout"),
        (
            &["replay", "loop.rec", "-l", "damaged.klm"],
            "kernlane: damaged.klm: not a map, or a damaged one: the last line is not the checksum",
        ),
        (
            &["replay", "loop.rec", "-l", "straight.klm", "-l", "straight.klm"],
            "kernlane: straight.klm: two layouts have the name",
        ),
        (&["report", "layouts", "none"], "kernlane: none: there is no such file or directory"),
    ];
    for (arguments, expected) in cases {
        let message = refused(at, arguments);
        assert!(message.starts_with(expected), "{message}\nexpected: {expected}");
    }
}
