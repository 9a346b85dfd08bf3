//! Nellans, Balasubramonian and Brunvand 2005: a 486 at 33 MHz and a Pentium 4 at 3.0 GHz.
//!
//! P is how many times faster the newer machine is, T the ratio of technology, A = P / T the part
//! of the architecture. Waiting for input is part of `poll`, `select`, `read` and `waitpid`.

use serde::Serialize;
use std::fmt;

/// T: the decrease of the FO4 delay from the 486 to the Pentium 4 (section 3).
pub const TECHNOLOGY: f64 = 11.0;
/// T by the clocks instead: 33 MHz and 3.0 GHz (section 3).
pub const CLOCKS: f64 = 3000.0 / 33.0;
/// P of whole programs (section 3).
pub const WHOLE: f64 = 192.2;
/// P of the programs' part in the kernel (section 3.1).
pub const KERNEL: f64 = 46.04;

/// The share of instructions in supervisor mode, in percent (section 2).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SupervisorShare {
    /// The average of the workloads in table 1.
    pub average: f64,
    /// The least of interactive workloads, by the text.
    pub interactive: f64,
    /// SPECint and SPECfp of SPEC CPU2000 (table 2).
    pub spec: f64,
}

/// The shares in tables 1 and 2, and in the text about interactive workloads.
pub const SUPERVISOR_SHARE: SupervisorShare =
    SupervisorShare { average: 44.85, interactive: 38.0, spec: 5.0 };

impl fmt::Display for SupervisorShare {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SupervisorShare { average, interactive, spec } = self;
        write!(
            out,
            "{average} % on average, at least {interactive} % when interactive, {spec} % in SPEC \
             CPU2000"
        )
    }
}

/// A program, and its P by real, user and system time (table 3).
pub type Program = (&'static str, [f64; 3]);
/// A system call, its P and its A (table 4).
pub type Call = (&'static str, [f64; 2]);

/// Table 3.
pub const PROGRAMS: [Program; 5] = [
    ("crafty", [240.91, 251.01, 14.0]),
    ("twolf", [143.74, 150.38, 49.0]),
    ("mesa", [189.14, 204.02, 56.0]),
    ("art", [193.97, 209.67, 34.0]),
    ("Linux Kernel Compile", [196.66, 218.18, 77.2]),
];

/// Table 4.
pub const CALLS: [Call; 25] = [
    ("brk", [43.0, 3.90]),
    ("close", [15.0, 1.36]),
    ("execve", [7.0, 0.63]),
    ("fcntl64", [62.0, 5.63]),
    ("fork", [2.0, 0.18]),
    ("fstat64", [183.0, 16.63]),
    ("getdents64", [50.0, 4.54]),
    ("getpid", [49.0, 4.45]),
    ("getrlimit", [59.0, 5.36]),
    ("ioctl", [29.0, 2.63]),
    ("mprotect", [81.0, 7.36]),
    ("munmap", [33.0, 3.0]),
    ("newuname", [44.0, 4.0]),
    ("open", [0.0, 0.0]),
    ("pipe", [79.0, 7.18]),
    ("poll", [1048.0, 95.27]),
    ("read", [239.0, 21.72]),
    ("rt_sigaction", [206.0, 18.72]),
    ("rt_sigprocmask", [178.0, 16.18]),
    ("select", [34.0, 3.09]),
    ("sigreturn", [76.0, 6.90]),
    ("stat64", [5.0, 0.45]),
    ("time", [0.0, 0.0]),
    ("waitpid", [33305.0, 3027.72]),
    ("write", [0.0, 0.0]),
];

/// A row of table 3.
pub fn program(name: &str) -> Option<Program> {
    PROGRAMS.into_iter().find(|(program, _)| *program == name)
}

/// A row of table 4.
pub fn call(name: &str) -> Option<Call> {
    CALLS.into_iter().find(|(call, _)| *call == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_one_line_of_text() {
        assert_eq!(
            SUPERVISOR_SHARE.to_string(),
            "44.85 % on average, at least 38 % when interactive, 5 % in SPEC CPU2000"
        );
    }

    /// The paper's own numbers hold P = T × A, up to their rounding: a mistyped one does not.
    #[test]
    fn the_numbers_agree_with_themselves() {
        for (call, [speedup, architecture]) in CALLS {
            let difference = speedup / TECHNOLOGY - architecture;
            assert!((0.0..0.012).contains(&difference), "{call}: {difference}");
        }
        // P of the kernel's part is the mean of the system times, and P of whole programs nearly
        // that of the real times.
        let mean = |at: usize| {
            PROGRAMS.iter().map(|(_, speedups)| speedups[at]).sum::<f64>() / PROGRAMS.len() as f64
        };
        assert!((mean(2) - KERNEL).abs() < 0.005, "{}", mean(2));
        assert!((mean(0) - WHOLE).abs() < 1.0, "{}", mean(0));
    }

    #[test]
    fn rows_are_found_by_name() {
        assert_eq!(call("getpid"), Some(("getpid", [49.0, 4.45])));
        assert_eq!(program("mesa"), Some(("mesa", [189.14, 204.02, 56.0])));
        assert_eq!((call("uname"), program("gcc")), (None, None));
    }
}
