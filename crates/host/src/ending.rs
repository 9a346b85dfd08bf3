//! How a program ends: its exit status, and the one message that says why.
//!
//! Input: the work of a program. Output: the exit status. While the program works, a person sees
//! what it reports. This module flushes standard output, and never ends the process itself.

use crate::progress::Observer;
use crate::terminal::Terminal;
use crate::{interrupt, stdout};
use anyhow::Result;
use std::process::ExitCode;

/// The status that a shell gives for a program that SIGPIPE has ended. `kernlane … | head` ends
/// with this status in every command, and with no message. The signal itself stays ignored, since
/// sockets to QEMU must not end the tool.
const READER_GONE: u8 = 128 + 13;

/// Runs `work`, all of the program, and gives its exit status: that of `work`, or 2 with a message.
pub fn run(program: &str, work: impl FnOnce() -> Result<ExitCode>) -> ExitCode {
    Terminal::observe();
    match work().and_then(|code| stdout::finish().map(|()| code)) {
        Ok(code) => code,
        Err(error) if stdout::reader_is_gone(&error) => ExitCode::from(READER_GONE),
        Err(error) => {
            // Ctrl-C also makes the started programs fail; then the message is the interrupt.
            let error = interrupt::check().err().unwrap_or(error);
            Terminal.remark(&format!("{program}: {error:#}"));
            ExitCode::from(2)
        }
    }
}
