//! Two kernels that are booted alternately.
//!
//! Input: the state of the run. Output: the next boot, or the result. A run begins, resumes after
//! each reboot, and ends on the kernel that ran first.

use super::merged::merged;
use super::state::{AbRun, Kernel, Measurement, RunningKernel};
use super::steps::{self, Step, UNIT};
use crate::conditions::Conditions;
use crate::result::Results;
use anyhow::{Context, Result, anyhow, bail, ensure};
use host::{note, output};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The last step of a boot.
#[derive(Debug, PartialEq)]
pub(crate) enum Ended {
    /// The machine reboots.
    Reboots,
    /// Everything was measured; the first kernel runs.
    Whole,
}

/// The running kernel.
///
/// # Errors
/// The kernel does not say its release.
pub(crate) fn running() -> Result<RunningKernel> {
    let conditions = Conditions::before(None, 0, Path::new("/"));
    let Conditions { kernel_release: release, kernel_version, kernel_build_id, .. } = conditions;
    ensure!(!release.is_empty(), "the running kernel does not say its release");
    let identity = kernel_build_id.unwrap_or_else(|| format!("{release} {kernel_version}"));
    Ok(RunningKernel { identity, release })
}

/// A kernel as it was typed, with what its file says.
///
/// # Errors
/// The kernel must be booted by kexec, and the file is not a kernel.
pub(crate) fn kernel(boot: &str, is_file: bool) -> Result<Kernel> {
    let release = match is_file {
        true => {
            let bytes = std::fs::read(boot).with_context(|| format!("--kernels: {boot}"))?;
            let release = release(&bytes);
            Some(release.with_context(|| format!("--kernels: {boot} is not a bzImage"))?)
        }
        false => None,
    };
    let path = is_file.then(|| Path::new(boot).canonicalize()).transpose()?;
    let boot = path.map_or(boot.to_owned(), |path| path.display().to_string());
    Ok(Kernel { boot, identity: None, release })
}

/// The release in a bzImage's header (Documentation/arch/x86/boot.rst: `HdrS` at 0x202, the place
/// of the version less 0x200 at 0x20e).
fn release(image: &[u8]) -> Option<String> {
    (image.get(0x202..0x206)? == b"HdrS").then_some(())?;
    let at = u16::from_le_bytes(image.get(0x20e..0x210)?.try_into().ok()?);
    let text = image.get(usize::from(at) + 0x200..)?;
    let end = text.iter().position(|byte| [b' ', 0].contains(byte))?;
    let release = std::str::from_utf8(&text[..end]).ok()?;
    (!release.is_empty()).then(|| release.to_owned())
}

/// Every step, for `--dry-run`.
///
/// # Errors
/// A path cannot stand in a unit.
pub(crate) fn plan(state: &AbRun, directory: &Path) -> Result<String> {
    let mut lines: Vec<String> = steps::begin(state, directory)?.iter().map(said).collect();
    let mut state = state.clone();
    let mut runs = 0;
    loop {
        if !state.is_measured() {
            let (boot, which) = (state.measured.len(), state.wanted());
            let result = AbRun::result(directory, boot);
            let kernel = &state.kernels[which].boot;
            lines.push(format!("measure {kernel} into {}", result.display()));
            state.measured.push(which);
            if !state.is_measured() || which != 0 {
                runs = state.wanted();
                lines.extend(steps::boot(&state, runs).iter().map(said));
                continue;
            }
        }
        ensure!(runs == 0, "a run ends on the first kernel");
        lines.extend(steps::end(&state).iter().map(said));
        lines.push(format!("write {0}/before.json and {0}/after.json", directory.display()));
        return Ok(lines.join("\n") + "\n");
    }
}

fn said(step: &Step) -> String {
    step.to_string()
}

