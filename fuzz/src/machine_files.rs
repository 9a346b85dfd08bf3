//! Machine files: what the targets use of `kernlane-machines`.

pub fn machines(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = machines::Machine::parse(text, "machine.toml");
}

/// A machine with small caches, one with an in-order pipeline, one with an out-of-order core, and
/// one with several CPUs.
pub fn machine_seeds() -> Vec<Vec<u8>> {
    [
        include_str!("../../machines/torrellas-8k.toml"),
        include_str!("../../machines/server-48k.toml"),
        include_str!("../../machines/zen4.toml"),
        include_str!("../../machines/simos-1994-8.toml"),
    ]
    .map(with_short_sources)
    .to_vec()
}

/// The sources of the numbers would make some files longer than an input may be.
fn with_short_sources(text: &str) -> Vec<u8> {
    const BEGIN: &str = "source = \"";
    let shorten = |line: &str| match line.split_once(BEGIN) {
        Some((number, source)) => {
            let rest = source.split_once('"').map_or("", |(_, rest)| rest);
            format!("{number}{BEGIN}x\"{rest}\n")
        }
        None => format!("{line}\n"),
    };
    text.lines().filter(|line| !line.starts_with('#')).map(shorten).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_machines_and_fit_into_an_input() {
        for seed in machine_seeds() {
            assert!(seed.len() <= crate::targets::LONGEST, "{}", seed.len());
            machines::Machine::parse(std::str::from_utf8(&seed).unwrap(), "seed").unwrap();
        }
    }
}
