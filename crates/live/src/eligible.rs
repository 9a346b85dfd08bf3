//! Which functions of the running kernel can be replaced by a copy, and why the others cannot.
//!
//! Input: a vmlinux and the live code of a function. Output: the bytes to copy, or the reason for
//! leaving the function alone.

use crate::explain::{Unexplained, explain};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::linked::tables::within;
use image::object::functions::{TextFunction, WholeReason};
use image::object::instructions::{self, InstructionKind};
use image::object::pieces::CutCode;
use image::ordinary::ReservedCode;
use image::sites::PatchKind;
use std::fmt;

/// Bytes of the jump at the entry.
pub(crate) const JUMP: u32 = 5;
const ENDBR: u32 = 4;

/// Why a function is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfit {
    /// The function tracer has no site at its entry.
    NoTracerSite,
    /// It is in code that the kernel keeps apart.
    ReservedCode(ReservedCode),
    /// Text poking, stopping the machine and the like go through it.
    Poking,
    /// Every sleeping task has it on its stack, so tasks would never leave its copy.
    OnEveryStack,
    /// Modules are loaded through it: a livepatch that comes would wait for itself.
    Loading,
    /// A CPU that is switched off waits in it, where its stack cannot be checked.
    OfDeadCpus,
    /// A static key in it lies in read-only memory, where this kernel would write to it.
    ReadOnlyKey,
    /// Its structure is not understood.
    Whole(WholeReason),
    /// It runs on into the next function.
    RunsOn,
    /// Code that no symbol names follows it at once, or it ends with padding.
    OddSize,
    /// It has no room for the jump.
    TooShort,
    /// Something that the kernel patches lies where the jump would go.
    PatchedEntry,
    /// Control goes into the five bytes from elsewhere, or comes back into them from a call.
    EnteredEntry,
    /// Memory differs from the file at this address, and nothing explains it.
    Changed(LinkAddr),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::NoTracerSite => f.write_str("the function tracer has no site at its entry"),
            Unfit::ReservedCode(apart) => write!(f, "{}", apart.words()),
            Unfit::Poking => f.write_str("patching code goes through it"),
            Unfit::OnEveryStack => f.write_str("every sleeping task has it on its stack"),
            Unfit::Loading => f.write_str("livepatches are loaded through it"),
            Unfit::OfDeadCpus => f.write_str("a CPU that is switched off waits in it"),
            Unfit::ReadOnlyKey => f.write_str("a module with its static key crashes this kernel"),
            Unfit::Whole(reason) => write!(f, "{}", reason.words()),
            Unfit::RunsOn => f.write_str("runs on into the next function"),
            Unfit::OddSize => f.write_str("its symbol may have a wrong size"),
            Unfit::TooShort => f.write_str("too short for a jump"),
            Unfit::PatchedEntry => {
                f.write_str("the kernel patches the bytes behind the tracer's site")
            }
            Unfit::EnteredEntry => f.write_str("control enters the bytes behind the tracer's site"),
            Unfit::Changed(at) => write!(f, "memory differs from the file at {at}"),
        }
    }
}

/// A function that can be replaced.
pub struct Fit {
    /// Index into the kernel's functions.
    pub function: usize,
    /// Bytes from the entry to behind the tracer's site.
    pub patch_at: u32,
    /// Its bytes, ready to copy.
    pub code: Vec<u8>,
}

/// Functions that writing to code, or waiting for it, goes through (arch/x86/kernel/alternative.c,
/// kernel/smp.c, kernel/stop_machine.c).
const POKING: [&str; 13] = [
    "text_poke",
    "__text_poke",
    "smp_text_poke",
    "poke_int3",
    "do_sync_core",
    "sync_core",
    "on_each_cpu",
    "smp_call_function",
    "__smp_call",
    "stop_machine",
    "multi_cpu_stop",
    "cpu_stop",
    "ftrace_",
];

/// The functions that sleeping tasks have on their stacks between the entry code and the scheduler.
const ON_EVERY_STACK: [&str; 9] = [
    "x64_sys_call",
    "ia32_sys_call",
    "do_syscall_64",
    "kthread",
    "worker_thread",
    "smpboot_thread_fn",
    "ret_from_fork",
    "do_idle",
    "cpu_startup_entry",
];

