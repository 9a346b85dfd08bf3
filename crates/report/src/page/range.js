// The range of time that the page shows of a recording. Tables, cards and the flame graph follow.

// Milliseconds without a change after which tables are filled again.
const REST = 80;

// Slices from `from` to before `until` are selected.
const rangeOf = (slices) => {
  const [atOnce, atRest] = [[], []];
  let timer = null;
  const add = (listeners, listener) => {
    listeners.push(listener);
    listener();
  };
  const range = {
    slices,
    from: 0,
    until: slices,
    isWhole: () => range.from === 0 && range.until === slices,
    select: (from, until) => {
      const low = Math.min(Math.max(Math.floor(from), 0), slices - 1);
      const high = Math.min(Math.max(Math.ceil(until), low + 1), slices);
      if (low === range.from && high === range.until) return;
      [range.from, range.until] = [low, high];
      for (const listener of atOnce) listener();
      clearTimeout(timer);
      timer = setTimeout(() => atRest.forEach((listener) => listener()), REST);
    },
    clear: () => range.select(0, slices),
    // Both call the function now, and at every change, or when changes rest.
    followAtOnce: (listener) => add(atOnce, listener),
    follow: (listener) => add(atRest, listener),
  };
  return range;
};

// What the counts of a frame are, in the order of the data.
const COUNTS = ["calls", "instructions", "stall", "l1i", "l1d", "l2"];
const [CALLS, INSTRUCTIONS, STALL, L1I, L1D, L2] = COUNTS.keys();

