// Execution over time as tracks: all CPUs, each CPU, each task. Zooms, pans and selects a range.

// [name, field, color], the lowest first.
const PARTS = [
  ["user, instructions", "user", "user-self"],
  ["user, stall", "user_stall", "user-cold"],
  ["kernel, instructions", "kernel", "kernel-self"],
  ["kernel, stall", "kernel_stall", "kernel-cold"],
  ["idle", "idle", "idle"],
];
// Buckets that fill the width at the largest zoom.
const CLOSEST = 8;
// The tasks that are shown before all are asked for.
const TASKS = 8;

// The color behind a variable of the style sheet.
const knownColors = new Map();
document.addEventListener("colors", () => knownColors.clear());
const colorOf = (name) => {
  if (!knownColors.has(name)) {
    const probe = element("span", { hidden: "", style: `color: var(--${name})` });
    document.body.append(probe);
    knownColors.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return knownColors.get(name);
};

// The same as a dot of a canvas: alpha, blue, green and red, from the highest byte.
const dotOf = (name) => {
  const [red, green, blue] = colorOf(name).match(/\d+/g).map(Number);
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
};

// Calls the function with the width of the element now, when it changes, and when colors do.
const redrawn = (node, draw) => {
  let width = 0;
  const again = () => width > 0 && draw(width);
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width === width) return;
    width = contentRect.width;
    // Not in here: what is drawn may change the height.
    requestAnimationFrame(again);
  }).observe(node);
  document.addEventListener("colors", again);
  return again;
};

// A canvas of this height for the width of the page, ready to draw.
const paper = (canvas, width, height) => {
  const dots = window.devicePixelRatio || 1;
  const size = [width, height].map((length) => Math.round(length * dots));
  // A new size makes a new bitmap.
  if (canvas.width !== size[0] || canvas.height !== size[1]) {
    [canvas.width, canvas.height] = size;
    canvas.style.height = `${height}px`;
  }
  const ink = canvas.getContext("2d");
  ink.setTransform(dots, 0, 0, dots, 0, 0);
  ink.clearRect(0, 0, width, height);
  return ink;
};
const line = (ink, from, to) => {
  ink.beginPath();
  ink.moveTo(...from);
  ink.lineTo(...to);
  ink.stroke();
};

// Sums before each bucket, one array for each part. `at`: the numbers of the buckets; without it,
// all buckets.
const sumsOf = (track, buckets) =>
  PARTS.map(([, field]) => {
    const sums = new Float64Array(buckets + 1);
    const values = track[field];
    if (track.at) track.at.forEach((at, which) => (sums[at + 1] = values[which]));
    else values.forEach((value, at) => (sums[at + 1] = value));
    for (let at = 0; at < buckets; at += 1) sums[at + 1] += sums[at];
    return sums;
  });

// The sum before a place between two buckets.
const sumAt = (sums, place) => {
  const at = Math.min(Math.max(Math.floor(place), 0), sums.length - 1);
  const next = Math.min(at + 1, sums.length - 1);
  return sums[at] + (sums[next] - sums[at]) * (place - at);
};

// Steps of 1, 2 or 5 times a power of ten, at most `most` of them in the length.
const stepFor = (length, most) => {
  const power = 10 ** Math.floor(Math.log10(length / most));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => length / step <= most);
};

