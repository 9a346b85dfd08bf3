//! Checks the book in `docs/` and the documents beside it: links, commands, line lengths, first
//! sentences.
//!
//! Input: the Markdown files of the tree. This test never builds the book and runs no command;
//! `cargo xtask book-test` does both.

use super::{read, root};
use clap::CommandFactory;
use clap::error::ErrorKind;
use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Component, Path};
use std::process::Command;

const LONGEST_LINE: usize = 100;
/// Documents outside of the book that follow its rules.
const BESIDE_THE_BOOK: [&str; 4] =
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// The Markdown files below `docs/`, by their paths from the root.
fn book() -> BTreeSet<String> {
    let mut pages = BTreeSet::new();
    let mut waiting = vec!["docs".to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap().map(Result::unwrap) {
            let path = format!("{directory}/{}", entry.file_name().to_str().unwrap());
            match entry.file_type().unwrap().is_dir() {
                true => waiting.push(path),
                false if path.ends_with(".md") => drop(pages.insert(path)),
                false => {}
            }
        }
    }
    pages
}

fn pages() -> impl Iterator<Item = String> {
    book().into_iter().filter(|page| page != "docs/SUMMARY.md")
}

fn documents() -> impl Iterator<Item = String> {
    book().into_iter().chain(BESIDE_THE_BOOK.map(str::to_owned))
}

fn parsed(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
}

/// The anchors that mdBook gives a page's headings: lower case, hyphens for spaces, and a number
/// behind repeated headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut heading: Option<String> = None;
    for event in parsed(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(piece) | Event::Code(piece) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&piece);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap());
                let times = seen.entry(anchor.clone()).or_default();
                found.insert(match *times {
                    0 => anchor,
                    times => format!("{anchor}-{times}"),
                });
                *times += 1;
            }
            _ => {}
        }
    }
    found
}

fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.collect()
}

/// The path from the root of `target`, as it is written in `document`.
fn resolved(document: &str, target: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in Path::new(document).parent().unwrap().join(target).components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(name) => parts.push(name.to_str().unwrap().to_owned()),
            _ => {}
        }
    }
    parts.join("/")
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    for document in documents() {
        let text = read(&document);
        for event in parsed(&text) {
            let (Event::Start(Tag::Link { dest_url, .. })
            | Event::Start(Tag::Image { dest_url, .. })) = event
            else {
                continue;
            };
            if dest_url.contains("://") {
                continue;
            }
            let (file, wanted) = dest_url.split_once('#').unwrap_or((&dest_url, ""));
            let file = match file.is_empty() {
                true => document.clone(),
                false => resolved(&document, file),
            };
            if !root().join(&file).is_file() {
                broken.push(format!("{document}: {dest_url}: there is no {file}"));
            } else if !wanted.is_empty() && !anchors(&read(&file)).contains(wanted) {
                broken.push(format!("{document}: {dest_url}: {file} has no such heading"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn anchors_are_those_of_mdbook() {
    let text = "# Whose code\n## `relink` -- what's *kept*?\n## Idea\n## Idea\n";
    let expected = ["whose-code", "relink----whats-kept", "idea", "idea-1"];
    assert_eq!(anchors(text), expected.map(str::to_owned).into());
}

/// The contents of code blocks with their info strings, and the inline code.
fn code(text: &str) -> (Vec<String>, Vec<String>) {
    let (mut blocks, mut inline) = (Vec::new(), Vec::new());
    let mut block: Option<String> = None;
    for event in parsed(text) {
        match event {
            // A picture, not shell.
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(kind))) if &*kind == "mermaid" => {}
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_) | CodeBlockKind::Indented)) => {
                block = Some(String::new())
            }
            Event::End(TagEnd::CodeBlock) => blocks.extend(block.take()),
            Event::Text(piece) => {
                if let Some(block) = &mut block {
                    block.push_str(&piece);
                }
            }
            Event::Code(piece) => inline.push(piece.replace('\n', " ")),
            _ => {}
        }
    }
    (blocks, inline)
}

