// The sections of machines with an out-of-order core: where their slots go, and several machines
// side by side. Only widths of bars, and shares, are computed here.

// [name, field, color], as the slots are drawn.
const TOP_DOWN = [
  ["retiring", "retiring", "retiring"],
  ["front-end latency", "front_end_latency", "front-latency"],
  ["front-end bandwidth", "front_end_bandwidth", "front-bandwidth"],
  ["bad speculation", "bad_speculation", "speculation"],
  ["memory", "memory", "memory"],
  ["core", "core", "core"],
];
const GRADUATION = [
  ["busy", "busy", "retiring"],
  ["data", "data", "memory"],
  ["instruction", "instruction", "front-latency"],
  ["pipeline", "pipeline", "core"],
];
// [sum, name, color of each kind of graduation slot].
const MODES = [
  [1, "kernel", ["kernel-self", "kernel-other", "kernel-cold", "kernel-rest"]],
  [2, "user", ["user-self", "user-other", "user-cold", "user-rest"]],
  [3, "idle", ["idle", "idle", "idle", "idle"]],
];
// The services that are drawn; the table has all.
const DRAWN = 12;

const hasCore = ({ generations }, at) => generations?.machines[at].model === "out-of-order";
const rowTitle = (row) => (isNone(row.kind) ? row.name : titleOf(row));
const slotsIn = (parts, slots) => parts.reduce((sum, [, field]) => sum + slots[field], 0);
const partOf = (parts, slots, field) => slots[field] / Math.max(1, slotsIn(parts, slots));

// Of a machine that was simulated by samples: half of the 95 % interval, and the samples in which a
// service ran.
const interval = (on) =>
  isNone(on.estimated?.within) ? "" : ` ± ${number(on.estimated.within, 2)} %`;
const sampleColumns = ({ samples }, at, of = "") =>
  samples
    ? [
        [`± %${of}`, (row) => row.on[at].estimated?.within, (v) => number(v, 2)],
        [`samples${of}`, (row) => row.on[at].estimated?.samples, count],
      ]
    : [];
const sampleNote = ({ samples }) =>
  samples
    ? ` Estimated from ${count(samples.units)} samples of ${count(samples.plan.measured)} ` +
      `instructions. ±: half of the 95 % interval. A service without one ran in no sample, or in ` +
      `too few: its slots are an estimate from its counts.`
    : "";

// Bars and a table of the slots of one kind, for one machine. found: the generations in the range.
const slotsOn = (found, range, at, parts, slotsOf) => {
  const machine = found().machines[at];
  const lines = () => {
    const shown = [...found().sums, ...found().rows.slice(0, DRAWN)];
    return shown
      .filter((row) => slotsIn(parts, slotsOf(row.on[at])) > 0)
      .map((row) => {
        const slots = slotsOf(row.on[at]);
        const shares = parts.map(([name, field, color]) => {
          const part = partOf(parts, slots, field);
          return [100 * part, color, `${name}: ${share(part)}`];
        });
        return [rowTitle(row), shares, `CPI ${number(row.on[at].cpi, 2)}${interval(row.on[at])}`];
      });
  };
  const columns = () => {
    const all = Math.max(1, slotsIn(parts, slotsOf(found().sums[0].on[at])));
    return [
      ["service", rowTitle, null, "text"],
      ["share of the slots", (row) => slotsIn(parts, slotsOf(row.on[at])) / all, share],
      ["slots", (row) => slotsIn(parts, slotsOf(row.on[at])), count],
      ...sampleColumns(machine, at),
      ...parts.map(([name, field]) => [
        name,
        (row) => partOf(parts, slotsOf(row.on[at]), field),
        share,
      ]),
    ];
  };
  return [
    element("p", {}, element("b", {}, machine.name), `, simulated`),
    following(range, () => [bars(lines())]),
    followingTable(range, columns, () => found().rows, {
      by: 1,
      label: `slots on ${machine.name}`,
      most: 10,
      caption:
        `Slots of ${machine.name} (simulated). The slots of all services are those of the ` +
        `recording, or of the selected range.${sampleNote(machine)}`,
    }),
  ];
};

const topDown = (found, range, conditions) => {
  const { machines, sums } = found();
  const cores = machines.flatMap((_, at) => (sums[0].on[at].dispatch ? [at] : []));
  return [
    "Where the slots go, simulated",
    [
      figure(
        `Slots of the dispatch by top-down (Yasin, ISPASS 2014): used, or lost, and to what. A ` +
          `lost slot counts for the service that ends the wait. CPI: cycles for each ` +
          `instruction. Loads without recorded addresses find their data by fixed shares. ` +
          `${conditions}`,
        legend(TOP_DOWN.map(([name, , color]) => [name, color])),
        ...cores.flatMap((at) => slotsOn(found, range, at, TOP_DOWN, (on) => on.dispatch)),
      ),
    ],
  ];
};

