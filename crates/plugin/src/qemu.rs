//! QEMU's plugin API for the session. Only this module and `lib.rs` have `unsafe` calls into QEMU
//! and its glib.
//!
//! QEMU allows these calls only in a callback, on the thread of a vCPU.

use qemu_plugin_sys as sys;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use trace::RunAddr;

pub(crate) use sys::qemu_plugin_id_t as PluginId;

/// A callback at an execution. `data` is the value given at its registration.
pub(crate) type Callback = unsafe extern "C" fn(vcpu: c_uint, data: *mut c_void);

// QEMU's glib. The symbols are in QEMU's process.
unsafe extern "C" {
    fn g_byte_array_new() -> *mut sys::GByteArray;
    fn g_byte_array_unref(array: *mut sys::GByteArray);
    fn g_byte_array_set_size(array: *mut sys::GByteArray, size: c_uint) -> *mut sys::GByteArray;
    fn g_array_get_element_size(array: *mut sys::GArray) -> c_uint;
    fn g_array_unref(array: *mut sys::GArray);
}

/// A callback at a data access.
pub(crate) type AccessCallback =
    unsafe extern "C" fn(vcpu: c_uint, info: AccessInfo, addr: u64, data: *mut c_void);

/// QEMU's handle of a data access, valid during its callback.
pub(crate) type AccessInfo = sys::qemu_plugin_meminfo_t;

/// QEMU's handle of a translation, valid during its callback.
#[derive(Clone, Copy)]
pub(crate) struct TranslationHandle(pub *mut sys::qemu_plugin_tb);

/// QEMU's handle of an instruction in a translation.
#[derive(Clone, Copy)]
pub(crate) struct InstructionHandle(*mut sys::qemu_plugin_insn);

/// Whether a callback reads registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallbackReads {
    Nothing,
    Registers,
}

impl CallbackReads {
    fn flags(self) -> sys::qemu_plugin_cb_flags {
        match self {
            CallbackReads::Nothing => sys::qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS,
            CallbackReads::Registers => sys::qemu_plugin_cb_flags::QEMU_PLUGIN_CB_R_REGS,
        }
    }
}

impl TranslationHandle {
    pub(crate) fn addr(self) -> RunAddr {
        // SAFETY: the handle is valid during the callback that received it, and no one keeps it
        // longer.
        RunAddr(unsafe { sys::qemu_plugin_tb_vaddr(self.0) })
    }

    pub(crate) fn instructions(self) -> impl Iterator<Item = InstructionHandle> {
        // SAFETY: the handle is valid during the callback that received it, and no one keeps it
        // longer.
        let count = unsafe { sys::qemu_plugin_tb_n_insns(self.0) };
        // SAFETY: as above, and `i` is below the number of instructions.
        (0..count)
            .map(move |i| InstructionHandle(unsafe { sys::qemu_plugin_tb_get_insn(self.0, i) }))
    }

    pub(crate) fn at_execution(self, callback: Callback, reads: CallbackReads, data: usize) {
        // SAFETY: as for `addr`. QEMU hands `data` back to the callback and never follows it.
        unsafe {
            sys::qemu_plugin_register_vcpu_tb_exec_cb(
                self.0,
                Some(callback),
                reads.flags(),
                data as *mut c_void,
            )
        }
    }
}

impl InstructionHandle {
    pub(crate) fn addr(self) -> RunAddr {
        // SAFETY: the handle is valid during the callback that received it, and no one keeps it
        // longer.
        RunAddr(unsafe { sys::qemu_plugin_insn_vaddr(self.0) })
    }

    /// Appends the bytes of the instruction, and returns their number.
    pub(crate) fn append_code(self, code: &mut Vec<u8>) -> u8 {
        let mut bytes = [0_u8; 16];
        // SAFETY: as for `addr`; QEMU writes at most `bytes.len()` bytes to `bytes`.
        let size =
            unsafe { sys::qemu_plugin_insn_data(self.0, bytes.as_mut_ptr().cast(), bytes.len()) };
        let size = size.min(bytes.len());
        code.extend_from_slice(&bytes[..size]);
        size as u8
    }

    pub(crate) fn at_execution(self, callback: Callback, reads: CallbackReads, data: usize) {
        // SAFETY: as for `addr`. QEMU hands `data` back to the callback and never follows it.
        unsafe {
            sys::qemu_plugin_register_vcpu_insn_exec_cb(
                self.0,
                Some(callback),
                reads.flags(),
                data as *mut c_void,
            );
        }
    }

