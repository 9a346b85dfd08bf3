//! Exploring a recording on its page: range, tracks, flame graph, tables, phone and paper.

use super::browser::Browser;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// The largest page of a recording of this many instructions, in bytes.
const LARGEST: usize = 3_000_000;
const INSTRUCTIONS: u64 = 300_000_000;

/// The page is small enough.
pub(super) fn size(html: &str, data: &Value) -> Result<()> {
    let instructions =
        data["recordings"][0]["table"]["instructions"].as_u64().context("no instructions")?;
    let times = instructions.div_ceil(INSTRUCTIONS).max(1) as usize;
    ensure!(html.len() <= LARGEST * times, "the page has {} bytes", html.len());
    println!("passed: {} bytes for a recording of {instructions} instructions", html.len());
    Ok(())
}

/// Tests that sections follow the range, and the parts that the reader drives.
pub(super) fn explores(browser: &Browser, data: &Value) -> Result<()> {
    numbers_add_up(browser)?;
    tracks(browser, data)?;
    sections_follow(browser, data)?;
    flame_graph(browser)?;
    tables(browser)?;
    axes(browser)?;
    frames(browser)
}

/// What the page computes for parts of the recording adds up to the numbers of the whole, which
/// come from other code.
fn numbers_add_up(browser: &Browser) -> Result<()> {
    let found = browser.run_to_end(
        "const done = arguments[0];
        unpacked(document.getElementById('data').textContent).then(({ recordings: [r] }) => {
          const wrong = [];
          const same = (what, one, other) => {
            if (one !== other) wrong.push(`${what}: ${one} and ${other}`);
          };
          const { range, frames } = exploredOf(r);
          const third = Math.ceil(range.slices / 3);
          const parts = [[0, third], [third, 2 * third], [2 * third, range.slices]]
            .filter(([from, until]) => from < until)
            .map(([from, until]) => ({ from, until, isWhole: () => false }));
          const add = (field) => parts.map(field).reduce((sum, value) => sum + value, 0);
          const all = () => true;
          same('instructions', add((p) => instructionsOf(frames, p, all)), r.table.instructions);
          const services = parts.map((p) => servicesIn(r, { range: p, frames }));
          for (const row of r.table.rows) {
            const of = services.map((list) =>
              list.find(({ kind, name }) => kind === row.kind && name === row.name));
            const sum = (field) => of.reduce((sum, one) => sum + (one ? field(one) : 0), 0);
            const name = `${row.kind} ${row.name}`;
            same(name, sum((one) => one.counts[INSTRUCTIONS]), row.instructions);
            if (row.kind === 'user') continue;
            same(`calls of ${name}`, sum((one) => one.ended.calls), row.calls);
            same(`classes of ${name}`,
              sum((one) => one.ended.classes.reduce((sum, [, calls]) => sum + calls, 0)),
              row.calls);
            const latency = sum((one) => one.ended.latency) / row.calls;
            if (Math.abs(latency - row.latency.total) > 1e-6 * latency)
              wrong.push(`latency of ${name}: ${latency} and ${row.latency.total}`);
            if (r.table.machines.length > 0)
              same(`L1I misses of ${name}`, sum((one) => one.counts[L1I]), row.on[0].l1i_misses);
            const cycles = sum((one) => one.counts[INSTRUCTIONS] + one.counts[STALL]);
            const expected = row.on[0]?.cycles ?? cycles;
            if (Math.abs(cycles - expected) > 1e-3 * expected + 100)
              wrong.push(`cycles of ${name}: ${cycles} and ${expected}`);
          }
          const functions = parts.map((p) => functionsIn(frames, p));
          for (const row of r.functions) {
            for (const field of ['instructions', 'calls', 'l1i', 'l1d', 'l2']) {
              const sum = functions.reduce((sum, list) =>
                sum + (list.find(({ name }) => name === row.name)?.[field] ?? 0), 0);
              same(`${field} of ${row.name}`, sum, row[field]);
            }
          }
          r.rows.forEach(({ counters, machine, layout }, at) => {
            for (const [level, of] of LEVELS) {
              for (const [name, mode, cause] of CAUSES) {
                if (!of(counters)) continue;
                const sum = add((p) => of(missesIn(r.slices.misses[at], p))[mode][cause]);
                same(`${machine}, ${layout}, ${level}, ${name}`, sum, of(counters)[mode][cause]);
              }
            }
          });
          const whole = { isWhole: () => true };
          const addUp = (what, ofRange, key, fields) => {
            const of = parts.map((p) => new Map(ofRange(p).map((row) => [key(row), row])));
            const rows = ofRange(whole);
            if (rows.length === 0) wrong.push(`no rows of ${what}`);
            for (const row of rows) {
              for (const [field, value] of fields) {
                const sum = of.reduce((sum, rows) =>
                  sum + (rows.has(key(row)) ? value(rows.get(key(row))) : 0), 0);
                same(`${what} ${key(row)}, ${field}`, sum, value(row));
              }
            }
          };
          const causes = CAUSES.map(([name, mode, cause]) => [name, (row) => row[mode][cause]]);
          addUp('sizes', (p) => sizesIn(r, p),
            ({ holds, size, ways }) => `${holds} ${size} ${ways}`, causes);
          if (r.data) addUp('data', (p) => structuresIn(r, p),
            (row) => `${row.class} ${row.name}`,
            [...causes, ['L2', (row) => row.l2], ['L3', (row) => row.l3]]);
          for (const map of r.maps) addUp(`map of ${map.layout}`,
            (p) => cellsIn(map, p).map((misses, at) => ({ misses, at }))
              .filter(({ misses }) => misses > 0),
            ({ at }) => at, [['misses', ({ misses }) => misses]]);
          const visits = (p) => shareIn(r, { range: p, frames }).visits;
          if (visits(whole).length > 0) addUp('visits by', visits,
            (row) => `${row.kind} ${row.name}`, [['visits', ({ lengths }) => lengths.count]]);
          same('interrupts', add((p) => shareIn(r, { range: p, frames }).interrupts.count),
            r.os_share.interrupts.count);
          // All slices, as a range that is not the whole recording.
          const slices = { from: 0, until: range.slices, isWhole: () => false };
          const found = shareIn(r, { range: slices, frames });
          const os = r.os_share;
          const near = (what, one, other) => {
            if (Math.abs(one - other) > 1e-3) wrong.push(`${what}: ${one} and ${other}`);
          };
          same('share of the kernel', found.share, os.share);
          same('median of interrupts', found.interrupts.median, os.interrupts.median);
          for (const { kind, name, lengths } of os.visits.filter((row) => row.lengths.count > 0)) {
            const of = found.visits.find((row) => row.kind === kind && row.name === name)?.lengths;
            same(`median of ${kind} ${name}`, of?.median, lengths.median);
            same(`ninth decile of ${kind} ${name}`, of?.ninth_decile, lengths.ninth_decile);
          }
          found.machines.forEach(({ cycles, l1i_misses }, at) => {
            near('share of the cycles', cycles, os.machines[at].cycles);
            near('share of the L1I misses', l1i_misses, os.machines[at].l1i_misses);
          });
          const drawn = sumsOf(r.timeline.buckets, r.timeline.buckets.user.length)
            .reduce((sum, sums) => sum + sums.at(-1), 0);
          const tasks = r.timeline.tasks.flatMap(({ buckets }) => PARTS.flatMap(
            ([, field]) => buckets[field])).reduce((sum, time) => sum + time, 0);
          if (Math.abs(tasks - drawn) > 1e-3 * drawn)
            wrong.push(`time of all tasks: ${tasks} and ${drawn}`);
          done(wrong);
        }, (error) => done([String(error)]));",
    )?;
    ensure!(found == json!([]), "parts of the recording do not add up: {found}");
    println!("passed: the numbers of parts of the recording add up to those of the whole");
    Ok(())
}

