// The sections of a recording that follow the selected range: execution over time, services and
// functions, and the numbers on top.

// What follows the range that is selected.
const exploredOf = (recording) => {
  const buckets = recording.timeline.buckets.user.length;
  const slices = Math.max(1, Math.ceil(buckets / recording.slices.buckets));
  return { range: rangeOf(slices), frames: framesOf(recording.slices) };
};

// The sum of a count over the modes that are wanted.
const ofModes = (frames, { all }, which, isWanted) => {
  let sum = 0;
  for (let at = 0; at < frames.count; at += 1) {
    if (frames.depth[at] === 0 && isWanted(frames.names[frames.name[at]])) sum += all[which][at];
  }
  return sum;
};
const instructionsOf = (frames, range, isWanted) =>
  ofModes(frames, countsIn(frames, range), INSTRUCTIONS, isWanted);

const unitOf = (recording) => (recording.table.machines[0] ? "cycles" : "instructions");

// Says which range is selected.
const rangeText = (recording, range) => {
  const width = recording.timeline.width * recording.slices.buckets;
  const all = recording.timeline.width * recording.timeline.buckets.user.length;
  const [from, until] = [range.from * width, Math.min(range.until * width, all)];
  return (
    `${short(from)} to ${short(until)} of ${short(all)} ${unitOf(recording)}, ` +
    `${share((until - from) / Math.max(1, all))} of the time`
  );
};
// The bar at the top of the page while a part is selected.
const rangeBar = (recording, { range }, named) => {
  const text = element("span", { role: "status" });
  const clear = element("button", { type: "button" }, "Whole recording");
  clear.addEventListener("click", () => range.clear());
  const bar = element("div", { class: "range" }, text, clear);
  range.followAtOnce(() => {
    bar.hidden = range.isWhole();
    text.textContent = `${named}Selected: ${rangeText(recording, range)}`;
  });
  return bar;
};

const overTime = (recording, unit, conditions, { range }) => {
  const { width, buckets } = recording.timeline;
  if (buckets.user.length === 0) return null;
  return [
    "Execution over time",
    [
      figure(
        `User mode, kernel and idle loop, as in SimOS (Rosenblum 1995, figure 4.1), in columns ` +
          `of at least ${short(width)} ${unit}. User mode and kernel are split into executing ` +
          `and waiting for memory. Below: the part of each CPU and of each task, by its last ` +
          `name; recorded CPUs take turns. Drag to select a range, which the sections below ` +
          `follow; Ctrl with the wheel or two fingers zoom; Shift with a drag or the wheel ` +
          `pans. ${halts(recording.table.halted)} ${conditions}`,
        ...tracksOf(recording, range, unit),
      ),
    ],
    true,
  ];
};

// The services in the range, with their counts. Those of the whole recording have the counts of
// all machines, too.
const servicesIn = (recording, { range, frames }) => {
  const { all } = countsIn(frames, range);
  const known = new Map(recording.table.rows.map((row) => [`${row.kind} ${row.name}`, row]));
  return recording.slices.services
    .map((service) => {
      const ended = endedIn(service, range);
      const row = known.get(`${service.kind} ${service.name}`);
      const counts =
        service.frame === null ? COUNTS.map(() => 0) : all.map((of) => of[service.frame]);
      // Stays in user mode are known for the whole recording only.
      const isUser = service.kind === "user";
      const calls = !isUser ? ended.calls : range.isWhole() ? (row?.calls ?? 0) : null;
      return { kind: service.kind, name: service.name, ended, counts, calls, row };
    })
    .filter((service) => service.counts[INSTRUCTIONS] > 0 || service.calls > 0);
};

