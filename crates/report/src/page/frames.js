// Trees of frames for the flame graph: calls from the outermost function down, the same inverted,
// and the callers and callees of one function.

// The frames of narrow chains have this one between them and the frame that called them.
const VIEWS = [
  ["down", "calls, outermost first"],
  ["inverted", "inverted, innermost first"],
  ["callers", "callers of the chosen function"],
  ["callees", "callees of the chosen function"],
];
// What the width of a frame stands for: [value, name, amount of the counts at an index].
const WEIGHTS = [
  ["instructions", "instructions", (counts, at) => counts[INSTRUCTIONS][at]],
  ["cycles", "cycles", (counts, at) => counts[INSTRUCTIONS][at] + counts[STALL][at]],
  ["l1i", "L1I misses", (counts, at) => counts[L1I][at]],
  ["l1d", "L1D misses", (counts, at) => counts[L1D][at]],
  ["l2", "L2 misses", (counts, at) => counts[L2][at]],
];

// A node: its name, its mode ("kernel", "user" or "idle"), and the counts of itself (`own`) and
// of all that is drawn on it (`total`), each in the order of COUNTS.
const treeNode = (name, parent, mode) => ({
  name,
  parent,
  mode,
  children: new Map(),
  own: new Float64Array(COUNTS.length),
  total: new Float64Array(COUNTS.length),
});
const childOf = (node, name, mode) => {
  const known = node.children.get(name);
  if (known) return known;
  const made = treeNode(name, node, mode);
  node.children.set(name, made);
  return made;
};
const addCounts = (sums, counts, frame) => {
  for (let which = 0; which < sums.length; which += 1) sums[which] += counts[which][frame];
};

// The tree of a view. `chosen`: the name of the function, for its callers and callees.
const treeOf = (frames, { own, all }, view, chosen) => {
  const root = treeNode("", null, "");
  const nameOf = (frame) => frames.names[frames.name[frame]];
  const modes = [];
  const nodes = [];
  for (let frame = 0; frame < frames.count; frame += 1) {
    const above = frames.caller[frame];
    modes[frame] = above < 0 ? nameOf(frame) : modes[above];
    const isChosen = nameOf(frame) === chosen;
    if (view === "down" || view === "callees") {
      // In the view of callees, chains begin at the chosen function.
      const under = nodes[above] ?? (view === "down" || isChosen ? root : null);
      if (!under || all[INSTRUCTIONS][frame] === 0) continue;
      nodes[frame] = childOf(under, nameOf(frame), modes[frame]);
      addCounts(nodes[frame].own, own, frame);
      addCounts(nodes[frame].total, all, frame);
    } else {
      const counts = view === "inverted" ? own : all;
      if (counts[INSTRUCTIONS][frame] === 0) continue;
      if (view === "callers" && !(isChosen && frames.isOutermost[frame])) continue;
      let node = root;
      for (let at = frame; at >= 0; at = frames.caller[at]) {
        node = childOf(node, nameOf(at), modes[frame]);
        addCounts(node.total, counts, frame);
        if (at === frame) addCounts(node.own, own, frame);
      }
    }
  }
  for (const node of root.children.values()) {
    for (let which = 0; which < COUNTS.length; which += 1) root.total[which] += node.total[which];
  }
  return root;
};

// The boxes of a tree, outermost first, each with its share of the width: from `x` (0 to 1), `wide`
// wide. Boxes narrower than `narrowest` are left out.
const boxesOf = (root, amount, narrowest) => {
  const boxes = [];
  const place = (node, x, wide, depth) => {
    const whole = amount(node.total);
    const children = [...node.children.values()]
      .map((child) => [child, amount(child.total)])
      .filter(([, part]) => whole > 0 && (part / whole) * wide >= narrowest)
      .sort(([a, one], [b, other]) => other - one || (a.name < b.name ? -1 : 1));
    for (const [child, part] of children) {
      const share = (part / whole) * wide;
      const box = { node: child, x, wide: share, depth };
      boxes.push(box);
      place(child, x, share, depth + 1);
      x += share;
    }
  };
  place(root, 0, 1, 0);
  return boxes;
};
