//! How much of a profile fits another build of the kernel, as text.
//!
//! Input: the shares. Output: lines. This module computes nothing.

use image::BuildId;
use profile::carry::CarriedShare;
use std::fmt::Write;
use std::path::Path;

/// A line for the profile, and one for each function with much that was not found.
pub fn text(file: &Path, build_id: &BuildId, fit: &CarriedShare) -> String {
    let percent = |share: f64| 100.0 * share;
    let mut text = format!(
        "{}: of the build {}; {:.1} % of the executed code is found: {:.1} % in {} functions that \
         look as they did, {:.1} % in {} that were changed; {} were not found\n",
        file.display(),
        build_id.0,
        percent(fit.in_same + fit.in_changed),
        percent(fit.in_same),
        fit.same,
        percent(fit.in_changed),
        fit.changed,
        fit.lost
    );
    for (name, share) in &fit.most_lost {
        let _ = writeln!(text, "  {:>6.2} % of the executed code lost in {name}", percent(*share));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_say_what_is_found_and_what_is_lost() {
        let fit = CarriedShare {
            same: 90,
            changed: 3,
            lost: 1,
            in_same: 0.95,
            in_changed: 0.04,
            in_lost: 0.01,
            most_lost: vec![("vfs_read".into(), 0.01)],
        };
        let text = text(Path::new("net.klp"), &BuildId("5f3c".into()), &fit);
        let expected = "net.klp: of the build 5f3c; 99.0 % of the executed code is found: 95.0 % in \
                        90 functions that look as they did, 4.0 % in 3 that were changed; 1 were \
                        not found\n    1.00 % of the executed code lost in vfs_read\n";
        assert_eq!(text, expected);
    }
}
