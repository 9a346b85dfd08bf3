// Draws the comparisons in #data. Every string goes in as text, never as HTML; no number is computed here but the widths of bars.
"use strict";
(() => {
  const comparisons = JSON.parse(document.getElementById("data").textContent);
  const report = document.getElementById("report");

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children.filter((child) => child !== null));
    return made;
  };
  const count = (value) => {
    if (value === null || value === undefined) return "–";
    const places = Number.isInteger(value) || value >= 1000 ? 0 : 3;
    return value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
  };
  const percent = (share) => {
    if (share === null || share === undefined) return "–";
    return `${share > 0 ? "+" : share < 0 ? "−" : "±"}${Math.abs(100 * share).toFixed(2)} %`;
  };
  const change = (share) => element("td", { class: share < 0 ? "good" : share > 0 ? "bad" : "" }, percent(share));

  const table = (titles, rows) =>
    element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)))),
      element("tbody", {}, ...rows.map((cells) =>
        element("tr", {}, ...cells.map((cell) => (cell instanceof Node ? cell : element("td", {}, cell))))))));

  const legend = (entries) =>
    element("div", { class: "legend" }, ...entries.map(([name, color]) =>
      element("span", {}, element("i", { style: `background: var(--${color})` }), name)));

  // One bar a line: [label, [[amount, color, title], …], value].
  const bars = (lines) => {
    const largest = Math.max(1, ...lines.map(([, parts]) => parts.reduce((sum, [amount]) => sum + amount, 0)));
    return element("div", { class: "bars" }, ...lines.flatMap(([label, parts, value]) => [
      element("span", {}, label),
      element("span", { class: "bar" }, ...parts.map(([amount, color, title]) =>
        element("span", { style: `width: ${(100 * amount) / largest}%; background: var(--${color})`, title }))),
      element("span", { class: "value" }, value),
    ]));
  };

  const causes = [
    ["kernel, self", "kernel", "self", "kernel-self"], ["kernel, other", "kernel", "other", "kernel-other"],
    ["kernel, cold", "kernel", "cold", "kernel-cold"], ["user, other", "user", "other", "user-other"],
    ["user, self", "user", "self", "user-self"], ["user, cold", "user", "cold", "user-cold"],
  ];
  const missBar = (label, row) => {
    const parts = causes.map(([name, side, cause, color]) =>
      [row.counters.l1i[side][cause], color, `${name}: ${count(row.counters.l1i[side][cause])}`]);
    return [label, parts, count(parts.reduce((sum, [amount]) => sum + amount, 0))];
  };
  const rowsOf = (layout) => [["predicted", layout.predicted], ["recorded", layout.recorded]].filter(([, row]) => row);

  const branchKinds = [["conditional", "recorded"], ["jump", "predicted"], ["call", "user-self"], ["return", "user-other"], ["indirect", "original"]];
  const branchBar = (label, row) => {
    const taken = row.counters.taken.kernel;
    const parts = branchKinds.map(([kind, color]) => [taken[kind], color, `${kind}: ${count(taken[kind])}`]);
    return [label, parts, count(parts.reduce((sum, [amount]) => sum + amount, 0))];
  };

  const overview = () => {
    const rows = comparisons.flatMap((comparison) => comparison.layouts.map((layout) => {
      const metric = (name) => layout.metrics.find((known) => known.name === name) ?? {};
      const [misses, jumps] = ["kernel L1I misses", "kernel taken jumps (conditional and direct)"].map(metric);
      const name = (text) => element("td", { class: "text" }, text);
      return [name(comparison.workload), name(comparison.machine), name(layout.layout),
        change(misses.predicted_change), change(misses.recorded_change),
        change(jumps.predicted_change), change(jumps.recorded_change)];
    }));
    return [
      element("h2", {}, "Against the original"),
      table(["workload", "machine", "layout", "kernel L1I misses, predicted", "recorded", "kernel taken jumps, predicted", "recorded"], rows),
    ];
  };

  const conditions = (title, row) => {
    const entries = [["kernel", row.kernel], ["workload", row.workload], ["machine", row.machine], ["seed", String(row.seed)],
      ["instructions, kernel", count(row.counters.instructions.kernel)], ["instructions, user", count(row.counters.instructions.user)],
      ["interruptions", count(row.counters.interruptions)], ["branches of unknown outcome", count(row.counters.unresolved_branches)],
      ["impossible steps", count(row.counters.breaks)], ...Object.entries(row.conditions)];
    return element("details", {}, element("summary", {}, `Conditions: ${title}`),
      element("dl", {}, ...entries.flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, value)])));
  };

  const section = (comparison) => {
    const lines = (bar) => [bar("original", comparison.original), ...comparison.layouts.flatMap((layout) =>
      rowsOf(layout).map(([kind, row]) => bar(`${layout.layout}, ${kind}`, row)))];
    const nodes = [
      element("h2", {}, `${comparison.workload} on ${comparison.machine}`),
      element("h3", {}, "L1I misses by cause"),
      legend(causes.map(([name, , , color]) => [name, color])),
      bars(lines(missBar)),
      element("h3", {}, "Branches that the kernel took"),
      legend(branchKinds),
      bars(lines(branchBar)),
    ];
    for (const layout of comparison.layouts) {
      nodes.push(
        element("h3", {}, layout.layout),
        table(["", "original", "predicted", "change", "recorded", "change", "predicted against recorded"],
          layout.metrics.map((metric) => [metric.name, count(metric.original), count(metric.predicted), change(metric.predicted_change),
            count(metric.recorded), change(metric.recorded_change), percent(metric.difference)])),
      );
      if (layout.functions.length > 0) {
        nodes.push(element("details", {}, element("summary", {}, `L1I misses by kernel function (the ${layout.functions.length} with the most)`),
          table(["function", "hot bytes", "cold bytes", "original", "predicted", "recorded"],
            layout.functions.map((row) => [element("td", { class: "name" }, row.name), count(row.hot_bytes), count(row.cold_bytes),
              count(row.original), count(row.predicted), count(row.recorded)]))));
      }
      for (const [kind, row] of rowsOf(layout)) nodes.push(conditions(`${layout.layout}, ${kind}`, row));
    }
    nodes.push(conditions("original", comparison.original));
    return nodes;
  };

  const workloads = [...new Set(comparisons.map((comparison) => comparison.workload))];
  document.getElementById("subtitle").textContent = `Workloads: ${workloads.join(", ")}`;
  document.title = `Kernlane: ${workloads.join(", ")}`;
  if (comparisons.some((comparison) => comparison.layouts.length > 0)) report.append(...overview());
  report.append(...comparisons.flatMap(section));
})();
