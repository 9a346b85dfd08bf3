//! What happens when: waiting for marker 1, recording, over. Takes QEMU's callbacks; hands what
//! they say to the recorder.
//!
//! While waiting, only the first marker and task switches are instrumented. Marker 1 makes QEMU
//! drop all translations, so that whatever runs from then on is translated anew, at its real
//! address, with the recorder's callbacks in it. The end drops them again.

use crate::arguments::{Arguments, Data, OnError, TaskPlaces};
use crate::clock::Clock;
use crate::frames::Frames;
use crate::instruction::{self, MARKER_BEGIN, MARKER_END, MARKER_FAILED};
use crate::mappings::Mappings;
use crate::output::Output;
use crate::qemu::{self, AccessInfo, Cell, PluginId, Reads, Translating, read_memory};
use crate::recorder::Recorder;
use crate::say;
use crate::tasks::{Entry, News, TaskWatch};
use crate::verify::{Checked, Verify};
use qemu_plugin_sys::qemu_plugin_tb;
use std::ffi::{c_uint, c_void};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use trace::{Header, Site, TranslationId, WriteError};

/// The one session. Made by `install`, used by the vCPU's thread and, after that has stopped, at
/// exit; never freed.
static SESSION: AtomicPtr<Session> = AtomicPtr::new(null_mut());
/// What the callback of every execution needs, by itself so that it is one load away. Null when not
/// recording.
static RECORDING: AtomicPtr<Recording> = AtomicPtr::new(null_mut());

struct Session {
    id: PluginId,
    header: Header,
    on_error: OnError,
    verify: bool,
    clock: bool,
    data: Option<Data>,
    values: Vec<(String, u64)>,
    tasks: Option<TaskWatch>,
    phase: Phase,
}

enum Phase {
    Waiting(File),
    Recording,
    Over,
}

struct Recording {
    /// Written by translated code, see `instruction::progress_stores`.
    progress: Cell,
    recorder: Recorder<Output>,
    verify: Option<Verify>,
    /// Only where readings of the clock are recorded.
    clock: Option<Clock>,
    /// Only where data accesses are recorded.
    mappings: Option<Mappings>,
    /// Only where what frames are used for is recorded.
    frames: Option<Frames>,
    /// Buffers for the translation callback.
    lengths: Vec<u8>,
    code: Vec<u8>,
}

/// Opens the output and begins to wait.
pub fn install(id: PluginId, arguments: Arguments) -> Result<(), String> {
    let Arguments { out, mut header, tasks, on_error, verify, clock, data, values } = arguments;
    let file =
        File::create(&out).map_err(|error| format!("cannot create {}: {error}", out.display()))?;
    header.conditions.push(("plugin".into(), env!("CARGO_PKG_VERSION").into()));
    let (tasks, phase) = (tasks.map(TaskWatch::new), Phase::Waiting(file));
    let session =
        Box::new(Session { id, header, on_error, verify, clock, data, values, tasks, phase });
    SESSION.store(Box::into_raw(session), Ordering::Relaxed);
    qemu::at_translation(id, waiting::on_translation);
    qemu::at_exit(id, on_exit);
    Ok(())
}

impl Session {
    fn begin_output(&mut self) -> Option<Output> {
        let Phase::Waiting(file) = std::mem::replace(&mut self.phase, Phase::Over) else {
            return None;
        };
        for (name, addr) in &self.values {
            if let Some(value) = read_memory(*addr).map(u64::from_le_bytes) {
                self.header.conditions.push((name.clone(), format!("{value:#x}")));
            }
        }
        let on_error = self.on_error;
        let begun = Output::begin(file, self.header.clone(), self.data.is_some(), move |error| {
            failed(on_error, error)
        });
        begun.map_err(|error| failed(on_error, &error.into())).ok()
    }

