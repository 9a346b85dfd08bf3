//! The list of all targets.
//!
//! To add one: a line in [`ALL`], and the name in `fuzz/tests/targets.rs`.

use crate::{
    attribution_files, boot, check_readers, emit_check, exchange_files, image_readers,
    machine_files, module_files, recording, text_files,
};

/// A function of bytes that must not fail, and bytes to begin with.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Whether the bytes are what code under test reads, and not the choices of a generator.
    pub read: bool,
}

/// Longer inputs are cut off.
pub const LONGEST: usize = 8192;

const fn target(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, run, seeds, read: true }
}

/// Every target; `cargo xtask fuzz` runs them in this order, the fast ones first.
pub const ALL: [Target; 27] = [
    target("counters", text_files::counters, text_files::counter_seeds),
    target("layouts", text_files::layouts, text_files::layout_seeds),
    target("maps", text_files::maps, text_files::map_seeds),
    target("btf", image_readers::btf, image_readers::btf_seeds),
    target("perf_text", exchange_files::perf_text, exchange_files::perf_text_seeds),
    target(
        "sample_profiles",
        exchange_files::sample_profiles,
        exchange_files::sample_profile_seeds,
    ),
    target("bolt_text", exchange_files::bolt_text, exchange_files::bolt_text_seeds),
    target("profiles", text_files::profiles, text_files::profile_seeds),
    target("results", text_files::results, text_files::result_seeds),
    target("perf_data", exchange_files::perf_data, exchange_files::perf_data_seeds),
    target("import_files", exchange_files::import_files, exchange_files::import_file_seeds),
    target("recording_payloads", recording::recording_payloads, recording::payload_seeds),
    target("recordings", recording::recordings, recording::recording_seeds),
    target("boot_images", boot::boot_images, boot::boot_image_seeds),
    target("workloads", boot::workloads, boot::workload_seeds),
    target("programs", boot::programs, boot::program_seeds),
    target("container_images", boot::container_images, boot::container_image_seeds),
    target("machines", machine_files::machines, machine_files::machine_seeds),
    target("annotations", attribution_files::annotations, attribution_files::annotation_seeds),
    target("linked_kernels", image_readers::linked_kernels, image_readers::linked_seeds),
    target("vmlinux_files", image_readers::vmlinux_files, image_readers::linked_seeds),
    target("objects", image_readers::objects, image_readers::object_seeds),
    target("modules", module_files::modules, module_files::module_seeds),
    target("checked_kernels", check_readers::checked_kernels, image_readers::linked_seeds),
    target("kernel_tables", image_readers::kernel_tables, image_readers::table_seeds),
    target("checked_tables", check_readers::checked_tables, check_readers::checked_table_seeds),
    Target { read: false, ..target("relinked", emit_check::relinked, emit_check::seeds) },
];

/// The target of that name.
pub fn find(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}
