//! Tables of services: what the targets use of `kernlane-attribution`.

use services::annotations::Annotations;

pub fn annotations(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Annotations::parse(text);
}

pub fn annotation_seeds() -> Vec<Vec<u8>> {
    let shipped = include_str!("../../annotations/linux.toml");
    // A fuzzer finds more in a few tables than in 250 lines.
    let tables: Vec<&str> = shipped.split_inclusive("\n\n").collect();
    tables.chunks(12).map(|few| few.concat().into_bytes()).collect()
}