fn text(browser: &Browser, script: &str) -> Result<String> {
    Ok(browser.run(script)?.as_str().with_context(|| format!("no text: {script}"))?.to_owned())
}

/// The first and the last time that the tracks show.
fn view(browser: &Browser) -> Result<[u64; 2]> {
    let shown = browser.run_to_end(
        "const done = arguments[0];
        requestAnimationFrame(() => requestAnimationFrame(() => {
          const { from, until } = document.querySelector('canvas.tracks').dataset;
          done([Number(from), Number(until)]);
        }));",
    )?;
    let time = |at: usize| shown[at].as_u64().context("no time");
    Ok([time(0)?, time(1)?])
}

fn tracks(browser: &Browser, data: &Value) -> Result<()> {
    let shown = || text(browser, "return document.querySelector('canvas.tracks').dataset.tracks");
    let timeline = &data["recordings"][0]["timeline"];
    let tasks = timeline["tasks"].as_array().context("no tasks")?;
    let cpus = timeline["cpus"].as_array().map_or(0, Vec::len);
    let first = shown()?;
    let names: Vec<&str> = first.lines().collect();
    let busiest = tasks.first().and_then(|task| task["name"].as_str()).context("no task")?;
    ensure!(
        names.first() == Some(&"all CPUs") && names[cpus + 1].starts_with(busiest),
        "the tracks are {names:?}, and the first task is {busiest}"
    );
    if names.len() < 1 + cpus + tasks.len() {
        browser.run(
            "[...document.querySelectorAll('button')]
                .find(({ textContent }) => textContent.startsWith('All ')).click()",
        )?;
        view(browser)?;
        ensure!(shown()?.lines().count() == 1 + cpus + tasks.len(), "not a track for each task");
    }
    println!("passed: {} tracks of all, {cpus} CPUs and {} tasks", 1 + cpus, tasks.len());

    let whole = view(browser)?;
    let keys = |keys: &str| -> Result<[u64; 2]> {
        browser.keys("canvas.tracks", keys)?;
        view(browser)
    };
    let close = keys("+++")?;
    ensure!(
        close[0] > whole[0] && close[1] < whole[1] && whole[0] == 0,
        "{whole:?} is zoomed to {close:?}"
    );
    let moved = keys("\u{e00f}")?;
    ensure!(
        moved[0] > close[0] && (moved[1] - moved[0]).abs_diff(close[1] - close[0]) <= 1,
        "{close:?} is panned to {moved:?}"
    );
    ensure!(keys("\u{e00c}")? == whole, "Escape does not show the whole recording");
    browser.run(
        "const tracks = document.querySelector('canvas.tracks');
        tracks.scrollIntoView();
        const { left, top, width } = tracks.getBoundingClientRect();
        tracks.dispatchEvent(new WheelEvent('wheel', { bubbles: true, cancelable: true,
          ctrlKey: true, deltaY: -300, clientX: left + width, clientY: top + 50 }));",
    )?;
    let right = view(browser)?;
    ensure!(
        right[0] > whole[0] && right[1] == whole[1],
        "the wheel at the right end zooms {whole:?} to {right:?}"
    );
    // Two fingers, twice as far apart.
    keys("\u{e00c}")?;
    browser.run(
        "const tracks = document.querySelector('canvas.tracks');
        const { left, top, width } = tracks.getBoundingClientRect();
        tracks.setPointerCapture = () => {};
        const finger = (type, pointerId, share) => tracks.dispatchEvent(new PointerEvent(type, {
          bubbles: true, pointerId, pointerType: 'touch', button: type === 'pointermove' ? -1 : 0,
          clientX: left + share * width, clientY: top + 50 }));
        finger('pointerdown', 11, 0.45);
        finger('pointerdown', 12, 0.55);
        finger('pointermove', 11, 0.4);
        finger('pointermove', 12, 0.6);
        finger('pointerup', 11, 0.4);
        finger('pointerup', 12, 0.6);",
    )?;
    let pinched = view(browser)?;
    let share = (pinched[1] - pinched[0]) as f64 / (whole[1] - whole[0]) as f64;
    ensure!((0.45..0.55).contains(&share), "two fingers show {share} of the time");
    keys("\u{e00c}")?;
    println!("passed: keys, the wheel and two fingers zoom and pan");
    Ok(())
}

