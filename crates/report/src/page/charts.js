// Charts: execution over time, address maps, flame graphs. They draw numbers from the data.
// Only widths and heights are computed here.

const WIDTH = 1100;

// Draws the stacked parts of each bucket, as shares of the bucket.
// parts: [name, color, value of a bucket], the lowest first.
const timeline = (buckets, width, unit, parts, label) => {
  const [left, height] = [44, 240];
  const wide = (WIDTH - left) / buckets.length;
  const svg = drawn("svg", {
    viewBox: `0 0 ${WIDTH} ${height + 30}`,
    role: "img",
    tabindex: "0",
    "aria-label": label,
  });
  const totals = buckets.map((bucket) =>
    parts.reduce((sum, [, , value]) => sum + value(bucket), 0),
  );
  let below = buckets.map(() => 0);
  const y = (value) => (height * (1 - value) + 5).toFixed(2);
  for (const [name, color, value] of parts) {
    const above = below.map(
      (low, at) => low + (totals[at] > 0 ? value(buckets[at]) / totals[at] : 0),
    );
    const x = (at) => (left + at * wide).toFixed(2);
    const over = above.map((high, at) => `L${x(at)} ${y(high)}L${x(at + 1)} ${y(high)}`).join("");
    const under = below
      .map((low, at) => `L${x(at + 1)} ${y(low)}L${x(at)} ${y(low)}`)
      .reverse()
      .join("");
    svg.append(
      drawn(
        "path",
        { d: `M${x(0)} ${y(below[0])}${over}${under}Z`, style: `fill: var(--${color})` },
        drawn("title", {}, name),
      ),
    );
    below = above;
  }
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(
      drawn("line", {
        class: "grid",
        x1: left,
        x2: WIDTH,
        y1: y(tick),
        y2: y(tick),
        "stroke-opacity": 0.6,
      }),
      drawn(
        "text",
        { class: "axis", x: left - 6, y: Number(y(tick)) + 4, "text-anchor": "end" },
        `${100 * tick} %`,
      ),
    );
  }
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    const at = left + tick * (WIDTH - left);
    svg.append(
      drawn(
        "text",
        {
          class: "axis",
          x: at,
          y: height + 22,
          "text-anchor": tick === 0 ? "start" : tick === 1 ? "end" : "middle",
        },
        `${short(tick * buckets.length * width)} ${unit}`,
      ),
    );
  }
  const cursor = drawn("line", { class: "cursor", y1: 5, y2: height + 5, visibility: "hidden" });
  svg.append(cursor);
  const readout = element("div", { class: "readout", role: "status" });
  let chosen = 0;
  const choose = (at) => {
    chosen = Math.min(Math.max(at, 0), buckets.length - 1);
    const x = left + (chosen + 0.5) * wide;
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x);
    cursor.setAttribute("visibility", "visible");
    const amounts = parts.map(
      ([name, , value]) =>
        `${name} ${number((100 * value(buckets[chosen])) / (totals[chosen] || 1), 1)} %`,
    );
    readout.textContent = `at ${short(chosen * width)} ${unit}: ${amounts.join(", ")}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    choose(Math.floor((((event.clientX - box.left) / box.width) * WIDTH - left) / wide));
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 }[
      event.key
    ];
    if (step === undefined) return;
    event.preventDefault();
    choose(chosen + step);
  });
  return [legend(parts.map(([name, color]) => [name, color]).reverse()), svg, readout];
};

// Misses by address: one map for each layout. A miss has the same height in all maps.
const addressMap = (maps) => {
  const height = 90;
  const largest = Math.max(1, ...maps.flatMap((map) => map.misses));
  return maps.map((map) => {
    const wide = WIDTH / map.misses.length;
    const start = BigInt(`0x${map.start}`);
    const bars = map.misses
      .map((misses, at) => [misses, at])
      .filter(([misses]) => misses > 0)
      .map(([misses, at]) => {
        const tall = Math.max(1, height * Math.sqrt(misses / largest));
        return (
          `M${(at * wide).toFixed(2)} ` +
          `${height}v-${tall.toFixed(2)}h${Math.max(1, wide).toFixed(2)}v${tall.toFixed(2)}z`
        );
      });
    const end = start + BigInt(map.cell) * BigInt(map.misses.length);
    const svg = drawn(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${height + 18}`,
        role: "img",
        "aria-label": `L1I misses by address, ${map.layout}`,
      },
      drawn("rect", { x: 0, y: 0, width: WIDTH, height, style: "fill: var(--panel)" }),
      drawn("path", { d: bars.join(""), style: "fill: var(--kernel-self)" }),
      drawn("text", { class: "axis", x: 0, y: height + 14 }, start.toString(16)),
      drawn(
        "text",
        { class: "axis", x: WIDTH, y: height + 14, "text-anchor": "end" },
        end.toString(16),
      ),
    );
    const readout = element("div", { class: "readout" });
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = Math.floor(((event.clientX - box.left) / box.width) * map.misses.length);
      if (!(at in map.misses)) return;
      readout.textContent =
        `${(start + BigInt(map.cell) * BigInt(at)).toString(16)}: ${count(map.misses[at])} ` +
        `misses in ${count(map.cell)} bytes`;
    });
    return element(
      "div",
      {},
      element(
        "p",
        {},
        element("b", {}, map.layout),
        `: ${count(map.misses.reduce((sum, misses) => sum + misses, 0))} misses; nine ` +
          `tenths of them in ${count(map.pages)} pages of 4 KB`,
      ),
      svg,
      readout,
    );
  });
};