    /// Stores a value below 2^15.
    pub(crate) fn store_at_execution(self, cell: &StoreCell, value: u16) {
        let StoreCell { cell, several_cpus } = cell;
        let value = StoreCell::stored(value, *several_cpus);
        self.inline(sys::qemu_plugin_op::QEMU_PLUGIN_INLINE_STORE_U64, cell, value);
    }

    pub(crate) fn add_at_execution(self, cell: &ScoreboardCell, value: u64) {
        self.inline(sys::qemu_plugin_op::QEMU_PLUGIN_INLINE_ADD_U64, cell, value);
    }

    /// Calls `load` after each successful load of the instruction, and `store` after each store.
    /// They may read control registers. QEMU lets a callback do so only if it was registered for
    /// it, since [`API_WITH_USER_DATA`]; earlier versions keep these registers in memory always.
    pub(crate) fn at_access(self, load: AccessCallback, store: AccessCallback, data: usize) {
        let reads = match gives_user_data() {
            true => CallbackReads::Registers,
            false => CallbackReads::Nothing,
        };
        // SAFETY: as for `addr`. QEMU hands `data` back to the callback and never follows it.
        let register = |callback, kind| unsafe {
            sys::qemu_plugin_register_vcpu_mem_cb(
                self.0,
                Some(callback),
                reads.flags(),
                kind,
                data as *mut c_void,
            );
        };
        register(load, sys::qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_R);
        register(store, sys::qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_W);
    }

    fn inline(self, op: sys::qemu_plugin_op, cell: &ScoreboardCell, value: u64) {
        // SAFETY: as for `addr`; the cell's scoreboard is never freed, and has room for a `u64` at
        // its entry.
        unsafe {
            sys::qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
                self.0,
                op,
                cell.entry(),
                value,
            )
        }
    }
}

/// A number that translated code stores without a callback, on one vCPU or on several that share a
/// thread.
///
/// A scoreboard has an element for each vCPU. When several vCPUs share a thread, QEMU 10 and 11
/// compute an element's address by multiplying a constant, the number of the vCPU that made the
/// translation, in place by the element's size (`gen_plugin_u64_ptr()` in
/// `accel/tcg/plugin-gen.c`): the translation's further uses of that constant are then wrong, and
/// the guest with them. A size of one byte changes nothing. Then the number, eight bytes long, may
/// stand at any of the first eight bytes. Its lowest bit is 1, so that it can be found there. QEMU
/// makes room for 16 elements.
pub(crate) struct StoreCell {
    cell: ScoreboardCell,
    several_cpus: bool,
}

impl StoreCell {
    /// A new cell with the value 0, as [`ScoreboardCell::new`].
    pub(crate) fn new(several_cpus: bool) -> StoreCell {
        let bytes = if several_cpus { 1 } else { size_of::<u64>() };
        StoreCell { cell: ScoreboardCell::with_elements(bytes), several_cpus }
    }

    fn stored(value: u16, several_cpus: bool) -> u64 {
        match several_cpus {
            // No byte of the old number may stay: the next number may be stored at another byte.
            true if value != 0 => u64::from(value) << 1 | 1,
            _ => value.into(),
        }
    }

    /// The number in these 16 bytes, wherever it stands; 0 if there is none.
    fn find(bytes: u128) -> u64 {
        match bytes {
            0 => 0,
            _ => (bytes >> bytes.trailing_zeros()) as u64 >> 1,
        }
    }

    /// The number stored last.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        if self.several_cpus {
            return StoreCell::find(self.cell.get_bytes());
        }
        self.cell.get()
    }

    /// Sets the value to 0.
    pub(crate) fn clear(&self) {
        if self.several_cpus {
            return self.cell.clear_bytes();
        }
        self.cell.set(0);
    }
}

/// A number that translated code writes without a callback. It belongs to vCPU 0, the only one.
pub(crate) struct ScoreboardCell {
    scoreboard: *mut sys::qemu_plugin_scoreboard,
    place: *mut u64,
}

impl ScoreboardCell {
    /// A new cell with the value 0. The vCPU must exist. The cell is never freed: translated code
    /// may refer to it as long as QEMU runs.
    pub(crate) fn new() -> ScoreboardCell {
        ScoreboardCell::with_elements(size_of::<u64>())
    }

    fn with_elements(bytes: usize) -> ScoreboardCell {
        // SAFETY: the vCPU exists, as `new` demands. So the scoreboard has entry 0.
        unsafe {
            let scoreboard = sys::qemu_plugin_scoreboard_new(bytes);
            ScoreboardCell {
                scoreboard,
                place: sys::qemu_plugin_scoreboard_find(scoreboard, 0).cast(),
            }
        }
    }