/// The sections that do not follow a range.
const OF_SEVERAL_CPUS: [&str; 2] =
    ["Services on several CPUs, simulated", "The kernel's misses by size of the L2, simulated"];

/// What the sections show, by the name that a failure gives it.
const SHOWN: &str = r#"
const part = (heading) => [...document.querySelectorAll('section')]
  .find((section) => section.querySelector('h3')?.textContent === heading);
const shown = {
  numbers: document.querySelector('.cards').textContent,
  services: part('Services').querySelector('tbody').textContent,
  functions: part('Functions').querySelector('tbody').textContent,
  flame: document.querySelector('canvas.flame').dataset.total,
  misses: part('Misses by cause').querySelector('tbody').textContent,
  sizes: part('Misses by size').querySelector('.bars').textContent,
  caches: part('Misses by size').querySelector('tbody').textContent,
  addresses: part("Where the kernel's code misses").querySelector('p').textContent,
  map: part("Where the kernel's code misses").querySelector('svg path').getAttribute('d'),
  share: part("The system's share").querySelector('p').textContent,
  visits: part("The system's share").querySelector('tbody').textContent,
};
const data = part('Misses by data structure');
if (data) shown.data = data.querySelector('tbody').textContent;
"#;

fn sections_follow(browser: &Browser, data: &Value) -> Result<()> {
    let shown = || -> Result<Value> {
        browser.run_to_end(&format!(
            "const done = arguments[0];
            setTimeout(() => {{ {SHOWN} done(shown); }}, 300);"
        ))
    };
    let whole = shown()?;
    let place = browser.run(
        "const tracks = document.querySelector('canvas.tracks');
        // With a track for each task it may be higher than the window.
        tracks.scrollIntoView();
        window.scrollBy(0, -100);
        const { left, top, width } = tracks.getBoundingClientRect();
        return [left, top, width].map(Math.round)",
    )?;
    let at = |which: usize| place[which].as_i64().context("no place");
    let (left, top, width) = (at(0)?, at(1)?, at(2)?);
    browser.drag([left + width / 2, top + 60], [left + width * 3 / 4, top + 60])?;
    let part = shown()?;
    for (name, before) in whole.as_object().context("nothing shown")? {
        ensure!(&part[name] != before, "{name} does not follow the range: {before}");
    }
    let notes = browser.run(
        "return [document.querySelector('.range').hidden,
            [...document.querySelectorAll('section.whole h3')].map((h) => h.textContent)]",
    )?;
    ensure!(notes[0] == json!(false), "nothing says that a range is selected");
    let several = !data["recordings"][0]["multiprocessor"].is_null();
    let remain = if several { &OF_SEVERAL_CPUS[..] } else { &[] };
    ensure!(notes[1] == json!(remain), "these sections are of the whole recording: {}", notes[1]);
    browser.keys("canvas.tracks", "\u{e00c}")?;
    let again = shown()?;
    ensure!(again == whole, "Escape does not select the whole recording again");
    browser.keys("canvas.tracks", "\u{e011}")?;
    // With Shift, the arrow selects.
    browser.keys("canvas.tracks", "\u{e008}\u{e014}\u{e014}\u{e014}\u{e008}")?;
    ensure!(shown()? != whole, "keys select no range");
    browser.keys("canvas.tracks", "\u{e00c}")?;
    ensure!(shown()? == whole, "Escape does not undo what keys selected");
    println!("passed: all sections and the flame graph follow the selected range");
    Ok(())
}

