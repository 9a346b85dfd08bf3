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

// In a range, only the first machine and the recorded layout are known, with data accesses.
const misses = (recording, conditions, { range }) => {
  const { rows, slices } = recording;
  if (rows.length === 0) return null;
  const several = new Set(rows.map((row) => row.layout)).size > 1;
  const follows = slices.misses.length > 0;
  const shown = element("div");
  const show = () =>
    shown.replaceChildren(
      ...(range.isWhole() || !follows
        ? missesOf(rows, several, conditions)
        : missesOf([{ ...rows[0], counters: missesIn(slices, range) }], several, conditions)),
    );
  if (follows) range.follow(show);
  else show();
  return ["Misses by cause", [shown], follows];
};

const CLASSES = {
  "per-cpu": "per CPU",
  "cpu-entry-area": "CPU entry area",
  boot: "set aside at boot",
  held: "held, no mark",
};
const dataOf = (row) =>
  `${CLASSES[row.class] ?? row.class.replaceAll("-", " ")} ${row.name ?? ""}`.trim();

const byData = (recording, conditions) => {
  if (!recording.data) return null;
  const { machine, rows, other_share, frames_unknown } = recording.data;
  const total = (causes) => causes.cold + causes.self + causes.other;
  const both = (row, level) => total(row.kernel[level]) + total(row.user[level]);
  const all = Math.max(
    1,
    rows.reduce((sum, row) => sum + both(row, "l1d"), 0),
  );
  const classes = [...new Set(rows.map((row) => row.class))].map((name) => {
    const sum = (mode, cause) =>
      rows.filter((row) => row.class === name).reduce((sum, row) => sum + row[mode].l1d[cause], 0);
    const of = (mode) => ({
      cold: sum(mode, "cold"),
      self: sum(mode, "self"),
      other: sum(mode, "other"),
    });
    return [dataOf({ class: name }), { kernel: of("kernel"), user: of("user") }];
  });
  const amount = ([, misses]) => total(misses.kernel) + total(misses.user);
  const columns = [
    ["data", dataOf, null, "text"],
    ["share of L1D misses", (row) => both(row, "l1d") / all, share],
    ["by the kernel", (row) => total(row.kernel.l1d), count],
    ["cold", (row) => row.kernel.l1d.cold, count],
    ["self", (row) => row.kernel.l1d.self, count],
    ["other", (row) => row.kernel.l1d.other, count],
    ["by user mode", (row) => total(row.user.l1d), count],
  ];
  for (const [level, title] of [
    ["l2d", "L2 misses"],
    ["l3d", "L3 misses"],
  ]) {
    if (rows.some((row) => both(row, level) > 0))
      columns.push([title, (row) => both(row, level), count]);
  }
  return [
    "Misses by data structure",
    [
      figure(
        `L1D misses of loads and stores on ${machine} by data structure and cause. ${conditions}`,
        legend(CAUSES.map(([name, , , color]) => [name, color])),
        bars(
          classes
            .filter((one) => amount(one) > 0)
            .sort((a, b) => amount(b) - amount(a))
            .map(([name, misses]) => byCause(name, misses)),
        ),
      ),
      sortable(columns, rows, {
        by: 1,
        label: "data structures",
        caption:
          `Every miss is in one row. Cold, self and other are the causes of the kernel's L1D ` +
          `misses on ${machine} (simulated). ${conditions}`,
      }),
      element(
        "p",
        { class: "faint" },
        `Data of unknown use: ${number(100 * other_share, 2)} % of the L1D's misses.` +
          (frames_unknown
            ? ` This recording does not say what page frames are used for ` +
              `(${frames_unknown}), so most data has no name.`
            : ""),
      ),
    ],
  ];
};

// SimOS' figures 4.6 and 4.7: misses against the size, for each kind of cache, at 2 ways.
const HOLDS = { instructions: "instruction cache", data: "data cache", both: "unified cache" };
const bySize = (recording, conditions) => {
  if (!recording.sizes) return null;
  const { caches, kernel_instructions, user_instructions } = recording.sizes;
  const all = Math.max(1, kernel_instructions + user_instructions);
  const kinds = [...new Set(caches.map((cache) => cache.holds))];
  const size = (bytes) => (bytes >= 1 << 20 ? `${bytes >> 20} MB` : `${bytes >> 10} KB`);
  const shown = kinds.flatMap((kind) => {
    const ways = 2;
    const lines = caches
      .filter((cache) => cache.holds === kind && cache.ways === ways)
      .map((cache) => {
        const of = (mode) => ({
          cold: cache[mode].cold,
          self: cache[mode].own,
          other: cache[mode].other,
        });
        return byCause(size(cache.size), { kernel: of("kernel"), user: of("user") });
      });
    return [element("p", {}, element("b", {}, HOLDS[kind] ?? kind), `, ${ways} ways`), bars(lines)];
  });
  const total = (mode) => mode.cold + mode.own + mode.other;
  const per = (misses) => (1000 * misses) / all;
  const rows = caches.map((cache) => ({
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
        ...shown,
      ),
      sortable(
        [
          ["cache", (row) => row.name, null, "text"],
          ["bytes", (row) => row.size, count],
          ["ways", (row) => row.ways, count],
          [
            "misses per 1000 instr.",
            (row) => per(total(row.kernel) + total(row.user)),
            (v) => number(v, 2),
          ],
          ["of the kernel", (row) => per(total(row.kernel)), (v) => number(v, 2)],
          ["of user mode", (row) => per(total(row.user)), (v) => number(v, 2)],
        ],
        rows,
        {
          by: 3,
          label: "caches",
          most: 8,
          caption: `Misses per 1000 instructions of kernel and user together. ${conditions}`,
        },
      ),
    ],
  ];
};

const osShare = (recording, conditions) => {
  const os = recording.os_share;
  const lengths = (row) => row.lengths;
  return [
    "The system's share",
    [
      element(
        "p",
        {},
        `${share(os.share)} of the instructions were executed in the kernel (idle not ` +
          `counted); in the paper ${os.nellans.average} % on average over its workloads, at ` +
          `least ${os.nellans.interactive} % in interactive ones, ${os.nellans.spec} % in ` +
          `SPEC CPU2000 (Nellans 2005, tables 1 and 2). ` +
          os.machines
            .map(
              (m) =>
                `On ${m.machine} ${share(m.cycles)} of the cycles and ` +
                `${share(m.l1i_misses)} of the L1I misses.`,
            )
            .join(" ") +
          ` ${count(os.interrupts.count)} interrupts, half of them less than ` +
          `${count(os.interrupts.median)} instructions apart.`,
      ),
      sortable(
        [
          ["visits to the kernel by", titleOf, null, "text"],
          ["visits", (row) => lengths(row).count, count],
          ["median below (instr.)", (row) => lengths(row).median, count],
          ["ninth decile below (instr.)", (row) => lengths(row).ninth_decile, count],
        ],
        os.visits,
        {
          by: 1,
          label: "visits",
          most: 12,
          caption:
            `Lengths of visits to the kernel, from entry to exit, without the time in which ` +
            `the task did not run. The lengths are upper ends of powers of two. ${conditions}`,
        },
      ),
    ],
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
              ...addressMap(recording.maps),
            ),
          ],
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
    ...generationSections(recording),
    ...multiprocessorSections(recording),
    misses(recording, conditions, explored),
    byData(recording, conditions),
    bySize(recording, conditions),
    maps,
    flame,
    osShare(recording, conditions),
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
