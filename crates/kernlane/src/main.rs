//! `kernlane`: see `cli.rs` for what can be typed and `run.rs` for what it means.

use clap::Parser;
use kernlane::{cli, interrupt, run};
use std::panic::PanicHookInfo;
use std::process::ExitCode;

fn main() -> ExitCode {
    end_when_nobody_reads();
    match run::run(cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            // Programs that Ctrl-C ended fail, too; then that is not the news.
            let error = interrupt::check().err().unwrap_or(error);
            eprintln!("kernlane: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// What a shell gives for a program that SIGPIPE has ended: `kernlane … | head` is no failure. The signal itself stays ignored, since sockets to
/// QEMU must not end the tool.
const READER_GONE: i32 = 128 + 13;

fn end_when_nobody_reads() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match is_closed_pipe(panic) {
        true => std::process::exit(READER_GONE),
        false => usual(panic),
    }));
}

/// Whether `println!` could not print because nobody reads; the library says so in this message alone.
fn is_closed_pipe(panic: &PanicHookInfo<'_>) -> bool {
    let message = panic.payload().downcast_ref::<String>();
    message.is_some_and(|message| message.starts_with("failed printing to stdout") && message.contains("Broken pipe"))
}