    /// Ends the recording: with a clean end, or cut off.
    fn finish(&mut self, recording: &mut Recording, clean: bool) {
        self.phase = Phase::Over;
        let (output, folded) = recording.recorder.finish();
        // Without an output, or with an error, the writing thread has said why.
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
            None => say("the recording is not whole"),
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

/// Runs a callback that may not unwind into QEMU. A panic has printed itself; recording ends with
/// it.
fn guarded(callback: impl FnOnce(&mut Session)) {
    // SAFETY: as in `under_way`; no callback enters `guarded` twice.
    let Some(session) = (unsafe { SESSION.load(Ordering::Relaxed).as_mut() }) else {
        return;
    };
    if catch_unwind(AssertUnwindSafe(|| callback(session))).is_err() {
        SESSION.store(null_mut(), Ordering::Relaxed);
        say("internal error; recording has ended without a clean end");
        if session.on_error == OnError::Stop {
            // SAFETY: two system calls, which take no pointer.
            unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
        }
    }
}

/// The recording that is under way.
#[inline(always)]
fn under_way() -> Option<&'static mut Recording> {
    // SAFETY: the pointer comes from `Box::into_raw` and is never freed. Only one callback runs at
    // a time: those of the one vCPU on its thread, and the one at exit after that thread has
    // stopped. Each is done with the reference before it, or a function that it calls, asks again.
    unsafe { RECORDING.load(Ordering::Relaxed).as_mut() }
}

/// As `guarded`, while recording.
fn guarded_recording(callback: impl FnOnce(&mut Session, &mut Recording)) {
    guarded(|session| {
        if let Some(recording) = under_way() {
            callback(session, recording);
        }
    });
}

unsafe extern "C" fn on_exit(_: PluginId, _: *mut c_void) {
    guarded(|session| match session.phase {
        Phase::Over => {}
        Phase::Waiting(_) => {
            say("QEMU ends, and the workload has not executed marker 1");
            if let Some(output) = session.begin_output() {
                // What went wrong was said by the thread; either way there is no clean end.
                let _ = output.finish(false);
            }
        }
        Phase::Recording => {
            say("QEMU ends, and the workload has not executed marker 2");
            if let Some(recording) = under_way() {
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
            for instruction in Translating(translation).instructions() {
                code.clear();
                instruction.append_code(&mut code);
                if instruction::marker(&code) == Some(MARKER_BEGIN) {
                    instruction.at_execution(on_marker, Reads::Nothing, 0);
                }
                if let Some(entry) = places.and_then(|places| places.entry(instruction.addr())) {
                    instruction.at_execution(on_entry, Reads::Registers, entry as usize);
                }
            }
        });
    }

    unsafe extern "C" fn on_entry(_: c_uint, entry: *mut c_void) {
        guarded(|session| {
            if let Some(tasks) = &mut session.tasks
                && Entry::from_data(entry as usize) != Entry::Wake
            {
                tasks.at(Entry::from_data(entry as usize));
            }
        });
    }

    unsafe extern "C" fn on_marker(_: c_uint, _: *mut c_void) {
        guarded(|session| {
            // In a loop the marker may be executed once more before QEMU has dropped the
            // translations.
            if let Phase::Waiting(_) = session.phase
                && let Some(output) = session.begin_output()
            {
                session.phase = Phase::Recording;
                let mut recorder = Recorder::new(output);
                if let Some((pointer, pid, comm)) =
                    session.tasks.as_mut().and_then(TaskWatch::current)
                {
                    recorder.switch(pointer, pid, comm);
                }
                let mut frames = session.data.and_then(|data| data.frames).and_then(Frames::find);
                if let Some(frames) = &mut frames {
                    let all = frames.all();
                    recorder.used(&all, frames.new_names());
                }
                let recording = Box::new(Recording {
                    progress: Cell::new(),
                    recorder,
                    verify: session.verify.then(Verify::new),
                    clock: session.clock.then(Clock::default),
                    mappings: session.data.map(|data| Mappings::new(data.page_offset_base)),
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
            recording.instrument(Translating(translation), places);
        });
    }

    impl Recording {
        fn instrument(&mut self, translation: Translating, places: Option<TaskPlaces>) {
            self.lengths.clear();
            self.code.clear();
            let (mut may_leave, mut repeats, mut reads_clock) = (Vec::new(), false, false);
            let instructions: Vec<_> = translation.instructions().collect();
            for (i, instruction) in instructions.iter().enumerate() {
                let start = self.code.len();
                self.lengths.push(instruction.append_code(&mut self.code));
                let traits = instruction::traits(&self.code[start..]);
                may_leave.push(traits.may_leave);
                // What repeats is always the last: QEMU ends a translation with it.
                repeats = traits.repeats;
                reads_clock = traits.reads_clock;
                if let Some(verify) = &self.verify {
                    verify.count(*instruction);
                }
                if self.mappings.is_some() {
                    instruction.at_access(on_load, on_store, i);
                    if traits.drops_mappings {
                        instruction.at_execution(on_drop_of_mappings, Reads::Nothing, 0);
                    }
                }
                if let Some(number) = instruction::marker(&self.code[start..]) {
                    instruction.at_execution(
                        on_marker,
                        Reads::Nothing,
                        usize::from(number) << 16 | (i + 1),
                    );
                }
                if let Some(entry) = places.and_then(|places| places.entry(instruction.addr())) {
                    instruction.at_execution(on_entry, Reads::Registers, entry as usize);
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
                    first.at_execution(on_clock, Reads::Registers, 0);
                }
            }
            if self.verify.is_some() {
                let checked =
                    Checked { addr: translation.addr(), instructions: instructions.len() as u64 };
                let data = Box::into_raw(Box::new(checked)) as usize;
                translation.at_execution(on_execution_to_verify, Reads::Registers, data);
            }
            let callback = match (repeats && instructions.len() == 1, self.mappings.is_some()) {
                (false, false) => on_execution,
                (true, false) => on_repeat,
                (false, true) => on_execution_with_data,
                (true, true) => on_repeat_with_data,
            };
            translation.at_execution(callback, Reads::Nothing, id.0 as usize);
            for store in instruction::progress_stores(&may_leave) {
                instructions[store.before]
                    .store_at_execution(&self.progress, store.progress.into());
            }
        }

        /// Notes that the translation before was left.
        #[cold]
        fn left(&mut self, progress: u64) {
            self.progress.set(0);
            self.recorder.left(progress);
        }
    }

    /// Every execution of every translation comes through here: some 50 million times a second.
    /// Nothing in it can panic.
    unsafe extern "C" fn on_execution(_: c_uint, id: *mut c_void) {
        let Some(recording) = under_way() else {
            return;
        };
        let progress = recording.progress.get();
        if progress != 0 {
            recording.left(progress);
        }
        recording.recorder.executed(TranslationId(id as u32));
    }

    /// As often, where the guest copies memory.
    unsafe extern "C" fn on_repeat(_: c_uint, id: *mut c_void) {
        let Some(recording) = under_way() else {
            return;
        };
        let id = TranslationId(id as u32);
        match recording.progress.get() {
            0 => recording.recorder.executed_repeat(id),
            progress => {
                recording.left(progress);
                recording.recorder.executed(id);
            }
        }
    }

    /// As `on_execution`, where data accesses are recorded.
    unsafe extern "C" fn on_execution_with_data(_: c_uint, id: *mut c_void) {
        let Some(recording) = under_way() else {
            return;
        };
        let progress = recording.progress.get();
        if progress != 0 {
            recording.left(progress);
        }
        recording.recorder.executed_with_data(TranslationId(id as u32));
    }

    unsafe extern "C" fn on_repeat_with_data(_: c_uint, id: *mut c_void) {
        let Some(recording) = under_way() else {
            return;
        };
        let id = TranslationId(id as u32);
        match recording.progress.get() {
            0 => recording.recorder.executed_repeat_with_data(id),
            progress => {
                recording.left(progress);
                recording.recorder.executed_with_data(id);
            }
        }
    }

    unsafe extern "C" fn on_load(_: c_uint, info: AccessInfo, addr: u64, instruction: *mut c_void) {
        access(info, addr, Site::new(instruction as u16, false, qemu::size_log2(info)));
    }

    unsafe extern "C" fn on_store(
        _: c_uint,
        info: AccessInfo,
        addr: u64,
        instruction: *mut c_void,
    ) {
        access(info, addr, Site::new(instruction as u16, true, qemu::size_log2(info)));
        // Behind the store: what it stored is there to be read.
        if let Some(recording) = under_way()
            && let Some(frames) = &mut recording.frames
            && frames.covers(addr)
            && let Some(change) = frames.stored(addr)
        {
            recording.recorder.used(&[change], frames.new_names());
        }
    }

    /// Every access comes through here: as often as executions of translations, or more.
    #[inline]
    fn access(info: AccessInfo, addr: u64, site: Site) {
        let Some(recording) = under_way() else {
            return;
        };
        let Some(mappings) = &mut recording.mappings else { return };
        let (first, last) = (addr >> 12, addr.wrapping_add(u64::from(site.size()) - 1) >> 12);
        for page in [first, last] {
            if !mappings.is_told(page)
                && let Some(mapping) = mappings.learn(page, info)
            {
                recording.recorder.mapping(mapping);
            }
        }
        recording.recorder.access(site, addr);
    }

    /// Comes behind the callback that records the execution.
    unsafe extern "C" fn on_clock(_: c_uint, _: *mut c_void) {
        guarded_recording(|_, recording| {
            if recording.recorder.is_behind_reading()
                && let Some(ticks) = recording.clock.as_mut().and_then(Clock::ticks)
            {
                recording.recorder.clock(ticks);
            }
        });
    }

    /// Comes before the instruction; until it has been executed there is no access.
    unsafe extern "C" fn on_drop_of_mappings(_: c_uint, _: *mut c_void) {
        guarded_recording(|_, recording| {
            if let Some(mappings) = &mut recording.mappings {
                mappings.dropped();
            }
        });
    }

    /// Comes before the callback that records the same execution.
    unsafe extern "C" fn on_execution_to_verify(_: c_uint, checked: *mut c_void) {
        guarded_recording(|_, recording| {
            let progress = recording.progress.get();
            // SAFETY: QEMU hands back what was registered with the callback: a `Checked` that is
            // never freed.
            let checked = unsafe { checked.cast::<Checked>().as_ref() };
            if let (Some(verify), Some(checked)) = (&mut recording.verify, checked) {
                verify.entered(checked, progress);
            }
        });
    }

    unsafe extern "C" fn on_entry(_: c_uint, entry: *mut c_void) {
        guarded_recording(|session, recording| {
            let news =
                session.tasks.as_mut().and_then(|tasks| tasks.at(Entry::from_data(entry as usize)));
            match news {
                Some(News::Runs((pointer, pid, comm))) => {
                    recording.recorder.switch(pointer, pid, comm)
                }
                Some(News::Woken((pointer, pid, comm))) => {
                    recording.recorder.woken(pointer, pid, comm)
                }
                None => {}
            }
        });
    }

    /// `data`: the marker's number, and from bit 0 how many instructions of the translation are
    /// reached with it.
    unsafe extern "C" fn on_marker(_: c_uint, data: *mut c_void) {
        guarded_recording(|session, recording| {
            if let Phase::Recording = session.phase {
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
