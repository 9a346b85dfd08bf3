//! Torrellas, Xia and Daigle 1998: Concentrix, a UNIX of Alliant's, on a multiprocessor.

use serde::Serialize;

/// The workloads (section 2.3).
pub const WORKLOADS: [&str; 4] = ["TRFD_4", "TRFD+Make", "ARC2D+Fsck", "Shell"];

/// The operating system's code (section 3).
pub const CODE_KB: u32 = 940;

/// What the paper says about a number: a value for each of [`WORKLOADS`], or one for all four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// By workload.
    Each([&'static str; 4]),
    /// Of all together.
    All(&'static str),
}

use Value::{All, Each};

/// Bytes of the operating system's code that run (table 1).
pub const EXECUTED_BYTES: Value = Each(["31866", "122710", "76228", "92908"]);
/// The same, as a share of all code.
pub const EXECUTED_BYTES_SHARE: Value = Each(["3.4 %", "13.1 %", "8.1 %", "9.9 %"]);
/// Executed blocks, as a share of all.
pub const EXECUTED_BLOCKS: Value = Each(["3.6 %", "13.4 %", "8.8 %", "10.4 %"]);
/// Executed functions, as a share of all (section 3.2).
pub const EXECUTED_FUNCTIONS_SHARE: Value = All("26 %");
/// Entries by interrupts (table 1).
pub const INTERRUPTS: Value = Each(["76.0 %", "65.7 %", "73.8 %", "29.7 %"]);
/// Entries by page faults.
pub const PAGE_FAULTS: Value = Each(["23.0 %", "21.3 %", "21.9 %", "12.0 %"]);
/// Entries by system calls.
pub const SYSTEM_CALLS: Value = Each(["0.0 %", "11.2 %", "2.4 %", "54.7 %"]);
/// Other entries.
pub const OTHER_ENTRIES: Value = Each(["1.0 %", "1.8 %", "1.9 %", "3.6 %"]);
/// Arcs that are taken with a probability of 0.99 or more (figure 3).
pub const ARCS_NEARLY_ALWAYS: Value = All("73.6 %");
/// Arcs that are taken with 0.01 or less.
pub const ARCS_NEARLY_NEVER: Value = All("6.9 %");
/// Loops without calls (figure 4).
pub const LOOPS_WITHOUT_CALLS: Value = All("156");
/// Their part of what is fetched (table 3).
pub const THEIR_FETCHES: Value = Each(["34.5 %", "28.9 %", "31.5 %", "39.4 %"]);
/// Their part of the executed code.
pub const THEIR_EXECUTED_CODE: Value = Each(["3.9 %", "2.9 %", "2.7 %", "3.0 %"]);
/// Their part of all code.
pub const THEIR_CODE: Value = Each(["0.1 %", "0.4 %", "0.2 %", "0.3 %"]);
/// Of them, those with 6 iterations or fewer (figure 4a).
pub const UP_TO_6_ITERATIONS: Value = All("50 %");
/// Those with 25 iterations or fewer.
pub const UP_TO_25_ITERATIONS: Value = All("75 %");
/// Bytes of the largest (figure 4b).
pub const LARGEST_LOOP_BYTES: Value = All("300");
/// Loops with calls (figure 5).
pub const LOOPS_WITH_CALLS: Value = All("71");
/// Their iterations, the median (figure 5a).
pub const ITERATIONS_WITH_CALLS: Value = All("10 or less");
/// Their bytes with callees, the median (figure 5b).
pub const BYTES_WITH_CALLEES: Value = All("2048");
/// Executed functions (figure 6).
pub const EXECUTED_FUNCTIONS: Value = All("600");
/// Calls that go to the ten most called functions (figure 6).
pub const TEN_MOST_CALLED: Value = All("most");
/// Of these, those called again within 100 words (figure 7).
pub const AGAIN_WITHIN_100: Value = All("25 %");
/// Within 1000 words.
pub const AGAIN_WITHIN_1000: Value = All("70 %");
/// Within 10000 words; the paper has no number.
pub const AGAIN_WITHIN_10000: Value = All("-");
/// Later in the same stay; the paper has no number.
pub const AGAIN_LATER: Value = All("-");
/// Not again in the stay.
pub const NOT_AGAIN: Value = All("9 %");

/// What the paper says about one of its figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PaperFigure {
    /// The number of the figure.
    pub figure: &'static str,
    /// What the paper says.
    pub says: &'static str,
}

/// From sections 5.1 to 5.5. The figures are drawings; these are the numbers in the text.
pub const FIGURES: [PaperFigure; 7] = [
    PaperFigure {
        figure: "11",
        says: "C-H 43-62 % of Base's misses, OptS 24-53 % and 25 % fewer than C-H, OptL slightly \
               more than OptS, OptA 11 % fewer than OptS",
    },
    PaperFigure {
        figure: "12",
        says: "MainSeq and SelfConfFree: 50-65 % of the references, 67-83 % of Base's misses \
               (Shell 33 %); loops miss practically never; OptS eliminates the misses of \
               SelfConfFree",
    },
    PaperFigure {
        figure: "13",
        says: "the peaks fall from Base to C-H to OptS, where they are all very small",
    },
    PaperFigure {
        figure: "14",
        says: "Base misses 0.87-6.75 %; C-H 40-60 % less; up to 16 KB OptS 20-40 % less than C-H; \
               at 32 KB the two come close; optimized 0.12-3.87 %; with a penalty of 30 cycles \
               10-25 % faster",
    },
    PaperFigure {
        figure: "15",
        says: "areas of 0, 376, 1286 and 2514 bytes; the cut-off of 40 % is best or as good as \
               the best in over half of the cases; larger caches want smaller areas",
    },
    PaperFigure {
        figure: "16",
        says: "OptS 59 % below Base with lines of 16 bytes, 70 % with 128; 55 % direct-mapped, 41 \
               % with 8 ways; direct-mapped OptS misses less than 8-way Base",
    },
    PaperFigure {
        figure: "17",
        says: "Sep: more misses than OptA in all workloads; Resv: slightly more than OptA; Call: \
               20-100 % more kernel misses than OptA",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(value: Value) -> [f64; 4] {
        let Each(each) = value else { panic!("{value:?} is one number") };
        each.map(|text| text.trim_end_matches(" %").parse().unwrap())
    }

    /// The paper's own numbers agree, up to their rounding: a mistyped one does not.
    #[test]
    fn the_numbers_agree_with_themselves() {
        let entries = [INTERRUPTS, PAGE_FAULTS, SYSTEM_CALLS, OTHER_ENTRIES].map(numbers);
        for at in 0..WORKLOADS.len() {
            let sum: f64 = entries.iter().map(|entry| entry[at]).sum();
            assert!((sum - 100.0).abs() < 0.15, "{}: {sum} %", WORKLOADS[at]);
            let bytes = numbers(EXECUTED_BYTES)[at] / f64::from(CODE_KB) / 1000.0;
            let difference = 100.0 * bytes - numbers(EXECUTED_BYTES_SHARE)[at];
            assert!(difference.abs() < 0.1, "{}: {difference}", WORKLOADS[at]);
        }
        assert_eq!(FIGURES.map(|it| it.figure), ["11", "12", "13", "14", "15", "16", "17"]);
    }
}