/// The words of each command in a line of shell: `a && b
///
/// c > d # e` gives the words of a, b and c.
fn commands(line: &str) -> Vec<Vec<String>> {
    let words = shlex::split(line).unwrap_or_else(|| panic!("not a line of shell: {line}"));
    let mut found = vec![Vec::new()];
    let mut redirected = false;
    for word in words {
        match word.as_str() {
            "&&" | "||" | "|" | ";" => found.push(Vec::new()),
            ">" | "2>" => redirected = true,
            _ if std::mem::take(&mut redirected) || word.starts_with('>') => {}
            _ => found.last_mut().unwrap().push(word),
        }
    }
    found
}

/// Lines that begin with a program's name, possibly behind a prompt. A backslash at the end
/// continues a line.
fn lines_of(block: &str, program: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.trim_start_matches(['$', '#', ' ']));
    lines.filter(|line| line.split(' ').next() == Some(program)).map(str::to_owned).collect()
}

/// Why Kernlane would refuse these words. With `partial` they only name a command: a required
/// argument may be missing, and a value may be a placeholder.
pub(super) fn refused(words: &[String], partial: bool) -> Option<String> {
    let error = kernlane::cli::Cli::command().try_get_matches_from(words).err()?;
    let fine = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::MissingRequiredArgument | ErrorKind::MissingSubcommand => partial,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => partial,
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            partial && (has_placeholder(words) || error.to_string().contains("a value is required"))
        }
        _ => false,
    };
    (!fine).then(|| error.to_string())
}

fn has_placeholder(words: &[String]) -> bool {
    let is_placeholder = |word: &String| {
        word.starts_with(|c: char| c.is_ascii_uppercase())
            && !word.contains(|c: char| c.is_ascii_lowercase())
    };
    words.iter().any(is_placeholder)
}