fn flame_graph(browser: &Browser) -> Result<()> {
    let state = |field: &str| {
        text(browser, &format!("return document.querySelector('canvas.flame').dataset.{field}"))
    };
    let keys = |keys: &str| browser.keys("canvas.flame", keys);
    let all = state("boxes")?;
    // To the first service, and into it.
    keys("\u{e015}\u{e015}\u{e007}")?;
    ensure!(state("boxes")? != all, "Enter does not zoom the flame graph");
    keys("\u{e00c}")?;
    ensure!(state("boxes")? == all, "Escape does not show the whole flame graph");
    let tip = text(
        browser,
        "const flame = document.querySelector('canvas.flame');
        const { left, top } = flame.getBoundingClientRect();
        flame.dispatchEvent(new PointerEvent('pointermove',
          { pointerType: 'mouse', clientX: left + 5, clientY: top + 40 }));
        const tip = document.querySelector('.tip');
        return tip.hidden ? '' : tip.textContent",
    )?;
    ensure!(
        ["calls", "instructions", "own", "cycles", "L1I misses"].iter().all(|it| tip.contains(it)),
        "the tooltip says {tip:?}"
    );
    println!("passed: the flame graph zooms, and its tooltip has calls, own costs and misses");
    let (total, outermost) = (state("total")?, state("outermost")?);
    keys("i")?;
    ensure!(
        state("total")? == total && state("outermost")? != outermost,
        "inverted: {} on {}",
        state("total")?,
        state("outermost")?
    );
    // The callers of the function with the most instructions of its own.
    let first = state("outermost")?;
    let first = first.lines().next().context("no function")?;
    keys("\u{e015}c")?;
    ensure!(state("outermost")? == first, "callers of {first}: {}", state("outermost")?);
    keys("\u{e015}d")?;
    ensure!(state("outermost")? == first, "callees of {first}: {}", state("outermost")?);
    keys("ii")?;
    ensure!(state("outermost")? == outermost, "not upright again: {}", state("outermost")?);
    let weigh = |weight: &str| {
        text(
            browser,
            &format!(
                "const select = [...document.querySelectorAll('select')]
                    .find((one) => one.getAttribute('aria-label') === 'Width of a box');
                select.value = '{weight}';
                select.dispatchEvent(new Event('change'));
                return document.querySelector('canvas.flame').dataset.total"
            ),
        )
    };
    let number = |text: String| text.parse::<u64>().with_context(|| format!("{text:?}"));
    let (cycles, misses) = (number(weigh("cycles")?)?, number(weigh("l1i")?)?);
    let instructions = number(weigh("instructions")?)?;
    ensure!(
        cycles > instructions && misses > 0 && misses < instructions,
        "{instructions} instructions, {cycles} cycles, {misses} misses"
    );
    println!("passed: the flame graph inverts, shows callers and callees, and has three weights");
    Ok(())
}

