//! The library that QEMU loads. Input: what QEMU runs. Output: a recording
//! (`docs/reference/recording-format.md`). The plugin never analyses, never lets a panic unwind
//! into QEMU, and never changes what the guest does.
//!
//! For QEMU 10.0 to 11.1, x86-64 system emulation, up to eight vCPUs on one thread. Loaded as
//! `-plugin libkernlane_plugin.so,out=FILE,…`:
//!
//! * `out=FILE`: where the recording is written. The file is created or emptied when QEMU starts.
//!   Required.
//! * `build_id=HEX`: the kernel's GNU build id, for the header.
//! * `workload=NAME`: the name of the workload, for the header.
//! * `seed=N`: the seed with which QEMU was started, for the header. Default: 0.
//! * `cpus=N`: the number of vCPUs, 1 to 8. Default: 1. Several need `-accel tcg,thread=single`.
//! * `per_cpu_offset=0xADDR`: the address of the kernel's `__per_cpu_offset`. Needed for several
//!   vCPUs.
//! * `condition.KEY=VALUE`: a condition for the header. There can be several. They keep their
//!   order.
//! * `value.NAME=0xADDR`: a variable of the kernel with eight bytes. Its value at the beginning of
//!   the recording becomes a condition. There can be several.
//! * `switch_to=0xADDR`: the address of `__switch_to` as the guest executes it (its link address
//!   under `nokaslr`). Needed for tasks.
//! * `comm=OFFSET`: the offset of `comm` in `task_struct`, in bytes. Needed for tasks.
//! * `set_comm=0xADDR`: the address of `__set_task_comm`, if the kernel calls it. Without it, a
//!   task gets its new name after execve only at the next switch to it.
//! * `pid=OFFSET`: the offset of `pid` in `task_struct`, in bytes. Without it, tasks have no pid.
//! * `wakes=0xADDR+…`: functions whose second argument is a task that becomes able to run, at most
//!   eight.
//! * `module_finalize=0xADDR`: the address of `module_finalize`. With it, loads of kernel modules
//!   are recorded.
//! * `module_cleanup=0xADDR`: the address of `module_arch_cleanup`, for unloads of modules.
//! * `clock=on|off`: also record the kernel's readings of the clock. Default: `off`.
//! * `data=on|off`: also record every data access and the physical addresses of pages. Default:
//!   `off`, which costs no time.
//! * `page_offset_base=0xADDR`: the address of the kernel's `page_offset_base`. Without it, the
//!   sizes of pages and the physical addresses of code are not known.
//! * `frames=N+…`: where the kernel keeps the uses of page frames, for `data=on`: twelve numbers,
//!   see `StructPageFacts`.
//! * `probes=FILE`: a program of probes (`trace::probe`). Its values are read before instructions
//!   of the recording, and written to the file `probes_out=FILE`. Both or neither.
//! * `programs=N+…`: where the kernel says which files are mapped: nine numbers, see
//!   `ProgramPlaces`. Mappings and tasks are written to the file `programs_out=FILE` (see
//!   `programs`). Both or neither.
//! * `on_error=stop|continue`: what to do when the recording cannot be written: end QEMU as SIGTERM
//!   would (the default), or let the guest run on.
//! * `verify=on|off`: also count every instruction and check every address, and report both at the
//!   end. This is slow. Default: `off`. Instructions and their order stay the same. QEMU may cut
//!   very long translations differently.
//!
//! QEMU's programming interface changed with 11.1. The environment variable `KERNLANE_PLUGIN_API`
//! says for which version of it the plugin is loaded: 4, or 7 for QEMU 11.1. `kernlane` sets it.
//! Without it, the plugin looks at what QEMU offers.
//!
//! Numbers are decimal or begin with `0x`. QEMU refuses to start when an argument is unknown,
//! malformed or missing.
//!
//! The workload executes markers in user code: `nopl MARK(%rax,%rax,1)`, with the bytes
//! `0f 1f 84 00` and then `0x4b4c0000 | n` in little-endian order.
//!
//! * n = 1: recording begins with the first translation after the one that holds the marker.
//! * n = 2: recording ends with the marker. The plugin writes the clean end and closes the file,
//!   and the guest runs on without the plugin.
//! * n = 3: the workload failed. Recording ends *without* a clean end.
//! * any other n while recording: an event of the stream.
//!
//! Outside of a recording, only markers, task switches, loads of modules, mappings and halts cost
//! time. When QEMU ends before marker 2, the plugin flushes what it recorded and writes no clean
//! end. Readers then say that the recording is cut off. The plugin's messages go to standard error.
//! Each line begins with `kernlane: `.

mod arguments;
mod clock;
mod cpus;
mod frames;
mod halt;
mod instruction;
mod mappings;
mod modules;
mod output;
mod probes;
mod programs;
mod qemu;
mod recorder;
mod session;
mod tasks;
mod verify;

use arguments::Arguments;
use qemu_plugin_sys as sys;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicI32, Ordering};

/// The version of QEMU's plugin API that the plugin is loaded for. QEMU reads it when it has loaded
/// the library, so after [`CHOOSE`] has run.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: AtomicI32 = AtomicI32::new(sys::QEMU_PLUGIN_VERSION as c_int);

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE: extern "C" fn() = choose_version;

/// Chooses the version that this QEMU takes. QEMU 10.0 takes 2 to 4 (4 came with QEMU 9.2, the
/// first that can read memory); QEMU 11.1 takes 7 alone.
extern "C" fn choose_version() {
    let newest = match std::env::var("KERNLANE_PLUGIN_API") {
        Ok(version) => version == qemu::API_WITH_USER_DATA.to_string(),
        Err(_) => qemu::has_function(c"qemu_plugin_set_pc"),
    };
    if newest {
        qemu_plugin_version.store(qemu::API_WITH_USER_DATA, Ordering::Relaxed);
    }
}

/// QEMU calls this once, before the guest runs. With a result other than 0, QEMU refuses to start.
///
/// # Safety
/// `info` and the `argc` strings of `argv` must be valid during the call. QEMU guarantees this.
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
        // SAFETY: each string ends with a zero byte, and none is null.
        let argv: Vec<_> =
            argv.iter().map(|&text| unsafe { CStr::from_ptr(text) }.to_string_lossy()).collect();
        let arguments =
            Arguments::parse(argv.iter().map(AsRef::as_ref)).map_err(|error| error.to_string())?;
        check_qemu(info, arguments.header.cpus.get().into())?;
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

/// Whether the plugin can run in this QEMU, whose guest must have `cpus` vCPUs.
fn check_qemu(info: &sys::qemu_info_t, cpus: c_int) -> Result<(), String> {
    // SAFETY: `target_name` is a string of QEMU that is valid as long as `info`.
    let target = unsafe { CStr::from_ptr(info.target_name) }.to_string_lossy();
    if target != "x86_64" || !info.system_emulation {
        return Err(format!("this plugin needs the system emulation of x86_64, not of {target}"));
    }
    // SAFETY: `system_emulation` is true here, so QEMU has filled in `system`.
    match unsafe { info.__bindgen_anon_1.system.max_vcpus } {
        same if same == cpus => Ok(()),
        other => Err(format!("the guest has {other} vCPUs, but cpus={cpus}")),
    }
}

/// Prints what may be wrong with a recording that goes on. `kernlane record` hands on such lines.
fn warn(message: &str) {
    say(&format!("warning: {message}"));
}

/// Prints a message for the user who started QEMU.
fn say(message: &str) {
    // `eprintln!` panics when standard error cannot take the message (a full disk).
    let _ =
        std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("kernlane: {message}\n"));
}
