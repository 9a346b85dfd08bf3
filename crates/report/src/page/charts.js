// Charts of addresses. They draw numbers from the data. Only widths and heights are computed here.

// Misses by address: one map for each layout, of the range. A miss has the same height in all maps.
const addressMap = (maps, range) => {
  let shown = [];
  const largest = () => Math.max(1, ...shown.flatMap(({ misses }) => misses));
  const parts = maps.map((map, at) => {
    const [holder, readout] = [element("div"), element("div", { class: "readout" })];
    const text = element("p");
    const again = redrawn(holder, (width) =>
      holder.replaceChildren(drawnMap(shown[at], largest(), width, readout)),
    );
    return { text, again, node: element("div", {}, text, holder, readout) };
  });
  range.follow(() => {
    shown = maps.map((map) => ({ ...map, misses: cellsIn(map, range) }));
    parts.forEach(({ text, again }, at) => {
      const { layout, misses, cell, pages } = shown[at];
      const all = misses.reduce((sum, misses) => sum + misses, 0);
      // Pages of 4 KB are known for the whole recording only.
      const where = range.isWhole()
        ? `${count(pages)} pages of 4 KB`
        : `${count(cellsOfMost(misses, all))} cells of ${count(cell / 1024)} KB`;
      text.replaceChildren(
        element("b", {}, layout),
        `: ${count(all)} misses; nine tenths of them in ${where}`,
      );
      again();
    });
  });
  return parts.map(({ node }) => node);
};

// The number of cells that hold nine tenths of all misses.
const cellsOfMost = (misses, all) => {
  const largest = misses.filter((misses) => misses > 0).sort((a, b) => b - a);
  let [sum, cells] = [0, 0];
  while (10 * sum < 9 * all) {
    sum += largest[cells];
    cells += 1;
  }
  return cells;
};

// A map of this width, with axes: addresses, and misses in a cell on a scale of square roots.
const drawnMap = (map, largest, width, readout) => {
  const [left, height] = [56, 96];
  const wide = (width - left) / map.misses.length;
  const start = BigInt(`0x${map.start}`);
  const y = (misses) => 6 + height * (1 - Math.sqrt(misses / largest));
  const bars = map.misses
    .map((misses, at) => [misses, at])
    .filter(([misses]) => misses > 0)
    .map(([misses, at]) => {
      const tall = Math.max(1, y(0) - y(misses)).toFixed(2);
      return (
        `M${(left + at * wide).toFixed(2)} ` +
        `${y(0)}v-${tall}h${Math.max(1, wide).toFixed(2)}v${tall}z`
      );
    });
  const svg = drawn(
    "svg",
    {
      viewBox: `0 0 ${width} ${height + 38}`,
      role: "img",
      class: "map",
      "aria-label": `L1I misses by address, ${map.layout}`,
    },
    drawn("rect", { x: left, y: 6, width: width - left, height, style: "fill: var(--panel)" }),
  );
  for (const part of [1, 0.5, 0.1, 0]) {
    const at = y(part * largest);
    svg.append(
      drawn("line", { class: "grid", x1: left, x2: width, y1: at, y2: at }),
      drawn(
        "text",
        { class: "axis", x: left - 5, y: at + 4, "text-anchor": "end" },
        short(Math.round(part * largest)),
      ),
    );
  }
  svg.append(drawn("path", { d: bars.join(""), style: "fill: var(--kernel-self)" }));
  // Ticks at round addresses, not nearer than their labels are wide.
  const bytes = map.cell * map.misses.length;
  let step = 4096;
  while ((step / bytes) * (width - left) < 130) step *= 2;
  const first = (start + BigInt(step) - 1n) / BigInt(step);
  for (let tick = first; ; tick += 1n) {
    const behind = Number(tick * BigInt(step) - start);
    if (behind > bytes) break;
    const at = left + (behind / bytes) * (width - left);
    const anchor = at < left + 60 ? "start" : at > width - 60 ? "end" : "middle";
    svg.append(
      drawn("line", { class: "grid", x1: at, x2: at, y1: y(0), y2: y(0) + 5 }),
      drawn(
        "text",
        { class: "axis", x: at, y: y(0) + 17, "text-anchor": anchor },
        (tick * BigInt(step)).toString(16),
      ),
    );
  }
  svg.append(
    drawn(
      "text",
      { class: "axis title", x: left, y: height + 36 },
      `address; misses in each ${count(map.cell)} bytes`,
    ),
  );
  svg.addEventListener("pointermove", (event) => {
    const at = Math.floor((event.clientX - svg.getBoundingClientRect().left - left) / wide);
    if (!(at in map.misses)) return;
    readout.textContent =
      `${(start + BigInt(map.cell) * BigInt(at)).toString(16)}: ${count(map.misses[at])} ` +
      `misses in ${count(map.cell)} bytes`;
  });
  return svg;
};
