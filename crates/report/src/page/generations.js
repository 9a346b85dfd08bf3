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

// Bars and a table of the slots of one kind, for one machine.
const slotsOn = (found, at, parts, slotsOf) => {
  const machine = found.machines[at];
  const shown = [...found.sums, ...found.rows.slice(0, DRAWN)];
  const lines = shown
    .filter((row) => slotsIn(parts, slotsOf(row.on[at])) > 0)
    .map((row) => {
      const slots = slotsOf(row.on[at]);
      const shares = parts.map(([name, field, color]) => {
        const part = partOf(parts, slots, field);
        return [100 * part, color, `${name}: ${share(part)}`];
      });
      return [rowTitle(row), shares, `CPI ${number(row.on[at].cpi, 2)}${interval(row.on[at])}`];
    });
  const all = Math.max(1, slotsIn(parts, slotsOf(found.sums[0].on[at])));
  const columns = [
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
  return [
    element("p", {}, element("b", {}, machine.name), `, simulated`),
    bars(lines),
    sortable(columns, found.rows, {
      by: 1,
      label: `slots on ${machine.name}`,
      most: 10,
      caption:
        `Slots of ${machine.name} (simulated). The slots of all services are those of the ` +
        `recording.${sampleNote(machine)}`,
    }),
  ];
};

const topDown = (found, conditions) => {
  const cores = found.machines.flatMap((_, at) => (found.sums[0].on[at].dispatch ? [at] : []));
  return [
    "Where the slots go, simulated",
    [
      figure(
        `Slots of the dispatch by top-down (Yasin, ISPASS 2014): used, or lost, and to what. A ` +
          `lost slot counts for the service that ends the wait. CPI: cycles for each ` +
          `instruction. Loads without recorded addresses find their data by fixed shares. ` +
          `${conditions}`,
        legend(TOP_DOWN.map(([name, , color]) => [name, color])),
        ...cores.flatMap((at) => slotsOn(found, at, TOP_DOWN, (on) => on.dispatch)),
      ),
    ],
  ];
};

const graduation = (found, conditions) => [
  "Graduation, simulated",
  [
    figure(
      `Slots of the graduation as SimOS divides them (Rosenblum 1995, section 3.3): busy, or the ` +
        `oldest slot waits for data that the L1D lacked, the empty window for a line that the ` +
        `L1I lacked, or the pipeline for anything else. On a machine without an out-of-order ` +
        `core a slot is a thousandth of a cycle. ${conditions}`,
      legend(GRADUATION.map(([name, , color]) => [name, color])),
      ...found.machines.flatMap((machine, at) =>
        slotsOn(found, at, GRADUATION, (on) => on.graduation),
      ),
    ),
  ],
];

const sideBySide = (found, conditions) => {
  if (found.machines.length < 2) return null;
  const title = "Machines side by side, simulated";
  const without = found.machines.filter((machine) => isNone(machine.megahertz));
  if (without.length > 0) {
    const names = without.map((machine) => machine.name).join(", ");
    return [title, [element("p", {}, `Not drawn: the file of ${names} gives no clock.`)]];
  }
  const [all] = found.sums;
  const first = all.on[0].milliseconds;
  const lines = found.machines.map((machine, at) => {
    const perMillisecond = 1000 * machine.megahertz * machine.graduation_per_cycle;
    const parts = MODES.flatMap(([sum, mode, colors]) =>
      GRADUATION.map(([cause, field], which) => {
        const time = found.sums[sum].on[at].graduation[field] / perMillisecond;
        const named = `${mode}, ${cause}: ${number(time, 3)} ms`;
        return [(100 * time) / first, colors[which], named];
      }),
    );
    return [machine.name, parts, `${number((100 * all.on[at].milliseconds) / first, 2)} %`];
  });
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
    ...found.machines.flatMap((machine, at) => [
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
  return [
    title,
    [
      figure(
        `The time of the recording on each machine, as a share of the time on ` +
          `${found.machines[0].name}, in the manner of SimOS (Rosenblum 1995, figure 4.3). ` +
          `Kernel and user mode are split as they graduate. The time in which the processor was ` +
          `halted is left out. ${conditions}`,
        legend([...colors, ["idle loop", "idle"]]),
        bars(lines),
      ),
      table(
        [
          "machine",
          "MHz",
          "time (ms)",
          ...["all", "kernel", "user mode"].flatMap((sum) =>
            ["P", "T", "A"].map((letter) => `${letter}, ${sum}`),
          ),
        ],
        found.machines.map((machine, at) => [
          machine.name,
          count(machine.megahertz),
          number(all.on[at].milliseconds, 3),
          ...found.sums.slice(0, 3).flatMap((sum) => parts(sum.on[at])),
        ]),
        `P: how many times faster than ${found.machines[0].name}; T: the ratio of the clocks; A: ` +
          `the ratio of the cycles for each instruction; P = T × A (Nellans 2005, section 3). ` +
          `Simulated.`,
      ),
      sortable(columns, found.rows, {
        by: 1,
        label: "services on the machines",
        most: 15,
        caption: `Each service on each machine (simulated). ${conditions}`,
      }),
      ...found.notes.map((note) => element("p", { class: "faint" }, `Note: ${note}.`)),
    ],
  ];
};

// Nothing without an out-of-order core.
const generationSections = (recording) => {
  const found = recording.generations;
  if (!found) return [];
  const names = found.machines.map((machine) => machine.name).join(", ");
  const conditions =
    `Workload ${recording.workload}, kernel ${recording.kernel.slice(0, 12)}, seed ` +
    `${recording.seed}; ${names}, simulated.`;
  return [
    topDown(found, conditions),
    graduation(found, conditions),
    sideBySide(found, conditions),
  ];
};
