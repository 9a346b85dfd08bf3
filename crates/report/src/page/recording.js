// The sections of a recording: where its time went.

const KINDS = {
  "system-call": "system call",
  "page-fault": "page fault",
  ipi: "IPI",
  "context-switch": "context switch",
  "kernel-thread": "kernel thread",
};
const titleOf = (row) =>
  row.kind === "idle" ? row.name : `${KINDS[row.kind] ?? row.kind} ${row.name}`;

const inKernel = (row) => row.kind !== "user" && row.kind !== "idle";
const halts = (nanoseconds) =>
  isNone(nanoseconds)
    ? "This recording does not say how long the processor was halted. That time is left out."
    : `Idle includes ${number(nanoseconds * 1e-9, 6)} s of the guest's clock in which the ` +
      `processor was halted.`;

const LEVELS = [
  ["L1I", (c) => c.l1i],
  ["L1D", (c) => modes(c.memory, "l1d")],
  ["L2, instructions", (c) => modes(c.memory, "l2_instructions")],
  ["L2, data", (c) => modes(c.memory, "l2_data")],
  ["L3, instructions", (c) => modes(c.memory, "l3_instructions")],
  ["L3, data", (c) => modes(c.memory, "l3_data")],
];
const modes = (memory, level) =>
  memory ? { kernel: memory.kernel[level], user: memory.user[level] } : null;
const CAUSES = [
  ["kernel, self", "kernel", "self", "kernel-self"],
  ["kernel, other", "kernel", "other", "kernel-other"],
  ["kernel, cold", "kernel", "cold", "kernel-cold"],
  ["user, other", "user", "other", "user-other"],
  ["user, self", "user", "self", "user-self"],
  ["user, cold", "user", "cold", "user-cold"],
];
const byCause = (label, misses) => {
  const parts = CAUSES.map(([name, mode, cause, color]) => [
    misses[mode][cause],
    color,
    `${name}: ${count(misses[mode][cause])}`,
  ]);
  return [label, parts, count(parts.reduce((sum, [amount]) => sum + amount, 0))];
};

// Bars for all rows, and a table of the first one.
const missesOf = (rows, several, conditions) => [
  figure(
    `Self: the requester that misses the line had evicted it. Other: another requester ` +
      `had evicted it. Cold: the line was never fetched before. ${conditions}`,
    legend(CAUSES.map(([name, , , color]) => [name, color])),
    bars(
      rows.flatMap((row) =>
        LEVELS.map(([level, of]) => [level, of(row.counters)])
          .filter(([, found]) => found && CAUSES.some(([, mode, cause]) => found[mode][cause] > 0))
          .map(([level, found]) =>
            byCause(`${row.machine}${several ? `, ${row.layout}` : ""}: ${level}`, found),
          ),
      ),
    ),
  ),
  ...rows.slice(0, 1).map((row) =>
    table(
      ["", ...CAUSES.map(([name]) => name), "all"],
      LEVELS.map(([level, of]) => [level, of(row.counters)])
        .filter(([, found]) => found)
        .map(([level, found]) => {
          const amounts = CAUSES.map(([, mode, cause]) => found[mode][cause]);
          return [
            level,
            ...amounts.map(count),
            count(amounts.reduce((sum, amount) => sum + amount, 0)),
          ];
        }),
      `Misses of ${row.machine}${several ? `, ${row.layout}` : ""}`,
    ),
  ),
];

const misses = (recording, conditions, { range }) => {
  const { rows, slices } = recording;
  if (rows.length === 0) return null;
  const several = new Set(rows.map((row) => row.layout)).size > 1;
  const shown = () =>
    range.isWhole()
      ? rows
      : rows.map((row, at) => ({ ...row, counters: missesIn(slices.misses[at], range) }));
  const content = () => missesOf(shown(), several, conditions);
  return ["Misses by cause", [following(range, content)], true];
};

const CLASSES = {
  "per-cpu": "per CPU",
  "cpu-entry-area": "CPU entry area",
  boot: "set aside at boot",
  held: "held, no mark",
};
const dataOf = (row) =>
  `${CLASSES[row.class] ?? row.class.replaceAll("-", " ")} ${row.name ?? ""}`.trim();

// Classes that say nothing about what the data is.
const UNKNOWN = ["held", "other"];

