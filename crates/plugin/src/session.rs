//! The course of a session: waiting for marker 1, recording, over. QEMU's callbacks pass what they
//! learn to the recorder.
//!
//! While waiting, only marker 1, task switches and halts are instrumented. Marker 1 makes QEMU drop
//! all translations. So everything that runs later is translated again, at its real address, with
//! the recorder's callbacks. The end of the recording drops them again.
//!
//! Input: QEMU's callbacks. Output: calls of the recorder. A session never analyses.

mod recording;
mod waiting;

use crate::arguments::{Arguments, DataArguments, ModulePlaces, OnError, TaskPlaces};
use crate::clock::ClockReader;
use crate::cpus::{BaseRegisters, CpuBase, CpuWatch, ExecutingCpu};
use crate::frames::FrameUses;
use crate::halt::{self, MainThread};
use crate::instruction::{self, MARKER_BEGIN, MARKER_END, MARKER_FAILED};
use crate::mappings::CpuMappings;
use crate::modules::{ModuleFunction, ModuleWatch};
use crate::output::RecordingOutput;
use crate::probes::Probes;
use crate::programs::ProgramWatch;
use crate::qemu::{
    self, AccessInfo, CallbackReads, PluginId, StoreCell, TranslationHandle, read_memory,
};
use crate::recorder::Recorder;
use crate::say;
use crate::tasks::{TaskChange, TaskFunction, TaskWatch};
use crate::verify::{CheckedTranslation, Verifier};
use qemu_plugin_sys::qemu_plugin_tb;
use std::ffi::{c_uint, c_void};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use trace::{AccessSite, CpuId, RecordingHeader, RunAddr, TranslationId, WriteError};

/// The one session. `install` makes it. The thread of the vCPU uses it and, after that thread has
/// stopped, the callback at exit. It is never freed.
static SESSION: AtomicPtr<PluginSession> = AtomicPtr::new(null_mut());
/// The data of the callback at every execution, in a pointer of its own, so that one load reaches
/// it. Null when not recording.
static RECORDING: AtomicPtr<ActiveRecording> = AtomicPtr::new(null_mut());

struct PluginSession {
    id: PluginId,
    header: RecordingHeader,
    on_error: OnError,
    verify: bool,
    clock: bool,
    data: Option<DataArguments>,
    values: Vec<(String, u64)>,
    /// The program of probes, and the file of their values.
    probes: Option<(PathBuf, PathBuf)>,
    tasks: Option<TaskWatch>,
    modules: Option<ModuleWatch>,
    /// `None` when nobody asks where programs lie.
    programs: Option<ProgramWatch>,
    /// The address of the table of the CPUs' bases; `None` when there is one CPU.
    per_cpu_offset: Option<u64>,
    /// Reads a CPU's base while waiting.
    base_registers: BaseRegisters,
    /// `None` when `/proc` does not show it.
    main_thread: Option<MainThread>,
    phase: SessionPhase,
}

enum SessionPhase {
    Waiting(File),
    Recording,
    Over,
}

struct ActiveRecording {
    /// The progress. Translated code writes it; see `instruction::progress_stores`.
    progress: StoreCell,
    /// `None` when there is one CPU.
    cpus: Option<CpuWatch>,
    recorder: Recorder<RecordingOutput>,
    verify: Option<Verifier>,
    /// `None` when readings of the clock are not recorded.
    clock: Option<ClockReader>,
    /// `None` when data accesses are not recorded.
    mappings: Option<CpuMappings>,
    /// `None` when the uses of frames are not recorded.
    frames: Option<FrameUses>,
    probes: Option<Probes>,
    /// Buffers for the callback at translation.
    lengths: Vec<u8>,
    code: Vec<u8>,
}

/// Opens the output and begins to wait.
pub(crate) fn install(id: PluginId, arguments: Arguments) -> Result<(), String> {
    let Arguments { out, mut header, tasks, modules, per_cpu_offset, on_error, .. } = arguments;
    let Arguments { verify, clock, data, values, probes, page_offset_base, programs, .. } =
        arguments;
    let file =
        File::create(&out).map_err(|error| format!("cannot create {}: {error}", out.display()))?;
    header.conditions.push(("plugin".into(), env!("CARGO_PKG_VERSION").into()));
    let programs = programs.map(|(places, out)| {
        ProgramWatch::new(places, &out)
            .map_err(|error| format!("cannot create {}: {error}", out.display()))
    });
    let programs = programs.transpose()?;
    let (tasks, phase) = (tasks.map(TaskWatch::new), SessionPhase::Waiting(file));
    let session = Box::new(PluginSession {
        id,
        header,
        on_error,
        verify,
        clock,
        data,
        values,
        probes,
        tasks,
        modules: modules.map(|places| ModuleWatch::new(places, page_offset_base)),
        programs,
        per_cpu_offset,
        base_registers: BaseRegisters::default(),
        main_thread: MainThread::find(),
        phase,
    });
    SESSION.store(Box::into_raw(session), Ordering::Relaxed);
    qemu::at_translation(id, waiting::on_translation);
    qemu::at_exit(id, on_exit);
    Ok(())
}

impl PluginSession {
    fn begin_output(&mut self) -> Option<RecordingOutput> {
        let SessionPhase::Waiting(file) = std::mem::replace(&mut self.phase, SessionPhase::Over)
        else {
            return None;
        };
        for (name, addr) in &self.values {
            if let Some(value) = read_memory(*addr).map(u64::from_le_bytes) {
                self.header.conditions.push((name.clone(), format!("{value:#x}")));
            }
        }
        let on_error = self.on_error;
        let begun =
            RecordingOutput::begin(file, self.header.clone(), self.data.is_some(), move |error| {
                failed(on_error, error)
            });
        begun.map_err(|error| failed(on_error, &error.into())).ok()
    }

