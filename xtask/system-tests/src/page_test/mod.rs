//! `cargo xtask page-test RECORDING KERNEL`: tests the page of a recording in Chromium, and whether
//! the files for other tools agree with the page.
//!
//! The page must load without a message on the console. It must sort, search, zoom and change its
//! theme when it is clicked. Its sections must follow the range that is selected, with numbers that
//! add up to those of the whole recording. It must be readable in both themes, on a phone and on
//! paper, and show names that are HTML as text. The frames that Chromium draws in a second while
//! the page zooms are printed, not judged. `callgrind_annotate`, `go tool pprof`, OpenTelemetry's
//! messages, the sums of the folded stacks and of Chrome's trace events, and the tables as pyarrow
//! reads them must give the page's number of instructions. Prints one line for each test.
//!
//! `cargo xtask generations-test RECORDING KERNEL`: the sections of machines with an out-of-order
//! core must have the numbers of the commands. It simulates cores for minutes, so it is a command
//! of its own.

mod browser;
mod exploring;
mod exports;
mod generations;
mod in_time;

pub use in_time::time_lines_test;

use anyhow::{Context, Result, ensure};
use browser::Browser;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

const EVIL: &str = "</script><img src=x onerror='window.hacked=1'>";
/// The contrast of readable text (WCAG 2, level AA).
const CONTRAST: f64 = 4.5;
const SECTIONS: [&str; 8] = [
    "Execution over time",
    "Services",
    "Misses by cause",
    "Misses by size",
    "Where the kernel's code misses",
    "Calls",
    "The system's share",
    "Functions",
];

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn page_test(recording: &Path, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir().context("making a temporary directory")?;
    // The commands `report` and `export` are tested.
    let kernlane = lab::kernlane()?;
    let [page, again, evil] =
        ["page.html", "again.html", "evil.html"].map(|name| directory.path().join(name));
    for path in [&page, &again] {
        let mut command = Command::new(&kernlane);
        command.args(["report", "page"]).arg(recording).arg("--kernel").arg(kernel);
        lab::run(command.args(["--machine", "server-32k", "--output"]).arg(path))?;
    }
    let html = std::fs::read_to_string(&page)?;
    ensure!(
        html == std::fs::read_to_string(&again)?,
        "the same recording gave two different pages"
    );
    println!("passed: the same recording gives the same page");
    let data = data(&html)?;
    exports::exports(&kernlane, recording, kernel, directory.path(), &data)?;

    exploring::size(&html, &data)?;
    let browser = Browser::start(&directory.path().join("chromium"))?;
    browser.open(&page)?;
    exploring::explores(&browser, &data)?;
    works(&browser, &data)?;
    exploring::on_a_phone_and_on_paper(&browser)?;
    std::fs::write(&evil, hostile(&html, data)?)?;
    browser.open(&evil)?;
    misses_by_data_structure(&browser)?;
    hostile_names_are_text(&browser)
}

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn generations_test(recording: &Path, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir().context("making a temporary directory")?;
    let browser = Browser::start(&directory.path().join("chromium"))?;
    // The command `report` is tested.
    generations::generations(&lab::kernlane()?, recording, kernel, directory.path(), &browser)
}

const BEGIN: &str = "id=\"data\">";

fn data(html: &str) -> Result<Value> {
    let (_, rest) = html.split_once(BEGIN).context("no data in the page")?;
    let (json, _) = rest.split_once("</script>").context("no end of the data")?;
    Ok(serde_json::from_str(&report::page::unpacked(json)?)?)
}

/// The table of the section with this heading.
fn table(heading: &str) -> String {
    format!(
        "const section = [...document.querySelectorAll('section')].find((s) => \
         s.querySelector('h3')?.textContent === \"{heading}\");"
    )
}

fn works(browser: &Browser, data: &Value) -> Result<()> {
    let titles = browser
        .run("return [...document.querySelectorAll('section h3')].map((h) => h.textContent)")?;
    let of_data = SECTIONS[2..3].iter().chain(&["Misses by data structure"]);
    let sections: Vec<&str> = match data["recordings"][0]["data"].is_null() {
        true => SECTIONS.to_vec(),
        false => SECTIONS[..2].iter().chain(of_data).chain(&SECTIONS[3..]).copied().collect(),
    };
    ensure!(titles == json!(sections), "the sections are {titles}");
    // Chromedriver finds elements by selectors, so elements that are clicked get ids.
    let column = browser.run(&format!(
        "{} section.id = 'services'; section.querySelector('input').id = 'search';
        const titles = [...section.querySelectorAll('th button')];
        const column = titles.findIndex(({{ textContent: title }}) =>
            title.startsWith('calls') && !title.includes('/'));
        if (column >= 0) titles[column].id = 'by-calls';
        return column",
        table("Services")
    ))?;
    ensure!(column.as_i64() > Some(0), "the table of services has no column for calls");
    let calls = || -> Result<Vec<u64>> {
        let cells = browser.run(&format!(
            "return [...document.querySelectorAll('#services tbody tr')].map((r) => \
             r.cells[{column}].textContent)"
        ))?;
        let cells = cells.as_array().context("no cells")?.iter();
        cells
            .map(|cell| {
                let text = cell.as_str().context("no text")?;
                text.replace(',', "").parse().with_context(|| format!("{text:?} calls"))
            })
            .collect()
    };
    browser.click("#by-calls")?;
    let down = calls()?;
    ensure!(
        down.len() > 5 && down.is_sorted_by(|a, b| a >= b) && down[0] > 1,
        "not sorted in descending order: {down:?}"
    );
    browser.click("#by-calls")?;
    let up = calls()?;
    ensure!(up.is_sorted() && up[0] < down[0], "not sorted in ascending order: {up:?}");
    println!("passed: a click sorts the table");
    browser.keys("#search", "page fault")?;
    let found = browser.run(
        "return [...document.querySelectorAll('#services tbody tr')].map((r) \
         => r.cells[0].textContent)",
    )?;
    let found: Vec<&str> =
        found.as_array().context("no rows")?.iter().filter_map(Value::as_str).collect();
    ensure!(
        !found.is_empty() && found.iter().all(|name| name.contains("page fault")),
        "searched, found {found:?}"
    );
    println!("passed: the search finds rows");

    for _ in 0..2 {
        browser.click("#theme")?;
        let worst = browser.run(CONTRASTS)?;
        let (ratio, what) = (worst[0].as_f64().context("no contrast")?, &worst[1]);
        ensure!(ratio >= CONTRAST, "contrast {ratio:.2} of {what}");
        println!("passed: the lowest contrast is {ratio:.2}, of {what}");
    }
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "the page's console has messages: {complaints:?}");
    println!("passed: the page's console has no messages");
    Ok(())
}

