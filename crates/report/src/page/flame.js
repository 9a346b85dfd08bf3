// The flame graph: chains of calls as boxes on a canvas, of the selected range.

// Boxes narrower than this share of the width are not drawn.
const NARROWEST = 1 / 4000;
const BOX = 18;

const flameGraph = (recording, frames, range) => {
  const machine = recording.table.machines[0]?.name;
  const has = (which) => frames.sums[which].length > 0 && frames.sums[which].some((sum) => sum > 0);
  const weights = WEIGHTS.filter(
    ([value]) =>
      value === "instructions" ||
      (machine && (value === "cycles" || has({ l1i: L1I, l1d: L1D, l2: L2 }[value]))),
  );
  let [view, weight, function_, wanted] = ["down", weights[0], "", ""];
  // The path of names to the box that fills the width, and to the box that is at.
  let [zoomed, at] = [[], null];
  let [root, boxes, shown, width] = [null, [], [], 0];
  const amount = (counts) => weight[2]([...counts].map((count) => [count]), 0);

  const canvas = element("canvas", {
    class: "flame",
    tabindex: "0",
    role: "application",
    "aria-label":
      "Flame graph: arrows move, Enter zooms, C shows callers, D shows callees, I inverts, " +
      "Escape shows all",
  });
  const tip = element("div", { class: "tip", role: "tooltip", hidden: "" });
  const readout = element("div", { class: "readout", role: "status" });
  const matches = element("span", { class: "faint", role: "status" });
  const subject = element("b");

  const pathOf = (node) => {
    const path = [];
    for (let one = node; one.parent; one = one.parent) path.unshift(one.name);
    return path;
  };
  // The node of a path, or the last one of it that exists.
  const nodeOf = (path) => {
    let node = root;
    for (const name of path) {
      const next = node.children.get(name);
      if (!next) break;
      node = next;
    }
    return node;
  };

  const hue = (name) =>
    [...name].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 9973, 7);
  const colors = new Map();
  const color = ({ name, mode }) => {
    const key = `${mode} ${name}`;
    if (!colors.has(key)) {
      const seed = hue(name);
      colors.set(
        key,
        mode === "user"
          ? `hsl(${28 + (seed % 14)} 70% ${66 + (seed % 9)}%)`
          : mode === "idle"
            ? "hsl(215 10% 75%)"
            : `hsl(${205 + (seed % 30)} ${50 + (seed % 20)}% ${66 + (seed % 12)}%)`,
      );
    }
    return colors.get(key);
  };

  const isFound = ({ name }) => wanted !== "" && name.toLowerCase().includes(wanted);
  // The share of the weight in boxes that were found. A box includes those that are drawn on it.
  const found = (node) => {
    let sum = 0;
    for (const child of node.children.values())
      sum += isFound(child) ? amount(child.total) : found(child);
    return sum;
  };

  const draw = () => {
    if (width === 0 || !root) return;
    const outer = nodeOf(zoomed);
    const above = pathOf(outer).map((_, depth, path) => nodeOf(path.slice(0, depth + 1)));
    shown = [
      ...above.map((node, depth) => ({ node, x: 0, wide: 1, depth })),
      ...boxes.map((box) => ({ ...box, depth: box.depth + above.length })),
    ];
    const deepest = shown.reduce((most, { depth }) => Math.max(most, depth + 1), 1);
    const ink = paper(canvas, width, deepest * BOX);
    const [ground, mark, text] = ["ground", "mark", "text"].map(colorOf);
    ink.font = "11px ui-monospace, monospace";
    const letter = ink.measureText("m").width;
    for (const { node, x, wide, depth } of shown) {
      const [left, length] = [x * width, wide * width];
      ink.fillStyle = isFound(node) ? mark : color(node);
      ink.fillRect(left, depth * BOX, Math.max(length - 0.7, 0.3), BOX - 0.7);
      const letters = Math.floor((length - 6) / letter);
      if (letters > 3) {
        const { name } = node;
        ink.fillStyle = isFound(node) ? ground : "#10151c";
        ink.fillText(
          name.length <= letters ? name : `${name.slice(0, letters - 1)}…`,
          left + 3,
          depth * BOX + 13,
        );
      }
      if (node === at) {
        ink.strokeStyle = text;
        ink.lineWidth = 1.6;
        ink.strokeRect(left + 0.8, depth * BOX + 0.8, Math.max(length - 2, 1), BOX - 2);
      }
    }
    reset.hidden = zoomed.length === 0;
    const all = amount(root.total);
    matches.textContent =
      wanted === "" ? "" : `${share(found(root) / Math.max(all, 1))} of all ${weight[1]}`;
    canvas.dataset.boxes = String(shown.length);
    canvas.dataset.total = String(all);
    canvas.dataset.outermost = [...root.children.values()]
      .sort((a, b) => amount(b.total) - amount(a.total))
      .slice(0, 3)
      .map((node) => node.name)
      .join("\n");
  };
  // Lays the boxes out again, below the one that fills the width.
  const layOut = () => {
    const outer = nodeOf(zoomed);
    zoomed = pathOf(outer);
    boxes = boxesOf(outer, amount, NARROWEST);
    draw();
  };
  const build = () => {
    const path = at ? pathOf(at) : null;
    root = treeOf(frames, countsIn(frames, range), view, function_);
    at = path && path.length > 0 ? nodeOf(path) : null;
    if (at === root) at = null;
    layOut();
  };

  // What the tooltip says: [name, value].
  const facts = (node) => {
    const [own, total] = [node.own, node.total];
    const all = Math.max(1, amount(root.total));
    const pair = (of) => `${count(of(total))} (own ${count(of(own))})`;
    const both = (which) => pair((counts) => counts[which]);
    const lines = [
      [weight[1], `${share(amount(total) / all)} of those shown, own ${share(amount(own) / all)}`],
      ["calls", count(own[CALLS])],
      ["instructions", both(INSTRUCTIONS)],
    ];
    if (machine) {
      lines.push(["cycles", pair((counts) => counts[INSTRUCTIONS] + counts[STALL])]);
      for (const [which, title] of [
        [L1I, "L1I misses"],
        [L1D, "L1D misses"],
        [L2, "L2 misses"],
      ]) {
        if (has(which)) lines.push([title, both(which)]);
      }
    }
    if (own[CALLS] > 0)
      lines.push(["instr./call, with callees", number(total[INSTRUCTIONS] / own[CALLS], 1)]);
    return lines;
  };
  const say = (node) => {
    readout.textContent = `${node.name}: ${facts(node)
      .map(([name, value]) => `${name} ${value}`)
      .join("; ")}`;
  };
  const showTip = (node, x, y) => {
    tip.replaceChildren(
      element("b", {}, node.name),
      element(
        "dl",
        {},
        ...facts(node).flatMap(([name, value]) => [
          element("dt", {}, name),
          element("dd", {}, value),
        ]),
      ),
    );
    tip.hidden = false;
    const { offsetWidth: wide, offsetHeight: tall } = tip;
    tip.style.left = `${Math.max(4, Math.min(x + 14, window.innerWidth - wide - 8))}px`;
    tip.style.top = `${y + 18 + tall < window.innerHeight ? y + 18 : Math.max(4, y - tall - 12)}px`;
  };

  const boxAt = (event) => {
    const place = canvas.getBoundingClientRect();
    const x = (event.clientX - place.left) / place.width;
    const depth = Math.floor((event.clientY - place.top) / BOX);
    return shown.find((box) => box.depth === depth && x >= box.x && x < box.x + box.wide);
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = event.pointerType === "touch" ? null : boxAt(event);
    if (box) showTip(box.node, event.clientX, event.clientY);
    else tip.hidden = true;
  });
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));
  canvas.addEventListener("click", (event) => {
    const box = boxAt(event);
    if (!box) return;
    // A finger has no tooltip: the first touch chooses a box, the second one zooms.
    const isFirst = event.pointerType === "touch" && at !== box.node;
    at = box.node;
    say(at);
    if (isFirst) draw();
    else zoomTo(at);
  });
  const zoomTo = (node) => {
    zoomed = node ? pathOf(node) : [];
    layOut();
  };
  // Of a range without a chosen function: the function with the largest weight of its own.
  const largest = () =>
    [...treeOf(frames, countsIn(frames, range), "inverted", "").children.values()].sort(
      (a, b) => amount(b.total) - amount(a.total),
    )[0]?.name ?? "";
  const look = (as) => {
    const isOfOne = as === "callers" || as === "callees";
    if (isOfOne) function_ = at?.name ?? (function_ || largest());
    subject.textContent = isOfOne ? `${as} of ${function_}` : "";
    view = as;
    views.value = as;
    [zoomed, at] = [[], null];
    build();
  };
  canvas.addEventListener("keydown", (event) => {
    const boxOf = (node) => shown.find((box) => box.node === node);
    const rowOf = (box) => shown.filter(({ depth }) => depth === box.depth);
    const here = at ? boxOf(at) : null;
    const beside = (step) => {
      const row = rowOf(here);
      return row[row.indexOf(here) + step]?.node;
    };
    const moves = {
      ArrowUp: () => at.parent?.parent && at.parent,
      ArrowDown: () => shown.find(({ node }) => node.parent === at)?.node,
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
    };
    const acts = {
      Enter: () => zoomTo(at),
      Escape: () => zoomTo(null),
      c: () => at && look("callers"),
      d: () => at && look("callees"),
      i: () => look(view === "inverted" ? "down" : "inverted"),
    };
    if (moves[event.key]) at = here ? (moves[event.key]() ?? at) : shown[0]?.node;
    else if (acts[event.key] && !event.ctrlKey && !event.metaKey) acts[event.key]();
    else return;
    event.preventDefault();
    tip.hidden = true;
    if (at) say(at);
    draw();
  });

  const select = (label, options, change) => {
    const made = element(
      "select",
      { "aria-label": label },
      ...options.map(([value, text]) => element("option", { value }, text)),
    );
    made.addEventListener("change", () => change(made.value));
    return made;
  };
  const views = select("View", VIEWS, look);
  const by = select("Width of a box", weights, (value) => {
    weight = weights.find(([name]) => name === value);
    layOut();
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
  const reset = element("button", { type: "button" }, "Show all");
  reset.addEventListener("click", () => zoomTo(null));
  range.follow(build);
  redrawn(canvas, (now) => {
    width = now;
    draw();
  });
  return [
    element("div", { class: "tools" }, views, by, subject, search, matches, reset),
    canvas,
    readout,
    tip,
  ];
};
