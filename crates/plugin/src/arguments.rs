//! Parses the arguments of `-plugin libkernlane_plugin.so,`. Input: the strings that QEMU split at
//! the commas. Output: values.

use std::path::PathBuf;
use thiserror::Error;
use trace::{CpuCount, RecordingHeader};

/// What to do when the recording cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnError {
    /// End QEMU, as SIGTERM would.
    Stop,
    /// Let the guest continue.
    Continue,
}

/// The largest number of functions that wake tasks.
pub(crate) const MOST_WAKES: usize = 8;

/// Where the kernel keeps its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskPlaces {
    /// The address of `__switch_to`.
    pub switch_to: u64,
    /// The address of `__set_task_comm`.
    pub set_comm: Option<u64>,
    /// Functions whose second argument is a task that becomes able to run. Unused elements are 0.
    pub wakes: [u64; MOST_WAKES],
    /// The offset of the name in `task_struct`, in bytes.
    pub comm: u64,
    /// The offset of the pid in `task_struct`, in bytes.
    pub pid: Option<u64>,
}

/// Functions of the kernel at which the loaded modules change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModulePlaces {
    /// The address of `module_finalize`.
    pub finalize: u64,
    /// The address of `module_arch_cleanup`.
    pub cleanup: Option<u64>,
}

/// The plugin's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub out: PathBuf,
    pub header: RecordingHeader,
    pub tasks: Option<TaskPlaces>,
    pub modules: Option<ModulePlaces>,
    /// The address of the kernel's `page_offset_base`.
    pub page_offset_base: Option<u64>,
    /// The address of the kernel's `__per_cpu_offset`; `None` for a machine with one CPU.
    pub per_cpu_offset: Option<u64>,
    pub on_error: OnError,
    pub verify: bool,
    /// Whether the kernel's readings of the processor's clock are recorded.
    pub clock: bool,
    pub data: Option<DataArguments>,
    /// Variables of the kernel, with eight bytes each: name and address. Their values at the
    /// beginning of the recording become conditions in its header.
    pub values: Vec<(String, u64)>,
    /// The program of probes, and the file of their values.
    pub probes: Option<(PathBuf, PathBuf)>,
    /// Where mappings are found, and the file to which they are written.
    pub programs: Option<(ProgramPlaces, PathBuf)>,
}

/// Where the kernel says which files are mapped. The argument `programs=` has these numbers in this
/// order, with + between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramPlaces {
    /// The address of `perf_event_mmap`.
    pub mapped: u64,
    /// Offsets of `vm_start`, `vm_end`, `vm_pgoff` and `vm_file` in `vm_area_struct`, in bytes.
    pub start: u64,
    pub end: u64,
    pub pgoff: u64,
    pub file: u64,
    /// The offset of `f_path.dentry` in `struct file`.
    pub dentry: u64,
    /// Offsets of `d_parent` and `d_name.name` in `struct dentry`.
    pub parent: u64,
    pub name: u64,
    /// The offset of `tgid` in `task_struct`.
    pub tgid: u64,
}

impl ProgramPlaces {
    fn parse(text: &str) -> Option<ProgramPlaces> {
        let numbers: Vec<u64> = text.split('+').map(number).collect::<Option<_>>()?;
        let &[mapped, start, end, pgoff, file, dentry, parent, name, tgid] = numbers.as_slice()
        else {
            return None;
        };
        Some(ProgramPlaces { mapped, start, end, pgoff, file, dentry, parent, name, tgid })
    }
}

/// What a recording with data accesses needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataArguments {
    /// The address of the kernel's `page_offset_base`.
    pub page_offset_base: Option<u64>,
    /// Where the kernel keeps the uses of page frames, if these are also recorded.
    pub frames: Option<StructPageFacts>,
}

/// Where the kernel keeps the uses of page frames. The argument `frames=` has these numbers in this
/// order, with + between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StructPageFacts {
    /// The address of the variable that holds the start of the array of `struct page`.
    pub array: u64,
    /// The address of the variable that holds the number of frames.
    pub count: u64,
    /// Offsets of the next four fields in `struct page`, in bytes. A `struct page` has 64 bytes.
    /// `compound_head` is `compound_info` since Linux 7.0.
    pub compound_head: u64,
    pub mapping: u64,
    pub page_type: u64,
    pub refcount: u64,
    /// The bit of `page.flags` that means reserved.
    pub reserved_bit: u32,
    pub marks: FrameMarks,
    /// The offset of `slab_cache` in `struct slab`.
    pub slab_cache: u64,
    /// The offset of `name` in `struct kmem_cache`.
    pub cache_name: u64,
}

