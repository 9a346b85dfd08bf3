//! The rules of `ARCHITECTURE.md` that a compiler does not check.

use clap::CommandFactory;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files below `directory` with one of these endings, by their paths from the root.
fn files(directory: &str, endings: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        let Ok(entries) = fs::read_dir(root().join(&directory)) else {
            continue;
        };
        for entry in entries.map(Result::unwrap) {
            let path = format!("{directory}/{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && !path.contains("/target") && !path.contains("/.git") {
                waiting.push(path);
            } else if kind.is_file() && endings.iter().any(|ending| path.ends_with(ending)) {
                found.push(path.trim_start_matches("./").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Whether a line that is not a comment contains `word`.
fn uses_word(file: &str, word: &str) -> bool {
    let text = read(file);
    text.lines().any(|line| !line.trim_start().starts_with("//") && line.contains(word))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_path_that_the_documents_name_exists() {
    let mut missing = Vec::new();
    for document in files(".", &[".md"]) {
        let text = read(&document);
        for word in text.split('`').skip(1).step_by(2) {
            let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
            let known_room =
                ["crates/", "xtask/", "docs/", "machines/", "workloads/", "annotations/", "bench/"];
            let named = plain && known_room.iter().any(|room| word.starts_with(room));
            if named && !root().join(word).exists() {
                missing.push(format!("{document} names {word}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// A crate's short name and the crates of this workspace that it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// The packages of this workspace, as cargo describes them.
fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// The short name of a package, or of a dependency.
fn short(package: &serde_json::Value) -> String {
    package["name"].as_str().unwrap().trim_start_matches("kernlane-").to_owned()
}

/// The dependencies in the manifests of `crates/`, without those of tests only.
fn uses_in_manifests() -> Uses {
    let packages = packages();
    let is_shipped = |name: &String| name != "fuzz" && !name.starts_with("xtask");
    let ours: BTreeSet<String> = packages.iter().map(short).filter(is_shipped).collect();
    let of = |package: &serde_json::Value| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let used = dependencies
            .filter(|dependency| dependency["kind"].is_null() && !dependency["path"].is_null());
        used.map(short).collect()
    };
    let shipped = packages.iter().filter(|package| ours.contains(&short(package)));
    shipped.map(|package| (short(package), of(package))).collect()
}

/// The last column of the table of crates in `ARCHITECTURE.md`.
fn uses_in_table(text: &str) -> Uses {
    let rows = text.lines().skip_while(|line| !line.starts_with("| Crate |")).skip(2);
    rows.take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let names = cells[4].split(", ").filter(|name| !name.is_empty()).map(str::to_owned);
            (cells[1].trim_matches('`').to_owned(), names.collect())
        })
        .collect()
}

/// The arrows of the picture in `ARCHITECTURE.md`.
fn arrows_in_picture(text: &str) -> BTreeSet<(String, String)> {
    let lines = text.lines().skip_while(|line| *line != "```mermaid").skip(2);
    let arrows = lines.take_while(|line| *line != "```").flat_map(|line| {
        let (from, to) = line.split_once(" --> ").unwrap_or_else(|| panic!("not an arrow: {line}"));
        to.split(" & ").map(move |to| (from.trim().to_owned(), to.trim().to_owned()))
    });
    arrows.collect()
}

/// Whether one crate uses another, directly or not.
fn reaches(uses: &Uses, from: &str, to: &str) -> bool {
    uses[from].iter().any(|next| next == to || reaches(uses, next, to))
}

/// The arrows that cannot be replaced by a longer way.
fn arrows_that_matter(uses: &Uses) -> BTreeSet<(String, String)> {
    let all = uses.iter().flat_map(|(from, used)| used.iter().map(move |to| (from, to)));
    let matters = |&(from, to): &(&String, &String)| {
        !uses[from].iter().any(|other| other != to && reaches(uses, other, to))
    };
    all.filter(matters).map(|(from, to)| (from.clone(), to.clone())).collect()
}

#[test]
fn the_table_of_crates_is_what_the_manifests_say() {
    assert_eq!(uses_in_table(&read("ARCHITECTURE.md")), uses_in_manifests());
}

#[test]
fn the_picture_of_crates_is_what_the_manifests_say() {
    assert_eq!(
        arrows_in_picture(&read("ARCHITECTURE.md")),
        arrows_that_matter(&uses_in_manifests())
    );
}

/// A library knows no options: another program, or Python, may use it.
#[test]
fn only_programs_parse_options() {
    let mut parse = BTreeSet::new();
    for package in packages() {
        let mut dependencies = package["dependencies"].as_array().unwrap().iter();
        // The library of the suite is built without the options of its program.
        if dependencies.any(|it| it["name"] == "clap" && it["optional"] == false) {
            parse.insert(short(&package));
        }
    }
    assert_eq!(parse, BTreeSet::from(["kernlane", "xtask"].map(str::to_owned)));
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(found) if found.as_char() == mark)
}

/// The strings in a program, without those of documentation and of tests.
fn strings(tokens: TokenStream, found: &mut Vec<String>) {
    let mut tokens = tokens.into_iter().peekable();
    // Whether the present item is for tests. It ends with its body or a semicolon.
    let mut is_for_tests = false;
    while let Some(token) = tokens.next() {
        match token {
            mark if is_mark(&mark, '#') => {
                tokens.next_if(|next| is_mark(next, '!'));
                let Some(TokenTree::Group(attribute)) = tokens.peek().cloned() else { continue };
                tokens.next();
                let text = attribute.stream().to_string().replace(' ', "");
                is_for_tests |= text == "cfg(test)";
                if !text.starts_with("doc=") {
                    strings(attribute.stream(), found);
                }
            }
            mark if is_mark(&mark, ';') => is_for_tests = false,
            TokenTree::Group(body) if is_for_tests => {
                is_for_tests = body.delimiter() != Delimiter::Brace;
            }
            TokenTree::Group(group) => strings(group.stream(), found),
            TokenTree::Literal(literal) if !is_for_tests => {
                let string = syn::parse_str::<syn::LitStr>(&literal.to_string());
                found.extend(string.map(|string| string.value()));
            }
            _ => {}
        }
    }
}

fn strings_of(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    strings(text.parse().unwrap(), &mut found);
    found
}

/// What a user of the program types: `--kernel`, `kernlane relink`.
fn typed_words() -> BTreeSet<String> {
    fn add_options(command: &clap::Command, words: &mut BTreeSet<String>) {
        for argument in command.get_arguments() {
            let names = argument.get_long().into_iter();
            let names = names.chain(argument.get_all_aliases().unwrap_or_default());
            words.extend(names.map(|name| format!("--{name}")));
        }
        command.get_subcommands().for_each(|command| add_options(command, words));
    }
    let program = kernlane::cli::Cli::command();
    let commands = program.get_subcommands().map(|it| format!("kernlane {}", it.get_name()));
    let mut words: BTreeSet<String> = commands.collect();
    add_options(&program, &mut words);
    words
}

/// Whether `text` has `word`, not as a part of a longer word.
fn has_word(text: &str, word: &str) -> bool {
    let is_inside = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_inside) && !text[at + word.len()..].starts_with(is_inside)
    })
}

#[test]
fn strings_and_words_are_found() {
    let text = r##"
        //! `--module`
        #[error("--attribute")]
        struct One; // "--comment"
        #[cfg(test)]
        const TEST: [&str; 1] = ["--constant"];
        /// --document
        fn two() {
            bail!("{x}: \
                   --macro", b"--bytes", r#"--raw"#)
        }
        #[cfg(test)]
        mod tests {
            const X: &str = "--module";
        }
        const Y: &str = "--behind";
    "##;
    assert_eq!(strings_of(text), ["--attribute", "{x}: --macro", "--raw", "--behind"]);
    let words = typed_words();
    for word in ["--kernel", "--alternations", "--worker", "kernlane live", "--dry-run"] {
        assert!(words.contains(word), "{word} is not in {words:?}");
    }
    assert!(has_word("give --top, or", "--top") && has_word("(--top)", "--top"));
    assert!(!has_word("--top-down", "--top") && !has_word("a---top", "--top"));
}

/// A library's error says in words of its own what to do. The program adds what its user types.
#[test]
fn no_library_names_options_or_commands_of_the_program() {
    let words = typed_words();
    let is_library = |file: &&String| {
        let is_of_program =
            ["crates/kernlane/", "crates/suite/"].iter().any(|it| file.starts_with(it));
        let is_test = file.contains("/tests/") || file.ends_with("tests.rs");
        file.contains("/src/") && !is_of_program && !is_test
    };
    let mut named = BTreeSet::new();
    for file in files("crates", &[".rs"]).iter().filter(is_library) {
        for string in strings_of(&read(file)) {
            let found = words.iter().filter(|word| has_word(&string, word));
            named.extend(found.map(|word| (file.clone(), word.clone())));
        }
    }
    let of_others = [
        // `llvm-profdata merge`.
        ("crates/exchange/src/llvm_samples/coverage.rs", "--sample"),
        ("crates/exchange/src/samples_import.rs", "--sample"),
        // The suite's own program in a guest.
        ("crates/guest/src/benchmark.rs", "--directory"),
        ("crates/guest/src/benchmark.rs", "--operations"),
        ("crates/guest/src/benchmark.rs", "--worker"),
    ];
    let of_others = of_others.map(|(file, option)| (file.to_owned(), option.to_owned()));
    assert_eq!(named, BTreeSet::from(of_others));
}

#[test]
fn the_walls_stand() {
    let uses = uses_in_manifests();
    for (from, to) in [
        ("check", "emit"),
        ("emit", "check"),
        ("report", "emit"),
        ("image", "emit"),
        ("coherence", "report"),
    ] {
        assert!(!reaches(&uses, from, to), "{from} reaches {to}");
    }
    for pure in ["trace", "sim", "layout"] {
        assert_eq!(uses[pure], BTreeSet::new(), "{pure} uses another crate of the workspace");
        let manifest = read(&format!("crates/{pure}/Cargo.toml"));
        for library in ["object", "memmap2", "qemu"] {
            let depends = manifest
                .lines()
                .skip_while(|line| *line != "[dependencies]")
                .any(|line| line.starts_with(library));
            assert!(!depends, "crates/{pure} depends on {library}");
        }
        for file in files(&format!("crates/{pure}/src"), &[".rs"]) {
            assert!(!uses_word(&file, "std::fs"), "{file} uses std::fs");
        }
    }
    for file in files("crates", &[".rs"])
        .iter()
        .filter(|file| !file.contains("/tests/") && !file.ends_with("/main.rs"))
    {
        assert!(
            !read(file).contains("process::exit("),
            "{file}: nothing below main exits the process"
        );
    }
}

#[test]
fn the_rooms_of_xtask_share_only_the_lab() {
    for room in ["lab", "system-tests", "studies", "judges"] {
        let manifest = read(&format!("xtask/{room}/Cargo.toml"));
        for other in ["system-tests", "studies", "judges", "xtask"] {
            let uses = |line: &str| line.split(['.', ' ']).next() == Some(other);
            assert!(!manifest.lines().any(uses), "xtask/{room} uses {other}");
        }
    }
}

#[test]
fn every_module_says_what_it_is_and_stays_short() {
    let rooms = ["crates", "fuzz", "xtask"].map(|room| files(room, &[".rs"]));
    for file in rooms.concat() {
        let text = read(&file);
        assert!(text.starts_with("//!"), "{file} does not begin with //!");
        assert!(text.lines().count() <= 600, "{file} is longer than 600 lines");
    }
}

#[test]
fn comments_end_at_100_columns() {
    let rooms = ["crates", "fuzz", "xtask", "bench"].map(|room| files(room, &[".rs"]));
    for file in rooms.concat() {
        for (at, line) in read(&file).lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//") && !line.contains("://");
            let columns = line.chars().count();
            assert!(!is_comment || columns <= 100, "{file}:{}: {columns} columns", at + 1);
        }
    }
}

#[test]
fn no_drawers() {
    for file in files("crates", &[".rs"]) {
        let stem = Path::new(&file).file_stem().unwrap().to_string_lossy().into_owned();
        assert!(
            !["utils", "util", "common", "shared", "types", "helpers", "misc"]
                .contains(&stem.as_str()),
            "{file}"
        );
    }
}

/// The packages that a build compiles, each with its features.
fn features(packages: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal,build", "--prefix", "none"])
        .args(["--format", "{p} {f}"])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

/// If not, a test that builds the program builds `xtask` again, under the feet of the running one.
#[test]
fn building_the_program_changes_no_feature_of_what_xtask_uses() {
    let alone = features(&["xtask"]);
    let together = features(&["xtask", "kernlane", "kernlane-plugin"]);
    assert!(alone.len() > 50, "{alone:#?}");
    let changed: Vec<_> = alone.difference(&together).collect();
    assert!(changed.is_empty(), "{changed:#?}");
}