    fn entry(&self) -> sys::qemu_plugin_u64 {
        sys::qemu_plugin_u64 { score: self.scoreboard, offset: 0 }
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        // The read is volatile, because translated code writes the cell and the compiler does not
        // know it. SAFETY: `place` is a `u64` of a scoreboard that is never freed, and only the
        // thread of the one vCPU uses it.
        unsafe { self.place.read_volatile() }
    }

    pub(crate) fn set(&self, value: u64) {
        // SAFETY: as in `get`.
        unsafe { self.place.write_volatile(value) }
    }

    /// The first 16 bytes of a scoreboard with elements of one byte.
    #[inline]
    fn get_bytes(&self) -> u128 {
        // SAFETY: as in `get`. QEMU makes room for 16 elements (`plugin.scoreboard_alloc_size`).
        u128::from_le_bytes(unsafe { self.place.cast::<[u8; 16]>().read_volatile() })
    }

    fn clear_bytes(&self) {
        // SAFETY: as in `get_bytes`.
        unsafe { self.place.cast::<[u8; 16]>().write_volatile([0; 16]) }
    }
}

/// glib's growing array of bytes.
pub(crate) struct ByteArray(*mut sys::GByteArray);

impl Default for ByteArray {
    fn default() -> Self {
        ByteArray::new()
    }
}

impl ByteArray {
    fn new() -> ByteArray {
        // SAFETY: the function takes no argument. It ends the process when there is no memory.
        ByteArray(unsafe { g_byte_array_new() })
    }

    fn clear(&mut self) {
        // SAFETY: the array belongs to this `ByteArray`. The size only becomes smaller.
        unsafe { g_byte_array_set_size(self.0, 0) };
    }

    fn first<const N: usize>(&self) -> Option<[u8; N]> {
        // SAFETY: the array belongs to this `ByteArray` until it is dropped.
        let (data, size) = unsafe { ((*self.0).data, (*self.0).len as usize) };
        if size < N {
            return None;
        }
        // SAFETY: the array holds at least N bytes, of any alignment.
        Some(unsafe { data.cast::<[u8; N]>().read_unaligned() })
    }
}

impl Drop for ByteArray {
    fn drop(&mut self) {
        // SAFETY: this is the only reference, and nothing uses the array afterwards.
        unsafe { g_byte_array_unref(self.0) }
    }
}

/// A register of the vCPU, by QEMU's handle.
#[derive(Clone, Copy)]
pub(crate) struct Register(*mut sys::qemu_plugin_register);

impl Register {
    /// The register with this name in gdb.
    pub(crate) fn find(name: &CStr) -> Option<Register> {
        // SAFETY: QEMU gives an array of `qemu_plugin_reg_descriptor` that the caller frees. QEMU
        // keeps the strings of the names.
        unsafe {
            let all = sys::qemu_plugin_get_registers();
            // Later versions have more behind the same beginning.
            let bytes = g_array_get_element_size(all) as usize;
            let (data, count) = ((*all).data, (*all).len as usize);
            let found = (0..count)
                .map(|i| data.add(i * bytes).cast::<sys::qemu_plugin_reg_descriptor>())
                .map(|descriptor| descriptor.read_unaligned())
                .find(|register| CStr::from_ptr(register.name) == name);
            g_array_unref(all);
            found.map(|register| Register(register.handle))
        }
    }

    /// The value of the register. Must be called in a callback registered with
    /// `CallbackReads::Registers`.
    pub(crate) fn value(self) -> Option<u64> {
        self.value_by(&mut ByteArray::new())
    }

    /// The same, by a buffer that is used again and again.
    #[inline]
    pub(crate) fn value_by(self, bytes: &mut ByteArray) -> Option<u64> {
        bytes.clear();
        // SAFETY: the handle came from QEMU and stays valid. QEMU grows the array as it needs.
        unsafe { sys::qemu_plugin_read_register(self.0, bytes.0) };
        bytes.first().map(u64::from_le_bytes)
    }
}

/// Reads N bytes at an address of the guest, in the address space that the vCPU uses now.
pub(crate) fn read_memory<const N: usize>(addr: u64) -> Option<[u8; N]> {
    let bytes = ByteArray::new();
    // SAFETY: QEMU checks the address, and grows the array to N bytes.
    match unsafe { sys::qemu_plugin_read_memory_vaddr(addr, bytes.0, N) } {
        true => bytes.first(),
        false => None,
    }
}

