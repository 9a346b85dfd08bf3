//! The page of machines with an out-of-order core: its numbers must be those of the commands.
//!
//! Input: a recording and its kernel. The slots of services on the page, in its bars and in its
//! tables must be those that `report generations --json` and `report services --json` print,
//! and the services must add up to the recording. Prints one line for each test.

use super::browser::Browser;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// One in order, and two cores.
const MACHINES: [&str; 3] = ["simos-1994", "simos-1998", "zen4"];
const CORES: [usize; 2] = [1, 2];
const SECTIONS: [&str; 3] =
    ["Where the slots go, simulated", "Graduation, simulated", "Machines side by side, simulated"];
const TOP_DOWN: [&str; 6] =
    ["retiring", "front_end_latency", "front_end_bandwidth", "bad_speculation", "memory", "core"];
const GRADUATION: [&str; 4] = ["busy", "data", "instruction", "pipeline"];

pub(super) fn generations(
    kernlane: &Path,
    recording: &Path,
    kernel: &Path,
    directory: &Path,
    browser: &Browser,
) -> Result<()> {
    let machines = MACHINES.join(",");
    let page = directory.join("generations.html");
    let report = |name: &str| {
        let mut command = Command::new(kernlane);
        command.args(["report", name]).arg(recording).arg("--kernel").arg(kernel);
        command.args(["--machine", &machines]);
        command
    };
    let json = |name: &str| -> Result<Value> {
        let output = lab::succeeded(report(name).arg("--json"))?;
        let mut tables: Value = serde_json::from_slice(&output.stdout)?;
        Ok(tables[0].take())
    };
    lab::run(report("page").arg("--output").arg(&page))?;
    let mut found = json("generations")?;
    let services = json("services")?;
    let data = super::data(&std::fs::read_to_string(&page)?)?;
    found.as_object_mut().context("no table")?.remove("papers").context("no papers")?;
    ensure!(
        data["recordings"][0]["generations"] == found,
        "the page has other numbers than report generations --json"
    );
    println!("passed: the page has the numbers of report generations --json");
    add_up(&found, &services)?;

    browser.open(&page)?;
    for heading in SECTIONS {
        let here = browser.run(&format!("{} return !!section", super::table(heading)))?;
        ensure!(here == true, "no section {heading}");
    }
    for (heading, parts, of) in
        [(SECTIONS[0], &TOP_DOWN[..], "dispatch"), (SECTIONS[1], &GRADUATION[..], "graduation")]
    {
        let drawn: &[usize] = if of == "dispatch" { &CORES } else { &[0, 1, 2] };
        let tables = tables(browser, heading)?;
        ensure!(tables.len() == drawn.len(), "{heading}: {} tables", tables.len());
        for (table, &at) in tables.iter().zip(drawn) {
            slots_are(table, &found, at, parts, of).with_context(|| heading.to_owned())?;
        }
        bars_are(browser, heading, &found, drawn[0], parts, of)?;
    }
    side_by_side(browser, &found)?;
    println!("passed: bars and tables of slots and of machines have these numbers");
    ranges_add_up(browser)?;
    sections_follow(browser)?;
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "the page of cores complains: {complaints:?}");
    Ok(())
}

/// The services add up to the recording, on every machine, and have the slots of `--services`.
fn add_up(found: &Value, services: &Value) -> Result<()> {
    let rows = |table: &Value| table["rows"].as_array().cloned().context("no rows");
    let (ours, theirs) = (rows(found)?, rows(services)?);
    ensure!(found["sums"][0]["instructions"] == services["instructions"], "other instructions");
    ensure!(found["sums"][1]["instructions"] == services["kernel_instructions"], "of the kernel");
    for (at, machine) in MACHINES.iter().enumerate() {
        let parts = |row: &Value| row["on"][at]["parts"].as_u64().context("no parts");
        let sum: u64 = ours.iter().map(parts).sum::<Result<u64>>()?;
        ensure!(sum == parts(&found["sums"][0])?, "{machine}: the services have {sum}");
    }
    for at in CORES {
        let whole = &services["machines"][at]["slots"][0];
        let all = &found["sums"][0]["on"][at];
        ensure!(whole["dispatch"] == all["dispatch"], "other slots of the dispatch: {all}");
        ensure!(whole["graduation"] == all["graduation"], "other slots of the graduation: {all}");
        for row in &theirs {
            let same = |ours: &&Value| ours["kind"] == row["kind"] && ours["name"] == row["name"];
            let our = ours.iter().find(same).with_context(|| format!("no row {}", row["name"]))?;
            let slots = &row["on"][at]["slots"];
            ensure!(
                our["on"][at]["dispatch"] == slots["dispatch"]
                    && our["on"][at]["graduation"] == slots["graduation"],
                "other slots of {}",
                row["name"]
            );
        }
    }
    println!("passed: services add up to the recording, as those of report services do");
    Ok(())
}

