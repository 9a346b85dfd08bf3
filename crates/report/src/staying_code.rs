//! How much of what ran lies in code that no layout moves, as text.
//!
//! Input: a [`StayingCode`]. Output: text. This module computes nothing.

use profile::staying::StayingCode;

/// One line: the share of the executed kernel instructions, and the parts by reason.
pub fn text(staying: &StayingCode) -> String {
    let parts: Vec<String> = (staying.by_reason.iter())
        .map(|part| format!("{:.1} % {}", 100.0 * part.share, part.reason.words()))
        .collect();
    let by_reason =
        if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    format!(
        "{:.1} % of the executed kernel instructions lie in code that stays{by_reason}\n",
        100.0 * staying.share
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ordinary::ReservedCode;
    use profile::staying::StayingPart;

    #[test]
    fn code_that_stays_is_named_by_reason() {
        let part = |reason, share| StayingPart { reason, share };
        let by_reason = vec![part(ReservedCode::Locks, 0.081), part(ReservedCode::Entry, 0.0202)];
        let staying = StayingCode { share: 0.1012, by_reason };
        assert_eq!(
            text(&staying),
            "10.1 % of the executed kernel instructions lie in code that stays: 8.1 % the locks' own \
             code, 2.0 % entry code\n"
        );
        assert_eq!(
            text(&StayingCode::default()),
            "0.0 % of the executed kernel instructions lie in code that stays\n"
        );
    }
}