/// The functions that the task that loads a livepatch has on its stack while all groups are undone
/// (kernel/module/main.c, kernel/notifier.c).
const LOADING: [&str; 15] = [
    "__x64_sys_init_module",
    "__x64_sys_finit_module",
    "__ia32_sys_init_module",
    "__ia32_sys_finit_module",
    "__se_sys_init_module",
    "__se_sys_finit_module",
    "__do_sys_init_module",
    "__do_sys_finit_module",
    "idempotent_init_module",
    "init_module_from_file",
    "load_module",
    "prepare_coming_module",
    "blocking_notifier_call_chain_robust",
    "notifier_call_chain_robust",
    "notifier_call_chain",
];

/// The part of the name of a function in which a CPU that is switched off waits.
const DEAD_CPUS: &str = "play_dead";

/// Decides about one function. `live`: the bytes of the whole function in memory.
///
/// # Errors
/// Why it is left alone.
pub(crate) fn decide(
    kernel: &LinkedKernel<'_>,
    index: usize,
    live: &[u8],
    slide: u64,
) -> Result<Fit, Unfit> {
    let function = &kernel.functions[index];
    let from = kernel.link_address(function.at);
    let name = kernel.function_name(function);
    let patch_at = tracer_site(kernel, function).ok_or(Unfit::NoTracerSite)?;
    if let Some(apart) = kernel.apart(from) {
        return Err(Unfit::ReservedCode(apart));
    }
    if is_unprobed(kernel, from, name) {
        return Err(Unfit::ReservedCode(ReservedCode::Kprobes));
    }
    if let Some(reason) = by_name(name) {
        return Err(reason);
    }
    if has_read_only_key(kernel, index) {
        return Err(Unfit::ReadOnlyKey);
    }
    if function.end - function.at < patch_at + JUMP {
        return Err(Unfit::TooShort);
    }
    let cut = understood(kernel, index)?;
    let window = function.at + patch_at..function.at + patch_at + JUMP;
    if is_patched(kernel, kernel.link_address(window.start), kernel.link_address(window.end)) {
        return Err(Unfit::PatchedEntry);
    }
    let entered = |at: u32| at > window.start && at < window.end;
    let code = kernel.instructions(function);
    let returns_into = code.iter().any(|i| entered(i.end()) && is_call(kernel, i.at, i.kind));
    let cold = cold_parts(kernel, index);
    let mut from_cold = cold.iter().flat_map(|&part| kernel.branches_out(&kernel.functions[part]));
    if cut.pieces.iter().any(|p| entered(p.at)) || returns_into || from_cold.any(entered) {
        return Err(Unfit::EnteredEntry);
    }
    let code =
        explain(kernel, function, live, slide).map_err(|Unexplained(at)| Unfit::Changed(at))?;
    Ok(Fit { function: index, patch_at, code })
}

/// Decides whether a function that cannot be replaced can be inlined all the same: only its entry
/// is in the way, or it is a lock's. Its copy is entered from other copies only.
pub(crate) fn carried(
    kernel: &LinkedKernel<'_>,
    index: usize,
    live: &[u8],
    slide: u64,
) -> Option<Fit> {
    let entry_is_in_the_way = match decide(kernel, index, live, slide).err()? {
        Unfit::TooShort | Unfit::PatchedEntry | Unfit::EnteredEntry => true,
        Unfit::ReservedCode(apart) => apart == ReservedCode::Locks,
        _ => false,
    };
    let function = &kernel.functions[index];
    let (from, name) = (kernel.link_address(function.at), kernel.function_name(function));
    let is_refused = is_unprobed(kernel, from, name)
        || by_name(name).is_some()
        || has_read_only_key(kernel, index);
    if !entry_is_in_the_way || is_refused || understood(kernel, index).is_err() {
        return None;
    }
    let patch_at = tracer_site(kernel, function)?;
    Some(Fit { function: index, patch_at, code: explain(kernel, function, live, slide).ok()? })
}

/// Whether a function or one of its cold parts has a site of a key that no module can have.
fn has_read_only_key(kernel: &LinkedKernel<'_>, index: usize) -> bool {
    let mut parts = std::iter::once(index).chain(cold_parts(kernel, index));
    parts.any(|part| {
        let TextFunction { at, end, .. } = kernel.functions[part];
        let [from, to] = [at, end].map(|at| kernel.link_address(at));
        kernel.tables.site_of_read_only_key(from, to).is_some()
    })
}

