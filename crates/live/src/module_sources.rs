//! The sources of the kernel module through which groups are installed (`kmod/`).

/// Name and text of each file that the kernel's makefiles read.
pub const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_are_whole() {
        let names: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        let (_, makefile) = FILES.iter().find(|(name, _)| *name == "Kbuild").unwrap();
        let objects = makefile.split_whitespace().filter_map(|word| word.strip_suffix(".o"));
        for object in objects.filter(|&object| object != "kernlane") {
            assert!(names.contains(&&*format!("{object}.c")), "{object}: {names:?}");
        }
        for (name, text) in FILES {
            for included in text.lines().filter_map(|line| line.strip_prefix("#include \"")) {
                assert!(names.contains(&included.trim_end_matches('"')), "{name}: {included}");
            }
        }
    }
}
