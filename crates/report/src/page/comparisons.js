// The sections of comparisons: what each layout changed. Only the widths of bars are computed here.

const comparisonSections = (comparisons) => {
  const missBar = (label, row) => byCause(label, row.counters.l1i);
  const rowsOf = (layout) =>
    [
      ["predicted", layout.predicted],
      ["recorded", layout.recorded],
    ].filter(([, row]) => row);

  const branchKinds = [
    ["conditional", "recorded"],
    ["jump", "predicted"],
    ["call", "user-self"],
    ["return", "user-other"],
    ["indirect", "original"],
  ];
  const branchBar = (label, row) => {
    const taken = row.counters.taken.kernel;
    const parts = branchKinds.map(([kind, color]) => [
      taken[kind],
      color,
      `${kind}: ${count(taken[kind])}`,
    ]);
    return [label, parts, count(parts.reduce((sum, [amount]) => sum + amount, 0))];
  };

  const overview = () => {
    const rows = comparisons.flatMap((comparison) =>
      comparison.layouts.map((layout) => {
        const metric = (name) => layout.metrics.find((known) => known.name === name) ?? {};
        const [time, misses, jumps] = [
          "kernel cycles, out-of-order core",
          "kernel L1I misses",
          "kernel taken jumps (conditional and direct)",
        ].map(metric);
        const name = (text) => element("td", { class: "text" }, text);
        return [
          name(comparison.workload),
          name(comparison.machine),
          name(layout.layout),
          change(time.predicted_change, time.predicted_within),
          change(time.recorded_change, time.recorded_within),
          change(misses.predicted_change),
          change(misses.recorded_change),
          change(jumps.predicted_change),
          change(jumps.recorded_change),
        ];
      }),
    );
    return [
      "Against the original",
      [
        table(
          [
            "workload",
            "machine",
            "layout",
            "kernel cycles, predicted",
            "recorded",
            "kernel L1I misses, predicted",
            "recorded",
            "kernel taken jumps, predicted",
            "recorded",
          ],
          rows,
        ),
      ],
    ];
  };

  const conditions = (title, row) =>
    conditionsOf(
      [
        ["kernel", row.kernel],
        ["workload", row.workload],
        ["machine", row.machine],
        ["seed", String(row.seed)],
        ["instructions, kernel", count(row.counters.instructions.kernel)],
        ["instructions, user", count(row.counters.instructions.user)],
        ["interruptions", count(row.counters.interruptions)],
        ["branches of unknown outcome", count(row.counters.unresolved_branches)],
        ["impossible steps", count(row.counters.breaks)],
        ...Object.entries(row.conditions),
      ],
      `Conditions: ${title}`,
    );

  const section = (comparison) => {
    const lines = (bar) => [
      bar("original", comparison.original),
      ...comparison.layouts.flatMap((layout) =>
        rowsOf(layout).map(([kind, row]) => bar(`${layout.layout}, ${kind}`, row)),
      ),
    ];
    const nodes = [
      element("h3", {}, "L1I misses by cause"),
      legend(CAUSES.map(([name, , , color]) => [name, color])),
      bars(lines(missBar)),
      element("h3", {}, "Branches that the kernel took"),
      legend(branchKinds),
      bars(lines(branchBar)),
    ];
    for (const layout of comparison.layouts) {
      nodes.push(
        element("h3", {}, layout.layout),
        table(
          [
            "",
            "original",
            "predicted",
            "change",
            "recorded",
            "change",
            "predicted against recorded",
          ],
          layout.metrics.map((metric) => [
            metric.name,
            count(metric.original),
            count(metric.predicted),
            change(metric.predicted_change, metric.predicted_within),
            count(metric.recorded),
            change(metric.recorded_change, metric.recorded_within),
            percent(metric.difference),
          ]),
        ),
      );
      if (layout.functions.length > 0) {
        nodes.push(
          element(
            "details",
            {},
            element(
              "summary",
              {},
              `L1I misses by kernel function (the ${layout.functions.length} with the most)`,
            ),
            table(
              ["function", "hot bytes", "cold bytes", "original", "predicted", "recorded"],
              layout.functions.map((row) => [
                element("td", { class: "name" }, row.name),
                count(row.hot_bytes),
                count(row.cold_bytes),
                count(row.original),
                count(row.predicted),
                count(row.recorded),
              ]),
            ),
          ),
        );
      }
      for (const [kind, row] of rowsOf(layout))
        nodes.push(conditions(`${layout.layout}, ${kind}`, row));
    }
    nodes.push(conditions("original", comparison.original));
    return [`${comparison.workload} on ${comparison.machine}`, nodes];
  };

  const first = comparisons.some((comparison) => comparison.layouts.length > 0) ? [overview()] : [];
  return [...first, ...comparisons.map(section)];
};
