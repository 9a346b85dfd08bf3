//! The steps that change the machine. `--dry-run` shows them; otherwise they are carried out.
//!
//! Input: a state. Output: steps. A step changes nothing until it is carried out.

use super::state::{AbRun, Method};
use anyhow::{Context, Result, bail, ensure};
use host::{interrupt, output};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The unit that resumes after a reboot.
pub(crate) const UNIT: &str = "kernlane-bench-ab.service";
const UNITS: &str = "/etc/systemd/system";

/// Where the unit is while a run is under way.
pub(crate) fn unit_path() -> PathBuf {
    Path::new(UNITS).join(UNIT)
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Run(Vec<OsString>),
    Write(PathBuf, String),
    /// A missing file is not an error.
    Remove(PathBuf),
}

impl Step {
    fn run<T: AsRef<str>>(words: &[T]) -> Step {
        Step::Run(words.iter().map(|word| OsString::from(word.as_ref())).collect())
    }

    /// Carries out the step.
    ///
    /// # Errors
    /// The program is missing or fails; the file cannot be written or removed.
    pub(crate) fn carry_out(&self) -> Result<()> {
        match self {
            Step::Run(words) => {
                let (program, rest) = words.split_first().context("a step without a program")?;
                let mut program = interrupt::spawn(Command::new(program).args(rest))
                    .with_context(|| format!("{}: is it installed?", program.display()))?;
                let status = program.ended().context("a program cannot be waited for")?;
                ensure!(status.success(), "{self}: {status}");
                Ok(())
            }
            Step::Write(path, text) => output::write(path, text.as_bytes()),
            Step::Remove(path) => match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    bail!("{}: cannot be removed: {error}", path.display())
                }
                _ => Ok(()),
            },
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Run(words) => {
                f.write_str("run:")?;
                words.iter().try_for_each(|word| write!(f, " {}", quoted(word)))
            }
            Step::Write(path, text) => {
                write!(f, "write {}:", path.display())?;
                text.lines().try_for_each(|line| write!(f, "\n    {line}"))
            }
            Step::Remove(path) => write!(f, "remove {}", path.display()),
        }
    }
}

/// A word as a shell takes it.
fn quoted(word: &OsString) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The steps before the first reboot.
pub(crate) fn begin(state: &AbRun, directory: &Path) -> Result<Vec<Step>> {
    if !state.unit {
        return Ok(Vec::new());
    }
    Ok(vec![
        Step::Write(unit_path(), unit(state, directory)?),
        Step::run(&["systemctl", "daemon-reload"]),
        Step::run(&["systemctl", "enable", UNIT]),
    ])
}

/// The steps after the last reboot.
pub(crate) fn end(state: &AbRun) -> Vec<Step> {
    if !state.unit {
        return Vec::new();
    }
    vec![
        Step::run(&["systemctl", "disable", UNIT]),
        Step::Remove(unit_path()),
        Step::run(&["systemctl", "daemon-reload"]),
    ]
}

/// Ends the process that the unit has started.
pub(crate) fn stop() -> Step {
    Step::run(&["systemctl", "stop", UNIT])
}

/// Boots one of the kernels, once.
pub(crate) fn boot(state: &AbRun, which: usize) -> Vec<Step> {
    let target = &state.kernels[which].boot;
    let mut steps = vec![Step::run(&["sync"])];
    let reboot = |how: &str| Step::run(&["systemctl", "--no-block", how]);
    match state.method {
        Method::Kexec => {
            // Under lockdown (Secure Boot) only the newer of the two system calls works.
            let how = ["kexec", "--kexec-syscall-auto", "--load"].map(str::to_owned);
            let mut words = Vec::from(how);
            words.push(target.clone());
            words.extend(initrd(Path::new(target)).map(|path| format!("--initrd={path}")));
            words.push(format!("--command-line={}", state.command_line));
            steps.push(Step::run(&words));
            steps.push(match state.unit {
                true => reboot("kexec"),
                false => Step::run(&["kexec", "--exec"]),
            });
        }
        Method::Grub => {
            steps.push(Step::run(&["grub-reboot", target]));
            steps.push(reboot("reboot"));
        }
        Method::SystemdBoot => {
            steps.push(Step::run(&["bootctl", "set-oneshot", target]));
            steps.push(reboot("reboot"));
        }
    }
    steps
}

/// The initial file system beside a kernel, by the names that distributions give it.
fn initrd(kernel: &Path) -> Option<String> {
    let name = kernel.file_name()?.to_str()?;
    let version = name.strip_prefix("vmlinuz-")?;
    let names = [
        format!("initrd.img-{version}"),
        format!("initramfs-{version}.img"),
        format!("initrd-{version}"),
    ];
    let mut paths = names.iter().map(|name| kernel.with_file_name(name));
    paths.find(|path| path.is_file())?.to_str().map(str::to_owned)
}

