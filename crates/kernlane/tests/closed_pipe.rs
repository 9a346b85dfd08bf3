//! Output that nobody reads ends the tool like any other program of a pipe: no panic, no message.

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_has_gone_is_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = Command::new(env!("CARGO_BIN_EXE_kernlane"))
        .arg("doctor")
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(141), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
}