const services = (recording, conditions, explored) => {
  const machines = recording.table.machines;
  const per = (value, calls) => (calls > 0 ? value / calls : null);
  const whole = (value) => number(value, 0);
  const columnsOf = (rows) => {
    const sum = (of) => of.reduce((sum, row) => sum + row.counts[INSTRUCTIONS], 0);
    const [all, kernel] = [rows, rows.filter(inKernel)].map((of) => Math.max(1, sum(of)));
    const instructions = (row) => row.counts[INSTRUCTIONS];
    const columns = [
      ["service", titleOf, null, "text"],
      ["share of kernel", (row) => (inKernel(row) ? instructions(row) / kernel : null), share],
      ["share of all", (row) => instructions(row) / all, share],
      ["calls", (row) => row.calls, count],
      ["instr./call", (row) => per(instructions(row), row.calls), whole],
      ["latency (ns)", (row) => per(row.ended.latency, row.ended.calls), whole],
      ...[50, 90, 99].map((of) => [
        `${of} % below (ns)`,
        (row) => percentile(row.ended.classes, of / 100),
        whole,
      ]),
      ["off CPU (ns)", (row) => per(row.ended.offCpu, row.ended.calls), whole],
    ];
    if (!explored.range.isWhole()) {
      if (machines.length === 0) return columns;
      const cycles = (row) => instructions(row) + row.counts[STALL];
      return [
        ...columns,
        ["cycles/call", (row) => per(cycles(row), row.calls), whole],
        ["CPI", (row) => per(cycles(row), instructions(row)), (v) => number(v, 2)],
        ["L1I misses", (row) => row.counts[L1I], count],
        ["L1D misses", (row) => row.counts[L1D], count],
        ["L2 misses", (row) => row.counts[L2], count],
      ];
    }
    columns.splice(4, 0, ["calls/s", (row) => row.row?.calls_per_second, whole]);
    return [...columns, ...machineColumns(recording)];
  };
  const rows = servicesIn(recording, explored);
  const shown = sortable(columnsOf(rows), rows, {
    by: 1,
    label: "services",
    caption:
      `Every instruction belongs to one service. Share of kernel: the share of the ` +
      `instructions of all services except user mode and idle. Share of all: the share ` +
      `of all instructions. Times are in nanoseconds of the guest's clock; an ` +
      `instruction takes one. In a selected range, calls and times are of the calls that ended ` +
      `in it. 50 % below: half of the calls took at most so long, to within 12.5 %. ` +
      (machines.some((_, at) => hasCore(recording, at))
        ? `Cycles of caches alone are those of an in-order machine: the sections below have ` +
          `those of the core. `
        : "") +
      conditions,
  });
  explored.range.follow(() => {
    const rows = servicesIn(recording, explored);
    shown.setRows(columnsOf(rows), rows);
  });
  return [
    "Services",
    [
      shown,
      element(
        "p",
        { class: "faint" },
        `Without a service: ${number(100 * recording.table.other_share, 3)} % of the ` +
          `kernel's instructions. ` +
          `Context switches: ${count(recording.table.context_switches)}. Both are of the whole ` +
          `recording.`,
      ),
    ],
    true,
  ];
};

// Columns of the services on each machine, for the whole recording.
const machineColumns = (recording) => {
  const machines = recording.table.machines;
  return machines.flatMap((machine, at) => {
    const alone = hasCore(recording, at) ? " (caches alone)" : "";
    const named = (title) => (machines.length > 1 ? `${title}, ${machine.name}` : title) + alone;
    const on =
      (field) =>
      ({ row }) =>
        row?.on[at][field];
    const two = (v) => number(v, 2);
    return [
      [named("cycles/call"), on("mean_cycles"), (v) => number(v, 0)],
      [named("CPI"), on("cpi"), two],
      [named("L1I stall/instr."), on("l1i_stall"), two],
      ...(machine.kernel_stalls
        ? [
            [named("L1D stall/instr."), on("l1d_stall"), two],
            ...(machine.has_l2 ? [[named("L2 stall/instr."), on("l2_stall"), two]] : []),
          ]
        : [[named("of L1I misses"), on("l1i_stall_share"), share]]),
    ];
  });
};

// The functions that ran in the range.
const functionsIn = (frames, range) => {
  const { own, all } = countsIn(frames, range);
  const rows = new Map();
  for (let at = 0; at < frames.count; at += 1) {
    const name = frames.names[frames.name[at]];
    if (frames.depth[at] < 2 || name === "(narrow chains)" || all[INSTRUCTIONS][at] === 0) continue;
    if (!rows.has(name)) {
      rows.set(name, { name, calls: 0, instructions: 0, inclusive: 0, l1i: 0, l1d: 0, l2: 0 });
    }
    const row = rows.get(name);
    for (const [field, which] of [
      ["calls", CALLS],
      ["instructions", INSTRUCTIONS],
      ["l1i", L1I],
      ["l1d", L1D],
      ["l2", L2],
    ])
      row[field] += own[which][at];
    if (frames.isOutermost[at]) row.inclusive += all[INSTRUCTIONS][at];
  }
  return [...rows.values()];
};

