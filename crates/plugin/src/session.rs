//! The course of a session: waiting for marker 1, recording, over. QEMU's callbacks pass what they
//! learn to the recorder.
//!
//! While waiting, only marker 1 and task switches are instrumented. Marker 1 makes QEMU drop all
//! translations. So everything that runs later is translated again, at its real address, with the
//! recorder's callbacks. The end of the recording drops them again.

use crate::arguments::{Arguments, DataArguments, OnError, TaskPlaces};
use crate::clock::ClockReader;
use crate::frames::FrameUses;
use crate::instruction::{self, MARKER_BEGIN, MARKER_END, MARKER_FAILED};
use crate::mappings::PageMappings;
use crate::output::RecordingOutput;
use crate::qemu::{
    self, AccessInfo, CallbackReads, PluginId, ScoreboardCell, TranslationHandle, read_memory,
};
use crate::recorder::Recorder;
use crate::say;
use crate::tasks::{TaskChange, TaskFunction, TaskWatch};
use crate::verify::{CheckedTranslation, Verifier};
use qemu_plugin_sys::qemu_plugin_tb;
use std::ffi::{c_uint, c_void};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use trace::{AccessSite, RecordingHeader, TranslationId, WriteError};

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
    tasks: Option<TaskWatch>,
    phase: SessionPhase,
}

enum SessionPhase {
    Waiting(File),
    Recording,
    Over,
}

struct ActiveRecording {
    /// The progress. Translated code writes it; see `instruction::progress_stores`.
    progress: ScoreboardCell,
    recorder: Recorder<RecordingOutput>,
    verify: Option<Verifier>,
    /// `None` when readings of the clock are not recorded.
    clock: Option<ClockReader>,
    /// `None` when data accesses are not recorded.
    mappings: Option<PageMappings>,
    /// `None` when the uses of frames are not recorded.
    frames: Option<FrameUses>,
    /// Buffers for the callback at translation.
    lengths: Vec<u8>,
    code: Vec<u8>,
}