/// Begins a run: writes the state, and makes every boot resume. The next step is [`Boot::resume`].
///
/// # Errors
/// A run was begun there already; the directory does not survive a reboot; see [`Step::carry_out`].
pub(crate) fn begin(state: &AbRun, directory: &Path) -> Result<()> {
    ensure!(
        AbRun::read(directory).is_err(),
        "{}: a run was begun there: go on by --resume, or end it by --stop",
        directory.display()
    );
    std::fs::create_dir_all(directory)
        .with_context(|| format!("{}: cannot be made", directory.display()))?;
    let kind = Conditions::before(None, 0, directory).file_system.unwrap_or_default();
    ensure!(
        !["tmpfs", "ramfs"].contains(&kind.as_str()),
        "{}: a {kind} does not survive a reboot: name a directory on a disk",
        directory.display()
    );
    state.write(directory)?;
    let done =
        steps::begin(state, directory).and_then(|steps| steps.iter().try_for_each(Step::carry_out));
    if done.is_err() {
        // Nothing was measured, so nothing is lost.
        end(state, &Step::carry_out);
        forget(directory)?;
    }
    done
}

/// Takes the last steps, after which no more reboots follow. A step that fails does not stop the
/// others.
fn end(state: &AbRun, carry_out: &dyn Fn(&Step) -> Result<()>) {
    for step in steps::end(state) {
        if let Err(error) = carry_out(&step) {
            note!("{error:#}");
        }
    }
}

/// Removes the state of a run. What was measured stays.
fn forget(directory: &Path) -> Result<()> {
    let path: PathBuf = directory.join("state.json");
    std::fs::remove_file(&path).with_context(|| path.display().to_string())
}

/// The right of one process to work on a run. It ends when this is dropped.
struct RunLock(File);

impl Drop for RunLock {
    fn drop(&mut self) {
        // Closing the file is not enough: another thread may have forked, and until its child calls
        // exec, the child also holds the lock.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Makes this process the only one that works on a run.
fn lock(directory: &Path) -> Result<RunLock> {
    let named = || directory.display().to_string();
    let file = File::open(directory).with_context(named)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(RunLock(file)),
        Err(Errno::WOULDBLOCK) => bail!(
            "{}: another process works on this run: see `systemctl status {UNIT}`, or end it by \
             Ctrl-C on its terminal",
            named()
        ),
        Err(error) => bail!("{}: flock: {error}", named()),
    }
}

/// One boot of a run.
pub(crate) struct Boot<'a> {
    /// Where the state of the run lies.
    pub directory: &'a Path,
    /// This boot, as the kernel names it.
    pub id: &'a str,
    pub running: &'a RunningKernel,
    pub carry_out: &'a dyn Fn(&Step) -> Result<()>,
}

impl Boot<'_> {
    /// Goes on where the last boot ended. `measure` measures the running kernel.
    ///
    /// # Errors
    /// The wrong kernel runs, the last boot was interrupted, or a step fails. Then no further boot
    /// follows until this function is called again.
    pub(crate) fn resume(
        &self,
        measure: impl FnOnce(&Measurement) -> Result<Results>,
    ) -> Result<Ended> {
        AbRun::read(self.directory)?;
        let _only = lock(self.directory)?;
        // Another process may have worked on the run until now.
        let mut state = AbRun::read(self.directory)?;
        let done = match state.ended.take() {
            Some(why) => self.go_on(&mut state, &why, measure),
            None => self.step(&mut state, measure),
        };
        if let Err(error) = &done {
            state.ended = Some(format!("{error:#}"));
            if let Err(error) = state.write(self.directory) {
                note!("{error:#}");
            }
            end(&state, self.carry_out);
        }
        done
    }

    /// Goes on with a run that was ended, because a user wants it.
    fn go_on(
        &self,
        state: &mut AbRun,
        why: &str,
        measure: impl FnOnce(&Measurement) -> Result<Results>,
    ) -> Result<Ended> {
        note!("this run was ended: {why}; it goes on");
        state.measuring = None;
        state.write(self.directory)?;
        steps::begin(state, self.directory)?.iter().try_for_each(self.carry_out)?;
        let next = state.wanted();
        let is_left = state.last_boot.as_deref() == Some(self.id);
        if !is_left && state.runs(next, self.running).is_err() {
            return self.leave(state, next);
        }
        self.step(state, measure)
    }

    /// Boots a kernel.
    fn leave(&self, state: &AbRun, next: usize) -> Result<Ended> {
        steps::boot(state, next).iter().try_for_each(self.carry_out)?;
        Ok(Ended::Reboots)
    }

    fn step(
        &self,
        state: &mut AbRun,
        measure: impl FnOnce(&Measurement) -> Result<Results>,
    ) -> Result<Ended> {
        let &Boot { directory, id, running, carry_out } = self;
        // A boot that was measured and not left, because it was interrupted, is left now.
        let is_new = state.last_boot.as_deref() != Some(id);
        if is_new {
            let which = state.wanted();
            let begun = state.measuring.take();
            if begun.is_some_and(|begun| begun != id) {
                bail!(
                    "the last boot was interrupted while {} was measured: it crashed, or somebody \
                     switched it off; --resume measures it again",
                    state.kernels[which].boot
                );
            }
            let runs = state.runs(which, running);
            runs.map_err(|wrong| anyhow!("{wrong:#}; --resume boots the right one"))?;
            if !state.is_measured() {
                state.measuring = Some(id.to_owned());
                state.write(directory)?;
                // Each boot has its own order.
                let boot = state.measured.len() as u64;
                let seed = state.measurement.seed.wrapping_add(boot);
                let results = measure(&Measurement { seed, ..state.measurement.clone() })?;
                let path = AbRun::result(directory, state.measured.len());
                output::write(&path, results.text()?.as_bytes())?;
                state.measured.push(which);
                state.measuring = None;
            }
            state.last_boot = Some(id.to_owned());
            state.write(directory)?;
        }
        let first = state.kernels[0].identity.as_ref() == Some(&running.identity);
        if !state.is_measured() || !first {
            return self.leave(state, state.wanted());
        }
        for (which, name) in ["before.json", "after.json"].iter().enumerate() {
            let merged = merged(&boots_of(state, directory, which)?)?;
            output::write(&directory.join(name), merged.text()?.as_bytes())?;
        }
        steps::end(state).iter().try_for_each(carry_out)?;
        Ok(Ended::Whole)
    }
}

