// The sections of recordings of several CPUs: where the cycles of each service go, and L2s of
// several sizes. Only widths of bars, and shares, are computed here.

// [name, field, color] of the parts of cycles.
const CYCLES = [
  ["work", "work", "retiring"],
  ["synchronization", "synchronization", "speculation"],
  ["coherence misses", "coherence", "memory"],
  ["upgrades", "upgrades", "front-bandwidth"],
  ["code", "instruction", "front-latency"],
  ["data", "data", "core"],
];
// [name, field, color] of what an L2 was asked for.
const L2_CLASSES = [
  ["cold", "cold", "kernel-cold"],
  ["capacity", "capacity", "kernel-self"],
  ["coherence", "coherence", "speculation"],
  ["upgrades", "upgrades", "front-bandwidth"],
];
// The services that are drawn; the table has all.
const SERVICES_DRAWN = 12;

const cyclesOfParts = (cycles) => CYCLES.reduce((sum, [, field]) => sum + cycles[field], 0);
const cyclesBar = (label, cycles, behind) => {
  const all = Math.max(1, cyclesOfParts(cycles));
  const parts = CYCLES.map(([name, field, color]) => [
    (100 * cycles[field]) / all,
    color,
    `${name}: ${share(cycles[field] / all)}`,
  ]);
  return [label, parts, behind];
};

const multiprocessorServices = (found, conditions) => {
  const one = found.one_cpu;
  const part = (field) => (row) => row.cycles[field] / Math.max(1, cyclesOfParts(row.cycles));
  const microseconds = (value) => (isNone(value) ? null : value / 1000);
  const columns = [
    ["service", titleOf, null, "text"],
    ["share of the kernel", (row) => row.share, share],
    ...(one ? [["on one CPU", (row) => row.share_on_one_cpu, share]] : []),
    ["calls", (row) => row.calls, count],
    ["cycles/call", (row) => row.mean_cycles, (v) => number(v, 0)],
    ...(one ? [["slower", (row) => row.slowdown, share]] : []),
    ...CYCLES.map(([name, field]) => [name, part(field), share]),
    ["blocked (us)", (row) => microseconds(row.blocked), (v) => number(v, 2)],
    ["waiting (us)", (row) => microseconds(row.waiting), (v) => number(v, 2)],
    ["coherence misses/call", (row) => row.coherence_misses, (v) => number(v, 1)],
    ["upgrades/call", (row) => row.upgrades, (v) => number(v, 1)],
  ];
  return [
    "Services on several CPUs, simulated",
    [
      figure(
        `Where the cycles of all CPUs go, by mode and by service (Rosenblum 1995, figure 5.1 and ` +
          `table 5.4). An instruction takes a cycle, and every miss stops the CPU. ` +
          `Synchronization is what happens in the functions of spin locks. ${conditions}`,
        legend(CYCLES.map(([name, , color]) => [name, color])),
        bars([
          ...found.modes.map((mode) => cyclesBar(mode.mode, mode.cycles, share(mode.share))),
          ...found.rows
            .slice(0, SERVICES_DRAWN)
            .map((row) => cyclesBar(titleOf(row), row.cycles, share(row.share))),
        ]),
      ),
      sortable(columns, found.rows, {
        by: 1,
        label: "services on several CPUs",
        most: 15,
        caption:
          `Parts are of the service's cycles. Blocked and waiting are microseconds of the ` +
          `guest's clock for each call. ${conditions}`,
      }),
      table(
        ["SimOS, eight CPUs of 1994", "share of the kernel", "on one CPU", "slower",
          ...CYCLES.map(([name]) => name)],
        found.simos.map((row) => [
          `${row.service} (${row.workload})`,
          ...row.share.map((value) => `${number(value, 1)} %`),
          `${number(row.slowdown, 0)} %`,
          ...row.parts.map((value) => `${value} %`),
        ]),
        "Rows of table 5.4 of Rosenblum 1995.",
      ),
    ],
  ];
};

const l2Sizes = (found, conditions) => {
  const rows = found.l2_sizes.flatMap((row) => [
    [`${row.bytes >> 10} KB`, row.misses],
    ...(row.on_one_cpu ? [[`${row.bytes >> 10} KB, one CPU`, row.on_one_cpu]] : []),
  ]);
  const all = (misses) => L2_CLASSES.reduce((sum, [, field]) => sum + misses[field], 0);
  const lines = rows.map(([label, misses]) => [
    label,
    L2_CLASSES.map(([name, field, color]) => [
      misses[field],
      color,
      `${name}: ${number(misses[field], 3)}`,
    ]),
    number(all(misses), 3),
  ]);
  return [
    "The kernel's misses by size of the L2, simulated",
    [
      figure(
        `Misses of all CPUs in kernel mode for each 100 instructions, by class, in L2s of several ` +
          `sizes (Rosenblum 1995, figure 5.3). Larger caches do not help against coherence misses ` +
          `and upgrades. ${conditions}`,
        legend(L2_CLASSES.map(([name, , color]) => [name, color])),
        bars(lines),
      ),
    ],
  ];
};

// How the CPUs are put in order, and the counts of coherence in both orders.
const cpuOrder = (found) => {
  if (!found.recorded) return "in the order of the recording.";
  const misses = (total, field) => total.misses.kernel[field] + total.misses.user[field];
  const counts = [
    ["misses by true sharing", (total) => misses(total, "true_sharing")],
    ["by false sharing", (total) => misses(total, "false_sharing")],
    ["upgrades", (total) => total.upgrades.kernel + total.upgrades.user],
  ].map(([name, of]) => `${count(of(found.total))} (${count(of(found.recorded))}) ${name}`);
  return (
    `side by side in simulated time. In brackets, what the order of the recording has: ` +
    `${counts.join(", ")}.`
  );
};

// Nothing for one CPU.
const multiprocessorSections = (recording) => {
  const found = recording.multiprocessor;
  if (!found) return [];
  const conditions =
    `Workload ${recording.workload}, kernel ${recording.kernel.slice(0, 12)}, seed ` +
    `${recording.seed}; ${found.cpus} CPUs on ${found.machine} (simulated), ` +
    cpuOrder(found);
  return [multiprocessorServices(found, conditions), l2Sizes(found, conditions)];
};