const tracksOf = (recording, range, unit) => {
  const { timeline, slices } = recording;
  const buckets = timeline.buckets.user.length;
  const rows = [
    { name: "all CPUs", tall: 150, track: timeline.buckets, kind: "all" },
    ...(timeline.cpus ?? []).map((track, cpu) => ({
      name: `CPU ${cpu}`,
      tall: 34,
      track,
      kind: "cpu",
    })),
    ...timeline.tasks.map((task) => ({
      name: isNone(task.pid) ? task.name : `${task.name} ${task.pid}`,
      tall: 22,
      track: task.buckets,
      kind: "task",
    })),
  ];
  const [axis, gap] = [20, 3];
  let [from, until, cursor, isAll, chosen] = [0, buckets, null, false, 0];
  let [width, left] = [0, 0];
  const canvas = element("canvas", {
    class: "tracks",
    tabindex: "0",
    role: "application",
    "aria-label":
      "Execution over time: arrows move, with Shift they select, plus and minus zoom, Page Up " +
      "and Page Down pan, Enter zooms to the selection, Escape shows and selects everything",
  });
  const readout = element("div", { class: "readout", role: "status" });
  const shown = () => {
    let tasks = 0;
    return rows.filter(({ kind }) => kind !== "task" || isAll || (tasks += 1) <= TASKS);
  };
  const tasks = rows.filter(({ kind }) => kind === "task").length;
  const x = (place) => left + ((place - from) / (until - from)) * (width - left);
  const placeOf = (pixel) => from + ((pixel - left) / (width - left)) * (until - from);
  const timeOf = (place) => place * timeline.width;
  // As many digits as tell neighbouring ticks apart.
  const timeText = (time, step) => {
    const [scale, letter] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(
      ([scale]) => timeOf(buckets) >= scale,
    ) ?? [1, ""];
    const places = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
    return `${number(time / scale, Math.min(places, 6))} ${letter}`.trim();
  };

  // The sums before each of the columns of dots, one array for each part.
  const edges = (row, columns) => {
    row.sums ??= sumsOf(row.track, buckets);
    const per = (until - from) / columns;
    return row.sums.map((sums) =>
      Float64Array.from({ length: columns + 1 }, (_, column) =>
        sumAt(sums, Math.min(from + column * per, buckets)),
      ),
    );
  };
  // Draws the parts of each column's time, one above the other. time: that of all CPUs. Dots are
  // set one by one: drawing tens of thousands of rectangles takes longer than a frame.
  const drawRow = (ink, row, time, dots) => {
    const [columns, tall] = [time.length, Math.round(row.tall * dots)];
    const image = ink.createImageData(columns, tall);
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(dotOf("panel"));
    const parts = edges(row, columns).map((sums, part) => [sums, dotOf(PARTS[part][2])]);
    for (let column = 0; column < columns; column += 1) {
      let [below, dotsDown] = [0, tall - 1];
      for (const [sums, dot] of parts) {
        below += time[column] > 0 ? (sums[column + 1] - sums[column]) / time[column] : 0;
        for (const end = tall - Math.round(below * tall); dotsDown >= end; dotsDown -= 1)
          pixels[dotsDown * columns + column] = dot;
      }
    }
    ink.putImageData(image, Math.round(left * dots), Math.round(row.top * dots));
  };

  // Times and shares, and the names of the tracks.
  const drawAxes = (ink, all, height) => {
    const step = stepFor(timeOf(until - from), Math.max(2, Math.floor((width - left) / 130)));
    ink.font = "11px system-ui, sans-serif";
    ink.strokeStyle = colorOf("line");
    ink.lineWidth = 1;
    for (let tick = Math.ceil(timeOf(from) / step); tick * step <= timeOf(until); tick += 1) {
      const at = x((tick * step) / timeline.width);
      ink.globalAlpha = 0.5;
      line(ink, [at, axis - 4], [at, height]);
      ink.globalAlpha = 1;
      ink.fillStyle = colorOf("faint");
      const text = `${timeText(tick * step, step)} ${unit}`;
      const wide = ink.measureText(text).width;
      ink.fillText(text, Math.min(Math.max(at - wide / 2, left), width - wide), 12);
    }
    for (const row of all) {
      const name = row.name.length > 20 ? `${row.name.slice(0, 19)}…` : row.name;
      const base = row.top + (row.tall > 40 ? 14 : row.tall / 2 + 4);
      if (left === 0) {
        ink.globalAlpha = 0.75;
        ink.fillStyle = colorOf("ground");
        ink.fillRect(0, base - 11, ink.measureText(name).width + 8, 15);
        ink.globalAlpha = 1;
      }
      ink.fillStyle = colorOf("text");
      ink.fillText(name, 4, base);
    }
    // The axis of the first track: the share of each column's time.
    const [first] = all;
    ink.fillStyle = colorOf(left > 0 ? "faint" : "text");
    for (const part of [0, 0.25, 0.5, 0.75, 1]) {
      const y = first.top + first.tall * (1 - part);
      ink.globalAlpha = 0.6;
      line(ink, [left, y], [width, y]);
      ink.globalAlpha = 1;
      const text = `${100 * part} %`;
      const [at, base] =
        left > 0 ? [left - 6 - ink.measureText(text).width, y + 4] : [width - 34, y + 10];
      if (left > 0 || part > 0) ink.fillText(text, at, Math.min(base, first.top + first.tall));
    }
  };
  const drawRange = (ink, height) => {
    const [a, b] = [range.from, range.until].map((slice) =>
      Math.min(Math.max(x(Math.min(slice * slices.buckets, buckets)), left), width),
    );
    ink.fillStyle = colorOf("ground");
    ink.globalAlpha = 0.6;
    ink.fillRect(left, axis, a - left, height - axis);
    ink.fillRect(b, axis, width - b, height - axis);
    ink.globalAlpha = 1;
    ink.strokeStyle = colorOf("mark");
    ink.strokeRect(a, axis - 1, b - a, height - axis);
  };

  // What is drawn below the selection and the cursor, and what it shows.
  const base = document.createElement("canvas");
  let baseShows = "";
  const drawBase = (all, height) => {
    const now = [from, until, width, window.devicePixelRatio, all.length].join();
    if (now === baseShows) return;
    baseShows = now;
    const ink = paper(base, width, height);
    const dots = base.width / width;
    const columns = Math.max(1, base.width - Math.round(left * dots));
    const whole = edges(rows[0], columns);
    const time = Float64Array.from({ length: columns }, (_, column) =>
      whole.reduce((sum, sums) => sum + sums[column + 1] - sums[column], 0),
    );
    let top = axis;
    for (const row of all) {
      row.top = top;
      drawRow(ink, row, time, dots);
      top += row.tall + gap;
    }
    drawAxes(ink, all, height);
  };
  const draw = () => {
    if (width === 0) return;
    left = width < 600 ? 0 : 130;
    const all = shown();
    const height = axis + all.reduce((sum, row) => sum + row.tall + gap, 0);
    drawBase(all, height);
    const ink = paper(canvas, width, height);
    ink.drawImage(base, 0, 0, width, height);
    if (!range.isWhole()) drawRange(ink, height);
    if (cursor !== null && cursor >= from && cursor <= until) {
      ink.strokeStyle = colorOf("text");
      line(ink, [x(cursor), axis], [x(cursor), height]);
    }
    canvas.dataset.from = String(Math.round(timeOf(from)));
    canvas.dataset.until = String(Math.round(timeOf(until)));
    canvas.dataset.tracks = all.map((row) => row.name).join("\n");
  };
  let isWaiting = false;
  const later = () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      draw();
    });
  };

  const show = (low, high) => {
    const length = Math.min(Math.max(high - low, Math.min(CLOSEST, buckets)), buckets);
    const middle = (low + high) / 2;
    from = Math.min(Math.max(middle - length / 2, 0), buckets - length);
    until = from + length;
    later();
  };
  const zoom = (times, place = (from + until) / 2) =>
    show(place - (place - from) / times, place + (until - place) / times);
  const pan = (share) => {
    const by = Math.min(Math.max(share * (until - from), -from), buckets - until);
    show(from + by, until + by);
  };
  const zoomToRange = () =>
    show(range.from * slices.buckets, Math.min(range.until * slices.buckets, buckets));
  const selectPlaces = (one, other) =>
    range.select(Math.min(one, other) / slices.buckets, Math.max(one, other) / slices.buckets);

  // Says what happens at the cursor.
  const say = () => {
    const row = rows[chosen] ?? rows[0];
    row.sums ??= sumsOf(row.track, buckets);
    const at = Math.min(Math.max(Math.floor(cursor), 0), buckets - 1);
    const sum = (of) => of.reduce((all, sums) => all + sums[at + 1] - sums[at], 0);
    const time = sum(rows[0].sums) || 1;
    const amounts = PARTS.map(
      ([name], part) =>
        `${name} ${number((100 * (row.sums[part][at + 1] - row.sums[part][at])) / time, 1)} %`,
    );
    readout.textContent = `${row.name} at ${short(timeOf(at))} ${unit}: ${amounts.join(", ")}`;
    later();
  };

  const rowAt = (pixel) => {
    const found = shown().find((row) => pixel >= row.top && pixel < row.top + row.tall);
    return found ? rows.indexOf(found) : chosen;
  };
  const inside = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const fingers = new Map();
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [pixel] = inside(event);
    fingers.set(event.pointerId, pixel);
    canvas.setPointerCapture(event.pointerId);
    const place = placeOf(pixel);
    const isPan = event.shiftKey || fingers.size > 1;
    drag = { isPan, pixel, place, from, until, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    const [pixel, down] = inside(event);
    [cursor, chosen] = [placeOf(pixel), rowAt(down)];
    if (fingers.has(event.pointerId) && fingers.size === 2) {
      // Two fingers keep the places under them.
      const before = [...fingers.values()].sort((a, b) => a - b).map(placeOf);
      fingers.set(event.pointerId, pixel);
      const now = [...fingers.values()].sort((a, b) => a - b);
      const per = (before[1] - before[0]) / Math.max(now[1] - now[0], 1);
      show(before[0] - (now[0] - left) * per, before[1] + (width - now[1]) * per);
    } else if (drag && fingers.has(event.pointerId)) {
      fingers.set(event.pointerId, pixel);
      drag.moved ||= Math.abs(pixel - drag.pixel) > 3;
      if (drag.moved && drag.isPan) {
        const by = ((drag.pixel - pixel) / (width - left)) * (drag.until - drag.from);
        const room = Math.min(Math.max(by, -drag.from), buckets - drag.until);
        show(drag.from + room, drag.until + room);
      } else if (drag.moved) {
        selectPlaces(drag.place, cursor);
      }
    }
    say();
  });
  const release = (event) => {
    fingers.delete(event.pointerId);
    if (fingers.size === 0) drag = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("dblclick", () => zoomToRange());
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) {
        event.preventDefault();
        zoom(Math.exp(-event.deltaY / 200), placeOf(inside(event)[0]));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        pan((event.deltaX || event.deltaY) / (width - left));
      }
    },
    { passive: false },
  );
  let anchor = null;
  canvas.addEventListener("keydown", (event) => {
    const one = Math.max(1, (until - from) / 100);
    const moved = { ArrowLeft: -one, ArrowRight: one, Home: -buckets, End: buckets }[event.key];
    const acts = {
      "+": () => zoom(1.5, cursor ?? undefined),
      "=": () => zoom(1.5, cursor ?? undefined),
      "-": () => zoom(1 / 1.5, cursor ?? undefined),
      PageUp: () => pan(-0.5),
      PageDown: () => pan(0.5),
      Enter: zoomToRange,
      Escape: () => {
        range.clear();
        show(0, buckets);
      },
      ArrowUp: () => (chosen = Math.max(0, chosen - 1)),
      ArrowDown: () => (chosen = Math.min(shown().length - 1, chosen + 1)),
    };
    if (moved !== undefined) {
      const before = cursor ?? from;
      cursor = Math.min(Math.max(before + moved, 0), buckets);
      if (event.shiftKey) {
        anchor ??= before;
        selectPlaces(anchor, cursor);
      } else {
        anchor = null;
      }
      const half = (until - from) / 2;
      if (cursor < from || cursor > until) show(cursor - half, cursor + half);
    } else if (acts[event.key]) {
      acts[event.key]();
    } else {
      return;
    }
    event.preventDefault();
    cursor ??= from;
    say();
  });

  const button = (text, label, act) => {
    const made = element("button", { type: "button", "aria-label": label, title: label }, text);
    made.addEventListener("click", act);
    return made;
  };
  const everyTask = button(`All ${tasks} tasks`, "Show all tasks", () => {
    isAll = !isAll;
    everyTask.textContent = isAll ? "Fewer tasks" : `All ${tasks} tasks`;
    later();
  });
  everyTask.hidden = tasks <= TASKS;
  const clear = button("Whole recording", "Select the whole recording", () => range.clear());
  redrawn(canvas, (now) => {
    [width, baseShows] = [Math.floor(now), ""];
    draw();
  });
  range.followAtOnce(() => {
    clear.hidden = range.isWhole();
    later();
  });
  return [
    legend(PARTS.map(([name, , color]) => [name, color]).reverse()),
    element(
      "div",
      { class: "tools" },
      button("+", "Zoom in", () => zoom(1.5)),
      button("−", "Zoom out", () => zoom(1 / 1.5)),
      button("←", "Pan to the left", () => pan(-0.25)),
      button("→", "Pan to the right", () => pan(0.25)),
      button("Zoom to selection", "Zoom to the selected range", zoomToRange),
      button("Show all", "Zoom out to the whole recording", () => show(0, buckets)),
      clear,
      everyTask,
    ),
    canvas,
    readout,
  ];
};
