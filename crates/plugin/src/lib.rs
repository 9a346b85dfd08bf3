//! The library that QEMU loads.