const byData = (recording, conditions, { range }) => {
  if (!recording.data) return null;
  const { machine, other_share, frames_unknown } = recording.data;
  const total = (causes) => causes.cold + causes.self + causes.other;
  const sum = (rows) => rows.reduce((sum, row) => sum + row.all, 0);
  const rows = () => structuresIn(recording, range);
  const classes = (rows) =>
    [...new Set(rows.map((row) => row.class))].map((name) => {
      const of = rows.filter((row) => row.class === name);
      const causes = (mode) =>
        Object.fromEntries(
          ["cold", "self", "other"].map((cause) => [
            cause,
            of.reduce((sum, row) => sum + row[mode][cause], 0),
          ]),
        );
      return [dataOf({ class: name }), { kernel: causes("kernel"), user: causes("user") }, sum(of)];
    });
  const columns = () => {
    const shown = rows();
    const all = Math.max(1, sum(shown));
    const made = [
      ["data", dataOf, null, "text"],
      ["share of L1D misses", (row) => row.all / all, share],
      ["by the kernel", (row) => total(row.kernel), count],
      ["cold", (row) => row.kernel.cold, count],
      ["self", (row) => row.kernel.self, count],
      ["other", (row) => row.kernel.other, count],
      ["by user mode", (row) => total(row.user), count],
    ];
    for (const [level, title] of [
      ["l2", "L2 misses"],
      ["l3", "L3 misses"],
    ]) {
      if (shown.some((row) => row[level] > 0)) made.push([title, (row) => row[level], count]);
    }
    return made;
  };
  const unknown = () => {
    const shown = rows();
    return range.isWhole()
      ? other_share
      : sum(shown.filter((row) => UNKNOWN.includes(row.class))) / Math.max(1, sum(shown));
  };
  return [
    "Misses by data structure",
    [
      figure(
        `L1D misses of loads and stores on ${machine} by data structure and cause. ${conditions}`,
        legend(CAUSES.map(([name, , , color]) => [name, color])),
        following(range, () => [
          bars(
            classes(rows())
              .sort(([, , a], [, , b]) => b - a)
              .map(([name, misses]) => byCause(name, misses)),
          ),
        ]),
      ),
      followingTable(range, columns, rows, {
        by: 1,
        label: "data structures",
        caption:
          `Every miss is in one row. Cold, self and other are the causes of the kernel's L1D ` +
          `misses on ${machine} (simulated). ${conditions}`,
      }),
      following(range, () => [
        element(
          "p",
          { class: "faint" },
          `Data of unknown use: ${number(100 * unknown(), 2)} % of the L1D's misses.` +
            (frames_unknown
              ? ` This recording does not say what page frames are used for ` +
                `(${frames_unknown}), so most data has no name.`
              : ""),
        ),
      ]),
    ],
    true,
  ];
};

// SimOS' figures 4.6 and 4.7: misses against the size, for each kind of cache, at 2 ways.
const HOLDS = { instructions: "instruction cache", data: "data cache", both: "unified cache" };
const bySize = (recording, conditions, { range, frames }) => {
  if (!recording.sizes) return null;
  const { kernel_instructions, user_instructions } = recording.sizes;
  const instructions = () =>
    range.isWhole()
      ? kernel_instructions + user_instructions
      : instructionsOf(frames, range, () => true);
  const size = (bytes) => (bytes >= 1 << 20 ? `${bytes >> 20} MB` : `${bytes >> 10} KB`);
  const ways = 2;
  const drawn = () => {
    const caches = sizesIn(recording, range);
    const kinds = [...new Set(caches.map((cache) => cache.holds))];
    return kinds.flatMap((kind) => [
      element("p", {}, element("b", {}, HOLDS[kind] ?? kind), `, ${ways} ways`),
      bars(
        caches
          .filter((cache) => cache.holds === kind && cache.ways === ways)
          .map((cache) => byCause(size(cache.size), cache)),
      ),
    ]);
  };
  const total = (mode) => mode.cold + mode.self + mode.other;
  const columns = () => {
    const all = Math.max(1, instructions());
    const per = (misses) => (1000 * misses) / all;
    const two = (value) => number(value, 2);
    return [
      ["cache", (row) => row.name, null, "text"],
      ["bytes", (row) => row.size, count],
      ["ways", (row) => row.ways, count],
      ["misses per 1000 instr.", (row) => per(total(row.kernel) + total(row.user)), two],
      ["of the kernel", (row) => per(total(row.kernel)), two],
      ["of user mode", (row) => per(total(row.user)), two],
    ];
  };
  const rows = () =>
    sizesIn(recording, range).map((cache) => ({
      ...cache,
      name: `${HOLDS[cache.holds] ?? cache.holds} ${size(cache.size)}, ${cache.ways} ways`,
    }));
  return [
    "Misses by size",
    [
      figure(
        `Misses by cause in caches of many sizes. Lines are as long as in SimOS (Rosenblum ` +
          `1995, figures 4.6 and 4.7): 64 bytes for instructions, 32 for data, 128 for both. ` +
          `${conditions}`,
        legend(CAUSES.map(([name, , , color]) => [name, color])),
        following(range, drawn),
      ),
      followingTable(range, columns, rows, {
        by: 3,
        label: "caches",
        most: 8,
        caption: `Misses per 1000 instructions of kernel and user together. ${conditions}`,
      }),
    ],
    true,
  ];
};

