//! The callbacks before marker 1.
//!
//! Input: task switches and markers. Output: the task that runs when recording begins.

use super::*;

/// Puts the callbacks before marker 1 into a translation.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
/// `translation` must be valid during the call. QEMU guarantees this.
pub(super) unsafe extern "C" fn on_translation(translation: *mut qemu_plugin_tb) {
    guarded(|session| {
        let places = session.tasks.as_ref().map(|tasks| tasks.places);
        let of_modules = session.modules.as_ref().map(|modules| modules.places);
        let mapped = session.programs.as_ref().map(|programs| programs.places.mapped);
        let mut code = Vec::new();
        for instruction in TranslationHandle(translation).instructions() {
            code.clear();
            instruction.append_code(&mut code);
            if instruction::marker(&code) == Some(MARKER_BEGIN) {
                instruction.at_execution(on_marker, CallbackReads::Registers, 0);
            }
            if halt::halts(&code) {
                instruction.at_execution(on_halt, CallbackReads::Nothing, 0);
            }
            if let Some(function) = places.and_then(|places| places.function_at(instruction.addr()))
            {
                instruction.at_execution(
                    on_task_function,
                    CallbackReads::Registers,
                    function as usize,
                );
            }
            if let Some(function) = of_modules.and_then(|of| of.function_at(instruction.addr())) {
                let (reads, data) = (CallbackReads::Registers, function as usize);
                instruction.at_execution(on_module_function, reads, data);
            }
            if mapped == Some(instruction.addr().0) {
                instruction.at_execution(on_mapping, CallbackReads::Registers, 0);
            }
        }
    });
}

/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
unsafe extern "C" fn on_mapping(_: c_uint, _: *mut c_void) {
    guarded(|session| {
        let cpu = session.base_in_kernel();
        session.mapped(cpu);
    });
}

/// `function`: the number of a function of tasks.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
unsafe extern "C" fn on_task_function(_: c_uint, function: *mut c_void) {
    guarded(|session| {
        let cpu = session.base_in_kernel();
        if let Some(tasks) = &mut session.tasks
            && TaskFunction::from_data(function as usize) != TaskFunction::Wake
        {
            tasks.at(TaskFunction::from_data(function as usize), cpu);
        }
        session.runs(cpu);
    });
}

/// `function`: the number of a function of modules.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
unsafe extern "C" fn on_module_function(_: c_uint, function: *mut c_void) {
    guarded(|session| {
        if let Some(modules) = &mut session.modules {
            modules.at(ModuleFunction::from_data(function as usize));
        }
    });
}

/// Begins the recording at marker 1.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
unsafe extern "C" fn on_marker(_: c_uint, _: *mut c_void) {
    guarded(|session| {
        // In a loop, the guest may execute the marker again before QEMU has dropped the
        // translations.
        if let SessionPhase::Waiting(_) = session.phase
            && let Some(output) = session.begin_output()
        {
            let cpus = match session.per_cpu_offset {
                None => None,
                Some(place) => match CpuWatch::new(session.header.cpus, place) {
                    None => return session.give_up(output, "the CPUs' bases cannot be read"),
                    known => known,
                },
            };
            let begun = session.probes.as_ref().map(|(program, out)| Probes::begin(program, out));
            let probes = match begun.transpose() {
                Ok(probes) => probes,
                Err(error) => return session.give_up(output, &error),
            };
            session.phase = SessionPhase::Recording;
            let mut recorder = Recorder::new(output);
            if probes.is_some() {
                recorder.count_executions();
            }
            let modules = session.modules.as_mut().map(|modules| {
                modules.read_pages();
                modules.begin()
            });
            modules.into_iter().flatten().for_each(|change| recorder.modules_change(change));
            // If there are several CPUs, each names its task when it executes for the first time.
            if cpus.is_none()
                && let Some((pointer, pid, comm)) =
                    session.tasks.as_mut().and_then(|tasks| tasks.current(None))
            {
                recorder.switch(pointer, pid, comm);
            }
            let mut frames = session.data.and_then(|data| data.frames).and_then(FrameUses::find);
            if let Some(frames) = &mut frames {
                let all = frames.all();
                recorder.frame_use_changes(&all, frames.new_names());
            }
            let recording = Box::new(ActiveRecording {
                progress: StoreCell::new(cpus.is_some()),
                cpus,
                recorder,
                verify: session.verify.then(|| Verifier::new(session.per_cpu_offset.is_some())),
                clock: session.clock.then(ClockReader::default),
                mappings: session
                    .data
                    .map(|data| CpuMappings::new(session.header.cpus, data.page_offset_base)),
                frames,
                probes,
                lengths: Vec::new(),
                code: Vec::new(),
            });
            RECORDING.store(Box::into_raw(recording), Ordering::Relaxed);
            qemu::reset(session.id, recording::begin);
        }
    });
}
