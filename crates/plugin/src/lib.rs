//! The library that QEMU loads: takes what QEMU runs, gives a recording
//! (`docs/reference/recording-format.md`). Never analyses, never lets a panic unwind into QEMU,
//! never changes what the guest does.
//!
//! For QEMU 10.0 or later, x86-64 system emulation, one vCPU. Loaded as
//! `-plugin libkernlane_plugin.so,out=FILE,…`:
//!
//! | argument | means |
//! |---|---|
//! | `out=FILE` | where the recording is written; created or emptied when QEMU starts. Required |
//! | `build_id=HEX` | the kernel's GNU build id, for the header |
//! | `workload=NAME` | for the header |
//! | `seed=N` | the seed QEMU was started with, for the header; 0 when not given |
//! | `condition.KEY=VALUE` | for the header's conditions; any number of them, kept in their order |
//! | `switch_to=0xADDR` | the address of `__switch_to` as the guest executes it (its link address under `nokaslr`). Needed for tasks |
//! | `comm=OFFSET` | the offset of `comm` in `task_struct`, bytes. Needed for tasks |
//! | `set_comm=0xADDR` | the address of `__set_task_comm`, if the kernel calls it. Without it a task has its new name after execve only from the next switch to it |
//! | `pid=OFFSET` | the offset of `pid` in `task_struct`, bytes. Without it tasks have no pid |
//! | `data=on\|off` | also record every data access, and where pages lie; `off` when not given. Without it nothing is slower for it |
//! | `page_offset_base=0xADDR` | the address of the kernel's `page_offset_base`, for `data=on`: without it the sizes of pages and the physical addresses of code are not known |
//! | `on_error=stop\|continue` | when the recording cannot be written: end QEMU as SIGTERM would (the default), or let the guest run on |
//! | `verify=on\|off` | also count every instruction and check every address, slowly, and report both at the end; `off` when not given. Instructions and their order stay the same; QEMU may cut very long translations differently |
//!
//! Numbers are decimal or begin with `0x`. An argument that is unknown, malformed or missing makes
//! QEMU refuse to start.
//!
//! The workload executes markers in user code: `nopl MARK(%rax,%rax,1)`, bytes `0f 1f 84 00` and
//! `0x4b4c0000 | n` little-endian.
//!
//! * n = 1: recording begins with the first translation after the one that holds the marker.
//! * n = 2: recording ends with the marker; the clean end is written and the file closed, and the
//!   guest runs on without the plugin.
//! * n = 3: the workload failed; recording ends, *without* a clean end.
//! * any other n while recording: an event of the stream.
//!
//! Outside of a recording only markers and task switches cost anything. When QEMU ends before
//! marker 2, what was recorded is flushed and there is no clean end, so that readers say the
//! recording is cut off. The plugin's messages go to standard error, each line beginning with
//! `kernlane: `.

mod arguments;
mod clock;
mod frames;
mod instruction;
mod mappings;
mod output;
mod qemu;
mod recorder;
mod session;
mod tasks;
mod verify;

use arguments::Arguments;
use qemu_plugin_sys as sys;
use std::ffi::{CStr, c_char, c_int};

/// The version of QEMU's plugin API that this is made for: QEMU 9.2's, the first to read memory.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = sys::QEMU_PLUGIN_VERSION as c_int;

/// Called by QEMU once, before the guest runs. Not 0: QEMU refuses to start.
///
/// # Safety
/// QEMU's to keep: `info` and the `argc` strings of `argv` are valid during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: sys::qemu_plugin_id_t,
    info: *const sys::qemu_info_t,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let installed = std::panic::catch_unwind(|| {
        // SAFETY: QEMU keeps `info` and the `argc` strings of `argv` valid during this call.
        let (info, argv) = unsafe {
            (&*info, std::slice::from_raw_parts(argv, usize::try_from(argc).unwrap_or(0)))
        };
        // SAFETY: each of them ends with a zero byte, and none is null.
        let argv: Vec<_> =
            argv.iter().map(|&text| unsafe { CStr::from_ptr(text) }.to_string_lossy()).collect();
        fits(info)?;
        let arguments =
            Arguments::parse(argv.iter().map(AsRef::as_ref)).map_err(|error| error.to_string())?;
        session::install(id, arguments)
    });
    match installed {
        Ok(Ok(())) => 0,
        Ok(Err(message)) => {
            say(&message);
            1
        }
        Err(_) => 1,
    }
}

/// Whether this QEMU is one the plugin is made for.
fn fits(info: &sys::qemu_info_t) -> Result<(), String> {
    // SAFETY: `target_name` is a string of QEMU that is valid as long as `info`.
    let target = unsafe { CStr::from_ptr(info.target_name) }.to_string_lossy();
    if target != "x86_64" || !info.system_emulation {
        return Err(format!("made for the system emulation of x86_64, not for {target}"));
    }
    // SAFETY: `system_emulation` is true here, by which QEMU says that it filled in `system`.
    match unsafe { info.__bindgen_anon_1.system.max_vcpus } {
        1 => Ok(()),
        more => Err(format!("made for one vCPU; this guest can have {more} (use -smp 1)")),
    }
}

/// Says something to whoever started QEMU.
fn say(message: &str) {
    // Not eprintln!, which panics when standard error cannot take it (a full disk).
    let _ =
        std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("kernlane: {message}\n"));
}
