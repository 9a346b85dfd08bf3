//! How a program ends: its exit status, and the one message that says why.
//!
//! Takes what a command gave; gives the exit status. Writes what is still buffered to standard
//! output. Never ends the process itself.

use crate::{interrupt, note, stdout};
use anyhow::Result;
use std::process::ExitCode;

/// What a shell gives for a program that SIGPIPE has ended. `kernlane … | head` ends with this
/// status in every command, and with no message. The signal itself stays ignored, since sockets to
/// QEMU must not end the tool.
const READER_GONE: u8 = 128 + 13;

/// The exit status of `program`: the command's own, or 2 with a message.
pub fn status(program: &str, done: Result<ExitCode>) -> ExitCode {
    match done.and_then(|code| stdout::finish().map(|()| code)) {
        Ok(code) => code,
        Err(error) if stdout::reader_is_gone(&error) => ExitCode::from(READER_GONE),
        Err(error) => {
            // Programs that Ctrl-C ended fail, too; then that is not the news.
            let error = interrupt::check().err().unwrap_or(error);
            note!("{program}: {error:#}");
            ExitCode::from(2)
        }
    }
}
