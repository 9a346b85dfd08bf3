//! Every function that QEMU calls says what the call must keep. Clippy asks for this at public
//! functions only.

use std::path::Path;

/// The functions of a file that C may call, each with the lines in front of it.
fn called_by_c(text: &str) -> Vec<(String, Vec<&str>)> {
    let lines: Vec<&str> = text.lines().collect();
    let name = |line: &str| {
        let (_, rest) = line.split_once("unsafe extern \"C\" fn ")?;
        Some(rest.split(['(', '<']).next()?.to_owned()).filter(|name| !name.is_empty())
    };
    let is_item = |line: &str| !line.starts_with(' ') && !line.contains("type ");
    (0..lines.len())
        .filter(|&n| is_item(lines[n]))
        .filter_map(|n| {
            let in_front = lines[..n].iter().rev();
            let docs = in_front.take_while(|line| line.starts_with("///") || line.starts_with('#'));
            Some((name(lines[n])?, docs.copied().collect()))
        })
        .collect()
}

fn files(directory: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

#[test]
fn each_function_that_c_calls_says_what_the_call_must_keep() {
    let mut sources = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut sources);
    let mut functions = 0;
    for path in sources {
        let text = std::fs::read_to_string(&path).unwrap();
        for (name, docs) in called_by_c(&text) {
            assert!(docs.contains(&"/// # Safety"), "{}: {name}", path.display());
            functions += 1;
        }
    }
    assert!(functions >= 19, "{functions}");
}