const functions = (recording, conditions, { range, frames }) => {
  const has = (level) => recording.functions.some((row) => row[level] > 0);
  const ofKernel = (mode) => ["kernel", "idle"].includes(mode);
  const columnsOf = () => {
    const of = Math.max(1, instructionsOf(frames, range, ofKernel));
    const columns = [
      ["function", (row) => row.name, null, "name"],
      ["share of kernel and idle", (row) => row.instructions / of, share],
      ["with callees", (row) => row.inclusive / of, share],
      ["calls", (row) => row.calls, count],
      ["instructions", (row) => row.instructions, count],
      [
        "instr./call",
        (row) => (row.calls > 0 ? row.instructions / row.calls : null),
        (v) => number(v, 1),
      ],
    ];
    for (const [level, title] of [
      ["l1i", "L1I misses"],
      ["l1d", "L1D misses"],
      ["l2", "L2 misses"],
    ]) {
      if (has(level))
        columns.push(
          [title, (row) => row[level], count],
          [
            `${title}/k instr.`,
            (row) => (1000 * row[level]) / Math.max(1, row.instructions),
            (v) => number(v, 2),
          ],
        );
    }
    return columns;
  };
  const shown = sortable(columnsOf(), recording.functions, {
    by: 1,
    label: "functions",
    caption:
      `Functions of the kernel. A thunk's instructions count for the function that goes ` +
      `through it. Shares are of the instructions of the kernel and of its idle loop. In a ` +
      `selected range, callees of narrow chains count for the chain's visible functions only. ` +
      `${conditions}`,
  });
  range.follow(() => {
    const rows = range.isWhole() ? recording.functions : functionsIn(frames, range);
    shown.setRows(columnsOf(), rows);
  });
  return ["Functions", [shown], true];
};

const cards = (recording, { range, frames }) => {
  const shown = element("div", { class: "cards" });
  range.follow(() =>
    shown.replaceChildren(
      ...(range.isWhole() ? cardsOf(recording) : cardsIn(recording, range, frames)).map(
        ([value, name]) =>
          element("div", { class: "card" }, element("b", {}, value), element("span", {}, name)),
      ),
    ),
  );
  return shown;
};

// [value, what it is] of the selected range.
const cardsIn = (recording, range, frames) => {
  const counts = countsIn(frames, range);
  const of = (which, wanted) =>
    ofModes(frames, counts, which, (mode) => !wanted || mode === wanted);
  const instructions = of(INSTRUCTIONS);
  const part = (mode) => share(of(INSTRUCTIONS, mode) / Math.max(1, instructions));
  const machine = recording.table.machines[0];
  return [
    [short(instructions), "instructions in the range"],
    [part("kernel"), "in the kernel"],
    [part("user"), "in user mode"],
    [part("idle"), "in the idle loop"],
    ...(machine
      ? [
          [
            number(1 + of(STALL) / Math.max(1, instructions), 2),
            `cycles per instruction, ${machine.name}, caches alone`,
          ],
          [
            number((1000 * of(L1I, "kernel")) / Math.max(1, of(INSTRUCTIONS, "kernel")), 1),
            "L1I misses per 1000 kernel instructions",
          ],
        ]
      : []),
  ];
};

const cardsOf = (recording) => {
  const { table } = recording;
  const part = (value) => share(value / Math.max(1, table.instructions));
  const machine = table.machines[0];
  const entries = [
    [short(table.instructions), "instructions"],
    [part(table.kernel_instructions), "in the kernel"],
    [part(table.user_instructions), "in user mode"],
    [count(table.context_switches), "context switches"],
  ];
  if (machine) {
    entries.push(
      [number(cyclesOf(recording, 0), 2), `cycles per instruction, ${machine.name}`],
      [
        number((1000 * machine.kernel_l1i_misses) / Math.max(1, table.kernel_instructions), 1),
        "L1I misses per 1000 kernel instructions",
      ],
    );
  }
  return entries;
};