/// The texts of all cells of the tables below a heading.
fn tables(browser: &Browser, heading: &str) -> Result<Vec<Vec<Vec<String>>>> {
    let cells = browser.run(&format!(
        "{} return [...section.querySelectorAll('table')].map((t) =>
            [...t.querySelectorAll('tbody tr')].map((r) => [...r.cells].map((c) => c.textContent)))",
        super::table(heading)
    ))?;
    Ok(serde_json::from_value(cells)?)
}

/// The number in a cell.
fn number(cell: &str) -> Result<f64> {
    let digits = cell.replace(',', "").replace(" %", "");
    digits.parse().with_context(|| format!("{cell:?} is not a number"))
}

/// Whether a cell with two digits behind the point shows this number.
fn shows(cell: &str, expected: f64) -> Result<()> {
    let shown = number(cell)?;
    ensure!((shown - expected).abs() <= 0.005_001, "{cell} is shown for {expected}");
    Ok(())
}

/// The slots of a row on a machine, by part, and all.
fn slots(row: &Value, at: usize, parts: &[&str], of: &str) -> Result<(Vec<f64>, f64)> {
    let slots = &row["on"][at][of];
    let each = parts.iter().map(|part| slots[part].as_f64().with_context(|| format!("no {part}")));
    let each: Vec<f64> = each.collect::<Result<_>>()?;
    let all = each.iter().sum();
    Ok((each, all))
}

/// The title of a service, as the page has it.
fn title(row: &Value) -> String {
    let (kind, name) = (row["kind"].as_str().unwrap_or(""), row["name"].as_str().unwrap_or(""));
    match kind {
        "" | "idle" => name.to_owned(),
        "ipi" => format!("IPI {name}"),
        _ => format!("{} {name}", kind.replace('-', " ")),
    }
}

fn slots_are(
    table: &[Vec<String>],
    found: &Value,
    at: usize,
    parts: &[&str],
    of: &str,
) -> Result<()> {
    let rows = found["rows"].as_array().context("no rows")?;
    let (_, whole) = slots(&found["sums"][0], at, parts, of)?;
    ensure!(table.len() >= 5, "only {} services", table.len());
    for cells in table {
        let row = rows.iter().find(|row| title(row) == cells[0]);
        let row = row.with_context(|| format!("the page has a service {}", cells[0]))?;
        let (each, all) = slots(row, at, parts, of)?;
        shows(&cells[1], 100.0 * all / whole)?;
        ensure!(number(&cells[2])? == all, "{}: {} slots, not {all}", cells[0], cells[2]);
        for (cell, slots) in cells[3..].iter().zip(&each) {
            shows(cell, 100.0 * slots / all.max(1.0))?;
        }
    }
    Ok(())
}

/// Checks the first bar below a heading, that of everything.
fn bars_are(
    browser: &Browser,
    heading: &str,
    found: &Value,
    at: usize,
    parts: &[&str],
    of: &str,
) -> Result<()> {
    let drawn = browser.run(&format!(
        "{} const bars = section.querySelector('.bars');
        return [bars.querySelector('span').textContent, bars.querySelector('.value').textContent,
            [...bars.querySelector('.bar').children].map((s) => s.title),
            [...bars.querySelector('.bar').children].map((s) => s.style.width)]",
        super::table(heading)
    ))?;
    let cpi = found["sums"][0]["on"][at]["cpi"].as_f64().context("no CPI")?;
    ensure!(drawn[0] == "all", "{heading}: the first bar is {}", drawn[0]);
    shows(drawn[1].as_str().context("no value")?.trim_start_matches("CPI "), cpi)?;
    let (each, all) = slots(&found["sums"][0], at, parts, of)?;
    for (which, slots) in each.iter().enumerate() {
        let printed = drawn[2][which].as_str().context("no title")?;
        shows(printed.rsplit(": ").next().unwrap_or(""), 100.0 * slots / all)?;
        let width = drawn[3][which].as_str().context("no width")?.trim_end_matches('%');
        let width: f64 = width.parse()?;
        ensure!((width - 100.0 * slots / all).abs() < 0.01, "{heading}: {printed} is {width} wide");
    }
    Ok(())
}

