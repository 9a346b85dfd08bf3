//! Finds QEMU, reads its version, and makes the command line of a guest.
//!
//! Input: a `Boot`. Output: a `Command`. This module never runs a guest; `boot.rs` does.

use crate::configuration::{Boot, GuestClock};
use crate::turn;
use anyhow::{Context, Result, bail, ensure};
use host::recording::Recording;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The oldest version that is accepted. Conditional callbacks came with 9.1, and reading the
/// guest's memory from a plugin came with 9.2. 10.0 is the oldest version that was tested.
pub(crate) const OLDEST: QemuVersion = QemuVersion { major: 10, minor: 0, patch: 0 };

/// The first version with which recordings of several CPUs are not taken for equal. Those by 11.1.3
/// differ, also in turns of 5000 instructions (`cargo xtask record-test`). No version between 10.0
/// and 11.1 was tried. By its source, 10.2 is the first whose RCU makes CPUs end their turns by
/// this machine's clock, when memory of devices has changed (commit 55d98e3ede, "rcu: Unify force
/// quiescent state"). Whether that is the only cause is not known.
const FIRST_UNEQUAL: QemuVersion = QemuVersion { major: 10, minor: 2, patch: 0 };

/// The first version with another plugin API.
const FIRST_WITH_USER_DATA: QemuVersion = QemuVersion { major: 11, minor: 1, patch: 0 };

const PROGRAM: &str = "qemu-system-x86_64";

/// A version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QemuVersion {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl std::fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl QemuVersion {
    /// The version of QEMU's plugin API that Kernlane's plugin then uses.
    fn plugin_api(self) -> &'static str {
        match self >= FIRST_WITH_USER_DATA {
            true => "7",
            false => "4",
        }
    }
}

/// An installed QEMU.
pub struct Qemu {
    /// The path of the program.
    pub program: PathBuf,
    /// Its version.
    pub version: QemuVersion,
}

impl Qemu {
    /// The program that `KERNLANE_QEMU` names, or the first one in `PATH`.
    ///
    /// # Errors
    /// There is none, it does not run, it is older than `OLDEST`, or it was built without plugins.
    /// The message says how to get one.
    pub fn find() -> Result<Qemu> {
        let program = match std::env::var_os("KERNLANE_QEMU") {
            Some(program) => PathBuf::from(program),
            None => {
                in_path(PROGRAM).with_context(|| format!("there is no {PROGRAM}. {HOW_TO_GET}"))?
            }
        };
        let output = Command::new(&program)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("running {}. {HOW_TO_GET}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = parse_version(&text).with_context(|| {
            format!("{} --version printed {:?}", program.display(), text.trim())
        })?;
        if version < OLDEST {
            bail!(
                "{} is QEMU {version}; Kernlane needs {OLDEST} or later. {HOW_TO_GET}",
                program.display()
            );
        }
        Ok(Qemu { program, version })
    }

    /// Whether two recordings of several CPUs are equal.
    ///
    /// # Errors
    /// They are not; the message says what to do.
    pub fn repeats_several_cpus(&self) -> Result<()> {
        ensure!(
            self.version < FIRST_UNEQUAL,
            "{} is QEMU {}, with which two recordings of several CPUs may differ: name a QEMU \
             before {FIRST_UNEQUAL} in KERNLANE_QEMU",
            self.program.display(),
            self.version
        );
        Ok(())
    }

    /// Asks QEMU's help whether turns can be shortened. Returns the part of QEMU that does it.
    ///
    /// # Errors
    /// QEMU was built without a part that is needed, or does not run.
    pub fn shortens_turns(&self) -> Result<&'static str> {
        for (option, needed) in turn::NEEDED {
            let output = Command::new(&self.program)
                .args([option, "help"])
                .stdin(Stdio::null())
                .output()
                .with_context(|| format!("running {}", self.program.display()))?;
            ensure!(
                has_line(&String::from_utf8_lossy(&output.stdout), needed),
                "{0} has no {needed}, which shorter turns need: `{0} {option} help` does not \
                 list it. Set no turn, or name another QEMU in KERNLANE_QEMU",
                self.program.display()
            );
        }
        let [_, (_, filter)] = turn::NEEDED;
        Ok(filter)
    }

    /// The command line of a guest. The guest's serial lines are written to files in `directory`.
    ///
    /// # Errors
    /// The guest's parts do not fit together: for example a plugin with several CPUs.
    pub(crate) fn command(&self, boot: &Boot, directory: &Path) -> Result<Command> {
        let mut command = Command::new(&self.program);
        command.args(arguments(boot)?);
        command.arg("-kernel").arg(&boot.kernel).arg("-initrd").arg(&boot.initramfs);
        // The first serial line carries the kernel's log, the second one the output of the guest's
        // program.
        for name in [Recording::CONSOLE, Recording::OUTPUT] {
            command.arg("-serial").arg(option_path("file:", &directory.join(name)));
        }
        if let Some(notes) = &boot.notes {
            command.arg("-debugcon").arg(option_path("file:", notes));
        }
        if let Some(plugin) = &boot.plugin {
            let mut argument = option_path("", &plugin.library);
            for (key, value) in &plugin.arguments {
                argument.push(",");
                argument.push(key);
                argument.push("=");
                argument.push(option_path("", Path::new(value)));
            }
            command.arg("-plugin").arg(argument);
            command.env("KERNLANE_PLUGIN_API", self.version.plugin_api());
        }
        Ok(command)
    }
}