const osShare = (recording, conditions, explored) => {
  const { range } = explored;
  const lengths = (row) => row.lengths;
  const columns = () => [
    ["visits to the kernel by", titleOf, null, "text"],
    ["visits", (row) => lengths(row).count, count],
    ["median below (instr.)", (row) => lengths(row).median, count],
    ["ninth decile below (instr.)", (row) => lengths(row).ninth_decile, count],
  ];
  const text = () => {
    const os = shareIn(recording, explored);
    const unknown = recording.os_share.machines.length - os.machines.length;
    return (
      `${share(os.share)} of the instructions were executed in the kernel (idle not ` +
      `counted); in the paper ${os.nellans.average} % on average over its workloads, at ` +
      `least ${os.nellans.interactive} % in interactive ones, ${os.nellans.spec} % in ` +
      `SPEC CPU2000 (Nellans 2005, tables 1 and 2). ` +
      os.machines
        .map(
          (m) =>
            `On ${m.machine} ${share(m.cycles)} of the cycles and ` +
            `${share(m.l1i_misses)} of the L1I misses. `,
        )
        .join("") +
      (unknown > 0 ? `On other machines, the shares are known of the whole recording only. ` : "") +
      `${count(os.interrupts.count)} interrupts, half of them less than ` +
      `${count(os.interrupts.median)} instructions apart.`
    );
  };
  return [
    "The system's share",
    [
      following(range, () => [element("p", {}, text())]),
      followingTable(range, columns, () => shareIn(recording, explored).visits, {
        by: 1,
        label: "visits",
        most: 12,
        caption:
          `Lengths of visits to the kernel, from entry to exit, without the time in which ` +
          `the task did not run. The lengths are upper ends of powers of two. In a selected ` +
          `range, visits are those that ended in it. ${conditions}`,
      }),
    ],
    true,
  ];
};

const sectionsOf = (recording, explored) => {
  const machine = recording.table.machines[0]?.name;
  const unit = unitOf(recording);
  const conditions =
    `Workload ${recording.workload}, kernel ${recording.kernel.slice(0, 12)}, seed ` +
    `${recording.seed}${machine ? `, machine ${machine} (simulated)` : ""}.`;
  const maps =
    recording.maps.length === 0
      ? null
      : [
          "Where the kernel's code misses",
          [
            figure(
              `L1I misses by the address of the code (Torrellas 1998, figures 1 and 13). ` +
                `Heights are square ` +
                `roots${recording.maps.length > 1 ? ", on one scale for all layouts" : ""}. ` +
                `${conditions}`,
              ...addressMap(recording.maps, explored.range),
            ),
          ],
          true,
        ];
  const alone = hasCore(recording, 0) ? " on caches alone" : "";
  const flame =
    explored.frames.slice.length === 0
      ? null
      : [
          "Calls",
          [
            figure(
              `Flame graph: mode, service, and each chain of calls in it. The counts are exact, ` +
                `not sampled${machine ? `; cycles and misses are simulated${alone}` : ""}. ` +
                `Point at a box for its numbers. A click or Enter zooms in, Escape shows ` +
                `everything, C and D show callers and callees of the chosen function, I inverts. ` +
                `Chains narrower than 1/${count(1 / recording.slices.narrowest)} of all weights ` +
                `are in one box. ${conditions}`,
              ...flameGraph(recording, explored.frames, explored.range),
            ),
          ],
          true,
        ];
  return [
    overTime(recording, unit, conditions, explored),
    services(recording, conditions, explored),
    ...generationSections(recording, explored),
    ...multiprocessorSections(recording),
    misses(recording, conditions, explored),
    byData(recording, conditions, explored),
    bySize(recording, conditions, explored),
    maps,
    flame,
    osShare(recording, conditions, explored),
    functions(recording, conditions, explored),
  ].filter((section) => section !== null);
};

// Cycles per instruction on a machine: of its core, if it has one.
const cyclesOf = ({ generations, table }, at) =>
  generations
    ? generations.sums[0].on[at].cpi
    : table.machines[at].cycles / Math.max(1, table.instructions);

const conditionsOf = (entries, title) =>
  element(
    "details",
    {},
    element("summary", {}, title),
    element(
      "dl",
      {},
      ...entries.flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, value)]),
    ),
  );
