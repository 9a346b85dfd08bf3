// The building blocks of the page. Every string is inserted as text, never as HTML.
"use strict";

const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
};
const drawn = (name, attributes = {}, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

const isNone = (value) => value === null || value === undefined;
const number = (value, places) =>
  isNone(value)
    ? "–"
    : value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
const count = (value) =>
  number(value, isNone(value) || Number.isInteger(value) || value >= 1000 ? 0 : 3);
const short = (value) => {
  const units = [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ];
  const [scale, unit] = units.find(([scale]) => Math.abs(value) >= scale) ?? [1, ""];
  return `${number(value / scale, scale === 1 ? 0 : 1)} ${unit}`.trim();
};
const share = (value) => (isNone(value) ? "–" : `${number(100 * value, 2)} %`);
// A change, with its sign.
const percent = (value) =>
  isNone(value)
    ? "–"
    : `${value > 0 ? "+" : value < 0 ? "−" : "±"}${Math.abs(100 * value).toFixed(2)} %`;
// `within`: half of the 95 % interval, if the change is an estimate.
const change = (value, within) =>
  element(
    "td",
    { class: value < 0 ? "good" : value > 0 ? "bad" : "" },
    within === undefined ? percent(value) : `${percent(value)} ±${(100 * within).toFixed(2)}`,
  );

const table = (titles, rows, caption) =>
  element(
    "div",
    { class: "scroll" },
    element(
      "table",
      {},
      caption ? element("caption", {}, element("span", {}, caption)) : null,
      element(
        "thead",
        {},
        element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title))),
      ),
      element(
        "tbody",
        {},
        ...rows.map((cells) =>
          element(
            "tr",
            {},
            ...cells.map((cell) => (cell instanceof Node ? cell : element("td", {}, cell))),
          ),
        ),
      ),
    ),
  );

// A table with columns that sort and rows that can be searched. It is sorted by the column `by`.
// columns: [title, value of a row, text of the value, class]. `setRows` of the element shows other
// columns and rows, in the order of the column that the reader chose.
const sortable = (columns, rows, { caption, by, label, most = 25 }) => {
  let [sorted, up, wanted, all] = [columns[by][0], false, "", false];
  const [head, body] = [element("tr"), element("tbody")];
  const note = element("span", { class: "faint", role: "status" });
  const more = element("button", { type: "button" });
  const column = () => {
    const at = columns.findIndex(([title]) => title === sorted);
    return at >= 0 ? at : by;
  };
  const setHead = () =>
    head.replaceChildren(
      ...columns.map(([title], at) => {
        const button = element("button", { type: "button" }, title);
        button.addEventListener("click", () => {
          up = column() === at ? !up : typeof columns[at][1](rows[0] ?? {}) === "string";
          sorted = title;
          show();
        });
        return element("th", { scope: "col" }, button);
      }),
    );
  const compare = (of) => (a, b) => {
    const [one, other] = [of(a), of(b)];
    if (isNone(one) || isNone(other)) return isNone(one) - isNone(other);
    const order = typeof one === "string" ? (one < other ? -1 : one > other ? 1 : 0) : one - other;
    return up ? order : -order;
  };
  const show = () => {
    const found = rows
      .filter((row) => columns[0][1](row).toLowerCase().includes(wanted))
      .sort(compare(columns[column()][1]));
    const shown = all ? found : found.slice(0, most);
    [...head.children].forEach((cell, at) =>
      cell.setAttribute("aria-sort", at !== column() ? "none" : up ? "ascending" : "descending"),
    );
    body.replaceChildren(
      ...shown.map((row) =>
        element(
          "tr",
          {},
          ...columns.map(([, value, text, kind], at) => {
            const shown = text ? text(value(row)) : String(value(row));
            const cell = element("td", kind ? { class: kind } : {}, shown);
            if (at === 0) cell.title = shown;
            return cell;
          }),
        ),
      ),
    );
    note.textContent =
      found.length === shown.length
        ? `${found.length} rows`
        : `${shown.length} of ${found.length} rows`;
    more.hidden = !all && found.length <= most;
    more.textContent = all ? "Show fewer" : `Show all ${found.length}`;
  };
  more.addEventListener("click", () => {
    all = !all;
    show();
  });
  const search = element("input", {
    type: "search",
    placeholder: "search",
    "aria-label": `Search ${label}`,
  });
  search.addEventListener("input", () => {
    wanted = search.value.trim().toLowerCase();
    show();
  });
  setHead();
  show();
  const made = element(
    "div",
    { class: "sortable" },
    element("div", { class: "tools" }, search, note),
    element(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${label}` },
      element(
        "table",
        {},
        element("caption", {}, element("span", {}, caption)),
        element("thead", {}, head),
        body,
      ),
    ),
    element("div", { class: "tools" }, more),
  );
  made.setRows = (newColumns, newRows) => {
    const isOther = newColumns.map(([title]) => title).join() !== columns.map(([t]) => t).join();
    [columns, rows] = [newColumns, newRows];
    if (isOther) setHead();
    show();
  };
  return made;
};

const legend = (entries) =>
  element(
    "div",
    { class: "legend" },
    ...entries.map(([name, color]) =>
      element("span", {}, element("i", { style: `background: var(--${color})` }), name),
    ),
  );

// One bar for each line: [label, [[amount, color, title], …], value].
const bars = (lines) => {
  const largest = Math.max(
    1,
    ...lines.map(([, parts]) => parts.reduce((sum, [amount]) => sum + amount, 0)),
  );
  return element(
    "div",
    { class: "bars" },
    ...lines.flatMap(([label, parts, value]) => [
      element("span", {}, label),
      element(
        "span",
        { class: "bar" },
        ...parts.map(([amount, color, title]) =>
          element("span", {
            style: `width: ${(100 * amount) / largest}%; background: var(--${color})`,
            title,
          }),
        ),
      ),
      element("span", { class: "value" }, value),
    ]),
  );
};

const figure = (caption, ...content) =>
  element("figure", {}, ...content, element("figcaption", {}, caption));

// Content that is made again for every range.
const following = (range, content) => {
  const place = element("div");
  range.follow(() => place.replaceChildren(...content()));
  return place;
};
// A sortable table whose columns and rows are those of the range.
const followingTable = (range, columns, rows, options) => {
  const made = sortable(columns(), rows(), options);
  range.follow(() => made.setRows(columns(), rows()));
  return made;
};