/// The unit's text (systemd.service(5)).
fn unit(state: &AbRun, directory: &Path) -> Result<String> {
    let mut words: Vec<OsString> = state.program.clone();
    words.extend(["--ab".into(), directory.into(), "--resume".into()]);
    let words: Vec<String> = words.iter().map(unit_word).collect::<Result<_>>()?;
    let mounted = unit_text(&directory.into())?;
    Ok(format!(
        "[Unit]
Description=kernlane bench --ab: measures two kernels alternately
After=multi-user.target
RequiresMountsFor={mounted}

[Service]
Type=exec
ExecStart={}

[Install]
WantedBy=multi-user.target
",
        words.join(" ")
    ))
}

/// A word of a unit's command line (systemd.service(5), "Command lines").
fn unit_word(word: &OsString) -> Result<String> {
    Ok(unit_text(word)?.replace('$', "$$"))
}

/// A word of another line of a unit, where variables mean nothing (systemd.syntax(7), "Quoting").
fn unit_text(word: &OsString) -> Result<String> {
    let text = word.to_str().filter(|text| !text.contains(['\n', '\0'])).with_context(|| {
        let shown = String::from_utf8_lossy(word.as_bytes()).into_owned();
        format!("{shown:?} cannot stand in a unit of systemd")
    })?;
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    Ok(format!("\"{}\"", escaped.replace('%', "%%")))
}

#[cfg(test)]
mod tests {
    use super::super::state::examples::state;
    use super::*;

    fn said(steps: &[Step]) -> Vec<String> {
        steps.iter().map(Step::to_string).collect()
    }

    #[test]
    fn every_method_boots_once() {
        let mut state = state(1);
        state.command_line = "root=/dev/vda1 quiet".into();
        assert_eq!(
            said(&boot(&state, 1)),
            [
                "run: sync",
                "run: kexec --kexec-syscall-auto --load /boot/vmlinuz-2 \
                 '--command-line=root=/dev/vda1 quiet'",
                "run: systemctl --no-block kexec",
            ]
        );
        state.unit = false;
        assert_eq!(said(&boot(&state, 1))[2], "run: kexec --exec");
        state.method = Method::Grub;
        state.kernels[0].boot = "Debian's kernel>1".into();
        assert_eq!(
            said(&boot(&state, 0))[1..],
            ["run: grub-reboot 'Debian'\\''s kernel>1'", "run: systemctl --no-block reboot"]
        );
        state.method = Method::SystemdBoot;
        assert_eq!(said(&boot(&state, 1))[1], "run: bootctl set-oneshot /boot/vmlinuz-2");
    }

    #[test]
    fn the_unit_does_not_stop_itself() {
        let mut state = state(1);
        let steps = said(&end(&state));
        assert!(steps[0].starts_with("run: systemctl disable "), "{steps:?}");
        assert!(!steps.contains(&stop().to_string()), "{steps:?}");
        state.unit = false;
        assert!(end(&state).is_empty());
    }

    #[test]
    fn the_initial_file_system_beside_a_kernel_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let kernel = directory.path().join("vmlinuz-6.12.1");
        assert_eq!(initrd(&kernel), None);
        let beside = directory.path().join("initramfs-6.12.1.img");
        std::fs::write(&beside, "").unwrap();
        assert_eq!(initrd(&kernel).as_deref(), beside.to_str());
        assert_eq!(initrd(Path::new("/boot/bzImage")), None);
    }

    #[test]
    fn systemd_accepts_the_unit() {
        let mut state = state(1);
        state.program = vec!["/bin/true".into(), "bench".into()];
        let text = unit(&state, Path::new("/var/lib/a \"b\" %n $x")).unwrap();
        let line = "ExecStart=\"/bin/true\" \"bench\" \"--ab\" \"/var/lib/a \\\"b\\\" %%n $$x\" \
                    \"--resume\"\n";
        assert!(text.contains(line), "{text}");
        let line = "RequiresMountsFor=\"/var/lib/a \\\"b\\\" %%n $x\"\n";
        assert!(text.contains(line), "{text}");
        assert!(unit(&state, Path::new("a\nb")).is_err());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(UNIT);
        std::fs::write(&path, text).unwrap();
        // Where there is no systemd, its judgement is not asked for.
        let verified =
            Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
        if let Ok(output) = verified {
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!complaint.contains(UNIT), "{complaint}");
        }
    }

    #[test]
    fn steps_are_carried_out_and_failures_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("unit");
        Step::Write(path.clone(), "x\n".into()).carry_out().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "x\n");
        Step::Remove(path.clone()).carry_out().unwrap();
        Step::Remove(path.clone()).carry_out().unwrap();
        assert!(!path.exists());
        Step::run(&["true"]).carry_out().unwrap();
        let message = Step::run(&["sh", "-c", "exit 3"]).carry_out().unwrap_err().to_string();
        assert_eq!(message, "run: sh -c 'exit 3': exit status: 3");
        let message = Step::run(&["no-such-program"]).carry_out().unwrap_err().to_string();
        assert_eq!(message, "no-such-program: is it installed?");
    }
}
