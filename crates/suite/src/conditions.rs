//! The conditions of a run, and what disturbed it.
//!
//! Input: `/proc`, `/sys` and what the processor reports (CPUID). Output: [`Conditions`]. A
//! condition that cannot be read is `None`, never a guess. This module changes nothing.

use crate::clock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::path::Path;

/// The conditions of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Conditions {
    /// The program that measured, and its size. Different builds of the program differ a little in
    /// what they measure.
    pub program: String,
    pub program_bytes: u64,
    /// Seconds since 1970 when the run began.
    pub began: u64,
    pub seconds: f64,
    pub kernel_release: String,
    pub kernel_version: String,
    /// From `/sys/kernel/notes`.
    pub kernel_build_id: Option<String>,
    pub command_line: Option<String>,
    /// Livepatches that are applied, and Kernlane's module if it is loaded.
    pub live_changes: Vec<String>,
    pub processor: Option<String>,
    pub microcode: Option<String>,
    /// `/sys/devices/system/cpu/vulnerabilities`.
    pub mitigations: BTreeMap<String, String>,
    /// The hypervisor's signature, when there is one (CPUID leaf 0x40000000).
    pub hypervisor: Option<String>,
    pub smt: Option<String>,
    pub clock_source: Option<String>,
    pub transparent_huge_pages: Option<String>,
    /// The measured CPU; `None`: the run was not pinned.
    pub cpu: Option<usize>,
    pub cpus_allowed: usize,
    pub governor: Option<String>,
    /// The frequency in kHz, before and after.
    pub frequency: [Option<u64>; 2],
    pub boost: Option<String>,
    /// The rate of the time stamp counter, measured by the kernel's monotonic clock.
    pub ticks_per_nanosecond: f64,
    /// The type of the file system on which files were measured.
    pub file_system: Option<String>,
    /// The first number of `/proc/loadavg`, before and after.
    pub load: [Option<f64>; 2],
    pub disturbances: Disturbances,
    /// Sentences that a reader should know before using the figures.
    pub warnings: Vec<String>,
}

/// Shares of the run's time, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disturbances {
    /// The hypervisor ran something else on the measured CPU.
    pub steal_percent: Option<f64>,
    /// Something else than the suite ran on the measured CPU.
    pub other_load_percent: Option<f64>,
    /// The other CPUs were busy.
    pub other_cpus_percent: Option<f64>,
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn chosen(path: &str) -> Option<String> {
    // `always [madvise] never`
    let text = read(path)?;
    let inner = text.split('[').nth(1).and_then(|rest| rest.split(']').next());
    Some(inner.unwrap_or(&text).to_owned())
}

