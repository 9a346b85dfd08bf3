//! The self-contained page of recordings and comparisons.
//!
//! Input: what `overview` gives, and comparisons. Output: HTML that loads no script, style, font or
//! image. The numbers are in it as JSON, compressed by gzip, in base64. Counts nothing.

use crate::generations::GenerationsBeside;
use crate::overview::Overview;
use crate::top::TopRows;
use crate::{generations, multiprocessor, services, text};
use anyhow::{Context, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use replay::comparison::Comparison;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// In dependency order.
const SCRIPTS: [&str; 12] = [
    include_str!("page/elements.js"),
    include_str!("page/range.js"),
    include_str!("page/charts.js"),
    include_str!("page/tracks.js"),
    include_str!("page/frames.js"),
    include_str!("page/flame.js"),
    include_str!("page/explored.js"),
    include_str!("page/recording.js"),
    include_str!("page/generations.js"),
    include_str!("page/multiprocessor.js"),
    include_str!("page/comparisons.js"),
    include_str!("page/main.js"),
];
/// The number of services in the tables for readers without JavaScript.
const SERVICES: TopRows = TopRows { most: 30, setting: None };

#[derive(Serialize)]
struct PageData<'a> {
    recordings: &'a [Overview],
    comparisons: &'a [Comparison],
}

/// The page's HTML.
///
/// # Errors
/// A number cannot be written as JSON.
pub fn page(recordings: &[Overview], comparisons: &[Comparison]) -> Result<String> {
    let data = packed(&serde_json::to_string(&PageData { recordings, comparisons })?)?;
    let table = in_text(&tables(recordings, comparisons));
    let script = SCRIPTS.concat();
    let mut page = String::with_capacity(
        TEMPLATE.len() + STYLE.len() + script.len() + data.len() + table.len(),
    );
    // One pass over the template: inserted text is never searched for placeholders.
    let mut rest = TEMPLATE;
    while let Some((before, behind)) = rest.split_once("{{") {
        page += before;
        let Some((place, behind)) = behind.split_once("}}") else { break };
        page += match place {
            "STYLE" => STYLE,
            "SCRIPT" => &script,
            "DATA" => &data,
            "TEXT" => &table,
            _ => "",
        };
        rest = behind;
    }
    page += rest;
    Ok(page)
}

/// The tables for readers without JavaScript.
fn tables(recordings: &[Overview], comparisons: &[Comparison]) -> String {
    let mut text = String::new();
    for recording in recordings {
        let _ = writeln!(text, "{}", services::table(&recording.table, SERVICES));
        if let Some(found) = &recording.generations {
            let beside = GenerationsBeside::new(found.clone());
            let _ = writeln!(text, "{}", generations::text(&beside, SERVICES));
        }
        if let Some(beside) = &recording.multiprocessor {
            let _ = writeln!(text, "{}", multiprocessor::text(beside, SERVICES));
        }
    }
    if !comparisons.is_empty() {
        text += &text::comparisons(comparisons);
    }
    text
}

/// The text as it stands in a page.
///
/// # Errors
/// It cannot be compressed.
pub fn packed(text: &str) -> Result<String> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(text.as_bytes())?;
    Ok(BASE64_STANDARD.encode(packer.finish()?))
}

/// The opposite of [`packed`].
///
/// # Errors
/// The text was not packed.
pub fn unpacked(packed: &str) -> Result<String> {
    let bytes = BASE64_STANDARD.decode(packed).context("not base64")?;
    let mut text = String::new();
    GzDecoder::new(&bytes[..]).read_to_string(&mut text)?;
    Ok(text)
}

fn in_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use replay::comparison::compare;
    use replay::examples::{original, predicted};

    #[test]
    fn every_placeholder_is_filled() {
        let page = page(&[], &[]).unwrap();
        assert!(!page.contains("{{") && !page.contains("}}"));
        assert!(page.contains(STYLE) && SCRIPTS.iter().all(|script| page.contains(script)));
        let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
        assert_eq!(unpacked(data).unwrap(), "{\"recordings\":[],\"comparisons\":[]}");
    }

    #[test]
    fn names_from_a_recording_stay_text() {
        let evil = "</script><!--<script>alert(1)</script>{{SCRIPT}}";
        let mut rows = [original(), predicted()];
        rows.iter_mut().for_each(|row| row.workload = evil.to_owned());
        rows[1].functions[0].name = evil.to_owned();
        let comparisons = compare(&rows).unwrap();
        let page = page(&[], &comparisons).unwrap();
        assert_eq!(page.matches("<script").count(), 2);
        assert_eq!(page.matches("</script").count(), 2);
        assert!(!page.contains("<!--"));
        let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
        let read: serde_json::Value = serde_json::from_str(&unpacked(data).unwrap()).unwrap();
        assert_eq!(read["comparisons"][0]["workload"], evil);
    }

    #[test]
    fn columns_and_captions_say_what_the_numbers_are() {
        let script = SCRIPTS.concat();
        assert!(
            !script.contains("halted is not recorded")
                && script.contains("halts(recording.table.halted)")
        );
        assert!(!script.contains("latency (instr.)") && script.contains("latency (ns)"));
        assert!(
            !script.contains(r#"["share of kernel", (row) => row.share"#),
            "user mode and idle have no share of the kernel"
        );
        assert!(script.contains(r#"["share of all""#));
        assert!(script.contains("machine.has_l2"), "a machine without an L2 has no column for it");
        assert!(!script.contains("interrupts.count + 1"));
    }

    #[test]
    fn the_papers_share_comes_with_the_data() {
        let script = SCRIPTS.concat();
        for place in ["os.nellans.average", "os.nellans.interactive", "os.nellans.spec"] {
            assert!(script.contains(&format!("${{{place}}} %")), "{place}");
        }
        assert!(!script.contains("44.85"));
    }

    #[test]
    fn sections_of_cores_say_that_they_are_simulated() {
        for heading in ["Where the slots go", "Graduation", "Machines side by side"] {
            let headings = SCRIPTS.concat().matches(&format!("\"{heading}")).count();
            assert_eq!(headings, 1, "{heading}");
            assert!(SCRIPTS.concat().contains(&format!("\"{heading}, simulated\"")), "{heading}");
        }
    }

    #[test]
    fn the_page_loads_nothing() {
        for part in [TEMPLATE, STYLE].iter().chain(&SCRIPTS) {
            let part = part.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !part.contains("http:")
                    && !part.contains("https:")
                    && !part.contains("url(")
                    && !part.contains("src=")
            );
        }
    }
}