/// log2 of the bytes of an access.
#[inline]
pub(crate) fn size_log2(info: AccessInfo) -> u8 {
    // SAFETY: `info` is a number that QEMU gave to the current callback.
    unsafe { sys::qemu_plugin_mem_size_shift(info) as u8 }
}

/// A physical address, and whether it belongs to a device.
pub(crate) struct PhysicalPlace {
    pub addr: u64,
    pub is_device: bool,
}

/// The physical address of an access.
pub(crate) fn physical(info: AccessInfo, addr: u64) -> Option<PhysicalPlace> {
    // SAFETY: `info` belongs to the current callback. The handle is valid until the next call, and
    // is used at once.
    unsafe {
        let handle = sys::qemu_plugin_get_hwaddr(info, addr);
        (!handle.is_null()).then(|| PhysicalPlace {
            addr: sys::qemu_plugin_hwaddr_phys_addr(handle),
            is_device: sys::qemu_plugin_hwaddr_is_io(handle),
        })
    }
}

/// The version of the plugin API since which all callbacks get a pointer of the plugin's.
pub(crate) const API_WITH_USER_DATA: c_int = 7;

/// Whether QEMU has a function.
pub(crate) fn has_function(name: &CStr) -> bool {
    // SAFETY: the name ends with a zero byte; the address that is found is not used.
    unsafe { !libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()).is_null() }
}

fn gives_user_data() -> bool {
    crate::qemu_plugin_version.load(Ordering::Relaxed) >= API_WITH_USER_DATA
}

// As QEMU 11.1 declares them. Earlier versions take no third argument and do not look at it.
unsafe extern "C" {
    #[link_name = "qemu_plugin_register_vcpu_tb_trans_cb"]
    fn register_translation(
        id: PluginId,
        callback: unsafe extern "C" fn(usize, usize),
        user_data: *mut c_void,
    );
    #[link_name = "qemu_plugin_reset"]
    fn reset_plugin(id: PluginId, then: unsafe extern "C" fn(PluginId), user_data: PluginId);
}

/// What is called for a translation.
pub(crate) type OnTranslation = unsafe extern "C" fn(*mut sys::qemu_plugin_tb);

/// The callback of [`at_translation`]. A plugin has one.
static TRANSLATED: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Gets the plugin's id and the translation; since [`API_WITH_USER_DATA`], the translation first.
///
/// # Safety
/// Only QEMU may call this, at a translation.
unsafe extern "C" fn translated(first: usize, second: usize) {
    let translation = if gives_user_data() { first } else { second };
    let callback = TRANSLATED.load(Ordering::Relaxed);
    if !callback.is_null() {
        // SAFETY: `at_translation` has stored such a function; the translation is QEMU's.
        unsafe {
            let callback = std::mem::transmute::<*mut c_void, OnTranslation>(callback);
            callback(translation as *mut sys::qemu_plugin_tb);
        }
    }
}

/// Calls `callback` for every translation that QEMU makes from now on.
pub(crate) fn at_translation(id: PluginId, callback: OnTranslation) {
    TRANSLATED.store(callback as *mut c_void, Ordering::Relaxed);
    // SAFETY: QEMU gave the id. The callback is a function of this library, which stays loaded.
    unsafe { register_translation(id, translated, std::ptr::null_mut()) }
}

/// Calls `callback` when QEMU ends. Its arguments differ between versions of QEMU.
pub(crate) fn at_exit(id: PluginId, callback: unsafe extern "C" fn(PluginId, *mut c_void)) {
    // SAFETY: as in `at_translation`.
    unsafe { sys::qemu_plugin_register_atexit_cb(id, Some(callback), std::ptr::null_mut()) }
}

/// Drops all callbacks and all translations when the current translation ends, then calls `then`.
pub(crate) fn reset(id: PluginId, then: unsafe extern "C" fn(PluginId)) {
    // SAFETY: as in `at_translation`. The id comes back: since [`API_WITH_USER_DATA`] as what is
    // given here, before as the id.
    unsafe { reset_plugin(id, then, id) }
}

#[cfg(test)]
mod tests {
    use super::StoreCell;

    #[test]
    fn a_stored_number_is_found_at_any_of_the_first_eight_bytes() {
        for value in [0, 1, 2, 127, 128, 255, 256, 511, 512] {
            assert_eq!(StoreCell::stored(value, false), value.into());
            let stored = u128::from(StoreCell::stored(value, true));
            for at in 0..8 {
                assert_eq!(StoreCell::find(stored << (8 * at)), value.into(), "{value} at {at}");
            }
        }
    }
}
