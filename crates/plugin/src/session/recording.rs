//! The callbacks from marker 1 to marker 2.
//!
//! Input: executions, accesses and switches. Output: calls of the recorder.

use super::*;

/// Puts the callbacks from marker 1 on into what QEMU translates from now on.
///
/// # Safety
/// `id` must be the number that QEMU gave this plugin, and no other callback may run meanwhile.
pub(super) unsafe extern "C" fn begin(id: PluginId) {
    qemu::at_translation(id, on_translation);
    qemu::at_exit(id, on_exit);
}

/// Leaves QEMU without callbacks.
///
/// # Safety
/// None: this does nothing.
unsafe extern "C" fn over(_: PluginId) {}

/// Puts the callbacks of a recording into a translation.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
/// `translation` must be valid during the call. QEMU guarantees this.
unsafe extern "C" fn on_translation(translation: *mut qemu_plugin_tb) {
    guarded_recording(|session, recording| {
        let places = session.tasks.as_ref().map(|tasks| tasks.places);
        let of_modules = session.modules.as_ref().map(|modules| modules.places);
        let mapped = session.programs.as_ref().map(|programs| programs.places.mapped);
        recording.instrument(TranslationHandle(translation), places, of_modules, mapped);
    });
}

impl ActiveRecording {
    fn instrument(
        &mut self,
        translation: TranslationHandle,
        places: Option<TaskPlaces>,
        of_modules: Option<ModulePlaces>,
        mapped: Option<u64>,
    ) {
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
            if let Some(verify) = &self.verify
                && !verify.counts_inline(*instruction)
            {
                let in_kernel = instruction.addr().is_kernel();
                instruction.at_execution(
                    on_instruction_to_verify,
                    CallbackReads::Nothing,
                    in_kernel.into(),
                );
            }
            if self.mappings.is_some() {
                instruction.at_access(on_load, on_store, i);
                if traits.drops_mappings {
                    instruction.at_execution(on_drop_of_mappings, CallbackReads::Nothing, 0);
                }
            }
            if halt::halts(&self.code[start..]) {
                instruction.at_execution(on_halt, CallbackReads::Nothing, 0);
            }
            if let Some(number) = instruction::marker(&self.code[start..]) {
                instruction.at_execution(
                    on_marker,
                    CallbackReads::Nothing,
                    usize::from(number) << 16 | (i + 1),
                );
            }
            if self.probes.as_ref().is_some_and(|probes| probes.has(instruction.addr())) {
                let is_repeat = traits.repeats && instructions.len() == 1;
                let data =
                    ProbedInstruction { addr: instruction.addr(), index: i as u16, is_repeat };
                instruction.at_execution(on_probe, CallbackReads::Registers, data.to_data());
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
        let size = self.code.len() as u64;
        let translating = self.cpus.as_mut().and_then(|cpus| cpus.now(translation.addr()));
        let physical = self.mappings.as_mut().map(|mappings| {
            translating.into_iter().for_each(|cpu| mappings.executes(cpu));
            mappings.current().of_code(translation.addr().0, size)
        });
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
        let is_repeat = repeats && instructions.len() == 1;
        if self.cpus.is_some() {
            let data = ExecutionOnCpu { id, is_repeat, in_kernel: translation.addr().is_kernel() };
            translation.at_execution(on_execution_on_cpu, CallbackReads::Registers, data.to_data());
        } else {
            let callback = match (is_repeat, self.mappings.is_some()) {
                (false, false) => on_execution::<false>,
                (true, false) => on_repeat::<false>,
                (false, true) => on_execution::<true>,
                (true, true) => on_repeat::<true>,
            };
            translation.at_execution(callback, CallbackReads::Nothing, id.0 as usize);
        }
        for store in instruction::progress_stores(&may_leave) {
            instructions[store.before].store_at_execution(&self.progress, store.progress);
        }
    }

    #[inline]
    fn executed<const WITH_DATA: bool>(&mut self, id: TranslationId) {
        match WITH_DATA {
            true => self.recorder.executed_with_data(id),
            false => self.recorder.executed(id),
        }
    }

    /// The same as `executed` with several CPUs.
    #[inline]
    fn executed_on_cpu(&mut self, id: TranslationId) {
        match self.mappings.is_some() {
            true => self.executed::<true>(id),
            false => self.executed::<false>(id),
        }
    }

    /// Another CPU executes from now on.
    fn goes_on(&mut self, cpu: CpuId) {
        self.recorder.cpu(cpu);
        if let Some(mappings) = &mut self.mappings {
            mappings.executes(cpu);
        }
    }

    /// Records that the translation before was left.
    #[cold]
    fn left(&mut self, progress: u64) {
        self.progress.clear();
        self.recorder.left(progress);
    }
}

/// Every execution of every translation calls this: about 50 million times a second. Nothing in
/// it can panic. `WITH_DATA`: data accesses are recorded.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
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
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
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

/// What the callback at an execution on one of several CPUs receives.
struct ExecutionOnCpu {
    id: TranslationId,
    is_repeat: bool,
    in_kernel: bool,
}

impl ExecutionOnCpu {
    fn to_data(&self) -> usize {
        (self.id.0 as usize) << 2 | usize::from(self.is_repeat) << 1 | usize::from(self.in_kernel)
    }