pub(crate) const HOW_TO_GET: &str = "On Debian 12: enable bookworm-backports, then \
    `apt-get install -t \
    bookworm-backports qemu-system-x86`";

/// The arguments that decide what the guest sees: the command line without files, in the form that
/// a recording contains.
pub(crate) fn arguments(boot: &Boot) -> Result<Vec<String>> {
    ensure!(boot.cpus >= 1, "a guest needs a CPU");
    ensure!(boot.cpus == 1 || boot.state.is_none(), "a guest with a checkpoint has one CPU");
    let mut arguments: Vec<String> = Vec::new();
    let mut add = |flag: &str, value: String| arguments.extend([flag.to_string(), value]);
    add("-machine", "pc-i440fx-10.0".into());
    // With several threads, QEMU 10.0 loses code patched by the kernel itself.
    add("-accel", if boot.cpus > 1 { "tcg,thread=single".into() } else { "tcg".into() });
    add("-cpu", boot.cpu_model.clone());
    add("-smp", boot.cpus.to_string());
    add("-m", format!("{}M", boot.memory_mb));
    if let GuestClock::Instructions { seed } = boot.clock {
        // One instruction takes one nanosecond, idle time is skipped, randomness comes from the
        // seed, and the date is fixed.
        add("-icount", "shift=0,sleep=off".into());
        add("-seed", seed.to_string());
        add("-rtc", "base=2020-01-01T00:00:00,clock=vm".into());
    }
    if let Some(turn) = boot.turn {
        ensure!(boot.clock != GuestClock::Host, "turns are counted by the guest's clock only");
        for (option, value) in turn::arguments(turn, boot.cpus)? {
            add(option, value);
        }
    }
    add("-display", "none".into());
    add("-monitor", "none".into());
    add("-append", kernel_command_line(boot));
    for card in ["left", "right"].iter().filter(|_| boot.network_cards) {
        add("-netdev", format!("hubport,id={card},hubid=0"));
        add("-device", format!("virtio-net-pci,netdev={card},romfile="));
    }
    arguments.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(String::from));
    Ok(arguments)
}

/// The kernel's command line. `panic=-1` reboots at once, which ends QEMU. `boot.rs` recognizes
/// lines of the kernel's log by their `printk.time`.
pub(crate) fn kernel_command_line(boot: &Boot) -> String {
    let mut words = vec!["console=ttyS0", "panic=-1", "printk.time=1"];
    if !boot.kaslr {
        words.push("nokaslr");
    }
    words.extend(boot.command_line.iter().map(String::as_str));
    words.join(" ")
}

/// A path as a value in QEMU's option syntax, where a comma is doubled.
fn option_path(prefix: &str, path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut bytes = prefix.as_bytes().to_vec();
    for byte in path.as_os_str().as_bytes() {
        bytes.push(*byte);
        if *byte == b',' {
            bytes.push(b',');
        }
    }
    OsString::from_vec(bytes)
}

/// The first program with this name in `PATH`.
pub fn in_path(program: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::var_os("PATH")?;
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(is_program)
}

/// Whether a help text lists this word in a line of its own.
fn has_line(help: &str, line: &str) -> bool {
    help.lines().any(|listed| listed.trim() == line)
}

