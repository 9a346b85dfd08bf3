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

// Misses by mode, level and cause in the range, as rows of results have them; `null` without
// data accesses.
const SLICE_LEVELS = [
  "l1i",
  "l1d",
  "l2_instructions",
  "l2_data",
  "l3_instructions",
  "l3_data",
];
const missesIn = (slices, { from, until }) => {
  if (slices.misses.length === 0) return null;
  const sums = new Array(36).fill(0);
  for (const [slice, ...counts] of slices.misses) {
    if (slice >= from && slice < until) counts.forEach((value, at) => (sums[at] += value));
  }
  const mode = (first) =>
    Object.fromEntries(
      SLICE_LEVELS.map((level, at) => {
        const [cold, self, other] = sums.slice(first + 3 * at, first + 3 * at + 3);
        return [level, { cold, self, other }];
      }),
    );
  const [kernel, user] = [mode(0), mode(18)];
  return { l1i: { kernel: kernel.l1i, user: user.l1i }, memory: { kernel, user } };
};