const graduation = (found, range, conditions) => [
  "Graduation, simulated",
  [
    figure(
      `Slots of the graduation as SimOS divides them (Rosenblum 1995, section 3.3): busy, or the ` +
        `oldest slot waits for data that the L1D lacked, the empty window for a line that the ` +
        `L1I lacked, or the pipeline for anything else. On a machine without an out-of-order ` +
        `core a slot is a thousandth of a cycle. ${conditions}`,
      legend(GRADUATION.map(([name, , color]) => [name, color])),
      ...found().machines.flatMap((machine, at) =>
        slotsOn(found, range, at, GRADUATION, (on) => on.graduation),
      ),
    ),
  ],
];

const sideBySide = (found, range, conditions) => {
  const { machines, notes } = found();
  if (machines.length < 2) return null;
  const title = "Machines side by side, simulated";
  const without = machines.filter((machine) => isNone(machine.megahertz));
  if (without.length > 0) {
    const names = without.map((machine) => machine.name).join(", ");
    return [title, [element("p", {}, `Not drawn: the file of ${names} gives no clock.`)]];
  }
  const part = (time, first) => (first > 0 ? time / first : null);
  const lines = () => {
    const { sums } = found();
    const first = sums[0].on[0].milliseconds;
    return machines.map((machine, at) => {
      const perMillisecond = 1000 * machine.megahertz * machine.graduation_per_cycle;
      const parts = MODES.flatMap(([sum, mode, colors]) =>
        GRADUATION.map(([cause, field], which) => {
          const time = sums[sum].on[at].graduation[field] / perMillisecond;
          const named = `${mode}, ${cause}: ${number(time, 3)} ms`;
          return [100 * (part(time, first) ?? 0), colors[which], named];
        }),
      );
      return [machine.name, parts, share(part(sums[0].on[at].milliseconds, first))];
    });
  };
  const colors = MODES.slice(0, 2).flatMap(([, mode, colors]) =>
    GRADUATION.map(([cause], which) => [`${mode}, ${cause}`, colors[which]]),
  );
  const parts = (on) => [
    number(on.split?.speedup, 2),
    number(on.split?.technology, 2),
    number(on.split?.architecture, 2),
  ];
  const columns = [
    ["service", rowTitle, null, "text"],
    ["instructions", (row) => row.instructions, count],
    ["calls", (row) => row.calls, count],
    ...machines.flatMap((machine, at) => [
      [`CPI, ${machine.name}`, (row) => row.on[at].cpi, (v) => number(v, 2)],
      ...sampleColumns(machine, at, `, ${machine.name}`),
      [`ns/call, ${machine.name}`, (row) => row.on[at].nanoseconds_per_call, (v) => number(v, 1)],
      ...(at === 0
        ? []
        : ["P", "T", "A"].map((letter, which) => [
            `${letter}, ${machine.name}`,
            (row) => row.on[at].split?.[["speedup", "technology", "architecture"][which]],
            (v) => number(v, 2),
          ])),
    ]),
  ];
  const ofMachines = () =>
    table(
      [
        "machine",
        "MHz",
        "time (ms)",
        ...["all", "kernel", "user mode"].flatMap((sum) =>
          ["P", "T", "A"].map((letter) => `${letter}, ${sum}`),
        ),
      ],
      machines.map((machine, at) => [
        machine.name,
        count(machine.megahertz),
        number(found().sums[0].on[at].milliseconds, 3),
        ...found()
          .sums.slice(0, 3)
          .flatMap((sum) => parts(sum.on[at])),
      ]),
      `P: how many times faster than ${machines[0].name}; T: the ratio of the clocks; A: ` +
        `the ratio of the cycles for each instruction; P = T × A (Nellans 2005, section 3). ` +
        `Simulated.`,
    );
  return [
    title,
    [
      figure(
        `The time of the recording, or of the selected range, on each machine, as a share of the ` +
          `time on ${machines[0].name}, in the manner of SimOS (Rosenblum 1995, figure 4.3). ` +
          `Kernel and user mode are split as they graduate. The time in which the processor was ` +
          `halted is left out. ${conditions}`,
        legend([...colors, ["idle loop", "idle"]]),
        following(range, () => [bars(lines())]),
      ),
      following(range, () => [ofMachines()]),
      followingTable(
        range,
        () => columns,
        () => found().rows,
        {
          by: 1,
          label: "services on the machines",
          most: 15,
          caption:
            `Each service on each machine (simulated). In a selected range, calls are those that ` +
            `ended in it. ${conditions}`,
        },
      ),
      ...notes.map((note) => element("p", { class: "faint" }, `Note: ${note}.`)),
    ],
  ];
};