/// The lowest contrast of text against the background of the page and of the panels, and where it
/// is (WCAG 2, relative luminance).
const CONTRASTS: &str = "
const rgb = (color) => color.match(/[\\d.]+/g).slice(0, 3).map(Number);
const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const light = (color) => rgb(color).map((v) => linear(v / 255))
  .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
const ground = getComputedStyle(document.body).backgroundColor;
const panel = getComputedStyle(document.querySelector('.card')).backgroundColor;
const texts = ['body', 'caption', 'th', 'td', 'nav a', '.card b', '.card span', 'figcaption',
  'button', 'summary', 'footer', 'svg .axis'];
const worst = texts.map((what) => {
  const style = getComputedStyle(document.querySelector(what));
  const text = light(what.startsWith('svg') ? style.fill : style.color);
  const ratios = [ground, panel].map(light)
    .map((back) => (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05));
  return [Math.min(...ratios), what];
}).sort((a, b) => a[0] - b[0])[0];
return [worst[0], `${worst[1]} on ${ground}`];
";

/// The page with names that are HTML.
fn hostile(html: &str, mut data: Value) -> Result<String> {
    let recording = &mut data["recordings"][0];
    recording["data"] = data_misses();
    for place in [
        "/workload",
        "/table/rows/0/name",
        "/functions/0/name",
        "/slices/names/3",
        "/slices/services/0/name",
        "/timeline/tasks/0/name",
        "/rows/0/layout",
        "/maps/0/layout",
        "/data/rows/0/name",
        "/data/machine",
    ] {
        *recording.pointer_mut(place).with_context(|| format!("no {place} in the data"))? =
            EVIL.into();
    }
    let (before, rest) = html.split_once(BEGIN).context("no data in the page")?;
    let (_, behind) = rest.split_once("</script>").context("no end of the data")?;
    let json = report::page::packed(&serde_json::to_string(&data)?)?;
    Ok(format!("{before}{BEGIN}{json}</script>{behind}"))
}

/// Misses by data structure, as in a recording with `--data`: 12 of the L1D, and one row without a
/// name.
fn data_misses() -> Value {
    let levels = |cold: u64, own: u64, other: u64| {
        let none = json!({"cold": 0, "self": 0, "other": 0});
        let some = json!({"cold": cold, "self": own, "other": other});
        json!({"l1i": none, "l1d": some, "l2i": none, "l2d": some, "l3i": none, "l3d": none})
    };
    let rows = json!([
        {"class": "slab", "name": "", "kernel": levels(1, 2, 3), "user": levels(0, 0, 0)},
        {"class": "cpu-entry-area", "kernel": levels(0, 1, 0), "user": levels(1, 1, 1)},
        {"class": "held", "kernel": levels(0, 0, 2), "user": levels(0, 0, 0)},
    ]);
    let slices = json!([
        [[0, 1, 2, 3, 0, 0, 0, 6, 0]],
        [[0, 0, 1, 0, 1, 1, 1, 4, 0]],
        [[0, 0, 0, 2, 0, 0, 0, 2, 0]]
    ]);
    json!({"machine": "", "rows": rows, "slices": slices, "other_share": 0.25,
        "frames_unknown": "no BTF"})
}

fn misses_by_data_structure(browser: &Browser) -> Result<()> {
    let shown = browser.run(&format!(
        "{} return [...section.querySelectorAll('tbody tr')]
            .map((r) => [...r.cells].map((c) => c.textContent).join('|'))
            .concat([...section.querySelectorAll('.bars .value')].map((v) => v.textContent))",
        table("Misses by data structure")
    ))?;
    let slab = format!("slab {EVIL}|50.00 %|6|1|2|3|0|6");
    let expected = json!([
        slab,
        "CPU entry area|33.33 %|1|0|1|0|3|4",
        "held, no mark|16.67 %|2|0|0|2|0|2",
        "6",
        "4",
        "2"
    ]);
    ensure!(shown == expected, "misses by data structure: {shown}");
    println!("passed: misses by data structure");
    Ok(())
}

fn hostile_names_are_text(browser: &Browser) -> Result<()> {
    let seen = browser.run(
        "return [document.images.length, window.hacked ?? 0, \
         document.body.textContent.split('onerror=').length - 1, document.scripts.length]",
    )?;
    let numbers: Vec<u64> =
        seen.as_array().context("no numbers")?.iter().filter_map(Value::as_u64).collect();
    let [images, hacked, shown, scripts] = numbers[..] else {
        anyhow::bail!("not four numbers: {seen}")
    };
    ensure!((images, hacked, scripts) == (0, 0, 2) && shown >= 6, "hostile names: {seen}");
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "the page of hostile names complains: {complaints:?}");
    println!("passed: names that are HTML stay text");
    Ok(())
}