/// Opens the output and begins to wait.
pub fn install(id: PluginId, arguments: Arguments) -> Result<(), String> {
    let Arguments { out, mut header, tasks, on_error, verify, clock, data, values } = arguments;
    let file =
        File::create(&out).map_err(|error| format!("cannot create {}: {error}", out.display()))?;
    header.conditions.push(("plugin".into(), env!("CARGO_PKG_VERSION").into()));
    let (tasks, phase) = (tasks.map(TaskWatch::new), SessionPhase::Waiting(file));
    let session =
        Box::new(PluginSession { id, header, on_error, verify, clock, data, values, tasks, phase });
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

    /// Ends the recording: with a clean end, or cut off.
    fn finish(&mut self, recording: &mut ActiveRecording, clean: bool) {
        self.phase = SessionPhase::Over;
        let (output, folded) = recording.recorder.finish();
        // Without an output, or after an error, the writing thread has printed the reason.
        let written = output.and_then(|output| output.finish(clean).ok());
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

fn failed(on_error: OnError, error: &WriteError) {
    let cause =
        std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    say(&format!("{error}{cause}"));
    if on_error == OnError::Stop {
        say("stopping the guest");
        // SAFETY: two system calls, which take no pointer.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    }
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
            // SAFETY: two system calls, which take no pointer.
            unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
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

/// The callbacks before marker 1.
mod waiting {
    use super::*;

    pub unsafe extern "C" fn on_translation(_: PluginId, translation: *mut qemu_plugin_tb) {
        guarded(|session| {
            let places = session.tasks.as_ref().map(|tasks| tasks.places);
            let mut code = Vec::new();
            for instruction in TranslationHandle(translation).instructions() {
                code.clear();
                instruction.append_code(&mut code);
                if instruction::marker(&code) == Some(MARKER_BEGIN) {
                    instruction.at_execution(on_marker, CallbackReads::Nothing, 0);
                }
                if let Some(function) =
                    places.and_then(|places| places.function_at(instruction.addr()))
                {
                    instruction.at_execution(
                        on_task_function,
                        CallbackReads::Registers,
                        function as usize,
                    );
                }
            }
        });
    }

    unsafe extern "C" fn on_task_function(_: c_uint, function: *mut c_void) {
        guarded(|session| {
            if let Some(tasks) = &mut session.tasks
                && TaskFunction::from_data(function as usize) != TaskFunction::Wake
            {
                tasks.at(TaskFunction::from_data(function as usize));
            }
        });
    }

    unsafe extern "C" fn on_marker(_: c_uint, _: *mut c_void) {
        guarded(|session| {
            // In a loop, the guest may execute the marker again before QEMU has dropped the
            // translations.
            if let SessionPhase::Waiting(_) = session.phase
                && let Some(output) = session.begin_output()
            {
                session.phase = SessionPhase::Recording;
                let mut recorder = Recorder::new(output);
                if let Some((pointer, pid, comm)) =
                    session.tasks.as_mut().and_then(TaskWatch::current)
                {
                    recorder.switch(pointer, pid, comm);
                }
                let mut frames =
                    session.data.and_then(|data| data.frames).and_then(FrameUses::find);
                if let Some(frames) = &mut frames {
                    let all = frames.all();
                    recorder.frame_use_changes(&all, frames.new_names());
                }
                let recording = Box::new(ActiveRecording {
                    progress: ScoreboardCell::new(),
                    recorder,
                    verify: session.verify.then(Verifier::new),
                    clock: session.clock.then(ClockReader::default),
                    mappings: session.data.map(|data| PageMappings::new(data.page_offset_base)),
                    frames,
                    lengths: Vec::new(),
                    code: Vec::new(),
                });
                RECORDING.store(Box::into_raw(recording), Ordering::Relaxed);
                qemu::reset(session.id, recording::begin);
            }
        });
    }
}

/// The callbacks from marker 1 to marker 2.
mod recording {
    use super::*;

    pub unsafe extern "C" fn begin(id: PluginId) {
        qemu::at_translation(id, on_translation);
        qemu::at_exit(id, on_exit);
    }

    unsafe extern "C" fn over(_: PluginId) {}

    unsafe extern "C" fn on_translation(_: PluginId, translation: *mut qemu_plugin_tb) {
        guarded_recording(|session, recording| {
            let places = session.tasks.as_ref().map(|tasks| tasks.places);
            recording.instrument(TranslationHandle(translation), places);
        });
    }

    impl ActiveRecording {
        fn instrument(&mut self, translation: TranslationHandle, places: Option<TaskPlaces>) {
            self.lengths.clear();
            self.code.clear();
            let (mut may_leave, mut repeats, mut reads_clock) = (Vec::new(), false, false);
            let instructions: Vec<_> = translation.instructions().collect();
            for (i, instruction) in instructions.iter().enumerate() {
                let start = self.code.len();
                self.lengths.push(instruction.append_code(&mut self.code));
                let traits = instruction::traits(&self.code[start..]);
                may_leave.push(traits.may_leave);
                // A repeated string instruction is always the last: QEMU ends a translation with
                // it.
                repeats = traits.repeats;
                reads_clock = traits.reads_clock;
                if let Some(verify) = &self.verify {
                    verify.count(*instruction);
                }
                if self.mappings.is_some() {
                    instruction.at_access(on_load, on_store, i);
                    if traits.drops_mappings {
                        instruction.at_execution(on_drop_of_mappings, CallbackReads::Nothing, 0);
                    }
                }
                if let Some(number) = instruction::marker(&self.code[start..]) {
                    instruction.at_execution(
                        on_marker,
                        CallbackReads::Nothing,
                        usize::from(number) << 16 | (i + 1),
                    );
                }
                if let Some(function) =
                    places.and_then(|places| places.function_at(instruction.addr()))
                {
                    instruction.at_execution(
                        on_task_function,
                        CallbackReads::Registers,
                        function as usize,
                    );
                }
            }
            let size = self.code.len() as u64;
            let physical =
                self.mappings.as_mut().map(|mappings| mappings.of_code(translation.addr().0, size));
            let id = self.recorder.define(
                translation.addr(),
                &self.lengths,
                &self.code,
                repeats,
                physical.unwrap_or([None; 2]),
            );
            if let (Some(clock), true) = (&mut self.clock, translation.addr().is_kernel()) {
                if reads_clock {
                    clock.read_before(translation.addr().0.wrapping_add(size));
                    self.recorder.reads_clock(id);
                }
                if let (Some(first), true) =
                    (instructions.first(), clock.is_behind(translation.addr().0))
                {
                    first.at_execution(on_clock, CallbackReads::Registers, 0);
                }
            }
            if self.verify.is_some() {
                let checked = CheckedTranslation {
                    addr: translation.addr(),
                    instructions: instructions.len() as u64,
                };
                let data = Box::into_raw(Box::new(checked)) as usize;
                translation.at_execution(on_execution_to_verify, CallbackReads::Registers, data);
            }
            let callback = match (repeats && instructions.len() == 1, self.mappings.is_some()) {
                (false, false) => on_execution::<false>,
                (true, false) => on_repeat::<false>,
                (false, true) => on_execution::<true>,
                (true, true) => on_repeat::<true>,
            };
            translation.at_execution(callback, CallbackReads::Nothing, id.0 as usize);
            for store in instruction::progress_stores(&may_leave) {
                instructions[store.before]
                    .store_at_execution(&self.progress, store.progress.into());
            }
        }

        #[inline]
        fn executed<const WITH_DATA: bool>(&mut self, id: TranslationId) {
            match WITH_DATA {
                true => self.recorder.executed_with_data(id),
                false => self.recorder.executed(id),
            }
        }

        /// Records that the translation before was left.
        #[cold]
        fn left(&mut self, progress: u64) {
            self.progress.set(0);
            self.recorder.left(progress);
        }
    }

    /// Every execution of every translation calls this: about 50 million times a second. Nothing in
    /// it can panic. `WITH_DATA`: data accesses are recorded.
    unsafe extern "C" fn on_execution<const WITH_DATA: bool>(_: c_uint, id: *mut c_void) {
        let Some(recording) = active_recording() else {
            return;
        };
        let progress = recording.progress.get();
        if progress != 0 {
            recording.left(progress);
        }
        recording.executed::<WITH_DATA>(TranslationId(id as u32));
    }

    /// The same for a translation that is a single repeated string instruction. QEMU calls this as
    /// often as `on_execution` while the guest copies memory.
    unsafe extern "C" fn on_repeat<const WITH_DATA: bool>(_: c_uint, id: *mut c_void) {
        let Some(recording) = active_recording() else {
            return;
        };
        let id = TranslationId(id as u32);
        match recording.progress.get() {
            0 if WITH_DATA => recording.recorder.executed_repeat_with_data(id),
            0 => recording.recorder.executed_repeat(id),
            progress => {
                recording.left(progress);
                recording.executed::<WITH_DATA>(id);
            }
        }
    }

    unsafe extern "C" fn on_load(_: c_uint, info: AccessInfo, addr: u64, instruction: *mut c_void) {
        access(info, addr, AccessSite::new(instruction as u16, false, qemu::size_log2(info)));
    }

    unsafe extern "C" fn on_store(
        _: c_uint,
        info: AccessInfo,
        addr: u64,
        instruction: *mut c_void,
    ) {
        access(info, addr, AccessSite::new(instruction as u16, true, qemu::size_log2(info)));
        // QEMU calls this after the store, so the stored value can be read.
        if let Some(recording) = active_recording()
            && let Some(frames) = &mut recording.frames
            && frames.covers(addr)
            && let Some(change) = frames.stored(addr)
        {
            recording.recorder.frame_use_changes(&[change], frames.new_names());
        }
    }

    /// Every access calls this: as often as there are executions of translations, or more.
    #[inline]
    fn access(info: AccessInfo, addr: u64, site: AccessSite) {
        let Some(recording) = active_recording() else {
            return;
        };
        let Some(mappings) = &mut recording.mappings else { return };
        let (first, last) = (addr >> 12, addr.wrapping_add(u64::from(site.size()) - 1) >> 12);
        for page in [first, last] {
            if !mappings.is_recorded(page)
                && let Some(mapping) = mappings.learn(page, info)
            {
                recording.recorder.mapping(mapping);
            }
        }
        recording.recorder.access(site, addr);
    }

    /// QEMU calls this after the callback that records the execution.
    unsafe extern "C" fn on_clock(_: c_uint, _: *mut c_void) {
        guarded_recording(|_, recording| {
            if recording.recorder.is_behind_reading()
                && let Some(ticks) = recording.clock.as_mut().and_then(ClockReader::ticks)
            {
                recording.recorder.clock(ticks);
            }
        });
    }

    /// QEMU calls this before the instruction. There is no access until the instruction was
    /// executed.
    unsafe extern "C" fn on_drop_of_mappings(_: c_uint, _: *mut c_void) {
        guarded_recording(|_, recording| {
            if let Some(mappings) = &mut recording.mappings {
                mappings.drop_all();
            }
        });
    }

    /// QEMU calls this before the callback that records the same execution.
    unsafe extern "C" fn on_execution_to_verify(_: c_uint, checked: *mut c_void) {
        guarded_recording(|_, recording| {
            let progress = recording.progress.get();
            // SAFETY: QEMU hands back what was registered with the callback: a `CheckedTranslation`
            // that is never freed.
            let checked = unsafe { checked.cast::<CheckedTranslation>().as_ref() };
            if let (Some(verify), Some(checked)) = (&mut recording.verify, checked) {
                verify.entered(checked, progress);
            }
        });
    }

    unsafe extern "C" fn on_task_function(_: c_uint, function: *mut c_void) {
        guarded_recording(|session, recording| {
            let change = session
                .tasks
                .as_mut()
                .and_then(|tasks| tasks.at(TaskFunction::from_data(function as usize)));
            match change {
                Some(TaskChange::Switched((pointer, pid, comm))) => {
                    recording.recorder.switch(pointer, pid, comm)
                }
                Some(TaskChange::Woken((pointer, pid, comm))) => {
                    recording.recorder.woken(pointer, pid, comm)
                }
                None => {}
            }
        });
    }

    /// `data`: from bit 16 the marker's number, from bit 0 the number of instructions of the
    /// translation reached with it.
    unsafe extern "C" fn on_marker(_: c_uint, data: *mut c_void) {
        guarded_recording(|session, recording| {
            if let SessionPhase::Recording = session.phase {
                let (number, reached) = ((data as usize >> 16) as u16, data as usize as u16);
                match number {
                    MARKER_END | MARKER_FAILED => {
                        recording.recorder.end_within(reached);
                        if number == MARKER_FAILED {
                            say("the workload says that it failed");
                        }
                        session.finish(recording, number == MARKER_END);
                        qemu::reset(session.id, over);
                    }
                    _ => recording.recorder.marker(number),
                }
            }
        });
    }
}
