//! Everything that is neither plain cargo nor for users: the demo, the demo kernels, and the tests,
//! studies and judges of the crates beside this one.

mod cli;
mod demo;
mod fuzz;
mod test;

use std::process::ExitCode;

fn main() -> ExitCode {
    host::terminal::Terminal::observe();
    match cli::run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(help_or_wrong_words) => {
                // Nothing is left to do if the terminal is gone.
                let _ = help_or_wrong_words.print();
                ExitCode::from(u8::try_from(help_or_wrong_words.exit_code()).unwrap_or(2))
            }
            Err(error) => {
                // Ctrl-C also makes the started programs fail; then the message is the interrupt.
                let error = host::interrupt::check().err().unwrap_or(error);
                eprintln!("xtask: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}