/// Reads texts such as `QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)`.
fn parse_version(text: &str) -> Option<QemuVersion> {
    let rest = text.lines().next()?.split("version ").nth(1)?;
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    let (major, minor) = (numbers.next()??, numbers.next()??);
    Some(QemuVersion { major, minor, patch: numbers.next().flatten().unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot() -> Boot {
        Boot::new("bzImage".into(), "root.cpio".into())
    }

    #[test]
    fn newer_versions_record_one_cpu() {
        let at = |major, minor| Qemu {
            program: "qemu".into(),
            version: QemuVersion { major, minor, patch: 3 },
        };
        at(10, 0).repeats_several_cpus().unwrap();
        at(10, 1).repeats_several_cpus().unwrap();
        let message = at(10, 2).repeats_several_cpus().unwrap_err().to_string();
        assert!(message.contains("a QEMU before 10.2.0 in KERNLANE_QEMU"), "{message}");
        assert_eq!(
            [(10, 0), (11, 0), (11, 1), (12, 0)].map(|(a, b)| at(a, b).version.plugin_api()),
            ["4", "4", "7", "7"]
        );
    }

    #[test]
    fn versions_are_read_and_ordered() {
        let version = |text| parse_version(text).unwrap();
        let ten = version(
            "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)\nCopyright",
        );
        assert_eq!((ten.major, ten.minor, ten.patch), (10, 0, 2));
        assert!(ten >= OLDEST);
        assert!(version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)") < OLDEST);
        assert!(version("QEMU emulator version 10.1 (x)") >= OLDEST);
        for text in ["", "QEMU", "version x.y", "version 10"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
    }

    #[test]
    fn a_deterministic_guest_has_all_three_flags() {
        let mut boot = boot();
        boot.clock = GuestClock::Instructions { seed: 7 };
        let line = arguments(&boot).unwrap().join(" ");
        for flag in [
            "-icount shift=0,sleep=off",
            "-seed 7",
            "-rtc base=2020-01-01T00:00:00,clock=vm",
            "nokaslr",
        ] {
            assert!(line.contains(flag), "{line}");
        }
        boot.cpus = 2;
        let line = arguments(&boot).unwrap().join(" ");
        assert!(line.contains("-accel tcg,thread=single") && line.contains("-icount"), "{line}");
    }

    #[test]
    fn kaslr_and_several_cpus_change_the_command_line() {
        let mut boot = boot();
        boot.kaslr = true;
        boot.cpus = 4;
        boot.command_line.push("quiet".into());
        let line = arguments(&boot).unwrap().join(" ");
        assert!(
            !line.contains("nokaslr")
                && line.contains("tcg,thread=single")
                && line.contains("-smp 4")
                && line.ends_with("-no-reboot")
        );
        assert!(line.contains("panic=-1 printk.time=1 quiet"));
    }

    #[test]
    fn a_part_of_qemu_is_a_whole_line_of_its_help() {
        let help = "List of user creatable objects:\n  can-bus\n  filter-buffer\n  filter-dump\n";
        assert!(has_line(help, "filter-buffer"));
        assert!(!has_line(help, "filter"));
        assert!(!has_line("", "hubport"));
    }

    #[test]
    fn a_turn_adds_a_timer_and_nothing_else() {
        let mut boot = boot();
        boot.clock = GuestClock::Instructions { seed: 7 };
        boot.cpus = 4;
        let without = arguments(&boot).unwrap();
        boot.turn = Some(1000);
        let mut with = arguments(&boot).unwrap();
        assert!(with.join(" ").contains(
            "-netdev hubport,id=no-network,hubid=0 -object \
             filter-buffer,id=turns,netdev=no-network,interval=4"
        ));
        with.retain(|word| without.contains(word));
        assert_eq!(with, without);
        boot.clock = GuestClock::Host;
        assert!(arguments(&boot).is_err(), "the host's clock counts no instructions");
        boot.clock = GuestClock::Instructions { seed: 7 };
        boot.cpus = 1;
        assert!(arguments(&boot).is_err(), "one CPU takes no turns");
    }

    #[test]
    fn commas_in_paths_are_doubled() {
        assert_eq!(option_path("file:", Path::new("/a,b")), "file:/a,,b");
        let qemu = Qemu { program: PROGRAM.into(), version: OLDEST };
        let mut boot = boot();
        let notes = |boot: &Boot| {
            let command = qemu.command(boot, Path::new("/d")).unwrap();
            let mut words = command.get_args().skip_while(|word| *word != "-debugcon");
            words.nth(1).map(std::ffi::OsStr::to_owned)
        };
        assert_eq!(notes(&boot), None);
        boot.notes = Some("/a,b".into());
        assert_eq!(notes(&boot), Some("file:/a,,b".into()));
    }
}