/// Why a function of this name is left alone. `kmod/refuse.c` has the same lists.
fn by_name(name: &str) -> Option<Unfit> {
    // Compilers put ".isra.0" and the like behind a name.
    let base = name.split('.').next().unwrap_or(name);
    if POKING.iter().any(|prefix| name.starts_with(prefix)) {
        Some(Unfit::Poking)
    } else if ON_EVERY_STACK.contains(&base) {
        Some(Unfit::OnEveryStack)
    } else if LOADING.contains(&base) {
        Some(Unfit::Loading)
    } else if name.contains(DEAD_CPUS) {
        Some(Unfit::OfDeadCpus)
    } else {
        None
    }
}

/// Whether kprobes' list of functions that must not be probed has a function. Int3 and debug
/// exceptions go through these functions. A compiler's clone (`NAME.constprop.0`) counts with the
/// function that it was made from, as in the kernel (`within_kprobe_blacklist`).
fn is_unprobed(kernel: &LinkedKernel<'_>, entry: LinkAddr, name: &str) -> bool {
    let listed = |at: u64| kernel.tables.unprobed.binary_search(&at).is_ok();
    let made_from = name.split_once('.').map_or(&[][..], |(base, _)| kernel.addresses_of(base));
    listed(entry.0) || made_from.iter().any(|&at| listed(at))
}

/// Whether a part of a function that is not called itself can be copied with it.
///
/// # Errors
/// Why not.
pub(crate) fn understood(kernel: &LinkedKernel<'_>, index: usize) -> Result<CutCode, Unfit> {
    let function = &kernel.functions[index];
    if let Some(reason) = function.whole {
        return Err(Unfit::Whole(reason));
    }
    if !ends_whole(kernel, index) {
        return Err(Unfit::OddSize);
    }
    let cut = kernel.cut(&[index]);
    if let Some(reason) = cut.functions.iter().find_map(|f| f.whole) {
        return Err(Unfit::Whole(reason));
    }
    let code = kernel.instructions(function);
    let last = code.iter().rev().find(|i| !i.is_padding());
    match last.map(|i| i.kind) {
        Some(
            InstructionKind::Jump
            | InstructionKind::Stop
            | InstructionKind::Call
            | InstructionKind::Trap,
        ) => Ok(cut),
        _ => Err(Unfit::RunsOn),
    }
}

/// The most bytes of an instruction.
const LONGEST: u32 = 15;

/// Bytes of no-ops in front of every function of a kernel with `CONFIG_CALL_PADDING`.
const CALL_PADDING: u32 = 16;

/// Whether a function ends where its symbol says. Behind the end lies padding: up to the next
/// function, or as much as stands in front of a function without a symbol (an overridden weak one).
/// In front of the end lies no padding, but for the int3 behind a return or an indirect jump.
fn ends_whole(kernel: &LinkedKernel<'_>, index: usize) -> bool {
    let inside = kernel.instructions(&kernel.functions[index]);
    match inside.iter().rev().take_while(|i| i.is_padding()).collect::<Vec<_>>()[..] {
        [] => {}
        [guard] if guard.kind == InstructionKind::Int3 => {}
        _ => return false,
    }
    let end = kernel.functions[index].end;
    let next = kernel.functions.get(index + 1).map_or(u32::MAX, |f| f.at);
    let gap = kernel.code(end, next.min(area_end(kernel, end)).max(end));
    let code = instructions::decode(gap, end, end + gap.len() as u32, &[]);
    code.iter().find(|i| !i.is_padding()).is_none_or(|i| i.at - end >= CALL_PADDING)
}

/// The offset behind the section in which an offset lies, or which it ends.
fn area_end(kernel: &LinkedKernel<'_>, offset: u32) -> u32 {
    let at = kernel.link_address(offset).0;
    let area = kernel.areas().find(|area| area.start <= at && at <= area.end);
    area.map_or(offset, |area| (area.end - kernel.text.start) as u32)
}

/// Bytes from the entry to behind the tracer's site; `None` without one.
pub fn tracer_site(kernel: &LinkedKernel<'_>, function: &TextFunction) -> Option<u32> {
    let entry = kernel.link_address(function.at);
    let has = |at: u64| kernel.tables.tracer_sites.binary_search(&at).is_ok();
    [0, ENDBR].into_iter().find(|&skip| has(entry.0 + u64::from(skip))).map(|skip| skip + JUMP)
}