    #[inline]
    fn from_data(data: usize) -> ExecutionOnCpu {
        ExecutionOnCpu {
            id: TranslationId((data >> 2) as u32),
            is_repeat: data & 2 != 0,
            in_kernel: data & 1 != 0,
        }
    }
}

/// The same as `on_execution` and `on_repeat` with several CPUs.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
unsafe extern "C" fn on_execution_on_cpu(_: c_uint, data: *mut c_void) {
    let Some(recording) = active_recording() else {
        return;
    };
    let execution = ExecutionOnCpu::from_data(data as usize);
    let progress = recording.progress.get();
    if progress != 0 {
        recording.left(progress);
    }
    let Some(cpus) = &mut recording.cpus else { return };
    match cpus.execution(execution.in_kernel) {
        ExecutingCpu::Same if execution.is_repeat && progress == 0 => {
            match recording.mappings.is_some() {
                true => recording.recorder.executed_repeat_with_data(execution.id),
                false => recording.recorder.executed_repeat(execution.id),
            }
        }
        ExecutingCpu::Same => recording.executed_on_cpu(execution.id),
        ExecutingCpu::Other(cpu) => {
            recording.goes_on(cpu);
            recording.executed_on_cpu(execution.id);
        }
        ExecutingCpu::First(cpu) => first_on_cpu(cpu, execution.id),
        ExecutingCpu::Unknown => unknown_cpu(),
    }
}

/// A CPU executes for the first time, in the task to which it switched last.
#[cold]
fn first_on_cpu(cpu: CpuId, id: TranslationId) {
    guarded_recording(|session, recording| {
        recording.goes_on(cpu);
        let base = recording.cpus.as_ref().and_then(CpuWatch::base);
        let task = session.tasks.as_mut().and_then(|tasks| tasks.current(base));
        if let Some((pointer, pid, comm)) = task {
            recording.recorder.switch(pointer, pid, comm);
        }
        recording.executed_on_cpu(id);
    });
}

#[cold]
fn unknown_cpu() {
    guarded_recording(|session, recording| {
        if let SessionPhase::Recording = session.phase {
            session.finish(recording, false);
            session.stop("neither gs_base nor k_gs_base holds a CPU's base");
            qemu::reset(session.id, over);
        }
    });
}

/// `instruction`: the number of the instruction in its translation.
///
/// # Safety
/// No other callback may run meanwhile. `info` must be what QEMU gave for this access.
unsafe extern "C" fn on_load(_: c_uint, info: AccessInfo, addr: u64, instruction: *mut c_void) {
    access(info, addr, AccessSite::new(instruction as u16, false, qemu::size_log2(info)));
}

/// The same for a store.
///
/// # Safety
/// No other callback may run meanwhile. `info` must be what QEMU gave for this access.
unsafe extern "C" fn on_store(_: c_uint, info: AccessInfo, addr: u64, instruction: *mut c_void) {
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
    let Some(mappings) = recording.mappings.as_mut().map(CpuMappings::current) else { return };
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
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
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
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
unsafe extern "C" fn on_drop_of_mappings(_: c_uint, _: *mut c_void) {
    guarded_recording(|_, recording| {
        if let Some(mappings) = &mut recording.mappings {
            mappings.current().drop_all();
        }
    });
}

/// `in_kernel`: whether the instruction is in kernel code.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
unsafe extern "C" fn on_instruction_to_verify(_: c_uint, in_kernel: *mut c_void) {
    if let Some(recording) = active_recording()
        && let Some(verify) = &mut recording.verify
    {
        verify.count(in_kernel as usize != 0);
    }
}

/// QEMU calls this before the callback that records the same execution.
///
/// # Safety
/// No other callback may run meanwhile. `checked` must be null, or point to a `CheckedTranslation`
/// that is never freed.
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

/// `function`: the number of a function of tasks.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
unsafe extern "C" fn on_task_function(_: c_uint, function: *mut c_void) {
    guarded_recording(|session, recording| {
        let cpu = recording.cpus.as_ref().and_then(CpuWatch::base);
        let change = session
            .tasks
            .as_mut()
            .and_then(|tasks| tasks.at(TaskFunction::from_data(function as usize), cpu));
        match change {
            Some(TaskChange::Switched((pointer, pid, comm))) => {
                recording.recorder.switch(pointer, pid, comm);
                if let Some(programs) = &mut session.programs {
                    programs.runs((pointer, pid, comm));
                }
            }
            Some(TaskChange::Woken((pointer, pid, comm))) => {
                recording.recorder.woken(pointer, pid, comm)
            }
            None => {}
        }
    });
}

/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
unsafe extern "C" fn on_mapping(_: c_uint, _: *mut c_void) {
    guarded_recording(|session, recording| {
        session.mapped(recording.cpus.as_ref().and_then(CpuWatch::base));
    });
}

/// What the callback at an instruction with a probe receives.
struct ProbedInstruction {
    addr: RunAddr,
    /// In its translation, which has at most 512 instructions (QEMU's `TCG_MAX_INSNS`).
    index: u16,
    /// It is the only one, and a repeated string instruction.
    is_repeat: bool,
}

impl ProbedInstruction {
    /// The upper 16 bits of an address are copies of bit 47.
    fn to_data(&self) -> usize {
        let upper = usize::from(self.index) | usize::from(self.is_repeat) << 15;
        (self.addr.0 << 16 >> 16) as usize | upper << 48
    }

    fn from_data(data: usize) -> ProbedInstruction {
        let addr = ((data as u64) << 16) as i64 >> 16;
        let upper = (data >> 48) as u16;
        let (index, is_repeat) = (upper & 0x7fff, upper >> 15 != 0);
        ProbedInstruction { addr: RunAddr(addr as u64), index, is_repeat }
    }
}

/// QEMU calls this before the instruction, and after the callback that records the execution.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
unsafe extern "C" fn on_probe(_: c_uint, data: *mut c_void) {
    guarded_recording(|session, recording| {
        let Some(probes) = &mut recording.probes else { return };
        let ProbedInstruction { addr, index, is_repeat } =
            ProbedInstruction::from_data(data as usize);
        // A string instruction that goes on was reached before.
        if is_repeat && recording.recorder.only_continues() {
            return;
        }
        let execution = recording.recorder.current_execution();
        if let Err(error) = probes.reached(addr, execution, index) {
            session.stop(&format!("the values of the probes cannot be written: {error}"));
        }
    });
}

/// `function`: the number of a function of modules.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
unsafe extern "C" fn on_module_function(_: c_uint, function: *mut c_void) {
    guarded_recording(|session, recording| {
        let function = ModuleFunction::from_data(function as usize);
        let change = session.modules.as_mut().and_then(|modules| modules.at(function));
        change.into_iter().for_each(|change| recording.recorder.modules_change(change));
    });
}

/// `data`: from bit 16 the marker's number, from bit 0 the number of instructions of the
/// translation reached with it.
///
/// # Safety
/// No other callback may run meanwhile, which holds for QEMU with one thread for all vCPUs.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_with_a_probe_keeps_its_address() {
        for addr in [0, 0x7fff_ffff_f000, 0xffff_ffff_8100_0000, 0xffff_8880_0000_0001] {
            for (index, is_repeat) in [(511, false), (0, true)] {
                let data = ProbedInstruction { addr: RunAddr(addr), index, is_repeat }.to_data();
                let read = ProbedInstruction::from_data(data);
                let of_read = (read.addr, read.index, read.is_repeat);
                assert_eq!(of_read, (RunAddr(addr), index, is_repeat));
            }
        }
    }
}