/// The slots of thirds of the recording add up to those of all of it.
fn ranges_add_up(browser: &Browser) -> Result<()> {
    let wrong = browser.run_to_end(
        "const done = arguments[0];
        unpacked(document.getElementById('data').textContent).then(({ recordings: [r] }) => {
          const wrong = [];
          const { range } = exploredOf(r);
          const third = Math.ceil(range.slices / 3);
          const parts = [[0, third], [third, 2 * third], [2 * third, range.slices]]
            .map(([from, until]) => generationsIn(r, { from, until, isWhole: () => false }));
          const check = (row, ofPart) => {
            const of = parts.map(ofPart).filter((found) => found);
            const compare = (what, value, near) => {
              const sum = of.reduce((sum, one) => sum + value(one), 0);
              if (Math.abs(sum - value(row)) > near * value(row))
                wrong.push(`${what} of ${row.name}: ${sum} and ${value(row)}`);
            };
            compare('instructions', (one) => one.instructions, 0);
            if (row.kind && row.kind !== 'user') compare('calls', (one) => one.calls, 0);
            row.on.forEach((on, at) => {
              // Without a core, stalls are rounded to thousandths of cycles.
              const near = hasCore(r, at) ? 0 : 1e-4;
              for (const [kind, fields] of SLOT_COLUMNS) {
                if (!on[kind]) continue;
                for (const field of fields)
                  compare(`${kind}, ${field}`, (one) => one.on[at][kind][field], near);
              }
              compare('milliseconds', (one) => one.on[at].milliseconds, 1e-4);
            });
          };
          for (const row of r.generations.rows)
            check(row, ({ rows }) =>
              rows.find(({ kind, name }) => kind === row.kind && name === row.name));
          r.generations.sums.forEach((row, at) => check(row, ({ sums }) => sums[at]));
          // All slices, as a range that is not the whole recording.
          const all = generationsIn(r, { from: 0, until: range.slices, isWhole: () => false });
          r.generations.sums[1].on.forEach(({ cpi, split }, at) => {
            const found = all.sums[1].on[at];
            if (Math.abs(found.cpi / cpi - 1) > 1e-4) wrong.push(`CPI ${found.cpi}, ${cpi}`);
            for (const part of ['speedup', 'technology', 'architecture'])
              if (Math.abs(found.split[part] / split[part] - 1) > 1e-4)
                wrong.push(`${part}: ${found.split[part]}, ${split[part]}`);
          });
          done(wrong);
        }, (error) => done([String(error)]));",
    )?;
    ensure!(wrong == serde_json::json!([]), "slots of parts of the recording: {wrong}");
    println!("passed: slots of parts of the recording add up to those of the whole");
    Ok(())
}

/// The sections show other numbers while a range is selected.
fn sections_follow(browser: &Browser) -> Result<()> {
    let shown = || {
        browser.run_to_end(
            "const done = arguments[0];
            setTimeout(() => done([...document.querySelectorAll('section')]
              .filter((section) => section.querySelector('h3')?.textContent.endsWith('simulated'))
              .map((section) => [section.classList.contains('whole'),
                section.querySelector('.bars').textContent,
                section.querySelector('tbody').textContent])), 300);",
        )
    };
    let whole = shown()?;
    browser.keys("canvas.tracks", "\u{e011}")?;
    // With Shift, the arrow selects.
    browser.keys("canvas.tracks", "\u{e008}\u{e014}\u{e014}\u{e014}\u{e008}")?;
    let part = shown()?;
    for (at, heading) in SECTIONS.iter().enumerate() {
        ensure!(part[at][0] == false, "{heading}: shows the whole recording");
        ensure!(part[at][1] != whole[at][1], "{heading}: the bars do not follow the range");
        ensure!(part[at][2] != whole[at][2], "{heading}: the table does not follow the range");
    }
    browser.keys("canvas.tracks", "\u{e00c}")?;
    ensure!(shown()? == whole, "Escape does not select the whole recording again");
    println!("passed: the sections of cores follow the selected range");
    Ok(())
}

fn side_by_side(browser: &Browser, found: &Value) -> Result<()> {
    let heading = SECTIONS[2];
    let tables = tables(browser, heading)?;
    let machines = tables.first().context("no table of machines")?;
    ensure!(machines.len() == MACHINES.len(), "{} machines", machines.len());
    let values = browser.run(&format!(
        "{} return [...section.querySelectorAll('.bars .value')].map((v) => v.textContent)",
        super::table(heading)
    ))?;
    let time = |at: usize| found["sums"][0]["on"][at]["milliseconds"].as_f64().context("no time");
    for (at, cells) in machines.iter().enumerate() {
        let clock = found["machines"][at]["megahertz"].as_f64();
        ensure!(cells[0] == MACHINES[at] && Some(number(&cells[1])?) == clock, "{cells:?}");
        shows(&cells[2], time(at)?)?;
        shows(values[at].as_str().context("no value")?, 100.0 * time(at)? / time(0)?)?;
        for (sum, three) in cells[3..].chunks(3).enumerate() {
            let split = &found["sums"][sum]["on"][at]["split"];
            for (cell, part) in three.iter().zip(["speedup", "technology", "architecture"]) {
                shows(cell, split[part].as_f64().with_context(|| format!("no {part}"))?)?;
            }
            let part = |name: &str| split[name].as_f64().unwrap_or(0.0);
            let product = part("technology") * part("architecture");
            ensure!((product / part("speedup") - 1.0).abs() < 1e-12, "{split}");
        }
    }
    Ok(())
}