fn tables(browser: &Browser) -> Result<()> {
    let found = browser.run(
        "const table = [...document.querySelectorAll('.sortable')][0];
        const titles = [...table.querySelectorAll('th')].map((th) => th.textContent);
        const at = titles.findIndex((title) => title.startsWith('50 %'));
        const number = (cell) => Number(cell.textContent.replaceAll(',', ''));
        const rows = [...table.querySelectorAll('tbody tr')]
          .map((row) => [0, 1, 2].map((more) => number(row.cells[at + more])))
          .filter((row) => row.every((value) => !Number.isNaN(value)));
        const scroll = table.querySelector('.scroll');
        scroll.style.width = '300px';
        scroll.scrollLeft = 0;
        const cell = table.querySelector('td');
        const before = cell.getBoundingClientRect().left;
        scroll.scrollLeft = 150;
        const moved = cell.getBoundingClientRect().left - before;
        const [scrolled] = [scroll.scrollLeft];
        scroll.style.width = '';
        const full = Math.max(...[...document.querySelectorAll('.scroll')]
          .map((one) => one.clientWidth - one.querySelector('table').offsetWidth));
        return [titles, rows, moved, scrolled, full]",
    )?;
    let rows = found[1].as_array().context("no percentiles")?;
    ensure!(rows.len() > 5, "percentiles of {} services: {}", rows.len(), found[0]);
    for row in rows {
        let of = |at: usize| row[at].as_f64().context("no number");
        ensure!(of(0)? <= of(1)? && of(1)? <= of(2)?, "percentiles {row}");
    }
    let number = |at: usize| found[at].as_f64().context("no number");
    ensure!(number(3)? > 100.0 && number(2)?.abs() < 1.0, "the first column moves: {found}");
    ensure!(number(4)? <= 0.0, "a table is narrower than the page: {found}");
    println!("passed: tables have percentiles, the full width, and a first column in view");
    Ok(())
}

fn axes(browser: &Browser) -> Result<()> {
    let found = browser.run(
        "return [...document.querySelectorAll('svg.map')[0].querySelectorAll('text.axis')]
            .map((text) => text.textContent)",
    )?;
    let labels: Vec<&str> =
        found.as_array().context("no axes")?.iter().filter_map(Value::as_str).collect();
    let addresses = labels.iter().filter(|label| label.starts_with("ffffffff")).count();
    ensure!(addresses >= 3 && labels.contains(&"0"), "the axes of the address map: {labels:?}");
    println!("passed: the address map has axes");
    Ok(())
}

