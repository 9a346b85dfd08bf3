//! Speer, Kumar and Partridge 1994: HP-UX on an HP 9000/720, its kernel laid out by a profile.
//!
//! An improvement says how much longer the original takes, in percent of the optimized time.

/// A benchmark, and what was measured of the whole.
pub type Whole = (&'static str, &'static str);

/// McKusick's benchmarks (section 3.1).
pub const MCKUSICK: Whole = ("mckusick", "4.8 %");
/// OSBENCH (section 3.2).
pub const OSBENCH: Whole = ("osbench", "0 to 17 %, no figure of the whole");
/// KBX (section 3.3).
pub const KBX: Whole = ("kbx", "4 % of real and of system time");
/// netperf (section 3.4).
pub const NETPERF: Whole = ("netperf", "29 to 35 % by TCP, 20 to 23 % by UDP, over loopback");

/// A row, and its improvement in percent.
pub type Row = (&'static str, &'static str);

/// The rows of sections 3.2 to 3.4. A star stands where the standard deviation was above the
/// improvement.
pub const ROWS: [Row; 36] = [
    ("getpid()", "0"),
    ("ioctl(0, TCGETA, &termio)", "23"),
    ("gettimeofday(&tp, NULL)", "-3"),
    ("sbrk(0)", "0"),
    ("umask(0)", "7"),
    ("switch, 20 bytes by a pipe", "4"),
    ("write/read(fdpipe, BUF, 20)", "2"),
    ("write/read(fdpipe, BUF, 1024)", "2"),
    ("write/read(fdpipe, BUF, 8192)", "4"),
    ("creat() and close()", "14"),
    ("pipe() and two close()", "8"),
    ("fork(), exit(0)", "2"),
    ("vfork(), _exit(0)", "2"),
    ("fork(), execve()", "6"),
    ("fork(), execve() with 1000 arguments", "5"),
    ("vfork(), execve()", "5"),
    ("vfork(), execve() with 1000 arguments", "5"),
    ("read(fd_file, BUF, 20) from cache", "-1"),
    ("read(fd_file, BUF, 1024) from cache", "-0.5"),
    ("read(fd_file, BUF, 8192) from cache", "0.3"),
    ("write/read(inet_socket, BUF, 20)", "7"),
    ("write/read(inet_socket, BUF, 1024)", "14"),
    ("write/read(inet_socket, BUF, 8192)", "8"),
    ("write/read(unix_socket, BUF, 20)", "9"),
    ("write/read(unix_socket, BUF, 1024)", "5"),
    ("write/read(unix_socket, BUF, 8192)", "6"),
    ("open_close", "*"),
    ("read", "5.3"),
    ("select1/0", "12.8"),
    ("select10/5", "5.7"),
    ("select15/15", "*"),
    ("1 TCP", "35"),
    ("4 TCP", "35"),
    ("16 TCP", "29"),
    ("1 UDP", "20"),
    ("16 UDP", "21"),
];

/// A row by its name.
pub fn row(name: &str) -> Option<Row> {
    ROWS.into_iter().find(|(row, _)| *row == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_a_number_or_a_star() {
        for (name, percent) in ROWS {
            assert_eq!(row(name), Some((name, percent)));
            assert!(percent == "*" || percent.parse::<f64>().is_ok(), "{name}: {percent}");
        }
        assert_eq!(row("umask(0)"), Some(("umask(0)", "7")));
        assert_eq!(row("umask"), None);
    }
}
