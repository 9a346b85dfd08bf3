//! Golden texts: what commands printed when somebody last read it.

use std::path::PathBuf;

/// Compares `text` with the file of this name beside this one. With `BLESS=1`, writes it first.
pub(crate) fn compare(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(text, golden, "{} differs; BLESS=1 writes it anew", path.display());
}
