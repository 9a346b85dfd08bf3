//! The programs of Debian that the processor and the model are compared on: the same files of the
//! same packages run in the guest and, in a root file system of their own, on this machine.
//!
//! Output: groups of programs, each group a workload. This module runs nothing.
//!
//! To add a program: an entry in a group. It must do the same whenever it runs, print no errors,
//! execute 10 to 300 million instructions, and spend nearly all of them in user mode.

/// Programs that run in one guest.
pub(super) struct Group {
    pub name: &'static str,
    pub packages: &'static [&'static str],
    /// Files in `/guest`: name and text.
    pub files: &'static [(&'static str, &'static str)],
    /// Makes the inputs of the programs, in `/guest`.
    pub set_up: &'static str,
    pub programs: &'static [Program],
}

/// A program with its arguments.
pub(super) struct Program {
    pub name: &'static str,
    pub command: &'static [&'static str],
    /// The file that it reads from standard input.
    pub input: Option<&'static str>,
}

const fn program(name: &'static str, command: &'static [&'static str]) -> Program {
    Program { name, command, input: None }
}

/// The environment of every program. QEMU's processor has fewer extensions than others, so the C
/// library and OpenSSL may use only those that both have. No result depends on a random seed.
pub(super) const ENVIRONMENT: [(&str, &str); 8] = [
    ("PATH", "/usr/bin:/bin"),
    ("HOME", "/guest"),
    ("LC_ALL", "C"),
    (
        "GLIBC_TUNABLES",
        "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD,-AVX2,-BMI2,-ERMS,-FSRM:\
         glibc.cpu.x86_non_temporal_threshold=0x10000000",
    ),
    ("OPENSSL_ia32cap", ":~0xffffffffffffffff"),
    ("PERL_HASH_SEED", "0"),
    ("PYTHONHASHSEED", "0"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
];

/// The square of a prime number, and the product of two.
const SQUARE: &str = "18446744030759878681";
const PRODUCT: &str = "18446743979220271189";
const PATTERN: &str = "/(w[0-9a-f]).*\\1.*\\1/p";
const EXCHANGE: &str = "s/w\\([0-9]*\\)a/<\\1>/g";
const CAMELLIA: [&str; 9] =
    ["/usr/bin/openssl", "enc", "-camellia-256-cbc", "-K", KEY, "-iv", IV, "-in", "text"];
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const IV: &str = "00000000000000000000000000000000";
const TEXT: (&str, &str) = ("text.awk", include_str!("programs/text.awk"));

pub(super) const GROUPS: [Group; 4] = [
    Group {
        name: "compressors",
        packages: &["dash", "coreutils", "mawk", "gzip", "bzip2", "xz-utils", "zstd", "lz4"],
        files: &[TEXT],
        set_up: "mawk -v words=130000 -f text.awk > text\n\
                 head -c 200000 text > small\n\
                 cat text text text | gzip -1 > text.gz\n\
                 bzip2 < small > small.bz2\n\
                 xz -2 < text > text.xz\n",
        programs: &[
            program("gzip -6", &["/usr/bin/gzip", "-6", "-c", "text"]),
            program("gzip -d", &["/usr/bin/gzip", "-d", "-c", "text.gz"]),
            program("bzip2", &["/usr/bin/bzip2", "-c", "small"]),
            program("bzip2 -d", &["/usr/bin/bzip2", "-d", "-c", "small.bz2"]),
            program("xz -2", &["/usr/bin/xz", "-2", "-T1", "-c", "small"]),
            program("xz -d", &["/usr/bin/xz", "-d", "-T1", "-c", "text.xz"]),
            program("zstd -6", &["/usr/bin/zstd", "-6", "--single-thread", "-q", "-c", "text"]),
            program("lz4 -9", &["/usr/bin/lz4", "-9", "-q", "-c", "small"]),
        ],
    },
    Group {
        name: "interpreters",
        packages: &["dash", "coreutils", "mawk", "perl-base", "python3-minimal", "lua5.4", "bc"],
        files: &[
            TEXT,
            ("words.pl", include_str!("programs/words.pl")),
            ("queens.py", include_str!("programs/queens.py")),
            ("sieve.lua", include_str!("programs/sieve.lua")),
            ("words.awk", include_str!("programs/words.awk")),
            ("collatz.sh", include_str!("programs/collatz.sh")),
            ("pi.bc", include_str!("programs/pi.bc")),
        ],
        set_up: "mawk -v words=130000 -f text.awk > text\nhead -c 200000 text > small\n",
        programs: &[
            program("perl", &["/usr/bin/perl", "words.pl"]),
            program("python3", &["/usr/bin/python3.11", "-S", "queens.py"]),
            program("lua", &["/usr/bin/lua5.4", "sieve.lua"]),
            program("mawk", &["/usr/bin/mawk", "-f", "words.awk", "small"]),
            program("dash", &["/usr/bin/dash", "collatz.sh"]),
            program("bc", &["/usr/bin/bc", "-l", "pi.bc"]),
        ],
    },
    Group {
        name: "compilers",
        packages: &["dash", "coreutils", "mawk", "cpp-12", "tcc", "binutils"],
        files: &[("source.awk", include_str!("programs/source.awk"))],
        set_up: "mawk -v functions=5 -f source.awk > small.c\n\
                 mawk -v functions=200 -f source.awk > large.c\n\
                 /usr/lib/gcc/x86_64-linux-gnu/12/cc1 -quiet -ffreestanding -O1 large.c -o large.s\n",
        programs: &[
            program(
                "cc1 -O2",
                &[
                    "/usr/lib/gcc/x86_64-linux-gnu/12/cc1",
                    "-quiet",
                    "-ffreestanding",
                    "-O2",
                    "small.c",
                    "-o",
                    "small.s",
                ],
            ),
            program("tcc", &["/usr/bin/tcc", "-c", "large.c", "-o", "large.tcc.o"]),
            program("as", &["/usr/bin/as", "large.s", "-o", "large.o"]),
        ],
    },
    Group {
        name: "tools",
        packages: &["dash", "coreutils", "mawk", "sed", "jq", "sqlite3", "openssl"],
        files: &[
            TEXT,
            ("table.sql", include_str!("programs/table.sql")),
            ("reduce.jq", include_str!("programs/reduce.jq")),
        ],
        set_up: "mawk -v words=130000 -f text.awk > text\n\
                 tr ' ' '\\n' < text | head -n 30000 > lines\nhead -c 100000 text > small\n\
                 mawk 'BEGIN { printf \"[\"; for (i = 1; i < 800; i++) \
                 printf \"{\\\"id\\\":%d,\\\"value\\\":%d},\", i, i * 7919 % 1009; \
                 print \"{\\\"id\\\":0,\\\"value\\\":1}]\" }' > table.json\n",
        programs: &[
            program("sort", &["/usr/bin/sort", "--parallel=1", "lines"]),
            program("md5sum", &["/usr/bin/md5sum", "text", "text", "text", "text"]),
            program("sha256sum", &["/usr/bin/sha256sum", "text"]),
            program("od", &["/usr/bin/od", "-A", "x", "-t", "x1", "-N", "100000", "text"]),
            program("factor", &["/usr/bin/factor", SQUARE, PRODUCT, SQUARE, PRODUCT]),
            program("sed -E", &["/usr/bin/sed", "-n", "-E", "-e", PATTERN, "small"]),
            program("sed", &["/usr/bin/sed", "-e", EXCHANGE, "-e", "s/ /_/3", "text"]),
            Program {
                name: "sqlite3",
                command: &["/usr/bin/sqlite3", ":memory:"],
                input: Some("/guest/table.sql"),
            },
            program("jq", &["/usr/bin/jq", "-c", "-f", "reduce.jq", "table.json"]),
            program("openssl sha3", &["/usr/bin/openssl", "dgst", "-sha3-256", "text"]),
            program("openssl camellia", &CAMELLIA),
        ],
    },
];

/// A word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The workload of a group, as the text of its file. `/guest/begin` and `/guest/end` execute the
/// marks.
pub(super) fn workload(group: &Group) -> String {
    let mut run = String::new();
    for (name, value) in ENVIRONMENT {
        run += &format!("export {name}={}\n", quoted(value));
    }
    for program in group.programs {
        let words: Vec<String> = program.command.iter().map(|word| quoted(word)).collect();
        let input = program.input.unwrap_or("/dev/null");
        // Once to warm, as the driver does.
        let command = format!("{} < {input} > /dev/null", words.join(" "));
        run += &format!("{command}\n/guest/begin\n{command}\n/guest/end\n");
    }
    let packages: Vec<String> = group.packages.iter().map(|name| format!("{name:?}")).collect();
    format!(
        "about = 'programs that are timed on a processor: {}'\npackages = [{}]\nmemory = 1024\n\
         set-up = {:?}\nrun = {run:?}\ncheck = 'test ! -s /run/output'\n",
        group.name,
        packages.join(", "),
        group.set_up
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn programs_have_names_of_their_own() {
        let names: Vec<&str> =
            GROUPS.iter().flat_map(|group| group.programs).map(|program| program.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(names.len() >= 20);
    }

    #[test]
    fn groups_are_workloads() {
        for group in &GROUPS {
            let parsed = guest::Workload::parse(group.name, &workload(group)).unwrap();
            assert_eq!(parsed.set_up, group.set_up);
            assert_eq!(parsed.run.matches("/guest/begin").count(), group.programs.len());
            for program in group.programs {
                assert!(parsed.run.contains(&quoted(program.command[0])), "{}", program.name);
            }
        }
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