/// The parts of a function that the compiler put elsewhere (`f.cold`): functions of that name to
/// which it branches.
pub(crate) fn cold_parts(kernel: &LinkedKernel<'_>, index: usize) -> Vec<usize> {
    let function = &kernel.functions[index];
    let name = format!("{}.cold", kernel.function_name(function));
    let targets = kernel.branches_out(function);
    let mut found: Vec<usize> = targets
        .into_iter()
        .filter_map(|at| kernel.function_at(kernel.link_address(at)))
        .filter(|&part| kernel.function_name(&kernel.functions[part]).starts_with(&name))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn is_call(kernel: &LinkedKernel<'_>, at: u32, kind: InstructionKind) -> bool {
    let addr = kernel.link_address(at).0;
    kind == InstructionKind::Call
        || kernel.sites.kinds_at(addr).any(|kind| kind == PatchKind::StaticCall)
        || is_indirect_call(kernel, at)
}

/// `ff /2`, which the cutter takes for a plain instruction: control comes back behind it.
fn is_indirect_call(kernel: &LinkedKernel<'_>, at: u32) -> bool {
    let bytes = kernel.code(at, area_end(kernel, at).min(at + LONGEST));
    let opcode = bytes.iter().position(|b| !matches!(b, 0x2e | 0x3e | 0x40..=0x4f));
    opcode.is_some_and(|n| {
        bytes.get(n) == Some(&0xff) && bytes.get(n + 1).is_some_and(|m| m >> 3 & 7 == 2)
    })
}

/// Whether a side table names an instruction that overlaps `[from, to)`.
fn is_patched(kernel: &LinkedKernel<'_>, from: LinkAddr, to: LinkAddr) -> bool {
    let tables = &kernel.tables;
    let patched = |kind| !matches!(kind, PatchKind::Tracer | PatchKind::EndbrSeal);
    kernel.sites.overlapping(from.0, to.0).any(|site| patched(site.kind))
        || !within(&tables.exceptions, |e| e.site, from, to).is_empty()
        || !within(&tables.bugs, |e| e.site, from, to).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_elf::DATA;
    use crate::test_kernel::{F, at, bytes, tables, with};
    use image::linked::tables::{JumpEntry, LinkedTables};

    #[test]
    fn names_are_refused_also_when_a_compiler_has_made_a_clone() {
        assert_eq!(by_name("text_poke_bp_batch"), Some(Unfit::Poking));
        assert_eq!(by_name("worker_thread"), Some(Unfit::OnEveryStack));
        assert_eq!(by_name("load_module"), Some(Unfit::Loading));
        assert_eq!(by_name("load_module.isra.0"), Some(Unfit::Loading));
        assert_eq!(by_name("acpi_idle_play_dead"), Some(Unfit::OfDeadCpus));
        assert_eq!(by_name("load_module_file"), None);
        assert_eq!(by_name("vfs_read"), None);
    }

    #[test]
    fn a_read_only_key_is_left_alone_where_the_kernel_would_write_to_it() {
        let decided = |seals_keys| {
            let jump = JumpEntry { site: at(0x0c).0, target: at(0x17).0, key: DATA };
            let (jumps, read_only) = (vec![jump], DATA..DATA + 1);
            let tables = LinkedTables { jumps, read_only, seals_keys, ..tables() };
            with(tables, |kernel| decide(kernel, F, &bytes(kernel, F), 0).err())
        };
        assert_eq!(decided(false), Some(Unfit::ReadOnlyKey));
        assert_ne!(decided(true), Some(Unfit::ReadOnlyKey));
    }

    #[test]
    fn the_kernels_module_refuses_the_same_names() {
        let source = include_str!("../../../kmod/refuse.c");
        // The quoted names in the initializer behind `what`.
        let list = |what: &str| -> Vec<String> {
            let (_, rest) = source.split_once(what).expect(what);
            let (list, _) = rest.split_once(';').expect(what);
            list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
        };
        assert_eq!(list("const poking[] ="), POKING);
        assert_eq!(list("const on_every_stack[] ="), ON_EVERY_STACK);
        assert_eq!(list("const loading[] ="), LOADING);
        assert_eq!(list("of_dead_cpus[] ="), [DEAD_CPUS]);
    }
}
