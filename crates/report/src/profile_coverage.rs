//! What a profile covers, as text.
//!
//! Input: a [`ProfileCoverage`]. Output: text. This module computes nothing.

use profile::coverage::ProfileCoverage;

/// Two lines: what was counted, and what is estimated from it.
pub fn text(coverage: &ProfileCoverage) -> String {
    let ProfileCoverage {
        blocks,
        functions,
        executions,
        least,
        known_executions,
        known_blocks,
        unbalanced,
        ..
    } = coverage;
    format!(
        "the profile has {blocks} blocks of {functions} functions, with {executions} executions; \
         the least count is {least}\n\
         estimated: it knows {:.1} % of the executions and {:.0} % of the executed blocks; {:.1} % \
         of the flow does not fit\n",
        100.0 * known_executions,
        100.0 * known_blocks,
        100.0 * unbalanced
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_says_what_it_covers() {
        let coverage = ProfileCoverage {
            blocks: 1200,
            functions: 300,
            executions: 90_000,
            least: 10,
            seen_once: 400,
            known_executions: 0.9556,
            known_blocks: 0.614,
            unbalanced: 0.1234,
        };
        assert_eq!(
            text(&coverage),
            "the profile has 1200 blocks of 300 functions, with 90000 executions; the least count \
             is 10\nestimated: it knows 95.6 % of the executions and 61 % of the executed blocks; \
             12.3 % of the flow does not fit\n"
        );
    }
}
