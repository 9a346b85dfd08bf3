//! Machine files: what the targets use of `kernlane-execution`.

pub fn machines(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = execution::machine::parse(text, "machine.toml");
}

pub fn machine_seeds() -> Vec<Vec<u8>> {
    vec![
        include_bytes!("../../machines/torrellas-8k.toml").to_vec(),
        include_bytes!("../../machines/server-48k.toml").to_vec(),
    ]
}