fn boots_of(state: &AbRun, directory: &Path, which: usize) -> Result<Vec<Results>> {
    let boots = state.measured.iter().enumerate().filter(|(_, kernel)| **kernel == which);
    boots.map(|(boot, _)| Results::read(&AbRun::result(directory, boot))).collect()
}

/// Ends a run, wherever it is. What was measured stays.
///
/// # Errors
/// No run was begun there, a process that no unit started works on it, or a step fails.
pub(crate) fn stop(directory: &Path) -> Result<()> {
    let state = AbRun::read(directory)?;
    if steps::unit_path().exists() {
        // The process of the unit ends with it, and may remove the unit itself.
        steps::stop().carry_out()?;
    }
    let _only = lock(directory)?;
    let rest = if steps::unit_path().exists() { steps::end(&state) } else { Vec::new() };
    let done: Vec<Result<()>> = rest.iter().map(Step::carry_out).collect();
    forget(directory)?;
    done.into_iter().collect()
}

/// This boot, as the kernel names it.
///
/// # Errors
/// `/proc` is not mounted.
pub(crate) fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(path).with_context(|| path.to_owned())?;
    Ok(id.trim().to_owned())
}

/// Checks the conditions for rebooting a machine.
///
/// # Errors
/// A condition does not hold.
pub(crate) fn may_reboot(state: &AbRun) -> Result<()> {
    // SAFETY: the call has no arguments and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    ensure!(is_root, "--ab --kernels reboots the machine: run it as root");
    if state.unit && !Path::new("/run/systemd/system").is_dir() {
        bail!(
            "systemd does not run here: give --no-unit, and start the same command with --resume \
             at each boot"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::state::examples::{running, state};
    use super::*;
    use crate::result::examples::{entry, results};
    use std::cell::RefCell;

    /// A machine that boots what `kexec` loads, except when it is told to boot another.
    struct Machine {
        running: RefCell<usize>,
        steps: RefCell<Vec<String>>,
    }

    impl Machine {
        fn carry_out(&self, step: &Step) -> Result<()> {
            let text = step.to_string();
            if let Some(at) = [1, 2].iter().position(|n| text.contains(&format!("vmlinuz-{n}"))) {
                *self.running.borrow_mut() = at;
            }
            self.steps.borrow_mut().push(text);
            Ok(())
        }

        fn kernel(&self) -> RunningKernel {
            running(["aa", "bb"][*self.running.borrow()], "6.12.1")
        }
    }

    fn machine() -> Machine {
        Machine { running: RefCell::new(0), steps: RefCell::new(Vec::new()) }
    }

    fn begun(boots: usize, directory: &Path) {
        AbRun::begin(state(boots), &running("aa", "6.12.1")).unwrap().write(directory).unwrap();
    }

    /// Resumes in a new boot.
    fn resumed(machine: &Machine, directory: &Path, boot: usize) -> Result<Ended> {
        let nanoseconds = [100.0, 105.0][*machine.running.borrow()] + boot as f64 * 0.1;
        let mut run = results(vec![entry("call/getpid", nanoseconds, 0.5)]);
        run.conditions.kernel_build_id = Some(machine.kernel().identity);
        let measure = |_: &Measurement| Ok(run);
        let carry_out = |step: &Step| machine.carry_out(step);
        let (id, running) = (format!("boot {boot}"), machine.kernel());
        let boot = Boot { directory, id: &id, running: &running, carry_out: &carry_out };
        boot.resume(measure)
    }

    #[test]
    fn a_run_measures_every_boot_and_ends_on_the_first_kernel() {
        let directory = tempfile::tempdir().unwrap();
        let (machine, here) = (machine(), directory.path());
        begun(3, here);
        let mut boots = 0;
        while resumed(&machine, here, boots).unwrap() == Ended::Reboots {
            boots += 1;
            assert!(boots < 20);
        }
        assert_eq!(AbRun::read(here).unwrap().measured, [0, 1, 1, 0, 0, 1]);
        assert_eq!(*machine.running.borrow(), 0);
        // Six boots are measured, the first of which needs no reboot; one more ends on the first.
        assert_eq!(boots, 6);
        let [before, after] = ["before.json", "after.json"]
            .map(|name| Results::read(&here.join(name)).unwrap().conditions.kernel_build_id);
        assert_eq!((before.as_deref(), after.as_deref()), (Some("aa"), Some("bb")));
        let last = machine.steps.borrow().last().unwrap().clone();
        assert_eq!(last, "run: systemctl daemon-reload");
    }

    #[test]
    fn a_wrong_kernel_ends_the_run_without_another_reboot() {
        let directory = tempfile::tempdir().unwrap();
        let (machine, here) = (machine(), directory.path());
        begun(2, here);
        resumed(&machine, here, 0).unwrap();
        // The boot loader has not done what it was told.
        *machine.running.borrow_mut() = 0;
        machine.steps.borrow_mut().clear();
        let message = resumed(&machine, here, 1).unwrap_err().to_string();
        assert!(message.starts_with("the wrong kernel runs: /boot/vmlinuz-2 was to run"));
        let steps = machine.steps.borrow();
        assert!(steps[0].contains("disable"), "{steps:?}");
        assert!(!steps.iter().any(|step| step.contains("kexec")), "{steps:?}");
    }

    /// Resumes until the run ends; gives the number of boots.
    fn finished(machine: &Machine, directory: &Path) -> usize {
        let boots = (100..120)
            .take_while(|boot| resumed(machine, directory, *boot).unwrap() == Ended::Reboots);
        let boots = boots.count();
        assert_eq!(*machine.running.borrow(), 0);
        boots
    }

    #[test]
    fn a_user_goes_on_after_a_wrong_kernel() {
        let directory = tempfile::tempdir().unwrap();
        let (machine, here) = (machine(), directory.path());
        begun(2, here);
        resumed(&machine, here, 0).unwrap();
        *machine.running.borrow_mut() = 0;
        resumed(&machine, here, 1).unwrap_err();
        let why = AbRun::read(here).unwrap().ended.unwrap();
        assert!(why.ends_with("--resume boots the right one"), "{why}");
        machine.steps.borrow_mut().clear();
        // Nothing is measured on the wrong kernel. The unit is there again, the right one boots.
        assert_eq!(resumed(&machine, here, 1).unwrap(), Ended::Reboots);
        assert_eq!(AbRun::read(here).unwrap().measured, [0]);
        assert!(machine.steps.borrow()[0].starts_with("write /etc/systemd/system/"));
        assert_eq!(*machine.running.borrow(), 1);
        assert_eq!(finished(&machine, here), 2);
        assert_eq!(AbRun::read(here).unwrap().measured, [0, 1, 1, 0]);
    }

    #[test]
    fn a_boot_that_was_interrupted_is_measured_when_a_user_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let (machine, here) = (machine(), directory.path());
        begun(2, here);
        resumed(&machine, here, 0).unwrap();
        // The second boot ends without a word while it is measured, and the loader boots it again.
        let mut state = AbRun::read(here).unwrap();
        state.measuring = Some("boot 1".into());
        state.write(here).unwrap();
        machine.steps.borrow_mut().clear();
        let message = resumed(&machine, here, 2).unwrap_err().to_string();
        assert!(
            message.starts_with(
                "the last boot was interrupted while /boot/vmlinuz-2 was measured: it crashed"
            ),
            "{message}"
        );
        assert!(!machine.steps.borrow().iter().any(|step| step.contains("kexec")));
        assert_eq!(resumed(&machine, here, 2).unwrap(), Ended::Reboots);
        assert_eq!(AbRun::read(here).unwrap().measured, [0, 1]);
        assert_eq!(finished(&machine, here), 1);
    }

    #[test]
    fn a_benchmark_that_fails_ends_the_run_until_a_user_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let (machine, here) = (machine(), directory.path());
        begun(2, here);
        let carry_out = |step: &Step| machine.carry_out(step);
        let (id, running) = ("boot 0", machine.kernel());
        let boot = Boot { directory: here, id, running: &running, carry_out: &carry_out };
        boot.resume(|_| bail!("interrupted")).unwrap_err();
        let state = AbRun::read(here).unwrap();
        assert_eq!((state.ended.as_deref(), &state.measured[..]), (Some("interrupted"), &[][..]));
        assert!(machine.steps.borrow()[0].contains("disable"));
        assert_eq!(finished(&machine, here), 3);
    }

    #[test]
    fn two_processes_do_not_work_on_one_run() {
        let directory = tempfile::tempdir().unwrap();
        let (machine, here) = (machine(), directory.path());
        begun(2, here);
        let held = lock(here).unwrap();
        let message = resumed(&machine, here, 0).unwrap_err().to_string();
        assert!(message.contains("another process works on this run: see `systemctl status"));
        assert!(stop(here).is_err());
        assert!(machine.steps.borrow().is_empty());
        assert_eq!(AbRun::read(here).unwrap().ended, None);
        drop(held);
        assert_eq!(finished(&machine, here), 3);
    }

    #[test]
    fn a_boot_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        let (machine, here) = (machine(), directory.path());
        begun(2, here);
        resumed(&machine, here, 0).unwrap();
        *machine.running.borrow_mut() = 0;
        assert_eq!(resumed(&machine, here, 0).unwrap(), Ended::Reboots);
        assert_eq!(AbRun::read(here).unwrap().measured, [0]);
    }

    #[test]
    fn the_plan_names_every_step() {
        let plan = plan(&state(2), Path::new("/var/lib/ab")).unwrap();
        let count = |text: &str| plan.matches(text).count();
        assert_eq!(count("measure /boot/vmlinuz-1"), 2, "{plan}");
        assert_eq!(count("measure /boot/vmlinuz-2"), 2);
        // A B B A: three reboots, and the first kernel runs in the end.
        assert_eq!(count("run: kexec"), 3);
        assert!(plan.starts_with("write /etc/systemd/system/kernlane-bench-ab.service:"));
        assert!(plan.ends_with("write /var/lib/ab/before.json and /var/lib/ab/after.json\n"));
        // A B: the first kernel is booted once more.
        let plan = super::plan(&state(1), Path::new("/var/lib/ab")).unwrap();
        assert_eq!(plan.matches("run: kexec").count(), 2, "{plan}");
    }

    #[test]
    fn a_kernels_file_says_its_release() {
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x311].copy_from_slice(b"6.12.1-x (me@h) #");
        assert_eq!(release(&image).as_deref(), Some("6.12.1-x"));
        for cut in 0..0x308 {
            assert_eq!(release(&image[..cut]), None);
        }
        assert_eq!(release(b"\x7fELF"), None);
        let message = format!("{:#}", kernel("/proc/self/cmdline", true).unwrap_err());
        assert!(message.contains("is not a bzImage"), "{message}");
    }
}