impl Conditions {
    /// What is known before a run.
    pub(crate) fn before(cpu: Option<usize>, cpus_allowed: usize, directory: &Path) -> Conditions {
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let program = std::env::current_exe().ok();
        let name = program.as_deref().and_then(Path::file_name);
        let name_of = |of: fn(&libc::utsname) -> &[libc::c_char]| uname(of).unwrap_or_default();
        let frequency_of = |name: &str| {
            read(format!("/sys/devices/system/cpu/cpu{}/cpufreq/{name}", cpu.unwrap_or(0)))
        };
        Conditions {
            program: name.map_or(String::new(), |name| name.to_string_lossy().into_owned()),
            program_bytes: fs::metadata("/proc/self/exe").map_or(0, |file| file.len()),
            began: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |time| time.as_secs()),
            kernel_release: name_of(|name| &name.release),
            kernel_version: name_of(|name| &name.version),
            kernel_build_id: fs::read("/sys/kernel/notes").ok().and_then(|notes| build_id(&notes)),
            command_line: read("/proc/cmdline"),
            live_changes: live_changes(),
            processor: field(&cpuinfo, "model name"),
            microcode: field(&cpuinfo, "microcode"),
            mitigations: mitigations(),
            hypervisor: hypervisor(&cpuinfo),
            smt: read("/sys/devices/system/cpu/smt/control"),
            clock_source: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            transparent_huge_pages: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
            cpu,
            cpus_allowed,
            governor: frequency_of("scaling_governor"),
            frequency: [frequency(cpu), None],
            boost: boost(),
            file_system: file_system(directory),
            load: [load(), None],
            ..Conditions::default()
        }
    }

    /// Adds what is known after a run.
    pub(crate) fn complete(&mut self, usage: Disturbances, rates: [f64; 2], seconds: f64) {
        self.seconds = seconds;
        self.frequency[1] = frequency(self.cpu);
        self.load[1] = load();
        self.disturbances = usage;
        self.ticks_per_nanosecond = rates[1];
        self.warnings.extend(self.judged(rates, clock::counter().even));
    }

    /// What can disturb a run, in sentences.
    fn judged(&self, rates: [f64; 2], even: bool) -> Vec<String> {
        let mut disturbances = Vec::new();
        if self.cpu.is_none() {
            disturbances.push("the run was not pinned to a CPU".to_owned());
        }
        if !even {
            disturbances
                .push("the time stamp counter may change its rate with the frequency".to_owned());
        }
        let jump = 100.0 * (rates[1] / rates[0] - 1.0).abs();
        if jump > 0.1 {
            disturbances.push(format!(
                "the time stamp counter and the kernel's clock drifted apart by {jump:.2} %: a \
                 clock has jumped"
            ));
        }
        let shares = self.disturbances;
        for (share, limit, what) in [
            (shares.steal_percent, 0.5, "the hypervisor took the measured CPU away"),
            (shares.other_load_percent, 2.0, "something else ran on the measured CPU"),
            (shares.other_cpus_percent, 20.0, "the other CPUs were busy"),
        ] {
            if let Some(share) = share.filter(|share| *share > limit) {
                disturbances.push(format!("{what} for {share:.1} % of the time"));
            }
        }
        if let Some(governor) = self.governor.as_deref().filter(|name| *name != "performance") {
            disturbances.push(format!("the frequency's governor is {governor}, not performance"));
        }
        if let [Some(before), Some(after)] = self.frequency
            && before.abs_diff(after) * 100 > before * 2
        {
            disturbances.push(format!("the frequency went from {before} kHz to {after} kHz"));
        }
        disturbances
    }

    /// Conditions that two runs do not share: name, before, after.
    pub(crate) fn differences(&self, other: &Conditions) -> Vec<(&'static str, String, String)> {
        let or_unknown =
            |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
        let mitigations = |of: &Conditions| {
            let different = of.mitigations.iter().filter(|(name, text)| {
                self.mitigations.get(*name) != Some(text)
                    || other.mitigations.get(*name) != Some(text)
            });
            let texts: Vec<String> =
                different.map(|(name, text)| format!("{name}: {text}")).collect();
            texts.join("; ")
        };
        let pair = |of: &dyn Fn(&Conditions) -> String| (of(self), of(other));
        let rows = [
            ("program", pair(&|c| format!("{} ({} bytes)", c.program, c.program_bytes))),
            ("kernel", pair(&|c| format!("{} {}", c.kernel_release, c.kernel_version))),
            ("build id", pair(&|c| or_unknown(&c.kernel_build_id))),
            ("command line", pair(&|c| or_unknown(&c.command_line))),
            ("live changes", pair(&|c| c.live_changes.join(", "))),
            ("processor", pair(&|c| or_unknown(&c.processor))),
            ("microcode", pair(&|c| or_unknown(&c.microcode))),
            ("mitigations", pair(&mitigations)),
            ("hypervisor", pair(&|c| or_unknown(&c.hypervisor))),
            ("SMT", pair(&|c| or_unknown(&c.smt))),
            ("clock source", pair(&|c| or_unknown(&c.clock_source))),
            ("huge pages", pair(&|c| or_unknown(&c.transparent_huge_pages))),
            ("CPU", pair(&|c| c.cpu.map_or("none".to_owned(), |cpu| cpu.to_string()))),
            ("governor", pair(&|c| or_unknown(&c.governor))),
            ("boost", pair(&|c| or_unknown(&c.boost))),
            ("file system", pair(&|c| or_unknown(&c.file_system))),
        ];
        let different = rows.into_iter().filter(|(_, (before, after))| before != after);
        different.map(|(name, (before, after))| (name, before, after)).collect()
    }
}

/// The time that the CPUs have used since boot, in ticks of the kernel's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    measured: Times,
    others: Times,
    /// The time of the suite's own processes that have ended, in seconds.
    ours: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    all: u64,
    idle: u64,
    steal: u64,
}