    /// The base of the CPU that executes kernel code; `None` when there is one CPU. Must be called
    /// in a callback that reads registers.
    fn base_in_kernel(&mut self) -> Option<CpuBase> {
        self.per_cpu_offset.and_then(|_| self.base_registers.likely(true))
    }

    /// The guest's kernel has mapped something for the running task. Must be called in a callback
    /// that reads registers.
    fn mapped(&mut self, cpu: Option<CpuBase>) {
        if let (Some(programs), Some(tasks)) = (&mut self.programs, &self.tasks)
            && let Some(task) = tasks.current(cpu)
        {
            programs.mapped(task);
        }
    }

    /// Another task runs, or it has another name.
    fn runs(&mut self, cpu: Option<CpuBase>) {
        if let (Some(programs), Some(tasks)) = (&mut self.programs, &self.tasks)
            && let Some(task) = tasks.current(cpu)
        {
            programs.runs(task);
        }
    }

    /// Ends a recording that cannot begin.
    fn give_up(&self, output: RecordingOutput, why: &str) {
        // The thread has printed its error. In any case there is no clean end.
        let _ = output.finish(false);
        self.stop(why);
    }

    /// Says why there is no recording, and stops the guest if that was asked for.
    fn stop(&self, why: &str) {
        say(&format!("{why}: the recording is not complete"));
        if self.on_error == OnError::Stop {
            stop_guest();
        }
    }

    /// Ends the recording: with a clean end, or cut off.
    fn finish(&mut self, recording: &mut ActiveRecording, clean: bool) {
        self.phase = SessionPhase::Over;
        let (output, folded) = recording.recorder.finish();
        // Without an output, or after an error, the writing thread has printed the reason.
        let written = output.and_then(|output| output.finish(clean).ok());
        if let (Some(probes), Some(Some(totals))) = (&mut recording.probes, &written)
            && let Err(error) = probes.finish(totals.hash)
        {
            self.stop(&format!("the values of the probes cannot be written: {error}"));
        }
        if let Some(verify) = &recording.verify {
            verify.report(written.flatten().as_ref(), folded);
        }
        match written {
            Some(Some(totals)) => say(&format!(
                "recorded {} instructions ({} kernel, {} user) in {} executions of {} translations",
                totals.instructions(),
                totals.kernel_instructions,
                totals.user_instructions,
                totals.executions,
                totals.translations
            )),
            Some(None) => say("the recording is cut off"),
            None => say("the recording is incomplete"),
        }
    }
}

/// QEMU calls this before an instruction that halts the vCPU.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
unsafe extern "C" fn on_halt(_: c_uint, _: *mut c_void) {
    guarded(|session| {
        if let Some(main_thread) = &mut session.main_thread {
            main_thread.wait_for_sleep();
        }
    });
}

fn failed(on_error: OnError, error: &WriteError) {
    let cause =
        std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    say(&format!("{error}{cause}"));
    if on_error == OnError::Stop {
        stop_guest();
    }
}

fn stop_guest() {
    say("stopping the guest");
    // SAFETY: two system calls, which take no pointer.
    unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
}

/// Runs a callback and catches its panics, which must not unwind into QEMU. A panic prints its own
/// message and ends the recording.
fn guarded(callback: impl FnOnce(&mut PluginSession)) {
    // SAFETY: as in `active_recording`. No callback enters `guarded` twice.
    let Some(session) = (unsafe { SESSION.load(Ordering::Relaxed).as_mut() }) else {
        return;
    };
    if catch_unwind(AssertUnwindSafe(|| callback(session))).is_err() {
        SESSION.store(null_mut(), Ordering::Relaxed);
        say("internal error: recording ended without a clean end; please report this");
        if session.on_error == OnError::Stop {
            stop_guest();
        }
    }
}

/// The recording in progress.
#[inline(always)]
fn active_recording() -> Option<&'static mut ActiveRecording> {
    // SAFETY: the pointer comes from `Box::into_raw` and is never freed. Only one callback runs at
    // a time: those of the one vCPU on its thread, and the one at exit after that thread has
    // stopped. A callback stops using the reference before it, or a function that it calls, asks
    // for it again.
    unsafe { RECORDING.load(Ordering::Relaxed).as_mut() }
}

/// The same as `guarded`, while recording.
fn guarded_recording(callback: impl FnOnce(&mut PluginSession, &mut ActiveRecording)) {
    guarded(|session| {
        if let Some(recording) = active_recording() {
            callback(session, recording);
        }
    });
}

/// QEMU calls this when it ends.
///
/// # Safety
/// No other callback may run meanwhile: QEMU has stopped the threads of the vCPUs.
unsafe extern "C" fn on_exit(_: PluginId, _: *mut c_void) {
    guarded(|session| match session.phase {
        SessionPhase::Over => {}
        SessionPhase::Waiting(_) => {
            say("QEMU ended, but the workload has not executed marker 1");
            if let Some(output) = session.begin_output() {
                // The thread has printed its error. In any case there is no clean end.
                let _ = output.finish(false);
            }
        }
        SessionPhase::Recording => {
            say("QEMU ended, but the workload has not executed marker 2");
            if let Some(recording) = active_recording() {
                session.finish(recording, false);
            }
        }
    });
}