#[test]
fn the_tool_takes_every_command_of_the_documents() {
    let (mut wrong, mut whole, mut named) = (Vec::new(), 0, 0);
    for document in documents() {
        let (blocks, inline) = code(&read(&document));
        for line in blocks.iter().flat_map(|block| lines_of(block, "kernlane")) {
            for words in commands(&line)
                .iter()
                .filter(|words| words.first().is_some_and(|word| word == "kernlane"))
            {
                whole += 1;
                wrong.extend(refused(words, false).map(|why| format!("{document}: {line}: {why}")));
            }
        }
        for line in inline.iter().filter(|line| line.starts_with("kernlane ")) {
            let words = commands(line).swap_remove(0);
            named += 1;
            wrong.extend(refused(&words, true).map(|why| format!("{document}: `{line}`: {why}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        whole > 50 && named > 50,
        "only {whole} commands and {named} names of commands were found"
    );
}

#[test]
fn the_tool_refuses_what_does_not_exist() {
    let words = |line: &str| shlex::split(line).unwrap();
    assert!(refused(&words("kernlane replay net.rec --colour"), true).is_some());
    assert!(refused(&words("kernlane paint"), true).is_some());
    assert!(refused(&words("kernlane layout net.rec"), false).is_some());
    assert!(refused(&words("kernlane layout net.rec"), true).is_none());
    assert!(refused(&words("kernlane live apply --cycles N"), true).is_none());
    assert!(refused(&words("kernlane live apply --cycles few"), true).is_some());
    assert_eq!(commands("a b && c > d | e # f"), [vec!["a", "b"], vec!["c"], vec!["e"]]);
}

/// What `cargo xtask` prints of itself, or of one command.
fn help_of_xtask(command: Option<&str>) -> Option<String> {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let output = xtask.args(command).arg("--help").output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// Why `cargo xtask` does not have the command or an option of a line.
fn not_of_xtask(line: &str) -> Option<String> {
    let mut words = line.split(' ').skip(2);
    let Some(help) = help_of_xtask(words.next()) else { return Some("no such command".into()) };
    let options = words.filter(|word| word.starts_with("--"));
    let known = |option: &str| help.split([' ', '\n', ',']).any(|word| word == option);
    options.map(str::to_owned).find(|option| !known(option))
}

#[test]
fn xtask_refuses_what_does_not_exist() {
    assert_eq!(not_of_xtask("cargo xtask live-fuzz --kernel kasan --minutes 60"), None);
    assert_eq!(not_of_xtask("cargo xtask live-fuzz --colour").as_deref(), Some("--colour"));
    assert!(not_of_xtask("cargo xtask paint").is_some());
}

/// Targets of the kernel's own makefile.
const OF_THE_KERNEL: [&str; 3] = ["install", "clean", "olddefconfig"];

#[test]
fn every_xtask_command_and_make_target_of_the_documents_exists() {
    let makefile = read("Makefile");
    let mut missing = Vec::new();
    for document in documents() {
        let (blocks, inline) = code(&read(&document));
        let lines = |program: &str| -> Vec<String> {
            let of_blocks = blocks.iter().flat_map(|block| lines_of(block, program));
            let of_lines =
                inline.iter().filter(|line| line.split(' ').next() == Some(program)).cloned();
            of_blocks.chain(of_lines).collect()
        };
        for line in lines("cargo").iter().filter(|line| line.starts_with("cargo xtask ")) {
            missing.extend(not_of_xtask(line).map(|why| format!("{document}: {line}: {why}")));
        }
        for line in lines("make") {
            let target = line.split(' ').nth(1).unwrap_or_default();
            let is_target = target.chars().all(|c| c.is_ascii_lowercase()) && !target.is_empty();
            if is_target
                && !OF_THE_KERNEL.contains(&target)
                && !makefile.lines().any(|rule| rule.starts_with(&format!("{target}:")))
            {
                missing.push(format!("{document}: {line}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn lines_end_at_100_columns() {
    let mut long = Vec::new();
    for document in documents() {
        let mut in_block = false;
        for (at, line) in read(&document).lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_block = !in_block;
            }
            let is_table = line.trim_start().starts_with('|');
            let has_address = line.contains("://");
            if !in_block && !is_table && !has_address && line.chars().count() > LONGEST_LINE {
                long.push(format!("{document}:{}: {} columns", at + 1, line.chars().count()));
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn every_page_is_in_the_summary_once() {
    let summary = read("docs/SUMMARY.md");
    let mut listed = Vec::new();
    for event in parsed(&summary) {
        if let Event::Start(Tag::Link { dest_url, .. }) = event {
            listed.push(format!("docs/{dest_url}"));
        }
    }
    listed.sort();
    assert_eq!(listed, pages().collect::<Vec<_>>());
}

/// The title, and the paragraph behind it if all of it is emphasized.
fn beginning(text: &str) -> (Option<String>, Option<String>) {
    let (mut title, mut sentence) = (None, None);
    let mut events = parsed(text);
    if let Some(Event::Start(Tag::Heading { level: HeadingLevel::H1, .. })) = events.next() {
        title =
            Some(text_until(&mut events, |event| matches!(event, Event::End(TagEnd::Heading(_)))));
    }
    if let (Some(Event::Start(Tag::Paragraph)), Some(Event::Start(Tag::Emphasis))) =
        (events.next(), events.next())
    {
        let emphasized =
            text_until(&mut events, |event| matches!(event, Event::End(TagEnd::Emphasis)));
        sentence =
            matches!(events.next(), Some(Event::End(TagEnd::Paragraph))).then_some(emphasized);
    }
    (title, sentence)
}

fn text_until<'a>(
    events: &mut impl Iterator<Item = Event<'a>>,
    end: impl Fn(&Event<'a>) -> bool,
) -> String {
    let inside = events.take_while(|event| !end(event));
    let pieces = inside.map(|event| match event {
        Event::Text(piece) | Event::Code(piece) => piece.to_string(),
        Event::SoftBreak => " ".to_owned(),
        _ => String::new(),
    });
    pieces.collect()
}

#[test]
fn every_page_begins_with_who_needs_it_and_when() {
    let mut without = Vec::new();
    for page in pages() {
        let (title, sentence) = beginning(&read(&page));
        let says = sentence.is_some_and(|sentence| {
            sentence.starts_with("For ") && sentence.contains(" when ") && sentence.ends_with('.')
        });
        if title.is_none_or(|title| title.is_empty()) || !says {
            without.push(page);
        }
    }
    assert!(
        without.is_empty(),
        "behind the title of these pages, \"*For …, when ….*\" is missing: {without:#?}"
    );
}

#[test]
fn a_beginning_is_a_title_and_an_emphasized_sentence() {
    assert_eq!(
        beginning("# A\n\n*For b, when\nc.*\n"),
        (Some("A".to_owned()), Some("For b, when c.".to_owned()))
    );
    assert_eq!(beginning("# A\n\nFor b, when c.\n"), (Some("A".to_owned()), None));
    assert_eq!(beginning("# A\n\n*For b*, when c.\n").1, None);
}