impl Usage {
    /// The usage up to now. `None`: `/proc/stat` cannot be read.
    pub fn now(cpu: Option<usize>) -> Option<Usage> {
        let [user, kernel] = crate::sys::children_seconds().ok()?;
        let (measured, others) = times(&read("/proc/stat")?, cpu?)?;
        Some(Usage { measured, others, ours: user + kernel })
    }

    /// Shares of the time since an earlier moment.
    pub fn since(self, earlier: Usage) -> Disturbances {
        let less = |a: Times, b: Times| Times {
            all: a.all.saturating_sub(b.all),
            idle: a.idle.saturating_sub(b.idle),
            steal: a.steal.saturating_sub(b.steal),
        };
        let (measured, others) =
            (less(self.measured, earlier.measured), less(self.others, earlier.others));
        let share = |part: f64, all: u64| (all > 0).then(|| 100.0 * part / all as f64);
        let busy = |times: Times| (times.all - times.idle - times.steal) as f64;
        // USER_HZ is 100 on x86-64.
        let ours = 100.0 * (self.ours - earlier.ours);
        Disturbances {
            steal_percent: share(measured.steal as f64, measured.all),
            other_load_percent: share((busy(measured) - ours).max(0.0), measured.all),
            other_cpus_percent: share(busy(others), others.all),
        }
    }
}

/// The times of one CPU, and of all others together (proc(5): user, nice, system, idle, iowait,
/// irq, softirq, steal).
fn times(stat: &str, cpu: usize) -> Option<(Times, Times)> {
    let (mut measured, mut others) = (None, Times::default());
    for line in stat.lines() {
        let mut words = line.split_whitespace();
        let Some(number) = words.next().and_then(|word| word.strip_prefix("cpu")) else { continue };
        let Ok(number) = number.parse::<usize>() else { continue };
        let values: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
        let [.., idle, iowait, _, _, steal] = values[..] else { return None };
        let of = Times { all: values.iter().sum(), idle: idle + iowait, steal };
        if number == cpu {
            measured = Some(of);
        } else {
            others.all += of.all;
            others.idle += of.idle;
            others.steal += of.steal;
        }
    }
    measured.map(|measured| (measured, others))
}

fn uname(of: fn(&libc::utsname) -> &[libc::c_char]) -> Option<String> {
    // SAFETY: a plain structure.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    crate::sys::call!(SYS_uname, &raw mut name).ok()?;
    let bytes: Vec<u8> = of(&name).iter().map(|c| *c as u8).collect();
    CStr::from_bytes_until_nul(&bytes).ok().map(|text| text.to_string_lossy().into_owned())
}

