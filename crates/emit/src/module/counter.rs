//! The code of a counter, and the section through which the code finds its counter.
//!
//! Input: the number of a counter. Output: the counter's code, the values of its fields, and the
//! unwinder's states in it.
//!
//! The counters lie in per-CPU memory that `kmod/counters.c` allocates when the group is installed.
//! `kmod/counters.c` finds [`section`]'s bytes in the module's data and writes the memory's
//! location there: a *cookie* for each 2 048 counters, since the kernel allocates at most 32 KB of
//! per-CPU memory at once.
//!
//! ```text
//! push %rax
//! mov  cookie(%rip), %rax
//! incq %gs:displacement(%rax)
//! pop  %rax
//! ```
//!
//! The code is correct at every place where the flags that `inc` changes are dead: the kernel has
//! no red zone below the stack pointer; `mov`, `push` and `pop` change no flag; a cookie is the
//! same for all CPUs; and one instruction increments the counter, so that no interrupt divides it.

use image::linked::forms::OrcForm;
use image::object::orc::OrcState;

/// Counters of one cookie: `KERNLANE_COUNTERS_A_COOKIE`, kmod/kernlane.h.
pub const COUNTERS_A_COOKIE: usize = 2048;
/// Counters of one group: `KERNLANE_MAX_COUNTERS`.
pub const MOST_COUNTERS: usize = 65_536;

/// The section's first and last bytes: `KERNLANE_COOKIES`.
const MAGIC: &[u8; 16] = b"kernlane cookies";
/// Offset of the first cookie in the section, behind the magic and the number of counters.
const FIRST_COOKIE: i64 = 24;

/// The code, its fields zero.
pub const CODE: [u8; 17] = [
    0x50, // push %rax
    0x48, 0x8b, 0x05, 0, 0, 0, 0, // mov cookie(%rip), %rax
    0x65, 0x48, 0xff, 0x80, 0, 0, 0, 0,    // incq %gs:displacement(%rax)
    0x58, // pop %rax
];
/// Offset of the field that names the cookie, relative to its end.
pub(crate) const COOKIE_FIELD: u32 = 4;
/// Offset of the displacement.
pub(crate) const DISPLACEMENT_FIELD: u32 = 12;
/// Offset of the first instruction behind the push.
pub(crate) const BEHIND_PUSH: u32 = 1;

/// The addend of the relocation by which a counter's code refers to its cookie in the section. The
/// field is relative to its own end.
pub(crate) fn cookie_addend(counter: usize) -> i64 {
    FIRST_COOKIE + 8 * (counter / COUNTERS_A_COOKIE) as i64 - 4
}

/// The distance in bytes from the cookie's per-CPU memory to a counter, little-endian.
pub(crate) fn displacement(counter: usize) -> [u8; 4] {
    ((counter % COUNTERS_A_COOKIE) as u32 * 8).to_le_bytes()
}

/// `struct kernlane_cookies` for this number of counters. Empty if there are none.
pub(crate) fn section(counters: usize) -> Vec<u8> {
    if counters == 0 {
        return Vec::new();
    }
    let mut data = MAGIC.to_vec();
    data.extend((counters as u64).to_le_bytes());
    data.resize(data.len() + 8 * counters.div_ceil(COUNTERS_A_COOKIE), 0);
    data.extend(MAGIC);
    data
}

/// The unwinder's state behind the push, if the state in front of it is `state`. `form` is that of
/// this kernel's states. `None` where the unwinder finds the frame neither by the stack pointer nor
/// by the frame pointer, so that no counter can stand there.
pub fn pushed(state: OrcState, form: OrcForm) -> Option<OrcState> {
    let [low, high, bp_low, bp_high, registers, kind] = state;
    if kind & 0x7 != form.call_frame {
        return None;
    }
    match registers & 0xf {
        by if by == form.frame_pointer => Some(state),
        by if by == form.stack_pointer => {
            let [low, high] = i16::from_le_bytes([low, high]).checked_add(8)?.to_le_bytes();
            Some([low, high, bp_low, bp_high, registers, kind])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of Linux 6.12.
    const FORM: OrcForm =
        OrcForm { call_frame: 2, stack_pointer: 5, frame_pointer: 4, frame_end: 1 };

    #[test]
    fn a_push_moves_only_what_is_found_by_the_stack_pointer() {
        let by_stack = [0x18, 0, 0xf0, 0xff, 0x15, 0x02];
        assert_eq!(pushed(by_stack, FORM), Some([0x20, 0, 0xf0, 0xff, 0x15, 0x02]));
        let by_frame = [0x10, 0, 0xf0, 0xff, 0x14, 0x02];
        assert_eq!(pushed(by_frame, FORM), Some(by_frame));
        // Indirectly by the stack pointer, by r10; registers of an interrupt; undefined.
        for other in [
            [8, 0, 0, 0, 0x09, 2],
            [0, 0, 0, 0, 0x06, 2],
            [0, 0, 0, 0, 0x05, 3],
            [0; 6],
            [0xff, 0x7f, 0, 0, 0x05, 2],
        ] {
            assert_eq!(pushed(other, FORM), None);
        }
        let old = [0x18, 0, 0, 0, 0x05, 0];
        let before_6_4 = OrcForm { call_frame: 0, ..FORM };
        assert_eq!(pushed(old, before_6_4), Some([0x20, 0, 0, 0, 0x05, 0]));
        assert_eq!((pushed(old, FORM), pushed([0; 6], before_6_4)), (None, None));
    }

    #[test]
    fn counters_have_cookies_and_displacements() {
        assert_eq!((cookie_addend(2047), displacement(2047)), (20, 16376u32.to_le_bytes()));
        assert_eq!((cookie_addend(2048), displacement(2048)), (28, [0; 4]));
        assert_eq!((section(0).len(), section(2048).len(), section(2049).len()), (0, 48, 56));
        assert_eq!(section(MOST_COUNTERS).len(), 24 + 8 * 32 + 16);
    }
}