// [name, fields] of the columns of a service's slots on a machine, in the order of the data.
const SLOT_COLUMNS = [
  ["dispatch", TOP_DOWN.map(([, field]) => field)],
  ["graduation", GRADUATION.map(([, field]) => field)],
];
// What a machine spent on a service in the range. columns: the differences of the slices,
// instructions, the slots of the dispatch of a core, and those of the graduation.
const slotsInRange = (columns, hasDispatch, { from, until }) => {
  const kinds = SLOT_COLUMNS.filter(([name]) => hasDispatch || name !== "dispatch");
  const width = 2 + kinds.reduce((sum, [, fields]) => sum + fields.length, 0);
  const rows = columns.length / width;
  const sums = new Array(width).fill(0);
  for (let [row, slice] = [0, 0]; row < rows; row += 1) {
    slice += columns[row];
    if (slice < from || slice >= until) continue;
    for (let at = 1; at < width; at += 1) sums[at] += columns[at * rows + row];
  }
  const found = { instructions: sums[1], dispatch: null };
  let at = 2;
  for (const [name, fields] of kinds) {
    found[name] = Object.fromEntries(fields.map((field, which) => [field, sums[at + which]]));
    at += fields.length;
  }
  return found;
};

// The generations of the recording as if the range were all of it.
const generationsIn = (recording, range) => {
  const { generations, slices } = recording;
  if (range.isWhole()) return generations;
  const { machines } = generations;
  const ended = new Map(slices.services.map((one) => [`${one.kind} ${one.name}`, one]));
  // A service, or the sum of some.
  const row = (kind, name, calls, of) => {
    const [{ instructions }] = of;
    const cycles = of.map(({ dispatch, graduation }, at) => {
      const slots = dispatch ?? graduation;
      const sum = Object.values(slots).reduce((sum, slots) => sum + slots, 0);
      return sum / machines[at].parts_per_cycle;
    });
    const on = of.map(({ dispatch, graduation }, at) => {
      const [first, clock] = [machines[0].megahertz, machines[at].megahertz];
      const milliseconds = clock ? cycles[at] / clock / 1000 : null;
      const isSplit = first && clock && cycles[0] > 0 && cycles[at] > 0;
      const [technology, architecture] = [clock / first, cycles[0] / cycles[at]];
      return {
        cpi: cycles[at] / Math.max(1, instructions),
        milliseconds,
        nanoseconds_per_call: clock && calls > 0 ? (1e6 * milliseconds) / calls : null,
        split: isSplit ? { speedup: technology * architecture, technology, architecture } : null,
        dispatch,
        graduation,
      };
    });
    return { kind, name, calls, instructions, on };
  };
  const add = (sum, of) => {
    for (const [field, value] of Object.entries(of)) {
      if (typeof value === "number") sum[field] += value;
      else if (value) add(sum[field], value);
    }
  };
  const rows = generations.rows
    .map(({ kind, name }, at) => {
      const of = slices.slots[at].map((columns, machine) =>
        slotsInRange(columns, hasCore(recording, machine), range),
      );
      // Stays in user mode are known for the whole recording only.
      const service = ended.get(`${kind} ${name}`);
      const calls = kind === "user" || !service ? null : endedIn(service, range).calls;
      return { of, row: row(kind, name, calls, of) };
    })
    .filter(({ row: { calls, instructions, on } }) =>
      [calls, instructions, ...on.map(({ cpi }) => cpi)].some((value) => value > 0),
    );
  const isOf = (wanted) => (row) => row.kind === wanted;
  const sums = [() => true, inKernel, isOf("user"), isOf("idle")].map((isWanted, which) => {
    const sum = machines.map((_, at) => slotsInRange([], hasCore(recording, at), range));
    const of = rows.filter(({ row }) => isWanted(row));
    for (const { of: one } of of) one.forEach((slots, at) => add(sum[at], slots));
    return row(null, generations.sums[which].name, null, sum);
  });
  const shown = rows.map(({ row }) => row);
  shown.sort((a, b) => inKernel(b) - inKernel(a) || b.instructions - a.instructions);
  return { ...generations, sums, rows: shown };
};

// Nothing without an out-of-order core. Slots that are estimates are known of the whole recording.
const generationSections = (recording, { range }) => {
  const whole = recording.generations;
  if (!whole) return [];
  const follows = recording.slices.slots.length > 0;
  let [key, last] = ["", whole];
  const found = () => {
    // Several parts ask for the same range.
    const asked = `${range.from} ${range.until}`;
    if (follows && asked !== key) [key, last] = [asked, generationsIn(recording, range)];
    return last;
  };
  const names = whole.machines.map((machine) => machine.name).join(", ");
  const conditions =
    `Workload ${recording.workload}, kernel ${recording.kernel.slice(0, 12)}, seed ` +
    `${recording.seed}; ${names}, simulated.`;
  return [
    topDown(found, range, conditions),
    graduation(found, range, conditions),
    sideBySide(found, range, conditions),
  ].map((section) => section && [...section, follows]);
};