/// The first value of a line of `/proc/cpuinfo`.
fn field(cpuinfo: &str, name: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.split(':').next().map(str::trim) == Some(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

/// The build id among ELF notes: name "GNU", type 3 (NT_GNU_BUILD_ID).
fn build_id(mut notes: &[u8]) -> Option<String> {
    while let [a, b, c, rest @ ..] = notes.as_chunks::<4>().0 {
        let [name, description, kind] = [a, b, c].map(|word| u32::from_le_bytes(*word) as usize);
        let body = rest.as_flattened();
        let start = name.checked_next_multiple_of(4)?;
        let end = start.checked_add(description)?;
        if kind == 3 && body.get(..name)? == b"GNU\0" {
            let bytes = body.get(start..end)?;
            return Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = body.get(end.checked_next_multiple_of(4)?..)?;
    }
    None
}

fn mitigations() -> BTreeMap<String, String> {
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten();
    let texts = entries.flatten().filter_map(|entry| {
        Some((entry.file_name().to_string_lossy().into_owned(), read(entry.path())?))
    });
    texts.collect()
}

fn live_changes() -> Vec<String> {
    let entries = fs::read_dir("/sys/kernel/livepatch").into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| format!("livepatch {}", entry.file_name().to_string_lossy())).collect();
    if Path::new("/sys/module/kernlane").exists() {
        names.push("module kernlane".to_owned());
    }
    names.sort();
    names
}

fn hypervisor(cpuinfo: &str) -> Option<String> {
    field(cpuinfo, "flags")?.split(' ').find(|flag| *flag == "hypervisor")?;
    let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
    let bytes = [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).concat();
    Some(String::from_utf8_lossy(&bytes).trim_matches(['\0', ' ']).to_owned())
}

fn frequency(cpu: Option<usize>) -> Option<u64> {
    let cpu = cpu.unwrap_or(0);
    read(format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"))?.parse().ok()
}

fn boost() -> Option<String> {
    let intel = read("/sys/devices/system/cpu/intel_pstate/no_turbo");
    intel.map(|off| if off == "0" { "on" } else { "off" }.to_owned()).or_else(|| {
        Some(match read("/sys/devices/system/cpu/cpufreq/boost")?.as_str() {
            "0" => "off".to_owned(),
            _ => "on".to_owned(),
        })
    })
}

fn load() -> Option<f64> {
    read("/proc/loadavg")?.split(' ').next()?.parse().ok()
}

/// The type of the file system that holds a directory: the longest mount point in
/// `/proc/self/mountinfo` that is above the directory, and among equals the last.
fn file_system(directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    mounted(&read("/proc/self/mountinfo")?, &directory)
}

fn mounted(mountinfo: &str, directory: &Path) -> Option<String> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let point = Path::new(mount.split(' ').nth(4)?);
        directory.starts_with(point).then(|| {
            (point.components().count(), kind.split(' ').next().unwrap_or_default().to_owned())
        })
    });
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_is_found_among_notes() {
        let note = |name: &[u8], kind: u32, description: &[u8]| {
            let mut bytes = Vec::new();
            for word in [name.len() as u32, description.len() as u32, kind] {
                bytes.extend(word.to_le_bytes());
            }
            for part in [name, description] {
                bytes.extend(part);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        };
        let other = note(b"Linux\0", 257, &[1, 2, 3]);
        let ours = note(b"GNU\0", 3, &[0xab, 0xcd, 0x01, 0x02]);
        let notes = [other.clone(), ours].concat();
        assert_eq!(build_id(&notes).as_deref(), Some("abcd0102"));
        assert_eq!(build_id(&other), None);
        for cut in 0..notes.len() {
            assert!(build_id(&notes[..cut]).is_none());
        }
    }

    #[test]
    fn usage_says_who_had_the_cpu() {
        let before = "cpu 9 9 9 9\ncpu0 100 0 100 800 0 0 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\n";
        let after = "cpu 9 9 9 9\ncpu0 300 0 100 900 0 0 0 100 0 0\ncpu1 50 0 0 150 0 0 0 0 0 0\n";
        let at = |stat: &str, ours: f64| {
            let (measured, others) = times(stat, 0).unwrap();
            Usage { measured, others, ours }
        };
        // 400 ticks: 200 busy, of which the suite's 120; 100 stolen.
        let shares = at(after, 1.7).since(at(before, 0.5));
        assert_eq!(shares.steal_percent, Some(25.0));
        assert!((shares.other_load_percent.unwrap() - 20.0).abs() < 1e-9);
        assert_eq!(shares.other_cpus_percent, Some(50.0));
        assert_eq!(times(before, 7), None);
    }

    #[test]
    fn the_innermost_mount_counts() {
        let mounts =
            "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /tmp rw shared:1 - tmpfs tmpfs rw\n";
        assert_eq!(mounted(mounts, Path::new("/tmp/x")).as_deref(), Some("tmpfs"));
        assert_eq!(mounted(mounts, Path::new("/home")).as_deref(), Some("ext4"));
    }

    #[test]
    fn what_disturbs_is_said() {
        let mut conditions = Conditions { cpu: Some(1), ..Conditions::default() };
        assert!(conditions.judged([2.0, 2.0001], true).is_empty());
        conditions.cpu = None;
        conditions.governor = Some("powersave".into());
        conditions.disturbances.steal_percent = Some(3.0);
        let sentences = conditions.judged([2.0, 2.1], false).join("\n");
        for part in ["not pinned", "change its rate", "5.00 %", "3.0 %", "powersave"] {
            assert!(sentences.contains(part), "{part} is not in {sentences}");
        }
    }

    #[test]
    fn conditions_that_differ_are_listed() {
        let before = Conditions {
            mitigations: [("spectre_v2".to_owned(), "on".to_owned())].into(),
            ..Conditions::default()
        };
        let after = Conditions { microcode: Some("0x2".into()), ..Conditions::default() };
        let names: Vec<&str> =
            before.differences(&after).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names, ["microcode", "mitigations"]);
        assert!(before.differences(&before).is_empty());
    }
}
