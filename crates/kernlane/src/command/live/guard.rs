//! Guards installed groups: watches the kernel's log, and takes everything back when the kernel
//! complains about installed code.

use anyhow::{Result, bail};
use host::{interrupt, outln};
use live::keep::guards::GuardLock;
use live::keep::state::{self, KeepState};
use live::kernel_log::{Complaint, KernelLog};
use live::undo::{self, TakenBack};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long taking back waits for tasks in copies. Meanwhile the kernel runs its own code.
const LEAVE: Duration = Duration::from_secs(60);

/// A guard of what is installed.
pub(super) struct Guard<'a> {
    state: &'a KeepState,
    log: KernelLog,
    lock: GuardLock,
    proven_after: Duration,
    /// When the present groups were installed, until they are proven.
    trial: Option<Instant>,
}

/// How a while of watching ended.
pub(super) enum Watched {
    /// The time is over.
    Over,
    /// The kernel complained about installed code.
    Complained(Complaint),
    /// Somebody stops this command.
    Stopped,
}

impl<'a> Guard<'a> {
    /// Guards from now on. After `proven_after` a crash is no reason any more to install nothing at
    /// the next boot.
    pub(super) fn new(state: &'a KeepState, proven_after: Duration) -> Result<Guard<'a>> {
        let (log, lock) = (KernelLog::open()?, GuardLock::new()?);
        Ok(Guard { state, log, lock, proven_after, trial: Some(Instant::now()) })
    }

    /// Says on the disk that groups are about to be installed, so that the next boot knows if this
    /// one crashes. Were this impossible, nothing must be installed.
    pub(super) fn begin_trial(&mut self) -> Result<()> {
        self.state.begin_trial(&state::this_boot()?)?;
        self.trial = Some(Instant::now());
        Ok(())
    }

    /// Watches for a while.
    pub(super) fn watch(&mut self, time: Duration) -> Result<Watched> {
        let begun = Instant::now();
        loop {
            let left = time.saturating_sub(begun.elapsed());
            let until_proven = match self.trial {
                Some(trial) => self.proven_after.saturating_sub(trial.elapsed()),
                None => Duration::MAX,
            };
            match self.log.next(left.min(until_proven)) {
                Ok(Some(complaint)) => return Ok(Watched::Complained(complaint)),
                Ok(None) => {}
                Err(_) if interrupt::check().is_err() => return Ok(Watched::Stopped),
                Err(error) => return Err(error),
            }
            if let Some(trial) = self.trial.filter(|trial| trial.elapsed() >= self.proven_after) {
                self.trial = None;
                if self.state.end_trial()? {
                    outln!("it has run for {} s, and is proven", trial.elapsed().as_secs())?;
                }
            }
            if begun.elapsed() >= time {
                return Ok(Watched::Over);
            }
        }
    }

    /// The kernel complained: everything is taken back, and marked.
    pub(super) fn give_up(&self, complaint: &Complaint) -> Result<ExitCode> {
        let reason = format!("the kernel complained about installed code: {complaint}");
        // First what the next boot must know, in case this one does not go on. Where it cannot be
        // written, everything is taken back all the same.
        let marked = self.state.mark_bad(&reason);
        let taken_back = take_back();
        marked?;
        bail!(
            "{reason}. {}. It is not installed at later boots, until `kernlane live keep --retry`",
            taken_back?
        )
    }

    /// Somebody stops this command: what is installed does not outlive its last guard.
    pub(super) fn stop(&self) -> Result<ExitCode> {
        interrupt::resume();
        if self.lock.has_others()? {
            outln!("stopped: another command guards what is installed")?;
            return Ok(ExitCode::SUCCESS);
        }
        outln!("stopped: {}", take_back()?)?;
        self.state.end_trial()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Takes everything back, and says so.
pub(super) fn take_back() -> Result<String> {
    let taken_back: Vec<TakenBack> =
        undo::undo_within(None, LEAVE, &mut |_| {})?.unwrap_or_default();
    let sentences: Vec<String> = taken_back.iter().map(super::undo::sentence).collect();
    Ok(match sentences.is_empty() {
        true => "nothing was installed any more".to_owned(),
        false => sentences.join("; "),
    })
}