/// How `struct page` says that a frame holds a slab or a page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameMarks {
    /// By the upper byte of `page.page_type`, an `enum pagetype` (since Linux 6.12).
    Type { slab: u32, table: u32 },
    /// By a bit of `page.flags`, and by a bit of `page.page_type` that is clear (Linux 6.9 and
    /// before).
    Bits { slab: u32, table: u32 },
}

impl StructPageFacts {
    fn parse(text: &str) -> Option<StructPageFacts> {
        let numbers: Vec<u64> = text.split('+').map(number).collect::<Option<_>>()?;
        let &[
            array,
            count,
            compound_head,
            mapping,
            page_type,
            refcount,
            reserved_bit,
            slab_type,
            table_type,
            slab_cache,
            cache_name,
            by_bits,
        ] = numbers.as_slice()
        else {
            return None;
        };
        let (slab, table) = (u32::try_from(slab_type).ok()?, u32::try_from(table_type).ok()?);
        Some(StructPageFacts {
            array,
            count,
            compound_head,
            mapping,
            page_type,
            refcount,
            reserved_bit: u32::try_from(reserved_bit).ok().filter(|&bit| bit < 64)?,
            marks: match by_bits {
                0 => FrameMarks::Type { slab, table },
                1 if slab < 64 => FrameMarks::Bits { slab, table },
                _ => return None,
            },
            slab_cache,
            cache_name,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum ArgumentError {
    #[error("{0:?} is not KEY=VALUE")]
    NotAPair(String),
    #[error("there is no argument {0:?}")]
    Unknown(String),
    #[error("{key}={value:?} is not {expected}")]
    Value { key: String, value: String, expected: &'static str },
    #[error("{0}= is missing")]
    Missing(&'static str),
    #[error("{0} is given twice")]
    Twice(String),
}

impl Arguments {
    pub(crate) fn parse<'a>(
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, ArgumentError> {
        let mut given = Vec::new();
        let mut header = RecordingHeader::default();
        let (mut out, mut switch_to, mut set_comm, mut comm, mut pid) =
            (None, None, None, None, None);
        let mut wakes = [0; MOST_WAKES];
        let (mut on_error, mut verify, mut clock, mut data, mut page_offset_base) =
            (OnError::Stop, false, false, false, None);
        let (mut frames, mut values, mut per_cpu_offset) = (None, Vec::new(), None);
        let (mut module_finalize, mut module_cleanup) = (None, None);
        let (mut probes, mut probes_out) = (None, None);
        let (mut programs, mut programs_out) = (None, None);
        for argument in arguments {
            let (key, value) =
                argument.split_once('=').ok_or_else(|| ArgumentError::NotAPair(argument.into()))?;
            if given.contains(&key) {
                return Err(ArgumentError::Twice(key.into()));
            }
            given.push(key);
            let wrong =
                |expected| ArgumentError::Value { key: key.into(), value: value.into(), expected };
            let number = || number(value).ok_or_else(|| wrong("a number"));
            let switch = || match value {
                "on" => Ok(true),
                "off" => Ok(false),
                _ => Err(wrong("on or off")),
            };
            match key {
                "out" if value.is_empty() => return Err(wrong("a file")),
                "out" => out = Some(PathBuf::from(value)),
                "build_id" if value.bytes().any(|byte| !byte.is_ascii_hexdigit()) => {
                    return Err(wrong("hexadecimal"));
                }
                "build_id" => header.build_id = value.to_ascii_lowercase(),
                "workload" => header.workload = value.into(),
                "seed" => header.seed = number()?,
                "cpus" => {
                    let cpus = u32::try_from(number()?).ok().and_then(CpuCount::new);
                    header.cpus = cpus.ok_or_else(|| wrong("a number from 1 to 8"))?;
                }
                "per_cpu_offset" => per_cpu_offset = Some(number()?),
                "switch_to" => switch_to = Some(number()?),
                "set_comm" => set_comm = Some(number()?),
                "wakes" => {
                    wakes = wake_functions(value)
                        .ok_or_else(|| wrong("at most eight numbers with + between them"))?;
                }
                "module_finalize" => module_finalize = Some(number()?),
                "module_cleanup" => module_cleanup = Some(number()?),
                "comm" => comm = Some(number()?),
                "probes" => probes = Some(PathBuf::from(value)),
                "probes_out" => probes_out = Some(PathBuf::from(value)),
                "programs" => {
                    programs = Some(
                        ProgramPlaces::parse(value)
                            .ok_or_else(|| wrong("nine numbers with + between them"))?,
                    )
                }
                "programs_out" => programs_out = Some(PathBuf::from(value)),
                "pid" => pid = Some(number()?),
                "on_error" => {
                    on_error = match value {
                        "stop" => OnError::Stop,
                        "continue" => OnError::Continue,
                        _ => return Err(wrong("stop or continue")),
                    }
                }
                "verify" => verify = switch()?,
                "clock" => clock = switch()?,
                "data" => data = switch()?,
                "page_offset_base" => page_offset_base = Some(number()?),
                "frames" => {
                    frames = Some(
                        StructPageFacts::parse(value)
                            .ok_or_else(|| wrong("twelve numbers with + between them"))?,
                    )
                }
                _ if key.starts_with("value.") => values.push((key.into(), number()?)),
                _ => match key.strip_prefix("condition.") {
                    Some(name) if !name.is_empty() => {
                        header.conditions.push((name.into(), value.into()))
                    }
                    _ => return Err(ArgumentError::Unknown(key.into())),
                },
            }
        }
        let tasks = match (switch_to, comm) {
            (Some(switch_to), Some(comm)) => {
                Some(TaskPlaces { switch_to, set_comm, wakes, comm, pid })
            }
            (None, None) if set_comm.is_none() && pid.is_none() => None,
            (None, _) => return Err(ArgumentError::Missing("switch_to")),
            (Some(_), None) => return Err(ArgumentError::Missing("comm")),
        };
        let modules = match (module_finalize, module_cleanup) {
            (Some(finalize), cleanup) => Some(ModulePlaces { finalize, cleanup }),
            (None, None) => None,
            (None, Some(_)) => return Err(ArgumentError::Missing("module_finalize")),
        };
        let probes = match (probes, probes_out) {
            (Some(program), Some(out)) => Some((program, out)),
            (None, None) => None,
            (None, Some(_)) => return Err(ArgumentError::Missing("probes")),
            (Some(_), None) => return Err(ArgumentError::Missing("probes_out")),
        };
        let programs = match (programs, programs_out) {
            (Some(places), Some(out)) => Some((places, out)),
            (None, None) => None,
            (None, Some(_)) => return Err(ArgumentError::Missing("programs")),
            (Some(_), None) => return Err(ArgumentError::Missing("programs_out")),
        };
        header.modules = modules.is_some();
        let several_cpus = header.cpus != CpuCount::ONE;
        if several_cpus && per_cpu_offset.is_none() {
            return Err(ArgumentError::Missing("per_cpu_offset"));
        }
        Ok(Arguments {
            out: out.ok_or(ArgumentError::Missing("out"))?,
            header,
            tasks,
            modules,
            per_cpu_offset: per_cpu_offset.filter(|_| several_cpus),
            on_error,
            verify,
            clock,
            page_offset_base,
            data: data.then_some(DataArguments { page_offset_base, frames }),
            values,
            probes,
            programs,
        })
    }
}

/// The addresses of functions that wake a task, with zeros behind them.
fn wake_functions(text: &str) -> Option<[u64; MOST_WAKES]> {
    let mut all = [0; MOST_WAKES];
    for (at, address) in text.split('+').enumerate() {
        *all.get_mut(at)? = number(address)?;
    }
    Some(all)
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_arguments_are_taken() {
        let given = [
            "out=/tmp/x=y",
            "build_id=00AEff",
            "workload=net",
            "seed=7",
            "condition.qemu=10.0.2",
            "condition.cpu=max,-erms",
            "switch_to=0xffffffff8102c4f0",
            "set_comm=0xffffffff812fc150",
            "wakes=0x10+0x20",
            "module_finalize=0x30",
            "module_cleanup=0x40",
            "comm=1504",
            "pid=0x4b8",
            "on_error=continue",
            "verify=on",
            "clock=on",
            "data=on",
            "page_offset_base=0xffffffff81d091d8",
            "frames=1+2+8+24+48+52+12+0xf5+0xf2+8+96+0",
            "value.vmalloc_base=0xffffffff81d091d0",
            "probes=/tmp/p",
            "probes_out=/tmp/v",
            "programs=1+2+3+4+5+6+7+8+9",
            "programs_out=/tmp/m",
        ];
        let expected = Arguments {
            out: "/tmp/x=y".into(),
            header: RecordingHeader {
                build_id: "00aeff".into(),
                workload: "net".into(),
                seed: 7,
                cpus: CpuCount::ONE,
                modules: true,
                conditions: vec![
                    ("qemu".into(), "10.0.2".into()),
                    ("cpu".into(), "max,-erms".into()),
                ],
            },
            tasks: Some(TaskPlaces {
                switch_to: 0xffff_ffff_8102_c4f0,
                set_comm: Some(0xffff_ffff_812f_c150),
                wakes: [0x10, 0x20, 0, 0, 0, 0, 0, 0],
                comm: 1504,
                pid: Some(0x4b8),
            }),
            modules: Some(ModulePlaces { finalize: 0x30, cleanup: Some(0x40) }),
            page_offset_base: Some(0xffff_ffff_81d0_91d8),
            per_cpu_offset: None,
            on_error: OnError::Continue,
            verify: true,
            clock: true,
            data: Some(DataArguments {
                page_offset_base: Some(0xffff_ffff_81d0_91d8),
                frames: StructPageFacts::parse("1+2+8+24+48+52+12+0xf5+0xf2+8+96+0"),
            }),
            values: vec![("value.vmalloc_base".into(), 0xffff_ffff_81d0_91d0)],
            probes: Some(("/tmp/p".into(), "/tmp/v".into())),
            programs: ProgramPlaces::parse("1+2+3+4+5+6+7+8+9").map(|it| (it, "/tmp/m".into())),
        };
        assert!(expected.programs.is_some());
        assert_eq!(Arguments::parse(given), Ok(expected));
    }

    #[test]
    fn only_out_is_needed() {
        let arguments = Arguments::parse(["out=t"]).unwrap();
        assert_eq!(
            (arguments.on_error, arguments.verify, arguments.tasks, arguments.data),
            (OnError::Stop, false, None, None)
        );
    }

    #[test]
    fn several_cpus_need_the_place_of_their_bases() {
        let arguments = Arguments::parse(["out=t", "cpus=4", "per_cpu_offset=0x10"]).unwrap();
        assert_eq!((arguments.header.cpus.get(), arguments.per_cpu_offset), (4, Some(0x10)));
        let arguments = Arguments::parse(["out=t", "cpus=1", "per_cpu_offset=0x10"]).unwrap();
        assert_eq!(arguments.per_cpu_offset, None, "one CPU is not looked for");
        let error =
            |given: &[&str]| Arguments::parse(given.iter().copied()).unwrap_err().to_string();
        assert_eq!(error(&["out=t", "cpus=2"]), "per_cpu_offset= is missing");
        assert_eq!(error(&["out=t", "cpus=9"]), r#"cpus="9" is not a number from 1 to 8"#);
        assert_eq!(error(&["out=t", "cpus=0"]), r#"cpus="0" is not a number from 1 to 8"#);
    }

    #[test]
    fn errors_name_the_wrong_argument() {
        let error =
            |given: &[&str]| Arguments::parse(given.iter().copied()).unwrap_err().to_string();
        assert_eq!(error(&[]), "out= is missing");
        assert_eq!(error(&["out="]), r#"out="" is not a file"#);
        assert_eq!(error(&["out"]), r#""out" is not KEY=VALUE"#);
        assert_eq!(error(&["out=a", "out=b"]), "out is given twice");
        assert_eq!(error(&["out=a", "colour=blue"]), r#"there is no argument "colour""#);
        assert_eq!(error(&["out=a", "condition.=1"]), r#"there is no argument "condition.""#);
        assert_eq!(error(&["out=a", "seed=0xg"]), r#"seed="0xg" is not a number"#);
        assert_eq!(error(&["out=a", "seed=-1"]), r#"seed="-1" is not a number"#);
        assert_eq!(error(&["out=a", "build_id=xyz"]), r#"build_id="xyz" is not hexadecimal"#);
        assert_eq!(error(&["out=a", "verify=yes"]), r#"verify="yes" is not on or off"#);
        assert!(error(&["out=a", "wakes=1+x"]).contains("at most eight numbers"));
        assert!(error(&["out=a", "wakes=1+2+3+4+5+6+7+8+9"]).contains("at most eight numbers"));
        assert_eq!(StructPageFacts::parse("1+2+8+24+48+52+12+64+0x200+8+96+1"), None);
        assert!(error(&["out=a", "frames=1+2"]).contains("twelve numbers"));
        assert!(error(&["out=a", "programs=1+2"]).contains("nine numbers"));
        assert_eq!(error(&["out=a", "programs_out=m"]), "programs= is missing");
        assert_eq!(error(&["out=a", "data=2"]), r#"data="2" is not on or off"#);
        assert_eq!(
            error(&["out=a", "on_error=panic"]),
            r#"on_error="panic" is not stop or continue"#
        );
        assert_eq!(error(&["out=a", "module_cleanup=8"]), "module_finalize= is missing");
        assert_eq!(error(&["out=a", "comm=8"]), "switch_to= is missing");
        assert_eq!(error(&["out=a", "set_comm=8"]), "switch_to= is missing");
        assert_eq!(error(&["out=a", "switch_to=8"]), "comm= is missing");
    }
}