/// Frames in a second, while the tracks zoom and while a range is selected.
fn frames(browser: &Browser) -> Result<()> {
    let run = |each: &str| -> Result<f64> {
        let found = browser.run_to_end(&format!(
            "const done = arguments[0];
            const tracks = document.querySelector('canvas.tracks');
            tracks.scrollIntoView();
            const {{ left, top, width }} = tracks.getBoundingClientRect();
            const pointer = (type, clientX) => tracks.dispatchEvent(new PointerEvent(type,
              {{ bubbles: true, pointerId: 21, pointerType: 'mouse', clientX, clientY: top + 50,
                button: type === 'pointermove' ? -1 : 0 }}));
            const times = [];
            const step = (time) => {{
              times.push(time);
              const at = times.length;
              if (at > 120) return done(1000 * (at - 1) / (times.at(-1) - times[0]));
              {each}
              requestAnimationFrame(step);
            }};
            requestAnimationFrame(step);"
        ))?;
        found.as_f64().context("no frames")
    };
    let zooming = run("tracks.dispatchEvent(new WheelEvent('wheel', { bubbles: true,
        cancelable: true, ctrlKey: true, deltaY: at % 60 < 30 ? -20 : 20,
        clientX: left + width / 2, clientY: top + 50 }));")?;
    let selecting = run("if (at === 2) pointer('pointerdown', left + width / 4);
        pointer('pointermove', left + width / 4 + at * 3);
        if (at === 120) pointer('pointerup', left + width / 2);")?;
    browser.keys("canvas.tracks", "\u{e00c}")?;
    // Until tables have the heads of the whole recording again.
    browser.run_to_end("setTimeout(arguments[0], 300, 0)")?;
    println!("frames in a second: {zooming:.0} while zooming, {selecting:.0} while selecting");
    Ok(())
}

/// Tests the page in a narrow window and as it is printed.
pub(super) fn on_a_phone_and_on_paper(browser: &Browser) -> Result<()> {
    let metrics = json!({"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true});
    browser.command("Emulation.setDeviceMetricsOverride", &metrics)?;
    let found = browser.run_to_end(
        "const done = arguments[0];
        setTimeout(() => done([innerWidth, document.documentElement.scrollWidth,
          document.querySelector('canvas.tracks').width,
          Number(getComputedStyle(document.querySelector('svg.map .axis')).fontSize
            .replace('px', '')) * document.querySelector('svg.map').clientWidth /
            document.querySelector('svg.map').viewBox.baseVal.width]), 300)",
    )?;
    let number = |at: usize| found[at].as_f64().context("no number");
    ensure!(
        number(0)? == 390.0 && number(1)? <= 390.0 && number(2)? > 600.0 && number(3)? >= 10.0,
        "on a phone: the window, the page, dots of the tracks, the size of letters: {found}"
    );
    browser.command("Emulation.clearDeviceMetricsOverride", &json!({}))?;
    browser.command("Emulation.setEmulatedMedia", &json!({"media": "print"}))?;
    let hidden = browser.run(
        "return ['nav', '.tools', '#theme']
            .filter((what) => getComputedStyle(document.querySelector(what)).display !== 'none')",
    )?;
    browser.command("Emulation.setEmulatedMedia", &json!({"media": ""}))?;
    ensure!(hidden == json!([]), "these are printed: {hidden}");
    let dark = "return getComputedStyle(document.body).backgroundColor";
    browser.run("if (document.getElementById('theme').textContent === 'Dark') theme.click()")?;
    let (screen, paper) = (
        text(browser, dark)?,
        text(browser, &format!("dispatchEvent(new Event('beforeprint')); {dark}"))?,
    );
    let after = text(browser, &format!("dispatchEvent(new Event('afterprint')); {dark}"))?;
    ensure!(
        screen == after && paper == "rgb(255, 255, 255)" && screen != paper,
        "the ground is {screen}, {paper} on paper, then {after}"
    );
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "the page's console has messages: {complaints:?}");
    println!("passed: the page fits a phone, and is printed on white without its controls");
    Ok(())
}