// Calls as frames, with the outermost on top. The width of a frame stands for the instructions of
// the function and of all that it called. frames: [depth, name, total].
const flameGraph = (names, frames, unit) => {
  const tall = 18;
  const all = frames.filter(([depth]) => depth === 0).reduce((sum, [, , total]) => sum + total, 0);
  const parents = [];
  const starts = [];
  const path = [];
  const used = [];
  frames.forEach(([depth, , total], at) => {
    path.length = depth;
    const parent = depth === 0 ? -1 : path[depth - 1];
    parents.push(parent);
    starts.push(parent < 0 ? (used[-1] ?? 0) : starts[parent] + (used[parent] ?? 0));
    used[parent] = (used[parent] ?? 0) + total;
    path.push(at);
  });
  const deepest = Math.max(0, ...frames.map(([depth]) => depth)) + 1;
  const svg = drawn("svg", {
    class: "flame",
    viewBox: `0 0 ${WIDTH} ${deepest * tall}`,
    tabindex: "0",
    role: "application",
    "aria-label": "Flame graph: arrows move, Enter zooms, Escape shows all",
  });
  const readout = element("div", { class: "readout", role: "status" });
  let [zoom, at, wanted] = [-1, 0, ""];
  // Whether `frame` is `outer` or lies below it.
  const isIn = (frame, outer) => {
    while (frame >= 0 && frame !== outer) frame = parents[frame];
    return frame === outer;
  };
  const hue = (name) =>
    [...name].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 9973, 7);
  const color = (frame) => {
    let outer = frame;
    while (parents[outer] >= 0) outer = parents[outer];
    const mode = names[frames[outer][1]];
    const seed = hue(names[frames[frame][1]]);
    if (mode === "user") return `hsl(${28 + (seed % 14)} 70% ${66 + (seed % 9)}%)`;
    return mode === "idle"
      ? "hsl(215 10% 75%)"
      : `hsl(${205 + (seed % 30)} ${50 + (seed % 20)}% ${66 + (seed % 12)}%)`;
  };
  const showFrame = (frame) => {
    const [, name, total] = frames[frame];
    readout.textContent = `${names[name]}: ${count(total)} ${unit}, ${share(total / all)} of all`;
  };
  const draw = () => {
    const [from, whole] = zoom < 0 ? [0, all] : [starts[zoom], frames[zoom][2]];
    const groups = [];
    let found = 0;
    let inside = -1;
    frames.forEach(([depth, name, total], frame) => {
      const isFound = wanted !== "" && names[name].toLowerCase().includes(wanted);
      // A frame that was found includes the frames below it.
      if (isFound && !(inside >= 0 && isIn(frame, inside)))
        [found, inside] = [found + total, frame];
      const isOuter = zoom >= 0 && isIn(zoom, frame);
      if (zoom >= 0 && !isOuter && !isIn(frame, zoom)) return;
      const x = isOuter ? 0 : ((starts[frame] - from) / whole) * WIDTH;
      const wide = isOuter ? WIDTH : (total / whole) * WIDTH;
      if (wide < 0.4) return;
      const letters = Math.floor((wide - 6) / 6.7);
      const text =
        names[name].length <= letters
          ? names[name]
          : letters > 3
            ? `${names[name].slice(0, letters - 1)}…`
            : "";
      groups.push(
        drawn(
          "g",
          {
            "data-frame": frame,
            class: `${isFound ? "found" : ""} ${frame === at ? "at" : ""}`.trim(),
          },
          drawn("rect", {
            x: x.toFixed(2),
            y: depth * tall,
            width: wide.toFixed(2),
            height: tall,
            style: `fill: ${color(frame)}`,
          }),
          drawn("text", { x: (x + 3).toFixed(2), y: depth * tall + 13 }, text),
        ),
      );
    });
    svg.replaceChildren(...groups);
    matches.textContent = wanted === "" ? "" : `${share(found / all)} of all ${unit}`;
    reset.hidden = zoom < 0;
  };
  const frameOf = (event) => {
    const group = event.target.closest("[data-frame]");
    return group ? Number(group.getAttribute("data-frame")) : -1;
  };
  svg.addEventListener("pointermove", (event) => {
    if (frameOf(event) >= 0) showFrame(frameOf(event));
  });
  svg.addEventListener("click", (event) => {
    if (frameOf(event) >= 0) {
      zoom = at = frameOf(event);
      showFrame(at);
      draw();
    }
  });
  svg.addEventListener("keydown", (event) => {
    const below = () => frames.findIndex((_, frame) => parents[frame] === at);
    const beside = (step) => {
      const row = frames.map((_, frame) => frame).filter((frame) => parents[frame] === parents[at]);
      return row[row.indexOf(at) + step];
    };
    const to = {
      ArrowUp: () => parents[at],
      ArrowDown: below,
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
    }[event.key];
    if (to) at = to() >= 0 ? to() : at;
    else if (event.key === "Enter") zoom = at;
    else if (event.key === "Escape") zoom = -1;
    else return;
    event.preventDefault();
    showFrame(at);
    draw();
  });
  const search = element("input", {
    type: "search",
    placeholder: "search",
    "aria-label": "Search the flame graph",
  });
  search.addEventListener("input", () => {
    wanted = search.value.trim().toLowerCase();
    draw();
  });
  const [reset, matches] = [
    element("button", { type: "button" }, "Show all"),
    element("span", { class: "faint", role: "status" }),
  ];
  reset.addEventListener("click", () => {
    zoom = -1;
    draw();
  });
  draw();
  return [element("div", { class: "tools" }, search, matches, reset), svg, readout];
};