// The position of the first of `count` numbers from `start` that is not below `wanted`.
const firstNotBelow = (numbers, start, count, wanted) => {
  let [low, high] = [start, start + count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
};

// Frames with sums up to each slice, so that the counts of any range are differences.
const framesOf = ({ names, frames }) => {
  const wide = COUNTS.length + 1;
  const cells = frames.reduce((sum, frame) => sum + (frame.length - 2) / wide, 0);
  const [slice, sums] = [new Int32Array(cells), COUNTS.map(() => new Float64Array(cells))];
  const [caller, name, start] = ["caller", "name", "start"].map(
    () => new Int32Array(frames.length + 1),
  );
  let cell = 0;
  // A frame is its caller, its name, and columns: differences of slices, then the counts.
  frames.forEach((frame, at) => {
    [caller[at], name[at], start[at]] = [frame[0], frame[1], cell];
    const rows = (frame.length - 2) / wide;
    for (let row = 0; row < rows; row += 1, cell += 1) {
      slice[cell] = frame[2 + row] + (row > 0 ? slice[cell - 1] : 0);
      sums.forEach((sum, which) => {
        sum[cell] = frame[2 + (which + 1) * rows + row] + (row > 0 ? sum[cell - 1] : 0);
      });
    }
  });
  start[frames.length] = cell;
  const depth = new Int32Array(frames.length);
  frames.forEach((_, at) => {
    depth[at] = caller[at] < 0 ? 0 : depth[caller[at]] + 1;
  });
  // Whether no frame above is of the same function.
  const isOutermost = frames.map((_, at) => {
    let above = caller[at];
    while (above >= 0 && name[above] !== name[at]) above = caller[above];
    return above < 0;
  });
  return { names, count: frames.length, caller, name, start, slice, sums, depth, isOutermost };
};

// The counts of each frame in the range: `own`, and `all` with the frames that it called.
const countsIn = (frames, { from, until }) => {
  // Several sections ask for the same range.
  const key = `${from} ${until}`;
  if (frames.counted?.key === key) return frames.counted;
  const own = COUNTS.map(() => new Float64Array(frames.count));
  for (let at = 0; at < frames.count; at += 1) {
    const [start, cells] = [frames.start[at], frames.start[at + 1] - frames.start[at]];
    const low = firstNotBelow(frames.slice, start, cells, from);
    const high = firstNotBelow(frames.slice, start, cells, until);
    if (low === high) continue;
    frames.sums.forEach((sum, which) => {
      own[which][at] = sum[high - 1] - (low > start ? sum[low - 1] : 0);
    });
  }
  const all = own.map((counts) => counts.slice());
  for (let at = frames.count - 1; at >= 0; at -= 1) {
    const above = frames.caller[at];
    if (above >= 0) for (const counts of all) counts[above] += counts[at];
  }
  frames.counted = { key, own, all };
  return frames.counted;
};

// The largest latency of a class, in nanoseconds; see `services::slices::latency_class`.
const latencyOf = (kind) => {
  if (kind < 16) return kind;
  const step = 2 ** (Math.floor(kind / 8) - 1);
  return (8 + (kind % 8) + 1) * step - 1;
};

// The latency that this share of the invocations does not exceed. classes: [class, invocations].
const percentile = (classes, wanted) => {
  const all = classes.reduce((sum, [, calls]) => sum + calls, 0);
  let below = 0;
  for (const [kind, calls] of classes) {
    below += calls;
    if (below >= wanted * all) return latencyOf(kind);
  }
  return null;
};

// A service's invocations that ended in the range.
const endedIn = (service, { from, until }) => {
  const [sums, classes] = [[0, 0, 0], new Map()];
  for (const [slice, ...counts] of service.ended) {
    if (slice >= from && slice < until) counts.forEach((value, at) => (sums[at] += value));
  }
  for (const [slice, kind, calls] of service.classes) {
    if (slice >= from && slice < until) classes.set(kind, (classes.get(kind) ?? 0) + calls);
  }
  const [calls, latency, offCpu] = sums;
  return { calls, latency, offCpu, classes: [...classes].sort(([a], [b]) => a - b) };
};

// The sums over the range of rows of numbers, each behind its slice.
const sumsIn = (rows, { from, until }) => {
  const sums = new Array(Math.max(0, ...rows.map((row) => row.length - 1))).fill(0);
  for (const row of rows) {
    if (row[0] < from || row[0] >= until) continue;
    for (let at = 1; at < row.length; at += 1) sums[at - 1] += row[at];
  }
  return sums;
};
// Three numbers as misses by cause.
const causesAt = (sums, at) => {
  const [cold, self, other] = sums.slice(at, at + 3);
  return { cold, self, other };
};

// The misses of a row of results in the range, as the row has them.
const SLICE_LEVELS = [
  "l1i",
  "l1d",
  "l2_instructions",
  "l2_data",
  "l3_instructions",
  "l3_data",
];
const missesIn = (sliced, range) => {
  const sums = sumsIn(sliced, range);
  const levels = SLICE_LEVELS.slice(0, sums.length / 6);
  const mode = (first) =>
    Object.fromEntries(levels.map((level, at) => [level, causesAt(sums, first + 3 * at)]));
  const [kernel, user] = [mode(0), mode(3 * levels.length)];
  return {
    l1i: { kernel: kernel.l1i, user: user.l1i },
    memory: levels.length > 1 ? { kernel, user } : null,
  };
};

// The misses of each cache of the sizes in the range.
const sizesIn = ({ sizes, slices }, range) => {
  const cause = ({ cold, own, other }) => ({ cold, self: own, other });
  const sums = range.isWhole() ? null : sumsIn(slices.sizes, range);
  return sizes.caches.map((cache, at) => ({
    ...cache,
    kernel: sums ? causesAt(sums, 6 * at) : cause(cache.kernel),
    user: sums ? causesAt(sums, 6 * at + 3) : cause(cache.user),
  }));
};

// The misses of each data structure in the range: of the L1D by mode and cause, of L2 and L3.
const structuresIn = ({ data }, range) => {
  const total = ({ cold, self, other }) => cold + self + other;
  const both = (row, level) => total(row.kernel[level]) + total(row.user[level]);
  return data.rows
    .map((row, at) => {
      const named = { class: row.class, name: row.name };
      if (range.isWhole()) {
        const [l2, l3] = [both(row, "l2d"), both(row, "l3d")];
        return { ...named, kernel: row.kernel.l1d, user: row.user.l1d, l2, l3 };
      }
      const sums = sumsIn([new Array(9).fill(-1), ...data.slices[at]], range);
      const [kernel, user] = [causesAt(sums, 0), causesAt(sums, 3)];
      return { ...named, kernel, user, l2: sums[6], l3: sums[7] };
    })
    .map((row) => ({ ...row, all: total(row.kernel) + total(row.user) }))
    .filter((row) => row.all > 0);
};

// The misses of each cell of an address map in the range.
const cellsIn = (map, range) => {
  if (range.isWhole()) return map.misses;
  const cells = map.misses.map(() => 0);
  for (const row of map.slices) {
    if (row[0] < range.from || row[0] >= range.until) continue;
    for (let at = 1; at < row.length; at += 2) cells[row[at]] += row[at + 1];
  }
  return cells;
};

// Numbers by power of two in the range, and where the given share of them ends. rows: slice, power,
// how many.
const lengthsIn = (rows, { from, until }) => {
  const powers = new Map();
  for (const [slice, power, times] of rows) {
    if (slice >= from && slice < until) powers.set(power, (powers.get(power) ?? 0) + times);
  }
  const sorted = [...powers].sort(([a], [b]) => a - b);
  const all = sorted.reduce((sum, [, times]) => sum + times, 0);
  const end = (wanted) => {
    let below = 0;
    for (const [power, times] of sorted) {
      below += times;
      if (below >= wanted * all) return 2 ** (power + 1);
    }
    return 0;
  };
  return { count: all, median: end(0.5), ninth_decile: end(0.9) };
};

// The system's share in the range. In a part of the recording, cycles and misses are those of the
// first machine.
const VISITS = ["system-call", "page-fault", "exception", "interrupt", "ipi"];
const shareIn = (recording, { range, frames }) => {
  const os = recording.os_share;
  if (range.isWhole()) return os;
  const counts = countsIn(frames, range);
  const of = (which, ...modes) =>
    ofModes(frames, counts, which, (mode) => modes.length === 0 || modes.includes(mode));
  const part = (value, all) => (all > 0 ? value / all : 0);
  const cycles = (...modes) => of(INSTRUCTIONS, ...modes) + of(STALL, ...modes);
  const visits = recording.slices.services
    .filter(({ kind }) => VISITS.includes(kind))
    .map(({ kind, name, lengths }) => ({ kind, name, lengths: lengthsIn(lengths, range) }))
    .filter(({ lengths }) => lengths.count > 0);
  const [interrupts = 0] = sumsIn(recording.slices.interrupts, range);
  return {
    ...os,
    share: part(of(INSTRUCTIONS, "kernel"), of(INSTRUCTIONS, "kernel", "user")),
    machines: os.machines.slice(0, 1).map(({ machine }) => ({
      machine,
      cycles: part(cycles("kernel"), cycles()),
      l1i_misses: part(of(L1I, "kernel"), of(L1I)),
    })),
    interrupts: { ...lengthsIn(recording.slices.between, range), count: interrupts },
    visits,
  };
};
